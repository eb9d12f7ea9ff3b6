/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file transform.h
 * @brief What happens to a vector before it is quantized (NUM 4): Walsh-Hadamard butterflies and centring.
 */
#ifndef NBL_NUM_TRANSFORM_H
#define NBL_NUM_TRANSFORM_H

#include "e8m0.h"

#define NBL_SHIFT_MAX 7 /**< NUM 4.5 */

/** log2 of a power of two; 0 for 0, which stands for "no transform". */
NBL_FN int32_t nbl_log2_of(uint32_t n)
{
    int32_t log = 0;
    while (n > 1u) {
        n >>= 1;
        log++;
    }
    return log;
}

/** Unnormalised Walsh-Hadamard transform in place of each run of n elements (NUM 4.1); nothing if n is 0. */
NBL_FN void nbl_hadamard(float *x, uint32_t dim, uint32_t n)
{
    for (uint32_t h = 1; h < n; h *= 2u) {
        for (uint32_t first = 0; first < dim; first += 2u * h) {
            for (uint32_t i = first; i < first + h; ++i) {
                float a = x[i];
                float b = x[i + h];
                x[i] = a + b;
                x[i + h] = a - b;
            }
        }
    }
}

/** Takes the transform back: the butterflies again, then the exact factor 1/n (NUM 4.4, 5.7). */
NBL_FN void nbl_hadamard_undo(float *x, uint32_t dim, uint32_t n)
{
    if (n == 0) {
        return;
    }
    nbl_hadamard(x, dim, n);
    float inverse = nbl_pow2(-nbl_log2_of(n));
    for (uint32_t d = 0; d < dim; ++d) {
        x[d] *= inverse;
    }
}

/** x * 2^u, element by element; exact (NUM 4.5). */
NBL_FN void nbl_shift_up(float *x, uint32_t dim, const uint8_t *shifts)
{
    for (uint32_t d = 0; d < dim; ++d) {
        x[d] *= nbl_pow2(shifts[d] & NBL_SHIFT_MAX);
    }
}

/** fl(x * 2^-u), element by element (NUM 4.4, 4.5). */
NBL_FN void nbl_shift_down(float *x, uint32_t dim, const uint8_t *shifts)
{
    for (uint32_t d = 0; d < dim; ++d) {
        x[d] *= nbl_pow2(-(shifts[d] & NBL_SHIFT_MAX));
    }
}

/** Smallest s with v <= 2^(2s + 1), v positive and normal (NUM 4.5). */
NBL_FN int32_t nbl_half_exponent(float v)
{
    int32_t e = nbl_exponent_of(v) + ((nbl_bits_of(v) & 0x7fffffu) != 0); /* ceil(log2 v) */
    return e >> 1;                                                        /* ceil((e - 1) / 2) */
}

/** Shift of a channel of mean square v (normal) where most is the largest half exponent: half the distance, rounded up
 * (NUM 4.5). */
NBL_FN uint8_t nbl_shift_of(int32_t most, float v)
{
    return (uint8_t)nbl_clamp_i32((most - nbl_half_exponent(v) + 1) >> 1, 0, NBL_SHIFT_MAX);
}

/** u[d] from the mean squares v[d] (NUM 4.5). */
NBL_FN void nbl_shifts_from(const float *v, uint32_t dim, uint8_t *shifts)
{
    int32_t most = -1000;
    for (uint32_t d = 0; d < dim; ++d) {
        if (v[d] >= 0x1p-126f && nbl_half_exponent(v[d]) > most) {
            most = nbl_half_exponent(v[d]);
        }
    }
    for (uint32_t d = 0; d < dim; ++d) {
        shifts[d] = 0;
        if (v[d] >= 0x1p-126f) {
            shifts[d] = nbl_shift_of(most, v[d]);
        }
    }
}

/** x - mu * 2^Emu, element by element (NUM 4.2). */
NBL_FN void nbl_center_subtract(float *x, uint32_t dim, const int8_t *codes, uint8_t exponent)
{
    float unit = nbl_pow2(nbl_e8m0_decode_slot(exponent));
    for (uint32_t d = 0; d < dim; ++d) {
        x[d] -= (float)codes[d] * unit;
    }
}

/** x + mu * 2^Emu (NUM 4.4). */
NBL_FN void nbl_center_add(float *x, uint32_t dim, const int8_t *codes, uint8_t exponent)
{
    float unit = nbl_pow2(nbl_e8m0_decode_slot(exponent));
    for (uint32_t d = 0; d < dim; ++d) {
        x[d] += (float)codes[d] * unit;
    }
}

#endif
