/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tile.c
 * @brief Page walk of attend: where 32 tokens lie whole in a page they are decoded in place, else they are collected
 * first.
 */
#include "tile.h"

#include "page.h"

/* The head's part of the page that holds a position. */
static sim_part part_of(const sim_source *source, uint32_t position, enum nbl_kind kind)
{
    uint32_t page = (uint32_t)source->page_table[position / source->pool->shape->page_tokens];
    const nbl_region *region = nbl_layout_region_find(source->pool, page);
    return sim_part_in(source->pool->shape, region, &source->layouts[region - source->pool->regions], source->layer,
                       page, kind, source->head);
}

static uint32_t tokens_in_group(const sim_source *source, uint32_t first)
{
    uint32_t left = source->kv_len - first;
    return left < SIM_GROUP ? left : SIM_GROUP;
}

/* Copies a run of tokens that lie side by side in one group of a page to place `to` of a full group. K: words of 4
 * bytes, group of 32. V: bytes, group of 4. */
static void collect_codes(const sim_part *part, uint32_t token, uint32_t count, uint32_t to, uint8_t *codes)
{
    uint32_t bytes = nbl_layout_code_bytes(part->format, part->dim);
    uint32_t unit = part->kind == NBL_KIND_K ? 4u : 1u;
    uint32_t group_tokens = part->kind == NBL_KIND_K ? NBL_LAYOUT_K_GROUP_TOKENS : NBL_LAYOUT_V_GROUP_TOKENS;
    uint32_t width = nbl_layout_group_width(part->page_tokens, token, group_tokens);
    const uint8_t *from = part->codes + sim_code_byte(part, token, 0);
    codes += (uint64_t)(to / group_tokens * group_tokens) * bytes + to % group_tokens * unit;
    for (uint32_t i = 0; i < bytes / unit; ++i) {
        memcpy(codes, from, (size_t)count * unit);
        codes += group_tokens * unit;
        from += width * unit;
    }
}

/* Tokens from `token` on that stay side by side in both the page's group and the full group, and in the page. */
static uint32_t run_length(const sim_part *part, uint32_t token, uint32_t to, uint32_t left)
{
    uint32_t group_tokens = part->kind == NBL_KIND_K ? NBL_LAYOUT_K_GROUP_TOKENS : NBL_LAYOUT_V_GROUP_TOKENS;
    uint32_t in_source = nbl_layout_group_width(part->page_tokens, token, group_tokens) - token % group_tokens;
    uint32_t in_target = group_tokens - to % group_tokens;
    uint32_t run = in_source < in_target ? in_source : in_target;
    return run < left ? run : left;
}

/* 1 if all pages under the group's tokens have one format. */
static int group_is_uniform(const sim_source *source, uint32_t first, enum nbl_kind kind, uint32_t format)
{
    uint32_t page_tokens = source->pool->shape->page_tokens;
    uint32_t end = first + tokens_in_group(source, first);
    for (uint32_t t = first; t < end; t = (t / page_tokens + 1u) * page_tokens) {
        const nbl_region *region = nbl_layout_region_find(source->pool, source->page_table[t / page_tokens]);
        if ((kind == NBL_KIND_K ? region->k_format : region->v_format) != format) {
            return 0;
        }
    }
    return 1;
}

/* Collects a group of one format from pages of any size. */
static sim_group group_collected(const sim_source *source, uint32_t first, enum nbl_kind kind, uint8_t *codes,
                                 uint8_t *scales)
{
    uint32_t count = tokens_in_group(source, first);
    sim_part part = part_of(source, first, kind);
    for (uint32_t t = 0; t < count;) {
        part = part_of(source, first + t, kind);
        uint32_t token = (first + t) % part.page_tokens;
        uint32_t run = run_length(&part, token, t, count - t);
        collect_codes(&part, token, run, t, codes);
        for (uint32_t plane = 0; plane < nbl_layout_scale_planes(part.format, part.dim); ++plane) {
            memcpy(scales + plane * SIM_GROUP + t, part.scales + nbl_layout_scale_byte(part.page_tokens, plane, token),
                   run);
        }
        t += run;
    }
    sim_group group = {part.format, part.dim, codes, scales, SIM_GROUP};
    return group;
}

/* A group whose tokens have different formats, brought to int8 token by token. */
static sim_group group_converted(const sim_source *source, uint32_t first, enum nbl_kind kind, uint8_t *codes,
                                 uint8_t *scales)
{
    sim_part to = part_of(source, first, kind);
    to.format = NBL_INT8;
    to.page_tokens = SIM_GROUP;
    to.codes = codes;
    to.scales = scales;
    for (uint32_t t = 0; t < tokens_in_group(source, first); ++t) {
        nbl_vector v;
        int8_t c[NBL_DIM_PADDED_MAX];
        sim_part from = part_of(source, first + t, kind);
        sim_part_load(&from, (first + t) % from.page_tokens, &v);
        v.scales[0] = nbl_e8m0_encode(nbl_vector_canonical(&v, c));
        v.format = NBL_INT8;
        memcpy(v.codes, c, nbl_layout_dim_padded(v.dim));
        sim_part_store(&to, t, &v);
    }
    sim_group group = {NBL_INT8, to.dim, codes, scales, SIM_GROUP};
    return group;
}

