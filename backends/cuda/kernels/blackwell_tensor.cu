/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file blackwell_tensor.cu
 * @brief attend of the Blackwell core (NUM 7) in tensor memory, for GPUs that have block-scaled products there only.
 *
 * A work item is a sequence, a kv head, up to 128 query rows, and one chunk (split) or all of them; a block of 128
 * threads does one, a thread for each row. Shared memory holds the operands of a tile as ptx/tcgen05_layout.h says; the
 * order of elements inside a group of 16 is that of the pages (NUM 7.2). Columns of tensor memory:
 *
 *     scores [128]   O [Dv]   total of the chunks before [Dv]   scales of Q   scales of K   scales of centres
 *
 * Each tile: K, its scales and V to shared memory; scores = Q K^T; a thread reads its row of scores twice, for the
 * largest and for the weights; O = P V on top of what was there, which for a whole chunk stays where it is (NUM 6.4).
 * Where queries are centred, the centres' product with K goes before that of the queries, to the same columns: row s is
 * the first part of the centre of slot s, row 64 + s the second (NUM 7.5).
 */
#include "../ptx/blockscale.cuh"
#include "../ptx/tcgen05.cuh"
#include "tensor.h"

#define THREADS CUDA_TILE_TOKENS

/* Whether the code at hand is for a GPU that runs the kernel; the host's sees all of it. */
#ifdef CUDA_TENSOR_EMULATED
#define EMULATED 1
#else
#define EMULATED 0
#endif
#if !defined(__CUDA_ARCH__) || PTX_TCGEN05 || (EMULATED && !PTX_BLOCK_SCALE)
#define HAS_KERNEL 1
#else
#define HAS_KERNEL 0
#endif

#if HAS_KERNEL

#include "../tile/blackwell_tile.cuh"
#include "../tile/finish.cuh"
#include "../tile/launch.cuh"
#include "../tile/tensor_memory.cuh"

#define ROWS THREADS
#define V_STEP 32u        /* tokens of an MMA of P V */
#define QUADS_OF_CHUNK 4u /* words of 4 tokens in 16 bytes */
#define WORDS_OF_CHUNK 4u /* words of 8 elements in 16 bytes */
#define STAGED_ROWS 32u   /* that are finished at a time */
#define SCORES_AT 0u      /* columns */
#define O_AT CUDA_TILE_TOKENS
#define V_DIM_MAX THREADS     /* padded; O and its total beside the scores */
#define SLOTS_MAX (ROWS / 2u) /* query heads of a kv head, if queries are centred */

