/* SPDX-License-Identifier: Apache-2.0 */
/* The fp64 reference against cases whose answer is known in closed form, and the distributions. */
#include <criterion/criterion.h>
#include <generate.h>
#include <math.h>
#include <output.h>
#include <reference.h>
#include <stdlib.h>
#include <string.h>

TestSuite(reference, .timeout = 60);

static const double tolerance = 1e-12;

/* T tokens of zero keys: all logits are 0, so weights are uniform over the visible tokens. v = token number. */
static nbl_problem uniform_problem(uint32_t q_tokens, uint32_t kv_tokens)
{
    nbl_problem problem = {
        .q_tokens = q_tokens, .q_heads = 4, .kv_tokens = kv_tokens, .kv_heads = 2, .k_dim = 16, .v_dim = 16};
    nbl_fault fault;
    cr_assert(nbl_problem_alloc(&problem, &fault) == NBL_EXIT_OK, "no memory");
    for (uint32_t t = 0; t < kv_tokens; t++) {
        for (uint32_t i = 0; i < 2 * 16; i++)
            problem.v[t * 32 + i] = (float)t + (i < 16 ? 0.0f : 1000.0f);
    }
    return problem;
}

static nbl_reference computed(const nbl_problem *problem)
{
    nbl_reference reference;
    nbl_fault fault = {""};
    cr_assert(nbl_reference_compute(problem, &reference, &fault) == NBL_EXIT_OK, "%s", fault.text);
    return reference;
}

static void assert_near(double found, double wanted, const char *what)
{
    cr_assert(fabs(found - wanted) <= tolerance * (1.0 + fabs(wanted)), "%s: %.17g, wanted %.17g", what, found, wanted);
}

Test(reference, causal_mask_stands_at_the_bottom_right_and_heads_are_grouped)
{
    nbl_problem problem = uniform_problem(3, 10);
    nbl_reference reference = computed(&problem);
    for (uint32_t row = 0; row < 3; row++) {
        uint32_t last = 10 - 3 + row; /* keys 0..last are visible */
        for (uint32_t head = 0; head < 4; head++) {
            double offset = head < 2 ? 0.0 : 1000.0; /* query heads 0, 1 read kv head 0 */
            assert_near(reference.o[(row * 4 + head) * 16 + 5], last / 2.0 + offset, "mean of the visible values");
            assert_near(reference.lse[row * 4 + head], log(last + 1.0), "log of their number");
        }
    }
    nbl_reference_free(&reference);
    nbl_problem_free(&problem);
}

Test(reference, window_counts_the_query_itself)
{
    nbl_problem problem = uniform_problem(2, 10);
    for (uint32_t window = 1; window <= 12; window++) {
        problem.window = window;
        nbl_reference reference = computed(&problem);
        uint32_t first = window < 10 ? 10 - window : 0;
        assert_near(reference.o[1 * 4 * 16], (first + 9) / 2.0, "mean over the window");
        assert_near(reference.lse[1 * 4], log(10.0 - first), "log of the window");
        nbl_reference_free(&reference);
    }
    nbl_problem_free(&problem);
}

Test(reference, sink_joins_the_denominator_only)
{
    nbl_problem problem = uniform_problem(1, 8);
    problem.has_sink = true;
    problem.sink = 3.0f;
    nbl_reference reference = computed(&problem);
    assert_near(reference.o[0], 3.5 * 8.0 / (8.0 + exp(3.0)), "damped mean");
    assert_near(reference.lse[0], log(8.0 + exp(3.0)), "log of the denominator");
    nbl_reference_free(&reference);
    nbl_problem_free(&problem);
}

Test(reference, scale_and_cap_apply_to_logits)
{
    nbl_problem problem = uniform_problem(1, 2);
    problem.q[0] = 6.0f;
    problem.k[1 * 32] = 2.0f; /* head 0 of token 1: q.k = 12 */
    problem.sm_scale = 0.5f;
    nbl_reference plain = computed(&problem);
    assert_near(plain.lse[0], log(1.0 + exp(6.0)), "scaled");
    assert_near(plain.o[0], exp(6.0) / (1.0 + exp(6.0)), "weight of token 1");
    problem.soft_cap = 2.0f;
    nbl_reference capped = computed(&problem);
    assert_near(capped.lse[0], log(1.0 + exp(2.0 * tanh(3.0))), "capped");
    problem.soft_cap = 0.0f;
    problem.sm_scale = 0.0f;
    nbl_reference standard = computed(&problem);
    assert_near(standard.lse[0], log(1.0 + exp(12.0 / 4.0)), "1/sqrt(16)");
    nbl_reference_free(&plain);
    nbl_reference_free(&capped);
    nbl_reference_free(&standard);
    nbl_problem_free(&problem);
}

