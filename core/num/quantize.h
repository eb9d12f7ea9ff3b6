/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file quantize.h
 * @brief The quantizers (NUM 3): pure functions of one vector.
 */
#ifndef NBL_NUM_QUANTIZE_H
#define NBL_NUM_QUANTIZE_H

#include "float_format.h"

#define NBL_INT8_CODE_MAX 127
#define NBL_INT4P_CODE_MAX 7
#define NBL_INT4P_MULTIPLIER_MAX 16
#define NBL_INT4P_PEAK 112.0f /* 7 * 16 */

/** Brings one input element into range (NUM 3.1). stats is a plain local counter set. */
NBL_FN float nbl_sanitize(float x, nbl_quant_stats *stats)
{
    uint32_t magnitude = nbl_bits_of(x) & 0x7fffffffu;
    if (magnitude <= nbl_bits_of(NBL_INPUT_MAX)) {
        return x;
    }
    if (magnitude > 0x7f800000u) {
        stats->nan_inputs++;
        return 0.0f;
    }
    if (magnitude == 0x7f800000u) {
        stats->inf_inputs++;
    } else {
        stats->saturated++;
    }
    return x < 0.0f ? -NBL_INPUT_MAX : NBL_INPUT_MAX;
}

/** Largest magnitude of n elements; bits of non-negative floats order like the floats. */
NBL_FN float nbl_amax(const float *x, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; ++i) {
        uint32_t magnitude = nbl_bits_of(x[i]) & 0x7fffffffu;
        most = magnitude > most ? magnitude : most;
    }
    return nbl_float_of(most);
}

/** Smallest e in [low, high] with amax <= peak * 2^e, high if there is none. peak in [4, 256), exact comparisons. */
NBL_FN int32_t nbl_exponent_for(float amax, float peak, int32_t low, int32_t high)
{
    /* The difference of exponents, and one more if amax has the larger significand, which then carries. Subnormal
     * numbers come out below any `low`. */
    uint32_t carry = 0x7fffffu - (nbl_bits_of(peak) & 0x7fffffu);
    int32_t e = (int32_t)((nbl_bits_of(amax) + carry) >> 23) - (int32_t)(nbl_bits_of(peak) >> 23);
    return nbl_clamp_i32(e, low, high);
}

/** RNE_int(x) clamped to [-limit, limit]; counts what the clamp changes. */
NBL_FN int32_t nbl_round_clamped(float x, int32_t limit, uint64_t *saturated)
{
    float rounded = nbl_round(x);
    if (fabsf(rounded) > (float)limit) {
        (*saturated)++;
        return rounded < 0.0f ? -limit : limit;
    }
    return (int32_t)rounded;
}

/** int8 (NUM 3.2): codes[0..n-1], exponent returned. */
NBL_FN int32_t nbl_quantize_int8(const float *x, uint32_t n, int8_t *codes, uint64_t *saturated)
{
    int32_t e = nbl_exponent_for(nbl_amax(x, n), (float)NBL_INT8_CODE_MAX, NBL_E_MIN, NBL_E_MAX);
    float inverse = nbl_pow2(-e);
    for (uint32_t d = 0; d < n; ++d) {
        codes[d] = (int8_t)nbl_round_clamped(x[d] * inverse, NBL_INT8_CODE_MAX, saturated);
    }
    return e;
}

/** Squared error of a block in units of 2^e0 when its exponent is e (NUM 3.4, MSE). */
NBL_FN float nbl_mxfp4_error(const float *x, uint32_t n, int32_t e, int32_t e0)
{
    float error = 0.0f;
    for (uint32_t d = 0; d < n; ++d) {
        float value = (float)nbl_e2m1_half_units(nbl_e2m1_encode(x[d] * nbl_pow2(-e))) * nbl_pow2(e - e0 - 1);
        float difference = x[d] * nbl_pow2(-e0) - value;
        error = nbl_fma(difference, difference, error);
    }
    return error;
}

