/* SPDX-License-Identifier: Apache-2.0 */
/* Policies: what text stands for, which classes of pages follow from it, and that demotion is exact. */
#include "fixture.h"
#include "lab.h"

#include <string.h>

static const nbl_api_v1 *api_get(void)
{
    const nbl_api_v1 *api = NULL;
    cr_assert_eq(nbl_get_api(NULL, &api, NULL), NBL_OK, "no table");
    return api;
}

static nbl_policy parsed(const char *text)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_policy p = NBL_INIT(nbl_policy);
    LAB_OK(api_get()->policy_parse(text, 32, 128, 128, &p, &err));
    return p;
}

Test(cache_policy, a_recipe_is_a_policy)
{
    static const char *const names[] = {
        "qk4v8", "mxkv4", "kv4", "k4v8", "kv8", "kv4,hadamard=32,center=1,sinks=7", "nvfp4_4over6", "mxfp4_16/int8"};
    nbl_error err = NBL_INIT(nbl_error);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        nbl_recipe r = NBL_INIT(nbl_recipe);
        const nbl_policy p = parsed(names[i]);
        LAB_OK(api_get()->recipe_parse(names[i], 128, 128, &r, &err));
        cr_assert(p.q_format == r.q_format && p.k_format == r.k_format && p.v_format == r.v_format, "%s", names[i]);
        cr_assert(p.k_hadamard == r.k_hadamard && p.v_hadamard == r.v_hadamard && p.centering == r.centering, "%s",
                  names[i]);
        cr_assert(p.sink_tokens == r.sink_tokens && p.rule_count == 0, "%s", names[i]);
        cr_assert_eq(p.scale_rule, r.scale_rule, "%s", names[i]);
    }
    cr_assert_eq(parsed("nvfp4_4over6").scale_rule, NBL_RULE_FOUR_OVER_SIX, "four over six");
}

Test(cache_policy, pairs_of_formats)
{
    static const struct {
        const char *text;
        uint32_t k_format, v_format, k_hadamard, v_hadamard, centering, sink_tokens;
    } rows[] = {{"int4p/int8", NBL_INT4P, NBL_INT8, 128, 128, NBL_CENTERING_ALL, 64},
                {"int8/int8", NBL_INT8, NBL_INT8, 128, 128, NBL_CENTERING_ALL, 0},
                {"mxfp4_16/int4p", NBL_MXFP4_16, NBL_INT4P, 32, 128, NBL_CENTERING_ALL, 64},
                {"nvfp4/fp8_e4m3", NBL_NVFP4, NBL_FP8_E4M3, 0, 0, 0, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        const nbl_policy p = parsed(rows[i].text);
        cr_assert(p.k_format == rows[i].k_format && p.v_format == rows[i].v_format, "%s", rows[i].text);
        cr_assert(p.k_hadamard == rows[i].k_hadamard && p.v_hadamard == rows[i].v_hadamard, "%s", rows[i].text);
        cr_assert(p.centering == rows[i].centering && p.sink_tokens == rows[i].sink_tokens, "%s", rows[i].text);
    }
    const nbl_policy p = parsed("kv4,layers=3:int8/mxfp4");
    cr_assert(p.rules[0].k_format == NBL_INT8 && p.rules[0].v_format == NBL_MXFP4, "a pair for a layer");
}

Test(cache_policy, modifiers_become_rules)
{
    const nbl_policy p =
        parsed("kv4,recent=256:k,layers=last4:kv8,beyond=65536,layers=0-1:mxkv4,sinks=16,layers=7:kv8");
    const nbl_policy_rule expected[] = {
        {0, 0, NBL_SCOPE_RECENT, 256, NBL_INT8, 0, 0, 0},
        {28, 32, NBL_SCOPE_ALL, 0, NBL_INT8, NBL_INT8, 128, 128},
        {0, 0, NBL_SCOPE_BEYOND, 65536, NBL_INT8, NBL_INT8, 0, 0},
        {0, 2, NBL_SCOPE_ALL, 0, NBL_MXFP4, NBL_MXFP4, 32, 32},
        {7, 8, NBL_SCOPE_ALL, 0, NBL_INT8, NBL_INT8, 128, 128},
    };
    cr_assert_eq(p.rule_count, 5, "%u rules", p.rule_count);
    cr_assert_eq(memcmp(p.rules, expected, sizeof expected), 0, "rules");
    cr_assert_eq(p.sink_tokens, 16, "sinks");
}

Test(cache_policy, default_is_kv4_with_a_recent_window)
{
    static const char *const same[][2] = {{"default", "kv4,recent=128"},
                                          {"default,sinks=0", "kv4,sinks=0,recent=128"},
                                          {"default,recent=64:k", "kv4,recent=64:k"},
                                          {"default,layers=0:kv8", "kv4,layers=0:kv8,recent=128"}};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; ++i) {
        const nbl_policy a = parsed(same[i][0]), b = parsed(same[i][1]);
        cr_assert_eq(memcmp(&a, &b, sizeof a), 0, "%s", same[i][0]);
    }
    cr_assert_eq(parsed("default").rules[0].tokens, 128, "window");
}

