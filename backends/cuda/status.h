/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file status.h
 * @brief Faults that only the device can see: kernels leave the first one in host memory, check() reads it there.
 */
#ifndef CUDA_STATUS_H
#define CUDA_STATUS_H

#include <stdint.h>

#ifdef __CUDACC__
#define CUDA_DEVICE static __device__ __forceinline__
#endif

/** What can be wrong with data; the record's numbers are those of the message in check.c. */
enum cuda_fault {
    CUDA_FAULT_NONE = 0,
    CUDA_FAULT_INDPTR_FIRST, /**< indptr[0] is not 0 */
    CUDA_FAULT_INDPTR_ORDER, /**< indptr[index] is less than the entry before it */
    CUDA_FAULT_INDPTR_LAST,  /**< indptr[index] is not the number of rows */
    CUDA_FAULT_KV_LEN,
    CUDA_FAULT_Q_LEN,
    CUDA_FAULT_TREE_MASK,
    CUDA_FAULT_TABLE_STRIDE,
    CUDA_FAULT_TABLE_PAGE,
    CUDA_FAULT_CENTER_ROW,
    CUDA_FAULT_SINK,
    CUDA_FAULT_SLOPE,
    CUDA_FAULT_SLOT,
    CUDA_FAULT_SLOT_FORMATS,
    CUDA_FAULT_SRC_PAGE,
    CUDA_FAULT_DST_PAGE,
    CUDA_FAULT_FORMATS,
    CUDA_FAULT_DST_TWICE,
    CUDA_FAULT_DST_IS_SRC,
    CUDA_FAULT_TOKEN_COUNT,
    CUDA_FAULT_LSE
};

/** The first fault since the last check; in host memory mapped into the device. */
typedef struct cuda_status {
    uint32_t code;  /**< enum cuda_fault; written last */
    uint32_t taken; /**< 1: a kernel has claimed the record */
    int64_t index;
    int64_t other; /**< second index */
    int64_t value; /**< found; bits of a binary32 for sinks, slopes and lse */
    int64_t limit; /**< allowed */
} cuda_status;

#ifdef __CUDACC__
/** Leaves a fault unless there is one. */
CUDA_DEVICE void cuda_fault_report(cuda_status *status, uint32_t code, int64_t index, int64_t other, int64_t value,
                                   int64_t limit)
{
    if (atomicExch_system(&status->taken, 1u) != 0) {
        return;
    }
    status->index = index;
    status->other = other;
    status->value = value;
    status->limit = limit;
    __threadfence_system();
    *(volatile uint32_t *)&status->code = code;
}
#endif

#endif
