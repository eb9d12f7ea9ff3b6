/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file pool.c
 * @brief Checks of cache shapes and page pools (docs/formats.md F6).
 */
#include "check.h"

#include "num/layout.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define LAYERS_MAX 65536u
#define KV_HEADS_MAX 65536u
#define PREFIX_BYTES 48u

/* Names a part of a pool, for refusals; nothing while err is NULL, since every call passes here. */
__attribute__((format(printf, 3, 4))) static const char *name_of(char text[PREFIX_BYTES], const nbl_error *err,
                                                                 const char *format, ...)
{
    va_list arguments;
    text[0] = '\0';
    va_start(arguments, format);
    if (err != NULL)
        (void)vsnprintf(text, PREFIX_BYTES, format, arguments);
    va_end(arguments);
    return text;
}

static nbl_status dim_check(const char *prefix, const char *field, uint32_t dim, uint32_t dim_max, nbl_error *err)
{
    if (dim >= NBL_DIM_MIN && dim <= dim_max && dim % NBL_DIM_STEP == 0)
        return NBL_OK;
    return NBL_REFUSE(err, NBL_E_INVALID, "%s%s is %u (allowed: multiples of %u, %u to %u)", prefix, field, dim,
                      NBL_DIM_STEP, NBL_DIM_MIN, dim_max);
}

nbl_status nbl_shape_check(const nbl_kv_shape *shape, const char *prefix, nbl_error *err)
{
    NBL_TRY(nbl_flags_check(shape->flags, 0, "nbl_kv_shape", err));
    NBL_TRY(nbl_value_check(prefix, "layers", shape->layers, 1, LAYERS_MAX, err));
    NBL_TRY(nbl_value_check(prefix, "kv_heads", shape->kv_heads, 1, KV_HEADS_MAX, err));
    NBL_TRY(dim_check(prefix, "k_dim", shape->k_dim, NBL_K_DIM_MAX, err));
    NBL_TRY(dim_check(prefix, "v_dim", shape->v_dim, NBL_V_DIM_MAX, err));
    NBL_TRY(nbl_value_check(prefix, "page_tokens", shape->page_tokens, 1, NBL_PAGE_TOKENS_MAX, err));
    NBL_TRY(nbl_hadamard_check(prefix, "k_hadamard", shape->k_hadamard, shape->k_dim, err));
    NBL_TRY(nbl_hadamard_check(prefix, "v_hadamard", shape->v_hadamard, shape->v_dim, err));
    NBL_TRY(
        nbl_value_check(prefix, "k_scale_rule", shape->k_scale_rule, NBL_RULE_DEFAULT, NBL_RULE_FOUR_OVER_SIX, err));
    NBL_TRY(
        nbl_value_check(prefix, "v_scale_rule", shape->v_scale_rule, NBL_RULE_DEFAULT, NBL_RULE_FOUR_OVER_SIX, err));
    return nbl_value_check(prefix, "centering", shape->centering, 0, NBL_CENTERING_ALL, err);
}

nbl_status nbl_shape_in(nbl_kv_shape *out, const nbl_kv_shape *shape, const char *prefix, nbl_error *err)
{
    NBL_TRY(NBL_STRUCT_IN(nbl_kv_shape, out, shape, err));
    return nbl_shape_check(out, prefix, err);
}

/* ------------------------------------------------------------------------------------------------ one region */

/* One of a region's two pools: where its blocks are. */
typedef struct family {
    uint64_t begin;
    uint64_t block_bytes;
    nbl_axis axes[2];
} family;

static family family_codes(const nbl_region *region, const nbl_kv_shape *shape)
{
    const nbl_page_layout layout = nbl_layout_page(shape, region->k_format, region->v_format);
    return (family){(uintptr_t)region->codes,
                    layout.code_page_bytes,
                    {{region->page_count, region->code_page_stride}, {shape->layers, region->code_layer_stride}}};
}

