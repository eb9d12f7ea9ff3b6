/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file test_append.c
 * @brief append against the oracle: bytes of pages, centres and counters (NUM 3, 4).
 */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

#define SWEEP_CASES 120u
#define FORMATS 4u

static void run(lab *l, const problem *p)
{
    trial t;
    trial_init(&t, l, p);
    trial_append(&t);
    trial_free(&t);
}

/* A short sequence that fills some pages and part of another. */
static problem append_problem(uint64_t seed)
{
    problem p = problem_default(lab_seed(seed));
    p.kv_len[0] = 37;
    p.q_len[0] = 0;
    return p;
}

Test(append, random_sweep)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < lab_cases(SWEEP_CASES); ++i) {
        problem p = problem_random(lab_seed(20000) + i);
        p.skip_every = i % 4u == 0 ? 3u : 0u;
        run(&l, &p);
    }
    lab_finish(&l);
}

Test(append, formats_x_rules_x_dtypes)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < FORMATS * 4u * 3u * DATA_KINDS; ++i) {
        problem p = append_problem(100 + i);
        problem_formats(&p, 1u + i % 4u, 1u + (i + i / 4u) % 4u);
        p.shape.k_scale_rule = 1u + i / 4u % 4u;
        p.shape.v_scale_rule = 1u + (i / 4u + 1u) % 4u;
        p.in_dtype = 1u + i / 16u % 3u;
        p.k_data = i / 48u;
        p.v_data = (i / 48u + 3u) % DATA_KINDS;
        run(&l, &p);
    }
    lab_finish(&l);
}

Test(append, hadamard_blocks)
{
    lab l;
    lab_open(&l);
    for (uint32_t block = 8; block <= 256; block *= 2u) {
        for (uint32_t other = 0; other <= 256; other = other == 0 ? 8u : other * 4u) {
            problem p = append_problem(block);
            p.shape.k_dim = p.shape.v_dim = 256;
            p.shape.k_hadamard = block;
            p.shape.v_hadamard = other;
            p.k_data = DATA_OUTLIERS;
            run(&l, &p);
        }
    }
    lab_finish(&l);
}

Test(append, hadamard_of_dimensions_that_are_no_power_of_two)
{
    lab l;
    lab_open(&l);
    for (uint32_t dim = 40; dim <= 320; dim += 40) {
        problem p = append_problem(dim);
        p.shape.k_dim = p.shape.v_dim = dim;
        p.shape.k_hadamard = dim & ~(dim - 1u); /* the largest that divides it */
        p.shape.v_hadamard = 8;
        run(&l, &p);
    }
    lab_finish(&l);
}

/* ------------------------------------------------------------------------------------------------ centres */

static problem center_problem(uint64_t seed, uint32_t mode)
{
    problem p = append_problem(seed);
    p.shape.centering = 1u + (uint32_t)seed % NBL_CENTERING_ALL;
    p.center_mode = mode;
    p.k_data = DATA_OUTLIERS;
    p.batch = 3;
    p.kv_len[1] = 64;
    p.kv_len[2] = 90;
    return p;
}

Test(append, centre_given)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 16; ++i) {
        problem p = center_problem(i, NBL_CENTER_USE);
        problem_formats(&p, 1u + i % 4u, 4u - i / 4u);
        p.shape.k_hadamard = i % 2u == 0 ? 0 : 64;
        run(&l, &p);
    }
    lab_finish(&l);
}

Test(append, centre_computed)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 16; ++i) {
        problem p = center_problem(i, NBL_CENTER_COMPUTE);
        problem_formats(&p, 1u + i % 4u, 4u - i / 4u);
        p.shape.k_hadamard = i % 2u == 0 ? 0 : 64;
        p.in_dtype = 1u + i % 3u;
        p.in_stride = i % STRIDE_KINDS;
        run(&l, &p);
    }
    lab_finish(&l);
}

Test(append, centre_computed_from_31_32_33_tokens)
{
    lab l;
    lab_open(&l);
    for (uint32_t tokens = 29; tokens < 36; ++tokens) {
        problem p = center_problem(tokens, NBL_CENTER_COMPUTE);
        p.kv_len[0] = tokens;
        p.kv_len[1] = 31;
        run(&l, &p);
    }
    lab_finish(&l);
}

