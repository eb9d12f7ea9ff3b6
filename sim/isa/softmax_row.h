/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file softmax_row.h
 * @brief The softmax of one row (NUM 5.4) from three loops on vectors, which the file that includes this defines.
 */
#ifndef SIM_SOFTMAX_ROW_H
#define SIM_SOFTMAX_ROW_H

#include "exp2grid.h"
#include "isa.h"

/* B of the visible tokens of a row. */
static float base_of(const sim_row_tile *row);
/* t of all tokens; the largest of the visible ones is returned. */
static float all_logits(const sim_row_tile *row, float base, float *t);
/* P of all tokens; l is returned. most: the largest t less GRID. */
static float weigh_visible(const sim_row_tile *row, const float *t, float most, uint8_t *p);

/* The base moves: t again, at most REBASE above the new one. */
static float move_base(const sim_row_tile *row, sim_softmax *out, float *t)
{
    const float moved = fmaxf(out->base, base_of(row));
    const float limit = NBL_GRID + NBL_REBASE;
    out->rescale = nbl_pow2f(out->base - moved);
    out->base = moved;
    const float most = all_logits(row, moved, t);
    for (uint32_t i = 0; i < row->groups * SIM_GROUP; ++i) {
        t[i] = t[i] < limit ? t[i] : limit;
    }
    return most < limit ? most : limit;
}

/* sim_isa.softmax. */
static sim_softmax row_softmax(const sim_row_tile *row, float base, int first, uint8_t *p)
{
    _Alignas(SIM_CACHE_LINE) float t[SIM_TILE];
    sim_softmax out = {first ? base_of(row) : base, 1.0f, 0.0f, 0.0f, 0};
    float most = all_logits(row, out.base, t);
    if (most > NBL_GRID + NBL_REBASE) {
        most = move_base(row, &out, t);
    }
    if (most - NBL_GRID < NBL_WEIGHT_MIN) {
        out.left_out = 1;
        return out;
    }
    out.l = weigh_visible(row, t, most - NBL_GRID, p);
    out.b = nbl_grid_base(most - NBL_GRID);
    return out;
}

#endif
