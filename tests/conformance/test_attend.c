/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file test_attend.c
 * @brief attend against the oracle: shapes, formats, lengths (NUM 5).
 */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

#define SWEEP_CASES 75u
#define FORMATS 8u
#define COUNT(list) ((uint32_t)(sizeof(list) / sizeof(list)[0]))

static void sweep(uint64_t first_seed)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < lab_cases(SWEEP_CASES); ++i) {
        problem p = problem_random(lab_seed(first_seed) + i);
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

Test(attend, random_sweep_1)
{
    sweep(1000);
}
Test(attend, random_sweep_2)
{
    sweep(2000);
}
Test(attend, random_sweep_3)
{
    sweep(3000);
}
Test(attend, random_sweep_4)
{
    sweep(4000);
}

/* Formats, rules and transforms that change with i, so that a list of shapes meets them all. */
static problem varied(uint32_t i)
{
    problem p = problem_default(lab_seed(500) + i);
    problem_formats(&p, 1u + i % FORMATS, 1u + (i + i / FORMATS) % FORMATS);
    p.q_format = 1u + i % 2u;
    p.shape.k_scale_rule = 1u + i % 4u;
    p.in_dtype = 1u + i % 3u;
    p.out_dtype = 1u + i / 2u % 3u;
    p.flags = i % 2u == 0 ? NBL_ATTEND_CAUSAL : 0u;
    return p;
}

/* ------------------------------------------------------------------------------------------------ dimensions */

static void run_dims(lab *l, uint32_t k_dim, uint32_t v_dim, uint32_t i)
{
    problem p = varied(i);
    p.shape.k_dim = k_dim;
    p.shape.v_dim = v_dim;
    p.kv_len[0] = 143;
    p.q_len[0] = 2;
    trial_run(l, &p);
}

Test(attend, E1_head_dims_64_96_128_256_512)
{
    static const uint32_t dims[] = {64, 96, 128, 256, 512};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < FORMATS * COUNT(dims); ++i)
        run_dims(&l, dims[i / FORMATS], dims[i / FORMATS], i);
    lab_finish(&l);
}

Test(attend, E2_head_dims_80_112_160_192)
{
    static const uint32_t dims[] = {80, 112, 160, 192};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < FORMATS * COUNT(dims); ++i)
        run_dims(&l, dims[i / FORMATS], dims[i / FORMATS], i);
    lab_finish(&l);
}

Test(attend, E4_head_dims_16_to_512_step_8)
{
    lab l;
    lab_open(&l);
    for (uint32_t dim = NBL_DIM_MIN; dim <= NBL_V_DIM_MAX; dim += NBL_DIM_STEP)
        run_dims(&l, dim, dim, dim / NBL_DIM_STEP * 5u);
    lab_finish(&l);
}

Test(attend, E5_E7_head_dims_40_72_120_are_padded)
{
    static const uint32_t dims[] = {40, 72, 80, 120};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 16u * COUNT(dims); ++i)
        run_dims(&l, dims[i / 16u], dims[(i + 1u) % COUNT(dims)], i);
    lab_finish(&l);
}

Test(attend, E5_head_dim_100_is_refused)
{
    lab l;
    lab_open(&l);
    problem p = varied(0);
    trial t;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_page_layout layout = NBL_INIT(nbl_page_layout);
    trial_init(&t, &l, &p);
    trial_fill(&t);
    t.p.shape.k_dim = 100;
    lab_expect(l.api->kv_layout(&t.p.shape, NBL_INT8, NBL_INT8, &layout, &err), NBL_E_INVALID, "kv_layout", &err);
    cr_assert(strstr(err.message, "k_dim") != NULL && strstr(err.message, "100") != NULL,
              "the message names neither k_dim nor 100: %s", err.message);
    nbl_attend_args args = trial_attend_args(&t, DEVICE);
    args.q.shape[2] = 100;
    lab_expect(l.api->attend(l.device, &args, &err), NBL_E_INVALID, "attend", &err);
    trial_compare_outputs(&t);
    ++l.run;
    trial_free(&t);
    lab_finish(&l);
}

Test(attend, E14_key_and_value_dims_differ)
{
    static const uint32_t dims[][2] = {{192, 128}, {576, 512}, {320, 256}, {64, 512}, {512, 64}, {16, 40}};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 8u * COUNT(dims); ++i)
        run_dims(&l, dims[i / 8u][0], dims[i / 8u][1], i);
    lab_finish(&l);
}

