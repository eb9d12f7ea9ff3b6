/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file coded_avx512.c
 * @brief Dot products of few rows straight from the stored codes, for AVX-512 with VNNI and VBMI.
 *
 * Codes are decoded in registers and used at once by all rows: nothing is written back. Per token and kv head at
 * D = 128 with four rows, of operations that the two 512-bit ports share: 16 VPDPBUSD; K 3 for the nibbles and 2 to
 * scale block sums (int4p), or 5 for a lookup of the scaled code (mxfp4); V 5 (mxfp4) or 11 (int4p).
 *
 * K of int4p is used as it is stored: the unsigned code q + 8 goes into the dot product, 16 elements at a time, from a
 * start value of -8 times the sum of the row's codes; |sum| <= 7 * 127 * 16 < 2^15, so that one VPDPWSSD with
 * (m, 0) scales and adds it.
 */
#include "avx512.h"

#define BLOCK SIM_BLOCK /* elements that share an int4p multiplier: two stored lines of K per half */
#define PLANES_MAX (NBL_DIM_PADDED_MAX / BLOCK)

/* ------------------------------------------------------------------------------------------------ Q K */

/* Block scales of a group of K, ready for use. */
typedef struct k_scales {
    uint8_t bytes[PLANES_MAX * SIM_GROUP]; /* [plane][token]: mxfp4 table index; int4p [block][token]: m */
} k_scales;

/* Multipliers of 32 tokens, two blocks of each plane apart. */
static void int4p_multipliers(const sim_group *group, k_scales *scales)
{
    const __m256i one = _mm256_set1_epi8(1);
    const __m256i nibble = _mm256_set1_epi8(15);
    for (uint32_t i = 0; i < nbl_layout_dim_padded(group->dim) / 32u; ++i) {
        const uint8_t *plane = group->scales + i * group->plane_stride;
        __m256i pairs = _mm256_loadu_si256((const __m256i *)(const void *)plane);
        __m256i *out = (__m256i *)(void *)(scales->bytes + 2u * i * SIM_GROUP);
        __m256i high = _mm256_and_si256(_mm256_srli_epi16(pairs, 4), nibble);
        _mm256_storeu_si256(out, _mm256_add_epi8(_mm256_and_si256(pairs, nibble), one));
        _mm256_storeu_si256(out + 1, _mm256_add_epi8(high, one));
    }
}

/* sums[row][half] += four elements of a row, words[row], times a line of 16 tokens. */
UNROLLED void add_line(__m512i line, const int32_t *words, uint32_t rows, uint32_t half, __m512i (*sums)[2])
{
    for (uint32_t r = 0; r < rows; ++r) {
        add_dot(&sums[r][half], line, _mm512_set1_epi32(words[r]));
    }
}

UNROLLED void start_sums(const int32_t *values, uint32_t rows, uint32_t halves, __m512i (*sums)[2])
{
    for (uint32_t r = 0; r < rows; ++r) {
        for (uint32_t half = 0; half < halves; ++half) {
            sums[r][half] = _mm512_set1_epi32(values[r]);
        }
    }
}

/* 16 elements of int4p. */
UNROLLED void add_block_int4p(const uint8_t *codes, const uint8_t *multipliers, const int32_t *words,
                              const int32_t *offsets, uint32_t rows, uint32_t halves, __m512i (*totals)[2])
{
    __m512i sums[8][2];
    start_sums(offsets, rows, halves, sums);
    for (uint32_t pair = 0; pair < 2u; ++pair, words += 2u * rows) {
        for (uint32_t half = 0; half < halves; ++half) {
            __m512i bytes = _mm512_loadu_si512(codes + (pair * HALVES + half) * LINE);
            add_line(low_nibbles(bytes), words, rows, half, sums);
            add_line(high_nibbles(bytes), words + rows, rows, half, sums);
        }
    }
    for (uint32_t half = 0; half < halves; ++half) {
        __m512i m = dwords_of(multipliers + half * LANES);
        for (uint32_t r = 0; r < rows; ++r) {
            add_dot_words(&totals[r][half], sums[r][half], m);
        }
    }
}

