/* SPDX-License-Identifier: Apache-2.0 */
/* The quantizers of core/num, byte for byte against the oracle (NUM 2, 3), and the reports about them. */
#include "quantize.h"
#include "test_num_data.h"

#include <float.h>
#include <xmmintrin.h>

#define ROUNDS 40u
#define FLUSH_TO_ZERO 0x8040u /* of results and of operands */

static const uint32_t dims[] = {16, 40, 72, 128, 576};
static const uint32_t formats[] = {NBL_INT8, NBL_MXFP4, NBL_MXFP4_16, NBL_INT4P};
static const uint32_t rules[] = {NBL_RULE_DEFAULT, NBL_RULE_OPTIMAL, NBL_RULE_FLOOR, NBL_RULE_CEIL, NBL_RULE_MSE};

static bool is_mxfp4(uint32_t format)
{
    return format == NBL_MXFP4 || format == NBL_MXFP4_16;
}

/* Scale bytes of a vector in plane order: those of a page of one token (F5). */
static void oracle_scales(const oracle_vector *v, uint8_t *scales)
{
    uint8_t codes[2 * ORACLE_DIM_MAX];
    nbl_kv_shape shape = NBL_INIT(nbl_kv_shape);
    shape.layers = 1;
    shape.kv_heads = 1;
    shape.k_dim = shape.v_dim = v->dim;
    shape.page_tokens = 1;
    oracle_page_write(&shape, v->format, v->format, codes, scales, ORACLE_K, 0, 0, v);
}

static void check_counts(const nbl_quant_stats *stats, const nbl_quant_stats *expected)
{
    cr_assert_eq(stats->saturated, expected->saturated, "saturated: %llu, not %llu",
                 (unsigned long long)stats->saturated, (unsigned long long)expected->saturated);
    cr_assert_eq(stats->flushed, expected->flushed, "flushed: %llu, not %llu", (unsigned long long)stats->flushed,
                 (unsigned long long)expected->flushed);
    cr_assert_eq(stats->vectors, 1u, "one vector counts as %llu", (unsigned long long)stats->vectors);
    cr_assert_eq(stats->nan_inputs + stats->inf_inputs, 0u, "NUM 3.3 counts no NaN and no infinity");
}

/* Quantizes with both, compares codes, scales, canonical form and counts, and hands on what came out. */
static oracle_vector check_vector(const float *x, uint32_t dim, uint32_t format, uint32_t rule)
{
    nbl_quant_stats stats = {0};
    nbl_quant_stats expected_stats = {0};
    nbl_vector v;
    oracle_vector expected;
    uint8_t scales[64];
    int8_t codes[NBL_DIM_PADDED_MAX];
    uint32_t padded = oracle_padded_dim(dim);

    oracle_quantize(format, rule, x, dim, &expected, &expected_stats);
    oracle_scales(&expected, scales);
    nbl_vector_quantize(x, dim, format, rule, &v, &stats);
    cr_assert(v.format == format && v.dim == dim, "format %u, D = %u", v.format, v.dim);
    cr_assert_arr_eq(v.codes, expected.elements, padded, "format %u, rule %u, D = %u: codes", format, rule, dim);
    cr_assert_arr_eq(v.scales, scales, oracle_scale_bytes(format, dim), "format %u, rule %u, D = %u: scales", format,
                     rule, dim);
    cr_assert_eq(nbl_vector_canonical(&v, codes), expected.exponent, "format %u, rule %u, D = %u: E", format, rule,
                 dim);
    cr_assert_arr_eq(codes, expected.codes, padded, "format %u, rule %u, D = %u: canonical codes", format, rule, dim);
    check_counts(&stats, &expected_stats);
    return expected;
}

static void check_formats_and_rules(const float *x, uint32_t dim)
{
    for (uint32_t f = 0; f < COUNT(formats); f++) {
        for (uint32_t r = 0; r < (is_mxfp4(formats[f]) ? COUNT(rules) : 1u); r++) {
            check_vector(x, dim, formats[f], rules[r]);
        }
    }
}

