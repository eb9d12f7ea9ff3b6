/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file prefill.cuh
 * @brief What the steps of a prefill share: tile images, work items, and one warp's part of a tile (NUM 5.4 to 5.7).
 *
 * A prefill first expands K and V of a unit, a kv head of a sequence, into images of 128-token tiles: canonical int8
 * codes in the very order that shared memory will have, and per token 2^ek, GRID + ev and 2^-ev; where all tokens of
 * the tile have one ek, that too. Then items of 128 query rows of a unit walk the images.
 *
 * A warp has 16 rows of an item. The fragments are those of m16n8 products: with g = lane / 4 and t = lane % 4, score
 * s[4*j + 2*r + b] is row g + 8*r, token 8*j + 2*t + b; o[4*i + 2*r + b] is row g + 8*r, image row 8*i + 2*t + b of V.
 * Two orders make that enough, with no exchange between lanes:
 *
 *     place 16*h + 4*t + 2*a + b of a row of V, and of the parameters, is token 16*h + 8*a + 2*t + b of the tile
 *     image row 8*i + 2*t + b of V is element (VD/4)*t + (2*i + b ^ 8*(t % 2))
 *
 * The first makes packed P the A operand of the second product; the second gives a thread VD/4 elements side by side.
 * A thread's two sums of NUM 5.4 per parity of j are those of tokens 2*t + b and 8 + 2*t + b mod 16.
 *
 * The base B of a chunk is an integer, and the grid has the same steps everywhere in [2^15, 2^16). So t of NUM 5.3 is
 *
 *     t = T - B,    T = fma(x, cq_row, GRID + ev)
 *
 * exactly, as long as z and B are not far from 0: T needs no base, t - m is T - max T, and ceil(max z) can be read off
 * max T unless that is an integer itself. Rows for which this does not hold take the long way (prefill_far).
 */
#ifndef CUDA_PREFILL_H
#define CUDA_PREFILL_H

#include "../attend.h"
#include "../ptx/ptx.cuh"
#include "exp2grid.h"
#include "finish.cuh"
#include "merge.h"
#include "stored.cuh"

#define PREFILL_ROWS 128u                    /* of an item */
#define PREFILL_LANES 4u                     /* that share a row */
#define PREFILL_STEPS 256                    /* of the grid in 1 */
#define PREFILL_GRID_BITS 0x47400000         /* of GRID: the bits of a logit on the grid less these count its steps */
#define PREFILL_GRID_LEAST 0x47000000        /* of 2^15, below which steps are finer */
#define PREFILL_NEAR (16000 * PREFILL_STEPS) /* logits within +-this need no base to be on the grid */
#define PREFILL_BASE_LOW (-15000 * PREFILL_STEPS) /* a base not below this leaves out all logits that are not near */
#define PREFILL_NO_BASE (-(1 << 30) - (1 << 24))  /* below every base */
#define PREFILL_EMPTY (PREFILL_NO_BASE / PREFILL_STEPS) /* M of an empty state */
#define PREFILL_NOTHING (-(1 << 30))                    /* steps of a row's largest logit that has none */

/* ------------------------------------------------------------------------------------------------ images */

/** Places in the image of a tile. */
template <int KD, int VD> struct prefill_image {
    static constexpr uint32_t v_at = CUDA_TILE_TOKENS * KD;
    static constexpr uint32_t units_at = v_at + VD * CUDA_TILE_TOKENS;           /* float[128]: 2^ek */
    static constexpr uint32_t exponents_at = units_at + CUDA_TILE_TOKENS * 4u;   /* float[128]: GRID + ev */
    static constexpr uint32_t weights_at = exponents_at + CUDA_TILE_TOKENS * 4u; /* float[128]: 2^-ev */
    static constexpr uint32_t common_at = weights_at + CUDA_TILE_TOKENS * 4u;    /* float: 2^ek of all tokens, or 0 */
    static constexpr uint32_t bytes = common_at + 16u;
};

/** Byte of a 16-byte piece in an image whose rows have W bytes: pieces of neighbouring rows meet different banks. */
template <int W> CUDA_DEVICE uint32_t prefill_piece(uint32_t row, uint32_t piece)
{
    uint32_t turn = W == 128 ? row & 7u : row >> 1 & 3u;
    return row * W + ((piece ^ turn) << 4);
}

/** Place of a token in rows of V and in the parameters. */
CUDA_DEVICE uint32_t prefill_token_place(uint32_t token)
{
    return (token & ~15u) | (token >> 1 & 3u) << 2 | (token >> 3 & 1u) << 1 | (token & 1u);
}

/** Elements of V that a thread has in another order: in its place i, odd ones of the four that share a row have element
 *  i ^ this. The last butterflies of the output want it so (prefill_hadamard_whole). */
CUDA_DEVICE uint32_t prefill_swap(uint32_t t)
{
    return (t & 1u) * 8u;
}

/** Image row of an element of V. */
template <int VD> CUDA_DEVICE uint32_t prefill_v_row(uint32_t element)
{
    constexpr uint32_t share = VD / 4u;
    const uint32_t t = element / share, place = element % share ^ prefill_swap(t);
    return place / 2u * 8u + t * 2u + (place & 1u);
}

/** First tile and one past the last that a range touches; at least one tile, inside [low, high). */
CUDA_DEVICE void prefill_tiles(visible_range range, uint32_t low, uint32_t high, uint32_t *first, uint32_t *end)
{
    uint32_t begin = (uint32_t)range.first / CUDA_TILE_TOKENS;
    uint32_t last = ((uint32_t)range.end + CUDA_TILE_TOKENS - 1u) / CUDA_TILE_TOKENS;
    *first = min(max(begin, low), high - 1u);
    *end = min(max(last, *first + 1u), high);
}

/** Union of what query tokens [from, to] of a sequence see; it grows with the token at both ends. */
CUDA_DEVICE visible_range prefill_range(const attend_params &p, const cuda_sequence &s, uint32_t from, uint32_t to)
{
    int64_t offset = (int64_t)s.kv_len - s.q_len;
    visible_range range = visible_range_of(p, s.kv_len, offset + from);
    range.end = visible_range_of(p, s.kv_len, offset + to).end;
    return range;
}

/** Tiles of a unit that have images: those that some row sees, at least one. */
CUDA_DEVICE void prefill_unit_tiles(const attend_params &p, const cuda_sequence &s, uint32_t *first, uint32_t *end)
{
    prefill_tiles(prefill_range(p, s, 0, (uint32_t)s.q_len - 1u), 0, p.image_tiles, first, end);
}

/** Row blocks of a unit. */
CUDA_DEVICE uint32_t prefill_blocks(const attend_params &p, const cuda_sequence &s)
{
    return ((uint32_t)s.q_len * p.group_rows + PREFILL_ROWS - 1u) / PREFILL_ROWS;
}

/* ------------------------------------------------------------------------------------------------ items */

/** Up to 128 query rows of a unit over a run of tiles; of one chunk where the call is split. */
struct prefill_item {
    uint32_t unit; /**< in the slab */
    uint32_t sequence;
    uint32_t kv_head;
    uint32_t first_row; /**< in the unit */
    uint32_t rows;
    uint32_t chunk; /**< split: n-th of the range */
    uint32_t tile_first;
    uint32_t tile_end;   /**< 0: there are no more items */
    uint32_t open_first; /**< all PREFILL_ROWS rows see the whole of tiles [open_first, open_end) */
    uint32_t open_end;
};

