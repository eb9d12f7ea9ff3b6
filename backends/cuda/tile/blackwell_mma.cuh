/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file blackwell_mma.cuh
 * @brief The two matrix products of the Blackwell core (NUM 7.2, 7.3): the tensor core's where it has them (the sm_120
 * family), else the same sums in integers by core/num/mma_model.h, on the same fragments (ptx/blockscale.cuh).
 */
#ifndef CUDA_BLACKWELL_MMA_H
#define CUDA_BLACKWELL_MMA_H

#include "../ptx/blockscale.cuh"
#include "decode4.cuh"
#include "mma_model.h"

#define MMA_LANES 0xffffffffu

/** Codes and scale words of an m16n8k64 product: a lane's share. thread_a and thread_b name the lanes whose scale words
 *  count. */
struct fp4_operands {
    uint32_t a[4];
    uint32_t b[2];
    uint32_t scale_a;
    uint32_t scale_b;
};

#if !PTX_BLOCK_SCALE

/** Sums of a group of 16 for the lane's four elements of D. The k of a group come to the lanes in another order than in
 *  the fragments of E2M1; A and B have the same one. */
CUDA_DEVICE void emulated_group(const fp4_operands &x, uint32_t group, nbl_mma_group (&out)[4])
{
    const uint32_t lane = threadIdx.x % 32u, t = lane % 4u;
    const int source = (int)(lane - t + group % 2u * 2u + t / 2u), shift = (int)(t % 2u * 4u);
    const uint32_t a0 = __shfl_sync(MMA_LANES, group < 2u ? x.a[0] : x.a[2], source) >> shift;
    const uint32_t a1 = __shfl_sync(MMA_LANES, group < 2u ? x.a[1] : x.a[3], source) >> shift;
    const uint32_t b = __shfl_sync(MMA_LANES, group < 2u ? x.b[0] : x.b[1], source) >> shift;
    const uint32_t a_low = decode4_e2m1(a0, 0), a_high = decode4_e2m1(a1, 0), column = decode4_e2m1(b, 0);
    int32_t sum[4] = {0, 0, 0, 0}, magnitude[4] = {0, 0, 0, 0};
    ptx_mma_m16n8k16_s8(sum, a_low, a_high, column);
    ptx_mma_m16n8k16_s8(magnitude, __vabs4(a_low), __vabs4(a_high), __vabs4(column));
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        out[i].quarters = sum[i];
        out[i].is_zero = magnitude[i] == 0;
    }
}

/** Scales of the four groups in a word: E4M3 each, or two of E8M0. */
CUDA_DEVICE void emulated_scales(uint32_t word, bool is_mxfp4, nbl_mma_scale (&out)[NBL_MMA_GROUPS])
{
#pragma unroll
    for (uint32_t g = 0; g < NBL_MMA_GROUPS; ++g) {
        uint8_t byte = (uint8_t)(word >> (8u * (is_mxfp4 ? g / 2u : g)));
        out[g] = is_mxfp4 ? nbl_mma_scale_ue8m0(byte) : nbl_mma_scale_ue4m3(byte);
    }
}

/** One element of D of an m16n8k64 product. */
static __device__ __noinline__ uint32_t emulated_fp4_element(const nbl_mma_group *groups, uint32_t scale_a,
                                                             uint32_t scale_b, bool is_mxfp4, uint32_t c)
{
    nbl_mma_scale row[NBL_MMA_GROUPS], column[NBL_MMA_GROUPS];
    emulated_scales(scale_a, is_mxfp4, row);
    emulated_scales(scale_b, is_mxfp4, column);
    return nbl_mma_step_of_groups(groups, row, column, c);
}