/* 8 * pairs elements of mxfp4 that share a scale. */
UNROLLED void add_block_mxfp4(const uint8_t *codes, const uint8_t *indices, const int32_t *words, uint32_t pairs,
                              uint32_t rows, uint32_t halves, __m512i (*totals)[2])
{
    const __m512i table = _mm512_loadu_si512(mxfp4_biased_table);
    __m512i index[2];
    for (uint32_t half = 0; half < halves; ++half) {
        index[half] = four_of_each(indices + half * LANES);
    }
    for (uint32_t pair = 0; pair < pairs; ++pair, words += 2u * rows) {
        for (uint32_t half = 0; half < halves; ++half) {
            __m512i bytes = _mm512_loadu_si512(codes + (pair * HALVES + half) * LINE);
            __m512i low = table_index(bytes, index[half]);
            __m512i high = table_index(_mm512_srli_epi16(bytes, 4), index[half]);
            add_line(_mm512_permutexvar_epi8(low, table), words, rows, half, totals);
            add_line(_mm512_permutexvar_epi8(high, table), words + rows, rows, half, totals);
        }
    }
}

/* 16 elements of int8. */
UNROLLED void add_block_int8(const uint8_t *codes, const int32_t *words, uint32_t rows, uint32_t halves,
                             __m512i (*totals)[2])
{
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    for (uint32_t quad = 0; quad < BLOCK / 4u; ++quad, words += rows) {
        for (uint32_t half = 0; half < halves; ++half) {
            __m512i bytes = _mm512_loadu_si512(codes + (quad * HALVES + half) * LINE);
            add_line(_mm512_xor_si512(bytes, flip), words, rows, half, totals);
        }
    }
}

/* `rows` rows (a constant) against `halves` (a constant) times 16 tokens of a group, from token 16 * first. */
UNROLLED void qk_part(uint32_t format, const uint8_t *codes, const uint8_t *scales, const sim_rows *q, uint32_t rows,
                      uint32_t halves, const uint8_t *ahead, uint32_t step, __m512i (*totals)[2])
{
    uint32_t blocks_each = format == NBL_MXFP4 ? 2u : 1u; /* blocks of 16 that share a scale */
    uint32_t block_bytes = nbl_layout_code_bytes(format, 2u * BLOCK) / 2u * SIM_GROUP * blocks_each;
    uint32_t lines = block_bytes / LINE; /* as if V had the format of K */
    const int32_t *words = q->words;
    const int32_t *offsets = q->offsets;
    for (uint32_t b = 0; b < q->dim / BLOCK; b += blocks_each) {
        sim_prefetch_lines(ahead, step * blocks_each / lines, lines);
        if (format == NBL_INT4P) {
            add_block_int4p(codes, scales, words, offsets, rows, halves, totals);
        } else if (format == NBL_INT8) {
            add_block_int8(codes, words, rows, halves, totals);
        } else {
            add_block_mxfp4(codes, scales, words, 2u * blocks_each, rows, halves, totals);
        }
        codes += block_bytes;
        scales += SIM_GROUP;
        words += 4u * blocks_each * rows;
        offsets += rows;
        ahead += step * blocks_each;
    }
}

/* All of a group: few rows share the decoded codes of 32 tokens in registers, many of 16. */
UNROLLED void qk_group(uint32_t format, const sim_coded *k, uint32_t index, const sim_rows *q, uint32_t rows, float *x)
{
    const sim_group *group = &k->group[index];
    uint32_t halves = rows <= 4u ? 2u : 1u;
    uint32_t step = k->ahead_bytes / (q->dim / BLOCK);
    const int32_t none[CODED_ROWS] = {0};
    k_scales scales;
    float unit[SIM_GROUP];
    units_of(group, unit);
    if (format == NBL_INT4P) {
        int4p_multipliers(group, &scales);
    } else if (format != NBL_INT8) {
        mxfp4_indices(group, SIM_GROUP, scales.bytes);
    }
    for (uint32_t first = 0; first < HALVES; first += halves) {
        __m512i totals[8][2];
        start_sums(format == NBL_INT4P ? none : q->bias, rows, halves, totals);
        qk_part(format, group->codes + first * LINE, scales.bytes + first * LANES, q, rows, halves, k->ahead[index],
                first == 0 ? step : 0, totals);
        for (uint32_t r = 0; r < rows; ++r) {
            for (uint32_t half = 0; half < halves; ++half) {
                uint32_t at = (first + half) * LANES;
                __m512 sum = _mm512_cvtepi32_ps(totals[r][half]);
                _mm512_storeu_ps(x + (uint64_t)r * SIM_TILE + at, _mm512_mul_ps(sum, _mm512_loadu_ps(unit + at)));
            }
        }
    }
}

