/* SPDX-License-Identifier: Apache-2.0 */
/** @file oracle_codec.c  Formats, quantizers and the Hadamard transform: NUM 2, 3, 4.1. */
#include "oracle.h"

#include <math.h>
#include <string.h>

static const double e2m1_magnitudes[8] = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};

uint32_t oracle_padded_dim(uint32_t dim)
{
    return (dim + 31u) / 32u * 32u;
}

uint32_t oracle_block_size(uint32_t format, uint32_t padded_dim)
{
    if (format == NBL_INT8 || (oracle_is_float(format) && format != NBL_NVFP4)) {
        return padded_dim;
    }
    return format == NBL_MXFP4 ? 32u : 16u;
}

float oracle_e2m1_value(uint32_t code)
{
    double magnitude = e2m1_magnitudes[code & 7u];
    return (float)((code & 8u) ? -magnitude : magnitude);
}

uint32_t oracle_e2m1_code(double x)
{
    uint32_t code = 0;
    while (code < 7) {
        double tie = (e2m1_magnitudes[code] + e2m1_magnitudes[code + 1]) / 2.0;
        bool code_is_odd = code % 2 == 1;
        if (fabs(x) < tie || (fabs(x) == tie && !code_is_odd)) {
            break;
        }
        code++;
    }
    return code != 0 && x < 0.0 ? code | 8u : code;
}

void oracle_sanitize(float *x, uint32_t dim, nbl_quant_stats *stats)
{
    nbl_quant_stats seen = {0};
    float limit = ldexpf(127.0f, ORACLE_EXPONENT_MAX);

    for (uint32_t d = 0; d < dim; d++) {
        if (isnan(x[d])) {
            x[d] = 0.0f;
            seen.nan_inputs++;
        } else if (isinf(x[d])) {
            x[d] = copysignf(limit, x[d]);
            seen.inf_inputs++;
        } else if (fabsf(x[d]) > limit) {
            x[d] = copysignf(limit, x[d]);
            seen.saturated++;
        }
    }
    if (stats != NULL) {
        stats->nan_inputs += seen.nan_inputs;
        stats->inf_inputs += seen.inf_inputs;
        stats->saturated += seen.saturated;
    }
}

void oracle_hadamard(float *x, uint32_t dim, uint32_t block)
{
    for (uint32_t h = 1; h < block; h *= 2) {
        for (uint32_t i = 0; i < dim; i++) {
            if ((i & h) == 0) {
                float a = x[i];
                float b = x[i + h];
                x[i] = a + b;
                x[i + h] = a - b;
            }
        }
    }
}

void oracle_shift(float *x, uint32_t dim, const uint8_t *shifts, int sign)
{
    for (uint32_t d = 0; d < dim; d++) {
        x[d] = ldexpf(x[d], sign * (int)shifts[d]);
    }
}

void oracle_hadamard_scale(float *x, uint32_t dim, uint32_t block)
{
    for (uint32_t d = 0; block != 0 && d < dim; d++) {
        x[d] *= 1.0f / (float)block;
    }
}

static double largest_magnitude(const double *x, uint32_t count)
{
    double largest = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs(x[i]));
    }
    return largest;
}

/* Smallest exponent in [E_MIN, E_MAX] with amax <= limit * 2^E, else E_MAX. */
static int32_t vector_exponent(double amax, double limit)
{
    int32_t e = ORACLE_EXPONENT_MIN;
    while (e < ORACLE_EXPONENT_MAX && amax > ldexp(limit, e)) {
        e++;
    }
    return e;
}

static int32_t clamp_int(double x, int32_t limit, uint64_t *saturated)
{
    if (fabs(x) > limit) {
        (*saturated)++;
        return x < 0.0 ? -limit : limit;
    }
    return (int32_t)x;
}

static void quantize_int8(const double *x, oracle_vector *out, uint64_t *saturated)
{
    out->exponent = vector_exponent(largest_magnitude(x, out->padded_dim), 127.0);
    const double unit = ldexp(1.0, -out->exponent);
    for (uint32_t d = 0; d < out->padded_dim; d++) {
        int32_t code = clamp_int(nearbyint(x[d] * unit), 127, saturated);
        out->elements[d] = (uint8_t)(code & 255);
    }
}

/* ------------------------------------------------------------------------------------------------ mxfp4 */

