/* SPDX-License-Identifier: Apache-2.0 */
/* The prefix index: a hit gives the bytes of a recomputation, or it is no hit; who is evicted, and who is told. */
#include "lab.h"
#include "ledger.h"

#include <string.h>

static nbl_cache_config prefix_config(void)
{
    nbl_cache_config config = lab_config();
    config.flags = NBL_CACHE_PREFIX;
    return config;
}

static nbl_prefix prefix_of(const uint32_t *tokens, uint32_t count, uint32_t first)
{
    nbl_prefix p = NBL_INIT(nbl_prefix);
    p.tokens = tokens;
    p.count = count;
    p.first_tokens = first;
    p.priority = 50;
    return p;
}

static uint32_t publish(lab *l, uint64_t sequence, nbl_prefix p)
{
    nbl_error err = NBL_INIT(nbl_error);
    uint32_t tokens = 0;
    LAB_OK(l->api->prefix_publish(l->cache, sequence, &p, &tokens, &err));
    return tokens;
}

static uint32_t adopt(lab *l, uint64_t sequence, nbl_prefix p)
{
    nbl_error err = NBL_INIT(nbl_error);
    uint32_t tokens = 0;
    LAB_OK(l->api->seq_adopt(l->cache, sequence, &p, &tokens, &err));
    return tokens;
}

static uint32_t match(lab *l, nbl_prefix p)
{
    nbl_error err = NBL_INIT(nbl_error);
    uint32_t tokens = 0;
    LAB_OK(l->api->prefix_match(l->cache, &p, &tokens, &err));
    return tokens;
}

/* G11: a prefix hit, then the prefill of the tail, in every format: the bits of the sequence computed from nothing. */
Test(cache_prefix, g11_hit_then_tail_equals_recomputation)
{
    uint32_t tokens[150];
    lab_count(tokens, 150, 1);
    for (uint32_t i = 0; i < LAB_PAIRS; ++i) {
        lab l;
        nbl_error err = NBL_INIT(nbl_error);
        nbl_cache_config config = prefix_config();
        lab_pair(&config, i);
        config.center_tokens = 40;
        lab_open(&l, config);
        const uint64_t first = lab_filled(&l, tokens, 120, 0);
        cr_assert_eq(publish(&l, first, prefix_of(tokens, 120, 0)), 112, "published");
        LAB_OK(l.api->seq_free(l.cache, first, &err));
        const uint64_t second = lab_seq(&l);
        cr_assert_eq(adopt(&l, second, prefix_of(tokens, 150, 0)), 112, "adopted");
        lab_append(&l, second, tokens + 112, 38);
        const uint64_t fresh = lab_filled(&l, tokens, 150, 0);
        cr_assert(lab_same(&l, second, &l, fresh), "formats %u: other bits", i);
        lab_close(&l);
    }
}

/* K is stored relative to a centre that comes from the first append: prefixes of equal tokens under another centre are
 * other bytes, so they are no hit. */
Test(cache_prefix, another_centre_is_no_hit)
{
    lab l;
    uint32_t tokens[200], other[200];
    nbl_cache_config config = prefix_config();
    lab_open(&l, config); /* centres come from up to 1024 tokens */
    lab_count(tokens, 200, 1);
    memcpy(other, tokens, sizeof other);
    other[150] = 9999;
    const uint64_t a = lab_filled(&l, tokens, 200, 0);
    publish(&l, a, prefix_of(tokens, 200, 0));
    cr_assert_eq(match(&l, prefix_of(tokens, 200, 0)), 192, "the same tokens");
    cr_assert_eq(match(&l, prefix_of(other, 200, 0)), 0, "token 150 is part of the centre");
    cr_assert_eq(match(&l, prefix_of(tokens, 180, 0)), 0, "fewer tokens make another centre");
    cr_assert_eq(match(&l, prefix_of(tokens, 200, 100)), 0, "so does a smaller first append");
    lab_close(&l);
    config.center_tokens = 64; /* from 64 tokens at most, so only they need to be the same */
    lab_open(&l, config);
    const uint64_t b = lab_filled(&l, tokens, 200, 0);
    publish(&l, b, prefix_of(tokens, 200, 0));
    cr_assert_eq(match(&l, prefix_of(other, 200, 0)), 144, "nine pages are the same");
    cr_assert_eq(match(&l, prefix_of(tokens, 180, 0)), 176, "a shorter prefix");
    cr_assert_eq(match(&l, prefix_of(tokens, 200, 100)), 192, "a first append of 100 has the same centre");
    cr_assert_eq(match(&l, prefix_of(tokens, 200, 20)), 0, "one of 20 has none");
    const uint64_t c = lab_seq(&l), d = lab_filled(&l, other, 200, 64);
    cr_assert_eq(adopt(&l, c, prefix_of(other, 200, 64)), 144, "adopted");
    lab_append(&l, c, other + 144, 56);
    cr_assert(lab_same(&l, c, &l, d), "other bits");
    lab_close(&l);
}

