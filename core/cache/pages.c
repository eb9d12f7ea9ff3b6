/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file pages.c
 * @brief Free pages of a region.
 */
#include "cache.h"

#include <stdlib.h>

bool nbl_pages_open(nbl_page_stack *stack, const nbl_region *region)
{
    stack->ids = malloc(region->page_count * sizeof *stack->ids);
    if (stack->ids == NULL)
        return false;
    stack->total = stack->free = region->page_count;
    for (uint32_t i = 0; i < stack->total; ++i)
        stack->ids[i] = (int32_t)(region->first_page + stack->total - 1u - i);
    return true;
}

void nbl_pages_close(nbl_page_stack *stack)
{
    free(stack->ids);
    *stack = (nbl_page_stack){NULL, 0, 0};
}

int32_t nbl_pages_take(nbl_page_stack *stack)
{
    return stack->ids[--stack->free];
}

void nbl_pages_give(nbl_page_stack *stack, int32_t page)
{
    stack->ids[stack->free++] = page;
}
