/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file oracle.h
 * @brief A second, slow and plain implementation of docs/numerics.md and docs/formats.md, to test the first one with.
 *
 * Written from the two pages alone; shares nothing with the library but nibble_types.h. Arguments must be valid, memory
 * is host memory, and nothing is checked: a wrong argument is undefined behaviour. Exhausted memory aborts.
 */
#ifndef ORACLE_H
#define ORACLE_H

#include <nibble/nibble_types.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ORACLE_DIM_MAX 576u
#define ORACLE_BLOCKS_MAX (ORACLE_DIM_MAX / 16u)

#define ORACLE_EXPONENT_MIN (-40)       /**< NUM 2.2 */
#define ORACLE_EXPONENT_MAX 40          /**< NUM 2.2 */
#define ORACLE_BLOCK_EXPONENT_MIN (-39) /**< NUM 2.2 */

/** The K or the V side of a cache. */
enum oracle_side { ORACLE_K = 0, ORACLE_V = 1 };

/* ------------------------------------------------------------------------------------------------ scalars */

/** binary32 from the bits of a bfloat16; exact. */
float oracle_f32_from_bf16(uint16_t bits);
/** binary32 from the bits of a binary16; exact, subnormals included. */
float oracle_f32_from_f16(uint16_t bits);
/** RNE of a binary32 to bfloat16 bits (NUM 1.1); a NaN stays a NaN. */
uint16_t oracle_bf16_from_f32(float x);
/** RNE of a binary32 to binary16 bits (NUM 1.1); a NaN stays a NaN. */
uint16_t oracle_f16_from_f32(float x);
/** The binary32 with these bits, and back. */
float oracle_f32_from_bits(uint32_t bits);
uint32_t oracle_bits_from_f32(float x);

/** 2^n for an integer n <= 127, 0 for n < -126 however far below (NUM 1.2). */
float oracle_pow2(double n);
/** exp2p of NUM 1.5. */
float oracle_exp2p(float x);
/** log2p of NUM 1.6. */
float oracle_log2p(float x);
/** tanhp of NUM 1.7. */
float oracle_tanhp(float x);
/** tree(s) of NUM 5.4. */
float oracle_tree(const float s[16]);

/** P of NUM 5.4: RNE_int(C * 2^(-k/256)), 0 for k > 126*256. */
int32_t oracle_weight_int(int64_t k);
/** q of NUM 5.4: 2^(-k/256) rounded to 8 significant bits, 0 for k > 126*256. */
float oracle_weight_bf16(int64_t k);
/** b of NUM 5.4: RNE to binary32 of 2^(i/256). */
float oracle_exp2_grid(int64_t i);

/* ------------------------------------------------------------------------------------------------ vectors */

/** One stored vector: its canonical form (NUM 2.1) and the fields of its format (NUM 2.3 to 2.5). */
typedef struct oracle_vector {
    uint32_t format;                              /**< enum nbl_format */
    uint32_t dim;                                 /**< D */
    uint32_t padded_dim;                          /**< Dp */
    int32_t exponent;                             /**< canonical E */
    int8_t codes[ORACLE_DIM_MAX];                 /**< canonical c, Dp of them */
    uint8_t elements[ORACLE_DIM_MAX];             /**< stored element codes: a byte (int8) or a nibble, Dp of them */
    int32_t block_exponents[ORACLE_BLOCKS_MAX];   /**< mxfp4: e_b */
    uint8_t block_multipliers[ORACLE_BLOCKS_MAX]; /**< int4p: m_b, 1..16 */
    uint16_t halves[ORACLE_DIM_MAX];              /**< bf16, fp16: stored codes, Dp of them */
    uint8_t block_scales[ORACLE_BLOCKS_MAX];      /**< nvfp4: E4M3 codes */
    float values[ORACLE_DIM_MAX];                 /**< what the vector stands for, Dp of them; all formats */
} oracle_vector;

/** Dp of D (NUM 2.1). */
uint32_t oracle_padded_dim(uint32_t dim);
/** Elements per block: 32 (mxfp4), 16 (mxfp4_16, int4p), Dp (int8). */
uint32_t oracle_block_size(uint32_t format, uint32_t padded_dim);

/** Value of an E2M1 code 0..15 (NUM 2.4). */
float oracle_e2m1_value(uint32_t code);
/** E2M1 code of a finite or infinite number: RNE, saturating, never code 8 (NUM 3.4). */
uint32_t oracle_e2m1_code(double x);

