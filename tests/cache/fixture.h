/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file fixture.h
 * @brief A small cache on the counting backend, and the calls that tests make on it.
 */
#ifndef CACHE_FIXTURE_H
#define CACHE_FIXTURE_H

#include "counting.h"

#include <criterion/criterion.h>

#define TOKENS_MOST 8192u /**< of one call of the fixture */

typedef struct fixture {
    counting c;
    nbl_cache_config config;
    nbl_cache *cache;
    nbl_tensor q_centers; /**< of every attend, which then has NBL_Q_FP4; or absent */
} fixture;

/** int4p/int8, 2 layers, 2 kv heads, Dk 32, Dv 16, pages of 4 tokens, 6 sink tokens, 4 sequences, 40 tokens. */
nbl_cache_config fixture_config(void);

/** Opens backend and cache. */
fixture fixture_open(nbl_cache_config config);

/** Destroys the cache; no memory of it may stay. */
void fixture_close(fixture *f);

uint64_t fixture_seq(fixture *f);
nbl_cache_stats fixture_stats(fixture *f);
uint32_t fixture_length(fixture *f, uint64_t sequence, uint32_t layer);

/** Appends counts[b] tokens to sequences[b]; gives the status. */
nbl_status fixture_append(fixture *f, uint32_t layer, uint32_t batch, const uint64_t *sequences, const int32_t *counts,
                          nbl_error *err);

/** Appends to one sequence and expects it to work. */
void fixture_grow(fixture *f, uint32_t layer, uint64_t sequence, int32_t tokens);

/** Attends with rows[b] causal query rows of four heads; gives the status. */
nbl_status fixture_attend(fixture *f, uint32_t layer, uint32_t batch, const uint64_t *sequences, const int32_t *rows,
                          nbl_error *err);

#define EXPECT(call, status) cr_assert_eq(call, status, "%s: %s", #call, err.message)

#endif
