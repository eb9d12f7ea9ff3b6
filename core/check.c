/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file check.c
 * @brief Checks of values, pointers, strided sets and overlap.
 */
#include "check.h"

#include "num/layout.h"

#include <stdio.h>
#include <string.h>

/* Sizes beyond it are refused, so that sums of a few of them cannot wrap. */
#define SPAN_BYTES_MAX ((uint64_t)1 << 62)

nbl_status nbl_value_check(const char *prefix, const char *field, uint64_t value, uint64_t low, uint64_t high,
                           nbl_error *err)
{
    if (value >= low && value <= high)
        return NBL_OK;
    return NBL_REFUSE(err, NBL_E_INVALID, "%s%s is %" PRIu64 " (allowed: %" PRIu64 " to %" PRIu64 ")", prefix, field,
                      value, low, high);
}

nbl_status nbl_index_check(const char *field, uint64_t index, uint64_t count, nbl_error *err)
{
    if (index < count)
        return NBL_OK;
    return NBL_REFUSE(err, NBL_E_RANGE, "%s is %" PRIu64 " (allowed: 0 to %" PRIu64 ")", field, index, count - 1u);
}

nbl_status nbl_reserved_check(const char *type_name, uint64_t value, nbl_error *err)
{
    if (value == 0)
        return NBL_OK;
    return NBL_REFUSE(err, NBL_E_UNKNOWN_FIELD, "%s.reserved is %" PRIu64 " (allowed: 0)", type_name, value);
}

nbl_status nbl_pointer_check(const char *field, const void *pointer, uint64_t count, uint32_t alignment, nbl_error *err)
{
    if (pointer == NULL && count > 0)
        return NBL_REFUSE(err, NBL_E_INVALID, "%s is NULL (needed: %" PRIu64 " %s)", field, count,
                          count == 1 ? "entry" : "entries");
    if ((uintptr_t)pointer % alignment != 0)
        return NBL_REFUSE(err, NBL_E_ALIGN, "%s is %p (needed: a multiple of %u)", field, pointer, alignment);
    return NBL_OK;
}

nbl_status nbl_stream_check(const nbl_stream *stream, nbl_error *err)
{
    return nbl_value_check("stream.", "kind", stream->kind, NBL_STREAM_HOST, NBL_STREAM_CUDA, err);
}

nbl_status nbl_format_check(const char *prefix, const char *field, uint32_t format, nbl_error *err)
{
    if (nbl_layout_code_bits(format) != 0)
        return NBL_OK;
    return NBL_REFUSE(err, NBL_E_INVALID,
                      "%s%s is %u (allowed: %d int8, %d mxfp4, %d mxfp4_16, %d int4p, %d bf16, %d fp16, %d fp8_e4m3, "
                      "%d nvfp4)",
                      prefix, field, format, NBL_INT8, NBL_MXFP4, NBL_MXFP4_16, NBL_INT4P, NBL_FORMAT_BF16,
                      NBL_FORMAT_FP16, NBL_FP8_E4M3, NBL_NVFP4);
}

nbl_status nbl_hadamard_check(const char *prefix, const char *field, uint32_t block, uint32_t dim, nbl_error *err)
{
    const bool power_of_two = (block & (block - 1u)) == 0;
    if (block == 0 || (power_of_two && block >= 8u && block <= NBL_HADAMARD_MAX && dim % block == 0))
        return NBL_OK;
    return NBL_REFUSE(err, NBL_E_INVALID, "%s%s is %u (allowed: 0 or a power of two 8 to %u dividing %u)", prefix,
                      field, block, NBL_HADAMARD_MAX, dim);
}

/* Adds (count - 1) * stride to *span; false if the sum passes SPAN_BYTES_MAX. */
static bool span_add(uint64_t *span, uint64_t count, uint64_t stride)
{
    if (count <= 1 || stride == 0)
        return true;
    if (stride > SPAN_BYTES_MAX || count - 1 > (SPAN_BYTES_MAX - *span) / stride)
        return false;
    *span += (count - 1) * stride;
    return true;
}

