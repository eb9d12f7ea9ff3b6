/* SPDX-License-Identifier: Apache-2.0 */
/* Public reports about caches (tests/conformance/REPORTS.md), tried on the managed cache; each test begins with the id
 * of its report. Raw pages, codecs and masks are tested by the conformance suite under the same ids. */
#include "lab.h"
#include "ledger.h"

#include <stdlib.h>
#include <string.h>

static nbl_cache_config one_format(uint32_t page_tokens)
{
    nbl_cache_config config = lab_config();
    config.shape.page_tokens = page_tokens;
    config.sink_tokens = 0;
    return config;
}

/* Spoils the order of free pages, so that the pages of the next sequences lie anywhere. */
static void shuffle(lab *l)
{
    uint32_t tokens[64];
    uint64_t s[6];
    nbl_error err = NBL_INIT(nbl_error);
    lab_count(tokens, 64, 5000);
    for (uint32_t i = 0; i < 6; ++i)
        s[i] = lab_filled(l, tokens, 20 + 7 * i, 0);
    for (uint32_t i = 0; i < 6; ++i)
        LAB_OK(l->api->seq_free(l->cache, s[(i * 5) % 6], &err));
}

/* The bits do not depend on the page size, nor on where the pages lie. */
static void page_sizes(const uint32_t *sizes, uint32_t count, uint32_t length)
{
    uint32_t tokens[LAB_TOKENS];
    lab reference, l;
    lab_count(tokens, LAB_TOKENS, 1);
    lab_open(&reference, one_format(16));
    const uint64_t a = lab_filled(&reference, tokens, length, 100);
    for (uint32_t i = 0; i < count; ++i) {
        lab_open(&l, one_format(sizes[i]));
        shuffle(&l);
        cr_assert(lab_same(&reference, a, &l, lab_filled(&l, tokens, length, 100)), "pages of %u tokens", sizes[i]);
        lab_close(&l);
    }
    lab_close(&reference);
}

Test(cache_reports, f1_page_sizes_with_shuffled_pages)
{
    static const uint32_t sizes[] = {1, 5, 16, 48, 96, 160, 192, 224};
    page_sizes(sizes, 8, 501);
}

Test(cache_reports, f2_pages_of_256_and_512_tokens)
{
    static const uint32_t sizes[] = {256, 512};
    page_sizes(sizes, 2, 512);
}

static int32_t table_seen[8];
static nbl_pool pool_seen;

static void table_look(const nbl_attend_args *args)
{
    pool_seen = *args->pool;
    memcpy(table_seen, args->page_table, args->page_table_stride * sizeof(int32_t));
}

/* F4: every entry below the length names a page of the pool, also where pages were dropped. */
Test(cache_reports, f4_table_entries_are_pages_of_the_pool)
{
    static ledger l;
    nbl_error err = NBL_INIT(nbl_error);
    ledger_open(&l, ledger_config());
    cr_assert_eq(ledger_create(&l, 0), NBL_OK, "create");
    ledger_grow(&l, 0, 30);
    cr_assert_eq(ledger_drop(&l, 0, 17), NBL_OK, "drop");
    l.f.c.state->on_attend = table_look;
    const int32_t indptr[2] = {0, 1};
    static float memory[32];
    nbl_cache_attend_args a = NBL_INIT(nbl_cache_attend_args);
    a.flags = NBL_ATTEND_CAUSAL | NBL_ATTEND_WINDOW_LEFT;
    a.window_left = 12;
    a.sequences = &l.all[0].handle;
    a.q_indptr = indptr;
    a.batch = 1;
    a.q_heads = 1;
    a.q = (nbl_tensor){.data = memory, .dtype = NBL_F32, .rank = 3, .shape = {1, 1, 32}};
    static float out[32];
    a.o = (nbl_tensor){.data = out, .dtype = NBL_F32, .rank = 3, .shape = {1, 1, 32}};
    EXPECT(l.f.c.api->cache_attend(l.f.cache, &a, &err), NBL_OK);
    const nbl_region *last = &pool_seen.regions[pool_seen.region_count - 1];
    for (uint32_t i = 0; i < 8; ++i)
        cr_assert(table_seen[i] >= 0 && (uint32_t)table_seen[i] < last->first_page + last->page_count, "entry %u is %d",
                  i, table_seen[i]);
    a.window_left = 13;
    EXPECT(l.f.c.api->cache_attend(l.f.cache, &a, &err), NBL_E_RANGE);
    cr_assert_not_null(strstr(err.message, "sees dropped tokens (allowed: tokens from 17 on)"), "%s", err.message);
    a.flags = NBL_ATTEND_CAUSAL;
    a.window_left = 0;
    EXPECT(l.f.c.api->cache_attend(l.f.cache, &a, &err), NBL_E_RANGE);
    l.f.c.state->on_attend = NULL;
    fixture_close(&l.f);
}

