/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file decode_short.cu
 * @brief attend for few query rows over a short cache, in one kernel: four warps per 128-token tile, a cluster of up to
 * eight blocks per (sequence, kv head).
 *
 * What counts here is latency, not bytes. The tiles of a chunk depend on each other by the base B alone (NUM 5.4), and
 * that takes their largest logits only; the sums of a tile are exact integers. So all tiles are worked on at once:
 *
 *     checks, page id      a warp for its 32 tokens; K, V and scales asked for
 *     queries              while those are on their way, in every block anew
 *     Q K                  logits of the tile to shared memory, the largest of each row and group to all blocks of the
 *                          chunk
 *     softmax              a row by 16 lanes: base, weights, l; P to shared memory
 *     P V                  a warp for its 32 tokens, integer sums added up in shared memory, then to the row's block
 *     combine              a row by a warp: tiles and chunks in order, sink, output
 *
 * Blocks send each other what they need (st.async), and wait for the bytes that they expect. A barrier of the cluster
 * that orders memory would take 0.3 us each time.
 *
 * Base: tile k moves it only if its largest logit z is at least B + 32, for z rounds what t rounds less than that. So B
 * is that of the chunk's first tile unless such a tile comes; then the blocks of the chunk read each other's logits and
 * compute t of those tiles again.
 *
 * Nothing goes through the workspace. A warp by itself executes an instruction in about five cycles, so instructions in
 * a row are what takes time, not bytes; docs/performance.md has the cycles of each step.
 */
#include "../tile/decode_keys.cuh"
#include "../tile/decode_load.cuh"
#include "../tile/decode_scales.cuh"
#include "../tile/decode_shape.cuh"
#include "../tile/decode_softmax.cuh"
#include "../tile/decode_values.cuh"
#include "../tile/finish_warp.cuh"
#include "../tile/launch.cuh"
#include "../tile/sequence_check.cuh"
#include "../tile/stored.cuh"
#include "rowsum.h"

