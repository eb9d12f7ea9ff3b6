/* SPDX-License-Identifier: Apache-2.0 */
#include "world.h"

#define BAD_APPEND(name, status, text, ...) BAD(badinput_append, name, append, append, status, text, __VA_ARGS__)

Test(badinput_append, valid_reaches_backend)
{
    world w;
    nbl_error err = NBL_INIT(nbl_error);
    world_open(&w);
    for (uint32_t centering = 0; centering <= NBL_CENTERING_ALL; ++centering) {
        w.shape.centering = centering;
        w.append.center_mode = centering != 0 ? NBL_CENTER_COMPUTE : NBL_CENTER_USE;
        cr_assert_eq(w.c.api->append(w.c.device, &w.append, &err), NBL_OK, "%s", err.message);
    }
    cr_assert_eq(w.c.state->operations, 4, "%d operations", (int)w.c.state->operations);
    counting_close(&w.c);
}

static void strides_seen(const nbl_append_args *args)
{
    const nbl_tensor *k = &args->k;
    cr_assert(k->stride_bytes[0] == 128 && k->stride_bytes[1] == 64 && k->stride_bytes[2] == 2, "strides %d %d %d",
              (int)k->stride_bytes[0], (int)k->stride_bytes[1], (int)k->stride_bytes[2]);
}

Test(badinput_append, packed_strides_are_explicit)
{
    world w;
    nbl_error err = NBL_INIT(nbl_error);
    world_open(&w);
    w.c.state->on_append = strides_seen;
    cr_assert_eq(w.c.api->append(w.c.device, &w.append, &err), NBL_OK, "%s", err.message);
    cr_assert_eq(w.c.state->operations, 1, "backend not called");
}

Test(badinput_append, no_tokens_is_no_work)
{
    world w;
    nbl_error err = NBL_INIT(nbl_error);
    world_open(&w);
    w.append.k.shape[0] = w.append.v.shape[0] = 0;
    w.append.k.data = w.append.v.data = NULL;
    w.append.slots = NULL;
    cr_assert_eq(w.c.api->append(w.c.device, &w.append, &err), NBL_OK, "%s", err.message);
    cr_assert_eq(w.c.state->operations, 0, "backend called");
}

Test(badinput_append, inputs_may_be_broadcast_and_reversed)
{
    world w;
    nbl_error err = NBL_INIT(nbl_error);
    world_open(&w);
    w.append.k.stride_bytes[2] = 2;
    w.append.v.data = world_memory(BLOCK_V) + 1024;
    w.append.v.stride_bytes[0] = -64;
    w.append.v.stride_bytes[1] = 32;
    w.append.v.stride_bytes[2] = 2;
    cr_assert_eq(w.c.api->append(w.c.device, &w.append, &err), NBL_OK, "%s", err.message);
    cr_assert_eq(w.c.state->operations, 1, "backend not called");
}

BAD_APPEND(struct_size_zero, NBL_E_ABI, "nbl_append_args", w.append.struct_size = 0)
BAD_APPEND(flags, NBL_E_UNKNOWN_FIELD, "nbl_append_args", w.append.flags = 4)
BAD_APPEND(reserved, NBL_E_UNKNOWN_FIELD, "nbl_append_args.reserved is 1 (allowed: 0)", w.append.reserved = 1)
BAD_APPEND(pool_null, NBL_E_INVALID, "pool is NULL", w.append.pool = NULL)
BAD_APPEND(layer, NBL_E_RANGE, "layer is 2 (allowed: 0 to 1)", w.append.layer = 2)
BAD_APPEND(center_mode, NBL_E_INVALID, "center_mode is 2 (allowed: 0 to 1)", w.append.center_mode = 2)
BAD_APPEND(stream_kind, NBL_E_INVALID, "stream.kind is 7 (allowed: 0 to 1)", w.append.stream.kind = 7)
BAD_APPEND(k_absent, NBL_E_INVALID, "k.data is NULL", w.append.k.data = NULL)
BAD_APPEND(k_rank, NBL_E_INVALID, "k.rank is 2 (needed: 3, [T, Hk, Dk])", w.append.k.rank = 2)
BAD_APPEND(k_dtype, NBL_E_INVALID, "k.dtype is 9 (allowed: 1 f32, 2 f16, 3 bf16)", w.append.k.dtype = 9)
BAD_APPEND(k_dtype_huge, NBL_E_INVALID, "k.dtype is 4294967295", w.append.k.dtype = UINT32_MAX)
BAD_APPEND(k_heads, NBL_E_INVALID, "k.shape[1] is 3 (needed: 2, [T, Hk, Dk])", w.append.k.shape[1] = 3)
BAD_APPEND(k_dim, NBL_E_INVALID, "k.shape[2] is 24 (needed: 32", w.append.k.shape[2] = 24)
BAD_APPEND(k_tokens_huge, NBL_E_INVALID, "k.shape[0] is 2147483648", w.append.k.shape[0] = 1ull << 31)
BAD_APPEND(v_tokens, NBL_E_INVALID, "v.shape[0] is 4 (needed: 5", w.append.v.shape[0] = 4)
BAD_APPEND(v_dtype_differs, NBL_E_INVALID, "v.dtype is 1 (needed: 3, that of k)", w.append.v.dtype = NBL_F32)
BAD_APPEND(k_data_unaligned, NBL_E_ALIGN, "k.data is", w.append.k.data = world_memory(BLOCK_K) + 1)
BAD_APPEND(k_stride_unaligned, NBL_E_ALIGN, "k.stride_bytes[0] is 129 (needed: a multiple of 2)",
           w.append.k.stride_bytes[0] = 129, w.append.k.stride_bytes[1] = 64, w.append.k.stride_bytes[2] = 2)
