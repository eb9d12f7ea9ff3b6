/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file test_masks.c
 * @brief What a row may see, sinks, caps and the range of logits (NUM 5.2, 5.3, 5.4, 5.7, 5.9).
 */
#include "harness.h"

#include <math.h>
#include <string.h>

#define COUNT(list) ((uint32_t)(sizeof(list) / sizeof(list)[0]))

/* Several query rows over 100 tokens, formats that change with i. */
static problem masked(uint32_t i, uint32_t flags)
{
    problem p = problem_default(lab_seed(3000) + i);
    problem_pair(&p, i);
    p.q_len[0] = 17;
    p.flags = flags;
    return p;
}

/* ------------------------------------------------------------------------------------------------ positions */

Test(masks, A12_causal_bottom_right)
{
    static const uint32_t rows[] = {1, 3, 17, 100};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < PROBLEM_PAIRS; ++i) {
        problem p = masked(i, NBL_ATTEND_CAUSAL);
        trial t;
        p.q_len[0] = rows[(i + i / 4u) % COUNT(rows)];
        trial_init(&t, &l, &p);
        trial_fill(&t);
        nbl_attend_args args = trial_attend_args(&t, HOST);
        for (uint32_t row = 0; row < p.q_len[0]; ++row)
            cr_assert(oracle_visible(&args, 0, row, 100 - p.q_len[0] + row) &&
                          !oracle_visible(&args, 0, row, 101 - p.q_len[0] + row),
                      "row %u of %u does not end at its own token", row, p.q_len[0]);
        trial_attend(&t);
        trial_free(&t);
    }
    lab_finish(&l);
}

/* Fails unless o is 0 and lse -inf in a row of all heads. */
static void expect_empty(const trial *t, uint32_t row)
{
    for (uint32_t h = 0; h < t->p.q_heads; ++h) {
        float lse = oracle_tensor_get(&t->lse.tensor[HOST], row, h, 0, 0);
        cr_assert(lse == -INFINITY, "%s: lse of the empty row %u is %g", trial_text, row, (double)lse);
        for (uint32_t d = 0; d < t->p.shape.v_dim; ++d)
            cr_assert(oracle_tensor_get(&t->o.tensor[HOST], row, h, d, 0) == 0.0f, "%s: o of the empty row %u is not 0",
                      trial_text, row);
    }
}

Test(masks, A3_causal_rows_before_the_first_token)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < PROBLEM_PAIRS; ++i) {
        problem p = masked(i, NBL_ATTEND_CAUSAL);
        trial t;
        p.kv_len[0] = 1u + i * 3u;
        p.q_len[0] = p.kv_len[0] + 5u;
        trial_init(&t, &l, &p);
        trial_fill(&t);
        for (uint32_t row = 0; trial_attend_backend(&t) && row < 5; ++row)
            expect_empty(&t, row);
        trial_attend(&t);
        trial_free(&t);
    }
    lab_finish(&l);
}

static void run_window(lab *l, uint32_t i, uint32_t flags, uint32_t left, uint32_t right)
{
    problem p = masked(i, flags);
    p.window_left = left;
    p.window_right = right;
    p.kv_len[0] = 300;
    trial_run(l, &p);
}

static const uint32_t windows[] = {0, 1, 15, 16, 31, 127, 128, 129, 250, 5000, INT32_MAX, UINT32_MAX};

Test(masks, window_left)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 2u * COUNT(windows); ++i)
        run_window(&l, i, NBL_ATTEND_WINDOW_LEFT, windows[i / 2u], 0);
    lab_finish(&l);
}

Test(masks, window_right)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 2u * COUNT(windows); ++i)
        run_window(&l, i, NBL_ATTEND_WINDOW_RIGHT, 0, windows[i / 2u]);
    lab_finish(&l);
}

Test(masks, window_both_sides)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < COUNT(windows) * COUNT(windows) / 2u; ++i)
        run_window(&l, i, NBL_ATTEND_WINDOW_LEFT | NBL_ATTEND_WINDOW_RIGHT, windows[i % COUNT(windows)],
                   windows[i / COUNT(windows) * 2u]);
    lab_finish(&l);
}

Test(masks, window_and_causal)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 2u * COUNT(windows); ++i)
        run_window(&l, i, NBL_ATTEND_CAUSAL | NBL_ATTEND_WINDOW_LEFT, windows[i / 2u], 0);
    lab_finish(&l);
}

