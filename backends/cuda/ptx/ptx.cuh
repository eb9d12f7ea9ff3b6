/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file ptx.cuh
 * @brief One PTX instruction per wrapper; the section of the PTX ISA that defines it is cited. Nothing else in this
 * folder's users is inline assembly.
 */
#ifndef CUDA_PTX_H
#define CUDA_PTX_H

#include <stdint.h>

#define PTX_FN static __device__ __forceinline__

/* ------------------------------------------------------------------------------------------------ integer dot
 * products */

/** c + sum of four products u8 * s8. PTX ISA, Integer Arithmetic, dp4a */
PTX_FN int32_t ptx_dp4a_us(uint32_t a_unsigned, int32_t b_signed, int32_t c)
{
    int32_t d;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a_unsigned), "r"(b_signed), "r"(c));
    return d;
}

/** c + sum of four products s8 * s8. PTX ISA, Integer Arithmetic, dp4a */
PTX_FN int32_t ptx_dp4a_ss(int32_t a, int32_t b, int32_t c)
{
    int32_t d;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/** x >> 16, by the multiplier and not by the shifter, of which there are too few where this is used.
 *  PTX ISA, Integer Arithmetic, dp2a */
PTX_FN uint32_t ptx_dp2a_high_half(uint32_t x)
{
    uint32_t d;
    asm("dp2a.lo.u32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(x), "r"(0x0100u), "r"(0u));
    return d;
}

/** ~x in the low half, likewise. `ones` is 0xffffffff in a register. PTX ISA, Integer Arithmetic, dp2a */
PTX_FN uint32_t ptx_dp2a_not_low(uint32_t x, uint32_t ones)
{
    uint32_t d;
    asm("dp2a.lo.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(x), "r"(0x00ffu), "r"(ones));
    return d;
}

/** ~(x >> 16) in the low half. PTX ISA, Integer Arithmetic, dp2a */
PTX_FN uint32_t ptx_dp2a_not_high(uint32_t x, uint32_t ones)
{
    uint32_t d;
    asm("dp2a.lo.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(x), "r"(0xff00u), "r"(ones));
    return d;
}

/** Byte n of x, by the multiplier too. PTX ISA, Integer Arithmetic, dp4a */
PTX_FN uint32_t ptx_dp4a_byte(uint32_t x, uint32_t n)
{
    uint32_t d;
    asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(x), "r"(1u << 8u * n), "r"(0u));
    return d;
}

/** Bits of a where mask is set, of b elsewhere: one instruction, of which the compiler makes two for a constant mask.
 *  PTX ISA, Logic and Shift, lop3 */
PTX_FN uint32_t ptx_select_bits(uint32_t mask, uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(d) : "r"(mask), "r"(a), "r"(b));
    return d;
}

/** Four bytes of {b, a} picked by the selector's nibbles; a nibble's top bit replicates the byte's sign instead, which
 *  __byte_perm cannot do. PTX ISA, Data Movement, prmt */
PTX_FN uint32_t ptx_prmt(uint32_t a, uint32_t b, uint32_t selector)
{
    uint32_t d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
    return d;
}

/* ------------------------------------------------------------------------------------------------ matrix products */

/* d = a * b + d for A 16x32 (row), B 32x8 (col), bytes, D 16x8 s32. PTX ISA, Warp Level Matrix, mma.m16n8k32 */
#define PTX_MMA_M16N8K32(name, types)                                              \
    PTX_FN void name(int32_t(&d)[4], const uint32_t(&a)[4], const uint32_t(&b)[2]) \
    {                                                                              \
        asm("mma.sync.aligned.m16n8k32.row.col.s32." types                         \
            ".s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"           \
            : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                       \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));   \
    }
PTX_MMA_M16N8K32(ptx_mma_m16n8k32_ss, "s8.s8")
PTX_MMA_M16N8K32(ptx_mma_m16n8k32_us, "u8.s8")
PTX_MMA_M16N8K32(ptx_mma_m16n8k32_su, "s8.u8")
PTX_MMA_M16N8K32(ptx_mma_m16n8k32_uu, "u8.u8")
#undef PTX_MMA_M16N8K32

/** The same of u8 and s8, but d = a * b + c. */
PTX_FN void ptx_mma_m16n8k32_us_from(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                     const int32_t (&c)[4])
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

/** Transposes an 8x8 matrix of b16 spread over a warp. PTX ISA, Warp Level Matrix, movmatrix */
PTX_FN uint32_t ptx_movmatrix_trans(uint32_t a)
{
    uint32_t d;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
    return d;
}

/** Shared-memory address of a generic pointer into shared memory. */
PTX_FN uint32_t ptx_shared_address(const void *pointer)
{
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

/** Two binary32 numbers from shared memory into any two registers side by side. PTX ISA, Data Movement, ld */
PTX_FN void ptx_load_shared_pair(uint32_t address, float &first, float &second)
{
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(first), "=f"(second) : "r"(address) : "memory");
}

/** Loads four 8x8 matrices of b16; lane i names row i%8 of matrix i/8. PTX ISA, Warp Level Matrix, ldmatrix */
PTX_FN void ptx_ldmatrix_x4(uint32_t (&d)[4], uint32_t shared_row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(shared_row)
                 : "memory");
}

