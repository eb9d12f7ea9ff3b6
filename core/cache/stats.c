/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file stats.c
 * @brief What a cache holds and what has happened to it.
 */
#include "cache.h"

static void pages_sum(const nbl_cache *cache, nbl_cache_stats *stats)
{
    for (uint32_t c = 0; c < cache->plan.class_count; ++c) {
        const nbl_page_stack *stack = &cache->pages.stacks[c];
        stats->pages_used[c] = stack->used;
        stats->pages_cached[c] = stack->total - stack->free - stack->used;
        stats->host_pages_used += cache->tiers.slots[0][c].used;
        stats->file_pages_used += cache->tiers.slots[1][c].used;
        stats->used_bytes += stack->used * cache->plan.classes[c].page_bytes;
    }
}

static void counters_copy(const nbl_cache_counters *from, nbl_cache_stats *to)
{
    to->forks = from->forks;
    to->page_copies = from->page_copies;
    to->prefix_queries = from->prefix_queries;
    to->prefix_tokens = from->prefix_tokens;
    to->prefix_hit_tokens = from->prefix_hit_tokens;
    to->pages_stored = from->pages_stored;
    to->pages_unstored = from->pages_unstored;
    to->pages_evicted = from->pages_evicted;
    to->pages_demoted = from->pages_demoted;
    to->pages_offloaded = from->pages_offloaded;
    to->pages_spilled = from->pages_spilled;
    to->pages_restored = from->pages_restored;
    to->tier_failures = from->tier_failures;
}

nbl_status nbl_api_cache_stats(nbl_cache *cache, nbl_cache_stats *out_stats, nbl_error *err)
{
    NBL_TRY(NBL_STRUCT_OUT_CHECK(nbl_cache_stats, out_stats, err));
    nbl_cache_stats stats = nbl_plan_stats(&cache->plan);
    pages_sum(cache, &stats);
    counters_copy(&cache->counters, &stats);
    stats.sequences = cache->sequences.alive;
    for (uint32_t i = 0; i < cache->sequences.count_max; ++i)
        stats.tokens += nbl_sequences_tokens(&cache->sequences, i);
    NBL_TRY(nbl_api_memory_copy(cache->device, &stats.quant, cache->metadata_block + cache->plan.metadata.stats,
                                sizeof stats.quant, NBL_COPY_TO_HOST, nbl_stream_host, err));
    nbl_struct_out(out_stats, &stats, (uint32_t)sizeof stats);
    return NBL_OK;
}
