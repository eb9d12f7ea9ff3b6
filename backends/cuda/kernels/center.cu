/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file center.cu
 * @brief Centres and channel shifts of K from the tokens of a call (NUM 4.2, 4.5, COMPUTE).
 *
 * A block does one sequence and head. Sixteen teams hold the sixteen partial sums of the clauses: team r adds the
 * tokens r, r + 16, r + 32, ... in this order, each thread for its 16 elements in registers. What follows from a sum
 * is then computed by all teams alike, so that every thread knows it for its own elements.
 */
#include "../ops.h"
#include "../tile/vector32.cuh"
#include "rowsum.h"

#define CENTER_TOKENS_MIN 32u
#define CENTER_TOKENS_MAX 1024u
#define THREADS_MAX (NBL_PARTIAL_SUMS * BLOCK16_TEAM_MAX)
#define AHEAD 4u /* tokens of a thread that are on their way */
#define AHEAD_BYTES (2u * BLOCK16)
#define HALF_EXPONENT_BIAS 128 /* makes the s of NUM 4.5 positive */

/* A block's sequence and head, and a thread's place in it. */
struct work {
    uint32_t first; /* token */
    uint32_t n;     /* tokens that count, at most 1024 */
    uint32_t head;
    uint32_t team;
    uint32_t r; /* which of the sixteen partial sums */
    uint32_t b; /* block of 16 in the vector */
    uint32_t *slot;
    float (*sums)[NBL_DIM_PADDED_MAX];
};

/* Row of token t of the sequence. */
static __device__ const uint8_t *row_of(const append_params &p, const work &w, uint32_t t)
{
    return p.k.data + (int64_t)(w.first + t) * p.k.stride[0] + (int64_t)w.head * p.k.stride[1];
}

/* 1 if tokens can be asked for ahead, into the memory of the sums, which are not needed then. */
static __device__ bool goes_ahead(const append_params &p, const work &w)
{
    return tensor_is_wide(&p.k) && p.k.dtype != NBL_F32 && (w.b + 1u) * BLOCK16 <= p.k_dim &&
           AHEAD * AHEAD_BYTES * blockDim.x <= sizeof(float) * NBL_PARTIAL_SUMS * NBL_DIM_PADDED_MAX;
}

/* The thread's place for elements of token t. */
static __device__ uint8_t *ahead_of(const work &w, uint32_t t)
{
    return (uint8_t *)w.sums + (t / NBL_PARTIAL_SUMS % AHEAD * blockDim.x + threadIdx.x) * AHEAD_BYTES;
}

/* Begins to load token t, if there is one. */
static __device__ void fetch(const append_params &p, const work &w, uint32_t t)
{
    if (t < w.n) {
        const uint8_t *from = row_of(p, w, t) + w.b * AHEAD_BYTES;
        const uint32_t to = ptx_shared_address(ahead_of(w, t));
        ptx_cp_async_16_zfill(to, from, 16);
        ptx_cp_async_16_zfill(to + 16u, from + 16, 16);
    }
    ptx_cp_async_commit();
}

/* NUM 3.1 on every element. One comparison tells whether there is anything to do, which is rare. */
static __device__ void sanitize(float (&x)[BLOCK16])
{
    block16_counts ignored = {0, 0, 0};
    if (block16_amax_bits(x) > nbl_bits_of(NBL_INPUT_MAX)) {
        block16_sanitize(x, &ignored);
    }
}

/* add(x, is_there) with the thread's elements of its tokens in order, sanitized (NUM 3.1); is_there is false past the
 * last one. All threads go through the same number of steps. */
