/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file blockscale.cuh
 * @brief mma.sync with block scales, and fp8 products of full width: what the sm_120 family has and no other.
 *
 * PTX_BLOCK_SCALE tells whether the code at hand is for it.
 * Fragments of m16n8k64 over E2M1, g = lane / 4, t = lane % 4:
 * register r of A has row g + 8 * (r % 2) and k = 8t..8t+7 (+ 32 for r >= 2), of B column g and the same k (+ 32 for
 * r = 1), low nibble first. The four k groups of 16 have a scale each, or the two halves of 32, bytes of one word in
 * increasing k. Row m of A takes the word of lane 4 * (m % 8) + 2 * thread_a + m / 8, column n of B that of lane
 * 4 * n + thread_b.
 */
#ifndef CUDA_BLOCKSCALE_H
#define CUDA_BLOCKSCALE_H

#include "ptx.cuh"

#if defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && \
    (__CUDA_ARCH_FAMILY_SPECIFIC__ == 1200 || __CUDA_ARCH_FAMILY_SPECIFIC__ == 1210)
#define PTX_BLOCK_SCALE 1
#else
#define PTX_BLOCK_SCALE 0
#endif

/** d += a * b for an m16n8k16 tile of signed bytes. PTX ISA, Warp Level Matrix, mma */
PTX_FN void ptx_mma_m16n8k16_s8(int32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a0), "r"(a1), "r"(b));
}

#if PTX_BLOCK_SCALE

#define PTX_MMA_E2M1(name, kind, scales)                                                                              \
    PTX_FN void name(float(&d)[4], const uint32_t(&a)[4], const uint32_t(&b)[2], uint32_t scale_a, uint16_t thread_a, \
                     uint32_t scale_b, uint16_t thread_b)                                                             \
    {                                                                                                                 \
        asm("mma.sync.aligned.m16n8k64.row.col.kind::" kind ".f32.e2m1.e2m1.f32." scales " {%0,%1,%2,%3}, "           \
            "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}, %10, {%14,%11}, %12, {%14,%13};"                                  \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                          \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(scale_a), "h"(thread_a),          \
              "r"(scale_b), "h"(thread_b), "n"(0));                                                                   \
    }
/** d += a * b over E2M1, an E4M3 scale for each group of 16 (NUM 7.2). PTX ISA, Warp Level Matrix, block scaling */
PTX_MMA_E2M1(ptx_mma_mxf4nvf4, "mxf4nvf4.block_scale.scale_vec::4X", "ue4m3")
/** The same, an E8M0 scale for each 32, in bytes 0 and 1. PTX ISA, Warp Level Matrix, mma with block scaling */
PTX_MMA_E2M1(ptx_mma_mxf4, "mxf4.block_scale.scale_vec::2X", "ue8m0")
#undef PTX_MMA_E2M1

/** d += a * b for an m16n8k32 tile of E4M3 in one step of 32 products (NUM 7.3). PTX ISA, Warp Level Matrix, mma */
PTX_FN void ptx_mma_f8f6f4(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm("mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890

/** Two binary32 to E4M3, RNE, at most 448; low in bits 0..7. PTX ISA, Data Movement, cvt */
PTX_FN uint32_t ptx_cvt_e4m3x2(float high, float low)
{
    uint16_t d;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(d) : "f"(high), "f"(low));
    return d;
}

#endif

#endif
