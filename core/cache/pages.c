/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file pages.c
 * @brief Pages: who holds them, which are free, and which to give up first.
 */
#include "cache.h"

#include <stdlib.h>

/* ------------------------------------------------------------------------------------------------ open, close */

static bool stack_open(nbl_page_stack *stack, const nbl_class *c)
{
    stack->ids = malloc(c->page_count * sizeof *stack->ids);
    if (stack->ids == NULL)
        return false;
    stack->total = stack->free = c->page_count;
    for (uint32_t i = 0; i < stack->total; ++i)
        stack->ids[i] = (int32_t)(c->first_page + stack->total - 1u - i);
    for (uint32_t p = 0; p <= NBL_PRIORITY_MAX; ++p)
        stack->queues[p] = (nbl_page_queue){NBL_NONE, NBL_NONE};
    return true;
}

bool nbl_pages_open(nbl_pages *pages, const nbl_plan *plan)
{
    pages->pages = malloc(plan->pages * sizeof *pages->pages);
    bool ok = pages->pages != NULL;
    for (uint32_t i = 0; ok && i < plan->pages; ++i)
        pages->pages[i] = (nbl_page){.node = NBL_NONE, .older = NBL_NONE, .newer = NBL_NONE};
    for (uint32_t c = 0; c < plan->class_count; ++c)
        ok = stack_open(&pages->stacks[c], &plan->classes[c]) && ok;
    return ok;
}

void nbl_pages_close(nbl_pages *pages)
{
    free(pages->pages);
    for (uint32_t c = 0; c < NBL_CLASSES_MAX; ++c)
        free(pages->stacks[c].ids);
    pages->pages = NULL;
}

/* ------------------------------------------------------------------------------------------------ cached pages */

static nbl_page_stack *stack_of(nbl_cache *cache, int32_t page)
{
    return &cache->pages.stacks[nbl_plan_class_of_page(&cache->plan, page)];
}

static uint32_t priority_of(const nbl_cache *cache, int32_t page)
{
    return cache->index.nodes[cache->pages.pages[page].node].priority;
}

void nbl_pages_queue(nbl_cache *cache, int32_t page)
{
    nbl_page *pages = cache->pages.pages;
    nbl_page_stack *stack = stack_of(cache, page);
    const uint32_t priority = priority_of(cache, page);
    nbl_page_queue *queue = &stack->queues[priority];
    pages[page].older = queue->newest;
    pages[page].newer = NBL_NONE;
    if (queue->newest != NBL_NONE)
        pages[queue->newest].newer = (uint32_t)page;
    else
        queue->oldest = (uint32_t)page;
    queue->newest = (uint32_t)page;
    stack->busy[priority / 64u] |= 1ull << priority % 64u;
    stack->queued++;
}

void nbl_pages_unqueue(nbl_cache *cache, int32_t page)
{
    nbl_page *pages = cache->pages.pages;
    nbl_page_stack *stack = stack_of(cache, page);
    const uint32_t priority = priority_of(cache, page), older = pages[page].older, newer = pages[page].newer;
    nbl_page_queue *queue = &stack->queues[priority];
    *(older != NBL_NONE ? &pages[older].newer : &queue->oldest) = newer;
    *(newer != NBL_NONE ? &pages[newer].older : &queue->newest) = older;
    if (queue->oldest == NBL_NONE)
        stack->busy[priority / 64u] &= ~(1ull << priority % 64u);
    stack->queued--;
}

/* Tells whether a page is in a queue: published, held by nobody, not pinned. */
static bool is_queued(const nbl_cache *cache, int32_t page)
{
    const nbl_page *p = &cache->pages.pages[page];
    return p->refs == 0 && p->node != NBL_NONE && cache->index.nodes[p->node].pins == 0;
}

static void page_free(nbl_cache *cache, nbl_page_stack *stack, int32_t page)
{
    stack->ids[stack->free++] = page;
    nbl_debug_free(cache, page);
}

/* Frees the page that is to go first: lowest priority, then least recently used. */
static void evict_one(nbl_cache *cache, nbl_page_stack *stack)
{
    const uint32_t half = stack->busy[0] != 0 ? 0 : 1;
    const uint32_t priority = half * 64u + (uint32_t)__builtin_ctzll(stack->busy[half]);
    const int32_t page = (int32_t)stack->queues[priority].oldest;
    nbl_pages_unqueue(cache, page);
    nbl_index_evict(cache, cache->pages.pages[page].node);
    page_free(cache, stack, page);
}

void nbl_pages_evict_all(nbl_cache *cache, uint32_t class_index)
{
    nbl_page_stack *stack = &cache->pages.stacks[class_index];
    while (stack->queued > 0)
        evict_one(cache, stack);
}

/* ------------------------------------------------------------------------------------------------ references */

uint32_t nbl_pages_available(const nbl_cache *cache, uint32_t class_index)
{
    const nbl_page_stack *stack = &cache->pages.stacks[class_index];
    return stack->free + stack->queued;
}

int32_t nbl_pages_take(nbl_cache *cache, uint32_t class_index)
{
    nbl_page_stack *stack = &cache->pages.stacks[class_index];
    if (stack->free == 0)
        evict_one(cache, stack);
    const int32_t page = stack->ids[--stack->free];
    cache->pages.pages[page].refs = 1;
    cache->pages.pages[page].poisoned = false;
    stack->used++;
    return page;
}

void nbl_pages_share(nbl_cache *cache, int32_t page)
{
    if (is_queued(cache, page))
        nbl_pages_unqueue(cache, page);
    if (cache->pages.pages[page].refs++ == 0)
        stack_of(cache, page)->used++;
}

void nbl_pages_release(nbl_cache *cache, int32_t page)
{
    nbl_page *p = &cache->pages.pages[page];
    nbl_page_stack *stack = stack_of(cache, page);
    if (--p->refs > 0)
        return;
    stack->used--;
    if (p->node == NBL_NONE)
        page_free(cache, stack, page);
    else if (is_queued(cache, page))
        nbl_pages_queue(cache, page);
}

bool nbl_pages_shared(const nbl_cache *cache, int32_t page)
{
    const nbl_page *p = &cache->pages.pages[page];
    return p->refs > 1u || p->node != NBL_NONE;
}
