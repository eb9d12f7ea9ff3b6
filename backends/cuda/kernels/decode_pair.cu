/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file decode_pair.cu
 * @brief attend for five to eight query rows a kv head over a long cache: two warps per (sequence, kv head, chunk).
 *
 * What decode.cu does, for head dimension 128 and pages of one pair of formats. A warp by itself would need the sums of
 * eight rows, 168 registers, so that a multiprocessor has room for twelve; here a block of two warps shares a tile, and
 * sixteen warps of 128 registers fit:
 *
 *     scales     K's by warp 0, V's by warp 1
 *     Q K        a warp for half of the tile's tokens, all rows; logits to shared memory
 *     softmax    a warp for four rows; P to shared memory
 *     P V        a warp for half of the elements, all rows and tokens
 *
 * Each warp asks for the codes that it works on itself, so that only scales, logits and P need barriers: four a tile.
 */
#include "../tile/decode_keys.cuh"
#include "../tile/decode_load.cuh"
#include "../tile/decode_pair.cuh"
#include "../tile/decode_scales.cuh"
#include "../tile/decode_softmax.cuh"
#include "../tile/decode_unit.cuh"
#include "../tile/decode_values.cuh"
#include "../tile/launch.cuh"

namespace
{

constexpr int D = 128;
constexpr uint32_t WARPS = 2;
constexpr uint32_t ROWS = 8;
constexpr uint32_t WARP_ROWS = ROWS / WARPS;
constexpr uint32_t WARP_GROUPS = GROUPS / WARPS; /* of K */
constexpr uint32_t HALF = D / WARPS;             /* elements of V */
constexpr uint32_t X_STRIDE = 8u * GROUPS + 1u;  /* vectors of a row of logits; the odd one is for the banks */
constexpr uint32_t P_STRIDE = CUDA_TILE_TOKENS + 16u;
constexpr uint32_t BLOCKS = 8; /* of a multiprocessor */

/* Of a tile and a row: what O takes the tile in with. */
struct row_step {
    float b;
    float rescale;
};

struct pair_memory {
    uint8_t ring[WARPS][RING][TURN_BYTES(D)];
    uint8_t raw[2][SCALE_PLANES(D)][CUDA_TILE_TOKENS]; /* scale planes of K and V as stored */
    float4 x[ROWS][X_STRIDE];                          /* float(I) * 2^ek: [row][8 * group + g] */
    union {
        uint32_t k_factor[FACTOR_WORDS(D)][K_FACTOR_WORDS];
        uint8_t weight[ROWS][P_STRIDE]; /* then: P */
    };
    uint32_t v_factor[FACTOR_WORDS(D)][2][CUDA_TILE_TOKENS];
    float v_grid[CUDA_TILE_TOKENS];
    uint8_t k_exponent[CUDA_TILE_TOKENS];
    uint2 q[D / 32][4u * ROWS];
    alignas(16) row_step step[ROWS];
};

/* A warp's half of a group of V: rows of token quads, of which the other warp has the other part. `from`: the group. */
template <uint32_t ROW_BYTES> PTX_FN void ask_half(uint32_t to, uint64_t from, uint32_t warp, uint32_t lane)
{
    constexpr uint32_t chunks = ROW_BYTES / 16u, rows = 32u / chunks; /* that the warp copies at once */
    const uint32_t at = to + place_of<ROW_BYTES>(lane);
    from += (lane / chunks) * (WARPS * ROW_BYTES) + warp * ROW_BYTES + lane % chunks * 16u;
#pragma unroll
    for (uint32_t k = 0; k < GROUP / 4u / rows; ++k) {
        ptx_cp_async_16((at ^ turn_of<ROW_BYTES>(k)) + k * 512u,
                        (const void *)(from + k * rows * (WARPS * ROW_BYTES)));
    }
}

/* The walk of a warp over the unit of its block. */
template <typename F> struct walker {
    static constexpr bool k_wide = F::k == NBL_INT8, v_wide = F::v == NBL_INT8;
    static constexpr uint32_t k_turns = k_wide ? 2u : 1u, v_turns = v_wide ? 2u : 1u;
    static constexpr uint32_t k_groups = WARP_GROUPS / k_turns, v_groups = GROUPS / v_turns; /* in a turn */
    static constexpr uint32_t k_bytes = GROUP * D / (k_wide ? 1u : 2u);                      /* of a group */
    static constexpr uint32_t v_bytes = GROUP * HALF / (v_wide ? 1u : 2u);
    static_assert(k_groups * k_bytes <= TURN_BYTES(D) && v_groups * v_bytes <= TURN_BYTES(D), "a turn fits");

    const attend_params &p;
    pair_memory &m;
    const unit &u;
    uint32_t warp, lane, g, t;
    uint32_t high_nibbles;
    asker ask;
    int32_t bias[2];   /* of rows 2t and 2t + 1 */
    lane_rows<1> rows; /* row 4 * warp + t */
    float o[HALF / 16][2][2];
    int32_t acc[2][HALF / 16][4];

    /* Asks for the next turn, if there is one, and closes the group of copies. */
    __device__ __forceinline__ void ask_turn()
    {
        if (ask.tile < u.end_tile) {
            if (ask.index == 0) {
                begin_tile<D, F>(p, m, u, lane, 1u << warp, ask);
            }
            const uint32_t to = ptx_shared_address(m.ring[warp][ask.slot]);
            if (ask.index < k_turns) {
                ask_keys(to, warp * WARP_GROUPS + ask.index * k_groups);
            } else {
                ask_values(to, GROUPS + (ask.index - k_turns) * v_groups);
            }
            if (++ask.index == k_turns + v_turns) {
                ask.index = 0;
                ask.tile++;
            }
        }
        ask.slot = (ask.slot + 1u) % RING;
        ptx_cp_async_commit();
    }

    __device__ __forceinline__ void ask_keys(uint32_t to, uint32_t first)
    {
#pragma unroll
        for (uint32_t i = 0; i < k_groups; ++i) {
            const uint64_t from = codes_of(ask, first + i, lane);
            if (k_wide) {
                ask_int8<D, 128u>(to + i * k_bytes, from, lane);
            } else {
                ask_4bit<D>(ask, false, to + i * k_bytes, from);
            }
        }
    }

    __device__ __forceinline__ void ask_values(uint32_t to, uint32_t first)
    {
#pragma unroll
        for (uint32_t i = 0; i < v_groups; ++i) {
            const uint64_t from = __shfl_sync(0xffffffffu, ask.codes, first + i);
            ask_half<v_bytes / 8u>(to + i * v_bytes, from, warp, lane);
        }
    }

    /* Asks for the first turns. */
    __device__ __forceinline__ void begin()
    {
        if (!begin_walk(p, u, lane, ask)) {
            return; /* prepare finds it too, and takes the sequence out */
        }
        ask.to[0] = place_of<128u>(lane);
#pragma unroll 1
        for (uint32_t i = 0; i < RING; ++i) {
            ask_turn();
        }
    }

    /* The rows, after prepare. */
    __device__ __forceinline__ void load_rows_and_queries()
    {
        const bool has_row = g < u.rows;
        const int8_t *codes = p.codes + (has_row ? row_index(p, u, g) : 0) * p.k_dim_padded + 8u * t;
#pragma unroll
        for (uint32_t i = 0; i < D / 32u / WARPS; ++i) {
            const uint32_t s = warp * (D / 32u / WARPS) + i;
            const uint2 q = *reinterpret_cast<const uint2 *>(codes + 32u * s);
            m.q[s][query_place<2>(g, t)] = has_row ? q : make_uint2(0, 0);
        }
#pragma unroll
        for (uint32_t i = 0; i < 2u; ++i) {
            bias[i] = 2u * t + i < u.rows ? p.queries[row_index(p, u, 2u * t + i)].bias : 0;
        }
        rows = load_rows<1>(p, u, WARP_ROWS * warp + t);
#pragma unroll
        for (uint32_t n = 0; n < HALF / 16u; ++n) {
            o[n][0][0] = o[n][0][1] = o[n][1][0] = o[n][1][1] = 0.0f;
        }
    }

    /* Scales of a tile, which have landed with the warp's first turn. */
    __device__ __forceinline__ void tile_scales(uint32_t start)
    {
        const int32_t tokens = (int32_t)(u.kv_len - start - 4u * lane);
        token_scales<D> s = {};
        __syncthreads(); /* the tile before is done with */
        if (warp == 0) {
            read_scales<D>(m.raw[0], F::k, tokens, lane, s);
            store_k_scales<D>(m, lane, F::k, s);
        } else {
            read_scales<D>(m.raw[1], F::v, tokens, lane, s);
            store_v_scales<D>(m, lane, F::v, s);
        }
        __syncthreads();
    }

    /* One group of K: logits but for the row's scale. */
    __device__ __forceinline__ void k_work(const uint8_t *codes, uint32_t group)
    {
        int32_t s[2][4];
        k_group<D, 2>(m, codes, F::k, group, lane, bias, s);
        const float2 low = read_k_scales(&m.k_exponent[group * GROUP], g);
        const float2 high = read_k_scales(&m.k_exponent[group * GROUP + 16u], g);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            m.x[2u * t + i][8u * group + g] = make_float4((float)s[0][i] * low.x, (float)s[0][2 + i] * low.y,
                                                          (float)s[1][i] * high.x, (float)s[1][2 + i] * high.y);
        }
    }

