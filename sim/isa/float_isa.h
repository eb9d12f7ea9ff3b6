/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file float_isa.h
 * @brief The loop of float_loop.h once for each instruction set.
 */
#ifndef SIM_FLOAT_ISA_H
#define SIM_FLOAT_ISA_H

#include "float.h"

#define SIM_FLOAT_DECLARE(name)                                                                               \
    void name(const nbl_mma_model *model, int32_t fraction, sim_float_array a, uint32_t n, sim_float_array b, \
              uint32_t stride, uint32_t lanes, float *c)

SIM_FLOAT_DECLARE(sim_float_dot_scalar);
#if defined(__x86_64__)
SIM_FLOAT_DECLARE(sim_float_dot_avx2);
SIM_FLOAT_DECLARE(sim_float_dot_avx512);
#endif

#endif
