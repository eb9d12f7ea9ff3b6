/* SPDX-License-Identifier: Apache-2.0 */
/* The loops over one vector of every table against the oracle (NUM 1.1, 3, 4). */
#include "test_isa_support.h"

static const uint32_t dims[] = {8, 16, 40, 64, 72, 96, 128, 136, 256, 264, 576};
static const uint32_t formats[] = {NBL_INT8, NBL_MXFP4, NBL_MXFP4_16, NBL_INT4P};
static const uint32_t rules[] = {NBL_RULE_DEFAULT, NBL_RULE_OPTIMAL, NBL_RULE_FLOOR, NBL_RULE_CEIL, NBL_RULE_MSE};

/* Memory of n floats with a guard behind. */
static float *guarded_floats(const float *from, uint32_t n)
{
    float *x = guarded_alloc(n * sizeof *x);
    memcpy(x, from, n * sizeof *x);
    return x;
}

static void check_floats(const char *what, uint32_t dim, const float *x, const float *expected)
{
    for (uint32_t d = 0; d < dim; d++) {
        cr_assert_eq(oracle_bits_from_f32(x[d]), oracle_bits_from_f32(expected[d]),
                     "%s, D = %u: element %u is %a, not %a", what, dim, d, (double)x[d], (double)expected[d]);
    }
}

static void check_stats(const nbl_quant_stats *stats, const nbl_quant_stats *expected)
{
    cr_assert(stats->nan_inputs == expected->nan_inputs && stats->inf_inputs == expected->inf_inputs &&
                  stats->saturated == expected->saturated && stats->flushed == expected->flushed,
              "nan %llu, inf %llu, saturated %llu, flushed %llu, not %llu, %llu, %llu, %llu",
              (unsigned long long)stats->nan_inputs, (unsigned long long)stats->inf_inputs,
              (unsigned long long)stats->saturated, (unsigned long long)stats->flushed,
              (unsigned long long)expected->nan_inputs, (unsigned long long)expected->inf_inputs,
              (unsigned long long)expected->saturated, (unsigned long long)expected->flushed);
}

static void check_quantize(const sim_isa *isa, const float *from, uint32_t dim, uint32_t format, uint32_t rule)
{
    nbl_quant_stats stats = {0}, expected_stats = {0};
    oracle_vector expected;
    int8_t codes[NBL_DIM_PADDED_MAX];
    nbl_vector *v = guarded_alloc(sizeof *v);
    float *x = guarded_floats(from, dim);
    oracle_quantize(format, rule, x, dim, &expected, &expected_stats);
    isa->row->quantize(x, dim, format, rule, v, &stats);
    cr_assert(v->format == format && v->dim == dim && stats.vectors == 1u, "format %u, D = %u", v->format, v->dim);
    cr_assert_arr_eq(v->codes, expected.elements, oracle_padded_dim(dim), "format %u, rule %u, D = %u: codes", format,
                     rule, dim);
    cr_assert_eq(nbl_vector_canonical(v, codes), expected.exponent, "format %u, rule %u, D = %u: E", format, rule, dim);
    cr_assert_arr_eq(codes, expected.codes, oracle_padded_dim(dim), "format %u, rule %u, D = %u: canonical codes",
                     format, rule, dim);
    check_stats(&stats, &expected_stats);
    guarded_free(x, dim * sizeof *x);
    guarded_free(v, sizeof *v);
}

/* Every format and rule, one vector. */
static void check_formats(const sim_isa *isa, const float *x, uint32_t dim)
{
    for (uint32_t f = 0; f < COUNT(formats); f++) {
        bool has_rules = formats[f] == NBL_MXFP4 || formats[f] == NBL_MXFP4_16;
        for (uint32_t r = 0; r < (has_rules ? COUNT(rules) : 1u); r++) {
            check_quantize(isa, x, dim, formats[f], rules[r]);
        }
    }
}

