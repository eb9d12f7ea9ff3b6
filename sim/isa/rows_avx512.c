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
#include "rows_plain.h"

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

/* Bytes of four registers of dwords from -128 to 127, in order. */
static __m512i pack_bytes(const __m512i *dwords)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i low = _mm512_packs_epi32(dwords[0], dwords[1]), high = _mm512_packs_epi32(dwords[2], dwords[3]);
    return _mm512_permutexvar_epi32(order, _mm512_packs_epi16(low, high));
}

/* Registers of the next four that a vector has from element `first` on. */
static uint32_t registers_from(uint32_t first, uint32_t dim)
{
    const uint32_t left = (dim - first) / LANES;
    return left < 4u ? left : 4u;
}

/* Four registers of a vector from element `first` on, zeros where it has ended. */
static void load_four(const float *x, uint32_t first, uint32_t dim, __m512 *four)
{
    const uint32_t count = registers_from(first, dim);
    for (uint32_t i = 0; i < 4u; ++i) {
        four[i] = i < count ? _mm512_loadu_ps(x + first + i * LANES) : _mm512_setzero_ps();
    }
}

/* Codes of four registers, as far as the vector goes. */
static void store_four(uint8_t *codes, uint32_t first, uint32_t dim, __m512i bytes)
{
    const uint32_t count = registers_from(first, dim);
    _mm512_mask_storeu_epi8(codes + first, ~UINT64_C(0) >> (LINE - count * LANES), bytes);
}

/* Nothing is beyond the largest code: quantize has seen to it. */
static void quantize_int8(const float *x, nbl_vector *v, float amax)
{
    const int32_t e = nbl_exponent_for(amax, (float)NBL_INT8_CODE_MAX, NBL_E_MIN, NBL_E_MAX);
    const __m512 inverse = _mm512_set1_ps(nbl_pow2(-e));
    for (uint32_t first = 0; first < v->dim; first += LINE) {
        __m512 four[4];
        __m512i q[4];
        load_four(x, first, v->dim, four);
        for (uint32_t i = 0; i < 4u; ++i) {
            q[i] = _mm512_cvtps_epi32(_mm512_mul_ps(four[i], inverse));
        }
        store_four(v->codes, first, v->dim, pack_bytes(q));
    }
    v->scales[0] = nbl_e8m0_encode(e);
}

/* E2M1 codes of sixteen magnitudes, which end at 7, in the low bytes (NUM 3.4): see rows_avx2.c. */
static __m512i e2m1_magnitudes(__m512 a)
{
    __m512 low = _mm512_fmadd_ps(a, _mm512_set1_ps(2.0f), _mm512_set1_ps(NBL_MAGIC));
    __m512 middle = _mm512_add_ps(a, _mm512_set1_ps(NBL_MAGIC + 2.0f));
    __m512 high = _mm512_fmadd_ps(a, _mm512_set1_ps(0.5f), _mm512_set1_ps(NBL_MAGIC + 4.0f));
    __m512 most = _mm512_min_ps(high, _mm512_set1_ps(NBL_MAGIC + 7.0f));
    return _mm512_castps_si512(_mm512_min_ps(_mm512_min_ps(low, middle), most));
}

/* Codes of 64 elements that are scaled already; counts those beyond the largest one. */
static __m512i e2m1_codes(const __m512 *scaled, uint64_t *saturated)
{
    __m512i magnitudes[4];
    __mmask64 minus = 0;
    for (uint32_t i = 0; i < 4u; ++i) {
        const __m512 a = _mm512_abs_ps(scaled[i]);
        magnitudes[i] = e2m1_magnitudes(a);
        minus |= (__mmask64)_mm512_movepi32_mask(_mm512_castps_si512(scaled[i])) << (LANES * i);
        *saturated += (uint32_t)__builtin_popcount(_mm512_cmp_ps_mask(a, _mm512_set1_ps(6.0f), _CMP_GT_OQ));
    }
    const __m512i all = low_bytes(magnitudes);
    const __mmask64 signs = minus & _mm512_test_epi8_mask(all, all); /* 0 has no sign */
    return _mm512_or_si512(all, _mm512_maskz_mov_epi8(signs, _mm512_set1_epi8(8)));
}

