/* SPDX-License-Identifier: Apache-2.0 */
/* The cache with formats of the float core on the simulator: scales of heads, centred queries and codes of an engine
 * give the bytes that raw operations give for each sequence alone. */
#include <criterion/criterion.h>
#include <nibble/nibble.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS 3u
#define HEADS 2u
#define DIM 32u
#define Q_HEADS 4u
#define SEQUENCES 2u
#define TOKENS 70u
#define PAGE 16u
#define PAGES 8u
#define ROWS 2u
#define SNAPSHOT_BYTES (1u << 20)
#define EXPECT(call) cr_assert_eq(call, NBL_OK, "%s: %s", #call, err.message)
#define REFUSED(call, text)                                                                      \
    do {                                                                                         \
        cr_assert_eq(call, NBL_E_INVALID, "%s: %s", #call, err.message);                         \
        cr_assert(strstr(err.message, text) != NULL, "\"%s\" is not in: %s", text, err.message); \
    } while (0)

/* Inputs of all sequences; layer 1 of the cache has int8 where `mixed` is set, all else the pair of formats. */
typedef struct world {
    const nbl_api_v1 *api;
    nbl_runtime *runtime;
    nbl_device *device;
    nbl_cache_config config;
    nbl_policy_rule rule;
    uint32_t q_format;
    bool q_centred, coded;
    float k[SEQUENCES][TOKENS][HEADS][DIM], v[SEQUENCES][TOKENS][HEADS][DIM];
    uint8_t codes[2][SEQUENCES][TOKENS][HEADS][DIM], scales[2][SEQUENCES][TOKENS][HEADS][DIM / 16];
    float q[SEQUENCES][ROWS][Q_HEADS][DIM], q_centers[SEQUENCES][Q_HEADS][DIM];
    float k_scale[LAYERS][HEADS], v_scale[LAYERS][HEADS];
} world;

typedef struct result {
    float o[SEQUENCES][ROWS][Q_HEADS][DIM];
    float lse[SEQUENCES][ROWS][Q_HEADS];
} result;

static uint32_t noise_next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed;
}

static void noise(float *out, size_t count, uint32_t seed)
{
    for (size_t i = 0; i < count; ++i)
        out[i] = (float)(int32_t)noise_next(&seed) * 0x1p-30f;
}

static void bytes(uint8_t *out, size_t count, uint32_t seed)
{
    for (size_t i = 0; i < count; ++i)
        out[i] = (uint8_t)(noise_next(&seed) >> 24);
}

static void world_open(world *w, uint32_t k_format, uint32_t v_format, bool mixed)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_device_options options = NBL_INIT(nbl_device_options);
    memset(w, 0, sizeof *w);
    EXPECT(nbl_get_api(NULL, &w->api, &err));
    EXPECT(w->api->load(NULL, &w->runtime, NULL, &err));
    EXPECT(w->api->open(w->runtime, &options, &w->device, &err));
    w->config = (nbl_cache_config)NBL_INIT(nbl_cache_config);
    w->config.shape = (nbl_kv_shape)NBL_INIT(nbl_kv_shape);
    w->config.shape.layers = LAYERS;
    w->config.shape.kv_heads = HEADS;
    w->config.shape.k_dim = w->config.shape.v_dim = DIM;
    w->config.shape.page_tokens = PAGE;
    w->config.k_format = k_format;
    w->config.v_format = v_format;
    w->config.sequences_max = 4;
    w->config.tokens_max = 300;
    w->rule = (nbl_policy_rule){.layer_begin = 1, .layer_end = 2, .k_format = NBL_INT8, .v_format = NBL_INT8};
    w->config.rules = mixed ? &w->rule : NULL;
    w->config.rule_count = mixed ? 1 : 0;
    noise(&w->k[0][0][0][0], sizeof w->k / sizeof(float), 1);
    noise(&w->v[0][0][0][0], sizeof w->v / sizeof(float), 2);
    noise(&w->q[0][0][0][0], sizeof w->q / sizeof(float), 3);
    noise(&w->q_centers[0][0][0], sizeof w->q_centers / sizeof(float), 4);
    bytes(&w->codes[0][0][0][0][0], sizeof w->codes, 5);
    bytes(&w->scales[0][0][0][0][0], sizeof w->scales, 6);
    for (uint32_t i = 0; i < LAYERS * HEADS; ++i) {
        const bool is_one = mixed && i / HEADS == 1;
        w->k_scale[i / HEADS][i % HEADS] = is_one ? 1.0f : 0.25f + 0.3f * (float)i;
        w->v_scale[i / HEADS][i % HEADS] = is_one ? 1.0f : 3.0f - 0.4f * (float)i;
    }
}

