/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file rows_avx2.c
 * @brief The loops over one vector for AVX2, FMA and F16C: transforms, quantizers, conversions.
 *
 * int4p is quantized with a block per lane, eight blocks at once: the error of a multiplier is a sum in element order,
 * so elements cannot share a register, but blocks and multipliers are independent.
 */
#include "isa.h"
#include "quantize.h"
#include "rows_plain.h"

#include <immintrin.h>
#include <stddef.h>

#define LANES 8u
#define BLOCK 16u /* elements of an int4p block */

/** A loop body that is compiled once for each set of constant arguments. */
#define UNROLLED static inline __attribute__((always_inline))

/* ------------------------------------------------------------------------------------------------ conversions */

static __m128i load_half(const void *bytes)
{
    return _mm_loadu_si128((const __m128i *)bytes);
}

static __m256i magnitude_bits(__m256 x)
{
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

static uint32_t count_lanes(__m256i mask)
{
    return (uint32_t)__builtin_popcount((uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(mask)));
}

static uint32_t sum_of_lanes(__m256i x)
{
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
}

static __m256 load_eight(const uint8_t *from, uint32_t dtype)
{
    if (dtype == NBL_F32) {
        return _mm256_loadu_ps((const float *)(const void *)from);
    }
    if (dtype == NBL_BF16) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_half(from)), 16));
    }
    return _mm256_cvtph_ps(load_half(from));
}

/* All elements as they are; the largest magnitude of each lane is returned. */
UNROLLED __m256i load_all(const uint8_t *from, uint32_t dtype, uint32_t dim, float *x)
{
    const uint32_t bytes = dtype == NBL_F32 ? 4u : 2u;
    __m256i largest = _mm256_setzero_si256();
    for (uint32_t d = 0; d < dim; d += LANES, from += LANES * bytes) {
        __m256 eight = load_eight(from, dtype);
        _mm256_storeu_ps(x + d, eight);
        largest = _mm256_max_epi32(largest, magnitude_bits(eight));
    }
    return largest;
}

/* NUM 3.1; what is out of range is rare and goes through the plain function. */
static void load_row(const uint8_t *from, uint32_t dtype, uint32_t dim, float *x, nbl_quant_stats *stats)
{
    const __m256i most = _mm256_set1_epi32((int)nbl_bits_of(NBL_INPUT_MAX));
    __m256i largest;
    switch (dtype) {
    case NBL_F32: largest = load_all(from, NBL_F32, dim, x); break;
    case NBL_BF16: largest = load_all(from, NBL_BF16, dim, x); break;
    default: largest = load_all(from, NBL_F16, dim, x); break;
    }
    if (count_lanes(_mm256_cmpgt_epi32(largest, most)) != 0) {
        for (uint32_t d = 0; d < dim; ++d) {
            x[d] = nbl_sanitize(x[d], stats);
        }
    }
}

