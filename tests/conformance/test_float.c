/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file test_float.c
 * @brief The float core: profiles, growing logits, rules of nvfp4, quantizers at their edges, accuracy (NUM 6).
 */
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(list) ((uint32_t)(sizeof(list) / sizeof(list)[0]))

static const uint32_t float_formats[] = {NBL_FORMAT_BF16, NBL_FORMAT_FP16, NBL_FP8_E4M3, NBL_NVFP4};

/* Problems with a float format on at least one side. */
static problem float_problem(uint64_t seed)
{
    problem p = problem_random(seed);
    uint32_t k = float_formats[seed % 4u], v = float_formats[seed / 4u % 4u];
    for (uint32_t r = 0; r < p.region_count; ++r) {
        p.k_format[r] = r == 0 || k == NBL_FORMAT_FP16 ? k : float_formats[seed / 16u % 4u & 2u];
        p.v_format[r] = r == 0 || v == NBL_FORMAT_FP16 ? v : float_formats[seed / 64u % 4u & 2u];
    }
    p.head_scales = seed / 256u % 2u != 0 || seed % 3u == 0;
    return p;
}

/* The simulator takes each architecture's arithmetic; a GPU has its own and runs its case only. */
static void run_profile(const char *profile)
{
    lab l;
    setenv("NIBBLE_SIM_PROFILE", profile, 1);
    lab_open(&l);
    for (uint32_t i = 0; i < lab_cases(60); ++i) {
        problem p = float_problem(lab_seed(30000) + i);
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

Test(float_core, profile_sm_80)
{
    run_profile("sm_80");
}
Test(float_core, profile_sm_89)
{
    run_profile("sm_89");
}
Test(float_core, profile_sm_90)
{
    run_profile("sm_90");
}
Test(float_core, profile_sm_100)
{
    run_profile("sm_100");
}
Test(float_core, profile_sm_120)
{
    run_profile("sm_120");
}

/* Logits that grow from tile to tile, so that the base moves; and ones beyond the range of clause 5.9. */
Test(float_core, the_base_moves)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 16; ++i) {
        problem p = problem_default(lab_seed(31000) + i);
        problem_formats(&p, float_formats[i % 4u], float_formats[i / 4u]);
        p.kv_len[0] = 1500;
        p.q_len[0] = 3;
        p.alibi = i % 2u == 0;
        p.k_data = i % 3u == 0 ? DATA_HEAVY : DATA_SCALED;
        p.q_scale = i % 3u == 1 ? 64.0f : 1.0f;
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

/* Infinite inputs become the largest numbers there are, rotated ones larger still: no sum may overflow (NUM 6.1). */
Test(float_core, the_largest_inputs)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 32; ++i) {
        problem p = problem_default(lab_seed(31500) + i);
        trial t;
        problem_formats(&p, float_formats[i % 4u], float_formats[i / 4u % 4u]);
        p.shape.k_dim = p.shape.v_dim = 256;
        p.shape.k_hadamard = p.shape.v_hadamard = i / 16u != 0 ? 256 : 0;
        p.k_data = p.v_data = p.q_data = DATA_ONES;
        p.k_scale = p.v_scale = p.q_scale = 0x1p60f;
        p.sm_scale = 65536.0f;
        trial_init(&t, &l, &p);
        trial_fill(&t);
        if (trial_attend(&t)) {
            for (uint32_t d = 0; d < 256; ++d)
                cr_assert(isfinite(*(const float *)view_at(&t.o, 0, 0, d, 0)), "%s: element %u", trial_text, d);
        }
        trial_free(&t);
    }
    lab_finish(&l);
}

Test(float_core, rules_of_nvfp4)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 6u * DATA_KINDS; ++i) {
        problem p = problem_default(lab_seed(32000) + i);
        trial t;
        problem_formats(&p, NBL_NVFP4, NBL_NVFP4);
        p.shape.k_scale_rule = i % 6u;
        p.shape.v_scale_rule = 5u - i % 6u;
        p.k_data = p.v_data = i / 6u;
        trial_init(&t, &l, &p);
        trial_append(&t);
        trial_free(&t);
    }
    lab_finish(&l);
}