static void world_close(world *w)
{
    nbl_error err = NBL_INIT(nbl_error);
    EXPECT(w->api->close(w->device, &err));
    EXPECT(w->api->runtime_destroy(w->runtime, &err));
}

static nbl_tensor tensor(void *data, uint32_t dtype, uint64_t rows, uint64_t heads, uint64_t dim)
{
    return (nbl_tensor){.data = data, .dtype = dtype, .rank = dim > 0 ? 3 : 2, .shape = {rows, heads, dim}};
}

/* Codes of a side, or their scales, absent where the format has none. */
static nbl_tensor code_tensor(world *w, uint32_t side, uint32_t s, uint64_t rows, bool scales)
{
    const uint32_t format = side == 0 ? w->config.k_format : w->config.v_format;
    const bool is_nvfp4 = format == NBL_NVFP4;
    const nbl_tensor none = {0};
    nbl_tensor t = tensor(w->codes[side][s], NBL_U8, rows, HEADS, is_nvfp4 ? DIM / 2 : DIM);
    t.stride_bytes[0] = HEADS * DIM; /* nvfp4 has half a row of them */
    t.stride_bytes[1] = DIM;
    t.stride_bytes[2] = 1;
    if (scales)
        return is_nvfp4 ? tensor(w->scales[side][s], NBL_U8, rows, HEADS, DIM / 16) : none;
    return t;
}

/* ------------------------------------------------------------------------------------------------ the cache */

static nbl_cache *cache_of(world *w)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache *cache = NULL;
    EXPECT(w->api->cache_create(w->device, &w->config, &cache, &err));
    return cache;
}

static nbl_status append_coded(world *w, nbl_cache *cache, const uint64_t *handles, uint32_t layer, nbl_error *err)
{
    static const int32_t indptr[SEQUENCES + 1] = {0, TOKENS, 2 * TOKENS};
    nbl_cache_append_coded_args a = NBL_INIT(nbl_cache_append_coded_args);
    a.sequences = handles;
    a.seq_indptr = indptr;
    a.batch = SEQUENCES;
    a.layer = layer;
    a.k_format = w->config.k_format;
    a.v_format = w->config.v_format;
    a.k = code_tensor(w, 0, 0, 2 * TOKENS, false);
    a.v = code_tensor(w, 1, 0, 2 * TOKENS, false);
    a.k_scales = code_tensor(w, 0, 0, 2 * TOKENS, true);
    a.v_scales = code_tensor(w, 1, 0, 2 * TOKENS, true);
    return w->api->cache_append_coded(cache, &a, err);
}

static void append_values(world *w, nbl_cache *cache, const uint64_t *handles, uint32_t layer)
{
    static const int32_t indptr[SEQUENCES + 1] = {0, TOKENS, 2 * TOKENS};
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_append_args a = NBL_INIT(nbl_cache_append_args);
    a.sequences = handles;
    a.seq_indptr = indptr;
    a.batch = SEQUENCES;
    a.layer = layer;
    a.k = tensor(w->k, NBL_F32, 2 * TOKENS, HEADS, DIM);
    a.v = tensor(w->v, NBL_F32, 2 * TOKENS, HEADS, DIM);
    EXPECT(w->api->cache_append(cache, &a, &err));
}

static void cache_fill(world *w, nbl_cache *cache, uint64_t *handles)
{
    nbl_error err = NBL_INIT(nbl_error);
    for (uint32_t s = 0; s < SEQUENCES; ++s)
        EXPECT(w->api->seq_create(cache, &handles[s], &err));
    for (uint32_t layer = 0; layer < LAYERS; ++layer) {
        if (w->coded)
            EXPECT(append_coded(w, cache, handles, layer, &err));
        else
            append_values(w, cache, handles, layer);
    }
}

static void cache_attend(world *w, nbl_cache *cache, const uint64_t *handles, uint32_t layer, result *out)
{
    static const int32_t indptr[SEQUENCES + 1] = {0, ROWS, 2 * ROWS};
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_attend_args a = NBL_INIT(nbl_cache_attend_args);
    memset(out, 0xA5, sizeof *out);
    a.flags = NBL_ATTEND_CAUSAL;
    a.sequences = handles;
    a.q_indptr = indptr;
    a.batch = SEQUENCES;
    a.layer = layer;
    a.q_heads = Q_HEADS;
    a.q_format = w->q_format;
    a.q = tensor(w->q, NBL_F32, 2 * ROWS, Q_HEADS, DIM);
    a.o = tensor(out->o, NBL_F32, 2 * ROWS, Q_HEADS, DIM);
    a.lse = tensor(out->lse, NBL_F32, 2 * ROWS, Q_HEADS, 0);
    if (w->q_centred)
        a.q_centers = tensor(w->q_centers, NBL_F32, SEQUENCES, Q_HEADS, DIM);
    EXPECT(w->api->cache_attend(cache, &a, &err));
}

