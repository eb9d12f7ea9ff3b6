/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file coded_avx2.c
 * @brief Dot products straight from the stored codes of the 4-bit formats, for AVX2 without VNNI.
 *
 * K: unsigned codes (q + 8, or 2 * e2m1 + 12 by a lookup) times signed query codes by VPMADDUBSW, sixteen elements at a
 * time in 16-bit sums. One of the two sums of a token starts at minus the offset times the sum of the row's codes; with
 * it no sum leaves 12 * 16 * 127 < 2^15. VPMADDWD with (m, m), or (2^s, 2^s), adds both and scales the block.
 *
 * V: the scale varies along the sum, so it goes into the weights: W = P * m <= 4080 once per row, block and token.
 * Codes become signed words, even and odd tokens apart, for VPMADDWD with pairs (0, 2) and (1, 3) of W.
 *
 * K lines are 8 tokens x 8 elements, V lines 8 elements of two blocks x 4 tokens.
 */
#include "avx2.h"

#define BLOCK SIM_BLOCK
#define ROWS_MAX 4u /* rows that share a decoded line */

/* One copy of a loop for each number of rows; under AddressSanitizer one for all, as in coded_avx512.c. */
#if defined(__SANITIZE_ADDRESS__)
#define FOR_ROWS(rows, call) call(rows);
#else
#define FOR_ROWS(rows, call) \
    switch (rows) {          \
    case 1: call(1); break;  \
    case 2: call(2); break;  \
    case 3: call(3); break;  \
    default: call(4); break; \
    }
#endif

static inline uint32_t rows_from(uint32_t all, uint32_t first)
{
    return all - first < ROWS_MAX ? all - first : ROWS_MAX;
}

/* ------------------------------------------------------------------------------------------------ block scales */

/* m of 32 tokens as bytes, one plane per block of 16: int4p multipliers, or 2^(e_b - e_min). */
typedef struct multipliers {
    uint8_t bytes[NBL_DIM_PADDED_MAX / BLOCK][SIM_GROUP];
} multipliers;

static void int4p_multipliers(const sim_group *group, multipliers *out)
{
    const __m256i one = _mm256_set1_epi8(1);
    for (uint32_t i = 0; i < nbl_layout_dim_padded(group->dim) / 32u; ++i) {
        __m256i pairs = load(group->scales + i * group->plane_stride);
        store_unaligned(out->bytes[2u * i], _mm256_add_epi8(low_nibbles(pairs), one));
        store_unaligned(out->bytes[2u * i + 1u], _mm256_add_epi8(high_nibbles(pairs), one));
    }
}

static void mxfp4_multipliers(const sim_group *group, multipliers *out)
{
    const __m256i powers = _mm256_set1_epi32(0x08040201);
    uint32_t blocks = nbl_layout_block_dim(group->format, group->dim) / BLOCK;
    __m256i least = least_exponent_bytes(group);
    for (uint32_t plane = 0; plane < nbl_layout_scale_planes(group->format, group->dim); ++plane) {
        __m256i above = _mm256_sub_epi8(exponent_bytes(group, plane), least);
        above = _mm256_and_si256(above, _mm256_set1_epi8(NBL_BLOCK_E_SPREAD));
        for (uint32_t b = 0; b < blocks; ++b) {
            store_unaligned(out->bytes[plane * blocks + b], _mm256_shuffle_epi8(powers, above));
        }
    }
}

static void multipliers_of(const sim_group *group, multipliers *out)
{
    if (group->format == NBL_INT4P) {
        int4p_multipliers(group, out);
    } else {
        mxfp4_multipliers(group, out);
    }
}

/* ------------------------------------------------------------------------------------------------ Q K */

/* Unsigned codes of the low and the high nibbles of a line. */
UNROLLED void k_codes(int is_int4p, __m256i bytes, __m256i *low, __m256i *high)
{
    *low = low_nibbles(bytes);
    *high = high_nibbles(bytes);
    if (!is_int4p) {
        const __m256i table = load_table(e2m1_table_plus_12);
        *low = _mm256_shuffle_epi8(table, *low);
        *high = _mm256_shuffle_epi8(table, *high);
    }
}

