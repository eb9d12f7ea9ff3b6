/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file harness_trial.c
 * @brief The memory of a problem: pools, pages, inputs, arrays, outputs.
 */
#include "harness.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TABLE_EXTRA 2u /* page table entries beyond any length */
#define REGION_GAP 3u  /* page ids between regions that belong to none */
#define CENTER_ROWS_EXTRA 2u
#define OUTPUT_POISON 0xA5
#define PAGE_GAP 48u
#define LAYER_GAP 80u

/* Streams of random_key. */
enum stream_id {
    STREAM_Q = 1,
    STREAM_K,
    STREAM_V,
    STREAM_CENTER,
    STREAM_CHANNELS,
    STREAM_TREE,
    STREAM_PAGES,
    STREAM_SHIFT,
    STREAM_Q_CENTER
};

char trial_text[1024] = "no case yet";

static void describe(const problem *p)
{
    int at = snprintf(trial_text, sizeof trial_text,
                      "seed %llu: Hk %u Hq %u Dk %u Dv %u P %u had %u/%u rules %u/%u centre %u layer %u/%u",
                      (unsigned long long)p->seed, p->shape.kv_heads, p->q_heads, p->shape.k_dim, p->shape.v_dim,
                      p->shape.page_tokens, p->shape.k_hadamard, p->shape.v_hadamard, p->shape.k_scale_rule,
                      p->shape.v_scale_rule, p->shape.centering, p->layer, p->shape.layers);
    for (uint32_t r = 0; r < p->region_count; ++r)
        at += snprintf(trial_text + at, sizeof trial_text - (size_t)at, " k%uv%u", p->k_format[r], p->v_format[r]);
    for (uint32_t b = 0; b < p->batch && b < 6; ++b)
        at += snprintf(trial_text + at, sizeof trial_text - (size_t)at, " q%u:kv%u", p->q_len[b], p->kv_len[b]);
    snprintf(
        trial_text + at, sizeof trial_text - (size_t)at,
        " qf %u qc %u flags %u win %u/%u range %u..%u tree %u cap %g data %u/%u/%u types %u/%u strides %u/%u pool %u",
        p->q_format, p->q_centers, p->flags, p->window_left, p->window_right, p->range_begin, p->range_end, p->tree,
        (double)p->soft_cap, p->q_data, p->k_data, p->v_data, p->in_dtype, p->out_dtype, p->in_stride, p->out_stride,
        p->pool_layout);
}

/* ------------------------------------------------------------------------------------------------ pools */

static uint64_t set_strides(const problem *p, nbl_region *g, uint64_t code_bytes, uint64_t scale_bytes)
{
    uint64_t layers = p->shape.layers, pages = g->page_count;
    if (p->pool_layout == POOL_JOINT) {
        g->code_page_stride = g->scale_page_stride = code_bytes + scale_bytes + PAGE_GAP;
        g->code_layer_stride = g->scale_layer_stride = pages * g->code_page_stride;
    } else if (p->pool_layout == POOL_INTERLEAVED) {
        g->code_layer_stride = code_bytes + PAGE_GAP;
        g->scale_layer_stride = scale_bytes + PAGE_GAP;
        g->code_page_stride = layers * g->code_layer_stride + LAYER_GAP;
        g->scale_page_stride = layers * g->scale_layer_stride + LAYER_GAP;
    } else {
        uint64_t gap = p->pool_layout == POOL_PADDED ? PAGE_GAP : 0;
        g->code_page_stride = code_bytes + gap;
        g->scale_page_stride = scale_bytes + gap;
        g->code_layer_stride = pages * g->code_page_stride + gap;
        g->scale_layer_stride = pages * g->scale_page_stride + gap;
    }
    return layers * g->code_layer_stride + pages * g->code_page_stride; /* enough in every layout */
}

