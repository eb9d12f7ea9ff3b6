/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file avx512.h
 * @brief What the AVX-512 loops share: nibbles, lookup tables, block scales as table indices.
 */
#ifndef SIM_AVX512_H
#define SIM_AVX512_H

#include "exponents.h"

#include <immintrin.h>

#define LANES 16u
#define LINE 64u  /* bytes of a register */
#define HALVES 2u /* registers per group of 32 tokens */

/* What the loops over stored codes take: coded_rows and coded_formats of the tables. */
#define CODED_ROWS 8u
#define CODED_FORMATS (1u << NBL_INT8 | 1u << NBL_MXFP4 | 1u << NBL_MXFP4_16 | 1u << NBL_INT4P)

/* Entries of the table that live in other files. */
void sim_avx512_coded_qk(const sim_coded *k, const sim_rows *q, float *x);
void sim_avx512_coded_pv(const sim_coded *v, const uint8_t *p, float *const *o, const float *b, uint32_t rows);
sim_softmax sim_avx512_softmax(const sim_row_tile *row, float base, int first, uint8_t *p);
uint32_t sim_avx512_softmax_rows(const sim_tile *tile, const float *x, sim_row_state *const *rows, uint32_t count,
                                 uint8_t *p, float *b);

/* Entries of the table that AMX's has too, or uses for rows that do not fill its tiles. */
void sim_avx512_decode_k(const sim_group *group, uint8_t *codes, float *unit);
void sim_avx512_decode_v(const sim_group *group, int8_t *codes, float *exponent, float *weight);
void sim_avx512_coded_weights(const sim_group *group, float *exponent, float *weight);
/** dot_qk for the rows from `first` on. */
void sim_avx512_dot_qk_from(const sim_tile *tile, const sim_rows *rows, uint32_t first, float *x);
void sim_avx512_dot_pv(const sim_tile *tile, const uint8_t *p, float *const *o, const float *b, uint32_t rows);

/** A loop body that is compiled once for each set of constant arguments. */
#define UNROLLED static inline __attribute__((always_inline))

/* ------------------------------------------------------------------------------------------------ tables */

#define SHIFTED_0(x) (x)
#define SHIFTED_1(x) (2 * (x))
#define SHIFTED_2(x) (4 * (x))
#define SHIFTED_3(x) (8 * (x))
#define BIASED_0(x) (char)(128 + SHIFTED_0(x))
#define BIASED_1(x) (char)(128 + SHIFTED_1(x))
#define BIASED_2(x) (char)(128 + SHIFTED_2(x))
#define BIASED_3(x) (char)(128 + SHIFTED_3(x))
#define TIMES_0(q) 0
#define TIMES_1(q) (q)
#define TIMES_2(q) (2 * (q))
#define TIMES_3(q) (3 * (q))
#define TIMES_4(q) (4 * (q))
#define TIMES_8(q) (8 * (q))
#define TIMES_12(q) (12 * (q))

/** mxfp4 for V: entry 16 * shift + code is (2 * e2m1) << shift. */
static const int8_t mxfp4_table[LINE] = {NBL_E2M1_CODES(SHIFTED_0), NBL_E2M1_CODES(SHIFTED_1),
                                         NBL_E2M1_CODES(SHIFTED_2), NBL_E2M1_CODES(SHIFTED_3)};
/** The same plus 128, for K. */
static const char mxfp4_biased_table[LINE] = {NBL_E2M1_CODES(BIASED_0), NBL_E2M1_CODES(BIASED_1),
                                              NBL_E2M1_CODES(BIASED_2), NBL_E2M1_CODES(BIASED_3)};
/** int4p: with m - 1 = 4a + b, entry 16 * a + code is q * 4a, entry 16 * b + code is q * (b + 1). */
static const int8_t int4p_table_a[LINE] = {NBL_INT4P_CODES(TIMES_0), NBL_INT4P_CODES(TIMES_4), NBL_INT4P_CODES(TIMES_8),
                                           NBL_INT4P_CODES(TIMES_12)};
static const int8_t int4p_table_b[LINE] = {NBL_INT4P_CODES(TIMES_1), NBL_INT4P_CODES(TIMES_2), NBL_INT4P_CODES(TIMES_3),
                                           NBL_INT4P_CODES(TIMES_4)};

/* ------------------------------------------------------------------------------------------------ bytes */

static inline __m512i low_nibbles(__m512i bytes)
{
    return _mm512_and_si512(bytes, _mm512_set1_epi8(15));
}

static inline __m512i high_nibbles(__m512i bytes)
{
    return _mm512_and_si512(_mm512_srli_epi16(bytes, 4), _mm512_set1_epi8(15));
}