/** A row of an item. */
struct prefill_row {
    float scale;
    float offset;
    int32_t first; /**< visible positions [first, end) */
    int32_t end;
    uint32_t token;
    uint32_t head;
    int32_t base; /**< chunks before the one at hand, merged: M, or PREFILL_EMPTY */
    float sum;    /**< and L */
};

/** What an item has of a range: its chunk, where the call is split. */
CUDA_DEVICE visible_range prefill_range_of_item(const attend_params &p, const prefill_item &it, visible_range range)
{
    if (p.split) {
        const int32_t start = (int32_t)((p.first_chunk + it.chunk) * NBL_CHUNK_TOKENS);
        range.first = max(range.first, start);
        range.end = max(min(range.end, start + (int32_t)NBL_CHUNK_TOKENS), range.first);
    }
    return range;
}

/** Units whose items come in turn: those of a sequence that the slab has, or one alone; [first, first + count). */
struct prefill_heads {
    uint32_t first;
    uint32_t count;
};

CUDA_DEVICE prefill_heads prefill_heads_of(const attend_params &p, uint32_t unit)
{
    if (!p.heads_in_turn) {
        return {unit, 1u};
    }
    const uint32_t begin = (p.first_unit + unit) / p.kv_heads * p.kv_heads; /* of the sequence, in the call */
    const uint32_t first = max(begin, p.first_unit) - p.first_unit;
    return {first, min(begin + p.kv_heads - p.first_unit, p.units) - first};
}

/** Item number `index`; `unit` is where the search begins, and where it ends. Heads of a sequence may come in turn, the
 *  longest items of a causal mask first: a multiprocessor takes an item before it begins with the one before that, so
 *  that the last ones had better be short. */
CUDA_DEVICE prefill_item prefill_item_of(const attend_params &p, uint32_t index, uint32_t *unit)
{
    prefill_item it = {};
    const uint32_t *starts = p.prefill_items + 1;
    if (index >= starts[p.units]) {
        return it;
    }
    while (index >= starts[*unit + 1u]) {
        ++*unit;
    }
    const prefill_heads heads = prefill_heads_of(p, *unit);
    const uint32_t in_sequence = index - starts[heads.first];
    it.unit = heads.first + in_sequence % heads.count;
    it.sequence = (p.first_unit + it.unit) / p.kv_heads;
    it.kv_head = (p.first_unit + it.unit) % p.kv_heads;
    cuda_sequence s = p.sequences[it.sequence];
    uint32_t blocks = prefill_blocks(p, s);
    uint32_t place = in_sequence / heads.count;
    uint32_t block = blocks - 1u - place % blocks;
    it.chunk = place / blocks;
    it.first_row = block * PREFILL_ROWS;
    it.rows = min((uint32_t)s.q_len * p.group_rows - it.first_row, PREFILL_ROWS);
    const uint32_t from = it.first_row / p.group_rows, to = (it.first_row + it.rows - 1u) / p.group_rows;
    uint32_t low, high;
    prefill_unit_tiles(p, s, &low, &high);
    prefill_tiles(prefill_range_of_item(p, it, prefill_range(p, s, from, to)), low, high, &it.tile_first, &it.tile_end);
    if (it.rows == PREFILL_ROWS) {
        const visible_range all = prefill_range_of_item(p, it, prefill_range(p, s, to, from));
        it.open_first = ((uint32_t)all.first + CUDA_TILE_TOKENS - 1u) / CUDA_TILE_TOKENS;
        it.open_end = (uint32_t)all.end / CUDA_TILE_TOKENS;
    }
    return it;
}

/** All rows of the item see the whole of a tile. */
CUDA_DEVICE bool prefill_is_open(const prefill_item &it, uint32_t tile)
{
    return tile >= it.open_first && tile < it.open_end;
}

/** Row i of an item; one that is not there sees nothing. */
CUDA_DEVICE prefill_row prefill_row_of(const attend_params &p, const prefill_item &it, const cuda_sequence &s,
                                       uint32_t i)
{
    prefill_row r = {};
    r.base = PREFILL_EMPTY;
    if (i >= it.rows) {
        return r;
    }
    uint32_t token = (it.first_row + i) / p.group_rows;
    const visible_range range =
        prefill_range_of_item(p, it, visible_range_of(p, s.kv_len, (int64_t)s.kv_len - s.q_len + token));
    r.token = (uint32_t)s.q_first + token;
    r.head = it.kv_head * p.group_rows + (it.first_row + i) % p.group_rows;
    cuda_query query = p.queries[(uint64_t)r.token * p.q_heads + r.head];
    r.scale = query.scale;
    r.offset = query.offset;
    r.first = range.first;
    r.end = range.end;
    return r;
}

/** Where 16 bytes of the codes of rows row, row + step, row + 2 step, ... of an item are: no division for each. */
struct prefill_query_walk {
    const int8_t *from;
    uint32_t rows;  /**< of the item, if the bytes are in the dimension; else 0 */
    uint32_t head;  /**< in the group */
    uint32_t heads; /**< further on in a step, tokens left aside */
    uint32_t bytes; /**< of a step */
    uint32_t wrap;  /**< more, where a step goes past the last head */
};

/** Begins at row `row`; piece: which 16 bytes. */
CUDA_DEVICE prefill_query_walk prefill_query_walk_from(const attend_params &p, const prefill_item &it,
                                                       const cuda_sequence &s, uint32_t row, uint32_t step,
                                                       uint32_t piece)
{
    const uint32_t head_bytes = p.k_dim_padded, token_bytes = p.q_heads * head_bytes;
    const uint32_t index = it.first_row + row, token = index / p.group_rows;
    prefill_query_walk w;
    w.rows = piece * 16u < p.k_dim_padded ? it.rows : 0u;
    w.head = index % p.group_rows;
    w.heads = step % p.group_rows;
    w.bytes = step / p.group_rows * token_bytes + w.heads * head_bytes;
    w.wrap = token_bytes - p.group_rows * head_bytes;
    w.from = p.codes + (uint64_t)((uint32_t)s.q_first + token) * token_bytes +
             (it.kv_head * p.group_rows + w.head) * head_bytes + piece * 16u;
    return w;
}

/** A step further; the address is of use only for rows below w.rows. */
CUDA_DEVICE void prefill_query_step(prefill_query_walk &w, uint32_t group_rows)
{
    w.head += w.heads;
    w.from += w.bytes;
    if (w.head >= group_rows) {
        w.head -= group_rows;
        w.from += w.wrap;
    }
}

/* ------------------------------------------------------------------------------------------------ rows of a warp */

/** The two rows of a thread. */
struct prefill_rows {
    float scale[2];   /**< NaN: the row sees nothing at all */
    float sum[2];     /**< L */
    int32_t base[2];  /**< B in steps, or PREFILL_NO_BASE */
    int32_t limit[2]; /**< bits of a tile's largest t up to which the tile is a usual one */
};

/** Largest (as integers) over the lanes that share a row. */
CUDA_DEVICE int32_t prefill_row_max(int32_t x)
{
    x = max(x, __shfl_xor_sync(FULL_WARP, x, 1));
    return max(x, __shfl_xor_sync(FULL_WARP, x, 2));
}

/** The thread's rows at the beginning of an item; rows are those of the warp. */
CUDA_DEVICE void prefill_rows_begin(prefill_rows &r, const prefill_row *rows)
{
    const prefill_row *const at = rows + ptx_thread() % 32u / PREFILL_LANES;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        r.scale[row] = at[8 * row].first < at[8 * row].end ? at[8 * row].scale : NAN;
    }
}

