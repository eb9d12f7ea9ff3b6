/* SPDX-License-Identifier: Apache-2.0 */
#include "world.h"

#define BAD_ATTEND(name, status, text, ...) BAD(badinput_attend, name, attend, attend, status, text, __VA_ARGS__)

static float *floats(uint32_t block)
{
    return (float *)(void *)world_memory(block);
}

Test(badinput_attend, valid_reaches_backend)
{
    world w;
    nbl_error err = NBL_INIT(nbl_error);
    world_open(&w);
    cr_assert_eq(w.c.api->attend(w.c.device, &w.attend, &err), NBL_OK, "%s", err.message);
    w.shape.centering = 1;
    w.attend.flags = NBL_ATTEND_FLAGS_ALL;
    w.attend.window_left = w.attend.window_right = 7;
    w.attend.alibi_slopes = w.attend.sinks = floats(BLOCK_OTHER);
    w.attend.range_begin = 1024;
    w.attend.range_end = 3072;
    w.attend.sm_scale = 0x1p-24f;
    cr_assert_eq(w.c.api->attend(w.c.device, &w.attend, &err), NBL_OK, "%s", err.message);
    cr_assert_eq(w.c.state->operations, 2, "backend not called");
    counting_close(&w.c);
}

Test(badinput_attend, no_rows_is_no_work)
{
    world w;
    nbl_error err = NBL_INIT(nbl_error);
    world_open(&w);
    w.attend.q.shape[0] = w.attend.o.shape[0] = w.attend.lse.shape[0] = 0;
    w.attend.state_head.shape[1] = w.attend.state_o.shape[1] = 0;
    w.attend.batch = 0;
    cr_assert_eq(w.c.api->attend(w.c.device, &w.attend, &err), NBL_OK, "%s", err.message);
    cr_assert_eq(w.c.state->operations, 0, "backend called");
    counting_close(&w.c);
}

BAD_ATTEND(struct_size, NBL_E_ABI, "nbl_attend_args", w.attend.struct_size = 16)
BAD_ATTEND(flags, NBL_E_UNKNOWN_FIELD, "nbl_attend_args", w.attend.flags = 16)
BAD_ATTEND(layer, NBL_E_RANGE, "layer is 4294967295 (allowed: 0 to 1)", w.attend.layer = UINT32_MAX)
BAD_ATTEND(q_heads_ratio, NBL_E_INVALID, "q_heads is 3 (allowed: multiples of kv_heads 2, from 2)",
           w.attend.q_heads = 3)
BAD_ATTEND(q_heads_zero, NBL_E_INVALID, "q_heads is 0", w.attend.q_heads = 0)
BAD_ATTEND(q_format, NBL_E_INVALID, "q_format is 4 (allowed: 0 to 3)", w.attend.q_format = 4)
BAD_ATTEND(q_format_fp4, NBL_E_INVALID, "q_format is 3 with pool.regions[0] of formats 1 and 1 (needed: K nvfp4",
           w.attend.q_format = NBL_Q_FP4)
BAD_ATTEND(q_centers_format, NBL_E_INVALID, "q_centers with q_format 0 (needed: absent, or q_format 3)",
           w.attend.q_centers = w.attend.q)
BAD_ATTEND(batch_zero, NBL_E_INVALID, "batch is 0 (allowed: 1", w.attend.batch = 0)
BAD_ATTEND(q_rank, NBL_E_INVALID, "q.rank is 4", w.attend.q.rank = 4)
BAD_ATTEND(q_dim, NBL_E_INVALID, "q.shape[2] is 16 (needed: 32, [Tq, Hq, Dk])", w.attend.q.shape[2] = 16)
BAD_ATTEND(q_dtype, NBL_E_INVALID, "q.dtype is 0", w.attend.q.dtype = 0)
BAD_ATTEND(o_rows, NBL_E_INVALID, "o.shape[0] is 2 (needed: 3", w.attend.o.shape[0] = 2)
BAD_ATTEND(o_dim, NBL_E_INVALID, "o.shape[2] is 32 (needed: 16, [Tq, Hq, Dv])", w.attend.o.shape[2] = 32)
BAD_ATTEND(lse_dtype, NBL_E_INVALID, "lse.dtype is 3 (allowed: 1 f32)", w.attend.lse.dtype = NBL_BF16)
BAD_ATTEND(lse_heads, NBL_E_INVALID, "lse.shape[1] is 5", w.attend.lse.shape[1] = 5)
BAD_ATTEND(state_head_alone, NBL_E_INVALID, "state_o.data is NULL", w.attend.state_o.data = NULL)
BAD_ATTEND(state_o_alone, NBL_E_INVALID, "state_head.data is NULL", w.attend.state_head.data = NULL)
BAD_ATTEND(state_chunks_few, NBL_E_INVALID, "state_head.shape[0] is 2 (allowed: 3", w.attend.kv_len_max = 2049,
           w.attend.page_table_stride = 300)
