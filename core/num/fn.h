/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file fn.h
 * @brief What every header of core/num stands on: function qualifiers, bit casts, IEEE operations, powers of two.
 *
 * Valid as C11 and as CUDA C++. Host code must be compiled with -ffp-contract=off, device code with -fmad=false
 * -ftz=false -prec-div=true -prec-sqrt=true (NUM 1.1); every fused operation is written as nbl_fma.
 */
#ifndef NBL_NUM_FN_H
#define NBL_NUM_FN_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define NBL_FN static __host__ __device__ __forceinline__
#else
#define NBL_FN static inline
#endif

#define NBL_MAGIC 12582912.0f /**< 1.5 * 2^23: adding it rounds to an integer held in the low bits */

/** Bits of a binary32. */
NBL_FN uint32_t nbl_bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/** Binary32 of given bits. */
NBL_FN float nbl_float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/** fma(a, b, c) of NUM 1.1. */
NBL_FN float nbl_fma(float a, float b, float c)
{
    return fmaf(a, b, c);
}

/** RNE_int(x) of NUM 1.1, as a float; needs the default rounding mode. */
NBL_FN float nbl_round(float x)
{
    return rintf(x);
}

/** ceil(x) of NUM 1.1: zero comes out as +0. */
NBL_FN float nbl_ceil(float x)
{
    return ceilf(x) + 0.0f;
}

/** pow2(n) of NUM 1.2 for n <= 127. */
NBL_FN float nbl_pow2(int32_t n)
{
    return n < -126 ? 0.0f : nbl_float_of((uint32_t)(n + 127) << 23);
}

/** pow2(x) for an integer-valued x <= 127 of any size. */
NBL_FN float nbl_pow2f(float x)
{
    return x >= -126.0f ? nbl_pow2((int32_t)x) : 0.0f; /* NaN gives 0 */
}

/** floor(log2 |x|) of a normal x, from its exponent field. */
NBL_FN int32_t nbl_exponent_of(float x)
{
    return (int32_t)((nbl_bits_of(x) >> 23) & 0xffu) - 127;
}

NBL_FN int32_t nbl_clamp_i32(int32_t x, int32_t low, int32_t high)
{
    return x < low ? low : x > high ? high : x;
}

NBL_FN float nbl_clamp_f32(float x, float low, float high)
{
    return x < low ? low : x > high ? high : x;
}

#endif
