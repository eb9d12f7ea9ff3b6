/* SPDX-License-Identifier: Apache-2.0 */
#include "generate.h"
#include "input.h"
#include "output.h"
#include "pipeline.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Values of the options. */
typedef struct compare_values {
    nbl_session_options session;
    nbl_shape_options shape;
    const char *input, *layers, *generate, *recipes, *lengths;
    uint32_t page_tokens;
    double max_error;
    bool json, csv;
} compare_values;

static const nbl_option compare_options[] = {
    {"input", NBL_OPTION_TEXT, offsetof(compare_values, input), 0, 0, "FILE", "safetensors capture, as for attend"},
    {"layers", NBL_OPTION_TEXT, offsetof(compare_values, layers), 0, 0, "LIST", "layers of the capture (default: all)"},
    {"generate", NBL_OPTION_TEXT, offsetof(compare_values, generate), 0, 0, "LIST", "all, or of " NBL_GENERATE_NAMES},
    NBL_SHAPE_OPTION_ROWS(compare_values),
    {"recipes", NBL_OPTION_TEXT, offsetof(compare_values, recipes), 0, 0, "LIST",
     NBL_RECIPES_KNOWN " or policies (default: " NBL_POLICIES_SHOWN ")"},
    {"lengths", NBL_OPTION_TEXT, offsetof(compare_values, lengths), 0, 0, "LIST",
     "lengths in tokens (default: 128, 512, 2048, ... and the whole)"},
    {"page", NBL_OPTION_U32, offsetof(compare_values, page_tokens), 1, NBL_PAGE_TOKENS_MAX, "N",
     "tokens per page (default 64)"},
    {"max-error", NBL_OPTION_F64, offsetof(compare_values, max_error), 0, 1e6, "X", "fail if a rel_l2 is above X"},
    {"csv", NBL_OPTION_FLAG, offsetof(compare_values, csv), 0, 0, NULL, "print CSV"},
    NBL_SESSION_OPTION_ROWS(compare_values),
    {"json", NBL_OPTION_FLAG, offsetof(compare_values, json), 0, 0, NULL, "print JSON"},
};

static int compare_run(int argc, char **argv, nbl_fault *fault);

const nbl_command nbl_command_compare = {
    "compare",
    "Accuracy of recipes at several lengths against fp64.",
    "Length n takes the first n keys and values; the query rows stay the same and move to the last positions of the\n"
    "shorter sequence (of n < Tq only the last n rows are used). Figures are those of attend.\n"
    "Recipe mpfa centres queries by the mean of the rows given, if they are 32 or more.\n",
    compare_options,
    sizeof compare_options / sizeof compare_options[0],
    compare_run,
};

/* Where rows go, and the worst error so far. */
typedef struct collector {
    nbl_session *session;
    const compare_values *values;
    nbl_list recipes;
    nbl_list lengths;
    nbl_table table;
    json_t *rows;
    double worst_rel_l2;
    nbl_quant_stats worst_quant; /* largest of each counter in a row */
} collector;

