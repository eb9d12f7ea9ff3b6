/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file operations.h
 * @brief Every operation once, over the pool of a problem.
 */
#ifndef CUDA_OPERATIONS_H
#define CUDA_OPERATIONS_H

#include "problem.h"

/** What the operations need besides the problem. */
typedef struct operations {
    problem *p;
    array *pages; /**< source, destination and token count of transcode */
    array *state_head, *state_o, *merged;
    array *coded, *coded_k, *coded_v, *coded_slot; /**< a page of fp8 and its token */
} operations;

/** Makes the arrays, for a problem that is filled. */
operations operations_make(problem *p);
/** Runs all of them on one side, and after(name) after each. */
void operations_run(operations *o, uint32_t i, void (*after)(const char *name));
/** Fails unless both sides hold the same bytes, once both have run. */
void operations_compare(const operations *o);

#endif
