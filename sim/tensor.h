/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tensor.h
 * @brief Rows of strided tensors to and from binary32.
 */
#ifndef SIM_TENSOR_H
#define SIM_TENSOR_H

#include "convert.h"
#include "isa.h"

#include <nibble/nibble_types.h>

/** Address of element (i0, i1, 0) of a rank-3 tensor. */
static inline uint8_t *sim_row3(const nbl_tensor *t, uint64_t i0, uint64_t i1)
{
    return (uint8_t *)t->data + (int64_t)i0 * t->stride_bytes[0] + (int64_t)i1 * t->stride_bytes[1];
}

/** Address of element (i0, i1, i2, 0) of a rank-4 tensor. */
static inline uint8_t *sim_row4(const nbl_tensor *t, uint64_t i0, uint64_t i1, uint64_t i2)
{
    return sim_row3(t, i0, i1) + (int64_t)i2 * t->stride_bytes[2];
}

/** Reads n elements of dtype, stride bytes apart; exact. */
static inline void sim_read(const uint8_t *from, uint32_t dtype, int64_t stride, uint32_t n, float *to)
{
    for (uint32_t d = 0; d < n; ++d, from += stride) {
        uint16_t half;
        if (dtype == NBL_F32) {
            memcpy(&to[d], from, sizeof to[d]);
            continue;
        }
        memcpy(&half, from, sizeof half);
        to[d] = dtype == NBL_BF16 ? nbl_f32_from_bf16(half) : nbl_f32_from_f16(half);
    }
}

/** Writes n elements as dtype, RNE (NUM 1.1). */
static inline void sim_write(uint8_t *to, uint32_t dtype, int64_t stride, uint32_t n, const float *from)
{
    for (uint32_t d = 0; d < n; ++d, to += stride) {
        if (dtype == NBL_F32) {
            memcpy(to, &from[d], sizeof from[d]);
            continue;
        }
        uint16_t half = dtype == NBL_BF16 ? nbl_bf16_from_f32(from[d]) : nbl_f16_from_f32(from[d]);
        memcpy(to, &half, sizeof half);
    }
}

/** Reads a row as sim_row_loops.load does, whatever its stride. */
static inline void sim_load_row(const sim_row_loops *loops, const uint8_t *from, uint32_t dtype, int64_t stride,
                                uint32_t dim, float *x, nbl_quant_stats *stats)
{
    if (stride == (dtype == NBL_F32 ? 4 : 2)) {
        loops->load(from, dtype, dim, x, stats);
        return;
    }
    sim_read(from, dtype, stride, dim, x);
    loops->load((const uint8_t *)x, NBL_F32, dim, x, stats);
}

/** Writes a row as sim_row_loops.store does, whatever its stride. */
static inline void sim_store_row(const sim_row_loops *loops, uint8_t *to, uint32_t dtype, int64_t stride, uint32_t dim,
                                 const float *x)
{
    if (stride == (dtype == NBL_F32 ? 4 : 2)) {
        loops->store(to, dtype, dim, x);
    } else {
        sim_write(to, dtype, stride, dim, x);
    }
}

#endif
