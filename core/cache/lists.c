/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file lists.c
 * @brief Lists of pages to copy, sent to the backend in pieces that the metadata holds.
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
    if (list->count == list->cache->plan.list_entries)
        NBL_TRY(nbl_page_list_flush(list, err));
    list_column(list, 0)[list->count] = from;
    list_column(list, 1)[list->count] = to;
    list->count++;
    return NBL_OK;
}

nbl_status nbl_page_list_flush(nbl_page_list *list, nbl_error *err)
{
    nbl_cache *cache = list->cache;
    const uint32_t entries = cache->plan.list_entries;
    if (list->count == 0)
        return NBL_OK;
    const int32_t *device = (const int32_t *)(const void *)cache->metadata.lists.device;
    NBL_TRY(nbl_mirror_send(cache->device, &cache->metadata.lists, (entries + list->count) * sizeof *device,
                            list->stream, err));
    nbl_copy_pages_args a = NBL_INIT(nbl_copy_pages_args);
    a.src_pages = device;
    a.dst_pages = device + entries;
    a.count = list->count;
    a.stream = list->stream;
    for (uint32_t g = 0; g < cache->plan.group_count; ++g) {
        a.src_pool = a.dst_pool = &cache->pools[g];
        NBL_TRY(cache->device->backend->copy_pages(cache->device->inner, &a, err));
    }
    list->count = 0;
    return NBL_OK;
}
