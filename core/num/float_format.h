/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file float_format.h
 * @brief The formats of the float core (NUM 6.1): bf16, fp16, fp8 E4M3 and nvfp4, their quantizers, and the values of
 * every format in binary32.
 */
#ifndef NBL_NUM_FLOAT_FORMAT_H
#define NBL_NUM_FLOAT_FORMAT_H

#include "block.h"
#include "convert.h"
#include "e4m3.h"

#define NBL_FP16_MAX 65504.0f
#define NBL_E4M3_MAX 448.0f
#define NBL_NVFP4_BLOCK 16u

/** Scale of a kv head (NUM 6.7): 1 where there is none or it is no number, else brought into 2^-30 to 2^30. */
NBL_FN float nbl_head_scale(const float *scales, uint64_t index)
{
    if (scales == NULL || scales[index] != scales[index]) {
        return 1.0f;
    }
    return nbl_clamp_f32(scales[index], 0x1p-30f, 0x1p30f);
}

/** fl(x / s), element by element: from values to what is stored of them. */
NBL_FN void nbl_scale_divide(float *x, uint32_t dim, float s)
{
    for (uint32_t d = 0; s != 1.0f && d < dim; ++d) {
        x[d] /= s;
    }
}

/** fl(x * s), element by element: back. */
NBL_FN void nbl_scale_multiply(float *x, uint32_t dim, float s)
{
    for (uint32_t d = 0; s != 1.0f && d < dim; ++d) {
        x[d] *= s;
    }
}

/** Element type that a vector of a format enters the tensor core with: 1 for fp16, 0 for bf16, which holds the values
 * of all formats but fp16 and binary32 without error. */
NBL_FN int nbl_format_is_fp16(uint32_t format)
{
    return format == NBL_FORMAT_FP16;
}

/** bf16 or fp16 bits of x, RNE; zero is +0. fp16 saturates at +-65504 where IEEE would overflow, bf16 at +-127 * 2^40,
 * which keeps all dot products finite (NUM 6.1). */
NBL_FN uint16_t nbl_half_encode(float x, int is_fp16, uint64_t *saturated)
{
    if (!is_fp16 && fabsf(x) > NBL_INPUT_MAX) {
        (*saturated)++;
        x = x < 0.0f ? -NBL_INPUT_MAX : NBL_INPUT_MAX;
    }
    uint16_t bits = is_fp16 ? nbl_f16_from_f32(x) : nbl_bf16_from_f32(x);
    if (is_fp16 && (bits & 0x7fffu) == 0x7c00u) {
        (*saturated)++;
        bits--;
    }
    return (bits & 0x7fffu) == 0 ? 0 : bits;
}

/** Value of bf16 or fp16 bits; exact. */
NBL_FN float nbl_half_decode(uint16_t bits, int is_fp16)
{
    return is_fp16 ? nbl_f32_from_f16(bits) : nbl_f32_from_bf16(bits);
}

/** Value of the bits in a page, where a NaN or an infinity, which no quantizer writes (NUM 5.10), reads as 0. */
NBL_FN float nbl_half_decode_slot(uint16_t bits, int is_fp16)
{
    const uint16_t exponent = is_fp16 ? 0x7c00u : 0x7f80u;
    return (bits & exponent) == exponent ? 0.0f : nbl_half_decode(bits, is_fp16);
}

/** E4M3 code of x without a negative zero; counts what saturates. */
NBL_FN uint8_t nbl_fp8_encode(float x, uint64_t *saturated)
{
    uint8_t code = nbl_e4m3_encode(x);
    *saturated += fabsf(x) > 464.0f;
    return (code & 0x7fu) == 0 ? 0 : code;
}

/** E2M1 code of x under the scale s: 0 where the scale is 0 (NUM 6.1). */
NBL_FN uint32_t nbl_nvfp4_code(float x, float s)
{
    return s == 0.0f ? 0u : nbl_e2m1_encode(x / s);
}

/** Squared error of an nvfp4 block under the scale s (NUM 6.1). */
NBL_FN float nbl_nvfp4_error(const float *x, uint32_t n, float s)
{
    float error = 0.0f;
    for (uint32_t d = 0; d < n; ++d) {
        float difference = x[d] - (float)nbl_e2m1_half_units(nbl_nvfp4_code(x[d], s)) * 0.5f * s;
        error = nbl_fma(difference, difference, error);
    }
    return error;
}

/** E4M3 scale byte of an nvfp4 block (NUM 6.1). */
NBL_FN uint8_t nbl_nvfp4_scale(const float *x, uint32_t n, float amax, uint32_t rule)
{
    uint8_t six = nbl_e4m3_encode(amax / 6.0f);
    if (rule != NBL_RULE_FOUR_OVER_SIX) {
        return six;
    }
    uint8_t four = nbl_e4m3_encode(amax / 4.0f);
    float error_six = nbl_nvfp4_error(x, n, nbl_e4m3_decode(six));
    return nbl_nvfp4_error(x, n, nbl_e4m3_decode(four)) < error_six ? four : six;
}

