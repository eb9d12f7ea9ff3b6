/* SPDX-License-Identifier: Apache-2.0 */
/** @file tune.c @brief Searches the policy with the least measured error for a budget of bits, or the reverse. */
#include "file.h"
#include "input.h"
#include "output.h"
#include "pipeline.h"
#include "progress.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BASE_RECIPE "kv4"
#define RECIPES_DEFAULT BASE_RECIPE ",int8/int4p,k4v8,kv8"

enum { POLICY_BYTES = 512, VALUES_MAX = 8, KNOBS = 5 };

/* Values of the options. */
typedef struct tune_values {
    nbl_session_options session;
    const char *input, *recipes, *out;
    uint32_t layers, kv_tokens, page_tokens;
    double bits, max_error;
    bool json;
} tune_values;

static const nbl_option tune_options[] = {
    {"input", NBL_OPTION_TEXT, offsetof(tune_values, input), 0, 0, "FILE", "safetensors capture, as for attend"},
    {"bits", NBL_OPTION_F64, offsetof(tune_values, bits), 1, 32, "X", "most bits per element of K and V"},
    {"max-error", NBL_OPTION_F64, offsetof(tune_values, max_error), 0, 1e6, "X",
     "or: largest error, root mean square of rel_l2 over the layers"},
    {"recipes", NBL_OPTION_TEXT, offsetof(tune_values, recipes), 0, 0, "LIST",
     NBL_RECIPES_KNOWN " or pairs of formats, for layers; the first for all at the start (default: " RECIPES_DEFAULT
                       ")"},
    {"layers", NBL_OPTION_U32, offsetof(tune_values, layers), 1, NBL_LAYERS_MAX, "N",
     "layers of the model (default: up to the last one captured)"},
    {"kv", NBL_OPTION_U32, offsetof(tune_values, kv_tokens), 1, NBL_KV_TOKENS_MAX, "N",
     "tokens of a sequence at which bits are counted (default: those captured)"},
    {"page", NBL_OPTION_U32, offsetof(tune_values, page_tokens), 1, NBL_PAGE_TOKENS_MAX, "N",
     "tokens per page (default 64)"},
    {"out", NBL_OPTION_TEXT, offsetof(tune_values, out), 0, 0, "FILE", "write the policy there"},
    NBL_SESSION_OPTION_ROWS(tune_values),
    {"json", NBL_OPTION_FLAG, offsetof(tune_values, json), 0, 0, NULL, "print JSON"},
};

static int tune_run(int argc, char **argv, nbl_fault *fault);

const nbl_command nbl_command_tune = {
    "tune",
    "Policy with the least error for a budget of bits, measured on captured layers.",
    "First the transforms that cost no bits are tried, then, step by step, the change that takes away most error per\n"
    "bit: a better recipe for a layer, more first or last tokens in int8; then the transforms once more. Layers that\n"
    "the capture lacks keep the first recipe. The error is that of attend at the last query rows, against fp64. Any\n"
    "command that takes a policy takes @FILE for one that --out wrote.\n",
    tune_options,
    sizeof tune_options / sizeof tune_options[0],
    tune_run,
};

/* What a policy can be turned at, besides the recipes of layers. The first value is where the search starts. */
enum { KNOB_CENTER, KNOB_HADAMARD, KNOB_VHADAMARD, KNOB_SINKS, KNOB_RECENT };

static const struct {
    const char *key;
    uint32_t count;
    uint32_t values[VALUES_MAX];
    bool is_free; /* costs no bits */
} knobs[KNOBS] = {
    {"center", 4, {3, 1, 2, 0}, true},
    {"hadamard", 4, {UINT32_MAX, 32, 64, 0}, true}, /* UINT32_MAX: the recipe's own */
    {"vhadamard", 3, {UINT32_MAX, 32, 0}, true},
    {"sinks", 4, {0, 64, 128, 256}, false},
    {"recent", 4, {0, 64, 128, 256}, false},
};

