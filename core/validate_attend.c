/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file validate_attend.c
 * @brief Checks of attend.
 */
#include "validate.h"

#include "num/layout.h"

#define WINDOW_FLAGS (NBL_ATTEND_WINDOW_LEFT | NBL_ATTEND_WINDOW_RIGHT)
#define SM_SCALE_MIN 0x1p-24f
#define SM_SCALE_MAX 0x1p16f
#define SOFT_CAP_MIN 0x1p-10f
#define SOFT_CAP_MAX 0x1p20f

/* NaN is outside every range. */
static nbl_status float_check(const char *name, float value, float low, float high, nbl_error *err)
{
    if (value == 0.0f || (value >= low && value <= high))
        return NBL_OK;
    return NBL_REFUSE(err, NBL_E_INVALID, "%s is %g (allowed: 0, or %g to %g)", name, (double)value, (double)low,
                      (double)high);
}

static nbl_status window_check(const char *name, uint32_t window, uint32_t flags, uint32_t flag, nbl_error *err)
{
    if (window == 0 || (flags & flag) != 0)
        return NBL_OK;
    return NBL_REFUSE(err, NBL_E_INVALID, "%s is %u but its flag %u is not set (allowed without it: 0)", name, window,
                      flag);
}

static nbl_status range_check(const nbl_attend_args *a, nbl_error *err)
{
    const uint32_t begin = a->range_begin, end = a->range_end;
    if (begin == 0 && end == 0)
        return NBL_OK;
    if (begin % NBL_CHUNK_TOKENS == 0 && end % NBL_CHUNK_TOKENS == 0 && begin < end)
        return NBL_OK;
    return NBL_REFUSE(err, NBL_E_INVALID,
                      "range_begin is %u and range_end is %u (allowed: multiples of %u with begin < end, or both 0)",
                      begin, end, NBL_CHUNK_TOKENS);
}

static nbl_status tree_check(const nbl_attend_args *a, nbl_error *err)
{
    if (a->tree_mask == NULL && a->tree_mask_stride == 0)
        return NBL_OK;
    if (a->tree_mask == NULL)
        return NBL_REFUSE(err, NBL_E_INVALID, "tree_mask_stride is %u (allowed without tree_mask: 0)",
                          a->tree_mask_stride);
    if ((a->flags & WINDOW_FLAGS) != 0)
        return NBL_REFUSE(err, NBL_E_INVALID,
                          "tree_mask with window flags %u (allowed: 0; slots of a tree are not positions)",
                          a->flags & WINDOW_FLAGS);
    if (a->alibi_slopes != NULL)
        return NBL_REFUSE(err, NBL_E_INVALID,
                          "tree_mask with alibi_slopes (allowed: NULL; slots of a tree are not positions)");
    return nbl_value_check("", "tree_mask_stride", a->tree_mask_stride, ((uint64_t)a->q_len_max + 31u) / 32u,
                           UINT32_MAX, err);
}

/* The Blackwell core takes one format of K and fp8 V (NUM 7). */
static nbl_status fp4_check(const nbl_attend_call *call, nbl_error *err)
{
    const nbl_pool *pool = &call->pool->pool;
    for (uint32_t i = 0; call->args.q_format == NBL_Q_FP4 && i < pool->region_count; ++i) {
        const nbl_region *region = &pool->regions[i];
        if (!nbl_layout_is_fp4(region->k_format, region->v_format) || region->k_format != pool->regions[0].k_format)
            return NBL_REFUSE(err, NBL_E_INVALID,
                              "q_format is %u with pool.regions[%u] of formats %u and %u (needed: K nvfp4, mxfp4 or "
                              "mxfp4_16, the same in all regions, V fp8_e4m3)",
                              call->args.q_format, i, region->k_format, region->v_format);
    }
    return NBL_OK;
}