BAD_ATTEND(state_chunks_differ, NBL_E_INVALID, "state_o.shape[0] is 3 (needed: 2", w.attend.state_o.shape[0] = 3)
BAD_ATTEND(state_rank, NBL_E_INVALID, "state_head.rank is 3 (needed: 4, [N, Tq, Hq, 4])", w.attend.state_head.rank = 3)
BAD_ATTEND(state_width, NBL_E_INVALID, "state_head.shape[3] is 3 (needed: 4", w.attend.state_head.shape[3] = 3)
BAD_ATTEND(no_output, NBL_E_INVALID, "needed: at least one output", w.attend.o.data = w.attend.lse.data = NULL,
           w.attend.state_head.data = w.attend.state_o.data = NULL)
BAD_ATTEND(o_stride_zero, NBL_E_OVERLAP, "o.stride_bytes lets elements of an output overlap",
           w.attend.o.stride_bytes[1] = 32, w.attend.o.stride_bytes[2] = 2)
BAD_ATTEND(o_heads_overlap, NBL_E_OVERLAP, "o.stride_bytes", w.attend.o.stride_bytes[0] = 1024,
           w.attend.o.stride_bytes[1] = 30, w.attend.o.stride_bytes[2] = 2)
BAD_ATTEND(o_is_q, NBL_E_OVERLAP, "o at", w.attend.o.data = world_memory(BLOCK_Q))
BAD_ATTEND(o_is_lse, NBL_E_OVERLAP, "o at", w.attend.o.data = world_memory(BLOCK_LSE))
BAD_ATTEND(o_in_pool, NBL_E_OVERLAP, "o at", w.attend.o.data = world_memory(BLOCK_CODES_0))
BAD_ATTEND(lse_in_kv_len, NBL_E_OVERLAP, "overlaps kv_len", w.attend.lse.data = world_memory(BLOCK_INDICES) + 768)
BAD_ATTEND(o_in_table, NBL_E_OVERLAP, "overlaps page_table", w.attend.o.data = world_memory(BLOCK_INDICES) + 1600)
BAD_ATTEND(o_in_sinks, NBL_E_OVERLAP, "overlaps sinks", w.attend.sinks = floats(BLOCK_O))
BAD_ATTEND(workspace_in_o, NBL_E_OVERLAP, "workspace at", w.attend.workspace = world_memory(BLOCK_Q))
BAD_ATTEND(workspace_short, NBL_E_NO_MEMORY, "workspace_bytes is 16384 (needed: 30000",
           w.c.state->workspace_bytes = 30000)
BAD_ATTEND(q_len_max_zero, NBL_E_INVALID, "q_len_max is 0 (allowed: 1", w.attend.q_len_max = 0)
BAD_ATTEND(q_len_max_large, NBL_E_INVALID, "q_len_max is 16777217", w.attend.q_len_max = (1u << 24) + 1u)
BAD_ATTEND(q_len_max_small, NBL_E_INVALID, "q.shape[0] is 3 (allowed: at most batch 2 times q_len_max 1)",
           w.attend.q_len_max = 1)
BAD_ATTEND(kv_len_max_large, NBL_E_INVALID, "kv_len_max is 16777217 (allowed: 0 to 16777216)",
           w.attend.kv_len_max = (1u << 24) + 1u)
BAD_ATTEND(table_stride_short, NBL_E_INVALID, "page_table_stride is 187 (allowed: 188",
           w.attend.page_table_stride = 187)
BAD_ATTEND(indptr_null, NBL_E_INVALID, "q_indptr is NULL (needed: 3 entries)", w.attend.q_indptr = NULL)
BAD_ATTEND(kv_len_null, NBL_E_INVALID, "kv_len is NULL", w.attend.kv_len = NULL)
BAD_ATTEND(table_null, NBL_E_INVALID, "page_table is NULL", w.attend.page_table = NULL)
BAD_ATTEND(table_unaligned, NBL_E_ALIGN, "page_table is",
           w.attend.page_table = (const int32_t *)(const void *)(world_memory(BLOCK_OTHER) + 2))
