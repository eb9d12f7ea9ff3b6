/* SPDX-License-Identifier: Apache-2.0 */
/* The cache on the simulator: a batch gives the bytes that each sequence gives alone through the raw operations. */
#include <criterion/criterion.h>
#include <nibble/nibble.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS 2u
#define HEADS 2u
#define DIM 32u
#define Q_HEADS 4u
#define SEQUENCES 3u
#define SINK_PAGES 2u
#define TOKENS_MOST 128u
#define WORKSPACE_BYTES (1u << 20)
#define EXPECT(call) cr_assert_eq(call, NBL_OK, "%s: %s", #call, err.message)

static const int32_t first_tokens[SEQUENCES] = {40, 5, 33}, more_tokens[SEQUENCES] = {21, 1, 0};
static const int32_t q_rows[SEQUENCES] = {3, 1, 2};

typedef struct world {
    const nbl_api_v1 *api;
    nbl_runtime *runtime;
    nbl_device *device;
    nbl_kv_shape shape;
    float k[SEQUENCES][TOKENS_MOST][HEADS][DIM], v[SEQUENCES][TOKENS_MOST][HEADS][DIM];
    float q[8][Q_HEADS][DIM];
} world;

/* What attend wrote for all rows. */
typedef struct result {
    float o[8][Q_HEADS][DIM];
    float lse[8][Q_HEADS];
} result;

static void noise(float *out, size_t count, uint32_t seed)
{
    for (size_t i = 0; i < count; ++i) {
        seed = seed * 1664525u + 1013904223u;
        out[i] = (float)(int32_t)seed * 0x1p-30f;
    }
}

static void world_open(world *w, uint32_t page_tokens, uint32_t centering)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_device_options options = NBL_INIT(nbl_device_options);
    EXPECT(nbl_get_api(NULL, &w->api, &err));
    EXPECT(w->api->load(NULL, &w->runtime, NULL, &err));
    EXPECT(w->api->open(w->runtime, &options, &w->device, &err));
    w->shape = (nbl_kv_shape)NBL_INIT(nbl_kv_shape);
    w->shape.layers = LAYERS;
    w->shape.kv_heads = HEADS;
    w->shape.k_dim = w->shape.v_dim = DIM;
    w->shape.page_tokens = page_tokens;
    w->shape.k_hadamard = 32;
    w->shape.centering = centering;
    noise(&w->k[0][0][0][0], sizeof w->k / sizeof(float), 1);
    noise(&w->v[0][0][0][0], sizeof w->v / sizeof(float), 2);
    noise(&w->q[0][0][0], sizeof w->q / sizeof(float), 3);
}

static nbl_tensor tensor(void *data, uint64_t rows, uint64_t heads, uint64_t dim)
{
    return (nbl_tensor){.data = data, .dtype = NBL_F32, .rank = dim > 0 ? 3 : 2, .shape = {rows, heads, dim}};
}

/* Appends tokens [begin[s], begin[s] + count[s]) of every sequence in one call. */
static void cache_append(world *w, nbl_cache *cache, uint32_t layer, const uint64_t *handles, const int32_t *begin,
                         const int32_t *count)
{
    static float k[SEQUENCES * TOKENS_MOST][HEADS][DIM], v[SEQUENCES * TOKENS_MOST][HEADS][DIM];
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_append_args a = NBL_INIT(nbl_cache_append_args);
    int32_t indptr[SEQUENCES + 1] = {0};
    for (uint32_t s = 0; s < SEQUENCES; ++s) {
        const int32_t from = begin != NULL ? begin[s] : 0;
        memcpy(k[indptr[s]], w->k[s][from], (size_t)count[s] * sizeof k[0]);
        memcpy(v[indptr[s]], w->v[s][from], (size_t)count[s] * sizeof v[0]);
        indptr[s + 1] = indptr[s] + count[s];
    }
    a.sequences = handles;
    a.seq_indptr = indptr;
    a.batch = SEQUENCES;
    a.layer = layer;
    a.k = tensor(k, (uint64_t)indptr[SEQUENCES], HEADS, DIM);
    a.v = tensor(v, (uint64_t)indptr[SEQUENCES], HEADS, DIM);
    EXPECT(w->api->cache_append(cache, &a, &err));
}

