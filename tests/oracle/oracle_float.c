/* SPDX-License-Identifier: Apache-2.0 */
/** @file oracle_float.c  The float core's formats, fused step and weights: NUM 6. */
#include "oracle.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    uint32_t terms;
    int fraction_bits;
    int zero_exponent;
} profiles[] = {
    {"sm_80", 8, 24, -132},   {"sm_89", 8, 24, -132},   {"sm_90", 16, 25, -133},
    {"sm_100", 16, 25, -133}, {"sm_120", 16, 25, -133},
};

static size_t profile = 2;

bool oracle_set_profile(const char *name)
{
    for (size_t i = 0; i < sizeof profiles / sizeof profiles[0]; i++) {
        if (strcmp(profiles[i].name, name) == 0) {
            profile = i;
            return true;
        }
    }
    return false;
}

bool oracle_is_float(uint32_t format)
{
    return format == NBL_FORMAT_BF16 || format == NBL_FORMAT_FP16 || format == NBL_FP8_E4M3 || format == NBL_NVFP4;
}

bool oracle_pool_is_float(const nbl_pool *pool)
{
    for (uint32_t i = 0; i < pool->region_count; i++) {
        if (oracle_is_float(pool->regions[i].k_format) || oracle_is_float(pool->regions[i].v_format)) {
            return true;
        }
    }
    return false;
}

float oracle_head_scale(const nbl_pool *pool, enum oracle_side side, uint32_t layer, uint32_t head)
{
    const float *scales = side == ORACLE_K ? pool->k_scale : pool->v_scale;
    float s = scales != NULL ? scales[(uint64_t)layer * pool->shape->kv_heads + head] : 1.0f;
    return isnan(s) ? 1.0f : fminf(fmaxf(s, 0x1p-30f), 0x1p30f);
}

/* ------------------------------------------------------------------------------------------------ formats */

float oracle_e4m3_value(uint32_t code)
{
    int exponent = (int)(code >> 3 & 15u);
    int mantissa = (int)(code & 7u);
    double magnitude = 0x1p-9 * (exponent == 0 ? mantissa : (8 + mantissa) * (1 << (exponent - 1)));
    return (float)((code & 0x80u) != 0 ? -magnitude : magnitude);
}

/* Nearest of the codes 0..126, whose values grow, ties to the even one; the sign only where the magnitude is not 0. */
static uint8_t e4m3_code(double x)
{
    uint32_t low = 0;
    uint32_t high = 126;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if ((double)oracle_e4m3_value(middle) <= fabs(x)) {
            low = middle;
        } else {
            high = middle;
        }
    }
    double below = fabs((double)oracle_e4m3_value(low) - fabs(x));
    double above = fabs((double)oracle_e4m3_value(high) - fabs(x));
    uint32_t best = above < below || (above == below && high % 2 == 0) ? high : low;
    return (uint8_t)(best != 0 && x < 0.0 ? best | 0x80u : best);
}

static uint16_t half_code(uint32_t format, float x, uint64_t *saturated)
{
    const float limit = 127.0f * 0x1p40f;
    uint16_t code = format == NBL_FORMAT_FP16 ? oracle_f16_from_f32(x) : oracle_bf16_from_f32(x);
    if (format == NBL_FORMAT_BF16 && fabsf(x) > limit) {
        (*saturated)++;
        code = oracle_bf16_from_f32(copysignf(limit, x));
    }
    if (format == NBL_FORMAT_FP16 && isinf(oracle_f32_from_f16(code))) {
        (*saturated)++;
        code = x < 0.0f ? 0xFBFFu : 0x7BFFu;
    }
    return code == 0x8000u ? 0 : code;
}

static uint32_t nvfp4_code(float x, float scale)
{
    return scale == 0.0f ? 0 : oracle_e2m1_code((double)(x / scale));
}

static float nvfp4_error(const float *x, float scale)
{
    float err = 0.0f;
    for (uint32_t i = 0; i < 16; i++) {
        float d = x[i] - oracle_e2m1_value(nvfp4_code(x[i], scale)) * scale;
        err = fmaf(d, d, err);
    }
    return err;
}

