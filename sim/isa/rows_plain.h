/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file rows_plain.h
 * @brief Loops over one vector that the compiler vectorises by itself, with what the file that includes this may use.
 */
#ifndef SIM_ROWS_PLAIN_H
#define SIM_ROWS_PLAIN_H

#include "transform.h"

static void shift_up(float *x, uint32_t dim, const uint8_t *shifts)
{
    nbl_shift_up(x, dim, shifts);
}

static void shift_down(float *x, uint32_t dim, const uint8_t *shifts)
{
    nbl_shift_down(x, dim, shifts);
}

static void subtract_center(float *x, uint32_t dim, const int8_t *codes, uint8_t exponent)
{
    nbl_center_subtract(x, dim, codes, exponent);
}

#endif
