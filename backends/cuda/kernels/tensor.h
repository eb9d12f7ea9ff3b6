/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tensor.h
 * @brief The kernel of the Blackwell core for tensor memory. Valid as C11 and as CUDA C++.
 *
 * Code for other GPUs than the sm_100 family has it only in builds with NIBBLE_CUDA_TENSOR_EMULATED, where its
 * instructions are emulated, for tests.
 */
#ifndef CUDA_TENSOR_H
#define CUDA_TENSOR_H

#include "../attend.h"

#ifdef __cplusplus
extern "C" {
#endif

/** 1 if the kernel takes the call on its device; looks at sizes and formats only, never at device memory. */
int nbl_cuda_tensor_supports(const attend_params *p);
/** Calls that nbl_cuda_tensor_supports takes; split or not. */
cudaError_t nbl_cuda_attend_tensor(const attend_params *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
