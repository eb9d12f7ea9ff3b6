/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's attention against binary64 softmax, and the invariants of NUM 5. */
#include "test_oracle_support.h"

static const cache_params plain = {.k_formats = {NBL_INT8, NBL_INT8},
                                   .v_formats = {NBL_INT8, NBL_INT8},
                                   .kv_heads = 2,
                                   .q_heads = 4,
                                   .k_dim = 64,
                                   .v_dim = 64,
                                   .page_tokens = 16,
                                   .batch = 3,
                                   .kv_len = {300, 1, 1100},
                                   .q_len = {5, 1, 3},
                                   .seed = 1};

static void expect_close(cache *c, double o_limit, double lse_limit, const char *what)
{
    double lse_error;
    double error = cache_error(c, cache_attend_copy(c), &lse_error);
    cr_log_info("%s: rel L2 %.5f, lse %.5f", what, error, lse_error);
    cr_expect_lt(error, o_limit, "%s: relative L2 error of o is %g", what, error);
    cr_expect_lt(lse_error, lse_limit, "%s: error of lse is %g", what, lse_error);
    cr_expect(error > 0.0, "%s: nothing was computed", what);
}

/* Puts what the cache stores in place of what was appended, and of Q its q8 form: quantizing is then no error. */
static void use_stored_numbers(cache *c)
{
    nbl_gather_args gather = NBL_INIT(nbl_gather_args);
    float *q = c->attend.q.data;

    gather.pool = &c->pool;
    gather.batch = c->append.batch;
    gather.slots = c->append.slots;
    gather.seq_indptr = c->append.seq_indptr;
    gather.centers = c->append.centers;
    gather.k = c->append.k;
    gather.v = c->append.v;
    oracle_gather(&gather);
    for (uint32_t i = 0; i < c->rows_out; i++) {
        oracle_vector stored;
        oracle_quantize_query(NBL_Q8, q + i * c->shape.k_dim, c->shape.k_dim, &stored);
        oracle_decode(&stored, q + i * c->shape.k_dim);
    }
}

/* What is left is the error of the scalar steps: the grid of 1/256 and 8 bits of P. V has one format, for P has fewer
 * bits where the exponents of V in a tile differ. */
Test(oracle_attend, steps_alone_are_exact_to_eight_bits)
{
    static const float sinks[4] = {0.0f, 3.0f, -INFINITY, -4.0f};
    static const float slopes[4] = {0.5f, 0.25f, 0.0625f, 2.0f};
    for (uint32_t format = NBL_INT8; format <= NBL_INT4P; format++) {
        cache_params p = plain;
        cache c;
        p.k_formats[0] = p.v_formats[0] = p.v_formats[1] = format;
        p.centering = format % 2u;
        p.k_bias = format % 2u ? 10.0f : 0.0f;
        cache_init(&c, &p);
        use_stored_numbers(&c);
        expect_close(&c, 0.005, 0.003, "stored");
        c.attend.flags = NBL_ATTEND_CAUSAL;
        c.attend.sinks = sinks;
        c.attend.alibi_slopes = slopes;
        expect_close(&c, 0.005, 0.003, "stored, causal, sinks, ALiBi");
        if (!p.centering) {
            c.attend.soft_cap = 1.5f;
            expect_close(&c, 0.005, 0.003, "stored, soft cap");
        }
        cache_free(&c);
    }
}

Test(oracle_attend, int8_is_close_to_softmax)
{
    cache c;
    cache_init(&c, &plain);
    expect_close(&c, 0.02, 0.04, "plain");
    c.attend.flags = NBL_ATTEND_CAUSAL;
    expect_close(&c, 0.02, 0.04, "causal");
    c.attend.flags |= NBL_ATTEND_WINDOW_LEFT | NBL_ATTEND_LSE_BASE2;
    c.attend.window_left = 40;
    expect_close(&c, 0.02, 0.04, "causal window, base 2");
    c.attend.flags = NBL_ATTEND_WINDOW_LEFT | NBL_ATTEND_WINDOW_RIGHT;
    c.attend.window_right = 1;
    expect_close(&c, 0.02, 0.04, "two-sided window");
    c.attend.flags = 0;
    c.attend.range_begin = 0;
    c.attend.range_end = 1024;
    expect_close(&c, 0.02, 0.04, "range");
    c.attend.range_begin = 1024;
    c.attend.range_end = 2048;
    expect_close(&c, 0.02, 0.04, "second range");
    cache_free(&c);
}

