/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "env.h"
#include "internal.h"
#include "loader.h"
#include "lock.h"
#include "log.h"
#include "report.h"
#include "search.h"

struct nbl_runtime {
    nbl_handle handle;
    nbl_log_sink sink;
    nbl_report *report;
    nbl_search search;
    uint32_t position;      /**< of the candidate in use */
    int chosen;             /**< a device has been opened: the candidate is final */
    nbl_instance *instance; /**< of that candidate; NULL while the next one is being looked for */
    nbl_env_settings settings;
};

static const char *message_text(const nbl_error *error)
{
    const size_t prefix_bytes = strlen(NBL_MESSAGE_PREFIX);
    return strncmp(error->message, NBL_MESSAGE_PREFIX, prefix_bytes) == 0 ? error->message + prefix_bytes
                                                                          : error->message;
}

/* ------------------------------------------------------------------------------------------------ walking the list */

/* Records that loading began and failed before any candidate was tried. */
static void record_refusal(nbl_report *report, const nbl_error *error)
{
    const nbl_attempt attempt = {.status = error->status, .phase = NBL_PHASE_NAME, .message = error->message};
    nbl_report_add(report, &attempt);
}

/* Why a candidate was taken. */
static void record_success(nbl_runtime *runtime, nbl_attempt *attempt)
{
    char text[160];
    const char *note = attempt->message;
    (void)snprintf(text, sizeof text, "chosen by %s%s%s", nbl_chooser_name(runtime->search.chooser), note ? "; " : "",
                   note ? note : "");
    attempt->message = text;
    attempt->status = NBL_OK;
    nbl_report_add(runtime->report, attempt);
    nbl_log(&runtime->sink, NBL_LOG_INFO, "backend \"%s\" is %s (%s)", attempt->name, attempt->path, text);
}

/* Loads the candidate at runtime->position; the caller holds NBL_LOCK_LOADER. */
static nbl_status load_candidate(nbl_runtime *runtime, nbl_error *err)
{
    nbl_candidate *candidate = &runtime->search.candidate[runtime->position];
    nbl_attempt attempt = {.name = candidate->name, .phase = NBL_PHASE_FIND};
    nbl_instance *instance = NULL;
    const nbl_status status = candidate->path
                                  ? nbl_instance_load(candidate->name, candidate->path, &instance, &attempt, err)
                                  : nbl_fail_again(err, &candidate->not_found);
    if (status == NBL_OK) {
        runtime->instance = instance;
        record_success(runtime, &attempt);
        return NBL_OK;
    }
    attempt.status = status;
    attempt.message = err->message;
    nbl_report_add(runtime->report, &attempt);
    return status;
}

/* Goes to the next candidate because of what err says; 0 if there is none. */
static int move_on(nbl_runtime *runtime, const nbl_error *err)
{
    if (runtime->position + 1 >= runtime->search.count)
        return 0;
    const char *from = runtime->search.candidate[runtime->position].name;
    const char *to = runtime->search.candidate[++runtime->position].name;
    runtime->instance = NULL;
    nbl_log(&runtime->sink, NBL_LOG_WARN, "backend \"%s\" cannot be used, going on to \"%s\" as %s says: %s", from, to,
            nbl_chooser_name(runtime->search.chooser), message_text(err));
    return 1;
}

/* Loads the first candidate, from runtime->position on, that can be loaded. */
static nbl_status load_from_position(nbl_runtime *runtime, nbl_error *err)
{
    nbl_status status;
    nbl_lock(NBL_LOCK_LOADER);
    do
        status = load_candidate(runtime, err);
    while (status != NBL_OK && move_on(runtime, err));
    nbl_unlock(NBL_LOCK_LOADER);
    return status;
}

/* ------------------------------------------------------------------------------------------------ load */

static void record_ignored(const nbl_runtime *runtime, const nbl_env *env)
{
    for (uint32_t i = 0; i < NBL_ENV_COUNT; i++) {
        if (!(env->ignored & (1u << i)))
            continue;
        char text[96];
        (void)snprintf(text, sizeof text, "%s ignored: process runs with raised privileges", nbl_env_variable(i));
        const nbl_attempt attempt = {.phase = NBL_PHASE_NAME, .message = text};
        nbl_report_add(runtime->report, &attempt);
        nbl_log(&runtime->sink, NBL_LOG_WARN, "%s", text);
    }
}

