/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file center.cu
 * @brief Centres of K from the tokens of a call (NUM 4.2, COMPUTE).
 *
 * A block does one sequence and head. Sixteen teams hold the sixteen partial sums of the clause: team r adds the tokens
 * r, r + 16, r + 32, ... in this order, each thread for its 16 elements in registers.
 */
#include "../ops.h"
#include "../tile/block16.cuh"
#include "rowsum.h"

#define CENTER_TOKENS_MIN 32u
#define CENTER_TOKENS_MAX 1024u
#define THREADS_MAX (NBL_PARTIAL_SUMS * BLOCK16_TEAM_MAX)

/* Adds the team's tokens; all threads of the block go through the same number of steps. */
static __device__ void add_tokens(const append_params &p, uint32_t first, uint32_t n, uint32_t head, uint32_t r, uint32_t b,
                                  float (&sums)[BLOCK16])
{
    for (uint32_t t = 0; t < n; t += NBL_PARTIAL_SUMS) {
        float x[BLOCK16];
        bool has_token = t + r < n;
        uint32_t token = first + (has_token ? t + r : 0u);
        block16_counts ignored = {0, 0, 0};
        block16_read(&p.k, p.k.data + (int64_t)token * p.k.stride[0] + (int64_t)head * p.k.stride[1], 2, p.k_dim, b, x);
        block16_sanitize(x, &ignored);
        block16_hadamard(x, b, p.k_hadamard);
#pragma unroll
        for (uint32_t i = 0; i < BLOCK16; ++i) {
            sums[i] = has_token ? sums[i] + x[i] : sums[i];
        }
    }
}

static __global__ void __launch_bounds__(THREADS_MAX) center_kernel(const __grid_constant__ append_params p)
{
    __shared__ float sums[NBL_PARTIAL_SUMS][NBL_DIM_PADDED_MAX];
    __shared__ uint32_t slot;
    uint32_t sequence = blockIdx.x;
    uint32_t head = blockIdx.y;
    uint32_t team = nbl_layout_dim_padded(p.k_dim) / BLOCK16;
    uint32_t r = threadIdx.x / team;
    uint32_t b = threadIdx.x % team;
    int32_t first = p.seq_indptr[sequence];
    int32_t end = p.seq_indptr[sequence + 1];
    int64_t row = center_row(&p.centers, sequence);
    if (first < 0 || end <= first || (uint32_t)end > p.tokens || row < 0) {
        return; /* no tokens, or a fault that append reports */
    }
    uint32_t n = (uint32_t)(end - first);
    float x[BLOCK16] = {0};
    if (n >= CENTER_TOKENS_MIN) {
        add_tokens(p, (uint32_t)first, min(n, CENTER_TOKENS_MAX), head, r, b, x);
    }
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        sums[r][b * BLOCK16 + i] = x[i];
    }
    __syncthreads();
    float inverse = 1.0f / (float)min(n, CENTER_TOKENS_MAX);
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) { /* all teams do the same work, so that shuffles stay whole */
        float s[NBL_PARTIAL_SUMS];
#pragma unroll
        for (uint32_t k = 0; k < NBL_PARTIAL_SUMS; ++k) {
            s[k] = sums[k][b * BLOCK16 + i];
        }
        x[i] = n >= CENTER_TOKENS_MIN ? nbl_sum_tree(s) * inverse : 0.0f;
    }
    block16_codes q;
    uint32_t amax = block16_team_max(block16_amax_bits(x), team, &slot, threadIdx.x == 0);
    block16_int8(x, amax, &q);
    if (r == 0) {
        uint64_t index = (uint64_t)row * p.kv_heads + head;
        for (uint32_t i = 0; i < BLOCK16; ++i) {
            if (b * BLOCK16 + i < p.k_dim) {
                p.centers.codes[index * p.k_dim + b * BLOCK16 + i] = (int8_t)q.code[i];
            }
        }
        if (b == 0) {
            p.centers.exponents[index] = nbl_e8m0_encode(q.exponent);
        }
    }
}

extern "C" cudaError_t nbl_cuda_center_compute(const append_params *p, cudaStream_t stream)
{
    dim3 grid(p->batch, p->kv_heads);
    center_kernel<<<grid, NBL_PARTIAL_SUMS * nbl_layout_dim_padded(p->k_dim) / BLOCK16, 0, stream>>>(*p);
    return cudaGetLastError();
}
