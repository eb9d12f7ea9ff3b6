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
 * The kernel is bound by the instructions it issues and by fetching them, so there are instances for the recipes at
 * head dimension 128, in which all that can be known is. What is rare is a short loop elsewhere.
 */
#include "../ops.h"
#include "../tile/page_tokens.cuh"

#define THREADS 128u
#define WARPS (THREADS / WARP_LANES)
#define RECIPE_DIM 128u /* head dimension that has kernels of its own */
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
    bool has_tables;
    cuda_tensor in;
};

/* kind: blockIdx.y, or what it is known to be when this is compiled. */
static __device__ __forceinline__ append_work work_of(const append_params &p, uint32_t kind)
{
    append_work w;
    bool is_k = kind == NBL_KIND_K;
    w.kind = kind;
    w.head = blockIdx.x % p.kv_heads;
    w.dim = is_k ? p.k_dim : p.v_dim;
    w.hadamard = is_k ? p.k_hadamard : p.v_hadamard;
    w.rule = is_k ? p.k_rule : p.v_rule;
    w.first = blockIdx.x / p.kv_heads * p.block_tokens;
    w.count = min(p.block_tokens, p.tokens - w.first);
    w.team = team32_of(w.dim);
    w.has_tables = false;
    w.in = is_k ? p.k : p.v;
    return w;
}

/* Places of all tokens of the block; none past the last one. */
static __device__ void find_places(const append_params &p, const append_work &w, append_shared *s)
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

static __device__ bool center_is_large(const block16_centering &c)
{
    return c.codes != NULL && nbl_e8m0_decode_slot(*c.exponent) > CENTER_SMALL_EXPONENT;
}

/* After find_places and a barrier: tables of K. */
static __device__ void fill_tables(const append_params &p, const append_work &w, append_shared *s)
{
    if (p.centering) {
        int32_t sequence = s->places[0].sequence;
        bool one = sequence == s->places[w.count - 1u].sequence;
        block16_centering c =
            block16_centering_of(&p.centers, (uint32_t)sequence, p.kv_heads, w.head, p.k_dim, p.status);
        if (one) {
            channel_tables_fill(tables_of(), c, w.dim, 1);
        }
        if (threadIdx.x == 0) {
            s->one_sequence = one;
            s->is_center_large = one && center_is_large(c);
        }
    }
}

/* What all threads find out together before the first vector; ends with a barrier. The usual way asks for its first
 * vectors before that. */
static __device__ __forceinline__ void prepare(const append_params &p, const append_work &w, bool lists,
                                               append_shared *s)
{
    find_places(p, w, s);
    __syncthreads();
    if (w.kind == NBL_KIND_K) {
        fill_tables(p, w, s);
    } else if (lists) {
        for (uint32_t g = threadIdx.x / WARP_LANES; g < p.block_tokens / GROUP_TOKENS; g += WARPS) {
            quad_lists_fill(&s->lists[g], &s->places[g * GROUP_TOKENS]);
        }
    } else if (threadIdx.x < p.block_tokens / QUAD) {
        s->quad_is_whole[threadIdx.x] = quad_is_whole(&s->places[threadIdx.x * QUAD]);
    }
    __syncthreads();
}

/* Row of token t of the block in the input. */
static __device__ const uint8_t *row_of(const append_work &w, uint32_t t)
{
    return w.in.data + (int64_t)(w.first + t) * w.in.stride[0] + (int64_t)w.head * w.in.stride[1];
}

/* Brings elements of mxfp4 that are far beyond the largest exponent to where quantize32 takes them; no code changes by
 * that. Only inputs beyond X/2 get there. */
