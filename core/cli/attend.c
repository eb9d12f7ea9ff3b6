/* SPDX-License-Identifier: Apache-2.0 */
#include "generate.h"
#include "input.h"
#include "npy.h"
#include "output.h"
#include "pipeline.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Values of the options. */
typedef struct attend_values {
    nbl_session_options session;
    nbl_shape_options shape;
    const char *input, *q, *k, *v, *generate, *out;
    nbl_pipeline_options run;
    uint32_t layer, window;
    double sm_scale, soft_cap, sink, max_error;
    bool json;
} attend_values;

enum { DECODE_DEFAULT = 8 };
#define UNSET_U32 UINT32_MAX

static const nbl_option attend_options[] = {
    {"input", NBL_OPTION_TEXT, offsetof(attend_values, input), 0, 0, "FILE",
     "safetensors capture: layers.N.q, layers.N.k, layers.N.v"},
    {"layer", NBL_OPTION_U32, offsetof(attend_values, layer), 0, UNSET_U32 - 1.0, "N", "layer of the capture"},
    {"q", NBL_OPTION_TEXT, offsetof(attend_values, q), 0, 0, "FILE",
     ".npy [Tq, Hq, D]: queries of the last Tq positions"},
    {"k", NBL_OPTION_TEXT, offsetof(attend_values, k), 0, 0, "FILE", ".npy [T, Hkv, D]"},
    {"v", NBL_OPTION_TEXT, offsetof(attend_values, v), 0, 0, "FILE", ".npy [T, Hkv, Dv]"},
    {"generate", NBL_OPTION_TEXT, offsetof(attend_values, generate), 0, 0, "NAME", NBL_GENERATE_NAMES},
    NBL_SHAPE_OPTION_ROWS(attend_values),
    {"recipe", NBL_OPTION_TEXT, offsetof(attend_values, run.recipe), 0, 0, "NAME",
     NBL_RECIPES_KNOWN " or a policy (default kv4)"},
    {"page", NBL_OPTION_U32, offsetof(attend_values, run.page_tokens), 1, NBL_PAGE_TOKENS_MAX, "N",
     "tokens per page (default 64)"},
    {"window", NBL_OPTION_U32, offsetof(attend_values, window), 0, NBL_KV_TOKENS_MAX, "N",
     "keys a query sees, itself included; 0: all (default: the capture's)"},
    {"sm-scale", NBL_OPTION_F64, offsetof(attend_values, sm_scale), 0x1p-24, 0x1p16, "X",
     "factor of the logits (default: the capture's, else 1/sqrt(D))"},
    {"soft-cap", NBL_OPTION_F64, offsetof(attend_values, soft_cap), 0, 1e6, "X", "logit cap; 0: none (default 0)"},
    {"sink", NBL_OPTION_F64, offsetof(attend_values, sink), -1e4, 1e4, "X",
     "natural-log logit that joins every denominator (default: none)"},
    {"prefill-chunk", NBL_OPTION_U32, offsetof(attend_values, run.chunk_tokens), 1, NBL_KV_TOKENS_MAX, "N",
     "append and attend N tokens per call (default: all at once)"},
    {"decode", NBL_OPTION_U32, offsetof(attend_values, run.decode_tokens), 0, NBL_KV_TOKENS_MAX, "N",
     "decode the last N tokens again, one by one, and compare bytes (default 8 with --prefill-chunk, else 0)"},
    {"out", NBL_OPTION_TEXT, offsetof(attend_values, out), 0, 0, "FILE",
     "write O to .npy, or o and lse to .safetensors, as f32"},
    {"max-error", NBL_OPTION_F64, offsetof(attend_values, max_error), 0, 1e6, "X", "fail if rel_l2 is above X"},
    NBL_SESSION_OPTION_ROWS(attend_values),
    {"json", NBL_OPTION_FLAG, offsetof(attend_values, json), 0, 0, NULL, "print JSON"},
};

static int attend_run(int argc, char **argv, nbl_fault *fault);

const nbl_command nbl_command_attend = {
    "attend",
    "Quantizes K and V into a cache, attends, and measures the result against fp64.",
    "Attention is causal; query row i of Tq stands at position T - Tq + i. The reference uses the unquantized input.\n"
    "rel_l2 = |o - ref| / |ref|, gain = <o, ref> / <ref, ref>, cosines are per row (one head of one token).\n",
    attend_options,
    sizeof attend_options / sizeof attend_options[0],
    attend_run,
};

static int read_capture(const attend_values *values, nbl_problem *out_problem, nbl_fault *fault)
{
    nbl_capture *capture = nbl_alloc(1, sizeof *capture, fault);
    if (!capture)
        return NBL_EXIT_FAILED;
    int code = nbl_capture_open(values->input, capture, fault);
    if (code == NBL_EXIT_OK) {
        code = nbl_capture_read(capture, "layer", values->layer, out_problem, fault);
        nbl_capture_close(capture);
    }
    free(capture);
    return code;
}

