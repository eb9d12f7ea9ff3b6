/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file generic.cu
 * @brief attend for every valid call (NUM 5): all dimensions, formats token by token, page sizes, masks.
 *
 * A work item is a sequence, a kv head, up to R query rows, and one chunk (split) or all of them. A block of 128
 * threads does one: thread t is token t of the tile while K is decoded and multiplied, element t, t + 128, ... of O
 * while V is.
 * K and V of a tile share one buffer of canonical int8 codes in shared memory:
 *
 *     K  [Dk/4][128 tokens] words of 4 elements      V  [32][Dv] words of 4 tokens
 */
#include "../attend.h"
#include "../ptx/ptx.cuh"
#include "../tile/block16.cuh"
#include "../tile/finish.cuh"
#include "../tile/launch.cuh"
#include "../tile/rows.cuh"
#include "../tile/stored.cuh"
#include "exp2grid.h"
#include "rowsum.h"

#define THREADS CUDA_TILE_TOKENS
#define WARPS (THREADS / 32u)

/* Shared memory of a block; the arrays of a call's dimensions follow it. */
template <uint32_t R> struct alignas(16) fixed_memory {
    float x[R][CUDA_TILE_TOKENS];
    uint32_t p[R][CUDA_TILE_TOKENS / 4u]; /* P, four tokens to a word */
    row_state row[R];
    float unit[CUDA_TILE_TOKENS];     /* 2^ek */
    float exponent[CUDA_TILE_TOKENS]; /* ev */
    float weight[CUDA_TILE_TOKENS];   /* 2^-ev */
    stored_v v;
};

template <uint32_t R> struct memory {
    fixed_memory<R> *fixed;
    uint32_t *tile;
    uint32_t *q;          /* [R][k_dim_padded / 4] */
    uint8_t *multipliers; /* [v_dim_padded / 16][128]: of V's blocks */
};

/* ------------------------------------------------------------------------------------------------ rows */

/* Sets up the item's rows and their codes; false if it has none. */
template <uint32_t R>
static __device__ bool init_item(const attend_params &p, const memory<R> &m, uint32_t block, item *it)
{
    if (!rows_of_item(p, block, R, it)) {
        return false;
    }
    if (threadIdx.x < it->rows) {
        init_row(p, *it, (uint32_t)p.sequences[it->sequence].q_first, block * R + threadIdx.x,
                 &m.fixed->row[threadIdx.x]);
    }
    __syncthreads();
    it->first = INT32_MAX;
    it->end = 0;
    uint32_t words = p.k_dim_padded / 4u;
    for (uint32_t i = 0; i < R; ++i) {
        bool has_row = i < it->rows;
        if (has_row) {
            it->first = min(it->first, m.fixed->row[i].first);
            it->end = max(it->end, m.fixed->row[i].end);
        }
        const uint32_t *codes =
            (const uint32_t *)(const void *)(p.codes + (uint64_t)m.fixed->row[has_row ? i : 0u].index * p.k_dim_padded);
        for (uint32_t w = threadIdx.x; w < words; w += THREADS) {
            m.q[i * words + w] = has_row ? codes[w] : 0u;
        }
    }
    return true;
}

/* ------------------------------------------------------------------------------------------------ K */

/* Part of the page that holds a position. */
static __device__ block16_part part_of(const attend_params &p, const item &it, uint32_t position, uint32_t kind)
{
    int32_t page = it.table[position / p.pages.page_tokens];
    const cuda_region *region = cuda_region_find(&p.pages, page);
    return block16_part_at(&p.pages, region, (uint32_t)page, kind, it.kv_head, kind == NBL_KIND_K ? p.k_dim : p.v_dim);
}

