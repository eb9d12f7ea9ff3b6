/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file attend_avx512.c
 * @brief Hot loops of attend for AVX-512 with VNNI and VBMI.
 *
 * Budget per token and kv head at D = 128, four query rows: 16 VPDPBUSD; 4 lines of 4-bit codes decoded by 1 logic
 * operation and 1 table lookup each (mxfp4) or 2 and 1 multiply (int4p K), 2 lookups, 2 logic and 1 add (int4p V);
 * about 7 for the softmax. One K line is 16 tokens x 4 d, one V line 16 d x 4 tokens (isa.h).
 */
#include "avx512.h"

/* ------------------------------------------------------------------------------------------------ K */

/* Byte offset of d-quad `quad` and token half `half` in a decoded group. */
static uint8_t *k_line(uint8_t *codes, uint32_t quad, uint32_t half)
{
    return codes + (quad * HALVES + half) * LINE;
}

static void decode_k_int8(const sim_group *group, uint8_t *codes)
{
    uint32_t lines = nbl_layout_dim_padded(group->dim) / 4u * HALVES;
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    for (uint32_t i = 0; i < lines; ++i) {
        __m512i bytes = _mm512_loadu_si512(group->codes + i * LINE);
        _mm512_store_si512(codes + i * LINE, _mm512_xor_si512(bytes, flip));
    }
}

/* Blocks of block_dim elements share one index per token. */
static void decode_k_mxfp4(const sim_group *group, uint8_t *codes)
{
    uint32_t pairs_per_block = nbl_layout_block_dim(group->format, group->dim) / 8u;
    uint32_t pairs = nbl_layout_dim_padded(group->dim) / 8u; /* lines of stored codes */
    const __m512i table = _mm512_loadu_si512(mxfp4_biased_table);
    uint8_t indices[NBL_SCALES_MAX * SIM_GROUP];
    mxfp4_indices(group, SIM_GROUP, indices);
    for (uint32_t half = 0; half < HALVES; ++half) {
        for (uint32_t pair = 0; pair < pairs; ++pair) {
            __m512i index = four_of_each(indices + pair / pairs_per_block * SIM_GROUP + half * LANES);
            __m512i bytes = _mm512_loadu_si512(group->codes + (pair * HALVES + half) * LINE);
            __m512i low = table_index(bytes, index);
            __m512i high = table_index(_mm512_srli_epi16(bytes, 4), index);
            _mm512_store_si512(k_line(codes, 2u * pair, half), _mm512_permutexvar_epi8(low, table));
            _mm512_store_si512(k_line(codes, 2u * pair + 1u, half), _mm512_permutexvar_epi8(high, table));
        }
    }
}

/* (code - 8) * m + 128 from a 16-bit product of both bytes at once: code * m <= 240 never carries. */
static void decode_k_int4p(const sim_group *group, uint32_t half, uint8_t *codes)
{
    uint32_t blocks = nbl_layout_dim_padded(group->dim) / 16u;
    for (uint32_t block = 0; block < blocks; ++block) {
        const uint8_t *plane = group->scales + block / 2u * group->plane_stride + half * LANES;
        __m512i pairs = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)plane));
        __m512i nibble = block % 2u == 0 ? _mm512_and_si512(pairs, _mm512_set1_epi32(15)) : _mm512_srli_epi32(pairs, 4);
        __m512i m = _mm512_add_epi32(nibble, _mm512_set1_epi32(1));
        __m512i m16 = _mm512_or_si512(m, _mm512_slli_epi32(m, 16));
        __m512i m8 = _mm512_or_si512(m16, _mm512_slli_epi16(m16, 8));
        __m512i offset = _mm512_sub_epi8(_mm512_set1_epi8((char)128), _mm512_slli_epi16(m8, 3));
        for (uint32_t pair = 2u * block; pair < 2u * block + 2u; ++pair) {
            __m512i bytes = _mm512_loadu_si512(group->codes + (pair * HALVES + half) * LINE);
            __m512i low = _mm512_mullo_epi16(low_nibbles(bytes), m16);
            __m512i high = _mm512_mullo_epi16(high_nibbles(bytes), m16);
            _mm512_store_si512(k_line(codes, 2u * pair, half), _mm512_add_epi8(low, offset));
            _mm512_store_si512(k_line(codes, 2u * pair + 1u, half), _mm512_add_epi8(high, offset));
        }
    }
}

