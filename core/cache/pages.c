/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file pages.c
 * @brief Pages: who holds them, and which are free.
 */
#include "cache.h"

#include <stdlib.h>

static bool stack_open(nbl_page_stack *stack, const nbl_class *c)
{
    stack->ids = malloc(c->page_count * sizeof *stack->ids);
    if (stack->ids == NULL)
        return false;
    stack->total = stack->free = c->page_count;
    for (uint32_t i = 0; i < stack->total; ++i)
        stack->ids[i] = (int32_t)(c->first_page + stack->total - 1u - i);
    return true;
}

bool nbl_pages_open(nbl_pages *pages, const nbl_plan *plan)
{
    pages->pages = calloc(plan->pages, sizeof *pages->pages);
    bool ok = pages->pages != NULL;
    for (uint32_t c = 0; c < plan->class_count; ++c)
        ok = stack_open(&pages->stacks[c], &plan->classes[c]) && ok;
    return ok;
}

void nbl_pages_close(nbl_pages *pages)
{
    free(pages->pages);
    for (uint32_t c = 0; c < NBL_CLASSES_MAX; ++c)
        free(pages->stacks[c].ids);
    *pages = (nbl_pages){.pages = NULL};
}

uint32_t nbl_pages_available(const nbl_cache *cache, uint32_t class_index)
{
    return cache->pages.stacks[class_index].free;
}

int32_t nbl_pages_take(nbl_cache *cache, uint32_t class_index)
{
    nbl_page_stack *stack = &cache->pages.stacks[class_index];
    const int32_t page = stack->ids[--stack->free];
    cache->pages.pages[page].refs = 1;
    return page;
}

void nbl_pages_share(nbl_cache *cache, int32_t page)
{
    cache->pages.pages[page].refs++;
}

void nbl_pages_release(nbl_cache *cache, int32_t page)
{
    nbl_page_stack *stack = &cache->pages.stacks[nbl_plan_class_of_page(&cache->plan, page)];
    if (--cache->pages.pages[page].refs == 0)
        stack->ids[stack->free++] = page;
}

bool nbl_pages_shared(const nbl_cache *cache, int32_t page)
{
    return cache->pages.pages[page].refs > 1u;
}
