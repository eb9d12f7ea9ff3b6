/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file stats.h
 * @brief Adding up quantizer counters; sums of integers, so their order does not matter.
 */
#ifndef SIM_STATS_H
#define SIM_STATS_H

#include <nibble/nibble_types.h>

/** Adds a thread's counters to the caller's, if he wants them; threads may do so at the same time. */
static inline void sim_stats_add(nbl_quant_stats *total, const nbl_quant_stats *part)
{
    if (total == NULL) {
        return;
    }
    __atomic_add_fetch(&total->vectors, part->vectors, __ATOMIC_RELAXED);
    __atomic_add_fetch(&total->nan_inputs, part->nan_inputs, __ATOMIC_RELAXED);
    __atomic_add_fetch(&total->inf_inputs, part->inf_inputs, __ATOMIC_RELAXED);
    __atomic_add_fetch(&total->saturated, part->saturated, __ATOMIC_RELAXED);
    __atomic_add_fetch(&total->flushed, part->flushed, __ATOMIC_RELAXED);
}

#endif