Test(reference, large_logits_do_not_overflow)
{
    nbl_problem problem = uniform_problem(1, 2);
    problem.q[0] = 1e6f;
    problem.k[1 * 32] = 1e6f;
    problem.sm_scale = 1.0f;
    nbl_reference reference = computed(&problem);
    assert_near(reference.lse[0], 1e12, "lse");
    assert_near(reference.o[0], 1.0, "o");
    nbl_reference_free(&reference);
    nbl_problem_free(&problem);
}

/* One row of two elements per head, filled up with zeros. */
static nbl_accuracy measured(const double ref[2], const float o[2], double ref_lse, float lse)
{
    const nbl_problem problem = {.q_tokens = 1, .q_heads = 1, .v_dim = 2};
    double o_ref[2] = {ref[0], ref[1]};
    const nbl_reference reference = {.o = o_ref, .lse = &ref_lse};
    return nbl_accuracy_measure(&problem, &reference, o, &lse);
}

Test(reference, accuracy_figures)
{
    const double ref[2] = {3.0, 4.0};
    nbl_accuracy same = measured(ref, (const float[2]){3.0f, 4.0f}, -INFINITY, -INFINITY);
    cr_assert(same.rel_l2 == 0.0 && same.gain == 1.0 && same.cos_min == 1.0 && same.lse_err == 0.0, "equal rows");
    nbl_accuracy doubled = measured(ref, (const float[2]){6.0f, 8.0f}, 1.0, 1.5f);
    assert_near(doubled.rel_l2, 1.0, "rel_l2 of twice the row");
    assert_near(doubled.gain, 2.0, "gain of twice the row");
    assert_near(doubled.cos_min, 1.0, "cosine of twice the row");
    assert_near(doubled.lse_err, 0.5, "lse");
    nbl_accuracy turned = measured(ref, (const float[2]){-4.0f, 3.0f}, 0.0, 0.0f);
    assert_near(turned.rel_l2, sqrt(2.0), "rel_l2 of the row turned by 90 degrees");
    assert_near(turned.cos_min, 0.0, "its cosine");
    assert_near(turned.gain, 0.0, "its gain");
}

Test(reference, a_zero_reference_is_met_or_not)
{
    const double ref[2] = {0.0, 0.0};
    nbl_fault fault = {""};
    nbl_accuracy met = measured(ref, (const float[2]){0.0f, 0.0f}, 0.0, 0.0f);
    cr_assert(met.rel_l2 == 0.0 && met.gain == 1.0 && met.cos_mean == 1.0, "zero against zero: rel_l2 %g, gain %g",
              met.rel_l2, met.gain);
    cr_assert(nbl_max_error_check(met.rel_l2, 0.0, &fault) == NBL_EXIT_OK, "%s", fault.text);
    nbl_accuracy missed = measured(ref, (const float[2]){1.0f, 0.0f}, 0.0, 0.0f);
    cr_assert(isnan(missed.rel_l2) && isnan(missed.gain), "x against zero: rel_l2 %g, gain %g", missed.rel_l2,
              missed.gain);
    cr_assert(nbl_max_error_check(missed.rel_l2, 1e6, &fault) == NBL_EXIT_FAILED, "not defined is within a bound");
    cr_assert(strncmp(fault.text, "--max-error: rel_l2 is not defined", 34) == 0, "%s", fault.text);
    cr_assert(nbl_max_error_check(missed.rel_l2, NAN, &fault) == NBL_EXIT_OK, "no bound was given");
    char text[32];
    cr_assert(strcmp(nbl_real_text(missed.rel_l2, 5, text), "n/a") == 0, "%s", text);
    cr_assert(strcmp(nbl_real_text(0.25, 3, text), "0.250") == 0, "%s", text);
}

Test(reference, nan_cannot_hide)
{
    const double ref[2] = {3.0, 4.0};
    nbl_accuracy bad = measured(ref, (const float[2]){NAN, 4.0f}, 0.0, NAN);
    cr_assert(isnan(bad.rel_l2) && isnan(bad.cos_min) && isnan(bad.lse_err), "NaN was hidden");
}

