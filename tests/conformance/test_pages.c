/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file test_pages.c
 * @brief gather, copy_pages and transcode against the oracle (NUM 3.7, 4.4).
 */
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FORMATS 8u
#define INT_FORMATS 4u
#define COUNT(list) ((uint32_t)(sizeof(list) / sizeof(list)[0]))

/* True if status is OK; counts a refusal, fails on anything else. */
static bool did(lab *l, nbl_status status, const char *what, const nbl_error *err)
{
    if (status == NBL_E_UNSUPPORTED) {
        if (l->unsupported++ == 0)
            memcpy(l->reason, err->message, sizeof l->reason);
        return false;
    }
    lab_expect(status, NBL_OK, what, err);
    ++l->run;
    return true;
}

/* ------------------------------------------------------------------------------------------------ gather */

typedef struct gathering {
    trial *t;
    view k, v;
    uint32_t flags;
    bool k_wanted, v_wanted;
} gathering;

static void gathering_init(gathering *g, trial *t, uint32_t dtype, uint32_t stride_kind)
{
    const nbl_kv_shape *s = &t->p.shape;
    memset(g, 0, sizeof *g);
    g->t = t;
    g->k_wanted = g->v_wanted = true;
    view_init(t->lab, &g->k, dtype, 3, (const uint64_t[]){t->tokens, s->kv_heads, s->k_dim}, stride_kind, 0xA5);
    view_init(t->lab, &g->v, dtype, 3, (const uint64_t[]){t->tokens, s->kv_heads, s->v_dim}, stride_kind, 0xA5);
}

static void gathering_free(gathering *g)
{
    view_free(g->t->lab, &g->k);
    view_free(g->t->lab, &g->v);
}

static nbl_gather_args gathering_args(const gathering *g, enum side side)
{
    const nbl_append_args append = trial_append_args(g->t, side);
    nbl_gather_args a = NBL_INIT(nbl_gather_args);
    a.flags = g->flags;
    a.pool = append.pool;
    a.layer = append.layer;
    a.batch = append.batch;
    a.slots = append.slots;
    if (g->k_wanted)
        a.k = g->k.tensor[side];
    if (g->v_wanted)
        a.v = g->v.tensor[side];
    a.seq_indptr = append.seq_indptr;
    a.centers = append.centers;
    a.stream = append.stream;
    return a;
}

static bool gathering_run(gathering *g)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_gather_args device = gathering_args(g, DEVICE), host = gathering_args(g, HOST);
    bool can = did(g->t->lab, g->t->lab->api->gather(g->t->lab->device, &device, &err), "gather", &err);
    if (can)
        oracle_gather(&host);
    view_compare(g->t->lab, &g->k, "k of gather");
    view_compare(g->t->lab, &g->v, "v of gather");
    return can;
}

/* Fills, gathers, compares. */
static void gather_problem(lab *l, const problem *p, uint32_t dtype, uint32_t stride_kind, uint32_t flags,
                           uint32_t wanted)
{
    trial t;
    gathering g;
    trial_init(&t, l, p);
    trial_fill(&t);
    gathering_init(&g, &t, dtype, stride_kind);
    g.flags = flags;
    g.k_wanted = (wanted & 1u) != 0;
    g.v_wanted = (wanted & 2u) != 0;
    gathering_run(&g);
    gathering_free(&g);
    trial_free(&t);
}

static problem stored(uint32_t i)
{
    problem p = problem_default(lab_seed(9000) + i);
    problem_formats(&p, 1u + i % FORMATS, 1u + (i + i / FORMATS) % FORMATS);
    p.kv_len[0] = 43;
    p.q_len[0] = 0;
    return p;
}

Test(gather, random_sweep)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < lab_cases(120); ++i) {
        problem p = problem_random(lab_seed(9100) + i);
        p.skip_every = i % 3u == 0 ? 4u : 0u;
        gather_problem(&l, &p, 1u + i % 3u, i % STRIDE_KINDS, i % 5u == 0 ? NBL_GATHER_STORED : 0, 1u + i % 7u % 3u);
    }
    lab_finish(&l);
}

Test(gather, formats_and_types)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 3u * FORMATS * FORMATS; ++i) {
        problem p = stored(i);
        gather_problem(&l, &p, 1u + i / (FORMATS * FORMATS), STRIDE_PACKED, 0, 3);
    }
    lab_finish(&l);
}

