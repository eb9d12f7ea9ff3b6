/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file coded_avx2.c
 * @brief Dot products straight from the stored codes of the 4-bit formats, for AVX2 without VNNI.
 *
 * K: unsigned codes (q + 8, or 2 * e2m1 + 12 by a lookup) times signed query codes by VPMADDUBSW, the elements of a
 * block in two 16-bit sums for a token. Each starts at minus the offset times the sum of its query codes; with it none
 * leaves 12 * 16 * 127 < 2^15. VPMADDWD with (m, m), or (2^s, 2^s), adds both and scales the block.
 *
 * V: the scale varies along the sum, so it goes into the weights: W = P * m <= 4080 once per row, block and token.
 * Codes become words, even and odd tokens apart, for VPMADDWD with pairs (0, 2) and (1, 3) of W. Those of int4p stay
 * q + 8 at their place in a word, one instruction each, and sums start at -8 times the sum of W.
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

/* m of a tile's tokens, one plane per block: int4p multipliers, or 2^(e_b - e_min). */
typedef struct multipliers {
    uint8_t bytes[NBL_DIM_PADDED_MAX / SIM_BLOCK][SIM_TILE];
} multipliers;

static void int4p_multipliers(const sim_group *group, uint32_t token, multipliers *out)
{
    const __m256i one = _mm256_set1_epi8(1);
    const uint8_t *plane = group->scales;
    const uint32_t blocks = nbl_layout_dim_padded(group->dim) / SIM_BLOCK;
    for (uint32_t b = 0; b < blocks; b += 2u, plane += group->plane_stride) {
        __m256i pairs = load(plane);
        store_unaligned(out->bytes[b] + token, _mm256_add_epi8(low_nibbles(pairs), one));
        store_unaligned(out->bytes[b + 1u] + token, _mm256_add_epi8(high_nibbles(pairs), one));
    }
}

static void mxfp4_multipliers(const sim_group *group, uint32_t token, multipliers *out)
{
    const __m256i powers = _mm256_set1_epi32(0x08040201);
    const __m256i spread = _mm256_set1_epi8(NBL_BLOCK_E_SPREAD);
    const uint32_t planes = nbl_layout_scale_planes(group->format, group->dim);
    __m256i least = _mm256_set1_epi8((char)0xff);
    for (uint32_t b = 0; b < planes; ++b) {
        __m256i e = exponent_bytes(group, b);
        least = _mm256_min_epu8(least, e);
        store_unaligned(out->bytes[b] + token, e);
    }
    for (uint32_t b = 0; b < planes; ++b) {
        uint8_t *at = out->bytes[b] + token;
        __m256i above = _mm256_and_si256(_mm256_sub_epi8(load(at), least), spread);
        store_unaligned(at, _mm256_shuffle_epi8(powers, above));
    }
}

static void multipliers_of(const sim_coded *coded, multipliers *out)
{
    for (uint32_t g = 0; g < coded->count; ++g) {
        if (coded->group[g].format == NBL_INT4P) {
            int4p_multipliers(&coded->group[g], g * SIM_GROUP, out);
        } else {
            mxfp4_multipliers(&coded->group[g], g * SIM_GROUP, out);
        }
    }
}

/* sum += two words of `words` times two of `pair`, in every dword. */
UNROLLED void add_pair(__m256i *sum, __m256i words, __m256i pair)
{
    __m256i product;
    __asm__("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0" : "+x"(*sum), "=&x"(product) : "x"(words), "x"(pair));
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
    const __m256i order = _mm256_setr_epi8(0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1, 4, -1, 4, -1, 5, -1,
                                           5, -1, 6, -1, 6, -1, 7, -1, 7, -1);
    int64_t m;
    memcpy(&m, bytes, sizeof m);
    return _mm256_shuffle_epi8(_mm256_set1_epi64x(m), order);
}

/* What ROWS_MAX rows need as operands in memory: words of four query codes, each eight times, and what the 16-bit sums
 * of a block start at, minus the offset times its query codes, bytes 0 and 1 of every word apart from bytes 2 and 3. */
