/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file gather.cu
 * @brief gather: stored vectors back to numbers (NUM 4.4). Blocks and teams as in append.cu, the other way round.
 */
#include "../ops.h"
#include "../tile/page_tokens.cuh"

#define THREADS 128u
#define WARPS (THREADS / WARP_LANES)

struct gather_shared {
    token_place places[GROUP_TOKENS];
    bool bad[GROUP_TOKENS]; /* slots in no page: nothing is written for them */
    quad_lists lists;
};

/* What is the same for all threads of a block. */
struct gather_work {
    uint32_t kind;
    uint32_t head;
    uint32_t dim;
    uint32_t hadamard;
    uint32_t first; /* token of the call */
    uint32_t count; /* tokens */
    const cuda_tensor *out;
    bool wide;
    bool may_be_mxfp4;
    team32 team;
};

static __device__ gather_work work_of(const gather_params &p)
{
    gather_work w;
    bool is_k = blockIdx.y == NBL_KIND_K;
    w.kind = blockIdx.y;
    w.head = blockIdx.x % p.kv_heads;
    w.dim = is_k ? p.k_dim : p.v_dim;
    w.hadamard = is_k ? p.k_hadamard : p.v_hadamard;
    w.first = blockIdx.x / p.kv_heads * GROUP_TOKENS;
    w.count = min(GROUP_TOKENS, p.tokens - w.first);
    w.out = is_k ? &p.k : &p.v;
    w.wide = tensor_is_wide(w.out);
    w.may_be_mxfp4 = any_mxfp4(p.pages, w.kind);
    w.team = team32_of(w.dim);
    return w;
}

/* Places of the group, by its first warp. */
static __device__ void find_places(const gather_params &p, const gather_work &w, gather_shared *s)
{
    uint32_t t = threadIdx.x;
    if (t < GROUP_TOKENS) {
        int64_t slot = t < w.count ? p.slots[w.first + t] : -1;
        token_place at = token_place_of_slot(&p.pages, slot, w.first + t, w.kind, w.head, w.dim, p.status);
        if (w.kind == NBL_KIND_K && p.seq_indptr != NULL && at.codes != NULL) {
            at.sequence = (int32_t)sequence_of(p.seq_indptr, p.batch, w.first + t);
        }
        s->places[t] = at;
        s->bad[t] = at.codes == NULL && slot != -1;
        __syncwarp();
        quad_lists_fill(&s->lists, s->places);
    }
}

/* Takes centre, rotation and shifts back; all lanes of the warp call it. */
static __device__ void transform_back(const gather_params &p, const gather_work &w, const token_place &at,
                                      float (&x)[VECTOR32])
{
    block16_centering centering = {NULL, NULL, NULL};
    if (w.kind == NBL_KIND_K && p.seq_indptr != NULL && at.codes != NULL) {
        centering = block16_centering_of(&p.centers, (uint32_t)at.sequence, p.kv_heads, w.head, p.k_dim, p.status);
    }
    if (centering.codes != NULL) {
        vector32_center_from(x, centering.codes, *centering.exponent, w.dim, w.team.b, 1.0f);
    }
    vector32_hadamard_undo(x, w.team.b, w.hadamard);
    if (centering.shifts != NULL) {
        vector32_scale_from(x, centering.shifts, w.dim, w.team.b, -1);
    }
}

/* One vector of each team of the warp: token t of the group, if active; zeros for slot -1. */
static __device__ void gather_vector(const gather_params &p, const gather_work &w, const gather_shared *s,
                                     const uint8_t *stage, uint32_t t, bool active)
{
    float unit[2];
    float x[VECTOR32];
    uint32_t words[VECTOR32 / 4u] = {};
    const token_place &at = s->places[t];
    bool has_place = active && at.codes != NULL;
    read_units(at, w.team, w.may_be_mxfp4, has_place, unit);
    if (has_place && w.kind == NBL_KIND_K) {
        read_k_codes(at, w.team.b, words);
    } else if (has_place) {
        unstage_v_codes(stage + t * stage_row_bytes(w.dim), w.team.b, at.format, words);
    }
    dequantize32(words, at.format, unit, x);
    transform_back(p, w, at, x);
    if (active && t < w.count && !s->bad[t]) {
        uint8_t *row = w.out->data + (int64_t)(w.first + t) * w.out->stride[0] + (int64_t)w.head * w.out->stride[1];
        vector32_write(w.out, w.wide, row, w.dim, w.team.b, x);
    }
}

static __global__ void __launch_bounds__(THREADS) gather_kernel(const __grid_constant__ gather_params p)
{
    extern __shared__ uint4 dynamic[];
    __shared__ gather_shared s;
    gather_work w = work_of(p);
    uint8_t *stage = (uint8_t *)dynamic;
    if (w.out->data == NULL) {
        return;
    }
    if (p.seq_indptr != NULL && blockIdx.x == 0) {
        check_indptr(p.seq_indptr, p.batch, p.tokens, 1, p.status);
    }
    find_places(p, w, &s);
    __syncthreads();
    if (w.kind == NBL_KIND_V) {
        read_v_codes(&s.lists, s.places, stage, w.dim);
        __syncthreads();
    }
    for (uint32_t v = threadIdx.x / WARP_LANES * w.team.per_warp; v < GROUP_TOKENS; v += WARPS * w.team.per_warp) {
        bool active = w.team.vector < w.team.per_warp;
        gather_vector(p, w, &s, stage, v + (active ? w.team.vector : 0u), active);
    }
}

extern "C" cudaError_t nbl_cuda_gather(const gather_params *p, cudaStream_t stream)
{
    dim3 grid((p->tokens + GROUP_TOKENS - 1u) / GROUP_TOKENS * p->kv_heads, 2); /* heads of a token side by side */
    gather_kernel<<<grid, THREADS, GROUP_TOKENS * stage_row_bytes(p->v_dim), stream>>>(*p);
    return cudaGetLastError();
}