Test(float_core, quantizers_of_random_bits)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 16u * DATA_KINDS; ++i) {
        problem p = problem_default(lab_seed(33000) + i);
        trial t;
        problem_formats(&p, float_formats[i % 4u], float_formats[i / 4u % 4u]);
        p.k_data = p.v_data = i / 16u;
        p.k_scale = i % 5u == 0 ? 448.0f : 1.0f;
        p.shape.page_tokens = 1u + i % 40u;
        trial_init(&t, &l, &p);
        trial_append(&t);
        trial_free(&t);
    }
    lab_finish(&l);
}

/* Relative L2 error against binary64 over the unquantized inputs; bf16 and fp16 are near their rounding. */
Test(float_core, accuracy)
{
    static const double most[] = {0.008, 0.0015, 0.08, 0.25};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < COUNT(float_formats); ++i) {
        problem p = problem_default(lab_seed(34000) + i);
        trial t;
        problem_formats(&p, float_formats[i], float_formats[i]);
        p.kv_len[0] = 2000;
        p.q_len[0] = 4;
        p.shape.k_dim = p.shape.v_dim = 128;
        trial_init(&t, &l, &p);
        trial_append_part(&t, 0, t.tokens);
        if (trial_attend_backend(&t)) {
            double lse_error, error = trial_error(&t, &lse_error);
            cr_assert(error < most[i] && error > most[i] / 8.0, "format %u: relative L2 %.5f", float_formats[i], error);
        }
        trial_free(&t);
    }
    lab_finish(&l);
}

/* ------------------------------------------------------------------------------------------------ Blackwell core */

/* A problem for NBL_Q_FP4: one format of K in all regions, V in fp8. */
static problem fp4_problem(uint64_t seed)
{
    static const uint32_t k_formats[] = {NBL_NVFP4, NBL_MXFP4, NBL_MXFP4_16, NBL_NVFP4};
    problem p = problem_random(seed);
    for (uint32_t r = 0; r < p.region_count; ++r) {
        p.k_format[r] = k_formats[seed % 4u];
        p.v_format[r] = NBL_FP8_E4M3;
    }
    p.head_scales = seed / 4u % 2u != 0;
    p.q_format = NBL_Q_FP4;
    return p;
}

static void run_fp4(uint64_t first_seed)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < lab_cases(80); ++i) {
        problem p = fp4_problem(lab_seed(first_seed) + i);
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

Test(blackwell_core, random_sweep_1)
{
    run_fp4(35000);
}
Test(blackwell_core, random_sweep_2)
{
    run_fp4(36000);
}

static void run_centred(uint64_t first_seed)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < lab_cases(60); ++i) {
        problem p = fp4_problem(lab_seed(first_seed) + i);
        p.q_centers = true;
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

Test(blackwell_core, centred_queries_1)
{
    run_centred(35500);
}
Test(blackwell_core, centred_queries_2)
{
    run_centred(36500);
}

/* More query heads than a block has rows share a kv head (NUM 7.5). */
Test(blackwell_core, centred_queries_of_many_heads)
{
    static const uint32_t heads[] = {5, 9, 16, 17, 40, 71};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 2u * COUNT(heads); ++i) {
        problem p = problem_default(lab_seed(37500) + i);
        problem_formats(&p, i % 4u == 3u ? NBL_MXFP4 : NBL_NVFP4, NBL_FP8_E4M3);
        p.q_format = NBL_Q_FP4;
        p.q_centers = true;
        p.q_heads = heads[i / 2u] * p.shape.kv_heads;
        p.q_len[0] = 3;
        p.kv_len[0] = 300;
        p.shape.v_dim = i % 2u == 0 ? 64 : 256;
        p.shape.centering = NBL_CENTERING_MEAN;
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

/* A centre of zeros gives the bytes of no centre. */
Test(blackwell_core, centre_of_zeros)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 4; ++i) {
        trial plain, centred;
        problem p = problem_default(lab_seed(37700) + i);
        problem_formats(&p, i % 2u == 0 ? NBL_NVFP4 : NBL_MXFP4, NBL_FP8_E4M3);
        p.q_format = NBL_Q_FP4;
        p.q_len[0] = 5;
        p.shape.centering = i / 2u == 0 ? 0 : NBL_CENTERING_MEAN;
        trial_init(&plain, &l, &p);
        trial_fill(&plain);
        p.q_centers = true;
        trial_init(&centred, &l, &p);
        trial_fill(&centred);
        buffer_fill(&l, &centred.q_centers.memory, 0);
        if (trial_attend(&plain) && trial_attend(&centred)) {
            for (uint32_t row = 0; row < 5; ++row)
                trial_compare_rows(&plain, row, &centred, row, "zeros");
        }
        trial_free(&plain);
        trial_free(&centred);
    }
    lab_finish(&l);
}

