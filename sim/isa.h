/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file isa.h
 * @brief The hot loops of attend, one table per instruction set; all tables give the same bits.
 *
 * A tile is 128 tokens of one kv head, in four groups of 32. Whatever its format, a group is brought once into the
 * canonical int8 form (NUM 2) in a layout whose lanes need no horizontal sums, and is then used by all query rows of a
 * work item:
 *
 *     K  uint8 code + 128   [group][Dk/4][token 32][4 d]     a 64-byte line: 16 tokens, 4 d
 *     V  int8  code         [group][token/4 8][Dv][4 token]  a 64-byte line: 16 d, 4 tokens
 *
 * Codes of K carry +128 because one operand of the byte dot product is unsigned; a row's start value takes it back
 * exactly.
 */
#ifndef SIM_ISA_H
#define SIM_ISA_H

#include "block.h"

#include <stdint.h>

#define SIM_TILE 128u
#define SIM_GROUP 32u
#define SIM_GROUPS (SIM_TILE / SIM_GROUP)
#define SIM_ROWS_MAX 256u /**< query rows of a work item */
#define SIM_CACHE_LINE 64u
#define SIM_BLOCK 16u              /**< elements of an offset of sim_rows */
#define SIM_WIDE_BYTES (64u << 10) /**< that coded_widen takes at most */

/** 32 stored tokens in the layout of a page whose groups are full (F3, F4). */
typedef struct sim_group {
    uint32_t format;
    uint32_t dim;
    const uint8_t *codes;
    const uint8_t *scales; /**< plane 0 of the first token */
    uint64_t plane_stride;
} sim_group;

/** K or V of a tile as stored. */
typedef struct sim_coded {
    uint32_t count;   /**< groups, from the first */
    uint32_t uniform; /**< 1: all groups have one format */
    sim_group group[SIM_GROUPS];
    /** Bytes that are wanted soon: a dot product asks the caches for ahead_bytes from ahead[g] on while it works on
     * group g. */
    const uint8_t *ahead[SIM_GROUPS];
    uint32_t ahead_bytes; /**< 0: nothing */
} sim_coded;

/** Query rows in words of four codes, those of all rows side by side. */
typedef struct sim_rows {
    uint32_t count;
    uint32_t dim;           /**< padded */
    const int32_t *words;   /**< [dim / 4][count] */
    const int32_t *offsets; /**< [dim / 16][count]: -8 * the sum of 16 codes */
    const int32_t *bias;    /**< [count]: -128 * the sum of a row's codes */
    const int8_t *codes;    /**< [count][dim]: the same codes, row by row */
    const void *wide;       /**< the same in the form of coded_widen, if there is one */
} sim_rows;

/** A decoded tile; arrays are 64-byte aligned. */
typedef struct sim_tile {
    uint32_t groups; /**< decoded groups, from the first */
    uint32_t k_dim;  /**< padded */
    uint32_t v_dim;  /**< padded */
    uint8_t *k;
    int8_t *v;
    float unit[SIM_TILE];     /**< 2^ek */
    float exponent[SIM_TILE]; /**< ev */
    float weight[SIM_TILE];   /**< 2^-ev */
} sim_tile;

/** One row's view of a tile, for softmax. */
typedef struct sim_row_tile {
    const float *x;      /**< float(I) * 2^ek, or tanhp(...) with soft cap */
    const float *a;      /**< ev, with ALiBi's term if there is one */
    const float *weight; /**< 2^-ev */
    uint64_t visible[2]; /**< bit t: token t takes part; not both 0 */
    uint32_t groups;
    float scale; /**< cq_row, or fl(soft_cap * LOG2E) */
} sim_row_tile;

/** What a row carries from tile to tile of a chunk (NUM 5.4). */
typedef struct sim_row_state {
    float scale;  /**< cq_row; cs_row with soft cap (NUM 5.1) */
    float base;   /**< B */
    float sum;    /**< L */
    int has_base; /**< 0: the chunk has no base yet */
} sim_row_state;

