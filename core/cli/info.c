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

/* reason NULL: the attempt's own message. An attempt that ended before the search has no name of its own. */
static json_t *attempt_json(const nbl_api_v1 *api, const nbl_load_attempt *attempt, const char *name,
                            const char *reason)
{
    json_t *versions =
        attempt->phase >= NBL_PHASE_LOADED
            ? json_pack("{s:o, s:o, s:o}", "abi_minor", nbl_json_uint(attempt->abi_minor), "numerics",
                        nbl_json_uint(attempt->numerics_version), "layout", nbl_json_uint(attempt->layout_version))
            : json_null();
    return json_pack("{s:o, s:o, s:s, s:s, s:o, s:o, s:o}", "name",
                     nbl_json_text(attempt->name && attempt->name[0] ? attempt->name : name), "path",
                     nbl_json_text(attempt->path), "status", api->status_name(attempt->status), "phase",
                     phase_name(attempt->phase), "reason",
                     nbl_json_text(reason ? reason : nbl_message_text(attempt->message)), "description",
                     nbl_json_text(attempt->description), "versions", versions);
}

/* What chose the backend, as the user knows it. */
static const char *chooser_text(const nbl_session_options *options)
{
    if (options->backend)
        return "chosen by --backend";
    return secure_getenv("NIBBLE_BACKEND") ? "chosen by NIBBLE_BACKEND" : "chosen by default";
}

/* Opens one backend by itself, whatever the environment says: it could have been chosen, or this is why not. */
static json_t *probe_json(const nbl_api_v1 *api, const char *backend, const char *backend_dir)
{
    nbl_session probe;
    nbl_fault fault = {""};
    nbl_load_attempt attempt;
    int code = nbl_session_probe(&probe, backend, backend_dir, &fault);
    if (!nbl_session_last_attempt(&probe, &attempt)) { /* there is no file to try */
        attempt.status = NBL_E_NOT_FOUND;
        attempt.phase = NBL_PHASE_FIND;
    }
    json_t *entry = attempt_json(api, &attempt, backend, code == NBL_EXIT_OK ? "not chosen" : fault.text);
    nbl_session_close(&probe);
    return entry;
}

static bool is_known(const char *name)
{
    for (size_t i = 0; i < sizeof known_backends / sizeof known_backends[0]; i++) {
        if (strcmp(name, known_backends[i]) == 0)
            return true;
    }
    return false;
}

/* real is the load that counts: it says more than a probe about the backend it ended with. */
static json_t *backend_json(const nbl_session *real, const nbl_session_options *options, const char *name)
{
    nbl_load_attempt last;
    bool chosen = real->device != NULL;
    if (nbl_session_last_attempt(real, &last)) {
        if (chosen && strcmp(last.name, name) == 0)
            return attempt_json(real->api, &last, name, chooser_text(options));
        if (!chosen && !is_known(name) && last.phase == NBL_PHASE_NAME)
            return attempt_json(real->api, &last, name, NULL);
    }
    return probe_json(real->api, name, options->backend_dir);
}

/* The known backends, the others asked for, and one chosen by its path. */
static json_t *backends_json(const nbl_session *real, const nbl_session_options *options, const char *asked)
{
    json_t *backends = json_array();
    nbl_list names = {0};
    nbl_fault ignored; /* a bad list is what "chosen_reason" reports */
    for (size_t i = 0; i < sizeof known_backends / sizeof known_backends[0]; i++)
        json_array_append_new(backends, backend_json(real, options, known_backends[i]));
    if (asked && asked[0] == '/') {
        if (!real->device || !is_known(real->backend))
            json_array_append_new(backends, backend_json(real, options, real->device ? real->backend : asked));
    } else if (asked && nbl_list_split("backend", asked, &names, &ignored) == NBL_EXIT_OK) {
        for (size_t i = 0; i < names.count; i++) {
            if (!is_known(names.items[i]))
                json_array_append_new(backends, backend_json(real, options, names.items[i]));
        }
    }
    return backends;
}

static json_t *format_names(uint32_t formats)
{
    static const char *const names[] = {
        [NBL_INT8] = "int8",        [NBL_MXFP4] = "mxfp4",      [NBL_MXFP4_16] = "mxfp4_16", [NBL_INT4P] = "int4p",
        [NBL_FORMAT_BF16] = "bf16", [NBL_FORMAT_FP16] = "fp16", [NBL_FP8_E4M3] = "fp8_e4m3", [NBL_NVFP4] = "nvfp4"};
    json_t *list = json_array();
    for (uint32_t format = NBL_INT8; format <= NBL_NVFP4; format++) {
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
        printf("chosen   %s: %s, isa %s, %d threads; %s\n", text_of(chosen, "name"), text_of(caps, "device_name"),
               text_of(caps, "isa"), (int)json_integer_value(json_object_get(caps, "threads")),
               text_of(document, "chosen_reason"));
    else
        printf("chosen   none: %s\n", text_of(document, "chosen_reason"));
}

/* reason says why no device could be opened, if none was. */
static json_t *document_json(const nbl_session *session, const nbl_session_options *options, const nbl_fault *reason)
{
    const char *asked = options->backend ? options->backend : secure_getenv("NIBBLE_BACKEND");
    json_t *chosen = session->device ? json_pack("{s:o, s:o, s:o}", "name", nbl_json_text(session->backend), "path",
                                                 nbl_json_text(session->path), "caps", caps_json(&session->caps))
                                     : json_null();
    return json_pack("{s:o, s:o, s:o, s:o}", "runtime", runtime_json(session->api), "backends",
                     backends_json(session, options, asked), "chosen", chosen, "chosen_reason",
                     nbl_json_text(session->device ? chooser_text(options) : reason->text));
}

static int info_run(int argc, char **argv, nbl_fault *fault)
{
    info_values values = {0};
    nbl_session session;
    nbl_fault reason = {""};
    int code = nbl_options_parse(&nbl_command_info, argc, argv, &values, fault);
    if (code == NBL_EXIT_OK)
        code = nbl_session_check(&values.session, fault);
    if (code != NBL_EXIT_OK)
        return code;
    int opened = nbl_session_try(&session, &values.session, &reason);
    if (opened == NBL_EXIT_USAGE || !session.report) {
        nbl_session_close(&session);
        *fault = reason;
        return opened;
    }
    json_t *document = document_json(&session, &values.session, &reason);
    nbl_session_close(&session);
    if (values.json) {
        code = nbl_json_print(document, fault);
    } else {
        print_text(document);
        json_decref(document);
    }
    if (code == NBL_EXIT_OK && opened != NBL_EXIT_OK && values.session.backend) {
        *fault = reason;
        code = opened;
    }
    return code;
}