    /* The warp's rows, all tokens. */
    __device__ __forceinline__ void softmax(int32_t start)
    {
        const uint32_t row = WARP_ROWS * warp + t;
        float x[LANE_TOKENS], rescale;
        uint32_t pairs[LANE_TOKENS / 2];
        bool has_base = rows.has_base != 0;
#pragma unroll
        for (uint32_t group = 0; group < GROUPS; ++group) {
            const float4 four = m.x[row][8u * group + g];
            x[4 * group] = four.x, x[4 * group + 1] = four.y, x[4 * group + 2] = four.z, x[4 * group + 3] = four.w;
        }
        const float b =
            column_softmax(x, &m.v_grid[2u * g], rows.scale[0], visible_bits(rows.first[0], rows.end[0], start, g),
                           rows.base[0], rows.sum[0], has_base, rescale, pairs);
        rows.has_base = has_base;
#pragma unroll
        for (uint32_t n = 0; n < LANE_TOKENS / 2u; ++n) {
            *reinterpret_cast<uint16_t *>(&m.weight[row][16u * n + 2u * g]) = (uint16_t)pairs[n];
        }
        if (g == 0) {
            m.step[row] = {b, rescale};
        }
    }

    /* Steps of rows 2t and 2t + 1: {b, rescale} each. */
    __device__ __forceinline__ float4 steps() const
    {
        return *reinterpret_cast<const float4 *>(&m.step[2u * t]);
    }