/* One point of the search. */
typedef struct candidate {
    uint32_t knob[KNOBS];           /* index of a value */
    uint8_t recipe[NBL_LAYERS_MAX]; /* of each layer of the model */
    double bits, error;
} candidate;

/* An error that was measured. */
typedef struct known {
    uint32_t slot; /* of the capture's layers */
    char policy[POLICY_BYTES];
    double rel_l2;
} known;

/* The search: what it works on and what it has found. */
typedef struct search {
    nbl_session *session;
    const tune_values *values;
    nbl_list recipes;
    uint32_t layers, slots;
    uint32_t layer_of[NBL_LAYERS_MAX];
    nbl_problem *problems;
    nbl_reference *references;
    known *known;
    size_t known_count, known_capacity;
    nbl_table table;
    json_t *steps;
    candidate *best, *trial, *leader;
    double recipe_bits[32], int8_bits; /* as many as a list has */
} search;

/* ------------------------------------------------------------------------------------------------ policies as text */

/* Appends to a text of POLICY_BYTES; false if it does not fit. */
static bool text_add(char *text, const char *format, const char *word, uint32_t a, uint32_t b)
{
    const size_t used = strlen(text);
    char piece[POLICY_BYTES];
    const int bytes = snprintf(piece, sizeof piece, format, word, a, b);
    if (bytes < 0 || used + (size_t)bytes >= POLICY_BYTES)
        return false;
    memcpy(text + used, piece, (size_t)bytes + 1u);
    return true;
}

/* The knobs that are not where they start. with_blocks: those of the Hadamard blocks too, which are the base's. */
static bool knobs_add(const candidate *c, bool with_blocks, char *text)
{
    for (uint32_t k = 0; k < KNOBS; k++) {
        const uint32_t value = knobs[k].values[c->knob[k]];
        const bool is_block = k == KNOB_HADAMARD || k == KNOB_VHADAMARD;
        const bool is_said = k == KNOB_SINKS || (c->knob[k] != 0 && (!is_block || with_blocks));
        if (is_said && !text_add(text, ",%s=%u", knobs[k].key, value, 0))
            return false;
    }
    return true;
}

/* Policy of the whole model. */
static bool policy_write(const search *s, const candidate *c, char *text)
{
    text[0] = '\0';
    if (!text_add(text, "%s", s->recipes.items[0], 0, 0) || !knobs_add(c, true, text))
        return false;
    for (uint32_t first = 0, end; first < s->layers; first = end) {
        for (end = first + 1; end < s->layers && c->recipe[end] == c->recipe[first]; end++)
            ;
        if (c->recipe[first] == 0)
            continue;
        const bool fits = end - first == 1 ? text_add(text, "%s%u:", ",layers=", first, 0)
                                           : text_add(text, "%s%u-%u:", ",layers=", first, end - 1);
        if (!fits || !text_add(text, "%s", s->recipes.items[c->recipe[first]], 0, 0))
            return false;
    }
    return true;
}

/* The same for one layer alone. */
static bool layer_policy_write(const search *s, const candidate *c, uint32_t layer, char *text)
{
    text[0] = '\0';
    return text_add(text, "%s", s->recipes.items[c->recipe[layer]], 0, 0) && knobs_add(c, c->recipe[layer] == 0, text);
}

/* ------------------------------------------------------------------------------------------------ measuring */

/* Asks the cache for the sizes of a policy of so many layers; false if it does not take it. */
static bool plan_ask(const search *s, const char *text, uint32_t layers, nbl_cache_stats *out_stats, nbl_error *err)
{
    const nbl_api_v1 *api = s->session->api;
    const nbl_problem *shape = &s->problems[0];
    nbl_policy policy = NBL_INIT(nbl_policy);
    nbl_cache_config config;
    *out_stats = (nbl_cache_stats)NBL_INIT(nbl_cache_stats);
    if (api->policy_parse(text, layers, shape->k_dim, shape->v_dim, &policy, err) != NBL_OK)
        return false;
    nbl_cache_config_fill(shape, &policy, s->values->page_tokens, &config);
    config.shape.layers = layers;
    config.tokens_max = s->values->kv_tokens;
    return api->cache_plan(&config, out_stats, err) == NBL_OK;
}