/** The same with each matrix transposed. PTX ISA, Warp Level Matrix, ldmatrix */
PTX_FN void ptx_ldmatrix_x4_trans(uint32_t (&d)[4], uint32_t shared_row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(shared_row)
                 : "memory");
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
/** Two binary32 rounded to u8 (nearest even, saturating): low, high one byte up, two bytes of c above; one instruction.
 *  PTX ISA, cvt, cvt.pack */
PTX_FN uint32_t ptx_cvt_u8x2(float high, float low, uint32_t c)
{
    uint32_t d;
    asm("{\n .reg .s32 h, l;\n cvt.rni.s32.f32 h, %1;\n cvt.rni.s32.f32 l, %2;\n"
        " cvt.pack.sat.u8.s32.b32 %0, h, l, %3;\n}"
        : "=r"(d)
        : "f"(high), "f"(low), "r"(c));
    return d;
}
#endif

/* ------------------------------------------------------------------------------------------------ halves */

/** d += a * b for an m16n8k16 tile of bf16, or of fp16, binary32 accumulators (NUM 6.2).
 * PTX ISA, Warp Level Matrix, mma */
PTX_FN void ptx_mma_half(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, bool is_fp16)
{
    if (is_fp16) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

/** The same for an m16n8k8 tile of fp16. */
PTX_FN void ptx_mma_f16_k8(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(b));
}

/** The smaller magnitudes of two pairs of bf16; signs are of no use. PTX ISA, Half Precision Floating Point, min */
PTX_FN uint32_t ptx_min_abs_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t d;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 860
    asm("min.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a & 0x7fff7fffu), "r"(b & 0x7fff7fffu));
#else
    asm("min.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
#endif
    return d;
}

/** threadIdx.x, read again at every call: what is seldom needed is not kept in registers. PTX ISA, Special Registers,
 *  tid */
PTX_FN uint32_t ptx_thread(void)
{
    uint32_t d;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(d));
    return d;
}

/** x, with a zero in it that neither compiler nor assembler sees through: a constant that stays in a register, where an
 *  instruction has no room for it. */
PTX_FN uint32_t ptx_constant(uint32_t x)
{
    return ptx_thread() >> 16 ^ x;
}

/** x, from the lane itself: the assembler, too, keeps it in a register instead of computing it again. All lanes of the
 *  warp call it. PTX ISA, Data Movement, shfl.sync */
PTX_FN uint32_t ptx_settle(uint32_t x)
{
    uint32_t d;
    asm volatile("shfl.sync.bfly.b32 %0, %1, 0, 0x1f, 0xffffffff;" : "=r"(d) : "r"(x));
    return d;
}

