/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file float_attend.cu
 * @brief attend of the float core for every valid call (NUM 6): bf16 or fp16 MMAs on pages of any formats.
 *
 * A work item is a sequence, a kv head, up to 16 query rows, and one chunk (split) or all of them; a block of 128
 * threads does one. K and then V of a tile are brought as halves into a stage of shared memory
 *
 *     [Dp/8][128 tokens] units of 16 bytes: 8 elements of a token
 *
 * whose 8 tokens x 16 bytes are the matrices that ldmatrix loads: as they are for K, transposed for V. Other formats
 * are decoded by the threads into one stage. Pages of bf16 or fp16 alone are stored in such units: they stream into a
 * ring of stages by cp.async while the stages before are worked on, in a kernel of their own that leaves out ALiBi,
 * soft cap and tree masks, so that its loop fits the instruction cache. Each warp
 * multiplies Q with 32 tokens; P goes through shared memory; then each warp has a quarter of the columns of O, whose
 * accumulators stay in the tensor core's hands for a whole chunk (NUM 6.4).
 */
#include "../attend.h"
#include "../ptx/ptx.cuh"
#include "../tile/finish.cuh"
#include "../tile/float16.cuh"
#include "../tile/launch.cuh"
#include "../tile/rows.cuh"
#include "floatgrid.h"
#include "rowsum.h"

#define THREADS CUDA_TILE_TOKENS
#define WARPS (THREADS / 32u)
#define ROWS 16u
#define UNIT 8u                                       /* elements of 16 bytes */
#define P_STRIDE (CUDA_TILE_TOKENS + UNIT)            /* halves; rows of ldmatrix fall into different banks */
#define TOKEN_TILES (CUDA_TILE_TOKENS / WARPS / UNIT) /* n-tiles of a warp in Q K^T */
#define K_STEP 16u                                    /* of an MMA */
#define STREAM_STAGES 3u                              /* of the ring; at D = 128 two blocks fit a multiprocessor */
#define STREAM_DIM_MAX 256u