namespace
{

constexpr uint32_t CLUSTER_MAX = 8;
constexpr uint32_t TILES_PER_PROCESSOR = 8; /* beyond that the decode kernel is faster */
constexpr uint32_t TILES_BESIDE_TEAMS = 5;  /* the same where decode_team.cu takes the call; with up to four rows, */
constexpr uint32_t TILES_BESIDE_WIDE_TEAMS = 3; /* with more */
constexpr uint32_t ROWS_MAX = 8;                /* of a kv head of a sequence */
constexpr uint32_t TILE_WARPS = GROUPS;
constexpr uint32_t TILE_THREADS = 32u * TILE_WARPS;

/* Tiles of a block at most: sixteen warps of 128 registers, or eight of 255. */
template <int D, int RPL> struct most {
    static constexpr uint32_t tiles = RPL == 1 && D <= 128 ? 4 : 2;
};

/* A row of a tile, for those who combine. */
struct alignas(16) tile_row {
    float b;       /* 0 if the tile adds nothing */
    float sum;     /* l */
    float base;    /* B of the chunk once the tile is in; -inf if the row sees none of its tokens */
    float rescale; /* of what came before, negative if the tile's block found a bad page */
};

/* A tile in shared memory; codes come after it, but for those of K where all are 4-bit: they lie in the ring. */
template <int D, int RPL> struct alignas(128) tile_memory : warp_memory<D, RPL> {
    static constexpr uint32_t rows = 4u * RPL;
    static_assert(sizeof(warp_memory<D, RPL>::ring) >= GROUPS * GROUP * D / 2u, "K fits");
    float logit[rows][CUDA_TILE_TOKENS]; /* float(I) * 2^ek */
    uint8_t weight[rows][CUDA_TILE_TOKENS];
    int32_t sums[rows][D + 16]; /* A; a row more than D apart for the banks */
};

/* How the blocks of a call are laid out. */
struct short_plan {
    uint32_t blocks;     /* of a cluster */
    uint32_t tiles_log2; /* of a block */
    uint32_t stride;     /* bytes from tile to tile */
    uint32_t at[2];      /* codes of K and V from the beginning of their tile */
    uint32_t group[2];   /* bytes of a group of K, of V */
    uint32_t sums_at;    /* sums of all tiles for the rows that the block combines, [local row][tile][D] */
    uint32_t page_magic; /* n / page_tokens is the high word of n * page_magic, up to SHORT_TOKENS */
};

/* The tiles of a block. */
template <int D, int RPL> struct tile_array {
    uint8_t *first;
    uint32_t stride;
    __device__ __forceinline__ tile_memory<D, RPL> &operator[](uint32_t i) const
    {
        return *reinterpret_cast<tile_memory<D, RPL> *>(first + i * stride);
    }
};

/* A block's share of the query rows, all of them. */
struct row_memory {
    float scale[ROWS_MAX];
    float offset[ROWS_MAX];
    int32_t bias[ROWS_MAX];
};

enum { MOST, SUMS, TURNS, BARRIERS };

/* What a block has besides its tiles: at the same place in all of them, for what they send each other. Where what was
 * sent is counted there are barriers:
 *     MOST     `largest` of all tiles of the chunk
 *     SUMS     `row` and the sums of the rows that this block combines
 *     TURNS    blocks of the chunk that have written their logits; then, that have read those of others */
template <int D, int RPL> struct alignas(128) block_memory {
    static constexpr uint32_t rows = 4u * RPL;
    row_memory query;
    uint64_t barrier[BARRIERS];
    float largest[CUDA_CHUNK_TILES][GROUPS][rows];   /* z of a tile's group */
    tile_row row[CLUSTER_MAX * most<D, RPL>::tiles]; /* [local row][tile] */
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900 /* clusters */

constexpr uint32_t AT_ONCE = 4;                /* tiles of a row that are read together */
constexpr uint32_t CLASSES = NBL_PARTIAL_SUMS; /* lanes of a row in the softmax; a lane has tokens j mod 16 */
constexpr uint32_t CLASS_TOKENS = CUDA_TILE_TOKENS / CLASSES;

/* A warp's place and its sequence. */
struct place {
    uint32_t sequence;
    uint32_t kv_head;
    uint32_t rank;       /* of the block */
    uint32_t blocks;     /* of the cluster */
    uint32_t tiles_log2; /* of a block */
    uint32_t local;      /* the warp's tile in the block, */
    uint32_t tile;       /* in the sequence */
    uint32_t group;
    int32_t q_first;
    int32_t q_len;
    int32_t kv_len;
    uint32_t rows;
    uint32_t start; /* first token of the warp's group */
    int64_t center; /* row of the centres, or -1 */
};

/* Block of a tile of the sequence, and place in it. */
PTX_FN uint32_t block_of(const place &w, uint32_t tile)
{
    return tile >> w.tiles_log2;
}

PTX_FN uint32_t local_of(const place &w, uint32_t tile)
{
    return tile & ((1u << w.tiles_log2) - 1u);
}

/* Query token of a row, counted from the sequence's first; mostly there is one. */
PTX_FN uint32_t token_of(const attend_params &p, const place &w, uint32_t row)
{
    return w.q_len == 1 ? 0u : row / p.group_rows;
}

PTX_FN uint32_t head_of(const attend_params &p, const place &w, uint32_t row)
{
    return w.kv_head * p.group_rows + row - token_of(p, w, row) * p.group_rows;
}

/* Blocks of a chunk. */
PTX_FN uint32_t chunk_blocks(const place &w)
{
    return min(w.blocks, CUDA_CHUNK_TILES >> w.tiles_log2);
}

/* The first block of the warp's chunk. */
PTX_FN uint32_t chunk_first(const place &w)
{
    return block_of(w, w.tile / CUDA_CHUNK_TILES * CUDA_CHUNK_TILES);
}

/* Rows go round the blocks that combine them. Those of the warp's block: */
PTX_FN uint32_t rows_here(const place &w)
{
    return (w.rows + w.blocks - 1u - w.rank) / w.blocks;
}

/* Place of a row and tile among the rows that a block combines. */
PTX_FN uint32_t sent_index(const place &w, uint32_t row, uint32_t tile)
{
    return row / w.blocks * (w.blocks << w.tiles_log2) + tile;
}

/* What a row sees; nothing if there is no such row. */
PTX_FN visible_range range_of(const attend_params &p, const place &w, uint32_t row)
{
    visible_range none = {0, 0};
    return row < w.rows ? visible_range_of(p, w.kv_len, (int64_t)w.kv_len - w.q_len + token_of(p, w, row)) : none;
}

/* ---------------------------------------------------------------------------------------------- loading */

/* Where the codes of one kind of the warp's group lie. */
template <int D, int RPL>
PTX_FN const uint8_t *codes_at(const short_plan &plan, const tile_memory<D, RPL> &m, const place &w, uint32_t kind)
{
    return &m.ring[0][0] + plan.at[kind] + w.group * plan.group[kind];
}

/* Codes of one kind of the warp's group. */
template <int D> PTX_FN void ask_codes(uint32_t to, uint64_t from, uint32_t kind, uint32_t format, uint32_t lane)
{
    const plain_copies copies;
    from += lane * 16u;
    if (format != NBL_INT8) {
        ask_4bit<D>(copies, kind == 1u, to + (kind == 0 ? place_of<128u>(lane) : place_of<2u * D>(lane)), from);
    } else if (kind == 0) {
        ask_int8<D, 128u>(copies, to + place_of<128u>(lane), from);
    } else {
        ask_int8<D, 4u * D>(copies, to + place_of<4u * D>(lane), from);
    }
}

/* Scale planes of one kind of the warp's group, 16 tokens a lane. */
template <int D>
PTX_FN void ask_scales(uint32_t to, uint64_t from, uint32_t planes, uint32_t page_tokens, uint32_t lane)
{
    static_assert(2 * SCALE_PLANES(D) <= 32, "a lane for half a plane");
    const uint32_t plane = lane / 2u, half = lane % 2u * 16u;
    if (plane < planes) {
        ptx_cp_async_16(to + plane * CUDA_TILE_TOKENS + half,
                        (const void *)(from + (uint64_t)plane * page_tokens + half));
    }
}

/* Asks for the warp's group in two steps: K and all scales, then V. */
template <int D, int RPL>
PTX_FN void ask_group(const attend_params &p, const short_plan &plan, const place &w, tile_memory<D, RPL> &m,
                      const cuda_region &r, uint32_t page, uint32_t lane)
{
    const uint32_t offset = w.start - __umulhi(w.start, plan.page_magic) * p.pages.page_tokens;
    const uint64_t index = page - r.first_page;
    const uint64_t codes = (uint64_t)r.codes + index * r.code_page_stride;
    const uint64_t scales = (uint64_t)r.scales + index * r.scale_page_stride + offset;
    const uint32_t first = w.group * GROUP;
    ask_scales<D>(ptx_shared_address(&m.raw[0][0][first]), scales + (uint64_t)w.kv_head * r.k_scale_head_bytes,
                  planes_of<D>(r.k_format), p.pages.page_tokens, lane);
    ask_scales<D>(ptx_shared_address(&m.raw[1][0][first]),
                  scales + r.v_scale_offset + (uint64_t)w.kv_head * r.v_scale_head_bytes, planes_of<D>(r.v_format),
                  p.pages.page_tokens, lane);
    ask_codes<D>(ptx_shared_address(codes_at(plan, m, w, 0)),
                 codes + (uint64_t)w.kv_head * r.k_code_head_bytes + offset * (r.k_format == NBL_INT8 ? D : D / 2u), 0,
                 r.k_format, lane);
    ptx_cp_async_commit();
    ask_codes<D>(ptx_shared_address(codes_at(plan, m, w, 1)),
                 codes + r.v_code_offset + (uint64_t)w.kv_head * r.v_code_head_bytes +
                     offset * (r.v_format == NBL_INT8 ? D : D / 2u),
                 1, r.v_format, lane);
    ptx_cp_async_commit();
}

/* ---------------------------------------------------------------------------------------------- queries */

PTX_FN query_source source_of(const attend_params &p, const place &w, uint32_t row)
{
    const bool is_there = row < w.rows;
    const uint32_t place = is_there ? row : 0u;
    return {w.sequence,           w.kv_len,  (uint32_t)w.q_first + token_of(p, w, place),
            head_of(p, w, place), w.kv_head, is_there};
}

/* Canonical rows to every tile of the block, a warp for each. `raw` is what the warp's first row holds, asked for
 * before K and V, behind which it would have to wait. */
template <int D, int RPL>
PTX_FN void make_queries(const attend_params &p, const place &w, row_memory &rows, const tile_array<D, RPL> &tiles,
                         uint32_t warp, uint32_t lane, query_raw<D / 32> &raw)
{
    constexpr int E = D / 32;
#pragma unroll 1
    for (uint32_t row = warp; row < 4u * RPL; row += TILE_WARPS << w.tiles_log2) {
        const query_source at = source_of(p, w, row);
        if (row != warp) {
            raw = query_warp_read<E>(p, at, lane);
            query_warp_read_center(p, at, w.center, lane, raw);
        }
        const warp_query<E> q = query_warp_make(p, at, raw, lane);
        const bool is_there = at.is_there;
        for (uint32_t i = 0; i < 1u << w.tiles_log2; ++i) {
            query_warp_store(q, row, lane, &tiles[i].q[0][0], 16u * RPL);
        }
        if (lane == 0) {
            rows.scale[row] = is_there ? q.scale : 0.0f;
            rows.offset[row] = q.offset;
            rows.bias[row] = q.bias;
        }
    }
}

/* ---------------------------------------------------------------------------------------------- products */

/* Sends the largest z of a row in the warp's group to all blocks of its chunk, a lane of the row for each. */
template <int D, int RPL>
PTX_FN void send_most(const place &w, const block_memory<D, RPL> &block, uint32_t row, float most, uint32_t g)
{
    if (g < chunk_blocks(w)) {
        const uint32_t rank = chunk_first(w) + g;
        const float *to = &block.largest[w.tile % CUDA_CHUNK_TILES][w.group][row];
        ptx_cluster_send_4(ptx_cluster_map(ptx_shared_address(to), rank), nbl_bits_of(most),
                           ptx_cluster_map(ptx_shared_address(&block.barrier[MOST]), rank));
    }
}

/* Logits of the warp's 32 tokens, and the largest z of each row. Tokens that no one sees may hold anything. */
template <int D, int RPL>
PTX_FN void make_logits(const attend_params &p, const place &w, const block_memory<D, RPL> &block,
                        tile_memory<D, RPL> &m, const uint8_t *codes, const cuda_region &r, uint32_t lane)
{
    const row_memory &rows = block.query;
    const uint32_t g = lane / 4u, t = lane % 4u, first = w.group * GROUP;
    const uint32_t quad = w.group * (GROUP / 4u) + lane % (GROUP / 4u);
    prepare_scales<D, RPL>(m, r.k_format, r.v_format, w.kv_len - (int32_t)(w.tile * CUDA_TILE_TOKENS + 4u * quad),
                           quad);
    const int32_t first_start = k_start(rows.bias[lane_row<RPL>(t, 0)]);
    const int32_t last_start = k_start(rows.bias[lane_row<RPL>(t, RPL - 1)]);
    const int32_t start[4] = {first_start, last_start, first_start, last_start};
    float x[2][4];
    k_group<D, RPL>(m, codes, r.k_format, w.group, lane, start, x);
#pragma unroll
    for (int i = 0; i < RPL; ++i) {
        const uint32_t row = lane_row<RPL>(t, i);
        const visible_range range = range_of(p, w, row);
        float most = -INFINITY;
#pragma unroll
        for (uint32_t half = 0; half < 2u; ++half) {
            const uint32_t token = first + 16u * half + 2u * g;
            const int32_t position = (int32_t)(w.tile * CUDA_TILE_TOKENS + token);
            const float2 scale = read_k_scales(&m.k_exponent[first + 16u * half], g);
            const float x0 = x[half][i] * scale.x, x1 = x[half][2 + i] * scale.y;
            *reinterpret_cast<float2 *>(&m.logit[row][token]) = make_float2(x0, x1);
            const float z0 = nbl_fma(x0, rows.scale[row], m.v_grid[token] - NBL_GRID);
            const float z1 = nbl_fma(x1, rows.scale[row], m.v_grid[token + 1u] - NBL_GRID);
            most = position >= range.first && position < range.end ? fmaxf(most, z0) : most;
            most = position + 1 >= range.first && position + 1 < range.end ? fmaxf(most, z1) : most;
        }
        send_most(w, block, row, column_max(most), g);
    }
}

/* P V of the warp's 32 tokens. */
template <int D, int RPL>
PTX_FN void add_values(const place &w, tile_memory<D, RPL> &m, const uint8_t *codes, uint32_t format, uint32_t lane)
{
    const uint32_t g = lane / 4u, t = lane % 4u;
    const uint8_t *from = &m.weight[RPL == 1 ? g / 2u : g][w.group * GROUP + 4u * t];
    const uint32_t weights[2] = {*reinterpret_cast<const uint32_t *>(from),
                                 *reinterpret_cast<const uint32_t *>(from + 16)};
    int32_t acc[RPL][D / 16][4] = {};
    v_group<D, RPL>(m, codes, format, w.group, lane, weights, 0xf0f0f0f0u, acc);
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
#pragma unroll
            for (int i = 0; i < RPL; ++i) {
                atomicAdd(&m.sums[lane_row<RPL>(t, i)][16 * n + 2 * g + e], value_sum<RPL>(acc, n, e, i));
            }
        }
    }
}