/* bf16 in the low halves of dwords, RNE; NaN stays a quiet NaN. */
static __m256i bf16_dwords(__m256 x)
{
    __m256i bits = _mm256_castps_si256(x);
    __m256i high = _mm256_srli_epi32(bits, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256i nan = _mm256_cmpgt_epi32(magnitude_bits(x), _mm256_set1_epi32(0x7f800000));
    return _mm256_blendv_epi8(_mm256_srli_epi32(rounded, 16), _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
}

static void store_row(uint8_t *to, uint32_t dtype, uint32_t dim, const float *x)
{
    for (uint32_t d = 0; d < dim; d += LANES) {
        __m256 eight = _mm256_loadu_ps(x + d);
        if (dtype == NBL_F32) {
            _mm256_storeu_ps((float *)(void *)to + d, eight);
        } else if (dtype == NBL_BF16) {
            __m256i words = bf16_dwords(eight);
            words = _mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0x08);
            _mm_storeu_si128((__m128i *)(void *)(to + 2u * d), _mm256_castsi256_si128(words));
        } else {
            _mm_storeu_si128((__m128i *)(void *)(to + 2u * d), _mm256_cvtps_ph(eight, _MM_FROUND_TO_NEAREST_INT));
        }
    }
}

/* ------------------------------------------------------------------------------------------------ transforms */

#define REGISTERS_MAX 8u /* of a rotation that stays in registers */

/* a + b in the lanes of a, a - b in those of b, where sign is -1; swapped holds the partners. The product is exact. */
UNROLLED __m256 butterfly(__m256 x, __m256 swapped, __m256 sign)
{
    return _mm256_fmadd_ps(x, sign, swapped);
}

/* The steps h = 1, 2, 4 inside a register. */
UNROLLED __m256 hadamard_8(__m256 v)
{
    v = butterfly(v, _mm256_permute_ps(v, 0xb1), _mm256_setr_ps(1, -1, 1, -1, 1, -1, 1, -1));
    v = butterfly(v, _mm256_permute_ps(v, 0x4e), _mm256_setr_ps(1, 1, -1, -1, 1, 1, -1, -1));
    return butterfly(v, _mm256_permute2f128_ps(v, v, 1), _mm256_setr_ps(1, 1, 1, 1, -1, -1, -1, -1));
}

/* A block of `registers` (a constant power of two up to 8) times 8 elements. */
UNROLLED void hadamard_block(float *x, uint32_t registers)
{
    __m256 v[REGISTERS_MAX];
    for (uint32_t i = 0; i < registers; ++i) {
        v[i] = hadamard_8(_mm256_loadu_ps(x + i * LANES));
    }
    for (uint32_t h = 1; h < registers; h *= 2u) {
        for (uint32_t i = 0; i < registers; ++i) {
            if ((i & h) == 0) {
                __m256 a = v[i];
                v[i] = _mm256_add_ps(a, v[i + h]);
                v[i + h] = _mm256_sub_ps(a, v[i + h]);
            }
        }
    }
    for (uint32_t i = 0; i < registers; ++i) {
        _mm256_storeu_ps(x + i * LANES, v[i]);
    }
}

/* All steps of a block of up to 64 elements. */
static void hadamard_in_registers(float *x, uint32_t n)
{
    switch (n) {
    case 8: hadamard_block(x, 1); break;
    case 16: hadamard_block(x, 2); break;
    case 32: hadamard_block(x, 4); break;
    default: hadamard_block(x, 8); break;
    }
}

/* The step h on eight pairs. */
static void hadamard_step(float *x, size_t h)
{
    __m256 a = _mm256_loadu_ps(x);
    __m256 b = _mm256_loadu_ps(x + h);
    _mm256_storeu_ps(x, _mm256_add_ps(a, b));
    _mm256_storeu_ps(x + h, _mm256_sub_ps(a, b));
}

/* The steps h and 2h on eight times four elements. */
static void hadamard_two_steps(float *x, size_t h)
{
    __m256 a = _mm256_loadu_ps(x), b = _mm256_loadu_ps(x + h);
    __m256 c = _mm256_loadu_ps(x + 2u * h), d = _mm256_loadu_ps(x + 3u * h);
    __m256 a1 = _mm256_add_ps(a, b), b1 = _mm256_sub_ps(a, b);
    __m256 c1 = _mm256_add_ps(c, d), d1 = _mm256_sub_ps(c, d);
    _mm256_storeu_ps(x, _mm256_add_ps(a1, c1));
    _mm256_storeu_ps(x + h, _mm256_add_ps(b1, d1));
    _mm256_storeu_ps(x + 2u * h, _mm256_sub_ps(a1, c1));
    _mm256_storeu_ps(x + 3u * h, _mm256_sub_ps(b1, d1));
}

/* NUM 4.1; blocks have at least 8 elements. */
static void hadamard(float *x, uint32_t dim, uint32_t n)
{
    const float *end = x + dim;
    const uint32_t inside = n < REGISTERS_MAX * LANES ? n : REGISTERS_MAX * LANES;
    size_t h = inside;
    if (n == 0) {
        return;
    }
    for (float *at = x; at < end; at += inside) {
        hadamard_in_registers(at, inside);
    }
    for (; 4u * h <= n; h *= 4u) {
        for (float *first = x; first < end; first += 4u * h) {
            for (float *at = first; at < first + h; at += LANES) {
                hadamard_two_steps(at, h);
            }
        }
    }
    for (float *first = x; 2u * h <= n && first < end; first += 2u * h) {
        for (float *at = first; at < first + h; at += LANES) {
            hadamard_step(at, h);
        }
    }
}

/* ------------------------------------------------------------------------------------------------ quantizers */

static float amax_of(const float *x, uint32_t n)
{
    __m256i most = _mm256_setzero_si256();
    uint32_t d = 0;
    for (; d + 2u * LANES <= n; d += 2u * LANES) {
        __m256i second = magnitude_bits(_mm256_loadu_ps(x + d + LANES));
        most = _mm256_max_epi32(most, _mm256_max_epi32(magnitude_bits(_mm256_loadu_ps(x + d)), second));
    }
    if (d < n) {
        most = _mm256_max_epi32(most, magnitude_bits(_mm256_loadu_ps(x + d)));
    }
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1));
    return nbl_float_of((uint32_t)_mm_cvtsi128_si32(half));
}