namespace
{

/* Kernels: for any call, or for pages of bf16 or fp16 that stream. */
enum mode { GENERAL, STREAM_BF16, STREAM_FP16 };

template <mode M> constexpr uint32_t stages_of = M == GENERAL ? 1u : STREAM_STAGES;

template <mode M> __device__ bool is_fp16(uint32_t flag)
{
    return M == GENERAL ? flag != 0 : M == STREAM_FP16;
}

/* Shared memory of a block; the arrays of a call's dimensions follow it. */
struct alignas(16) fixed_memory {
    row_state row[ROWS];
    float sums[ROWS][NBL_PARTIAL_SUMS];
    float z_most[WARPS][ROWS];
    float t_most[WARPS][ROWS];
    uint16_t p[ROWS][P_STRIDE];
};

struct memory {
    fixed_memory *fixed;
    uint4 *tile; /* the stages; between chunks the rows of O */
    uint32_t stage_units;
    uint16_t *q; /* [ROWS][q_stride] */
    uint32_t q_stride;
};

/* Accumulators of a thread: rows g and g + 8 of its warp's columns, in fragments of 8 columns. */
template <uint32_t N> struct accumulators {
    float o[N][4];
};

/* ------------------------------------------------------------------------------------------------ items */

/* Sequence, rows and positions of the item; false if there are none. */
__device__ bool find_item(const attend_params &p, uint32_t block, item *it)
{
    if (!rows_of_item(p, block, ROWS, it)) {
        return false;
    }
    const int64_t position = (int64_t)it->kv_len - it->q_len;
    it->first = visible_range_of(p, it->kv_len, position + block * ROWS / p.group_rows).first;
    it->end = visible_range_of(p, it->kv_len, position + (block * ROWS + it->rows - 1u) / p.group_rows).end;
    return true;
}

/* The item's rows and queries in shared memory; a barrier has to follow. */
__device__ void load_rows(const attend_params &p, const memory &m, uint32_t block, const item &it)
{
    const uint32_t q_first = (uint32_t)p.sequences[it.sequence].q_first;
    const uint32_t units = p.k_dim_padded / UNIT;
    if (threadIdx.x < it.rows) {
        init_row(p, it, q_first, block * ROWS + threadIdx.x, &m.fixed->row[threadIdx.x]);
    }
    for (uint32_t i = threadIdx.x; i < ROWS * units; i += THREADS) {
        const uint32_t row = i / units, in_head = block * ROWS + row;
        uint4 word = make_uint4(0, 0, 0, 0);
        if (row < it.rows) {
            const uint64_t index = (uint64_t)(q_first + in_head / p.group_rows) * p.q_heads +
                                   it.kv_head * p.group_rows + in_head % p.group_rows;
            const uint16_t *halves = (const uint16_t *)(const void *)p.codes;
            word = *(const uint4 *)(const void *)(halves + index * p.k_dim_padded + i % units * UNIT);
        }
        *(uint4 *)(void *)(m.q + row * m.q_stride + i % units * UNIT) = word;
    }
}

/* ------------------------------------------------------------------------------------------------ tiles */

/* A token's vector in its page: codes of element 0, distance between columns of codes, scales. */
struct token_place {
    uint32_t format;
    uint32_t kind;
    uint32_t width;
    uint32_t page_tokens;
    const uint8_t *codes;
    const uint8_t *scales;
};

__device__ token_place place_of(const attend_params &p, const item &it, uint32_t position, int32_t page, uint32_t kind)
{
    uint32_t token = position % p.pages.page_tokens;
    const cuda_region *region = cuda_region_find(&p.pages, page);
    block16_part part =
        block16_part_at(&p.pages, region, (uint32_t)page, kind, it.kv_head, kind == NBL_KIND_K ? p.k_dim : p.v_dim);
    bool wide = kind == NBL_KIND_K || nbl_layout_code_bits(part.format) == 16u;
    token_place at;
    at.format = part.format;
    at.kind = kind;
    at.width =
        nbl_layout_group_width(part.page_tokens, token, wide ? NBL_LAYOUT_K_GROUP_TOKENS : NBL_LAYOUT_V_GROUP_TOKENS);
    at.page_tokens = part.page_tokens;
    at.codes = part.codes + block16_code_byte(&part, token, 0);
    at.scales = part.scales + token;
    return at;
}

/* Code of element d, of 8 or 4 bits (F3, F4). */
__device__ uint32_t code_of(const token_place &at, uint32_t d)
{
    bool is_byte = nbl_layout_code_bits(at.format) == 8u;
    if (at.kind == NBL_KIND_K) {
        uint32_t byte = at.codes[(is_byte ? d / 4u : d / 8u) * 4u * at.width + d % 4u];
        return is_byte ? byte : byte >> (d / 4u % 2u * 4u) & 15u;
    }
    uint32_t byte = at.codes[(is_byte ? d : d / 32u * 16u + d % 16u) * at.width];
    return is_byte ? byte : byte >> (d / 16u % 2u * 4u) & 15u;
}

/* What the codes of a block of 16 are multiplied with; exact (NUM 2.3 to 2.5, 6.1). */
__device__ float scale_of(const token_place &at, uint32_t b, uint32_t planes)
{
    switch (at.format) {
    case NBL_INT8: return nbl_pow2(nbl_e8m0_decode_slot(at.scales[0]));
    case NBL_INT4P: {
        uint32_t multiplier = (at.scales[b / 2u * at.page_tokens] >> (b % 2u * 4u) & 15u) + 1u;
        return (float)multiplier * nbl_pow2(nbl_e8m0_decode_slot(at.scales[planes * at.page_tokens]));
    }
    case NBL_MXFP4: return nbl_pow2(nbl_e8m0_decode_slot(at.scales[b / 2u * at.page_tokens]) - 1);
    case NBL_MXFP4_16: return nbl_pow2(nbl_e8m0_decode_slot(at.scales[b * at.page_tokens]) - 1);
    case NBL_NVFP4: return 0.5f * nbl_e4m3_decode_slot(at.scales[b * at.page_tokens]);
    default: return 1.0f;
    }
}

/* A code as a number before its scale. */
__device__ float number_of(uint32_t format, uint32_t code)
{
    switch (format) {
    case NBL_INT8: return (float)(int8_t)code;
    case NBL_INT4P: return (float)((int32_t)code - 8);
    case NBL_FP8_E4M3: return nbl_e4m3_decode_slot((uint8_t)code);
    default: return (float)nbl_e2m1_half_units(code);
    }
}

/* Eight elements of a token as bf16, from codes of 8 or 4 bits. Their values are exact: the upper half is all. */
__device__ uint4 decode_unit(const token_place &at, uint32_t unit, float scale)
{
    uint32_t words[4];
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        float low = number_of(at.format, code_of(at, UNIT * unit + 2u * i)) * scale;
        float high = number_of(at.format, code_of(at, UNIT * unit + 2u * i + 1u)) * scale;
        words[i] = nbl_bits_of(low) >> 16 | (nbl_bits_of(high) & 0xffff0000u);
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

/* Decodes K or V of the thread's token into the one stage. */
__device__ void decode_token(const token_place &at, uint32_t padded, uint4 *to)
{
    if (nbl_layout_code_bits(at.format) == 16u) {
        const uint4 *from = (const uint4 *)(const void *)at.codes;
#pragma unroll 8
        for (uint32_t unit = 0; unit < padded / UNIT; ++unit) {
            to[unit * CUDA_TILE_TOKENS] = from[unit * at.width];
        }
        return;
    }
    for (uint32_t b = 0; b < padded / BLOCK16; ++b) {
        float scale = scale_of(at, b, padded / 32u);
        to[2u * b * CUDA_TILE_TOKENS] = decode_unit(at, 2u * b, scale);
        to[(2u * b + 1u) * CUDA_TILE_TOKENS] = decode_unit(at, 2u * b + 1u, scale);
    }
}

/* The tiles of a chunk on their way into the stages, K and V of a tile after each other; each thread has a token. */
struct stream {
    uint32_t asked; /* tiles of K and V */
    uint32_t taken;
    uint32_t position; /* of the thread's token in the tile to ask for */
    uint32_t end;      /* of the tiles */
    int32_t page;      /* of that token, where the sequence has it */
};

__device__ void find_page(const attend_params &p, const item &it, stream *s)
{
    if (s->position < (uint32_t)it.kv_len && s->position < s->end + threadIdx.x) {
        s->page = it.table[s->position / p.pages.page_tokens];
    }
}

/* Asks for K or V of the thread's token, of 16 bits. */
__device__ void copy_token(const attend_params &p, const item &it, const stream &s, uint32_t kind, uint32_t padded,
                           uint4 *to)
{
    const uint32_t token = s.position % p.pages.page_tokens;
    const cuda_region *region = cuda_region_find(&p.pages, s.page);
    const uint8_t *from = region->codes + (uint64_t)((uint32_t)s.page - region->first_page) * region->code_page_stride;
    from += kind == NBL_KIND_K ? (uint64_t)it.kv_head * region->k_code_head_bytes
                               : region->v_code_offset + (uint64_t)it.kv_head * region->v_code_head_bytes;
    from += nbl_layout_half_byte(padded, p.pages.page_tokens, token, 0);
    const uint32_t step = 16u * nbl_layout_group_width(p.pages.page_tokens, token, NBL_LAYOUT_K_GROUP_TOKENS);
    const uint32_t shared = ptx_shared_address(to);
#pragma unroll 4
    for (uint32_t unit = 0; unit < padded / UNIT; ++unit) {
        ptx_cp_async_16(shared + unit * CUDA_TILE_TOKENS * 16u, from + unit * step);
    }
}

/* Brings K or V of a tile into its stage, or asks for it; zeros where no row of the item sees the token, whose page may
 * hold anything: a weight of 0 must not meet what is no number. */
template <mode M> __device__ void ask(const attend_params &p, const memory &m, const item &it, stream *s)
{
    const uint32_t kind = s->asked % 2u == 0 ? (uint32_t)NBL_KIND_K : (uint32_t)NBL_KIND_V;
    const uint32_t padded = kind == NBL_KIND_K ? p.k_dim_padded : p.v_dim_padded;
    uint4 *to = m.tile + s->asked % stages_of<M> * m.stage_units + threadIdx.x;
    if (s->position < s->end + threadIdx.x) {
        if ((int32_t)s->position < it.first || (int32_t)s->position >= it.end) {
#pragma unroll 1
            for (uint32_t unit = 0; unit < padded / UNIT; ++unit) {
                to[unit * CUDA_TILE_TOKENS] = make_uint4(0, 0, 0, 0);
            }
        } else if constexpr (M == GENERAL) {
            decode_token(place_of(p, it, s->position, s->page, kind), padded, to);
        } else {
            copy_token(p, it, *s, kind, padded, to);
        }
    }
    if constexpr (M != GENERAL) {
        ptx_cp_async_commit();
    }
    if (kind == NBL_KIND_V) {
        s->position += CUDA_TILE_TOKENS;
        find_page(p, it, s);
    }
    s->asked++;
}

/* The stream of the n-th chunk of the range: the tiles that some row sees. */
template <mode M> __device__ stream open_stream(const attend_params &p, const memory &m, const item &it, uint32_t n)
{
    const int32_t begin = (int32_t)((p.first_chunk + n) * NBL_CHUNK_TOKENS);
    const int32_t end = min(begin + (int32_t)NBL_CHUNK_TOKENS, it.end);
    stream s;
    s.asked = s.taken = 0;
    s.page = 0;
    s.position = (uint32_t)max(begin, it.first / (int32_t)CUDA_TILE_TOKENS * (int32_t)CUDA_TILE_TOKENS) + threadIdx.x;
    s.end = (uint32_t)max(end, 0);
    find_page(p, it, &s);
#pragma unroll 1
    for (uint32_t i = 1; i < stages_of<M>; ++i) {
        ask<M>(p, m, it, &s);
    }
    return s;
}

/* The next tile of the stream, K or V; all threads are past the one before. The stage of V is asked for again here,
 * that of K as soon as its scores are there (ask_behind_k). */
template <mode M, uint32_t KIND>
__device__ const uint4 *take(const attend_params &p, const memory &m, const item &it, stream *s)
{
    const uint4 *tile = m.tile + s->taken % stages_of<M> * m.stage_units;
    if constexpr (M == GENERAL) {
        __syncthreads();
        ask<M>(p, m, it, s);
        __syncthreads();
    } else if constexpr (KIND == NBL_KIND_K) {
        ptx_cp_async_wait<(int)stages_of<M> - 2>();
        __syncthreads();
        ask<M>(p, m, it, s);
    } else {
        ptx_cp_async_wait<(int)stages_of<M> - 1>();
        __syncthreads();
    }
    s->taken++;
    return tile;
}

/* All threads are past the scores of the tile of K taken last. */
template <mode M> __device__ void ask_behind_k(const attend_params &p, const memory &m, const item &it, stream *s)
{
    if constexpr (M != GENERAL) {
        ask<M>(p, m, it, s);
    }
}

/* ------------------------------------------------------------------------------------------------ Q K^T */

/* Scores of 16 rows and the warp's 32 tokens: n-tile i has tokens 8i + 2t, 8i + 2t + 1 of rows g and g + 8. */
template <mode M>
__device__ void multiply_k(const attend_params &p, const memory &m, const uint4 *tile, float (&s)[TOKEN_TILES][4])
{
    const uint32_t lane = threadIdx.x % 32u, warp = threadIdx.x / 32u;
    const uint32_t q_at =
        ptx_shared_address(m.q + (lane % 8u + 8u * (lane / 8u % 2u)) * m.q_stride + lane / 16u * UNIT);
    const uint32_t k_at =
        ptx_shared_address(tile + lane / 8u % 2u * CUDA_TILE_TOKENS + 32u * warp + 8u * (lane / 16u) + lane % 8u);
#pragma unroll
    for (uint32_t i = 0; i < TOKEN_TILES; ++i) {
        s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0.0f;
    }
    for (uint32_t step = 0; step < p.k_dim_padded / K_STEP; ++step) {
        uint32_t a[4], b[4];
        ptx_ldmatrix_x4(a, q_at + step * K_STEP * 2u);
#pragma unroll
        for (uint32_t pair = 0; pair < TOKEN_TILES / 2u; ++pair) {
            ptx_ldmatrix_x4(b, k_at + (2u * step * CUDA_TILE_TOKENS + 16u * pair) * 16u);
            ptx_mma_half(s[2u * pair], a, b[0], b[1], is_fp16<M>(p.k_fp16));
            ptx_mma_half(s[2u * pair + 1u], a, b[2], b[3], is_fp16<M>(p.k_fp16));
        }
    }
}

/* ------------------------------------------------------------------------------------------------ softmax */

/* A thread's share of a tile of scores, as two rows of eight tokens. */
struct scores {
    float x[2][8];
    float a[2][8];
    float t[2][8];
    bool visible[2][8];
    float scale[2];
};

/* Position of the n-th of a thread's tokens in its tile. */
__device__ uint32_t token_of(uint32_t n)
{
    return threadIdx.x / 32u * 32u + n / 2u * UNIT + threadIdx.x % 4u * 2u + n % 2u;
}

__device__ uint32_t row_of(uint32_t half)
{
    return threadIdx.x % 32u / 4u + 8u * half;
}

/* Of a tile's two halves of eight rows those that have rows: one in most decodes. */
__device__ uint32_t halves_of(const item &it)
{
    return it.rows > 8u ? 2u : 1u;
}

/* Masks, ALiBi and soft cap (NUM 6.3). */
template <mode M>
__device__ void view_scores(const attend_params &p, const memory &m, const item &it, int32_t start,
                            const float (&s)[TOKEN_TILES][4], scores *v)
{
#pragma unroll
    for (uint32_t half = 0; half < 2u; ++half) {
        if (half >= halves_of(it)) {
            break;
        }
        const bool has_row = row_of(half) < it.rows;
        const row_state &r = m.fixed->row[has_row ? row_of(half) : 0u];
        if constexpr (M != GENERAL) {
            v->scale[half] = r.scale;
            const int32_t first = r.first, end = has_row ? r.end : 0;
#pragma unroll
            for (uint32_t n = 0; n < 8u; ++n) {
                const int32_t position = start + (int32_t)token_of(n);
                v->visible[half][n] = position >= first && position < end;
                v->x[half][n] = s[n / 2u][2u * half + n % 2u];
                v->a[half][n] = 0.0f;
            }
            continue;
        }
        const float slope = p.alibi_slopes != NULL ? p.alibi_slopes[r.head] * NBL_LOG2E : 0.0f;
        v->scale[half] = p.cap != 0.0f ? p.cap : r.scale;
#pragma unroll
        for (uint32_t n = 0; n < 8u; ++n) {
            int32_t position = start + (int32_t)token_of(n);
            v->visible[half][n] = has_row && is_visible(p, it, r, position);
            v->x[half][n] = s[n / 2u][2u * half + n % 2u];
            v->a[half][n] = p.alibi_slopes != NULL ? slope * (float)(position - r.position) : 0.0f;
            if (p.cap != 0.0f && v->visible[half][n]) {
                v->x[half][n] = nbl_tanhp(v->x[half][n] * r.scale);
            }
        }
    }
}

/* t of every token, at most limit; 1 if a row needs a base or a visible token is beyond the reach of its base. */
__device__ bool grid_logits(const memory &m, const item &it, scores *v, float limit)
{
    bool is_late = false;
#pragma unroll
    for (uint32_t half = 0; half < 2u; ++half) {
        if (half >= halves_of(it)) {
            break;
        }
        const row_state &r = m.fixed->row[row_of(half)];
        const float base = r.base;
        const bool has_base = r.has_base;
#pragma unroll
        for (uint32_t n = 0; n < 8u; ++n) {
            float t = nbl_fma(v->x[half][n], v->scale[half], (v->a[half][n] - base) + NBL_FLOAT_GRID);
            v->t[half][n] = fminf(t, limit);
            is_late = is_late || (v->visible[half][n] && (!has_base || t > NBL_FLOAT_GRID + NBL_FLOAT_REBASE));
        }
    }
    return is_late;
}

/* Largest z and t of each row over the warp's tokens, into place. */
__device__ void put_maxima(const memory &m, const item &it, const scores *v)
{
    const uint32_t warp = threadIdx.x / 32u;
#pragma unroll
    for (uint32_t half = 0; half < 2u; ++half) {
        if (half >= halves_of(it)) {
            break;
        }
        float z = -INFINITY, t = -INFINITY;
#pragma unroll
        for (uint32_t n = 0; n < 8u; ++n) {
            z = v->visible[half][n] ? fmaxf(z, nbl_fma(v->x[half][n], v->scale[half], v->a[half][n])) : z;
            t = v->visible[half][n] ? fmaxf(t, v->t[half][n]) : t;
        }
        z = quad_max(z);
        t = quad_max(t);
        if (threadIdx.x % 4u == 0) {
            m.fixed->z_most[warp][row_of(half)] = z;
            m.fixed->t_most[warp][row_of(half)] = t;
        }
    }
}

/* P of the thread's tokens into place. */
template <mode M> __device__ void weigh(const attend_params &p, const memory &m, const item &it, const scores &v)
{
    const float least = is_fp16<M>(p.v_fp16) ? NBL_FLOAT_WEIGHT_MIN_FP16 : NBL_WEIGHT_MIN;
#pragma unroll
    for (uint32_t half = 0; half < 2u; ++half) {
        if (half >= halves_of(it)) {
            break;
        }
#pragma unroll
        for (uint32_t n = 0; n < 8u; n += 2u) {
            float e[2];
#pragma unroll
            for (uint32_t i = 0; i < 2u; ++i) {
                float u = v.t[half][n + i] - NBL_FLOAT_GRID;
                e[i] = v.visible[half][n + i] && u >= least ? ptx_ex2(u) : 0.0f;
            }
            *(uint32_t *)(void *)&m.fixed->p[row_of(half)][token_of(n)] =
                is_fp16<M>(p.v_fp16) ? ptx_cvt_f16x2(e[1], e[0]) : ptx_cvt_bf16x2(e[1], e[0]);
        }
    }
}

/* ------------------------------------------------------------------------------------------------ P V */

/* Row and first of the two partial sums that a thread keeps. */
__device__ uint32_t sum_row(void)
{
    return threadIdx.x / 8u;
}

__device__ uint32_t sum_class(void)
{
    return threadIdx.x % 8u * 2u;
}

/* s_r of NUM 6.4, two for each thread. */
template <mode M> __device__ void add_sums(const attend_params &p, const memory &m, float (&sums)[2])
{
#pragma unroll
    for (uint32_t k = 0; k < CUDA_TILE_TOKENS / NBL_PARTIAL_SUMS; ++k) {
        uint32_t word = *(const uint32_t *)(const void *)&m.fixed->p[sum_row()][k * NBL_PARTIAL_SUMS + sum_class()];
        sums[0] += ptx_half_low(word, is_fp16<M>(p.v_fp16));
        sums[1] += ptx_half_high(word, is_fp16<M>(p.v_fp16));
    }
}

/* Fragments of 8 columns that the warp has, and its first. */
__device__ uint32_t units_of_warp(const attend_params &p)
{
    return p.v_dim_padded / UNIT / WARPS;
}

template <uint32_t N, mode M>
__device__ void multiply_v(const attend_params &p, const memory &m, const uint4 *tile, accumulators<N> *acc)
{
    const uint32_t lane = threadIdx.x % 32u;
    const uint32_t units = units_of_warp(p), first = threadIdx.x / 32u * units;
    const uint32_t p_at = ptx_shared_address(&m.fixed->p[lane % 8u + 8u * (lane / 8u % 2u)][lane / 16u * UNIT]);
    const uint32_t v_at = ptx_shared_address(tile + 8u * (lane / 8u % 2u) + lane % 8u);
    for (uint32_t step = 0; step < CUDA_TILE_TOKENS / K_STEP; ++step) {
        uint32_t a[4], b[4];
        ptx_ldmatrix_x4(a, p_at + step * K_STEP * 2u);
#pragma unroll
        for (uint32_t i = 0; i < N; i += 2u) {
            if (i < units) {
                uint32_t unit = first + min(i + lane / 16u, units - 1u);
                ptx_ldmatrix_x4_trans(b, v_at + (unit * CUDA_TILE_TOKENS + step * K_STEP) * 16u);
                ptx_mma_half(acc->o[i], a, b[0], b[1], is_fp16<M>(p.v_fp16));
                if (N > 1u && i + 1u < units) {
                    ptx_mma_half(acc->o[i + 1u], a, b[2], b[3], is_fp16<M>(p.v_fp16));
                }
            }
        }
    }
}

template <uint32_t N> __device__ void rescale(const memory &m, accumulators<N> *acc, float (&sums)[2])
{
    const float low = m.fixed->row[row_of(0)].rescale, high = m.fixed->row[row_of(1)].rescale;
    sums[0] *= m.fixed->row[sum_row()].rescale;
    sums[1] *= m.fixed->row[sum_row()].rescale;
#pragma unroll
    for (uint32_t i = 0; i < N; ++i) {
        acc->o[i][0] *= low;
        acc->o[i][1] *= low;
        acc->o[i][2] *= high;
        acc->o[i][3] *= high;
    }
}

template <uint32_t N, mode M>
__device__ void do_tile(const attend_params &p, const memory &m, const item &it, int32_t start, stream *tiles,
                        accumulators<N> *acc, float (&sums)[2])
{
    float s[TOKEN_TILES][4];
    scores v;
    multiply_k<M>(p, m, take<M, NBL_KIND_K>(p, m, it, tiles), s);
    view_scores<M>(p, m, it, start, s, &v);
    bool is_late = grid_logits(m, it, &v, INFINITY);
    const bool is_any_late = __syncthreads_or(is_late) != 0;
    ask_behind_k<M>(p, m, it, tiles);
    if (is_any_late) {
        put_maxima(m, it, &v);
        move_bases(it, m.fixed->row, m.fixed->z_most, m.fixed->t_most, NBL_FLOAT_GRID + NBL_FLOAT_REBASE);
        grid_logits(m, it, &v, NBL_FLOAT_GRID + NBL_FLOAT_REBASE);
        rescale(m, acc, sums);
    }
    weigh<M>(p, m, it, v);
    const uint4 *tile = take<M, NBL_KIND_V>(p, m, it, tiles);
    add_sums<M>(p, m, sums);
    multiply_v<N, M>(p, m, tile, acc);
}

/* ------------------------------------------------------------------------------------------------ chunks */

/* L of every row, and O in the states' unit as rows of floats where the tile was (NUM 6.6). */
template <uint32_t N>
__device__ void stage_chunk(const attend_params &p, const memory &m, const item &it, const accumulators<N> &acc,
                            const float (&sums)[2])
{
    float *staged = (float *)(void *)m.tile;
    const uint32_t units = units_of_warp(p), first = threadIdx.x / 32u * units;
    const float unit = NBL_P_SCALE * float16_scale(&p.pages, NBL_KIND_V, it.kv_head);
    m.fixed->sums[sum_row()][sum_class()] = sums[0];
    m.fixed->sums[sum_row()][sum_class() + 1u] = sums[1];
#pragma unroll
    for (uint32_t i = 0; i < N; ++i) {
        if (i < units) {
#pragma unroll
            for (uint32_t j = 0; j < 4u; ++j) {
                uint32_t d = (first + i) * UNIT + threadIdx.x % 4u * 2u + j % 2u;
                staged[row_of(j / 2u) * p.v_dim_padded + d] = acc.o[i][j] * unit + 0.0f;
            }
        }
    }
    __syncthreads();
    if (threadIdx.x < it.rows) {
        m.fixed->row[threadIdx.x].sum = nbl_sum_tree(m.fixed->sums[threadIdx.x]);
    }
    __syncthreads();
}

/* All tiles of a chunk, staged. */
template <uint32_t N, mode M>
__device__ void do_chunk(const attend_params &p, const memory &m, const item &it, stream tiles)
{
    accumulators<N> acc = {};
    float sums[2] = {0.0f, 0.0f};
    for (uint32_t i = threadIdx.x; i < ROWS / 2u * P_STRIDE / 2u; i += THREADS) {
        ((uint32_t *)(void *)m.fixed->p[ROWS / 2u])[i] = 0; /* rows that no weight may be written to */
    }
    if (threadIdx.x < ROWS) {
        m.fixed->row[threadIdx.x].has_base = false;
        m.fixed->row[threadIdx.x].base = 0.0f;
        m.fixed->row[threadIdx.x].rescale = 1.0f;
    }
    __syncthreads();
    const uint32_t ahead = (stages_of<M> - 1u) / 2u * CUDA_TILE_TOKENS; /* tiles asked for whole */
    for (uint32_t start = tiles.position - threadIdx.x - ahead; start < tiles.end; start += CUDA_TILE_TOKENS) {
        do_tile<N, M>(p, m, it, (int32_t)start, &tiles, &acc, sums);
    }
    __syncthreads();
    stage_chunk(p, m, it, acc, sums);
}

/* State of a staged row, of whose O the thread has elements t, t + 128, ... (NUM 5.6). */
template <uint32_t V>
__device__ nbl_state_head staged_state(const attend_params &p, const memory &m, uint32_t row, float (&o)[V])
{
    const row_state &r = m.fixed->row[row];
    const bool is_empty = !r.has_base || r.sum == 0.0f;
    const float *staged = (const float *)(const void *)m.tile + row * p.v_dim_padded;
#pragma unroll
    for (uint32_t i = 0; i < V; ++i) {
        uint32_t d = threadIdx.x + i * THREADS;
        o[i] = is_empty || d >= p.v_dim_padded ? 0.0f : staged[d];
    }
    nbl_state_head head = {r.base, r.sum, r.offset, 0.0f};
    return is_empty ? nbl_state_empty(r.offset) : head;
}

template <uint32_t V, mode M>
__device__ void do_split_item(const attend_params &p, const memory &m, const item &it, uint32_t block, uint32_t n)
{
    const stream tiles = open_stream<M>(p, m, it, n);
    load_rows(p, m, block, it);
    do_chunk<4u * V, M>(p, m, it, tiles);
    for (uint32_t row = 0; row < it.rows; ++row) {
        float o[V];
        nbl_state_head head = staged_state(p, m, row, o);
        store_state(p, m.fixed->row[row].index, n, head, o);
    }
}

/* Rows one after the other: unrolled, they would be half of the kernel's code. */
template <uint32_t V, mode M>
__device__ void do_whole_item(const attend_params &p, const memory &m, const item &it, uint32_t block)
{
    float total[ROWS][V] = {};
    load_rows(p, m, block, it);
    for (uint32_t n = 0; n < cuda_live_chunks(&p, it.kv_len); ++n) {
        do_chunk<4u * V, M>(p, m, it, open_stream<M>(p, m, it, n));
#pragma unroll 1
        for (uint32_t r = 0; r < it.rows; ++r) {
            row_state *row = &m.fixed->row[r];
            float o[V];
            nbl_state_head head = staged_state(p, m, r, o);
            nbl_state_head sum = row->total;
            if (p.state_head.data != NULL) {
                finish_state(&p, n, row->token, row->head, head, o);
            }
            nbl_state_merge(&sum, total[r], &head, o, V);
            __syncthreads();
            if (threadIdx.x == 0) {
                row->total = sum;
            }
        }
        __syncthreads();
    }
    __syncthreads();
#pragma unroll 1
    for (uint32_t r = 0; r < it.rows; ++r) {
        const row_state &row = m.fixed->row[r];
        finish_row(finish_target_of(&p, row.token, row.head), row.total, total[r], (float *)(void *)m.tile);
    }
}

/* ------------------------------------------------------------------------------------------------ kernel */

__host__ __device__ size_t tile_bytes(uint32_t k_dim_padded, uint32_t v_dim_padded)
{
    return (size_t)CUDA_TILE_TOKENS * 2u * (k_dim_padded > v_dim_padded ? k_dim_padded : v_dim_padded);
}

template <uint32_t V, mode M>
__global__ void __launch_bounds__(THREADS, 1) float_kernel(const __grid_constant__ attend_params p, uint32_t blocks)
{
    extern __shared__ uint4 dynamic[];
    memory m;
    m.fixed = (fixed_memory *)(void *)dynamic;
    m.tile = (uint4 *)(void *)(m.fixed + 1);
    m.stage_units = (uint32_t)(tile_bytes(p.k_dim_padded, p.v_dim_padded) / sizeof(uint4));
    m.q = (uint16_t *)(void *)(m.tile + stages_of<M> * m.stage_units);
    m.q_stride = p.k_dim_padded + UNIT;
    item it;
    uint32_t block, n;
    if (!item_of_block(p, blocks, &it, &block, &n)) {
        return;
    }
    if (!find_item(p, block, &it)) {
        return;
    }
    if (p.split) {
        do_split_item<V, M>(p, m, it, block, n);
    } else {
        do_whole_item<V, M>(p, m, it, block);
    }
}

uint64_t shared_bytes(uint32_t k_dim, uint32_t v_dim, uint32_t stages)
{
    const uint32_t k_dim_padded = nbl_layout_dim_padded(k_dim);
    return sizeof(fixed_memory) + stages * tile_bytes(k_dim_padded, nbl_layout_dim_padded(v_dim)) +
           (uint64_t)ROWS * (k_dim_padded + UNIT) * 2u;
}

/* 1 if pages can be copied as they are, by a ring that fits, and nothing is asked that streaming leaves out. */
bool can_stream(const attend_params *p)
{
    bool is_halves = p->k_fp16 == p->v_fp16;
    for (uint32_t i = 0; i < p->pages.region_count; ++i) {
        is_halves = is_halves && nbl_layout_code_bits(p->pages.regions[i].k_format) == 16u &&
                    nbl_layout_code_bits(p->pages.regions[i].v_format) == 16u;
    }
    return is_halves && p->cap == 0.0f && p->alibi_slopes == NULL && p->tree_mask == NULL &&
           p->v_dim_padded <= STREAM_DIM_MAX && shared_bytes(p->k_dim, p->v_dim, STREAM_STAGES) <= p->shared_bytes;
}

template <uint32_t V, mode M> cudaError_t launch(const attend_params *p, cudaStream_t stream)
{
    cudaError_t error = cudaFuncSetAttribute(float_kernel<V, M>, cudaFuncAttributePreferredSharedMemoryCarveout,
                                             cudaSharedmemCarveoutMaxShared);
    if (error != cudaSuccess) {
        return error;
    }
    const size_t bytes = shared_bytes(p->k_dim, p->v_dim, stages_of<M>);
    return launch_items(float_kernel<V, M>, ROWS, THREADS, bytes, stream, p);
}

template <uint32_t V> cudaError_t launch_any(const attend_params *p, cudaStream_t stream)
{
    if (!can_stream(p)) {
        return launch<V, GENERAL>(p, stream);
    }
    return p->k_fp16 ? launch<V, STREAM_FP16>(p, stream) : launch<V, STREAM_BF16>(p, stream);
}

} // namespace

extern "C" uint64_t nbl_cuda_float_shared_bytes(uint32_t k_dim, uint32_t v_dim)
{
    return shared_bytes(k_dim, v_dim, 1);
}

extern "C" cudaError_t nbl_cuda_attend_float(const attend_params *p, cudaStream_t stream)
{
    if (p->v_dim_padded > 2u * THREADS) {
        return launch<4, GENERAL>(p, stream);
    }
    return p->v_dim_padded > THREADS ? launch_any<2>(p, stream) : launch_any<1>(p, stream);
}