namespace
{

/* Shared memory of a block; operands follow it. */
struct alignas(128) fixed_memory {
    uint32_t tensor[4]; /* barrier, address */
    int32_t first[ROWS];
    int32_t end[ROWS];
    nbl_state_head total[ROWS];
    uint32_t token[ROWS];
    uint32_t head[ROWS];
    token_place place[CUDA_TILE_TOKENS];
};

/* Sizes that follow from the dimensions. */
struct sizes {
    uint32_t steps;     /* of 64 elements of Q and K */
    uint32_t row_bytes; /* of Q and K */
    uint32_t v_rows;    /* Dv, padded */
    uint32_t total_at;  /* columns */
    uint32_t q_scales_at;
    uint32_t k_scales_at;
    uint32_t center_scales_at;
    uint32_t slots; /* heads with centres; 0: queries are not centred */
    uint32_t used;
    uint32_t columns; /* a power of two */
};

struct memory {
    fixed_memory *fixed;
    uint8_t *q; /* operands: rows in core matrices */
    uint8_t *k;
    uint8_t *p;
    uint8_t *v;
    uint8_t *q_scales; /* atoms, one a step */
    uint8_t *k_scales;
    uint8_t *centers; /* rows of their parts, as q */
    uint8_t *center_scales;
    float *y;      /* [slots][128] products of centres with the tile's K (NUM 7.5) */
    float *rest;   /* [slots][128] those of the second parts */
    float *factor; /* [2 * slots] 2^exponent of first parts, then of second ones */
    tensor_memory tensor;
    sizes size;
};

__host__ __device__ constexpr sizes sizes_of(const attend_params &p)
{
    const uint32_t k_dim_padded = p.k_dim_padded, v_dim_padded = p.v_dim_padded;
    sizes s = {};
    s.steps = steps_of(k_dim_padded);
    s.row_bytes = s.steps * TCGEN05_STEP_BYTES;
    s.v_rows = v_dim_padded;
    s.total_at = O_AT + v_dim_padded;
    s.q_scales_at = s.total_at + (p.split ? 0u : v_dim_padded);
    s.k_scales_at = s.q_scales_at + s.steps * TCGEN05_ATOM_COLUMNS;
    s.columns = 32;
    s.center_scales_at = s.k_scales_at + s.steps * TCGEN05_ATOM_COLUMNS;
    s.slots = p.q_centers.data != NULL ? p.group_rows : 0u;
    s.used = s.center_scales_at + (s.slots > 0 ? s.steps * TCGEN05_ATOM_COLUMNS : 0u);
    while (s.columns < s.used) {
        s.columns *= 2u;
    }
    return s;
}

__host__ __device__ constexpr size_t operand_bytes(const sizes &s)
{
    const size_t q = (size_t)ROWS * s.row_bytes, scales = (size_t)s.steps * TCGEN05_ATOM_BYTES;
    const size_t products = (size_t)s.slots * (2u * CUDA_TILE_TOKENS + 2u) * sizeof(float);
    return (s.slots > 0 ? 3u : 2u) * (q + scales) + (products + 127u) / 128u * 128u + (size_t)ROWS * CUDA_TILE_TOKENS +
           (size_t)s.v_rows * CUDA_TILE_TOKENS;
}

/* A row of the item, in its thread's registers. */
struct thread_row {
    row_state state;
    float sums[NBL_PARTIAL_SUMS];
    float unit; /* 2^-exponent */
    bool is_live;
};

/* ------------------------------------------------------------------------------------------------ items */

/* The thread's row of an operand, as prepare wrote it; zeros if `from` is NULL. */
__device__ void load_row(const attend_params &p, const memory &m, const uint8_t *from, uint8_t *codes, uint8_t *scales)
{
    const uint32_t tid = threadIdx.x;
    for (uint32_t c = 0; c < m.size.row_bytes / TCGEN05_CHUNK; ++c) {
        uint4 words = make_uint4(0, 0, 0, 0);
        if (from != NULL && c * TCGEN05_CHUNK < fp4_row_scales_at(p.k_dim_padded)) {
            words = *(const uint4 *)(const void *)(from + c * TCGEN05_CHUNK);
        }
        *(uint4 *)(void *)(codes + tcgen05_matrix_byte(m.size.row_bytes, tid, c * TCGEN05_CHUNK)) = words;
    }
    for (uint32_t step = 0; step < m.size.steps; ++step) {
        uint32_t word = 0;
        if (from != NULL) {
            word = *(const uint32_t *)(const void *)(from + fp4_row_scales_at(p.k_dim_padded) + 4u * step);
        }
        *(uint32_t *)(void *)(scales + step * TCGEN05_ATOM_BYTES + tcgen05_atom_byte(tid, 0)) = word;
    }
}

/* The thread's row of centres: a part of one of the item's heads, or zeros. */
__device__ void load_center(const attend_params &p, const memory &m, const item &it)
{
    const uint32_t slots = min(it.rows, m.size.slots), slot = threadIdx.x % SLOTS_MAX, part = threadIdx.x / SLOTS_MAX;
    const uint8_t *from = NULL;
    if (slot < slots) {
        const uint64_t index = 2u * ((uint64_t)it.sequence * p.q_heads + m.fixed->head[slot]) + part;
        from = p.center_codes + index * p.k_dim_padded;
        m.factor[part * m.size.slots + slot] = nbl_pow2(p.center_queries[index].bias);
    }
    load_row(p, m, from, m.centers, m.center_scales);
}

__device__ bool init_item(const attend_params &p, const memory &m, uint32_t block, item *it, thread_row *row)
{
    if (!rows_of_item(p, block, ROWS, it)) {
        return false;
    }
    row->is_live = threadIdx.x < it->rows;
    init_row(p, *it, (uint32_t)p.sequences[it->sequence].q_first, block * ROWS + (row->is_live ? threadIdx.x : 0u),
             &row->state);
    m.fixed->first[threadIdx.x] = row->state.first;
    m.fixed->end[threadIdx.x] = row->state.end;
    m.fixed->token[threadIdx.x] = row->state.token;
    m.fixed->head[threadIdx.x] = row->state.head;
    const uint8_t *query = (const uint8_t *)p.codes + (uint64_t)row->state.index * p.k_dim_padded;
    load_row(p, m, row->is_live ? query : (const uint8_t *)NULL, m.q, m.q_scales);
    row->unit = nbl_pow2(-p.queries[row->state.index].bias);
    __syncthreads();
    if (m.size.slots > 0) {
        load_center(p, m, *it);
    }
    it->first = INT32_MAX;
    it->end = 0;
    for (uint32_t i = 0; i < it->rows; ++i) {
        it->first = min(it->first, m.fixed->first[i]);
        it->end = max(it->end, m.fixed->end[i]);
    }
    return true;
}

/* ------------------------------------------------------------------------------------------------ tiles */

/* K of the thread's token and its scales. */
__device__ void load_k(const attend_params &p, const memory &m, const token_place &at)
{
    const uint32_t words = p.k_dim_padded / 8u;
    for (uint32_t c = 0; c < m.size.row_bytes / TCGEN05_CHUNK; ++c) {
        uint32_t word[WORDS_OF_CHUNK];
#pragma unroll
        for (uint32_t i = 0; i < WORDS_OF_CHUNK; ++i) {
            const uint32_t w = WORDS_OF_CHUNK * c + i;
            word[i] =
                at.k_codes != NULL && w < words ? *(const uint32_t *)(const void *)(at.k_codes + w * at.k_stride) : 0u;
        }
        *(uint4 *)(void *)(m.k + tcgen05_matrix_byte(m.size.row_bytes, threadIdx.x, c * TCGEN05_CHUNK)) =
            make_uint4(word[0], word[1], word[2], word[3]);
    }
    for (uint32_t step = 0; step < m.size.steps; ++step) {
        *(uint32_t *)(void *)(m.k_scales + step * TCGEN05_ATOM_BYTES + tcgen05_atom_byte(threadIdx.x, 0)) =
            scale_word(p, at, step);
    }
}

/* V of the tile, an element's 128 tokens to a row. */
__device__ void load_v(const attend_params &p, const memory &m)
{
    const bool whole_groups = p.pages.page_tokens % 4u == 0;
    for (uint32_t i = threadIdx.x; i < m.size.v_rows * (CUDA_TILE_TOKENS / TCGEN05_CHUNK); i += THREADS) {
        const uint32_t d = i % m.size.v_rows, c = i / m.size.v_rows;
        uint32_t word[QUADS_OF_CHUNK];
#pragma unroll
        for (uint32_t q = 0; q < QUADS_OF_CHUNK; ++q) {
            word[q] = value_word(m.fixed->place, QUADS_OF_CHUNK * c + q, d, whole_groups);
        }
        *(uint4 *)(void *)(m.v + tcgen05_matrix_byte(CUDA_TILE_TOKENS, d, c * TCGEN05_CHUNK)) =
            make_uint4(word[0], word[1], word[2], word[3]);
    }
}

/* Descriptor of a step of an operand. */
__device__ uint64_t operand(const uint8_t *matrix, uint32_t row_bytes, uint32_t step)
{
    const uint32_t at = ptx_shared_address(matrix) + tcgen05_matrix_byte(row_bytes, 0, step * TCGEN05_STEP_BYTES);
    return tcgen05_matrix(at, TCGEN05_CORE_BYTES, tcgen05_group_stride(row_bytes));
}

/* Scales of an operand to its columns. */
__device__ void copy_scales(const memory &m, uint32_t at, const uint8_t *scales)
{
    for (uint32_t step = 0; step < m.size.steps; ++step) {
        tensor_copy_scales(m.tensor, at + step * TCGEN05_ATOM_COLUMNS, scales + step * TCGEN05_ATOM_BYTES);
    }
}

/* Scores of rows, which are queries or centres, and K. */
__device__ void multiply_k(const attend_params &p, memory *m, const uint8_t *rows, uint32_t row_scales_at)
{
    const uint32_t instruction = tcgen05_instruction_fp4(
        CUDA_TILE_TOKENS, p.fp4_format == NBL_MXFP4 ? TCGEN05_SCALE_UE8M0 : TCGEN05_SCALE_UE4M3);
    const sizes &s = m->size;
    for (uint32_t step = 0; step < s.steps; ++step) {
        tensor_mma_fp4(m->tensor, SCORES_AT, operand(rows, s.row_bytes, step), operand(m->k, s.row_bytes, step),
                       instruction, row_scales_at + step * TCGEN05_ATOM_COLUMNS,
                       s.k_scales_at + step * TCGEN05_ATOM_COLUMNS, step > 0);
    }
    tensor_products_ready(&m->tensor);
}

/* y of the item's heads (NUM 7.5), from the scores of the centres' parts. */
__device__ void take_centers(const attend_params &p, const memory &m)
{
    const uint32_t slots = m.size.slots, slot = threadIdx.x % SLOTS_MAX, part = threadIdx.x / SLOTS_MAX;
    for (uint32_t first = 0; first < CUDA_TILE_TOKENS; first += TENSOR_SLICE) {
        float x[TENSOR_SLICE];
        tensor_read(m.tensor, SCORES_AT + first, x);
#pragma unroll
        for (uint32_t i = 0; i < TENSOR_SLICE; ++i) {
            if (slot < slots) {
                x[i] *= p.fp4_format == NBL_MXFP4_16 ? m.fixed->place[first + i].k_unit : 1.0f;
                float *to = part == 0 ? m.y : m.rest;
                to[slot * CUDA_TILE_TOKENS + first + i] = part == 0 ? x[i] * m.factor[slot] : x[i];
            }
        }
    }
    tensor_operands_ready(); /* the scores are read, and may be written again */
    for (uint32_t i = threadIdx.x; i < slots * CUDA_TILE_TOKENS; i += THREADS) {
        m.y[i] = nbl_fma(m.rest[i], m.factor[slots + i / CUDA_TILE_TOKENS], m.y[i]);
    }
    __syncthreads();
}

__device__ void multiply_v(memory *m, bool is_first)
{
    for (uint32_t step = 0; step < CUDA_TILE_TOKENS / V_STEP; ++step) {
        tensor_mma_fp8(m->tensor, O_AT, operand(m->p, CUDA_TILE_TOKENS, step), operand(m->v, CUDA_TILE_TOKENS, step),
                       tcgen05_instruction_fp8(m->size.v_rows), !is_first || step > 0);
    }
    tensor_products_ready(&m->tensor);
}

/* ------------------------------------------------------------------------------------------------ softmax */

/* Calls use(j, x, a) for the visible tokens of a slice of the thread's scores, j in the tile, x with the token's factor
 * and the soft cap in it; otherwise hidden(j). */
template <typename F, typename G>
__device__ void for_scores(const attend_params &p, const memory &m, const item &it, const thread_row &row,
                           const row_view &view, int32_t start, uint32_t first, F use, G hidden)
{
    float x[TENSOR_SLICE];
    tensor_read(m.tensor, SCORES_AT + first, x);
#pragma unroll
    for (uint32_t i = 0; i < TENSOR_SLICE; ++i) {
        const int32_t position = start + (int32_t)(first + i);
        if (row.is_live && is_visible(p, it, row.state, position)) {
            x[i] *= p.fp4_format == NBL_MXFP4_16 ? m.fixed->place[first + i].k_unit : 1.0f;
            if (m.size.slots > 0) {
                const float y = m.y[threadIdx.x % m.size.slots * CUDA_TILE_TOKENS + first + i];
                x[i] = nbl_fma(y, row.unit, x[i]);
            }
            x[i] = p.cap != 0.0f ? nbl_tanhp(x[i] * row.state.scale) : x[i];
            use(first + i, x[i], alibi_of(p, view, position));
        } else {
            hidden(first + i);
        }
    }
}

/* Sets or moves the row's base (NUM 6.4, 7.3); the factor of what it has summed so far. */
__device__ float move_base(const attend_params &p, const memory &m, const item &it, thread_row *row, int32_t start)
{
    const row_view view = view_of(p, row->state);
    float z = -INFINITY, t = -INFINITY;
    for (uint32_t first = 0; first < CUDA_TILE_TOKENS; first += TENSOR_SLICE) {
        for_scores(
            p, m, it, *row, view, start, first,
            [&](uint32_t, float x, float a) {
                z = fmaxf(z, nbl_fma(x, view.scale, a));
                t = fmaxf(t, grid_logit(view, x, a));
            },
            [](uint32_t) {});
    }
    float base = nbl_clamp_f32(nbl_ceil(z), -NBL_LOGIT_MAX, NBL_LOGIT_MAX);
    float factor = 1.0f;
    if (z > -INFINITY && !row->state.has_base) {
        row->state.base = base;
        row->state.has_base = true;
    } else if (row->state.has_base && t > NBL_FLOAT_GRID) {
        base = fmaxf(row->state.base, base);
        factor = nbl_pow2f(row->state.base - base);
        row->state.base = base;
    }
#pragma unroll
    for (uint32_t i = 0; i < NBL_PARTIAL_SUMS; ++i) {
        row->sums[i] *= factor;
    }
    return factor;
}

/* O of the thread's row times a factor. */
__device__ void rescale(const memory &m, float factor)
{
    for (uint32_t d = 0; d < m.size.v_rows; d += TENSOR_SLICE) {
        float o[TENSOR_SLICE];
        tensor_read(m.tensor, O_AT + d, o);
#pragma unroll
        for (uint32_t i = 0; i < TENSOR_SLICE; ++i) {
            o[i] *= factor;
        }
        tensor_write(m.tensor, O_AT + d, o);
    }
}

/* P of the thread's row into place, and its sums (NUM 7.3, 6.4). */
__device__ void weigh(const attend_params &p, const memory &m, const item &it, thread_row *row, int32_t start)
{
    const row_view view = view_of(p, row->state);
    for (uint32_t first = 0; first < CUDA_TILE_TOKENS; first += TCGEN05_CHUNK) {
        float w[TCGEN05_CHUNK];
        uint32_t words[4];
#pragma unroll
        for (uint32_t slice = 0; slice < TCGEN05_CHUNK; slice += TENSOR_SLICE) {
            for_scores(
                p, m, it, *row, view, start, first + slice,
                [&](uint32_t j, float x, float a) { w[j % TCGEN05_CHUNK] = weight_of(view, x, a); },
                [&](uint32_t j) { w[j % TCGEN05_CHUNK] = 0.0f; });
        }
#pragma unroll
        for (uint32_t i = 0; i < 4u; ++i) {
            words[i] = weight_codes(w[4u * i], w[4u * i + 1u]) | weight_codes(w[4u * i + 2u], w[4u * i + 3u]) << 16;
        }
#pragma unroll
        for (uint32_t i = 0; i < NBL_PARTIAL_SUMS; ++i) {
            row->sums[i] += nbl_e4m3_decode((uint8_t)(words[i / 4u] >> (8u * (i % 4u))));
        }
        *(uint4 *)(void *)(m.p + tcgen05_matrix_byte(CUDA_TILE_TOKENS, threadIdx.x, first)) =
            make_uint4(words[0], words[1], words[2], words[3]);
    }
}

__device__ void do_tile(const attend_params &p, memory *m, const item &it, thread_row *row, int32_t start,
                        bool is_first)
{
    const token_place at = place_of(p, it, start);
    m->fixed->place[threadIdx.x] = at;
    load_k(p, *m, at);
    __syncthreads(); /* load_v looks at the places of other threads */
    load_v(p, *m);
    tensor_operands_ready();
    copy_scales(*m, m->size.k_scales_at, m->k_scales);
    if (m->size.slots > 0) {
        multiply_k(p, m, m->centers, m->size.center_scales_at);
        take_centers(p, *m);
    }
    multiply_k(p, m, m->q, m->size.q_scales_at);
    const float factor = move_base(p, *m, it, row, start);
    if (__syncthreads_or(factor != 1.0f) != 0 && !is_first) {
        rescale(*m, factor);
    }
    weigh(p, *m, it, row, start);
    tensor_operands_ready();
    multiply_v(m, is_first);
}

/* ------------------------------------------------------------------------------------------------ chunks */

/* All tiles of the n-th chunk; the head of the row's state, whose O is in tensor memory before the states' unit. */
__device__ nbl_state_head do_chunk(const attend_params &p, memory *m, const item &it, thread_row *row, uint32_t n)
{
    const int32_t begin = (int32_t)((p.first_chunk + n) * NBL_CHUNK_TOKENS);
    const int32_t past = max(it.first - begin, 0) / (int32_t)CUDA_TILE_TOKENS * (int32_t)CUDA_TILE_TOKENS;
    const int32_t end = min(it.end, begin + (int32_t)NBL_CHUNK_TOKENS);
    row->state.has_base = false;
    row->state.base = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < NBL_PARTIAL_SUMS; ++i) {
        row->sums[i] = 0.0f;
    }
    for (int32_t start = begin + past; start < end; start += (int32_t)CUDA_TILE_TOKENS) {
        do_tile(p, m, it, row, start, start == begin + past);
    }
    const nbl_state_head head = {row->state.base, nbl_sum_tree(row->sums) * 0x1p-8f, row->state.offset, 0.0f};
    return !row->state.has_base || head.sum == 0.0f ? nbl_state_empty(row->state.offset) : head;
}

