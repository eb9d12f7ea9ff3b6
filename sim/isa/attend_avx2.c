/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file attend_avx2.c
 * @brief Hot loops of attend for AVX2 with FMA and without VNNI.
 *
 * VPMADDUBSW would saturate, so bytes are split into even and odd 16-bit words (once per register, shared by all rows)
 * and multiplied by VPMADDWD with pairs of query codes or weights in the same order: (0, 2) and (1, 3) of every four.
 * One K line is 8 tokens x 4 d, one V line 8 d x 4 tokens (isa.h).
 */
#include "avx2.h"

#define ROWS 4u  /* rows that share a register of codes */
#define LINES 2u /* registers of codes in flight */

static void store(void *bytes, __m256i x)
{
    _mm256_store_si256((__m256i *)bytes, x);
}

static __m256i spread_bytes(__m256i dwords)
{
    return _mm256_mullo_epi32(dwords, _mm256_set1_epi32(0x01010101));
}

/* ------------------------------------------------------------------------------------------------ K */

static uint8_t *k_line(uint8_t *codes, uint32_t quad, uint32_t part)
{
    return codes + (quad * PARTS + part) * LINE;
}

static void decode_k_int8(const sim_group *group, uint8_t *codes)
{
    uint32_t lines = nbl_layout_dim_padded(group->dim) / 4u * PARTS;
    for (uint32_t i = 0; i < lines; ++i) {
        store(codes + i * LINE, _mm256_xor_si256(load(group->codes + i * LINE), _mm256_set1_epi8((char)0x80)));
    }
}

/* Planes of e_b - e_min of 32 tokens as bytes. */
static void shifts_of(const sim_group *group, uint8_t *above)
{
    __m256i least = least_exponent_bytes(group);
    for (uint32_t b = 0; b < nbl_layout_scale_planes(group->format, group->dim); ++b) {
        __m256i shift = _mm256_sub_epi8(exponent_bytes(group, b), least);
        store_unaligned(above + b * SIM_GROUP, _mm256_and_si256(shift, _mm256_set1_epi8(NBL_BLOCK_E_SPREAD)));
    }
}

/* Code + 12 is 0..24 and may be shifted by up to 3 inside its byte; 128 - (12 << shift) puts the offset right. */
static void decode_k_mxfp4(const sim_group *group, uint32_t part, uint8_t *codes)
{
    uint8_t above[NBL_SCALES_MAX * SIM_GROUP];
    shifts_of(group, above);
    uint32_t pairs_per_block = nbl_layout_block_dim(group->format, group->dim) / 8u;
    uint32_t pairs = nbl_layout_dim_padded(group->dim) / 8u;
    const __m256i table = load_table(e2m1_table_plus_12);
    __m256i shift = _mm256_setzero_si256();
    __m256i offset = shift;
    for (uint32_t pair = 0; pair < pairs; ++pair) {
        if (pair % pairs_per_block == 0) {
            shift = dwords_of(above + pair / pairs_per_block * SIM_GROUP + part * LANES);
            offset = _mm256_sub_epi8(_mm256_set1_epi8((char)128),
                                     spread_bytes(_mm256_sllv_epi32(_mm256_set1_epi32(12), shift)));
        }
        __m256i bytes = load(group->codes + (pair * PARTS + part) * LINE);
        __m256i low = _mm256_sllv_epi32(_mm256_shuffle_epi8(table, low_nibbles(bytes)), shift);
        __m256i high = _mm256_sllv_epi32(_mm256_shuffle_epi8(table, high_nibbles(bytes)), shift);
        store(k_line(codes, 2u * pair, part), _mm256_add_epi8(low, offset));
        store(k_line(codes, 2u * pair + 1u, part), _mm256_add_epi8(high, offset));
    }
}

