/* SPDX-License-Identifier: Apache-2.0 */
#include "fixture.h"
#include "nibble/nibble_client.h"

#include <string.h>

#define CALLS_MOST 8
#define ENTRIES_MOST 64

static struct seen {
    uint32_t batch, layer, q_len_max, kv_len_max, stride;
    uint64_t rows;
    const void *q, *o, *lse, *q_centers;
    int32_t indptr[8], kv_len[8], table[ENTRIES_MOST];
} seen[CALLS_MOST];
static uint32_t seen_count;

static void attend_seen(const nbl_attend_args *args)
{
    struct seen *s = &seen[seen_count++];
    *s = (struct seen){.batch = args->batch,
                       .layer = args->layer,
                       .q_len_max = args->q_len_max,
                       .kv_len_max = args->kv_len_max,
                       .stride = args->page_table_stride,
                       .rows = args->q.shape[0],
                       .q = args->q.data,
                       .o = args->o.data,
                       .lse = args->lse.data,
                       .q_centers = args->q_centers.data};
    memcpy(s->indptr, args->q_indptr, (args->batch + 1) * sizeof(int32_t));
    memcpy(s->kv_len, args->kv_len, args->batch * sizeof(int32_t));
    memcpy(s->table, args->page_table, args->batch * args->page_table_stride * sizeof(int32_t));
}

static fixture seen_open(nbl_cache_config config)
{
    fixture f = fixture_open(config);
    f.c.state->on_attend = attend_seen;
    seen_count = 0;
    return f;
}

/* Lengths are those of the layer; tables hold the pages in order, in the order of the batch. */
Test(cache_attend, lengths_and_tables)
{
    fixture f = seen_open(fixture_config());
    nbl_error err = NBL_INIT(nbl_error);
    const uint64_t a = fixture_seq(&f), b = fixture_seq(&f);
    fixture_grow(&f, 0, a, 13);
    fixture_grow(&f, 1, a, 2);
    fixture_grow(&f, 0, b, 5);
    EXPECT(fixture_attend(&f, 0, 2, (const uint64_t[]){b, a}, (const int32_t[]){1, 3}, &err), NBL_OK);
    cr_assert(seen[0].batch == 2 && seen[0].rows == 4 && seen[0].q_len_max == 3 && seen[0].kv_len_max == 13, "bounds");
    cr_assert(seen[0].kv_len[0] == 5 && seen[0].kv_len[1] == 13, "lengths %d %d", seen[0].kv_len[0], seen[0].kv_len[1]);
    cr_assert(seen[0].indptr[1] == 1 && seen[0].indptr[2] == 4, "indptr");
    cr_assert_eq(seen[0].stride, 4, "stride %u", seen[0].stride);
    /* Lowest pages first: a took sinks 0, 1 and main 8, 9; b then took sinks 2, 3. */
    const int32_t expected_b[] = {2, 3}, expected_a[] = {0, 1, 8, 9};
    cr_assert_eq(memcmp(seen[0].table, expected_b, sizeof expected_b), 0, "pages of b");
    cr_assert_eq(memcmp(seen[0].table + 4, expected_a, sizeof expected_a), 0, "pages of a");
    EXPECT(fixture_attend(&f, 1, 1, &a, (const int32_t[]){1}, &err), NBL_OK);
    cr_assert(seen[1].kv_len[0] == 2 && seen[1].stride == 1 && seen[1].layer == 1, "layer 1");
    fixture_close(&f);
}

/* A page that changes hands shows up in the next table. */
Test(cache_attend, recycled_pages)
{
    fixture f = seen_open(fixture_config());
    nbl_error err = NBL_INIT(nbl_error);
    const uint64_t a = fixture_seq(&f), b = fixture_seq(&f);
    fixture_grow(&f, 0, a, 4);
    fixture_grow(&f, 0, b, 4);
    EXPECT(fixture_attend(&f, 0, 1, &b, (const int32_t[]){1}, &err), NBL_OK);
    EXPECT(f.c.api->seq_truncate(f.cache, b, 0, &err), NBL_OK);
    EXPECT(f.c.api->seq_free(f.cache, a, &err), NBL_OK);
    fixture_grow(&f, 0, b, 4);
    EXPECT(fixture_attend(&f, 0, 1, &b, (const int32_t[]){1}, &err), NBL_OK);
    cr_assert(seen[0].table[0] == 1 && seen[1].table[0] == 0, "pages %d %d", seen[0].table[0], seen[1].table[0]);
    fixture_close(&f);
}