/* F5: offsets of pages beyond 2^32 bytes, in the addresses that the backend gets. (Reading there: `paging/F5_...`.) */
Test(cache_reports, f5_plans_beyond_4_gib_are_exact)
{
    const nbl_api_v1 *api = NULL;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_stats stats = NBL_INIT(nbl_cache_stats);
    nbl_cache_config config = one_format(64);
    config.shape.layers = 80;
    config.shape.kv_heads = 8;
    config.shape.k_dim = config.shape.v_dim = 128;
    config.sequences_max = 1;
    config.tokens_max = 1u << 22;
    cr_assert_eq(nbl_get_api(NULL, &api, NULL), NBL_OK, "no table");
    EXPECT(api->cache_plan(&config, &stats, &err), NBL_OK);
    /* int4p K 64 and int8 V 128 bytes of codes, 5 and 1 of scales, per head and token */
    cr_assert_eq(stats.code_bytes, (uint64_t)(1u << 22) * 80 * 8 * (64 + 128), "codes");
    cr_assert_eq(stats.scale_bytes, (uint64_t)(1u << 22) * 80 * 8 * (5 + 1), "scales");
}

/* F6: every fill of the last page, and pages that come back after a window was dropped. */
Test(cache_reports, f6_every_residue_and_windows_with_reuse)
{
    uint32_t tokens[200], other[100];
    static float sliding[LAB_OUT_FLOATS(2)], whole[LAB_OUT_FLOATS(2)];
    nbl_error err = NBL_INIT(nbl_error);
    lab l;
    lab_count(tokens, 200, 1);
    lab_count(other, 100, 3000);
    for (uint32_t residue = 0; residue < 16; ++residue) {
        lab_open(&l, lab_config());
        const uint64_t a = lab_filled(&l, tokens, 80 + residue, 0), b = lab_filled(&l, tokens, 80 + residue, 0);
        for (uint32_t step = 0; step < 5; ++step) {
            const uint32_t length = 80 + residue + 20 * (step + 1);
            lab_append(&l, a, tokens + length - 20, 20);
            lab_append(&l, b, tokens + length - 20, 20);
            LAB_OK(l.api->seq_drop_prefix(l.cache, a, length - 40, &err));
            const uint64_t c = lab_filled(&l, other, 40 + step, 0); /* takes the pages that were dropped */
            LAB_OK(lab_attend(&l, a, 2, 30, sliding, &err));
            LAB_OK(lab_attend(&l, b, 2, 30, whole, &err));
            cr_assert_eq(memcmp(sliding, whole, sizeof whole), 0, "residue %u, step %u", residue, step);
            LAB_OK(l.api->seq_free(l.cache, c, &err));
        }
        LAB_OK(l.api->seq_free(l.cache, b, &err));
        const nbl_cache_stats stats = lab_stats(&l);
        cr_assert_leq(stats.pages_used[0] + stats.pages_used[1], 4, "a window of 40 tokens holds %u pages",
                      stats.pages_used[0] + stats.pages_used[1]);
        lab_close(&l);
    }
}

