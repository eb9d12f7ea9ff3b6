/* SPDX-License-Identifier: Apache-2.0 */
#include "lab.h"

#include <stdlib.h>
#include <string.h>

#define Q_HEADS (2u * LAB_HEADS)
#define ROWS_MOST 16u

static void noise(float *out, size_t count, uint32_t seed)
{
    seed = seed * 2654435761u + 12345u;
    for (size_t i = 0; i < count; ++i) {
        seed = seed * 1664525u + 1013904223u;
        out[i] = (float)(int32_t)seed * 0x1p-30f;
    }
}

nbl_cache_config lab_config(void)
{
    nbl_cache_config c = NBL_INIT(nbl_cache_config);
    c.shape.layers = LAB_LAYERS;
    c.shape.kv_heads = LAB_HEADS;
    c.shape.k_dim = c.shape.v_dim = LAB_DIM;
    c.shape.page_tokens = 16;
    c.shape.k_hadamard = 32;
    c.shape.centering = NBL_CENTERING_ALL;
    c.k_format = NBL_INT4P;
    c.v_format = NBL_INT8;
    c.sink_tokens = 32;
    c.sequences_max = 8;
    c.tokens_max = 4096;
    c.workspace_mib = 8;
    return c;
}

void lab_pair(nbl_cache_config *config, uint32_t i)
{
    const uint32_t formats = NBL_NVFP4 - NBL_INT8 + 1u;
    config->k_format = NBL_INT8 + i % formats;
    config->v_format = NBL_INT8 + (i + i / formats) % formats;
    if (config->k_format == NBL_FORMAT_FP16 || config->v_format == NBL_FORMAT_FP16)
        config->sink_tokens = 0;
}

nbl_cache_config lab_tier_config(const char *folder)
{
    nbl_cache_config c = lab_config();
    nbl_cache_stats plan = NBL_INIT(nbl_cache_stats);
    const nbl_api_v1 *api = NULL;
    c.flags = NBL_CACHE_PREFIX;
    c.sink_tokens = 0;
    c.center_tokens = 32;
    c.sequences_max = 2;
    c.tokens_max = 2 * LAB_TIER_PROMPT;
    cr_assert_eq(nbl_get_api(NULL, &api, NULL), NBL_OK, "no table");
    cr_assert_eq(api->cache_plan(&c, &plan, NULL), NBL_OK, "plan");
    const uint64_t page_bytes = (plan.code_bytes + plan.scale_bytes) / plan.pages_total[0];
    c.host_bytes = LAB_TIER_HOST_PAGES * page_bytes;
    c.file_bytes = LAB_TIER_FILE_PAGES * page_bytes;
    c.file_folder = folder;
    return c;
}

void lab_open(lab *l, nbl_cache_config config)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_load_options load = NBL_INIT(nbl_load_options);
    nbl_device_options options = NBL_INIT(nbl_device_options);
    *l = (lab){.config = config};
    const char *backend = getenv("NIBBLE_BACKEND");
    load.backend = "sim";
    options.threads = backend == NULL || strcmp(backend, "sim") == 0; /* other backends have no team */
    LAB_OK(nbl_get_api(NULL, &l->api, &err));
    LAB_OK(l->api->load(&load, &l->runtime, NULL, &err));
    LAB_OK(l->api->open(l->runtime, &options, &l->device, &err));
    LAB_OK(l->api->cache_create(l->device, &config, &l->cache, &err));
    nbl_caps caps = NBL_INIT(nbl_caps);
    LAB_OK(l->api->caps(l->device, &caps, &err));
    l->stream.kind = caps.stream_kind;
    l->stream.handle = caps.stream_kind == NBL_STREAM_CUDA ? NBL_STREAM_CUDA_LEGACY : NULL;
    for (uint32_t i = 0; i < 4; ++i)
        LAB_OK(l->api->memory_alloc(l->device, LAB_TOKENS * LAB_HEADS * LAB_DIM * sizeof(float), &l->memory[i], &err));
}

