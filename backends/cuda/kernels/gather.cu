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
    bool one_sequence; /* all tokens of the block that are there; its tables are filled */
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
    bool is_centered; /* K with a centre or shifts to take back */
    team32 team;
    halves32 halves;
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
    w.may_be_mxfp4 = any_mxfp4(p.pages, w.kind);
    w.is_centered = is_k && p.seq_indptr != NULL;
    w.team = team32_of(w.dim);
    w.halves = halves32_of(w.team.b, w.hadamard);
    return w;
}

/* Dynamic shared memory: slots of the rows to write; staged codes of V, or the tables of K. */
static __device__ uint8_t *dynamic_memory(void)
{
    extern __shared__ uint4 dynamic[];
    return (uint8_t *)dynamic;
}

static __device__ uint8_t *stage_of(const gather_work &w)
{
    return dynamic_memory() + THREADS * slot_bytes(w.out.dtype);
}

static __device__ channel_tables *tables_of(const gather_work &w)
{
    return (channel_tables *)(void *)stage_of(w);
}

/* Places of all tokens of the block, each group's by a warp. */
static __device__ void find_places(const gather_params &p, const gather_work &w, gather_shared *s)
{
    for (uint32_t t = threadIdx.x; t < p.block_tokens; t += THREADS) {
        int64_t slot = t < w.count ? p.slots[w.first + t] : -1;
        token_place at = token_place_of_slot(&p.pages, slot, w.first + t, w.kind, w.head, w.dim, p.status);
        if (w.is_centered && t < w.count) {
            at.sequence = (int32_t)sequence_of(p.seq_indptr, p.batch, w.first + t);
        }
        s->places[t] = at;
        s->bad[t] = t >= w.count || (at.codes == NULL && slot != -1);
        __syncwarp();
        quad_lists_fill(&s->lists[t / GROUP_TOKENS], &s->places[t / GROUP_TOKENS * GROUP_TOKENS]);
    }
}

/* After find_places and a barrier: codes of V, tables of K. */
static __device__ void prepare(const gather_params &p, const gather_work &w, gather_shared *s)
{
    for (uint32_t t = 0; w.kind == NBL_KIND_V && t < w.count; t += GROUP_TOKENS) {
        read_v_codes(&s->lists[t / GROUP_TOKENS], &s->places[t], stage_of(w) + t * stage_row_bytes(w.dim), w.dim);
    }
    if (w.is_centered) {
        int32_t sequence = s->places[0].sequence;
        bool one = sequence == s->places[w.count - 1u].sequence;
        if (one) {
            channel_tables_fill(
                tables_of(w),
                block16_centering_of(&p.centers, (uint32_t)sequence, p.kv_heads, w.head, p.k_dim, p.status), w.dim, -1);
        }
        s->one_sequence = one;
    }
}

/* Centre and shifts of a token in a block of several sequences; else none. */
static __device__ block16_centering own_centering(const gather_params &p, const gather_work &w, const gather_shared *s,
                                                  const token_place &at)
{
    block16_centering none = {NULL, NULL, NULL};
    if (!w.is_centered || s->one_sequence || at.codes == NULL) {
        return none;
    }
    return block16_centering_of(&p.centers, (uint32_t)at.sequence, p.kv_heads, w.head, p.k_dim, p.status);
}

/* The centre back onto a half of the lane's elements, block `block` of 16 of the vector. */
static __device__ void add_center(const gather_work &w, const channel_tables *tables, const block16_centering &own,
                                  uint32_t block, float *x)
{
    if (tables != NULL) {
        const float4 *center = channels16(tables->center, block);
#pragma unroll
        for (uint32_t i = 0; i < BLOCK16 / 4u; ++i) {
            float4 c = center[i];
            x[4u * i] += c.x;
            x[4u * i + 1u] += c.y;
            x[4u * i + 2u] += c.z;
            x[4u * i + 3u] += c.w;
        }
    } else if (own.codes != NULL) {
        float unit = nbl_pow2(nbl_e8m0_decode_slot(*own.exponent));
#pragma unroll
        for (uint32_t i = 0; i < BLOCK16; ++i) {
            uint32_t d = block * BLOCK16 + i;
            x[i] = nbl_fma(d < w.dim ? (float)own.codes[d] : 0.0f, unit, x[i]); /* the product is exact */
        }
    }
}

