/* SPDX-License-Identifier: Apache-2.0 */
/* Dot products from stored codes against decoding first, in plain C (NUM 5.3, 5.4). test_isa_decode.c and
 * test_isa_dot.c hold the plain C against the oracle. */
#include "test_isa_support.h"

static const uint32_t dims[] = {32, 64, 96, 128, 160, 576, 40, 8};
static const uint32_t formats[] = {NBL_INT8, NBL_MXFP4, NBL_MXFP4_16, NBL_INT4P};

/* A tile of stored groups of one format, any bytes: whatever they are, all tables must read them alike. */
typedef struct stored_tile {
    sim_coded coded;
    uint32_t padded;
    uint8_t *codes[SIM_GROUPS]; /* exactly as large as a group, for the address sanitizer to see */
    uint8_t *scales[SIM_GROUPS];
} stored_tile;

static uint8_t *random_memory(uint64_t bytes, uint64_t *seed)
{
    uint8_t *memory = malloc(bytes);
    cr_assert(memory != NULL, "no memory");
    for (uint64_t i = 0; i < bytes; i++) {
        memory[i] = (uint8_t)support_random(seed);
    }
    return memory;
}

/* Exponents within 3 of each other and in range, as a quantizer leaves them, in most tiles. */
static void tame_scales(uint8_t *scales, uint64_t bytes, uint64_t *seed)
{
    uint32_t least = 87u + random_index(seed, 78);
    for (uint64_t i = 0; i < bytes; i++) {
        scales[i] = (uint8_t)(least + scales[i] % 4u);
    }
}

static stored_tile *stored_alloc(uint32_t format, uint32_t dim, uint32_t count, uint64_t *seed)
{
    stored_tile *tile = support_alloc(sizeof *tile);
    uint64_t scale_bytes = SIM_GROUP * oracle_scale_bytes(format, dim);
    tile->coded.count = count;
    tile->coded.uniform = 1;
    tile->padded = oracle_padded_dim(dim);
    for (uint32_t g = 0; g < count; g++) {
        tile->codes[g] = random_memory(SIM_GROUP * oracle_code_bytes(format, dim), seed);
        tile->scales[g] = random_memory(scale_bytes, seed);
        if (format != NBL_INT4P && random_index(seed, 4) != 0) {
            tame_scales(tile->scales[g], scale_bytes, seed);
        }
        tile->coded.group[g] = (sim_group){format, dim, tile->codes[g], tile->scales[g], SIM_GROUP};
        tile->coded.ahead[g] = tile->codes[g];
    }
    tile->coded.ahead_bytes = random_index(seed, 2) * SIM_GROUP * (uint32_t)oracle_code_bytes(format, dim);
    return tile;
}

static void stored_free(stored_tile *tile)
{
    for (uint32_t g = 0; g < tile->coded.count; g++) {
        free(tile->codes[g]);
        free(tile->scales[g]);
    }
    free(tile);
}

/* The same tile decoded in plain C; as K or as V. */
static sim_tile *decoded(const stored_tile *stored, bool as_k)
{
    sim_tile *tile = support_alloc(sizeof *tile);
    uint64_t group_bytes = (uint64_t)SIM_GROUP * stored->padded;
    tile->groups = stored->coded.count;
    tile->k_dim = tile->v_dim = stored->padded;
    tile->k = support_alloc(SIM_GROUPS * group_bytes);
    tile->v = (int8_t *)tile->k;
    for (uint32_t g = 0; g < tile->groups; g++) {
        if (as_k) {
            sim_isa_scalar.decode_k(&stored->coded.group[g], tile->k + g * group_bytes, tile->unit + g * SIM_GROUP);
        } else {
            sim_isa_scalar.decode_v(&stored->coded.group[g], tile->v + g * group_bytes, tile->exponent + g * SIM_GROUP,
                                    tile->weight + g * SIM_GROUP);
        }
    }
    return tile;
}

static void decoded_free(sim_tile *tile)
{
    free(tile->k);
    free(tile);
}

static void check_qk(const sim_isa *isa, const stored_tile *stored, uint32_t rows, uint64_t *seed)
{
    uint64_t x_bytes = (uint64_t)rows * SIM_TILE * sizeof(float);
    uint32_t dim = stored->padded;
    int8_t *codes = guarded_alloc((uint64_t)rows * dim);
    int32_t *words = support_alloc((uint64_t)rows * dim);
    int32_t *offsets = support_alloc((uint64_t)rows * dim / SIM_BLOCK * sizeof *offsets);
    float *x = guarded_alloc(x_bytes);
    float *expected = support_alloc(x_bytes);
    sim_tile *tile = decoded(stored, true);
    int32_t bias[SIM_ROWS_MAX];
    uint8_t *wide = support_alloc(SIM_WIDE_BYTES);
    sim_rows q = {rows, dim, words, offsets, bias, codes, wide};
    uint32_t extreme = random_index(seed, 4);
    for (uint32_t i = 0; i < rows * dim; i++) {
        codes[i] = (int8_t)(extreme == 0 ? 127 : extreme == 1 ? -127 : (int32_t)random_index(seed, 255) - 127);
    }
    sim_rows_pack(codes, rows, dim, words, offsets, bias);
    if (isa->coded_widen != NULL) {
        isa->coded_widen(&q, wide);
    }
    sim_isa_scalar.dot_qk(tile, &q, expected);
    isa->coded_qk(&stored->coded, &q, x);
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t t = 0; t < tile->groups * SIM_GROUP; t++) {
            uint32_t at = r * SIM_TILE + t;
            cr_assert(memcmp(&x[at], &expected[at], sizeof *x) == 0,
                      "format %u, %u groups, D = %u, row %u of %u, token %u: %a, not %a", stored->coded.group[0].format,
                      tile->groups, dim, r, rows, t, (double)x[at], (double)expected[at]);
        }
    }
    decoded_free(tile);
    guarded_free(x, x_bytes);
    guarded_free(codes, (uint64_t)rows * dim);
    free(expected);
    free(wide);
    free(words);
    free(offsets);
}