/* The word m of eight tokens, twice. */
static inline __m256i multiplier_pairs(const uint8_t *bytes)
{
    __m256i m = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)bytes));
    return _mm256_or_si256(m, _mm256_slli_epi32(m, 16));
}

/* Words of four query codes, eight times each: operands in memory. */
typedef struct wide_words {
    __m256i of[NBL_DIM_PADDED_MAX / 4u][ROWS_MAX];
} wide_words;

static void widen_words(const sim_rows *q, uint32_t first, uint32_t rows, wide_words *out)
{
    for (uint32_t quad = 0; quad < q->dim / 4u; ++quad) {
        for (uint32_t r = 0; r < rows; ++r) {
            out->of[quad][r] = _mm256_set1_epi32(q->words[quad * q->count + first + r]);
        }
    }
}

/* sum += two unsigned bytes of `codes` times two signed ones of `words`, in every 16 bits. */
UNROLLED void add_products(__m256i *sum, __m256i codes, const __m256i *words)
{
    __m256i product;
    __asm__("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(*sum), "=&x"(product) : "x"(codes), "m"(*words));
}

/* `rows` rows (a constant) against 8 tokens. starts[block][row]: of the 16-bit sums. */
UNROLLED void qk_eight(int is_int4p, const uint8_t *codes, const uint8_t *m, const sim_rows *q, const wide_words *wide,
                       const int32_t *starts, uint32_t rows, const float *unit, float *x)
{
    const __m256i(*words)[ROWS_MAX] = wide->of;
    __m256i totals[ROWS_MAX];
    for (uint32_t r = 0; r < rows; ++r) {
        totals[r] = _mm256_setzero_si256();
    }
    for (uint32_t b = 0; b < q->dim / BLOCK; ++b) {
        __m256i sums[ROWS_MAX];
        for (uint32_t r = 0; r < rows; ++r) {
            sums[r] = _mm256_set1_epi32(starts[r]);
        }
        for (uint32_t pair = 0; pair < 2u; ++pair) {
            __m256i low, high;
            k_codes(is_int4p, load(codes), &low, &high);
            for (uint32_t r = 0; r < rows; ++r) {
                add_products(&sums[r], low, &words[0][r]);
                add_products(&sums[r], high, &words[1][r]);
            }
            words += 2;
            codes += 4u * SIM_GROUP;
        }
        __m256i pairs = multiplier_pairs(m + b * SIM_GROUP);
        for (uint32_t r = 0; r < rows; ++r) {
            totals[r] = _mm256_add_epi32(totals[r], _mm256_madd_epi16(sums[r], pairs));
        }
        starts += q->count;
    }
    for (uint32_t r = 0; r < rows; ++r) {
        __m256 sum = _mm256_cvtepi32_ps(totals[r]);
        _mm256_storeu_ps(x + (uint64_t)r * SIM_TILE, _mm256_mul_ps(sum, _mm256_loadu_ps(unit)));
    }
}

/* Start values as words: -8 or -12 times the sum of 16 codes in the low one, 0 in the high one. */
static void start_words(int is_int4p, const sim_rows *q, int32_t *starts)
{
    for (uint32_t i = 0; i < q->dim / BLOCK * q->count; ++i) {
        int32_t start = is_int4p ? q->offsets[i] : q->offsets[i] / 2 * 3;
        starts[i] = start & 0xffff;
    }
}

/* Up to ROWS_MAX rows from row `first` against a group; each part asks for `step` bytes from `ahead` on. */
UNROLLED void qk_group(int is_int4p, const sim_group *group, const sim_rows *q, uint32_t first, const wide_words *wide,
                       const int32_t *starts, const uint8_t *ahead, uint32_t step, float *x)
{
    multipliers m;
    float unit[SIM_GROUP];
    multipliers_of(group, &m);
    units_of(group, unit);
    for (uint32_t part = 0; part < PARTS; ++part) {
        sim_prefetch(ahead + (uint64_t)part * step, step);
#define CALL(n)                                                                                           \
    qk_eight(is_int4p, group->codes + part * LINE, m.bytes[0] + part * LANES, q, wide, starts + first, n, \
             unit + part * LANES, x + (uint64_t)first * SIM_TILE + part * LANES)
        FOR_ROWS(rows_from(q->count, first), CALL)
#undef CALL
    }
}

UNROLLED void qk_format(int is_int4p, const sim_coded *k, const sim_rows *q, float *x)
{
    int32_t starts[NBL_DIM_PADDED_MAX / BLOCK * SIM_ROWS_MAX];
    start_words(is_int4p, q, starts);
    for (uint32_t first = 0; first < q->count; first += ROWS_MAX) {
        const uint32_t step = first == 0 ? k->ahead_bytes / PARTS : 0;
        wide_words wide;
        widen_words(q, first, rows_from(q->count, first), &wide);
        for (uint32_t g = 0; g < k->count; ++g) {
            qk_group(is_int4p, &k->group[g], q, first, &wide, starts, k->ahead[g], step, x + g * SIM_GROUP);
        }
    }
}

void sim_avx2_coded_qk(const sim_coded *k, const sim_rows *q, float *x)
{
    if (k->group[0].format == NBL_INT4P) {
        qk_format(1, k, q, x);
    } else {
        qk_format(0, k, q, x);
    }
}

/* ------------------------------------------------------------------------------------------------ P V */

/* Sixteen bytes as words in the order 0 2 1 3 of every four: pairs for VPMADDWD. */
static inline __m256i pair_order(const uint8_t *bytes)
{
    const __m128i order = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
    __m128i x = _mm_loadu_si128((const __m128i *)(const void *)bytes);
    return _mm256_cvtepu8_epi16(_mm_shuffle_epi8(x, order));
}

/* Weights of some rows, as words in pair order. */
typedef struct weights {
    int16_t p[ROWS_MAX][SIM_TILE];
    int16_t w[2][ROWS_MAX][SIM_TILE]; /* of a low and a high block */
} weights;

static void load_weights(const uint8_t *p, uint32_t rows, uint32_t tokens, weights *out)
{
    for (uint32_t r = 0; r < rows; ++r) {
        for (uint32_t t = 0; t < tokens; t += 16u) {
            store_unaligned(out->p[r] + t, pair_order(p + r * SIM_TILE + t));
        }
    }
}

/* W of two neighbouring blocks. */
static void scale_weights(const multipliers *m, uint32_t block, uint32_t rows, uint32_t groups, weights *out)
{
    for (uint32_t half = 0; half < 2u; ++half) {
        for (uint32_t t = 0; t < groups * SIM_GROUP; t += 16u) {
            __m256i scale = pair_order(m[t / SIM_GROUP].bytes[block + half] + t % SIM_GROUP);
            for (uint32_t r = 0; r < rows; ++r) {
                store_unaligned(out->w[half][r] + t, _mm256_mullo_epi16(load(out->p[r] + t), scale));
            }
        }
    }
}

/* Signed codes of a line's low or high nibbles as words: [0] even and [1] odd tokens. Those of mxfp4 are 2^8 times the
 * code, which is less work: |A| < 2^22 (NUM 5.4), so that sums still fit. */
#define V_WORDS_SHIFT(is_int4p) ((is_int4p) ? 0 : 8)
UNROLLED void v_words(int is_int4p, uint32_t half, __m256i bytes, __m256i *words)
{
    if (is_int4p) {
        bytes = _mm256_xor_si256(bytes, _mm256_set1_epi8((char)0x88)); /* q + 8 becomes a signed nibble */
        words[0] = _mm256_srai_epi16(_mm256_slli_epi16(bytes, half == 0 ? 12 : 8), 12);
        words[1] = _mm256_srai_epi16(half == 0 ? _mm256_slli_epi16(bytes, 4) : bytes, 12);
        return;
    }
    __m256i codes = _mm256_shuffle_epi8(load_table(e2m1_table), half == 0 ? low_nibbles(bytes) : high_nibbles(bytes));
    words[0] = _mm256_slli_epi16(codes, 8);
    words[1] = _mm256_and_si256(codes, _mm256_set1_epi16((int16_t)0xff00u));
}

/* sum += two signed words of `words` times two of `pair`, in every dword. */
UNROLLED void add_pair(__m256i *sum, __m256i words, __m256i pair)
{
    __m256i product;
    __asm__("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0" : "+x"(*sum), "=&x"(product) : "x"(words), "x"(pair));
}

static inline __m256i broadcast_pair(const int16_t *w)
{
    int32_t pair;
    memcpy(&pair, w, sizeof pair);
    return _mm256_set1_epi32(pair);
}

static void add_output(float *o, __m256i sum, float b)
{
    _mm256_storeu_ps(o, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(b), _mm256_loadu_ps(o)));
}