/** NUM 3.1 in place; adds to nan_inputs, inf_inputs and saturated. stats may be NULL. */
void oracle_sanitize(float *x, uint32_t dim, nbl_quant_stats *stats);
/** NUM 4.1 in place; block 0 does nothing. No scaling. */
void oracle_hadamard(float *x, uint32_t dim, uint32_t block);
/** Multiplies by 2^-log2(block), the other half of undoing NUM 4.1; block 0 does nothing. */
void oracle_hadamard_scale(float *x, uint32_t dim, uint32_t block);
/** NUM 4.5 in place: x[d] * 2^(sign * shifts[d]). */
void oracle_shift(float *x, uint32_t dim, const uint8_t *shifts, int sign);
/** NUM 3.2, 3.4, 3.5: x holds dim finite numbers, after 3.1 and 4. Adds to saturated and flushed (and to nothing else);
 *  stats may be NULL. rule is read for the mxfp4 formats. */
void oracle_quantize(uint32_t format, uint32_t rule, const float *x, uint32_t dim, oracle_vector *out,
                     nbl_quant_stats *stats);
/** NUM 3.6: the query form, q_format NBL_Q8 or NBL_Q4 or 0. */
void oracle_quantize_query(uint32_t q_format, const float *x, uint32_t dim, oracle_vector *out);
/** Recomputes codes, exponent and values from the stored fields (NUM 2.3 to 2.5, 6.1). */
void oracle_canonical(oracle_vector *vector);
/** x[d] = c[d] * 2^E for d < D; exact. */
void oracle_decode(const oracle_vector *vector, float *x);

/* ------------------------------------------------------------------------------------------------ float core */

/** Whose arithmetic NUM 6.2 takes, "sm_90" at first; false for an unknown name. */
bool oracle_set_profile(const char *name);
/** Whether a format is one of NUM 6.1, and whether some region of a pool has one. */
bool oracle_is_float(uint32_t format);
bool oracle_pool_is_float(const nbl_pool *pool);
/** NUM 6.7: the scale of a head of a layer. */
float oracle_head_scale(const nbl_pool *pool, enum oracle_side side, uint32_t layer, uint32_t head);
/** Value of an E4M3 code that is no NaN. */
float oracle_e4m3_value(uint32_t code);
/** The quantizers of NUM 6.1; format, dim and padded_dim of out are set. */
void oracle_quantize_float(uint32_t rule, const float *x, oracle_vector *out, uint64_t *saturated);
/** Fills values of a vector in a float format. */
void oracle_float_values(oracle_vector *vector);
/** x rounded to fp16 or bf16 as NUM 6.3 does for queries. */
float oracle_round_operand(float x, bool fp16);
/** dot(c; a, b) of NUM 6.2. */
float oracle_dot(float c, const float *a, const float *b, uint32_t count, bool fp16);
/** x of NUM 7.2: the dot product of a query and a K in the same 4-bit float format. */
float oracle_dot_fp4(const oracle_vector *q, const oracle_vector *k);
/** dot(c; p, v) of NUM 7.3: fp8 steps of 32. */
float oracle_dot_fp8(float c, const float *p, const float *v, uint32_t count);
/** P of NUM 7.3 for u = t - GRID_F. */
float oracle_weight_e4m3(double u);
/** P of NUM 6.4 for u = t - GRID_F. */
float oracle_weight_float(double u, bool fp16);

/* ------------------------------------------------------------------------------------------------ pages */

/** Code bytes of one vector (F1). */
uint64_t oracle_code_bytes(uint32_t format, uint32_t dim);
/** Scale bytes of one vector, the number of its planes (F1, F5). */
uint64_t oracle_scale_bytes(uint32_t format, uint32_t dim);
/** Sizes of a page (F2). */
void oracle_page_layout(const nbl_kv_shape *shape, uint32_t k_format, uint32_t v_format, nbl_page_layout *out);
/** Byte of element d of token t inside one head's code part (F3, F4); *shift becomes 0 or 4 (0 for int8). */
uint64_t oracle_code_offset(enum oracle_side side, uint32_t format, uint32_t dim, uint32_t page_tokens, uint32_t t,
                            uint32_t d, uint32_t *shift);
/** Byte of plane n, token t inside one head's scale part (F5). */
uint64_t oracle_scale_offset(uint32_t page_tokens, uint32_t plane, uint32_t t);

/** Stores a vector as one token of one head of a page; codes and scales are the page's first bytes. */
void oracle_page_write(const nbl_kv_shape *shape, uint32_t k_format, uint32_t v_format, uint8_t *codes, uint8_t *scales,
                       enum oracle_side side, uint32_t head, uint32_t t, const oracle_vector *vector);
