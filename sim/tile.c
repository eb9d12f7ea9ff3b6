/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tile.c
 * @brief Page walk of attend: where 32 tokens lie whole in a page they are decoded in place, else they are collected
 * first.
 */
#include "tile.h"

#include "page.h"

#define CACHE_LINE 64u

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

/* The group inside its page, where page_tokens is a multiple of 32: full groups have the layout of sim_group. */
static sim_group group_in_page(const sim_source *source, uint32_t first, enum nbl_kind kind)
{
    sim_part part = part_of(source, first, kind);
    uint32_t offset = first % part.page_tokens;
    sim_group group;
    group.format = part.format;
    group.dim = part.dim;
    group.codes = part.codes + (uint64_t)offset * nbl_layout_code_bytes(part.format, part.dim);
    group.scales = part.scales + offset;
    group.plane_stride = part.page_tokens;
    return group;
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
static sim_group group_collected(const sim_source *source, uint32_t first, enum nbl_kind kind, sim_group_buffer *buffer)
{
    uint32_t count = tokens_in_group(source, first);
    sim_part part = part_of(source, first, kind);
    for (uint32_t t = 0; t < count;) {
        part = part_of(source, first + t, kind);
        uint32_t token = (first + t) % part.page_tokens;
        uint32_t run = run_length(&part, token, t, count - t);
        collect_codes(&part, token, run, t, buffer->codes);
        for (uint32_t plane = 0; plane < nbl_layout_scale_planes(part.format, part.dim); ++plane) {
            memcpy(buffer->scales + plane * SIM_GROUP + t,
                   part.scales + nbl_layout_scale_byte(part.page_tokens, plane, token), run);
        }
        t += run;
    }
    sim_group group = {part.format, part.dim, buffer->codes, buffer->scales, SIM_GROUP};
    return group;
}

/* Canonical form of one token, read alone: for groups whose tokens have different formats. */
static int32_t token_canonical(const sim_source *source, uint32_t position, enum nbl_kind kind, int8_t *codes)
{
    nbl_vector v;
    sim_part part = part_of(source, position, kind);
    sim_part_load(&part, position % part.page_tokens, &v);
    return nbl_vector_canonical(&v, codes);
}

static void mixed_k(const sim_source *source, uint32_t first, uint32_t padded, uint8_t *codes, float *unit)
{
    for (uint32_t t = 0; t < tokens_in_group(source, first); ++t) {
        int8_t c[NBL_DIM_PADDED_MAX];
        unit[t] = nbl_pow2(token_canonical(source, first + t, NBL_KIND_K, c));
        for (uint32_t d = 0; d < padded; ++d) {
            codes[d / 4u * (4u * SIM_GROUP) + t * 4u + d % 4u] = (uint8_t)(c[d] + 128);
        }
    }
}

static void mixed_v(const sim_source *source, uint32_t first, uint32_t padded, int8_t *codes, float *exponent,
                    float *weight)
{
    for (uint32_t t = 0; t < tokens_in_group(source, first); ++t) {
        int8_t c[NBL_DIM_PADDED_MAX];
        int32_t e = token_canonical(source, first + t, NBL_KIND_V, c);
        exponent[t] = (float)e;
        weight[t] = nbl_pow2(-e);
        for (uint32_t d = 0; d < padded; ++d) {
            codes[t / 4u * (4u * padded) + d * 4u + t % 4u] = c[d];
        }
    }
}

/* 1 and the group if it can be decoded as a whole. */
static int find_group(const sim_source *source, uint32_t first, enum nbl_kind kind, sim_group_buffer *buffer,
                      sim_group *group)
{
    if (source->pool->shape->page_tokens % SIM_GROUP == 0) {
        *group = group_in_page(source, first, kind);
        return 1;
    }
    if (!group_is_uniform(source, first, kind, part_of(source, first, kind).format)) {
        return 0;
    }
    *group = group_collected(source, first, kind, buffer);
    return 1;
}

void sim_tile_load_k(const sim_source *source, uint32_t index, sim_group_buffer *buffer, sim_tile *tile)
{
    uint32_t start = index * SIM_TILE;
    tile->groups = 0;
    for (uint32_t g = 0; g < SIM_GROUPS && start + g * SIM_GROUP < source->kv_len; ++g) {
        uint32_t first = start + g * SIM_GROUP;
        uint8_t *codes = tile->k + (uint64_t)g * SIM_GROUP * tile->k_dim;
        sim_group group;
        if (find_group(source, first, NBL_KIND_K, buffer, &group)) {
            source->isa->decode_k(&group, codes, tile->unit + g * SIM_GROUP);
        } else {
            mixed_k(source, first, tile->k_dim, codes, tile->unit + g * SIM_GROUP);
        }
        tile->groups++;
    }
}

void sim_tile_load_v(const sim_source *source, uint32_t index, sim_group_buffer *buffer, sim_tile *tile)
{
    for (uint32_t g = 0; g < tile->groups; ++g) {
        uint32_t first = index * SIM_TILE + g * SIM_GROUP;
        int8_t *codes = tile->v + (uint64_t)g * SIM_GROUP * tile->v_dim;
        sim_group group;
        if (find_group(source, first, NBL_KIND_V, buffer, &group)) {
            source->isa->decode_v(&group, codes, tile->exponent + g * SIM_GROUP, tile->weight + g * SIM_GROUP);
        } else {
            mixed_v(source, first, tile->v_dim, codes, tile->exponent + g * SIM_GROUP, tile->weight + g * SIM_GROUP);
        }
    }
}

void sim_tile_prefetch(const sim_source *source, uint32_t index, enum nbl_kind kind)
{
    if (source->pool->shape->page_tokens % SIM_GROUP != 0) {
        return;
    }
    for (uint32_t g = 0; g < SIM_GROUPS; ++g) {
        uint32_t first = index * SIM_TILE + g * SIM_GROUP;
        if (first >= source->kv_len) {
            return;
        }
        sim_group group = group_in_page(source, first, kind);
        uint64_t bytes = (uint64_t)SIM_GROUP * nbl_layout_code_bytes(group.format, group.dim);
        for (uint64_t at = 0; at < bytes; at += CACHE_LINE) {
            __builtin_prefetch(group.codes + at);
        }
    }
}