/* (code - 8) * m + 128 from a 16-bit product of both bytes at once: code * m <= 240 never carries. */
static void decode_k_int4p(const sim_group *group, uint32_t part, uint8_t *codes)
{
    uint32_t blocks = nbl_layout_dim_padded(group->dim) / 16u;
    for (uint32_t block = 0; block < blocks; ++block) {
        const uint8_t *plane = group->scales + block / 2u * group->plane_stride + part * LANES;
        __m256i pairs = dwords_of(plane);
        __m256i nibble = block % 2u == 0 ? _mm256_and_si256(pairs, _mm256_set1_epi32(15)) : _mm256_srli_epi32(pairs, 4);
        __m256i m = _mm256_add_epi32(nibble, _mm256_set1_epi32(1));
        __m256i m16 = _mm256_or_si256(m, _mm256_slli_epi32(m, 16));
        __m256i offset = _mm256_sub_epi8(_mm256_set1_epi8((char)128), spread_bytes(_mm256_slli_epi32(m, 3)));
        for (uint32_t pair = 2u * block; pair < 2u * block + 2u; ++pair) {
            __m256i bytes = load(group->codes + (pair * PARTS + part) * LINE);
            __m256i low = _mm256_mullo_epi16(low_nibbles(bytes), m16);
            __m256i high = _mm256_mullo_epi16(high_nibbles(bytes), m16);
            store(k_line(codes, 2u * pair, part), _mm256_add_epi8(low, offset));
            store(k_line(codes, 2u * pair + 1u, part), _mm256_add_epi8(high, offset));
        }
    }
}

static void decode_k(const sim_group *group, uint8_t *codes, float *unit)
{
    units_of(group, unit);
    if (group->format == NBL_INT8) {
        decode_k_int8(group, codes);
    }
    for (uint32_t part = 0; group->format != NBL_INT8 && part < PARTS; ++part) {
        if (group->format == NBL_INT4P) {
            decode_k_int4p(group, part, codes);
        } else {
            decode_k_mxfp4(group, part, codes);
        }
    }
}

/* ------------------------------------------------------------------------------------------------ V */

static void decode_v_int8(const sim_group *group, int8_t *codes)
{
    uint32_t lines = SIM_GROUP * nbl_layout_dim_padded(group->dim) / LINE;
    for (uint32_t i = 0; i < lines; ++i) {
        store(codes + i * LINE, load(group->codes + i * LINE));
    }
}

static __m256i quad_bytes(const sim_group *group, uint32_t plane, uint32_t quad)
{
    int32_t dword;
    memcpy(&dword, group->scales + plane * group->plane_stride + 4u * quad, sizeof dword);
    return _mm256_set1_epi32(dword);
}

static __m256i least_bytes(const sim_group *group, uint32_t quad)
{
    __m256i least = quad_bytes(group, 0, quad);
    for (uint32_t b = 1; b < nbl_layout_scale_planes(group->format, group->dim); ++b) {
        least = _mm256_min_epu8(least, quad_bytes(group, b, quad));
    }
    return least;
}

/* x << shift, byte by byte, shift 0..3. */
static __m256i shift_bytes(__m256i x, __m256i shift)
{
    __m256i twice = _mm256_add_epi8(x, x);
    x = _mm256_blendv_epi8(x, twice, _mm256_slli_epi16(shift, 7));
    twice = _mm256_add_epi8(x, x);
    return _mm256_blendv_epi8(x, _mm256_add_epi8(twice, twice), _mm256_slli_epi16(shift, 6));
}

/* Blocks of 16 are two stored halves of a 32-byte line: a line holds 8 d, so a block is one or two of them. */
static void decode_v_mxfp4(const sim_group *group, int8_t *codes)
{
    uint32_t padded = nbl_layout_dim_padded(group->dim);
    uint32_t blocks_per_32 = 32u / nbl_layout_block_dim(group->format, group->dim);
    const __m256i table = load_table(e2m1_table);
    for (uint32_t quad = 0; quad < SIM_GROUP / 4u; ++quad, codes += 4u * padded) {
        __m256i least = least_bytes(group, quad);
        for (uint32_t i = 0; i < padded / 16u; ++i) { /* 16 stored bytes-columns make 32 d; a line is half of them */
            uint32_t first_block = i / 2u * blocks_per_32;
            __m256i low_shift = _mm256_sub_epi8(quad_bytes(group, first_block, quad), least);
            __m256i high_shift = _mm256_sub_epi8(quad_bytes(group, first_block + blocks_per_32 - 1u, quad), least);
            __m256i bytes = load(group->codes + ((uint64_t)quad * (padded / 16u) + i) * LINE);
            int8_t *to = codes + (i / 2u * 4u + i % 2u) * LINE;
            store(to, shift_bytes(_mm256_shuffle_epi8(table, low_nibbles(bytes)), low_shift));
            store(to + 2u * LINE, shift_bytes(_mm256_shuffle_epi8(table, high_nibbles(bytes)), high_shift));
        }
    }
}

