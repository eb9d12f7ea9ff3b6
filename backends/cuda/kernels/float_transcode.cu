/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file float_transcode.cu
 * @brief transcode where either pool is of the float core (NUM 3.7, 6.7). A block per pair, layer,
 * head and kind; a team of Dp/16 threads per vector.
 */
#include "../ops.h"
#include "../tile/page_pair.cuh"
#include "../tile/store16.cuh"

#define THREADS 288u /* a multiple of every size of team up to 36 with a whole number of warps in use */
#define VECTORS_MAX 144u

/* Part of one page of a pair in the block's layer. */
static __device__ block16_part part_of(const cuda_pages *pages, uint32_t region_index,
                                       const uint64_t *code_layer_stride, const uint64_t *scale_layer_stride,
                                       uint32_t page, uint32_t kind, uint32_t head, uint32_t dim)
{
    block16_part part = block16_part_at(pages, &pages->regions[region_index], page, kind, head, dim);
    part.codes += blockIdx.y * code_layer_stride[region_index];
    part.scales += blockIdx.y * scale_layer_stride[region_index];
    return part;
}

/* Scales of the two sides (NUM 6.7); equal ones cancel. */
struct scale_pair {
    float src;
    float dst;
};

/* The thread's elements of a vector of the source; zeros where there is none. */
static __device__ void load(const block16_part &src, const scale_pair &scales, uint32_t token, uint32_t b, bool active,
                            float (&x)[BLOCK16])
{
    if (active) {
        float16_values(&src, token, b, x);
        if (scales.src != scales.dst) {
            nbl_scale_multiply(x, BLOCK16, scales.src);
            nbl_scale_divide(x, BLOCK16, scales.dst);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        x[i] = active && b * BLOCK16 + i < src.dim ? x[i] : 0.0f;
    }
}

static __global__ void __launch_bounds__(THREADS) transcode_kernel(const __grid_constant__ pages_params p)
{
    __shared__ uint32_t slots[VECTORS_MAX];
    __shared__ block_stats total;
    uint32_t i = blockIdx.x;
    uint32_t head = blockIdx.z / 2u;
    uint32_t kind = blockIdx.z % 2u;
    uint32_t dim = kind == NBL_KIND_K ? p.k_dim : p.v_dim;
    page_pair pair = page_pair_find(&p, i);
    int32_t tokens = p.token_counts[i];
    if (tokens < 0 || (uint32_t)tokens > p.src.page_tokens) {
        cuda_fault_report(p.status, CUDA_FAULT_TOKEN_COUNT, i, 0, tokens, p.src.page_tokens);
        pair.src = -1;
    }
    if (pair.src < 0) {
        return;
    }
    if (threadIdx.x == 0) {
        total = block_stats{0, 0, 0, 0, 0};
    }
    __syncthreads();
    block16_part src = part_of(&p.src, (uint32_t)pair.src, p.src_code_layer_stride, p.src_scale_layer_stride,
                               (uint32_t)p.src_pages[i], kind, head, dim);
    store16_target at;
    at.part = part_of(&p.dst, (uint32_t)pair.dst, p.dst_code_layer_stride, p.dst_scale_layer_stride,
                      (uint32_t)p.dst_pages[i], kind, head, dim);
    at.team = nbl_layout_dim_padded(dim) / BLOCK16;
    at.b = threadIdx.x % at.team;
    uint32_t vectors = THREADS / at.team;
    uint32_t vector = threadIdx.x / at.team;
    block16_counts none = {0, 0, 0};
    uint32_t in_layers = blockIdx.y * p.kv_heads + head;
    scale_pair scales = {float16_scale(&p.src, kind, in_layers), float16_scale(&p.dst, kind, in_layers)};
    for (uint32_t first = 0; first < (uint32_t)tokens; first += vectors) {
        float x[BLOCK16];
        at.token = first + vector;
        at.active = vector < vectors && at.token < (uint32_t)tokens;
        load(src, scales, at.token, at.b, at.active, x);
        store16(x, at, kind == NBL_KIND_K ? p.k_rule : p.v_rule, nbl_layout_is_mxfp4(at.part.format),
                &slots[min(vector, vectors - 1u)], none, p.stats != NULL ? &total : NULL);
    }
    __syncthreads();
    if (p.stats != NULL && threadIdx.x == 0) {
        block_stats_flush(total, p.stats);
    }
}

extern "C" cudaError_t nbl_cuda_float_transcode(const pages_params *p, cudaStream_t stream)
{
    transcode_kernel<<<dim3(p->count, p->layers, p->kv_heads * 2u), THREADS, 0, stream>>>(*p);
    return cudaGetLastError();
}