Test(gather, transforms_are_undone_or_left)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 32; ++i) {
        problem p = stored(i);
        p.batch = 2;
        p.kv_len[1] = 20;
        p.shape.k_hadamard = i / 4u % 2u == 0 ? 64 : 16;
        p.shape.v_hadamard = i / 8u % 2u == 0 ? 32 : 0;
        p.shape.centering = i / 8u;
        p.center_rows = i % 3u == 0;
        gather_problem(&l, &p, NBL_F32, STRIDE_PADDED, i % 2u == 0 ? 0 : NBL_GATHER_STORED, 3);
    }
    lab_finish(&l);
}

Test(gather, skipped_slots_give_zeros)
{
    lab l;
    lab_open(&l);
    for (uint32_t every = 1; every < 5; ++every) {
        problem p = stored(every);
        p.skip_every = every;
        p.shape.centering = every % 4u;
        gather_problem(&l, &p, NBL_BF16, STRIDE_SWAPPED, 0, 3);
    }
    lab_finish(&l);
}

Test(gather, extreme_values)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 3u * DATA_KINDS; ++i) {
        problem p = stored(i);
        p.k_data = p.v_data = i % DATA_KINDS;
        p.shape.k_hadamard = 8;
        gather_problem(&l, &p, 1u + i / DATA_KINDS, STRIDE_ELEMENTS, 0, 3);
    }
    lab_finish(&l);
}

Test(gather, keys_or_values_alone)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 8; ++i) {
        problem p = stored(i);
        gather_problem(&l, &p, NBL_F16, STRIDE_NEGATIVE, 0, 1u + i % 2u);
    }
    lab_finish(&l);
}

/* Relative L2 error of a tensor of gather against what was appended. */
static double round_trip_error(const trial *t, const view *out, enum oracle_side side)
{
    float *x = trial_input(t, side, 0);
    const nbl_tensor *y = &out->tensor[HOST];
    double error = 0.0, size = 0.0;
    for (uint64_t i = 0; i < y->shape[0] * y->shape[1] * y->shape[2]; ++i) {
        double got = (double)oracle_tensor_get(y, i / y->shape[2] / y->shape[1], i / y->shape[2] % y->shape[1],
                                               i % y->shape[2], 0);
        error += (got - (double)x[i]) * (got - (double)x[i]);
        size += (double)x[i] * (double)x[i];
    }
    free(x);
    return sqrt(error / size);
}

/* Gaussian round trip through append and gather of the backend; both errors must lie between the bounds. */
static void round_trip(lab *l, problem p, double least, double most)
{
    trial t;
    gathering g;
    p.kv_len[0] = 200;
    p.q_len[0] = 0;
    p.shape.k_dim = p.shape.v_dim = 128;
    trial_init(&t, l, &p);
    gathering_init(&g, &t, NBL_F32, STRIDE_PACKED);
    if (trial_append(&t) && gathering_run(&g)) {
        double k = round_trip_error(&t, &g.k, ORACLE_K), v = round_trip_error(&t, &g.v, ORACLE_V);
        cr_assert(k > least && k < most && v > least && v < most, "%s: relative errors %g and %g (allowed: %g to %g)",
                  trial_text, k, v, least, most);
    }
    gathering_free(&g);
    trial_free(&t);
}

Test(gather, C1_C2_round_trip_error_of_gaussian_vectors)
{
    static const double most[FORMATS] = {0.01, 0.12, 0.115, 0.09, 0.0022, 0.0003, 0.03, 0.11};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 3u * FORMATS; ++i) {
        problem p = stored(i);
        problem_formats(&p, 1u + i % FORMATS, 1u + i % FORMATS);
        p.shape.k_hadamard = p.shape.v_hadamard = i / FORMATS == 1 ? 128 : 0;
        p.shape.k_scale_rule = p.shape.v_scale_rule = i / FORMATS == 2 ? NBL_RULE_MSE : NBL_RULE_OPTIMAL;
        bool mixed = i / FORMATS == 1; /* powers of two cost int8 more where the largest element is not near 4 sigma */
        round_trip(&l, p, 0.3 * most[i % FORMATS], mixed && i % FORMATS == 0 ? 0.013 : most[i % FORMATS]);
    }
    lab_finish(&l);
}

