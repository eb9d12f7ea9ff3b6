/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file pages.c
 * @brief copy_pages and transcode: whole pages, all layers (NUM 3.7).
 */
#include "page.h"
#include "quantize.h"
#include "sim.h"
#include "stats.h"

#define COPY_PAGES 16 /* of a part */

static nbl_status check_page(const char *name, const nbl_pool *pool, uint32_t i, int32_t page, nbl_error *err)
{
    if (nbl_layout_region_find(pool, page) == NULL) {
        return sim_fail(err, NBL_E_RANGE, "sim: %s[%u] is %d, in no region of the pool", name, i, page);
    }
    return NBL_OK;
}

/* Bit of a page in a set of pages. */
static int set_has(const uint8_t *set, int32_t page)
{
    return (set[page / 8] >> (page % 8)) & 1;
}

static void set_add(uint8_t *set, int32_t page)
{
    set[page / 8] = (uint8_t)(set[page / 8] | 1 << (page % 8));
}

static nbl_status find_overlap(const int32_t *src_pages, const int32_t *dst_pages, uint32_t count, int same_pool,
                               uint8_t *set, nbl_error *err)
{
    for (uint32_t i = 0; i < count; ++i) {
        if (set_has(set, dst_pages[i])) {
            return sim_fail(err, NBL_E_OVERLAP, "sim: dst_pages[%u] is %d, named twice", i, dst_pages[i]);
        }
        set_add(set, dst_pages[i]);
    }
    for (uint32_t i = 0; same_pool && i < count; ++i) {
        if (set_has(set, src_pages[i])) {
            return sim_fail(err, NBL_E_OVERLAP, "sim: src_pages[%u] is %d, also a destination", i, src_pages[i]);
        }
    }
    return NBL_OK;
}

/* Destinations differ from each other and, in one pool, from all sources. All page ids have been checked. */
static nbl_status check_overlap(const nbl_pool *src_pool, const nbl_pool *dst_pool, const int32_t *src_pages,
                                const int32_t *dst_pages, uint32_t count, nbl_error *err)
{
    int same_pool = src_pool->regions[0].codes == dst_pool->regions[0].codes;
    int32_t most = 0;
    for (uint32_t i = 0; i < count; ++i) {
        most = dst_pages[i] > most ? dst_pages[i] : most;
        most = src_pages[i] > most ? src_pages[i] : most;
    }
    uint64_t bytes = (uint64_t)most / 8u + 1u;
    uint8_t *set = sim_alloc(bytes);
    if (set == NULL) {
        return sim_fail(err, NBL_E_NO_MEMORY, "sim: no memory for a set of %d pages", most);
    }
    memset(set, 0, bytes);
    nbl_status status = find_overlap(src_pages, dst_pages, count, same_pool, set, err);
    sim_free(set);
    return status;
}

static nbl_status check_pairs(const nbl_pool *src_pool, const nbl_pool *dst_pool, const int32_t *src_pages,
                              const int32_t *dst_pages, uint32_t count, nbl_error *err)
{
    for (uint32_t i = 0; i < count; ++i) {
        nbl_status status = check_page("src_pages", src_pool, i, src_pages[i], err);
        status = status == NBL_OK ? check_page("dst_pages", dst_pool, i, dst_pages[i], err) : status;
        if (status != NBL_OK) {
            return status;
        }
    }
    return check_overlap(src_pool, dst_pool, src_pages, dst_pages, count, err);
}

static nbl_status check_equal_formats(const nbl_copy_pages_args *args, nbl_error *err)
{
    for (uint32_t i = 0; i < args->count; ++i) {
        const nbl_region *src = nbl_layout_region_find(args->src_pool, args->src_pages[i]);
        const nbl_region *dst = nbl_layout_region_find(args->dst_pool, args->dst_pages[i]);
        if (src->k_format != dst->k_format || src->v_format != dst->v_format) {
            return sim_fail(err, NBL_E_RANGE, "sim: pair %u copies page %d to page %d of other formats (use transcode)",
                            i, args->src_pages[i], args->dst_pages[i]);
        }
    }
    return NBL_OK;
}

static void copy_page(const nbl_copy_pages_args *args, uint32_t i, uint32_t layer)
{
    const nbl_region *src = nbl_layout_region_find(args->src_pool, args->src_pages[i]);
    const nbl_region *dst = nbl_layout_region_find(args->dst_pool, args->dst_pages[i]);
    nbl_page_layout layout = nbl_layout_page(args->src_pool->shape, src->k_format, src->v_format);
    memcpy((uint8_t *)dst->codes + nbl_layout_code_offset(dst, layer, (uint32_t)args->dst_pages[i]),
           (const uint8_t *)src->codes + nbl_layout_code_offset(src, layer, (uint32_t)args->src_pages[i]),
           layout.code_page_bytes);
    memcpy((uint8_t *)dst->scales + nbl_layout_scale_offset(dst, layer, (uint32_t)args->dst_pages[i]),
           (const uint8_t *)src->scales + nbl_layout_scale_offset(src, layer, (uint32_t)args->src_pages[i]),
           layout.scale_page_bytes);
}