/* NUM 3.2 to 3.5. */
ISA_TEST(isa_rows, quantizers_on_all_kinds_of_input)
{
    uint64_t seed = 101;
    for (uint32_t n = 0; n < 12u * INPUT_KINDS * COUNT(dims); n++) {
        uint32_t dim = dims[n / INPUT_KINDS % COUNT(dims)];
        float x[ORACLE_DIM_MAX];
        input_random(n % INPUT_KINDS, &seed, x, dim);
        check_formats(isa, x, dim);
    }
}

/* NUM 3.5: the largest magnitude of a block at, just below and just above every 7 * m * 2^E. */
ISA_TEST(isa_rows, int4p_at_the_edges_of_its_multipliers)
{
    uint64_t seed = 102;
    for (uint32_t n = 0; n < 3u * 17u * 30u; n++) {
        float edge = 7.0f * (float)(n / 3u % 17u) * ldexpf(1.0f, (int)random_index(&seed, 60) - 30);
        float amax = n % 3u == 0 ? edge : nextafterf(edge, n % 3u == 1u ? 0.0f : INFINITY);
        float x[ORACLE_DIM_MAX];
        input_with_amax(amax, &seed, x, 128);
        check_quantize(isa, x, 128, NBL_INT4P, 0);
        for (uint32_t d = 16; d < 128; d++) { /* the same block among others with a larger exponent */
            x[d] *= d < 32 ? 16.0f : 0.5f;
        }
        check_quantize(isa, x, 128, NBL_INT4P, 0);
    }
}

/* Squared error of a block of integers with a multiplier, codes of up to 7 (NUM 3.5). */
static int32_t error_with(const float *block, int32_t m)
{
    int32_t sum = 0;
    for (uint32_t d = 0; d < 16; d++) {
        int32_t y = abs((int)block[d]), code = (2 * y + m) / (2 * m);
        int32_t difference = y - m * (code < 7 ? code : 7);
        sum += difference * difference;
    }
    return sum;
}

/* Whether the least error of m0 - 1, m0 and m0 + 1 belongs to two of them; the first element is 7 * m0. */
static bool is_tie(const float *block)
{
    int32_t m0 = (int32_t)block[0] / 7;
    int32_t less = error_with(block, m0 - 1), same = error_with(block, m0), more = error_with(block, m0 + 1);
    return (less == same && same <= more) || (same == more && same < less) || (less == more && less < same);
}

/* A block of integers with two best multipliers; the first element is the largest. */
static void tie_make(uint64_t *seed, float *block)
{
    do {
        uint32_t most = 7u * (2u + random_index(seed, 14));
        block[0] = (float)most;
        for (uint32_t d = 1; d < 16; d++) {
            block[d] = (float)random_index(seed, 2u * most + 1u) - (float)most;
        }
    } while (!is_tie(block));
}

/* NUM 3.5: integers, whose errors are exact and equal for two multipliers; then the same with elements moved by a unit
 * in their last places, so that the order in which squares are added decides. */
ISA_TEST(isa_rows, int4p_where_multipliers_err_alike)
{
    uint64_t seed = 105;
    for (uint32_t n = 0; n < 100u; n++) {
        float x[128] = {112.0f}; /* so that E is 0 */
        for (uint32_t b = 1; b < 8u; b++) {
            tie_make(&seed, x + 16u * b);
        }
        check_quantize(isa, x, COUNT(x), NBL_INT4P, 0);
        for (uint32_t i = 0; i < 4u; i++) {
            float moved[COUNT(x)];
            for (uint32_t d = 0; d < COUNT(x); d++) {
                uint32_t bits =
                    oracle_bits_from_f32(x[d]) + (d % 16u == 0 || x[d] == 0.0f ? 1u : random_index(&seed, 3));
                moved[d] = oracle_f32_from_bits(bits - 1u);
            }
            check_quantize(isa, moved, COUNT(x), NBL_INT4P, 0);
        }
    }
}

