/* SPDX-License-Identifier: Apache-2.0 */
/** @file float_avx512.c  The float core's loop of this instruction set. */
#include "float_isa.h"

#define SIM_FLOAT_DOT sim_float_dot_avx512
#define SIM_FLOAT_LANES 16u
#define SIM_FLOAT_UNCHECKED
#include "float_loop.h"
