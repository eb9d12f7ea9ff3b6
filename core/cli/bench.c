/* SPDX-License-Identifier: Apache-2.0 */
#include "file.h"
#include "generate.h"
#include "model.h"
#include "output.h"
#include "pipeline.h"
#include "predict.h"
#include "progress.h"
#include "timer.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WARMUP_RUNS = 2,
    DEVICE_CALLS_PER_RUN = 20, /* on a device with its own queue: hides the wait at the end */
    FILL_TOKENS = 2048,
    HOST_LAYERS_MAX = 64,
    DEVICE_LAYERS_MAX = 1024,
    DISTINCT_INPUTS = 1 << 22,
    SEED_INPUT = 11
};

/* Values of the options. */
typedef struct bench_values {
    nbl_session_options session;
    nbl_shape_options shape;
    const char *op_name, *recipe, *predict;
    uint32_t batch, page_tokens, runs, calls;
    bool full, cold, json;
} bench_values;

static const nbl_option bench_options[] = {
    {"op", NBL_OPTION_TEXT, offsetof(bench_values, op_name), 0, 0, "NAME",
     "attend, append, append_coded, prefill, gather, copy_pages or transcode (default attend)"},
    {"recipe", NBL_OPTION_TEXT, offsetof(bench_values, recipe), 0, 0, "LIST",
     NBL_RECIPES_KNOWN ", run in turn (default kv4)"},
    {"batch", NBL_OPTION_U32, offsetof(bench_values, batch), 1, 65536, "N", "sequences (default 1)"},
    NBL_SHAPE_OPTION_ROWS(bench_values),
    {"page", NBL_OPTION_U32, offsetof(bench_values, page_tokens), 1, NBL_PAGE_TOKENS_MAX, "N",
     "tokens per page (default 64)"},
    {"runs", NBL_OPTION_U32, offsetof(bench_values, runs), 1, 100000, "N", "timed runs of each recipe (default 10)"},
    {"calls", NBL_OPTION_U32, offsetof(bench_values, calls), 1, 100000, "N",
     "calls of each run (default 1, on a device with a queue 20)"},
    {"full", NBL_OPTION_FLAG, offsetof(bench_values, full), 0, 0, NULL,
     "every query token sees all tokens: not causal"},
    {"cold", NBL_OPTION_FLAG, offsetof(bench_values, cold), 0, 0, NULL,
     "go round copies of the cache that exceed the last-level cache together"},
    {"predict", NBL_OPTION_TEXT, offsetof(bench_values, predict), 0, 0, "GPU",
     "run nothing: what a model says of " NBL_GPU_NAMES},
    NBL_SESSION_OPTION_ROWS(bench_values),
    {"json", NBL_OPTION_FLAG, offsetof(bench_values, json), 0, 0, NULL, "print JSON"},
};

static int bench_run(int argc, char **argv, nbl_fault *fault);

const nbl_command nbl_command_bench = {
    "bench",
    "Times one operation on a paged pool with shuffled pages.",
    "attend  --nq query tokens of each sequence over its --kv tokens\n"
    "append  writes the last --nq tokens of each sequence\n"
    "append_coded  the same, given as codes; of nvfp4 and fp8_e4m3\n"
    "prefill  both: append, then attend\n"
    "gather  dequantizes all tokens, transforms left in\n"
    "copy_pages, transcode  all pages of the sequences to other pages; transcode reads int8\n"
    "tokens_per_s counts cached tokens read or written; kv_bytes are their codes and scales of the recipe; gb_per_s = "
    "kv_bytes / median.\n"
    "moved_bytes are all bytes read and written, inputs and outputs included; moved_gb_per_s = moved_bytes / median.\n"
    "Inputs and outputs are bf16, or codes. One region of the recipe's formats; first tokens kept in int8 play no "
    "part.\n"
    "On a device the calls of a run are queued first and then timed by the device's events.\n"
    "Threads of sim are not pinned to cores.\n"
    "--predict: time of the CUDA kernels from counts of bytes, instructions and products and a GPU's rates; the "
    "largest\n"
    "of memory, issue, tensor and ex2 is the main kernel's, other that of the rest. docs/performance.md says how good "
    "it is.\n",
    bench_options,
    sizeof bench_options / sizeof bench_options[0],
    bench_run,
};

/* One recipe: its pool filled, its arguments ready. */
typedef struct bench_case {
    nbl_session *session;
    nbl_timer *timer;
    const bench_values *values;
    const char *name;
    nbl_policy policy;
    nbl_kv_shape shape;
    nbl_page_layout layout;        /* of the recipe's formats */
    nbl_page_layout source_layout; /* of the pages that hold the tokens: int8 for transcode, else the same */
    nbl_region regions[2];         /* pages with the tokens; pages that page operations write */
    nbl_pool pool;
    nbl_centers centers;
    uint32_t pages_per_sequence;
    uint32_t input_tokens; /* rows of k and v */
    uint32_t layer;        /* the next run's */
    void *codes[2], *scales[2], *center_codes, *center_exponents, *center_shifts, *center_rows;
    void *slots, *write_slots, *page_table, *target_pages, *page_tokens, *kv_len, *q_indptr, *one_indptr;
    void *q, *k, *v, *o, *lse, *k_out, *v_out;
    void *append_workspace, *attend_workspace;
    uint64_t append_workspace_bytes, attend_workspace_bytes;
    double *times_s;
} bench_case;

static uint32_t v_dim_of(const bench_values *values)
{
    return values->shape.v_dim ? values->shape.v_dim : values->shape.k_dim;
}

