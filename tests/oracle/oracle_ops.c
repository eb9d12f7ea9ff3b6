/* SPDX-License-Identifier: Apache-2.0 */
/** @file oracle_ops.c  append, gather, copy_pages, transcode: NUM 3.7, 4.2, 4.4. */
#include "oracle.h"

#include <math.h>
#include <string.h>

#define CENTER_TOKENS_MIN 32
#define CENTER_TOKENS_MAX 1024
#define EXPONENT_BIAS 127

static const enum oracle_side both_sides[2] = {ORACLE_K, ORACLE_V};

static uint32_t side_dim(const nbl_kv_shape *shape, enum oracle_side side)
{
    return side == ORACLE_K ? shape->k_dim : shape->v_dim;
}

static uint32_t side_hadamard(const nbl_kv_shape *shape, enum oracle_side side)
{
    return side == ORACLE_K ? shape->k_hadamard : shape->v_hadamard;
}

static uint32_t side_rule(const nbl_kv_shape *shape, enum oracle_side side)
{
    return side == ORACLE_K ? shape->k_scale_rule : shape->v_scale_rule;
}

static uint32_t side_format(const nbl_region *region, enum oracle_side side)
{
    return side == ORACLE_K ? region->k_format : region->v_format;
}

/* The sequence of a token of the call. */
static uint32_t token_sequence(const int32_t *indptr, uint32_t batch, uint64_t t)
{
    uint32_t b = 0;
    while (b + 1 < batch && (int64_t)t >= indptr[b + 1]) {
        b++;
    }
    return b;
}

/* Entry of a centre in its arrays, counted in heads. */
static uint64_t center_at(const nbl_centers *centers, const nbl_kv_shape *shape, uint32_t b, uint32_t head)
{
    uint64_t row = centers->rows != NULL ? (uint64_t)centers->rows[b] : b;
    return row * shape->kv_heads + head;
}

static float center_value(const nbl_centers *centers, const nbl_kv_shape *shape, uint64_t at, uint32_t d)
{
    return ldexpf((float)centers->codes[at * shape->k_dim + d], centers->exponents[at] - EXPONENT_BIAS);
}

/* ------------------------------------------------------------------------------------------------ append */

/* One input vector after NUM 3.1. */
static void load_plain(const nbl_append_args *args, enum oracle_side side, uint64_t t, uint32_t head, float *x,
                       nbl_quant_stats *stats)
{
    uint32_t dim = side_dim(args->pool->shape, side);

    oracle_row_get(side == ORACLE_K ? &args->k : &args->v, t, head, 0, x, dim);
    oracle_sanitize(x, dim, stats);
}

/* One input vector after NUM 3.1, 4.5 and 4.1. */
static void load_transformed(const nbl_append_args *args, enum oracle_side side, uint64_t t, uint32_t head, float *x,
                             nbl_quant_stats *stats)
{
    const nbl_kv_shape *shape = args->pool->shape;
    uint32_t dim = side_dim(shape, side);

    load_plain(args, side, t, head, x, stats);
    if (side == ORACLE_K && (shape->centering & NBL_CENTERING_SHIFT) != 0) {
        uint64_t at = center_at(&args->centers, shape, token_sequence(args->seq_indptr, args->batch, t), head);
        oracle_shift(x, dim, args->centers.shifts + at * dim, 1);
    }
    oracle_hadamard(x, dim, side_hadamard(shape, side));
}

/* The mean vector of NUM 4.2 over the first n tokens of sequence b. */
static void mean_vector(const nbl_append_args *args, uint32_t b, uint32_t head, int32_t n, float *mean)
{
    float sums[ORACLE_DIM_MAX][16] = {{0}};
    float x[ORACLE_DIM_MAX];
    uint32_t dim = args->pool->shape->k_dim;

    for (int32_t t = 0; t < n; t++) {
        load_transformed(args, ORACLE_K, (uint64_t)(args->seq_indptr[b] + t), head, x, NULL);
        for (uint32_t d = 0; d < dim; d++) {
            sums[d][t % 16] += x[d];
        }
    }
    for (uint32_t d = 0; d < dim; d++) {
        mean[d] = oracle_tree(sums[d]) * (1.0f / (float)n);
    }
}

