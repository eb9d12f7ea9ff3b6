/* SPDX-License-Identifier: Apache-2.0 */
/* Bad input of every call on a cache, one fault at a time: each is refused by one line, the outputs stay as they were,
 * and the cache has lost nothing. */
#include "fixture.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static _Alignas(256) uint8_t memory[1 << 16];
static uint8_t snapshot[1 << 14], snapshot_now[1 << 14];

/* A cache with sequences of several kinds, and good arguments of every call; each case spoils one of them. */
typedef struct world {
    fixture f;
    nbl_cache *other;
    uint64_t live; /**< 10 tokens */
    uint64_t empty;
    uint64_t dropped; /**< 12 tokens, the first 5 given up */
    uint64_t uneven;  /**< 8 tokens in layer 0, 4 in layer 1 */
    uint64_t freed[1], foreign[1], twice[2], both[2];
    uint32_t lengths[2]; /**< good for the first of both */
    int32_t indptr[2], rows[2];
    uint32_t tokens[16];
    nbl_cache_append_args append;
    nbl_cache_attend_args attend;
    nbl_prefix prefix;
    nbl_ext endless, required;
    nbl_cache_stats stats; /**< an output, as the next three */
    uint64_t out;
    uint32_t count;
    char text[64];
    uint64_t bytes; /**< of the snapshot of live */
} world;

static void sequences_make(world *w)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_config config = fixture_config();
    EXPECT(w->f.c.api->cache_create(w->f.c.device, &config, &w->other, &err), NBL_OK);
    EXPECT(w->f.c.api->seq_create(w->other, &w->foreign[0], &err), NBL_OK);
    w->freed[0] = fixture_seq(&w->f);
    EXPECT(w->f.c.api->seq_free(w->f.cache, w->freed[0], &err), NBL_OK);
    w->live = fixture_seq(&w->f);
    w->empty = fixture_seq(&w->f);
    w->dropped = fixture_seq(&w->f);
    w->uneven = fixture_seq(&w->f);
    for (uint32_t layer = 0; layer < 2; ++layer) {
        fixture_grow(&w->f, layer, w->live, 10);
        fixture_grow(&w->f, layer, w->dropped, 12);
        fixture_grow(&w->f, layer, w->uneven, layer == 0 ? 8 : 4);
    }
    EXPECT(w->f.c.api->seq_drop_prefix(w->f.cache, w->dropped, 5, &err), NBL_OK);
    w->twice[0] = w->twice[1] = w->both[0] = w->live;
    w->both[1] = w->empty;
}

static void arguments_make(world *w)
{
    w->lengths[0] = 3;
    w->lengths[1] = 99;
    w->indptr[1] = 3;
    w->rows[1] = 2;
    w->append = (nbl_cache_append_args)NBL_INIT(nbl_cache_append_args);
    w->append.sequences = &w->live;
    w->append.seq_indptr = w->indptr;
    w->append.batch = 1;
    w->append.k = (nbl_tensor){.data = memory, .dtype = NBL_F16, .rank = 3, .shape = {3, 2, 32}};
    w->append.v = (nbl_tensor){.data = memory + 1024, .dtype = NBL_F16, .rank = 3, .shape = {3, 2, 16}};
    w->attend = (nbl_cache_attend_args)NBL_INIT(nbl_cache_attend_args);
    w->attend.sequences = &w->live;
    w->attend.q_indptr = w->rows;
    w->attend.batch = 1;
    w->attend.q_heads = 4;
    w->attend.q = (nbl_tensor){.data = memory + 2048, .dtype = NBL_F32, .rank = 3, .shape = {2, 4, 32}};
    w->attend.o = (nbl_tensor){.data = memory + 4096, .dtype = NBL_F32, .rank = 3, .shape = {2, 4, 16}};
    w->prefix = (nbl_prefix)NBL_INIT(nbl_prefix);
    w->prefix.tokens = w->tokens;
    w->prefix.count = 8;
    w->endless = (nbl_ext){.struct_size = sizeof(nbl_ext), .type = 77, .next = &w->endless};
    w->required = (nbl_ext){.struct_size = sizeof(nbl_ext), .type = 77, .flags = NBL_EXT_REQUIRED};
    w->stats = (nbl_cache_stats)NBL_INIT(nbl_cache_stats);
}

static void world_open(world *w)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_config config = fixture_config();
    config.flags = NBL_CACHE_PREFIX | NBL_CACHE_DEBUG;
    *w = (world){.f = fixture_open(config)};
    sequences_make(w);
    arguments_make(w);
    EXPECT(w->f.c.api->snapshot_size(w->f.cache, w->live, &w->bytes, &err), NBL_OK);
    cr_assert_leq(w->bytes, sizeof snapshot, "%d bytes", (int)w->bytes);
    EXPECT(w->f.c.api->snapshot_write(w->f.cache, w->live, snapshot, w->bytes, &err), NBL_OK);
}

/* The calls that were spoilt work, and no memory stays. */
static void world_close(world *w)
{
    const nbl_api_v1 *api = w->f.c.api;
    nbl_error err = NBL_INIT(nbl_error);
    EXPECT(api->prefix_publish(w->f.cache, w->live, &w->prefix, &w->count, &err), NBL_OK);
    EXPECT(api->cache_append(w->f.cache, &w->append, &err), NBL_OK);
    EXPECT(api->cache_attend(w->f.cache, &w->attend, &err), NBL_OK);
    EXPECT(api->snapshot_read(w->f.cache, snapshot, w->bytes, &w->out, &err), NBL_E_NO_MEMORY); /* four are alive */
    EXPECT(api->seq_free(w->f.cache, w->empty, &err), NBL_OK);
    EXPECT(api->snapshot_read(w->f.cache, snapshot, w->bytes, &w->out, &err), NBL_OK);
    EXPECT(api->cache_destroy(w->other, &err), NBL_OK);
    fixture_close(&w->f);
}

/* Tells whether text is the pattern, in which '*' stands for an address or a number that differs from run to run. */
static bool is_like(const char *text, const char *pattern)
{
    for (; *pattern != '\0' && *pattern != '*'; ++pattern, ++text) {
        if (*text != *pattern)
            return false;
    }
    for (; *pattern == '*' && *text != '\0' && !is_like(text, pattern + 1); ++text)
        ;
    return *pattern == '*' ? is_like(text, pattern + 1) : *text == '\0';
}

