/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file edit.c
 * @brief Calls that change which pages sequences hold, and write none: create, fork, truncate, drop_prefix, free.
 */
#include "cache.h"

#include <stdio.h>
#include <string.h>

void nbl_cache_pages_drop(nbl_cache *cache, uint32_t index, uint32_t keep)
{
    nbl_sequence *sequence = &cache->sequences.all[index];
    const int32_t *pages = nbl_sequences_pages(&cache->sequences, index);
    const uint32_t first = sequence->dropped / cache->plan.config.shape.page_tokens;
    while (sequence->page_count > keep) {
        const uint32_t place = --sequence->page_count;
        if (place >= first)
            nbl_pages_release(cache, pages[place]);
        cache->page_epoch++;
    }
}

nbl_status nbl_api_seq_create(nbl_cache *cache, uint64_t *out_sequence, nbl_error *err)
{
    NBL_TRY(nbl_pointer_check("out_sequence", out_sequence, 1, (uint32_t) _Alignof(uint64_t), err));
    NBL_TRY(nbl_sequences_create(&cache->sequences, out_sequence, err));
    cache->sequences.all[nbl_sequences_index(*out_sequence)].row = nbl_rows_take(&cache->rows);
    return NBL_OK;
}

nbl_status nbl_api_seq_free(nbl_cache *cache, uint64_t sequence, nbl_error *err)
{
    uint32_t index = 0;
    NBL_TRY(nbl_sequences_find(&cache->sequences, sequence, &index, err));
    nbl_cache_pages_drop(cache, index, 0);
    nbl_index_leave(cache, cache->sequences.all[index].node);
    nbl_rows_release(&cache->rows, cache->sequences.all[index].row);
    nbl_sequences_end(&cache->sequences, index);
    return NBL_OK;
}

nbl_status nbl_api_seq_length(nbl_cache *cache, uint64_t sequence, uint32_t layer, uint32_t *out_tokens, nbl_error *err)
{
    uint32_t index = 0;
    NBL_TRY(nbl_pointer_check("out_tokens", out_tokens, 1, (uint32_t) _Alignof(uint32_t), err));
    NBL_TRY(nbl_sequences_find(&cache->sequences, sequence, &index, err));
    NBL_TRY(nbl_index_check("layer", layer, cache->sequences.layers, err));
    *out_tokens = *nbl_sequences_length(&cache->sequences, index, layer);
    return NBL_OK;
}

/* Tells whether a sequence goes on inside a page that was demoted. */
static bool is_inside_cold(const nbl_cache *cache, uint32_t index)
{
    const uint32_t tokens = nbl_sequences_tokens(&cache->sequences, index);
    const uint32_t page_tokens = cache->plan.config.shape.page_tokens, place = tokens / page_tokens;
    const nbl_place_run *run = nbl_plan_place(&cache->plan, place);
    return tokens % page_tokens != 0 && place < cache->sequences.all[index].cold &&
           run->class_index != run->final_class;
}

/* What else changes when a sequence has lost tokens: how far it is published and demoted, and whether its bytes are
 * still those that its tokens alone would have. They are not if tokens that its centre came from are gone, nor inside a
 * page that was demoted: there, tokens are quantized into the final format at once. */
static void shortened(nbl_cache *cache, uint32_t index)
{
    nbl_sequence *s = &cache->sequences.all[index];
    bool equal;
    nbl_index_retreat(cache, index);
    if (nbl_sequences_tokens(&cache->sequences, index) == 0)
        s->loose = false;
    else if (is_inside_cold(cache, index) ||
             nbl_cache_basis(cache, index, &equal) > nbl_sequences_tokens_whole(&cache->sequences, index))
        s->loose = true;
    s->cold = s->page_count < s->cold ? s->page_count : s->cold;
}

/* ------------------------------------------------------------------------------------------------ fork */

/* Gives child the first `tokens` tokens of parent. */
static void tokens_share(nbl_cache *cache, uint32_t parent, uint32_t child, uint32_t tokens)
{
    nbl_sequences *s = &cache->sequences;
    nbl_sequence *from = &s->all[parent], *to = &s->all[child];
    const uint32_t longest = nbl_sequences_tokens(s, parent);
    const uint32_t places = nbl_cache_pages_of(cache, tokens < longest ? tokens : longest);
    const int32_t *pages = nbl_sequences_pages(s, parent);
    to->row = from->row;
    to->dropped = from->dropped;
    to->node = from->node;
    to->published = from->published;
    to->cold = from->cold;
    to->loose = from->loose;
    nbl_index_enter(cache, to->node);
    to->page_count = places;
    cache->page_epoch++;
    nbl_rows_share(&cache->rows, to->row);
    memcpy(nbl_sequences_pages(s, child), pages, places * sizeof *pages);
    for (uint32_t place = from->dropped / cache->plan.config.shape.page_tokens; place < places; ++place)
        nbl_pages_share(cache, pages[place]);
    for (uint32_t layer = 0; layer < s->layers; ++layer) {
        const uint32_t length = *nbl_sequences_length(s, parent, layer);
        *nbl_sequences_length(s, child, layer) = length < tokens ? length : tokens;
    }
    if (tokens < longest)
        shortened(cache, child);
}

