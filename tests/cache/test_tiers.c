/* SPDX-License-Identifier: Apache-2.0 */
/* Pages that leave the device for host memory or a file, and come back. */
#include "lab.h"
#include "ledger.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define PROMPT LAB_TIER_PROMPT

static uint32_t offloaded[3], restored[3], evicted[3];

static void count_event(void *user, const nbl_cache_event *event)
{
    (void)user;
    uint32_t *const counters[] = {NULL, NULL, evicted, offloaded, restored};
    if (event->kind != NBL_EVENT_STORED)
        counters[event->kind][event->tier]++;
}

/* A small device, so that prompts push each other out. */
static nbl_cache_config tiers_config(uint64_t host_pages, uint64_t file_pages)
{
    nbl_cache_config config = lab_tier_config("/tmp");
    config.host_bytes = config.host_bytes / LAB_TIER_HOST_PAGES * host_pages;
    config.file_bytes = config.file_bytes / LAB_TIER_FILE_PAGES * file_pages;
    config.on_event = count_event;
    memset(offloaded, 0, sizeof offloaded);
    memset(restored, 0, sizeof restored);
    memset(evicted, 0, sizeof evicted);
    return config;
}

/* Prefills prompt number `prompt`, publishes it, and frees the sequence. */
static void prompt_run(lab *l, uint32_t prompt)
{
    uint32_t tokens[PROMPT];
    nbl_error err = NBL_INIT(nbl_error);
    LAB_OK(l->api->seq_free(l->cache, lab_published(l, prompt, tokens), &err));
}

/* Tokens of a prompt that are found; they must be the bytes, and give the bits, of a recomputation. */
static uint32_t prompt_find(lab *l, uint32_t prompt)
{
    uint32_t tokens[PROMPT], found = 0;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_prefix p = NBL_INIT(nbl_prefix);
    lab plain;
    lab_count(tokens, PROMPT, 1000 * prompt);
    p.tokens = tokens;
    p.count = PROMPT;
    const uint64_t s = lab_seq(l);
    LAB_OK(l->api->seq_adopt(l->cache, s, &p, &found, &err));
    if (found < PROMPT)
        lab_append(l, s, tokens + found, PROMPT - found);
    nbl_cache_config config = tiers_config(0, 0);
    config.on_event = NULL;
    lab_open(&plain, config);
    const uint64_t again = lab_filled(&plain, tokens, PROMPT, 0);
    cr_assert(lab_equal_bytes(l, s, &plain, again), "prompt %u: other bytes", prompt);
    cr_assert(lab_same(l, s, &plain, again), "prompt %u: other bits", prompt);
    lab_close(&plain);
    LAB_OK(l->api->seq_free(l->cache, s, &err));
    return found;
}

/* H2, H7: pages that were pushed out to host memory under pressure, with their scales, come back byte for byte. */
Test(cache_tiers, h2_h7_host_tier_gives_back_the_bytes)
{
    lab l;
    nbl_error err = NBL_INIT(nbl_error);
    lab_open(&l, tiers_config(100, 0));
    for (uint32_t prompt = 1; prompt <= 4; ++prompt)
        prompt_run(&l, prompt);
    const nbl_cache_stats stats = lab_stats(&l);
    cr_assert(stats.pages_offloaded > 15 && stats.pages_evicted == 0 && evicted[0] == 0, "%d offloaded, %d evicted",
              (int)stats.pages_offloaded, (int)stats.pages_evicted);
    cr_assert(stats.host_pages_total == 100 && stats.host_pages_used == stats.pages_offloaded, "%u pages in the host",
              stats.host_pages_used);
    for (uint32_t prompt = 1; prompt <= 4; ++prompt) {
        const uint32_t found = prompt_find(&l, prompt);
        cr_assert_eq(found, PROMPT, "prompt %u: %u tokens", prompt, found);
    }
    cr_assert_gt(lab_stats(&l).pages_restored, 15, "restored");
    LAB_OK(l.api->prefix_clear(l.cache, &err));
    cr_assert_eq(lab_stats(&l).host_pages_used, 0, "pages stayed in the host");
    lab_close(&l);
}

Test(cache_tiers, file_takes_what_the_host_cannot_hold)
{
    lab l;
    lab_open(&l, tiers_config(5, 60));
    for (uint32_t prompt = 1; prompt <= 5; ++prompt)
        prompt_run(&l, prompt);
    const nbl_cache_stats stats = lab_stats(&l);
    cr_assert(stats.host_pages_used <= 5 && stats.pages_spilled > 10 && stats.pages_evicted == 0,
              "%u in the host, %d spilled", stats.host_pages_used, (int)stats.pages_spilled);
    for (uint32_t prompt = 1; prompt <= 5; ++prompt)
        cr_assert_eq(prompt_find(&l, prompt), PROMPT, "prompt %u", prompt);
    lab_close(&l);
}