/* So does a page that an append adds, and one that it copies, where lengths and shape of the table stay. */
Test(cache_attend, added_and_copied_pages)
{
    fixture f = seen_open(fixture_config());
    nbl_error err = NBL_INIT(nbl_error);
    uint64_t fork = 0;
    const uint64_t a = fixture_seq(&f), b = fixture_seq(&f), both[] = {a, b};
    fixture_grow(&f, 0, a, 16);
    fixture_grow(&f, 0, b, 4);
    EXPECT(fixture_attend(&f, 0, 2, both, (const int32_t[]){1, 1}, &err), NBL_OK);
    fixture_grow(&f, 0, b, 2);
    EXPECT(fixture_attend(&f, 0, 2, both, (const int32_t[]){1, 1}, &err), NBL_OK);
    EXPECT(f.c.api->seq_fork(f.cache, b, UINT32_MAX, &fork, &err), NBL_OK);
    EXPECT(fixture_attend(&f, 0, 2, both, (const int32_t[]){1, 1}, &err), NBL_OK);
    fixture_grow(&f, 0, b, 1);
    EXPECT(fixture_attend(&f, 0, 2, both, (const int32_t[]){1, 1}, &err), NBL_OK);
    const int32_t *const tables[] = {seen[0].table + 4, seen[1].table + 4, seen[2].table + 4, seen[3].table + 4};
    cr_assert_eq(seen[3].stride, 4, "stride %u", seen[3].stride);
    cr_assert(tables[0][0] == 2 && tables[1][0] == 2 && tables[1][1] == 3, "added: %d %d", tables[1][0], tables[1][1]);
    cr_assert(tables[2][1] == 3 && tables[3][0] == 2 && tables[3][1] == 4, "copied: %d %d", tables[3][0], tables[3][1]);
    fixture_close(&f);
}

Test(cache_attend, empty_sequences_and_rows)
{
    fixture f = seen_open(fixture_config());
    nbl_error err = NBL_INIT(nbl_error);
    const uint64_t pair[] = {fixture_seq(&f), fixture_seq(&f)};
    EXPECT(fixture_attend(&f, 0, 2, pair, (const int32_t[]){1, 2}, &err), NBL_OK);
    cr_assert(seen_count == 1 && seen[0].kv_len_max == 0 && seen[0].rows == 3, "rows over nothing");
    EXPECT(fixture_attend(&f, 0, 2, pair, (const int32_t[]){0, 0}, &err), NBL_OK);
    EXPECT(fixture_attend(&f, 0, 0, NULL, NULL, &err), NBL_OK);
    cr_assert_eq(seen_count, 1, "no rows, no call");
    fixture_close(&f);
}

Test(cache_attend, cut_where_the_workspace_ends)
{
    fixture f = seen_open(fixture_config());
    nbl_error err = NBL_INIT(nbl_error);
    const uint64_t s[] = {fixture_seq(&f), fixture_seq(&f), fixture_seq(&f)};
    for (uint32_t i = 0; i < 3; ++i)
        fixture_grow(&f, 0, s[i], 2 + 4 * (int32_t)i);
    f.c.state->workspace_bytes_per_row = (1u << 20) / 3;
    EXPECT(fixture_attend(&f, 0, 3, s, (const int32_t[]){2, 2, 1}, &err), NBL_OK);
    cr_assert_eq(seen_count, 2, "%u calls", seen_count);
    cr_assert(seen[0].rows == 2 && seen[0].batch == 1 && seen[0].kv_len[0] == 2, "first call");
    cr_assert(seen[1].rows == 3 && seen[1].batch == 2 && seen[1].kv_len[0] == 6 && seen[1].kv_len[1] == 10, "second");
    cr_assert(seen[1].indptr[0] == 0 && seen[1].indptr[1] == 2 && seen[1].indptr[2] == 3, "indptr starts at 0");
    cr_assert_eq((const uint8_t *)seen[1].q - (const uint8_t *)seen[0].q, 2 * 256, "Q of the second call");
    cr_assert_eq((const uint8_t *)seen[1].o - (const uint8_t *)seen[0].o, 2 * 128, "O of the second call");
    cr_assert_eq((const uint8_t *)seen[1].lse - (const uint8_t *)seen[0].lse, 2 * 16, "LSE of the second call");
    EXPECT(fixture_attend(&f, 0, 2, s, (const int32_t[]){1, 4}, &err), NBL_E_NO_MEMORY);
    cr_assert_eq(seen_count, 2, "the backend was called for half a batch");
    fixture_close(&f);
}

