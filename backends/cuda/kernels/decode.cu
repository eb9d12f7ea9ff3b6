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
 *     softmax                   280    decode_softmax.cuh   a row; up to eight rows double it
 *     loading, page walk        250    decode_load.cuh
 *     scales                    120    decode_scales.cuh    once per tile, a lane for four tokens
 *     O                          70
 *     steering                  170
 *
 * The loops over groups are not unrolled: the code would not fit the instruction cache. What a lane hands from one
 * phase to the next goes through its own place in shared memory.
 *
 * A query row sits in column 2q of the products when there are up to four (RPL 1), in column q when there are up to
 * eight (RPL 2).
 */
#include "../tile/decode_keys.cuh"
#include "../tile/decode_load.cuh"
#include "../tile/decode_scales.cuh"
#include "../tile/decode_softmax.cuh"
#include "../tile/decode_values.cuh"
#include "../tile/launch.cuh"

namespace
{

template <int D, int RPL> struct shape {
    /* of a multiprocessor; more would leave too few registers */
    static constexpr int warps = RPL == 1 ? (D <= 128 ? 16 : 8) : (D == 128 ? 12 : 8);
};

/* ---------------------------------------------------------------------------------------------- rows and states */

PTX_FN int32_t clamp_position(int64_t x)
{
    return (int32_t)(x < 0 ? 0 : x > NBL_KV_TOKENS_MAX ? (int64_t)NBL_KV_TOKENS_MAX : x);
}

/* Row r of the unit: query token r / group_rows of its sequence. */
PTX_FN uint64_t row_index(const attend_params &p, const unit &u, uint32_t r)
{
    uint32_t token = (uint32_t)p.sequences[u.sequence].q_first + r / p.group_rows;
    return (uint64_t)token * p.q_heads + u.kv_head * p.group_rows + r % p.group_rows;
}

/* Visible positions of a row (NUM 5.2). */
PTX_FN void row_range(const attend_params &p, const unit &u, uint32_t r, int32_t &first, int32_t &end)
{
    int64_t position = (int64_t)u.kv_len - p.sequences[u.sequence].q_len + r / p.group_rows;
    int64_t a = p.range_begin;
    int64_t e = u.kv_len < p.range_end ? u.kv_len : p.range_end;
    if (p.flags & NBL_ATTEND_CAUSAL) {
        e = min(e, position + 1);
    }
    if (p.flags & NBL_ATTEND_WINDOW_RIGHT) {
        e = min(e, position + (int64_t)p.window_right + 1);
    }
    if (p.flags & NBL_ATTEND_WINDOW_LEFT) {
        a = max(a, position - (int64_t)p.window_left);
    }
    first = clamp_position(a);
    end = clamp_position(e);
}

template <int RPL> PTX_FN lane_rows<RPL> load_rows(const attend_params &p, const unit &u, uint32_t t)
{
    lane_rows<RPL> rows;
    rows.has_base = 0;
#pragma unroll
    for (int i = 0; i < RPL; ++i) {
        uint32_t r = RPL == 1 ? t : 2u * t + i;
        rows.scale[i] = 0.0f;
        rows.bias[i] = 0;
        rows.first[i] = rows.end[i] = 0;
        rows.base[i] = rows.sum[i] = 0.0f;
        if (r < u.rows) {
            const cuda_query &q = p.queries[row_index(p, u, r)];
            rows.scale[i] = q.scale;
            rows.bias[i] = q.bias;
            row_range(p, u, r, rows.first[i], rows.end[i]);
        }
    }
    return rows;
}

/* Q as the B operand: codes 8(4s + t)..+7 of k-step s for the lane's column. */
template <int D, int RPL>
PTX_FN void load_queries(const attend_params &p, const unit &u, warp_memory<D, RPL> &m, uint32_t lane)
{
    const uint32_t g = lane / 4u, t = lane % 4u;
    const uint32_t r = RPL == 1 ? g / 2u : g;
    const int8_t *codes = p.codes + (r < u.rows ? row_index(p, u, r) : 0) * p.k_dim_padded + 8u * t;
#pragma unroll
    for (int s = 0; s < D / 32; ++s) {
        const uint2 q = *reinterpret_cast<const uint2 *>(codes + 32 * s);
        m.q[s][query_place<RPL>(g, t)] = r < u.rows ? q : make_uint2(0, 0);
    }
}

template <int VD, int RPL>
PTX_FN void write_states(const attend_params &p, const unit &u, const lane_rows<RPL> &rows,
                         const float (&o)[VD / 16][2][RPL], uint32_t g, uint32_t t)
{
#pragma unroll
    for (int i = 0; i < RPL; ++i) {
        uint32_t r = RPL == 1 ? t : 2u * t + i;
        if (r >= u.rows) {
            continue;
        }
        uint64_t index = row_index(p, u, r);
        float *state = p.states + (index * p.chunks + u.chunk) * p.state_floats;
        bool empty = !(rows.has_base >> i & 1u) || rows.sum[i] == 0.0f;
        if (g == 0) {
            *reinterpret_cast<float4 *>(state) = make_float4(empty ? -INFINITY : rows.base[i],
                                                             empty ? 0.0f : rows.sum[i], p.queries[index].offset, 0.0f);
        }
#pragma unroll
        for (int n = 0; n < VD / 16; ++n) {
            float2 pair = make_float2(empty ? 0.0f : o[n][0][i], empty ? 0.0f : o[n][1][i]);
            *reinterpret_cast<float2 *>(state + CUDA_STATE_HEAD_FLOATS + 16 * n + 2 * g) = pair;
        }
    }
}

/* ---------------------------------------------------------------------------------------------- unit */

/* The unit's rows and tiles; false if there is nothing to do. */
PTX_FN bool load_unit(const attend_params &p, uint32_t index, unit &u)
{
    u.chunk = index % p.chunks;
    u.kv_head = index / p.chunks % p.kv_heads;
    u.sequence = index / p.chunks / p.kv_heads;
    const cuda_sequence s = p.sequences[u.sequence];
    if (s.q_len == 0 || u.chunk >= cuda_live_chunks(&p, s.kv_len)) {
        return false;
    }
    u.kv_len = (uint32_t)s.kv_len;
    u.rows = (uint32_t)s.q_len * p.group_rows;
    u.pages = p.page_table + (uint64_t)u.sequence * p.page_table_stride;
    int32_t first = INT32_MAX, end = 0;
    for (uint32_t token = 0; token < (uint32_t)s.q_len; ++token) {
        int32_t a, e;
        row_range(p, u, token * p.group_rows, a, e);
        if (e > a) {
            first = min(first, a);
            end = max(end, e);
        }
    }
    uint32_t chunk_first = (p.first_chunk + u.chunk) * NBL_CHUNK_TOKENS;
    uint32_t from = max((uint32_t)first, chunk_first);
    uint32_t to = min((uint32_t)end, chunk_first + NBL_CHUNK_TOKENS);
    u.first_tile = from / CUDA_TILE_TOKENS;
    u.end_tile = to > from ? (to + CUDA_TILE_TOKENS - 1u) / CUDA_TILE_TOKENS : u.first_tile;
    return true;
}

/* 0xf0f0f0f0, in a register: an instruction has room for one constant, and the compiler would not keep this one. */
template <int D, int RPL> PTX_FN uint32_t load_constant(warp_memory<D, RPL> &m, uint32_t lane)
{
    volatile uint32_t *at = (volatile uint32_t *)&m.raw[0][0][0];
    if (lane == 0) {
        *at = 0xf0f0f0f0u;
    }
    __syncwarp();
    return *at;
}

/* The walk of a warp over its unit. */
template <int D, int RPL> struct walker {
    const attend_params &p;
    warp_memory<D, RPL> &m;
    const unit &u;
    uint32_t lane, g, t;
    uint32_t high_nibbles;
    asker ask;
    lane_rows<RPL> rows;
    float o[D / 16][2][RPL];

    /* of the tile and group in work */
    uint32_t formats;
    float b[RPL];
    int32_t acc[RPL][D / 16][4];

    /* Begins at the unit's first tile, with the first turns asked for. */
    __device__ __forceinline__ void begin()
    {
        const uint32_t first = u.first_tile * CUDA_TILE_TOKENS + lane % GROUPS * GROUP;
        ask = {};
        ask.to[0] = place_of<128u>(lane);
        ask.to[1] = ptx_keep(place_of<2u * D>(lane));
        ask.tile = u.first_tile;
        ask.entry = first / p.pages.page_tokens;
        ask.offset = first % p.pages.page_tokens;
        if (u.first_tile < u.end_tile) { /* also for lanes whose group is not there */
            ask.page = u.pages[u.first_tile * CUDA_TILE_TOKENS / p.pages.page_tokens];
        }
        fetch_page(u, ask.tile, lane, ask);
#pragma unroll 1
        for (uint32_t i = 0; i < RING; ++i) {
            ask_turn<D, RPL>(p, m, u, lane, ask);
        }
    }

    /* Before the first group: scales, which have landed with it. */
    __device__ __forceinline__ void begin_tile_work(uint32_t start)
    {
        formats = ask.formats; /* the asker is not past this tile yet */
        const uint32_t group = lane / 8u;
        prepare_scales<D, RPL>(m, format_of(formats, group), format_of(formats, GROUPS + group),
                               (int32_t)(u.kv_len - start - 4u * lane), lane);
    }

    /* One group of K: logits but for the row's scale. */
    __device__ __forceinline__ void k_work(const uint8_t *codes, uint32_t group)
    {
        const uint32_t format = format_of(formats, group);
        const int32_t bias[2] = {rows.bias[0], rows.bias[RPL - 1]};
        int32_t s[2][4];
        k_group<D, RPL>(m, codes, format, group, lane, bias, s);
        const float2 low = read_k_scales(&m.k_exponent[group * GROUP], g);
        const float2 high = read_k_scales(&m.k_exponent[group * GROUP + 16u], g);
#pragma unroll
        for (int i = 0; i < RPL; ++i) {
            m.x[i][group][lane] = make_float4((float)s[0][i] * low.x, (float)s[0][2 + i] * low.y,
                                              (float)s[1][i] * high.x, (float)s[1][2 + i] * high.y);
        }
    }

    /* After the last group of K. */
    __device__ __forceinline__ void softmax(int32_t start)
    {
        uint32_t packed[LANE_TOKENS / 2];
        __syncwarp(); /* the factors of K make room for P */
#pragma unroll
        for (int i = 0; i < RPL; ++i) {
            float x[LANE_TOKENS], rescale;
            uint32_t pairs[LANE_TOKENS / 2];
            bool has_base = rows.has_base >> i & 1u;
#pragma unroll
            for (uint32_t group = 0; group < GROUPS; ++group) {
                const float4 four = m.x[i][group][lane];
                x[4 * group] = four.x, x[4 * group + 1] = four.y, x[4 * group + 2] = four.z, x[4 * group + 3] = four.w;
            }
            b[i] =
                column_softmax(x, &m.v_grid[2u * g], rows.scale[i], visible_bits(rows.first[i], rows.end[i], start, g),
                               rows.base[i], rows.sum[i], has_base, rescale, pairs);
            rows.has_base = (rows.has_base & ~(1u << i)) | (uint32_t)has_base << i;
            if (__any_sync(0xffffffffu, rescale != 1.0f)) {
#pragma unroll
                for (int n = 0; n < D / 16; ++n) {
                    o[n][0][i] *= rescale;
                    o[n][1][i] *= rescale;
                }
            }
#pragma unroll
            for (int n = 0; n < LANE_TOKENS / 2; ++n) {
                packed[n] = i == 0 ? pairs[n] : ptx_prmt(packed[n], pairs[n], 0x5410u);
            }
        }
#pragma unroll
        for (uint32_t group = 0; group < GROUPS; ++group) {
            m.packed[group][lane] = make_uint2(packed[2 * group], packed[2 * group + 1]);
        }
    }

    /* One group of V. */
    __device__ __forceinline__ void v_work(const uint8_t *codes, uint32_t group)
    {
        const uint2 packed = m.packed[group][lane];
        const uint32_t weights[2] = {ptx_movmatrix_trans(packed.x), ptx_movmatrix_trans(packed.y)};
        v_group<D, RPL>(m, codes, format_of(formats, GROUPS + group), group, lane, weights, high_nibbles, acc);
    }

    /* After the last group of V: O takes the tile in. */
    __device__ __forceinline__ void end_tile_work()
    {
#pragma unroll
        for (int n = 0; n < D / 16; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
#pragma unroll
                for (int i = 0; i < RPL; ++i) {
                    int32_t low = RPL == 1 ? acc[0][n][2 * e] : acc[0][n][2 * e + i];
                    int32_t high = RPL == 1 ? acc[0][n][2 * e + 1] : acc[RPL - 1][n][2 * e + i];
                    float sum = (float)((low >> 4) + high); /* low is a multiple of 16, as low + 16 * high is */
                    o[n][e][i] = b[i] != 0.0f ? nbl_fma(sum, b[i], o[n][e][i]) : o[n][e][i];
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
            }
        }
    }

    /* Groups of one kind, as many as a turn has. */
    __device__ __forceinline__ void work(const uint8_t *codes, uint32_t kind, uint32_t first, uint32_t groups)
    {
        const uint32_t stride = group_stride<D>(is_wide(formats, kind));
        if (kind == 0) {
#pragma unroll 1
            for (uint32_t i = 0; i < groups; ++i) {
                k_work(codes + i * stride, first + i);
            }
        } else {
#pragma unroll 1
            for (uint32_t i = 0; i < groups; ++i) {
                v_work(codes + i * stride, first + i);
            }
        }
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
            const uint32_t kind = index / GROUPS;
            const uint32_t groups = groups_per_turn<D>(is_wide(formats, kind));
            work(m.ring[slot], kind, index % GROUPS, groups);
            index += groups;
            if (index == GROUPS) {
                softmax((int32_t)(tile * CUDA_TILE_TOKENS));
                clear_sums();
            }
            if (index == 2u * GROUPS) {
                end_tile_work();
                index = 0;
                ++tile;
            }
            __syncwarp();
            ask_turn<D, RPL>(p, m, u, lane, ask);
            slot = (slot + 1u) % RING;
        }
        ptx_cp_async_wait<0>();
    }
};

