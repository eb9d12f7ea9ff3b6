/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tensor.c
 * @brief Checks of tensor arguments.
 */
#include "check.h"

#include <string.h>

uint32_t nbl_dtype_bytes(uint32_t dtype)
{
    switch (dtype) {
    case NBL_F32: return 4u;
    case NBL_F16:
    case NBL_BF16: return 2u;
    case NBL_U8: return 1u;
    default: return 0u;
    }
}

static nbl_status rank_check(const nbl_tensor *tensor, const char *name, const char *axes, uint32_t rank,
                             nbl_error *err)
{
    if (tensor->rank == rank)
        return NBL_OK;
    return NBL_REFUSE(err, NBL_E_INVALID, "%s.rank is %u (needed: %u, %s)", name, tensor->rank, rank, axes);
}

nbl_status nbl_tensor_tokens(const nbl_tensor *tensor, const char *name, const char *axes, uint32_t rank, uint32_t axis,
                             uint64_t *out_tokens, nbl_error *err)
{
    NBL_TRY(rank_check(tensor, name, axes, rank, err));
    if (tensor->shape[axis] > NBL_CALL_TOKENS_MAX)
        return NBL_REFUSE(err, NBL_E_INVALID, "%s.shape[%u] is %" PRIu64 " (allowed: 0 to %" PRIu64 ")", name, axis,
                          tensor->shape[axis], NBL_CALL_TOKENS_MAX);
    *out_tokens = tensor->shape[axis];
    return NBL_OK;
}

static nbl_status dtype_check(const nbl_tensor *tensor, const nbl_tensor_rule *rule, nbl_error *err)
{
    if (nbl_dtype_bytes(tensor->dtype) != 0 && (rule->dtypes >> tensor->dtype & 1u) != 0)
        return NBL_OK;
    return NBL_REFUSE(err, NBL_E_INVALID, "%s.dtype is %u (allowed: %s)", rule->name, tensor->dtype,
                      rule->dtypes == NBL_DTYPES_F32  ? "1 f32"
                      : rule->dtypes == NBL_DTYPES_U8 ? "4 u8"
                                                      : "1 f32, 2 f16, 3 bf16");
}

/* Also gives the number of elements, which may be zero. */
static nbl_status shape_match(const nbl_tensor *tensor, const nbl_tensor_rule *rule, bool *out_empty, nbl_error *err)
{
    *out_empty = false;
    for (uint32_t i = 0; i < rule->rank; ++i) {
        if (tensor->shape[i] != rule->shape[i])
            return NBL_REFUSE(err, NBL_E_INVALID, "%s.shape[%u] is %" PRIu64 " (needed: %" PRIu64 ", %s)", rule->name,
                              i, tensor->shape[i], rule->shape[i], rule->axes);
        *out_empty |= tensor->shape[i] == 0;
    }
    return NBL_OK;
}

static bool strides_packed(const nbl_tensor *tensor)
{
    for (uint32_t i = 0; i < tensor->rank; ++i) {
        if (tensor->stride_bytes[i] != 0)
            return false;
    }
    return true;
}

/* Writes the strides that an all-zero stride_bytes stands for. */
static nbl_status strides_pack(nbl_tensor *tensor, const char *name, nbl_error *err)
{
    uint64_t stride = nbl_dtype_bytes(tensor->dtype);
    for (uint32_t i = tensor->rank; i-- > 0;) {
        tensor->stride_bytes[i] = (int64_t)stride;
        if (tensor->shape[i] > 0 && stride > (uint64_t)INT64_MAX / tensor->shape[i])
            return NBL_REFUSE(err, NBL_E_INVALID, "%s has more bytes than memory can hold", name);
        stride *= tensor->shape[i];
    }
    return NBL_OK;
}

static uint64_t stride_magnitude(int64_t stride)
{
    return stride < 0 ? 0u - (uint64_t)stride : (uint64_t)stride;
}

static nbl_status alignment_check(const nbl_tensor *tensor, const char *name, nbl_error *err)
{
    const uint32_t bytes = nbl_dtype_bytes(tensor->dtype);
    if ((uintptr_t)tensor->data % bytes != 0)
        return NBL_REFUSE(err, NBL_E_ALIGN, "%s.data is %p (needed: a multiple of %u)", name, tensor->data, bytes);
    for (uint32_t i = 0; i < tensor->rank; ++i) {
        if (tensor->shape[i] > 1 && stride_magnitude(tensor->stride_bytes[i]) % bytes != 0)
            return NBL_REFUSE(err, NBL_E_ALIGN, "%s.stride_bytes[%u] is %" PRId64 " (needed: a multiple of %u)", name,
                              i, tensor->stride_bytes[i], bytes);
    }
    return NBL_OK;
}

/* Adds the bytes from the lowest to the highest element; strides may be negative. */
static nbl_status extent_add(const nbl_tensor *tensor, const nbl_tensor_rule *rule, nbl_extents *extents,
                             nbl_error *err)
{
    nbl_axis axes[NBL_RANK_MAX], down[NBL_RANK_MAX];
    for (uint32_t i = 0; i < tensor->rank; ++i) {
        axes[i] = (nbl_axis){tensor->shape[i], stride_magnitude(tensor->stride_bytes[i])};
        down[i] = tensor->stride_bytes[i] < 0 ? axes[i] : (nbl_axis){0, 0};
    }
    const uint32_t bytes = nbl_dtype_bytes(tensor->dtype);
    const uintptr_t data = (uintptr_t)tensor->data;
    uint64_t span, below;
    if (!nbl_axes_span(axes, tensor->rank, bytes, &span) || !nbl_axes_span(down, tensor->rank, 0, &below) ||
        below > data || span - below > UINTPTR_MAX - data)
        return NBL_REFUSE(err, NBL_E_INVALID, "%s reaches beyond the address space", rule->name);
    if (rule->written && !nbl_axes_disjoint(axes, tensor->rank, bytes))
        return NBL_REFUSE(err, NBL_E_OVERLAP,
                          "%s.stride_bytes lets elements of an output overlap (needed: each stride at least the span "
                          "of all smaller ones)",
                          rule->name);
    nbl_extents_add(extents, rule->name, (const void *)(data - (uintptr_t)below), span, 1, rule->written);
    return NBL_OK;
}

nbl_status nbl_tensor_in(nbl_tensor *tensor, const nbl_tensor_rule *rule, nbl_extents *extents, nbl_error *err)
{
    bool empty;
    if (!nbl_tensor_present(tensor) && !rule->required) {
        memset(tensor, 0, sizeof *tensor);
        return NBL_OK;
    }
    NBL_TRY(rank_check(tensor, rule->name, rule->axes, rule->rank, err));
    NBL_TRY(dtype_check(tensor, rule, err));
    NBL_TRY(shape_match(tensor, rule, &empty, err));
    if (!nbl_tensor_present(tensor) && !empty)
        return NBL_REFUSE(err, NBL_E_INVALID, "%s.data is NULL (needed: %s)", rule->name, rule->axes);
    if (strides_packed(tensor))
        NBL_TRY(strides_pack(tensor, rule->name, err));
    NBL_TRY(alignment_check(tensor, rule->name, err));
    return empty ? NBL_OK : extent_add(tensor, rule, extents, err);
}
