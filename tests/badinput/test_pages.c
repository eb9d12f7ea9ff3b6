/* SPDX-License-Identifier: Apache-2.0 */
#include "world.h"

#define BAD_COPY(name, status, text, ...) BAD(badinput_copy, name, copy_pages, copy, status, text, __VA_ARGS__)
#define BAD_TRANSCODE(name, status, text, ...) \
    BAD(badinput_transcode, name, transcode, transcode, status, text, __VA_ARGS__)

Test(badinput_copy, valid_reaches_backend)
{
    world w;
    nbl_error err = NBL_INIT(nbl_error);
    world_open(&w);
    cr_assert_eq(w.c.api->copy_pages(w.c.device, &w.copy, &err), NBL_OK, "%s", err.message);
    cr_assert_eq(w.c.api->transcode(w.c.device, &w.transcode, &err), NBL_OK, "%s", err.message);
    w.copy.dst_pool = w.transcode.dst_pool = &w.pool;
    cr_assert_eq(w.c.api->copy_pages(w.c.device, &w.copy, &err), NBL_OK, "%s", err.message);
    cr_assert_eq(w.c.api->transcode(w.c.device, &w.transcode, &err), NBL_OK, "%s", err.message);
    cr_assert_eq(w.c.state->operations, 4, "backend not called");
    w.copy.count = 0;
    w.copy.src_pages = NULL;
    cr_assert_eq(w.c.api->copy_pages(w.c.device, &w.copy, &err), NBL_OK, "%s", err.message);
    cr_assert_eq(w.c.state->operations, 4, "no page is work");
    counting_close(&w.c);
}

BAD_COPY(flags, NBL_E_UNKNOWN_FIELD, "nbl_copy_pages_args", w.copy.flags = 1)
BAD_COPY(reserved, NBL_E_UNKNOWN_FIELD, "nbl_copy_pages_args.reserved is 1", w.copy.reserved = 1)
BAD_COPY(src_null, NBL_E_INVALID, "src_pool is NULL", w.copy.src_pool = NULL)
BAD_COPY(dst_null, NBL_E_INVALID, "dst_pool is NULL", w.copy.dst_pool = NULL)
BAD_COPY(layers_differ, NBL_E_INVALID, "dst_pool.shape.layers is 1 (needed: 2, that of src_pool)", w.shape2.layers = 1)
BAD_COPY(dims_differ, NBL_E_INVALID, "dst_pool.shape.v_dim is 24", w.shape2.v_dim = 24)
BAD_COPY(transforms_differ, NBL_E_INVALID, "dst_pool.shape.k_hadamard is 0 (needed: 32", w.shape2.k_hadamard = 0)
BAD_COPY(centering_differs, NBL_E_INVALID, "dst_pool.shape.centering is 1", w.shape2.centering = 1)
BAD_COPY(page_tokens_differ, NBL_E_INVALID, "dst_pool.shape.page_tokens is 4", w.shape2.page_tokens = 4)
BAD_COPY(pools_overlap, NBL_E_OVERLAP, "dst_pool.regions[0].codes", w.regions2[0].codes = w.regions[0].codes)
BAD_COPY(src_pages_null, NBL_E_INVALID, "src_pages is NULL (needed: 2 entries)", w.copy.src_pages = NULL)
BAD_COPY(dst_pages_unaligned, NBL_E_ALIGN, "dst_pages is",
         w.copy.dst_pages = (const int32_t *)(const void *)(world_memory(BLOCK_INDICES) + 2))
BAD_COPY(pages_in_dst, NBL_E_OVERLAP, "overlaps src_pages", w.copy.src_pages = w.regions2[1].codes)
BAD_COPY(count_huge, NBL_E_INVALID, "count is 2147483648", w.copy.count = 1u << 31)
BAD_COPY(stream_kind, NBL_E_INVALID, "stream.kind is 2", w.copy.stream.kind = 2)
BAD_TRANSCODE(counts_null, NBL_E_INVALID, "token_counts is NULL", w.transcode.token_counts = NULL)
BAD_TRANSCODE(stats_unaligned, NBL_E_ALIGN, "stats is",
              w.transcode.stats = (nbl_quant_stats *)(void *)(world_memory(BLOCK_STATS) + 4))
BAD_TRANSCODE(stats_in_pages, NBL_E_OVERLAP, "stats at",
              w.transcode.stats = (nbl_quant_stats *)(void *)(world_memory(BLOCK_INDICES) + 1280))
BAD_TRANSCODE(kv_heads_differ, NBL_E_INVALID, "dst_pool.shape.kv_heads is 1", w.shape2.kv_heads = 1)
BAD_TRANSCODE(flags, NBL_E_UNKNOWN_FIELD, "nbl_transcode_args", w.transcode.flags = 8)
