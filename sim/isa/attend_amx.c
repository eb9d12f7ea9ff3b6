/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file attend_amx.c
 * @brief Dot products of many rows for AMX int8; all else is AVX-512's.
 *
 * A tile register holds 16 rows of 64 bytes. Sixteen query rows (or rows of P) stand in one, and 16 quads of a line of
 * K or V (isa.h) in another: those lie in memory as TDPBxxD wants them. 32 rows of 128 bytes (D = 128, or P of a whole
 * tile) stay in four registers while columns (tokens, or elements) come by 16 at a time in two: four products from two
 * loads. The sums of a step are worked on while the products of the next ones run. Other sizes go in blocks of two by
 * two registers, four products from four loads.
 *
 * Where 32 rows see a whole tile, their softmax takes the sums as they leave the tile registers.
 */
#include "softmax_avx512.h"

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

/* Registers 0 and 1 are sums, 4 and 5 rows, 6 and 7 columns; 2 and 3 are sums or, with a depth of 64, rows. */
enum { ROWS = 4, COLUMNS = 6, REGISTERS = 8 };

/* Gives the registers their shapes, for steps of `depth` bytes (32 or 64) along the sum. With 64 all are alike, and
 * they stay so but for calls that need 32: the instruction takes as long as ten products. */
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

/* ------------------------------------------------------------------------------------------------ rows that stay */

/* Sums of 32 rows and 16 columns. */
typedef struct step_sums {
    _Alignas(LINE) int32_t of[PAIR][TILE_ROWS];
} step_sums;

/* 32 rows of 128 bytes into registers 2 to 5. */
static void load_rows(const void *rows)
{
    const uint8_t *at = rows;
    _tile_loadd(2, at, 2 * LINE);
    _tile_loadd(3, at + LINE, 2 * LINE);
    _tile_loadd(4, at + TILE_ROWS * 2 * LINE, 2 * LINE);
    _tile_loadd(5, at + TILE_ROWS * 2 * LINE + LINE, 2 * LINE);
}

/* 16 columns of 32 quads, stride bytes apart, times those rows: 16 sums of each row, sums_stride bytes apart. is_qk:
 * rows are the signed side, else columns. */
UNROLLED void multiply(int is_qk, const void *columns, uint64_t stride, void *sums, uint64_t sums_stride)
{
    const uint8_t *at = columns;
    _tile_loadd(6, at, stride);
    _tile_loadd(7, at + TILE_ROWS * stride, stride);
    _tile_zero(0);
    _tile_zero(1);
    if (is_qk) {
        _tile_dpbsud(0, 2, 6);
        _tile_dpbsud(1, 4, 6);
        _tile_dpbsud(0, 3, 7);
        _tile_dpbsud(1, 5, 7);
    } else {
        _tile_dpbusd(0, 2, 6);
        _tile_dpbusd(1, 4, 6);
        _tile_dpbusd(0, 3, 7);
        _tile_dpbusd(1, 5, 7);
    }
    uint8_t *to = sums;
    _tile_stored(0, to, sums_stride);
    _tile_stored(1, to + TILE_ROWS * sums_stride, sums_stride);
    __asm__ volatile("" : : : "memory");
}

/* ------------------------------------------------------------------------------------------------ Q K */

/* Sums of 32 rows with D = 128, as integers in x. */
static void qk_stay(const sim_tile *tile, const int8_t *codes, float *x)
{
    load_rows(codes);
    for (uint32_t i = 0; i < tile->groups * HALVES; ++i) {
        const uint8_t *k = tile->k + i / HALVES * SIM_GROUP * 2u * LINE + i % HALVES * LINE;
        multiply(1, k, HALVES * LINE, x + i * LANES, SIM_TILE * sizeof *x);
    }
}

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

/* Sums of 32 rows, as integers in x. */
static void qk_blocks(const sim_tile *tile, const int8_t *codes, uint32_t depth, float *x)
{
    for (uint32_t g = 0; g < tile->groups; ++g) {
        qk_block(codes, tile->k + (uint64_t)g * SIM_GROUP * tile->k_dim, tile->k_dim, depth, x + g * SIM_GROUP);
    }
}

/* Logits of 32 rows from their sums, in place (NUM 5.3). */
static void finish(const sim_tile *tile, const int32_t *bias, float *x)
{
    for (uint32_t r = 0; r < PAIR; ++r, x += SIM_TILE) {
        for (uint32_t i = 0; i < tile->groups * HALVES; ++i) {
            _mm512_storeu_ps(x + i * LANES, logits_at(bias + r, tile, x, i));
        }
    }
}

