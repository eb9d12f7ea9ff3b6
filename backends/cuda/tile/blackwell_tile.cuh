/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file blackwell_tile.cuh
 * @brief What the kernels of the Blackwell core (NUM 7) share: a tile's tokens in their pages, and scores to weights.
 */
#ifndef CUDA_BLACKWELL_TILE_H
#define CUDA_BLACKWELL_TILE_H

#include "../ptx/ptx.cuh"
#include "floatgrid.h"
#include "fp4_query.cuh"
#include "rows.cuh"

#define P_LEAST (-10.0f) /* weights up to 2^-10 round to 0; all above are off ties (NUM 7.3) */

/** Where K and V of a token are; codes NULL past the length. */
struct alignas(16) token_place {
    const uint8_t *k_codes;
    const uint8_t *k_scales;
    const uint8_t *v_codes; /**< of element 0 */
    float k_unit;           /**< factor of the token's scores (mxfp4_16) */
    uint16_t k_stride;      /**< bytes from word to word */
    uint16_t v_stride;      /**< bytes from element to element */
};

/** Fused steps of a row. */
static __host__ __device__ constexpr uint32_t steps_of(uint32_t k_dim_padded)
{
    return (k_dim_padded + FP4_STEP - 1u) / FP4_STEP;
}

/** Place of the thread's token of the tile at start. */
CUDA_DEVICE token_place place_of(const attend_params &p, const item &it, int32_t start)
{
    const uint32_t position = (uint32_t)start + threadIdx.x;
    token_place at = {NULL, NULL, NULL, 1.0f, 0, 0};
    if (position < (uint32_t)it.kv_len) {
        const uint32_t token = position % p.pages.page_tokens;
        const int32_t page = it.table[position / p.pages.page_tokens];
        const cuda_region *region = cuda_region_find(&p.pages, page);
        block16_part k = block16_part_at(&p.pages, region, (uint32_t)page, NBL_KIND_K, it.kv_head, p.k_dim);
        block16_part v = block16_part_at(&p.pages, region, (uint32_t)page, NBL_KIND_V, it.kv_head, p.v_dim);
        at.k_codes = k.codes + block16_code_byte(&k, token, 0);
        at.k_scales = k.scales + token;
        at.v_codes = v.codes + block16_code_byte(&v, token, 0);
        at.k_stride = (uint16_t)(4u * nbl_layout_group_width(k.page_tokens, token, NBL_LAYOUT_K_GROUP_TOKENS));
        at.v_stride = (uint16_t)nbl_layout_group_width(v.page_tokens, token, NBL_LAYOUT_V_GROUP_TOKENS);
        at.k_unit = p.fp4_format == NBL_MXFP4_16 ? nbl_pow2(nbl_e8m0_decode_slot(*at.k_scales)) : 1.0f;
    }
    return at;
}

/** A step's scale word of a token as the MMA takes it (ptx/blockscale.cuh). Bytes that no quantizer writes read as in
 * NUM 6.1 and 5.10. */
CUDA_DEVICE uint32_t scale_word(const attend_params &p, const token_place &at, uint32_t step)
{
    const bool is_mxfp4 = p.fp4_format == NBL_MXFP4;
    const uint32_t planes = is_mxfp4 ? p.k_dim_padded / 32u : p.k_dim_padded / BLOCK16;
    const uint32_t count = is_mxfp4 ? 2u : 4u;
    const int32_t first = p.fp4_format == NBL_MXFP4_16 && at.k_codes != NULL ? nbl_e8m0_decode_slot(*at.k_scales) : 0;
    uint32_t word = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        const uint32_t plane = step * count + i;
        if (i < count && plane < planes && at.k_codes != NULL) {
            uint32_t byte = at.k_scales[plane * p.pages.page_tokens];
            if (p.fp4_format == NBL_NVFP4) {
                byte &= 0x7fu;
                byte -= byte == 0x7fu;
            } else if (is_mxfp4) {
                byte = nbl_e8m0_encode(nbl_e8m0_decode_slot((uint8_t)byte));
            } else {
                byte = fp4_relative_scale(nbl_e8m0_decode_slot((uint8_t)byte), first);
            }
            word |= byte << (8u * i);
        }
    }
    return word;
}

/** Four E4M3 codes without NaN: they read as the code below (NUM 6.1). */
CUDA_DEVICE uint32_t without_nan(uint32_t word)
{
    return word - (((word & 0x7f7f7f7fu) + 0x01010101u) >> 7 & 0x01010101u);
}

/** Element d of the tile's tokens 4 * quad to 4 * quad + 3. */
CUDA_DEVICE uint32_t value_word(const token_place *place, uint32_t quad, uint32_t d, bool whole_groups)
{
    const token_place *at = place + 4u * quad;
    if (whole_groups) {
        return at->v_codes != NULL ? without_nan(*(const uint32_t *)(const void *)(at->v_codes + 4u * d)) : 0u;
    }
    uint32_t word = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        word |= at[i].v_codes != NULL ? (uint32_t)at[i].v_codes[d * at[i].v_stride] << (8u * i) : 0u;
    }
    return without_nan(word);
}

/** What turns the thread's scores of a row into logits. */
struct row_view {
    float scale;
    float slope;
    int32_t position;
    float base;
    bool has_base;
};

CUDA_DEVICE row_view view_of(const attend_params &p, const row_state &r)
{
    row_view v;
    v.scale = p.cap != 0.0f ? p.cap : r.scale;
    v.slope = p.alibi_slopes != NULL ? p.alibi_slopes[r.head] * NBL_LOG2E : 0.0f;
    v.position = r.position;
    v.base = r.base;
    v.has_base = r.has_base;
    return v;
}

CUDA_DEVICE float alibi_of(const attend_params &p, const row_view &v, int32_t position)
{
    return p.alibi_slopes != NULL ? v.slope * (float)(position - v.position) : 0.0f;
}

/** t of NUM 6.3. */
CUDA_DEVICE float grid_logit(const row_view &v, float x, float a)
{
    return nbl_fma(x, v.scale, (a - v.base) + NBL_FLOAT_GRID);
}

/** 2^8 times the weight of a visible token, before it is rounded to E4M3 (NUM 7.3). */
CUDA_DEVICE float weight_of(const row_view &v, float x, float a)
{
    const float t = fminf(grid_logit(v, x, a), NBL_FLOAT_GRID);
    const float u = (t - NBL_FLOAT_GRID) + 8.0f;
    return u > P_LEAST ? ptx_ex2(u) : 0.0f;
}

#endif
