/* SPDX-License-Identifier: Apache-2.0 */
/* Properties of the oracle's quantizers, restated from their definitions (NUM 2, 3). */
#include "test_oracle_support.h"

#include <float.h>

static const uint32_t dims[] = {16, 40, 72, 128, 576};
static const uint32_t rules[] = {NBL_RULE_OPTIMAL, NBL_RULE_FLOOR, NBL_RULE_CEIL, NBL_RULE_MSE};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define ROUNDS 400
#define LIMIT 0x1.fcp46f /* 127 * 2^40 */

/* Vectors with spread-out channels, at a random scale that now and then leaves the exponent range. */
static void random_input(uint64_t *seed, uint32_t dim, float *x)
{
    int scale = (int)(support_random(seed) % 100u) - 50;
    int spread = (int)(support_random(seed) % 8u) + 1;
    for (uint32_t d = 0; d < dim; d++) {
        x[d] = ldexpf(support_normal(seed), scale - (int)(support_random(seed) % (uint64_t)spread));
    }
    oracle_sanitize(x, dim, NULL);
}

static double largest(const float *x, uint32_t first, uint32_t end, uint32_t dim)
{
    double amax = 0.0;
    for (uint32_t d = first; d < end && d < dim; d++) {
        amax = fmax(amax, fabs((double)x[d]));
    }
    return amax;
}

/* The exponent is the smallest of its range that holds amax. */
static void check_vector_exponent(const oracle_vector *v, double amax, double limit)
{
    cr_assert(v->exponent >= -40 && v->exponent <= 40, "E = %d", v->exponent);
    cr_assert(v->exponent == 40 || amax <= ldexp(limit, v->exponent), "E = %d is too small for %a", v->exponent, amax);
    cr_assert(v->exponent == -40 || amax > ldexp(limit, v->exponent - 1), "E = %d is too large for %a", v->exponent,
              amax);
}

Test(oracle_quantize, int8_is_the_nearest_code_at_the_smallest_exponent)
{
    uint64_t seed = 11;
    float x[ORACLE_DIM_MAX];
    oracle_vector v;

    for (uint32_t n = 0; n < ROUNDS * COUNT(dims); n++) {
        uint32_t dim = dims[n % COUNT(dims)];
        random_input(&seed, dim, x);
        oracle_quantize(NBL_INT8, 0, x, dim, &v, NULL);
        check_vector_exponent(&v, largest(x, 0, dim, dim), 127.0);
        for (uint32_t d = 0; d < dim; d++) {
            double error = fabs(ldexp((double)x[d], -v.exponent) - v.codes[d]);
            cr_assert(error <= 0.5 || abs(v.codes[d]) == 127, "code %d of %a", v.codes[d], (double)x[d]);
            cr_assert(error != 0.5 || v.codes[d] % 2 == 0, "a tie goes to an even code, not %d", v.codes[d]);
        }
    }
}

Test(oracle_quantize, int8_edges)
{
    float x[16] = {127.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 126.5f, -126.5f, -0.0f};
    const int8_t expected[16] = {127, 0, 2, 2, 0, -2, -2, 126, -126, 0};
    oracle_vector v;

    oracle_quantize(NBL_INT8, 0, x, 16, &v, NULL);
    cr_expect_eq(v.exponent, 0, "127 fits E = 0, not %d", v.exponent);
    cr_expect(memcmp(v.codes, expected, 16) == 0, "ties go to even");
    x[0] = nextafterf(127.0f, 128.0f);
    oracle_quantize(NBL_INT8, 0, x, 16, &v, NULL);
    cr_expect_eq(v.exponent, 1, "one step above 127 needs E = 1, not %d", v.exponent);
}

