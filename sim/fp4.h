/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file fp4.h
 * @brief Q K^T of the Blackwell core (NUM 7): E2M1 codes and block scales, summed as a block-scaled MMA sums them.
 *
 * In the scratch of float.h, q and k hold a vector's elements, doubled, as bytes where the significands are,
 * [vector][k_dim], and its scales where the exponents are, [vector][k_dim / 16][2]: eighths and exponent of each group
 * of 16.
 */
#ifndef SIM_FP4_H
#define SIM_FP4_H

#include "float.h"

/** A vector ready for the MMA, outside the scratch. */
typedef struct sim_fp4_vector {
    int8_t halves[NBL_DIM_PADDED_MAX]; /**< elements, doubled */
    int16_t scales[NBL_DIM_PADDED_MAX / NBL_MMA_GROUP_TERMS][2];
} sim_fp4_vector;

/** Quantizes a transformed row into the format of K (NUM 7.1); the row's exponent is returned. */
int32_t sim_fp4_query(uint32_t format, const float *x, uint32_t dim, sim_fp4_vector *out);
/** A centre of queries in two parts, the second what the first leaves (NUM 7.5). */
typedef struct sim_fp4_center {
    sim_fp4_vector part[2];
    int32_t exponent[2];
} sim_fp4_center;

/** Quantizes a transformed centre in both parts. */
void sim_fp4_center_of(uint32_t format, const float *m, uint32_t dim, sim_fp4_center *out);

/** sum_d q[d] * mu[d] of the quantized row, without its exponent (NUM 7.4). */
float sim_fp4_center_dot(const sim_fp4_vector *q, const int8_t *mu, uint32_t dim);
/** Brings a row's query into the scratch. */
void sim_fp4_set_query(sim_float_scratch *s, uint32_t row, const sim_fp4_vector *q, uint32_t k_dim);
/** K of the tokens first..first+count-1, zeros up to 128. */
void sim_fp4_load_k(sim_float_scratch *s, const sim_source *source, uint32_t first, uint32_t count, uint32_t k_dim);
/** x[t] = q . k_t for the first tokens of the tile, q a row of the scratch's queries or centres (NUM 7.2). */
void sim_fp4_dot(const sim_float_scratch *s, sim_float_array q, uint32_t row, uint32_t tokens, uint32_t k_dim,
                 float *x);
/** Brings a centre into the scratch. */
void sim_fp4_set_center(sim_float_scratch *s, uint32_t index, const sim_fp4_center *center, uint32_t k_dim);
/** y[t] = m . k_t of a centre with those exponents, as x is for rows (NUM 7.5). */
void sim_fp4_dot_center(const sim_float_scratch *s, uint32_t index, const int32_t exponent[2], uint32_t tokens,
                        uint32_t k_dim, float *y);

#endif