/* Copies between the host and memory[i]. */
static void device_move(lab *l, uint32_t i, void *host, uint64_t bytes, uint32_t kind)
{
    nbl_error err = NBL_INIT(nbl_error);
    const bool up = kind == NBL_COPY_TO_DEVICE;
    cr_assert_leq(bytes, LAB_TOKENS * LAB_HEADS * LAB_DIM * sizeof(float), "the lab is too small");
    LAB_OK(l->api->memory_copy(l->device, up ? l->memory[i] : host, up ? host : l->memory[i], bytes, kind,
                               (nbl_stream){.kind = NBL_STREAM_HOST}, &err));
}

void lab_close(lab *l)
{
    nbl_error err = NBL_INIT(nbl_error);
    LAB_OK(l->api->cache_verify(l->cache, &err));
    for (uint32_t i = 0; i < 4; ++i)
        LAB_OK(l->api->memory_free(l->device, l->memory[i], &err));
    LAB_OK(l->api->cache_destroy(l->cache, &err));
    LAB_OK(l->api->close(l->device, &err));
    LAB_OK(l->api->runtime_destroy(l->runtime, &err));
}

uint64_t lab_seq(lab *l)
{
    nbl_error err = NBL_INIT(nbl_error);
    uint64_t sequence = 0;
    LAB_OK(l->api->seq_create(l->cache, &sequence, &err));
    return sequence;
}

static nbl_tensor tensor(void *data, uint64_t rows, uint64_t heads, uint64_t dim)
{
    return (nbl_tensor){.data = data, .dtype = NBL_F32, .rank = dim > 0 ? 3 : 2, .shape = {rows, heads, dim}};
}

void lab_append(lab *l, uint64_t sequence, const uint32_t *tokens, uint32_t count)
{
    static float k[LAB_TOKENS][LAB_HEADS][LAB_DIM], v[LAB_TOKENS][LAB_HEADS][LAB_DIM];
    const int32_t indptr[2] = {0, (int32_t)count};
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_append_args a = NBL_INIT(nbl_cache_append_args);
    cr_assert_leq(count, LAB_TOKENS, "the lab is too small");
    for (uint32_t layer = 0; layer < LAB_LAYERS; ++layer) {
        for (uint32_t t = 0; t < count; ++t) {
            noise(k[t][0], sizeof k[t] / sizeof(float), tokens[t] * 4u + layer * 2u);
            noise(v[t][0], sizeof v[t] / sizeof(float), tokens[t] * 4u + layer * 2u + 1u);
        }
        a.sequences = &sequence;
        a.seq_indptr = indptr;
        a.batch = 1;
        a.layer = layer;
        device_move(l, 0, k, count * sizeof k[0], NBL_COPY_TO_DEVICE);
        device_move(l, 1, v, count * sizeof v[0], NBL_COPY_TO_DEVICE);
        a.k = tensor(l->memory[0], count, LAB_HEADS, LAB_DIM);
        a.v = tensor(l->memory[1], count, LAB_HEADS, LAB_DIM);
        a.stream = l->stream;
        LAB_OK(l->api->cache_append(l->cache, &a, &err));
    }
}

uint64_t lab_filled(lab *l, const uint32_t *tokens, uint32_t count, uint32_t first)
{
    const uint64_t sequence = lab_seq(l);
    const uint32_t cut = first != 0 && first < count ? first : count;
    lab_append(l, sequence, tokens, cut);
    if (cut < count)
        lab_append(l, sequence, tokens + cut, count - cut);
    return sequence;
}

uint64_t lab_published(lab *l, uint32_t prompt, uint32_t *out_tokens)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_prefix p = NBL_INIT(nbl_prefix);
    lab_count(out_tokens, LAB_TIER_PROMPT, 1000 * prompt);
    p.tokens = out_tokens;
    p.count = LAB_TIER_PROMPT;
    const uint64_t sequence = lab_filled(l, out_tokens, LAB_TIER_PROMPT, 0);
    LAB_OK(l->api->prefix_publish(l->cache, sequence, &p, NULL, &err));
    return sequence;
}

uint32_t lab_length(lab *l, uint64_t sequence)
{
    nbl_error err = NBL_INIT(nbl_error);
    uint32_t tokens = 0;
    LAB_OK(l->api->seq_length(l->cache, sequence, 0, &tokens, &err));
    return tokens;
}

