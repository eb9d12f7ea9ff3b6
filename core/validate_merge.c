/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file validate_merge.c
 * @brief Checks of merge.
 */
#include "validate.h"

/* The axes of a merge, read from its first input. */
typedef struct merge_axes {
    uint64_t count, tokens, q_heads, v_dim;
} merge_axes;

static nbl_status axes_read(nbl_merge_call *call, bool states, merge_axes *axes, nbl_error *err)
{
    const nbl_merge_args *a = &call->args;
    const nbl_tensor *in = states ? &a->in_state_o : &a->in_o;
    const char *name = states ? "in_state_o" : "in_o";
    NBL_TRY(nbl_tensor_tokens(in, name, "[N, T, Hq, Dv]", 4, 1, &call->tokens, err));
    NBL_TRY(nbl_value_check("", "count", a->count, 1, INT32_MAX, err));
    NBL_TRY(nbl_value_check(name, ".shape[2]", in->shape[2], 1, UINT32_MAX, err));
    if (in->shape[3] % NBL_DIM_STEP != 0 || in->shape[3] < NBL_DIM_MIN || in->shape[3] > NBL_V_DIM_MAX)
        return NBL_REFUSE(err, NBL_E_INVALID, "%s.shape[3] is %" PRIu64 " (allowed: multiples of %u, %u to %u)", name,
                          in->shape[3], NBL_DIM_STEP, NBL_DIM_MIN, NBL_V_DIM_MAX);
    *axes = (merge_axes){a->count, call->tokens, in->shape[2], in->shape[3]};
    return NBL_OK;
}

static nbl_status states_in(nbl_merge_args *a, const merge_axes *x, nbl_extents *extents, nbl_error *err)
{
    const nbl_tensor_rule head = {.name = "in_state_head",
                                  .axes = "[N, T, Hq, 4]",
                                  .dtypes = NBL_DTYPES_F32,
                                  .rank = 4,
                                  .shape = {x->count, x->tokens, x->q_heads, 4},
                                  .required = true};
    const nbl_tensor_rule o = {.name = "in_state_o",
                               .axes = "[N, T, Hq, Dv]",
                               .dtypes = NBL_DTYPES_F32,
                               .rank = 4,
                               .shape = {x->count, x->tokens, x->q_heads, x->v_dim},
                               .required = true};
    if (nbl_tensor_present(&a->in_o) || nbl_tensor_present(&a->in_lse))
        return NBL_REFUSE(err, NBL_E_INVALID, "in_state_o and in_o are both given (allowed: states or pairs)");
    NBL_TRY(nbl_tensor_in(&a->in_state_head, &head, extents, err));
    return nbl_tensor_in(&a->in_state_o, &o, extents, err);
}

/* Pairs are finished results: what only a state can carry is refused. */
static nbl_status pairs_only_check(const nbl_merge_args *a, nbl_error *err)
{
    if (nbl_tensor_present(&a->state_head) || nbl_tensor_present(&a->state_o))
        return NBL_REFUSE(err, NBL_E_INVALID, "state_head and state_o with pairs in (allowed: only from states)");
    if (a->sinks != NULL)
        return NBL_REFUSE(err, NBL_E_INVALID, "sinks with pairs in (allowed: only from states)");
    if (a->v_hadamard != 0)
        return NBL_REFUSE(err, NBL_E_INVALID, "v_hadamard is %u with pairs in (allowed: 0)", a->v_hadamard);
    return NBL_OK;
}

static nbl_status pairs_in(nbl_merge_args *a, const merge_axes *x, nbl_extents *extents, nbl_error *err)
{
    const nbl_tensor_rule o = {.name = "in_o",
                               .axes = "[N, T, Hq, Dv]",
                               .dtypes = NBL_DTYPES_FLOAT,
                               .rank = 4,
                               .shape = {x->count, x->tokens, x->q_heads, x->v_dim},
                               .required = true};
    const nbl_tensor_rule lse = {.name = "in_lse",
                                 .axes = "[N, T, Hq]",
                                 .dtypes = NBL_DTYPES_F32,
                                 .rank = 3,
                                 .shape = {x->count, x->tokens, x->q_heads},
                                 .required = true};
    NBL_TRY(pairs_only_check(a, err));
    NBL_TRY(nbl_tensor_in(&a->in_o, &o, extents, err));
    return nbl_tensor_in(&a->in_lse, &lse, extents, err);
}

static nbl_status outputs_in(nbl_merge_args *a, const merge_axes *x, nbl_extents *extents, nbl_error *err)
{
    const nbl_tensor_rule rules[] = {
        {"state_head", "[T, Hq, 4]", NBL_DTYPES_F32, 3, {x->tokens, x->q_heads, 4}, false, true},
        {"state_o", "[T, Hq, Dv]", NBL_DTYPES_F32, 3, {x->tokens, x->q_heads, x->v_dim}, false, true},
        {"o", "[T, Hq, Dv]", NBL_DTYPES_FLOAT, 3, {x->tokens, x->q_heads, x->v_dim}, false, true},
        {"lse", "[T, Hq]", NBL_DTYPES_F32, 2, {x->tokens, x->q_heads}, false, true},
    };
    nbl_tensor *tensors[] = {&a->state_head, &a->state_o, &a->o, &a->lse};
    const bool state = nbl_tensor_present(&a->state_head);
    const bool result = nbl_tensor_present(&a->o) || nbl_tensor_present(&a->lse);
    if (state != nbl_tensor_present(&a->state_o))
        return NBL_REFUSE(err, NBL_E_INVALID, "%s.data is NULL (needed: state_head and state_o together, or neither)",
                          state ? "state_o" : "state_head");
    if (!state && !result && x->tokens > 0)
        return NBL_REFUSE(err, NBL_E_INVALID, "o, lse and state_o are all absent (needed: at least one output)");
    if (a->sinks != NULL && !result)
        return NBL_REFUSE(err, NBL_E_INVALID, "sinks without o or lse (allowed: NULL; a state carries no sink)");
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; ++i)
        NBL_TRY(nbl_tensor_in(tensors[i], &rules[i], extents, err));
    return NBL_OK;
}

nbl_status nbl_merge_in(nbl_merge_call *call, const nbl_merge_args *args, nbl_error *err)
{
    nbl_extents extents = {.count = 0};
    nbl_merge_args *a = &call->args;
    merge_axes axes = {0};
    NBL_TRY(NBL_STRUCT_IN(nbl_merge_args, a, args, err));
    NBL_TRY(nbl_flags_check(a->flags, NBL_MERGE_LSE_BASE2, "nbl_merge_args", err));
    const bool states =
        nbl_tensor_present(&a->in_state_head) || nbl_tensor_present(&a->in_state_o) || a->in_state_o.rank != 0;
    NBL_TRY(axes_read(call, states, &axes, err));
    NBL_TRY(nbl_hadamard_check("", "v_hadamard", a->v_hadamard, (uint32_t)axes.v_dim, err));
    NBL_TRY(states ? states_in(a, &axes, &extents, err) : pairs_in(a, &axes, &extents, err));
    NBL_TRY(outputs_in(a, &axes, &extents, err));
    NBL_TRY(nbl_pointer_check("sinks", a->sinks, 0, sizeof(float), err));
    nbl_extents_add(&extents, "sinks", a->sinks, axes.q_heads, sizeof(float), false);
    NBL_TRY(nbl_stream_check(&a->stream, err));
    return nbl_extents_check(&extents, err);
}
