/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file decode_values_half.cuh
 * @brief P V of the decode kernel for int4p and up to eight query rows: halves in place of bytes (NUM 5.4).
 *
 * O^T = V^T P^T by mma.m16n8k16 with binary32 sums: row g is element 2g, row g + 8 element 2g + 1 of a block of 16;
 * the four tokens of a lane come as 4t, 4t + 2, 4t + 1, 4t + 3. A code c enters as n = c + 8, which is a half, n *
 * 2^-24, as it lies in its word; P goes with the block's multiplier m. P * m has twelve bits, a half eleven: so there
 * are two products, with m * (P - 128) / 128 and with m, and
 *
 *     sum c m P  =  sum n m (P - 128)  +  sum n m 128  -  8 sum m P
 *
 * the last of which is the same for all elements of a block and comes at the end of the tile. All are integers below
 * 2^24 in units of 2^-31, those of the odd block, whose codes are 16 times as large and its multipliers a 16th, too: so
 * every sum is exact (docs/adr/0042-decode-values-as-halves.md).
 */
#ifndef CUDA_DECODE_VALUES_HALF_H
#define CUDA_DECODE_VALUES_HALF_H

#include "decode_memory.cuh"
#include "decode_scales.cuh"
#include "decode_values.cuh"

#define HALF_UNITS 0x1p31f /**< of the sums */

/** What a warp keeps; v_factor has no use. */
template <int D, int RPL> struct half_memory : warp_memory<D, RPL> {
    /** Multipliers of blocks 2i and 2i + 1: {m of tokens 0 and 2 of four, 1 and 3, the same of the odd block over 16};
     *  the gap is for the banks. */
    uint4 v_half[D / 32][CUDA_TILE_TOKENS / 4 + 4];
};

#define HALF2_1024 0x64006400u /**< with a number below 1024 in its low bits: 1024 more than that */

/** Multipliers of the lane's four tokens from the planes as stored; `h1024` is HALF2_1024 in a register, since an
 *  instruction has room for one constant. */
template <int D, int RPL>
PTX_FN void store_v_halves(half_memory<D, RPL> &m, const uint32_t (&planes)[D / 32], uint32_t h1024, uint32_t lane)
{
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
        const uint32_t low = planes[i], high = low >> 8;
        const uint32_t one = 0x3c003c00u, even = 0xe3fee3feu; /* 1; 1 - 1024 */
        const uint32_t part = 0x1c001c00u, odd = 0xc3e0c3e0u; /* 1/256; 1/16 - 4 */
        m.v_half[i][lane] = make_uint4(ptx_fma_f16x2((low & 0x000f000fu) | h1024, one, even),
                                       ptx_fma_f16x2((high & 0x000f000fu) | h1024, one, even),
                                       ptx_fma_f16x2((low & 0x00f000f0u) | h1024, part, odd),
                                       ptx_fma_f16x2((high & 0x00f000f0u) | h1024, part, odd));
    }
}

/** prepare_scales where V is int4p and P V takes halves. All is read before the first store, behind which the compiler
 *  would keep it. */
template <int D, int RPL, bool PAIRED = false>
PTX_FN void prepare_half_scales(half_memory<D, RPL> &m, uint32_t k_format, int32_t tokens, uint32_t h1024,
                                uint32_t lane)
{
    token_scales<D> k = {}, v = {};
    uint32_t planes[D / 32];
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
        planes[i] = reinterpret_cast<const uint32_t *>(m.raw[1][i])[lane];
    }
    read_scales<D>(m.raw[0], k_format, tokens, lane, k);
    read_scales<D>(m.raw[1] + D / 32, NBL_INT8, tokens, lane, v); /* the exponents alone */
    store_k_scales<D, RPL, PAIRED>(m, lane, k_format, k);
    store_v_halves<D, RPL>(m, planes, h1024, lane);
    store_v_scales<D, RPL>(m, lane, NBL_INT8, v);
    __syncwarp();
}

/** MAGIC whose lower half is that of 1024, as a half: with P added it is 1024 + P. */
#define HALF_MAGIC (NBL_MAGIC + 25600.0f)

/** P of a group as halves, 1024 + P: columns 2t and 2t + 1 of tokens 2g, 2g + 1, 2g + 16, 2g + 17. They take the
 *  place of logits, behind that of the next tile's scales. */
template <int D, int RPL>
PTX_FN void store_half_group(half_memory<D, RPL> &m, uint32_t group, uint32_t lane, const uint32_t *p)
{
    reinterpret_cast<uint4 *>(&m.x[RPL - 1][0][0])[32u * group + lane] = make_uint4(p[0], p[1], p[2], p[3]);
}

/** 1024 + P of the lane's column: tokens 4t and 4t + 2, 4t + 1 and 4t + 3, and 16 more. */
template <int D, int RPL>
PTX_FN void read_half_group(const half_memory<D, RPL> &m, uint32_t group, uint32_t lane, uint32_t (&p)[2][2])
{
    const uint4 four = reinterpret_cast<const uint4 *>(&m.x[RPL - 1][0][0])[32u * group + lane];
    p[0][0] = ptx_movmatrix_trans(four.x);
    p[0][1] = ptx_movmatrix_trans(four.y);
    p[1][0] = ptx_movmatrix_trans(four.z);
    p[1][1] = ptx_movmatrix_trans(four.w);
}

