/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file attend_avx512.c
 * @brief Hot loops of attend for AVX-512 with VNNI and VBMI.
 *
 * Budget per token and kv head at D = 128, four query rows: 16 VPDPBUSD; 4 lines of 4-bit codes decoded by 1 logic
 * operation and 1 table lookup each (mxfp4) or 2 and 1 multiply (int4p K), 2 lookups, 2 logic and 1 add (int4p V);
 * about 7 for the softmax. One K line is 16 tokens x 4 d, one V line 16 d x 4 tokens (isa.h).
 */
#include "exp2grid.h"
#include "isa.h"
#include "rowsum.h"

#include <immintrin.h>

#define LANES 16u
#define LINE 64u  /* bytes of a register */
#define HALVES 2u /* registers per group of 32 tokens */

/* ------------------------------------------------------------------------------------------------ exponents */

/* Exponents of 16 tokens from a plane, brought into the legal range (NUM 5.10). */
static __m512i load_exponents(const uint8_t *plane)
{
    __m512i e = _mm512_sub_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)plane)),
                                 _mm512_set1_epi32(NBL_E8M0_BIAS));
    return _mm512_max_epi32(_mm512_min_epi32(e, _mm512_set1_epi32(NBL_E_MAX)), _mm512_set1_epi32(NBL_E_MIN));
}

/* 2^e as floats, |e| <= 41. */
static __m512 exp2_of(__m512i e)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(e, _mm512_set1_epi32(127)), 23));
}

/* Canonical exponents of 16 tokens (NUM 2.3 to 2.5); *least receives e_min of the mxfp4 formats. */
static __m512i canonical_exponents(const sim_group *group, uint32_t token, __m512i *least)
{
    if (group->format == NBL_INT8 || group->format == NBL_INT4P) {
        uint32_t plane = nbl_layout_exponent_plane(group->format, group->dim);
        return load_exponents(group->scales + plane * group->plane_stride + token);
    }
    *least = load_exponents(group->scales + token);
    for (uint32_t b = 1; b < nbl_layout_scale_planes(group->format, group->dim); ++b) {
        *least = _mm512_min_epi32(*least, load_exponents(group->scales + b * group->plane_stride + token));
    }
    return _mm512_sub_epi32(*least, _mm512_set1_epi32(1));
}

/* ------------------------------------------------------------------------------------------------ tables */

#define SHIFTED_0(x) (x)
#define SHIFTED_1(x) (2 * (x))
#define SHIFTED_2(x) (4 * (x))
#define SHIFTED_3(x) (8 * (x))
#define BIASED_0(x) (uint8_t)(128 + SHIFTED_0(x))
#define BIASED_1(x) (uint8_t)(128 + SHIFTED_1(x))
#define BIASED_2(x) (uint8_t)(128 + SHIFTED_2(x))
#define BIASED_3(x) (uint8_t)(128 + SHIFTED_3(x))

/* mxfp4 for V: entry 16 * shift + code is (2 * e2m1) << shift. */
static const int8_t mxfp4_table[LINE] = {NBL_E2M1_CODES(SHIFTED_0), NBL_E2M1_CODES(SHIFTED_1),
                                         NBL_E2M1_CODES(SHIFTED_2), NBL_E2M1_CODES(SHIFTED_3)};
/* The same plus 128, for K. */
static const uint8_t mxfp4_biased_table[LINE] = {NBL_E2M1_CODES(BIASED_0), NBL_E2M1_CODES(BIASED_1),
                                                 NBL_E2M1_CODES(BIASED_2), NBL_E2M1_CODES(BIASED_3)};

#define TIMES_0(q) 0
#define TIMES_1(q) (q)
#define TIMES_2(q) (2 * (q))
#define TIMES_3(q) (3 * (q))
#define TIMES_4(q) (4 * (q))
#define TIMES_8(q) (8 * (q))
#define TIMES_12(q) (12 * (q))