/** nvfp4 (NUM 6.1). v->format and v->dim are set; x holds v->dim elements. */
NBL_FN void nbl_quantize_nvfp4(const float *x, uint32_t rule, nbl_vector *v, uint64_t *saturated)
{
    memset(v->scales, 0, nbl_layout_scale_planes(v->format, v->dim));
    for (uint32_t first = 0; first < v->dim; first += NBL_NVFP4_BLOCK) {
        uint32_t n = v->dim - first < NBL_NVFP4_BLOCK ? v->dim - first : NBL_NVFP4_BLOCK;
        float amax = 0.0f;
        for (uint32_t d = 0; d < n; ++d) {
            amax = fabsf(x[first + d]) > amax ? fabsf(x[first + d]) : amax;
        }
        uint8_t byte = nbl_nvfp4_scale(x + first, n, amax, rule);
        float s = nbl_e4m3_decode(byte);
        v->scales[first / NBL_NVFP4_BLOCK] = byte;
        for (uint32_t d = first; d < first + n; ++d) {
            *saturated += s != 0.0f && fabsf(x[d] / s) > 6.0f;
            v->codes[d] = (uint8_t)nbl_nvfp4_code(x[d], s);
        }
    }
}

/** Quantizes dim elements into a float format (NUM 6.1). v->format and v->dim are set, codes beyond dim are zero. */
NBL_FN void nbl_quantize_float(const float *x, uint32_t rule, nbl_vector *v, uint64_t *saturated)
{
    if (v->format == NBL_NVFP4) {
        nbl_quantize_nvfp4(x, rule, v, saturated);
        return;
    }
    for (uint32_t d = 0; d < v->dim; ++d) {
        if (v->format == NBL_FP8_E4M3) {
            v->codes[d] = nbl_fp8_encode(x[d], saturated);
        } else {
            v->halves[d] = nbl_half_encode(x[d], nbl_format_is_fp16(v->format), saturated);
        }
    }
}

/** Value of an E4M3 byte of a page, where bytes that no quantizer writes (NUM 5.10) read as 448 instead of NaN. */
NBL_FN float nbl_e4m3_decode_slot(uint8_t code)
{
    return nbl_e4m3_decode((code & 0x7fu) == 0x7fu ? (uint8_t)(code - 1u) : code);
}

/** An E4M3 code that another program wrote (NUM 6.8): NaN becomes the code below it and counts, -0 becomes 0. */
NBL_FN uint8_t nbl_e4m3_adopt(uint8_t code, uint64_t *nan)
{
    const int is_nan = (code & 0x7fu) == 0x7fu;
    *nan += (uint64_t)is_nan;
    return (code & 0x7fu) == 0 ? 0u : (uint8_t)(code - is_nan);
}

/** The same of the four codes of a word. */
NBL_FN uint32_t nbl_e4m3_adopt4(uint32_t codes, uint32_t *nan)
{
    const uint32_t magnitudes = codes & 0x7f7f7f7fu;
    const uint32_t are_nan = (magnitudes + 0x01010101u) >> 7 & 0x01010101u;
    const uint32_t signs = (magnitudes + 0x7f7f7f7fu) & 0x80808080u; /* of those that are not zero */
    *nan += are_nan * 0x01010101u >> 24;
    return (codes - are_nan) & (signs | 0x7f7f7f7fu);
}

/** Its E4M3 block scale, whose sign bit tensor cores do not look at. */
NBL_FN uint8_t nbl_nvfp4_scale_adopt(uint8_t byte, uint64_t *nan)
{
    return nbl_e4m3_adopt(byte & 0x7fu, nan);
}

/** Its E2M1 code: -0 becomes 0. */
NBL_FN uint8_t nbl_e2m1_adopt(uint32_t code)
{
    return code == 8u ? 0u : (uint8_t)code;
}

/** The same of the eight codes of a word. */
NBL_FN uint32_t nbl_e2m1_adopt8(uint32_t codes)
{
    const uint32_t signs = ((codes & 0x77777777u) + 0x77777777u) & 0x88888888u; /* of those that are not zero */
    return codes & (signs | 0x77777777u);
}

/** Value of element d of a float format. */
NBL_FN float nbl_float_value(const nbl_vector *v, uint32_t d)
{
    switch (v->format) {
    case NBL_NVFP4:
        return (float)nbl_e2m1_half_units(v->codes[d]) * 0.5f * nbl_e4m3_decode_slot(v->scales[d / NBL_NVFP4_BLOCK]);
    case NBL_FP8_E4M3: return nbl_e4m3_decode_slot(v->codes[d]);
    default: return nbl_half_decode_slot(v->halves[d], nbl_format_is_fp16(v->format));
    }
}

/** Values of a stored vector of any format, x[0..Dp-1]; exact (NUM 2.1, 6.1). */
NBL_FN void nbl_vector_values(const nbl_vector *v, float *x)
{
    uint32_t padded = nbl_layout_dim_padded(v->dim);
    if (nbl_layout_is_float(v->format)) {
        for (uint32_t d = 0; d < padded; ++d) {
            x[d] = nbl_float_value(v, d);
        }
        return;
    }
    int8_t codes[NBL_DIM_PADDED_MAX];
    float unit = nbl_pow2(nbl_vector_canonical(v, codes));
    for (uint32_t d = 0; d < padded; ++d) {
        x[d] = (float)codes[d] * unit;
    }
}

#endif
