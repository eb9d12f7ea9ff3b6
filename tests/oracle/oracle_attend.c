/* SPDX-License-Identifier: Apache-2.0 */
/** @file oracle_attend.c  attend and merge: NUM 5. */
#include "oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TILE_TOKENS 128
#define CHUNK_TOKENS 1024
#define EXPONENT_BIAS 127
#define LOG2E_BITS 0x3FB8AA3Bu
#define LN2_BITS 0x3F317218u
#define C_BITS 0x437EF400u
#define GRID 49152.0f
#define REBASE 32.0f
#define Z_MAX 4194304.0f
#define SMALLEST_NORMAL 0x1p-126f
#define FLOAT_GRID 24576.0f
#define FLOAT_REBASE 8.0f

/* State of a chunk or of several (NUM 5.6). */
typedef struct state {
    float m;
    float l;
    float o[ORACLE_DIM_MAX];
    float s[16]; /* the float core's sums of a chunk (NUM 6.4) */
} state;

/* Decoded vectors of one kv head of one sequence; filled where a row looks, so that no other slot is ever read. */
typedef struct kv_head {
    const nbl_attend_args *args;
    uint32_t b;
    uint32_t head;
    uint8_t *loaded;
    int8_t *k;
    int8_t *v;
    float *k_values; /* float core */
    float *v_values;
    bool is_float;
    bool is_fp4;          /* Blackwell core */
    oracle_vector *k_fp4; /* as stored */
    bool k_fp16;
    bool v_fp16;
    int32_t *k_exponent;
    int32_t *v_exponent;
    uint32_t k_stride;
    uint32_t v_stride;
} kv_head;

/* What NUM 5.1 to 5.3 need of one row. */
typedef struct query_row {
    const nbl_attend_args *args;
    kv_head *kv;
    uint32_t b;
    uint32_t i; /* row of the sequence */
    uint64_t t; /* row of the call */
    uint32_t h; /* query head */
    int64_t position;
    oracle_vector q;
    float q_values[ORACLE_DIM_MAX]; /* float core */
    int32_t q_exponent;             /* Blackwell core */
    oracle_vector centre[2];        /* m0 and m1 of NUM 7.5 */
    int32_t centre_exponent[2];
    float cq_row;
    float cq_unscaled; /* without the head's scale */
    float cs_row;
    float cap_scale; /* fl(soft_cap * LOG2E) */
    float slope;     /* fl(slope * LOG2E) */
    float offset;
} query_row;

/* The visible tokens of one tile, in increasing order. */
typedef struct tile {
    uint32_t count;
    int64_t j[TILE_TOKENS];
    float x[TILE_TOKENS];
    float a[TILE_TOKENS];
    float t[TILE_TOKENS];
} tile;

static float constant(uint32_t bits)
{
    return oracle_f32_from_bits(bits);
}

static void *allocate(uint64_t count, size_t size)
{
    void *memory = calloc(count + 1u, size);
    if (memory == NULL) {
        abort();
    }
    return memory;
}

/* ------------------------------------------------------------------------------------------------ tokens */

static void kv_head_init(kv_head *kv, const nbl_attend_args *args, uint32_t b, uint32_t head)
{
    uint64_t tokens = (uint64_t)args->kv_len[b];

    kv->args = args;
    kv->b = b;
    kv->head = head;
    kv->k_stride = oracle_padded_dim(args->pool->shape->k_dim);
    kv->v_stride = oracle_padded_dim(args->pool->shape->v_dim);
    kv->loaded = allocate(tokens, 1);
    kv->k = allocate(tokens, kv->k_stride);
    kv->v = allocate(tokens, kv->v_stride);
    kv->k_exponent = allocate(tokens, sizeof(int32_t));
    kv->v_exponent = allocate(tokens, sizeof(int32_t));
    kv->is_float = oracle_pool_is_float(args->pool);
    kv->is_fp4 = args->q_format == NBL_Q_FP4;
    kv->k_fp4 = allocate(kv->is_fp4 ? tokens : 0, sizeof *kv->k_fp4);
    kv->k_fp16 = args->pool->regions[0].k_format == NBL_FORMAT_FP16;
    kv->v_fp16 = args->pool->regions[0].v_format == NBL_FORMAT_FP16;
    kv->k_values = allocate(kv->is_float ? tokens * kv->k_stride : 0, sizeof(float));
    kv->v_values = allocate(kv->is_float ? tokens * kv->v_stride : 0, sizeof(float));
}

