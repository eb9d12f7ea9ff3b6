/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file small_run.h
 * @brief One small attention over a managed cache, for tests that ask whether a device works and gives the right bytes.
 */
#ifndef SMALL_RUN_H
#define SMALL_RUN_H

#include "nibble/nibble_client.h"

enum { SMALL_TOKENS = 1100, SMALL_ROWS = 3, SMALL_Q_HEADS = 4, SMALL_KV_HEADS = 2, SMALL_DIM = 64 };
enum { SMALL_KV_BYTES = SMALL_TOKENS * SMALL_KV_HEADS * SMALL_DIM * 4 };
enum { SMALL_Q_BYTES = SMALL_ROWS * SMALL_Q_HEADS * SMALL_DIM * 4 };

typedef struct small_result {
    float o[SMALL_ROWS][SMALL_Q_HEADS][SMALL_DIM];
} small_result;

/** The problem on a device: a cache with its tokens appended, queries, and room for the result. */
typedef struct small_problem {
    const nbl_client *client;
    nbl_cache *cache;
    uint64_t sequence;
    char *memory; /**< k, v, q and o on the device, one after the other */
    nbl_stream stream;
} small_problem;

/** Fills bytes of device memory with numbers in [-1, 1) that have no pattern; the same for the same seed. */
static inline nbl_status small_fill(const small_problem *p, char *to, uint32_t bytes, uint32_t seed, nbl_error *err)
{
    float values[SMALL_KV_BYTES / 4];
    for (uint32_t i = 0; i < bytes / 4; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
    const nbl_api_v1 *api = p->client->api;
    const nbl_status status =
        api->memory_copy(p->client->device, to, values, bytes, NBL_COPY_TO_DEVICE, p->stream, err);
    return status == NBL_OK ? api->check(p->client->device, p->stream, err) : status;
}

static inline nbl_status small_append(small_problem *p, nbl_error *err)
{
    const int32_t cut[] = {0, SMALL_TOKENS};
    nbl_cache_append_args append = NBL_INIT(nbl_cache_append_args);
    append.sequences = &p->sequence;
    append.seq_indptr = cut;
    append.batch = 1;
    append.stream = p->stream;
    append.k = nbl_client_tensor(p->memory, NBL_F32, SMALL_TOKENS, SMALL_KV_HEADS, SMALL_DIM);
    append.v = nbl_client_tensor(p->memory + SMALL_KV_BYTES, NBL_F32, SMALL_TOKENS, SMALL_KV_HEADS, SMALL_DIM);
    return p->client->api->cache_append(p->cache, &append, err);
}

/** Makes the problem on the client's device: recipe "kv4", SMALL_TOKENS tokens. */
static inline nbl_status small_open(const nbl_client *client, small_problem *p, nbl_error *err)
{
    nbl_caps caps = NBL_INIT(nbl_caps);
    void *memory = NULL;
    memset(p, 0, sizeof *p);
    p->client = client;
    nbl_status status = client->api->caps(client->device, &caps, err);
    p->stream.kind = caps.stream_kind;
    p->stream.handle = caps.stream_kind == NBL_STREAM_CUDA ? NBL_STREAM_CUDA_PER_THREAD : NULL;
    if (status == NBL_OK)
        status = client->api->memory_alloc(client->device, 2 * (SMALL_KV_BYTES + SMALL_Q_BYTES), &memory, err);
    p->memory = (char *)memory;
    if (status == NBL_OK)
        status = small_fill(p, p->memory, SMALL_KV_BYTES, 1, err);
    if (status == NBL_OK)
        status = small_fill(p, p->memory + SMALL_KV_BYTES, SMALL_KV_BYTES, 2, err);
    if (status == NBL_OK)
        status = small_fill(p, p->memory + 2 * SMALL_KV_BYTES, SMALL_Q_BYTES, 3, err);
    if (status == NBL_OK)
        status = nbl_client_cache(client, "kv4", 1, SMALL_KV_HEADS, SMALL_DIM, 1, SMALL_TOKENS, &p->cache, err);
    if (status == NBL_OK)
        status = client->api->seq_create(p->cache, &p->sequence, err);
    return status == NBL_OK ? small_append(p, err) : status;
}

/** Puts the attention of the last SMALL_ROWS tokens on the stream. */
static inline nbl_status small_attend(const small_problem *p, nbl_error *err)
{
    const int32_t cut[] = {0, SMALL_ROWS};
    char *q = p->memory + 2 * SMALL_KV_BYTES;
    nbl_cache_attend_args attend = NBL_INIT(nbl_cache_attend_args);
    attend.flags = NBL_ATTEND_CAUSAL;
    attend.sequences = &p->sequence;
    attend.q_indptr = cut;
    attend.batch = 1;
    attend.q_heads = SMALL_Q_HEADS;
    attend.stream = p->stream;
    attend.q = nbl_client_tensor(q, NBL_F32, SMALL_ROWS, SMALL_Q_HEADS, SMALL_DIM);
    attend.o = nbl_client_tensor(q + SMALL_Q_BYTES, NBL_F32, SMALL_ROWS, SMALL_Q_HEADS, SMALL_DIM);
    return p->client->api->cache_attend(p->cache, &attend, err);
}

/** Waits for the stream and reads the result. */
static inline nbl_status small_read(const small_problem *p, small_result *out, nbl_error *err)
{
    const nbl_api_v1 *api = p->client->api;
    const nbl_status status =
        api->memory_copy(p->client->device, out->o, p->memory + 2 * SMALL_KV_BYTES + SMALL_Q_BYTES, SMALL_Q_BYTES,
                         NBL_COPY_TO_HOST, p->stream, err);
    return status == NBL_OK ? api->check(p->client->device, p->stream, err) : status;
}

/** Frees the problem, however far it came. */
static inline nbl_status small_close(const small_problem *p, nbl_error *err)
{
    const nbl_status status = p->client->api->cache_destroy(p->cache, err);
    const nbl_status freed =
        p->memory ? p->client->api->memory_free(p->client->device, p->memory, err) : (nbl_status)NBL_OK;
    return status == NBL_OK ? freed : status;
}

/** All of it. The same bytes on every device. */
static inline nbl_status small_run(const nbl_client *client, small_result *out, nbl_error *err)
{
    small_problem p;
    nbl_status status = small_open(client, &p, err);
    if (status == NBL_OK)
        status = small_attend(&p, err);
    if (status == NBL_OK)
        status = small_read(&p, out, err);
    const nbl_status closed = small_close(&p, err);
    return status == NBL_OK ? closed : status;
}

#endif
