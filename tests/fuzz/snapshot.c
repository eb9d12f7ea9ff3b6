/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a snapshot: refused in words, the cache as it was, or loaded into a sequence that can be used. If the
 * first byte is odd, versions, sizes and checksums are put right first, so that what lies behind them is reached. */
#include "fuzz.h"

#include "cache/hash.h"

#include <nibble/nibble.h>
#include <string.h>

enum { LAYERS = 2, HEADS = 2, DIM = 16, PAGE = 4 };
/* Bytes of docs/kv-cache.md, "Snapshots". */
enum { VERSIONS_AT = 8, HEAD_BYTES_AT = 72, TOTAL_BYTES_AT = 80, HEAD_BYTES = 88, HASH_BYTES = 16 };

static const nbl_api_v1 *api;
static nbl_cache *cache;
static uint64_t page_bytes;

static void cache_open(void)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_load_options load = NBL_INIT(nbl_load_options);
    nbl_cache_config config = NBL_INIT(nbl_cache_config);
    nbl_cache_stats plan = NBL_INIT(nbl_cache_stats);
    nbl_runtime *runtime = NULL;
    nbl_device *device = NULL;
    load.flags = NBL_LOAD_IGNORE_ENV;
    load.backend = "counting";
    load.backend_dir = COUNTING_DIR;
    config.flags = NBL_CACHE_DEBUG;
    config.shape.layers = LAYERS;
    config.shape.kv_heads = HEADS;
    config.shape.k_dim = config.shape.v_dim = DIM;
    config.shape.page_tokens = PAGE;
    config.shape.centering = NBL_CENTERING_ALL;
    config.k_format = config.v_format = NBL_INT8;
    config.sequences_max = 2;
    config.tokens_max = 64;
    config.workspace_mib = 1;
    FUZZ_REQUIRE(nbl_get_api(NULL, &api, &err) == NBL_OK);
    FUZZ_REQUIRE(api->load(&load, &runtime, NULL, &err) == NBL_OK);
    FUZZ_REQUIRE(api->open(runtime, NULL, &device, &err) == NBL_OK);
    FUZZ_REQUIRE(api->cache_create(device, &config, &cache, &err) == NBL_OK);
    nbl_page_layout layout = NBL_INIT(nbl_page_layout);
    config.shape.struct_size = sizeof config.shape;
    FUZZ_REQUIRE(api->kv_layout(&config.shape, NBL_INT8, NBL_INT8, &layout, &err) == NBL_OK);
    page_bytes = LAYERS * (layout.code_page_bytes + layout.scale_page_bytes);
    FUZZ_REQUIRE(api->cache_plan(&config, &plan, &err) == NBL_OK && plan.region_count == 1);
}

/* Writes the hash of the bytes before `at` from `begin` on. */
static void hash_put(uint8_t *bytes, uint64_t begin, uint64_t at)
{
    static const uint64_t key[2] = {0, 0};
    const nbl_hash hash = nbl_hash_of(key, bytes + begin, at - begin);
    memcpy(bytes + at, &hash, HASH_BYTES);
}

static void repair(uint8_t *bytes, uint64_t size)
{
    const uint32_t versions[] = {1, NBL_NUMERICS_VERSION, NBL_LAYOUT_VERSION};
    uint64_t at;
    if (size < HEAD_BYTES)
        return;
    memcpy(bytes, "NBLSNAP\n", VERSIONS_AT);
    memcpy(bytes + VERSIONS_AT, versions, sizeof versions);
    memcpy(bytes + TOTAL_BYTES_AT, &size, sizeof size);
    memcpy(&at, bytes + HEAD_BYTES_AT, sizeof at);
    if (size < HASH_BYTES || at > size - HASH_BYTES)
        return;
    hash_put(bytes, 0, at);
    for (at += HASH_BYTES; size - at >= page_bytes + HASH_BYTES; at += page_bytes + HASH_BYTES)
        hash_put(bytes, at, at + page_bytes);
}

/* A sequence that was loaded is like any other: it is listed, forked, saved again, and freed. */
static void use(uint64_t sequence)
{
    nbl_error err = NBL_INIT(nbl_error);
    uint64_t bytes = 0, branch = 0;
    uint32_t tokens = 0;
    FUZZ_REQUIRE(api->seq_length(cache, sequence, LAYERS - 1, &tokens, &err) == NBL_OK && tokens <= 64);
    FUZZ_REQUIRE(api->seq_fork(cache, sequence, UINT32_MAX, &branch, &err) == NBL_OK);
    FUZZ_REQUIRE(api->snapshot_size(cache, branch, &bytes, &err) == NBL_OK);
    uint8_t *again = malloc(bytes);
    FUZZ_REQUIRE(again != NULL && api->snapshot_write(cache, branch, again, bytes, &err) == NBL_OK);
    free(again);
    FUZZ_REQUIRE(api->seq_free(cache, sequence, &err) == NBL_OK && api->seq_free(cache, branch, &err) == NBL_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_stats stats = NBL_INIT(nbl_cache_stats);
    uint64_t sequence = 0;
    if (cache == NULL)
        cache_open();
    if (size == 0)
        return 0;
    uint8_t *bytes = malloc(size);
    FUZZ_REQUIRE(bytes != NULL);
    memcpy(bytes, data + 1, size - 1);
    if (data[0] % 2u == 1u)
        repair(bytes, size - 1);
    if (api->snapshot_read(cache, bytes, size - 1, &sequence, &err) == NBL_OK)
        use(sequence);
    else
        FUZZ_REQUIRE(sequence == 0 && err.message[0] != '\0' && strpbrk(err.message, "\n\r") == NULL);
    free(bytes);
    FUZZ_REQUIRE(api->cache_stats(cache, &stats, &err) == NBL_OK && stats.sequences == 0 && stats.pages_used[0] == 0);
    FUZZ_REQUIRE(api->cache_verify(cache, &err) == NBL_OK);
    return 0;
}