static void quantize_nvfp4_block(uint32_t rule, const float *x, uint32_t b, oracle_vector *out, uint64_t *saturated)
{
    float amax = 0.0f;
    float scale;
    for (uint32_t i = 0; i < 16; i++) {
        amax = fmaxf(amax, fabsf(x[i]));
    }
    out->block_scales[b] = e4m3_code((double)(amax / 6.0f));
    if (rule == NBL_RULE_FOUR_OVER_SIX) {
        uint8_t four = e4m3_code((double)(amax / 4.0f));
        if (nvfp4_error(x, oracle_e4m3_value(four)) < nvfp4_error(x, oracle_e4m3_value(out->block_scales[b]))) {
            out->block_scales[b] = four;
        }
    }
    scale = oracle_e4m3_value(out->block_scales[b]);
    for (uint32_t i = 0; i < 16; i++) {
        *saturated += scale != 0.0f && fabsf(x[i] / scale) > 6.0f;
        out->elements[16 * b + i] = (uint8_t)nvfp4_code(x[i], scale);
    }
}

void oracle_quantize_float(uint32_t rule, const float *x, oracle_vector *out, uint64_t *saturated)
{
    float padded[ORACLE_DIM_MAX] = {0};
    memcpy(padded, x, out->dim * sizeof *x);
    for (uint32_t b = 0; out->format == NBL_NVFP4 && b < out->padded_dim / 16; b++) {
        quantize_nvfp4_block(rule, padded + 16 * b, b, out, saturated);
    }
    for (uint32_t d = 0; out->format != NBL_NVFP4 && d < out->padded_dim; d++) {
        if (out->format == NBL_FP8_E4M3) {
            out->elements[d] = e4m3_code((double)padded[d]);
            *saturated += fabsf(padded[d]) > 464.0f;
        } else {
            out->halves[d] = half_code(out->format, padded[d], saturated);
        }
    }
}

/* A NaN, which no quantizer writes, has the value of the code below it. */
static float slot_e4m3_value(uint32_t code)
{
    return oracle_e4m3_value((code & 0x7Fu) == 0x7Fu ? code - 1 : code);
}

void oracle_float_values(oracle_vector *v)
{
    for (uint32_t d = 0; d < v->padded_dim; d++) {
        switch (v->format) {
        case NBL_NVFP4:
            v->values[d] = oracle_e2m1_value(v->elements[d]) * slot_e4m3_value(v->block_scales[d / 16]);
            break;
        case NBL_FP8_E4M3: v->values[d] = slot_e4m3_value(v->elements[d]); break;
        case NBL_FORMAT_FP16: v->values[d] = oracle_f32_from_f16(v->halves[d]); break;
        default: v->values[d] = oracle_f32_from_bf16(v->halves[d]);
        }
        if (!isfinite(v->values[d])) {
            v->values[d] = 0.0f; /* only codes that no quantizer writes */
        }
    }
}

float oracle_round_operand(float x, bool fp16)
{
    uint64_t ignored = 0;
    uint16_t code = half_code(fp16 ? NBL_FORMAT_FP16 : NBL_FORMAT_BF16, x, &ignored);
    return fp16 ? oracle_f32_from_f16(code) : oracle_f32_from_bf16(code);
}

/* ------------------------------------------------------------------------------------------------ the fused step */

#define EXPONENT_INFINITE 2000

/* e of an operand that is not 0: that of its leading bit, or of the smallest normal of its type. */
static int operand_exponent(float x, int smallest)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    int e = (int)(bits >> 23 & 255u) - 127; /* -127: a subnormal of binary32, below every smallest */
    if (e == 128) {
        return EXPONENT_INFINITE;
    }
    return e < smallest ? smallest : e;
}

/* The unit that terms are cut off to, a power of two. */
typedef struct grid {
    double unit;
    double per_unit;
} grid;