static void cache_run(world *w, uint32_t k_format, uint32_t v_format, result *out)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_config config = NBL_INIT(nbl_cache_config);
    nbl_cache *cache = NULL;
    uint64_t handles[SEQUENCES];
    config.shape = w->shape;
    config.k_format = k_format;
    config.v_format = v_format;
    config.sink_tokens = SINK_PAGES * w->shape.page_tokens;
    config.sequences_max = SEQUENCES;
    config.tokens_max = 200;
    EXPECT(w->api->cache_create(w->device, &config, &cache, &err));
    for (uint32_t s = 0; s < SEQUENCES; ++s)
        EXPECT(w->api->seq_create(cache, &handles[s], &err));
    for (uint32_t layer = LAYERS; layer-- > 0;) {
        cache_append(w, cache, layer, handles, NULL, first_tokens);
        cache_append(w, cache, layer, handles, first_tokens, more_tokens);
    }
    const int32_t indptr[SEQUENCES + 1] = {0, 3, 4, 6};
    nbl_cache_attend_args a = NBL_INIT(nbl_cache_attend_args);
    a.flags = NBL_ATTEND_CAUSAL;
    a.sequences = handles;
    a.q_indptr = indptr;
    a.batch = SEQUENCES;
    a.layer = 1;
    a.q_heads = Q_HEADS;
    a.q = tensor(w->q, 6, Q_HEADS, DIM);
    a.o = tensor(out->o, 6, Q_HEADS, DIM);
    a.lse = tensor(out->lse, 6, Q_HEADS, 0);
    EXPECT(w->api->cache_attend(cache, &a, &err));
    EXPECT(w->api->cache_destroy(cache, &err));
}

/* Memory of one sequence outside a cache: SINK_PAGES int8 pages, then pages of the pair, used in page order. */
typedef struct raw {
    nbl_pool pool;
    nbl_region regions[2];
    void *blocks[5]; /* codes and scales of both regions, workspace */
    int8_t center_codes[HEADS * DIM];
    uint8_t center_exponents[HEADS];
    nbl_centers centers;
} raw;

static void raw_open(world *w, raw *r, uint32_t k_format, uint32_t v_format)
{
    nbl_error err = NBL_INIT(nbl_error);
    const uint32_t pages = TOKENS_MOST / w->shape.page_tokens + 1;
    r->regions[0] = (nbl_region){.k_format = NBL_INT8, .v_format = NBL_INT8, .page_count = SINK_PAGES};
    r->regions[1] =
        (nbl_region){.k_format = k_format, .v_format = v_format, .first_page = SINK_PAGES, .page_count = pages};
    for (uint32_t i = 0; i < 2; ++i) {
        nbl_page_layout layout = NBL_INIT(nbl_page_layout);
        nbl_region *region = &r->regions[i];
        EXPECT(w->api->kv_layout(&w->shape, region->k_format, region->v_format, &layout, &err));
        region->code_page_stride = layout.code_page_bytes;
        region->scale_page_stride = layout.scale_page_bytes;
        region->code_layer_stride = region->page_count * layout.code_page_bytes;
        region->scale_layer_stride = region->page_count * layout.scale_page_bytes;
        EXPECT(w->api->memory_alloc(w->device, LAYERS * region->code_layer_stride, &region->codes, &err));
        EXPECT(w->api->memory_alloc(w->device, LAYERS * region->scale_layer_stride, &region->scales, &err));
        r->blocks[2 * i] = region->codes;
        r->blocks[2 * i + 1] = region->scales;
    }
    EXPECT(w->api->memory_alloc(w->device, WORKSPACE_BYTES, &r->blocks[4], &err));
    r->pool = (nbl_pool)NBL_INIT(nbl_pool);
    r->pool.shape = &w->shape;
    r->pool.regions = r->regions;
    r->pool.region_count = 2;
    r->centers = (nbl_centers){.codes = r->center_codes, .exponents = r->center_exponents, .row_count = 1};
}

static void raw_append(world *w, raw *r, uint32_t s, int32_t from, int32_t count, uint32_t center_mode)
{
    nbl_error err = NBL_INIT(nbl_error);
    const int32_t indptr[2] = {0, count};
    int64_t slots[TOKENS_MOST];
    nbl_append_args a = NBL_INIT(nbl_append_args);
    for (int32_t t = 0; t < count; ++t)
        slots[t] = from + t;
    a.pool = &r->pool;
    a.layer = 1;
    a.batch = 1;
    a.k = tensor(w->k[s][from], (uint64_t)count, HEADS, DIM);
    a.v = tensor(w->v[s][from], (uint64_t)count, HEADS, DIM);
    a.slots = slots;
    a.seq_indptr = indptr;
    a.centers = r->centers;
    a.center_mode = center_mode;
    a.workspace = r->blocks[4];
    a.workspace_bytes = WORKSPACE_BYTES;
    EXPECT(w->api->append(w->device, &a, &err));
}

