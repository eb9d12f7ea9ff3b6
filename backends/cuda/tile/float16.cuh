/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file float16.cuh
 * @brief Blocks of 16 elements in the formats of the float core (NUM 6.1): a thread quantizes, writes and reads one.
 */
#ifndef CUDA_FLOAT16_H
#define CUDA_FLOAT16_H

#include "block16.cuh"
#include "float_format.h"

/** Scale of head h of pages (NUM 6.7); heads past the layer's belong to the layers that follow. */
CUDA_DEVICE float float16_scale(const cuda_pages *pages, uint32_t kind, uint32_t head)
{
    return nbl_head_scale(kind == NBL_KIND_K ? pages->k_scale : pages->v_scale, head);
}

/** Quantizes a block to nvfp4 or fp8; out->exponent holds the scale byte of nvfp4. Wider formats have no codes here:
 *  float16_store_halves writes them. */
CUDA_DEVICE void float16_quantize(const float (&x)[BLOCK16], uint32_t format, uint32_t rule, block16_codes *out)
{
    uint64_t saturated = 0;
    *out = block16_codes{{0}, 0, 1, 0};
    if (format == NBL_NVFP4) {
        uint8_t scale = nbl_nvfp4_scale(x, BLOCK16, nbl_float_of(block16_amax_bits(x)), rule);
        float s = nbl_e4m3_decode(scale);
#pragma unroll
        for (uint32_t i = 0; i < BLOCK16; ++i) {
            saturated += s != 0.0f && fabsf(x[i] / s) > 6.0f;
            out->code[i] = (uint8_t)nbl_nvfp4_code(x[i], s);
        }
        out->exponent = scale;
    } else if (format == NBL_FP8_E4M3) {
#pragma unroll
        for (uint32_t i = 0; i < BLOCK16; ++i) {
            out->code[i] = nbl_fp8_encode(x[i], &saturated);
        }
    }
    out->saturated = (uint32_t)saturated;
}

/** A block in bf16 or fp16, two elements a word; counts what saturates. */
template <int IS_FP16>
CUDA_DEVICE void float16_halves(const float (&x)[BLOCK16], uint32_t (&words)[8], uint64_t *saturated)
{
#pragma unroll
    for (uint32_t i = 0; i < 8u; ++i) {
        uint32_t low = nbl_half_encode(x[2u * i], IS_FP16, saturated);
        uint32_t high = nbl_half_encode(x[2u * i + 1u], IS_FP16, saturated);
        words[i] = low | high << 16;
    }
}

/** Writes a block in bf16 or fp16, if active; counts what saturates and tells whether a code is not zero. */
CUDA_DEVICE bool float16_store_halves(const float (&x)[BLOCK16], const block16_part *part, uint32_t token, uint32_t b,
                                      bool active, uint32_t *saturated)
{
    uint32_t words[8];
    uint64_t count = 0;
    uint32_t any = 0;
    if (nbl_format_is_fp16(part->format)) {
        float16_halves<1>(x, words, &count);
    } else {
        float16_halves<0>(x, words, &count);
    }
#pragma unroll
    for (uint32_t i = 0; i < 8u; ++i) {
        any |= words[i];
    }
    if (active) {
        uint8_t *first = part->codes + block16_code_byte(part, token, b * BLOCK16);
        uint8_t *second = part->codes + block16_code_byte(part, token, b * BLOCK16 + 8u);
        *(uint4 *)(void *)first = make_uint4(words[0], words[1], words[2], words[3]);
        *(uint4 *)(void *)second = make_uint4(words[4], words[5], words[6], words[7]);
    }
    *saturated = (uint32_t)count;
    return any != 0;
}

/** Values of a block of a stored vector of bf16 or fp16: 8 elements lie side by side. */
CUDA_DEVICE void float16_half_values(const block16_part *part, uint32_t token, uint32_t b, float (&x)[BLOCK16])
{
    bool is_fp16 = nbl_format_is_fp16(part->format);
#pragma unroll
    for (uint32_t half = 0; half < 2u; ++half) {
        uint32_t d = b * BLOCK16 + 8u * half;
        uint4 v = *(const uint4 *)(const void *)(part->codes + block16_code_byte(part, token, d));
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (uint32_t i = 0; i < 8u; ++i) {
            x[8u * half + i] = nbl_half_decode_slot((uint16_t)(words[i / 2u] >> (16u * (i % 2u))), is_fp16);
        }
    }
}

/** Values of a block of a stored vector of any format; exact. */
CUDA_DEVICE void float16_values(const block16_part *part, uint32_t token, uint32_t b, float (&x)[BLOCK16])
{
    if (!nbl_layout_is_float(part->format)) {
        int8_t codes[BLOCK16];
        float unit = nbl_pow2(block16_load(part, token, b, codes));
#pragma unroll
        for (uint32_t i = 0; i < BLOCK16; ++i) {
            x[i] = (float)codes[i] * unit;
        }
        return;
    }
    if (nbl_layout_code_bits(part->format) == 16u) {
        float16_half_values(part, token, b, x);
        return;
    }
    float s = 1.0f;
    if (part->format == NBL_NVFP4) {
        s = 0.5f * nbl_e4m3_decode_slot(part->scales[nbl_layout_scale_byte(part->page_tokens, b, token)]);
    }
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        uint32_t d = b * BLOCK16 + i;
        const uint8_t *at = part->codes + block16_code_byte(part, token, d);
        if (part->format == NBL_FP8_E4M3) {
            x[i] = nbl_e4m3_decode_slot(*at);
        } else {
            x[i] = (float)nbl_e2m1_half_units(*at >> block16_code_shift(part, d) & 15u) * s;
        }
    }
}

#endif
