/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file page_tokens.cuh
 * @brief Where tokens are in pages, and moving their codes and scales between there and the lanes of vector32.cuh.
 *
 * A block works on groups of 32 tokens of one head, K or V. A lane reads and writes its words of K where they are:
 * neighbouring tokens have neighbouring words (F3). Bytes of V belong to four tokens in turn (F4), so its codes go
 * through shared memory, a row for each token, and quads of four tokens that are whole in the group are moved 16 bytes
 * at a time.
 */
#ifndef CUDA_PAGE_TOKENS_H
#define CUDA_PAGE_TOKENS_H

#include "quantize32.cuh"

#define QUAD NBL_LAYOUT_V_GROUP_TOKENS
#define QUADS (GROUP_TOKENS / QUAD)
#define STAGE_PADDING 16u /* bytes after a row, so that rows begin in different banks */

/** A token's place in its page. */
struct token_place {
    uint8_t *codes;       /**< first word of K, byte of column 0 of V; NULL: there is none */
    uint8_t *scales;      /**< its byte of plane 0 */
    uint32_t format;      /**< enum nbl_format; of some region where there is none */
    uint32_t stride;      /**< bytes from a word of K, or a column of V, to the next one */
    uint32_t plane_bytes; /**< from a plane to the next one */
    int32_t sequence;     /**< where the caller needs one */
};

/** Place of a token of a page's part. */
CUDA_DEVICE token_place token_place_of(const block16_part &part, uint32_t token)
{
    token_place at;
    bool is_k = part.kind == NBL_KIND_K;
    at.codes = part.codes + block16_code_byte(&part, token, 0);
    at.scales = part.scales + nbl_layout_scale_byte(part.page_tokens, 0, token);
    at.format = part.format;
    at.stride = is_k ? 4u * nbl_layout_group_width(part.page_tokens, token, NBL_LAYOUT_K_GROUP_TOKENS)
                     : nbl_layout_group_width(part.page_tokens, token, NBL_LAYOUT_V_GROUP_TOKENS);
    at.plane_bytes = part.page_tokens;
    at.sequence = 0;
    return at;
}

#define GROUPS_MAX 4u
#define TOKENS_MAX (GROUPS_MAX * GROUP_TOKENS) /* of a block */

/** Tokens of a block, in whole groups: as many as leave every multiprocessor several blocks,
 *  up to groups_max. */
static inline uint32_t block_tokens_for(uint32_t tokens, uint32_t kv_heads, uint32_t processors, uint32_t groups_max)
{
    uint32_t groups = (tokens + GROUP_TOKENS - 1u) / GROUP_TOKENS * kv_heads * 2u / (8u * processors);
    return GROUP_TOKENS * min(max(groups, 1u), groups_max);
}

/** Place of a slot; a bad one other than -1 is reported. */
CUDA_DEVICE token_place token_place_of_slot(const cuda_pages *pages, int64_t slot, uint32_t index, uint32_t kind,
                                            uint32_t head, uint32_t dim, cuda_status *status)
{
    token_place none = {NULL, NULL, kind == NBL_KIND_K ? pages->regions[0].k_format : pages->regions[0].v_format,
                        0,    0,    0};
    int64_t page = slot < 0 ? -1 : page_of_slot(slot, pages->page_tokens);
    const cuda_region *region = page < 0 ? NULL : cuda_region_find(pages, page);
    if (region == NULL) {
        if (slot != -1) {
            cuda_fault_report(status, CUDA_FAULT_SLOT, index, 0, slot, 0);
        }
        return none;
    }
    return token_place_of(block16_part_at(pages, region, (uint32_t)page, kind, head, dim),
                          (uint32_t)(slot - page * pages->page_tokens));
}

/* ------------------------------------------------------------------------------------------------ K */

/** Words of a lane's codes in a format of the integer core: as many as a code has bits. */
NBL_FN uint32_t words32(uint32_t format)
{
    return format == NBL_INT8 ? 8u : 4u;
}

