/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file small_run.h
 * @brief One small attention over a managed cache, for tests that ask whether a device works and gives the right bytes.
 */
#ifndef SMALL_RUN_H
#define SMALL_RUN_H

#include "nibble/nibble_client.h"

enum { SMALL_TOKENS = 1100, SMALL_ROWS = 3, SMALL_Q_HEADS = 4, SMALL_KV_HEADS = 2, SMALL_DIM = 64 };

typedef struct small_result {
    float o[SMALL_ROWS][SMALL_Q_HEADS][SMALL_DIM];
} small_result;

/** Fills values with numbers in [-1, 1) that have no pattern; the same for the same seed. */
static inline void small_fill(float *values, size_t count, uint32_t seed)
{
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
}

/** Appends SMALL_TOKENS tokens to a cache of recipe "kv4" on the client's device, attends the last SMALL_ROWS, and
 *  destroys the cache. The same bytes on every device. */
static inline nbl_status small_run(const nbl_client *client, small_result *out, nbl_error *err)
{
    static float k[SMALL_TOKENS][SMALL_KV_HEADS][SMALL_DIM], v[SMALL_TOKENS][SMALL_KV_HEADS][SMALL_DIM];
    static float q[SMALL_ROWS][SMALL_Q_HEADS][SMALL_DIM];
    const int32_t kv_cut[] = {0, SMALL_TOKENS}, q_cut[] = {0, SMALL_ROWS};
    const nbl_api_v1 *api = client->api;
    nbl_cache *cache = NULL;
    uint64_t sequence = 0;
    small_fill(&k[0][0][0], sizeof k / sizeof(float), 1);
    small_fill(&v[0][0][0], sizeof v / sizeof(float), 2);
    small_fill(&q[0][0][0], sizeof q / sizeof(float), 3);
    nbl_cache_append_args append = NBL_INIT(nbl_cache_append_args);
    append.sequences = &sequence;
    append.seq_indptr = kv_cut;
    append.batch = 1;
    append.k = nbl_client_tensor(k, NBL_F32, SMALL_TOKENS, SMALL_KV_HEADS, SMALL_DIM);
    append.v = nbl_client_tensor(v, NBL_F32, SMALL_TOKENS, SMALL_KV_HEADS, SMALL_DIM);
    nbl_cache_attend_args attend = NBL_INIT(nbl_cache_attend_args);
    attend.flags = NBL_ATTEND_CAUSAL;
    attend.sequences = &sequence;
    attend.q_indptr = q_cut;
    attend.batch = 1;
    attend.q_heads = SMALL_Q_HEADS;
    attend.q = nbl_client_tensor(q, NBL_F32, SMALL_ROWS, SMALL_Q_HEADS, SMALL_DIM);
    attend.o = nbl_client_tensor(out->o, NBL_F32, SMALL_ROWS, SMALL_Q_HEADS, SMALL_DIM);
    nbl_status status = nbl_client_cache(client, "kv4", 1, SMALL_KV_HEADS, SMALL_DIM, 1, SMALL_TOKENS, &cache, err);
    if (status == NBL_OK)
        status = api->seq_create(cache, &sequence, err);
    if (status == NBL_OK)
        status = api->cache_append(cache, &append, err);
    if (status == NBL_OK)
        status = api->cache_attend(cache, &attend, err);
    const nbl_status freed = api->cache_destroy(cache, err);
    return status == NBL_OK ? freed : status;
}

#endif
