/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file attend_amx.c
 * @brief Dot products of many rows for AMX int8; all else is AVX-512's.
 *
 * A tile register holds 16 rows of 64 bytes. Sixteen query rows (or rows of P) stand in one, and 16 quads of a line of
 * K or V (isa.h) in another: those lie in memory as TDPBxxD wants them. Two by two of them give 32 rows times 32 tokens
 * or elements: four products of 16 cycles each from four loads of 8. At D = 128 that is an eighth of a cycle for a row
 * and a token in Q K, and as much in P V.
 */
#include "avx512.h"

#define TILE_ROWS 16u
#define PAIR (2u * TILE_ROWS) /* rows or columns of a block of four tile registers */

/* What LDTILECFG reads. */
typedef struct tile_shapes {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t bytes_per_row[16];
    uint8_t rows[16];
} tile_shapes;

/* Registers 0..3 are sums, 4 and 5 rows, 6 and 7 columns. */
enum { SUMS = 0, ROWS = 4, COLUMNS = 6, REGISTERS = 8 };

/* Gives the registers their shapes, for steps of `depth` bytes (32 or 64) along the sum. */
static void set_shapes(uint32_t depth)
{
    tile_shapes shapes = {.palette = 1};
    for (uint32_t i = 0; i < REGISTERS; ++i) {
        const int is_row = i >= ROWS && i < COLUMNS;
        shapes.bytes_per_row[i] = (uint16_t)(is_row ? depth : LINE);
        shapes.rows[i] = (uint8_t)(i >= COLUMNS ? depth / 4u : TILE_ROWS);
    }
    __asm__ volatile("" : : "r"(&shapes) : "memory"); /* gcc 12 does not know that the registers read memory */
    _tile_loadconfig(&shapes);
}