Test(oracle_attend, terms_of_the_logit_are_close_to_softmax)
{
    const float slopes[4] = {0.5f, 0.25f, 0.0625f, 2.0f};
    const float sinks[4] = {0.0f, 3.0f, -INFINITY, -4.0f};
    cache c;

    cache_init(&c, &plain);
    c.attend.sm_scale = 0.5f;
    expect_close(&c, 0.05, 0.12, "larger scale");
    c.attend.soft_cap = 2.0f;
    expect_close(&c, 0.02, 0.06, "soft cap");
    c.attend.soft_cap = 0.0f;
    c.attend.sm_scale = 0.0f;
    c.attend.alibi_slopes = slopes;
    expect_close(&c, 0.02, 0.04, "ALiBi");
    c.attend.sinks = sinks;
    expect_close(&c, 0.02, 0.04, "ALiBi and sinks");
    c.attend.alibi_slopes = NULL;
    expect_close(&c, 0.02, 0.04, "sinks");
    cache_free(&c);
}

Test(oracle_attend, transforms_and_shapes_are_close_to_softmax)
{
    cache_params p = plain;
    cache c;

    p.k_dim = 128;
    p.v_dim = 40;
    p.k_hadamard = 64;
    p.v_hadamard = 8;
    p.q_heads = 6;
    p.page_tokens = 33;
    cache_init(&c, &p);
    expect_close(&c, 0.02, 0.04, "Hadamard, Dk != Dv");
    cache_free(&c);
    p.k_bias = 20.0f;
    p.centering = 1;
    p.k_hadamard = 0;
    cache_init(&c, &p);
    expect_close(&c, 0.03, 0.5, "centring against a bias");
    cache_free(&c);
    p.k_hadamard = 128;
    p.v_dim = 256;
    p.v_hadamard = 256;
    cache_init(&c, &p);
    expect_close(&c, 0.03, 0.5, "centring and Hadamard");
    cache_free(&c);
}

/* Short sequences have no centre (NUM 4.2), so the bias stays in K: the centre must pay. */
Test(oracle_attend, centring_pays)
{
    cache_params p = plain;
    double error[2];
    double lse_error;
    cache c;

    p.k_bias = 30.0f;
    p.batch = 1;
    for (uint32_t centering = 0; centering < 2; centering++) {
        p.centering = centering;
        cache_init(&c, &p);
        error[centering] = cache_error(&c, cache_attend_copy(&c), &lse_error);
        cache_free(&c);
    }
    cr_expect_lt(error[1], error[0] / 4.0, "%g with, %g without", error[1], error[0]);
}

Test(oracle_attend, four_bit_formats_are_ordered_by_accuracy)
{
    static const uint32_t formats[4] = {NBL_INT8, NBL_INT4P, NBL_MXFP4_16, NBL_MXFP4};
    double last = 0.0;
    for (uint32_t f = 0; f < 4; f++) {
        cache_params p = plain;
        double lse_error;
        double error;
        cache c;
        p.k_formats[0] = p.k_formats[1] = p.v_formats[0] = p.v_formats[1] = formats[f];
        cache_init(&c, &p);
        error = cache_error(&c, cache_attend_copy(&c), &lse_error);
        cr_log_info("format %u: rel L2 %.4f", formats[f], error);
        cr_expect(error > last && error < 0.25, "format %u: %g after %g", formats[f], error, last);
        last = error;
        cache_free(&c);
    }
}

/* ------------------------------------------------------------------------------------------------ NUM 5.6 */

/* All features at once, over mixed regions; the third sequence has rows before its first token, with a centre. */
static void init_everything(cache *c, uint32_t q_format, uint32_t page_tokens, uint32_t fill)
{
    static const float slopes[6] = {0.5f, 0.25f, 0.125f, 0.0625f, 0.03f, 1.0f};
    static const float sinks[6] = {0.0f, 3.0f, -INFINITY, -4.0f, 5.0f, 1.0f};
    const cache_params p = {.k_formats = {NBL_MXFP4, NBL_INT8},
                            .v_formats = {NBL_INT4P, NBL_MXFP4_16},
                            .kv_heads = 2,
                            .q_heads = 6,
                            .k_dim = 72,
                            .v_dim = 40,
                            .page_tokens = page_tokens,
                            .k_hadamard = 8,
                            .v_hadamard = 8,
                            .centering = 1,
                            .q_format = q_format,
                            .batch = 4,
                            .kv_len = {2100, 900, 40, 0},
                            .q_len = {3, 4, 43, 2},
                            .k_bias = 5.0f,
                            .fill = (uint8_t)fill,
                            .seed = 3};
    cache_init(c, &p);
    c->attend.flags = NBL_ATTEND_CAUSAL;
    c->attend.alibi_slopes = slopes;
    c->attend.sinks = sinks;
}

