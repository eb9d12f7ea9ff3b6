/* SPDX-License-Identifier: Apache-2.0 */
/** @file oracle_scalar.c  Conversions and scalar functions: NUM 1 and the rounded powers of NUM 5.4. */
#include "oracle.h"

#include <math.h>
#include <string.h>

#define TWO_LOG2E_NEGATED 0xC038AA3Bu
#define SQRT2_MANTISSA 0x3FB504F3u
#define ROUND_CONSTANT 254.953125L
#define WEIGHT_STEPS_MAX (126 * 256)

float oracle_f32_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

uint32_t oracle_bits_from_f32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

float oracle_f32_from_bf16(uint16_t bits)
{
    return oracle_f32_from_bits((uint32_t)bits << 16);
}

float oracle_f32_from_f16(uint16_t bits)
{
    int exponent = (bits >> 10) & 31;
    int mantissa = bits & 1023;
    double magnitude = 0x1p-24 * (exponent == 0 ? mantissa : (1024 + mantissa) * 0x1p-1 * (double)(1u << exponent));

    if (exponent == 31) {
        magnitude = mantissa == 0 ? (double)INFINITY : (double)NAN;
    }
    return (float)((bits & 0x8000) ? -magnitude : magnitude);
}

/* Rounds |x| to a float of the given mantissa width and least exponent and returns its bits without sign. Because the
 * bits of a float count its values in order, rounding up into the next binade needs no special case. */
static uint32_t encode_magnitude(double magnitude, int mantissa_bits, int ulp_exponent_min)
{
    int exponent;
    int ulp_exponent;

    frexp(magnitude, &exponent);
    ulp_exponent = exponent - 1 - mantissa_bits;
    if (magnitude == 0.0 || ulp_exponent < ulp_exponent_min) {
        ulp_exponent = ulp_exponent_min;
    }
    return ((uint32_t)(ulp_exponent - ulp_exponent_min) << mantissa_bits) +
           (uint32_t)nearbyint(ldexp(magnitude, -ulp_exponent));
}

uint16_t oracle_bf16_from_f32(float x)
{
    uint32_t sign = signbit(x) ? 0x8000u : 0u;
    if (isnan(x)) {
        return (uint16_t)(sign | 0x7FC0u);
    }
    return (uint16_t)(sign | (isinf(x) ? 0x7F80u : encode_magnitude(fabs((double)x), 7, -133)));
}

uint16_t oracle_f16_from_f32(float x)
{
    uint32_t sign = signbit(x) ? 0x8000u : 0u;
    uint32_t magnitude = 0x7C00u;
    if (isnan(x)) {
        return (uint16_t)(sign | 0x7E00u);
    }
    if (fabsf(x) < 65536.0f) {
        magnitude = encode_magnitude(fabs((double)x), 10, -24);
    }
    return (uint16_t)(sign | magnitude);
}

float oracle_pow2(double n)
{
    return n < -126.0 ? 0.0f : ldexpf(1.0f, (int)n);
}

float oracle_exp2p(float x)
{
    static const uint32_t c[7] = {0x3F800000u, 0x3F317218u, 0x3E75FDF0u, 0x3D6357B6u,
                                  0x3C1D94F2u, 0x3AAF844Bu, 0x3922363Eu};
    float n;
    float f;
    float p;

    if (x < -126.0f) {
        return 0.0f;
    }
    n = nearbyintf(x);
    f = x - n;
    p = oracle_f32_from_bits(c[6]);
    for (int i = 5; i >= 0; i--) {
        p = fmaf(p, f, oracle_f32_from_bits(c[i]));
    }
    return (float)ldexp((double)p, (int)n);
}

float oracle_log2p(float x)
{
    static const uint32_t d[4] = {0x4038AA3Bu, 0x3F763873u, 0x3F13A385u, 0x3EDD0E1Eu};
    int e;
    float f = (float)(frexp((double)x, &e) * 2.0);
    float s;
    float w;
    float p;

    e -= 1;
    if (f > oracle_f32_from_bits(SQRT2_MANTISSA)) {
        f /= 2.0f;
        e += 1;
    }
    s = (f - 1.0f) / (f + 1.0f);
    w = s * s;
    p = oracle_f32_from_bits(d[3]);
    for (int i = 2; i >= 0; i--) {
        p = fmaf(p, w, oracle_f32_from_bits(d[i]));
    }
    return fmaf(s, p, (float)e);
}

float oracle_tanhp(float x)
{
    float e = oracle_exp2p(oracle_f32_from_bits(TWO_LOG2E_NEGATED) * fabsf(x));
    return copysignf((1.0f - e) / (1.0f + e), x);
}

float oracle_tree(const float s[16])
{
    float u[8];
    float v[8];
    for (int g = 0; g < 8; g++) {
        u[g] = s[g] + s[g + 8];
    }
    for (int g = 0; g < 8; g += 2) {
        v[g] = u[g] + u[g + 1];
    }
    return (v[0] + v[2]) + (v[4] + v[6]);
}

/* exp2l is good to about 2^-63, far closer than any value of the grid is to a tie (NUM 5.5): rounding it rounds the
 * real number. */
int32_t oracle_weight_int(int64_t k)
{
    if (k > WEIGHT_STEPS_MAX) {
        return 0;
    }
    return (int32_t)nearbyintl(ROUND_CONSTANT * exp2l((long double)-k / 256.0L));
}

float oracle_weight_bf16(int64_t k)
{
    int exponent;
    long double mantissa;
    if (k > WEIGHT_STEPS_MAX) {
        return 0.0f;
    }
    mantissa = frexpl(exp2l((long double)-k / 256.0L), &exponent);
    return (float)ldexpl(nearbyintl(mantissa * 256.0L), exponent - 8);
}

float oracle_exp2_grid(int64_t i)
{
    return (float)exp2l((long double)i / 256.0L);
}
