/* SPDX-License-Identifier: Apache-2.0 */
#include "session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int nbl_session_api(const nbl_api_v1 **out_api, nbl_fault *fault)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_api_request request = {.struct_size = (uint32_t)sizeof request, .abi_major = NBL_ABI_MAJOR};
    if (nbl_get_api(&request, out_api, &err) == NBL_OK)
        return NBL_EXIT_OK;
    return nbl_fault_from_api(fault, NBL_EXIT_FAILED, "libnibble", &err);
}

void nbl_session_drop_log(void *user, uint32_t level, const char *message)
{
    (void)user;
    (void)level;
    (void)message;
}

/* Levels of the runtime's log lines; NIBBLE_LOG names them in this order. */
enum { LEVEL_ERROR, LEVEL_WARN };

/* Highest level shown: warnings too if NIBBLE_LOG says nothing, since going on to another backend is one. */
static uint32_t log_level(void)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    const char *value = secure_getenv("NIBBLE_LOG");
    for (uint32_t i = 0; value && i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(value, names[i]) == 0)
            return i;
    }
    return LEVEL_WARN;
}

/* Errors are returned as well, and said once, at the end. */
static void print_line(void *user, uint32_t level, const char *message)
{
    (void)user;
    if (level != LEVEL_ERROR && level <= log_level())
        fprintf(stderr, "%s\n", message);
}

/* A variable must not win over the option of the same meaning. */
static void let_options_win(const nbl_session_options *options)
{
    if (options->backend)
        unsetenv("NIBBLE_BACKEND");
    if (options->threads)
        unsetenv("NIBBLE_SIM_THREADS");
    if (options->isa)
        unsetenv("NIBBLE_SIM_ISA");
}

static int load(nbl_session *session, const nbl_session_options *options, const char *what, nbl_report **out_report,
                nbl_fault *fault)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_load_options asked = NBL_INIT(nbl_load_options);
    let_options_win(options);
    asked.backend = options->backend;
    asked.backend_dir = options->backend_dir;
    asked.log = print_line;
    asked.client_name = "nibble";
    if (session->api->load(&asked, &session->runtime, out_report, &err) == NBL_OK)
        return NBL_EXIT_OK;
    return nbl_fault_from_api(fault, NBL_EXIT_BACKEND, what, &err);
}

static void note_backend(nbl_session *session, const nbl_report *report)
{
    for (uint32_t i = 0; i < session->api->report_count(report); i++) {
        nbl_load_attempt attempt = NBL_INIT(nbl_load_attempt);
        if (session->api->report_get(report, i, &attempt, NULL) != NBL_OK || attempt.status != NBL_OK)
            continue;
        snprintf(session->backend, sizeof session->backend, "%s", attempt.name);
        snprintf(session->path, sizeof session->path, "%s", attempt.path);
    }
}

static int open_device(nbl_session *session, const nbl_session_options *options, const char *what, nbl_fault *fault)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_device_options device = NBL_INIT(nbl_device_options);
    device.ordinal = options->ordinal;
    device.threads = options->threads;
    device.isa = options->isa;
    if (session->api->open(session->runtime, &device, &session->device, &err) != NBL_OK)
        return nbl_fault_from_api(fault, NBL_EXIT_BACKEND, what, &err);
    session->caps = (nbl_caps)NBL_INIT(nbl_caps);
    if (session->api->caps(session->device, &session->caps, &err) != NBL_OK)
        return nbl_fault_from_api(fault, NBL_EXIT_BACKEND, NULL, &err);
    session->stream = (nbl_stream){.kind = session->caps.stream_kind, .device = (int32_t)options->ordinal};
    if (session->caps.stream_kind == NBL_STREAM_CUDA)
        session->stream.handle = NBL_STREAM_CUDA_PER_THREAD;
    return NBL_EXIT_OK;
}

/* what names the option that chose the backend, or is NULL. */
static int open_session(nbl_session *out_session, const nbl_session_options *options, const char *what,
                        nbl_fault *fault)
{
    *out_session = (nbl_session){0};
    nbl_report *report = NULL;
    int code = nbl_session_api(&out_session->api, fault);
    if (code != NBL_EXIT_OK)
        return code;
    code = load(out_session, options, what, &report, fault);
    if (code == NBL_EXIT_OK)
        code = open_device(out_session, options, what, fault);
    if (code == NBL_EXIT_OK)
        note_backend(out_session, report);
    out_session->api->report_free(report);
    if (code != NBL_EXIT_OK)
        nbl_session_close(out_session);
    return code;
}

int nbl_session_open(nbl_session *out_session, const nbl_session_options *options, nbl_fault *fault)
{
    return open_session(out_session, options, options->backend ? "--backend" : NULL, fault);
}

int nbl_session_open_named(nbl_session *out_session, const char *backend, const char *backend_dir, nbl_fault *fault)
{
    const nbl_session_options options = {.backend = backend, .backend_dir = backend_dir};
    return open_session(out_session, &options, NULL, fault);
}

void nbl_session_close(nbl_session *session)
{
    if (session->device)
        session->api->close(session->device, NULL);
    if (session->runtime)
        session->api->runtime_destroy(session->runtime, NULL);
    session->device = NULL;
    session->runtime = NULL;
}

int nbl_session_alloc(nbl_session *session, uint64_t bytes, void **out_memory, nbl_fault *fault)
{
    nbl_error err = NBL_INIT(nbl_error);
    if (session->api->memory_alloc(session->device, bytes, out_memory, &err) == NBL_OK)
        return NBL_EXIT_OK;
    return nbl_fault_from_api(fault, NBL_EXIT_FAILED, "device memory", &err);
}

int nbl_session_upload(nbl_session *session, const void *bytes, uint64_t size, void **out_memory, nbl_fault *fault)
{
    void *memory = NULL;
    int code = nbl_session_alloc(session, size, &memory, fault);
    if (code != NBL_EXIT_OK)
        return code;
    nbl_error err = NBL_INIT(nbl_error);
    if (session->api->memory_copy(session->device, memory, bytes, size, NBL_COPY_TO_DEVICE, session->stream, &err) !=
        NBL_OK) {
        nbl_session_release(session, memory);
        return nbl_fault_from_api(fault, NBL_EXIT_FAILED, "copy to the device", &err);
    }
    *out_memory = memory;
    return NBL_EXIT_OK;
}

int nbl_session_download(nbl_session *session, const void *memory, void *bytes, uint64_t size, nbl_fault *fault)
{
    nbl_error err = NBL_INIT(nbl_error);
    if (session->api->memory_copy(session->device, bytes, memory, size, NBL_COPY_TO_HOST, session->stream, &err) !=
            NBL_OK ||
        session->api->check(session->device, session->stream, &err) != NBL_OK)
        return nbl_fault_from_api(fault, NBL_EXIT_FAILED, "copy from the device", &err);
    return NBL_EXIT_OK;
}

int nbl_session_sync(nbl_session *session, const void *memory, nbl_fault *fault)
{
    uint32_t word = 0;
    if (session->stream.kind == NBL_STREAM_HOST)
        return NBL_EXIT_OK;
    return nbl_session_download(session, memory, &word, sizeof word, fault);
}

void nbl_session_release(nbl_session *session, void *memory)
{
    if (memory)
        session->api->memory_free(session->device, memory, NULL);
}
