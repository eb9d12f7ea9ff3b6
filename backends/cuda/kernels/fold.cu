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
#include "../tile/sequence_check.cuh"

/* States of a row that are brought to shared memory and planned at once, a thread for each. All their bytes are on their
 * way together: a row of many chunks would be bound by latency. */
template <uint32_t V> struct batch {
    static constexpr uint32_t states = FINISH_THREADS / V;
};

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
    fold_step steps[FINISH_THREADS];
    float warp_most[PLAN_WARPS];
};

/* A row of the fold. */
struct fold_row {
    uint32_t index;
    uint32_t token;
    uint32_t head;
    uint32_t live; /* chunks with a state */
    float offset; /* of states past the last chunk */
};

/* Copies `count` states of the row, from the first-th on. They lie side by side. */
static __device__ void copy_states(const attend_params &p, const fold_row &row, uint32_t first, uint32_t count, float *to)
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

/* Merges the live chunks of a row and hands each to the state tensors if they are wanted. */
template <uint32_t V>
static __device__ void merge_chunks(const attend_params &p, const fold_row &row, float *states, fold_memory *m,
                                    nbl_state_head *total, float (&o)[V])
{
    for (uint32_t first = 0; first < row.live; first += batch<V>::states) {
        const uint32_t count = min(row.live - first, batch<V>::states);
        copy_states(p, row, first, count, states);
        total->offset = states[2]; /* the same in all */
        nbl_state_head head = nbl_state_empty(0.0f);
        if (threadIdx.x < count) {
            const float4 four = *(const float4 *)(const void *)(states + threadIdx.x * p.state_floats);
            head = {four.x, four.y, four.z, 0.0f};
        }
        plan_steps(head, total->sum == 0.0f ? -INFINITY : total->base, m->steps, m->warp_most);
#pragma unroll 4
        for (uint32_t k = 0; k < count; ++k) {
            float part[V];
#pragma unroll
            for (uint32_t i = 0; i < V; ++i) {
                const uint32_t d = threadIdx.x + i * FINISH_THREADS;
                part[i] = d < p.v_dim ? states[k * p.state_floats + CUDA_STATE_HEAD_FLOATS + d] : 0.0f;
            }
            if (p.state_head.data != NULL) {
                finish_state(&p, first + k, row.token, row.head, m->steps[k].head, part);
            }
            take_step<V>(m->steps[k], part, total, o);
        }
    }
}

/* The sequence of the block's row as the call says it, all of it checked here, for no prepare has. q_len 0 if it is
 * bad. All threads call it. */
static __device__ cuda_sequence check_sequence(const attend_params &p, uint32_t token)
{
    const uint32_t b = find_sequence(p, token);
    const sequence_lengths s = read_lengths(p, b);
    if (!s.good) {
        report_lengths(p, b, s);
    }
    bool good = check_center(p, b) && check_heads(p) && s.good;
    good = good && check_pages<FINISH_THREADS>(p, b, (uint32_t)s.kv_len);
    return __syncthreads_and(good) ? cuda_sequence{s.q_first, s.q_len, s.kv_len, 0} : cuda_sequence{0, 0, 0, 0};
}

/* The block's row; false if it belongs to a bad sequence, or to none. */
static __device__ bool read_row(const attend_params &p, fold_row &row)
{
    row.index = blockIdx.x;
    row.token = row.index / p.q_heads;
    row.head = row.index % p.q_heads;
    cuda_sequence sequence;
    row.offset = 0.0f;
    if (p.prepared) {
        const cuda_query query = p.queries[row.index];
        sequence = p.sequences[query.sequence];
        row.offset = query.offset;
    } else {
        sequence = check_sequence(p, row.token);
    }
    row.live = cuda_live_chunks(&p, sequence.kv_len);
    return row.token - (uint32_t)sequence.q_first < (uint32_t)sequence.q_len;
}

template <uint32_t V>
static __global__ void __launch_bounds__(FINISH_THREADS) fold_kernel(const __grid_constant__ attend_params p)
{
    extern __shared__ uint4 dynamic[];
    __shared__ float shared[V * FINISH_THREADS];
    __shared__ fold_memory m;
    fold_row row;
    ptx_grid_release();
    ptx_grid_wait();
    if (!read_row(p, row)) {
        return;
    }
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

template <uint32_t V> static cudaError_t launch(const attend_params *p, cudaStream_t stream)
{
    const uint32_t states = p->chunks < batch<V>::states ? p->chunks : batch<V>::states;
    const size_t bytes = states * p->state_floats * sizeof(float);
    const cudaError_t error =
        bytes <= 32768u ? cudaSuccess
                        : cudaFuncSetAttribute(fold_kernel<V>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    return error != cudaSuccess ? error
                                : launch_after(fold_kernel<V>, dim3(p->q_tokens * p->q_heads), FINISH_THREADS, bytes, stream, p);
}

extern "C" cudaError_t nbl_cuda_attend_fold(const attend_params *p, cudaStream_t stream)
{
    if (!p->split && p->state_head.data == NULL) {
        return cudaSuccess;
    }
    if (p->v_dim <= FINISH_THREADS) {
        return launch<1>(p, stream);
    }
    return p->v_dim <= 2u * FINISH_THREADS ? launch<2>(p, stream) : launch<4>(p, stream);
}