static nbl_status scalars_check(const nbl_attend_call *call, nbl_error *err)
{
    const nbl_attend_args *a = &call->args;
    NBL_TRY(nbl_flags_check(a->flags, NBL_ATTEND_FLAGS_ALL, "nbl_attend_args", err));
    NBL_TRY(nbl_index_check("layer", a->layer, call->pool->shape.layers, err));
    NBL_TRY(nbl_value_check("", "q_format", a->q_format, NBL_Q_DEFAULT, NBL_Q_FP4, err));
    NBL_TRY(fp4_check(call, err));
    if (nbl_tensor_present(&a->q_centers) && a->q_format != NBL_Q_FP4)
        return NBL_REFUSE(err, NBL_E_INVALID, "q_centers with q_format %u (needed: absent, or q_format %u)",
                          a->q_format, NBL_Q_FP4);
    if (a->q_heads == 0 || a->q_heads % call->pool->shape.kv_heads != 0)
        return NBL_REFUSE(err, NBL_E_INVALID, "q_heads is %u (allowed: multiples of kv_heads %u, from %u)", a->q_heads,
                          call->pool->shape.kv_heads, call->pool->shape.kv_heads);
    NBL_TRY(nbl_value_check("", "kv_len_max", a->kv_len_max, 0, NBL_KV_TOKENS_MAX, err));
    NBL_TRY(float_check("sm_scale", a->sm_scale, SM_SCALE_MIN, SM_SCALE_MAX, err));
    NBL_TRY(float_check("soft_cap", a->soft_cap, SOFT_CAP_MIN, SOFT_CAP_MAX, err));
    if (a->soft_cap != 0.0f && (call->pool->shape.centering & NBL_CENTERING_MEAN) != 0)
        return NBL_REFUSE(err, NBL_E_INVALID,
                          "soft_cap is %g with NBL_CENTERING_MEAN (allowed: 0; the centre would not cancel)",
                          (double)a->soft_cap);
    NBL_TRY(window_check("window_left", a->window_left, a->flags, NBL_ATTEND_WINDOW_LEFT, err));
    NBL_TRY(window_check("window_right", a->window_right, a->flags, NBL_ATTEND_WINDOW_RIGHT, err));
    NBL_TRY(range_check(a, err));
    NBL_TRY(tree_check(a, err));
    return nbl_stream_check(&a->stream, err);
}

/* Bounds must fit the tensors: rows belong to sequences, and no sequence exceeds its bound. */
static nbl_status bounds_check(const nbl_attend_call *call, nbl_error *err)
{
    const nbl_attend_args *a = &call->args;
    const uint64_t rows = call->q_tokens;
    NBL_TRY(nbl_value_check("", "batch", a->batch, rows > 0 ? 1u : 0u, INT32_MAX, err));
    NBL_TRY(nbl_value_check("", "q_len_max", a->q_len_max, rows > 0 ? 1u : 0u, NBL_KV_TOKENS_MAX, err));
    if (rows > (uint64_t)a->batch * a->q_len_max)
        return NBL_REFUSE(err, NBL_E_INVALID,
                          "q.shape[0] is %" PRIu64 " (allowed: at most batch %u times q_len_max %u)", rows, a->batch,
                          a->q_len_max);
    const uint64_t pages =
        ((uint64_t)a->kv_len_max + call->pool->shape.page_tokens - 1u) / call->pool->shape.page_tokens;
    return nbl_value_check("", "page_table_stride", a->page_table_stride, a->batch > 0 ? pages : 0u, UINT32_MAX, err);
}

/* Chunks that the range covers of a sequence of kv_len_max tokens: the states a row can have. */
static uint64_t chunks_needed(const nbl_attend_args *a)
{
    const uint64_t end = a->range_end != 0 && a->range_end < a->kv_len_max ? a->range_end : a->kv_len_max;
    const uint64_t tokens = end > a->range_begin ? end - a->range_begin : 0;
    const uint64_t chunks = (tokens + NBL_CHUNK_TOKENS - 1u) / NBL_CHUNK_TOKENS;
    return chunks > 0 ? chunks : 1u;
}