static void kv_head_free(kv_head *kv)
{
    free(kv->loaded);
    free(kv->k);
    free(kv->v);
    free(kv->k_exponent);
    free(kv->v_exponent);
    free(kv->k_values);
    free(kv->k_fp4);
    free(kv->v_values);
}

static void kv_head_load(kv_head *kv, int64_t j)
{
    const nbl_attend_args *args = kv->args;
    uint32_t page_tokens = args->pool->shape->page_tokens;
    const int32_t *pages = args->page_table + (uint64_t)kv->b * args->page_table_stride;
    oracle_vector vector;
    int64_t slot;

    if (kv->loaded[j]) {
        return;
    }
    slot = (int64_t)pages[j / page_tokens] * page_tokens + j % page_tokens;
    oracle_slot_read(args->pool, args->layer, slot, ORACLE_K, kv->head, &vector);
    memcpy(kv->k + (uint64_t)j * kv->k_stride, vector.codes, kv->k_stride);
    kv->k_exponent[j] = vector.exponent;
    if (kv->is_fp4) {
        kv->k_fp4[j] = vector;
    }
    if (kv->is_float) {
        memcpy(kv->k_values + (uint64_t)j * kv->k_stride, vector.values, kv->k_stride * sizeof(float));
    }
    oracle_slot_read(args->pool, args->layer, slot, ORACLE_V, kv->head, &vector);
    memcpy(kv->v + (uint64_t)j * kv->v_stride, vector.codes, kv->v_stride);
    kv->v_exponent[j] = vector.exponent;
    if (kv->is_float) {
        memcpy(kv->v_values + (uint64_t)j * kv->v_stride, vector.values, kv->v_stride * sizeof(float));
    }
    kv->loaded[j] = 1;
}

bool oracle_visible(const nbl_attend_args *args, uint32_t b, uint32_t i, int64_t j)
{
    int64_t kv_len = args->kv_len[b];
    int64_t old_tokens = kv_len - (args->q_indptr[b + 1] - args->q_indptr[b]);
    int64_t position = old_tokens + i;

    if (j < 0 || j >= kv_len) {
        return false;
    }
    if ((args->flags & NBL_ATTEND_CAUSAL) && j > position) {
        return false;
    }
    if ((args->flags & NBL_ATTEND_WINDOW_LEFT) && j < position - (int64_t)args->window_left) {
        return false;
    }
    if ((args->flags & NBL_ATTEND_WINDOW_RIGHT) && j > position + (int64_t)args->window_right) {
        return false;
    }
    if ((args->range_begin != 0 || args->range_end != 0) && (j < args->range_begin || j >= args->range_end)) {
        return false;
    }
    if (args->tree_mask != NULL && j >= old_tokens) {
        uint64_t bit = (uint64_t)(j - old_tokens);
        uint64_t row = (uint64_t)args->q_indptr[b] + i;
        return args->tree_mask[row * args->tree_mask_stride + bit / 32u] >> bit % 32u & 1u;
    }
    return true;
}

/* ------------------------------------------------------------------------------------------------ the row */

static int32_t block_log2(uint32_t block)
{
    int32_t n = 0;
    while (block > 1) {
        block /= 2;
        n++;
    }
    return n;
}

static bool has_q_centers(const nbl_attend_args *args)
{
    return args->q_format == NBL_Q_FP4 && args->q_centers.data != NULL;
}

/* Of the K centre of the row's head. */
static uint64_t center_index(const query_row *row)
{
    const nbl_centers *centers = &row->args->centers;
    uint64_t center = centers->rows != NULL ? (uint64_t)centers->rows[row->b] : row->b;
    return center * row->args->pool->shape->kv_heads + row->kv->head;
}

