/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file append_recipe.cu
 * @brief append for what recipes are at head dimension 128: bf16, formats of one family, rotated.
 *
 * Each warp on its own, eight vectors at a time: input comes through slots in shared memory, two passes ahead, and is
 * rotated on tensor cores (rotate_mma.cuh). Tokens of K that are centred are taken sequence by sequence. All that can
 * be known is when this is compiled, since the loops are bound by the instructions they issue. What is rare is a short
 * loop elsewhere.
 */
#include "../tile/append_block.cuh"
#include "../tile/rotate_mma.cuh"
#include "../tile/rotated_codes.cuh"

#define RECIPE_SLOTS 2u /* a pass is fetched into the slot of the one before the last as soon as that is rotated */
#define RECIPE_STEP (WARPS * ROTATE_TOKENS) /* tokens of a pass of all warps */
#define RECIPE_SLOT_BYTES (ROTATE_TOKENS * ROTATE_INPUT_BYTES)
#define RECIPE_STAGE_BYTES (ROTATE_TOKENS * ROTATE_STAGE_BYTES)
#define RECIPE_TABLES_AT (WARPS * (RECIPE_STAGE_BYTES + RECIPE_SLOTS * RECIPE_SLOT_BYTES))
#define RECIPE_BLOCK_AT (RECIPE_TABLES_AT + (uint32_t)sizeof(rotate_tables))
#define RECIPE_SHARED_BYTES (RECIPE_BLOCK_AT + (uint32_t)sizeof(append_shared)) /* all from one address */

/* What a thread needs for it. A pass is fetched in chunks of 16 bytes, half a row by every 8 lanes. */
struct append_recipe {
    rotate_tables *tables; /* of K; V: NULL */
    uint8_t *stage;        /* of the warp, and so the slots */
    uint8_t *slots;
    rotate_lane lane;
    const uint8_t *from; /* the lane's chunk of the block's first or second token */
    uint32_t to;         /* where the chunk of a pass goes in slot 0, a shared address */
    uint32_t slot;       /* next one to fetch into, in bytes */
};

static __device__ append_recipe recipe_of(const append_work &w)
{
    append_recipe r;
    uint32_t warp = threadIdx.x / WARP_LANES;
    uint8_t *stages = (uint8_t *)dynamic_memory() + WARPS * RECIPE_SLOTS * RECIPE_SLOT_BYTES;
    r.slots = (uint8_t *)dynamic_memory() + warp * RECIPE_SLOTS * RECIPE_SLOT_BYTES;
    r.stage = stages + warp * RECIPE_STAGE_BYTES;
    r.tables = w.kind == NBL_KIND_K ? (rotate_tables *)(void *)(stages + WARPS * RECIPE_STAGE_BYTES) : NULL;
    r.lane = rotate_lane_of(r.slots);
    r.to =
        ptx_settle(ptx_shared_address(r.slots) + rotate_input_byte(threadIdx.x % WARP_LANES / 16u, threadIdx.x % 16u));
    r.slot = 0;
    r.from = row_of(w, threadIdx.x % WARP_LANES / 16u) + threadIdx.x % 16u * 16u;
    return r;
}

/* Begins to load the vectors of a pass, tokens of the block from `token` on, zeros from `end` on. */
static __device__ void recipe_fetch(const append_work &w, uint32_t token, uint32_t end, append_recipe *r)
{
    uint32_t to = r->to + r->slot;
    int32_t left = (int32_t)(end - token - threadIdx.x % WARP_LANES / 16u);
    const uint8_t *from = r->from + (int64_t)token * w.in.stride[0];
#pragma unroll
    for (uint32_t i = 0; i < ROTATE_TOKENS; i += 2u) { /* rows i and i + 1: see rotate_input_byte */
        ptx_cp_async_16_zfill((to ^ 16u * i) + i * ROTATE_INPUT_BYTES, from, left > (int32_t)i ? 16u : 0u);
        from += 2 * w.in.stride[0];
    }
    ptx_cp_async_commit();
    r->slot ^= RECIPE_SLOT_BYTES;
}

