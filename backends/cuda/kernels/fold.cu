/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file fold.cu
 * @brief Second half of a split attend: chunk states, in order, to O, LSE and state tensors (NUM 5.6, 5.7). A block
 * per row.
 */
#include "../attend.h"
#include "../ptx/ptx.cuh"
#include "../tile/finish.cuh"
#include "../tile/fold_row.cuh"
#include "../tile/launch.cuh"

/* States of a row that are brought to shared memory and planned at once, a thread for each. All their bytes are on the
 * way together: a row of many chunks would be bound by latency. */
template <uint32_t V> struct batch {
    static constexpr uint32_t states = FINISH_THREADS / V;
    static constexpr uint32_t stride = FINISH_THREADS * V; /* of their elements in shared memory */
};

constexpr uint32_t PLAN_WARPS = FINISH_THREADS / 32u;
constexpr uint32_t AT_ONCE = 16; /* states that are read from shared memory before the first of them is added */

/* What a block plans with: the steps of a batch (fold_step), four at a time for a thread that reads them. */
struct fold_memory {
    float4 left[FINISH_THREADS / 4u];
    float4 right[FINISH_THREADS / 4u];
    float4 sum[FINISH_THREADS / 4u]; /* L * right */
    float warp_most[PLAN_WARPS];
};

/* Steps of up to 128 states, a thread's head each. `base` is that of the total, -inf if it is empty; it becomes that
 * with all of them. The base on the left of a step is the largest of all before it. All threads call it; a barrier must
 * follow. */
static __device__ void plan_steps(const nbl_state_head &head, fold_memory *m, float &base)
{
    const uint32_t lane = threadIdx.x % 32u, warp = threadIdx.x / 32u;
    const bool is_empty = nbl_state_is_empty(&head);
    float most = is_empty ? -INFINITY : head.base;
#pragma unroll
    for (uint32_t distance = 1; distance < 32u; distance *= 2u) {
        const float other = __shfl_up_sync(0xffffffffu, most, distance);
        most = lane >= distance ? fmaxf(most, other) : most;
    }
    if (lane == 31u) {
        m->warp_most[warp] = most;
    }
    const float shifted = __shfl_up_sync(0xffffffffu, most, 1);
    float left = lane == 0 ? base : fmaxf(base, shifted);
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < PLAN_WARPS; ++i) {
        left = i < warp ? fmaxf(left, m->warp_most[i]) : left;
        base = fmaxf(base, m->warp_most[i]);
    }
    const fold_step step = fold_step_of(head, left);
    (&m->left[0].x)[threadIdx.x] = step.left;
    (&m->right[0].x)[threadIdx.x] = step.right;
    (&m->sum[0].x)[threadIdx.x] = step.sum * step.right;
}

/* Asks for the elements of `count` states, which lie side by side, a warp for each, and fills up to a multiple of
 * AT_ONCE with zeros. A warp by itself takes four cycles for an instruction, so these are few. */
template <uint32_t V>
static __device__ void ask_elements(const attend_params &p, const float *states, uint32_t count, float *to)
{
    const uint32_t warp = threadIdx.x / 32u, end = (count + AT_ONCE - 1u) / AT_ONCE * AT_ONCE;
#pragma unroll
    for (uint32_t i = 0; i < V; ++i) {
        const uint32_t d = 4u * (threadIdx.x % 32u) + i * FINISH_THREADS;
        if (d >= p.v_dim_padded) {
            continue;
        }
        const float *from = states + warp * p.state_floats + CUDA_STATE_HEAD_FLOATS + d;
        float *place = to + warp * batch<V>::stride + d;
        uint32_t k = warp;
#pragma unroll 8
        for (; k < count; k += PLAN_WARPS) {
            ptx_cp_async_16(ptx_shared_address(place), from);
            from += PLAN_WARPS * p.state_floats;
            place += PLAN_WARPS * batch<V>::stride;
        }
#pragma unroll 1
        for (; k < end; k += PLAN_WARPS) {
            *reinterpret_cast<float4 *>(place) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            place += PLAN_WARPS * batch<V>::stride;
        }
    }
    ptx_cp_async_commit();
}

/* Head of a state. */
static __device__ nbl_state_head head_of(const float *state)
{
    const float4 four = *(const float4 *)(const void *)state;
    return {four.x, four.y, four.z, 0.0f};
}

/* The thread's elements of the k-th state; those past the last one may be anything. */
template <uint32_t V> static __device__ void elements_of(const float *elements, uint32_t k, float (&part)[V])
{
#pragma unroll
    for (uint32_t i = 0; i < V; ++i) {
        part[i] = elements[k * batch<V>::stride + i * FINISH_THREADS + threadIdx.x];
    }
}

/* Hands `count` states to the state tensors, as the first-th ones. */
template <uint32_t V>
static __device__ void give_states(const attend_params &p, const fold_row &row, uint32_t first, uint32_t count,
                                   const float *states, const float *elements)
{
    for (uint32_t k = 0; k < count; ++k) {
        float part[V];
        elements_of<V>(elements, k, part);
        finish_state(&p, first + k, row.token, row.head, head_of(states + k * p.state_floats), part);
    }
}