static void check_kind(uint32_t kind)
{
    uint64_t seed = 100u + kind;
    float x[ORACLE_DIM_MAX];
    for (uint32_t i = 0; i < COUNT(dims); i++) {
        for (uint32_t n = 0; n < ROUNDS; n++) {
            input_random(kind, &seed, x, dims[i]);
            check_formats_and_rules(x, dims[i]);
        }
    }
}

/* NUM 3.2, 3.4, 3.5: all formats, rules and dimensions on every kind of input. */
Test(num_quantize, normal_inputs)
{
    check_kind(INPUT_NORMAL);
}

Test(num_quantize, inputs_with_outliers)
{
    check_kind(INPUT_OUTLIERS);
    check_kind(INPUT_BLOCKS);
}

Test(num_quantize, inputs_on_ties)
{
    check_kind(INPUT_TIES);
}

Test(num_quantize, sparse_and_zero_inputs)
{
    check_kind(INPUT_SPARSE);
    check_kind(INPUT_ZERO);
}

Test(num_quantize, subnormal_and_tiny_inputs)
{
    check_kind(INPUT_SUBNORMAL);
    check_kind(INPUT_TINY);
}

Test(num_quantize, huge_inputs_and_random_bits)
{
    check_kind(INPUT_HUGE);
    check_kind(INPUT_BITS);
}

/* NUM 3.2, 3.4, 3.5: the largest magnitude at peak * 2^e and one step to either side, beyond both ends of the
 * exponents. */
Test(num_quantize, exponents_switch_exactly_at_their_peaks)
{
    static const float peaks[] = {127.0f, 112.0f, 7.25f, 6.0f, 4.0f};
    uint64_t seed = 31;
    float x[ORACLE_DIM_MAX];
    uint32_t n = 0;
    for (uint32_t p = 0; p < COUNT(peaks); p++) {
        for (int32_t e = -46; e <= 46; e++) {
            for (int32_t step = -1; step <= 1; step++, n++) {
                float amax = nbl_float_of(nbl_bits_of(ldexpf(peaks[p], e)) + (uint32_t)step);
                uint32_t dim = dims[n % 4u];
                amax = fminf(amax, NBL_INPUT_MAX);
                input_with_amax(amax, &seed, x, dim);
                check_formats_and_rules(x, dim);
            }
        }
    }
}

/* NUM 3.2: the choice itself, against a search over the whole range. */
Test(num_quantize, exponent_for_is_the_smallest_that_holds_the_peak)
{
    static const float peaks[] = {127.0f, 112.0f, 7.25f, 6.0f};
    for (uint32_t p = 0; p < COUNT(peaks); p++) {
        for (uint32_t bits = 0; bits < 0x5f000000u; bits += 65521u) {
            float amax = nbl_float_of(bits);
            int32_t e = -40;
            while (e < 40 && (double)amax > ldexp((double)peaks[p], e)) {
                e++;
            }
            cr_assert_eq(nbl_exponent_for(amax, peaks[p], -40, 40), e, "amax %a, peak %g: %d, not %d", (double)amax,
                         (double)peaks[p], nbl_exponent_for(amax, peaks[p], -40, 40), e);
        }
    }
}

static void check_sanitize(float x)
{
    nbl_quant_stats stats = {0};
    nbl_quant_stats expected_stats = {0};
    float expected = x;
    float out = nbl_sanitize(x, &stats);
    oracle_sanitize(&expected, 1, &expected_stats);
    cr_assert_eq(nbl_bits_of(out), nbl_bits_of(expected), "%a becomes %a, not %a", (double)x, (double)out,
                 (double)expected);
    cr_assert_arr_eq(&stats, &expected_stats, sizeof stats, "counts of %a", (double)x);
}