/** x, in a form whose origin the compiler forgets: it stays in a register instead of being computed again. */
PTX_FN uint32_t ptx_keep(uint32_t x)
{
    asm volatile("" : "+r"(x));
    return x;
}
PTX_FN uint64_t ptx_keep(uint64_t x)
{
    asm volatile("" : "+l"(x));
    return x;
}
PTX_FN float ptx_keep(float x)
{
    asm volatile("" : "+f"(x));
    return x;
}

/** Products of two pairs of fp16, RNE, subnormals kept. PTX ISA, Half Precision Floating Point, mul */
PTX_FN uint32_t ptx_mul_f16x2(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

/** a * b + c of two pairs of fp16, rounded once, RNE. PTX ISA, Half Precision Floating Point, fma */
PTX_FN uint32_t ptx_fma_f16x2(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/** Two numbers rounded to bf16, RNE; low in the low half. PTX ISA, Data Movement and Conversion, cvt */
PTX_FN uint32_t ptx_bf16x2(float low, float high)
{
    uint32_t d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

/** Two numbers rounded to fp16, likewise. PTX ISA, Data Movement and Conversion, cvt */
PTX_FN uint32_t ptx_f16x2(float low, float high)
{
    uint32_t d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

/** The low half of a word, bf16 or fp16, as a number; exact. PTX ISA, Data Movement and Conversion, cvt */
PTX_FN float ptx_half_low(uint32_t word, bool is_fp16)
{
    float d;
    if (!is_fp16) {
        return __uint_as_float(word << 16);
    }
    asm("{\n .reg .b16 low, high;\n mov.b32 {low, high}, %1;\n cvt.f32.f16 %0, low;\n}" : "=f"(d) : "r"(word));
    return d;
}

/** The high half. PTX ISA, Data Movement and Conversion, cvt */
PTX_FN float ptx_half_high(uint32_t word, bool is_fp16)
{
    float d;
    if (!is_fp16) {
        return __uint_as_float(word & 0xffff0000u);
    }
    asm("{\n .reg .b16 low, high;\n mov.b32 {low, high}, %1;\n cvt.f32.f16 %0, high;\n}" : "=f"(d) : "r"(word));
    return d;
}

/** The larger number, NaN if one is. PTX ISA, Floating Point, max */
PTX_FN float ptx_max_nan(float a, float b)
{
    float d;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
    return d;
}

/* ------------------------------------------------------------------------------------------------ exponential */

/** 2^x, relative error below 2^-22; subnormal results are 0. PTX ISA, Floating Point, ex2 */
PTX_FN float ptx_ex2(float x)
{
    float d;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(x));
    return d;
}

/* ------------------------------------------------------------------------------------------------ conversions */

/** Two binary32 to bf16, RNE; low in bits 0..15. PTX ISA, Data Movement, cvt */
PTX_FN uint32_t ptx_cvt_bf16x2(float high, float low)
{
    uint32_t d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

/** The same to fp16, overflow to infinity. PTX ISA, Data Movement, cvt */
PTX_FN uint32_t ptx_cvt_f16x2(float high, float low)
{
    uint32_t d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

/* ------------------------------------------------------------------------------------------------ other blocks */

/** Adds to a word that other blocks read; what this thread has written or seen comes before it. PTX ISA, Parallel
 *  Synchronization, red */
PTX_FN void ptx_add_release(uint32_t *global, uint32_t x)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(global), "r"(x) : "memory");
}

/** Reads such a word; what this thread reads afterwards is as new as that. PTX ISA, Data Movement, ld */
PTX_FN uint32_t ptx_load_acquire(const uint32_t *global)
{
    uint32_t x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(global) : "memory");
    return x;
}

/** Leaves issue slots to others for about that long. PTX ISA, Miscellaneous, nanosleep */
PTX_FN void ptx_sleep(uint32_t nanoseconds)
{
    asm volatile("nanosleep.u32 %0;" ::"r"(nanoseconds));
}

/* ------------------------------------------------------------------------------------------------ cache policies */

/** Cache policy for data that is read once. PTX ISA, Data Movement, createpolicy */
PTX_FN uint64_t ptx_policy_evict_first(void)
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/** Cache policy for data that is read again soon. PTX ISA, Data Movement, createpolicy */
PTX_FN uint64_t ptx_policy_evict_last(void)
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/** Writes 8 bytes with a cache policy for the second-level cache. PTX ISA, Data Movement, st */
PTX_FN void ptx_store_8(float *global, float2 x, uint64_t policy)
{
    asm volatile("st.global.L2::cache_hint.v2.f32 [%0], {%1, %2}, %3;" ::"l"(global), "f"(x.x), "f"(x.y), "l"(policy)
                 : "memory");
}

/** The same with 16 bytes. PTX ISA, Data Movement, st */
PTX_FN void ptx_store_16(float *global, float4 x, uint64_t policy)
{
    asm volatile("st.global.L2::cache_hint.v4.f32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(global), "f"(x.x), "f"(x.y),
                 "f"(x.z), "f"(x.w), "l"(policy)
                 : "memory");
}

/* ------------------------------------------------------------------------------------------------ asynchronous
 * copies */

/** Copies 16 bytes from global to shared memory, past L1. PTX ISA, Data Movement, cp.async */
PTX_FN void ptx_cp_async_16(uint32_t shared, const void *global)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

/** The same with a cache policy for the second-level cache. The shared address must be computed by something else than
 *  an addition of what all lanes have in common: the assembler (ptxas 13.0) would leave that addition to the
 *  instruction, which then names wrong registers for it and for the policy (tests/check/machine_code.py looks for it).
 *  PTX ISA, Data Movement, cp.async */
PTX_FN void ptx_cp_async_16(uint32_t shared, const void *global, uint64_t policy)
{
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "l"(policy)
                 : "memory");
}

/** The same, but only the first `bytes` (0..16) are read; the rest becomes 0. PTX ISA, Data Movement, cp.async */
PTX_FN void ptx_cp_async_16_zfill(uint32_t shared, const void *global, uint32_t bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}

/** Closes a group of cp.async. PTX ISA, Data Movement, cp.async.commit_group */
PTX_FN void ptx_cp_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/** Waits until at most N groups are open. PTX ISA, Data Movement, cp.async.wait_group */
template <int N> PTX_FN void ptx_cp_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/** Bulk copy global to shared memory; bytes and both addresses are multiples of 16; completes on the barrier.
 *  PTX ISA, Data Movement, cp.async.bulk */
PTX_FN void ptx_bulk_copy(uint32_t shared, const void *global, uint32_t bytes, uint32_t barrier, uint64_t policy)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(shared),
        "l"(global), "r"(bytes), "r"(barrier), "l"(policy)
        : "memory");
}

