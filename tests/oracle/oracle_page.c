/* SPDX-License-Identifier: Apache-2.0 */
/** @file oracle_page.c  Where the bytes are: docs/formats.md F1 to F6; strided tensors. */
#include "oracle.h"

#include <string.h>

#define EXPONENT_BIAS 127

static bool is_8bit(uint32_t format)
{
    return format == NBL_INT8 || format == NBL_FP8_E4M3;
}

static bool is_16bit(uint32_t format)
{
    return format == NBL_FORMAT_BF16 || format == NBL_FORMAT_FP16;
}

uint64_t oracle_code_bytes(uint32_t format, uint32_t dim)
{
    uint32_t padded = oracle_padded_dim(dim);
    return is_16bit(format) ? 2u * padded : is_8bit(format) ? padded : padded / 2u;
}

uint64_t oracle_scale_bytes(uint32_t format, uint32_t dim)
{
    uint32_t padded = oracle_padded_dim(dim);
    switch (format) {
    case NBL_FORMAT_BF16:
    case NBL_FORMAT_FP16:
    case NBL_FP8_E4M3: return 0;
    case NBL_INT8: return 1;
    case NBL_MXFP4: return padded / 32u;
    case NBL_NVFP4:
    case NBL_MXFP4_16: return padded / 16u;
    default: return padded / 32u + 1u;
    }
}

static uint64_t head_bytes(uint64_t bytes)
{
    return 16u * ((bytes + 15u) / 16u);
}

void oracle_page_layout(const nbl_kv_shape *shape, uint32_t k_format, uint32_t v_format, nbl_page_layout *out)
{
    uint64_t tokens = shape->page_tokens;
    uint64_t heads = shape->kv_heads;

    memset(out, 0, sizeof *out);
    out->struct_size = (uint32_t)sizeof *out;
    out->k_code_head_bytes = head_bytes(tokens * oracle_code_bytes(k_format, shape->k_dim));
    out->v_code_head_bytes = head_bytes(tokens * oracle_code_bytes(v_format, shape->v_dim));
    out->k_scale_head_bytes = head_bytes(tokens * oracle_scale_bytes(k_format, shape->k_dim));
    out->v_scale_head_bytes = head_bytes(tokens * oracle_scale_bytes(v_format, shape->v_dim));
    out->v_code_offset = heads * out->k_code_head_bytes;
    out->v_scale_offset = heads * out->k_scale_head_bytes;
    out->code_page_bytes = out->v_code_offset + heads * out->v_code_head_bytes;
    out->scale_page_bytes = out->v_scale_offset + heads * out->v_scale_head_bytes;
    out->alignment = 16;
}

static uint64_t k_code_offset(uint32_t format, uint64_t padded, uint64_t page_tokens, uint64_t t, uint64_t d)
{
    uint64_t g = t / 32u;
    uint64_t r = t - 32u * g;
    uint64_t w = page_tokens - 32u * g < 32u ? page_tokens - 32u * g : 32u;
    if (is_8bit(format)) {
        return 32u * g * padded + d / 4u * 4u * w + 4u * r + d % 4u;
    }
    return 32u * g * (padded / 2u) + d / 8u * 4u * w + 4u * r + d % 4u;
}

static uint64_t v_code_offset(uint32_t format, uint64_t padded, uint64_t page_tokens, uint64_t t, uint64_t d)
{
    uint64_t g = t / 4u;
    uint64_t r = t - 4u * g;
    uint64_t w = page_tokens - 4u * g < 4u ? page_tokens - 4u * g : 4u;
    if (is_8bit(format)) {
        return 4u * g * padded + d * w + r;
    }
    return 4u * g * (padded / 2u) + (d / 32u * 16u + d % 16u) * w + r;
}

uint64_t oracle_code_offset(enum oracle_side side, uint32_t format, uint32_t dim, uint32_t page_tokens, uint32_t t,
                            uint32_t d, uint32_t *shift)
{
    uint64_t padded = oracle_padded_dim(dim);
    uint32_t run = side == ORACLE_K ? 4u : 16u;

    *shift = !is_8bit(format) && !is_16bit(format) && d / run % 2u == 1u ? 4u : 0u;
    if (is_16bit(format)) {
        uint64_t g = t / 32u;
        uint64_t w = page_tokens - 32u * g < 32u ? page_tokens - 32u * g : 32u;
        return 32u * g * 2u * padded + d / 8u * 16u * w + 16u * (t - 32u * g) + 2u * (d % 8u);
    }
    return side == ORACLE_K ? k_code_offset(format, padded, page_tokens, t, d)
                            : v_code_offset(format, padded, page_tokens, t, d);
}

uint64_t oracle_scale_offset(uint32_t page_tokens, uint32_t plane, uint32_t t)
{
    return (uint64_t)plane * page_tokens + t;
}

/* ------------------------------------------------------------------------------------------------ one head's part */

/* The part of one head and side inside a page. */
typedef struct page_part {
    uint32_t format;
    uint32_t dim;
    uint64_t codes_at;
    uint64_t scales_at;
} page_part;

