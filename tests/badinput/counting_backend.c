/* SPDX-License-Identifier: Apache-2.0 */
#include "counting.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

NBL_BACKEND_NOTE(NBL_ISA_X86_64, 0u);

#define ALIGNMENT 256u

struct nbl_device {
    int unused;
};

/* In front of every block: its size. */
typedef struct block_header {
    uint64_t bytes;
} block_header;

static counting_state state;
static struct nbl_device the_device;
static const nbl_host *host;

static nbl_status fail(nbl_error *err, nbl_status status, const char *message)
{
    return host->fail(err, status, NBL_ORIGIN_BACKEND, 0, message);
}

static nbl_status device_open(const nbl_device_options *options, nbl_device **out_device, nbl_error *err)
{
    (void)options, (void)err;
    *out_device = &the_device;
    return NBL_OK;
}

static void device_close(nbl_device *device)
{
    (void)device;
}

static nbl_status caps(nbl_device *device, nbl_caps *out_caps, nbl_error *err)
{
    (void)device, (void)err;
    const nbl_caps all = {.struct_size = (uint32_t)sizeof all,
                          .formats = 1u << NBL_INT8 | 1u << NBL_MXFP4 | 1u << NBL_MXFP4_16 | 1u << NBL_INT4P,
                          .k_dim_max = NBL_K_DIM_MAX,
                          .v_dim_max = NBL_V_DIM_MAX,
                          .page_tokens_max = NBL_PAGE_TOKENS_MAX,
                          .kv_tokens_max = NBL_KV_TOKENS_MAX,
                          .stream_kind = NBL_STREAM_HOST,
                          .threads = 1,
                          .deterministic = 1,
                          .device_name = "counter",
                          .isa = "none"};
    *out_caps = all;
    return NBL_OK;
}

static nbl_status supports(nbl_device *device, const nbl_op_desc *op, nbl_error *err)
{
    (void)device, (void)op;
    state.questions++;
    return state.supports == NBL_OK ? NBL_OK : fail(err, state.supports, "counting: told to say no");
}

static nbl_status workspace_size(nbl_device *device, const nbl_op_desc *op, uint64_t *out_bytes, nbl_error *err)
{
    (void)device, (void)err;
    state.questions++;
    *out_bytes = state.workspace_bytes + op->q_tokens_max * state.workspace_bytes_per_row;
    return NBL_OK;
}

static nbl_status memory_alloc(nbl_device *device, uint64_t bytes, void **out_memory, nbl_error *err)
{
    (void)device;
    if (state.allocation_limit != 0 && state.allocations == state.allocation_limit)
        return fail(err, NBL_E_NO_MEMORY, "counting: told to have no memory");
    const uint64_t rounded = (bytes + ALIGNMENT - 1u) / ALIGNMENT * ALIGNMENT;
    uint8_t *memory = aligned_alloc(ALIGNMENT, ALIGNMENT + rounded + ALIGNMENT);
    if (memory == NULL)
        return fail(err, NBL_E_NO_MEMORY, "counting: no memory");
    const block_header header = {bytes};
    memset(memory, 0xA5, ALIGNMENT + rounded + ALIGNMENT);
    memcpy(memory, &header, sizeof header);
    state.allocations++;
    state.live_blocks++;
    state.live_bytes += bytes;
    *out_memory = memory + ALIGNMENT + state.memory_offset;
    return NBL_OK;
}

static void memory_free(nbl_device *device, void *memory)
{
    (void)device;
    block_header header;
    uint8_t *start = (uint8_t *)memory - ALIGNMENT - state.memory_offset;
    memcpy(&header, start, sizeof header);
    state.live_blocks--;
    state.live_bytes -= header.bytes;
    free(start);
}

static nbl_status memory_copy(nbl_device *device, void *dst, const void *src, uint64_t bytes, uint32_t kind,
                              nbl_stream stream, nbl_error *err)
{
    (void)device, (void)stream;
    state.uploads += kind == NBL_COPY_TO_DEVICE;
    if (++state.copies == state.fail_copy)
        return fail(err, NBL_E_DEVICE, "counting: told to fail a copy");
    memcpy(dst, src, bytes);
    return NBL_OK;
}