Test(gather, C8_scales_of_tokens_are_applied)
{
    static const double most[] = {0.01, 0.12, 0.115, 0.09};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < INT_FORMATS; ++i) {
        problem p = stored(i);
        problem_formats(&p, 1u + i, 1u + i);
        p.k_data = p.v_data = DATA_SCALED;
        round_trip(&l, p, 0.0, most[i]);
    }
    lab_finish(&l);
}

Test(gather, C13_no_rule_loses_much)
{
    lab l;
    lab_open(&l);
    for (uint32_t rule = NBL_RULE_OPTIMAL; rule <= NBL_RULE_MSE; ++rule) {
        problem p = stored(rule);
        problem_formats(&p, NBL_MXFP4, NBL_MXFP4_16);
        p.shape.k_scale_rule = p.shape.v_scale_rule = rule;
        round_trip(&l, p, 0.05, rule == NBL_RULE_FLOOR || rule == NBL_RULE_CEIL ? 0.15 : 0.12);
    }
    lab_finish(&l);
}

Test(gather, centred_round_trip_of_outliers)
{
    static const double most[] = {0.013, 0.12, 0.115, 0.09};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < INT_FORMATS; ++i) {
        problem p = stored(i);
        problem_formats(&p, 1u + i, 1u + i);
        p.k_data = DATA_OUTLIERS;
        p.shape.centering = NBL_CENTERING_MEAN;
        p.center_mode = NBL_CENTER_COMPUTE;
        p.shape.k_hadamard = p.shape.v_hadamard = 128;
        round_trip(&l, p, 0.0, most[i]); /* of K with its outliers, which are exact but for the centre's own error */
    }
    lab_finish(&l);
}

/* ------------------------------------------------------------------------------------------------ copies */

#define PAGES_MAX 64u

/* Page lists on both sides. */
typedef struct page_pairs {
    uint32_t count;
    buffer src, dst, counts;
} page_pairs;

static void pairs_init(lab *l, page_pairs *x, const int32_t *src, const int32_t *dst, const int32_t *counts,
                       uint32_t count)
{
    x->count = count;
    buffer *buffers[] = {&x->src, &x->dst, &x->counts};
    const int32_t *lists[] = {src, dst, counts};
    for (uint32_t i = 0; i < 3; ++i) {
        buffer_init(l, buffers[i], PAGES_MAX * sizeof(int32_t), 0);
        if (lists[i] != NULL)
            memcpy(buffers[i]->host, lists[i], count * sizeof(int32_t));
        buffer_upload(l, buffers[i]);
    }
}

static void pairs_free(lab *l, page_pairs *x)
{
    buffer_free(l, &x->src);
    buffer_free(l, &x->dst);
    buffer_free(l, &x->counts);
}

static nbl_copy_pages_args copy_args(const trial *src, const trial *dst, const page_pairs *x, enum side side)
{
    nbl_copy_pages_args a = NBL_INIT(nbl_copy_pages_args);
    a.src_pool = &src->pools[side];
    a.dst_pool = &dst->pools[side];
    a.src_pages = buffer_at(&x->src, side);
    a.dst_pages = buffer_at(&x->dst, side);
    a.count = x->count;
    a.stream = src->lab->stream;
    return a;
}

static nbl_transcode_args transcode_args(const trial *src, const trial *dst, const page_pairs *x, enum side side)
{
    nbl_transcode_args a = NBL_INIT(nbl_transcode_args);
    a.src_pool = &src->pools[side];
    a.dst_pool = &dst->pools[side];
    a.src_pages = buffer_at(&x->src, side);
    a.dst_pages = buffer_at(&x->dst, side);
    a.token_counts = buffer_at(&x->counts, side);
    a.count = x->count;
    a.stats = buffer_at(&dst->stats, side);
    a.stream = src->lab->stream;
    return a;
}

static bool run_copy(const trial *src, trial *dst, const page_pairs *x)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_copy_pages_args device = copy_args(src, dst, x, DEVICE), host = copy_args(src, dst, x, HOST);
    bool can = did(src->lab, src->lab->api->copy_pages(src->lab->device, &device, &err), "copy_pages", &err);
    if (can)
        oracle_copy_pages(&host);
    trial_compare_pools(dst);
    return can;
}

