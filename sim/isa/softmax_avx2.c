/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file softmax_avx2.c
 * @brief One row's softmax over a tile (NUM 5.4), on vectors of eight tokens.
 */
#include "avx2.h"
#include "softmax_row.h"

#define PARTS_MAX (SIM_TILE / LANES)

/* All-ones lanes for the visible ones of tokens 8i..8i+7. */
static __m256 visible_lanes(const sim_row_tile *row, uint32_t i)
{
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    int32_t byte = (int32_t)((row->visible[i / 8u] >> (8u * (i % 8u))) & 0xffu);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(byte), bit), bit));
}

/* The larger of both where visible, else `most`. */
static __m256 max_visible(const sim_row_tile *row, uint32_t i, __m256 most, __m256 x)
{
    return _mm256_blendv_ps(most, _mm256_max_ps(most, x), visible_lanes(row, i));
}

static float largest_lane(__m256 x)
{
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_max_ps(half, _mm_permute_ps(half, 0x4e));
    return _mm_cvtss_f32(_mm_max_ps(half, _mm_permute_ps(half, 0xb1)));
}

/* B for a largest logit in one of the lanes. */
static float base_above(__m256 most)
{
    return nbl_clamp_f32(nbl_ceil(largest_lane(most)), -NBL_LOGIT_MAX, NBL_LOGIT_MAX);
}

static float base_of(const sim_row_tile *row)
{
    __m256 most = _mm256_set1_ps(-INFINITY);
    for (uint32_t i = 0; i < row->groups * PARTS; ++i) {
        __m256 z = _mm256_fmadd_ps(_mm256_loadu_ps(row->x + i * LANES), _mm256_set1_ps(row->scale),
                                   _mm256_loadu_ps(row->a + i * LANES));
        most = max_visible(row, i, most, z);
    }
    return base_above(most);
}

static float all_logits(const sim_row_tile *row, float base, float *t)
{
    __m256 most = _mm256_set1_ps(-INFINITY);
    for (uint32_t i = 0; i < row->groups * PARTS; ++i) {
        __m256 above = _mm256_sub_ps(_mm256_loadu_ps(row->a + i * LANES), _mm256_set1_ps(base));
        __m256 value = _mm256_fmadd_ps(_mm256_loadu_ps(row->x + i * LANES), _mm256_set1_ps(row->scale),
                                       _mm256_add_ps(above, _mm256_set1_ps(NBL_GRID)));
        _mm256_store_ps(t + i * LANES, value);
        most = max_visible(row, i, most, value);
    }
    return largest_lane(most);
}

/* p, 0 where it is below 2^-126. u = t - m + GRID: its bits, shifted, are those of t - m = E + f with E in the place
 * of an exponent. With g = 1 + f they exceed those of 2^(t - m) by the mantissa of 1 + g - 2^(g - 1), which is little
 * above 1; -4 times that has an exponent that puts the rest right. */
UNROLLED __m256 grid_exp2(__m256 u)
{
    __m256i bits = _mm256_slli_epi32(_mm256_castps_si256(u), 15);
    __m256i fraction = _mm256_and_si256(bits, _mm256_set1_epi32(0x007fffff));
    __m256 g = _mm256_castsi256_ps(_mm256_or_si256(fraction, _mm256_set1_epi32(0x3f800000)));
    __m256 above = _mm256_fmadd_ps(_mm256_set1_ps(4.0f * SIM_GRID_C4), g, _mm256_set1_ps(4.0f * SIM_GRID_C3));
    above = _mm256_fmadd_ps(above, g, _mm256_set1_ps(4.0f * SIM_GRID_C2));
    above = _mm256_fmadd_ps(above, g, _mm256_set1_ps(4.0f * (SIM_GRID_C1 - 1.0f)));
    above = _mm256_fmadd_ps(above, g, _mm256_set1_ps(4.0f * (SIM_GRID_C0 - 1.0f)));
    __m256 kept = _mm256_cmp_ps(u, _mm256_set1_ps(NBL_GRID + NBL_WEIGHT_MIN), _CMP_GE_OQ);
    return _mm256_and_ps(_mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_castps_si256(above))), kept);
}

/* q of NUM 5.4: no p is near a tie (NUM 5.5), so rounding half up is RNE. */
static __m256 round_to_bf16(__m256 p)
{
    __m256i rounded = _mm256_add_epi32(_mm256_castps_si256(p), _mm256_set1_epi32(0x8000));
    return _mm256_castsi256_ps(_mm256_and_si256(rounded, _mm256_set1_epi32((int)0xffff0000u)));
}

/* P of eight tokens as dwords. */
static __m256i grid_weights(__m256 e)
{
    __m256 weight = _mm256_fmadd_ps(e, _mm256_set1_ps(NBL_P_SCALE), _mm256_set1_ps(NBL_MAGIC));
    return _mm256_and_si256(_mm256_castps_si256(weight), _mm256_set1_epi32(0xff));
}

/* Four times eight dwords of 0..255 to 32 bytes. */
UNROLLED void store_bytes(uint8_t *p, const __m256i *dwords)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i low = _mm256_packus_epi32(dwords[0], dwords[1]);
    __m256i high = _mm256_packus_epi32(dwords[2], dwords[3]);
    store_unaligned(p, _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order));
}

/* tree(s) of NUM 5.4; the first step adds s_g and s_{g+8}, the two registers. */
static float sum_tree(__m256 low, __m256 high)
{
    __m256 u = _mm256_add_ps(low, high);
    __m256 v = _mm256_add_ps(u, _mm256_permute_ps(u, 0xb1));
    __m256 w = _mm256_add_ps(v, _mm256_permute_ps(v, 0x4e));
    return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(w), _mm256_extractf128_ps(w, 1)));
}