/** (P + a) / 128 from 1024 + P; ADD is a / 128 - 8 as a half, twice. */
template <uint32_t ADD> PTX_FN uint32_t half_weight(uint32_t p)
{
    return ptx_fma_f16x2(p, 0x20002000u, ADD);
}

/** Adds a group of V to the sums, and m P / 128 of its blocks to block_sums, of which a row is a block. */
template <int D, int RPL>
PTX_FN void v_group_half(const half_memory<D, RPL> &m, const uint8_t *codes, uint32_t group, uint32_t lane,
                         float (&acc)[D / 16][4], float (&block_sums)[4])
{
    static_assert(D == 128, "eight blocks are eight rows of a product");
    const uint32_t g = lane / 4u, t = lane % 4u;
    constexpr uint32_t all = 0xc800c800u, most = 0xc880c880u; /* P, P - 128 */
    const uint8_t *from = codes + t * (2u * D) + ((g / 2u * 16u + g % 2u * 8u) ^ (t % 2u * 32u));
    const uint8_t *by_parity[2] = {from + t / 2u * 64u, from + (t / 2u ^ 1u) * 64u}; /* as v_words */
    uint32_t p[2][2], w[2][2];
    read_half_group(m, group, lane, p);
#pragma unroll
    for (uint32_t half = 0; half < 2u; ++half) {
        const uint2 f = reinterpret_cast<const uint2 *>(&m.v_half[g / 2u][8u * group + 4u * half + t])[g % 2u];
        uint32_t any; /* of rows that are not used */
        asm("" : "=r"(any));
        const uint32_t a[4] = {f.x, any, f.y, any};
        ptx_mma_half(block_sums, a, half_weight<all>(p[half][0]), half_weight<all>(p[half][1]), true);
        w[half][0] = half_weight<most>(p[half][0]);
        w[half][1] = half_weight<most>(p[half][1]);
    }
#pragma unroll
    for (uint32_t i = 0; i < D / 32; ++i) {
#pragma unroll
        for (uint32_t half = 0; half < 2u; ++half) {
            const uint4 f = m.v_half[i][8u * group + 4u * half + t];
            const uint2 v = *reinterpret_cast<const uint2 *>(by_parity[i % 2u] + i / 2u * 128u + half * (8u * D));
            const uint32_t x = v.x >> 8, y = v.y >> 8;
            const uint32_t low[4] = {v.x & 0x000f000fu, v.y & 0x000f000fu, x & 0x000f000fu, y & 0x000f000fu};
            const uint32_t high[4] = {v.x & 0x00f000f0u, v.y & 0x00f000f0u, x & 0x00f000f0u, y & 0x00f000f0u};
            ptx_mma_half(acc[2 * i], low, ptx_mul_f16x2(f.x, w[half][0]), ptx_mul_f16x2(f.y, w[half][1]), true);
            ptx_mma_half(acc[2 * i + 1], high, ptx_mul_f16x2(f.z, w[half][0]), ptx_mul_f16x2(f.w, w[half][1]), true);
            ptx_mma_half(acc[2 * i], low, f.x, f.y, true);
            ptx_mma_half(acc[2 * i + 1], high, f.z, f.w, true);
        }
    }
}

/** Takes 8 sum m P off the sums of a tile: as products of -2^-12 and 8 sum m P 2^-19, which are multiples of 2^-16
 *  below 8 and so the sums of two halves. */
template <int D, int RPL>
PTX_FN void end_half_sums(half_memory<D, RPL> &m, uint32_t lane, const float (&block_sums)[4], float (&acc)[D / 16][4])
{
    uint32_t *exchange = reinterpret_cast<uint32_t *>(&m.packed[0][0]); /* [row][block] */
    const uint32_t g = lane / 4u, t = lane % 4u;
    const float unit = g % 2u == 0 ? 0x1p-9f : 0x1p-5f;
    const float x = block_sums[0] * unit, y = block_sums[1] * unit;
    const uint32_t high = ptx_f16x2(x, y);
    const uint32_t low = ptx_f16x2(x - ptx_half_low(high, true), y - ptx_half_high(high, true));
    exchange[16u * t + g] = ptx_prmt(high, low, 0x5410u);
    exchange[16u * t + 8u + g] = ptx_prmt(high, low, 0x7632u);
    __syncwarp();
    const uint32_t a = t == 0 ? 0x8c008c00u : 0u; /* k = 0 and 1 alone count */
#pragma unroll
    for (uint32_t i = 0; i < D / 64; ++i) {
        const uint4 four = reinterpret_cast<const uint4 *>(exchange + 8u * g)[i];
        const uint32_t b[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (uint32_t k = 0; k < 4u; ++k) {
            ptx_mma_f16_k8(acc[4u * i + k], a, a, b[k]);
        }
    }
}

#endif
