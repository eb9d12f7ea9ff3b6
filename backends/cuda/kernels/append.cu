/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file append.cu
 * @brief append: one pass from the engine's K and V to codes in pages (NUM 3, 4).
 *
 * A block takes up to four groups of 32 tokens of one head, K or V. First every thread finds the page and the sequence
 * of a token; then a team of Dp/32 lanes holds a vector in registers from the load to the store, so that an input
 * byte is read once and a code byte written once, and the next vectors are on their way into shared memory meanwhile.
 * If all tokens are of one sequence, its centre and shifts are turned into binary32 once.
 *
 * The kernel is bound by the instructions it issues and by fetching them, so there is one for each family of formats.
 */
#include "../ops.h"
#include "../tile/page_tokens.cuh"

#define THREADS 128u
#define WARPS (THREADS / WARP_LANES)
#define SLOTS 3u /* of a lane: two passes are on their way while one is quantized */
/* Inputs beyond X (NUM 3.1) show after the transforms: the largest of a run of n numbers does not get smaller by the
 * butterflies, but for rounding, nor by shifts; a centre up to X/4 takes at most that away. */
#define CAREFUL_FROM (0.5f * NBL_INPUT_MAX)
#define CENTER_SMALL_EXPONENT (NBL_E_MAX - 2)

struct append_shared {
    token_place places[TOKENS_MAX];
    quad_lists lists[GROUPS_MAX];
    float reciprocals[RECIPROCALS];
    block_stats total;
    block16_centering centering; /* of the block's sequence */
    bool one_sequence;           /* of all tokens of the block */
};

/* Dynamic shared memory: the tables of K, or the staged rows of V; then the input slots. */
static __device__ uint4 *dynamic_memory(void)
{
    extern __shared__ uint4 dynamic[];
    return dynamic;
}

static __device__ channel_tables *tables_of(void)
{
    return (channel_tables *)(void *)dynamic_memory();
}

static __device__ uint8_t *stage_of(void)
{
    return (uint8_t *)dynamic_memory();
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
    bool is_active; /* the lane has vectors */
    bool has_tables;
    uint32_t step;  /* tokens of a pass: every warp takes team.per_warp */
    uint32_t token; /* of the block: the lane's in the first pass, 0 for idle lanes */
    cuda_tensor in;
};

static __device__ append_work work_of(const append_params &p)
{
    append_work w;
    bool is_k = blockIdx.y == NBL_KIND_K;
    uint32_t warp = threadIdx.x / WARP_LANES;
    w.kind = blockIdx.y;
    w.head = blockIdx.x % p.kv_heads;
    w.dim = is_k ? p.k_dim : p.v_dim;
    w.hadamard = is_k ? p.k_hadamard : p.v_hadamard;
    w.rule = is_k ? p.k_rule : p.v_rule;
    w.first = blockIdx.x / p.kv_heads * p.block_tokens;
    w.count = min(p.block_tokens, p.tokens - w.first);
    w.team = team32_of(w.dim);
    w.step = min(GROUP_TOKENS, WARPS * w.team.per_warp);
    w.is_active = w.team.vector < w.team.per_warp && warp * w.team.per_warp < w.step;
    w.token = w.is_active ? warp * w.team.per_warp + w.team.vector : 0u;
    w.has_tables = false;
    w.in = is_k ? p.k : p.v;
    return w;
}

/* Places of all tokens of the block; none past the last one. */
static __device__ void find_places(const append_params &p, const append_work &w, append_shared *s)
{
    for (uint32_t t = threadIdx.x; t < TOKENS_MAX; t += THREADS) {
        int64_t slot = t < w.count ? p.slots[w.first + t] : -1;
        token_place at = token_place_of_slot(&p.pages, slot, w.first + t, w.kind, w.head, w.dim, p.status);
        if (w.kind == NBL_KIND_K && p.centering && t < w.count) {
            at.sequence = (int32_t)sequence_of(p.seq_indptr, p.batch, w.first + t);
        }
        s->places[t] = at;
    }
}

/* After find_places and a barrier: lists of V, tables of K. */
static __device__ void prepare(const append_params &p, const append_work &w, append_shared *s)
{
    if (w.kind == NBL_KIND_V) {
        for (uint32_t g = threadIdx.x / WARP_LANES; g < GROUPS_MAX; g += WARPS) {
            quad_lists_fill(&s->lists[g], &s->places[g * GROUP_TOKENS]);
        }
    } else if (p.centering) {
        int32_t sequence = s->places[0].sequence;
        bool one = sequence == s->places[w.count - 1u].sequence;
        block16_centering c =
            block16_centering_of(&p.centers, (uint32_t)sequence, p.kv_heads, w.head, p.k_dim, p.status);
        if (one) {
            channel_tables_fill(tables_of(), c, w.dim, 1);
        }
        if (threadIdx.x == 0) {
            s->one_sequence = one;
            s->centering = c;
        }
    }
}