/* NUM 3.4: magnitudes on and next to every boundary of E2M1, of both signs. */
ISA_TEST(isa_rows, mxfp4_at_the_edges_of_its_codes)
{
    static const float edges[] = {0.0f, 0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, 6.0f, 7.25f};
    for (int exponent = -41; exponent <= 42; exponent++) {
        float x[64];
        for (uint32_t d = 0; d < COUNT(x); d++) {
            float edge = edges[d / 6u % COUNT(edges)];
            float moved = d % 3u == 0 ? edge : nextafterf(edge, d % 3u == 1u ? -1.0f : 8.0f);
            x[d] = ldexpf(d % 2u == 0 ? moved : -moved, exponent);
        }
        check_formats(isa, x, COUNT(x));
    }
}

/* NUM 4.1: every block that divides the dimension. */
ISA_TEST(isa_rows, hadamard_of_every_block)
{
    uint64_t seed = 103;
    for (uint32_t n = 0; n < 4u * INPUT_KINDS * COUNT(dims); n++) {
        uint32_t dim = dims[n / INPUT_KINDS % COUNT(dims)];
        for (uint32_t block = 0; block <= 256u; block = block == 0 ? 8u : 2u * block) {
            float expected[ORACLE_DIM_MAX];
            if (block != 0 && dim % block != 0) {
                continue;
            }
            input_random(n % INPUT_KINDS, &seed, expected, dim);
            float *x = guarded_floats(expected, dim);
            oracle_hadamard(expected, dim, block);
            isa->row->hadamard(x, dim, block);
            check_floats("hadamard", dim, x, expected);
            guarded_free(x, dim * sizeof *x);
        }
    }
}

/* NUM 4.5, 4.2. */
ISA_TEST(isa_rows, shifts_and_centres)
{
    uint64_t seed = 104;
    for (uint32_t n = 0; n < 4u * INPUT_KINDS * COUNT(dims); n++) {
        uint32_t dim = dims[n / INPUT_KINDS % COUNT(dims)];
        float from[ORACLE_DIM_MAX], expected[ORACLE_DIM_MAX];
        uint8_t shifts[ORACLE_DIM_MAX];
        oracle_vector center;
        float mean[ORACLE_DIM_MAX];
        input_random((n + 1u) % INPUT_KINDS, &seed, mean, dim);
        oracle_quantize(NBL_INT8, 0, mean, dim, &center, NULL);
        input_random(n % INPUT_KINDS, &seed, from, dim);
        for (uint32_t d = 0; d < dim; d++) {
            shifts[d] = (uint8_t)random_index(&seed, 8);
        }
        for (int sign = -1; sign <= 1; sign += 2) {
            float *x = guarded_floats(from, dim);
            memcpy(expected, from, sizeof expected);
            oracle_shift(expected, dim, shifts, sign);
            (sign < 0 ? isa->row->shift_down : isa->row->shift_up)(x, dim, shifts);
            check_floats("shift", dim, x, expected);
            guarded_free(x, dim * sizeof *x);
        }
        float *x = guarded_floats(from, dim);
        isa->row->subtract_center(x, dim, center.codes, (uint8_t)(center.exponent + 127));
        for (uint32_t d = 0; d < dim; d++) {
            expected[d] = from[d] - ldexpf(center.codes[d], center.exponent);
        }
        check_floats("centre", dim, x, expected);
        guarded_free(x, dim * sizeof *x);
    }
}

static float value_of_half(uint16_t bits, uint32_t dtype)
{
    return dtype == NBL_BF16 ? oracle_f32_from_bf16(bits) : oracle_f32_from_f16(bits);
}