/* Vectors whose sums may have been rounded, or whose inputs may be beyond X: a bit for the first lane of each. vector:
 * the largest magnitude of the lane's. */
template <uint32_t KIND>
static __device__ uint32_t recipe_others(const append_work &w, const append_recipe &r, uint32_t least, uint32_t vector,
                                         bool active)
{
    float limit = nbl_float_of(min(rotate_limit(r.slots + r.slot, least), nbl_bits_of(CAREFUL_FROM)));
    float most = nbl_float_of(vector) + (KIND == NBL_KIND_K ? r.tables->center_most : 0.0f);
    return __ballot_sync(FULL_WARP, active && w.team.b == 0 && !(most < limit));
}

/* Puts these vectors of the input into the stage by the rule; total: where inputs are counted, or NULL. Rare, and so a
 * function of its own. */
template <uint32_t N, bool IS_K>
static __device__ __noinline__ void recipe_by_rule(const uint8_t *input, const rotate_tables *tables, uint8_t *stage,
                                                   uint32_t others, block_stats *total)
{
    block16_counts counts = {0, 0, 0};
#pragma unroll 1
    for (; others != 0; others &= others - 1u) {
        uint32_t t = ((uint32_t)__ffs((int)others) - 1u) / (ROTATE_DIM / VECTOR32);
        rotate_by_rule<N, IS_K>(input, t, tables, stage, N == VECTOR32 ? MXFP4_MAX : INFINITY, &counts);
    }
    __syncwarp();
    if (total != NULL) {
        block_stats_add_inputs(total, counts, true);
    }
}

/* What the vector of a lane is. */
struct recipe_vector {
    uint32_t token; /* of the block */
    bool active;    /* there is one, with a place for the format */
    token_place at; /* see keeps_place */
    uint32_t least; /* of its inputs; see rotate */
    uint32_t next;  /* token of the block that the pass to fetch begins with */
    uint32_t end;   /* and that those to fetch end before */
};

/* 1 if a loop has the registers to know the place of a vector before it is stored. */
static __host__ __device__ constexpr bool keeps_place(uint32_t format, uint32_t n)
{
    return format == NBL_INT8 && n == ROTATE_DIM;
}

/* Counts a lane's codes (NUM 3.3); a function of its own, as few callers want that. */
static __device__ __noinline__ void recipe_count(block_stats *total, uint32_t nonzero, uint32_t saturated,
                                                 uint32_t most, bool active)
{
    bool is_first = threadIdx.x % (ROTATE_DIM / VECTOR32) == 0;
    block_stats_add_vectors(total, active && is_first, team32_max4(nonzero), most, active ? saturated : 0u);
}

/* Largest magnitudes of the lane's block of 32 in the stage. */
static __device__ range32 staged_range(const uint8_t *stage)
{
    float x[VECTOR32];
    take_floats((const uint4 *)(const void *)staged_elements(stage), x, VECTOR32 / 4u);
    return range32_of<true>(x, team32_of(ROTATE_DIM));
}

/* Quantizes and stores int4p, from blocks of 32. */
template <uint32_t KIND, uint32_t N>
static __device__ void recipe_int4p(const append_params &p, const append_work &w, append_shared *s, append_recipe *r,
                                    const recipe_vector &v, const float (&x)[VECTOR32])
{
    codes32 q;
    stage_rotated(r->stage, x);
    __syncwarp();
    range32 range = staged_range(r->stage);
    uint32_t others = recipe_others<KIND>(w, *r, v.least, range.vector, v.active);
    if (others != 0) {
        recipe_by_rule<N, KIND == NBL_KIND_K>(r->slots + r->slot, r->tables, r->stage, others,
                                              p.stats != NULL ? &s->total : NULL);
        range = staged_range(r->stage);
    }
    __syncwarp();
    recipe_fetch(w, v.next, v.end, r);
    quantize32_int4p_staged(staged_elements(r->stage), range, s->reciprocals, p.stats != NULL, &q);
    token_place at = s->places[v.token]; /* only now: registers */
    at.format = NBL_INT4P;
    store_block<FAMILY_INT4P>(w, s, w.team.b, at, r->stage, v.token, v.active, q);
    if (p.stats != NULL) {
        recipe_count(&s->total, codes32_nonzero(q, NBL_INT4P), q.saturated, range.vector, v.active);
    }
}

