/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file attend.h
 * @brief What an attend call is to the kernels: one struct of arguments by value, and the launches that take it.
 *
 * A call is up to three steps on one stream, none of which reads a length on the host:
 *
 *     prepare   checks every sequence, brings query rows to canonical form (NUM 5.1)
 *     attend    one of the kernels: generic, decode, decode_team, prefill; chunk states or finished rows
 *     fold      only if split: chunk states to O, LSE and state tensors (NUM 5.6, 5.7)
 *
 * Short caches take one step instead, which does all of it (decode_short.cu).
 *
 * Valid as C11 and as CUDA C++. Device pointers only; all bounds are known to the host, all lengths are read from
 * `sequences` by the device.
 */
#ifndef CUDA_ATTEND_H
#define CUDA_ATTEND_H

#include "device_tensor.h"
#include "layout.h"
#include "select.h"
#include "status.h"

#include <cuda_runtime_api.h>
#include <nibble/nibble_types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CUDA_TILE_TOKENS 128u /**< NUM 5.2 */
#define CUDA_CHUNK_TILES (NBL_CHUNK_TOKENS / CUDA_TILE_TOKENS)
#define CUDA_STATE_HEAD_FLOATS 4u /**< M, L, offset, 0 */

/** Pages of one pair of formats of the call's layer (F2, F6). Page p has its codes at
 *  codes + (p - first_page) * code_page_stride; kv head h of K begins h * k_code_head_bytes later, of V
 *  v_code_offset + h * v_code_head_bytes later; scales likewise. */
typedef struct cuda_region {
    uint32_t k_format; /**< enum nbl_format */
    uint32_t v_format;
    uint32_t first_page;
    uint32_t page_count;
    uint8_t *codes;  /**< of the layer */
    uint8_t *scales; /**< of the layer */
    uint64_t code_page_stride;
    uint64_t scale_page_stride;
    uint64_t v_code_offset;
    uint64_t v_scale_offset;
    uint32_t k_code_head_bytes;
    uint32_t v_code_head_bytes;
    uint32_t k_scale_head_bytes;
    uint32_t v_scale_head_bytes;
} cuda_region;

/** Regions of one layer of a pool, in increasing page order. */
typedef struct cuda_pages {
    uint32_t region_count;
    uint32_t page_tokens;
    const float *k_scale; /**< [Hk] of the layer, or NULL (NUM 6.7) */
    const float *v_scale;
    cuda_region regions[NBL_REGIONS_MAX];
} cuda_pages;

/** A sequence as prepare found it. One whose lengths or pages are bad has q_len 0, so that nothing is done for it. */
typedef struct cuda_sequence {
    int32_t q_first; /**< first query token */
    int32_t q_len;
    int32_t kv_len;
    int32_t reserved;
} cuda_sequence;

/** A query row brought to canonical form (NUM 5.1). Row index = query token * q_heads + query head. */
typedef struct cuda_query {
    float scale;  /**< cq_row; cs_row with soft cap (NUM 5.3) */
    float offset; /**< NUM 5.7 */
    int32_t bias; /**< -128 * sum of the codes: start value where K codes carry +128. In the Blackwell core the row's
                           exponent (NUM 7.1, less that of the first block with mxfp4_16) */
    int32_t sequence; /**< that the row belongs to; its rows count only if `sequences` says so */
} cuda_query;

/** Per-sequence centres and channel shifts of the layer (NUM 4.2, 4.5). */
typedef struct cuda_centers {
    int8_t *codes; /**< NULL without a mean */
    uint8_t *exponents;
    uint8_t *shifts;     /**< NULL without channel shifts */
    const int32_t *rows; /**< or NULL: row b for sequence b */
    uint32_t row_count;
    uint32_t reserved;
} cuda_centers;

