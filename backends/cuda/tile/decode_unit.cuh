/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file decode_unit.cuh
 * @brief The unit of the decode kernel, a chunk of one kv head of a sequence: its query rows, what they see, its tiles.
 */
#ifndef CUDA_DECODE_UNIT_H
#define CUDA_DECODE_UNIT_H

#include "decode_keys.cuh"
#include "decode_memory.cuh"
#include "decode_softmax.cuh"
#include "sequence_check.cuh"
#include "stored.cuh"

/** r / group_rows, the query token of row r of the unit. A division is longer, but with one row a lane the compiler has
 *  no registers for what it then keeps. */
template <int RPL> PTX_FN uint32_t row_token(const attend_params &p, uint32_t r)
{
    return RPL == 1 ? r / p.group_rows : r * p.group_rows_inverse / 256u;
}

template <int RPL> PTX_FN uint64_t row_index(const attend_params &p, const unit &u, uint32_t r)
{
    const uint32_t token = row_token<RPL>(p, r);
    return (uint64_t)((uint32_t)u.q_first + token) * p.q_heads + u.kv_head * p.group_rows +
           (RPL == 1 ? r % p.group_rows : r - token * p.group_rows);
}

/** Visible positions of a row (NUM 5.2). */
template <int RPL>
PTX_FN void row_range(const attend_params &p, const unit &u, uint32_t r, int32_t &first, int32_t &end)
{
    const visible_range range = visible_range_of(p, u.kv_len, (int64_t)u.kv_len - u.q_len + row_token<RPL>(p, r));
    first = range.first;
    end = range.end;
}

/** Q as the B operand: codes 8(4s + t)..+7 of k-step s for the lane's column. PAIRED: as k_group wants it. */
template <int D, int RPL, bool PAIRED = false>
PTX_FN void load_queries(const attend_params &p, const unit &u, warp_memory<D, RPL> &m, uint32_t lane)
{
    const uint32_t g = lane / 4u, t = lane % 4u;
    const uint32_t r = RPL == 1 ? g / 2u : g;
    const int8_t *codes = p.codes + (r < u.rows ? row_index<RPL>(p, u, r) : 0) * p.k_dim_padded + 8u * t;
#pragma unroll
    for (int s = 0; s < D / 32; ++s) {
        const uint2 q = *reinterpret_cast<const uint2 *>(codes + 32 * s);
        m.q[s][query_place<RPL>(g, t)] = r >= u.rows ? make_uint2(0, 0) : PAIRED ? in_pairs(q) : q;
    }
}

template <int RPL> PTX_FN lane_rows<RPL> load_rows(const attend_params &p, const unit &u, uint32_t t)
{
    lane_rows<RPL> rows;
    rows.has_base = 0;
#pragma unroll
    for (int i = 0; i < RPL; ++i) {
        const uint32_t r = lane_row<RPL>(t, i);
        rows.scale[i] = 0.0f;
        rows.start[i] = k_start(0);
        rows.first[i] = rows.end[i] = 0;
        rows.base[i] = rows.sum[i] = 0.0f;
        if (r < u.rows) {
            const cuda_query &q = p.queries[row_index<RPL>(p, u, r)];
            rows.scale[i] = q.scale;
            rows.start[i] = k_start(q.bias);
            row_range<RPL>(p, u, r, rows.first[i], rows.end[i]);
        }
    }
    return rows;
}

/** Which chunk of which kv head the index-th unit is. */
PTX_FN void place_unit(const attend_params &p, uint32_t index, unit &u)
{
    u.chunk = index % p.chunks;
    u.kv_head = index / p.chunks % p.kv_heads;
    u.sequence = index / p.chunks / p.kv_heads;
}

/** The rows and tiles of a unit that has been placed; false if there is nothing to do. Lengths are checked here too:
 *  prepare may not be done. */
template <int RPL> PTX_FN bool load_unit(const attend_params &p, unit &u)
{
    const sequence_lengths s = read_lengths(p, u.sequence);
    if (!s.good || s.q_len == 0 || u.chunk >= cuda_live_chunks(&p, s.kv_len)) {
        return false;
    }
    u.q_first = s.q_first;
    u.q_len = s.q_len;
    u.kv_len = (uint32_t)s.kv_len;
    u.rows = (uint32_t)s.q_len * p.group_rows;
    u.pages = p.page_table + (uint64_t)u.sequence * p.page_table_stride;
    int32_t first, end; /* of all rows: both grow from one query token to the next */
    row_range<RPL>(p, u, 0, first, u.seen_end);
    row_range<RPL>(p, u, u.rows - 1u, u.seen_first, end);
    const uint32_t chunk_first = (p.first_chunk + u.chunk) * NBL_CHUNK_TOKENS;
    const uint32_t from = max((uint32_t)first, chunk_first);
    const uint32_t to = min((uint32_t)end, chunk_first + NBL_CHUNK_TOKENS);
    u.first_tile = from / CUDA_TILE_TOKENS;
    u.end_tile = to > from ? (to + CUDA_TILE_TOKENS - 1u) / CUDA_TILE_TOKENS : u.first_tile;
    return true;
}

#endif