bool nbl_axes_span(const nbl_axis *axes, uint32_t axis_count, uint64_t block_bytes, uint64_t *out_span_bytes)
{
    uint64_t span = block_bytes;
    if (span > SPAN_BYTES_MAX)
        return false;
    for (uint32_t i = 0; i < axis_count; ++i) {
        if (!span_add(&span, axes[i].count, axes[i].stride))
            return false;
    }
    *out_span_bytes = span;
    return true;
}

/* Copies the axes that have more than one element, smallest stride first; returns their number. */
static uint32_t axes_sort(nbl_axis *sorted, const nbl_axis *axes, uint32_t axis_count)
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < axis_count; ++i) {
        if (axes[i].count <= 1)
            continue;
        uint32_t at = used++;
        for (; at > 0 && sorted[at - 1].stride > axes[i].stride; --at)
            sorted[at] = sorted[at - 1];
        sorted[at] = axes[i];
    }
    return used;
}

bool nbl_axes_disjoint(const nbl_axis *axes, uint32_t axis_count, uint64_t block_bytes)
{
    nbl_axis sorted[NBL_AXES_MAX];
    const uint32_t used = axes_sort(sorted, axes, axis_count);
    uint64_t span = block_bytes;
    for (uint32_t i = 0; i < used; ++i) {
        if (sorted[i].stride < span || !span_add(&span, sorted[i].count, sorted[i].stride))
            return false;
    }
    return true;
}

void nbl_extents_add(nbl_extents *extents, const char *field, const void *pointer, uint64_t count,
                     uint64_t element_bytes, bool written)
{
    if (pointer == NULL || count == 0)
        return;
    nbl_extent *item = &extents->items[extents->count++];
    *item = (nbl_extent){.prefix = "", .field = field, .region = -1, .written = written, .begin = (uintptr_t)pointer};
    /* An end past the address space means garbage arguments; the largest address still finds every overlap. */
    item->end = count > (UINTPTR_MAX - item->begin) / element_bytes ? UINTPTR_MAX
                                                                    : item->begin + (uintptr_t)(count * element_bytes);
}

static bool extents_clash(const nbl_extent *a, const nbl_extent *b)
{
    if (a->begin >= b->end || b->begin >= a->end || !(a->written || b->written))
        return false;
    const bool one_pool = a->region >= 0 && b->region >= 0 && strcmp(a->prefix, b->prefix) == 0;
    return !one_pool;
}

static void extent_name(const nbl_extent *extent, char *text, size_t text_bytes)
{
    if (extent->region < 0)
        snprintf(text, text_bytes, "%s", extent->field);
    else
        snprintf(text, text_bytes, "%sregions[%d].%s", extent->prefix, extent->region, extent->field);
}

static nbl_status extents_refuse(const nbl_extent *a, const nbl_extent *b, nbl_error *err)
{
    const nbl_extent *output = a->written ? a : b;
    const nbl_extent *other = a->written ? b : a;
    char output_name[64], other_name[64];
    extent_name(output, output_name, sizeof output_name);
    extent_name(other, other_name, sizeof other_name);
    return NBL_REFUSE(err, NBL_E_OVERLAP,
                      "%s at %#" PRIxPTR "..%#" PRIxPTR " is written and overlaps %s at %#" PRIxPTR "..%#" PRIxPTR
                      " (allowed: separate memory)",
                      output_name, output->begin, output->end, other_name, other->begin, other->end);
}

nbl_status nbl_extents_check(const nbl_extents *extents, nbl_error *err)
{
    for (uint32_t i = 0; i < extents->count; ++i) {
        for (uint32_t j = i + 1; j < extents->count; ++j) {
            if (extents_clash(&extents->items[i], &extents->items[j]))
                return extents_refuse(&extents->items[i], &extents->items[j], err);
        }
    }
    return NBL_OK;
}