static void expect_same(const void *a, const void *b, uint64_t bytes, const char *what)
{
    cr_expect(memcmp(a, b, bytes) == 0, "%s: bytes differ", what);
}

/* Memory and tensors for the states of `count` chunks. */
static void want_states(cache *c, uint32_t count)
{
    uint64_t head_bytes = (uint64_t)count * c->rows_out * 4u * sizeof(float);
    uint64_t o_bytes = (uint64_t)count * c->rows_out * c->shape.v_dim * sizeof(float);
    c->attend.state_head =
        support_tensor(cache_alloc(c, head_bytes), NBL_F32, 4, (uint64_t[]){count, c->rows, c->attend.q_heads, 4});
    c->attend.state_o = support_tensor(cache_alloc(c, o_bytes), NBL_F32, 4,
                                       (uint64_t[]){count, c->rows, c->attend.q_heads, c->shape.v_dim});
}

/* States of three calls over the ranges of one chunk each, side by side as one tensor. */
static void states_by_ranges(cache *c)
{
    nbl_tensor heads = c->attend.state_head;
    nbl_tensor os = c->attend.state_o;
    uint64_t head_bytes = (uint64_t)c->rows_out * 4u * sizeof(float);
    uint64_t o_bytes = (uint64_t)c->rows_out * c->shape.v_dim * sizeof(float);

    memset(heads.data, 0x55, 3u * head_bytes);
    memset(os.data, 0x55, 3u * o_bytes);
    for (uint32_t n = 0; n < 3; n++) {
        c->attend.state_head.data = (uint8_t *)heads.data + n * head_bytes;
        c->attend.state_o.data = (uint8_t *)os.data + n * o_bytes;
        c->attend.state_head.shape[0] = c->attend.state_o.shape[0] = 1;
        c->attend.range_begin = n * 1024u;
        c->attend.range_end = (n + 1u) * 1024u;
        oracle_attend(&c->attend);
    }
    c->attend.state_head = heads;
    c->attend.state_o = os;
    c->attend.range_begin = c->attend.range_end = 0;
}

static nbl_merge_args merge_of(const cache *c)
{
    nbl_merge_args merge = NBL_INIT(nbl_merge_args);
    merge.count = (uint32_t)c->attend.state_head.shape[0];
    merge.v_hadamard = c->shape.v_hadamard;
    merge.in_state_head = c->attend.state_head;
    merge.in_state_o = c->attend.state_o;
    merge.sinks = c->attend.sinks;
    merge.o = c->attend.o;
    merge.lse = c->attend.lse;
    return merge;
}

static void expect_merge_equals_whole(uint32_t q_format)
{
    cache c;
    nbl_merge_args merge;
    uint64_t o_bytes;
    uint64_t lse_bytes;
    float *whole;
    float *whole_lse;

    init_everything(&c, q_format, 16, 0);
    o_bytes = (uint64_t)c.rows_out * c.shape.v_dim * sizeof(float);
    lse_bytes = c.rows_out * sizeof(float);
    whole = cache_attend_copy(&c);
    whole_lse = cache_alloc(&c, lse_bytes);
    memcpy(whole_lse, c.attend.lse.data, lse_bytes);
    want_states(&c, 3);
    expect_same(whole, cache_attend_copy(&c), o_bytes, "o with states");
    merge = merge_of(&c);
    memset(merge.o.data, 0xff, o_bytes);
    oracle_merge(&merge);
    expect_same(whole, merge.o.data, o_bytes, "o of the merged chunks");
    expect_same(whole_lse, merge.lse.data, lse_bytes, "lse of the merged chunks");
    states_by_ranges(&c);
    memset(merge.o.data, 0xff, o_bytes);
    oracle_merge(&merge);
    expect_same(whole, merge.o.data, o_bytes, "o of the merged ranges");
    expect_same(whole_lse, merge.lse.data, lse_bytes, "lse of the merged ranges");
    cache_free(&c);
}

Test(oracle_attend, merged_chunks_equal_the_whole)
{
    expect_merge_equals_whole(NBL_Q8);
    expect_merge_equals_whole(NBL_Q4);
}