static void expect_line(const nbl_error *err, const char *line, const char *call)
{
    const char *prefix = "nibble: ";
    cr_assert(strncmp(err->message, prefix, strlen(prefix)) == 0 && is_like(err->message + strlen(prefix), line),
              "%s: \"%s\"", call, err->message);
}

/* Everything that can be seen of the cache is as it was in `before`. */
static void expect_nothing_lost(world *w, const nbl_cache_stats *before, const char *call)
{
    nbl_error err = NBL_INIT(nbl_error);
    const nbl_cache_stats after = fixture_stats(&w->f);
    cr_assert_arr_eq(&after, before, sizeof after, "%s: the statistics have changed", call);
    EXPECT(w->f.c.api->cache_verify(w->f.cache, &err), NBL_OK);
    const uint32_t found[] = {fixture_length(&w->f, w->live, 0),   fixture_length(&w->f, w->live, 1),
                              fixture_length(&w->f, w->empty, 0),  fixture_length(&w->f, w->dropped, 0),
                              fixture_length(&w->f, w->uneven, 0), fixture_length(&w->f, w->uneven, 1)};
    cr_assert_arr_eq(found, ((const uint32_t[]){10, 10, 0, 12, 8, 4}), sizeof found, "%s: other lengths", call);
    EXPECT(w->f.c.api->snapshot_write(w->f.cache, w->live, snapshot_now, w->bytes, &err), NBL_OK);
    cr_assert_arr_eq(snapshot_now, snapshot, w->bytes, "%s: other bytes", call);
}

/* The outputs hold what they held. */
static void expect_outputs_alone(const world *w, const world *good, const char *call)
{
    cr_assert(w->out == good->out && w->count == good->count, "%s: output written", call);
    cr_assert_arr_eq(w->text, good->text, sizeof w->text, "%s: text written", call);
    cr_assert_arr_eq(&w->stats.code_bytes, &good->stats.code_bytes,
                     sizeof w->stats - offsetof(nbl_cache_stats, code_bytes), "%s: statistics written", call);
}

#define NOTHING (void)0

