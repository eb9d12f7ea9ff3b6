/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file gather.cu
 * @brief gather: stored vectors back to numbers (NUM 4.4). Blocks and teams as in append.cu, the other way round: rows
 * are put together in shared memory, so that a warp writes them in whole lines.
 */
#include "../ops.h"
#include "../tile/page_tokens.cuh"

#define THREADS 128u
#define WARPS (THREADS / WARP_LANES)

struct gather_shared {
    token_place places[TOKENS_MAX];
    bool bad[TOKENS_MAX]; /* slots in no page, tokens past the last one: nothing is written for them */
    quad_lists lists[GROUPS_MAX];
};

/* What is the same for all threads of a block. */
struct gather_work {
    uint32_t kind;
    uint32_t head;
    uint32_t dim;
    uint32_t hadamard;
    uint32_t first; /* token of the call */
    uint32_t count; /* tokens */
    cuda_tensor out;
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
    w.first = blockIdx.x / p.kv_heads * p.block_tokens;
    w.count = min(p.block_tokens, p.tokens - w.first);
    w.out = is_k ? p.k : p.v;
    w.wide = tensor_is_wide(&w.out);
    w.may_be_mxfp4 = cuda_any_mxfp4(&p.pages, w.kind);
    w.team = team32_of(w.dim);
    return w;
}