template <uint32_t FAMILY> static __device__ void limit(uint32_t format, float (&x)[VECTOR32])
{
    if (FAMILY == FAMILY_MXFP4 || FAMILY == FAMILY_ANY) {
        float most = nbl_layout_is_mxfp4(format) ? MXFP4_MAX : INFINITY;
#pragma unroll
        for (uint32_t i = 0; i < VECTOR32; ++i) {
            x[i] = clamp_finite(x[i], most);
        }
    }
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

/* ------------------------------------------------------------------------------------------------ the usual way
 *
 * Each warp on its own, without a barrier: input through slots in shared memory, two passes ahead; halves32. For wide
 * tensors, vectors of up to eight lanes, tokens of one sequence where they are centred, and no input beyond X. */

#define NO_ROWS 31u

/* What a thread fetches in a pass: chunks of 16 bytes. Rows of a power of two of them, up to 32, are fetched in the
 * order of their bytes: the lanes of a warp take neighbouring chunks, each of which belongs into the slot of the lane
 * that works on it. Of other rows a lane fetches what it works on. */
struct append_fetch {
    const uint8_t *next; /* first chunk of the next pass */
    int64_t from_step;   /* bytes to the next chunk */
    int64_t pass_bytes;  /* to the next pass */
    uint32_t to;         /* place in the warp's slots */
    uint32_t to_step;
    uint32_t chunks;    /* at most; what is left of a slot is zeros */
    uint32_t token;     /* of the block, of the first chunk */
    uint32_t row_shift; /* log2 of the rows fetched side by side; NO_ROWS: all chunks are of one token */
    uint32_t slot;      /* the next one */
};

/* What a thread needs for the usual way. */
struct append_usual {
    uint32_t token; /* of the block: the warp's first one of the pass */
    uint32_t step;  /* tokens of a pass of all warps */
    uint32_t place; /* block of 32 that the lane stores */
    halves32 halves;
    uint8_t *slots; /* of the warp */
    append_fetch fetch;
};

static __device__ uint32_t element_bytes(const append_work &w)
{
    return w.in.dtype == NBL_F32 ? 4u : 2u;
}

/* token: the warp's first one. */
static __device__ append_fetch fetch_of(const append_work &w, uint32_t token)
{
    append_fetch f;
    uint32_t lane = threadIdx.x % WARP_LANES;
    uint32_t row_chunks = w.dim * element_bytes(w) / 16u;
    uint32_t slot_chunks = VECTOR32 * element_bytes(w) / 16u;
    uint32_t first; /* chunk in the row */
    if (row_chunks >= slot_chunks && row_chunks <= WARP_LANES && (row_chunks & (row_chunks - 1u)) == 0) {
        f.row_shift = (uint32_t)nbl_log2_of(WARP_LANES / row_chunks);
        uint32_t row = lane >> (5u - f.row_shift);
        first = lane & (row_chunks - 1u);
        f.from_step = (int64_t)w.in.stride[0] << f.row_shift;
        f.to = (row * w.team.size + first / slot_chunks) * slot_bytes(w.in.dtype) + first % slot_chunks * 16u;
        f.to_step = (w.team.size << f.row_shift) * slot_bytes(w.in.dtype);
        f.token = token + row;
        f.chunks = slot_chunks;
    } else {
        bool is_idle = w.team.vector >= w.team.per_warp;
        first = w.team.b * slot_chunks;
        f.row_shift = NO_ROWS;
        f.from_step = f.to_step = 16;
        f.to = lane * slot_bytes(w.in.dtype);
        f.token = token + (is_idle ? 0u : w.team.vector);
        f.chunks = is_idle || first >= row_chunks ? 0u : min(row_chunks - first, slot_chunks);
    }
    f.next = row_of(w, f.token) + 16u * first;
    f.slot = 0;
    return f;
}

static __device__ append_usual usual_of(const append_params &p, const append_work &w)
{
    append_usual u;
    uint32_t warp = threadIdx.x / WARP_LANES;
    u.token = warp * w.team.per_warp;
    u.step = WARPS * w.team.per_warp;
    u.halves = halves32_of(w.team.b, w.hadamard);
    u.place = halves32_place(u.halves, w.team.b);
    u.slots = (uint8_t *)dynamic_memory() + p.slots_at + warp * WARP_LANES * slot_bytes(w.in.dtype);
    u.fetch = fetch_of(w, u.token);
    u.fetch.pass_bytes = (int64_t)u.step * w.in.stride[0];
    return u;
}

/* Begins to load the vectors of a pass, zeros past the last token. */
static __device__ void fetch(const append_work &w, append_usual *u)
{
    append_fetch *f = &u->fetch;
    uint32_t dtype = w.in.dtype;
    uint32_t to = ptx_shared_address(u->slots) + f->slot * (THREADS * slot_bytes(dtype)) + f->to;
    const uint8_t *from = f->next;
    uint32_t left = f->chunks;
    if (f->token >= w.count) {
        left = 0;
    } else if (f->row_shift != NO_ROWS) {
        left = ((w.count - 1u - f->token) >> f->row_shift) + 1u;
    }
#pragma unroll 1
    for (uint32_t done = 0; done < (dtype != NBL_F32 ? 4u : 8u); done += 4u) {
#pragma unroll
        for (uint32_t i = 0; i < 4u; ++i) {
            ptx_cp_async_16_zfill(to, from, done + i < left ? 16u : 0u);
            to += f->to_step;
            from += f->from_step;
        }
    }
    ptx_cp_async_commit();
    f->next += f->pass_bytes;
    f->token += u->step;
    f->slot = f->slot == SLOTS - 1u ? 0u : f->slot + 1u;
}

/* Stores the lane's block of 32 of a vector; all lanes of the warp call it. Codes of V go through the slots that they
 * came from. */
template <uint32_t FAMILY>
static __device__ void store_usual(const append_work &w, const append_shared *s, const append_usual &u,
                                   const token_place &at, uint8_t *slots, uint32_t token, bool active, const codes32 &q)
{
    if (active) {
        write_scales<FAMILY>(at, w.team, u.place, q);
    }
    if (w.kind == NBL_KIND_K) {
        if (active) {
            write_k_codes(at, u.place, q.words);
        }
        return;
    }
    uint32_t row_bytes = stage_row_bytes(w.dim);
    uint8_t *row = slots + w.team.vector * row_bytes;
    __syncwarp();
    if (active) {
        stage_v_codes(row, u.place, at.format, q.words);
    }
    __syncwarp();
    uint32_t r = w.team.vector % QUAD;
    if (active && s->quad_is_whole[token / QUAD]) {
        write_v_quad(at, row - r * row_bytes, row_bytes, u.place, r);
    } else if (active) {
        write_v_single(at, row, u.place);
    }
}

/* Takes and transforms the lane's elements. CAREFUL: inputs may be beyond X (NUM 3.1). */
template <uint32_t STEPS, bool CAREFUL>
static __device__ void transform(const append_work &w, const append_usual &u, const uint8_t *slot,
                                 const block16_centering &own, float (&x)[VECTOR32], block16_counts *counts)
{
    const halves32 &h = u.halves;
    halves32_take<STEPS != STEPS_ANY>(slot, w.in.dtype, h, w.has_tables && !CAREFUL, tables_of(), w.team.b, x);
    if (CAREFUL) {
        vector32_sanitize(x, counts);
        halves32_scale(x, h, w.has_tables, tables_of(), w.team.b);
    }
    if (own.shifts != NULL) {
        halves32_scale_from(x, h, own.shifts, w.dim, w.team.b);
    }
    halves32_hadamard<STEPS>(x, h, w.hadamard);
    if (w.has_tables) {
        halves32_center(x, h, tables_of(), w.team.b);
    } else if (own.codes != NULL) {
        halves32_center_from(x, h, own.codes, *own.exponent, w.dim, w.team.b);
    }
}

/* A pass of the warp: one vector of each team. */
template <uint32_t FAMILY, uint32_t STEPS>
static __device__ void append_pass(const append_params &p, const append_work &w, append_shared *s,
                                   const append_usual &u, uint8_t *slots)
{
    float x[VECTOR32];
    codes32 q;
    bool has_vector = w.team.vector < w.team.per_warp;
    uint32_t token = u.token + (has_vector ? w.team.vector : 0u);
    token_place at = s->places[token];
    at.format = FAMILY == FAMILY_INT8 ? (uint32_t)NBL_INT8 : at.format;
    bool active = has_vector && at.codes != NULL;
    block16_centering own = own_centering(p, w, s, token, active);
    const uint8_t *slot = slots + threadIdx.x % WARP_LANES * slot_bytes(w.in.dtype);
    transform<STEPS, false>(w, u, slot, own, x, NULL);
    range32 range = range32_of<FAMILY == FAMILY_INT8>(x, w.team);
    bool careful = range.vector >= nbl_bits_of(CAREFUL_FROM) || s->is_center_large || center_is_large(own);
    if (__any_sync(FULL_WARP, careful)) {
        block16_counts counts = {0, 0, 0};
        transform<STEPS, true>(w, u, slot, own, x, &counts);
        limit<FAMILY>(at.format, x);
        range = range32_of(x, w.team);
        if (p.stats != NULL) {
            block_stats_add_inputs(&s->total, counts, active);
        }
    }
    bool is_settled = w.has_tables || own.codes != NULL;
    range.sign[0] = is_settled ? 1.0f : u.halves.sign[0];
    range.sign[1] = is_settled ? 1.0f : u.halves.sign[1];
    quantize32<FAMILY, QUANTIZE_MANY>(x, range, w.team, at.format, w.rule, s->reciprocals, p.stats != NULL, &q);
    halves32_regroup(u.halves, at.format, &q);
    store_usual<FAMILY>(w, s, u, at, slots, token, active, q);
    if (p.stats != NULL) {
        block_stats_add(&s->total, q, range, w.team, at.format, active);
    }
}

/* All tokens of the block. */
template <uint32_t FAMILY, uint32_t KIND, uint32_t STEPS>
static __device__ void append_usual_all(const append_params &p, append_shared *s)
{
    append_work w = work_of(p, KIND);
    if (STEPS != STEPS_ANY) { /* known, and so are places and steps */
        w.dim = RECIPE_DIM;
        w.hadamard = VECTOR32 << STEPS;
        w.team = team32_of(RECIPE_DIM);
        w.in.dtype = NBL_BF16;
    }
    append_usual u = usual_of(p, w);
    uint32_t pass_slots = THREADS * slot_bytes(w.in.dtype);
    for (uint32_t i = 0; i < SLOTS - 1u; ++i) {
        fetch(w, &u);
    }
    prepare(p, w, false, s);
    w.has_tables = KIND == NBL_KIND_K && s->one_sequence;
#pragma unroll 1
    for (; u.token < w.count; u.token += u.step) {
        __syncwarp(); /* nobody reads the slot that is fetched into any more */
        fetch(w, &u);
        ptx_cp_async_wait<SLOTS - 1>();
        __syncwarp();
        append_pass<FAMILY, STEPS>(p, w, s, u, u.slots + u.fetch.slot * pass_slots); /* the oldest one */
    }
}

/* ------------------------------------------------------------------------------------------------ the general way
 *
 * Groups of 32 tokens in turn, all cases. */

/* Loads and transforms the lane's elements of token t; zeros where there is no vector. */
static __device__ __forceinline__ void load(const append_work &w, uint32_t t, bool active, bool careful,
                                            const block16_centering &own, float (&x)[VECTOR32], block16_counts *counts)
{
    uint32_t b = w.team.b;
    if (active && tensor_is_wide(&w.in) && (b + 1u) * VECTOR32 <= w.dim) {
        vector32_take(row_of(w, t) + b * VECTOR32 * element_bytes(w), w.in.dtype, x);
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

/* One vector of each team of the warp: token t of the block. in_warp: the lane has one at all. */
template <uint32_t FAMILY>
static __device__ void append_vectors(const append_params &p, const append_work &w, append_shared *s, uint32_t t,
                                      bool in_warp, bool careful)
{
    float x[VECTOR32];
    codes32 q;
    block16_counts counts = {0, 0, 0};
    range32 range;
    const token_place at = s->places[t];
    bool active = in_warp && at.codes != NULL;
    block16_centering own = own_centering(p, w, s, t, active);
    careful = __any_sync(FULL_WARP, careful || center_is_large(own));
#pragma unroll 1
    for (;;) {
        load(w, t, active, careful, own, x, &counts);
        if (careful) {
            limit<FAMILY>(at.format, x);
        }
        range = range32_of(x, w.team);
        if (careful || !__any_sync(FULL_WARP, range.vector >= nbl_bits_of(CAREFUL_FROM))) {
            break;
        }
        careful = true;
    }
    quantize32<FAMILY, QUANTIZE_ONCE>(x, range, w.team, at.format, w.rule, s->reciprocals, p.stats != NULL, &q);
    if (active) {
        write_scales<FAMILY>(at, w.team, w.team.b, q);
        if (w.kind == NBL_KIND_K) {
            write_k_codes(at, w.team.b, q.words);
        } else {
            stage_v_codes(stage_of() + t % GROUP_TOKENS * stage_row_bytes(w.dim), w.team.b, at.format, q.words);
        }
    }
    if (p.stats != NULL) {
        block_stats_add_inputs(&s->total, counts, active);
        block_stats_add(&s->total, q, range, w.team, at.format, active);
    }
}

/* All tokens of the block. */
template <uint32_t FAMILY>
static __device__ __forceinline__ void append_general_all(const append_params &p, append_work w, append_shared *s)
{
    prepare(p, w, true, s);
    w.has_tables = s->one_sequence;
    bool careful = s->is_center_large;
    uint32_t warp = threadIdx.x / WARP_LANES;
    uint32_t step = min(GROUP_TOKENS, WARPS * w.team.per_warp); /* tokens of a pass */
    bool in_warp = w.team.vector < w.team.per_warp && warp * w.team.per_warp < step;
    uint32_t t = in_warp ? warp * w.team.per_warp + w.team.vector : 0u;
    uint32_t all = (w.count + GROUP_TOKENS - 1u) / GROUP_TOKENS * GROUP_TOKENS;
    for (uint32_t end = step; end <= all; end += step, t += step) {
        append_vectors<FAMILY>(p, w, s, t, in_warp, careful);
        if (w.kind == NBL_KIND_V && end % GROUP_TOKENS == 0) {
            uint32_t g = end / GROUP_TOKENS - 1u;
            __syncthreads();
            write_v_codes(&s->lists[g], &s->places[g * GROUP_TOKENS], stage_of(), w.dim);
            __syncthreads();
        }
    }
}

/* ------------------------------------------------------------------------------------------------ kernels */

/* What a kernel is compiled for. */
enum append_way {
    WAY_RECIPES, /* the usual way, for bf16 and what recipes are at head dimension 128: formats of one family */
    WAY_USUAL,
    WAY_GENERAL /* also for few tokens of several sequences, which the usual way takes slowly */
};

/* The usual way with the instance for the block's vectors. */
template <uint32_t FAMILY, uint32_t WAY, uint32_t KIND>
static __device__ void append_usual_of(const append_params &p, uint32_t hadamard, append_shared *s)
{
    if (WAY == WAY_USUAL) {
        append_usual_all<FAMILY, KIND, STEPS_ANY>(p, s);
    } else if (FAMILY == FAMILY_MXFP4 && (KIND == NBL_KIND_K || hadamard == 32u)) {
        append_usual_all<FAMILY, KIND, 0>(p, s);
    } else if (FAMILY == FAMILY_MXFP4) { /* all int8: see is_usual */
        append_usual_all<FAMILY_INT8, KIND, 2>(p, s);
    } else {
        append_usual_all<FAMILY, KIND, 2>(p, s);
    }
}

/* Blocks of a multiprocessor: as many as leave the registers that the kernel needs. */
static constexpr uint32_t blocks_of(uint32_t family, uint32_t way)
{
    return way == WAY_GENERAL ? 2u : (family == FAMILY_ANY ? 3u : 4u) - BLOCKS_FEWER;
}

template <uint32_t FAMILY, uint32_t WAY>
static __global__ void __launch_bounds__(THREADS, blocks_of(FAMILY, WAY))
    append_kernel(const __grid_constant__ append_params p)
{
    __shared__ append_shared s;
    append_work w = work_of(p, blockIdx.y);
    if (threadIdx.x == 0) {
        s.total = block_stats{0, 0, 0, 0, 0};
        s.one_sequence = s.is_center_large = false;
    }
    reciprocals_fill(s.reciprocals);
    if (p.centering && blockIdx.x + blockIdx.y == 0) {
        check_indptr(p.seq_indptr, p.batch, p.tokens, 1, p.status);
    }
    if (WAY == WAY_GENERAL) {
        append_general_all<FAMILY>(p, w, &s);
    } else if (w.kind == NBL_KIND_K) {
        append_usual_of<FAMILY, WAY, NBL_KIND_K>(p, w.hadamard, &s);
    } else {
        append_usual_of<FAMILY, WAY, NBL_KIND_V>(p, w.hadamard, &s);
    }
    if (p.stats == NULL) {
        return;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        block_stats_flush(s.total, p.stats);
    }
}

#define FEW_TOKENS 64u /* of several sequences */

/* 1 if vectors can go the usual way; trades: lanes trade blocks of 16, which those of E2M1 codes are not to. */
static bool is_usual(const cuda_tensor *in, uint32_t dim, uint32_t hadamard, bool may_be_mxfp4)
{
    return tensor_is_wide(in) && team32_per_warp(dim) >= QUAD && !(may_be_mxfp4 && hadamard > VECTOR32);
}

/* 1 if it is made up as recipes are at RECIPE_DIM; see append_usual_of. */
static bool is_recipe(const append_params *p, uint32_t family)
{
    bool v_is_32 = family == FAMILY_MXFP4 && p->v_hadamard == 32u;
    return family != FAMILY_ANY && p->k_dim == RECIPE_DIM && p->v_dim == RECIPE_DIM && p->k.dtype == NBL_BF16 &&
           p->k_hadamard == (family == FAMILY_MXFP4 ? 32u : 128u) && (v_is_32 || p->v_hadamard == 128u);
}

static void (*kernel_of(const append_params *p))(const append_params)
{
    uint32_t family = family_of(&p->pages);
    bool is_few = p->tokens <= FEW_TOKENS && p->centering && p->batch > 1u;
    if (is_few || !is_usual(&p->k, p->k_dim, p->k_hadamard, cuda_any_mxfp4(&p->pages, NBL_KIND_K)) ||
        !is_usual(&p->v, p->v_dim, p->v_hadamard, cuda_any_mxfp4(&p->pages, NBL_KIND_V))) {
        return append_kernel<FAMILY_ANY, WAY_GENERAL>;
    }
    if (!is_recipe(p, family)) {
        return append_kernel<FAMILY_ANY, WAY_USUAL>;
    }
    switch (family) {
    case FAMILY_INT8: return append_kernel<FAMILY_INT8, WAY_RECIPES>;
    case FAMILY_INT4P: return append_kernel<FAMILY_INT4P, WAY_RECIPES>;
    default: return append_kernel<FAMILY_MXFP4, WAY_RECIPES>;
    }
}

/* Shared memory of a call before the slots. */
static uint32_t shared_before_slots(const append_params *p)
{
    return max(GROUP_TOKENS * stage_row_bytes(p->v_dim), p->centering ? (uint32_t)sizeof(channel_tables) : 0u);
}

extern "C" cudaError_t nbl_cuda_append(const append_params *params, cudaStream_t stream)
{
    append_params p = *params;
    void (*kernel)(const append_params) = kernel_of(params);
    p.block_tokens = block_tokens_for(p.tokens, p.kv_heads, p.processors, APPEND_GROUPS_MAX);
    p.slots_at = shared_before_slots(&p);
    uint32_t shared = p.slots_at + SLOTS * THREADS * slot_bytes(p.k.dtype); /* k and v have one type */
    cudaError_t error = shared_memory_for((const void *)kernel, shared, sizeof(append_shared));
    if (error != cudaSuccess) {
        return error;
    }
    dim3 grid((p.tokens + p.block_tokens - 1u) / p.block_tokens * p.kv_heads, 2); /* heads of a token side by side */
    kernel<<<grid, THREADS, shared, stream>>>(p);
    return cudaGetLastError();
}
