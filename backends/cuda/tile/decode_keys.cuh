/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file decode_keys.cuh
 * @brief Q K of the decode kernel: one group of K against all query rows (NUM 5.1).
 *
 * S^T = K Q^T by mma.m16n8k32 (g = lane / 4, t = lane % 4): row g of a 16-token tile is token 2g, row g + 8 token
 * 2g + 1, so that a lane's two partial sums are those of tokens 2g and 2g + 1 mod 16 (NUM 5.4). K-step s takes elements
 * 8(4s + t)..+7 from lane t.
 */
#ifndef CUDA_DECODE_KEYS_H
#define CUDA_DECODE_KEYS_H

#include "decode_codes.cuh"
#include "decode_memory.cuh"

/** The lane's place in a line of 128 bytes: tokens 2g and 2g + 1 of 16-token tile `half`, of lines = t mod 4. */
PTX_FN uint32_t k_place(uint32_t half, uint32_t g, uint32_t t)
{
    return ((4u * half + g / 2u) ^ (2u * t)) * 16u + g % 2u * 8u;
}

/** Where the lane's part of Q lies. With RPL 1 columns 2q and 2q + 1 are the same, and the odd one is not used. */
template <int RPL> PTX_FN uint32_t query_place(uint32_t g, uint32_t t)
{
    return 4u * (RPL == 1 ? g / 2u : g) + t;
}

PTX_FN uint2 read_words(const uint8_t *at)
{
    return *reinterpret_cast<const uint2 *>(at);
}

/** Codes times factor plus 128, as unsigned bytes: of the low nibbles in a[0], of the high ones in a[1]. DP4A: the
 *  multiplier picks the factor, where the pipe of logic has more to do. */
template <bool DP4A>
PTX_FN void multiply_int4p(uint32_t w, uint32_t factors, uint32_t step, uint32_t &low, uint32_t &high)
{
    const uint32_t m = DP4A ? ptx_dp4a_byte(factors, step) : ptx_prmt(factors, 0, 0x4440u + step);
    const uint32_t c = 0x80808080u - m * 0x08080808u;
    low = (w & 0x0f0f0f0fu) * m + c;
    high = (w >> 4 & 0x0f0f0f0fu) * m + c;
}

PTX_FN void clear_sums(int32_t (&s)[2][4])
{
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        s[0][n] = s[1][n] = 0;
    }
}

/** Factor words of the lane's tokens: tokens 2g and 2g + 1 of both 16-token tiles. */
PTX_FN void read_factors(const uint32_t *factors, uint32_t g, uint2 (&f)[2])
{
    f[0] = *reinterpret_cast<const uint2 *>(factors + 2u * g);
    f[1] = *reinterpret_cast<const uint2 *>(factors + 16u + 2u * g);
}

/** int4p; the products carry 128 times the sum of Q's codes, which `start` takes back. It is what the sums begin with,
 *  and has the bits of NBL_MAGIC besides, so that those of a sum are NBL_MAGIC plus the sum, as a float: a sum has less
 *  than 22 bits (256 * 128 * 127). */
template <int STEPS, int STRIDE, bool DP4A>
PTX_FN void k_group_int4p(const uint8_t *codes, const uint32_t *factors, const uint2 *queries, uint32_t g, uint32_t t,
                          const int32_t (&start)[4], float (&x)[2][4])
{
    uint2 f[2];
    int32_t s[2][4];
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        if (step % 4 == 0) {
            read_factors(factors + step / 4u * K_FACTOR_WORDS + t / 2u * K_FACTOR_STRIDE, g, f);
        }
        const uint32_t q[2] = {queries[STRIDE * step].x, queries[STRIDE * step].y};
#pragma unroll
        for (uint32_t half = 0; half < 2u; ++half) {
            const uint2 w = read_words(codes + (4 * step + t) * 128u + k_place(half, g, t));
            uint32_t a[4];
            multiply_int4p<DP4A>(w.x, f[half].x, step % 4u, a[0], a[2]);
            multiply_int4p<DP4A>(w.y, f[half].y, step % 4u, a[1], a[3]);
            if (step == 0) {
                ptx_mma_m16n8k32_us_from(s[half], a, q, start);
            } else {
                ptx_mma_m16n8k32_us(s[half], a, q);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        x[n / 4][n % 4] = nbl_float_of((uint32_t)s[n / 4][n % 4]) - NBL_MAGIC;
    }
}

/** Q as k_group_mxfp4 wants it: codes of even places, then those of odd ones. */
PTX_FN uint2 in_pairs(uint2 q)
{
    return make_uint2(ptx_prmt(q.x, q.y, 0x5140u), ptx_prmt(q.x, q.y, 0x7362u));
}

/** mxfp4, a block a step; the block's factor is applied to the sums. PAIRED: `queries` have been brought in_pairs. */
template <int STEPS, int STRIDE, bool PAIRED>
PTX_FN void k_group_mxfp4(const uint8_t *codes, const uint32_t *factors, const uint2 *queries, uint32_t g, uint32_t t,
                          int32_t (&s)[2][4])
{
    const e2m1_tables tables = PAIRED ? e2m1_registers<1>() : e2m1_constants<1>(); /* no registers are left */
    clear_sums(s);
    uint2 f[2];
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        if (step % 4 == 0) {
            read_factors(factors + step / 4u * K_FACTOR_WORDS, g, f);
        }
        const uint2 pairs = PAIRED ? queries[STRIDE * step] : in_pairs(queries[STRIDE * step]);
        const uint32_t q[2] = {pairs.x, pairs.y};
#pragma unroll
        for (uint32_t half = 0; half < 2u; ++half) {
            const uint2 w = read_words(codes + (4 * step + t) * 128u + k_place(half, g, t));
            uint32_t up[4], down[4];
            e2m1_operands<1>(tables, w.x, w.y, up, down);
            int32_t sums[4] = {0, 0, 0, 0};
            ptx_mma_m16n8k32_ss(sums, up, q);
            ptx_mma_m16n8k32_ss(sums, down, q);
            const int32_t m0 = (int32_t)ptx_dp4a_byte(f[half].x, step % 4u);
            const int32_t m1 = (int32_t)ptx_dp4a_byte(f[half].y, step % 4u);
            s[half][0] += sums[0] * m0;
            s[half][1] += sums[1] * m0;
            s[half][2] += sums[2] * m1;
            s[half][3] += sums[3] * m1;
        }
    }
}

