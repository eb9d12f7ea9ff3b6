/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file attend_amx.c
 * @brief Dot products of many rows for AMX int8; all else is AVX-512's.
 *
 * A tile register holds 16 rows of 64 bytes. Sixteen query rows (or rows of P) stand in one, and 16 quads of a line of
 * K or V (isa.h) in another: those lie in memory as TDPBxxD wants them. Rows of 128 bytes (D = 128, or P of a whole
 * tile) stay in two registers while 32 columns after the others (tokens, or elements) come by in four: four products, of
 * 16 cycles each, from four loads. The sums of a step are worked on while the products of the next one run. Other sizes
 * go in blocks of 16 rows and 32 columns, along the sum.
 */
#include "avx512.h"

#define TILE_ROWS 16u
#define COLUMNS 32u       /* of a step */
#define WHOLE (2u * LINE) /* bytes of rows that stay in registers */

/* What LDTILECFG reads. */
typedef struct tile_shapes {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t bytes_per_row[16];
    uint8_t rows[16];
} tile_shapes;

/* Registers 0 and 1 are sums, 2 and 3 rows, 4 to 7 columns. */
enum { ROWS = 2, FIRST_COLUMNS = 4, REGISTERS = 8 };

/* Gives the registers their shapes, for steps of `depth` bytes (32 or 64) along the sum. With 64 all are alike, and they
 * stay so but for calls that need 32: the instruction takes as long as ten products. */
static void set_shapes(uint32_t depth)
{
    tile_shapes shapes = {.palette = 1};
    for (uint32_t i = 0; i < REGISTERS; ++i) {
        const int is_row = i >= ROWS && i < FIRST_COLUMNS;
        shapes.bytes_per_row[i] = (uint16_t)(is_row ? depth : LINE);
        shapes.rows[i] = (uint8_t)(i >= FIRST_COLUMNS ? depth / 4u : TILE_ROWS);
    }
    __asm__ volatile("" : : "r"(&shapes) : "memory"); /* gcc 12 does not know that the registers read memory */
    _tile_loadconfig(&shapes);
}

/* Bytes of a step along a sum of `bytes` terms, a multiple of 32. */
static uint32_t depth_of(uint32_t bytes)
{
    return bytes % LINE == 0 ? LINE : LINE / 2u;
}

/* Sums of 16 rows and 32 columns. */
typedef struct step_sums {
    _Alignas(LINE) int32_t of[2][TILE_ROWS][LANES];
} step_sums;

static void store_sums(step_sums *sums)
{
    _tile_stored(0, sums->of[0], LINE);
    _tile_stored(1, sums->of[1], LINE);
    __asm__ volatile("" : : : "memory");
}

/* ------------------------------------------------------------------------------------------------ products */

/* 16 rows of 128 bytes into registers 2 and 3. */
static void load_rows(const void *rows)
{
    const uint8_t *at = rows;
    _tile_loadd(2, at, WHOLE);
    _tile_loadd(3, at + LINE, WHOLE);
}

/* 32 columns of 32 quads, stride bytes apart, times those rows. is_qk (a constant): rows are the signed side, else
 * columns. */
UNROLLED void multiply_whole(int is_qk, const void *columns, uint64_t stride, step_sums *sums)
{
    const uint8_t *at = columns;
    _tile_loadd(4, at, stride);
    _tile_loadd(5, at + LINE, stride);
    _tile_loadd(6, at + TILE_ROWS * stride, stride);
    _tile_loadd(7, at + TILE_ROWS * stride + LINE, stride);
    _tile_zero(0);
    _tile_zero(1);
    if (is_qk) {
        _tile_dpbsud(0, 2, 4);
        _tile_dpbsud(1, 2, 5);
        _tile_dpbsud(0, 3, 6);
        _tile_dpbsud(1, 3, 7);
    } else {
        _tile_dpbusd(0, 2, 4);
        _tile_dpbusd(1, 2, 5);
        _tile_dpbusd(0, 3, 6);
        _tile_dpbusd(1, 3, 7);
    }
    store_sums(sums);
}

/* 16 rows times 32 columns of `bytes` terms, a multiple of depth. */
UNROLLED void multiply(int is_qk, const void *rows, uint64_t row_stride, const void *columns, uint64_t stride,
                       uint32_t bytes, uint32_t depth, step_sums *sums)
{
    _tile_zero(0);
    _tile_zero(1);
    for (uint32_t i = 0; i < bytes; i += depth) {
        const uint8_t *at = (const uint8_t *)columns + i / 4u * stride;
        _tile_loadd(2, (const uint8_t *)rows + i, row_stride);
        _tile_loadd(4, at, stride);
        _tile_loadd(5, at + LINE, stride);
        if (is_qk) {
            _tile_dpbsud(0, 2, 4);
            _tile_dpbsud(1, 2, 5);
        } else {
            _tile_dpbusd(0, 2, 4);
            _tile_dpbusd(1, 2, 5);
        }
    }
    store_sums(sums);
}

