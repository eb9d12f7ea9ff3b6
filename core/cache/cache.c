/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cache.c
 * @brief Life of a cache and of its sequences.
 */
#include "cache.h"

#include <stdlib.h>
#include <string.h>

/* Copies outside any stream of the caller's: complete when they return, after all earlier work. */
static const nbl_stream stream_host = {.kind = NBL_STREAM_HOST};

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
    for (uint32_t i = 0; i < cache->plan.region_count; ++i)
        nbl_pages_close(&cache->pages[i]);
    nbl_sequences_close(&cache->sequences);
    nbl_metadata_close(&cache->metadata);
    free(cache->batch);
    free(cache->cuts);
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
                               NBL_COPY_TO_DEVICE, stream_host, err);
}

static bool host_open(nbl_cache *cache)
{
    const nbl_plan *plan = &cache->plan;
    bool ok = nbl_sequences_open(&cache->sequences, plan);
    for (uint32_t i = 0; i < plan->region_count; ++i)
        ok = nbl_pages_open(&cache->pages[i], &plan->regions[i]) && ok;
    ok = nbl_metadata_open(&cache->metadata, plan, cache->metadata_block) && ok;
    cache->batch = malloc(plan->config.sequences_max * sizeof *cache->batch);
    cache->cuts = malloc((plan->config.sequences_max + 1u) * sizeof *cache->cuts);
    return ok && cache->batch != NULL && cache->cuts != NULL;
}

/* Lays the regions one after the other into the pools. */
static void pool_make(nbl_cache *cache)
{
    const uint32_t layers = cache->plan.config.shape.layers;
    uint8_t *codes = cache->codes, *scales = cache->scales;
    for (uint32_t i = 0; i < cache->plan.region_count; ++i) {
        nbl_region *region = &cache->regions[i];
        *region = cache->plan.regions[i];
        region->codes = codes;
        region->scales = scales;
        codes += region->code_layer_stride * layers;
        scales += region->scale_layer_stride * layers;
    }
    cache->pool = (nbl_pool)NBL_INIT(nbl_pool);
    cache->pool.shape = &cache->plan.config.shape;
    cache->pool.regions = cache->regions;
    cache->pool.region_count = cache->plan.region_count;
}

static nbl_status supports_check(nbl_device *device, const nbl_plan *plan, nbl_error *err)
{
    nbl_op_desc desc = NBL_INIT(nbl_op_desc);
    desc.shape = &plan->config.shape;
    desc.in_dtype = NBL_F32;
    desc.out_dtype = NBL_F32;
    desc.q_heads = plan->config.shape.kv_heads;
    for (uint32_t i = 0; i < plan->region_count; ++i) {
        desc.k_format = plan->regions[i].k_format;
        desc.v_format = plan->regions[i].v_format;
        desc.op = NBL_OP_APPEND;
        NBL_TRY(nbl_api_supports(device, &desc, err));
        desc.op = NBL_OP_ATTEND;
        NBL_TRY(nbl_api_supports(device, &desc, err));
    }
    return NBL_OK;
}