static void quantize_mxfp4(const float *x, uint32_t rule, nbl_vector *v, uint64_t *saturated)
{
    const uint32_t block_dim = nbl_layout_block_dim(v->format, v->dim);
    int32_t exponents[NBL_SCALES_MAX];
    sim_avx2_block_exponents(x, rule, v, exponents);
    for (uint32_t first = 0; first < v->dim; first += LINE) {
        __m512 four[4];
        load_four(x, first, v->dim, four);
        for (uint32_t i = 0; i < registers_from(first, v->dim); ++i) {
            const int32_t e = exponents[(first + i * LANES) / block_dim];
            four[i] = _mm512_mul_ps(four[i], _mm512_set1_ps(nbl_pow2(-e)));
        }
        store_four(v->codes, first, v->dim, e2m1_codes(four, saturated));
    }
}

/* ------------------------------------------------------------------------------------------------ int4p */

#define BLOCK SIM_BLOCK
#define BLOCKS 8u /* side by side, a register each */

/* Lane of a register that has one value for each of eight blocks; the next lane has it too. */
#define LANE_OF(block) ((block) % 4u * 4u + (block) / 4u * 2u)

UNROLLED __m512 folded(int is_sum, __m512 a, __m512 b)
{
    return is_sum ? _mm512_add_ps(a, b) : _mm512_max_ps(a, b);
}

/* Sums, or largest ones, of the sixteen lanes of each of eight registers: that of v[b] in LANE_OF(b). */
UNROLLED __m512 fold_lanes(int is_sum, const __m512 *v)
{
    __m512 halves[4], quads[2];
    for (uint32_t i = 0; i < 4u; ++i) {
        const __m512 *pair = v + 2u * i;
        halves[i] =
            folded(is_sum, _mm512_shuffle_f32x4(pair[0], pair[1], 0x44), _mm512_shuffle_f32x4(pair[0], pair[1], 0xee));
    }
    for (uint32_t i = 0; i < 2u; ++i) {
        const __m512 *pair = halves + 2u * i;
        quads[i] =
            folded(is_sum, _mm512_shuffle_f32x4(pair[0], pair[1], 0x88), _mm512_shuffle_f32x4(pair[0], pair[1], 0xdd));
    }
    __m512 pairs =
        folded(is_sum, _mm512_shuffle_ps(quads[0], quads[1], 0x44), _mm512_shuffle_ps(quads[0], quads[1], 0xee));
    return folded(is_sum, pairs, _mm512_permute_ps(pairs, 0xb1));
}

/* A multiplier for each of eight blocks and one over it. */
typedef struct trial {
    _Alignas(LINE) float m[LANES];
    _Alignas(LINE) float inverse[LANES];
} trial;

/* fl(1 / m) of NUM 3.5 for m of 1..16, and something for others. */
static __m512 inverse_of(__m512 m)
{
    const __m512 table = _mm512_setr_ps(1.0f, 1.0f / 2.0f, 1.0f / 3.0f, 1.0f / 4.0f, 1.0f / 5.0f, 1.0f / 6.0f,
                                        1.0f / 7.0f, 1.0f / 8.0f, 1.0f / 9.0f, 1.0f / 10.0f, 1.0f / 11.0f, 1.0f / 12.0f,
                                        1.0f / 13.0f, 1.0f / 14.0f, 1.0f / 15.0f, 1.0f / 16.0f);
    return _mm512_permutexvar_ps(_mm512_cvtps_epi32(_mm512_sub_ps(m, _mm512_set1_ps(1.0f))), table);
}

static void set_trial(trial *of, __m512 m)
{
    _mm512_store_ps(of->m, m);
    _mm512_store_ps(of->inverse, inverse_of(m));
    __asm__("" : "+m"(*of)); /* a value is read from memory, once for each use, instead of permuted from a register */
}

/* Squared errors of blocks with the multipliers of a trial, near enough for choose_multipliers. may_clamp: codes may
 * lie beyond the largest one. */
UNROLLED __m512 errors_of(const __m512 *y, const trial *with, int may_clamp)
{
    const __m512 magic = _mm512_set1_ps(NBL_MAGIC);
    __m512 squares[BLOCKS];
    for (uint32_t b = 0; b < BLOCKS; ++b) {
        __m512 q = _mm512_fmadd_ps(y[b], _mm512_set1_ps(with->inverse[LANE_OF(b)]), magic);
        if (may_clamp) {
            q = _mm512_min_ps(q, _mm512_set1_ps(NBL_MAGIC + (float)NBL_INT4P_CODE_MAX));
            q = _mm512_max_ps(q, _mm512_set1_ps(NBL_MAGIC - (float)NBL_INT4P_CODE_MAX));
        }
        __m512 difference = _mm512_fnmadd_ps(_mm512_sub_ps(q, magic), _mm512_set1_ps(with->m[LANE_OF(b)]), y[b]);
        squares[b] = _mm512_mul_ps(difference, difference);
    }
    return fold_lanes(1, squares);
}