/* Stores codes as rotated_codes.cuh makes them. */
template <uint32_t FORMAT, uint32_t KIND, uint32_t N>
static __device__ void recipe_store(const append_work &w, const append_shared *s, uint8_t *stage,
                                    const recipe_vector &v, const codes32 &q)
{
    token_place at = keeps_place(FORMAT, N) ? v.at : s->places[v.token];
    if (v.active && (FORMAT != NBL_INT8 || w.team.b == 0)) {
        at.scales[w.team.b * at.plane_bytes] = nbl_e8m0_encode(q.exponent[0]);
    }
    if (KIND == NBL_KIND_V) {
        uint8_t *row = stage + w.team.vector * stage_row_bytes(ROTATE_DIM);
        rotated_write_v<FORMAT>(at, row, w.team.b, w.team.vector % QUAD, s->quad_is_whole[v.token / QUAD], v.active, q);
    } else if (v.active) {
        rotated_write_k<FORMAT>(at, w.team.b, q);
    }
}

/* Quantizes and stores int8 or mxfp4 from the elements as they are. */
template <uint32_t FORMAT, uint32_t KIND, uint32_t N>
static __device__ void recipe_rotated(const append_params &p, const append_work &w, append_shared *s, append_recipe *r,
                                      const recipe_vector &v, float (&x)[VECTOR32])
{
    codes32 q;
    rotated_range range = rotated_range_of(x);
    uint32_t others = recipe_others<KIND>(w, *r, v.least, range.vector, v.active);
    if (others != 0) {
        if (FORMAT != NBL_INT8) { /* short of registers: no element stays in one meanwhile */
            stage_rotated(r->stage, x);
            __syncwarp();
        }
        recipe_by_rule<N, KIND == NBL_KIND_K>(r->slots + r->slot, r->tables, r->stage, others,
                                              p.stats != NULL ? &s->total : NULL);
        if (FORMAT != NBL_INT8 ||
            (others >> (threadIdx.x % WARP_LANES & ~3u) & 1u) != 0) { /* the first lane of the vector */
            unstage_as_rotated(r->stage, x);
        }
        range = rotated_range_of(x);
    }
    __syncwarp();
    recipe_fetch(w, v.next, v.end, r);
    if (FORMAT == NBL_INT8) {
        range32 vector = {{0.0f, 0.0f}, {1.0f, 1.0f}, range.vector};
        quantize32_int8(x, vector, &q);
    } else {
        rotated_mxfp4(x, range, w.team.b, w.rule, p.stats != NULL, &q);
        if (KIND == NBL_KIND_K) {
            rotated_k_words(w.team.b, &q);
        }
    }
    recipe_store<FORMAT, KIND, N>(w, s, r->stage, v, q);
    if (p.stats != NULL) {
        recipe_count(&s->total, codes32_nonzero(q, FORMAT), q.saturated, range.vector, v.active);
    }
}

