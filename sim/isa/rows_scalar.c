/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file rows_scalar.c
 * @brief The loops over one vector in plain C.
 */
#include "isa.h"
#include "quantize.h"
#include "tensor.h"
#include "transform.h"

static int64_t element_bytes(uint32_t dtype)
{
    return dtype == NBL_F32 ? 4 : 2;
}

static void load_row(const uint8_t *from, uint32_t dtype, uint32_t dim, float *x, nbl_quant_stats *stats)
{
    sim_read(from, dtype, element_bytes(dtype), dim, x);
    for (uint32_t d = 0; d < dim; ++d) {
        x[d] = nbl_sanitize(x[d], stats);
    }
}

static void store_row(uint8_t *to, uint32_t dtype, uint32_t dim, const float *x)
{
    sim_write(to, dtype, element_bytes(dtype), dim, x);
}

static void interleave(const uint8_t *from, uint64_t bytes, uint32_t n, uint8_t *to)
{
    for (uint32_t i = 0; i < n; ++i) {
        for (uint32_t t = 0; t < 4u; ++t) {
            *to++ = from[t * bytes + i];
        }
    }
}

const sim_row_loops sim_row_loops_scalar = {
    .load = load_row,
    .store = store_row,
    .shift_up = nbl_shift_up,
    .shift_down = nbl_shift_down,
    .hadamard = nbl_hadamard,
    .subtract_center = nbl_center_subtract,
    .quantize = nbl_vector_quantize,
    .interleave = interleave,
};
