/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file test_accuracy.c
 * @brief Errors against binary64 attention over the unquantized inputs.
 */
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(list) ((uint32_t)(sizeof(list) / sizeof(list)[0]))

/* The recipes of docs/formats.md F8 by their names. */
static const char *const recipes[] = {"qk4v8", "mxkv4", "kv4", "k4v8", "kv8"};

static problem with_recipe(lab *l, const char *name, uint32_t tokens)
{
    problem p = problem_default(lab_seed(12000));
    nbl_recipe recipe = NBL_INIT(nbl_recipe);
    nbl_error err = NBL_INIT(nbl_error);
    p.shape.k_dim = p.shape.v_dim = 128;
    lab_expect(l->api->recipe_parse(name, p.shape.k_dim, p.shape.v_dim, &recipe, &err), NBL_OK, "recipe_parse", &err);
    problem_formats(&p, recipe.k_format, recipe.v_format);
    p.q_format = recipe.q_format;
    p.shape.k_hadamard = recipe.k_hadamard;
    p.shape.v_hadamard = recipe.v_hadamard;
    p.shape.centering = recipe.centering;
    p.center_mode = NBL_CENTER_COMPUTE;
    p.kv_len[0] = tokens;
    p.q_len[0] = 4;
    p.shape.kv_heads = 1;
    p.q_heads = 4;
    return p;
}

/* Relative L2 error of o; appends and attends on the backend. Negative if not supported. */
static double error_of(lab *l, const problem *p, double *lse_error)
{
    trial t;
    double error = -1.0;
    trial_init(&t, l, p);
    if (trial_append(&t) && trial_attend_backend(&t))
        error = trial_error(&t, lse_error);
    trial_free(&t);
    return error;
}

/* ------------------------------------------------------------------------------------------------ recipes */

Test(accuracy, recipes_on_gaussian_inputs)
{
    static const double most[] = {0.20, 0.20, 0.145, 0.105, 0.022};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < COUNT(recipes); ++i) {
        double lse_error = 0.0;
        problem p = with_recipe(&l, recipes[i], 500);
        double error = error_of(&l, &p, &lse_error);
        cr_log_info("recipe %s: relative error %g, lse off by %g", recipes[i], error, lse_error);
        cr_assert(error < most[i], "recipe %s: relative error %g (allowed: %g)", recipes[i], error, most[i]);
    }
    lab_finish(&l);
}

Test(accuracy, D4_error_does_not_grow_with_length)
{
    static const uint32_t lengths[] = {128, 512, 2048};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < COUNT(recipes); ++i) {
        double first = 0.0, lse_error = 0.0;
        for (uint32_t n = 0; n < COUNT(lengths); ++n) {
            problem p = with_recipe(&l, recipes[i], lengths[n]);
            double error = error_of(&l, &p, &lse_error);
            cr_log_info("recipe %s, %u tokens: relative error %g", recipes[i], lengths[n], error);
            first = n == 0 ? error : first;
            cr_assert(error <= 1.3 * first, "recipe %s: relative error %g at %u tokens, %g at %u", recipes[i], error,
                      lengths[n], first, lengths[0]);
        }
    }
    lab_finish(&l);
}

/* Attention over what the cache holds, which leaves the error of the arithmetic alone. */
static double kernel_error(lab *l, problem p)
{
    double lse_error;
    p.k_data = p.v_data = DATA_ONES; /* exact in every format, so that the caller's values stand */
    return error_of(l, &p, &lse_error);
}

Test(accuracy, equal_keys_give_the_mean_of_the_values)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < COUNT(recipes); ++i) {
        problem p = with_recipe(&l, recipes[i], 300);
        p.shape.centering = 0;
        double error = kernel_error(&l, p);
        cr_assert(error < 0.02, "recipe %s: relative error %g", recipes[i], error);
    }
    lab_finish(&l);
}

/* ------------------------------------------------------------------------------------------------ outliers */

/* A problem of 4-bit keys with or without the transforms, over keys with or without outlier channels. */
static double outlier_error(lab *l, uint32_t k_format, bool transforms, bool outliers)
{
    problem p = problem_default(lab_seed(12100));
    double lse_error;
    problem_formats(&p, k_format, NBL_INT8);
    p.shape.k_dim = p.shape.v_dim = 128;
    p.shape.k_hadamard = transforms ? 128 : 0;
    p.shape.centering = transforms ? NBL_CENTERING_MEAN : 0;
    p.center_mode = NBL_CENTER_COMPUTE;
    p.k_data = outliers ? DATA_OUTLIERS : DATA_NORMAL;
    p.kv_len[0] = 400;
    p.q_len[0] = 4;
    return error_of(l, &p, &lse_error);
}

Test(accuracy, D1_outlier_channels_need_centre_and_rotation)
{
    lab l;
    lab_open(&l);
    for (uint32_t format = NBL_MXFP4; format <= NBL_INT4P; ++format) {
        double clean = outlier_error(&l, format, false, false), naked = outlier_error(&l, format, false, true);
        double transformed = outlier_error(&l, format, true, true);
        cr_log_info("format %u: %g without outliers, %g with, %g with transforms", format, clean, naked, transformed);
        cr_assert(transformed <= 1.3 * clean, "format %u: error %g with transforms, %g without outliers", format,
                  transformed, clean);
        cr_assert(clean < 0.0 || naked > 4.0 * clean, "format %u: outliers do no harm (%g against %g)", format, naked,
                  clean);
    }
    lab_finish(&l);
}

