/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file rotated_codes.cuh
 * @brief int8 and mxfp4 codes of eight vectors as rotate (rotate_mma.cuh) leaves them, and their way to pages.
 *
 * Lane 4t + b has of vector t the elements 16g + 4b + j, as x[4g + j]. Four int8 codes in a row are a word of K (F3) or
 * four columns of V (F4), number 4g + b; eight E2M1 codes of groups 2i and 2i + 1 are four columns of V, number 4i + b,
 * or, after a trade with the neighbour, a word of K. So nothing has to change lanes before it is a code.
 */
#ifndef CUDA_ROTATED_CODES_H
#define CUDA_ROTATED_CODES_H

#include "page_tokens.cuh"

/** Largest magnitudes of a lane's elements; a NaN counts as larger than anything. */
struct rotated_range {
    float block[4];  /**< of the lane's eight of each block of 32 */
    uint32_t vector; /**< of the vector, as bits */
};

CUDA_DEVICE rotated_range rotated_range_of(const float (&x)[VECTOR32])
{
    rotated_range out;
    out.vector = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        out.block[i] = fabsf(x[8u * i]);
#pragma unroll
        for (uint32_t j = 1; j < 8u; ++j) {
            out.block[i] = ptx_max_nan(out.block[i], fabsf(x[8u * i + j]));
        }
        out.vector = max(out.vector, nbl_bits_of(out.block[i]));
    }
    out.vector = team32_max4(out.vector);
    return out;
}

/* Exponents of two blocks above the smallest one, a half of a word each, by their largest magnitudes; see
 * nbl_exponent_for. */
CUDA_DEVICE uint32_t rotated_exponents(float first, float second, uint32_t peak)
{
    uint32_t carry = 0x7fffffu - (peak & 0x7fffffu); /* a significand above the peak's is one exponent more */
    int32_t least = (int32_t)(peak >> 23) + NBL_BLOCK_E_MIN;
    uint32_t both = ptx_prmt(nbl_bits_of(first) + carry, nbl_bits_of(second) + carry, 0x7632u) >> 7 & 0x01ff01ffu;
    return __vmins2(__viaddmax_s16x2(both, ((uint32_t)-least & 0xffffu) * 0x00010001u, 0),
                    (uint32_t)(NBL_BLOCK_E_MAX - NBL_BLOCK_E_MIN) * 0x00010001u);
}

/* How many of a lane's elements, in units, are beyond E2M1's. */
static __device__ __noinline__ uint32_t mxfp4_saturated(const float *y)
{
    uint32_t saturated = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < VECTOR32; ++i) {
        saturated += fabsf(y[i]) > E2M1_MAX;
    }
    return saturated;
}

/* The same, for what a block's elements are multiplied with. */
CUDA_DEVICE uint32_t rotated_saturated(const float (&x)[VECTOR32], const float (&inverse)[4])
{
    float y[VECTOR32];
#pragma unroll
    for (uint32_t i = 0; i < VECTOR32; ++i) {
        y[i] = x[i] * inverse[i / 8u];
    }
    return mxfp4_saturated(y);
}

/** mxfp4 (NUM 3.4) for any rule but MSE: words of columns of V. q->exponent[0] is that of the lane's block b. All lanes
 *  of the warp call it; counts: saturated elements are to be counted. */
