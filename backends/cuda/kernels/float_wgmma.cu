/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file float_wgmma.cu
 * @brief Prefill of the float core on sm_90a: pages of 16-bit formats through wgmma (NUM 6.3 to 6.6).
 *
 * A block takes 128 query rows of a kv head of a sequence, over all tiles that they see, or over one chunk (split). Two
 * warps copy K and V of tiles into rings, in the order that pages have them: groups of 32 tokens, and in a group units
 * of 8 elements,
 *
 *     [4 groups][D/8][32 tokens] of 16 bytes
 *
 * so that a group is one copy. Its 8 tokens x 16 bytes are the matrices of wgmma: rows in the depth's direction for K,
 * whose groups are multiplied apart, columns side by side for V.
 * Two warpgroups compute, 64 rows each; inside a chunk
 *
 *     Q K(j) begins    P V(j - 1) begins    Q K(j) ends    2^t of j    P V(j - 1) ends    P of j
 *
 * Accumulators of P V stay for a chunk (NUM 6.4). A thread has rows g = lane / 4 and g + 8 of its warp's 16, and of
 * each the columns 8*i + 2*t + b, t = lane % 4: so its four sums of NUM 6.4 are those of tokens 2t, 2t + 1, 8 + 2t,
 * 9 + 2t mod 16. The fused steps are those of mma.sync, 16 products in increasing order, so the bits are those of
 * float_attend.cu.
 */
#include "../attend.h"
#include "../ptx/wgmma.cuh"
#include "../tile/finish.cuh"
#include "../tile/float16.cuh"
#include "../tile/launch.cuh"
#include "../tile/stored.cuh"
#include "floatgrid.h"

#define ROWS 128u
#define CONSUMERS 256u
#define CONSUMER_WARPS (CONSUMERS / 32u)
#define THREADS (CONSUMERS + 128u) /* the third warpgroup loads */
#define CONSUMER_REGISTERS 232
#define LOADER_REGISTERS 40
#define K_SLOTS 3u
#define V_SLOTS 2u
#define UNIT 8u           /* elements of 16 bytes */
#define RUN_TOKENS_MIN 8u /* that a copy brings of a unit */
#define ROWS_MIN 33u      /* query rows of a kv head below which float_attend.cu is no worse */
#define GROUP_TOKENS NBL_LAYOUT_K_GROUP_TOKENS
#define GROUPS (CUDA_TILE_TOKENS / GROUP_TOKENS)
#define UNIT_BYTES (GROUP_TOKENS * 16u)
#define MATRIX_BYTES 128u
#define IDLE 40u /* nanoseconds that a loading thread sleeps; a tile takes over a thousand */
#define LIMIT (NBL_FLOAT_GRID + NBL_FLOAT_REBASE)