CUDA_DEVICE void write_k_codes(const token_place &at, uint32_t b, const uint32_t (&words)[VECTOR32 / 4u])
{
    uint8_t *to = at.codes + b * words32(at.format) * at.stride;
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        *(uint32_t *)(void *)(to + i * at.stride) = words[i];
    }
    if (at.format == NBL_INT8) {
#pragma unroll
        for (uint32_t i = 4; i < 8u; ++i) {
            *(uint32_t *)(void *)(to + i * at.stride) = words[i];
        }
    }
}

CUDA_DEVICE void read_k_codes(const token_place &at, uint32_t b, uint32_t (&words)[VECTOR32 / 4u])
{
    uint32_t count = words32(at.format);
    const uint8_t *from = at.codes + b * count * at.stride;
#pragma unroll
    for (uint32_t i = 0; i < VECTOR32 / 4u; ++i) {
        words[i] = i < count ? *(const uint32_t *)(const void *)(from + i * at.stride) : 0u;
    }
}

/* ------------------------------------------------------------------------------------------------ V */

/** Bytes of a row of staged codes. */
NBL_FN uint32_t stage_row_bytes(uint32_t dim)
{
    return nbl_layout_dim_padded(dim) + STAGE_PADDING;
}

/* Words of K to columns of V (F4) or back: low nibbles are elements 0..15 of the lane, high ones 16..31. */
CUDA_DEVICE void columns_of_words(const uint32_t *words, uint32_t *columns)
{
#pragma unroll
    for (uint32_t i = 0; i < 2u; ++i) {
        columns[2u * i] = (words[i] & 0x0f0f0f0fu) | (words[2u + i] & 0x0f0f0f0fu) << 4;
        columns[2u * i + 1u] = (words[i] >> 4 & 0x0f0f0f0fu) | (words[2u + i] & 0xf0f0f0f0u);
    }
}

CUDA_DEVICE void words_of_columns(const uint32_t *columns, uint32_t *words)
{
#pragma unroll
    for (uint32_t i = 0; i < 2u; ++i) {
        words[i] = (columns[2u * i] & 0x0f0f0f0fu) | (columns[2u * i + 1u] & 0x0f0f0f0fu) << 4;
        words[2u + i] = (columns[2u * i] >> 4 & 0x0f0f0f0fu) | (columns[2u * i + 1u] & 0xf0f0f0f0u);
    }
}

/** A lane's codes into its token's row. */
CUDA_DEVICE void stage_v_codes(uint8_t *row, uint32_t b, uint32_t format, const uint32_t (&words)[VECTOR32 / 4u])
{
    uint4 *to = (uint4 *)(void *)(row + 4u * b * words32(format));
    if (format == NBL_INT8) {
        to[0] = make_uint4(words[0], words[1], words[2], words[3]);
        to[1] = make_uint4(words[4], words[5], words[6], words[7]);
    } else {
        uint32_t columns[4];
        columns_of_words(words, columns);
        to[0] = make_uint4(columns[0], columns[1], columns[2], columns[3]);
    }
}