static nbl_status states_in(nbl_attend_call *call, nbl_extents *extents, nbl_error *err)
{
    nbl_attend_args *a = &call->args;
    const bool wanted = nbl_tensor_present(&a->state_head);
    uint64_t chunks = 0;
    if (wanted != nbl_tensor_present(&a->state_o))
        return NBL_REFUSE(err, NBL_E_INVALID, "%s.data is NULL (needed: state_head and state_o together, or neither)",
                          wanted ? "state_o" : "state_head");
    if (wanted) {
        NBL_TRY(nbl_tensor_tokens(&a->state_head, "state_head", "[N, Tq, Hq, 4]", 4, 0, &chunks, err));
        NBL_TRY(nbl_value_check("state_head.", "shape[0]", chunks, chunks_needed(a), NBL_CALL_TOKENS_MAX, err));
    }
    const nbl_tensor_rule head = {.name = "state_head",
                                  .axes = "[N, Tq, Hq, 4]",
                                  .dtypes = NBL_DTYPES_F32,
                                  .rank = 4,
                                  .shape = {chunks, call->q_tokens, a->q_heads, 4},
                                  .written = true};
    const nbl_tensor_rule o = {.name = "state_o",
                               .axes = "[N, Tq, Hq, Dv]",
                               .dtypes = NBL_DTYPES_F32,
                               .rank = 4,
                               .shape = {chunks, call->q_tokens, a->q_heads, call->pool->shape.v_dim},
                               .written = true};
    NBL_TRY(nbl_tensor_in(&a->state_head, &head, extents, err));
    return nbl_tensor_in(&a->state_o, &o, extents, err);
}

static nbl_status tensors_in(nbl_attend_call *call, nbl_extents *extents, nbl_error *err)
{
    nbl_attend_args *a = &call->args;
    NBL_TRY(nbl_tensor_tokens(&a->q, "q", "[Tq, Hq, Dk]", 3, 0, &call->q_tokens, err));
    const nbl_tensor_rule q = {.name = "q",
                               .axes = "[Tq, Hq, Dk]",
                               .dtypes = NBL_DTYPES_FLOAT,
                               .rank = 3,
                               .shape = {call->q_tokens, a->q_heads, call->pool->shape.k_dim},
                               .required = true};
    const nbl_tensor_rule o = {.name = "o",
                               .axes = "[Tq, Hq, Dv]",
                               .dtypes = NBL_DTYPES_FLOAT,
                               .rank = 3,
                               .shape = {call->q_tokens, a->q_heads, call->pool->shape.v_dim},
                               .written = true};
    const nbl_tensor_rule lse = {.name = "lse",
                                 .axes = "[Tq, Hq]",
                                 .dtypes = NBL_DTYPES_F32,
                                 .rank = 2,
                                 .shape = {call->q_tokens, a->q_heads},
                                 .written = true};
    const nbl_tensor_rule centers = {.name = "q_centers",
                                     .axes = "[B, Hq, Dk]",
                                     .dtypes = NBL_DTYPES_FLOAT,
                                     .rank = 3,
                                     .shape = {a->batch, a->q_heads, call->pool->shape.k_dim}};
    NBL_TRY(nbl_tensor_in(&a->q, &q, extents, err));
    NBL_TRY(nbl_tensor_in(&a->q_centers, &centers, extents, err));
    NBL_TRY(nbl_tensor_in(&a->o, &o, extents, err));
    NBL_TRY(nbl_tensor_in(&a->lse, &lse, extents, err));
    NBL_TRY(states_in(call, extents, err));
    if (call->q_tokens > 0 && !nbl_tensor_present(&a->o) && !nbl_tensor_present(&a->lse) &&
        !nbl_tensor_present(&a->state_o))
        return NBL_REFUSE(err, NBL_E_INVALID, "o, lse and state_o are all absent (needed: at least one output)");
    return NBL_OK;
}

static nbl_status arrays_check(const nbl_attend_call *call, nbl_extents *extents, nbl_error *err)
{
    const nbl_attend_args *a = &call->args;
    const uint64_t batch = a->batch;
    const uint64_t table = a->kv_len_max > 0 ? batch * a->page_table_stride : 0;
    const uint64_t mask = a->tree_mask != NULL ? call->q_tokens * a->tree_mask_stride : 0;
    const struct {
        const char *name;
        const void *pointer;
        uint64_t count;
        bool required;
    } arrays[] = {
        {"q_indptr", a->q_indptr, batch > 0 ? batch + 1u : 0, true},
        {"kv_len", a->kv_len, batch, true},
        {"page_table", a->page_table, table, true},
        {"alibi_slopes", a->alibi_slopes, a->q_heads, false},
        {"sinks", a->sinks, a->q_heads, false},
        {"tree_mask", a->tree_mask, mask, false},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; ++i) {
        NBL_TRY(nbl_pointer_check(arrays[i].name, arrays[i].pointer, arrays[i].required ? arrays[i].count : 0,
                                  sizeof(uint32_t), err));
        nbl_extents_add(extents, arrays[i].name, arrays[i].pointer, arrays[i].count, sizeof(uint32_t), false);
    }
    if (call->pool->shape.centering != 0 && batch > 0)
        NBL_TRY(nbl_centers_check(&a->centers, a->batch, &call->pool->shape, false, extents, err));
    return NBL_OK;
}