/* NUM 6.6: the offset of some values taken for a row; unit is that of its products. */
static float float_offset(const query_row *row, const float *values, float unit)
{
    const nbl_centers *centers = &row->args->centers;
    uint64_t at = center_index(row), dim = row->args->pool->shape->k_dim;
    float r[16] = {0};
    for (uint32_t d = 0; d < dim; d++) {
        r[d % 16] = fmaf(values[d], (float)centers->codes[at * dim + d], r[d % 16]);
    }
    return ldexpf(oracle_tree(r), centers->exponents[at] - EXPONENT_BIAS) * unit;
}

/* NUM 5.7: the centre's part of every logit of the row. */
static float center_offset(const query_row *row)
{
    const nbl_kv_shape *shape = row->args->pool->shape;
    const nbl_centers *centers = &row->args->centers;
    uint64_t at = center_index(row);
    int64_t sum = 0;

    if ((shape->centering & NBL_CENTERING_MEAN) == 0 || row->args->kv_len[row->b] == 0) {
        return 0.0f;
    }
    if (row->kv->is_float) {
        float offset = float_offset(row, row->q_values, row->cq_unscaled);
        if (has_q_centers(row->args)) {
            float part[2];
            for (int i = 0; i < 2; i++) {
                float unit = ldexpf(row->cq_unscaled, row->centre_exponent[i] - row->q_exponent);
                part[i] = float_offset(row, row->centre[i].values, unit);
            }
            offset += part[0] + part[1];
        }
        return offset;
    }
    for (uint32_t d = 0; d < shape->k_dim; d++) {
        sum += (int64_t)row->q.codes[d] * centers->codes[at * shape->k_dim + d];
    }
    return (float)ldexp((double)sum * (double)row->cq_row, centers->exponents[at] - EXPONENT_BIAS);
}

/* NUM 7.1: the row in K's format, times 2^-E; E is returned. */
static int32_t quantize_fp4(const nbl_attend_args *args, const float *x, uint32_t dim, oracle_vector *out)
{
    uint32_t format = args->pool->regions[0].k_format;
    float largest = 0.0f;
    float scaled[ORACLE_DIM_MAX];
    int32_t e = format == NBL_NVFP4 ? -44 : 0;

    for (uint32_t d = 0; d < dim; d++) {
        largest = fmaxf(largest, fabsf(x[d]));
    }
    while (format == NBL_NVFP4 && e < 36 && (double)largest > ldexp(2688.0, e)) {
        e++;
    }
    for (uint32_t d = 0; d < dim; d++) {
        scaled[d] = ldexpf(x[d], -e);
    }
    oracle_quantize(format, NBL_RULE_DEFAULT, scaled, dim, out, NULL);
    return e;
}

/* A row of q or q_centers, transformed (NUM 3.1, 4.5, 4.1). */
static void load_row(const query_row *row, const nbl_tensor *tensor, uint64_t at, float *x)
{
    const nbl_kv_shape *shape = row->args->pool->shape;
    oracle_row_get(tensor, at, row->h, 0, x, shape->k_dim);
    oracle_sanitize(x, shape->k_dim, NULL);
    if ((shape->centering & NBL_CENTERING_SHIFT) != 0) {
        oracle_shift(x, shape->k_dim, row->args->centers.shifts + center_index(row) * shape->k_dim, -1);
    }
    oracle_hadamard(x, shape->k_dim, shape->k_hadamard);
}

/* NUM 7.5: x loses the centre, which is quantized in two parts. */
static void take_centre(query_row *row, float *x)
{
    const nbl_attend_args *args = row->args;
    uint32_t dim = args->pool->shape->k_dim;
    float m[ORACLE_DIM_MAX];

    load_row(row, &args->q_centers, row->b, m);
    for (uint32_t d = 0; d < dim; d++) {
        x[d] -= m[d];
    }
    row->centre_exponent[0] = quantize_fp4(args, m, dim, &row->centre[0]);
    for (uint32_t d = 0; d < dim; d++) {
        m[d] -= ldexpf(row->centre[0].values[d], row->centre_exponent[0]);
    }
    row->centre_exponent[1] = quantize_fp4(args, m, dim, &row->centre[1]);
}

