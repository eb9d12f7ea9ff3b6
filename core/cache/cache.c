/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cache.c
 * @brief Life of a cache and of its sequences.
 */
#include "cache.h"

#include <stdlib.h>
#include <string.h>

nbl_status nbl_cache_check(const nbl_cache *cache, nbl_error *err)
{
    return nbl_handle_check(cache, NBL_HANDLE_CACHE, err);
}

/* ------------------------------------------------------------------------------------------------ create, destroy */

static void parts_close(nbl_cache *cache)
{
    void *const blocks[] = {cache->codes, cache->scales, cache->centers, cache->metadata_block, cache->workspace};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; ++i) {
        if (blocks[i] != NULL)
            cache->device->backend->memory_free(cache->device->inner, blocks[i]);
    }
    nbl_debug_close(cache);
    nbl_tiers_close(cache);
    nbl_pages_close(&cache->pages);
    nbl_rows_close(&cache->rows);
    nbl_index_close(&cache->index);
    nbl_sequences_close(&cache->sequences);
    nbl_metadata_close(&cache->metadata);
    free(cache->head_scales);
    free(cache->changes.items);
    free(cache->path);
    free(cache->pieces);
    free(cache->batch);
    free(cache->cuts);
    pthread_mutex_destroy(&cache->mutex);
}

static nbl_status device_open(nbl_cache *cache, nbl_error *err)
{
    const nbl_plan *plan = &cache->plan;
    void *metadata = NULL;
    NBL_TRY(nbl_api_memory_alloc(cache->device, plan->code_bytes, &cache->codes, err));
    if (plan->scale_bytes > 0)
        NBL_TRY(nbl_api_memory_alloc(cache->device, plan->scale_bytes, &cache->scales, err));
    NBL_TRY(nbl_api_memory_alloc(cache->device, plan->metadata.bytes, &metadata, err));
    cache->metadata_block = metadata;
    NBL_TRY(nbl_api_memory_alloc(cache->device, plan->workspace_bytes, &cache->workspace, err));
    if (plan->center_bytes > 0)
        NBL_TRY(nbl_api_memory_alloc(cache->device, plan->center_bytes, &cache->centers, err));
    const nbl_quant_stats zero = {0};
    return nbl_api_memory_copy(cache->device, cache->metadata_block + plan->metadata.stats, &zero, sizeof zero,
                               NBL_COPY_TO_DEVICE, nbl_stream_host, err);
}

static bool host_open(nbl_cache *cache)
{
    const nbl_plan *plan = &cache->plan;
    const size_t sequences = plan->config.sequences_max;
    bool ok = nbl_sequences_open(&cache->sequences, plan);
    ok = nbl_pages_open(&cache->pages, plan) && ok;
    ok = nbl_rows_open(&cache->rows, plan) && ok;
    ok = nbl_index_open(&cache->index, plan) && ok;
    ok = nbl_metadata_open(&cache->metadata, plan, cache->metadata_block) && ok;
    cache->changes.items = malloc(plan->pages * sizeof *cache->changes.items);
    cache->path = malloc(plan->sequence_pages_max * sizeof *cache->path);
    cache->pieces = malloc(2u * sequences * sizeof *cache->pieces);
    cache->batch = malloc(sequences * sizeof *cache->batch);
    cache->cuts = malloc((2u * sequences + 1u) * sizeof *cache->cuts);
    return ok && cache->changes.items != NULL && cache->path != NULL && cache->pieces != NULL && cache->batch != NULL &&
           cache->cuts != NULL;
}