Test(cache_policy, refusals)
{
    static const struct {
        const char *text;
        nbl_status status;
        const char *message;
    } rows[] = {{"kv5", NBL_E_NOT_FOUND, "nvfp4_4over6, mpfa, default; or K/V of int8"},
                {"kv5", NBL_E_NOT_FOUND, "recipe \"kv5\" is unknown (known: qk4v8"},
                {"int4/int8", NBL_E_NOT_FOUND, "recipe \"int4/int8\" is unknown"},
                {"int8/", NBL_E_NOT_FOUND, "recipe \"int8/\" is unknown"},
                {"/int8", NBL_E_NOT_FOUND, "recipe \"/int8\" is unknown"},
                {"int8/int8/int8", NBL_E_NOT_FOUND, "recipe \"int8/int8/int8\" is unknown"},
                {"defaults", NBL_E_NOT_FOUND, "recipe \"defaults\" is unknown"},
                {"default/int8", NBL_E_NOT_FOUND, "recipe \"default/int8\" is unknown"},
                {"default,recent=5,recent=6", NBL_E_INVALID, "comes twice"},
                {"kv4,layers=1:default", NBL_E_NOT_FOUND, "recipe \"default\" is unknown"},
                {"kv4,now=3", NBL_E_INVALID, "policy modifier \"now=3\" is unknown (known: hadamard=N"},
                {"kv4,recent=", NBL_E_INVALID, "\"recent=\" has no such number"},
                {"kv4,recent=0", NBL_E_INVALID, "\"recent=0\" has no such number"},
                {"kv4,recent=5:q", NBL_E_INVALID, "\"recent=5:q\" has no such number"},
                {"kv4,recent=5,recent=6", NBL_E_INVALID, "comes twice"},
                {"kv4,beyond=99999999", NBL_E_INVALID, "has no such number"},
                {"kv4,layers=kv8", NBL_E_INVALID, "names no layers of 0..31"},
                {"kv4,layers=32:kv8", NBL_E_INVALID, "names no layers of 0..31"},
                {"kv4,layers=3-2:kv8", NBL_E_INVALID, "names no layers"},
                {"kv4,layers=last33:kv8", NBL_E_INVALID, "names no layers"},
                {"kv4,layers=first0:kv8", NBL_E_INVALID, "names no layers"},
                {"kv4,layers=-1:kv8", NBL_E_INVALID, "names no layers"},
                {"kv4,layers=1:kv9", NBL_E_NOT_FOUND, "nvfp4_4over6, mpfa; or K/V of int8"},
                {"kv4,layers=0:kv8,layers=1:kv8,layers=2:kv8,layers=3:kv8,layers=4:kv8,layers=5:kv8,layers=6:kv8,"
                 "layers=7:kv8,layers=8:kv8,layers=9:kv8,layers=10:kv8,layers=11:kv8,layers=12:kv8,layers=13:kv8,"
                 "layers=14:kv8,layers=15:kv8,layers=16:kv8",
                 NBL_E_INVALID, "(allowed: 16"},
                {"kv4,sinks=1,sinks=2", NBL_E_INVALID, "comes twice"},
                {"mpfa,sinks=64", NBL_E_INVALID, "modifier sinks keeps tokens in int8, and queries are in FP4"},
                {"mpfa,recent=40", NBL_E_INVALID, "modifier recent keeps tokens in int8, and queries are in FP4"},
                {"mpfa,beyond=40:v", NBL_E_INVALID, "modifier beyond keeps tokens in int8"},
                {"mpfa,layers=last1:kv8", NBL_E_INVALID, "modifier layers gives layers formats"},
                {"fp16,sinks=16", NBL_E_INVALID, "modifier sinks keeps tokens in int8 beside fp16"},
                {"fp16,recent=16:k", NBL_E_INVALID, "modifier recent keeps tokens in int8 beside fp16"},
                {"bf16/fp16,beyond=16:v", NBL_E_INVALID, "modifier beyond keeps tokens in int8 beside fp16"},
                {"bf16/fp16,beyond=16:k", NBL_OK, ""},
                {"kv4,layers=0:qk4v8", NBL_E_INVALID, "\"layers=0:qk4v8\" asks for queries or scales that"},
                {"nvfp4,layers=0:nvfp4_4over6", NBL_E_INVALID, "asks for queries or scales"},
                {"nvfp4,layers=0:mpfa", NBL_E_INVALID, "asks for queries or scales"},
                {"nvfp4_4over6,layers=0:nvfp4_4over6", NBL_OK, ""},
                {"qk4v8,layers=0:qk4v8,layers=1:kv8", NBL_OK, ""},
                {"fp16,layers=last1:kv8", NBL_OK, ""},
                {"mpfa,layers=last1:nvfp4/fp8_e4m3", NBL_OK, ""}};
    nbl_error err = NBL_INIT(nbl_error);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        nbl_policy out = NBL_INIT(nbl_policy);
        cr_assert_eq(api_get()->policy_parse(rows[i].text, 32, 128, 128, &out, &err), rows[i].status, "%s",
                     rows[i].text);
        cr_assert_not_null(strstr(err.message, rows[i].message), "\"%s\" is not in \"%s\"", rows[i].message,
                           err.message);
    }
    nbl_policy p = NBL_INIT(nbl_policy);
    cr_assert_eq(api_get()->policy_parse(NULL, 32, 128, 128, &p, &err), NBL_E_INVALID, "NULL");
    cr_assert_eq(api_get()->policy_parse("kv4", 0, 128, 128, &p, &err), NBL_E_INVALID, "no layers");
    cr_assert_eq(p.k_format, 0, "output written");
}

