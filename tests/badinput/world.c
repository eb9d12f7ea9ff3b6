/* SPDX-License-Identifier: Apache-2.0 */
#include "world.h"

#include <string.h>

#define POISON 0xA5

static world_block memory[BLOCK_COUNT];

uint8_t *world_memory(uint32_t block)
{
    return memory[block].bytes;
}

nbl_tensor world_tensor(uint32_t block, uint32_t dtype, uint32_t rank, uint64_t n0, uint64_t n1, uint64_t n2,
                        uint64_t n3)
{
    return (nbl_tensor){.data = world_memory(block), .dtype = dtype, .rank = rank, .shape = {n0, n1, n2, n3}};
}

static void pool_fill(world *w)
{
    w->shape = (nbl_kv_shape)NBL_INIT(nbl_kv_shape);
    w->shape.layers = 2;
    w->shape.kv_heads = 2;
    w->shape.k_dim = 32;
    w->shape.v_dim = 16;
    w->shape.page_tokens = 8;
    w->shape.k_hadamard = 32;
    for (uint32_t i = 0; i < 2; ++i) {
        nbl_page_layout layout = NBL_INIT(nbl_page_layout);
        nbl_region *r = &w->regions[i];
        nbl_error err = NBL_INIT(nbl_error);
        *r = (nbl_region){
            .k_format = i == 0 ? NBL_INT8 : NBL_INT4P, .v_format = NBL_INT8, .first_page = 4 * i, .page_count = 4};
        cr_assert_eq(w->c.api->kv_layout(&w->shape, r->k_format, r->v_format, &layout, &err), NBL_OK, "%s",
                     err.message);
        r->codes = world_memory(BLOCK_CODES_0 + i);
        r->scales = world_memory(BLOCK_SCALES_0 + i);
        r->code_page_stride = layout.code_page_bytes;
        r->code_layer_stride = layout.code_page_bytes * 4;
        r->scale_page_stride = layout.scale_page_bytes;
        r->scale_layer_stride = layout.scale_page_bytes * 4;
    }
    w->pool = (nbl_pool)NBL_INIT(nbl_pool);
    w->pool.shape = &w->shape;
    w->pool.regions = w->regions;
    w->pool.region_count = 2;
}

/* The same pool in the second half of its memory. */
static void pool2_fill(world *w)
{
    w->shape2 = w->shape;
    memcpy(w->regions2, w->regions, sizeof w->regions);
    for (uint32_t i = 0; i < 2; ++i) {
        w->regions2[i].codes = (uint8_t *)w->regions[i].codes + WORLD_BYTES / 2;
        w->regions2[i].scales = (uint8_t *)w->regions[i].scales + WORLD_BYTES / 2;
    }
    w->pool2 = w->pool;
    w->pool2.shape = &w->shape2;
    w->pool2.regions = w->regions2;
}

static int32_t *indices(uint32_t place)
{
    return (int32_t *)(void *)(world_memory(BLOCK_INDICES) + 256u * place);
}

static nbl_centers centers(void)
{
    return (nbl_centers){.codes = (int8_t *)world_memory(BLOCK_CENTERS),
                         .exponents = world_memory(BLOCK_CENTERS) + 4096,
                         .shifts = world_memory(BLOCK_CENTERS) + 5120,
                         .rows = indices(0),
                         .row_count = 3};
}

static void append_fill(world *w)
{
    w->append = (nbl_append_args)NBL_INIT(nbl_append_args);
    w->append.pool = &w->pool;
    w->append.batch = 2;
    w->append.k = world_tensor(BLOCK_K, NBL_BF16, 3, 5, 2, 32, 0);
    w->append.v = world_tensor(BLOCK_V, NBL_BF16, 3, 5, 2, 16, 0);
    w->append.slots = (const int64_t *)(const void *)indices(1);
    w->append.seq_indptr = indices(2);
    w->append.centers = centers();
    w->append.stats = (nbl_quant_stats *)(void *)world_memory(BLOCK_STATS);
    w->append.workspace = world_memory(BLOCK_WORKSPACE);
    w->append.workspace_bytes = WORLD_BYTES;
}

static void attend_fill(world *w)
{
    w->attend = (nbl_attend_args)NBL_INIT(nbl_attend_args);
    w->attend.flags = NBL_ATTEND_CAUSAL;
    w->attend.pool = &w->pool;
    w->attend.q_heads = 4;
    w->attend.batch = 2;
    w->attend.q = world_tensor(BLOCK_Q, NBL_BF16, 3, 3, 4, 32, 0);
    w->attend.o = world_tensor(BLOCK_O, NBL_BF16, 3, 3, 4, 16, 0);
    w->attend.lse = world_tensor(BLOCK_LSE, NBL_F32, 2, 3, 4, 0, 0);
    w->attend.state_head = world_tensor(BLOCK_STATE_HEAD, NBL_F32, 4, 2, 3, 4, 4);
    w->attend.state_o = world_tensor(BLOCK_STATE_O, NBL_F32, 4, 2, 3, 4, 16);
    w->attend.q_indptr = indices(2);
    w->attend.kv_len = indices(3);
    w->attend.page_table = indices(4);
    w->attend.page_table_stride = 200;
    w->attend.q_len_max = 2;
    w->attend.kv_len_max = 1500;
    w->attend.centers = centers();
    w->attend.workspace = world_memory(BLOCK_WORKSPACE);
    w->attend.workspace_bytes = WORLD_BYTES;
}