Test(append, centre_of_a_sequence_without_tokens_is_kept)
{
    lab l;
    lab_open(&l);
    problem p = center_problem(1, NBL_CENTER_COMPUTE);
    for (p.shape.centering = 1; p.shape.centering <= NBL_CENTERING_ALL; ++p.shape.centering) {
        p.kv_len[0] = 40;
        p.kv_len[1] = 0; /* keeps its centre */
        run(&l, &p);
        p.kv_len[0] = p.kv_len[2] = 0;
        run(&l, &p);
    }
    lab_finish(&l);
}

Test(append, centre_computed_from_the_first_1024_tokens)
{
    lab l;
    lab_open(&l);
    for (uint32_t tokens = 1023; tokens <= 1300; tokens += tokens < 1026 ? 1u : 137u) {
        problem p = center_problem(tokens, NBL_CENTER_COMPUTE);
        p.batch = 1;
        p.kv_len[0] = tokens;
        p.shape.kv_heads = 1;
        run(&l, &p);
    }
    lab_finish(&l);
}

Test(append, centre_rows_through_an_index)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 6; ++i) {
        problem p = center_problem(i, i / 3u);
        p.center_rows = true;
        run(&l, &p);
    }
    lab_finish(&l);
}

Test(append, centre_counts_skipped_tokens_as_tokens)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 6; ++i) {
        problem p = center_problem(i, NBL_CENTER_COMPUTE);
        p.skip_every = 2;
        run(&l, &p);
    }
    lab_finish(&l);
}

Test(append, centre_of_extreme_values)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 4u * DATA_KINDS; ++i) {
        problem p = center_problem(i / DATA_KINDS, NBL_CENTER_COMPUTE);
        p.k_data = i % DATA_KINDS;
        p.k_scale = i / DATA_KINDS == 3 ? 0x1p-70f : 1.0f; /* variances that are subnormal or 0 */
        run(&l, &p);
    }
    lab_finish(&l);
}

/* ------------------------------------------------------------------------------------------------ strides */

Test(append, C4_C5_padded_and_interleaved_pages)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < POOL_LAYOUTS * 3u; ++i) {
        problem p = append_problem(i);
        p.pool_layout = i % POOL_LAYOUTS;
        p.shape.layers = 3;
        p.layer = i / POOL_LAYOUTS;
        p.region_count = 3;
        p.k_format[1] = p.v_format[2] = NBL_INT8;
        p.k_format[2] = NBL_MXFP4;
        p.v_format[1] = NBL_MXFP4_16;
        run(&l, &p);
    }
    lab_finish(&l);
}

Test(append, C7_strided_inputs)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < STRIDE_KINDS * 3u; ++i) {
        problem p = append_problem(i);
        p.in_stride = i % STRIDE_KINDS;
        p.in_dtype = 1u + i / STRIDE_KINDS;
        p.shape.kv_heads = 3;
        p.q_heads = 3;
        run(&l, &p);
    }
    lab_finish(&l);
}

Test(append, F1_page_sizes)
{
    static const uint32_t pages[] = {1, 2, 3, 5, 16, 31, 32, 33, 48, 64, 96, 100, 128, 160, 192, 224, 256, 512, 1024};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < FORMATS * sizeof pages / sizeof pages[0]; ++i) {
        problem p = append_problem(i);
        p.shape.page_tokens = pages[i / FORMATS];
        problem_formats(&p, 1u + i % FORMATS, 4u - i % FORMATS);
        p.kv_len[0] = 70;
        p.shape.k_dim = 40; /* padded to 64 */
        p.shape.v_dim = 72; /* padded to 96 */
        run(&l, &p);
    }
    lab_finish(&l);
}

Test(append, E4_head_dims)
{
    lab l;
    lab_open(&l);
    for (uint32_t dim = NBL_DIM_MIN; dim <= NBL_K_DIM_MAX; dim += NBL_DIM_STEP) {
        problem p = append_problem(dim);
        problem_formats(&p, 1u + dim / 8u % 4u, 1u + dim / 16u % 4u);
        p.kv_len[0] = 9;
        p.shape.k_dim = dim;
        p.shape.v_dim = dim <= NBL_V_DIM_MAX ? dim : NBL_V_DIM_MAX;
        run(&l, &p);
    }
    lab_finish(&l);
}

Test(append, C3_kv_heads)
{
    static const uint32_t heads[] = {1, 2, 3, 4, 5, 8, 16};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < sizeof heads / sizeof heads[0]; ++i) {
        problem p = append_problem(i);
        p.shape.kv_heads = p.q_heads = heads[i];
        run(&l, &p);
    }
    lab_finish(&l);
}