BAD_APPEND(k_stride_huge, NBL_E_INVALID, "k reaches beyond the address space",
           w.append.k.stride_bytes[0] = INT64_MAX - 1)
BAD_APPEND(k_stride_below_zero, NBL_E_INVALID, "k reaches beyond the address space",
           w.append.k.stride_bytes[0] = INT64_MIN)
BAD_APPEND(slots_null, NBL_E_INVALID, "slots is NULL (needed: 5 entries)", w.append.slots = NULL)
BAD_APPEND(slots_unaligned, NBL_E_ALIGN, "slots is",
           w.append.slots = (const int64_t *)(const void *)(world_memory(BLOCK_INDICES) + 4))
BAD_APPEND(stats_unaligned, NBL_E_ALIGN, "stats is",
           w.append.stats = (nbl_quant_stats *)(void *)(world_memory(BLOCK_STATS) + 4))
BAD_APPEND(stats_in_k, NBL_E_OVERLAP, "stats at",
           w.append.stats = (nbl_quant_stats *)(void *)(world_memory(BLOCK_K) + 8))
BAD_APPEND(k_in_codes, NBL_E_OVERLAP, "pool.regions[1].codes", w.append.k.data = world_memory(BLOCK_CODES_1) + 16)
BAD_APPEND(v_in_scales, NBL_E_OVERLAP, "pool.regions[0].scales", w.append.v.data = world_memory(BLOCK_SCALES_0))
BAD_APPEND(slots_in_codes, NBL_E_OVERLAP, "overlaps slots",
           w.append.slots = (const int64_t *)(const void *)world_memory(BLOCK_CODES_0))
BAD_APPEND(workspace_in_k, NBL_E_OVERLAP, "workspace at", w.append.workspace = world_memory(BLOCK_K))
BAD_APPEND(workspace_short, NBL_E_NO_MEMORY, "workspace_bytes is 16384 (needed: 20000",
           w.c.state->workspace_bytes = 20000)
BAD_APPEND(workspace_null, NBL_E_INVALID, "workspace is NULL", w.c.state->workspace_bytes = 100,
           w.append.workspace = NULL)
BAD_APPEND(workspace_unaligned, NBL_E_ALIGN, "workspace is", w.c.state->workspace_bytes = 100,
           w.append.workspace = world_memory(BLOCK_WORKSPACE) + 128, w.append.workspace_bytes = 1000)
BAD_APPEND(batch_zero, NBL_E_INVALID, "batch is 0 (allowed: 1", w.shape.centering = 1, w.append.batch = 0)
BAD_APPEND(indptr_null, NBL_E_INVALID, "seq_indptr is NULL (needed: 3 entries)", w.shape.centering = 1,
           w.append.seq_indptr = NULL)
BAD_APPEND(center_codes_null, NBL_E_INVALID, "centers.codes is NULL", w.shape.centering = 1,
           w.append.centers.codes = NULL)
BAD_APPEND(center_exponents_null, NBL_E_INVALID, "centers.exponents is NULL", w.shape.centering = 1,
           w.append.centers.exponents = NULL)
BAD_APPEND(center_shifts_null, NBL_E_INVALID, "centers.shifts is NULL", w.shape.centering = NBL_CENTERING_SHIFT,
           w.append.centers.shifts = NULL, w.append.centers.codes = NULL)
BAD_APPEND(shifts_in_k, NBL_E_OVERLAP, "centers.shifts at", w.shape.centering = NBL_CENTERING_ALL,
           w.append.center_mode = NBL_CENTER_COMPUTE, w.append.centers.shifts = world_memory(BLOCK_K))
BAD_APPEND(center_rows_unaligned, NBL_E_ALIGN, "centers.rows is", w.shape.centering = 1,
           w.append.centers.rows = (const int32_t *)(const void *)(world_memory(BLOCK_INDICES) + 2))
BAD_APPEND(center_rows_few, NBL_E_INVALID, "centers.row_count is 1 (allowed: 2", w.shape.centering = 1,
           w.append.centers.rows = NULL, w.append.centers.row_count = 1)
BAD_APPEND(center_reserved, NBL_E_UNKNOWN_FIELD, "nbl_centers.reserved is 9", w.shape.centering = 1,
           w.append.centers.reserved = 9)
BAD_APPEND(centers_in_k, NBL_E_OVERLAP, "centers.codes at", w.shape.centering = 1,
           w.append.center_mode = NBL_CENTER_COMPUTE, w.append.centers.codes = (int8_t *)world_memory(BLOCK_K))
