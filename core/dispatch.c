/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file dispatch.c
 * @brief Operations of the application table: check the handle and the arguments, then hand them to the backend.
 */
#include "validate.h"

#include "num/layout.h"

/* ------------------------------------------------------------------------------------------------ questions */

nbl_status nbl_api_kv_layout(const nbl_kv_shape *shape, uint32_t k_format, uint32_t v_format,
                             nbl_page_layout *out_layout, nbl_error *err)
{
    nbl_kv_shape copy;
    NBL_TRY(NBL_STRUCT_OUT_CHECK(nbl_page_layout, out_layout, err));
    NBL_TRY(nbl_shape_in(&copy, shape, "shape.", err));
    NBL_TRY(nbl_format_check("", "k_format", k_format, err));
    NBL_TRY(nbl_format_check("", "v_format", v_format, err));
    const nbl_page_layout layout = nbl_layout_page(&copy, k_format, v_format);
    nbl_struct_out(out_layout, &layout, (uint32_t)sizeof layout);
    return NBL_OK;
}

nbl_status nbl_api_supports(nbl_device *device, const nbl_op_desc *op, nbl_error *err)
{
    nbl_desc_copy copy;
    NBL_TRY(nbl_device_check(device, err));
    NBL_TRY(nbl_desc_in(&copy, op, err));
    return device->backend->supports(device->inner, &copy.desc, err);
}

nbl_status nbl_api_workspace_size(nbl_device *device, const nbl_op_desc *op, uint64_t *out_bytes, nbl_error *err)
{
    nbl_desc_copy copy;
    NBL_TRY(nbl_device_check(device, err));
    NBL_TRY(nbl_pointer_check("out_bytes", out_bytes, 1, sizeof *out_bytes, err));
    NBL_TRY(nbl_desc_in(&copy, op, err));
    return device->backend->workspace_size(device->inner, &copy.desc, out_bytes, err);
}

nbl_status nbl_api_check(nbl_device *device, nbl_stream stream, nbl_error *err)
{
    NBL_TRY(nbl_device_check(device, err));
    NBL_TRY(nbl_stream_check(&stream, err));
    return device->backend->check(device->inner, stream, err);
}

/* ------------------------------------------------------------------------------------------------ memory */

nbl_status nbl_api_memory_alloc(nbl_device *device, uint64_t bytes, void **out_memory, nbl_error *err)
{
    void *memory = NULL;
    NBL_TRY(nbl_device_check(device, err));
    NBL_TRY(nbl_pointer_check("out_memory", out_memory, 1, (uint32_t) _Alignof(void *), err));
    NBL_TRY(nbl_value_check("", "bytes", bytes, 1, INT64_MAX, err));
    NBL_TRY(device->backend->memory_alloc(device->inner, bytes, &memory, err));
    if (memory == NULL || (uintptr_t)memory % NBL_MEMORY_ALIGNMENT != 0) {
        if (memory != NULL)
            device->backend->memory_free(device->inner, memory);
        return nbl_fail(err, NBL_E_BACKEND, NBL_ORIGIN_BACKEND, 0,
                        "memory_alloc of backend \"%s\" gave %p (needed: a multiple of %u)", device->backend->name,
                        memory, NBL_MEMORY_ALIGNMENT);
    }
    *out_memory = memory;
    return NBL_OK;
}

nbl_status nbl_api_memory_free(nbl_device *device, void *memory, nbl_error *err)
{
    NBL_TRY(nbl_device_check(device, err));
    if (memory != NULL)
        device->backend->memory_free(device->inner, memory);
    return NBL_OK;
}

nbl_status nbl_api_memory_copy(nbl_device *device, void *dst, const void *src, uint64_t bytes, uint32_t kind,
                               nbl_stream stream, nbl_error *err)
{
    nbl_extents extents = {.count = 0};
    NBL_TRY(nbl_device_check(device, err));
    NBL_TRY(nbl_value_check("", "kind", kind, NBL_COPY_TO_DEVICE, NBL_COPY_ON_DEVICE, err));
    NBL_TRY(nbl_stream_check(&stream, err));
    NBL_TRY(nbl_pointer_check("dst", dst, bytes, 1, err));
    NBL_TRY(nbl_pointer_check("src", src, bytes, 1, err));
    nbl_extents_add(&extents, "dst", dst, bytes, 1, true);
    nbl_extents_add(&extents, "src", src, bytes, 1, false);
    NBL_TRY(nbl_extents_check(&extents, err));
    if (bytes == 0)
        return NBL_OK;
    return device->backend->memory_copy(device->inner, dst, src, bytes, kind, stream, err);
}

/* ------------------------------------------------------------------------------------------------ workspace */

