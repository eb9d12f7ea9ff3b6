/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file query_codes.cuh
 * @brief q8 and q4 codes (NUM 3.2, 3.4) of query rows, four at a time, where exponents are known.
 *
 * The codes of q4 are worked out by multiplications and additions as far as can be: comparisons, minima, logic and
 * permutations share a pipe of half the rate.
 */
#ifndef CUDA_QUERY_CODES_H
#define CUDA_QUERY_CODES_H

#include "vector32.cuh"

/** Four q8 codes of elements that the exponent suffices for; inverse: of the unit. */
CUDA_DEVICE uint32_t query_word8(const float *x, float inverse)
{
    uint32_t bits[4];
#pragma unroll
    for (uint32_t j = 0; j < 4u; ++j) { /* the product is exact, the code in the low byte */
        bits[j] = nbl_bits_of(nbl_fma(x[j], inverse, NBL_MAGIC));
    }
    return ptx_prmt(ptx_prmt(bits[0], bits[1], 0x0040u), ptx_prmt(bits[2], bits[3], 0x0040u), 0x5410u);
}

/** What the q4 codes of a block need. */
struct query_block4 {
    float unit;
    float share; /**< of 12 units in 1 */
    float codes; /**< from the least to the largest code */
    float zero;  /**< MAGIC and two codes of 0, each a byte of code + 128 */
};

/** A block whose exponent is `above` over the least one of the row. */
CUDA_DEVICE query_block4 query_block4_of(int32_t exponent, uint32_t above)
{
    query_block4 b;
    b.unit = nbl_float_of((uint32_t)(exponent + 127) << 23);
    b.share = nbl_float_of(nbl_bits_of(1.0f / 12.0f) - ((uint32_t)exponent << 23));
    b.codes = nbl_float_of(nbl_bits_of(24.0f) + (above << 23));
    b.zero = nbl_fma(b.codes, -257.0f / 2.0f, NBL_MAGIC + 257.0f * 128.0f);
    return b;
}

/* x rounded to E2M1 values of the unit, but 8 and more where that is nearest, then as a part of what lies between -6
 * and 6 units. Adding 1.5 * 2^22 steps rounds to half a step; the step is the power of two below |x|, or 1. */
CUDA_DEVICE float query_share4(float x, const query_block4 &b)
{
    const float step = nbl_float_of(nbl_bits_of(fmaxf(fabsf(x), b.unit)) & 0x7f800000u);
    const float shifted = nbl_fma(step, 0x1.8p22f, x);
    return __saturatef(nbl_fma(nbl_fma(step, -0x1.8p22f, shifted), b.share, 0.5f));
}

/* Two codes in the low half, as code + 128. A share is off by 2^-23 at most, the sum far less than half a code. */
CUDA_DEVICE uint32_t query_pair4(float x, float y, const query_block4 &b)
{
    const float high = nbl_fma(query_share4(y, b), 256.0f * b.codes, b.zero);
    return nbl_bits_of(nbl_fma(query_share4(x, b), b.codes, high));
}

/** Four q4 codes of a block. */
CUDA_DEVICE uint32_t query_word4(const float *x, const query_block4 &b)
{
    return ptx_prmt(query_pair4(x[0], x[1], b), query_pair4(x[2], x[3], b), 0x5410u) ^ 0x80808080u;
}

#endif