/* Decodes K of the thread's token. */
template <uint32_t R>
static __device__ void load_k(const attend_params &p, const memory<R> &m, const item &it, uint32_t position)
{
    block16_part part = part_of(p, it, position, NBL_KIND_K);
    uint32_t token = position % p.pages.page_tokens;
    const uint8_t *scales = part.scales + token;
    int32_t exponent = stored_exponent(part, scales);
    const uint8_t *at = part.codes + block16_code_byte(&part, token, 0);
    uint32_t stride = 4u * nbl_layout_group_width(part.page_tokens, token, NBL_LAYOUT_K_GROUP_TOKENS);
    uint32_t *out = m.tile + threadIdx.x;
    m.fixed->unit[threadIdx.x] = nbl_pow2(exponent);
    if (part.format == NBL_INT8) {
#pragma unroll 4
        for (uint32_t w = 0; w < p.k_dim_padded / 4u; ++w) {
            out[w * THREADS] = *(const uint32_t *)(const void *)(at + (uint64_t)w * stride);
        }
        return;
    }
    bool is_int4p = part.format == NBL_INT4P;
#pragma unroll 2
    for (uint32_t b = 0; b < p.k_dim_padded / BLOCK16; ++b) {
        uint32_t multiplier = stored_multiplier(part, scales, b, exponent);
        uint32_t shift = 31u - (uint32_t)__clz((int)multiplier);
#pragma unroll
        for (uint32_t i = 0; i < 2u; ++i) {
            uint32_t word = *(const uint32_t *)(const void *)(at + (uint64_t)(2u * b + i) * stride);
            uint32_t *to = out + (4u * b + 2u * i) * THREADS;
            to[0] = is_int4p ? decode4_int4p(word, multiplier) : decode4_e2m1(word, shift);
            to[THREADS] = is_int4p ? decode4_int4p(word >> 4, multiplier) : decode4_e2m1(word >> 4, shift);
        }
    }
}

/* x of NUM 5.3 for the thread's token and all rows. */
template <uint32_t R> static __device__ void multiply_k(const attend_params &p, const memory<R> &m)
{
    int32_t sums[R] = {};
    uint32_t words = p.k_dim_padded / 4u;
    for (uint32_t w = 0; w < words; w += 4u) {
        int32_t k[4];
#pragma unroll
        for (uint32_t i = 0; i < 4u; ++i) {
            k[i] = (int32_t)m.tile[(w + i) * THREADS + threadIdx.x];
        }
#pragma unroll
        for (uint32_t r = 0; r < R; ++r) {
            int4 q = *(const int4 *)(const void *)(m.q + r * words + w);
            sums[r] = ptx_dp4a_ss(k[0], q.x, sums[r]);
            sums[r] = ptx_dp4a_ss(k[1], q.y, sums[r]);
            sums[r] = ptx_dp4a_ss(k[2], q.z, sums[r]);
            sums[r] = ptx_dp4a_ss(k[3], q.w, sums[r]);
        }
    }
    float unit = m.fixed->unit[threadIdx.x];
#pragma unroll
    for (uint32_t r = 0; r < R; ++r) {
        m.fixed->x[r][threadIdx.x] = (float)sums[r] * unit;
    }
}

/* ------------------------------------------------------------------------------------------------ V */

/* Exponent, block multipliers and place of V of the thread's token. */
template <uint32_t R>
static __device__ void describe_v(const attend_params &p, const memory<R> &m, const item &it, uint32_t position)
{
    fixed_memory<R> *f = m.fixed;
    block16_part part = part_of(p, it, position, NBL_KIND_V);
    uint32_t token = position % p.pages.page_tokens;
    const uint8_t *scales = part.scales + token;
    int32_t exponent = stored_exponent(part, scales);
    f->exponent[threadIdx.x] = (float)exponent;
    f->weight[threadIdx.x] = nbl_pow2(-exponent);
    f->v.codes[threadIdx.x] = part.codes + block16_code_byte(&part, token, 0);
    f->v.stride[threadIdx.x] = nbl_layout_group_width(part.page_tokens, token, NBL_LAYOUT_V_GROUP_TOKENS);
    f->v.format[threadIdx.x] = part.format;
    for (uint32_t b = 0; b < p.v_dim_padded / BLOCK16; ++b) {
        m.multipliers[b * CUDA_TILE_TOKENS + threadIdx.x] = (uint8_t)stored_multiplier(part, scales, b, exponent);
    }
}