static nbl_problem generated(const char *name, uint64_t seed)
{
    const nbl_shape_options shape = {
        .q_heads = 2, .kv_heads = 2, .k_dim = 64, .v_dim = 32, .kv_tokens = 500, .q_tokens = 8, .seed = seed};
    nbl_problem problem = {0};
    nbl_fault fault = {""};
    cr_assert(nbl_problem_make(&shape, name, &problem, &fault) == NBL_EXIT_OK, "%s", fault.text);
    return problem;
}

Test(reference, distributions_are_repeatable_and_differ_by_seed)
{
    for (size_t i = 0; nbl_generate_names[i]; i++) {
        nbl_problem one = generated(nbl_generate_names[i], 1), again = generated(nbl_generate_names[i], 1);
        nbl_problem two = generated(nbl_generate_names[i], 2);
        size_t bytes = 500u * 2u * 64u * sizeof(float);
        cr_assert(memcmp(one.k, again.k, bytes) == 0, "%s: not repeatable", nbl_generate_names[i]);
        cr_assert(memcmp(one.k, two.k, bytes) != 0, "%s: the seed does nothing", nbl_generate_names[i]);
        nbl_problem_free(&one);
        nbl_problem_free(&again);
        nbl_problem_free(&two);
    }
}

Test(reference, gaussian_moments)
{
    nbl_problem problem = generated("gaussian", 3);
    double sum = 0.0, squares = 0.0;
    size_t count = 500u * 2u * 64u;
    for (size_t i = 0; i < count; i++) {
        sum += (double)problem.k[i];
        squares += (double)problem.k[i] * (double)problem.k[i];
    }
    cr_assert(fabs(sum / (double)count) < 0.02, "mean %g", sum / (double)count);
    cr_assert(fabs(squares / (double)count - 1.0) < 0.03, "variance %g", squares / (double)count);
    nbl_problem_free(&problem);
}

Test(reference, outliers_are_two_to_four_channels_of_50_to_300)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        nbl_problem problem = generated("outliers", seed);
        for (uint32_t head = 0; head < 2; head++) {
            int channels = 0;
            for (uint32_t d = 0; d < 64; d++) {
                double mean = 0.0;
                for (uint32_t t = 0; t < 500; t++)
                    mean += (double)problem.k[(t * 2 + head) * 64 + d] / 500.0;
                cr_assert(fabs(mean) < 301.0, "channel mean %g", mean);
                channels += fabs(mean) > 49.0;
            }
            cr_assert(channels >= 2 && channels <= 4, "%d channels", channels);
        }
        nbl_problem_free(&problem);
    }
}

Test(reference, sink_token_takes_most_of_the_weight)
{
    nbl_problem problem = generated("sinks", 5);
    nbl_reference reference = computed(&problem);
    for (size_t row = 0; row < 16; row++)
        cr_assert(reference.lse[row] > 12.0, "row %zu: lse %g is not that of a sink", row, reference.lse[row]);
    for (uint32_t i = 0; i < 64; i++)
        cr_assert(fabsf(problem.v[i]) < 0.01f, "V of token 0 is not small");
    nbl_reference_free(&reference);
    nbl_problem_free(&problem);
}

Test(reference, shorter_problems_keep_first_keys_and_last_queries)
{
    nbl_problem problem = generated("gaussian", 1);
    nbl_problem shorter = nbl_problem_shorten(&problem, 100);
    cr_assert(shorter.kv_tokens == 100 && shorter.q_tokens == 8 && shorter.q == problem.q, "rows moved");
    shorter = nbl_problem_shorten(&problem, 5);
    cr_assert(shorter.kv_tokens == 5 && shorter.q_tokens == 5, "%u rows", shorter.q_tokens);
    cr_assert(shorter.q == problem.q + 3 * 2 * 64, "the first rows were kept");
    nbl_problem_free(&problem);
}

Test(reference, permutations_hold_every_number_once)
{
    int32_t values[1000];
    char seen[1000] = {0};
    int moved = 0;
    nbl_generate_permutation(values, 1000, 7);
    for (int i = 0; i < 1000; i++) {
        cr_assert(values[i] >= 0 && values[i] < 1000 && !seen[values[i]], "value %d twice or outside", values[i]);
        seen[values[i]] = 1;
        moved += values[i] != i;
    }
    cr_assert(moved > 900, "only %d of 1000 moved", moved);
}
