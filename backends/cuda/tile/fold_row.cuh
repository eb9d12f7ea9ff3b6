/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file fold_row.cuh
 * @brief A row of the last step of a split call, and how a chunk's state joins those before it (NUM 5.6).
 */
#ifndef CUDA_FOLD_ROW_H
#define CUDA_FOLD_ROW_H

#include "../attend.h"
#include "../ptx/ptx.cuh"
#include "merge.h"

#define END_POLL_NANOSECONDS 100u
#define END_POLLS 20000u

/** A row of the fold. */
struct fold_row {
    uint32_t index;
    uint32_t token;
    uint32_t head;
    uint32_t sequence;
    uint32_t live; /**< chunks with a state */
    float offset;
};

/** Reads what prepare left of a row; false if it belongs to a bad sequence, or to none. */
PTX_FN bool read_fold_row(const attend_params &p, uint32_t index, fold_row &row)
{
    row.index = index;
    row.token = index / p.q_heads;
    row.head = index % p.q_heads;
    const cuda_query query = p.queries[index];
    const cuda_sequence sequence = p.sequences[query.sequence];
    row.sequence = (uint32_t)query.sequence;
    row.live = cuda_live_chunks(&p, sequence.kv_len);
    row.offset = query.offset;
    return row.token - (uint32_t)sequence.q_first < (uint32_t)sequence.q_len;
}

/** Waits until all states of a row of a good sequence are there; all threads of the block call it. Units that have not
 *  ended are at work: the main step lets this one in when its last block has begun. After END_POLLS it waits for all of
 *  that step: lengths that change during a call, which nobody may do, must not hang it. */
PTX_FN void wait_for_states(const attend_params &p, const fold_row &row)
{
    if (threadIdx.x == 0) {
        const uint32_t *ends = p.ends + row.sequence * p.kv_heads + row.head / p.group_rows;
        uint32_t polls = 0;
        while (ptx_load_acquire(ends) < row.live && polls++ < END_POLLS) {
            ptx_sleep(END_POLL_NANOSECONDS);
        }
        if (polls > END_POLLS) {
            ptx_grid_wait();
        }
    }
    __syncthreads();
}

/** The same at the beginning of the step: before the chunks are there, if that may be. Returns when they are. */
PTX_FN bool begin_fold_row(const attend_params &p, uint32_t index, fold_row &row)
{
    bool good = p.folds_early && read_fold_row(p, index, row);
    if (!p.counts_ends) {
        ptx_grid_wait();
    } else if (good) {
        wait_for_states(p, row);
    }
    ptx_grid_release();
    if (!p.folds_early) {
        good = read_fold_row(p, index, row);
    }
    return good;
}

/** How a state joins the total of those before it: x := x * left + state * right, for every element and L. The first
 *  one is copied and empty ones, all +0, change nothing: -0 keeps the signs of zeros. */
struct fold_step {
    float left;
    float right;
    float sum; /**< L of the state */
    float ignored;
};

/** The step of a state after others, the largest base of which is `left`, -inf if all are empty. */
PTX_FN fold_step fold_step_of(const nbl_state_head &head, float left)
{
    fold_step s = {1.0f, -0.0f, head.sum, 0.0f};
    if (!nbl_state_is_empty(&head) && left == -INFINITY) {
        s.left = -0.0f;
        s.right = 1.0f;
    } else if (!nbl_state_is_empty(&head)) {
        const nbl_merge_scale scale = nbl_merge_scale_of(left, head.base);
        s.left = scale.left;
        s.right = scale.right;
    }
    return s;
}

#endif