/** Gives a row its base. A tile is usual if its logits are near and no more than NBL_REBASE above a base not far from
 *  0 (NUM 5.4); with another base none is. */
CUDA_DEVICE void prefill_set_base(prefill_rows &r, int row, int32_t base)
{
    constexpr int32_t above = (int32_t)NBL_REBASE * PREFILL_STEPS;
    r.base[row] = base;
    r.limit[row] = base < PREFILL_BASE_LOW ? INT32_MIN : PREFILL_GRID_BITS + above + min(base, PREFILL_NEAR - above);
}

/** At the beginning of a chunk. Rows that see nothing at all need no base. */
template <int N> CUDA_DEVICE void prefill_rows_clear(prefill_rows &r, float (&o)[N])
{
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        prefill_set_base(r, row, isnan(r.scale[row]) ? 0 : PREFILL_NO_BASE);
        r.sum[row] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
        o[i] = 0.0f;
    }
}

/* ------------------------------------------------------------------------------------------------ scores of a warp */

/** The scores of a tile again, for a base that moves: rare, so a small loop with few registers. q is the image of the
 *  warp's query rows, k that of the tile. */
template <int KD> CUDA_DEVICE void prefill_rescore(int32_t (&s)[64], const uint8_t *q, const uint8_t *k)
{
    const uint32_t thread = ptx_thread();
    const uint32_t g = thread % 32u / PREFILL_LANES, t = thread % PREFILL_LANES;
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        s[i] = 0;
    }
#pragma unroll 1
    for (uint32_t w = 0; w < KD / 4u; ++w) {
        const uint32_t in_piece = w % 4u * 4u;
        const int32_t low = *(const int32_t *)(const void *)(q + prefill_piece<KD>(g, w / 4u) + in_piece);
        const int32_t high = *(const int32_t *)(const void *)(q + prefill_piece<KD>(g + 8u, w / 4u) + in_piece);
        const uint8_t *even = k + prefill_piece<KD>(2u * t, w / 4u) + in_piece;
        const uint8_t *odd = k + prefill_piece<KD>(2u * t + 1u, w / 4u) + in_piece;
#pragma unroll
        for (int j = 0; j < 32; ++j) { /* in rows 8 apart a piece has the same place */
            const int32_t code = *(const int32_t *)(const void *)((j % 2 ? odd : even) + j / 2 * 8 * KD);
            s[j / 2 * 4 + j % 2] = ptx_dp4a_ss(low, code, s[j / 2 * 4 + j % 2]);
            s[j / 2 * 4 + 2 + j % 2] = ptx_dp4a_ss(high, code, s[j / 2 * 4 + 2 + j % 2]);
        }
    }
}

/** The score of a token for a row of the warp. */
template <int KD> CUDA_DEVICE int32_t prefill_score(const uint8_t *q, const uint8_t *k, uint32_t row, uint32_t token)
{
    int32_t sum = 0;
#pragma unroll
    for (uint32_t piece = 0; piece < KD / 16u; ++piece) {
        const int4 a = *(const int4 *)(const void *)(q + prefill_piece<KD>(row, piece));
        const int4 b = *(const int4 *)(const void *)(k + prefill_piece<KD>(token, piece));
        sum = ptx_dp4a_ss(a.y, b.y, ptx_dp4a_ss(a.x, b.x, sum));
        sum = ptx_dp4a_ss(a.w, b.w, ptx_dp4a_ss(a.z, b.z, sum));
    }
    return sum;
}

/* ------------------------------------------------------------------------------------------------ softmax of a warp */

/** Parameters of a tile in shared memory, at the thread's place. */
struct prefill_parameters {
    const float4 *units; /* [4 * h] */
    const float4 *exponents;
    const float4 *weights;
};

template <int KD, int VD>
CUDA_DEVICE prefill_parameters prefill_parameters_of(const uint8_t *image, uint32_t t = threadIdx.x % PREFILL_LANES)
{
    using place = prefill_image<KD, VD>;
    prefill_parameters v;
    v.units = (const float4 *)(const void *)(image + place::units_at) + t;
    v.exponents = (const float4 *)(const void *)(image + place::exponents_at) + t;
    v.weights = (const float4 *)(const void *)(image + place::weights_at) + t;
    return v;
}

/** What the rows see of a tile: tokens [low, high), less 2 * t so that the tokens of a thread are constants. */
struct prefill_mask {
    int32_t low[2];
    int32_t high[2];
};

CUDA_DEVICE prefill_mask prefill_mask_of(const prefill_row *rows, int32_t start)
{
    const uint32_t thread = ptx_thread();
    uint32_t g = thread % 32u / PREFILL_LANES;
    prefill_mask mask;
    const int32_t own = start + 2 * (int32_t)(thread % PREFILL_LANES);
    mask.low[0] = rows[g].first - own;
    mask.low[1] = rows[g + 8u].first - own;
    mask.high[0] = rows[g].end - own;
    mask.high[1] = rows[g + 8u].end - own;
    return mask;
}

/** 1 if row r of the thread sees the token of s[i]. */
CUDA_DEVICE bool prefill_sees(const prefill_mask &mask, int i, int r)
{
    const int32_t token = i / 4 * 8 + i % 2;
    return token >= mask.low[r] && token < mask.high[r];
}

/** B of both rows from the scores: ceil(max z), clamped (NUM 5.4), in steps; PREFILL_NO_BASE where none is seen. */
CUDA_DEVICE void prefill_bases(const int32_t (&s)[64], const prefill_parameters &v, const prefill_mask &mask,
                               const prefill_rows &r, int32_t (&base)[2])
{
    float most[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int h = 0; h < 8; ++h) {
        const float4 unit4 = v.units[4 * h], exponent4 = v.exponents[4 * h];
        const float unit[4] = {unit4.x, unit4.y, unit4.z, unit4.w};
        const float exponent[4] = {exponent4.x, exponent4.y, exponent4.z, exponent4.w};
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            const int row = k / 2 % 2, i = 8 * h + k, at = k / 4 * 2 + k % 2;
            float z = nbl_fma((float)s[i] * unit[at], r.scale[row], exponent[at] - NBL_GRID);
            most[row] = prefill_sees(mask, i, row) ? fmaxf(most[row], z) : most[row];
        }
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        most[row] = fmaxf(most[row], __shfl_xor_sync(FULL_WARP, most[row], 1));
        most[row] = fmaxf(most[row], __shfl_xor_sync(FULL_WARP, most[row], 2));
        float whole = nbl_clamp_f32(nbl_ceil(most[row]), -NBL_LOGIT_MAX, NBL_LOGIT_MAX);
        base[row] = most[row] == -INFINITY ? PREFILL_NO_BASE : (int32_t)whole * PREFILL_STEPS;
    }
}

/** Scores become bits of t = fma(x, cq_row, GRID + ev - B) with shift = -B (NUM 5.3). */
CUDA_DEVICE void prefill_grid_logits(int32_t (&s)[64], const prefill_parameters &v, const prefill_rows &r,
                                     const float (&shift)[2])
{
#pragma unroll
    for (int h = 0; h < 8; ++h) {
        const float4 unit4 = v.units[4 * h], exponent4 = v.exponents[4 * h];
        const float unit[4] = {unit4.x, unit4.y, unit4.z, unit4.w};
        const float exponent[4] = {exponent4.x, exponent4.y, exponent4.z, exponent4.w};
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            const int row = k / 2 % 2, i = 8 * h + k, at = k / 4 * 2 + k % 2;
            s[i] = __float_as_int(nbl_fma((float)s[i] * unit[at], r.scale[row], exponent[at] + shift[row]));
        }
    }
}

