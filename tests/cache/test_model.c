/* SPDX-License-Identifier: Apache-2.0 */
/* Random operations on a cache and on the naive model of it, under memory pressure and with injected failures.
 * CACHE_MODEL_OPERATIONS sets how many (default 120000 per configuration), CACHE_MODEL_SEED where they start. */
#include "ledger.h"

#include <stdlib.h>

#define OPERATIONS_DEFAULT 120000u
#define CHECK_EVERY 16u

static uint64_t state;

static uint32_t below(uint32_t limit)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % limit);
}

static uint64_t setting(const char *name, uint64_t standard)
{
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 10) : standard;
}

/* A random sequence that is alive, or that is not; LEDGER_SEQUENCES if there is none. */
static uint32_t pick(const ledger *l, bool alive)
{
    const uint32_t start = below(LEDGER_SEQUENCES);
    for (uint32_t i = 0; i < LEDGER_SEQUENCES; ++i) {
        const uint32_t index = (start + i) % LEDGER_SEQUENCES;
        if (l->all[index].alive == alive)
            return index;
    }
    return LEDGER_SEQUENCES;
}

static uint32_t pick_some(const ledger *l, ledger_part *parts, uint32_t tokens_most)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < LEDGER_SEQUENCES; ++i) {
        if (l->all[i].alive && below(3) == 0)
            parts[count++] = (ledger_part){i, below(tokens_most)};
    }
    return count;
}

/* A failure that the backend was told to give; else the call must do what the model says. */
static bool told_to_fail(const ledger *l)
{
    const counting_state *s = l->f.c.state;
    return (s->fail_operation != 0 && s->operations >= s->fail_operation) ||
           (s->fail_copy != 0 && s->copies >= s->fail_copy);
}

static void append_some(ledger *l)
{
    ledger_part parts[LEDGER_SEQUENCES];
    const uint32_t layer = below(LEDGER_LAYERS), count = pick_some(l, parts, below(4) == 0 ? 40 : 4);
    bool too_long = false;
    for (uint32_t i = 0; i < count; ++i)
        too_long |= l->all[parts[i].index].lengths[layer] + parts[i].tokens > l->f.config.sequence_tokens_max;
    const nbl_status status = ledger_append(l, layer, parts, count);
    if (status == NBL_E_DEVICE)
        cr_assert(told_to_fail(l), "an append failed by itself");
    else if (too_long)
        cr_assert(status == NBL_E_RANGE || status == NBL_E_NO_MEMORY, "status %d", status);
    else
        cr_assert(status == NBL_OK || status == NBL_E_NO_MEMORY, "status %d", status);
}

static void truncate_some(ledger *l)
{
    ledger_part parts[LEDGER_SEQUENCES];
    const uint32_t count = pick_some(l, parts, 1);
    bool good = true;
    for (uint32_t i = 0; i < count; ++i) {
        const ledger_sequence *s = &l->all[parts[i].index];
        const uint32_t tokens = ledger_tokens(s), back = below(12);
        parts[i].tokens = below(20) == 0 ? tokens + 1 : tokens - (back < tokens ? back : tokens);
        good &= parts[i].tokens <= tokens && parts[i].tokens >= s->dropped;
    }
    cr_assert_eq(ledger_truncate_batch(l, parts, count), good ? NBL_OK : NBL_E_RANGE, "truncate_batch");
}

static void truncate_one(ledger *l, uint32_t index)
{
    const ledger_sequence *s = &l->all[index];
    const uint32_t tokens = below(ledger_tokens(s) + 2);
    const bool good = tokens <= ledger_tokens(s) && tokens >= s->dropped;
    cr_assert_eq(ledger_truncate(l, index, tokens), good ? NBL_OK : NBL_E_RANGE, "truncate");
}

static void drop_one(ledger *l, uint32_t index)
{
    const ledger_sequence *s = &l->all[index];
    const uint32_t least = s->lengths[0] < s->lengths[1] ? s->lengths[0] : s->lengths[1], tokens = below(least + 2);
    cr_assert_eq(ledger_drop(l, index, tokens), tokens <= least ? NBL_OK : NBL_E_RANGE, "drop_prefix");
}