/* Sends a tile's sums to the blocks that combine the rows; its four warps call it. */
template <int D, int RPL>
PTX_FN void send_sums(const place &w, const block_memory<D, RPL> &block, const short_plan &plan,
                      const tile_memory<D, RPL> &m, uint32_t lane)
{
    const uint32_t sums = ptx_shared_address(&block) + plan.sums_at;
#pragma unroll 1
    for (uint32_t i = 4u * (32u * w.group + lane); i < w.rows * D; i += 4u * TILE_THREADS) {
        const uint32_t row = i / D, d = i % D, rank = row % w.blocks;
        const uint32_t to = sums + 4u * (sent_index(w, row, w.tile) * D + d);
        ptx_cluster_send_16(ptx_cluster_map(to, rank), *reinterpret_cast<const uint4 *>(&m.sums[row][d]),
                            ptx_cluster_map(ptx_shared_address(&block.barrier[SUMS]), rank));
    }
}

/* ---------------------------------------------------------------------------------------------- softmax */

/* Largest over the lanes of a row. */
PTX_FN float row_max(float x)
{
#pragma unroll
    for (int distance = 1; distance < (int)CLASSES; distance *= 2) {
        x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, distance));
    }
    return x;
}

/* tree(s) of NUM 5.4; lane r of a row has s_r. */
PTX_FN float row_tree(float s)
{
    s = s + __shfl_xor_sync(FULL_WARP, s, 8);
    s = s + __shfl_xor_sync(FULL_WARP, s, 1);
    s = s + __shfl_xor_sync(FULL_WARP, s, 2);
    return s + __shfl_xor_sync(FULL_WARP, s, 4);
}