/* NUM 7.5: the score of the row and a token with the centre's product. */
static float add_centre(const query_row *row, const oracle_vector *k, float x)
{
    float y = ldexpf(oracle_dot_fp4(&row->centre[0], k), row->centre_exponent[0]);
    y = fmaf(oracle_dot_fp4(&row->centre[1], k), ldexpf(1.0f, row->centre_exponent[1]), y);
    return fmaf(y, ldexpf(1.0f, -row->q_exponent), x);
}

/* NUM 5.1 and the per-row constants of 5.3. */
static void row_init(query_row *row, kv_head *kv, uint32_t i, uint32_t h)
{
    const nbl_attend_args *args = kv->args;
    const nbl_kv_shape *shape = args->pool->shape;
    float sm_scale = args->sm_scale != 0.0f ? args->sm_scale : 1.0f / sqrtf((float)shape->k_dim);
    float log2e = constant(LOG2E_BITS);
    float x[ORACLE_DIM_MAX];
    int32_t exponent;

    row->args = args;
    row->kv = kv;
    row->b = kv->b;
    row->i = i;
    row->t = (uint64_t)args->q_indptr[kv->b] + i;
    row->h = h;
    row->position = (int64_t)args->kv_len[kv->b] - (args->q_indptr[kv->b + 1] - args->q_indptr[kv->b]) + i;
    load_row(row, &args->q, row->t, x);
    oracle_quantize_query(args->q_format, x, shape->k_dim, &row->q);
    exponent = row->q.exponent - block_log2(shape->k_hadamard);
    if (kv->is_float) {
        memset(row->q_values, 0, sizeof row->q_values);
        for (uint32_t d = 0; d < shape->k_dim; d++) {
            row->q_values[d] = oracle_round_operand(x[d], kv->k_fp16);
        }
        exponent = -block_log2(shape->k_hadamard);
    }
    if (kv->is_fp4) {
        if (has_q_centers(args)) {
            take_centre(row, x);
        }
        row->q_exponent = quantize_fp4(args, x, shape->k_dim, &row->q);
        memcpy(row->q_values, row->q.values, sizeof row->q_values);
        exponent += row->q_exponent;
    }
    row->cq_unscaled = ldexpf(sm_scale * log2e, exponent);
    row->cq_row = ldexpf(sm_scale * log2e * oracle_head_scale(args->pool, ORACLE_K, args->layer, kv->head), exponent);
    row->cs_row = 0.0f;
    if (args->soft_cap != 0.0f) {
        float cs = sm_scale / args->soft_cap * oracle_head_scale(args->pool, ORACLE_K, args->layer, kv->head);
        row->cs_row = ldexpf(cs, exponent);
    }
    row->cap_scale = args->soft_cap * log2e;
    row->slope = args->alibi_slopes != NULL ? args->alibi_slopes[h] * log2e : 0.0f;
    row->offset = center_offset(row);
}

/* NUM 5.3: x (after the soft cap) and a of one token. */
static void token_logit(const query_row *row, int64_t j, float *x, float *a)
{
    const kv_head *kv = row->kv;
    const int8_t *k = kv->k + (uint64_t)j * kv->k_stride;
    int64_t dot = 0;

    for (uint32_t d = 0; d < kv->k_stride; d++) {
        dot += row->q.codes[d] * k[d];
    }
    *x = ldexpf((float)dot, kv->k_exponent[j]);
    if (kv->is_float) {
        *x = kv->is_fp4
                 ? oracle_dot_fp4(&row->q, &kv->k_fp4[j])
                 : oracle_dot(0.0f, row->q_values, kv->k_values + (uint64_t)j * kv->k_stride, kv->k_stride, kv->k_fp16);
        if (has_q_centers(row->args)) {
            *x = add_centre(row, &kv->k_fp4[j], *x);
        }
    }
    if (row->args->soft_cap != 0.0f) {
        *x = oracle_tanhp(*x * row->cs_row);
    }
    *a = kv->is_float ? 0.0f : (float)kv->v_exponent[j];
    if (row->args->alibi_slopes != NULL) {
        *a = fmaf(row->slope, (float)(j - row->position), *a);
    }
}