static int32_t clamp_block_exponent(int32_t e)
{
    if (e < ORACLE_BLOCK_EXPONENT_MIN) {
        return ORACLE_BLOCK_EXPONENT_MIN;
    }
    return e > ORACLE_EXPONENT_MAX ? ORACLE_EXPONENT_MAX : e;
}

/* Smallest integer e with amax <= limit * 2^e; 4 <= limit < 8, amax > 0. */
static int32_t smallest_exponent(double amax, double limit)
{
    int e;
    frexp(amax, &e);
    e -= 4;
    while (amax > ldexp(limit, e)) {
        e++;
    }
    return e;
}

static float block_error(const double *x, uint32_t block, int32_t e0, int32_t e)
{
    const double unit = ldexp(1.0, -e);
    const double first_unit = ldexp(1.0, -e0);
    const double step = ldexp(1.0, e - e0);
    float err = 0.0f;
    for (uint32_t i = 0; i < block; i++) {
        double v = (double)oracle_e2m1_value(oracle_e2m1_code(x[i] * unit));
        float d = (float)(x[i] * first_unit - v * step);
        err = fmaf(d, d, err);
    }
    return err;
}

static int32_t least_error_exponent(const double *x, uint32_t block, int32_t e0)
{
    int32_t best = clamp_block_exponent(e0 - 1);
    float best_err = block_error(x, block, e0, best);
    for (int32_t candidate = e0; candidate <= e0 + 1; candidate++) {
        int32_t e = clamp_block_exponent(candidate);
        float err = block_error(x, block, e0, e);
        if (err < best_err) {
            best = e;
            best_err = err;
        }
    }
    return best;
}

static int32_t block_exponent(uint32_t rule, const double *x, uint32_t block)
{
    double amax = largest_magnitude(x, block);
    int32_t optimal;

    if (amax == 0.0) {
        return ORACLE_BLOCK_EXPONENT_MIN;
    }
    optimal = smallest_exponent(amax, 7.25);
    switch (rule) {
    case NBL_RULE_FLOOR: {
        int e;
        frexp(amax, &e);
        return clamp_block_exponent(e - 1 - 2);
    }
    case NBL_RULE_CEIL: return clamp_block_exponent(smallest_exponent(amax, 6.0));
    case NBL_RULE_MSE: return least_error_exponent(x, block, clamp_block_exponent(optimal));
    default: return clamp_block_exponent(optimal);
    }
}

static void quantize_mxfp4(uint32_t rule, const double *x, oracle_vector *out, uint64_t *saturated)
{
    uint32_t block = oracle_block_size(out->format, out->padded_dim);
    uint32_t blocks = out->padded_dim / block;
    int32_t e_max = ORACLE_BLOCK_EXPONENT_MIN;

    for (uint32_t b = 0; b < blocks; b++) {
        int32_t e = block_exponent(rule, x + b * block, block);
        out->block_exponents[b] = e;
        e_max = e > e_max ? e : e_max;
    }
    for (uint32_t b = 0; b < blocks; b++) {
        if (out->block_exponents[b] < e_max - 3) {
            out->block_exponents[b] = e_max - 3;
        }
    }
    for (uint32_t d = 0; d < out->padded_dim; d++) {
        double scaled = ldexp(x[d], -out->block_exponents[d / block]);
        out->elements[d] = (uint8_t)oracle_e2m1_code(scaled);
        *saturated += fabs(scaled) > 6.0;
    }
}

/* ------------------------------------------------------------------------------------------------ int4p */

static double int4p_code(double y, int32_t m)
{
    float r = 1.0f / (float)m;
    return nearbyint((double)(float)(y * (double)r));
}

static float int4p_error(const double *y, int32_t m)
{
    float err = 0.0f;
    for (uint32_t i = 0; i < 16; i++) {
        uint64_t ignored = 0;
        float d = (float)(y[i] - (double)(clamp_int(int4p_code(y[i], m), 7, &ignored) * m));
        err = fmaf(d, d, err);
    }
    return err;
}

static int32_t int4p_multiplier(const double *y)
{
    int32_t m0 = 1;
    int32_t best = 0;
    float best_err = 0.0f;

    while (m0 < 16 && largest_magnitude(y, 16) > 7.0 * m0) {
        m0++;
    }
    for (int32_t m = m0 - 1; m <= m0 + 1; m++) {
        if (m >= 1 && m <= 16) {
            float err = int4p_error(y, m);
            if (best == 0 || err < best_err) {
                best = m;
                best_err = err;
            }
        }
    }
    return best;
}