/* Spoils the world by the statement `spoil`, then makes the call, which must give the status and the line. */
#define REFUSED(spoil, call, status, line)                                                      \
    do {                                                                                        \
        const world good = w;                                                                   \
        const nbl_cache_stats before = fixture_stats(&w.f);                                     \
        const uint64_t operations = w.f.c.state->operations;                                    \
        nbl_error err = NBL_INIT(nbl_error);                                                    \
        spoil;                                                                                  \
        EXPECT(call, status);                                                                   \
        expect_line(&err, line, #spoil ": " #call);                                             \
        cr_assert_eq(w.f.c.state->operations, operations, "%s: the backend was called", #call); \
        expect_outputs_alone(&w, &good, #call);                                                 \
        w = good;                                                                               \
        expect_nothing_lost(&w, &before, #spoil ": " #call);                                    \
    } while (0)

/* Every call looks at its handle first: NULL, of another kind, destroyed. */
static void expect_bad_handle(const nbl_api_v1 *api, nbl_cache *c, nbl_status status, const char *line)
{
    nbl_error err = NBL_INIT(nbl_error);
    world w = {.count = 0};
    arguments_make(&w);
#define BAD_HANDLE(call)                \
    do {                                \
        EXPECT(call, status);           \
        expect_line(&err, line, #call); \
    } while (0)
    BAD_HANDLE(api->cache_stats(c, &w.stats, &err));
    BAD_HANDLE(api->cache_stats_text(c, NBL_TEXT_JSON, w.text, sizeof w.text, &w.out, &err));
    BAD_HANDLE(api->cache_verify(c, &err));
    BAD_HANDLE(api->cache_append(c, &w.append, &err));
    BAD_HANDLE(api->cache_attend(c, &w.attend, &err));
    BAD_HANDLE(api->seq_create(c, &w.out, &err));
    BAD_HANDLE(api->seq_free(c, 1, &err));
    BAD_HANDLE(api->seq_length(c, 1, 0, &w.count, &err));
    BAD_HANDLE(api->seq_truncate(c, 1, 0, &err));
    BAD_HANDLE(api->seq_truncate_batch(c, &w.live, w.lengths, 1, &err));
    BAD_HANDLE(api->seq_fork(c, 1, 0, &w.out, &err));
    BAD_HANDLE(api->seq_drop_prefix(c, 1, 0, &err));
    BAD_HANDLE(api->seq_adopt(c, 1, &w.prefix, &w.count, &err));
    BAD_HANDLE(api->prefix_publish(c, 1, &w.prefix, &w.count, &err));
    BAD_HANDLE(api->prefix_match(c, &w.prefix, &w.count, &err));
    BAD_HANDLE(api->prefix_pin(c, &w.prefix, &w.count, &err));
    BAD_HANDLE(api->prefix_unpin(c, &w.prefix, 4, &err));
    BAD_HANDLE(api->prefix_clear(c, &err));
    BAD_HANDLE(api->snapshot_size(c, 1, &w.out, &err));
    BAD_HANDLE(api->snapshot_write(c, 1, snapshot, sizeof snapshot, &err));
    BAD_HANDLE(api->snapshot_save(c, 1, "/tmp/nibble-none", &err));
    BAD_HANDLE(api->snapshot_read(c, snapshot, sizeof snapshot, &w.out, &err));
    BAD_HANDLE(api->snapshot_load(c, "/tmp/nibble-none", &w.out, &err));
#undef BAD_HANDLE
    cr_assert(w.out == 0 && w.count == 0 && w.text[0] == '\0' && w.stats.code_bytes == 0, "output written");
}

Test(cache_refusals, handles)
{
    nbl_error err = NBL_INIT(nbl_error);
    fixture f = fixture_open(fixture_config());
    const nbl_api_v1 *api = f.c.api;
    nbl_cache *const dead = f.cache, *const device = (nbl_cache *)(void *)f.c.device;
    expect_bad_handle(api, NULL, NBL_E_INVALID, "cache is NULL");
    expect_bad_handle(api, device, NBL_E_STATE, "cache handle is of another kind");
    EXPECT(api->cache_destroy(device, &err), NBL_E_STATE);
    EXPECT(api->cache_destroy(NULL, &err), NBL_OK);
    EXPECT(api->cache_destroy(dead, &err), NBL_OK);
    expect_bad_handle(api, dead, NBL_E_STATE, "cache handle is destroyed");
    EXPECT(api->cache_destroy(dead, &err), NBL_E_STATE);
    cr_assert_eq(f.c.state->live_bytes, 0, "%d bytes stayed", (int)f.c.state->live_bytes);
    counting_close(&f.c);
}

/* A configuration is refused by cache_plan and by cache_create, with one text; nothing is allocated. */
#define BAD_CONFIG(spoil, status, line)                                                  \
    do {                                                                                 \
        nbl_cache_config config = fixture_config();                                      \
        config.flags = NBL_CACHE_PREFIX;                                                 \
        spoil;                                                                           \
        EXPECT(api->cache_plan(&config, &plan, &err), status);                           \
        expect_line(&err, line, "cache_plan: " #spoil);                                  \
        EXPECT(api->cache_create(c.device, &config, &cache, &err), status);              \
        expect_line(&err, line, "cache_create: " #spoil);                                \
        cr_assert(cache == NULL && plan.total_bytes == 0, "%s: output written", #spoil); \
        cr_assert_eq(c.state->allocations, 0, "%s: memory was allocated", #spoil);       \
    } while (0)

Test(cache_refusals, configurations)
{
    counting c = counting_open();
    const nbl_api_v1 *api = c.api;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_stats plan = NBL_INIT(nbl_cache_stats);
    nbl_cache *cache = NULL;
    BAD_CONFIG(config.struct_size = 0, NBL_E_ABI, "nbl_cache_config.struct_size is 0, allowed are 104 to 65536");
    BAD_CONFIG(config.struct_size = 1u << 30, NBL_E_ABI,
               "nbl_cache_config.struct_size is 1073741824, allowed are 104 to 65536");
    BAD_CONFIG(config.flags = 1u << 20, NBL_E_UNKNOWN_FIELD,
               "nbl_cache_config.flags has unknown bits 0x100000, allowed are 0x7");
    BAD_CONFIG(config.shape.page_tokens = 0, NBL_E_INVALID, "shape.page_tokens is 0 (allowed: 1 to 1024)");
    BAD_CONFIG(config.shape.page_tokens = UINT32_MAX, NBL_E_INVALID,
               "shape.page_tokens is 4294967295 (allowed: 1 to 1024)");
    BAD_CONFIG(config.shape.k_dim = 0, NBL_E_INVALID, "shape.k_dim is 0 (allowed: multiples of 8, 16 to 576)");
    BAD_CONFIG(config.shape.k_dim = UINT32_MAX, NBL_E_INVALID,
               "shape.k_dim is 4294967295 (allowed: multiples of 8, 16 to 576)");
    BAD_CONFIG(config.shape.kv_heads = UINT32_MAX, NBL_E_INVALID, "shape.kv_heads is 4294967295 (allowed: 1 to 65536)");
    BAD_CONFIG(config.shape.layers = UINT32_MAX, NBL_E_INVALID, "shape.layers is 4294967295 (allowed: 1 to 65536)");
    BAD_CONFIG(config.shape.k_hadamard = 24, NBL_E_INVALID,
               "shape.k_hadamard is 24 (allowed: 0 or a power of two 8 to 256 dividing 32)");
    BAD_CONFIG(config.shape.centering = 9, NBL_E_INVALID, "shape.centering is 9 (allowed: 0 to 3)");
    BAD_CONFIG(config.k_format = 77, NBL_E_INVALID,
               "k_format is 77 (allowed: 1 int8, 2 mxfp4, 3 mxfp4_16, 4 int4p, 5 bf16, 6 fp16, 7 fp8_e4m3, 8 nvfp4)");
    BAD_CONFIG(config.v_format = 0, NBL_E_INVALID,
               "v_format is 0 (allowed: 1 int8, 2 mxfp4, 3 mxfp4_16, 4 int4p, 5 bf16, 6 fp16, 7 fp8_e4m3, 8 nvfp4)");
    BAD_CONFIG(config.sink_tokens = UINT32_MAX, NBL_E_INVALID, "sink_tokens is 4294967295 (allowed: 0 to 16777216)");
    BAD_CONFIG(config.sequences_max = 0, NBL_E_INVALID, "sequences_max is 0 (allowed: 1 to 65536)");
    BAD_CONFIG(config.sequences_max = UINT32_MAX, NBL_E_INVALID, "sequences_max is 4294967295 (allowed: 1 to 65536)");
    BAD_CONFIG(config.tokens_max = UINT64_MAX, NBL_E_INVALID,
               "tokens_max is 18446744073709551615 (allowed: 1 to 2147483647)");
    BAD_CONFIG(config.sequence_tokens_max = UINT32_MAX, NBL_E_INVALID,
               "sequence_tokens_max is 4294967295 (allowed: 0 to 40)");
    BAD_CONFIG(config.workspace_mib = UINT32_MAX, NBL_E_INVALID, "workspace_mib is 4294967295 (allowed: 0 to 1048576)");
    BAD_CONFIG(config.center_tokens = 31, NBL_E_INVALID, "center_tokens is 31 (allowed: 32 to 1024)");
    BAD_CONFIG(config.center_tokens = 1025, NBL_E_INVALID, "center_tokens is 1025 (allowed: 32 to 1024)");
    BAD_CONFIG(config.prefix_roots_max = UINT32_MAX, NBL_E_INVALID,
               "prefix_roots_max is 4294967295 (allowed: 0 to 16)");
    BAD_CONFIG((config.flags = 0, config.prefix_roots_max = 3), NBL_E_INVALID,
               "prefix_roots_max is 3 (allowed without NBL_CACHE_PREFIX: 0)");
    BAD_CONFIG(config.rule_count = 17, NBL_E_INVALID, "rule_count is 17 (allowed: 0 to 16)");
    BAD_CONFIG(config.rule_count = 1, NBL_E_INVALID, "rules is NULL (needed: 1 entry)");
    BAD_CONFIG(config.append_tokens_max = UINT32_MAX, NBL_E_INVALID,
               "append_tokens_max is 4294967295 (allowed: 0 to 40)");
    BAD_CONFIG(config.host_bytes = UINT64_MAX, NBL_E_INVALID,
               "host_bytes is 18446744073709551615 (allowed: 0 to 70368744177664)");
    BAD_CONFIG((config.flags = 0, config.host_bytes = 4096), NBL_E_INVALID,
               "host_bytes is 4096 (allowed without NBL_CACHE_PREFIX: 0)");
    BAD_CONFIG(config.file_bytes = 4096, NBL_E_INVALID, "file_bytes is 4096 (allowed without host_bytes: 0)");
    BAD_CONFIG((config.host_bytes = 4096, config.file_bytes = 4096), NBL_E_INVALID,
               "file_folder is NULL (needed: a folder, with file_bytes)");
    BAD_CONFIG((config.host_bytes = config.file_bytes = 1ull << 46, config.file_folder = "/tmp"), NBL_E_INVALID,
               "host_bytes and file_bytes hold * pages, the device * (allowed: fewer than 2^31 together)");
    nbl_cache_config good = fixture_config();
    EXPECT(api->cache_plan(&good, NULL, &err), NBL_E_INVALID);
    expect_line(&err, "nbl_cache_stats is NULL", "cache_plan");
    EXPECT(api->cache_create(c.device, &good, NULL, &err), NBL_E_INVALID);
    expect_line(&err, "out_cache is NULL (needed: 1 entry)", "cache_create");
    EXPECT(api->cache_create(NULL, &good, &cache, &err), NBL_E_INVALID);
    expect_line(&err, "device is NULL", "cache_create");
    counting_close(&c);
}

#define BAD_APPEND(spoil, status, line) REFUSED(spoil, api->cache_append(w.f.cache, &w.append, &err), status, line)

Test(cache_refusals, append)
{
    world w;
    world_open(&w);
    const nbl_api_v1 *api = w.f.c.api;
    REFUSED(NOTHING, api->cache_append(w.f.cache, NULL, &err), NBL_E_INVALID, "nbl_cache_append_args is NULL");
    BAD_APPEND(w.append.struct_size = 0, NBL_E_ABI, "nbl_cache_append_args.struct_size is 0, allowed are 248 to 65536");
    BAD_APPEND(w.append.struct_size = 1u << 20, NBL_E_ABI,
               "nbl_cache_append_args.struct_size is 1048576, allowed are 248 to 65536");
    BAD_APPEND(w.append.flags = 1, NBL_E_UNKNOWN_FIELD,
               "nbl_cache_append_args.flags has unknown bits 0x1, allowed are 0x0");
    BAD_APPEND(w.append.next = &w.endless, NBL_E_INVALID,
               "nbl_cache_append_args: more than 32 extensions, or a chain that never ends");
    BAD_APPEND(w.append.next = &w.required, NBL_E_UNKNOWN_FIELD,
               "nbl_cache_append_args: extension type 77 is marked required but not known");
    BAD_APPEND(w.append.sequences = NULL, NBL_E_INVALID, "sequences is NULL (needed: 1 entry)");
    BAD_APPEND(w.append.sequences = w.freed, NBL_E_NOT_FOUND, "sequence * was freed");
    BAD_APPEND(w.append.sequences = w.foreign, NBL_E_NOT_FOUND, "sequence * is not of this cache");
    BAD_APPEND((w.append.sequences = w.twice, w.append.batch = 2), NBL_E_INVALID,
               "sequences[1] is *, named before (needed: all different)");
    BAD_APPEND(w.append.batch = 5, NBL_E_INVALID, "batch is 5 (allowed: 0 to 4)");
    BAD_APPEND(w.append.batch = UINT32_MAX, NBL_E_INVALID, "batch is 4294967295 (allowed: 0 to 4)");
    BAD_APPEND(w.append.batch = 0, NBL_E_RANGE, "seq_indptr[0] is 0 (needed: 3, the rows given)");
    BAD_APPEND(w.append.layer = 2, NBL_E_RANGE, "layer is 2 (allowed: 0 to 1)");
    BAD_APPEND(w.append.layer = UINT32_MAX, NBL_E_RANGE, "layer is 4294967295 (allowed: 0 to 1)");
    BAD_APPEND(w.append.seq_indptr = NULL, NBL_E_INVALID, "seq_indptr is NULL (needed: 2 entries)");
    BAD_APPEND(w.indptr[0] = 1, NBL_E_RANGE, "seq_indptr[0] is 1 (needed: 0)");
    BAD_APPEND(w.indptr[1] = -1, NBL_E_RANGE, "seq_indptr[1] is -1 (needed: at least 0, the entry before)");
    BAD_APPEND(w.indptr[1] = 2, NBL_E_RANGE, "seq_indptr[1] is 2 (needed: 3, the rows given)");
    BAD_APPEND(w.indptr[1] = INT32_MAX, NBL_E_RANGE, "seq_indptr[1] is 2147483647 (needed: 3, the rows given)");
    BAD_APPEND(w.append.k.rank = 2, NBL_E_INVALID, "k.rank is 2 (needed: 3, [T, Hk, Dk])");
    BAD_APPEND(w.append.k.dtype = 9, NBL_E_INVALID, "k.dtype is 9 (allowed: 1 f32, 2 f16, 3 bf16)");
    BAD_APPEND(w.append.k.dtype = NBL_F32, NBL_E_INVALID, "v.dtype is 2 (needed: 1, that of k)");
    BAD_APPEND(w.append.k.data = NULL, NBL_E_INVALID, "k.data is NULL (needed: [T, Hk, Dk])");
    BAD_APPEND(w.append.k.data = memory + 1, NBL_E_ALIGN, "k.data is * (needed: a multiple of 2)");
    BAD_APPEND(w.append.k.shape[0] = UINT64_MAX, NBL_E_NO_MEMORY,
               "k.shape[0] is 18446744073709551615 (allowed: 64, all slots of the cache)");
    BAD_APPEND(w.append.k.shape[0] = 4, NBL_E_INVALID, "v.shape[0] is 3 (needed: 4, [T, Hk, Dv])");
    BAD_APPEND(w.append.k.shape[1] = 3, NBL_E_INVALID, "k.shape[1] is 3 (needed: 2, [T, Hk, Dk])");
    BAD_APPEND(w.append.k.shape[2] = 31, NBL_E_INVALID, "k.shape[2] is 31 (needed: 32, [T, Hk, Dk])");
    BAD_APPEND(w.append.k.stride_bytes[0] = 3, NBL_E_ALIGN, "k.stride_bytes[0] is 3 (needed: a multiple of 2)");
    BAD_APPEND(
        (w.append.k.stride_bytes[0] = INT64_MAX - 1, w.append.k.stride_bytes[1] = 64, w.append.k.stride_bytes[2] = 2),
        NBL_E_INVALID, "k reaches beyond the address space");
    BAD_APPEND(w.append.v.data = NULL, NBL_E_INVALID, "v.data is NULL (needed: [T, Hk, Dv])");
    BAD_APPEND(w.append.v.shape[2] = 32, NBL_E_INVALID, "v.shape[2] is 32 (needed: 16, [T, Hk, Dv])");
    BAD_APPEND(w.append.v.rank = 8, NBL_E_INVALID, "v.rank is 8 (needed: 3, [T, Hk, Dv])");
    BAD_APPEND(w.append.stream.kind = 7, NBL_E_INVALID, "stream.kind is 7 (allowed: 0 to 1)");
    BAD_APPEND((w.append.k.shape[0] = w.append.v.shape[0] = 1000, w.indptr[1] = 1000), NBL_E_NO_MEMORY,
               "k.shape[0] is 1000 (allowed: 64, all slots of the cache)");
    BAD_APPEND((w.append.k.shape[0] = w.append.v.shape[0] = 30, w.indptr[1] = 30), NBL_E_NO_MEMORY,
               "out of pages: region 1 needs 7 more and has 6 free of 8");
    world_close(&w);
}

#define BAD_ATTEND(spoil, status, line) REFUSED(spoil, api->cache_attend(w.f.cache, &w.attend, &err), status, line)

Test(cache_refusals, attend)
{
    world w;
    world_open(&w);
    const nbl_api_v1 *api = w.f.c.api;
    REFUSED(NOTHING, api->cache_attend(w.f.cache, NULL, &err), NBL_E_INVALID, "nbl_cache_attend_args is NULL");
    BAD_ATTEND(w.attend.struct_size = 8, NBL_E_ABI, "nbl_cache_attend_args.struct_size is 8, allowed are 400 to 65536");
    BAD_ATTEND(w.attend.struct_size = UINT32_MAX, NBL_E_ABI,
               "nbl_cache_attend_args.struct_size is 4294967295, allowed are 400 to 65536");
    BAD_ATTEND(w.attend.flags = 1u << 31, NBL_E_UNKNOWN_FIELD,
               "nbl_cache_attend_args.flags has unknown bits 0x80000000, allowed are 0xf");
    BAD_ATTEND(w.attend.reserved = 1, NBL_E_UNKNOWN_FIELD, "nbl_cache_attend_args.reserved is 1 (allowed: 0)");
    BAD_ATTEND(w.attend.next = &w.endless, NBL_E_INVALID,
               "nbl_cache_attend_args: more than 32 extensions, or a chain that never ends");
    BAD_ATTEND(w.attend.sequences = NULL, NBL_E_INVALID, "sequences is NULL (needed: 1 entry)");
    BAD_ATTEND(w.attend.sequences = w.freed, NBL_E_NOT_FOUND, "sequence * was freed");
    BAD_ATTEND(w.attend.sequences = w.foreign, NBL_E_NOT_FOUND, "sequence * is not of this cache");
    BAD_ATTEND(w.attend.batch = UINT32_MAX, NBL_E_INVALID, "batch is 4294967295 (allowed: 0 to 4)");
    BAD_ATTEND(w.attend.batch = 0, NBL_E_RANGE, "q_indptr[0] is 0 (needed: 2, the rows given)");
    BAD_ATTEND(w.attend.layer = 2, NBL_E_RANGE, "layer is 2 (allowed: 0 to 1)");
    BAD_ATTEND(w.attend.q_heads = 0, NBL_E_INVALID, "q_heads is 0 (allowed: multiples of kv_heads 2, from 2)");
    BAD_ATTEND(w.attend.q_heads = 3, NBL_E_INVALID, "q_heads is 3 (allowed: multiples of kv_heads 2, from 2)");
    BAD_ATTEND(w.attend.q_heads = 6, NBL_E_INVALID, "q.shape[1] is 4 (needed: 6, [Tq, Hq, Dk])");
    BAD_ATTEND(w.attend.q_format = 9, NBL_E_INVALID, "q_format is 9 (allowed: 0 to 3)");
    BAD_ATTEND(w.attend.q_indptr = NULL, NBL_E_INVALID, "q_indptr is NULL (needed: 2 entries)");
    BAD_ATTEND(w.rows[0] = -1, NBL_E_RANGE, "q_indptr[0] is -1 (needed: 0)");
    BAD_ATTEND(w.rows[1] = 1, NBL_E_RANGE, "q_indptr[1] is 1 (needed: 2, the rows given)");
    BAD_ATTEND(w.rows[1] = -2, NBL_E_RANGE, "q_indptr[1] is -2 (needed: at least 0, the entry before)");
    BAD_ATTEND(w.attend.q.rank = 1, NBL_E_INVALID, "q.rank is 1 (needed: 3, [Tq, Hq, Dk])");
    BAD_ATTEND(w.attend.q.dtype = 0, NBL_E_INVALID, "q.dtype is 0 (allowed: 1 f32, 2 f16, 3 bf16)");
    BAD_ATTEND(w.attend.q.data = NULL, NBL_E_INVALID, "q.data is NULL (needed: [Tq, Hq, Dk])");
    BAD_ATTEND(w.attend.q.shape[0] = 1ull << 40, NBL_E_INVALID,
               "q.shape[0] is 1099511627776 (allowed: 0 to 2147483647)");
    BAD_ATTEND(w.attend.q.shape[2] = 64, NBL_E_INVALID, "q.shape[2] is 64 (needed: 32, [Tq, Hq, Dk])");
    BAD_ATTEND(w.attend.q.data = memory + 1, NBL_E_ALIGN, "q.data is * (needed: a multiple of 4)");
    BAD_ATTEND(w.attend.o.data = NULL, NBL_E_INVALID, "o and lse are both absent (needed: at least one output)");
    BAD_ATTEND(w.attend.o.shape[0] = 1, NBL_E_INVALID, "o.shape[0] is 1 (needed: 2, [Tq, Hq, Dv])");
    BAD_ATTEND((w.attend.o.stride_bytes[0] = 2, w.attend.o.stride_bytes[1] = 2, w.attend.o.stride_bytes[2] = 2),
               NBL_E_ALIGN, "o.stride_bytes[0] is 2 (needed: a multiple of 4)");
    BAD_ATTEND(w.attend.o.data = w.attend.q.data, NBL_E_OVERLAP,
               "o at *..* is written and overlaps q at *..* (allowed: separate memory)");
    BAD_ATTEND(w.attend.lse = w.attend.o, NBL_E_INVALID, "lse.rank is 3 (needed: 2, [Tq, Hq])");
    BAD_ATTEND((w.attend.lse.dtype = NBL_F32, w.attend.lse.data = w.attend.o.data, w.attend.lse.rank = 2,
                w.attend.lse.shape[0] = 2, w.attend.lse.shape[1] = 4),
               NBL_E_OVERLAP, "o at *..* is written and overlaps lse at *..* (allowed: separate memory)");
    BAD_ATTEND(w.attend.sm_scale = -1.0f, NBL_E_INVALID, "sm_scale is -1 (allowed: 0, or 5.96046e-08 to 65536)");
    BAD_ATTEND(w.attend.sm_scale = NAN, NBL_E_INVALID, "sm_scale is nan (allowed: 0, or 5.96046e-08 to 65536)");
    BAD_ATTEND(w.attend.soft_cap = INFINITY, NBL_E_INVALID,
               "soft_cap is inf (allowed: 0, or 0.000976562 to 1.04858e+06)");
    BAD_ATTEND(w.attend.window_left = 3, NBL_E_INVALID,
               "window_left is 3 but its flag 2 is not set (allowed without it: 0)");
    BAD_ATTEND(w.attend.window_right = 3, NBL_E_INVALID,
               "window_right is 3 but its flag 4 is not set (allowed without it: 0)");
    BAD_ATTEND(w.attend.tree_mask_stride = 1, NBL_E_INVALID, "tree_mask_stride is 1 (allowed without tree_mask: 0)");
    BAD_ATTEND(w.attend.tree_mask = (const uint32_t *)(const void *)memory, NBL_E_INVALID,
               "tree_mask_stride is 0 (allowed: 1 to 4294967295)");
    BAD_ATTEND(w.attend.sinks = (const float *)(const void *)(memory + 2), NBL_E_ALIGN,
               "sinks is * (needed: a multiple of 4)");
    BAD_ATTEND(w.attend.alibi_slopes = (const float *)(const void *)(memory + 1), NBL_E_ALIGN,
               "alibi_slopes is * (needed: a multiple of 4)");
    BAD_ATTEND(w.attend.stream.kind = 2, NBL_E_INVALID, "stream.kind is 2 (allowed: 0 to 1)");
    world_close(&w);
}

Test(cache_refusals, sequences)
{
    world w;
    world_open(&w);
    const nbl_api_v1 *api = w.f.c.api;
    REFUSED(NOTHING, api->seq_create(w.f.cache, NULL, &err), NBL_E_INVALID, "out_sequence is NULL (needed: 1 entry)");
    REFUSED(NOTHING, api->seq_create(w.f.cache, (uint64_t *)(void *)(memory + 1), &err), NBL_E_ALIGN,
            "out_sequence is * (needed: a multiple of 8)");
    REFUSED(NOTHING, api->seq_free(w.f.cache, 0, &err), NBL_E_NOT_FOUND, "sequence 0 is not of this cache");
    REFUSED(NOTHING, api->seq_free(w.f.cache, UINT64_MAX, &err), NBL_E_NOT_FOUND, "sequence * is not of this cache");
    REFUSED(NOTHING, api->seq_free(w.f.cache, w.freed[0], &err), NBL_E_NOT_FOUND, "sequence * was freed");
    REFUSED(NOTHING, api->seq_free(w.f.cache, w.foreign[0], &err), NBL_E_NOT_FOUND, "sequence * is not of this cache");
    REFUSED(NOTHING, api->seq_free(w.f.cache, w.live + 3, &err), NBL_E_NOT_FOUND, "sequence * is not of this cache");
    REFUSED(NOTHING, api->seq_free(w.f.cache, w.live + (2ull << 32), &err), NBL_E_NOT_FOUND,
            "sequence * is not of this cache");
    REFUSED(NOTHING, api->seq_length(w.f.cache, w.live, 0, NULL, &err), NBL_E_INVALID,
            "out_tokens is NULL (needed: 1 entry)");
    REFUSED(NOTHING, api->seq_length(w.f.cache, w.live, 2, &w.count, &err), NBL_E_RANGE,
            "layer is 2 (allowed: 0 to 1)");
    REFUSED(NOTHING, api->seq_length(w.f.cache, w.freed[0], 0, &w.count, &err), NBL_E_NOT_FOUND,
            "sequence * was freed");
    REFUSED(NOTHING, api->seq_truncate(w.f.cache, w.live, 11, &err), NBL_E_RANGE, "tokens is 11 (allowed: 0 to 10)");
    REFUSED(NOTHING, api->seq_truncate(w.f.cache, w.live, UINT32_MAX, &err), NBL_E_RANGE,
            "tokens is 4294967295 (allowed: 0 to 10)");
    REFUSED(NOTHING, api->seq_truncate(w.f.cache, w.dropped, 3, &err), NBL_E_RANGE,
            "tokens is 3, and the sequence has dropped its first 5");
    REFUSED(NOTHING, api->seq_truncate(w.f.cache, w.freed[0], 0, &err), NBL_E_NOT_FOUND, "sequence * was freed");
    REFUSED(NOTHING, api->seq_truncate_batch(w.f.cache, NULL, w.lengths, 1, &err), NBL_E_INVALID,
            "sequences is NULL (needed: 1 entry)");
    REFUSED(NOTHING, api->seq_truncate_batch(w.f.cache, &w.live, NULL, 1, &err), NBL_E_INVALID,
            "tokens is NULL (needed: 1 entry)");
    REFUSED(NOTHING, api->seq_truncate_batch(w.f.cache, &w.live, w.lengths, 5, &err), NBL_E_INVALID,
            "batch is 5 (allowed: 0 to 4)");
    REFUSED(NOTHING, api->seq_truncate_batch(w.f.cache, &w.live, w.lengths, UINT32_MAX, &err), NBL_E_INVALID,
            "batch is 4294967295 (allowed: 0 to 4)");
    REFUSED(NOTHING, api->seq_truncate_batch(w.f.cache, w.twice, w.lengths, 2, &err), NBL_E_INVALID,
            "sequences[1] is *, named before (needed: all different)");
    REFUSED(NOTHING, api->seq_truncate_batch(w.f.cache, w.both, w.lengths, 2, &err), NBL_E_RANGE,
            "tokens[1] is 99 (allowed: 0 to 0)");
    REFUSED(NOTHING, api->seq_truncate_batch(w.f.cache, w.freed, w.lengths, 1, &err), NBL_E_NOT_FOUND,
            "sequence * was freed");
    REFUSED(NOTHING, api->seq_fork(w.f.cache, w.live, 5, NULL, &err), NBL_E_INVALID,
            "out_child is NULL (needed: 1 entry)");
    REFUSED(NOTHING, api->seq_fork(w.f.cache, w.freed[0], 5, &w.out, &err), NBL_E_NOT_FOUND, "sequence * was freed");
    REFUSED(NOTHING, api->seq_fork(w.f.cache, w.dropped, 3, &w.out, &err), NBL_E_RANGE,
            "tokens is 3, and the parent has dropped its first 5");
    REFUSED(NOTHING, api->seq_drop_prefix(w.f.cache, w.live, 11, &err), NBL_E_RANGE, "tokens is 11 (allowed: 0 to 10)");
    REFUSED(NOTHING, api->seq_drop_prefix(w.f.cache, w.uneven, 5, &err), NBL_E_RANGE, "tokens is 5 (allowed: 0 to 4)");
    REFUSED(NOTHING, api->seq_drop_prefix(w.f.cache, w.foreign[0], 0, &err), NBL_E_NOT_FOUND,
            "sequence * is not of this cache");
    world_close(&w);
}

#define BAD_PREFIX(spoil, status, line)                                                                  \
    do {                                                                                                 \
        REFUSED(spoil, api->prefix_match(w.f.cache, &w.prefix, &w.count, &err), status, line);           \
        REFUSED(spoil, api->prefix_publish(w.f.cache, w.live, &w.prefix, &w.count, &err), status, line); \
        REFUSED(spoil, api->seq_adopt(w.f.cache, w.empty, &w.prefix, &w.count, &err), status, line);     \
        REFUSED(spoil, api->prefix_pin(w.f.cache, &w.prefix, &w.count, &err), status, line);             \
        REFUSED(spoil, api->prefix_unpin(w.f.cache, &w.prefix, 4, &err), status, line);                  \
    } while (0)

Test(cache_refusals, prefixes)
{
    world w;
    world_open(&w);
    const nbl_api_v1 *api = w.f.c.api;
    REFUSED(NOTHING, api->prefix_match(w.f.cache, NULL, &w.count, &err), NBL_E_INVALID, "nbl_prefix is NULL");
    REFUSED(NOTHING, api->prefix_publish(w.f.cache, w.live, NULL, &w.count, &err), NBL_E_INVALID, "nbl_prefix is NULL");
    REFUSED(NOTHING, api->seq_adopt(w.f.cache, w.empty, NULL, &w.count, &err), NBL_E_INVALID, "nbl_prefix is NULL");
    REFUSED(NOTHING, api->prefix_pin(w.f.cache, NULL, &w.count, &err), NBL_E_INVALID, "nbl_prefix is NULL");
    REFUSED(NOTHING, api->prefix_unpin(w.f.cache, NULL, 4, &err), NBL_E_INVALID, "nbl_prefix is NULL");
    BAD_PREFIX(w.prefix.struct_size = 4, NBL_E_ABI, "nbl_prefix.struct_size is 4, allowed are 64 to 65536");
    BAD_PREFIX(w.prefix.flags = 2, NBL_E_UNKNOWN_FIELD, "nbl_prefix.flags has unknown bits 0x2, allowed are 0x0");
    BAD_PREFIX(w.prefix.next = &w.required, NBL_E_UNKNOWN_FIELD,
               "nbl_prefix: extension type 77 is marked required but not known");
    BAD_PREFIX(w.prefix.reserved = 1, NBL_E_UNKNOWN_FIELD, "nbl_prefix.reserved is 1 (allowed: 0)");
    BAD_PREFIX(w.prefix.tokens = NULL, NBL_E_INVALID, "tokens is NULL (needed: 8 entries)");
    BAD_PREFIX(w.prefix.tokens = (const uint32_t *)(const void *)(memory + 2), NBL_E_ALIGN,
               "tokens is * (needed: a multiple of 4)");
    BAD_PREFIX(w.prefix.count = UINT32_MAX, NBL_E_INVALID, "count is 4294967295 (allowed: 0 to 16777216)");
    BAD_PREFIX(w.prefix.first_tokens = UINT32_MAX, NBL_E_INVALID,
               "first_tokens is 4294967295 (allowed: 0 to 16777216)");
    BAD_PREFIX(w.prefix.priority = 101, NBL_E_INVALID, "priority is 101 (allowed: 0 to 100)");
    BAD_PREFIX(w.prefix.stream.kind = 3, NBL_E_INVALID, "stream.kind is 3 (allowed: 0 to 1)");
    REFUSED(NOTHING, api->prefix_match(w.f.cache, &w.prefix, NULL, &err), NBL_E_INVALID,
            "out_tokens is NULL (needed: 1 entry)");
    REFUSED(NOTHING, api->prefix_pin(w.f.cache, &w.prefix, NULL, &err), NBL_E_INVALID,
            "out_tokens is NULL (needed: 1 entry)");
    REFUSED(w.prefix.count = 11, api->prefix_publish(w.f.cache, w.live, &w.prefix, &w.count, &err), NBL_E_RANGE,
            "count is 11 (allowed: 0 to 10)");
    REFUSED(NOTHING, api->prefix_publish(w.f.cache, w.freed[0], &w.prefix, &w.count, &err), NBL_E_NOT_FOUND,
            "sequence * was freed");
    REFUSED(NOTHING, api->prefix_publish(w.f.cache, w.uneven, &w.prefix, &w.count, &err), NBL_E_RANGE,
            "count is 8 (allowed: 0 to 4)");
    REFUSED(NOTHING, api->seq_adopt(w.f.cache, w.freed[0], &w.prefix, &w.count, &err), NBL_E_NOT_FOUND,
            "sequence * was freed");
    REFUSED(NOTHING, api->seq_adopt(w.f.cache, w.live, &w.prefix, &w.count, &err), NBL_E_STATE,
            "sequence * has 10 tokens (needed: an empty one)");
    REFUSED(NOTHING, api->prefix_unpin(w.f.cache, &w.prefix, 3, &err), NBL_E_RANGE,
            "tokens is 3 (allowed: multiples of page_tokens 4, as prefix_pin gave)");
    REFUSED(NOTHING, api->prefix_unpin(w.f.cache, &w.prefix, 4, &err), NBL_E_NOT_FOUND,
            "the first 4 tokens of the prefix are not pinned");
    REFUSED(NOTHING, api->prefix_unpin(w.f.cache, &w.prefix, UINT32_MAX, &err), NBL_E_RANGE,
            "tokens is 4294967295 (allowed: 0 to 8)");
    world_close(&w);
}

Test(cache_refusals, snapshots)
{
    world w;
    world_open(&w);
    const nbl_api_v1 *api = w.f.c.api;
    REFUSED(NOTHING, api->snapshot_size(w.f.cache, w.live, NULL, &err), NBL_E_INVALID,
            "out_bytes is NULL (needed: 1 entry)");
    REFUSED(NOTHING, api->snapshot_size(w.f.cache, w.freed[0], &w.out, &err), NBL_E_NOT_FOUND, "sequence * was freed");
    REFUSED(NOTHING, api->snapshot_write(w.f.cache, w.live, NULL, w.bytes, &err), NBL_E_INVALID,
            "buffer is NULL (needed: 1 entry)");
    REFUSED(NOTHING, api->snapshot_write(w.f.cache, w.live, snapshot, 0, &err), NBL_E_NO_MEMORY,
            "bytes is 0 (needed: 3524, as snapshot_size says)");
    REFUSED(NOTHING, api->snapshot_write(w.f.cache, w.live, snapshot, w.bytes - 1, &err), NBL_E_NO_MEMORY,
            "bytes is 3523 (needed: 3524, as snapshot_size says)");
    REFUSED(NOTHING, api->snapshot_write(w.f.cache, w.foreign[0], snapshot, w.bytes, &err), NBL_E_NOT_FOUND,
            "sequence * is not of this cache");
    REFUSED(NOTHING, api->snapshot_save(w.f.cache, w.live, NULL, &err), NBL_E_INVALID,
            "path is NULL (needed: 1 entry)");
    REFUSED(NOTHING, api->snapshot_save(w.f.cache, w.live, "", &err), NBL_E_INVALID,
            "path has 0 bytes (allowed: 1 to 4087)");
    REFUSED(NOTHING, api->snapshot_save(w.f.cache, w.freed[0], "/tmp/nibble-none", &err), NBL_E_NOT_FOUND,
            "sequence * was freed");
    REFUSED(NOTHING, api->snapshot_save(w.f.cache, w.live, "/nowhere/s", &err), NBL_E_IO,
            "/nowhere/s.partial: cannot create: No such file or directory");
    REFUSED(NOTHING, api->snapshot_read(w.f.cache, NULL, w.bytes, &w.out, &err), NBL_E_INVALID,
            "buffer is NULL (needed: 1 entry)");
    REFUSED(NOTHING, api->snapshot_read(w.f.cache, snapshot, 0, &w.out, &err), NBL_E_INVALID,
            "snapshot ends at byte 0, in the middle of a part");
    REFUSED(NOTHING, api->snapshot_read(w.f.cache, snapshot, 87, &w.out, &err), NBL_E_INVALID,
            "snapshot ends at byte 87, in the middle of a part");
    REFUSED(NOTHING, api->snapshot_read(w.f.cache, snapshot, w.bytes - 1, &w.out, &err), NBL_E_INVALID,
            "snapshot says it has 3524 bytes, there are 3523");
    REFUSED(NOTHING, api->snapshot_read(w.f.cache, snapshot, w.bytes + 1, &w.out, &err), NBL_E_INVALID,
            "snapshot says it has 3524 bytes, there are 3525");
    REFUSED(NOTHING, api->snapshot_read(w.f.cache, snapshot, UINT64_MAX, &w.out, &err), NBL_E_INVALID,
            "snapshot says it has 3524 bytes, there are 18446744073709551615");
    REFUSED(NOTHING, api->snapshot_read(w.f.cache, snapshot, w.bytes, NULL, &err), NBL_E_INVALID,
            "out_sequence is NULL (needed: 1 entry)");
    REFUSED(NOTHING, api->snapshot_read(w.f.cache, memory, w.bytes, &w.out, &err), NBL_E_INVALID,
            "these bytes are not a snapshot of nibble");
    REFUSED(NOTHING, api->snapshot_load(w.f.cache, NULL, &w.out, &err), NBL_E_INVALID,
            "path is NULL (needed: 1 entry)");
    REFUSED(NOTHING, api->snapshot_load(w.f.cache, "/nowhere/s", &w.out, &err), NBL_E_IO,
            "/nowhere/s: cannot open: No such file or directory");
    REFUSED(NOTHING, api->snapshot_load(w.f.cache, "/tmp", &w.out, &err), NBL_E_IO, "/tmp: is not a regular file");
    REFUSED(NOTHING, api->snapshot_load(w.f.cache, "/dev/zero", &w.out, &err), NBL_E_IO,
            "/dev/zero: is not a regular file");
    REFUSED(NOTHING, api->snapshot_load(w.f.cache, "/dev/null", NULL, &err), NBL_E_INVALID,
            "out_sequence is NULL (needed: 1 entry)");
    world_close(&w);
}

Test(cache_refusals, insight)
{
    world w;
    world_open(&w);
    const nbl_api_v1 *api = w.f.c.api;
    REFUSED(NOTHING, api->cache_stats(w.f.cache, NULL, &err), NBL_E_INVALID, "nbl_cache_stats is NULL");
    REFUSED(w.stats.struct_size = 0, api->cache_stats(w.f.cache, &w.stats, &err), NBL_E_ABI,
            "nbl_cache_stats.struct_size is 0, allowed are 192 to 65536");
    REFUSED(w.stats.struct_size = UINT32_MAX, api->cache_stats(w.f.cache, &w.stats, &err), NBL_E_ABI,
            "nbl_cache_stats.struct_size is 4294967295, allowed are 192 to 65536");
    REFUSED(NOTHING, api->cache_stats_text(w.f.cache, 9, w.text, sizeof w.text, &w.out, &err), NBL_E_INVALID,
            "format is 9 (allowed: 0 to 1)");
    REFUSED(NOTHING, api->cache_stats_text(w.f.cache, NBL_TEXT_JSON, NULL, 100, &w.out, &err), NBL_E_INVALID,
            "buffer is NULL (needed: 100 entries)");
    REFUSED(NOTHING, api->cache_stats_text(w.f.cache, NBL_TEXT_JSON, w.text, 0, NULL, &err), NBL_E_INVALID,
            "out_bytes is NULL (needed: 1 entry)");
    world_close(&w);
}
