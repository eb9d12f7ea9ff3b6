/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file prefill.h
 * @brief Steps of a prefill, each over one slab of units.
 */
#ifndef CUDA_KERNELS_PREFILL_H
#define CUDA_KERNELS_PREFILL_H

#include "../attend.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Query rows of the slab's units to canonical form: `queries` and `codes`. */
cudaError_t nbl_cuda_prefill_queries(const attend_params *p, cudaStream_t stream);
/** Images of the slab's units and its list of work. */
cudaError_t nbl_cuda_prefill_expand(const attend_params *p, cudaStream_t stream);
/** Attention over the images with wgmma; compute capability 9.0 only. */
cudaError_t nbl_cuda_prefill_wgmma(const attend_params *p, cudaStream_t stream);
/** The same with mma.sync. */
cudaError_t nbl_cuda_prefill_mma(const attend_params *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