/* What of the environment counts for this load. */
static nbl_status apply_env(nbl_runtime *runtime, uint32_t flags, const nbl_env **out_env, nbl_error *err)
{
    const nbl_env *env = NULL;
    nbl_lock(NBL_LOCK_LOADER);
    nbl_status status = nbl_env_read(&env, err);
    nbl_unlock(NBL_LOCK_LOADER);
    if (status != NBL_OK || flags & NBL_LOAD_IGNORE_ENV)
        return status;
    status = nbl_env_parse(env, &runtime->settings, err);
    if (status != NBL_OK)
        return status;
    runtime->sink.level = runtime->settings.log_level;
    record_ignored(runtime, env);
    *out_env = env;
    return NBL_OK;
}

static nbl_status fill_runtime(nbl_runtime *runtime, const nbl_load_options *options, nbl_error *err)
{
    const nbl_env *env = NULL;
    nbl_status status = apply_env(runtime, options->flags, &env, err);
    if (status == NBL_OK && options->client_name)
        nbl_log(&runtime->sink, NBL_LOG_DEBUG, "loaded by %s", options->client_name);
    if (status == NBL_OK)
        status = nbl_search_run(&runtime->search, options->backend, options->backend_dir, env, &runtime->sink, err);
    if (status != NBL_OK) {
        record_refusal(runtime->report, err);
        return status;
    }
    return load_from_position(runtime, err);
}

/* Frees what a runtime holds; the handle has been retired or was never given out. */
static void dismantle(nbl_runtime *runtime)
{
    nbl_log_remove(&runtime->sink);
    nbl_search_clear(&runtime->search);
    nbl_api_report_free(runtime->report);
    nbl_handle_recycle(runtime);
}

static nbl_status load_with_report(const nbl_load_options *options, nbl_report *report, nbl_runtime **out_runtime,
                                   nbl_error *err)
{
    nbl_runtime *runtime = nbl_handle_create(NBL_HANDLE_RUNTIME, sizeof *runtime);
    if (!runtime)
        return nbl_fail(err, NBL_E_NO_MEMORY, NBL_ORIGIN_LOADER, 0, "no memory for a runtime");
    runtime->report = nbl_report_share(report);
    runtime->sink = (nbl_log_sink){.write = options->log, .user = options->log_user, .level = NBL_LOG_ERROR};
    nbl_log_add(&runtime->sink);
    const nbl_status status = fill_runtime(runtime, options, err);
    if (status == NBL_OK) {
        *out_runtime = runtime;
        return NBL_OK;
    }
    nbl_log(&runtime->sink, NBL_LOG_ERROR, "%s", message_text(err));
    (void)nbl_handle_retire(runtime, NBL_HANDLE_RUNTIME, NULL);
    dismantle(runtime);
    return status;
}

static nbl_status check_load_options(nbl_load_options *out, const nbl_load_options *options, nbl_error *err)
{
    static const nbl_load_options none = NBL_INIT(nbl_load_options);
    const nbl_status status = NBL_STRUCT_IN(nbl_load_options, out, options ? options : &none, err);
    return status == NBL_OK ? nbl_flags_check(out->flags, NBL_LOAD_IGNORE_ENV, "nbl_load_options", err) : status;
}

nbl_status nbl_api_load(const nbl_load_options *options, nbl_runtime **out_runtime, nbl_report **out_report,
                        nbl_error *err)
{
    if (!out_runtime)
        return nbl_fail(err, NBL_E_INVALID, NBL_ORIGIN_HOST, 0, "out_runtime is NULL");
    const int error_number = errno;
    nbl_error local = NBL_INIT(nbl_error);
    nbl_load_options known;
    nbl_report *report = nbl_report_create();
    if (!report)
        return nbl_fail(err, NBL_E_NO_MEMORY, NBL_ORIGIN_LOADER, 0, "no memory for a report");
    nbl_status status = check_load_options(&known, options, &local);
    if (status == NBL_OK)
        status = load_with_report(&known, report, out_runtime, &local);
    else
        record_refusal(report, &local);
    if (status != NBL_OK)
        (void)nbl_fail_again(err, &local);
    if (out_report)
        *out_report = report;
    else
        nbl_api_report_free(report);
    errno = error_number;
    return status;
}

