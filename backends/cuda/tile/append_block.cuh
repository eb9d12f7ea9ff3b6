/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file append_block.cuh
 * @brief What the kernels of append (append.cu, append_recipe.cu) have in common: a block and its tokens.
 *
 * A block takes up to eight groups of 32 tokens of one head, K or V. First every thread finds the page and the sequence
 * of a token; then a team of Dp/32 lanes holds a vector in registers from the load to the store, so that an input
 * byte is read once and a code byte written once, and the next vectors are on their way into shared memory meanwhile.
 */
#ifndef CUDA_APPEND_BLOCK_H
#define CUDA_APPEND_BLOCK_H

#include "../ops.h"
#include "page_tokens.cuh"

#define THREADS 128u
#define WARPS (THREADS / WARP_LANES)
#define APPEND_GROUPS_MAX 8u
#define APPEND_TOKENS_MAX (APPEND_GROUPS_MAX * GROUP_TOKENS) /* of a block */
#define SLOTS 3u /* of a lane: two passes are on their way while one is quantized */
/* Inputs beyond X (NUM 3.1) show after the transforms: the largest of a run of n numbers does not get smaller by the
 * butterflies, but for rounding, nor by shifts; a centre up to X/4 takes at most that away. */
#define CAREFUL_FROM (0.5f * NBL_INPUT_MAX)
#define CENTER_SMALL_EXPONENT (NBL_E_MAX - 2)

struct append_shared {
    token_place places[APPEND_TOKENS_MAX];
    bool quad_is_whole[APPEND_TOKENS_MAX / QUAD]; /* of V */
    quad_lists lists[APPEND_GROUPS_MAX];
    float reciprocals[RECIPROCALS];
    block_stats total;
    bool one_sequence;    /* of all tokens of the block: there are tables of it */
    bool is_center_large; /* and its centre is */
    bool has_int8;        /* of a recipe: some token is int8 */
    bool has_others;      /* and some is not */
    uint32_t count;       /* of a recipe: tokens */
};

/* Dynamic shared memory: the tables of K, or the staged rows of V; then the input slots. */
CUDA_DEVICE uint4 *dynamic_memory(void)
{
    extern __shared__ __align__(128) uint4 dynamic[];
    return dynamic;
}

/* What a thread works on. */
struct append_work {
    uint32_t kind;
    uint32_t head;
    uint32_t dim;
    uint32_t hadamard;
    uint32_t rule;
    uint32_t first; /* token of the call */
    uint32_t count; /* tokens */
    team32 team;
    bool has_tables;
    cuda_tensor in;
};

/* Tokens first .. first + tokens - 1 of a head. kind: blockIdx.y, or what it is known to be when this is compiled. */
CUDA_DEVICE append_work work_of_tokens(const append_params &p, uint32_t kind, uint32_t head, uint32_t first,
                                       uint32_t tokens)
{
    append_work w;
    bool is_k = kind == NBL_KIND_K;
    w.kind = kind;
    w.head = head;
    w.dim = is_k ? p.k_dim : p.v_dim;
    w.hadamard = is_k ? p.k_hadamard : p.v_hadamard;
    w.rule = is_k ? p.k_rule : p.v_rule;
    w.first = first;
    w.count = min(tokens, p.tokens - first);
    w.team = team32_of(w.dim);
    w.has_tables = false;
    w.in = is_k ? p.k : p.v;
    return w;
}

CUDA_DEVICE append_work work_of(const append_params &p, uint32_t kind)
{
    uint32_t head = blockIdx.x % p.kv_heads, block = blockIdx.x / p.kv_heads;
    return work_of_tokens(p, kind, head, block * p.block_tokens, p.block_tokens);
}

/* Places of all tokens of the block; none past the last one. */
CUDA_DEVICE void find_places(const append_params &p, const append_work &w, append_shared *s)
{
    for (uint32_t t = threadIdx.x; t < p.block_tokens; t += THREADS) {
        int64_t slot = t < w.count ? p.slots[w.first + t] : -1;
        token_place at = token_place_of_slot(&p.pages, slot, w.first + t, w.kind, w.head, w.dim, p.status);
        if (w.kind == NBL_KIND_K && p.centering && t < w.count) {
            at.sequence = (int32_t)sequence_of(p.seq_indptr, p.batch, w.first + t);
        }
        s->places[t] = at;
    }
}