/* What a lane needs of a tile for one row: its eight tokens, 16 apart. */
struct class_tokens {
    float x[CLASS_TOKENS];
    float grid[CLASS_TOKENS]; /* ev + NBL_GRID */
    uint32_t visible;         /* bit n */
};

/* t of the lane's tokens, -inf where not visible; the largest of the row. */
PTX_FN float class_logits(const class_tokens &c, float scale, float base, float (&t)[CLASS_TOKENS])
{
    float most = -INFINITY;
#pragma unroll
    for (uint32_t n = 0; n < CLASS_TOKENS; ++n) {
        t[n] = c.visible >> n & 1u ? nbl_fma(c.x[n], scale, c.grid[n] - base) : -INFINITY;
        most = fmaxf(most, t[n]);
    }
    return row_max(most);
}

/* Bits of the lane's tokens that the row sees; the first of them is at `position`. */
PTX_FN uint32_t class_visible(const visible_range &range, int32_t position)
{
    uint32_t visible = 0;
#pragma unroll
    for (uint32_t n = 0; n < CLASS_TOKENS; ++n) {
        const int32_t at = position + (int32_t)(CLASSES * n);
        visible |= (uint32_t)(at >= range.first && at < range.end) << n;
    }
    return visible;
}

/* Reads them from the warp's own tile. */
template <int D, int RPL>
PTX_FN void read_class(const place &w, const tile_memory<D, RPL> &m, uint32_t row, uint32_t j,
                       const visible_range &range, class_tokens &c)
{
    c.visible = class_visible(range, (int32_t)(w.tile * CUDA_TILE_TOKENS + j));
#pragma unroll
    for (uint32_t n = 0; n < CLASS_TOKENS; ++n) {
        c.x[n] = m.logit[row][CLASSES * n + j];
        c.grid[n] = m.v_grid[CLASSES * n + j];
    }
}

/* The same from any tile of the cluster; `tile` is its place in the sequence. */
template <int D, int RPL>
PTX_FN void read_class_of(const place &w, const tile_array<D, RPL> &tiles, uint32_t tile, uint32_t row, uint32_t j,
                          const visible_range &range, class_tokens &c)
{
    const tile_memory<D, RPL> &m = tiles[local_of(w, tile)];
    const uint32_t x = ptx_cluster_map(ptx_shared_address(&m.logit[row][j]), block_of(w, tile));
    const uint32_t grid = ptx_cluster_map(ptx_shared_address(&m.v_grid[j]), block_of(w, tile));
    c.visible = class_visible(range, (int32_t)(tile * CUDA_TILE_TOKENS + j));
#pragma unroll
    for (uint32_t n = 0; n < CLASS_TOKENS; ++n) {
        c.x[n] = nbl_float_of(ptx_cluster_load_4(x + 4u * CLASSES * n));
        c.grid[n] = nbl_float_of(ptx_cluster_load_4(grid + 4u * CLASSES * n));
    }
}

/* Largest z of a row in tile j % 8 of the chunk. */
template <int D, int RPL>
PTX_FN float chunk_most(const place &w, const block_memory<D, RPL> &block, uint32_t row, uint32_t j)
{
    const uint32_t tile = w.tile / CUDA_CHUNK_TILES * CUDA_CHUNK_TILES + j % CUDA_CHUNK_TILES;
    if (tile >= (w.blocks << w.tiles_log2)) {
        return -INFINITY;
    }
    float most = -INFINITY;
#pragma unroll
    for (uint32_t group = 0; group < GROUPS; ++group) {
        most = fmaxf(most, block.largest[j % CUDA_CHUNK_TILES][group][row]);
    }
    return most;
}