static void add_figure(nbl_table *table, double value)
{
    char text[32];
    nbl_table_add(table, "%s", nbl_real_text(value, 6, text));
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void note_quant(nbl_quant_stats *worst, const nbl_quant_stats *quant)
{
    worst->nan_inputs = larger(worst->nan_inputs, quant->nan_inputs);
    worst->inf_inputs = larger(worst->inf_inputs, quant->inf_inputs);
    worst->saturated = larger(worst->saturated, quant->saturated);
    worst->flushed = larger(worst->flushed, quant->flushed);
}

static void add_row(collector *all, const char *recipe, const nbl_problem *problem, const nbl_quant_stats *quant,
                    const nbl_accuracy *accuracy)
{
    bool capture = all->values->input != NULL;
    json_t *row = json_pack("{s:s, s:s, s:o, s:o, s:o}", "recipe", recipe, "source", problem->source, "layer",
                            capture ? nbl_json_uint(problem->layer) : json_null(), "length",
                            nbl_json_uint(problem->kv_tokens), "input", nbl_json_quant(quant));
    nbl_json_set_accuracy(row, accuracy);
    json_array_append_new(all->rows, row);
    nbl_table_add(&all->table, "%s", recipe);
    nbl_table_add(&all->table, "%s", problem->source);
    if (capture)
        nbl_table_add(&all->table, "%u", problem->layer);
    else
        nbl_table_add(&all->table, "-");
    nbl_table_add(&all->table, "%u", problem->kv_tokens);
    add_figure(&all->table, accuracy->rel_l2);
    add_figure(&all->table, accuracy->gain);
    add_figure(&all->table, accuracy->cos_mean);
    add_figure(&all->table, accuracy->cos_min);
    add_figure(&all->table, accuracy->lse_err);
    note_quant(&all->worst_quant, quant);
    if (!isnan(all->worst_rel_l2) && !(accuracy->rel_l2 <= all->worst_rel_l2)) /* NaN is the worst, and stays */
        all->worst_rel_l2 = accuracy->rel_l2;
}

/* Names that are none are told before anything is measured. */
static int check_recipes(const collector *all, const nbl_problem *problem, nbl_fault *fault)
{
    nbl_policy policy = NBL_INIT(nbl_policy);
    int code = NBL_EXIT_OK;
    for (size_t i = 0; i < all->recipes.count && code == NBL_EXIT_OK; i++)
        code = nbl_policy_read(all->session->api, "--recipes", all->recipes.items[i], 1, problem->k_dim, problem->v_dim,
                               &policy, fault);
    return code;
}

static int compare_length(collector *all, const nbl_problem *whole, uint32_t length, nbl_fault *fault)
{
    nbl_problem problem = nbl_problem_shorten(whole, length);
    nbl_reference reference = {0};
    int code = check_recipes(all, &problem, fault);
    if (code == NBL_EXIT_OK)
        code = nbl_reference_compute(&problem, &reference, fault);
    for (size_t i = 0; i < all->recipes.count && code == NBL_EXIT_OK; i++) {
        nbl_pipeline_options run = {.recipe = all->recipes.items[i], .page_tokens = all->values->page_tokens};
        nbl_pipeline_result result = {0};
        code = nbl_pipeline_run(all->session, &problem, &run, &result, fault);
        if (code != NBL_EXIT_OK)
            break;
        nbl_accuracy accuracy = nbl_accuracy_measure(&problem, &reference, result.o, result.lse);
        add_row(all, run.recipe, &problem, &result.quant, &accuracy);
        nbl_pipeline_result_free(&result);
    }
    nbl_reference_free(&reference);
    return code;
}

static int compare_listed(collector *all, const nbl_problem *whole, nbl_fault *fault)
{
    int code = NBL_EXIT_OK;
    for (size_t i = 0; i < all->lengths.count && code == NBL_EXIT_OK; i++) {
        uint64_t length = 0;
        code = nbl_option_number_u64("lengths", all->lengths.items[i], 1, whole->kv_tokens, &length, fault);
        if (code == NBL_EXIT_OK)
            code = compare_length(all, whole, (uint32_t)length, fault);
    }
    return code;
}

static int compare_lengths(collector *all, const nbl_problem *whole, nbl_fault *fault)
{
    static const uint32_t first_length = 128, ratio = 4;
    int code = NBL_EXIT_OK;
    if (all->values->lengths)
        return compare_listed(all, whole, fault);
    for (uint32_t length = first_length; length < whole->kv_tokens && code == NBL_EXIT_OK; length *= ratio)
        code = compare_length(all, whole, length, fault);
    return code == NBL_EXIT_OK ? compare_length(all, whole, whole->kv_tokens, fault) : code;
}

static int compare_layer(collector *all, const nbl_capture *capture, uint32_t layer, nbl_fault *fault)
{
    nbl_problem problem = {0};
    int code = nbl_capture_read(capture, "layers", layer, &problem, fault);
    if (code == NBL_EXIT_OK)
        code = compare_lengths(all, &problem, fault);
    nbl_problem_free(&problem);
    return code;
}

static int compare_capture(collector *all, const nbl_capture *capture, nbl_fault *fault)
{
    nbl_list layers;
    int code = NBL_EXIT_OK;
    if (!all->values->layers) {
        for (uint32_t i = 0; i < capture->layer_count && code == NBL_EXIT_OK; i++)
            code = compare_layer(all, capture, capture->layers[i], fault);
        return code;
    }
    code = nbl_list_split("layers", all->values->layers, &layers, fault);
    for (size_t i = 0; code == NBL_EXIT_OK && i < layers.count; i++) {
        uint64_t layer = 0;
        code = nbl_option_number_u64("layers", layers.items[i], 0, UINT32_MAX - 1, &layer, fault);
        if (code == NBL_EXIT_OK)
            code = compare_layer(all, capture, (uint32_t)layer, fault);
    }
    return code;
}

static int compare_input(collector *all, nbl_fault *fault)
{
    nbl_capture *capture = nbl_alloc(1, sizeof *capture, fault);
    if (!capture)
        return NBL_EXIT_FAILED;
    int code = nbl_capture_open(all->values->input, capture, fault);
    if (code == NBL_EXIT_OK) {
        code = compare_capture(all, capture, fault);
        nbl_capture_close(capture);
    }
    free(capture);
    return code;
}

static int compare_distribution(collector *all, const char *name, nbl_fault *fault)
{
    nbl_problem problem = {0};
    int code = nbl_problem_make(&all->values->shape, name, &problem, fault);
    if (code == NBL_EXIT_OK)
        code = compare_lengths(all, &problem, fault);
    nbl_problem_free(&problem);
    return code;
}

static int compare_generated(collector *all, nbl_fault *fault)
{
    nbl_list names;
    int code = NBL_EXIT_OK;
    if (strcmp(all->values->generate, "all") == 0) {
        for (size_t i = 0; nbl_generate_names[i] && code == NBL_EXIT_OK; i++)
            code = compare_distribution(all, nbl_generate_names[i], fault);
        return code;
    }
    code = nbl_list_split("generate", all->values->generate, &names, fault);
    for (size_t i = 0; code == NBL_EXIT_OK && i < names.count; i++)
        code = compare_distribution(all, names.items[i], fault);
    return code;
}

static int print_rows(collector *all, nbl_fault *fault)
{
    const compare_values *values = all->values;
    int code = NBL_EXIT_OK;
    if (values->json)
        code = nbl_json_print(json_pack("{s:s, s:O}", "backend", all->session->backend, "rows", all->rows), fault);
    else if (values->csv)
        nbl_table_print_csv(&all->table);
    else
        nbl_table_print(&all->table);
    if (!values->json && !values->csv)
        nbl_quant_print("input of a row, at most: ", &all->worst_quant);
    nbl_quant_warn(&all->worst_quant);
    if (code == NBL_EXIT_OK)
        code = nbl_max_error_check(all->worst_rel_l2, values->max_error, fault);
    return code;
}

static int compare_all(collector *all, nbl_fault *fault)
{
    static const char *const headings[] = {"recipe", "source",   "layer",   "length", "rel_l2",
                                           "gain",   "cos_mean", "cos_min", "lse_err"};
    nbl_table_start(&all->table, headings, sizeof headings / sizeof headings[0]);
    all->rows = json_array();
    int code = all->values->input ? compare_input(all, fault) : compare_generated(all, fault);
    if (code == NBL_EXIT_OK)
        code = print_rows(all, fault);
    nbl_table_free(&all->table);
    json_decref(all->rows);
    return code;
}

static int check_values(const compare_values *values, collector *all, nbl_fault *fault)
{
    if (!values->input == !values->generate)
        return nbl_fault_set(fault, NBL_EXIT_USAGE, "--input, --generate: exactly one source is needed, %s given",
                             values->input ? "both" : "none");
    if (values->layers && !values->input)
        return nbl_fault_set(fault, NBL_EXIT_USAGE, "--layers: needs --input");
    if (values->csv && values->json)
        return nbl_fault_set(fault, NBL_EXIT_USAGE, "--csv: excludes --json");
    int code = values->input ? nbl_shape_options_refuse(&values->shape, fault) : NBL_EXIT_OK;
    if (code == NBL_EXIT_OK)
        code = nbl_recipes_split("recipes", values->recipes, &all->recipes, fault);
    if (code == NBL_EXIT_OK && values->lengths)
        code = nbl_list_split("lengths", values->lengths, &all->lengths, fault);
    return code;
}

static int compare_run(int argc, char **argv, nbl_fault *fault)
{
    compare_values values = {
        .shape = NBL_SHAPE_OPTIONS_UNSET, .recipes = NBL_POLICIES_SHOWN, .page_tokens = 64, .max_error = NAN};
    nbl_session session;
    collector all = {.session = &session, .values = &values};
    int code = nbl_options_parse(&nbl_command_compare, argc, argv, &values, fault);
    if (code == NBL_EXIT_OK)
        code = check_values(&values, &all, fault);
    if (code != NBL_EXIT_OK)
        return code;
    nbl_shape_options_complete(&values.shape, NBL_Q_TOKENS_DEFAULT);
    code = nbl_session_open(&session, &values.session, fault);
    if (code == NBL_EXIT_OK) {
        code = compare_all(&all, fault);
        nbl_session_close(&session);
    }
    return code;
}
