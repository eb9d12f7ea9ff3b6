/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file decode4.cuh
 * @brief Codes of stored formats to canonical int8, four to a word (NUM 2.3 to 2.5).
 */
#ifndef CUDA_DECODE4_H
#define CUDA_DECODE4_H

#include "../status.h"
#include "block.h"

#define DECODE4_E2M1_LOW 0x03020100u  /**< twice the magnitudes of E2M1 codes 0..3 */
#define DECODE4_E2M1_HIGH 0x0c080604u /**< of 4..7 */

/** Four E2M1 codes, one in the low nibble of each byte, times 2^shift. */
CUDA_DEVICE uint32_t decode4_e2m1(uint32_t nibbles, uint32_t shift)
{
    uint32_t pairs = nibbles & 0x07070707u;
    pairs |= pairs >> 4;
    uint32_t selector = (pairs & 0xffu) | (pairs >> 8 & 0xff00u);
    uint32_t magnitudes = __byte_perm(DECODE4_E2M1_LOW, DECODE4_E2M1_HIGH, selector) << shift;
    uint32_t signs = (nibbles >> 3 & 0x01010101u) * 0xffu;
    return __vsub4(magnitudes ^ signs, signs);
}

/** Four int4p codes, one in the low nibble of each byte, times one multiplier. */
CUDA_DEVICE uint32_t decode4_int4p(uint32_t nibbles, uint32_t multiplier)
{
    return __vsub4((nibbles & 0x0f0f0f0fu) * multiplier, multiplier * 0x08080808u);
}

/** Canonical code of one stored code of a 4-bit format, without its block multiplier. */
CUDA_DEVICE int32_t decode4_unit(uint32_t format, uint32_t nibble)
{
    return format == NBL_INT4P ? (int32_t)nibble - 8 : nbl_e2m1_half_units(nibble);
}

/** Four bytes times four multipliers, byte by byte. */
CUDA_DEVICE uint32_t decode4_multiply(uint32_t codes, uint32_t multipliers)
{
    uint32_t out = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        int32_t code = (int8_t)(codes >> (8u * i));
        out |= ((uint32_t)(code * (int32_t)(multipliers >> (8u * i) & 0xffu)) & 0xffu) << (8u * i);
    }
    return out;
}

#endif