/* int4p: entry 16 * a + code is q * 4a, entry 16 * b + code is q * (b + 1). */
static const int8_t int4p_table_a[LINE] = {NBL_INT4P_CODES(TIMES_0), NBL_INT4P_CODES(TIMES_4), NBL_INT4P_CODES(TIMES_8),
                                           NBL_INT4P_CODES(TIMES_12)};
static const int8_t int4p_table_b[LINE] = {NBL_INT4P_CODES(TIMES_1), NBL_INT4P_CODES(TIMES_2), NBL_INT4P_CODES(TIMES_3),
                                           NBL_INT4P_CODES(TIMES_4)};

static __m512i low_nibbles(__m512i bytes)
{
    return _mm512_and_si512(bytes, _mm512_set1_epi8(15));
}

static __m512i high_nibbles(__m512i bytes)
{
    return _mm512_and_si512(_mm512_srli_epi16(bytes, 4), _mm512_set1_epi8(15));
}

/* A dword per token spread to its four bytes. */
static __m512i spread_bytes(__m512i dwords)
{
    return _mm512_mullo_epi32(dwords, _mm512_set1_epi32(0x01010101));
}

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

/* Blocks of block_dim elements share one shift per token. */
static void decode_k_mxfp4(const sim_group *group, uint32_t half, __m512i least, uint8_t *codes)
{
    uint32_t block_dim = nbl_layout_block_dim(group->format, group->dim);
    uint32_t pairs = nbl_layout_dim_padded(group->dim) / 8u; /* lines of stored codes */
    const __m512i table = _mm512_loadu_si512(mxfp4_biased_table);
    __m512i index = _mm512_setzero_si512();
    for (uint32_t pair = 0; pair < pairs; ++pair) {
        if (pair % (block_dim / 8u) == 0) {
            const uint8_t *plane = group->scales + pair / (block_dim / 8u) * group->plane_stride + half * LANES;
            __m512i shift =
                _mm512_and_si512(_mm512_sub_epi32(load_exponents(plane), least), _mm512_set1_epi32(NBL_BLOCK_E_SPREAD));
            index = spread_bytes(_mm512_slli_epi32(shift, 4));
        }
        __m512i bytes = _mm512_loadu_si512(group->codes + (pair * HALVES + half) * LINE);
        _mm512_store_si512(k_line(codes, 2u * pair, half),
                           _mm512_permutexvar_epi8(_mm512_or_si512(low_nibbles(bytes), index), table));
        _mm512_store_si512(k_line(codes, 2u * pair + 1u, half),
                           _mm512_permutexvar_epi8(_mm512_or_si512(high_nibbles(bytes), index), table));
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
        __m512i offset = _mm512_sub_epi8(_mm512_set1_epi8((char)128), spread_bytes(_mm512_slli_epi32(m, 3)));
        for (uint32_t pair = 2u * block; pair < 2u * block + 2u; ++pair) {
            __m512i bytes = _mm512_loadu_si512(group->codes + (pair * HALVES + half) * LINE);
            __m512i low = _mm512_mullo_epi16(low_nibbles(bytes), m16);
            __m512i high = _mm512_mullo_epi16(high_nibbles(bytes), m16);
            _mm512_store_si512(k_line(codes, 2u * pair, half), _mm512_add_epi8(low, offset));
            _mm512_store_si512(k_line(codes, 2u * pair + 1u, half), _mm512_add_epi8(high, offset));
        }
    }
}