static void init_region(trial *t, uint32_t r, uint32_t first_page, uint32_t pages)
{
    const problem *p = &t->p;
    nbl_region *g = &t->regions[HOST][r];
    nbl_error err = NBL_INIT(nbl_error);
    nbl_page_layout oracle;

    t->layouts[r] = (nbl_page_layout)NBL_INIT(nbl_page_layout);
    lab_expect(t->lab->api->kv_layout(&p->shape, p->k_format[r], p->v_format[r], &t->layouts[r], &err), NBL_OK,
               "kv_layout", &err);
    oracle_page_layout(&p->shape, p->k_format[r], p->v_format[r], &oracle);
    cr_assert(t->layouts[r].code_page_bytes == oracle.code_page_bytes &&
                  t->layouts[r].scale_page_bytes == oracle.scale_page_bytes,
              "%s: kv_layout gives pages of %llu and %llu bytes (oracle: %llu and %llu)", trial_text,
              (unsigned long long)t->layouts[r].code_page_bytes, (unsigned long long)t->layouts[r].scale_page_bytes,
              (unsigned long long)oracle.code_page_bytes, (unsigned long long)oracle.scale_page_bytes);
    *g = (nbl_region){
        .k_format = p->k_format[r], .v_format = p->v_format[r], .first_page = first_page, .page_count = pages};
    uint64_t code_bytes = set_strides(p, g, oracle.code_page_bytes, oracle.scale_page_bytes);
    buffer_init(t->lab, &t->codes[r], code_bytes, p->code_poison);
    if (p->pool_layout != POOL_JOINT) {
        uint64_t scale_bytes = p->shape.layers * g->scale_layer_stride + pages * g->scale_page_stride;
        buffer_init(t->lab, &t->scales[r], scale_bytes, p->scale_poison);
    }
    t->regions[DEVICE][r] = *g;
    for (enum side side = HOST; side <= DEVICE; ++side) {
        uint8_t *codes = buffer_at(&t->codes[r], side);
        t->regions[side][r].codes = codes;
        t->regions[side][r].scales =
            p->pool_layout == POOL_JOINT ? (void *)(codes + oracle.code_page_bytes) : buffer_at(&t->scales[r], side);
    }
}

/* Scales of all layers and heads: around 1, powers of two, and values outside the range of NUM 6.7. */
static void init_head_scales(trial *t, buffer *b, uint64_t key)
{
    uint32_t count = t->p.shape.layers * t->p.shape.kv_heads;
    uint64_t rng = random_key(t->p.seed, 0x5CA1E, key, count);
    buffer_init(t->lab, b, count * sizeof(float), 0);
    for (uint32_t i = 0; i < count; ++i) {
        float *s = (float *)(void *)b->host + i;
        uint32_t kind = random_below(&rng, 8);
        *s = ldexpf(1.0f + (float)random_below(&rng, 1000) / 1000.0f, (int)random_below(&rng, 12) - 6);
        *s = kind == 0 ? 1.0f : kind == 1 ? 0.0f : kind == 2 ? INFINITY : kind == 3 ? 0.25f : *s;
    }
    buffer_upload(t->lab, b);
}

/* Regions for so many pages, their ids in *ids; returns how many there are. */
static uint32_t init_pools(trial *t, uint32_t pages, int32_t **ids)
{
    const problem *p = &t->p;
    uint32_t part = pages / p->region_count, next = p->first_page, count = 0;
    *ids = malloc((pages + PROBLEM_REGIONS_MAX + 1u) * sizeof **ids);
    cr_assert(*ids != NULL, "no memory for page ids");
    for (uint32_t r = 0; r < p->region_count; ++r) {
        uint32_t own = p->region_pages[r] != 0 ? p->region_pages[r] : part;
        if (r + 1u == p->region_count)
            own = pages > count ? pages - count : 1u;
        own = own > 0 ? own : 1u;
        init_region(t, r, next, own);
        for (uint32_t i = 0; i < own && count < pages + PROBLEM_REGIONS_MAX; ++i)
            (*ids)[count++] = (int32_t)(next + i);
        next += own + REGION_GAP;
    }
    if (p->head_scales) {
        init_head_scales(t, &t->k_scale, 1);
        init_head_scales(t, &t->v_scale, 2);
    }
    for (enum side side = HOST; side <= DEVICE; ++side) {
        t->pools[side] = (nbl_pool)NBL_INIT(nbl_pool);
        t->pools[side].k_scale = buffer_at(&t->k_scale, side);
        t->pools[side].v_scale = buffer_at(&t->v_scale, side);
        t->pools[side].shape = &t->p.shape;
        t->pools[side].regions = t->regions[side];
        t->pools[side].region_count = p->region_count;
    }
    return count;
}