/* The low bytes of eight dwords of -128..255. */
static void store_low_bytes(void *to, __m256i dwords)
{
    const __m256i places = _mm256_broadcastsi128_si256(_mm_setr_epi32(0x0c080400, -1, -1, -1));
    __m256i bytes = _mm256_shuffle_epi8(dwords, places);
    __m128i eight = _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
    _mm_storel_epi64((__m128i *)to, eight);
}

/* Bytes of four registers of dwords from -128 to 127, in order. */
static __m256i pack_bytes(const __m256i *dwords)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i low = _mm256_packs_epi32(dwords[0], dwords[1]), high = _mm256_packs_epi32(dwords[2], dwords[3]);
    return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
}

/* Nothing is beyond the largest code: quantize has seen to it. */
static void quantize_int8(const float *x, nbl_vector *v, float amax)
{
    int32_t e = nbl_exponent_for(amax, (float)NBL_INT8_CODE_MAX, NBL_E_MIN, NBL_E_MAX);
    const __m256 inverse = _mm256_set1_ps(nbl_pow2(-e));
    uint32_t d = 0;
    for (; d + 4u * LANES <= v->dim; d += 4u * LANES) {
        __m256i q[4];
        for (uint32_t i = 0; i < 4u; ++i) {
            q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + d + i * LANES), inverse));
        }
        _mm256_storeu_si256((__m256i *)(void *)(v->codes + d), pack_bytes(q));
    }
    for (; d < v->dim; d += LANES) {
        store_low_bytes(v->codes + d, _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + d), inverse)));
    }
    v->scales[0] = nbl_e8m0_encode(e);
}

/* E2M1 codes of eight elements (NUM 3.4). Added to a magnitude, each of three numbers leaves the code in the low bits
 * of the sum, right where its step applies and not smaller elsewhere; beyond 6 it is 7. */
static __m256i e2m1_codes(__m256 x)
{
    __m256 a = _mm256_castsi256_ps(magnitude_bits(x));
    __m256 low = _mm256_fmadd_ps(a, _mm256_set1_ps(2.0f), _mm256_set1_ps(NBL_MAGIC));
    __m256 middle = _mm256_add_ps(a, _mm256_set1_ps(NBL_MAGIC + 2.0f));
    __m256 high = _mm256_fmadd_ps(a, _mm256_set1_ps(0.5f), _mm256_set1_ps(NBL_MAGIC + 4.0f));
    __m256 most = _mm256_min_ps(high, _mm256_set1_ps(NBL_MAGIC + 7.0f));
    __m256i sum = _mm256_castps_si256(_mm256_min_ps(_mm256_min_ps(low, middle), most));
    __m256i code = _mm256_and_si256(sum, _mm256_set1_epi32(7));
    __m256i sign = _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(x), 28), _mm256_set1_epi32(8));
    return _mm256_or_si256(code, _mm256_andnot_si256(_mm256_cmpeq_epi32(code, _mm256_setzero_si256()), sign));
}

/* Block exponents (NUM 3.4), also as scales of v. */
UNROLLED void block_exponents(const float *x, uint32_t rule, nbl_vector *v, int32_t *exponents)
{
    uint32_t block_dim = nbl_layout_block_dim(v->format, v->dim);
    uint32_t blocks = nbl_layout_scale_planes(v->format, v->dim);
    int32_t most = NBL_BLOCK_E_MIN;
    for (uint32_t b = 0; b < blocks; ++b) {
        uint32_t first = b * block_dim;
        uint32_t n = first >= v->dim ? 0 : v->dim - first < block_dim ? v->dim - first : block_dim;
        exponents[b] = rule == NBL_RULE_OPTIMAL
                           ? nbl_exponent_for(amax_of(x + first, n), 7.25f, NBL_BLOCK_E_MIN, NBL_BLOCK_E_MAX)
                           : nbl_mxfp4_block_exponent(x + first, n, rule);
        most = exponents[b] > most ? exponents[b] : most;
    }
    for (uint32_t b = 0; b < blocks; ++b) {
        int32_t least = most - NBL_BLOCK_E_SPREAD;
        exponents[b] = exponents[b] < least ? least : exponents[b];
        v->scales[b] = nbl_e8m0_encode(exponents[b]);
    }
}

