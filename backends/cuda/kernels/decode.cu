/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file decode.cu
 * @brief attend for few query rows over a long cache: one warp per (sequence, kv head, chunk).
 *
 * Every warp is on its own: it walks the eight tiles of its chunk, in turns of up to 4 KB of codes that cp.async
 * brings to shared memory while the turn before is worked on, and meets no other warp. Budget on an H200: 4.4 TB/s
 * leave an SM 7.4 cycles, 29 issue slots, per token and kv head at 138 bytes (int4p, D = 128). A tile of 128 tokens
 * takes about 2400 warp instructions, 19 a token:
 *
 *     Q K                       800    decode_keys.cuh
 *     P V                       710    decode_values.cuh
 *     softmax                   280    decode_softmax.cuh   a row; up to eight rows double it, and P V of int4p is then
 *                                                           decode_values_half.cuh
 *     loading, page walk        250    decode_load.cuh
 *     scales                    120    decode_scales.cuh    once per tile, a lane for four tokens
 *     O                          70
 *     steering                  170
 *
 * The loops over groups are unrolled within a turn at most: more code would not fit the instruction cache. What a lane
 * hands from one phase to the next goes through its own place in shared memory.
 *
 * A query row sits in column 2q of the products when there are up to four (RPL 1), in column q when there are up to
 * eight (RPL 2).
 */
#include "../tile/decode_keys.cuh"
#include "../tile/decode_load.cuh"
#include "../tile/decode_scales.cuh"
#include "../tile/decode_softmax.cuh"
#include "../tile/decode_unit.cuh"
#include "../tile/decode_values.cuh"
#include "../tile/decode_values_half.cuh"
#include "../tile/launch.cuh"
#include <type_traits>

namespace
{

/* Whether P V takes halves. */
template <int D, int RPL, typename F>
constexpr bool TAKES_HALVES = D == 128 && RPL == 2 && F::are_known &&F::v == NBL_INT4P;

/* Of a multiprocessor; more would leave too few registers. With eight rows of 128 elements twelve are the fastest on
 * sm_90; from sm_100 on they would spill half a kilobyte, and what that costs has not been measured. Where P V takes
 * halves, a bound of eleven, which allows 168 registers as well, makes ptxas spill nothing, one of twelve 32 bytes;
 * before sm_90 shared memory has room for eight. */
template <int D, int RPL, typename F> constexpr int least_warps()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
    constexpr int eight_rows = 8;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
    constexpr int eight_rows = TAKES_HALVES<D, RPL, F> ? 8 : 12;
#else
    constexpr int eight_rows = TAKES_HALVES<D, RPL, F> ? 11 : 12;
#endif
    return RPL == 1 ? (D <= 128 ? 16 : 8) : (D == 128 ? eight_rows : 8);
}

template <int D, int RPL, typename F>
using memory_of = typename std::conditional<TAKES_HALVES<D, RPL, F>, half_memory<D, RPL>, warp_memory<D, RPL>>::type;

constexpr uint32_t RESERVED_BYTES = 1024; /* of a block's shared memory, for the system */
constexpr uint32_t SHARED_UNIT = 128;     /* in which it is given out */
constexpr uint32_t DEFAULT_BYTES = 49152; /* that a block may have without being asked */

/* ---------------------------------------------------------------------------------------------- states */

/* They are to be in the second-level cache when the last step reads them. */
template <int VD, int RPL>
PTX_FN void write_states(const attend_params &p, const unit &u, const lane_rows<RPL> &rows,
                         const float (&o)[VD / 16][2][RPL], uint32_t g, uint32_t t)
{
    const uint64_t policy = ptx_policy_evict_last();
#pragma unroll
    for (int i = 0; i < RPL; ++i) {
        const uint32_t r = lane_row<RPL>(t, i);
        if (r >= u.rows) {
            continue;
        }
        uint64_t index = row_index<RPL>(p, u, r);
        float *state = p.states + (index * p.chunks + u.chunk) * p.state_floats;
        bool empty = !(rows.has_base >> i & 1u) || rows.sum[i] == 0.0f;
        if (g == 0) {
            ptx_store_16(state,
                         make_float4(empty ? -INFINITY : rows.base[i], empty ? 0.0f : rows.sum[i],
                                     p.queries[index].offset, 0.0f),
                         policy);
        }
#pragma unroll
        for (int n = 0; n < VD / 16; ++n) {
            float2 pair = make_float2(empty ? 0.0f : o[n][0][i], empty ? 0.0f : o[n][1][i]);
            ptx_store_8(state + CUDA_STATE_HEAD_FLOATS + 16 * n + 2 * g, pair, policy);
        }
    }
}