/* Row of token t of the block in the input. */
static __device__ const uint8_t *row_of(const append_work &w, uint32_t t)
{
    return w.in.data + (int64_t)(w.first + t) * w.in.stride[0] + (int64_t)w.head * w.in.stride[1];
}

/* Loads of the lane's elements pass by pass, ahead of their use. */
struct append_input {
    const uint8_t *next; /* the lane's elements of the next token to fetch */
    int64_t step_bytes;  /* to the one after it */
    uint32_t token;      /* of the block: the next one */
    uint32_t bytes;      /* of the lane's elements below the dimension */
    uint32_t to;         /* slot of the next one, of the next one to use; counted in slots */
    uint32_t from;
};

static __device__ append_input input_of(const append_work &w)
{
    append_input in;
    uint32_t element_bytes = w.in.dtype == NBL_F32 ? 4u : 2u;
    uint32_t first = w.team.b * VECTOR32;
    in.next = row_of(w, w.token) + first * element_bytes;
    in.step_bytes = (int64_t)w.step * w.in.stride[0];
    in.token = w.token;
    in.bytes = first < w.dim ? min(w.dim - first, VECTOR32) * element_bytes : 0u;
    in.to = in.from = 0;
    return in;
}

/* A slot of the lane. */
static __device__ uint8_t *slot_of(const append_params &p, const append_work &w, uint32_t slot)
{
    return (uint8_t *)dynamic_memory() + p.slots_at + (slot * THREADS + threadIdx.x) * slot_bytes(w.in.dtype);
}

/* Begins to load the next vectors, zeros where there is none. */
static __device__ void fetch(const append_params &p, const append_work &w, const append_shared *s, append_input *in)
{
    bool active = w.is_active && in->token < w.count && s->places[in->token].codes != NULL;
    vector32_fetch(active ? in->next : w.in.data, active ? in->bytes : 0u, w.in.dtype,
                   ptx_shared_address(slot_of(p, w, in->to)));
    ptx_cp_async_commit();
    in->next += in->step_bytes;
    in->token += w.step;
    in->to = in->to == SLOTS - 1u ? 0u : in->to + 1u;
}

/* Centre and shifts of the lane's token where the block has several sequences; else none. */
static __device__ block16_centering own_centering(const append_params &p, const append_work &w, const append_shared *s,
                                                  uint32_t t, bool active)
{
    block16_centering none = {NULL, NULL, NULL};
    if (w.kind != NBL_KIND_K || !p.centering || w.has_tables || !active) {
        return none;
    }
    return block16_centering_of(&p.centers, (uint32_t)s->places[t].sequence, p.kv_heads, w.head, p.k_dim, p.status);
}

static __device__ bool center_is_large(const block16_centering &c)
{
    return c.codes != NULL && nbl_e8m0_decode_slot(*c.exponent) > CENTER_SMALL_EXPONENT;
}

/* Loads and transforms the lane's elements of token t; zeros where there is no vector. */
template <bool WIDE>
static __device__ void load(const append_params &p, const append_work &w, uint32_t t, uint32_t slot, bool active,
                            bool careful, const block16_centering &own, float (&x)[VECTOR32], block16_counts *counts)
{
    uint32_t b = w.team.b;
    if (WIDE) {
        vector32_take(slot_of(p, w, slot), w.in.dtype, x);
    } else {
        vector32_read(&w.in, row_of(w, t), active ? w.dim : 0u, b, x);
    }
    if (careful) {
        vector32_sanitize(x, counts);
    }
    if (w.has_tables) {
        vector32_scale(x, tables_of(), b);
    } else if (own.shifts != NULL) {
        vector32_scale_from(x, own.shifts, w.dim, b, 1);
    }
    vector32_hadamard(x, b, w.hadamard);
    if (w.has_tables) {
        vector32_center(x, tables_of(), b, -1.0f);
    } else if (own.codes != NULL) {
        vector32_center_from(x, own.codes, *own.exponent, w.dim, b, -1.0f);
    }
}

/* One vector of each team of the warp: token t of the block. */
template <uint32_t FAMILY, bool WIDE>
static __device__ void append_vectors(const append_params &p, const append_work &w, append_shared *s, uint32_t t,
                                      uint32_t slot, bool careful)
{
    float x[VECTOR32];
    codes32 q;
    block16_counts counts = {0, 0, 0};
    range32 range;
    const token_place at = s->places[t];
    bool active = w.is_active && at.codes != NULL;
    block16_centering own = own_centering(p, w, s, t, active);
    careful = __any_sync(FULL_WARP, careful || center_is_large(own));
#pragma unroll 1
    for (;;) {
        load<WIDE>(p, w, t, slot, active, careful, own, x, &counts);
        range = range32_of(x, w.team);
        if (careful || !__any_sync(FULL_WARP, range.vector >= nbl_bits_of(CAREFUL_FROM))) {
            break;
        }
        careful = true;
    }
    quantize32<FAMILY>(x, range, w.team, at.format, w.rule, s->reciprocals, p.stats != NULL, &q);
    if (active) {
        write_scales<FAMILY>(at, w.team, q);
        if (w.kind == NBL_KIND_K) {
            write_k_codes(at, w.team.b, q.words);
        } else {
            stage_v_codes(stage_of() + t % GROUP_TOKENS * stage_row_bytes(w.dim), w.team.b, at.format, q.words);
        }
    }
    if (p.stats != NULL) {
        block_stats_add(&s->total, q, counts, range, w.team, at.format, active);
    }
}