static nbl_cache_stats planned(const nbl_policy_rule *rules, uint32_t count)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_stats stats = NBL_INIT(nbl_cache_stats);
    nbl_cache_config config = lab_config();
    config.rules = rules;
    config.rule_count = count;
    LAB_OK(api_get()->cache_plan(&config, &stats, &err));
    return stats;
}

/* By hand: 2 layers, 2 heads, pages of 16 tokens, 32 elements. int8: 1024 code and 64 scale bytes per layer for each of
 * K and V; int4p K: 512 and 64 (one plane of pairs, one of exponents). */
Test(cache_policy, bytes_of_layers_by_hand)
{
    const nbl_policy_rule last = {.layer_begin = 1, .k_format = NBL_INT8, .v_format = NBL_INT8};
    const nbl_cache_stats plain = planned(NULL, 0), apart = planned(&last, 1);
    cr_assert_eq(apart.region_count, 2, "%u classes", apart.region_count);
    cr_assert(apart.pages_total[0] == plain.pages_total[0] && apart.pages_total[1] == plain.pages_total[1], "pages");
    cr_assert_eq(apart.code_bytes - plain.code_bytes, (uint64_t)plain.pages_total[1] * 512, "%d code bytes more",
                 (int)(apart.code_bytes - plain.code_bytes));
    cr_assert_eq(plain.scale_bytes - apart.scale_bytes, (uint64_t)plain.pages_total[1] * 32, "%d scale bytes less",
                 (int)(plain.scale_bytes - apart.scale_bytes));
}

