/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file append.c
 * @brief append: transform, quantize and store new tokens (NUM 3, 4).
 */
#include "centers.h"
#include "page.h"
#include "quantize.h"
#include "rowsum.h"
#include "sim.h"
#include "stats.h"
#include "tensor.h"
#include "transform.h"

#define CENTER_TOKENS_MIN 32u /* NUM 4.2 */
#define CENTER_TOKENS_MAX 1024u
#define APPEND_TOKENS 16 /* of a part */
#define QUAD NBL_LAYOUT_V_GROUP_TOKENS

/* One head's row of a token as binary32, sanitized (NUM 3.1). */
static void load_row(const sim_row_loops *loops, const nbl_tensor *t, uint64_t token, uint32_t head, float *x,
                     nbl_quant_stats *stats)
{
    sim_load_row(loops, sim_row3(t, token, head), t->dtype, t->stride_bytes[2], (uint32_t)t->shape[2], x, stats);
}

/* K of a token up to its rotation (NUM 4.5, 4.1). */
static void load_k(const sim_row_loops *loops, const nbl_append_args *args, uint64_t token, uint32_t head,
                   const sim_center *center, float *x, nbl_quant_stats *stats)
{
    const nbl_kv_shape *shape = args->pool->shape;
    load_row(loops, &args->k, token, head, x, stats);
    if (center->shifts != NULL) {
        loops->shift_up(x, shape->k_dim, center->shifts);
    }
    loops->hadamard(x, shape->k_dim, shape->k_hadamard);
}

/* The pages that the slots of a thread's last token lie in: neighbouring tokens mostly share them. */
typedef struct place {
    const sim_row_loops *loops;
    const nbl_append_args *args;
    const nbl_region *region;
    nbl_page_layout layout;
    nbl_quant_stats stats;
} place;

static void find_region(place *p, uint32_t page)
{
    const nbl_region *region = nbl_layout_region_find(p->args->pool, page);
    if (region != p->region) {
        p->region = region;
        p->layout = nbl_layout_page(p->args->pool->shape, region->k_format, region->v_format);
    }
}

/* Part of a head in the page of a slot. */
static sim_part part_of(const place *p, int64_t slot, enum nbl_kind kind, uint32_t head)
{
    const nbl_kv_shape *shape = p->args->pool->shape;
    uint32_t page = (uint32_t)(slot / shape->page_tokens);
    return sim_part_in(shape, p->region, &p->layout, p->args->layer, page, kind, head);
}

/* Canonical form of x, a vector of a part of a head; x is overwritten. */
static void quantize_row(place *p, const sim_part *part, uint32_t head, float *x, nbl_vector *v)
{
    const nbl_kv_shape *shape = p->args->pool->shape;
    uint32_t rule = part->kind == NBL_KIND_K ? shape->k_scale_rule : shape->v_scale_rule;
    nbl_scale_divide(x, part->dim, sim_scale_of(p->args->pool, part->kind, p->args->layer, head));
    p->loops->quantize(x, part->dim, part->format, rule, v, &p->stats);
}

static void append_k(place *p, uint64_t token, uint32_t head)
{
    const nbl_append_args *args = p->args;
    const nbl_kv_shape *shape = args->pool->shape;
    sim_part part = part_of(p, args->slots[token], NBL_KIND_K, head);
    sim_center center = {NULL, NULL, NULL};
    float x[NBL_DIM_PADDED_MAX];
    nbl_vector v;
    if (shape->centering) {
        center = sim_center_at(&args->centers, shape, sim_sequence_of(args->seq_indptr, args->batch, token), head);
    }
    load_k(p->loops, args, token, head, &center, x, &p->stats);
    if (center.codes != NULL) {
        p->loops->subtract_center(x, shape->k_dim, center.codes, *center.exponent);
    }
    quantize_row(p, &part, head, x, &v);
    sim_part_store(&part, (uint32_t)(args->slots[token] % shape->page_tokens), &v);
}

/* V of one token, or of four whose codes lie side by side. */
static void append_v(place *p, uint64_t token, uint32_t count, uint32_t head)
{
    const nbl_append_args *args = p->args;
    const nbl_kv_shape *shape = args->pool->shape;
    uint32_t first = (uint32_t)(args->slots[token] % shape->page_tokens);
    sim_part part = part_of(p, args->slots[token], NBL_KIND_V, head);
    float x[NBL_DIM_PADDED_MAX];
    nbl_vector v[QUAD];
    for (uint32_t i = 0; i < count; ++i) {
        load_row(p->loops, &args->v, token + i, head, x, &p->stats);
        p->loops->hadamard(x, shape->v_dim, shape->v_hadamard);
        quantize_row(p, &part, head, x, &v[i]);
    }
    if (count == QUAD) {
        sim_part_store_quad(p->loops, &part, first, v);
    } else {
        sim_part_store(&part, first, &v[0]);
    }
}

