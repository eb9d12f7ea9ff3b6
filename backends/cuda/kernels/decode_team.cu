/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file decode_team.cu
 * @brief attend for few query rows over caches of middling length: a block per (sequence, kv head, chunk), a warp per
 * tile of it.
 *
 * decode.cu gives a chunk to one warp, which goes from tile to tile; where there are few chunks, that is eight times
 * the latency of a tile. Here the eight tiles of a chunk are worked on at once. What NUM 5.4 hands from tile to tile is
 * the base B and the sums L and O; A and l of a tile are exact, or depend on B alone. So:
 *
 *     Q K          a warp for its tile; the largest z of every row
 *     - barrier -
 *     softmax      B is that of the chunk's first tile, unless a tile may move it: then one after the other
 *     P V          a warp for its tile; A to shared memory, where its codes were
 *     - barrier -
 *     O, L         a thread for an element, tile by tile
 *
 * Why the bits are the same: docs/adr/0029-tiles-of-a-chunk-at-once.md.
 *
 * Lengths, page table and pages are read before prepare has ended: it lets this kernel begin when all before it has
 * ended.
 */
#include "../tile/decode_keys.cuh"
#include "../tile/decode_load.cuh"
#include "../tile/decode_scales.cuh"
#include "../tile/decode_shape.cuh"
#include "../tile/decode_softmax.cuh"
#include "../tile/decode_unit.cuh"
#include "../tile/decode_values.cuh"
#include "../tile/launch.cuh"

