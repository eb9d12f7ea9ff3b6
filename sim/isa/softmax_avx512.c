/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file softmax_avx512.c
 * @brief One row's softmax over a tile (NUM 5.4), on whole vectors of tokens: about 20 operations for 16 of them.
 */
#include "softmax_avx512.h"

static __mmask16 visible_lanes(const sim_row_tile *row, uint32_t i)
{
    return (__mmask16)(row->visible[i / 4u] >> (16u * (i % 4u)));
}

static float base_of(const sim_row_tile *row)
{
    __m512 most = _mm512_set1_ps(-INFINITY);
    for (uint32_t i = 0; i < row->groups * HALVES; ++i) {
        __m512 z = _mm512_fmadd_ps(_mm512_loadu_ps(row->x + i * LANES), _mm512_set1_ps(row->scale),
                                   _mm512_loadu_ps(row->a + i * LANES));
        most = _mm512_mask_max_ps(most, visible_lanes(row, i), most, z);
    }
    return base_above(most);
}

/* t of all tokens; the largest of the visible ones is returned. */
static float all_logits(const sim_row_tile *row, float base, __m512 *t)
{
    __m512 most = _mm512_set1_ps(-INFINITY);
    for (uint32_t i = 0; i < row->groups * HALVES; ++i) {
        __m512 above = _mm512_sub_ps(_mm512_loadu_ps(row->a + i * LANES), _mm512_set1_ps(base));
        t[i] = _mm512_fmadd_ps(_mm512_loadu_ps(row->x + i * LANES), _mm512_set1_ps(row->scale),
                               _mm512_add_ps(above, _mm512_set1_ps(NBL_GRID)));
        most = _mm512_mask_max_ps(most, visible_lanes(row, i), most, t[i]);
    }
    return _mm512_reduce_max_ps(most);
}

/* The base moves: t again, at most REBASE above the new one. */
static float move_base(const sim_row_tile *row, sim_softmax *out, __m512 *t)
{
    float moved = fmaxf(out->base, base_of(row));
    float limit = NBL_GRID + NBL_REBASE;
    out->rescale = nbl_pow2f(out->base - moved);
    out->base = moved;
    float most = all_logits(row, moved, t);
    for (uint32_t i = 0; i < row->groups * HALVES; ++i) {
        t[i] = _mm512_min_ps(t[i], _mm512_set1_ps(limit));
    }
    return most < limit ? most : limit;
}

static float weigh_visible(const sim_row_tile *row, const __m512 *t, float most, uint8_t *p)
{
    const powers two = load_powers();
    __m512 sums = _mm512_setzero_ps();
    for (uint32_t i = 0; i < row->groups * HALVES; ++i) {
        __m512 u = _mm512_sub_ps(t[i], distance_of(most));
        __m512i weights = weigh(u, visible_lanes(row, i), &two, row->weight + i * LANES, &sums);
        _mm_storeu_si128((__m128i *)(void *)(p + i * LANES), _mm512_cvtepi32_epi8(weights));
    }
    return sum_tree(sums);
}

sim_softmax sim_avx512_softmax(const sim_row_tile *row, float base, int first, uint8_t *p)
{
    __m512 t[PARTS_MAX];
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

uint32_t sim_avx512_softmax_rows(const sim_tile *tile, const float *x, sim_row_state *const *rows, uint32_t count,
                                 uint8_t *p, float *b)
{
    _Alignas(LINE) float t[ROWS_TOGETHER * SIM_TILE];
    const powers two = load_powers();
    uint32_t done = 0;
    while (done < count) {
        uint32_t some = count - done < ROWS_TOGETHER ? count - done : ROWS_TOGETHER;
        uint32_t n =
            whole_step(NULL, tile, x + done * SIM_TILE, rows + done, some, t, &two, p + done * SIM_TILE, b + done);
        done += n;
        if (n < some) {
            break;
        }
    }
    return done;
}
