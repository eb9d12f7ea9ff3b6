/* SPDX-License-Identifier: Apache-2.0 */
/* The steady state asks for no memory: neither the backend's nor the host's. The library is linked into this program,
 * and the linker leads its calls of malloc, calloc and realloc here. */
#include "fixture.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_uint asked;

/* Visible, for the linker leads the calls of some sanitizers' libraries here too. */
#pragma GCC visibility push(default)
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
#pragma GCC visibility pop

void *__wrap_malloc(size_t bytes)
{
    atomic_fetch_add(&asked, 1);
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    atomic_fetch_add(&asked, 1);
    return __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    atomic_fetch_add(&asked, 1);
    return __real_realloc(memory, bytes);
}

/* One life of a conversation and its branch. */
static void round_run(fixture *f, uint32_t round)
{
    const nbl_api_v1 *api = f->c.api;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_prefix p = NBL_INIT(nbl_prefix);
    uint32_t tokens[12], found = 0;
    uint64_t branch = 0;
    for (uint32_t i = 0; i < 12; ++i)
        tokens[i] = 100 * (round % 5u) + i;
    p.tokens = tokens;
    p.count = 12;
    const uint64_t s = fixture_seq(f);
    EXPECT(api->seq_adopt(f->cache, s, &p, &found, &err), NBL_OK);
    for (uint32_t layer = 0; found < 12 && layer < 2; ++layer)
        fixture_grow(f, layer, s, (int32_t)(12 - found));
    EXPECT(api->prefix_publish(f->cache, s, &p, NULL, &err), NBL_OK);
    EXPECT(api->prefix_pin(f->cache, &p, &found, &err), NBL_OK);
    EXPECT(api->prefix_unpin(f->cache, &p, found, &err), NBL_OK);
    EXPECT(api->seq_fork(f->cache, s, 10, &branch, &err), NBL_OK);
    for (uint32_t step = 0; step < 4; ++step) {
        for (uint32_t layer = 0; layer < 2; ++layer) {
            EXPECT(fixture_append(f, layer, 2, (const uint64_t[]){s, branch}, (const int32_t[]){1, 1}, &err), NBL_OK);
            EXPECT(fixture_attend(f, layer, 2, (const uint64_t[]){s, branch}, (const int32_t[]){1, 1}, &err), NBL_OK);
        }
    }
    EXPECT(api->seq_truncate(f->cache, branch, 11, &err), NBL_OK);
    EXPECT(api->seq_truncate_batch(f->cache, (const uint64_t[]){s, branch}, (const uint32_t[]){13, 10}, 2, &err),
           NBL_OK);
    EXPECT(api->seq_drop_prefix(f->cache, branch, 5, &err), NBL_OK);
    EXPECT(api->seq_free(f->cache, s, &err), NBL_OK);
    EXPECT(api->seq_free(f->cache, branch, &err), NBL_OK);
    (void)fixture_stats(f);
}

Test(cache_allocation, steady_state_asks_for_none)
{
    nbl_cache_config config = fixture_config();
    config.flags = NBL_CACHE_PREFIX;
    config.host_bytes = 4000;
    config.file_bytes = 4000;
    config.file_folder = "/tmp";
    const unsigned none = atomic_load(&asked);
    fixture f = fixture_open(config);
    const unsigned opened = atomic_load(&asked);
    const uint64_t device = f.c.state->allocations;
    cr_assert_gt(opened, none, "the calls do not come here");
    for (uint32_t round = 0; round < 500; ++round)
        round_run(&f, round);
    const nbl_cache_stats stats = fixture_stats(&f);
    cr_assert(stats.pages_offloaded > 0 && stats.pages_restored > 0 && stats.page_copies > 0 && stats.pages_spilled > 0,
              "%d offloaded, %d restored, %d copied, %d spilled", (int)stats.pages_offloaded, (int)stats.pages_restored,
              (int)stats.page_copies, (int)stats.pages_spilled);
    cr_assert_eq(atomic_load(&asked), opened, "%u requests for host memory", atomic_load(&asked) - opened);
    cr_assert_eq(f.c.state->allocations, device, "%d for the backend's", (int)(f.c.state->allocations - device));
    fixture_close(&f);
}
