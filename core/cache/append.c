/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file append.c
 * @brief cache_append: tokens of a batch to pages and slots, all or nothing.
 */
#include "cache.h"

/* The call at work. */
typedef struct append_work {
    nbl_cache *cache;
    const nbl_cache_append_args *args;
    nbl_append_call call; /**< the whole call, checked; cut into runs of sequences */
} append_work;

static uint32_t tokens_of(const append_work *w, uint32_t b)
{
    return (uint32_t)(w->args->seq_indptr[b + 1u] - w->args->seq_indptr[b]);
}

static uint32_t *length_of(const append_work *w, uint32_t b)
{
    return nbl_sequences_length(&w->cache->sequences, w->cache->batch[b], w->args->layer);
}

static int32_t *indptr_host(const append_work *w)
{
    return (int32_t *)(void *)w->cache->metadata.append_small.next;
}

static const int32_t *indptr_device(const append_work *w)
{
    return (const int32_t *)(const void *)w->cache->metadata.append_small.device;
}

static size_t rows_offset(const append_work *w)
{
    return 2u * (size_t)w->cache->plan.config.sequences_max;
}

/* Checks everything that does not depend on the runs: fields, tensors, overlap with the cache's own memory. */
static nbl_status whole_check(append_work *w, nbl_error *err)
{
    nbl_cache *cache = w->cache;
    nbl_append_args a = NBL_INIT(nbl_append_args);
    a.pool = &cache->pool;
    a.layer = w->args->layer;
    a.batch = w->args->batch;
    a.k = w->args->k;
    a.v = w->args->v;
    a.slots = (const int64_t *)(const void *)cache->metadata.slots.device;
    a.seq_indptr = indptr_device(w);
    a.centers = nbl_cache_centers(cache, a.layer, indptr_device(w) + rows_offset(w));
    a.center_mode = NBL_CENTER_COMPUTE; /* the stricter one for overlap; each run has its own */
    a.stats = (nbl_quant_stats *)(void *)(cache->metadata_block + cache->plan.metadata.stats);
    a.workspace = cache->workspace;
    a.workspace_bytes = cache->plan.workspace_bytes;
    a.stream = w->args->stream;
    NBL_TRY(nbl_index_check("layer", a.layer, cache->sequences.layers, err));
    /* More tokens than slots would run past the array of slots in the overlap check, and cannot fit anyway. */
    if (a.k.rank > 0 && a.k.shape[0] > cache->plan.slots_max)
        return NBL_REFUSE(err, NBL_E_NO_MEMORY,
                          "k.shape[0] is %" PRIu64 " (allowed: %" PRIu64 ", all slots of the cache)", a.k.shape[0],
                          cache->plan.slots_max);
    return nbl_append_in(&w->call, &a, err);
}

/* New pages of sequence b, by region. */
static void pages_count(const append_work *w, uint32_t b, uint64_t wanted[NBL_CACHE_REGIONS_MAX])
{
    const nbl_cache *cache = w->cache;
    const uint32_t held = cache->sequences.page_counts[cache->batch[b]];
    const uint32_t needed = nbl_cache_pages_of(cache, (uint64_t)*length_of(w, b) + tokens_of(w, b));
    for (uint32_t place = held; place < needed; ++place)
        wanted[place < cache->plan.sink_pages ? 0 : cache->plan.region_count - 1u]++;
}

static nbl_status room_check(const append_work *w, nbl_error *err)
{
    const nbl_cache *cache = w->cache;
    uint64_t wanted[NBL_CACHE_REGIONS_MAX] = {0};
    for (uint32_t b = 0; b < w->args->batch; ++b) {
        const uint64_t length = (uint64_t)*length_of(w, b) + tokens_of(w, b);
        if (length > cache->plan.config.sequence_tokens_max)
            return NBL_REFUSE(err, NBL_E_RANGE, "sequences[%u] would have %" PRIu64 " tokens (allowed: %u)", b, length,
                              cache->plan.config.sequence_tokens_max);
        pages_count(w, b, wanted);
    }
    for (uint32_t r = 0; r < cache->plan.region_count; ++r) {
        if (wanted[r] > cache->pages[r].free)
            return NBL_REFUSE(err, NBL_E_NO_MEMORY,
                              "out of pages: region %u needs %" PRIu64 " more and has %u free of %u", r, wanted[r],
                              cache->pages[r].free, cache->pages[r].total);
    }
    return NBL_OK;
}

