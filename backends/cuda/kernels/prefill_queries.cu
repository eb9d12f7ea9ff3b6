/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file prefill_queries.cu
 * @brief Query rows of a prefill to canonical form (NUM 5.1): what prepare does for other calls, for many rows.
 *
 * A block takes every gridDim.x-th run of rows of a unit: row i is query token i / group, head i % group of the kv
 * head.
 * All rows of a unit share centre and channel shifts, so that those are looked up once. A lane has 32 elements of a row
 * (tile/vector32.cuh), and loads those of its next row while it works on the one at hand. What NUM 3.1 corrects is so
 * large that it shows after the transforms; only then the row is read again and corrected.
 *
 * Rows of 128 bf16 elements with the rotation that usually goes with the format have code of their own, in which the
 * last butterflies take half the exchange (halves32).
 */
#include "../tile/launch.cuh"
#include "../tile/quantize32.cuh"
#include "prefill.h"

#define THREADS 128u
#define WARPS (THREADS / WARP_LANES)
#define BLOCKS_PER_PROCESSOR (4u - BLOCKS_FEWER)
#define USUAL_DIM 128u
#define WAVES 4u
#define ROUNDS 4u /* runs of rows that a block has at least, where there are as many */
#define HALF_CHUNKS (VECTOR32 / 8u)

