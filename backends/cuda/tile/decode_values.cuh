/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file decode_values.cuh
 * @brief P V of the decode kernel: one group of V against the weights of all query rows (NUM 5.4).
 *
 * O^T = V^T P^T by mma.m16n8k32: row g is element 2g, row g + 8 element 2g + 1 of a block of 16; k runs over the 32
 * tokens of a group. V is never multiplied by its block factors: they go to the weights, whose two base-16 digits
 * times a factor of up to 16 are bytes. With up to four query rows (RPL 1) the low digit takes the even column, the
 * high digit the odd one; with up to eight (RPL 2) they are two products. All formats give 16 times the sum: low +
 * 16 * high.
 */
#ifndef CUDA_DECODE_VALUES_H
#define CUDA_DECODE_VALUES_H

#include "decode_codes.cuh"
#include "decode_memory.cuh"

/** Two words, elements 2g and 2g + 1 of a row of 64 bytes (16 elements, 4 tokens each) of V. */
PTX_FN uint2 v_words(const uint8_t *codes, uint32_t row_bytes, uint32_t quad, uint32_t sixteen, uint32_t g)
{
    uint32_t chunk = (4u * sixteen + g / 2u) ^ (2u * (quad % 4u));
    return *reinterpret_cast<const uint2 *>(codes + quad * row_bytes + chunk * 16u + g % 2u * 8u);
}

/** One digit of the lane's four weights (bytes of `digits`) times the factors of four blocks: out[i] for block i,
 *  tokens as bytes. */
PTX_FN void multiply_digits(uint32_t digits, const uint32_t *factors, uint32_t (&out)[4])
{
    const uint4 f = *reinterpret_cast<const uint4 *>(factors);
    const uint32_t by_token[4] = {f.x * ptx_prmt(digits, 0, 0x4440u), f.y * ptx_prmt(digits, 0, 0x4441u),
                                  f.z * ptx_prmt(digits, 0, 0x4442u), f.w * ptx_prmt(digits, 0, 0x4443u)};
    transpose_bytes(by_token, out);
}

/** The digits a lane works with: of its column, or both. p: weights of tokens 4t..4t + 3 and 16 more. */
template <int RPL> PTX_FN void digits_of(const uint32_t (&p)[2], uint32_t g, uint32_t (&digits)[RPL][2])
{
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        if (RPL == 1) {
            digits[0][i] = p[i] >> (g % 2u * 4u) & 0x0f0f0f0fu;
        } else {
            digits[0][i] = p[i] & 0x0f0f0f0fu;
            digits[RPL - 1][i] = p[i] >> 4 & 0x0f0f0f0fu;
        }
    }
}

/** A of element 16n + 2g + e for row i of the lane, from the products of both digits. */
template <int RPL, int N> PTX_FN int32_t value_sum(const int32_t (&acc)[RPL][N][4], int n, int e, int i)
{
    const int32_t low = RPL == 1 ? acc[0][n][2 * e] : acc[0][n][2 * e + i];
    const int32_t high = RPL == 1 ? acc[0][n][2 * e + 1] : acc[RPL - 1][n][2 * e + i];
    return (low >> 4) + high; /* low is a multiple of 16, as low + 16 * high is */
}

/** 16 * (code - 8) of the low codes as signed bytes. */
PTX_FN uint32_t int4p_low(uint32_t w, uint32_t high_nibbles)
{
    return (w << 4 & high_nibbles) ^ 0x80808080u;
}

/** The same of the high codes. */
PTX_FN uint32_t int4p_high(uint32_t w, uint32_t high_nibbles)
{
    return (w & high_nibbles) ^ 0x80808080u;
}

/** Digits times factors of the blocks 4w..4w + 3 of parity `odd`: [digit][16-token half][block]. */
template <int RPL>
PTX_FN void weigh_blocks(const uint32_t (&digits)[RPL][2], const uint32_t *factors, uint32_t odd, uint32_t t,
                         uint32_t (&out)[RPL][2][4])
{
#pragma unroll
    for (int digit = 0; digit < RPL; ++digit) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            multiply_digits(digits[digit][half], factors + odd * CUDA_TILE_TOKENS + 4u * t + 16 * half,
                            out[digit][half]);
        }
    }
}