/** A lane's codes out of its token's row. */
CUDA_DEVICE void unstage_v_codes(const uint8_t *row, uint32_t b, uint32_t format, uint32_t (&words)[VECTOR32 / 4u])
{
    const uint4 *from = (const uint4 *)(const void *)(row + 4u * b * words32(format));
    uint4 low = from[0];
    uint32_t first[4] = {low.x, low.y, low.z, low.w};
    if (format == NBL_INT8) {
        uint4 high = from[1];
        uint32_t second[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
        for (uint32_t i = 0; i < 4u; ++i) {
            words[i] = first[i];
            words[4u + i] = second[i];
        }
    } else {
        words_of_columns(first, words);
    }
}

/** Tokens of a group by how their V codes are moved. */
struct quad_lists {
    uint32_t quads;
    uint32_t singles;
    uint8_t quad[QUADS];          /**< first tokens of quads that are whole in the group */
    uint8_t single[GROUP_TOKENS]; /**< the other tokens */
};

/** Fills the lists of a group by one warp; places are those of its 32 tokens. A quad has the whole width and begins at
 *  a multiple of its size, which its address tells: parts and groups are multiples of 16 bytes (F2). */
CUDA_DEVICE void quad_lists_fill(quad_lists *lists, const token_place *places)
{
    uint32_t lane = threadIdx.x % WARP_LANES;
    const uint8_t *codes = places[lane].codes;
    bool begins = codes != NULL && places[lane].stride == QUAD && ((uint64_t)codes & (QUAD - 1u)) == 0 &&
                  lane + QUAD <= GROUP_TOKENS;
    for (uint32_t i = 1; begins && i < QUAD; ++i) {
        begins = places[lane + i].codes == codes + i;
    }
    uint32_t first = __ballot_sync(FULL_WARP, begins);
    uint32_t inside = first | first << 1 | first << 2 | first << 3;
    bool is_single = codes != NULL && (inside >> lane & 1u) == 0;
    uint32_t rest = __ballot_sync(FULL_WARP, is_single);
    uint32_t before = (1u << lane) - 1u;
    if (begins) {
        lists->quad[__popc(first & before)] = (uint8_t)lane;
    }
    if (is_single) {
        lists->single[__popc(rest & before)] = (uint8_t)lane;
    }
    if (lane == 0) {
        lists->quads = (uint32_t)__popc(first);
        lists->singles = (uint32_t)__popc(rest);
    }
}

/* Transposes a matrix of 4 x 4 bytes. */
CUDA_DEVICE uint4 transpose4(uint4 m)
{
    uint32_t a = ptx_prmt(m.x, m.y, 0x5140u), b = ptx_prmt(m.x, m.y, 0x7362u);
    uint32_t c = ptx_prmt(m.z, m.w, 0x5140u), d = ptx_prmt(m.z, m.w, 0x7362u);
    return make_uint4(ptx_prmt(a, c, 0x5410u), ptx_prmt(a, c, 0x7632u), ptx_prmt(b, d, 0x5410u),
                      ptx_prmt(b, d, 0x7632u));
}

CUDA_DEVICE uint32_t *stage_word(uint8_t *stage, uint32_t row_bytes, uint32_t token, uint32_t c)
{
    return (uint32_t *)(void *)(stage + token * row_bytes + 4u * c);
}

/* How the threads of a block share rows of columns: each takes a word of 4-bit columns, int8 goes round twice. */
struct column_share {
    uint32_t step;  /* words of a row */
    uint32_t word;  /* the thread's first one */
    uint32_t first; /* its first row */
    uint32_t rows;  /* taken at a time; a thread past them has none */
};

CUDA_DEVICE column_share column_share_of(uint32_t dim)
{
    column_share out;
    out.step = nbl_layout_dim_padded(dim) / 8u;
    out.rows = blockDim.x / out.step;
    out.first = threadIdx.x / out.step;
    out.word = threadIdx.x - out.first * out.step;
    return out;
}

/** Staged rows of a group to their pages, by all threads of the block, between barriers. */
CUDA_DEVICE void write_v_codes(const quad_lists *lists, const token_place *places, uint8_t *stage, uint32_t dim)
{
    uint32_t row_bytes = stage_row_bytes(dim);
    column_share share = column_share_of(dim);
    if (share.first >= share.rows) {
        return;
    }
    for (uint32_t i = share.first; i < lists->quads; i += share.rows) {
        uint32_t t = lists->quad[i];
        uint32_t words = share.step * words32(places[t].format) / 4u;
        for (uint32_t c = share.word; c < words; c += share.step) {
            uint4 m = make_uint4(*stage_word(stage, row_bytes, t, c), *stage_word(stage, row_bytes, t + 1u, c),
                                 *stage_word(stage, row_bytes, t + 2u, c), *stage_word(stage, row_bytes, t + 3u, c));
            ((uint4 *)(void *)places[t].codes)[c] = transpose4(m);
        }
    }
    for (uint32_t i = share.first; i < lists->singles; i += share.rows) {
        uint32_t t = lists->single[i];
        uint32_t words = share.step * words32(places[t].format) / 4u;
        for (uint32_t c = share.word; c < words; c += share.step) {
            uint32_t word = *stage_word(stage, row_bytes, t, c);
            for (uint32_t j = 0; j < 4u; ++j) {
                places[t].codes[(4u * c + j) * places[t].stride] = (uint8_t)(word >> (8u * j));
            }
        }
    }
}

/** Codes in pages to staged rows, likewise. */
CUDA_DEVICE void read_v_codes(const quad_lists *lists, const token_place *places, uint8_t *stage, uint32_t dim)
{
    uint32_t row_bytes = stage_row_bytes(dim);
    column_share share = column_share_of(dim);
    if (share.first >= share.rows) {
        return;
    }
    for (uint32_t i = share.first; i < lists->quads; i += share.rows) {
        uint32_t t = lists->quad[i];
        uint32_t words = share.step * words32(places[t].format) / 4u;
        for (uint32_t c = share.word; c < words; c += share.step) {
            uint4 m = transpose4(((const uint4 *)(const void *)places[t].codes)[c]);
            *stage_word(stage, row_bytes, t, c) = m.x;
            *stage_word(stage, row_bytes, t + 1u, c) = m.y;
            *stage_word(stage, row_bytes, t + 2u, c) = m.z;
            *stage_word(stage, row_bytes, t + 3u, c) = m.w;
        }
    }
    for (uint32_t i = share.first; i < lists->singles; i += share.rows) {
        uint32_t t = lists->single[i];
        uint32_t words = share.step * words32(places[t].format) / 4u;
        for (uint32_t c = share.word; c < words; c += share.step) {
            uint32_t word = 0;
            for (uint32_t j = 0; j < 4u; ++j) {
                word |= (uint32_t)places[t].codes[(4u * c + j) * places[t].stride] << (8u * j);
            }
            *stage_word(stage, row_bytes, t, c) = word;
        }
    }
}

/* ------------------------------------------------------------------------------------------------ whole quads */

/** 1 if the tokens t..t+3 lie side by side as a whole quad of V (F4); see quad_lists_fill. */
CUDA_DEVICE bool quad_is_whole(const token_place *places)
{
    const uint8_t *codes = places[0].codes;
    bool whole = codes != NULL && places[0].stride == QUAD && ((uint64_t)codes & (QUAD - 1u)) == 0;
    for (uint32_t i = 1; whole && i < QUAD; ++i) {
        whole = places[i].codes == codes + i;
    }
    return whole;
}

/** Writes V codes of a lane's quad from the staged rows of its tokens, each lane a quarter of the words of its block of
 *  32. quad: the first token's row; r: the lane's token in the quad. */
CUDA_DEVICE void write_v_quad(const token_place &at, uint8_t *quad, uint32_t row_bytes, uint32_t b, uint32_t r)
{
    uint32_t words = words32(at.format);
    uint4 *to = (uint4 *)(void *)(at.codes - r);
    for (uint32_t c = b * words + r; c < (b + 1u) * words; c += QUAD) {
        uint4 m = make_uint4(*stage_word(quad, row_bytes, 0, c), *stage_word(quad, row_bytes, 1, c),
                             *stage_word(quad, row_bytes, 2, c), *stage_word(quad, row_bytes, 3, c));
        to[c] = transpose4(m);
    }
}

/** The other way round: V codes of a quad into the rows of its tokens, which may be more than have been stored. */
CUDA_DEVICE void read_v_quad(const token_place &at, uint8_t *quad, uint32_t row_bytes, uint32_t b, uint32_t r)
{
    uint32_t words = words32(at.format);
    const uint4 *from = (const uint4 *)(const void *)(at.codes - r);
    for (uint32_t c = b * words + r; c < (b + 1u) * words; c += QUAD) {
        uint4 m = transpose4(from[c]);
        *stage_word(quad, row_bytes, 0, c) = m.x;
        *stage_word(quad, row_bytes, 1, c) = m.y;
        *stage_word(quad, row_bytes, 2, c) = m.z;
        *stage_word(quad, row_bytes, 3, c) = m.w;
    }
}

/** V codes of a lane's block of 32 byte by byte into its token's row. */
CUDA_DEVICE void read_v_single(const token_place &at, uint8_t *row, uint32_t b)
{
    uint32_t words = words32(at.format);
#pragma unroll 1
    for (uint32_t c = b * words; c < (b + 1u) * words; ++c) {
        uint32_t word = 0;
        for (uint32_t j = 0; j < 4u; ++j) {
            word |= (uint32_t)at.codes[(4u * c + j) * at.stride] << (8u * j);
        }
        *stage_word(row, 0, 0, c) = word;
    }
}

/** Writes V codes of a lane's block of 32 byte by byte from its token's row. */
CUDA_DEVICE void write_v_single(const token_place &at, uint8_t *row, uint32_t b)
{
    uint32_t words = words32(at.format);
#pragma unroll 1
    for (uint32_t c = b * words; c < (b + 1u) * words; ++c) {
        uint32_t word = *stage_word(row, 0, 0, c);
        for (uint32_t j = 0; j < 4u; ++j) {
            at.codes[(4u * c + j) * at.stride] = (uint8_t)(word >> (8u * j));
        }
    }
}

/** Trades blocks of 16 between neighbours after halves32_hadamard, so that each has a block of 32, number
 *  halves32_place. All lanes of the warp call it. */
CUDA_DEVICE void halves32_regroup(const halves32 &h, uint32_t format, codes32 *q)
{
    if (h.steps == 0) {
        return;
    }
    bool is_odd = h.swaps != 0; /* keeps its second half */
    bool is_int8 = format == NBL_INT8;
    uint32_t half[2][4] = {
        {q->words[0], q->words[1], q->words[2], q->words[3]},
        {is_int8 ? q->words[4] : q->words[2], is_int8 ? q->words[5] : q->words[3], q->words[6], q->words[7]}};
    uint32_t words = __any_sync(FULL_WARP, is_int8) ? 4u : 2u;
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        if (i < words) {
            uint32_t received = __shfl_xor_sync(FULL_WARP, is_odd ? half[0][i] : half[1][i], 1);
            half[0][i] = is_odd ? received : half[0][i];
            half[1][i] = is_odd ? half[1][i] : received;
        }
    }
    uint32_t received = __shfl_xor_sync(FULL_WARP, is_odd ? q->multiplier[0] : q->multiplier[1], 1);
    q->multiplier[0] = is_odd ? received : q->multiplier[0];
    q->multiplier[1] = is_odd ? q->multiplier[1] : received;
    q->words[0] = half[0][0];
    q->words[1] = half[0][1];
    q->words[2] = is_int8 ? half[0][2] : half[1][0];
    q->words[3] = is_int8 ? half[0][3] : half[1][1];
    q->words[4] = half[1][0];
    q->words[5] = half[1][1];
    q->words[6] = half[1][2];
    q->words[7] = half[1][3];
}