static family family_scales(const nbl_region *region, const nbl_kv_shape *shape)
{
    const nbl_page_layout layout = nbl_layout_page(shape, region->k_format, region->v_format);
    return (family){(uintptr_t)region->scales,
                    layout.scale_page_bytes,
                    {{region->page_count, region->scale_page_stride}, {shape->layers, region->scale_layer_stride}}};
}

static nbl_status alignment_check(const char *prefix, const char *pool, const char *what, uint64_t value,
                                  nbl_error *err)
{
    if (value % NBL_LAYOUT_ALIGNMENT == 0)
        return NBL_OK;
    return NBL_REFUSE(err, NBL_E_ALIGN, "%s%s%s is %" PRIu64 " (needed: a multiple of %u)", prefix, pool, what, value,
                      NBL_LAYOUT_ALIGNMENT);
}

/* pool is "code" or "scale". */
static nbl_status family_check(const family *f, const char *prefix, const char *pool, nbl_error *err)
{
    uint64_t span;
    if (f->block_bytes == 0) /* scales of formats that have none: neither address nor strides are looked at */
        return NBL_OK;
    if (f->begin == 0)
        return NBL_REFUSE(err, NBL_E_INVALID, "%s%ss is NULL", prefix, pool);
    NBL_TRY(alignment_check(prefix, pool, "s", f->begin, err));
    NBL_TRY(alignment_check(prefix, pool, "_page_stride", f->axes[0].stride, err));
    NBL_TRY(alignment_check(prefix, pool, "_layer_stride", f->axes[1].stride, err));
    if (!nbl_axes_span(f->axes, 2, f->block_bytes, &span) || span > UINTPTR_MAX - f->begin)
        return NBL_REFUSE(err, NBL_E_INVALID, "%s%ss reach beyond the address space", prefix, pool);
    if (!nbl_axes_disjoint(f->axes, 2, f->block_bytes))
        return NBL_REFUSE(err, NBL_E_INVALID,
                          "%s%s_page_stride %" PRIu64 " and %s_layer_stride %" PRIu64
                          " let pages overlap (needed: %" PRIu64 " bytes a page)",
                          prefix, pool, f->axes[0].stride, pool, f->axes[1].stride, f->block_bytes);
    return NBL_OK;
}

static nbl_status region_check(const nbl_region *region, const nbl_kv_shape *shape, const char *prefix,
                               uint64_t next_page, nbl_error *err)
{
    const uint64_t page_ids = (uint64_t)INT32_MAX + 1u; /* page ids are int32 */
    NBL_TRY(nbl_format_check(prefix, "k_format", region->k_format, err));
    NBL_TRY(nbl_format_check(prefix, "v_format", region->v_format, err));
    NBL_TRY(nbl_value_check(prefix, "first_page", region->first_page, next_page, page_ids - 1u, err));
    NBL_TRY(nbl_value_check(prefix, "page_count", region->page_count, 1, page_ids - region->first_page, err));
    const family codes = family_codes(region, shape), scales = family_scales(region, shape);
    NBL_TRY(family_check(&codes, prefix, "code", err));
    return family_check(&scales, prefix, "scale", err);
}

/* Gives a region without scales an address that nobody reads, so that backends need no special case. */
static void region_settle(nbl_region *region, const nbl_kv_shape *shape)
{
    if (nbl_layout_page(shape, region->k_format, region->v_format).scale_page_bytes == 0) {
        region->scales = region->codes;
        region->scale_page_stride = region->scale_layer_stride = 0;
    }
}

/* ------------------------------------------------------------------------------------------------ between regions */

static uint64_t family_span(const family *f)
{
    uint64_t span = 0;
    (void)nbl_axes_span(f->axes, 2, f->block_bytes, &span); /* cannot fail: family_check has asked */
    return span;
}

/* Larger stride first; an axis of one element has no stride that matters. */
static void family_sort(family *f)
{
    for (uint32_t i = 0; i < 2; ++i) {
        if (f->axes[i].count == 1)
            f->axes[i].stride = 0;
    }
    if (f->axes[0].stride < f->axes[1].stride) {
        const nbl_axis axis = f->axes[0];
        f->axes[0] = f->axes[1];
        f->axes[1] = axis;
    }
}

