/* SPDX-License-Identifier: Apache-2.0 */
/** @file problem.h @brief One attention problem in host memory: unquantized Q, K, V and what goes with them. */
#ifndef NBL_CLI_PROBLEM_H
#define NBL_CLI_PROBLEM_H

#include "fault.h"

#include <stdbool.h>

/** Causal attention of the last q_tokens positions of a sequence of kv_tokens. All arrays are packed f32. */
typedef struct nbl_problem {
    char source[64];   /**< distribution, or "capture" */
    uint32_t layer;    /**< of a capture */
    uint32_t q_tokens; /**< Tq <= T */
    uint32_t q_heads;  /**< Hq, a multiple of Hk */
    uint32_t kv_tokens;
    uint32_t kv_heads;
    uint32_t k_dim;
    uint32_t v_dim;
    uint32_t window; /**< keys a query sees, itself included; 0: all */
    float sm_scale;  /**< 0: 1/sqrt(Dk) */
    float soft_cap;  /**< 0: none */
    bool has_sink;
    float sink; /**< natural-log logit that joins every row's denominator */
    float *q;   /**< [Tq, Hq, Dk] */
    float *k;   /**< [T, Hk, Dk] */
    float *v;   /**< [T, Hk, Dv] */
} nbl_problem;

/** Says whether the shapes fit together; exit_code is what a misfit means: wrong usage, which names the option,
 *  or wrong input. */
int nbl_problem_check(const nbl_problem *problem, int exit_code, nbl_fault *fault);

/** Allocates q, k and v for the shapes set. */
int nbl_problem_alloc(nbl_problem *problem, nbl_fault *fault);

/** Frees q, k and v. */
void nbl_problem_free(nbl_problem *problem);

/** The same problem with the first kv_tokens keys only; the query rows move to the last positions of the shorter
 *  sequence, and if there are more rows than positions the first rows are dropped. Borrows the arrays. */
nbl_problem nbl_problem_shorten(const nbl_problem *problem, uint32_t kv_tokens);

#endif