/** -inf where the row does not see. */
CUDA_DEVICE void prefill_hide(int32_t (&s)[64], const prefill_mask &mask)
{
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        s[i] = prefill_sees(mask, i, i / 2 % 2) ? s[i] : __float_as_int(-INFINITY);
    }
}

/** Largest t of the thread's part of both rows. As integers they order rightly where they are positive; a row with none
 *  is left out. */
CUDA_DEVICE void prefill_most(const int32_t (&s)[64], int32_t (&most)[2])
{
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        most[row] = max(s[2 * row], s[2 * row + 1]);
#pragma unroll
        for (int j = 1; j < 16; ++j) {
            most[row] = __vimax3_s32(most[row], s[4 * j + 2 * row], s[4 * j + 2 * row + 1]);
        }
    }
}

/** Scores become bits of T; the largest ones of the thread in `most`. COMMON: scale has 2^ek in it, as all tokens have
 *  one. A product of a score and two powers of two is exact, whichever comes first. */
template <bool COMMON>
CUDA_DEVICE void prefill_near_logits(int32_t (&s)[64], const prefill_parameters &v, const float (&scale)[2],
                                     int32_t (&most)[2])
{
#pragma unroll
    for (int h = 0; h < 8; ++h) {
        const float4 unit4 = COMMON ? make_float4(1.0f, 1.0f, 1.0f, 1.0f) : v.units[4 * h];
        const float4 exponent4 = v.exponents[4 * h];
        const float unit[4] = {unit4.x, unit4.y, unit4.z, unit4.w};
        const float exponent[4] = {exponent4.x, exponent4.y, exponent4.z, exponent4.w};
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            const int row = k / 2 % 2, i = 8 * h + k, at = k / 4 * 2 + k % 2;
            s[i] = __float_as_int(nbl_fma((float)s[i] * unit[at], scale[row], exponent[at]));
        }
    }
    prefill_most(s, most);
}

/** Steps by which the largest logits pass GRID, at least those of 2^15. */
CUDA_DEVICE int32_t prefill_steps(int32_t most)
{
    return max(most, PREFILL_GRID_LEAST) - PREFILL_GRID_BITS;
}

/** Moves the base of a row to `base`; the factor of O is returned (NUM 5.4). */
CUDA_DEVICE float prefill_move_base(prefill_rows &r, int row, int32_t base)
{
    float factor = 1.0f;
    if (r.base[row] != PREFILL_NO_BASE) {
        factor = nbl_pow2f((float)((r.base[row] - base) / PREFILL_STEPS));
        r.sum[row] *= factor;
    }
    prefill_set_base(r, row, base);
    return factor;
}

/** The long way of NUM 5.4, for any logits: the scores of the tile become bits of t. steps[row] is what the largest t
 *  of the row has above GRID. */
template <typename Rescore>
CUDA_DEVICE void prefill_far(int32_t (&s)[64], const prefill_parameters &v, const prefill_mask &mask, prefill_rows &r,
                             int32_t (&most)[2], int32_t (&steps)[2], float (&factor)[2], Rescore rescore)
{
    constexpr int32_t limit = (int32_t)NBL_REBASE * PREFILL_STEPS;
    int32_t base[2];
    float shift[2];
    rescore(s);
    prefill_bases(s, v, mask, r, base);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        prefill_set_base(r, row, r.base[row] == PREFILL_NO_BASE ? base[row] : r.base[row]);
        shift[row] = -(float)(r.base[row] / PREFILL_STEPS);
    }
    prefill_grid_logits(s, v, r, shift);
    prefill_hide(s, mask);
    prefill_most(s, most);
    most[0] = prefill_row_max(most[0]);
    most[1] = prefill_row_max(most[1]);
    bool moves[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        moves[row] = prefill_steps(most[row]) > limit && r.base[row] != PREFILL_NO_BASE;
        if (moves[row]) {
            factor[row] = prefill_move_base(r, row, max(r.base[row], base[row]));
            shift[row] = -(float)(r.base[row] / PREFILL_STEPS);
        }
    }
    if (__any_sync(FULL_WARP, moves[0] || moves[1])) {
        rescore(s);
        prefill_grid_logits(s, v, r, shift);
        prefill_hide(s, mask);
#pragma unroll
        for (int i = 0; i < 64; ++i) {
            s[i] = min(s[i], PREFILL_GRID_BITS + limit);
        }
        prefill_most(s, most);
        most[0] = prefill_row_max(most[0]);
        most[1] = prefill_row_max(most[1]);
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        steps[row] = r.base[row] == PREFILL_NO_BASE ? PREFILL_NOTHING : prefill_steps(most[row]);
    }
}

/** Rows without a base get none here, others move theirs if the tile wants it (`moves`); logits are near, and the
 *  largest ones of rows that move no integers. */
CUDA_DEVICE void prefill_near(prefill_rows &r, const bool (&sees)[2], const bool (&moves)[2], const int32_t (&most)[2],
                              int32_t (&steps)[2], float (&factor)[2])
{
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        const int32_t k = prefill_steps(most[row]);
        if (moves[row]) {
            factor[row] = prefill_move_base(r, row, ((k >> 8) + 1) * PREFILL_STEPS);
        }
        steps[row] = sees[row] ? k - r.base[row] : PREFILL_NOTHING;
    }
}

/** RNE to bf16 precision, as binary32 (q of NUM 5.4). */
CUDA_DEVICE float prefill_q(float p)
{
    return __uint_as_float(ptx_cvt_bf16x2(p, 0.0f));
}

/** P of four weights, packed (NUM 5.4). That C * p is rounded first changes nothing (NUM 5.5). */
CUDA_DEVICE uint32_t prefill_pack(const float (&p)[4])
{
#if __CUDA_ARCH__ >= 890
    const uint32_t high = ptx_cvt_u8x2(p[3] * NBL_P_SCALE, p[2] * NBL_P_SCALE, 0);
    return ptx_cvt_u8x2(p[1] * NBL_P_SCALE, p[0] * NBL_P_SCALE, high);
#else
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        word[i] = __float_as_uint(nbl_fma(p[i], NBL_P_SCALE, NBL_MAGIC));
    }
    return __byte_perm(__byte_perm(word[0], word[1], 0x0040), __byte_perm(word[2], word[3], 0x0040), 0x5410);
#endif
}

/** Bits of t become p, from the largest ones of each row; P, packed. */
CUDA_DEVICE void prefill_weigh(int32_t (&s)[64], const float (&most)[2], uint32_t (&packed)[16])
{
#pragma unroll
    for (int h = 0; h < 8; ++h) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            float p[4];
#pragma unroll
            for (int at = 0; at < 4; ++at) {
                int32_t &score = s[8 * h + at / 2 * 4 + 2 * row + at % 2];
                p[at] = ptx_ex2(__int_as_float(score) - most[row]);
                score = __float_as_int(p[at]);
            }
            packed[2 * h + row] = prefill_pack(p);
        }
    }
}

/** b of a tile from the steps of its largest t above GRID; -0 where the tile is left out, so that fma(x, b, y) is y for
 *  x = +0. */
CUDA_DEVICE float prefill_tile_weight(int32_t steps, const uint32_t *table)
{
    float b = __uint_as_float(table[steps & (PREFILL_STEPS - 1)] + ((uint32_t)(steps >> 8) << 23));
    return steps < (int32_t)NBL_WEIGHT_MIN * PREFILL_STEPS ? -0.0f : b;
}