/* Queries with a common part: its centre takes most of their error away. */
Test(blackwell_core, centred_queries_err_less)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 3; ++i) {
        double error[2] = {0}, lse_error;
        for (uint32_t centred = 0; centred < 2; ++centred) {
            problem p = problem_default(lab_seed(38500) + i);
            trial t;
            problem_formats(&p, i == 2 ? NBL_MXFP4 : NBL_NVFP4, NBL_FP8_E4M3);
            p.q_format = NBL_Q_FP4;
            p.q_centers = centred != 0;
            p.kv_len[0] = 2000;
            p.q_len[0] = 8;
            p.q_data = DATA_OUTLIERS;
            p.shape.centering = i == 0 ? 0 : NBL_CENTERING_MEAN;
            p.center_mode = NBL_CENTER_COMPUTE;
            p.k_scale = 0.02f;
            trial_init(&t, &l, &p);
            trial_append_part(&t, 0, t.tokens);
            if (trial_attend_backend(&t))
                error[centred] = trial_error(&t, &lse_error);
            trial_free(&t);
        }
        cr_assert(error[1] <= 0.7 * error[0], "case %u: relative L2 %.5f, without centres %.5f", i, error[1], error[0]);
    }
    lab_finish(&l);
}

/* The same rows from one query at a time, and from the profile of any GPU. */
Test(blackwell_core, profiles_give_the_same_bits)
{
    static const char *const profiles[] = {"sm_80", "sm_90", "sm_120"};
    float first[128] = {0};
    for (uint32_t i = 0; i < COUNT(profiles); ++i) {
        lab l;
        problem p = problem_default(lab_seed(37000));
        trial t;
        setenv("NIBBLE_SIM_PROFILE", profiles[i], 1);
        lab_open(&l);
        problem_formats(&p, NBL_NVFP4, NBL_FP8_E4M3);
        p.q_format = NBL_Q_FP4;
        p.kv_len[0] = 500;
        trial_init(&t, &l, &p);
        trial_fill(&t);
        if (trial_attend(&t)) {
            memcpy(i == 0 ? first : first + 64, view_at(&t.o, 0, 0, 0, 0), 64 * sizeof *first);
            cr_assert(i == 0 || memcmp(first, first + 64, 64 * sizeof *first) == 0, "%s: %s", profiles[i], trial_text);
        }
        trial_free(&t);
        lab_finish(&l);
    }
}

/* Against binary64 over the unquantized inputs: 4-bit Q and K, 8-bit P and V. */
Test(blackwell_core, accuracy)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 2; ++i) {
        problem p = problem_default(lab_seed(38000) + i);
        trial t;
        problem_formats(&p, i == 0 ? NBL_NVFP4 : NBL_MXFP4, NBL_FP8_E4M3);
        p.q_format = NBL_Q_FP4;
        p.kv_len[0] = 2000;
        p.q_len[0] = 4;
        p.shape.k_dim = p.shape.v_dim = 128;
        trial_init(&t, &l, &p);
        trial_append_part(&t, 0, t.tokens);
        if (trial_attend_backend(&t)) {
            double lse_error, error = trial_error(&t, &lse_error);
            cr_assert(error < 0.25 && error > 0.03, "case %u: relative L2 %.5f", i, error);
        }
        trial_free(&t);
    }
    lab_finish(&l);
}