/* `rows` rows (a constant) times a block of 16 elements: the low or the high nibbles of two neighbouring lines, from
 * `line` on, of every four tokens. Both lines take the same weights. */
UNROLLED void pv_block(int is_int4p, uint32_t half, const sim_coded *v, uint32_t line, const weights *w,
                       float *const *o, const float *b, uint32_t rows)
{
    uint32_t quad_bytes = nbl_layout_dim_padded(v->group[0].dim) * 2u;
    uint32_t step = v->ahead_bytes / (quad_bytes / LINE);
    __m256i sums[ROWS_MAX][2];
    for (uint32_t r = 0; r < rows; ++r) {
        sums[r][0] = sums[r][1] = _mm256_setzero_si256();
    }
    for (uint32_t g = 0; g < v->count; ++g) {
        const uint8_t *codes = v->group[g].codes + line * LINE;
        sim_prefetch(v->ahead[g] + (uint64_t)(line + half) * step, step);
        for (uint32_t t = g * SIM_GROUP; t < (g + 1u) * SIM_GROUP; t += 4u, codes += quad_bytes) {
            __m256i words[2][2];
            v_words(is_int4p, half, load(codes), words[0]);
            v_words(is_int4p, half, load(codes + LINE), words[1]);
            for (uint32_t r = 0; r < rows; ++r) {
                for (uint32_t odd = 0; odd < 2u; ++odd) {
                    __m256i pair = broadcast_pair(w->w[half][r] + t + 2u * odd);
                    add_pair(&sums[r][0], words[0][odd], pair);
                    add_pair(&sums[r][1], words[1][odd], pair);
                }
            }
        }
    }
    for (uint32_t r = 0; r < rows; ++r) {
        float *to = o[r] + 16u * (line + half);
        add_output(to, _mm256_srai_epi32(sums[r][0], V_WORDS_SHIFT(is_int4p)), b[r]);
        add_output(to + LANES, _mm256_srai_epi32(sums[r][1], V_WORDS_SHIFT(is_int4p)), b[r]);
    }
}