namespace
{

template <int D> struct alignas(128) memory {
    uint4 k[K_SLOTS][GROUPS][D / UNIT][GROUP_TOKENS];
    uint4 v[V_SLOTS][GROUPS][D / UNIT][GROUP_TOKENS];
    float4 total[D / 8][CONSUMERS]; /* O of the chunks before */
    uint64_t k_full[K_SLOTS], k_empty[K_SLOTS], v_full[V_SLOTS], v_empty[V_SLOTS];
};

/* What a block does. */
struct work {
    uint32_t sequence;
    uint32_t kv_head;
    uint32_t first_row; /* in the kv head's rows of the sequence */
    uint32_t rows;
    uint32_t chunk; /* split: n-th of the range */
    uint32_t first; /* position that some row sees */
    uint32_t tile_first;
    uint32_t tile_end;
    cuda_sequence at;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* What a row sees; of the item's chunk alone where the work is split, and never past it, where the next one begins. */
__device__ visible_range range_of(const attend_params &p, const work &w, uint32_t row)
{
    visible_range r = visible_range_of(p, w.at.kv_len, (int64_t)w.at.kv_len - w.at.q_len + row / p.group_rows);
    if (p.split) {
        const int32_t start = (int32_t)((p.first_chunk + w.chunk) * NBL_CHUNK_TOKENS);
        r.first = min(max(r.first, start), start + (int32_t)NBL_CHUNK_TOKENS);
        r.end = max(min(r.end, start + (int32_t)NBL_CHUNK_TOKENS), r.first);
    }
    return r;
}

/* Item of the block; long ones first with a causal mask. False if there is none. */
__device__ bool find_work(const attend_params &p, uint32_t blocks, work *w)
{
    const uint32_t parts = p.split ? p.chunks : 1u;
    const uint32_t unit = blockIdx.x / parts / blocks;
    const uint32_t block = blocks - 1u - blockIdx.x / parts % blocks;
    w->chunk = blockIdx.x % parts;
    w->kv_head = unit % p.kv_heads;
    w->sequence = unit / p.kv_heads;
    w->at = p.sequences[w->sequence];
    w->first_row = block * ROWS;
    const int64_t left = (int64_t)w->at.q_len * p.group_rows - w->first_row;
    if (left <= 0 || (p.split && w->chunk >= cuda_live_chunks(&p, w->at.kv_len))) {
        return false;
    }
    w->rows = (uint32_t)min(left, (int64_t)ROWS);
    w->first = (uint32_t)range_of(p, *w, w->first_row).first;
    w->tile_first = w->first / CUDA_TILE_TOKENS;
    const uint32_t end = (uint32_t)range_of(p, *w, w->first_row + w->rows - 1u).end;
    w->tile_end = max((end + CUDA_TILE_TOKENS - 1u) / CUDA_TILE_TOKENS, w->tile_first);
    return true;
}

/* ------------------------------------------------------------------------------------------------ loading */

/* Where a lane's tokens of a tile are: a run of tokens side by side in a page. */
struct run_place {
    const uint8_t *from; /* of unit 0; NULL where the sequence has none */
    uint32_t width;      /* tokens of the group in the page */
    uint32_t there;      /* tokens that the sequence has */
    uint32_t skipped;    /* of these, those before the first that some row sees */
};

__device__ run_place find_run(const attend_params &p, const work &w, uint32_t position, uint32_t run, uint32_t kind)
{
    const uint32_t page_tokens = p.pages.page_tokens;
    run_place r = {NULL, run, 0, 0};
    if (position < (uint32_t)w.at.kv_len) {
        const int32_t page = p.page_table[(uint64_t)w.sequence * p.page_table_stride + position / page_tokens];
        const cuda_region *region = cuda_region_find(&p.pages, page);
        const block16_part part =
            block16_part_at(&p.pages, region, (uint32_t)page, kind, w.kv_head, kind == NBL_KIND_K ? p.k_dim : p.v_dim);
        const uint32_t token = position % page_tokens;
        r.from = part.codes + nbl_layout_half_byte(part.dim, page_tokens, token, 0);
        r.width = nbl_layout_group_width(page_tokens, token, GROUP_TOKENS);
        r.there = min((uint32_t)w.at.kv_len - position, run);
        r.skipped = w.first > position ? min(w.first - position, r.there) : 0u;
    }
    return r;
}

/* Copies a run of every `step`-th unit from `first`, and zeros where no row sees a token: a weight of 0 must not meet
 * what is no number. to is the run's place in unit 0 of its group. */
__device__ void copy_units(const run_place &r, uint32_t run, uint32_t first, uint32_t step, uint32_t units, uint4 *to,
                           uint32_t barrier, uint64_t policy)
{
    for (uint32_t unit = first; unit < units; unit += step) {
        uint4 *at = to + unit * GROUP_TOKENS;
        if (r.there > r.skipped) {
            ptx_bulk_copy(ptx_shared_address(at + r.skipped), r.from + (unit * r.width + r.skipped) * 16u,
                          (r.there - r.skipped) * 16u, barrier, policy);
        }
        for (uint32_t i = 0; i < r.skipped; ++i) {
            at[i] = make_uint4(0, 0, 0, 0);
        }
        for (uint32_t i = r.there; i < run; ++i) {
            at[i] = make_uint4(0, 0, 0, 0);
        }
    }
    if (r.there < run || r.skipped > 0) {
        ptx_fence_proxy_async();
    }
}

/* K of all tiles, or V, by a warp; lane l has run l of a tile, or shares it with lanes l + runs, ... */
template <int D> __device__ void load_tiles(const attend_params &p, memory<D> &m, const work &w, uint32_t kind)
{
    const uint64_t policy = ptx_policy_evict_last();
    const uint32_t run = min(p.pages.page_tokens & (0u - p.pages.page_tokens), GROUP_TOKENS);
    const uint32_t runs = CUDA_TILE_TOKENS / run, lane = threadIdx.x % 32u, place = lane % runs * run;
    const uint32_t units = (kind == NBL_KIND_K ? p.k_dim_padded : p.v_dim_padded) / UNIT;
    const uint32_t slots = kind == NBL_KIND_K ? K_SLOTS : V_SLOTS;
    uint32_t slot = 0, parity = 1;
    for (uint32_t tile = w.tile_first; tile < w.tile_end; ++tile) {
        const uint32_t start = tile * CUDA_TILE_TOKENS;
        const uint32_t full = ptx_shared_address(kind == NBL_KIND_K ? &m.k_full[slot] : &m.v_full[slot]);
        const uint32_t empty = ptx_shared_address(kind == NBL_KIND_K ? &m.k_empty[slot] : &m.v_empty[slot]);
        uint4 *to = kind == NBL_KIND_K ? &m.k[slot][0][0][0] : &m.v[slot][0][0][0];
        to += place / GROUP_TOKENS * (D / UNIT) * GROUP_TOKENS + place % GROUP_TOKENS;
        const run_place r = find_run(p, w, start + place, run, kind);
        ptx_mbarrier_wait_idle(empty, parity, IDLE);
        const bool is_whole = r.there == GROUP_TOKENS && r.skipped == 0;
        if (is_whole && lane < runs) {
            ptx_bulk_copy(ptx_shared_address(to), r.from, units * UNIT_BYTES, full, policy);
        } else if (!is_whole) {
            copy_units(r, run, lane / runs, 32u / runs, units, to, full, policy);
        }
        __syncwarp();
        if (lane == 0) {
            const uint32_t end = min((uint32_t)w.at.kv_len - start, CUDA_TILE_TOKENS);
            const uint32_t begin = w.first > start ? min(w.first - start, end) : 0u;
            ptx_mbarrier_arrive_expect(full, (end - begin) * units * 16u);
        }
        slot = slot + 1u == slots ? 0u : slot + 1u;
        parity ^= slot == 0 ? 1u : 0u;
    }
}

/* ------------------------------------------------------------------------------------------------ rows */

/* The two rows of a thread. */
struct thread_rows {
    uint32_t index[2]; /* token * Hq + head; UINT32_MAX where there is none */
    float scale[2];
    int32_t first[2]; /* visible positions [first, end) */
    int32_t end[2];
    bool has_base[2];
    float base[2];
    float sums[2][4];
    float total_base[2]; /* chunks before the one at hand */
    float total_sum[2];
    int32_t full_first; /* all rows of the warp see [full_first, full_end) */
    int32_t full_end;
};

__device__ void begin_rows(const attend_params &p, const work &w, thread_rows &r)
{
#pragma unroll
    for (uint32_t row = 0; row < 2u; ++row) {
        const uint32_t i = threadIdx.x / 32u * 16u + threadIdx.x % 32u / 4u + 8u * row, in_head = w.first_row + i;
        r.index[row] = UINT32_MAX;
        r.scale[row] = 1.0f;
        r.first[row] = r.end[row] = 0;
        r.total_base[row] = -INFINITY;
        r.total_sum[row] = 0.0f;
        if (i < w.rows) {
            const visible_range range = range_of(p, w, in_head);
            r.index[row] = ((uint32_t)w.at.q_first + in_head / p.group_rows) * p.q_heads + w.kv_head * p.group_rows +
                           in_head % p.group_rows;
            r.scale[row] = p.queries[r.index[row]].scale;
            r.first[row] = range.first;
            r.end[row] = range.end;
        }
    }
    r.full_first = __reduce_max_sync(FULL_WARP, max(r.first[0], r.first[1]));
    r.full_end = __reduce_min_sync(FULL_WARP, min(r.end[0], r.end[1]));
}

/* The thread's part of the queries, as A operands of 16 halves of depth each. */
template <int D> __device__ void load_queries(const attend_params &p, const thread_rows &r, uint32_t (&q)[D / 4])
{
#pragma unroll
    for (int i = 0; i < D / 4; ++i) {
        const uint32_t d = i / 4 * 16u + i / 2 % 2 * 8u + threadIdx.x % 4u * 2u, index = r.index[i % 2];
        const uint16_t *row = (const uint16_t *)(const void *)p.codes + (uint64_t)index * p.k_dim_padded;
        q[i] = index != UINT32_MAX && d < p.k_dim_padded ? *(const uint32_t *)(const void *)(row + d) : 0u;
    }
}

template <int N> __device__ void begin_chunk(thread_rows &r, float (&o)[N])
{
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        r.has_base[row] = false;
        r.base[row] = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            r.sums[row][i] = 0.0f;
        }
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
        o[i] = 0.0f;
    }
}

