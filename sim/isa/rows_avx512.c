/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file rows_avx512.c
 * @brief Conversion, rotation and quantizers of one vector for AVX-512; the other loops are AVX2's.
 *
 * A rotation of up to 128 elements stays in eight registers: four steps of two operations inside each, three of one
 * between them.
 */
#include "avx512.h"
#include "quantize.h"
#include "transform.h"

#include <stddef.h>

#define REGISTERS_MAX 8u /* of a rotation that stays in registers */

static __m512i magnitude_bits(__m512 x)
{
    return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}

/* ------------------------------------------------------------------------------------------------ conversion */

static __m512 load_sixteen(const uint8_t *from, uint32_t dtype)
{
    if (dtype == NBL_F32) {
        return _mm512_loadu_ps(from);
    }
    __m256i halves = _mm256_loadu_si256((const __m256i *)(const void *)from);
    if (dtype == NBL_BF16) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
    }
    return _mm512_cvtph_ps(halves);
}

/* NUM 3.1; a vector with something out of range is rare and loaded again. */
static void load_row(const uint8_t *from, uint32_t dtype, uint32_t dim, float *x, nbl_quant_stats *stats)
{
    const __m512i most = _mm512_set1_epi32((int)nbl_bits_of(NBL_INPUT_MAX));
    const uint32_t bytes = dtype == NBL_F32 ? 4u : 2u;
    const uint32_t whole = dim / LANES * LANES;
    __mmask16 beyond = 0;
    for (uint32_t d = 0; d < whole; d += LANES) {
        __m512 sixteen = load_sixteen(from + (size_t)d * bytes, dtype);
        _mm512_storeu_ps(x + d, sixteen);
        beyond |= _mm512_cmpgt_epi32_mask(magnitude_bits(sixteen), most);
    }
    const uint32_t first = beyond != 0 ? 0 : whole;
    if (first < dim) {
        sim_row_loops_avx2.load(from + (size_t)first * bytes, dtype, dim - first, x + first, stats);
    }
}

/* ------------------------------------------------------------------------------------------------ rotation */

/* a + b in the lanes of a, a - b in those of b, where sign is -1; swapped holds the partners. The product is exact. */
UNROLLED __m512 butterfly(__m512 x, __m512 swapped, __mmask16 minus)
{
    return _mm512_fmadd_ps(x, _mm512_mask_blend_ps(minus, _mm512_set1_ps(1.0f), _mm512_set1_ps(-1.0f)), swapped);
}

/* The steps h = 1, 2, 4, 8. */
UNROLLED __m512 hadamard_16(__m512 v)
{
    v = butterfly(v, _mm512_permute_ps(v, 0xb1), 0xaaaa);
    v = butterfly(v, _mm512_permute_ps(v, 0x4e), 0xcccc);
    v = butterfly(v, _mm512_shuffle_f32x4(v, v, 0xb1), 0xf0f0);
    return butterfly(v, _mm512_shuffle_f32x4(v, v, 0x4e), 0xff00);
}

/* A block of `registers` (a constant power of two up to 8) times 16 elements. */
UNROLLED void hadamard_block(float *x, uint32_t registers)
{
    __m512 v[REGISTERS_MAX];
    for (uint32_t i = 0; i < registers; ++i) {
        v[i] = hadamard_16(_mm512_loadu_ps(x + i * LANES));
    }
    for (uint32_t h = 1; h < registers; h *= 2u) {
        for (uint32_t i = 0; i < registers; ++i) {
            if ((i & h) == 0) {
                __m512 a = v[i];
                v[i] = _mm512_add_ps(a, v[i + h]);
                v[i + h] = _mm512_sub_ps(a, v[i + h]);
            }
        }
    }
    for (uint32_t i = 0; i < registers; ++i) {
        _mm512_storeu_ps(x + i * LANES, v[i]);
    }
}

/* The steps of a block up to h = 8, 16, 32 or 64, whichever is its last or 64. */
static void hadamard_in_registers(float *x, uint32_t n)
{
    switch (n) {
    case 16: hadamard_block(x, 1); break;
    case 32: hadamard_block(x, 2); break;
    case 64: hadamard_block(x, 4); break;
    default: hadamard_block(x, 8); break;
    }
}

