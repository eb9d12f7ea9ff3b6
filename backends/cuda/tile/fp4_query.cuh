/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file fp4_query.cuh
 * @brief Query rows of the Blackwell core (NUM 7.1): quantized in K's format, in the order that its kernel reads.
 *
 * A row has Dp bytes of the workspace: Dp/8 words of codes in the order of a K page (F3), then a word of scales for
 * each 64 elements, as the MMA takes them (ptx/blockscale.cuh). With mxfp4_16 the scales are E4M3 numbers relative to
 * the first block's power of two, which is part of the row's factor: a word of four E8M0 scales is a form of the MMA
 * that not every assembler knows. Within the spread rule (NUM 2.4) nothing is lost.
 */
#ifndef CUDA_FP4_QUERY_H
#define CUDA_FP4_QUERY_H

#include "float16.cuh"
#include "mma_model.h"
#include "rowsum.h"

#define FP4_STEP 64u       /**< elements of a fused step */
#define FP4_PEAK 168.0f    /**< 448 * 6 = 2688, over 2^4 (NUM 7.1) */
#define FP4_PEAK_LOG2 4    /**< of that 2^4 */
#define FP4_ONE 0x38       /**< 1 in E4M3; 8 more doubles it */
#define FP4_RELATIVE_MIN 6 /**< least and largest power of two that E4M3 has as a normal number */
#define FP4_RELATIVE_MAX 8

/** Bytes before the scale words of a row. */
CUDA_DEVICE uint32_t fp4_row_scales_at(uint32_t k_dim_padded)
{
    return k_dim_padded / 2u;
}

/** E4M3 code of 2^(exponent - first), for blocks of mxfp4_16. */
CUDA_DEVICE uint32_t fp4_relative_scale(int32_t exponent, int32_t first)
{
    return (uint32_t)(FP4_ONE + 8 * nbl_clamp_i32(exponent - first, -FP4_RELATIVE_MIN, FP4_RELATIVE_MAX));
}

/** A quantized block: codes, its scale byte, and the exponent of the row (0 but for the formats that need one). */
struct fp4_block {
    block16_codes q;
    uint32_t scale;
    int32_t row_exponent;
};

CUDA_DEVICE void fp4_quantize_nvfp4(float (&x)[BLOCK16], uint32_t team, uint32_t b, uint32_t *slot, fp4_block *out)
{
    float amax = nbl_float_of(block16_team_max(block16_amax_bits(x), team, slot, b == 0));
    out->row_exponent = nbl_exponent_for(amax, FP4_PEAK, NBL_E_MIN, NBL_E_MAX) - FP4_PEAK_LOG2;
    float unit = nbl_pow2(-out->row_exponent);
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        x[i] *= unit;
    }
    float16_quantize(x, NBL_NVFP4, NBL_RULE_DEFAULT, &out->q);
    out->scale = (uint32_t)out->q.exponent;
}

CUDA_DEVICE void fp4_quantize_mxfp4(float (&x)[BLOCK16], uint32_t format, uint32_t team, uint32_t b, uint32_t *slot,
                                    fp4_block *out)
{
    int32_t e = block16_mxfp4_exponent(x, NBL_RULE_OPTIMAL, format == NBL_MXFP4, b);
    int32_t most = (int32_t)block16_team_max((uint32_t)(e - NBL_BLOCK_E_MIN), team, slot, b == 0) + NBL_BLOCK_E_MIN;
    e = max(e, most - NBL_BLOCK_E_SPREAD);
    block16_mxfp4(x, e, &out->q);
    int32_t first =
        (int32_t)block16_team_max(b == 0 ? (uint32_t)(e - NBL_BLOCK_E_MIN) : 0u, team, slot, b == 0) + NBL_BLOCK_E_MIN;
    out->row_exponent = format == NBL_MXFP4_16 ? first : 0;
    out->scale = format == NBL_MXFP4_16 ? fp4_relative_scale(e, first) : nbl_e8m0_encode(e);
}