CUDA_DEVICE void rotated_mxfp4(const float (&x)[VECTOR32], const rotated_range &range, uint32_t b, uint32_t rule,
                               bool counts, codes32 *q)
{
    uint32_t peak = nbl_bits_of(nbl_mxfp4_peak(rule));
    uint32_t exponents[2] = {rotated_exponents(range.block[0], range.block[1], peak),
                             rotated_exponents(range.block[2], range.block[3], peak)};
#pragma unroll
    for (int distance = 1; distance <= 2; ++distance) { /* the exponent of the largest is the largest exponent */
        exponents[0] = __vmaxu2(exponents[0], __shfl_xor_sync(FULL_WARP, exponents[0], distance));
        exponents[1] = __vmaxu2(exponents[1], __shfl_xor_sync(FULL_WARP, exponents[1], distance));
    }
    uint32_t most = __vmaxu2(exponents[0], exponents[1]);
    most = __vmaxu2(most, ptx_prmt(most, 0, 0x1032u));
    uint32_t least = __viaddmax_s16x2(most, (65536u - NBL_BLOCK_E_SPREAD) * 0x00010001u, 0);
    float inverse[4];
#pragma unroll
    for (uint32_t i = 0; i < 2u; ++i) {
        exponents[i] = __vmaxu2(exponents[i], least);
        uint32_t units = (uint32_t)(127 - NBL_BLOCK_E_MIN) * 0x00800080u - 128u * exponents[i]; /* as bf16 */
        inverse[2u * i] = nbl_float_of(units << 16);
        inverse[2u * i + 1u] = nbl_float_of(units & 0xffff0000u);
    }
    q->exponent[0] = (int32_t)((b < 2u ? exponents[0] : exponents[1]) >> (16u * (b % 2u)) & 0xffffu) + NBL_BLOCK_E_MIN;
    q->saturated = 0;
    if (counts) {
        q->saturated = rotated_saturated(x, inverse);
    }
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        q->words[i] = mxfp4_word(&x[8u * i], inverse[i], 0);
    }
}

/** Words of K from the columns of an mxfp4 vector: number 4i + rotated_k_first. All lanes of the warp call it. */
CUDA_DEVICE void rotated_k_words(uint32_t b, codes32 *q)
{
    uint32_t kept = b % 2u != 0 ? 0xf0f0f0f0u : 0x0f0f0f0fu;
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        uint32_t other = __shfl_xor_sync(FULL_WARP, q->words[i], 1);
        q->words[i] = (q->words[i] & kept) | (__funnelshift_l(other, other, b % 2u != 0 ? 28u : 4u) & ~kept);
    }
}

/** Writes a lane's words of K in FORMAT. */
template <uint32_t FORMAT> CUDA_DEVICE void rotated_write_k(const token_place &at, uint32_t b, const codes32 &q)
{
    uint8_t *to = at.codes + (FORMAT == NBL_INT8 ? b : b % 2u * 2u + b / 2u) * at.stride;
#pragma unroll
    for (uint32_t i = 0; i < words32(FORMAT); ++i) {
        *(uint32_t *)(void *)(to + 4u * i * at.stride) = q.words[i];
    }
}

/** Writes a lane's columns of V in FORMAT by way of its token's row, all lanes of the warp; r: the token in its quad,
 *  which is_whole or not. */
template <uint32_t FORMAT>
CUDA_DEVICE void rotated_write_v(const token_place &at, uint8_t *row, uint32_t b, uint32_t r, bool is_whole,
                                 bool active, const codes32 &q)
{
    const uint32_t words = words32(FORMAT), row_bytes = stage_row_bytes(4u * VECTOR32);
    uint4 *own = (uint4 *)(void *)(row + 4u * words * b);
    __syncwarp();
    own[0] = make_uint4(q.words[0], q.words[1], q.words[2], q.words[3]);
    if (words == 8u) {
        own[1] = make_uint4(q.words[4], q.words[5], q.words[6], q.words[7]);
    }
    __syncwarp();
    if (active && is_whole) {
        uint8_t *quad = row - r * row_bytes;
#pragma unroll
        for (uint32_t i = 0; i < words; i += QUAD) {
            uint32_t c = words * b + i + r;
            uint4 m = make_uint4(*stage_word(quad, row_bytes, 0, c), *stage_word(quad, row_bytes, 1, c),
                                 *stage_word(quad, row_bytes, 2, c), *stage_word(quad, row_bytes, 3, c));
            ((uint4 *)(void *)(at.codes - r))[4u * (i + r) + b] = transpose4(m);
        }
    } else if (active) {
#pragma unroll 1
        for (uint32_t i = 0; i < words; ++i) {
            uint32_t word = *stage_word(row, 0, 0, words * b + i);
            for (uint32_t j = 0; j < 4u; ++j) {
                at.codes[(4u * (4u * i + b) + j) * at.stride] = (uint8_t)(word >> (8u * j));
            }
        }
    }
}

#endif