/* Places of all tokens of the block, each group's by a warp. */
static __device__ void find_places(const gather_params &p, const gather_work &w, gather_shared *s)
{
    for (uint32_t t = threadIdx.x; t < p.block_tokens; t += THREADS) {
        int64_t slot = t < w.count ? p.slots[w.first + t] : -1;
        token_place at = token_place_of_slot(&p.pages, slot, w.first + t, w.kind, w.head, w.dim, p.status);
        if (w.kind == NBL_KIND_K && p.seq_indptr != NULL && at.codes != NULL) {
            at.sequence = (int32_t)sequence_of(p.seq_indptr, p.batch, w.first + t);
        }
        s->places[t] = at;
        s->bad[t] = t >= w.count || (at.codes == NULL && slot != -1);
        __syncwarp();
        quad_lists_fill(&s->lists[t / GROUP_TOKENS], &s->places[t / GROUP_TOKENS * GROUP_TOKENS]);
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

static __device__ uint8_t *row_of(const gather_work &w, uint32_t t)
{
    return w.out.data + (int64_t)(w.first + t) * w.out.stride[0] + (int64_t)w.head * w.out.stride[1];
}

/* Slots of a warp to the rows of its tokens, from `first` on, 16 bytes a lane and neighbours side by side. */
static __device__ void write_rows(const gather_work &w, const gather_shared *s, const uint8_t *slots, uint32_t first)
{
    uint32_t element_bytes = w.out.dtype == NBL_F32 ? 4u : 2u;
    uint32_t row_chunks = w.dim * element_bytes / 16u;
    uint32_t slot_shift = w.out.dtype == NBL_F32 ? 3u : 2u; /* log2 of the chunks of a slot */
    uint32_t lane = threadIdx.x % WARP_LANES;
    uint32_t rows = max(WARP_LANES / row_chunks, 1u); /* written at a time */
    uint32_t row = lane / row_chunks;
    uint32_t begin = rows > 1u ? lane - row * row_chunks : lane; /* one row at a time may be longer than a warp */
    row = rows > 1u ? row : 0u;
    for (uint32_t vector = row; row < rows && vector < w.team.per_warp; vector += rows) {
        uint8_t *to = row_of(w, first + vector);
        const uint8_t *from = slots + vector * w.team.size * slot_bytes(w.out.dtype);
        for (uint32_t chunk = begin; !s->bad[first + vector] && chunk < row_chunks; chunk += WARP_LANES) {
            uint32_t slot = chunk >> slot_shift;
            uint32_t at = slot * slot_bytes(w.out.dtype) + (chunk - (slot << slot_shift)) * 16u;
            *(uint4 *)(void *)(to + 16u * chunk) = *(const uint4 *)(const void *)(from + at);
        }
    }
}

/* One vector of each team of the warp, tokens from `first` on; zeros for slot -1. */
static __device__ void gather_vectors(const gather_params &p, const gather_work &w, const gather_shared *s,
                                      const uint8_t *stage, uint8_t *slots, uint32_t first)
{
    float unit[2];
    float x[VECTOR32];
    uint32_t words[VECTOR32 / 4u];
    bool active = w.team.vector < w.team.per_warp;
    uint32_t t = first + (active ? w.team.vector : 0u);
    const token_place &at = s->places[t];
    bool has_place = active && at.codes != NULL;
#pragma unroll
    for (uint32_t i = 0; i < VECTOR32 / 4u; ++i) {
        words[i] = at.format == NBL_INT8 ? 0u : nbl_block_zero_code(at.format) * 0x11111111u;
    }
    read_units(at, w.team, w.may_be_mxfp4, has_place, unit);
    if (has_place && w.kind == NBL_KIND_K) {
        read_k_codes(at, w.team.b, words);
    } else if (has_place) {
        unstage_v_codes(stage + t * stage_row_bytes(w.dim), w.team.b, at.format, words);
    }
    dequantize32(words, at.format, unit, x);
    transform_back(p, w, at, x);
    if (w.wide) {
        vector32_put(slots + threadIdx.x % WARP_LANES * slot_bytes(w.out.dtype), w.out.dtype, x);
        __syncwarp();
        write_rows(w, s, slots, first);
        __syncwarp();
    } else if (active && !s->bad[t]) {
        vector32_write(&w.out, row_of(w, t), w.dim, w.team.b, x);
    }
}

static __global__ void __launch_bounds__(THREADS, BLOCKS_FEWER ? 2u : 5u)
    gather_kernel(const __grid_constant__ gather_params p)
{
    extern __shared__ uint4 dynamic[];
    __shared__ gather_shared s;
    gather_work w = work_of(p);
    uint32_t warp = threadIdx.x / WARP_LANES;
    uint8_t *slots = (uint8_t *)dynamic + warp * WARP_LANES * slot_bytes(w.out.dtype);
    uint8_t *stage = (uint8_t *)dynamic + THREADS * slot_bytes(w.out.dtype);
    if (w.out.data == NULL) {
        return;
    }
    if (p.seq_indptr != NULL && blockIdx.x == 0) {
        check_indptr(p.seq_indptr, p.batch, p.tokens, 1, p.status);
    }
    find_places(p, w, &s);
    __syncthreads();
    for (uint32_t t = 0; w.kind == NBL_KIND_V && t < w.count; t += GROUP_TOKENS) {
        read_v_codes(&s.lists[t / GROUP_TOKENS], &s.places[t], stage + t * stage_row_bytes(w.dim), w.dim);
    }
    __syncthreads();
    for (uint32_t v = warp * w.team.per_warp; v < w.count; v += WARPS * w.team.per_warp) {
        gather_vectors(p, w, &s, stage, slots, v);
    }
}

extern "C" cudaError_t nbl_cuda_gather(const gather_params *params, cudaStream_t stream)
{
    gather_params p = *params;
    uint32_t dtype = p.k.data != NULL ? p.k.dtype : p.v.dtype; /* k and v have one type */
    p.block_tokens = block_tokens_for(p.tokens, p.kv_heads, p.processors, GROUPS_MAX);
    uint32_t shared = THREADS * slot_bytes(dtype) + p.block_tokens * stage_row_bytes(p.v_dim);
    cudaError_t error = shared_memory_for((const void *)gather_kernel, shared, sizeof(gather_shared));
    if (error != cudaSuccess) {
        return error;
    }
    dim3 grid((p.tokens + p.block_tokens - 1u) / p.block_tokens * p.kv_heads, 2); /* heads of a token side by side */
    gather_kernel<<<grid, THREADS, shared, stream>>>(p);
    return cudaGetLastError();
}