/* Lays the classes of all groups one after the other into the pools. */
static nbl_status pools_make(nbl_cache *cache, nbl_error *err)
{
    uint8_t *codes = cache->codes, *scales = cache->scales;
    for (uint32_t g = 0; g < cache->plan.group_count; ++g) {
        nbl_layer_group *group = &cache->groups[g];
        *group = cache->plan.groups[g];
        for (uint32_t c = 0; c < cache->plan.class_count; ++c) {
            nbl_region *region = &group->regions[c];
            region->codes = codes += nbl_plan_guard(&cache->plan);
            region->scales = scales += nbl_plan_guard(&cache->plan);
            codes += region->code_page_stride * region->page_count;
            scales += region->scale_page_stride * region->page_count;
        }
        nbl_pool pool = NBL_INIT(nbl_pool);
        pool.shape = &group->shape;
        pool.regions = group->regions;
        pool.region_count = cache->plan.class_count;
        pool.k_scale = nbl_head_scales_of_group(cache, g, NBL_KIND_K);
        pool.v_scale = nbl_head_scales_of_group(cache, g, NBL_KIND_V);
        NBL_TRY(nbl_pool_in(&cache->pools[g], &pool, "pool.", err));
    }
    return NBL_OK;
}

/* What the cache does with pages of one pair of formats. */
static nbl_status pair_supports(nbl_device *device, const nbl_kv_shape *shape, const nbl_region *region, nbl_error *err)
{
    static const uint32_t ops[] = {NBL_OP_APPEND, NBL_OP_ATTEND, NBL_OP_COPY_PAGES};
    nbl_op_desc desc = NBL_INIT(nbl_op_desc);
    desc.shape = shape;
    desc.in_dtype = NBL_F32;
    desc.out_dtype = NBL_F32;
    desc.q_heads = shape->kv_heads;
    desc.k_format = region->k_format;
    desc.v_format = region->v_format;
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; ++i) {
        desc.op = ops[i];
        NBL_TRY(nbl_api_supports(device, &desc, err));
    }
    return NBL_OK;
}

/* What the cache does with pages that leave the recent window. */
static nbl_status demotions_support(nbl_device *device, const nbl_plan *plan, const nbl_layer_group *group,
                                    nbl_error *err)
{
    nbl_op_desc desc = NBL_INIT(nbl_op_desc);
    desc.shape = &group->shape;
    desc.op = NBL_OP_TRANSCODE;
    for (uint32_t i = 0; i < plan->place_count; ++i) {
        const nbl_region *from = &group->regions[plan->places[i].class_index];
        const nbl_region *to = &group->regions[plan->places[i].final_class];
        desc.k_format = from->k_format;
        desc.v_format = from->v_format;
        desc.dst_k_format = to->k_format;
        desc.dst_v_format = to->v_format;
        if (from != to)
            NBL_TRY(nbl_api_supports(device, &desc, err));
    }
    return NBL_OK;
}

static nbl_status supports_check(nbl_device *device, const nbl_plan *plan, nbl_error *err)
{
    for (uint32_t g = 0; g < plan->group_count; ++g) {
        for (uint32_t c = 0; c < plan->class_count; ++c)
            NBL_TRY(pair_supports(device, &plan->groups[g].shape, &plan->groups[g].regions[c], err));
        NBL_TRY(demotions_support(device, plan, &plan->groups[g], err));
    }
    return NBL_OK;
}

static nbl_status parts_open(nbl_cache *cache, nbl_error *err)
{
    NBL_TRY(device_open(cache, err));
    if (!host_open(cache))
        return NBL_REFUSE(err, NBL_E_NO_MEMORY, "no host memory for the sequences of the cache");
    NBL_TRY(nbl_head_scales_open(cache, err));
    cache->plan.config.k_scale = cache->plan.config.v_scale = NULL; /* the caller's */
    NBL_TRY(pools_make(cache, err));
    NBL_TRY(nbl_tiers_open(cache, err));
    cache->plan.config.file_folder = NULL; /* the caller's */
    return nbl_debug_open(cache, err);
}

nbl_status nbl_api_cache_create(nbl_device *device, const nbl_cache_config *config, nbl_cache **out_cache,
                                nbl_error *err)
{
    nbl_plan plan;
    NBL_TRY(nbl_device_check(device, err));
    NBL_TRY(nbl_pointer_check("out_cache", out_cache, 1, (uint32_t) _Alignof(nbl_cache *), err));
    NBL_TRY(nbl_plan_make(&plan, config, err));
    NBL_TRY(supports_check(device, &plan, err));
    nbl_cache *cache = nbl_handle_create(NBL_HANDLE_CACHE, sizeof *cache);
    if (cache == NULL)
        return NBL_REFUSE(err, NBL_E_NO_MEMORY, "no host memory for the cache");
    cache->device = device;
    cache->plan = plan;
    cache->tiers.file = -1;
    cache->tiers.lost = NBL_NONE;
    pthread_mutex_init(&cache->mutex, NULL);
    const nbl_status status = parts_open(cache, err);
    if (status != NBL_OK) {
        parts_close(cache);
        (void)nbl_handle_retire(cache, NBL_HANDLE_CACHE, NULL);
        nbl_handle_recycle(cache);
        return status;
    }
    nbl_handle_add_user(device);
    *out_cache = cache;
    return NBL_OK;
}

