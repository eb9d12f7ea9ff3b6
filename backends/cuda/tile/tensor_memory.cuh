/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tensor_memory.cuh
 * @brief The matrix products of the Blackwell core (NUM 7.2, 7.3) in tensor memory, for blocks of 128 threads: those of
 * the sm_100 family, or an emulation that takes the same descriptors and keeps the cells in shared memory.
 *
 * All threads call every function. Lane = row of D = thread. Operands lie in shared memory as in
 * ptx/tcgen05_layout.h.
 */
#ifndef CUDA_TENSOR_MEMORY_H
#define CUDA_TENSOR_MEMORY_H

#include "../ptx/tcgen05.cuh"
#include "blackwell_mma.cuh"

#define TENSOR_SLICE 8u /* columns that a thread moves at a time */

/** Tensor memory of a block. */
struct tensor_memory {
    uint32_t columns; /**< that are taken */
    uint32_t base;    /**< address of column 0, lane 0 */
    uint32_t barrier; /**< shared address of the barrier that MMAs arrive at */
    uint32_t phase;
    uint32_t *cells; /**< emulated: [column][lane] */
};

/** Shared memory that columns take where they are emulated. */
static __host__ __device__ constexpr size_t tensor_emulated_bytes(uint32_t columns)
{
    return (size_t)columns * TCGEN05_LANES * 4u;
}

/** Takes columns. `words` are 4 words of shared memory; cells NULL except where emulated. */
CUDA_DEVICE void tensor_take(tensor_memory *tm, uint32_t columns, uint32_t *words, uint32_t *cells)
{
    tm->columns = columns;
    tm->cells = cells;
    tm->phase = 0;
    tm->barrier = ptx_shared_address(words);
    tm->base = 0;
#if PTX_TCGEN05
    if (threadIdx.x < 32u) {
        ptx_tcgen05_alloc(ptx_shared_address(words + 2), columns);
    }
    if (threadIdx.x == 0) {
        ptx_mbarrier_init(tm->barrier, 1);
        ptx_fence_mbarrier_init();
    }
    ptx_tcgen05_fence_before();
    __syncthreads();
    ptx_tcgen05_fence_after();
    tm->base = *(volatile uint32_t *)(words + 2);
#endif
}

CUDA_DEVICE void tensor_give_back(const tensor_memory &tm)
{
#if PTX_TCGEN05
    ptx_tcgen05_fence_before();
    __syncthreads();
    ptx_tcgen05_fence_after();
    if (threadIdx.x < 32u) {
        ptx_tcgen05_dealloc(tm.base, tm.columns);
    }
#endif
}

/** Between what all threads have written, to shared or tensor memory, and the MMAs that read it. */
CUDA_DEVICE void tensor_operands_ready(void)
{
#if PTX_TCGEN05
    ptx_fence_proxy_async();
    ptx_tcgen05_fence_before();
    __syncthreads();
    ptx_tcgen05_fence_after();
#else
    __syncthreads();
#endif
}

/** Waits for all MMAs so far. */
CUDA_DEVICE void tensor_products_ready(tensor_memory *tm)
{
#if PTX_TCGEN05
    if (threadIdx.x == 0) {
        ptx_tcgen05_commit(tm->barrier);
    }
    ptx_mbarrier_wait(tm->barrier, tm->phase);
    ptx_tcgen05_fence_after();
#else
    __syncthreads();
#endif
    tm->phase ^= 1u;
}

/** An atom of scales from shared memory to TCGEN05_ATOM_COLUMNS columns. */
CUDA_DEVICE void tensor_copy_scales(const tensor_memory &tm, uint32_t column, const uint8_t *atom)
{
#if PTX_TCGEN05
    if (threadIdx.x == 0) { /* a matrix of 32 rows of 16 bytes: one core matrix after the other */
        ptx_tcgen05_cp_scales(tm.base + column, tcgen05_matrix(ptx_shared_address(atom), 0, TCGEN05_CORE_BYTES));
    }
#else
    for (uint32_t i = 0; i < TCGEN05_ATOM_COLUMNS; ++i) {
        tm.cells[(column + i) * TCGEN05_LANES + threadIdx.x] =
            *(const uint32_t *)(const void *)(atom + tcgen05_atom_byte(threadIdx.x % 32u + 32u * i, 0));
    }
    __syncthreads();
#endif
}

#if !PTX_TCGEN05

/** The 8 words of a row of an operand in one MMA, as its descriptor says. */
CUDA_DEVICE void emulated_row(uint64_t matrix, uint32_t row, uint32_t (&out)[8])
{
    const uint32_t shared = (uint32_t)(matrix & 0x3fffu) << 4, chunk = (uint32_t)(matrix >> 16 & 0x3fffu) << 4;
    const uint32_t group = (uint32_t)(matrix >> 32 & 0x3fffu) << 4;
    const uint32_t at = shared + row / TCGEN05_CORE_ROWS * group + row % TCGEN05_CORE_ROWS * TCGEN05_CHUNK;
    const uint8_t *from = (const uint8_t *)__cvta_shared_to_generic(at);
#pragma unroll
    for (uint32_t i = 0; i < 8u; ++i) {
        out[i] = *(const uint32_t *)(const void *)(from + i / 4u * chunk + i % 4u * 4u);
    }
}

