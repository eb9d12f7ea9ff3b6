/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file attend.c
 * @brief cache_attend: page tables and lengths of a batch, cut between sequences where the workspace asks for it.
 */
#include "cache.h"

/* The call at work. */
typedef struct attend_work {
    nbl_cache *cache;
    const nbl_cache_attend_args *args;
    nbl_attend_call call; /**< the whole call, checked; cut into groups of sequences */
} attend_work;

static uint32_t q_len_of(const attend_work *w, uint32_t b)
{
    return (uint32_t)(w->args->q_indptr[b + 1u] - w->args->q_indptr[b]);
}

static uint32_t kv_len_of(const attend_work *w, uint32_t b)
{
    return *nbl_sequences_length(&w->cache->sequences, w->cache->batch[b], w->args->layer);
}

static nbl_attend_args whole_args(const attend_work *w)
{
    nbl_cache *cache = w->cache;
    const nbl_cache_attend_args *in = w->args;
    /* kv_len [batch], rows [batch], q_indptr [batch + groups], since each group has one entry more than sequences */
    const int32_t *small = (const int32_t *)(const void *)cache->metadata.attend_small.device;
    nbl_attend_args a = NBL_INIT(nbl_attend_args);
    a.flags = in->flags;
    a.layer = nbl_cache_pool_layer(cache, in->layer);
    a.q_heads = in->q_heads;
    a.q_format = in->q_format;
    a.batch = in->batch;
    a.q = in->q;
    a.o = in->o;
    a.lse = in->lse;
    a.kv_len = small;
    a.q_indptr = small + 2u * (size_t)in->batch;
    a.page_table = (const int32_t *)(const void *)(cache->metadata_block + cache->plan.metadata.table);
    a.sm_scale = in->sm_scale;
    a.window_left = in->window_left;
    a.window_right = in->window_right;
    a.soft_cap = in->soft_cap;
    a.tree_mask_stride = in->tree_mask_stride;
    a.alibi_slopes = in->alibi_slopes;
    a.sinks = in->sinks;
    a.tree_mask = in->tree_mask;
    a.centers = nbl_cache_centers(cache, in->layer, small + in->batch);
    a.workspace = cache->workspace;
    a.workspace_bytes = cache->plan.workspace_bytes;
    a.stream = in->stream;
    a.q_centers = in->q_centers;
    return a;
}

/* Checks everything that does not depend on the groups. kv_len_max and page_table_stride stay 0: they are a group's. */
static nbl_status whole_check(attend_work *w, nbl_error *err)
{
    NBL_TRY(nbl_index_check("layer", w->args->layer, w->cache->sequences.layers, err));
    nbl_attend_args a = whole_args(w);
    for (uint32_t b = 0; b < a.batch; ++b)
        a.q_len_max = q_len_of(w, b) > a.q_len_max ? q_len_of(w, b) : a.q_len_max;
    if (a.q_len_max > 0 && !nbl_tensor_present(&a.o) && !nbl_tensor_present(&a.lse))
        return NBL_REFUSE(err, NBL_E_INVALID, "o and lse are both absent (needed: at least one output)");
    return nbl_attend_over(&w->call, nbl_cache_pool(w->cache, w->args->layer), &a, err);
}

/* Rows must not see tokens that seq_drop_prefix has given up: the window of the first row ends after them. */
static nbl_status dropped_check(const attend_work *w, nbl_error *err)
{
    for (uint32_t b = 0; b < w->args->batch; ++b) {
        const uint32_t dropped = w->cache->sequences.all[w->cache->batch[b]].dropped;
        if (dropped == 0 || q_len_of(w, b) == 0)
            continue;
        const int64_t position = (int64_t)kv_len_of(w, b) - q_len_of(w, b);
        if ((w->args->flags & NBL_ATTEND_WINDOW_LEFT) == 0)
            return NBL_REFUSE(err, NBL_E_RANGE,
                              "sequences[%u] has dropped its first %u tokens (needed: NBL_ATTEND_WINDOW_LEFT)", b,
                              dropped);
        if (position - (int64_t)w->args->window_left < (int64_t)dropped)
            return NBL_REFUSE(err, NBL_E_RANGE,
                              "window_left is %u, so the row at position %" PRId64
                              " of sequences[%u] sees dropped tokens (allowed: tokens from %u on)",
                              w->args->window_left, position, b, dropped);
    }
    return NBL_OK;
}

/* ------------------------------------------------------------------------------------------------ groups */

/* Narrows the call to the sequences [begin, end), which are group number group. */
static nbl_attend_call group_call(const attend_work *w, uint32_t group, uint32_t begin, uint32_t end)
{
    nbl_attend_call c = w->call;
    const uint64_t first = (uint64_t)w->args->q_indptr[begin], last = (uint64_t)w->args->q_indptr[end];
    c.q_tokens = last - first;
    c.args.batch = end - begin;
    c.args.q = nbl_cache_rows(&w->call.args.q, first, last);
    c.args.o = nbl_cache_rows(&w->call.args.o, first, last);
    c.args.lse = nbl_cache_rows(&w->call.args.lse, first, last);
    c.args.q_centers = nbl_cache_rows(&w->call.args.q_centers, begin, end);
    c.args.q_indptr += begin + group;
    c.args.kv_len += begin;
    if (c.args.centers.rows != NULL)
        c.args.centers.rows += begin;
    if (c.args.tree_mask != NULL)
        c.args.tree_mask += first * c.args.tree_mask_stride;
    c.args.q_len_max = 0;
    for (uint32_t b = begin; b < end; ++b) {
        c.args.q_len_max = q_len_of(w, b) > c.args.q_len_max ? q_len_of(w, b) : c.args.q_len_max;
        c.args.kv_len_max = kv_len_of(w, b) > c.args.kv_len_max ? kv_len_of(w, b) : c.args.kv_len_max;
    }
    c.args.page_table_stride = nbl_cache_pages_of(w->cache, c.args.kv_len_max);
    return c;
}