/** D of an m16n8k64 product; all lanes of the warp call it. */
static __device__ __noinline__ float4 emulated_fp4(float4 d, fp4_operands x, uint32_t thread_a, uint32_t thread_b,
                                                   bool is_mxfp4)
{
    const uint32_t lane = threadIdx.x % 32u, t = lane % 4u;
    nbl_mma_group sums[NBL_MMA_GROUPS][4];
    uint32_t out[4] = {nbl_bits_of(d.x), nbl_bits_of(d.y), nbl_bits_of(d.z), nbl_bits_of(d.w)};
#pragma unroll
    for (uint32_t g = 0; g < NBL_MMA_GROUPS; ++g) {
        emulated_group(x, g, sums[g]);
    }
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        const nbl_mma_group groups[NBL_MMA_GROUPS] = {sums[0][i], sums[1][i], sums[2][i], sums[3][i]};
        const uint32_t a = __shfl_sync(MMA_LANES, x.scale_a, (int)(lane - t + 2u * thread_a + i / 2u));
        const uint32_t b = __shfl_sync(MMA_LANES, x.scale_b, (int)(4u * (2u * t + i % 2u) + thread_b));
        out[i] = emulated_fp4_element(groups, a, b, is_mxfp4, out[i]);
    }
    return make_float4(nbl_float_of(out[0]), nbl_float_of(out[1]), nbl_float_of(out[2]), nbl_float_of(out[3]));
}

/** One element of D of an m16n8k32 product of E4M3. */
static __device__ __noinline__ float emulated_fp8_element(const uint32_t *row, const uint32_t *column, float c)
{
    return nbl_float_of(nbl_mma_step_e4m3(row, column, nbl_bits_of(c)));
}

/** D of an m16n8k32 product of E4M3; all lanes of the warp call it. */
static __device__ __noinline__ float4 emulated_fp8(float4 d, uint4 a, uint2 b)
{
    const uint32_t lane = threadIdx.x % 32u, t = lane % 4u;
    uint32_t row[2][8], column[2][8];
#pragma unroll
    for (uint32_t w = 0; w < 4u; ++w) {
        const int source = (int)(lane - t + w);
        row[0][w] = __shfl_sync(MMA_LANES, a.x, source);
        row[1][w] = __shfl_sync(MMA_LANES, a.y, source);
        row[0][w + 4u] = __shfl_sync(MMA_LANES, a.z, source);
        row[1][w + 4u] = __shfl_sync(MMA_LANES, a.w, source);
#pragma unroll
        for (uint32_t i = 0; i < 2u; ++i) {
            column[i][w] = __shfl_sync(MMA_LANES, b.x, (int)(4u * (2u * t + i) + w));
            column[i][w + 4u] = __shfl_sync(MMA_LANES, b.y, (int)(4u * (2u * t + i) + w));
        }
    }
    return make_float4(emulated_fp8_element(row[0], column[0], d.x), emulated_fp8_element(row[0], column[1], d.y),
                       emulated_fp8_element(row[1], column[0], d.z), emulated_fp8_element(row[1], column[1], d.w));
}

#endif

/** d += a * b, 16x8 scores over 64 elements (NUM 7.2): groups of 16 with E4M3 scales, or of 32 with E8M0 ones. */
CUDA_DEVICE void mma_fp4(float (&d)[4], const fp4_operands &x, uint32_t thread_a, uint32_t thread_b, bool is_mxfp4)
{
#if PTX_BLOCK_SCALE
    if (is_mxfp4) {
        ptx_mma_mxf4(d, x.a, x.b, x.scale_a, (uint16_t)thread_a, x.scale_b, (uint16_t)thread_b);
    } else {
        ptx_mma_mxf4nvf4(d, x.a, x.b, x.scale_a, (uint16_t)thread_a, x.scale_b, (uint16_t)thread_b);
    }
#else
    float4 out = emulated_fp4(make_float4(d[0], d[1], d[2], d[3]), x, thread_a, thread_b, is_mxfp4);
    d[0] = out.x;
    d[1] = out.y;
    d[2] = out.z;
    d[3] = out.w;
#endif
}

/** d += a * b, 16x8 elements of O over 32 tokens (NUM 7.3). */
CUDA_DEVICE void mma_fp8(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
#if PTX_BLOCK_SCALE
    ptx_mma_f8f6f4(d, a, b);
#else
    float4 out =
        emulated_fp8(make_float4(d[0], d[1], d[2], d[3]), make_uint4(a[0], a[1], a[2], a[3]), make_uint2(b[0], b[1]));
    d[0] = out.x;
    d[1] = out.y;
    d[2] = out.z;
    d[3] = out.w;
#endif
}

/** E4M3 codes of two weights, low in bits 0..7. */
CUDA_DEVICE uint32_t weight_codes(float low, float high)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    return ptx_cvt_e4m3x2(high, low);
#else
    return nbl_e4m3_encode(low) | (uint32_t)nbl_e4m3_encode(high) << 8;
#endif
}

#endif