/* ------------------------------------------------------------------------------------------------ raw operations */

/* One sequence outside a cache, its pages in order. */
typedef struct raw {
    nbl_pool pool;
    nbl_region region;
    nbl_centers centers;
    int8_t center_codes[HEADS * DIM];
    uint8_t center_exponents[HEADS];
    int64_t slots[TOKENS];
    void *workspace;
} raw;

static void raw_open(world *w, raw *r)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_page_layout layout = NBL_INIT(nbl_page_layout);
    r->region = (nbl_region){.k_format = w->config.k_format, .v_format = w->config.v_format, .page_count = PAGES};
    EXPECT(w->api->kv_layout(&w->config.shape, w->config.k_format, w->config.v_format, &layout, &err));
    r->region.code_page_stride = layout.code_page_bytes;
    r->region.scale_page_stride = layout.scale_page_bytes;
    r->region.code_layer_stride = PAGES * layout.code_page_bytes;
    r->region.scale_layer_stride = PAGES * layout.scale_page_bytes;
    EXPECT(w->api->memory_alloc(w->device, LAYERS * r->region.code_layer_stride, &r->region.codes, &err));
    EXPECT(w->api->memory_alloc(w->device, LAYERS * r->region.scale_layer_stride + 1, &r->region.scales, &err));
    EXPECT(w->api->memory_alloc(w->device, 1u << 22, &r->workspace, &err));
    r->pool = (nbl_pool)NBL_INIT(nbl_pool);
    r->pool.shape = &w->config.shape;
    r->pool.regions = &r->region;
    r->pool.region_count = 1;
    r->pool.k_scale = w->config.k_scale;
    r->pool.v_scale = w->config.v_scale;
    r->centers = (nbl_centers){.codes = r->center_codes, .exponents = r->center_exponents, .row_count = 1};
    for (uint32_t t = 0; t < TOKENS; ++t)
        r->slots[t] = t;
}

static void raw_close(world *w, raw *r)
{
    nbl_error err = NBL_INIT(nbl_error);
    EXPECT(w->api->memory_free(w->device, r->region.codes, &err));
    EXPECT(w->api->memory_free(w->device, r->region.scales, &err));
    EXPECT(w->api->memory_free(w->device, r->workspace, &err));
}

static void raw_append_coded(world *w, raw *r, uint32_t s, uint32_t layer)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_append_coded_args a = NBL_INIT(nbl_append_coded_args);
    a.pool = &r->pool;
    a.layer = layer;
    a.k_format = w->config.k_format;
    a.v_format = w->config.v_format;
    a.k = code_tensor(w, 0, s, TOKENS, false);
    a.v = code_tensor(w, 1, s, TOKENS, false);
    a.k_scales = code_tensor(w, 0, s, TOKENS, true);
    a.v_scales = code_tensor(w, 1, s, TOKENS, true);
    a.slots = r->slots;
    EXPECT(w->api->append_coded(w->device, &a, &err));
}

static void raw_append(world *w, raw *r, uint32_t s, uint32_t layer)
{
    static const int32_t indptr[2] = {0, TOKENS};
    nbl_error err = NBL_INIT(nbl_error);
    nbl_append_args a = NBL_INIT(nbl_append_args);
    a.pool = &r->pool;
    a.layer = layer;
    a.batch = 1;
    a.k = tensor(w->k[s], NBL_F32, TOKENS, HEADS, DIM);
    a.v = tensor(w->v[s], NBL_F32, TOKENS, HEADS, DIM);
    a.slots = r->slots;
    a.seq_indptr = indptr;
    a.centers = r->centers;
    a.center_mode = NBL_CENTER_COMPUTE;
    a.workspace = r->workspace;
    a.workspace_bytes = 1u << 22;
    EXPECT(w->api->append(w->device, &a, &err));
}

