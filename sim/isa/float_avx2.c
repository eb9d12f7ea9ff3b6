/* SPDX-License-Identifier: Apache-2.0 */
/** @file float_avx2.c  The float core's loop of this instruction set. */
#include "float_isa.h"

#define SIM_FLOAT_DOT sim_float_dot_avx2
#define SIM_FLOAT_LANES 8u
#define SIM_FLOAT_UNCHECKED
#include "float_loop.h"