UNROLLED void pv_format(int is_int4p, const sim_coded *v, const uint8_t *p, float *const *o, const float *b,
                        uint32_t rows)
{
    multipliers m[SIM_GROUPS];
    weights w;
    for (uint32_t g = 0; g < v->count; ++g) {
        multipliers_of(&v->group[g], &m[g]);
    }
    for (uint32_t first = 0; first < rows; first += ROWS_MAX) {
        uint32_t some = rows_from(rows, first);
        load_weights(p + first * SIM_TILE, some, v->count * SIM_GROUP, &w);
        for (uint32_t line = 0; line < nbl_layout_dim_padded(v->group[0].dim) / 16u; line += 2u) {
            scale_weights(m, line, some, v->count, &w);
#define CALL(n)                                                  \
    pv_block(is_int4p, 0, v, line, &w, o + first, b + first, n); \
    pv_block(is_int4p, 1, v, line, &w, o + first, b + first, n)
            FOR_ROWS(some, CALL)
#undef CALL
        }
    }
}

void sim_avx2_coded_pv(const sim_coded *v, const uint8_t *p, float *const *o, const float *b, uint32_t rows)
{
    if (v->group[0].format == NBL_INT4P) {
        pv_format(1, v, p, o, b, rows);
    } else {
        pv_format(0, v, p, o, b, rows);
    }
}