/** Writes bytes of shared memory, a multiple of 16, to global memory; ordinary writes before it must be fenced
 *  (ptx_fence_proxy_async). PTX ISA, Data Movement, cp.async.bulk */
PTX_FN void ptx_bulk_store(void *global, uint32_t shared, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/** Waits until the thread's ptx_bulk_stores have read shared memory. PTX ISA, Data Movement,
 *  cp.async.bulk.wait_group */
PTX_FN void ptx_bulk_store_wait(void)
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/** PTX ISA, Parallel Synchronization, mbarrier.init */
PTX_FN void ptx_mbarrier_init(uint32_t barrier, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

/** Makes initialised barriers visible to the copy engine. PTX ISA, Parallel Synchronization, fence.mbarrier_init */
PTX_FN void ptx_fence_mbarrier_init(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/** Orders ordinary accesses of shared memory before those of the copy engine and wgmma. PTX ISA, Parallel
 *  Synchronization, fence.proxy */
PTX_FN void ptx_fence_proxy_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/** Arrives and announces bytes to come. PTX ISA, Parallel Synchronization, mbarrier.arrive */
PTX_FN void ptx_mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/** PTX ISA, Parallel Synchronization, mbarrier.arrive */
PTX_FN void ptx_mbarrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/** 1 if the phase of that parity is over; may wait a while. PTX ISA, Parallel Synchronization, mbarrier.try_wait */
PTX_FN uint32_t ptx_mbarrier_try_wait(uint32_t barrier, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done;
}

/** Waits for the end of the phase of that parity. */
PTX_FN void ptx_mbarrier_wait(uint32_t barrier, uint32_t parity)
{
    while (ptx_mbarrier_try_wait(barrier, parity) == 0) {
    }
}

/** The same for a thread that is in no hurry: it sleeps between tries and leaves issue slots to others. */
PTX_FN void ptx_mbarrier_wait_idle(uint32_t barrier, uint32_t parity, uint32_t nanoseconds)
{
    while (ptx_mbarrier_try_wait(barrier, parity) == 0) {
        ptx_sleep(nanoseconds);
    }
}

#endif

/* ------------------------------------------------------------------------------------------------ clusters */

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/** Place of the block in its cluster. PTX ISA, Special Registers, cluster_ctarank */
PTX_FN uint32_t ptx_cluster_rank(void)
{
    uint32_t d;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(d));
    return d;
}

/** Arrives at the cluster's barrier, without saying anything about memory. PTX ISA, Parallel Synchronization,
 *  barrier.cluster */
PTX_FN void ptx_cluster_arrive(void)
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

/** Waits until all threads of the cluster have arrived. PTX ISA, Parallel Synchronization, barrier.cluster */
PTX_FN void ptx_cluster_wait(void)
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/** The same shared address in the block of that rank. PTX ISA, Data Movement, mapa */
PTX_FN uint32_t ptx_cluster_map(uint32_t shared, uint32_t rank)
{
    uint32_t d;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(d) : "r"(shared), "r"(rank));
    return d;
}

/** 16 bytes of shared memory of the cluster. PTX ISA, Data Movement, ld */
PTX_FN uint4 ptx_cluster_load_16(uint32_t address)
{
    uint4 d;
    asm volatile("ld.shared::cluster.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w)
                 : "r"(address)
                 : "memory");
    return d;
}

/** 4 bytes. PTX ISA, Data Movement, ld */
PTX_FN uint32_t ptx_cluster_load_4(uint32_t address)
{
    uint32_t d;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(d) : "r"(address) : "memory");
    return d;
}

