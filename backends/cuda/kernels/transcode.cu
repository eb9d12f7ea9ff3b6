/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file transcode.cu
 * @brief transcode: stored vectors into the formats of the destination's region (NUM 3.7). A block per pair, layer,
 * head and kind; its warps go over the page's tokens without a barrier, a vector per team as in append.cu. Words of K
 * are moved as they lie, those of V by quads of tokens, which begin at multiples of four in a page.
 */
#include "../ops.h"
#include "../tile/page_pair.cuh"
#include "../tile/page_tokens.cuh"

#define THREADS 128u
#define WARPS (THREADS / WARP_LANES)

struct transcode_shared {
    block16_part from; /* the pages' parts */
    block16_part to;
    float reciprocals[RECIPROCALS];
    block_stats total;
};

/* What is the same for all threads of a block. */
struct transcode_work {
    uint32_t kind;
    uint32_t dim;
    uint32_t rule;
    uint32_t tokens;
    uint32_t page_tokens;
    uint32_t from_format;
    uint32_t to_format;
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

/* Fills in the parts, too; all threads of the block call it, and then a barrier. */
static __device__ transcode_work work_of(const pages_params &p, const page_pair &pair, transcode_shared *s)
{
    transcode_work w;
    uint32_t i = blockIdx.x;
    uint32_t head = blockIdx.z / 2u;
    w.kind = blockIdx.z % 2u;
    w.dim = w.kind == NBL_KIND_K ? p.k_dim : p.v_dim;
    w.rule = w.kind == NBL_KIND_K ? p.k_rule : p.v_rule;
    w.tokens = (uint32_t)p.token_counts[i];
    block16_part from = part_of(&p.src, (uint32_t)pair.src, p.src_code_layer_stride, p.src_scale_layer_stride,
                                (uint32_t)p.src_pages[i], w.kind, head, w.dim);
    block16_part to = part_of(&p.dst, (uint32_t)pair.dst, p.dst_code_layer_stride, p.dst_scale_layer_stride,
                              (uint32_t)p.dst_pages[i], w.kind, head, w.dim);
    if (threadIdx.x == 0) {
        s->from = from;
        s->to = to;
    }
    w.page_tokens = from.page_tokens;
    w.from_format = from.format;
    w.to_format = to.format;
    w.team = team32_of(w.dim);
    return w;
}

/* A lane's vector. */
struct transcode_lane {
    uint32_t token; /* of the page; 0 where there is none */
    bool active;    /* there is one */
    bool has_quad;  /* V: it is in a quad of the page, whose lanes are in this warp */
    uint32_t r;     /* its place there */
    uint8_t *row;   /* V: its codes, in shared memory */
};

/* first: the warp's first token. */
static __device__ transcode_lane lane_of(const transcode_work &w, uint8_t *rows, uint32_t first)
{
    transcode_lane l;
    bool in_warp = w.team.vector < w.team.per_warp;
    l.token = first + (in_warp ? w.team.vector : 0u);
    l.active = in_warp && l.token < w.tokens;
    l.r = l.token % QUAD;
    l.has_quad = in_warp && w.team.per_warp >= QUAD && l.token - l.r + QUAD <= w.page_tokens;
    l.row = rows + (l.token - first) * stage_row_bytes(w.dim);
    return l;
}

/* The lane's codes as words of K, and their units. All lanes of the warp call it. The lanes of a quad read it together,
 * those without a token, too: its bytes are in the page. */
static __device__ void read_codes(const transcode_work &w, const transcode_shared *s, const transcode_lane &l,
                                  uint32_t (&words)[VECTOR32 / 4u], float (&unit)[2])
{
    const token_place from = token_place_of(s->from, l.active || l.has_quad ? l.token : 0u);
    uint32_t row_bytes = stage_row_bytes(w.dim);
    if (w.kind == NBL_KIND_K) {
        if (l.active) {
            read_k_codes(from, w.team.b, words);
        }
    } else {
        __syncwarp();
        if (l.has_quad && l.token - l.r < w.tokens) {
            read_v_quad(from, l.row - l.r * row_bytes, row_bytes, w.team.b, l.r);
        } else if (l.active) {
            read_v_single(from, l.row, w.team.b);
        }
        __syncwarp();
        if (l.active) {
            unstage_v_codes(l.row, w.team.b, w.from_format, words);
        }
        __syncwarp();
    }
    read_units(from, w.team, nbl_layout_is_mxfp4(w.from_format), l.active, unit);
}

/* Stores the lane's codes and scales. All lanes of the warp call it. */
template <uint32_t FAMILY>
static __device__ void write_codes(const transcode_work &w, const transcode_shared *s, const transcode_lane &l,
                                   const codes32 &q)
{
    const token_place to = token_place_of(s->to, l.active ? l.token : 0u);
    uint32_t row_bytes = stage_row_bytes(w.dim);
    if (l.active) {
        write_scales<FAMILY>(to, w.team, w.team.b, q);
        if (w.kind == NBL_KIND_K) {
            write_k_codes(to, w.team.b, q.words);
        } else {
            stage_v_codes(l.row, w.team.b, w.to_format, q.words);
        }
    }
    if (w.kind == NBL_KIND_K) {
        return;
    }
    __syncwarp();
    if (l.active && l.has_quad && l.token - l.r + QUAD <= w.tokens) {
        write_v_quad(to, l.row - l.r * row_bytes, row_bytes, w.team.b, l.r);
    } else if (l.active) {
        write_v_single(to, l.row, w.team.b);
    }
}

/* One vector of each team of the warp, tokens from `first` on. */
template <uint32_t FAMILY>
static __device__ void transcode_vectors(const pages_params &p, const transcode_work &w, transcode_shared *s,
                                         uint8_t *rows, uint32_t first)
{
    float unit[2];
    float x[VECTOR32];
    codes32 q;
    uint32_t words[VECTOR32 / 4u] = {};
    transcode_lane l = lane_of(w, rows, first);
    read_codes(w, s, l, words, unit);
    dequantize32(words, w.from_format, unit, x);
#pragma unroll
    for (uint32_t i = 0; i < VECTOR32; ++i) { /* bytes past the dimension may be anything */
        x[i] = w.team.b * VECTOR32 + i < w.dim ? x[i] : 0.0f;
    }
    range32 range = range32_of(x, w.team);
    quantize32<FAMILY, QUANTIZE_CODES>(x, range, w.team, w.to_format, w.rule, s->reciprocals, p.stats != NULL, &q);
    write_codes<FAMILY>(w, s, l, q);
    if (p.stats != NULL) {
        block_stats_add(&s->total, q, range, w.team, w.to_format, l.active);
    }
}

template <uint32_t FAMILY>
static __global__ void __launch_bounds__(THREADS,
                                         FAMILY == FAMILY_ANY || FAMILY == FAMILY_MXFP4 ? 3u : 4u - BLOCKS_FEWER)
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
    transcode_work w = work_of(p, pair, &s);
    if (threadIdx.x == 0) {
        s.total = block_stats{0, 0, 0, 0, 0};
    }
    reciprocals_fill(s.reciprocals);
    __syncthreads();
    uint32_t warp = threadIdx.x / WARP_LANES;
    uint8_t *rows = (uint8_t *)dynamic + warp * w.team.per_warp * stage_row_bytes(w.dim);
#pragma unroll 1
    for (uint32_t t = warp * w.team.per_warp; t < w.tokens; t += WARPS * w.team.per_warp) {
        transcode_vectors<FAMILY>(p, w, &s, rows, t);
    }
    if (p.stats == NULL) {
        return;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        block_stats_flush(s.total, p.stats);
    }
}

extern "C" cudaError_t nbl_cuda_transcode(const pages_params *p, cudaStream_t stream)
{
    static void (*const kernels[])(const pages_params) = {transcode_kernel<FAMILY_INT8>, transcode_kernel<FAMILY_INT4P>,
                                                          transcode_kernel<FAMILY_MXFP4>, transcode_kernel<FAMILY_ANY>};
    dim3 grid(p->count, p->layers, p->kv_heads * 2u);
    uint32_t rows = WARPS * team32_per_warp(p->v_dim);
    kernels[family_of(&p->dst)]<<<grid, THREADS, rows * stage_row_bytes(p->v_dim), stream>>>(*p);
    return cudaGetLastError();
}