/* The step h, a multiple of 16, on a block of 2h elements. */
static void hadamard_step(float *x, uint32_t h)
{
    for (uint32_t i = 0; i < h; i += LANES) {
        __m512 a = _mm512_loadu_ps(x + i);
        __m512 b = _mm512_loadu_ps(x + h + i);
        _mm512_storeu_ps(x + i, _mm512_add_ps(a, b));
        _mm512_storeu_ps(x + h + i, _mm512_sub_ps(a, b));
    }
}

/* NUM 4.1. */
static void hadamard(float *x, uint32_t dim, uint32_t n)
{
    const uint32_t inside = n < REGISTERS_MAX * LANES ? n : REGISTERS_MAX * LANES;
    if (n < LANES) {
        sim_row_loops_avx2.hadamard(x, dim, n);
        return;
    }
    for (uint32_t first = 0; first < dim; first += inside) {
        hadamard_in_registers(x + first, inside);
    }
    for (uint32_t h = inside; h < n; h *= 2u) {
        for (uint32_t first = 0; first < dim; first += 2u * h) {
            hadamard_step(x + first, h);
        }
    }
}

/* ------------------------------------------------------------------------------------------------ quantizers */

static float amax_of(const float *x, uint32_t dim)
{
    __m512i most = _mm512_setzero_si512();
    for (uint32_t d = 0; d < dim; d += LANES) {
        most = _mm512_max_epi32(most, magnitude_bits(_mm512_loadu_ps(x + d)));
    }
    return nbl_float_of((uint32_t)_mm512_reduce_max_epi32(most));
}

static __m512 rounded(__m512 x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static __m512 clamped(__m512 x, int32_t limit)
{
    return _mm512_max_ps(_mm512_min_ps(x, _mm512_set1_ps((float)limit)), _mm512_set1_ps(-(float)limit));
}

/* RNE_int of sixteen elements clamped to +-limit; counts what the clamp changes. */
static __m512i round_clamped(__m512 x, int32_t limit, uint64_t *saturated)
{
    __m512 all = rounded(x);
    __m512 inside = clamped(all, limit);
    *saturated += (uint32_t)__builtin_popcount(_mm512_cmpneq_ps_mask(all, inside));
    return _mm512_cvtps_epi32(inside);
}

static void store_low_bytes(uint8_t *to, __m512i dwords)
{
    _mm_storeu_si128((__m128i *)(void *)to, _mm512_cvtepi32_epi8(dwords));
}

static void quantize_int8(const float *x, nbl_vector *v, float amax, uint64_t *saturated)
{
    const int32_t e = nbl_exponent_for(amax, (float)NBL_INT8_CODE_MAX, NBL_E_MIN, NBL_E_MAX);
    const __m512 inverse = _mm512_set1_ps(nbl_pow2(-e));
    for (uint32_t d = 0; d < v->dim; d += LANES) {
        __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(x + d), inverse);
        store_low_bytes(v->codes + d, round_clamped(scaled, NBL_INT8_CODE_MAX, saturated));
    }
    v->scales[0] = nbl_e8m0_encode(e);
}

