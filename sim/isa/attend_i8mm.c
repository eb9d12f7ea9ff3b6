/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file attend_i8mm.c
 * @brief The loops of neon_loops.h for AArch64 with i8mm.
 */
#define TABLE sim_isa_i8mm
#define NAME "i8mm"
#include "neon_loops.h"
