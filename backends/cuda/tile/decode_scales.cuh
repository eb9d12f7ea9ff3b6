/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file decode_scales.cuh
 * @brief Scales of a tile, from the planes as stored to what the products want: once, a lane for four tokens.
 *
 * Every format becomes factors per block and one exponent per vector (NUM 2.3 to 2.5): multipliers of int4p, shifts of
 * mxfp4 as powers of two, none for int8. Byte s % 4 of factor word [s / 4][parity][token] belongs to blocks 2s and
 * 2s + 1 of 16, the even or the odd one.
 */
#ifndef CUDA_DECODE_SCALES_H
#define CUDA_DECODE_SCALES_H

#include "decode_memory.cuh"
#include "e8m0.h"

/** Factors of a lane's four tokens, and the bytes of their exponents. */
template <int D> struct token_scales {
    uint32_t even[FACTOR_WORDS(D)][4]; /**< [][token] */
    uint32_t odd[FACTOR_WORDS(D)][4];
    uint32_t shifts[4 * FACTOR_WORDS(D)]; /**< mxfp4, in place of these: [block], tokens as bytes */
    uint32_t exponents;
};

/** Planes of the lane's tokens, transposed: byte s % 4 of out[s / 4][token] is plane s. */
template <int D> PTX_FN void by_token(const uint32_t (&planes)[D / 32], uint32_t (&out)[FACTOR_WORDS(D)][4])
{
#pragma unroll
    for (int w = 0; w < (int)FACTOR_WORDS(D); ++w) {
        uint32_t four[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            four[i] = 4 * w + i < D / 32 ? planes[4 * w + i] : 0u;
        }
        transpose_bytes(four, out[w]);
    }
}

/** 2^s of the shifts 0..3 of four blocks, bytes of shifts[i] for block i, by token: byte i of out[token]. */
PTX_FN void powers_by_token(const uint32_t (&shifts)[4], uint32_t (&out)[4])
{
    const uint32_t low = shifts[0] + shifts[1] * 16u, high = shifts[2] + shifts[3] * 16u;
    const uint32_t first = ptx_prmt(low, high, 0x5140u), second = ptx_prmt(low, high, 0x7362u);
    const uint32_t selectors[4] = {first, ptx_dp2a_high_half(first), second, ptx_dp2a_high_half(second)};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        out[j] = ptx_prmt(0x08040201u, 0, selectors[j]);
    }
}

/** 2 * 2^s of the shifts of four tokens, as fp16. */
PTX_FN uint2 half_powers(uint32_t shifts)
{
    const uint32_t high_bytes = (shifts & 0x03030303u) * 4u + 0x40404040u;
    return make_uint2(ptx_prmt(high_bytes, 0, 0x1404u), ptx_prmt(high_bytes, 0, 0x3424u));
}

template <int D> PTX_FN void read_int4p(const uint8_t (*raw)[CUDA_TILE_TOKENS], uint32_t lane, token_scales<D> &s)
{
    uint32_t planes[D / 32], pairs[FACTOR_WORDS(D)][4];
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
        planes[i] = reinterpret_cast<const uint32_t *>(raw[i])[lane];
    }
    by_token<D>(planes, pairs);
#pragma unroll
    for (int w = 0; w < (int)FACTOR_WORDS(D); ++w) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            s.even[w][j] = (pairs[w][j] & 0x0f0f0f0fu) + 0x01010101u;
            s.odd[w][j] = (pairs[w][j] >> 4 & 0x0f0f0f0fu) + 0x01010101u;
        }
    }
    s.exponents = reinterpret_cast<const uint32_t *>(raw[D / 32])[lane];
}

/** Least bytes of N words. As numbers of 16 bits, bytes 1 and 3 decide; so others take their places. */
template <int N> PTX_FN uint32_t least_bytes(const uint32_t (&words)[N])
{
    uint32_t odd = words[0], even = words[0] << 8;
#pragma unroll
    for (int i = 1; i < N; ++i) {
        odd = __vminu2(odd, words[i]);
        even = __vminu2(even, words[i] << 8);
    }
    return ptx_prmt(even, odd, 0x7351u);
}

/** mxfp4: shifts of the lane's tokens for each block. */
template <int D> PTX_FN void read_mxfp4(const uint8_t (*raw)[CUDA_TILE_TOKENS], uint32_t lane, token_scales<D> &s)
{
    uint32_t planes[D / 32];
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
        planes[i] = reinterpret_cast<const uint32_t *>(raw[i])[lane];
    }
    const uint32_t least = least_bytes(planes);
    s.exponents = least - 0x01010101u;
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
        s.shifts[i] = planes[i] - least;
    }
}