nbl_status nbl_api_seq_fork(nbl_cache *cache, uint64_t parent, uint32_t tokens, uint64_t *out_child, nbl_error *err)
{
    uint32_t index = 0;
    uint64_t child = 0;
    NBL_TRY(nbl_sequences_find(&cache->sequences, parent, &index, err));
    NBL_TRY(nbl_pointer_check("out_child", out_child, 1, (uint32_t) _Alignof(uint64_t), err));
    if (tokens < cache->sequences.all[index].dropped)
        return NBL_REFUSE(err, NBL_E_RANGE, "tokens is %u, and the parent has dropped its first %u", tokens,
                          cache->sequences.all[index].dropped);
    NBL_TRY(nbl_sequences_create(&cache->sequences, &child, err));
    tokens_share(cache, index, nbl_sequences_index(child), tokens);
    cache->counters.forks++;
    *out_child = child;
    return NBL_OK;
}

/* ------------------------------------------------------------------------------------------------ truncate */

static nbl_status truncate_check(const nbl_cache *cache, uint32_t index, const char *field, uint32_t tokens,
                                 nbl_error *err)
{
    const nbl_sequences *s = &cache->sequences;
    NBL_TRY(nbl_index_check(field, tokens, (uint64_t)nbl_sequences_tokens(s, index) + 1u, err));
    if (tokens < s->all[index].dropped)
        return NBL_REFUSE(err, NBL_E_RANGE, "%s is %u, and the sequence has dropped its first %u", field, tokens,
                          s->all[index].dropped);
    return NBL_OK;
}

static void truncate_to(nbl_cache *cache, uint32_t index, uint32_t tokens)
{
    nbl_sequences *s = &cache->sequences;
    for (uint32_t layer = 0; layer < s->layers; ++layer) {
        uint32_t *length = nbl_sequences_length(s, index, layer);
        *length = *length < tokens ? *length : tokens;
    }
    nbl_cache_pages_drop(cache, index, nbl_cache_pages_of(cache, tokens));
    shortened(cache, index);
}

nbl_status nbl_api_seq_truncate(nbl_cache *cache, uint64_t sequence, uint32_t tokens, nbl_error *err)
{
    uint32_t index = 0;
    NBL_TRY(nbl_sequences_find(&cache->sequences, sequence, &index, err));
    NBL_TRY(truncate_check(cache, index, "tokens", tokens, err));
    truncate_to(cache, index, tokens);
    return NBL_OK;
}

nbl_status nbl_api_seq_truncate_batch(nbl_cache *cache, const uint64_t *sequences, const uint32_t *tokens,
                                      uint32_t batch, nbl_error *err)
{
    char field[32];
    NBL_TRY(nbl_cache_batch_find(cache, sequences, batch, true, err));
    NBL_TRY(nbl_pointer_check("tokens", tokens, batch, (uint32_t) _Alignof(uint32_t), err));
    for (uint32_t b = 0; b < batch; ++b) {
        snprintf(field, sizeof field, "tokens[%u]", b);
        NBL_TRY(truncate_check(cache, cache->batch[b], field, tokens[b], err));
    }
    for (uint32_t b = 0; b < batch; ++b)
        truncate_to(cache, cache->batch[b], tokens[b]);
    return NBL_OK;
}

/* ------------------------------------------------------------------------------------------------ drop_prefix */

nbl_status nbl_api_seq_drop_prefix(nbl_cache *cache, uint64_t sequence, uint32_t tokens, nbl_error *err)
{
    uint32_t index = 0;
    NBL_TRY(nbl_sequences_find(&cache->sequences, sequence, &index, err));
    NBL_TRY(
        nbl_index_check("tokens", tokens, (uint64_t)nbl_sequences_tokens_whole(&cache->sequences, index) + 1u, err));
    nbl_sequence *s = &cache->sequences.all[index];
    const uint32_t page_tokens = cache->plan.config.shape.page_tokens;
    int32_t *pages = nbl_sequences_pages(&cache->sequences, index);
    for (uint32_t place = s->dropped / page_tokens; place < tokens / page_tokens; ++place) {
        nbl_pages_release(cache, pages[place]);
        pages[place] = NBL_PAGE_DROPPED;
        cache->page_epoch++;
    }
    s->dropped = tokens > s->dropped ? tokens : s->dropped;
    return NBL_OK;
}