/* ------------------------------------------------------------------------------------------------ softmax */

/* Scores that a row does not see become -inf. */
__device__ void mask_scores(const thread_rows &r, int32_t start, float (&s)[64])
{
    const int32_t own = start + 2 * (int32_t)(threadIdx.x % 4u);
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        const int row = i / 2 % 2;
        const int32_t position = own + i / 4 * 8 + i % 2;
        s[i] = position >= r.first[row] && position < r.end[row] ? s[i] : -INFINITY;
    }
}

__device__ float row_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 2));
}

/* What a tile's base does to the sums before it, and how its scores become t: t = fma(s, scale, origin). */
struct tile_view {
    bool moves; /* the same for the warp */
    float rescale[2];
    float scale[2];
    float origin[2];
};

/* Sets or moves the bases (NUM 6.4); s then holds t, limited. Rare but at the beginning of chunks. */
__device__ void move_bases(thread_rows &r, const float (&most)[2], float (&s)[64], tile_view &v)
{
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        const float x = row_max(most[row]);
        const float base = nbl_clamp_f32(nbl_ceil(x * r.scale[row]), -NBL_LOGIT_MAX, NBL_LOGIT_MAX);
        const float t = nbl_fma(x, r.scale[row], v.origin[row]);
        if (x > -INFINITY && !r.has_base[row]) {
            r.has_base[row] = true;
            r.base[row] = base;
        } else if (x > -INFINITY && t > LIMIT) {
            const float moved = fmaxf(r.base[row], base);
            v.rescale[row] = nbl_pow2f(r.base[row] - moved);
            r.base[row] = moved;
        }
        v.origin[row] = (0.0f - r.base[row]) + NBL_FLOAT_GRID;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            r.sums[row][i] *= v.rescale[row];
        }
    }
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        s[i] = fminf(nbl_fma(s[i], v.scale[i / 2 % 2], v.origin[i / 2 % 2]), LIMIT);
    }
    v.moves = true;
    v.scale[0] = v.scale[1] = 1.0f;
    v.origin[0] = v.origin[1] = 0.0f;
}