/* F8: a page has one owner, however often its sequence is freed. */
Test(cache_reports, f8_freed_twice_gives_no_alias)
{
    static ledger l;
    ledger_open(&l, ledger_config());
    cr_assert_eq(ledger_create(&l, 0), NBL_OK, "create");
    ledger_grow(&l, 0, 20);
    const uint64_t handle = l.all[0].handle;
    cr_assert_eq(ledger_free(&l, 0), NBL_OK, "free");
    cr_assert_eq(l.f.c.api->seq_free(l.f.cache, handle, NULL), NBL_E_NOT_FOUND, "freed twice");
    for (uint32_t i = 0; i < 4; ++i) {
        cr_assert_eq(ledger_create(&l, i), NBL_OK, "create");
        ledger_grow(&l, i, 20);
        cr_assert_eq(l.f.c.api->seq_free(l.f.cache, handle, NULL), NBL_E_NOT_FOUND, "freed again");
    }
    ledger_check(&l); /* every token of every sequence is its own */
    ledger_close(&l);
}

/* report F9, report F11: 2000 requests with shared prefixes leak nothing, and counters equal a recount all the way. */
Test(cache_reports, f9_f11_counters_equal_a_recount_over_2000_lives)
{
    static ledger l;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_config config = ledger_config();
    uint32_t prompt[40], found = 0;
    config.flags = NBL_CACHE_PREFIX;
    ledger_open(&l, config);
    for (uint32_t i = 0; i < 40; ++i)
        prompt[i] = i;
    l.vocabulary = 3;
    for (uint32_t i = 0; i < 2000; ++i) {
        const uint32_t slot = i % 4;
        if (l.all[slot].alive)
            cr_assert_eq(ledger_free(&l, slot), NBL_OK, "free");
        cr_assert_eq(ledger_create(&l, slot), NBL_OK, "create");
        cr_assert_eq(ledger_adopt(&l, slot, prompt, 40, 0, 0, &found), NBL_OK, "adopt");
        ledger_grow(&l, slot, 10 + i % 50);
        cr_assert_eq(ledger_publish(&l, slot, 0, 0, NULL), NBL_OK, "publish");
        if (i % 50 == 0)
            ledger_check(&l);
    }
    for (uint32_t slot = 0; slot < 4; ++slot)
        cr_assert_eq(ledger_free(&l, slot), NBL_OK, "free");
    cr_assert_eq(fixture_stats(&l.f).used_bytes, 0, "pages are in use");
    EXPECT(l.f.c.api->prefix_clear(l.f.cache, &err), NBL_OK);
    cr_assert(fixture_stats(&l.f).pages_cached[0] == 0 && fixture_stats(&l.f).pages_cached[1] == 0, "pages are cached");
    ledger_close(&l);
}

/* F13: a fork keeps its pages when the parent goes, and the parent when the fork does. */
Test(cache_reports, f13_fork_outlives_parent_and_reverse)
{
    uint32_t tokens[120];
    nbl_error err = NBL_INIT(nbl_error);
    lab l;
    lab_count(tokens, 120, 1);
    for (uint32_t keep_child = 0; keep_child < 2; ++keep_child) {
        uint64_t child = 0;
        lab_open(&l, lab_config());
        const uint64_t parent = lab_filled(&l, tokens, 85, 0), fresh = lab_filled(&l, tokens, 85, 0);
        LAB_OK(l.api->seq_fork(l.cache, parent, UINT32_MAX, &child, &err));
        LAB_OK(l.api->seq_free(l.cache, keep_child ? parent : child, &err));
        const uint64_t kept = keep_child ? child : parent, noise = lab_filled(&l, tokens + 30, 90, 0);
        cr_assert(lab_same(&l, kept, &l, fresh), "kept %u: other bits", keep_child);
        lab_append(&l, kept, tokens + 85, 35);
        lab_append(&l, fresh, tokens + 85, 35);
        cr_assert(lab_same(&l, kept, &l, fresh), "kept %u: other bits later", keep_child);
        (void)noise;
        lab_close(&l);
    }
}

