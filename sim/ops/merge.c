/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file merge.c
 * @brief merge: folds states, or averages (o, lse) pairs (NUM 5.6 to 5.8).
 */
#include "merge.h"
#include "block.h"
#include "sim.h"
#include "tensor.h"

#define MERGE_ROWS 16 /* of a part */

static nbl_state_head read_head(const nbl_tensor *t, uint64_t n, uint64_t row, uint64_t head)
{
    nbl_state_head state;
    sim_read(sim_row4(t, n, row, head), NBL_F32, t->stride_bytes[3], 4, &state.base);
    return state;
}

/* Writes O and LSE of a state; o is scratch and is overwritten. */
static void write_output(const nbl_merge_args *args, uint64_t row, uint64_t head, nbl_state_head *state, float *o,
                         uint32_t dim)
{
    if (args->sinks != NULL) {
        nbl_state_add_sink(state, o, dim, args->sinks[head]);
    }
    if (args->lse.data != NULL) {
        float lse = nbl_state_lse(state, (args->flags & NBL_MERGE_LSE_BASE2) != 0);
        memcpy(sim_row3(&args->lse, row, head), &lse, sizeof lse);
    }
    if (args->o.data != NULL) {
        nbl_state_output(state, o, dim, args->v_hadamard);
        sim_write(sim_row3(&args->o, row, head), args->o.dtype, args->o.stride_bytes[2], dim, o);
    }
}

static void merge_states(const nbl_merge_args *args, uint64_t row, uint64_t head)
{
    uint32_t dim = (uint32_t)args->in_state_o.shape[3];
    nbl_state_head total = nbl_state_empty(read_head(&args->in_state_head, 0, row, head).offset);
    float o[NBL_DIM_PADDED_MAX] = {0};
    for (uint32_t n = 0; n < args->count; ++n) {
        nbl_state_head part = read_head(&args->in_state_head, n, row, head);
        float part_o[NBL_DIM_PADDED_MAX];
        sim_read(sim_row4(&args->in_state_o, n, row, head), NBL_F32, args->in_state_o.stride_bytes[3], dim, part_o);
        nbl_state_merge(&total, o, &part, part_o, dim);
    }
    if (args->state_head.data != NULL) {
        sim_write(sim_row3(&args->state_head, row, head), NBL_F32, args->state_head.stride_bytes[2], 4, &total.base);
        sim_write(sim_row3(&args->state_o, row, head), NBL_F32, args->state_o.stride_bytes[2], dim, o);
    }
    write_output(args, row, head, &total, o, dim);
}

static float read_lse(const nbl_merge_args *args, uint32_t n, uint64_t row, uint64_t head)
{
    float lse;
    memcpy(&lse, sim_row3(&args->in_lse, n, row) + (int64_t)head * args->in_lse.stride_bytes[2], sizeof lse);
    return lse;
}

static float largest_lse(const nbl_merge_args *args, uint64_t row, uint64_t head)
{
    float most = -INFINITY;
    for (uint32_t n = 0; n < args->count; ++n) {
        float lse = read_lse(args, n, row, head);
        most = lse > most ? lse : most;
    }
    return most;
}

/* NUM 5.8. */
static void merge_pairs(const nbl_merge_args *args, uint64_t row, uint64_t head)
{
    uint32_t dim = (uint32_t)args->in_o.shape[3];
    int base2 = (args->flags & NBL_MERGE_LSE_BASE2) != 0;
    float most = largest_lse(args, row, head);
    float total = 0.0f;
    float y[NBL_DIM_PADDED_MAX] = {0};
    for (uint32_t n = 0; n < args->count; ++n) {
        float lse = read_lse(args, n, row, head);
        if (lse == -INFINITY) {
            continue;
        }
        float distance = lse - most;
        float w = nbl_exp2p(base2 ? distance : distance * NBL_LOG2E);
        float o[NBL_DIM_PADDED_MAX];
        sim_read(sim_row4(&args->in_o, n, row, head), args->in_o.dtype, args->in_o.stride_bytes[3], dim, o);
        total += w;
        for (uint32_t d = 0; d < dim; ++d) {
            y[d] = nbl_fma(w, o[d], y[d]);
        }
    }
    float lse = -INFINITY;
    if (total > 0.0f) {
        float r = 1.0f / total;
        for (uint32_t d = 0; d < dim; ++d) {
            y[d] *= r;
        }
        lse = most + (base2 ? nbl_log2p(total) : nbl_log2p(total) * NBL_LN2);
    }
    if (args->o.data != NULL) {
        sim_write(sim_row3(&args->o, row, head), args->o.dtype, args->o.stride_bytes[2], dim, y);
    }
    if (args->lse.data != NULL) {
        memcpy(sim_row3(&args->lse, row, head), &lse, sizeof lse);
    }
}

static nbl_status check_lse(const nbl_merge_args *args, nbl_error *err)
{
    for (uint64_t row = 0; row < args->in_lse.shape[1]; ++row) {
        for (uint64_t head = 0; head < args->in_lse.shape[2]; ++head) {
            for (uint32_t n = 0; n < args->count; ++n) {
                float lse = read_lse(args, n, row, head);
                if (isnan(lse) || lse == INFINITY) {
                    return sim_fail(err, NBL_E_RANGE, "sim: in_lse[%u][%llu][%llu] is %g (allowed: finite or -inf)", n,
                                    (unsigned long long)row, (unsigned long long)head, (double)lse);
                }
            }
        }
    }
    return NBL_OK;
}

/* context: the arguments. */
static void merge_share(void *context, uint32_t thread, sim_parts *parts)
{
    const nbl_merge_args *args = *(const nbl_merge_args *const *)context;
    int from_states = args->in_state_head.data != NULL;
    int64_t heads = (int64_t)(from_states ? args->in_state_o : args->in_o).shape[2];
    int64_t i, end;
    (void)thread;
    while (sim_parts_next(parts, &i, &end)) {
        for (; i < end; ++i) {
            (from_states ? merge_states : merge_pairs)(args, (uint64_t)(i / heads), (uint64_t)(i % heads));
        }
    }
}

nbl_status sim_merge(nbl_device *device, const nbl_merge_args *args, nbl_error *err)
{
    int from_states = args->in_state_head.data != NULL;
    const nbl_tensor *in = from_states ? &args->in_state_o : &args->in_o;
    int64_t heads = (int64_t)in->shape[2];
    int64_t count = (int64_t)in->shape[1] * heads;
    nbl_status status = sim_check_stream(args->stream, err);
    if (status == NBL_OK && !from_states) {
        status = check_lse(args, err);
    }
    if (status == NBL_OK && args->sinks != NULL) {
        status = sim_check_sinks(args->sinks, (uint32_t)heads, err);
    }
    if (status != NBL_OK) {
        return status;
    }
    sim_team_run(device->team, count, MERGE_ROWS, merge_share, &args);
    return NBL_OK;
}