__device__ tile_view view_tile(thread_rows &r, int32_t start, float (&s)[64])
{
    tile_view v = {};
    float most[2] = {-INFINITY, -INFINITY};
    bool is_late = false;
    if (start < r.full_first || start + (int32_t)CUDA_TILE_TOKENS > r.full_end) {
        mask_scores(r, start, s);
    }
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        most[i / 2 % 2] = fmaxf(most[i / 2 % 2], s[i]);
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        v.rescale[row] = 1.0f;
        v.scale[row] = r.scale[row];
        v.origin[row] = (0.0f - r.base[row]) + NBL_FLOAT_GRID;
        is_late = is_late || (most[row] > -INFINITY &&
                              (!r.has_base[row] || nbl_fma(most[row], v.scale[row], v.origin[row]) > LIMIT));
    }
    if (__any_sync(FULL_WARP, is_late)) {
        move_bases(r, most, s, v);
    }
    return v;
}

/* 2^(t - GRID) in place of the scores (NUM 6.4). bf16 needs no limit: ex2 gives 0 below -126. */
template <bool FP16> __device__ void exponentiate(const tile_view &v, float (&s)[64])
{
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        const float u = nbl_fma(s[i], v.scale[i / 2 % 2], v.origin[i / 2 % 2]) - NBL_FLOAT_GRID;
        const float e = ptx_ex2(u);
        s[i] = FP16 && u < NBL_FLOAT_WEIGHT_MIN_FP16 ? 0.0f : e;
    }
}