/** An attend call. Kernels take it by value. */
typedef struct attend_params {
    cuda_pages pages;
    cuda_centers centers;

    /* sizes */
    uint32_t batch;
    uint32_t q_tokens; /**< Tq */
    uint32_t q_heads;
    uint32_t kv_heads;
    uint32_t group_rows; /**< q_heads / kv_heads; query head h reads kv head h / group_rows */
    uint32_t k_dim;
    uint32_t v_dim;
    uint32_t k_dim_padded; /**< bytes of a row of `codes` */
    uint32_t v_dim_padded;
    uint32_t k_hadamard;
    uint32_t v_hadamard;
    uint32_t centering;
    uint32_t q_format;  /**< NBL_Q8 or NBL_Q4; kernels after prepare need not care: codes are int8 either way */
    uint32_t q_len_max; /**< bounds; grids depend on them alone */
    uint32_t kv_len_max;

    /* what a row sees (NUM 5.2, 5.3) */
    uint32_t flags; /**< NBL_ATTEND_ bits */
    uint32_t window_left;
    uint32_t window_right;
    uint32_t range_begin;
    uint32_t range_end; /**< UINT32_MAX without a range */
    uint32_t tree_mask_stride;
    float c;                   /**< fl(sm_scale * LOG2E), or fl(sm_scale / soft_cap) */
    float cap;                 /**< fl(soft_cap * LOG2E), 0 without */
    const float *alibi_slopes; /**< [Hq] or NULL */
    const float *sinks;        /**< [Hq] or NULL; only fold and finished rows use them */
    const uint32_t *tree_mask; /**< [Tq, tree_mask_stride] or NULL */
    const int32_t *page_table; /**< [B, page_table_stride] */
    uint32_t page_table_stride;

    /* chunks: n-th chunk of the range = chunk first_chunk + n. Of a sequence only those take part that begin below
     * min(kv_len, range_end); see cuda_live_chunks. */
    uint32_t first_chunk;
    uint32_t chunks; /**< within kv_len_max and the range; may be 0 */
    uint32_t split;  /**< 1: kernels write chunk states to `states` and nothing else; 0: they write finished rows */

    /* raw inputs, for prepare alone */
    const int32_t *q_indptr;
    const int32_t *kv_len;

    /* tensors; data NULL where absent */
    cuda_tensor q;          /**< [Tq, Hq, Dk] */
    cuda_tensor o;          /**< [Tq, Hq, Dv] */
    cuda_tensor lse;        /**< [Tq, Hq] f32 */
    cuda_tensor state_head; /**< [N, Tq, Hq, 4] f32 */
    cuda_tensor state_o;    /**< [N, Tq, Hq, Dv] f32 */
    uint32_t state_count;   /**< N */
    uint32_t state_floats;  /**< CUDA_STATE_HEAD_FLOATS + v_dim_padded */

    /* workspace, written by prepare */
    cuda_sequence *sequences; /**< [B] */
    cuda_query *queries;      /**< [Tq * Hq] */
    int8_t *codes;            /**< [Tq * Hq, k_dim_padded], padding is 0; of uint16_t in the float core */
    /* workspace, split calls: state of row r after the n-th chunk at states + (r * chunks + n) * state_floats:
     * {M, L, offset, 0}, O[0..v_dim_padded-1]. Written for every live chunk of every row of a good sequence, the empty
     * state {-inf, 0, offset, 0}, O = 0 included. Elements of O from v_dim on must be finite. */
    float *states;

    /* prefill: the slab of units at hand; unit u of the call is kv head u % kv_heads of sequence u / kv_heads */
    uint32_t *prefill_items; /**< work counter, then [units + 1]: first item of each unit */
    uint8_t *images;         /**< [units, image_tiles]: expanded K and V */
    float *prefill_totals;   /**< [processors, 128, dim]: merged chunks of the items at hand */
    uint32_t image_tiles;
    uint32_t slab_units; /**< 0: the plan has no place for a prefill */
    uint32_t first_unit;
    uint32_t units;

    /* device */
    cuda_status *status;
    uint32_t processors;   /**< multiprocessors */
    uint32_t capability;   /**< 10 * major + minor of the compute capability */
    uint32_t shared_bytes; /**< of shared memory that a block may ask for */
    uint32_t layer;

    /* the float core (NUM 6): queries are halves, in `codes` */
    uint32_t is_float;
    uint32_t k_fp16;     /**< 1: Q and K are fp16, 0: bf16 */
    uint32_t v_fp16;     /**< the same of P and V */
    uint32_t tile_pages; /**< a tile is so many pages, */
    uint32_t tile_rest;  /**< and so many tokens more */
    uint32_t fp4_format; /**< K's format where the Blackwell core does the call (NUM 7), else NBL_FORMAT_NONE; queries
                              are then as tile/fp4_query.cuh says */
    uint32_t rows_later; /**< 1: the main step brings query rows to canonical form, not prepare */
    uint32_t
        folds_early; /**< 1: the main step lets no block of the last one in before prepare has ended, so that it may
                               read what prepare wrote before it waits */

    /* centred queries (NUM 7.5). Part i of the centre of head h of sequence b is row (b * q_heads + h) * 2 + i of the
     * workspace, a query row like those of `queries` and `codes`. */
    cuda_tensor q_centers; /**< [B, Hq, Dk]; data NULL where there are none */
    cuda_query *center_queries;
    uint8_t *center_codes;

    /* For a last step that need not wait for all of the main one. [B, Hk], workspace: units of that kv head that have
     * ended; prepare sets it to 0. */
    uint32_t *ends;
    uint32_t counts_ends; /**< 1: the main step counts its units there, and folds_early */

    uint32_t heads_in_turn; /**< of a prefill; 1: items of the heads of a sequence take turns */
    uint32_t whole_rows; /**< of a prefill; 1: rows of O are one block of v_hadamard and written 16 bytes at a time */
    uint32_t group_rows_inverse; /**< 256 / group_rows, up: (r * it) / 256 is r / group_rows for r below 8 */
} attend_params;

/** Fails if the plugin has no code for the current device. */
cudaError_t nbl_cuda_probe(void);

/** Prepare: `sequences`, `queries` and `codes` (NUM 5.1); reports bad data to `status`. */
cudaError_t nbl_cuda_attend_prepare(const attend_params *p, cudaStream_t stream);