Test(cache_policy, windows_by_hand)
{
    const nbl_policy_rule recent = {
        .scope = NBL_SCOPE_RECENT, .tokens = 40, .k_format = NBL_INT8, .v_format = NBL_INT8};
    const nbl_cache_stats plain = planned(NULL, 0), windowed = planned(&recent, 1);
    /* Sinks are int8 already. 8 sequences: 3 pages of the window, 2 at its ends; 2048 tokens in a step: 128 pages. */
    cr_assert_eq(windowed.region_count, 2, "%u classes", windowed.region_count);
    cr_assert_eq(windowed.pages_total[0], plain.pages_total[0] + 8 * 5 + 128, "%u pages", windowed.pages_total[0]);
    cr_assert_eq(windowed.pages_total[1], plain.pages_total[1], "%u pages", windowed.pages_total[1]);
}

Test(cache_policy, bad_rules)
{
    static const struct {
        nbl_policy_rule rule;
        const char *message;
    } rows[] = {{{.layer_begin = 2}, "rules[0].layer_begin is 2"},
                {{.layer_end = 3}, "rules[0].layer_end is 3"},
                {{.scope = 4}, "rules[0].scope is 4"},
                {{.tokens = 1}, "rules[0].tokens is 1"},
                {{.scope = NBL_SCOPE_RECENT}, "rules[0].tokens is 0"},
                {{.k_format = 9}, "rules[0].k_format is 9"},
                {{.v_format = 9}, "rules[0].v_format is 9"},
                {{.k_hadamard = 24}, "rules[0].k_hadamard is 24"},
                {{.scope = NBL_SCOPE_FIRST, .tokens = 8, .v_hadamard = 8}, "only with NBL_SCOPE_ALL"}};
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_stats stats = NBL_INIT(nbl_cache_stats);
    nbl_cache_config config = lab_config();
    nbl_policy_rule many[16];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        config.rules = &rows[i].rule;
        config.rule_count = 1;
        cr_assert_eq(api_get()->cache_plan(&config, &stats, &err), NBL_E_INVALID, "row %d", (int)i);
        cr_assert_not_null(strstr(err.message, rows[i].message), "\"%s\" is not in \"%s\"", rows[i].message,
                           err.message);
    }
    for (uint32_t i = 0; i < 16; ++i)
        many[i] = (nbl_policy_rule){
            .scope = NBL_SCOPE_FIRST, .tokens = 16 * (16 - i), .k_format = 1 + i % 4, .v_format = 1 + i / 4 % 4};
    config.rules = many;
    config.rule_count = 16;
    cr_assert_eq(api_get()->cache_plan(&config, &stats, &err), NBL_E_INVALID, "16 kinds of pages");
    config.rule_count = 17;
    cr_assert_eq(api_get()->cache_plan(&config, &stats, &err), NBL_E_INVALID, "17 rules");
    config.rules = NULL;
    config.rule_count = 1;
    cr_assert_eq(api_get()->cache_plan(&config, &stats, &err), NBL_E_INVALID, "no rules");
    const nbl_policy_rule two[] = {{.scope = NBL_SCOPE_RECENT, .tokens = 8, .k_format = 1},
                                   {.scope = NBL_SCOPE_RECENT, .tokens = 9, .v_format = 1}};
    config.rules = two;
    config.rule_count = 2;
    cr_assert_eq(api_get()->cache_plan(&config, &stats, &err), NBL_E_INVALID, "two windows");
}

/* ------------------------------------------------------------------------------------------------ bits */

