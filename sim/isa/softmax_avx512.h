/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file softmax_avx512.h
 * @brief The softmax of a row over a tile (NUM 5.4) in parts, on vectors of 16 tokens.
 */
#ifndef SIM_SOFTMAX_AVX512_H
#define SIM_SOFTMAX_AVX512_H

#include "avx512.h"
#include "exp2grid.h"
#include "rowsum.h"

#define PARTS_MAX (SIM_TILE / LANES)
#define EXPONENT_BIAS 127.0f

/* B for a largest logit in one of the lanes. */
static inline float base_above(__m512 most)
{
    return nbl_clamp_f32(nbl_ceil(_mm512_reduce_max_ps(most)), -NBL_LOGIT_MAX, NBL_LOGIT_MAX);
}

/* 2^(i / 16) and 2^(i / 256), i < 16: 2^f for a fraction f of eight bits is a product of two of them. */
typedef struct powers {
    __m512 sixteenths;
    __m512 fine;
} powers;

static inline powers load_powers(void)
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
static inline __m512 distance_of(float most)
{
    return _mm512_set1_ps(most - EXPONENT_BIAS);
}

/* q of NUM 5.4: no p is near a tie (NUM 5.5), so rounding half up is RNE. */
static inline __m512 round_to_bf16(__m512 p)
{
    __m512i rounded = _mm512_add_epi32(_mm512_castps_si512(p), _mm512_set1_epi32(0x8000));
    return _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32((int)0xffff0000u)));
}

/* tree(s) of NUM 5.4. */
static inline float sum_tree(__m512 s)
{
    __m256 u = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
    __m256 v = _mm256_add_ps(u, _mm256_permute_ps(u, 0xb1));
    __m256 w = _mm256_add_ps(v, _mm256_permute_ps(v, 0x4e));
    return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(w), _mm256_extractf128_ps(w, 1)));
}

/* P of 16 tokens in the low bytes of dwords; adds to the sixteen sums of l. */
UNROLLED __m512i weigh(__m512 u, __mmask16 visible, const powers *two, const float *weight, __m512 *sums)
{
    __m512 e = grid_exp2(u, visible, two);
    *sums = _mm512_fmadd_ps(round_to_bf16(e), _mm512_loadu_ps(weight), *sums);
    return _mm512_castps_si512(_mm512_fmadd_ps(e, _mm512_set1_ps(NBL_P_SCALE), _mm512_set1_ps(NBL_MAGIC)));
}

#define ROWS_TOGETHER 8u /* rows whose t are there before their P: in the first-level cache */

/* Logits of a row for tokens 16 * i .. 16 * i + 15: as they are in x, or, with a bias, from sums (NUM 5.3). */
UNROLLED __m512 logits_at(const int32_t *bias, const sim_tile *tile, const float *x, uint32_t i)
{
    if (bias == NULL) {
        return _mm512_loadu_ps(x + i * LANES);
    }
    __m512i sums = _mm512_add_epi32(_mm512_loadu_si512(x + i * LANES), _mm512_set1_epi32(*bias));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(sums), _mm512_loadu_ps(tile->unit + i * LANES));
}

/* B of a row that sees all 128 tokens. */
UNROLLED float whole_base(const int32_t *bias, const sim_tile *tile, const float *x, float scale)
{
    __m512 most = _mm512_set1_ps(-INFINITY);
    for (uint32_t i = 0; i < PARTS_MAX; ++i) {
        __m512 a = _mm512_loadu_ps(tile->exponent + i * LANES);
        most = _mm512_max_ps(most, _mm512_fmadd_ps(logits_at(bias, tile, x, i), _mm512_set1_ps(scale), a));
    }
    return base_above(most);
}

/* t of a row that sees all 128 tokens, which may stand in the place of x; the largest less GRID is returned. (a - B) +
 * GRID of integers has no rounding and is one addition. */
UNROLLED float whole_logits(const int32_t *bias, const sim_tile *tile, const float *x, const sim_row_state *row,
                            float *t)
{
    const __m512 offset = _mm512_set1_ps(NBL_GRID - row->base);
    const __m512 scale = _mm512_set1_ps(row->scale);
    __m512 most[2] = {_mm512_set1_ps(-INFINITY), _mm512_set1_ps(-INFINITY)};
    for (uint32_t i = 0; i < PARTS_MAX; ++i) {
        __m512 a = _mm512_add_ps(_mm512_loadu_ps(tile->exponent + i * LANES), offset);
        __m512 value = _mm512_fmadd_ps(logits_at(bias, tile, x, i), scale, a);
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

/* The softmax of up to ROWS_TOGETHER rows that see all 128 tokens, as far as they neither move their base nor leave the
 * tile out; how many were done. bias: of sums in the place of x, or NULL. First all t, so that no row waits for the
 * maximum of another. */
UNROLLED uint32_t whole_step(const int32_t *bias, const sim_tile *tile, const float *x, sim_row_state *const *rows,
                             uint32_t count, float *t, const powers *two, uint8_t *p, float *b)
{
    float most[ROWS_TOGETHER];
    uint32_t done = 0;
    for (; done < count; ++done) {
        const int32_t *own = bias == NULL ? NULL : bias + done;
        const float *logits = x + done * SIM_TILE;
        if (!rows[done]->has_base) {
            rows[done]->base = whole_base(own, tile, logits, rows[done]->scale);
            rows[done]->has_base = 1;
        }
        most[done] = whole_logits(own, tile, logits, rows[done], t + done * SIM_TILE);
        if (most[done] > NBL_REBASE || most[done] < NBL_WEIGHT_MIN) {
            break;
        }
    }
    for (uint32_t r = 0; r < done; ++r) {
        float l = whole_weights(tile, t + r * SIM_TILE, most[r], two, p + r * SIM_TILE);
        b[r] = nbl_grid_base(most[r]);
        rows[r]->sum = nbl_fma(l, b[r], rows[r]->sum);
    }
    return done;
}

#endif