template <int D, int RPL>
__global__ void __launch_bounds__(32, shape<D, RPL>::warps) decode_kernel(const __grid_constant__ attend_params p)
{
    __shared__ __align__(128) warp_memory<D, RPL> m;
    const uint32_t lane = threadIdx.x;
    unit u;
    ptx_grid_wait();
    ptx_grid_release();
    if (!load_unit(p, blockIdx.x, u)) {
        return;
    }
    walker<D, RPL> w = {p, m, u, lane, lane / 4u, lane % 4u};
    w.high_nibbles = load_constant(m, lane);
    __syncwarp();
    w.begin();
    load_queries<D, RPL>(p, u, m, lane);
    w.rows = load_rows<RPL>(p, u, w.t);
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
#pragma unroll
        for (int i = 0; i < RPL; ++i) {
            w.o[n][0][i] = w.o[n][1][i] = 0.0f;
        }
    }
    w.run();
    write_states<D, RPL>(p, u, w.rows, w.o, w.g, w.t);
}

/* A block is a warp: what steers it is then known to be the same for all its lanes, and the hardware hands a unit to
 * whichever slot is free. */
template <int D, int RPL> cudaError_t launch(const attend_params *p, cudaStream_t stream)
{
    const uint32_t units = p->batch * p->kv_heads * p->chunks;
    return units == 0 ? cudaSuccess : launch_after(decode_kernel<D, RPL>, dim3(units), 32u, 0, stream, p);
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
    const int few = p->q_len_max * p->group_rows <= 4u;
    switch (p->k_dim) {
    case 64: return few ? launch<64, 1>(p, stream) : launch<64, 2>(p, stream);
    case 128: return few ? launch<128, 1>(p, stream) : launch<128, 2>(p, stream);
    default: return few ? launch<256, 1>(p, stream) : launch<256, 2>(p, stream);
    }
}