/* P of 32 tokens from p of NUM 5.4; adds to the sums of l. */
UNROLLED void weigh(const __m256 *e, const float *weight, __m256 *sums, uint8_t *p)
{
    __m256i dwords[PARTS];
    for (uint32_t j = 0; j < PARTS; ++j) {
        sums[j % 2u] = _mm256_fmadd_ps(round_to_bf16(e[j]), _mm256_loadu_ps(weight + j * LANES), sums[j % 2u]);
        dwords[j] = grid_weights(e[j]);
    }
    store_bytes(p, dwords);
}

static float weigh_visible(const sim_row_tile *row, const float *t, float most, uint8_t *p)
{
    __m256 sums[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (uint32_t i = 0; i < row->groups * PARTS; i += PARTS) {
        __m256 e[PARTS];
        for (uint32_t j = 0; j < PARTS; ++j) {
            __m256 u = _mm256_sub_ps(_mm256_load_ps(t + (i + j) * LANES), _mm256_set1_ps(most));
            e[j] = _mm256_and_ps(grid_exp2(u), visible_lanes(row, i + j));
        }
        weigh(e, row->weight + i * LANES, sums, p + i * LANES);
    }
    return sum_tree(sums[0], sums[1]);
}

sim_softmax sim_avx2_softmax(const sim_row_tile *row, float base, int first, uint8_t *p)
{
    return row_softmax(row, base, first, p);
}

/* ------------------------------------------------------------------------------------------------ whole rows */

/* B of a row that sees all 128 tokens. */
static float whole_base(const sim_tile *tile, const float *x, float scale)
{
    __m256 most = _mm256_set1_ps(-INFINITY);
    for (uint32_t t = 0; t < SIM_TILE; t += LANES) {
        __m256 a = _mm256_loadu_ps(tile->exponent + t);
        most = _mm256_max_ps(most, _mm256_fmadd_ps(_mm256_loadu_ps(x + t), _mm256_set1_ps(scale), a));
    }
    return base_above(most);
}

/* t of a row that sees all 128 tokens; the largest less GRID is returned. (a - B) + GRID of integers has no rounding
 * and is one addition. */
static float whole_logits(const sim_tile *tile, const float *x, const sim_row_state *row, float *t)
{
    const __m256 offset = _mm256_set1_ps(NBL_GRID - row->base);
    const __m256 scale = _mm256_set1_ps(row->scale);
    __m256 most[2] = {_mm256_set1_ps(-INFINITY), _mm256_set1_ps(-INFINITY)};
    for (uint32_t i = 0; i < PARTS_MAX; ++i) {
        __m256 a = _mm256_add_ps(_mm256_loadu_ps(tile->exponent + i * LANES), offset);
        __m256 value = _mm256_fmadd_ps(_mm256_loadu_ps(x + i * LANES), scale, a);
        _mm256_store_ps(t + i * LANES, value);
        most[i % 2u] = _mm256_max_ps(most[i % 2u], value);
    }
    return largest_lane(_mm256_max_ps(most[0], most[1])) - NBL_GRID;
}

/* P of a row; l is returned. */
static float whole_weights(const sim_tile *tile, const float *t, float most, uint8_t *p)
{
    const __m256 distance = _mm256_set1_ps(most);
    __m256 sums[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (uint32_t i = 0; i < SIM_TILE; i += SIM_GROUP) {
        __m256 e[PARTS];
        for (uint32_t j = 0; j < PARTS; ++j) {
            e[j] = grid_exp2(_mm256_sub_ps(_mm256_load_ps(t + i + j * LANES), distance));
        }
        weigh(e, tile->weight + i, sums, p + i);
    }
    return sum_tree(sums[0], sums[1]);
}

#define ROWS_TOGETHER 4u /* rows whose t are there before their P, so that none waits for the maximum of another */

/* sim_isa.softmax_rows for up to ROWS_TOGETHER rows. */
static uint32_t whole_step(const sim_tile *tile, const float *x, sim_row_state *const *rows, uint32_t count, uint8_t *p,
                           float *b)
{
    _Alignas(LINE) float t[ROWS_TOGETHER * SIM_TILE];
    float most[ROWS_TOGETHER];
    uint32_t done = 0;
    for (; done < count; ++done) {
        const float *logits = x + done * SIM_TILE;
        if (!rows[done]->has_base) {
            rows[done]->base = whole_base(tile, logits, rows[done]->scale);
            rows[done]->has_base = 1;
        }
        most[done] = whole_logits(tile, logits, rows[done], t + done * SIM_TILE);
        if (most[done] > NBL_REBASE || most[done] < NBL_WEIGHT_MIN) {
            break;
        }
    }
    for (uint32_t r = 0; r < done; ++r) {
        float l = whole_weights(tile, t + r * SIM_TILE, most[r], p + r * SIM_TILE);
        b[r] = nbl_grid_base(most[r]);
        rows[r]->sum = nbl_fma(l, b[r], rows[r]->sum);
    }
    return done;
}

uint32_t sim_avx2_softmax_rows(const sim_tile *tile, const float *x, sim_row_state *const *rows, uint32_t count,
                               uint8_t *p, float *b)
{
    uint32_t done = 0;
    while (done < count) {
        uint32_t some = count - done < ROWS_TOGETHER ? count - done : ROWS_TOGETHER;
        uint32_t n = whole_step(tile, x + done * SIM_TILE, rows + done, some, p + done * SIM_TILE, b + done);
        done += n;
        if (n < some) {
            break;
        }
    }
    return done;
}
