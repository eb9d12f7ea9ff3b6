/* SPDX-License-Identifier: Apache-2.0 */
#include "output.h"
#include "session.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Values of the options. */
typedef struct info_values {
    nbl_session_options session;
    bool json;
} info_values;

static const nbl_option info_options[] = {
    NBL_SESSION_OPTION_ROWS(info_values),
    {"json", NBL_OPTION_FLAG, offsetof(info_values, json), 0, 0, NULL, "print JSON"},
};

static int info_run(int argc, char **argv, nbl_fault *fault);

const nbl_command nbl_command_info = {
    "info",
    "Versions, the backends found, and the one that would be used.",
    "Without --backend the exit status is 0 even if no backend can be used; \"chosen\" is null then.\n",
    info_options,
    sizeof info_options / sizeof info_options[0],
    info_run,
};

static const char *const known_backends[] = {"cuda", "sim"};

static const char *phase_name(uint32_t phase)
{
    static const char *const names[] = {"name", "find", "probe", "open", "negotiate", "loaded", "device"};
    return phase < sizeof names / sizeof names[0] ? names[phase] : "unknown";
}

static json_t *attempt_json(const nbl_api_v1 *api, const nbl_load_attempt *attempt)
{
    json_t *versions =
        attempt->phase >= NBL_PHASE_LOADED
            ? json_pack("{s:o, s:o, s:o}", "abi_minor", nbl_json_uint(attempt->abi_minor), "numerics",
                        nbl_json_uint(attempt->numerics_version), "layout", nbl_json_uint(attempt->layout_version))
            : json_null();
    return json_pack("{s:o, s:o, s:s, s:s, s:o, s:o, s:o}", "name", nbl_json_text(attempt->name), "path",
                     nbl_json_text(attempt->path), "status", api->status_name(attempt->status), "phase",
                     phase_name(attempt->phase), "reason", nbl_json_text(nbl_message_text(attempt->message)),
                     "description", nbl_json_text(attempt->description), "versions", versions);
}

/* A load that ended before there was anything to report. */
static json_t *refusal_json(const char *name, const char *reason)
{
    return json_pack("{s:o, s:s, s:s, s:s, s:o, s:s, s:n}", "name", nbl_json_text(name), "path", "", "status",
                     "refused", "phase", "name", "reason", nbl_json_text(reason), "description", "", "versions");
}

/* Loads one name by itself, whatever the environment says, and reports all attempts. */
static void probe_backend(const nbl_api_v1 *api, const char *name, const char *backend_dir, json_t *backends)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_load_options load = NBL_INIT(nbl_load_options);
    nbl_runtime *runtime = NULL;
    nbl_report *report = NULL;
    load.flags = NBL_LOAD_IGNORE_ENV;
    load.backend = name;
    load.backend_dir = backend_dir;
    load.log = nbl_session_drop_log;
    nbl_status status = api->load(&load, &runtime, &report, &err);
    uint32_t count = report ? api->report_count(report) : 0;
    for (uint32_t i = 0; i < count; i++) {
        nbl_load_attempt attempt = NBL_INIT(nbl_load_attempt);
        if (api->report_get(report, i, &attempt, NULL) == NBL_OK)
            json_array_append_new(backends, attempt_json(api, &attempt));
    }
    if (count == 0)
        json_array_append_new(backends,
                              refusal_json(name, status == NBL_OK ? "no report" : nbl_message_text(err.message)));
    api->report_free(report);
    if (runtime)
        api->runtime_destroy(runtime, NULL);
}

static bool is_known(const char *name)
{
    for (size_t i = 0; i < sizeof known_backends / sizeof known_backends[0]; i++) {
        if (strcmp(name, known_backends[i]) == 0)
            return true;
    }
    return false;
}

static json_t *probe_all(const nbl_api_v1 *api, const nbl_session_options *options, const char *asked,
                         const char *backend_dir)
{
    json_t *backends = json_array();
    nbl_list names = {0};
    nbl_fault ignored; /* a bad list is what "chosen" reports */
    if (options->backend_dir)
        backend_dir = options->backend_dir;
    for (size_t i = 0; i < sizeof known_backends / sizeof known_backends[0]; i++)
        probe_backend(api, known_backends[i], backend_dir, backends);
    if (asked && nbl_list_split("backend", asked, &names, &ignored) == NBL_EXIT_OK) {
        for (size_t i = 0; i < names.count; i++) {
            if (!is_known(names.items[i]))
                probe_backend(api, names.items[i], backend_dir, backends);
        }
    }
    return backends;
}

static json_t *format_names(uint32_t formats)
{
    static const char *const names[] = {
        [NBL_INT8] = "int8", [NBL_MXFP4] = "mxfp4", [NBL_MXFP4_16] = "mxfp4_16", [NBL_INT4P] = "int4p"};
    json_t *list = json_array();
    for (uint32_t format = NBL_INT8; format <= NBL_INT4P; format++) {
        if (formats & (1u << format))
            json_array_append_new(list, json_string(names[format]));
    }
    return list;
}

