/* SPDX-License-Identifier: Apache-2.0 */
/* A backend that does nothing, and by the MOCK_ definitions of CMakeLists.txt does it wrongly. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "nibble/nibble_backend.h"

#ifndef MOCK_NOTE_MAJOR
#define MOCK_NOTE_MAJOR NBL_BACKEND_ABI_MAJOR
#endif
#ifndef MOCK_NOTE_MINOR_MIN
#define MOCK_NOTE_MINOR_MIN 0u
#endif
#ifndef MOCK_NOTE_MINOR
#define MOCK_NOTE_MINOR NBL_BACKEND_ABI_MINOR
#endif
#ifndef MOCK_NOTE_NUMERICS
#define MOCK_NOTE_NUMERICS NBL_NUMERICS_VERSION
#endif
#ifndef MOCK_NOTE_LAYOUT
#define MOCK_NOTE_LAYOUT NBL_LAYOUT_VERSION
#endif
#ifndef MOCK_ANSWER_MAJOR
#define MOCK_ANSWER_MAJOR NBL_BACKEND_ABI_MAJOR
#endif
#ifndef MOCK_ANSWER_MINOR
#define MOCK_ANSWER_MINOR 0u
#endif
#ifndef MOCK_ANSWER_NUMERICS
#define MOCK_ANSWER_NUMERICS NBL_NUMERICS_VERSION
#endif
#ifndef MOCK_TABLE_MINOR
#define MOCK_TABLE_MINOR MOCK_ANSWER_MINOR
#endif
#ifndef MOCK_TABLE_NAME
#define MOCK_TABLE_NAME MOCK_NAME
#endif
#ifndef MOCK_OPEN_STATUS
#define MOCK_OPEN_STATUS NBL_OK
#endif

#ifndef MOCK_OPEN_NATIVE
#define MOCK_OPEN_NATIVE 100
#endif
#ifndef MOCK_OPEN_TEXT
#define MOCK_OPEN_TEXT "no device here"
#endif

#ifndef MOCK_REFUSES
#define MOCK_REFUSES 0
#endif
#ifndef MOCK_GIVES_TABLE
#define MOCK_GIVES_TABLE 1
#endif

#ifndef MOCK_NO_NOTE
__attribute__((section(NBL_NOTE_SECTION), used, aligned(4))) static const nbl_note note = {
    7u,
    (uint32_t)sizeof(nbl_note_payload),
    NBL_NOTE_TYPE,
    NBL_NOTE_OWNER,
    {NBL_NOTE_MAGIC, 1u, MOCK_NOTE_MAJOR, MOCK_NOTE_MINOR_MIN, MOCK_NOTE_MINOR, MOCK_NOTE_NUMERICS, MOCK_NOTE_LAYOUT,
     NBL_ISA_X86_64, 0u, 0u}};
#endif

#ifdef MOCK_MARKER
/* A file that must not appear: no code of a refused plugin may run. */
__attribute__((constructor)) static void leave_marker(void)
{
    const char *path = getenv("MOCK_MARKER");
    const int fd = path ? open(path, O_CREAT | O_WRONLY, 0600) : -1;
    if (fd >= 0)
        (void)close(fd);
}
#endif

#ifdef MOCK_MEDDLES
#include <fenv.h>

/* What OpenMP runtimes and fast-math start-up code do to the thread that loads them. */
__attribute__((constructor)) static void meddle(void)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    (void)sched_setaffinity(0, sizeof one, &one);
    (void)fesetround(FE_UPWARD);
    errno = EDOM;
}
#endif

/* Tells a test that this code runs, by a byte through the descriptor in the variable, and stays for a while. */
#if defined MOCK_SLOW_CONSTRUCTOR || defined MOCK_SLOW_ENTRY
static void dawdle(void)
{
    const char *descriptor = getenv("MOCK_PIPE");
    if (descriptor && write(atoi(descriptor), "x", 1) != 1)
        abort();
    const struct timespec wait = {0, 500000000};
    (void)nanosleep(&wait, NULL);
}
#endif

#ifdef MOCK_SLOW_CONSTRUCTOR
__attribute__((constructor)) static void be_slow(void)
{
    dawdle();
}
#endif

#ifdef MOCK_UNDEFINED
int mock_defined_nowhere(void);
int mock_calls_nowhere(void);

__attribute__((visibility("default"))) int mock_calls_nowhere(void)
{
    return mock_defined_nowhere();
}
#endif

int mock_helper(void);

#ifdef MOCK_NEEDS_HELPER
int mock_uses_helper(void);

__attribute__((visibility("default"), used)) int mock_uses_helper(void)
{
    return mock_helper();
}
#else
__attribute__((visibility("default"))) int mock_helper(void)
{
    return 1;
}
#endif

#ifndef MOCK_NO_ENTRY
static const nbl_host *host;