/** int8: lines of four elements. */
template <int STEPS, int STRIDE>
PTX_FN void k_group_int8(const uint8_t *codes, const uint2 *queries, uint32_t g, uint32_t t, int32_t (&s)[2][4])
{
    clear_sums(s);
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        const uint32_t q[2] = {queries[STRIDE * step].x, queries[STRIDE * step].y};
        const uint32_t line = 8u * step + 2u * t;
#pragma unroll
        for (uint32_t half = 0; half < 2u; ++half) {
            const uint2 low = read_words(codes + line * 128u + k_place(half, g, line % 4u));
            const uint2 high = read_words(codes + (line + 1u) * 128u + k_place(half, g, (line + 1u) % 4u));
            const uint32_t a[4] = {low.x, low.y, high.x, high.y};
            ptx_mma_m16n8k32_ss(s[half], a, q);
        }
    }
}

/** 2^ek of tokens 2g and 2g + 1. */
PTX_FN float2 read_k_scales(const uint8_t *exponents, uint32_t g)
{
    const uint32_t pair = *reinterpret_cast<const uint16_t *>(exponents + 2u * g);
    return make_float2(nbl_float_of(pair << 23 & 0x7f800000u), nbl_float_of(pair << 15 & 0x7f800000u));
}

/** The same of tokens from `first` on. PAIRED: prepare_scales has worked them out. */
template <int D, int RPL, bool PAIRED>
PTX_FN float2 scales_from(const warp_memory<D, RPL> &m, uint32_t first, uint32_t g)
{
    return PAIRED ? *reinterpret_cast<const float2 *>(&m.k_factor[0][K_FACTOR_STRIDE + first + 2u * g])
                  : read_k_scales(&m.k_exponent[first], g);
}

/** What the sums of int4p begin with, in a row of that bias. */
PTX_FN int32_t k_start(int32_t bias)
{
    return bias + (int32_t)nbl_bits_of(NBL_MAGIC);
}

/** Sums of a group's two 16-token tiles. PAIRED: all K are mxfp4, and Q is as that wants it. */
template <int D, int RPL, bool PAIRED = false, bool DP4A = false>
PTX_FN void k_group(const warp_memory<D, RPL> &m, const uint8_t *codes, uint32_t format, uint32_t group, uint32_t lane,
                    const int32_t (&start)[4], float (&x)[2][4])
{
    const uint32_t g = lane / 4u, t = lane % 4u;
    const uint32_t *factors = &m.k_factor[0][group * GROUP];
    const uint2 *queries = &m.q[0][query_place<RPL>(g, t)];
    if (format == NBL_INT4P) {
        k_group_int4p<D / 32, 16 * RPL, DP4A>(codes, factors, queries, g, t, start, x);
        return;
    }
    int32_t s[2][4];
    if (format == NBL_MXFP4) {
        k_group_mxfp4<D / 32, 16 * RPL, PAIRED>(codes, factors, queries, g, t, s);
    } else {
        k_group_int8<D / 32, 16 * RPL>(codes, queries, g, t, s);
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        x[n / 4][n % 4] = (float)s[n / 4][n % 4];
    }
}

/** Logits of a group but for the rows' scales, the lane's to its own place. */
template <int D, int RPL, bool PAIRED = false, bool DP4A = false>
PTX_FN void store_logits(warp_memory<D, RPL> &m, const uint8_t *codes, uint32_t format, uint32_t group, uint32_t lane,
                         const int32_t (&start)[4])
{
    const uint32_t g = lane / 4u;
    float x[2][4];
    k_group<D, RPL, PAIRED, DP4A>(m, codes, format, group, lane, start, x);
    const float2 low = scales_from<D, RPL, PAIRED>(m, group * GROUP, g);
    const float2 high = scales_from<D, RPL, PAIRED>(m, group * GROUP + 16u, g);
#pragma unroll
    for (int i = 0; i < RPL; ++i) {
        m.x[i][group][lane] = make_float4(x[0][i] * low.x, x[0][2 + i] * low.y, x[1][i] * high.x, x[1][2 + i] * high.y);
    }
}

#endif
