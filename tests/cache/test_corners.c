/* SPDX-License-Identifier: Apache-2.0 */
/* Corners of raw calls and of the cache on the simulator. */
#include <criterion/criterion.h>
#include <nibble/nibble.h>
#include <string.h>

enum { HEADS = 1, DIM = 32, TOKENS = 64, PAGE = 32 };

/* The simulator, one page pool and one block of memory for everything else. */
typedef struct corner {
    const nbl_api_v1 *api;
    nbl_runtime *runtime;
    nbl_device *device;
    nbl_kv_shape shape;
    nbl_region region;
    nbl_pool pool;
    void *workspace;
    uint64_t workspace_bytes;
    float k[TOKENS][DIM];
    float q[2][DIM];
    float o[2][DIM];
    float lse[2];
} corner;

static void ok(nbl_status status, const nbl_error *err)
{
    cr_assert_eq(status, NBL_OK, "%s", err->message);
}

static void corner_open(corner *c, uint32_t centering)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_load_options load = NBL_INIT(nbl_load_options);
    nbl_page_layout layout = NBL_INIT(nbl_page_layout);
    memset(c, 0, sizeof *c);
    load.backend = "sim";
    ok(nbl_get_api(NULL, &c->api, &err), &err);
    ok(c->api->load(&load, &c->runtime, NULL, &err), &err);
    ok(c->api->open(c->runtime, NULL, &c->device, &err), &err);
    c->shape = (nbl_kv_shape)NBL_INIT(nbl_kv_shape);
    c->shape.layers = 1;
    c->shape.kv_heads = HEADS;
    c->shape.k_dim = c->shape.v_dim = DIM;
    c->shape.page_tokens = PAGE;
    c->shape.centering = centering;
    ok(c->api->kv_layout(&c->shape, NBL_INT8, NBL_INT8, &layout, &err), &err);
    c->region = (nbl_region){.k_format = NBL_INT8, .v_format = NBL_INT8, .page_count = TOKENS / PAGE};
    c->region.code_page_stride = layout.code_page_bytes;
    c->region.scale_page_stride = layout.scale_page_bytes;
    ok(c->api->memory_alloc(c->device, TOKENS / PAGE * layout.code_page_bytes, &c->region.codes, &err), &err);
    ok(c->api->memory_alloc(c->device, TOKENS / PAGE * layout.scale_page_bytes, &c->region.scales, &err), &err);
    c->pool = (nbl_pool)NBL_INIT(nbl_pool);
    c->pool.shape = &c->shape;
    c->pool.regions = &c->region;
    c->pool.region_count = 1;
    c->workspace_bytes = 64u << 20;
    ok(c->api->memory_alloc(c->device, c->workspace_bytes, &c->workspace, &err), &err);
    for (int i = 0; i < TOKENS * DIM; ++i)
        c->k[i / DIM][i % DIM] = (float)(i % 17) - 8.0f;
    for (int i = 0; i < 2 * DIM; ++i)
        c->q[i / DIM][i % DIM] = (float)(i % 5) - 2.0f;
}

static void corner_close(corner *c)
{
    nbl_error err = NBL_INIT(nbl_error);
    void *const blocks[] = {c->region.codes, c->region.scales, c->workspace};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; ++i)
        ok(c->api->memory_free(c->device, blocks[i], &err), &err);
    ok(c->api->close(c->device, &err), &err);
    ok(c->api->runtime_destroy(c->runtime, &err), &err);
}

static nbl_tensor rows(void *data, uint64_t count)
{
    return (nbl_tensor){.data = data, .dtype = NBL_F32, .rank = 3, .shape = {count, HEADS, DIM}};
}

