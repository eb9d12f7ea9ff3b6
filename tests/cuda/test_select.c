/* SPDX-License-Identifier: Apache-2.0 */
/** @file test_select.c  Workspace plans and kernel choice of the CUDA backend. */
#include "select.h"

#include <criterion/criterion.h>
#include <nibble/nibble_types.h>

static attend_bounds decode_bounds(void)
{
    attend_bounds b = {.batch = 16,
                       .q_tokens = 16,
                       .q_heads = 32,
                       .kv_heads = 8,
                       .k_dim = 128,
                       .v_dim = 128,
                       .page_tokens = 64,
                       .q_len_max = 1,
                       .kv_len_max = 32768,
                       .processors = 132,
                       .capability = 90};
    return b;
}

static attend_bounds prefill_bounds(void)
{
    attend_bounds b = decode_bounds();
    b.batch = 2;
    b.q_len_max = 16384;
    b.q_tokens = 32768;
    b.kv_len_max = 16384;
    return b;
}

Test(cuda_select, decode_is_split_whatever_its_size)
{
    attend_bounds b = decode_bounds();
    cuda_plan small = cuda_plan_make(&b);
    cr_assert(small.split == 1, "16 rows are not split");
    cr_assert(small.chunks == 32, "%u chunks in 32768 tokens", small.chunks);
    cr_assert(small.states_bytes == UINT64_C(16) * 32 * 32 * 132 * 4, "%llu bytes of states",
              (unsigned long long)small.states_bytes);
    b.batch = 1024;
    b.q_tokens = 1024;
    b.kv_len_max = 131072;
    cuda_plan large = cuda_plan_make(&b);
    cr_assert(large.split == 1, "many sequences are not split");
    cr_assert(large.states_bytes == UINT64_C(1024) * 32 * 128 * 132 * 4, "%llu bytes of states",
              (unsigned long long)large.states_bytes);
}

Test(cuda_select, prefill_is_not_split)
{
    attend_bounds b = prefill_bounds();
    cuda_plan p = cuda_plan_make(&b);
    cr_assert(p.split == 0, "a prefill of 32768 rows is split");
    cr_assert(p.states_bytes == CUDA_SPLIT_BYTES_MAX, "%llu bytes of states", (unsigned long long)p.states_bytes);
}

Test(cuda_select, places_are_aligned_and_disjoint)
{
    attend_bounds b = decode_bounds();
    b.q_tokens = 13;
    b.batch = 13;
    b.k_dim = 80;
    cuda_plan p = cuda_plan_make(&b);
    b.q_len_max = 40;
    p = cuda_plan_make(&b);
    const uint64_t places[] = {p.sequences_at, p.ends_at,   p.queries_at, p.codes_at, p.states_at,
                               p.items_at,     p.totals_at, p.images_at,  p.bytes};
    const uint64_t sizes[] = {13 * 16,
                              13 * b.kv_heads * 4,
                              13 * 32 * 16,
                              13 * 32 * 96,
                              p.states_bytes,
                              (p.slab_units + 2u) * 4u,
                              UINT64_C(132) * 128 * 128 * 4,
                              p.slab_units * p.image_tiles * cuda_prefill_image_bytes(128)};
    for (uint32_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
        cr_assert(places[i] % CUDA_WORKSPACE_ALIGNMENT == 0, "place %u is %llu", i, (unsigned long long)places[i]);
        cr_assert(places[i] + sizes[i] <= places[i + 1], "place %u reaches into the next one", i);
    }
}

/* Bounds that grow never need less: a workspace made for them serves every call inside. */
Test(cuda_select, larger_bounds_need_no_less)
{
    const uint32_t lengths[] = {1, 2, 5, 16, 17, 64, 65, 300, 5000};
    const uint32_t heads[] = {8, 32, 40, 64};
    for (uint32_t h = 0; h < 4u; ++h) {
        uint64_t before = 0, long_before = 0;
        for (uint32_t i = 0; i < 9u; ++i) {
            attend_bounds b = decode_bounds();
            b.q_heads = heads[h];
            b.q_len_max = lengths[i];
            b.q_tokens = (uint64_t)b.batch * lengths[i];
            uint64_t bytes = cuda_plan_make(&b).bytes;
            cr_assert(bytes >= before, "q_len_max %u needs %llu bytes, less than %llu", lengths[i],
                      (unsigned long long)bytes, (unsigned long long)before);
            before = bytes;
            b = decode_bounds();
            b.q_heads = heads[h];
            b.q_len_max = 300;
            b.q_tokens = (uint64_t)b.batch * 300;
            b.kv_len_max = lengths[i] * 1000u;
            bytes = cuda_plan_make(&b).bytes;
            cr_assert(bytes >= long_before, "kv_len_max %u needs %llu bytes, less than %llu", b.kv_len_max,
                      (unsigned long long)bytes, (unsigned long long)long_before);
            long_before = bytes;
        }
    }
}

Test(cuda_select, prefill_images_are_bounded)
{
    attend_bounds b = prefill_bounds();
    cuda_plan p = cuda_plan_make(&b);
    cr_assert(p.image_tiles == 128, "%u tiles of 16384 tokens", p.image_tiles);
    cr_assert(p.slab_units == 16, "%u of 16 units at a time", p.slab_units);
    cr_assert(p.bytes - p.images_at == UINT64_C(16) * 128 * 34320, "%llu bytes of images",
              (unsigned long long)(p.bytes - p.images_at));
    b.batch = 64;
    b.kv_len_max = 131072;
    p = cuda_plan_make(&b);
    cr_assert(p.slab_units == 7, "%u units of 35 MB at a time", p.slab_units);
    cr_assert(p.bytes - p.images_at == CUDA_PREFILL_IMAGES_MAX, "%llu bytes of images",
              (unsigned long long)(p.bytes - p.images_at));
    b.kv_len_max = 1u << 20; /* one unit is larger than the limit */
    p = cuda_plan_make(&b);
    cr_assert(p.slab_units == 1 && p.bytes - p.images_at == UINT64_C(8192) * 34320, "%u units, %llu bytes",
              p.slab_units, (unsigned long long)(p.bytes - p.images_at));
}

