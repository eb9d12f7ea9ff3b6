/* SPDX-License-Identifier: Apache-2.0 */
/** @file test_num_data.h  Input vectors for quantizers: random ones of many kinds, and the edges of every format. */
#ifndef TEST_NUM_DATA_H
#define TEST_NUM_DATA_H

#include "test_oracle_support.h"

#define COUNT(array) ((uint32_t)(sizeof(array) / sizeof((array)[0])))

/** What a random vector is made of; every kind stays within +-127 * 2^40. */
enum input_kind {
    INPUT_NORMAL,    /**< standard normal at a random scale, 2^-50 to 2^46 */
    INPUT_OUTLIERS,  /**< normal, a few elements 2^4 to 2^9 times larger */
    INPUT_BLOCKS,    /**< each run of 16 has its own power of two, 2^-6 to 2^6 */
    INPUT_TIES,      /**< multiples of a power of two: many fall on rounding ties */
    INPUT_SPARSE,    /**< mostly zeros of both signs */
    INPUT_ZERO,      /**< zeros of both signs */
    INPUT_SUBNORMAL, /**< subnormal and barely normal numbers */
    INPUT_TINY,      /**< normal times 2^-38 to 2^-43: around the smallest exponents */
    INPUT_HUGE,      /**< around the largest exponents */
    INPUT_BITS,      /**< random bits after NUM 3.1 */
    INPUT_KINDS
};

/** Fills x with a random vector of a kind. */
void input_random(uint32_t kind, uint64_t *seed, float *x, uint32_t dim);
/** Fills x with a vector whose largest magnitude is exactly amax, at a random place, the rest normal at that scale. */
void input_with_amax(float amax, uint64_t *seed, float *x, uint32_t dim);
/** Index from 0 to n-1. */
uint32_t random_index(uint64_t *seed, uint32_t n);
/** Uniform in [low, high). */
double random_between(uint64_t *seed, double low, double high);

#endif