/** Scales of the lane's tokens; tokens past the end of the sequence get harmless ones. */
template <int D>
PTX_FN void read_scales(const uint8_t (*raw)[CUDA_TILE_TOKENS], uint32_t format, int32_t tokens, uint32_t lane,
                        token_scales<D> &s)
{
    if (format == NBL_INT4P) {
        read_int4p<D>(raw, lane, s);
    } else if (format == NBL_MXFP4) {
        read_mxfp4<D>(raw, lane, s);
    } else {
        s.exponents = reinterpret_cast<const uint32_t *>(raw[0])[lane];
    }
    if (tokens < 4) {
        const uint32_t mask = tokens <= 0 ? 0u : (1u << (8 * tokens)) - 1u;
        s.exponents = (s.exponents & mask) | (NBL_E8M0_BIAS * 0x01010101u & ~mask);
    }
}

PTX_FN void store_words(uint32_t *to, const uint32_t (&x)[4])
{
    *reinterpret_cast<uint4 *>(to) = make_uint4(x[0], x[1], x[2], x[3]);
}

/** 2^e of four exponents, as binary32. */
PTX_FN void powers_of_two(uint32_t exponents, uint32_t (&out)[4])
{
    out[0] = exponents << 23 & 0x7f800000u;
    out[1] = exponents << 15 & 0x7f800000u;
    out[2] = exponents << 7 & 0x7f800000u;
    out[3] = exponents >> 1 & 0x7f800000u;
}

template <int D, int RPL, bool PAIRED>
PTX_FN void store_k_scales(warp_memory<D, RPL> &m, uint32_t lane, uint32_t format, const token_scales<D> &s)
{
#pragma unroll
    for (int w = 0; w < (int)FACTOR_WORDS(D); ++w) {
        if (format == NBL_INT4P) {
            store_words(&m.k_factor[w][4u * lane], s.even[w]);
            store_words(&m.k_factor[w][K_FACTOR_STRIDE + 4u * lane], s.odd[w]);
        } else if (format == NBL_MXFP4) {
            const uint32_t shifts[4] = {s.shifts[4 * w], s.shifts[4 * w + 1], s.shifts[4 * w + 2], s.shifts[4 * w + 3]};
            uint32_t powers[4];
            powers_by_token(shifts, powers);
            store_words(&m.k_factor[w][4u * lane], powers);
        }
    }
    if (PAIRED) {
        uint32_t scales[4]; /* in place of the factors of odd blocks */
        powers_of_two(s.exponents, scales);
        store_words(&m.k_factor[0][K_FACTOR_STRIDE + 4u * lane], scales);
    } else {
        reinterpret_cast<uint32_t *>(m.k_exponent)[lane] = s.exponents;
    }
}

template <int D, int RPL>
PTX_FN void store_v_scales(warp_memory<D, RPL> &m, uint32_t lane, uint32_t format, const token_scales<D> &s)
{
    if (format == NBL_INT4P) {
#pragma unroll
        for (int w = 0; w < (int)FACTOR_WORDS(D); ++w) {
            store_words(&m.v_factor[w][0][4u * lane], s.even[w]);
            store_words(&m.v_factor[w][1][4u * lane], s.odd[w]);
        }
    } else if (format == NBL_MXFP4) {
#pragma unroll
        for (int i = 0; i < D / 32; ++i) {
            m.v_power[i / 2][lane][i % 2] = half_powers(s.shifts[i]);
        }
    }
    float grid[4];
#pragma unroll
    for (uint32_t j = 0; j < 4u; ++j) { /* 2^23 + byte is a float of known bits */
        grid[j] =
            nbl_float_of(ptx_prmt(s.exponents, 0x4b000000u, 0x7440u + j)) + (NBL_GRID - (8388608.0f + NBL_E8M0_BIAS));
    }
    *reinterpret_cast<float4 *>(&m.v_grid[4u * lane]) = make_float4(grid[0], grid[1], grid[2], grid[3]);
}

/** Works out the scales of a tile that has landed, of which `tokens` of the lane's four tokens are there. PAIRED: all K
 *  are mxfp4, as store_logits takes them. */
template <int D, int RPL, bool PAIRED = false>
PTX_FN void prepare_scales(warp_memory<D, RPL> &m, uint32_t k_format, uint32_t v_format, int32_t tokens, uint32_t lane)
{
    token_scales<D> s = {};
    read_scales<D>(m.raw[0], k_format, tokens, lane, s);
    store_k_scales<D, RPL, PAIRED>(m, lane, k_format, s);
    read_scales<D>(m.raw[1], v_format, tokens, lane, s);
    store_v_scales<D, RPL>(m, lane, v_format, s);
    __syncwarp();
}

#endif