nbl_status nbl_workspace_bytes(const nbl_device *device, nbl_op_desc desc, const nbl_pool_copy *pool,
                               uint64_t *out_bytes, nbl_error *err)
{
    uint64_t largest = 0;
    for (uint32_t i = 0; i < pool->pool.region_count; ++i) {
        uint64_t bytes = 0;
        desc.k_format = pool->regions[i].k_format;
        desc.v_format = pool->regions[i].v_format;
        if ((desc.features & NBL_FEATURE_Q_CENTERS) != 0) /* a backend of 1.0 would not look at them */
            NBL_TRY(device->backend->supports(device->inner, &desc, err));
        NBL_TRY(device->backend->workspace_size(device->inner, &desc, &bytes, err));
        largest = bytes > largest ? bytes : largest;
    }
    *out_bytes = largest;
    return NBL_OK;
}

static nbl_status workspace_check(const nbl_device *device, nbl_op_desc desc, const nbl_pool_copy *pool,
                                  const void *workspace, uint64_t workspace_bytes, nbl_error *err)
{
    uint64_t needed = 0;
    NBL_TRY(nbl_workspace_bytes(device, desc, pool, &needed, err));
    if (needed == 0)
        return NBL_OK;
    if (workspace_bytes < needed)
        return NBL_REFUSE(err, NBL_E_NO_MEMORY,
                          "workspace_bytes is %" PRIu64 " (needed: %" PRIu64 ", see workspace_size)", workspace_bytes,
                          needed);
    return nbl_pointer_check("workspace", workspace, needed, NBL_MEMORY_ALIGNMENT, err);
}

/* ------------------------------------------------------------------------------------------------ operations */

nbl_status nbl_api_append(nbl_device *device, const nbl_append_args *args, nbl_error *err)
{
    nbl_append_call call;
    nbl_pool_copy pool;
    NBL_TRY(nbl_device_check(device, err));
    NBL_TRY(nbl_append_in(&call, &pool, args, err));
    NBL_TRY(
        workspace_check(device, nbl_append_desc(&call), &pool, call.args.workspace, call.args.workspace_bytes, err));
    if (call.tokens == 0)
        return NBL_OK;
    return device->backend->append(device->inner, &call.args, err);
}

nbl_status nbl_api_append_coded(nbl_device *device, const nbl_append_coded_args *args, nbl_error *err)
{
    nbl_append_coded_call call;
    NBL_TRY(nbl_device_check(device, err));
    NBL_TRY(nbl_append_coded_in(&call, args, err));
    return call.tokens == 0 ? NBL_OK : device->backend->append_coded(device->inner, &call.args, err);
}

nbl_status nbl_api_attend(nbl_device *device, const nbl_attend_args *args, nbl_error *err)
{
    nbl_attend_call call;
    nbl_pool_copy pool;
    NBL_TRY(nbl_device_check(device, err));
    NBL_TRY(nbl_attend_in(&call, &pool, args, err));
    if (call.q_tokens == 0)
        return NBL_OK;
    NBL_TRY(
        workspace_check(device, nbl_attend_desc(&call), &pool, call.args.workspace, call.args.workspace_bytes, err));
    return device->backend->attend(device->inner, &call.args, err);
}

nbl_status nbl_api_gather(nbl_device *device, const nbl_gather_args *args, nbl_error *err)
{
    nbl_gather_call call;
    NBL_TRY(nbl_device_check(device, err));
    NBL_TRY(nbl_gather_in(&call, args, err));
    return call.tokens == 0 ? NBL_OK : device->backend->gather(device->inner, &call.args, err);
}

nbl_status nbl_api_copy_pages(nbl_device *device, const nbl_copy_pages_args *args, nbl_error *err)
{
    nbl_copy_pages_call call;
    NBL_TRY(nbl_device_check(device, err));
    NBL_TRY(nbl_copy_pages_in(&call, args, err));
    return call.args.count == 0 ? NBL_OK : device->backend->copy_pages(device->inner, &call.args, err);
}

nbl_status nbl_api_transcode(nbl_device *device, const nbl_transcode_args *args, nbl_error *err)
{
    nbl_transcode_call call;
    NBL_TRY(nbl_device_check(device, err));
    NBL_TRY(nbl_transcode_in(&call, args, err));
    return call.args.count == 0 ? NBL_OK : device->backend->transcode(device->inner, &call.args, err);
}

nbl_status nbl_api_merge(nbl_device *device, const nbl_merge_args *args, nbl_error *err)
{
    nbl_merge_call call;
    NBL_TRY(nbl_device_check(device, err));
    NBL_TRY(nbl_merge_in(&call, args, err));
    return call.tokens == 0 ? NBL_OK : device->backend->merge(device->inner, &call.args, err);
}
