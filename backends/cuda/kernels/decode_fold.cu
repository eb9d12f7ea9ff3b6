/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file decode_fold.cu
 * @brief Second half of a call of the decode kernel: chunk states, in order, to O and LSE (NUM 5.6, 5.7). A warp, which
 * is a block, per row. Calls with many chunks, or that want the states themselves, take fold.cu.
 */
#include "../attend.h"
#include "../tile/finish_warp.cuh"
#include "../tile/fold_row.cuh"
#include "../tile/launch.cuh"

namespace
{

constexpr uint32_t CHUNKS_MAX = 32; /* more are folded sooner by a block a row, which has all of them on their way */

/* States that are on their way at once; a lane has the head of one. */
template <int E> constexpr uint32_t AT_ONCE = 64u / E;

/* The lane's elements of a state. */
template <int E> PTX_FN void read_elements(const float *state, uint32_t lane, float (&part)[E])
{
    const float *at = state + CUDA_STATE_HEAD_FLOATS + E * lane;
    if constexpr (E == 2) {
        const float2 two = *reinterpret_cast<const float2 *>(at);
        part[0] = two.x, part[1] = two.y;
    } else {
#pragma unroll
        for (int i = 0; i < E; i += 4) {
            const float4 four = *reinterpret_cast<const float4 *>(at + i);
            part[i] = four.x, part[i + 1] = four.y, part[i + 2] = four.z, part[i + 3] = four.w;
        }
    }
}

/* The step of the lane's state. `base` is that of the total before them, -inf if it is empty; it becomes that with all
 * of them. */
PTX_FN fold_step lane_step(const nbl_state_head &head, uint32_t lane, float &base)
{
    float most = nbl_state_is_empty(&head) ? -INFINITY : head.base;
#pragma unroll
    for (uint32_t distance = 1; distance < 32u; distance *= 2u) {
        const float other = __shfl_up_sync(FULL_WARP, most, distance);
        most = lane >= distance ? fmaxf(most, other) : most;
    }
    const float before = __shfl_up_sync(FULL_WARP, most, 1);
    const fold_step step = fold_step_of(head, lane == 0 ? base : fmaxf(base, before));
    base = fmaxf(base, __shfl_sync(FULL_WARP, most, 31));
    return step;
}

/* Adds the states from the first-th on, `count` of them. */
template <int E>
PTX_FN void add_states(const attend_params &p, const float *states, uint32_t count, uint32_t lane, row_total<E> &total)
{
    float part[AT_ONCE<E>][E];
#pragma unroll
    for (uint32_t k = 0; k < AT_ONCE<E>; ++k) {
        if (k < count) {
            read_elements<E>(states + k * p.state_floats, lane, part[k]);
        }
    }
    nbl_state_head head = nbl_state_empty(0.0f);
    if (lane < count) {
        const float4 four = *reinterpret_cast<const float4 *>(states + lane * p.state_floats);
        head = {four.x, four.y, four.z, 0.0f};
    }
    const fold_step step = lane_step(head, lane, total.head.base);
#pragma unroll
    for (uint32_t k = 0; k < AT_ONCE<E>; ++k) {
        if (k >= count) {
            break;
        }
        const float left = __shfl_sync(FULL_WARP, step.left, k), right = __shfl_sync(FULL_WARP, step.right, k);
        total.head.sum = total.head.sum * left + __shfl_sync(FULL_WARP, step.sum, k) * right;
#pragma unroll
        for (int i = 0; i < E; ++i) {
            total.o[i] = total.o[i] * left + part[k][i] * right;
        }
    }
}

template <int E> PTX_FN void fold_states(const attend_params &p, const fold_row &row, uint32_t lane)
{
    const float *states = p.states + (uint64_t)row.index * p.chunks * p.state_floats;
    row_total<E> total = {nbl_state_empty(row.offset), {}};
#pragma unroll 1
    for (uint32_t first = 0; first < row.live; first += AT_ONCE<E>) {
        add_states<E>(p, states + first * p.state_floats, min(row.live - first, AT_ONCE<E>), lane, total);
    }
    finish_row_of_warp<E>(p, row.token, row.head, lane, total);
}

template <int E> __global__ void __launch_bounds__(32) decode_fold_kernel(const __grid_constant__ attend_params p)
{
    fold_row row;
    if (begin_fold_row(p, blockIdx.x, row)) {
        fold_states<E>(p, row, threadIdx.x);
    }
    ptx_grid_wait(); /* what comes next relies on the main step having ended */
}

template <int E> cudaError_t launch(const attend_params *p, cudaStream_t stream)
{
    return launch_after(decode_fold_kernel<E>, dim3(p->q_tokens * p->q_heads), 32u, 0, stream, p);
}

} // namespace

extern "C" int nbl_cuda_decode_fold_supports(const attend_params *p)
{
    return p->folds_early && p->state_head.data == NULL && p->chunks <= CHUNKS_MAX;
}

extern "C" cudaError_t nbl_cuda_attend_decode_fold(const attend_params *p, cudaStream_t stream)
{
    switch (p->v_dim) {
    case 64: return launch<2>(p, stream);
    case 128: return launch<4>(p, stream);
    default: return launch<8>(p, stream);
    }
}