/** The MSE rule: the best of e0-1, e0, e0+1 for OPTIMAL's e0. */
NBL_FN int32_t nbl_mxfp4_exponent_mse(const float *x, uint32_t n, int32_t e0)
{
    int32_t best = nbl_clamp_i32(e0 - 1, NBL_BLOCK_E_MIN, NBL_BLOCK_E_MAX);
    float best_error = nbl_mxfp4_error(x, n, best, e0);
    for (int32_t e = e0; e <= e0 + 1; ++e) {
        int32_t clamped = nbl_clamp_i32(e, NBL_BLOCK_E_MIN, NBL_BLOCK_E_MAX);
        float error = nbl_mxfp4_error(x, n, clamped, e0);
        if (error < best_error) {
            best = clamped;
            best_error = error;
        }
    }
    return best;
}

/** What a block's largest magnitude may be at most, in units of 2^e, for the exponent e of a rule other than MSE
 * (NUM 3.4); FLOOR's is the last number below 8. */
NBL_FN float nbl_mxfp4_peak(uint32_t rule)
{
    return rule == NBL_RULE_FLOOR ? 0x1.fffffep+2f : rule == NBL_RULE_CEIL ? 6.0f : 7.25f;
}

/** Exponent of one mxfp4 block by the rule, before the spread rule (NUM 3.4). */
NBL_FN int32_t nbl_mxfp4_block_exponent(const float *x, uint32_t n, uint32_t rule)
{
    float amax = nbl_amax(x, n);
    int32_t e = nbl_exponent_for(amax, nbl_mxfp4_peak(rule), NBL_BLOCK_E_MIN, NBL_BLOCK_E_MAX);
    return rule == NBL_RULE_MSE && amax != 0.0f ? nbl_mxfp4_exponent_mse(x, n, e) : e;
}

/** mxfp4 and mxfp4_16 (NUM 3.4). v->format and v->dim are set; x holds v->dim elements. */
NBL_FN void nbl_quantize_mxfp4(const float *x, uint32_t rule, nbl_vector *v, uint64_t *saturated)
{
    uint32_t block_dim = nbl_layout_block_dim(v->format, v->dim);
    uint32_t blocks = nbl_layout_scale_planes(v->format, v->dim);
    int32_t exponents[NBL_SCALES_MAX];
    int32_t most = NBL_BLOCK_E_MIN;
    for (uint32_t b = 0; b < blocks; ++b) {
        uint32_t first = b * block_dim;
        uint32_t n = first >= v->dim ? 0 : v->dim - first < block_dim ? v->dim - first : block_dim;
        exponents[b] = nbl_mxfp4_block_exponent(x + first, n, rule);
        most = exponents[b] > most ? exponents[b] : most;
    }
    for (uint32_t b = 0; b < blocks; ++b) {
        int32_t least = most - NBL_BLOCK_E_SPREAD;
        exponents[b] = exponents[b] < least ? least : exponents[b];
        v->scales[b] = nbl_e8m0_encode(exponents[b]);
    }
    for (uint32_t d = 0; d < v->dim; ++d) {
        float scaled = x[d] * nbl_pow2(-exponents[d / block_dim]);
        *saturated += fabsf(scaled) > 6.0f;
        v->codes[d] = (uint8_t)nbl_e2m1_encode(scaled);
    }
}

/** Squared error of an int4p block with multiplier m; y is the block times 2^-E (NUM 3.5). */
NBL_FN float nbl_int4p_error(const float *y, uint32_t n, int32_t m)
{
    float inverse = 1.0f / (float)m;
    float error = 0.0f;
    for (uint32_t d = 0; d < n; ++d) {
        float q = nbl_clamp_f32(nbl_round(y[d] * inverse), -(float)NBL_INT4P_CODE_MAX, (float)NBL_INT4P_CODE_MAX);
        float difference = y[d] - q * (float)m;
        error = nbl_fma(difference, difference, error);
    }
    return error;
}