/* Tokens from `token` on, before `end`, that can be stored together: four if they are a whole group of V (F4). */
static uint32_t count_together(const nbl_append_args *args, int64_t token, int64_t end)
{
    const int64_t *slots = args->slots + token;
    uint32_t page_tokens = args->pool->shape->page_tokens;
    uint32_t first = (uint32_t)(slots[0] % page_tokens);
    if (end - token < QUAD || first % QUAD != 0 || first + QUAD > page_tokens) {
        return 1;
    }
    return slots[1] == slots[0] + 1 && slots[2] == slots[0] + 2 && slots[3] == slots[0] + 3 ? QUAD : 1;
}

/* Asks the caches for a head's rows of some tokens, as far as there are any: they lie too far apart for the hardware to
 * see them coming. */
static void prefetch_rows(const nbl_tensor *t, uint64_t token, uint32_t count, uint32_t head)
{
    const uint32_t bytes = (uint32_t)t->shape[2] * (t->dtype == NBL_F32 ? 4u : 2u);
    for (uint64_t end = token + count; token < end && token < t->shape[0]; ++token) {
        sim_prefetch(sim_row3(t, token, head), bytes);
    }
}

static void append_some(place *p, uint64_t token, uint32_t count)
{
    const nbl_kv_shape *shape = p->args->pool->shape;
    find_region(p, (uint32_t)(p->args->slots[token] / shape->page_tokens));
    for (uint32_t head = 0; head < shape->kv_heads; ++head) {
        prefetch_rows(&p->args->k, token + count, count, head);
        prefetch_rows(&p->args->v, token + count, count, head);
        for (uint32_t i = 0; i < count; ++i) {
            append_k(p, token + i, head);
        }
        append_v(p, token, count, head);
    }
}

/* Rows first..first+n-1 of K for one head, and the sums over them (NUM 4.2, 4.5). */
typedef struct k_rows {
    const sim_row_loops *loops;
    const nbl_append_args *args;
    uint32_t head;
    uint32_t first;
    uint32_t n;
    float sums[NBL_PARTIAL_SUMS][NBL_DIM_PADDED_MAX];
} k_rows;

/* out[d] = fl(tree(S) * fl(1/n)) of the sums as they are. */
static void mean_of(const k_rows *rows, uint32_t dim, float *out)
{
    float inverse = 1.0f / (float)rows->n;
    for (uint32_t d = 0; d < dim; ++d) {
        float s[NBL_PARTIAL_SUMS];
        for (uint32_t r = 0; r < NBL_PARTIAL_SUMS; ++r) {
            s[r] = rows->sums[r][d];
        }
        out[d] = nbl_sum_tree(s) * inverse;
    }
}

/* Means of the rows brought through `center`'s shifts and the rotation; of the plain rows if center is NULL. */
static void mean_rows(k_rows *rows, const sim_center *center, float *mean)
{
    uint32_t dim = rows->args->pool->shape->k_dim;
    float x[NBL_DIM_PADDED_MAX];
    nbl_quant_stats ignored = {0};
    memset(rows->sums, 0, sizeof rows->sums);
    for (uint32_t t = 0; t < rows->n; ++t) {
        if (center != NULL) {
            load_k(rows->loops, rows->args, rows->first + t, rows->head, center, x, &ignored);
        } else {
            load_row(rows->loops, &rows->args->k, rows->first + t, rows->head, x, &ignored);
        }
        for (uint32_t d = 0; d < dim; ++d) {
            rows->sums[t % NBL_PARTIAL_SUMS][d] += x[d];
        }
    }
    mean_of(rows, dim, mean);
}

/* Mean squares of the plain rows around `about` (NUM 4.5). */
static void mean_squares(k_rows *rows, const float *about, float *v)
{
    uint32_t dim = rows->args->pool->shape->k_dim;
    float x[NBL_DIM_PADDED_MAX];
    nbl_quant_stats ignored = {0};
    memset(rows->sums, 0, sizeof rows->sums);
    for (uint32_t t = 0; t < rows->n; ++t) {
        load_row(rows->loops, &rows->args->k, rows->first + t, rows->head, x, &ignored);
        for (uint32_t d = 0; d < dim; ++d) {
            float e = x[d] - about[d];
            float *sum = &rows->sums[t % NBL_PARTIAL_SUMS][d];
            *sum = nbl_fma(e, e, *sum);
        }
    }
    mean_of(rows, dim, v);
}

/* The channel shifts of NUM 4.5. */
static void compute_shifts(k_rows *rows, uint8_t *shifts)
{
    const nbl_kv_shape *shape = rows->args->pool->shape;
    float about[NBL_DIM_PADDED_MAX] = {0};
    float v[NBL_DIM_PADDED_MAX];
    if (shape->centering & NBL_CENTERING_MEAN) {
        mean_rows(rows, NULL, about);
    }
    mean_squares(rows, about, v);
    nbl_shifts_from(v, shape->k_dim, shifts);
}

