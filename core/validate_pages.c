/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file validate_pages.c
 * @brief Checks of the operations on whole pages: copy_pages and transcode.
 */
#include "validate.h"

#include <string.h>

static nbl_status same_check(const char *field, uint32_t src, uint32_t dst, nbl_error *err)
{
    if (src == dst)
        return NBL_OK;
    return NBL_REFUSE(err, NBL_E_INVALID, "dst_pool.shape.%s is %u (needed: %u, that of src_pool)", field, dst, src);
}

/* Scale rules may differ: a copy takes none, a transcode takes the destination's. */
static nbl_status shapes_match(const nbl_kv_shape *src, const nbl_kv_shape *dst, nbl_error *err)
{
    NBL_TRY(same_check("layers", src->layers, dst->layers, err));
    NBL_TRY(same_check("kv_heads", src->kv_heads, dst->kv_heads, err));
    NBL_TRY(same_check("k_dim", src->k_dim, dst->k_dim, err));
    NBL_TRY(same_check("v_dim", src->v_dim, dst->v_dim, err));
    NBL_TRY(same_check("page_tokens", src->page_tokens, dst->page_tokens, err));
    NBL_TRY(same_check("k_hadamard", src->k_hadamard, dst->k_hadamard, err));
    NBL_TRY(same_check("v_hadamard", src->v_hadamard, dst->v_hadamard, err));
    return same_check("centering", src->centering, dst->centering, err);
}

static bool pools_same(const nbl_pool_copy *src, const nbl_pool_copy *dst)
{
    return src->pool.region_count == dst->pool.region_count &&
           memcmp(src->regions, dst->regions, src->pool.region_count * sizeof(nbl_region)) == 0;
}

static nbl_status page_list_check(const char *name, const int32_t *pages, uint32_t count, nbl_extents *extents,
                                  nbl_error *err)
{
    NBL_TRY(nbl_pointer_check(name, pages, count, sizeof(int32_t), err));
    nbl_extents_add(extents, name, pages, count, sizeof(int32_t), false);
    return NBL_OK;
}

/* A pool may be both source and destination; then only its other arguments must stay clear of it. */
static nbl_status pools_in(nbl_pool_copy *src, const nbl_pool *src_pool, nbl_pool_copy *dst, const nbl_pool *dst_pool,
                           nbl_extents *extents, nbl_error *err)
{
    NBL_TRY(nbl_pool_in(src, src_pool, "src_pool.", err));
    NBL_TRY(nbl_pool_in(dst, dst_pool, "dst_pool.", err));
    NBL_TRY(shapes_match(&src->shape, &dst->shape, err));
    nbl_pool_extents(dst, true, extents);
    if (!pools_same(src, dst))
        nbl_pool_extents(src, false, extents);
    return NBL_OK;
}

nbl_status nbl_copy_pages_in(nbl_copy_pages_call *call, const nbl_copy_pages_args *args, nbl_error *err)
{
    nbl_extents extents = {.count = 0};
    nbl_copy_pages_args *a = &call->args;
    NBL_TRY(NBL_STRUCT_IN(nbl_copy_pages_args, a, args, err));
    NBL_TRY(nbl_flags_check(a->flags, 0, "nbl_copy_pages_args", err));
    NBL_TRY(nbl_reserved_check("nbl_copy_pages_args", a->reserved, err));
    NBL_TRY(pools_in(&call->src, a->src_pool, &call->dst, a->dst_pool, &extents, err));
    a->src_pool = &call->src.pool;
    a->dst_pool = &call->dst.pool;
    NBL_TRY(nbl_value_check("", "count", a->count, 0, INT32_MAX, err));
    NBL_TRY(page_list_check("src_pages", a->src_pages, a->count, &extents, err));
    NBL_TRY(page_list_check("dst_pages", a->dst_pages, a->count, &extents, err));
    NBL_TRY(nbl_stream_check(&a->stream, err));
    return nbl_extents_check(&extents, err);
}

nbl_status nbl_transcode_in(nbl_transcode_call *call, const nbl_transcode_args *args, nbl_error *err)
{
    nbl_extents extents = {.count = 0};
    nbl_transcode_args *a = &call->args;
    NBL_TRY(NBL_STRUCT_IN(nbl_transcode_args, a, args, err));
    NBL_TRY(nbl_flags_check(a->flags, 0, "nbl_transcode_args", err));
    NBL_TRY(nbl_reserved_check("nbl_transcode_args", a->reserved, err));
    NBL_TRY(pools_in(&call->src, a->src_pool, &call->dst, a->dst_pool, &extents, err));
    a->src_pool = &call->src.pool;
    a->dst_pool = &call->dst.pool;
    NBL_TRY(nbl_value_check("", "count", a->count, 0, INT32_MAX, err));
    NBL_TRY(page_list_check("src_pages", a->src_pages, a->count, &extents, err));
    NBL_TRY(page_list_check("dst_pages", a->dst_pages, a->count, &extents, err));
    NBL_TRY(page_list_check("token_counts", a->token_counts, a->count, &extents, err));
    NBL_TRY(nbl_pointer_check("stats", a->stats, 0, sizeof(uint64_t), err));
    nbl_extents_add(&extents, "stats", a->stats, 1, sizeof *a->stats, true);
    NBL_TRY(nbl_stream_check(&a->stream, err));
    return nbl_extents_check(&extents, err);
}
