/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file append_coded.cu
 * @brief append_coded: K and V that an engine has quantized, into pages (NUM 6.8). A lane has 32 elements of a
 * vector, which are whole bytes of a page in every format, and stores them as append does.
 */
#include "../ops.h"
#include "../tile/page_tokens.cuh"
#include "float_format.h"

#define THREADS 128u
#define WARPS (THREADS / WARP_LANES)
#define WORDS (VECTOR32 / 4u)                                 /* of a lane's codes */
#define STAGE_BYTES (WARP_LANES * (VECTOR32 + STAGE_PADDING)) /* of a warp's rows, at most */

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

/* The lane's codes in a row as they come, those past its end zeros: four in a word of 8-bit codes, else eight. */
__device__ void read_codes(const coded_side &side, const uint8_t *row, uint32_t b, uint32_t (&words)[WORDS])
{
    const uint32_t count = nbl_layout_code_bits(side.format); /* words, in all 32 codes */
    const uint32_t first = 4u * count * b, end = side.dim * count / 8u;
    const int64_t stride = side.code_stride[2];
    const uint8_t *from = row + (int64_t)first * stride;
    if (stride == 1 && ((uint64_t)from & 15u) == 0 && first + 4u * count <= end) {
#pragma unroll
        for (uint32_t i = 0; i < WORDS / 4u; ++i) {
            const uint4 v = 4u * i < count ? ((const uint4 *)(const void *)from)[i] : make_uint4(0, 0, 0, 0);
            words[4u * i] = v.x;
            words[4u * i + 1u] = v.y;
            words[4u * i + 2u] = v.z;
            words[4u * i + 3u] = v.w;
        }
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < WORDS; ++i) {
        words[i] = 0;
        for (uint32_t j = 0; i < count && first + 4u * i < end && j < 4u; ++j) {
            words[i] |= (uint32_t)from[(int64_t)(4u * i + j) * stride] << (8u * j);
        }
    }
}

/* Nibbles in the order of their elements to a word of K (F3). */
__device__ uint32_t word_of_nibbles(uint32_t nibbles)
{
    uint32_t low = nibbles & 0xffffu, high = nibbles >> 16;
    low = (low | low << 8) & 0x00ff00ffu;
    high = (high | high << 8) & 0x00ff00ffu;
    return ((low | low << 4) & 0x0f0f0f0fu) | ((high | high << 4) & 0x0f0f0f0fu) << 4;
}

/* What is stored of codes read: words of K. */
__device__ void adopt_codes(uint32_t format, uint32_t (&words)[WORDS], uint32_t *nan)
{
#pragma unroll
    for (uint32_t i = 0; i < WORDS; ++i) {
        words[i] = format == NBL_NVFP4 ? word_of_nibbles(nbl_e2m1_adopt8(words[i])) : nbl_e4m3_adopt4(words[i], nan);
    }
}

/* 1 if the tokens of the lane's four teams lie side by side as a whole quad of V (F4). All lanes call it. */
__device__ bool lane_quad_is_whole(const token_place &at, const team32 &team)
{
    if (team.per_warp < QUAD) {
        return false;
    }
    const uint32_t r = team.vector % QUAD, size = team.size;
    const uint32_t first = (threadIdx.x % WARP_LANES - r * size) % WARP_LANES;
    const uint64_t base = __shfl_sync(FULL_WARP, (uint64_t)at.codes, (int)first);
    const bool fits = at.codes != NULL && at.stride == QUAD && base % QUAD == 0 && (uint64_t)at.codes == base + r;
    const uint32_t quad = (1u | 1u << size | 1u << 2u * size | 1u << 3u * size) << first;
    return (__ballot_sync(FULL_WARP, fits) & quad) == quad; /* of lanes without a vector it means nothing */
}

/* Codes to the page; V through the warp's rows. All lanes call it. */
__device__ void write_codes(const token_place &at, const team32 &team, uint32_t kind, uint32_t dim, uint8_t *rows,
                            const uint32_t (&words)[WORDS])
{
    const bool is_active = at.codes != NULL;
    if (kind == NBL_KIND_K) {
        if (is_active) {
            write_k_codes(at, team.b, words);
        }
        return;
    }
    const uint32_t row_bytes = stage_row_bytes(dim), r = team.vector % QUAD;
    uint8_t *row = rows + team.vector * row_bytes;
    if (is_active) {
        stage_v_codes(row, team.b, at.format, words);
    }
    const bool is_whole = lane_quad_is_whole(at, team);
    __syncwarp();
    if (is_active && is_whole) {
        write_v_quad(at, row - r * row_bytes, row_bytes, team.b, r);
    } else if (is_active) {
        write_v_single(at, row, team.b);
    }
}

