/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file wgmma.cuh
 * @brief Matrix products of a warpgroup and what surrounds them; sm_90a alone has them.
 *
 * Sizes: 64 rows; 128 or 64 columns; 32 bytes of depth (16 halves). An accumulator is N / 2 registers: register i of a
 * thread is row 16*warp + lane/4 + 8*((i/2) % 2), column 8*(i/4) + 2*(lane % 4) + i%2.
 */
#ifndef CUDA_WGMMA_H
#define CUDA_WGMMA_H

#include "ptx.cuh"

/** Swizzle of a tile in shared memory as a descriptor names it. PTX ISA, Asynchronous warpgroup level matrix shared
 *  memory layout */
enum wgmma_swizzle { WGMMA_SWIZZLE_128 = 1, WGMMA_SWIZZLE_64 = 2 };

/** Lower half of the descriptor of a tile in shared memory whose rows lie in the depth's direction, one after the
 *  other; 16 bytes further on it is 1 more. PTX ISA, Asynchronous warpgroup level matrix instructions, matrix
 *  descriptor */
PTX_FN uint32_t wgmma_tile_low(uint32_t shared)
{
    return (shared & 0x3ffffu) >> 4 | 1u << 16;
}

/** The upper half, for rows of 128 or 64 bytes. PTX ISA, as above */
template <int ROW_BYTES> PTX_FN uint32_t wgmma_tile_high(void)
{
    constexpr uint32_t swizzle = ROW_BYTES == 128 ? WGMMA_SWIZZLE_128 : WGMMA_SWIZZLE_64;
    return swizzle << 30 | (uint32_t)(8 * ROW_BYTES) >> 4;
}

/** The whole descriptor, its halves in registers. PTX ISA, as above; Data Movement, mov */
PTX_FN uint64_t wgmma_tile(uint32_t low, uint32_t high)
{
    uint64_t tile;
    asm("mov.b64 %0, {%1, %2};" : "=l"(tile) : "r"(low), "r"(high));
    return tile;
}

/** The descriptor of what lies 32 bytes further on in the depth's direction; the upper half may stay in its register.
 *  PTX ISA, as above */
PTX_FN uint64_t wgmma_tile_next(uint64_t tile)
{
    asm("{\n .reg .b32 low, high;\n mov.b64 {low, high}, %0;\n add.u32 low, low, 2;\n mov.b64 %0, {low, high};\n}"
        : "+l"(tile));
    return tile;
}

/** Descriptor of a tile of 8 x 16-byte matrices, 128 bytes each, without swizzle: distances in bytes between neighbours
 *  in the depth's direction and in that of rows or columns. PTX ISA, as above */
PTX_FN uint64_t wgmma_matrices(uint32_t shared, uint32_t depth_bytes, uint32_t breadth_bytes)
{
    return (uint64_t)(breadth_bytes >> 4) << 32 | (uint64_t)(depth_bytes >> 4) << 16 |
           (uint64_t)((shared & 0x3ffffu) >> 4);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/** Orders the registers of wgmma operands. PTX ISA, wgmma.fence */
PTX_FN void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/** Closes a group. PTX ISA, wgmma.commit_group */
PTX_FN void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/** Waits until at most N groups are open. PTX ISA, wgmma.wait_group */
template <int N> PTX_FN void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* clang-format off */
#define WGMMA_S16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define WGMMA_S32 WGMMA_S16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define WGMMA_S64 WGMMA_S32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
                            "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WGMMA_R4(d, i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define WGMMA_R16(d, i) WGMMA_R4(d, i), WGMMA_R4(d, i + 4), WGMMA_R4(d, i + 8), WGMMA_R4(d, i + 12)
#define WGMMA_R32(d) WGMMA_R16(d, 0), WGMMA_R16(d, 16)
#define WGMMA_R64(d) WGMMA_R32(d), WGMMA_R16(d, 32), WGMMA_R16(d, 48)
/* clang-format on */

/** d = a * b, or d + a * b; s8, A and B in shared memory. PTX ISA, wgmma.mma_async */
template <int ACCUMULATE> PTX_FN void wgmma_ss(int32_t (&d)[64], uint64_t a, uint64_t b)
{
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %66, 0;\n"
                 " wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {" WGMMA_S64 "}, %64, %65, p;\n}"
                 : WGMMA_R64(d)
                 : "l"(a), "l"(b), "n"(ACCUMULATE));
}