/* NUM 3.1 with all its counters. */
Test(num_quantize, sanitize_brings_every_float_into_range)
{
    static const float edges[] = {NAN,  -NAN,  INFINITY, -INFINITY, FLT_MAX,    -FLT_MAX, NBL_INPUT_MAX, -NBL_INPUT_MAX,
                                  0.0f, -0.0f, FLT_MIN,  0x1p-149f, -0x1p-149f, 1.0f};
    for (uint32_t i = 0; i < COUNT(edges); i++) {
        check_sanitize(edges[i]);
    }
    for (int32_t step = -2; step <= 2; step++) {
        uint32_t bits = nbl_bits_of(NBL_INPUT_MAX) + (uint32_t)step;
        check_sanitize(nbl_float_of(bits));
        check_sanitize(nbl_float_of(bits | 0x80000000u));
    }
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 4093u) {
        check_sanitize(nbl_float_of((uint32_t)bits));
    }
}

/* NUM 3.1, 3.3: the counters add up, each apart. */
Test(num_quantize, counters_accumulate)
{
    const float in[] = {NAN, INFINITY, -INFINITY, FLT_MAX, -NAN, 1.0f, -FLT_MAX, -INFINITY, 0x1p47f};
    float x[16] = {0};
    nbl_quant_stats stats = {0};
    nbl_vector v;
    for (uint32_t i = 0; i < COUNT(in); i++) {
        x[i] = nbl_sanitize(in[i], &stats);
    }
    cr_expect_eq(stats.nan_inputs, 2u, "nan_inputs");
    cr_expect_eq(stats.inf_inputs, 3u, "inf_inputs");
    cr_expect_eq(stats.saturated, 3u, "finite numbers beyond X");
    nbl_vector_quantize(x, 16, NBL_INT4P, 0, &v, &stats);
    cr_expect_eq(stats.saturated, 9u, "and the six codes clamped at +-X: %llu", (unsigned long long)stats.saturated);
    nbl_vector_quantize(x + 9, 7, NBL_INT8, 0, &v, &stats);
    cr_expect_eq(stats.vectors, 2u, "vectors");
    cr_expect_eq(stats.flushed, 0u, "zeros are not flushed");
}

static void check_limits(const oracle_vector *v)
{
    static const int32_t limits[] = {[NBL_INT8] = 127, [NBL_MXFP4] = 96, [NBL_MXFP4_16] = 96, [NBL_INT4P] = 112};
    uint32_t blocks = v->padded_dim / oracle_block_size(v->format, v->padded_dim);
    int32_t least = 40;
    int32_t most = -39;
    for (uint32_t d = 0; d < v->padded_dim; d++) {
        cr_assert_leq(abs(v->codes[d]), limits[v->format], "format %u: code %d", v->format, v->codes[d]);
        cr_assert(!is_mxfp4(v->format) || v->elements[d] != 8u, "negative zero is stored");
        cr_assert(d < v->dim || v->codes[d] == 0, "element %u beyond D is %d", d, v->codes[d]);
    }
    for (uint32_t b = 0; is_mxfp4(v->format) && b < blocks; b++) {
        least = v->block_exponents[b] < least ? v->block_exponents[b] : least;
        most = v->block_exponents[b] > most ? v->block_exponents[b] : most;
    }
    cr_assert(!is_mxfp4(v->format) || (most - least <= 3 && least >= -39 && most <= 40), "e_b %d to %d", least, most);
    cr_assert(v->exponent >= -40 && v->exponent <= 40, "E = %d", v->exponent);
}

/* NUM 2.1, 2.2, 2.3, 2.4, 2.5: limits of codes and exponents, the spread rule, padding. */
Test(num_quantize, stored_vectors_obey_the_limits_of_their_format)
{
    uint64_t seed = 33;
    float x[ORACLE_DIM_MAX];
    for (uint32_t n = 0; n < 4000u; n++) {
        uint32_t dim = dims[n % 4u];
        input_random(n % INPUT_KINDS, &seed, x, dim);
        oracle_vector v = check_vector(x, dim, formats[n / 7u % 4u], rules[n / 3u % COUNT(rules)]);
        check_limits(&v);
    }
}

