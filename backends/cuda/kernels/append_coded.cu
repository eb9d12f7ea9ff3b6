/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file append_coded.cu
 * @brief append_coded: K and V that an engine has quantized, into pages (NUM 6.8). A thread has 32 elements of a
 * vector, which are whole bytes of a page in every format.
 */
#include "../ops.h"
#include "../tile/float16.cuh"

#define THREADS 128u
#define ELEMENTS 32u

namespace
{

/* Scale of block b (F9). */
__device__ uint8_t scale_byte(const coded_params &p, const coded_side &side, uint32_t token, uint32_t head, uint32_t b)
{
    if (p.scale_layout == NBL_SCALES_LINEAR) {
        return side.scales[(int64_t)token * side.scale_stride[0] + (int64_t)head * side.scale_stride[1] +
                           (int64_t)b * side.scale_stride[2]];
    }
    const uint64_t at = p.scale_token + token;
    const uint64_t byte = nbl_layout_scale_128x4(side.is_shared ? at * p.kv_heads + head : at, b,
                                                 (side.dim + NBL_NVFP4_BLOCK - 1u) / NBL_NVFP4_BLOCK);
    return side
        .scales[(side.is_shared ? 0 : (int64_t)head * side.scale_stride[0]) + (int64_t)byte * side.scale_stride[1]];
}

/* Elements first.. of a vector; zeros past its end. */
__device__ void read_codes(const coded_side &side, uint32_t token, uint32_t head, uint32_t first,
                           uint8_t (&codes)[ELEMENTS], uint64_t *nan)
{
    const uint8_t *row = side.codes + (int64_t)token * side.code_stride[0] + (int64_t)head * side.code_stride[1];
#pragma unroll
    for (uint32_t i = 0; i < ELEMENTS; ++i) {
        const uint32_t d = first + i;
        codes[i] = 0;
        if (d < side.dim && side.format == NBL_NVFP4) {
            codes[i] = nbl_e2m1_adopt((uint32_t)row[(int64_t)(d / 2u) * side.code_stride[2]] >> d % 2u * 4u & 15u);
        } else if (d < side.dim) {
            codes[i] = nbl_e4m3_adopt(row[(int64_t)d * side.code_stride[2]], nan);
        }
    }
}

/* 4-bit codes: those of a byte are 4 elements apart in K, 16 in V (F3, F4). */
__device__ void write_codes(const block16_part &part, uint32_t token, uint32_t first, const uint8_t (&codes)[ELEMENTS])
{
#pragma unroll
    for (uint32_t i = 0; i < ELEMENTS; ++i) {
        uint8_t *at = part.codes + block16_code_byte(&part, token, first + i);
        if (nbl_layout_code_bits(part.format) == 8u) {
            *at = codes[i];
        } else if (block16_code_shift(&part, first + i) == 0) {
            const uint8_t high = part.kind == NBL_KIND_K ? codes[(i + 4u) % ELEMENTS] : codes[(i + 16u) % ELEMENTS];
            *at = (uint8_t)(codes[i] | high << 4);
        }
    }
}

__device__ void write_scales(const coded_params &p, const coded_side &side, const block16_part &part, uint32_t at,
                             uint32_t head, uint32_t first, uint32_t token, uint64_t *nan)
{
#pragma unroll
    for (uint32_t b = first / NBL_NVFP4_BLOCK; b < (first + ELEMENTS) / NBL_NVFP4_BLOCK; ++b) {
        const bool is_there = b * NBL_NVFP4_BLOCK < side.dim;
        part.scales[nbl_layout_scale_byte(part.page_tokens, b, token)] =
            is_there ? nbl_nvfp4_scale_adopt(scale_byte(p, side, at, head, b), nan) : (uint8_t)0;
    }
}

/* The region that a token goes to, or NULL: nowhere, or a fault. */
__device__ const cuda_region *find_region(const coded_params &p, uint32_t token, int64_t slot)
{
    const cuda_region *region = slot >= 0 ? cuda_region_find(&p.pages, slot / p.pages.page_tokens) : NULL;
    if (slot == -1) {
        return NULL;
    }
    if (region == NULL) {
        cuda_fault_report(p.status, CUDA_FAULT_SLOT, token, 0, slot, 0);
        return NULL;
    }
    if ((p.sides[NBL_KIND_K].codes != NULL && region->k_format != p.sides[NBL_KIND_K].format) ||
        (p.sides[NBL_KIND_V].codes != NULL && region->v_format != p.sides[NBL_KIND_V].format)) {
        cuda_fault_report(p.status, CUDA_FAULT_SLOT_FORMATS, token, 0, slot, 0);
        return NULL;
    }
    return region;
}

__global__ void __launch_bounds__(THREADS) append_coded_kernel(const __grid_constant__ coded_params p)
{
    const uint32_t kind = blockIdx.z, head = blockIdx.y;
    const coded_side &side = p.sides[kind];
    const uint32_t parts = nbl_layout_dim_padded(side.dim) / ELEMENTS;
    const uint64_t index = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    const uint32_t at = (uint32_t)(index / parts), first = (uint32_t)(index % parts) * ELEMENTS;
    if (side.codes == NULL || index / parts >= p.tokens) {
        return;
    }
    const int64_t slot = p.slots[at];
    const cuda_region *region = find_region(p, at, slot);
    if (region == NULL) {
        return;
    }
    const uint32_t page = (uint32_t)(slot / p.pages.page_tokens), token = (uint32_t)(slot % p.pages.page_tokens);
    const block16_part part = block16_part_at(&p.pages, region, page, kind, head, side.dim);
    uint8_t codes[ELEMENTS];
    uint64_t nan = 0;
    read_codes(side, at, head, first, codes, &nan);
    write_codes(part, token, first, codes);
    if (side.format == NBL_NVFP4) {
        write_scales(p, side, part, at, head, first, token, &nan);
    }
    if (p.stats != NULL && nan > 0) {
        atomicAdd((unsigned long long *)&p.stats->nan_inputs, (unsigned long long)nan);
    }
    if (p.stats != NULL && first == 0) {
        atomicAdd((unsigned long long *)&p.stats->vectors, 1ull);
    }
}

} // namespace

extern "C" cudaError_t nbl_cuda_append_coded(const coded_params *p, cudaStream_t stream)
{
    const uint32_t dim = max(p->sides[NBL_KIND_K].dim, p->sides[NBL_KIND_V].dim);
    const uint64_t threads = (uint64_t)p->tokens * (nbl_layout_dim_padded(dim) / ELEMENTS);
    append_coded_kernel<<<dim3((uint32_t)((threads + THREADS - 1u) / THREADS), p->kv_heads, 2), THREADS, 0, stream>>>(
        *p);
    return cudaGetLastError();
}