struct nbl_device {
    nbl_device_options options;
    char isa[32];
};

static nbl_status device_open(const nbl_device_options *options, nbl_device **out_device, nbl_error *err)
{
    if (MOCK_OPEN_STATUS != NBL_OK)
        return host->fail(err, MOCK_OPEN_STATUS, NBL_ORIGIN_CUDA, MOCK_OPEN_NATIVE, MOCK_NAME ": " MOCK_OPEN_TEXT);
#ifdef MOCK_NULL_DEVICE
    (void)options;
    (void)out_device;
#else
    nbl_device *device = host->alloc(sizeof *device, 64);
    if (!device)
        return host->fail(err, NBL_E_NO_MEMORY, NBL_ORIGIN_BACKEND, 0, "no memory");
    memset(device, 0, sizeof *device);
    device->options = *options;
    (void)snprintf(device->isa, sizeof device->isa, "%s", options->isa ? options->isa : "none");
    host->log(NBL_LOG_INFO, MOCK_NAME " opened");
    *out_device = device;
#endif
    return NBL_OK;
}

static void device_close(nbl_device *device)
{
    host->free(device);
}

static nbl_status caps(nbl_device *device, nbl_caps *out_caps, nbl_error *err)
{
    (void)err;
    out_caps->threads = device->options.threads;
    out_caps->page_tokens_max = (uint32_t)mock_helper();
    out_caps->deterministic = 1;
    (void)snprintf(out_caps->device_name, sizeof out_caps->device_name, "%s %u", MOCK_NAME, device->options.ordinal);
    memcpy(out_caps->isa, device->isa, sizeof out_caps->isa);
    return NBL_OK;
}

static nbl_status supports(nbl_device *device, const nbl_op_desc *op, nbl_error *err)
{
    (void)device;
    (void)op;
    (void)err;
    return NBL_OK;
}

#ifndef MOCK_NULL_SLOT
static nbl_status workspace_size(nbl_device *device, const nbl_op_desc *op, uint64_t *out_bytes, nbl_error *err)
{
    (void)device;
    (void)op;
    (void)err;
    *out_bytes = 0;
    return NBL_OK;
}
#endif

static nbl_status memory_alloc(nbl_device *device, uint64_t bytes, void **out_memory, nbl_error *err)
{
    (void)device;
    *out_memory = host->alloc(bytes, 256);
    return *out_memory ? NBL_OK : host->fail(err, NBL_E_NO_MEMORY, NBL_ORIGIN_BACKEND, 0, "no memory");
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
#ifdef MOCK_LOST
    return host->fail(err, NBL_E_DEVICE, NBL_ORIGIN_CUDA, 719, MOCK_NAME ": the device is lost");
#else
    (void)err;
    return NBL_OK;
#endif
}

#ifdef MOCK_MORE_SLOTS
static nbl_status unknown_slot(void)
{
    abort();
}
#endif

static const struct {
    nbl_backend_v1 table;
    nbl_status (*later[4])(void);
} tables = {
    .table =
        {
#if defined MOCK_TABLE_BYTES
            .struct_size = MOCK_TABLE_BYTES,
#elif defined MOCK_FEWER_SLOTS
            .struct_size = offsetof(nbl_backend_v1, append),
#elif defined MOCK_MORE_SLOTS
            .struct_size = sizeof tables,
#else
            .struct_size = sizeof(nbl_backend_v1),
#endif
            .abi_minor = MOCK_TABLE_MINOR,
            .name = MOCK_TABLE_NAME,
            .description = MOCK_NAME " mock",
            .device_open = device_open,
            .device_close = device_close,
            .caps = caps,
            .supports = supports,
#ifndef MOCK_NULL_SLOT
            .workspace_size = workspace_size,
#endif
            .memory_alloc = memory_alloc,
            .memory_free = memory_free,
            .memory_copy = memory_copy,
            .check = check,
        },
#ifdef MOCK_MORE_SLOTS
    .later = {unknown_slot, unknown_slot, unknown_slot, unknown_slot},
#endif
};

nbl_status nbl_backend_entry_v1(const nbl_host *given_host, nbl_backend_request *request,
                                const nbl_backend_v1 **out_backend, nbl_error *err)
{
    host = given_host;
#ifdef MOCK_SLOW_ENTRY
    dawdle();
#endif
    if (MOCK_REFUSES)
        return host->fail(err, NBL_E_UNSUPPORTED, NBL_ORIGIN_BACKEND, 0, "not on a Sunday");
    request->abi_major = MOCK_ANSWER_MAJOR;
    request->abi_minor = MOCK_ANSWER_MINOR;
    request->numerics_version = MOCK_ANSWER_NUMERICS;
    request->layout_version = NBL_LAYOUT_VERSION;
    *out_backend = MOCK_GIVES_TABLE ? &tables.table : NULL;
    return NBL_OK;
}
#endif