nbl_status nbl_api_runtime_destroy(nbl_runtime *runtime, nbl_error *err)
{
    if (!runtime)
        return NBL_OK;
    const nbl_status status = nbl_handle_retire(runtime, NBL_HANDLE_RUNTIME, err);
    if (status == NBL_OK)
        dismantle(runtime);
    return status;
}

/* ------------------------------------------------------------------------------------------------ devices */

/* A backend may not survive a fork once it has looked at a device, whoever opened it. */
static nbl_status check_process(nbl_instance *instance, nbl_error *err)
{
    const int32_t pid = nbl_process_id();
    int32_t first = 0;
    if (atomic_compare_exchange_strong(&instance->device_pid, &first, pid) || first == pid)
        return NBL_OK;
    return nbl_fail(err, NBL_E_FORKED, NBL_ORIGIN_HOST, 0,
                    "backend \"%s\" opened a device in process %d, used in its fork %d; open devices after fork only",
                    instance->table.name, first, pid);
}

/* The variables are about the simulator and go before what the caller asks of it. */
static void apply_settings(const nbl_runtime *runtime, nbl_device_options *options)
{
    if (strcmp(runtime->instance->table.name, "sim") != 0)
        return;
    const nbl_env_settings *settings = &runtime->settings;
    if (settings->sim_threads && options->threads && options->threads != settings->sim_threads)
        nbl_log(&runtime->sink, NBL_LOG_INFO, "NIBBLE_SIM_THREADS %u goes before the caller's choice %u",
                settings->sim_threads, options->threads);
    if (settings->sim_isa && options->isa && strcmp(options->isa, settings->sim_isa) != 0)
        nbl_log(&runtime->sink, NBL_LOG_INFO, "NIBBLE_SIM_ISA \"%s\" goes before the caller's choice \"%s\"",
                settings->sim_isa, options->isa);
    if (settings->sim_threads)
        options->threads = settings->sim_threads;
    if (settings->sim_isa)
        options->isa = settings->sim_isa;
    if (settings->sim_profile && options->profile && strcmp(options->profile, settings->sim_profile) != 0)
        nbl_log(&runtime->sink, NBL_LOG_INFO, "NIBBLE_SIM_PROFILE \"%s\" goes before the caller's choice \"%s\"",
                settings->sim_profile, options->profile);
    if (settings->sim_profile)
        options->profile = settings->sim_profile;
}

/* Opens a device of the candidate in use. err is complete and empty. */
static nbl_status open_inner(nbl_runtime *runtime, const nbl_device_options *options, nbl_device *device,
                             nbl_error *err)
{
    nbl_device_options wanted = *options;
    apply_settings(runtime, &wanted);
    const nbl_backend_v1 *backend = &runtime->instance->table;
    nbl_status status = check_process(runtime->instance, err);
    if (status != NBL_OK)
        return status;
    status = backend->device_open(&wanted, &device->inner, err);
    if (status == NBL_OK && !device->inner)
        status = nbl_fail(err, NBL_E_BACKEND, NBL_ORIGIN_BACKEND, 0, "backend \"%s\" answers NBL_OK without a device",
                          backend->name);
    if (status != NBL_OK)
        return status;
    device->backend = backend;
    device->caps = (nbl_caps)NBL_INIT(nbl_caps);
    status = backend->caps(device->inner, &device->caps, err);
    device->caps.device_name[sizeof device->caps.device_name - 1] = '\0';
    device->caps.isa[sizeof device->caps.isa - 1] = '\0';
    if (status != NBL_OK)
        backend->device_close(device->inner);
    return status;
}

/* Failures that another backend might not have; anything else is the caller's to mend. */
static int is_lack_of_device(nbl_status status)
{
    return status == NBL_E_DEVICE || status == NBL_E_UNSUPPORTED || status == NBL_E_BACKEND;
}

static void record_open_failure(const nbl_runtime *runtime, nbl_status status, nbl_error *err)
{
    if (!err->message[0])
        (void)nbl_fail(err, status, NBL_ORIGIN_BACKEND, 0, "backend \"%s\" cannot open a device (%s)",
                       runtime->instance->table.name, nbl_api_status_name(status));
    nbl_attempt attempt = {
        .name = runtime->search.candidate[runtime->position].name,
        .path = runtime->instance->path,
        .description = runtime->instance->table.description,
        .message = err->message,
        .status = status,
        .phase = NBL_PHASE_DEVICE,
        .file_device = runtime->instance->file_device,
        .file_inode = runtime->instance->file_inode,
        .abi_minor = runtime->instance->table.abi_minor,
        .numerics_version = NBL_NUMERICS_VERSION,
        .layout_version = NBL_LAYOUT_VERSION,
    };
    nbl_report_add(runtime->report, &attempt);
}

