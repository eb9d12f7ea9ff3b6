/* SPDX-License-Identifier: Apache-2.0 */
/** @file problem.c  Pools, page tables and arguments of a small batch. */
#include "problem.h"

#include <stdlib.h>
#include <string.h>

static array *bf16_rows(world *w, uint64_t count)
{
    array *a = world_array(w, count * sizeof(uint16_t));
    for (uint64_t i = 0; i < count; ++i) {
        float x = world_normal(w);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        uint16_t half = (uint16_t)(bits >> 16);
        memcpy(a->host + 2u * i, &half, sizeof half);
    }
    world_send(w, a);
    return a;
}

static nbl_tensor rows_of(const array *a, uint32_t i, uint64_t rows, uint32_t heads, uint32_t dim)
{
    return (nbl_tensor){.data = a->memory[i], .dtype = NBL_BF16, .rank = 3, .shape = {rows, heads, dim}};
}

static int32_t *ints(array *a)
{
    return (int32_t *)(void *)a->host;
}

static void make_pool(problem *p)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_page_layout layout = NBL_INIT(nbl_page_layout);
    world *w = p->w;
    p->stride = KV_MAX / p->shape.page_tokens;
    p->pages = BATCH * p->stride + 3u;
    world_expect(w, &w->sides[SIM], w->api->kv_layout(&p->shape, p->k_format, p->v_format, &layout, &err), &err,
                 "kv_layout");
    p->codes = world_array(w, layout.code_page_bytes * p->pages);
    p->scales = world_array(w, layout.scale_page_bytes * p->pages);
    for (uint32_t i = 0; i < SIDES; ++i) {
        p->region[i] = (nbl_region){.k_format = p->k_format,
                                    .v_format = p->v_format,
                                    .page_count = p->pages,
                                    .codes = p->codes->memory[i],
                                    .scales = p->scales->memory[i],
                                    .code_page_stride = layout.code_page_bytes,
                                    .code_layer_stride = layout.code_page_bytes * p->pages,
                                    .scale_page_stride = layout.scale_page_bytes,
                                    .scale_layer_stride = layout.scale_page_bytes * p->pages};
        p->pool[i] = (nbl_pool)NBL_INIT(nbl_pool);
        p->pool[i].shape = &p->shape;
        p->pool[i].regions = &p->region[i];
        p->pool[i].region_count = 1;
    }
    world_send(w, p->codes);
    world_send(w, p->scales);
}

static void make_arrays(problem *p)
{
    world *w = p->w;
    uint64_t vectors = BATCH * KV_HEADS, rows = (uint64_t)BATCH * p->q_len * Q_HEADS;
    p->k = bf16_rows(w, vectors * p->shape.k_dim);
    p->v = bf16_rows(w, vectors * p->shape.v_dim);
    p->q = bf16_rows(w, rows * p->shape.k_dim);
    p->fill_k = bf16_rows(w, (uint64_t)KV_MAX * KV_HEADS * p->shape.k_dim);
    p->fill_v = bf16_rows(w, (uint64_t)KV_MAX * KV_HEADS * p->shape.v_dim);
    p->o = world_array(w, rows * p->shape.v_dim * sizeof(uint16_t));
    p->lse = world_array(w, rows * sizeof(float));
    p->shorter_o = world_array(w, p->o->bytes);
    p->shorter_lse = world_array(w, p->lse->bytes);
    p->shorter_lens = world_array(w, BATCH * sizeof(int32_t));
    p->slots = world_array(w, BATCH * sizeof(int64_t));
    p->fill_slots = world_array(w, KV_MAX * sizeof(int64_t));
    p->table = world_array(w, (uint64_t)BATCH * p->stride * sizeof(int32_t));
    p->kv_lens = world_array(w, BATCH * sizeof(int32_t));
    p->indptr = world_array(w, (BATCH + 1u) * sizeof(int32_t));
    p->q_indptr = world_array(w, p->indptr->bytes);
    p->fill_indptr = world_array(w, 2u * sizeof(int32_t));
    p->center_codes = world_array(w, vectors * p->shape.k_dim);
    p->center_exponents = world_array(w, vectors);
    p->center_shifts = world_array(w, vectors * p->shape.k_dim);
    memset(p->center_codes->host, 1, p->center_codes->bytes);
    memset(p->center_exponents->host, 120, p->center_exponents->bytes);
    memset(p->center_shifts->host, 1, p->center_shifts->bytes);
    world_send(w, p->center_codes);
    world_send(w, p->center_exponents);
    world_send(w, p->center_shifts);
    for (uint32_t b = 0; b <= BATCH; ++b) {
        ints(p->indptr)[b] = (int32_t)b;
        ints(p->q_indptr)[b] = (int32_t)(b * p->q_len);
    }
    world_send(w, p->indptr);
    world_send(w, p->q_indptr);
}