/* E2M1 codes of sixteen elements (NUM 3.4): see rows_avx2.c. */
static __m512i e2m1_codes(__m512 x)
{
    const float bounds[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    const __m512i one = _mm512_set1_epi32(1);
    __m512 a = _mm512_abs_ps(x);
    __m512i code = _mm512_setzero_si512();
    for (uint32_t i = 0; i < 7u; ++i) {
        __m512 bound = _mm512_set1_ps(bounds[i]);
        __mmask16 above =
            i % 2u == 0 ? _mm512_cmp_ps_mask(a, bound, _CMP_GT_OQ) : _mm512_cmp_ps_mask(a, bound, _CMP_GE_OQ);
        code = _mm512_mask_add_epi32(code, above, code, one);
    }
    __m512i sign = _mm512_and_si512(_mm512_srli_epi32(_mm512_castps_si512(x), 28), _mm512_set1_epi32(8));
    return _mm512_mask_or_epi32(code, _mm512_test_epi32_mask(code, code), code, sign);
}

static void quantize_mxfp4(const float *x, uint32_t rule, nbl_vector *v, uint64_t *saturated)
{
    const uint32_t block_dim = nbl_layout_block_dim(v->format, v->dim);
    int32_t exponents[NBL_SCALES_MAX];
    sim_avx2_block_exponents(x, rule, v, exponents);
    for (uint32_t d = 0; d < v->dim; d += LANES) {
        __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(x + d), _mm512_set1_ps(nbl_pow2(-exponents[d / block_dim])));
        __mmask16 beyond = _mm512_cmp_ps_mask(_mm512_abs_ps(scaled), _mm512_set1_ps(6.0f), _CMP_GT_OQ);
        *saturated += (uint32_t)__builtin_popcount(beyond);
        store_low_bytes(v->codes + d, e2m1_codes(scaled));
    }
}

/* ------------------------------------------------------------------------------------------------ int4p */

#define BLOCK SIM_BLOCK
#define BLOCKS 8u /* side by side */

/* Eight blocks, each twice: block i in lanes i and i + 4 for i < 4, in i + 4 and i + 8 for others. The first copy is
 * tried with one multiplier, the second with another; t[d] has element d of all. The error of a multiplier is a sum in
 * element order, so elements cannot share a register, but blocks and multipliers can. */
static void transpose_twice(const __m512 *y, __m512 *t)
{
    __m512 quads[2][4]; /* [blocks 0..3, 4..7][d % 4], 128 bits for each d / 4 */
    for (uint32_t i = 0; i < 2u; ++i, y += 4) {
        __m512d low_01 = _mm512_castps_pd(_mm512_unpacklo_ps(y[0], y[1]));
        __m512d low_23 = _mm512_castps_pd(_mm512_unpacklo_ps(y[2], y[3]));
        __m512d high_01 = _mm512_castps_pd(_mm512_unpackhi_ps(y[0], y[1]));
        __m512d high_23 = _mm512_castps_pd(_mm512_unpackhi_ps(y[2], y[3]));
        quads[i][0] = _mm512_castpd_ps(_mm512_unpacklo_pd(low_01, low_23));
        quads[i][1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low_01, low_23));
        quads[i][2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high_01, high_23));
        quads[i][3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high_01, high_23));
    }
    for (uint32_t j = 0; j < 4u; ++j) {
        t[j] = _mm512_shuffle_f32x4(quads[0][j], quads[1][j], 0x00);
        t[4u + j] = _mm512_shuffle_f32x4(quads[0][j], quads[1][j], 0x55);
        t[8u + j] = _mm512_shuffle_f32x4(quads[0][j], quads[1][j], 0xaa);
        t[12u + j] = _mm512_shuffle_f32x4(quads[0][j], quads[1][j], 0xff);
    }
}

#define SECOND_COPY 0xf0f0u

/* Smallest m of 1..16 with amax <= 7 * m, else 16. 1/7 rounded may miss by one either way. */
static __m512 least_multiplier(const __m512 *t)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    const __m512 peak = _mm512_set1_ps((float)NBL_INT4P_CODE_MAX);
    __m512 amax = _mm512_setzero_ps();
    for (uint32_t d = 0; d < BLOCK; ++d) {
        amax = _mm512_max_ps(amax, _mm512_abs_ps(t[d]));
    }
    amax = _mm512_min_ps(amax, _mm512_set1_ps(2.0f * NBL_INT4P_PEAK));
    __m512 m = _mm512_roundscale_ps(_mm512_mul_ps(amax, _mm512_set1_ps(1.0f / 7.0f)), _MM_FROUND_CEIL);
    __m512 less = _mm512_sub_ps(m, one);
    m = _mm512_mask_mov_ps(m, _mm512_cmp_ps_mask(amax, _mm512_mul_ps(less, peak), _CMP_LE_OQ), less);
    m = _mm512_mask_add_ps(m, _mm512_cmp_ps_mask(amax, _mm512_mul_ps(m, peak), _CMP_GT_OQ), m, one);
    return _mm512_min_ps(_mm512_max_ps(m, one), _mm512_set1_ps((float)NBL_INT4P_MULTIPLIER_MAX));
}