static void dot_qk(const sim_tile *tile, const sim_rows *rows, float *x)
{
    const uint32_t whole = rows->count / PAIR * PAIR;
    const uint32_t depth = depth_of(rows->dim);
    if (depth != LINE) {
        set_shapes(depth);
    }
    for (uint32_t r = 0; r < whole; r += PAIR) {
        const int8_t *codes = rows->codes + (uint64_t)r * rows->dim;
        float *to = x + (uint64_t)r * SIM_TILE;
        if (rows->dim == 2u * LINE) {
            qk_stay(tile, codes, to);
        } else {
            qk_blocks(tile, codes, depth, to);
        }
        finish(tile, rows->bias + r, to);
    }
    if (depth != LINE) {
        set_shapes(LINE);
    }
    sim_avx512_dot_qk_from(tile, rows, whole, x);
}

/* Q K and softmax of 32 rows with D = 128. The sums stand where t will. */
static uint32_t qk_softmax_rows(const sim_tile *tile, const sim_rows *q, sim_row_state *const *rows, float *x,
                                uint8_t *p, float *b)
{
    const powers two = load_powers();
    uint32_t done = 0;
    if (q->count != PAIR || q->dim != 2u * LINE || tile->groups != SIM_GROUPS) {
        return 0;
    }
    qk_stay(tile, q->codes, x);
    for (uint32_t n = ROWS_TOGETHER; n == ROWS_TOGETHER && done < PAIR; done += n) {
        n = whole_step(q->bias + done, tile, x + done * SIM_TILE, rows + done, ROWS_TOGETHER, x + done * SIM_TILE, &two,
                       p + done * SIM_TILE, b + done);
    }
    return done;
}

/* ------------------------------------------------------------------------------------------------ P V */

UNROLLED void add_output(__m512i sums, float b, float *o)
{
    _mm512_storeu_ps(o, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(b), _mm512_loadu_ps(o)));
}

/* 32 rows of P of a whole tile. */
static void pv_stay(const sim_tile *tile, const uint8_t *p, float *const *o, const float *b)
{
    step_sums sums[2];
    uint32_t steps = tile->v_dim / LANES;
    load_rows(p);
    for (uint32_t i = 0; i <= steps; ++i) {
        if (i < steps) {
            multiply(0, tile->v + i * LINE, 4u * (uint64_t)tile->v_dim, sums[i % 2u].of[0], LINE);
        }
        for (uint32_t r = 0; i > 0 && r < PAIR; ++r) {
            add_output(_mm512_load_si512(sums[(i - 1u) % 2u].of[r]), b[r], o[r] + (i - 1u) * LANES);
        }
    }
}

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

/* 32 rows of P of a tile that is not whole. */
static void pv_blocks(const sim_tile *tile, const uint8_t *p, uint32_t depth, float *const *o, const float *b)
{
    int32_t sums[PAIR][PAIR];
    for (uint32_t d = 0; d < tile->v_dim; d += PAIR) {
        pv_block(p, tile->v + 4u * d, tile->groups * SIM_GROUP, tile->v_dim, depth, sums);
        for (uint32_t r = 0; r < PAIR; ++r) {
            add_output(_mm512_loadu_si512(sums[r]), b[r], o[r] + d);
            add_output(_mm512_loadu_si512(sums[r] + LANES), b[r], o[r] + d + LANES);
        }
    }
}

static void dot_pv(const sim_tile *tile, const uint8_t *p, float *const *o, const float *b, uint32_t rows)
{
    const uint32_t whole = rows / PAIR * PAIR;
    const uint32_t depth = depth_of(tile->groups * SIM_GROUP);
    if (depth != LINE) {
        set_shapes(depth);
    }
    for (uint32_t r = 0; r < whole; r += PAIR) {
        if (tile->groups == SIM_GROUPS) {
            pv_stay(tile, p + (uint64_t)r * SIM_TILE, o + r, b + r);
        } else {
            pv_blocks(tile, p + (uint64_t)r * SIM_TILE, depth, o + r, b + r);
        }
    }
    if (depth != LINE) {
        set_shapes(LINE);
    }
    sim_avx512_dot_pv(tile, p + (uint64_t)whole * SIM_TILE, o + whole, b + whole, rows - whole);
}

static void enter(void)
{
    set_shapes(LINE);
}

static void leave(void)
{
    _tile_release();
}

const sim_isa sim_isa_amx = {
    .name = "amx",
    .row = &sim_row_loops_avx512,
    .enter = enter,
    .leave = leave,
    .decode_k = sim_avx512_decode_k,
    .decode_v = sim_avx512_decode_v,
    .dot_qk = dot_qk,
    .softmax = sim_avx512_softmax,
    .softmax_rows = sim_avx512_softmax_rows,
    .qk_softmax_rows = qk_softmax_rows,
    .dot_pv = dot_pv,
    .coded_rows = CODED_ROWS,
    .coded_formats = CODED_FORMATS,
    .coded_weights = sim_avx512_coded_weights,
    .coded_qk = sim_avx512_coded_qk,
    .coded_pv = sim_avx512_coded_pv,
};
