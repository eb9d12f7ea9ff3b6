/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file validate_tokens.c
 * @brief Checks of the operations that address tokens by slot: append and gather.
 */
#include "validate.h"

#include "num/layout.h"

#include <string.h>

nbl_status nbl_centers_check(const nbl_centers *centers, uint32_t batch, const nbl_kv_shape *shape, bool written,
                             nbl_extents *extents, nbl_error *err)
{
    const uint64_t heads = (uint64_t)centers->row_count * shape->kv_heads;
    NBL_TRY(nbl_reserved_check("nbl_centers", centers->reserved, err));
    NBL_TRY(nbl_value_check("centers.", "row_count", centers->row_count, centers->rows == NULL ? batch : 1u, INT32_MAX,
                            err));
    if ((shape->centering & NBL_CENTERING_MEAN) != 0) {
        NBL_TRY(nbl_pointer_check("centers.codes", centers->codes, heads, 1, err));
        NBL_TRY(nbl_pointer_check("centers.exponents", centers->exponents, heads, 1, err));
        nbl_extents_add(extents, "centers.codes", centers->codes, heads, shape->k_dim, written);
        nbl_extents_add(extents, "centers.exponents", centers->exponents, heads, 1, written);
    }
    if ((shape->centering & NBL_CENTERING_SHIFT) != 0) {
        NBL_TRY(nbl_pointer_check("centers.shifts", centers->shifts, heads, 1, err));
        nbl_extents_add(extents, "centers.shifts", centers->shifts, heads, shape->k_dim, written);
    }
    NBL_TRY(nbl_pointer_check("centers.rows", centers->rows, 0, sizeof(int32_t), err));
    nbl_extents_add(extents, "centers.rows", centers->rows, batch, sizeof(int32_t), false);
    return NBL_OK;
}

/* Which sequence a token belongs to matters only where its centre does. */
static nbl_status sequences_check(uint64_t tokens, uint32_t batch, const int32_t *seq_indptr,
                                  const nbl_centers *centers, const nbl_kv_shape *shape, bool written,
                                  nbl_extents *extents, nbl_error *err)
{
    NBL_TRY(nbl_value_check("", "batch", batch, tokens > 0 ? 1u : 0u, INT32_MAX, err));
    if (batch == 0)
        return NBL_OK;
    NBL_TRY(nbl_pointer_check("seq_indptr", seq_indptr, (uint64_t)batch + 1u, sizeof(int32_t), err));
    nbl_extents_add(extents, "seq_indptr", seq_indptr, (uint64_t)batch + 1u, sizeof(int32_t), false);
    return nbl_centers_check(centers, batch, shape, written, extents, err);
}

static nbl_status slots_check(const int64_t *slots, uint64_t tokens, nbl_extents *extents, nbl_error *err)
{
    NBL_TRY(nbl_pointer_check("slots", slots, tokens, sizeof(int64_t), err));
    nbl_extents_add(extents, "slots", slots, tokens, sizeof(int64_t), false);
    return NBL_OK;
}

static nbl_status append_tensors_in(nbl_append_call *call, nbl_extents *extents, nbl_error *err)
{
    const nbl_kv_shape *shape = &call->pool->shape;
    nbl_append_args *a = &call->args;
    NBL_TRY(nbl_tensor_tokens(&a->k, "k", "[T, Hk, Dk]", 3, 0, &call->tokens, err));
    const nbl_tensor_rule k = {.name = "k",
                               .axes = "[T, Hk, Dk]",
                               .dtypes = NBL_DTYPES_FLOAT,
                               .rank = 3,
                               .shape = {call->tokens, shape->kv_heads, shape->k_dim},
                               .required = true};
    const nbl_tensor_rule v = {.name = "v",
                               .axes = "[T, Hk, Dv]",
                               .dtypes = NBL_DTYPES_FLOAT,
                               .rank = 3,
                               .shape = {call->tokens, shape->kv_heads, shape->v_dim},
                               .required = true};
    NBL_TRY(nbl_tensor_in(&a->k, &k, extents, err));
    NBL_TRY(nbl_tensor_in(&a->v, &v, extents, err));
    if (a->k.dtype != a->v.dtype)
        return NBL_REFUSE(err, NBL_E_INVALID, "v.dtype is %u (needed: %u, that of k)", a->v.dtype, a->k.dtype);
    return NBL_OK;
}