/* Places past the length: no code pointer, harmless numbers. */
template <uint32_t R> static __device__ void describe_nothing(const attend_params &p, const memory<R> &m)
{
    fixed_memory<R> *f = m.fixed;
    f->exponent[threadIdx.x] = 0.0f;
    f->weight[threadIdx.x] = 1.0f;
    f->v.codes[threadIdx.x] = NULL;
    for (uint32_t b = 0; b < p.v_dim_padded / BLOCK16; ++b) {
        m.multipliers[b * CUDA_TILE_TOKENS + threadIdx.x] = 0;
    }
}

/* Decodes V of the tile; descriptions are in place. */
template <uint32_t R> static __device__ void load_v(const attend_params &p, const memory<R> &m)
{
    const fixed_memory<R> *f = m.fixed;
    uint32_t columns = p.v_dim_padded / 2u;
    bool whole_groups = p.pages.page_tokens % STORED_QUAD == 0;
    for (uint32_t i = threadIdx.x; i < CUDA_TILE_TOKENS / STORED_QUAD * columns; i += THREADS) {
        uint32_t t = i / columns * STORED_QUAD;
        uint32_t column = i % columns;
        uint32_t d = column / BLOCK16 * 2u * BLOCK16 + column % BLOCK16;
        stored_words words = stored_v_quad(f->v, t, d, column, whole_groups);
        const uint8_t *multipliers = m.multipliers + d / BLOCK16 * CUDA_TILE_TOKENS + t;
        uint32_t *to = m.tile + t / STORED_QUAD * p.v_dim_padded + d;
        to[0] = decode4_multiply(words.low, *(const uint32_t *)(const void *)multipliers);
        to[BLOCK16] = decode4_multiply(words.high, *(const uint32_t *)(const void *)(multipliers + CUDA_TILE_TOKENS));
    }
}

/* ------------------------------------------------------------------------------------------------ softmax */

/* Four tokens of a row as a lane of its warp sees them: lane l has tokens l%16 + 16*(4*(l/16) + i), so that a partial
 * sum of NUM 5.4 lies in lanes r and r + 16. */
struct lane_tokens {
    float x[4];
    float a[4];
    float weight[4];
    float t[4];
    bool visible[4];
};

static __device__ uint32_t lane_token(uint32_t i)
{
    uint32_t lane = threadIdx.x % 32u;
    return lane % NBL_PARTIAL_SUMS + NBL_PARTIAL_SUMS * (4u * (lane / NBL_PARTIAL_SUMS) + i);
}

static __device__ float warp_max(float x)
{
    for (int distance = 16; distance > 0; distance /= 2) {
        x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, distance));
    }
    return x;
}

/* ceil(max z) over the visible tokens, clamped (NUM 5.4). */
static __device__ float base_of(const lane_tokens &v, float scale)
{
    float most = -INFINITY;
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        most = v.visible[i] ? fmaxf(most, nbl_fma(v.x[i], scale, v.a[i])) : most;
    }
    return nbl_clamp_f32(nbl_ceil(warp_max(most)), -NBL_LOGIT_MAX, NBL_LOGIT_MAX);
}

/* t of every token, at most limit; the largest of the visible ones is returned. */
static __device__ float grid_logits(lane_tokens *v, float scale, float base, float limit)
{
    float most = -INFINITY;
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        v->t[i] = fminf(nbl_fma(v->x[i], scale, (v->a[i] - base) + NBL_GRID), limit);
        most = v->visible[i] ? fmaxf(most, v->t[i]) : most;
    }
    return warp_max(most);
}

/* p = 2^u, near enough for P and q (NUM 5.5). */
static __device__ float grid_exp2(float u)
{
    return u < NBL_WEIGHT_MIN ? 0.0f : ptx_ex2(u);
}

/* P of the lane's tokens into place; l of NUM 5.4 is returned. */
static __device__ float weigh(const lane_tokens &v, float most, uint8_t *p)
{
    float q[4];
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        float e = v.visible[i] ? grid_exp2(v.t[i] - most) : 0.0f;
        p[lane_token(i)] = (uint8_t)nbl_grid_weight(e);
        q[i] = nbl_grid_q(e);
    }
    float s = 0.0f;
