/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file prepare.cu
 * @brief First step of attend: checks every sequence, brings query rows to canonical form (NUM 5.1).
 *
 * The first blocks check a sequence each, the others take query rows, a team of Dp/16 threads per row. Neither waits
 * for the other: later steps skip the rows of sequences found bad.
 */
#include "../attend.h"
#include "../ptx/ptx.cuh"
#include "../tile/block16.cuh"
#include "../tile/fp4_query.cuh"
#include "exp2grid.h"
#include "float_format.h"
#include "rowsum.h"

#define THREADS 256u
#define VECTORS_MAX (THREADS / 2u)
#define BLOCKS_PER_PROCESSOR 4
#define ROWS_PER_TEAM 2u
#define PAGE_LOADS 8u      /* of a page table by a thread, on their way at once */
#define SLOPE_MAX 65536.0f /* NUM 5.1 */

/* ------------------------------------------------------------------------------------------------ sequences */

/* Lengths of sequence b; false if they are bad. */
static __device__ bool check_lengths(const attend_params &p, uint32_t b, int32_t q_first, int64_t q_len, int32_t kv_len)
{
    if (q_first < 0 || q_len < 0 || (uint64_t)q_first + (uint64_t)q_len > p.q_tokens) {
        return false; /* reported with the indptr */
    }
    if (kv_len < 0 || (uint32_t)kv_len > p.kv_len_max) {
        cuda_fault_report(p.status, CUDA_FAULT_KV_LEN, b, 0, kv_len, p.kv_len_max);
        return false;
    }
    if (q_len > (int64_t)p.q_len_max) {
        cuda_fault_report(p.status, CUDA_FAULT_Q_LEN, b, 0, q_len, p.q_len_max);
        return false;
    }
    if (p.tree_mask != NULL && (uint64_t)q_len > 32u * (uint64_t)p.tree_mask_stride) {
        cuda_fault_report(p.status, CUDA_FAULT_TREE_MASK, b, 0, q_len, p.tree_mask_stride);
        return false;
    }
    return true;
}

/* The thread's share of the sequence's pages; lengths are good. */
static __device__ bool check_pages(const attend_params &p, uint32_t b, uint32_t kv_len)
{
    const int32_t *table = p.page_table + (uint64_t)b * p.page_table_stride;
    uint32_t pages = (kv_len + p.pages.page_tokens - 1u) / p.pages.page_tokens;
    if (pages > p.page_table_stride) {
        cuda_fault_report(p.status, CUDA_FAULT_TABLE_STRIDE, b, pages, kv_len, p.page_table_stride);
        return false;
    }
    bool good = true;
    for (uint32_t first = threadIdx.x; first < pages; first += THREADS * PAGE_LOADS) {
        int32_t ids[PAGE_LOADS];
#pragma unroll
        for (uint32_t k = 0; k < PAGE_LOADS; ++k) {
            ids[k] = table[min(first + k * THREADS, pages - 1u)];
        }
#pragma unroll
        for (uint32_t k = 0; k < PAGE_LOADS; ++k) {
            if (first + k * THREADS < pages && cuda_region_find(&p.pages, ids[k]) == NULL) {
                cuda_fault_report(p.status, CUDA_FAULT_TABLE_PAGE, b, first + k * THREADS, ids[k], 0);
                good = false;
            }
        }
    }
    return good;
}

/* The thread's share of the sinks and slopes. */
static __device__ bool check_heads(const attend_params &p)
{
    bool good = true;
    for (uint32_t h = threadIdx.x; h < p.q_heads; h += THREADS) {
        if (p.sinks != NULL && !(fabsf(p.sinks[h]) <= NBL_LOGIT_MAX) && p.sinks[h] != -INFINITY) {
            cuda_fault_report(p.status, CUDA_FAULT_SINK, h, 0, nbl_bits_of(p.sinks[h]), 0);
            good = false;
        }
        if (p.alibi_slopes != NULL && !(fabsf(p.alibi_slopes[h]) <= SLOPE_MAX)) {
            cuda_fault_report(p.status, CUDA_FAULT_SLOPE, h, 0, nbl_bits_of(p.alibi_slopes[h]), 0);
            good = false;
        }
    }
    return good;
}