static nbl_status append_args_in(nbl_append_args *a, const nbl_append_args *args, nbl_error *err)
{
    NBL_TRY(NBL_STRUCT_IN(nbl_append_args, a, args, err));
    NBL_TRY(nbl_flags_check(a->flags, 0, "nbl_append_args", err));
    return nbl_reserved_check("nbl_append_args", a->reserved, err);
}

/* Everything but the struct itself and its pool. */
static nbl_status append_check(nbl_append_call *call, const nbl_pool_copy *pool, nbl_error *err)
{
    nbl_extents extents = {.count = 0};
    nbl_append_args *a = &call->args;
    call->pool = pool;
    a->pool = &pool->pool;
    NBL_TRY(nbl_index_check("layer", a->layer, call->pool->shape.layers, err));
    NBL_TRY(nbl_value_check("", "center_mode", a->center_mode, NBL_CENTER_USE, NBL_CENTER_COMPUTE, err));
    NBL_TRY(nbl_stream_check(&a->stream, err));
    NBL_TRY(append_tensors_in(call, &extents, err));
    NBL_TRY(slots_check(a->slots, call->tokens, &extents, err));
    if (call->pool->shape.centering != 0)
        NBL_TRY(sequences_check(call->tokens, a->batch, a->seq_indptr, &a->centers, &call->pool->shape,
                                a->center_mode == NBL_CENTER_COMPUTE, &extents, err));
    NBL_TRY(nbl_pointer_check("stats", a->stats, 0, sizeof(uint64_t), err));
    nbl_extents_add(&extents, "stats", a->stats, 1, sizeof *a->stats, true);
    nbl_extents_add(&extents, "workspace", a->workspace, a->workspace_bytes, 1, true);
    nbl_pool_extents(pool, true, &extents);
    return nbl_extents_check(&extents, err);
}

nbl_status nbl_append_in(nbl_append_call *call, nbl_pool_copy *pool, const nbl_append_args *args, nbl_error *err)
{
    NBL_TRY(append_args_in(&call->args, args, err));
    NBL_TRY(nbl_pool_in(pool, call->args.pool, "pool.", err));
    return append_check(call, pool, err);
}

nbl_status nbl_append_over(nbl_append_call *call, const nbl_pool_copy *pool, const nbl_append_args *args,
                           nbl_error *err)
{
    NBL_TRY(append_args_in(&call->args, args, err));
    return append_check(call, pool, err);
}

nbl_op_desc nbl_append_desc(const nbl_append_call *call)
{
    const nbl_append_args *a = &call->args;
    nbl_op_desc desc = NBL_INIT(nbl_op_desc);
    desc.shape = &call->pool->shape;
    desc.op = NBL_OP_APPEND;
    desc.k_format = call->pool->regions[0].k_format;
    desc.v_format = call->pool->regions[0].v_format;
    desc.in_dtype = a->k.dtype;
    desc.batch_max = a->batch;
    desc.q_tokens_max = (uint32_t)call->tokens;
    return desc;
}

/* ------------------------------------------------------------------------------------------------ codes */

/* K or V of an append_coded. */
typedef struct coded_side {
    const char *name; /* "k" */
    const char *scales_name;
    const char *format_name;
    nbl_tensor *codes;
    nbl_tensor *scales;
    uint32_t format;
    uint32_t dim;
    uint32_t transforms; /* of the pool's shape, on that side */
} coded_side;

static nbl_status coded_format_check(const coded_side *side, nbl_error *err)
{
    if (side->format != NBL_NVFP4 && side->format != NBL_FP8_E4M3)
        return NBL_REFUSE(err, NBL_E_INVALID, "%s is %u (allowed: %d fp8_e4m3, %d nvfp4)", side->format_name,
                          side->format, NBL_FP8_E4M3, NBL_NVFP4);
    if (side->transforms != 0)
        return NBL_REFUSE(err, NBL_E_INVALID, "%s is given, but the pool transforms it (codes stay as they are)",
                          side->name);
    return NBL_OK;
}