void sim_avx512_decode_k(const sim_group *group, uint8_t *codes, float *unit)
{
    units_of(group, unit);
    if (group->format == NBL_INT8) {
        decode_k_int8(group, codes);
    } else if (group->format == NBL_INT4P) {
        decode_k_int4p(group, 0, codes);
        decode_k_int4p(group, 1, codes);
    } else {
        decode_k_mxfp4(group, codes);
    }
}

/* ------------------------------------------------------------------------------------------------ V */

static void decode_v_int8(const sim_group *group, int8_t *codes)
{
    uint32_t lines = SIM_GROUP * nbl_layout_dim_padded(group->dim) / LINE;
    for (uint32_t i = 0; i < lines; ++i) {
        _mm512_store_si512(codes + i * LINE, _mm512_loadu_si512(group->codes + i * LINE));
    }
}

UNROLLED void decode_v_4bit(uint32_t format, const sim_group *group, int8_t *codes)
{
    uint32_t lines = nbl_layout_dim_padded(group->dim) / 32u; /* stored lines of a quad */
    const uint8_t *stored = group->codes;
    v_scales scales;
    v_scales_of(group, 0, &scales);
    for (uint32_t quad = 0; quad < SIM_GROUP / 4u; ++quad) {
        for (uint32_t i = 0; i < lines; ++i, stored += LINE, codes += 2u * LINE) {
            __m512i out[2];
            decode_v_line(format, stored, &scales, i, 4u * quad, out);
            _mm512_store_si512(codes, out[0]);
            _mm512_store_si512(codes + LINE, out[1]);
        }
    }
}

void sim_avx512_decode_v(const sim_group *group, int8_t *codes, float *exponent, float *weight)
{
    weights_of(group, exponent, weight);
    switch (group->format) {
    case NBL_INT8: decode_v_int8(group, codes); break;
    case NBL_MXFP4: decode_v_4bit(NBL_MXFP4, group, codes); break;
    case NBL_MXFP4_16: decode_v_4bit(NBL_MXFP4_16, group, codes); break;
    default: decode_v_4bit(NBL_INT4P, group, codes); break;
    }
}

/* ------------------------------------------------------------------------------------------------ Q K */

static void store_logits(const sim_tile *tile, uint32_t token, __m512i sums, float *x)
{
    _mm512_storeu_ps(x + token, _mm512_mul_ps(_mm512_cvtepi32_ps(sums), _mm512_loadu_ps(tile->unit + token)));
}

/* `rows` query rows (a constant 1..4) from row `first` against 64 tokens, or 32 in the last group of an odd tile. */
UNROLLED void dot_qk_block(const sim_tile *tile, uint32_t group, uint32_t groups, const sim_rows *q, uint32_t first,
                           uint32_t rows, float *x)
{
    uint64_t group_bytes = (uint64_t)SIM_GROUP * tile->k_dim;
    const uint8_t *k = tile->k + group * group_bytes;
    const int32_t *words = q->words + first;
    uint32_t lines = groups * HALVES;
    __m512i sums[4][4];
    for (uint32_t r = 0; r < rows; ++r) {
        for (uint32_t i = 0; i < lines; ++i) {
            sums[r][i] = _mm512_set1_epi32(q->bias[first + r]);
        }
    }
    for (uint32_t quad = 0; quad < tile->k_dim / 4u; ++quad, k += HALVES * LINE, words += q->count) {
        __m512i line[4];
        for (uint32_t i = 0; i < lines; ++i) {
            line[i] = _mm512_load_si512(k + i / HALVES * group_bytes + i % HALVES * LINE);
        }
        for (uint32_t r = 0; r < rows; ++r) {
            __m512i codes = _mm512_set1_epi32(words[r]);
            for (uint32_t i = 0; i < lines; ++i) {
                add_dot(&sums[r][i], line[i], codes);
            }
        }
    }
    for (uint32_t r = 0; r < rows; ++r) {
        for (uint32_t i = 0; i < lines; ++i) {
            store_logits(tile, group * SIM_GROUP + i * LANES, sums[r][i], x + (uint64_t)(first + r) * SIM_TILE);
        }
    }
}