namespace
{

constexpr uint32_t TILES = CUDA_CHUNK_TILES;
constexpr uint32_t TEAM_THREADS = 32u * TILES;
constexpr uint32_t CHUNKS_PER_PROCESSOR = 3; /* from there on one warp a chunk is faster */

/* What a row is in a tile. */
struct tile_row {
    float b; /* 0 if the tile adds nothing */
    float sum;
    float base; /* once the tile is in; -inf before the first one that takes part */
    float rescale;
};

template <int D, int RPL> struct alignas(128) tile_memory : warp_memory<D, RPL> {
    static constexpr uint32_t rows = 4u * RPL;
    static constexpr uint32_t stride = D + 16; /* from row to row of sums: for the banks */
    static_assert(sizeof(warp_memory<D, RPL>::ring) >= sizeof(float) * rows * stride, "A takes the place of codes");
    __device__ __forceinline__ float *sums(uint32_t row)
    {
        return reinterpret_cast<float *>(&this->ring[0][0]) + row * stride;
    }
};

template <int D, int RPL> struct team_memory {
    tile_memory<D, RPL> tile[TILES];
    float most[TILES][4 * RPL]; /* largest z */
    tile_row row[TILES][4 * RPL];
};

/* A warp and its tile. */
template <int D, int RPL> struct worker {
    const attend_params &p;
    team_memory<D, RPL> &team;
    tile_memory<D, RPL> &m;
    unit u; /* of the one tile */
    uint32_t warp, lane, g, t;
    asker<plain_copies> ask;
    lane_rows<RPL> rows;

    __device__ __forceinline__ bool has_tile() const { return u.first_tile < u.end_tile; }

    __device__ __forceinline__ uint32_t visible(int i) const
    {
        return visible_bits(rows.first[i], rows.end[i], (int32_t)(u.first_tile * CUDA_TILE_TOKENS), g);
    }

    __device__ __forceinline__ const float *grid() const { return &m.v_grid[2u * g]; }

    __device__ __forceinline__ void ask_next() { ask_turn<D, RPL, any_formats>(p, m, u, lane, ask); }

    /* Asks for the first turns, if there is anything to ask for. */
    __device__ __forceinline__ void begin(int32_t page)
    {
        begin_walk(p, u, u.first_tile, page, lane, ask);
        if (ask.tile >= u.end_tile) {
            return;
        }
        ask.to[0] = place_of<128u>(lane);
        ask.to[1] = place_of<2u * D>(lane);
#pragma unroll 1
        for (uint32_t i = 0; i < RING; ++i) {
            ask_next();
        }
    }

    /* One group of K: logits but for the row's scale. */
    __device__ __forceinline__ void k_work(const uint8_t *codes, uint32_t group)
    {
        const int32_t start[4] = {rows.start[0], rows.start[RPL - 1], rows.start[0], rows.start[RPL - 1]};
        store_logits<D, RPL>(m, codes, format_of<any_formats, 0>(ask.formats, group), group, lane, start);
    }

    /* Q K of the tile, and the largest z of its rows. `slot` is the turn in the ring. */
    __device__ __forceinline__ void take_keys(uint32_t &slot)
    {
        const uint32_t stride = group_stride<D>(is_wide<any_formats, 0>(ask.formats));
        const uint32_t groups = turn_groups<D, any_formats, 0>(ask.formats);
#pragma unroll 1
        for (uint32_t group = 0; group < GROUPS; group += groups) {
            ptx_cp_async_wait<RING - 1>();
            __syncwarp();
            if (group == 0) {
                const uint32_t of = lane / 8u;
                prepare_scales<D, RPL>(m, format_of<any_formats, 0>(ask.formats, of),
                                       format_of<any_formats, 1>(ask.formats, of),
                                       (int32_t)(u.kv_len - u.first_tile * CUDA_TILE_TOKENS - 4u * lane), lane);
            }
#pragma unroll 1
            for (uint32_t i = 0; i < groups; ++i) {
                k_work(m.ring[slot] + i * stride, group + i);
            }
            __syncwarp();
            ask_next();
            slot = (slot + 1u) % RING;
        }
#pragma unroll
        for (int i = 0; i < RPL; ++i) {
            float x[LANE_TOKENS];
            read_logits(m.x[i], lane, x);
            const float most = largest_logit(x, grid(), rows.scale[i], visible(i));
            if (g == 0) {
                team.most[warp][lane_row<RPL>(t, i)] = most;
            }
        }
    }

    /* Base of the row before its tile and with it, if no tile of the chunk can move it; false if one may. The first one
     * does where its logits are beyond the limit (NUM 5.9): their t is then too large, and cut. */
    __device__ __forceinline__ bool find_base(int i, float &before, float &base) const
    {
        float first = -INFINITY;
        bool may_move = false;
        before = base = -INFINITY;
#pragma unroll
        for (uint32_t k = 0; k < TILES; ++k) {
            const float z = team.most[k][lane_row<RPL>(t, i)];
            before = k == warp ? first : before;
            first = first == -INFINITY && z > -INFINITY ? base_from(z) : first;
            may_move = may_move || (first > -INFINITY && z >= first + NBL_REBASE);
            base = k == warp ? first : base;
        }
        return !may_move;
    }

    /* t of a row's tokens and the largest of them; `base` is that before the tile and becomes that with it. */
    __device__ __forceinline__ float move_base(int i, const float (&x)[LANE_TOKENS], float &base,
                                               float (&z)[LANE_TOKENS])
    {
        const float logit = team.most[warp][lane_row<RPL>(t, i)];
        base = base == -INFINITY && logit > -INFINITY ? base_from(logit) : base;
        float most = grid_logits(x, grid(), rows.scale[i], base > -INFINITY ? base : 0.0f, visible(i), z);
        const bool moves = most > NBL_GRID + NBL_REBASE;
        base = moves ? fmaxf(base, base_from(logit)) : base;
        most = grid_logits(x, grid(), rows.scale[i], base > -INFINITY ? base : 0.0f, visible(i), z);
#pragma unroll
        for (int n = 0; n < LANE_TOKENS; ++n) {
            z[n] = moves ? fminf(z[n], NBL_GRID + NBL_REBASE) : z[n];
        }
        return moves ? fminf(most, NBL_GRID + NBL_REBASE) : most;
    }

    /* Weights of a row, as bytes 0 and 2 of the pairs, and what the tile is to it. */
    __device__ __forceinline__ void weigh_row(int i, const float (&z)[LANE_TOKENS], float most, float before,
                                              float base, uint32_t (&pairs)[LANE_TOKENS / 2])
    {
        float even = 0.0f, odd = 0.0f;
#pragma unroll
        for (int n = 0; n < LANE_TOKENS; n += 2) {
            pairs[n / 2] = weigh(z[n], z[n + 1], most, read_grid(grid(), n), even, odd);
        }
        const float sum = column_tree(even, odd);
        if (g == 0) {
            tile_row &row = team.row[warp][lane_row<RPL>(t, i)];
            row.b = most - NBL_GRID >= NBL_WEIGHT_MIN ? nbl_grid_base(most - NBL_GRID) : 0.0f;
            row.sum = sum;
            row.base = base;
            row.rescale = before > -INFINITY ? nbl_pow2f(before - base) : 1.0f;
        }
    }

    /* Softmax of the tile. Where a base may move, the tiles take it in turn; all warps find alike whether it may. */
    __device__ __forceinline__ void softmax()
    {
        uint32_t packed[LANE_TOKENS / 2] = {};
#pragma unroll
        for (int i = 0; i < RPL; ++i) {
            float x[LANE_TOKENS], z[LANE_TOKENS], before, base, most = -INFINITY;
            uint32_t pairs[LANE_TOKENS / 2];
            read_logits(m.x[i], lane, x);
            const bool is_fixed = find_base(i, before, base);
            if (__all_sync(0xffffffffu, is_fixed)) {
                most = grid_logits(x, grid(), rows.scale[i], base > -INFINITY ? base : 0.0f, visible(i), z);
            } else {
#pragma unroll 1
                for (uint32_t k = 0; k < TILES; ++k) {
                    if (k == warp) {
                        before = k > 0 ? team.row[k - 1u][lane_row<RPL>(t, i)].base : -INFINITY;
                        base = before;
                        most = has_tile() ? move_base(i, x, base, z) : -INFINITY;
                        if (g == 0) {
                            team.row[k][lane_row<RPL>(t, i)].base = base;
                        }
                    }
                    __syncthreads();
                }
            }
            weigh_row(i, z, most, before, base, pairs);
#pragma unroll
            for (int n = 0; n < LANE_TOKENS / 2; ++n) {
                packed[n] = i == 0 ? pairs[n] : ptx_prmt(packed[n], pairs[n], 0x5410u);
            }
        }
        __syncwarp(); /* the factors of K make room for P */
#pragma unroll
        for (uint32_t group = 0; group < GROUPS; ++group) {
            m.packed[group][lane] = make_uint2(packed[2 * group], packed[2 * group + 1]);
        }
    }

    /* A of the tile to shared memory. */
    __device__ __forceinline__ void take_values(uint32_t slot)
    {
        int32_t acc[RPL][D / 16][4] = {};
        const uint32_t stride = group_stride<D>(is_wide<any_formats, 1>(ask.formats));
        const uint32_t groups = turn_groups<D, any_formats, 1>(ask.formats);
#pragma unroll 1
        for (uint32_t first = 0; first < GROUPS; first += groups) {
            ptx_cp_async_wait<RING - 1>();
            __syncwarp();
#pragma unroll 1
            for (uint32_t i = 0; i < groups; ++i) {
                const uint32_t group = first + i;
                const uint2 packed = m.packed[group][lane];
                const uint32_t weights[2] = {ptx_movmatrix_trans(packed.x), ptx_movmatrix_trans(packed.y)};
                v_group<D, RPL>(m, m.ring[slot] + i * stride, format_of<any_formats, 1>(ask.formats, group), group,
                                lane, weights, 0xf0f0f0f0u, acc);
            }
            __syncwarp();
            ask_next();
            slot = (slot + 1u) % RING;
        }
        ptx_cp_async_wait<0>();
        __syncwarp();
        store_sums(acc);
    }

    __device__ __forceinline__ void store_sums(const int32_t (&acc)[RPL][D / 16][4])
    {
#pragma unroll
        for (int i = 0; i < RPL; ++i) {
            float *sums = m.sums(lane_row<RPL>(t, i));
#pragma unroll
            for (int n = 0; n < D / 16; ++n) {
                float a[2];
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    a[e] = (float)value_sum<RPL>(acc, n, e, i);
                }
                *reinterpret_cast<float2 *>(sums + 16 * n + 2 * g) = make_float2(a[0], a[1]);
            }
        }
    }
};

