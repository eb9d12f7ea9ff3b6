/* SPDX-License-Identifier: Apache-2.0 */
#include "session.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int nbl_session_api(const nbl_api_v1 **out_api, nbl_fault *fault)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_api_request request = {.struct_size = (uint32_t)sizeof request, .abi_major = NBL_ABI_MAJOR};
    if (nbl_get_api(&request, out_api, &err) == NBL_OK)
        return NBL_EXIT_OK;
    return nbl_fault_from_api(fault, NBL_EXIT_FAILED, "libnibble", &err);
}

static void drop_line(void *user, uint32_t level, const char *message)
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

static int load(nbl_session *session, const nbl_session_options *options, uint32_t flags, const char *what,
                nbl_fault *fault)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_load_options asked = NBL_INIT(nbl_load_options);
    asked.flags = flags;
    asked.backend = options->backend;
    asked.backend_dir = options->backend_dir;
    asked.log = session->quiet ? drop_line : print_line;
    asked.client_name = "nibble";
    if (session->api->load(&asked, &session->runtime, &session->report, &err) == NBL_OK)
        return NBL_EXIT_OK;
    return nbl_fault_from_api(fault, NBL_EXIT_BACKEND, what, &err);
}

bool nbl_session_last_attempt(const nbl_session *session, nbl_load_attempt *out_attempt)
{
    uint32_t count = session->report ? session->api->report_count(session->report) : 0;
    *out_attempt = (nbl_load_attempt)NBL_INIT(nbl_load_attempt);
    return count > 0 && session->api->report_get(session->report, count - 1, out_attempt, NULL) == NBL_OK;
}

static void note_backend(nbl_session *session)
{
    nbl_load_attempt attempt;
    if (!nbl_session_last_attempt(session, &attempt))
        return;
    snprintf(session->backend, sizeof session->backend, "%s", attempt.name);
    snprintf(session->path, sizeof session->path, "%s", attempt.path);
}

static nbl_status open_with(nbl_session *session, uint32_t ordinal, uint32_t threads, const char *isa, nbl_error *err)
{
    nbl_device_options device = NBL_INIT(nbl_device_options);
    device.ordinal = ordinal;
    device.threads = threads;
    device.isa = isa;
    return session->api->open(session->runtime, &device, &session->device, err);
}

/* The option without which the device opens, or NULL: the backend's message does not know the names of options. */
static const char *option_at_fault(nbl_session *session, const nbl_session_options *options)
{
    const char *name = NULL;
    if (options->ordinal && open_with(session, 0, options->threads, options->isa, NULL) == NBL_OK)
        name = "--device";
    else if (options->isa && open_with(session, options->ordinal, options->threads, NULL, NULL) == NBL_OK)
        name = "--isa";
    else if (options->threads && open_with(session, options->ordinal, 0, options->isa, NULL) == NBL_OK)
        name = "--threads";
    if (name)
        session->api->close(session->device, NULL);
    session->device = NULL;
    return name;
}

static int open_device(nbl_session *session, const nbl_session_options *options, const char *what, nbl_fault *fault)
{
    nbl_error err = NBL_INIT(nbl_error);
    if (open_with(session, options->ordinal, options->threads, options->isa, &err) != NBL_OK) {
        const char *name = option_at_fault(session, options);
        return nbl_fault_from_api(fault, name ? NBL_EXIT_USAGE : NBL_EXIT_BACKEND, name ? name : what, &err);
    }
    note_backend(session);
    session->caps = (nbl_caps)NBL_INIT(nbl_caps);
    if (session->api->caps(session->device, &session->caps, &err) != NBL_OK)
        return nbl_fault_from_api(fault, NBL_EXIT_BACKEND, NULL, &err);
    session->stream = (nbl_stream){.kind = session->caps.stream_kind, .device = (int32_t)options->ordinal};
    if (session->caps.stream_kind == NBL_STREAM_CUDA)
        session->stream.handle = NBL_STREAM_CUDA_PER_THREAD;
    return NBL_EXIT_OK;
}