/** d = a * b, or d + a * b; A is u8 in registers, B s8 in shared memory, 128 columns. PTX ISA, wgmma.mma_async */
PTX_FN void wgmma_us(int32_t (&d)[64], const uint32_t *a, uint64_t b, int accumulate)
{
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %69, 0;\n"
                 " wgmma.mma_async.sync.aligned.m64n128k32.s32.u8.s8 {" WGMMA_S64 "}, {%64,%65,%66,%67}, %68, p;\n}"
                 : WGMMA_R64(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

/** The same with 64 columns. PTX ISA, wgmma.mma_async */
PTX_FN void wgmma_us(int32_t (&d)[32], const uint32_t *a, uint64_t b, int accumulate)
{
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %37, 0;\n"
                 " wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.s8 {" WGMMA_S32 "}, {%32,%33,%34,%35}, %36, p;\n}"
                 : WGMMA_R32(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

#define WGMMA_F4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_F16(d, i) WGMMA_F4(d, i), WGMMA_F4(d, i + 4), WGMMA_F4(d, i + 8), WGMMA_F4(d, i + 12)
#define WGMMA_F32(d) WGMMA_F16(d, 0), WGMMA_F16(d, 16)
#define WGMMA_F64(d) WGMMA_F32(d), WGMMA_F16(d, 32), WGMMA_F16(d, 48)

/* Q K^T: d = a * b, or d + a * b, 32 columns; A in registers, B in shared memory, rows in the depth's direction;
 * binary32 accumulators (NUM 6.2). PTX ISA, wgmma.mma_async */
#define WGMMA_HALVES_RS_32(type)                                                             \
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %21, 0;\n"                              \
                 " wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type " {" WGMMA_S16 \
                 "}, {%16,%17,%18,%19}, %20, p, 1, 1, 0;\n}"                                 \
                 : WGMMA_F16(d, 0)                                                           \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int32_t)accumulates))

/** Of bf16, or of fp16. */
template <bool FP16> PTX_FN void wgmma_half_rs_32(float *d, const uint32_t *a, uint64_t b, bool accumulates)
{
    if constexpr (FP16) {
        WGMMA_HALVES_RS_32("f16");
    } else {
        WGMMA_HALVES_RS_32("bf16");
    }
}

/* P V: d += a * b; A in registers, B in shared memory with its columns side by side. PTX ISA, wgmma.mma_async */
#define WGMMA_HALVES_RS_128(type)                                                            \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" WGMMA_S64 \
                 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"                                    \
                 : WGMMA_F64(d)                                                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define WGMMA_HALVES_RS_64(type)                                                            \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" WGMMA_S32 \
                 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"                                   \
                 : WGMMA_F32(d)                                                             \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

/** 128 columns, bf16 or fp16. */
template <bool FP16> PTX_FN void wgmma_half_rs(float (&d)[64], const uint32_t *a, uint64_t b)
{
    if constexpr (FP16) {
        WGMMA_HALVES_RS_128("f16");
    } else {
        WGMMA_HALVES_RS_128("bf16");
    }
}

/** 64 columns. */
template <bool FP16> PTX_FN void wgmma_half_rs(float (&d)[32], const uint32_t *a, uint64_t b)
{
    if constexpr (FP16) {
        WGMMA_HALVES_RS_64("f16");
    } else {
        WGMMA_HALVES_RS_64("bf16");
    }
}

/** Registers of products that are over: the compiler may not read them before this place, nor keep others in them. */
template <int N> PTX_FN void wgmma_settle(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; ++i) {
        asm volatile("" : "+f"(d[i])::"memory");
    }
}

/** Takes registers for the rest of the kernel. PTX ISA, setmaxnreg */
template <int REGISTERS> PTX_FN void wgmma_registers_more(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/** Gives registers back. PTX ISA, setmaxnreg */
template <int REGISTERS> PTX_FN void wgmma_registers_fewer(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/** Barrier of some of the block's threads. PTX ISA, bar.sync */
PTX_FN void wgmma_bar_sync(uint32_t barrier, uint32_t threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/** Arrives without waiting. PTX ISA, bar.arrive */
PTX_FN void wgmma_bar_arrive(uint32_t barrier, uint32_t threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

#endif

#endif