static void order_pages(const problem *p, int32_t *ids, uint32_t count)
{
    uint64_t rng = random_key(p->seed, STREAM_PAGES, p->shape.page_tokens, 0);
    for (uint32_t i = count; i > 1 && p->page_order != ORDER_SEQUENTIAL; --i) {
        uint32_t j = p->page_order == ORDER_REVERSED ? count - i : random_below(&rng, i);
        int32_t id = ids[i - 1u];
        if (p->page_order == ORDER_REVERSED && j >= i - 1u)
            return;
        ids[i - 1u] = ids[j];
        ids[j] = id;
    }
}

static uint32_t pages_of(const problem *p, uint32_t b)
{
    return (p->kv_len[b] + p->shape.page_tokens - 1u) / p->shape.page_tokens;
}

/* Entries that belong to no token hold what must never be read. */
static void poison_table(trial *t, int32_t *table)
{
    static const int32_t garbage[] = {-1, INT_MAX, INT_MIN, 1 << 20, 0};
    for (uint32_t i = 0; i < t->p.batch * t->table_stride; ++i)
        table[i] = garbage[i % (sizeof garbage / sizeof garbage[0])];
}

static void init_pages(trial *t)
{
    const problem *p = &t->p;
    uint32_t pages = p->spare_pages, widest = 0, next = 0;
    int32_t *ids;

    for (uint32_t b = 0; b < p->batch; ++b) {
        pages += pages_of(p, b);
        widest = pages_of(p, b) > widest ? pages_of(p, b) : widest;
    }
    uint32_t count = init_pools(t, pages > 0 ? pages : 1u, &ids);
    order_pages(p, ids, count);
    t->table_stride = widest + TABLE_EXTRA;
    buffer_init(t->lab, &t->page_table, p->batch * t->table_stride * sizeof(int32_t), 0);
    int32_t *table = (void *)t->page_table.host;
    poison_table(t, table);
    for (uint32_t b = 0; b < p->batch; ++b) {
        for (uint32_t i = 0; i < pages_of(p, b); ++i)
            table[b * t->table_stride + i] = ids[next++];
    }
    cr_assert(next <= count, "%s: %u pages are needed, %u are there", trial_text, next, count);
    free(ids);
    buffer_upload(t->lab, &t->page_table);
}

/* ------------------------------------------------------------------------------------------------ inputs */

static void init_slots(trial *t)
{
    const problem *p = &t->p;
    const int32_t *table = (void *)t->page_table.host;
    buffer_init(t->lab, &t->slots, (t->tokens + 1u) * sizeof(int64_t), 0);
    buffer_init(t->lab, &t->seq_indptr, (p->batch + 1u) * sizeof(int32_t), 0);
    int64_t *slots = (void *)t->slots.host;
    int32_t *indptr = (void *)t->seq_indptr.host;
    uint32_t at = 0;
    for (uint32_t b = 0; b < p->batch; ++b) {
        for (uint32_t j = 0; j < p->kv_len[b]; ++j, ++at) {
            int64_t page = table[b * t->table_stride + j / p->shape.page_tokens];
            bool skipped = p->skip_every != 0 && at % p->skip_every == 0;
            slots[at] = skipped ? -1 : page * p->shape.page_tokens + j % p->shape.page_tokens;
        }
        indptr[b + 1u] = (int32_t)at;
    }
    buffer_upload(t->lab, &t->slots);
    buffer_upload(t->lab, &t->seq_indptr);
}