/* The chunk's states (NUM 5.4, 5.6), of tiles first to end - 1: a thread for an element of O. */
template <int D, int RPL>
PTX_FN void write_states(const attend_params &p, const unit &u, team_memory<D, RPL> &team, uint32_t first, uint32_t end)
{
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < u.rows * D; i += TEAM_THREADS) {
        const uint32_t r = i / D, d = i % D;
        float base = -INFINITY, sum = 0.0f, o = 0.0f;
#pragma unroll 1
        for (uint32_t k = first; k < end; ++k) {
            const tile_row row = team.row[k][r];
            const float a = team.tile[k].sums(r)[d];
            base = row.base;
            sum *= row.rescale;
            o *= row.rescale;
            sum = row.b != 0.0f ? nbl_fma(row.sum, row.b, sum) : sum;
            o = row.b != 0.0f ? nbl_fma(a, row.b, o) : o;
        }
        const uint64_t index = row_index<RPL>(p, u, r);
        float *state = p.states + (index * p.chunks + u.chunk) * p.state_floats;
        const bool is_empty = sum == 0.0f;
        state[CUDA_STATE_HEAD_FLOATS + d] = is_empty ? 0.0f : o;
        if (d == 0) {
            *reinterpret_cast<float4 *>(state) =
                make_float4(is_empty ? -INFINITY : base, sum, p.queries[index].offset, 0.0f);
        }
    }
}