static void decode_k(const sim_group *group, uint8_t *codes, float *unit)
{
    if (group->format == NBL_INT8) {
        decode_k_int8(group, codes);
    }
    for (uint32_t half = 0; half < HALVES; ++half) {
        __m512i least = _mm512_setzero_si512();
        __m512i exponents = canonical_exponents(group, half * LANES, &least);
        _mm512_storeu_ps(unit + half * LANES, exp2_of(exponents));
        if (group->format == NBL_INT4P) {
            decode_k_int4p(group, half, codes);
        } else if (group->format != NBL_INT8) {
            decode_k_mxfp4(group, half, least, codes);
        }
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

/* Bytes of four neighbouring tokens in a plane, for all 16 lanes. */
static __m512i quad_bytes(const sim_group *group, uint32_t plane, uint32_t quad)
{
    int32_t dword;
    memcpy(&dword, group->scales + plane * group->plane_stride + 4u * quad, sizeof dword);
    return _mm512_set1_epi32(dword);
}

/* Bytes e - e_min of four tokens, times 16: the table index without the code. Garbage stays below 64. */
static __m512i mxfp4_index(const sim_group *group, uint32_t plane, uint32_t quad, __m512i least)
{
    __m512i shift =
        _mm512_and_si512(_mm512_sub_epi8(quad_bytes(group, plane, quad), least), _mm512_set1_epi8(NBL_BLOCK_E_SPREAD));
    return _mm512_slli_epi16(shift, 4);
}

static __m512i least_bytes(const sim_group *group, uint32_t quad)
{
    __m512i least = quad_bytes(group, 0, quad);
    for (uint32_t b = 1; b < nbl_layout_scale_planes(group->format, group->dim); ++b) {
        least = _mm512_min_epu8(least, quad_bytes(group, b, quad));
    }
    return least;
}

static void decode_v_mxfp4(const sim_group *group, int8_t *codes)
{
    uint32_t wide = nbl_layout_dim_padded(group->dim) / 32u; /* stored lines of a quad */
    uint32_t blocks_per_line = 32u / nbl_layout_block_dim(group->format, group->dim);
    const __m512i table = _mm512_loadu_si512(mxfp4_table);
    for (uint32_t quad = 0; quad < SIM_GROUP / 4u; ++quad) {
        __m512i least = least_bytes(group, quad);
        for (uint32_t i = 0; i < wide; ++i, codes += 2u * LINE) {
            __m512i low = mxfp4_index(group, i * blocks_per_line, quad, least);
            __m512i high = mxfp4_index(group, i * blocks_per_line + blocks_per_line - 1u, quad, least);
            __m512i bytes = _mm512_loadu_si512(group->codes + (quad * wide + i) * LINE);
            _mm512_store_si512(codes, _mm512_permutexvar_epi8(_mm512_or_si512(low_nibbles(bytes), low), table));
            _mm512_store_si512(codes + LINE,
                               _mm512_permutexvar_epi8(_mm512_or_si512(high_nibbles(bytes), high), table));
        }
    }
}

/* (code - 8) * m with m - 1 = 4a + b, as two lookups: (code - 8) * 4a and (code - 8) * (b + 1). */
static __m512i int4p_product(__m512i code, __m512i m_less_1, __m512i table_a, __m512i table_b)
{
    __m512i a = _mm512_and_si512(_mm512_slli_epi16(m_less_1, 2), _mm512_set1_epi8(0x30));
    __m512i b = _mm512_and_si512(_mm512_slli_epi16(m_less_1, 4), _mm512_set1_epi8(0x30));
    return _mm512_add_epi8(_mm512_permutexvar_epi8(_mm512_or_si512(code, a), table_a),
                           _mm512_permutexvar_epi8(_mm512_or_si512(code, b), table_b));
}

static void decode_v_int4p(const sim_group *group, int8_t *codes)
{
    uint32_t wide = nbl_layout_dim_padded(group->dim) / 32u;
    const __m512i table_a = _mm512_loadu_si512(int4p_table_a);
    const __m512i table_b = _mm512_loadu_si512(int4p_table_b);
    for (uint32_t quad = 0; quad < SIM_GROUP / 4u; ++quad) {
        for (uint32_t i = 0; i < wide; ++i, codes += 2u * LINE) {
            __m512i pair = quad_bytes(group, i, quad);
            __m512i bytes = _mm512_loadu_si512(group->codes + (quad * wide + i) * LINE);
            _mm512_store_si512(codes, int4p_product(low_nibbles(bytes), low_nibbles(pair), table_a, table_b));
            _mm512_store_si512(codes + LINE, int4p_product(high_nibbles(bytes), high_nibbles(pair), table_a, table_b));
        }
    }
}

static void decode_v(const sim_group *group, int8_t *codes, float *exponent, float *weight)
{
    for (uint32_t half = 0; half < HALVES; ++half) {
        __m512i least = _mm512_setzero_si512();
        __m512i e = canonical_exponents(group, half * LANES, &least);
        _mm512_storeu_ps(exponent + half * LANES, _mm512_cvtepi32_ps(e));
        _mm512_storeu_ps(weight + half * LANES, exp2_of(_mm512_sub_epi32(_mm512_setzero_si512(), e)));
    }
    if (group->format == NBL_INT8) {
        decode_v_int8(group, codes);
    } else if (group->format == NBL_INT4P) {
        decode_v_int4p(group, codes);
    } else {
        decode_v_mxfp4(group, codes);
    }
}

/* ------------------------------------------------------------------------------------------------ Q K */

static __m512i broadcast_dword(const void *bytes)
{
    int32_t dword;
    memcpy(&dword, bytes, sizeof dword);
    return _mm512_set1_epi32(dword);
}

static void store_logits(const sim_tile *tile, uint32_t token, __m512i sums, float *x)
{
    _mm512_storeu_ps(x + token, _mm512_mul_ps(_mm512_cvtepi32_ps(sums), _mm512_loadu_ps(tile->unit + token)));
}

/* `rows` query rows (a constant 1..4) against 64 tokens, or 32 in the last group of an odd tile. */
static inline __attribute__((always_inline)) void dot_qk_block(const sim_tile *tile, uint32_t group, uint32_t groups,
                                                               const int8_t *q, const int32_t *bias, uint32_t rows,
                                                               float *x)
{
    uint64_t group_bytes = (uint64_t)SIM_GROUP * tile->k_dim;
    const uint8_t *k = tile->k + group * group_bytes;
    uint32_t lines = groups * HALVES;
    __m512i sums[4][4];
    for (uint32_t r = 0; r < rows; ++r) {
        for (uint32_t i = 0; i < lines; ++i) {
            sums[r][i] = _mm512_set1_epi32(bias[r]);
        }
    }
    for (uint32_t quad = 0; quad < tile->k_dim / 4u; ++quad) {
        __m512i line[4];
        for (uint32_t i = 0; i < lines; ++i) {
            line[i] = _mm512_load_si512(k + i / HALVES * group_bytes + (quad * HALVES + i % HALVES) * LINE);
        }
        for (uint32_t r = 0; r < rows; ++r) {
            __m512i codes = broadcast_dword(q + (uint64_t)r * tile->k_dim + 4u * quad);
            for (uint32_t i = 0; i < lines; ++i) {
                sums[r][i] = _mm512_dpbusd_epi32(sums[r][i], line[i], codes);
            }
        }
    }
    for (uint32_t r = 0; r < rows; ++r) {
        for (uint32_t i = 0; i < lines; ++i) {
            store_logits(tile, group * SIM_GROUP + i * LANES, sums[r][i], x + (uint64_t)r * SIM_TILE);
        }
    }
}

static void dot_qk(const sim_tile *tile, const int8_t *q, const int32_t *bias, uint32_t rows, float *x)
{
    for (uint32_t g = 0; g < tile->groups; g += 2u) {
        uint32_t r = 0;
        if (g + 1u == tile->groups) {
            for (; r < rows; ++r) {
                dot_qk_block(tile, g, 1, q + (uint64_t)r * tile->k_dim, bias + r, 1, x + (uint64_t)r * SIM_TILE);
            }
            return;
        }
        for (; r + 4u <= rows; r += 4u) {
            dot_qk_block(tile, g, 2, q + (uint64_t)r * tile->k_dim, bias + r, 4, x + (uint64_t)r * SIM_TILE);
        }
        for (; r < rows; ++r) {
            dot_qk_block(tile, g, 2, q + (uint64_t)r * tile->k_dim, bias + r, 1, x + (uint64_t)r * SIM_TILE);
        }
    }
}

/* ------------------------------------------------------------------------------------------------ softmax */

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

/* t of all tokens, at most `limit`; the largest of the visible ones is returned. */
static float grid_logits(const sim_row_tile *row, float base, float limit, __m512 *t)
{
    __m512 most = _mm512_set1_ps(-INFINITY);
    for (uint32_t i = 0; i < row->groups * HALVES; ++i) {
        __m512 a = _mm512_sub_ps(_mm512_loadu_ps(row->a + i * LANES), _mm512_set1_ps(base));
        __m512 value = _mm512_fmadd_ps(_mm512_loadu_ps(row->x + i * LANES), _mm512_set1_ps(row->scale),
                                       _mm512_add_ps(a, _mm512_set1_ps(NBL_GRID)));
        t[i] = _mm512_min_ps(value, _mm512_set1_ps(limit));
        most = _mm512_mask_max_ps(most, visible_lanes(row, i), most, t[i]);
    }
    return _mm512_reduce_max_ps(most);
}

/* nbl_grid_exp2 of the visible lanes, 0 in the others. */
static __m512 grid_exp2(__m512 u, __mmask16 visible)
{
    __m512 n = _mm512_roundscale_ps(u, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_sub_ps(u, n);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(NBL_GRID_C4), f, _mm512_set1_ps(NBL_GRID_C3));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(NBL_GRID_C2));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(NBL_GRID_C1));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    __mmask16 kept = _mm512_mask_cmp_ps_mask(visible, u, _mm512_set1_ps(NBL_WEIGHT_MIN), _CMP_GE_OQ);
    return _mm512_maskz_scalef_ps(kept, p, n);
}