static int32_t expected_block_exponent(uint32_t rule, double amax)
{
    int32_t e = -200;
    if (amax == 0.0) {
        return -39;
    }
    if (rule == NBL_RULE_FLOOR) {
        e = (int32_t)floor(log2(amax)) - 2;
    } else {
        while (amax > (rule == NBL_RULE_CEIL ? 6.0 : 7.25) * exp2(e)) {
            e++;
        }
    }
    return e < -39 ? -39 : e > 40 ? 40 : e;
}

static void check_mxfp4_codes(const oracle_vector *v, const float *x, uint32_t block)
{
    for (uint32_t d = 0; d < v->dim; d++) {
        double scaled = ldexp((double)x[d], -v->block_exponents[d / block]);
        double chosen = fabs(fmin(fmax(scaled, -6.0), 6.0) - (double)oracle_e2m1_value(v->elements[d]));
        cr_assert_neq(v->elements[d], 8u, "negative zero is never stored");
        for (uint32_t code = 0; code < 16; code++) {
            double other = fabs(fmin(fmax(scaled, -6.0), 6.0) - (double)oracle_e2m1_value(code));
            cr_assert(chosen <= other, "%a: code %x is nearer than %x", scaled, code, v->elements[d]);
            cr_assert(chosen < other || code % 8u == v->elements[d] % 8u || v->elements[d] % 2u == 0,
                      "%a: a tie goes to an even code, not %x", scaled, v->elements[d]);
        }
        cr_assert_eq(ldexp((double)v->codes[d], v->exponent),
                     ldexp((double)oracle_e2m1_value(v->elements[d]), v->block_exponents[d / block]), "canonical code");
    }
}

static void check_mxfp4(const oracle_vector *v, const float *x, uint32_t rule)
{
    uint32_t block = oracle_block_size(v->format, v->padded_dim);
    uint32_t blocks = v->padded_dim / block;
    int32_t highest = -39;
    int32_t lowest = 41;

    for (uint32_t b = 0; b < blocks; b++) {
        int32_t e = expected_block_exponent(rule, largest(x, b * block, (b + 1u) * block, v->dim));
        highest = e > highest ? e : highest;
    }
    for (uint32_t b = 0; b < blocks && rule != NBL_RULE_MSE; b++) {
        int32_t e = expected_block_exponent(rule, largest(x, b * block, (b + 1u) * block, v->dim));
        e = e < highest - 3 ? highest - 3 : e;
        cr_assert_eq(v->block_exponents[b], e, "block %u: e = %d, not %d", b, v->block_exponents[b], e);
    }
    highest = -39;
    for (uint32_t b = 0; b < blocks; b++) {
        highest = v->block_exponents[b] > highest ? v->block_exponents[b] : highest;
        lowest = v->block_exponents[b] < lowest ? v->block_exponents[b] : lowest;
    }
    cr_assert(highest - lowest <= 3 && lowest >= -39 && highest <= 40, "exponents %d to %d", lowest, highest);
    cr_assert_eq(v->exponent, lowest - 1, "E = e_min - 1");
    check_mxfp4_codes(v, x, block);
}

Test(oracle_quantize, mxfp4_follows_its_rule)
{
    uint64_t seed = 12;
    float x[ORACLE_DIM_MAX];
    oracle_vector v;

    for (uint32_t n = 0; n < ROUNDS * COUNT(dims); n++) {
        uint32_t dim = dims[n % COUNT(dims)];
        uint32_t rule = rules[support_random(&seed) % COUNT(rules)];
        uint32_t format = support_random(&seed) % 2u ? NBL_MXFP4 : NBL_MXFP4_16;
        random_input(&seed, dim, x);
        oracle_quantize(format, rule, x, dim, &v, NULL);
        check_mxfp4(&v, x, rule);
    }
}

static double block_error(const oracle_vector *v, const float *x, uint32_t first, uint32_t end)
{
    double sum = 0.0;
    for (uint32_t d = first; d < end && d < v->dim; d++) {
        double difference = (double)x[d] - ldexp((double)v->codes[d], v->exponent);
        sum += difference * difference;
    }
    return sum;
}