/* P of the tile as the A operand of P V, and the sums. */
template <bool FP16> __device__ void round_weights(thread_rows &r, const float (&s)[64], uint32_t (&packed)[32])
{
#pragma unroll
    for (int i = 0; i < 64; i += 2) {
        const int row = i / 2 % 2, half = i / 4 % 2 * 2;
        const uint32_t word = FP16 ? ptx_f16x2(s[i], s[i + 1]) : ptx_bf16x2(s[i], s[i + 1]);
        packed[i / 2] = word;
        r.sums[row][half] += ptx_half_low(word, FP16);
        r.sums[row][half + 1] += ptx_half_high(word, FP16);
    }
}

/* ------------------------------------------------------------------------------------------------ products */

template <int D, bool FP16>
__device__ void begin_scores(float (&s)[64], const uint32_t (&q)[D / 4], const memory<D> &m, uint32_t slot)
{
#pragma unroll
    for (uint32_t group = 0; group < GROUPS; ++group) {
        const uint64_t b = wgmma_matrices(ptx_shared_address(&m.k[slot][group][0][0]), UNIT_BYTES, MATRIX_BYTES);
#pragma unroll
        for (uint32_t step = 0; step < D / 16; ++step) {
            wgmma_half_rs_32<FP16>(s + 16u * group, q + 4u * step, b + step * (2u * UNIT_BYTES >> 4), step != 0);
        }
    }
}

template <int D, bool FP16>
__device__ void begin_sums(float (&o)[D / 2], const uint32_t (&packed)[32], const memory<D> &m, uint32_t slot)
{
#pragma unroll
    for (uint32_t step = 0; step < CUDA_TILE_TOKENS / 16u; ++step) {
        const uint64_t b = wgmma_matrices(ptx_shared_address(&m.v[slot][step / 2u][0][0]), MATRIX_BYTES, UNIT_BYTES);
        wgmma_half_rs<FP16>(o, packed + 4u * step, b + step % 2u * (2u * MATRIX_BYTES >> 4));
    }
}

/* ------------------------------------------------------------------------------------------------ chunks */

/* State head of a row after the chunk (NUM 6.6, 5.6). */
__device__ nbl_state_head chunk_head(const thread_rows &r, int row)
{
    const float low = r.sums[row][0] + r.sums[row][2], high = r.sums[row][1] + r.sums[row][3];
    float sum = low + high;
    sum += __shfl_xor_sync(FULL_WARP, sum, 1);
    sum += __shfl_xor_sync(FULL_WARP, sum, 2);
    const nbl_state_head head = {r.base[row], sum, 0.0f, 0.0f};
    return sum == 0.0f ? nbl_state_empty(0.0f) : head;
}

/* Split: states of the chunk to the workspace. */
template <int N>
__device__ void store_states(const attend_params &p, const work &w, const thread_rows &r,
                             const nbl_state_head (&heads)[2], const float (&o)[N])
{
    const uint32_t t = threadIdx.x % 4u;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        if (r.index[row] == UINT32_MAX) {
            continue;
        }
        const bool is_empty = nbl_state_is_empty(&heads[row]);
        float *state = p.states + ((uint64_t)r.index[row] * p.chunks + w.chunk) * p.state_floats;
        if (t == 0) {
            *(float4 *)(void *)state =
                make_float4(heads[row].base, heads[row].sum, p.queries[r.index[row]].offset, 0.0f);
        }
#pragma unroll
        for (int i = 0; i < N / 4; ++i) {
            const uint32_t d = 8u * i + 2u * t;
            if (d < p.v_dim_padded) {
                *(float2 *)(void *)(state + CUDA_STATE_HEAD_FLOATS + d) =
                    is_empty ? make_float2(0.0f, 0.0f) : make_float2(o[4 * i + 2 * row], o[4 * i + 2 * row + 1]);
            }
        }
    }
}