static bool is_op(const bench_values *values, const char *name)
{
    return strcmp(values->op_name, name) == 0;
}

static uint64_t tokens_total(const bench_values *values)
{
    return (uint64_t)values->batch * values->shape.kv_tokens;
}

/* Tokens one call reads or writes. */
static uint64_t tokens_per_call(const bench_values *values)
{
    bool appends = is_op(values, "append") || is_op(values, "append_coded");
    return appends ? (uint64_t)values->batch * values->shape.q_tokens : tokens_total(values);
}

static uint64_t page_bytes_of(const nbl_page_layout *layout)
{
    return layout->code_page_bytes + layout->scale_page_bytes;
}

static uint64_t bytes_per_call(const bench_case *c)
{
    return tokens_per_call(c->values) * page_bytes_of(&c->layout) / c->values->page_tokens;
}

/* Operations from pages to pages. */
static bool is_page_op(const bench_values *values)
{
    return is_op(values, "copy_pages") || is_op(values, "transcode");
}

/* Bytes that one call must read and write, everything once. */
static uint64_t moved_per_call(const bench_case *c)
{
    const bench_values *values = c->values;
    uint64_t row_bytes = (uint64_t)(values->shape.k_dim + v_dim_of(values)) * sizeof(uint16_t);
    if (is_page_op(values))
        return (uint64_t)c->pages_per_sequence * values->batch *
               (page_bytes_of(&c->layout) + page_bytes_of(&c->source_layout));
    if (is_op(values, "append_coded"))
        return 2 * bytes_per_call(c);
    uint64_t q_rows = (uint64_t)values->batch * values->shape.q_tokens * values->shape.q_heads;
    uint64_t kv_rows = tokens_per_call(values) * values->shape.kv_heads;
    uint64_t rows = is_op(values, "attend") ? q_rows : is_op(values, "prefill") ? q_rows + kv_rows : kv_rows;
    return bytes_per_call(c) * (is_op(values, "prefill") ? 2 : 1) + rows * row_bytes;
}

static nbl_tensor bf16_rows(void *data, uint64_t tokens, uint32_t heads, uint32_t dim)
{
    return (nbl_tensor){.data = data, .dtype = NBL_BF16, .rank = 3, .shape = {tokens, heads, dim}};
}

/* Layers are the copies that --cold goes round. */
static uint32_t layers_needed(const bench_case *c, uint64_t pages)
{
    if (!c->values->cold || is_page_op(c->values))
        return 1;
    uint64_t cache_bytes = pages * page_bytes_of(&c->layout);
    uint64_t layers = 2 * nbl_timer_cache_bytes(c->timer) / cache_bytes + 2;
    uint64_t most = c->session->stream.kind == NBL_STREAM_HOST ? HOST_LAYERS_MAX : DEVICE_LAYERS_MAX;
    return (uint32_t)(layers < most ? layers : most);
}

static int make_layouts(bench_case *c, nbl_fault *fault)
{
    nbl_error err = NBL_INIT(nbl_error);
    const bool transcode = is_op(c->values, "transcode");
    const nbl_api_v1 *api = c->session->api;
    c->layout = c->source_layout = (nbl_page_layout)NBL_INIT(nbl_page_layout);
    nbl_status status = api->kv_layout(&c->shape, c->policy.k_format, c->policy.v_format, &c->layout, &err);
    if (status == NBL_OK)
        status = api->kv_layout(&c->shape, transcode ? NBL_INT8 : c->policy.k_format,
                                transcode ? NBL_INT8 : c->policy.v_format, &c->source_layout, &err);
    return status == NBL_OK ? NBL_EXIT_OK : nbl_fault_from_api(fault, NBL_EXIT_USAGE, "layout", &err);
}

static int make_shape(bench_case *c, nbl_fault *fault)
{
    const bench_values *values = c->values;
    const nbl_problem shape = {.kv_heads = values->shape.kv_heads,
                               .k_dim = values->shape.k_dim,
                               .v_dim = v_dim_of(values),
                               .kv_tokens = values->shape.kv_tokens};
    nbl_cache_config config;
    int code = nbl_cache_config_make(c->session->api, &shape, c->name, values->page_tokens, &config, &c->policy, fault);
    if (code != NBL_EXIT_OK)
        return code;
    if (config.rule_count > 0)
        return nbl_fault_set(fault, NBL_EXIT_USAGE,
                             "--recipe: \"%.300s\" is a policy; bench takes recipes, whose pages are all alike",
                             c->name);
    c->shape = config.shape;
    code = make_layouts(c, fault);
    if (code != NBL_EXIT_OK)
        return code;
    c->pages_per_sequence = (values->shape.kv_tokens + values->page_tokens - 1) / values->page_tokens;
    uint64_t pages = (uint64_t)c->pages_per_sequence * values->batch;
    if (pages > INT32_MAX || tokens_total(values) > INT32_MAX)
        return nbl_fault_set(fault, NBL_EXIT_USAGE, "--batch: %" PRIu64 " tokens in all; at most %d are allowed",
                             tokens_total(values), INT32_MAX);
    c->shape.layers = layers_needed(c, pages);
    return NBL_EXIT_OK;
}