/* Four factors, in an array that the compiler keeps in registers. */
static __device__ void read_four(const float4 &from, float *to)
{
    to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
}

/* Adds the states of a batch in order. */
template <uint32_t V>
static __device__ void add_states(const float *elements, const fold_memory *m, uint32_t count, float &total,
                                  float (&o)[V])
{
#pragma unroll 1
    for (uint32_t k = 0; k < count; k += AT_ONCE) {
        float left[AT_ONCE], right[AT_ONCE], sum[AT_ONCE], part[AT_ONCE][V];
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i += 4u) {
            read_four(m->left[(k + i) / 4u], left + i);
            read_four(m->right[(k + i) / 4u], right + i);
            read_four(m->sum[(k + i) / 4u], sum + i);
        }
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; ++i) {
            elements_of<V>(elements, k + i, part[i]);
        }
#pragma unroll
        for (uint32_t n = 0; n < AT_ONCE; ++n) {
            total = total * left[n] + sum[n];
#pragma unroll
            for (uint32_t i = 0; i < V; ++i) {
                o[i] = o[i] * left[n] + part[n][i] * right[n];
            }
        }
    }
}

/* Merges the live chunks of a row and hands each to the state tensors if they are wanted. */
template <uint32_t V>
static __device__ void merge_chunks(const attend_params &p, const fold_row &row, float *elements, fold_memory *m,
                                    nbl_state_head *total, float (&o)[V])
{
    float base = -INFINITY;
    for (uint32_t first = 0; first < row.live; first += batch<V>::states) {
        const uint32_t count = min(row.live - first, batch<V>::states);
        const float *from = p.states + ((uint64_t)row.index * p.chunks + first) * p.state_floats;
        const nbl_state_head head =
            threadIdx.x < count ? head_of(from + threadIdx.x * p.state_floats) : nbl_state_empty(0.0f);
        __syncthreads(); /* those before have been added */
        ask_elements<V>(p, from, count, elements);
        plan_steps(head, m, base);
        ptx_cp_async_wait<0>();
        __syncthreads();
        if (p.state_head.data != NULL) {
            give_states<V>(p, row, first, count, from, elements);
        }
        add_states<V>(elements, m, count, total->sum, o);
    }
    total->base = base;
}

template <uint32_t V> static __device__ void fold_states(const attend_params &p, const fold_row &row)
{
    extern __shared__ uint4 dynamic[];
    __shared__ float shared[V * FINISH_THREADS];
    __shared__ fold_memory m;
    nbl_state_head total = nbl_state_empty(row.offset);
    float o[V] = {};
    if (p.split) {
        merge_chunks<V>(p, row, (float *)(void *)dynamic, &m, &total, o);
        finish_row(finish_target_of(&p, row.token, row.head), total, o, shared);
    }
    if (p.state_head.data != NULL) {
        float zeros[V] = {};
        for (uint32_t n = row.live; n < p.state_count; ++n) {
            finish_state(&p, n, row.token, row.head, nbl_state_empty(row.offset), zeros);
        }
    }
}

template <uint32_t V>
static __global__ void __launch_bounds__(FINISH_THREADS) fold_kernel(const __grid_constant__ attend_params p)
{
    fold_row row;
    if (begin_fold_row(p, blockIdx.x, row)) {
        fold_states<V>(p, row);
    }
    ptx_grid_wait(); /* what comes next relies on the main step having ended */
}

template <uint32_t V> static cudaError_t launch(const attend_params *p, cudaStream_t stream)
{
    const uint32_t whole = (p->chunks + AT_ONCE - 1u) / AT_ONCE * AT_ONCE;
    const uint32_t states = whole < batch<V>::states ? whole : batch<V>::states;
    size_t bytes = states * batch<V>::stride * sizeof(float);
    if (p->folds_early && p->q_tokens * p->q_heads <= p->processors && bytes < p->shared_bytes / 2u) {
        bytes = p->shared_bytes / 2u; /* no more than one to a multiprocessor */
    }
    const cudaError_t error =
        bytes <= 32768u ? cudaSuccess
                        : cudaFuncSetAttribute(fold_kernel<V>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    return error != cudaSuccess
               ? error
               : launch_after(fold_kernel<V>, dim3(p->q_tokens * p->q_heads), FINISH_THREADS, bytes, stream, p);
}

extern "C" cudaError_t nbl_cuda_attend_fold(const attend_params *p, cudaStream_t stream)
{
    if (!p->split && p->state_head.data == NULL) {
        return cudaSuccess;
    }
    if (nbl_cuda_decode_fold_supports(p)) {
        return nbl_cuda_attend_decode_fold(p, stream);
    }
    if (p->v_dim <= FINISH_THREADS) {
        return launch<1>(p, stream);
    }
    return p->v_dim <= 2u * FINISH_THREADS ? launch<2>(p, stream) : launch<4>(p, stream);
}
