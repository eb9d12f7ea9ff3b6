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

#endif