/** Sends 4 bytes to shared memory of the cluster; they are there when a barrier of the same block has counted them.
 *  PTX ISA, Data Movement, st.async */
PTX_FN void ptx_cluster_send_4(uint32_t address, uint32_t x, uint32_t barrier)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(address),
                 "r"(x), "r"(barrier)
                 : "memory");
}

/** 16 bytes. PTX ISA, Data Movement, st.async */
PTX_FN void ptx_cluster_send_16(uint32_t address, const uint4 &x, uint32_t barrier)
{
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
            address),
        "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(barrier)
        : "memory");
}

/** Arrives at a barrier of a block of the cluster; what was written before is seen by those who wait for it. PTX ISA,
 *  Parallel Synchronization, mbarrier.arrive */
PTX_FN void ptx_cluster_mbarrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/** Waits for the end of the phase of that parity, and sees what the cluster's blocks have sent or written before. PTX
 *  ISA, Parallel Synchronization, mbarrier.try_wait */
PTX_FN void ptx_cluster_mbarrier_wait(uint32_t barrier, uint32_t parity)
{
    uint32_t done = 0;
    while (done == 0) {
        asm volatile("{\n .reg .pred p;\n mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                     " selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    }
}

#endif

/** Waits for the kernels this one depends on and sees their writes. Nothing before sm_90. PTX ISA, Parallel
 *  Synchronization, griddepcontrol */
PTX_FN void ptx_grid_wait(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/** Lets the next kernel start. Nothing before sm_90. PTX ISA, Parallel Synchronization, griddepcontrol */
PTX_FN void ptx_grid_release(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#endif
