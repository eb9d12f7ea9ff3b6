/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file validate.h
 * @brief Complete checks of the arguments of each operation; what they accept goes to a backend as it is.
 *
 * Each nbl_OP_in copies the caller's struct and its pools into a call struct, so that nothing the backend reads can
 * change or be short, and checks flags, enums, ranges, shapes, alignment and overlap. What lies behind the pointers
 * (page ids, lengths, slots) is the backend's to check.
 */
#ifndef NBL_VALIDATE_H
#define NBL_VALIDATE_H

#include "check.h"

typedef struct nbl_append_call {
    nbl_append_args args; /**< args.pool points to pool->pool */
    const nbl_pool_copy *pool;
    uint64_t tokens; /**< T */
} nbl_append_call;

typedef struct nbl_append_coded_call {
    nbl_append_coded_args args;
    nbl_pool_copy pool;
    uint64_t tokens;
} nbl_append_coded_call;

typedef struct nbl_attend_call {
    nbl_attend_args args; /**< args.pool points to pool->pool */
    const nbl_pool_copy *pool;
    uint64_t q_tokens; /**< Tq */
} nbl_attend_call;

typedef struct nbl_gather_call {
    nbl_gather_args args;
    nbl_pool_copy pool;
    uint64_t tokens;
} nbl_gather_call;

typedef struct nbl_copy_pages_call {
    nbl_copy_pages_args args;
    nbl_pool_copy src;
    nbl_pool_copy dst;
} nbl_copy_pages_call;

typedef struct nbl_transcode_call {
    nbl_transcode_args args;
    nbl_pool_copy src;
    nbl_pool_copy dst;
} nbl_transcode_call;

typedef struct nbl_merge_call {
    nbl_merge_args args;
    uint64_t tokens;
} nbl_merge_call;

typedef struct nbl_desc_copy {
    nbl_op_desc desc; /**< desc.shape points to shape */
    nbl_kv_shape shape;
} nbl_desc_copy;

/** Checks append (nbl_append_args); copies its pool into *pool, which call->pool points to. */
nbl_status nbl_append_in(nbl_append_call *call, nbl_pool_copy *pool, const nbl_append_args *args, nbl_error *err);

/** Checks append_coded (nbl_append_coded_args). */
nbl_status nbl_append_coded_in(nbl_append_coded_call *call, const nbl_append_coded_args *args, nbl_error *err);

/** Checks append over a pool that nbl_pool_in has accepted before; args->pool is not looked at. */
nbl_status nbl_append_over(nbl_append_call *call, const nbl_pool_copy *pool, const nbl_append_args *args,
                           nbl_error *err);

/** Checks attend (nbl_attend_args), as nbl_append_in does. */
nbl_status nbl_attend_in(nbl_attend_call *call, nbl_pool_copy *pool, const nbl_attend_args *args, nbl_error *err);

/** Checks attend over a pool that nbl_pool_in has accepted before, as nbl_append_over does. */
nbl_status nbl_attend_over(nbl_attend_call *call, const nbl_pool_copy *pool, const nbl_attend_args *args,
                           nbl_error *err);

/** Checks gather (nbl_gather_args). */
nbl_status nbl_gather_in(nbl_gather_call *call, const nbl_gather_args *args, nbl_error *err);

/** Checks copy_pages (nbl_copy_pages_args). */
nbl_status nbl_copy_pages_in(nbl_copy_pages_call *call, const nbl_copy_pages_args *args, nbl_error *err);

/** Checks transcode (nbl_transcode_args). */
nbl_status nbl_transcode_in(nbl_transcode_call *call, const nbl_transcode_args *args, nbl_error *err);

/** Checks merge (nbl_merge_args). */
nbl_status nbl_merge_in(nbl_merge_call *call, const nbl_merge_args *args, nbl_error *err);

/** Checks an operation description (nbl_op_desc). Formats may be 0 where the operation reads none (merge). */
nbl_status nbl_desc_in(nbl_desc_copy *copy, const nbl_op_desc *desc, nbl_error *err);

/** Describes a checked append in the formats of region 0; the workspace of a call is the largest over its regions. */
nbl_op_desc nbl_append_desc(const nbl_append_call *call);

/** Describes a checked attend, as nbl_append_desc does. */
nbl_op_desc nbl_attend_desc(const nbl_attend_call *call);

/** Largest workspace of an operation over the format pairs of a pool's regions, in bytes. desc's formats are replaced.
 *
 * Errors are those of the backend's workspace_size. */
nbl_status nbl_workspace_bytes(const nbl_device *device, nbl_op_desc desc, const nbl_pool_copy *pool,
                               uint64_t *out_bytes, nbl_error *err);

/** Checks the centres of a call over a pool with centering: arrays there and long enough; adds them to extents. */
nbl_status nbl_centers_check(const nbl_centers *centers, uint32_t batch, const nbl_kv_shape *shape, bool written,
                             nbl_extents *extents, nbl_error *err);

#endif