/* Smallest m of 1..16 with amax <= 7 * m, amax being at most 112. 1/7 rounded may miss by one either way. */
static __m512 least_multiplier(__m512 amax)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    const __m512 peak = _mm512_set1_ps((float)NBL_INT4P_CODE_MAX);
    __m512 m = _mm512_roundscale_ps(_mm512_mul_ps(amax, _mm512_set1_ps(1.0f / 7.0f)), _MM_FROUND_CEIL);
    __m512 less = _mm512_sub_ps(m, one);
    m = _mm512_mask_mov_ps(m, _mm512_cmp_ps_mask(amax, _mm512_mul_ps(less, peak), _CMP_LE_OQ), less);
    m = _mm512_mask_add_ps(m, _mm512_cmp_ps_mask(amax, _mm512_mul_ps(m, peak), _CMP_GT_OQ), m, one);
    return _mm512_max_ps(m, one);
}

/* Lanes in which two errors are too close for their order to be that of the rule's. */
static __mmask16 too_close(__m512 a, __m512 b)
{
    const __m512 bound = _mm512_mul_ps(_mm512_min_ps(a, b), _mm512_set1_ps(0x1p-14f));
    return _mm512_cmp_ps_mask(_mm512_abs_ps(_mm512_sub_ps(a, b)), bound, _CMP_LE_OQ);
}

/* The best of m0 - 1, m0, m0 + 1 for each block (NUM 3.5), from errors that differ from the rule's by less than 2^-15
 * of them: sums in another order, and products that are not rounded before they become integers (ADR 17 has the
 * bounds). Lanes in which that does not decide are returned. */
static __mmask16 choose_multipliers(const __m512 *y, __m512 amax, __m512 *best)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    const __m512 m0 = least_multiplier(amax);
    const __m512 less = _mm512_sub_ps(m0, one), more = _mm512_add_ps(m0, one);
    const __mmask16 has_less = _mm512_cmp_ps_mask(m0, one, _CMP_GT_OQ);
    const __mmask16 has_more = _mm512_cmp_ps_mask(m0, _mm512_set1_ps((float)NBL_INT4P_MULTIPLIER_MAX), _CMP_LT_OQ);
    /* where all elements round to 0, m0 is 1, and its errors are those of 2 */
    const __mmask16 rounds = _mm512_cmp_ps_mask(amax, _mm512_set1_ps(0.5f), _CMP_GE_OQ);
    trial with[3];
    set_trial(&with[0], less);
    set_trial(&with[1], m0);
    set_trial(&with[2], more);
    const __m512 less_error = errors_of(y, &with[0], 1);
    const __m512 same_error = errors_of(y, &with[1], 0);
    const __m512 more_error = errors_of(y, &with[2], 0);
    const __mmask16 take_less = _mm512_mask_cmp_ps_mask(has_less, less_error, same_error, _CMP_LE_OQ);
    const __m512 least = _mm512_mask_mov_ps(same_error, take_less, less_error);
    const __mmask16 take_more = _mm512_mask_cmp_ps_mask(has_more & rounds, more_error, least, _CMP_LT_OQ);
    *best = _mm512_mask_mov_ps(_mm512_mask_mov_ps(m0, take_less, less), take_more, more);
    return (has_less & too_close(less_error, same_error)) | (has_more & rounds & too_close(more_error, least));
}

/* Asks the rule for the blocks of some lanes. */
static __attribute__((noinline)) __m512 ask_multipliers(const __m512 *y, __mmask16 lanes, __m512 best)
{
    float m[LANES], block[BLOCK];
    _mm512_storeu_ps(m, best);
    for (uint32_t b = 0; b < BLOCKS; ++b) {
        if (lanes >> LANE_OF(b) & 1u) {
            _mm512_storeu_ps(block, y[b]);
            m[LANE_OF(b)] = (float)nbl_int4p_choose_multiplier(block, BLOCK);
        }
    }
    return _mm512_loadu_ps(m);
}