/* ---------------------------------------------------------------------------------------------- unit */

/* x in a register: an instruction has room for one constant, and the compiler would not keep this one. */
template <int D, int RPL> PTX_FN uint32_t load_constant(warp_memory<D, RPL> &m, uint32_t x, uint32_t lane)
{
    volatile uint32_t *at = (volatile uint32_t *)&m.raw[0][0][0];
    if (lane == 0) {
        *at = x;
    }
    __syncwarp();
    return *at;
}

/* Measured on sm_90 only; before it, registers are scarcer. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
using unit_copies = plain_copies;
#else
using unit_copies = copies_once;
#endif

/* P of tokens n and n + 1 for shared memory: bytes, of both rows of a lane side by side; or halves, a word for each
 * token. */
template <int RPL, bool HALVES> PTX_FN void pack(const float2 (&p)[RPL], uint32_t &first, uint32_t &second)
{
    const uint32_t even[2] = {nbl_bits_of(p[0].x), nbl_bits_of(p[RPL - 1].x)};
    const uint32_t odd[2] = {nbl_bits_of(p[0].y), nbl_bits_of(p[RPL - 1].y)};
    if (HALVES) {
        first = ptx_prmt(even[0], even[1], 0x5410u);
        second = ptx_prmt(odd[0], odd[1], 0x5410u);
    } else {
        const uint32_t low = ptx_prmt(even[0], odd[0], 0x4040u);
        first = RPL == 1 ? low : ptx_prmt(low, ptx_prmt(even[1], odd[1], 0x4040u), 0x5410u);
    }
}

