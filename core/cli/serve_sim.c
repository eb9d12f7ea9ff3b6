/* SPDX-License-Identifier: Apache-2.0 */
#include "file.h"
#include "output.h"
#include "serve.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUESTS_MAX 100000u
#define UNSET UINT32_MAX /* above what these options take */

/* Options. */
typedef struct sim_values {
    nbl_session_options session;
    uint32_t requests, prefixes, prefix_tokens, prompt_tokens, output_tokens, seed;
    uint32_t layers, q_heads, kv_heads, dim, page_tokens, batch, chunk;
    uint64_t tokens, host_kib, file_kib;
    double rate;
    const char *trace, *policy, *file_folder;
    bool json;
} sim_values;

static const nbl_option sim_options[] = {
    NBL_SESSION_OPTION_ROWS(sim_values),
    {"trace", NBL_OPTION_TEXT, offsetof(sim_values, trace), 0, 0, "FILE",
     "requests: lines of ARRIVAL-STEP PREFIX PREFIX-TOKENS PROMPT-TOKENS OUTPUT-TOKENS (default: a synthetic trace)"},
    {"requests", NBL_OPTION_U32, offsetof(sim_values, requests), 1, REQUESTS_MAX, "N",
     "of the synthetic trace (default 100)"},
    {"prefixes", NBL_OPTION_U32, offsetof(sim_values, prefixes), 1, 1000, "N", "shared prefixes (default 4)"},
    {"prefix-tokens", NBL_OPTION_U32, offsetof(sim_values, prefix_tokens), 0, 65536, "N",
     "of each prefix (default 96)"},
    {"prompt-tokens", NBL_OPTION_U32, offsetof(sim_values, prompt_tokens), 1, 65536, "N",
     "median length of what follows the prefix (default 32)"},
    {"output-tokens", NBL_OPTION_U32, offsetof(sim_values, output_tokens), 1, 65536, "N",
     "median length of an answer (default 24)"},
    {"rate", NBL_OPTION_F64, offsetof(sim_values, rate), 0.001, 1000, "X",
     "requests that arrive in a step (default 0.3)"},
    {"seed", NBL_OPTION_U32, offsetof(sim_values, seed), 0, 4294967295.0, "N",
     "of the trace and of the drafts (default 1)"},
    {"batch", NBL_OPTION_U32, offsetof(sim_values, batch), 1, 1024, "N", "sequences that run at once (default 8)"},
    {"chunk", NBL_OPTION_U32, offsetof(sim_values, chunk), 32, 8192, "N",
     "tokens of a prompt in one step (default 64)"},
    {"tokens", NBL_OPTION_U64, offsetof(sim_values, tokens), 1, 1 << 24, "N",
     "that the cache has room for (default 1536)"},
    {"host-kib", NBL_OPTION_U64, offsetof(sim_values, host_kib), 0, 1 << 30, "N", "host tier (default 0)"},
    {"file-kib", NBL_OPTION_U64, offsetof(sim_values, file_kib), 0, 1 << 30, "N", "file tier (default 0)"},
    {"file-folder", NBL_OPTION_TEXT, offsetof(sim_values, file_folder), 0, 0, "DIR", "of the file tier (default /tmp)"},
    {"policy", NBL_OPTION_TEXT, offsetof(sim_values, policy), 0, 0, "TEXT",
     "recipe and modifiers (default kv4,sinks=16)"},
    {"page", NBL_OPTION_U32, offsetof(sim_values, page_tokens), 1, NBL_PAGE_TOKENS_MAX, "N",
     "tokens per page (default 16)"},
    {"layers", NBL_OPTION_U32, offsetof(sim_values, layers), 1, 256, "N", "layers (default 2)"},
    {"hq", NBL_OPTION_U32, offsetof(sim_values, q_heads), 1, 1024, "N", "query heads (default 4)"},
    {"hkv", NBL_OPTION_U32, offsetof(sim_values, kv_heads), 1, 1024, "N", "key and value heads (default 2)"},
    {"d", NBL_OPTION_U32, offsetof(sim_values, dim), NBL_DIM_MIN, NBL_V_DIM_MAX, "N", "head dimension (default 32)"},
    {"json", NBL_OPTION_FLAG, offsetof(sim_values, json), 0, 0, NULL, "print JSON"},
};