/** Table index of six bits: bits 0..3 of `code`, bits 4, 5 of `scale`; VPERMB does not look at the others. */
static inline __m512i table_index(__m512i code, __m512i scale)
{
    return _mm512_ternarylogic_epi32(scale, code, _mm512_set1_epi8(15), 0xd8);
}

static inline __m512i broadcast_dword(const void *bytes)
{
    int32_t dword;
    memcpy(&dword, bytes, sizeof dword);
    return _mm512_set1_epi32(dword);
}

/* The two dot products are written as instructions, not as intrinsics: gcc 12 copies every accumulator twice around the
 * intrinsics inside loops, which costs more than the products. */

/** sum += four unsigned bytes of a times four signed bytes of b, in every dword (VPDPBUSD). */
UNROLLED void add_dot(__m512i *sum, __m512i a, __m512i b)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(a), "v"(b));
}

/** sum += two signed words of a times two of b, in every dword (VPDPWSSD). */
UNROLLED void add_dot_words(__m512i *sum, __m512i a, __m512i b)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(*sum) : "v"(a), "v"(b));
}

/** Sixteen bytes, each four times. */
static inline __m512i four_of_each(const uint8_t *bytes)
{
    const __m512i places = _mm512_set_epi32(0x0f0f0f0f, 0x0e0e0e0e, 0x0d0d0d0d, 0x0c0c0c0c, 0x0b0b0b0b, 0x0a0a0a0a,
                                            0x09090909, 0x08080808, 0x07070707, 0x06060606, 0x05050505, 0x04040404,
                                            0x03030303, 0x02020202, 0x01010101, 0x00000000);
    __m128i x = _mm_loadu_si128((const __m128i *)(const void *)bytes);
    return _mm512_permutexvar_epi8(places, _mm512_castsi128_si512(x));
}

/** Sixteen bytes as dwords. */
static inline __m512i dwords_of(const uint8_t *bytes)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)bytes));
}

#define PLACES(v)                                                                                           \
    4 * 0 + (v), 4 * 1 + (v), 4 * 2 + (v), 4 * 3 + (v), 4 * 4 + (v), 4 * 5 + (v), 4 * 6 + (v), 4 * 7 + (v), \
        4 * 8 + (v), 4 * 9 + (v), 4 * 10 + (v), 4 * 11 + (v), 4 * 12 + (v), 4 * 13 + (v), 4 * 14 + (v), 4 * 15 + (v)

static const uint8_t gather_places[LINE] = {PLACES(0), PLACES(1), PLACES(2), PLACES(3)};

/** The low bytes of 64 dwords, in order. */
UNROLLED __m512i low_bytes(const __m512i *dwords)
{
    const __m512i first_of_dword = _mm512_broadcast_i32x4(_mm_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0));
    __m512i x = _mm512_mask_shuffle_epi8(dwords[0], 0x2222222222222222u, dwords[1], first_of_dword);
    x = _mm512_mask_shuffle_epi8(x, 0x4444444444444444u, dwords[2], first_of_dword);
    x = _mm512_mask_shuffle_epi8(x, 0x8888888888888888u, dwords[3], first_of_dword);
    return _mm512_permutexvar_epi8(_mm512_loadu_si512(gather_places), x);
}

/* ------------------------------------------------------------------------------------------------ scales */

/** 2^E of sixteen bytes E + 127. */
static inline __m512 power_of(__m512i bytes)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(bytes, 23));
}

/** 2^ek of a group's tokens. */
static inline void units_of(const sim_group *group, float *unit)
{
    uint8_t bytes[SIM_GROUP];
    canonical_exponent_bytes(group, bytes);
    for (uint32_t half = 0; half < HALVES; ++half) {
        _mm512_storeu_ps(unit + half * LANES, power_of(dwords_of(bytes + half * LANES)));
    }
}

/** ev and 2^-ev of a group's tokens. */
static inline void weights_of(const sim_group *group, float *exponent, float *weight)
{
    uint8_t bytes[SIM_GROUP];
    canonical_exponent_bytes(group, bytes);
    for (uint32_t half = 0; half < HALVES; ++half) {
        __m512i e = dwords_of(bytes + half * LANES);
        __m512i value = _mm512_sub_epi32(e, _mm512_set1_epi32(NBL_E8M0_BIAS));
        _mm512_storeu_ps(exponent + half * LANES, _mm512_cvtepi32_ps(value));
        _mm512_storeu_ps(weight + half * LANES, power_of(_mm512_sub_epi32(_mm512_set1_epi32(2 * NBL_E8M0_BIAS), e)));
    }
}

