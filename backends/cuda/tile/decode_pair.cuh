/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file decode_pair.cuh
 * @brief The kernels of decode_pair.cu, for decode.cu.
 */
#ifndef CUDA_DECODE_PAIR_H
#define CUDA_DECODE_PAIR_H

#include "../attend.h"

/** Calls that nbl_cuda_decode_supports takes, of head dimension 128, with pages of K's and V's format alone, these. Up to
 *  eight rows a kv head. There are five pairs of formats: see the end of decode_pair.cu. */
template <uint32_t K, uint32_t V> cudaError_t cuda_attend_decode_pair(const attend_params *p, cudaStream_t stream);

#endif
