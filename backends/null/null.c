/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file null.c
 * @brief A backend that does nothing, and does it right: copy this folder to start a backend of your own.
 *
 * It keeps every duty of nibble_backend.h (B1 to B16), loads on any machine, hands out memory and copies it, and
 * refuses every operation with a reason. The conformance suite runs against it, with each test skipped for that reason;
 * as operations are added, tests stop being skipped. Steps, in the order in which they pay off:
 *
 * 1. Rename: NAME below, the file name in CMakeLists.txt, the "null: " in front of messages.
 * 2. Device: null_device_open, caps, memory_*. If memory is not the host's, say so in caps (stream_kind).
 * 3. One operation: write it for what you can do (gather is the smallest), say yes to just that in supports, put it in
 *    the table. With NIBBLE_BACKEND=name, the suite "gather" of test-conformance compares its bytes with the oracle's.
 * 4. append, attend, then the rest; docs/numerics.md says what each bit must be, docs/formats.md where it lies.
 * 5. Widen supports until the suite skips nothing that your hardware can do.
 */
#include <nibble/nibble_backend.h>
#include <string.h>

/* B2: the note. What the CPU must have before any code of this file runs, and the CUDA runtime built with (0: none). */
#if defined(__aarch64__)
NBL_BACKEND_NOTE(NBL_ISA_AARCH64, 0u);
#else
NBL_BACKEND_NOTE(NBL_ISA_X86_64, 0u);
#endif

/* B5: the NAME of libnibble-backend-NAME.so.1. */
#define NAME "null"

/* B7: the runtime is reached through this table only; the file links nothing of it. */
static const nbl_host *host;

/* One open device. What calls need lives here, not in static variables: devices are used in parallel (B11). */
struct nbl_device {
    uint32_t ordinal;
};

/* ------------------------------------------------------------------------------------------------ device */

/* The first function that may touch a driver or start a thread (B9). An option that means nothing here is refused, not
 * ignored: the caller asked for something. */
static nbl_status null_device_open(const nbl_device_options *options, nbl_device **out_device, nbl_error *err)
{
    if (options->ordinal != 0)
        return host->fail(err, NBL_E_DEVICE, NBL_ORIGIN_BACKEND, 0, NAME ": there is one device, ordinal 0");
    if (options->threads != 0 || options->isa)
        return host->fail(err, NBL_E_INVALID, NBL_ORIGIN_BACKEND, 0, NAME ": threads and isa are the simulator's");
    nbl_device *device = host->alloc(sizeof *device, 64);
    if (!device)
        return host->fail(err, NBL_E_NO_MEMORY, NBL_ORIGIN_BACKEND, 0, NAME ": no memory for a device");
    device->ordinal = options->ordinal;
    *out_device = device; /* only now: a failing call leaves outputs as they were (B14) */
    return NBL_OK;
}

static void null_device_close(nbl_device *device)
{
    host->free(device);
}

/* out_caps arrives zeroed; zero means "none" or "not known". */
static nbl_status null_caps(nbl_device *device, nbl_caps *out_caps, nbl_error *err)
{
    (void)device;
    (void)err;
    out_caps->stream_kind = NBL_STREAM_HOST;
    out_caps->threads = 1;
    out_caps->deterministic = 1;
    memcpy(out_caps->device_name, "no device", sizeof "no device");
    return NBL_OK;
}

/* The one place that says what this backend can do. Callers plan by it, and the runtime asks it before every operation,
 * so the operations below need no second check. The reason is one line that tells the user what to change. */
static nbl_status null_supports(nbl_device *device, const nbl_op_desc *op, nbl_error *err)
{
    (void)device;
    (void)op;
    return host->fail(err, NBL_E_UNSUPPORTED, NBL_ORIGIN_BACKEND, 0, NAME ": no operation is implemented");
}

/* The most that any call within the bounds of op needs. */
static nbl_status null_workspace_size(nbl_device *device, const nbl_op_desc *op, uint64_t *out_bytes, nbl_error *err)
{
    const nbl_status status = null_supports(device, op, err);
    if (status == NBL_OK)
        *out_bytes = 0;
    return status;
}