nbl_status lab_attend(lab *l, uint64_t sequence, uint32_t rows, uint32_t window, float *out, nbl_error *err)
{
    static float q[ROWS_MOST][Q_HEADS][LAB_DIM];
    const int32_t indptr[2] = {0, (int32_t)rows};
    nbl_cache_attend_args a = NBL_INIT(nbl_cache_attend_args);
    cr_assert_leq(rows, ROWS_MOST, "the lab is too small");
    noise(q[0][0], sizeof q / sizeof(float), 77);
    memset(out, 0xA5, LAB_OUT_FLOATS(rows) * sizeof *out);
    device_move(l, 2, q, sizeof q, NBL_COPY_TO_DEVICE);
    for (uint32_t layer = 0; layer < LAB_LAYERS; ++layer) {
        const uint32_t o_floats = rows * Q_HEADS * LAB_DIM, floats = o_floats + rows * Q_HEADS;
        device_move(l, 3, out, floats * sizeof *out, NBL_COPY_TO_DEVICE);
        a.flags = NBL_ATTEND_CAUSAL | (window != UINT32_MAX ? NBL_ATTEND_WINDOW_LEFT : 0);
        a.window_left = window != UINT32_MAX ? window : 0;
        a.sequences = &sequence;
        a.q_indptr = indptr;
        a.batch = 1;
        a.layer = layer;
        a.q_heads = Q_HEADS;
        a.q = tensor(l->memory[2], rows, Q_HEADS, LAB_DIM);
        a.o = tensor(l->memory[3], rows, Q_HEADS, LAB_DIM);
        a.lse = tensor((float *)l->memory[3] + o_floats, rows, Q_HEADS, 0);
        a.stream = l->stream;
        const nbl_status status = l->api->cache_attend(l->cache, &a, err);
        if (status != NBL_OK)
            return status;
        cr_assert_eq(l->api->check(l->device, l->stream, err), NBL_OK, "%s", err->message);
        device_move(l, 3, out, floats * sizeof *out, NBL_COPY_TO_HOST);
        out += floats;
    }
    return NBL_OK;
}

bool lab_same(lab *a, uint64_t in_a, lab *b, uint64_t in_b)
{
    enum { ROWS = 3 };
    static float out_a[LAB_OUT_FLOATS(ROWS)], out_b[LAB_OUT_FLOATS(ROWS)];
    nbl_error err = NBL_INIT(nbl_error);
    LAB_OK(lab_attend(a, in_a, ROWS, UINT32_MAX, out_a, &err));
    LAB_OK(lab_attend(b, in_b, ROWS, UINT32_MAX, out_b, &err));
    return lab_length(a, in_a) == lab_length(b, in_b) && memcmp(out_a, out_b, sizeof out_a) == 0;
}

bool lab_equal_bytes(lab *a, uint64_t in_a, lab *b, uint64_t in_b)
{
    nbl_error err = NBL_INIT(nbl_error);
    uint64_t bytes_a = 0, bytes_b = 0;
    LAB_OK(a->api->snapshot_size(a->cache, in_a, &bytes_a, &err));
    LAB_OK(b->api->snapshot_size(b->cache, in_b, &bytes_b, &err));
    uint8_t *memory = malloc(bytes_a + bytes_b);
    cr_assert_not_null(memory, "no memory");
    LAB_OK(a->api->snapshot_write(a->cache, in_a, memory, bytes_a, &err));
    LAB_OK(b->api->snapshot_write(b->cache, in_b, memory + bytes_a, bytes_b, &err));
    const bool equal = bytes_a == bytes_b && memcmp(memory, memory + bytes_a, bytes_a) == 0;
    free(memory);
    return equal;
}

void lab_count(uint32_t *tokens, uint32_t count, uint32_t first)
{
    for (uint32_t i = 0; i < count; ++i)
        tokens[i] = first + i;
}

nbl_cache_stats lab_stats(lab *l)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_stats stats = NBL_INIT(nbl_cache_stats);
    LAB_OK(l->api->cache_stats(l->cache, &stats, &err));
    return stats;
}