/* With one block the spread rule is idle: MSE is never worse than OPTIMAL, and picks a neighbour of it. */
Test(oracle_quantize, mse_beats_optimal)
{
    uint64_t seed = 13;
    float x[ORACLE_DIM_MAX];
    uint32_t better = 0;

    for (uint32_t n = 0; n < ROUNDS * 10u; n++) {
        oracle_vector optimal;
        oracle_vector mse;
        double allowed;
        for (uint32_t d = 0; d < 32; d++) {
            x[d] = support_normal(&seed);
        }
        oracle_quantize(NBL_MXFP4, NBL_RULE_OPTIMAL, x, 32, &optimal, NULL);
        oracle_quantize(NBL_MXFP4, NBL_RULE_MSE, x, 32, &mse, NULL);
        allowed = block_error(&optimal, x, 0, 32);
        cr_assert(block_error(&mse, x, 0, 32) <= allowed * (1.0 + 1e-5), "the error rises to %g from %g",
                  block_error(&mse, x, 0, 32), allowed);
        cr_assert(abs(mse.block_exponents[0] - optimal.block_exponents[0]) <= 1, "not a neighbour");
        better += block_error(&mse, x, 0, 32) < allowed * 0.999;
    }
    /* 1.2 % of normal blocks. */
    cr_expect_gt(better, ROUNDS / 20u, "MSE changed only %u of %d blocks", better, ROUNDS * 10);
}

/* Least squared error of one block of 16 at multiplier m, codes free. */
static double int4p_least_error(const float *x, uint32_t count, int32_t exponent, int32_t m)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        double y = ldexp((double)x[i], -exponent);
        double q = fmin(fmax(nearbyint(y / m), -7.0), 7.0);
        sum += (y - q * m) * (y - q * m);
    }
    return sum;
}

Test(oracle_quantize, int4p_is_optimal_among_its_candidates)
{
    uint64_t seed = 14;
    float x[ORACLE_DIM_MAX];
    oracle_vector v;
    uint32_t blocks = 0;
    uint32_t beaten = 0;

    for (uint32_t n = 0; n < ROUNDS * COUNT(dims); n++) {
        uint32_t dim = dims[n % COUNT(dims)];
        random_input(&seed, dim, x);
        oracle_quantize(NBL_INT4P, 0, x, dim, &v, NULL);
        check_vector_exponent(&v, largest(x, 0, dim, dim), 112.0);
        for (uint32_t b = 0; b < dim / 16u; b++) {
            double amax = ldexp(largest(x, b * 16u, b * 16u + 16u, dim), -v.exponent);
            int32_t m0 = amax > 112.0 ? 16 : amax <= 7.0 ? 1 : (int32_t)ceil(amax / 7.0);
            double error = ldexp(block_error(&v, x, b * 16u, b * 16u + 16u), -2 * v.exponent);
            double best = error;
            cr_assert(abs(v.block_multipliers[b] - m0) <= 1, "m = %u is no candidate of %d", v.block_multipliers[b],
                      m0);
            for (int32_t m = 1; m <= 16; m++) {
                double other = int4p_least_error(x + b * 16u, 16, v.exponent, m);
                cr_assert(abs(m - m0) > 1 || error <= other * (1.0 + 1e-5) + 1e-9, "m = %d beats %u: %g, %g", m,
                          v.block_multipliers[b], other, error);
                best = fmin(best, other);
            }
            blocks++;
            beaten += best < error * 0.999;
        }
    }
    cr_log_info("a multiplier outside the three candidates is better in %u of %u blocks", beaten, blocks);
}