typedef struct wide_rows {
    __m256i words[NBL_DIM_PADDED_MAX / 4u][ROWS_MAX];
    __m256i int4p[NBL_DIM_PADDED_MAX / BLOCK][ROWS_MAX];
    __m256i mxfp4_16[NBL_DIM_PADDED_MAX / BLOCK][ROWS_MAX];
    __m256i mxfp4[NBL_DIM_PADDED_MAX / (2u * BLOCK)][ROWS_MAX];
} wide_rows;

_Static_assert(2 * sizeof(wide_rows) <= SIM_WIDE_BYTES, "twice ROWS_MAX rows");

/* Minus the sum of 16 codes. */
static __m256i start_of(const int8_t *codes)
{
    __m128i some = _mm_loadu_si128((const __m128i *)(const void *)codes);
    __m128i sums = _mm_sub_epi16(_mm_setzero_si128(), _mm_maddubs_epi16(_mm_set1_epi8(1), some));
    sums = _mm_add_epi16(sums, _mm_shuffle_epi32(sums, 0x4e));
    sums = _mm_add_epi16(sums, _mm_shuffle_epi32(sums, 0xb1));
    return _mm256_broadcastd_epi32(sums);
}

static void widen_row(const sim_rows *q, uint32_t row, wide_rows *out)
{
    const int8_t *codes = q->codes + (uint64_t)row * q->dim;
    const uint32_t r = row % ROWS_MAX;
    for (uint32_t quad = 0; quad < q->dim / 4u; ++quad) {
        out->words[quad][r] = _mm256_set1_epi32(q->words[quad * q->count + row]);
    }
    for (uint32_t b = 0; b < q->dim / BLOCK; b += 2u, codes += 2u * BLOCK) {
        __m256i first = start_of(codes);
        __m256i second = start_of(codes + BLOCK);
        out->int4p[b][r] = _mm256_slli_epi16(first, 3);
        out->int4p[b + 1u][r] = _mm256_slli_epi16(second, 3);
        out->mxfp4_16[b][r] = _mm256_mullo_epi16(first, _mm256_set1_epi16(12));
        out->mxfp4_16[b + 1u][r] = _mm256_mullo_epi16(second, _mm256_set1_epi16(12));
        out->mxfp4[b / 2u][r] = _mm256_add_epi16(out->mxfp4_16[b][r], out->mxfp4_16[b + 1u][r]);
    }
}

void sim_avx2_coded_widen(const sim_rows *q, void *wide)
{
    for (uint32_t row = 0; row < q->count; ++row) {
        widen_row(q, row, (wide_rows *)wide + row / ROWS_MAX);
    }
}

/* Two unsigned bytes of `codes` times two signed ones of `words`, and what is at `start`, in every 16 bits. */
UNROLLED __m256i first_products(__m256i codes, const __m256i *words, const __m256i *start)
{
    __m256i sum;
    __asm__("vpmaddubsw %2, %1, %0\n\tvpaddw %3, %0, %0" : "=&x"(sum) : "x"(codes), "m"(*words), "m"(*start));
    return sum;
}