/* Merges the chunk into the totals, O in o (NUM 5.6). */
template <int N, int D>
__device__ void merge_chunk(memory<D> &m, thread_rows &r, const nbl_state_head (&heads)[2], float (&o)[N])
{
    bool is_left_empty[2], is_right_empty[2];
    nbl_merge_scale scale[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        nbl_state_head left = {r.total_base[row], r.total_sum[row], 0.0f, 0.0f};
        is_left_empty[row] = nbl_state_is_empty(&left);
        is_right_empty[row] = nbl_state_is_empty(&heads[row]);
        scale[row] = nbl_merge_scale_of(left.base, heads[row].base);
        nbl_state_merge(&left, NULL, &heads[row], NULL, 0);
        r.total_base[row] = left.base;
        r.total_sum[row] = left.sum;
    }
    if (__all_sync(FULL_WARP, is_left_empty[0] && is_left_empty[1])) {
        return;
    }
#pragma unroll
    for (int k = 0; k < N / 4; ++k) {
        const float4 before = m.total[k][threadIdx.x];
        const float left[4] = {before.x, before.y, before.z, before.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = i / 2;
            const float merged =
                is_left_empty[row] ? o[4 * k + i] : nbl_merge_element(left[i], o[4 * k + i], scale[row]);
            o[4 * k + i] = is_right_empty[row] ? left[i] : merged;
        }
    }
}

/* Two elements side by side to O. */
__device__ void write_pair(const finish_target &to, uint32_t d, float low, float high)
{
    uint8_t *at = to.o + (int64_t)d * to.o_stride;
    if (d >= to.dim) { /* dimensions are multiples of 8 */
        return;
    }
    if (to.o_dtype != NBL_F32 && to.o_stride == 2 && ((uint64_t)at & 3u) == 0) {
        *(uint32_t *)(void *)at = to.o_dtype == NBL_BF16 ? ptx_bf16x2(low, high) : ptx_f16x2(low, high);
        return;
    }
    cuda_element_write(at, to.o_dtype, low);
    cuda_element_write(at + to.o_stride, to.o_dtype, high);
}

/* From the totals, O being in o, to O and LSE (NUM 5.7). */
template <int N> __device__ void finish(const attend_params &p, const thread_rows &r, const float (&o)[N])
{
    const uint32_t t = threadIdx.x % 4u;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        if (r.index[row] == UINT32_MAX) {
            continue;
        }
        const finish_target to = finish_target_of(&p, r.index[row] / p.q_heads, r.index[row] % p.q_heads);
        nbl_state_head head = {r.total_base[row], r.total_sum[row], p.queries[r.index[row]].offset, 0.0f};
        float factor = 1.0f, inverse = 1.0f; /* of O: for the sink, a power of two, and of the output */
        if (to.sink != NULL) {
            nbl_state_add_sink(&head, &factor, 1, *to.sink);
        }
        nbl_state_output(&head, &inverse, 1, 0);
        const bool is_empty = r.total_sum[row] == 0.0f || head.sum < 0x1p-126f;
        if (to.lse != NULL && t == 0) {
            *to.lse = nbl_state_lse(&head, to.lse_base2);
        }
        if (to.o != NULL) {
#pragma unroll
            for (int i = 0; i < N / 4; ++i) {
                const float low = is_empty ? 0.0f : o[4 * i + 2 * row] * factor * inverse;
                const float high = is_empty ? 0.0f : o[4 * i + 2 * row + 1] * factor * inverse;
                write_pair(to, 8u * i + 2u * t, low, high);
            }
        }
    }
}

template <int D>
__device__ void end_chunk(const attend_params &p, memory<D> &m, const work &w, bool item_ends, thread_rows &r,
                          float (&o)[D / 2])
{
    const float unit = NBL_P_SCALE * float16_scale(&p.pages, NBL_KIND_V, w.kv_head);
    const nbl_state_head heads[2] = {chunk_head(r, 0), chunk_head(r, 1)};
#pragma unroll
    for (int i = 0; i < D / 2; ++i) {
        o[i] = o[i] * unit + 0.0f;
    }
    if (p.split) {
        store_states(p, w, r, heads, o);
        return;
    }
    merge_chunk(m, r, heads, o);
    if (item_ends) {
        finish(p, r, o);
        return;
    }
#pragma unroll
    for (int k = 0; k < D / 8; ++k) {
        m.total[k][threadIdx.x] = make_float4(o[4 * k], o[4 * k + 1], o[4 * k + 2], o[4 * k + 3]);
    }
}