Test(masks, window_over_chunks)
{
    static const uint32_t lefts[] = {0, 100, 1023, 1024, 1025, 2000};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 2u * COUNT(lefts); ++i) {
        problem p = masked(i, NBL_ATTEND_CAUSAL | NBL_ATTEND_WINDOW_LEFT);
        p.kv_len[0] = 2500;
        p.q_len[0] = 1u + i % 2u * 2u;
        p.window_left = lefts[i / 2u];
        p.want_state = true;
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

Test(masks, range_with_states)
{
    static const uint32_t ranges[][2] = {{0, 1024}, {1024, 2048}, {0, 2048}, {2048, 4096}, {1024, 4096}, {4096, 5120}};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 4u * COUNT(ranges); ++i) {
        problem p = masked(i, i % 2u == 0 ? 0 : NBL_ATTEND_CAUSAL);
        p.kv_len[0] = 2500;
        p.q_len[0] = 2;
        p.range_begin = ranges[i / 4u][0];
        p.range_end = ranges[i / 4u][1];
        p.want_state = i % 4u != 3u;
        p.extra_states = i % 3u;
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

Test(masks, range_of_sequences_of_different_lengths)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 8; ++i) {
        problem p = masked(i, NBL_ATTEND_CAUSAL);
        p.batch = 4;
        p.kv_len[0] = 10;
        p.kv_len[1] = 1500;
        p.kv_len[2] = 0;
        p.kv_len[3] = 2100;
        p.q_len[0] = p.q_len[1] = p.q_len[2] = p.q_len[3] = 2;
        p.range_begin = 1024;
        p.range_end = 2048;
        p.want_state = true;
        p.sinks = i % 2u == 1;
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

/* ------------------------------------------------------------------------------------------------ trees */

Test(masks, tree_random)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 16; ++i) {
        problem p = masked(i, i % 2u == 0 ? 0 : NBL_ATTEND_CAUSAL);
        p.tree = TREE_RANDOM;
        p.q_len[0] = 4u + i * 9u;
        p.kv_len[0] = p.q_len[0] + i * 7u;
        p.sinks = i % 3u == 0;
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

Test(masks, tree_of_a_batch)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 8; ++i) {
        problem p = masked(i, 0);
        p.tree = TREE_RANDOM;
        p.batch = 3;
        p.kv_len[1] = 20;
        p.q_len[1] = 40; /* more drafts than tokens */
        p.kv_len[2] = 1100;
        p.q_len[2] = 5;
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

Test(masks, G10_tree_chain_equals_single_steps)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < PROBLEM_PAIRS; ++i) {
        problem p = masked(i, 0);
        trial whole, step;
        p.tree = TREE_CHAIN;
        p.q_len[0] = 4;
        trial_init(&whole, &l, &p);
        trial_fill(&whole);
        bool can = trial_attend(&whole);
        for (uint32_t row = 0; can && row < 4; ++row) {
            problem one = p;
            one.tree = TREE_NONE;
            one.q_len[0] = 1;
            one.kv_len[0] = p.kv_len[0] - 3u + row;
            trial_init(&step, &l, &one);
            trial_fill(&step);
            if (trial_attend(&step))
                trial_compare_rows(&step, 0, &whole, row, "single step");
            trial_free(&step);
        }
        trial_free(&whole);
    }
    lab_finish(&l);
}

/* ------------------------------------------------------------------------------------------------ empty rows */

Test(masks, A6_empty_sequences_in_a_batch)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < PROBLEM_PAIRS; ++i) {
        problem p = masked(i, NBL_ATTEND_CAUSAL);
        trial t;
        p.batch = 4;
        p.kv_len[1] = p.kv_len[3] = 0;
        p.kv_len[2] = 33;
        p.q_len[0] = p.q_len[1] = p.q_len[2] = p.q_len[3] = 1;
        trial_init(&t, &l, &p);
        trial_fill(&t);
        if (trial_attend(&t)) {
            expect_empty(&t, 1);
            expect_empty(&t, 3);
        }
        trial_free(&t);
    }
    lab_finish(&l);
}