/** Writes the block's codes and its scale byte; the last block also the zeros after it. */
CUDA_DEVICE void fp4_store_block(uint8_t *row, uint32_t k_dim_padded, uint32_t format, uint32_t b,
                                 const fp4_block &block)
{
    uint32_t words[2] = {0, 0};
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        words[i / 8u] |= (uint32_t)block.q.code[i] << (8u * (i % 4u) + 4u * (i / 4u % 2u));
    }
    *(uint2 *)(void *)(row + b * (BLOCK16 / 2u)) = make_uint2(words[0], words[1]);
    uint8_t *scales = row + fp4_row_scales_at(k_dim_padded);
    const uint32_t step = b * BLOCK16 / FP4_STEP, group = b % NBL_MMA_GROUPS, blocks = k_dim_padded / BLOCK16;
    const bool is_last = b + 1u == blocks;
    if (format != NBL_MXFP4) {
        scales[4u * step + group] = (uint8_t)block.scale;
        for (uint32_t i = group + 1u; is_last && i < 4u; ++i) {
            scales[4u * step + i] = 0;
        }
    } else if (group % 2u == 0) {
        scales[4u * step + group / 2u] = (uint8_t)block.scale;
        scales[4u * step + 2u + group / 2u] = 0;
    } else if (is_last && group == 1u) { /* half a step is left */
        scales[4u * step + 1u] = 0;
        scales[4u * step + 3u] = 0;
    }
}

/** Value of element d of a stored row, without the row's exponent. */
CUDA_DEVICE float fp4_row_value(const uint8_t *row, uint32_t k_dim_padded, uint32_t format, uint32_t d)
{
    const uint8_t *scales = row + fp4_row_scales_at(k_dim_padded) + d / FP4_STEP * 4u;
    uint32_t code = row[d / 8u * 4u + d % 4u] >> (d / 4u % 2u * 4u) & 15u;
    float half_units = (float)nbl_e2m1_half_units(code) * 0.5f;
    return format == NBL_MXFP4 ? half_units * nbl_e8m0_value(scales[d % FP4_STEP / 32u])
                               : half_units * nbl_e4m3_decode(scales[d % FP4_STEP / BLOCK16]);
}

/** Quantizes the thread's elements of a transformed row, which are overwritten (NUM 7.1). All threads of the block call
 *  it. */
CUDA_DEVICE void fp4_quantize(const attend_params &p, float (&x)[BLOCK16], uint32_t team, uint32_t b, uint32_t *slot,
                              fp4_block *out)
{
    if (p.fp4_format == NBL_NVFP4) {
        fp4_quantize_nvfp4(x, team, b, slot, out);
    } else {
        fp4_quantize_mxfp4(x, p.fp4_format, team, b, slot, out);
    }
}

/** sum_d q[d] * mu[d] in the order of NUM 6.6, by one thread. */
CUDA_DEVICE float fp4_center_dot(const uint8_t *row, uint32_t k_dim_padded, uint32_t format, uint32_t dim,
                                 const int8_t *center)
{
    float sums[NBL_PARTIAL_SUMS] = {0};
    for (uint32_t first = 0; first < dim; first += NBL_PARTIAL_SUMS) {
#pragma unroll
        for (uint32_t i = 0; i < NBL_PARTIAL_SUMS; ++i) {
            if (first + i < dim) {
                sums[i] =
                    nbl_fma(fp4_row_value(row, k_dim_padded, format, first + i), (float)center[first + i], sums[i]);
            }
        }
    }
    return nbl_sum_tree(sums);
}

/** What a stored row with that exponent is to the kernels, the centre of K in its offset (NUM 7.1, 7.4), by one
 *  thread. */
CUDA_DEVICE cuda_query fp4_row_query(const attend_params &p, const uint8_t *row, int32_t exponent, uint32_t sequence,
                                     uint32_t kv_head, const block16_centering &centering)
{
    const float unit = nbl_pow2(exponent - nbl_log2_of(p.k_hadamard));
    cuda_query query = {p.c * nbl_head_scale(p.pages.k_scale, kv_head) * unit, 0.0f, exponent, (int32_t)sequence};
    if (centering.codes != NULL && p.kv_len[sequence] > 0) {
        query.offset = fp4_center_dot(row, p.k_dim_padded, p.fp4_format, p.k_dim, centering.codes) *
                       nbl_pow2(nbl_e8m0_decode_slot(*centering.exponent)) * (p.c * unit);
    }
    return query;
}

#endif