/* Opens a device of the first candidate, from the one in use on, that has one. err is complete. */
static nbl_status open_from_position(nbl_runtime *runtime, const nbl_device_options *options, nbl_device *device,
                                     nbl_error *err)
{
    for (;;) {
        *err = (nbl_error)NBL_INIT(nbl_error);
        nbl_status status = runtime->instance ? NBL_OK : load_from_position(runtime, err);
        if (status != NBL_OK)
            return status;
        status = open_inner(runtime, options, device, err);
        if (status == NBL_OK) {
            runtime->chosen = 1;
            return NBL_OK;
        }
        record_open_failure(runtime, status, err);
        if (runtime->chosen || !is_lack_of_device(status) || !move_on(runtime, err))
            return status;
    }
}

/* A walk that finds no device leaves the runtime as it was: the fault may lie in the options of this one call. */
static nbl_status open_device(nbl_runtime *runtime, const nbl_device_options *options, nbl_device *device,
                              nbl_error *err)
{
    const uint32_t position = runtime->position;
    nbl_instance *instance = runtime->instance;
    const nbl_status status = open_from_position(runtime, options, device, err);
    if (status != NBL_OK) {
        runtime->position = position;
        runtime->instance = instance;
    }
    return status;
}

static nbl_status check_device_options(nbl_device_options *out, const nbl_device_options *options, nbl_error *err)
{
    static const nbl_device_options none = NBL_INIT(nbl_device_options);
    const nbl_status status = NBL_STRUCT_IN(nbl_device_options, out, options ? options : &none, err);
    return status == NBL_OK ? nbl_flags_check(out->flags, 0, "nbl_device_options", err) : status;
}

nbl_status nbl_api_open(nbl_runtime *runtime, const nbl_device_options *options, nbl_device **out_device,
                        nbl_error *err)
{
    nbl_device_options known;
    nbl_status status = nbl_handle_check(runtime, NBL_HANDLE_RUNTIME, err);
    if (status == NBL_OK && !out_device)
        status = nbl_fail(err, NBL_E_INVALID, NBL_ORIGIN_HOST, 0, "out_device is NULL");
    if (status == NBL_OK)
        status = check_device_options(&known, options, err);
    if (status != NBL_OK)
        return status;
    nbl_device *device = nbl_handle_create(NBL_HANDLE_DEVICE, sizeof *device);
    if (!device)
        return nbl_fail(err, NBL_E_NO_MEMORY, NBL_ORIGIN_HOST, 0, "no memory for a device");
    nbl_error local;
    status = open_device(runtime, &known, device, &local);
    if (status != NBL_OK) {
        nbl_log(&runtime->sink, NBL_LOG_ERROR, "%s", message_text(&local));
        (void)nbl_handle_retire(device, NBL_HANDLE_DEVICE, NULL);
        nbl_handle_recycle(device);
        (void)nbl_fail_again(err, &local);
        return status;
    }
    device->runtime = runtime;
    nbl_handle_add_user(runtime);
    *out_device = device;
    return NBL_OK;
}

nbl_status nbl_api_close(nbl_device *device, nbl_error *err)
{
    if (!device)
        return NBL_OK;
    const nbl_status status = nbl_handle_retire(device, NBL_HANDLE_DEVICE, err);
    if (status != NBL_OK)
        return status;
    device->backend->device_close(device->inner);
    nbl_handle_drop_user(device->runtime);
    nbl_handle_recycle(device);
    return NBL_OK;
}

nbl_status nbl_api_caps(nbl_device *device, nbl_caps *out_caps, nbl_error *err)
{
    nbl_status status = nbl_device_check(device, err);
    if (status == NBL_OK)
        status = NBL_STRUCT_OUT_CHECK(nbl_caps, out_caps, err);
    if (status == NBL_OK)
        nbl_struct_out(out_caps, &device->caps, (uint32_t)sizeof device->caps);
    return status;
}