Test(masks, A7_padded_batch_slots)
{
    lab l;
    lab_open(&l);
    problem p = masked(1, 0);
    trial t;
    p.batch = 16;
    for (uint32_t b = 0; b < p.batch; ++b)
        p.q_len[b] = 1;
    trial_init(&t, &l, &p);
    trial_fill(&t);
    if (trial_attend(&t)) {
        for (uint32_t b = 1; b < p.batch; ++b)
            expect_empty(&t, b);
    }
    trial_free(&t);
    lab_finish(&l);
}

Test(masks, A8_zero_length_query_segments)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 8; ++i) {
        problem p = masked(i, NBL_ATTEND_CAUSAL);
        p.batch = 5;
        p.q_len[0] = i % 2u == 0 ? 0 : 3;
        p.q_len[2] = 7;
        p.kv_len[1] = 50;
        p.kv_len[2] = 3;
        p.kv_len[3] = 0;
        p.q_len[4] = i / 4u;
        p.kv_len[4] = 20;
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

Test(masks, empty_rows_with_sinks_and_centres)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 8; ++i) {
        problem p = masked(i, NBL_ATTEND_CAUSAL);
        p.kv_len[0] = 10;
        p.q_len[0] = 15;
        p.sinks = true;
        p.shape.centering = i % 2u;
        p.want_state = i / 2u % 2u == 1;
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

/* Writes over all pages of a sequence that hold nothing but tokens before a position, on both sides. */
static void poison_before(trial *t, uint32_t position)
{
    const int32_t *table = (const void *)t->page_table.host;
    for (uint32_t i = 0; (i + 1u) * t->p.shape.page_tokens <= position; ++i) {
        const nbl_region *g = oracle_region(&t->pools[HOST], table[i]);
        uint32_t r = (uint32_t)(g - t->regions[HOST]);
        memset(oracle_page_codes(g, t->p.layer, table[i]), 0xFF, t->layouts[r].code_page_bytes);
        if (t->layouts[r].scale_page_bytes > 0)
            memset(oracle_page_scales(g, t->p.layer, table[i]), 0xFF, t->layouts[r].scale_page_bytes);
        buffer_upload(t->lab, &t->codes[r]);
        buffer_upload(t->lab, &t->scales[r]);
    }
}

Test(masks, tokens_outside_the_window_may_hold_anything)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 2u * PROBLEM_PAIRS + 1u; ++i) { /* decode, prefill, and the Blackwell core */
        problem p = masked(i, NBL_ATTEND_CAUSAL | NBL_ATTEND_WINDOW_LEFT);
        trial clean, t;
        p.kv_len[0] = 300;
        p.q_len[0] = i < PROBLEM_PAIRS ? 1 : 20;
        p.window_left = 70u - p.q_len[0]; /* the first visible token, 230, is inside a page and inside a tile */
        if (i == 2u * PROBLEM_PAIRS) {
            problem_formats(&p, NBL_NVFP4, NBL_FP8_E4M3);
            p.q_format = NBL_Q_FP4;
        }
        trial_init(&clean, &l, &p);
        trial_fill(&clean);
        trial_attend(&clean);
        trial_init(&t, &l, &p);
        trial_fill(&t);
        poison_before(&t, 230);
        if (trial_attend(&t))
            trial_compare_rows(&clean, 0, &t, 0, "tokens before the window poisoned");
        trial_free(&t);
        trial_free(&clean);
    }
    lab_finish(&l);
}

/* ------------------------------------------------------------------------------------------------ logits */

/* All queries 1, element d of key j is value(j), so that the logit is Dk * value(j) with sm_scale 1. */
static void run_logits(lab *l, trial *t, const problem *p, float (*value)(uint32_t j))
{
    problem q = *p;
    q.q_data = DATA_ONES;
    q.k_data = DATA_ONES;
    q.sm_scale = 1.0f;
    trial_init(t, l, &q);
    for (uint32_t j = 0; j < q.kv_len[0]; ++j) {
        for (uint32_t h = 0; h < q.shape.kv_heads; ++h) {
            for (uint32_t d = 0; d < q.shape.k_dim; ++d)
                oracle_tensor_set(&t->k.tensor[HOST], j, h, d, 0, value(j));
        }
    }
    buffer_upload(l, &t->k.memory);
    trial_fill(t);
    trial_attend(t);
}

