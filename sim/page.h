/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file page.h
 * @brief One stored vector to and from its place in a page (F2 to F6).
 */
#ifndef SIM_PAGE_H
#define SIM_PAGE_H

#include "float_format.h"
#include "isa.h"

/** A head's part of one page, K or V. */
typedef struct sim_part {
    uint32_t format;
    uint32_t dim;
    uint32_t page_tokens;
    enum nbl_kind kind;
    uint8_t *codes;
    uint8_t *scales;
} sim_part;

/** Part of a page of a region whose layout is known. */
static inline sim_part sim_part_in(const nbl_kv_shape *shape, const nbl_region *region, const nbl_page_layout *layout,
                                   uint32_t layer, uint32_t page, enum nbl_kind kind, uint32_t head)
{
    sim_part part;
    part.format = kind == NBL_KIND_K ? region->k_format : region->v_format;
    part.dim = kind == NBL_KIND_K ? shape->k_dim : shape->v_dim;
    part.page_tokens = shape->page_tokens;
    part.kind = kind;
    part.codes = nbl_layout_codes(region, layout, layer, page, kind, head);
    part.scales = nbl_layout_scales(region, layout, layer, page, kind, head);
    return part;
}

/** Part of a page that is known to exist. */
static inline sim_part sim_part_at(const nbl_pool *pool, uint32_t layer, uint32_t page, enum nbl_kind kind,
                                   uint32_t head)
{
    const nbl_region *region = nbl_layout_region_find(pool, page);
    nbl_page_layout layout = nbl_layout_page(pool->shape, region->k_format, region->v_format);
    return sim_part_in(pool->shape, region, &layout, layer, page, kind, head);
}

/** Scale of a head of a layer (NUM 6.7). */
static inline float sim_scale_of(const nbl_pool *pool, enum nbl_kind kind, uint32_t layer, uint32_t head)
{
    return nbl_head_scale(kind == NBL_KIND_K ? pool->k_scale : pool->v_scale,
                          (uint64_t)layer * pool->shape->kv_heads + head);
}

static inline uint64_t sim_code_byte(const sim_part *part, uint32_t token, uint32_t d)
{
    return part->kind == NBL_KIND_K ? nbl_layout_k_code_byte(part->format, part->dim, part->page_tokens, token, d)
                                    : nbl_layout_v_code_byte(part->format, part->dim, part->page_tokens, token, d);
}

/** Distance in elements between the two codes of a byte of a 4-bit format. */
static inline uint32_t sim_nibble_distance(enum nbl_kind kind)
{
    return kind == NBL_KIND_K ? 4u : 16u;
}

/** 1 if element d is the low one of its byte (always, for 8 bits). */
static inline int sim_is_low(const sim_part *part, uint32_t d)
{
    uint32_t shift =
        part->kind == NBL_KIND_K ? nbl_layout_k_code_shift(part->format, d) : nbl_layout_v_code_shift(part->format, d);
    return shift == 0;
}

/** K: words of four bytes, a group's width apart (F3). */
static inline void sim_part_store_k(const sim_part *part, uint32_t token, const nbl_vector *v)
{
    uint32_t step = nbl_layout_group_width(part->page_tokens, token, NBL_LAYOUT_K_GROUP_TOKENS) * 4u;
    uint32_t padded = nbl_layout_dim_padded(part->dim);
    uint8_t *to = part->codes + sim_code_byte(part, token, 0);
    if (nbl_layout_code_bits(part->format) == 8u) {
        for (uint32_t d = 0; d < padded; d += 4u, to += step) {
            memcpy(to, v->codes + d, 4u);
        }
        return;
    }
    for (uint32_t d = 0; d < padded; d += 8u, to += step) {
        uint32_t low, high;
        memcpy(&low, v->codes + d, 4u);
        memcpy(&high, v->codes + d + 4u, 4u);
        low |= high << 4; /* codes have four bits: nothing crosses a byte */
        memcpy(to, &low, 4u);
    }
}

/** V: bytes, a group's width apart (F4). */
static inline void sim_part_store_v(const sim_part *part, uint32_t token, const nbl_vector *v)
{
    uint32_t step = nbl_layout_group_width(part->page_tokens, token, NBL_LAYOUT_V_GROUP_TOKENS);
    uint32_t padded = nbl_layout_dim_padded(part->dim);
    uint8_t *to = part->codes + sim_code_byte(part, token, 0);
    if (nbl_layout_code_bits(part->format) == 8u) {
        for (uint32_t d = 0; d < padded; ++d, to += step) {
            *to = v->codes[d];
        }
        return;
    }
    for (const uint8_t *codes = v->codes; codes < v->codes + padded; codes += 32) {
        for (uint32_t d = 0; d < 16u; ++d, to += step) {
            *to = (uint8_t)(codes[d] | codes[d + 16u] << 4);
        }
    }
}

