/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file select.h
 * @brief Sizes of an attend call and the kernel that does it; host code without CUDA, so that tests need no GPU.
 *
 * Nothing here can change a bit of a result: kernels and cuts are interchangeable (NUM 5).
 */
#ifndef CUDA_SELECT_H
#define CUDA_SELECT_H

#include <stdint.h>

#define CUDA_SPLIT_BYTES_MAX (UINT64_C(64) << 20) /**< chunk states of a call with many rows */
#define CUDA_DECODE_ROWS_MAX 64u /**< query rows per sequence and kv head up to which a call always is split */
#define CUDA_WORKSPACE_ALIGNMENT 256u
#define CUDA_PREFILL_ROWS_MIN 9u /**< query rows per sequence and kv head from which the prefill kernel takes a call */
#define CUDA_PREFILL_DIM_MAX 128u
#define CUDA_LAYERS_MAX 65535u                        /**< layers are an axis of a grid */
#define CUDA_KV_HEADS_MAX 32767u                      /**< K and V of kv heads are one, too */
#define CUDA_PREFILL_IMAGES_MAX (UINT64_C(256) << 20) /**< bytes of expanded K and V at a time, if one unit fits */

#ifdef __cplusplus
extern "C" {
#endif

/** 1 if the backend runs on a compute capability, 10 * major + minor: 8.0 or newer. */
int cuda_capability_supported(uint32_t capability);

/** Bounds that a workspace is sized for. */
typedef struct attend_bounds {
    uint32_t batch;
    uint64_t q_tokens;
    uint32_t q_heads;
    uint32_t kv_heads;
    uint32_t k_dim;
    uint32_t v_dim;
    uint32_t page_tokens;
    uint32_t q_len_max;
    uint32_t kv_len_max;
    uint32_t processors; /**< multiprocessors of the device */
    uint32_t capability; /**< 10 * major + minor */
    uint32_t q_centers;  /**< 1: queries are centred (NUM 7.5) */
} attend_bounds;

/** Sizes of a call and places in its workspace, in bytes. */
typedef struct cuda_plan {
    uint32_t first_chunk;
    uint32_t chunks; /**< within kv_len_max and the range */
    uint32_t split;  /**< 1: chunk states go through the workspace */
    uint32_t state_floats;
    uint64_t rows; /**< q_tokens * q_heads */
    uint64_t sequences_at;
    uint64_t ends_at; /**< units of the decode kernel that have ended, of each kv head of a sequence */
    uint64_t queries_at;
    uint64_t codes_at;
    uint64_t center_queries_at; /**< of the two parts of each centre of queries, if there are any */
    uint64_t center_codes_at;
    uint64_t states_at;
    uint64_t states_bytes; /**< that any call within the bounds may need */
    uint64_t items_at;     /**< of a prefill: where the items of each unit begin */
    uint64_t totals_at;    /**< of a prefill: merged chunks of each multiprocessor's rows */
    uint64_t images_at;    /**< of a prefill: expanded K and V of slab_units units */
    uint32_t image_tiles;  /**< 128-token tiles of a unit, a kv head of a sequence */
    uint32_t slab_units;   /**< units of a prefill that are expanded and attended together; 0: no prefill */
    uint64_t bytes;
} cuda_plan;

/** Plan of a call, or of all calls within bounds: never smaller for larger bounds. */
cuda_plan cuda_plan_make(const attend_bounds *bounds);

/** Dimension that the prefill kernel works in, 64 or 128; 0 if it has none. */
uint32_t cuda_prefill_dim(uint32_t k_dim, uint32_t v_dim);

/** Bytes of the image of a tile in that dimension. */
uint64_t cuda_prefill_image_bytes(uint32_t dim);

/** 1 if a prefill has too few items of 128 rows for the device, and so does each chunk of them apart. */
int cuda_prefill_splits(const attend_bounds *bounds);

/** Leaves only the chunks of a range; both 0: all. Places stay as they are. */
void cuda_plan_restrict(cuda_plan *plan, uint32_t range_begin, uint32_t range_end);

#ifdef __cplusplus
}
#endif

#endif