/* ------------------------------------------------------------------------------------------------ computing */

__device__ void release(uint64_t *empty)
{
    if (threadIdx.x % 32u == 0) {
        ptx_mbarrier_arrive(ptx_shared_address(empty));
    }
}

/* K or V of the n-th tile is there. */
template <uint32_t SLOTS> __device__ void wait_full(uint64_t (&full)[SLOTS], uint32_t n)
{
    ptx_mbarrier_wait(ptx_shared_address(&full[n % SLOTS]), n / SLOTS % 2u);
}

/* A tile inside a chunk: its scores and the P V of the tile before it, which keeps the tensor cores busy meanwhile. */
template <int D, bool FP16>
__device__ void do_tile(memory<D> &m, const work &w, uint32_t n, const uint32_t (&q)[D / 4], thread_rows &r,
                        float (&s)[64], float (&o)[D / 2], uint32_t (&packed)[32])
{
    wait_full(m.k_full, n);
    wgmma_fence();
    begin_scores<D, FP16>(s, q, m, n % K_SLOTS);
    wgmma_commit();
    wait_full(m.v_full, n - 1u);
    wgmma_fence();
    begin_sums<D, FP16>(o, packed, m, (n - 1u) % V_SLOTS);
    wgmma_commit();
    wgmma_wait<1>();
    wgmma_settle(s);
    release(&m.k_empty[n % K_SLOTS]);
    const tile_view v = view_tile(r, (int32_t)((w.tile_first + n) * CUDA_TILE_TOKENS), s);
    exponentiate<FP16>(v, s);
    wgmma_wait<0>();
    wgmma_settle(o);
    wgmma_settle(s);
    release(&m.v_empty[(n - 1u) % V_SLOTS]);
    if (v.moves) {
#pragma unroll
        for (int i = 0; i < D / 2; ++i) {
            o[i] *= v.rescale[i / 2 % 2];
        }
    }
    round_weights<FP16>(r, s, packed);
}

template <int D, bool FP16> __device__ void compute(const attend_params &p, memory<D> &m, const work &w)
{
    const uint32_t tiles = w.tile_end - w.tile_first;
    thread_rows r;
    float s[64], o[D / 2];
    uint32_t q[D / 4];
    begin_rows(p, w, r);
    load_queries<D>(p, r, q);
    if (tiles == 0) {
        begin_chunk(r, o);
        end_chunk(p, m, w, true, r, o);
        return;
    }
    wait_full(m.k_full, 0);
    wgmma_fence();
    begin_scores<D, FP16>(s, q, m, 0);
    wgmma_commit();
    wgmma_wait<0>();
    for (uint32_t n = 0; n < tiles;) { /* chunks */
        const uint32_t tile = w.tile_first + n;
        const uint32_t end = min(n + CUDA_CHUNK_TILES - tile % CUDA_CHUNK_TILES, tiles);
        uint32_t packed[32];
        wgmma_settle(s);
        release(&m.k_empty[n % K_SLOTS]);
        begin_chunk(r, o);
        const tile_view first = view_tile(r, (int32_t)(tile * CUDA_TILE_TOKENS), s);
        exponentiate<FP16>(first, s);
        round_weights<FP16>(r, s, packed);
        for (++n; n < end; ++n) {
            do_tile<D, FP16>(m, w, n, q, r, s, o, packed);
        }
        if (n < tiles) { /* else the scores that follow are of no use, and of no harm */
            wait_full(m.k_full, n);
        }
        wait_full(m.v_full, n - 1u);
        wgmma_fence();
        begin_scores<D, FP16>(s, q, m, n % K_SLOTS);
        begin_sums<D, FP16>(o, packed, m, (n - 1u) % V_SLOTS);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_settle(o);
        release(&m.v_empty[(n - 1u) % V_SLOTS]);
        end_chunk(p, m, w, n == tiles, r, o);
    }
}

#endif

/* ------------------------------------------------------------------------------------------------ kernel */

