/* SPDX-License-Identifier: Apache-2.0 */
#include "fixture.h"

#include <string.h>

#define CALLS_MOST 8
#define SLOTS_MOST 64

/* What the backend saw, copied while the call was running. */
static struct seen {
    uint64_t tokens;
    uint32_t batch, layer, mode;
    const void *k, *v;
    const int8_t *center_codes;
    const uint8_t *center_exponents;
    int64_t slots[SLOTS_MOST];
    int32_t indptr[8], rows[8];
} seen[CALLS_MOST];
static uint32_t seen_count;

static void append_seen(const nbl_append_args *args)
{
    struct seen *s = &seen[seen_count++];
    s->tokens = args->k.shape[0];
    s->batch = args->batch;
    s->layer = args->layer;
    s->mode = args->center_mode;
    s->k = args->k.data;
    s->v = args->v.data;
    memcpy(s->slots, args->slots, s->tokens * sizeof(int64_t));
    if (args->pool->shape->centering == 0)
        return;
    memcpy(s->indptr, args->seq_indptr, (args->batch + 1) * sizeof(int32_t));
    s->center_codes = args->centers.codes;
    s->center_exponents = args->centers.exponents;
    memcpy(s->rows, args->centers.rows, args->batch * sizeof(int32_t));
}

static fixture seen_open(nbl_cache_config config)
{
    fixture f = fixture_open(config);
    f.c.state->on_append = append_seen;
    seen_count = 0;
    return f;
}

/* Sinks come from region 0 (pages 0..7), the rest from region 1 (pages 8..15); every layer sees the same slots. */
Test(cache_append, slots_of_both_regions)
{
    fixture f = seen_open(fixture_config());
    const uint64_t a = fixture_seq(&f);
    fixture_grow(&f, 1, a, 7);
    fixture_grow(&f, 1, a, 3);
    fixture_grow(&f, 0, a, 10);
    int64_t later[10];
    memcpy(later, seen[0].slots, 7 * sizeof *later);
    memcpy(later + 7, seen[1].slots, 3 * sizeof *later);
    cr_assert_eq(memcmp(later, seen[2].slots, sizeof later), 0, "the layers differ");
    for (uint32_t t = 0; t < 10; ++t) {
        const int64_t page = later[t] / 4;
        cr_assert_eq(later[t] % 4, t % 4, "token %u at offset %d", t, (int)(later[t] % 4));
        cr_assert(t < 8 ? page >= 0 && page < 8 : page >= 8 && page < 16, "token %u in page %d", t, (int)page);
        cr_assert(t % 4 == 0 || later[t] == later[t - 1] + 1, "token %u left its page", t);
    }
    cr_assert(seen[0].layer == 1 && seen[2].layer == 0, "layers");
    fixture_close(&f);
}

/* Two sequences that grow in turn never share a slot. */
Test(cache_append, no_slot_is_given_twice)
{
    fixture f = seen_open(fixture_config());
    nbl_error err = NBL_INIT(nbl_error);
    bool taken[64] = {false};
    const uint64_t pair[] = {fixture_seq(&f), fixture_seq(&f)};
    for (uint32_t i = 0; i < CALLS_MOST; ++i) {
        EXPECT(fixture_append(&f, 0, 2, pair, (const int32_t[]){2, 3}, &err), NBL_OK);
        for (uint32_t t = 0; t < 5; ++t) {
            const int64_t slot = seen[i].slots[t];
            cr_assert(slot >= 0 && slot < 64 && !taken[slot], "call %u gives slot %d again", i, (int)slot);
            taken[slot] = true;
        }
    }
    cr_assert_eq(fixture_stats(&f).tokens, 40, "tokens");
    fixture_close(&f);
}

Test(cache_append, out_of_pages_changes_nothing)
{
    fixture f = seen_open(fixture_config());
    nbl_error err = NBL_INIT(nbl_error);
    const uint64_t pair[] = {fixture_seq(&f), fixture_seq(&f)};
    EXPECT(fixture_append(&f, 0, 2, pair, (const int32_t[]){20, 9}, &err), NBL_OK);
    const nbl_cache_stats before = fixture_stats(&f);
    /* Both would fit alone, together they want six main pages and four are free. */
    EXPECT(fixture_append(&f, 0, 2, pair, (const int32_t[]){12, 13}, &err), NBL_E_NO_MEMORY);
    cr_assert(strstr(err.message, "region 1 needs 6 more and has 4 free of 8") != NULL, "%s", err.message);
    const nbl_cache_stats after = fixture_stats(&f);
    cr_assert_eq(memcmp(&before, &after, sizeof before), 0, "statistics changed");
    cr_assert(fixture_length(&f, pair[0], 0) == 20 && fixture_length(&f, pair[1], 0) == 9, "lengths changed");
    cr_assert_eq(seen_count, 1, "the backend was called");
    EXPECT(fixture_append(&f, 0, 2, pair, (const int32_t[]){12, 3}, &err), NBL_OK);
    fixture_close(&f);
}