/* Base of the row before the warp's tile (NUM 5.4), where a tile before it may move it: one after the other. */
template <int D, int RPL>
PTX_FN float base_by_tiles(const place &w, const tile_array<D, RPL> &tiles, uint32_t row, uint32_t lane, float scale,
                           const visible_range &range, float z)
{
    const uint32_t index = w.tile % CUDA_CHUNK_TILES, row_lane = lane & CLASSES;
    float base = -INFINITY;
#pragma unroll 1
    for (uint32_t k = 0; k < index; ++k) {
        const float largest = __shfl_sync(FULL_WARP, z, row_lane | k);
        const bool is_first = base == -INFINITY;
        const bool may_move = !is_first && largest >= base + NBL_REBASE;
        if (__any_sync(FULL_WARP, may_move)) {
            class_tokens c;
            float t[CLASS_TOKENS];
            read_class_of(w, tiles, w.tile - index + k, row, lane % CLASSES, range, c);
            const bool moves = class_logits(c, scale, base, t) > NBL_GRID + NBL_REBASE;
            base = may_move && moves ? fmaxf(base, base_from(largest)) : base;
        }
        base = is_first && largest > -INFINITY ? base_from(largest) : base;
    }
    return base;
}

/* Says to the blocks of the chunk that this one is as far; ptx_cluster_mbarrier_wait says that all are. All threads of
 * the block call it. */
template <int D, int RPL> PTX_FN void take_turn(const place &w, const block_memory<D, RPL> &block)
{
    __syncthreads();
    if (threadIdx.x < chunk_blocks(w)) {
        ptx_cluster_mbarrier_arrive(
            ptx_cluster_map(ptx_shared_address(&block.barrier[TURNS]), chunk_first(w) + threadIdx.x));
    }
}

/* Weights and row total of the tile, given its largest t; 16 lanes for the row. */
PTX_FN float class_weights(const class_tokens &c, const float (&t)[CLASS_TOKENS], float most, bool writes,
                           uint8_t *weights)
{
    float sum = 0.0f;
#pragma unroll
    for (uint32_t n = 0; n < CLASS_TOKENS; ++n) {
        const bool counts = c.visible >> n & 1u;
        const float p = counts ? ptx_ex2(t[n] - most) : 0.0f; /* 0 below 2^-126 */
        const float q = nbl_float_of(ptx_cvt_bf16x2(0.0f, p) << 16);
        sum = counts ? nbl_fma(q, weight_of(c.grid[n]), sum) : sum;
        if (writes) {
            weights[CLASSES * n] = (uint8_t)nbl_bits_of(nbl_fma(p, NBL_P_SCALE, NBL_MAGIC));
        }
    }
    return row_tree(sum);
}

/* Sends what a row is in the warp's tile to the block that combines it. */
template <int D, int RPL>
PTX_FN void send_row(const place &w, const block_memory<D, RPL> &block, uint32_t row, const tile_row &x)
{
    const uint32_t rank = row % w.blocks;
    ptx_cluster_send_16(ptx_cluster_map(ptx_shared_address(&block.row[sent_index(w, row, w.tile)]), rank),
                        make_uint4(nbl_bits_of(x.b), nbl_bits_of(x.sum), nbl_bits_of(x.base), nbl_bits_of(x.rescale)),
                        ptx_cluster_map(ptx_shared_address(&block.barrier[SUMS]), rank));
}

/* Softmax of the warp's rows in its tile. With four rows a tile both halves of the warp do the same one. True if some
 * tile of the chunk may move a base, which its blocks find alike: then they read each other's logits. */
template <int D, int RPL>
PTX_FN bool softmax(const attend_params &p, const place &w, const block_memory<D, RPL> &block,
                    const tile_array<D, RPL> &tiles, bool good, uint32_t lane)
{
    const uint32_t j = lane % CLASSES, row_lane = lane & CLASSES, index = w.tile % CUDA_CHUNK_TILES;
    const uint32_t row = RPL == 1 ? w.group : RPL * w.group + lane / CLASSES;
    const visible_range range = range_of(p, w, row);
    const float scale = block.query.scale[row];
    tile_memory<D, RPL> &m = tiles[w.local];
    class_tokens c;
    float t[CLASS_TOKENS];
    ptx_cluster_mbarrier_wait(ptx_shared_address(&block.barrier[MOST]), 0);
    const float z = chunk_most(w, block, row, j);
    const uint32_t take_part = __ballot_sync(FULL_WARP, z > -INFINITY) >> row_lane & 0xffu;
    const uint32_t first = take_part != 0 ? (uint32_t)__ffs((int)take_part) - 1u : CUDA_CHUNK_TILES;
    const float first_base = base_from(__shfl_sync(FULL_WARP, z, row_lane | first % CUDA_CHUNK_TILES));
    const float largest = __shfl_sync(FULL_WARP, z, row_lane | index);
    const bool may_move = __syncthreads_or(z > -INFINITY && z >= first_base + NBL_REBASE) != 0;
    float before = first < index ? first_base : -INFINITY;
    read_class(w, m, row, j, range, c);
    if (may_move) {
        take_turn(w, block);
        ptx_cluster_mbarrier_wait(ptx_shared_address(&block.barrier[TURNS]), 0);
        before = base_by_tiles(w, tiles, row, lane, scale, range, z);
        take_turn(w, block);
    }
    float base = before > -INFINITY || largest == -INFINITY ? before : base_from(largest);
    float most = class_logits(c, scale, base, t);
    if (may_move) {
        const bool moves = most > NBL_GRID + NBL_REBASE;
        base = moves ? fmaxf(base, base_from(largest)) : base;
        most = class_logits(c, scale, base, t);
#pragma unroll
        for (uint32_t n = 0; n < CLASS_TOKENS; ++n) {
            t[n] = moves ? fminf(t[n], NBL_GRID + NBL_REBASE) : t[n];
        }
        most = moves ? fminf(most, NBL_GRID + NBL_REBASE) : most;
    }
    const bool writes = RPL == 2 || lane < CLASSES;
    const float sum = class_weights(c, t, most, writes, &m.weight[row][j]);
    if (writes && j == 0 && row < w.rows) {
        const bool takes_part = largest > -INFINITY;
        tile_row out;
        out.b = takes_part && most - NBL_GRID >= NBL_WEIGHT_MIN ? nbl_grid_base(most - NBL_GRID) : 0.0f;
        out.sum = sum;
        out.base = takes_part ? base : -INFINITY;
        out.rescale = takes_part && before > -INFINITY ? nbl_pow2f(before - base) : 1.0f;
        out.rescale = good ? out.rescale : -1.0f;
        send_row(w, block, row, out);
    }
    return may_move;
}

