/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file head_scales.c
 * @brief Scales of heads in a cache of the float core (NUM 6.7): given once, the same for all sequences.
 *
 * They lie in the metadata block, k_scale of all layers and then v_scale, layer group after layer group, so that each
 * group's pool finds its own in one piece.
 */
#include "cache.h"

#include <stdlib.h>

#define SCALE_MIN 0x1p-30f
#define SCALE_MAX 0x1p30f

static bool is_given(const nbl_cache_config *config)
{
    return config->k_scale != NULL || config->v_scale != NULL;
}

static uint64_t count_of(const nbl_kv_shape *shape)
{
    return (uint64_t)shape->layers * shape->kv_heads;
}

/* Whether the float core serves a group of layers. */
static bool group_is_float(const nbl_plan *plan, uint32_t group)
{
    for (uint32_t c = 0; c < plan->class_count; ++c) {
        const nbl_region *region = &plan->groups[group].regions[c];
        if (nbl_layout_is_float(region->k_format) || nbl_layout_is_float(region->v_format))
            return true;
    }
    return false;
}

static nbl_status scales_check(const nbl_plan *plan, const char *name, const float *scales, nbl_error *err)
{
    const uint32_t heads = plan->config.shape.kv_heads;
    NBL_TRY(nbl_pointer_check(name, scales, 0, (uint32_t) _Alignof(float), err));
    for (uint64_t i = 0; scales != NULL && i < count_of(&plan->config.shape); ++i) {
        const uint32_t layer = (uint32_t)(i / heads), head = (uint32_t)(i % heads);
        if (!(scales[i] >= SCALE_MIN && scales[i] <= SCALE_MAX))
            return NBL_REFUSE(err, NBL_E_INVALID, "%s of layer %u, head %u is %g (allowed: %g to %g)", name, layer,
                              head, (double)scales[i], (double)SCALE_MIN, (double)SCALE_MAX);
        if (scales[i] != 1.0f && !group_is_float(plan, nbl_plan_layer(plan, layer)->group))
            return NBL_REFUSE(err, NBL_E_INVALID,
                              "%s of layer %u, head %u is %g (allowed: 1, in a layer without a float format)", name,
                              layer, head, (double)scales[i]);
    }
    return NBL_OK;
}

nbl_status nbl_plan_head_scales(const nbl_plan *plan, uint64_t *out_bytes, nbl_error *err)
{
    NBL_TRY(scales_check(plan, "k_scale", plan->config.k_scale, err));
    NBL_TRY(scales_check(plan, "v_scale", plan->config.v_scale, err));
    *out_bytes = is_given(&plan->config) ? 2u * count_of(&plan->config.shape) * sizeof(float) : 0;
    return NBL_OK;
}

/* First layer of a group among the layers of all groups. */
static uint64_t group_begin(const nbl_plan *plan, uint32_t group)
{
    uint64_t layers = 0;
    for (uint32_t g = 0; g < group; ++g)
        layers += plan->groups[g].shape.layers;
    return layers;
}

/* Where the scale of a layer's first head is, K's or V's. */
static uint64_t index_of(const nbl_plan *plan, uint32_t layer, enum nbl_kind kind)
{
    const nbl_layer_run *run = nbl_plan_layer(plan, layer);
    const uint64_t in_groups = group_begin(plan, run->group) + run->first + (layer - run->begin);
    return (kind == NBL_KIND_K ? 0 : count_of(&plan->config.shape)) + in_groups * plan->config.shape.kv_heads;
}

nbl_status nbl_head_scales_open(nbl_cache *cache, nbl_error *err)
{
    const nbl_plan *plan = &cache->plan;
    const nbl_kv_shape *shape = &plan->config.shape;
    const float *const given[] = {plan->config.k_scale, plan->config.v_scale};
    const uint64_t bytes = 2u * count_of(shape) * sizeof(float);
    if (!is_given(&plan->config))
        return NBL_OK;
    cache->head_scales = malloc(bytes);
    if (cache->head_scales == NULL)
        return NBL_REFUSE(err, NBL_E_NO_MEMORY, "no host memory for the scales of heads");
    for (uint32_t kind = NBL_KIND_K; kind <= NBL_KIND_V; ++kind) {
        for (uint64_t i = 0; i < count_of(shape); ++i)
            cache->head_scales[index_of(plan, (uint32_t)(i / shape->kv_heads), kind) + i % shape->kv_heads] =
                given[kind] != NULL ? given[kind][i] : 1.0f;
    }
    return nbl_api_memory_copy(cache->device, cache->metadata_block + plan->metadata.head_scales, cache->head_scales,
                               bytes, NBL_COPY_TO_DEVICE, nbl_stream_host, err);
}

const float *nbl_head_scales_of_group(const nbl_cache *cache, uint32_t group, enum nbl_kind kind)
{
    const nbl_kv_shape *shape = &cache->plan.config.shape;
    if (cache->head_scales == NULL || !group_is_float(&cache->plan, group))
        return NULL;
    const float *all = (const float *)(const void *)(cache->metadata_block + cache->plan.metadata.head_scales);
    return all + (kind == NBL_KIND_K ? 0 : count_of(shape)) + group_begin(&cache->plan, group) * shape->kv_heads;
}

const float *nbl_head_scales_of_layer(const nbl_cache *cache, uint32_t layer, enum nbl_kind kind)
{
    return cache->head_scales + index_of(&cache->plan, layer, kind);
}