/** 2^(g - 1) on [1, 2) to a relative 2^-18.5; P and q need 2^-16 (NUM 5.5). */
#define SIM_GRID_C0 0x1.05118ep-1f
#define SIM_GRID_C1 0x1.3fb382p-2f
#define SIM_GRID_C2 0x1.54cb04p-3f
#define SIM_GRID_C3 -0x1.095946p-9f
#define SIM_GRID_C4 0x1.bae7b4p-7f

/** What softmax finds (NUM 5.4). */
typedef struct sim_softmax {
    float base;    /**< B after this tile */
    float rescale; /**< factor for L and O before they are added to; 1 if the base did not move */
    float b;
    float l;
    uint32_t left_out; /**< 1: the tile adds nothing (rescale still counts) */
} sim_softmax;

/** Loops over one vector. */
typedef struct sim_row_loops {
    /** dim elements side by side to binary32, sanitized (NUM 3.1). */
    void (*load)(const uint8_t *from, uint32_t dtype, uint32_t dim, float *x, nbl_quant_stats *stats);
    /** The other way, RNE (NUM 1.1). */
    void (*store)(uint8_t *to, uint32_t dtype, uint32_t dim, const float *x);
    void (*shift_up)(float *x, uint32_t dim, const uint8_t *shifts);                        /**< nbl_shift_up */
    void (*shift_down)(float *x, uint32_t dim, const uint8_t *shifts);                      /**< nbl_shift_down */
    void (*hadamard)(float *x, uint32_t dim, uint32_t n);                                   /**< nbl_hadamard */
    void (*subtract_center)(float *x, uint32_t dim, const int8_t *codes, uint8_t exponent); /**< nbl_center_subtract */
    /** nbl_vector_quantize. */
    void (*quantize)(const float *x, uint32_t dim, uint32_t format, uint32_t rule, nbl_vector *v,
                     nbl_quant_stats *stats);
    /** to[4 * i + t] = from[t * bytes + i], i < n (a multiple of 16), t < 4. */
    void (*interleave)(const uint8_t *from, uint64_t bytes, uint32_t n, uint8_t *to);
} sim_row_loops;

extern const sim_row_loops sim_row_loops_scalar;
#if defined(__x86_64__)
extern const sim_row_loops sim_row_loops_avx2;
extern const sim_row_loops sim_row_loops_avx512;
/** Block exponents of mxfp4 (NUM 3.4), also as scales of v, whose format and dim are set. */
void sim_avx2_block_exponents(const float *x, uint32_t rule, nbl_vector *v, int32_t *exponents);
#endif