/* what names the option that chose the backend, or is NULL. */
static int open_session(nbl_session *session, const nbl_session_options *options, uint32_t flags, const char *what,
                        nbl_fault *fault)
{
    int code = nbl_session_api(&session->api, fault);
    if (code == NBL_EXIT_OK)
        code = load(session, options, flags, what, fault);
    if (code == NBL_EXIT_OK)
        code = open_device(session, options, what, fault);
    return code;
}

int nbl_session_check(const nbl_session_options *options, nbl_fault *fault)
{
    struct stat status;
    const char *directory = options->backend_dir;
    if (!directory)
        return NBL_EXIT_OK;
    if (directory[0] != '/')
        return nbl_fault_set(fault, NBL_EXIT_USAGE, "--backend-dir: \"%.300s\" is not an absolute directory",
                             directory);
    if (stat(directory, &status) != 0)
        return nbl_fault_set(fault, NBL_EXIT_USAGE, "--backend-dir: \"%.300s\": %s", directory, strerror(errno));
    if (!S_ISDIR(status.st_mode))
        return nbl_fault_set(fault, NBL_EXIT_USAGE, "--backend-dir: \"%.300s\" is not a directory", directory);
    return NBL_EXIT_OK;
}

int nbl_session_open(nbl_session *out_session, const nbl_session_options *options, nbl_fault *fault)
{
    *out_session = (nbl_session){0};
    int code = nbl_session_check(options, fault);
    if (code != NBL_EXIT_OK)
        return code;
    let_options_win(options);
    code = open_session(out_session, options, 0, options->backend ? "--backend" : NULL, fault);
    if (code != NBL_EXIT_OK)
        nbl_session_close(out_session);
    return code;
}

int nbl_session_try(nbl_session *out_session, const nbl_session_options *options, nbl_fault *fault)
{
    *out_session = (nbl_session){.quiet = true};
    let_options_win(options);
    return open_session(out_session, options, 0, options->backend ? "--backend" : NULL, fault);
}

/* Tells whether a directory has the file of a backend. */
static bool has_backend(const char *directory, const char *backend)
{
    char path[PATH_MAX];
    const int bytes = snprintf(path, sizeof path, "%s/libnibble-backend-%s.so.1", directory, backend);
    return bytes > 0 && (size_t)bytes < sizeof path && access(path, F_OK) == 0;
}

/* The load that counts looks in NIBBLE_BACKEND_DIR and nowhere else but backend_dir; a probe ignores the variables. */
int nbl_session_probe(nbl_session *out_session, const char *backend, const char *backend_dir, nbl_fault *fault)
{
    const char *variable = secure_getenv("NIBBLE_BACKEND_DIR");
    nbl_session_options options = {.backend = backend, .backend_dir = backend_dir};
    *out_session = (nbl_session){.quiet = true};
    if (variable && variable[0] == '/' && backend[0] != '/') { /* else the load that counts complains */
        if (!backend_dir || !has_backend(backend_dir, backend))
            options.backend_dir = variable;
        if (!has_backend(options.backend_dir, backend))
            return nbl_fault_set(fault, NBL_EXIT_BACKEND, "backend \"%s\": no libnibble-backend-%s.so.1 in: %s%s%s",
                                 backend, backend, backend_dir ? backend_dir : "", backend_dir ? ", " : "", variable);
    }
    return open_session(out_session, &options, NBL_LOAD_IGNORE_ENV, NULL, fault);
}

void nbl_session_close(nbl_session *session)
{
    if (session->device)
        session->api->close(session->device, NULL);
    if (session->runtime)
        session->api->runtime_destroy(session->runtime, NULL);
    if (session->report)
        session->api->report_free(session->report);
    session->device = NULL;
    session->runtime = NULL;
    session->report = NULL;
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
