/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file layout.h
 * @brief Where the bytes of a KV cache are: sizes and offsets of docs/formats.md F1 to F6, not their meaning.
 *
 * All results are 64-bit: a page may lie beyond 2^32 bytes. Arguments are taken as checked (ranges of nibble_types.h,
 * known formats, page inside the region, token inside the page, head inside the shape).
 */
#ifndef NBL_NUM_LAYOUT_H
#define NBL_NUM_LAYOUT_H

#include "fn.h"

#include <nibble/nibble_types.h>

#define NBL_LAYOUT_ALIGNMENT 16u      /**< of pool addresses, strides and every head's part (F2, F6) */
#define NBL_LAYOUT_DIM_BLOCK 32u      /**< stored dimensions are multiples of it (F1) */
#define NBL_LAYOUT_K_GROUP_TOKENS 32u /**< tokens side by side in K codes (F3) */
#define NBL_LAYOUT_V_GROUP_TOKENS 4u  /**< tokens side by side in V codes (F4) */

/** Which vector of a token. */
enum nbl_kind { NBL_KIND_K = 0, NBL_KIND_V = 1 };

/* ------------------------------------------------------------------------------------------------ F1: vectors */

/** Dp = 32 * ceil(D / 32), the stored dimension (F1). */
NBL_FN uint32_t nbl_layout_dim_padded(uint32_t dim)
{
    return (dim + NBL_LAYOUT_DIM_BLOCK - 1u) / NBL_LAYOUT_DIM_BLOCK * NBL_LAYOUT_DIM_BLOCK;
}

/** Bits of one element code: 16, 8, 4, or 0 for a format that does not exist. */
NBL_FN uint32_t nbl_layout_code_bits(uint32_t format)
{
    switch (format) {
    case NBL_FORMAT_BF16:
    case NBL_FORMAT_FP16: return 16u;
    case NBL_INT8:
    case NBL_FP8_E4M3: return 8u;
    case NBL_MXFP4:
    case NBL_MXFP4_16:
    case NBL_INT4P:
    case NBL_NVFP4: return 4u;
    default: return 0u;
    }
}

/** Bytes of the codes of one vector of D elements (F1). */
NBL_FN uint32_t nbl_layout_code_bytes(uint32_t format, uint32_t dim)
{
    return nbl_layout_dim_padded(dim) * nbl_layout_code_bits(format) / 8u;
}

/** Scale planes, which are also the scale bytes of one vector of D elements (F1, F5); 0 for an unknown format. */
NBL_FN uint32_t nbl_layout_scale_planes(uint32_t format, uint32_t dim)
{
    const uint32_t dim_padded = nbl_layout_dim_padded(dim);
    switch (format) {
    case NBL_INT8: return 1u;
    case NBL_MXFP4: return dim_padded / 32u;
    case NBL_MXFP4_16:
    case NBL_NVFP4: return dim_padded / 16u;
    case NBL_INT4P: return dim_padded / 32u + 1u;
    default: return 0u;
    }
}

/** Elements that share one entry of the block scales: 16, 32, or the whole vector. */
NBL_FN uint32_t nbl_layout_block_dim(uint32_t format, uint32_t dim)
{
    switch (format) {
    case NBL_MXFP4: return 32u;
    case NBL_MXFP4_16:
    case NBL_INT4P:
    case NBL_NVFP4: return 16u;
    default: return nbl_layout_dim_padded(dim);
    }
}

/** 1 for the formats with E2M1 codes and power-of-two scales (NUM 2.4). */
NBL_FN int nbl_layout_is_mxfp4(uint32_t format)
{
    return format == NBL_MXFP4 || format == NBL_MXFP4_16;
}

/** 1 for the formats of the float core (NUM 6.1). */
NBL_FN int nbl_layout_is_float(uint32_t format)
{
    return format >= NBL_FORMAT_BF16;
}

/** 1 if a pool's rows are computed by the float core: some region has a float format (NUM 6.1). */
NBL_FN int nbl_layout_pool_is_float(const nbl_pool *pool)
{
    int any = 0;
    for (uint32_t i = 0; i < pool->region_count; ++i) {
        any |= nbl_layout_is_float(pool->regions[i].k_format) | nbl_layout_is_float(pool->regions[i].v_format);
    }
    return any;
}

/** 1 if the Blackwell core can serve K and V of these formats (NUM 7). */
NBL_FN int nbl_layout_is_fp4(uint32_t k_format, uint32_t v_format)
{
    return (k_format == NBL_NVFP4 || nbl_layout_is_mxfp4(k_format)) && v_format == NBL_FP8_E4M3;
}