static void fork_one(ledger *l, uint32_t parent, uint32_t child)
{
    const uint32_t tokens = below(3) == 0 ? below(ledger_tokens(&l->all[parent]) + 1) : UINT32_MAX;
    const bool good = tokens >= l->all[parent].dropped;
    cr_assert_eq(ledger_fork(l, parent, tokens, child), good ? NBL_OK : NBL_E_RANGE, "fork");
}

static void publish_one(ledger *l, uint32_t index)
{
    static ledger_sequence twin;
    const ledger_sequence *s = &l->all[index];
    const uint64_t salt = index % 2;
    uint32_t tokens = 0, found = 0;
    const nbl_status status = ledger_publish(l, index, salt, below(4) * 30, &tokens);
    /* A fork that went on under the other salt is refused; everything else is published as far as that is exact. */
    cr_assert(status == NBL_OK || status == NBL_E_INVALID, "publish: %d", status);
    if (status != NBL_OK || tokens == 0)
        return;
    nbl_prefix p = NBL_INIT(nbl_prefix);
    twin = *s;
    p.tokens = twin.tokens[0];
    p.count = tokens;
    p.salt = salt;
    cr_assert_eq(l->f.c.api->prefix_match(l->f.cache, &p, &found, NULL), NBL_OK, "match");
    if (l->f.config.shape.centering == 0 && l->recent == 0 && s->dropped == 0)
        cr_assert_geq(found, tokens, "%u tokens are published and %u found", tokens, found);
}

/* A new sequence with the tokens of another one, some of them changed at times. */
static void adopt_one(ledger *l, uint32_t from, uint32_t into)
{
    uint32_t tokens[LEDGER_TOKENS], found = 0;
    const uint32_t count = ledger_whole(&l->all[from]);
    if (ledger_create(l, into) != NBL_OK)
        return;
    for (uint32_t i = 0; i < count; ++i)
        tokens[i] = l->all[from].tokens[0][i];
    if (count > 0 && below(3) == 0)
        tokens[below(count)]++;
    cr_assert_eq(ledger_adopt(l, into, tokens, count, below(2) * 40, below(2), &found), NBL_OK, "adopt");
    cr_assert(found <= count && found % l->f.config.shape.page_tokens == 0, "%u of %u tokens", found, count);
}

/* Makes one of the next backend calls fail, or one of the next copies. */
static void failure_plan(ledger *l)
{
    counting_state *s = l->f.c.state;
    s->fail_operation = below(8) == 0 ? s->operations + 1 + below(3) : 0;
    s->fail_copy = below(8) == 0 ? s->copies + 1 + below(6) : 0;
}

static void failure_end(ledger *l)
{
    l->f.c.state->fail_operation = l->f.c.state->fail_copy = 0;
}

/* A page that cannot be brought back from a tier only makes the prefix shorter. */
static void adopt_failing(ledger *l, uint32_t from, uint32_t into)
{
    failure_plan(l);
    l->f.c.state->fail_operation = 0;
    adopt_one(l, from, into);
    failure_end(l);
}

static void step(ledger *l)
{
    const uint32_t what = below(100), one = pick(l, true), none = pick(l, false);
    if (what < 45) {
        failure_plan(l);
        append_some(l);
        failure_end(l);
    } else if (what < 57 && none < LEDGER_SEQUENCES) {
        cr_assert_eq(ledger_create(l, none), NBL_OK, "create");
    } else if (one == LEDGER_SEQUENCES) {
        return;
    } else if (what < 64 && (l->f.config.flags & NBL_CACHE_PREFIX) != 0) {
        if (what < 61 || none == LEDGER_SEQUENCES)
            publish_one(l, one);
        else
            adopt_failing(l, one, none);
    } else if (what < 69 && none < LEDGER_SEQUENCES) {
        fork_one(l, one, none);
    } else if (what < 78) {
        truncate_some(l);
    } else if (what < 85) {
        truncate_one(l, one);
    } else if (what < 90) {
        drop_one(l, one);
    } else {
        cr_assert_eq(ledger_free(l, one), NBL_OK, "free");
    }
}

