/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file row_tile.h
 * @brief Base and grid logits of a row's view of a tile, in plain C: for the scalar loops and the float core.
 */
#ifndef SIM_ROW_TILE_H
#define SIM_ROW_TILE_H

#include "isa.h"

/** 1 if the row sees token t. */
static inline int sim_row_sees(const sim_row_tile *row, uint32_t t)
{
    return (int)((row->visible[t / 64u] >> (t % 64u)) & 1u);
}

/** B from the visible tokens of a tile (NUM 5.4). */
static inline float sim_row_base(const sim_row_tile *row)
{
    float most = -INFINITY;
    for (uint32_t t = 0; t < row->groups * SIM_GROUP; ++t) {
        float z = nbl_fma(row->x[t], row->scale, row->a[t]);
        most = sim_row_sees(row, t) && z > most ? z : most;
    }
    return nbl_clamp_f32(nbl_ceil(most), -NBL_LOGIT_MAX, NBL_LOGIT_MAX);
}

/** t of every token on a grid (NUM 5.4, 6.3), at most `limit`; the largest of a visible one is returned. */
static inline float sim_row_logits(const sim_row_tile *row, float base, float grid, float limit, float *out)
{
    float most = -INFINITY;
    for (uint32_t t = 0; t < row->groups * SIM_GROUP; ++t) {
        float value = nbl_fma(row->x[t], row->scale, (row->a[t] - base) + grid);
        out[t] = value < limit ? value : limit;
        most = sim_row_sees(row, t) && out[t] > most ? out[t] : most;
    }
    return most;
}

#endif