/* q of NUM 5.4: RNE to the upper 16 bits. */
static __m512 round_to_bf16(__m512 p)
{
    __m512i bits = _mm512_castps_si512(p);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    return _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32((int)0xffff0000u)));
}

static sim_softmax softmax(const sim_row_tile *row, float base, int first, uint8_t *p)
{
    __m512 t[SIM_TILE / LANES];
    sim_softmax out = {first ? base_of(row) : base, 1.0f, 0.0f, 0.0f, 0};
    float most = grid_logits(row, out.base, INFINITY, t);
    if (most > NBL_GRID + NBL_REBASE) {
        float moved = fmaxf(out.base, base_of(row));
        out.rescale = nbl_pow2f(out.base - moved);
        out.base = moved;
        most = grid_logits(row, moved, NBL_GRID + NBL_REBASE, t);
    }
    if (most - NBL_GRID < NBL_WEIGHT_MIN) {
        out.left_out = 1;
        return out;
    }
    __m512 sums = _mm512_setzero_ps();
    for (uint32_t i = 0; i < row->groups * HALVES; ++i) {
        __m512 e = grid_exp2(_mm512_sub_ps(t[i], _mm512_set1_ps(most)), visible_lanes(row, i));
        __m512 weight = _mm512_fmadd_ps(e, _mm512_set1_ps(NBL_P_SCALE), _mm512_set1_ps(NBL_MAGIC));
        _mm_storeu_si128((__m128i *)(void *)(p + i * LANES), _mm512_cvtepi32_epi8(_mm512_castps_si512(weight)));
        sums = _mm512_fmadd_ps(round_to_bf16(e), _mm512_loadu_ps(row->weight + i * LANES), sums);
    }
    float partial[NBL_PARTIAL_SUMS];
    _mm512_storeu_ps(partial, sums);
    out.l = nbl_sum_tree(partial);
    out.b = nbl_grid_base(most - NBL_GRID);
    return out;
}

/* ------------------------------------------------------------------------------------------------ P V */

/* `rows` rows (a constant 1..4) times `lines` lines (a constant 1..4) of 16 elements of V, from element 16 * line. */
static inline __attribute__((always_inline)) void dot_pv_block(const sim_tile *tile, const uint8_t *p, float *const *o,
                                                               const float *b, uint32_t rows, uint32_t line,
                                                               uint32_t lines)
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
                sums[r][i] = _mm512_dpbusd_epi32(sums[r][i], weights, codes[i]);
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

static void dot_pv(const sim_tile *tile, const uint8_t *p, float *const *o, const float *b, uint32_t rows)
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

const sim_isa sim_isa_avx512 = {"avx512", decode_k, decode_v, dot_qk, softmax, dot_pv};