static bool run_transcode(const trial *src, trial *dst, const page_pairs *x)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_transcode_args device = transcode_args(src, dst, x, DEVICE), host = transcode_args(src, dst, x, HOST);
    bool can = did(src->lab, src->lab->api->transcode(src->lab->device, &device, &err), "transcode", &err);
    if (can)
        oracle_transcode(&host);
    trial_compare_pools(dst);
    return can;
}

/* A sequence of two layers, both filled. */
static void init_filled(trial *t, lab *l, problem p)
{
    p.shape.layers = 2;
    trial_init(t, l, &p);
    for (t->p.layer = 0; t->p.layer < 2; ++t->p.layer)
        trial_fill(t);
    t->p.layer = 0;
}

/* The pages of sequence 0 to the same number of pages of a second pool, from its last page down. */
static uint32_t pairs_to_pool(const trial *src, const trial *dst, int32_t *from, int32_t *to)
{
    const nbl_region *last = &dst->regions[HOST][dst->p.region_count - 1u];
    uint32_t count = (src->p.kv_len[0] + src->p.shape.page_tokens - 1u) / src->p.shape.page_tokens;
    const int32_t *table = (const void *)src->page_table.host;
    for (uint32_t i = 0; i < count; ++i) {
        from[i] = table[i];
        to[i] = (int32_t)(last->first_page + last->page_count - 1u - i);
    }
    return count;
}

Test(copy_pages, H7_bytes_between_pools_with_other_strides)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < FORMATS * POOL_LAYOUTS; ++i) {
        problem p = stored(i);
        trial src, dst;
        page_pairs x;
        int32_t from[PAGES_MAX], to[PAGES_MAX];
        p.shape.page_tokens = 5u + i % 3u * 9u;
        init_filled(&src, &l, p);
        p.shape.layers = 2;
        p.pool_layout = i / FORMATS;
        trial_init(&dst, &l, &p);
        uint32_t count = pairs_to_pool(&src, &dst, from, to);
        pairs_init(&l, &x, from, to, NULL, count);
        run_copy(&src, &dst, &x);
        pairs_free(&l, &x);
        trial_free(&dst);
        trial_free(&src);
    }
    lab_finish(&l);
}

Test(copy_pages, H1_attention_over_a_copy_is_the_same)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < FORMATS * FORMATS; ++i) {
        problem p = stored(i);
        trial src, dst;
        page_pairs x;
        p.q_len[0] = 2;
        p.shape.centering = i % 2u;
        p.page_order = ORDER_SEQUENTIAL;
        init_filled(&src, &l, p);
        p.shape.layers = 2;
        p.pool_layout = POOL_INTERLEAVED;
        p.page_order = ORDER_REVERSED;
        trial_init(&dst, &l, &p);
        pairs_init(&l, &x, (const void *)src.page_table.host, (const void *)dst.page_table.host, NULL, 3);
        if (run_copy(&src, &dst, &x) && trial_attend(&src) && trial_attend(&dst)) {
            trial_compare_rows(&src, 0, &dst, 0, "copied pages");
            trial_compare_rows(&src, 1, &dst, 1, "copied pages");
        }
        pairs_free(&l, &x);
        trial_free(&dst);
        trial_free(&src);
    }
    lab_finish(&l);
}

Test(copy_pages, within_a_pool)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < FORMATS; ++i) {
        problem p = stored(i);
        trial t;
        page_pairs x;
        p.page_order = ORDER_SEQUENTIAL; /* pages 2, 3, 4 are in use, 5 to 7 are spare */
        init_filled(&t, &l, p);
        pairs_init(&l, &x, (const int32_t[]){3, 2}, (const int32_t[]){5, 7}, NULL, 2);
        run_copy(&t, &t, &x);
        pairs_free(&l, &x);
        trial_free(&t);
    }
    lab_finish(&l);
}

Test(copy_pages, no_pages)
{
    lab l;
    lab_open(&l);
    problem p = stored(0);
    trial t;
    page_pairs x;
    init_filled(&t, &l, p);
    pairs_init(&l, &x, NULL, NULL, NULL, 0);
    run_copy(&t, &t, &x);
    pairs_free(&l, &x);
    trial_free(&t);
    lab_finish(&l);
}

/* ------------------------------------------------------------------------------------------------ transcoding */