/* The warp's tokens of FORMAT from `first` of the block on before `end`, whose first two passes are on their way. */
template <uint32_t FORMAT, uint32_t KIND, uint32_t N>
static __device__ void recipe_tokens(const append_params &p, const append_work &w, append_shared *s, append_recipe *r,
                                     uint32_t first, uint32_t end)
{
#pragma unroll 1
    for (; first < end; first += RECIPE_STEP) {
        float x[VECTOR32];
        recipe_vector v;
        ptx_cp_async_wait<RECIPE_SLOTS - 1>();
        __syncwarp(); /* nor does anybody read the stage any more */
        v.token = min(first + w.team.vector, APPEND_TOKENS_MAX - 1u);
        if (keeps_place(FORMAT, N)) {
            v.at = s->places[v.token];
        } else {
            v.at.codes = s->places[v.token].codes;
            v.at.format = s->places[v.token].format;
        }
        v.active = (first + w.team.vector < end) & (v.at.codes != NULL) & (v.at.format == FORMAT);
        v.next = first + RECIPE_SLOTS * RECIPE_STEP;
        v.end = end;
        v.least = rotate<N, KIND == NBL_KIND_K>(r->slot, r->lane, w.team, r->tables, x);
        if (FORMAT == NBL_INT4P) {
            recipe_int4p<KIND, N>(p, w, s, r, v, x);
        } else {
            recipe_rotated<FORMAT, KIND, N>(p, w, s, r, v, x);
        }
    }
}

/* Fills the tables of K for the sequence of token `first` of the block; a barrier follows. Returns the token that its
 * tokens end before. */
static __device__ uint32_t recipe_sequence(const append_params &p, const append_work &w, const append_recipe &r,
                                           uint32_t first, uint32_t count)
{
    block16_centering from = {NULL, NULL, NULL};
    uint32_t end = count;
    if (p.centering) {
        uint32_t sequence = sequence_of_warp(p.seq_indptr, p.batch, w.first + first);
        from = block16_centering_of(&p.centers, sequence, p.kv_heads, w.head, p.k_dim, p.status);
        int64_t last = (int64_t)p.seq_indptr[sequence + 1u] - w.first;
        end = (uint32_t)min(max(last, (int64_t)first + 1), (int64_t)count);
    }
    rotate_tables_fill(r.tables, from, CENTER_SMALL_EXPONENT);
    return end;
}

/* 1 if the lane's token is one of four side by side that are a whole quad of V (see quad_is_whole). All lanes of the
 * warp call it. */
static __device__ bool is_in_whole_quad(const token_place &at)
{
    uint32_t lane = threadIdx.x % WARP_LANES, r = lane % QUAD;
    uint64_t first = __shfl_sync(FULL_WARP, (uint64_t)at.codes, (int)(lane - r));
    bool fits = first != 0 && first % QUAD == 0 && at.stride == QUAD && (uint64_t)at.codes == first + r;
    return (__ballot_sync(FULL_WARP, fits) >> (lane - r) & 15u) == 15u;
}

/* Places of all tokens of the block, two of a thread, and what quads of V are whole; a barrier follows. Returns 1 if
 * some of the thread's are int8, and 2 if some are not. */
static __device__ uint32_t recipe_places(const append_params &p, const append_work &w, const int64_t (&slot)[2],
                                         uint32_t count, append_shared *s)
{
    uint32_t formats = 0;
#pragma unroll 1
    for (uint32_t t = threadIdx.x; t < count + threadIdx.x % WARP_LANES; t += THREADS) { /* by whole warps */
        token_place at = token_place_of_slot(&p.pages, t == threadIdx.x ? slot[0] : slot[1], w.first + t, w.kind,
                                             w.head, w.dim, p.status);
        s->places[t] = at;
        if (w.kind == NBL_KIND_V) {
            s->quad_is_whole[t / QUAD] = is_in_whole_quad(at);
        }
        if (at.codes != NULL) {
            formats |= at.format == NBL_INT8 ? 1u : 2u;
        }
    }
    return formats;
}

/* The warp's first token of those from `first` of the block on; found again at every call, rather than kept. */
static __device__ uint32_t recipe_first(uint32_t first)
{
    return first + ptx_thread() / WARP_LANES * ROTATE_TOKENS;
}

/* Asks for the warp's first two passes of the tokens from `first` of the block on before `end`. */
static __device__ void recipe_begin(const append_work &w, uint32_t first, uint32_t end, append_recipe *r)
{
    recipe_fetch(w, first, end, r);
    recipe_fetch(w, first + RECIPE_STEP, end, r);
}

