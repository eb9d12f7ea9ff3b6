/* SPDX-License-Identifier: Apache-2.0 */
/* What the cache manager itself costs: operations per second on one core, on a backend that computes nothing.
 * 32 layers, 8 kv heads of 128, pages of 64 tokens, kv4. Prints the median of 7 runs. */
#include <nibble/nibble.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LAYERS = 32, HEADS = 8, DIM = 128, PAGE = 64, SEQUENCES = 256, TOKENS = 4096, RUNS = 7 };

static const nbl_api_v1 *api;
static nbl_cache *cache;
static uint64_t handles[SEQUENCES];
static int32_t indptr[SEQUENCES + 1];
/* Never read. */
static _Alignas(256) uint8_t k_memory[SEQUENCES * HEADS * DIM * 2], v_memory[SEQUENCES * HEADS * DIM * 2];

static void must(nbl_status status, const nbl_error *err)
{
    if (status == NBL_OK)
        return;
    fprintf(stderr, "bench_cache: %s\n", err->message);
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); /* of this core, whatever else runs */
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void open_cache(uint32_t centering)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_load_options load = NBL_INIT(nbl_load_options);
    nbl_cache_config c = NBL_INIT(nbl_cache_config);
    nbl_runtime *runtime;
    nbl_device *device;
    load.flags = NBL_LOAD_IGNORE_ENV;
    load.backend = "counting";
    load.backend_dir = COUNTING_DIR;
    c.shape.layers = LAYERS;
    c.shape.kv_heads = HEADS;
    c.shape.k_dim = c.shape.v_dim = DIM;
    c.shape.page_tokens = PAGE;
    c.shape.centering = centering;
    c.k_format = c.v_format = NBL_INT4P;
    c.sink_tokens = PAGE;
    c.flags = NBL_CACHE_PREFIX;
    c.sequences_max = SEQUENCES;
    c.tokens_max = 2 * TOKENS;
    c.workspace_mib = 1;
    must(api->load(&load, &runtime, NULL, &err), &err);
    must(api->open(runtime, NULL, &device, &err), &err);
    must(api->cache_create(device, &c, &cache, &err), &err);
}

static nbl_tensor view(void *data, uint64_t tokens)
{
    return (nbl_tensor){.data = data, .dtype = NBL_F16, .rank = 3, .shape = {tokens, HEADS, DIM}};
}

static void append(uint32_t layer, uint32_t batch, uint32_t each)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_append_args a = NBL_INIT(nbl_cache_append_args);
    for (uint32_t b = 0; b <= batch; ++b)
        indptr[b] = (int32_t)(b * each);
    a.sequences = handles;
    a.seq_indptr = indptr;
    a.batch = batch;
    a.layer = layer;
    a.k = view(k_memory, (uint64_t)batch * each);
    a.v = view(v_memory, (uint64_t)batch * each);
    must(api->cache_append(cache, &a, &err), &err);
}

/* Appends of one token to each of `batch` sequences, layer after layer: appends per second. */
static double appends(uint32_t batch)
{
    nbl_error err = NBL_INIT(nbl_error);
    const uint32_t steps = TOKENS / batch < 16 ? TOKENS / batch : 16;
    double spent = 0;
    uint64_t count = 0;
    for (uint32_t b = 0; b < batch; ++b)
        must(api->seq_create(cache, &handles[b], &err), &err);
    while (spent < 0.1) {
        const double start = now();
        for (uint32_t step = 0; step < steps; ++step) {
            for (uint32_t layer = 0; layer < LAYERS; ++layer)
                append(layer, batch, 1);
        }
        spent += now() - start;
        count += (uint64_t)steps * LAYERS * batch;
        for (uint32_t b = 0; b < batch; ++b)
            must(api->seq_truncate(cache, handles[b], 0, &err), &err);
    }
    for (uint32_t b = 0; b < batch; ++b)
        must(api->seq_free(cache, handles[b], &err), &err);
    return (double)count / spent;
}

/* A sequence of `tokens` tokens is forked, the fork truncated by 5 and freed: such rounds per second. */
static double forks(uint32_t tokens)
{
    nbl_error err = NBL_INIT(nbl_error);
    uint64_t count = 0;
    must(api->seq_create(cache, &handles[0], &err), &err);
    for (uint32_t done = 0; done < tokens; done += 128) {
        for (uint32_t layer = 0; layer < LAYERS; ++layer)
            append(layer, 1, 128);
    }
    const double start = now();
    double spent = 0;
    while (spent < 0.1) {
        for (uint32_t i = 0; i < 100; ++i) {
            uint64_t child;
            must(api->seq_fork(cache, handles[0], UINT32_MAX, &child, &err), &err);
            must(api->seq_truncate(cache, child, tokens - 5, &err), &err);
            must(api->seq_free(cache, child, &err), &err);
        }
        count += 100;
        spent = now() - start;
    }
    must(api->seq_free(cache, handles[0], &err), &err);
    return (double)count / spent;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *name, double (*measure)(uint32_t), uint32_t size)
{
    double runs[RUNS];
    for (int i = 0; i < RUNS; ++i)
        runs[i] = measure(size);
    qsort(runs, RUNS, sizeof runs[0], by_value);
    printf("%-44s %6u  %12.0f per second\n", name, size, runs[RUNS / 2]);
}

int main(void)
{
    nbl_error err = NBL_INIT(nbl_error);
    must(nbl_get_api(NULL, &api, &err), &err);
    for (uint32_t centering = 0; centering <= NBL_CENTERING_ALL; centering += NBL_CENTERING_ALL) {
        printf("centering %u\n", centering);
        open_cache(centering);
        report("appends of one token, sequences in a call", appends, 1);
        report("appends of one token, sequences in a call", appends, 16);
        report("appends of one token, sequences in a call", appends, 256);
        report("fork, truncate, free; tokens", forks, 128);
        report("fork, truncate, free; tokens", forks, 1024);
        report("fork, truncate, free; tokens", forks, TOKENS);
        must(api->cache_destroy(cache, &err), &err);
    }
    return 0;
}