static void zero_sums(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

/* The four sums as 32-bit integers, stride bytes from row to row. */
static void store_sums(void *to, uint64_t stride)
{
    uint8_t *at = to;
    _tile_stored(0, at, stride);
    _tile_stored(1, at + LINE, stride);
    _tile_stored(2, at + TILE_ROWS * stride, stride);
    _tile_stored(3, at + TILE_ROWS * stride + LINE, stride);
    __asm__ volatile("" : : : "memory");
}

/* Two registers of rows and two of columns. */
static void load_operands(const void *rows, uint64_t row_stride, const uint8_t *columns, uint64_t column_stride)
{
    const uint8_t *at = rows;
    _tile_loadd(4, at, row_stride);
    _tile_loadd(5, at + TILE_ROWS * row_stride, row_stride);
    _tile_loadd(6, columns, column_stride);
    _tile_loadd(7, columns + LINE, column_stride);
}

/* Bytes of a step along a sum of `bytes` terms, a multiple of 32. */
static uint32_t depth_of(uint32_t bytes)
{
    return bytes % LINE == 0 ? LINE : LINE / 2u;
}

/* ------------------------------------------------------------------------------------------------ Q K */

/* 32 rows from `codes` against the 32 tokens of a group: signed codes times unsigned ones. */
static void qk_block(const int8_t *codes, const uint8_t *k, uint32_t dim, uint32_t depth, float *x)
{
    zero_sums();
    for (uint32_t d = 0; d < dim; d += depth) {
        load_operands(codes + d, dim, k + d / 4u * HALVES * LINE, HALVES * LINE);
        _tile_dpbsud(0, 4, 6);
        _tile_dpbsud(1, 4, 7);
        _tile_dpbsud(2, 5, 6);
        _tile_dpbsud(3, 5, 7);
    }
    store_sums(x, SIM_TILE * sizeof *x);
}

/* Integers at x to logits (NUM 5.3). */
static void finish_logits(const sim_tile *tile, int32_t bias, float *x)
{
    for (uint32_t t = 0; t < tile->groups * SIM_GROUP; t += LANES) {
        __m512i sums = _mm512_add_epi32(_mm512_loadu_si512(x + t), _mm512_set1_epi32(bias));
        _mm512_storeu_ps(x + t, _mm512_mul_ps(_mm512_cvtepi32_ps(sums), _mm512_loadu_ps(tile->unit + t)));
    }
}

static void dot_qk(const sim_tile *tile, const sim_rows *rows, float *x)
{
    const uint32_t whole = rows->count / PAIR * PAIR;
    const uint32_t depth = depth_of(rows->dim);
    int32_t bias[SIM_ROWS_MAX];
    sim_rows_bias(rows, bias);
    if (whole != 0) {
        set_shapes(depth);
        for (uint32_t r = 0; r < whole; r += PAIR) {
            for (uint32_t g = 0; g < tile->groups; ++g) {
                qk_block(rows->codes + (uint64_t)r * rows->dim, tile->k + (uint64_t)g * SIM_GROUP * tile->k_dim,
                         rows->dim, depth, x + (uint64_t)r * SIM_TILE + g * SIM_GROUP);
            }
        }
        _tile_release();
    }
    for (uint32_t r = 0; r < whole; ++r) {
        finish_logits(tile, bias[r], x + (uint64_t)r * SIM_TILE);
    }
    sim_avx512_dot_qk_from(tile, rows, whole, bias, x);
}

/* ------------------------------------------------------------------------------------------------ P V */

/* Sums of 32 rows of P times 32 elements of V: unsigned weights times signed codes. */
static void pv_block(const uint8_t *p, const int8_t *v, uint32_t tokens, uint32_t v_dim, uint32_t depth,
                     int32_t (*sums)[PAIR])
{
    zero_sums();
    for (uint32_t t = 0; t < tokens; t += depth) {
        load_operands(p + t, SIM_TILE, (const uint8_t *)v + (uint64_t)t * v_dim, 4u * (uint64_t)v_dim);
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
    }
    store_sums(sums, sizeof *sums);
}

static void add_outputs(const int32_t *sums, float b, float *o)
{
    for (uint32_t d = 0; d < PAIR; d += LANES) {
        __m512 sum = _mm512_cvtepi32_ps(_mm512_loadu_si512(sums + d));
        _mm512_storeu_ps(o + d, _mm512_fmadd_ps(sum, _mm512_set1_ps(b), _mm512_loadu_ps(o + d)));
    }
}

static void dot_pv(const sim_tile *tile, const uint8_t *p, float *const *o, const float *b, uint32_t rows)
{
    const uint32_t whole = rows / PAIR * PAIR;
    const uint32_t tokens = tile->groups * SIM_GROUP;
    const uint32_t depth = depth_of(tokens);
    int32_t sums[PAIR][PAIR];
    if (whole != 0) {
        set_shapes(depth);
        for (uint32_t r = 0; r < whole; r += PAIR) {
            for (uint32_t d = 0; d < tile->v_dim; d += PAIR) {
                pv_block(p + (uint64_t)r * SIM_TILE, tile->v + 4u * d, tokens, tile->v_dim, depth, sums);
                for (uint32_t i = 0; i < PAIR; ++i) {
                    add_outputs(sums[i], b[r + i], o[r + i] + d);
                }
            }
        }
        _tile_release();
    }
    sim_avx512_dot_pv(tile, p + (uint64_t)whole * SIM_TILE, o + whole, b + whole, rows - whole);
}

const sim_isa sim_isa_amx = {
    .name = "amx",
    .row = &sim_row_loops_avx512,
    .decode_k = sim_avx512_decode_k,
    .decode_v = sim_avx512_decode_v,
    .dot_qk = dot_qk,
    .softmax = sim_avx512_softmax,
    .softmax_rows = sim_avx512_softmax_rows,
    .dot_pv = dot_pv,
    .coded_rows = CODED_ROWS,
    .coded_formats = CODED_FORMATS,
    .coded_weights = sim_avx512_coded_weights,
    .coded_qk = sim_avx512_coded_qk,
    .coded_pv = sim_avx512_coded_pv,
};
