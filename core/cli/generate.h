/* SPDX-License-Identifier: Apache-2.0 */
/** @file generate.h @brief Synthetic Q, K, V: the same numbers for the same seed. */
#ifndef NBL_CLI_GENERATE_H
#define NBL_CLI_GENERATE_H

#include "options.h"
#include "problem.h"

#define NBL_GENERATE_NAMES "gaussian, outliers, sinks, student-t, outlier-30, outlier-100, log-normal"

/** Names of the distributions, NULL-terminated:
 *  gaussian     all elements N(0, 1)
 *  outliers     2 to 4 channels of each K head carry a constant of 50 to 300 on top (a projection bias)
 *  sinks        every query leans to key 0, whose logit is about 20 above the rest and whose V is 1/1000 of the others
 *  student-t    all elements Student t with 3 degrees of freedom
 *  outlier-30   N(0, 1), and one element of every 32 of K and V, another one in each vector, times 30
 *  outlier-100  the same times 100
 *  log-normal   all elements +-exp(N(0, 1)) */
extern const char *const nbl_generate_names[];

/** Fills q, k and v of an allocated problem. An unknown name is a fault that names --generate. */
int nbl_problem_generate(nbl_problem *problem, const char *name, uint64_t seed, nbl_fault *fault);

#define NBL_Q_TOKENS_DEFAULT 16u

/** Sizes of a generated problem, as the command line gives them. */
typedef struct nbl_shape_options {
    uint32_t q_heads;
    uint32_t kv_heads;
    uint32_t k_dim;
    uint32_t v_dim; /**< 0: k_dim */
    uint32_t kv_tokens;
    uint32_t q_tokens;
    uint64_t seed;
} nbl_shape_options;

#define NBL_SEED_UNSET UINT64_MAX /* above what --seed takes */

/** Nothing given yet: sizes are 0, which no option takes. */
#define NBL_SHAPE_OPTIONS_UNSET \
    {                           \
        .seed = NBL_SEED_UNSET  \
    }

/** Wrong usage if a size or the seed was given: they describe generated problems, and the input is none. */
int nbl_shape_options_refuse(const nbl_shape_options *shape, nbl_fault *fault);

/** Sets what was not given; q_tokens becomes q_tokens_default, or kv_tokens if there are fewer. */
void nbl_shape_options_complete(nbl_shape_options *shape, uint32_t q_tokens_default);

/** Rows of an option table for a values struct with a nbl_shape_options field named shape. */
#define NBL_SHAPE_OPTION_ROWS(type)                                                                                \
    {"hq", NBL_OPTION_U32, offsetof(type, shape.q_heads), 1, 65536, "N", "query heads (default 8)"},               \
        {"hkv", NBL_OPTION_U32, offsetof(type, shape.kv_heads), 1, 65536, "N", "key and value heads (default 2)"}, \
        {"d",                                                                                                      \
         NBL_OPTION_U32,                                                                                           \
         offsetof(type, shape.k_dim),                                                                              \
         NBL_DIM_MIN,                                                                                              \
         NBL_K_DIM_MAX,                                                                                            \
         "N",                                                                                                      \
         "head dimension of Q and K (default 128)"},                                                               \
        {"dv",                                                                                                     \
         NBL_OPTION_U32,                                                                                           \
         offsetof(type, shape.v_dim),                                                                              \
         NBL_DIM_MIN,                                                                                              \
         NBL_V_DIM_MAX,                                                                                            \
         "N",                                                                                                      \
         "head dimension of V (default: that of K)"},                                                              \
        {"kv",                                                                                                     \
         NBL_OPTION_U32,                                                                                           \
         offsetof(type, shape.kv_tokens),                                                                          \
         1,                                                                                                        \
         NBL_KV_TOKENS_MAX,                                                                                        \
         "N",                                                                                                      \
         "tokens in the cache (default 1024)"},                                                                    \
        {"nq",                                                                                                     \
         NBL_OPTION_U32,                                                                                           \
         offsetof(type, shape.q_tokens),                                                                           \
         1,                                                                                                        \
         NBL_KV_TOKENS_MAX,                                                                                        \
         "N",                                                                                                      \
         "query tokens: the last ones (default 16, or all if fewer; bench 1)"},                                    \
    {                                                                                                              \
        "seed", NBL_OPTION_U64, offsetof(type, shape.seed), 0, 0x1p53, "N", "of the random numbers (default 1)"    \
    }

/** Allocates and fills a problem of the sizes given; a misfit is wrong usage. */
int nbl_problem_make(const nbl_shape_options *shape, const char *name, nbl_problem *out_problem, nbl_fault *fault);

/** Shuffles 0..count-1. */
void nbl_generate_permutation(int32_t *values, uint32_t count, uint64_t seed);

/** Fills values with N(0, 1); stream separates independent fillings of one seed. */
void nbl_generate_gaussian(float *values, uint64_t count, uint64_t seed, uint64_t stream);

#endif