/* ------------------------------------------------------------------------------------------------ Q K */

/* Logits of 16 rows and the 32 tokens of group g from their sums (NUM 5.3). */
static void finish_group(const sim_tile *tile, uint32_t g, const step_sums *sums, const int32_t *bias, float *x)
{
    for (uint32_t half = 0; half < HALVES; ++half) {
        const uint32_t token = g * SIM_GROUP + half * LANES;
        const __m512 unit = _mm512_loadu_ps(tile->unit + token);
        for (uint32_t r = 0; r < TILE_ROWS; ++r) {
            __m512i sum = _mm512_add_epi32(_mm512_load_si512(sums->of[half][r]), _mm512_set1_epi32(bias[r]));
            _mm512_storeu_ps(x + r * SIM_TILE + token, _mm512_mul_ps(_mm512_cvtepi32_ps(sum), unit));
        }
    }
}

/* Logits of 16 rows: signed codes times unsigned ones. */
static void qk_rows(const sim_tile *tile, const int8_t *codes, uint32_t depth, const int32_t *bias, float *x)
{
    step_sums sums[2];
    if (tile->k_dim == WHOLE) {
        load_rows(codes);
    }
    for (uint32_t g = 0; g <= tile->groups; ++g) {
        const uint8_t *k = tile->k + (uint64_t)g * SIM_GROUP * tile->k_dim;
        if (g < tile->groups && tile->k_dim == WHOLE) {
            multiply_whole(1, k, HALVES * LINE, &sums[g % 2u]);
        } else if (g < tile->groups) {
            multiply(1, codes, tile->k_dim, k, HALVES * LINE, tile->k_dim, depth, &sums[g % 2u]);
        }
        if (g > 0) {
            finish_group(tile, g - 1u, &sums[(g - 1u) % 2u], bias, x);
        }
    }
}

static void dot_qk(const sim_tile *tile, const sim_rows *rows, float *x)
{
    const uint32_t whole = rows->count / TILE_ROWS * TILE_ROWS;
    const uint32_t depth = depth_of(rows->dim);
    if (depth != LINE) {
        set_shapes(depth);
    }
    for (uint32_t r = 0; r < whole; r += TILE_ROWS) {
        qk_rows(tile, rows->codes + (uint64_t)r * rows->dim, depth, rows->bias + r, x + (uint64_t)r * SIM_TILE);
    }
    if (depth != LINE) {
        set_shapes(LINE);
    }
    sim_avx512_dot_qk_from(tile, rows, whole, x);
}

/* ------------------------------------------------------------------------------------------------ P V */

/* Adds the sums of 16 rows and 32 elements from d on to O (NUM 5.4). */
static void add_outputs(const step_sums *sums, const float *b, float *const *o, uint32_t d)
{
    for (uint32_t r = 0; r < TILE_ROWS; ++r) {
        for (uint32_t half = 0; half < HALVES; ++half) {
            float *to = o[r] + d + half * LANES;
            __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums->of[half][r]));
            _mm512_storeu_ps(to, _mm512_fmadd_ps(sum, _mm512_set1_ps(b[r]), _mm512_loadu_ps(to)));
        }
    }
}

/* O of 16 rows: unsigned weights times signed codes. */
static void pv_rows(const sim_tile *tile, const uint8_t *p, uint32_t depth, float *const *o, const float *b)
{
    const uint64_t stride = 4u * (uint64_t)tile->v_dim;
    const uint32_t steps = tile->v_dim / COLUMNS;
    step_sums sums[2];
    if (tile->groups == SIM_GROUPS) {
        load_rows(p);
    }
    for (uint32_t i = 0; i <= steps; ++i) {
        const int8_t *v = tile->v + i * 4u * COLUMNS;
        if (i < steps && tile->groups == SIM_GROUPS) {
            multiply_whole(0, v, stride, &sums[i % 2u]);
        } else if (i < steps) {
            multiply(0, p, SIM_TILE, v, stride, tile->groups * SIM_GROUP, depth, &sums[i % 2u]);
        }
        if (i > 0) {
            add_outputs(&sums[(i - 1u) % 2u], b, o, (i - 1u) * COLUMNS);
        }
    }
}

static void dot_pv(const sim_tile *tile, const uint8_t *p, float *const *o, const float *b, uint32_t rows)
{
    const uint32_t whole = rows / TILE_ROWS * TILE_ROWS;
    const uint32_t depth = depth_of(tile->groups * SIM_GROUP);
    if (depth != LINE) {
        set_shapes(depth);
    }
    for (uint32_t r = 0; r < whole; r += TILE_ROWS) {
        pv_rows(tile, p + (uint64_t)r * SIM_TILE, depth, o + r, b + r);
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
    .dot_pv = dot_pv,
    .coded_rows = CODED_ROWS,
    .coded_formats = CODED_FORMATS,
    .coded_weights = sim_avx512_coded_weights,
    .coded_qk = sim_avx512_coded_qk,
    .coded_pv = sim_avx512_coded_pv,
};
