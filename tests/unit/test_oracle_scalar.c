/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's conversions and scalar functions against golden files and libm (NUM 1, 5.4, 5.5). */
#include "test_oracle_support.h"

#define GRID_STEPS (126 * 256)

Test(oracle_golden, e2m1_decodes_all_codes)
{
    uint32_t count;
    golden_row *rows = support_golden("e2m1_decode.txt", &count);
    cr_assert_eq(count, 16u, "16 codes, not %u", count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t bits = oracle_bits_from_f32(oracle_e2m1_value(rows[i].input));
        cr_expect_eq(bits, rows[i].output, "code %x: %08x, not %08x", rows[i].input, bits, rows[i].output);
    }
    free(rows);
}

Test(oracle_golden, e2m1_encodes)
{
    uint32_t count;
    golden_row *rows = support_golden("e2m1_encode.txt", &count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t expected = rows[i].output == 8u ? 0u : rows[i].output; /* NUM 2.6: never negative zero */
        uint32_t code = oracle_e2m1_code((double)oracle_f32_from_bits(rows[i].input));
        cr_expect_eq(code, expected, "bits %08x: code %x, not %x", rows[i].input, code, expected);
    }
    free(rows);
}

Test(oracle_golden, e8m0_is_the_exponent_byte)
{
    uint32_t count;
    golden_row *rows = support_golden("e8m0_decode.txt", &count);
    cr_assert_eq(count, 256u, "256 codes, not %u", count);
    for (uint32_t i = 0; i < count; i++) {
        int32_t exponent = (int32_t)rows[i].input - 127;
        if (exponent >= ORACLE_EXPONENT_MIN && exponent <= ORACLE_EXPONENT_MAX) {
            oracle_vector one = {.format = NBL_INT8, .dim = 1, .padded_dim = 32, .exponent = exponent, .elements = {1}};
            float x;
            oracle_canonical(&one);
            oracle_decode(&one, &x);
            cr_expect_eq(oracle_bits_from_f32(x), rows[i].output, "byte %02x", rows[i].input);
        }
    }
    free(rows);
}

/* Values of all codes that are numbers, and the nearest code of every number in the list (NaN does not reach it). */
Test(oracle_golden, e4m3_decode_and_encode)
{
    uint32_t count;
    golden_row *rows = support_golden("e4m3_decode.txt", &count);
    for (uint32_t i = 0; i < count; i++) {
        if ((rows[i].input & 0x7Fu) != 0x7Fu)
            cr_expect_eq(oracle_bits_from_f32(oracle_e4m3_value(rows[i].input)), rows[i].output, "%x", rows[i].input);
    }
    free(rows);
    rows = support_golden("e4m3_encode.txt", &count);
    for (uint32_t i = 0; i < count; i++) {
        oracle_vector v = {.format = NBL_FP8_E4M3, .dim = 1, .padded_dim = 32};
        uint64_t saturated = 0;
        float x = oracle_f32_from_bits(rows[i].input);
        uint32_t wanted = (rows[i].output & 0x7Fu) == 0 ? 0 : rows[i].output; /* NUM 6.1: never negative zero, */
        wanted -= (wanted & 0x7Fu) == 0x7Fu;                                  /* and 448 instead of NaN */
        if (isnan(x) || isinf(x))
            continue; /* NUM 3.1 lets neither pass */
        oracle_quantize_float(0, &x, &v, &saturated);
        cr_expect_eq(v.elements[0], wanted, "%08x: %02x, not %02x", rows[i].input, v.elements[0], wanted);
        cr_expect_eq(saturated, fabsf(x) > 464.0f, "%08x: counted", rows[i].input);
    }
    free(rows);
}

Test(oracle_golden, halves_decode_and_encode)
{
    static const char *const names[4] = {"bf16_decode.txt", "bf16_encode.txt", "f16_decode.txt", "f16_encode.txt"};
    for (uint32_t file = 0; file < 4; file++) {
        uint32_t count;
        golden_row *rows = support_golden(names[file], &count);
        for (uint32_t i = 0; i < count; i++) {
            uint32_t in = rows[i].input;
            float x = oracle_f32_from_bits(in);
            uint32_t out = file == 0   ? oracle_bits_from_f32(oracle_f32_from_bf16((uint16_t)in))
                           : file == 1 ? oracle_bf16_from_f32(x)
                           : file == 2 ? oracle_bits_from_f32(oracle_f32_from_f16((uint16_t)in))
                                       : oracle_f16_from_f32(x);
            cr_expect_eq(out, rows[i].output, "%s: %x: %x, not %x", names[file], in, out, rows[i].output);
        }
        free(rows);
    }
}

Test(oracle_golden, exp2_table)
{
    uint32_t count;
    golden_row *rows = support_golden("exp2_table.txt", &count);
    cr_assert_eq(count, 256u, "256 entries, not %u", count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t bits = oracle_bits_from_f32(oracle_exp2_grid(rows[i].input));
        cr_expect_eq(bits, rows[i].output, "2^(%u/256): %08x, not %08x", i, bits, rows[i].output);
        for (int64_t n = -126; n < 32; n++) {
            float scaled = ldexpf(oracle_f32_from_bits(rows[i].output), (int)n);
            cr_expect_eq(oracle_exp2_grid(n * 256 + i), scaled, "2^(%lld + %u/256)", (long long)n, i);
        }
    }
    free(rows);
}

