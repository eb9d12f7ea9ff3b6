/* SPDX-License-Identifier: Apache-2.0 */
/** @file float_scalar.c  The float core's loop of this instruction set. */
#include "float_isa.h"

#define SIM_FLOAT_DOT sim_float_dot_scalar
#define SIM_FLOAT_LANES 4u
#include "float_loop.h"