/* A sequence whose tokens no longer explain its bytes is not published. */
Test(cache_prefix, loose_centres_are_not_published)
{
    lab l;
    uint32_t tokens[100], other[100];
    nbl_error err = NBL_INIT(nbl_error);
    uint64_t fork = 0;
    lab_open(&l, prefix_config());
    lab_count(tokens, 100, 1);
    memcpy(other, tokens, sizeof other);
    lab_count(other + 50, 50, 700);
    const uint64_t a = lab_filled(&l, tokens, 100, 0);
    LAB_OK(l.api->seq_fork(l.cache, a, 50, &fork, &err));
    LAB_OK(l.api->seq_truncate(l.cache, a, 50, &err));
    lab_append(&l, a, other + 50, 50);
    lab_append(&l, fork, other + 50, 50);
    cr_assert_eq(publish(&l, a, prefix_of(other, 100, 0)), 0, "its centre comes from tokens that are gone");
    cr_assert_eq(publish(&l, fork, prefix_of(other, 100, 0)), 0, "so does the fork's");
    LAB_OK(l.api->seq_truncate(l.cache, a, 0, &err));
    lab_append(&l, a, other, 100);
    cr_assert_eq(publish(&l, a, prefix_of(other, 100, 0)), 96, "a new life has a new centre");
    lab_close(&l);
}

Test(cache_prefix, salt_tells_tenants_apart)
{
    lab l;
    uint32_t tokens[64];
    nbl_error err = NBL_INIT(nbl_error);
    lab_open(&l, prefix_config());
    lab_count(tokens, 64, 1);
    const uint64_t a = lab_filled(&l, tokens, 64, 0);
    nbl_prefix p = prefix_of(tokens, 64, 0);
    p.salt = 7;
    publish(&l, a, p);
    cr_assert_eq(match(&l, p), 64, "the same salt");
    p.salt = 8;
    cr_assert_eq(match(&l, p), 0, "another salt");
    cr_assert_eq(l.api->prefix_publish(l.cache, a, &p, NULL, &err), NBL_E_INVALID, "published under two salts");
    cr_assert_not_null(strstr(err.message, "published under 0x7"), "%s", err.message);
    p.salt = 7;
    tokens[63] = 0;
    cr_assert_eq(l.api->prefix_publish(l.cache, a, &p, NULL, &err), NBL_E_INVALID, "published under other tokens");
    lab_close(&l);
}

/* An append behind a truncation must not change what others find. */
Test(cache_prefix, published_pages_never_change)
{
    lab l;
    uint32_t tokens[96], other[96];
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_config config = prefix_config();
    config.center_tokens = 32;
    lab_open(&l, config);
    lab_count(tokens, 96, 1);
    lab_count(other, 96, 900);
    const uint64_t a = lab_filled(&l, tokens, 96, 0);
    publish(&l, a, prefix_of(tokens, 96, 0));
    LAB_OK(l.api->seq_truncate(l.cache, a, 70, &err)); /* inside a published page that nobody else holds */
    lab_append(&l, a, other, 26);
    cr_assert_eq(lab_stats(&l).page_copies, 2 - 1, "one page was copied");
    const uint64_t b = lab_seq(&l), fresh = lab_filled(&l, tokens, 96, 0);
    cr_assert_eq(adopt(&l, b, prefix_of(tokens, 96, 0)), 96, "adopted");
    cr_assert(lab_same(&l, b, &l, fresh), "a published page has changed");
    lab_close(&l);
}

/* A sequence whose tokens were published by another one has pages of its own. When the others are evicted, its own take
 * their place at the next publish. */