/* Region i: pages with the tokens, or those that page operations write. */
static int make_region(bench_case *c, uint32_t i, nbl_fault *fault)
{
    const nbl_page_layout *layout = i == 0 ? &c->source_layout : &c->layout;
    uint32_t pages = c->pages_per_sequence * c->values->batch;
    bool is_source = i == 0 && is_op(c->values, "transcode");
    nbl_region *region = &c->regions[i];
    *region = (nbl_region){.k_format = is_source ? NBL_INT8 : c->policy.k_format,
                           .v_format = is_source ? NBL_INT8 : c->policy.v_format,
                           .first_page = i * pages,
                           .page_count = pages,
                           .code_page_stride = layout->code_page_bytes,
                           .code_layer_stride = layout->code_page_bytes * pages,
                           .scale_page_stride = layout->scale_page_bytes,
                           .scale_layer_stride = layout->scale_page_bytes * pages};
    int code = nbl_session_alloc(c->session, region->code_layer_stride * c->shape.layers, &c->codes[i], fault);
    if (code == NBL_EXIT_OK && region->scale_layer_stride > 0)
        code = nbl_session_alloc(c->session, region->scale_layer_stride * c->shape.layers, &c->scales[i], fault);
    region->codes = c->codes[i];
    region->scales = c->scales[i];
    return code;
}

static int make_pool(bench_case *c, nbl_fault *fault)
{
    c->pool = (nbl_pool)NBL_INIT(nbl_pool);
    c->pool.shape = &c->shape;
    c->pool.regions = c->regions;
    c->pool.region_count = is_page_op(c->values) ? 2 : 1;
    int code = NBL_EXIT_OK;
    for (uint32_t i = 0; i < c->pool.region_count && code == NBL_EXIT_OK; i++)
        code = make_region(c, i, fault);
    return code;
}

/* Where page operations write, and how many tokens of each page. */
static int make_targets(bench_case *c, nbl_fault *fault)
{
    uint32_t pages = c->pages_per_sequence * c->values->batch;
    if (!is_page_op(c->values))
        return NBL_EXIT_OK;
    int32_t *ids = nbl_alloc(pages, sizeof *ids, fault);
    int32_t *counts = nbl_alloc(pages, sizeof *counts, fault);
    int code = ids && counts ? NBL_EXIT_OK : NBL_EXIT_FAILED;
    if (code == NBL_EXIT_OK) {
        nbl_generate_permutation(ids, pages, c->values->shape.seed + 1);
        for (uint32_t i = 0; i < pages; i++) {
            ids[i] += (int32_t)pages;
            counts[i] = (int32_t)c->values->page_tokens;
        }
        code = nbl_session_upload(c->session, ids, pages * sizeof *ids, &c->target_pages, fault);
    }
    if (code == NBL_EXIT_OK)
        code = nbl_session_upload(c->session, counts, pages * sizeof *counts, &c->page_tokens, fault);
    free(ids);
    free(counts);
    return code;
}

static int make_centers(bench_case *c, nbl_fault *fault)
{
    if (!c->shape.centering)
        return NBL_EXIT_OK;
    uint64_t rows = c->values->batch;
    int32_t *row_ids = nbl_alloc(rows, sizeof *row_ids, fault);
    if (!row_ids)
        return NBL_EXIT_FAILED;
    for (uint64_t i = 0; i < rows; i++)
        row_ids[i] = (int32_t)i;
    uint64_t vectors = rows * c->shape.kv_heads;
    int code = nbl_session_alloc(c->session, vectors * c->shape.k_dim, &c->center_codes, fault);
    if (code == NBL_EXIT_OK)
        code = nbl_session_alloc(c->session, vectors, &c->center_exponents, fault);
    if (code == NBL_EXIT_OK)
        code = nbl_session_alloc(c->session, vectors * c->shape.k_dim, &c->center_shifts, fault);
    if (code == NBL_EXIT_OK)
        code = nbl_session_upload(c->session, row_ids, rows * sizeof *row_ids, &c->center_rows, fault);
    free(row_ids);
    c->centers = (nbl_centers){.codes = c->center_codes,
                               .exponents = c->center_exponents,
                               .shifts = c->center_shifts,
                               .rows = c->center_rows,
                               .row_count = c->values->batch};
    return code;
}

/* Page table, and the slots of all tokens, from one shuffle of the pages. */
static int make_slots(bench_case *c, nbl_fault *fault)
{
    const bench_values *values = c->values;
    uint32_t kv = values->shape.kv_tokens, page = values->page_tokens, nq = values->shape.q_tokens;
    uint32_t pages = c->pages_per_sequence * values->batch;
    int32_t *table = nbl_alloc(pages, sizeof *table, fault);
    int64_t *slots = nbl_alloc(tokens_total(values), sizeof *slots, fault);
    int64_t *writes = nbl_alloc((uint64_t)values->batch * nq, sizeof *writes, fault);
    int code = table && slots && writes ? NBL_EXIT_OK : NBL_EXIT_FAILED;
    if (code == NBL_EXIT_OK) {
        nbl_generate_permutation(table, pages, values->shape.seed);
        for (uint64_t b = 0; b < values->batch; b++) {
            const int32_t *row = table + b * c->pages_per_sequence;
            for (uint32_t t = 0; t < kv; t++)
                slots[b * kv + t] = (int64_t)row[t / page] * page + t % page;
            memcpy(writes + b * nq, slots + b * kv + kv - nq, nq * sizeof *writes);
        }
        code = nbl_session_upload(c->session, table, pages * sizeof *table, &c->page_table, fault);
    }
    if (code == NBL_EXIT_OK)
        code = nbl_session_upload(c->session, slots, tokens_total(values) * sizeof *slots, &c->slots, fault);
    if (code == NBL_EXIT_OK)
        code = nbl_session_upload(c->session, writes, (uint64_t)values->batch * nq * sizeof *writes, &c->write_slots,
                                  fault);
    free(table);
    free(slots);
    free(writes);
    return code;
}

