/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file validate_desc.c
 * @brief Checks of operation descriptions.
 */
#include "validate.h"

#include "num/layout.h"

static nbl_status formats_check(const nbl_op_desc *d, nbl_error *err)
{
    if (d->op == NBL_OP_MERGE)
        return NBL_OK;
    NBL_TRY(nbl_format_check("", "k_format", d->k_format, err));
    NBL_TRY(nbl_format_check("", "v_format", d->v_format, err));
    if (d->op != NBL_OP_TRANSCODE)
        return NBL_OK;
    NBL_TRY(nbl_format_check("", "dst_k_format", d->dst_k_format, err));
    return nbl_format_check("", "dst_v_format", d->dst_v_format, err);
}

/* in is 1 where the dtype must be one of the three, 0 where it may also be absent. */
static nbl_status dtype_check(const char *field, uint32_t dtype, bool needed, nbl_error *err)
{
    return nbl_value_check("", field, dtype, needed ? NBL_F32 : NBL_DTYPE_NONE, NBL_BF16, err);
}

static nbl_status features_check(const nbl_op_desc *d, nbl_error *err)
{
    const uint32_t tree = d->features & NBL_FEATURE_TREE_MASK;
    if ((d->features & ~NBL_FEATURES_ALL) != 0)
        return NBL_REFUSE(err, NBL_E_INVALID, "features is %#x (allowed: bits of %#x)", d->features, NBL_FEATURES_ALL);
    if (tree != 0 && (d->features & (NBL_FEATURE_WINDOW | NBL_FEATURE_ALIBI)) != 0)
        return NBL_REFUSE(err, NBL_E_INVALID,
                          "features is %#x: tree mask with window or ALiBi (slots of a tree are not positions)",
                          d->features);
    if ((d->features & NBL_FEATURE_SOFT_CAP) != 0 && (d->shape->centering & NBL_CENTERING_MEAN) != 0)
        return NBL_REFUSE(err, NBL_E_INVALID,
                          "features is %#x: soft cap with NBL_CENTERING_MEAN (the centre would not cancel)",
                          d->features);
    return NBL_OK;
}

static nbl_status heads_check(const nbl_op_desc *d, nbl_error *err)
{
    if (d->op != NBL_OP_ATTEND && d->op != NBL_OP_MERGE)
        return NBL_OK;
    if (d->q_heads != 0 && d->q_heads % d->shape->kv_heads == 0)
        return NBL_OK;
    return NBL_REFUSE(err, NBL_E_INVALID, "q_heads is %u (allowed: multiples of kv_heads %u, from %u)", d->q_heads,
                      d->shape->kv_heads, d->shape->kv_heads);
}

nbl_status nbl_desc_in(nbl_desc_copy *copy, const nbl_op_desc *desc, nbl_error *err)
{
    nbl_op_desc *d = &copy->desc;
    NBL_TRY(NBL_STRUCT_IN(nbl_op_desc, d, desc, err));
    NBL_TRY(nbl_flags_check(d->flags, 0, "nbl_op_desc", err));
    NBL_TRY(nbl_value_check("", "op", d->op, NBL_OP_APPEND, NBL_OP_APPEND_CODED, err));
    NBL_TRY(nbl_shape_in(&copy->shape, d->shape, "shape.", err));
    d->shape = &copy->shape;
    NBL_TRY(formats_check(d, err));
    NBL_TRY(nbl_value_check("", "q_format", d->q_format, NBL_Q_DEFAULT, NBL_Q_FP4, err));
    NBL_TRY(heads_check(d, err));
    NBL_TRY(dtype_check("in_dtype", d->in_dtype, d->op == NBL_OP_APPEND || d->op == NBL_OP_ATTEND, err));
    NBL_TRY(dtype_check("out_dtype", d->out_dtype, d->op == NBL_OP_GATHER, err));
    NBL_TRY(features_check(d, err));
    NBL_TRY(nbl_value_check("", "q_tokens_max", d->q_tokens_max, 0, NBL_CALL_TOKENS_MAX, err));
    NBL_TRY(nbl_value_check("", "q_len_max", d->q_len_max, 0, NBL_KV_TOKENS_MAX, err));
    if (d->op == NBL_OP_ATTEND && d->q_format == NBL_Q_FP4 && !nbl_layout_is_fp4(d->k_format, d->v_format))
        return NBL_REFUSE(err, NBL_E_INVALID,
                          "q_format is %u with formats %u and %u (needed: K nvfp4, mxfp4 or mxfp4_16, V fp8_e4m3)",
                          d->q_format, d->k_format, d->v_format);
    if ((d->features & NBL_FEATURE_Q_CENTERS) != 0 && (d->op != NBL_OP_ATTEND || d->q_format != NBL_Q_FP4))
        return NBL_REFUSE(err, NBL_E_INVALID,
                          "features is %#x: centred queries with op %u and q_format %u (needed: %u, %u)", d->features,
                          d->op, d->q_format, NBL_OP_ATTEND, NBL_Q_FP4);
    return nbl_value_check("", "kv_len_max", d->kv_len_max, 0, NBL_KV_TOKENS_MAX, err);
}