/* ------------------------------------------------------------------------------------------------ scales */

/** Writes the scale bytes that the lane with block b of 32 is responsible for (F5). */
template <uint32_t FAMILY>
CUDA_DEVICE void write_scales(const token_place &at, const team32 &team, uint32_t b, const codes32 &q)
{
    uint8_t exponent = nbl_e8m0_encode(q.exponent[0]);
    if ((FAMILY == FAMILY_INT4P || FAMILY == FAMILY_ANY) && at.format == NBL_INT4P) {
        at.scales[b * at.plane_bytes] = (uint8_t)((q.multiplier[0] - 1u) | (q.multiplier[1] - 1u) << 4);
        if (b == 0) {
            at.scales[team.size * at.plane_bytes] = exponent;
        }
    } else if ((FAMILY == FAMILY_MXFP4 || FAMILY == FAMILY_ANY) && at.format == NBL_MXFP4_16) {
        at.scales[2u * b * at.plane_bytes] = exponent;
        at.scales[(2u * b + 1u) * at.plane_bytes] = nbl_e8m0_encode(q.exponent[1]);
    } else if (at.format == NBL_MXFP4 || b == 0) {
        at.scales[b * at.plane_bytes] = exponent;
    }
}

/** Units of the lane's halves: what their element codes are multiples of, m * 2^E (NUM 2.3 to 2.5). Bytes that no
 *  quantizer writes give what nbl_vector_canonical gives. may_be_mxfp4 as in quantize32; all lanes call it, has_place
 *  tells those with a token. */
