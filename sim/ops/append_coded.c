/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file append_coded.c
 * @brief append_coded: K and V that an engine has quantized, into pages (NUM 6.8).
 */
#include "page.h"
#include "sim.h"
#include "stats.h"
#include "tensor.h"

#define APPEND_TOKENS 16 /* of a part */

/* K or V of a call. */
typedef struct coded_side {
    enum nbl_kind kind;
    uint32_t format;
    uint32_t dim;
    const nbl_tensor *codes;
    const nbl_tensor *scales;
} coded_side;

typedef struct coded_call {
    const nbl_append_coded_args *args;
    coded_side sides[2];
} coded_call;

static coded_call call_of(const nbl_append_coded_args *args)
{
    const nbl_kv_shape *shape = args->pool->shape;
    coded_call call = {args,
                       {{NBL_KIND_K, args->k_format, shape->k_dim, &args->k, &args->k_scales},
                        {NBL_KIND_V, args->v_format, shape->v_dim, &args->v, &args->v_scales}}};
    return call;
}

/* Scale of block b of a token and head (F9). */
static uint8_t scale_byte(const nbl_append_coded_args *args, const coded_side *side, uint64_t token, uint32_t head,
                          uint32_t b)
{
    const nbl_tensor *t = side->scales;
    const uint8_t *data = t->data;
    if (args->scale_layout == NBL_SCALES_LINEAR) {
        return data[(int64_t)token * t->stride_bytes[0] + (int64_t)head * t->stride_bytes[1] +
                    (int64_t)b * t->stride_bytes[2]];
    }
    const uint32_t heads = args->pool->shape->kv_heads;
    const uint32_t columns = (side->dim + NBL_NVFP4_BLOCK - 1u) / NBL_NVFP4_BLOCK;
    const uint64_t at = args->scale_token + token;
    const int is_shared = t->shape[0] == 1u && heads != 1u;
    const uint64_t byte = nbl_layout_scale_128x4(is_shared ? at * heads + head : at, b, columns);
    return data[(is_shared ? 0 : (int64_t)head * t->stride_bytes[0]) + (int64_t)byte * t->stride_bytes[1]];
}

static void read_vector(const nbl_append_coded_args *args, const coded_side *side, uint64_t token, uint32_t head,
                        nbl_vector *v, nbl_quant_stats *stats)
{
    const uint8_t *row = sim_row3(side->codes, token, head);
    const int64_t stride = side->codes->stride_bytes[2];
    memset(v->codes, 0, nbl_layout_dim_padded(side->dim));
    memset(v->scales, 0, nbl_layout_scale_planes(side->format, side->dim));
    v->format = side->format;
    v->dim = side->dim;
    for (uint32_t d = 0; d < side->dim; ++d) {
        v->codes[d] = side->format == NBL_NVFP4
                          ? nbl_e2m1_adopt((uint32_t)row[(int64_t)(d / 2u) * stride] >> d % 2u * 4u & 15u)
                          : nbl_e4m3_adopt(row[(int64_t)d * stride], &stats->nan_inputs);
    }
    for (uint32_t d = 0; side->format == NBL_NVFP4 && d < side->dim; d += NBL_NVFP4_BLOCK) {
        const uint32_t b = d / NBL_NVFP4_BLOCK;
        v->scales[b] = nbl_nvfp4_scale_adopt(scale_byte(args, side, token, head, b), &stats->nan_inputs);
    }
    stats->vectors++;
}

static void append_token(const coded_call *call, uint64_t token, nbl_quant_stats *stats)
{
    const nbl_pool *pool = call->args->pool;
    const uint32_t page_tokens = pool->shape->page_tokens;
    const int64_t slot = call->args->slots[token];
    for (uint32_t s = 0; s < 2u; ++s) {
        const coded_side *side = &call->sides[s];
        for (uint32_t head = 0; side->codes->data != NULL && head < pool->shape->kv_heads; ++head) {
            const sim_part part =
                sim_part_at(pool, call->args->layer, (uint32_t)(slot / page_tokens), side->kind, head);
            nbl_vector v;
            read_vector(call->args, side, token, head, &v, stats);
            sim_part_store(&part, (uint32_t)(slot % page_tokens), &v);
        }
    }
}

static void append_tokens(void *context, uint32_t thread, sim_parts *parts)
{
    const coded_call *call = context;
    nbl_quant_stats stats = {0};
    int64_t t, end;
    (void)thread;
    while (sim_parts_next(parts, &t, &end)) {
        for (; t < end; ++t) {
            if (call->args->slots[t] >= 0) {
                append_token(call, (uint64_t)t, &stats);
            }
        }
    }
    sim_stats_add(call->args->stats, &stats);
}

/* Each slot lies in a region of the call's formats. */
static nbl_status check_formats(const coded_call *call, uint64_t tokens, nbl_error *err)
{
    const nbl_pool *pool = call->args->pool;
    for (uint64_t i = 0; i < tokens; ++i) {
        const int64_t slot = call->args->slots[i];
        const nbl_region *region = slot < 0 ? NULL : nbl_layout_region_find(pool, slot / pool->shape->page_tokens);
        if (region != NULL && ((call->args->k.data != NULL && region->k_format != call->args->k_format) ||
                               (call->args->v.data != NULL && region->v_format != call->args->v_format))) {
            return sim_fail(err, NBL_E_RANGE, "sim: slots[%llu] is %lld, in a region of other formats, %u and %u",
                            (unsigned long long)i, (long long)slot, region->k_format, region->v_format);
        }
    }
    return NBL_OK;
}

nbl_status sim_append_coded(nbl_device *device, const nbl_append_coded_args *args, nbl_error *err)
{
    coded_call call = call_of(args);
    const uint64_t tokens = args->k.data != NULL ? args->k.shape[0] : args->v.shape[0];
    nbl_status status = sim_check_stream(args->stream, err);
    if (status == NBL_OK) {
        status = sim_check_slots(args->pool, args->slots, tokens, err);
    }
    if (status == NBL_OK) {
        status = check_formats(&call, tokens, err);
    }
    if (status == NBL_OK) {
        sim_team_run(device->team, (int64_t)tokens, APPEND_TOKENS, append_tokens, &call);
    }
    return status;
}
