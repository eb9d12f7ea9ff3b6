/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file floatgrid.h
 * @brief The float core's exponential (NUM 6.4): 2^u on the grid of 1/512, correctly rounded to bf16 or fp16.
 */
#ifndef NBL_NUM_FLOATGRID_H
#define NBL_NUM_FLOATGRID_H

#include "convert.h"
#include "e4m3.h"
#include "exp2grid.h"

#define NBL_FLOAT_GRID 24576.0f            /**< 1.5 * 2^14: a float of this size has steps of 1/512 */
#define NBL_FLOAT_REBASE 8.0f              /**< largest u: 2^8 still leaves fp16 room for sums in binary32 */
#define NBL_FLOAT_WEIGHT_MIN_FP16 (-24.0f) /**< below it an fp16 weight is 0; bf16: NBL_WEIGHT_MIN */

/** Bits of P = RNE(2^u) for u = t - GRID on the grid, u <= 8 (NUM 6.4). Any exp2 with a relative error below 2^-21.2
 * gives the same bits. */
NBL_FN uint16_t nbl_float_grid_half(float u, int is_fp16)
{
    if (u < (is_fp16 ? NBL_FLOAT_WEIGHT_MIN_FP16 : NBL_WEIGHT_MIN)) {
        return 0;
    }
    float p = nbl_exp2p(u);
    return is_fp16 ? nbl_f16_from_f32(p) : nbl_bf16_from_f32(p);
}

/** E4M3 code of P = RNE(2^(u + 8)), u <= 0 (NUM 7.3). */
NBL_FN uint8_t nbl_float_grid_e4m3(float u)
{
    return nbl_e4m3_encode(nbl_exp2p(u + 8.0f));
}

#endif