/* The best of m0 - 1, m0, m0 + 1 for each block (NUM 3.5), in the lanes of both copies. */
static __m512 choose_multipliers(const __m512 *t)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    const __m512 m0 = least_multiplier(t);
    const __m512 less = _mm512_sub_ps(m0, one), more = _mm512_add_ps(m0, one);
    const __m512 pair = _mm512_mask_mov_ps(less, SECOND_COPY, m0); /* m0 - 1 for the first copy, m0 for the second */
    const __m512 pair_inverse = _mm512_div_ps(one, pair), more_inverse = _mm512_div_ps(one, more);
    __m512 pair_error = _mm512_setzero_ps(), more_error = _mm512_setzero_ps();
    for (uint32_t d = 0; d < BLOCK; ++d) {
        __m512 q = clamped(rounded(_mm512_mul_ps(t[d], pair_inverse)), NBL_INT4P_CODE_MAX);
        __m512 difference = _mm512_fnmadd_ps(q, pair, t[d]); /* the product is exact */
        pair_error = _mm512_fmadd_ps(difference, difference, pair_error);
        q = rounded(_mm512_mul_ps(t[d], more_inverse)); /* where m0 < 16, nothing is beyond 7 * m0 */
        difference = _mm512_fnmadd_ps(q, more, t[d]);
        more_error = _mm512_fmadd_ps(difference, difference, more_error);
    }
    const __m512 less_error = _mm512_shuffle_f32x4(pair_error, pair_error, 0xa0);
    const __m512 same_error = _mm512_shuffle_f32x4(pair_error, pair_error, 0xf5);
    __mmask16 has_less = _mm512_cmp_ps_mask(m0, one, _CMP_GT_OQ);
    __mmask16 has_more = _mm512_cmp_ps_mask(m0, _mm512_set1_ps((float)NBL_INT4P_MULTIPLIER_MAX), _CMP_LT_OQ);
    __mmask16 take_less = _mm512_mask_cmp_ps_mask(has_less, less_error, same_error, _CMP_LE_OQ);
    __m512 best = _mm512_mask_mov_ps(m0, take_less, less);
    __m512 least = _mm512_mask_mov_ps(same_error, take_less, less_error);
    return _mm512_mask_mov_ps(best, _mm512_mask_cmp_ps_mask(has_more, more_error, least, _CMP_LT_OQ), more);
}

/* Up to eight blocks; m - 1 of each at `multipliers`. */
static void quantize_blocks(const float *x, uint32_t blocks, float inverse, uint8_t *codes, uint8_t *multipliers,
                            uint64_t *saturated)
{
    __m512 y[BLOCKS], t[BLOCK];
    _Alignas(LINE) float inverses[LANES];
    for (uint32_t b = 0; b < BLOCKS; ++b) {
        y[b] =
            b < blocks ? _mm512_mul_ps(_mm512_loadu_ps(x + b * BLOCK), _mm512_set1_ps(inverse)) : _mm512_setzero_ps();
    }
    transpose_twice(y, t);
    __m512 m = choose_multipliers(t);
    __m512 first = _mm512_maskz_compress_ps((__mmask16)~SECOND_COPY, m);
    __m512i stored = _mm512_sub_epi32(_mm512_cvtps_epi32(first), _mm512_set1_epi32(1));
    _mm_storel_epi64((__m128i *)(void *)multipliers, _mm512_cvtepi32_epi8(stored));
    _mm512_store_ps(inverses, _mm512_div_ps(_mm512_set1_ps(1.0f), first));
    for (uint32_t b = 0; b < blocks; ++b) {
        __m512i q = round_clamped(_mm512_mul_ps(y[b], _mm512_set1_ps(inverses[b])), NBL_INT4P_CODE_MAX, saturated);
        store_low_bytes(codes + b * BLOCK, _mm512_add_epi32(q, _mm512_set1_epi32(8)));
    }
}

