/* SPDX-License-Identifier: Apache-2.0 */
#include "output.h"
#include "pipeline.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>

/* Sizes of a model's cache. */
typedef struct plan_values {
    uint32_t layers, q_heads, kv_heads, k_dim, v_dim, kv_tokens, batch, page_tokens;
    const char *recipe;
    bool json;
} plan_values;

static const nbl_option plan_options[] = {
    {"layers", NBL_OPTION_U32, offsetof(plan_values, layers), 1, 65536, "N", "attention layers (default 32)"},
    {"hq", NBL_OPTION_U32, offsetof(plan_values, q_heads), 1, 65536, "N",
     "query heads; checked, takes no memory (default 32)"},
    {"hkv", NBL_OPTION_U32, offsetof(plan_values, kv_heads), 1, 65536, "N", "key and value heads (default 8)"},
    {"d", NBL_OPTION_U32, offsetof(plan_values, k_dim), NBL_DIM_MIN, NBL_K_DIM_MAX, "N",
     "head dimension of K (default 128)"},
    {"dv", NBL_OPTION_U32, offsetof(plan_values, v_dim), NBL_DIM_MIN, NBL_V_DIM_MAX, "N",
     "head dimension of V (default: that of K)"},
    {"kv", NBL_OPTION_U32, offsetof(plan_values, kv_tokens), 1, NBL_KV_TOKENS_MAX, "N",
     "tokens per sequence (default 8192)"},
    {"batch", NBL_OPTION_U32, offsetof(plan_values, batch), 1, 65536, "N", "sequences (default 1)"},
    {"page", NBL_OPTION_U32, offsetof(plan_values, page_tokens), 1, NBL_PAGE_TOKENS_MAX, "N",
     "tokens per page (default 64)"},
    {"recipe", NBL_OPTION_TEXT, offsetof(plan_values, recipe), 0, 0, "LIST",
     NBL_RECIPES_KNOWN " or policies (default: " NBL_POLICIES_SHOWN ")"},
    {"json", NBL_OPTION_FLAG, offsetof(plan_values, json), 0, 0, NULL, "print JSON"},
};

static int plan_run(int argc, char **argv, nbl_fault *fault);

const nbl_command nbl_command_plan = {
    "plan",
    "Bytes a model's cache takes by recipe, next to bf16.",
    "The figures are those the cache itself allocates, to the byte.\n",
    plan_options,
    sizeof plan_options / sizeof plan_options[0],
    plan_run,
};

static uint64_t bf16_bytes(const plan_values *values)
{
    return 2u * (uint64_t)values->layers * values->batch * values->kv_tokens * values->kv_heads *
           (values->k_dim + values->v_dim);
}

static nbl_cache_config config_of(const plan_values *values, const nbl_problem *shape, const nbl_policy *policy)
{
    nbl_cache_config c;
    nbl_cache_config_fill(shape, policy, values->page_tokens, &c);
    c.shape.layers = values->layers;
    c.sequences_max = values->batch;
    c.tokens_max = (uint64_t)values->batch * values->kv_tokens;
    c.sequence_tokens_max = values->kv_tokens;
    return c;
}

static int plan_recipe(const nbl_api_v1 *api, const plan_values *values, const char *recipe, nbl_cache_stats *out_stats,
                       nbl_fault *fault)
{
    const nbl_problem shape = {.q_tokens = 1,
                               .q_heads = values->q_heads,
                               .kv_tokens = values->kv_tokens,
                               .kv_heads = values->kv_heads,
                               .k_dim = values->k_dim,
                               .v_dim = values->v_dim};
    nbl_policy policy = NBL_INIT(nbl_policy);
    nbl_error err = NBL_INIT(nbl_error);
    int code = nbl_problem_check(&shape, NBL_EXIT_USAGE, fault);
    if (code != NBL_EXIT_OK)
        return code;
    code = nbl_policy_read(api, "--recipe", recipe, values->layers, values->k_dim, values->v_dim, &policy, fault);
    if (code != NBL_EXIT_OK)
        return code;
    const nbl_cache_config config = config_of(values, &shape, &policy);
    *out_stats = (nbl_cache_stats)NBL_INIT(nbl_cache_stats);
    if (api->cache_plan(&config, out_stats, &err) != NBL_OK)
        return nbl_fault_from_api(fault, NBL_EXIT_USAGE, recipe, &err);
    return NBL_EXIT_OK;
}

static double element_count(const plan_values *values)
{
    return (double)bf16_bytes(values) / 2.0;
}