Test(cache_prefix, own_pages_take_the_place_of_evicted_ones)
{
    lab l;
    uint32_t tokens[96];
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_config config = prefix_config();
    config.center_tokens = 32;
    lab_open(&l, config);
    lab_count(tokens, 96, 1);
    const nbl_prefix p = prefix_of(tokens, 96, 0);
    const uint64_t a = lab_filled(&l, tokens, 96, 0), b = lab_filled(&l, tokens, 96, 0);
    cr_assert_eq(publish(&l, a, p), 96, "published");
    cr_assert_eq(publish(&l, b, p), 96, "found");
    LAB_OK(l.api->seq_free(l.cache, a, &err));
    LAB_OK(l.api->prefix_clear(l.cache, &err));
    cr_assert_eq(match(&l, p), 0, "still there");
    cr_assert_eq(publish(&l, b, p), 96, "published again");
    cr_assert_eq(match(&l, p), 96, "%u tokens found", match(&l, p));
    const uint64_t c = lab_seq(&l);
    cr_assert_eq(adopt(&l, c, p), 96, "adopted");
    cr_assert(lab_same(&l, b, &l, c) && lab_equal_bytes(&l, b, &l, c), "other bits");
    lab_close(&l);
}

/* ------------------------------------------------------------------------------------------------ eviction */

static uint32_t stored, evicted, last_place;

static void count_event(void *user, const nbl_cache_event *event)
{
    cr_assert_eq(*(uint32_t *)user, 42, "user");
    stored += event->kind == NBL_EVENT_STORED;
    evicted += event->kind == NBL_EVENT_EVICTED;
    last_place = event->place;
    cr_assert(event->tokens != NULL && event->page_tokens == 4, "event");
    cr_assert(event->key[0] != event->parent_key[0], "keys");
}

static nbl_cache_config small_config(uint32_t *user)
{
    nbl_cache_config config = ledger_config();
    config.flags = NBL_CACHE_PREFIX;
    config.sink_tokens = 0;
    config.k_format = config.v_format = NBL_INT8;
    config.sequences_max = 1; /* so that there are exactly tokens_max / 4 pages */
    config.tokens_max = 40;
    config.sequence_tokens_max = 40;
    config.on_event = count_event;
    config.event_user = user;
    stored = evicted = 0;
    *user = 42;
    return config;
}

/* Publishes `pages` pages of fresh tokens and frees them; the tokens go to out. */
static void leave_behind(ledger *l, uint32_t pages, uint32_t priority, uint32_t *out)
{
    uint32_t tokens = 0;
    cr_assert_eq(ledger_create(l, 0), NBL_OK, "create");
    ledger_grow(l, 0, 4 * pages);
    cr_assert_eq(ledger_publish(l, 0, 0, priority, &tokens), NBL_OK, "publish");
    cr_assert_eq(tokens, 4 * pages, "published");
    memcpy(out, l->all[0].tokens[0], 4 * pages * sizeof *out);
    cr_assert_eq(ledger_free(l, 0), NBL_OK, "free");
}

static uint32_t found(ledger *l, const uint32_t *tokens, uint32_t pages)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_prefix p = NBL_INIT(nbl_prefix);
    uint32_t count = 0;
    p.tokens = tokens;
    p.count = 4 * pages;
    EXPECT(l->f.c.api->prefix_match(l->f.cache, &p, &count, &err), NBL_OK);
    return count / 4;
}

static void take_pages(ledger *l, uint32_t pages)
{
    cr_assert_eq(ledger_create(l, 0), NBL_OK, "create");
    ledger_grow(l, 0, 4 * pages);
    ledger_check(l);
    cr_assert_eq(ledger_free(l, 0), NBL_OK, "free");
}

Test(cache_prefix, eviction_by_priority_then_age)
{
    static ledger l;
    uint32_t user, low[8], old[8], new[8], high[8];
    ledger_open(&l, small_config(&user));
    leave_behind(&l, 2, 80, high);
    leave_behind(&l, 2, 50, old);
    leave_behind(&l, 2, 50, new);
    leave_behind(&l, 2, 10, low);
    cr_assert(stored == 8 && evicted == 0, "%u stored, %u evicted", stored, evicted);
    cr_assert_eq(found(&l, old, 2), 2, "a look does not count as use");
    take_pages(&l, 3); /* two are free */
    cr_assert(found(&l, low, 2) == 1 && found(&l, old, 2) == 2, "the last page of the lowest priority goes first");
    cr_assert(evicted == 1 && last_place == 1, "%u evicted, place %u", evicted, last_place);
    take_pages(&l, 5);
    cr_assert(found(&l, low, 2) == 0 && found(&l, old, 2) == 1 && found(&l, new, 2) == 2, "then the oldest");
    take_pages(&l, 8);
    cr_assert(found(&l, old, 2) == 0 && found(&l, new, 2) == 0 && found(&l, high, 2) == 2, "the highest stays");
    take_pages(&l, 10);
    cr_assert(found(&l, high, 2) == 0 && evicted == 8, "until there is nothing else");
    ledger_close(&l);
}

