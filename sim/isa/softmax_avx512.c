/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file softmax_avx512.c
 * @brief One row's softmax over a tile (NUM 5.4), on whole vectors of tokens: about 20 operations for 16 of them.
 */
#include "avx512.h"
#include "exp2grid.h"
#include "rowsum.h"

#define PARTS_MAX (SIM_TILE / LANES)
#define EXPONENT_BIAS 127.0f
#define ROWS_STEP 8u /* rows whose t are kept at a time: in the first-level cache */

static __mmask16 visible_lanes(const sim_row_tile *row, uint32_t i)
{
    return (__mmask16)(row->visible[i / 4u] >> (16u * (i % 4u)));
}

/* B for a largest logit in one of the lanes. */
static float base_above(__m512 most)
{
    return nbl_clamp_f32(nbl_ceil(_mm512_reduce_max_ps(most)), -NBL_LOGIT_MAX, NBL_LOGIT_MAX);
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

/* 2^(i / 16) and 2^(i / 256), i < 16: 2^f for a fraction f of eight bits is a product of two of them. */
typedef struct powers {
    __m512 sixteenths;
    __m512 fine;
} powers;

static powers load_powers(void)
{
    const __m512i steps = _mm512_set_epi32(240, 224, 208, 192, 176, 160, 144, 128, 112, 96, 80, 64, 48, 32, 16, 0);
    powers out;
    out.sixteenths = _mm512_castsi512_ps(_mm512_i32gather_epi32(steps, nbl_exp2_table, 4));
    out.fine = _mm512_castsi512_ps(_mm512_loadu_si512(nbl_exp2_table));
    return out;
}

/* p of the visible tokens, 0 for the others. u = t - m + GRID + 127, m being `most` of distance_of: the low 8 bits of
 * its representation are the fraction of t - m, those above its floor + 127, which is the exponent of p. */
UNROLLED __m512 grid_exp2(__m512 u, __mmask16 visible, const powers *two)
{
    __m512i bits = _mm512_castps_si512(u);
    __m512 sixteenth = _mm512_permutexvar_ps(_mm512_srli_epi32(bits, 4), two->sixteenths);
    __m512i fraction = _mm512_castps_si512(_mm512_mul_ps(sixteenth, _mm512_permutexvar_ps(bits, two->fine)));
    __mmask16 kept =
        _mm512_mask_cmp_ps_mask(visible, u, _mm512_set1_ps(NBL_GRID + NBL_WEIGHT_MIN + EXPONENT_BIAS), _CMP_GE_OQ);
    /* sign and exponent of the first, mantissa of the second */
    return _mm512_castsi512_ps(_mm512_maskz_ternarylogic_epi32(kept, _mm512_slli_epi32(bits, 15), fraction,
                                                               _mm512_set1_epi32((int)0xff800000u), 0xe4));
}

/* What t - u is for a row whose largest t is most + GRID. */
static __m512 distance_of(float most)
{
    return _mm512_set1_ps(most - EXPONENT_BIAS);
}

/* q of NUM 5.4: no p is near a tie (NUM 5.5), so rounding half up is RNE. */
static __m512 round_to_bf16(__m512 p)
{
    __m512i rounded = _mm512_add_epi32(_mm512_castps_si512(p), _mm512_set1_epi32(0x8000));
    return _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32((int)0xffff0000u)));
}

/* tree(s) of NUM 5.4. */
static float sum_tree(__m512 s)
{
    __m256 u = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
    __m256 v = _mm256_add_ps(u, _mm256_permute_ps(u, 0xb1));
    __m256 w = _mm256_add_ps(v, _mm256_permute_ps(v, 0x4e));
    return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(w), _mm256_extractf128_ps(w, 1)));
}

#define PLACES(v)                                                                                           \
    4 * 0 + (v), 4 * 1 + (v), 4 * 2 + (v), 4 * 3 + (v), 4 * 4 + (v), 4 * 5 + (v), 4 * 6 + (v), 4 * 7 + (v), \
        4 * 8 + (v), 4 * 9 + (v), 4 * 10 + (v), 4 * 11 + (v), 4 * 12 + (v), 4 * 13 + (v), 4 * 14 + (v), 4 * 15 + (v)

static const uint8_t gather_places[LINE] = {PLACES(0), PLACES(1), PLACES(2), PLACES(3)};

/* The low bytes of 64 dwords, in order. */
UNROLLED __m512i low_bytes(const __m512i *dwords)
{
    const __m512i first_of_dword = _mm512_broadcast_i32x4(_mm_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0));
    __m512i x = _mm512_mask_shuffle_epi8(dwords[0], 0x2222222222222222u, dwords[1], first_of_dword);
    x = _mm512_mask_shuffle_epi8(x, 0x4444444444444444u, dwords[2], first_of_dword);
    x = _mm512_mask_shuffle_epi8(x, 0x8888888888888888u, dwords[3], first_of_dword);
    return _mm512_permutexvar_epi8(_mm512_loadu_si512(gather_places), x);
}