static void raw_attend(world *w, raw *r, uint32_t s, uint32_t layer, result *out)
{
    static const int32_t indptr[2] = {0, ROWS}, kv_len = TOKENS, table[PAGES] = {0, 1, 2, 3, 4, 5, 6, 7};
    nbl_error err = NBL_INIT(nbl_error);
    nbl_attend_args a = NBL_INIT(nbl_attend_args);
    a.flags = NBL_ATTEND_CAUSAL;
    a.pool = &r->pool;
    a.layer = layer;
    a.q_heads = Q_HEADS;
    a.q_format = w->q_format;
    a.batch = 1;
    a.q = tensor(w->q[s], NBL_F32, ROWS, Q_HEADS, DIM);
    a.o = tensor(out->o[s], NBL_F32, ROWS, Q_HEADS, DIM);
    a.lse = tensor(out->lse[s], NBL_F32, ROWS, Q_HEADS, 0);
    a.q_indptr = indptr;
    a.kv_len = &kv_len;
    a.page_table = table;
    a.page_table_stride = PAGES;
    a.q_len_max = ROWS;
    a.kv_len_max = TOKENS;
    a.centers = r->centers;
    a.workspace = r->workspace;
    a.workspace_bytes = 1u << 22;
    if (w->q_centred)
        a.q_centers = tensor(w->q_centers[s], NBL_F32, 1, Q_HEADS, DIM);
    EXPECT(w->api->attend(w->device, &a, &err));
}

/* Both ways in one layer, without a differing byte. */
static void compare_layer(world *w, nbl_cache *cache, const uint64_t *handles, uint32_t layer, const char *what)
{
    static result batch, alone;
    cache_attend(w, cache, handles, layer, &batch);
    for (uint32_t s = 0; s < SEQUENCES; ++s) {
        raw r;
        raw_open(w, &r);
        if (w->coded)
            raw_append_coded(w, &r, s, layer);
        else
            raw_append(w, &r, s, layer);
        raw_attend(w, &r, s, layer, &alone);
        raw_close(w, &r);
    }
    cr_assert_eq(memcmp(&batch, &alone, sizeof batch), 0, "%s, layer %u: bytes differ", what, layer);
}

/* ------------------------------------------------------------------------------------------------ tests */

Test(cache_float, head_scales_equal_raw_pools)
{
    static const uint32_t pairs[][2] = {{NBL_FP8_E4M3, NBL_FP8_E4M3}, {NBL_NVFP4, NBL_NVFP4}};
    static world w;
    nbl_error err = NBL_INIT(nbl_error);
    for (uint32_t i = 0; i < 8; ++i) {
        uint64_t handles[SEQUENCES];
        world_open(&w, pairs[i % 2][0], pairs[i % 2][1], i / 2 % 2 != 0);
        w.config.k_scale = &w.k_scale[0][0];
        w.config.v_scale = i / 4 != 0 ? &w.v_scale[0][0] : NULL;
        nbl_cache *cache = cache_of(&w);
        cache_fill(&w, cache, handles);
        for (uint32_t layer = 0; layer < LAYERS; layer += 2)
            compare_layer(&w, cache, handles, layer, "head scales");
        EXPECT(w.api->cache_destroy(cache, &err));
        world_close(&w);
    }
}

Test(cache_float, codes_equal_raw_pools)
{
    static const uint32_t pairs[][2] = {
        {NBL_FP8_E4M3, NBL_FP8_E4M3}, {NBL_NVFP4, NBL_FP8_E4M3}, {NBL_NVFP4, NBL_NVFP4}};
    static world w;
    nbl_error err = NBL_INIT(nbl_error);
    for (uint32_t i = 0; i < 3; ++i) {
        uint64_t handles[SEQUENCES];
        world_open(&w, pairs[i][0], pairs[i][1], false);
        w.coded = true;
        w.config.k_scale = &w.k_scale[0][0];
        w.config.v_scale = &w.v_scale[0][0];
        nbl_cache *cache = cache_of(&w);
        cache_fill(&w, cache, handles);
        for (uint32_t layer = 0; layer < LAYERS; ++layer)
            compare_layer(&w, cache, handles, layer, "codes");
        EXPECT(w.api->cache_destroy(cache, &err));
        world_close(&w);
    }
}

Test(cache_float, centred_queries_equal_raw_calls)
{
    static world w;
    nbl_error err = NBL_INIT(nbl_error);
    for (uint32_t i = 0; i < 2; ++i) {
        uint64_t handles[SEQUENCES];
        world_open(&w, NBL_NVFP4, NBL_FP8_E4M3, false);
        w.q_format = NBL_Q_FP4;
        w.q_centred = true;
        w.config.shape.centering = i == 0 ? 0 : NBL_CENTERING_MEAN;
        nbl_cache *cache = cache_of(&w);
        cache_fill(&w, cache, handles);
        compare_layer(&w, cache, handles, 2, "centred queries");
        EXPECT(w.api->cache_destroy(cache, &err));
        world_close(&w);
    }
}