static int make_lengths(bench_case *c, nbl_fault *fault)
{
    const bench_values *values = c->values;
    uint64_t count = values->batch + 1u;
    int32_t *indptr = nbl_alloc(count, sizeof *indptr, fault);
    int32_t *lengths = nbl_alloc(count, sizeof *lengths, fault);
    int code = indptr && lengths ? NBL_EXIT_OK : NBL_EXIT_FAILED;
    for (uint32_t b = 0; code == NBL_EXIT_OK && b < count; b++) {
        indptr[b] = (int32_t)(b * values->shape.q_tokens);
        lengths[b] = (int32_t)values->shape.kv_tokens;
    }
    if (code == NBL_EXIT_OK)
        code = nbl_session_upload(c->session, indptr, count * sizeof *indptr, &c->q_indptr, fault);
    if (code == NBL_EXIT_OK)
        code = nbl_session_upload(c->session, lengths, values->batch * sizeof *lengths, &c->kv_len, fault);
    free(indptr);
    free(lengths);
    return code;
}

/* Random rows; from some size on the same numbers again, since making them takes longer than any run. */
static int make_rows(bench_case *c, uint64_t count, uint64_t stream, void **out_rows, nbl_fault *fault)
{
    uint64_t distinct = count < DISTINCT_INPUTS ? count : DISTINCT_INPUTS;
    float *values = nbl_alloc(distinct, sizeof *values, fault);
    uint16_t *rounded = nbl_alloc(count, sizeof *rounded, fault);
    int code = values && rounded ? NBL_EXIT_OK : NBL_EXIT_FAILED;
    if (code == NBL_EXIT_OK) {
        nbl_generate_gaussian(values, distinct, c->values->shape.seed, SEED_INPUT + stream);
        nbl_f32_to_bf16(values, distinct, rounded);
        for (uint64_t i = distinct; i < count; i++)
            rounded[i] = rounded[i - distinct];
        code = nbl_session_upload(c->session, rounded, count * sizeof *rounded, out_rows, fault);
    }
    free(values);
    free(rounded);
    return code;
}

static int make_tensors(bench_case *c, nbl_fault *fault)
{
    const bench_values *values = c->values;
    uint64_t q_rows = (uint64_t)values->batch * values->shape.q_tokens;
    uint64_t heads = values->shape.q_heads, v_dim = v_dim_of(values);
    uint32_t fill = values->shape.kv_tokens < FILL_TOKENS ? values->shape.kv_tokens : FILL_TOKENS;
    c->input_tokens = q_rows > fill ? (uint32_t)q_rows : fill;
    uint64_t kv_rows = (uint64_t)c->input_tokens * values->shape.kv_heads;
    int code = make_rows(c, kv_rows * values->shape.k_dim, 1, &c->k, fault);
    if (code == NBL_EXIT_OK)
        code = make_rows(c, kv_rows * v_dim, 2, &c->v, fault);
    if (code == NBL_EXIT_OK && (is_op(values, "attend") || is_op(values, "prefill"))) {
        code = make_rows(c, q_rows * heads * values->shape.k_dim, 0, &c->q, fault);
        if (code == NBL_EXIT_OK)
            code = nbl_session_alloc(c->session, q_rows * heads * v_dim * sizeof(uint16_t), &c->o, fault);
        if (code == NBL_EXIT_OK)
            code = nbl_session_alloc(c->session, q_rows * heads * sizeof(float), &c->lse, fault);
    }
    if (code != NBL_EXIT_OK || !is_op(values, "gather"))
        return code;
    uint64_t out_rows = tokens_total(values) * values->shape.kv_heads;
    code = nbl_session_alloc(c->session, out_rows * values->shape.k_dim * sizeof(uint16_t), &c->k_out, fault);
    if (code == NBL_EXIT_OK)
        code = nbl_session_alloc(c->session, out_rows * v_dim * sizeof(uint16_t), &c->v_out, fault);
    return code;
}

static int make_workspace(bench_case *c, uint32_t op, uint32_t tokens, void **out_memory, uint64_t *out_bytes,
                          nbl_fault *fault)
{
    const bench_values *values = c->values;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_op_desc desc = NBL_INIT(nbl_op_desc);
    desc.shape = &c->shape;
    desc.op = op;
    desc.k_format = c->policy.k_format;
    desc.v_format = c->policy.v_format;
    desc.q_format = c->policy.q_format;
    desc.q_heads = values->shape.q_heads;
    desc.in_dtype = NBL_BF16;
    desc.out_dtype = NBL_BF16;
    desc.features = op == NBL_OP_ATTEND ? NBL_FEATURE_CAUSAL | NBL_FEATURE_LSE : 0;
    desc.batch_max = values->batch;
    desc.q_tokens_max = tokens;
    desc.q_len_max = values->shape.q_tokens;
    desc.kv_len_max = values->shape.kv_tokens;
    if (c->session->api->workspace_size(c->session->device, &desc, out_bytes, &err) != NBL_OK)
        return nbl_fault_from_api(fault, NBL_EXIT_FAILED, "workspace", &err);
    return *out_bytes > 0 ? nbl_session_alloc(c->session, *out_bytes, out_memory, fault) : NBL_EXIT_OK;
}