static void tile_load(tile *tl, const query_row *row, int64_t first)
{
    tl->count = 0;
    for (int64_t j = first; j < first + TILE_TOKENS; j++) {
        if (oracle_visible(row->args, row->b, row->i, j)) {
            kv_head_load(row->kv, j);
            tl->j[tl->count] = j;
            token_logit(row, j, &tl->x[tl->count], &tl->a[tl->count]);
            tl->count++;
        }
    }
}

static float logit_factor(const query_row *row)
{
    return row->args->soft_cap != 0.0f ? row->cap_scale : row->cq_row;
}

/* ceil as a number: a zero is +0, while ceilf(-0.5f) is -0, and M is compared by bytes. */
static float ceiling(float x)
{
    return ceilf(x) + 0.0f;
}

/* clamp(ceil(max z), -Z_MAX, Z_MAX) */
static float tile_base(const tile *tl, const query_row *row)
{
    float largest = -INFINITY;
    for (uint32_t n = 0; n < tl->count; n++) {
        largest = fmaxf(largest, fmaf(tl->x[n], logit_factor(row), tl->a[n]));
    }
    return fminf(fmaxf(ceiling(largest), -Z_MAX), Z_MAX);
}

/* Fills t for a base and returns the largest. */
static float tile_grid(tile *tl, const query_row *row, float base, float limit)
{
    float largest = -INFINITY;
    for (uint32_t n = 0; n < tl->count; n++) {
        float a = tl->a[n] - base;
        tl->t[n] = fminf(fmaf(tl->x[n], logit_factor(row), a + (row->kv->is_float ? FLOAT_GRID : GRID)), limit);
        largest = fmaxf(largest, tl->t[n]);
    }
    return largest;
}

static void tile_accumulate(const tile *tl, const query_row *row, float m, state *st)
{
    uint32_t v_dim = row->args->pool->shape->v_dim;
    int64_t sums[ORACLE_DIM_MAX] = {0};
    float s[16] = {0};
    float b = oracle_exp2_grid((int64_t)(256.0 * ((double)m - (double)GRID)));

    for (uint32_t n = 0; n < tl->count; n++) {
        double steps = 256.0 * ((double)m - (double)tl->t[n]);
        int64_t k = steps > 1e6 ? 1000000 : (int64_t)steps;
        int64_t weight = oracle_weight_int(k);
        const int8_t *v = row->kv->v + (uint64_t)tl->j[n] * row->kv->v_stride;
        float unscale = oracle_pow2(-(double)row->kv->v_exponent[tl->j[n]]);

        s[tl->j[n] % 16] = fmaf(oracle_weight_bf16(k), unscale, s[tl->j[n] % 16]);
        for (uint32_t d = 0; d < v_dim; d++) {
            sums[d] += weight * v[d];
        }
    }
    st->l = fmaf(oracle_tree(s), b, st->l);
    for (uint32_t d = 0; d < v_dim; d++) {
        st->o[d] = fmaf((float)sums[d], b, st->o[d]);
    }
}

static void state_scale(state *st, float factor, uint32_t v_dim)
{
    st->l *= factor;
    for (uint32_t r = 0; r < 16; r++) {
        st->s[r] *= factor;
    }
    for (uint32_t d = 0; d < v_dim; d++) {
        st->o[d] *= factor;
    }
}

/* The tile's share of NUM 6.4 and 6.5: places of the tile that no token takes are zeros. */
static void float_accumulate(const tile *tl, const query_row *row, state *st)
{
    float p[TILE_TOKENS] = {0};
    float v[TILE_TOKENS];

    for (uint32_t n = 0; n < tl->count; n++) {
        double u = (double)tl->t[n] - (double)FLOAT_GRID;
        float weight = row->kv->is_fp4 ? oracle_weight_e4m3(u) : oracle_weight_float(u, row->kv->v_fp16);
        p[tl->j[n] % TILE_TOKENS] = weight;
        st->s[tl->j[n] % 16] += weight;
    }
    for (uint32_t d = 0; d < row->args->pool->shape->v_dim; d++) {
        memset(v, 0, sizeof v);
        for (uint32_t n = 0; n < tl->count; n++) {
            v[tl->j[n] % TILE_TOKENS] = row->kv->v_values[(uint64_t)tl->j[n] * row->kv->v_stride + d];
        }
        st->o[d] = row->kv->is_fp4 ? oracle_dot_fp8(st->o[d], p, v, TILE_TOKENS)
                                   : oracle_dot(st->o[d], p, v, TILE_TOKENS, row->kv->v_fp16);
    }
}

