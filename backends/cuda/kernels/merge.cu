/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file merge.cu
 * @brief merge: folds states, or averages (o, lse) pairs (NUM 5.6 to 5.8). A block of 128 threads per row and head.
 */
#include "../ops.h"
#include "../tile/finish.cuh"

/* Address of element (i0, i1, i2, 0). */
static __device__ uint8_t *at4(const cuda_tensor &t, uint32_t i0, uint32_t i1, uint32_t i2)
{
    return t.data + (int64_t)i0 * t.stride[0] + (int64_t)i1 * t.stride[1] + (int64_t)i2 * t.stride[2];
}

static __device__ uint8_t *at3(const cuda_tensor &t, uint32_t i0, uint32_t i1)
{
    return at4(t, i0, i1, 0);
}

static __device__ nbl_state_head read_head(const cuda_tensor &t, uint32_t n, uint32_t row, uint32_t q_head)
{
    const uint8_t *at = at4(t, n, row, q_head);
    nbl_state_head head;
    head.base = *(const float *)(const void *)at;
    head.sum = *(const float *)(const void *)(at + t.stride[3]);
    head.offset = *(const float *)(const void *)(at + 2 * t.stride[3]);
    head.reserved = *(const float *)(const void *)(at + 3 * t.stride[3]);
    return head;
}

/* The thread's elements of a row of dim elements. */
template <uint32_t V>
static __device__ void read_row(const uint8_t *row, uint32_t dtype, int64_t stride, uint32_t dim, float (&o)[V])
{
#pragma unroll
    for (uint32_t i = 0; i < V; ++i) {
        uint32_t d = threadIdx.x + i * FINISH_THREADS;
        o[i] = d < dim ? cuda_element_read(row + (int64_t)d * stride, dtype) : 0.0f;
    }
}

template <uint32_t V>
static __device__ void write_row(uint8_t *row, uint32_t dtype, int64_t stride, uint32_t dim, const float (&o)[V])
{
#pragma unroll
    for (uint32_t i = 0; i < V; ++i) {
        uint32_t d = threadIdx.x + i * FINISH_THREADS;
        if (d < dim) {
            cuda_element_write(row + (int64_t)d * stride, dtype, o[i]);
        }
    }
}

/* Where a row of the outputs goes. */
static __device__ finish_target target_of(const merge_params &p, uint32_t row, uint32_t q_head)
{
    finish_target to;
    to.o = p.o.data != NULL ? at3(p.o, row, q_head) : NULL;
    to.o_stride = p.o.stride[2];
    to.o_dtype = p.o.dtype;
    to.lse = p.lse.data != NULL ? (float *)(void *)at3(p.lse, row, q_head) : NULL;
    to.sink = p.sinks != NULL ? p.sinks + q_head : NULL;
    to.dim = p.dim;
    to.v_hadamard = p.v_hadamard;
    to.lse_base2 = p.lse_base2 != 0;
    return to;
}

/* NUM 5.6, 5.7. */
template <uint32_t V>
static __device__ void merge_states(const merge_params &p, uint32_t row, uint32_t q_head, float *shared)
{
    nbl_state_head total = nbl_state_empty(read_head(p.in_state_head, 0, row, q_head).offset);
    float o[V] = {};
    for (uint32_t n = 0; n < p.count; ++n) {
        nbl_state_head part = read_head(p.in_state_head, n, row, q_head);
        float part_o[V];
        read_row(at4(p.in_state_o, n, row, q_head), NBL_F32, p.in_state_o.stride[3], p.dim, part_o);
        nbl_state_merge(&total, o, &part, part_o, V);
    }
    if (p.state_head.data != NULL) {
        uint8_t *head = at3(p.state_head, row, q_head);
        if (threadIdx.x < CUDA_STATE_HEAD_FLOATS) {
            uint32_t i = threadIdx.x;
            float value = i == 0 ? total.base : i == 1 ? total.sum : i == 2 ? total.offset : total.reserved;
            *(float *)(void *)(head + (int64_t)i * p.state_head.stride[2]) = value;
        }
        write_row(at3(p.state_o, row, q_head), NBL_F32, p.state_o.stride[2], p.dim, o);
    }
    finish_row(target_of(p, row, q_head), total, o, shared);
}