Test(oracle_quantize, every_code_stays_inside_its_format)
{
    const int32_t limits[5] = {0, 127, 96, 96, 112};
    uint64_t seed = 15;
    float x[ORACLE_DIM_MAX];
    oracle_vector v;

    for (uint32_t n = 0; n < ROUNDS * 4u; n++) {
        uint32_t format = 1u + n % 4u;
        random_input(&seed, 128, x);
        x[n % 128u] = n % 3u ? LIMIT : x[n % 128u];
        oracle_hadamard(x, 128, n % 5u ? 128 : 0);
        oracle_quantize(format, rules[n % COUNT(rules)], x, 128, &v, NULL);
        for (uint32_t d = 0; d < v.padded_dim; d++) {
            cr_assert(abs(v.codes[d]) <= limits[format], "format %u: code %d", format, v.codes[d]);
        }
    }
    /* NUM 5.3 and 5.4: the largest sums these codes allow. */
    cr_expect_lt(576 * 127 * 127, 1 << 24, "I");
    cr_expect_lt(128 * 255 * 127, 1 << 22, "A");
}

static void expect_zero_vector(const oracle_vector *v)
{
    static const int8_t zeros[ORACLE_DIM_MAX];
    cr_expect_eq(v->exponent, -40, "format %u: E = %d", v->format, v->exponent);
    cr_expect(memcmp(v->codes, zeros, sizeof zeros) == 0, "format %u: codes are zero", v->format);
    for (uint32_t b = 0; b < v->padded_dim / oracle_block_size(v->format, v->padded_dim); b++) {
        cr_expect(v->format != NBL_INT4P || v->block_multipliers[b] == 1, "m = 1");
        cr_expect(v->format == NBL_INT4P || v->format == NBL_INT8 || v->block_exponents[b] == -39, "e_b = -39");
    }
}

Test(oracle_quantize, zeros_and_flushed_vectors)
{
    for (uint32_t format = NBL_INT8; format <= NBL_INT4P; format++) {
        float x[72] = {0};
        nbl_quant_stats stats = {0};
        oracle_vector v;
        x[3] = -0.0f;
        oracle_quantize(format, NBL_RULE_MSE, x, 72, &v, &stats);
        expect_zero_vector(&v);
        cr_expect_eq(stats.flushed, 0u, "zeros are not flushed");
        x[3] = -0x1p-149f;
        x[70] = 0x1p-130f;
        oracle_quantize(format, NBL_RULE_MSE, x, 72, &v, &stats);
        expect_zero_vector(&v);
        cr_expect_eq(stats.flushed, 1u, "format %u: a subnormal vector is flushed", format);
        x[70] = 0x1p-38f;
        oracle_quantize(format, NBL_RULE_MSE, x, 72, &v, &stats);
        cr_expect_neq(v.codes[70], 0, "format %u: 2^-38 is not", format);
        cr_expect_eq(stats.flushed, 1u, "format %u: 2^-38 is not", format);
    }
}

Test(oracle_quantize, sanitize_counts)
{
    float x[8] = {NAN, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, LIMIT, -LIMIT, 1.0f};
    const float expected[8] = {0.0f, LIMIT, -LIMIT, LIMIT, -LIMIT, LIMIT, -LIMIT, 1.0f};
    nbl_quant_stats stats = {0};

    oracle_sanitize(x, 8, &stats);
    cr_expect(memcmp(x, expected, sizeof x) == 0, "NUM 3.1");
    cr_expect_eq(stats.nan_inputs, 1u, "nan_inputs");
    cr_expect_eq(stats.inf_inputs, 2u, "inf_inputs");
    cr_expect_eq(stats.saturated, 2u, "saturated");
    cr_expect_eq(stats.vectors, 0u, "vectors are counted by append");
}

Test(oracle_quantize, clamped_codes_are_counted)
{
    const uint64_t expected[5] = {0, 0, 2, 2, 2};
    for (uint32_t format = NBL_INT8; format <= NBL_INT4P; format++) {
        float x[32] = {LIMIT, -LIMIT, 1.0f};
        nbl_quant_stats stats = {0};
        oracle_vector v;
        oracle_quantize(format, NBL_RULE_OPTIMAL, x, 32, &v, &stats);
        cr_expect_eq(stats.saturated, expected[format], "format %u: %llu", format, (unsigned long long)stats.saturated);
        cr_expect_eq(v.codes[0], -v.codes[1], "format %u clamps both ways", format);
    }
}