/** Plane of the vector exponent of int8 and int4p (F5). */
NBL_FN uint32_t nbl_layout_exponent_plane(uint32_t format, uint32_t dim)
{
    return format == NBL_INT4P ? nbl_layout_dim_padded(dim) / 32u : 0u;
}

/* ------------------------------------------------------------------------------------------------ F2: pages */

/** Rounds up to a multiple of 16: the distance between two heads' parts (F2). */
NBL_FN uint64_t nbl_layout_head_bytes(uint64_t bytes)
{
    return (bytes + NBL_LAYOUT_ALIGNMENT - 1u) / NBL_LAYOUT_ALIGNMENT * NBL_LAYOUT_ALIGNMENT;
}

/** Sizes and offsets of one page of one layer (F2). struct_size is set: the result is a complete struct. */
NBL_FN nbl_page_layout nbl_layout_page(const nbl_kv_shape *shape, uint32_t k_format, uint32_t v_format)
{
    const uint64_t tokens = shape->page_tokens, heads = shape->kv_heads;
    nbl_page_layout out;
    out.struct_size = (uint32_t)sizeof(out);
    out.flags = 0u;
    out.next = NULL;
    out.k_code_head_bytes = nbl_layout_head_bytes(tokens * nbl_layout_code_bytes(k_format, shape->k_dim));
    out.v_code_head_bytes = nbl_layout_head_bytes(tokens * nbl_layout_code_bytes(v_format, shape->v_dim));
    out.v_code_offset = heads * out.k_code_head_bytes;
    out.code_page_bytes = out.v_code_offset + heads * out.v_code_head_bytes;
    out.k_scale_head_bytes = nbl_layout_head_bytes(tokens * nbl_layout_scale_planes(k_format, shape->k_dim));
    out.v_scale_head_bytes = nbl_layout_head_bytes(tokens * nbl_layout_scale_planes(v_format, shape->v_dim));
    out.v_scale_offset = heads * out.k_scale_head_bytes;
    out.scale_page_bytes = out.v_scale_offset + heads * out.v_scale_head_bytes;
    out.alignment = NBL_LAYOUT_ALIGNMENT;
    out.reserved = 0u;
    return out;
}

/* ------------------------------------------------------------------------------------------------ F3, F4: codes */

/** Width w of the group that token lies in: group_tokens, or what is left of the page in its last group. */
NBL_FN uint32_t nbl_layout_group_width(uint32_t page_tokens, uint32_t token, uint32_t group_tokens)
{
    const uint32_t left = page_tokens - token / group_tokens * group_tokens;
    return left < group_tokens ? left : group_tokens;
}

/** First byte of a 16-bit element, K and V alike (F3): units of 8 elements of a token, tokens side by side. */
NBL_FN uint64_t nbl_layout_half_byte(uint32_t dim, uint32_t page_tokens, uint32_t token, uint32_t d)
{
    const uint32_t width = nbl_layout_group_width(page_tokens, token, NBL_LAYOUT_K_GROUP_TOKENS);
    const uint32_t place = token % NBL_LAYOUT_K_GROUP_TOKENS;
    const uint64_t group = (uint64_t)(token - place) * nbl_layout_dim_padded(dim) * 2u;
    return group + (uint64_t)(d / 8u) * 16u * width + 16u * place + 2u * (d % 8u);
}

/** Byte of element d of K of a token inside the head's code part (F3). A 4-bit code lies in that byte at
 *  nbl_layout_k_code_shift; a 16-bit one begins there. */
NBL_FN uint64_t nbl_layout_k_code_byte(uint32_t format, uint32_t dim, uint32_t page_tokens, uint32_t token, uint32_t d)
{
    if (nbl_layout_code_bits(format) == 16u)
        return nbl_layout_half_byte(dim, page_tokens, token, d);
    const uint32_t width = nbl_layout_group_width(page_tokens, token, NBL_LAYOUT_K_GROUP_TOKENS);
    const uint32_t place = token % NBL_LAYOUT_K_GROUP_TOKENS;
    const uint32_t word = nbl_layout_code_bits(format) == 8u ? d / 4u : d / 8u;
    const uint64_t group = (uint64_t)(token - place) * nbl_layout_code_bytes(format, dim);
    return group + (uint64_t)word * 4u * width + 4u * place + d % 4u;
}

/** Bit position of element d of K in its byte: 0, or 4 for the high nibble of a 4-bit format (F3). */
NBL_FN uint32_t nbl_layout_k_code_shift(uint32_t format, uint32_t d)
{
    return nbl_layout_code_bits(format) != 4u ? 0u : (d / 4u) % 2u * 4u;
}

