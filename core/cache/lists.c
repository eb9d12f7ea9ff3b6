/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file lists.c
 * @brief Lists of pages to copy or transcode, sent to the backend in pieces that the metadata holds.
 */
#include "cache.h"

void nbl_page_list_start(nbl_page_list *list, nbl_cache *cache, nbl_stream stream)
{
    *list = (nbl_page_list){.cache = cache, .stream = stream};
}

static int32_t *list_column(const nbl_page_list *list, uint32_t column)
{
    return (int32_t *)(void *)list->cache->metadata.lists.next + (size_t)column * list->cache->plan.list_entries;
}

nbl_status nbl_page_list_add(nbl_page_list *list, int32_t from, int32_t to, nbl_error *err)
{
    const nbl_plan *plan = &list->cache->plan;
    const uint32_t from_class = nbl_plan_class_of_page(plan, from), to_class = nbl_plan_class_of_page(plan, to);
    if (list->count == plan->list_entries || from_class != list->from_class || to_class != list->to_class)
        NBL_TRY(nbl_page_list_flush(list, err));
    list->from_class = from_class;
    list->to_class = to_class;
    list_column(list, 0)[list->count] = from;
    list_column(list, 1)[list->count] = to;
    list_column(list, 2)[list->count] = (int32_t)plan->config.shape.page_tokens;
    list->count++;
    return NBL_OK;
}

static nbl_status group_copy(const nbl_page_list *list, const nbl_pool *pool, const int32_t *device, nbl_error *err)
{
    nbl_copy_pages_args a = NBL_INIT(nbl_copy_pages_args);
    a.src_pool = a.dst_pool = pool;
    a.src_pages = device;
    a.dst_pages = device + list->cache->plan.list_entries;
    a.count = list->count;
    a.stream = list->stream;
    return list->cache->device->backend->copy_pages(list->cache->device->inner, &a, err);
}

static nbl_status group_transcode(const nbl_page_list *list, const nbl_pool *pool, const int32_t *device,
                                  nbl_error *err)
{
    const nbl_cache *cache = list->cache;
    nbl_transcode_args a = NBL_INIT(nbl_transcode_args);
    a.src_pool = a.dst_pool = pool;
    a.src_pages = device;
    a.dst_pages = device + cache->plan.list_entries;
    a.token_counts = device + 2u * (size_t)cache->plan.list_entries;
    a.count = list->count;
    a.stats = (nbl_quant_stats *)(void *)(cache->metadata_block + cache->plan.metadata.stats);
    a.stream = list->stream;
    return cache->device->backend->transcode(cache->device->inner, &a, err);
}

nbl_status nbl_page_list_flush(nbl_page_list *list, nbl_error *err)
{
    nbl_cache *cache = list->cache;
    const uint64_t entries = cache->plan.list_entries;
    const bool one_class = list->from_class == list->to_class;
    if (list->count == 0)
        return NBL_OK;
    const int32_t *device = (const int32_t *)(const void *)cache->metadata.lists.device;
    NBL_TRY(nbl_mirror_send(cache->device, &cache->metadata.lists,
                            ((one_class ? entries : 2u * entries) + list->count) * sizeof *device, list->stream, err));
    for (uint32_t g = 0; g < cache->plan.group_count; ++g) {
        const nbl_region *from = &cache->groups[g].regions[list->from_class];
        const nbl_region *to = &cache->groups[g].regions[list->to_class];
        if (from->k_format == to->k_format && from->v_format == to->v_format)
            NBL_TRY(group_copy(list, &cache->pools[g].pool, device, err));
        else
            NBL_TRY(group_transcode(list, &cache->pools[g].pool, device, err));
    }
    list->count = 0;
    return NBL_OK;
}