typedef struct sim_isa {
    const char *name;
    const sim_row_loops *row;
    /** Before a thread's first call of the loops of attend below, and after its last one; NULL: nothing to do. */
    void (*enter)(void);
    void (*leave)(void);
    /** Decodes K of a group: codes [Dk/4][32][4], unit[32] = 2^ek. */
    void (*decode_k)(const sim_group *group, uint8_t *codes, float *unit);
    /** Decodes V of a group: codes [8][Dv][4], exponent[32] = ev, weight[32] = 2^-ev. */
    void (*decode_v)(const sim_group *group, int8_t *codes, float *exponent, float *weight);
    /** x[r*128 + t] = float(sum_d q[r][d] * k[t][d]) * 2^ek (NUM 5.3). */
    void (*dot_qk)(const sim_tile *tile, const sim_rows *q, float *x);
    /** P bytes and the row's sums of one tile (NUM 5.4). first: the chunk has no base yet. */
    sim_softmax (*softmax)(const sim_row_tile *row, float base, int first, uint8_t *p);
    /** The same for rows side by side, x[row][128], that see all 128 tokens and whose a is ev: does as many of them,
     * from the first, as neither move their base nor leave the tile out, and returns how many. p[row][128], b[row];
     * rows without a base get it, L is added to. NULL: there is no such loop. */
    uint32_t (*softmax_rows)(const sim_tile *tile, const float *x, sim_row_state *const *rows, uint32_t count,
                             uint8_t *p, float *b);
    /** dot_qk and softmax_rows in one, for rows that softmax_rows may take; x[row][128] is overwritten. 0: not for so
     * many rows, or the first one moves its base or leaves the tile out. NULL: there is no such loop. */
    uint32_t (*qk_softmax_rows)(const sim_tile *tile, const sim_rows *q, sim_row_state *const *rows, float *x,
                                uint8_t *p, float *b);
    /** o[r][d] = fma(float(sum_t p[r*128 + t] * v[t][d]), b[r], o[r][d]) (NUM 5.4). */
    void (*dot_pv)(const sim_tile *tile, const uint8_t *p, float *const *o, const float *b, uint32_t rows);

    /** The loops below work on stored codes; up to this many rows they are faster than decoding first. 0: there are
     * none. All groups of a sim_coded have one format. */
    uint32_t coded_rows;
    uint32_t coded_formats; /**< bit f: they know format f */
    /** Brings up to coded_rows rows into a form of SIM_WIDE_BYTES that coded_qk works on; NULL: there is none. */
    void (*coded_widen)(const sim_rows *q, void *wide);
    /** exponent[32] = ev, weight[32] = 2^-ev of a group of V. */
    void (*coded_weights)(const sim_group *group, float *exponent, float *weight);
    /** dot_qk. */
    void (*coded_qk)(const sim_coded *k, const sim_rows *q, float *x);
    /** dot_pv. */
    void (*coded_pv)(const sim_coded *v, const uint8_t *p, float *const *o, const float *b, uint32_t rows);
} sim_isa;

/** Fills words, offsets and bias of sim_rows from codes [count][dim]. */
static inline void sim_rows_pack(const int8_t *codes, uint32_t count, uint32_t dim, int32_t *words, int32_t *offsets,
                                 int32_t *bias)
{
    for (uint32_t r = 0; r < count; ++r) {
        bias[r] = 0;
        for (uint32_t b = 0; b < dim / SIM_BLOCK; ++b) {
            int32_t sum = 0;
            for (uint32_t d = 0; d < SIM_BLOCK; ++d) {
                sum += codes[b * SIM_BLOCK + d];
            }
            offsets[b * count + r] = -8 * sum;
            bias[r] += -128 * sum;
        }
        for (uint32_t quad = 0; quad < dim / 4u; ++quad, codes += 4) {
            memcpy(&words[quad * count + r], codes, sizeof *words);
        }
    }
}

/** Asks for `lines` (a constant) lines, step bytes apart. */
static inline __attribute__((always_inline)) void sim_prefetch_lines(const uint8_t *at, uint32_t step, uint32_t lines)
{
    for (uint32_t i = 0; i < lines; ++i) {
        __builtin_prefetch(at + (uint64_t)i * step);
    }
}

/** Asks the caches for some bytes; a hint only. */
static inline void sim_prefetch(const uint8_t *at, uint32_t bytes)
{
    const uint8_t *const end = at + bytes;
    for (; end - at >= 4 * (int)SIM_CACHE_LINE; at += 4u * SIM_CACHE_LINE) {
        sim_prefetch_lines(at, SIM_CACHE_LINE, 4);
    }
    for (; at < end; at += SIM_CACHE_LINE) {
        __builtin_prefetch(at);
    }
}

extern const sim_isa sim_isa_scalar;
#if defined(__x86_64__)
extern const sim_isa sim_isa_avx2;
extern const sim_isa sim_isa_avx512;
extern const sim_isa sim_isa_amx;
#elif defined(__aarch64__)
extern const sim_isa sim_isa_neon; /**< dotprod */
extern const sim_isa sim_isa_i8mm;
#endif

/** Names of the tables this build has, from plain to best; NULL at the end. */
extern const char *const sim_isa_names[];

/** Table of a name, the best one this CPU has for NULL or "", NULL if the name is unknown or the CPU lacks it. */
const sim_isa *sim_isa_find(const char *name);

#endif