/* Sequence 0 into spare pages of other formats in the same pool. */
static void transcode_all(lab *l, uint32_t i, uint32_t k_to, uint32_t v_to, const int32_t *counts)
{
    problem p = stored(i);
    trial t;
    page_pairs x;
    p.region_count = 2;
    p.region_pages[0] = 3;
    p.k_format[1] = k_to;
    p.v_format[1] = v_to;
    if ((p.k_format[0] == NBL_FORMAT_FP16) != (k_to == NBL_FORMAT_FP16) ||
        (p.v_format[0] == NBL_FORMAT_FP16) != (v_to == NBL_FORMAT_FP16))
        return; /* no such pool: NUM 6.1 */
    p.shape.k_scale_rule = 1u + i % 4u;
    p.shape.v_scale_rule = 4u - i % 4u;
    p.shape.page_tokens = 16;
    p.page_order = ORDER_SEQUENTIAL; /* pages 2, 3, 4 of region 0; region 1 has 8, 9, 10 */
    p.k_data = i % DATA_KINDS;
    p.v_data = i / 2u % DATA_KINDS;
    p.pool_layout = i % POOL_LAYOUTS;
    init_filled(&t, l, p);
    pairs_init(l, &x, (const int32_t[]){3, 2, 4}, (const int32_t[]){8, 10, 9}, counts, 3);
    run_transcode(&t, &t, &x);
    pairs_free(l, &x);
    trial_free(&t);
}

Test(transcode, all_pairs_of_formats)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < FORMATS * FORMATS * FORMATS; ++i)
        transcode_all(&l, i, 1u + i / FORMATS % FORMATS, 1u + i / FORMATS / FORMATS, (const int32_t[]){16, 16, 11});
    lab_finish(&l);
}

Test(transcode, some_tokens_of_a_page)
{
    lab l;
    lab_open(&l);
    for (int32_t n = 0; n <= 16; ++n)
        transcode_all(&l, (uint32_t)n, 1u + (uint32_t)n % INT_FORMATS, NBL_INT4P, (const int32_t[]){n, 16 - n, n % 12});
    lab_finish(&l);
}

Test(transcode, same_format_keeps_the_values)
{
    lab l;
    lab_open(&l);
    for (uint32_t format = NBL_INT8; format <= NBL_INT4P; ++format) {
        for (uint32_t i = format - 1u; i < FORMATS * FORMATS; i += FORMATS)
            transcode_all(&l, i, format, format, (const int32_t[]){16, 16, 11});
    }
    lab_finish(&l);
}

/* Head scales of the source, of the destination, or other ones of both (NUM 6.7). */
Test(transcode, B6_head_scales_of_two_pools)
{
    const uint32_t pairs = PROBLEM_PAIRS - PROBLEM_INT_PAIRS;
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 3u * pairs; ++i) {
        problem p = stored(i);
        trial src, dst;
        page_pairs x;
        problem_pair(&p, PROBLEM_INT_PAIRS + i % pairs);
        p.head_scales = i / pairs != 1u;
        p.page_order = ORDER_SEQUENTIAL;
        init_filled(&src, &l, p);
        p.seed += 1000u; /* other scales */
        p.head_scales = i / pairs != 2u;
        p.shape.layers = 2;
        trial_init(&dst, &l, &p);
        pairs_init(&l, &x, (const void *)src.page_table.host, (const void *)dst.page_table.host,
                   (const int32_t[]){16, 16, 11}, 3);
        run_transcode(&src, &dst, &x);
        pairs_free(&l, &x);
        trial_free(&dst);
        trial_free(&src);
    }
    lab_finish(&l);
}