static void quantize_int4p(const float *x, nbl_vector *v, float amax, uint64_t *saturated)
{
    const int32_t e = nbl_exponent_for(amax, NBL_INT4P_PEAK, NBL_E_MIN, NBL_E_MAX);
    for (uint32_t first = 0; first < v->dim; first += BLOCKS * BLOCK) {
        uint8_t multipliers[BLOCKS];
        uint32_t left = (v->dim - first) / BLOCK;
        uint32_t blocks = left < BLOCKS ? left : BLOCKS;
        quantize_blocks(x + first, blocks, nbl_pow2(-e), v->codes + first, multipliers, saturated);
        for (uint32_t i = 0; 2u * i < blocks; ++i) {
            v->scales[first / (2u * BLOCK) + i] = (uint8_t)(multipliers[2u * i] | multipliers[2u * i + 1u] << 4);
        }
    }
    v->scales[nbl_layout_exponent_plane(v->format, v->dim)] = nbl_e8m0_encode(e);
}

/* 1 if all codes of the vector are that of zero. */
static int is_zero(const nbl_vector *v)
{
    const __m128i zero = _mm_set1_epi8((char)nbl_block_zero_code(v->format));
    __m128i differ = _mm_setzero_si128();
    for (uint32_t d = 0; d < v->dim; d += BLOCK) {
        __m128i codes = _mm_loadu_si128((const __m128i *)(const void *)(v->codes + d));
        differ = _mm_or_si128(differ, _mm_xor_si128(codes, zero));
    }
    return _mm_testz_si128(differ, differ);
}

/* nbl_vector_quantize of whole registers (NUM 3.2 to 3.5, 3.3), else AVX2's. */
static void quantize(const float *x, uint32_t dim, uint32_t format, uint32_t rule, nbl_vector *v,
                     nbl_quant_stats *stats)
{
    if ((CODED_FORMATS >> format & 1u) == 0 || dim % LANES != 0) {
        sim_row_loops_avx2.quantize(x, dim, format, rule, v, stats);
        return;
    }
    const float amax = amax_of(x, dim);
    v->format = format;
    v->dim = dim;
    memset(v->codes + dim, nbl_block_zero_code(format), nbl_layout_dim_padded(dim) - dim);
    switch (format) {
    case NBL_INT8: quantize_int8(x, v, amax, &stats->saturated); break;
    case NBL_INT4P: quantize_int4p(x, v, amax, &stats->saturated); break;
    default: quantize_mxfp4(x, rule, v, &stats->saturated); break;
    }
    stats->vectors++;
    stats->flushed += amax > 0.0f && is_zero(v);
}

/* ------------------------------------------------------------------------------------------------ the table */

static void store_row(uint8_t *to, uint32_t dtype, uint32_t dim, const float *x)
{
    sim_row_loops_avx2.store(to, dtype, dim, x);
}

static void interleave(const uint8_t *from, uint64_t bytes, uint32_t n, uint8_t *to)
{
    sim_row_loops_avx2.interleave(from, bytes, n, to);
}

/* These the compiler vectorises by itself. */

static void shift_up(float *x, uint32_t dim, const uint8_t *shifts)
{
    nbl_shift_up(x, dim, shifts);
}

static void shift_down(float *x, uint32_t dim, const uint8_t *shifts)
{
    nbl_shift_down(x, dim, shifts);
}

static void subtract_center(float *x, uint32_t dim, const int8_t *codes, uint8_t exponent)
{
    nbl_center_subtract(x, dim, codes, exponent);
}

const sim_row_loops sim_row_loops_avx512 = {
    .load = load_row,
    .store = store_row,
    .shift_up = shift_up,
    .shift_down = shift_down,
    .hadamard = hadamard,
    .subtract_center = subtract_center,
    .quantize = quantize,
    .interleave = interleave,
};