static int sim_run(int argc, char **argv, nbl_fault *fault);

const nbl_command nbl_command_serve_sim = {
    "serve-sim",
    "Requests over the cache manager, each attend checked against a recomputation.",
    "Continuous batching: requests arrive, adopt the prefix that is cached, are prefilled in chunks and decoded a "
    "token a\n"
    "step. Every fifth forks after its prompt, every third drafts tokens and takes some back; when pages run out, the\n"
    "latest one is dropped and starts again. Exit status 1 if any byte differs from a cache that shares nothing.\n",
    sim_options,
    sizeof sim_options / sizeof sim_options[0],
    sim_run,
};

/* A simulation at work. */
typedef struct sim {
    const sim_values *values;
    nbl_serve serve;
    nbl_request *requests;
    uint32_t request_count;
    uint32_t *queue; /* requests that wait, the next one last */
    uint32_t queued;
    uint32_t arrived;
    nbl_served *running;
    uint32_t running_count;
    uint32_t step;
    uint32_t finished, preempted, peak_running;
    uint64_t decoded, rolled_back;
    double occupancy_sum, occupancy_peak, waste_sum;
    uint64_t samples;
    uint32_t random;
} sim;

/* ------------------------------------------------------------------------------------------------ trace */

static double draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return ((double)(*state >> 8) + 0.5) / 16777216.0;
}

/* A length with the long tail of public traces: log-normal, sigma 0.8. */
static uint32_t draw_length(uint32_t *state, uint32_t median)
{
    const double normal = sqrt(-2.0 * log(draw(state))) * cos(6.283185307179586 * draw(state));
    const double length = median * exp(0.8 * normal);
    return length < 1 ? 1u : length > 8.0 * median ? 8u * median : (uint32_t)length;
}

static int trace_make(sim *s, nbl_fault *fault)
{
    const sim_values *v = s->values;
    uint32_t state = v->seed * 2654435761u + 1u;
    double time = 0;
    s->requests = nbl_alloc(v->requests, sizeof *s->requests, fault);
    if (!s->requests)
        return NBL_EXIT_FAILED;
    for (uint32_t i = 0; i < v->requests; i++) {
        time -= log(draw(&state)) / v->rate;
        nbl_request *r = &s->requests[s->request_count++];
        r->arrival = (uint32_t)time;
        /* A few prefixes are asked for most of the time. */
        r->prefix = (uint32_t)(v->prefixes * draw(&state) * draw(&state));
        r->prefix_tokens = v->prefix_tokens;
        r->prompt_tokens = v->prefix_tokens + draw_length(&state, v->prompt_tokens);
        r->output_tokens = draw_length(&state, v->output_tokens);
    }
    return NBL_EXIT_OK;
}

static int trace_line(sim *s, const char *line, uint32_t number, nbl_fault *fault)
{
    uint64_t n[5]; /* wide: a number that does not fit must not become another one */
    char rest;
    const int fields = sscanf(line, "%" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %c", &n[0], &n[1],
                              &n[2], &n[3], &n[4], &rest);
    if (line[strspn(line, " \t\r\n")] == '\0' || line[0] == '#')
        return NBL_EXIT_OK;
    if (fields != 5 || strchr(line, '-') || n[0] > UINT32_MAX || n[1] > UINT32_MAX || n[3] < n[2] || n[3] == 0 ||
        n[3] > 1u << 20 || n[4] > 1u << 20 || s->request_count == REQUESTS_MAX ||
        (s->request_count > 0 && n[0] < s->requests[s->request_count - 1u].arrival))
        return nbl_fault_set(fault, NBL_EXIT_INPUT,
                             "%.200s:%u: needed are five numbers: arrival (not falling), prefix, prefix tokens, prompt "
                             "tokens (those included, at least 1), output tokens; at most %u lines",
                             s->values->trace, number, REQUESTS_MAX);
    s->requests[s->request_count++] =
        (nbl_request){(uint32_t)n[0], (uint32_t)n[1], (uint32_t)n[2], (uint32_t)n[3], (uint32_t)n[4]};
    return NBL_EXIT_OK;
}

