/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file problem.h
 * @brief A batch of sequences over one pool on two devices, with the arguments of the calls that decode them.
 */
#ifndef CUDA_PROBLEM_H
#define CUDA_PROBLEM_H

#include "../differential/world.h"

#define BATCH 4u
#define KV_HEADS 2u
#define Q_HEADS 8u
#define KV_MAX 5120u
#define EXIT_SKIPPED 77
#define SIM 0u
#define CUDA 1u
#define COUNT(list) ((uint32_t)(sizeof(list) / sizeof((list)[0])))

/** One cache format and its arrays. */
typedef struct problem {
    world *w;
    nbl_kv_shape shape;
    uint32_t k_format, v_format, q_format;
    uint32_t q_len;         /**< query rows of each sequence */
    uint32_t pages;         /**< in the pool */
    uint32_t stride;        /**< entries of a row of the page table */
    uint32_t kv_len[BATCH]; /**< 0: nobody there */
    nbl_region region[SIDES];
    nbl_pool pool[SIDES];
    array *codes, *scales, *k, *v, *q, *o, *lse, *slots, *table, *kv_lens, *indptr, *q_indptr;
    array *shorter_o, *shorter_lse, *shorter_lens; /**< of the second attend of a step */
    array *fill_indptr, *fill_k, *fill_v, *fill_slots, *center_codes, *center_exponents, *center_shifts;
    void *workspace[SIDES];
    uint64_t workspace_bytes[SIDES];
    char text[128];
} problem;

/** Makes pool, arrays and workspace; page tables and lengths are still to be set. */
void problem_make(problem *p, world *w, const uint32_t formats[3], uint32_t page_tokens, uint32_t dim, uint32_t q_len);
void problem_free(problem *p);

/** New random page tables for kv_len; the slot of every sequence's last token. */
void problem_make_tables(problem *p);

/** Appends all tokens of every sequence but the last one, on both sides. */
void problem_fill(problem *p);

/** One token of each sequence. */
nbl_append_args problem_append_args(problem *p, uint32_t i);
/** q_len query rows of each sequence. */
nbl_attend_args problem_attend_args(problem *p, uint32_t i);
/** The vectors of those tokens, over what was appended. */
nbl_gather_args problem_gather_args(problem *p, uint32_t i);
/** Page 0 of the pool to page 1. */
nbl_copy_pages_args problem_copy_args(problem *p, uint32_t i);
/** Append, attend, and attend again with other lengths and the same workspace, on one side. */
void problem_step(problem *p, uint32_t i);

#endif