static page_part find_part(const nbl_kv_shape *shape, uint32_t k_format, uint32_t v_format, enum oracle_side side,
                           uint32_t head)
{
    nbl_page_layout layout;
    page_part part;

    oracle_page_layout(shape, k_format, v_format, &layout);
    part.format = side == ORACLE_K ? k_format : v_format;
    part.dim = side == ORACLE_K ? shape->k_dim : shape->v_dim;
    if (side == ORACLE_K) {
        part.codes_at = head * layout.k_code_head_bytes;
        part.scales_at = head * layout.k_scale_head_bytes;
    } else {
        part.codes_at = layout.v_code_offset + head * layout.v_code_head_bytes;
        part.scales_at = layout.v_scale_offset + head * layout.v_scale_head_bytes;
    }
    return part;
}

static uint8_t scale_byte(const oracle_vector *vector, uint32_t plane)
{
    if (vector->format == NBL_NVFP4) {
        return vector->block_scales[plane];
    }
    if (vector->format == NBL_MXFP4 || vector->format == NBL_MXFP4_16) {
        return (uint8_t)(vector->block_exponents[plane] + EXPONENT_BIAS);
    }
    if (vector->format == NBL_INT4P && plane < vector->padded_dim / 32u) {
        uint32_t low = vector->block_multipliers[2u * plane] - 1u;
        uint32_t high = vector->block_multipliers[2u * plane + 1u] - 1u;
        return (uint8_t)(high << 4 | low);
    }
    return (uint8_t)(vector->exponent + EXPONENT_BIAS);
}

static void set_scale_byte(oracle_vector *vector, uint32_t plane, uint8_t byte)
{
    if (vector->format == NBL_NVFP4) {
        vector->block_scales[plane] = byte;
    } else if (vector->format == NBL_MXFP4 || vector->format == NBL_MXFP4_16) {
        vector->block_exponents[plane] = byte - EXPONENT_BIAS;
    } else if (vector->format == NBL_INT4P && plane < vector->padded_dim / 32u) {
        vector->block_multipliers[2u * plane] = (uint8_t)((byte & 15) + 1);
        vector->block_multipliers[2u * plane + 1u] = (uint8_t)((byte >> 4) + 1);
    } else {
        vector->exponent = byte - EXPONENT_BIAS;
    }
}

void oracle_page_write(const nbl_kv_shape *shape, uint32_t k_format, uint32_t v_format, uint8_t *codes, uint8_t *scales,
                       enum oracle_side side, uint32_t head, uint32_t t, const oracle_vector *vector)
{
    page_part part = find_part(shape, k_format, v_format, side, head);

    for (uint32_t d = 0; d < vector->padded_dim; d++) {
        uint32_t shift;
        uint8_t *byte =
            codes + part.codes_at + oracle_code_offset(side, part.format, part.dim, shape->page_tokens, t, d, &shift);
        uint32_t mask = is_8bit(part.format) ? 255u : 15u << shift;
        if (is_16bit(part.format)) {
            byte[0] = (uint8_t)vector->halves[d];
            byte[1] = (uint8_t)(vector->halves[d] >> 8);
            continue;
        }
        *byte = (uint8_t)((*byte & ~mask) | (uint32_t)vector->elements[d] << shift);
    }
    for (uint32_t plane = 0; plane < oracle_scale_bytes(part.format, part.dim); plane++) {
        scales[part.scales_at + oracle_scale_offset(shape->page_tokens, plane, t)] = scale_byte(vector, plane);
    }
}

void oracle_page_read(const nbl_kv_shape *shape, uint32_t k_format, uint32_t v_format, const uint8_t *codes,
                      const uint8_t *scales, enum oracle_side side, uint32_t head, uint32_t t, oracle_vector *vector)
{
    page_part part = find_part(shape, k_format, v_format, side, head);

    memset(vector, 0, sizeof *vector);
    vector->format = part.format;
    vector->dim = part.dim;
    vector->padded_dim = oracle_padded_dim(part.dim);
    for (uint32_t d = 0; d < vector->padded_dim; d++) {
        uint32_t shift;
        uint64_t at = oracle_code_offset(side, part.format, part.dim, shape->page_tokens, t, d, &shift);
        uint32_t mask = is_8bit(part.format) ? 255u : 15u;
        if (is_16bit(part.format)) {
            vector->halves[d] = (uint16_t)(codes[part.codes_at + at] | codes[part.codes_at + at + 1] << 8);
            continue;
        }
        vector->elements[d] = (uint8_t)((uint32_t)codes[part.codes_at + at] >> shift & mask);
    }
    for (uint32_t plane = 0; plane < oracle_scale_bytes(part.format, part.dim); plane++) {
        set_scale_byte(vector, plane, scales[part.scales_at + oracle_scale_offset(shape->page_tokens, plane, t)]);
    }
    oracle_canonical(vector);
}

/* ------------------------------------------------------------------------------------------------ pools */

const nbl_region *oracle_region(const nbl_pool *pool, int64_t page)
{
    for (uint32_t i = 0; i < pool->region_count; i++) {
        const nbl_region *region = &pool->regions[i];
        if (page >= region->first_page && page < (int64_t)region->first_page + region->page_count) {
            return region;
        }
    }
    return NULL;
}

