/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file float.h
 * @brief The float core of attend (NUM 6): operands as significand and exponent, dot products as a tensor core sums
 * them.
 *
 * attend.c owns rows, masks, chunks and states; this is what it calls in place of the integer loops.
 */
#ifndef SIM_FLOAT_H
#define SIM_FLOAT_H

#include "mma_model.h"
#include "rowsum.h"
#include "tile.h"

/** Numbers taken apart, for the models of mma_model.h: value = significand * 2^(exponent - fraction bits). */
typedef struct sim_float_array {
    int16_t *significand;
    int16_t *exponent;
} sim_float_array;

/** c[lane] := the dot product of n elements of a with the lanes of b, on top of c[lane], in fused steps. Element k of
 * lane l is b[k * stride + l]; lanes is a multiple of 16, n of the model's terms; fraction bits are those of a product.
 */
typedef void (*sim_float_dot_fn)(const nbl_mma_model *model, int32_t fraction, sim_float_array a, uint32_t n,
                                 sim_float_array b, uint32_t stride, uint32_t lanes, float *c);

/** The loop for an instruction set of isa.h. */
sim_float_dot_fn sim_float_dot_find(const char *isa_name);

/** What a call needs to know. */
typedef struct sim_float_call {
    sim_float_dot_fn dot;
    nbl_mma_model model;
    nbl_mma_model pv_model; /**< of P V */
    uint32_t k_type;        /**< enum nbl_mma_type of Q and K */
    uint32_t v_type;        /**< of P and V */
    uint32_t fp4_format;    /**< of Q and K in the Blackwell core (NUM 7), else NBL_FORMAT_NONE */
} sim_float_call;

/** Working memory of a thread. */
typedef struct sim_float_scratch {
    sim_float_array
        k; /**< [group][k_dim][32]; the Blackwell core has E2M1 codes in place of the significands and scales
                            in place of the exponents, see fp4.h */
    sim_float_array v; /**< [128][v_dim] */
    sim_float_array q; /**< [rows][k_dim] */
    sim_float_array centers; /**< [rows][2][k_dim]: centres of queries in two parts, as q is (NUM 7.5) */
    sim_float_array p; /**< [rows][128] */
    float *sums;       /**< [rows][16]: the denominator of the chunk */
} sim_float_scratch;

/** Bytes of the scratch. */
uint64_t sim_float_scratch_bytes(uint32_t k_dim, uint32_t v_dim, uint32_t rows);
/** Lays the scratch out in zeroed memory. */
void sim_float_scratch_init(sim_float_scratch *s, uint8_t *memory, uint32_t k_dim, uint32_t v_dim, uint32_t rows);

/** Types and arithmetic of a call over a pool that the float core serves, or the Blackwell core with NBL_Q_FP4. */
sim_float_call sim_float_call_of(const nbl_pool *pool, uint32_t q_format, uint32_t profile, const char *isa_name);

/** The row as bf16 or fp16 (NUM 6.2): halves[0..padded-1]. */
void sim_float_query(const sim_float_call *call, const float *x, uint32_t dim, uint16_t *halves, uint32_t padded);
/** sum_d q[d] * mu[d] (NUM 6.6). */
float sim_float_center_dot(const sim_float_call *call, const uint16_t *halves, const int8_t *mu, uint32_t dim);
/** Brings a row's query into the scratch. */
void sim_float_set_query(const sim_float_call *call, sim_float_scratch *s, uint32_t row, const uint16_t *halves,
                         uint32_t k_dim);

/** Decodes K of tile `index` and sets tile->groups; tokens past the end are zeros. */
void sim_float_load_k(const sim_float_call *call, sim_float_scratch *s, const sim_source *source, uint32_t index,
                      sim_tile *tile);
/** Decodes V of that tile. */
void sim_float_load_v(const sim_float_call *call, sim_float_scratch *s, const sim_source *source, uint32_t index,
                      const sim_tile *tile);

/** x[t] = q . k_t of one row (NUM 6.3). */
void sim_float_dot_qk(const sim_float_call *call, const sim_float_scratch *s, const sim_tile *tile, uint32_t row,
                      float *x);
/** P and the row's sums of one tile (NUM 6.4); l and b of the result are 0. */
sim_softmax sim_float_softmax(const sim_float_call *call, sim_float_scratch *s, uint32_t row, const sim_row_tile *view,
                              float base, int first);
/** o += P V of one row (NUM 6.5). */
void sim_float_dot_pv(const sim_float_call *call, const sim_float_scratch *s, const sim_tile *tile, uint32_t row,
                      float *o);

/** Reads the vector of a token; its padded dimension is returned. */
uint32_t sim_float_load_token(const sim_source *source, uint32_t position, enum nbl_kind kind, nbl_vector *v);

/** Starts a chunk for all rows. */
void sim_float_start(sim_float_scratch *s, uint32_t rows);
/** Ends it for one: scales o to V's unit and that of the states, and returns L (NUM 6.6). */
float sim_float_finish(const sim_float_call *call, const sim_float_scratch *s, uint32_t row, float v_scale, float *o,
                       uint32_t v_dim);

#endif