/* Pages of all layers; context: the arguments. */
static void copy_share(void *context, uint32_t thread, sim_parts *parts)
{
    const nbl_copy_pages_args *args = *(const nbl_copy_pages_args *const *)context;
    int64_t layers = args->src_pool->shape->layers;
    int64_t i, end;
    (void)thread;
    while (sim_parts_next(parts, &i, &end)) {
        for (; i < end; ++i) {
            copy_page(args, (uint32_t)(i / layers), (uint32_t)(i % layers));
        }
    }
}

nbl_status sim_copy_pages(nbl_device *device, const nbl_copy_pages_args *args, nbl_error *err)
{
    nbl_status status = sim_check_stream(args->stream, err);
    if (status == NBL_OK) {
        status = check_pairs(args->src_pool, args->dst_pool, args->src_pages, args->dst_pages, args->count, err);
    }
    if (status == NBL_OK) {
        status = check_equal_formats(args, err);
    }
    if (status != NBL_OK) {
        return status;
    }
    sim_team_run(device->team, (int64_t)args->count * args->src_pool->shape->layers, COPY_PAGES, copy_share, &args);
    return NBL_OK;
}

/* Scales of the two sides (NUM 6.7); equal ones cancel. */
typedef struct scale_pair {
    float src;
    float dst;
} scale_pair;

static void transcode_part(const sim_part *src, const sim_part *dst, scale_pair scales, uint32_t rule, uint32_t tokens,
                           nbl_quant_stats *stats)
{
    for (uint32_t t = 0; t < tokens; ++t) {
        nbl_vector v;
        float x[NBL_DIM_PADDED_MAX];
        sim_part_load(src, t, &v);
        nbl_vector_values(&v, x);
        if (scales.src != scales.dst) {
            nbl_scale_multiply(x, src->dim, scales.src);
            nbl_scale_divide(x, src->dim, scales.dst);
        }
        nbl_vector_quantize(x, dst->dim, dst->format, rule, &v, stats);
        sim_part_store(dst, t, &v);
    }
}

static void transcode_page(const nbl_transcode_args *args, uint32_t i, uint32_t layer, nbl_quant_stats *stats)
{
    const nbl_kv_shape *shape = args->dst_pool->shape;
    for (uint32_t head = 0; head < shape->kv_heads; ++head) {
        for (int kind = NBL_KIND_K; kind <= NBL_KIND_V; ++kind) {
            enum nbl_kind k = (enum nbl_kind)kind;
            sim_part src = sim_part_at(args->src_pool, layer, (uint32_t)args->src_pages[i], k, head);
            sim_part dst = sim_part_at(args->dst_pool, layer, (uint32_t)args->dst_pages[i], k, head);
            uint32_t rule = k == NBL_KIND_K ? shape->k_scale_rule : shape->v_scale_rule;
            scale_pair scales = {sim_scale_of(args->src_pool, k, layer, head),
                                 sim_scale_of(args->dst_pool, k, layer, head)};
            transcode_part(&src, &dst, scales, rule, (uint32_t)args->token_counts[i], stats);
        }
    }
}

/* Pages of all layers; context: the arguments. */
static void transcode_share(void *context, uint32_t thread, sim_parts *parts)
{
    const nbl_transcode_args *args = *(const nbl_transcode_args *const *)context;
    int64_t layers = args->src_pool->shape->layers;
    nbl_quant_stats stats = {0};
    int64_t i, end;
    (void)thread;
    while (sim_parts_next(parts, &i, &end)) {
        for (; i < end; ++i) {
            transcode_page(args, (uint32_t)(i / layers), (uint32_t)(i % layers), &stats);
        }
    }
    sim_stats_add(args->stats, &stats);
}

static nbl_status check_token_counts(const nbl_transcode_args *args, nbl_error *err)
{
    uint32_t page_tokens = args->src_pool->shape->page_tokens;
    for (uint32_t i = 0; i < args->count; ++i) {
        if (args->token_counts[i] < 0 || (uint32_t)args->token_counts[i] > page_tokens) {
            return sim_fail(err, NBL_E_RANGE, "sim: token_counts[%u] is %d (allowed: 0 to %u)", i,
                            args->token_counts[i], page_tokens);
        }
    }
    return NBL_OK;
}

nbl_status sim_transcode(nbl_device *device, const nbl_transcode_args *args, nbl_error *err)
{
    nbl_status status = sim_check_stream(args->stream, err);
    if (status == NBL_OK) {
        status = check_pairs(args->src_pool, args->dst_pool, args->src_pages, args->dst_pages, args->count, err);
    }
    if (status == NBL_OK) {
        status = check_token_counts(args, err);
    }
    if (status != NBL_OK) {
        return status;
    }
    sim_team_run(device->team, (int64_t)args->count * args->src_pool->shape->layers, 1, transcode_share, &args);
    return NBL_OK;
}