static void run(nbl_cache_config config)
{
    static ledger l;
    const uint64_t operations = setting("CACHE_MODEL_OPERATIONS", OPERATIONS_DEFAULT);
    state = setting("CACHE_MODEL_SEED", 1);
    ledger_open(&l, config);
    l.vocabulary = (config.flags & NBL_CACHE_PREFIX) != 0 ? 2 : 0;
    for (uint64_t i = 0; i < operations; ++i) {
        step(&l);
        if (i % CHECK_EVERY == 0)
            ledger_check(&l);
    }
    const nbl_cache_stats stats = fixture_stats(&l.f);
    cr_assert(operations < 5000 || config.host_bytes == 0 || (stats.pages_offloaded > 0 && stats.pages_restored > 0),
              "the host tier was not used");
    cr_assert(operations < 5000 || config.file_bytes == 0 || stats.pages_spilled > 0, "the file was not used");
    ledger_close(&l);
}

Test(cache_model, plain)
{
    run(ledger_config());
}

Test(cache_model, centres)
{
    nbl_cache_config config = ledger_config();
    config.shape.centering = NBL_CENTERING_MEAN;
    config.center_tokens = 32;
    run(config);
}

Test(cache_model, pages_of_one_token)
{
    nbl_cache_config config = ledger_config();
    config.shape.page_tokens = 1;
    run(config);
}

Test(cache_model, odd_pages_few_of_them)
{
    nbl_cache_config config = ledger_config();
    config.shape.page_tokens = 7;
    config.shape.centering = NBL_CENTERING_MEAN;
    config.tokens_max = 256;
    config.sink_tokens = 0;
    run(config);
}

Test(cache_model, prefixes)
{
    nbl_cache_config config = ledger_config();
    config.flags = NBL_CACHE_PREFIX;
    run(config);
}

Test(cache_model, prefixes_and_centres)
{
    nbl_cache_config config = ledger_config();
    config.flags = NBL_CACHE_PREFIX;
    config.shape.centering = NBL_CENTERING_MEAN;
    config.center_tokens = 32;
    config.tokens_max = 300;
    run(config);
}

static const nbl_policy_rule recent_rule = {
    .scope = NBL_SCOPE_RECENT, .tokens = 10, .k_format = NBL_INT8, .v_format = NBL_INT8};

Test(cache_model, recent_window)
{
    nbl_cache_config config = ledger_config();
    config.rules = &recent_rule;
    config.rule_count = 1;
    config.append_tokens_max = 100;
    run(config);
}

Test(cache_model, recent_window_and_prefixes)
{
    nbl_cache_config config = ledger_config();
    config.flags = NBL_CACHE_PREFIX;
    config.rules = &recent_rule;
    config.rule_count = 1;
    config.append_tokens_max = 60;
    config.shape.centering = NBL_CENTERING_MEAN;
    config.center_tokens = 32;
    run(config);
}

/* Layer 1 in a pool of its own. */
Test(cache_model, layers_apart)
{
    static const nbl_policy_rule rules[] = {{.layer_begin = 1, .k_format = NBL_INT8, .v_format = NBL_INT8},
                                            {.scope = NBL_SCOPE_BEYOND, .tokens = 40, .k_format = NBL_MXFP4}};
    nbl_cache_config config = ledger_config();
    config.flags = NBL_CACHE_PREFIX;
    config.rules = rules;
    config.rule_count = 2;
    run(config);
}

/* Every check also looks at guards and at all free pages. */
Test(cache_model, debug_and_locked)
{
    nbl_cache_config config = ledger_config();
    config.flags = NBL_CACHE_PREFIX | NBL_CACHE_DEBUG | NBL_CACHE_LOCKED;
    config.rules = &recent_rule;
    config.rule_count = 1;
    config.append_tokens_max = 40;
    config.tokens_max = 200;
    config.sequence_tokens_max = 100;
    run(config);
}

static nbl_cache_config tiers_config(void)
{
    nbl_cache_config config = ledger_config();
    config.flags = NBL_CACHE_PREFIX;
    config.tokens_max = 260;
    config.host_bytes = 20000; /* some 20 pages */
    return config;
}

Test(cache_model, host_tier)
{
    run(tiers_config());
}

Test(cache_model, host_and_file_tier)
{
    nbl_cache_config config = tiers_config();
    config.host_bytes = 8000;
    config.file_bytes = 30000;
    config.file_folder = "/tmp";
    config.shape.centering = NBL_CENTERING_MEAN;
    config.center_tokens = 32;
    run(config);
}