/* G2: the recent window stays as small as it is said to be, and the bytes do not depend on how tokens came. */
Test(cache_policy, g2_window_is_bounded_and_cuts_do_not_matter)
{
    const nbl_policy_rule recent = {
        .scope = NBL_SCOPE_RECENT, .tokens = 40, .k_format = NBL_INT8, .v_format = NBL_INT8};
    static const uint32_t pairs[][2] = {{NBL_INT4P, NBL_INT8},
                                        {NBL_MXFP4, NBL_MXFP4_16},
                                        {NBL_INT4P, NBL_INT4P},
                                        {NBL_NVFP4, NBL_NVFP4},
                                        {NBL_FP8_E4M3, NBL_FORMAT_BF16}};
    uint32_t tokens[300];
    lab_count(tokens, 300, 1);
    for (uint32_t i = 0; i < sizeof pairs / sizeof pairs[0]; ++i) {
        lab l;
        nbl_cache_config config = lab_config();
        config.k_format = pairs[i][0];
        config.v_format = pairs[i][1];
        config.rules = &recent;
        config.rule_count = 1;
        lab_open(&l, config);
        const uint64_t whole = lab_filled(&l, tokens, 300, 0), single = lab_filled(&l, tokens, 300, 299);
        const uint64_t steps = lab_seq(&l);
        lab_append(&l, steps, tokens, 299 - 250);
        for (uint32_t t = 49; t < 300; ++t) {
            lab_append(&l, steps, tokens + t, 1);
            /* 2 pages of sinks and at most 3 + 1 of the window for each of three sequences */
            cr_assert_leq(lab_stats(&l).pages_used[0], 3 * 6, "token %u: %u int8 pages", t,
                          lab_stats(&l).pages_used[0]);
        }
        /* The centre comes from 300, 299 and 49 tokens, so only two of them can be equal. */
        const uint64_t again = lab_filled(&l, tokens, 300, 49);
        cr_assert(lab_equal_bytes(&l, steps, &l, again), "pair %u: the cut matters", i);
        cr_assert(lab_same(&l, steps, &l, again), "pair %u: other bits", i);
        cr_assert(!lab_equal_bytes(&l, whole, &l, single), "the comparison does not see anything");
        lab_close(&l);
    }
}

/* Each layer gives the bits of a cache that stores all layers in its way. */
Test(cache_policy, layers_are_independent)
{
    const nbl_policy_rule last = {.layer_begin = 1, .k_format = NBL_INT8, .v_format = NBL_INT8, .k_hadamard = 16};
    enum { HALF = LAB_OUT_FLOATS(3) / LAB_LAYERS };
    static float mixed_out[LAB_OUT_FLOATS(3)], first_out[LAB_OUT_FLOATS(3)], last_out[LAB_OUT_FLOATS(3)];
    uint32_t tokens[100];
    nbl_error err = NBL_INIT(nbl_error);
    lab mixed, first, second;
    nbl_cache_config config = lab_config();
    lab_count(tokens, 100, 1);
    lab_open(&first, config);
    config.rules = &last;
    config.rule_count = 1;
    lab_open(&mixed, config);
    config = lab_config();
    config.k_format = config.v_format = NBL_INT8;
    config.shape.k_hadamard = 16;
    lab_open(&second, config);
    LAB_OK(lab_attend(&mixed, lab_filled(&mixed, tokens, 100, 60), 3, UINT32_MAX, mixed_out, &err));
    LAB_OK(lab_attend(&first, lab_filled(&first, tokens, 100, 60), 3, UINT32_MAX, first_out, &err));
    LAB_OK(lab_attend(&second, lab_filled(&second, tokens, 100, 60), 3, UINT32_MAX, last_out, &err));
    cr_assert_eq(memcmp(mixed_out, first_out, HALF * sizeof(float)), 0, "layer 0");
    cr_assert_eq(memcmp(mixed_out + HALF, last_out + HALF, HALF * sizeof(float)), 0, "layer 1");
    lab_close(&second);
    lab_close(&mixed);
    lab_close(&first);
}

/* A prefix hit with a recent window: once the rest is appended, the bytes of a recomputation. */
Test(cache_policy, prefix_hit_with_a_window)
{
    const nbl_policy_rule recent = {
        .scope = NBL_SCOPE_RECENT, .tokens = 40, .k_format = NBL_INT8, .v_format = NBL_INT8};
    uint32_t tokens[200], found = 0;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_prefix p = NBL_INIT(nbl_prefix);
    lab l;
    nbl_cache_config config = lab_config();
    config.flags = NBL_CACHE_PREFIX;
    config.center_tokens = 32;
    config.rules = &recent;
    config.rule_count = 1;
    lab_count(tokens, 200, 1);
    lab_open(&l, config);
    const uint64_t a = lab_filled(&l, tokens, 200, 0), b = lab_seq(&l);
    p.tokens = tokens;
    p.count = 200;
    LAB_OK(l.api->prefix_publish(l.cache, a, &p, &found, &err));
    cr_assert_eq(found, 160, "%u tokens published: those outside the window", found);
    p.count = 130;
    LAB_OK(l.api->seq_adopt(l.cache, b, &p, &found, &err));
    cr_assert_eq(found, 80, "%u tokens adopted: the window of 130 tokens begins in the page after them", found);
    lab_append(&l, b, tokens + 80, 50);
    const uint64_t c = lab_filled(&l, tokens, 130, 0);
    cr_assert(lab_equal_bytes(&l, b, &l, c) && lab_same(&l, b, &l, c), "other bytes");
    LAB_OK(l.api->seq_truncate(l.cache, b, 70, &err)); /* inside a demoted page */
    lab_append(&l, b, tokens + 70, 60);
    p.count = 130;
    LAB_OK(l.api->prefix_publish(l.cache, b, &p, &found, &err));
    cr_assert_leq(found, 80, "%u tokens: a page written in its final format at once is not published", found);
    lab_close(&l);
}