/* NUM 4.5: v[d] over the first n tokens, around the plain mean (MEAN) or zero. */
static void mean_squares(const nbl_append_args *args, uint32_t b, uint32_t head, int32_t n, float *v)
{
    uint32_t dim = args->pool->shape->k_dim;
    bool around_mean = (args->pool->shape->centering & NBL_CENTERING_MEAN) != 0;
    float sums[ORACLE_DIM_MAX][16] = {{0}};
    float squares[ORACLE_DIM_MAX][16] = {{0}};
    float about[ORACLE_DIM_MAX] = {0};
    float x[ORACLE_DIM_MAX];

    for (int32_t t = 0; t < n && around_mean; t++) {
        load_plain(args, ORACLE_K, (uint64_t)(args->seq_indptr[b] + t), head, x, NULL);
        for (uint32_t d = 0; d < dim; d++) {
            sums[d][t % 16] += x[d];
        }
    }
    for (uint32_t d = 0; d < dim && around_mean; d++) {
        about[d] = oracle_tree(sums[d]) * (1.0f / (float)n);
    }
    for (int32_t t = 0; t < n; t++) {
        load_plain(args, ORACLE_K, (uint64_t)(args->seq_indptr[b] + t), head, x, NULL);
        for (uint32_t d = 0; d < dim; d++) {
            squares[d][t % 16] = fmaf(x[d] - about[d], x[d] - about[d], squares[d][t % 16]);
        }
    }
    for (uint32_t d = 0; d < dim; d++) {
        v[d] = oracle_tree(squares[d]) * (1.0f / (float)n);
    }
}

/* Smallest s with v <= 2^(2s + 1), by trying. */
static int half_exponent(float v)
{
    int s = -200;

    while ((double)v > ldexp(1.0, 2 * s + 1)) {
        s++;
    }
    return s;
}

/* NUM 4.5. */
static void compute_shifts(const nbl_append_args *args, uint32_t b, uint32_t head, int32_t n, uint8_t *shifts)
{
    uint32_t dim = args->pool->shape->k_dim;
    float v[ORACLE_DIM_MAX];
    int most = -200;

    memset(shifts, 0, dim);
    if (n < CENTER_TOKENS_MIN) {
        return;
    }
    mean_squares(args, b, head, n, v);
    for (uint32_t d = 0; d < dim; d++) {
        if (v[d] >= 0x1p-126f && half_exponent(v[d]) > most) {
            most = half_exponent(v[d]);
        }
    }
    for (uint32_t d = 0; d < dim; d++) {
        if (v[d] >= 0x1p-126f) {
            int half = (most - half_exponent(v[d]) + 1) / 2;
            shifts[d] = (uint8_t)(half < 7 ? half : 7);
        }
    }
}

static void compute_center(const nbl_append_args *args, uint32_t b, uint32_t head)
{
    const nbl_kv_shape *shape = args->pool->shape;
    uint64_t at = center_at(&args->centers, shape, b, head);
    int32_t n = args->seq_indptr[b + 1] - args->seq_indptr[b];
    float mean[ORACLE_DIM_MAX] = {0};
    oracle_vector center;

    if (n == 0) {
        return;
    }
    n = n < CENTER_TOKENS_MAX ? n : CENTER_TOKENS_MAX;
    if ((shape->centering & NBL_CENTERING_SHIFT) != 0) {
        compute_shifts(args, b, head, n, args->centers.shifts + at * shape->k_dim);
    }
    if ((shape->centering & NBL_CENTERING_MEAN) == 0) {
        return;
    }
    if (n >= CENTER_TOKENS_MIN) {
        mean_vector(args, b, head, n, mean);
    }
    oracle_quantize(NBL_INT8, 0, mean, shape->k_dim, &center, NULL);
    memcpy(args->centers.codes + at * shape->k_dim, center.codes, shape->k_dim);
    args->centers.exponents[at] = (uint8_t)(center.exponent + EXPONENT_BIAS);
}

static void subtract_center(const nbl_append_args *args, uint64_t t, uint32_t head, float *x)
{
    const nbl_kv_shape *shape = args->pool->shape;
    uint32_t b = token_sequence(args->seq_indptr, args->batch, t);
    uint64_t at = center_at(&args->centers, shape, b, head);

    for (uint32_t d = 0; d < shape->k_dim; d++) {
        x[d] -= center_value(&args->centers, shape, at, d);
    }
}