/* COMPUTE of NUM 4.2 and 4.5 for one sequence and head. */
static void compute_center(const sim_row_loops *loops, const nbl_append_args *args, uint32_t sequence, uint32_t head)
{
    const nbl_kv_shape *shape = args->pool->shape;
    sim_center center = sim_center_at(&args->centers, shape, sequence, head);
    k_rows rows = {.loops = loops, .args = args, .head = head, .first = (uint32_t)args->seq_indptr[sequence]};
    float mean[NBL_DIM_PADDED_MAX] = {0};
    rows.n = (uint32_t)args->seq_indptr[sequence + 1] - rows.first;
    rows.n = rows.n < CENTER_TOKENS_MAX ? rows.n : CENTER_TOKENS_MAX;
    int enough = rows.n >= CENTER_TOKENS_MIN;
    if (center.shifts != NULL) {
        memset(center.shifts, 0, shape->k_dim);
        if (enough) {
            compute_shifts(&rows, center.shifts);
        }
    }
    if (center.codes != NULL) {
        if (enough) {
            mean_rows(&rows, &center, mean);
        }
        uint64_t ignored = 0;
        *center.exponent = nbl_e8m0_encode(nbl_quantize_int8(mean, shape->k_dim, center.codes, &ignored));
    }
}

/* What the threads of an append share. */
typedef struct append_call {
    const sim_row_loops *loops;
    const nbl_append_args *args;
} append_call;

/* A step is a kv head of a sequence. */
static void compute_centers(void *context, uint32_t thread, sim_parts *parts)
{
    const append_call *call = context;
    const nbl_append_args *args = call->args;
    int64_t heads = args->pool->shape->kv_heads;
    int64_t i, end;
    (void)thread;
    while (sim_parts_next(parts, &i, &end)) {
        for (; i < end; ++i) {
            uint32_t sequence = (uint32_t)(i / heads);
            if (args->seq_indptr[sequence + 1] > args->seq_indptr[sequence]) {
                compute_center(call->loops, args, sequence, (uint32_t)(i % heads));
            }
        }
    }
}

static void append_tokens(void *context, uint32_t thread, sim_parts *parts)
{
    const append_call *call = context;
    place p = {.loops = call->loops, .args = call->args};
    int64_t t, end;
    (void)thread;
    while (sim_parts_next(parts, &t, &end)) {
        while (t < end) {
            uint32_t count = 1;
            if (call->args->slots[t] >= 0) {
                count = count_together(call->args, t, end);
                append_some(&p, (uint64_t)t, count);
            }
            t += count;
        }
    }
    sim_stats_add(call->args->stats, &p.stats);
}

/* COMPUTE writes each sequence's row, so the rows of sequences with tokens must differ. */
static nbl_status check_distinct_rows(const nbl_append_args *args, nbl_error *err)
{
    const nbl_centers *centers = &args->centers;
    if (centers->rows == NULL || args->center_mode != NBL_CENTER_COMPUTE) {
        return NBL_OK;
    }
    uint8_t *taken = sim_alloc(centers->row_count);
    if (taken == NULL) {
        return sim_fail(err, NBL_E_NO_MEMORY, "sim: no memory for a set of %u rows", centers->row_count);
    }
    memset(taken, 0, centers->row_count);
    nbl_status status = NBL_OK;
    for (uint32_t b = 0; status == NBL_OK && b < args->batch; ++b) {
        if (args->seq_indptr[b + 1] == args->seq_indptr[b]) {
            continue;
        }
        if (taken[centers->rows[b]]) {
            status = sim_fail(err, NBL_E_OVERLAP, "sim: centers.rows[%u] is %d, another sequence's row too", b,
                              centers->rows[b]);
        }
        taken[centers->rows[b]] = 1;
    }
    sim_free(taken);
    return status;
}

static nbl_status check_args(const nbl_append_args *args, nbl_error *err)
{
    uint64_t tokens = args->k.shape[0];
    nbl_status status = sim_check_stream(args->stream, err);
    if (status == NBL_OK) {
        status = sim_check_slots(args->pool, args->slots, tokens, err);
    }
    if (status == NBL_OK && args->pool->shape->centering) {
        status = sim_check_indptr("seq_indptr", args->seq_indptr, args->batch, tokens, err);
        if (status == NBL_OK) {
            status = sim_check_centers(&args->centers, args->batch, err);
        }
        if (status == NBL_OK) {
            status = check_distinct_rows(args, err);
        }
    }
    return status;
}

nbl_status sim_append(nbl_device *device, const nbl_append_args *args, nbl_error *err)
{
    if (args->k.shape[0] == 0) {
        return NBL_OK;
    }
    nbl_status status = check_args(args, err);
    if (status != NBL_OK) {
        return status;
    }
    append_call call = {device->isa->row, args};
    if (args->pool->shape->centering && args->center_mode == NBL_CENTER_COMPUTE) {
        sim_team_run(device->team, (int64_t)args->batch * args->pool->shape->kv_heads, 1, compute_centers, &call);
    }
    sim_team_run(device->team, (int64_t)args->k.shape[0], APPEND_TOKENS, append_tokens, &call);
    return NBL_OK;
}
