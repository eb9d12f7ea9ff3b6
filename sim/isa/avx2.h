/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file avx2.h
 * @brief What the AVX2 loops share: bytes, nibbles, lookup tables, exponents.
 */
#ifndef SIM_AVX2_H
#define SIM_AVX2_H

#include "exponents.h"

#include <immintrin.h>

#define LANES 8u
#define LINE 32u /* bytes of a register */
#define PARTS 4u /* registers of dwords per group of 32 tokens */

/** A loop body that is compiled once for each set of constant arguments. */
#define UNROLLED static inline __attribute__((always_inline))

/* Entries of the table that live in other files. */
void sim_avx2_coded_widen(const sim_rows *q, void *wide);
void sim_avx2_coded_qk(const sim_coded *k, const sim_rows *q, float *x);
void sim_avx2_coded_pv(const sim_coded *v, const uint8_t *p, float *const *o, const float *b, uint32_t rows);
sim_softmax sim_avx2_softmax(const sim_row_tile *row, float base, int first, uint8_t *p);
uint32_t sim_avx2_softmax_rows(const sim_tile *tile, const float *x, sim_row_state *const *rows, uint32_t count,
                               uint8_t *p, float *b);

/* ------------------------------------------------------------------------------------------------ bytes */

static inline __m256i load(const void *bytes)
{
    return _mm256_loadu_si256((const __m256i *)bytes);
}

static inline void store_unaligned(void *bytes, __m256i x)
{
    _mm256_storeu_si256((__m256i *)bytes, x);
}

static inline __m256i low_nibbles(__m256i bytes)
{
    return _mm256_and_si256(bytes, _mm256_set1_epi8(15));
}

static inline __m256i high_nibbles(__m256i bytes)
{
    return _mm256_and_si256(_mm256_srli_epi16(bytes, 4), _mm256_set1_epi8(15));
}

/** Eight bytes as dwords. */
static inline __m256i dwords_of(const uint8_t *bytes)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)bytes));
}

/* ------------------------------------------------------------------------------------------------ tables */

#define PLAIN(x) (x)
#define PLUS_12(x) (12 + (x))

/** 2 * e2m1 of the sixteen codes, and the same as an unsigned number. */
static const int8_t e2m1_table[16] = {NBL_E2M1_CODES(PLAIN)};
static const int8_t e2m1_table_plus_12[16] = {NBL_E2M1_CODES(PLUS_12)};

/** Sixteen bytes in both halves. */
static inline __m256i load_table(const int8_t *table)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)table));
}

/* ------------------------------------------------------------------------------------------------ exponents */

/** 2^E of eight bytes E + 127. */
static inline __m256 power_of(__m256i bytes)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(bytes, 23));
}

/** 2^ek of a group's tokens. */
static inline void units_of(const sim_group *group, float *unit)
{
    uint8_t bytes[SIM_GROUP];
    canonical_exponent_bytes(group, bytes);
    for (uint32_t t = 0; t < SIM_GROUP; t += LANES) {
        _mm256_storeu_ps(unit + t, power_of(dwords_of(bytes + t)));
    }
}

/** ev and 2^-ev of a group's tokens. */
static inline void weights_of(const sim_group *group, float *exponent, float *weight)
{
    uint8_t bytes[SIM_GROUP];
    canonical_exponent_bytes(group, bytes);
    for (uint32_t t = 0; t < SIM_GROUP; t += LANES) {
        __m256i e = dwords_of(bytes + t);
        __m256i value = _mm256_sub_epi32(e, _mm256_set1_epi32(NBL_E8M0_BIAS));
        _mm256_storeu_ps(exponent + t, _mm256_cvtepi32_ps(value));
        _mm256_storeu_ps(weight + t, power_of(_mm256_sub_epi32(_mm256_set1_epi32(2 * NBL_E8M0_BIAS), e)));
    }
}

#endif
