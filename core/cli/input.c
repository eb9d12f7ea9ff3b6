/* SPDX-License-Identifier: Apache-2.0 */
#include "input.h"

#include "npy.h"
#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double sm_scale_min = 0x1p-24, sm_scale_max = 0x1p16; /* NUM 5.1 */

/* True if name is layers.N.k; other tensors of a file are no concern of ours. */
static bool layer_of_key_tensor(const char *name, uint32_t *out_layer)
{
    static const char prefix[] = "layers.";
    char digits[16];
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return false;
    name += sizeof prefix - 1;
    const char *dot = strchr(name, '.');
    if (!dot || strcmp(dot, ".k") != 0 || (size_t)(dot - name) >= sizeof digits)
        return false;
    memcpy(digits, name, (size_t)(dot - name));
    digits[dot - name] = '\0';
    uint64_t layer = 0;
    if (!nbl_number_parse_u64(digits, 0, UINT32_MAX - 1, &layer))
        return false;
    *out_layer = (uint32_t)layer;
    return true;
}

static int compare_u32(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

static int list_layers(const char *path, nbl_capture *capture, nbl_fault *fault)
{
    const char *name;
    json_t *value;
    json_object_foreach (capture->tensors.header, name, value) {
        uint32_t layer = 0;
        if (!layer_of_key_tensor(name, &layer))
            continue;
        if (capture->layer_count == NBL_LAYERS_MAX)
            return nbl_fault_set(fault, NBL_EXIT_INPUT, "%.300s: more than %u layers", path, NBL_LAYERS_MAX);
        capture->layers[capture->layer_count++] = layer;
    }
    if (capture->layer_count == 0)
        return nbl_fault_set(fault, NBL_EXIT_INPUT, "%.300s: holds no tensor layers.N.k", path);
    qsort(capture->layers, capture->layer_count, sizeof capture->layers[0], compare_u32);
    return NBL_EXIT_OK;
}

int nbl_capture_open(const char *path, nbl_capture *out_capture, nbl_fault *fault)
{
    *out_capture = (nbl_capture){0};
    int code = nbl_file_read(path, &out_capture->file, fault);
    if (code != NBL_EXIT_OK)
        return code;
    code = nbl_safetensors_parse(path, out_capture->file.bytes, out_capture->file.size, &out_capture->tensors, fault);
    if (code == NBL_EXIT_OK)
        code = list_layers(path, out_capture, fault);
    if (code != NBL_EXIT_OK)
        nbl_capture_close(out_capture);
    return code;
}

void nbl_capture_close(nbl_capture *capture)
{
    nbl_safetensors_free(&capture->tensors);
    nbl_file_free(&capture->file);
}

static bool fits_u32(const nbl_array *array)
{
    for (uint32_t i = 0; i < array->rank; i++) {
        if (array->shape[i] > UINT32_MAX)
            return false;
    }
    return true;
}

/* Checks three arrays against each other and converts them. */
static int fill_problem(const char *name, const nbl_array *q, const nbl_array *k, const nbl_array *v,
                        nbl_problem *problem, nbl_fault *fault)
{
    if (q->rank != 3 || k->rank != 3 || v->rank != 3)
        return nbl_fault_set(fault, NBL_EXIT_INPUT, "%.300s: ranks of q, k, v are %u, %u, %u; all must be 3", name,
                             q->rank, k->rank, v->rank);
    if (!fits_u32(q) || !fits_u32(k) || !fits_u32(v))
        return nbl_fault_set(fault, NBL_EXIT_INPUT, "%.300s: a dimension is over %u", name, UINT32_MAX);
    if (k->shape[0] != v->shape[0] || k->shape[1] != v->shape[1])
        return nbl_fault_set(fault, NBL_EXIT_INPUT, "%.300s: k and v differ in tokens or heads", name);
    if (q->shape[2] != k->shape[2])
        return nbl_fault_set(fault, NBL_EXIT_INPUT, "%.300s: q and k differ in their head dimension", name);
    problem->q_tokens = (uint32_t)q->shape[0];
    problem->q_heads = (uint32_t)q->shape[1];
    problem->kv_tokens = (uint32_t)k->shape[0];
    problem->kv_heads = (uint32_t)k->shape[1];
    problem->k_dim = (uint32_t)k->shape[2];
    problem->v_dim = (uint32_t)v->shape[2];
    nbl_fault misfit = {0};
    if (nbl_problem_check(problem, NBL_EXIT_INPUT, &misfit) != NBL_EXIT_OK)
        return nbl_fault_set(fault, NBL_EXIT_INPUT, "%.300s: %.600s", name, misfit.text);
    int code = nbl_problem_alloc(problem, fault);
    if (code != NBL_EXIT_OK)
        return code;
    nbl_array_to_f32(q, problem->q);
    nbl_array_to_f32(k, problem->k);
    nbl_array_to_f32(v, problem->v);
    return NBL_EXIT_OK;
}

static int read_metadata(const nbl_capture *capture, nbl_problem *problem, nbl_fault *fault)
{
    const char *name = capture->tensors.name;
    const char *scale = nbl_safetensors_metadata(&capture->tensors, "sm_scale");
    double sm_scale = 0.0;
    if (scale && !nbl_number_parse_f64(scale, sm_scale_min, sm_scale_max, &sm_scale))
        return nbl_fault_set(fault, NBL_EXIT_INPUT,
                             "%.300s: metadata sm_scale \"%.64s\" is not a number in [2^-24, 2^16]", name, scale);
    problem->sm_scale = (float)sm_scale;
    char key[64];
    snprintf(key, sizeof key, "layers.%u.window", problem->layer);
    const char *window = nbl_safetensors_metadata(&capture->tensors, key);
    uint64_t keys = 0;
    if (window && !nbl_number_parse_u64(window, 0, NBL_KV_TOKENS_MAX, &keys))
        return nbl_fault_set(fault, NBL_EXIT_INPUT, "%.300s: metadata %s \"%.64s\" is not a whole number from 0 to %u",
                             name, key, window, NBL_KV_TOKENS_MAX);
    problem->window = (uint32_t)keys;
    return NBL_EXIT_OK;
}

static int pick_layer(const nbl_capture *capture, const char *option, uint32_t layer, uint32_t *out_layer,
                      nbl_fault *fault)
{
    char list[256] = "";
    size_t used = 0;
    if (layer == NBL_LAYER_ONLY && capture->layer_count == 1) {
        *out_layer = capture->layers[0];
        return NBL_EXIT_OK;
    }
    for (uint32_t i = 0; i < capture->layer_count; i++) {
        if (capture->layers[i] == layer) {
            *out_layer = layer;
            return NBL_EXIT_OK;
        }
        if (used + 16 < sizeof list)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%u", i ? ", " : "", capture->layers[i]);
    }
    if (layer == NBL_LAYER_ONLY)
        return nbl_fault_set(fault, NBL_EXIT_USAGE, "--%s: missing; the file holds layers %s", option, list);
    return nbl_fault_set(fault, NBL_EXIT_USAGE, "--%s: no layer %u; the file holds layers %s", option, layer, list);
}

int nbl_capture_read(const nbl_capture *capture, const char *option, uint32_t layer, nbl_problem *out_problem,
                     nbl_fault *fault)
{
    nbl_problem problem = {.source = "capture"};
    int code = pick_layer(capture, option, layer, &problem.layer, fault);
    if (code == NBL_EXIT_OK)
        code = read_metadata(capture, &problem, fault);
    nbl_array arrays[3] = {{0}};
    for (int i = 0; i < 3 && code == NBL_EXIT_OK; i++) {
        char name[64];
        snprintf(name, sizeof name, "layers.%u.%c", problem.layer, "qkv"[i]);
        code = nbl_safetensors_find(&capture->tensors, name, &arrays[i], fault);
    }
    if (code == NBL_EXIT_OK)
        code = fill_problem(capture->tensors.name, &arrays[0], &arrays[1], &arrays[2], &problem, fault);
    if (code == NBL_EXIT_OK)
        *out_problem = problem;
    return code;
}

int nbl_problem_read_npy(const char *q_path, const char *k_path, const char *v_path, nbl_problem *out_problem,
                         nbl_fault *fault)
{
    const char *paths[3] = {q_path, k_path, v_path};
    nbl_file files[3] = {{0}};
    nbl_array arrays[3] = {{0}};
    nbl_problem problem = {.source = "npy"};
    int code = NBL_EXIT_OK;
    for (int i = 0; i < 3 && code == NBL_EXIT_OK; i++) {
        code = nbl_file_read(paths[i], &files[i], fault);
        if (code == NBL_EXIT_OK)
            code = nbl_npy_parse(paths[i], files[i].bytes, files[i].size, &arrays[i], fault);
    }
    if (code == NBL_EXIT_OK)
        code = fill_problem(q_path, &arrays[0], &arrays[1], &arrays[2], &problem, fault);
    for (int i = 0; i < 3; i++)
        nbl_file_free(&files[i]);
    if (code == NBL_EXIT_OK)
        *out_problem = problem;
    return code;
}