static int trace_lines(sim *s, const nbl_file *file, nbl_fault *fault)
{
    const char *text;
    uint64_t at = 0, bytes;
    int code = NBL_EXIT_OK;
    for (uint32_t number = 1; code == NBL_EXIT_OK && nbl_file_line(file, &at, &text, &bytes); number++) {
        char line[256];
        if (bytes >= sizeof line || memchr(text, '\0', bytes))
            return nbl_fault_set(fault, NBL_EXIT_INPUT, "%.200s:%u: a line of over %zu bytes, or a zero byte in it",
                                 s->values->trace, number, sizeof line - 1);
        memcpy(line, text, bytes);
        line[bytes] = '\0';
        code = trace_line(s, line, number, fault);
    }
    if (code == NBL_EXIT_OK && s->request_count == 0)
        code = nbl_fault_set(fault, NBL_EXIT_INPUT, "%.200s: no request", s->values->trace);
    return code;
}

static int trace_read(sim *s, nbl_fault *fault)
{
    nbl_file file = {0};
    int code = nbl_file_read(s->values->trace, &file, fault);
    if (code != NBL_EXIT_OK)
        return code;
    s->requests = nbl_alloc(REQUESTS_MAX, sizeof *s->requests, fault);
    code = s->requests ? trace_lines(s, &file, fault) : NBL_EXIT_FAILED;
    nbl_file_free(&file);
    return code;
}

/* ------------------------------------------------------------------------------------------------ steps */

static void removed(sim *s, uint32_t at)
{
    s->running[at] = s->running[--s->running_count];
}

/* The sequence that came last, other than `keep`; running_count if there is none. */
static uint32_t victim_find(const sim *s, uint32_t keep)
{
    uint32_t last = s->running_count;
    for (uint32_t i = 0; i < s->running_count; i++) {
        if (i != keep && (last == s->running_count || s->running[i].number >= s->running[last].number))
            last = i;
    }
    return last;
}

/* Drops a sequence to make room; a request starts again, a fork is given up. */
static int preempt(sim *s, uint32_t victim, nbl_fault *fault)
{
    if (s->running[victim].branch == 0)
        s->queue[s->queued++] = s->running[victim].number;
    s->preempted++;
    const int code = nbl_serve_drop(&s->serve, &s->running[victim], fault);
    removed(s, victim);
    return code;
}

/* Appends, dropping others until there is room; *at follows the sequence. */
static int append_or_preempt(sim *s, uint32_t *at, uint32_t count, nbl_fault *fault)
{
    for (;;) {
        bool room = false;
        int code = nbl_serve_append(&s->serve, &s->running[*at], count, &room, fault);
        if (code != NBL_EXIT_OK || room)
            return code;
        const uint32_t victim = victim_find(s, *at), last = s->running_count - 1u;
        if (victim > last)
            return nbl_fault_set(fault, NBL_EXIT_USAGE, "--tokens: request %u does not fit the cache even alone",
                                 s->running[*at].number);
        code = preempt(s, victim, fault);
        if (code != NBL_EXIT_OK)
            return code;
        *at = *at == last ? victim : *at;
    }
}

/* One token, or a draft of which some tokens are taken back. */
static int decode(sim *s, uint32_t *at, nbl_fault *fault)
{
    const nbl_served *r = &s->running[*at];
    const uint32_t end = r->request->prompt_tokens + r->request->output_tokens;
    const bool draft = r->number % 3u == 0 && end - r->length >= NBL_SERVE_DRAFT;
    const uint32_t count = draft ? NBL_SERVE_DRAFT : 1u;
    int code = append_or_preempt(s, at, count, fault);
    if (code == NBL_EXIT_OK)
        code = nbl_serve_attend(&s->serve, &s->running[*at], count, fault);
    const uint32_t back = draft ? (uint32_t)(draw(&s->random) * NBL_SERVE_DRAFT) : 0;
    if (code == NBL_EXIT_OK && back > 0)
        code = nbl_serve_rollback(&s->serve, &s->running[*at], back, fault);
    s->decoded += count - back;
    s->rolled_back += back;
    return code;
}