/* Exact in the formats with E2M1 or halves; the logits are -98304 and -196608. */
static float very_negative(uint32_t j)
{
    return j % 3u == 0 ? -1536.0f : -3072.0f;
}

/* Exact in int8 and int4p (7 * 9 * 16 and 7 * 14 * 16); the logits are -64512 and -100352. */
static float very_negative_integer(uint32_t j)
{
    return j % 3u == 0 ? -1008.0f : -1568.0f;
}

static float very_negative_fp8(uint32_t j)
{
    return very_negative(j) / 8.0f;
}

/* A value of V that its format holds to 1 %: 1/6 is no E4M3, which nvfp4 would need for 1. */
static float near_value(const problem *p)
{
    return p->v_format[0] == NBL_NVFP4 ? 1.5f : 1.0f;
}

Test(masks, A1_all_logits_very_negative)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < PROBLEM_PAIRS; ++i) {
        problem p = masked(i, 0);
        trial t;
        double lse_error;
        p.q_len[0] = 1;
        p.v_data = DATA_ONES;
        p.head_scales = false;
        bool is_integer = p.k_format[0] == NBL_INT8 || p.k_format[0] == NBL_INT4P;
        bool is_fp8 = p.k_format[0] == NBL_FP8_E4M3; /* ends at 448: the same logits from more dimensions */
        p.shape.k_dim = is_fp8 ? 512 : 64;
        p.v_scale = near_value(&p);
        run_logits(&l, &t, &p, is_fp8 ? very_negative_fp8 : is_integer ? very_negative_integer : very_negative);
        double error = trial_error(&t, &lse_error);
        cr_assert(l.run == 0 || (error < 0.02 && lse_error < 0.02), "%s: relative error %g, lse off by %g", trial_text,
                  error, lse_error);
        trial_free(&t);
    }
    lab_finish(&l);
}

static float beyond_above(uint32_t j)
{
    return j % 2u == 0 ? 0x1p20f : 0x1p22f;
}

static float beyond_below(uint32_t j)
{
    return -beyond_above(j);
}

Test(masks, A1_logits_beyond_the_limit)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < PROBLEM_PAIRS; ++i) {
        problem p = masked(i, 0);
        trial t;
        if (p.k_format[0] == NBL_FP8_E4M3 || p.k_format[0] == NBL_NVFP4) /* K ends at 448, or at 6 * 448 */
            continue;
        p.head_scales = false;
        p.q_len[0] = 1;
        p.v_data = DATA_ONES;
        p.v_scale = near_value(&p);
        run_logits(&l, &t, &p, beyond_above);
        for (uint32_t d = 0; l.run > 0 && d < p.shape.v_dim; ++d) {
            float o = oracle_tensor_get(&t.o.tensor[HOST], 0, 0, d, 0);
            cr_assert(fabsf(o - p.v_scale) < 0.02f, "%s: o is %g although all values are %g", trial_text, (double)o,
                      (double)p.v_scale);
        }
        trial_free(&t);
        run_logits(&l, &t, &p, beyond_below);
        if (l.run > 0)
            expect_empty(&t, 0);
        trial_free(&t);
    }
    lab_finish(&l);
}

/* With queries of zero all tokens weigh alike, so that each one shows. Windows begin in the last tile of a chunk for
 * some rows of a work item and in the next chunk for others. */
Test(masks, windows_across_chunks_count_every_token)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < PROBLEM_PAIRS; ++i) {
        problem p = masked(i, 0);
        p.shape.k_dim = p.shape.v_dim = 64;
        p.shape.kv_heads = 1;
        p.q_heads = 7;
        p.shape.page_tokens = 64;
        p.kv_len[0] = 1100 + i % 8u;
        p.q_len[0] = 40;
        p.flags = NBL_ATTEND_CAUSAL | NBL_ATTEND_WINDOW_LEFT;
        p.window_left = 60 + i % 4u;
        p.q_data = DATA_ZERO;
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

static float beyond_late(uint32_t j)
{
    return j < 300 ? 1.0f : beyond_above(j);
}

static float beyond_early(uint32_t j)
{
    return j % 1024u < 128u ? beyond_above(j) : 1.0f;
}

/* In the first tile of a chunk, in a later one, in all: where tiles are worked on together, all of them must know. */
Test(masks, A1_logits_beyond_the_limit_in_chunks)
{
    static float (*const values[])(uint32_t) = {beyond_above, beyond_below, beyond_late, beyond_early};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < PROBLEM_INT_PAIRS * COUNT(values); ++i) {
        problem p = masked(i / COUNT(values), 0);
        trial t;
        p.kv_len[0] = 1500;
        p.q_len[0] = 1 + i % 5u;
        p.shape.page_tokens = 64;
        p.want_state = true;
        run_logits(&l, &t, &p, values[i % COUNT(values)]);
        trial_free(&t);
    }
    lab_finish(&l);
}