static int read_problem(const attend_values *values, nbl_problem *out_problem, nbl_fault *fault)
{
    bool npy = values->q || values->k || values->v;
    int sources = (values->input ? 1 : 0) + (npy ? 1 : 0) + (values->generate ? 1 : 0);
    if (sources != 1)
        return nbl_fault_set(fault, NBL_EXIT_USAGE,
                             "--input, --q --k --v, --generate: exactly one source is needed, %d given", sources);
    if (!values->generate) {
        int code = nbl_shape_options_refuse(&values->shape, fault);
        if (code != NBL_EXIT_OK)
            return code;
    }
    if (values->input)
        return read_capture(values, out_problem, fault);
    if (values->layer != NBL_LAYER_ONLY)
        return nbl_fault_set(fault, NBL_EXIT_USAGE, "--layer: needs --input");
    if (values->generate) {
        nbl_shape_options shape = values->shape;
        nbl_shape_options_complete(&shape, NBL_Q_TOKENS_DEFAULT);
        return nbl_problem_make(&shape, values->generate, out_problem, fault);
    }
    if (!values->q || !values->k || !values->v)
        return nbl_fault_set(fault, NBL_EXIT_USAGE, "--%s: missing; --q, --k and --v go together",
                             !values->q   ? "q"
                             : !values->k ? "k"
                                          : "v");
    return nbl_problem_read_npy(values->q, values->k, values->v, out_problem, fault);
}

static void override_problem(const attend_values *values, nbl_problem *problem)
{
    if (values->window != UNSET_U32)
        problem->window = values->window;
    if (values->sm_scale > 0.0)
        problem->sm_scale = (float)values->sm_scale;
    problem->soft_cap = (float)values->soft_cap;
    problem->has_sink = !isnan(values->sink);
    problem->sink = problem->has_sink ? (float)values->sink : 0.0f;
}

static bool ends_with(const char *text, const char *suffix)
{
    size_t length = strlen(text), suffix_length = strlen(suffix);
    return length >= suffix_length && strcmp(text + length - suffix_length, suffix) == 0;
}

static int check_out(const char *out, nbl_fault *fault)
{
    if (!out || ends_with(out, ".npy") || ends_with(out, ".safetensors"))
        return nbl_file_check_out(out, fault);
    return nbl_fault_set(fault, NBL_EXIT_USAGE, "--out: \"%.300s\" ends neither in .npy nor in .safetensors", out);
}

static int write_out(const char *out, const nbl_problem *problem, const nbl_pipeline_result *result, nbl_fault *fault)
{
    static const char *const names[] = {"o", "lse"};
    uint64_t rows = (uint64_t)problem->q_tokens * problem->q_heads;
    nbl_array arrays[2] = {
        {.data = (const uint8_t *)result->o,
         .dtype = NBL_F32,
         .rank = 3,
         .shape = {problem->q_tokens, problem->q_heads, problem->v_dim},
         .count = rows * problem->v_dim},
        {.data = (const uint8_t *)result->lse,
         .dtype = NBL_F32,
         .rank = 2,
         .shape = {problem->q_tokens, problem->q_heads},
         .count = rows},
    };
    if (ends_with(out, ".npy"))
        return nbl_npy_write(out, &arrays[0], fault);
    return nbl_safetensors_write(out, names, arrays, 2, fault);
}

static json_t *shape_json(const nbl_problem *problem)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "nq", nbl_json_uint(problem->q_tokens), "hq",
                     nbl_json_uint(problem->q_heads), "hkv", nbl_json_uint(problem->kv_heads), "d",
                     nbl_json_uint(problem->k_dim), "dv", nbl_json_uint(problem->v_dim), "kv",
                     nbl_json_uint(problem->kv_tokens), "window", nbl_json_uint(problem->window));
}

static json_t *decode_json(const nbl_pipeline_result *result)
{
    if (result->decode_rows == 0)
        return json_null();
    return json_pack("{s:o, s:o, s:b}", "rows", nbl_json_uint(result->decode_rows), "differ",
                     nbl_json_uint(result->decode_differs), "equal", result->decode_differs == 0);
}

static json_t *result_json(const nbl_session *session, const attend_values *values, const nbl_problem *problem,
                           const nbl_pipeline_result *result, const nbl_accuracy *accuracy)
{
    json_t *measured = json_object();
    nbl_json_set_accuracy(measured, accuracy);
    json_t *memory = json_pack("{s:o, s:o, s:o, s:o}", "used_bytes", nbl_json_uint(result->used_bytes), "total_bytes",
                               nbl_json_uint(result->total_bytes), "bf16_bytes", nbl_json_uint(result->bf16_bytes),
                               "bits_per_element", nbl_json_real(nbl_pipeline_bits(problem, result)));
    json_t *time = json_pack("{s:o, s:o}", "append_ms", nbl_json_real(result->append_ms), "attend_ms",
                             nbl_json_real(result->attend_ms));
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "backend", session->backend, "recipe",
                     values->run.recipe, "source", problem->source, "layer",
                     values->input ? nbl_json_uint(problem->layer) : json_null(), "shape", shape_json(problem), "input",
                     nbl_json_quant(&result->quant), "accuracy", measured, "memory", memory, "time", time, "decode",
                     decode_json(result));
}