/* The next piece of a prompt; at its end the prompt is published, and some fork. */
static int prefill(sim *s, uint32_t *at, nbl_fault *fault)
{
    const uint32_t left = s->running[*at].request->prompt_tokens - s->running[*at].length;
    const uint32_t chunk = s->serve.setup.chunk;
    const bool last = left <= chunk;
    int code = append_or_preempt(s, at, last ? left : chunk, fault);
    nbl_served *r = &s->running[*at];
    /* With a recent window, adopted pages are those of the whole prompt: only then the bytes must be equal. */
    if (code == NBL_EXIT_OK && (last || !s->serve.window))
        code = nbl_serve_attend(&s->serve, r, 1, fault);
    if (code == NBL_EXIT_OK && last)
        code = nbl_serve_publish(&s->serve, r, fault);
    if (code == NBL_EXIT_OK && last && r->number % 5u == 0 && s->running_count < 2u * s->serve.setup.batch) {
        bool room;
        code = nbl_serve_fork(&s->serve, r, &s->running[s->running_count], &room, fault);
        s->running_count += code == NBL_EXIT_OK && room;
    }
    return code;
}

/* Tells whether the cache has pages for a prompt, and for one more of each sequence that runs. */
static int room_for(sim *s, const nbl_request *r, bool *out_room, nbl_fault *fault)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_stats stats = NBL_INIT(nbl_cache_stats);
    uint64_t pages = 0;
    if (s->serve.session->api->cache_stats(s->serve.cache, &stats, &err) != NBL_OK)
        return nbl_fault_from_api(fault, NBL_EXIT_FAILED, "stats", &err);
    for (uint32_t c = 0; c < stats.region_count; c++)
        pages += stats.pages_total[c] - stats.pages_used[c];
    *out_room = s->running_count == 0 || pages >= r->prompt_tokens / s->serve.setup.page_tokens + 2u + s->running_count;
    return NBL_EXIT_OK;
}

static int admit(sim *s, nbl_fault *fault)
{
    while (s->arrived < s->request_count && s->requests[s->arrived].arrival <= s->step) {
        memmove(s->queue + 1, s->queue, s->queued * sizeof *s->queue);
        s->queue[0] = s->arrived++;
        s->queued++;
    }
    while (s->queued > 0 && s->running_count < s->serve.setup.batch) {
        bool room;
        const uint32_t number = s->queue[s->queued - 1u];
        nbl_served *r = &s->running[s->running_count];
        *r = (nbl_served){.request = &s->requests[number], .number = number};
        int code = room_for(s, r->request, &room, fault);
        if (code == NBL_EXIT_OK && room)
            code = nbl_serve_start(&s->serve, r, &room, fault);
        if (code != NBL_EXIT_OK || !room)
            return code;
        s->queued--;
        s->running_count++;
    }
    return NBL_EXIT_OK;
}

static int advance(sim *s, nbl_fault *fault)
{
    for (uint32_t i = 0; i < s->running_count; i++) {
        const bool prompt = s->running[i].length < s->running[i].request->prompt_tokens;
        int code = prompt ? prefill(s, &i, fault) : decode(s, &i, fault);
        if (code != NBL_EXIT_OK)
            return code;
        const nbl_served *r = &s->running[i];
        if (r->length < r->request->prompt_tokens + r->request->output_tokens)
            continue;
        s->finished += r->branch == 0;
        code = nbl_serve_end(&s->serve, &s->running[i], fault);
        if (code != NBL_EXIT_OK)
            return code;
        removed(s, i--);
    }
    return NBL_EXIT_OK;
}

/* How full the cache is, and how many slots of used pages hold no token. */
static int sample(sim *s, nbl_fault *fault)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_stats stats = NBL_INIT(nbl_cache_stats);
    uint64_t total = 0, used = 0, slots = 0, tokens = 0;
    if (s->serve.session->api->cache_stats(s->serve.cache, &stats, &err) != NBL_OK)
        return nbl_fault_from_api(fault, NBL_EXIT_FAILED, "stats", &err);
    for (uint32_t c = 0; c < stats.region_count; c++) {
        total += stats.pages_total[c];
        used += stats.pages_used[c];
    }
    for (uint32_t i = 0; i < s->running_count; i++) {
        const uint32_t page = s->serve.setup.page_tokens, length = s->running[i].length;
        slots += (length + page - 1u) / page * page;
        tokens += length;
    }
    const double occupancy = (double)used / (double)total;
    s->occupancy_sum += occupancy;
    s->occupancy_peak = occupancy > s->occupancy_peak ? occupancy : s->occupancy_peak;
    s->waste_sum += slots > 0 ? 1.0 - (double)tokens / (double)slots : 0;
    s->peak_running = s->running_count > s->peak_running ? s->running_count : s->peak_running;
    s->samples++;
    return NBL_EXIT_OK;
}