UNROLLED void qk_rows(uint32_t format, const sim_coded *k, const sim_rows *q, uint32_t rows, float *x)
{
    for (uint32_t g = 0; g < k->count; ++g) {
        qk_group(format, k, g, q, rows, x + g * SIM_GROUP);
    }
}

/* One copy of a loop for each number of rows; under AddressSanitizer, whose checks are in every unrolled step and take
 * a minute to compile, one for all. */
#if defined(__SANITIZE_ADDRESS__)
#define FOR_ROWS(rows, call) call(rows);
#else
#define FOR_ROWS(rows, call) \
    switch (rows) {          \
    case 1: call(1); break;  \
    case 2: call(2); break;  \
    case 3: call(3); break;  \
    case 4: call(4); break;  \
    case 5: call(5); break;  \
    case 6: call(6); break;  \
    case 7: call(7); break;  \
    default: call(8); break; \
    }
#endif

#define QK_FORMAT(name, format)                                       \
    static void name(const sim_coded *k, const sim_rows *q, float *x) \
    {                                                                 \
        FOR_ROWS(q->count, name##_CALL)                               \
    }
#define qk_int8_CALL(rows) qk_rows(NBL_INT8, k, q, rows, x)
#define qk_mxfp4_CALL(rows) qk_rows(NBL_MXFP4, k, q, rows, x)
#define qk_mxfp4_16_CALL(rows) qk_rows(NBL_MXFP4_16, k, q, rows, x)
#define qk_int4p_CALL(rows) qk_rows(NBL_INT4P, k, q, rows, x)
QK_FORMAT(qk_int8, NBL_INT8)
QK_FORMAT(qk_mxfp4, NBL_MXFP4)
QK_FORMAT(qk_mxfp4_16, NBL_MXFP4_16)
QK_FORMAT(qk_int4p, NBL_INT4P)

void sim_avx512_coded_qk(const sim_coded *k, const sim_rows *q, float *x)
{
    switch (k->group[0].format) {
    case NBL_INT8: qk_int8(k, q, x); break;
    case NBL_MXFP4: qk_mxfp4(k, q, x); break;
    case NBL_MXFP4_16: qk_mxfp4_16(k, q, x); break;
    default: qk_int4p(k, q, x); break;
    }
}

/* ------------------------------------------------------------------------------------------------ P V */

/* Decoded lines of 4 tokens and `wide` times 32 elements. */
UNROLLED void load_lines(uint32_t format, const uint8_t *codes, const v_scales *scales, uint32_t first, uint32_t token,
                         uint32_t wide, __m512i *lines)
{
    for (uint32_t i = 0; i < wide; ++i) {
        if (format == NBL_INT8) {
            lines[2u * i] = _mm512_loadu_si512(codes + 2u * i * LINE);
            lines[2u * i + 1u] = _mm512_loadu_si512(codes + (2u * i + 1u) * LINE);
        } else {
            decode_v_line(format, codes + i * LINE, scales, first + i, token, lines + 2u * i);
        }
    }
}

/* `rows` rows times `wide` (both constants) times 32 elements of V, from element 32 * first. */
UNROLLED void pv_part(uint32_t format, const sim_coded *v, const v_scales *scales, const uint8_t *p, float *const *o,
                      const float *b, uint32_t rows, uint32_t first, uint32_t wide)
{
    uint32_t dim = nbl_layout_dim_padded(v->group[0].dim);
    uint32_t quad_bytes = nbl_layout_code_bytes(format, dim) * 4u;
    uint32_t step = v->ahead_bytes / (SIM_GROUP / 4u * (dim / 32u)) * wide;
    uint32_t lines_ahead = format == NBL_INT8 ? 2u * wide : wide;
    __m512i sums[8][4];
    for (uint32_t r = 0; r < rows; ++r) {
        for (uint32_t i = 0; i < 2u * wide; ++i) {
            sums[r][i] = _mm512_setzero_si512();
        }
    }
    for (uint32_t g = 0; g < v->count; ++g) {
        const uint8_t *codes = v->group[g].codes + first * (format == NBL_INT8 ? 2u * LINE : LINE);
        const uint8_t *ahead = v->ahead[g] + (uint64_t)step * (SIM_GROUP / 4u) * (first / wide);
        for (uint32_t token = g * SIM_GROUP; token < (g + 1u) * SIM_GROUP; token += 4u) {
            __m512i lines[4];
            sim_prefetch_lines(ahead, step / lines_ahead, lines_ahead);
            load_lines(format, codes, scales, first, token, wide, lines);
            for (uint32_t r = 0; r < rows; ++r) {
                __m512i weights = broadcast_dword(p + r * SIM_TILE + token);
                for (uint32_t i = 0; i < 2u * wide; ++i) {
                    add_dot(&sums[r][i], weights, lines[i]);
                }
            }
            codes += quad_bytes;
            ahead += step;
        }
    }
    for (uint32_t r = 0; r < rows; ++r) {
        for (uint32_t i = 0; i < 2u * wide; ++i) {
            float *to = o[r] + 32u * first + i * LANES;
            _mm512_storeu_ps(
                to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r][i]), _mm512_set1_ps(b[r]), _mm512_loadu_ps(to)));
        }
    }
}