static nbl_status group_fits(const attend_work *w, uint32_t begin, uint32_t end, bool *out_fits, nbl_error *err)
{
    const nbl_attend_call c = group_call(w, 0, begin, end);
    uint64_t bytes = 0;
    NBL_TRY(nbl_workspace_bytes(w->cache->device, nbl_attend_desc(&c), c.pool, &bytes, err));
    *out_fits = bytes <= w->cache->plan.workspace_bytes &&
                (uint64_t)c.args.batch * c.args.page_table_stride <= w->cache->plan.table_entries;
    if (!*out_fits && end - begin == 1)
        return nbl_cache_workspace_refuse(w->cache, begin, "query rows", q_len_of(w, begin), bytes, err);
    return NBL_OK;
}

/* Cuts the batch into groups; group i is [cuts[i], cuts[i + 1]). Rows do not depend on their batch (NUM 5). */
static nbl_status groups_cut(const attend_work *w, uint32_t *out_groups, nbl_error *err)
{
    uint32_t *cuts = w->cache->cuts, groups = 0;
    cuts[0] = 0;
    while (cuts[groups] < w->args->batch) {
        const uint32_t begin = cuts[groups];
        uint32_t end = w->args->batch;
        bool fits = false;
        NBL_TRY(group_fits(w, begin, end, &fits, err));
        while (!fits) {
            end = begin + (end - begin) / 2u;
            NBL_TRY(group_fits(w, begin, end, &fits, err));
        }
        cuts[++groups] = end;
    }
    *out_groups = groups;
    return NBL_OK;
}

static void small_fill(const attend_work *w, uint32_t groups)
{
    int32_t *kv_len = (int32_t *)(void *)w->cache->metadata.attend_small.next;
    int32_t *rows = kv_len + w->args->batch, *indptr = rows + w->args->batch;
    const uint32_t *cuts = w->cache->cuts;
    for (uint32_t group = 0; group < groups; ++group) {
        for (uint32_t b = cuts[group]; b <= cuts[group + 1u]; ++b)
            indptr[b + group] = w->args->q_indptr[b] - w->args->q_indptr[cuts[group]];
    }
    for (uint32_t b = 0; b < w->args->batch; ++b) {
        kv_len[b] = (int32_t)kv_len_of(w, b);
        rows[b] = (int32_t)w->cache->sequences.all[w->cache->batch[b]].row;
    }
}

static nbl_status groups_launch(const attend_work *w, uint32_t groups, nbl_error *err)
{
    nbl_cache *cache = w->cache;
    const nbl_stream stream = w->args->stream;
    NBL_TRY(nbl_mirror_send(cache->device, &cache->metadata.attend_small,
                            (3u * (size_t)w->args->batch + groups) * sizeof(int32_t), stream, err));
    for (uint32_t group = 0; group < groups; ++group) {
        const uint32_t begin = cache->cuts[group], end = cache->cuts[group + 1u];
        const nbl_attend_call c = group_call(w, group, begin, end);
        if (c.q_tokens == 0)
            continue;
        NBL_TRY(
            nbl_metadata_send_table(cache, cache->batch + begin, end - begin, c.args.page_table_stride, stream, err));
        NBL_TRY(cache->device->backend->attend(cache->device->inner, &c.args, err));
    }
    return NBL_OK;
}

nbl_status nbl_api_cache_attend(nbl_cache *cache, const nbl_cache_attend_args *args, nbl_error *err)
{
    nbl_cache_attend_args a;
    attend_work work = {.cache = cache, .args = &a};
    uint32_t groups = 0;
    uint64_t rows = 0;
    NBL_TRY(NBL_STRUCT_IN(nbl_cache_attend_args, &a, args, err));
    NBL_TRY(nbl_flags_check(a.flags, NBL_ATTEND_FLAGS_ALL, "nbl_cache_attend_args", err));
    NBL_TRY(nbl_reserved_check("nbl_cache_attend_args", a.reserved, err));
    NBL_TRY(nbl_cache_batch_find(cache, a.sequences, a.batch, false, err));
    NBL_TRY(nbl_tensor_tokens(&a.q, "q", "[Tq, Hq, Dk]", 3, 0, &rows, err));
    NBL_TRY(nbl_cache_indptr_check("q_indptr", a.q_indptr, a.batch, rows, err));
    NBL_TRY(whole_check(&work, err));
    NBL_TRY(dropped_check(&work, err));
    if (work.call.q_tokens == 0)
        return NBL_OK;
    NBL_TRY(groups_cut(&work, &groups, err));
    small_fill(&work, groups);
    return groups_launch(&work, groups, err);
}
