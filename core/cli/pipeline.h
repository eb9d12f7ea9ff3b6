/* SPDX-License-Identifier: Apache-2.0 */
/** @file pipeline.h @brief Runs a problem through the managed cache: append, attend, read back. */
#ifndef NBL_CLI_PIPELINE_H
#define NBL_CLI_PIPELINE_H

#include "problem.h"
#include "session.h"

/** Recipes of the integer core, and what plan and compare show if nothing is named: they and the default policy. */
#define NBL_RECIPES_INTEGER "qk4v8,mxkv4,kv4,k4v8,kv8"
#define NBL_POLICIES_SHOWN NBL_RECIPES_INTEGER ",default"
/** All names, for help texts. */
#define NBL_RECIPES_KNOWN NBL_RECIPES_INTEGER ",bf16,fp16,fp8,nvfp4,nvfp4_4over6,mpfa"

/** How to run it. */
typedef struct nbl_pipeline_options {
    const char *recipe; /**< or policy */
    uint32_t page_tokens;
    uint32_t chunk_tokens;  /**< tokens appended and attended per call; 0: all at once */
    uint32_t decode_tokens; /**< last tokens done once more, one by one, and compared; 0: none */
} nbl_pipeline_options;

/** What came out. */
typedef struct nbl_pipeline_result {
    float *o;              /**< [Tq, Hq, Dv] */
    float *lse;            /**< [Tq, Hq], natural */
    uint64_t used_bytes;   /**< codes and scales of the pages in use */
    uint64_t total_bytes;  /**< all the cache asked for */
    uint64_t bf16_bytes;   /**< what K and V take in bf16 */
    nbl_quant_stats quant; /**< what appending all tokens met */
    double append_ms;
    double attend_ms;
    uint32_t decode_rows;    /**< query tokens compared */
    uint32_t decode_differs; /**< of these, how many differ in a byte of o or lse */
} nbl_pipeline_result;

/** Cuts a list of recipes. Recipes have commas of their own: an item with "=" belongs to the recipe before it, so
 *  "kv4,center=0,kv8" is two recipes. */
int nbl_recipes_split(const char *option, const char *text, nbl_list *out_list, nbl_fault *fault);

#define NBL_POLICY_TEXT_MAX 1024u

/** Parses a recipe or policy, or reads it from the file PATH of "@PATH"; a fault names the option. */
int nbl_policy_read(const nbl_api_v1 *api, const char *option, const char *text, uint32_t layers, uint32_t k_dim,
                    uint32_t v_dim, nbl_policy *out_policy, nbl_fault *fault);

/** Cache of one layer and one sequence for a shape and a policy, whose rules it borrows. */
void nbl_cache_config_fill(const nbl_problem *shape, const nbl_policy *policy, uint32_t page_tokens,
                           nbl_cache_config *out_config);

/** Cache of one layer for a shape and a recipe or policy; an unknown one or an impossible shape is a fault
 *  NBL_EXIT_USAGE. The rules of the configuration are those of out_policy, which must live as long. */
int nbl_cache_config_make(const nbl_api_v1 *api, const nbl_problem *shape, const char *recipe, uint32_t page_tokens,
                          nbl_cache_config *out_config, nbl_policy *out_policy, nbl_fault *fault);

/** Appends all tokens in chunks and attends each chunk's query rows on the way; then, if asked for, goes back and
 *  decodes the last tokens one by one. */
int nbl_pipeline_run(nbl_session *session, const nbl_problem *problem, const nbl_pipeline_options *options,
                     nbl_pipeline_result *out_result, nbl_fault *fault);

/** Frees the arrays. */
void nbl_pipeline_result_free(nbl_pipeline_result *result);

/** Bits of cache in use per element of K and V. */
double nbl_pipeline_bits(const nbl_problem *problem, const nbl_pipeline_result *result);

#endif
