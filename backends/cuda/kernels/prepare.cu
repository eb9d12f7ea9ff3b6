/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file prepare.cu
 * @brief First step of attend: checks every sequence, brings query rows to canonical form (NUM 5.1).
 *
 * The first blocks check a sequence each, the others take query rows, a team of Dp/16 threads per row, or a warp.
 * Neither waits for the other: later steps skip the rows of sequences found bad.
 */
#include "../attend.h"
#include "../ptx/ptx.cuh"
#include "../tile/fp4_query.cuh"
#include "../tile/launch.cuh"
#include "../tile/query16.cuh"
#include "../tile/query_warp.cuh"
#include "../tile/sequence_check.cuh"
#include "exp2grid.h"
#include "float_format.h"
#include "rowsum.h"

#define THREADS 256u
#define VECTORS_MAX (THREADS / 2u)
#define BLOCKS_PER_PROCESSOR 4

/* ------------------------------------------------------------------------------------------------ sequences */

static __device__ void check_sequence(const attend_params &p, uint32_t b)
{
    int32_t ids[PAGE_LOADS];
    read_pages<THREADS>(p, b, threadIdx.x, ids); /* all that may be needed is on its way together */
    const bool has_center = !p.centering || center_row(&p.centers, b) >= 0;
    const sequence_lengths s = read_lengths(p, b);
    if (!s.good) {
        report_lengths(p, b, s);
    }
    bool good = s.good && check_lengths(p, b, s.q_first, s.q_len, s.kv_len);
    good = (has_center || check_center(p, b)) && check_heads(p) && good;
    good = good && check_pages<THREADS>(p, b, (uint32_t)s.kv_len, ids);
    for (uint32_t h = threadIdx.x; h < p.kv_heads; h += THREADS) {
        p.ends[b * p.kv_heads + h] = 0;
    }
    good = __syncthreads_and(good) != 0;
    if (threadIdx.x == 0) {
        p.sequences[b] = good ? cuda_sequence{s.q_first, s.q_len, s.kv_len, 0} : cuda_sequence{0, 0, 0, 0};
    }
}

/* ------------------------------------------------------------------------------------------------ rows */

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