/* ------------------------------------------------------------------------------------------------ values */

/* Appends one token of one head whose K and V rows are given, and leaves the trial open. */
static void append_row(trial *t, lab *l, uint32_t format, const float *x, uint32_t dim)
{
    problem p = problem_default(1);
    problem_formats(&p, format, format);
    p.kv_len[0] = 1;
    p.q_len[0] = 0;
    p.shape.kv_heads = p.q_heads = 1;
    p.shape.k_dim = p.shape.v_dim = dim;
    trial_init(t, l, &p);
    memcpy(t->k.memory.host, x, dim * sizeof *x);
    memcpy(t->v.memory.host, x, dim * sizeof *x);
    buffer_upload(l, &t->k.memory);
    buffer_upload(l, &t->v.memory);
    trial_append(t);
}

Test(append, C15_nan_inf_and_huge_inputs_are_counted)
{
    const float inf = oracle_f32_from_bits(0x7F800000u), nan = oracle_f32_from_bits(0x7FC00001u);
    const float x[16] = {nan,  -nan,  inf,       -inf,       0x1p100f, -0x1p100f, 127.0f * 0x1p40f, 127.5f * 0x1p40f,
                         0.0f, -0.0f, 0x1p-149f, -0x1p-130f, 1.0f,     448.0f,    464.0f,           1e30f};
    lab l;
    lab_open(&l);
    for (uint32_t format = NBL_INT8; format <= NBL_INT4P; ++format) {
        trial t;
        append_row(&t, &l, format, x, 16);
        const nbl_quant_stats *stats = (const void *)t.stats.host;
        cr_assert(stats->vectors == 2 && stats->nan_inputs == 4 && stats->inf_inputs == 4 && stats->flushed == 0,
                  "format %u: %llu vectors, %llu NaN, %llu infinite, %llu flushed (wanted: 2, 4, 4, 0)", format,
                  (unsigned long long)stats->vectors, (unsigned long long)stats->nan_inputs,
                  (unsigned long long)stats->inf_inputs, (unsigned long long)stats->flushed);
        cr_assert(stats->saturated >= 6, "format %u: %llu saturated (wanted: at least the 6 beyond 127 * 2^40)", format,
                  (unsigned long long)stats->saturated);
        trial_free(&t);
    }
    lab_finish(&l);
}

Test(append, C10_zero_and_subnormal_inputs)
{
    static const float values[] = {0.0f,   -0.0f,   0x1p-149f, -0x1p-149f, 1e-40f,
                                   1e-30f, -1e-30f, 1e-10f,    0x1p-46f,   0x1p-41f};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 4u * sizeof values / sizeof values[0]; ++i) {
        float x[64] = {0};
        trial t;
        for (uint32_t d = 16; d < 48; ++d)
            x[d] = values[i / 4u];
        append_row(&t, &l, 1u + i % 4u, x, 64);
        trial_free(&t);
    }
    lab_finish(&l);
}

Test(append, C11_flushed_vectors_are_counted)
{
    const float x[16] = {0x1p-149f, -0x1p-130f, 1e-30f};
    lab l;
    lab_open(&l);
    for (uint32_t format = NBL_INT8; format <= NBL_INT4P; ++format) {
        trial t;
        append_row(&t, &l, format, x, 16);
        const nbl_quant_stats *stats = (const void *)t.stats.host;
        cr_assert(stats->flushed == 2 && stats->saturated == 0,
                  "format %u: %llu flushed, %llu saturated (wanted: 2, 0)", format, (unsigned long long)stats->flushed,
                  (unsigned long long)stats->saturated);
        trial_free(&t);
    }
    lab_finish(&l);
}

Test(append, C12_zero_vectors_get_the_smallest_scale)
{
    const float x[32] = {0.0f, -0.0f};
    lab l;
    lab_open(&l);
    for (uint32_t format = NBL_INT8; format <= NBL_INT4P; ++format) {
        trial t;
        oracle_vector stored;
        append_row(&t, &l, format, x, 32);
        oracle_slot_read(&t.pools[HOST], 0, *(const int64_t *)(void *)t.slots.host, ORACLE_K, 0, &stored);
        cr_assert(stored.exponent == ORACLE_EXPONENT_MIN, "format %u: a zero vector has exponent %d (wanted: %d)",
                  format, stored.exponent, ORACLE_EXPONENT_MIN);
        trial_free(&t);
    }
    lab_finish(&l);
}