static __device__ bool check_center(const attend_params &p, uint32_t b)
{
    if (!p.centering || center_row(&p.centers, b) >= 0) {
        return true;
    }
    cuda_fault_report(p.status, CUDA_FAULT_CENTER_ROW, b, 0, p.centers.rows != NULL ? p.centers.rows[b] : (int64_t)b,
                      p.centers.row_count);
    return false;
}

static __device__ void check_sequence(const attend_params &p, uint32_t b)
{
    int32_t q_first = p.q_indptr[b];
    int64_t q_len = (int64_t)p.q_indptr[b + 1u] - q_first;
    int32_t kv_len = p.kv_len[b];
    bool good = check_indptr_entry(p.q_indptr, b + 1u, p.batch, p.q_tokens, 0, p.status);
    good = (b != 0 || check_indptr_entry(p.q_indptr, 0, p.batch, p.q_tokens, 0, p.status)) && good;
    good = check_lengths(p, b, q_first, q_len, kv_len) && good;
    good = check_center(p, b) && check_heads(p) && good;
    good = good && check_pages(p, b, (uint32_t)kv_len);
    good = __syncthreads_and(good) != 0;
    if (threadIdx.x == 0) {
        p.sequences[b] = good ? cuda_sequence{q_first, (int32_t)q_len, kv_len, 0} : cuda_sequence{0, 0, 0, 0};
    }
}

/* ------------------------------------------------------------------------------------------------ rows */

/* Four canonical codes, RNE of x * unit, to a word. Their magnitudes are at most 127. */
static __device__ uint32_t code_word(const float *x, float unit)
{
    uint32_t bits[4];
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        bits[i] = nbl_bits_of(nbl_fma(x[i], unit, NBL_MAGIC)); /* the product is exact, the code in the low byte */
    }
    return __byte_perm(__byte_perm(bits[0], bits[1], 0x0040), __byte_perm(bits[2], bits[3], 0x0040), 0x5410);
}

/* q8 (NUM 3.2): the thread's canonical codes, four to a word; the exponent of the row is returned. */
static __device__ int32_t quantize_q8(float (&x)[BLOCK16], uint32_t team, uint32_t b, uint32_t *slot,
                                      uint32_t (&words)[4])
{
    float amax = nbl_float_of(block16_team_max(block16_amax_bits(x), team, slot, b == 0));
    int32_t exponent = nbl_exponent_for(amax, (float)NBL_INT8_CODE_MAX, NBL_E_MIN, NBL_E_MAX);
    float most = (float)NBL_INT8_CODE_MAX * nbl_pow2(exponent);
    if (amax > most) { /* only with the largest exponent */
#pragma unroll
        for (uint32_t i = 0; i < BLOCK16; ++i) {
            x[i] = nbl_clamp_f32(x[i], -most, most);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        words[i] = code_word(x + 4u * i, nbl_pow2(-exponent));
    }
    return exponent;
}

/* q4 (NUM 3.4 and 2.4), likewise. */
static __device__ int32_t quantize_q4(float (&x)[BLOCK16], uint32_t team, uint32_t b, uint32_t *slot,
                                      uint32_t (&words)[4])
{
    int32_t e = block16_mxfp4_exponent(x, NBL_RULE_OPTIMAL, true, b);
    int32_t most = (int32_t)block16_team_max((uint32_t)(e - NBL_BLOCK_E_MIN), team, slot, b == 0) + NBL_BLOCK_E_MIN;
    e = max(e, most - NBL_BLOCK_E_SPREAD);
    int32_t least = NBL_BLOCK_E_MAX - (int32_t)block16_team_max((uint32_t)(NBL_BLOCK_E_MAX - e), team, slot, b == 0);
    float unit = nbl_pow2(-e);
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        x[i] = nbl_e2m1_round(nbl_clamp_f32(x[i] * unit, -NBL_E2M1_MAX, NBL_E2M1_MAX));
    }
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        words[i] = code_word(x + 4u * i, nbl_pow2(e - least + 1));
    }
    return least - 1;
}