/* Tells whether two families share no byte. Families laid side by side inside one common stride (codes and scales of a
 * page together, regions of a layer together) have overlapping ranges but no common byte: where the outer strides are
 * equal and one period holds both, one period decides. */
static bool families_disjoint(family a, family b)
{
    family_sort(&a);
    family_sort(&b);
    for (uint32_t outer = 0;; ++outer) {
        const uint64_t span_a = family_span(&a), span_b = family_span(&b);
        if (a.begin + span_a <= b.begin || b.begin + span_b <= a.begin)
            return true;
        if (outer == 2 || a.axes[outer].stride != b.axes[outer].stride)
            return false;
        const uint64_t stride = a.axes[outer].stride;
        a.axes[outer].count = b.axes[outer].count = 1;
        const uint64_t end_a = a.begin + family_span(&a), end_b = b.begin + family_span(&b);
        const uint64_t begin = a.begin < b.begin ? a.begin : b.begin;
        if ((end_a > end_b ? end_a : end_b) - begin > stride)
            return false;
    }
}

static nbl_status families_check(const nbl_pool_copy *copy, const char *prefix, nbl_error *err)
{
    const uint32_t count = 2u * copy->pool.region_count;
    for (uint32_t i = 0; i < count; ++i) {
        for (uint32_t j = 0; j < i; ++j) {
            const nbl_region *a = &copy->regions[j / 2u], *b = &copy->regions[i / 2u];
            const family left = j % 2u == 0 ? family_codes(a, &copy->shape) : family_scales(a, &copy->shape);
            const family right = i % 2u == 0 ? family_codes(b, &copy->shape) : family_scales(b, &copy->shape);
            if (left.block_bytes != 0 && right.block_bytes != 0 && !families_disjoint(left, right))
                return NBL_REFUSE(err, NBL_E_OVERLAP, "%sregions[%u].%s overlap %sregions[%u].%s", prefix, i / 2u,
                                  i % 2u == 0 ? "codes" : "scales", prefix, j / 2u, j % 2u == 0 ? "codes" : "scales");
        }
    }
    return NBL_OK;
}

/* A pool in which one side is fp16 in some regions only has no operand type for it (NUM 6.1). */
static nbl_status fp16_check(const nbl_pool_copy *copy, const char *prefix, nbl_error *err)
{
    const nbl_region *first = &copy->regions[0];
    for (uint32_t i = 1; i < copy->pool.region_count; ++i) {
        const nbl_region *region = &copy->regions[i];
        const bool k_differs = (region->k_format == NBL_FORMAT_FP16) != (first->k_format == NBL_FORMAT_FP16);
        const bool v_differs = (region->v_format == NBL_FORMAT_FP16) != (first->v_format == NBL_FORMAT_FP16);
        if (k_differs || v_differs)
            return NBL_REFUSE(err, NBL_E_INVALID,
                              "%sregions[%u].%c_format is %u, %sregions[0].%c_format is %u (allowed: fp16 in all "
                              "regions or in none)",
                              prefix, i, k_differs ? 'k' : 'v', k_differs ? region->k_format : region->v_format, prefix,
                              k_differs ? 'k' : 'v', k_differs ? first->k_format : first->v_format);
    }
    return NBL_OK;
}

/* The integer core has exponents of its own and no use for a scale. */
static nbl_status scales_check(const nbl_pool_copy *copy, const char *prefix, nbl_error *err)
{
    const struct {
        const char *field;
        const float *scale;
    } scales[] = {{"k_scale", copy->pool.k_scale}, {"v_scale", copy->pool.v_scale}};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; ++i) {
        char text[PREFIX_BYTES];
        name_of(text, err, "%s%s", prefix, scales[i].field);
        if (scales[i].scale != NULL && !nbl_layout_pool_is_float(&copy->pool))
            return NBL_REFUSE(err, NBL_E_INVALID, "%s is %p (allowed: NULL, in a pool without a float format)", text,
                              (const void *)scales[i].scale);
        NBL_TRY(nbl_pointer_check(text, scales[i].scale, 0, (uint32_t) _Alignof(float), err));
    }
    return NBL_OK;
}