/* ---------------------------------------------------------------------------------------------- combining */

/* Of AT_ONCE tiles of a row, those of the row and the lane's sums. */
template <int E> struct sent_tiles {
    float4 row[AT_ONCE];
    int32_t a[AT_ONCE][E];
};

/* Reads them, from the first-th on; those that are not there repeat the last one. */
template <int E>
PTX_FN void read_tiles(const tile_row *rows, const int32_t *sums, uint32_t first, uint32_t tiles, uint32_t lane,
                       sent_tiles<E> &out)
{
#pragma unroll
    for (uint32_t k = 0; k < AT_ONCE; ++k) {
        const uint32_t tile = min(first + k, tiles - 1u);
        const int32_t *from = sums + tile * (32u * E) + E * lane;
        out.row[k] = *reinterpret_cast<const float4 *>(&rows[tile]);
#pragma unroll
        for (int i = 0; i < E; i += 2) {
            const int2 two = *reinterpret_cast<const int2 *>(from + i);
            out.a[k][i] = two.x, out.a[k][i + 1] = two.y;
        }
    }
}

/* Adds the first `count` of them in order (NUM 5.4); false if a block has found a bad page. */
template <int E> PTX_FN bool combine_tiles(const sent_tiles<E> &in, uint32_t count, row_total<E> &chunk)
{
    bool good = true;
#pragma unroll
    for (uint32_t k = 0; k < AT_ONCE; ++k) {
        const float b = k < count ? in.row[k].x : 0.0f, rescale = k < count ? in.row[k].w : 1.0f;
        good = good && rescale >= 0.0f;
        chunk.head.base = k < count && in.row[k].z > -INFINITY ? in.row[k].z : chunk.head.base;
        chunk.head.sum *= rescale;
        chunk.head.sum = b != 0.0f ? nbl_fma(in.row[k].y, b, chunk.head.sum) : chunk.head.sum;
#pragma unroll
        for (int i = 0; i < E; ++i) {
            chunk.o[i] *= rescale;
            chunk.o[i] = b != 0.0f ? nbl_fma((float)in.a[k][i], b, chunk.o[i]) : chunk.o[i];
        }
    }
    return good;
}

/* Chunks of the n-th row that the block combines, in order (NUM 5.6); false if the row is not to be written. */
template <int D, int RPL, int E>
PTX_FN bool combine_chunks(const place &w, const block_memory<D, RPL> &block, const short_plan &plan, uint32_t n,
                           uint32_t lane, row_total<E> &total)
{
    const uint32_t end = ((uint32_t)w.kv_len + CUDA_TILE_TOKENS - 1u) / CUDA_TILE_TOKENS;
    const uint32_t tiles = w.blocks << w.tiles_log2;
    const tile_row *rows = block.row + n * tiles;
    const int32_t *sums =
        reinterpret_cast<const int32_t *>(reinterpret_cast<const uint8_t *>(&block) + plan.sums_at) + n * tiles * D;
    const row_total<E> empty = {nbl_state_empty(total.head.offset), {}};
    row_total<E> chunk = empty;
    bool good = true;
#pragma unroll 1
    for (uint32_t tile = 0; tile < end; tile += AT_ONCE) {
        sent_tiles<E> in;
        read_tiles<E>(rows, sums, tile, tiles, lane, in);
        good = combine_tiles<E>(in, end - tile, chunk) && good;
        if ((tile + AT_ONCE) % CUDA_CHUNK_TILES == 0 || tile + AT_ONCE >= end) {
            nbl_state_merge(&total.head, total.o, &chunk.head, chunk.o, E);
            chunk = empty;
        }
    }
    return good;
}

/* O of the block's rows, then their LSE, each by a warp. */
template <int D, int RPL>
PTX_FN void combine(const attend_params &p, const place &w, const block_memory<D, RPL> &block, const short_plan &plan,
                    uint32_t warp, uint32_t lane)
{
    constexpr int E = D / 32;
    const uint32_t rows = rows_here(w), step = TILE_WARPS << w.tiles_log2;
    const uint32_t o_end = p.o.data != NULL ? rows : 0u, end = o_end + (p.lse.data != NULL ? rows : 0u);
#pragma unroll 1
    for (uint32_t item = warp; item < end; item += step) {
        const uint32_t n = item < o_end ? item : item - o_end, row = w.rank + n * w.blocks;
        ptx_cluster_mbarrier_wait(ptx_shared_address(&block.barrier[SUMS]), 0);
        row_total<E> total = {nbl_state_empty(block.query.offset[row]), {}};
        const bool good = combine_chunks<D, RPL, E>(w, block, plan, n, lane, total);
        const uint32_t token = (uint32_t)w.q_first + token_of(p, w, row), head = head_of(p, w, row);
        finish_sink_of_warp(p, head, total);
        if (good && item < o_end) {
            finish_o_of_warp(p, token, head, lane, total);
        } else if (good) {
            finish_lse_of_warp(p, token, head, lane, total);
        }
    }
}