/* One tile of NUM 6.4 on a state whose base is set. */
static void float_process(tile *tl, const query_row *row, state *st)
{
    float limit = FLOAT_GRID + (row->kv->is_fp4 ? 0.0f : FLOAT_REBASE);
    if (tile_grid(tl, row, st->m, INFINITY) > limit) {
        float base = fmaxf(st->m, tile_base(tl, row));
        state_scale(st, oracle_pow2((double)st->m - (double)base), row->args->pool->shape->v_dim);
        st->m = base;
        tile_grid(tl, row, base, limit);
    }
    float_accumulate(tl, row, st);
}

/* NUM 6.6. */
static void float_finish(const query_row *row, state *st)
{
    float unit = constant(C_BITS) * oracle_head_scale(row->args->pool, ORACLE_V, row->args->layer, row->kv->head);
    float weight_unit = row->kv->is_fp4 ? 0x1p-8f : 1.0f;
    unit *= weight_unit;
    st->l = oracle_tree(st->s) * weight_unit;
    for (uint32_t d = 0; d < row->args->pool->shape->v_dim; d++) {
        st->o[d] = st->o[d] * unit + 0.0f;
    }
}

/* One tile of NUM 5.4 on a state whose base is set. */
static void tile_process(tile *tl, const query_row *row, state *st)
{
    float m = tile_grid(tl, row, st->m, INFINITY);

    if (m > GRID + REBASE) {
        float base = fmaxf(st->m, tile_base(tl, row));
        state_scale(st, oracle_pow2((double)st->m - (double)base), row->args->pool->shape->v_dim);
        st->m = base;
        m = tile_grid(tl, row, base, GRID + REBASE);
    }
    if (m - GRID >= -126.0f) {
        tile_accumulate(tl, row, m, st);
    }
}

static void state_clear(state *st)
{
    memset(st, 0, sizeof *st);
    st->m = -INFINITY;
}

static bool state_is_empty(const state *st)
{
    return st->l == 0.0f;
}

static void chunk_state(const query_row *row, int64_t chunk, state *st)
{
    bool started = false;
    tile tl;

    state_clear(st);
    for (int64_t first = chunk * CHUNK_TOKENS; first < (chunk + 1) * CHUNK_TOKENS; first += TILE_TOKENS) {
        tile_load(&tl, row, first);
        if (tl.count == 0) {
            continue;
        }
        if (!started) {
            st->m = tile_base(&tl, row);
            started = true;
        }
        if (row->kv->is_float) {
            float_process(&tl, row, st);
        } else {
            tile_process(&tl, row, st);
        }
    }
    if (row->kv->is_float) {
        float_finish(row, st);
    }
    if (state_is_empty(st)) {
        state_clear(st);
    }
}

/* ------------------------------------------------------------------------------------------------ states */

/* left := left merged with right (NUM 5.6). */
static void state_merge(state *left, const state *right, uint32_t v_dim)
{
    float m = fmaxf(left->m, right->m);
    float left_factor;
    float right_factor;

    if (state_is_empty(right)) {
        return;
    }
    if (state_is_empty(left)) {
        *left = *right;
        return;
    }
    left_factor = oracle_pow2((double)left->m - (double)m);
    right_factor = oracle_pow2((double)right->m - (double)m);
    left->m = m;
    left->l = left->l * left_factor + right->l * right_factor;
    for (uint32_t d = 0; d < v_dim; d++) {
        left->o[d] = left->o[d] * left_factor + right->o[d] * right_factor;
    }
}

