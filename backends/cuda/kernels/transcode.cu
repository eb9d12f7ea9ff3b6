/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file transcode.cu
 * @brief transcode: stored vectors into the formats of the destination's region (NUM 3.7). A block per pair, layer,
 * head and kind takes the page's tokens in groups of 32; teams as in append.cu.
 */
#include "../ops.h"
#include "../tile/page_pair.cuh"
#include "../tile/page_tokens.cuh"

#define THREADS 128u
#define WARPS (THREADS / WARP_LANES)

struct transcode_shared {
    token_place from[GROUP_TOKENS];
    token_place to[GROUP_TOKENS];
    quad_lists lists; /* the same on both sides: places in the page do not change */
    float reciprocals[RECIPROCALS];
    block_stats total;
};

/* What is the same for all threads of a block. */
struct transcode_work {
    uint32_t kind;
    uint32_t dim;
    uint32_t rule;
    uint32_t tokens;
    block16_part from;
    block16_part to;
    team32 team;
};

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

static __device__ transcode_work work_of(const pages_params &p, const page_pair &pair)
{
    transcode_work w;
    uint32_t i = blockIdx.x;
    uint32_t head = blockIdx.z / 2u;
    w.kind = blockIdx.z % 2u;
    w.dim = w.kind == NBL_KIND_K ? p.k_dim : p.v_dim;
    w.rule = w.kind == NBL_KIND_K ? p.k_rule : p.v_rule;
    w.tokens = (uint32_t)p.token_counts[i];
    w.from = part_of(&p.src, (uint32_t)pair.src, p.src_code_layer_stride, p.src_scale_layer_stride,
                     (uint32_t)p.src_pages[i], w.kind, head, w.dim);
    w.to = part_of(&p.dst, (uint32_t)pair.dst, p.dst_code_layer_stride, p.dst_scale_layer_stride,
                   (uint32_t)p.dst_pages[i], w.kind, head, w.dim);
    w.team = team32_of(w.dim);
    return w;
}

/* Places of a group's tokens on both sides, by the first warp. */
static __device__ void find_places(const transcode_work &w, uint32_t first, transcode_shared *s)
{
    uint32_t t = threadIdx.x;
    if (t < GROUP_TOKENS) {
        bool has_token = first + t < w.tokens;
        s->from[t] = token_place_of(w.from, has_token ? first + t : 0u);
        s->to[t] = token_place_of(w.to, has_token ? first + t : 0u);
        if (!has_token) {
            s->from[t].codes = NULL;
        }
        __syncwarp();
        quad_lists_fill(&s->lists, s->from);
    }
}

/* One vector of each team of the warp: token t of the group, if active. */
template <uint32_t FAMILY>
static __device__ void transcode_vector(const pages_params &p, const transcode_work &w, transcode_shared *s,
                                        uint8_t *stage, uint32_t t, bool active)
{
    float unit[2];
    float x[VECTOR32];
    codes32 q;
    uint32_t words[VECTOR32 / 4u] = {};
    uint8_t *row = stage + t * stage_row_bytes(w.dim);
    active = active && s->from[t].codes != NULL;
    read_units(s->from[t], w.team, is_mxfp4(w.from.format), active, unit);
    if (active && w.kind == NBL_KIND_K) {
        read_k_codes(s->from[t], w.team.b, words);
    } else if (active) {
        unstage_v_codes(row, w.team.b, w.from.format, words);
    }
    dequantize32(words, w.from.format, unit, x);
#pragma unroll
    for (uint32_t i = 0; i < VECTOR32; ++i) { /* bytes past the dimension may be anything */
        x[i] = w.team.b * VECTOR32 + i < w.dim ? x[i] : 0.0f;
    }
    range32 range = range32_of(x, w.team);
    quantize32<FAMILY, true>(x, range, w.team, w.to.format, w.rule, s->reciprocals, p.stats != NULL, &q);
    __syncwarp();
    if (active) {
        write_scales<FAMILY>(s->to[t], w.team, w.team.b, q);
        if (w.kind == NBL_KIND_K) {
            write_k_codes(s->to[t], w.team.b, q.words);
        } else {
            stage_v_codes(row, w.team.b, w.to.format, q.words);
        }
    }
    if (p.stats != NULL) {
        block_stats_add(&s->total, q, block16_counts{0, 0, 0}, range, w.team, w.to.format, active);
    }
}

/* All vectors of a group of tokens. */
template <uint32_t FAMILY>
static __device__ void transcode_group(const pages_params &p, const transcode_work &w, transcode_shared *s,
                                       uint8_t *stage)
{
    if (w.kind == NBL_KIND_V) {
        read_v_codes(&s->lists, s->from, stage, w.dim);
        __syncthreads();
    }
    for (uint32_t v = threadIdx.x / WARP_LANES * w.team.per_warp; v < GROUP_TOKENS; v += WARPS * w.team.per_warp) {
        bool active = w.team.vector < w.team.per_warp;
        transcode_vector<FAMILY>(p, w, s, stage, v + (active ? w.team.vector : 0u), active);
    }
    if (w.kind == NBL_KIND_V) {
        __syncthreads();
        write_v_codes(&s->lists, s->to, stage, w.dim);
    }
}

template <uint32_t FAMILY>
static __global__ void __launch_bounds__(THREADS, FAMILY == FAMILY_ANY ? 3u : 4u - BLOCKS_FEWER)
    transcode_kernel(const __grid_constant__ pages_params p)
{
    extern __shared__ uint4 dynamic[];
    __shared__ transcode_shared s;
    uint32_t i = blockIdx.x;
    page_pair pair = page_pair_find(&p, i);
    int32_t tokens = p.token_counts[i];
    if (tokens < 0 || (uint32_t)tokens > p.src.page_tokens) {
        cuda_fault_report(p.status, CUDA_FAULT_TOKEN_COUNT, i, 0, tokens, p.src.page_tokens);
        pair.src = -1;
    }
    if (pair.src < 0) {
        return;
    }
    transcode_work w = work_of(p, pair);
    if (threadIdx.x == 0) {
        s.total = block_stats{0, 0, 0, 0, 0};
    }
    reciprocals_fill(s.reciprocals);
    for (uint32_t first = 0; first < w.tokens; first += GROUP_TOKENS) {
        find_places(w, first, &s);
        __syncthreads();
        transcode_group<FAMILY>(p, w, &s, (uint8_t *)dynamic);
        __syncthreads();
    }
    if (p.stats != NULL && threadIdx.x == 0) {
        block_stats_flush(s.total, p.stats);
    }
}

extern "C" cudaError_t nbl_cuda_transcode(const pages_params *p, cudaStream_t stream)
{
    static void (*const kernels[])(const pages_params) = {transcode_kernel<FAMILY_INT8>, transcode_kernel<FAMILY_INT4P>,
                                                          transcode_kernel<FAMILY_MXFP4>, transcode_kernel<FAMILY_ANY>};
    dim3 grid(p->count, p->layers, p->kv_heads * 2u);
    kernels[family_of(&p->dst)]<<<grid, THREADS, GROUP_TOKENS * stage_row_bytes(p->v_dim), stream>>>(*p);
    return cudaGetLastError();
}