template <int D, bool FP16>
__global__ void __launch_bounds__(THREADS, 1)
    float_wgmma_kernel(const __grid_constant__ attend_params p, uint32_t blocks)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(128) uint8_t dynamic[];
    memory<D> &m = *reinterpret_cast<memory<D> *>(dynamic);
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < K_SLOTS; ++i) {
            ptx_mbarrier_init(ptx_shared_address(&m.k_full[i]), 1);
            ptx_mbarrier_init(ptx_shared_address(&m.k_empty[i]), CONSUMER_WARPS);
        }
        for (uint32_t i = 0; i < V_SLOTS; ++i) {
            ptx_mbarrier_init(ptx_shared_address(&m.v_full[i]), 1);
            ptx_mbarrier_init(ptx_shared_address(&m.v_empty[i]), CONSUMER_WARPS);
        }
        ptx_fence_mbarrier_init();
    }
    if (p.k_dim_padded < D || p.v_dim_padded < D) { /* units that no copy writes */
        uint4 *slots = &m.k[0][0][0][0];            /* K and V lie one after the other */
        for (uint32_t i = threadIdx.x; i < (K_SLOTS + V_SLOTS) * (D / UNIT) * CUDA_TILE_TOKENS; i += THREADS) {
            slots[i] = make_uint4(0, 0, 0, 0);
        }
        ptx_fence_proxy_async();
    }
    __syncthreads();
    ptx_grid_wait();
    work w;
    if (!find_work(p, blocks, &w)) {
        return;
    }
    if (threadIdx.x < CONSUMERS) {
        wgmma_registers_more<CONSUMER_REGISTERS>();
        compute<D, FP16>(p, m, w);
        return;
    }
    wgmma_registers_fewer<LOADER_REGISTERS>();
    if (threadIdx.x < CONSUMERS + 64u) {
        load_tiles(p, m, w, threadIdx.x < CONSUMERS + 32u ? (uint32_t)NBL_KIND_K : (uint32_t)NBL_KIND_V);
    }
#endif
}

template <int D, bool FP16> cudaError_t launch(const attend_params *p, cudaStream_t stream)
{
    const uint32_t blocks = (uint32_t)(((uint64_t)p->q_len_max * p->group_rows + ROWS - 1u) / ROWS);
    const uint64_t items = (uint64_t)p->batch * p->kv_heads * blocks * (p->split ? p->chunks : 1u);
    if (items == 0) {
        return cudaSuccess;
    }
    if (items > INT32_MAX) {
        return cudaErrorInvalidConfiguration;
    }
    cudaError_t error = cudaFuncSetAttribute(float_wgmma_kernel<D, FP16>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             (int)sizeof(memory<D>));
    if (error != cudaSuccess) {
        return error;
    }
    return launch_after(float_wgmma_kernel<D, FP16>, dim3((uint32_t)items), THREADS, sizeof(memory<D>), stream, p,
                        blocks);
}

template <int D> cudaError_t launch_type(const attend_params *p, cudaStream_t stream)
{
    return p->k_fp16 ? launch<D, true>(p, stream) : launch<D, false>(p, stream);
}

} // namespace

extern "C" int nbl_cuda_float_wgmma_supports(const attend_params *p)
{
    const uint32_t run = p->pages.page_tokens & (0u - p->pages.page_tokens);
    int is_halves = p->k_fp16 == p->v_fp16;
    for (uint32_t i = 0; i < p->pages.region_count; ++i) {
        is_halves = is_halves && nbl_layout_code_bits(p->pages.regions[i].k_format) == 16u &&
                    nbl_layout_code_bits(p->pages.regions[i].v_format) == 16u;
    }
    return p->capability / 10u == 9u && is_halves && cuda_prefill_dim(p->k_dim, p->v_dim) != 0 &&
           (uint64_t)p->q_len_max * p->group_rows >= ROWS_MIN && run >= RUN_TOKENS_MIN && p->cap == 0.0f &&
           p->alibi_slopes == NULL && p->tree_mask == NULL && p->v_hadamard == 0 &&
           (p->split || p->state_head.data == NULL) && sizeof(memory<128>) <= p->shared_bytes;
}

extern "C" cudaError_t nbl_cuda_attend_float_wgmma(const attend_params *p, cudaStream_t stream)
{
    return cuda_prefill_dim(p->k_dim, p->v_dim) == 64u ? launch_type<64>(p, stream) : launch_type<128>(p, stream);
}