#pragma unroll
    for (uint32_t half = 0; half < 2u; ++half) { /* lanes 16 to 31 go on where lanes 0 to 15 ended */
        float before = __shfl_xor_sync(FULL_WARP, s, 16);
        if (threadIdx.x % 32u / 16u == half) {
            s = half == 0 ? 0.0f : before;
#pragma unroll
            for (uint32_t i = 0; i < 4u; ++i) {
                s = v.visible[i] ? nbl_fma(q[i], v.weight[i], s) : s;
            }
        }
    }
    s = __shfl_sync(FULL_WARP, s, (int)(threadIdx.x % 16u + 16u));
    s += __shfl_xor_sync(FULL_WARP, s, 8);
    s += __shfl_xor_sync(FULL_WARP, s, 1);
    s += __shfl_xor_sync(FULL_WARP, s, 2);
    return s + __shfl_xor_sync(FULL_WARP, s, 4);
}

/* The lane's tokens of a row; the factor of x in z and t is returned. */
template <uint32_t R>
static __device__ float view_tokens(const attend_params &p, const memory<R> &m, const item &it, uint32_t index,
                                    int32_t start, lane_tokens *v)
{
    const fixed_memory<R> *f = m.fixed;
    const row_state &r = f->row[index];
    float slope = p.alibi_slopes != NULL ? p.alibi_slopes[r.head] * NBL_LOG2E : 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        uint32_t t = lane_token(i);
        int32_t position = start + (int32_t)t;
        v->visible[i] = is_visible(p, it, r, position);
        v->x[i] = f->x[index][t];
        v->a[i] = f->exponent[t];
        v->weight[i] = f->weight[t];
        if (p.alibi_slopes != NULL) {
            v->a[i] = nbl_fma(slope, (float)(position - r.position), v->a[i]);
        }
        if (p.cap != 0.0f && v->visible[i]) {
            v->x[i] = nbl_tanhp(v->x[i] * r.scale);
        }
    }
    return p.cap != 0.0f ? p.cap : r.scale;
}

/* NUM 5.4 for one row of the tile, by one warp. */
template <uint32_t R>
static __device__ void softmax(const attend_params &p, const memory<R> &m, const item &it, uint32_t index,
                               int32_t start)
{
    row_state *r = &m.fixed->row[index];
    lane_tokens v;
    float scale = view_tokens(p, m, it, index, start, &v);
    bool takes_part = __any_sync(FULL_WARP, v.visible[0] || v.visible[1] || v.visible[2] || v.visible[3]);
    float base = 0.0f;
    float rescale = 1.0f;
    float sum = r->sum;
    float b = 0.0f;
    bool adds = false;
    if (takes_part) {
        base = r->has_base ? r->base : base_of(v, scale);
        float most = grid_logits(&v, scale, base, INFINITY);
        if (most > NBL_GRID + NBL_REBASE) {
            float moved = fmaxf(base, base_of(v, scale));
            rescale = nbl_pow2f(base - moved);
            base = moved;
            most = grid_logits(&v, scale, base, NBL_GRID + NBL_REBASE);
        }
        adds = !(most - NBL_GRID < NBL_WEIGHT_MIN);
        sum = rescale != 1.0f ? sum * rescale : sum;
        if (adds) {
            float l = weigh(v, most, (uint8_t *)m.fixed->p[index]);
            b = nbl_grid_base(most - NBL_GRID);
            sum = nbl_fma(l, b, sum);
        }
    }
    __syncwarp();
    if (threadIdx.x % 32u == 0) {
        r->adds = adds;
        r->rescale = rescale;
        if (takes_part) {
            r->has_base = true;
            r->base = base;
            r->sum = sum;
            r->b = b;
        }
    }
}

/* ------------------------------------------------------------------------------------------------ tiles and chunks */