/* Folding the first two states into one, then the third, is the left fold of all. */
Test(oracle_attend, a_folded_state_stands_for_the_chunks_before)
{
    cache c;
    nbl_merge_args merge;
    nbl_merge_args first;
    uint64_t o_bytes;
    uint8_t *whole;
    uint64_t head_bytes;
    uint64_t state_bytes;

    init_everything(&c, NBL_Q8, 128, 0);
    want_states(&c, 3);
    oracle_attend(&c.attend);
    o_bytes = (uint64_t)c.rows_out * c.shape.v_dim * sizeof(float);
    head_bytes = (uint64_t)c.rows_out * 4u * sizeof(float);
    state_bytes = o_bytes;
    whole = cache_alloc(&c, o_bytes);
    merge = merge_of(&c);
    oracle_merge(&merge);
    memcpy(whole, merge.o.data, o_bytes);
    first = merge;
    first.count = 2;
    first.sinks = NULL;
    first.o.data = NULL;
    first.lse.data = NULL;
    first.state_head = support_tensor((uint8_t *)merge.in_state_head.data + head_bytes, NBL_F32, 3,
                                      (uint64_t[]){c.rows, c.attend.q_heads, 4});
    first.state_o = support_tensor((uint8_t *)merge.in_state_o.data + state_bytes, NBL_F32, 3,
                                   (uint64_t[]){c.rows, c.attend.q_heads, c.shape.v_dim});
    oracle_merge(&first); /* in place of the second state */
    merge.in_state_head.data = first.state_head.data;
    merge.in_state_o.data = first.state_o.data;
    merge.count = 2;
    memset(merge.o.data, 0xff, o_bytes);
    oracle_merge(&merge);
    expect_same(whole, merge.o.data, o_bytes, "(c0 c1) c2");
    cache_free(&c);
}

/* NUM 3.8, 5: pages, their size and what lies in unused slots change nothing. */
Test(oracle_attend, layout_and_unused_slots_do_not_matter)
{
    static const uint32_t page_sizes[4] = {1, 48, 1024, 128};
    cache_params p = plain;
    float *expected = NULL;
    uint64_t bytes = 0;
    cache c[4];

    for (uint32_t n = 0; n < 4; n++) {
        p.page_tokens = page_sizes[n];
        p.fill = n % 2u ? 0xff : 0x00;
        cache_init(&c[n], &p);
        c[n].attend.flags = NBL_ATTEND_CAUSAL;
        bytes = (uint64_t)c[n].rows_out * p.v_dim * sizeof(float);
        expected = n == 0 ? cache_attend_copy(&c[n]) : expected;
        expect_same(expected, cache_attend_copy(&c[n]), bytes, "o");
        expect_same(c[0].attend.lse.data, c[n].attend.lse.data, c[n].rows_out * sizeof(float), "lse");
    }
    for (uint32_t n = 0; n < 4; n++) {
        cache_free(&c[n]);
    }
}

/* Every unused byte of a mixed cache filled with ones, tail of the last pages included. */
Test(oracle_attend, poison_changes_nothing)
{
    cache clean;
    cache poisoned;
    uint64_t bytes;

    init_everything(&clean, NBL_Q4, 100, 0x00);
    init_everything(&poisoned, NBL_Q4, 100, 0xff);
    bytes = (uint64_t)clean.rows_out * clean.shape.v_dim * sizeof(float);
    expect_same(cache_attend_copy(&clean), cache_attend_copy(&poisoned), bytes, "o");
    cache_free(&clean);
    cache_free(&poisoned);
}

Test(oracle_attend, rows_without_tokens_are_zero)
{
    cache_params p = plain;
    cache c;
    const float *o;
    const float *lse;

    p.batch = 2;
    p.kv_len[0] = 0;
    p.kv_len[1] = 3;
    p.q_len[0] = 2;
    p.q_len[1] = 5;
    cache_init(&c, &p);
    c.attend.flags = NBL_ATTEND_CAUSAL;
    o = cache_attend_copy(&c);
    lse = c.attend.lse.data;
    for (uint32_t row = 0; row < c.rows; row++) {
        bool empty = row < 4; /* rows 2 and 3 have positions -2 and -1 */
        for (uint32_t h = 0; h < 4; h++) {
            uint32_t at = row * 4u + h;
            uint32_t nonzero = 0;
            cr_expect(empty ? lse[at] == -INFINITY : isfinite(lse[at]), "row %u: lse %g", row, (double)lse[at]);
            for (uint32_t d = 0; d < 64; d++) {
                nonzero += oracle_bits_from_f32(o[at * 64u + d]) != 0;
            }
            cr_expect(empty ? nonzero == 0 : nonzero > 32, "row %u: %u elements are not +0", row, nonzero);
        }
    }
    cache_free(&c);
}