/* Eight elements of O of the chunk in the states' unit (NUM 7.4); zeros where it is empty. All threads call it. */
__device__ void chunk_o(const memory &m, const nbl_state_head &head, float unit, uint32_t d, float (&o)[TENSOR_SLICE])
{
    tensor_read(m.tensor, O_AT + d, o);
#pragma unroll
    for (uint32_t i = 0; i < TENSOR_SLICE; ++i) {
        o[i] = nbl_state_is_empty(&head) ? 0.0f : o[i] * unit + 0.0f;
    }
}

__device__ float v_unit(const attend_params &p, const item &it)
{
    return NBL_P_SCALE * float16_scale(&p.pages, NBL_KIND_V, it.kv_head) * 0x1p-8f;
}

__device__ void do_split_item(const attend_params &p, memory *m, const item &it, thread_row *row, uint32_t n)
{
    const nbl_state_head head = do_chunk(p, m, it, row, n);
    float *state = p.states + ((uint64_t)row->state.index * p.chunks + n) * p.state_floats;
    if (row->is_live) {
        *(float4 *)(void *)state = make_float4(head.base, head.sum, head.offset, 0.0f);
    }
    for (uint32_t d = 0; d < m->size.v_rows; d += TENSOR_SLICE) {
        float o[TENSOR_SLICE];
        chunk_o(*m, head, v_unit(p, it), d, o);
        if (row->is_live) {
            float4 *to = (float4 *)(void *)(state + CUDA_STATE_HEAD_FLOATS + d);
            to[0] = make_float4(o[0], o[1], o[2], o[3]);
            to[1] = make_float4(o[4], o[5], o[6], o[7]);
        }
    }
}