/* Attention of one query row over kv_len tokens with the given bound on query rows, and a sink. */
static void attend(corner *c, int32_t kv_len, uint32_t q_len_max, nbl_centers centers)
{
    static const float sink[1] = {0.3f};
    const int32_t indptr[2] = {0, 1}, table[2] = {0, 1};
    nbl_error err = NBL_INIT(nbl_error);
    nbl_attend_args a = NBL_INIT(nbl_attend_args);
    a.pool = &c->pool;
    a.q_heads = HEADS;
    a.batch = 1;
    a.q = rows(c->q, 1);
    a.o = rows(c->o, 1);
    a.lse = (nbl_tensor){.data = c->lse, .dtype = NBL_F32, .rank = 2, .shape = {1, HEADS}};
    a.q_indptr = indptr;
    a.kv_len = &kv_len;
    a.page_table = table;
    a.page_table_stride = 2;
    a.q_len_max = q_len_max;
    a.kv_len_max = TOKENS;
    a.sinks = sink;
    a.centers = centers;
    a.workspace = c->workspace;
    a.workspace_bytes = c->workspace_bytes;
    ok(c->api->attend(c->device, &a, &err), &err);
}

/* NUM 5.7: a sequence without tokens has no offset, whatever its row of centres holds. */
Test(cache_corners, centre_of_an_empty_sequence_does_not_matter)
{
    corner c;
    int8_t codes[DIM];
    uint8_t exponents[1] = {127 + 10};
    float seen[2];
    corner_open(&c, NBL_CENTERING_MEAN);
    for (int i = 0; i < 2; ++i) {
        memset(codes, i == 0 ? 0 : 100, sizeof codes);
        attend(&c, 0, 1, (nbl_centers){.codes = codes, .exponents = exponents, .row_count = 1});
        seen[i] = c.lse[0];
    }
    cr_assert_eq(memcmp(&seen[0], &seen[1], sizeof seen[0]), 0, "lse %a and %a", (double)seen[0], (double)seen[1]);
    corner_close(&c);
}

/* A bound far above the real number of query rows changes nothing and leaves nothing out. */
Test(cache_corners, loose_bound_on_query_rows)
{
    static corner c;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_append_args a = NBL_INIT(nbl_append_args);
    int64_t slots[TOKENS];
    float tight[DIM];
    corner_open(&c, 0);
    for (int i = 0; i < TOKENS; ++i)
        slots[i] = i;
    a.pool = &c.pool;
    a.k = rows(c.k, TOKENS);
    a.v = rows(c.k, TOKENS);
    a.slots = slots;
    ok(c.api->append(c.device, &a, &err), &err);
    attend(&c, TOKENS, 1, (nbl_centers){.row_count = 0});
    memcpy(tight, c.o, sizeof tight);
    memset(c.o, 0xAB, sizeof c.o);
    attend(&c, TOKENS, 1u << 24, (nbl_centers){.row_count = 0});
    cr_assert_eq(memcmp(tight, c.o, sizeof tight), 0, "o %a and %a", (double)tight[0], (double)c.o[0][0]);
    corner_close(&c);
}

/* Where centres are computed, two sequences with tokens cannot share a row. */
Test(cache_corners, shared_centre_row_is_refused)
{
    static corner c;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_append_args a = NBL_INIT(nbl_append_args);
    const int32_t indptr[3] = {0, TOKENS / 2, TOKENS}, same[2] = {0, 0};
    int8_t codes[2 * DIM];
    uint8_t exponents[2];
    int64_t slots[TOKENS];
    corner_open(&c, NBL_CENTERING_MEAN);
    for (int i = 0; i < TOKENS; ++i)
        slots[i] = i;
    memset(codes, 0x5A, sizeof codes);
    a.pool = &c.pool;
    a.batch = 2;
    a.k = rows(c.k, TOKENS);
    a.v = rows(c.k, TOKENS);
    a.slots = slots;
    a.seq_indptr = indptr;
    a.center_mode = NBL_CENTER_COMPUTE;
    a.centers = (nbl_centers){.codes = codes, .exponents = exponents, .rows = same, .row_count = 2};
    cr_assert_eq(c.api->append(c.device, &a, &err), NBL_E_OVERLAP, "%s", err.message);
    cr_assert_not_null(strstr(err.message, "centers.rows[1] is 0"), "%s", err.message);
    cr_assert_eq(codes[0], 0x5A, "the centre was written");
    a.centers.rows = NULL;
    ok(c.api->append(c.device, &a, &err), &err);
    corner_close(&c);
}
