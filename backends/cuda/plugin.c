/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file plugin.c
 * @brief Entry of the CUDA plugin and its table. Touches no driver: a process may fork after a load.
 */
#include "cuda_plugin.h"

#if defined(__aarch64__)
NBL_BACKEND_NOTE(NBL_ISA_AARCH64, CUDART_VERSION);
#else
NBL_BACKEND_NOTE(NBL_ISA_X86_64, CUDART_VERSION);
#endif

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

const nbl_host *cuda_host;

static const nbl_backend_v1 table = {
    .struct_size = sizeof(nbl_backend_v1),
    .abi_minor = NBL_BACKEND_ABI_MINOR,
    .name = "cuda",
    .description = "NVIDIA GPUs from compute capability 8.0 on, CUDA runtime " TEXT(CUDART_VERSION),
    .device_open = cuda_device_open,
    .device_close = cuda_device_close,
    .caps = cuda_device_caps,
    .supports = cuda_supports,
    .workspace_size = cuda_workspace_size,
    .memory_alloc = cuda_memory_alloc,
    .memory_free = cuda_memory_free,
    .memory_copy = cuda_memory_copy,
    .check = cuda_check,
    .append = cuda_append,
    .attend = cuda_attend,
    .gather = cuda_gather,
    .copy_pages = cuda_copy_pages,
    .transcode = cuda_transcode,
    .merge = cuda_merge,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .append_coded = cuda_append_coded,
};

nbl_status nbl_backend_entry_v1(const nbl_host *host, nbl_backend_request *request, const nbl_backend_v1 **out_backend,
                                nbl_error *err)
{
    if (host == NULL || request == NULL || out_backend == NULL) {
        return NBL_E_INVALID;
    }
    cuda_host = host;
    if (request->abi_major != NBL_BACKEND_ABI_MAJOR || request->abi_minor_min > NBL_BACKEND_ABI_MINOR) {
        return cuda_fail(err, NBL_E_ABI, "cuda speaks backend ABI %u.%u, the runtime asks for %u.%u or newer",
                         NBL_BACKEND_ABI_MAJOR, NBL_BACKEND_ABI_MINOR, request->abi_major, request->abi_minor_min);
    }
    request->abi_minor = NBL_BACKEND_ABI_MINOR;
    request->numerics_version = NBL_NUMERICS_VERSION;
    request->layout_version = NBL_LAYOUT_VERSION;
    *out_backend = &table;
    return NBL_OK;
}
