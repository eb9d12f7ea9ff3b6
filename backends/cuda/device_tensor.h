/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file device_tensor.h
 * @brief Strided tensors as kernels take them, and reading and writing their elements (NUM 1.1).
 */
#ifndef CUDA_DEVICE_TENSOR_H
#define CUDA_DEVICE_TENSOR_H

#include "convert.h"

#include <nibble/nibble_types.h>

/** A tensor of up to four axes. Element (i0, i1, ...) is at data + i0*stride[0] + i1*stride[1] + ...; bytes. */
typedef struct cuda_tensor {
    uint8_t *data;
    int64_t stride[4];
    uint32_t dtype;  /**< enum nbl_dtype */
    uint32_t packed; /**< 1: elements of the last axis lie side by side */
} cuda_tensor;

/** Reads an element of dtype; exact. */
NBL_FN float cuda_element_read(const uint8_t *at, uint32_t dtype)
{
    if (dtype == NBL_F32) {
        return *(const float *)(const void *)at;
    }
    uint16_t half = *(const uint16_t *)(const void *)at;
    return dtype == NBL_BF16 ? nbl_f32_from_bf16(half) : nbl_f32_from_f16(half);
}

/** Writes an element of dtype, RNE. */
NBL_FN void cuda_element_write(uint8_t *at, uint32_t dtype, float x)
{
    if (dtype == NBL_F32) {
        *(float *)(void *)at = x;
    } else {
        *(uint16_t *)(void *)at = dtype == NBL_BF16 ? nbl_bf16_from_f32(x) : nbl_f16_from_f32(x);
    }
}

#endif