/* The walk of a warp over its unit. */
template <int D, int RPL, typename F> struct walker {
    static constexpr bool halves = TAKES_HALVES<D, RPL, F>;
    const attend_params &p;
    memory_of<D, RPL, F> &m;
    const unit &u;
    uint32_t lane, g, t;
    uint32_t constant; /* HALF2_1024 where P V takes halves, else a mask of high nibbles */
    asker<unit_copies> ask;
    lane_rows<RPL> rows;
    float o[D / 16][2][RPL];
    int32_t k_starts[4]; /* what the sums of Q K begin with; where P V takes halves, in registers that stay */

    /* of the tile and group in work */
    uint32_t formats;
    float b[RPL];
    int32_t acc[RPL][D / 16][4];
    float half_acc[D / 16][4]; /* in place of acc, where P V takes halves */
    float block_sums[4];

    /* Turns that are asked for before prepare has ended. All at once would hold up what it still reads and writes; with
     * eight rows less is asked for at once anyway. */
    static constexpr uint32_t first_turns = RPL == 1 ? 1u : RING;

    /* Begins at the unit's first tile, with the first turns asked for. */
    __device__ __forceinline__ void begin(uint32_t guessed, int32_t guess)
    {
        begin_walk(p, u, guessed, guess, lane, ask);
        if (RPL == 2 && ask.tile >= u.end_tile) {
            return; /* nothing to ask for; saying so spares registers where rows take many */
        }
        ask.to[0] = place_of<128u>(lane);
        ask.to[1] = ptx_keep(place_of<2u * D>(lane));
#pragma unroll 1
        for (uint32_t i = 0; i < first_turns; ++i) {
            ask_turn<D, RPL, F>(p, m, u, lane, ask);
        }
    }

    /* Asks for the others there is room for. */
    __device__ __forceinline__ void fill_ring()
    {
#pragma unroll 1
        for (uint32_t i = first_turns; i < RING; ++i) {
            ask_turn<D, RPL, F>(p, m, u, lane, ask);
        }
    }

    /* Before the first group: scales, which have landed with it. */
    __device__ __forceinline__ void begin_tile_work(uint32_t start)
    {
        formats = ask.formats; /* the asker is not past this tile yet */
        const uint32_t group = lane / 8u;
        const int32_t tokens = (int32_t)(u.kv_len - start - 4u * lane);
        if constexpr (halves) {
            prepare_half_scales<D, RPL, F::k == NBL_MXFP4>(m, F::k, tokens, constant, lane);
        } else {
            prepare_scales<D, RPL, F::k == NBL_MXFP4>(m, format_of<F, 0>(formats, group),
                                                      format_of<F, 1>(formats, group), tokens, lane);
        }
    }

    /* One group of K: logits but for the row's scale. */
    __device__ __forceinline__ void k_work(const uint8_t *codes, uint32_t group)
    {
        const uint32_t format = format_of<F, 0>(formats, group);
        if (!halves) {
            k_starts[0] = k_starts[2] = rows.start[0], k_starts[1] = k_starts[3] = rows.start[RPL - 1];
        }
        store_logits<D, RPL, F::k == NBL_MXFP4, halves>(m, codes, format, group, lane, k_starts);
    }

    /* Which of the lane's tokens its rows see: nearly always all, which is worth a branch where there are two rows. */
    __device__ __forceinline__ void see(int32_t start, uint32_t (&visible)[RPL]) const
    {
#pragma unroll
        for (int i = 0; i < RPL; ++i) {
            visible[i] = 0xffffu;
        }
        if (RPL == 1 || start < u.seen_first || start + (int32_t)CUDA_TILE_TOKENS > u.seen_end) {
#pragma unroll
            for (int i = 0; i < RPL; ++i) { /* kept, or the compiler does it always */
                visible[i] = ptx_keep(visible_bits(rows.first[i], rows.end[i], start, g));
            }
        }
    }

    /* After the last group of K. */
    __device__ __forceinline__ void softmax(int32_t start)
    {
        float x[RPL][LANE_TOKENS], rescale[RPL];
        uint32_t packed[LANE_TOKENS], visible[RPL];
        __syncwarp(); /* the factors of K make room for P */
#pragma unroll
        for (int i = 0; i < RPL; ++i) {
            read_logits(m.x[i], lane, x[i]);
        }
        see(start, visible);
        const float magic = halves ? HALF_MAGIC : NBL_MAGIC;
        columns_softmax<RPL>(x, &m.v_grid[2u * g], visible, magic, rows, rescale, b, [&](int n, const float2(&p)[RPL]) {
            pack<RPL, halves>(p, packed[halves ? n : n / 2], packed[n + 1]);
        });
#pragma unroll
        for (int i = 0; i < RPL; ++i) {
            if (__any_sync(0xffffffffu, rescale[i] != 1.0f)) {
#pragma unroll
                for (int n = 0; n < D / 16; ++n) {
                    o[n][0][i] *= rescale[i];
                    o[n][1][i] *= rescale[i];
                }
            }
        }
#pragma unroll
        for (uint32_t group = 0; group < GROUPS; ++group) {
            if constexpr (halves) {
                store_half_group(m, group, lane, &packed[4 * group]);
            } else {
                m.packed[group][lane] = make_uint2(packed[2 * group], packed[2 * group + 1]);
            }
        }
    }

    /* One group of V. */
    __device__ __forceinline__ void v_work(const uint8_t *codes, uint32_t group)
    {
        if constexpr (halves) {
            v_group_half<D, RPL>(m, codes, group, lane, half_acc, block_sums);
        } else {
            const uint2 packed = m.packed[group][lane];
            const uint32_t weights[2] = {ptx_movmatrix_trans(packed.x), ptx_movmatrix_trans(packed.y)};
            v_group<D, RPL>(m, codes, format_of<F, 1>(formats, group), group, lane, weights, constant, acc);
        }
    }

    /* After the last group of V: O takes the tile in. */
    __device__ __forceinline__ void end_tile_work()
    {
        float weight[RPL];
        if constexpr (halves) {
            end_half_sums<D, RPL>(m, lane, block_sums, half_acc);
        }
#pragma unroll
        for (int i = 0; i < RPL; ++i) { /* kept, or the compiler multiplies anew for each sum */
            weight[i] = halves ? ptx_keep(b[i] * HALF_UNITS) : b[i];
        }
#pragma unroll
        for (int n = 0; n < D / 16; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
#pragma unroll
                for (int i = 0; i < RPL; ++i) {
                    const float sum = halves ? half_acc[n][2 * e + i] : (float)value_sum<RPL>(acc, n, e, i);
                    o[n][e][i] = b[i] != 0.0f ? nbl_fma(sum, weight[i], o[n][e][i]) : o[n][e][i];
                }
            }
        }
    }

    __device__ __forceinline__ void clear_sums()
    {
#pragma unroll
        for (int i = 0; i < RPL; ++i) {
#pragma unroll
            for (int n = 0; n < D / 16; ++n) {
                acc[i][n][0] = acc[i][n][1] = acc[i][n][2] = acc[i][n][3] = 0;
                half_acc[n][0] = half_acc[n][1] = half_acc[n][2] = half_acc[n][3] = 0.0f;
            }
        }
        block_sums[0] = block_sums[1] = block_sums[2] = block_sums[3] = 0.0f;
    }

    /* Groups of a turn whose instructions the compiler mixes: a pair hides the latency of one in the other. With eight
     * rows there are registers for that only where P V takes halves. */
    static constexpr int at_once = (RPL == 1 || halves) && F::are_known ? 2 : 1;

    /* The groups of a turn of K, and of V, from the first-th on; how many they were. */
    __device__ __forceinline__ uint32_t k_turn(const uint8_t *codes, uint32_t first)
    {
        const uint32_t groups = turn_groups<D, F, 0>(formats), stride = group_stride<D>(is_wide<F, 0>(formats));
#pragma unroll at_once
        for (uint32_t i = 0; i < groups; ++i) {
            k_work(codes + i * stride, first + i);
        }
        return groups;
    }
    __device__ __forceinline__ uint32_t v_turn(const uint8_t *codes, uint32_t first)
    {
        const uint32_t groups = turn_groups<D, F, 1>(formats), stride = group_stride<D>(is_wide<F, 1>(formats));
#pragma unroll at_once
        for (uint32_t i = 0; i < groups; ++i) {
            v_work(codes + i * stride, first + i);
        }
        return groups;
    }

    /* Asks for a turn of the kind, formats being known. */
    template <uint32_t KIND> __device__ __forceinline__ void ask_known(uint32_t turn)
    {
        ask.index = KIND * GROUPS + turn * turn_groups<D, F, KIND>(0);
        ask_kind<D, RPL, F, KIND>(ask, m, ptx_shared_address(m.ring[turn % RING]), lane);
    }

    /* The walk where formats are known: a tile is k_turns of K and v_turns of V, even numbers, so that a turn's
     * place in the ring is known too. */
    __device__ __forceinline__ void run_known()
    {
        const uint32_t k_turns = GROUPS / turn_groups<D, F, 0>(0);
        const uint32_t v_turns = GROUPS / turn_groups<D, F, 1>(0);
#pragma unroll 1
        for (uint32_t tile = u.first_tile; tile < u.end_tile; ++tile) {
#pragma unroll 1
            for (uint32_t turn = 0; turn < k_turns; ++turn) {
                ptx_cp_async_wait<RING - 1>();
                __syncwarp();
                if (turn == 0) {
                    begin_tile_work(tile * CUDA_TILE_TOKENS);
                }
                k_turn(m.ring[turn % RING], turn * (GROUPS / k_turns));
                __syncwarp();
                if (k_turns > RING && turn + RING < k_turns) {
                    ask_known<0>(turn + RING);
                } else {
                    ask_known<1>(turn + RING - k_turns);
                }
                ptx_cp_async_commit();
            }
            softmax((int32_t)(tile * CUDA_TILE_TOKENS));
            clear_sums();
#pragma unroll 1
            for (uint32_t turn = 0; turn < v_turns; ++turn) {
                ptx_cp_async_wait<RING - 1>();
                __syncwarp();
                v_turn(m.ring[turn % RING], turn * (GROUPS / v_turns));
                __syncwarp();
                if (v_turns > RING && turn + RING < v_turns) {
                    ask_known<1>(turn + RING);
                } else if (tile + 1u < u.end_tile) {
                    if (turn + RING == v_turns) {
                        ask.tile = tile + 1u;
                        begin_tile<D, RPL, F>(p, m, u, lane, ask);
                    }
                    ask_known<0>(turn + RING - v_turns);
                }
                ptx_cp_async_commit();
            }
            end_tile_work();
        }
        ptx_cp_async_wait<0>();
    }

    __device__ __forceinline__ void run()
    {
        uint32_t tile = u.first_tile, index = 0, slot = 0;
#pragma unroll 1
        while (tile < u.end_tile) {
            ptx_cp_async_wait<RING - 1>();
            __syncwarp();
            if (index == 0) {
                begin_tile_work(tile * CUDA_TILE_TOKENS);
            }
            if (index < GROUPS) {
                index += k_turn(m.ring[slot], index);
                if (index == GROUPS) {
                    softmax((int32_t)(tile * CUDA_TILE_TOKENS));
                    clear_sums();
                }
            } else {
                index += v_turn(m.ring[slot], index - GROUPS);
                if (index == 2u * GROUPS) {
                    end_tile_work();
                    index = 0;
                    ++tile;
                }
            }
            __syncwarp();
            ask_turn<D, RPL, F>(p, m, u, lane, ask);
            slot = (slot + 1u) % RING;
        }
        ptx_cp_async_wait<0>();
    }
};