Test(attend, E14_values_are_a_view_of_the_keys)
{
    lab l;
    lab_open(&l);
    problem p = varied(1);
    trial t;
    p.shape.kv_heads = 1;
    p.shape.k_dim = 320;
    p.shape.v_dim = 256;
    trial_init(&t, &l, &p);
    for (enum side side = HOST; side <= DEVICE; ++side) {
        t.v.tensor[side].data = t.k.tensor[side].data;
        memcpy(t.v.tensor[side].stride_bytes, t.k.stride, sizeof t.k.stride);
    }
    if (trial_append(&t))
        trial_attend(&t);
    trial_free(&t);
    lab_finish(&l);
}

/* ------------------------------------------------------------------------------------------------ heads */

static void run_heads(lab *l, uint32_t q_heads, uint32_t kv_heads, uint32_t i)
{
    problem p = varied(i);
    p.shape.kv_heads = kv_heads;
    p.q_heads = q_heads;
    p.q_len[0] = 1u + i % 3u;
    trial_run(l, &p);
}

Test(attend, E8_E9_E10_group_sizes)
{
    static const uint32_t heads[][2] = {{1, 1},  {2, 2},  {8, 2},  {4, 1},  {20, 4}, {24, 4}, {28, 4}, {40, 8},
                                        {14, 2}, {64, 4}, {71, 1}, {25, 5}, {16, 2}, {32, 1}, {96, 3}};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 3u * COUNT(heads); ++i)
        run_heads(&l, heads[i / 3u][0], heads[i / 3u][1], i);
    lab_finish(&l);
}

Test(attend, E9_ratio_7_in_every_format)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < FORMATS * FORMATS; ++i)
        run_heads(&l, 28, 4, i);
    lab_finish(&l);
}

/* ------------------------------------------------------------------------------------------------ pages */

static void run_pages(lab *l, uint32_t page_tokens, uint32_t dim, uint32_t kv_len, uint32_t i)
{
    problem p = varied(i);
    p.shape.page_tokens = page_tokens;
    p.shape.k_dim = p.shape.v_dim = dim;
    p.kv_len[0] = kv_len;
    p.pool_layout = i % POOL_LAYOUTS;
    trial_run(l, &p);
}

Test(attend, F1_page_sizes_1_to_224)
{
    static const uint32_t pages[] = {1, 5, 16, 31, 32, 33, 48, 64, 96, 100, 128, 160, 192, 224};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 4u * COUNT(pages); ++i)
        run_pages(&l, pages[i / 4u], 64, 450, i);
    lab_finish(&l);
}

Test(attend, F2_page_sizes_256_512_1024)
{
    static const uint32_t pages[] = {256, 512, 1024};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 8u * COUNT(pages); ++i)
        run_pages(&l, pages[i / 8u], 64, 1100 + i, i);
    lab_finish(&l);
}

Test(attend, E13_head_dim_x_page_size)
{
    static const uint32_t pages[] = {1, 16, 32, 64, 128}, dims[] = {64, 128, 192, 256};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 2u * COUNT(pages) * COUNT(dims); ++i)
        run_pages(&l, pages[i / 2u % COUNT(pages)], dims[i / 2u / COUNT(pages)], 150, i);
    lab_finish(&l);
}

Test(attend, C4_C5_padded_and_interleaved_pages)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 3u * POOL_LAYOUTS; ++i) {
        problem p = varied(i);
        p.pool_layout = i % POOL_LAYOUTS;
        p.shape.layers = 3;
        p.layer = i / POOL_LAYOUTS;
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

/* ------------------------------------------------------------------------------------------------ lengths */

static void run_lengths(lab *l, uint32_t q_len, uint32_t kv_len, uint32_t i)
{
    problem p = varied(i);
    p.kv_len[0] = kv_len;
    p.q_len[0] = q_len;
    p.q_heads = p.shape.kv_heads;
    trial_run(l, &p);
}

Test(attend, A13_A15_kv_lengths_0_to_1001)
{
    static const uint32_t lengths[] = {0, 1, 2, 9, 13, 31, 32, 33, 63, 65, 127, 128, 129, 255, 257, 503, 1001};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 3u * COUNT(lengths); ++i)
        run_lengths(&l, 1, lengths[i / 3u], i);
    lab_finish(&l);
}

