/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file softmax_avx512.c
 * @brief One row's softmax over a tile (NUM 5.4), on whole vectors of tokens: about 20 operations for 16 of them.
 */
#include "avx512.h"
#include "exp2grid.h"
#include "rowsum.h"

#define PARTS_MAX (SIM_TILE / LANES)

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
    return nbl_clamp_f32(nbl_ceil(_mm512_reduce_max_ps(most)), -NBL_LOGIT_MAX, NBL_LOGIT_MAX);
}

/* t of 16 tokens. With integers in a, (a - B) + GRID has no rounding and is one addition. */
UNROLLED __m512 grid_logits(const sim_row_tile *row, float base, int whole_a, uint32_t i)
{
    __m512 a = _mm512_loadu_ps(row->a + i * LANES);
    __m512 offset = whole_a ? _mm512_add_ps(a, _mm512_set1_ps(NBL_GRID - base))
                            : _mm512_add_ps(_mm512_sub_ps(a, _mm512_set1_ps(base)), _mm512_set1_ps(NBL_GRID));
    return _mm512_fmadd_ps(_mm512_loadu_ps(row->x + i * LANES), _mm512_set1_ps(row->scale), offset);
}

/* t of all tokens; the largest of the visible ones is returned. */
UNROLLED float all_logits(const sim_row_tile *row, float base, int whole_a, int all, uint32_t parts, __m512 *t)
{
    __m512 most[2] = {_mm512_set1_ps(-INFINITY), _mm512_set1_ps(-INFINITY)};
    for (uint32_t i = 0; i < parts; ++i) {
        __m512 *largest = &most[i % 2u];
        t[i] = grid_logits(row, base, whole_a, i);
        *largest =
            all ? _mm512_max_ps(*largest, t[i]) : _mm512_mask_max_ps(*largest, visible_lanes(row, i), *largest, t[i]);
    }
    return _mm512_reduce_max_ps(_mm512_max_ps(most[0], most[1]));
}

/* The base moves: t again, at most REBASE above the new one. */
static float move_base(const sim_row_tile *row, sim_softmax *out, __m512 *t)
{
    float moved = fmaxf(out->base, base_of(row));
    float limit = NBL_GRID + NBL_REBASE;
    out->rescale = nbl_pow2f(out->base - moved);
    out->base = moved;
    float most = all_logits(row, moved, 0, 0, row->groups * HALVES, t);
    for (uint32_t i = 0; i < row->groups * HALVES; ++i) {
        t[i] = _mm512_min_ps(t[i], _mm512_set1_ps(limit));
    }
    return most < limit ? most : limit;
}

/* p of the visible tokens, 0 for the others. u = t - m + GRID: the low 8 bits of its representation are the fraction
 * of t - m, those above its floor, once they stand at the place of a float's exponent. */
static __m512 grid_exp2(__m512 u, __mmask16 visible)
{
    __m512i bits = _mm512_slli_epi32(_mm512_castps_si512(u), 15);
    __m512i floor = _mm512_and_si512(bits, _mm512_set1_epi32((int)0xff800000u));
    __m512 g = _mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(bits, _mm512_set1_epi32(0x007fffff), _mm512_set1_epi32(0x3f800000), 0xea));
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(SIM_GRID_C4), g, _mm512_set1_ps(SIM_GRID_C3));
    p = _mm512_fmadd_ps(p, g, _mm512_set1_ps(SIM_GRID_C2));
    p = _mm512_fmadd_ps(p, g, _mm512_set1_ps(SIM_GRID_C1));
    p = _mm512_fmadd_ps(p, g, _mm512_set1_ps(SIM_GRID_C0));
    __mmask16 kept = _mm512_mask_cmp_ps_mask(visible, u, _mm512_set1_ps(NBL_GRID + NBL_WEIGHT_MIN), _CMP_GE_OQ);
    return _mm512_castsi512_ps(_mm512_maskz_add_epi32(kept, _mm512_castps_si512(p), floor));
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
UNROLLED __m512i weigh(const sim_row_tile *row, __m512 u, __mmask16 visible, uint32_t i, __m512 *sums)
{
    __m512 e = grid_exp2(u, visible);
    *sums = _mm512_fmadd_ps(round_to_bf16(e), _mm512_loadu_ps(row->weight + i * LANES), *sums);
    return _mm512_castps_si512(_mm512_fmadd_ps(e, _mm512_set1_ps(NBL_P_SCALE), _mm512_set1_ps(NBL_MAGIC)));
}

/* A row that sees all 128 tokens: registers from end to end. */
UNROLLED __m512 weigh_all(const sim_row_tile *row, const __m512 *t, __m512 distance, uint8_t *p)
{
    __m512 sums = _mm512_setzero_ps();
    for (uint32_t quarter = 0; quarter < PARTS_MAX; quarter += 4u) {
        __m512i weights[4];
        for (uint32_t j = 0; j < 4u; ++j) {
            weights[j] = weigh(row, _mm512_sub_ps(t[quarter + j], distance), 0xffff, quarter + j, &sums);
        }
        _mm512_storeu_si512(p + quarter * LANES, low_bytes(weights));
    }
    return sums;
}

static __m512 weigh_visible(const sim_row_tile *row, const __m512 *t, __m512 distance, uint8_t *p)
{
    __m512 sums = _mm512_setzero_ps();
    for (uint32_t i = 0; i < row->groups * HALVES; ++i) {
        __m512i weights = weigh(row, _mm512_sub_ps(t[i], distance), visible_lanes(row, i), i, &sums);
        _mm_storeu_si128((__m128i *)(void *)(p + i * LANES), _mm512_cvtepi32_epi8(weights));
    }
    return sums;
}

sim_softmax sim_avx512_softmax(const sim_row_tile *row, float base, int first, uint8_t *p)
{
    __m512 t[PARTS_MAX];
    int all = row->groups == SIM_GROUPS && (row->visible[0] & row->visible[1]) == ~UINT64_C(0) && row->whole_a;
    sim_softmax out = {first ? base_of(row) : base, 1.0f, 0.0f, 0.0f, 0};
    float most =
        all ? all_logits(row, out.base, 1, 1, PARTS_MAX, t) : all_logits(row, out.base, 0, 0, row->groups * HALVES, t);
    if (most > NBL_GRID + NBL_REBASE) {
        most = move_base(row, &out, t);
    }
    if (most - NBL_GRID < NBL_WEIGHT_MIN) {
        out.left_out = 1;
        return out;
    }
    __m512 distance = _mm512_set1_ps(most - NBL_GRID);
    out.l = sum_tree(all ? weigh_all(row, t, distance, p) : weigh_visible(row, t, distance, p));
    out.b = nbl_grid_base(most - NBL_GRID);
    return out;
}