CUDA_DEVICE void read_units(const token_place &at, const team32 &team, bool may_be_mxfp4, bool has_place,
                            float (&unit)[2])
{
    int32_t exponent[2] = {NBL_E_MAX, NBL_E_MAX};
    if (has_place && nbl_layout_is_mxfp4(at.format)) {
        uint32_t first = at.format == NBL_MXFP4_16 ? 2u * team.b : team.b;
        uint32_t second = at.format == NBL_MXFP4_16 ? first + 1u : first;
        exponent[0] = nbl_e8m0_decode_slot(at.scales[first * at.plane_bytes]);
        exponent[1] = nbl_e8m0_decode_slot(at.scales[second * at.plane_bytes]);
    }
    int32_t least = min(exponent[0], exponent[1]);
    if (may_be_mxfp4) {
        least = NBL_E_MAX - (int32_t)team32_max(team, (uint32_t)(NBL_E_MAX - least));
    }
    unit[0] = unit[1] = 0.0f;
    if (!has_place) {
        return;
    }
    if (nbl_layout_is_mxfp4(at.format)) { /* E = least - 1 */
        unit[0] = nbl_pow2(least - 1 + ((exponent[0] - least) & NBL_BLOCK_E_SPREAD));
        unit[1] = nbl_pow2(least - 1 + ((exponent[1] - least) & NBL_BLOCK_E_SPREAD));
        return;
    }
    uint32_t plane = at.format == NBL_INT4P ? team.size : 0u;
    unit[0] = unit[1] = nbl_pow2(nbl_e8m0_decode_slot(at.scales[plane * at.plane_bytes]));
    if (at.format == NBL_INT4P) {
        uint32_t pair = at.scales[team.b * at.plane_bytes];
        unit[0] *= (float)((pair & 15u) + 1u);
        unit[1] *= (float)((pair >> 4) + 1u);
    }
}