void sim_avx2_block_exponents(const float *x, uint32_t rule, nbl_vector *v, int32_t *exponents)
{
    block_exponents(x, rule, v, exponents);
}

static void quantize_mxfp4(const float *x, uint32_t rule, nbl_vector *v, uint64_t *saturated)
{
    uint32_t block_dim = nbl_layout_block_dim(v->format, v->dim);
    int32_t exponents[NBL_SCALES_MAX];
    block_exponents(x, rule, v, exponents);
    for (uint32_t d = 0; d < v->dim; d += LANES) {
        __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(x + d), _mm256_set1_ps(nbl_pow2(-exponents[d / block_dim])));
        __m256i beyond = _mm256_cmpgt_epi32(magnitude_bits(scaled), _mm256_set1_epi32((int)nbl_bits_of(6.0f)));
        *saturated += count_lanes(beyond);
        store_low_bytes(v->codes + d, e2m1_codes(scaled));
    }
}

/* ------------------------------------------------------------------------------------------------ int4p */

/* Lane b of out[d] is lane d of in[b]. */
static void transpose_8(const __m256 *in, __m256 *out)
{
    __m256 pairs[8], quads[8];
    for (uint32_t i = 0; i < 8u; i += 2u) {
        pairs[i] = _mm256_unpacklo_ps(in[i], in[i + 1u]);
        pairs[i + 1u] = _mm256_unpackhi_ps(in[i], in[i + 1u]);
    }
    for (uint32_t i = 0; i < 8u; i += 4u) {
        quads[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2u], 0x44);
        quads[i + 1u] = _mm256_shuffle_ps(pairs[i], pairs[i + 2u], 0xee);
        quads[i + 2u] = _mm256_shuffle_ps(pairs[i + 1u], pairs[i + 3u], 0x44);
        quads[i + 3u] = _mm256_shuffle_ps(pairs[i + 1u], pairs[i + 3u], 0xee);
    }
    for (uint32_t i = 0; i < 4u; ++i) {
        out[i] = _mm256_permute2f128_ps(quads[i], quads[i + 4u], 0x20);
        out[i + 4u] = _mm256_permute2f128_ps(quads[i], quads[i + 4u], 0x31);
    }
}

/* y[d]: element d of eight blocks, times `inverse`; zero beyond the vector. */
static void load_blocks(const float *x, uint32_t n, float inverse, __m256 *y)
{
    for (uint32_t part = 0; part < BLOCK; part += LANES) {
        __m256 rows[8];
        for (uint32_t b = 0; b < 8u; ++b) {
            uint32_t at = b * BLOCK + part;
            rows[b] = at < n ? _mm256_mul_ps(_mm256_loadu_ps(x + at), _mm256_set1_ps(inverse)) : _mm256_setzero_ps();
        }
        transpose_8(rows, y + part);
    }
}

/* Smallest m of 1..16 with amax <= 7 * m, else 16. 1/7 rounded may miss by one either way. */
static __m256 least_multiplier(const __m256 *y)
{
    const __m256 peak = _mm256_set1_ps((float)NBL_INT4P_CODE_MAX);
    __m256i most = _mm256_setzero_si256();
    for (uint32_t d = 0; d < BLOCK; ++d) {
        most = _mm256_max_epi32(most, magnitude_bits(y[d]));
    }
    __m256 amax = _mm256_min_ps(_mm256_castsi256_ps(most), _mm256_set1_ps(2.0f * NBL_INT4P_PEAK));
    __m256 m = _mm256_ceil_ps(_mm256_mul_ps(amax, _mm256_set1_ps(1.0f / 7.0f)));
    __m256 one = _mm256_set1_ps(1.0f);
    __m256 less = _mm256_sub_ps(m, one);
    m = _mm256_blendv_ps(m, less, _mm256_cmp_ps(amax, _mm256_mul_ps(less, peak), _CMP_LE_OQ));
    m = _mm256_add_ps(m, _mm256_and_ps(one, _mm256_cmp_ps(amax, _mm256_mul_ps(m, peak), _CMP_GT_OQ)));
    return _mm256_min_ps(_mm256_max_ps(m, one), _mm256_set1_ps((float)NBL_INT4P_MULTIPLIER_MAX));
}

static __m256 clamp_code(__m256 q)
{
    const __m256 most = _mm256_set1_ps((float)NBL_INT4P_CODE_MAX);
    return _mm256_max_ps(_mm256_min_ps(q, most), _mm256_set1_ps(-(float)NBL_INT4P_CODE_MAX));
}

