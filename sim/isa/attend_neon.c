/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file attend_neon.c
 * @brief The loops of neon_loops.h for AArch64 with dotprod.
 */
#define TABLE sim_isa_neon
#define NAME "neon"
#include "neon_loops.h"