/** int4p: pairs of blocks of 16 elements. */
template <int D, int RPL>
PTX_FN void v_group_int4p(const uint8_t *codes, const uint32_t *factors, const uint32_t (&p)[2], uint32_t g, uint32_t t,
                          uint32_t high_nibbles, int32_t (&acc)[RPL][D / 16][4])
{
    uint32_t digits[RPL][2], even[RPL][2][4], odd[RPL][2][4];
    digits_of<RPL>(p, g, digits);
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
        if (i % 4 == 0) {
            weigh_blocks<RPL>(digits, factors + i / 4 * 2 * CUDA_TILE_TOKENS, 0, t, even);
            weigh_blocks<RPL>(digits, factors + i / 4 * 2 * CUDA_TILE_TOKENS, 1, t, odd);
        }
        const uint2 w0 = v_words(codes, 2u * D, t, i, g);
        const uint2 w1 = v_words(codes, 2u * D, 4u + t, i, g);
        const uint32_t low[4] = {int4p_low(w0.x, high_nibbles), int4p_low(w0.y, high_nibbles),
                                 int4p_low(w1.x, high_nibbles), int4p_low(w1.y, high_nibbles)};
        const uint32_t high[4] = {int4p_high(w0.x, high_nibbles), int4p_high(w0.y, high_nibbles),
                                  int4p_high(w1.x, high_nibbles), int4p_high(w1.y, high_nibbles)};
#pragma unroll
        for (int digit = 0; digit < RPL; ++digit) {
            const uint32_t b_even[2] = {even[digit][0][i % 4], even[digit][1][i % 4]};
            const uint32_t b_odd[2] = {odd[digit][0][i % 4], odd[digit][1][i % 4]};
            ptx_mma_m16n8k32_su(acc[digit][2 * i], low, b_even);
            ptx_mma_m16n8k32_su(acc[digit][2 * i + 1], high, b_odd);
        }
    }
}

/** Nibbles of two words, a's in the even places: their low ones, or (HIGH) their high ones. */
template <bool HIGH> PTX_FN uint32_t interleave(uint32_t a, uint32_t b)
{
    return ptx_select_bits(0x0f0f0f0fu, HIGH ? a >> 4 : a, HIGH ? b : b << 4);
}

/** mxfp4: one digit of the lane's weights, fp16: [half][tokens 4t and 4t + 1, or 4t + 2 and 4t + 3]. */
PTX_FN void pairs_of(const uint32_t (&digits)[2], uint32_t (&pairs)[2][2])
{
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        pairs[half][0] = ptx_prmt(digits[half], 0, 0x4140u);
        pairs[half][1] = ptx_prmt(digits[half], 0, 0x4342u);
    }
}

/** Weights of one digit times twice the factors of their tokens, as bytes in the order 4t, 4t + 16, 4t + 1, 4t + 17
 *  (out[0]), then the others. As fp16 the digits are subnormal, and so are the products, up to 240: their bits are
 *  integers. */
PTX_FN void weigh_interleaved(const uint32_t (&pairs)[2][2], const uint2 (&powers)[2], uint32_t (&out)[2])
{
    out[0] = ptx_mul_f16x2(pairs[1][0], powers[1].x) * 256u + ptx_mul_f16x2(pairs[0][0], powers[0].x);
    out[1] = ptx_mul_f16x2(pairs[1][1], powers[1].y) * 256u + ptx_mul_f16x2(pairs[0][1], powers[0].y);
}

