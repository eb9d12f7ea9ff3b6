/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file finish.cuh
 * @brief The last step of a row: from a state to O and LSE (NUM 5.7), by a block of 128 threads.
 *
 * Thread t holds the elements t, t + 128, ... of O, V of them.
 */
#ifndef CUDA_FINISH_H
#define CUDA_FINISH_H

#include "../attend.h"
#include "merge.h"

#define FINISH_THREADS 128u

/** Where a row goes; NULL where it is not asked for. */
struct finish_target {
    uint8_t *o;
    int64_t o_stride;
    uint32_t o_dtype;
    float *lse;
    const float *sink; /**< of the query head */
    uint32_t dim;
    uint32_t v_hadamard;
    bool lse_base2;
};

/** Butterfly of an element and the one `h` away from it; `d` says which of the two is mine. */
CUDA_DEVICE float finish_butterfly(float mine, float other, uint32_t d, uint32_t h)
{
    return nbl_fma(mine, (d & h) != 0 ? -1.0f : 1.0f, other); /* other + mine or other - mine: the product is exact */
}

/** Butterflies of NUM 4.1 over blocks of n of the row's elements: between lanes, then warps, then a thread's own.
 *  `shared` holds dim floats. */
template <uint32_t V> CUDA_DEVICE void finish_hadamard(float (&o)[V], float *shared, uint32_t dim, uint32_t n)
{
    const uint32_t t = threadIdx.x;
#pragma unroll
    for (uint32_t h = 1; h < 32u; h *= 2u) {
#pragma unroll
        for (uint32_t i = 0; i < V && h < n; ++i) {
            o[i] = finish_butterfly(o[i], __shfl_xor_sync(0xffffffffu, o[i], (int)h), t, h);
        }
    }
#pragma unroll
    for (uint32_t h = 32; h < FINISH_THREADS; h *= 2u) {
        if (h >= n) {
            return;
        }
        __syncthreads();
#pragma unroll
        for (uint32_t i = 0; i < V; ++i) {
            if (t + i * FINISH_THREADS < dim) {
                shared[t + i * FINISH_THREADS] = o[i];
            }
        }
        __syncthreads();
#pragma unroll
        for (uint32_t i = 0; i < V; ++i) {
            if (t + i * FINISH_THREADS < dim) {
                o[i] = finish_butterfly(o[i], shared[(t ^ h) + i * FINISH_THREADS], t, h);
            }
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < V && n > FINISH_THREADS; i += 2u) { /* n is 256 at most */
        const float low = o[i], high = o[(i + 1u) % V];
        o[i] = low + high;
        o[(i + 1u) % V] = low - high;
    }
}

/** Writes O and LSE of a row. `shared` holds dim floats. All 128 threads call it. */
template <uint32_t V>
CUDA_DEVICE void finish_row(const finish_target &to, nbl_state_head head, float (&o)[V], float *shared)
{
    if (to.sink != NULL) {
        nbl_state_add_sink(&head, o, V, *to.sink);
    }
    if (to.lse != NULL && threadIdx.x == 0) {
        *to.lse = nbl_state_lse(&head, to.lse_base2);
    }
    if (to.o == NULL) {
        return;
    }
    nbl_state_output(&head, o, V, 0);
    if (to.v_hadamard != 0) {
        finish_hadamard(o, shared, to.dim, to.v_hadamard);
        float inverse = nbl_pow2(-nbl_log2_of(to.v_hadamard));
        bool is_empty = head.sum < 0x1p-126f; /* zeros stay +0 */
#pragma unroll
        for (uint32_t i = 0; i < V; ++i) {
            o[i] = is_empty ? 0.0f : o[i] * inverse;
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < V; ++i) {
        uint32_t d = threadIdx.x + i * FINISH_THREADS;
        if (d < to.dim) {
            cuda_element_write(to.o + (int64_t)d * to.o_stride, to.o_dtype, o[i]);
        }
    }
}

/** Target of a query row of an attend call. */
CUDA_DEVICE finish_target finish_target_of(const attend_params *p, uint32_t token, uint32_t head)
{
    finish_target to;
    to.o = p->o.data != NULL ? p->o.data + (int64_t)token * p->o.stride[0] + (int64_t)head * p->o.stride[1] : NULL;
    to.o_stride = p->o.stride[2];
    to.o_dtype = p->o.dtype;
    to.lse = p->lse.data != NULL
                 ? (float *)(void *)(p->lse.data + (int64_t)token * p->lse.stride[0] + (int64_t)head * p->lse.stride[1])
                 : NULL;
    to.sink = p->sinks != NULL ? p->sinks + head : NULL;
    to.dim = p->v_dim;
    to.v_hadamard = p->v_hadamard;
    to.lse_base2 = (p->flags & NBL_ATTEND_LSE_BASE2) != 0;
    return to;
}

/** Writes the head of the n-th chunk's state to the state tensor, by the block's first threads (NUM 5.6). */
CUDA_DEVICE void finish_state_head(const attend_params *p, uint32_t n, uint32_t token, uint32_t q_head,
                                   const nbl_state_head &head)
{
    const cuda_tensor *heads = &p->state_head;
    uint8_t *at = heads->data + (int64_t)n * heads->stride[0] + (int64_t)token * heads->stride[1] +
                  (int64_t)q_head * heads->stride[2];
    if (threadIdx.x < CUDA_STATE_HEAD_FLOATS) {
        float value = threadIdx.x == 0   ? head.base
                      : threadIdx.x == 1 ? head.sum
                      : threadIdx.x == 2 ? head.offset
                                         : 0.0f;
        *(float *)(void *)(at + (int64_t)threadIdx.x * heads->stride[3]) = value;
    }
}

/** Element 0 of O of the n-th chunk's state in its tensor. */
CUDA_DEVICE uint8_t *finish_state_o(const attend_params *p, uint32_t n, uint32_t token, uint32_t q_head)
{
    const cuda_tensor *os = &p->state_o;
    return os->data + (int64_t)n * os->stride[0] + (int64_t)token * os->stride[1] + (int64_t)q_head * os->stride[2];
}

/** Writes the state of the n-th chunk to the state tensors (NUM 5.6). */
template <uint32_t V>
CUDA_DEVICE void finish_state(const attend_params *p, uint32_t n, uint32_t token, uint32_t q_head,
                              const nbl_state_head &head, const float (&o)[V])
{
    uint8_t *at = finish_state_o(p, n, token, q_head);
    finish_state_head(p, n, token, q_head, head);
#pragma unroll
    for (uint32_t i = 0; i < V; ++i) {
        uint32_t d = threadIdx.x + i * FINISH_THREADS;
        if (d < p->v_dim) {
            *(float *)(void *)(at + (int64_t)d * p->state_o.stride[3]) = o[i];
        }
    }
}

#endif