/* In the first tile of a chunk large, with bases from 2^19 to the limit, and far below zero in the others, which then
 * do not take part. With masks there are tiles of which a row sees nothing, too. */
static float sinking(uint32_t j)
{
    static const float tops[] = {5700.0f, 20000.0f, 40000.0f, 40160.0f, 40300.0f, 45000.0f};
    const float top = tops[j / 1024u % COUNT(tops)];
    return j % 1024u < 128u ? top : -top;
}

Test(masks, A1_large_logits_before_tiles_that_are_left_out)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < PROBLEM_INT_PAIRS; ++i) {
        problem p = masked(i, i % 2u == 0 ? NBL_ATTEND_CAUSAL : 0);
        trial t;
        p.shape.k_dim = p.shape.v_dim = 64;
        p.kv_len[0] = 6u * 1024u;
        p.q_len[0] = 9;
        p.want_state = true;
        run_logits(&l, &t, &p, sinking);
        trial_free(&t);
    }
    lab_finish(&l);
}

/* All logits equal: 0, or a little more or less, so that they are integers on the grid. Many tokens may be the one that
 * makes the base the next integer. */
static float level(uint32_t j)
{
    (void)j;
    return 0.0f;
}

static float just_above(uint32_t j)
{
    (void)j;
    return 0x1p-18f;
}

static float just_below(uint32_t j)
{
    return -just_above(j);
}

static float above_in_one(uint32_t j)
{
    return j % 1024u == 100u ? just_above(j) : level(j);
}

Test(masks, A1_equal_logits)
{
    static float (*const values[])(uint32_t) = {level, just_above, just_below, above_in_one};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < PROBLEM_INT_PAIRS * COUNT(values); ++i) {
        problem p = masked(i / COUNT(values), i % 3u == 0 ? NBL_ATTEND_CAUSAL : 0);
        trial t;
        p.kv_len[0] = 1100;
        p.q_len[0] = 21;
        p.want_state = i % 2u == 0;
        run_logits(&l, &t, &p, values[i % COUNT(values)]);
        trial_free(&t);
    }
    lab_finish(&l);
}

/* The largest logit rises by 44 base-2 units a tile, so that the base moves in nearly each. */
static float rising(uint32_t j)
{
    return (float)(j / 8u) * 0.03f;
}

static float falling(uint32_t j)
{
    return -rising(j);
}

static float alternating(uint32_t j)
{
    return j / 128u % 2u == 0 ? 0.0f : rising(j);
}

static float steep(uint32_t j)
{
    return (float)(j / 128u) * 4.0f; /* 369 base-2 units a tile: pow2 underflows to 0 */
}

static void run_rebases(float (*value)(uint32_t j))
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < PROBLEM_INT_PAIRS + 4u; ++i) {
        problem p = masked(i, 0);
        trial t;
        p.kv_len[0] = 1500;
        p.q_len[0] = 2;
        p.want_state = true;
        p.v_data = i % 3u == 0 ? DATA_SCALED : DATA_NORMAL;
        run_logits(&l, &t, &p, value);
        trial_free(&t);
    }
    lab_finish(&l);
}

Test(masks, rising_logits_move_the_base)
{
    run_rebases(rising);
}
Test(masks, falling_logits_leave_tiles_out)
{
    run_rebases(falling);
}
Test(masks, alternating_logits)
{
    run_rebases(alternating);
}
Test(masks, steeply_rising_logits)
{
    run_rebases(steep);
}

Test(masks, rising_logits_are_accurate)
{
    lab l;
    lab_open(&l);
    problem p = masked(0, 0);
    trial t;
    double lse_error;
    problem_formats(&p, NBL_INT8, NBL_INT8);
    p.kv_len[0] = 1024;
    p.q_len[0] = 1;
    p.v_data = DATA_ONES;
    run_logits(&l, &t, &p, steep);
    double error = trial_error(&t, &lse_error);
    cr_assert(l.run == 0 || (error < 0.005 && lse_error < 0.01), "relative error %g, lse off by %g", error, lse_error);
    trial_free(&t);
    lab_finish(&l);
}