/* F16: nothing is kept by page number: a recycled page is the new owner's. */
Test(cache_reports, f16_recycled_pages_are_the_new_owners)
{
    uint32_t first[64], second[64];
    nbl_error err = NBL_INIT(nbl_error);
    lab l, fresh;
    lab_count(first, 64, 1);
    lab_count(second, 64, 700);
    lab_open(&l, lab_config());
    lab_open(&fresh, lab_config());
    const uint64_t alone = lab_filled(&fresh, second, 50, 0);
    for (uint32_t i = 0; i < 5; ++i) {
        const uint64_t a = lab_filled(&l, first, 64, 0);
        static float out[LAB_OUT_FLOATS(2)];
        LAB_OK(lab_attend(&l, a, 2, UINT32_MAX, out, &err));
        LAB_OK(l.api->seq_free(l.cache, a, &err));
        const uint64_t b = lab_filled(&l, second, 50, 0);
        cr_assert(lab_same(&l, b, &fresh, alone), "round %u: something of the old owner is left", i);
        LAB_OK(l.api->seq_free(l.cache, b, &err));
    }
    lab_close(&fresh);
    lab_close(&l);
}

/* F17: fork inside a partly filled page, both append: each has its own tokens, and the parent's bytes do not change. */
Test(cache_reports, f17_branches_inside_a_partial_page)
{
    uint32_t tokens[100], left[40], right[40];
    nbl_error err = NBL_INIT(nbl_error);
    lab_count(tokens, 100, 1);
    lab_count(left, 40, 400);
    lab_count(right, 40, 800);
    for (uint32_t length = 65; length < 80; length += 2) {
        lab l;
        uint64_t b = 0, c = 0;
        lab_open(&l, lab_config());
        const uint64_t a = lab_filled(&l, tokens, length, 0), plain = lab_filled(&l, tokens, length, 0);
        LAB_OK(l.api->seq_fork(l.cache, a, UINT32_MAX, &b, &err));
        LAB_OK(l.api->seq_fork(l.cache, a, UINT32_MAX, &c, &err));
        lab_append(&l, b, left, 20);
        lab_append(&l, c, right, 20);
        cr_assert(lab_same(&l, a, &l, plain), "length %u: the parent changed", length);
        const uint64_t left_alone = lab_filled(&l, tokens, length, 0), right_alone = lab_filled(&l, tokens, length, 0);
        lab_append(&l, left_alone, left, 20);
        lab_append(&l, right_alone, right, 20);
        cr_assert(lab_same(&l, b, &l, left_alone) && lab_same(&l, c, &l, right_alone), "length %u: a branch", length);
        cr_assert(!lab_same(&l, b, &l, c), "the branches are the same");
        lab_append(&l, a, left, 20);
        cr_assert(lab_same(&l, a, &l, left_alone), "length %u: the parent's own way", length);
        lab_close(&l);
    }
}

/* ------------------------------------------------------------------------------------------------ G */

/* G1: 40x1, 8x5 and 1x40 tokens are the same bytes, in every format, after the same first append. */
Test(cache_reports, g1_cuts_of_appends)
{
    static const uint32_t cuts[] = {1, 5, 40};
    uint32_t tokens[74];
    lab_count(tokens, 74, 1);
    for (uint32_t i = 0; i < LAB_PAIRS; ++i) {
        lab l;
        uint64_t s[3];
        nbl_cache_config config = lab_config();
        lab_pair(&config, i);
        lab_open(&l, config);
        for (uint32_t cut = 0; cut < 3; ++cut) {
            s[cut] = lab_filled(&l, tokens, 34, 0);
            for (uint32_t t = 34; t < 74; t += cuts[cut])
                lab_append(&l, s[cut], tokens + t, cuts[cut]);
        }
        cr_assert(lab_equal_bytes(&l, s[0], &l, s[1]) && lab_equal_bytes(&l, s[0], &l, s[2]), "formats %u", i);
        lab_close(&l);
    }
}