/* Takes the pages that sequence b lacks and writes the slots of its new tokens. */
static void tokens_place(const append_work *w, uint32_t b)
{
    nbl_cache *cache = w->cache;
    nbl_sequences *s = &cache->sequences;
    const uint32_t index = cache->batch[b], page_tokens = cache->plan.config.shape.page_tokens;
    const uint32_t begin = *length_of(w, b), count = tokens_of(w, b);
    int32_t *pages = nbl_sequences_pages(s, index);
    int64_t *slots = (int64_t *)(void *)cache->metadata.slots.next + w->args->seq_indptr[b];
    while (s->page_counts[index] < nbl_cache_pages_of(cache, (uint64_t)begin + count)) {
        const uint32_t place = s->page_counts[index]++;
        const bool sink = place < cache->plan.sink_pages;
        pages[place] = nbl_pages_take(&cache->pages[sink ? 0 : cache->plan.region_count - 1u]);
        cache->page_epoch++;
    }
    for (uint32_t t = 0; t < count; ++t) {
        const uint32_t position = begin + t;
        slots[t] = (int64_t)pages[position / page_tokens] * page_tokens + position % page_tokens;
    }
}

/* Gives back what tokens_place took: every page that no layer's length reaches. */
static void tokens_unplace(const append_work *w)
{
    for (uint32_t b = 0; b < w->args->batch; ++b) {
        const uint32_t index = w->cache->batch[b];
        const uint32_t tokens = nbl_sequences_tokens(&w->cache->sequences, index);
        nbl_cache_pages_drop(w->cache, index, nbl_cache_pages_of(w->cache, tokens));
    }
}

/* ------------------------------------------------------------------------------------------------ runs */

/* A sequence without tokens in this layer gets its centre from this call (NUM 4.2). */
static uint32_t mode_of(const append_work *w, uint32_t b)
{
    const bool first = w->cache->plan.config.shape.centering != 0 && *length_of(w, b) == 0;
    return first ? NBL_CENTER_COMPUTE : NBL_CENTER_USE;
}

/* Narrows the call to the sequences [begin, end), which are run number run. */
static nbl_append_call run_call(const append_work *w, uint32_t run, uint32_t begin, uint32_t end)
{
    nbl_append_call c = w->call;
    const int32_t first = w->args->seq_indptr[begin], last = w->args->seq_indptr[end];
    c.tokens = (uint64_t)(last - first);
    c.args.pool = &w->cache->pool;
    c.args.batch = end - begin;
    c.args.k = nbl_cache_rows(&w->call.args.k, (uint64_t)first, (uint64_t)last);
    c.args.v = nbl_cache_rows(&w->call.args.v, (uint64_t)first, (uint64_t)last);
    c.args.slots += first;
    c.args.seq_indptr = indptr_device(w) + begin + run; /* each run has one entry more than sequences */
    if (c.args.centers.rows != NULL)
        c.args.centers.rows += begin;
    c.args.center_mode = mode_of(w, begin);
    return c;
}

static nbl_status run_fits(const append_work *w, uint32_t begin, uint32_t end, bool *out_fits, nbl_error *err)
{
    const nbl_append_call c = run_call(w, 0, begin, end);
    uint64_t bytes = 0;
    NBL_TRY(nbl_workspace_bytes(w->cache->device, nbl_append_desc(&c), &c.pool, &bytes, err));
    *out_fits = bytes <= w->cache->plan.workspace_bytes;
    if (!*out_fits && end - begin == 1)
        return NBL_REFUSE(err, NBL_E_NO_MEMORY,
                          "sequences[%u] with %u tokens needs a workspace of %" PRIu64
                          " bytes (workspace_mib gives %" PRIu64 ")",
                          begin, tokens_of(w, begin), bytes, w->cache->plan.workspace_bytes);
    return NBL_OK;
}