/* A block is a warp: what steers it is then known to be the same for all its lanes, and the hardware hands a unit to
 * whichever slot is free. */
template <int D, int RPL, uint32_t K, uint32_t V>
__global__ void __launch_bounds__(32, least_warps<D, RPL, call_formats<K, V>>())
    decode_kernel(const __grid_constant__ attend_params p)
{
    __shared__ __align__(512) memory_of<D, RPL, call_formats<K, V>> m;
    const uint32_t lane = threadIdx.x;
    unit u;
    place_unit(p, blockIdx.x, u);
    const uint32_t guessed = (p.first_chunk + u.chunk) * CUDA_CHUNK_TILES;
    const int32_t guess = guess_page(p, u.sequence, guessed, lane);
    if (!load_unit<RPL>(p, u)) {
        ptx_grid_wait(); /* the step after this one relies on it */
        return;
    }
    walker<D, RPL, call_formats<K, V>> w = {p, m, u, lane, lane / 4u, lane % 4u};
    w.constant = load_constant(m, w.halves ? HALF2_1024 : 0xf0f0f0f0u, lane);
    __syncwarp();
    w.begin(guessed, guess);
    ptx_grid_wait();
    ptx_grid_release();
    const bool is_bad = p.sequences[u.sequence].q_len == 0; /* on its way with the rows */
    w.rows = load_rows<RPL>(p, u, w.t);
    if (w.halves) {
        w.k_starts[0] = w.rows.start[0], w.k_starts[1] = w.rows.start[RPL - 1];
        w.k_starts[2] = w.k_starts[0] ^ (int32_t)ptx_constant(0),
        w.k_starts[3] = w.k_starts[1] ^ (int32_t)ptx_constant(0);
    }
    load_queries<D, RPL, K == NBL_MXFP4>(p, u, m, lane);
    w.fill_ring();
    if (is_bad) {
        ptx_cp_async_wait<0>();
        return;
    }
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
#pragma unroll
        for (int i = 0; i < RPL; ++i) {
            w.o[n][0][i] = w.o[n][1][i] = 0.0f;
        }
    }
    if constexpr (call_formats<K, V>::are_known) {
        w.run_known();
    } else {
        w.run();
    }
    write_states<D, RPL>(p, u, w.rows, w.o, w.g, w.t);
    __syncwarp();
    if (lane == 0) {
        ptx_add_release(&p.ends[u.sequence * p.kv_heads + u.kv_head], 1u);
    }
}

