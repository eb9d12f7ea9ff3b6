/* SPDX-License-Identifier: Apache-2.0 */
/** @file operations.c  append, attend, transcode, gather, copy_pages, merge and append_coded with small arguments. */
#include "operations.h"

#include <string.h>

static int32_t *ints(const array *a)
{
    return (int32_t *)(void *)a->host;
}

/* A page that no sequence has. */
static int32_t spare_page(const problem *p)
{
    const uint32_t entries = BATCH * p->stride;
    int32_t page = 0;
    for (uint32_t i = 0; i < entries; ++i) {
        if (ints(p->table)[i] == page) {
            page++;
            i = UINT32_MAX; /* from the first one again */
        }
    }
    return page;
}

/* Numbers of one state per row: M = 0, L = 1, no offset. */
static void make_states(operations *o)
{
    world *w = o->p->w;
    const uint32_t rows = BATCH * Q_HEADS;
    o->state_head = world_array(w, (uint64_t)rows * 4u * sizeof(float));
    o->state_o = world_array(w, (uint64_t)rows * o->p->shape.v_dim * sizeof(float));
    o->merged = world_array(w, (uint64_t)rows * o->p->shape.v_dim * sizeof(float));
    for (uint32_t i = 0; i < rows; ++i) {
        memcpy(o->state_head->host + 16u * (uint64_t)i, (const float[]){0.0f, 1.0f, 0.0f, 0.0f}, 16);
    }
    for (uint32_t i = 0; i < rows * o->p->shape.v_dim; ++i) {
        const float x = world_normal(w);
        memcpy(o->state_o->host + sizeof x * (uint64_t)i, &x, sizeof x);
    }
    world_send(w, o->state_head);
    world_send(w, o->state_o);
    world_send(w, o->merged);
}

static void make_coded(operations *o)
{
    world *w = o->p->w;
    const uint64_t vector = o->p->shape.k_dim;
    o->coded = world_array(w, 2u * KV_HEADS * o->p->shape.page_tokens * vector);
    o->coded_k = world_array(w, KV_HEADS * vector);
    o->coded_v = world_array(w, KV_HEADS * vector);
    o->coded_slot = world_array(w, sizeof(int64_t));
    memset(o->coded_slot->host, 0, sizeof(int64_t));
    world_send(w, o->coded);
    world_send(w, o->coded_k);
    world_send(w, o->coded_v);
    world_send(w, o->coded_slot);
}

operations operations_make(problem *p)
{
    operations o = {.p = p, .pages = world_array(p->w, 3u * sizeof(int32_t))};
    ints(o.pages)[0] = ints(p->table)[0]; /* full: a sequence begins there */
    ints(o.pages)[1] = spare_page(p);
    ints(o.pages)[2] = (int32_t)p->shape.page_tokens;
    world_send(p->w, o.pages);
    make_states(&o);
    make_coded(&o);
    return o;
}

static nbl_transcode_args transcode_args(const operations *o, uint32_t i)
{
    nbl_transcode_args a = NBL_INIT(nbl_transcode_args);
    a.src_pool = a.dst_pool = &o->p->pool[i];
    a.src_pages = (const int32_t *)(const void *)o->pages->memory[i];
    a.dst_pages = a.src_pages + 1;
    a.token_counts = a.src_pages + 2;
    a.count = 1;
    a.stream = o->p->w->sides[i].stream;
    return a;
}

static nbl_tensor floats_of(const array *a, uint32_t i, uint32_t rank, uint64_t last)
{
    nbl_tensor t = {.data = a->memory[i], .dtype = NBL_F32, .rank = rank, .shape = {1, BATCH, Q_HEADS, last}};
    if (rank == 3) {
        memmove(t.shape, t.shape + 1, 3 * sizeof t.shape[0]);
    }
    return t;
}

static nbl_merge_args merge_args(const operations *o, uint32_t i)
{
    nbl_merge_args a = NBL_INIT(nbl_merge_args);
    a.count = 1;
    a.in_state_head = floats_of(o->state_head, i, 4, 4);
    a.in_state_o = floats_of(o->state_o, i, 4, o->p->shape.v_dim);
    a.o = floats_of(o->merged, i, 3, o->p->shape.v_dim);
    a.stream = o->p->w->sides[i].stream;
    return a;
}

/* One token into the page of fp8; shape, region and pool are the caller's. */
static nbl_append_coded_args coded_args(const operations *o, uint32_t i, nbl_kv_shape *shape, nbl_region *region,
                                        nbl_pool *pool)
{
    nbl_append_coded_args a = NBL_INIT(nbl_append_coded_args);
    *shape = o->p->shape;
    shape->k_hadamard = shape->v_hadamard = shape->centering = 0;
    *region = (nbl_region){.k_format = NBL_FP8_E4M3,
                           .v_format = NBL_FP8_E4M3,
                           .page_count = 1,
                           .codes = o->coded->memory[i],
                           .code_page_stride = o->coded->bytes,
                           .code_layer_stride = o->coded->bytes};
    *pool = (nbl_pool)NBL_INIT(nbl_pool);
    pool->shape = shape;
    pool->regions = region;
    pool->region_count = 1;
    a.pool = pool;
    a.k_format = a.v_format = NBL_FP8_E4M3;
    a.k = (nbl_tensor){.data = o->coded_k->memory[i], .dtype = NBL_U8, .rank = 3, .shape = {1, KV_HEADS, shape->k_dim}};
    a.v = a.k;
    a.v.data = o->coded_v->memory[i];
    a.slots = (const int64_t *)(const void *)o->coded_slot->memory[i];
    a.stream = o->p->w->sides[i].stream;
    return a;
}

void operations_run(operations *o, uint32_t i, void (*after)(const char *name))
{
    const nbl_api_v1 *api = o->p->w->api;
    const side *s = &o->p->w->sides[i];
    nbl_kv_shape shape;
    nbl_region region;
    nbl_pool pool;
    const nbl_append_args append = problem_append_args(o->p, i);
    const nbl_attend_args attend = problem_attend_args(o->p, i);
    const nbl_transcode_args transcode = transcode_args(o, i);
    const nbl_gather_args gather = problem_gather_args(o->p, i);
    const nbl_copy_pages_args copy = problem_copy_args(o->p, i);
    const nbl_merge_args merge = merge_args(o, i);
    const nbl_append_coded_args coded = coded_args(o, i, &shape, &region, &pool);
    nbl_error err = NBL_INIT(nbl_error);
#define RUN(name, args)                                                             \
    do {                                                                            \
        world_expect(o->p->w, s, api->name(s->device, &(args), &err), &err, #name); \
        if (after != NULL) {                                                        \
            after(#name);                                                           \
        }                                                                           \
    } while (0)
    RUN(append, append);
    RUN(attend, attend);
    RUN(transcode, transcode);
    RUN(gather, gather);
    RUN(copy_pages, copy);
    RUN(merge, merge);
    RUN(append_coded, coded);
#undef RUN
}

void operations_compare(const operations *o)
{
    const problem *p = o->p;
    world_compare(p->w, p->codes, "codes");
    world_compare(p->w, p->scales, "scales");
    world_compare(p->w, p->o, "o");
    world_compare(p->w, p->lse, "lse");
    world_compare(p->w, p->k, "k");
    world_compare(p->w, p->v, "v");
    world_compare(p->w, o->merged, "o of merge");
    world_compare(p->w, o->coded, "codes of append_coded");
}
