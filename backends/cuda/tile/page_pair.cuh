/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file page_pair.cuh
 * @brief Checks of a (source, destination) pair of pages, by the block that works on it.
 */
#ifndef CUDA_PAGE_PAIR_H
#define CUDA_PAGE_PAIR_H

#include "../ops.h"

/** Regions of a pair, or -1 in src where the pair is bad. */
struct page_pair {
    int32_t src;
    int32_t dst;
};

/** Index of the region of a page, or -1. */
CUDA_DEVICE int32_t page_region(const cuda_pages *pages, int64_t page)
{
    const cuda_region *region = cuda_region_find(pages, page);
    return region != NULL ? (int32_t)(region - pages->regions) : -1;
}

/** 1 if no other pair writes the destination of pair i and none reads it. All threads of the block call it. */
CUDA_DEVICE bool page_is_alone(const pages_params *p, uint32_t i)
{
    int32_t page = p->dst_pages[i];
    bool alone = true;
    for (uint32_t j = threadIdx.x; j < p->count; j += blockDim.x) {
        if (j != i && p->dst_pages[j] == page) {
            cuda_fault_report(p->status, CUDA_FAULT_DST_TWICE, max(i, j), 0, page, 0);
            alone = false;
        }
        if (p->same_pool && p->src_pages[j] == page) {
            cuda_fault_report(p->status, CUDA_FAULT_DST_IS_SRC, j, 0, page, 0);
            alone = false;
        }
    }
    return __syncthreads_and(alone) != 0;
}

/** Finds and checks pair i. All threads of the block call it. */
CUDA_DEVICE page_pair page_pair_find(const pages_params *p, uint32_t i)
{
    page_pair pair = {page_region(&p->src, p->src_pages[i]), page_region(&p->dst, p->dst_pages[i])};
    bool good = true;
    if (pair.src < 0) {
        cuda_fault_report(p->status, CUDA_FAULT_SRC_PAGE, i, 0, p->src_pages[i], 0);
        good = false;
    } else if (pair.dst < 0) {
        cuda_fault_report(p->status, CUDA_FAULT_DST_PAGE, i, 0, p->dst_pages[i], 0);
        good = false;
    }
    if (!page_is_alone(p, i) || !good) {
        pair.src = -1;
    }
    return pair;
}

#endif