/** Reads it back, canonical form included. */
void oracle_page_read(const nbl_kv_shape *shape, uint32_t k_format, uint32_t v_format, const uint8_t *codes,
                      const uint8_t *scales, enum oracle_side side, uint32_t head, uint32_t t, oracle_vector *vector);

/** The region a page id belongs to (F6), or NULL. */
const nbl_region *oracle_region(const nbl_pool *pool, int64_t page);
/** First code and scale byte of a page of a layer (F6). */
uint8_t *oracle_page_codes(const nbl_region *region, uint32_t layer, int64_t page);
uint8_t *oracle_page_scales(const nbl_region *region, uint32_t layer, int64_t page);
/** The vector at a slot = page * page_tokens + offset of a pool. */
void oracle_slot_write(const nbl_pool *pool, uint32_t layer, int64_t slot, enum oracle_side side, uint32_t head,
                       const oracle_vector *vector);
void oracle_slot_read(const nbl_pool *pool, uint32_t layer, int64_t slot, enum oracle_side side, uint32_t head,
                      oracle_vector *vector);

/* ------------------------------------------------------------------------------------------------ tensors */

/** Element (i0, i1, i2, i3) of a tensor of any rank up to 4, converted to binary32; indices past its rank are 0. */
float oracle_tensor_get(const nbl_tensor *tensor, uint64_t i0, uint64_t i1, uint64_t i2, uint64_t i3);
/** The same element set from a binary32, rounded to the tensor's type (NUM 1.1). */
void oracle_tensor_set(const nbl_tensor *tensor, uint64_t i0, uint64_t i1, uint64_t i2, uint64_t i3, float x);
/** The first `count` elements along the last axis, (i0, i1, ...) being the axes before it. */
void oracle_row_get(const nbl_tensor *tensor, uint64_t i0, uint64_t i1, uint64_t i2, float *x, uint32_t count);
void oracle_row_set(const nbl_tensor *tensor, uint64_t i0, uint64_t i1, uint64_t i2, const float *x, uint32_t count);

/* ------------------------------------------------------------------------------------------------ operations */

/** NUM 3, 4.1, 4.2. workspace and stream are not read. */
void oracle_append(const nbl_append_args *args);
/** NUM 5.1 to 5.7. workspace, stream and the *_max bounds are not read; state tensors are [N, Tq, Hq, ...]. */
void oracle_attend(const nbl_attend_args *args);
/** NUM 4.4. */
void oracle_gather(const nbl_gather_args *args);
/** Whole pages, all layers; the padding bytes of F2 stay as they are, which the page leaves open. */
void oracle_copy_pages(const nbl_copy_pages_args *args);
/** NUM 3.7. */
void oracle_transcode(const nbl_transcode_args *args);
/** NUM 5.6 to 5.8. */
void oracle_merge(const nbl_merge_args *args);

/** NUM 5.2: whether row i of sequence b sees token j. */
bool oracle_visible(const nbl_attend_args *args, uint32_t b, uint32_t i, int64_t j);

/* ------------------------------------------------------------------------------------------------ exact softmax */

/** One row of softmax attention over plain numbers, for accuracy tests. */
typedef struct oracle_exact_args {
    uint32_t k_dim;
    uint32_t v_dim;
    uint32_t tokens;
    uint32_t reserved;
    const float *q; /**< [k_dim] */
    const float *k; /**< [tokens], k_stride floats apart */
    const float *v; /**< [tokens], v_stride floats apart */
    uint64_t k_stride;
    uint64_t v_stride;
    const uint8_t *visible; /**< [tokens] or NULL: all */
    double sm_scale;        /**< 0: 1/sqrt(k_dim) */
    double soft_cap;        /**< 0: none */
    double alibi_slope;
    double position;   /**< of the row, for ALiBi */
    const float *sink; /**< natural units, or NULL */
} oracle_exact_args;

/** Softmax attention in binary64 of one row; o[v_dim], *lse natural. An empty row gives 0 and -inf. */
void oracle_exact_row(const oracle_exact_args *args, double *o, double *lse);

/** The whole call in binary64 over given K and V: k[b] is [kv_len[b], Hk, Dk], v[b] is [kv_len[b], Hk, Dv], packed
 *  and untransformed. o is [Tq, Hq, Dv], lse [Tq, Hq] in the base the flags ask for; either may be NULL. Pool contents,
 *  page table and centres are not read. */
void oracle_reference(const nbl_attend_args *args, const float *const *k, const float *const *v, double *o,
                      double *lse);

#ifdef __cplusplus
}
#endif

#endif