static int steps_run(sim *s, nbl_fault *fault)
{
    nbl_error err = NBL_INIT(nbl_error);
    int code = NBL_EXIT_OK;
    while (code == NBL_EXIT_OK && (s->finished < s->request_count || s->running_count > 0)) {
        code = admit(s, fault);
        if (code == NBL_EXIT_OK)
            code = advance(s, fault);
        if (code == NBL_EXIT_OK)
            code = sample(s, fault);
        s->step++;
    }
    if (code == NBL_EXIT_OK && s->serve.session->api->cache_verify(s->serve.cache, &err) != NBL_OK)
        code = nbl_fault_from_api(fault, NBL_EXIT_FAILED, "verify", &err);
    return code;
}

/* ------------------------------------------------------------------------------------------------ report */

static json_t *report_json(const sim *s, const nbl_cache_stats *st)
{
    const double samples = (double)s->samples;
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
                     "requests", (json_int_t)s->finished, "steps", (json_int_t)s->step, "decoded_tokens",
                     (json_int_t)s->decoded, "rolled_back_tokens", (json_int_t)s->rolled_back, "peak_running",
                     (json_int_t)s->peak_running, "preemptions", (json_int_t)s->preempted, "hit_rate",
                     st->prefix_tokens > 0 ? (double)st->prefix_hit_tokens / (double)st->prefix_tokens : 0.0,
                     "occupancy_mean", s->occupancy_sum / samples, "occupancy_peak", s->occupancy_peak,
                     "fragmentation_mean", s->waste_sum / samples, "pages_stored", (json_int_t)st->pages_stored,
                     "pages_evicted", (json_int_t)st->pages_evicted, "pages_offloaded", (json_int_t)st->pages_offloaded,
                     "pages_restored", (json_int_t)st->pages_restored, "pages_copied", (json_int_t)st->page_copies,
                     "pages_demoted", (json_int_t)st->pages_demoted, "attends_checked", (json_int_t)s->serve.checked,
                     "attends_wrong", (json_int_t)s->serve.wrong);
}

static void report_print(json_t *report)
{
    const char *key;
    json_t *value;
    json_object_foreach (report, key, value) {
        if (json_is_real(value))
            printf("%-20s %11.1f%%\n", key, 100.0 * json_real_value(value));
        else
            printf("%-20s %12" JSON_INTEGER_FORMAT "\n", key, json_integer_value(value));
    }
}

static int report(const sim *s, nbl_fault *fault)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_stats stats = NBL_INIT(nbl_cache_stats);
    if (s->serve.session->api->cache_stats(s->serve.cache, &stats, &err) != NBL_OK)
        return nbl_fault_from_api(fault, NBL_EXIT_FAILED, "stats", &err);
    json_t *document = report_json(s, &stats);
    int code = NBL_EXIT_OK;
    if (s->values->json || !document) {
        code = nbl_json_print(document, fault);
    } else {
        report_print(document);
        json_decref(document);
    }
    if (code == NBL_EXIT_OK && s->serve.wrong > 0)
        code = nbl_fault_set(fault, NBL_EXIT_FAILED, "%" PRIu64 " of %" PRIu64 " attends differ from a recomputation",
                             s->serve.wrong, s->serve.checked);
    return code;
}

/* ------------------------------------------------------------------------------------------------ command */

static nbl_serve_setup setup_of(const sim *s)
{
    const sim_values *v = s->values;
    nbl_serve_setup setup = {.layers = v->layers,
                             .q_heads = v->q_heads,
                             .kv_heads = v->kv_heads,
                             .dim = v->dim,
                             .page_tokens = v->page_tokens,
                             .batch = v->batch,
                             .chunk = v->chunk,
                             .tokens_max = v->tokens,
                             .host_bytes = v->host_kib << 10,
                             .file_bytes = v->file_kib << 10,
                             .file_folder = v->file_folder,
                             .policy = v->policy};
    for (uint32_t i = 0; i < s->request_count; i++) {
        const uint32_t length = s->requests[i].prompt_tokens + s->requests[i].output_tokens;
        setup.length_max = length > setup.length_max ? length : setup.length_max;
    }
    return setup;
}

