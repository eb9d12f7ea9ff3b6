/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file decode_codes.cuh
 * @brief Four E2M1 codes at a time to signed bytes, for matrix products (NUM 2.4).
 *
 * PRMT looks a code's magnitude up; a set sign bit makes it replicate the entry's sign instead. The table of
 * magnitude + 1 gives 0 for negative codes, that of -magnitude (with -1 for 0, whose negative is never stored), asked
 * with all bits turned, -1 for positive ones. The sum of both products is that of the codes.
 * One half of a table is in the instruction, the other in a register, which the compiler fills each time if it can.
 */
#ifndef CUDA_DECODE_CODES_H
#define CUDA_DECODE_CODES_H

#include "../ptx/ptx.cuh"
#include "e2m1.h"

#define E2M1_CODE(x) (x)

/** Byte i: factor * magnitude of E2M1 code first + i, plus 1. */
static constexpr __host__ __device__ uint32_t up_entries(int first, int factor)
{
    constexpr int codes[16] = {NBL_E2M1_CODES(E2M1_CODE)};
    uint32_t word = 0;
    for (int i = 0; i < 4; ++i) {
        word |= (uint32_t)(factor * codes[first + i] + 1) << (8 * i);
    }
    return word;
}

/** Byte i: minus factor times the magnitude of code 7 - (first + i); -1 for 0. */
static constexpr __host__ __device__ uint32_t down_entries(int first, int factor)
{
    constexpr int codes[16] = {NBL_E2M1_CODES(E2M1_CODE)};
    uint32_t word = 0;
    for (int i = 0; i < 4; ++i) {
        int magnitude = factor * codes[7 - first - i];
        word |= ((uint32_t)(magnitude == 0 ? -1 : -magnitude) & 0xffu) << (8 * i);
    }
    return word;
}

/** Entries 0..3, and all bits set. */
struct e2m1_tables {
    uint32_t up;
    uint32_t down;
    uint32_t ones;
};

template <int FACTOR> PTX_FN e2m1_tables e2m1_constants(void)
{
    constexpr uint32_t up = up_entries(0, FACTOR), down = down_entries(0, FACTOR);
    return {up, down, 0xffffffffu};
}

/** The same in registers that stay: the compiler does not see what is in them. */
template <int FACTOR> PTX_FN e2m1_tables e2m1_registers(void)
{
    constexpr uint32_t up = up_entries(0, FACTOR), down = down_entries(0, FACTOR);
    return {ptx_constant(up), ptx_constant(down), ptx_constant(0xffffffffu)};
}

/** Positive codes: FACTOR * code + 1; negative ones: 0. Of the selector's four low nibbles. */
template <int FACTOR> PTX_FN uint32_t e2m1_up(const e2m1_tables &tables, uint32_t codes)
{
    constexpr uint32_t high = up_entries(4, FACTOR);
    return ptx_prmt(tables.up, high, codes);
}

/** Negative codes: FACTOR * code; positive ones: -1. All bits of the codes are turned. */
template <int FACTOR> PTX_FN uint32_t e2m1_down(const e2m1_tables &tables, uint32_t turned)
{
    constexpr uint32_t high = down_entries(4, FACTOR);
    return ptx_prmt(tables.down, high, turned);
}

/** A operands of eight E2M1 codes each for rows g (x) and g + 8 (y); the products of up and down are to be added. */
template <int FACTOR>
PTX_FN void e2m1_operands(const e2m1_tables &tables, uint32_t x, uint32_t y, uint32_t (&up)[4], uint32_t (&down)[4])
{
    up[0] = e2m1_up<FACTOR>(tables, x);
    up[1] = e2m1_up<FACTOR>(tables, y);
    up[2] = e2m1_up<FACTOR>(tables, ptx_dp2a_high_half(x));
    up[3] = e2m1_up<FACTOR>(tables, ptx_dp2a_high_half(y));
    down[0] = e2m1_down<FACTOR>(tables, ptx_dp2a_not_low(x, tables.ones));
    down[1] = e2m1_down<FACTOR>(tables, ptx_dp2a_not_low(y, tables.ones));
    down[2] = e2m1_down<FACTOR>(tables, ptx_dp2a_not_high(x, tables.ones));
    down[3] = e2m1_down<FACTOR>(tables, ptx_dp2a_not_high(y, tables.ones));
}

#endif
