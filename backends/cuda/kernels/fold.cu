/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file fold.cu
 * @brief Second half of a split attend: chunk states, in order, to O, LSE and state tensors (NUM 5.6, 5.7). A block
 * per row.
 */
#include "../attend.h"
#include "../ptx/ptx.cuh"
#include "../tile/finish.cuh"
#include "../tile/launch.cuh"

/* States whose bytes are on their way at once: a row of many chunks is bound by latency. */
template <uint32_t V> struct batch {
    static constexpr uint32_t states = 32u / V;
};

/* How a state joins the total of those before it: factors of NUM 5.6 worked out ahead of the sums. */
struct fold_step {
    nbl_merge_scale scale;
    nbl_state_head head;
    bool is_first; /* copied */
    bool is_empty; /* left out */
};

/* Largest of the lanes before this one and `before`. */
static __device__ float running_max(float base, float before)
{
    const uint32_t lane = threadIdx.x;
    for (uint32_t step = 1; step < 32u; step *= 2u) {
        float other = __shfl_up_sync(0xffffffffu, base, step);
        base = lane >= step ? fmaxf(base, other) : base;
    }
    float shifted = __shfl_up_sync(0xffffffffu, base, 1);
    return lane == 0 ? before : fmaxf(before, shifted);
}

/* Steps of up to 32 states, by the first warp, a lane's head each; `before` is the base of the total, -inf if it is
 * empty. */
static __device__ void plan_steps(const nbl_state_head &head, float before, uint32_t most, fold_step *steps)
{
    fold_step s = {};
    s.head = head;
    s.is_empty = nbl_state_is_empty(&head);
    const float left = running_max(s.is_empty ? -INFINITY : head.base, before);
    s.is_first = left == -INFINITY;
    if (!s.is_empty && !s.is_first) {
        s.scale = nbl_merge_scale_of(left, head.base);
    }
    if (threadIdx.x < most) {
        steps[threadIdx.x] = s;
    }
}

/* total := merge(total, state), as nbl_state_merge; without a branch, so that steps are read ahead. */
template <uint32_t V>
static __device__ void take_step(const fold_step &s, const float (&part)[V], nbl_state_head *total, float (&o)[V])
{
    const float base = s.is_first ? s.head.base : s.scale.base;
    const float sum = s.is_first ? s.head.sum : nbl_merge_element(total->sum, s.head.sum, s.scale);
    total->base = s.is_empty ? total->base : base;
    total->sum = s.is_empty ? total->sum : sum;
#pragma unroll
    for (uint32_t i = 0; i < V; ++i) {
        const float merged = s.is_first ? part[i] : nbl_merge_element(o[i], part[i], s.scale);
        o[i] = s.is_empty ? o[i] : merged;
    }
}

/* Merges the live chunks of a row and hands each to the state tensors if they are wanted. `steps` is shared. */
template <uint32_t V>
static __device__ void merge_chunks(const attend_params &p, uint32_t row, uint32_t token, uint32_t q_head,
                                    uint32_t live, fold_step *steps, nbl_state_head *total, float (&o)[V])
{
    constexpr uint32_t most = batch<V>::states;
    for (uint32_t first = 0; first < live; first += most) {
        const float *states = p.states + ((uint64_t)row * p.chunks + first) * p.state_floats;
        const uint32_t count = min(live - first, most);
        nbl_state_head head = nbl_state_empty(0.0f);
        if (threadIdx.x < count) {
            const float4 four = *(const float4 *)(const void *)(states + (uint64_t)threadIdx.x * p.state_floats);
            head = {four.x, four.y, four.z, 0.0f};
        }
        float parts[most][V];
#pragma unroll
        for (uint32_t k = 0; k < most; ++k) {
#pragma unroll
            for (uint32_t i = 0; i < V; ++i) {
                uint32_t d = threadIdx.x + i * FINISH_THREADS;
                parts[k][i] =
                    k < count && d < p.v_dim ? states[(uint64_t)k * p.state_floats + CUDA_STATE_HEAD_FLOATS + d] : 0.0f;
            }
        }
        __syncthreads();
        if (threadIdx.x < 32u) {
            plan_steps(head, total->sum == 0.0f ? -INFINITY : total->base, most, steps);
        }
        __syncthreads();
#pragma unroll
        for (uint32_t k = 0; k < most; ++k) {
            if (p.state_head.data != NULL && k < count) {
                finish_state(&p, first + k, token, q_head, steps[k].head, parts[k]);
            }
            take_step<V>(steps[k], parts[k], total, o);
        }
    }
}

template <uint32_t V>
static __global__ void __launch_bounds__(FINISH_THREADS) fold_kernel(const __grid_constant__ attend_params p)
{
    __shared__ float shared[V * FINISH_THREADS];
    __shared__ fold_step steps[batch<V>::states];
    uint32_t row = blockIdx.x;
    uint32_t token = row / p.q_heads;
    uint32_t q_head = row % p.q_heads;
    ptx_grid_wait();
    cuda_query query = p.queries[row];
    cuda_sequence sequence = p.sequences[query.sequence];
    uint32_t place = token - (uint32_t)sequence.q_first;
    if (place >= (uint32_t)sequence.q_len) { /* a row of a bad sequence, or of none */
        return;
    }
    uint32_t live = cuda_live_chunks(&p, sequence.kv_len);
    nbl_state_head total = nbl_state_empty(query.offset);
    float o[V] = {};
    if (p.split) {
        merge_chunks(p, row, token, q_head, live, steps, &total, o);
        finish_row(finish_target_of(&p, token, q_head), total, o, shared);
    }
    if (p.state_head.data != NULL) {
        float zeros[V] = {};
        for (uint32_t n = live; n < p.state_count; ++n) {
            finish_state(&p, n, token, q_head, nbl_state_empty(query.offset), zeros);
        }
    }
}

extern "C" cudaError_t nbl_cuda_attend_fold(const attend_params *p, cudaStream_t stream)
{
    if (!p->split && p->state_head.data == NULL) {
        return cudaSuccess;
    }
    dim3 grid(p->q_tokens * p->q_heads);
    if (p->v_dim <= FINISH_THREADS) {
        return launch_after(fold_kernel<1>, grid, FINISH_THREADS, 0, stream, p);
    }
    if (p->v_dim <= 2u * FINISH_THREADS) {
        return launch_after(fold_kernel<2>, grid, FINISH_THREADS, 0, stream, p);
    }
    return launch_after(fold_kernel<4>, grid, FINISH_THREADS, 0, stream, p);
}