/* Bits per element of one layer with all tokens in the recipe's formats. */
static bool recipe_bits(const search *s, const char *recipe, double *out_bits, nbl_error *err)
{
    const nbl_problem *shape = &s->problems[0];
    nbl_cache_stats stats;
    char text[POLICY_BYTES];
    text[0] = '\0';
    if (!text_add(text, "%s,sinks=0", recipe, 0, 0) || !plan_ask(s, text, 1, &stats, err))
        return false;
    const double elements = (double)s->values->kv_tokens * shape->kv_heads * (shape->k_dim + shape->v_dim);
    *out_bits = 8.0 * (double)(stats.code_bytes + stats.scale_bytes) / elements;
    return true;
}

/* Tokens rounded up to whole pages. */
static double page_round(const search *s, uint32_t tokens)
{
    return ceil((double)tokens / s->values->page_tokens) * s->values->page_tokens;
}

/* Bits per element of K and V of a sequence of kv_tokens; false if the cache does not take the policy. What it sets
 * aside for pages in transition is not in it. */
static bool bits_of(const search *s, const candidate *c, const char *text, double *out_bits, nbl_error *err)
{
    nbl_cache_stats stats;
    if (!plan_ask(s, text, s->layers, &stats, err))
        return false;
    const double special = page_round(s, knobs[KNOB_SINKS].values[c->knob[KNOB_SINKS]]) +
                           page_round(s, knobs[KNOB_RECENT].values[c->knob[KNOB_RECENT]]);
    const double share = fmin(1.0, special / s->values->kv_tokens);
    double sum = 0.0;
    for (uint32_t layer = 0; layer < s->layers; layer++)
        sum += s->recipe_bits[c->recipe[layer]] * (1.0 - share) + s->int8_bits * share;
    *out_bits = sum / s->layers;
    return true;
}

/* A recipe's name alone: policies and modifiers are what the search is about. */
static int recipe_check(const search *s, const char *name, nbl_fault *fault)
{
    nbl_recipe recipe = NBL_INIT(nbl_recipe);
    nbl_error err = NBL_INIT(nbl_error);
    if (s->session->api->recipe_parse(name, s->problems[0].k_dim, s->problems[0].v_dim, &recipe, &err) != NBL_OK)
        return nbl_fault_from_api(fault, NBL_EXIT_USAGE, "--recipes", &err);
    if (strchr(name, ',') != NULL)
        return nbl_fault_set(fault, NBL_EXIT_USAGE, "--recipes: \"%.300s\" has modifiers, which tune finds itself",
                             name);
    return NBL_EXIT_OK;
}

/* Fills the bits of all recipes. */
static int recipes_measure(search *s, nbl_fault *fault)
{
    nbl_error err = NBL_INIT(nbl_error);
    int code = NBL_EXIT_OK;
    for (size_t r = 0; r < s->recipes.count && code == NBL_EXIT_OK; r++)
        code = recipe_check(s, s->recipes.items[r], fault);
    if (code != NBL_EXIT_OK)
        return code;
    bool taken = recipe_bits(s, "int8/int8", &s->int8_bits, &err);
    for (size_t r = 0; r < s->recipes.count && taken; r++)
        taken = recipe_bits(s, s->recipes.items[r], &s->recipe_bits[r], &err);
    return taken ? NBL_EXIT_OK : nbl_fault_from_api(fault, NBL_EXIT_USAGE, "--recipes", &err);
}

static known *known_find(const search *s, uint32_t slot, const char *policy)
{
    for (size_t i = 0; i < s->known_count; i++) {
        if (s->known[i].slot == slot && strcmp(s->known[i].policy, policy) == 0)
            return &s->known[i];
    }
    return NULL;
}

