/* SPDX-License-Identifier: Apache-2.0 */
#include "fixture.h"

#include <string.h>

static nbl_cache_stats plan_of(const nbl_cache_config *config)
{
    const nbl_api_v1 *api = NULL;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_stats plan = NBL_INIT(nbl_cache_stats);
    EXPECT(nbl_get_api(NULL, &api, &err), NBL_OK);
    EXPECT(api->cache_plan(config, &plan, &err), NBL_OK);
    return plan;
}

/* By hand from docs/formats.md: per page and layer, Dk 32 and Dv 16 stored as 32 elements, 4 tokens, 2 heads.
 * int8/int8: codes 2*128 + 2*128, scales 2*16 + 2*16. int4p/int8: codes 2*64 + 2*128, scales 2*16 + 2*16. */
Test(cache_accounting, bytes_by_hand)
{
    const nbl_cache_config config = fixture_config();
    const nbl_cache_stats plan = plan_of(&config);
    /* 4 sequences with 2 sink pages each; 40 tokens in one sequence fill 10 pages, 2 of them sinks. */
    cr_assert_eq(plan.region_count, 2, "%u regions", plan.region_count);
    cr_assert_eq(plan.pages_total[0], 8, "%u sink pages", plan.pages_total[0]);
    cr_assert_eq(plan.pages_total[1], 8, "%u main pages", plan.pages_total[1]);
    cr_assert_eq(plan.code_bytes, 2 * (8 * 512 + 8 * 384), "%d code bytes", (int)plan.code_bytes);
    cr_assert_eq(plan.scale_bytes, 2 * (8 * 64 + 8 * 64), "%d scale bytes", (int)plan.scale_bytes);
    cr_assert_eq(plan.center_bytes, 0, "%d centre bytes", (int)plan.center_bytes);
    cr_assert_eq(plan.workspace_bytes, 1 << 20, "%d workspace bytes", (int)plan.workspace_bytes);
    cr_assert_eq(plan.total_bytes, plan.code_bytes + plan.scale_bytes + plan.metadata_bytes + plan.workspace_bytes,
                 "total");
    cr_assert(plan.metadata_bytes >= 64 * 8, "slots of all 64 tokens need %d bytes", 64 * 8);
}

Test(cache_accounting, centres_by_hand)
{
    nbl_cache_config config = fixture_config();
    config.shape.centering = 1;
    const nbl_cache_stats plan = plan_of(&config);
    /* 2 layers, 4 sequences, 2 heads: 16 vectors of 32 codes and one exponent. */
    cr_assert_eq(plan.center_bytes, 16 * 32 + 16, "%d centre bytes", (int)plan.center_bytes);
}

/* Largest number of pages over all ways to give tokens to sequences, counted one by one. */
static uint32_t worst_pages(uint32_t sequences, uint32_t tokens, uint32_t each, uint32_t page, uint32_t skip,
                            uint32_t most)
{
    uint32_t best = 0;
    for (uint32_t n = 0; n <= each && n <= tokens; ++n) {
        const uint32_t pages = (n + page - 1) / page;
        const uint32_t beyond = pages > skip ? pages - skip : 0;
        const uint32_t rest = sequences > 1 ? worst_pages(sequences - 1, tokens - n, each, page, skip, most) : 0;
        const uint32_t sum = rest + (beyond < most ? beyond : most);
        best = sum > best ? sum : best;
    }
    return best;
}

Test(cache_accounting, pages_are_the_worst_split)
{
    for (uint32_t page = 1; page <= 5; page += 2) {
        for (uint32_t tokens = 1; tokens <= 13; ++tokens) {
            for (uint32_t sequences = 1; sequences <= 3; ++sequences) {
                for (uint32_t sinks = 0; sinks <= 9; sinks += 3) {
                    for (uint32_t each = 0; each <= tokens; each += 4) {
                        nbl_cache_config c = fixture_config();
                        c.shape.page_tokens = page;
                        c.tokens_max = tokens;
                        c.sequences_max = sequences;
                        c.sink_tokens = sinks;
                        c.sequence_tokens_max = each;
                        const uint32_t longest = each > 0 ? each : tokens, last = sinks > 0 ? 1 : 0;
                        const uint32_t whole = (longest + page - 1) / page;
                        const uint32_t asked = (sinks + page - 1) / page, kept = asked < whole ? asked : whole;
                        const uint32_t wanted = worst_pages(sequences, tokens, longest, page, kept, whole);
                        const nbl_cache_stats plan = plan_of(&c);
                        if (sinks > 0)
                            cr_assert_eq(plan.pages_total[0], worst_pages(sequences, tokens, longest, page, 0, kept),
                                         "sinks: P %u T %u S %u sinks %u each %u", page, tokens, sequences, sinks,
                                         each);
                        cr_assert_eq(plan.region_count, last > 0 && kept < whole ? 2 : 1, "regions");
                        if (last == 0 || kept < whole)
                            cr_assert_eq(plan.pages_total[last], wanted > 0 ? wanted : 1,
                                         "P %u T %u S %u sinks %u each %u", page, tokens, sequences, sinks, each);
                    }
                }
            }
        }
    }
}