Test(masks, alibi)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < PROBLEM_PAIRS; ++i) {
        problem p = masked(i, i % 2u == 0 ? 0 : NBL_ATTEND_CAUSAL);
        p.alibi = true;
        p.q_heads = 12;
        p.kv_len[0] = i % 3u == 0 ? 1200 : 90;
        p.q_len[0] = 3;
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

/* ------------------------------------------------------------------------------------------------ soft cap */

Test(masks, B4_soft_cap)
{
    static const float caps[] = {0.0f, 5.0f, 30.0f, 50.0f};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 2u * NBL_NVFP4 * COUNT(caps); ++i) {
        problem p = masked(i, NBL_ATTEND_CAUSAL);
        p.soft_cap = caps[i / 2u % COUNT(caps)];
        p.head_scales = false;
        p.q_format = NBL_Q_DEFAULT;
        problem_formats(&p, NBL_INT8 + i / 2u / COUNT(caps), NBL_INT8 + i / 2u / COUNT(caps));
        p.shape.k_dim = p.shape.v_dim = 256;
        p.q_len[0] = i % 2u == 0 ? 1 : 9;
        p.q_scale = 8.0f;
        p.alibi = i % 3u == 0;
        p.shape.centering =
            i % 5u == 0 ? NBL_CENTERING_SHIFT : 0; /* a shift leaves the logits alone, a mean does not */
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

Test(masks, B4_soft_cap_changes_the_output)
{
    lab l;
    lab_open(&l);
    for (uint32_t format = NBL_INT8; format <= NBL_INT4P; ++format) {
        problem p = masked(format, 0);
        trial plain, capped;
        problem_formats(&p, format, format);
        p.q_len[0] = 1;
        p.q_scale = 8.0f;
        trial_init(&plain, &l, &p);
        trial_fill(&plain);
        trial_attend(&plain);
        p.soft_cap = 5.0f;
        trial_init(&capped, &l, &p);
        trial_fill(&capped);
        if (trial_attend(&capped))
            cr_assert(memcmp(plain.o.memory.host, capped.o.memory.host, plain.o.memory.bytes) != 0,
                      "format %u: a soft cap of 5 changes nothing", format);
        trial_free(&capped);
        trial_free(&plain);
    }
    lab_finish(&l);
}

Test(masks, B12_soft_cap_with_centres_is_refused)
{
    lab l;
    lab_open(&l);
    problem p = masked(0, 0);
    trial t;
    nbl_error err = NBL_INIT(nbl_error);
    p.shape.centering = NBL_CENTERING_MEAN;
    trial_init(&t, &l, &p);
    trial_fill(&t);
    nbl_attend_args args = trial_attend_args(&t, DEVICE);
    args.soft_cap = 30.0f;
    lab_expect(l.api->attend(l.device, &args, &err), NBL_E_INVALID, "attend", &err);
    trial_compare_outputs(&t);
    ++l.run;
    trial_free(&t);
    lab_finish(&l);
}

/* ------------------------------------------------------------------------------------------------ sinks */

Test(masks, B2_sinks_with_key_scales)
{
    static const float scales[] = {0.25f, 1.0f, 4.0f};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < PROBLEM_PAIRS; ++i) {
        problem p = masked(i, NBL_ATTEND_CAUSAL);
        p.sinks = true;
        p.q_heads = 10; /* the fifth head of each ten has no sink */
        p.k_scale = scales[(i + i / 4u) % COUNT(scales)];
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

Test(masks, B3_sinks_x_formats_x_lengths)
{
    static const uint32_t lengths[] = {40, 1024, 2600};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < PROBLEM_PAIRS * COUNT(lengths); ++i) {
        problem p = masked(i, 0);
        const uint32_t length = i / PROBLEM_PAIRS;
        if (i % PROBLEM_PAIRS >= PROBLEM_INT_PAIRS && length != i % 2u) /* one length each: they take the oracle long */
            continue;
        p.sinks = true;
        p.kv_len[0] = lengths[length];
        p.q_len[0] = 1;
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

Test(masks, B3_sinks_change_the_output)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < PROBLEM_PAIRS; ++i) {
        problem p = masked(i, 0);
        trial plain, sunk;
        p.q_len[0] = 1;
        trial_init(&plain, &l, &p);
        trial_fill(&plain);
        trial_attend(&plain);
        p.sinks = true;
        p.sink_scale = 4.0f;
        trial_init(&sunk, &l, &p);
        trial_fill(&sunk);
        if (trial_attend(&sunk))
            cr_assert(memcmp(plain.o.memory.host, sunk.o.memory.host, plain.o.memory.bytes) != 0,
                      "pair %u: sinks change nothing", i);
        trial_free(&sunk);
        trial_free(&plain);
    }
    lab_finish(&l);
}

Test(masks, sinks_with_centres_and_caps)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 12; ++i) {
        problem p = masked(i, NBL_ATTEND_CAUSAL | (i % 2u == 0 ? NBL_ATTEND_LSE_BASE2 : 0u));
        p.sinks = true;
        p.shape.centering = i / 3u;
        p.soft_cap = (p.shape.centering & NBL_CENTERING_MEAN) != 0 ? 0.0f : 20.0f;
        p.k_data = DATA_OUTLIERS;
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

Test(masks, sinks_up_to_the_limit)
{
    static const float sinks[] = {-0x1p22f, 0x1p22f, -1e4f, 1e4f, 1e-30f, 0.0f, -0.0f};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 4u * COUNT(sinks); ++i) {
        problem p = masked(i, i % 2u == 0 ? 0 : NBL_ATTEND_CAUSAL);
        trial t;
        p.sinks = true;
        p.shape.centering = i / 2u % 2u;
        p.q_len[0] = 110; /* rows without tokens among them */
        trial_init(&t, &l, &p);
        for (uint32_t h = 0; h < p.q_heads; ++h)
            ((float *)(void *)t.sinks.host)[h] = sinks[i / 4u];
        buffer_upload(&l, &t.sinks);
        trial_fill(&t);
        trial_attend(&t);
        trial_free(&t);
    }
    lab_finish(&l);
}

Test(masks, alibi_slopes_up_to_the_limit)
{
    static const float slopes[] = {-0x1p16f, 0x1p16f, 0.0f, -0.0f, -1.0f, 1e-30f};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 4u * COUNT(slopes); ++i) {
        problem p = masked(i, i % 2u == 0 ? 0 : NBL_ATTEND_CAUSAL);
        trial t;
        p.alibi = true;
        trial_init(&t, &l, &p);
        for (uint32_t h = 0; h < p.q_heads; ++h)
            ((float *)(void *)t.slopes.host)[h] = slopes[i / 4u];
        buffer_upload(&l, &t.slopes);
        trial_fill(&t);
        trial_attend(&t);
        trial_free(&t);
    }
    lab_finish(&l);
}