void sim_avx512_dot_qk_from(const sim_tile *tile, const sim_rows *rows, uint32_t first, float *x)
{
    for (uint32_t g = 0; g < tile->groups; g += 2u) {
        uint32_t r = first;
        if (g + 1u == tile->groups) {
            for (; r < rows->count; ++r) {
                dot_qk_block(tile, g, 1, rows, r, 1, x);
            }
            return;
        }
        for (; r + 4u <= rows->count; r += 4u) {
            dot_qk_block(tile, g, 2, rows, r, 4, x);
        }
        for (; r < rows->count; ++r) {
            dot_qk_block(tile, g, 2, rows, r, 1, x);
        }
    }
}

static void dot_qk(const sim_tile *tile, const sim_rows *rows, float *x)
{
    sim_avx512_dot_qk_from(tile, rows, 0, x);
}

/* ------------------------------------------------------------------------------------------------ P V */

/* `rows` rows (a constant 1..4) times `lines` lines (a constant 1..4) of 16 elements of V, from element 16 * line. */
UNROLLED void dot_pv_block(const sim_tile *tile, const uint8_t *p, float *const *o, const float *b, uint32_t rows,
                           uint32_t line, uint32_t lines)
{
    const int8_t *v = tile->v + line * LINE;
    __m512i sums[4][4];
    for (uint32_t r = 0; r < rows; ++r) {
        for (uint32_t i = 0; i < lines; ++i) {
            sums[r][i] = _mm512_setzero_si512();
        }
    }
    for (uint32_t quad = 0; quad < tile->groups * (SIM_GROUP / 4u); ++quad, v += 4u * (uint64_t)tile->v_dim) {
        __m512i codes[4];
        for (uint32_t i = 0; i < lines; ++i) {
            codes[i] = _mm512_load_si512(v + i * LINE);
        }
        for (uint32_t r = 0; r < rows; ++r) {
            __m512i weights = broadcast_dword(p + r * SIM_TILE + 4u * quad);
            for (uint32_t i = 0; i < lines; ++i) {
                add_dot(&sums[r][i], weights, codes[i]);
            }
        }
    }
    for (uint32_t r = 0; r < rows; ++r) {
        for (uint32_t i = 0; i < lines; ++i) {
            float *to = o[r] + (line + i) * LANES;
            _mm512_storeu_ps(
                to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r][i]), _mm512_set1_ps(b[r]), _mm512_loadu_ps(to)));
        }
    }
}

static void dot_pv_rows(const sim_tile *tile, const uint8_t *p, float *const *o, const float *b, uint32_t line,
                        uint32_t lines, uint32_t rows)
{
    uint32_t r = 0;
    for (; r + 4u <= rows; r += 4u) {
        if (lines == 4u) {
            dot_pv_block(tile, p + r * SIM_TILE, o + r, b + r, 4, line, 4);
        } else {
            dot_pv_block(tile, p + r * SIM_TILE, o + r, b + r, 4, line, 2);
        }
    }
    for (; r < rows; ++r) {
        if (lines == 4u) {
            dot_pv_block(tile, p + r * SIM_TILE, o + r, b + r, 1, line, 4);
        } else {
            dot_pv_block(tile, p + r * SIM_TILE, o + r, b + r, 1, line, 2);
        }
    }
}

void sim_avx512_dot_pv(const sim_tile *tile, const uint8_t *p, float *const *o, const float *b, uint32_t rows)
{
    uint32_t lines = tile->v_dim / LANES; /* even: v_dim is a multiple of 32 */
    uint32_t line = 0;
    for (; line + 4u <= lines; line += 4u) {
        dot_pv_rows(tile, p, o, b, line, 4, rows);
    }
    if (line < lines) {
        dot_pv_rows(tile, p, o, b, line, 2, rows);
    }
}

void sim_avx512_coded_weights(const sim_group *group, float *exponent, float *weight)
{
    weights_of(group, exponent, weight);
}

const sim_isa sim_isa_avx512 = {
    .name = "avx512",
    .row = &sim_row_loops_avx512,
    .decode_k = sim_avx512_decode_k,
    .decode_v = sim_avx512_decode_v,
    .dot_qk = dot_qk,
    .softmax = sim_avx512_softmax,
    .softmax_rows = sim_avx512_softmax_rows,
    .dot_pv = sim_avx512_dot_pv,
    .coded_rows = CODED_ROWS,
    .coded_formats = CODED_FORMATS,
    .coded_weights = sim_avx512_coded_weights,
    .coded_qk = sim_avx512_coded_qk,
    .coded_pv = sim_avx512_coded_pv,
};