uint8_t *oracle_page_codes(const nbl_region *region, uint32_t layer, int64_t page)
{
    return (uint8_t *)region->codes + layer * region->code_layer_stride +
           (uint64_t)(page - region->first_page) * region->code_page_stride;
}

uint8_t *oracle_page_scales(const nbl_region *region, uint32_t layer, int64_t page)
{
    return (uint8_t *)region->scales + layer * region->scale_layer_stride +
           (uint64_t)(page - region->first_page) * region->scale_page_stride;
}

void oracle_slot_write(const nbl_pool *pool, uint32_t layer, int64_t slot, enum oracle_side side, uint32_t head,
                       const oracle_vector *vector)
{
    int64_t page = slot / pool->shape->page_tokens;
    const nbl_region *region = oracle_region(pool, page);
    oracle_page_write(pool->shape, region->k_format, region->v_format, oracle_page_codes(region, layer, page),
                      oracle_page_scales(region, layer, page), side, head, (uint32_t)(slot % pool->shape->page_tokens),
                      vector);
}

void oracle_slot_read(const nbl_pool *pool, uint32_t layer, int64_t slot, enum oracle_side side, uint32_t head,
                      oracle_vector *vector)
{
    int64_t page = slot / pool->shape->page_tokens;
    const nbl_region *region = oracle_region(pool, page);
    oracle_page_read(pool->shape, region->k_format, region->v_format, oracle_page_codes(region, layer, page),
                     oracle_page_scales(region, layer, page), side, head, (uint32_t)(slot % pool->shape->page_tokens),
                     vector);
}

/* ------------------------------------------------------------------------------------------------ tensors */

static uint8_t *tensor_element(const nbl_tensor *tensor, const uint64_t index[4])
{
    int64_t at = 0;
    bool strided = false;

    for (uint32_t axis = 0; axis < tensor->rank; axis++) {
        at += (int64_t)index[axis] * tensor->stride_bytes[axis];
        strided = strided || tensor->stride_bytes[axis] != 0;
    }
    for (uint32_t axis = 0; axis < tensor->rank && !strided; axis++) {
        at = at * (int64_t)tensor->shape[axis] + (int64_t)index[axis];
    }
    return (uint8_t *)tensor->data + (strided ? at : at * (tensor->dtype == NBL_F32 ? 4 : 2));
}

static float element_get(const uint8_t *at, uint32_t dtype)
{
    uint16_t half;
    float x;

    if (dtype == NBL_F32) {
        memcpy(&x, at, sizeof x);
        return x;
    }
    memcpy(&half, at, sizeof half);
    return dtype == NBL_F16 ? oracle_f32_from_f16(half) : oracle_f32_from_bf16(half);
}

static void element_set(uint8_t *at, uint32_t dtype, float x)
{
    uint16_t half;

    if (dtype == NBL_F32) {
        memcpy(at, &x, sizeof x);
        return;
    }
    half = dtype == NBL_F16 ? oracle_f16_from_f32(x) : oracle_bf16_from_f32(x);
    memcpy(at, &half, sizeof half);
}

float oracle_tensor_get(const nbl_tensor *tensor, uint64_t i0, uint64_t i1, uint64_t i2, uint64_t i3)
{
    const uint64_t index[4] = {i0, i1, i2, i3};
    return element_get(tensor_element(tensor, index), tensor->dtype);
}

void oracle_tensor_set(const nbl_tensor *tensor, uint64_t i0, uint64_t i1, uint64_t i2, uint64_t i3, float x)
{
    const uint64_t index[4] = {i0, i1, i2, i3};
    element_set(tensor_element(tensor, index), tensor->dtype, x);
}

/* Element 0 of a row along the last axis, and the way from one element to the next in bytes. */
static uint8_t *tensor_row(const nbl_tensor *tensor, uint64_t i0, uint64_t i1, uint64_t i2, int64_t *step)
{
    uint64_t index[4] = {i0, i1, i2, 0};
    index[tensor->rank - 1] = 0;
    uint8_t *first = tensor_element(tensor, index);
    index[tensor->rank - 1] = 1;
    *step = tensor_element(tensor, index) - first;
    return first;
}

void oracle_row_get(const nbl_tensor *tensor, uint64_t i0, uint64_t i1, uint64_t i2, float *x, uint32_t count)
{
    int64_t step;
    const uint8_t *first = tensor_row(tensor, i0, i1, i2, &step);
    for (uint32_t i = 0; i < count; i++) {
        x[i] = element_get(first + i * step, tensor->dtype);
    }
}

void oracle_row_set(const nbl_tensor *tensor, uint64_t i0, uint64_t i1, uint64_t i2, const float *x, uint32_t count)
{
    int64_t step;
    uint8_t *first = tensor_row(tensor, i0, i1, i2, &step);
    for (uint32_t i = 0; i < count; i++) {
        element_set(first + i * step, tensor->dtype, x[i]);
    }
}
