/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file exponents.h
 * @brief Stored exponents of 32 tokens as bytes, for AVX2 and AVX-512.
 */
#ifndef SIM_EXPONENTS_H
#define SIM_EXPONENTS_H

#include "isa.h"

#include <immintrin.h>

/** Exponent bytes of a group's 32 tokens from a plane, brought into the legal range (NUM 5.10). */
static inline __m256i exponent_bytes(const sim_group *group, uint32_t plane)
{
    const __m256i least = _mm256_set1_epi8((char)(NBL_E_MIN + NBL_E8M0_BIAS));
    const __m256i most = _mm256_set1_epi8((char)(NBL_E_MAX + NBL_E8M0_BIAS));
    __m256i e = _mm256_loadu_si256((const __m256i *)(const void *)(group->scales + plane * group->plane_stride));
    return _mm256_max_epu8(_mm256_min_epu8(e, most), least);
}

/** Smallest block exponents of an mxfp4 group, as bytes. */
static inline __m256i least_exponent_bytes(const sim_group *group)
{
    __m256i least = exponent_bytes(group, 0);
    for (uint32_t b = 1; b < nbl_layout_scale_planes(group->format, group->dim); ++b) {
        least = _mm256_min_epu8(least, exponent_bytes(group, b));
    }
    return least;
}

/** Bytes E + 127 of the canonical form of 32 tokens (NUM 2.3 to 2.5). */
static inline void canonical_exponent_bytes(const sim_group *group, uint8_t *bytes)
{
    __m256i e;
    if (group->format == NBL_INT8 || group->format == NBL_INT4P) {
        e = exponent_bytes(group, nbl_layout_exponent_plane(group->format, group->dim));
    } else {
        e = _mm256_sub_epi8(least_exponent_bytes(group), _mm256_set1_epi8(1));
    }
    _mm256_storeu_si256((__m256i *)(void *)bytes, e);
}

#endif