Test(cache_tiers, budgets_hold)
{
    lab l;
    lab_open(&l, tiers_config(5, 7));
    for (uint32_t prompt = 1; prompt <= 6; ++prompt)
        prompt_run(&l, prompt);
    const nbl_cache_stats stats = lab_stats(&l);
    cr_assert(stats.host_pages_used <= 5 && stats.file_pages_used <= 7, "%u and %u pages", stats.host_pages_used,
              stats.file_pages_used);
    cr_assert_gt(stats.pages_evicted, 0, "nothing was evicted");
    cr_assert_eq(prompt_find(&l, 6), PROMPT, "the last prompt");
    cr_assert_lt(prompt_find(&l, 1), PROMPT, "the first prompt is partly gone");
    lab_close(&l);
}

/* A prefix that is pinned while it is in the host tier stays there, whatever comes after it. */
Test(cache_tiers, pinned_pages_stay)
{
    lab l;
    uint32_t tokens[PROMPT], pinned = 0;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_prefix p = NBL_INIT(nbl_prefix);
    lab_open(&l, tiers_config(14, 0));
    for (uint32_t prompt = 1; prompt <= 3; ++prompt)
        prompt_run(&l, prompt);
    lab_count(tokens, PROMPT, 1000);
    p.tokens = tokens;
    p.count = PROMPT;
    LAB_OK(l.api->prefix_pin(l.cache, &p, &pinned, &err));
    cr_assert_eq(pinned, PROMPT, "%u tokens pinned", pinned);
    for (uint32_t prompt = 4; prompt <= 7; ++prompt)
        prompt_run(&l, prompt);
    cr_assert_gt(evicted[1], 0, "nothing had to go");
    cr_assert_eq(prompt_find(&l, 1), PROMPT, "the pinned prompt is gone");
    LAB_OK(l.api->prefix_unpin(l.cache, &p, pinned, &err));
    lab_close(&l);
}

Test(cache_tiers, refusals)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_stats stats = NBL_INIT(nbl_cache_stats);
    const nbl_api_v1 *api = NULL;
    nbl_cache_config config = tiers_config(5, 5);
    cr_assert_eq(nbl_get_api(NULL, &api, NULL), NBL_OK, "no table");
    config.flags = 0;
    cr_assert_eq(api->cache_plan(&config, &stats, &err), NBL_E_INVALID, "a tier without an index");
    config = tiers_config(0, 5);
    cr_assert_eq(api->cache_plan(&config, &stats, &err), NBL_E_INVALID, "a file without host memory");
    config = tiers_config(5, 5);
    config.file_folder = NULL;
    cr_assert_eq(api->cache_plan(&config, &stats, &err), NBL_E_INVALID, "a file nowhere");
    lab l;
    lab_open(&l, tiers_config(0, 0));
    nbl_cache *cache = NULL;
    config.file_folder = "/nowhere/at/all";
    cr_assert_eq(l.api->cache_create(l.device, &config, &cache, &err), NBL_E_IO, "%s", err.message);
    cr_assert_null(cache, "output written");
    lab_close(&l);
}

/* The file has no name, so a process that is killed leaves nothing behind. */
Test(cache_tiers, the_file_has_no_name)
{
    lab l;
    char folder[] = "/tmp/nibble-test-XXXXXX";
    cr_assert_not_null(mkdtemp(folder), "no temporary folder");
    nbl_cache_config config = tiers_config(2, 60);
    config.file_folder = folder;
    lab_open(&l, config);
    for (uint32_t prompt = 1; prompt <= 4; ++prompt)
        prompt_run(&l, prompt);
    cr_assert_gt(lab_stats(&l).pages_spilled, 0, "the file is not in use");
    cr_assert_eq(rmdir(folder), 0, "the folder is not empty while the file is in use");
    cr_assert_eq(prompt_find(&l, 1), PROMPT, "the file works without its folder");
    lab_close(&l);
}

/* The descriptor of the file tier, found by its lack of a name. */
static int tier_file(void)
{
    for (int fd = 3; fd < 64; ++fd) {
        char link[64], target[256];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        const ssize_t length = readlink(link, target, sizeof target - 1);
        target[length > 0 ? length : 0] = '\0';
        if (strncmp(target, "/tmp/", 5) == 0 && strstr(target, "(deleted)") != NULL)
            return fd;
    }
    cr_assert_fail("the file tier has no descriptor");
    return -1;
}

/* Bytes of the file that have changed are found; the page is computed anew, and the bits are right. */
Test(cache_tiers, a_damaged_file_is_a_miss)
{
    lab l;
    lab_open(&l, tiers_config(2, 60));
    for (uint32_t prompt = 1; prompt <= 4; ++prompt)
        prompt_run(&l, prompt);
    const int file = tier_file();
    for (off_t at = 0; at < 200000; at += 1024)
        (void)!pwrite(file, "?", 1, at);
    cr_assert_lt(prompt_find(&l, 1), PROMPT, "a damaged page was used");
    const nbl_cache_stats stats = lab_stats(&l);
    cr_assert(stats.tier_failures > 0 && stats.pages_evicted > 0, "%d failures", (int)stats.tier_failures);
    for (uint32_t prompt = 1; prompt <= 4; ++prompt)
        (void)prompt_find(&l, prompt);
    lab_close(&l);
}