Test(append, C13_E2M1_clipping_rules)
{
    /* amax from just above 6 to below 8 times a power of two: FLOOR clips all above 6, CEIL none, OPTIMAL from 7.25. */
    static const float tops[] = {6.0f, 6.001f, 6.5f, 7.0f, 7.25f, 7.251f, 7.5f, 7.999f, 8.0f};
    static const uint64_t clipped[][9] = {{0, 2, 2, 2, 2, 0, 0, 0, 0}, {0, 2, 2, 2, 2, 2, 2, 2, 0}, {0}};
    lab l;
    lab_open(&l);
    for (uint32_t rule = NBL_RULE_OPTIMAL; rule <= NBL_RULE_CEIL; ++rule) {
        for (uint32_t i = 0; i < sizeof tops / sizeof tops[0]; ++i) {
            problem p = append_problem(i);
            trial t;
            problem_formats(&p, NBL_MXFP4, NBL_MXFP4_16);
            p.kv_len[0] = 1;
            p.shape.kv_heads = p.q_heads = 1;
            p.shape.k_scale_rule = p.shape.v_scale_rule = rule;
            p.k_data = p.v_data = DATA_ZERO;
            trial_init(&t, &l, &p);
            oracle_tensor_set(&t.k.tensor[HOST], 0, 0, 3, 0, tops[i]);
            oracle_tensor_set(&t.v.tensor[HOST], 0, 0, 3, 0, -tops[i]);
            buffer_upload(&l, &t.k.memory);
            buffer_upload(&l, &t.v.memory);
            trial_append(&t);
            const nbl_quant_stats *stats = (const void *)t.stats.host;
            cr_assert(stats->saturated == clipped[rule - 1u][i],
                      "rule %u clips %llu of 2 elements of size %g (wanted: %llu)", rule,
                      (unsigned long long)stats->saturated, (double)tops[i], (unsigned long long)clipped[rule - 1u][i]);
            trial_free(&t);
        }
    }
    lab_finish(&l);
}

/* Elements clamped when keys of some size are appended. */
static uint64_t clamped(lab *l, uint32_t format, float k_scale)
{
    problem p = append_problem(1);
    trial t;
    problem_formats(&p, format, format);
    p.k_scale = k_scale;
    trial_init(&t, l, &p);
    trial_append(&t);
    uint64_t count = ((const nbl_quant_stats *)(const void *)t.stats.host)->saturated;
    trial_free(&t);
    return count;
}

Test(append, D2_large_keys_are_scaled)
{
    lab l;
    lab_open(&l);
    for (uint32_t format = NBL_INT8; format <= NBL_INT4P; ++format) {
        uint64_t small = clamped(&l, format, 1.0f), large = clamped(&l, format, 512.0f);
        cr_assert(large == small, "format %u: %llu elements are clamped, and %llu once they are 512 times larger",
                  format, (unsigned long long)small, (unsigned long long)large);
        cr_assert(format != NBL_INT8 || large == 0, "int8 clamps %llu elements", (unsigned long long)large);
    }
    lab_finish(&l);
}

Test(append, D5_small_first_then_large)
{
    lab l;
    lab_open(&l);
    for (uint32_t format = NBL_INT8; format <= NBL_INT4P; ++format) {
        problem p = append_problem(format);
        problem_formats(&p, format, format);
        p.k_data = p.v_data = DATA_SCALED; /* neighbouring tokens differ by up to 2^16 */
        run(&l, &p);
    }
    lab_finish(&l);
}

/* ------------------------------------------------------------------------------------------------ calls */

Test(append, skipped_slots)
{
    lab l;
    lab_open(&l);
    for (uint32_t every = 1; every < 6; ++every) {
        problem p = append_problem(every);
        p.skip_every = every;
        run(&l, &p);
    }
    lab_finish(&l);
}

Test(append, no_tokens)
{
    lab l;
    lab_open(&l);
    problem p = append_problem(1);
    p.kv_len[0] = 0;
    run(&l, &p);
    lab_finish(&l);
}

