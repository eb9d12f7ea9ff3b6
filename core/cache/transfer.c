/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file transfer.c
 * @brief Whole pages and rows of centres between the device and host memory, byte for byte.
 */
#include "cache.h"

static nbl_status bytes_move(const nbl_cache *cache, uint8_t *device, uint8_t *host, uint64_t bytes, uint32_t kind,
                             nbl_stream stream, nbl_error *err)
{
    const bool up = kind == NBL_COPY_TO_DEVICE;
    return cache->device->backend->memory_copy(cache->device->inner, up ? device : host, up ? host : device, bytes,
                                               kind, stream, err);
}

nbl_status nbl_page_move(const nbl_cache *cache, int32_t page, uint8_t *host, uint32_t kind, nbl_stream stream,
                         nbl_error *err)
{
    const uint32_t class_index = nbl_plan_class_of_page(&cache->plan, page);
    for (uint32_t g = 0; g < cache->plan.group_count; ++g) {
        const nbl_region *r = &cache->groups[g].regions[class_index];
        const uint64_t place = (uint32_t)page - r->first_page;
        NBL_TRY(bytes_move(cache, (uint8_t *)r->codes + place * r->code_page_stride, host, r->code_page_stride, kind,
                           stream, err));
        host += r->code_page_stride;
        NBL_TRY(bytes_move(cache, (uint8_t *)r->scales + place * r->scale_page_stride, host, r->scale_page_stride, kind,
                           stream, err));
        host += r->scale_page_stride;
    }
    return NBL_OK;
}

nbl_page_part nbl_page_part_of(const nbl_cache *cache, uint32_t class_index, uint32_t layer, uint8_t *host)
{
    const uint32_t group = nbl_plan_layer(&cache->plan, layer)->group;
    const uint32_t place = nbl_cache_pool_layer(cache, layer);
    for (uint32_t g = 0; g < group; ++g) {
        const nbl_region *r = &cache->groups[g].regions[class_index];
        host += r->code_page_stride + r->scale_page_stride;
    }
    const nbl_region *r = &cache->groups[group].regions[class_index];
    return (nbl_page_part){.region = r,
                           .codes = host + place * r->code_layer_stride,
                           .scales = host + r->code_page_stride + place * r->scale_layer_stride};
}

uint64_t nbl_center_bytes(const nbl_kv_shape *shape)
{
    const uint64_t codes = (uint64_t)shape->kv_heads * shape->k_dim;
    const uint64_t mean = (shape->centering & NBL_CENTERING_MEAN) != 0 ? codes + shape->kv_heads : 0;
    return mean + ((shape->centering & NBL_CENTERING_SHIFT) != 0 ? codes : 0);
}

nbl_status nbl_center_move(const nbl_cache *cache, uint32_t row, uint32_t layer, uint8_t *host, uint32_t kind,
                           nbl_error *err)
{
    const nbl_kv_shape *shape = &cache->plan.config.shape;
    const nbl_centers c = nbl_cache_centers(cache, layer, NULL);
    const uint64_t codes = (uint64_t)shape->kv_heads * shape->k_dim;
    if (c.codes != NULL) {
        NBL_TRY(bytes_move(cache, (uint8_t *)c.codes + row * codes, host, codes, kind, nbl_stream_host, err));
        host += codes;
        NBL_TRY(bytes_move(cache, c.exponents + (size_t)row * shape->kv_heads, host, shape->kv_heads, kind,
                           nbl_stream_host, err));
        host += shape->kv_heads;
    }
    return c.shifts == NULL ? NBL_OK
                            : bytes_move(cache, c.shifts + row * codes, host, codes, kind, nbl_stream_host, err);
}