/* Block scales of the lane's elements. */
__device__ void write_block_scales(const coded_params &p, const coded_side &side, const token_place &place, uint32_t at,
                                   uint32_t head, uint32_t first, uint32_t *nan)
{
    uint64_t counted = 0;
#pragma unroll
    for (uint32_t b = first; b < first + VECTOR32 / NBL_NVFP4_BLOCK; ++b) {
        const bool is_there = b * NBL_NVFP4_BLOCK < side.dim;
        place.scales[b * place.plane_bytes] =
            is_there ? nbl_nvfp4_scale_adopt(scale_byte(p, side, at, head, b), &counted) : (uint8_t)0;
    }
    *nan += (uint32_t)counted;
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

/* Place of a token, or none. Where codes lie depends on their size alone, so those of 8 bits are called int8 here. */
__device__ token_place find_place(const coded_params &p, const coded_side &side, uint32_t kind, uint32_t head,
                                  uint32_t token)
{
    token_place at = {NULL, NULL, side.format, 0, 0, 0};
    const int64_t slot = p.slots[token];
    const cuda_region *region = find_region(p, token, slot);
    if (region != NULL) {
        const int64_t page = page_of_slot(slot, p.pages.page_tokens);
        at = token_place_of(block16_part_at(&p.pages, region, (uint32_t)page, kind, head, side.dim),
                            (uint32_t)(slot - page * p.pages.page_tokens));
    }
    at.format = nbl_layout_code_bits(side.format) == 8u ? NBL_INT8 : NBL_NVFP4;
    return at;
}

/* A warp takes a few vectors of one head, K or V. */
__global__ void __launch_bounds__(THREADS) append_coded_kernel(const __grid_constant__ coded_params p)
{
    __shared__ uint4 stage[WARPS][STAGE_BYTES / sizeof(uint4)];
    __shared__ block_stats total;
    const uint32_t kind = blockIdx.z, head = blockIdx.y, warp = threadIdx.x / WARP_LANES;
    const coded_side &side = p.sides[kind];
    if (side.codes == NULL) {
        return;
    }
    if (threadIdx.x == 0) {
        total = block_stats{0, 0, 0, 0, 0};
    }
    __syncthreads();
    const team32 team = team32_of(side.dim);
    const uint32_t at = (blockIdx.x * WARPS + warp) * team.per_warp + team.vector;
    token_place place = {NULL, NULL, side.format, 0, 0, 0};
    uint32_t words[WORDS] = {0};
    uint32_t nan = 0;
    if (team.vector < team.per_warp && at < p.tokens) {
        place = find_place(p, side, kind, head, at);
    }
    if (place.codes != NULL) {
        read_codes(side, side.codes + (int64_t)at * side.code_stride[0] + (int64_t)head * side.code_stride[1], team.b,
                   words);
        adopt_codes(side.format, words, &nan);
    }
    write_codes(place, team, kind, side.dim, (uint8_t *)(void *)stage[warp], words);
    if (place.codes != NULL && side.format == NBL_NVFP4) {
        write_block_scales(p, side, place, at, head, team.b * (VECTOR32 / NBL_NVFP4_BLOCK), &nan);
    }
    if (p.stats == NULL) {
        return;
    }
    add_block(&total.nan_inputs, nan);
    add_block(&total.vectors, place.codes != NULL && team.b == 0);
    __syncthreads();
    if (threadIdx.x == 0) {
        block_stats_flush(total, p.stats);
    }
}

} // namespace

extern "C" cudaError_t nbl_cuda_append_coded(const coded_params *p, cudaStream_t stream)
{
    const uint32_t dim = max(p->sides[NBL_KIND_K].dim, p->sides[NBL_KIND_V].dim);
    const uint32_t tokens = WARPS * team32_per_warp(dim); /* of a block */
    append_coded_kernel<<<dim3((p->tokens + tokens - 1u) / tokens, p->kv_heads, 2), THREADS, 0, stream>>>(*p);
    return cudaGetLastError();
}