template <typename ADD>
static __device__ __forceinline__ void each_token(const append_params &p, const work &w, const ADD &add)
{
    const bool is_ahead = goes_ahead(p, w);
    for (uint32_t i = 0; i + 1u < AHEAD && is_ahead; ++i) {
        fetch(p, w, w.r + i * NBL_PARTIAL_SUMS);
    }
#pragma unroll 1
    for (uint32_t t = w.r; t - w.r < w.n; t += NBL_PARTIAL_SUMS) {
        float x[BLOCK16] = {};
        if (is_ahead) {
            fetch(p, w, t + (AHEAD - 1u) * NBL_PARTIAL_SUMS);
            ptx_cp_async_wait<AHEAD - 1>();
            const uint4 *from = (const uint4 *)(const void *)ahead_of(w, t);
            if (p.k.dtype == NBL_BF16) {
                take_halves<true>(from, x, BLOCK16 / 8u);
            } else {
                take_halves<false>(from, x, BLOCK16 / 8u);
            }
        } else if (t < w.n) {
            block16_read(&p.k, row_of(p, w, t), 2, p.k_dim, w.b, x);
        }
        sanitize(x);
        add(x, t < w.n);
    }
    __syncthreads(); /* sums may be written now */
}

/* mean[d] = fl(tree(S) * fl(1/n)) of the partial sums that the teams hold (NUM 4.2). */
static __device__ void mean_of(const work &w, const float (&sums)[BLOCK16], float (&mean)[BLOCK16])
{
    float inverse = 1.0f / (float)w.n;
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        w.sums[w.r][w.b * BLOCK16 + i] = sums[i];
    }
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        float s[NBL_PARTIAL_SUMS];
#pragma unroll
        for (uint32_t k = 0; k < NBL_PARTIAL_SUMS; ++k) {
            s[k] = w.sums[k][w.b * BLOCK16 + i];
        }
        mean[i] = nbl_sum_tree(s) * inverse;
    }
    __syncthreads();
}

/* Means of the tokens as they are. */
static __device__ void mean_plain(const append_params &p, const work &w, float (&mean)[BLOCK16])
{
    float sums[BLOCK16] = {};
    each_token(p, w, [&](const float(&x)[BLOCK16], bool is_there) {
#pragma unroll
        for (uint32_t i = 0; i < BLOCK16; ++i) {
            sums[i] = is_there ? sums[i] + x[i] : sums[i];
        }
    });
    mean_of(w, sums, mean);
}

/* Mean squares of the tokens around `about` (NUM 4.5), in place. */
static __device__ void mean_squares(const append_params &p, const work &w, float (&about)[BLOCK16])
{
    float sums[BLOCK16] = {};
    each_token(p, w, [&](const float(&x)[BLOCK16], bool is_there) {
#pragma unroll
        for (uint32_t i = 0; i < BLOCK16; ++i) {
            float e = x[i] - about[i];
            sums[i] = is_there ? nbl_fma(e, e, sums[i]) : sums[i];
        }
    });
    mean_of(w, sums, about);
}

/* Means of the shifted and rotated tokens (NUM 4.2). */
static __device__ void mean_transformed(const append_params &p, const work &w, const uint8_t (&shifts)[BLOCK16],
                                        float (&mean)[BLOCK16])
{
    float sums[BLOCK16] = {};
    each_token(p, w, [&](float(&x)[BLOCK16], bool is_there) {
#pragma unroll
        for (uint32_t i = 0; i < BLOCK16; ++i) {
            x[i] *= nbl_pow2(shifts[i]);
        }
        block16_hadamard(x, w.b, p.k_hadamard);
#pragma unroll
        for (uint32_t i = 0; i < BLOCK16; ++i) {
            sums[i] = is_there ? sums[i] + x[i] : sums[i];
        }
    });
    mean_of(w, sums, mean);
}

/* u[d] from the mean squares v[d] (NUM 4.5). */
static __device__ void shifts_from(const work &w, const float (&v)[BLOCK16], uint8_t (&shifts)[BLOCK16])
{
    int32_t most = 0;
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        if (v[i] >= 0x1p-126f) {
            most = max(most, nbl_half_exponent(v[i]) + HALF_EXPONENT_BIAS);
        }
    }
    most = (int32_t)block16_team_max((uint32_t)most, w.team, w.slot, threadIdx.x == 0) - HALF_EXPONENT_BIAS;
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        shifts[i] = 0;
        if (v[i] >= 0x1p-126f) {
            shifts[i] = nbl_shift_of(most, v[i]);
        }
    }
}