Test(oracle_attend, tree_mask_hides_single_tokens)
{
    cache_params p = plain;
    const uint32_t mask[2 * 5] = {0x01, 0, 0x03, 0, 0x05, 0, 0x09, 0, 0x13, 0};
    cache c;

    p.batch = 1;
    cache_init(&c, &p);
    c.attend.tree_mask = mask;
    c.attend.tree_mask_stride = 2;
    cr_expect(oracle_visible(&c.attend, 0, 2, 294), "older tokens are visible");
    for (uint32_t j = 0; j < 5; j++) {
        cr_expect_eq(oracle_visible(&c.attend, 0, 2, 295 + j), j == 0 || j == 2, "row 2, new token %u", j);
    }
    expect_close(&c, 0.02, 0.04, "tree mask");
    cache_free(&c);
}

/* NUM 5.4: token 0 weighs 1, tokens 8 and 24 weigh 2^-24 each and share s_8, so that both together survive beside 1. */
Test(oracle_attend, weights_add_in_the_written_order)
{
    cache_params p = plain;
    cache c;
    float *k;
    float *q;
    const float *head;

    p.batch = 1;
    p.kv_len[0] = 32;
    p.q_len[0] = 1;
    cache_init(&c, &p);
    k = c.append.k.data;
    q = c.attend.q.data;
    memset(k, 0, 32u * 128u * sizeof(float));
    memset(q, 0, 256u * sizeof(float));
    q[0] = 1.0f;
    for (uint32_t j = 0; j < 32; j++) {
        k[j * 128u] = j == 0 ? 0.0f : j == 8 || j == 24 ? -1.0f : -8.0f;
        for (uint32_t d = 0; d < 128; d++) {
            ((float *)c.append.v.data)[j * 128u + d] = 1.0f;
        }
    }
    oracle_append(&c.append);
    want_states(&c, 1);
    c.attend.sm_scale = 24.0f * (float)log(2.0);
    oracle_attend(&c.attend);
    head = c.attend.state_head.data;
    cr_expect_eq(head[0], -6.0f, "M = 0 + ev, not %g", (double)head[0]);
    cr_expect_eq(head[1], 64.0f * (1.0f + 0x1p-23f), "L = %a", (double)head[1]);
    cr_expect_eq(((const float *)c.attend.state_o.data)[0], 255.0f * 64.0f, "O = 255 * 64");
    cache_free(&c);
}

/* ------------------------------------------------------------------------------------------------ NUM 5.9 */

static bool all_finite(const cache *c, const float *o)
{
    for (uint64_t i = 0; i < (uint64_t)c->rows_out * c->shape.v_dim; i++) {
        if (!isfinite(o[i])) {
            return false;
        }
    }
    return true;
}

Test(oracle_attend, extreme_logits_stay_finite)
{
    static const float scales[4] = {0x1p-24f, 0x1p16f, 100.0f, 1.0f};
    for (uint32_t n = 0; n < 4; n++) {
        for (int exponent = -38; exponent <= 38; exponent += 19) {
            cache_params p = plain;
            cache c;
            float *q;
            p.batch = 1;
            p.q_len[0] = 2;
            p.k_bias = ldexpf(1.0f, exponent);
            cache_init(&c, &p);
            q = c.attend.q.data;
            for (uint32_t i = 0; i < c.rows_out * 64u; i++) {
                q[i] = ldexpf(q[i], exponent);
            }
            c.attend.sm_scale = scales[n];
            cr_expect(all_finite(&c, cache_attend_copy(&c)), "scale %g, magnitude 2^%d", (double)scales[n], exponent);
            for (uint32_t i = 0; i < c.rows_out; i++) {
                float lse = ((float *)c.attend.lse.data)[i];
                cr_expect_not(isnan(lse), "lse, scale %g, magnitude 2^%d", (double)scales[n], exponent);
            }
            cache_free(&c);
        }
    }
}