/** Byte of element d of V of a token inside the head's code part (F4). */
NBL_FN uint64_t nbl_layout_v_code_byte(uint32_t format, uint32_t dim, uint32_t page_tokens, uint32_t token, uint32_t d)
{
    if (nbl_layout_code_bits(format) == 16u)
        return nbl_layout_half_byte(dim, page_tokens, token, d);
    const uint32_t width = nbl_layout_group_width(page_tokens, token, NBL_LAYOUT_V_GROUP_TOKENS);
    const uint32_t place = token % NBL_LAYOUT_V_GROUP_TOKENS;
    const uint32_t column = nbl_layout_code_bits(format) == 8u ? d : d / 32u * 16u + d % 16u;
    const uint64_t group = (uint64_t)(token - place) * nbl_layout_code_bytes(format, dim);
    return group + (uint64_t)column * width + place;
}

/** Bit position of element d of V in its byte: 0, or 4 for the high nibble of a 4-bit format (F4). */
NBL_FN uint32_t nbl_layout_v_code_shift(uint32_t format, uint32_t d)
{
    return nbl_layout_code_bits(format) != 4u ? 0u : (d / 16u) % 2u * 4u;
}

/* ------------------------------------------------------------------------------------------------ F5: scales */

/** Byte of a token in plane n inside the head's scale part (F5). */
NBL_FN uint64_t nbl_layout_scale_byte(uint32_t page_tokens, uint32_t plane, uint32_t token)
{
    return (uint64_t)plane * page_tokens + token;
}

/* ------------------------------------------------------------------------------------------------ F9: coded scales */

/** Bytes of a matrix of rows x columns scales in tiles of 128 x 4 (F9). */
NBL_FN uint64_t nbl_layout_scale_128x4_bytes(uint64_t rows, uint32_t columns)
{
    return (rows + 127u) / 128u * ((columns + 3u) / 4u) * 512u;
}

/** Byte of a scale in such a matrix (F9). */
NBL_FN uint64_t nbl_layout_scale_128x4(uint64_t row, uint32_t column, uint32_t columns)
{
    const uint64_t tile = row / 128u * ((columns + 3u) / 4u) + column / 4u;
    return tile * 512u + row % 32u * 16u + row % 128u / 32u * 4u + column % 4u;
}

/* ------------------------------------------------------------------------------------------------ F6: pools */

/** The region that holds a page id, or NULL if there is none (F6). */
NBL_FN const nbl_region *nbl_layout_region_find(const nbl_pool *pool, int64_t page)
{
    for (uint32_t i = 0; i < pool->region_count; ++i) {
        const nbl_region *region = &pool->regions[i];
        if (page >= region->first_page && page - region->first_page < region->page_count)
            return region;
    }
    return NULL;
}

/** Offset of a page of a layer in a region's code pool (F6). */
NBL_FN uint64_t nbl_layout_code_offset(const nbl_region *region, uint32_t layer, uint32_t page)
{
    return (uint64_t)layer * region->code_layer_stride +
           (uint64_t)(page - region->first_page) * region->code_page_stride;
}

/** Offset of a page of a layer in a region's scale pool (F6). */
NBL_FN uint64_t nbl_layout_scale_offset(const nbl_region *region, uint32_t layer, uint32_t page)
{
    return (uint64_t)layer * region->scale_layer_stride +
           (uint64_t)(page - region->first_page) * region->scale_page_stride;
}

/** Offset of a head's code part in its page (F2). */
NBL_FN uint64_t nbl_layout_head_code_offset(const nbl_page_layout *layout, enum nbl_kind kind, uint32_t head)
{
    return kind == NBL_KIND_K ? head * layout->k_code_head_bytes
                              : layout->v_code_offset + head * layout->v_code_head_bytes;
}

/** Offset of a head's scale part in its page (F2). */
NBL_FN uint64_t nbl_layout_head_scale_offset(const nbl_page_layout *layout, enum nbl_kind kind, uint32_t head)
{
    return kind == NBL_KIND_K ? head * layout->k_scale_head_bytes
                              : layout->v_scale_offset + head * layout->v_scale_head_bytes;
}

/** Code part of one head of one page of one layer. */
NBL_FN uint8_t *nbl_layout_codes(const nbl_region *region, const nbl_page_layout *layout, uint32_t layer, uint32_t page,
                                 enum nbl_kind kind, uint32_t head)
{
    return (uint8_t *)region->codes + nbl_layout_code_offset(region, layer, page) +
           nbl_layout_head_code_offset(layout, kind, head);
}

/** Scale part of one head of one page of one layer. */
NBL_FN uint8_t *nbl_layout_scales(const nbl_region *region, const nbl_page_layout *layout, uint32_t layer,
                                  uint32_t page, enum nbl_kind kind, uint32_t head)
{
    return (uint8_t *)region->scales + nbl_layout_scale_offset(region, layer, page) +
           nbl_layout_head_scale_offset(layout, kind, head);
}

#endif
