/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file merge.h
 * @brief States of a row: merging, sinks, the last step to O and LSE (NUM 5.6 to 5.8).
 */
#ifndef NBL_NUM_MERGE_H
#define NBL_NUM_MERGE_H

#include "exp2grid.h"
#include "transform.h"

/** Head of a state as state tensors hold it; O[0..Dv-1] lies apart. */
typedef struct nbl_state_head {
    float base;   /**< M: an integer, or -inf for the empty state */
    float sum;    /**< L */
    float offset; /**< logit in base-2 units that centring took out (NUM 5.7) */
    float reserved;
} nbl_state_head;

/** The empty state of a row with the given offset; its O is all zero. */
NBL_FN nbl_state_head nbl_state_empty(float offset)
{
    nbl_state_head head = {-INFINITY, 0.0f, offset, 0.0f};
    return head;
}

/** 1 if the state is empty. */
NBL_FN int nbl_state_is_empty(const nbl_state_head *head)
{
    return head->sum == 0.0f;
}

/** Factors of a merge: M = max(M1, M2), pow2(M1 - M), pow2(M2 - M). Both states non-empty. */
typedef struct nbl_merge_scale {
    float base;
    float left;
    float right;
} nbl_merge_scale;

NBL_FN nbl_merge_scale nbl_merge_scale_of(float left_base, float right_base)
{
    nbl_merge_scale s;
    s.base = left_base > right_base ? left_base : right_base;
    s.left = nbl_pow2f(left_base - s.base);
    s.right = nbl_pow2f(right_base - s.base);
    return s;
}

/** The same of bases held as integers, at most 2^24 in magnitude; M is returned. A base far below all others makes its
 *  factor 0, as suits the empty state. */
NBL_FN int32_t nbl_merge_scale_of_integers(int32_t left_base, int32_t right_base, nbl_merge_scale *s)
{
    const int32_t base = left_base > right_base ? left_base : right_base;
    s->base = (float)base;
    s->left = nbl_pow2(left_base - base);
    s->right = nbl_pow2(right_base - base);
    return base;
}

/** One element of a merge (NUM 5.6). */
NBL_FN float nbl_merge_element(float left, float right, nbl_merge_scale s)
{
    return left * s.left + right * s.right;
}

/** left := merge(left, right), O in place (NUM 5.6). */
NBL_FN void nbl_state_merge(nbl_state_head *left, float *left_o, const nbl_state_head *right, const float *right_o,
                            uint32_t dim)
{
    if (nbl_state_is_empty(right)) {
        return;
    }
    if (nbl_state_is_empty(left)) {
        *left = *right;
        left->reserved = 0.0f;
        memcpy(left_o, right_o, dim * sizeof *left_o);
        return;
    }
    nbl_merge_scale s = nbl_merge_scale_of(left->base, right->base);
    left->sum = nbl_merge_element(left->sum, right->sum, s);
    left->base = s.base;
    for (uint32_t d = 0; d < dim; ++d) {
        left_o[d] = nbl_merge_element(left_o[d], right_o[d], s);
    }
}

/** Adds a sink logit in natural units to the denominator (NUM 5.7); -inf adds nothing. */
NBL_FN void nbl_state_add_sink(nbl_state_head *head, float *o, uint32_t dim, float sink)
{
    if (sink == -INFINITY) {
        return;
    }
    float z = sink * NBL_LOG2E - head->offset;
    float base = nbl_ceil(z);
    float left = 0.0f;
    if (!nbl_state_is_empty(head)) {
        base = head->base > base ? head->base : base;
        left = nbl_pow2f(head->base - base);
    }
    head->sum = head->sum * left + nbl_exp2p(z - base);
    head->base = base;
    for (uint32_t d = 0; d < dim; ++d) {
        o[d] *= left;
    }
}

/** LSE of a state, base 2 or natural; -inf where nothing weighs (NUM 5.7). */
NBL_FN float nbl_state_lse(const nbl_state_head *head, int base2)
{
    if (head->sum < 0x1p-126f) {
        return -INFINITY;
    }
    float lse2 = (head->base + nbl_log2p(head->sum)) + head->offset;
    return base2 ? lse2 : lse2 * NBL_LN2;
}

/** Turns O of a state into the output row, in place, still binary32 (NUM 5.7). */
NBL_FN void nbl_state_output(const nbl_state_head *head, float *o, uint32_t dim, uint32_t v_hadamard)
{
    if (head->sum < 0x1p-126f) {
        memset(o, 0, dim * sizeof *o);
        return;
    }
    float r = 1.0f / (NBL_P_SCALE * head->sum);
    for (uint32_t d = 0; d < dim; ++d) {
        o[d] *= r;
    }
    nbl_hadamard_undo(o, dim, v_hadamard);
}

#endif