static nbl_status host_alloc(nbl_device *device, uint64_t bytes, void **out_memory, nbl_error *err)
{
    (void)device;
    uint64_t *memory = state.host_fails ? NULL : malloc(ALIGNMENT + bytes);
    if (memory == NULL)
        return fail(err, NBL_E_NO_MEMORY, "counting: told to have no host memory");
    *memory = bytes;
    state.host_bytes += bytes;
    *out_memory = (uint8_t *)memory + ALIGNMENT;
    return NBL_OK;
}

static void host_free(nbl_device *device, void *memory)
{
    (void)device;
    uint64_t *start = (uint64_t *)(void *)((uint8_t *)memory - ALIGNMENT);
    state.host_bytes -= *start;
    free(start);
}

static nbl_status check(nbl_device *device, nbl_stream stream, nbl_error *err)
{
    (void)device, (void)stream, (void)err;
    return NBL_OK;
}

static nbl_status operation(nbl_error *err)
{
    state.operations++;
    return state.operations == state.fail_operation ? fail(err, NBL_E_DEVICE, "counting: told to fail") : NBL_OK;
}

static nbl_status append(nbl_device *device, const nbl_append_args *args, nbl_error *err)
{
    (void)device;
    if (state.on_append != NULL)
        state.on_append(args);
    return operation(err);
}

static nbl_status attend(nbl_device *device, const nbl_attend_args *args, nbl_error *err)
{
    (void)device;
    if (state.on_attend != NULL)
        state.on_attend(args);
    return operation(err);
}

static nbl_status gather(nbl_device *device, const nbl_gather_args *args, nbl_error *err)
{
    (void)device, (void)args;
    return operation(err);
}

static nbl_status copy_pages(nbl_device *device, const nbl_copy_pages_args *args, nbl_error *err)
{
    (void)device;
    if (state.on_copy_pages != NULL)
        state.on_copy_pages(args);
    return operation(err);
}

static nbl_status transcode(nbl_device *device, const nbl_transcode_args *args, nbl_error *err)
{
    (void)device;
    if (state.on_transcode != NULL)
        state.on_transcode(args);
    return operation(err);
}

static nbl_status merge(nbl_device *device, const nbl_merge_args *args, nbl_error *err)
{
    (void)device, (void)args;
    return operation(err);
}

static const nbl_backend_v1 table = {
    .struct_size = (uint32_t)sizeof table,
    .abi_minor = NBL_BACKEND_ABI_MINOR,
    .name = "counting",
    .description = "counts calls and bytes, computes nothing",
    .device_open = device_open,
    .device_close = device_close,
    .caps = caps,
    .supports = supports,
    .workspace_size = workspace_size,
    .memory_alloc = memory_alloc,
    .memory_free = memory_free,
    .memory_copy = memory_copy,
    .check = check,
    .append = append,
    .attend = attend,
    .gather = gather,
    .copy_pages = copy_pages,
    .transcode = transcode,
    .merge = merge,
    .host_alloc = host_alloc,
    .host_free = host_free,
};

nbl_status nbl_backend_entry_v1(const nbl_host *host_table, nbl_backend_request *request,
                                const nbl_backend_v1 **out_backend, nbl_error *err);
counting_state *counting_state_get(void);

nbl_status nbl_backend_entry_v1(const nbl_host *host_table, nbl_backend_request *request,
                                const nbl_backend_v1 **out_backend, nbl_error *err)
{
    (void)err;
    host = host_table;
    request->abi_minor = NBL_BACKEND_ABI_MINOR;
    request->numerics_version = NBL_NUMERICS_VERSION;
    request->layout_version = NBL_LAYOUT_VERSION;
    *out_backend = &table;
    return NBL_OK;
}

/* For the test: dlsym on the file that is loaded already. */
counting_state *counting_state_get(void)
{
    return &state;
}
