/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file e8m0.h
 * @brief Exponent bytes (NUM 2.1, 2.2): E8M0 with bias 127, and the ranges this product uses of it.
 */
#ifndef NBL_NUM_E8M0_H
#define NBL_NUM_E8M0_H

#include "fn.h"

#define NBL_E8M0_BIAS 127
#define NBL_E_MIN (-40) /**< vector exponents, NUM 2.2 */
#define NBL_E_MAX 40
#define NBL_BLOCK_E_MIN (-39) /**< mxfp4 block exponents */
#define NBL_BLOCK_E_MAX 40
#define NBL_BLOCK_E_SPREAD 3     /**< NUM 2.4 */
#define NBL_INPUT_MAX 0x1.fcp46f /**< X = 127 * 2^40, NUM 3.1 */

NBL_FN uint8_t nbl_e8m0_encode(int32_t exponent)
{
    return (uint8_t)(exponent + NBL_E8M0_BIAS);
}

NBL_FN int32_t nbl_e8m0_decode(uint8_t byte)
{
    return (int32_t)byte - NBL_E8M0_BIAS;
}

/** Value of any E8M0 byte as OCP defines it: 2^(byte - 127), NaN for 255. */
NBL_FN float nbl_e8m0_value(uint8_t byte)
{
    if (byte == 0xffu) {
        return nbl_float_of(0x7fc00000u);
    }
    return byte == 0 ? 0x1p-127f : nbl_pow2(nbl_e8m0_decode(byte));
}

/** Exponent of a byte found in a page, brought into the legal range: bytes of unused slots may hold anything
 * (NUM 5.10). */
NBL_FN int32_t nbl_e8m0_decode_slot(uint8_t byte)
{
    return nbl_clamp_i32(nbl_e8m0_decode(byte), NBL_E_MIN, NBL_E_MAX);
}

#endif