Test(attend, kv_lengths_around_chunks)
{
    static const uint32_t lengths[] = {1023, 1024, 1025, 2047, 2048, 2049, 4090};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 3u * COUNT(lengths); ++i)
        run_lengths(&l, 1 + i % 2u, lengths[i / 3u], i);
    lab_finish(&l);
}

Test(attend, q_lengths)
{
    static const uint32_t lengths[] = {0, 1, 3, 17, 63, 64, 65, 130};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 2u * COUNT(lengths); ++i)
        run_lengths(&l, lengths[i / 2u], 200, i);
    lab_finish(&l);
}

Test(attend, more_queries_than_tokens)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 8; ++i)
        run_lengths(&l, 40, i * 6u, i);
    lab_finish(&l);
}

Test(attend, G11_tail_prefill_in_every_format)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < FORMATS * FORMATS; ++i) {
        problem p = varied(i);
        p.batch = 2;
        p.kv_len[0] = 150;
        p.q_len[0] = 22;
        p.kv_len[1] = 22;
        p.q_len[1] = 22;
        p.flags = NBL_ATTEND_CAUSAL;
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

/* ------------------------------------------------------------------------------------------------ formats */

Test(attend, formats_all_pairs_q8_and_q4)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 3u * FORMATS * FORMATS; ++i) {
        problem p = problem_default(lab_seed(700) + i);
        problem_formats(&p, 1u + i % FORMATS, 1u + i / FORMATS % FORMATS);
        p.q_format = i / (FORMATS * FORMATS);
        p.k_data = p.v_data = DATA_BLOCKS;
        p.kv_len[0] = 260;
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

Test(attend, rules_of_mxfp4)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 25; ++i) {
        problem p = problem_default(lab_seed(750) + i);
        problem_formats(&p, NBL_MXFP4, NBL_MXFP4_16);
        p.shape.k_scale_rule = i % 5u;
        p.shape.v_scale_rule = i / 5u;
        p.k_data = p.v_data = DATA_BLOCKS;
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

Test(attend, mixed_formats_in_one_sequence)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 24; ++i) {
        problem p = problem_default(lab_seed(800) + i);
        p.region_count = 3;
        p.k_format[1] = p.v_format[1] = NBL_INT8;
        p.k_format[2] = 1u + i % 4u;
        p.v_format[2] = 4u - i / 6u;
        p.shape.page_tokens = i % 3u == 0 ? 16u : i % 3u == 1 ? 33u : 7u;
        p.kv_len[0] = 400;
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

Test(attend, sink_pages_in_int8)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < FORMATS * FORMATS; ++i) {
        problem p = varied(i);
        p.region_count = 2;
        p.k_format[1] = p.k_format[0];
        p.v_format[1] = p.v_format[0];
        p.k_format[0] = p.v_format[0] = NBL_INT8;
        p.region_pages[0] = 1;
        if (p.k_format[1] == NBL_FORMAT_FP16 || p.v_format[1] == NBL_FORMAT_FP16)
            continue; /* fp16 pages do not mix with others: NUM 6.1 */
        p.page_order = ORDER_SEQUENTIAL;
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

Test(attend, hadamard_and_centres)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 32; ++i) {
        problem p = varied(i);
        p.shape.k_dim = p.shape.v_dim = 128;
        p.shape.k_hadamard = i % 4u == 0 ? 0 : 16u << i % 4u;
        p.shape.v_hadamard = i / 4u % 4u == 0 ? 0 : 8u << i / 4u % 4u;
        p.shape.centering = i / 8u;
        p.center_rows = i % 2u == 1;
        p.center_mode = i % 2u;
        p.k_data = DATA_OUTLIERS;
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

Test(attend, B7_scales_differ_between_keys_values_heads_and_sequences)
{
    static const float scales[] = {0.25f, 0.5f, 1.0f, 4.0f};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 16; ++i) {
        problem p = varied(i);
        p.batch = 2;
        p.kv_len[1] = 77;
        p.q_len[1] = 1;
        p.k_data = p.v_data = DATA_SCALED;
        p.k_scale = scales[i % 4u];
        p.v_scale = scales[3u - i / 4u];
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

Test(attend, B6_softmax_scales)
{
    static const float scales[] = {0x1p-24f, 0.01f, 0.25f, 0.5f, 1.0f, 100.0f, 0x1p16f};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 4u * COUNT(scales); ++i) {
        problem p = varied(i);
        p.sm_scale = scales[i / 4u];
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

Test(attend, D3_distributions)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < DATA_KINDS * DATA_KINDS; ++i) {
        problem p = varied(i);
        p.k_data = i % DATA_KINDS;
        p.v_data = i / DATA_KINDS;
        p.q_data = (i + i / DATA_KINDS) % DATA_KINDS;
        p.kv_len[0] = 140;
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

/* A bound of NBL_KV_TOKENS_MAX query rows times 256 query heads is 2^32. */
Test(attend, query_bounds_far_above_what_is_there)
{
    static const uint32_t formats[][2] = {
        {NBL_INT4P, NBL_INT4P}, {NBL_MXFP4, NBL_INT8}, {NBL_INT8, NBL_INT8}, {NBL_FORMAT_BF16, NBL_FORMAT_BF16}};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 8; ++i) {
        problem p = problem_default(lab_seed(950) + i);
        trial t;
        problem_formats(&p, formats[i % 4u][0], formats[i % 4u][1]);
        p.q_heads = 256;
        p.shape.kv_heads = 1;
        p.shape.page_tokens = 32;
        p.want_state = i / 4u == 1u;
        trial_init(&t, &l, &p);
        t.q_len_max = NBL_KV_TOKENS_MAX;
        trial_fill(&t);
        trial_attend(&t);
        trial_free(&t);
    }
    lab_finish(&l);
}

Test(attend, zero_keys_values_and_queries)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 8u * FORMATS; ++i) {
        problem p = varied(i);
        p.k_data = (i & 4u) != 0 ? DATA_ZERO : DATA_NORMAL;
        p.v_data = (i & 8u) != 0 ? DATA_ZERO : DATA_NORMAL;
        p.q_data = (i & 16u) != 0 ? DATA_ZERO : DATA_NORMAL;
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

/* ------------------------------------------------------------------------------------------------ tensors */

Test(attend, types_and_strides_of_tensors)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 3u * STRIDE_KINDS * STRIDE_KINDS; ++i) {
        problem p = problem_default(lab_seed(900) + i);
        p.in_dtype = 1u + i % 3u;
        p.out_dtype = 1u + (i + i / 3u) % 3u;
        p.in_stride = i / 3u % STRIDE_KINDS;
        p.out_stride = i / 3u / STRIDE_KINDS;
        p.q_len[0] = 4;
        p.want_state = i % 2u == 0;
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

Test(attend, outputs_may_be_absent)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 1; i < 16; ++i) {
        problem p = varied(i);
        p.want_o = (i & 1u) != 0;
        p.want_lse = (i & 2u) != 0;
        p.want_state = (i & 4u) != 0;
        p.kv_len[0] = (i & 8u) != 0 ? 1500 : 80;
        if ((i & 7u) != 0)
            trial_run(&l, &p);
    }
    lab_finish(&l);
}

