/* SPDX-License-Identifier: Apache-2.0 */
/* Powers, logarithms and sums of core/num against golden files, the oracle and long double (NUM 1, 5.4, 5.5). */
#include "exp2grid.h"
#include "rowsum.h"
#include "test_num_data.h"

#define GRID_STEPS (126 * 256)
#define SWEEP_STEP 1021u /* primes */
#define DENSE_STEP 31u
#define EXPECT_BITS(x, expected, ...)                                       \
    do {                                                                    \
        uint32_t bits_ = nbl_bits_of(x), expected_ = nbl_bits_of(expected); \
        cr_assert_eq(bits_, expected_, __VA_ARGS__);                        \
    } while (0)

/* NUM 1.3. */
Test(num_scalar, constants_have_the_written_bits)
{
    cr_expect_eq(nbl_bits_of(NBL_LOG2E), 0x3fb8aa3bu, "LOG2E");
    cr_expect_eq(nbl_bits_of(NBL_LN2), 0x3f317218u, "LN2");
    cr_expect_eq(nbl_bits_of(NBL_P_SCALE), 0x437ef400u, "C");
    cr_expect_eq(NBL_GRID, 49152.0f, "GRID");
    cr_expect_eq(NBL_REBASE, 32.0f, "REBASE");
    cr_expect_eq(NBL_LOGIT_MAX, 4194304.0f, "Z_MAX");
    cr_expect_eq(nextafterf(NBL_GRID, INFINITY) - NBL_GRID, 1.0f / 256.0f, "the grid has steps of 1/256");
}

/* NUM 1.2. */
Test(num_scalar, pow2_is_exact_and_ends_at_the_normal_numbers)
{
    for (int32_t n = -1000; n <= 127; n++) {
        float expected = n < -126 ? 0.0f : ldexpf(1.0f, n);
        EXPECT_BITS(nbl_pow2(n), expected, "2^%d is %a", n, (double)nbl_pow2(n));
        EXPECT_BITS(nbl_pow2f((float)n), expected, "2^%d is %a", n, (double)nbl_pow2f((float)n));
    }
    EXPECT_BITS(nbl_pow2f(-8388608.0f), 0.0f, "2^-2^23 is 0");
    EXPECT_BITS(nbl_pow2f(-INFINITY), 0.0f, "2^-inf is 0");
}

/* NUM 1.1. */
Test(num_scalar, rounding_goes_to_even_and_ceil_to_positive_zero)
{
    static const float x[] = {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 0.49999997f, 8388607.5f, 126.5f, 1e30f};
    static const float rounded[] = {0.0f, 2.0f, 2.0f, -0.0f, -2.0f, -2.0f, 0.0f, 8388608.0f, 126.0f, 1e30f};
    static const float up[] = {1.0f, 2.0f, 3.0f, 0.0f, -1.0f, -2.0f, 1.0f, 8388608.0f, 127.0f, 1e30f};
    for (uint32_t i = 0; i < COUNT(x); i++) {
        EXPECT_BITS(nbl_round(x[i]), rounded[i], "RNE_int(%a) is %a", (double)x[i], (double)nbl_round(x[i]));
        EXPECT_BITS(nbl_ceil(x[i]), up[i], "ceil(%a) is %a", (double)x[i], (double)nbl_ceil(x[i]));
    }
    EXPECT_BITS(nbl_ceil(-0.0f), 0.0f, "ceil(-0) is +0");
    EXPECT_BITS(nbl_ceil(-0x1p-149f), 0.0f, "ceil of a negative subnormal is +0");
}

Test(num_scalar, exponents_and_clamps)
{
    for (int32_t n = -126; n <= 127; n++) {
        float x = ldexpf(1.0f, n);
        float below_next = nbl_float_of(nbl_bits_of(x) | 0x7fffffu);
        cr_expect_eq(nbl_exponent_of(-x), n, "2^%d", n);
        cr_expect_eq(nbl_exponent_of(below_next), n, "just below 2^%d", n + 1);
    }
    cr_expect_eq(nbl_clamp_i32(-41, -40, 40), -40, "below");
    cr_expect_eq(nbl_clamp_i32(41, -40, 40), 40, "above");
    cr_expect_eq(nbl_clamp_i32(7, -40, 40), 7, "inside");
    cr_expect_eq(nbl_clamp_f32(-8.0f, -7.0f, 7.0f), -7.0f, "below");
    cr_expect_eq(nbl_clamp_f32(8.0f, -7.0f, 7.0f), 7.0f, "above");
    cr_expect_eq(nbl_clamp_f32(-7.0f, -7.0f, 7.0f), -7.0f, "at the end");
}