/* Everything but the struct itself and its pool. */
static nbl_status attend_check(nbl_attend_call *call, const nbl_pool_copy *pool, nbl_error *err)
{
    nbl_extents extents = {.count = 0};
    nbl_attend_args *a = &call->args;
    call->pool = pool;
    a->pool = &pool->pool;
    NBL_TRY(scalars_check(call, err));
    NBL_TRY(tensors_in(call, &extents, err));
    NBL_TRY(bounds_check(call, err));
    NBL_TRY(arrays_check(call, &extents, err));
    nbl_extents_add(&extents, "workspace", a->workspace, a->workspace_bytes, 1, true);
    nbl_pool_extents(pool, false, &extents);
    return nbl_extents_check(&extents, err);
}

nbl_status nbl_attend_in(nbl_attend_call *call, nbl_pool_copy *pool, const nbl_attend_args *args, nbl_error *err)
{
    NBL_TRY(NBL_STRUCT_IN(nbl_attend_args, &call->args, args, err));
    NBL_TRY(nbl_pool_in(pool, call->args.pool, "pool.", err));
    return attend_check(call, pool, err);
}

nbl_status nbl_attend_over(nbl_attend_call *call, const nbl_pool_copy *pool, const nbl_attend_args *args,
                           nbl_error *err)
{
    NBL_TRY(NBL_STRUCT_IN(nbl_attend_args, &call->args, args, err));
    return attend_check(call, pool, err);
}

static uint32_t features_of(const nbl_attend_args *a)
{
    uint32_t features = 0;
    features |= (a->flags & NBL_ATTEND_CAUSAL) != 0 ? NBL_FEATURE_CAUSAL : 0u;
    features |= (a->flags & WINDOW_FLAGS) != 0 ? NBL_FEATURE_WINDOW : 0u;
    features |= a->sinks != NULL ? NBL_FEATURE_SINKS : 0u;
    features |= a->soft_cap != 0.0f ? NBL_FEATURE_SOFT_CAP : 0u;
    features |= a->alibi_slopes != NULL ? NBL_FEATURE_ALIBI : 0u;
    features |= a->tree_mask != NULL ? NBL_FEATURE_TREE_MASK : 0u;
    features |= a->range_end != 0 ? NBL_FEATURE_RANGE : 0u;
    features |= nbl_tensor_present(&a->state_o) ? NBL_FEATURE_STATE : 0u;
    features |= nbl_tensor_present(&a->lse) ? NBL_FEATURE_LSE : 0u;
    features |= nbl_tensor_present(&a->q_centers) ? NBL_FEATURE_Q_CENTERS : 0u;
    return features;
}

nbl_op_desc nbl_attend_desc(const nbl_attend_call *call)
{
    const nbl_attend_args *a = &call->args;
    nbl_op_desc desc = NBL_INIT(nbl_op_desc);
    desc.shape = &call->pool->shape;
    desc.op = NBL_OP_ATTEND;
    desc.k_format = call->pool->regions[0].k_format;
    desc.v_format = call->pool->regions[0].v_format;
    desc.q_format = a->q_format;
    desc.q_heads = a->q_heads;
    desc.in_dtype = a->q.dtype;
    desc.out_dtype = a->o.dtype;
    desc.features = features_of(a);
    desc.batch_max = a->batch;
    desc.q_tokens_max = (uint32_t)call->q_tokens;
    desc.q_len_max = a->q_len_max;
    desc.kv_len_max = a->kv_len_max;
    return desc;
}