/** 16 elements of a block of mxfp4: x and y are codes of elements 2g and 2g + 1, tokens in the order of b. */
template <int D, int RPL>
PTX_FN void v_mma_e2m1(const e2m1_tables &tables, uint32_t x, uint32_t y, const uint32_t (&b)[RPL][2], int at,
                       int32_t (&acc)[RPL][D / 16][4])
{
    uint32_t up[4], down[4];
    e2m1_operands<8>(tables, x, y, up, down);
#pragma unroll
    for (int digit = 0; digit < RPL; ++digit) {
        ptx_mma_m16n8k32_su(acc[digit][at], up, b[digit]);
        ptx_mma_m16n8k32_su(acc[digit][at], down, b[digit]);
    }
}

/** mxfp4: blocks of 32 elements. Codes enter 8 times as large, the factors twice. The codes of tokens n and n + 16 of
 *  an element are put side by side, so that half a word selects four entries. */
template <int D, int RPL>
PTX_FN void v_group_mxfp4(const uint8_t *codes, const uint2 (*powers)[2], const uint32_t (&p)[2], uint32_t g,
                          uint32_t t, int32_t (&acc)[RPL][D / 16][4])
{
    /* for more elements no registers are left */
    const e2m1_tables tables = D <= 128 ? e2m1_registers<8>() : e2m1_constants<8>();
    uint32_t digits[RPL][2], pairs[RPL][2][2];
    digits_of<RPL>(p, g, digits);
#pragma unroll
    for (int digit = 0; digit < RPL; ++digit) {
        pairs_of(digits[digit], pairs[digit]);
    }
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
        const uint2(*of_pair)[2] = powers + i / 2 * (int)(CUDA_TILE_TOKENS / 4u) + t;
        const uint2 factors[2] = {of_pair[0][i % 2], of_pair[4][i % 2]};
        const uint2 w0 = v_words(codes, 2u * D, t, i, g);
        const uint2 w1 = v_words(codes, 2u * D, 4u + t, i, g);
        uint32_t b[RPL][2];
#pragma unroll
        for (int digit = 0; digit < RPL; ++digit) {
            weigh_interleaved(pairs[digit], factors, b[digit]);
        }
        v_mma_e2m1<D, RPL>(tables, interleave<false>(w0.x, w1.x), interleave<false>(w0.y, w1.y), b, 2 * i, acc);
        v_mma_e2m1<D, RPL>(tables, interleave<true>(w0.x, w1.x), interleave<true>(w0.y, w1.y), b, 2 * i + 1, acc);
    }
}

/** int8: blocks of 16 elements. The weight is the high digit, the low one is 0. */
template <int D, int RPL>
PTX_FN void v_group_int8(const uint8_t *codes, const uint32_t (&p)[2], uint32_t g, uint32_t t,
                         int32_t (&acc)[RPL][D / 16][4])
{
    const uint32_t keep = RPL == 2 || g % 2u == 1u ? 0xffffffffu : 0u;
    const uint32_t b[2] = {p[0] & keep, p[1] & keep};
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
        const uint2 w0 = v_words(codes, 4u * D, t, i, g);
        const uint2 w1 = v_words(codes, 4u * D, 4u + t, i, g);
        const uint32_t a[4] = {w0.x, w0.y, w1.x, w1.y};
        ptx_mma_m16n8k32_su(acc[RPL - 1][i], a, b);
    }
}

/** Adds a group of V with the weights p. */
template <int D, int RPL>
PTX_FN void v_group(const warp_memory<D, RPL> &m, const uint8_t *codes, uint32_t format, uint32_t group, uint32_t lane,
                    const uint32_t (&p)[2], uint32_t high_nibbles, int32_t (&acc)[RPL][D / 16][4])
{
    const uint32_t g = lane / 4u, t = lane % 4u;
    const uint32_t *factors = &m.v_factor[0][0][group * GROUP];
    if (format == NBL_INT4P) {
        v_group_int4p<D, RPL>(codes, factors, p, g, t, high_nibbles, acc);
    } else if (format == NBL_MXFP4) {
        v_group_mxfp4<D, RPL>(codes, &m.v_power[0][group * (GROUP / 4u)], p, g, t, acc);
    } else {
        v_group_int8<D, RPL>(codes, p, g, t, acc);
    }
}

#endif