/* (code - 8) * m byte by byte: products of even and odd bytes apart, each at most 240. */
static __m256i int4p_product(__m256i code, __m256i m_less_1)
{
    const __m256i even = _mm256_set1_epi16(0x00ff);
    __m256i m = _mm256_add_epi8(m_less_1, _mm256_set1_epi8(1));
    __m256i low = _mm256_mullo_epi16(_mm256_and_si256(code, even), _mm256_and_si256(m, even));
    __m256i high = _mm256_mullo_epi16(_mm256_srli_epi16(code, 8), _mm256_srli_epi16(m, 8));
    __m256i product = _mm256_or_si256(low, _mm256_slli_epi16(high, 8));
    return _mm256_sub_epi8(product, _mm256_slli_epi16(m, 3)); /* m <= 16: no bit crosses a byte */
}

static void decode_v_int4p(const sim_group *group, int8_t *codes)
{
    uint32_t padded = nbl_layout_dim_padded(group->dim);
    for (uint32_t quad = 0; quad < SIM_GROUP / 4u; ++quad, codes += 4u * padded) {
        for (uint32_t i = 0; i < padded / 16u; ++i) {
            __m256i pair = quad_bytes(group, i / 2u, quad);
            __m256i bytes = load(group->codes + ((uint64_t)quad * (padded / 16u) + i) * LINE);
            int8_t *to = codes + (i / 2u * 4u + i % 2u) * LINE;
            store(to, int4p_product(low_nibbles(bytes), low_nibbles(pair)));
            store(to + 2u * LINE, int4p_product(high_nibbles(bytes), high_nibbles(pair)));
        }
    }
}

static void decode_v(const sim_group *group, int8_t *codes, float *exponent, float *weight)
{
    weights_of(group, exponent, weight);
    if (group->format == NBL_INT8) {
        decode_v_int8(group, codes);
    } else if (group->format == NBL_INT4P) {
        decode_v_int4p(group, codes);
    } else {
        decode_v_mxfp4(group, codes);
    }
}

/* ------------------------------------------------------------------------------------------------ dot products */

/* Pairs (0, 2) and (1, 3) of every four elements, as the two dwords that VPMADDWD takes. */
typedef struct pair_words {
    int16_t words[4];
} pair_words;

static __m256i broadcast_dword(const int16_t *words)
{
    int32_t dword;
    memcpy(&dword, words, sizeof dword);
    return _mm256_set1_epi32(dword);
}

/* pairs[row][quad] of `count` rows from row `first` on. */
static void pair_queries(const sim_rows *rows, uint32_t first, uint32_t count, pair_words *out)
{
    for (uint32_t r = first; r < first + count; ++r) {
        for (uint32_t quad = 0; quad < rows->dim / 4u; ++quad) {
            int8_t q[4];
            memcpy(q, &rows->words[quad * rows->count + r], sizeof q);
            *out++ = (pair_words){{q[0], q[2], q[1], q[3]}};
        }
    }
}

static void pair_weights(const uint8_t *p, uint32_t quads, pair_words *out)
{
    for (uint32_t i = 0; i < quads; ++i, p += 4) {
        out[i] = (pair_words){{p[0], p[2], p[1], p[3]}};
    }
}

/* sums += even words * (0, 2) + odd words * (1, 3). */
static __m256i add_products(__m256i sums, __m256i even, __m256i odd, const pair_words *pair)
{
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(even, broadcast_dword(pair->words)));
    return _mm256_add_epi32(sums, _mm256_madd_epi16(odd, broadcast_dword(pair->words + 2)));
}

/* `rows` rows (a constant 1 or 4) against 16 tokens. */
UNROLLED void dot_qk_block(const sim_tile *tile, uint32_t token, const pair_words *q, const int32_t *bias,
                           uint32_t rows, float *x)
{
    const uint8_t *k = tile->k + (uint64_t)(token / SIM_GROUP) * SIM_GROUP * tile->k_dim + token % SIM_GROUP * 4u;
    uint32_t quads = tile->k_dim / 4u;
    __m256i sums[ROWS][LINES];
    for (uint32_t r = 0; r < rows; ++r) {
        sums[r][0] = sums[r][1] = _mm256_set1_epi32(bias[r]);
    }
    for (uint32_t quad = 0; quad < quads; ++quad, k += 4u * SIM_GROUP) {
        for (uint32_t i = 0; i < LINES; ++i) {
            __m256i line = load(k + i * LINE);
            __m256i even = _mm256_and_si256(line, _mm256_set1_epi16(0x00ff));
            __m256i odd = _mm256_srli_epi16(line, 8);
            for (uint32_t r = 0; r < rows; ++r) {
                sums[r][i] = add_products(sums[r][i], even, odd, q + r * quads + quad);
            }
        }
    }
    for (uint32_t r = 0; r < rows; ++r) {
        for (uint32_t i = 0; i < LINES; ++i) {
            uint32_t at = token + i * LANES;
            _mm256_storeu_ps(x + (uint64_t)r * SIM_TILE + at,
                             _mm256_mul_ps(_mm256_cvtepi32_ps(sums[r][i]), _mm256_loadu_ps(tile->unit + at)));
        }
    }
}