static void append_vector(const nbl_append_args *args, uint64_t t, uint32_t head, enum oracle_side side)
{
    const nbl_kv_shape *shape = args->pool->shape;
    const nbl_region *region = oracle_region(args->pool, args->slots[t] / shape->page_tokens);
    float x[ORACLE_DIM_MAX];
    oracle_vector vector;

    load_transformed(args, side, t, head, x, args->stats);
    if (side == ORACLE_K && (shape->centering & NBL_CENTERING_MEAN) != 0) {
        subtract_center(args, t, head, x);
    }
    for (uint32_t d = 0; d < side_dim(shape, side); d++) {
        x[d] /= oracle_head_scale(args->pool, side, args->layer, head);
    }
    oracle_quantize(side_format(region, side), side_rule(shape, side), x, side_dim(shape, side), &vector, args->stats);
    oracle_slot_write(args->pool, args->layer, args->slots[t], side, head, &vector);
    if (args->stats != NULL) {
        args->stats->vectors++;
    }
}

void oracle_append(const nbl_append_args *args)
{
    const nbl_kv_shape *shape = args->pool->shape;

    if (shape->centering && args->center_mode == NBL_CENTER_COMPUTE) {
        for (uint32_t b = 0; b < args->batch; b++) {
            for (uint32_t head = 0; head < shape->kv_heads; head++) {
                compute_center(args, b, head);
            }
        }
    }
    for (uint64_t t = 0; t < args->k.shape[0]; t++) {
        for (uint32_t head = 0; args->slots[t] >= 0 && head < shape->kv_heads; head++) {
            append_vector(args, t, head, ORACLE_K);
            append_vector(args, t, head, ORACLE_V);
        }
    }
}

/* ------------------------------------------------------------------------------------------------ gather */

static void restore(const nbl_gather_args *args, uint64_t t, uint32_t head, enum oracle_side side, float *x)
{
    const nbl_kv_shape *shape = args->pool->shape;
    uint32_t dim = side_dim(shape, side);

    if (side == ORACLE_K && (shape->centering & NBL_CENTERING_MEAN) != 0) {
        uint32_t b = token_sequence(args->seq_indptr, args->batch, t);
        uint64_t at = center_at(&args->centers, shape, b, head);
        for (uint32_t d = 0; d < dim; d++) {
            x[d] += center_value(&args->centers, shape, at, d);
        }
    }
    oracle_hadamard(x, dim, side_hadamard(shape, side));
    oracle_hadamard_scale(x, dim, side_hadamard(shape, side));
    if (side == ORACLE_K && (shape->centering & NBL_CENTERING_SHIFT) != 0) {
        uint64_t at = center_at(&args->centers, shape, token_sequence(args->seq_indptr, args->batch, t), head);
        oracle_shift(x, dim, args->centers.shifts + at * dim, -1);
    }
}

static void gather_vector(const nbl_gather_args *args, uint64_t t, uint32_t head, enum oracle_side side)
{
    const nbl_tensor *out = side == ORACLE_K ? &args->k : &args->v;
    float x[ORACLE_DIM_MAX] = {0};
    oracle_vector vector;

    if (args->slots[t] >= 0) {
        oracle_slot_read(args->pool, args->layer, args->slots[t], side, head, &vector);
        oracle_decode(&vector, x);
        for (uint32_t d = 0; d < vector.dim; d++) {
            x[d] *= oracle_head_scale(args->pool, side, args->layer, head);
        }
        if (!(args->flags & NBL_GATHER_STORED)) {
            restore(args, t, head, side, x);
        }
    }
    oracle_row_set(out, t, head, 0, x, side_dim(args->pool->shape, side));
}

void oracle_gather(const nbl_gather_args *args)
{
    for (int s = 0; s < 2; s++) {
        const nbl_tensor *out = both_sides[s] == ORACLE_K ? &args->k : &args->v;
        for (uint64_t t = 0; out->data != NULL && t < out->shape[0]; t++) {
            for (uint32_t head = 0; head < args->pool->shape->kv_heads; head++) {
                gather_vector(args, t, head, both_sides[s]);
            }
        }
    }
}

/* ------------------------------------------------------------------------------------------------ whole pages */

/* Copies parts of `bytes` used bytes each, `stride` apart; what lies between is padding and stays. bf16 and its like
 * have no scales, and perhaps no pool for them. */