namespace
{

#define FACTOR_STRIDE (VECTOR32 + 8u) /* a lane's 16-bit factors are in other banks than its neighbours' */

/* Shared memory of a block. */
struct memory {
    channel_tables tables;
    /* The factors of the tables again. */
    __align__(16) uint16_t factor_bf16[NBL_DIM_PADDED_MAX / VECTOR32 * FACTOR_STRIDE];
};

/* The unit and its rows as a lane sees them. */
struct unit {
    cuda_sequence sequence;
    uint32_t sequence_index;
    uint32_t kv_head;
    uint32_t rows;
    int32_t rotation;               /* log2 of what k_hadamard multiplies by */
    float center_unit;              /* 2^Emu */
    uint32_t center[VECTOR32 / 4u]; /* codes of the centre at the lane's elements */
    bool halves;                    /* rows of 16-bit elements, side by side and aligned */
    halves32 order;                 /* of the lane's elements after the butterflies, in usual rows */
};

/* A row of the unit: a query token and a head of the group. */
struct row_place {
    uint32_t token;
    uint32_t in_group;
};

CUDA_DEVICE row_place row_of(const attend_params &p, uint32_t i)
{
    return {i / p.group_rows, i % p.group_rows};
}

/* The row that is so many further on, both below one block's rows. */
CUDA_DEVICE row_place row_after(const attend_params &p, const row_place &row, const row_place &step)
{
    const uint32_t in_group = row.in_group + step.in_group;
    const bool carries = in_group >= p.group_rows;
    return {row.token + step.token + (carries ? 1u : 0u), carries ? in_group - p.group_rows : in_group};
}

CUDA_DEVICE uint32_t head_of(const attend_params &p, const unit &u, const row_place &row)
{
    return u.kv_head * p.group_rows + row.in_group;
}

CUDA_DEVICE const uint8_t *data_of(const attend_params &p, const unit &u, const row_place &row)
{
    return p.q.data + (int64_t)((uint32_t)u.sequence.q_first + row.token) * p.q.stride[0] +
           (int64_t)head_of(p, u, row) * p.q.stride[1];
}

/* Half of the lane's elements in the end: number of its block of 16 in the row. */
CUDA_DEVICE uint32_t block_of(const unit &u, const team32 &team, uint32_t half)
{
    return halves32_first(u.order, team.b) + (half << u.order.steps);
}

/* The lane's elements of a row as they lie in memory, if they are halves; zeros where there are none. */
CUDA_DEVICE void fetch(const attend_params &p, const unit &u, const team32 &team, const row_place &row, bool there,
                       uint4 (&chunks)[HALF_CHUNKS])
{
    const uint8_t *at = there ? data_of(p, u, row) + 2u * VECTOR32 * team.b : NULL;
#pragma unroll
    for (uint32_t k = 0; k < HALF_CHUNKS; ++k) {
        const bool inside = there && team.b * VECTOR32 + 8u * k < p.k_dim; /* dimensions are multiples of 8 */
        chunks[k] = inside ? *(const uint4 *)(const void *)(at + 16u * k) : make_uint4(0, 0, 0, 0);
    }
}

/* The same of a usual row, halves in the lane's order; any bytes if it is not there. */
CUDA_DEVICE void fetch_usual(const attend_params &p, const unit &u, const team32 &team, const row_place &row,
                             bool there, uint4 (&chunks)[HALF_CHUNKS])
{
    const uint4 *at = (const uint4 *)(const void *)(data_of(p, u, row) + 2u * VECTOR32 * team.b);
    const uint32_t swap = u.order.swaps * (HALF_CHUNKS / 2u);
    if (there) {
#pragma unroll
        for (uint32_t k = 0; k < HALF_CHUNKS; ++k) {
            chunks[k] = at[k ^ swap];
        }
    }
}

/* Shifts and rotation (NUM 4.5, 4.1). */
CUDA_DEVICE void transform(const attend_params &p, const memory &m, const team32 &team, float (&x)[VECTOR32])
{
    if (p.centers.shifts != NULL) {
        vector32_scale(x, &m.tables, team.b);
    }
    vector32_hadamard(x, team.b, p.k_hadamard);
}

/* The lane's elements of a row with NUM 3.1 and the transforms applied. */
CUDA_DEVICE void read_carefully(const attend_params &p, const memory &m, const unit &u, const team32 &team,
                                const row_place &row, bool there, float (&x)[VECTOR32])
{
    block16_counts ignored = {0, 0, 0};
    vector32_read(&p.q, there ? data_of(p, u, row) : p.q.data, there ? p.k_dim : 0u, team.b, x);
    vector32_sanitize(x, &ignored);
    transform(p, m, team, x);
}

/* Sixteen bf16 elements times their factors. */
CUDA_DEVICE void take_bf16(const uint4 *from, const uint4 *factors, float *x)
{
#pragma unroll
    for (uint32_t k = 0; k < BLOCK16 / 8u; ++k) {
        const uint4 v = from[k], f = factors[k];
        halves_of_word<true>(scale_bf16x2(v.x, f.x), &x[8u * k]);
        halves_of_word<true>(scale_bf16x2(v.y, f.y), &x[8u * k + 2u]);
        halves_of_word<true>(scale_bf16x2(v.z, f.z), &x[8u * k + 4u]);
        halves_of_word<true>(scale_bf16x2(v.w, f.w), &x[8u * k + 6u]);
    }
}

/* A usual row's elements, shifted and rotated, in the order of the halves. A product with a shift is exact, but for
 * elements so small that their codes are 0. */
template <uint32_t STEPS>
CUDA_DEVICE void take_usual(const attend_params &p, const memory &m, const unit &u, const team32 &team,
                            const uint4 (&chunks)[HALF_CHUNKS], float (&x)[VECTOR32])
{
    const uint16_t *factors = &m.factor_bf16[team.b * FACTOR_STRIDE];
#pragma unroll
    for (uint32_t i = 0; i < 2u; ++i) {
        take_bf16(&chunks[HALF_CHUNKS / 2u * i], (const uint4 *)(const void *)(factors + (i ^ u.order.swaps) * BLOCK16),
                  &x[BLOCK16 * i]);
    }
    halves32_hadamard<STEPS>(x, u.order, p.k_hadamard);
}

/* The same with NUM 3.1 applied. */
template <uint32_t STEPS>
CUDA_DEVICE void read_usual_carefully(const attend_params &p, const memory &m, const unit &u, const team32 &team,
                                      const row_place &row, bool there, float (&x)[VECTOR32])
{
    block16_counts ignored = {0, 0, 0};
    uint4 chunks[HALF_CHUNKS] = {};
    fetch_usual(p, u, team, row, there, chunks);
    take_halves<true>(chunks, x, HALF_CHUNKS);
    vector32_sanitize(x, &ignored);
    halves32_scale(x, u.order, true, &m.tables, team.b);
    halves32_hadamard<STEPS>(x, u.order, p.k_hadamard);
}

/* Largest value of a team, in all its lanes. */
CUDA_DEVICE uint32_t team_max(const team32 &team, uint32_t value)
{
    if (team.size != 4u) {
        return team32_max(team, value);
    }
    value = max(value, __shfl_xor_sync(FULL_WARP, value, 1));
    return max(value, __shfl_xor_sync(FULL_WARP, value, 2));
}

/* Sum over a team, in its first lane. */
CUDA_DEVICE int32_t team_sum(const team32 &team, int32_t value)
{
    const int32_t own = value;
    for (uint32_t k = 1; k < team.size; ++k) {
        value += __shfl_down_sync(FULL_WARP, own, k);
    }
    return value;
}

/* Largest magnitude of the lane's elements, as bits; a NaN is larger than anything. */
CUDA_DEVICE uint32_t largest_of(const float (&x)[VECTOR32])
{
    float largest[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (uint32_t i = 0; i < VECTOR32; ++i) {
        largest[i % 4u] = ptx_max_nan(largest[i % 4u], fabsf(x[i]));
    }
    return nbl_bits_of(ptx_max_nan(ptx_max_nan(largest[0], largest[1]), ptx_max_nan(largest[2], largest[3])));
}

/* Four codes, in the low bytes of four numbers, as a word. */
CUDA_DEVICE uint32_t code_word(const uint32_t (&bits)[4])
{
    return ptx_prmt(ptx_prmt(bits[0], bits[1], 0x0040u), ptx_prmt(bits[2], bits[3], 0x0040u), 0x5410u);
}

/* Magnitudes up to a limit. */
CUDA_DEVICE void limit_all(float (&x)[VECTOR32], float limit)
{
#pragma unroll
    for (uint32_t i = 0; i < VECTOR32; ++i) {
        x[i] = clamp_finite(x[i], limit);
    }
}

/* q8 (NUM 3.2): the lane's codes, four to a word; the exponent is returned. `vector` is the row's largest magnitude;
 * halves of the lane are to be multiplied by their sign. */
CUDA_DEVICE int32_t quantize_q8(float (&x)[VECTOR32], float vector, const float (&sign)[2],
                                uint32_t (&words)[VECTOR32 / 4u])
{
    const int32_t e = nbl_exponent_for(vector, (float)NBL_INT8_CODE_MAX, NBL_E_MIN, NBL_E_MAX);
    const float inverse = nbl_pow2(-e);
    const float limit = (float)NBL_INT8_CODE_MAX * nbl_pow2(e);
    if (__any_sync(FULL_WARP, vector > limit)) { /* only with the largest exponent */
        limit_all(x, limit);
    }
#pragma unroll
    for (uint32_t i = 0; i < VECTOR32 / 4u; ++i) {
        uint32_t bits[4];
#pragma unroll
        for (uint32_t j = 0; j < 4u; ++j) { /* the product is exact, the code in the low byte */
            bits[j] = nbl_bits_of(nbl_fma(x[4u * i + j], sign[i / 4u] * inverse, NBL_MAGIC));
        }
        words[i] = code_word(bits);
    }
    return e;
}

/* x, of up to 7.25 units, rounded to E2M1 values of the unit (NUM 3.4), but 8 where that is the nearest. `unit` has the
 * bits of 1.5 * unit. Adding 1.5 * 2^22 steps rounds to half a step; the step is the power of two below |x|, or 1. */
CUDA_DEVICE float round_e2m1(float x, int32_t unit)
{
    constexpr int32_t half = 1 << 22, up = 22 << 23;
    const int32_t size = (int32_t)(nbl_bits_of(x) & 0x7f800000u) | half;
    const float shift = __int_as_float(__viaddmax_s32(size, up, unit + up));
    return (x + shift) - shift;
}

/* q4 (NUM 3.4, 2.4), likewise. A lane is a block; `own` is its largest magnitude. */
CUDA_DEVICE int32_t quantize_q4(float (&x)[VECTOR32], float own, const team32 &team, uint32_t (&words)[VECTOR32 / 4u])
{
    int32_t e = nbl_mxfp4_block_exponent(&own, 1, NBL_RULE_OPTIMAL);
    const int32_t most = (int32_t)team_max(team, (uint32_t)(e - NBL_BLOCK_E_MIN)) + NBL_BLOCK_E_MIN;
    e = max(e, most - NBL_BLOCK_E_SPREAD);
    const int32_t least = NBL_BLOCK_E_MAX - (int32_t)team_max(team, (uint32_t)(NBL_BLOCK_E_MAX - e));
    const float unit = nbl_pow2(e), inverse = nbl_pow2(1 - least);
    if (__any_sync(FULL_WARP, own > nbl_mxfp4_peak(NBL_RULE_OPTIMAL) * unit)) { /* only with the largest exponent */
        limit_all(x, NBL_E2M1_MAX * unit);
    }
    const uint32_t largest = 12u << (e - least), limit = largest << 16 | largest; /* codes of 6 and -6 */
    const uint32_t low_limit = ((0u - largest) & 0xffffu) * 0x10001u;
#pragma unroll
    for (uint32_t i = 0; i < VECTOR32 / 4u; ++i) {
        uint32_t bits[4], pair[2];
#pragma unroll
        for (uint32_t j = 0; j < 4u; ++j) { /* the product is exact, the code in the low half */
            const float y = round_e2m1(x[4u * i + j], (int32_t)(nbl_bits_of(unit) | 1u << 22));
            bits[j] = nbl_bits_of(nbl_fma(y, inverse, NBL_MAGIC));
        }
#pragma unroll
        for (uint32_t j = 0; j < 2u; ++j) {
            pair[j] = __vmaxs2(__vmins2(ptx_prmt(bits[2u * j], bits[2u * j + 1u], 0x5410u), limit), low_limit);
        }
        words[i] = ptx_prmt(pair[0], pair[1], 0x6420u);
    }
    return least - 1;
}

/* Codes and what else is to be known of a row to the workspace; all lanes of the warp call it. */
CUDA_DEVICE void store(const attend_params &p, const unit &u, const team32 &team, const row_place &row, bool there,
                       const uint32_t (&words)[VECTOR32 / 4u], int32_t exponent)
{
    int32_t dot = 0;
    if (p.centers.codes != NULL) {
#pragma unroll
        for (uint32_t k = 0; k < VECTOR32 / 4u; ++k) {
            dot = ptx_dp4a_ss((int32_t)words[k], (int32_t)u.center[k], dot);
        }
        dot = team_sum(team, dot);
    }
    if (!there) {
        return;
    }
    const uint32_t token = (uint32_t)u.sequence.q_first + row.token;
    const uint64_t index = (uint64_t)token * p.q_heads + head_of(p, u, row);
    uint4 *to = (uint4 *)(void *)(p.codes + index * p.k_dim_padded);
    to[block_of(u, team, 0)] = make_uint4(words[0], words[1], words[2], words[3]);
    to[block_of(u, team, 1)] = make_uint4(words[4], words[5], words[6], words[7]);
    if (team.b == 0) {
        cuda_query query;
        query.scale = p.c * nbl_pow2(exponent - u.rotation);
        query.offset = 0.0f;
        query.bias = 0; /* of decode alone */
        query.sequence = (int32_t)u.sequence_index;
        if (p.centers.codes != NULL && u.sequence.kv_len > 0) { /* NUM 5.7 */
            query.offset = (float)dot * u.center_unit * query.scale;
        }
        p.queries[index] = query;
    }
}

/* The tables of all channels; factors are 1 without shifts. */
CUDA_DEVICE void fill_tables(memory &m, const block16_centering &centering, uint32_t dim)
{
    channel_tables_fill(&m.tables, centering, dim, -1);
    for (uint32_t d = threadIdx.x; d < nbl_layout_dim_padded(dim); d += blockDim.x) { /* its own, as filled there */
        const float factor = m.tables.factor[d / VECTOR32 * CHANNEL_STRIDE + d % VECTOR32];
        m.factor_bf16[d / VECTOR32 * FACTOR_STRIDE + d % VECTOR32] = (uint16_t)(nbl_bits_of(factor) >> 16);
    }
}

/* The unit of the block; its tables are filled. */
template <uint32_t STEPS> CUDA_DEVICE unit unit_of(const attend_params &p, memory &m, const team32 &team)
{
    const uint32_t number = p.first_unit + blockIdx.y;
    block16_centering centering = {NULL, NULL, NULL};
    unit u = {};
    u.sequence_index = number / p.kv_heads;
    u.kv_head = number % p.kv_heads;
    u.sequence = p.sequences[u.sequence_index];
    u.rows = (uint32_t)u.sequence.q_len * p.group_rows;
    u.rotation = nbl_log2_of(p.k_hadamard);
    u.halves = p.q.dtype != NBL_F32 && tensor_is_wide(&p.q);
    u.order = halves32_of(team.b, STEPS == STEPS_ANY ? 0u : VECTOR32 << STEPS);
    if (u.rows > 0 && p.centering) {
        centering = block16_centering_of(&p.centers, u.sequence_index, p.kv_heads, u.kv_head, p.k_dim, p.status);
    }
    fill_tables(m, centering, p.k_dim);
    if (centering.codes != NULL) {
        u.center_unit = nbl_pow2(nbl_e8m0_decode_slot(*centering.exponent));
        for (uint32_t k = 0; k < VECTOR32; ++k) {
            const uint32_t d = block_of(u, team, k / BLOCK16) * BLOCK16 + k % BLOCK16;
            const uint32_t code = d < p.k_dim ? (uint8_t)centering.codes[d] : 0u;
            u.center[k / 4u] |= code << (8u * (k % 4u));
        }
    }
    return u;
}

/* STEPS: of the exchange in usual rows, or STEPS_ANY. */
template <bool Q4, uint32_t STEPS>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_PROCESSOR)
    prefill_queries_kernel(const __grid_constant__ attend_params p)
{
    constexpr bool usual = STEPS != STEPS_ANY;
    __shared__ memory m;
    const team32 team = team32_of(usual ? USUAL_DIM : p.k_dim);
    ptx_grid_wait();
    ptx_grid_release();
    const unit u = unit_of<STEPS>(p, m, team);
    __syncthreads();
    const uint32_t stride = gridDim.x * WARPS * team.per_warp;
    const uint32_t rows = team.vector < team.per_warp ? u.rows : 0u; /* for the lane */
    const row_place step = row_of(p, stride);
    uint32_t first = (blockIdx.x * WARPS + threadIdx.x / WARP_LANES) * team.per_warp;
    row_place next = row_of(p, first + team.vector);
    uint4 chunks[HALF_CHUNKS] = {};
    if (usual) {
        fetch_usual(p, u, team, next, first + team.vector < rows, chunks);
    } else {
        fetch(p, u, team, next, u.halves && first + team.vector < rows, chunks);
    }
    for (; first < u.rows; first += stride) {
        const bool there = first + team.vector < rows, another = first + stride + team.vector < rows;
        const row_place row = next;
        float x[VECTOR32];
        uint32_t words[VECTOR32 / 4u];
        next = row_after(p, row, step);
        if (usual) {
            take_usual<STEPS>(p, m, u, team, chunks, x);
            fetch_usual(p, u, team, next, another, chunks);
        } else if (u.halves) {
            vector32_take((const uint8_t *)chunks, p.q.dtype, x);
            fetch(p, u, team, next, another, chunks);
            transform(p, m, team, x);
        } else {
            read_carefully(p, m, u, team, row, there, x);
        }
        uint32_t own = largest_of(x);
        /* An element beyond the limit leaves one of at least 2^-NBL_SHIFT_MAX of it, rounding left aside. */
        if (__any_sync(FULL_WARP, own > nbl_bits_of(NBL_INPUT_MAX * 0x1p-8f))) {
            if (usual) {
                read_usual_carefully<STEPS>(p, m, u, team, row, there, x);
            } else {
                read_carefully(p, m, u, team, row, there, x);
            }
            own = largest_of(x);
        }
        const int32_t exponent = Q4 ? quantize_q4(x, nbl_float_of(own), team, words)
                                    : quantize_q8(x, nbl_float_of(team_max(team, own)), u.order.sign, words);
        store(p, u, team, row, there, words, exponent);
    }
}

template <bool Q4, uint32_t STEPS> cudaError_t launch(const attend_params *p, cudaStream_t stream)
{
    const uint32_t run = ROUNDS * WARPS * team32_per_warp(p->k_dim);
    const uint32_t rows = p->q_len_max * p->group_rows;
    const uint32_t most = (p->processors * BLOCKS_PER_PROCESSOR * WAVES + p->units - 1u) / p->units;
    const uint32_t blocks = (rows + run - 1u) / run;
    return launch_after(prefill_queries_kernel<Q4, STEPS>, dim3(blocks < most ? blocks : most, p->units), THREADS, 0,
                        stream, p);
}

} // namespace

extern "C" cudaError_t nbl_cuda_prefill_queries(const attend_params *p, cudaStream_t stream)
{
    const bool usual = p->q.dtype == NBL_BF16 && p->k_dim == USUAL_DIM && tensor_is_wide(&p->q);
    if (usual && p->k_hadamard == VECTOR32) {
        return p->q_format == NBL_Q4 ? launch<true, 0>(p, stream) : launch<false, 0>(p, stream);
    }
    if (usual && p->k_hadamard == USUAL_DIM && p->q_format != NBL_Q4) {
        return launch<false, 2>(p, stream);
    }
    return p->q_format == NBL_Q4 ? launch<true, STEPS_ANY>(p, stream) : launch<false, STEPS_ANY>(p, stream);
}