static json_t *json_row(const plan_values *values, const char *recipe, const nbl_cache_stats *stats)
{
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "recipe", recipe, "code_bytes",
                     nbl_json_uint(stats->code_bytes), "scale_bytes", nbl_json_uint(stats->scale_bytes), "center_bytes",
                     nbl_json_uint(stats->center_bytes), "metadata_bytes", nbl_json_uint(stats->metadata_bytes),
                     "workspace_bytes", nbl_json_uint(stats->workspace_bytes), "total_bytes",
                     nbl_json_uint(stats->total_bytes), "bits_per_element",
                     nbl_json_real(8.0 * (double)stats->total_bytes / element_count(values)), "of_bf16",
                     nbl_json_real((double)stats->total_bytes / (double)bf16_bytes(values)));
}

static json_t *json_document(const plan_values *values, json_t *rows)
{
    json_t *shape = json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "layers", nbl_json_uint(values->layers), "hq",
                              nbl_json_uint(values->q_heads), "hkv", nbl_json_uint(values->kv_heads), "d",
                              nbl_json_uint(values->k_dim), "dv", nbl_json_uint(values->v_dim), "kv",
                              nbl_json_uint(values->kv_tokens), "batch", nbl_json_uint(values->batch), "page",
                              nbl_json_uint(values->page_tokens));
    return json_pack("{s:o, s:o, s:o}", "shape", shape, "bf16_bytes", nbl_json_uint(bf16_bytes(values)), "rows", rows);
}

static void table_row(nbl_table *table, const plan_values *values, const char *recipe, const nbl_cache_stats *stats)
{
    char text[32];
    nbl_table_add(table, "%s", recipe);
    nbl_table_add(table, "%s", nbl_bytes_text(stats->code_bytes, text));
    nbl_table_add(table, "%s", nbl_bytes_text(stats->scale_bytes, text));
    nbl_table_add(table, "%s", nbl_bytes_text(stats->center_bytes, text));
    nbl_table_add(table, "%s", nbl_bytes_text(stats->metadata_bytes + stats->workspace_bytes, text));
    nbl_table_add(table, "%s", nbl_bytes_text(stats->total_bytes, text));
    nbl_table_add(table, "%" PRIu64, stats->total_bytes);
    nbl_table_add(table, "%.3f", 8.0 * (double)stats->total_bytes / element_count(values));
    nbl_table_add(table, "%.1f%%", 100.0 * (double)stats->total_bytes / (double)bf16_bytes(values));
}

static int print_plan(const nbl_api_v1 *api, const plan_values *values, const nbl_list *recipes, nbl_fault *fault)
{
    static const char *const headings[] = {"recipe", "codes", "scales",  "centres", "other",
                                           "total",  "bytes", "bits/el", "of bf16"};
    nbl_table table;
    json_t *rows = json_array();
    int code = NBL_EXIT_OK;
    nbl_table_start(&table, headings, sizeof headings / sizeof headings[0]);
    for (size_t i = 0; i < recipes->count && code == NBL_EXIT_OK; i++) {
        nbl_cache_stats stats;
        code = plan_recipe(api, values, recipes->items[i], &stats, fault);
        if (code != NBL_EXIT_OK)
            break;
        json_array_append_new(rows, json_row(values, recipes->items[i], &stats));
        table_row(&table, values, recipes->items[i], &stats);
    }
    if (code == NBL_EXIT_OK && values->json) {
        code = nbl_json_print(json_document(values, rows), fault);
        rows = NULL;
    } else if (code == NBL_EXIT_OK) {
        char text[32];
        printf("bf16: %s (%" PRIu64 " bytes)\n", nbl_bytes_text(bf16_bytes(values), text), bf16_bytes(values));
        nbl_table_print(&table);
    }
    nbl_table_free(&table);
    json_decref(rows);
    return code;
}

static int plan_run(int argc, char **argv, nbl_fault *fault)
{
    plan_values values = {.layers = 32,
                          .q_heads = 32,
                          .kv_heads = 8,
                          .k_dim = 128,
                          .kv_tokens = 8192,
                          .batch = 1,
                          .page_tokens = 64,
                          .recipe = NBL_POLICIES_SHOWN};
    const nbl_api_v1 *api = NULL;
    nbl_list recipes;
    int code = nbl_options_parse(&nbl_command_plan, argc, argv, &values, fault);
    if (code == NBL_EXIT_OK)
        code = nbl_recipes_split("recipe", values.recipe, &recipes, fault);
    if (code == NBL_EXIT_OK)
        code = nbl_session_api(&api, fault);
    if (code != NBL_EXIT_OK)
        return code;
    if (values.v_dim == 0)
        values.v_dim = values.k_dim;
    return print_plan(api, &values, &recipes, fault);
}
