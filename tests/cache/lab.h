/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file lab.h
 * @brief A cache on the simulator, or the backend that NIBBLE_BACKEND names, and sequences of tokens, for tests that
 * compare what attention gives, byte for byte.
 *
 * A token id stands for its K and V in every layer, so a sequence that holds the same tokens in another cache, appended
 * with the same first cut, must give the same bytes: recomputation is the reference of everything.
 */
#ifndef CACHE_LAB_H
#define CACHE_LAB_H

#include <criterion/criterion.h>
#include <nibble/nibble.h>

#define LAB_LAYERS 2u
#define LAB_HEADS 2u
#define LAB_DIM 32u
#define LAB_TOKENS 512u /**< of one call */

/** A device with a cache. */
typedef struct lab {
    const nbl_api_v1 *api;
    nbl_runtime *runtime;
    nbl_device *device;
    nbl_cache_config config;
    nbl_cache *cache;
    nbl_stream stream;
    void *memory[4]; /**< of the device: K, V, Q and outputs of one call */
} lab;

/** int4p K, int8 V, pages of 16 tokens, 32 tokens in int8 first, mean and shifts. */
nbl_cache_config lab_config(void);
#define LAB_PAIRS 24u
/** Sets the formats of K and V of case i < LAB_PAIRS: each of the eight with itself and the next two. With fp16, no
 *  tokens are in int8 (a side has fp16 in all regions or in none). */
void lab_pair(nbl_cache_config *config, uint32_t i);
void lab_open(lab *l, nbl_cache_config config);
void lab_close(lab *l);

/** A small device, some host memory and a file in folder, so that LAB_TIER_PROMPTS prompts push each other into the
 *  file. */
nbl_cache_config lab_tier_config(const char *folder);
#define LAB_TIER_HOST_PAGES 3u
#define LAB_TIER_FILE_PAGES 60u
#define LAB_TIER_PROMPTS 5u
#define LAB_TIER_PROMPT 160u /**< tokens of a prompt */

uint64_t lab_seq(lab *l);
/** Appends tokens to all layers. */
void lab_append(lab *l, uint64_t sequence, const uint32_t *tokens, uint32_t count);
/** A sequence with these tokens, the first `first` of them in one call (0: all), the rest in another. */
uint64_t lab_filled(lab *l, const uint32_t *tokens, uint32_t count, uint32_t first);
uint32_t lab_length(lab *l, uint64_t sequence);
/** A sequence that holds prompt number `prompt`, published; gives its LAB_TIER_PROMPT tokens. */
uint64_t lab_published(lab *l, uint32_t prompt, uint32_t *out_tokens);

/** Attends with `rows` causal rows at the end of a sequence, in every layer, with a window to the left (UINT32_MAX:
 *  none); writes o and lse of all layers. Gives the status of the first layer that fails. */
nbl_status lab_attend(lab *l, uint64_t sequence, uint32_t rows, uint32_t window, float *out, nbl_error *err);
#define LAB_OUT_FLOATS(rows) (LAB_LAYERS * (rows)*2u * LAB_HEADS * (LAB_DIM + 1u))

/** Tells whether two sequences give the same bytes. */
bool lab_same(lab *a, uint64_t in_a, lab *b, uint64_t in_b);

/** Tells whether two sequences store the same bytes: their snapshots are equal. */
bool lab_equal_bytes(lab *a, uint64_t in_a, lab *b, uint64_t in_b);

/** Tokens first, first + 1, ... */
void lab_count(uint32_t *tokens, uint32_t count, uint32_t first);

nbl_cache_stats lab_stats(lab *l);

#define LAB_OK(call) cr_assert_eq(call, NBL_OK, "%s: %s", #call, err.message)

#endif
