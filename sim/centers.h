/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file centers.h
 * @brief The K centre and channel shifts of a sequence and head (NUM 4.2, 4.5, F7).
 */
#ifndef SIM_CENTERS_H
#define SIM_CENTERS_H

#include <nibble/nibble_types.h>

/** One centre in its array. */
typedef struct sim_center {
    int8_t *codes; /* NULL without a mean */
    uint8_t *exponent;
    uint8_t *shifts; /**< NULL without channel shifts */
} sim_center;

static inline sim_center sim_center_at(const nbl_centers *centers, const nbl_kv_shape *shape, uint32_t sequence,
                                       uint32_t head)
{
    uint64_t row = centers->rows != NULL ? (uint64_t)centers->rows[sequence] : sequence;
    uint64_t index = row * shape->kv_heads + head;
    sim_center center = {NULL, NULL, NULL};
    if (shape->centering & NBL_CENTERING_MEAN) {
        center.codes = centers->codes + index * shape->k_dim;
        center.exponent = centers->exponents + index;
    }
    if (shape->centering & NBL_CENTERING_SHIFT) {
        center.shifts = centers->shifts + index * shape->k_dim;
    }
    return center;
}

/** Sequence that row `at` of an indptr belongs to. */
static inline uint32_t sim_sequence_of(const int32_t *indptr, uint32_t batch, uint64_t at)
{
    uint32_t low = 0;
    uint32_t high = batch;
    while (high - low > 1u) {
        uint32_t middle = low + (high - low) / 2u;
        if ((uint64_t)indptr[middle] <= at) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

#endif