Test(attend, lse_in_both_bases)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 8; ++i) {
        problem p = varied(i);
        p.flags |= NBL_ATTEND_LSE_BASE2;
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

Test(attend, outputs_beyond_half_precision)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 12; ++i) {
        problem p = varied(i);
        p.v_scale = i % 2u == 0 ? 60000.0f : 0x1p-20f; /* NUM 1.1: overflow to infinity, subnormals kept */
        p.in_dtype = NBL_F32;
        p.out_dtype = 2u + i / 2u % 2u;
        p.v_data = i / 4u == 2 ? DATA_ONES : DATA_NORMAL;
        trial_run(&l, &p);
    }
    lab_finish(&l);
}

Test(attend, inputs_are_const)
{
    lab l;
    lab_open(&l);
    problem p = varied(3);
    trial t;
    p.shape.centering = NBL_CENTERING_ALL;
    p.sinks = p.alibi = true;
    p.kv_len[0] = 1300;
    trial_init(&t, &l, &p);
    trial_fill(&t);
    if (trial_attend(&t)) {
        trial_compare_pools(&t);
        view_compare(&l, &t.q, "q");
        buffer_compare(&l, &t.page_table, sizeof(int32_t), "page_table");
        buffer_compare(&l, &t.sinks, sizeof(float), "sinks");
        buffer_compare(&l, &t.slopes, sizeof(float), "alibi_slopes");
        buffer_compare(&l, &t.kv_len, sizeof(int32_t), "kv_len");
    }
    trial_free(&t);
    lab_finish(&l);
}
