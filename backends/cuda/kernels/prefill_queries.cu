/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file prefill_queries.cu
 * @brief Query rows of a prefill to canonical form (NUM 5.1): what prepare does for other calls, for many rows.
 *
 * A block takes every gridDim.x-th run of rows of a unit: row i is query token i / group, head i % group of the kv
 * head.
 * All rows of a unit share centre and channel shifts, so that those are looked up once. What NUM 3.1 corrects is so
 * large that it shows after the transforms; only then the row is read again and corrected.
 *
 * Rows of 128 bf16 elements with the rotation that usually goes with the format have a kernel of their own, whose warps
 * take eight rows at a time by tensor cores (tile/query_mma.cuh); in that for all others a lane has 32 elements of a
 * row (tile/vector32.cuh). Both load their next rows while they work on those at hand.
 */
#include "../tile/launch.cuh"
#include "../tile/quantize32.cuh"
#include "../tile/query_codes.cuh"
#include "../tile/query_mma.cuh"
#include "prefill.h"

#define THREADS 128u
#define WARPS (THREADS / WARP_LANES)
#define BLOCKS_PER_PROCESSOR (4u - BLOCKS_FEWER)
#define WAVES 4u
#define ROUNDS 4u /* runs of rows that a block has at least, where there are as many */
#define HALF_CHUNKS (VECTOR32 / 8u)