    /* Before the first group of V. */
    __device__ __forceinline__ void begin_values()
    {
        const float4 step = steps();
        if (__any_sync(0xffffffffu, step.y != 1.0f || step.w != 1.0f)) {
#pragma unroll
            for (uint32_t n = 0; n < HALF / 16u; ++n) {
                o[n][0][0] *= step.y, o[n][1][0] *= step.y;
                o[n][0][1] *= step.w, o[n][1][1] *= step.w;
            }
        }
#pragma unroll
        for (uint32_t n = 0; n < HALF / 16u; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                acc[0][n][e] = acc[1][n][e] = 0;
            }
        }
    }

    /* One group of V. */
    __device__ __forceinline__ void v_work(const uint8_t *codes, uint32_t group)
    {
        const uint8_t *at = &m.weight[g][group * GROUP + 4u * t];
        const uint32_t weights[2] = {*reinterpret_cast<const uint32_t *>(at),
                                     *reinterpret_cast<const uint32_t *>(at + 16)};
        v_group_part<D, 2, (int)WARPS>(m, codes, F::v, group, lane, warp, weights, high_nibbles, acc);
    }

    /* After the last group of V: O takes the tile in. */
    __device__ __forceinline__ void end_values()
    {
        const float4 step = steps();
        const float b[2] = {step.x, step.z};
#pragma unroll
        for (uint32_t n = 0; n < HALF / 16u; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const float sum = (float)((acc[0][n][2 * e + i] >> 4) + acc[1][n][2 * e + i]);
                    o[n][e][i] = b[i] != 0.0f ? nbl_fma(sum, b[i], o[n][e][i]) : o[n][e][i];
                }
            }
        }
    }

    /* The next turn of those asked for: has it landed, where is it. */
    __device__ __forceinline__ const uint8_t *next_turn(uint32_t &slot)
    {
        ptx_cp_async_wait<RING - 1>();
        __syncwarp();
        const uint8_t *codes = m.ring[warp][slot];
        slot = (slot + 1u) % RING;
        return codes;
    }

    __device__ __forceinline__ void end_turn()
    {
        __syncwarp();
        ask_turn();
    }

    __device__ __forceinline__ void run()
    {
        uint32_t slot = 0;
#pragma unroll 1
        for (uint32_t tile = u.first_tile; tile < u.end_tile; ++tile) {
#pragma unroll 1
            for (uint32_t turn = 0; turn < k_turns; ++turn) {
                const uint8_t *codes = next_turn(slot);
                if (turn == 0) {
                    tile_scales(tile * CUDA_TILE_TOKENS);
                }
#pragma unroll 1
                for (uint32_t i = 0; i < k_groups; ++i) {
                    k_work(codes + i * k_bytes, warp * WARP_GROUPS + turn * k_groups + i);
                }
                end_turn();
            }
            __syncthreads();
            softmax((int32_t)(tile * CUDA_TILE_TOKENS));
            __syncthreads();
            begin_values();
#pragma unroll 1
            for (uint32_t turn = 0; turn < v_turns; ++turn) {
                const uint8_t *codes = next_turn(slot);
#pragma unroll 1
                for (uint32_t i = 0; i < v_groups; ++i) {
                    v_work(codes + i * v_bytes, turn * v_groups + i);
                }
                end_turn();
            }
            end_values();
        }
        ptx_cp_async_wait<0>();
    }

    __device__ __forceinline__ float *state_of(uint64_t row) const
    {
        return p.states + (row * p.chunks + u.chunk) * p.state_floats;
    }

    /* Heads by the warps that have the rows, O by those that have the elements. */
    __device__ __forceinline__ void write_states()
    {
        const uint32_t mine = WARP_ROWS * warp + t;
        const bool empty = rows.has_base == 0 || rows.sum[0] == 0.0f;
        __syncthreads();
        if (g == 0) {
            m.step[mine] = {empty ? 1.0f : 0.0f, 0.0f};
            if (mine < u.rows) {
                const uint64_t row = row_index(p, u, mine);
                *reinterpret_cast<float4 *>(state_of(row)) =
                    make_float4(empty ? -INFINITY : rows.base[0], empty ? 0.0f : rows.sum[0], p.queries[row].offset, 0);
            }
        }
        __syncthreads();
        const float4 step = steps();
#pragma unroll
        for (uint32_t i = 0; i < 2u; ++i) {
            if (2u * t + i >= u.rows) {
                continue;
            }
            const bool is_empty = (i == 0 ? step.x : step.z) != 0.0f;
            float *to = state_of(row_index(p, u, 2u * t + i)) + CUDA_STATE_HEAD_FLOATS + warp * HALF;
#pragma unroll
            for (uint32_t n = 0; n < HALF / 16u; ++n) {
                *reinterpret_cast<float2 *>(to + 16u * n + 2u * g) =
                    make_float2(is_empty ? 0.0f : o[n][0][i], is_empty ? 0.0f : o[n][1][i]);
            }
        }
    }
};