/* O of the thread's elements (NUM 5.4). */
template <uint32_t V, uint32_t R>
static __device__ void multiply_v(const attend_params &p, const memory<R> &m, uint32_t rows, float (&o)[R][V])
{
#pragma unroll
    for (uint32_t i = 0; i < V; ++i) {
        uint32_t d = threadIdx.x + i * THREADS;
        if (d < p.v_dim_padded) {
            int32_t sums[R] = {};
#pragma unroll 2
            for (uint32_t g = 0; g < CUDA_TILE_TOKENS / STORED_QUAD; g += 4u) {
                int32_t v[4];
#pragma unroll
                for (uint32_t k = 0; k < 4u; ++k) {
                    v[k] = (int32_t)m.tile[(g + k) * p.v_dim_padded + d];
                }
#pragma unroll
                for (uint32_t r = 0; r < R; ++r) {
                    uint4 weights = *(const uint4 *)(const void *)(m.fixed->p[r] + g);
                    sums[r] = ptx_dp4a_us(weights.x, v[0], sums[r]);
                    sums[r] = ptx_dp4a_us(weights.y, v[1], sums[r]);
                    sums[r] = ptx_dp4a_us(weights.z, v[2], sums[r]);
                    sums[r] = ptx_dp4a_us(weights.w, v[3], sums[r]);
                }
            }
#pragma unroll
            for (uint32_t r = 0; r < R; ++r) {
                if (r < rows) {
                    const row_state &row = m.fixed->row[r];
                    o[r][i] = row.rescale != 1.0f ? o[r][i] * row.rescale : o[r][i];
                    o[r][i] = row.adds ? nbl_fma((float)sums[r], row.b, o[r][i]) : o[r][i];
                }
            }
        }
    }
}

template <uint32_t V, uint32_t R>
static __device__ void do_tile(const attend_params &p, const memory<R> &m, const item &it, int32_t start,
                               float (&o)[R][V])
{
    uint32_t position = (uint32_t)start + threadIdx.x;
    bool has_token = position < (uint32_t)it.kv_len;
    if (has_token) {
        load_k(p, m, it, position);
        describe_v(p, m, it, position);
    } else {
        m.fixed->unit[threadIdx.x] = 1.0f;
        describe_nothing(p, m);
    }
    multiply_k(p, m); /* a thread reads the K it has written itself */
    __syncthreads();
    load_v(p, m);
    for (uint32_t r = threadIdx.x / 32u; r < it.rows; r += WARPS) {
        softmax(p, m, it, r, start);
    }
    __syncthreads();
    multiply_v(p, m, it.rows, o);
    __syncthreads();
}

/* State of a row after the chunk; the empty one has an all-zero O (NUM 5.6). */
template <uint32_t V> static __device__ nbl_state_head finish_chunk(const row_state &r, float (&o)[V])
{
    nbl_state_head head = {r.base, r.sum, r.offset, 0.0f};
    if (!r.has_base || r.sum == 0.0f) {
#pragma unroll
        for (uint32_t i = 0; i < V; ++i) {
            o[i] = 0.0f;
        }
        head = nbl_state_empty(r.offset);
    }
    return head;
}

/* All tiles of the n-th chunk of the range, for all rows of the item. */
template <uint32_t V, uint32_t R>
static __device__ void do_chunk(const attend_params &p, const memory<R> &m, const item &it, uint32_t n,
                                float (&o)[R][V])
{
    if (threadIdx.x < it.rows) {
        m.fixed->row[threadIdx.x].has_base = false;
        m.fixed->row[threadIdx.x].sum = 0.0f;
    }
#pragma unroll
    for (uint32_t r = 0; r < R; ++r) {
#pragma unroll
        for (uint32_t i = 0; i < V; ++i) {
            o[r][i] = 0.0f;
        }
    }
    __syncthreads();
    int32_t begin = (int32_t)((p.first_chunk + n) * NBL_CHUNK_TOKENS);
    for (uint32_t t = 0; t < CUDA_CHUNK_TILES; ++t) {
        int32_t start = begin + (int32_t)(t * CUDA_TILE_TOKENS);
        if (start < it.end && start + (int32_t)CUDA_TILE_TOKENS > it.first) {
            do_tile(p, m, it, start, o);
        }
    }
}