/* Shape of the scales: [T, Hk, C], or matrices of all tokens. */
static nbl_status coded_scales_in(const nbl_append_coded_call *call, const coded_side *side, nbl_extents *extents,
                                  nbl_error *err)
{
    const uint64_t heads = call->pool.shape.kv_heads, columns = ((uint64_t)side->dim + 15u) / 16u;
    nbl_tensor_rule rule = {.name = side->scales_name,
                            .axes = "[T, Hk, C]",
                            .dtypes = NBL_DTYPES_U8,
                            .rank = 3,
                            .shape = {call->tokens, heads, columns},
                            .required = true};
    if (side->format != NBL_NVFP4) {
        if (nbl_tensor_present(side->scales))
            return NBL_REFUSE(err, NBL_E_INVALID, "%s.data is given, but fp8_e4m3 has no block scales",
                              side->scales_name);
        return NBL_OK;
    }
    if (call->args.scale_layout == NBL_SCALES_128X4) {
        const uint64_t matrices = side->scales->shape[0] == 1u ? 1u : heads;
        const uint64_t rows = (call->args.scale_token + call->tokens) * (matrices == heads ? 1u : heads);
        rule.axes = "[Hk or 1, 512 * ceil(rows / 128) * ceil(C / 4)]";
        rule.rank = 2;
        rule.shape[0] = matrices;
        rule.shape[1] = nbl_layout_scale_128x4_bytes(rows, (uint32_t)columns);
    }
    return nbl_tensor_in(side->scales, &rule, extents, err);
}

static nbl_status coded_side_in(nbl_append_coded_call *call, const coded_side *side, nbl_extents *extents,
                                nbl_error *err)
{
    if (!nbl_tensor_present(side->codes) && call->tokens > 0) {
        memset(side->codes, 0, sizeof *side->codes);
        memset(side->scales, 0, sizeof *side->scales);
        return NBL_OK;
    }
    const nbl_tensor_rule rule = {
        .name = side->name,
        .axes = "[T, Hk, bytes of codes]",
        .dtypes = NBL_DTYPES_U8,
        .rank = 3,
        .shape = {call->tokens, call->pool.shape.kv_heads, side->format == NBL_NVFP4 ? side->dim / 2u : side->dim},
        .required = true};
    NBL_TRY(coded_format_check(side, err));
    NBL_TRY(nbl_tensor_in(side->codes, &rule, extents, err));
    return coded_scales_in(call, side, extents, err);
}

/* The tokens come from whichever side is there; K first. */
static nbl_status coded_tokens(nbl_append_coded_call *call, nbl_error *err)
{
    const nbl_append_coded_args *a = &call->args;
    const bool has_k = nbl_tensor_present(&a->k);
    if (!has_k && !nbl_tensor_present(&a->v)) {
        call->tokens = 0;
        if ((a->k.rank != 0 && a->k.shape[0] == 0) || (a->v.rank != 0 && a->v.shape[0] == 0))
            return NBL_OK;
        return NBL_REFUSE(err, NBL_E_INVALID, "k.data and v.data are NULL (needed: at least one)");
    }
    return nbl_tensor_tokens(has_k ? &a->k : &a->v, has_k ? "k" : "v", "[T, Hk, bytes of codes]", 3, 0, &call->tokens,
                             err);
}

/* Some region can take the codes; which one a slot lies in is data. */
static nbl_status coded_region_check(const nbl_append_coded_call *call, nbl_error *err)
{
    const nbl_append_coded_args *a = &call->args;
    for (uint32_t i = 0; i < call->pool.pool.region_count; ++i) {
        const nbl_region *region = &call->pool.regions[i];
        if ((!nbl_tensor_present(&a->k) || region->k_format == a->k_format) &&
            (!nbl_tensor_present(&a->v) || region->v_format == a->v_format))
            return NBL_OK;
    }
    return NBL_REFUSE(err, NBL_E_INVALID, "k_format is %u and v_format %u, which no region of the pool has",
                      a->k_format, a->v_format);
}

nbl_status nbl_append_coded_in(nbl_append_coded_call *call, const nbl_append_coded_args *args, nbl_error *err)
{
    nbl_extents extents = {.count = 0};
    nbl_append_coded_args *a = &call->args;
    NBL_TRY(NBL_STRUCT_IN(nbl_append_coded_args, a, args, err));
    NBL_TRY(nbl_flags_check(a->flags, 0, "nbl_append_coded_args", err));
    NBL_TRY(nbl_pool_in(&call->pool, a->pool, "pool.", err));
    a->pool = &call->pool.pool;
    const nbl_kv_shape *shape = &call->pool.shape;
    NBL_TRY(nbl_index_check("layer", a->layer, shape->layers, err));
    NBL_TRY(nbl_value_check("", "scale_layout", a->scale_layout, NBL_SCALES_LINEAR, NBL_SCALES_128X4, err));
    NBL_TRY(nbl_value_check("", "scale_token", a->scale_token, 0,
                            a->scale_layout == NBL_SCALES_128X4 ? NBL_CALL_TOKENS_MAX : 0u, err));
    NBL_TRY(nbl_stream_check(&a->stream, err));
    NBL_TRY(coded_tokens(call, err));
    if (call->tokens == 0)
        return NBL_OK;
    const coded_side k = {"k",          "k_scales",  "k_format",   &a->k,
                          &a->k_scales, a->k_format, shape->k_dim, shape->centering | shape->k_hadamard};
    const coded_side v = {"v",          "v_scales",  "v_format",   &a->v,
                          &a->v_scales, a->v_format, shape->v_dim, shape->v_hadamard};
    NBL_TRY(coded_side_in(call, &k, &extents, err));
    NBL_TRY(coded_side_in(call, &v, &extents, err));
    NBL_TRY(coded_region_check(call, err));
    NBL_TRY(slots_check(a->slots, call->tokens, &extents, err));
    NBL_TRY(nbl_pointer_check("stats", a->stats, 0, sizeof(uint64_t), err));
    nbl_extents_add(&extents, "stats", a->stats, 1, sizeof *a->stats, true);
    nbl_pool_extents(&call->pool, true, &extents);
    return nbl_extents_check(&extents, err);
}