/* NUM 1.5: byte-equal with the oracle, relative error below 2^-23. */
Test(num_scalar, exp2p_is_the_written_polynomial_within_its_bound)
{
    long double worst = 0.0L;
    /* -0 to -126; denser from -1/8 on, where every coefficient counts */
    for (uint32_t bits = 0x80000000u; bits <= 0xc2fc0000u; bits += bits < 0xbe000000u ? SWEEP_STEP : DENSE_STEP) {
        float x = nbl_float_of(bits);
        float y = nbl_exp2p(x);
        long double exact = exp2l((long double)x);
        EXPECT_BITS(y, oracle_exp2p(x), "exp2p(%a) is %a, not %a", (double)x, (double)y, (double)oracle_exp2p(x));
        worst = fmaxl(worst, fabsl((long double)y - exact) / exact);
    }
    cr_log_info("exp2p: relative error up to 2^%.3Lf", log2l(worst));
    cr_expect_lt(worst, 0x1p-23L, "relative error 2^%.3Lf", log2l(worst));
}

/* NUM 1.5. */
Test(num_scalar, exp2p_at_its_ends)
{
    EXPECT_BITS(nbl_exp2p(0.0f), 1.0f, "exp2p(0)");
    EXPECT_BITS(nbl_exp2p(-0.0f), 1.0f, "exp2p(-0)");
    EXPECT_BITS(nbl_exp2p(-126.0f), 0x1p-126f, "exp2p(-126)");
    EXPECT_BITS(nbl_exp2p(nextafterf(-126.0f, -127.0f)), 0.0f, "exp2p below -126");
    EXPECT_BITS(nbl_exp2p(-8388608.0f), 0.0f, "exp2p(-2^23)");
    EXPECT_BITS(nbl_exp2p(-INFINITY), 0.0f, "exp2p(-inf)");
    for (int32_t n = -126; n <= 0; n++) {
        EXPECT_BITS(nbl_exp2p((float)n), ldexpf(1.0f, n), "exp2p(%d) is exact", n);
    }
}

/* NUM 1.5: found by search: where one step of the least coefficient changes the result. */
Test(num_scalar, exp2p_where_its_least_coefficient_counts)
{
    static const float x[] = {-0x1.69e8b2p-2f, -0x1.74991p-2f, -0x1.c62578p-2f};
    for (uint32_t i = 0; i < COUNT(x); i++) {
        EXPECT_BITS(nbl_exp2p(x[i]), oracle_exp2p(x[i]), "exp2p(%a) is %a", (double)x[i], (double)nbl_exp2p(x[i]));
    }
}

/* NUM 1.6: byte-equal with the oracle; within 2^-23 of max(1, |log2 x|), and near 1 relatively close as well. */
Test(num_scalar, log2p_is_the_written_polynomial_within_its_bound)
{
    long double worst = 0.0L;
    long double worst_near_1 = 0.0L;
    for (uint32_t bits = 0x00800000u; bits < 0x7f800000u; bits += SWEEP_STEP) {
        float x = nbl_float_of(bits);
        float y = nbl_log2p(x);
        long double exact = log2l((long double)x);
        long double error = fabsl((long double)y - exact);
        EXPECT_BITS(y, oracle_log2p(x), "log2p(%a) is %a, not %a", (double)x, (double)y, (double)oracle_log2p(x));
        worst = fmaxl(worst, error / fmaxl(1.0L, fabsl(exact)));
        if (x > 0.71f && x < 1.41f && x != 1.0f) {
            worst_near_1 = fmaxl(worst_near_1, error / fabsl(exact));
        }
    }
    cr_log_info("log2p: error up to 2^%.3Lf, near 1 2^%.3Lf", log2l(worst), log2l(worst_near_1));
    cr_expect_lt(worst, 0x1p-23L, "error 2^%.3Lf", log2l(worst));
    cr_expect_lt(worst_near_1, 0x1p-21L, "relative error near 1 2^%.3Lf", log2l(worst_near_1));
}