/* sum += two unsigned bytes of `codes` times two signed ones of `words`, in every 16 bits. */
UNROLLED void add_products(__m256i *sum, __m256i codes, const __m256i *words)
{
    __m256i product;
    __asm__("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(*sum), "=&x"(product) : "x"(codes), "m"(*words));
}

/* 16-bit sums of a block of `dim` elements and 8 tokens. */
UNROLLED void qk_block(int is_int4p, uint32_t dim, const uint8_t *codes, const __m256i (*words)[ROWS_MAX],
                       const __m256i *start, uint32_t rows, __m256i *sums)
{
    for (uint32_t d = 0; d < dim; d += 8u, words += 2u, codes += 4u * SIM_GROUP) {
        __m256i low, high;
        k_codes(is_int4p, load(codes), &low, &high);
        for (uint32_t r = 0; r < rows; ++r) {
            if (d == 0) {
                sums[r] = first_products(low, &words[0][r], &start[r]);
            } else {
                add_products(&sums[r], low, &words[0][r]);
            }
            add_products(&sums[r], high, &words[1][r]);
        }
    }
}

/* `rows` rows (a constant) against 8 tokens, in blocks of `dim` elements (a constant). */
UNROLLED void qk_eight(int is_int4p, uint32_t dim, const uint8_t *codes, const uint8_t *m,
                       const __m256i (*words)[ROWS_MAX], const __m256i (*starts)[ROWS_MAX], uint32_t blocks,
                       uint32_t rows, const float *unit, float *x)
{
    __m256i totals[ROWS_MAX];
    for (uint32_t r = 0; r < rows; ++r) {
        totals[r] = _mm256_setzero_si256();
    }
    for (uint32_t b = 0; b < blocks; ++b) {
        __m256i sums[ROWS_MAX];
        qk_block(is_int4p, dim, codes, words, starts[b], rows, sums);
        __m256i pairs = multiplier_pairs(m);
        for (uint32_t r = 0; r < rows; ++r) {
            add_pair(&totals[r], sums[r], pairs);
        }
        words += dim / 4u;
        codes += dim / 2u * SIM_GROUP;
        m += SIM_TILE;
    }
    for (uint32_t r = 0; r < rows; ++r) {
        __m256 sum = _mm256_cvtepi32_ps(totals[r]);
        _mm256_storeu_ps(x + (uint64_t)r * SIM_TILE, _mm256_mul_ps(sum, _mm256_loadu_ps(unit)));
    }
}

/* `rows` rows (a constant); each part of a group asks for `step` bytes of what is wanted next. */
UNROLLED void qk_rows(int is_int4p, uint32_t dim, const sim_coded *k, const multipliers *m, const wide_rows *wide,
                      const __m256i (*starts)[ROWS_MAX], uint32_t rows, uint32_t step, float *x)
{
    for (uint32_t g = 0; g < k->count; ++g) {
        const uint32_t blocks = nbl_layout_dim_padded(k->group[g].dim) / dim;
        float unit[SIM_GROUP];
        units_of(&k->group[g], unit);
        for (uint32_t part = 0; part < PARTS; ++part) {
            const uint32_t token = g * SIM_GROUP + part * LANES;
            sim_prefetch(k->ahead[g] + (uint64_t)part * step, step);
            qk_eight(is_int4p, dim, k->group[g].codes + part * LINE, m->bytes[0] + token, wide->words, starts, blocks,
                     rows, unit + part * LANES, x + token);
        }
    }
}

UNROLLED void qk_int4p(const sim_coded *k, const multipliers *m, const wide_rows *wide, uint32_t rows, uint32_t step,
                       float *x)
{
    qk_rows(1, BLOCK, k, m, wide, wide->int4p, rows, step, x);
}

UNROLLED void qk_mxfp4_16(const sim_coded *k, const multipliers *m, const wide_rows *wide, uint32_t rows, uint32_t step,
                          float *x)
{
    qk_rows(0, BLOCK, k, m, wide, wide->mxfp4_16, rows, step, x);
}

UNROLLED void qk_mxfp4(const sim_coded *k, const multipliers *m, const wide_rows *wide, uint32_t rows, uint32_t step,
                       float *x)
{
    qk_rows(0, 2u * BLOCK, k, m, wide, wide->mxfp4, rows, step, x);
}

/* `rows` rows from row `first` on. */
static void qk_some(const sim_coded *k, const multipliers *m, const wide_rows *wide, uint32_t rows, uint32_t step,
                    float *x)
{
#define INT4P(n) qk_int4p(k, m, wide, n, step, x)
#define MXFP4(n) qk_mxfp4(k, m, wide, n, step, x)
#define MXFP4_16(n) qk_mxfp4_16(k, m, wide, n, step, x)
    if (k->group[0].format == NBL_INT4P) {
        FOR_ROWS(rows, INT4P)
    } else if (k->group[0].format == NBL_MXFP4) {
        FOR_ROWS(rows, MXFP4)
    } else {
        FOR_ROWS(rows, MXFP4_16)
    }
#undef INT4P
#undef MXFP4
#undef MXFP4_16
}

void sim_avx2_coded_qk(const sim_coded *k, const sim_rows *q, float *x)
{
    const wide_rows *wide = q->wide;
    uint32_t step = k->ahead_bytes / PARTS;
    multipliers m;
    multipliers_of(k, &m);
    for (uint32_t first = 0; first < q->count; first += ROWS_MAX, ++wide, step = 0) {
        qk_some(k, &m, wide, rows_from(q->count, first), step, x + (uint64_t)first * SIM_TILE);
    }
}

/* ------------------------------------------------------------------------------------------------ P V */

/* Sixteen bytes as words in the order 0 2 1 3 of every four: pairs for VPMADDWD. */
static inline __m256i pair_order(const uint8_t *bytes)
{
    const __m256i order = _mm256_setr_epi8(0, -1, 2, -1, 1, -1, 3, -1, 4, -1, 6, -1, 5, -1, 7, -1, 8, -1, 10, -1, 9, -1,
                                           11, -1, 12, -1, 14, -1, 13, -1, 15, -1);
    __m128i x = _mm_loadu_si128((const __m128i *)(const void *)bytes);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(x), order);
}

