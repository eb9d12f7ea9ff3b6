/* SPDX-License-Identifier: Apache-2.0 */
/* A backend of version 1.0, for ever: its binary is stored beside this file and opened by every later runtime. It has
 * the required slots and no arithmetic, so it answers with whatever numerics and layout it is asked for. */
#include <nibble/nibble_backend.h>
#include <string.h>

NBL_BACKEND_NOTE(NBL_ISA_X86_64, 0u);

static const nbl_host *host;

struct nbl_device {
    uint32_t ordinal;
};

static nbl_status device_open(const nbl_device_options *options, nbl_device **out_device, nbl_error *err)
{
    nbl_device *device = host->alloc(sizeof *device, 64);
    if (!device)
        return host->fail(err, NBL_E_NO_MEMORY, NBL_ORIGIN_BACKEND, 0, "v1: no memory");
    device->ordinal = options->ordinal;
    *out_device = device;
    return NBL_OK;
}

static void device_close(nbl_device *device)
{
    host->free(device);
}

static nbl_status caps(nbl_device *device, nbl_caps *out_caps, nbl_error *err)
{
    (void)err;
    memcpy(out_caps->device_name, "v1", 3);
    out_caps->threads = 1 + device->ordinal;
    return NBL_OK;
}

static nbl_status supports(nbl_device *device, const nbl_op_desc *op, nbl_error *err)
{
    (void)device;
    (void)op;
    return host->fail(err, NBL_E_UNSUPPORTED, NBL_ORIGIN_BACKEND, 0, "v1: no operation");
}

static nbl_status workspace_size(nbl_device *device, const nbl_op_desc *op, uint64_t *out_bytes, nbl_error *err)
{
    *out_bytes = 0;
    return supports(device, op, err);
}

static nbl_status memory_alloc(nbl_device *device, uint64_t bytes, void **out_memory, nbl_error *err)
{
    (void)device;
    *out_memory = host->alloc(bytes, 256);
    return *out_memory ? NBL_OK : host->fail(err, NBL_E_NO_MEMORY, NBL_ORIGIN_BACKEND, 0, "v1: no memory");
}

static void memory_free(nbl_device *device, void *memory)
{
    (void)device;
    host->free(memory);
}

static nbl_status memory_copy(nbl_device *device, void *dst, const void *src, uint64_t bytes, uint32_t kind,
                              nbl_stream stream, nbl_error *err)
{
    (void)device;
    (void)kind;
    (void)stream;
    (void)err;
    memcpy(dst, src, bytes);
    return NBL_OK;
}

static nbl_status check(nbl_device *device, nbl_stream stream, nbl_error *err)
{
    (void)device;
    (void)stream;
    (void)err;
    return NBL_OK;
}

static const nbl_backend_v1 table = {
    .struct_size = (uint32_t)sizeof table,
    .abi_minor = 0,
    .name = "v1",
    .description = "a backend of version 1.0",
    .device_open = device_open,
    .device_close = device_close,
    .caps = caps,
    .supports = supports,
    .workspace_size = workspace_size,
    .memory_alloc = memory_alloc,
    .memory_free = memory_free,
    .memory_copy = memory_copy,
    .check = check,
};

nbl_status nbl_backend_entry_v1(const nbl_host *given_host, nbl_backend_request *request,
                                const nbl_backend_v1 **out_backend, nbl_error *err)
{
    (void)err;
    host = given_host;
    request->abi_major = 1;
    request->abi_minor = 0;
    *out_backend = &table;
    return NBL_OK;
}