/* NUM 1.6: one binade, densely enough for every coefficient to count. */
Test(num_scalar, log2p_of_one_binade)
{
    for (uint32_t bits = 0x3f3504f3u; bits < 0x3fb50500u; bits += 3u) {
        float x = nbl_float_of(bits);
        EXPECT_BITS(nbl_log2p(x), oracle_log2p(x), "log2p(%a) is %a, not %a", (double)x, (double)nbl_log2p(x),
                    (double)oracle_log2p(x));
    }
}

/* NUM 1.6. */
Test(num_scalar, log2p_of_powers_of_two_and_around_the_square_root)
{
    for (int32_t n = -126; n <= 127; n++) {
        EXPECT_BITS(nbl_log2p(ldexpf(1.0f, n)), (float)n, "log2p(2^%d)", n);
        for (uint32_t step = 0; step < 4u; step++) {
            float x = ldexpf(nbl_float_of(0x3fb504f2u + step), n);
            EXPECT_BITS(nbl_log2p(x), oracle_log2p(x), "log2p(%a)", (double)x);
        }
    }
}

/* NUM 1.7: byte-equal with the oracle, odd, within 2^-22. */
Test(num_scalar, tanhp_is_the_written_formula_within_its_bound)
{
    long double worst = 0.0L;
    for (uint32_t bits = 0; bits <= 0x7f800000u; bits += SWEEP_STEP) {
        float x = nbl_float_of(bits);
        float y = nbl_tanhp(x);
        EXPECT_BITS(y, oracle_tanhp(x), "tanhp(%a) is %a, not %a", (double)x, (double)y, (double)oracle_tanhp(x));
        EXPECT_BITS(nbl_tanhp(-x), -y, "tanhp(%a) is not odd", (double)x);
        worst = fmaxl(worst, fabsl((long double)y - tanhl((long double)x)));
    }
    cr_log_info("tanhp: error up to 2^%.3Lf", log2l(worst));
    cr_expect_lt(worst, 0x1p-22L, "error 2^%.3Lf", log2l(worst));
    EXPECT_BITS(nbl_tanhp(0.0f), 0.0f, "tanhp(0)");
    EXPECT_BITS(nbl_tanhp(-0.0f), -0.0f, "tanhp(-0)");
    EXPECT_BITS(nbl_tanhp(INFINITY), 1.0f, "tanhp(inf)");
}

/* NUM 5.5. */
Test(num_scalar, exp2_table_is_the_golden_one)
{
    uint32_t count;
    golden_row *rows = support_golden("exp2_table.txt", &count);
    cr_assert_eq(count, 256u, "256 entries, not %u", count);
    for (uint32_t i = 0; i < count; i++) {
        cr_expect_eq(rows[i].input, i, "row %u is entry %u", i, rows[i].input);
        cr_expect_eq(nbl_exp2_table[i], rows[i].output, "2^(%u/256): %08x, not %08x", i, nbl_exp2_table[i],
                     rows[i].output);
    }
    free(rows);
}

/* NUM 5.4: b at every argument it may have. */
Test(num_scalar, base_weights_are_rounded_powers_at_every_exponent)
{
    for (int32_t i = -126 * 256; i <= 127 * 256; i++) {
        float x = (float)i / 256.0f;
        float b = nbl_grid_base(x);
        EXPECT_BITS(b, oracle_exp2_grid(i), "b of %a is %a, not %a", (double)x, (double)b, (double)oracle_exp2_grid(i));
    }
}

static void check_weight(int64_t k)
{
    float p = nbl_grid_exp2(-(float)k / 256.0f);
    cr_assert_eq(nbl_grid_weight(p), (uint32_t)oracle_weight_int(k), "P of k = %lld is %u, not %d", (long long)k,
                 nbl_grid_weight(p), oracle_weight_int(k));
    EXPECT_BITS(nbl_grid_q(p), oracle_weight_bf16(k), "q of k = %lld is %a, not %a", (long long)k,
                (double)nbl_grid_q(p), (double)oracle_weight_bf16(k));
}