/* NUM 2.6 and report C10: zeros, negative zeros, subnormals: bytes of the zero vector, never a NaN. */
Test(num_quantize, c10_vectors_of_nothing_are_the_zero_vector)
{
    static const float values[] = {0.0f, -0.0f, 0x1p-149f, -0x1p-149f, 1e-40f, 1e-30f, -1e-30f};
    for (uint32_t f = 0; f < COUNT(formats); f++) {
        uint32_t format = formats[f];
        uint8_t scale = is_mxfp4(format) ? 127 - 39 : 127 - 40;
        for (uint32_t i = 0; i < COUNT(values) * COUNT(rules); i++) {
            float x[72] = {0};
            nbl_quant_stats stats = {0};
            nbl_vector v;
            x[i] = values[i % COUNT(values)];
            nbl_vector_quantize(x, 72, format, rules[i / COUNT(values)], &v, &stats);
            for (uint32_t d = 0; d < 96u; d++) {
                cr_assert_eq(v.codes[d], format == NBL_INT4P ? 8 : 0, "format %u: code %u", format, v.codes[d]);
            }
            for (uint32_t plane = 0; plane < oracle_scale_bytes(format, 72); plane++) {
                uint8_t expected = format == NBL_INT4P && plane < 3u ? 0 : scale;
                cr_assert_eq(v.scales[plane], expected, "format %u, plane %u: %u", format, plane, v.scales[plane]);
            }
            cr_assert_eq(stats.flushed, x[i] != 0.0f, "%a: flushed %llu", (double)x[i],
                         (unsigned long long)stats.flushed);
        }
        float y[72] = {1e-10f};
        cr_assert_neq(check_vector(y, 72, format, 0).codes[0], 0, "format %u: 1e-10 has a code", format);
    }
}

/* NUM 3.3 and report C11: 2^-41 is half of the least code of every format: up to there a vector is flushed and counted,
 * above not. */
Test(num_quantize, c11_flush_of_small_vectors_is_counted)
{
    const float last = 0x1p-41f;
    for (uint32_t f = 0; f < COUNT(formats); f++) {
        for (uint32_t r = 0; r < COUNT(rules); r++) {
            float x[40] = {0};
            nbl_quant_stats stats = {0};
            nbl_vector v;
            x[33] = -last;
            x[5] = last;
            nbl_vector_quantize(x, 40, formats[f], rules[r], &v, &stats);
            cr_expect(stats.flushed == 1u && nbl_vector_is_zero(&v), "format %u, rule %u: 2^-41", formats[f], rules[r]);
            x[33] = -nextafterf(last, 1.0f);
            nbl_vector_quantize(x, 40, formats[f], rules[r], &v, &stats);
            cr_expect(stats.flushed == 1u && !nbl_vector_is_zero(&v), "format %u, rule %u: above 2^-41", formats[f],
                      rules[r]);
            cr_expect_eq(stats.saturated, 0u, "nothing is clamped");
        }
    }
}

/* Report C12: even on a thread that flushes subnormals, zero blocks give zeros and no vector's bytes change. */
Test(num_quantize, c12_flush_to_zero_changes_no_stored_byte)
{
    static const uint32_t kinds[] = {INPUT_ZERO, INPUT_SUBNORMAL, INPUT_TINY, INPUT_SPARSE, INPUT_BLOCKS};
    uint64_t seed = 34;
    for (uint32_t n = 0; n < 4000u; n++) {
        uint32_t format = formats[n % 4u];
        uint32_t rule = rules[n / 4u % COUNT(rules)];
        uint32_t saved = _mm_getcsr();
        float x[72];
        nbl_quant_stats stats = {0};
        nbl_vector kept;
        nbl_vector flushed;
        memset(&kept, 0, sizeof kept);
        memset(&flushed, 0, sizeof flushed);
        input_random(kinds[n / 20u % COUNT(kinds)], &seed, x, 72);
        nbl_vector_quantize(x, 72, format, rule, &kept, &stats);
        _mm_setcsr(saved | FLUSH_TO_ZERO);
        nbl_vector_quantize(x, 72, format, rule, &flushed, &stats);
        _mm_setcsr(saved);
        cr_assert_arr_eq(&kept, &flushed, sizeof kept, "format %u, rule %u, case %u", format, rule, n);
    }
}

