/* SPDX-License-Identifier: Apache-2.0 */
/* dot_qk and dot_pv of every table against integer sums (NUM 5.3, 5.4). */
#include "test_isa_support.h"

static const uint32_t dims[] = {32, 64, 96, 128, 160, 576};
static const uint32_t row_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 37, 64};

/* How codes are drawn. */
enum filling { FILL_RANDOM, FILL_HIGHEST, FILL_LOWEST, FILL_OPPOSITE, FILL_ALTERNATING, FILL_KINDS };

static int32_t random_code(uint64_t *seed, uint32_t filling, uint32_t i, bool second)
{
    switch (filling) {
    case FILL_HIGHEST: return 127;
    case FILL_LOWEST: return -127;
    case FILL_OPPOSITE: return second ? -127 : 127;
    case FILL_ALTERNATING: return i % 2u == 0 ? 127 : -127;
    default: return (int32_t)random_index(seed, 255) - 127;
    }
}

/* Byte of element d of token t in a decoded K (isa.h): [group][Dk/4][token 32][4 d]. */
static uint32_t k_at(uint32_t dim, uint32_t t, uint32_t d)
{
    return t / 32u * 32u * dim + d / 4u * 128u + t % 32u * 4u + d % 4u;
}

/* Byte of element d of token t in a decoded V: [group][token/4 8][Dv][4 token]. */
static uint32_t v_at(uint32_t dim, uint32_t t, uint32_t d)
{
    return t / 4u * 4u * dim + d * 4u + t % 4u;
}

static sim_tile *tile_alloc(uint32_t groups, uint32_t dim)
{
    sim_tile *tile = support_alloc(sizeof *tile);
    tile->groups = groups;
    tile->k_dim = tile->v_dim = dim;
    tile->k = guarded_alloc((uint64_t)groups * SIM_GROUP * dim);
    tile->v = guarded_alloc((uint64_t)groups * SIM_GROUP * dim);
    return tile;
}

static void tile_free(sim_tile *tile)
{
    guarded_free(tile->k, (uint64_t)tile->groups * SIM_GROUP * tile->k_dim);
    guarded_free(tile->v, (uint64_t)tile->groups * SIM_GROUP * tile->v_dim);
    free(tile);
}

static void check_qk_row(const sim_tile *tile, const int8_t *q, const float *x, uint32_t row)
{
    for (uint32_t t = 0; t < tile->groups * SIM_GROUP; t++) {
        int64_t sum = 0;
        for (uint32_t d = 0; d < tile->k_dim; d++) {
            sum += q[d] * ((int64_t)tile->k[k_at(tile->k_dim, t, d)] - 128);
        }
        float expected = (float)sum * tile->unit[t];
        cr_assert(llabs(sum) < 1 << 24, "NUM 5.3: |I| is %lld", (long long)sum);
        cr_assert(memcmp(&x[t], &expected, sizeof expected) == 0, "%u groups, D = %u, row %u, token %u: %a, not %a",
                  tile->groups, tile->k_dim, row, t, (double)x[t], (double)expected);
    }
}

static void check_qk(const sim_isa *isa, uint32_t groups, uint32_t dim, uint32_t rows, uint32_t filling)
{
    uint64_t seed = 81u + groups + dim * 8u + rows;
    sim_tile *tile = tile_alloc(groups, dim);
    int8_t *q = guarded_alloc((uint64_t)rows * dim);
    int32_t *words = support_alloc((uint64_t)rows * dim);
    int32_t *offsets = support_alloc((uint64_t)rows * dim / SIM_BLOCK * sizeof *offsets);
    int32_t bias[SIM_ROWS_MAX];
    sim_rows q_rows = {rows, dim, words, offsets, bias, q, NULL};
    uint64_t bytes = (uint64_t)rows * SIM_TILE * sizeof(float);
    float *x = guarded_alloc(bytes);
    for (uint32_t i = 0; i < groups * SIM_GROUP * dim; i++) {
        tile->k[i] = (uint8_t)(random_code(&seed, filling, i, false) + 128);
    }
    for (uint32_t t = 0; t < groups * SIM_GROUP; t++) {
        tile->unit[t] = ldexpf(1.0f, (int)random_index(&seed, 82) - 41);
    }
    for (uint32_t i = 0; i < rows * dim; i++) {
        q[i] = (int8_t)random_code(&seed, filling, i, true);
    }
    sim_rows_pack(q, rows, dim, words, offsets, bias);
    isa->dot_qk(tile, &q_rows, x);
    for (uint32_t r = 0; r < rows; r++) {
        check_qk_row(tile, q + (uint64_t)r * dim, x + (uint64_t)r * SIM_TILE, r);
    }
    guarded_free(x, bytes);
    guarded_free(q, (uint64_t)rows * dim);
    free(words);
    free(offsets);
    tile_free(tile);
}

