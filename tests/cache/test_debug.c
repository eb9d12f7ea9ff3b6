/* SPDX-License-Identifier: Apache-2.0 */
/* What the debug mode finds, and what the statistics say as text. */
#include "ledger.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static nbl_pool seen_pool;
static nbl_region seen_regions[NBL_REGIONS_MAX];

static void pool_seen(const nbl_append_args *args)
{
    seen_pool = *args->pool;
    memcpy(seen_regions, args->pool->regions, args->pool->region_count * sizeof *seen_regions);
}

static fixture debug_open(void)
{
    nbl_cache_config config = fixture_config();
    config.flags = NBL_CACHE_DEBUG;
    fixture f = fixture_open(config);
    f.c.state->on_append = pool_seen;
    return f;
}

/* F19: poison lies in the scales, for packed codes cannot hold a NaN. */
Test(cache_debug, f19_fresh_and_freed_pages_are_poisoned)
{
    fixture f = debug_open();
    nbl_error err = NBL_INIT(nbl_error);
    const uint64_t a = fixture_seq(&f);
    fixture_grow(&f, 0, a, 1);
    for (uint32_t r = 0; r < 2; ++r) {
        const uint8_t *scales = seen_regions[r].scales;
        for (uint64_t i = 0; i < seen_regions[r].scale_page_stride * seen_regions[r].page_count; ++i)
            cr_assert_eq(scales[i], 0xff, "byte %d of region %u", (int)i, r);
    }
    memset(seen_regions[0].scales, 5, seen_regions[0].scale_page_stride); /* the page in use */
    EXPECT(f.c.api->cache_verify(f.cache, &err), NBL_OK);
    EXPECT(f.c.api->seq_free(f.cache, a, &err), NBL_OK);
    cr_assert_eq(((const uint8_t *)seen_regions[0].scales)[0], 0xff, "the freed page is not poisoned");
    EXPECT(f.c.api->cache_verify(f.cache, &err), NBL_OK);
    fixture_close(&f);
}

/* The same where a side has no scales: its codes are NaN then, and its own guards are there. */
Test(cache_debug, f19_formats_without_scales)
{
    static const uint32_t pairs[][2] = {{NBL_FORMAT_BF16, NBL_FORMAT_BF16},
                                        {NBL_FORMAT_FP16, NBL_FORMAT_FP16},
                                        {NBL_FP8_E4M3, NBL_FP8_E4M3},
                                        {NBL_NVFP4, NBL_FP8_E4M3},
                                        {NBL_INT8, NBL_FORMAT_BF16}};
    for (uint32_t i = 0; i < sizeof pairs / sizeof pairs[0]; ++i) {
        nbl_error err = NBL_INIT(nbl_error);
        nbl_cache_config config = fixture_config();
        config.flags = NBL_CACHE_DEBUG;
        config.sink_tokens = 0;
        config.k_format = pairs[i][0];
        config.v_format = pairs[i][1];
        fixture f = fixture_open(config);
        f.c.state->on_append = pool_seen;
        const uint64_t a = fixture_seq(&f);
        fixture_grow(&f, 0, a, 1);
        EXPECT(f.c.api->cache_verify(f.cache, &err), NBL_OK);
        EXPECT(f.c.api->seq_free(f.cache, a, &err), NBL_OK);
        const nbl_region *region = &seen_regions[0];
        for (uint64_t at = 0; at < region->code_page_stride; ++at)
            cr_assert_eq(((const uint8_t *)region->codes)[at], 0xff, "pair %u: code byte %d", i, (int)at);
        uint8_t *const wrong[] = {(uint8_t *)region->codes - 1, (uint8_t *)region->codes + 5};
        for (size_t w = 0; w < sizeof wrong / sizeof wrong[0]; ++w) {
            *wrong[w] ^= 1;
            EXPECT(f.c.api->cache_verify(f.cache, &err), NBL_E_STATE);
            *wrong[w] ^= 1;
        }
        EXPECT(f.c.api->cache_verify(f.cache, &err), NBL_OK);
        fixture_close(&f);
    }
}

Test(cache_debug, writes_to_guards_and_free_pages_are_found)
{
    fixture f = debug_open();
    nbl_error err = NBL_INIT(nbl_error);
    const uint64_t a = fixture_seq(&f);
    fixture_grow(&f, 0, a, 1);
    for (uint32_t r = 0; r < 2; ++r) {
        const nbl_region *region = &seen_regions[r];
        uint8_t *const wrong[] = {(uint8_t *)region->codes - 1, (uint8_t *)region->scales - 1,
                                  (uint8_t *)region->codes + region->code_page_stride * region->page_count,
                                  (uint8_t *)region->scales + region->scale_page_stride * region->page_count,
                                  (uint8_t *)region->codes + region->code_page_stride + 3};
        for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
            const uint8_t before = *wrong[i];
            *wrong[i] ^= 1;
            EXPECT(f.c.api->cache_verify(f.cache, &err), NBL_E_STATE);
            cr_assert_not_null(strstr(err.message, i < 4 ? "guard" : "written after it was freed"), "%s", err.message);
            *wrong[i] = before;
            EXPECT(f.c.api->cache_verify(f.cache, &err), NBL_OK);
        }
    }
    fixture_close(&f);
}