static nbl_status parts_open(nbl_cache *cache, nbl_error *err)
{
    NBL_TRY(device_open(cache, err));
    if (!host_open(cache))
        return NBL_REFUSE(err, NBL_E_NO_MEMORY, "no host memory for the sequences of the cache");
    pool_make(cache);
    return NBL_OK;
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

nbl_status nbl_api_cache_stats(nbl_cache *cache, nbl_cache_stats *out_stats, nbl_error *err)
{
    NBL_TRY(nbl_cache_check(cache, err));
    NBL_TRY(NBL_STRUCT_OUT_CHECK(nbl_cache_stats, out_stats, err));
    nbl_cache_stats stats = nbl_plan_stats(&cache->plan);
    for (uint32_t i = 0; i < cache->plan.region_count; ++i) {
        stats.pages_used[i] = cache->pages[i].total - cache->pages[i].free;
        stats.used_bytes += stats.pages_used[i] * cache->plan.page_bytes[i];
    }
    stats.sequences = cache->sequences.alive;
    for (uint32_t i = 0; i < cache->sequences.count_max; ++i)
        stats.tokens += nbl_sequences_tokens(&cache->sequences, i);
    NBL_TRY(nbl_api_memory_copy(cache->device, &stats.quant, cache->metadata_block + cache->plan.metadata.stats,
                                sizeof stats.quant, NBL_COPY_TO_HOST, stream_host, err));
    nbl_struct_out(out_stats, &stats, (uint32_t)sizeof stats);
    return NBL_OK;
}

/* ------------------------------------------------------------------------------------------------ sequences */

void nbl_cache_pages_drop(nbl_cache *cache, uint32_t index, uint32_t keep)
{
    nbl_sequences *s = &cache->sequences;
    const int32_t *pages = nbl_sequences_pages(s, index);
    while (s->page_counts[index] > keep) {
        const uint32_t place = --s->page_counts[index];
        const bool sink = place < cache->plan.sink_pages;
        nbl_pages_give(&cache->pages[sink ? 0 : cache->plan.region_count - 1u], pages[place]);
        cache->page_epoch++;
    }
}

nbl_status nbl_api_seq_create(nbl_cache *cache, uint64_t *out_sequence, nbl_error *err)
{
    NBL_TRY(nbl_cache_check(cache, err));
    NBL_TRY(nbl_pointer_check("out_sequence", out_sequence, 1, (uint32_t) _Alignof(uint64_t), err));
    return nbl_sequences_create(&cache->sequences, out_sequence, err);
}

nbl_status nbl_api_seq_free(nbl_cache *cache, uint64_t sequence, nbl_error *err)
{
    uint32_t index = 0;
    NBL_TRY(nbl_cache_check(cache, err));
    NBL_TRY(nbl_sequences_find(&cache->sequences, sequence, &index, err));
    nbl_cache_pages_drop(cache, index, 0);
    nbl_sequences_end(&cache->sequences, index);
    return NBL_OK;
}

nbl_status nbl_api_seq_length(nbl_cache *cache, uint64_t sequence, uint32_t layer, uint32_t *out_tokens, nbl_error *err)
{
    uint32_t index = 0;
    NBL_TRY(nbl_cache_check(cache, err));
    NBL_TRY(nbl_pointer_check("out_tokens", out_tokens, 1, (uint32_t) _Alignof(uint32_t), err));
    NBL_TRY(nbl_sequences_find(&cache->sequences, sequence, &index, err));
    NBL_TRY(nbl_index_check("layer", layer, cache->sequences.layers, err));
    *out_tokens = *nbl_sequences_length(&cache->sequences, index, layer);
    return NBL_OK;
}

nbl_status nbl_api_seq_truncate(nbl_cache *cache, uint64_t sequence, uint32_t tokens, nbl_error *err)
{
    uint32_t index = 0;
    NBL_TRY(nbl_cache_check(cache, err));
    nbl_sequences *s = &cache->sequences;
    NBL_TRY(nbl_sequences_find(s, sequence, &index, err));
    NBL_TRY(nbl_index_check("tokens", tokens, (uint64_t)nbl_sequences_tokens(s, index) + 1u, err));
    for (uint32_t layer = 0; layer < s->layers; ++layer) {
        uint32_t *length = nbl_sequences_length(s, index, layer);
        *length = *length < tokens ? *length : tokens;
    }
    nbl_cache_pages_drop(cache, index, nbl_cache_pages_of(cache, tokens));
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
        if (distinct && s->marks[*index] == s->mark)
            return NBL_REFUSE(err, NBL_E_INVALID, "sequences[%u] is %#" PRIx64 ", named before (needed: all different)",
                              b, handles[b]);
        s->marks[*index] = s->mark;
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

nbl_centers nbl_cache_centers(const nbl_cache *cache, uint32_t layer, const int32_t *rows)
{
    const nbl_cache_config *c = &cache->plan.config;
    const uint64_t heads = (uint64_t)layer * c->sequences_max * c->shape.kv_heads;
    nbl_centers centers = {.row_count = c->sequences_max};
    if (c->shape.centering == 0)
        return centers;
    if ((c->shape.centering & NBL_CENTERING_MEAN) != 0) {
        centers.codes = (int8_t *)cache->centers + cache->plan.center_codes + heads * c->shape.k_dim;
        centers.exponents = (uint8_t *)cache->centers + cache->plan.center_exponents + heads;
    }
    if ((c->shape.centering & NBL_CENTERING_SHIFT) != 0)
        centers.shifts = (uint8_t *)cache->centers + cache->plan.center_shifts + heads * c->shape.k_dim;
    centers.rows = rows;
    return centers;
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