/* G4: after a truncation the sequence is as if the tokens had never been there. */
Test(cache_reports, g4_truncated_tokens_are_gone)
{
    uint32_t tokens[120];
    nbl_error err = NBL_INIT(nbl_error);
    lab_count(tokens, 120, 1);
    for (uint32_t keep = 60; keep < 100; keep += 3) {
        lab l;
        lab_open(&l, lab_config());
        const uint64_t a = lab_filled(&l, tokens, 100, 60), b = lab_filled(&l, tokens, keep, 60);
        LAB_OK(l.api->seq_truncate(l.cache, a, keep, &err));
        cr_assert(lab_same(&l, a, &l, b), "kept %u: stale tokens", keep);
        lab_append(&l, a, tokens + 100, 20);
        lab_append(&l, b, tokens + 100, 20);
        cr_assert(lab_same(&l, a, &l, b) && lab_equal_bytes(&l, a, &l, b), "kept %u: after more tokens", keep);
        lab_close(&l);
    }
}

/* G5: the rows of a batch take back 0, 2 and 5 tokens; each is right. */
Test(cache_reports, g5_rows_take_back_0_2_and_5)
{
    static const uint32_t back[] = {0, 2, 5};
    uint32_t tokens[80], keep[3];
    uint64_t s[3];
    nbl_error err = NBL_INIT(nbl_error);
    lab l;
    lab_count(tokens, 80, 1);
    lab_open(&l, lab_config());
    for (uint32_t i = 0; i < 3; ++i) {
        s[i] = lab_filled(&l, tokens, 66 + i, 60);
        keep[i] = 66 + i - back[i];
    }
    LAB_OK(l.api->seq_truncate_batch(l.cache, s, keep, 3, &err));
    for (uint32_t i = 0; i < 3; ++i) {
        cr_assert_eq(lab_length(&l, s[i]), keep[i], "row %u has %u tokens", i, lab_length(&l, s[i]));
        cr_assert(lab_same(&l, s[i], &l, lab_filled(&l, tokens, keep[i], 60)), "row %u", i);
    }
    lab_close(&l);
}

/* G6: what cannot be removed is refused with the reason, and nothing has changed; what can is removed whole. */
Test(cache_reports, g6_refused_removals_change_nothing)
{
    static ledger l;
    nbl_error err = NBL_INIT(nbl_error);
    ledger_open(&l, ledger_config());
    for (uint32_t i = 0; i < 3; ++i) {
        cr_assert_eq(ledger_create(&l, i), NBL_OK, "create");
        ledger_grow(&l, i, 20);
    }
    cr_assert_eq(ledger_drop(&l, 1, 10), NBL_OK, "drop");
    const uint64_t handles[] = {l.all[0].handle, l.all[1].handle, l.all[2].handle};
    const uint32_t tokens[] = {5, 9, 7}, too_many[] = {5, 21, 7};
    const nbl_cache_stats before = fixture_stats(&l.f);
    EXPECT(l.f.c.api->seq_truncate_batch(l.f.cache, handles, tokens, 3, &err), NBL_E_RANGE);
    cr_assert_not_null(strstr(err.message, "tokens[1] is 9, and the sequence has dropped its first 10"), "%s",
                       err.message);
    EXPECT(l.f.c.api->seq_truncate_batch(l.f.cache, handles, too_many, 3, &err), NBL_E_RANGE);
    cr_assert_not_null(strstr(err.message, "tokens[1] is 21"), "%s", err.message);
    EXPECT(l.f.c.api->seq_drop_prefix(l.f.cache, handles[0], 21, &err), NBL_E_RANGE);
    const nbl_cache_stats after = fixture_stats(&l.f);
    cr_assert_eq(memcmp(&before, &after, sizeof before), 0, "something changed");
    ledger_check(&l);
    const ledger_part all[] = {{0, 0}, {2, 0}};
    cr_assert_eq(ledger_truncate_batch(&l, all, 2), NBL_OK, "all of two sequences");
    ledger_check(&l);
    ledger_close(&l);
}