/* Weights of some rows, as words in pair order. */
typedef struct weights {
    int16_t p[ROWS_MAX][SIM_TILE];
    int16_t w[ROWS_MAX][SIM_TILE]; /* of a block */
    int32_t start[ROWS_MAX];       /* what sums of int4p start at */
} weights;

UNROLLED void load_weights(const uint8_t *p, uint32_t rows, uint32_t tokens, weights *out)
{
    for (uint32_t t = 0; t < tokens; t += 16u) {
        for (uint32_t r = 0; r < rows; ++r) {
            store_unaligned(out->p[r] + t, pair_order(p + r * SIM_TILE + t));
        }
    }
}

/* Every row's sum of all words, times `factor`. */
UNROLLED void sums_times(const __m256i *words, int16_t factor, int32_t *out)
{
    __m256i dwords[ROWS_MAX];
    for (uint32_t r = 0; r < ROWS_MAX; ++r) {
        dwords[r] = _mm256_madd_epi16(words[r], _mm256_set1_epi16(factor));
    }
    __m256i all = _mm256_hadd_epi32(_mm256_hadd_epi32(dwords[0], dwords[1]), _mm256_hadd_epi32(dwords[2], dwords[3]));
    _mm_storeu_si128((__m128i *)(void *)out,
                     _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
}

/* W of a block, whose multipliers are at `m`, and their sums times `factor`, if that is not 0. Eight W are less than
 * 2^15. */
UNROLLED void scale_weights(const uint8_t *m, int16_t factor, uint32_t rows, uint32_t tokens, weights *out)
{
    __m256i sums[ROWS_MAX];
    for (uint32_t r = 0; r < ROWS_MAX; ++r) {
        sums[r] = _mm256_setzero_si256();
    }
    for (uint32_t t = 0; t < tokens; t += SIM_GROUP) {
        __m256i scale[2] = {pair_order(m + t), pair_order(m + t + 16)};
        for (uint32_t r = 0; r < rows; ++r) {
            __m256i first = _mm256_mullo_epi16(load(out->p[r] + t), scale[0]);
            __m256i second = _mm256_mullo_epi16(load(out->p[r] + t + 16), scale[1]);
            store_unaligned(out->w[r] + t, first);
            store_unaligned(out->w[r] + t + 16, second);
            sums[r] = _mm256_add_epi16(sums[r], _mm256_add_epi16(first, second));
        }
    }
    if (factor != 0) {
        sums_times(sums, factor, out->start);
    }
}

static inline __m256i broadcast_pair(const int16_t *w)
{
    int32_t pair;
    memcpy(&pair, w, sizeof pair);
    return _mm256_set1_epi32(pair);
}

/* Sums of a block of 16 elements: [row][line]. */
typedef struct block_sums {
    __m256i of[ROWS_MAX][2];
} block_sums;

UNROLLED void add_lines(const __m256i *words, const weights *w, uint32_t at, uint32_t rows, block_sums *sums)
{
    for (uint32_t r = 0; r < rows; ++r) {
        __m256i pair = broadcast_pair(w->w[r] + at);
        add_pair(&sums->of[r][0], words[0], pair);
        add_pair(&sums->of[r][1], words[1], pair);
    }
}

/* q + 8 of the low or high nibbles of a line's even or odd tokens as words, times a power of two: see int4p_sums. */
UNROLLED __m256i int4p_words(uint32_t half, uint32_t odd, const uint8_t *line)
{
    if (half != 0 && odd != 0) {
        return _mm256_srli_epi16(load(line), 12);
    }
    return _mm256_and_si256(load(line), _mm256_set1_epi16((int16_t)(15 << (4u * half + 8u * odd))));
}

/* Signed codes of the low or high nibbles of a line as words: [0] even and [1] odd tokens, times 2^8. */
UNROLLED void mxfp4_words(uint32_t half, __m256i bytes, __m256i *even, __m256i *odd)
{
    __m256i codes = _mm256_shuffle_epi8(load_table(e2m1_table), half == 0 ? low_nibbles(bytes) : high_nibbles(bytes));
    *even = _mm256_slli_epi16(codes, 8);
    *odd = _mm256_and_si256(codes, _mm256_set1_epi16((int16_t)0xff00u));
}

/* Adds the low or the high nibbles of two neighbouring lines, from `line` on, of the even or odd ones of every four
 * tokens. */
UNROLLED void int4p_add(uint32_t half, uint32_t odd, const sim_coded *v, uint32_t line, const weights *w, uint32_t rows,
                        block_sums *sums)
{
    const uint64_t quad_bytes = nbl_layout_dim_padded(v->group[0].dim) * 2u;
    for (uint32_t g = 0; g < v->count; ++g) {
        const uint8_t *codes = v->group[g].codes + line * LINE;
        for (uint32_t t = 0; t < SIM_GROUP; t += 4u, codes += quad_bytes) {
            __m256i words[2] = {int4p_words(half, odd, codes), int4p_words(half, odd, codes + LINE)};
            add_lines(words, w, g * SIM_GROUP + t + 2u * odd, rows, sums);
        }
    }
}

/* A code at its place in a word is 2^8 (low nibbles of odd tokens) or 2^4 (high nibbles of even ones) times itself:
 * these come first. |A| < 2^22 (NUM 5.4), so that they fit. */
#define INT4P_SHIFT(half) ((half) == 0 ? 8 : 4)
#define INT4P_START(half) (-8 * (1 << INT4P_SHIFT(half))) /* times the sum of W */

UNROLLED void int4p_sums(uint32_t half, const sim_coded *v, uint32_t line, const weights *w, uint32_t rows,
                         block_sums *sums)
{
    for (uint32_t r = 0; r < rows; ++r) {
        sums->of[r][0] = sums->of[r][1] = _mm256_set1_epi32(w->start[r]);
    }
    int4p_add(half, 1u - half, v, line, w, rows, sums);
    for (uint32_t r = 0; r < rows; ++r) {
        sums->of[r][0] = _mm256_srai_epi32(sums->of[r][0], INT4P_SHIFT(half));
        sums->of[r][1] = _mm256_srai_epi32(sums->of[r][1], INT4P_SHIFT(half));
    }
    int4p_add(half, half, v, line, w, rows, sums);
}

UNROLLED void mxfp4_sums(uint32_t half, const sim_coded *v, uint32_t line, const weights *w, uint32_t rows,
                         block_sums *sums)
{
    const uint64_t quad_bytes = nbl_layout_dim_padded(v->group[0].dim) * 2u;
    for (uint32_t r = 0; r < rows; ++r) {
        sums->of[r][0] = sums->of[r][1] = _mm256_setzero_si256();
    }
    for (uint32_t g = 0; g < v->count; ++g) {
        const uint8_t *codes = v->group[g].codes + line * LINE;
        for (uint32_t t = 0; t < SIM_GROUP; t += 4u, codes += quad_bytes) {
            __m256i even[2], odd[2];
            mxfp4_words(half, load(codes), &even[0], &odd[0]);
            mxfp4_words(half, load(codes + LINE), &even[1], &odd[1]);
            add_lines(even, w, g * SIM_GROUP + t, rows, sums);
            add_lines(odd, w, g * SIM_GROUP + t + 2u, rows, sums);
        }
    }
    for (uint32_t r = 0; r < rows; ++r) {
        sums->of[r][0] = _mm256_srai_epi32(sums->of[r][0], 8);
        sums->of[r][1] = _mm256_srai_epi32(sums->of[r][1], 8);
    }
}

static void add_output(float *o, __m256i sum, float b)
{
    _mm256_storeu_ps(o, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(b), _mm256_loadu_ps(o)));
}