static int known_add(search *s, uint32_t slot, const char *policy, double rel_l2, nbl_fault *fault)
{
    if (s->known_count == s->known_capacity) {
        const size_t capacity = s->known_capacity ? 2 * s->known_capacity : 256;
        known *larger = realloc(s->known, capacity * sizeof *larger);
        if (!larger)
            return nbl_fault_set(fault, NBL_EXIT_FAILED, "no memory for %zu results", capacity);
        s->known = larger;
        s->known_capacity = capacity;
    }
    known *made = &s->known[s->known_count++];
    made->slot = slot;
    made->rel_l2 = rel_l2;
    snprintf(made->policy, sizeof made->policy, "%s", policy);
    return NBL_EXIT_OK;
}

/* rel_l2 of one captured layer. */
static int layer_measure(search *s, const candidate *c, uint32_t slot, double *out_rel_l2, nbl_fault *fault)
{
    char policy[POLICY_BYTES];
    if (!layer_policy_write(s, c, s->layer_of[slot], policy))
        return nbl_fault_set(fault, NBL_EXIT_USAGE, "--recipes: a name is too long");
    const known *before = known_find(s, slot, policy);
    if (before) {
        *out_rel_l2 = before->rel_l2;
        return NBL_EXIT_OK;
    }
    const nbl_problem *problem = &s->problems[slot];
    const nbl_pipeline_options run = {.recipe = policy, .page_tokens = s->values->page_tokens};
    nbl_pipeline_result result = {0};
    int code = nbl_pipeline_run(s->session, problem, &run, &result, fault);
    if (code != NBL_EXIT_OK)
        return code;
    *out_rel_l2 = nbl_accuracy_measure(problem, &s->references[slot], result.o, result.lse).rel_l2;
    nbl_pipeline_result_free(&result);
    return known_add(s, slot, policy, *out_rel_l2, fault);
}

/* Fills bits and error. A candidate that the cache does not take, or that is too long to write, has infinite bits. */
static int candidate_measure(search *s, candidate *c, nbl_fault *fault)
{
    char policy[POLICY_BYTES];
    double sum = 0.0;
    nbl_error err = NBL_INIT(nbl_error);
    if (!policy_write(s, c, policy) || !bits_of(s, c, policy, &c->bits, &err)) {
        c->bits = INFINITY;
        return NBL_EXIT_OK;
    }
    for (uint32_t slot = 0; slot < s->slots; slot++) {
        double rel_l2 = 0.0;
        int code = layer_measure(s, c, slot, &rel_l2, fault);
        if (code != NBL_EXIT_OK)
            return code;
        sum += rel_l2 * rel_l2;
    }
    c->error = sqrt(sum / s->slots);
    return NBL_EXIT_OK;
}

/* ------------------------------------------------------------------------------------------------ searching */

static void step_note(search *s, const char *change, const candidate *c)
{
    char text[32];
    json_array_append_new(s->steps, json_pack("{s:s, s:o, s:o}", "change", change, "bits", nbl_json_real(c->bits),
                                              "error", nbl_json_real(c->error)));
    nbl_table_add(&s->table, "%s", change);
    nbl_table_add(&s->table, "%s", nbl_real_text(c->bits, 3, text));
    nbl_table_add(&s->table, "%s", nbl_real_text(c->error, 6, text));
}

/* A change of a knob as text; a recipe's own block has no number here. */
static void knob_text(uint32_t knob, uint32_t index, char change[64])
{
    const uint32_t value = knobs[knob].values[index];
    if (value == UINT32_MAX)
        snprintf(change, 64, "%s of the recipe", knobs[knob].key);
    else
        snprintf(change, 64, "%s=%u", knobs[knob].key, value);
}

/* The transforms, one after the other, each at its best. */
static int transforms_search(search *s, nbl_fault *fault)
{
    int code = NBL_EXIT_OK;
    for (uint32_t k = 0; k < KNOBS && code == NBL_EXIT_OK; k++) {
        for (uint32_t i = 0; knobs[k].is_free && i < knobs[k].count && code == NBL_EXIT_OK; i++) {
            *s->trial = *s->best;
            s->trial->knob[k] = i;
            code = candidate_measure(s, s->trial, fault);
            if (code == NBL_EXIT_OK && isfinite(s->trial->bits) && s->trial->error < s->best->error) {
                char change[64];
                knob_text(k, i, change);
                *s->best = *s->trial;
                step_note(s, change, s->best);
            }
        }
    }
    return code;
}