static double power_of_two(int e)
{
    uint64_t bits = (uint64_t)(e + 1023) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* 2^(largest - fraction_bits); where largest is that of an infinity, so much that nothing else counts. */
static grid grid_of(int largest, int fraction_bits)
{
    int e = largest > 1000 ? 1000 : largest - fraction_bits;
    return (grid){power_of_two(e), power_of_two(-e)};
}

/* x cut off to a multiple of the unit; as trunc does, which is a call. */
static double cut(double x, grid g)
{
    double y = x * g.per_unit;
    return (fabs(y) < 0x1p52 ? (double)(int64_t)y : y) * g.unit;
}

static float toward_zero(double x)
{
    float f = (float)x;
    if (fabs(x) < 0x1p-149) {
        return 0.0f;
    }
    if (fabs(x) >= 0x1p128) {
        return x < 0.0 ? -INFINITY : INFINITY;
    }
    return fabs((double)f) > fabs(x) ? nextafterf(f, 0.0f) : f;
}

static float step(float c, const float *a, const float *b, uint32_t count, int smallest)
{
    int fraction_bits = profiles[profile].fraction_bits;
    int e0 = profiles[profile].zero_exponent;
    int largest = c == 0.0f ? e0 : operand_exponent(c, -126);
    double sum;

    for (uint32_t k = 0; k < count; k++) {
        int e = e0;
        if (a[k] != 0.0f && b[k] != 0.0f) {
            e = operand_exponent(a[k], smallest) + operand_exponent(b[k], smallest);
        }
        largest = e > largest ? e : largest;
    }
    if (count < profiles[profile].terms) {
        largest = e0 > largest ? e0 : largest;
    }
    const grid g = grid_of(largest, fraction_bits);
    sum = cut((double)c, g);
    for (uint32_t k = 0; k < count; k++) {
        sum += cut((double)a[k] * (double)b[k], g);
    }
    return toward_zero(sum);
}

float oracle_dot(float c, const float *a, const float *b, uint32_t count, bool fp16)
{
    uint32_t terms = profiles[profile].terms;
    for (uint32_t k = 0; k < count; k += terms) {
        c = step(c, a + k, b + k, count - k < terms ? count - k : terms, fp16 ? -14 : -126);
    }
    return c;
}

float oracle_weight_float(double u, bool fp16)
{
    double p = (double)exp2l((long double)u);
    double scale;
    int e;

    if (u < (fp16 ? -24.0 : -126.0)) {
        return 0.0f;
    }
    frexp(p, &e);
    scale = ldexp(1.0, fp16 ? (e - 11 < -24 ? -24 : e - 11) : e - 8);
    return (float)(nearbyint(p / scale) * scale);
}

/* ------------------------------------------------------------------------------------------------ Blackwell core */

/* Value and exponent of a scale of a group of 16 (NUM 7.2). */
static double group_scale(const oracle_vector *v, uint32_t g, int *exponent)
{
    if (v->format == NBL_NVFP4) {
        double s = (double)slot_e4m3_value(v->block_scales[g] & 0x7Fu);
        *exponent = s == 0.0 ? 0 : operand_exponent((float)s, -6);
        return s;
    }
    *exponent = v->block_exponents[v->format == NBL_MXFP4 ? g / 2 : g];
    return ldexp(1.0, *exponent);
}

static float group_step(float c, const oracle_vector *q, const oracle_vector *k, uint32_t first)
{
    double term[4] = {0};
    int exponent[4];
    int largest = c == 0.0f ? -139 : operand_exponent(c, -126);

    for (uint32_t i = 0; i < 4; i++) {
        uint32_t g = first / 16 + i;
        bool any = false;
        exponent[i] = -139;
        if (g < q->padded_dim / 16) {
            int eq, ek;
            double scale = group_scale(q, g, &eq) * group_scale(k, g, &ek);
            for (uint32_t d = 16 * g; d < 16 * g + 16; d++) {
                double p = (double)oracle_e2m1_value(q->elements[d]) * (double)oracle_e2m1_value(k->elements[d]);
                any = any || p != 0.0;
                term[i] += p * scale;
            }
            exponent[i] = any && scale != 0.0 ? eq + ek : -139;
        }
        largest = exponent[i] > largest ? exponent[i] : largest;
    }
    const grid g = grid_of(largest, 35);
    double sum = cut((double)c, g);
    for (uint32_t i = 0; i < 4; i++) {
        sum += cut(term[i], g);
    }
    return toward_zero(sum);
}

float oracle_dot_fp4(const oracle_vector *q, const oracle_vector *k)
{
    float c = 0.0f;
    for (uint32_t d = 0; d < q->padded_dim; d += 64) {
        c = group_step(c, q, k, d);
    }
    return c;
}

float oracle_dot_fp8(float c, const float *p, const float *v, uint32_t count)
{
    for (uint32_t first = 0; first < count; first += 32) {
        int largest = c == 0.0f ? -133 : operand_exponent(c, -126);
        for (uint32_t i = first; i < first + 32; i++) {
            int e = p[i] == 0.0f || v[i] == 0.0f ? -133 : operand_exponent(p[i], -6) + operand_exponent(v[i], -6);
            largest = e > largest ? e : largest;
        }
        const grid g = grid_of(largest, 25);
        double sum = cut((double)c, g);
        for (uint32_t i = first; i < first + 32; i++) {
            sum += cut((double)p[i] * (double)v[i], g);
        }
        c = toward_zero(sum);
    }
    return c;
}

float oracle_weight_e4m3(double u)
{
    return oracle_e4m3_value(e4m3_code((double)exp2l((long double)u + 8.0L)));
}
