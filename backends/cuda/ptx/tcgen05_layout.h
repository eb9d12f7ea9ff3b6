/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tcgen05_layout.h
 * @brief What tcgen05 instructions are told of their operands: descriptors, and the layouts that these describe. Valid
 * as C11 and as CUDA C++. PTX ISA, TensorCore 5th Generation Family Instructions.
 */
#ifndef CUDA_TCGEN05_LAYOUT_H
#define CUDA_TCGEN05_LAYOUT_H

#include "fn.h"

#define TCGEN05_LANES 128u      /**< of tensor memory: rows of D */
#define TCGEN05_CHUNK 16u       /**< bytes of a row of a core matrix */
#define TCGEN05_CORE_ROWS 8u    /**< rows of a core matrix */
#define TCGEN05_CORE_BYTES 128u /**< a core matrix, its rows side by side */
#define TCGEN05_ATOM_BYTES 512u /**< scales of 128 rows, 4 bytes each */
#define TCGEN05_ATOM_COLUMNS 4u /**< of tensor memory that they take */
#define TCGEN05_STEP_BYTES 32u  /**< of a row in one MMA: 64 elements of 4 bits, 32 of 8 */
#define TCGEN05_SCALE_UE4M3 0u
#define TCGEN05_SCALE_UE8M0 1u

/** Bits of `value` at `bit`. */
NBL_FN uint32_t tcgen05_field(uint32_t value, uint32_t bit)
{
    return value << bit;
}

/** Instruction descriptor of kind::mxf4 and kind::mxf4nvf4, 128 x n x 64 of E2M1, both operands K-major, scale words
 *  from their byte 0. scale_type: TCGEN05_SCALE_UE4M3 or _UE8M0. */
NBL_FN uint32_t tcgen05_instruction_fp4(uint32_t n, uint32_t scale_type)
{
    const uint32_t e2m1 = 1u;
    return tcgen05_field(e2m1, 7) | tcgen05_field(e2m1, 10) | tcgen05_field(n / 8u, 17) |
           tcgen05_field(scale_type, 23) | tcgen05_field(TCGEN05_LANES / 128u, 27);
}

/** Instruction descriptor of kind::f8f6f4, 128 x n x 32 of E4M3 into binary32, both operands K-major. */
NBL_FN uint32_t tcgen05_instruction_fp8(uint32_t n)
{
    const uint32_t f32 = 1u, e4m3 = 0u;
    return tcgen05_field(f32, 4) | tcgen05_field(e4m3, 7) | tcgen05_field(e4m3, 10) | tcgen05_field(n / 8u, 17) |
           tcgen05_field(TCGEN05_LANES / 16u, 24);
}

/** Descriptor of a K-major matrix in shared memory without swizzle: core matrices of 8 rows x 16 bytes, `chunk_stride`
 *  bytes from one to the next along K, `group_stride` from 8 rows to the next 8. All three are multiples of 16. */
NBL_FN uint64_t tcgen05_matrix(uint32_t shared, uint32_t chunk_stride, uint32_t group_stride)
{
    return (uint64_t)(shared >> 4 & 0x3fffu) | (uint64_t)(chunk_stride >> 4 & 0x3fffu) << 16 |
           (uint64_t)(group_stride >> 4 & 0x3fffu) << 32 | (uint64_t)1 << 46;
}

/** Place of byte `byte` of a row in a matrix of rows of `row_bytes` bytes, stored for tcgen05_matrix with the strides
 *  TCGEN05_CORE_BYTES and tcgen05_group_stride(row_bytes). */
NBL_FN uint32_t tcgen05_group_stride(uint32_t row_bytes)
{
    return row_bytes / TCGEN05_CHUNK * TCGEN05_CORE_BYTES;
}

NBL_FN uint32_t tcgen05_matrix_byte(uint32_t row_bytes, uint32_t row, uint32_t byte)
{
    return row / TCGEN05_CORE_ROWS * tcgen05_group_stride(row_bytes) + byte / TCGEN05_CHUNK * TCGEN05_CORE_BYTES +
           row % TCGEN05_CORE_ROWS * TCGEN05_CHUNK + byte % TCGEN05_CHUNK;
}

/** Place of scale `column` (0..3) of row `row` (0..127) in an atom. */
NBL_FN uint32_t tcgen05_atom_byte(uint32_t row, uint32_t column)
{
    return row % 32u * 16u + row / 32u * 4u + column;
}

#endif