/* All tokens of the block, pass by pass. */
template <uint32_t FAMILY, bool WIDE>
static __device__ void append_all(const append_params &p, const append_work &w, append_shared *s)
{
    bool careful = w.has_tables && center_is_large(s->centering);
    uint32_t all = (w.count + GROUP_TOKENS - 1u) / GROUP_TOKENS * GROUP_TOKENS;
    append_input in = input_of(w);
    for (uint32_t i = 0; WIDE && i < SLOTS - 1u; ++i) {
        fetch(p, w, s, &in);
    }
    uint32_t t = w.token;
    for (uint32_t end = w.step; end <= all; end += w.step, t += w.step) {
        if (WIDE) {
            fetch(p, w, s, &in);
            ptx_cp_async_wait<SLOTS - 1>();
        }
        append_vectors<FAMILY, WIDE>(p, w, s, t, in.from, careful);
        in.from = in.from == SLOTS - 1u ? 0u : in.from + 1u;
        if (w.kind == NBL_KIND_V && end % GROUP_TOKENS == 0) {
            uint32_t g = end / GROUP_TOKENS - 1u;
            __syncthreads();
            write_v_codes(&s->lists[g], &s->places[g * GROUP_TOKENS], stage_of(), w.dim);
            __syncthreads();
        }
    }
}

/* Blocks of a multiprocessor: as many as leave the registers that the kernel needs. */
static constexpr uint32_t blocks_of(uint32_t family, bool wide)
{
    return !wide ? 2u : family == FAMILY_ANY ? 3u : 4u - BLOCKS_FEWER;
}

template <uint32_t FAMILY, bool WIDE>
static __global__ void __launch_bounds__(THREADS, blocks_of(FAMILY, WIDE))
    append_kernel(const __grid_constant__ append_params p)
{
    __shared__ append_shared s;
    append_work w = work_of(p);
    if (threadIdx.x == 0) {
        s.total = block_stats{0, 0, 0, 0, 0};
        s.one_sequence = false;
    }
    reciprocals_fill(s.reciprocals);
    find_places(p, w, &s);
    if (p.centering && blockIdx.x + blockIdx.y == 0) {
        check_indptr(p.seq_indptr, p.batch, p.tokens, 1, p.status);
    }
    __syncthreads();
    prepare(p, w, &s);
    __syncthreads();
    w.has_tables = s.one_sequence;
    append_all<FAMILY, WIDE>(p, w, &s);
    if (p.stats != NULL) {
        __syncthreads();
        if (threadIdx.x == 0) {
            block_stats_flush(s.total, p.stats);
        }
    }
}

/* Kernel for the formats and inputs of a call. */
static void (*kernel_of(const append_params *p))(const append_params)
{
    if (!tensor_is_wide(&p->k) || !tensor_is_wide(&p->v)) {
        return append_kernel<FAMILY_ANY, false>;
    }
    switch (family_of(&p->pages)) {
    case FAMILY_INT8: return append_kernel<FAMILY_INT8, true>;
    case FAMILY_INT4P: return append_kernel<FAMILY_INT4P, true>;
    case FAMILY_MXFP4: return append_kernel<FAMILY_MXFP4, true>;
    default: return append_kernel<FAMILY_ANY, true>;
    }
}

extern "C" cudaError_t nbl_cuda_append(const append_params *params, cudaStream_t stream)
{
    append_params p = *params;
    void (*kernel)(const append_params) = kernel_of(params);
    p.block_tokens = block_tokens_for(p.tokens, p.kv_heads, p.processors);
    p.slots_at = max(GROUP_TOKENS * stage_row_bytes(p.v_dim), p.centering ? (uint32_t)sizeof(channel_tables) : 0u);
    uint32_t shared = p.slots_at + SLOTS * THREADS * slot_bytes(p.k.dtype); /* k and v have one type */
    cudaError_t error = shared_memory_for((const void *)kernel, shared);
    if (error != cudaSuccess) {
        return error;
    }
    dim3 grid((p.tokens + p.block_tokens - 1u) / p.block_tokens * p.kv_heads, 2); /* heads of a token side by side */
    kernel<<<grid, THREADS, shared, stream>>>(p);
    return cudaGetLastError();
}