/** N of an instruction descriptor. */
CUDA_DEVICE uint32_t emulated_columns(uint32_t instruction)
{
    return (instruction >> 17 & 0x3fu) * 8u;
}

/** Sums of the four groups of 16 in two rows of E2M1. */
CUDA_DEVICE void emulated_groups(const uint32_t (&a)[8], const uint32_t (&b)[8], nbl_mma_group (&out)[NBL_MMA_GROUPS])
{
#pragma unroll
    for (uint32_t g = 0; g < NBL_MMA_GROUPS; ++g) {
        int32_t sum = 0, magnitude = 0;
#pragma unroll
        for (uint32_t i = 0; i < 4u; ++i) {
            const uint32_t x = decode4_e2m1(a[2u * g + i / 2u] >> (i % 2u * 4u), 0);
            const uint32_t y = decode4_e2m1(b[2u * g + i / 2u] >> (i % 2u * 4u), 0);
            sum = ptx_dp4a_ss((int32_t)x, (int32_t)y, sum);
            magnitude = ptx_dp4a_ss((int32_t)__vabs4(x), (int32_t)__vabs4(y), magnitude);
        }
        out[g].quarters = sum;
        out[g].is_zero = magnitude == 0;
    }
}

#endif

/** D = A * B over 64 elements of E2M1, on top of D if so wished; columns of the scales of A and B. */
CUDA_DEVICE void tensor_mma_fp4(const tensor_memory &tm, uint32_t d, uint64_t a, uint64_t b, uint32_t instruction,
                                uint32_t scale_a, uint32_t scale_b, bool accumulate)
{
    const bool is_mxfp4 = (instruction >> 23 & 1u) == TCGEN05_SCALE_UE8M0;
#if PTX_TCGEN05
    if (threadIdx.x == 0 && is_mxfp4) {
        ptx_tcgen05_mma_mxf4(tm.base + d, a, b, instruction, tm.base + scale_a, tm.base + scale_b, accumulate);
    } else if (threadIdx.x == 0) {
        ptx_tcgen05_mma_mxf4nvf4(tm.base + d, a, b, instruction, tm.base + scale_a, tm.base + scale_b, accumulate);
    }
#else
    const uint32_t lane = threadIdx.x;
    const uint32_t of_row = tm.cells[(scale_a + lane / 32u) * TCGEN05_LANES + lane % 32u];
    uint32_t row[8], column[8];
    emulated_row(a, lane, row);
    for (uint32_t n = 0; n < emulated_columns(instruction); ++n) {
        nbl_mma_group groups[NBL_MMA_GROUPS];
        uint32_t *cell = &tm.cells[(d + n) * TCGEN05_LANES + lane];
        emulated_row(b, n, column);
        emulated_groups(row, column, groups);
        *cell = emulated_fp4_element(groups, of_row, tm.cells[(scale_b + n / 32u) * TCGEN05_LANES + n % 32u], is_mxfp4,
                                     accumulate ? *cell : 0u);
    }
#endif
}

/** D = A * B over 32 elements of E4M3, on top of D if so wished. */
CUDA_DEVICE void tensor_mma_fp8(const tensor_memory &tm, uint32_t d, uint64_t a, uint64_t b, uint32_t instruction,
                                bool accumulate)
{
#if PTX_TCGEN05
    if (threadIdx.x == 0) {
        ptx_tcgen05_mma_f8f6f4(tm.base + d, a, b, instruction, accumulate);
    }
#else
    uint32_t row[8], column[8];
    emulated_row(a, threadIdx.x, row);
    for (uint32_t n = 0; n < emulated_columns(instruction); ++n) {
        uint32_t *cell = &tm.cells[(d + n) * TCGEN05_LANES + threadIdx.x];
        emulated_row(b, n, column);
        *cell = nbl_bits_of(emulated_fp8_element(row, column, accumulate ? nbl_float_of(*cell) : 0.0f));
    }
#endif
}

/** Eight columns of the thread's row. */
CUDA_DEVICE void tensor_read(const tensor_memory &tm, uint32_t column, float (&x)[TENSOR_SLICE])
{
    uint32_t words[TENSOR_SLICE];
#if PTX_TCGEN05
    ptx_tcgen05_ld(words, tm.base + (threadIdx.x / 32u * 32u << 16) + column);
#else
    for (uint32_t i = 0; i < TENSOR_SLICE; ++i) {
        words[i] = tm.cells[(column + i) * TCGEN05_LANES + threadIdx.x];
    }
#endif
#pragma unroll
    for (uint32_t i = 0; i < TENSOR_SLICE; ++i) {
        x[i] = nbl_float_of(words[i]);
    }
}

CUDA_DEVICE void tensor_write(const tensor_memory &tm, uint32_t column, const float (&x)[TENSOR_SLICE])
{
    uint32_t words[TENSOR_SLICE];
#pragma unroll
    for (uint32_t i = 0; i < TENSOR_SLICE; ++i) {
        words[i] = nbl_bits_of(x[i]);
    }
#if PTX_TCGEN05
    ptx_tcgen05_st(tm.base + (threadIdx.x / 32u * 32u << 16) + column, words);
#else
    for (uint32_t i = 0; i < TENSOR_SLICE; ++i) {
        tm.cells[(column + i) * TCGEN05_LANES + threadIdx.x] = words[i];
    }
#endif
}

#endif