static int append_call(bench_case *c, nbl_append_args *args, nbl_fault *fault)
{
    nbl_error err = NBL_INIT(nbl_error);
    args->pool = &c->pool;
    args->workspace = c->append_workspace;
    args->workspace_bytes = c->append_workspace_bytes;
    args->stream = c->session->stream;
    if (c->session->api->append(c->session->device, args, &err) != NBL_OK)
        return nbl_fault_from_api(fault, NBL_EXIT_FAILED, "append", &err);
    return NBL_EXIT_OK;
}

/* Tokens [first, first + count) of one sequence. */
static int fill_part(bench_case *c, uint32_t layer, uint32_t sequence, uint32_t first, uint32_t count, nbl_fault *fault)
{
    const bench_values *values = c->values;
    const int32_t bounds[2] = {0, (int32_t)count};
    nbl_append_args args = NBL_INIT(nbl_append_args);
    args.layer = layer;
    args.batch = 1;
    args.k = bf16_rows(c->k, count, values->shape.kv_heads, values->shape.k_dim);
    args.v = bf16_rows(c->v, count, values->shape.kv_heads, v_dim_of(values));
    args.slots = (const int64_t *)c->slots + (uint64_t)sequence * values->shape.kv_tokens + first;
    int code = NBL_EXIT_OK;
    if (c->shape.centering) {
        code = nbl_session_upload(c->session, bounds, sizeof bounds, &c->one_indptr, fault);
        args.seq_indptr = c->one_indptr;
        args.centers = c->centers;
        args.centers.rows += sequence;
        args.center_mode = first == 0 ? NBL_CENTER_COMPUTE : NBL_CENTER_USE;
    }
    if (code == NBL_EXIT_OK)
        code = append_call(c, &args, fault);
    if (code == NBL_EXIT_OK)
        code = nbl_session_sync(c->session, c->codes[0], fault); /* one_indptr is freed next */
    nbl_session_release(c->session, c->one_indptr);
    c->one_indptr = NULL;
    return code;
}

static int fill(bench_case *c, nbl_fault *fault)
{
    uint32_t kv = c->values->shape.kv_tokens;
    int code = NBL_EXIT_OK;
    nbl_progress progress = nbl_progress_start("fill", (uint64_t)c->shape.layers * c->values->batch);
    for (uint32_t layer = 0; layer < c->shape.layers; layer++) {
        for (uint32_t b = 0; b < c->values->batch && code == NBL_EXIT_OK; b++) {
            for (uint32_t t = 0; t < kv && code == NBL_EXIT_OK; t += FILL_TOKENS)
                code = fill_part(c, layer, b, t, kv - t < FILL_TOKENS ? kv - t : FILL_TOKENS, fault);
            nbl_progress_step(&progress);
        }
    }
    nbl_progress_end(&progress);
    return code;
}

static int call_append(bench_case *c, nbl_fault *fault)
{
    const bench_values *values = c->values;
    uint64_t tokens = (uint64_t)values->batch * values->shape.q_tokens;
    nbl_append_args args = NBL_INIT(nbl_append_args);
    args.layer = c->layer;
    args.batch = values->batch;
    args.k = bf16_rows(c->k, tokens, values->shape.kv_heads, values->shape.k_dim);
    args.v = bf16_rows(c->v, tokens, values->shape.kv_heads, v_dim_of(values));
    args.slots = c->write_slots;
    args.seq_indptr = c->q_indptr;
    args.centers = c->centers;
    return append_call(c, &args, fault);
}

/* Codes of K or V, and block scales, from the bytes of its rows in bf16. */
static void coded_rows(const bench_case *c, void *data, uint32_t format, uint32_t dim, nbl_tensor *codes,
                       nbl_tensor *scales)
{
    uint64_t tokens = tokens_per_call(c->values), heads = c->values->shape.kv_heads;
    *codes = (nbl_tensor){.data = data, .dtype = NBL_U8, .rank = 3, .shape = {tokens, heads, dim}};
    if (format != NBL_NVFP4)
        return;
    codes->shape[2] = dim / 2;
    *scales = (nbl_tensor){.data = (uint8_t *)data + tokens * heads * dim,
                           .dtype = NBL_U8,
                           .rank = 3,
                           .shape = {tokens, heads, (dim + 15) / 16}};
}

static int call_append_coded(bench_case *c, nbl_fault *fault)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_append_coded_args args = NBL_INIT(nbl_append_coded_args);
    args.pool = &c->pool;
    args.layer = c->layer;
    args.k_format = c->policy.k_format;
    args.v_format = c->policy.v_format;
    coded_rows(c, c->k, args.k_format, c->values->shape.k_dim, &args.k, &args.k_scales);
    coded_rows(c, c->v, args.v_format, v_dim_of(c->values), &args.v, &args.v_scales);
    args.slots = c->write_slots;
    args.stream = c->session->stream;
    if (c->session->api->append_coded(c->session->device, &args, &err) != NBL_OK)
        return nbl_fault_from_api(fault, NBL_EXIT_FAILED, "append_coded", &err);
    return NBL_EXIT_OK;
}

