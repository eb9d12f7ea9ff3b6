/* SPDX-License-Identifier: Apache-2.0 */
#include "internal.h"
#include "lock.h"

static const nbl_api_v1 api = {
    .struct_size = (uint32_t)sizeof(nbl_api_v1),
    .abi_minor = NBL_ABI_MINOR,
    .load = nbl_api_load,
    .runtime_destroy = nbl_api_runtime_destroy,
    .report_count = nbl_api_report_count,
    .report_get = nbl_api_report_get,
    .report_free = nbl_api_report_free,
    .status_name = nbl_api_status_name,
    .status_text = nbl_api_status_text,
    .build_info = nbl_api_build_info,
    .open = nbl_api_open,
    .close = nbl_api_close,
    .caps = nbl_api_caps,
    .supports = nbl_api_supports,
    .workspace_size = nbl_api_workspace_size,
    .kv_layout = nbl_api_kv_layout,
    .memory_alloc = nbl_api_memory_alloc,
    .memory_free = nbl_api_memory_free,
    .memory_copy = nbl_api_memory_copy,
    .check = nbl_api_check,
    .append = nbl_api_append,
    .attend = nbl_api_attend,
    .gather = nbl_api_gather,
    .copy_pages = nbl_api_copy_pages,
    .transcode = nbl_api_transcode,
    .merge = nbl_api_merge,
    .recipe_parse = nbl_api_recipe_parse,
    .cache_plan = nbl_api_cache_plan,
    .cache_create = nbl_api_cache_create,
    .cache_destroy = nbl_api_cache_destroy,
    .cache_stats = nbl_locked_cache_stats,
    .seq_create = nbl_locked_seq_create,
    .seq_free = nbl_locked_seq_free,
    .seq_length = nbl_locked_seq_length,
    .seq_truncate = nbl_locked_seq_truncate,
    .cache_append = nbl_locked_cache_append,
    .cache_attend = nbl_locked_cache_attend,
    .seq_fork = nbl_locked_seq_fork,
    .seq_truncate_batch = nbl_locked_seq_truncate_batch,
    .seq_drop_prefix = nbl_locked_seq_drop_prefix,
    .cache_verify = nbl_locked_cache_verify,
    .prefix_publish = nbl_locked_prefix_publish,
    .prefix_match = nbl_locked_prefix_match,
    .seq_adopt = nbl_locked_seq_adopt,
    .prefix_pin = nbl_locked_prefix_pin,
    .prefix_unpin = nbl_locked_prefix_unpin,
    .prefix_clear = nbl_locked_prefix_clear,
    .snapshot_size = nbl_locked_snapshot_size,
    .snapshot_write = nbl_locked_snapshot_write,
    .snapshot_save = nbl_locked_snapshot_save,
    .snapshot_read = nbl_locked_snapshot_read,
    .snapshot_load = nbl_locked_snapshot_load,
    .policy_parse = nbl_api_policy_parse,
    .cache_stats_text = nbl_locked_cache_stats_text,
    .append_coded = nbl_api_append_coded,
    .cache_append_coded = nbl_locked_cache_append_coded,
};

static nbl_status check_request(const nbl_api_request *request, nbl_error *err)
{
    const uint32_t known_bytes = (uint32_t)sizeof *request;
    if (request->struct_size < NBL_V1_BYTES(nbl_api_request) || request->struct_size > NBL_STRUCT_BYTES_MAX)
        return nbl_fail(err, NBL_E_ABI, NBL_ORIGIN_HOST, 0, "nbl_api_request.struct_size is %u, allowed are %u to %u",
                        request->struct_size, NBL_V1_BYTES(nbl_api_request), NBL_STRUCT_BYTES_MAX);
    const nbl_status status = nbl_tail_check(request, request->struct_size, known_bytes, "nbl_api_request", err);
    if (status != NBL_OK)
        return status;
    if (request->abi_major != NBL_ABI_MAJOR || request->abi_minor_min > NBL_ABI_MINOR)
        return nbl_fail(err, NBL_E_ABI, NBL_ORIGIN_HOST, 0,
                        "application ABI %u.%u is wanted, this libnibble speaks %u.0 to %u.%u; use a matching one",
                        request->abi_major, request->abi_minor_min, NBL_ABI_MAJOR, NBL_ABI_MAJOR, NBL_ABI_MINOR);
    return NBL_OK;
}

__attribute__((visibility("default"))) nbl_status nbl_get_api(const nbl_api_request *request,
                                                              const nbl_api_v1 **out_api, nbl_error *err)
{
    if (!out_api)
        return nbl_fail(err, NBL_E_INVALID, NBL_ORIGIN_HOST, 0, "out_api is NULL");
    const nbl_status status = request ? check_request(request, err) : NBL_OK;
    nbl_locks_prepare();
    if (status == NBL_OK)
        *out_api = &api;
    return status;
}