/* `rows` rows (a constant) times a block of 16 elements: the low or the high nibbles of two neighbouring lines, from
 * `line` on, of every four tokens. Both lines take the same weights. Asks for `step` bytes of what is wanted next. */
UNROLLED void pv_block(int is_int4p, uint32_t half, const sim_coded *v, uint32_t line, uint32_t step, const weights *w,
                       float *const *o, const float *b, uint32_t rows)
{
    block_sums sums;
    for (uint32_t g = 0; g < v->count; ++g) {
        sim_prefetch(v->ahead[g] + (uint64_t)(line + half) * step, step);
    }
    if (is_int4p) {
        int4p_sums(half, v, line, w, rows, &sums);
    } else {
        mxfp4_sums(half, v, line, w, rows, &sums);
    }
    for (uint32_t r = 0; r < rows; ++r) {
        float *to = o[r] + 16u * (line + half);
        add_output(to, sums.of[r][0], b[r]);
        add_output(to + LANES, sums.of[r][1], b[r]);
    }
}

/* `rows` rows (a constant), in blocks of `dim` elements (a constant). */
UNROLLED void pv_rows(int is_int4p, uint32_t dim, const sim_coded *v, const multipliers *m, const uint8_t *p,
                      float *const *o, const float *b, uint32_t rows)
{
    const uint32_t tokens = v->count * SIM_GROUP;
    const uint32_t lines = nbl_layout_dim_padded(v->group[0].dim) / 16u;
    const uint32_t step = v->ahead_bytes / lines;
    weights w;
    load_weights(p, rows, tokens, &w);
    for (uint32_t line = 0; line < lines; line += 2u) {
        scale_weights(m->bytes[dim == BLOCK ? line : line / 2u], is_int4p ? INT4P_START(0) : 0, rows, tokens, &w);
        pv_block(is_int4p, 0, v, line, step, &w, o, b, rows);
        if (dim == BLOCK) {
            scale_weights(m->bytes[line + 1u], is_int4p ? INT4P_START(1) : 0, rows, tokens, &w);
        }
        pv_block(is_int4p, 1, v, line, step, &w, o, b, rows);
    }
}

UNROLLED void pv_format(int is_int4p, uint32_t dim, const sim_coded *v, const uint8_t *p, float *const *o,
                        const float *b, uint32_t rows)
{
    multipliers m;
    multipliers_of(v, &m);
    for (uint32_t first = 0; first < rows; first += ROWS_MAX) {
#define CALL(n) pv_rows(is_int4p, dim, v, &m, p + first * SIM_TILE, o + first, b + first, n)
        FOR_ROWS(rows_from(rows, first), CALL)
#undef CALL
    }
}

void sim_avx2_coded_pv(const sim_coded *v, const uint8_t *p, float *const *o, const float *b, uint32_t rows)
{
    switch (v->group[0].format) {
    case NBL_INT4P: pv_format(1, BLOCK, v, p, o, b, rows); break;
    case NBL_MXFP4_16: pv_format(0, BLOCK, v, p, o, b, rows); break;
    default: pv_format(0, 2u * BLOCK, v, p, o, b, rows); break;
    }
}
