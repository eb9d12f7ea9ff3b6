/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file float_gather.cu
 * @brief gather from pools of the float core: stored vectors back to numbers (NUM 4.4, 6.7). A team of Dp/16 threads
 * per vector, as in float_append.cu.
 */
#include "../ops.h"
#include "../tile/float16.cuh"

#define THREADS 256u

/* Centre and shifts that have to be taken back; none for V. */
static __device__ block16_centering find_centering(const gather_params &p, uint32_t token, uint32_t kind, uint32_t head,
                                                   bool good)
{
    block16_centering none = {NULL, NULL, NULL};
    if (kind != NBL_KIND_K || p.seq_indptr == NULL || !good || p.slots[token] < 0) {
        return none;
    }
    uint32_t sequence = sequence_of(p.seq_indptr, p.batch, token);
    return block16_centering_of(&p.centers, sequence, p.kv_heads, head, p.k_dim, p.status);
}

/* The thread's elements of a stored vector, transforms left in; zeros for slot -1. False if the slot is bad. */
static __device__ bool decode(const gather_params &p, uint32_t token, uint32_t kind, uint32_t head, uint32_t b,
                              uint32_t dim, float (&x)[BLOCK16])
{
    int64_t slot = p.slots[token];
    if (slot == -1) {
        return true;
    }
    int64_t page = slot < 0 ? -1 : page_of_slot(slot, p.pages.page_tokens);
    const cuda_region *region = cuda_region_find(&p.pages, page);
    if (region == NULL) {
        cuda_fault_report(p.status, CUDA_FAULT_SLOT, token, 0, slot, 0);
        return false;
    }
    block16_part part = block16_part_at(&p.pages, region, (uint32_t)page, kind, head, dim);
    float16_values(&part, (uint32_t)(slot - page * p.pages.page_tokens), b, x);
    nbl_scale_multiply(x, BLOCK16, float16_scale(&p.pages, kind, head));
    return true;
}

static __global__ void __launch_bounds__(THREADS) gather_kernel(const __grid_constant__ gather_params p)
{
    uint32_t kind = blockIdx.z;
    uint32_t head = blockIdx.y;
    const cuda_tensor *out = kind == NBL_KIND_K ? &p.k : &p.v;
    uint32_t dim = kind == NBL_KIND_K ? p.k_dim : p.v_dim;
    uint32_t hadamard = kind == NBL_KIND_K ? p.k_hadamard : p.v_hadamard;
    if (out->data == NULL) {
        return;
    }
    if (p.seq_indptr != NULL && blockIdx.x + blockIdx.y == 0) {
        check_indptr(p.seq_indptr, p.batch, p.tokens, 1, p.status);
    }
    uint32_t team = nbl_layout_dim_padded(dim) / BLOCK16;
    uint32_t vectors = THREADS / team;
    uint32_t token = blockIdx.x * vectors + threadIdx.x / team;
    uint32_t b = threadIdx.x % team;
    bool active = threadIdx.x / team < vectors && token < p.tokens;
    float x[BLOCK16] = {0};
    bool good = active && decode(p, token, kind, head, b, dim, x);
    block16_centering centering = find_centering(p, token, kind, head, good);
    if (centering.codes != NULL) {
        block16_center(x, centering.codes, *centering.exponent, dim, b, 1.0f);
    }
    block16_hadamard_undo(x, b, hadamard);
    if (centering.shifts != NULL) {
        block16_shift(x, centering.shifts, dim, b, -1);
    }
    if (good) {
        uint8_t *row = out->data + (int64_t)token * out->stride[0] + (int64_t)head * out->stride[1];
        block16_write(out, row, 2, dim, b, x);
    }
}

extern "C" cudaError_t nbl_cuda_float_gather(const gather_params *p, cudaStream_t stream)
{
    uint32_t vectors = THREADS * BLOCK16 / nbl_layout_dim_padded(max(p->k_dim, p->v_dim));
    dim3 grid((p->tokens + vectors - 1u) / vectors, p->kv_heads, 2);
    gather_kernel<<<grid, THREADS, 0, stream>>>(*p);
    return cudaGetLastError();
}