/** Second half of the tree, and L (NUM 5.4). */
CUDA_DEVICE void prefill_add_sum(prefill_rows &r, const float (&b)[2], float (&l)[2])
{
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        l[row] += __shfl_xor_sync(FULL_WARP, l[row], 1);
        l[row] += __shfl_xor_sync(FULL_WARP, l[row], 2);
        r.sum[row] = nbl_fma(l[row], b[row], r.sum[row]);
    }
}

/** A tile's l on its way to L: an exchange takes long while the other warpgroup's exponentials are in the same queue,
 *  so that each one's result is asked for much later. */
struct prefill_late {
    float own[2];   /**< sums of two lanes */
    float other[2]; /**< those of the two others, from the second exchange */
    float b[2];
};

/** Begins the second exchange; x are the l of the first one. */
CUDA_DEVICE prefill_late prefill_late_of(const float (&b)[2], const float (&l)[2], const float (&x)[2])
{
    prefill_late late;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        late.own[row] = l[row] + x[row];
        late.other[row] = __shfl_xor_sync(FULL_WARP, late.own[row], 2);
        late.b[row] = b[row];
    }
    return late;
}

/** Ends what prefill_late_of began: prefill_add_sum in two parts. All zeros add nothing. */
CUDA_DEVICE void prefill_late_sum(prefill_rows &r, const prefill_late &late)
{
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        r.sum[row] = nbl_fma(late.own[row] + late.other[row], late.b[row], r.sum[row]);
    }
}

/** What a tile's scores say of its rows. */
struct prefill_top {
    int32_t most[2];  /**< bits of the largest t */
    int32_t steps[2]; /**< by which it passes GRID */
    bool unusual;     /**< of the warp: prefill_unusual must see to it */
};

/** Says again what is unusual once rows without a base have one, as far as their largest logit tells without doubt: it
 *  is near, and no integer. */
CUDA_DEVICE bool prefill_first_bases(prefill_rows &r, prefill_top &top)
{
    bool unusual = false;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        const int32_t k = prefill_steps(top.most[row]);
        const bool is_clear = k % PREFILL_STEPS != 0 && k >= -PREFILL_NEAR && k <= PREFILL_NEAR;
        if (r.base[row] == PREFILL_NO_BASE && is_clear) {
            prefill_set_base(r, row, (k + PREFILL_STEPS - 1) & ~(PREFILL_STEPS - 1));
        }
        top.steps[row] = k - r.base[row];
        unusual = unusual || top.most[row] > r.limit[row];
    }
    return __any_sync(FULL_WARP, unusual);
}

/** 1 if z of the thread's token j of a row is greater than T, `most`. */
template <int KD>
CUDA_DEVICE bool prefill_exceeds(const uint8_t *q, const uint8_t *k, const prefill_parameters &v, const prefill_rows &r,
                                 int row, uint32_t j, int32_t most)
{
    const uint32_t lane = ptx_thread() % 32u, place = j / 4u * 16u + j % 4u; /* at the thread's place */
    const float *unit = (const float *)(const void *)v.units, *a = (const float *)(const void *)v.exponents;
    const int32_t sum = prefill_score<KD>(q, k, lane / PREFILL_LANES + 8u * (uint32_t)row,
                                          j / 2u * 8u + 2u * (lane % PREFILL_LANES) + j % 2u);
    const float x = (float)sum * unit[place];
    return nbl_fma(x, r.scale[row], a[place] - NBL_GRID) > __int_as_float(most) - NBL_GRID;
}

/** The same as prefill_first_bases for rows whose largest logit is near, but an integer on the grid: the base is the
 *  next one if z of its token is greater. Rows of which a thread has several such tokens get none. */
template <int KD, int VD>
CUDA_DEVICE bool prefill_integer_bases(const int32_t (&s)[64], const uint8_t *q, const uint8_t *image, prefill_rows &r,
                                       prefill_top &top)
{
    const prefill_parameters v = prefill_parameters_of<KD, VD>(image);
    const uint32_t first_lane = ptx_thread() % 32u / PREFILL_LANES * PREFILL_LANES; /* of the row */
    bool unusual = false;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        const int32_t k = prefill_steps(top.most[row]);
        const bool asked = r.base[row] == PREFILL_NO_BASE && k >= -PREFILL_NEAR && k <= PREFILL_NEAR;
        if (__any_sync(FULL_WARP, asked)) {
            uint32_t part[4] = {}; /* 2^16 for each token, and its number */
#pragma unroll
            for (uint32_t j = 0; j < 32u; ++j) {
                part[j % 4u] += s[j / 2u * 4u + j % 2u + 2u * (uint32_t)row] == top.most[row] ? 1u << 16 | j : 0u;
            }
            const uint32_t found = (part[0] + part[1]) + (part[2] + part[3]);
            const bool exceeds =
                asked && found >> 16 == 1u && prefill_exceeds<KD>(q, image, v, r, row, found & 31u, top.most[row]);
            const uint32_t several = __ballot_sync(FULL_WARP, found >> 17 != 0) >> first_lane & 15u;
            const uint32_t up = __ballot_sync(FULL_WARP, exceeds) >> first_lane & 15u;
            if (asked && several == 0) {
                prefill_set_base(r, row, ((k >> 8) + (up != 0 ? 1 : 0)) * PREFILL_STEPS);
            }
        }
        top.steps[row] = k - r.base[row];
        unusual = unusual || top.most[row] > r.limit[row];
    }
    return __any_sync(FULL_WARP, unusual);
}

/** What is not usual in a tile: rows without a base, a base that moves, logits far from 0. q is the image of the warp's
 *  query rows. */
template <int KD, int VD, int N>
CUDA_DEVICE void prefill_unusual(int32_t (&s)[64], const uint8_t *q, const uint8_t *image, const prefill_row *rows,
                                 int32_t start, prefill_rows &r, float (&o)[N], prefill_top &top)
{
    if (!prefill_first_bases(r, top) || !prefill_integer_bases<KD, VD>(s, q, image, r, top)) {
        return;
    }
    const prefill_mask mask = prefill_mask_of(rows, start);
    const int32_t t = 2 * (int32_t)(ptx_thread() % PREFILL_LANES);
    bool sees[2], moves[2], far = false;
    float factor[2] = {1.0f, 1.0f};
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        const int32_t k = prefill_steps(top.most[row]);
        sees[row] = max(mask.low[row] + t, 0) < min(mask.high[row] + t, (int32_t)CUDA_TILE_TOKENS);
        moves[row] = sees[row] && top.steps[row] > (int32_t)NBL_REBASE * PREFILL_STEPS;
        far = far || k > PREFILL_NEAR || (sees[row] && k < -PREFILL_NEAR && r.base[row] < PREFILL_BASE_LOW) ||
              (moves[row] && k % PREFILL_STEPS == 0);
    }
    if (__any_sync(FULL_WARP, far)) {
        prefill_far(s, prefill_parameters_of<KD, VD>(image), mask, r, top.most, top.steps, factor,
                    [&](int32_t(&again)[64]) { prefill_rescore<KD>(again, q, image); });
    } else {
        prefill_near(r, sees, moves, top.most, top.steps, factor);
    }
    if (__any_sync(FULL_WARP, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            o[i] *= factor[i / 2 % 2];
        }
    }
}

/** 2^ek of all tokens of a tile, or 0. */
template <int KD, int VD> CUDA_DEVICE float prefill_common(const uint8_t *image)
{
    return *(const float *)(const void *)(image + prefill_image<KD, VD>::common_at);
}