Test(transcode, int8_to_4_bit_has_the_error_of_4_bit)
{
    static const double most[] = {0.012, 0.125, 0.115, 0.095};
    lab l;
    lab_open(&l);
    for (uint32_t format = NBL_MXFP4; format <= NBL_INT4P; ++format) {
        problem p = stored(format);
        trial src, dst;
        page_pairs x;
        gathering g;
        problem_formats(&p, NBL_INT8, NBL_INT8);
        p.page_order = ORDER_SEQUENTIAL;
        p.k_data = p.v_data = DATA_NORMAL;
        init_filled(&src, &l, p);
        problem_formats(&p, format, format);
        p.shape.layers = 2;
        trial_init(&dst, &l, &p);
        pairs_init(&l, &x, (const void *)src.page_table.host, (const void *)dst.page_table.host,
                   (const int32_t[]){16, 16, 11}, 3);
        gathering_init(&g, &dst, NBL_F32, STRIDE_PACKED);
        if (run_transcode(&src, &dst, &x) && gathering_run(&g)) {
            double error = round_trip_error(&src, &g.k, ORACLE_K);
            cr_assert(error > 0.03 && error < most[format - 1u], "format %u: relative error %g", format, error);
        }
        gathering_free(&g);
        pairs_free(&l, &x);
        trial_free(&dst);
        trial_free(&src);
    }
    lab_finish(&l);
}

/* ------------------------------------------------------------------------------------------------ refusals */

/* Both operations on pages that may not be paired: the status wanted, and pools as they were. */
/* One refusal, from the call or, where only the device could see it, from check. True if outputs must be untouched. */
static bool expect_status(lab *l, nbl_status status, nbl_status wanted, const char *what)
{
    if (status == NBL_E_UNSUPPORTED) {
        ++l->unsupported;
        return true;
    }
    if (wanted == NBL_OK)
        return false;
    ++l->run;
    return lab_expect_refused(l, status, wanted, what);
}

static void refuse(lab *l, trial *t, const int32_t *src, const int32_t *dst, nbl_status copy, nbl_status transcode)
{
    page_pairs x;
    pairs_init(l, &x, src, dst, (const int32_t[]){16, 16}, 2);
    nbl_copy_pages_args c = copy_args(t, t, &x, DEVICE);
    nbl_transcode_args r = transcode_args(t, t, &x, DEVICE);
    const bool copy_untouched = expect_status(l, l->api->copy_pages(l->device, &c, NULL), copy, "copy_pages");
    const bool untouched = expect_status(l, l->api->transcode(l->device, &r, NULL), transcode, "transcode");
    if (copy_untouched && untouched)
        trial_compare_pools(t);
    pairs_free(l, &x);
}

static void init_two_regions(trial *t, lab *l)
{
    problem p = stored(0);
    p.region_count = 2;
    p.region_pages[0] = 3;
    p.k_format[1] = p.v_format[1] = NBL_MXFP4;
    p.page_order = ORDER_SEQUENTIAL; /* pages 2, 3, 4 of region 0; region 1 has 8, 9, 10 */
    init_filled(t, l, p);
}

Test(copy_pages, F4_pages_outside_the_pool_are_refused)
{
    static const int32_t pages[] = {-1, 0, 1, 5, 7, 11, INT32_MAX, INT32_MIN};
    lab l;
    trial t;
    lab_open(&l);
    init_two_regions(&t, &l);
    for (uint32_t i = 0; i < COUNT(pages); ++i) {
        refuse(&l, &t, (const int32_t[]){2, pages[i]}, (const int32_t[]){4, 3}, NBL_E_RANGE, NBL_E_RANGE);
        refuse(&l, &t, (const int32_t[]){2, 3}, (const int32_t[]){4, pages[i]}, NBL_E_RANGE, NBL_E_RANGE);
    }
    trial_free(&t);
    lab_finish(&l);
}

Test(copy_pages, pages_of_other_formats_are_refused)
{
    lab l;
    trial t;
    lab_open(&l);
    init_two_regions(&t, &l);
    refuse(&l, &t, (const int32_t[]){2, 3}, (const int32_t[]){4, 9}, NBL_E_RANGE, NBL_OK);
    trial_free(&t);
    lab_finish(&l);
}

Test(copy_pages, overlapping_pages_are_refused)
{
    lab l;
    trial t;
    lab_open(&l);
    init_two_regions(&t, &l);
    refuse(&l, &t, (const int32_t[]){2, 3}, (const int32_t[]){4, 4}, NBL_E_OVERLAP, NBL_E_OVERLAP);
    refuse(&l, &t, (const int32_t[]){2, 3}, (const int32_t[]){3, 4}, NBL_E_OVERLAP, NBL_E_OVERLAP);
    refuse(&l, &t, (const int32_t[]){2, 3}, (const int32_t[]){4, 3}, NBL_E_OVERLAP, NBL_E_OVERLAP);
    trial_free(&t);
    lab_finish(&l);
}