static void raw_attend(world *w, raw *r, uint32_t s, uint32_t row, result *out)
{
    nbl_error err = NBL_INIT(nbl_error);
    const int32_t indptr[2] = {0, q_rows[s]}, kv_len = first_tokens[s] + more_tokens[s];
    const uint64_t rows = (uint64_t)q_rows[s];
    int32_t table[TOKENS_MOST + 1];
    nbl_attend_args a = NBL_INIT(nbl_attend_args);
    for (int32_t p = 0; p <= (int32_t)TOKENS_MOST; ++p)
        table[p] = p;
    a.flags = NBL_ATTEND_CAUSAL;
    a.pool = &r->pool;
    a.layer = 1;
    a.q_heads = Q_HEADS;
    a.batch = 1;
    a.q = tensor(w->q[row], rows, Q_HEADS, DIM);
    a.o = tensor(out->o[row], rows, Q_HEADS, DIM);
    a.lse = tensor(out->lse[row], rows, Q_HEADS, 0);
    a.q_indptr = indptr;
    a.kv_len = &kv_len;
    a.page_table = table;
    a.page_table_stride = TOKENS_MOST + 1;
    a.q_len_max = (uint32_t)rows;
    a.kv_len_max = (uint32_t)kv_len;
    a.centers = r->centers;
    a.workspace = r->blocks[4];
    a.workspace_bytes = WORKSPACE_BYTES;
    EXPECT(w->api->attend(w->device, &a, &err));
}

/* One sequence through append and attend. */
static void raw_run(world *w, uint32_t s, uint32_t row, uint32_t k_format, uint32_t v_format, result *out)
{
    nbl_error err = NBL_INIT(nbl_error);
    raw r = {.blocks = {NULL}};
    raw_open(w, &r, k_format, v_format);
    raw_append(w, &r, s, 0, first_tokens[s], NBL_CENTER_COMPUTE);
    raw_append(w, &r, s, first_tokens[s], more_tokens[s], NBL_CENTER_USE);
    raw_attend(w, &r, s, row, out);
    for (uint32_t i = 0; i < 5; ++i)
        EXPECT(w->api->memory_free(w->device, r.blocks[i], &err));
}

Test(cache_bits, batch_equals_each_alone)
{
    enum { PAIRS = 5, PAGES = 3 };
    static const uint32_t pairs[PAIRS][2] = {{NBL_INT4P, NBL_INT8},
                                             {NBL_MXFP4, NBL_MXFP4_16},
                                             {NBL_INT4P, NBL_INT4P},
                                             {NBL_NVFP4, NBL_FP8_E4M3},
                                             {NBL_FORMAT_BF16, NBL_INT4P}};
    static const uint32_t page_sizes[PAGES] = {1, 7, 16};
    static world w;
    nbl_error err = NBL_INIT(nbl_error);
    for (uint32_t i = 0; i < 2 * PAIRS * PAGES; ++i) {
        const uint32_t *pair = pairs[i / PAGES % PAIRS];
        static result batch, alone;
        memset(&batch, 0xA5, sizeof batch);
        memset(&alone, 0xA5, sizeof alone);
        world_open(&w, page_sizes[i % PAGES], i / (PAIRS * PAGES));
        cache_run(&w, pair[0], pair[1], &batch);
        for (uint32_t s = 0, row = 0; s < SEQUENCES; row += (uint32_t)q_rows[s++])
            raw_run(&w, s, row, pair[0], pair[1], &alone);
        cr_assert_eq(memcmp(&batch, &alone, sizeof batch), 0, "case %u: bytes differ", i);
        cr_assert(memcmp(batch.o[0], batch.o[1], sizeof batch.o[0]) != 0, "case %u: rows are all the same", i);
        EXPECT(w.api->close(w.device, &err));
        EXPECT(w.api->runtime_destroy(w.runtime, &err));
    }
}
