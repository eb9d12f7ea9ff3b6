/* SPDX-License-Identifier: Apache-2.0 */
#include "problem.h"

#include <stdlib.h>

static bool dim_allowed(uint32_t dim, uint32_t max)
{
    return dim >= NBL_DIM_MIN && dim <= max && dim % NBL_DIM_STEP == 0;
}

/* A wrong size of a file is no option's fault. */
static const char *blamed(const char *option, int exit_code)
{
    return exit_code == NBL_EXIT_USAGE ? option : "";
}

int nbl_problem_check(const nbl_problem *problem, int exit_code, nbl_fault *fault)
{
    if (problem->kv_tokens == 0 || problem->kv_tokens > NBL_KV_TOKENS_MAX)
        return nbl_fault_set(fault, exit_code, "%s%u keys; 1 to %u are allowed", blamed("--kv: ", exit_code),
                             problem->kv_tokens, NBL_KV_TOKENS_MAX);
    if (problem->q_tokens == 0 || problem->q_tokens > problem->kv_tokens)
        return nbl_fault_set(fault, exit_code, "%s%u query tokens; 1 to %u (the number of keys) are allowed",
                             blamed("--nq: ", exit_code), problem->q_tokens, problem->kv_tokens);
    if (problem->kv_heads == 0 || problem->q_heads == 0 || problem->q_heads % problem->kv_heads != 0)
        return nbl_fault_set(fault, exit_code, "%s%u query heads are not a multiple of %u kv heads",
                             blamed("--hq: ", exit_code), problem->q_heads, problem->kv_heads);
    if (!dim_allowed(problem->k_dim, NBL_K_DIM_MAX))
        return nbl_fault_set(fault, exit_code,
                             "%shead dimension %u of Q and K; multiples of %u from %u to %u are allowed",
                             blamed("--d: ", exit_code), problem->k_dim, NBL_DIM_STEP, NBL_DIM_MIN, NBL_K_DIM_MAX);
    if (!dim_allowed(problem->v_dim, NBL_V_DIM_MAX))
        return nbl_fault_set(fault, exit_code, "%shead dimension %u of V; multiples of %u from %u to %u are allowed",
                             blamed("--dv: ", exit_code), problem->v_dim, NBL_DIM_STEP, NBL_DIM_MIN, NBL_V_DIM_MAX);
    return NBL_EXIT_OK;
}

static float *alloc_rows(uint32_t tokens, uint32_t heads, uint32_t dim, nbl_fault *fault)
{
    return nbl_alloc((uint64_t)tokens * heads, (uint64_t)dim * sizeof(float), fault);
}

int nbl_problem_alloc(nbl_problem *problem, nbl_fault *fault)
{
    problem->q = alloc_rows(problem->q_tokens, problem->q_heads, problem->k_dim, fault);
    problem->k = problem->q ? alloc_rows(problem->kv_tokens, problem->kv_heads, problem->k_dim, fault) : NULL;
    problem->v = problem->k ? alloc_rows(problem->kv_tokens, problem->kv_heads, problem->v_dim, fault) : NULL;
    if (problem->v)
        return NBL_EXIT_OK;
    nbl_problem_free(problem);
    return NBL_EXIT_FAILED;
}

void nbl_problem_free(nbl_problem *problem)
{
    free(problem->q);
    free(problem->k);
    free(problem->v);
    problem->q = problem->k = problem->v = NULL;
}

nbl_problem nbl_problem_shorten(const nbl_problem *problem, uint32_t kv_tokens)
{
    nbl_problem shorter = *problem;
    shorter.kv_tokens = kv_tokens < problem->kv_tokens ? kv_tokens : problem->kv_tokens;
    if (shorter.q_tokens > shorter.kv_tokens) {
        uint64_t dropped = shorter.q_tokens - shorter.kv_tokens;
        shorter.q += dropped * shorter.q_heads * shorter.k_dim;
        shorter.q_tokens = shorter.kv_tokens;
    }
    return shorter;
}