static void check_pv_rows(const sim_tile *tile, const float *const *o, const float *expected, uint32_t rows)
{
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t d = 0; d < tile->v_dim; d++) {
            const float *want = expected + (uint64_t)r * tile->v_dim + d;
            cr_assert(memcmp(&o[r][d], want, sizeof *want) == 0,
                      "%u groups, D = %u, row %u of %u, element %u: %a, not %a", tile->groups, tile->v_dim, r, rows, d,
                      (double)o[r][d], (double)*want);
        }
    }
}

static void check_weights(const sim_isa *isa, const stored_tile *stored, const sim_tile *tile)
{
    float *exponent = guarded_alloc(SIM_GROUP * sizeof *exponent);
    float *weight = guarded_alloc(SIM_GROUP * sizeof *weight);
    for (uint32_t g = 0; g < tile->groups; g++) {
        isa->coded_weights(&stored->coded.group[g], exponent, weight);
        cr_assert(memcmp(exponent, tile->exponent + g * SIM_GROUP, SIM_GROUP * sizeof *exponent) == 0, "exponents");
        cr_assert(memcmp(weight, tile->weight + g * SIM_GROUP, SIM_GROUP * sizeof *weight) == 0, "weights");
    }
    guarded_free(exponent, SIM_GROUP * sizeof *exponent);
    guarded_free(weight, SIM_GROUP * sizeof *weight);
}

static void check_pv(const sim_isa *isa, const stored_tile *stored, uint32_t rows, uint64_t *seed)
{
    sim_tile *tile = decoded(stored, false);
    uint64_t row_bytes = (uint64_t)tile->v_dim * sizeof(float);
    float *o[SIM_ROWS_MAX];
    float *expected[SIM_ROWS_MAX];
    float *expected_rows = support_alloc(rows * row_bytes);
    float b[SIM_ROWS_MAX];
    uint8_t *p = guarded_alloc((uint64_t)rows * SIM_TILE);
    uint32_t most = random_index(seed, 3) == 0;
    for (uint32_t i = 0; i < rows * SIM_TILE; i++) {
        p[i] = (uint8_t)(most ? 255u : random_index(seed, 256));
    }
    for (uint32_t r = 0; r < rows; r++) {
        o[r] = guarded_alloc(row_bytes);
        expected[r] = expected_rows + (uint64_t)r * tile->v_dim;
        b[r] = ldexpf((float)random_between(seed, 1.0, 2.0), (int)random_index(seed, 40) - 20);
        for (uint32_t d = 0; d < tile->v_dim; d++) {
            o[r][d] = expected[r][d] = support_normal(seed) * 1000.0f;
        }
    }
    sim_isa_scalar.dot_pv(tile, p, expected, b, rows);
    isa->coded_pv(&stored->coded, p, o, b, rows);
    check_pv_rows(tile, (const float *const *)o, expected_rows, rows);
    check_weights(isa, stored, tile);
    for (uint32_t r = 0; r < rows; r++) {
        guarded_free(o[r], row_bytes);
    }
    guarded_free(p, (uint64_t)rows * SIM_TILE);
    free(expected_rows);
    decoded_free(tile);
}

typedef void check_stored(const sim_isa *isa, const stored_tile *stored, uint32_t rows, uint64_t *seed);

static void check_all(const sim_isa *isa, check_stored *check)
{
    uint64_t seed = 83;
    if (isa->coded_rows == 0) {
        cr_skip_test("the %s table decodes first", isa->name);
    }
    for (uint32_t n = 0; n < 4u * COUNT(formats) * COUNT(dims) * isa->coded_rows; n++) {
        uint32_t at = n;
        uint32_t format = formats[at % COUNT(formats)];
        if ((isa->coded_formats >> format & 1u) == 0) {
            continue;
        }
        uint32_t dim = dims[(at /= COUNT(formats)) % COUNT(dims)];
        uint32_t rows = (at /= COUNT(dims)) % isa->coded_rows + 1u;
        stored_tile *stored = stored_alloc(format, dim, 1u + random_index(&seed, SIM_GROUPS), &seed);
        check(isa, stored, rows, &seed);
        stored_free(stored);
    }
}

/* NUM 2.3 to 2.5, 5.3. */
ISA_TEST(isa_coded, qk_of_stored_codes)
{
    check_all(isa, check_qk);
}

/* NUM 2.3 to 2.5, 5.4. */
ISA_TEST(isa_coded, pv_of_stored_codes)
{
    check_all(isa, check_pv);
}
