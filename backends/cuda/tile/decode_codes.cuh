/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file decode_codes.cuh
 * @brief Four E2M1 codes at a time to signed bytes, for matrix products (NUM 2.4).
 *
 * PRMT looks a code's magnitude up; a set sign bit makes it replicate the entry's sign instead. The table of
 * magnitude + 1 gives 0 for negative codes, that of -magnitude (with -1 for 0, whose negative is never stored), asked
 * with the sign turned, -1 for positive ones. The sum of both products is that of the codes.
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

/** Byte i: minus factor * that magnitude; -1 for 0. */
static constexpr __host__ __device__ uint32_t down_entries(int first, int factor)
{
    constexpr int codes[16] = {NBL_E2M1_CODES(E2M1_CODE)};
    uint32_t word = 0;
    for (int i = 0; i < 4; ++i) {
        int magnitude = factor * codes[first + i];
        word |= ((uint32_t)(magnitude == 0 ? -1 : -magnitude) & 0xffu) << (8 * i);
    }
    return word;
}

/** Positive codes: FACTOR * code + 1; negative ones: 0. Of the selector's four low nibbles. */
template <int FACTOR> PTX_FN uint32_t e2m1_up(uint32_t codes)
{
    constexpr uint32_t low = up_entries(0, FACTOR), high = up_entries(4, FACTOR);
    return ptx_prmt(low, high, codes);
}

/** Negative codes: FACTOR * code; positive ones: -1. The codes' sign bits are turned. */
template <int FACTOR> PTX_FN uint32_t e2m1_down(uint32_t turned)
{
    constexpr uint32_t low = down_entries(0, FACTOR), high = down_entries(4, FACTOR);
    return ptx_prmt(low, high, turned);
}

#endif
