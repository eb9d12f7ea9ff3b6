/* SPDX-License-Identifier: Apache-2.0 */
#include "predict.h"

#include "model.h"
#include "output.h"
#include "session.h"

#include <stdio.h>
#include <string.h>

static nbl_model_call call_of(const nbl_predict_request *request, const nbl_recipe *recipe, uint32_t op)
{
    const nbl_shape_options *shape = request->shape;
    return (nbl_model_call){.op = op,
                            .k_format = recipe->k_format,
                            .v_format = recipe->v_format,
                            .q_format = recipe->q_format,
                            .batch = request->batch,
                            .q_heads = shape->q_heads,
                            .kv_heads = shape->kv_heads,
                            .k_dim = shape->k_dim,
                            .v_dim = shape->v_dim ? shape->v_dim : shape->k_dim,
                            .kv_tokens = shape->kv_tokens,
                            .q_tokens = shape->q_tokens,
                            .is_full = request->full};
}

/* prefill is append, then attend. */
static int predict(const nbl_predict_request *request, const nbl_gpu *gpu, const nbl_recipe *recipe,
                   nbl_model_time *out)
{
    const bool appends = strcmp(request->op_name, "attend") != 0, attends = strcmp(request->op_name, "append") != 0;
    nbl_model_time append = {0};
    const nbl_model_call first = call_of(request, recipe, NBL_OP_APPEND);
    const nbl_model_call second = call_of(request, recipe, NBL_OP_ATTEND);
    int known = !appends || nbl_model_predict(gpu, &first, &append);
    *out = append;
    if (known && attends) {
        known = nbl_model_predict(gpu, &second, out);
        out->other_us += append.total_us;
        out->total_us += append.total_us;
    }
    return known;
}

static json_t *json_row(const nbl_predict_request *request, const char *recipe, const nbl_model_time *t)
{
    json_t *row = json_pack("{s:s, s:s, s:s, s:s}", "op", request->op_name, "recipe", recipe, "kernel", t->kernel,
                            "bound", t->bound);
    const struct {
        const char *name;
        double value;
    } times[] = {{"predicted_ms", t->total_us}, {"memory_ms", t->memory_us}, {"issue_ms", t->issue_us},
                 {"tensor_ms", t->tensor_us},   {"ex2_ms", t->ex2_us},       {"other_ms", t->other_us}};
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++)
        json_object_set_new(row, times[i].name, nbl_json_real(1e-3 * times[i].value));
    json_object_set_new(row, "filled", json_boolean(t->is_filled));
    return row;
}

static void table_row(nbl_table *table, const char *recipe, const nbl_model_time *t)
{
    const double times[] = {t->total_us, t->memory_us, t->issue_us, t->tensor_us, t->ex2_us, t->other_us};
    nbl_table_add(table, "%s", recipe);
    nbl_table_add(table, "%s", t->kernel);
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++)
        nbl_table_add(table, "%.4f", 1e-3 * times[i]);
    nbl_table_add(table, "%s%s", t->bound, t->is_filled ? "" : ", not filled");
}

static int predict_recipe(const nbl_api_v1 *api, const nbl_predict_request *request, const nbl_gpu *gpu,
                          const char *name, nbl_model_time *out, nbl_fault *fault)
{
    const nbl_shape_options *shape = request->shape;
    nbl_recipe recipe = NBL_INIT(nbl_recipe);
    nbl_error err = NBL_INIT(nbl_error);
    if (api->recipe_parse(name, shape->k_dim, shape->v_dim ? shape->v_dim : shape->k_dim, &recipe, &err) != NBL_OK)
        return nbl_fault_from_api(fault, NBL_EXIT_USAGE, "--recipe", &err);
    if (!predict(request, gpu, &recipe, out))
        return nbl_fault_set(fault, NBL_EXIT_USAGE,
                             "--predict: recipe %.64s has no counts (known: kv4, mxkv4, k4v8, qk4v8, kv8, bf16, fp16)",
                             name);
    return NBL_EXIT_OK;
}

static void print_table(const nbl_predict_request *request, const nbl_gpu *gpu, const nbl_table *table)
{
    const nbl_shape_options *shape = request->shape;
    printf("%s predicted for %s: batch %u, hq %u, hkv %u, d %u/%u, kv %u, nq %u%s\n", request->op_name, gpu->title,
           request->batch, shape->q_heads, shape->kv_heads, shape->k_dim, shape->v_dim ? shape->v_dim : shape->k_dim,
           shape->kv_tokens, shape->q_tokens,
           gpu->is_measured ? "" : "; from published rates, nothing was run on such a GPU");
    nbl_table_print(table);
}

static int check_request(const nbl_predict_request *request, const nbl_gpu *gpu, nbl_fault *fault)
{
    if (!gpu)
        return nbl_fault_set(fault, NBL_EXIT_USAGE, "--predict: unknown GPU \"%.64s\" (known: %s)", request->gpu,
                             NBL_GPU_NAMES);
    if (strcmp(request->op_name, "attend") != 0 && strcmp(request->op_name, "append") != 0 &&
        strcmp(request->op_name, "prefill") != 0)
        return nbl_fault_set(fault, NBL_EXIT_USAGE, "--predict: op %.64s has no model (known: attend, append, prefill)",
                             request->op_name);
    return NBL_EXIT_OK;
}

int nbl_predict_run(const nbl_predict_request *request, const nbl_list *recipes, nbl_fault *fault)
{
    static const char *const headings[] = {"recipe",    "kernel", "predicted_ms", "memory_ms", "issue_ms",
                                           "tensor_ms", "ex2_ms", "other_ms",     "bound"};
    const nbl_gpu *gpu = nbl_gpu_find(request->gpu);
    const nbl_api_v1 *api = NULL;
    int code = check_request(request, gpu, fault);
    if (code == NBL_EXIT_OK)
        code = nbl_session_api(&api, fault);
    if (code != NBL_EXIT_OK)
        return code;
    nbl_table table;
    json_t *rows = json_array();
    nbl_table_start(&table, headings, sizeof headings / sizeof headings[0]);
    for (size_t i = 0; i < recipes->count && code == NBL_EXIT_OK; i++) {
        nbl_model_time time = {0};
        code = predict_recipe(api, request, gpu, recipes->items[i], &time, fault);
        if (code != NBL_EXIT_OK)
            break;
        table_row(&table, recipes->items[i], &time);
        json_array_append_new(rows, json_row(request, recipes->items[i], &time));
    }
    if (code == NBL_EXIT_OK && request->json) {
        code = nbl_json_print(
            json_pack("{s:s, s:b, s:O}", "gpu", gpu->name, "measured", gpu->is_measured, "rows", rows), fault);
    } else if (code == NBL_EXIT_OK) {
        print_table(request, gpu, &table);
    }
    nbl_table_free(&table);
    json_decref(rows);
    return code;
}