/* The row as the Blackwell core wants it (NUM 7.1, 7.4, 7.5); all threads of the block call it. */
static __device__ void finish_fp4_row(const attend_params &p, float (&x)[BLOCK16], uint64_t row, uint32_t team,
                                      uint32_t b, uint32_t *slot, bool active, uint32_t sequence, uint32_t head,
                                      const block16_centering &centering)
{
    uint8_t *to = (uint8_t *)p.codes + row * p.k_dim_padded;
    fp4_block block;
    if (p.q_centers.data != NULL) {
        float m[BLOCK16];
        query16_read(p, p.q_centers, sequence, head, active, b, m);
        query16_transform(p, b, centering, m);
#pragma unroll
        for (uint32_t i = 0; i < BLOCK16; ++i) {
            x[i] -= m[i];
        }
    }
    fp4_quantize(p, x, team, b, slot, &block);
    if (active) {
        fp4_store_block(to, p.k_dim_padded, p.fp4_format, b, block);
    }
    __syncthreads();
    if (!active || b != 0) {
        return;
    }
    cuda_query query = fp4_row_query(p, to, block.row_exponent, sequence, head / p.group_rows, centering);
    if (p.q_centers.data != NULL) {
        const cuda_query *parts = p.center_queries + 2u * ((uint64_t)sequence * p.q_heads + head);
        query.offset += parts[0].offset + parts[1].offset;
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
    float x[BLOCK16];
    query16_read(p, p.q, token, head, active, b, x); /* on its way while the sequence is looked for */
    uint32_t sequence = find_sequence(p, token);
    block16_centering centering = {NULL, NULL, NULL};
    if (p.centering) {
        centering = block16_centering_of(&p.centers, sequence, p.kv_heads, head / p.group_rows, p.k_dim, p.status);
    }
    query16_transform(p, b, centering, x);
    if (IS_FP4) {
        finish_fp4_row(p, x, row, team, b, slot, active, sequence, head, centering);
        return;
    }
    if (p.is_float) {
        finish_float_row(p, x, row, b, active, sequence, head / p.group_rows, centering);
        return;
    }
    const query16 q = query16_make(p, x, team, b, slot, centering, sequence, p.kv_len[sequence]);
    if (!active) {
        return;
    }
    *(uint4 *)(void *)(p.codes + (uint64_t)row * p.k_dim_padded + b * BLOCK16) =
        make_uint4(q.words[0], q.words[1], q.words[2], q.words[3]);
    if (b == 0) {
        p.queries[row] = q.query;
    }
}

template <bool IS_FP4> static __device__ void prepare_rows(const attend_params &p, uint32_t block, uint32_t *slots)
{
    uint32_t team = p.k_dim_padded / BLOCK16;
    uint32_t vectors = THREADS / team;
    uint32_t place = threadIdx.x / team;
    uint32_t b = threadIdx.x % team;
    uint32_t rows = p.q_tokens * p.q_heads; /* below 2^31 */
    for (uint32_t first = block * vectors; first < rows; first += (gridDim.x - p.batch) * vectors) {
        uint32_t row = first + place;
        prepare_row<IS_FP4>(p, row, place < vectors && row < rows, team, b, &slots[min(place, vectors - 1u)]);
    }
}

template <bool IS_FP4>
static __global__ void __launch_bounds__(THREADS, IS_FP4 ? 1 : BLOCKS_PER_PROCESSOR)
    prepare_kernel(const __grid_constant__ attend_params p)
{
    __shared__ uint32_t slots[VECTORS_MAX];
    ptx_grid_wait();
    ptx_grid_release();
    if (blockIdx.x < p.batch) {
        check_sequence(p, blockIdx.x);
    } else {
        prepare_rows<IS_FP4>(p, blockIdx.x - p.batch, slots);
    }
}

/* A row of E * 32 elements of the integer core by a warp: sooner done than by a team, where there are few. */
template <int E> static __device__ void prepare_row_of_warp(const attend_params &p, uint32_t row, uint32_t lane)
{
    query_source at = {0, 0, row / p.q_heads, row % p.q_heads, row % p.q_heads / p.group_rows, true};
    const query_raw<E> elements = query_warp_read<E>(p, at, lane);
    query_raw<E> raw = elements;
    at.sequence = guess_sequence(p, at.token); /* what it has is on its way while the sequence is looked for */
    query_warp_read_center(p, at, p.centering ? center_row(&p.centers, at.sequence) : -1, lane, raw);
    at.kv_len = p.kv_len[at.sequence];
    const uint32_t found = find_sequence(p, at.token);
    if (found != at.sequence) {
        at.sequence = found;
        at.kv_len = p.kv_len[found];
        raw = elements;
        query_warp_read_center(p, at, p.centering ? center_row(&p.centers, found) : -1, lane, raw);
    }
    const warp_query<E> q = query_warp_make(p, at, raw, lane);
    uint8_t *to = (uint8_t *)p.codes + (uint64_t)row * p.k_dim_padded + E * lane;
    if (E == 8) {
        *(uint2 *)(void *)to = make_uint2(q.words[0], q.words[(E - 1) / 4]);
    } else if (E == 4) {
        *(uint32_t *)(void *)to = q.words[0];
    } else {
        *(uint16_t *)(void *)to = (uint16_t)q.words[0];
    }
    if (lane == 0) {
        p.queries[row] = {q.scale, q.offset, q.bias, (int32_t)at.sequence};
    }
}

template <int E>
static __global__ void __launch_bounds__(THREADS, BLOCKS_PER_PROCESSOR)
    prepare_warps_kernel(const __grid_constant__ attend_params p)
{
    ptx_grid_wait();
    ptx_grid_release();
    if (blockIdx.x < p.batch) {
        check_sequence(p, blockIdx.x);
        return;
    }
    const uint32_t row = (blockIdx.x - p.batch) * (THREADS / 32u) + threadIdx.x / 32u;
    if (row < p.q_tokens * p.q_heads) {
        prepare_row_of_warp<E>(p, row, threadIdx.x % 32u);
    }
}

/* Few rows per kv head, of dimensions that a warp holds evenly. */
static bool takes_warps(const attend_params *p)
{
    return !p->is_float && p->fp4_format == NBL_FORMAT_NONE && !p->rows_later &&
           p->q_len_max * p->group_rows <= CUDA_DECODE_ROWS_MAX &&
           (p->k_dim == 64u || p->k_dim == 128u || p->k_dim == 256u);
}

static cudaError_t launch_warps(const attend_params *p, cudaStream_t stream)
{
    const dim3 grid(p->batch + (p->q_tokens * p->q_heads + THREADS / 32u - 1u) / (THREADS / 32u));
    switch (p->k_dim) {
    case 64: return launch_after(prepare_warps_kernel<2>, grid, THREADS, 0, stream, p);
    case 128: return launch_after(prepare_warps_kernel<4>, grid, THREADS, 0, stream, p);
    default: return launch_after(prepare_warps_kernel<8>, grid, THREADS, 0, stream, p);
    }
}

extern "C" cudaError_t nbl_cuda_attend_prepare(const attend_params *p, cudaStream_t stream)
{
    if (takes_warps(p)) {
        return launch_warps(p, stream);
    }
    const uint32_t vectors = THREADS * BLOCK16 / p->k_dim_padded;
    const uint32_t rows = p->rows_later ? 0u : p->q_tokens * p->q_heads; /* below 2^31 */
    const uint32_t blocks = (rows + vectors - 1u) / vectors, most = BLOCKS_PER_PROCESSOR * p->processors;
    const dim3 grid(p->batch + (blocks < most ? blocks : most));
    return p->fp4_format != NBL_FORMAT_NONE ? launch_after(prepare_kernel<true>, grid, THREADS, 0, stream, p)
                                            : launch_after(prepare_kernel<false>, grid, THREADS, 0, stream, p);
}

extern "C" cudaError_t nbl_cuda_probe(void)
{
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, prepare_kernel<false>);
}