/* P of 16 tokens in the low bytes of dwords; adds to the sixteen sums of l. */
UNROLLED __m512i weigh(__m512 u, __mmask16 visible, const powers *two, const float *weight, __m512 *sums)
{
    __m512 e = grid_exp2(u, visible, two);
    *sums = _mm512_fmadd_ps(round_to_bf16(e), _mm512_loadu_ps(weight), *sums);
    return _mm512_castps_si512(_mm512_fmadd_ps(e, _mm512_set1_ps(NBL_P_SCALE), _mm512_set1_ps(NBL_MAGIC)));
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

/* ------------------------------------------------------------------------------------------------ whole rows */

/* B of a row that sees all 128 tokens. */
static float whole_base(const sim_tile *tile, const float *x, float scale)
{
    __m512 most = _mm512_set1_ps(-INFINITY);
    for (uint32_t i = 0; i < PARTS_MAX; ++i) {
        __m512 a = _mm512_loadu_ps(tile->exponent + i * LANES);
        most = _mm512_max_ps(most, _mm512_fmadd_ps(_mm512_loadu_ps(x + i * LANES), _mm512_set1_ps(scale), a));
    }
    return base_above(most);
}

/* t of a row that sees all 128 tokens; the largest less GRID is returned. (a - B) + GRID of integers has no rounding
 * and is one addition. */
UNROLLED float whole_logits(const sim_tile *tile, const float *x, const sim_row_state *row, float *t)
{
    const __m512 offset = _mm512_set1_ps(NBL_GRID - row->base);
    const __m512 scale = _mm512_set1_ps(row->scale);
    __m512 most[2] = {_mm512_set1_ps(-INFINITY), _mm512_set1_ps(-INFINITY)};
    for (uint32_t i = 0; i < PARTS_MAX; ++i) {
        __m512 a = _mm512_add_ps(_mm512_loadu_ps(tile->exponent + i * LANES), offset);
        __m512 value = _mm512_fmadd_ps(_mm512_loadu_ps(x + i * LANES), scale, a);
        _mm512_store_ps(t + i * LANES, value);
        most[i % 2u] = _mm512_max_ps(most[i % 2u], value);
    }
    return _mm512_reduce_max_ps(_mm512_max_ps(most[0], most[1])) - NBL_GRID;
}

/* P of a row; l is returned. */
UNROLLED float whole_weights(const sim_tile *tile, const float *t, float most, const powers *two, uint8_t *p)
{
    const __m512 distance = distance_of(most);
    __m512 sums = _mm512_setzero_ps();
    for (uint32_t quarter = 0; quarter < PARTS_MAX; quarter += 4u) {
        __m512i weights[4];
        for (uint32_t j = 0; j < 4u; ++j) {
            uint32_t i = quarter + j;
            __m512 u = _mm512_sub_ps(_mm512_load_ps(t + i * LANES), distance);
            weights[j] = weigh(u, 0xffff, two, tile->weight + i * LANES, &sums);
        }
        _mm512_storeu_si512(p + quarter * LANES, low_bytes(weights));
    }
    return sum_tree(sums);
}

/* sim_avx512_softmax_rows for up to ROWS_STEP rows: first all t, so that no row waits for the maximum of another. */
UNROLLED uint32_t whole_step(const sim_tile *tile, const float *x, sim_row_state *const *rows, uint32_t count,
                             const powers *two, uint8_t *p, float *b)
{
    _Alignas(LINE) float t[ROWS_STEP][SIM_TILE];
    float most[ROWS_STEP];
    uint32_t done = 0;
    for (; done < count; ++done) {
        if (!rows[done]->has_base) {
            rows[done]->base = whole_base(tile, x + done * SIM_TILE, rows[done]->scale);
            rows[done]->has_base = 1;
        }
        most[done] = whole_logits(tile, x + done * SIM_TILE, rows[done], t[done]);
        if (most[done] > NBL_REBASE || most[done] < NBL_WEIGHT_MIN) {
            break;
        }
    }
    for (uint32_t r = 0; r < done; ++r) {
        float l = whole_weights(tile, t[r], most[r], two, p + r * SIM_TILE);
        b[r] = nbl_grid_base(most[r]);
        rows[r]->sum = nbl_fma(l, b[r], rows[r]->sum);
    }
    return done;
}

uint32_t sim_avx512_softmax_rows(const sim_tile *tile, const float *x, sim_row_state *const *rows, uint32_t count,
                                 uint8_t *p, float *b)
{
    const powers two = load_powers();
    uint32_t done = 0;
    while (done < count) {
        uint32_t some = count - done < ROWS_STEP ? count - done : ROWS_STEP;
        uint32_t n = whole_step(tile, x + done * SIM_TILE, rows + done, some, &two, p + done * SIM_TILE, b + done);
        done += n;
        if (n < some) {
            break;
        }
    }
    return done;
}
