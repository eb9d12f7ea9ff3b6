/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file sequences.c
 * @brief Sequences and their handles.
 */
#include "cache.h"

#include <stdlib.h>

/* Handles of different caches differ in their tag, as long as fewer than 65536 caches lie between them. */
static atomic_uint next_tag;

static uint64_t handle_make(const nbl_sequences *s, uint32_t index)
{
    return (uint64_t)s->all[index].generation << 32 | (uint64_t)s->tag << 16 | index;
}

bool nbl_sequences_open(nbl_sequences *s, const nbl_plan *plan)
{
    const size_t count = plan->config.sequences_max;
    s->count_max = plan->config.sequences_max;
    s->layers = plan->config.shape.layers;
    s->pages_max = plan->sequence_pages_max;
    s->tag = atomic_fetch_add(&next_tag, 1u) & 0xffffu;
    s->all = calloc(count, sizeof *s->all);
    s->free_stack = calloc(count, sizeof *s->free_stack);
    s->lengths = calloc(count * s->layers, sizeof *s->lengths);
    s->pages = calloc(count * s->pages_max, sizeof *s->pages);
    if (!s->all || !s->free_stack || !s->lengths || !s->pages)
        return false;
    for (uint32_t i = 0; i < s->count_max; ++i)
        s->free_stack[i] = s->count_max - 1u - i;
    return true;
}

void nbl_sequences_close(nbl_sequences *s)
{
    free(s->all);
    free(s->free_stack);
    free(s->lengths);
    free(s->pages);
    *s = (nbl_sequences){.count_max = 0};
}

nbl_status nbl_sequences_create(nbl_sequences *s, uint64_t *out_handle, nbl_error *err)
{
    if (s->alive == s->count_max)
        return NBL_REFUSE(err, NBL_E_NO_MEMORY, "all %u sequences of the cache are in use (sequences_max)",
                          s->count_max);
    const uint32_t index = s->free_stack[s->count_max - 1u - s->alive];
    s->alive++;
    nbl_sequence *sequence = &s->all[index];
    *sequence = (nbl_sequence){.generation = sequence->generation + 1u, .node = NBL_NONE}; /* odd from here on */
    *out_handle = handle_make(s, index);
    return NBL_OK;
}

void nbl_sequences_end(nbl_sequences *s, uint32_t index)
{
    for (uint32_t layer = 0; layer < s->layers; ++layer)
        *nbl_sequences_length(s, index, layer) = 0;
    s->all[index].generation++; /* even: no handle matches */
    s->alive--;
    s->free_stack[s->count_max - 1u - s->alive] = index;
}

nbl_status nbl_sequences_find(const nbl_sequences *s, uint64_t handle, uint32_t *out_index, nbl_error *err)
{
    const uint32_t generation = (uint32_t)(handle >> 32), index = nbl_sequences_index(handle);
    const uint32_t tag = (uint32_t)(handle >> 16 & 0xffffu);
    if (tag != s->tag || index >= s->count_max || generation % 2u == 0)
        return NBL_REFUSE(err, NBL_E_NOT_FOUND, "sequence %#" PRIx64 " is not of this cache", handle);
    /* Generations wrap, so age is told by a signed difference. */
    const int32_t age = (int32_t)(s->all[index].generation - generation);
    if (age < 0)
        return NBL_REFUSE(err, NBL_E_NOT_FOUND, "sequence %#" PRIx64 " is not of this cache", handle);
    if (age > 0)
        return NBL_REFUSE(err, NBL_E_NOT_FOUND, "sequence %#" PRIx64 " was freed", handle);
    *out_index = index;
    return NBL_OK;
}

uint32_t nbl_sequences_tokens(const nbl_sequences *s, uint32_t index)
{
    uint32_t tokens = 0;
    for (uint32_t layer = 0; layer < s->layers; ++layer) {
        const uint32_t length = *nbl_sequences_length(s, index, layer);
        tokens = length > tokens ? length : tokens;
    }
    return tokens;
}

uint32_t nbl_sequences_tokens_whole(const nbl_sequences *s, uint32_t index)
{
    uint32_t tokens = UINT32_MAX;
    for (uint32_t layer = 0; layer < s->layers; ++layer) {
        const uint32_t length = *nbl_sequences_length(s, index, layer);
        tokens = length < tokens ? length : tokens;
    }
    return tokens;
}