static int call_attend(bench_case *c, nbl_fault *fault)
{
    const bench_values *values = c->values;
    uint64_t q_rows = (uint64_t)values->batch * values->shape.q_tokens;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_attend_args args = NBL_INIT(nbl_attend_args);
    args.flags = values->full ? 0 : NBL_ATTEND_CAUSAL;
    args.pool = &c->pool;
    args.layer = c->layer;
    args.q_heads = values->shape.q_heads;
    args.q_format = c->policy.q_format;
    args.batch = values->batch;
    args.q = bf16_rows(c->q, q_rows, values->shape.q_heads, values->shape.k_dim);
    args.o = bf16_rows(c->o, q_rows, values->shape.q_heads, v_dim_of(values));
    args.lse = (nbl_tensor){.data = c->lse, .dtype = NBL_F32, .rank = 2, .shape = {q_rows, values->shape.q_heads}};
    args.q_indptr = c->q_indptr;
    args.kv_len = c->kv_len;
    args.page_table = c->page_table;
    args.page_table_stride = c->pages_per_sequence;
    args.q_len_max = values->shape.q_tokens;
    args.kv_len_max = values->shape.kv_tokens;
    args.centers = c->centers;
    args.workspace = c->attend_workspace;
    args.workspace_bytes = c->attend_workspace_bytes;
    args.stream = c->session->stream;
    if (c->session->api->attend(c->session->device, &args, &err) != NBL_OK)
        return nbl_fault_from_api(fault, NBL_EXIT_FAILED, "attend", &err);
    return NBL_EXIT_OK;
}

static int call_prefill(bench_case *c, nbl_fault *fault)
{
    int code = call_append(c, fault);
    return code == NBL_EXIT_OK ? call_attend(c, fault) : code;
}

static int call_gather(bench_case *c, nbl_fault *fault)
{
    const bench_values *values = c->values;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_gather_args args = NBL_INIT(nbl_gather_args);
    args.flags = NBL_GATHER_STORED;
    args.pool = &c->pool;
    args.layer = c->layer;
    args.slots = c->slots;
    args.k = bf16_rows(c->k_out, tokens_total(values), values->shape.kv_heads, values->shape.k_dim);
    args.v = bf16_rows(c->v_out, tokens_total(values), values->shape.kv_heads, v_dim_of(values));
    args.stream = c->session->stream;
    if (c->session->api->gather(c->session->device, &args, &err) != NBL_OK)
        return nbl_fault_from_api(fault, NBL_EXIT_FAILED, "gather", &err);
    return NBL_EXIT_OK;
}

static int call_copy_pages(bench_case *c, nbl_fault *fault)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_copy_pages_args args = NBL_INIT(nbl_copy_pages_args);
    args.src_pool = args.dst_pool = &c->pool;
    args.src_pages = c->page_table;
    args.dst_pages = c->target_pages;
    args.count = c->pages_per_sequence * c->values->batch;
    args.stream = c->session->stream;
    if (c->session->api->copy_pages(c->session->device, &args, &err) != NBL_OK)
        return nbl_fault_from_api(fault, NBL_EXIT_FAILED, "copy_pages", &err);
    return NBL_EXIT_OK;
}

static int call_transcode(bench_case *c, nbl_fault *fault)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_transcode_args args = NBL_INIT(nbl_transcode_args);
    args.src_pool = args.dst_pool = &c->pool;
    args.src_pages = c->page_table;
    args.dst_pages = c->target_pages;
    args.token_counts = c->page_tokens;
    args.count = c->pages_per_sequence * c->values->batch;
    args.stream = c->session->stream;
    if (c->session->api->transcode(c->session->device, &args, &err) != NBL_OK)
        return nbl_fault_from_api(fault, NBL_EXIT_FAILED, "transcode", &err);
    return NBL_EXIT_OK;
}

static const struct {
    const char *name;
    int (*call)(bench_case *c, nbl_fault *fault);
} operations[] = {{"attend", call_attend},      {"append", call_append}, {"append_coded", call_append_coded},
                  {"prefill", call_prefill},    {"gather", call_gather}, {"copy_pages", call_copy_pages},
                  {"transcode", call_transcode}};

static int call_once(bench_case *c, nbl_fault *fault)
{
    int code = NBL_EXIT_FAILED;
    for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++) {
        if (strcmp(operations[i].name, c->values->op_name) == 0)
            code = operations[i].call(c, fault);
    }
    c->layer = (c->layer + 1) % c->shape.layers;
    return code;
}

static uint32_t calls_per_run(const bench_case *c)
{
    uint32_t usual = c->session->stream.kind == NBL_STREAM_HOST ? 1 : DEVICE_CALLS_PER_RUN;
    return c->values->calls > 0 ? c->values->calls : usual;
}

static int time_run(bench_case *c, double *out_s, nbl_fault *fault)
{
    uint32_t calls = calls_per_run(c);
    nbl_fault stop_fault;
    int code = nbl_timer_start(c->timer, fault);
    if (code != NBL_EXIT_OK)
        return code;
    for (uint32_t i = 0; i < calls && code == NBL_EXIT_OK; i++)
        code = call_once(c, fault);
    int stopped = nbl_timer_stop(c->timer, out_s, &stop_fault);
    *out_s /= calls;
    if (code == NBL_EXIT_OK && stopped != NBL_EXIT_OK)
        *fault = stop_fault;
    if (code == NBL_EXIT_OK && stopped == NBL_EXIT_OK)
        return nbl_session_sync(c->session, c->codes[0], fault);
    return code != NBL_EXIT_OK ? code : stopped;
}

static int prepare(bench_case *c, nbl_fault *fault)
{
    static int (*const steps[])(bench_case *, nbl_fault *) = {make_shape,   make_pool,    make_centers, make_slots,
                                                              make_targets, make_lengths, make_tensors};
    int code = NBL_EXIT_OK;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0] && code == NBL_EXIT_OK; i++)
        code = steps[i](c, fault);
    if (code == NBL_EXIT_OK)
        code =
            make_workspace(c, NBL_OP_APPEND, c->input_tokens, &c->append_workspace, &c->append_workspace_bytes, fault);
    if (code == NBL_EXIT_OK)
        code = make_workspace(c, NBL_OP_ATTEND, c->values->batch * c->values->shape.q_tokens, &c->attend_workspace,
                              &c->attend_workspace_bytes, fault);
    if (code == NBL_EXIT_OK)
        code = fill(c, fault);
    c->times_s = code == NBL_EXIT_OK ? nbl_alloc(c->values->runs, sizeof *c->times_s, fault) : NULL;
    return code == NBL_EXIT_OK && !c->times_s ? NBL_EXIT_FAILED : code;
}