/* Stored codes of blocks with multipliers; counts what the clamp changes (NUM 3.5). */
static void store_codes(const __m512 *y, __m512 m, uint32_t blocks, uint8_t *codes, uint64_t *saturated)
{
    const __m512i most = _mm512_set1_epi8(NBL_INT4P_CODE_MAX), least = _mm512_set1_epi8(-NBL_INT4P_CODE_MAX);
    trial chosen;
    set_trial(&chosen, m);
    for (uint32_t first = 0; first < blocks; first += 4u) {
        __m512i q[4];
        for (uint32_t i = 0; i < 4u; ++i) {
            const float inverse = chosen.inverse[LANE_OF(first + i)];
            q[i] = _mm512_cvtps_epi32(_mm512_mul_ps(y[first + i], _mm512_set1_ps(inverse)));
        }
        const __m512i all = pack_bytes(q);
        const __m512i inside = _mm512_max_epi8(_mm512_min_epi8(all, most), least);
        *saturated += (uint32_t)__builtin_popcountll(_mm512_cmpneq_epi8_mask(all, inside));
        store_four(codes, first * BLOCK, blocks * BLOCK, _mm512_add_epi8(inside, _mm512_set1_epi8(8)));
    }
}

/* Nibbles m - 1 of the blocks, two in a byte. */
static void store_multipliers(__m512 m, uint32_t blocks, uint8_t *scales)
{
    const __m512i places = _mm512_setr_epi32(LANE_OF(0), LANE_OF(2), LANE_OF(4), LANE_OF(6), LANE_OF(1), LANE_OF(3),
                                             LANE_OF(5), LANE_OF(7), 0, 0, 0, 0, 0, 0, 0, 0);
    __m512i stored = _mm512_sub_epi32(_mm512_cvtps_epi32(m), _mm512_set1_epi32(1));
    __m256i even_odd = _mm512_castsi512_si256(_mm512_permutexvar_epi32(places, stored));
    __m128i odd = _mm_slli_epi32(_mm256_extracti128_si256(even_odd, 1), 4);
    __m128i pairs = _mm_cvtepi32_epi8(_mm_or_si128(_mm256_castsi256_si128(even_odd), odd));
    const uint32_t all = (uint32_t)_mm_cvtsi128_si32(pairs);
    memcpy(scales, &all, (blocks + 1u) / 2u);
}

/* Up to eight blocks of elements of at most 112. */
static void quantize_blocks(const float *x, uint32_t blocks, float inverse, uint8_t *codes, uint8_t *scales,
                            uint64_t *saturated)
{
    __m512 y[BLOCKS], magnitudes[BLOCKS], m;
    for (uint32_t b = 0; b < BLOCKS; ++b) {
        y[b] =
            b < blocks ? _mm512_mul_ps(_mm512_loadu_ps(x + b * BLOCK), _mm512_set1_ps(inverse)) : _mm512_setzero_ps();
        magnitudes[b] = _mm512_abs_ps(y[b]);
    }
    const __mmask16 asked = choose_multipliers(y, fold_lanes(0, magnitudes), &m);
    if (asked != 0) {
        m = ask_multipliers(y, asked, m);
    }
    store_codes(y, m, blocks, codes, saturated);
    store_multipliers(m, blocks, scales);
}

static void quantize_int4p(const float *x, nbl_vector *v, float amax, uint64_t *saturated)
{
    const int32_t e = nbl_exponent_for(amax, NBL_INT4P_PEAK, NBL_E_MIN, NBL_E_MAX);
    for (uint32_t first = 0; first < v->dim; first += BLOCKS * BLOCK) {
        uint32_t left = (v->dim - first) / BLOCK;
        uint32_t blocks = left < BLOCKS ? left : BLOCKS;
        quantize_blocks(x + first, blocks, nbl_pow2(-e), v->codes + first, v->scales + first / (2u * BLOCK), saturated);
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
    const int is_known = (CODED_FORMATS >> format & 1u) != 0 && dim % LANES == 0;
    const float amax = is_known ? amax_of(x, dim) : 0.0f;
    if (!is_known || amax > NBL_INT4P_PEAK * nbl_pow2(NBL_E_MAX)) { /* codes saturate; int8's a little later */
        sim_row_loops_avx2.quantize(x, dim, format, rule, v, stats);
        return;
    }
    v->format = format;
    v->dim = dim;
    memset(v->codes + dim, nbl_block_zero_code(format), nbl_layout_dim_padded(dim) - dim);
    switch (format) {
    case NBL_INT8: quantize_int8(x, v, amax); break;
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