/* Cuts the batch into runs of one centre mode that fit the workspace; run i is [cuts[i], cuts[i + 1]). */
static nbl_status runs_cut(const append_work *w, uint32_t *out_runs, nbl_error *err)
{
    uint32_t *cuts = w->cache->cuts, runs = 0;
    cuts[0] = 0;
    while (cuts[runs] < w->args->batch) {
        const uint32_t begin = cuts[runs];
        uint32_t end = begin + 1u;
        bool fits = false;
        while (end < w->args->batch && mode_of(w, end) == mode_of(w, begin))
            ++end;
        NBL_TRY(run_fits(w, begin, end, &fits, err));
        while (!fits) {
            end = begin + (end - begin) / 2u;
            NBL_TRY(run_fits(w, begin, end, &fits, err));
        }
        cuts[++runs] = end;
    }
    *out_runs = runs;
    return NBL_OK;
}

/* Each run's indptr starts at 0 again; rows follow the batch. */
static void small_fill(const append_work *w, uint32_t runs)
{
    int32_t *indptr = indptr_host(w), *rows = indptr + rows_offset(w);
    const uint32_t *cuts = w->cache->cuts;
    for (uint32_t run = 0; run < runs; ++run) {
        for (uint32_t b = cuts[run]; b <= cuts[run + 1u]; ++b)
            indptr[b + run] = w->args->seq_indptr[b] - w->args->seq_indptr[cuts[run]];
    }
    for (uint32_t b = 0; b < w->args->batch; ++b)
        rows[b] = (int32_t)w->cache->batch[b];
}

static nbl_status runs_launch(const append_work *w, uint32_t runs, nbl_error *err)
{
    const nbl_cache *cache = w->cache;
    nbl_metadata *m = &w->cache->metadata;
    const nbl_stream stream = w->args->stream;
    NBL_TRY(nbl_mirror_send(cache->device, &m->slots, w->call.tokens * sizeof(int64_t), stream, err));
    if (cache->plan.config.shape.centering != 0)
        NBL_TRY(nbl_mirror_send(cache->device, &m->append_small,
                                cache->plan.metadata.attend_small - cache->plan.metadata.append_small, stream, err));
    for (uint32_t run = 0; run < runs; ++run) {
        const nbl_append_call c = run_call(w, run, cache->cuts[run], cache->cuts[run + 1u]);
        if (c.tokens > 0)
            NBL_TRY(cache->device->backend->append(cache->device->inner, &c.args, err));
    }
    return NBL_OK;
}

static nbl_status append_run(append_work *w, nbl_error *err)
{
    uint32_t runs = 0;
    NBL_TRY(room_check(w, err));
    NBL_TRY(runs_cut(w, &runs, err));
    for (uint32_t b = 0; b < w->args->batch; ++b)
        tokens_place(w, b);
    small_fill(w, runs);
    const nbl_status status = runs_launch(w, runs, err);
    if (status != NBL_OK) {
        tokens_unplace(w);
        return status;
    }
    for (uint32_t b = 0; b < w->args->batch; ++b)
        *length_of(w, b) += tokens_of(w, b);
    return NBL_OK;
}

nbl_status nbl_api_cache_append(nbl_cache *cache, const nbl_cache_append_args *args, nbl_error *err)
{
    nbl_cache_append_args a;
    append_work work = {.cache = cache, .args = &a};
    NBL_TRY(nbl_cache_check(cache, err));
    NBL_TRY(NBL_STRUCT_IN(nbl_cache_append_args, &a, args, err));
    NBL_TRY(nbl_flags_check(a.flags, 0, "nbl_cache_append_args", err));
    NBL_TRY(nbl_cache_batch_find(cache, a.sequences, a.batch, true, err));
    NBL_TRY(whole_check(&work, err));
    NBL_TRY(nbl_cache_indptr_check("seq_indptr", a.seq_indptr, a.batch, work.call.tokens, err));
    return work.call.tokens == 0 ? NBL_OK : append_run(&work, err);
}
