/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file float_append.cu
 * @brief append into pools of the float core: any formats (NUM 3, 4, 6.1, 6.7).
 *
 * A block takes 16 tokens of one head, K or V (more threads fit a multiprocessor than in blocks of 32); a team of Dp/16
 * threads holds a vector in registers from the load to the store, so an input byte is read once and a code byte written
 * once.
 */
#include "../ops.h"
#include "../tile/store16.cuh"

#define VECTORS 16u
#define THREADS_MAX 576u

/* What a thread works on. */
struct place {
    store16_target target;
    uint32_t vector; /* in the block */
    uint32_t index;  /* token of the call */
};

static __device__ place find_place(const append_params &p, uint32_t kind, uint32_t head)
{
    place at;
    uint32_t dim = kind == NBL_KIND_K ? p.k_dim : p.v_dim;
    uint32_t team = nbl_layout_dim_padded(dim) / BLOCK16;
    uint32_t vector = threadIdx.x / team;
    at.target.team = team;
    at.target.b = threadIdx.x % team;
    at.target.part.format = NBL_INT8;
    at.index = blockIdx.x * VECTORS + vector;
    at.vector = min(vector, VECTORS - 1u);
    bool has_token = vector < VECTORS && at.index < p.tokens;
    int64_t slot = has_token ? p.slots[at.index] : -1;
    int64_t page = slot >= 0 ? page_of_slot(slot, p.pages.page_tokens) : -1;
    const cuda_region *region = cuda_region_find(&p.pages, page);
    if (slot != -1 && region == NULL) {
        cuda_fault_report(p.status, CUDA_FAULT_SLOT, at.index, 0, slot, 0);
    }
    at.target.active = region != NULL;
    if (region != NULL) {
        at.target.token = (uint32_t)(slot - page * p.pages.page_tokens);
        at.target.part = block16_part_at(&p.pages, region, (uint32_t)page, kind, head, dim);
    }
    return at;
}

/* Centre and shifts of the thread's vector; none for V. */
static __device__ block16_centering find_centering(const append_params &p, const place &at, uint32_t kind,
                                                   uint32_t head)
{
    block16_centering none = {NULL, NULL, NULL};
    if (kind != NBL_KIND_K || !p.centering || !at.target.active) {
        return none;
    }
    uint32_t sequence = sequence_of(p.seq_indptr, p.batch, at.index);
    return block16_centering_of(&p.centers, sequence, p.kv_heads, head, p.k_dim, p.status);
}

/* Loads, sanitizes and transforms the thread's elements; zeros where there is no vector. */
static __device__ void load(const append_params &p, const place &at, uint32_t kind, uint32_t head, float (&x)[BLOCK16],
                            block16_counts *counts)
{
    const cuda_tensor *t = kind == NBL_KIND_K ? &p.k : &p.v;
    uint32_t dim = kind == NBL_KIND_K ? p.k_dim : p.v_dim;
    uint32_t b = at.target.b;
    block16_centering centering = find_centering(p, at, kind, head);
    if (at.target.active) {
        const uint8_t *row = t->data + (int64_t)at.index * t->stride[0] + (int64_t)head * t->stride[1];
        block16_read(t, row, 2, dim, b, x);
        block16_sanitize(x, counts);
    } else {
#pragma unroll
        for (uint32_t i = 0; i < BLOCK16; ++i) {
            x[i] = 0.0f;
        }
    }
    if (centering.shifts != NULL) {
        block16_shift(x, centering.shifts, dim, b, 1);
    }
    block16_hadamard(x, b, kind == NBL_KIND_K ? p.k_hadamard : p.v_hadamard);
    if (centering.codes != NULL) {
        block16_center(x, centering.codes, *centering.exponent, dim, b, -1.0f);
    }
    nbl_scale_divide(x, BLOCK16, float16_scale(&p.pages, kind, head));
}

static __global__ void __launch_bounds__(THREADS_MAX) append_kernel(const __grid_constant__ append_params p)
{
    __shared__ uint32_t slots[VECTORS];
    __shared__ block_stats total;
    uint32_t kind = blockIdx.z;
    uint32_t head = blockIdx.y;
    if (threadIdx.x == 0) {
        total = block_stats{0, 0, 0, 0, 0};
    }
    if (p.centering && blockIdx.x + blockIdx.y + blockIdx.z == 0) {
        check_indptr(p.seq_indptr, p.batch, p.tokens, 1, p.status);
    }
    __syncthreads();
    place at = find_place(p, kind, head);
    float x[BLOCK16];
    block16_counts counts = {0, 0, 0};
    load(p, at, kind, head, x, &counts);
    store16(x, at.target, kind == NBL_KIND_K ? p.k_rule : p.v_rule, cuda_any_mxfp4(&p.pages, kind), &slots[at.vector],
            counts, p.stats != NULL ? &total : NULL);
    if (p.stats != NULL) {
        __syncthreads();
        if (threadIdx.x == 0) {
            block_stats_flush(total, p.stats);
        }
    }
}

extern "C" cudaError_t nbl_cuda_float_append(const append_params *p, cudaStream_t stream)
{
    uint32_t threads = VECTORS * nbl_layout_dim_padded(max(p->k_dim, p->v_dim)) / BLOCK16;
    dim3 grid((p->tokens + VECTORS - 1u) / VECTORS, p->kv_heads, 2);
    append_kernel<<<grid, threads, 0, stream>>>(*p);
    return cudaGetLastError();
}
