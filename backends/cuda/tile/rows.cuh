/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file rows.cuh
 * @brief Query rows of a work item and what they see (NUM 5.2), for the kernels that take any valid call.
 */
#ifndef CUDA_ROWS_H
#define CUDA_ROWS_H

#include "merge.h"
#include "stored.cuh"

/** A query row of the item, in shared memory. */
struct row_state {
    uint32_t index; /* token * Hq + head */
    uint32_t token;
    uint32_t head;
    int32_t position;
    int32_t first; /* visible positions [first, end), tree mask aside */
    int32_t end;
    float scale;
    float offset;
    float base;
    float sum;
    float rescale; /* of the tile: factor for O before it is added to */
    float b;       /* of the tile */
    bool has_base;
    bool adds; /* the tile adds to the row */
    nbl_state_head total;
};

/** A unit of work: some rows of one sequence and kv head. */
struct item {
    uint32_t sequence;
    uint32_t kv_head;
    uint32_t rows;
    int32_t q_len;
    int32_t kv_len;
    int32_t first; /* positions that some row may see */
    int32_t end;
    const int32_t *table;
};

/** The block's unit of work: sequence and kv head go into the item, the number of its block of rows among `blocks`, and
 *  the chunk if the call is split. Waits for the kernels before this one; false if the chunk holds no token. */
CUDA_DEVICE bool item_of_block(const attend_params &p, uint32_t blocks, item *it, uint32_t *out_block, uint32_t *out_n)
{
    uint32_t parts = p.split ? p.chunks : 1u;
    *out_n = blockIdx.x % parts;
    *out_block = blockIdx.x / parts % blocks;
    it->kv_head = blockIdx.x / parts / blocks % p.kv_heads;
    it->sequence = blockIdx.x / parts / blocks / p.kv_heads;
    ptx_grid_wait();
    return !p.split || *out_n < cuda_live_chunks(&p, p.sequences[it->sequence].kv_len);
}

/** What the item has of its sequence; false if it has no rows. rows_most: of an item. */
CUDA_DEVICE bool rows_of_item(const attend_params &p, uint32_t block, uint32_t rows_most, item *it)
{
    cuda_sequence sequence = p.sequences[it->sequence];
    int64_t left = (int64_t)sequence.q_len * p.group_rows - (int64_t)block * rows_most;
    if (left <= 0) {
        return false;
    }
    it->rows = (uint32_t)min(left, (int64_t)rows_most);
    it->q_len = sequence.q_len;
    it->kv_len = sequence.kv_len;
    it->table = p.page_table + (uint64_t)it->sequence * p.page_table_stride;
    return true;
}

/** Row i of the item, by thread i. */
CUDA_DEVICE void init_row(const attend_params &p, const item &it, uint32_t q_first, uint32_t index_in_head,
                          row_state *r)
{
    uint32_t token = index_in_head / p.group_rows;
    r->token = q_first + token;
    r->head = it.kv_head * p.group_rows + index_in_head % p.group_rows;
    r->index = r->token * p.q_heads + r->head;
    r->position = it.kv_len - it.q_len + (int32_t)token;
    cuda_query query = p.queries[r->index];
    r->scale = query.scale;
    r->offset = query.offset;
    r->total = nbl_state_empty(query.offset);
    visible_range range = visible_range_of(p, it.kv_len, r->position);
    r->first = range.first;
    r->end = range.end;
}

/** 1 if the row sees the position. */
CUDA_DEVICE bool is_visible(const attend_params &p, const item &it, const row_state &r, int32_t position)
{
    if (position < r.first || position >= r.end) {
        return false;
    }
    int32_t bit = position - (it.kv_len - it.q_len);
    if (p.tree_mask == NULL || bit < 0) {
        return true;
    }
    return (p.tree_mask[(uint64_t)r.token * p.tree_mask_stride + (uint32_t)bit / 32u] >> (bit % 32) & 1u) != 0;
}

/** Largest of the four lanes that share a row of an MMA. */
CUDA_DEVICE float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 2));
}

/** Sets or moves the bases of rows (NUM 6.4, 7.3), with rescale for those that move; all threads call it. z_most and
 *  t_most: largest logits of each row over each warp's tokens, t_limit the largest t within the reach of a base. */
template <uint32_t W, uint32_t R>
CUDA_DEVICE void move_bases(const item &it, row_state *rows, const float (&z_most)[W][R], const float (&t_most)[W][R],
                            float t_limit)
{
    __syncthreads();
    if (threadIdx.x < it.rows) {
        row_state *r = &rows[threadIdx.x];
        float z = -INFINITY, t = -INFINITY;
        for (uint32_t w = 0; w < W; ++w) {
            z = fmaxf(z, z_most[w][threadIdx.x]);
            t = fmaxf(t, t_most[w][threadIdx.x]);
        }
        float base = nbl_clamp_f32(nbl_ceil(z), -NBL_LOGIT_MAX, NBL_LOGIT_MAX);
        r->rescale = 1.0f;
        if (z > -INFINITY && !r->has_base) {
            r->base = base;
            r->has_base = true;
        } else if (r->has_base && t > t_limit) {
            base = fmaxf(r->base, base);
            r->rescale = nbl_pow2f(r->base - base);
            r->base = base;
        }
    }
    __syncthreads();
}

/** State of a row after the n-th chunk into the workspace; the thread has elements t, t + 128, ... of O. */
template <uint32_t V>
CUDA_DEVICE void store_state(const attend_params &p, uint32_t row, uint32_t n, const nbl_state_head &head,
                             const float (&o)[V])
{
    float *state = p.states + ((uint64_t)row * p.chunks + n) * p.state_floats;
    if (threadIdx.x == 0) {
        *(float4 *)(void *)state = make_float4(head.base, head.sum, head.offset, 0.0f);
    }
#pragma unroll
    for (uint32_t i = 0; i < V; ++i) {
        uint32_t d = threadIdx.x + i * CUDA_TILE_TOKENS;
        if (d < p.v_dim_padded) {
            state[CUDA_STATE_HEAD_FLOATS + d] = o[i];
        }
    }
}

#endif