/* 16 bytes of a row of dim bytes, at the thread's block; zeros past the end, all zero without a row. */
static __device__ void read_bytes(const void *row, uint32_t dim, uint32_t b, uint32_t (&words)[4])
{
    const uint8_t *at = (const uint8_t *)row + b * BLOCK16;
    if (row != NULL && (b + 1u) * BLOCK16 <= dim && ((uint64_t)at & 15u) == 0) {
        uint4 v = *(const uint4 *)(const void *)at;
        words[0] = v.x;
        words[1] = v.y;
        words[2] = v.z;
        words[3] = v.w;
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        words[i] = 0;
#pragma unroll
        for (uint32_t k = 0; k < 4u; ++k) {
            uint32_t d = 4u * i + k;
            words[i] |= row != NULL && b * BLOCK16 + d < dim ? (uint32_t)at[d] << (8u * k) : 0u;
        }
    }
}

/* The thread's elements of a row, transformed (NUM 5.1); zeros where there is none. */
static __device__ void load(const attend_params &p, uint32_t token, uint32_t head, bool active, uint32_t b,
                            const block16_centering &centering, float (&x)[BLOCK16])
{
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        x[i] = 0.0f;
    }
    if (active) {
        block16_read(&p.q, p.q.data + (int64_t)token * p.q.stride[0] + (int64_t)head * p.q.stride[1], 2, p.k_dim, b, x);
    }
    if (block16_amax_bits(x) > nbl_bits_of(NBL_INPUT_MAX)) {
        block16_counts ignored = {0, 0, 0};
        block16_sanitize(x, &ignored);
    }
    if (centering.shifts != NULL) {
        uint32_t shifts[4];
        read_bytes(centering.shifts, p.k_dim, b, shifts);
#pragma unroll
        for (uint32_t i = 0; i < BLOCK16; ++i) {
            x[i] *= nbl_pow2(-(int32_t)(shifts[i / 4u] >> (8u * (i % 4u)) & NBL_SHIFT_MAX));
        }
    }
    block16_hadamard(x, b, p.k_hadamard);
}

/* Sequence of a query token: the one it has if all are as long as they may be, else by search. */
static __device__ uint32_t find_sequence(const attend_params &p, uint32_t token)
{
    uint32_t guess = min(token / max(p.q_len_max, 1u), p.batch - 1u);
    if ((uint32_t)p.q_indptr[guess] <= token && token < (uint32_t)p.q_indptr[guess + 1u]) {
        return guess;
    }
    return sequence_of(p.q_indptr, p.batch, token);
}

/* The float core's row (NUM 6.3): the thread's halves into place. */
static __device__ void store_halves(const attend_params &p, const float (&x)[BLOCK16], uint64_t row, uint32_t b)
{
    uint16_t *to = (uint16_t *)(void *)p.codes + row * p.k_dim_padded + b * BLOCK16;
    uint64_t ignored = 0;
    uint32_t words[BLOCK16 / 2u];
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; i += 2u) {
        const uint32_t low = nbl_half_encode(x[i], p.k_fp16 != 0, &ignored);
        words[i / 2u] = low | (uint32_t)nbl_half_encode(x[i + 1u], p.k_fp16 != 0, &ignored) << 16;
    }
    ((uint4 *)(void *)to)[0] = make_uint4(words[0], words[1], words[2], words[3]);
    ((uint4 *)(void *)to)[1] = make_uint4(words[4], words[5], words[6], words[7]);
}