/* With zero keys all tokens weigh alike: o is the mean of V, lse the logarithm of the count. */
Test(oracle_attend, equal_logits_give_the_mean)
{
    cache_params p = plain;
    cache c;
    const float *o;

    p.batch = 1;
    cache_init(&c, &p);
    memset(c.attend.q.data, 0, c.rows_out * 64u * sizeof(float));
    o = cache_attend_copy(&c);
    for (uint32_t h = 0; h < 4; h++) {
        for (uint32_t d = 0; d < 64; d++) {
            double mean = 0.0;
            for (uint32_t j = 0; j < 300; j++) {
                mean += (double)c.v[0][(j * 2u + h / 2u) * 64u + d] / 300.0;
            }
            cr_expect_lt(fabs((double)o[h * 64u + d] - mean), 0.004, "head %u, element %u", h, d);
        }
        cr_expect_lt(fabs((double)((float *)c.attend.lse.data)[h] - log(300.0)), 1e-3, "lse of head %u", h);
    }
    cache_free(&c);
}

/* reports B10: one hot key before thousands of small ones. */
Test(oracle_attend, diffuse_mass_is_not_lost)
{
    cache_params p = plain;
    cache c;
    double lse_error;

    p.batch = 1;
    p.kv_len[0] = 5000;
    p.q_len[0] = 1;
    cache_init(&c, &p);
    c.attend.sm_scale = 0.2f;
    cr_expect_lt(cache_error(&c, cache_attend_copy(&c), &lse_error), 0.03, "o");
    cr_expect_lt(lse_error, 0.05, "lse: %g", lse_error);
    cache_free(&c);
}

/* ------------------------------------------------------------------------------------------------ NUM 5.8 */

Test(oracle_merge, pairs_of_parts_give_the_whole)
{
    for (uint32_t base2 = 0; base2 < 2; base2++) {
        cache c;
        nbl_merge_args merge = NBL_INIT(nbl_merge_args);
        uint64_t o_count;
        float *whole;
        float *o;
        float *lse;
        cache_init(&c, &plain);
        c.attend.flags = base2 ? NBL_ATTEND_LSE_BASE2 : 0u;
        whole = cache_attend_copy(&c);
        o_count = (uint64_t)c.rows_out * 64u;
        o = cache_alloc(&c, 2u * o_count * sizeof(float));
        lse = cache_alloc(&c, 2u * c.rows_out * sizeof(float));
        for (uint32_t n = 0; n < 2; n++) {
            c.attend.range_begin = n * 1024u;
            c.attend.range_end = (n + 1u) * 1024u;
            memcpy(o + n * o_count, cache_attend_copy(&c), o_count * sizeof(float));
            memcpy(lse + n * c.rows_out, c.attend.lse.data, c.rows_out * sizeof(float));
        }
        merge.flags = base2 ? NBL_MERGE_LSE_BASE2 : 0u;
        merge.count = 2;
        merge.in_o = support_tensor(o, NBL_F32, 4, (uint64_t[]){2, c.rows, 4, 64});
        merge.in_lse = support_tensor(lse, NBL_F32, 3, (uint64_t[]){2, c.rows, 4});
        merge.o = c.attend.o;
        merge.lse = c.attend.lse;
        oracle_merge(&merge);
        for (uint64_t i = 0; i < o_count; i++) {
            float merged = ((float *)c.attend.o.data)[i];
            cr_assert_lt(fabsf(merged - whole[i]), 1e-4f, "base2 %u: element %llu", base2, (unsigned long long)i);
        }
        cache_free(&c);
    }
}

Test(oracle_merge, empty_pairs_do_not_count)
{
    float o[3 * 2] = {NAN, NAN, 3.0f, -5.0f, NAN, NAN};
    float lse[3] = {-INFINITY, 2.5f, -INFINITY};
    float out[2];
    float out_lse;
    nbl_merge_args merge = NBL_INIT(nbl_merge_args);

    merge.count = 3;
    merge.in_o = support_tensor(o, NBL_F32, 4, (uint64_t[]){3, 1, 1, 2});
    merge.in_lse = support_tensor(lse, NBL_F32, 3, (uint64_t[]){3, 1, 1});
    merge.o = support_tensor(out, NBL_F32, 3, (uint64_t[]){1, 1, 2});
    merge.lse = support_tensor(&out_lse, NBL_F32, 2, (uint64_t[]){1, 1});
    oracle_merge(&merge);
    cr_expect(out[0] == 3.0f && out[1] == -5.0f && out_lse == 2.5f, "a single partner comes back");
    lse[1] = -INFINITY;
    oracle_merge(&merge);
    cr_expect(oracle_bits_from_f32(out[0]) == 0 && out_lse == -INFINITY, "no partner: zero and minus infinity");
}