Test(oracle_scalar, halves_survive_a_round_trip)
{
    for (uint32_t code = 0; code < 65536u; code++) {
        float half = oracle_f32_from_f16((uint16_t)code);
        float brain = oracle_f32_from_bf16((uint16_t)code);
        if (!isnan(half)) {
            cr_expect_eq(oracle_f16_from_f32(half), code, "binary16 %04x", code);
        }
        if (!isnan(brain)) {
            cr_expect_eq(oracle_bf16_from_f32(brain), code, "bfloat16 %04x", code);
        }
    }
    cr_expect(isnan(oracle_f32_from_f16(oracle_f16_from_f32(NAN))), "NaN stays NaN through binary16");
    cr_expect(isnan(oracle_f32_from_bf16(oracle_bf16_from_f32(NAN))), "NaN stays NaN through bfloat16");
}

Test(oracle_scalar, exp2p_is_within_its_bound)
{
    double worst = 0.0;
    for (int i = 0; i <= 126 * 4096; i++) {
        float x = -(float)i / 4096.0f;
        double exact = exp2((double)x);
        worst = fmax(worst, fabs((double)oracle_exp2p(x) - exact) / exact);
    }
    cr_expect_lt(worst, 0x1p-23, "NUM 1.5: relative error %g", worst);
    cr_expect_eq(oracle_exp2p(-126.01f), 0.0f, "below -126");
    cr_expect_eq(oracle_exp2p(-INFINITY), 0.0f, "minus infinity");
    cr_expect_eq(oracle_exp2p(0.0f), 1.0f, "zero");
}

Test(oracle_scalar, log2p_and_tanhp_are_close)
{
    uint64_t seed = 1;
    for (int i = 0; i < 200000; i++) {
        float x = (float)exp2(support_uniform(&seed) * 250.0 - 125.0);
        double exact = log2((double)x);
        float t = (float)(support_uniform(&seed) * 40.0 - 20.0);
        cr_expect_lt(fabs((double)oracle_log2p(x) - exact), 0x1p-23 * fmax(1.0, fabs(exact)), "log2p(%a)", (double)x);
        cr_expect_lt(fabs((double)oracle_tanhp(t) - tanh((double)t)), 0x1p-22, "tanhp(%a)", (double)t);
    }
    cr_expect_eq(oracle_bits_from_f32(oracle_log2p(1.0f)), 0u, "log2p(1) is +0");
    cr_expect_eq(oracle_tanhp(1e30f), 1.0f, "tanhp saturates");
    cr_expect_eq(oracle_tanhp(-INFINITY), -1.0f, "tanhp saturates");
}

Test(oracle_scalar, tree_adds_in_the_written_order)
{
    const float s[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    float big[16] = {0};
    cr_expect_eq(oracle_tree(s), 136.0f, "sum of 1..16");
    big[0] = 0x1p24f;
    big[8] = 1.0f; /* lost: added to s_0 first, a tie to even */
    big[1] = 1.0f; /* lost as well: next */
    cr_expect_eq(oracle_tree(big), 0x1p24f, "pairs (0, 8), then (0, 1)");
    big[8] = 0.0f;
    big[9] = 1.0f; /* kept: joins s_1 first */
    cr_expect_eq(oracle_tree(big), 0x1p24f + 2.0f, "pairs (1, 9), then (0, 1)");
}

/* NUM 5.5: how near the grid comes to a rounding tie. */
Test(oracle_scalar, no_grid_point_is_near_a_tie)
{
    long double nearest_int = 1.0L;
    long double nearest_bf16 = 1.0L;
    for (int k = 0; k <= GRID_STEPS; k++) {
        long double p = exp2l(-(long double)k / 256.0L);
        long double scaled = 254.953125L * p;
        int exponent;
        long double mantissa = frexpl(p, &exponent) * 256.0L;
        long double int_gap = fabsl(scaled - (floorl(scaled) + 0.5L)) / scaled;
        long double bf16_gap = fabsl(mantissa - (floorl(mantissa) + 0.5L)) / mantissa;
        if (scaled > 0.45L) {
            nearest_int = fminl(nearest_int, int_gap);
        }
        if (k % 256 != 0) {
            nearest_bf16 = fminl(nearest_bf16, bf16_gap);
        }
    }
    cr_log_info("nearest ties: 2^%.3Lf to an integer, 2^%.3Lf to bf16", log2l(nearest_int), log2l(nearest_bf16));
    cr_expect_gt(nearest_int, exp2l(-15.51L), "C*p: 2^%.3Lf", log2l(nearest_int));
    cr_expect_gt(nearest_bf16, exp2l(-15.4L), "p to bf16: 2^%.3Lf", log2l(nearest_bf16));
}

Test(oracle_scalar, weights_are_the_rounded_powers)
{
    cr_expect_eq(oracle_weight_int(0), 255, "P of k = 0");
    cr_expect_eq(oracle_weight_bf16(0), 1.0f, "q of k = 0");
    cr_expect_eq(oracle_weight_int(256 * 9), 0, "0.498 rounds to 0");
    cr_expect_eq(oracle_weight_bf16(GRID_STEPS), 0x1p-126f, "last step");
    cr_expect_eq(oracle_weight_bf16(GRID_STEPS + 1), 0.0f, "past the last step");
    for (int k = 0; k <= GRID_STEPS; k++) {
        double p = exp2(-k / 256.0);
        double q = (double)oracle_weight_bf16(k);
        cr_expect_leq(fabs(254.953125 * p - oracle_weight_int(k)), 0.5, "P of k = %d", k);
        cr_expect_leq(fabs(q - p) / p, 0x1p-8, "q of k = %d", k);
        cr_expect_eq(oracle_bits_from_f32((float)q) & 0xFFFFu, 0u, "q of k = %d has 8 bits", k);
    }
}