/* Split: the state of one chunk goes to the workspace. */
template <uint32_t V, uint32_t R>
static __device__ void do_split_item(const attend_params &p, const memory<R> &m, const item &it, uint32_t n)
{
    float o[R][V];
    do_chunk(p, m, it, n, o);
#pragma unroll
    for (uint32_t r = 0; r < R; ++r) {
        if (r < it.rows) {
            nbl_state_head head = finish_chunk(m.fixed->row[r], o[r]);
            store_state(p, m.fixed->row[r].index, n, head, o[r]);
        }
    }
}

/* Not split: all chunks in order, then finished rows. */
template <uint32_t V, uint32_t R>
static __device__ void do_whole_item(const attend_params &p, const memory<R> &m, const item &it)
{
    float o[R][V];
    float total[R][V] = {};
    for (uint32_t n = 0; n < cuda_live_chunks(&p, it.kv_len); ++n) {
        do_chunk(p, m, it, n, o);
#pragma unroll
        for (uint32_t r = 0; r < R; ++r) {
            if (r < it.rows) {
                row_state *row = &m.fixed->row[r];
                nbl_state_head head = finish_chunk(*row, o[r]);
                nbl_state_head sum = row->total;
                if (p.state_head.data != NULL) {
                    finish_state(&p, n, row->token, row->head, head, o[r]);
                }
                nbl_state_merge(&sum, total[r], &head, o[r], V);
                __syncthreads();
                if (threadIdx.x == 0) {
                    row->total = sum;
                }
                __syncthreads();
            }
        }
    }
#pragma unroll 1 /* unrolled, this would be a large part of the kernel's code */
    for (uint32_t r = 0; r < it.rows; ++r) {
        const row_state &row = m.fixed->row[r];
        finish_row(finish_target_of(&p, row.token, row.head), row.total, total[r], (float *)(void *)m.tile);
    }
}

/* ------------------------------------------------------------------------------------------------ kernel */

static __host__ __device__ size_t tile_bytes(const attend_params *p)
{
    return (size_t)CUDA_TILE_TOKENS * (p->k_dim_padded > p->v_dim_padded ? p->k_dim_padded : p->v_dim_padded);
}

template <uint32_t R> static __host__ __device__ size_t memory_bytes(const attend_params *p)
{
    return sizeof(fixed_memory<R>) + tile_bytes(p) + (size_t)R * p->k_dim_padded +
           (size_t)p->v_dim_padded / BLOCK16 * CUDA_TILE_TOKENS;
}

template <uint32_t V, uint32_t R>
static __global__ void __launch_bounds__(THREADS, 1)
    generic_kernel(const __grid_constant__ attend_params p, uint32_t blocks)
{
    extern __shared__ uint4 dynamic[];
    memory<R> m;
    m.fixed = (fixed_memory<R> *)(void *)dynamic;
    m.tile = (uint32_t *)(void *)(m.fixed + 1);
    m.q = m.tile + tile_bytes(&p) / sizeof(uint32_t);
    m.multipliers = (uint8_t *)(m.q + (size_t)R * p.k_dim_padded / sizeof(uint32_t));
    item it;
    uint32_t block, n;
    if (!item_of_block(p, blocks, &it, &block, &n)) {
        return;
    }
    if (!init_item(p, m, block, &it)) {
        return;
    }
    if (p.split) {
        do_split_item<V>(p, m, it, n);
    } else {
        do_whole_item<V>(p, m, it);
    }
}

template <uint32_t V, uint32_t R> static cudaError_t launch(const attend_params *p, cudaStream_t stream)
{
    return launch_items(generic_kernel<V, R>, R, THREADS, memory_bytes<R>(p), stream, p);
}

extern "C" cudaError_t nbl_cuda_attend_generic(const attend_params *p, cudaStream_t stream)
{
    if (p->k_dim_padded > 512u || p->v_dim > 2u * THREADS) {
        return launch<4, 8>(p, stream);
    }
    return p->v_dim > THREADS ? launch<2, 16>(p, stream) : launch<1, 16>(p, stream);
}