/* Scale and shifts, taken back from a half after the butterflies. Everything is a power of two, far from the ends of
 * the exponents, and so one step. Adding 0 makes a zero +0, which it is in the right order of the signs (halves32). */
static __device__ void rescale(const gather_work &w, const channel_tables *tables, const block16_centering &own,
                               uint32_t block, float scale, float *x)
{
    if (tables != NULL) {
        const float4 *factor = channels16(tables->factor, block);
#pragma unroll
        for (uint32_t i = 0; i < BLOCK16 / 4u; ++i) {
            float4 f = factor[i];
            x[4u * i] = nbl_fma(x[4u * i], f.x * scale, 0.0f);
            x[4u * i + 1u] = nbl_fma(x[4u * i + 1u], f.y * scale, 0.0f);
            x[4u * i + 2u] = nbl_fma(x[4u * i + 2u], f.z * scale, 0.0f);
            x[4u * i + 3u] = nbl_fma(x[4u * i + 3u], f.w * scale, 0.0f);
        }
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        x[i] = nbl_fma(x[i], scale, 0.0f);
    }
    if (own.shifts != NULL) {
#pragma unroll
        for (uint32_t i = 0; i < BLOCK16; ++i) {
            uint32_t d = block * BLOCK16 + i;
            x[i] *= d < w.dim ? nbl_pow2(-(int32_t)(own.shifts[d] & NBL_SHIFT_MAX)) : 1.0f;
        }
    }
}