/* The chunk's state to the state tensors, where they are asked for (NUM 5.6). */
__device__ void put_state(const attend_params &p, const thread_row &row, uint32_t n, uint32_t d,
                          const float (&o)[TENSOR_SLICE])
{
    uint8_t *at = finish_state_o(&p, n, row.state.token, row.state.head);
    for (uint32_t i = 0; i < TENSOR_SLICE && d + i < p.v_dim; ++i) {
        *(float *)(void *)(at + (int64_t)(d + i) * p.state_o.stride[3]) = o[i];
    }
}

/* total := merge(total, chunk), element by element in tensor memory (NUM 5.6). */
__device__ void merge_chunk(const attend_params &p, const memory &m, const item &it, thread_row *row, uint32_t n,
                            const nbl_state_head &chunk)
{
    const nbl_state_head before = row->state.total;
    const nbl_merge_scale take = {chunk.base, 0.0f, 1.0f};
    const nbl_merge_scale s = nbl_state_is_empty(&before) ? take : nbl_merge_scale_of(before.base, chunk.base);
    float none;
    nbl_state_merge(&row->state.total, &none, &chunk, &none, 0);
    for (uint32_t d = 0; d < m.size.v_rows; d += TENSOR_SLICE) {
        float o[TENSOR_SLICE], total[TENSOR_SLICE];
        chunk_o(m, chunk, v_unit(p, it), d, o);
        tensor_read(m.tensor, m.size.total_at + d, total);
        if (row->is_live && p.state_head.data != NULL) {
            put_state(p, *row, n, d, o);
        }
#pragma unroll
        for (uint32_t i = 0; i < TENSOR_SLICE; ++i) {
            total[i] = nbl_state_is_empty(&before) ? 0.0f : total[i]; /* tensor memory starts with anything */
            total[i] = nbl_state_is_empty(&chunk) ? total[i] : nbl_merge_element(total[i], o[i], s);
        }
        tensor_write(m.tensor, m.size.total_at + d, total);
    }
}