/* ------------------------------------------------------------------------------------------------ pools */

static nbl_status pool_check(nbl_pool_copy *out, const nbl_pool *pool, const char *prefix, nbl_error *err)
{
    char text[PREFIX_BYTES];
    uint64_t next_page = 0;
    if (pool == NULL)
        return NBL_REFUSE(err, NBL_E_INVALID, "%.*s is NULL", (int)strlen(prefix) - 1, prefix);
    NBL_TRY(NBL_STRUCT_IN(nbl_pool, &out->pool, pool, err));
    NBL_TRY(nbl_flags_check(out->pool.flags, 0, "nbl_pool", err));
    NBL_TRY(nbl_reserved_check("nbl_pool", out->pool.reserved, err));
    NBL_TRY(nbl_shape_in(&out->shape, out->pool.shape, name_of(text, err, "%sshape.", prefix), err));
    NBL_TRY(nbl_value_check(prefix, "region_count", out->pool.region_count, 1, NBL_REGIONS_MAX, err));
    NBL_TRY(nbl_pointer_check(name_of(text, err, "%sregions", prefix), out->pool.regions, out->pool.region_count,
                              (uint32_t) _Alignof(nbl_region), err));
    memcpy(out->regions, out->pool.regions, out->pool.region_count * sizeof(nbl_region));
    out->pool.shape = &out->shape;
    out->pool.regions = out->regions;
    for (uint32_t i = 0; i < out->pool.region_count; ++i) {
        NBL_TRY(region_check(&out->regions[i], &out->shape, name_of(text, err, "%sregions[%u].", prefix, i), next_page,
                             err));
        next_page = (uint64_t)out->regions[i].first_page + out->regions[i].page_count;
        region_settle(&out->regions[i], &out->shape);
    }
    NBL_TRY(fp16_check(out, prefix, err));
    NBL_TRY(scales_check(out, prefix, err));
    return families_check(out, prefix, err);
}

static void family_add(nbl_pool_copy *copy, const family *f, const char *prefix, const char *field, uint32_t region)
{
    if (f->block_bytes != 0)
        copy->extents[copy->extent_count++] = (nbl_extent){.prefix = prefix,
                                                           .field = field,
                                                           .region = (int32_t)region,
                                                           .begin = (uintptr_t)f->begin,
                                                           .end = (uintptr_t)(f->begin + family_span(f))};
}

static void extents_make(nbl_pool_copy *copy, const char *prefix)
{
    copy->extent_count = 0;
    for (uint32_t i = 0; i < copy->pool.region_count; ++i) {
        const family codes = family_codes(&copy->regions[i], &copy->shape);
        const family scales = family_scales(&copy->regions[i], &copy->shape);
        family_add(copy, &codes, prefix, "codes", i);
        family_add(copy, &scales, prefix, "scales", i);
    }
}

/* Looks once without words, and again for the words if something is wrong. */
nbl_status nbl_pool_in(nbl_pool_copy *out, const nbl_pool *pool, const char *prefix, nbl_error *err)
{
    const nbl_status status = pool_check(out, pool, prefix, NULL);
    if (status != NBL_OK)
        return err == NULL ? status : pool_check(out, pool, prefix, err);
    extents_make(out, prefix);
    return NBL_OK;
}

void nbl_pool_extents(const nbl_pool_copy *copy, bool written, nbl_extents *extents)
{
    for (uint32_t i = 0; i < copy->extent_count; ++i) {
        nbl_extent *extent = &extents->items[extents->count++];
        *extent = copy->extents[i];
        extent->written = written;
    }
}