/* V: which quads are whole; after find_places and a barrier. */
CUDA_DEVICE void find_quads(const append_params &p, append_shared *s)
{
    if (threadIdx.x < p.block_tokens / QUAD) {
        s->quad_is_whole[threadIdx.x] = quad_is_whole(&s->places[threadIdx.x * QUAD]);
    }
}

/* Row of token t of the block in the input. */
CUDA_DEVICE const uint8_t *row_of(const append_work &w, uint32_t t)
{
    return w.in.data + (int64_t)(w.first + t) * w.in.stride[0] + (int64_t)w.head * w.in.stride[1];
}

/* Brings elements of mxfp4 that are far beyond the largest exponent to where quantize32 takes them; no code changes by
 * that. Only inputs beyond X/2 get there. */
template <uint32_t FAMILY> CUDA_DEVICE void limit_mxfp4(uint32_t format, float (&x)[VECTOR32])
{
    if (FAMILY == FAMILY_MXFP4 || FAMILY == FAMILY_ANY) {
        float most = nbl_layout_is_mxfp4(format) ? MXFP4_MAX : INFINITY;
#pragma unroll
        for (uint32_t i = 0; i < VECTOR32; ++i) {
            x[i] = clamp_finite(x[i], most);
        }
    }
}

/* Stores the lane's block of 32, number `place`, of a vector; all lanes of the warp call it. Codes of V go through
 * `rows` of the warp, which nobody reads any more but for lanes on their way here. */
template <uint32_t FAMILY>
CUDA_DEVICE void store_block(const append_work &w, const append_shared *s, uint32_t place, const token_place &at,
                             uint8_t *rows, uint32_t token, bool active, const codes32 &q)
{
    if (active) {
        write_scales<FAMILY>(at, w.team, place, q);
    }
    if (w.kind == NBL_KIND_K) {
        if (active) {
            write_k_codes(at, place, q.words);
        }
        return;
    }
    uint32_t row_bytes = stage_row_bytes(w.dim);
    uint8_t *row = rows + w.team.vector * row_bytes;
    __syncwarp();
    if (active) {
        stage_v_codes(row, place, at.format, q.words);
    }
    __syncwarp();
    uint32_t r = w.team.vector % QUAD;
    if (active && s->quad_is_whole[token / QUAD]) {
        write_v_quad(at, row - r * row_bytes, row_bytes, place, r);
    } else if (active) {
        write_v_single(at, row, place);
    }
}

/** What a kernel begins with; a barrier follows. */
CUDA_DEVICE void append_block_begin(const append_params &p, append_shared *s)
{
    if (threadIdx.x == 0) {
        s->total = block_stats{0, 0, 0, 0, 0};
        s->one_sequence = s->is_center_large = false;
    }
    reciprocals_fill(s->reciprocals);
    if (p.centering && blockIdx.x + blockIdx.y == 0) {
        check_indptr(p.seq_indptr, p.batch, p.tokens, 1, p.status);
    }
}

/** What it ends with. */
CUDA_DEVICE void append_block_end(const append_params &p, append_shared *s)
{
    if (p.stats != NULL) {
        __syncthreads();
        if (threadIdx.x == 0) {
            block_stats_flush(s->total, p.stats);
        }
    }
}

/** Launches a kernel whose blocks have `shared` bytes of dynamic shared memory. */
static inline cudaError_t append_launch(void (*kernel)(const append_params), append_params *p, uint32_t shared,
                                        cudaStream_t stream)
{
    p->block_tokens = block_tokens_for(p->tokens, p->kv_heads, p->processors, APPEND_GROUPS_MAX);
    cudaError_t error = shared_memory_for((const void *)kernel, shared, sizeof(append_shared));
    if (error != cudaSuccess) {
        return error;
    }
    /* heads of a token side by side */
    dim3 grid((p->tokens + p->block_tokens - 1u) / p->block_tokens * p->kv_heads, 2);
    kernel<<<grid, THREADS, shared, stream>>>(*p);
    return cudaGetLastError();
}

#endif