/* NUM 5.3. */
ISA_TEST(isa_dot, qk_is_the_integer_sum_for_all_rows_groups_and_dimensions)
{
    for (uint32_t i = 0; i < COUNT(dims) * COUNT(row_counts) * SIM_GROUPS; i++) {
        check_qk(isa, 1u + i % SIM_GROUPS, dims[i / SIM_GROUPS % COUNT(dims)], row_counts[i / SIM_GROUPS / COUNT(dims)],
                 FILL_RANDOM);
    }
}

/* NUM 5.3: |I| = 576 * 127 * 127 < 2^24, and the sums with the offset of 128 stay exact too. */
ISA_TEST(isa_dot, qk_of_extreme_codes_is_exact)
{
    for (uint32_t filling = FILL_HIGHEST; filling < FILL_KINDS; filling++) {
        for (uint32_t groups = 1; groups <= SIM_GROUPS; groups++) {
            check_qk(isa, groups, 576, 37, filling);
        }
    }
}

/* P as softmax leaves it: tokens beyond the tile's groups hold anything. */
static uint8_t random_weight(uint64_t *seed, uint32_t filling)
{
    return (uint8_t)(filling == FILL_RANDOM ? random_index(seed, 256) : 255u);
}

static void check_pv_row(const sim_tile *tile, const uint8_t *p, float b, const float *before, const float *o,
                         uint32_t row)
{
    for (uint32_t d = 0; d < tile->v_dim; d++) {
        int32_t sum = 0;
        for (uint32_t t = 0; t < tile->groups * SIM_GROUP; t++) {
            sum += p[t] * tile->v[v_at(tile->v_dim, t, d)];
        }
        float expected = fmaf((float)sum, b, before[d]);
        cr_assert(abs(sum) < 1 << 22, "NUM 5.4: |A| is %d", sum);
        cr_assert(memcmp(&o[d], &expected, sizeof expected) == 0, "%u groups, D = %u, row %u, element %u: %a, not %a",
                  tile->groups, tile->v_dim, row, d, (double)o[d], (double)expected);
    }
}

static void check_pv(const sim_isa *isa, uint32_t groups, uint32_t dim, uint32_t rows, uint32_t filling)
{
    uint64_t seed = 82u + groups + dim * 8u + rows;
    sim_tile *tile = tile_alloc(groups, dim);
    uint8_t *p = guarded_alloc((uint64_t)rows * SIM_TILE);
    float *before = support_alloc((uint64_t)rows * dim * sizeof *before);
    float *o[SIM_ROWS_MAX];
    float b[SIM_ROWS_MAX];
    for (uint32_t i = 0; i < groups * SIM_GROUP * dim; i++) {
        tile->v[i] = (int8_t)random_code(&seed, filling, i, false);
    }
    for (uint32_t i = 0; i < rows * SIM_TILE; i++) {
        p[i] = random_weight(&seed, filling);
    }
    for (uint32_t r = 0; r < rows; r++) {
        b[r] = oracle_exp2_grid((int64_t)random_index(&seed, 158u * 256u) - 126 * 256);
        o[r] = guarded_alloc(dim * sizeof(float));
        for (uint32_t d = 0; d < dim; d++) {
            o[r][d] = before[r * dim + d] = r % 3u == 0 ? 0.0f : support_normal(&seed) * b[r] * 0x1p20f;
        }
    }
    isa->dot_pv(tile, p, o, b, rows);
    for (uint32_t r = 0; r < rows; r++) {
        check_pv_row(tile, p + (uint64_t)r * SIM_TILE, b[r], before + (uint64_t)r * dim, o[r], r);
        guarded_free(o[r], dim * sizeof(float));
    }
    guarded_free(p, (uint64_t)rows * SIM_TILE);
    free(before);
    tile_free(tile);
}

/* NUM 5.4. */
ISA_TEST(isa_dot, pv_is_one_fused_step_for_all_rows_groups_and_dimensions)
{
    for (uint32_t i = 0; i < COUNT(dims) * COUNT(row_counts) * SIM_GROUPS; i++) {
        check_pv(isa, 1u + i % SIM_GROUPS, dims[i / SIM_GROUPS % COUNT(dims)], row_counts[i / SIM_GROUPS / COUNT(dims)],
                 FILL_RANDOM);
    }
}

/* NUM 5.4: |A| = 128 * 255 * 127 < 2^22. */
ISA_TEST(isa_dot, pv_of_extreme_codes_is_exact)
{
    for (uint32_t filling = FILL_HIGHEST; filling < FILL_KINDS; filling++) {
        for (uint32_t groups = 1; groups <= SIM_GROUPS; groups++) {
            check_pv(isa, groups, 576, 37, filling);
        }
    }
}
