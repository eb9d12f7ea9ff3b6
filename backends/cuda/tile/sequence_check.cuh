/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file sequence_check.cuh
 * @brief What attend checks of a sequence before it does anything for it; what is bad is reported.
 */
#ifndef CUDA_SEQUENCE_CHECK_H
#define CUDA_SEQUENCE_CHECK_H

#include "block16.cuh"
#include "exp2grid.h"

#define SLOPE_MAX 65536.0f /* NUM 5.1 */
#define PAGE_LOADS 8u      /* of a page table by a thread, on their way at once */

/** Entries of q_indptr that belong to sequence b. */
CUDA_DEVICE bool check_q_indptr(const attend_params &p, uint32_t b)
{
    bool good = check_indptr_entry(p.q_indptr, b + 1u, p.batch, p.q_tokens, 0, p.status);
    return (b != 0 || check_indptr_entry(p.q_indptr, 0, p.batch, p.q_tokens, 0, p.status)) && good;
}

/** Lengths of sequence b; false if they are bad. */
CUDA_DEVICE bool check_lengths(const attend_params &p, uint32_t b, int32_t q_first, int64_t q_len, int32_t kv_len)
{
    if (q_first < 0 || q_len < 0 || (uint64_t)q_first + (uint64_t)q_len > p.q_tokens) {
        return false; /* reported with the indptr */
    }
    if (kv_len < 0 || (uint32_t)kv_len > p.kv_len_max) {
        cuda_fault_report(p.status, CUDA_FAULT_KV_LEN, b, 0, kv_len, p.kv_len_max);
        return false;
    }
    if (q_len > (int64_t)p.q_len_max) {
        cuda_fault_report(p.status, CUDA_FAULT_Q_LEN, b, 0, q_len, p.q_len_max);
        return false;
    }
    if (p.tree_mask != NULL && (uint64_t)q_len > 32u * (uint64_t)p.tree_mask_stride) {
        cuda_fault_report(p.status, CUDA_FAULT_TREE_MASK, b, 0, q_len, p.tree_mask_stride);
        return false;
    }
    return true;
}

/** The page table has room for the sequence's pages; lengths are good. */
CUDA_DEVICE bool check_table(const attend_params &p, uint32_t b, uint32_t kv_len)
{
    uint32_t pages = (kv_len + p.pages.page_tokens - 1u) / p.pages.page_tokens;
    if (pages > p.page_table_stride) {
        cuda_fault_report(p.status, CUDA_FAULT_TABLE_STRIDE, b, pages, kv_len, p.page_table_stride);
        return false;
    }
    return true;
}

/** Entry `place` of the sequence's page table names a page of the pool. */
CUDA_DEVICE bool check_page(const attend_params &p, uint32_t b, uint32_t place, int32_t page)
{
    if (cuda_region_find(&p.pages, page) == NULL) {
        cuda_fault_report(p.status, CUDA_FAULT_TABLE_PAGE, b, place, page, 0);
        return false;
    }
    return true;
}

/** PAGE_LOADS entries of the sequence's page table, THREADS apart; those past its end are the last one. */
template <uint32_t THREADS>
CUDA_DEVICE void read_pages(const attend_params &p, uint32_t b, uint32_t first, int32_t (&ids)[PAGE_LOADS])
{
    const int32_t *table = p.page_table + (uint64_t)b * p.page_table_stride;
#pragma unroll
    for (uint32_t k = 0; k < PAGE_LOADS; ++k) {
        ids[k] = p.page_table_stride > 0 ? table[min(first + k * THREADS, p.page_table_stride - 1u)] : -1;
    }
}

/** Bit k: ids[k] is a page of the pool. */
CUDA_DEVICE uint32_t find_pages(const cuda_pages &pages, const int32_t (&ids)[PAGE_LOADS])
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < pages.region_count; ++i) {
        const uint32_t first = pages.regions[i].first_page, count = pages.regions[i].page_count;
#pragma unroll
        for (uint32_t k = 0; k < PAGE_LOADS; ++k) {
            found |= (uint32_t)((uint32_t)ids[k] - first < count) << k;
        }
    }
    return found;
}

/** The thread's share of the sequence's page table, by blocks of THREADS; lengths are good, and `ids` what read_pages
 *  read from the thread's first entry on. */