/* sum_d q[d] * mu[d] in the order of NUM 6.6, by one thread. */
static __device__ float center_dot_float(const attend_params &p, const int8_t *center, uint64_t row)
{
    const uint16_t *q = (const uint16_t *)(const void *)p.codes + row * p.k_dim_padded;
    float sums[NBL_PARTIAL_SUMS] = {0};
    for (uint32_t first = 0; first < p.k_dim; first += NBL_PARTIAL_SUMS) {
#pragma unroll
        for (uint32_t i = 0; i < NBL_PARTIAL_SUMS; ++i) {
            if (first + i < p.k_dim) {
                sums[i] = nbl_fma(nbl_half_decode(q[first + i], p.k_fp16 != 0), (float)center[first + i], sums[i]);
            }
        }
    }
    return nbl_sum_tree(sums);
}

/* The row as the float core wants it; all threads of the block call it. */
static __device__ void finish_float_row(const attend_params &p, const float (&x)[BLOCK16], uint64_t row, uint32_t b,
                                        bool active, uint32_t sequence, uint32_t kv_head,
                                        const block16_centering &centering)
{
    if (active) {
        store_halves(p, x, row, b);
    }
    __syncthreads();
    if (!active || b != 0) {
        return;
    }
    cuda_query query;
    const float rotation = nbl_pow2(-nbl_log2_of(p.k_hadamard));
    query.scale = p.c * nbl_head_scale(p.pages.k_scale, kv_head) * rotation;
    query.offset = 0.0f;
    query.bias = 0;
    query.sequence = (int32_t)sequence;
    if (centering.codes != NULL && p.kv_len[sequence] > 0) {
        query.offset = center_dot_float(p, centering.codes, row) * nbl_pow2(nbl_e8m0_decode_slot(*centering.exponent)) *
                       (p.c * rotation);
    }
    p.queries[row] = query;
}

/* The row as the Blackwell core wants it (NUM 7.1, 7.4); all threads of the block call it. */
static __device__ void finish_fp4_row(const attend_params &p, float (&x)[BLOCK16], uint64_t row, uint32_t team,
                                      uint32_t b, uint32_t *slot, bool active, uint32_t sequence, uint32_t kv_head,
                                      const block16_centering &centering)
{
    uint8_t *to = (uint8_t *)p.codes + row * p.k_dim_padded;
    fp4_block block;
    if (p.fp4_format == NBL_NVFP4) {
        fp4_quantize_nvfp4(x, team, b, slot, &block);
    } else {
        fp4_quantize_mxfp4(x, p.fp4_format, team, b, slot, &block);
    }
    if (active) {
        fp4_store_block(to, p.k_dim_padded, p.fp4_format, b, block);
    }
    __syncthreads();
    if (!active || b != 0) {
        return;
    }
    const float unit = nbl_pow2(block.row_exponent - nbl_log2_of(p.k_hadamard));
    cuda_query query = {p.c * nbl_head_scale(p.pages.k_scale, kv_head) * unit, 0.0f, 0, (int32_t)sequence};
    if (centering.codes != NULL && p.kv_len[sequence] > 0) {
        query.offset = fp4_center_dot(to, p.k_dim_padded, p.fp4_format, p.k_dim, centering.codes) *
                       nbl_pow2(nbl_e8m0_decode_slot(*centering.exponent)) * (p.c * unit);
    }
    p.queries[row] = query;
}

