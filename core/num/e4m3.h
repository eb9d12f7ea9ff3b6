/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file e4m3.h
 * @brief The 8-bit float E4M3 (the "fn" variety: no infinities, NaN = 0x7F and 0xFF, largest value 448).
 */
#ifndef NBL_NUM_E4M3_H
#define NBL_NUM_E4M3_H

#include "fn.h"

/** Value of a code; exact. */
NBL_FN float nbl_e4m3_decode(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 0x80u) << 24;
    uint32_t magnitude = code & 0x7fu;
    if (magnitude == 0x7fu) {
        return nbl_float_of(sign | 0x7fc00000u);
    }
    /* The fields, moved to binary32's places, make a value 2^120 too small. */
    float x = nbl_float_of(magnitude << 20) * 0x1p120f;
    return nbl_float_of(sign | nbl_bits_of(x));
}

/** Code of x: RNE, magnitudes that round above 448 (infinity too) saturate to 448, NaN gives 0x7F. */
NBL_FN uint8_t nbl_e4m3_encode(float x)
{
    uint32_t bits = nbl_bits_of(x);
    uint32_t sign = (bits >> 24) & 0x80u;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return 0x7fu;
    }
    if (magnitude >= 0x43e80000u) { /* 464, the tie between 448 and 480 */
        return (uint8_t)(sign | 0x7eu);
    }
    if (magnitude < 0x3c800000u) { /* below 2^-6: units of 2^-9, rounded by adding 2^14 */
        float shifted = nbl_float_of(magnitude) + 0x1p14f;
        return (uint8_t)(sign | (nbl_bits_of(shifted) - 0x46800000u));
    }
    uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
    return (uint8_t)(sign | ((rounded - 0x3c000000u) >> 20));
}

#endif
