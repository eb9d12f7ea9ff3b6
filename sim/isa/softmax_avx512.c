/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file softmax_avx512.c
 * @brief One row's softmax over a tile (NUM 5.4), on whole vectors of tokens: about 20 operations for 16 of them.
 */
#include "softmax_avx512.h"
#include "softmax_row.h"

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

static float all_logits(const sim_row_tile *row, float base, float *t)
{
    __m512 most = _mm512_set1_ps(-INFINITY);
    for (uint32_t i = 0; i < row->groups * HALVES; ++i) {
        __m512 above = _mm512_sub_ps(_mm512_loadu_ps(row->a + i * LANES), _mm512_set1_ps(base));
        __m512 value = _mm512_fmadd_ps(_mm512_loadu_ps(row->x + i * LANES), _mm512_set1_ps(row->scale),
                                       _mm512_add_ps(above, _mm512_set1_ps(NBL_GRID)));
        _mm512_store_ps(t + i * LANES, value);
        most = _mm512_mask_max_ps(most, visible_lanes(row, i), most, value);
    }
    return _mm512_reduce_max_ps(most);
}

static float weigh_visible(const sim_row_tile *row, const float *t, float most, uint8_t *p)
{
    const powers two = load_powers();
    __m512 sums = _mm512_setzero_ps();
    for (uint32_t i = 0; i < row->groups * HALVES; ++i) {
        __m512 u = _mm512_sub_ps(_mm512_load_ps(t + i * LANES), distance_of(most));
        __m512i weights = weigh(u, visible_lanes(row, i), &two, row->weight + i * LANES, &sums);
        _mm_storeu_si128((__m128i *)(void *)(p + i * LANES), _mm512_cvtepi32_epi8(weights));
    }
    return sum_tree(sums);
}

sim_softmax sim_avx512_softmax(const sim_row_tile *row, float base, int first, uint8_t *p)
{
    return row_softmax(row, base, first, p);
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