/* ------------------------------------------------------------------------------------------------ counting */

/** Totals of a block, in shared memory. */
struct block_stats {
    uint32_t vectors;
    uint32_t nan_inputs;
    uint32_t inf_inputs;
    uint32_t saturated;
    uint32_t flushed;
};

/* Sum over the warp into the block's total. */
CUDA_DEVICE void add_block(uint32_t *total, uint32_t value)
{
    value = __reduce_add_sync(FULL_WARP, value);
    if (threadIdx.x % WARP_LANES == 0 && value != 0) {
        atomicAdd(total, value);
    }
}

/** Counts what vector32_sanitize found (NUM 3.1). active: the lane has a token; all lanes call it. */
CUDA_DEVICE void block_stats_add_inputs(block_stats *total, const block16_counts &counts, bool active)
{
    add_block(&total->nan_inputs, active ? counts.nan_inputs : 0u);
    add_block(&total->inf_inputs, active ? counts.inf_inputs : 0u);
    add_block(&total->saturated, active ? counts.saturated : 0u);
}

/** Counts vectors (NUM 3.3), likewise. counts: the lane is the first one of a vector; nonzero: some code of the vector
 *  is not that of zero; most: its largest magnitude, as bits; saturated: of the lane's elements. */
CUDA_DEVICE void block_stats_add_vectors(block_stats *total, bool counts, uint32_t nonzero, uint32_t most,
                                         uint32_t saturated)
{
    add_block(&total->vectors, counts);
    add_block(&total->saturated, saturated);
    add_block(&total->flushed, counts && most != 0 && nonzero == 0);
}

/** The same of what quantize32 found. */
CUDA_DEVICE void block_stats_add(block_stats *total, const codes32 &q, const range32 &range, const team32 &team,
                                 uint32_t format, bool active)
{
    uint32_t nonzero = team32_max(team, codes32_nonzero(q, format));
    block_stats_add_vectors(total, active && team.b == 0, nonzero, range.vector, active ? q.saturated : 0u);
}

CUDA_DEVICE void add_global(uint64_t *counter, uint32_t value)
{
    if (value != 0) {
        atomicAdd((unsigned long long *)counter, (unsigned long long)value);
    }
}

/** Adds the totals of a block to the caller's; after a barrier, by one thread. */
CUDA_DEVICE void block_stats_flush(const block_stats &total, nbl_quant_stats *stats)
{
    add_global(&stats->vectors, total.vectors);
    add_global(&stats->nan_inputs, total.nan_inputs);
    add_global(&stats->inf_inputs, total.inf_inputs);
    add_global(&stats->saturated, total.saturated);
    add_global(&stats->flushed, total.flushed);
}

#endif