/* Shared memory to ask for beyond the `bytes` of a block, so that no multiprocessor has room for more than its share of
 * the blocks: those that are let in early go where there is room, not where there is least work. */
uint32_t spread_bytes(const attend_params *p, uint32_t units, uint32_t bytes)
{
    const uint32_t share = (units + p->processors - 1u) / p->processors;
    const uint32_t most = (p->shared_bytes + RESERVED_BYTES) / share;
    const uint32_t wanted = (most < DEFAULT_BYTES ? most : DEFAULT_BYTES) / SHARED_UNIT * SHARED_UNIT;
    return wanted > bytes + RESERVED_BYTES ? wanted - bytes - RESERVED_BYTES : 0u;
}

template <int D, int RPL, typename F> cudaError_t launch(const attend_params *p, cudaStream_t stream)
{
    const uint32_t units = p->batch * p->kv_heads * p->chunks;
    if (units == 0) {
        return cudaSuccess;
    }
    const uint32_t spread = spread_bytes(p, units, sizeof(memory_of<D, RPL, F>));
    return launch_after(decode_kernel<D, RPL, F::k, F::v>, dim3(units), 32u, spread, stream, p);
}

template <int D, typename F> cudaError_t launch_rows(const attend_params *p, cudaStream_t stream)
{
    return p->q_len_max * p->group_rows <= 4u ? launch<D, 1, F>(p, stream) : launch<D, 2, F>(p, stream);
}