/* Measures s->trial and makes it the leader if it fits and saves more error per bit. */
static int trial_judge(search *s, double *most, const char *change, char leader_change[64], nbl_fault *fault)
{
    int code = candidate_measure(s, s->trial, fault);
    const double saved = s->best->error - s->trial->error, cost = s->trial->bits - s->best->bits;
    if (code != NBL_EXIT_OK || !isfinite(s->trial->bits) || !(saved > 0.0))
        return code;
    if (!isnan(s->values->bits) && s->trial->bits > s->values->bits)
        return code;
    const double gain = saved / (cost > 1e-6 ? cost : 1e-6);
    if (gain > *most) {
        *most = gain;
        *s->leader = *s->trial;
        snprintf(leader_change, 64, "%s", change);
    }
    return code;
}

static int layers_try(search *s, double *most, char leader_change[64], nbl_fault *fault)
{
    int code = NBL_EXIT_OK;
    for (uint32_t slot = 0; slot < s->slots; slot++) {
        const uint32_t layer = s->layer_of[slot];
        for (uint32_t r = 0; r < s->recipes.count && code == NBL_EXIT_OK; r++) {
            char change[64];
            if (r == s->best->recipe[layer])
                continue;
            *s->trial = *s->best;
            s->trial->recipe[layer] = (uint8_t)r;
            snprintf(change, sizeof change, "layer %u: %.40s", layer, s->recipes.items[r]);
            code = trial_judge(s, most, change, leader_change, fault);
        }
    }
    return code;
}

static int knobs_try(search *s, double *most, char leader_change[64], nbl_fault *fault)
{
    int code = NBL_EXIT_OK;
    for (uint32_t k = 0; k < KNOBS; k++) {
        for (uint32_t i = s->best->knob[k] + 1; !knobs[k].is_free && i < knobs[k].count && code == NBL_EXIT_OK; i++) {
            char change[64];
            *s->trial = *s->best;
            s->trial->knob[k] = i;
            knob_text(k, i, change);
            code = trial_judge(s, most, change, leader_change, fault);
        }
    }
    return code;
}

/* Steps until nothing that fits helps, or the error is small enough. */
static int budget_search(search *s, nbl_fault *fault)
{
    const uint32_t steps_max = s->slots * (uint32_t)s->recipes.count + 16u;
    nbl_progress progress = nbl_progress_start("steps", steps_max);
    int code = NBL_EXIT_OK;
    for (uint32_t step = 0; step < steps_max && code == NBL_EXIT_OK; step++) {
        double most = 0.0;
        char change[64];
        if (!isnan(s->values->max_error) && s->best->error <= s->values->max_error)
            break;
        code = layers_try(s, &most, change, fault);
        if (code == NBL_EXIT_OK)
            code = knobs_try(s, &most, change, fault);
        if (code != NBL_EXIT_OK || most == 0.0)
            break;
        *s->best = *s->leader;
        step_note(s, change, s->best);
        nbl_progress_step(&progress);
    }
    nbl_progress_end(&progress);
    return code;
}

/* What the search starts from must be possible, and the budget above it. */
static int start_check(search *s, nbl_fault *fault)
{
    char policy[POLICY_BYTES];
    nbl_error err = NBL_INIT(nbl_error);
    double bits = 0.0;
    if (!policy_write(s, s->best, policy) || !bits_of(s, s->best, policy, &bits, &err))
        return nbl_fault_from_api(fault, NBL_EXIT_USAGE, "--recipes", &err);
    if (!isnan(s->values->bits) && bits > s->values->bits)
        return nbl_fault_set(fault, NBL_EXIT_USAGE,
                             "--bits: %g is less than %.64s takes, %.3f bits at %u tokens; the first of --recipes "
                             "must fit",
                             s->values->bits, s->recipes.items[0], bits, s->values->kv_tokens);
    return NBL_EXIT_OK;
}