/* G7: tokens keep their positions for ever; dropping a prefix moves nothing. */
Test(cache_reports, g7_positions_stay_when_a_prefix_goes)
{
    uint32_t tokens[100];
    static float before[LAB_OUT_FLOATS(3)], after[LAB_OUT_FLOATS(3)];
    nbl_error err = NBL_INIT(nbl_error);
    lab l;
    lab_count(tokens, 100, 1);
    lab_open(&l, lab_config());
    const uint64_t a = lab_filled(&l, tokens, 100, 0);
    LAB_OK(lab_attend(&l, a, 3, 40, before, &err));
    LAB_OK(l.api->seq_drop_prefix(l.cache, a, 57, &err));
    LAB_OK(lab_attend(&l, a, 3, 40, after, &err));
    cr_assert_eq(memcmp(before, after, sizeof before), 0, "other bits");
    cr_assert_eq(lab_length(&l, a), 100, "the length has changed");
    lab_close(&l);
}

/* G10: a draft of four rows verified at once, taken back, and repeated one by one. */
Test(cache_reports, g10_drafts_equal_single_steps)
{
    uint32_t tokens[80];
    static float four[LAB_OUT_FLOATS(4)], one[LAB_OUT_FLOATS(1)];
    const uint32_t o_floats = 2 * LAB_HEADS * LAB_DIM;
    nbl_error err = NBL_INIT(nbl_error);
    lab l;
    lab_count(tokens, 80, 1);
    lab_open(&l, lab_config());
    const uint64_t a = lab_filled(&l, tokens, 70, 0);
    lab_append(&l, a, tokens + 70, 4);
    LAB_OK(lab_attend(&l, a, 4, UINT32_MAX, four, &err));
    LAB_OK(l.api->seq_truncate(l.cache, a, 70, &err));
    lab_append(&l, a, tokens + 70, 1);
    LAB_OK(lab_attend(&l, a, 1, UINT32_MAX, one, &err)); /* the lab's first query row is the same in both */
    cr_assert_eq(memcmp(four, one, o_floats * sizeof(float)), 0, "row 0 of layer 0");
    lab_close(&l);
}

/* ------------------------------------------------------------------------------------------------ H */

/* H6: a cache of other size and other number of classes takes the snapshot, and one without V of those formats does
 * not: see cache_snapshot/h6_compatible_or_refused. Here: an empty sequence is a valid snapshot too. */
Test(cache_reports, h6_an_empty_sequence_is_accepted)
{
    lab a, b;
    nbl_error err = NBL_INIT(nbl_error);
    uint64_t bytes = 0, copy = 0;
    lab_open(&a, lab_config());
    lab_open(&b, lab_config());
    const uint64_t s = lab_seq(&a);
    LAB_OK(a.api->snapshot_size(a.cache, s, &bytes, &err));
    uint8_t *memory = malloc(bytes);
    cr_assert_not_null(memory, "no memory");
    LAB_OK(a.api->snapshot_write(a.cache, s, memory, bytes, &err));
    LAB_OK(b.api->snapshot_read(b.cache, memory, bytes, &copy, &err));
    cr_assert_eq(lab_length(&b, copy), 0, "length");
    uint32_t tokens[50];
    lab_count(tokens, 50, 1);
    lab_append(&a, s, tokens, 50);
    lab_append(&b, copy, tokens, 50);
    cr_assert(lab_same(&a, s, &b, copy), "other bits");
    free(memory);
    lab_close(&b);
    lab_close(&a);
}