nbl_status nbl_api_cache_destroy(nbl_cache *cache, nbl_error *err)
{
    if (cache == NULL)
        return NBL_OK;
    NBL_TRY(nbl_handle_retire(cache, NBL_HANDLE_CACHE, err));
    parts_close(cache);
    nbl_handle_drop_user(cache->device);
    nbl_handle_recycle(cache);
    return NBL_OK;
}

/* ------------------------------------------------------------------------------------------------ batches */

nbl_status nbl_cache_batch_find(nbl_cache *cache, const uint64_t *handles, uint32_t count, bool distinct,
                                nbl_error *err)
{
    nbl_sequences *s = &cache->sequences;
    NBL_TRY(nbl_value_check("", "batch", count, 0, s->count_max, err));
    NBL_TRY(nbl_pointer_check("sequences", handles, count, (uint32_t) _Alignof(uint64_t), err));
    s->mark++;
    for (uint32_t b = 0; b < count; ++b) {
        uint32_t *index = &cache->batch[b];
        NBL_TRY(nbl_sequences_find(s, handles[b], index, err));
        if (distinct && s->all[*index].mark == s->mark)
            return NBL_REFUSE(err, NBL_E_INVALID, "sequences[%u] is %#" PRIx64 ", named before (needed: all different)",
                              b, handles[b]);
        s->all[*index].mark = s->mark;
    }
    return NBL_OK;
}

nbl_status nbl_cache_indptr_check(const char *name, const int32_t *indptr, uint32_t count, uint64_t total,
                                  nbl_error *err)
{
    if (count == 0 && total == 0)
        return NBL_OK;
    NBL_TRY(nbl_pointer_check(name, indptr, (uint64_t)count + 1u, (uint32_t) _Alignof(int32_t), err));
    if (indptr[0] != 0)
        return NBL_REFUSE(err, NBL_E_RANGE, "%s[0] is %d (needed: 0)", name, indptr[0]);
    for (uint32_t b = 0; b < count; ++b) {
        if (indptr[b + 1u] < indptr[b])
            return NBL_REFUSE(err, NBL_E_RANGE, "%s[%u] is %d (needed: at least %d, the entry before)", name, b + 1u,
                              indptr[b + 1u], indptr[b]);
    }
    if ((uint64_t)indptr[count] != total)
        return NBL_REFUSE(err, NBL_E_RANGE, "%s[%u] is %d (needed: %" PRIu64 ", the rows given)", name, count,
                          indptr[count], total);
    return NBL_OK;
}

nbl_status nbl_cache_workspace_refuse(const nbl_cache *cache, uint32_t b, const char *what, uint64_t count,
                                      uint64_t bytes, nbl_error *err)
{
    const uint64_t mib = 1u << 20;
    return NBL_REFUSE(err, NBL_E_NO_MEMORY,
                      "sequences[%u] with %" PRIu64 " %s in a call needs a workspace of %" PRIu64
                      " MiB (workspace_mib is %" PRIu64 "; raise it, or bring fewer in a call)",
                      b, count, what, (bytes + mib - 1u) / mib, cache->plan.workspace_bytes / mib);
}

nbl_tensor nbl_cache_rows(const nbl_tensor *tensor, uint64_t begin, uint64_t end)
{
    nbl_tensor view = *tensor;
    if (!nbl_tensor_present(tensor))
        return view;
    view.data = (uint8_t *)tensor->data + (int64_t)begin * tensor->stride_bytes[0];
    view.shape[0] = end - begin;
    return view;
}