/* Writes the elements that lie below the dimension, by the first team. */
static __device__ void store(const work &w, uint32_t dim, const uint8_t (&values)[BLOCK16], uint8_t *to)
{
    if (w.r == 0) {
#pragma unroll
        for (uint32_t i = 0; i < BLOCK16; ++i) {
            if (w.b * BLOCK16 + i < dim) {
                to[w.b * BLOCK16 + i] = values[i];
            }
        }
    }
}

/* Which row of the centres is this sequence's and head's: looked up where it is written, not held in registers. */
static __device__ uint64_t center_index(const append_params &p, const work &w)
{
    return (uint64_t)center_row(&p.centers, blockIdx.x) * p.kv_heads + w.head;
}

/* Shifts of the sequence: all 0 if it has too few tokens. */
static __device__ void compute_shifts(const append_params &p, const work &w, uint8_t (&shifts)[BLOCK16])
{
    if (w.n >= CENTER_TOKENS_MIN) {
        float v[BLOCK16] = {};
        if (p.centers.codes != NULL) {
            mean_plain(p, w, v);
        }
        mean_squares(p, w, v);
        shifts_from(w, v, shifts);
    }
    store(w, p.k_dim, shifts, p.centers.shifts + center_index(p, w) * p.k_dim);
}

/* Centre of the sequence: all 0 if it has too few tokens. */
static __device__ void compute_center(const append_params &p, const work &w, const uint8_t (&shifts)[BLOCK16])
{
    float mean[BLOCK16] = {};
    block16_codes q;
    if (w.n >= CENTER_TOKENS_MIN) {
        mean_transformed(p, w, shifts, mean);
    }
    block16_int8(mean, block16_team_max(block16_amax_bits(mean), w.team, w.slot, threadIdx.x == 0), &q);
    const uint64_t index = center_index(p, w);
    store(w, p.k_dim, q.code, (uint8_t *)p.centers.codes + index * p.k_dim);
    if (threadIdx.x == 0) {
        p.centers.exponents[index] = nbl_e8m0_encode(q.exponent);
    }
}

static __global__ void __launch_bounds__(THREADS_MAX) center_kernel(const __grid_constant__ append_params p)
{
    __shared__ alignas(16) float sums[NBL_PARTIAL_SUMS][NBL_DIM_PADDED_MAX];
    __shared__ uint32_t slot;
    int32_t first = p.seq_indptr[blockIdx.x];
    int32_t end = p.seq_indptr[blockIdx.x + 1u];
    if (first < 0 || end <= first || (uint32_t)end > p.tokens || center_row(&p.centers, blockIdx.x) < 0) {
        return; /* no tokens, or a fault that append reports */
    }
    uint32_t team = nbl_layout_dim_padded(p.k_dim) / BLOCK16;
    work w = {(uint32_t)first,
              min((uint32_t)(end - first), CENTER_TOKENS_MAX),
              blockIdx.y,
              team,
              threadIdx.x / team,
              threadIdx.x % team,
              &slot,
              sums};
    uint8_t shifts[BLOCK16] = {};
    if (p.centers.shifts != NULL) {
        compute_shifts(p, w, shifts);
    }
    if (p.centers.codes != NULL) {
        compute_center(p, w, shifts);
    }
}

extern "C" cudaError_t nbl_cuda_center_compute(const append_params *p, cudaStream_t stream)
{
    dim3 grid(p->batch, p->kv_heads);
    center_kernel<<<grid, NBL_PARTIAL_SUMS * nbl_layout_dim_padded(p->k_dim) / BLOCK16, 0, stream>>>(*p);
    return cudaGetLastError();
}
