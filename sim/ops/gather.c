/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file gather.c
 * @brief gather: dequantize tokens (NUM 4.4).
 */
#include "centers.h"
#include "page.h"
#include "sim.h"
#include "tensor.h"
#include "transform.h"

#define GATHER_TOKENS 16 /* of a part */

/* Decodes one stored vector to binary32 without undoing any transform. */
static void decode_slot(const nbl_gather_args *args, int64_t slot, enum nbl_kind kind, uint32_t head, float *x)
{
    uint32_t page_tokens = args->pool->shape->page_tokens;
    sim_part part = sim_part_at(args->pool, args->layer, (uint32_t)(slot / page_tokens), kind, head);
    nbl_vector v;
    sim_part_load(&part, (uint32_t)(slot % page_tokens), &v);
    nbl_vector_values(&v, x);
    nbl_scale_multiply(x, part.dim, sim_scale_of(args->pool, kind, args->layer, head));
}

/* Takes K back through centre, rotation and channel shifts. */
static void undo_k(const nbl_gather_args *args, uint64_t token, uint32_t head, float *x)
{
    const nbl_kv_shape *shape = args->pool->shape;
    if (!shape->centering) {
        nbl_hadamard_undo(x, shape->k_dim, shape->k_hadamard);
        return;
    }
    uint32_t sequence = sim_sequence_of(args->seq_indptr, args->batch, token);
    sim_center center = sim_center_at(&args->centers, shape, sequence, head);
    if (center.codes != NULL) {
        nbl_center_add(x, shape->k_dim, center.codes, *center.exponent);
    }
    nbl_hadamard_undo(x, shape->k_dim, shape->k_hadamard);
    if (center.shifts != NULL) {
        nbl_shift_down(x, shape->k_dim, center.shifts);
    }
}

static void gather_row(const nbl_gather_args *args, const nbl_tensor *out, uint64_t token, enum nbl_kind kind,
                       uint32_t head)
{
    const nbl_kv_shape *shape = args->pool->shape;
    uint32_t dim = kind == NBL_KIND_K ? shape->k_dim : shape->v_dim;
    float x[NBL_DIM_PADDED_MAX] = {0};
    if (args->slots[token] >= 0) {
        decode_slot(args, args->slots[token], kind, head, x);
        if ((args->flags & NBL_GATHER_STORED) == 0) {
            if (kind == NBL_KIND_K) {
                undo_k(args, token, head, x);
            } else {
                nbl_hadamard_undo(x, dim, shape->v_hadamard);
            }
        }
    }
    sim_write(sim_row3(out, token, head), out->dtype, out->stride_bytes[2], dim, x);
}

static void gather_token(const nbl_gather_args *args, uint64_t token)
{
    for (uint32_t head = 0; head < args->pool->shape->kv_heads; ++head) {
        if (args->k.data != NULL) {
            gather_row(args, &args->k, token, NBL_KIND_K, head);
        }
        if (args->v.data != NULL) {
            gather_row(args, &args->v, token, NBL_KIND_V, head);
        }
    }
}

static int needs_centers(const nbl_gather_args *args)
{
    return args->pool->shape->centering && args->k.data != NULL && (args->flags & NBL_GATHER_STORED) == 0;
}

/* context: the arguments. */
static void gather_share(void *context, uint32_t thread, sim_parts *parts)
{
    const nbl_gather_args *args = *(const nbl_gather_args *const *)context;
    int64_t t, end;
    (void)thread;
    while (sim_parts_next(parts, &t, &end)) {
        for (; t < end; ++t) {
            gather_token(args, (uint64_t)t);
        }
    }
}

nbl_status sim_gather(nbl_device *device, const nbl_gather_args *args, nbl_error *err)
{
    const nbl_tensor *any = args->k.data != NULL ? &args->k : &args->v;
    int64_t tokens = (int64_t)any->shape[0];
    if (any->data == NULL || tokens == 0) {
        return NBL_OK;
    }
    nbl_status status = sim_check_stream(args->stream, err);
    if (status == NBL_OK) {
        status = sim_check_slots(args->pool, args->slots, (uint64_t)tokens, err);
    }
    if (status == NBL_OK && needs_centers(args)) {
        status = sim_check_indptr("seq_indptr", args->seq_indptr, args->batch, (uint64_t)tokens, err);
        status = status == NBL_OK ? sim_check_centers(&args->centers, args->batch, err) : status;
    }
    if (status != NBL_OK) {
        return status;
    }
    sim_team_run(device->team, tokens, GATHER_TOKENS, gather_share, &args);
    return NBL_OK;
}