/* Blocks of 32 with a largest magnitude uniform in its logarithm: the share whose largest element is clipped. */
static double clip_rate(uint32_t rule, double *least, double *most)
{
    const uint32_t count = 20000;
    uint64_t seed = 35;
    uint32_t clipped = 0;
    *least = INFINITY;
    *most = 0.0;
    for (uint32_t n = 0; n < count; n++) {
        float x[32];
        float amax = (float)exp2(random_between(&seed, -8.0, 8.0));
        nbl_quant_stats stats = {0};
        nbl_vector v;
        input_with_amax(amax, &seed, x, 32);
        nbl_vector_quantize(x, 32, NBL_MXFP4, rule, &v, &stats);
        if (stats.saturated > 0) {
            double scaled = ldexp((double)amax, -nbl_e8m0_decode(v.scales[0]));
            *least = fmin(*least, scaled);
            *most = fmax(*most, scaled);
            clipped++;
        }
    }
    cr_log_info("rule %u clips %.2f %% of blocks, amax * 2^-e in [%g, %g]", rule, 100.0 * clipped / count, *least,
                *most);
    return (double)clipped / count;
}

/* Report C13, NUM 3.3, 3.4: what each rule clips. log2(8/6) = 41.5 %, log2(7.25/6) = 27.3 %. */
Test(num_quantize, c13_clip_rates_of_the_rules)
{
    double least;
    double most;
    double optimal;
    cr_expect_eq(clip_rate(NBL_RULE_CEIL, &least, &most), 0.0, "CEIL never clips");
    cr_expect_float_eq(clip_rate(NBL_RULE_FLOOR, &least, &most), log2(8.0 / 6.0), 0.02, "FLOOR clips (6, 8)");
    cr_expect(least > 6.0 && most < 8.0, "FLOOR clips [%g, %g]", least, most);
    optimal = clip_rate(NBL_RULE_OPTIMAL, &least, &most);
    cr_expect_float_eq(optimal, log2(7.25 / 6.0), 0.02, "OPTIMAL clips (6, 7.25]");
    cr_expect(least > 6.0 && most <= 7.25, "OPTIMAL clips [%g, %g]", least, most);
    cr_expect_eq(clip_rate(NBL_RULE_DEFAULT, &least, &most), optimal, "the default is OPTIMAL");
    double mse = clip_rate(NBL_RULE_MSE, &least, &most);
    cr_expect(mse > 0.0 && mse < log2(8.0 / 6.0), "MSE clips %g, between CEIL and FLOOR", mse);
    cr_expect(least > 6.0 && most <= 14.5, "MSE clips [%g, %g]", least, most);
}

/* Report C13: CEIL clips nothing even at the edge, and the other rules exactly what they say. */
Test(num_quantize, c13_edges_of_the_rules)
{
    static const struct {
        float amax;
        int32_t e[3]; /* OPTIMAL, FLOOR, CEIL */
    } cases[] = {{4.0f, {0, 0, 0}},           {6.0f, {0, 0, 0}},
                 {0x1.800002p+2f, {0, 0, 1}}, {7.25f, {0, 0, 1}},
                 {0x1.d00002p+2f, {1, 0, 1}}, {0x1.fffffep+2f, {1, 0, 1}},
                 {8.0f, {1, 1, 1}},           {0x1.fffffep+1f, {0, -1, 0}},
                 {3.625f, {-1, -1, 0}},       {3.0f, {-1, -1, -1}}};
    for (uint32_t i = 0; i < COUNT(cases); i++) {
        for (uint32_t r = 0; r < 3u; r++) {
            float x[32] = {cases[i].amax, -1.0f};
            nbl_quant_stats stats = {0};
            nbl_vector v;
            nbl_vector_quantize(x, 32, NBL_MXFP4, NBL_RULE_OPTIMAL + r, &v, &stats);
            int32_t e = nbl_e8m0_decode(v.scales[0]);
            cr_expect_eq(e, cases[i].e[r], "amax %a, rule %u: e = %d", (double)cases[i].amax, r + 1u, e);
            cr_expect_eq(stats.saturated, ldexpf(cases[i].amax, -e) > 6.0f, "amax %a, rule %u: clipped %llu",
                         (double)cases[i].amax, r + 1u, (unsigned long long)stats.saturated);
        }
    }
}