namespace
{

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

/* Shifts and rotation (NUM 4.5, 4.1). */
CUDA_DEVICE void transform(const attend_params &p, const channel_tables &tables, const team32 &team,
                           float (&x)[VECTOR32])
{
    if (p.centers.shifts != NULL) {
        vector32_scale(x, &tables, team.b);
    }
    vector32_hadamard(x, team.b, p.k_hadamard);
}

/* The lane's elements of a row with NUM 3.1 and the transforms applied. */
CUDA_DEVICE void read_carefully(const attend_params &p, const channel_tables &tables, const unit &u, const team32 &team,
                                const row_place &row, bool there, float (&x)[VECTOR32])
{
    block16_counts ignored = {0, 0, 0};
    vector32_read(&p.q, there ? data_of(p, u, row) : p.q.data, there ? p.k_dim : 0u, team.b, x);
    vector32_sanitize(x, &ignored);
    transform(p, tables, team, x);
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

/* Magnitudes up to a limit. */
CUDA_DEVICE void limit_all(float (&x)[VECTOR32], float limit)
{
#pragma unroll
    for (uint32_t i = 0; i < VECTOR32; ++i) {
        x[i] = clamp_finite(x[i], limit);
    }
}

/* q8 (NUM 3.2): the lane's codes, four to a word; the exponent is returned. `vector` is the row's largest magnitude. */
CUDA_DEVICE int32_t quantize_q8(float (&x)[VECTOR32], float vector, uint32_t (&words)[VECTOR32 / 4u])
{
    const int32_t e = nbl_exponent_for(vector, (float)NBL_INT8_CODE_MAX, NBL_E_MIN, NBL_E_MAX);
    const float limit = (float)NBL_INT8_CODE_MAX * nbl_pow2(e);
    if (__any_sync(FULL_WARP, vector > limit)) { /* only with the largest exponent */
        limit_all(x, limit);
    }
#pragma unroll
    for (uint32_t i = 0; i < VECTOR32 / 4u; ++i) {
        words[i] = query_word8(&x[4u * i], nbl_pow2(-e));
    }
    return e;
}

/* q4 (NUM 3.4, 2.4), likewise. A lane is a block; `own` is its largest magnitude. */
CUDA_DEVICE int32_t quantize_q4(const float (&x)[VECTOR32], float own, const team32 &team,
                                uint32_t (&words)[VECTOR32 / 4u])
{
    int32_t e = nbl_mxfp4_block_exponent(&own, 1, NBL_RULE_OPTIMAL);
    const int32_t most = (int32_t)team32_max(team, (uint32_t)(e - NBL_BLOCK_E_MIN)) + NBL_BLOCK_E_MIN;
    e = max(e, most - NBL_BLOCK_E_SPREAD);
    const int32_t least = NBL_BLOCK_E_MAX - (int32_t)team32_max(team, (uint32_t)(NBL_BLOCK_E_MAX - e));
    const query_block4 block = query_block4_of(e, (uint32_t)(e - least));
#pragma unroll
    for (uint32_t i = 0; i < VECTOR32 / 4u; ++i) {
        words[i] = query_word4(&x[4u * i], block);
    }
    return least - 1;
}

/* Number of a row among those of the call. */
CUDA_DEVICE uint64_t index_of(const attend_params &p, const unit &u, const row_place &row)
{
    return (uint64_t)((uint32_t)u.sequence.q_first + row.token) * p.q_heads + head_of(p, u, row);
}

/* What is to be known of a row beside its codes; dot: of these with the centre's. */
CUDA_DEVICE void store_query(const attend_params &p, const unit &u, uint64_t index, int32_t exponent, int32_t dot)
{
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

/* All of a row to the workspace; all lanes of the warp call it. */
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
    const uint64_t index = index_of(p, u, row);
    uint4 *to = (uint4 *)(void *)(p.codes + index * p.k_dim_padded + VECTOR32 * team.b);
    to[0] = make_uint4(words[0], words[1], words[2], words[3]);
    to[1] = make_uint4(words[4], words[5], words[6], words[7]);
    if (team.b == 0) {
        store_query(p, u, index, exponent, dot);
    }
}

/* The unit of the block, and its centre and shifts. */
CUDA_DEVICE unit unit_of(const attend_params &p, block16_centering &centering)
{
    const uint32_t number = p.first_unit + blockIdx.y;
    unit u = {};
    u.sequence_index = number / p.kv_heads;
    u.kv_head = number % p.kv_heads;
    u.sequence = p.sequences[u.sequence_index];
    u.rows = (uint32_t)u.sequence.q_len * p.group_rows;
    u.rotation = nbl_log2_of(p.k_hadamard);
    u.halves = p.q.dtype != NBL_F32 && tensor_is_wide(&p.q);
    centering = {NULL, NULL, NULL};
    if (u.rows > 0 && p.centering) {
        centering = block16_centering_of(&p.centers, u.sequence_index, p.kv_heads, u.kv_head, p.k_dim, p.status);
    }
    if (centering.codes != NULL) {
        u.center_unit = nbl_pow2(nbl_e8m0_decode_slot(*centering.exponent));
    }
    return u;
}

/* The centre's codes at the lane's elements. */
CUDA_DEVICE void take_center(const attend_params &p, const team32 &team, const block16_centering &centering, unit &u)
{
    for (uint32_t k = 0; centering.codes != NULL && k < VECTOR32; ++k) {
        const uint32_t d = team.b * VECTOR32 + k;
        const uint32_t code = d < p.k_dim ? (uint8_t)centering.codes[d] : 0u;
        u.center[k / 4u] |= code << (8u * (k % 4u));
    }
}

template <bool Q4>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_PROCESSOR)
    prefill_queries_kernel(const __grid_constant__ attend_params p)
{
    __shared__ channel_tables tables;
    const team32 team = team32_of(p.k_dim);
    block16_centering centering;
    ptx_grid_wait();
    ptx_grid_release(); /* not before: the expansion reads what prepare wrote, and writes over the slab before */
    unit u = unit_of(p, centering);
    take_center(p, team, centering, u);
    channel_tables_fill(&tables, centering, p.k_dim, -1);
    __syncthreads();
    const uint32_t stride = gridDim.x * WARPS * team.per_warp;
    const uint32_t rows = team.vector < team.per_warp ? u.rows : 0u; /* for the lane */
    const row_place step = row_of(p, stride);
    uint32_t first = (blockIdx.x * WARPS + threadIdx.x / WARP_LANES) * team.per_warp;
    row_place next = row_of(p, first + team.vector);
    uint4 chunks[HALF_CHUNKS];
    fetch(p, u, team, next, u.halves && first + team.vector < rows, chunks);
    for (; first < u.rows; first += stride) {
        const bool there = first + team.vector < rows, another = first + stride + team.vector < rows;
        const row_place row = next;
        float x[VECTOR32];
        uint32_t words[VECTOR32 / 4u];
        next = row_after(p, row, step);
        if (u.halves) {
            vector32_take((const uint8_t *)chunks, p.q.dtype, x);
            fetch(p, u, team, next, another, chunks);
            transform(p, tables, team, x);
        } else {
            read_carefully(p, tables, u, team, row, there, x);
        }
        uint32_t own = largest_of(x);
        /* An element beyond the limit leaves one of at least 2^-NBL_SHIFT_MAX of it, rounding left aside. */
        if (__any_sync(FULL_WARP, own > nbl_bits_of(NBL_INPUT_MAX * 0x1p-8f))) {
            read_carefully(p, tables, u, team, row, there, x);
            own = largest_of(x);
        }
        const int32_t exponent = Q4 ? quantize_q4(x, nbl_float_of(own), team, words)
                                    : quantize_q8(x, nbl_float_of(team32_max(team, own)), words);
        store(p, u, team, row, there, words, exponent);
    }
}

/* ------------------------------------------------------------------------------------------------ usual rows */

/* The lane's words of row `index` of the call; all lanes of the warp call it. */
CUDA_DEVICE void store_usual(const attend_params &p, const query_tables &t, const unit &u, uint32_t index, bool there,
                             const uint32_t (&words)[2u * QUERY_BLOCKS], int32_t exponent)
{
    const uint32_t b = threadIdx.x % QUERY_LANES;
    int32_t dot = 0;
    if (p.centers.codes != NULL) {
#pragma unroll
        for (uint32_t k = 0; k < QUERY_BLOCKS; ++k) {
            const uint2 center = ((const uint2 *)(const void *)t.center)[QUERY_LANES * k + b];
            dot = ptx_dp4a_ss((int32_t)words[2u * k], (int32_t)center.x, dot);
            dot = ptx_dp4a_ss((int32_t)words[2u * k + 1u], (int32_t)center.y, dot);
        }
        dot += __shfl_xor_sync(FULL_WARP, dot, 1);
        dot += __shfl_xor_sync(FULL_WARP, dot, 2);
    }
    if (!there) {
        return;
    }
    uint2 *to = (uint2 *)(void *)(p.codes + (uint64_t)index * QUERY_DIM) + b;
#pragma unroll
    for (uint32_t k = 0; k < QUERY_BLOCKS; ++k) {
        to[QUERY_LANES * k] = make_uint2(words[2u * k], words[2u * k + 1u]);
    }
    if (b == 0) {
        store_query(p, u, index, exponent, dot);
    }
}

/* Rows by the rule, by all lanes of the warp; `others` has a bit for the first lane of each. data, index: of the lane's
 * row. */
template <bool Q4, uint32_t N>
CUDA_DEVICE void store_by_rule(const attend_params &p, const query_tables &t, const unit &u, const uint8_t *data,
                               uint32_t index, uint32_t others)
{
#pragma unroll 1
    for (; others != 0; others &= others - 1u) {
        const int from = __ffs((int)others) - 1;
        const uint8_t *row = (const uint8_t *)__shfl_sync(FULL_WARP, (uint64_t)data, from);
        const uint32_t at = __shfl_sync(FULL_WARP, index, from);
        query_row q;
        const uint32_t word = query_by_rule<Q4, N>(row, t, q);
        ((uint32_t *)(void *)(p.codes + (uint64_t)at * QUERY_DIM))[threadIdx.x % WARP_LANES] = word;
        if (threadIdx.x % WARP_LANES == 0) {
            store_query(p, u, at, q.exponent, q.dot);
        }
    }
}

/* Blocks of a multiprocessor: as many as leave the registers that the loop needs. */
static constexpr uint32_t usual_fit(bool q4)
{
    return (q4 ? 6u : 7u) - BLOCKS_FEWER;
}

template <bool Q4, uint32_t N>
__global__ void __launch_bounds__(THREADS, usual_fit(Q4))
    prefill_usual_queries_kernel(const __grid_constant__ attend_params p)
{
    __shared__ query_tables t;
    block16_centering centering;
    ptx_grid_wait();
    ptx_grid_release(); /* not before: the expansion reads what prepare wrote, and writes over the slab before */
    const unit u = unit_of(p, centering);
    query_tables_fill(t, centering);
    __syncthreads();
    const uint32_t matrix = query_matrix(), stride = gridDim.x * WARPS * QUERY_ROWS;
    const uint32_t tokens = stride / p.group_rows; /* a multiple, see blocks_of: the lane's head stays the same */
    uint32_t own = blockIdx.x * WARPS * QUERY_ROWS + threadIdx.x / QUERY_LANES; /* the lane's row */
    const row_place first = row_of(p, own);
    uint32_t index = (uint32_t)index_of(p, u, first), w[QUERY_WORDS] = {};
    const uint8_t *data = data_of(p, u, first);
    if (own < u.rows) {
        query_fetch(data, w);
    }
    for (; __any_sync(FULL_WARP, own < u.rows); own += stride) {
        float x[VECTOR32], most;
        uint32_t words[2u * QUERY_BLOCKS];
        if (p.centers.shifts != NULL) {
            query_shift(t, w);
        }
        query_rotate<N>(w, matrix, x);
        const float below = nbl_float_of(query_exact_below(w));
        const uint8_t *next = data + tokens * p.q.stride[0];
        if (own + stride < u.rows) {
            query_fetch(next, w);
        }
        const int32_t exponent = query_quantize<Q4>(x, &most, words);
        const bool there = own < u.rows, passes = most < below;
        store_usual(p, t, u, index, there && passes, words, exponent);
        store_by_rule<Q4, N>(p, t, u, data, index, __ballot_sync(FULL_WARP, there && !passes) & 0x11111111u);
        data = next;
        index += tokens * p.q_heads;
    }
}

/* ------------------------------------------------------------------------------------------------ launch */

/* Blocks of a unit, for a kernel of whose blocks so many fit a multiprocessor; rows: of a warp. */
static uint32_t blocks_of(const attend_params *p, uint32_t rows, uint32_t fit)
{
    const uint32_t run = ROUNDS * WARPS * rows;
    const uint32_t blocks = (p->q_len_max * p->group_rows + run - 1u) / run;
    const uint32_t all = p->processors * fit * WAVES; /* more would be a round with few blocks */
    const uint32_t most = all / p->units >= WAVES ? all / p->units : (all + p->units - 1u) / p->units;
    return blocks < most ? blocks : most;
}

/* The same, such that what all of them do in a step are whole tokens. */
static uint32_t usual_blocks_of(const attend_params *p, bool q4)
{
    uint32_t multiple = p->group_rows;
    for (uint32_t rows = WARPS * QUERY_ROWS; rows % 2u == 0 && multiple % 2u == 0; rows /= 2u) {
        multiple /= 2u;
    }
    return (blocks_of(p, QUERY_ROWS, usual_fit(q4)) + multiple - 1u) / multiple * multiple;
}

template <bool Q4> cudaError_t launch(const attend_params *p, cudaStream_t stream)
{
    const dim3 grid(blocks_of(p, team32_per_warp(p->k_dim), BLOCKS_PER_PROCESSOR), p->units);
    return launch_after(prefill_queries_kernel<Q4>, grid, THREADS, 0, stream, p);
}

template <bool Q4, uint32_t N> cudaError_t launch_usual(const attend_params *p, cudaStream_t stream)
{
    const dim3 grid(usual_blocks_of(p, Q4), p->units);
    return launch_after(prefill_usual_queries_kernel<Q4, N>, grid, THREADS, 0, stream, p);
}

} // namespace

extern "C" cudaError_t nbl_cuda_prefill_queries(const attend_params *p, cudaStream_t stream)
{
    const bool usual = p->q.dtype == NBL_BF16 && p->k_dim == QUERY_DIM && tensor_is_wide(&p->q);
    const bool q4 = p->q_format == NBL_Q4;
    if (usual && p->k_hadamard == VECTOR32) {
        return q4 ? launch_usual<true, VECTOR32>(p, stream) : launch_usual<false, VECTOR32>(p, stream);
    }
    if (usual && p->k_hadamard == QUERY_DIM && !q4) {
        return launch_usual<false, QUERY_DIM>(p, stream);
    }
    return q4 ? launch<true>(p, stream) : launch<false>(p, stream);
}