Test(cache_append, failure_of_the_backend_changes_nothing)
{
    fixture f = seen_open(fixture_config());
    nbl_error err = NBL_INIT(nbl_error);
    const uint64_t a = fixture_seq(&f);
    fixture_grow(&f, 0, a, 3);
    const nbl_cache_stats before = fixture_stats(&f);
    f.c.state->fail_operation = 2;
    EXPECT(fixture_append(&f, 0, 1, &a, (const int32_t[]){20}, &err), NBL_E_DEVICE);
    const nbl_cache_stats after = fixture_stats(&f);
    cr_assert_eq(memcmp(&before, &after, sizeof before), 0, "statistics changed");
    fixture_grow(&f, 0, a, 20);
    cr_assert_eq(memcmp(seen[1].slots, seen[2].slots, 20 * sizeof(int64_t)), 0, "the second try got other slots");
    fixture_close(&f);
}

/* Metadata goes to the device once, not once per layer. */
Test(cache_append, equal_slots_are_sent_once)
{
    fixture f = seen_open(fixture_config());
    nbl_error err = NBL_INIT(nbl_error);
    const uint64_t a = fixture_seq(&f);
    fixture_grow(&f, 0, a, 5);
    EXPECT(fixture_attend(&f, 0, 1, &a, (const int32_t[]){1}, &err), NBL_OK);
    const uint64_t uploads = f.c.state->uploads;
    fixture_grow(&f, 1, a, 5);
    EXPECT(fixture_attend(&f, 1, 1, &a, (const int32_t[]){1}, &err), NBL_OK);
    cr_assert_eq(f.c.state->uploads, uploads, "%d uploads for the second layer", (int)(f.c.state->uploads - uploads));
    fixture_close(&f);
}

/* New sequences compute their centre, old ones use theirs: one backend call per run of equal mode. */
Test(cache_append, centre_modes_are_runs)
{
    nbl_cache_config config = fixture_config();
    config.shape.centering = 1;
    fixture f = seen_open(config);
    nbl_error err = NBL_INIT(nbl_error);
    const uint64_t s[] = {fixture_seq(&f), fixture_seq(&f), fixture_seq(&f), fixture_seq(&f)};
    EXPECT(fixture_append(&f, 0, 2, (const uint64_t[]){s[3], s[0]}, (const int32_t[]){2, 1}, &err), NBL_OK);
    cr_assert(seen_count == 1 && seen[0].mode == NBL_CENTER_COMPUTE && seen[0].batch == 2, "first tokens");
    cr_assert(seen[0].rows[0] == 3 && seen[0].rows[1] == 0, "rows %d %d", seen[0].rows[0], seen[0].rows[1]);
    EXPECT(fixture_append(&f, 0, 4, s, (const int32_t[]){2, 1, 3, 4}, &err), NBL_OK);
    cr_assert_eq(seen_count, 4, "%u calls", seen_count);
    cr_assert(seen[1].mode == NBL_CENTER_USE && seen[1].tokens == 2 && seen[1].rows[0] == 0, "sequence 0");
    cr_assert(seen[2].mode == NBL_CENTER_COMPUTE && seen[2].tokens == 4 && seen[2].batch == 2, "sequences 1 and 2");
    cr_assert(seen[2].indptr[0] == 0 && seen[2].indptr[1] == 1 && seen[2].indptr[2] == 4, "indptr starts at 0");
    cr_assert(seen[2].rows[0] == 1 && seen[2].rows[1] == 2, "rows of 1 and 2");
    cr_assert(seen[3].mode == NBL_CENTER_USE && seen[3].tokens == 4 && seen[3].rows[0] == 3, "sequence 3");
    cr_assert_eq((const uint8_t *)seen[3].k - (const uint8_t *)seen[1].k, 6 * 128, "K of run 3");
    cr_assert_eq((const uint8_t *)seen[2].v - (const uint8_t *)seen[1].v, 2 * 64, "V of run 2");
    /* Each layer has a centre of its own, and an emptied sequence starts again. */
    EXPECT(fixture_append(&f, 1, 1, s, (const int32_t[]){1}, &err), NBL_OK);
    cr_assert_eq(seen[4].mode, NBL_CENTER_COMPUTE, "layer 1");
    cr_assert_eq(seen[4].center_codes - seen[3].center_codes, 4 * 2 * 32, "codes of layer 1: S * Hk * Dk further");
    cr_assert_eq(seen[4].center_exponents - seen[3].center_exponents, 4 * 2, "exponents of layer 1: S * Hk further");
    EXPECT(f.c.api->seq_truncate(f.cache, s[0], 0, &err), NBL_OK);
    EXPECT(fixture_append(&f, 0, 1, s, (const int32_t[]){1}, &err), NBL_OK);
    cr_assert_eq(seen[5].mode, NBL_CENTER_COMPUTE, "emptied");
    fixture_close(&f);
}

