/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file model.c
 * @brief Counts of the kernels, rates of the GPUs, and their quotients.
 *
 * Counts are per unit of work at head dimension 128: executed warp instructions as Nsight Compute counts them
 * (smsp__inst_executed.sum over `nibble bench`; those marked ~ by proportion from these, or from the loops of the
 * machine code: docs/performance.md, Predictions), multiply-adds as the fragments have them, bytes from
 * docs/formats.md. The factors below are not: they say how much of a rate the kernels of this project get, one figure
 * for all of them, from an H200.
 */
#include "model.h"

#include "layout.h"

#include <string.h>

#define MEMORY_REACHED 0.917 /* 4.4 of 4.8 TB/s: a kernel that only loads */
#define ISSUE_REACHED 0.57   /* of one warp instruction a clock and scheduler */
#define TENSOR_REACHED 0.57  /* of the dense rate, by wgmma between exponentials; cuDNN gets 0.65 */
#define STEP_US 6.0          /* a kernel that waits for the one before it: start, a chain of loads, end */
#define SCHEDULERS 4.0       /* of a multiprocessor */
#define FILLED_CHUNKS 8.0    /* units of work that keep a multiprocessor busy */
#define PREFILL_ROWS 33u     /* query rows of a kv head from which prefill kernels take a call */
#define D_COUNTED 256.0      /* Dk + Dv of the counts */

static const nbl_gpu gpus[] = {
    {"h200", "NVIDIA H200", 132, 90, 1.755, 4.8, 1.98, 0.99, 0.667, 16, 1},
    {"b200", "NVIDIA B200", 148, 100, 1.85, 7.7, 4.5, 2.25, 0.5, 16, 0},
    {"b300", "NVIDIA B300", 148, 103, 1.9, 7.7, 0.15, 2.25, 0.5, 32, 0},
    {"rtx5090", "NVIDIA GeForce RTX 5090", 170, 120, 2.4, 1.79, 0.84, 0.21, 1.0, 16, 0},
};

const nbl_gpu *nbl_gpu_find(const char *name)
{
    for (size_t i = 0; i < sizeof gpus / sizeof gpus[0]; i++) {
        if (strcmp(gpus[i].name, name) == 0)
            return &gpus[i];
    }
    return NULL;
}

/* What a pair of formats costs, in warp instructions. */
typedef struct counts {
    uint32_t k_format;
    uint32_t v_format;
    double decode[2];  /* per token and kv head, for up to 4 query rows and for up to 8 */
    double decode_mma; /* m16n8k32 products, or m16n8k16 of halves, per token and kv head */
    double prefill;    /* per score, products of wgmma left out */
    double expand;     /* per token and kv head, before the prefill */
    double append;     /* per token and kv head */
} counts;

static const counts table[] = {
    {NBL_INT4P, NBL_INT4P, {16.3, 21.0 /* ~ */}, 0.5, 0.474, 86.0, 278.0 /* ~ */},
    {NBL_MXFP4, NBL_MXFP4, {19.8 /* ~ */, 25.0 /* ~ */}, 1.0, 0.474, 86.0, 140.0 /* ~ */},
    {NBL_INT4P, NBL_INT8, {14.4, 17.1}, 0.75, 0.474, 86.0, 201.0 /* ~ */},
    {NBL_MXFP4, NBL_INT8, {15.8, 18.9}, 1.0, 0.474, 86.0, 131.0 /* ~ */},
    {NBL_INT8, NBL_INT8, {11.8, 14.0}, 1.0, 0.474, 86.0, 122.0 /* ~ */},
    {NBL_FORMAT_BF16, NBL_FORMAT_BF16, {30.0 /* ~ */, 30.0 /* ~ */}, 2.0, 0.30 /* ~ */, 0.0, 60.0 /* ~ */},
    {NBL_FORMAT_FP16, NBL_FORMAT_FP16, {30.0 /* ~ */, 30.0 /* ~ */}, 2.0, 0.30 /* ~ */, 0.0, 60.0 /* ~ */},
};

/* What a kernel needs. */
typedef struct work {
    double bytes;
    double instructions;
    double int8_macs;
    double half_macs;
    double exponentials;
    int is_wgmma;
} work;

static double bytes_per_token(const nbl_model_call *c)
{
    return (double)nbl_layout_code_bytes(c->k_format, c->k_dim) + nbl_layout_scale_planes(c->k_format, c->k_dim) +
           nbl_layout_code_bytes(c->v_format, c->v_dim) + nbl_layout_scale_planes(c->v_format, c->v_dim);
}

static double seconds(const nbl_gpu *gpu, const work *w, nbl_model_time *out)
{
    const double slots = gpu->processors * SCHEDULERS * gpu->clock_ghz * 1e9 * ISSUE_REACHED;
    const double tensor = TENSOR_REACHED * (w->is_wgmma ? 1.0 : gpu->warp_mma) * 1e15 / 2.0;
    const struct {
        const char *name;
        double time;
    } parts[] = {
        {"memory", w->bytes / (gpu->memory_tb_s * 1e12 * MEMORY_REACHED)},
        {"issue", w->instructions / slots},
        {"tensor", (w->int8_macs / gpu->int8_pops + w->half_macs / gpu->half_pflops) / tensor},
        {"ex2", w->exponentials / (gpu->processors * gpu->exponentials * gpu->clock_ghz * 1e9)},
    };
    size_t most = 0;
    for (size_t i = 1; i < sizeof parts / sizeof parts[0]; i++)
        most = parts[i].time > parts[most].time ? i : most;
    out->memory_us = parts[0].time * 1e6;
    out->issue_us = parts[1].time * 1e6;
    out->tensor_us = parts[2].time * 1e6;
    out->ex2_us = parts[3].time * 1e6;
    out->bound = parts[most].name;
    return parts[most].time;
}