static void release(bench_case *c)
{
    void *const buffers[] = {c->codes[0],
                             c->scales[0],
                             c->codes[1],
                             c->scales[1],
                             c->center_codes,
                             c->center_exponents,
                             c->center_shifts,
                             c->center_rows,
                             c->slots,
                             c->write_slots,
                             c->page_table,
                             c->target_pages,
                             c->page_tokens,
                             c->kv_len,
                             c->q_indptr,
                             c->one_indptr,
                             c->q,
                             c->k,
                             c->v,
                             c->o,
                             c->lse,
                             c->k_out,
                             c->v_out,
                             c->append_workspace,
                             c->attend_workspace};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        nbl_session_release(c->session, buffers[i]);
    free(c->times_s);
}

/* A first call outside the timer: a driver that loads kernels on first use waits for the stream, which the timer
 * holds. */
static int load_kernels(bench_case *c, nbl_fault *fault)
{
    int code = call_once(c, fault);
    return code == NBL_EXIT_OK ? nbl_session_sync(c->session, c->codes[0], fault) : code;
}

/* Recipes take turns, so that a slow moment of the machine hits all of them. */
static int time_all(bench_case *cases, size_t count, uint32_t runs, nbl_fault *fault)
{
    int code = NBL_EXIT_OK;
    double ignored;
    nbl_progress progress = nbl_progress_start("runs", (uint64_t)runs * count);
    for (size_t i = 0; i < count && code == NBL_EXIT_OK; i++)
        code = load_kernels(&cases[i], fault);
    for (uint32_t run = 0; run < WARMUP_RUNS; run++) {
        for (size_t i = 0; i < count && code == NBL_EXIT_OK; i++)
            code = time_run(&cases[i], &ignored, fault);
    }
    for (uint32_t run = 0; run < runs; run++) {
        for (size_t i = 0; i < count && code == NBL_EXIT_OK; i++) {
            code = time_run(&cases[i], &cases[i].times_s[run], fault);
            nbl_progress_step(&progress);
        }
    }
    nbl_progress_end(&progress);
    return code;
}

static int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median_of(const double *sorted, uint32_t count)
{
    return count % 2 ? sorted[count / 2] : 0.5 * (sorted[count / 2 - 1] + sorted[count / 2]);
}

static json_t *case_json(const bench_case *c)
{
    const bench_values *values = c->values;
    double median_s = median_of(c->times_s, values->runs);
    json_t *row = json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "backend", c->session->backend, "op",
                            values->op_name, "recipe", c->name, "batch", nbl_json_uint(values->batch), "hq",
                            nbl_json_uint(values->shape.q_heads), "hkv", nbl_json_uint(values->shape.kv_heads), "d",
                            nbl_json_uint(values->shape.k_dim), "dv", nbl_json_uint(v_dim_of(values)), "kv",
                            nbl_json_uint(values->shape.kv_tokens));
    json_object_set_new(row, "nq", nbl_json_uint(values->shape.q_tokens));
    json_object_set_new(row, "page", nbl_json_uint(values->page_tokens));
    json_object_set_new(row, "threads", nbl_json_uint(c->session->caps.threads));
    json_object_set_new(row, "isa", json_string(c->session->caps.isa));
    json_object_set_new(row, "runs", nbl_json_uint(values->runs));
    json_object_set_new(row, "calls", nbl_json_uint(calls_per_run(c)));
    json_object_set_new(row, "full", json_boolean(values->full));
    json_object_set_new(row, "cache_copies", nbl_json_uint(c->shape.layers));
    json_object_set_new(row, "median_ms", nbl_json_real(1e3 * median_s));
    json_object_set_new(row, "min_ms", nbl_json_real(1e3 * c->times_s[0]));
    json_object_set_new(row, "tokens_per_s", nbl_json_real((double)tokens_per_call(values) / median_s));
    json_object_set_new(row, "gb_per_s", nbl_json_real(1e-9 * (double)bytes_per_call(c) / median_s));
    json_object_set_new(row, "kv_bytes", nbl_json_uint(bytes_per_call(c)));
    json_object_set_new(row, "moved_bytes", nbl_json_uint(moved_per_call(c)));
    json_object_set_new(row, "moved_gb_per_s", nbl_json_real(1e-9 * (double)moved_per_call(c) / median_s));
    return row;
}

static void table_row(nbl_table *table, const json_t *row)
{
    static const char *const reals[] = {"median_ms", "min_ms", "tokens_per_s", "gb_per_s", "moved_gb_per_s"};
    nbl_table_add(table, "%s", json_string_value(json_object_get(row, "recipe")));
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++)
        nbl_table_add(table, i == 2 ? "%.4g" : "%.4f", json_number_value(json_object_get(row, reals[i])));
    nbl_table_add(table, "%" JSON_INTEGER_FORMAT, json_integer_value(json_object_get(row, "kv_bytes")));
}