static void fill_row(const view *v, uint64_t row, uint32_t head, uint32_t kind, float scale, uint64_t key,
                     uint64_t channels)
{
    uint32_t dim = (uint32_t)v->tensor[HOST].shape[2];
    float x[ORACLE_DIM_MAX];
    data_vector(kind, key, channels, x, dim);
    for (uint32_t d = 0; d < dim; ++d)
        x[d] *= scale;
    oracle_row_set(&v->tensor[HOST], row, head, 0, x, dim);
}

static void init_kv(trial *t)
{
    const problem *p = &t->p;
    uint32_t heads = p->shape.kv_heads, row = 0;
    view_init(t->lab, &t->k, p->in_dtype, 3, (const uint64_t[]){t->tokens, heads, p->shape.k_dim}, p->in_stride, 0);
    view_init(t->lab, &t->v, p->in_dtype, 3, (const uint64_t[]){t->tokens, heads, p->shape.v_dim}, p->in_stride, 0);
    for (uint32_t b = 0; b < p->batch; ++b) {
        for (uint32_t j = 0; j < p->kv_len[b]; ++j, ++row) {
            for (uint32_t h = 0; h < heads; ++h) {
                uint64_t token = p->sequence_id[b] << 32 | j;
                fill_row(&t->k, row, h, p->k_data, p->k_scale, random_key(p->seed, STREAM_K, token, h),
                         random_key(p->seed, STREAM_CHANNELS, STREAM_K, h));
                fill_row(&t->v, row, h, p->v_data, p->v_scale, random_key(p->seed, STREAM_V, token, h),
                         random_key(p->seed, STREAM_CHANNELS, STREAM_V, h));
            }
        }
    }
    buffer_upload(t->lab, &t->k.memory);
    buffer_upload(t->lab, &t->v.memory);
}

/* A query row depends on its position, so that it is the same row however the queries are cut. */
static void init_q(trial *t)
{
    const problem *p = &t->p;
    uint32_t row = 0;
    view_init(t->lab, &t->q, p->in_dtype, 3, (const uint64_t[]){t->q_tokens, p->q_heads, p->shape.k_dim}, p->in_stride,
              0);
    buffer_init(t->lab, &t->q_indptr, (p->batch + 1u) * sizeof(int32_t), 0);
    int32_t *indptr = (void *)t->q_indptr.host;
    for (uint32_t b = 0; b < p->batch; ++b) {
        for (uint32_t i = 0; i < p->q_len[b]; ++i, ++row) {
            uint64_t position = (uint64_t)p->kv_len[b] - p->q_len[b] + i;
            for (uint32_t h = 0; h < p->q_heads; ++h) {
                uint64_t token = p->sequence_id[b] << 32 | (position & UINT32_MAX);
                fill_row(&t->q, row, h, p->q_data, p->q_scale, random_key(p->seed, STREAM_Q, token, h),
                         random_key(p->seed, STREAM_CHANNELS, STREAM_Q, h));
            }
        }
        indptr[b + 1u] = (int32_t)row;
    }
    buffer_upload(t->lab, &t->q.memory);
    buffer_upload(t->lab, &t->q_indptr);
}

/* Centres of queries: of the kind that queries are, with their channels. */
static void init_q_centers(trial *t)
{
    const problem *p = &t->p;
    if (!p->q_centers)
        return;
    view_init(t->lab, &t->q_centers, p->in_dtype, 3, (const uint64_t[]){p->batch, p->q_heads, p->shape.k_dim},
              p->in_stride, 0);
    for (uint32_t b = 0; b < p->batch; ++b) {
        for (uint32_t h = 0; h < p->q_heads; ++h)
            fill_row(&t->q_centers, b, h, p->q_data, p->q_scale,
                     random_key(p->seed, STREAM_Q_CENTER, p->sequence_id[b], h),
                     random_key(p->seed, STREAM_CHANNELS, STREAM_Q, h));
    }
    buffer_upload(t->lab, &t->q_centers.memory);
}