/* One row by its team; IS_FP4: for the Blackwell core. All threads of the block call it. */
template <bool IS_FP4>
static __device__ void prepare_row(const attend_params &p, uint32_t row, bool active, uint32_t team, uint32_t b,
                                   uint32_t *slot)
{
    uint32_t token = active ? row / p.q_heads : 0u;
    uint32_t head = active ? row % p.q_heads : 0u;
    uint32_t sequence = find_sequence(p, token);
    block16_centering centering = {NULL, NULL, NULL};
    if (p.centering) {
        centering = block16_centering_of(&p.centers, sequence, p.kv_heads, head / p.group_rows, p.k_dim, p.status);
    }
    float x[BLOCK16];
    uint32_t words[4], center[4];
    load(p, token, head, active, b, centering, x);
    if (IS_FP4) {
        finish_fp4_row(p, x, row, team, b, slot, active, sequence, head / p.group_rows, centering);
        return;
    }
    if (p.is_float) {
        finish_float_row(p, x, row, b, active, sequence, head / p.group_rows, centering);
        return;
    }
    int32_t exponent =
        p.q_format == NBL_Q4 ? quantize_q4(x, team, b, slot, words) : quantize_q8(x, team, b, slot, words);
    read_bytes(centering.codes, p.k_dim, b, center);
    int32_t sum = 0, dot = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        sum = ptx_dp4a_ss((int32_t)words[i], 0x01010101, sum);
        dot = ptx_dp4a_ss((int32_t)words[i], (int32_t)center[i], dot);
    }
    sum = block16_team_sum(sum, team, slot, b == 0);
    dot = centering.codes != NULL || (team & (team - 1u)) != 0 ? block16_team_sum(dot, team, slot, b == 0) : 0;
    if (!active) {
        return;
    }
    *(uint4 *)(void *)(p.codes + (uint64_t)row * p.k_dim_padded + b * BLOCK16) =
        make_uint4(words[0], words[1], words[2], words[3]);
    if (b == 0) {
        cuda_query query;
        query.scale = p.c * nbl_pow2(exponent - nbl_log2_of(p.k_hadamard));
        query.offset = 0.0f;
        query.bias = -128 * sum;
        query.sequence = (int32_t)sequence;
        if (centering.codes != NULL && p.kv_len[sequence] > 0) { /* NUM 5.7 */
            query.offset = (float)dot * nbl_pow2(nbl_e8m0_decode_slot(*centering.exponent)) * query.scale;
        }
        p.queries[row] = query;
    }
}

template <bool IS_FP4> static __device__ void prepare_rows(const attend_params &p, uint32_t block, uint32_t *slots)
{
    uint32_t team = p.k_dim_padded / BLOCK16;
    uint32_t vectors = THREADS / team;
    uint32_t place = threadIdx.x / team;
    uint32_t b = threadIdx.x % team;
    uint32_t rows = p.q_tokens * p.q_heads; /* below 2^31 */
    for (uint32_t i = 0; i < ROWS_PER_TEAM; ++i) {
        uint32_t row = (block * ROWS_PER_TEAM + i) * vectors + place;
        prepare_row<IS_FP4>(p, row, place < vectors && row < rows, team, b, &slots[min(place, vectors - 1u)]);
    }
}

template <bool IS_FP4>
static __global__ void __launch_bounds__(THREADS, IS_FP4 ? 1 : BLOCKS_PER_PROCESSOR)
    prepare_kernel(const __grid_constant__ attend_params p)
{
    __shared__ uint32_t slots[VECTORS_MAX];
    ptx_grid_release();
    if (blockIdx.x < p.batch) {
        check_sequence(p, blockIdx.x);
    } else {
        prepare_rows<IS_FP4>(p, blockIdx.x - p.batch, slots);
    }
}

extern "C" cudaError_t nbl_cuda_attend_prepare(const attend_params *p, cudaStream_t stream)
{
    uint64_t vectors = THREADS * BLOCK16 / p->k_dim_padded * ROWS_PER_TEAM;
    uint64_t rows = (uint64_t)p->q_tokens * p->q_heads;
    uint32_t blocks = (uint32_t)(p->batch + (rows + vectors - 1u) / vectors);
    if (p->fp4_format != NBL_FORMAT_NONE) {
        prepare_kernel<true><<<blocks, THREADS, 0, stream>>>(*p);
    } else {
        prepare_kernel<false><<<blocks, THREADS, 0, stream>>>(*p);
    }
    return cudaGetLastError();
}

extern "C" cudaError_t nbl_cuda_probe(void)
{
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, prepare_kernel<false>);
}