/* nbl_client_workspace asks for as much as the rows of one sequence take, and no less than the default. */
Test(cache_attend, workspace_for_the_rows_of_a_sequence)
{
    counting c = counting_open();
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_config config = fixture_config();
    const nbl_client client = {.api = c.api, .device = c.device};
    const nbl_policy policy = NBL_INIT(nbl_policy);
    c.state->workspace_bytes_per_row = 17u << 20;
    config.workspace_mib = 0;
    EXPECT(nbl_client_workspace(&client, &policy, 4, 3, &config, &err), NBL_OK);
    cr_assert_eq(config.workspace_mib, 64, "%u MiB for 51", config.workspace_mib);
    EXPECT(nbl_client_workspace(&client, &policy, 4, 4, &config, &err), NBL_OK);
    cr_assert_eq(config.workspace_mib, 68, "%u MiB for 68", config.workspace_mib);
    EXPECT(nbl_client_workspace(&client, &policy, 3, 4, &config, &err), NBL_E_INVALID);
    c.state->workspace_bytes_per_row = 0;
    counting_close(&c);
    fixture f = seen_open(config);
    const uint64_t s = fixture_seq(&f);
    fixture_grow(&f, 0, s, 8);
    f.c.state->workspace_bytes_per_row = 17u << 20;
    EXPECT(fixture_attend(&f, 0, 1, &s, (const int32_t[]){4}, &err), NBL_OK);
    EXPECT(fixture_attend(&f, 0, 1, &s, (const int32_t[]){5}, &err), NBL_E_NO_MEMORY);
    cr_assert_str_eq(err.message,
                     "nibble: sequences[0] with 5 query rows in a call needs a workspace of 85 MiB (workspace_mib is "
                     "68; raise it, or bring fewer in a call)");
    f.c.state->workspace_bytes_per_row = 0;
    fixture_close(&f);
}

/* Centres of queries go with their sequences, and only to backends that say they know them. */
Test(cache_attend, centres_where_the_workspace_ends)
{
    static float centers[3][4][32];
    nbl_cache_config config = fixture_config();
    nbl_error err = NBL_INIT(nbl_error);
    config.k_format = NBL_NVFP4;
    config.v_format = NBL_FP8_E4M3;
    config.sink_tokens = 0;
    fixture f = seen_open(config);
    const uint64_t s[] = {fixture_seq(&f), fixture_seq(&f), fixture_seq(&f)};
    for (uint32_t i = 0; i < 3; ++i)
        fixture_grow(&f, 0, s[i], 2);
    f.q_centers = (nbl_tensor){.data = centers, .dtype = NBL_F32, .rank = 3, .shape = {3, 4, 32}};
    f.c.state->workspace_bytes_per_row = (1u << 20) / 3;
    EXPECT(fixture_attend(&f, 0, 3, s, (const int32_t[]){2, 2, 1}, &err), NBL_OK);
    cr_assert(seen_count == 2 && seen[0].batch == 1 && seen[1].batch == 2, "%u calls", seen_count);
    cr_assert(seen[0].q_centers == centers[0] && seen[1].q_centers == centers[1], "centres of another sequence");
    f.c.state->supports = NBL_E_UNSUPPORTED;
    EXPECT(fixture_attend(&f, 0, 3, s, (const int32_t[]){2, 2, 1}, &err), NBL_E_UNSUPPORTED);
    cr_assert_eq(seen_count, 2, "the backend was called");
    f.c.state->supports = NBL_OK;
    fixture_close(&f);
}