template <typename F>
__global__ void __launch_bounds__(32 * WARPS, BLOCKS) decode_pair_kernel(const __grid_constant__ attend_params p)
{
    __shared__ __align__(128) pair_memory m;
    const uint32_t lane = threadIdx.x % 32u, warp = threadIdx.x / 32u;
    unit u;
    if (!load_unit(p, blockIdx.x, u)) {
        ptx_grid_wait(); /* the step after this one relies on it */
        return;
    }
    walker<F> w = {p, m, u, warp, lane, lane / 4u, lane % 4u};
    w.high_nibbles = ptx_constant(0xf0f0f0f0u);
    w.begin();
    ptx_grid_wait();
    ptx_grid_release();
    if (p.sequences[u.sequence].q_len == 0) {
        ptx_cp_async_wait<0>();
        return;
    }
    w.load_rows_and_queries();
    w.run();
    w.write_states();
}

} // namespace

template <uint32_t K, uint32_t V> cudaError_t cuda_attend_decode_pair(const attend_params *p, cudaStream_t stream)
{
    const uint32_t units = p->batch * p->kv_heads * p->chunks;
    return units == 0
               ? cudaSuccess
               : launch_after(decode_pair_kernel<call_formats<K, V>>, dim3(units), 32u * WARPS, 0, stream, p);
}

template cudaError_t cuda_attend_decode_pair<NBL_INT4P, NBL_INT4P>(const attend_params *, cudaStream_t);
template cudaError_t cuda_attend_decode_pair<NBL_MXFP4, NBL_MXFP4>(const attend_params *, cudaStream_t);
template cudaError_t cuda_attend_decode_pair<NBL_INT4P, NBL_INT8>(const attend_params *, cudaStream_t);
template cudaError_t cuda_attend_decode_pair<NBL_MXFP4, NBL_INT8>(const attend_params *, cudaStream_t);
template cudaError_t cuda_attend_decode_pair<NBL_INT8, NBL_INT8>(const attend_params *, cudaStream_t);