Test(cache_debug, plan_counts_guards)
{
    const nbl_api_v1 *api = NULL;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_config config = fixture_config();
    nbl_cache_stats plain = NBL_INIT(nbl_cache_stats), guarded = NBL_INIT(nbl_cache_stats);
    EXPECT(nbl_get_api(NULL, &api, &err), NBL_OK);
    EXPECT(api->cache_plan(&config, &plain, &err), NBL_OK);
    config.flags = NBL_CACHE_DEBUG;
    EXPECT(api->cache_plan(&config, &guarded, &err), NBL_OK);
    cr_assert_eq(guarded.total_bytes - plain.total_bytes, 2 * 3 * 256, "three guards in each pool");
    fixture f = fixture_open(config);
    cr_assert_eq(f.c.state->live_bytes, guarded.total_bytes, "allocated");
    fixture_close(&f);
}

/* ------------------------------------------------------------------------------------------------ text */

static char *text_of(ledger *l, uint32_t format)
{
    nbl_error err = NBL_INIT(nbl_error);
    uint64_t bytes = 0, again = 0;
    EXPECT(l->f.c.api->cache_stats_text(l->f.cache, format, NULL, 0, &bytes, &err), NBL_OK);
    char *text = malloc(bytes);
    cr_assert_not_null(text, "no memory");
    EXPECT(l->f.c.api->cache_stats_text(l->f.cache, format, text, bytes, &again, &err), NBL_OK);
    cr_assert(again == bytes && strlen(text) + 1 == bytes, "%d bytes of %d", (int)strlen(text) + 1, (int)bytes);
    EXPECT(l->f.c.api->cache_stats_text(l->f.cache, format, text, bytes - 1, &again, &err), NBL_E_NO_MEMORY);
    EXPECT(l->f.c.api->cache_stats_text(l->f.cache, format, text, bytes, &again, &err), NBL_OK);
    return text;
}

static json_int_t sum_of(const json_t *samples)
{
    json_int_t sum = 0;
    for (size_t i = 0; i < json_array_size(samples); ++i)
        sum += json_integer_value(json_object_get(json_array_get(samples, i), "value"));
    return sum;
}

/* The samples add up to what cache_stats says, to the byte. */
Test(cache_debug, json_adds_up)
{
    static ledger l;
    static const nbl_policy_rule last = {.layer_begin = 1, .k_format = NBL_INT8, .v_format = NBL_INT8};
    nbl_cache_config config = ledger_config();
    config.rules = &last;
    config.rule_count = 1;
    ledger_open(&l, config);
    cr_assert_eq(ledger_create(&l, 0), NBL_OK, "create");
    ledger_grow(&l, 0, 50);
    const nbl_cache_stats stats = fixture_stats(&l.f);
    char *text = text_of(&l, NBL_TEXT_JSON);
    json_t *json = json_loads(text, 0, NULL);
    cr_assert_not_null(json, "no JSON: %s", text);
    cr_assert_eq(sum_of(json_object_get(json, "cache_bytes")), (json_int_t)stats.total_bytes, "bytes");
    cr_assert_eq(sum_of(json_object_get(json, "cache_layer_bytes")), (json_int_t)(stats.code_bytes + stats.scale_bytes),
                 "layers");
    cr_assert_eq(sum_of(json_object_get(json, "cache_layer_used_bytes")), (json_int_t)stats.used_bytes, "used");
    cr_assert_eq(sum_of(json_object_get(json, "cache_pages")),
                 (json_int_t)(stats.pages_total[0] + stats.pages_total[1]), "pages");
    cr_assert_eq(json_integer_value(json_object_get(json, "cache_tokens")), 50, "tokens");
    json_decref(json);
    free(text);
    ledger_close(&l);
}

/* Each format has its own name in the labels, the one that policies know. */
Test(cache_debug, lines_name_every_format)
{
    static const char *const names[] = {"int8", "mxfp4", "mxfp4_16", "int4p", "bf16", "fp16", "fp8_e4m3", "nvfp4"};
    for (uint32_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        static ledger l;
        char line[96];
        nbl_cache_config config = ledger_config();
        config.sink_tokens = 0;
        config.k_format = NBL_INT8 + i;
        config.v_format = NBL_INT8 + (i + 1u) % 8u;
        ledger_open(&l, config);
        char *text = text_of(&l, NBL_TEXT_PROMETHEUS);
        (void)snprintf(line, sizeof line, "k_format=\"%s\",v_format=\"%s\"} ", names[i], names[(i + 1u) % 8u]);
        cr_assert_not_null(strstr(text, line), "\"%s\" is not in\n%s", line, text);
        free(text);
        ledger_close(&l);
    }
}

Test(cache_debug, prometheus_lines)
{
    static ledger l;
    ledger_open(&l, ledger_config());
    char *text = text_of(&l, NBL_TEXT_PROMETHEUS);
    static const char *const lines[] = {"# TYPE nibble_cache_tokens gauge\nnibble_cache_tokens 0\n",
                                        "# TYPE nibble_cache_forks_total counter\nnibble_cache_forks_total 0\n",
                                        "nibble_cache_bytes{tier=\"device\",kind=\"workspace\"} 1048576\n",
                                        "nibble_cache_pages{class=\"0\",state=\"used\"} 0\n",
                                        "k_format=\"int4p\",v_format=\"int8\"} "};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; ++i)
        cr_assert_not_null(strstr(text, lines[i]), "\"%s\" is not in\n%s", lines[i], text);
    free(text);
    nbl_error err = NBL_INIT(nbl_error);
    uint64_t bytes = 0;
    EXPECT(l.f.c.api->cache_stats_text(l.f.cache, 2, NULL, 0, &bytes, &err), NBL_E_INVALID);
    ledger_close(&l);
}