static __device__ float read_lse(const merge_params &p, uint32_t n, uint32_t row, uint32_t q_head)
{
    return *(const float *)(const void *)at4(p.in_lse, n, row, q_head);
}

/* Largest lse of the row, or NaN where one is not allowed (reported). */
static __device__ float largest_lse(const merge_params &p, uint32_t row, uint32_t q_head)
{
    float most = -INFINITY;
    bool good = true;
    for (uint32_t n = 0; n < p.count; ++n) {
        float lse = read_lse(p, n, row, q_head);
        if (isnan(lse) || lse == INFINITY) {
            cuda_fault_report(p.status, CUDA_FAULT_LSE, n, (int64_t)row * p.heads + q_head, nbl_bits_of(lse), p.heads);
            good = false;
        }
        most = lse > most ? lse : most;
    }
    return good ? most : NAN;
}

/* NUM 5.8. */
template <uint32_t V> static __device__ void merge_pairs(const merge_params &p, uint32_t row, uint32_t q_head)
{
    float most = largest_lse(p, row, q_head);
    if (isnan(most)) {
        return;
    }
    float total = 0.0f;
    float y[V] = {};
    for (uint32_t n = 0; n < p.count; ++n) {
        float lse = read_lse(p, n, row, q_head);
        if (lse == -INFINITY) {
            continue;
        }
        float distance = lse - most;
        float w = nbl_exp2p(p.lse_base2 ? distance : distance * NBL_LOG2E);
        float o[V];
        read_row(at4(p.in_o, n, row, q_head), p.in_o.dtype, p.in_o.stride[3], p.dim, o);
        total += w;
#pragma unroll
        for (uint32_t i = 0; i < V; ++i) {
            y[i] = nbl_fma(w, o[i], y[i]);
        }
    }
    float lse = -INFINITY;
    if (total > 0.0f) {
        float r = 1.0f / total;
#pragma unroll
        for (uint32_t i = 0; i < V; ++i) {
            y[i] *= r;
        }
        lse = most + (p.lse_base2 ? nbl_log2p(total) : nbl_log2p(total) * NBL_LN2);
    }
    if (p.o.data != NULL) {
        write_row(at3(p.o, row, q_head), p.o.dtype, p.o.stride[2], p.dim, y);
    }
    if (p.lse.data != NULL && threadIdx.x == 0) {
        *(float *)(void *)at3(p.lse, row, q_head) = lse;
    }
}

/* 1 if the head's sink is in the range of NUM 5.1. */
static __device__ bool check_sink(const merge_params &p, uint32_t q_head)
{
    if (p.sinks == NULL || fabsf(p.sinks[q_head]) <= NBL_LOGIT_MAX || p.sinks[q_head] == -INFINITY) {
        return true;
    }
    cuda_fault_report(p.status, CUDA_FAULT_SINK, q_head, 0, nbl_bits_of(p.sinks[q_head]), 0);
    return false;
}

template <uint32_t V>
static __global__ void __launch_bounds__(FINISH_THREADS) merge_kernel(const __grid_constant__ merge_params p)
{
    __shared__ float shared[V * FINISH_THREADS];
    uint32_t row = blockIdx.x / p.heads;
    uint32_t q_head = blockIdx.x % p.heads;
    if (!check_sink(p, q_head)) {
        return;
    }
    if (p.in_state_head.data != NULL) {
        merge_states<V>(p, row, q_head, shared);
    } else {
        merge_pairs<V>(p, row, q_head);
    }
}

extern "C" cudaError_t nbl_cuda_merge(const merge_params *p, cudaStream_t stream)
{
    uint32_t blocks = p->rows * p->heads;
    if (p->dim <= FINISH_THREADS) {
        merge_kernel<1><<<blocks, FINISH_THREADS, 0, stream>>>(*p);
    } else if (p->dim <= 2u * FINISH_THREADS) {
        merge_kernel<2><<<blocks, FINISH_THREADS, 0, stream>>>(*p);
    } else {
        merge_kernel<4><<<blocks, FINISH_THREADS, 0, stream>>>(*p);
    }
    return cudaGetLastError();
}
