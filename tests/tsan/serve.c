/* SPDX-License-Identifier: Apache-2.0 */
/** @file serve.c
 *  @brief Threads that share one locked cache with a prefix index: each appends, forks, adopts, attends and frees; a
 *  plain program, for sanitizers. Equal prompts must give equal bytes whatever the others do, and nothing may stay.
 */
#include <nibble/nibble.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { THREADS = 6, ROUNDS = 60, PROMPTS = 3, PROMPT = 40, MORE = 12, HEADS = 2, DIM = 32, PAGE = 8 };

/* One token's K and V, by token id; only read. */
static float k[PROMPTS][PROMPT + MORE][HEADS][DIM], v[PROMPTS][PROMPT + MORE][HEADS][DIM], q[1][HEADS][DIM];
static float expected[PROMPTS][HEADS][DIM];
static const nbl_api_v1 *api;
static nbl_cache *cache;
static atomic_int failures;

/* True, and says why, if a call failed. */
static int failed(const char *what, nbl_status status, const nbl_error *err)
{
    if (status == NBL_OK)
        return 0;
    fprintf(stderr, "serve: %s: %s\n", what, err->message);
    atomic_fetch_add(&failures, 1);
    return 1;
}

static nbl_tensor tensor(void *data, uint64_t tokens)
{
    return (nbl_tensor){.data = data, .dtype = NBL_F32, .rank = 3, .shape = {tokens, HEADS, DIM}};
}

static int append(uint64_t sequence, int prompt, int32_t from, int32_t count, nbl_error *err)
{
    const int32_t cut[] = {0, count};
    nbl_cache_append_args a = NBL_INIT(nbl_cache_append_args);
    a.sequences = &sequence;
    a.seq_indptr = cut;
    a.batch = 1;
    a.k = tensor(k[prompt][from], (uint64_t)count);
    a.v = tensor(v[prompt][from], (uint64_t)count);
    return failed("cache_append", api->cache_append(cache, &a, err), err);
}

static int attend(uint64_t sequence, float *out, nbl_error *err)
{
    const int32_t cut[] = {0, 1};
    nbl_cache_attend_args a = NBL_INIT(nbl_cache_attend_args);
    a.sequences = &sequence;
    a.q_indptr = cut;
    a.batch = 1;
    a.q_heads = HEADS;
    a.q = tensor(q, 1);
    a.o = tensor(out, 1);
    return failed("cache_attend", api->cache_attend(cache, &a, err), err);
}

/* A request: the cached prefix, the rest of the prompt, a fork that goes another way, an answer, the end. */
static int serve(int prompt, float *out, nbl_error *err)
{
    uint32_t ids[PROMPT + MORE], found = 0;
    uint64_t sequence, fork;
    nbl_prefix p = NBL_INIT(nbl_prefix);
    for (uint32_t i = 0; i < PROMPT + MORE; i++)
        ids[i] = (uint32_t)prompt * 1000u + i;
    p.tokens = ids;
    p.count = p.first_tokens = PROMPT;
    if (failed("seq_create", api->seq_create(cache, &sequence, err), err) ||
        failed("seq_adopt", api->seq_adopt(cache, sequence, &p, &found, err), err))
        return 1;
    if (found < PROMPT && append(sequence, prompt, (int32_t)found, (int32_t)(PROMPT - found), err))
        return 1;
    if (failed("prefix_publish", api->prefix_publish(cache, sequence, &p, NULL, err), err) ||
        failed("seq_fork", api->seq_fork(cache, sequence, PROMPT - 3, &fork, err), err) ||
        append(fork, (prompt + 1) % PROMPTS, 0, MORE, err) || append(sequence, prompt, PROMPT, MORE, err) ||
        failed("seq_free", api->seq_free(cache, fork, err), err) || attend(sequence, out, err) ||
        failed("seq_truncate", api->seq_truncate(cache, sequence, PROMPT, err), err))
        return 1;
    return failed("seq_free", api->seq_free(cache, sequence, err), err);
}

static void *work(void *argument)
{
    const int *number = argument;
    nbl_error err = NBL_INIT(nbl_error);
    for (int round = 0; round < ROUNDS; round++) {
        float out[HEADS][DIM];
        const int prompt = (*number + round) % PROMPTS;
        if (serve(prompt, out[0], &err))
            break;
        if (memcmp(out, expected[prompt], sizeof out) != 0) {
            fprintf(stderr, "serve: thread %d round %d: other bytes\n", *number, round);
            atomic_fetch_add(&failures, 1);
        }
    }
    return NULL;
}

static int cache_open(nbl_device *device, nbl_error *err)
{
    nbl_cache_config c = NBL_INIT(nbl_cache_config);
    c.flags = NBL_CACHE_LOCKED | NBL_CACHE_PREFIX;
    c.shape.layers = 1;
    c.shape.kv_heads = HEADS;
    c.shape.k_dim = c.shape.v_dim = DIM;
    c.shape.page_tokens = PAGE;
    c.shape.centering = NBL_CENTERING_ALL;
    c.center_tokens = 32;
    c.k_format = c.v_format = NBL_INT4P;
    c.sequences_max = 3 * THREADS;
    c.tokens_max = 2 * THREADS * (PROMPT + MORE);
    return failed("cache_create", api->cache_create(device, &c, &cache, err), err);
}

static void inputs_make(void)
{
    uint32_t seed = 1;
    float *const parts[] = {k[0][0][0], v[0][0][0], q[0][0]};
    const size_t counts[] = {sizeof k / sizeof(float), sizeof v / sizeof(float), sizeof q / sizeof(float)};
    for (int i = 0; i < 3; i++) {
        for (size_t j = 0; j < counts[i]; j++) {
            seed = seed * 1664525u + 1013904223u;
            parts[i][j] = (float)(int32_t)seed * 0x1p-31f;
        }
    }
}

static void threads_run(void)
{
    pthread_t threads[THREADS];
    int numbers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        if (pthread_create(&threads[i], NULL, work, &numbers[i]) != 0)
            atomic_fetch_add(&failures, 1);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

int main(void)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_stats stats = NBL_INIT(nbl_cache_stats);
    nbl_runtime *runtime = NULL;
    nbl_device *device = NULL;
    inputs_make();
    if (failed("nbl_get_api", nbl_get_api(NULL, &api, &err), &err) ||
        failed("load", api->load(NULL, &runtime, NULL, &err), &err) ||
        failed("open", api->open(runtime, NULL, &device, &err), &err) || cache_open(device, &err))
        return 1;
    for (int prompt = 0; prompt < PROMPTS; prompt++)
        (void)serve(prompt, expected[prompt][0], &err);
    (void)failed("prefix_clear", api->prefix_clear(cache, &err), &err);
    threads_run();
    (void)failed("cache_verify", api->cache_verify(cache, &err), &err);
    (void)failed("cache_stats", api->cache_stats(cache, &stats, &err), &err);
    if (stats.used_bytes != 0 || stats.sequences != 0 || stats.prefix_hit_tokens == 0) {
        fprintf(stderr, "serve: pages or sequences stayed, or no prefix was ever found\n");
        atomic_fetch_add(&failures, 1);
    }
    (void)failed("cache_destroy", api->cache_destroy(cache, &err), &err);
    (void)failed("close", api->close(device, &err), &err);
    (void)failed("runtime_destroy", api->runtime_destroy(runtime, &err), &err);
    printf("serve: %d failures\n", atomic_load(&failures));
    return atomic_load(&failures) != 0;
}