/* The blocks of a call in order, heads of a token side by side: most of V, most of K, then the rest of K and of V in
 * smaller blocks, so that all multiprocessors end at the same time. V first, since its blocks find out less before
 * their first vector, while nothing else runs. */
#define RECIPE_LATE_TOKENS (2u * GROUP_TOKENS)
#define RECIPE_LATE_PART 16u /* of the tokens */

/* Where a block is among those of its kind and size. */
struct recipe_share {
    bool is_k;
    bool is_late;
    uint32_t index;
};

static __device__ recipe_share recipe_share_of(const append_params &p)
{
    recipe_share s;
    uint32_t block = blockIdx.x / p.kv_heads, early = 2u * p.early_blocks;
    s.is_late = block >= early;
    uint32_t index = s.is_late ? block - early : block, first = s.is_late ? p.late_blocks : p.early_blocks;
    s.is_k = (index < first) == s.is_late;
    s.index = index < first ? index : index - first;
    return s;
}

static __device__ append_work recipe_work(const append_params &p, uint32_t kind)
{
    recipe_share s = recipe_share_of(p);
    uint32_t tokens = s.is_late ? RECIPE_LATE_TOKENS : p.block_tokens;
    uint32_t first = (s.is_late ? p.early_blocks * p.block_tokens : 0u) + s.index * tokens;
    append_work w = work_of_tokens(p, kind, blockIdx.x % p.kv_heads, first, tokens);
    w.dim = ROTATE_DIM;
    w.team = team32_of(ROTATE_DIM);
    w.team.vector = ptx_settle(w.team.vector);
    __builtin_assume(w.rule != NBL_RULE_MSE); /* see is_recipe */
    return w;
}

/* All tokens of the block, FORMAT's and int8. */
template <uint32_t FORMAT, uint32_t KIND, uint32_t N>
static __device__ void append_recipe_all(const append_params &p, append_shared *s)
{
    append_work w = recipe_work(p, KIND);
    append_recipe r = recipe_of(w);
    int64_t slot[2]; /* asked for first: what follows depends on them */
    for (uint32_t i = 0; i < 2u; ++i) {
        uint32_t t = threadIdx.x + i * THREADS;
        slot[i] = t < w.count ? p.slots[w.first + t] : -1;
    }
    uint32_t count = w.count;
#pragma unroll 1
    for (uint32_t first = 0, end; first < count; first = end, count = s->count) {
        recipe_begin(w, recipe_first(first), count, &r); /* of whatever sequence they are */
        end = KIND == NBL_KIND_K ? recipe_sequence(p, w, r, first, count) : count;
        if (first == 0) {
            uint32_t formats = recipe_places(p, w, slot, count, s);
            bool has_int8 = FORMAT == NBL_INT8 || __syncthreads_or((int)(formats & 1u)) != 0;
            bool has_others = FORMAT != NBL_INT8 && __syncthreads_or((int)(formats & 2u)) != 0;
            if (threadIdx.x == 0) {
                s->has_int8 = has_int8;
                s->has_others = has_others;
                s->count = count;
            }
        }
        __syncthreads();
        if (FORMAT != NBL_INT8 && s->has_others) {
            recipe_tokens<FORMAT, KIND, N>(p, w, s, &r, recipe_first(first), end);
        }
        if (FORMAT != NBL_INT8 && s->has_int8 && s->has_others) {
            ptx_cp_async_wait<0>();
            __syncwarp();
            recipe_begin(w, recipe_first(first), end, &r);
        }
        if (FORMAT == NBL_INT8 || s->has_int8) {
            recipe_tokens<NBL_INT8, KIND, N>(p, w, s, &r, recipe_first(first), end);
        }
        ptx_cp_async_wait<0>();
        __syncthreads(); /* nor does anybody read the tables */
    }
}