static void init_lengths(trial *t)
{
    buffer_init(t->lab, &t->kv_len, t->p.batch * sizeof(int32_t), 0);
    memcpy(t->kv_len.host, t->p.kv_len, t->p.batch * sizeof(int32_t));
    buffer_upload(t->lab, &t->kv_len);
}

/* ------------------------------------------------------------------------------------------------ centres */

static uint32_t center_row(const problem *p, uint32_t b)
{
    return p->center_rows ? p->batch + CENTER_ROWS_EXTRA - 1u - b : b;
}

static void fill_shifts(uint64_t rng, uint8_t *shifts, uint32_t dim)
{
    for (uint32_t d = 0; d < dim; ++d)
        shifts[d] = (uint8_t)random_below(&rng, 8);
}

static void init_centers(trial *t)
{
    const problem *p = &t->p;
    uint32_t rows = p->batch + CENTER_ROWS_EXTRA, dim = p->shape.k_dim;
    if (!p->shape.centering)
        return;
    buffer_init(t->lab, &t->center_codes, rows * p->shape.kv_heads * dim, 0x5A);
    buffer_init(t->lab, &t->center_exponents, rows * p->shape.kv_heads, 0x5A);
    buffer_init(t->lab, &t->center_shifts, rows * p->shape.kv_heads * dim, 0x5A);
    buffer_init(t->lab, &t->center_rows, p->batch * sizeof(int32_t), 0);
    for (uint32_t b = 0; b < p->batch; ++b) {
        int32_t row = (int32_t)center_row(p, b);
        memcpy(t->center_rows.host + b * sizeof row, &row, sizeof row);
        for (uint32_t h = 0; h < p->shape.kv_heads; ++h) {
            uint64_t at = (uint64_t)row * p->shape.kv_heads + h;
            float x[ORACLE_DIM_MAX];
            oracle_vector center;
            data_vector(DATA_OUTLIERS, random_key(p->seed, STREAM_CENTER, p->sequence_id[b], h),
                        random_key(p->seed, STREAM_CHANNELS, STREAM_K, h), x, dim);
            oracle_quantize(NBL_INT8, 0, x, dim, &center, NULL);
            memcpy(t->center_codes.host + at * dim, center.codes, dim);
            t->center_exponents.host[at] = (uint8_t)(center.exponent + 127);
            fill_shifts(random_key(p->seed, STREAM_SHIFT, p->sequence_id[b], h), t->center_shifts.host + at * dim, dim);
        }
    }
    buffer_upload(t->lab, &t->center_codes);
    buffer_upload(t->lab, &t->center_exponents);
    buffer_upload(t->lab, &t->center_shifts);
    buffer_upload(t->lab, &t->center_rows);
}

/* What the kind of centring does not read is garbage, or not there. */
static nbl_centers centers_at(const trial *t, enum side side)
{
    uint32_t kind = t->p.shape.centering;
    bool all = t->p.seed % 2u == 0;
    nbl_centers centers = {0};
    if (kind != 0) {
        centers.codes = all || (kind & NBL_CENTERING_MEAN) != 0 ? buffer_at(&t->center_codes, side) : NULL;
        centers.exponents = all || (kind & NBL_CENTERING_MEAN) != 0 ? buffer_at(&t->center_exponents, side) : NULL;
        centers.shifts = all || (kind & NBL_CENTERING_SHIFT) != 0 ? buffer_at(&t->center_shifts, side) : NULL;
        centers.rows = t->p.center_rows ? buffer_at(&t->center_rows, side) : NULL;
        centers.row_count = t->p.batch + CENTER_ROWS_EXTRA;
    }
    return centers;
}

/* ------------------------------------------------------------------------------------------------ head values */