/** Planes of a group's block scales as table indices: bits 4, 5 of a byte are e_b - e_min of a token.
 * index[plane * stride + token]. */
static inline void mxfp4_indices(const sim_group *group, uint32_t stride, uint8_t *index)
{
    __m256i least = least_exponent_bytes(group);
    for (uint32_t b = 0; b < nbl_layout_scale_planes(group->format, group->dim); ++b) {
        __m256i above = _mm256_sub_epi8(exponent_bytes(group, b), least);
        _mm256_storeu_si256((__m256i *)(void *)(index + b * stride), _mm256_slli_epi16(above, 4));
    }
}

/* ------------------------------------------------------------------------------------------------ V */

/** Block scales of a tile of V as table indices, [32 elements][use][token]. mxfp4: use 0 for the low nibbles, 1 for the
 * high ones; int4p: tables a and b of the low nibbles, then of the high ones. */
typedef struct v_scales {
    uint8_t index[NBL_DIM_PADDED_MAX / 32u][4][SIM_TILE];
} v_scales;

static inline void store_index(uint8_t *to, __m256i index)
{
    _mm256_storeu_si256((__m256i *)(void *)to, index);
}

static inline void v_scales_int4p(const sim_group *group, uint32_t token, v_scales *scales)
{
    for (uint32_t i = 0; i < nbl_layout_dim_padded(group->dim) / 32u; ++i) {
        const uint8_t *plane = group->scales + i * group->plane_stride;
        __m256i pairs = _mm256_loadu_si256((const __m256i *)(const void *)plane);
        store_index(scales->index[i][0] + token, _mm256_slli_epi16(pairs, 2));
        store_index(scales->index[i][1] + token, _mm256_slli_epi16(pairs, 4));
        store_index(scales->index[i][2] + token, _mm256_srli_epi16(pairs, 2));
        store_index(scales->index[i][3] + token, pairs);
    }
}

static inline void v_scales_mxfp4(const sim_group *group, uint32_t token, v_scales *scales)
{
    uint32_t planes = 32u / nbl_layout_block_dim(group->format, group->dim);
    __m256i least = least_exponent_bytes(group);
    for (uint32_t b = 0; b < nbl_layout_scale_planes(group->format, group->dim); ++b) {
        __m256i above = _mm256_sub_epi8(exponent_bytes(group, b), least);
        store_index(scales->index[b / planes][b % planes] + token, _mm256_slli_epi16(above, 4));
    }
}

/** A stored line of 16 bytes of d x 4 tokens as two decoded ones: elements d..d+15 and d+16..d+31. */
UNROLLED void decode_v_line(uint32_t format, const uint8_t *codes, const v_scales *scales, uint32_t line,
                            uint32_t token, __m512i *out)
{
    __m512i bytes = _mm512_loadu_si512(codes);
    __m512i high = _mm512_srli_epi16(bytes, 4);
    if (format == NBL_INT4P) {
        const __m512i a = _mm512_loadu_si512(int4p_table_a);
        const __m512i b = _mm512_loadu_si512(int4p_table_b);
        __m512i low_a = table_index(bytes, broadcast_dword(scales->index[line][0] + token));
        __m512i low_b = table_index(bytes, broadcast_dword(scales->index[line][1] + token));
        __m512i high_a = table_index(high, broadcast_dword(scales->index[line][2] + token));
        __m512i high_b = table_index(high, broadcast_dword(scales->index[line][3] + token));
        out[0] = _mm512_add_epi8(_mm512_permutexvar_epi8(low_a, a), _mm512_permutexvar_epi8(low_b, b));
        out[1] = _mm512_add_epi8(_mm512_permutexvar_epi8(high_a, a), _mm512_permutexvar_epi8(high_b, b));
        return;
    }
    const __m512i table = _mm512_loadu_si512(mxfp4_table);
    const uint8_t *high_index = scales->index[line][format == NBL_MXFP4 ? 0 : 1];
    out[0] = _mm512_permutexvar_epi8(table_index(bytes, broadcast_dword(scales->index[line][0] + token)), table);
    out[1] = _mm512_permutexvar_epi8(table_index(high, broadcast_dword(high_index + token)), table);
}

/** Scales of a group of V of a 4-bit format, as those of tokens token..token + 31. */
static inline void v_scales_of(const sim_group *group, uint32_t token, v_scales *scales)
{
    if (group->format == NBL_INT4P) {
        v_scales_int4p(group, token, scales);
    } else if (group->format != NBL_INT8) {
        v_scales_mxfp4(group, token, scales);
    }
}

#endif