/* A disk that is full, here a limit on the size of files: pages that cannot be written are evicted and counted, the
 * others come back, and all bits are right. */
Test(cache_tiers, a_full_disk_is_a_miss)
{
    lab l;
    lab_open(&l, tiers_config(2, 60));
    const nbl_cache_stats plan = lab_stats(&l);
    const struct rlimit limit = {plan.file_bytes / 6, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0, "setrlimit");
    for (uint32_t prompt = 1; prompt <= 4; ++prompt)
        prompt_run(&l, prompt);
    const nbl_cache_stats stats = lab_stats(&l);
    cr_assert(stats.tier_failures > 0 && stats.pages_spilled > 0 && stats.file_pages_used == stats.pages_spilled,
              "%d failures, %d spilled, %u in the file", (int)stats.tier_failures, (int)stats.pages_spilled,
              stats.file_pages_used);
    cr_assert_eq(stats.pages_evicted, stats.tier_failures, "%d evicted", (int)stats.pages_evicted);
    for (uint32_t prompt = 1; prompt <= 4; ++prompt)
        (void)prompt_find(&l, prompt);
    lab_close(&l);
}

/* A copy that fails makes a page evicted, or a prefix shorter, and nothing else. */
Test(cache_tiers, failing_copies)
{
    static ledger l;
    nbl_cache_config config = ledger_config();
    uint32_t tokens[40], found = 0;
    config.flags = NBL_CACHE_PREFIX;
    config.sink_tokens = 0;
    config.sequences_max = 2;
    config.tokens_max = 80;
    config.sequence_tokens_max = 80;
    config.host_bytes = 1 << 20;
    ledger_open(&l, config);
    cr_assert_eq(ledger_create(&l, 0), NBL_OK, "create");
    ledger_grow(&l, 0, 40);
    cr_assert_eq(ledger_publish(&l, 0, 0, 0, &found), NBL_OK, "publish");
    memcpy(tokens, l.all[0].tokens[0], sizeof tokens);
    cr_assert_eq(ledger_free(&l, 0), NBL_OK, "free");
    cr_assert_eq(ledger_create(&l, 1), NBL_OK, "create");
    ledger_grow(&l, 1, 76); /* pushes all but one of them out */
    cr_assert_eq(ledger_free(&l, 1), NBL_OK, "free");
    const nbl_cache_stats stats = fixture_stats(&l.f);
    cr_assert_geq(stats.pages_offloaded, 8, "%d pages offloaded", (int)stats.pages_offloaded);
    for (uint32_t i = 0; i < 6; ++i) {
        l.f.c.state->fail_copy = l.f.c.state->copies + 1 + 3 * i;
        cr_assert_eq(ledger_create(&l, 0), NBL_OK, "create");
        cr_assert_eq(ledger_adopt(&l, 0, tokens, 40, 0, 0, &found), NBL_OK, "adopt");
        l.f.c.state->fail_copy = 0;
        ledger_check(&l);
        cr_assert_eq(ledger_free(&l, 0), NBL_OK, "free");
    }
    cr_assert_gt(fixture_stats(&l.f).tier_failures, 0, "no copy failed");
    cr_assert_eq(ledger_create(&l, 0), NBL_OK, "create");
    cr_assert_eq(ledger_adopt(&l, 0, tokens, 40, 0, 0, &found), NBL_OK, "adopt");
    cr_assert_eq(found, 40, "%u tokens are left", found);
    ledger_close(&l);
}

/* The host tier lies in the backend's page-locked memory, as much as planned; without it there is no cache. */
Test(cache_tiers, page_locked_memory_of_the_backend)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_config config = ledger_config();
    config.flags = NBL_CACHE_PREFIX;
    config.host_bytes = 100000;
    fixture f = fixture_open(config);
    const nbl_cache_stats stats = fixture_stats(&f);
    cr_assert(stats.host_bytes > 90000 && stats.host_bytes <= 100000, "%d bytes", (int)stats.host_bytes);
    cr_assert_eq(f.c.state->host_bytes, stats.host_bytes, "%d bytes allocated", (int)f.c.state->host_bytes);
    nbl_cache *cache = NULL;
    f.c.state->host_fails = true;
    EXPECT(f.c.api->cache_create(f.c.device, &config, &cache, &err), NBL_E_NO_MEMORY);
    cr_assert_not_null(strstr(err.message, "host_bytes"), "%s", err.message);
    fixture_close(&f);
    cr_assert_eq(f.c.state->host_bytes, 0, "host memory stayed");
}