UNROLLED void pv_rows(uint32_t format, const sim_coded *v, const v_scales *scales, const uint8_t *p, float *const *o,
                      const float *b, uint32_t rows)
{
    uint32_t lines = nbl_layout_dim_padded(v->group[0].dim) / 32u;
    uint32_t line = 0;
    for (; rows <= 4u && line + 2u <= lines; line += 2u) {
        pv_part(format, v, scales, p, o, b, rows, line, 2);
    }
    for (; line < lines; ++line) {
        pv_part(format, v, scales, p, o, b, rows, line, 1);
    }
}

#define PV_FORMAT(name, format)                                                                                     \
    static void name(const sim_coded *v, const v_scales *scales, const uint8_t *p, float *const *o, const float *b, \
                     uint32_t rows)                                                                                 \
    {                                                                                                               \
        FOR_ROWS(rows, name##_CALL)                                                                                 \
    }
#define pv_int8_CALL(rows) pv_rows(NBL_INT8, v, scales, p, o, b, rows)
#define pv_mxfp4_CALL(rows) pv_rows(NBL_MXFP4, v, scales, p, o, b, rows)
#define pv_mxfp4_16_CALL(rows) pv_rows(NBL_MXFP4_16, v, scales, p, o, b, rows)
#define pv_int4p_CALL(rows) pv_rows(NBL_INT4P, v, scales, p, o, b, rows)
PV_FORMAT(pv_int8, NBL_INT8)
PV_FORMAT(pv_mxfp4, NBL_MXFP4)
PV_FORMAT(pv_mxfp4_16, NBL_MXFP4_16)
PV_FORMAT(pv_int4p, NBL_INT4P)

void sim_avx512_coded_pv(const sim_coded *v, const uint8_t *p, float *const *o, const float *b, uint32_t rows)
{
    v_scales scales;
    for (uint32_t g = 0; g < v->count; ++g) {
        v_scales_of(&v->group[g], g * SIM_GROUP, &scales);
    }
    switch (v->group[0].format) {
    case NBL_INT8: pv_int8(v, &scales, p, o, b, rows); break;
    case NBL_MXFP4: pv_mxfp4(v, &scales, p, o, b, rows); break;
    case NBL_MXFP4_16: pv_mxfp4_16(v, &scales, p, o, b, rows); break;
    default: pv_int4p(v, &scales, p, o, b, rows); break;
    }
}