/* NUM 5.4, 5.5: every point of the grid, and beyond its end. */
Test(num_scalar, weights_of_every_grid_point)
{
    for (int64_t k = 0; k <= GRID_STEPS + 4096; k++) {
        check_weight(k);
    }
    for (int64_t k = GRID_STEPS + 4096; k < 1 << 24; k += 4093) {
        check_weight(k);
    }
    EXPECT_BITS(nbl_grid_exp2(-INFINITY), 0.0f, "2^-inf");
    cr_expect_eq(nbl_grid_weight(0.0f), 0u, "P of 0");
    EXPECT_BITS(nbl_grid_q(0.0f), 0.0f, "q of 0");
}

/* NUM 5.4: the two roundings themselves, for any p and not only those of the grid. */
Test(num_scalar, weights_are_rounded_to_nearest_even)
{
    static const uint32_t tails[] = {0x0000, 0x0001, 0x7fff, 0x8000, 0x8001, 0xffff};
    for (uint32_t i = 0; i <= 0x3f7fu * COUNT(tails); i++) {
        uint32_t bits = (i / COUNT(tails)) << 16 | tails[i % COUNT(tails)];
        float p = nbl_float_of(bits);
        EXPECT_BITS(nbl_grid_q(p), oracle_f32_from_bf16(oracle_bf16_from_f32(p)), "q of %a is %a", (double)p,
                    (double)nbl_grid_q(p));
    }
    for (uint32_t bits = 0x3a800000u; bits <= 0x3f800000u; bits += DENSE_STEP) {
        float p = nbl_float_of(bits);
        double exact = (double)NBL_P_SCALE * (double)p;
        cr_assert_eq((double)nbl_grid_weight(p), nearbyint(exact), "P of %a is %u", (double)p, nbl_grid_weight(p));
    }
}

/* NUM 5.5: any exp2 within 2^-16 yields P and q. */
Test(num_scalar, grid_polynomial_is_within_the_bound_that_rounding_needs)
{
    long double worst = 0.0L;
    for (int32_t k = 0; k <= GRID_STEPS; k++) {
        long double exact = exp2l(-(long double)k / 256.0L);
        worst = fmaxl(worst, fabsl((long double)nbl_grid_exp2(-(float)k / 256.0f) - exact) / exact);
    }
    cr_log_info("grid exp2: relative error up to 2^%.3Lf", log2l(worst));
    cr_expect_lt(worst, 0x1p-16L, "relative error 2^%.3Lf", log2l(worst));
}

/* NUM 5.4: the order of tree(s). */
Test(num_scalar, sum_tree_adds_in_the_written_order)
{
    uint64_t seed = 21;
    uint32_t differ = 0;
    for (uint32_t n = 0; n < 20000u; n++) {
        float s[NBL_PARTIAL_SUMS];
        float sequential = 0.0f;
        for (uint32_t i = 0; i < NBL_PARTIAL_SUMS; i++) {
            s[i] = ldexpf(support_normal(&seed), (int)random_index(&seed, 20));
            sequential += s[i];
        }
        EXPECT_BITS(nbl_sum_tree(s), oracle_tree(s), "case %u: %a, not %a", n, (double)nbl_sum_tree(s),
                    (double)oracle_tree(s));
        differ += nbl_sum_tree(s) != sequential;
    }
    cr_expect_gt(differ, 5000u, "the order showed in %u of 20000 cases only", differ);
}

/* NUM 5.4: each pair of partial sums meets where the clause says. 2^24 + 1 rounds back; 1 + 1 first survives. */
Test(num_scalar, sum_tree_pairs_its_leaves)
{
    for (uint32_t a = 0; a < NBL_PARTIAL_SUMS; a++) {
        for (uint32_t b = a + 1u; b < NBL_PARTIAL_SUMS; b++) {
            for (uint32_t c = 0; c < NBL_PARTIAL_SUMS; c++) {
                float s[NBL_PARTIAL_SUMS] = {0};
                s[a] = s[b] = 1.0f;
                s[c] = c == a || c == b ? 1.0f : 0x1p24f;
                EXPECT_BITS(nbl_sum_tree(s), oracle_tree(s), "1 at %u and %u, 2^24 at %u", a, b, c);
            }
        }
    }
}