/* Writes O and LSE of all rows, STAGED_ROWS at a time by way of shared memory where P was. */
__device__ void finish_rows(const attend_params &p, const memory &m, const item &it, const thread_row &row)
{
    float *stage = (float *)(void *)m.p;
    m.fixed->total[threadIdx.x] = row.state.total;
    for (uint32_t first = 0; first < it.rows; first += STAGED_ROWS) {
        __syncthreads();
        for (uint32_t d = 0; d < m.size.v_rows; d += TENSOR_SLICE) {
            float o[TENSOR_SLICE];
            tensor_read(m.tensor, m.size.total_at + d, o);
            for (uint32_t i = 0; i < TENSOR_SLICE && threadIdx.x / STAGED_ROWS == first / STAGED_ROWS; ++i) {
                stage[threadIdx.x % STAGED_ROWS * m.size.v_rows + d + i] =
                    nbl_state_is_empty(&row.state.total) ? 0.0f : o[i];
            }
        }
        __syncthreads();
        for (uint32_t i = 0; i < STAGED_ROWS && first + i < it.rows; ++i) {
            float o[1] = {threadIdx.x < m.size.v_rows ? stage[i * m.size.v_rows + threadIdx.x] : 0.0f};
            const finish_target to = finish_target_of(&p, m.fixed->token[first + i], m.fixed->head[first + i]);
            finish_row(to, m.fixed->total[first + i], o, stage + i * m.size.v_rows);
        }
    }
}