static int print_cases(bench_case *cases, size_t count, nbl_fault *fault)
{
    static const char *const headings[] = {"recipe", "median_ms",  "min_ms",  "tokens/s",
                                           "GB/s",   "moved GB/s", "kv_bytes"};
    const bench_values *values = cases[0].values;
    nbl_table table;
    json_t *rows = json_array();
    nbl_table_start(&table, headings, sizeof headings / sizeof headings[0]);
    for (size_t i = 0; i < count; i++) {
        qsort(cases[i].times_s, values->runs, sizeof *cases[i].times_s, compare_doubles);
        json_t *row = case_json(&cases[i]);
        table_row(&table, row);
        json_array_append_new(rows, row);
    }
    int code = NBL_EXIT_OK;
    if (values->json) {
        code = nbl_json_print(rows, fault);
    } else {
        const nbl_session *session = cases[0].session;
        printf("%s on %s (%s, %u threads): batch %u, hq %u, hkv %u, d %u/%u, kv %u, nq %u, page %u, runs %u\n",
               values->op_name, session->backend, session->caps.isa, session->caps.threads, values->batch,
               values->shape.q_heads, values->shape.kv_heads, values->shape.k_dim, v_dim_of(values),
               values->shape.kv_tokens, values->shape.q_tokens, values->page_tokens, values->runs);
        nbl_table_print(&table);
        json_decref(rows);
    }
    nbl_table_free(&table);
    return code;
}

static int bench_recipes(nbl_session *session, nbl_timer *timer, const bench_values *values, const nbl_list *recipes,
                         nbl_fault *fault)
{
    bench_case *cases = nbl_alloc(recipes->count, sizeof *cases, fault);
    int code = cases ? NBL_EXIT_OK : NBL_EXIT_FAILED;
    size_t prepared = 0;
    for (; prepared < recipes->count && code == NBL_EXIT_OK; prepared++) {
        cases[prepared] =
            (bench_case){.session = session, .timer = timer, .values = values, .name = recipes->items[prepared]};
        code = prepare(&cases[prepared], fault);
    }
    if (code == NBL_EXIT_OK)
        code = time_all(cases, recipes->count, values->runs, fault);
    if (code == NBL_EXIT_OK)
        code = print_cases(cases, recipes->count, fault);
    for (size_t i = 0; i < prepared; i++)
        release(&cases[i]);
    free(cases);
    return code;
}

/* A prediction runs nothing, so options about how to run are wrong usage. */
static int check_predict(const bench_values *values, nbl_fault *fault)
{
    const nbl_session_options *session = &values->session;
    const struct {
        const char *name;
        bool given;
    } options[] = {{"runs", values->runs != 0},
                   {"calls", values->calls != 0},
                   {"cold", values->cold},
                   {"page", values->page_tokens != 0},
                   {"backend", session->backend != NULL},
                   {"backend-dir", session->backend_dir != NULL},
                   {"device", session->ordinal != 0},
                   {"threads", session->threads != 0},
                   {"isa", session->isa != NULL}};
    for (size_t i = 0; values->predict && i < sizeof options / sizeof options[0]; i++) {
        if (options[i].given)
            return nbl_fault_set(fault, NBL_EXIT_USAGE, "--%s: excludes --predict", options[i].name);
    }
    return NBL_EXIT_OK;
}

static int check_values(const bench_values *values, nbl_fault *fault)
{
    bool known = false;
    for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++)
        known = known || strcmp(operations[i].name, values->op_name) == 0;
    if (!known)
        return nbl_fault_set(fault, NBL_EXIT_USAGE,
                             "--op: unknown operation \"%.64s\" (known: attend, append, append_coded, prefill, "
                             "gather, copy_pages, transcode)",
                             values->op_name);
    nbl_problem shape = {.q_tokens = values->shape.q_tokens,
                         .q_heads = values->shape.q_heads,
                         .kv_tokens = values->shape.kv_tokens,
                         .kv_heads = values->shape.kv_heads,
                         .k_dim = values->shape.k_dim,
                         .v_dim = v_dim_of(values)};
    return nbl_problem_check(&shape, NBL_EXIT_USAGE, fault);
}

static int bench_run(int argc, char **argv, nbl_fault *fault)
{
    bench_values values = {.shape = NBL_SHAPE_OPTIONS_UNSET, .op_name = "attend", .recipe = "kv4", .batch = 1};
    nbl_list recipes;
    nbl_session session;
    int code = nbl_options_parse(&nbl_command_bench, argc, argv, &values, fault);
    if (code == NBL_EXIT_OK)
        code = check_predict(&values, fault);
    nbl_shape_options_complete(&values.shape, 1);
    values.page_tokens = values.page_tokens ? values.page_tokens : 64;
    values.runs = values.runs ? values.runs : 10;
    if (code == NBL_EXIT_OK)
        code = check_values(&values, fault);
    if (code == NBL_EXIT_OK)
        code = nbl_recipes_split("recipe", values.recipe, &recipes, fault);
    if (code == NBL_EXIT_OK && values.predict) {
        const nbl_predict_request request = {values.predict, values.op_name, values.batch,
                                             &values.shape,  values.full,    values.json};
        return nbl_predict_run(&request, &recipes, fault);
    }
    if (code == NBL_EXIT_OK)
        code = nbl_session_open(&session, &values.session, fault);
    if (code != NBL_EXIT_OK)
        return code;
    nbl_timer *timer = NULL;
    code = nbl_timer_open(&session, &timer, fault);
    if (code == NBL_EXIT_OK)
        code = bench_recipes(&session, timer, &values, &recipes, fault);
    nbl_timer_close(timer);
    nbl_session_close(&session);
    return code;
}