/* ---------------------------------------------------------------------------------------------- kernel */

/* The grid is blocks of a cluster, kv heads, sequences. */
PTX_FN place place_of_warp(const short_plan &plan)
{
    place w;
    const uint32_t warp = threadIdx.x / 32u;
    w.sequence = blockIdx.z;
    w.kv_head = blockIdx.y;
    w.rank = blockIdx.x;
    w.blocks = plan.blocks;
    w.tiles_log2 = plan.tiles_log2;
    w.local = warp / TILE_WARPS;
    w.group = warp % TILE_WARPS;
    w.tile = (w.rank << w.tiles_log2) + w.local;
    w.start = w.tile * CUDA_TILE_TOKENS + w.group * GROUP;
    return w;
}

/* Index of the page's region; false if it is in none. */
PTX_FN bool find_region(const cuda_pages &pages, int32_t page, uint32_t &which)
{
    bool found = false;
#pragma unroll 1
    for (uint32_t i = 0; i < pages.region_count; ++i) {
        const bool is_here = (uint32_t)page - pages.regions[i].first_page < pages.regions[i].page_count;
        which = is_here ? i : which;
        found = found || is_here;
    }
    return found;
}

/* Reads the sequence's lengths; false if they are bad, which all threads of the cluster find alike. */
PTX_FN bool read_sequence(const attend_params &p, place &w)
{
    const sequence_lengths s = read_lengths(p, w.sequence);
    w.q_first = s.q_first;
    w.q_len = s.q_len;
    w.kv_len = s.kv_len;
    w.rows = (uint32_t)w.q_len * p.group_rows;
    if (!s.good) {
        report_lengths(p, w.sequence, s);
    }
    return s.good;
}

/* Makes the block's barriers, and says so to the cluster. */
template <int D, int RPL> PTX_FN void open_barriers(const place &w, const block_memory<D, RPL> &block)
{
    if (threadIdx.x == 0) {
        ptx_mbarrier_init(ptx_shared_address(&block.barrier[MOST]), 1);
        ptx_mbarrier_init(ptx_shared_address(&block.barrier[SUMS]), 1);
        ptx_mbarrier_init(ptx_shared_address(&block.barrier[TURNS]), chunk_blocks(w));
        ptx_fence_mbarrier_init();
    }
    __syncwarp();
    ptx_cluster_arrive();
}

/* Announces what the others will send. */
template <int D, int RPL> PTX_FN void expect_bytes(const place &w, const block_memory<D, RPL> &block)
{
    const uint32_t tiles = w.blocks << w.tiles_log2;
    if (threadIdx.x == 0) {
        ptx_mbarrier_arrive_expect(ptx_shared_address(&block.barrier[MOST]),
                                   min(tiles, CUDA_CHUNK_TILES) * (uint32_t)sizeof block.largest[0]);
        ptx_mbarrier_arrive_expect(ptx_shared_address(&block.barrier[SUMS]),
                                   rows_here(w) * tiles * (uint32_t)(sizeof(tile_row) + sizeof(int32_t) * D));
    }
}

#endif

template <int D, int RPL>
__global__ void __launch_bounds__(most<D, RPL>::tiles *TILE_THREADS, RPL == 1 && D <= 128 ? 2 : 1)
    short_kernel(const __grid_constant__ attend_params p, const __grid_constant__ short_plan plan)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) uint4 dynamic[];
    block_memory<D, RPL> &block = *(block_memory<D, RPL> *)(void *)dynamic;
    const tile_array<D, RPL> tiles = {(uint8_t *)dynamic + sizeof block, plan.stride};
    const uint32_t lane = threadIdx.x % 32u, warp = threadIdx.x / 32u;
    place w = place_of_warp(plan);
    tile_memory<D, RPL> &m = tiles[w.local];
    open_barriers(w, block);
    for (uint32_t i = threadIdx.x % TILE_THREADS; i < sizeof m.sums / 4u; i += TILE_THREADS) {
        (&m.sums[0][0])[i] = 0;
    }
    ptx_grid_wait(); /* no release: blocks of the next call that came early would slow this one down */
    const uint32_t entry = __umulhi(w.start, plan.page_magic);
    const int32_t page = entry < p.page_table_stride ? p.page_table[(uint64_t)w.sequence * p.page_table_stride + entry]
                                                     : -1; /* asked for before it is known whether there is one */
    w.center = p.centering ? center_row(&p.centers, w.sequence) : -1;
    if (!read_sequence(p, w)) {
        return;
    }
    const bool has_tokens = w.start < (uint32_t)w.kv_len;
    uint32_t which = 0;
    const bool has_page = !has_tokens || find_region(p.pages, page, which) || check_page(p, w.sequence, entry, page);
    const bool works = has_tokens && has_page && w.rows > 0;
    const cuda_region &region = p.pages.regions[which];
    const query_source source = source_of(p, w, warp);
    query_raw<D / 32> raw = query_warp_read<D / 32>(p, source, lane);
    query_warp_read_center(p, source, w.center, lane, raw);
    if (works) {
        ask_group<D, RPL>(p, plan, w, m, region, (uint32_t)page, lane);
    }
    expect_bytes(w, block);
    make_queries<D, RPL>(p, w, block.query, tiles, warp, lane, raw);
    ptx_cluster_wait(); /* all barriers are there */
    const bool has_center = !p.centering || w.center >= 0 || check_center(p, w.sequence);
    const bool good = __syncthreads_and(check_heads(p) && has_center && has_page) != 0;
    if (works) {
        ptx_cp_async_wait<1>();
        __syncwarp();
        make_logits<D, RPL>(p, w, block, m, codes_at(plan, m, w, 0), region, lane);
    } else {
#pragma unroll
        for (int i = 0; i < RPL; ++i) {
            send_most(w, block, lane_row<RPL>(lane % 4u, i), -INFINITY, lane / 4u);
        }
    }
    const bool may_move = softmax<D, RPL>(p, w, block, tiles, good, lane);
    __syncthreads();
    if (works) {
        ptx_cp_async_wait<0>();
        __syncwarp();
        add_values<D, RPL>(w, m, codes_at(plan, m, w, 1), region.v_format, lane);
    }
    __syncthreads();
    send_sums(w, block, plan, m, lane);
    combine(p, w, block, plan, warp, lane);
    if (may_move) {
        ptx_cluster_mbarrier_wait(ptx_shared_address(&block.barrier[TURNS]), 1); /* nobody reads this block any more */
    }