/* The loop for a block's vectors. */
template <uint32_t FAMILY, uint32_t KIND> static __device__ void append_kind(const append_params &p, append_shared *s)
{
    if (FAMILY == FAMILY_INT8) {
        append_recipe_all<NBL_INT8, KIND, ROTATE_DIM>(p, s);
    } else if (FAMILY == FAMILY_INT4P) {
        append_recipe_all<NBL_INT4P, KIND, ROTATE_DIM>(p, s);
    } else if (KIND == NBL_KIND_K || p.v_hadamard == VECTOR32) {
        append_recipe_all<NBL_MXFP4, KIND, VECTOR32>(p, s);
    } else { /* all int8: E2M1 codes are of blocks rotated by themselves */
        append_recipe_all<NBL_INT8, KIND, ROTATE_DIM>(p, s);
    }
}

/* Blocks of a multiprocessor: as many as leave the registers that the loops need. */
static constexpr uint32_t blocks_of(uint32_t family)
{
    return BLOCKS_FEWER != 0u ? 3u : family == FAMILY_INT4P ? 4u : 5u;
}

template <uint32_t FAMILY>
static __global__ void __launch_bounds__(THREADS, blocks_of(FAMILY))
    append_recipe_kernel(const __grid_constant__ append_params p)
{
    append_shared *s = (append_shared *)(void *)((uint8_t *)dynamic_memory() + RECIPE_BLOCK_AT);
    append_block_begin(p, s);
    if (recipe_share_of(p).is_k) {
        append_kind<FAMILY, NBL_KIND_K>(p, s);
    } else {
        append_kind<FAMILY, NBL_KIND_V>(p, s);
    }
    append_block_end(p, s);
}

extern "C" int nbl_cuda_append_is_recipe(const append_params *p)
{
    uint32_t family = family_of(&p->pages);
    bool has_16 = false;
    for (uint32_t i = 0; i < p->pages.region_count; ++i) {
        const cuda_region *region = &p->pages.regions[i];
        has_16 = has_16 || region->k_format == NBL_MXFP4_16 || region->v_format == NBL_MXFP4_16;
    }
    bool v_is_32 = family == FAMILY_MXFP4 && p->v_hadamard == VECTOR32;
    return family != FAMILY_ANY && !has_16 && p->k_dim == ROTATE_DIM && p->v_dim == ROTATE_DIM &&
           p->k.dtype == NBL_BF16 && p->k_hadamard == (family == FAMILY_MXFP4 ? VECTOR32 : ROTATE_DIM) &&
           (v_is_32 || p->v_hadamard == ROTATE_DIM) && p->k_rule != NBL_RULE_MSE && p->v_rule != NBL_RULE_MSE;
}

extern "C" cudaError_t nbl_cuda_append_recipe(const append_params *params, cudaStream_t stream)
{
    append_params p = *params;
    uint32_t family = family_of(&p.pages);
    void (*kernel)(const append_params) = family == FAMILY_INT8    ? append_recipe_kernel<FAMILY_INT8>
                                          : family == FAMILY_INT4P ? append_recipe_kernel<FAMILY_INT4P>
                                                                   : append_recipe_kernel<FAMILY_MXFP4>;
    cudaError_t error = shared_memory_for((const void *)kernel, RECIPE_SHARED_BYTES, 0);
    if (error != cudaSuccess) {
        return error;
    }
    p.block_tokens = block_tokens_for(p.tokens, p.kv_heads, p.processors, APPEND_GROUPS_MAX);
    p.early_blocks = (p.tokens + p.block_tokens - 1u) / p.block_tokens;
    p.early_blocks -= p.block_tokens > RECIPE_LATE_TOKENS ? p.early_blocks / RECIPE_LATE_PART : 0u;
    uint32_t late = p.tokens - min(p.early_blocks * p.block_tokens, p.tokens);
    p.late_blocks = (late + RECIPE_LATE_TOKENS - 1u) / RECIPE_LATE_TOKENS;
    uint32_t blocks = 2u * (p.early_blocks + p.late_blocks);
    kernel<<<blocks * p.kv_heads, THREADS, RECIPE_SHARED_BYTES, stream>>>(p);
    return cudaGetLastError();
}