/* What docs/embedding.md says of a piece of a prompt. */
Test(cuda_select, workspace_of_a_prefill_of_2048_tokens)
{
    attend_bounds b = prefill_bounds();
    b.batch = 1;
    b.q_tokens = b.q_len_max = b.kv_len_max = 2048;
    uint64_t mib = (cuda_plan_make(&b).bytes + 0xfffffu) >> 20;
    cr_assert(mib > 64 && mib < 100, "%llu MiB", (unsigned long long)mib);
    b.kv_len_max = 131072;
    mib = (cuda_plan_make(&b).bytes + 0xfffffu) >> 20;
    cr_assert(mib < 350, "%llu MiB", (unsigned long long)mib);
}

Test(cuda_select, prefill_takes_dimensions_up_to_128)
{
    cr_assert(cuda_prefill_dim(128, 128) == 128 && cuda_prefill_dim(80, 24) == 128 && cuda_prefill_dim(64, 64) == 64);
    cr_assert(cuda_prefill_dim(192, 128) == 0 && cuda_prefill_dim(128, 256) == 0);
    attend_bounds b = prefill_bounds();
    b.v_dim = 256;
    cr_assert(cuda_plan_make(&b).slab_units == 0, "a prefill with 256 elements of V");
}

/* The kernel walks from token to token in 32 bits. */
Test(cuda_select, no_prefill_where_codes_of_a_token_take_4_gib)
{
    attend_bounds b = prefill_bounds();
    b.q_tokens = b.q_len_max = 8;
    b.q_heads = (1u << 25) - b.kv_heads;
    cr_assert(cuda_plan_make(&b).slab_units > 0, "%u heads of 128 bytes", b.q_heads);
    b.q_heads = 1u << 25;
    cr_assert(cuda_plan_make(&b).slab_units == 0, "%u heads of 128 bytes", b.q_heads);
}

Test(cuda_select, prefill_splits_when_it_has_fewer_items_than_the_device_processors)
{
    attend_bounds b = prefill_bounds();
    b.batch = 1;
    b.q_len_max = 512; /* 16 blocks of 128 rows for each of 8 kv heads */
    cr_assert(cuda_prefill_splits(&b), "128 items on 132 multiprocessors");
    b.q_len_max = 544;
    cr_assert(!cuda_prefill_splits(&b), "136 items on 132 multiprocessors");
}

/* A decode call inside the bounds of a prefill finds its states' place large enough. */
Test(cuda_select, prefill_bounds_hold_a_decode)
{
    attend_bounds wide = prefill_bounds();
    wide.batch = 256;
    wide.kv_len_max = 131072;
    attend_bounds narrow = wide;
    narrow.q_len_max = 1;
    narrow.q_tokens = 256;
    cuda_plan outer = cuda_plan_make(&wide);
    cuda_plan inner = cuda_plan_make(&narrow);
    cr_assert(inner.split == 1 && inner.states_bytes <= outer.states_bytes, "%llu bytes of states in %llu",
              (unsigned long long)inner.states_bytes, (unsigned long long)outer.states_bytes);
    cr_assert(inner.bytes <= outer.bytes, "%llu bytes in %llu", (unsigned long long)inner.bytes,
              (unsigned long long)outer.bytes);
}

Test(cuda_select, range_leaves_its_chunks)
{
    attend_bounds b = decode_bounds();
    cuda_plan p = cuda_plan_make(&b);
    uint64_t bytes = p.bytes;
    cuda_plan_restrict(&p, 0, 0);
    cr_assert(p.first_chunk == 0 && p.chunks == 32, "no range: chunks %u, %u", p.first_chunk, p.chunks);
    cuda_plan_restrict(&p, 4 * NBL_CHUNK_TOKENS, 6 * NBL_CHUNK_TOKENS);
    cr_assert(p.first_chunk == 4 && p.chunks == 2, "chunks %u, %u", p.first_chunk, p.chunks);
    cr_assert(p.bytes == bytes, "the range changed the workspace");
    p = cuda_plan_make(&b);
    cuda_plan_restrict(&p, 31 * NBL_CHUNK_TOKENS, 90 * NBL_CHUNK_TOKENS);
    cr_assert(p.first_chunk == 31 && p.chunks == 1, "end past the cache: chunks %u, %u", p.first_chunk, p.chunks);
    p = cuda_plan_make(&b);
    cuda_plan_restrict(&p, 40 * NBL_CHUNK_TOKENS, 90 * NBL_CHUNK_TOKENS);
    cr_assert(p.chunks == 0, "range past the cache: %u chunks", p.chunks);
}

Test(cuda_select, gpus_before_ampere_are_refused)
{
    static const uint32_t old[] = {30, 61, 70, 72, 75};
    static const uint32_t good[] = {80, 86, 87, 89, 90, 100, 103, 120, 121};
    for (size_t i = 0; i < sizeof old / sizeof old[0]; ++i) {
        cr_assert(!cuda_capability_supported(old[i]), "capability %u", old[i]);
    }
    for (size_t i = 0; i < sizeof good / sizeof good[0]; ++i) {
        cr_assert(cuda_capability_supported(good[i]), "capability %u", good[i]);
    }
}