__device__ void do_whole_item(const attend_params &p, memory *m, const item &it, thread_row *row)
{
    for (uint32_t n = 0; n < cuda_live_chunks(&p, it.kv_len); ++n) {
        const nbl_state_head chunk = do_chunk(p, m, it, row, n);
        merge_chunk(p, *m, it, row, n, chunk);
        if (p.state_head.data != NULL) {
            m->fixed->total[threadIdx.x] = chunk;
            __syncthreads();
            for (uint32_t i = 0; i < it.rows; ++i) {
                finish_state_head(&p, n, m->fixed->token[i], m->fixed->head[i], m->fixed->total[i]);
            }
            __syncthreads();
        }
    }
    finish_rows(p, *m, it, *row);
}

/* ------------------------------------------------------------------------------------------------ kernel */

/* Cells of an emulated tensor memory; only code for other architectures has them. */
__device__ uint32_t *emulated_cells(uint8_t *at)
{
    return PTX_TCGEN05 ? NULL : (uint32_t *)(void *)at;
}

__device__ memory memory_of(const attend_params &p, uint8_t *dynamic)
{
    memory m;
    m.size = sizes_of(p);
    m.fixed = (fixed_memory *)(void *)dynamic;
    m.q = dynamic + sizeof(fixed_memory);
    m.k = m.q + ROWS * m.size.row_bytes;
    m.p = m.k + ROWS * m.size.row_bytes;
    m.v = m.p + ROWS * CUDA_TILE_TOKENS;
    m.q_scales = m.v + m.size.v_rows * CUDA_TILE_TOKENS;
    m.k_scales = m.q_scales + m.size.steps * TCGEN05_ATOM_BYTES;
    m.center_scales = m.k_scales + m.size.steps * TCGEN05_ATOM_BYTES;
    m.centers = m.center_scales + m.size.steps * TCGEN05_ATOM_BYTES;
    m.y = (float *)(void *)(m.centers + ROWS * m.size.row_bytes);
    m.rest = m.y + m.size.slots * CUDA_TILE_TOKENS;
    m.factor = m.rest + m.size.slots * CUDA_TILE_TOKENS;
    tensor_take(&m.tensor, m.size.columns, m.fixed->tensor,
                emulated_cells(dynamic + sizeof(fixed_memory) + operand_bytes(m.size)));
    return m;
}