static void dot_qk(const sim_tile *tile, const sim_rows *rows, float *x)
{
    pair_words pairs[ROWS * NBL_DIM_PADDED_MAX / 4u];
    uint32_t step;
    for (uint32_t r = 0; r < rows->count; r += step) {
        step = r + ROWS <= rows->count ? ROWS : 1u;
        pair_queries(rows, r, step, pairs);
        for (uint32_t token = 0; token < tile->groups * SIM_GROUP; token += LINES * LANES) {
            if (step == ROWS) {
                dot_qk_block(tile, token, pairs, rows->bias + r, ROWS, x + (uint64_t)r * SIM_TILE);
            } else {
                dot_qk_block(tile, token, pairs, rows->bias + r, 1, x + (uint64_t)r * SIM_TILE);
            }
        }
    }
}

/* `rows` rows (a constant 1 or 4) times 16 elements of V from element `d`. */
UNROLLED void dot_pv_block(const sim_tile *tile, const pair_words *p, float *const *o, const float *b, uint32_t rows,
                           uint32_t d)
{
    const int8_t *v = tile->v + d * 4u;
    uint32_t quads = tile->groups * (SIM_GROUP / 4u);
    __m256i sums[ROWS][LINES];
    for (uint32_t r = 0; r < rows; ++r) {
        sums[r][0] = sums[r][1] = _mm256_setzero_si256();
    }
    for (uint32_t quad = 0; quad < quads; ++quad, v += 4u * (uint64_t)tile->v_dim) {
        for (uint32_t i = 0; i < LINES; ++i) {
            __m256i line = load(v + i * LINE);
            __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(line, 8), 8);
            __m256i odd = _mm256_srai_epi16(line, 8);
            for (uint32_t r = 0; r < rows; ++r) {
                sums[r][i] = add_products(sums[r][i], even, odd, p + r * (SIM_TILE / 4u) + quad);
            }
        }
    }
    for (uint32_t r = 0; r < rows; ++r) {
        for (uint32_t i = 0; i < LINES; ++i) {
            float *to = o[r] + d + i * LANES;
            _mm256_storeu_ps(
                to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[r][i]), _mm256_set1_ps(b[r]), _mm256_loadu_ps(to)));
        }
    }
}

static void dot_pv(const sim_tile *tile, const uint8_t *p, float *const *o, const float *b, uint32_t rows)
{
    pair_words pairs[ROWS * SIM_TILE / 4u];
    uint32_t step;
    for (uint32_t r = 0; r < rows; r += step) {
        step = r + ROWS <= rows ? ROWS : 1u;
        pair_weights(p + (uint64_t)r * SIM_TILE, step * SIM_TILE / 4u, pairs);
        for (uint32_t d = 0; d < tile->v_dim; d += LINES * LANES) {
            if (step == ROWS) {
                dot_pv_block(tile, pairs, o + r, b + r, ROWS, d);
            } else {
                dot_pv_block(tile, pairs, o + r, b + r, 1, d);
            }
        }
    }
}

const sim_isa sim_isa_avx2 = {
    .name = "avx2",
    .row = &sim_row_loops_avx2,
    .decode_k = decode_k,
    .decode_v = decode_v,
    .dot_qk = dot_qk,
    .softmax = sim_avx2_softmax,
    .softmax_rows = sim_avx2_softmax_rows,
    .dot_pv = dot_pv,
    .coded_rows = 8,
    .coded_formats = 1u << NBL_MXFP4 | 1u << NBL_MXFP4_16 | 1u << NBL_INT4P,
    .coded_widen = sim_avx2_coded_widen,
    .coded_weights = weights_of,
    .coded_qk = sim_avx2_coded_qk,
    .coded_pv = sim_avx2_coded_pv,
};