static int sim_start(sim *s, nbl_session *session, nbl_fault *fault)
{
    int code = s->values->trace ? trace_read(s, fault) : trace_make(s, fault);
    if (code != NBL_EXIT_OK)
        return code;
    const nbl_serve_setup setup = setup_of(s);
    if (setup.length_max > setup.tokens_max)
        return nbl_fault_set(fault, NBL_EXIT_USAGE, "--tokens: %" PRIu64 " is less than the longest request, %u tokens",
                             setup.tokens_max, setup.length_max);
    s->queue = nbl_alloc(s->request_count, sizeof *s->queue, fault);
    s->running = nbl_alloc(2u * setup.batch, sizeof *s->running, fault);
    if (!s->queue || !s->running)
        return NBL_EXIT_FAILED;
    s->random = s->values->seed + 1u;
    code = nbl_serve_open(&s->serve, session, &setup, fault);
    if (code == NBL_EXIT_OK)
        code = steps_run(s, fault);
    if (code == NBL_EXIT_OK)
        code = report(s, fault);
    nbl_serve_close(&s->serve);
    return code;
}

/* An option that would have no effect is wrong usage. */
static int values_check(const sim_values *v, nbl_fault *fault)
{
    const struct {
        const char *name;
        bool given;
    } synthetic[] = {{"requests", v->requests != UNSET},           {"prefixes", v->prefixes != UNSET},
                     {"prefix-tokens", v->prefix_tokens != UNSET}, {"prompt-tokens", v->prompt_tokens != UNSET},
                     {"output-tokens", v->output_tokens != UNSET}, {"rate", !isnan(v->rate)}};
    for (size_t i = 0; v->trace && i < sizeof synthetic / sizeof synthetic[0]; i++) {
        if (synthetic[i].given)
            return nbl_fault_set(fault, NBL_EXIT_USAGE, "--%s: excludes --trace", synthetic[i].name);
    }
    if (v->file_folder && v->file_kib == 0)
        return nbl_fault_set(fault, NBL_EXIT_USAGE, "--file-folder: needs --file-kib");
    if (v->q_heads % v->kv_heads != 0)
        return nbl_fault_set(fault, NBL_EXIT_USAGE, "--hq: %u is not a multiple of --hkv %u", v->q_heads, v->kv_heads);
    if (v->dim % NBL_DIM_STEP != 0)
        return nbl_fault_set(fault, NBL_EXIT_USAGE, "--d: head dimension %u; multiples of %u from %u to %u are allowed",
                             v->dim, NBL_DIM_STEP, NBL_DIM_MIN, NBL_V_DIM_MAX);
    return NBL_EXIT_OK;
}

static void set_unless_given(uint32_t *value, uint32_t standard)
{
    *value = *value == UNSET ? standard : *value;
}

static void values_complete(sim_values *v)
{
    set_unless_given(&v->requests, 100);
    set_unless_given(&v->prefixes, 4);
    set_unless_given(&v->prefix_tokens, 96);
    set_unless_given(&v->prompt_tokens, 32);
    set_unless_given(&v->output_tokens, 24);
    v->rate = isnan(v->rate) ? 0.3 : v->rate;
    v->file_folder = v->file_folder ? v->file_folder : "/tmp";
}

static int sim_run(int argc, char **argv, nbl_fault *fault)
{
    sim_values values = {.requests = UNSET,
                         .prefixes = UNSET,
                         .prefix_tokens = UNSET,
                         .prompt_tokens = UNSET,
                         .output_tokens = UNSET,
                         .rate = NAN,
                         .seed = 1,
                         .batch = 8,
                         .chunk = 64,
                         .tokens = 1536,
                         .policy = "kv4,sinks=16",
                         .page_tokens = 16,
                         .layers = 2,
                         .q_heads = 4,
                         .kv_heads = 2,
                         .dim = 32};
    nbl_session session;
    sim s = {.values = &values};
    int code = nbl_options_parse(&nbl_command_serve_sim, argc, argv, &values, fault);
    if (code == NBL_EXIT_OK)
        code = values_check(&values, fault);
    values_complete(&values);
    if (code == NBL_EXIT_OK)
        code = nbl_session_open(&session, &values.session, fault);
    if (code != NBL_EXIT_OK)
        return code;
    code = sim_start(&s, &session, fault);
    free(s.requests);
    free(s.queue);
    free(s.running);
    nbl_session_close(&session);
    return code;
}
