/* SPDX-License-Identifier: Apache-2.0 */
/** @file oracle_exact.c  Softmax attention in binary64, without any quantization. */
#include "oracle.h"

#include <math.h>
#include <stdlib.h>

static bool is_visible(const oracle_exact_args *args, uint32_t j)
{
    return args->visible == NULL || args->visible[j] != 0;
}

static double exact_logit(const oracle_exact_args *args, uint32_t j)
{
    const float *k = args->k + j * args->k_stride;
    double scale = args->sm_scale != 0.0 ? args->sm_scale : 1.0 / sqrt((double)args->k_dim);
    double logit = 0.0;

    for (uint32_t d = 0; d < args->k_dim; d++) {
        logit += (double)args->q[d] * (double)k[d];
    }
    logit *= scale;
    if (args->soft_cap != 0.0) {
        logit = args->soft_cap * tanh(logit / args->soft_cap);
    }
    return logit + args->alibi_slope * ((double)j - args->position);
}

void oracle_exact_row(const oracle_exact_args *args, double *o, double *lse)
{
    double largest = args->sink != NULL ? (double)*args->sink : -(double)INFINITY;
    double total;

    for (uint32_t j = 0; j < args->tokens; j++) {
        largest = is_visible(args, j) ? fmax(largest, exact_logit(args, j)) : largest;
    }
    for (uint32_t d = 0; d < args->v_dim; d++) {
        o[d] = 0.0;
    }
    *lse = -(double)INFINITY;
    if (largest == -(double)INFINITY) {
        return;
    }
    total = args->sink != NULL ? exp((double)*args->sink - largest) : 0.0;
    for (uint32_t j = 0; j < args->tokens; j++) {
        double weight = is_visible(args, j) ? exp(exact_logit(args, j) - largest) : 0.0;
        total += weight;
        for (uint32_t d = 0; d < args->v_dim && weight > 0.0; d++) {
            o[d] += weight * (double)args->v[j * args->v_stride + d];
        }
    }
    for (uint32_t d = 0; d < args->v_dim; d++) {
        o[d] /= total;
    }
    *lse = largest + log(total);
}

/* Row i of sequence b, query head h, over that sequence's K and V. */
static void reference_row(const nbl_attend_args *args, uint32_t b, uint32_t i, uint32_t h, const float *k,
                          const float *v, double *o, double *lse)
{
    const nbl_kv_shape *shape = args->pool->shape;
    uint32_t tokens = (uint32_t)args->kv_len[b];
    uint32_t kv_head = h / (args->q_heads / shape->kv_heads);
    int64_t rows = args->q_indptr[b + 1] - args->q_indptr[b];
    float q[ORACLE_DIM_MAX];
    uint8_t *visible = calloc(tokens + 1u, 1);
    oracle_exact_args row = {.k_dim = shape->k_dim,
                             .v_dim = shape->v_dim,
                             .tokens = tokens,
                             .q = q,
                             .visible = visible,
                             .k = k + kv_head * shape->k_dim,
                             .k_stride = (uint64_t)shape->kv_heads * shape->k_dim,
                             .v = v + kv_head * shape->v_dim,
                             .v_stride = (uint64_t)shape->kv_heads * shape->v_dim,
                             .sm_scale = (double)args->sm_scale,
                             .soft_cap = (double)args->soft_cap,
                             .alibi_slope = args->alibi_slopes != NULL ? (double)args->alibi_slopes[h] : 0.0,
                             .position = (double)(tokens - rows + i),
                             .sink = args->sinks != NULL ? &args->sinks[h] : NULL};

    if (visible == NULL) {
        abort();
    }
    oracle_row_get(&args->q, (uint64_t)args->q_indptr[b] + i, h, 0, q, shape->k_dim);
    for (uint32_t j = 0; j < tokens; j++) {
        visible[j] = oracle_visible(args, b, i, j);
    }
    oracle_exact_row(&row, o, lse);
    free(visible);
}

void oracle_reference(const nbl_attend_args *args, const float *const *k, const float *const *v, double *o, double *lse)
{
    uint32_t v_dim = args->pool->shape->v_dim;
    double natural;
    double row_o[ORACLE_DIM_MAX];

    for (uint32_t b = 0; b < args->batch; b++) {
        for (int32_t t = args->q_indptr[b]; t < args->q_indptr[b + 1]; t++) {
            for (uint32_t h = 0; h < args->q_heads; h++) {
                uint64_t at = (uint64_t)t * args->q_heads + h;
                reference_row(args, b, (uint32_t)(t - args->q_indptr[b]), h, k[b], v[b], row_o, &natural);
                for (uint32_t d = 0; o != NULL && d < v_dim; d++) {
                    o[at * v_dim + d] = row_o[d];
                }
                if (lse != NULL) {
                    lse[at] = (args->flags & NBL_ATTEND_LSE_BASE2) ? natural / log(2.0) : natural;
                }
            }
        }
    }
}