/* A snapshot says what its codes are multiples of. */
Test(cache_float, snapshots_carry_head_scales)
{
    static world w;
    static uint8_t snapshot[SNAPSHOT_BYTES];
    static result before, after;
    nbl_error err = NBL_INIT(nbl_error);
    uint64_t handles[SEQUENCES], loaded[SEQUENCES], size = 0;
    world_open(&w, NBL_FP8_E4M3, NBL_NVFP4, false);
    w.config.k_scale = &w.k_scale[0][0];
    nbl_cache *cache = cache_of(&w), *same = cache_of(&w);
    w.config.v_scale = &w.v_scale[0][0];
    nbl_cache *other = cache_of(&w);
    w.config.k_scale = w.config.v_scale = NULL;
    nbl_cache *plain = cache_of(&w);
    cache_fill(&w, cache, handles);
    for (uint32_t s = 0; s < SEQUENCES; ++s) {
        EXPECT(w.api->snapshot_size(cache, handles[s], &size, &err));
        EXPECT(w.api->snapshot_write(cache, handles[s], snapshot, sizeof snapshot, &err));
        EXPECT(w.api->snapshot_read(same, snapshot, size, &loaded[s], &err));
    }
    cache_attend(&w, cache, handles, 1, &before);
    cache_attend(&w, same, loaded, 1, &after);
    cr_assert_eq(memcmp(&before, &after, sizeof before), 0, "bytes differ");
    REFUSED(w.api->snapshot_read(other, snapshot, size, &loaded[0], &err), "snapshot has v_scale 1 in layer 0, head 0");
    REFUSED(w.api->snapshot_read(plain, snapshot, size, &loaded[0], &err), "snapshot has its scales of heads");
    cache_fill(&w, plain, handles);
    EXPECT(w.api->snapshot_size(plain, handles[0], &size, &err));
    EXPECT(w.api->snapshot_write(plain, handles[0], snapshot, sizeof snapshot, &err));
    REFUSED(w.api->snapshot_read(same, snapshot, size, &loaded[0], &err), "snapshot has no scales of heads");
    nbl_cache *const all[] = {cache, same, other, plain};
    for (uint32_t i = 0; i < 4; ++i)
        EXPECT(w.api->cache_destroy(all[i], &err));
    world_close(&w);
}

Test(cache_float, head_scales_refused)
{
    static const float bad[] = {0.0f, -1.0f, 0x1p-31f, 0x1p31f};
    static world w;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache *cache = NULL;
    world_open(&w, NBL_FP8_E4M3, NBL_FP8_E4M3, true);
    w.config.k_scale = &w.k_scale[0][0];
    for (uint32_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        w.k_scale[2][1] = bad[i];
        REFUSED(w.api->cache_create(w.device, &w.config, &cache, &err), "k_scale of layer 2, head 1 is");
    }
    w.k_scale[2][1] = 1.0f;
    w.k_scale[1][0] = 2.0f;
    REFUSED(w.api->cache_create(w.device, &w.config, &cache, &err),
            "k_scale of layer 1, head 0 is 2 (allowed: 1, in a layer without a float format)");
    world_close(&w);
}

Test(cache_float, codes_refused)
{
    static world w;
    nbl_error err = NBL_INIT(nbl_error);
    uint64_t handles[SEQUENCES];
    uint32_t length = 7;
    world_open(&w, NBL_FP8_E4M3, NBL_FP8_E4M3, false);
    w.config.sink_tokens = 16;
    nbl_cache *cache = cache_of(&w);
    for (uint32_t s = 0; s < SEQUENCES; ++s)
        EXPECT(w.api->seq_create(cache, &handles[s], &err));
    REFUSED(append_coded(&w, cache, handles, 0, &err), "layer 0 has pages of 1 and 1");
    EXPECT(w.api->cache_destroy(cache, &err));
    w.config.sink_tokens = 0;
    cache = cache_of(&w);
    for (uint32_t s = 0; s < SEQUENCES; ++s)
        EXPECT(w.api->seq_create(cache, &handles[s], &err));
    w.config.v_format = NBL_NVFP4;
    REFUSED(append_coded(&w, cache, handles, 0, &err), "k_format is 7 and v_format 8, layer 0 has pages of 7 and 7");
    w.config.v_format = NBL_FP8_E4M3;
    EXPECT(append_coded(&w, cache, handles, 0, &err));
    EXPECT(w.api->seq_length(cache, handles[1], 0, &length, &err));
    cr_assert_eq(length, TOKENS, "length %u", length);
    EXPECT(w.api->cache_destroy(cache, &err));
    world_close(&w);
}