Test(accuracy, D1_keys_at_8_bits_bear_outliers_once_centred)
{
    lab l;
    lab_open(&l);
    double clean = outlier_error(&l, NBL_INT8, false, false), transformed = outlier_error(&l, NBL_INT8, true, true);
    cr_assert(transformed <= 1.5 * clean, "error %g with outliers and transforms, %g without outliers", transformed,
              clean);
    lab_finish(&l);
}

Test(accuracy, D5_a_tiny_first_append_does_not_spoil_the_next)
{
    lab l;
    lab_open(&l);
    for (uint32_t format = NBL_INT8; format <= NBL_INT4P; ++format) {
        problem p = problem_default(lab_seed(12200));
        double lse_error, small, large;
        problem_formats(&p, format, format);
        p.kv_len[0] = 300;
        p.v_scale = 1e-3f;
        small = error_of(&l, &p, &lse_error);
        p.v_data = DATA_SCALED; /* token by token up to 2^16 apart */
        large = error_of(&l, &p, &lse_error);
        cr_assert(large <= 1.3 * small + 0.01, "format %u: error %g, %g when tokens differ in size", format, large,
                  small);
    }
    lab_finish(&l);
}

/* ------------------------------------------------------------------------------------------------ small weights */

/* One key whose weight is half of the sum, 4100 others below 2^-12 each. */
static void init_hot_key(trial *t, lab *l, uint32_t k_format, uint32_t v_format, uint32_t q_format)
{
    problem p = problem_default(lab_seed(12300));
    const float one = k_format == NBL_NVFP4 ? 1.5f : 1.0f; /* 1/6 is no scale of nvfp4 */
    problem_formats(&p, k_format, v_format);
    p.q_format = q_format;
    p.kv_len[0] = 4101;
    p.q_len[0] = 1;
    p.shape.kv_heads = p.q_heads = 1;
    p.shape.page_tokens = 64;
    p.q_data = DATA_ONES;
    p.k_data = DATA_ZERO;
    p.v_data = DATA_ONES;
    p.q_scale = p.v_scale = one;
    p.sm_scale = 8.3125f / 64.0f / (one * one); /* e^8.3125 = 4075 */
    trial_init(t, l, &p);
    for (uint32_t d = 0; d < 64; ++d) {
        oracle_tensor_set(&t->k.tensor[HOST], 2000, 0, d, 0, one);
        oracle_tensor_set(&t->v.tensor[HOST], 2000, 0, d, 0, 0.0f);
    }
    buffer_upload(l, &t->k.memory);
    buffer_upload(l, &t->v.memory);
}

Test(accuracy, B10_one_hot_key_and_many_small_weights)
{
    lab l;
    lab_open(&l);
    for (uint32_t format = NBL_INT8; format <= NBL_NVFP4 + 1u; ++format) { /* the last one: the Blackwell core */
        const bool is_fp4 = format > NBL_NVFP4;
        trial t;
        double lse_error = 0.0;
        init_hot_key(&t, &l, is_fp4 ? NBL_NVFP4 : format, is_fp4 ? NBL_FP8_E4M3 : format,
                     is_fp4 ? NBL_Q_FP4 : NBL_Q_DEFAULT);
        if (trial_append(&t) && trial_attend(&t)) {
            double error = trial_error(&t, &lse_error);
            cr_log_info("format %u: relative error %g", format, error);
            cr_assert(error < 0.08, "format %u: relative error %g", format, error);
        }
        trial_free(&t);
    }
    lab_finish(&l);
}

Test(accuracy, B12_four_bit_weights_do_not_collapse_over_long_contexts)
{
    lab l;
    lab_open(&l);
    problem p = problem_default(lab_seed(12400));
    double lse_error = 0.0;
    problem_formats(&p, NBL_INT8, NBL_INT8);
    p.kv_len[0] = 4090;
    p.shape.page_tokens = 128;
    p.v_data = DATA_OUTLIERS; /* a mean that must survive */
    p.q_scale = 0.01f;        /* all weights alike */
    double error = error_of(&l, &p, &lse_error);
    cr_assert(error < 0.01 && lse_error < 0.005, "relative error %g, lse off by %g", error, lse_error);
    lab_finish(&l);
}

Test(accuracy, lse_is_as_exact_as_the_logits)
{
    lab l;
    lab_open(&l);
    for (uint32_t base = 0; base < 2; ++base) {
        problem p = with_recipe(&l, "kv8", 700);
        double lse_error = 0.0;
        p.flags = base == 0 ? 0 : NBL_ATTEND_LSE_BASE2;
        double error = error_of(&l, &p, &lse_error);
        cr_assert(error < 0.03 && lse_error < 0.01, "flags %u: lse off by %g", p.flags, lse_error);
    }
    lab_finish(&l);
}

Test(accuracy, features_agree_with_binary64)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 32; ++i) {
        problem p = with_recipe(&l, "kv8", i % 2u == 0 ? 200 : 1100);
        double lse_error = 0.0;
        p.shape.centering = i % 4u;
        p.flags = NBL_ATTEND_CAUSAL | (i / 2u % 2u == 0 ? 0u : NBL_ATTEND_WINDOW_LEFT);
        p.window_left = i / 2u % 2u == 0 ? 0 : 90;
        p.sinks = i / 4u % 2u == 1;
        p.alibi = i / 8u % 2u == 1;
        p.soft_cap = i / 16u == 1 && (p.shape.centering & NBL_CENTERING_MEAN) == 0 ? 5.0f : 0.0f;
        double error = error_of(&l, &p, &lse_error);
        cr_assert(error < 0.04 && lse_error < 0.08, "%s: relative error %g, lse off by %g", trial_text, error,
                  lse_error);
    }
    lab_finish(&l);
}