static uint32_t published(fixture *f, uint64_t sequence, uint32_t count)
{
    static const uint32_t tokens[64] = {0};
    nbl_error err = NBL_INIT(nbl_error);
    nbl_prefix p = NBL_INIT(nbl_prefix);
    uint32_t found = 0;
    p.tokens = tokens;
    p.count = count;
    EXPECT(f->c.api->prefix_publish(f->cache, sequence, &p, &found, &err), NBL_OK);
    return found;
}

/* A fork that goes on in a layer that its parent has not begun gets centres of its own, and keeps to know from how many
 * tokens those of the other layers come. */
Test(cache_policy, forks_know_where_their_centres_come_from)
{
    nbl_cache_config config = fixture_config();
    nbl_error err = NBL_INIT(nbl_error);
    uint64_t child = 0;
    config.flags = NBL_CACHE_PREFIX;
    config.shape.centering = NBL_CENTERING_MEAN;
    config.center_tokens = 32;
    config.tokens_max = 160;
    config.sequence_tokens_max = 40;
    fixture f = fixture_open(config);
    const uint64_t parent = fixture_seq(&f);
    fixture_grow(&f, 0, parent, 36);
    EXPECT(f.c.api->seq_fork(f.cache, parent, UINT32_MAX, &child, &err), NBL_OK);
    fixture_grow(&f, 1, child, 36);
    cr_assert_eq(published(&f, child, 36), 36, "not published");
    fixture_close(&f);
}

/* A fork demotes no page twice; one that goes on inside a demoted page is not published, for its bytes would not be
 * those of a recomputation. */
Test(cache_policy, forks_know_what_is_demoted)
{
    static const nbl_policy_rule recent = {
        .scope = NBL_SCOPE_RECENT, .tokens = 8, .k_format = NBL_INT8, .v_format = NBL_INT8};
    nbl_cache_config config = fixture_config();
    nbl_error err = NBL_INIT(nbl_error);
    uint64_t whole = 0, inside = 0;
    config.flags = NBL_CACHE_PREFIX;
    config.sink_tokens = 0;
    config.tokens_max = 160;
    config.sequence_tokens_max = 40;
    config.rules = &recent;
    config.rule_count = 1;
    fixture f = fixture_open(config);
    const uint64_t parent = fixture_seq(&f);
    for (uint32_t layer = 0; layer < 2; ++layer)
        fixture_grow(&f, layer, parent, 24);
    cr_assert_eq(fixture_stats(&f).pages_demoted, 4, "%d demoted", (int)fixture_stats(&f).pages_demoted);
    EXPECT(f.c.api->seq_fork(f.cache, parent, UINT32_MAX, &whole, &err), NBL_OK);
    EXPECT(f.c.api->seq_fork(f.cache, parent, 10, &inside, &err), NBL_OK);
    for (uint32_t layer = 0; layer < 2; ++layer)
        fixture_grow(&f, layer, whole, 4);
    cr_assert_eq(fixture_stats(&f).pages_demoted, 5, "%d demoted", (int)fixture_stats(&f).pages_demoted);
    for (uint32_t layer = 0; layer < 2; ++layer)
        fixture_grow(&f, layer, inside, 18);
    cr_assert_eq(published(&f, inside, 28), 0, "published");
    cr_assert_eq(published(&f, whole, 28), 20, "not published");
    fixture_close(&f);
}
