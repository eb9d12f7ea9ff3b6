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
};

constexpr uint32_t PLAN_WARPS = FINISH_THREADS / 32u;

/* What a block plans with. */
struct fold_memory {
    fold_step steps[FINISH_THREADS];
    float warp_most[PLAN_WARPS];
};

/* Steps of up to 128 states, a thread's head each. `base` is that of the total, -inf if it is empty; it becomes that
 * with all of them. The base on the left of a step is the largest of all before it. All threads call it. */
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
    m->steps[threadIdx.x] = fold_step_of(head, left);
    __syncthreads();
}

/* Copies `count` states of the row, from the first-th on. They lie side by side. */
static __device__ void copy_states(const attend_params &p, const fold_row &row, uint32_t first, uint32_t count,
                                   float *to)
{
    const float *states = p.states + ((uint64_t)row.index * p.chunks + first) * p.state_floats;
    __syncthreads(); /* those before have been added */
    for (uint32_t i = 4u * threadIdx.x; i < count * p.state_floats; i += 4u * FINISH_THREADS) {
        ptx_cp_async_16(ptx_shared_address(to + i), states + i);
    }
    ptx_cp_async_commit();
    ptx_cp_async_wait<0>();
    __syncthreads();
}

/* Head of a state in shared memory. */
static __device__ nbl_state_head head_of(const float *state)
{
    const float4 four = *(const float4 *)(const void *)state;
    return {four.x, four.y, four.z, 0.0f};
}

/* The thread's elements of a state. */
template <uint32_t V> static __device__ void elements_of(const attend_params &p, const float *state, float (&part)[V])
{
#pragma unroll
    for (uint32_t i = 0; i < V; ++i) {
        const uint32_t d = threadIdx.x + i * FINISH_THREADS;
        part[i] = d < p.v_dim ? state[CUDA_STATE_HEAD_FLOATS + d] : 0.0f;
    }
}

/* Hands the states to the state tensors. */
template <uint32_t V>
static __device__ void give_states(const attend_params &p, const fold_row &row, uint32_t first, uint32_t count,
                                   const float *states)
{
    for (uint32_t k = 0; k < count; ++k) {
        float part[V];
        elements_of<V>(p, states + k * p.state_floats, part);
        finish_state(&p, first + k, row.token, row.head, head_of(states + k * p.state_floats), part);
    }
}

/* Merges the live chunks of a row and hands each to the state tensors if they are wanted. */
template <uint32_t V>
static __device__ void merge_chunks(const attend_params &p, const fold_row &row, float *states, fold_memory *m,
                                    nbl_state_head *total, float (&o)[V])
{
    float base = -INFINITY;
    for (uint32_t first = 0; first < row.live; first += batch<V>::states) {
        const uint32_t count = min(row.live - first, batch<V>::states);
        copy_states(p, row, first, count, states);
        plan_steps(threadIdx.x < count ? head_of(states + threadIdx.x * p.state_floats) : nbl_state_empty(0.0f), m,
                   base);
        if (p.state_head.data != NULL) {
            give_states<V>(p, row, first, count, states);
        }
#pragma unroll 8
        for (uint32_t k = 0; k < count; ++k) {
            const fold_step s = m->steps[k];
            float part[V];
            elements_of<V>(p, states + k * p.state_floats, part);
            total->sum = total->sum * s.left + s.sum * s.right;
#pragma unroll
            for (uint32_t i = 0; i < V; ++i) {
                o[i] = o[i] * s.left + part[i] * s.right;
            }
        }
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
    const uint32_t states = p->chunks < batch<V>::states ? p->chunks : batch<V>::states;
    const size_t bytes = states * p->state_floats * sizeof(float);
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