/** A tile's scores to bits of t. MAY_SHARE: its tokens may have one exponent; `common` is prefill_common of it then, to
 *  be asked for before the scores are there, and else of no meaning. `open` says that the rows see the whole tile; t is
 *  the lane among those that share a row. */
template <int KD, int VD, bool MAY_SHARE>
CUDA_DEVICE prefill_top prefill_logits(int32_t (&s)[64], const uint8_t *image, float common, const prefill_row *rows,
                                       bool open, int32_t start, const prefill_rows &r, uint32_t t)
{
    prefill_top top;
    const prefill_parameters v = prefill_parameters_of<KD, VD>(image, t);
    int32_t own[2]; /* of the thread */
    if (!MAY_SHARE || common == 0.0f) {
        prefill_near_logits<false>(s, v, r.scale, own);
    } else {
        const float scale[2] = {r.scale[0] * common, r.scale[1] * common};
        prefill_near_logits<true>(s, v, scale, own);
    }
    if (!open) {
        prefill_hide(s, prefill_mask_of(rows, start));
        prefill_most(s, own);
    }
    top.most[0] = prefill_row_max(own[0]);
    top.most[1] = prefill_row_max(own[1]);
#pragma unroll
    for (int row = 0; row < 2; ++row) { /* logits below the grid are not counted rightly, but are left out anyway */
        top.steps[row] = prefill_steps(top.most[row]) - r.base[row];
    }
    top.unusual = __any_sync(FULL_WARP, top.most[0] > r.limit[0] || top.most[1] > r.limit[1]);
    return top;
}

/** Bits of t to p, packed P and b. */
CUDA_DEVICE void prefill_weights(int32_t (&s)[64], const prefill_top &top, const uint32_t *table,
                                 uint32_t (&packed)[16], float (&b)[2])
{
    constexpr int32_t least = (int32_t)NBL_WEIGHT_MIN * PREFILL_STEPS;
    float most[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) { /* all weights of a row that is left out are 0 */
        b[row] = prefill_tile_weight(top.steps[row], table);
        most[row] = top.steps[row] < least ? INFINITY : __int_as_float(top.most[row]);
    }
    prefill_weigh(s, most, packed);
}

/** A thread's sums of NUM 5.4: [row][token 8 further on][token odd]. */
struct prefill_partial {
    float sums[2][2][2];
};

/** Adds the tokens of groups [FROM, TO) of 16 to the thread's sums; s is p. */
template <int KD, int VD, int FROM, int TO>
CUDA_DEVICE void prefill_sum(const int32_t (&s)[64], const uint8_t *image, uint32_t t, prefill_partial &part)
{
    const prefill_parameters v = prefill_parameters_of<KD, VD>(image, t);
#pragma unroll
    for (int h = FROM; h < TO; ++h) {
        const float4 weight4 = v.weights[4 * h];
        const float weight[4] = {weight4.x, weight4.y, weight4.z, weight4.w};
#pragma unroll
        for (int row = 0; row < 2; ++row) {
#pragma unroll
            for (int at = 0; at < 4; ++at) {
                float &sum = part.sums[row][at / 2][at % 2];
                sum = nbl_fma(prefill_q(__int_as_float(s[8 * h + at / 2 * 4 + 2 * row + at % 2])), weight[at], sum);
            }
        }
    }
}

/** The thread's part of l, to be summed over its lanes: tree of NUM 5.4, tokens 2t and 2t + 1 with those 8 further
 *  on. */
CUDA_DEVICE void prefill_sum_up(const prefill_partial &part, float (&l)[2])
{
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        l[row] = (part.sums[row][0][0] + part.sums[row][1][0]) + (part.sums[row][0][1] + part.sums[row][1][1]);
    }
}

/** O = fma(float(A), b, O) (NUM 5.4). */
template <int N> CUDA_DEVICE void prefill_add_tile(const int32_t (&a)[N], const float (&b)[2], float (&o)[N])
{
#pragma unroll
    for (int i = 0; i < N; ++i) {
        o[i] = nbl_fma((float)a[i], b[i / 2 % 2], o[i]);
    }
}

/* ------------------------------------------------------------------------------------------------ chunks */

/** O of the chunks before, four numbers at a time: [N / 4] places, `stride` apart; the thread's own. */
struct prefill_total {
    float4 *o;
    uint32_t stride;
};

/** Head of the state of a row after the chunk (NUM 5.6). */
CUDA_DEVICE nbl_state_head prefill_chunk_head(const prefill_rows &r, int row, float offset)
{
    nbl_state_head head = {(float)(r.base[row] / PREFILL_STEPS), r.sum[row], offset, 0.0f};
    return r.sum[row] == 0.0f ? nbl_state_empty(offset) : head;
}

/** Heads of the merged chunks of a thread's rows. */
struct prefill_heads_merged {
    int32_t base[2]; /**< M, or PREFILL_EMPTY */
    float sum[2];    /**< L */
};

/** Merges the chunk into the rows' totals: O in o, the heads are returned (NUM 5.6). O of an empty state is -0 here,
 *  which is neutral. EARLY: the total is on its way while the heads are merged, in N registers more; before the first
 *  chunk it holds nothing, and is of no use. */
template <bool EARLY, int N>
CUDA_DEVICE prefill_heads_merged prefill_merge_chunk(const prefill_rows &r, const prefill_row *rows,
                                                     const prefill_total &total, float (&o)[N])
{
    const prefill_row *const at = rows + ptx_thread() % 32u / PREFILL_LANES;
    const int32_t left[2] = {at[0].base, at[8].base};
    const float sum[2] = {at[0].sum, at[8].sum};
    float4 early[N / 4];
#pragma unroll
    for (int k = 0; EARLY && k < N / 4; ++k) {
        early[k] = total.o[k * total.stride];
    }
    prefill_heads_merged merged;
    nbl_merge_scale scale[2];
    bool left_empty[2], right_empty[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        left_empty[row] = sum[row] == 0.0f;
        right_empty[row] = r.sum[row] == 0.0f;
        const int32_t right = right_empty[row] ? PREFILL_EMPTY : r.base[row] >> 8; /* of two empty states both are 1 */
        merged.base[row] = nbl_merge_scale_of_integers(left[row], right, &scale[row]);
        merged.sum[row] = nbl_merge_element(sum[row], r.sum[row], scale[row]);
    }
    if (__any_sync(FULL_WARP, right_empty[0] || right_empty[1])) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            o[i] = right_empty[i / 2 % 2] ? -0.0f : o[i];
        }
    }
    if (__all_sync(FULL_WARP, left_empty[0] && left_empty[1])) {
        return merged;
    }
#pragma unroll
    for (int k = 0; k < N / 4; ++k) {
        const float4 before = EARLY ? early[k] : total.o[k * total.stride];
        o[4 * k] = nbl_merge_element(before.x, o[4 * k], scale[0]);
        o[4 * k + 1] = nbl_merge_element(before.y, o[4 * k + 1], scale[0]);
        o[4 * k + 2] = nbl_merge_element(before.z, o[4 * k + 2], scale[1]);
        o[4 * k + 3] = nbl_merge_element(before.w, o[4 * k + 3], scale[1]);
    }
    return merged;
}

/** Keeps what prefill_merge_chunk made for the next chunk. All lanes have read the heads before. */
template <int N>
CUDA_DEVICE void prefill_keep_total(const prefill_heads_merged &merged, prefill_row *rows, const prefill_total &total,
                                    const float (&o)[N])
{
    const uint32_t lane = ptx_thread() % 32u;
    __syncwarp();
    if (lane % PREFILL_LANES == 0) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            rows[lane / PREFILL_LANES + 8u * row].base = merged.base[row];
            rows[lane / PREFILL_LANES + 8u * row].sum = merged.sum[row];
        }
    }
    __syncwarp();
