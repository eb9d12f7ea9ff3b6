/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file accounting.c
 * @brief From a configuration to sizes: how many pages, how many bytes.
 */
#include "cache.h"

#include "../num/layout.h"

#include <string.h>

#define TOKENS_MAX ((uint64_t)INT32_MAX)
#define APPEND_TOKENS_DEFAULT 2048u
#define TIER_BYTES_MAX (1ull << 46)
#define WORKSPACE_MIB_MAX (1u << 20)
/* Page table entries per page: a batch of equal sequences needs one, an uneven batch more. */
#define TABLE_ENTRIES_PER_PAGE 4u
/* Longer lists of pages are cut into several calls. */
#define LIST_ENTRIES_MOST 4096u

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The shape comes by value, so it is of this version whatever its header says; 0 is as good as the size. */
static nbl_status shape_complete(nbl_kv_shape *shape, nbl_error *err)
{
    if (shape->struct_size == 0)
        shape->struct_size = (uint32_t)sizeof *shape;
    const nbl_kv_shape copy = *shape;
    return nbl_shape_in(shape, &copy, "shape.", err);
}

static nbl_status config_in(nbl_cache_config *c, const nbl_cache_config *config, nbl_error *err)
{
    NBL_TRY(NBL_STRUCT_IN(nbl_cache_config, c, config, err));
    NBL_TRY(nbl_flags_check(c->flags, NBL_CACHE_FLAGS_ALL, "nbl_cache_config", err));
    NBL_TRY(shape_complete(&c->shape, err));
    NBL_TRY(nbl_format_check("", "k_format", c->k_format, err));
    NBL_TRY(nbl_format_check("", "v_format", c->v_format, err));
    NBL_TRY(nbl_value_check("", "sink_tokens", c->sink_tokens, 0, NBL_KV_TOKENS_MAX, err));
    NBL_TRY(nbl_value_check("", "sequences_max", c->sequences_max, 1, NBL_SEQUENCES_MAX, err));
    NBL_TRY(nbl_value_check("", "tokens_max", c->tokens_max, 1, TOKENS_MAX, err));
    const uint64_t sequence_most = min_u64(c->tokens_max, NBL_KV_TOKENS_MAX);
    NBL_TRY(nbl_value_check("", "sequence_tokens_max", c->sequence_tokens_max, 0, sequence_most, err));
    NBL_TRY(nbl_value_check("", "workspace_mib", c->workspace_mib, 0, WORKSPACE_MIB_MAX, err));
    if (c->center_tokens == 0)
        c->center_tokens = NBL_CENTER_TOKENS_MAX;
    NBL_TRY(nbl_value_check("", "center_tokens", c->center_tokens, NBL_CENTER_TOKENS_MIN, NBL_CENTER_TOKENS_MAX, err));
    NBL_TRY(nbl_value_check("", "rule_count", c->rule_count, 0, NBL_RULES_MAX, err));
    NBL_TRY(nbl_pointer_check("rules", c->rules, c->rule_count, (uint32_t) _Alignof(nbl_policy_rule), err));
    NBL_TRY(nbl_value_check("", "append_tokens_max", c->append_tokens_max, 0, c->tokens_max, err));
    if (c->append_tokens_max == 0)
        c->append_tokens_max = (uint32_t)min_u64(c->tokens_max, APPEND_TOKENS_DEFAULT);
    if (c->sequence_tokens_max == 0)
        c->sequence_tokens_max = (uint32_t)sequence_most;
    return NBL_OK;
}

/* Reserves bytes at *end and returns their offset. */
static uint64_t reserve(uint64_t *end, uint64_t bytes)
{
    const uint64_t offset = *end;
    *end += nbl_layout_head_bytes(bytes);
    return offset;
}

static void metadata_plan(nbl_plan *plan)
{
    const uint64_t sequences = plan->config.sequences_max;
    const uint64_t table_most = sequences * plan->sequence_pages_max;
    nbl_metadata_layout *m = &plan->metadata;
    plan->slots_max = (uint64_t)plan->pages * plan->config.shape.page_tokens;
    plan->list_entries = (uint32_t)min_u64(plan->pages, LIST_ENTRIES_MOST);
    plan->table_entries = min_u64(table_most, (uint64_t)TABLE_ENTRIES_PER_PAGE * plan->pages);
    m->slots = reserve(&m->bytes, plan->slots_max * sizeof(int64_t));
    m->append_small = reserve(&m->bytes, 6u * sequences * sizeof(int32_t));
    m->attend_small = reserve(&m->bytes, 4u * sequences * sizeof(int32_t));
    m->table = reserve(&m->bytes, plan->table_entries * sizeof(int32_t));
    m->lists = reserve(&m->bytes, 3u * plan->list_entries * sizeof(int32_t));
    m->stats = reserve(&m->bytes, sizeof(nbl_quant_stats));
}

/* Tiers hold published pages, so they need the index; the file takes what leaves the host's memory. */
static nbl_status tiers_plan(nbl_plan *plan, nbl_error *err)
{
    const nbl_cache_config *c = &plan->config;
    const bool prefix = (c->flags & NBL_CACHE_PREFIX) != 0;
    if (c->host_bytes > 0 && !prefix)
        return NBL_REFUSE(err, NBL_E_INVALID, "host_bytes is %" PRIu64 " (allowed without NBL_CACHE_PREFIX: 0)",
                          c->host_bytes);
    if (c->file_bytes > 0 && c->host_bytes == 0)
        return NBL_REFUSE(err, NBL_E_INVALID, "file_bytes is %" PRIu64 " (allowed without host_bytes: 0)",
                          c->file_bytes);
    NBL_TRY(nbl_value_check("", "host_bytes", c->host_bytes, 0, TIER_BYTES_MAX, err));
    NBL_TRY(nbl_value_check("", "file_bytes", c->file_bytes, 0, TIER_BYTES_MAX, err));
    if (c->file_bytes > 0 && c->file_folder == NULL)
        return NBL_REFUSE(err, NBL_E_INVALID, "file_folder is NULL (needed: a folder, with file_bytes)");
    for (uint32_t i = 0; i < plan->class_count; ++i) {
        plan->tier_bytes[0] += nbl_plan_slots(plan, NBL_TIER_HOST, i) * plan->classes[i].page_bytes;
        plan->tier_bytes[1] += nbl_plan_slots(plan, NBL_TIER_FILE, i) * plan->classes[i].page_bytes;
    }
    return NBL_OK;
}

