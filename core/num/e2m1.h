/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file e2m1.h
 * @brief The 4-bit float E2M1 of OCP MX (NUM 2.4): sign, two exponent bits, one mantissa bit.
 */
#ifndef NBL_NUM_E2M1_H
#define NBL_NUM_E2M1_H

#include "fn.h"

/** X(twice the value) of the sixteen codes in order, for lookup tables. */
#define NBL_E2M1_CODES(X) \
    X(0), X(1), X(2), X(3), X(4), X(6), X(8), X(12), X(0), X(-1), X(-2), X(-3), X(-4), X(-6), X(-8), X(-12)

#define NBL_E2M1_MAX 6.0f

/** Twice the value of a code: 0 1 2 3 4 6 8 12 for 0..7, the same negated for 8..15. */
NBL_FN int32_t nbl_e2m1_half_units(uint32_t code)
{
    uint32_t mantissa = code & 1u;
    uint32_t exponent = (code >> 1) & 3u;
    uint32_t magnitude = exponent == 0 ? mantissa : (2u | mantissa) << (exponent - 1u);
    return (code & 8u) != 0 ? -(int32_t)magnitude : (int32_t)magnitude;
}

/** Code of x: RNE, ties to the even code, magnitudes above 6 become 6, -0 becomes 0. x must not be NaN. */
NBL_FN uint32_t nbl_e2m1_encode(float x)
{
    float a = fabsf(x);
    uint32_t code = (uint32_t)(a > 0.25f) + (uint32_t)(a >= 0.75f) + (uint32_t)(a > 1.25f) + (uint32_t)(a >= 1.75f) +
                    (uint32_t)(a > 2.5f) + (uint32_t)(a >= 3.5f) + (uint32_t)(a > 5.0f);
    return code != 0 && x < 0.0f ? code | 8u : code;
}

/** Value of the code of x, |x| <= 6, without the code: RNE to steps of 1/2, 1 or 2 by the size of x. */
NBL_FN float nbl_e2m1_round(float x)
{
    uint32_t size = nbl_bits_of(x) & 0x7f800000u; /* 2^floor(log2 |x|), 1 at least */
    float step = nbl_float_of(size > 0x3f800000u ? size : 0x3f800000u);
    float shift = step * 0x1.8p+22f; /* adding it rounds to half a step */
    return (x + shift) - shift;
}

/** nbl_e2m1_encode of a magnitude up to 6, without comparisons. Numbers just below 2^23 are 1/2 apart and those above
 * it 1, which are the steps of the codes if a = 2 comes to lie on 2^23: the bits of the sum are then those for a = 0
 * and the code, ties included, up to a = 4. From 4 on the steps are 2, and those of another sum, which below is not
 * smaller than the right code; neither is the first one above. */
NBL_FN uint32_t nbl_e2m1_encode_magnitude(float a)
{
    uint32_t fine = nbl_bits_of(a + (0x1p23f - 2.0f)) - 0x4AFFFFFCu;
    uint32_t coarse = nbl_bits_of(0.5f * a + (0x1p23f + 4.0f)) - 0x4B000000u;
    return fine < coarse ? fine : coarse;
}

#endif