/* New random page tables for the lengths at hand; slots of the last tokens. */
void problem_make_tables(problem *p)
{
    world *w = p->w;
    int32_t *order = malloc(p->pages * sizeof *order);
    if (order == NULL) {
        abort();
    }
    for (uint32_t i = 0; i < p->pages; ++i) {
        uint32_t j = world_below(w, i + 1u);
        order[i] = order[j];
        order[j] = (int32_t)i;
    }
    for (uint32_t b = 0; b < BATCH; ++b) {
        int32_t *row = ints(p->table) + (uint64_t)b * p->stride;
        uint32_t last = p->kv_len[b] - (p->kv_len[b] > 0);
        memcpy(row, order + (uint64_t)b * p->stride, p->stride * sizeof *row);
        for (uint32_t i = (p->kv_len[b] + p->shape.page_tokens - 1u) / p->shape.page_tokens; i < p->stride; ++i) {
            row[i] = -7; /* entries past the length are not read */
        }
        ((int64_t *)(void *)p->slots->host)[b] =
            p->kv_len[b] == 0
                ? -1
                : (int64_t)row[last / p->shape.page_tokens] * p->shape.page_tokens + last % p->shape.page_tokens;
        ints(p->kv_lens)[b] = (int32_t)p->kv_len[b];
        ints(p->shorter_lens)[b] = (int32_t)world_below(w, p->kv_len[b] + 1u);
    }
    free(order);
    world_send(w, p->table);
    world_send(w, p->slots);
    world_send(w, p->kv_lens);
    world_send(w, p->shorter_lens);
}

static void set_centers(const problem *p, uint32_t i, nbl_centers *centers)
{
    centers->codes = (int8_t *)p->center_codes->memory[i];
    centers->exponents = p->center_exponents->memory[i];
    centers->shifts = p->center_shifts->memory[i];
    centers->row_count = BATCH;
}

/* All tokens of sequence b but the last one, eagerly. */
static void fill(problem *p, uint32_t b, uint32_t i)
{
    world *w = p->w;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_append_args a = NBL_INIT(nbl_append_args);
    uint32_t count = p->kv_len[b] - 1u;
    a.pool = &p->pool[i];
    a.batch = 1;
    a.k = rows_of(p->fill_k, i, count, KV_HEADS, p->shape.k_dim);
    a.v = rows_of(p->fill_v, i, count, KV_HEADS, p->shape.v_dim);
    a.slots = (const int64_t *)(const void *)p->fill_slots->memory[i];
    a.seq_indptr = (const int32_t *)(const void *)p->fill_indptr->memory[i];
    set_centers(p, i, &a.centers);
    a.stream = w->sides[i].stream;
    world_expect(w, &w->sides[i], w->api->append(w->sides[i].device, &a, &err), &err, "append");
}

void problem_fill(problem *p)
{
    for (uint32_t b = 0; b < BATCH; ++b) {
        const int32_t *row = ints(p->table) + (uint64_t)b * p->stride;
        if (p->kv_len[b] < 2u) {
            continue;
        }
        for (uint32_t t = 0; t + 1u < p->kv_len[b]; ++t) {
            ((int64_t *)(void *)p->fill_slots->host)[t] =
                (int64_t)row[t / p->shape.page_tokens] * p->shape.page_tokens + t % p->shape.page_tokens;
        }
        ints(p->fill_indptr)[0] = 0;
        ints(p->fill_indptr)[1] = (int32_t)p->kv_len[b] - 1;
        world_send(p->w, p->fill_slots);
        world_send(p->w, p->fill_indptr);
        for (uint32_t i = 0; i < SIDES; ++i) {
            fill(p, b, i);
        }
    }
}

nbl_append_args problem_append_args(problem *p, uint32_t i)
{
    nbl_append_args a = NBL_INIT(nbl_append_args);
    a.pool = &p->pool[i];
    a.batch = BATCH;
    a.k = rows_of(p->k, i, BATCH, KV_HEADS, p->shape.k_dim);
    a.v = rows_of(p->v, i, BATCH, KV_HEADS, p->shape.v_dim);
    a.slots = (const int64_t *)(const void *)p->slots->memory[i];
    a.seq_indptr = (const int32_t *)(const void *)p->indptr->memory[i];
    set_centers(p, i, &a.centers);
    a.stream = p->w->sides[i].stream;
    return a;
}

