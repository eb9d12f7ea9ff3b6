/* SPDX-License-Identifier: Apache-2.0 */
/** @file test_oracle_support.h  Random numbers, golden files and a random cache for the tests of the oracle. */
#ifndef TEST_ORACLE_SUPPORT_H
#define TEST_ORACLE_SUPPORT_H

#include "oracle.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SUPPORT_BATCH_MAX 4u

/** Next 64 random bits of a sequence. */
uint64_t support_random(uint64_t *seed);
/** Uniform in [0, 1). */
double support_uniform(uint64_t *seed);
/** About normal: mean 0, deviation 1. */
float support_normal(uint64_t *seed);
/** Zeroed memory; fails the test if there is none. */
void *support_alloc(uint64_t bytes);

/** One line of a golden file. */
typedef struct golden_row {
    uint32_t input;
    uint32_t output;
} golden_row;

/** Reads a file of tests/vectors; fails the test if it is missing or has no rows. Free the result. */
golden_row *support_golden(const char *name, uint32_t *count);

/** What a random cache is made of; two regions, whose pages the sequences use in turns. */
typedef struct cache_params {
    uint32_t k_formats[2];
    uint32_t v_formats[2];
    uint32_t kv_heads;
    uint32_t q_heads;
    uint32_t k_dim;
    uint32_t v_dim;
    uint32_t page_tokens;
    uint32_t k_hadamard;
    uint32_t v_hadamard;
    uint32_t centering;
    uint32_t q_format;
    uint32_t batch;
    uint32_t kv_len[SUPPORT_BATCH_MAX];
    uint32_t q_len[SUPPORT_BATCH_MAX];
    float k_bias; /**< added to all K of a channel d with d % 8 == 0 */
    uint8_t fill; /**< of all page bytes before the append */
    uint64_t seed;
} cache_params;

/** A filled cache with the arguments of an attend over it. */
typedef struct cache {
    nbl_kv_shape shape;
    nbl_region regions[2];
    nbl_pool pool;
    nbl_append_args append;
    nbl_attend_args attend;
    float *k[SUPPORT_BATCH_MAX]; /**< [kv_len, Hk, Dk] as appended */
    float *v[SUPPORT_BATCH_MAX];
    uint32_t rows;
    uint32_t rows_out; /**< rows * Hq */
    void *memory[24];
    uint32_t memory_count;
} cache;

/** Makes, fills and describes a cache; outputs are f32 and packed. Ends with cache_free. */
void cache_init(cache *c, const cache_params *params);
void cache_free(cache *c);
/** Memory freed with the cache. */
void *cache_alloc(cache *c, uint64_t bytes);
/** Runs attend and returns its o (copied; freed with the cache); lse stays in the args' tensor. */
float *cache_attend_copy(cache *c);
/** Packed tensor over memory. */
nbl_tensor support_tensor(void *data, uint32_t dtype, uint32_t rank, const uint64_t *shape);
/** Relative L2 distance of o from the binary64 reference of the cache's call; *lse_error is the largest of lse. */
double cache_error(cache *c, const float *o, double *lse_error);

#endif
