/* SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"

#include "progress.h"

#include <math.h>
#include <stdlib.h>

enum { LANES = 8 };

/* Independent partial sums let the compiler use vectors without reordering a sum on its own. */
static double dot(const float *a, const float *b, uint32_t count)
{
    double sums[LANES] = {0};
    for (uint32_t i = 0; i < count; i += LANES) { /* dimensions are multiples of 8 */
        for (uint32_t j = 0; j < LANES; j++)
            sums[j] += (double)a[i + j] * (double)b[i + j];
    }
    double total = 0.0;
    for (uint32_t j = 0; j < LANES; j++)
        total += sums[j];
    return total;
}

static double capped(const nbl_problem *problem, double logit)
{
    double cap = (double)problem->soft_cap;
    return cap > 0.0 ? cap * tanh(logit / cap) : logit;
}

static double scale_of(const nbl_problem *problem)
{
    return problem->sm_scale > 0.0f ? (double)problem->sm_scale : 1.0 / sqrt((double)problem->k_dim);
}

/* One query head of one query token. logits has room for kv_tokens. */
static void compute_row(const nbl_problem *problem, uint32_t row, uint32_t head, double *logits, double *o, double *lse)
{
    uint32_t position = problem->kv_tokens - problem->q_tokens + row;
    uint32_t seen = position + 1;
    uint32_t first = problem->window > 0 && seen > problem->window ? seen - problem->window : 0;
    uint32_t kv_head = head / (problem->q_heads / problem->kv_heads);
    const float *q = problem->q + ((uint64_t)row * problem->q_heads + head) * problem->k_dim;
    double scale = scale_of(problem);
    double max = problem->has_sink ? (double)problem->sink : -INFINITY;
    for (uint32_t t = first; t < seen; t++) {
        const float *k = problem->k + ((uint64_t)t * problem->kv_heads + kv_head) * problem->k_dim;
        logits[t] = capped(problem, scale * dot(q, k, problem->k_dim));
        max = logits[t] > max ? logits[t] : max;
    }
    double sum = problem->has_sink ? exp((double)problem->sink - max) : 0.0;
    for (uint32_t d = 0; d < problem->v_dim; d++)
        o[d] = 0.0;
    for (uint32_t t = first; t < seen; t++) {
        const float *v = problem->v + ((uint64_t)t * problem->kv_heads + kv_head) * problem->v_dim;
        double weight = exp(logits[t] - max);
        sum += weight;
        for (uint32_t d = 0; d < problem->v_dim; d++)
            o[d] += weight * (double)v[d];
    }
    for (uint32_t d = 0; d < problem->v_dim; d++)
        o[d] /= sum;
    *lse = max + log(sum);
}

int nbl_reference_compute(const nbl_problem *problem, nbl_reference *out_reference, nbl_fault *fault)
{
    uint64_t rows = (uint64_t)problem->q_tokens * problem->q_heads;
    nbl_reference reference = {.o = nbl_alloc(rows, (uint64_t)problem->v_dim * sizeof(double), fault),
                               .lse = nbl_alloc(rows, sizeof(double), fault)};
    double *logits = nbl_alloc(problem->kv_tokens, sizeof(double), fault);
    if (!reference.o || !reference.lse || !logits) {
        free(logits);
        nbl_reference_free(&reference);
        return NBL_EXIT_FAILED;
    }
    nbl_progress progress = nbl_progress_start("fp64 reference", rows);
    for (uint64_t i = 0; i < rows; i++) {
        compute_row(problem, (uint32_t)(i / problem->q_heads), (uint32_t)(i % problem->q_heads), logits,
                    reference.o + i * problem->v_dim, reference.lse + i);
        nbl_progress_step(&progress);
    }
    nbl_progress_end(&progress);
    free(logits);
    *out_reference = reference;
    return NBL_EXIT_OK;
}

void nbl_reference_free(nbl_reference *reference)
{
    free(reference->o);
    free(reference->lse);
    *reference = (nbl_reference){0};
}

/* Sums over one row or over all of them. */
typedef struct sums {
    double oo, rr, or_, dd;
} sums;

static sums row_sums(const float *o, const double *ref, uint32_t count)
{
    sums s = {0};
    for (uint32_t d = 0; d < count; d++) {
        double value = (double)o[d];
        double difference = value - ref[d];
        s.oo += value * value;
        s.rr += ref[d] * ref[d];
        s.or_ += value * ref[d];
        s.dd += difference * difference;
    }
    return s;
}

/* A row that is zero in both counts as equal. */
static double row_cosine(const sums *s)
{
    if (s->oo == 0.0 && s->rr == 0.0)
        return 1.0;
    double norms = sqrt(s->oo) * sqrt(s->rr);
    return norms > 0.0 || isnan(norms) ? s->or_ / norms : 0.0;
}

/* A distance from a reference that is zero: none, or not defined. */
static double ratio(double numerator, double denominator, double both_zero)
{
    if (denominator != 0.0)
        return numerator / denominator;
    return numerator == 0.0 ? both_zero : NAN;
}

/* The larger one; NaN wins, so that it cannot hide. */
static double worst(double a, double b)
{
    return isnan(a) || a > b ? a : b;
}

static double lse_distance(float lse, double ref)
{
    return (double)lse == ref ? 0.0 : fabs((double)lse - ref);
}

nbl_accuracy nbl_accuracy_measure(const nbl_problem *problem, const nbl_reference *reference, const float *o,
                                  const float *lse)
{
    uint64_t rows = (uint64_t)problem->q_tokens * problem->q_heads;
    sums all = {0};
    double cosine_sum = 0.0, worst_cosine_loss = -INFINITY, lse_err = 0.0;
    for (uint64_t i = 0; i < rows; i++) {
        sums s = row_sums(o + i * problem->v_dim, reference->o + i * problem->v_dim, problem->v_dim);
        all.oo += s.oo;
        all.rr += s.rr;
        all.or_ += s.or_;
        all.dd += s.dd;
        double cosine = row_cosine(&s);
        cosine_sum += cosine;
        worst_cosine_loss = worst(1.0 - cosine, worst_cosine_loss);
        lse_err = worst(lse_distance(lse[i], reference->lse[i]), lse_err);
    }
    return (nbl_accuracy){.rel_l2 = ratio(sqrt(all.dd), sqrt(all.rr), 0.0),
                          .gain = all.rr == 0.0 ? ratio(all.oo, all.rr, 1.0) : all.or_ / all.rr,
                          .cos_mean = cosine_sum / (double)rows,
                          .cos_min = 1.0 - worst_cosine_loss,
                          .lse_err = lse_err};
}