/* One long sequence among short ones: a rectangular table would be larger than the metadata. */
Test(cache_attend, cut_where_the_table_ends)
{
    nbl_cache_config config = fixture_config();
    config.shape.page_tokens = 1;
    config.sink_tokens = 0;
    config.sequences_max = 8;
    fixture f = seen_open(config);
    nbl_error err = NBL_INIT(nbl_error);
    uint64_t s[8];
    int32_t rows[8];
    for (uint32_t i = 0; i < 8; ++i) {
        s[i] = fixture_seq(&f);
        rows[i] = 1;
        fixture_grow(&f, 0, s[i], i == 0 ? 33 : 1);
    }
    EXPECT(fixture_attend(&f, 0, 8, s, rows, &err), NBL_OK);
    uint32_t batch = 0;
    for (uint32_t i = 0; i < seen_count; ++i) {
        batch += seen[i].batch;
        cr_assert(seen[i].batch * seen[i].stride <= 160, "call %u: table of %u entries", i,
                  seen[i].batch * seen[i].stride);
    }
    cr_assert(batch == 8 && seen_count == 2, "%u sequences in %u calls", batch, seen_count);
    fixture_close(&f);
}

Test(cache_attend, bad_arguments)
{
    nbl_cache_config config = fixture_config();
    config.shape.centering = 1;
    fixture f = seen_open(config);
    nbl_error err = NBL_INIT(nbl_error);
    static _Alignas(256) uint8_t q[1024], o[1024];
    const uint64_t a = fixture_seq(&f);
    int32_t indptr[] = {0, 2};
    nbl_cache_attend_args args = NBL_INIT(nbl_cache_attend_args);
    args.sequences = &a;
    args.q_indptr = indptr;
    args.batch = 1;
    args.q_heads = 4;
    args.q = (nbl_tensor){.data = q, .dtype = NBL_BF16, .rank = 3, .shape = {2, 4, 32}};
    args.o = (nbl_tensor){.data = o, .dtype = NBL_BF16, .rank = 3, .shape = {2, 4, 16}};
    const nbl_cache_attend_args good = args;
    args.layer = 2;
    EXPECT(f.c.api->cache_attend(f.cache, &args, &err), NBL_E_RANGE);
    args = good, args.q_heads = 3;
    EXPECT(f.c.api->cache_attend(f.cache, &args, &err), NBL_E_INVALID);
    args = good, args.o.data = q;
    EXPECT(f.c.api->cache_attend(f.cache, &args, &err), NBL_E_OVERLAP);
    args = good, args.soft_cap = 30.0f;
    EXPECT(f.c.api->cache_attend(f.cache, &args, &err), NBL_E_INVALID);
    args = good, args.flags = 64;
    EXPECT(f.c.api->cache_attend(f.cache, &args, &err), NBL_E_UNKNOWN_FIELD);
    args = good, args.reserved = 1;
    EXPECT(f.c.api->cache_attend(f.cache, &args, &err), NBL_E_UNKNOWN_FIELD);
    args = good, args.q_indptr = NULL;
    EXPECT(f.c.api->cache_attend(f.cache, &args, &err), NBL_E_INVALID);
    args = good, indptr[1] = 1;
    EXPECT(f.c.api->cache_attend(f.cache, &args, &err), NBL_E_RANGE);
    indptr[1] = 2, args.batch = 9;
    EXPECT(f.c.api->cache_attend(f.cache, &args, &err), NBL_E_INVALID);
    cr_assert_eq(seen_count, 0, "the backend was called");
    args = good;
    EXPECT(f.c.api->cache_attend(f.cache, &args, &err), NBL_OK);
    cr_assert_eq(seen_count, 1, "the backend was not called");
    fixture_close(&f);
}