/** Before prepare, where queries are centred: `center_queries` and `center_codes` (NUM 7.5). */
cudaError_t nbl_cuda_attend_centers(const attend_params *p, cudaStream_t stream);

/** Any valid call (NUM 5); split or not. */
cudaError_t nbl_cuda_attend_generic(const attend_params *p, cudaStream_t stream);

/** Shared memory that a block of the float core's kernel needs for these dimensions. */
uint64_t nbl_cuda_float_shared_bytes(uint32_t k_dim, uint32_t v_dim);
/** Any valid call of the float core (NUM 6) that fits; split or not. */
cudaError_t nbl_cuda_attend_float(const attend_params *p, cudaStream_t stream);

/** Shared memory that a block of the Blackwell core's kernel needs for these dimensions. */
uint64_t nbl_cuda_blackwell_shared_bytes(uint32_t k_dim, uint32_t v_dim);
/** Any valid call of the Blackwell core (NUM 7) that fits; split or not. */
cudaError_t nbl_cuda_attend_blackwell(const attend_params *p, cudaStream_t stream);
/** 1 if the prefill kernel of the float core takes the call; looks at sizes, formats and flags only. */
int nbl_cuda_float_wgmma_supports(const attend_params *p);
/** Calls that nbl_cuda_float_wgmma_supports takes; split or not. */
cudaError_t nbl_cuda_attend_float_wgmma(const attend_params *p, cudaStream_t stream);

/** Second half of a split call, and the empty states past the last chunk of any call. */
cudaError_t nbl_cuda_attend_fold(const attend_params *p, cudaStream_t stream);

/** 1 if the decode kernel takes the call; looks at sizes, formats and flags only, never at device memory. */
int nbl_cuda_decode_supports(const attend_params *p);
/** Split calls that nbl_cuda_decode_supports takes; writes `states`. */
cudaError_t nbl_cuda_attend_decode(const attend_params *p, cudaStream_t stream);

/** Second half of such a call if it wants no states (state_head.data is NULL) and has chunks, not too many for a warp a
 *  row; reads what prepare wrote before the first half has ended. */
int nbl_cuda_decode_fold_supports(const attend_params *p);
cudaError_t nbl_cuda_attend_decode_fold(const attend_params *p, cudaStream_t stream);

/** Lets the kernels of teams ask for the shared memory that they need; once, when a device is opened. */
cudaError_t nbl_cuda_team_open(uint32_t shared_bytes);
/** 1 if a call that the decode kernel takes is sooner done by a team of warps for each chunk; looks at the same. */
int nbl_cuda_team_supports(const attend_params *p);
/** Split calls that nbl_cuda_team_supports takes; writes `states`. */
cudaError_t nbl_cuda_attend_team(const attend_params *p, cudaStream_t stream);

/** Lets the kernels for short caches ask for the shared memory that they may need; once, when a device is opened. */
cudaError_t nbl_cuda_short_open(uint32_t capability, uint32_t shared_bytes);
/** 1 if the kernel for short caches takes the call; looks at sizes, formats and flags only, never at device memory. */
int nbl_cuda_short_supports(const attend_params *p);
/** Whole calls that nbl_cuda_short_supports takes: no prepare before it, no fold after. */
cudaError_t nbl_cuda_attend_short(const attend_params *p, cudaStream_t stream);

/** 1 if the prefill kernel takes the call; looks at sizes and flags only, never at device memory. */
int nbl_cuda_prefill_supports(const attend_params *p);
/** Calls that nbl_cuda_prefill_supports takes; split or not. */
cudaError_t nbl_cuda_attend_prefill(const attend_params *p, cudaStream_t stream);

/** Chunks of the range that begin below min(kv_len, range_end): those that have states. */
NBL_FN uint32_t cuda_live_chunks(const attend_params *p, int32_t kv_len)
{
    uint32_t end = (uint32_t)kv_len < p->range_end ? (uint32_t)kv_len : p->range_end;
    uint32_t last = (end + NBL_CHUNK_TOKENS - 1u) / NBL_CHUNK_TOKENS;
    uint32_t live = last > p->first_chunk ? last - p->first_chunk : 0u;
    return live < p->chunks ? live : p->chunks;
}

/** 1 if pages of the pool may be mxfp4: the same for all threads. */
NBL_FN int cuda_any_mxfp4(const cuda_pages *pages, uint32_t kind)
{
    int any = 0;
    for (uint32_t i = 0; i < pages->region_count; ++i) {
        const cuda_region *r = &pages->regions[i];
        any |= nbl_layout_is_mxfp4(kind == NBL_KIND_K ? r->k_format : r->v_format);
    }
    return any;
}

/** Region of a page id, or NULL (F6). */
NBL_FN const cuda_region *cuda_region_find(const cuda_pages *pages, int64_t page)
{
    for (uint32_t i = 0; i < pages->region_count; ++i) {
        const cuda_region *region = &pages->regions[i];
        if (page >= region->first_page && page - region->first_page < region->page_count) {
            return region;
        }
    }
    return NULL;
}

#ifdef __cplusplus
}
#endif

#endif