/* The best of m0 - 1, m0, m0 + 1 in each lane (NUM 3.5); the three chains of sums run side by side. */
static __m256 choose_multipliers(const __m256 *y)
{
    const __m256 one = _mm256_set1_ps(1.0f);
    __m256 m0 = least_multiplier(y);
    __m256 m[3] = {_mm256_sub_ps(m0, one), m0, _mm256_add_ps(m0, one)};
    __m256 inverse[3], error[3];
    for (uint32_t i = 0; i < 3u; ++i) {
        inverse[i] = _mm256_div_ps(one, m[i]);
        error[i] = _mm256_setzero_ps();
    }
    for (uint32_t d = 0; d < BLOCK; ++d) {
        for (uint32_t i = 0; i < 3u; ++i) {
            __m256 q = _mm256_round_ps(_mm256_mul_ps(y[d], inverse[i]), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
            q = i == 0 ? clamp_code(q) : q;                      /* nothing is beyond 7 * m0 */
            __m256 difference = _mm256_fnmadd_ps(q, m[i], y[d]); /* the product is exact */
            error[i] = _mm256_fmadd_ps(difference, difference, error[i]);
        }
    }
    __m256 has_less = _mm256_cmp_ps(m0, one, _CMP_GT_OQ);
    __m256 has_more = _mm256_cmp_ps(m0, _mm256_set1_ps((float)NBL_INT4P_MULTIPLIER_MAX), _CMP_LT_OQ);
    __m256 best = _mm256_blendv_ps(m0, m[0], has_less);
    __m256 least = _mm256_blendv_ps(error[1], error[0], has_less);
    __m256 better = _mm256_cmp_ps(error[1], least, _CMP_LT_OQ);
    best = _mm256_blendv_ps(best, m0, better);
    least = _mm256_blendv_ps(least, error[1], better);
    better = _mm256_and_ps(has_more, _mm256_cmp_ps(error[2], least, _CMP_LT_OQ));
    return _mm256_blendv_ps(best, m[2], better);
}

/* Codes of eight blocks; lane b of word i holds elements 4i..4i+3 of block b. Counts what the clamp changes. */
static void block_codes(const __m256 *y, __m256 m, __m256i *words, uint64_t *saturated)
{
    const __m256i most = _mm256_set1_epi32(NBL_INT4P_CODE_MAX), least = _mm256_set1_epi32(-NBL_INT4P_CODE_MAX);
    __m256 inverse = _mm256_div_ps(_mm256_set1_ps(1.0f), m);
    __m256i same = _mm256_setzero_si256();
    for (uint32_t i = 0; i < BLOCK / 4u; ++i) {
        words[i] = _mm256_set1_epi32(0x08080808);
        for (uint32_t j = 0; j < 4u; ++j) {
            __m256i q = _mm256_cvtps_epi32(_mm256_mul_ps(y[4u * i + j], inverse));
            __m256i inside = _mm256_max_epi32(_mm256_min_epi32(q, most), least);
            same = _mm256_sub_epi32(same, _mm256_cmpeq_epi32(q, inside));
            words[i] = _mm256_add_epi32(words[i], _mm256_slli_epi32(inside, (int)(8u * j)));
        }
    }
    *saturated += BLOCK * LANES - sum_of_lanes(same);
}

/* Four words of eight blocks as sixteen bytes of each block. */
static void store_blocks(const __m256i *words, uint32_t blocks, uint8_t *codes)
{
    __m256i low_01 = _mm256_unpacklo_epi32(words[0], words[1]);
    __m256i high_01 = _mm256_unpackhi_epi32(words[0], words[1]);
    __m256i low_23 = _mm256_unpacklo_epi32(words[2], words[3]);
    __m256i high_23 = _mm256_unpackhi_epi32(words[2], words[3]);
    const __m256i out[4] = {_mm256_unpacklo_epi64(low_01, low_23), _mm256_unpackhi_epi64(low_01, low_23),
                            _mm256_unpacklo_epi64(high_01, high_23), _mm256_unpackhi_epi64(high_01, high_23)};
    for (uint32_t b = 0; b < blocks; ++b) {
        __m128i sixteen = b < 4u ? _mm256_castsi256_si128(out[b]) : _mm256_extracti128_si256(out[b - 4u], 1);
        _mm_storeu_si128((__m128i *)(void *)(codes + b * BLOCK), sixteen);
    }
}

static void quantize_int4p(const float *x, nbl_vector *v, float amax, uint64_t *saturated)
{
    uint32_t plane = nbl_layout_exponent_plane(v->format, v->dim);
    int32_t e = nbl_exponent_for(amax, NBL_INT4P_PEAK, NBL_E_MIN, NBL_E_MAX);
    for (uint32_t first = 0; first < v->dim; first += 8u * BLOCK) {
        __m256 y[BLOCK];
        __m256i words[BLOCK / 4u];
        uint8_t multipliers[8];
        uint32_t n = v->dim - first < 8u * BLOCK ? v->dim - first : 8u * BLOCK;
        load_blocks(x + first, n, nbl_pow2(-e), y);
        __m256 m = choose_multipliers(y);
        block_codes(y, m, words, saturated);
        store_blocks(words, (n + BLOCK - 1u) / BLOCK, v->codes + first);
        store_low_bytes(multipliers, _mm256_sub_epi32(_mm256_cvtps_epi32(m), _mm256_set1_epi32(1)));
        for (uint32_t i = 0; i < (n + 2u * BLOCK - 1u) / (2u * BLOCK); ++i) {
            v->scales[first / (2u * BLOCK) + i] = (uint8_t)(multipliers[2u * i] | multipliers[2u * i + 1u] << 4);
        }
    }
    v->scales[plane] = nbl_e8m0_encode(e);
}

/* 1 if all codes of the vector are that of zero; those beyond its dimension are. */
static int is_zero(const nbl_vector *v)
{
    const __m256i zero = _mm256_set1_epi8((char)nbl_block_zero_code(v->format));
    __m256i differ = _mm256_setzero_si256();
    for (uint32_t d = 0; d < nbl_layout_dim_padded(v->dim); d += 32u) {
        __m256i codes = _mm256_loadu_si256((const __m256i *)(const void *)(v->codes + d));
        differ = _mm256_or_si256(differ, _mm256_xor_si256(codes, zero));
    }
    return _mm256_testz_si256(differ, differ);
}

/* nbl_vector_quantize (NUM 3.2 to 3.5, 3.3). */
static void quantize(const float *x, uint32_t dim, uint32_t format, uint32_t rule, nbl_vector *v,
                     nbl_quant_stats *stats)
{
    float amax = amax_of(x, dim);
    if (amax > NBL_INT4P_PEAK * nbl_pow2(NBL_E_MAX)) { /* codes saturate; int8's a little later */
        sim_row_loops_scalar.quantize(x, dim, format, rule, v, stats);
        return;
    }
    v->format = format;
    v->dim = dim;
    memset(v->codes + dim, nbl_block_zero_code(format), nbl_layout_dim_padded(dim) - dim);
    switch (format) {
    case NBL_INT8: quantize_int8(x, v, amax); break;
    case NBL_INT4P: quantize_int4p(x, v, amax, &stats->saturated); break;
    case NBL_MXFP4:
    case NBL_MXFP4_16: quantize_mxfp4(x, rule, v, &stats->saturated); break;
    default: sim_row_loops_scalar.quantize(x, dim, format, rule, v, stats); return;
    }
    stats->vectors++;
    stats->flushed += amax > 0.0f && is_zero(v);
}

static void interleave(const uint8_t *from, uint64_t bytes, uint32_t n, uint8_t *to)
{
    for (uint32_t i = 0; i < n; i += 16u, to += 64) {
        __m128i a = load_half(from + i), b = load_half(from + bytes + i);
        __m128i c = load_half(from + 2u * bytes + i), d = load_half(from + 3u * bytes + i);
        __m128i ab[2] = {_mm_unpacklo_epi8(a, b), _mm_unpackhi_epi8(a, b)};
        __m128i cd[2] = {_mm_unpacklo_epi8(c, d), _mm_unpackhi_epi8(c, d)};
        for (uint32_t half = 0; half < 2u; ++half) {
            __m128i *at = (__m128i *)(void *)(to + 32u * half);
            _mm_storeu_si128(at, _mm_unpacklo_epi16(ab[half], cd[half]));
            _mm_storeu_si128(at + 1, _mm_unpackhi_epi16(ab[half], cd[half]));
        }
    }
}

const sim_row_loops sim_row_loops_avx2 = {
    .load = load_row,
    .store = store_row,
    .shift_up = shift_up,
    .shift_down = shift_down,
    .hadamard = hadamard,
    .subtract_center = subtract_center,
    .quantize = quantize,
    .interleave = interleave,
};