/* ------------------------------------------------------------------------------------------------ memory */

static nbl_status null_memory_alloc(nbl_device *device, uint64_t bytes, void **out_memory, nbl_error *err)
{
    (void)device;
    void *memory = host->alloc(bytes, NBL_MEMORY_ALIGNMENT);
    if (!memory)
        return host->fail(err, NBL_E_NO_MEMORY, NBL_ORIGIN_BACKEND, 0, NAME ": no memory");
    *out_memory = memory;
    return NBL_OK;
}

static void null_memory_free(nbl_device *device, void *memory)
{
    (void)device;
    host->free(memory);
}

/* The runtime has checked ranges and values (B13), but not that the stream is one of ours. */
static nbl_status null_memory_copy(nbl_device *device, void *dst, const void *src, uint64_t bytes, uint32_t kind,
                                   nbl_stream stream, nbl_error *err)
{
    (void)device;
    (void)kind; /* host and device memory are the same here */
    if (stream.kind != NBL_STREAM_HOST)
        return host->fail(err, NBL_E_INVALID, NBL_ORIGIN_BACKEND, 0, NAME ": stream.kind must be NBL_STREAM_HOST");
    memcpy(dst, src, bytes);
    return NBL_OK;
}

/* Work is finished when a call returns, so there is nothing to wait for and no late error to tell. */
static nbl_status null_check(nbl_device *device, nbl_stream stream, nbl_error *err)
{
    (void)device;
    if (stream.kind != NBL_STREAM_HOST)
        return host->fail(err, NBL_E_INVALID, NBL_ORIGIN_BACKEND, 0, NAME ": stream.kind must be NBL_STREAM_HOST");
    return NBL_OK;
}

/* ------------------------------------------------------------------------------------------------ entry */

/* Required slots, then optional ones. A slot that is NULL, or past struct_size, answers NBL_E_UNSUPPORTED with its
 * name; to add an operation, write it with the type of its slot and put it here. */
static const nbl_backend_v1 table = {
    .struct_size = (uint32_t)sizeof table,
    .abi_minor = NBL_BACKEND_ABI_MINOR,
    .name = NAME,
    .description = "no operation; a template for backends",
    .device_open = null_device_open,
    .device_close = null_device_close,
    .caps = null_caps,
    .supports = null_supports,
    .workspace_size = null_workspace_size,
    .memory_alloc = null_memory_alloc,
    .memory_free = null_memory_free,
    .memory_copy = null_memory_copy,
    .check = null_check,
    .append = NULL,
    .attend = NULL,
    .gather = NULL,
    .copy_pages = NULL,
    .transcode = NULL,
    .merge = NULL,
};

/* Agrees on versions and nothing else; may run again in a child that was forked in the midst of a load. A backend that
 * speaks several minors answers the highest of them that is not above request->abi_minor, with a table to match. */
nbl_status nbl_backend_entry_v1(const nbl_host *given_host, nbl_backend_request *request,
                                const nbl_backend_v1 **out_backend, nbl_error *err)
{
    if (!given_host || !request || !out_backend)
        return NBL_E_INVALID;
    /* In signed numbers: with a minor of 0 an unsigned comparison could not fail, and compilers say so. */
    const int older = (int64_t)request->abi_minor - (int64_t)NBL_BACKEND_ABI_MINOR < 0;
    if (request->abi_major != NBL_BACKEND_ABI_MAJOR || older)
        return given_host->fail(err, NBL_E_ABI, NBL_ORIGIN_BACKEND, 0, NAME ": the runtime is older than this backend");
    host = given_host;
    request->abi_minor = NBL_BACKEND_ABI_MINOR;
    request->numerics_version = NBL_NUMERICS_VERSION;
    request->layout_version = NBL_LAYOUT_VERSION;
    *out_backend = &table;
    return NBL_OK;
}