Test(cache_accounting, live_cache_equals_plan_to_the_byte)
{
    counting c = counting_open();
    nbl_error err = NBL_INIT(nbl_error);
    for (uint32_t i = 0; i < 64; ++i) { /* all pairs of formats; fp16 goes with no tokens in int8 */
        nbl_cache_config config = fixture_config();
        nbl_cache_stats live = NBL_INIT(nbl_cache_stats);
        nbl_cache *cache = NULL;
        config.k_format = NBL_INT8 + i % 8;
        config.v_format = NBL_INT8 + i / 8;
        config.shape.centering = i / 2 % 2;
        config.shape.page_tokens = 1 + 3 * i;
        config.shape.k_dim = 24 + 8 * (i % 3);
        const bool is_fp16 = config.k_format == NBL_FORMAT_FP16 || config.v_format == NBL_FORMAT_FP16;
        config.sink_tokens = is_fp16 ? 0 : i % 5 * 7;
        config.workspace_mib = 1 + i % 2;
        const nbl_cache_stats plan = plan_of(&config);
        EXPECT(c.api->cache_create(c.device, &config, &cache, &err), NBL_OK);
        cr_assert_eq(c.state->live_bytes, plan.total_bytes, "%u: %d bytes allocated, %d planned", i,
                     (int)c.state->live_bytes, (int)plan.total_bytes);
        EXPECT(c.api->cache_stats(cache, &live, &err), NBL_OK);
        cr_assert_eq(memcmp(&live, &plan, sizeof live), 0, "%u: stats differ from the plan", i);
        EXPECT(c.api->cache_destroy(cache, &err), NBL_OK);
        cr_assert_eq(c.state->live_bytes, 0, "%u: memory stayed", i);
    }
    counting_close(&c);
}

Test(cache_accounting, int8_needs_no_sink_region)
{
    nbl_cache_config config = fixture_config();
    config.k_format = config.v_format = NBL_INT8;
    cr_assert_eq(plan_of(&config).region_count, 1, "two regions of one format pair");
}

Test(cache_accounting, nothing_is_allocated_after_creation)
{
    fixture f = fixture_open(fixture_config());
    nbl_error err = NBL_INIT(nbl_error);
    const uint64_t allocations = f.c.state->allocations, a = fixture_seq(&f), b = fixture_seq(&f);
    for (uint32_t i = 0; i < 9; ++i) {
        for (uint32_t layer = 0; layer < 2; ++layer) {
            EXPECT(fixture_append(&f, layer, 2, (const uint64_t[]){a, b}, (const int32_t[]){2, 1}, &err), NBL_OK);
            EXPECT(fixture_attend(&f, layer, 2, (const uint64_t[]){b, a}, (const int32_t[]){1, 1}, &err), NBL_OK);
        }
    }
    cr_assert_eq(f.c.state->allocations, allocations, "an append or attend allocated");
    fixture_close(&f);
}

/* Whatever allocation fails, creation fails and keeps nothing. */
Test(cache_accounting, failed_creation_keeps_nothing)
{
    counting c = counting_open();
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_config config = fixture_config();
    nbl_cache *cache = NULL;
    config.shape.centering = 1;
    for (uint32_t limit = 1; limit < 5; ++limit) {
        c.state->allocations = 0;
        c.state->allocation_limit = limit;
        EXPECT(c.api->cache_create(c.device, &config, &cache, &err), NBL_E_NO_MEMORY);
        cr_assert_eq(c.state->live_blocks, 0, "limit %u: memory stayed", limit);
        cr_assert(cache == NULL, "limit %u: output written", limit);
    }
    c.state->allocation_limit = 0;
    c.state->supports = NBL_E_UNSUPPORTED;
    EXPECT(c.api->cache_create(c.device, &config, &cache, &err), NBL_E_UNSUPPORTED);
    cr_assert_eq(c.state->live_blocks, 0, "unsupported: memory stayed");
    counting_close(&c);
}

#define REFUSED(text, ...)                                                                          \
    do {                                                                                            \
        nbl_cache_config config = fixture_config();                                                 \
        __VA_ARGS__;                                                                                \
        cr_assert_eq(api->cache_plan(&config, &plan, &err), NBL_E_INVALID, "taken: " text);         \
        cr_assert(strstr(err.message, text) != NULL, "\"%s\" is not in \"%s\"", text, err.message); \
    } while (0)

Test(cache_accounting, bad_configurations)
{
    const nbl_api_v1 *api = NULL;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_stats plan = NBL_INIT(nbl_cache_stats);
    EXPECT(nbl_get_api(NULL, &api, &err), NBL_OK);
    REFUSED("shape.layers is 0", config.shape.layers = 0);
    REFUSED("shape.v_dim is 13", config.shape.v_dim = 13);
    REFUSED("k_format is 0", config.k_format = 0);
    REFUSED("v_format is 9", config.v_format = 9);
    REFUSED("sink_tokens is 16777217", config.sink_tokens = (1u << 24) + 1u);
    REFUSED("sequences_max is 0", config.sequences_max = 0);
    REFUSED("sequences_max is 65537", config.sequences_max = 65537);
    REFUSED("tokens_max is 0", config.tokens_max = 0);
    REFUSED("tokens_max is 2147483648", config.tokens_max = 1ull << 31);
    REFUSED("sequence_tokens_max is 41 (allowed: 0 to 40)", config.sequence_tokens_max = 41);
    REFUSED("workspace_mib is 4294967295", config.workspace_mib = UINT32_MAX);
    REFUSED("2^62 bytes", config.tokens_max = INT32_MAX, config.shape.kv_heads = 65536, config.shape.layers = 65536);
    nbl_cache_config config = fixture_config();
    config.flags = 128;
    EXPECT(api->cache_plan(&config, &plan, &err), NBL_E_UNKNOWN_FIELD);
    config = fixture_config();
    config.struct_size = 10;
    EXPECT(api->cache_plan(&config, &plan, &err), NBL_E_ABI);
    EXPECT(api->cache_plan(NULL, &plan, &err), NBL_E_INVALID);
    cr_assert_eq(plan.total_bytes, 0, "output written");
}