/* ------------------------------------------------------------------------------------------------ gather */

/* The tokens come from whichever output is there; K first. */
static nbl_status gather_tensors_in(nbl_gather_call *call, nbl_extents *extents, nbl_error *err)
{
    const nbl_kv_shape *shape = &call->pool.shape;
    nbl_gather_args *a = &call->args;
    const bool k_wanted = nbl_tensor_present(&a->k);
    if (!k_wanted && !nbl_tensor_present(&a->v)) {
        call->tokens = 0;
        if ((a->k.rank != 0 && a->k.shape[0] == 0) || (a->v.rank != 0 && a->v.shape[0] == 0))
            return NBL_OK; /* nothing to gather needs no memory */
        return NBL_REFUSE(err, NBL_E_INVALID, "k.data and v.data are NULL (needed: at least one output)");
    }
    NBL_TRY(k_wanted ? nbl_tensor_tokens(&a->k, "k", "[T, Hk, Dk]", 3, 0, &call->tokens, err)
                     : nbl_tensor_tokens(&a->v, "v", "[T, Hk, Dv]", 3, 0, &call->tokens, err));
    const nbl_tensor_rule k = {.name = "k",
                               .axes = "[T, Hk, Dk]",
                               .dtypes = NBL_DTYPES_FLOAT,
                               .rank = 3,
                               .shape = {call->tokens, shape->kv_heads, shape->k_dim},
                               .written = true};
    const nbl_tensor_rule v = {.name = "v",
                               .axes = "[T, Hk, Dv]",
                               .dtypes = NBL_DTYPES_FLOAT,
                               .rank = 3,
                               .shape = {call->tokens, shape->kv_heads, shape->v_dim},
                               .written = true};
    NBL_TRY(nbl_tensor_in(&a->k, &k, extents, err));
    NBL_TRY(nbl_tensor_in(&a->v, &v, extents, err));
    if (k_wanted && nbl_tensor_present(&a->v) && a->k.dtype != a->v.dtype)
        return NBL_REFUSE(err, NBL_E_INVALID, "v.dtype is %u (needed: %u, that of k)", a->v.dtype, a->k.dtype);
    return NBL_OK;
}

nbl_status nbl_gather_in(nbl_gather_call *call, const nbl_gather_args *args, nbl_error *err)
{
    nbl_extents extents = {.count = 0};
    nbl_gather_args *a = &call->args;
    NBL_TRY(NBL_STRUCT_IN(nbl_gather_args, a, args, err));
    NBL_TRY(nbl_flags_check(a->flags, NBL_GATHER_STORED, "nbl_gather_args", err));
    NBL_TRY(nbl_pool_in(&call->pool, a->pool, "pool.", err));
    a->pool = &call->pool.pool;
    NBL_TRY(nbl_index_check("layer", a->layer, call->pool.shape.layers, err));
    NBL_TRY(nbl_stream_check(&a->stream, err));
    NBL_TRY(gather_tensors_in(call, &extents, err));
    NBL_TRY(slots_check(a->slots, call->tokens, &extents, err));
    if (call->pool.shape.centering != 0 && (a->flags & NBL_GATHER_STORED) == 0 && nbl_tensor_present(&a->k))
        NBL_TRY(sequences_check(call->tokens, a->batch, a->seq_indptr, &a->centers, &call->pool.shape, false, &extents,
                                err));
    nbl_pool_extents(&call->pool, false, &extents);
    return nbl_extents_check(&extents, err);
}