/* What turns a row's state into o and lse (NUM 5.7). */
typedef struct row_output {
    const nbl_tensor *o;
    const nbl_tensor *lse;
    const float *sinks;
    uint64_t t;
    uint32_t h;
    uint32_t v_dim;
    uint32_t v_hadamard;
    float offset;
    bool base2;
} row_output;

static void add_sink(state *st, float sink, float offset, uint32_t v_dim)
{
    float zs = sink * constant(LOG2E_BITS) - offset;
    float m = state_is_empty(st) ? ceiling(zs) : fmaxf(st->m, ceiling(zs));

    if (!state_is_empty(st)) {
        state_scale(st, oracle_pow2((double)st->m - (double)m), v_dim);
    }
    st->l += oracle_exp2p(zs - m);
    st->m = m;
}

static float row_finish(state *st, const row_output *out, float *y)
{
    float lse2;
    float r;

    memset(y, 0, out->v_dim * sizeof *y);
    if (out->sinks != NULL && out->sinks[out->h] != -INFINITY) {
        add_sink(st, out->sinks[out->h], out->offset, out->v_dim);
    }
    if (st->l < SMALLEST_NORMAL) {
        return -INFINITY;
    }
    r = 1.0f / (constant(C_BITS) * st->l);
    for (uint32_t d = 0; d < out->v_dim; d++) {
        y[d] = st->o[d] * r;
    }
    oracle_hadamard(y, out->v_dim, out->v_hadamard);
    oracle_hadamard_scale(y, out->v_dim, out->v_hadamard);
    lse2 = (st->m + oracle_log2p(st->l)) + out->offset;
    return out->base2 ? lse2 : lse2 * constant(LN2_BITS);
}

static void row_write(state *st, const row_output *out)
{
    float y[ORACLE_DIM_MAX];
    float lse = row_finish(st, out, y);

    if (out->lse->data != NULL) {
        oracle_tensor_set(out->lse, out->t, out->h, 0, 0, lse);
    }
    if (out->o->data != NULL) {
        oracle_row_set(out->o, out->t, out->h, 0, y, out->v_dim);
    }
}

/* ------------------------------------------------------------------------------------------------ attend */

static void write_chunk_state(const query_row *row, uint64_t n, const state *st)
{
    const nbl_attend_args *args = row->args;
    const float head[4] = {st->m, st->l, row->offset, 0.0f};

    oracle_row_set(&args->state_head, n, row->t, row->h, head, 4);
    oracle_row_set(&args->state_o, n, row->t, row->h, st->o, args->pool->shape->v_dim);
}

static void attend_row(const query_row *row)
{
    const nbl_attend_args *args = row->args;
    const nbl_kv_shape *shape = args->pool->shape;
    int64_t first = args->range_begin / CHUNK_TOKENS;
    int64_t end = ((int64_t)args->kv_len[row->b] + CHUNK_TOKENS - 1) / CHUNK_TOKENS;
    int64_t states = args->state_head.data != NULL ? (int64_t)args->state_head.shape[0] : 0;
    row_output out = {&args->o,
                      &args->lse,
                      args->sinks,
                      row->t,
                      row->h,
                      shape->v_dim,
                      shape->v_hadamard,
                      row->offset,
                      (args->flags & NBL_ATTEND_LSE_BASE2) != 0};
    state total;
    state chunk;

    state_clear(&total);
    for (int64_t c = first; c < end || c < first + states; c++) {
        chunk_state(row, c, &chunk);
        state_merge(&total, &chunk, shape->v_dim);
        if (c < first + states) {
            write_chunk_state(row, (uint64_t)(c - first), &chunk);
        }
    }
    row_write(&total, &out);
}

static void attend_kv_head(const nbl_attend_args *args, uint32_t b, uint32_t head)
{
    uint32_t group = args->q_heads / args->pool->shape->kv_heads;
    uint32_t rows = (uint32_t)(args->q_indptr[b + 1] - args->q_indptr[b]);
    kv_head kv;
    query_row row;

    kv_head_init(&kv, args, b, head);
    for (uint32_t i = 0; i < rows; i++) {
        for (uint32_t h = head * group; h < (head + 1) * group; h++) {
            row_init(&row, &kv, i, h);
            attend_row(&row);
        }
    }
    kv_head_free(&kv);
}