#pragma unroll
    for (int k = 0; k < N / 4; ++k) {
        total.o[k * total.stride] = make_float4(o[4 * k], o[4 * k + 1], o[4 * k + 2], o[4 * k + 3]);
    }
}

/** Split: the chunk's states to the workspace. */
template <int N>
CUDA_DEVICE void prefill_store_states(const attend_params &p, const prefill_item &it, const prefill_rows &r,
                                      const prefill_row *rows, uint32_t first_row, const float (&o)[N])
{
    const uint32_t thread = ptx_thread();
    uint32_t g = thread % 32u / PREFILL_LANES, t = thread % PREFILL_LANES;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        uint32_t i = g + 8u * row;
        const prefill_row &at = rows[i];
        if (first_row + i >= it.rows) {
            continue;
        }
        uint64_t index = (uint64_t)at.token * p.q_heads + at.head;
        float *state = p.states + (index * p.chunks + it.chunk) * p.state_floats;
        nbl_state_head head = prefill_chunk_head(r, row, at.offset);
        if (t == 0) {
            *(float4 *)(void *)state = make_float4(head.base, head.sum, head.offset, 0.0f);
        }
#pragma unroll
        for (int k = 0; k < N / 8; ++k) {
            uint32_t element = N / 2 * t + (4u * k ^ prefill_swap(t));
            if (element < p.v_dim_padded) {
                float4 x = make_float4(o[8 * k + 2 * row], o[8 * k + 2 * row + 1], o[8 * k + 4 + 2 * row],
                                       o[8 * k + 4 + 2 * row + 1]);
                x = nbl_state_is_empty(&head) ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : x;
                *(float4 *)(void *)(state + CUDA_STATE_HEAD_FLOATS + element) = x;
            }
        }
    }
}

/* ------------------------------------------------------------------------------------------------ output */

template <int SHARE> CUDA_DEVICE void prefill_scale(float (&y)[SHARE], float factor)
{
#pragma unroll
    for (int i = 0; i < SHARE; ++i) {
        y[i] *= factor;
    }
}

/** Undoes v_hadamard on a row of SHARE elements a thread (NUM 5.7, 4.1). */
template <int SHARE> CUDA_DEVICE void prefill_hadamard_undo(float (&y)[SHARE], uint32_t n)
{
#pragma unroll
    for (uint32_t h = 1; h < SHARE; h *= 2u) {
        if (h < n) {
#pragma unroll
            for (uint32_t i = 0; i < SHARE; ++i) {
                if ((i & h) == 0) {
                    float low = y[i], high = y[i + h];
                    y[i] = low + high;
                    y[i + h] = low - high;
                }
            }
        }
    }
    for (uint32_t h = SHARE; h < n; h *= 2u) {
        const float sign = (threadIdx.x % PREFILL_LANES & h / SHARE) != 0 ? -1.0f : 1.0f;
#pragma unroll
        for (uint32_t i = 0; i < SHARE; ++i) {
            const float other = __shfl_xor_sync(FULL_WARP, y[i], (int)(h / SHARE));
            y[i] = nbl_fma(y[i], sign, other); /* other + y or other - y */
        }
    }
    prefill_scale(y, nbl_pow2(-nbl_log2_of(n)));
}

/** The same over the whole row, elements in the thread's order. Between lanes half of them are exchanged: a lane keeps
 *  those whose place has no bit 8 and gets the ones of its partner that pair with them. A difference may be that of the
 *  pair turned around; in the end its sign makes that good. Eight at a time the elements are those of
 *  prefill_whole_place then. Zeros become +0; those of NUM 4.1 are, too, unless all of the row are zeros. */
template <int SHARE> CUDA_DEVICE void prefill_hadamard_whole(float (&y)[SHARE])
{
    const uint32_t t = ptx_thread() % PREFILL_LANES;
    const float odd = (t & 1u) != 0 ? -1.0f : 1.0f, high = (t & 2u) != 0 ? -1.0f : 1.0f;
#pragma unroll
    for (uint32_t h = 1; h < SHARE; h *= 2u) {
#pragma unroll
        for (uint32_t i = 0; i < SHARE; ++i) {
            if ((i & h) == 0) {
                const float low = y[i], other = y[i + h];
                y[i] = h == 8u ? nbl_fma(low, odd, other) : low + other;
                y[i + h] = h == 8u ? nbl_fma(other, -odd, low) : low - other;
            }
        }
    }
#pragma unroll
    for (uint32_t step = 1; step <= 2u; ++step) {
        const float sign = step == 1u ? high : 1.0f;
#pragma unroll
        for (uint32_t i = 0; i < SHARE; ++i) {
            if ((i & 8u) == 0) {
                const float kept = y[i], received = __shfl_xor_sync(FULL_WARP, y[i + 8u], (int)step);
                y[i] = nbl_fma(kept, sign, received);
                y[i + 8u] = nbl_fma(kept, -sign, received);
            }
        }
    }
    constexpr float inverse = 0.25f / SHARE;
    const float first = (t & 2u) != 0 ? odd * -inverse : inverse, second = (t & 2u) != 0 ? first : -inverse;
#pragma unroll
    for (uint32_t i = 0; i < SHARE; ++i) {
        y[i] = nbl_fma(y[i], (i & 8u) == 0 ? first : second, 0.0f);
    }
}

/** First of elements 8*k to 8*k + 7 of lane t after prefill_hadamard_whole. */
template <int SHARE> CUDA_DEVICE uint32_t prefill_whole_place(uint32_t t, uint32_t k)
{
    return (k & 1u) * 2u * SHARE + t / 2u * SHARE + (k / 2u * 2u + (t & 1u)) * 8u;
}