/* Appends in parts of some tokens on the backend alone; the oracle has appended all at once. */
static void run_in_parts(lab *l, const problem *p, uint32_t part)
{
    trial t;
    trial_init(&t, l, p);
    nbl_append_args host = trial_append_args(&t, HOST);
    oracle_append(&host);
    if (p->shape.centering) {
        buffer_upload(l, &t.center_codes);
        buffer_upload(l, &t.center_exponents);
    }
    for (uint32_t at = 0; at < t.tokens; at += part)
        trial_append_part(&t, at, part < t.tokens - at ? part : t.tokens - at);
    trial_compare_pools(&t);
    trial_free(&t);
}

Test(append, G1_chunking_40x1_8x5_1x40)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < PROBLEM_PAIRS; ++i) {
        problem p = append_problem(i);
        trial t;
        problem_pair(&p, i);
        p.kv_len[0] = 40;
        p.shape.centering = (i + i / 4u) % (NBL_CENTERING_ALL + 1u);
        p.shape.k_hadamard = i / 2u % 2u != 0 ? 32 : 0;
        p.in_dtype = NBL_BF16;
        trial_init(&t, &l, &p);
        bool can = trial_append(&t);
        trial_free(&t);
        for (uint32_t part = 1; can && part <= 40; part += part == 1 ? 4u : part == 5 ? 8u : 27u)
            run_in_parts(&l, &p, part);
    }
    lab_finish(&l);
}

/* Inputs that append may not write: as they were, on the backend's side. */
static void compare_inputs(trial *t)
{
    view_compare(t->lab, &t->k, "k");
    view_compare(t->lab, &t->v, "v");
    buffer_compare(t->lab, &t->slots, sizeof(int64_t), "slots");
    buffer_compare(t->lab, &t->seq_indptr, sizeof(int32_t), "seq_indptr");
}

Test(append, D7_inputs_are_const)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 6; ++i) {
        problem p = center_problem(i, i % 2u == 0 ? NBL_CENTER_COMPUTE : NBL_CENTER_USE);
        trial t;
        p.kv_len[0] = 12;
        p.shape.k_hadamard = p.shape.v_hadamard = 64;
        p.in_dtype = 1u + i % 3u;
        p.in_stride = i % STRIDE_KINDS;
        trial_init(&t, &l, &p);
        trial_append(&t);
        compare_inputs(&t);
        trial_free(&t);
    }
    lab_finish(&l);
}

Test(append, D7_twelve_tokens_have_no_centre)
{
    lab l;
    lab_open(&l);
    problem p = center_problem(3, NBL_CENTER_COMPUTE);
    trial t;
    p.shape.centering = NBL_CENTERING_ALL;
    p.batch = 1;
    p.kv_len[0] = 12;
    trial_init(&t, &l, &p);
    if (trial_append(&t)) {
        for (uint32_t d = 0; d < p.shape.kv_heads * p.shape.k_dim; ++d)
            cr_assert(t.center_codes.host[d] == 0 && t.center_shifts.host[d] == 0,
                      "12 tokens give element %u the centre %d, the shift %u", d, (int8_t)t.center_codes.host[d],
                      t.center_shifts.host[d]);
        cr_assert(t.center_exponents.host[0] == 127 + ORACLE_EXPONENT_MIN, "its exponent is %u (wanted: %d)",
                  t.center_exponents.host[0], 127 + ORACLE_EXPONENT_MIN);
    }
    trial_free(&t);
    lab_finish(&l);
}

Test(append, counters_are_added_to)
{
    lab l;
    lab_open(&l);
    problem p = append_problem(1);
    trial t;
    p.k_data = DATA_BITS;
    trial_init(&t, &l, &p);
    memset(t.stats.host, 0x11, t.stats.bytes);
    buffer_upload(&l, &t.stats);
    trial_append(&t);
    trial_free(&t);
    lab_finish(&l);
}

Test(append, counters_may_be_absent)
{
    lab l;
    lab_open(&l);
    problem p = append_problem(1);
    trial t;
    trial_init(&t, &l, &p);
    nbl_append_args device = trial_append_args(&t, DEVICE), host = trial_append_args(&t, HOST);
    nbl_error err = NBL_INIT(nbl_error);
    device.stats = host.stats = NULL;
    nbl_status status = trial_call_append(&t, &device, &err);
    if (status == NBL_E_UNSUPPORTED) {
        ++l.unsupported;
        memcpy(l.reason, err.message, sizeof l.reason);
    } else {
        lab_expect(status, NBL_OK, "append", &err);
        oracle_append(&host);
        trial_compare_pools(&t);
        ++l.run;
    }
    trial_free(&t);
    lab_finish(&l);
}