/* ------------------------------------------------------------------------------------------------ output */

static json_t *json_layers(search *s, nbl_fault *fault)
{
    json_t *rows = json_array();
    for (uint32_t slot = 0; slot < s->slots; slot++) {
        double rel_l2 = NAN;
        (void)layer_measure(s, s->best, slot, &rel_l2, fault); /* known by now */
        json_array_append_new(rows, json_pack("{s:o, s:s, s:o}", "layer", nbl_json_uint(s->layer_of[slot]), "recipe",
                                              s->recipes.items[s->best->recipe[s->layer_of[slot]]], "rel_l2",
                                              nbl_json_real(rel_l2)));
    }
    return rows;
}

static int policy_save(const search *s, const char *policy, nbl_fault *fault)
{
    char head[256];
    const int bytes =
        snprintf(head, sizeof head, "# nibble tune: %u layers, %.3f bits per element at %u tokens, error %.6f\n",
                 s->layers, s->best->bits, s->values->kv_tokens, s->best->error);
    const nbl_part parts[] = {{head, (uint64_t)bytes}, {policy, strlen(policy)}, {"\n", 1}};
    return nbl_file_write(s->values->out, parts, sizeof parts / sizeof parts[0], fault);
}

static int result_print(search *s, nbl_fault *fault)
{
    char policy[POLICY_BYTES];
    (void)policy_write(s, s->best, policy); /* it was measured, so it fits */
    int code = NBL_EXIT_OK;
    if (s->values->json)
        code = nbl_json_print(
            json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:O}", "policy", policy, "bits", nbl_json_real(s->best->bits),
                      "error", nbl_json_real(s->best->error), "model_layers", nbl_json_uint(s->layers), "kv",
                      nbl_json_uint(s->values->kv_tokens), "layers", json_layers(s, fault), "steps", s->steps),
            fault);
    else {
        nbl_table_print(&s->table);
        printf("policy: %s\n", policy);
    }
    if (code == NBL_EXIT_OK && s->values->out) /* last: what a long search found is on the screen if this fails */
        code = policy_save(s, policy, fault);
    if (code == NBL_EXIT_OK && !isnan(s->values->max_error) && !(s->best->error <= s->values->max_error))
        code = nbl_fault_set(fault, NBL_EXIT_FAILED, "--max-error: %g is not reached; the best policy found has %.6f",
                             s->values->max_error, s->best->error);
    return code;
}

/* ------------------------------------------------------------------------------------------------ setting up */

static int layer_load(search *s, const nbl_capture *capture, uint32_t slot, nbl_fault *fault)
{
    nbl_problem *problem = &s->problems[slot];
    const nbl_problem *first = &s->problems[0];
    s->layer_of[slot] = capture->layers[slot];
    int code = nbl_capture_read(capture, "input", capture->layers[slot], problem, fault);
    if (code != NBL_EXIT_OK)
        return code;
    s->slots = slot + 1;
    if (problem->kv_heads != first->kv_heads || problem->k_dim != first->k_dim || problem->v_dim != first->v_dim)
        return nbl_fault_set(fault, NBL_EXIT_INPUT, "%.300s: layers %u and %u differ in kv heads or head dimension",
                             s->values->input, capture->layers[0], capture->layers[slot]);
    code = nbl_reference_compute(problem, &s->references[slot], fault);
    if (code == NBL_EXIT_OK && !isfinite(s->references[slot].o[0]))
        return nbl_fault_set(fault, NBL_EXIT_INPUT, "%.300s: layer %u holds values that are not finite",
                             s->values->input, capture->layers[slot]);
    return code;
}