void oracle_attend(const nbl_attend_args *args)
{
    for (uint32_t b = 0; b < args->batch; b++) {
        for (uint32_t head = 0; head < args->pool->shape->kv_heads; head++) {
            attend_kv_head(args, b, head);
        }
    }
}

/* ------------------------------------------------------------------------------------------------ merge */

static void merge_states(const nbl_merge_args *args, uint64_t t, uint32_t h, uint32_t v_dim)
{
    row_output out = {&args->o,
                      &args->lse,
                      args->sinks,
                      t,
                      h,
                      v_dim,
                      args->v_hadamard,
                      0.0f,
                      (args->flags & NBL_MERGE_LSE_BASE2) != 0};
    state total;
    state part;

    out.offset = oracle_tensor_get(&args->in_state_head, 0, t, h, 2);
    state_clear(&total);
    for (uint64_t n = 0; n < args->count; n++) {
        state_clear(&part);
        part.m = oracle_tensor_get(&args->in_state_head, n, t, h, 0);
        part.l = oracle_tensor_get(&args->in_state_head, n, t, h, 1);
        oracle_row_get(&args->in_state_o, n, t, h, part.o, v_dim);
        if (state_is_empty(&total) && !state_is_empty(&part)) {
            out.offset = oracle_tensor_get(&args->in_state_head, n, t, h, 2);
        }
        state_merge(&total, &part, v_dim);
    }
    if (args->state_head.data != NULL) {
        const float head[4] = {total.m, total.l, out.offset, 0.0f};
        oracle_row_set(&args->state_head, t, h, 0, head, 4);
        oracle_row_set(&args->state_o, t, h, 0, total.o, v_dim);
    }
    row_write(&total, &out);
}

/* NUM 5.8. */
static void merge_pairs(const nbl_merge_args *args, uint64_t t, uint32_t h, uint32_t v_dim)
{
    bool base2 = (args->flags & NBL_MERGE_LSE_BASE2) != 0;
    float largest = -INFINITY;
    float total = 0.0f;
    float y[ORACLE_DIM_MAX] = {0};
    float lse = -INFINITY;

    for (uint64_t n = 0; n < args->count; n++) {
        largest = fmaxf(largest, oracle_tensor_get(&args->in_lse, n, t, h, 0));
    }
    for (uint64_t n = 0; n < args->count; n++) {
        float partner = oracle_tensor_get(&args->in_lse, n, t, h, 0);
        float weight;
        if (partner == -INFINITY) {
            continue;
        }
        weight = partner - largest;
        weight = oracle_exp2p(base2 ? weight : weight * constant(LOG2E_BITS));
        total += weight;
        for (uint32_t d = 0; d < v_dim; d++) {
            y[d] = fmaf(weight, oracle_tensor_get(&args->in_o, n, t, h, d), y[d]);
        }
    }
    if (total > 0.0f) {
        float log2_total = oracle_log2p(total);
        lse = largest + (base2 ? log2_total : log2_total * constant(LN2_BITS));
    }
    for (uint32_t d = 0; args->o.data != NULL && d < v_dim; d++) {
        oracle_tensor_set(&args->o, t, h, d, 0, total > 0.0f ? y[d] * (1.0f / total) : 0.0f);
    }
    if (args->lse.data != NULL) {
        oracle_tensor_set(&args->lse, t, h, 0, 0, lse);
    }
}

void oracle_merge(const nbl_merge_args *args)
{
    bool from_states = args->in_state_head.data != NULL;
    const nbl_tensor *in = from_states ? &args->in_state_o : &args->in_o;

    for (uint64_t t = 0; t < in->shape[1]; t++) {
        for (uint32_t h = 0; h < in->shape[2]; h++) {
            if (from_states) {
                merge_states(args, t, h, (uint32_t)in->shape[3]);
            } else {
                merge_pairs(args, t, h, (uint32_t)in->shape[3]);
            }
        }
    }
}