/* The part of a unit that is one tile, perhaps nothing. */
PTX_FN unit unit_of_tile(const unit &u, uint32_t tile)
{
    unit one = u;
    one.first_tile = tile;
    one.end_tile = tile >= u.first_tile && tile < u.end_tile ? tile + 1u : tile;
    return one;
}

template <int D, int RPL>
__global__ void __launch_bounds__(TEAM_THREADS, RPL == 1 && D <= 128 ? 2 : 1)
    team_kernel(const __grid_constant__ attend_params p)
{
    extern __shared__ __align__(128) uint4 dynamic[];
    team_memory<D, RPL> &team = *(team_memory<D, RPL> *)(void *)dynamic;
    const uint32_t lane = threadIdx.x % 32u, warp = threadIdx.x / 32u;
    unit u;
    place_unit(p, blockIdx.x, u);
    const uint32_t tile = (p.first_chunk + u.chunk) * TILES + warp;
    const int32_t page = guess_page(p, u.sequence, tile, lane);
    if (!load_unit<RPL>(p, u)) {
        ptx_grid_wait(); /* the step after this one relies on it */
        return;
    }
    tile_memory<D, RPL> &m = team.tile[warp];
    worker<D, RPL> w = {p, team, m, unit_of_tile(u, tile), warp, lane, lane / 4u, lane % 4u};
    w.begin(page);
    ptx_grid_wait();
    if (p.sequences[u.sequence].q_len == 0) {
        ptx_cp_async_wait<0>();
        return;
    }
    uint32_t slot = 0;
    if (w.has_tile()) {
        load_queries<D, RPL>(p, u, m, lane);
        w.rows = load_rows<RPL>(p, u, w.t);
        w.take_keys(slot);
    } else if (lane < 4u * RPL) {
        team.most[warp][lane] = -INFINITY;
    }
    __syncthreads();
    w.softmax();
    if (w.has_tile()) {
        w.take_values(slot);
    }
    __syncthreads();
    write_states(p, u, team, u.first_tile % TILES, u.first_tile % TILES + u.end_tile - u.first_tile);
}

template <int D, int RPL> cudaError_t launch(const attend_params *p, cudaStream_t stream)
{
    return launch_after(team_kernel<D, RPL>, dim3(p->batch * p->kv_heads * p->chunks), TEAM_THREADS,
                        sizeof(team_memory<D, RPL>), stream, p);
}

template <int D, int RPL> cudaError_t allow_shared(uint32_t most)
{
    constexpr uint32_t bytes = sizeof(team_memory<D, RPL>);
    return bytes <= most
               ? cudaFuncSetAttribute(team_kernel<D, RPL>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes)
               : cudaSuccess;
}

} // namespace

extern "C" cudaError_t nbl_cuda_team_open(uint32_t shared_bytes)
{
    return for_decode_shapes([=](auto shape) { return allow_shared<shape.dim, shape.rows>(shared_bytes); });
}

extern "C" int nbl_cuda_team_supports(const attend_params *p)
{
    const uint64_t units = (uint64_t)p->batch * p->kv_heads * p->chunks;
    if (units == 0 || units > CHUNKS_PER_PROCESSOR * (uint64_t)p->processors || !nbl_cuda_decode_supports(p)) {
        return 0;
    }
    return with_decode_shape(p, [=](auto shape) { return sizeof(team_memory<shape.dim, shape.rows>); }) <=
           p->shared_bytes;
}

extern "C" cudaError_t nbl_cuda_attend_team(const attend_params *p, cudaStream_t stream)
{
    return with_decode_shape(p, [=](auto shape) { return launch<shape.dim, shape.rows>(p, stream); });
}