/* NUM 3.4: of the three candidates MSE takes the least error, measured in binary64 on blocks without near ties. */
Test(num_quantize, mse_takes_the_least_error)
{
    uint64_t seed = 36;
    uint32_t better = 0;
    for (uint32_t n = 0; n < 5000u; n++) {
        float x[32];
        double error[5];
        for (uint32_t d = 0; d < 32u; d++) {
            x[d] = support_normal(&seed);
        }
        for (uint32_t r = NBL_RULE_OPTIMAL; r <= NBL_RULE_MSE; r++) {
            oracle_vector v = check_vector(x, 32, NBL_MXFP4, r);
            error[r] = 0.0;
            for (uint32_t d = 0; d < 32u; d++) {
                double difference = (double)x[d] - ldexp((double)v.codes[d], v.exponent);
                error[r] += difference * difference;
            }
            cr_assert(r != NBL_RULE_MSE || error[r] <= fmin(error[NBL_RULE_OPTIMAL], error[NBL_RULE_CEIL]) * (1 + 1e-5),
                      "case %u: error %g, %g, %g", n, error[r], error[NBL_RULE_OPTIMAL], error[NBL_RULE_CEIL]);
        }
        better += error[NBL_RULE_MSE] < error[NBL_RULE_OPTIMAL];
    }
    cr_expect_gt(better, 25u, "MSE is better than OPTIMAL in %u of 5000 blocks", better);
}

/* NUM 3.4: 16 times 1/4 costs at e = 0 what the 4 costs at e = -1, exactly 1: the smallest exponent wins. */
Test(num_quantize, mse_ties_go_to_the_smallest_exponent)
{
    float x[32] = {4.0f};
    for (uint32_t d = 1; d <= 16u; d++) {
        x[d] = d % 2u == 0 ? 0.25f : -0.25f;
    }
    cr_expect_eq(nbl_mxfp4_error(x, 32, -1, 0), 1.0f, "e = -1: error %a", (double)nbl_mxfp4_error(x, 32, -1, 0));
    cr_expect_eq(nbl_mxfp4_error(x, 32, 0, 0), 1.0f, "e = 0: error %a", (double)nbl_mxfp4_error(x, 32, 0, 0));
    cr_expect_eq(check_vector(x, 32, NBL_MXFP4, NBL_RULE_MSE).block_exponents[0], -1, "of equals the smallest");
    x[17] = 0.25f;
    cr_expect_eq(check_vector(x, 32, NBL_MXFP4, NBL_RULE_MSE).block_exponents[0], -1, "one more 1/4 speaks for e = -1");
    x[16] = x[17] = 0.0f;
    cr_expect_eq(check_vector(x, 32, NBL_MXFP4, NBL_RULE_MSE).block_exponents[0], 0, "one fewer speaks for e = 0");
}

/* NUM 3.4: the error itself, bit for bit. */
Test(num_quantize, mxfp4_error_is_accumulated_as_written)
{
    uint64_t seed = 40;
    for (uint32_t n = 0; n < 5000u; n++) {
        float x[32];
        float expected = 0.0f;
        int32_t e = (int32_t)random_index(&seed, 3) - 1;
        for (uint32_t d = 0; d < 32u; d++) {
            x[d] = support_normal(&seed) * 2.0f;
            double v = (double)oracle_e2m1_value(oracle_e2m1_code(ldexp((double)x[d], -e)));
            float difference = (float)((double)x[d] - ldexp(v, e));
            expected = fmaf(difference, difference, expected);
        }
        float error = nbl_mxfp4_error(x, 32, e, 0);
        cr_assert_eq(error, expected, "case %u: %a, not %a", n, (double)error, (double)expected);
    }
}