/* Values outside NUM 5.1 in memory that only the device reads. */
static void refuse_head_values(lab *l, bool sinks, float value)
{
    problem p = masked(0, 0);
    trial t;
    nbl_error err = NBL_INIT(nbl_error);
    p.sinks = sinks;
    p.alibi = !sinks;
    trial_init(&t, l, &p);
    trial_fill(&t);
    buffer *b = sinks ? &t.sinks : &t.slopes;
    memcpy(b->host + sizeof value, &value, sizeof value);
    buffer_upload(l, b);
    nbl_attend_args args = trial_attend_args(&t, DEVICE);
    nbl_status status = trial_call_attend(&t, &args, &err);
    if (status == NBL_E_UNSUPPORTED) {
        ++l->unsupported;
        memcpy(l->reason, err.message, sizeof l->reason);
    } else {
        ++l->run;
        if (lab_expect_range(l, status, "attend"))
            trial_compare_outputs(&t);
    }
    trial_free(&t);
}

Test(masks, sinks_and_slopes_outside_are_refused)
{
    static const float values[] = {NAN, INFINITY, -INFINITY, 0x1.000002p22f, -0x1.000002p22f};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < COUNT(values); ++i) {
        if (values[i] != -INFINITY) /* no sink */
            refuse_head_values(&l, true, values[i]);
        refuse_head_values(&l, false, values[i]);
    }
    lab_finish(&l);
}