#endif
}

uint32_t tiles_of(const attend_params *p)
{
    return (p->kv_len_max + CUDA_TILE_TOKENS - 1u) / CUDA_TILE_TOKENS;
}

/* Whether some region has int8 K (0), V (1). */
uint32_t has_int8(const attend_params *p, uint32_t kind)
{
    uint32_t any = 0;
    for (uint32_t i = 0; i < p->pages.region_count; ++i) {
        const cuda_region *r = &p->pages.regions[i];
        any |= (kind == 0 ? r->k_format : r->v_format) == NBL_INT8;
    }
    return any;
}

/* As few tiles a block as a cluster allows. */
template <int D, int RPL> short_plan plan_of(const attend_params *p)
{
    short_plan plan = {};
    while (tiles_of(p) > CLUSTER_MAX << plan.tiles_log2) {
        plan.tiles_log2++;
    }
    plan.blocks = 1;
    while (tiles_of(p) > plan.blocks << plan.tiles_log2) {
        plan.blocks *= 2u;
    }
    plan.page_magic = (uint32_t)(((UINT64_C(1) << 32) + p->pages.page_tokens - 1u) / p->pages.page_tokens);
    plan.stride = sizeof(tile_memory<D, RPL>);
    for (uint32_t kind = 0; kind < 2u; ++kind) {
        const uint32_t wide = has_int8(p, kind), bytes = GROUP * D / 2u * (wide + 1u);
        plan.group[kind] = bytes;
        if (kind == 1u || wide) {
            plan.at[kind] = plan.stride;
            plan.stride += GROUPS * bytes;
        }
    }
    plan.sums_at = sizeof(block_memory<D, RPL>) + (plan.stride << plan.tiles_log2);
    return plan;
}

template <int D, int RPL> uint32_t bytes_of(const short_plan &plan)
{
    const uint32_t rows = (4u * RPL + plan.blocks - 1u) / plan.blocks, tiles = plan.blocks << plan.tiles_log2;
    return plan.sums_at + rows * tiles * (uint32_t)sizeof(int32_t) * D;
}

/* Largest shared memory of a block that any call needs. */
template <int D, int RPL> constexpr uint32_t bytes_most()
{
    constexpr uint32_t tiles = most<D, RPL>::tiles; /* of a block; a full cluster combines a row in each */
    return sizeof(block_memory<D, RPL>) + tiles * (sizeof(tile_memory<D, RPL>) + 2u * CUDA_TILE_TOKENS * D) +
           CLUSTER_MAX * tiles * sizeof(int32_t) * D;
}

template <int D, int RPL> int fits(const attend_params *p)
{
    static_assert(bytes_most<D, RPL>() <= 227u * 1024u, "a block of sm_90 has no more");
    const short_plan plan = plan_of<D, RPL>(p);
    return 1u << plan.tiles_log2 <= most<D, RPL>::tiles && bytes_of<D, RPL>(plan) <= p->shared_bytes;
}

template <int D, int RPL> cudaError_t launch(const attend_params *p, cudaStream_t stream)
{
    const short_plan plan = plan_of<D, RPL>(p);
    return launch_clusters(short_kernel<D, RPL>, dim3(plan.blocks, p->kv_heads, p->batch),
                           TILE_THREADS << plan.tiles_log2, bytes_of<D, RPL>(plan), plan.blocks, stream, p, plan);
}

/* Done once: it takes the host 0.4 us. */
template <int D, int RPL> cudaError_t allow_shared(uint32_t most)
{
    const uint32_t bytes = bytes_most<D, RPL>();
    return cudaFuncSetAttribute(short_kernel<D, RPL>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)(bytes < most ? bytes : most));
}

} // namespace

extern "C" cudaError_t nbl_cuda_short_open(uint32_t capability, uint32_t shared_bytes)
{
    return capability < 90u
               ? cudaSuccess
               : for_decode_shapes([=](auto shape) { return allow_shared<shape.dim, shape.rows>(shared_bytes); });
}

/* Tiles a multiprocessor from which on another kernel is faster. */
static uint32_t tiles_most(const attend_params *p)
{
    if (!nbl_cuda_team_supports(p)) {
        return TILES_PER_PROCESSOR;
    }
    return p->q_len_max * p->group_rows <= 4u ? TILES_BESIDE_TEAMS : TILES_BESIDE_WIDE_TEAMS;
}

extern "C" int nbl_cuda_short_supports(const attend_params *p)
{
    const uint64_t units = (uint64_t)p->batch * p->kv_heads;
    if (p->capability < 90u || p->state_head.data != NULL || p->range_begin != 0 || p->range_end != UINT32_MAX ||
        tiles_of(p) == 0 || units * tiles_of(p) > tiles_most(p) * (uint64_t)p->processors ||
        !nbl_cuda_decode_supports(p)) {
        return 0;
    }
    return with_decode_shape(p, [=](auto shape) { return fits<shape.dim, shape.rows>(p); });
}

extern "C" cudaError_t nbl_cuda_attend_short(const attend_params *p, cudaStream_t stream)
{
    return with_decode_shape(p, [=](auto shape) { return launch<shape.dim, shape.rows>(p, stream); });
}