static void quantize_int4p(const double *x, oracle_vector *out, uint64_t *saturated)
{
    out->exponent = vector_exponent(largest_magnitude(x, out->padded_dim), 112.0);
    for (uint32_t b = 0; b < out->padded_dim / 16u; b++) {
        double y[16];
        int32_t m;
        for (uint32_t i = 0; i < 16; i++) {
            y[i] = ldexp(x[b * 16u + i], -out->exponent);
        }
        m = int4p_multiplier(y);
        out->block_multipliers[b] = (uint8_t)m;
        for (uint32_t i = 0; i < 16; i++) {
            out->elements[b * 16u + i] = (uint8_t)(clamp_int(int4p_code(y[i], m), 7, saturated) + 8);
        }
    }
}

/* ------------------------------------------------------------------------------------------------ all formats */

static void canonical_mxfp4(oracle_vector *vector)
{
    uint32_t block = oracle_block_size(vector->format, vector->padded_dim);
    int32_t e_min = vector->block_exponents[0];

    for (uint32_t b = 1; b < vector->padded_dim / block; b++) {
        e_min = vector->block_exponents[b] < e_min ? vector->block_exponents[b] : e_min;
    }
    vector->exponent = e_min - 1;
    for (uint32_t b = 0; b < vector->padded_dim / block; b++) {
        const double two_units = ldexp(2.0, vector->block_exponents[b] - e_min);
        for (uint32_t d = b * block; d < (b + 1) * block; d++) {
            vector->codes[d] = (int8_t)((double)oracle_e2m1_value(vector->elements[d]) * two_units);
        }
    }
}

static void canonical_int(oracle_vector *vector)
{
    for (uint32_t d = 0; d < vector->padded_dim; d++) {
        int32_t element = vector->elements[d];
        if (vector->format == NBL_INT8) {
            vector->codes[d] = (int8_t)(element < 128 ? element : element - 256);
        } else {
            vector->codes[d] = (int8_t)((element - 8) * vector->block_multipliers[d / 16u]);
        }
    }
}

void oracle_canonical(oracle_vector *vector)
{
    if (oracle_is_float(vector->format)) {
        oracle_float_values(vector);
        return;
    }
    if (vector->format == NBL_MXFP4 || vector->format == NBL_MXFP4_16) {
        canonical_mxfp4(vector);
    } else {
        canonical_int(vector);
    }
    const double unit = ldexp(1.0, vector->exponent);
    for (uint32_t d = 0; d < vector->padded_dim; d++) {
        vector->values[d] = (float)((double)vector->codes[d] * unit);
    }
}

static bool any_nonzero_value(const oracle_vector *vector)
{
    for (uint32_t d = 0; d < vector->padded_dim; d++) {
        if (oracle_is_float(vector->format) ? vector->elements[d] != 0 || vector->halves[d] != 0
                                            : vector->codes[d] != 0) {
            return true;
        }
    }
    return false;
}

void oracle_quantize(uint32_t format, uint32_t rule, const float *x, uint32_t dim, oracle_vector *out,
                     nbl_quant_stats *stats)
{
    double padded[ORACLE_DIM_MAX] = {0};
    uint64_t saturated = 0;

    memset(out, 0, sizeof *out);
    out->format = format;
    out->dim = dim;
    out->padded_dim = oracle_padded_dim(dim);
    for (uint32_t d = 0; d < dim; d++) {
        padded[d] = (double)x[d];
    }
    switch (format) {
    case NBL_FORMAT_BF16:
    case NBL_FORMAT_FP16:
    case NBL_FP8_E4M3:
    case NBL_NVFP4: oracle_quantize_float(rule, x, out, &saturated); break;
    case NBL_INT8: quantize_int8(padded, out, &saturated); break;
    case NBL_INT4P: quantize_int4p(padded, out, &saturated); break;
    default: quantize_mxfp4(rule, padded, out, &saturated); break;
    }
    oracle_canonical(out);
    if (stats != NULL) {
        stats->saturated += saturated;
        stats->flushed += largest_magnitude(padded, dim) > 0.0 && !any_nonzero_value(out);
    }
}

void oracle_quantize_query(uint32_t q_format, const float *x, uint32_t dim, oracle_vector *out)
{
    oracle_quantize(q_format == NBL_Q4 ? NBL_MXFP4 : NBL_INT8, NBL_RULE_OPTIMAL, x, dim, out, NULL);
}

void oracle_decode(const oracle_vector *vector, float *x)
{
    memcpy(x, vector->values, vector->dim * sizeof *x);
}