/** Writes the thread's elements of a row, 16 bytes at a time; WHOLE: as prefill_hadamard_whole leaves them. */
template <int SHARE, bool WHOLE> CUDA_DEVICE void prefill_write_halves(const finish_target &to, const float (&y)[SHARE])
{
    const uint32_t t = ptx_thread() % PREFILL_LANES;
    const bool bf16 = to.o_dtype == NBL_BF16;
#pragma unroll
    for (uint32_t k = 0; k < SHARE / 8u; ++k) {
        uint32_t words[4];
#pragma unroll
        for (uint32_t i = 0; i < 4u; ++i) {
            const float low = y[8u * k + 2u * i], high = y[8u * k + 2u * i + 1u];
            words[i] = bf16 ? ptx_cvt_bf16x2(high, low) : ptx_cvt_f16x2(high, low);
        }
        const uint32_t element = WHOLE ? prefill_whole_place<SHARE>(t, k) : SHARE * t + 8u * k;
        if (WHOLE || element < to.dim) { /* dimensions are multiples of 8 */
            *(uint4 *)(void *)(to.o + 2u * element) = make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
}

/** Writes the thread's elements of a row. */
template <int SHARE> CUDA_DEVICE void prefill_write_o(const finish_target &to, const float (&y)[SHARE])
{
    const uint32_t first = SHARE * (threadIdx.x % PREFILL_LANES);
    if (to.o_dtype != NBL_F32 && to.o_stride == 2 && ((uint64_t)to.o & 15u) == 0) {
        prefill_write_halves<SHARE, false>(to, y);
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < SHARE; ++i) {
        if (first + i < to.dim) {
            cuda_element_write(to.o + (int64_t)(first + i) * to.o_stride, to.o_dtype, y[i]);
        }
    }
}

/** The thread's elements of a row, in its order, divided by the denominator; `inverse` is 0 for an empty row. */
template <int N> CUDA_DEVICE void prefill_divided_row(float inverse, const float (&o)[N], int row, float (&y)[N / 2])
{
#pragma unroll
    for (int k = 0; k < N / 4; ++k) {
        y[2 * k] = o[4 * k + 2 * row] * inverse;
        y[2 * k + 1] = o[4 * k + 2 * row + 1] * inverse;
    }
}

/** The thread's elements in the order of the row. */
template <int SHARE> CUDA_DEVICE void prefill_in_order(float (&y)[SHARE])
{
    const bool swaps = prefill_swap(ptx_thread() % PREFILL_LANES) != 0;
#pragma unroll
    for (uint32_t i = 0; i < SHARE; ++i) {
        if ((i & 8u) == 0) {
            const float low = y[i], high = y[i + 8u];
            y[i] = swaps ? high : low;
            y[i + 8u] = swaps ? low : high;
        }
    }
}

/** Output of any kind for a row of the warp. */
template <int N>
CUDA_DEVICE void prefill_finish_any(const attend_params &p, const prefill_row &at, float inverse, bool there,
                                    const float (&o)[N], int row)
{
    float y[N / 2];
    prefill_divided_row(inverse, o, row, y);
    prefill_in_order(y);
    if (p.v_hadamard != 0) {
        prefill_hadamard_undo(y, p.v_hadamard);
    }
    if (__any_sync(FULL_WARP, inverse == 0.0f)) {
#pragma unroll
        for (int k = 0; k < N / 2; ++k) {
            y[k] = inverse == 0.0f ? 0.0f : y[k];
        }
    }
    if (there && p.o.data != NULL) {
        prefill_write_o(finish_target_of(&p, at.token, at.head), y);
    }
}

/** A row that is all zeros before the butterflies, element 0 being -0: one is -0 after them, all else +0. A butterfly
 *  leaves -0 in its sum if both are -0, in its difference if only the first is; so each one tells where to look on. By
 *  all lanes of the warp. */
template <int N>
CUDA_DEVICE void prefill_negative_zero(const attend_params &p, const prefill_row &at, float inverse, bool there,
                                       const float (&o)[N], int row)
{
    constexpr uint32_t share = N / 2;
    const uint32_t lane = ptx_thread() % 32u, t = lane % PREFILL_LANES;
    uint32_t all = 0, minus = 0, d = 0;
    float y[share];
    prefill_divided_row(inverse, o, row, y);
#pragma unroll
    for (uint32_t i = 0; i < share; ++i) {
        all |= nbl_bits_of(y[i]) << 1;
        minus |= nbl_bits_of(y[i]) >> 31 << i;
    }
    minus = prefill_swap(t) != 0 ? __byte_perm(minus, 0, 0x2301) : minus;
    const uint32_t zeros = __ballot_sync(FULL_WARP, all == 0 && (t != 0 || (minus & 1u) != 0));
#pragma unroll 1
    for (uint32_t h = 1; h < 4u * share; h *= 2u) {
        const bool inside = h < share; /* the lane */
        const uint32_t other = inside ? minus >> h : __shfl_xor_sync(FULL_WARP, minus, (int)(h / share));
        const bool differs = (__shfl_sync(FULL_WARP, other, (int)(lane - t)) & 1u) == 0;
        d |= differs ? h : 0u;
        minus &= differs ? ~other : other;
    }
    if (there && t == 0 && inverse != 0.0f && (zeros >> lane & 15u) == 15u) {
        *(uint16_t *)(void *)(finish_target_of(&p, at.token, at.head).o + 2u * d) = 0x8000u;
    }
}

/** Output of rows that are one block of v_hadamard each, written 16 bytes at a time. Both rows of a thread side by
 *  side: each hides the other's exchanges. `at` are the thread's rows, 8 apart. */
template <int N>
CUDA_DEVICE void prefill_finish_whole(const attend_params &p, const prefill_row *at, const float (&inverse)[2],
                                      const bool (&there)[2], const float (&o)[N])
{
    float y[2][N / 2];
    bool zeros = false;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        prefill_divided_row(inverse[row], o, row, y[row]);
        prefill_hadamard_whole(y[row]);
        zeros = zeros || (there[row] && y[row][0] == 0.0f && y[row][1] == 0.0f);
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        if (there[row]) {
            prefill_write_halves<N / 2, true>(finish_target_of(&p, at[8 * row].token, at[8 * row].head), y[row]);
        }
    }
    if (__any_sync(FULL_WARP, zeros)) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            prefill_negative_zero(p, at[8 * row], inverse[row], there[row], o, row);
        }
    }
}

/** Sinks of both rows: to the heads, and to O. */
template <int N>
CUDA_DEVICE void prefill_add_sinks(const attend_params &p, const prefill_row *at, nbl_state_head (&heads)[2],
                                   float (&o)[N])
{
    float factor[2] = {1.0f, 1.0f};
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        nbl_state_add_sink(&heads[row], &factor[row], 1, p.sinks[at[8 * row].head]);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
        o[i] *= factor[i / 2 % 2];
    }
}

/** Writes LSE of a row (NUM 5.7). */
CUDA_DEVICE void prefill_write_lse(const attend_params &p, uint32_t token, uint32_t q_head, const nbl_state_head &head)
{
    const finish_target to = finish_target_of(&p, token, q_head);
    *to.lse = nbl_state_lse(&head, to.lse_base2);
}

/** Heads of the thread's rows with all chunks merged; sinks are added to them, and to O. `rows` are those of the
 *  warp. */
template <int N>
CUDA_DEVICE void prefill_end_heads(const attend_params &p, const prefill_row *rows, const prefill_heads_merged &merged,
                                   nbl_state_head (&heads)[2], float (&o)[N])
{
    const prefill_row *const at = rows + ptx_thread() % 32u / PREFILL_LANES;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        heads[row] = {(float)merged.base[row], merged.sum[row], at[8 * row].offset, 0.0f};
    }
    if (p.sinks != NULL) {
        prefill_add_sinks(p, at, heads, o);
    }
}

/** O of the warp's rows, whose totals are in o (NUM 5.7); `count` of `rows` are there. `heads` are prefill_end_heads of
 *  `merged`. */
template <int N>
CUDA_DEVICE void prefill_finish(const attend_params &p, const prefill_row *rows, uint32_t count,
                                const prefill_heads_merged &merged, const nbl_state_head (&heads)[2], float (&o)[N])
{
    const uint32_t lane = ptx_thread() % 32u, g = lane / PREFILL_LANES;
    const prefill_row *const at = rows + g;
    const bool there[2] = {g < count, g + 8u < count};
    const bool high = lane % 2u != 0; /* what a row needs once is computed once: by lanes for one row, and the other */
    const nbl_state_head head = high ? heads[1] : heads[0];
    float own = 1.0f;
    nbl_state_output(&head, &own, 1, 0);
    own = (high ? merged.sum[1] : merged.sum[0]) == 0.0f ? 0.0f : own; /* O of an empty state is 0, with a sink too */
    __syncwarp();
    const float inverse[2] = {__shfl_sync(FULL_WARP, own, (int)(lane & ~1u)),
                              __shfl_sync(FULL_WARP, own, (int)(lane | 1u))};
    if (p.whole_rows) {
        prefill_finish_whole(p, at, inverse, there, o);
        return;
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        prefill_finish_any(p, at[8 * row], inverse[row], there[row], o, row);
    }
}

#endif
