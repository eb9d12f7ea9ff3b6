/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file debug.c
 * @brief NBL_CACHE_DEBUG: free pages hold poison, guards lie around the regions, and both are looked at.
 *
 * A 4-bit code cannot hold a NaN, but a scale can be out of its range: poisoned pages have scale bytes 0xFF, so a read
 * of one gives values that nobody takes for right ones. Where a side has no scales its codes can: bytes 0xFF are a NaN
 * in bf16, fp16 and E4M3. Everything here waits for the device.
 */
#include "../num/layout.h"
#include "cache.h"

#include <stdlib.h>
#include <string.h>

#define CODE_POISON 0x77 /* large in int8 and int4p */
#define NAN_POISON 0xff
#define GUARD 0xdb

static uint64_t page_bytes_most(const nbl_cache *cache)
{
    uint64_t most = NBL_GUARD_BYTES;
    for (uint32_t c = 0; c < cache->plan.class_count; ++c)
        most = cache->plan.classes[c].page_bytes > most ? cache->plan.classes[c].page_bytes : most;
    return most;
}

/* Tells whether the codes of both sides go with scales. */
static bool has_scales(const nbl_region *r)
{
    return nbl_layout_scale_planes(r->k_format, NBL_DIM_MIN) > 0 &&
           nbl_layout_scale_planes(r->v_format, NBL_DIM_MIN) > 0;
}

/* Fills cache->poison with a poisoned page of a class. */
static void poison_make(const nbl_cache *cache, uint32_t class_index)
{
    uint8_t *at = cache->poison;
    for (uint32_t g = 0; g < cache->plan.group_count; ++g) {
        const nbl_region *r = &cache->groups[g].regions[class_index];
        memset(at, has_scales(r) ? CODE_POISON : NAN_POISON, r->code_page_stride);
        memset(at + r->code_page_stride, NAN_POISON, r->scale_page_stride);
        at += r->code_page_stride + r->scale_page_stride;
    }
}

static nbl_status page_poison(nbl_cache *cache, int32_t page, nbl_error *err)
{
    poison_make(cache, nbl_plan_class_of_page(&cache->plan, page));
    NBL_TRY(nbl_page_move(cache, page, cache->poison, NBL_COPY_TO_DEVICE, nbl_stream_host, err));
    cache->pages.pages[page].poisoned = true;
    return NBL_OK;
}

/* Calls visit for the guard before every region of codes or scales, and the one after the last. */
static nbl_status guards_visit(nbl_cache *cache, nbl_status (*visit)(nbl_cache *, uint8_t *, nbl_error *),
                               nbl_error *err)
{
    for (uint32_t g = 0; g < cache->plan.group_count; ++g) {
        for (uint32_t c = 0; c < cache->plan.class_count; ++c) {
            const nbl_region *r = &cache->groups[g].regions[c];
            NBL_TRY(visit(cache, (uint8_t *)r->codes - NBL_GUARD_BYTES, err));
            NBL_TRY(visit(cache, (uint8_t *)r->scales - NBL_GUARD_BYTES, err));
        }
    }
    NBL_TRY(visit(cache, (uint8_t *)cache->codes + cache->plan.code_bytes - NBL_GUARD_BYTES, err));
    return visit(cache, (uint8_t *)cache->scales + cache->plan.scale_bytes - NBL_GUARD_BYTES, err);
}

static nbl_status guard_write(nbl_cache *cache, uint8_t *guard, nbl_error *err)
{
    memset(cache->poison, GUARD, NBL_GUARD_BYTES);
    return nbl_api_memory_copy(cache->device, guard, cache->poison, NBL_GUARD_BYTES, NBL_COPY_TO_DEVICE,
                               nbl_stream_host, err);
}

static nbl_status guard_look(nbl_cache *cache, uint8_t *guard, nbl_error *err)
{
    NBL_TRY(nbl_api_memory_copy(cache->device, cache->look, guard, NBL_GUARD_BYTES, NBL_COPY_TO_HOST, nbl_stream_host,
                                err));
    for (uint32_t i = 0; i < NBL_GUARD_BYTES; ++i) {
        if (cache->look[i] != GUARD)
            return NBL_REFUSE(err, NBL_E_STATE, "cache is inconsistent: byte %u of the guard at %p was written", i,
                              (void *)guard);
    }
    return NBL_OK;
}

nbl_status nbl_debug_open(nbl_cache *cache, nbl_error *err)
{
    if (nbl_plan_guard(&cache->plan) == 0)
        return NBL_OK;
    cache->poison = malloc(page_bytes_most(cache));
    cache->look = malloc(page_bytes_most(cache));
    if (cache->poison == NULL || cache->look == NULL)
        return NBL_REFUSE(err, NBL_E_NO_MEMORY, "no host memory for a page of poison");
    NBL_TRY(guards_visit(cache, guard_write, err));
    for (uint32_t page = 0; page < cache->plan.pages; ++page)
        NBL_TRY(page_poison(cache, (int32_t)page, err));
    return NBL_OK;
}

void nbl_debug_close(nbl_cache *cache)
{
    free(cache->poison);
    free(cache->look);
}

void nbl_debug_free(nbl_cache *cache, int32_t page)
{
    if (cache->poison != NULL)
        (void)page_poison(cache, page, NULL); /* if the device fails, the page is not looked at later */
}

nbl_status nbl_debug_verify(nbl_cache *cache, nbl_error *err)
{
    if (cache->poison == NULL)
        return NBL_OK;
    NBL_TRY(guards_visit(cache, guard_look, err));
    for (uint32_t c = 0; c < cache->plan.class_count; ++c) {
        const nbl_page_stack *stack = &cache->pages.stacks[c];
        poison_make(cache, c);
        for (uint32_t i = 0; i < stack->free; ++i) {
            if (!cache->pages.pages[stack->ids[i]].poisoned)
                continue;
            NBL_TRY(nbl_page_move(cache, stack->ids[i], cache->look, NBL_COPY_TO_HOST, nbl_stream_host, err));
            if (memcmp(cache->look, cache->poison, cache->plan.classes[c].page_bytes) != 0)
                return NBL_REFUSE(err, NBL_E_STATE, "cache is inconsistent: page %d was written after it was freed",
                                  stack->ids[i]);
        }
    }
    return NBL_OK;
}
