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

/** Two elements of a 16-bit type, RNE, the first one lowest. */
PTX_FN uint32_t half_pair(uint32_t dtype, float low, float high)
{
    return dtype == NBL_BF16 ? ptx_bf16x2(low, high) : ptx_f16x2(low, high);
}

/** Writes the lane's elements of a row, RNE. */
template <int E>
PTX_FN void warp_row_write(uint8_t *row, int64_t stride, uint32_t dtype, uint32_t lane, const float (&x)[E])
{
    if (dtype == NBL_F32 || stride != 2 || (uint64_t)row % (2u * E) != 0) {
#pragma unroll
        for (uint32_t i = 0; i < E; ++i) {
            cuda_element_write(row + (int64_t)(E * lane + i) * stride, dtype, x[i]);
        }
        return;
    }
    uint32_t words[E / 2];
#pragma unroll
    for (uint32_t i = 0; i < E / 2u; ++i) {
        words[i] = half_pair(dtype, x[2u * i], x[2u * i + 1u]);
    }
    uint32_t *to = (uint32_t *)(void *)row + E / 2u * lane;
    if (E == 8) {
        *(uint4 *)(void *)to = make_uint4(words[0], words[1 % (E / 2)], words[2 % (E / 2)], words[3 % (E / 2)]);
    } else if (E == 4) {
        *(uint2 *)(void *)to = make_uint2(words[0], words[1 % (E / 2)]);
    } else {
        *to = words[0];
    }
}

/** Adds the sink of the query head, if there are sinks. */
template <int E> PTX_FN void finish_sink_of_warp(const attend_params &p, uint32_t head, row_total<E> &total)
{
    if (p.sinks != NULL) {
        nbl_state_add_sink(&total.head, total.o, E, p.sinks[head]);
    }
}

/** Writes LSE of a row; the sink is in. */
template <int E>
PTX_FN void finish_lse_of_warp(const attend_params &p, uint32_t token, uint32_t head, uint32_t lane,
                               const row_total<E> &total)
{
    uint8_t *to = p.lse.data + (int64_t)token * p.lse.stride[0] + (int64_t)head * p.lse.stride[1];
    if (lane == 0) {
        *(float *)(void *)to = nbl_state_lse(&total.head, (p.flags & NBL_ATTEND_LSE_BASE2) != 0);
    }
}

/** Writes O of a row; the sink is in. */
template <int E>
PTX_FN void finish_o_of_warp(const attend_params &p, uint32_t token, uint32_t head, uint32_t lane, row_total<E> &total)
{
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
    warp_row_write(to, p.o.stride[2], p.o.dtype, lane, total.o);
}

/** Writes O and LSE of a row (NUM 5.7), as far as they are asked for. */
template <int E>
PTX_FN void finish_row_of_warp(const attend_params &p, uint32_t token, uint32_t head, uint32_t lane,
                               row_total<E> &total)
{
    finish_sink_of_warp(p, head, total);
    if (p.lse.data != NULL) {
        finish_lse_of_warp(p, token, head, lane, total);
    }
    if (p.o.data != NULL) {
        finish_o_of_warp(p, token, head, lane, total);
    }
}

#endif
