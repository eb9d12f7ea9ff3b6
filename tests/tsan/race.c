/* SPDX-License-Identifier: Apache-2.0 */
/** @file race.c
 *  @brief Threads that race for the first load, then each use a device and a cache of their own; a plain program, for
 *  sanitizers. All must get the same bytes, and everything must be freed.
 */
#include <nibble/nibble.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { THREADS = 8, ROUNDS = 4, TOKENS = 1100, Q_TOKENS = 3, HEADS = 4, KV_HEADS = 2, DIM = 64, PAGE = 16 };

/* Inputs are shared and only read. */
static float k[TOKENS][KV_HEADS][DIM], v[TOKENS][KV_HEADS][DIM], q[Q_TOKENS][HEADS][DIM];
static float outputs[THREADS][Q_TOKENS][HEADS][DIM];
static pthread_barrier_t start;
static atomic_int failures;

/* True, and says why, if a call failed. */
static int failed(const char *what, nbl_status status, const nbl_error *err)
{
    if (status == NBL_OK)
        return 0;
    fprintf(stderr, "race: %s: %s\n", what, err->message);
    atomic_fetch_add(&failures, 1);
    return 1;
}

static nbl_tensor tensor(void *data, uint64_t tokens, uint64_t heads)
{
    return (nbl_tensor){.data = data, .dtype = NBL_F32, .rank = 3, .shape = {tokens, heads, DIM}};
}

static nbl_cache_config config_of(const nbl_recipe *recipe)
{
    nbl_cache_config config = NBL_INIT(nbl_cache_config);
    config.shape.struct_size = (uint32_t)sizeof config.shape;
    config.shape.layers = 1;
    config.shape.kv_heads = KV_HEADS;
    config.shape.k_dim = config.shape.v_dim = DIM;
    config.shape.page_tokens = PAGE;
    config.shape.k_hadamard = recipe->k_hadamard;
    config.shape.v_hadamard = recipe->v_hadamard;
    config.shape.centering = recipe->centering;
    config.k_format = recipe->k_format;
    config.v_format = recipe->v_format;
    config.sink_tokens = recipe->sink_tokens;
    config.sequences_max = 1;
    config.tokens_max = TOKENS;
    return config;
}

/* Appends all tokens and attends the last Q_TOKENS of them. */
static int run_cache(const nbl_api_v1 *api, nbl_cache *cache, float *out, nbl_error *err)
{
    uint64_t sequence;
    const int32_t kv_cut[] = {0, TOKENS}, q_cut[] = {0, Q_TOKENS};
    nbl_cache_append_args append = NBL_INIT(nbl_cache_append_args);
    nbl_cache_attend_args attend = NBL_INIT(nbl_cache_attend_args);
    append.sequences = attend.sequences = &sequence;
    append.batch = attend.batch = 1;
    append.seq_indptr = kv_cut;
    append.k = tensor(k, TOKENS, KV_HEADS);
    append.v = tensor(v, TOKENS, KV_HEADS);
    attend.flags = NBL_ATTEND_CAUSAL;
    attend.q_indptr = q_cut;
    attend.q_heads = HEADS;
    attend.q = tensor(q, Q_TOKENS, HEADS);
    attend.o = tensor(out, Q_TOKENS, HEADS);
    return failed("seq_create", api->seq_create(cache, &sequence, err), err) ||
           failed("cache_append", api->cache_append(cache, &append, err), err) ||
           failed("cache_attend", api->cache_attend(cache, &attend, err), err) ||
           failed("seq_free", api->seq_free(cache, sequence, err), err);
}

/* One life of a runtime, a device and a cache. */
static int run_once(const nbl_api_v1 *api, float *out)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_recipe recipe = NBL_INIT(nbl_recipe);
    nbl_runtime *runtime = NULL;
    nbl_report *report = NULL;
    nbl_device *device = NULL;
    nbl_cache *cache = NULL;
    int bad = failed("load", api->load(NULL, &runtime, &report, &err), &err) ||
              failed("open", api->open(runtime, NULL, &device, &err), &err) ||
              failed("recipe_parse", api->recipe_parse("kv4", DIM, DIM, &recipe, &err), &err);
    if (!bad) {
        const nbl_cache_config config = config_of(&recipe);
        bad = failed("cache_create", api->cache_create(device, &config, &cache, &err), &err) ||
              run_cache(api, cache, out, &err);
    }
    bad |= failed("cache_destroy", api->cache_destroy(cache, &err), &err);
    bad |= failed("close", api->close(device, &err), &err);
    bad |= failed("runtime_destroy", api->runtime_destroy(runtime, &err), &err);
    api->report_free(report);
    return bad;
}

static void *work(void *argument)
{
    float *out = argument;
    nbl_error err = NBL_INIT(nbl_error);
    const nbl_api_v1 *api;
    pthread_barrier_wait(&start);
    if (failed("nbl_get_api", nbl_get_api(NULL, &api, &err), &err))
        return NULL;
    for (int round = 0; round < ROUNDS; round++)
        if (run_once(api, out))
            break;
    return NULL;
}

/* Numbers without a pattern that a wrong row could share. */
static void fill(float *values, size_t count, uint32_t seed)
{
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
}

int main(void)
{
    pthread_t threads[THREADS];
    fill(&k[0][0][0], sizeof k / sizeof(float), 1);
    fill(&v[0][0][0], sizeof v / sizeof(float), 2);
    fill(&q[0][0][0], sizeof q / sizeof(float), 3);
    pthread_barrier_init(&start, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, outputs[i]) != 0)
            return 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&start);
    for (int i = 1; i < THREADS; i++)
        if (memcmp(outputs[i], outputs[0], sizeof outputs[0]) != 0) {
            fprintf(stderr, "race: thread %d got other bytes than thread 0\n", i);
            return 1;
        }
    return atomic_load(&failures) != 0 || outputs[0][0][0][0] == 0.0f;
}
