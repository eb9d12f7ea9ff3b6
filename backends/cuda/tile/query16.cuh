/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file query16.cuh
 * @brief Query rows to canonical form (NUM 5.1), by teams of threads that hold 16 elements each (block16.cuh).
 */
#ifndef CUDA_QUERY16_H
#define CUDA_QUERY16_H

#include "../ptx/ptx.cuh"
#include "block16.cuh"

/** Four canonical codes, RNE of x * unit, to a word. Their magnitudes are at most 127. */
CUDA_DEVICE uint32_t code_word(const float *x, float unit)
{
    uint32_t bits[4];
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        bits[i] = nbl_bits_of(nbl_fma(x[i], unit, NBL_MAGIC)); /* the product is exact, the code in the low byte */
    }
    return __byte_perm(__byte_perm(bits[0], bits[1], 0x0040), __byte_perm(bits[2], bits[3], 0x0040), 0x5410);
}

/** q8 (NUM 3.2): the thread's canonical codes, four to a word; the exponent of the row is returned. */
CUDA_DEVICE int32_t query16_q8(float (&x)[BLOCK16], uint32_t team, uint32_t b, uint32_t *slot, uint32_t (&words)[4])
{
    float amax = nbl_float_of(block16_team_max(block16_amax_bits(x), team, slot, b == 0));
    int32_t exponent = nbl_exponent_for(amax, (float)NBL_INT8_CODE_MAX, NBL_E_MIN, NBL_E_MAX);
    float most = (float)NBL_INT8_CODE_MAX * nbl_pow2(exponent);
    if (amax > most) { /* only with the largest exponent */
#pragma unroll
        for (uint32_t i = 0; i < BLOCK16; ++i) {
            x[i] = nbl_clamp_f32(x[i], -most, most);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        words[i] = code_word(x + 4u * i, nbl_pow2(-exponent));
    }
    return exponent;
}

/** q4 (NUM 3.4 and 2.4), likewise. */
CUDA_DEVICE int32_t query16_q4(float (&x)[BLOCK16], uint32_t team, uint32_t b, uint32_t *slot, uint32_t (&words)[4])
{
    int32_t e = block16_mxfp4_exponent(x, NBL_RULE_OPTIMAL, true, b);
    int32_t most = (int32_t)block16_team_max((uint32_t)(e - NBL_BLOCK_E_MIN), team, slot, b == 0) + NBL_BLOCK_E_MIN;
    e = max(e, most - NBL_BLOCK_E_SPREAD);
    int32_t least = NBL_BLOCK_E_MAX - (int32_t)block16_team_max((uint32_t)(NBL_BLOCK_E_MAX - e), team, slot, b == 0);
    float unit = nbl_pow2(-e);
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        x[i] = nbl_e2m1_round(nbl_clamp_f32(x[i] * unit, -NBL_E2M1_MAX, NBL_E2M1_MAX));
    }
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        words[i] = code_word(x + 4u * i, nbl_pow2(e - least + 1));
    }
    return least - 1;
}

/** 16 bytes of a row of dim bytes, at the thread's block; zeros past the end, all zero without a row. */
CUDA_DEVICE void read_bytes(const void *row, uint32_t dim, uint32_t b, uint32_t (&words)[4])
{
    const uint8_t *at = (const uint8_t *)row + b * BLOCK16;
    if (row != NULL && (b + 1u) * BLOCK16 <= dim && ((uint64_t)at & 15u) == 0) {
        uint4 v = *(const uint4 *)(const void *)at;
        words[0] = v.x;
        words[1] = v.y;
        words[2] = v.z;
        words[3] = v.w;
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        words[i] = 0;
#pragma unroll
        for (uint32_t k = 0; k < 4u; ++k) {
            uint32_t d = 4u * i + k;
            words[i] |= row != NULL && b * BLOCK16 + d < dim ? (uint32_t)at[d] << (8u * k) : 0u;
        }
    }
}

/** The thread's elements of a row of t, which is q or q_centers; zeros where there is none. */
CUDA_DEVICE void query16_read(const attend_params &p, const cuda_tensor &t, uint32_t token, uint32_t head, bool active,
                              uint32_t b, float (&x)[BLOCK16])
{
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        x[i] = 0.0f;
    }
    if (active) {
        block16_read(&t, t.data + (int64_t)token * t.stride[0] + (int64_t)head * t.stride[1], 2, p.k_dim, b, x);
    }
}

/** What query16_read has read, transformed (NUM 5.1). */
CUDA_DEVICE void query16_transform(const attend_params &p, uint32_t b, const block16_centering &centering,
                                   float (&x)[BLOCK16])
{
    if (block16_amax_bits(x) > nbl_bits_of(NBL_INPUT_MAX)) {
        block16_counts ignored = {0, 0, 0};
        block16_sanitize(x, &ignored);
    }
    if (centering.shifts != NULL) {
        uint32_t shifts[4];
        read_bytes(centering.shifts, p.k_dim, b, shifts);
#pragma unroll
        for (uint32_t i = 0; i < BLOCK16; ++i) {
            x[i] *= nbl_pow2(-(int32_t)(shifts[i / 4u] >> (8u * (i % 4u)) & NBL_SHIFT_MAX));
        }
    }
    block16_hadamard(x, b, p.k_hadamard);
}

/** A row of the integer core: the thread's codes, and what the row is to the kernels. */
struct query16 {
    uint32_t words[4];
    cuda_query query;
};

/** Quantizes a transformed row. `kv_len` is that of the sequence; without tokens there is no offset (NUM 5.7). All
 *  threads of the warp call it, of the block where teams are no power of two. */
CUDA_DEVICE query16 query16_make(const attend_params &p, float (&x)[BLOCK16], uint32_t team, uint32_t b, uint32_t *slot,
                                 const block16_centering &centering, uint32_t sequence, int32_t kv_len)
{
    query16 out;
    uint32_t center[4];
    int32_t exponent =
        p.q_format == NBL_Q4 ? query16_q4(x, team, b, slot, out.words) : query16_q8(x, team, b, slot, out.words);
    read_bytes(centering.codes, p.k_dim, b, center);
    int32_t sum = 0, dot = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        sum = ptx_dp4a_ss((int32_t)out.words[i], 0x01010101, sum);
        dot = ptx_dp4a_ss((int32_t)out.words[i], (int32_t)center[i], dot);
    }
    sum = block16_team_sum(sum, team, slot, b == 0);
    dot = p.centers.codes != NULL || (team & (team - 1u)) != 0 ? block16_team_sum(dot, team, slot, b == 0) : 0;
    out.query.scale = p.c * nbl_pow2(exponent - nbl_log2_of(p.k_hadamard));
    out.query.offset = 0.0f;
    out.query.bias = -128 * sum;
    out.query.sequence = (int32_t)sequence;
    if (centering.codes != NULL && kv_len > 0) {
        out.query.offset = (float)dot * nbl_pow2(nbl_e8m0_decode_slot(*centering.exponent)) * out.query.scale;
    }
    return out;
}

#endif