static void init_head_values(trial *t)
{
    const problem *p = &t->p;
    buffer_init(t->lab, &t->sinks, p->q_heads * sizeof(float), 0);
    buffer_init(t->lab, &t->slopes, p->q_heads * sizeof(float), 0);
    float *sinks = (void *)t->sinks.host, *slopes = (void *)t->slopes.host;
    uint64_t rng = random_key(p->seed, STREAM_CHANNELS, 0, 0);
    for (uint32_t h = 0; h < p->q_heads; ++h) {
        sinks[h] = p->sink_scale * random_normal(&rng);
        slopes[h] = 1.0f / (float)(2u + h);
        if (h % 5u == 4u)
            sinks[h] = oracle_f32_from_bits(0xFF800000u); /* -inf: no sink */
    }
    buffer_upload(t->lab, &t->sinks);
    buffer_upload(t->lab, &t->slopes);
}

static void init_tree(trial *t)
{
    const problem *p = &t->p;
    uint32_t row = 0;
    t->tree_stride = (t->q_len_max + 31u) / 32u + 1u;
    buffer_init(t->lab, &t->tree_mask, (t->q_tokens + 1u) * t->tree_stride * sizeof(uint32_t), 0);
    uint32_t *words = (void *)t->tree_mask.host;
    uint64_t rng = random_key(p->seed, STREAM_TREE, 0, 0);
    for (uint32_t b = 0; b < p->batch; ++b) {
        for (uint32_t i = 0; i < p->q_len[b]; ++i, ++row) {
            for (uint32_t w = 0; w < t->tree_stride; ++w) {
                uint32_t below = i >= 32u * w + 31u ? UINT32_MAX : i < 32u * w ? 0u : (2u << (i - 32u * w)) - 1u;
                words[row * t->tree_stride + w] = p->tree == TREE_CHAIN ? below : (uint32_t)random_next(&rng);
            }
        }
    }
    buffer_upload(t->lab, &t->tree_mask);
}

/* ------------------------------------------------------------------------------------------------ outputs */

static uint32_t chunks_of(const trial *t)
{
    uint32_t end = t->kv_len_max;
    if (t->p.range_end != 0 && t->p.range_end < end)
        end = t->p.range_end;
    uint32_t tokens = end > t->p.range_begin ? end - t->p.range_begin : 0;
    uint32_t chunks = (tokens + NBL_CHUNK_TOKENS - 1u) / NBL_CHUNK_TOKENS;
    return chunks > 0 ? chunks : 1u;
}

static void init_outputs(trial *t)
{
    const problem *p = &t->p;
    uint64_t rows = t->q_tokens, heads = p->q_heads;
    t->states = chunks_of(t) + p->extra_states;
    if (p->want_o)
        view_init(t->lab, &t->o, p->out_dtype, 3, (const uint64_t[]){rows, heads, p->shape.v_dim}, p->out_stride,
                  OUTPUT_POISON);
    if (p->want_lse)
        view_init(t->lab, &t->lse, NBL_F32, 2, (const uint64_t[]){rows, heads}, p->out_stride, OUTPUT_POISON);
    if (p->want_state) {
        view_init(t->lab, &t->state_head, NBL_F32, 4, (const uint64_t[]){t->states, rows, heads, 4}, p->out_stride,
                  OUTPUT_POISON);
        view_init(t->lab, &t->state_o, NBL_F32, 4, (const uint64_t[]){t->states, rows, heads, p->shape.v_dim},
                  p->out_stride, OUTPUT_POISON);
    }
}

/* ------------------------------------------------------------------------------------------------ the trial */