/* Every cached page has a node, and so has every page that sequences hold; some more stay for pages that were evicted
 * while their successors live. */
static nbl_status index_plan(nbl_plan *plan, nbl_error *err)
{
    const nbl_cache_config *c = &plan->config;
    if ((c->flags & NBL_CACHE_PREFIX) == 0) {
        if (c->prefix_roots_max == 0)
            return NBL_OK;
        return NBL_REFUSE(err, NBL_E_INVALID, "prefix_roots_max is %u (allowed without NBL_CACHE_PREFIX: 0)",
                          c->prefix_roots_max);
    }
    uint64_t tier_pages = 0;
    for (uint32_t i = 0; i < plan->class_count; ++i)
        tier_pages += (uint64_t)nbl_plan_slots(plan, NBL_TIER_HOST, i) + nbl_plan_slots(plan, NBL_TIER_FILE, i);
    const uint64_t nodes = plan->pages + tier_pages + c->sequences_max;
    if (nodes > INT32_MAX)
        return NBL_REFUSE(err, NBL_E_INVALID,
                          "host_bytes and file_bytes hold %" PRIu64 " pages, the device %u (allowed: fewer than 2^31 "
                          "together)",
                          tier_pages, plan->pages);
    plan->prefix_nodes = (uint32_t)nodes;
    NBL_TRY(nbl_value_check("", "prefix_roots_max", c->prefix_roots_max, 0, plan->pages, err));
    plan->prefix_roots = c->prefix_roots_max != 0 ? c->prefix_roots_max : c->sequences_max + plan->pages / 4u;
    return NBL_OK;
}

static void centers_plan(nbl_plan *plan)
{
    const nbl_kv_shape *shape = &plan->config.shape;
    plan->center_rows = plan->config.sequences_max + plan->prefix_roots;
    const uint64_t vectors = (uint64_t)shape->layers * plan->center_rows * shape->kv_heads;
    if (shape->centering == 0)
        return;
    if ((shape->centering & NBL_CENTERING_MEAN) != 0) {
        plan->center_codes = reserve(&plan->center_bytes, vectors * shape->k_dim);
        plan->center_exponents = reserve(&plan->center_bytes, vectors);
    }
    if ((shape->centering & NBL_CENTERING_SHIFT) != 0)
        plan->center_shifts = reserve(&plan->center_bytes, vectors * shape->k_dim);
}

nbl_status nbl_plan_make(nbl_plan *plan, const nbl_cache_config *config, nbl_error *err)
{
    memset(plan, 0, sizeof *plan);
    NBL_TRY(config_in(&plan->config, config, err));
    NBL_TRY(nbl_plan_classes(plan, err));
    plan->config.rules = NULL; /* the caller's; all that they say is in the classes now */
    uint64_t head_scale_bytes = 0;
    NBL_TRY(nbl_plan_head_scales(plan, &head_scale_bytes, err));
    metadata_plan(plan);
    plan->metadata.head_scales = reserve(&plan->metadata.bytes, head_scale_bytes);
    NBL_TRY(tiers_plan(plan, err));
    NBL_TRY(index_plan(plan, err));
    centers_plan(plan);
    const uint32_t mib = plan->config.workspace_mib;
    plan->workspace_bytes = (uint64_t)(mib != 0 ? mib : NBL_WORKSPACE_MIB_DEFAULT) << 20;
    return NBL_OK;
}

nbl_cache_stats nbl_plan_stats(const nbl_plan *plan)
{
    nbl_cache_stats stats = NBL_INIT(nbl_cache_stats);
    stats.code_bytes = plan->code_bytes;
    stats.scale_bytes = plan->scale_bytes;
    stats.center_bytes = plan->center_bytes;
    stats.metadata_bytes = plan->metadata.bytes;
    stats.workspace_bytes = plan->workspace_bytes;
    stats.total_bytes =
        plan->code_bytes + plan->scale_bytes + plan->center_bytes + plan->metadata.bytes + plan->workspace_bytes;
    stats.host_bytes = plan->tier_bytes[0];
    stats.file_bytes = plan->tier_bytes[1];
    stats.region_count = plan->class_count;
    for (uint32_t i = 0; i < plan->class_count; ++i) {
        stats.pages_total[i] = plan->classes[i].page_count;
        stats.host_pages_total += nbl_plan_slots(plan, NBL_TIER_HOST, i);
        stats.file_pages_total += nbl_plan_slots(plan, NBL_TIER_FILE, i);
    }
    return stats;
}

nbl_status nbl_api_cache_plan(const nbl_cache_config *config, nbl_cache_stats *out_stats, nbl_error *err)
{
    nbl_plan plan;
    NBL_TRY(NBL_STRUCT_OUT_CHECK(nbl_cache_stats, out_stats, err));
    NBL_TRY(nbl_plan_make(&plan, config, err));
    const nbl_cache_stats stats = nbl_plan_stats(&plan);
    nbl_struct_out(out_stats, &stats, (uint32_t)sizeof stats);
    return NBL_OK;
}
