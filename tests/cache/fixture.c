/* SPDX-License-Identifier: Apache-2.0 */
#include "fixture.h"

#define BATCH_MOST 16u

/* Never read by the counting backend; large enough for the overlap checks to be about real memory. */
static _Alignas(256) uint8_t k_memory[TOKENS_MOST * 128], v_memory[TOKENS_MOST * 64];
static _Alignas(256) uint8_t q_memory[TOKENS_MOST * 256], o_memory[TOKENS_MOST * 128], lse_memory[TOKENS_MOST * 16];

nbl_cache_config fixture_config(void)
{
    nbl_cache_config c = NBL_INIT(nbl_cache_config);
    c.shape.layers = 2;
    c.shape.kv_heads = 2;
    c.shape.k_dim = 32;
    c.shape.v_dim = 16;
    c.shape.page_tokens = 4;
    c.k_format = NBL_INT4P;
    c.v_format = NBL_INT8;
    c.sink_tokens = 6;
    c.sequences_max = 4;
    c.tokens_max = 40;
    c.workspace_mib = 1;
    return c;
}

fixture fixture_open(nbl_cache_config config)
{
    fixture f = {.c = counting_open(), .config = config};
    nbl_error err = NBL_INIT(nbl_error);
    EXPECT(f.c.api->cache_create(f.c.device, &config, &f.cache, &err), NBL_OK);
    return f;
}

void fixture_close(fixture *f)
{
    nbl_error err = NBL_INIT(nbl_error);
    EXPECT(f->c.api->cache_destroy(f->cache, &err), NBL_OK);
    cr_assert_eq(f->c.state->live_bytes, 0, "%d bytes stayed", (int)f->c.state->live_bytes);
    cr_assert_eq(f->c.state->live_blocks, 0, "%d blocks stayed", (int)f->c.state->live_blocks);
    counting_close(&f->c);
}

uint64_t fixture_seq(fixture *f)
{
    uint64_t sequence = 0;
    nbl_error err = NBL_INIT(nbl_error);
    EXPECT(f->c.api->seq_create(f->cache, &sequence, &err), NBL_OK);
    return sequence;
}

nbl_cache_stats fixture_stats(fixture *f)
{
    nbl_cache_stats stats = NBL_INIT(nbl_cache_stats);
    nbl_error err = NBL_INIT(nbl_error);
    EXPECT(f->c.api->cache_stats(f->cache, &stats, &err), NBL_OK);
    return stats;
}

uint32_t fixture_length(fixture *f, uint64_t sequence, uint32_t layer)
{
    uint32_t tokens = 0;
    nbl_error err = NBL_INIT(nbl_error);
    EXPECT(f->c.api->seq_length(f->cache, sequence, layer, &tokens, &err), NBL_OK);
    return tokens;
}

static uint64_t indptr_make(int32_t indptr[BATCH_MOST + 1], uint32_t batch, const int32_t *counts)
{
    indptr[0] = 0;
    for (uint32_t b = 0; b < batch; ++b)
        indptr[b + 1] = indptr[b] + counts[b];
    cr_assert(batch <= BATCH_MOST && indptr[batch] <= (int32_t)TOKENS_MOST, "the fixture is too small");
    return (uint64_t)indptr[batch];
}

nbl_status fixture_append(fixture *f, uint32_t layer, uint32_t batch, const uint64_t *sequences, const int32_t *counts,
                          nbl_error *err)
{
    int32_t indptr[BATCH_MOST + 1];
    nbl_cache_append_args a = NBL_INIT(nbl_cache_append_args);
    const uint64_t tokens = indptr_make(indptr, batch, counts);
    a.sequences = sequences;
    a.seq_indptr = indptr;
    a.batch = batch;
    a.layer = layer;
    a.k = (nbl_tensor){.data = k_memory, .dtype = NBL_F16, .rank = 3, .shape = {tokens, 2, 32}};
    a.v = (nbl_tensor){.data = v_memory, .dtype = NBL_F16, .rank = 3, .shape = {tokens, 2, 16}};
    return f->c.api->cache_append(f->cache, &a, err);
}

void fixture_grow(fixture *f, uint32_t layer, uint64_t sequence, int32_t tokens)
{
    nbl_error err = NBL_INIT(nbl_error);
    EXPECT(fixture_append(f, layer, 1, &sequence, &tokens, &err), NBL_OK);
}

nbl_status fixture_attend(fixture *f, uint32_t layer, uint32_t batch, const uint64_t *sequences, const int32_t *rows,
                          nbl_error *err)
{
    int32_t indptr[BATCH_MOST + 1];
    nbl_cache_attend_args a = NBL_INIT(nbl_cache_attend_args);
    const uint64_t count = indptr_make(indptr, batch, rows);
    a.flags = NBL_ATTEND_CAUSAL;
    a.sequences = sequences;
    a.q_indptr = indptr;
    a.batch = batch;
    a.layer = layer;
    a.q_heads = 4;
    a.q = (nbl_tensor){.data = q_memory, .dtype = NBL_BF16, .rank = 3, .shape = {count, 4, 32}};
    a.o = (nbl_tensor){.data = o_memory, .dtype = NBL_BF16, .rank = 3, .shape = {count, 4, 16}};
    a.lse = (nbl_tensor){.data = lse_memory, .dtype = NBL_F32, .rank = 2, .shape = {count, 4}};
    a.q_format = f->q_centers.data != NULL ? NBL_Q_FP4 : NBL_Q_DEFAULT;
    a.q_centers = f->q_centers;
    return f->c.api->cache_attend(f->cache, &a, err);
}
