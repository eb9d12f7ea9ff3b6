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

/* Merges the live chunks of a row and hands each to the state tensors if they are wanted. `heads` is shared. */
template <uint32_t V>
static __device__ void merge_chunks(const attend_params &p, uint32_t row, uint32_t token, uint32_t q_head,
                                    uint32_t live, float4 *heads, nbl_state_head *total, float (&o)[V])
{
    constexpr uint32_t loads = batch<V>::states;
    const float *states = p.states + (uint64_t)row * p.chunks * p.state_floats;
    for (uint32_t first = 0; first < live; first += loads) {
        float parts[loads][V];
        __syncthreads();
        if (threadIdx.x < loads && first + threadIdx.x < live) {
            heads[threadIdx.x] = *(const float4 *)(const void *)(states + (uint64_t)(first + threadIdx.x) * p.state_floats);
        }
#pragma unroll
        for (uint32_t k = 0; k < loads; ++k) {
#pragma unroll
            for (uint32_t i = 0; i < V; ++i) {
                uint32_t d = threadIdx.x + i * FINISH_THREADS;
                bool there = first + k < live && d < p.v_dim;
                parts[k][i] =
                    there ? states[(uint64_t)(first + k) * p.state_floats + CUDA_STATE_HEAD_FLOATS + d] : 0.0f;
            }
        }
        __syncthreads();
#pragma unroll
        for (uint32_t k = 0; k < loads; ++k) {
            if (first + k < live) {
                nbl_state_head head = {heads[k].x, heads[k].y, heads[k].z, 0.0f};
                if (p.state_head.data != NULL) {
                    finish_state(&p, first + k, token, q_head, head, parts[k]);
                }
                nbl_state_merge(total, o, &head, parts[k], V);
            }
        }
    }
}

template <uint32_t V>
static __global__ void __launch_bounds__(FINISH_THREADS) fold_kernel(const __grid_constant__ attend_params p)
{
    __shared__ float shared[V * FINISH_THREADS];
    __shared__ float4 heads[batch<V>::states];
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
        merge_chunks(p, row, token, q_head, live, heads, &total, o);
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