/* Takes centre, rotation and shifts back from elements in the lane's order of halves; all lanes of the warp call it. */
template <uint32_t STEPS>
static __device__ void transform_back(const gather_params &p, const gather_work &w, const gather_shared *s,
                                      const token_place &at, float (&x)[VECTOR32])
{
    const channel_tables *tables = w.is_centered && s->one_sequence ? tables_of(w) : NULL;
    block16_centering own = own_centering(p, w, s, at);
    add_center(w, tables, own, 2u * w.team.b + w.halves.swaps, &x[0]);
    add_center(w, tables, own, 2u * w.team.b + (w.halves.swaps ^ 1u), &x[BLOCK16]);
    halves32_hadamard<STEPS>(x, w.halves, w.hadamard);
    float inverse = w.hadamard == 0 ? 1.0f : nbl_pow2(-nbl_log2_of(w.hadamard));
    uint32_t first = halves32_first(w.halves, w.team.b);
    rescale(w, tables, own, first, w.halves.sign[0] * inverse, &x[0]);
    rescale(w, tables, own, first + (1u << w.halves.steps), w.halves.sign[1] * inverse, &x[BLOCK16]);
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

/* The lane's codes and their units, halves in the lane's order; zeros for slot -1. */
static __device__ void read_codes(const gather_work &w, const token_place &at, const uint8_t *stage_row, bool has_place,
                                  float (&x)[VECTOR32])
{
    float unit[2];
    uint32_t words[VECTOR32 / 4u];
#pragma unroll
    for (uint32_t i = 0; i < VECTOR32 / 4u; ++i) {
        words[i] = at.format == NBL_INT8 ? 0u : nbl_block_zero_code(at.format) * 0x11111111u;
    }
    if (has_place && w.kind == NBL_KIND_K) {
        read_k_codes(at, w.team.b, words);
    } else if (has_place) {
        unstage_v_codes(stage_row, w.team.b, at.format, words);
    }
    read_units(at, w.team, w.may_be_mxfp4, has_place, unit);
    halves32_swap(w.halves, at.format, words, unit);
    dequantize32(words, at.format, unit, x);
}

/* One vector of each team of the warp, tokens from `first` on. */
template <uint32_t STEPS>
static __device__ void gather_vectors(const gather_params &p, const gather_work &w, const gather_shared *s,
                                      uint8_t *slots, uint32_t first)
{
    float x[VECTOR32];
    bool active = w.team.vector < w.team.per_warp;
    uint32_t t = first + (active ? w.team.vector : 0u);
    const token_place at = s->places[t];
    bool has_place = active && at.codes != NULL;
    read_codes(w, at, stage_of(w) + t * stage_row_bytes(w.dim), has_place, x);
    transform_back<STEPS>(p, w, s, at, x);
    uint32_t block = halves32_first(w.halves, w.team.b);
    uint32_t second = block + (1u << w.halves.steps);
    if (w.wide) {
        uint8_t *team = slots + w.team.vector * w.team.size * slot_bytes(w.out.dtype);
        if (active) {
            vector16_put(team, block, w.out.dtype, &x[0]);
            vector16_put(team, second, w.out.dtype, &x[BLOCK16]);
        }
        __syncwarp();
        write_rows(w, s, slots, first);
        __syncwarp();
    } else if (active && !s->bad[t]) {
        vector16_write(&w.out, row_of(w, t), w.dim, block, &x[0]);
        vector16_write(&w.out, row_of(w, t), w.dim, second, &x[BLOCK16]);
    }
}

/* All vectors of the block. */
template <uint32_t STEPS>
static __device__ void gather_all(const gather_params &p, const gather_work &w, const gather_shared *s)
{
    uint32_t warp = threadIdx.x / WARP_LANES;
    uint8_t *slots = dynamic_memory() + warp * WARP_LANES * slot_bytes(w.out.dtype);
#pragma unroll 1
    for (uint32_t v = warp * w.team.per_warp; v < w.count; v += WARPS * w.team.per_warp) {
        gather_vectors<STEPS>(p, w, s, slots, v);
    }
}

/* RECIPES: rotations of blocks of 32 or 128. */
template <bool RECIPES>
static __global__ void __launch_bounds__(THREADS, BLOCKS_FEWER ? 2u : 5u)
    gather_kernel(const __grid_constant__ gather_params p)
{
    __shared__ gather_shared s;
    gather_work w = work_of(p);
    if (w.out.data == NULL) {
        return;
    }
    if (p.seq_indptr != NULL && blockIdx.x == 0) {
        check_indptr(p.seq_indptr, p.batch, p.tokens, 1, p.status);
    }
    find_places(p, w, &s);
    __syncthreads();
    prepare(p, w, &s);
    __syncthreads();
    if (!RECIPES) {
        gather_all<STEPS_ANY>(p, w, &s);
    } else if (w.hadamard == 32u) {
        gather_all<0>(p, w, &s);
    } else {
        gather_all<2>(p, w, &s);
    }
}

static bool is_recipe_block(uint32_t n)
{
    return n == 32u || n == 128u;
}

extern "C" cudaError_t nbl_cuda_gather(const gather_params *params, cudaStream_t stream)
{
    gather_params p = *params;
    uint32_t dtype = p.k.data != NULL ? p.k.dtype : p.v.dtype; /* k and v have one type */
    p.block_tokens = block_tokens_for(p.tokens, p.kv_heads, p.processors);
    bool recipes = is_recipe_block(p.k_hadamard) && is_recipe_block(p.v_hadamard);
    void (*kernel)(const gather_params) = recipes ? gather_kernel<true> : gather_kernel<false>;
    uint32_t tables = p.seq_indptr != NULL ? (uint32_t)sizeof(channel_tables) : 0u;
    uint32_t shared = THREADS * slot_bytes(dtype) + max(p.block_tokens * stage_row_bytes(p.v_dim), tables);
    cudaError_t error = shared_memory_for((const void *)kernel, shared);
    if (error != cudaSuccess) {
        return error;
    }
    dim3 grid((p.tokens + p.block_tokens - 1u) / p.block_tokens * p.kv_heads, 2); /* heads of a token side by side */
    kernel<<<grid, THREADS, shared, stream>>>(p);
    return cudaGetLastError();
}
