/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file append.cu
 * @brief append: one pass from the engine's K and V to codes in pages (NUM 3, 4). See append_block.cuh.
 *
 * Here is what takes any format, type and dimension; what recipes are at head dimension 128 has kernels of its own
 * (append_recipe.cu). If all tokens of a block are of one sequence, its centre and shifts are turned into binary32
 * once.
 */
#include "../tile/append_block.cuh"

static __device__ channel_tables *tables_of(void)
{
    return (channel_tables *)(void *)dynamic_memory();
}

static __device__ uint8_t *stage_of(void)
{
    return (uint8_t *)dynamic_memory();
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
    } else {
        find_quads(p, s);
    }
    __syncthreads();
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

/* Takes and transforms the lane's elements. CAREFUL: inputs may be beyond X (NUM 3.1). */
template <bool CAREFUL>
static __device__ void transform(const append_work &w, const append_usual &u, const uint8_t *slot,
                                 const block16_centering &own, float (&x)[VECTOR32], block16_counts *counts)
{
    const halves32 &h = u.halves;
    halves32_take(slot, w.in.dtype, h, w.has_tables && !CAREFUL, tables_of(), w.team.b, x);
    if (CAREFUL) {
        vector32_sanitize(x, counts);
        halves32_scale(x, h, w.has_tables, tables_of(), w.team.b);
    }
    if (own.shifts != NULL) {
        halves32_scale_from(x, h, own.shifts, w.dim, w.team.b);
    }
    halves32_hadamard(x, h, w.hadamard);
    if (w.has_tables) {
        halves32_center(x, h, tables_of(), w.team.b);
    } else if (own.codes != NULL) {
        halves32_center_from(x, h, own.codes, *own.exponent, w.dim, w.team.b);
    }
}

/* A pass of the warp: one vector of each team. */
static __device__ void append_pass(const append_params &p, const append_work &w, append_shared *s,
                                   const append_usual &u, uint8_t *slots)
{
    float x[VECTOR32];
    codes32 q;
    bool has_vector = w.team.vector < w.team.per_warp;
    uint32_t token = u.token + (has_vector ? w.team.vector : 0u);
    token_place at = s->places[token];
    bool active = has_vector && at.codes != NULL;
    block16_centering own = own_centering(p, w, s, token, active);
    const uint8_t *slot = slots + threadIdx.x % WARP_LANES * slot_bytes(w.in.dtype);
    transform<false>(w, u, slot, own, x, NULL);
    range32 range = range32_of(x, w.team);
    bool careful = range.vector >= nbl_bits_of(CAREFUL_FROM) || s->is_center_large || center_is_large(own);
    if (__any_sync(FULL_WARP, careful)) {
        block16_counts counts = {0, 0, 0};
        transform<true>(w, u, slot, own, x, &counts);
        limit_mxfp4<FAMILY_ANY>(at.format, x);
        range = range32_of(x, w.team);
        if (p.stats != NULL) {
            block_stats_add_inputs(&s->total, counts, active);
        }
    }
    bool is_settled = w.has_tables || own.codes != NULL;
    range.sign[0] = is_settled ? 1.0f : u.halves.sign[0];
    range.sign[1] = is_settled ? 1.0f : u.halves.sign[1];
    quantize32<FAMILY_ANY, QUANTIZE_MANY>(x, range, w.team, at.format, w.rule, s->reciprocals, p.stats != NULL, &q);
    halves32_regroup(u.halves, at.format, &q);
    store_block<FAMILY_ANY>(w, s, u.place, at, slots, token, active, q);
    if (p.stats != NULL) {
        block_stats_add(&s->total, q, range, w.team, at.format, active);
    }
}

/* All tokens of the block. */
template <uint32_t KIND> static __device__ void append_usual_all(const append_params &p, append_shared *s)
{
    append_work w = work_of(p, KIND);
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
        append_pass(p, w, s, u, u.slots + u.fetch.slot * pass_slots); /* the oldest one */
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
            limit_mxfp4<FAMILY_ANY>(at.format, x);
        }
        range = range32_of(x, w.team);
        if (careful || !__any_sync(FULL_WARP, range.vector >= nbl_bits_of(CAREFUL_FROM))) {
            break;
        }
        careful = true;
    }
    quantize32<FAMILY_ANY, QUANTIZE_ONCE>(x, range, w.team, at.format, w.rule, s->reciprocals, p.stats != NULL, &q);
    if (active) {
        write_scales<FAMILY_ANY>(at, w.team, w.team.b, q);
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
        append_vectors(p, w, s, t, in_warp, careful);
        if (w.kind == NBL_KIND_V && end % GROUP_TOKENS == 0) {
            uint32_t g = end / GROUP_TOKENS - 1u;
            __syncthreads();
            write_v_codes(&s->lists[g], &s->places[g * GROUP_TOKENS], stage_of(), w.dim);
            __syncthreads();
        }
    }
}

/* ------------------------------------------------------------------------------------------------ kernels */

template <bool IS_USUAL>
static __global__ void __launch_bounds__(THREADS, IS_USUAL ? 3u - BLOCKS_FEWER : 2u)
    append_kernel(const __grid_constant__ append_params p)
{
    __shared__ append_shared s;
    append_block_begin(p, &s);
    if (!IS_USUAL) {
        append_general_all(p, work_of(p, blockIdx.y), &s);
    } else if (blockIdx.y == NBL_KIND_K) {
        append_usual_all<NBL_KIND_K>(p, &s);
    } else {
        append_usual_all<NBL_KIND_V>(p, &s);
    }
    append_block_end(p, &s);
}

#define FEW_TOKENS 64u /* of several sequences, which the usual way takes slowly */

/* 1 if vectors can go the usual way: lanes trade blocks of 16, which those of E2M1 codes are not to. */
static bool is_usual(const cuda_tensor *in, uint32_t dim, uint32_t hadamard, bool may_be_mxfp4)
{
    return tensor_is_wide(in) && team32_per_warp(dim) >= QUAD && !(may_be_mxfp4 && hadamard > VECTOR32);
}

extern "C" cudaError_t nbl_cuda_append(const append_params *params, cudaStream_t stream)
{
    append_params p = *params;
    bool is_few = p.tokens <= FEW_TOKENS && p.centering && p.batch > 1u;
    bool usual = !is_few && is_usual(&p.k, p.k_dim, p.k_hadamard, cuda_any_mxfp4(&p.pages, NBL_KIND_K)) &&
                 is_usual(&p.v, p.v_dim, p.v_hadamard, cuda_any_mxfp4(&p.pages, NBL_KIND_V));
    if (usual && nbl_cuda_append_is_recipe(&p)) {
        return nbl_cuda_append_recipe(&p, stream);
    }
    p.slots_at = max(GROUP_TOKENS * stage_row_bytes(p.v_dim), p.centering ? (uint32_t)sizeof(channel_tables) : 0u);
    uint32_t shared = p.slots_at + (usual ? SLOTS * THREADS * slot_bytes(p.k.dtype) : 0u); /* k and v have one type */
    return append_launch(usual ? append_kernel<true> : append_kernel<false>, &p, shared, stream);
}
