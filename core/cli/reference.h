/* SPDX-License-Identifier: Apache-2.0 */
/** @file reference.h @brief Attention in binary64 on the unquantized input: what accuracy is measured against. */
#ifndef NBL_CLI_REFERENCE_H
#define NBL_CLI_REFERENCE_H

#include "problem.h"

/** Result of the reference. */
typedef struct nbl_reference {
    double *o;   /**< [Tq, Hq, Dv] */
    double *lse; /**< [Tq, Hq], natural */
} nbl_reference;

/** Distance of a result from the reference. Figures that are not defined are NaN: those of input that is not finite,
 *  and rel_l2 and gain of a result that is not zero where the reference is. Zero against zero is a perfect match. */
typedef struct nbl_accuracy {
    double rel_l2;   /**< |o - ref| / |ref| over all elements */
    double gain;     /**< <o, ref> / <ref, ref> */
    double cos_mean; /**< cosine of a row (one head of one token) with its reference: mean and minimum */
    double cos_min;
    double lse_err; /**< largest |lse - ref|; equal infinities count 0 */
} nbl_accuracy;

/** Computes o = softmax(mask(cap(sm_scale * Q K^T))) V, the sink in the denominator, causal from the bottom right. */
int nbl_reference_compute(const nbl_problem *problem, nbl_reference *out_reference, nbl_fault *fault);

/** Frees the arrays. */
void nbl_reference_free(nbl_reference *reference);

/** Compares a result [Tq, Hq, Dv], [Tq, Hq] with the reference. */
nbl_accuracy nbl_accuracy_measure(const nbl_problem *problem, const nbl_reference *reference, const float *o,
                                  const float *lse);

#endif