__device__ void do_item(const attend_params &p, memory *m, item *it, uint32_t block, uint32_t n)
{
    thread_row row;
    if (!init_item(p, *m, block, it, &row)) {
        return;
    }
    tensor_operands_ready();
    copy_scales(*m, m->size.q_scales_at, m->q_scales);
    if (m->size.slots > 0) {
        copy_scales(*m, m->size.center_scales_at, m->center_scales);
    }
    if (p.split) {
        do_split_item(p, m, *it, &row, n);
    } else {
        do_whole_item(p, m, *it, &row);
    }
}

} // namespace

#endif

__global__ void __launch_bounds__(THREADS, 1)
    blackwell_tensor_kernel(const __grid_constant__ attend_params p, uint32_t blocks)
{
#if HAS_KERNEL
    extern __shared__ __align__(128) uint8_t operands[];
    item it;
    uint32_t block, n;
    if (!item_of_block(p, blocks, &it, &block, &n)) {
        return;
    }
    memory m = memory_of(p, operands);
    do_item(p, &m, &it, block, n);
    tensor_give_back(m.tensor);
#else
    (void)blocks;
#endif
}

#if HAS_KERNEL

/* 1 for the GPUs that the kernel is written for. */
static bool is_native(const attend_params *p)
{
    return p->capability / 10u == 10u;
}

static size_t shared_bytes(const attend_params *p)
{
    const sizes s = sizes_of(*p);
    return sizeof(fixed_memory) + operand_bytes(s) + (is_native(p) ? 0u : tensor_emulated_bytes(s.used));
}

extern "C" int nbl_cuda_tensor_supports(const attend_params *p)
{
    const bool has_code = is_native(p) || (EMULATED && p->capability < 120u);
    return has_code && p->v_dim_padded <= V_DIM_MAX && (p->q_centers.data == NULL || p->group_rows <= SLOTS_MAX) &&
           shared_bytes(p) <= p->shared_bytes;
}

extern "C" cudaError_t nbl_cuda_attend_tensor(const attend_params *p, cudaStream_t stream)
{
    return launch_items(blackwell_tensor_kernel, ROWS, THREADS, shared_bytes(p), stream, p);
}

#endif