static int capture_load(search *s, tune_values *values, const nbl_capture *capture, nbl_fault *fault)
{
    const uint32_t needed = capture->layers[capture->layer_count - 1u] + 1u;
    s->layers = values->layers ? values->layers : needed;
    if (needed > s->layers || needed > NBL_LAYERS_MAX)
        return nbl_fault_set(fault, NBL_EXIT_USAGE,
                             "--layers: %u, but the capture holds layer %u (allowed: at most %u)", s->layers,
                             needed - 1u, NBL_LAYERS_MAX);
    s->problems = nbl_alloc(capture->layer_count, sizeof *s->problems, fault);
    s->references = nbl_alloc(capture->layer_count, sizeof *s->references, fault);
    s->best = nbl_alloc(3, sizeof *s->best, fault);
    if (!s->problems || !s->references || !s->best)
        return NBL_EXIT_FAILED;
    s->trial = s->best + 1;
    s->leader = s->best + 2;
    int code = NBL_EXIT_OK;
    for (uint32_t slot = 0; slot < capture->layer_count && code == NBL_EXIT_OK; slot++)
        code = layer_load(s, capture, slot, fault);
    if (code == NBL_EXIT_OK && !values->kv_tokens)
        values->kv_tokens = s->problems[0].kv_tokens;
    return code;
}

static int search_run(search *s, tune_values *values, const nbl_capture *capture, nbl_fault *fault)
{
    static const char *const headings[] = {"step", "bits", "error"};
    nbl_table_start(&s->table, headings, sizeof headings / sizeof headings[0]);
    s->steps = json_array();
    int code = capture_load(s, values, capture, fault);
    if (code == NBL_EXIT_OK)
        code = recipes_measure(s, fault);
    if (code == NBL_EXIT_OK)
        code = start_check(s, fault);
    if (code == NBL_EXIT_OK)
        code = candidate_measure(s, s->best, fault);
    if (code == NBL_EXIT_OK) {
        step_note(s, "start", s->best);
        code = transforms_search(s, fault);
    }
    if (code == NBL_EXIT_OK)
        code = budget_search(s, fault);
    if (code == NBL_EXIT_OK) /* with a window, what is left of the error may want others */
        code = transforms_search(s, fault);
    return code == NBL_EXIT_OK ? result_print(s, fault) : code;
}

static void search_free(search *s)
{
    for (uint32_t slot = 0; s->problems && s->references && slot < s->slots; slot++) {
        nbl_problem_free(&s->problems[slot]);
        nbl_reference_free(&s->references[slot]);
    }
    free(s->problems);
    free(s->references);
    free(s->best);
    free(s->known);
    nbl_table_free(&s->table);
    json_decref(s->steps);
}

static int tune_input(search *s, tune_values *values, nbl_fault *fault)
{
    nbl_capture *capture = nbl_alloc(1, sizeof *capture, fault);
    if (!capture)
        return NBL_EXIT_FAILED;
    int code = nbl_capture_open(values->input, capture, fault);
    if (code == NBL_EXIT_OK) {
        code = search_run(s, values, capture, fault);
        search_free(s);
        nbl_capture_close(capture);
    }
    free(capture);
    return code;
}

static int values_check(const tune_values *values, search *s, nbl_fault *fault)
{
    if (!values->input)
        return nbl_fault_set(fault, NBL_EXIT_USAGE, "--input: missing");
    if (isnan(values->bits) == isnan(values->max_error))
        return nbl_fault_set(fault, NBL_EXIT_USAGE, "--bits, --max-error: exactly one budget is needed, %s given",
                             isnan(values->bits) ? "none" : "both");
    int code = nbl_recipes_split("recipes", values->recipes, &s->recipes, fault);
    return code == NBL_EXIT_OK ? nbl_file_check_out(values->out, fault) : code;
}

static int tune_run(int argc, char **argv, nbl_fault *fault)
{
    tune_values values = {.recipes = RECIPES_DEFAULT, .page_tokens = 64, .bits = NAN, .max_error = NAN};
    nbl_session session;
    search s = {.session = &session, .values = &values};
    int code = nbl_options_parse(&nbl_command_tune, argc, argv, &values, fault);
    if (code == NBL_EXIT_OK)
        code = values_check(&values, &s, fault);
    if (code != NBL_EXIT_OK)
        return code;
    code = nbl_session_open(&session, &values.session, fault);
    if (code == NBL_EXIT_OK) {
        code = tune_input(&s, &values, fault);
        nbl_session_close(&session);
    }
    return code;
}
