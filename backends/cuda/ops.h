/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file ops.h
 * @brief Arguments and launches of the operations beside attend. Valid as C11 and as CUDA C++.
 */
#ifndef CUDA_OPS_H
#define CUDA_OPS_H

#include "attend.h"

#ifdef __cplusplus
extern "C" {
#endif

/** append (NUM 3, 4). */
typedef struct append_params {
    cuda_pages pages;
    cuda_centers centers;
    cuda_tensor k; /**< [T, Hk, Dk] */
    cuda_tensor v; /**< [T, Hk, Dv] */
    const int64_t *slots;
    const int32_t *seq_indptr; /**< or NULL without centring */
    nbl_quant_stats *stats;    /**< or NULL */
    cuda_status *status;
    uint32_t tokens;
    uint32_t batch;
    uint32_t kv_heads;
    uint32_t k_dim;
    uint32_t v_dim;
    uint32_t k_hadamard;
    uint32_t v_hadamard;
    uint32_t k_rule;
    uint32_t v_rule;
    uint32_t centering;
    uint32_t processors;   /**< multiprocessors of the device */
    uint32_t block_tokens; /**< of a block; set by the launch, as the next one */
    uint32_t slots_at;     /**< bytes of shared memory before the input slots */
    uint32_t early_blocks; /**< of recipes, of a head and kind: those of block_tokens; the others come last */
    uint32_t late_blocks;
} append_params;

/** Centres of all sequences with tokens (NUM 4.2, COMPUTE). */
cudaError_t nbl_cuda_center_compute(const append_params *p, cudaStream_t stream);
/** Transforms, quantizes and writes every token with a slot. */
cudaError_t nbl_cuda_append(const append_params *p, cudaStream_t stream);
/** 1 if nbl_cuda_append_recipe, which nbl_cuda_append leaves such calls to, takes formats, types and transforms. */
int nbl_cuda_append_is_recipe(const append_params *p);
cudaError_t nbl_cuda_append_recipe(const append_params *p, cudaStream_t stream);
/** The same for pools of any formats (NUM 6.1, 6.7). */
cudaError_t nbl_cuda_float_append(const append_params *p, cudaStream_t stream);

/** K or V of append_coded (NUM 6.8). */
typedef struct coded_side {
    const uint8_t *codes; /**< NULL where absent */
    const uint8_t *scales;
    int64_t code_stride[3];
    int64_t scale_stride[3]; /**< 128X4: of matrices and bytes */
    uint32_t format;
    uint32_t dim;
    uint32_t is_shared; /**< 128X4: one matrix for all kv heads */
    uint32_t reserved;
} coded_side;

/** append_coded. */
typedef struct coded_params {
    cuda_pages pages;
    coded_side sides[2]; /**< K, V */
    const int64_t *slots;
    nbl_quant_stats *stats; /**< or NULL */
    cuda_status *status;
    uint64_t scale_token;
    uint32_t scale_layout;
    uint32_t tokens;
    uint32_t kv_heads;
    uint32_t reserved;
} coded_params;

cudaError_t nbl_cuda_append_coded(const coded_params *p, cudaStream_t stream);

/** gather (NUM 4.4). */
typedef struct gather_params {
    cuda_pages pages;
    cuda_centers centers;
    cuda_tensor k; /**< data NULL where absent */
    cuda_tensor v;
    const int64_t *slots;
    const int32_t *seq_indptr; /**< or NULL where no centre is added back */
    cuda_status *status;
    uint32_t tokens;
    uint32_t batch;
    uint32_t kv_heads;
    uint32_t k_dim;
    uint32_t v_dim;
    uint32_t k_hadamard; /**< 0 too where the transforms stay in */
    uint32_t v_hadamard;
    uint32_t processors;   /**< multiprocessors of the device */
    uint32_t block_tokens; /**< of a block; set by the launch */
} gather_params;

cudaError_t nbl_cuda_gather(const gather_params *p, cudaStream_t stream);
/** The same for pools of any formats. */
cudaError_t nbl_cuda_float_gather(const gather_params *p, cudaStream_t stream);

/** copy_pages and transcode: pages of the first layer, and the distance to the next one for each region. */
typedef struct pages_params {
    cuda_pages src;
    cuda_pages dst;
    uint64_t src_code_layer_stride[NBL_REGIONS_MAX];
    uint64_t src_scale_layer_stride[NBL_REGIONS_MAX];
    uint64_t dst_code_layer_stride[NBL_REGIONS_MAX];
    uint64_t dst_scale_layer_stride[NBL_REGIONS_MAX];
    uint64_t code_page_bytes[NBL_REGIONS_MAX]; /**< of the source's regions */
    uint64_t scale_page_bytes[NBL_REGIONS_MAX];
    const int32_t *src_pages;
    const int32_t *dst_pages;
    const int32_t *token_counts; /**< transcode only */
    nbl_quant_stats *stats;      /**< or NULL */
    cuda_status *status;
    uint32_t count;
    uint32_t layers;
    uint32_t same_pool; /**< 1: a destination must not be a source */
    uint32_t kv_heads;
    uint32_t k_dim;
    uint32_t v_dim;
    uint32_t k_rule;
    uint32_t v_rule;
} pages_params;

cudaError_t nbl_cuda_copy_pages(const pages_params *p, cudaStream_t stream);
cudaError_t nbl_cuda_transcode(const pages_params *p, cudaStream_t stream);
/** The same between pools of any formats. */
cudaError_t nbl_cuda_float_transcode(const pages_params *p, cudaStream_t stream);

/** merge (NUM 5.6 to 5.8). */
typedef struct merge_params {
    cuda_tensor in_state_head; /**< [N, T, Hq, 4]; data NULL: pairs */
    cuda_tensor in_state_o;
    cuda_tensor in_o;
    cuda_tensor in_lse;
    cuda_tensor state_head; /**< [T, Hq, 4] */
    cuda_tensor state_o;
    cuda_tensor o;
    cuda_tensor lse;
    const float *sinks;
    cuda_status *status;
    uint32_t count;
    uint32_t rows; /**< T */
    uint32_t heads;
    uint32_t dim;
    uint32_t v_hadamard;
    uint32_t lse_base2;
} merge_params;

cudaError_t nbl_cuda_merge(const merge_params *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
