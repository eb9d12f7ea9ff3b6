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

/* Most states that are planned at once, a thread for each. */
constexpr uint32_t PLAN_STATES = FINISH_THREADS;
constexpr uint32_t PLAN_WARPS = FINISH_THREADS / 32u;

/* How a state joins the total of those before it: factors of NUM 5.6 worked out ahead of the sums. */
struct fold_step {
    nbl_merge_scale scale;
    nbl_state_head head;
    bool is_first; /* copied */
    bool is_empty; /* left out */
};

/* Steps of up to 128 states, a thread's head each; `before` is the base of the total, -inf if it is empty. The base on
 * the left of a step is the largest of all before it. All threads call it. */
static __device__ void plan_steps(const nbl_state_head &head, float before, fold_step *steps, float *warp_most)
{
    const uint32_t lane = threadIdx.x % 32u, warp = threadIdx.x / 32u;
    fold_step s = {};
    s.head = head;
    s.is_empty = nbl_state_is_empty(&head);
    float most = s.is_empty ? -INFINITY : head.base;
    for (uint32_t distance = 1; distance < 32u; distance *= 2u) {
        const float other = __shfl_up_sync(0xffffffffu, most, distance);
        most = lane >= distance ? fmaxf(most, other) : most;
    }
    if (lane == 31u) {
        warp_most[warp] = most;
    }
    const float shifted = __shfl_up_sync(0xffffffffu, most, 1);
    float left = lane == 0 ? before : fmaxf(before, shifted);
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < PLAN_WARPS; ++i) {
        left = i < warp ? fmaxf(left, warp_most[i]) : left;
    }
    s.is_first = left == -INFINITY;
    if (!s.is_empty && !s.is_first) {
        s.scale = nbl_merge_scale_of(left, head.base);
    }
    steps[threadIdx.x] = s;
    __syncthreads();
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

/* What a block plans with. */
struct fold_memory {
    fold_step steps[PLAN_STATES];
    float warp_most[PLAN_WARPS];
};

/* The thread's elements of BATCH states from `states` on, of which `count` are there. */
template <uint32_t V, uint32_t BATCH>
static __device__ void read_states(const attend_params &p, const float *states, uint32_t count, float (&parts)[BATCH][V])
{
#pragma unroll
    for (uint32_t k = 0; k < BATCH; ++k) {
#pragma unroll
        for (uint32_t i = 0; i < V; ++i) {
            const uint32_t d = threadIdx.x + i * FINISH_THREADS;
            parts[k][i] =
                k < count && d < p.v_dim ? states[(uint64_t)k * p.state_floats + CUDA_STATE_HEAD_FLOATS + d] : 0.0f;
        }
    }
}

/* A row of the fold. */
struct fold_row {
    uint32_t index;
    uint32_t token;
    uint32_t head;
    uint32_t live; /* chunks with a state */
    float offset;
};

/* Merges up to 128 states from the first-th on. BATCH of them are on their way while those before are added. */
template <uint32_t V, uint32_t BATCH>
static __device__ void merge_states(const attend_params &p, const fold_row &row, uint32_t first, fold_memory *m,
                                    nbl_state_head *total, float (&o)[V])
{
    const float *states = p.states + ((uint64_t)row.index * p.chunks + first) * p.state_floats;
    const uint32_t count = min(row.live - first, PLAN_STATES);
    nbl_state_head head = nbl_state_empty(0.0f);
    if (threadIdx.x < count) {
        const float4 four = *(const float4 *)(const void *)(states + (uint64_t)threadIdx.x * p.state_floats);
        head = {four.x, four.y, four.z, 0.0f};
    }
    float parts[BATCH][V];
    read_states<V, BATCH>(p, states, count, parts);
    __syncthreads(); /* the steps before are taken */
    plan_steps(head, total->sum == 0.0f ? -INFINITY : total->base, m->steps, m->warp_most);
#pragma unroll 1
    for (uint32_t at = 0; at < count; at += BATCH) {
        float next[BATCH][V];
        const uint32_t left = count - at;
        read_states<V, BATCH>(p, states + (uint64_t)(at + BATCH) * p.state_floats, left > BATCH ? left - BATCH : 0u, next);
#pragma unroll
        for (uint32_t k = 0; k < BATCH; ++k) { /* steps past the count are empty */
            if (p.state_head.data != NULL && k < left) {
                finish_state(&p, first + at + k, row.token, row.head, m->steps[at + k].head, parts[k]);
            }
            take_step<V>(m->steps[at + k], parts[k], total, o);
#pragma unroll
            for (uint32_t i = 0; i < V; ++i) {
                parts[k][i] = next[k][i];
            }
        }
    }
}

/* The block's row; false if it belongs to a bad sequence, or to none. What prepare wrote may be read before the wait:
 * the kernel before this one has waited for it. */
static __device__ bool read_row(const attend_params &p, fold_row &row)
{
    row.index = blockIdx.x;
    row.token = row.index / p.q_heads;
    row.head = row.index % p.q_heads;
    const cuda_query query = p.queries[row.index];
    const cuda_sequence sequence = p.sequences[query.sequence];
    row.live = cuda_live_chunks(&p, sequence.kv_len);
    row.offset = query.offset;
    return row.token - (uint32_t)sequence.q_first < (uint32_t)sequence.q_len;
}

template <uint32_t V, uint32_t BATCH>
static __global__ void __launch_bounds__(FINISH_THREADS) fold_kernel(const __grid_constant__ attend_params p)
{
    __shared__ float shared[V * FINISH_THREADS];
    __shared__ fold_memory m;
    fold_row row;
    const bool good = read_row(p, row);
    ptx_grid_wait();
    ptx_grid_release();
    if (!good) {
        return;
    }
    nbl_state_head total = nbl_state_empty(row.offset);
    float o[V] = {};
    if (p.split) {
        for (uint32_t first = 0; first < row.live; first += PLAN_STATES) {
            merge_states<V, BATCH>(p, row, first, &m, &total, o);
        }
        finish_row(finish_target_of(&p, row.token, row.head), total, o, shared);
    }
    if (p.state_head.data != NULL) {
        float zeros[V] = {};
        for (uint32_t n = row.live; n < p.state_count; ++n) {
            finish_state(&p, n, row.token, row.head, nbl_state_empty(row.offset), zeros);
        }
    }
}

/* Few chunks: few registers, so that all rows of a large batch are at work. */
template <uint32_t V, uint32_t MANY> static cudaError_t launch(const attend_params *p, cudaStream_t stream)
{
    const dim3 grid(p->q_tokens * p->q_heads);
    constexpr uint32_t few = 8u / V > 0 ? 8u / V : 1u;
    return p->chunks <= few ? launch_after(fold_kernel<V, few>, grid, FINISH_THREADS, 0, stream, p)
                            : launch_after(fold_kernel<V, MANY>, grid, FINISH_THREADS, 0, stream, p);
}

extern "C" cudaError_t nbl_cuda_attend_fold(const attend_params *p, cudaStream_t stream)
{
    if (!p->split && p->state_head.data == NULL) {
        return cudaSuccess;
    }
    if (p->v_dim <= FINISH_THREADS) {
        return launch<1, 32>(p, stream);
    }
    return p->v_dim <= 2u * FINISH_THREADS ? launch<2, 16>(p, stream) : launch<4, 8>(p, stream);
}