template <uint32_t THREADS>
CUDA_DEVICE bool check_pages(const attend_params &p, uint32_t b, uint32_t kv_len, int32_t (&ids)[PAGE_LOADS])
{
    const uint32_t pages = (kv_len + p.pages.page_tokens - 1u) / p.pages.page_tokens;
    bool good = true;
    for (uint32_t first = threadIdx.x; first < pages; first += THREADS * PAGE_LOADS) {
        if (first >= THREADS * PAGE_LOADS) {
            read_pages<THREADS>(p, b, first, ids);
        }
        const uint32_t here = min((pages - first + THREADS - 1u) / THREADS, PAGE_LOADS);
        if ((((1u << here) - 1u) & ~find_pages(p.pages, ids)) == 0) {
            continue;
        }
#pragma unroll 1
        for (uint32_t k = 0; k < here; ++k) {
            const uint32_t place = first + k * THREADS;
            good = check_page(p, b, place, p.page_table[(uint64_t)b * p.page_table_stride + place]) && good;
        }
    }
    return good;
}

/** The thread's share of the sinks and slopes. */
CUDA_DEVICE bool check_heads(const attend_params &p)
{
    bool good = true;
    if (p.sinks == NULL && p.alibi_slopes == NULL) {
        return good;
    }
    for (uint32_t h = threadIdx.x; h < p.q_heads; h += blockDim.x) {
        if (p.sinks != NULL && !(fabsf(p.sinks[h]) <= NBL_LOGIT_MAX) && p.sinks[h] != -INFINITY) {
            cuda_fault_report(p.status, CUDA_FAULT_SINK, h, 0, nbl_bits_of(p.sinks[h]), 0);
            good = false;
        }
        if (p.alibi_slopes != NULL && !(fabsf(p.alibi_slopes[h]) <= SLOPE_MAX)) {
            cuda_fault_report(p.status, CUDA_FAULT_SLOPE, h, 0, nbl_bits_of(p.alibi_slopes[h]), 0);
            good = false;
        }
    }
    return good;
}

/** The sequence has a row among the centres, if there are any. */
CUDA_DEVICE bool check_center(const attend_params &p, uint32_t b)
{
    if (!p.centering || center_row(&p.centers, b) >= 0) {
        return true;
    }
    cuda_fault_report(p.status, CUDA_FAULT_CENTER_ROW, b, 0, p.centers.rows != NULL ? p.centers.rows[b] : (int64_t)b,
                      p.centers.row_count);
    return false;
}

/** Sequence of a query token if all are as long as they may be. */
CUDA_DEVICE uint32_t guess_sequence(const attend_params &p, uint32_t token)
{
    return min(token / max(p.q_len_max, 1u), p.batch - 1u);
}

/** Sequence of a query token: the one that is guessed, else by search. */
CUDA_DEVICE uint32_t find_sequence(const attend_params &p, uint32_t token)
{
    const uint32_t guess = guess_sequence(p, token);
    if ((uint32_t)p.q_indptr[guess] <= token && token < (uint32_t)p.q_indptr[guess + 1u]) {
        return guess;
    }
    return sequence_of(p.q_indptr, p.batch, token);
}

/** Lengths of sequence b, for kernels that no prepare goes before. */
struct sequence_lengths {
    int32_t q_first;
    int32_t q_len;
    int32_t kv_len;
    bool good; /* but for the pages */
};

CUDA_DEVICE sequence_lengths read_lengths(const attend_params &p, uint32_t b)
{
    const int32_t next = p.q_indptr[b + 1u];
    sequence_lengths s;
    s.q_first = p.q_indptr[b];
    s.q_len = (int32_t)((uint32_t)next - (uint32_t)s.q_first);
    s.kv_len = p.kv_len[b];
    const uint32_t pages = ((uint32_t)s.kv_len + p.pages.page_tokens - 1u) / p.pages.page_tokens;
    s.good = s.q_first >= 0 && next >= s.q_first && (uint32_t)next <= p.q_tokens && (uint32_t)s.q_len <= p.q_len_max &&
             (b != 0 || s.q_first == 0) && (b + 1u != p.batch || (uint32_t)next == p.q_tokens) &&
             (uint32_t)s.kv_len <= p.kv_len_max && pages <= p.page_table_stride;
    return s;
}

/** Reports what is wrong with them. */
CUDA_DEVICE void report_lengths(const attend_params &p, uint32_t b, const sequence_lengths &s)
{
    check_q_indptr(p, b);
    check_lengths(p, b, s.q_first, s.q_len, s.kv_len);
    if (s.kv_len >= 0) {
        check_table(p, b, (uint32_t)s.kv_len);
    }
}

#endif
