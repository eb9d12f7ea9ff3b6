/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file convert.h
 * @brief bf16 and fp16 to and from binary32, RNE (NUM 1.1).
 */
#ifndef NBL_NUM_CONVERT_H
#define NBL_NUM_CONVERT_H

#include "fn.h"

/** Binary32 value of bf16 bits; exact. */
NBL_FN float nbl_f32_from_bf16(uint16_t h)
{
    return nbl_float_of((uint32_t)h << 16);
}

/** bf16 bits of x, RNE; overflow gives infinity, NaN stays a quiet NaN. */
NBL_FN uint16_t nbl_bf16_from_f32(float x)
{
    uint32_t bits = nbl_bits_of(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((bits >> 16) | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/** Binary32 value of fp16 bits; exact. */
NBL_FN float nbl_f32_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) {
        return nbl_float_of(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    }
    /* Read as a binary32 with the same fields, the value is 2^112 too small; the product is exact, subnormals included.
     */
    float x = nbl_float_of(magnitude << 13) * 0x1p112f;
    return nbl_float_of(sign | nbl_bits_of(x));
}

/** fp16 bits of x, RNE; overflow gives infinity, NaN stays a quiet NaN. */
NBL_FN uint16_t nbl_f16_from_f32(float x)
{
    uint32_t bits = nbl_bits_of(x);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    }
    if (magnitude >= 0x477ff000u) { /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (magnitude <
        0x38800000u) { /* subnormal: adding 0.5 leaves the value in units of 2^-24 in the low bits, rounded */
        float shifted = nbl_float_of(magnitude) + 0.5f;
        return (uint16_t)(sign | (nbl_bits_of(shifted) - 0x3f000000u));
    }
    uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}

#endif