/* NUM 3.1: all 2^16 numbers of both 16-bit types, every eighth vector with its neighbours' NaN and infinities. */
ISA_TEST(isa_rows, every_half_is_loaded)
{
    static const uint32_t dtypes[] = {NBL_BF16, NBL_F16};
    for (uint32_t n = 0; n < 2u * 65536u / 16u; n++) {
        uint32_t dtype = dtypes[n % 2u];
        uint16_t *from = guarded_alloc(16 * sizeof *from);
        float *x = guarded_alloc(16 * sizeof *x);
        float expected[16];
        nbl_quant_stats stats = {0}, expected_stats = {0};
        for (uint32_t d = 0; d < 16; d++) {
            from[d] = (uint16_t)(n / 2u * 16u + d);
            expected[d] = value_of_half(from[d], dtype);
        }
        oracle_sanitize(expected, 16, &expected_stats);
        isa->row->load((const uint8_t *)from, dtype, 16, x, &stats);
        check_floats("load", 16, x, expected);
        check_stats(&stats, &expected_stats);
        guarded_free(from, 16 * sizeof *from);
        guarded_free(x, 16 * sizeof *x);
    }
}

/* NUM 3.1, 1.1: random bits from binary32 and back to each type. */
ISA_TEST(isa_rows, random_bits_are_loaded_and_stored)
{
    uint64_t seed = 105;
    for (uint32_t n = 0; n < 4000u; n++) {
        uint32_t dim = dims[n % COUNT(dims)];
        float from[ORACLE_DIM_MAX], expected[ORACLE_DIM_MAX];
        nbl_quant_stats stats = {0}, expected_stats = {0};
        for (uint32_t d = 0; d < dim; d++) {
            uint32_t bits = (uint32_t)support_random(&seed);
            from[d] = oracle_f32_from_bits(n % 3u == 0 ? bits : (bits & 0x87ffffffu) | 0x38000000u);
        }
        float *x = guarded_alloc(dim * sizeof *x);
        memcpy(expected, from, sizeof expected);
        oracle_sanitize(expected, dim, &expected_stats);
        isa->row->load((const uint8_t *)from, NBL_F32, dim, x, &stats);
        check_floats("load", dim, x, expected);
        check_stats(&stats, &expected_stats);
        uint16_t *halves = guarded_alloc(dim * sizeof *halves);
        isa->row->store((uint8_t *)halves, NBL_BF16, dim, from);
        for (uint32_t d = 0; d < dim; d++) {
            cr_assert_eq(halves[d], from[d] != from[d] ? halves[d] : oracle_bf16_from_f32(from[d]), "bf16 of %a is %x",
                         (double)from[d], halves[d]);
            cr_assert(from[d] == from[d] || value_of_half(halves[d], NBL_BF16) != value_of_half(halves[d], NBL_BF16),
                      "a NaN became %x", halves[d]);
        }
        isa->row->store((uint8_t *)halves, NBL_F16, dim, from);
        for (uint32_t d = 0; d < dim; d++) {
            cr_assert_eq(halves[d], from[d] != from[d] ? halves[d] : oracle_f16_from_f32(from[d]), "f16 of %a is %x",
                         (double)from[d], halves[d]);
        }
        guarded_free(halves, dim * sizeof *halves);
        isa->row->store((uint8_t *)x, NBL_F32, dim, from);
        cr_assert_arr_eq(x, from, dim * sizeof *x, "f32 is copied");
        guarded_free(x, dim * sizeof *x);
    }
}

/* F4: four vectors side by side, byte by byte. */
ISA_TEST(isa_rows, interleave_puts_four_vectors_side_by_side)
{
    static const uint32_t counts[] = {16, 48, 64, 576};
    uint64_t seed = 97;
    for (uint32_t i = 0; i < COUNT(counts); i++) {
        const uint64_t apart = 640;
        uint8_t *from = guarded_alloc(3u * apart + counts[i]);
        uint8_t *to = guarded_alloc(4u * (uint64_t)counts[i]);
        for (uint64_t at = 0; at < 3u * apart + counts[i]; at++) {
            from[at] = (uint8_t)random_index(&seed, 256);
        }
        isa->row->interleave(from, apart, counts[i], to);
        for (uint32_t at = 0; at < 4u * counts[i]; at++) {
            cr_assert_eq(to[at], from[at % 4u * apart + at / 4u], "%u bytes each, byte %u", counts[i], at);
        }
        guarded_free(from, 3u * apart + counts[i]);
        guarded_free(to, 4u * (uint64_t)counts[i]);
    }
}
