/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tcgen05.cuh
 * @brief Tensor memory and its instructions, which the sm_100 family has and no other: PTX_TCGEN05 tells whether the
 * code at hand is for it. PTX ISA, TensorCore 5th Generation Family Instructions.
 */
#ifndef CUDA_TCGEN05_H
#define CUDA_TCGEN05_H

#include "ptx.cuh"
#include "tcgen05_layout.h"

#if defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && \
    (__CUDA_ARCH_FAMILY_SPECIFIC__ == 1000 || __CUDA_ARCH_FAMILY_SPECIFIC__ == 1030)
#define PTX_TCGEN05 1
#else
#define PTX_TCGEN05 0
#endif

#if PTX_TCGEN05

/** Takes columns of tensor memory, a power of two from 32 to 512; their address comes to shared memory. One warp.
 *  tcgen05.alloc */
PTX_FN void ptx_tcgen05_alloc(uint32_t shared, uint32_t columns)
{
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;\n"
                 "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::"r"(shared),
                 "r"(columns)
                 : "memory");
}

/** Gives them back; the same warp. tcgen05.dealloc */
PTX_FN void ptx_tcgen05_dealloc(uint32_t tensor, uint32_t columns)
{
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(tensor), "r"(columns) : "memory");
}

/** An atom of scales to 4 columns of all lanes; one thread, in order with the MMAs that follow. tcgen05.cp */
PTX_FN void ptx_tcgen05_cp_scales(uint32_t tensor, uint64_t matrix)
{
    asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(tensor), "l"(matrix) : "memory");
}

#define PTX_TCGEN05_MMA_FP4(name, kind)                                                                            \
    PTX_FN void name(uint32_t d, uint64_t a, uint64_t b, uint32_t instruction, uint32_t scale_a, uint32_t scale_b, \
                     uint32_t accumulate)                                                                          \
    {                                                                                                              \
        asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %6, 0;\n"                                                 \
                     " tcgen05.mma.cta_group::1.kind::" kind " [%0], %1, %2, %3, [%4], [%5], p;\n}" ::"r"(d),      \
                     "l"(a), "l"(b), "r"(instruction), "r"(scale_a), "r"(scale_b), "r"(accumulate)                 \
                     : "memory");                                                                                  \
    }
/** D = A * B (+ D) over 64 elements of E2M1, E4M3 scales of 16; one thread. tcgen05.mma */
PTX_TCGEN05_MMA_FP4(ptx_tcgen05_mma_mxf4nvf4, "mxf4nvf4.block_scale.block16")
/** The same with E8M0 scales of 32. tcgen05.mma */
PTX_TCGEN05_MMA_FP4(ptx_tcgen05_mma_mxf4, "mxf4.block_scale.block32")
#undef PTX_TCGEN05_MMA_FP4

/** D = A * B (+ D) over 32 elements of 8 bits; one thread. tcgen05.mma */
PTX_FN void ptx_tcgen05_mma_f8f6f4(uint32_t d, uint64_t a, uint64_t b, uint32_t instruction, uint32_t accumulate)
{
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %4, 0;\n"
                 " tcgen05.mma.cta_group::1.kind::f8f6f4 [%0], %1, %2, %3, p;\n}" ::"r"(d),
                 "l"(a), "l"(b), "r"(instruction), "r"(accumulate)
                 : "memory");
}

/** Arrives at the barrier when the thread's MMAs so far are done. tcgen05.commit */
PTX_FN void ptx_tcgen05_commit(uint32_t barrier)
{
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier)
                 : "memory");
}

/** Before a barrier behind which another thread goes on with tensor memory. tcgen05.fence */
PTX_FN void ptx_tcgen05_fence_before(void)
{
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}

/** After such a barrier. tcgen05.fence */
PTX_FN void ptx_tcgen05_fence_after(void)
{
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

/** Eight columns of the thread's lane, when they have come. The address names the warp's first lane. tcgen05.ld */
PTX_FN void ptx_tcgen05_ld(uint32_t (&d)[8], uint32_t tensor)
{
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0,%1,%2,%3,%4,%5,%6,%7}, [%8];\n"
                 "tcgen05.wait::ld.sync.aligned;"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]), "=r"(d[4]), "=r"(d[5]), "=r"(d[6]), "=r"(d[7])
                 : "r"(tensor)
                 : "memory");
}

/** Eight columns of the thread's lane, until they are there. tcgen05.st */
PTX_FN void ptx_tcgen05_st(uint32_t tensor, const uint32_t (&d)[8])
{
    asm volatile("tcgen05.st.sync.aligned.32x32b.x8.b32 [%0], {%1,%2,%3,%4,%5,%6,%7,%8};\n"
                 "tcgen05.wait::st.sync.aligned;" ::"r"(tensor),
                 "r"(d[0]), "r"(d[1]), "r"(d[2]), "r"(d[3]), "r"(d[4]), "r"(d[5]), "r"(d[6]), "r"(d[7])
                 : "memory");
}

#endif

#endif