BAD_ATTEND(sinks_unaligned, NBL_E_ALIGN, "sinks is",
           w.attend.sinks = (const float *)(const void *)(world_memory(BLOCK_OTHER) + 1))
BAD_ATTEND(sm_scale_small, NBL_E_INVALID, "sm_scale is", w.attend.sm_scale = 0x1p-25f)
BAD_ATTEND(sm_scale_large, NBL_E_INVALID, "sm_scale is 131072 (allowed: 0, or", w.attend.sm_scale = 0x1p17f)
BAD_ATTEND(sm_scale_negative, NBL_E_INVALID, "sm_scale is -1", w.attend.sm_scale = -1.0f)
BAD_ATTEND(sm_scale_nan, NBL_E_INVALID, "sm_scale is", w.attend.sm_scale = NAN)
BAD_ATTEND(sm_scale_inf, NBL_E_INVALID, "sm_scale is inf", w.attend.sm_scale = INFINITY)
BAD_ATTEND(soft_cap_small, NBL_E_INVALID, "soft_cap is", w.attend.soft_cap = 0x1p-11f)
BAD_ATTEND(soft_cap_large, NBL_E_INVALID, "soft_cap is", w.attend.soft_cap = 0x1p21f)
BAD_ATTEND(soft_cap_nan, NBL_E_INVALID, "soft_cap is", w.attend.soft_cap = NAN)
BAD_ATTEND(soft_cap_centered, NBL_E_INVALID, "the centre would not cancel", w.shape.centering = 1,
           w.attend.soft_cap = 30.0f)
BAD_ATTEND(window_left_unasked, NBL_E_INVALID, "window_left is 5 but its flag 2 is not set", w.attend.window_left = 5)
BAD_ATTEND(window_right_unasked, NBL_E_INVALID, "window_right is 5 but its flag 4", w.attend.window_right = 5)
BAD_ATTEND(range_begin_odd, NBL_E_INVALID, "range_begin is 512", w.attend.range_begin = 512, w.attend.range_end = 1024)
BAD_ATTEND(range_end_odd, NBL_E_INVALID, "range_end is 1500", w.attend.range_end = 1500)
BAD_ATTEND(range_empty, NBL_E_INVALID, "begin < end", w.attend.range_begin = w.attend.range_end = 1024)
BAD_ATTEND(range_reversed, NBL_E_INVALID, "range_begin is 2048 and range_end is 1024", w.attend.range_begin = 2048,
           w.attend.range_end = 1024)
BAD_ATTEND(range_end_missing, NBL_E_INVALID, "range_end is 0", w.attend.range_begin = 1024)
BAD_ATTEND(tree_window, NBL_E_INVALID, "slots of a tree are not positions", w.attend.flags |= NBL_ATTEND_WINDOW_LEFT,
           w.attend.tree_mask_stride = 1, w.attend.tree_mask = (const uint32_t *)(const void *)floats(BLOCK_OTHER))
BAD_ATTEND(tree_alibi, NBL_E_INVALID, "slots of a tree are not positions", w.attend.alibi_slopes = floats(BLOCK_OTHER),
           w.attend.tree_mask_stride = 1, w.attend.tree_mask = (const uint32_t *)(const void *)floats(BLOCK_OTHER))
BAD_ATTEND(tree_stride_short, NBL_E_INVALID, "tree_mask_stride is 1 (allowed: 2", w.attend.q_len_max = 33,
           w.attend.tree_mask_stride = 1, w.attend.tree_mask = (const uint32_t *)(const void *)floats(BLOCK_OTHER))
BAD_ATTEND(tree_stride_alone, NBL_E_INVALID, "tree_mask_stride is 1 (allowed without tree_mask: 0)",
           w.attend.tree_mask_stride = 1)
BAD_ATTEND(stream_kind, NBL_E_INVALID, "stream.kind is 2", w.attend.stream.kind = 2)
BAD_ATTEND(centers_missing, NBL_E_INVALID, "centers.codes is NULL", w.shape.centering = 1,
           w.attend.centers.codes = NULL)
BAD_ATTEND(centers_short, NBL_E_INVALID, "centers.row_count is 0", w.shape.centering = 1,
           w.attend.centers.row_count = 0)
BAD_ATTEND(o_in_centers, NBL_E_OVERLAP, "overlaps centers.codes", w.shape.centering = 1,
           w.attend.o.data = world_memory(BLOCK_CENTERS))