/* Pairs of pages that the backend was told to copy or transcode. */
static struct pair {
    int32_t from, to;
} pairs[TOKENS_MOST];
static uint32_t pair_count, list_count;

static void pairs_add(const int32_t *from, const int32_t *to, uint32_t count)
{
    cr_assert_leq(pair_count + count, TOKENS_MOST, "%u pairs", pair_count + count);
    for (uint32_t i = 0; i < count; ++i)
        pairs[pair_count++] = (struct pair){from[i], to[i]};
    list_count++;
}

static void copies_seen(const nbl_copy_pages_args *args)
{
    pairs_add(args->src_pages, args->dst_pages, args->count);
}

static void transcodes_seen(const nbl_transcode_args *args)
{
    pairs_add(args->src_pages, args->dst_pages, args->count);
}

/* Copies in two regions are two lists, each pair in one of them. */
Test(cache_append, copies_of_two_regions)
{
    fixture f = seen_open(fixture_config());
    nbl_error err = NBL_INIT(nbl_error);
    const uint64_t a = fixture_seq(&f), b = fixture_seq(&f);
    uint64_t forks[2];
    fixture_grow(&f, 0, a, 2);
    fixture_grow(&f, 0, b, 10);
    EXPECT(f.c.api->seq_fork(f.cache, a, UINT32_MAX, &forks[0], &err), NBL_OK);
    EXPECT(f.c.api->seq_fork(f.cache, b, UINT32_MAX, &forks[1], &err), NBL_OK);
    f.c.state->on_copy_pages = copies_seen;
    EXPECT(fixture_append(&f, 0, 2, forks, (const int32_t[]){1, 1}, &err), NBL_OK);
    cr_assert(pair_count == 2 && list_count == 2, "%u pairs in %u lists", pair_count, list_count);
    cr_assert(pairs[0].from < 8 && pairs[0].to < 8 && pairs[1].from >= 8 && pairs[1].to >= 8, "%d to %d, %d to %d",
              pairs[0].from, pairs[0].to, pairs[1].from, pairs[1].to);
    fixture_close(&f);
}

/* More pages than one list holds leave the window in one call: each is transcoded once, into a page of its own. */
Test(cache_append, more_demotions_than_a_list_holds)
{
    enum { TOKENS = 5000 };
    static const nbl_policy_rule recent = {
        .scope = NBL_SCOPE_RECENT, .tokens = 1, .k_format = NBL_INT8, .v_format = NBL_INT8};
    static bool source[2 * TOKENS + 64], target[2 * TOKENS + 64];
    nbl_cache_config config = fixture_config();
    config.shape.page_tokens = 1;
    config.shape.layers = 1;
    config.sink_tokens = 0;
    config.sequences_max = 1;
    config.tokens_max = config.append_tokens_max = TOKENS;
    config.rules = &recent;
    config.rule_count = 1;
    fixture f = fixture_open(config);
    f.c.state->on_transcode = transcodes_seen;
    fixture_grow(&f, 0, fixture_seq(&f), TOKENS);
    cr_assert(pair_count == TOKENS - 1 && list_count == 2, "%u pairs in %u lists", pair_count, list_count);
    for (uint32_t i = 0; i < pair_count; ++i) {
        cr_assert(!source[pairs[i].from] && !target[pairs[i].to], "pair %u: %d to %d again", i, pairs[i].from,
                  pairs[i].to);
        source[pairs[i].from] = target[pairs[i].to] = true;
    }
    cr_assert_eq(fixture_stats(&f).pages_demoted, TOKENS - 1, "pages demoted");
    fixture_close(&f);
}