static json_t *caps_json(const nbl_caps *caps)
{
    return json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:s, s:b, s:b}", "device_name", caps->device_name,
                     "isa", caps->isa, "formats", format_names(caps->formats), "k_dim_max",
                     nbl_json_uint(caps->k_dim_max), "v_dim_max", nbl_json_uint(caps->v_dim_max), "page_tokens_max",
                     nbl_json_uint(caps->page_tokens_max), "kv_tokens_max", nbl_json_uint(caps->kv_tokens_max),
                     "memory_bytes", nbl_json_uint(caps->memory_bytes), "threads", nbl_json_uint(caps->threads),
                     "stream", caps->stream_kind == NBL_STREAM_CUDA ? "cuda" : "host", "deterministic",
                     caps->deterministic != 0, "graph_capture", caps->graph_capture != 0);
}

static json_t *runtime_json(const nbl_api_v1 *api)
{
    char abi[32];
    snprintf(abi, sizeof abi, "%u.%u", NBL_ABI_MAJOR, api->abi_minor);
    return json_pack("{s:s, s:s, s:o, s:o, s:s}", "version", NIBBLE_VERSION, "abi", abi, "numerics",
                     nbl_json_uint(NBL_NUMERICS_VERSION), "layout", nbl_json_uint(NBL_LAYOUT_VERSION), "build",
                     api->build_info());
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static void print_text(const json_t *document)
{
    const json_t *runtime = json_object_get(document, "runtime");
    const json_t *chosen = json_object_get(document, "chosen");
    const json_t *caps = json_object_get(chosen, "caps");
    size_t index;
    json_t *backend;
    printf("runtime  nibble %s, abi %s, numerics %u, layout %u\n         %s\n", text_of(runtime, "version"),
           text_of(runtime, "abi"), NBL_NUMERICS_VERSION, NBL_LAYOUT_VERSION, text_of(runtime, "build"));
    json_array_foreach (json_object_get(document, "backends"), index, backend) {
        printf("backend  %-6s %s (%s)%s%s\n", text_of(backend, "name"), text_of(backend, "status"),
               text_of(backend, "phase"), text_of(backend, "path")[0] ? "  " : "", text_of(backend, "path"));
        printf("         %s\n", text_of(backend, "reason"));
    }
    if (caps)
        printf("chosen   %s: %s, isa %s, %d threads\n", text_of(chosen, "name"), text_of(caps, "device_name"),
               text_of(caps, "isa"), (int)json_integer_value(json_object_get(caps, "threads")));
    else
        printf("chosen   none: %s\n", text_of(document, "chosen_reason"));
}

/* Copies what a later load may have consumed. */
static const char *keep_variable(const char *name, char *storage, size_t storage_bytes)
{
    const char *value = secure_getenv(name);
    if (!value || strlen(value) >= storage_bytes)
        return NULL;
    return strcpy(storage, value);
}

static int info_run(int argc, char **argv, nbl_fault *fault)
{
    info_values values = {0};
    const nbl_api_v1 *api = NULL;
    nbl_session session = {0};
    nbl_fault reason = {""};
    char backend_variable[1024], dir_variable[4096];
    int code = nbl_options_parse(&nbl_command_info, argc, argv, &values, fault);
    if (code == NBL_EXIT_OK)
        code = nbl_session_api(&api, fault);
    if (code != NBL_EXIT_OK)
        return code;
    const char *asked = keep_variable("NIBBLE_BACKEND", backend_variable, sizeof backend_variable);
    const char *dir = keep_variable("NIBBLE_BACKEND_DIR", dir_variable, sizeof dir_variable);
    if (values.session.backend)
        asked = values.session.backend;
    int opened = nbl_session_open(&session, &values.session, &reason);
    json_t *chosen = opened == NBL_EXIT_OK
                         ? json_pack("{s:o, s:o, s:o}", "name", nbl_json_text(session.backend), "path",
                                     nbl_json_text(session.path), "caps", caps_json(&session.caps))
                         : json_null();
    json_t *document = json_pack("{s:o, s:o, s:o, s:o}", "runtime", runtime_json(api), "backends",
                                 probe_all(api, &values.session, asked, dir), "chosen", chosen, "chosen_reason",
                                 opened == NBL_EXIT_OK ? json_null() : nbl_json_text(reason.text));
    nbl_session_close(&session);
    if (!values.json)
        print_text(document);
    if (values.json)
        code = nbl_json_print(document, fault);
    else
        json_decref(document);
    if (code == NBL_EXIT_OK && opened != NBL_EXIT_OK && values.session.backend)
        code = nbl_fault_set(fault, NBL_EXIT_BACKEND, "%.900s", reason.text);
    return code;
}
