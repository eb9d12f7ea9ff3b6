/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file block.h
 * @brief One stored vector outside its page, and its canonical form (NUM 2).
 */
#ifndef NBL_NUM_BLOCK_H
#define NBL_NUM_BLOCK_H

#include "e2m1.h"
#include "e8m0.h"
#include "layout.h"

#define NBL_DIM_PADDED_MAX 576u
#define NBL_SCALES_MAX 36u /**< planes of any format at NBL_DIM_PADDED_MAX */

/** Element codes as the page holds them and scale bytes in plane order (F1, F5). Elements beyond the dimension up to
 * the padded one hold the code of zero. */
typedef struct nbl_vector {
    uint32_t format;
    uint32_t dim;
    uint8_t codes[NBL_DIM_PADDED_MAX];
    uint16_t halves[NBL_DIM_PADDED_MAX]; /**< in place of codes where they have 16 bits */
    uint8_t scales[NBL_SCALES_MAX];
} nbl_vector;

/** Code of zero: 8 for int4p, whose codes are q + 8, else 0. */
NBL_FN uint8_t nbl_block_zero_code(uint32_t format)
{
    return format == NBL_INT4P ? 8u : 0u;
}

/** X(q) of the sixteen stored int4p codes in order, for lookup tables. */
#define NBL_INT4P_CODES(X) \
    X(-8), X(-7), X(-6), X(-5), X(-4), X(-3), X(-2), X(-1), X(0), X(1), X(2), X(3), X(4), X(5), X(6), X(7)

/** m_b of an int4p vector: nibbles of multiplier pairs, NUM 2.5. */
NBL_FN int32_t nbl_int4p_multiplier(const uint8_t *scales, uint32_t block)
{
    uint32_t pair = scales[block / 2u];
    return (int32_t)((pair >> (4u * (block % 2u))) & 15u) + 1;
}

/** Smallest block exponent of an mxfp4 vector. */
NBL_FN int32_t nbl_mxfp4_exponent_min(const nbl_vector *v)
{
    int32_t least = nbl_e8m0_decode_slot(v->scales[0]);
    for (uint32_t b = 1; b < nbl_layout_scale_planes(v->format, v->dim); ++b) {
        int32_t e = nbl_e8m0_decode_slot(v->scales[b]);
        least = e < least ? e : least;
    }
    return least;
}

/** Exponent E of the canonical form (NUM 2.3 to 2.5). */
NBL_FN int32_t nbl_vector_exponent(const nbl_vector *v)
{
    if (nbl_layout_is_mxfp4(v->format)) {
        return nbl_mxfp4_exponent_min(v) - 1;
    }
    return nbl_e8m0_decode_slot(v->scales[nbl_layout_exponent_plane(v->format, v->dim)]);
}

/** Brings a vector to canonical form: codes[0..Dp-1] and the exponent returned (NUM 2.3 to 2.5). Bytes that no
 * quantizer writes (NUM 5.10) give some codes, without undefined behaviour. */
NBL_FN int32_t nbl_vector_canonical(const nbl_vector *v, int8_t *codes)
{
    uint32_t padded = nbl_layout_dim_padded(v->dim);
    uint32_t block_dim = nbl_layout_block_dim(v->format, v->dim);
    int32_t exponent = nbl_vector_exponent(v);
    for (uint32_t d = 0; d < padded; ++d) {
        uint32_t block = d / block_dim;
        if (v->format == NBL_INT8) {
            codes[d] = (int8_t)v->codes[d];
        } else if (v->format == NBL_INT4P) {
            codes[d] = (int8_t)(((int32_t)v->codes[d] - 8) * nbl_int4p_multiplier(v->scales, block));
        } else {
            int32_t shift = (nbl_e8m0_decode_slot(v->scales[block]) - exponent - 1) & NBL_BLOCK_E_SPREAD;
            codes[d] = (int8_t)(nbl_e2m1_half_units(v->codes[d]) * (1 << shift));
        }
    }
    return exponent;
}

#endif