static void print_result(const nbl_session *session, const attend_values *values, const nbl_problem *problem,
                         const nbl_pipeline_result *result, const nbl_accuracy *accuracy)
{
    char used[32], full[32], figures[5][32];
    printf("backend   %s (%s)\n", session->backend, session->caps.isa);
    printf("problem   %s", problem->source);
    if (values->input)
        printf(" layer %u", problem->layer);
    printf(": nq %u, hq %u, hkv %u, d %u/%u, kv %u, window %u\n", problem->q_tokens, problem->q_heads,
           problem->kv_heads, problem->k_dim, problem->v_dim, problem->kv_tokens, problem->window);
    nbl_quant_print("input     ", &result->quant);
    printf("accuracy  %s: rel_l2 %s  gain %s  cos_mean %s  cos_min %s  lse_err %s\n", values->run.recipe,
           nbl_real_text(accuracy->rel_l2, 5, figures[0]), nbl_real_text(accuracy->gain, 6, figures[1]),
           nbl_real_text(accuracy->cos_mean, 6, figures[2]), nbl_real_text(accuracy->cos_min, 6, figures[3]),
           nbl_real_text(accuracy->lse_err, 5, figures[4]));
    printf("memory    %s in use, bf16 %s, %.3f bits per element\n", nbl_bytes_text(result->used_bytes, used),
           nbl_bytes_text(result->bf16_bytes, full), nbl_pipeline_bits(problem, result));
    printf("time      append %.3f ms, attend %.3f ms\n", result->append_ms, result->attend_ms);
    if (result->decode_rows > 0)
        printf("decode    %u of %u tokens equal to prefill, byte for byte\n",
               result->decode_rows - result->decode_differs, result->decode_rows);
}

static int judge(const attend_values *values, const nbl_pipeline_result *result, const nbl_accuracy *accuracy,
                 nbl_fault *fault)
{
    if (result->decode_differs > 0)
        return nbl_fault_set(fault, NBL_EXIT_FAILED, "--decode: %u of %u tokens differ from prefill",
                             result->decode_differs, result->decode_rows);
    return nbl_max_error_check(accuracy->rel_l2, values->max_error, fault);
}

static int attend_problem(nbl_session *session, const attend_values *values, const nbl_problem *problem,
                          nbl_fault *fault)
{
    nbl_pipeline_result result = {0};
    nbl_reference reference = {0};
    int code = nbl_pipeline_run(session, problem, &values->run, &result, fault);
    if (code == NBL_EXIT_OK)
        code = nbl_reference_compute(problem, &reference, fault);
    if (code == NBL_EXIT_OK && values->out)
        code = write_out(values->out, problem, &result, fault);
    if (code == NBL_EXIT_OK) {
        nbl_quant_warn(&result.quant);
        nbl_accuracy accuracy = nbl_accuracy_measure(problem, &reference, result.o, result.lse);
        if (values->json)
            code = nbl_json_print(result_json(session, values, problem, &result, &accuracy), fault);
        else
            print_result(session, values, problem, &result, &accuracy);
        if (code == NBL_EXIT_OK)
            code = judge(values, &result, &accuracy, fault);
    }
    nbl_reference_free(&reference);
    nbl_pipeline_result_free(&result);
    return code;
}

static int attend_run(int argc, char **argv, nbl_fault *fault)
{
    attend_values values = {.shape = NBL_SHAPE_OPTIONS_UNSET,
                            .run = {.recipe = "kv4", .page_tokens = 64, .decode_tokens = UNSET_U32},
                            .layer = NBL_LAYER_ONLY,
                            .window = UNSET_U32,
                            .sink = NAN,
                            .max_error = NAN};
    nbl_problem problem = {0};
    nbl_session session;
    int code = nbl_options_parse(&nbl_command_attend, argc, argv, &values, fault);
    if (code == NBL_EXIT_OK)
        code = check_out(values.out, fault);
    if (code == NBL_EXIT_OK)
        code = read_problem(&values, &problem, fault);
    if (code != NBL_EXIT_OK)
        return code;
    if (values.run.decode_tokens == UNSET_U32)
        values.run.decode_tokens = values.run.chunk_tokens ? DECODE_DEFAULT : 0;
    override_problem(&values, &problem);
    code = nbl_session_open(&session, &values.session, fault);
    if (code == NBL_EXIT_OK) {
        code = attend_problem(&session, &values, &problem, fault);
        nbl_session_close(&session);
    }
    nbl_problem_free(&problem);
    return code;
}