/** Multiplier of an int4p block (NUM 3.5). */
NBL_FN int32_t nbl_int4p_choose_multiplier(const float *y, uint32_t n)
{
    float amax = nbl_amax(y, n);
    int32_t m0 = 1;
    while (m0 < NBL_INT4P_MULTIPLIER_MAX && amax > (float)(NBL_INT4P_CODE_MAX * m0)) {
        m0++;
    }
    int32_t best = m0 > 1 ? m0 - 1 : m0;
    float best_error = nbl_int4p_error(y, n, best);
    for (int32_t m = best + 1; m <= m0 + 1 && m <= NBL_INT4P_MULTIPLIER_MAX; ++m) {
        float error = nbl_int4p_error(y, n, m);
        if (error < best_error) {
            best = m;
            best_error = error;
        }
    }
    return best;
}

/** int4p (NUM 3.5). v->format and v->dim are set; x holds v->dim elements. */
NBL_FN void nbl_quantize_int4p(const float *x, nbl_vector *v, uint64_t *saturated)
{
    uint32_t block_dim = nbl_layout_block_dim(v->format, v->dim);
    uint32_t exponent_plane = nbl_layout_exponent_plane(v->format, v->dim);
    int32_t e = nbl_exponent_for(nbl_amax(x, v->dim), NBL_INT4P_PEAK, NBL_E_MIN, NBL_E_MAX);
    memset(v->scales, 0, exponent_plane);
    v->scales[exponent_plane] = nbl_e8m0_encode(e);
    for (uint32_t first = 0; first < v->dim; first += block_dim) {
        float y[16];
        uint32_t n = v->dim - first < block_dim ? v->dim - first : block_dim;
        for (uint32_t d = 0; d < n; ++d) {
            y[d] = x[first + d] * nbl_pow2(-e);
        }
        int32_t m = nbl_int4p_choose_multiplier(y, n);
        uint32_t block = first / block_dim;
        v->scales[block / 2u] = (uint8_t)(v->scales[block / 2u] | (uint32_t)(m - 1) << (4u * (block % 2u)));
        float inverse = 1.0f / (float)m;
        for (uint32_t d = 0; d < n; ++d) {
            v->codes[first + d] = (uint8_t)(nbl_round_clamped(y[d] * inverse, NBL_INT4P_CODE_MAX, saturated) + 8);
        }
    }
}

/** 1 if every element of the vector has the code of zero. */
NBL_FN int nbl_vector_is_zero(const nbl_vector *v)
{
    uint8_t zero = nbl_block_zero_code(v->format);
    int has_halves = nbl_layout_code_bits(v->format) == 16u;
    for (uint32_t d = 0; d < v->dim; ++d) {
        if (has_halves ? v->halves[d] != 0 : v->codes[d] != zero) {
            return 0;
        }
    }
    return 1;
}

/** Quantizes dim binary32 elements (sanitized, transformed) into a format (NUM 3.2 to 3.5,
 * 6.1) and counts (NUM 3.3). */
NBL_FN void nbl_vector_quantize(const float *x, uint32_t dim, uint32_t format, uint32_t rule, nbl_vector *v,
                                nbl_quant_stats *stats)
{
    v->format = format;
    v->dim = dim;
    memset(v->codes, nbl_block_zero_code(format), nbl_layout_dim_padded(dim));
    memset(v->halves, 0, nbl_layout_dim_padded(dim) * sizeof *v->halves);
    if (nbl_layout_is_float(format)) {
        nbl_quantize_float(x, rule, v, &stats->saturated);
    } else if (format == NBL_INT8) {
        v->scales[0] = nbl_e8m0_encode(nbl_quantize_int8(x, dim, (int8_t *)v->codes, &stats->saturated));
    } else if (format == NBL_INT4P) {
        nbl_quantize_int4p(x, v, &stats->saturated);
    } else {
        nbl_quantize_mxfp4(x, rule, v, &stats->saturated);
    }
    stats->vectors++;
    stats->flushed += nbl_amax(x, dim) > 0.0f && nbl_vector_is_zero(v);
}

#endif