/* Head dimension 128, where most calls are: kernels of their own for the usual formats, if all pages have them. */
cudaError_t launch_128(const attend_params *p, cudaStream_t stream)
{
    const cuda_region *r = &p->pages.regions[0];
    switch (p->pages.region_count == 1u ? r->k_format << 8 | r->v_format : 0u) {
    case NBL_INT4P << 8 | NBL_INT4P: return launch_rows<128, call_formats<NBL_INT4P, NBL_INT4P>>(p, stream);
    case NBL_MXFP4 << 8 | NBL_MXFP4: return launch_rows<128, call_formats<NBL_MXFP4, NBL_MXFP4>>(p, stream);
    case NBL_INT4P << 8 | NBL_INT8: return launch_rows<128, call_formats<NBL_INT4P, NBL_INT8>>(p, stream);
    case NBL_MXFP4 << 8 | NBL_INT8: return launch_rows<128, call_formats<NBL_MXFP4, NBL_INT8>>(p, stream);
    case NBL_INT8 << 8 | NBL_INT8: return launch_rows<128, call_formats<NBL_INT8, NBL_INT8>>(p, stream);
    default: return launch_rows<128, any_formats>(p, stream);
    }
}

int format_is_taken(uint32_t format)
{
    return format == NBL_INT8 || format == NBL_INT4P || format == NBL_MXFP4;
}

} // namespace

int nbl_cuda_decode_supports(const attend_params *p)
{
    const int dims = p->k_dim == p->v_dim && (p->k_dim == 64u || p->k_dim == 128u || p->k_dim == 256u);
    if (!dims || !p->split || p->pages.page_tokens % GROUP != 0 || p->q_len_max * p->group_rows > 8u ||
        (uint64_t)p->batch * p->kv_heads * p->chunks > INT32_MAX) {
        return 0;
    }
    for (uint32_t i = 0; i < p->pages.region_count; ++i) {
        const cuda_region *r = &p->pages.regions[i];
        if (!format_is_taken(r->k_format) || !format_is_taken(r->v_format)) {
            return 0;
        }
    }
    return p->cap == 0.0f && p->alibi_slopes == NULL && p->tree_mask == NULL;
}

cudaError_t nbl_cuda_attend_decode(const attend_params *p, cudaStream_t stream)
{
    switch (p->k_dim) {
    case 64: return launch_rows<64, any_formats>(p, stream);
    case 128: return launch_128(p, stream);
    default: return launch_rows<256, any_formats>(p, stream);
    }
}
