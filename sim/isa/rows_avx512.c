/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file rows_avx512.c
 * @brief Conversion, rotation and the int8 quantizer of one vector for AVX-512; the other loops are AVX2's.
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

/* ------------------------------------------------------------------------------------------------ int8 */

static float amax_of(const float *x, uint32_t dim)
{
    __m512i most = _mm512_setzero_si512();
    for (uint32_t d = 0; d < dim; d += LANES) {
        most = _mm512_max_epi32(most, magnitude_bits(_mm512_loadu_ps(x + d)));
    }
    return nbl_float_of((uint32_t)_mm512_reduce_max_epi32(most));
}

/* nbl_vector_quantize: int8 of whole registers (NUM 3.2), else AVX2's. */
static void quantize(const float *x, uint32_t dim, uint32_t format, uint32_t rule, nbl_vector *v,
                     nbl_quant_stats *stats)
{
    if (format != NBL_INT8 || dim % LANES != 0) {
        sim_row_loops_avx2.quantize(x, dim, format, rule, v, stats);
        return;
    }
    const __m512 limit = _mm512_set1_ps((float)NBL_INT8_CODE_MAX);
    const float amax = amax_of(x, dim);
    const int32_t e = nbl_exponent_for(amax, (float)NBL_INT8_CODE_MAX, NBL_E_MIN, NBL_E_MAX);
    const __m512 inverse = _mm512_set1_ps(nbl_pow2(-e));
    __m512i any = _mm512_setzero_si512();
    v->format = format;
    v->dim = dim;
    memset(v->codes, nbl_block_zero_code(format), nbl_layout_dim_padded(dim));
    for (uint32_t d = 0; d < dim; d += LANES) {
        __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(x + d), inverse);
        __m512 rounded = _mm512_roundscale_ps(scaled, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        __m512 clamped = _mm512_max_ps(_mm512_min_ps(rounded, limit), _mm512_sub_ps(_mm512_setzero_ps(), limit));
        __m512i codes = _mm512_cvtps_epi32(clamped);
        stats->saturated += (uint32_t)__builtin_popcount(_mm512_cmpneq_ps_mask(rounded, clamped));
        any = _mm512_or_si512(any, codes);
        _mm_storeu_si128((__m128i *)(void *)(v->codes + d), _mm512_cvtepi32_epi8(codes));
    }
    v->scales[0] = nbl_e8m0_encode(e);
    stats->vectors++;
    stats->flushed += amax > 0.0f && _mm512_test_epi32_mask(any, any) == 0;
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
