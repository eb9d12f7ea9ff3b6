/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file stored.cuh
 * @brief Stored vectors as the kernels that walk tiles of 128 tokens read them: exponents, block multipliers, words of
 * V (NUM 2, docs/formats.md F3 to F5).
 */
#ifndef CUDA_STORED_H
#define CUDA_STORED_H

#include "../attend.h"
#include "block16.cuh"
#include "decode4.cuh"

#define STORED_QUAD 4u /**< tokens of a V word */

/** Exponent E of a stored vector; for mxfp4 that of its smallest block, less one. */
CUDA_DEVICE int32_t stored_exponent(const block16_part &part, const uint8_t *scales)
{
    if (!nbl_layout_is_mxfp4(part.format)) {
        uint32_t plane = nbl_layout_exponent_plane(part.format, part.dim);
        return nbl_e8m0_decode_slot(scales[plane * part.page_tokens]);
    }
    int32_t least = NBL_BLOCK_E_MAX;
    for (uint32_t b = 0; b < nbl_layout_scale_planes(part.format, part.dim); ++b) {
        least = min(least, nbl_e8m0_decode_slot(scales[b * part.page_tokens]));
    }
    return least - 1;
}

/** Scale byte of a block of 16 of a 4-bit format. */
CUDA_DEVICE uint8_t stored_scale(const block16_part &part, const uint8_t *scales, uint32_t b)
{
    return scales[(part.format == NBL_MXFP4_16 ? b : b / 2u) * part.page_tokens];
}

/** What its codes are multiplied with; 2^(e_b - e_min) for mxfp4. */
CUDA_DEVICE uint32_t stored_multiplier_of(uint32_t format, uint8_t scale, uint32_t b, int32_t exponent)
{
    if (format == NBL_INT4P) {
        return ((uint32_t)scale >> (4u * (b % 2u)) & 15u) + 1u;
    }
    return 1u << ((nbl_e8m0_decode_slot(scale) - exponent - 1) & (int32_t)NBL_BLOCK_E_SPREAD);
}

/** The same of any format. */
CUDA_DEVICE uint32_t stored_multiplier(const block16_part &part, const uint8_t *scales, uint32_t b, int32_t exponent)
{
    return part.format == NBL_INT8 ? 1u : stored_multiplier_of(part.format, stored_scale(part, scales, b), b, exponent);
}

/** Where V of the tokens of a tile is, in shared memory. */
struct stored_v {
    const uint8_t *codes[CUDA_TILE_TOKENS]; /**< code byte of element 0, NULL past the length */
    uint32_t stride[CUDA_TILE_TOKENS];      /**< bytes from column to column */
    uint32_t format[CUDA_TILE_TOKENS];
};

/** Codes of elements d and d + 16 of four tokens, without block multipliers; column as in F4 for 4-bit formats. */
struct stored_words {
    uint32_t low;
    uint32_t high;
};

/** The token's share of stored_words, in byte i. */
CUDA_DEVICE stored_words stored_v_token(const stored_v &v, uint32_t t, uint32_t d, uint32_t column, uint32_t i)
{
    stored_words words = {0, 0};
    const uint8_t *at = v.codes[t];
    uint32_t stride = v.stride[t];
    if (at == NULL) {
        return words;
    }
    if (v.format[t] == NBL_INT8) {
        words.low = (uint32_t)at[d * stride] << (8u * i);
        words.high = (uint32_t)at[(d + BLOCK16) * stride] << (8u * i);
    } else {
        uint32_t byte = at[column * stride];
        words.low = ((uint32_t)decode4_unit(v.format[t], byte & 15u) & 0xffu) << (8u * i);
        words.high = ((uint32_t)decode4_unit(v.format[t], byte >> 4) & 0xffu) << (8u * i);
    }
    return words;
}

/** The same for four tokens that share the words of a page. */
CUDA_DEVICE stored_words stored_v_group(const stored_v &v, uint32_t t, uint32_t d, uint32_t column)
{
    const uint32_t *at = (const uint32_t *)(const void *)v.codes[t];
    stored_words words = {0, 0};
    if (at == NULL) {
        return words;
    }
    if (v.format[t] == NBL_INT8) {
        words.low = at[d];
        words.high = at[d + BLOCK16];
    } else if (v.format[t] == NBL_INT4P) {
        words.low = decode4_int4p(at[column], 1);
        words.high = decode4_int4p(at[column] >> 4, 1);
    } else {
        words.low = decode4_e2m1(at[column], 0);
        words.high = decode4_e2m1(at[column] >> 4, 0);
    }
    return words;
}

/** Elements d and d + 16 of tokens t..t+3, without block multipliers. whole_groups: pages hold whole quads. */
CUDA_DEVICE stored_words stored_v_quad(const stored_v &v, uint32_t t, uint32_t d, uint32_t column, bool whole_groups)
{
    if (whole_groups) {
        return stored_v_group(v, t, d, column);
    }
    stored_words words = {0, 0};
    for (uint32_t k = 0; k < STORED_QUAD; ++k) {
        stored_words one = stored_v_token(v, t + k, d, column, k);
        words.low |= one.low;
        words.high |= one.high;
    }
    return words;
}

/** Positions that a query token at `position` sees, tree mask aside (NUM 5.2): [first, end), clamped to the cache. */
struct visible_range {
    int32_t first;
    int32_t end;
};

CUDA_DEVICE visible_range visible_range_of(const attend_params &p, int64_t kv_len, int64_t position)
{
    int64_t first = p.range_begin;
    int64_t end = min(kv_len, (int64_t)p.range_end);
    if (p.flags & NBL_ATTEND_CAUSAL) {
        end = min(end, position + 1);
    }
    if (p.flags & NBL_ATTEND_WINDOW_RIGHT) {
        end = min(end, position + (int64_t)p.window_right + 1);
    }
    if (p.flags & NBL_ATTEND_WINDOW_LEFT) {
        first = max(first, position - (int64_t)p.window_left);
    }
    visible_range r;
    r.first = (int32_t)min(first, kv_len);
    r.end = (int32_t)max(end, (int64_t)r.first);
    return r;
}

#endif