/* NUM 3.5: likewise, on quotients around the ties, where fl(y * r_m) and y / m part. */
Test(num_quantize, int4p_error_is_accumulated_as_written)
{
    uint64_t seed = 41;
    for (uint32_t n = 0; n < 20000u; n++) {
        float y[16];
        float expected = 0.0f;
        int32_t m = 1 + (int32_t)(n % 16u);
        float r = 1.0f / (float)m;
        for (uint32_t d = 0; d < 16u; d++) {
            float tie = ((float)random_index(&seed, 15) - 7.5f) * (float)m;
            y[d] = nbl_float_of(nbl_bits_of(tie) + random_index(&seed, 5) - 2u);
            float product = (float)((double)y[d] * (double)r);
            double q = fmax(fmin(nearbyint((double)product), 7.0), -7.0);
            float difference = (float)((double)y[d] - q * m);
            expected = fmaf(difference, difference, expected);
        }
        float error = nbl_int4p_error(y, 16, m);
        cr_assert_eq(error, expected, "case %u, m = %d: %a, not %a", n, m, (double)error, (double)expected);
    }
}

/* NUM 3.5: blocks whose multiplier is each of 1..16, at exact multiples and around them. */
Test(num_quantize, int4p_multipliers_of_every_size)
{
    uint64_t seed = 37;
    uint32_t seen[17] = {0};
    for (uint32_t n = 0; n < 8000u; n++) {
        float x[64];
        for (uint32_t b = 0; b < 4u; b++) {
            float amax = 7.0f * (float)(1u + random_index(&seed, 16));
            amax = nbl_float_of(nbl_bits_of(amax) + random_index(&seed, 3) - 1u);
            input_with_amax(b == 0 ? 112.0f : amax, &seed, x + 16u * b, 16);
        }
        oracle_vector v = check_vector(x, 64, NBL_INT4P, 0);
        for (uint32_t b = 0; b < 4u; b++) {
            seen[v.block_multipliers[b]]++;
        }
    }
    for (uint32_t m = 1; m <= 16u; m++) {
        cr_expect_gt(seen[m], 20u, "multiplier %u came up %u times", m, seen[m]);
    }
}

/* NUM 3.7: int8 decodes to what int8 stores exactly: a second trip changes no value. */
Test(num_quantize, int8_transcoded_to_int8_keeps_every_value)
{
    uint64_t seed = 38;
    for (uint32_t n = 0; n < 2000u; n++) {
        float x[128];
        float decoded[128];
        float again[128];
        input_random(n % INPUT_KINDS, &seed, x, 128);
        oracle_vector first = check_vector(x, 128, NBL_INT8, 0);
        oracle_decode(&first, decoded);
        oracle_vector second = check_vector(decoded, 128, NBL_INT8, 0);
        oracle_decode(&second, again);
        cr_assert_arr_eq(again, decoded, sizeof again, "case %u", n);
    }
}

/* NUM 5.10: whatever the bytes are, the canonical form is defined and its exponent is in reach of pow2. */
Test(num_quantize, canonical_form_of_garbage_is_defined)
{
    uint64_t seed = 39;
    for (uint32_t n = 0; n < 20000u; n++) {
        nbl_vector v;
        int8_t codes[NBL_DIM_PADDED_MAX];
        uint32_t mask = formats[n % 4u] == NBL_INT8 ? 255u : 15u;
        v.format = formats[n % 4u];
        v.dim = dims[n % 5u];
        for (uint32_t d = 0; d < NBL_DIM_PADDED_MAX; d++) {
            v.codes[d] = (uint8_t)(support_random(&seed) & mask);
        }
        for (uint32_t i = 0; i < NBL_SCALES_MAX; i++) {
            v.scales[i] = (uint8_t)support_random(&seed);
        }
        int32_t e = nbl_vector_canonical(&v, codes);
        cr_assert(e >= -41 && e <= 40, "format %u: E = %d", v.format, e);
    }
}
