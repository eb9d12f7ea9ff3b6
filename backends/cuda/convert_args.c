/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file convert_args.c
 * @brief Argument structs of the ABI to what kernels take.
 */
#include "cuda_plugin.h"

#include <string.h>

#define TENSOR_AXES 4u

cuda_tensor cuda_tensor_of(const nbl_tensor *tensor)
{
    cuda_tensor out;
    memset(&out, 0, sizeof out);
    if (tensor->data == NULL) {
        return out;
    }
    out.data = tensor->data;
    out.dtype = tensor->dtype;
    for (uint32_t i = 0; i < tensor->rank && i < TENSOR_AXES; ++i) {
        out.stride[i] = tensor->stride_bytes[i];
    }
    out.packed = tensor->stride_bytes[tensor->rank - 1u] == (tensor->dtype == NBL_F32 ? 4 : 2);
    return out;
}

static cuda_region region_of(const nbl_region *region, const nbl_kv_shape *shape, uint32_t layer)
{
    nbl_page_layout layout = nbl_layout_page(shape, region->k_format, region->v_format);
    cuda_region out;
    memset(&out, 0, sizeof out);
    out.k_format = region->k_format;
    out.v_format = region->v_format;
    out.first_page = region->first_page;
    out.page_count = region->page_count;
    out.codes = (uint8_t *)region->codes + layer * region->code_layer_stride;
    out.scales = (uint8_t *)region->scales + layer * region->scale_layer_stride;
    out.code_page_stride = region->code_page_stride;
    out.scale_page_stride = region->scale_page_stride;
    out.v_code_offset = layout.v_code_offset;
    out.v_scale_offset = layout.v_scale_offset;
    out.k_code_head_bytes = (uint32_t)layout.k_code_head_bytes;
    out.v_code_head_bytes = (uint32_t)layout.v_code_head_bytes;
    out.k_scale_head_bytes = (uint32_t)layout.k_scale_head_bytes;
    out.v_scale_head_bytes = (uint32_t)layout.v_scale_head_bytes;
    return out;
}

cuda_pages cuda_pages_of(const nbl_pool *pool, uint32_t layer)
{
    cuda_pages out;
    memset(&out, 0, sizeof out);
    out.region_count = pool->region_count;
    out.page_tokens = pool->shape->page_tokens;
    const uint64_t first = (uint64_t)layer * pool->shape->kv_heads;
    out.k_scale = pool->k_scale != NULL ? pool->k_scale + first : NULL;
    out.v_scale = pool->v_scale != NULL ? pool->v_scale + first : NULL;
    for (uint32_t i = 0; i < pool->region_count; ++i) {
        out.regions[i] = region_of(&pool->regions[i], pool->shape, layer);
    }
    return out;
}

cuda_centers cuda_centers_of(const nbl_centers *centers, const nbl_kv_shape *shape)
{
    cuda_centers out;
    memset(&out, 0, sizeof out);
    if (shape->centering) {
        int has_mean = (shape->centering & NBL_CENTERING_MEAN) != 0;
        int has_shifts = (shape->centering & NBL_CENTERING_SHIFT) != 0;
        out.codes = has_mean ? centers->codes : NULL;
        out.exponents = has_mean ? centers->exponents : NULL;
        out.shifts = has_shifts ? centers->shifts : NULL;
        out.rows = centers->rows;
        out.row_count = centers->row_count;
    }
    return out;
}