static void pages_fill(world *w)
{
    w->copy = (nbl_copy_pages_args)NBL_INIT(nbl_copy_pages_args);
    w->copy.src_pool = &w->pool;
    w->copy.dst_pool = &w->pool2;
    w->copy.src_pages = indices(5);
    w->copy.dst_pages = indices(6);
    w->copy.count = 2;
    w->transcode = (nbl_transcode_args)NBL_INIT(nbl_transcode_args);
    w->transcode.src_pool = &w->pool;
    w->transcode.dst_pool = &w->pool2;
    w->transcode.src_pages = indices(5);
    w->transcode.dst_pages = indices(6);
    w->transcode.token_counts = indices(7);
    w->transcode.count = 2;
    w->transcode.stats = (nbl_quant_stats *)(void *)world_memory(BLOCK_STATS);
}

static void merge_fill(world *w)
{
    w->merge = (nbl_merge_args)NBL_INIT(nbl_merge_args);
    w->merge.count = 2;
    w->merge.in_state_head = world_tensor(BLOCK_K, NBL_F32, 4, 2, 3, 4, 4);
    w->merge.in_state_o = world_tensor(BLOCK_V, NBL_F32, 4, 2, 3, 4, 16);
    w->merge.state_head = world_tensor(BLOCK_STATE_HEAD, NBL_F32, 3, 3, 4, 4, 0);
    w->merge.state_o = world_tensor(BLOCK_STATE_O, NBL_F32, 3, 3, 4, 16, 0);
    w->merge.o = world_tensor(BLOCK_O, NBL_F16, 3, 3, 4, 16, 0);
    w->merge.lse = world_tensor(BLOCK_LSE, NBL_F32, 2, 3, 4, 0, 0);
    w->pairs = (nbl_merge_args)NBL_INIT(nbl_merge_args);
    w->pairs.count = 2;
    w->pairs.in_o = world_tensor(BLOCK_K, NBL_F16, 4, 2, 3, 4, 16);
    w->pairs.in_lse = world_tensor(BLOCK_V, NBL_F32, 3, 2, 3, 4, 0);
    w->pairs.o = w->merge.o;
    w->pairs.lse = w->merge.lse;
}

static void desc_fill(world *w)
{
    w->desc = (nbl_op_desc)NBL_INIT(nbl_op_desc);
    w->desc.shape = &w->shape;
    w->desc.op = NBL_OP_ATTEND;
    w->desc.k_format = NBL_INT4P;
    w->desc.v_format = NBL_INT8;
    w->desc.q_heads = 4;
    w->desc.in_dtype = NBL_BF16;
    w->desc.out_dtype = NBL_BF16;
    w->desc.features = NBL_FEATURE_CAUSAL;
    w->desc.batch_max = 2;
    w->desc.q_tokens_max = 3;
    w->desc.q_len_max = 2;
    w->desc.kv_len_max = 1500;
}

void world_open(world *w)
{
    memset(w, 0, sizeof *w);
    memset(memory, POISON, sizeof memory);
    w->c = counting_open();
    pool_fill(w);
    pool2_fill(w);
    append_fill(w);
    attend_fill(w);
    w->gather = (nbl_gather_args)NBL_INIT(nbl_gather_args);
    w->gather.pool = &w->pool;
    w->gather.batch = 2;
    w->gather.slots = w->append.slots;
    w->gather.k = w->append.k;
    w->gather.v = w->append.v;
    w->gather.seq_indptr = w->append.seq_indptr;
    w->gather.centers = centers();
    pages_fill(w);
    merge_fill(w);
    desc_fill(w);
}

void world_expect(world *w, nbl_status got, const nbl_error *err, nbl_status status, const char *text)
{
    cr_assert_eq(got, status, "status %d instead of %d: %s", got, status, err->message);
    cr_assert(strstr(err->message, text) != NULL, "\"%s\" is not in \"%s\"", text, err->message);
    cr_assert_eq(err->status, status, "err.status is %d", err->status);
    cr_assert(strchr(err->message, '\n') == NULL, "more than one line: %s", err->message);
    cr_assert_eq(w->c.state->operations, 0, "the backend was called");
    const uint8_t *bytes = memory[0].bytes;
    for (size_t i = 0; i < sizeof memory; ++i)
        cr_assert_eq(bytes[i], POISON, "byte %zu of block %zu was written", i % WORLD_BYTES, i / WORLD_BYTES);
    counting_close(&w->c);
}
