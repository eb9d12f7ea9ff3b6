/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file finish_warp.cuh
 * @brief The last step of a row, from a state to O and LSE (NUM 5.7), by a warp.
 */
#ifndef CUDA_FINISH_WARP_H
#define CUDA_FINISH_WARP_H

#include "merge.h"
#include "query_warp.cuh"

/** A warp's row: elements E * lane.. of O. */
template <int E> struct row_total {
    nbl_state_head head;
    float o[E];
};

/** Writes O and LSE of a row (NUM 5.7). */
template <int E>
PTX_FN void finish_row_of_warp(const attend_params &p, uint32_t token, uint32_t head, uint32_t lane,
                               row_total<E> &total)
{
    if (p.sinks != NULL) {
        nbl_state_add_sink(&total.head, total.o, E, p.sinks[head]);
    }
    if (p.lse.data != NULL && lane == 0) {
        uint8_t *to = p.lse.data + (int64_t)token * p.lse.stride[0] + (int64_t)head * p.lse.stride[1];
        *(float *)(void *)to = nbl_state_lse(&total.head, (p.flags & NBL_ATTEND_LSE_BASE2) != 0);
    }
    if (p.o.data == NULL) {
        return;
    }
    nbl_state_output(&total.head, total.o, E, 0);
    if (p.v_hadamard != 0) {
        warp_hadamard(total.o, lane, p.v_hadamard);
        const float inverse = nbl_pow2(-nbl_log2_of(p.v_hadamard));
#pragma unroll
        for (int i = 0; i < E; ++i) { /* zeros of a row without weight stay +0 */
            total.o[i] = total.head.sum < 0x1p-126f ? 0.0f : total.o[i] * inverse;
        }
    }
    uint8_t *to = p.o.data + (int64_t)token * p.o.stride[0] + (int64_t)head * p.o.stride[1];
#pragma unroll
    for (uint32_t i = 0; i < E; ++i) {
        cuda_element_write(to + (int64_t)(E * lane + i) * p.o.stride[2], p.o.dtype, total.o[i]);
    }
}

#endif
