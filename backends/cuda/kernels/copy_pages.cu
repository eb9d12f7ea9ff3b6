/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file copy_pages.cu
 * @brief copy_pages: whole pages, bytes as they are. A block per pair and layer.
 */
#include "../ops.h"
#include "../tile/page_pair.cuh"

#define THREADS 256u

/* Copies a multiple of 16 bytes (F2, F6). */
static __device__ void copy(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    uint4 *dst = (uint4 *)(void *)to;
    const uint4 *src = (const uint4 *)(const void *)from;
#pragma unroll 4
    for (uint64_t i = threadIdx.x; i < bytes / sizeof(uint4); i += THREADS) {
        dst[i] = src[i];
    }
}

static __global__ void __launch_bounds__(THREADS) copy_pages_kernel(const __grid_constant__ pages_params p)
{
    uint32_t i = blockIdx.x;
    page_pair pair = page_pair_find(&p, i);
    if (pair.src < 0) {
        return;
    }
    const cuda_region *src = &p.src.regions[pair.src];
    const cuda_region *dst = &p.dst.regions[pair.dst];
    if (src->k_format != dst->k_format || src->v_format != dst->v_format) {
        cuda_fault_report(p.status, CUDA_FAULT_FORMATS, i, 0, p.src_pages[i], p.dst_pages[i]);
        return;
    }
    uint64_t from = (uint32_t)p.src_pages[i] - src->first_page;
    uint64_t to = (uint32_t)p.dst_pages[i] - dst->first_page;
    uint64_t layer = blockIdx.y;
    copy(dst->codes + layer * p.dst_code_layer_stride[pair.dst] + to * dst->code_page_stride,
         src->codes + layer * p.src_code_layer_stride[pair.src] + from * src->code_page_stride,
         p.code_page_bytes[pair.src]);
    copy(dst->scales + layer * p.dst_scale_layer_stride[pair.dst] + to * dst->scale_page_stride,
         src->scales + layer * p.src_scale_layer_stride[pair.src] + from * src->scale_page_stride,
         p.scale_page_bytes[pair.src]);
}

extern "C" cudaError_t nbl_cuda_copy_pages(const pages_params *p, cudaStream_t stream)
{
    copy_pages_kernel<<<dim3(p->count, p->layers), THREADS, 0, stream>>>(*p);
    return cudaGetLastError();
}