nbl_attend_args problem_attend_args(problem *p, uint32_t i)
{
    const uint64_t rows = (uint64_t)BATCH * p->q_len;
    nbl_attend_args a = NBL_INIT(nbl_attend_args);
    a.flags = NBL_ATTEND_CAUSAL;
    a.pool = &p->pool[i];
    a.batch = BATCH;
    a.q_heads = Q_HEADS;
    a.q_format = p->q_format;
    a.q = rows_of(p->q, i, rows, Q_HEADS, p->shape.k_dim);
    a.o = rows_of(p->o, i, rows, Q_HEADS, p->shape.v_dim);
    a.lse = (nbl_tensor){.data = p->lse->memory[i], .dtype = NBL_F32, .rank = 2, .shape = {rows, Q_HEADS}};
    a.q_indptr = (const int32_t *)(const void *)p->q_indptr->memory[i];
    a.kv_len = (const int32_t *)(const void *)p->kv_lens->memory[i];
    a.page_table = (const int32_t *)(const void *)p->table->memory[i];
    a.page_table_stride = p->stride;
    a.q_len_max = p->q_len;
    a.kv_len_max = KV_MAX;
    set_centers(p, i, &a.centers);
    a.workspace = p->workspace[i];
    a.workspace_bytes = p->workspace_bytes[i];
    a.stream = p->w->sides[i].stream;
    return a;
}

nbl_gather_args problem_gather_args(problem *p, uint32_t i)
{
    const nbl_append_args from = problem_append_args(p, i);
    nbl_gather_args g = NBL_INIT(nbl_gather_args);
    g.pool = from.pool;
    g.batch = from.batch;
    g.k = from.k;
    g.v = from.v;
    g.slots = from.slots;
    g.seq_indptr = from.seq_indptr;
    g.centers = from.centers;
    g.stream = from.stream;
    return g;
}

nbl_copy_pages_args problem_copy_args(problem *p, uint32_t i)
{
    nbl_copy_pages_args c = NBL_INIT(nbl_copy_pages_args);
    array *pages = world_array(p->w, 2u * sizeof(int32_t));
    ints(pages)[0] = 0;
    ints(pages)[1] = 1;
    world_send(p->w, pages);
    c.src_pool = c.dst_pool = &p->pool[i];
    c.count = 1;
    c.src_pages = (const int32_t *)(const void *)pages->memory[i];
    c.dst_pages = c.src_pages + 1;
    c.stream = p->w->sides[i].stream;
    return c;
}

void problem_step(problem *p, uint32_t i)
{
    world *w = p->w;
    const side *s = &w->sides[i];
    nbl_error err = NBL_INIT(nbl_error);
    nbl_append_args append = problem_append_args(p, i);
    nbl_attend_args attend = problem_attend_args(p, i);
    world_expect(w, s, w->api->append(s->device, &append, &err), &err, "append");
    world_expect(w, s, w->api->attend(s->device, &attend, &err), &err, "attend");
    attend.kv_len = (const int32_t *)(const void *)p->shorter_lens->memory[i];
    attend.o.data = p->shorter_o->memory[i];
    attend.lse.data = p->shorter_lse->memory[i];
    world_expect(w, s, w->api->attend(s->device, &attend, &err), &err, "attend, shorter");
}

static void make_workspace(problem *p, uint32_t i)
{
    world *w = p->w;
    const side *s = &w->sides[i];
    nbl_error err = NBL_INIT(nbl_error);
    nbl_op_desc d = NBL_INIT(nbl_op_desc);
    d.shape = &p->shape;
    d.op = NBL_OP_ATTEND;
    d.k_format = p->k_format;
    d.v_format = p->v_format;
    d.q_format = p->q_format;
    d.q_heads = Q_HEADS;
    d.in_dtype = d.out_dtype = NBL_BF16;
    d.batch_max = BATCH;
    d.q_tokens_max = BATCH * p->q_len;
    d.q_len_max = p->q_len;
    d.kv_len_max = KV_MAX;
    world_expect(w, s, w->api->workspace_size(s->device, &d, &p->workspace_bytes[i], &err), &err, "workspace_size");
    if (p->workspace_bytes[i] > 0) {
        world_expect(w, s, w->api->memory_alloc(s->device, p->workspace_bytes[i], &p->workspace[i], &err), &err,
                     "workspace");
    }
}

void problem_make(problem *p, world *w, const uint32_t formats[3], uint32_t page_tokens, uint32_t dim, uint32_t q_len)
{
    memset(p, 0, sizeof *p);
    p->w = w;
    p->k_format = formats[0];
    p->v_format = formats[1];
    p->q_format = formats[2];
    p->q_len = q_len;
    p->shape = (nbl_kv_shape)NBL_INIT(nbl_kv_shape);
    p->shape.layers = 1;
    p->shape.kv_heads = KV_HEADS;
    p->shape.k_dim = p->shape.v_dim = dim;
    p->shape.page_tokens = page_tokens;
    p->shape.k_hadamard = 32;
    p->shape.v_hadamard = dim == 128 ? 128 : 32; /* 128: outputs are written as whole rows */
    p->shape.centering = NBL_CENTERING_ALL;
    make_pool(p);
    make_arrays(p);
    make_workspace(p, SIM);
    make_workspace(p, CUDA);
}

void problem_free(problem *p)
{
    for (uint32_t i = 0; i < SIDES; ++i) {
        (void)p->w->api->memory_free(p->w->sides[i].device, p->workspace[i], NULL);
    }
    world_clear(p->w);
    p->w->case_text = NULL;
}