static void copy_parts(uint8_t *dst, const uint8_t *src, uint32_t parts, uint64_t bytes, uint64_t stride)
{
    for (uint32_t i = 0; i < parts && bytes > 0; i++) {
        memcpy(dst + i * stride, src + i * stride, bytes);
    }
}

static void copy_page(const nbl_copy_pages_args *args, uint32_t layer, int64_t src_page, int64_t dst_page)
{
    const nbl_kv_shape *shape = args->src_pool->shape;
    const nbl_region *from = oracle_region(args->src_pool, src_page);
    const nbl_region *to = oracle_region(args->dst_pool, dst_page);
    const uint8_t *src_codes = oracle_page_codes(from, layer, src_page);
    const uint8_t *src_scales = oracle_page_scales(from, layer, src_page);
    uint8_t *dst_codes = oracle_page_codes(to, layer, dst_page);
    uint8_t *dst_scales = oracle_page_scales(to, layer, dst_page);
    uint64_t tokens = shape->page_tokens;
    nbl_page_layout at;

    oracle_page_layout(shape, from->k_format, from->v_format, &at);
    copy_parts(dst_codes, src_codes, shape->kv_heads, tokens * oracle_code_bytes(from->k_format, shape->k_dim),
               at.k_code_head_bytes);
    copy_parts(dst_codes + at.v_code_offset, src_codes + at.v_code_offset, shape->kv_heads,
               tokens * oracle_code_bytes(from->v_format, shape->v_dim), at.v_code_head_bytes);
    copy_parts(dst_scales, src_scales, shape->kv_heads, tokens * oracle_scale_bytes(from->k_format, shape->k_dim),
               at.k_scale_head_bytes);
    copy_parts(dst_scales + at.v_scale_offset, src_scales + at.v_scale_offset, shape->kv_heads,
               tokens * oracle_scale_bytes(from->v_format, shape->v_dim), at.v_scale_head_bytes);
}

void oracle_copy_pages(const nbl_copy_pages_args *args)
{
    for (uint32_t i = 0; i < args->count; i++) {
        for (uint32_t layer = 0; layer < args->src_pool->shape->layers; layer++) {
            copy_page(args, layer, args->src_pages[i], args->dst_pages[i]);
        }
    }
}

static void transcode_vector(const nbl_transcode_args *args, uint32_t layer, uint32_t pair, int32_t t, uint32_t head,
                             enum oracle_side side)
{
    const nbl_kv_shape *to_shape = args->dst_pool->shape;
    const nbl_region *to = oracle_region(args->dst_pool, args->dst_pages[pair]);
    int64_t src_slot = (int64_t)args->src_pages[pair] * args->src_pool->shape->page_tokens + t;
    int64_t dst_slot = (int64_t)args->dst_pages[pair] * to_shape->page_tokens + t;
    float x[ORACLE_DIM_MAX];
    oracle_vector vector;

    oracle_slot_read(args->src_pool, layer, src_slot, side, head, &vector);
    oracle_decode(&vector, x);
    for (uint32_t d = 0; d < vector.dim; d++) {
        float from_scale = oracle_head_scale(args->src_pool, side, layer, head);
        float to_scale = oracle_head_scale(args->dst_pool, side, layer, head);
        x[d] = from_scale == to_scale ? x[d] : x[d] * from_scale / to_scale;
    }
    oracle_quantize(side_format(to, side), side_rule(to_shape, side), x, vector.dim, &vector, args->stats);
    oracle_slot_write(args->dst_pool, layer, dst_slot, side, head, &vector);
    if (args->stats != NULL) {
        args->stats->vectors++;
    }
}

void oracle_transcode(const nbl_transcode_args *args)
{
    const nbl_kv_shape *shape = args->src_pool->shape;

    for (uint32_t pair = 0; pair < args->count; pair++) {
        for (uint32_t layer = 0; layer < shape->layers; layer++) {
            for (uint32_t head = 0; head < shape->kv_heads; head++) {
                for (int32_t t = 0; t < args->token_counts[pair]; t++) {
                    transcode_vector(args, layer, pair, t, head, ORACLE_K);
                    transcode_vector(args, layer, pair, t, head, ORACLE_V);
                }
            }
        }
    }
}