void trial_init(trial *t, lab *l, const problem *p)
{
    memset(t, 0, sizeof *t);
    t->lab = l;
    t->p = *p;
    describe(p);
    for (uint32_t b = 0; b < p->batch; ++b) {
        t->tokens += p->kv_len[b];
        t->q_tokens += p->q_len[b];
        t->q_len_max = p->q_len[b] > t->q_len_max ? p->q_len[b] : t->q_len_max;
        t->kv_len_max = p->kv_len[b] > t->kv_len_max ? p->kv_len[b] : t->kv_len_max;
    }
    init_pages(t);
    init_slots(t);
    init_kv(t);
    init_q(t);
    init_q_centers(t);
    init_lengths(t);
    init_centers(t);
    init_head_values(t);
    init_tree(t);
    init_outputs(t);
    buffer_init(l, &t->stats, sizeof(nbl_quant_stats), 0);
}

void trial_free(trial *t)
{
    view *views[] = {&t->k, &t->v, &t->q, &t->q_centers, &t->o, &t->lse, &t->state_head, &t->state_o};
    buffer *buffers[] = {&t->slots,         &t->seq_indptr,  &t->q_indptr,  &t->kv_len,       &t->page_table,
                         &t->sinks,         &t->slopes,      &t->tree_mask, &t->center_codes, &t->center_exponents,
                         &t->center_shifts, &t->center_rows, &t->stats};
    for (uint32_t i = 0; i < sizeof views / sizeof views[0]; ++i)
        view_free(t->lab, views[i]);
    for (uint32_t i = 0; i < sizeof buffers / sizeof buffers[0]; ++i)
        buffer_free(t->lab, buffers[i]);
    buffer_free(t->lab, &t->k_scale);
    buffer_free(t->lab, &t->v_scale);
    for (uint32_t r = 0; r < PROBLEM_REGIONS_MAX; ++r) {
        buffer_free(t->lab, &t->codes[r]);
        buffer_free(t->lab, &t->scales[r]);
    }
}

nbl_append_args trial_append_args(const trial *t, enum side side)
{
    nbl_append_args a = NBL_INIT(nbl_append_args);
    a.pool = &t->pools[side];
    a.layer = t->p.layer;
    a.batch = t->p.batch;
    a.k = t->k.tensor[side];
    a.v = t->v.tensor[side];
    a.slots = buffer_at(&t->slots, side);
    a.seq_indptr = buffer_at(&t->seq_indptr, side);
    a.centers = centers_at(t, side);
    a.center_mode = t->p.center_mode;
    a.stats = buffer_at(&t->stats, side);
    a.stream = t->lab->stream;
    return a;
}

nbl_attend_args trial_attend_args(const trial *t, enum side side)
{
    const problem *p = &t->p;
    nbl_attend_args a = NBL_INIT(nbl_attend_args);
    a.flags = p->flags;
    a.pool = &t->pools[side];
    a.layer = p->layer;
    a.q_heads = p->q_heads;
    a.q_format = p->q_format;
    a.batch = p->batch;
    a.q = t->q.tensor[side];
    a.q_centers = t->q_centers.tensor[side];
    a.o = t->o.tensor[side];
    a.lse = t->lse.tensor[side];
    a.state_head = t->state_head.tensor[side];
    a.state_o = t->state_o.tensor[side];
    a.q_indptr = buffer_at(&t->q_indptr, side);
    a.kv_len = buffer_at(&t->kv_len, side);
    a.page_table = buffer_at(&t->page_table, side);
    a.page_table_stride = t->table_stride;
    a.q_len_max = t->q_len_max;
    a.kv_len_max = t->kv_len_max;
    a.sm_scale = p->sm_scale;
    a.window_left = p->window_left;
    a.window_right = p->window_right;
    a.soft_cap = p->soft_cap;
    a.range_begin = p->range_begin;
    a.range_end = p->range_end;
    a.alibi_slopes = p->alibi ? buffer_at(&t->slopes, side) : NULL;
    a.sinks = p->sinks ? buffer_at(&t->sinks, side) : NULL;
    a.tree_mask = p->tree != TREE_NONE ? buffer_at(&t->tree_mask, side) : NULL;
    a.tree_mask_stride = p->tree != TREE_NONE ? t->tree_stride : 0;
    a.centers = centers_at(t, side);
    a.stream = t->lab->stream;
    return a;
}
