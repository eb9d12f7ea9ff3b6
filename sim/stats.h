/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file stats.h
 * @brief Adding up quantizer counters; sums of integers, so their order does not matter.
 */
#ifndef SIM_STATS_H
#define SIM_STATS_H

#include <nibble/nibble_types.h>

/** Adds a thread's counters to the caller's, if he wants them. */
static inline void sim_stats_add(nbl_quant_stats *total, const nbl_quant_stats *part)
{
    if (total == NULL) {
        return;
    }
    total->vectors += part->vectors;
    total->nan_inputs += part->nan_inputs;
    total->inf_inputs += part->inf_inputs;
    total->saturated += part->saturated;
    total->flushed += part->flushed;
}

#endif
