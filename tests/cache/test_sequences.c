/* SPDX-License-Identifier: Apache-2.0 */
#include "fixture.h"

#include <string.h>

/* The pages of the bug class "one block leaked per request". */
Test(cache_sequences, two_thousand_lives_leak_no_page)
{
    fixture f = fixture_open(fixture_config());
    nbl_error err = NBL_INIT(nbl_error);
    for (uint32_t i = 0; i < 2000; ++i) {
        const uint64_t a = fixture_seq(&f), b = fixture_seq(&f);
        fixture_grow(&f, 0, a, 1 + (int32_t)(i % 19));
        fixture_grow(&f, 1, b, 1 + (int32_t)(i % 17));
        fixture_grow(&f, 1, a, 1);
        EXPECT(f.c.api->seq_free(f.cache, i % 2 ? a : b, &err), NBL_OK);
        EXPECT(f.c.api->seq_free(f.cache, i % 2 ? b : a, &err), NBL_OK);
    }
    const nbl_cache_stats stats = fixture_stats(&f);
    cr_assert(stats.pages_used[0] == 0 && stats.pages_used[1] == 0, "%u and %u pages in use", stats.pages_used[0],
              stats.pages_used[1]);
    cr_assert(stats.sequences == 0 && stats.tokens == 0 && stats.used_bytes == 0, "counters are not 0");
    fixture_close(&f);
}

Test(cache_sequences, handles_are_used_once)
{
    fixture f = fixture_open(fixture_config());
    nbl_error err = NBL_INIT(nbl_error);
    uint32_t tokens = 77;
    const uint64_t a = fixture_seq(&f);
    EXPECT(f.c.api->seq_free(f.cache, a, &err), NBL_OK);
    EXPECT(f.c.api->seq_free(f.cache, a, &err), NBL_E_NOT_FOUND);
    cr_assert(strstr(err.message, "was freed") != NULL, "%s", err.message);
    const uint64_t b = fixture_seq(&f);
    cr_assert_neq(a, b, "a handle came back");
    fixture_grow(&f, 0, b, 3);
    EXPECT(f.c.api->seq_length(f.cache, a, 0, &tokens, &err), NBL_E_NOT_FOUND);
    EXPECT(f.c.api->seq_truncate(f.cache, a, 0, &err), NBL_E_NOT_FOUND);
    EXPECT(fixture_append(&f, 0, 1, &a, (const int32_t[]){1}, &err), NBL_E_NOT_FOUND);
    EXPECT(fixture_attend(&f, 0, 1, &a, (const int32_t[]){1}, &err), NBL_E_NOT_FOUND);
    EXPECT(f.c.api->seq_free(f.cache, 0, &err), NBL_E_NOT_FOUND);
    EXPECT(f.c.api->seq_free(f.cache, b ^ 1u, &err), NBL_E_NOT_FOUND);
    EXPECT(f.c.api->seq_free(f.cache, b + (2ull << 32), &err), NBL_E_NOT_FOUND);
    EXPECT(f.c.api->seq_free(f.cache, UINT64_MAX, &err), NBL_E_NOT_FOUND);
    cr_assert_eq(tokens, 77, "output written");
    cr_assert_eq(fixture_length(&f, b, 0), 3, "the living sequence changed");
    fixture_close(&f);
}

Test(cache_sequences, handles_of_another_cache_are_foreign)
{
    fixture f = fixture_open(fixture_config());
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache *other = NULL;
    EXPECT(f.c.api->cache_create(f.c.device, &f.config, &other, &err), NBL_OK);
    const uint64_t a = fixture_seq(&f);
    EXPECT(f.c.api->seq_free(other, a, &err), NBL_E_NOT_FOUND);
    EXPECT(f.c.api->close(f.c.device, &err), NBL_E_STATE);
    EXPECT(f.c.api->cache_destroy(other, &err), NBL_OK);
    EXPECT(f.c.api->cache_destroy(other, &err), NBL_E_STATE);
    EXPECT(f.c.api->seq_free(other, a, &err), NBL_E_STATE);
    EXPECT(f.c.api->cache_destroy(NULL, &err), NBL_OK);
    EXPECT(f.c.api->seq_free(NULL, a, &err), NBL_E_INVALID);
    EXPECT(f.c.api->seq_free((nbl_cache *)(void *)f.c.device, a, &err), NBL_E_STATE);
    fixture_close(&f);
}

Test(cache_sequences, no_more_than_sequences_max)
{
    fixture f = fixture_open(fixture_config());
    nbl_error err = NBL_INIT(nbl_error);
    uint64_t handles[4], more = 5;
    for (uint32_t i = 0; i < 4; ++i)
        handles[i] = fixture_seq(&f);
    EXPECT(f.c.api->seq_create(f.cache, &more, &err), NBL_E_NO_MEMORY);
    cr_assert_eq(more, 5, "output written");
    EXPECT(f.c.api->seq_free(f.cache, handles[2], &err), NBL_OK);
    EXPECT(f.c.api->seq_create(f.cache, &more, &err), NBL_OK);
    cr_assert_eq(fixture_stats(&f).sequences, 4, "sequences");
    fixture_close(&f);
}

Test(cache_sequences, truncate_returns_pages)
{
    fixture f = fixture_open(fixture_config());
    nbl_error err = NBL_INIT(nbl_error);
    const uint64_t a = fixture_seq(&f);
    fixture_grow(&f, 0, a, 21);
    fixture_grow(&f, 1, a, 9);
    cr_assert(fixture_stats(&f).pages_used[0] == 2 && fixture_stats(&f).pages_used[1] == 4,
              "21 tokens are 2 + 4 pages");
    EXPECT(f.c.api->seq_truncate(f.cache, a, 22, &err), NBL_E_RANGE);
    EXPECT(f.c.api->seq_truncate(f.cache, a, 21, &err), NBL_OK);
    cr_assert_eq(fixture_length(&f, a, 0), 21, "unchanged");
    EXPECT(f.c.api->seq_truncate(f.cache, a, 13, &err), NBL_OK);
    cr_assert(fixture_length(&f, a, 0) == 13 && fixture_length(&f, a, 1) == 9, "lengths after 13");
    cr_assert(fixture_stats(&f).pages_used[0] == 2 && fixture_stats(&f).pages_used[1] == 2,
              "13 tokens are 2 + 2 pages");
    EXPECT(f.c.api->seq_truncate(f.cache, a, 4, &err), NBL_OK);
    cr_assert(fixture_length(&f, a, 0) == 4 && fixture_length(&f, a, 1) == 4, "lengths after 4");
    cr_assert(fixture_stats(&f).pages_used[0] == 1 && fixture_stats(&f).pages_used[1] == 0, "4 tokens are one page");
    EXPECT(f.c.api->seq_truncate(f.cache, a, 0, &err), NBL_OK);
    cr_assert_eq(fixture_stats(&f).pages_used[0], 0, "no token, no page");
    fixture_grow(&f, 1, a, 2);
    cr_assert(fixture_length(&f, a, 0) == 0 && fixture_length(&f, a, 1) == 2, "grown again");
    EXPECT(f.c.api->seq_length(f.cache, a, 2, &(uint32_t){0}, &err), NBL_E_RANGE);
    fixture_close(&f);
}