Test(cache_append, cut_where_the_workspace_ends)
{
    fixture f = seen_open(fixture_config());
    nbl_error err = NBL_INIT(nbl_error);
    const uint64_t s[] = {fixture_seq(&f), fixture_seq(&f), fixture_seq(&f), fixture_seq(&f)};
    f.c.state->workspace_bytes_per_row = (1u << 20) / 5;
    EXPECT(fixture_append(&f, 0, 4, s, (const int32_t[]){2, 2, 2, 5}, &err), NBL_OK);
    cr_assert_eq(seen_count, 3, "%u calls", seen_count);
    cr_assert(seen[0].tokens == 4 && seen[1].tokens == 2 && seen[2].tokens == 5, "tokens of the calls");
    EXPECT(fixture_append(&f, 0, 2, s, (const int32_t[]){1, 6}, &err), NBL_E_NO_MEMORY);
    cr_assert_eq(seen_count, 3, "the backend was called for half a batch");
    cr_assert_eq(fixture_length(&f, s[0], 0), 2, "length changed");
    fixture_close(&f);
}

Test(cache_append, bad_batches)
{
    nbl_cache_config config = fixture_config();
    config.sequence_tokens_max = 10;
    fixture f = seen_open(config);
    nbl_error err = NBL_INIT(nbl_error);
    static _Alignas(256) uint8_t memory[64 * 128];
    const uint64_t a = fixture_seq(&f), twice[] = {a, a};
    int32_t indptr[] = {0, 3};
    nbl_cache_append_args args = NBL_INIT(nbl_cache_append_args);
    args.sequences = &a;
    args.seq_indptr = indptr;
    args.batch = 1;
    args.k = (nbl_tensor){.data = memory, .dtype = NBL_F16, .rank = 3, .shape = {3, 2, 32}};
    args.v = (nbl_tensor){.data = memory, .dtype = NBL_F16, .rank = 3, .shape = {3, 2, 16}};
    const nbl_cache_append_args good = args;
    EXPECT(f.c.api->cache_append(f.cache, NULL, &err), NBL_E_INVALID);
    EXPECT(f.c.api->cache_append(NULL, &args, &err), NBL_E_INVALID);
    EXPECT(fixture_append(&f, 0, 2, twice, (const int32_t[]){1, 1}, &err), NBL_E_INVALID);
    EXPECT(fixture_append(&f, 2, 1, &a, (const int32_t[]){1}, &err), NBL_E_RANGE);
    EXPECT(fixture_append(&f, 0, 1, &a, (const int32_t[]){11}, &err), NBL_E_RANGE);
    EXPECT(fixture_append(&f, 0, 1, &a, (const int32_t[]){4096}, &err), NBL_E_NO_MEMORY);
    args.sequences = NULL;
    EXPECT(f.c.api->cache_append(f.cache, &args, &err), NBL_E_INVALID);
    args = good, args.seq_indptr = NULL;
    EXPECT(f.c.api->cache_append(f.cache, &args, &err), NBL_E_INVALID);
    args = good, args.flags = 1;
    EXPECT(f.c.api->cache_append(f.cache, &args, &err), NBL_E_UNKNOWN_FIELD);
    args = good, args.batch = 5;
    EXPECT(f.c.api->cache_append(f.cache, &args, &err), NBL_E_INVALID);
    args = good, indptr[0] = 1;
    EXPECT(f.c.api->cache_append(f.cache, &args, &err), NBL_E_RANGE);
    indptr[0] = 0, indptr[1] = 2;
    EXPECT(f.c.api->cache_append(f.cache, &args, &err), NBL_E_RANGE);
    indptr[1] = -3;
    EXPECT(f.c.api->cache_append(f.cache, &args, &err), NBL_E_RANGE);
    indptr[1] = 3, args.v.shape[2] = 24;
    EXPECT(f.c.api->cache_append(f.cache, &args, &err), NBL_E_INVALID);
    cr_assert_eq(seen_count, 0, "the backend was called");
    args = good;
    EXPECT(f.c.api->cache_append(f.cache, &args, &err), NBL_OK);
    fixture_close(&f);
}