static int is_half(const nbl_model_call *c)
{
    return nbl_layout_code_bits(c->k_format) == 16u;
}

/* Few query rows over a cache: every token is loaded once; queries before it, merging of chunks after it. */
static void predict_decode(const nbl_gpu *gpu, const nbl_model_call *c, const counts *n, nbl_model_time *out)
{
    const double tokens = (double)c->batch * c->kv_heads * c->kv_tokens;
    const double rows = (double)c->q_heads / c->kv_heads * c->q_tokens;
    const double scale = (c->k_dim + c->v_dim) / D_COUNTED, passes = rows > 8.0 ? rows / 8.0 : 1.0;
    const double macs = n->decode_mma * 16.0 * 8.0 * (is_half(c) ? 16.0 : 32.0) * (rows > 4.0 ? 1.5 : 1.0);
    work w = {.bytes = tokens * bytes_per_token(c), .instructions = tokens * scale * passes * n->decode[rows > 4.0]};
    *(is_half(c) ? &w.half_macs : &w.int8_macs) = tokens * scale * passes * macs;
    w.exponentials = tokens * rows;
    out->kernel = is_half(c) ? "float decode" : "decode";
    out->other_us = (is_half(c) ? 3.0 : 2.0) * STEP_US; /* the integer core's loads begin while queries are prepared */
    out->total_us = seconds(gpu, &w, out) * 1e6 + out->other_us;
    out->is_filled = tokens / NBL_CHUNK_TOKENS >= FILLED_CHUNKS * gpu->processors;
}

/* Scores that are computed: whole tiles of 128 x 128. */
static double scores_of(const nbl_model_call *c)
{
    const double rows = (double)c->batch * c->q_heads * c->q_tokens;
    const double seen = c->is_full ? c->kv_tokens : c->kv_tokens - c->q_tokens / 2.0 + 64.0;
    return rows * seen;
}

static void predict_prefill(const nbl_gpu *gpu, const nbl_model_call *c, const counts *n, nbl_model_time *out)
{
    const double scores = scores_of(c), macs = scores * (c->k_dim + c->v_dim);
    const double tokens = (double)c->batch * c->kv_heads * c->kv_tokens;
    const double mmas = macs / (16.0 * 8.0 * (is_half(c) ? 16.0 : 32.0));
    work w = {.instructions = scores * n->prefill, .exponentials = scores, .is_wgmma = gpu->capability == 90u};
    const double query_bytes = (double)c->batch * c->q_heads * c->q_tokens * c->k_dim * (is_half(c) ? 4.0 : 3.0);
    work queries = {.bytes = query_bytes};
    work expand = {.bytes = tokens * (bytes_per_token(c) + c->k_dim + c->v_dim + 12.0),
                   .instructions = tokens * n->expand};
    w.instructions += w.is_wgmma ? 0.0 : 1.5 * mmas; /* products and loads of their operands */
    *(is_half(c) ? &w.half_macs : &w.int8_macs) = macs;
    w.bytes = tokens * bytes_per_token(c);
    out->kernel = is_half(c) ? "float prefill" : "prefill";
    out->other_us = 2.0 * STEP_US + seconds(gpu, &queries, out) * 1e6;
    out->other_us += n->expand > 0.0 ? seconds(gpu, &expand, out) * 1e6 + STEP_US : 0.0;
    out->total_us = seconds(gpu, &w, out) * 1e6 + out->other_us;
    out->is_filled = (double)c->batch * c->q_heads * c->q_tokens / 128.0 >= gpu->processors;
}

static void predict_append(const nbl_gpu *gpu, const nbl_model_call *c, const counts *n, nbl_model_time *out)
{
    const double tokens = (double)c->batch * c->kv_heads * c->q_tokens;
    const double scale = (c->k_dim + c->v_dim) / D_COUNTED;
    work w = {.bytes = tokens * (bytes_per_token(c) + 2.0 * (c->k_dim + c->v_dim)),
              .instructions = tokens * scale * n->append};
    out->kernel = "append";
    out->other_us = STEP_US;
    out->total_us = seconds(gpu, &w, out) * 1e6 + out->other_us;
    out->is_filled = tokens >= 64.0 * gpu->processors;
}

int nbl_model_predict(const nbl_gpu *gpu, const nbl_model_call *call, nbl_model_time *out)
{
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const counts *n = &table[i];
        if (n->k_format != call->k_format || n->v_format != call->v_format || call->q_format == NBL_Q_FP4)
            continue;
        if (call->op == NBL_OP_APPEND)
            predict_append(gpu, call, n, out);
        else if ((uint64_t)call->q_tokens * call->q_heads / call->kv_heads >= PREFILL_ROWS)
            predict_prefill(gpu, call, n, out);
        else
            predict_decode(gpu, call, n, out);
        return 1;
    }
    return 0;
}