Test(oracle_quantize, e2m1_counts_only_above_six)
{
    float x[32] = {7.0f, 6.5f, 6.0f, 5.5f, 5.0f};
    nbl_quant_stats stats = {0};
    oracle_vector v;

    oracle_quantize(NBL_MXFP4, NBL_RULE_OPTIMAL, x, 32, &v, &stats);
    cr_expect_eq(v.block_exponents[0], 0, "7 fits e = 0 of OPTIMAL");
    cr_expect_eq(stats.saturated, 2u, "7 and 6.5 count, 6 and 5.5 do not");
    cr_expect(v.elements[3] == 7u && v.elements[4] == 6u, "5.5 becomes 6, the tie 5 becomes 4");
}

Test(oracle_quantize, hadamard_is_its_own_inverse_up_to_scale)
{
    uint64_t seed = 16;
    for (uint32_t block = 8; block <= 256; block *= 2) {
        float x[512];
        float y[512];
        for (uint32_t d = 0; d < 512; d++) {
            x[d] = (float)((int)(support_random(&seed) % 2001u) - 1000);
        }
        memcpy(y, x, sizeof y);
        oracle_hadamard(y, 512, block);
        for (uint32_t i = 0; i < block; i++) {
            double sum = 0.0;
            for (uint32_t j = 0; j < block; j++) {
                sum += (__builtin_popcount(i & j) % 2 ? -1.0 : 1.0) * (double)x[block + j];
            }
            cr_assert(block == 256 || sum == (double)y[block + i], "row %u of the matrix of %u", i, block);
        }
        oracle_hadamard(y, 512, block);
        oracle_hadamard_scale(y, 512, block);
        cr_expect(memcmp(x, y, sizeof y) == 0, "integers come back, block %u", block);
    }
}

Test(oracle_quantize, hadamard_and_quantizing_commute_with_powers_of_two)
{
    uint64_t seed = 17;
    for (uint32_t format = NBL_INT8; format <= NBL_INT4P; format++) {
        float x[128];
        float scaled[128];
        oracle_vector a;
        oracle_vector b;
        for (uint32_t d = 0; d < 128; d++) {
            x[d] = support_normal(&seed);
            scaled[d] = x[d] * 0x1p9f;
        }
        oracle_hadamard(x, 128, 64);
        oracle_hadamard(scaled, 128, 64);
        oracle_quantize(format, NBL_RULE_MSE, x, 128, &a, NULL);
        oracle_quantize(format, NBL_RULE_MSE, scaled, 128, &b, NULL);
        cr_expect(memcmp(a.codes, b.codes, 128) == 0, "format %u: codes do not depend on a power of two", format);
        cr_expect_eq(b.exponent, a.exponent + 9, "format %u: the exponent carries it", format);
    }
}

Test(oracle_quantize, query_forms)
{
    uint64_t seed = 18;
    float x[72];
    oracle_vector q;
    oracle_vector expected;

    for (uint32_t d = 0; d < 72; d++) {
        x[d] = support_normal(&seed);
    }
    oracle_quantize_query(NBL_Q_DEFAULT, x, 72, &q);
    oracle_quantize(NBL_INT8, 0, x, 72, &expected, NULL);
    cr_expect(memcmp(&q, &expected, sizeof q) == 0, "the default is q8 (NUM 3.6)");
    oracle_quantize_query(NBL_Q4, x, 72, &q);
    oracle_quantize(NBL_MXFP4, NBL_RULE_OPTIMAL, x, 72, &expected, NULL);
    cr_expect(memcmp(&q, &expected, sizeof q) == 0, "q4 is mxfp4 (NUM 3.6)");
}