/** 32 codes of four bits as 16 bytes: elements i and i + 16 share one (F4). */
static inline void sim_pack_nibbles(const uint8_t *codes, uint8_t *to)
{
    uint64_t word[4];
    memcpy(word, codes, sizeof word);
    word[0] |= word[2] << 4; /* codes have four bits: nothing crosses a byte */
    word[1] |= word[3] << 4;
    memcpy(to, word, 16u);
}

/** Codes of V of a whole group of four tokens, of which `token` is the first: not of a 16-bit format. */
static inline void sim_part_store_v_quad(const sim_row_loops *loops, const sim_part *part, uint32_t token,
                                         const nbl_vector *v)
{
    uint32_t padded = nbl_layout_dim_padded(part->dim);
    uint8_t *to = part->codes + sim_code_byte(part, token, 0);
    if (nbl_layout_code_bits(part->format) == 8u) {
        loops->interleave(v->codes, sizeof *v, padded, to);
        return;
    }
    uint8_t packed[4][NBL_DIM_PADDED_MAX / 2u];
    for (uint32_t t = 0; t < 4u; ++t) {
        for (uint32_t d = 0; d < padded; d += 32u) {
            sim_pack_nibbles(v[t].codes + d, packed[t] + d / 2u);
        }
    }
    loops->interleave(packed[0], sizeof packed[0], padded / 2u, to);
}

/** 16-bit codes, K and V alike: units of 8 elements, a group's width apart (F3). */
static inline void sim_part_store_halves(const sim_part *part, uint32_t token, const nbl_vector *v)
{
    for (uint32_t d = 0; d < nbl_layout_dim_padded(part->dim); d += 8u) {
        memcpy(part->codes + sim_code_byte(part, token, d), v->halves + d, 16u);
    }
}

static inline void sim_part_store_scales(const sim_part *part, uint32_t token, const nbl_vector *v)
{
    for (uint32_t plane = 0; plane < nbl_layout_scale_planes(part->format, part->dim); ++plane) {
        part->scales[nbl_layout_scale_byte(part->page_tokens, plane, token)] = v->scales[plane];
    }
}

/** Writes a vector into a slot of the page; touches no byte of another token. */
static inline void sim_part_store(const sim_part *part, uint32_t token, const nbl_vector *v)
{
    if (nbl_layout_code_bits(part->format) == 16u) {
        sim_part_store_halves(part, token, v);
    } else if (part->kind == NBL_KIND_K) {
        sim_part_store_k(part, token, v);
    } else {
        sim_part_store_v(part, token, v);
    }
    sim_part_store_scales(part, token, v);
}

/** sim_part_store of V for the four tokens from `token` on, a multiple of 4, all of the page. */
static inline void sim_part_store_quad(const sim_row_loops *loops, const sim_part *part, uint32_t token,
                                       const nbl_vector *v)
{
    const int is_wide = nbl_layout_code_bits(part->format) == 16u;
    if (!is_wide) {
        sim_part_store_v_quad(loops, part, token, v);
    }
    for (uint32_t t = 0; t < 4u; ++t) {
        if (is_wide) {
            sim_part_store_halves(part, token + t, &v[t]);
        }
        sim_part_store_scales(part, token + t, &v[t]);
    }
}

/** Reads a slot of the page. */
static inline void sim_part_load(const sim_part *part, uint32_t token, nbl_vector *v)
{
    uint32_t padded = nbl_layout_dim_padded(part->dim);
    uint32_t bits = nbl_layout_code_bits(part->format);
    v->format = part->format;
    v->dim = part->dim;
    for (uint32_t d = 0; bits == 16u && d < padded; d += 8u) {
        memcpy(v->halves + d, part->codes + sim_code_byte(part, token, d), 16u);
    }
    for (uint32_t d = 0; bits != 16u && d < padded; ++d) {
        if (sim_is_low(part, d)) {
            uint8_t byte = part->codes[sim_code_byte(part, token, d)];
            if (bits == 8u) {
                v->codes[d] = byte;
            } else {
                v->codes[d] = byte & 15u;
                v->codes[d + sim_nibble_distance(part->kind)] = byte >> 4;
            }
        }
    }
    for (uint32_t plane = 0; plane < nbl_layout_scale_planes(part->format, part->dim); ++plane) {
        v->scales[plane] = part->scales[nbl_layout_scale_byte(part->page_tokens, plane, token)];
    }
}

#endif