static uint32_t groups_in_tile(const sim_source *source, uint32_t index)
{
    uint32_t start = index * SIM_TILE;
    uint32_t left = source->kv_len > start ? source->kv_len - start : 0;
    return left >= SIM_TILE ? SIM_GROUPS : (left + SIM_GROUP - 1u) / SIM_GROUP;
}

/* What pages of a region have in common. */
typedef struct paging {
    const nbl_region *region;
    const nbl_page_layout *layout;
    uint32_t format;
    uint32_t dim;
    uint32_t token_bytes; /* of codes */
    uint32_t planes;      /* of scales */
} paging;

static paging paging_of(const sim_source *source, const nbl_region *region, enum nbl_kind kind)
{
    const nbl_kv_shape *shape = source->pool->shape;
    paging p;
    p.region = region;
    p.layout = &source->layouts[region - source->pool->regions];
    p.format = kind == NBL_KIND_K ? region->k_format : region->v_format;
    p.dim = kind == NBL_KIND_K ? shape->k_dim : shape->v_dim;
    p.token_bytes = nbl_layout_code_bytes(p.format, p.dim);
    p.planes = nbl_layout_scale_planes(p.format, p.dim);
    return p;
}

/* The group at `offset` of a page, where page_tokens is a multiple of 32: full groups have the layout of sim_group. */
static sim_group group_in_page(const sim_source *source, const paging *p, uint32_t page, enum nbl_kind kind,
                               uint32_t offset)
{
    sim_group group;
    group.format = p->format;
    group.dim = p->dim;
    group.codes = nbl_layout_codes(p->region, p->layout, source->layer, page, kind, source->head) +
                  (uint64_t)offset * p->token_bytes;
    group.scales = nbl_layout_scales(p->region, p->layout, source->layer, page, kind, source->head) + offset;
    group.plane_stride = source->pool->shape->page_tokens;
    return group;
}

/* Asks for the scales of some groups side by side; unlike their codes, no dot product does. */
static void prefetch_scales(const sim_group *group, uint32_t planes, uint32_t groups)
{
    const uint8_t *const end = group->scales + groups * SIM_GROUP;
    for (const uint8_t *token = group->scales; token < end; token += SIM_CACHE_LINE) {
        const uint8_t *at = token;
        for (uint32_t plane = 0; plane < planes; ++plane, at += group->plane_stride) {
            __builtin_prefetch(at);
        }
    }
}

/* The groups of a tile that lie whole in pages, page by page. */
static void find_in_pages(const sim_source *source, uint32_t start, enum nbl_kind kind, sim_coded *coded)
{
    const uint32_t page_tokens = source->pool->shape->page_tokens;
    const int32_t *table = source->page_table + start / page_tokens;
    uint32_t offset = start % page_tokens;
    paging p = {0};
    for (uint32_t g = 0; g < coded->count; ++table, offset = 0) {
        const uint32_t left = (page_tokens - offset) / SIM_GROUP;
        const uint32_t here = left < coded->count - g ? left : coded->count - g;
        const nbl_region *region = nbl_layout_region_find(source->pool, *table);
        if (region != p.region) {
            p = paging_of(source, region, kind);
        }
        sim_group group = group_in_page(source, &p, (uint32_t)*table, kind, offset);
        prefetch_scales(&group, p.planes, here);
        for (const uint32_t end = g + here; g < end; ++g) {
            coded->group[g] = group;
            coded->ahead[g] = group.codes;
            group.codes += SIM_GROUP * p.token_bytes;
            group.scales += SIM_GROUP;
        }
        coded->uniform &= p.format == coded->group[0].format;
    }
}

int sim_tile_lies_whole(const sim_source *source)
{
    return source->pool->shape->page_tokens % SIM_GROUP == 0;
}

/* The groups of a tile, each collected from the pages it lies in. */
static void collect(const sim_source *source, uint32_t start, enum nbl_kind kind, sim_tile_buffer *buffer,
                    sim_coded *coded)
{
    for (uint32_t g = 0; g < coded->count; ++g) {
        const uint32_t first = start + g * SIM_GROUP;
        coded->group[g] = group_is_uniform(source, first, kind, part_of(source, first, kind).format)
                              ? group_collected(source, first, kind, buffer->codes[g], buffer->scales[g])
                              : group_converted(source, first, kind, buffer->codes[g], buffer->scales[g]);
        coded->uniform &= coded->group[g].format == coded->group[0].format;
        coded->ahead[g] = coded->group[g].codes;
    }
}

void sim_tile_find(const sim_source *source, uint32_t index, enum nbl_kind kind, sim_tile_buffer *buffer,
                   sim_coded *coded)
{
    coded->count = groups_in_tile(source, index);
    coded->uniform = 1;
    coded->ahead_bytes = 0;
    if (sim_tile_lies_whole(source)) {
        find_in_pages(source, index * SIM_TILE, kind, coded);
    } else {
        collect(source, index * SIM_TILE, kind, buffer, coded);
    }
}