/* F14: a page that a sequence holds, or that is pinned, is never evicted; the append is refused instead. */
Test(cache_prefix, f14_used_and_pinned_pages_stay)
{
    static ledger l;
    uint32_t user, pinned[12], count = 0;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_prefix p = NBL_INIT(nbl_prefix);
    nbl_cache_config config = small_config(&user);
    config.sequences_max = 2;
    ledger_open(&l, config); /* 11 pages: two sequences waste one more */
    leave_behind(&l, 3, 0, pinned);
    p.tokens = pinned;
    p.count = 12;
    EXPECT(l.f.c.api->prefix_pin(l.f.cache, &p, &count, &err), NBL_OK);
    cr_assert_eq(count, 12, "%u tokens pinned", count);
    cr_assert_eq(fixture_stats(&l.f).pages_cached[0], 3, "cached");
    cr_assert_eq(ledger_create(&l, 0), NBL_OK, "create");
    ledger_grow(&l, 0, 20);
    cr_assert_eq(ledger_publish(&l, 0, 0, 0, &count), NBL_OK, "publish");
    cr_assert_eq(ledger_create(&l, 1), NBL_OK, "create");
    const ledger_part part = {1, 16};
    cr_assert_eq(ledger_append(&l, 0, &part, 1), NBL_E_NO_MEMORY, "took a page that is in use");
    ledger_grow(&l, 1, 12);
    cr_assert(found(&l, pinned, 3) == 3 && evicted == 0, "evicted %u", evicted);
    EXPECT(l.f.c.api->prefix_unpin(l.f.cache, &p, 12, &err), NBL_OK);
    EXPECT(l.f.c.api->prefix_unpin(l.f.cache, &p, 12, &err), NBL_E_NOT_FOUND);
    ledger_grow(&l, 1, 12);
    cr_assert(found(&l, pinned, 3) == 0 && evicted == 3, "evicted %u", evicted);
    EXPECT(l.f.c.api->prefix_unpin(l.f.cache, &p, 12, &err), NBL_E_NOT_FOUND);
    ledger_check(&l);
    ledger_close(&l);
}

Test(cache_prefix, clear_and_refusals)
{
    static ledger l;
    uint32_t user, tokens[8], count = 9;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_prefix p = NBL_INIT(nbl_prefix);
    ledger_open(&l, small_config(&user));
    leave_behind(&l, 2, 0, tokens);
    EXPECT(l.f.c.api->prefix_clear(l.f.cache, &err), NBL_OK);
    cr_assert(found(&l, tokens, 2) == 0 && evicted == 2, "evicted %u", evicted);
    p.tokens = tokens;
    p.count = 8;
    p.priority = 101;
    EXPECT(l.f.c.api->prefix_match(l.f.cache, &p, &count, &err), NBL_E_INVALID);
    p.priority = 0, p.flags = 1;
    EXPECT(l.f.c.api->prefix_match(l.f.cache, &p, &count, &err), NBL_E_UNKNOWN_FIELD);
    p.flags = 0, p.tokens = NULL;
    EXPECT(l.f.c.api->prefix_match(l.f.cache, &p, &count, &err), NBL_E_INVALID);
    p.tokens = tokens;
    cr_assert_eq(ledger_create(&l, 0), NBL_OK, "create");
    ledger_grow(&l, 0, 7);
    EXPECT(l.f.c.api->seq_adopt(l.f.cache, l.all[0].handle, &p, &count, &err), NBL_E_STATE);
    EXPECT(l.f.c.api->prefix_publish(l.f.cache, l.all[0].handle, &p, &count, &err), NBL_E_RANGE);
    EXPECT(l.f.c.api->prefix_publish(l.f.cache, 5, &p, &count, &err), NBL_E_NOT_FOUND);
    cr_assert_eq(count, 9, "output written");
    ledger_close(&l);
    fixture plain = fixture_open(fixture_config());
    EXPECT(plain.c.api->prefix_match(plain.cache, &p, &count, &err), NBL_E_INVALID);
    cr_assert_not_null(strstr(err.message, "NBL_CACHE_PREFIX"), "%s", err.message);
    fixture_close(&plain);
}
