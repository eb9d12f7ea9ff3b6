/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file test_merge.c
 * @brief States and pairs of partial results put together (NUM 5.6, 5.7, 5.8).
 */
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(list) ((uint32_t)(sizeof(list) / sizeof(list)[0]))
#define CHUNKS 4u

/* ------------------------------------------------------------------------------------------------ one merge */

/* A merge with its memory; in_dtype 0 means states, else pairs. */
typedef struct merging {
    lab *lab;
    uint32_t count, rows, heads, v_dim, v_hadamard, flags;
    uint32_t in_dtype;
    bool sinks_given;
    view in_head, in_o, in_lse;
    view out_head, out_o, o, lse;
    buffer sinks;
} merging;

static void merging_init(merging *m, lab *l, uint32_t count, uint32_t rows, uint32_t heads, uint32_t v_dim,
                         uint32_t in_dtype, uint32_t out_dtype, uint32_t stride_kind)
{
    const uint64_t in[] = {count, rows, heads, v_dim}, out[] = {rows, heads, v_dim};
    memset(m, 0, sizeof *m);
    m->lab = l;
    m->count = count;
    m->rows = rows;
    m->heads = heads;
    m->v_dim = v_dim;
    m->in_dtype = in_dtype;
    view_init(l, &m->in_o, in_dtype == 0 ? (uint32_t)NBL_F32 : in_dtype, 4, in, stride_kind, 0);
    if (in_dtype == 0) {
        view_init(l, &m->in_head, NBL_F32, 4, (const uint64_t[]){count, rows, heads, 4}, stride_kind, 0);
        view_init(l, &m->out_head, NBL_F32, 3, (const uint64_t[]){rows, heads, 4}, stride_kind, 0xA5);
        view_init(l, &m->out_o, NBL_F32, 3, out, stride_kind, 0xA5);
    } else {
        view_init(l, &m->in_lse, NBL_F32, 3, in, stride_kind, 0);
    }
    view_init(l, &m->o, out_dtype, 3, out, stride_kind, 0xA5);
    view_init(l, &m->lse, NBL_F32, 2, out, stride_kind, 0xA5);
    buffer_init(l, &m->sinks, heads * sizeof(float), 0);
}

static void merging_free(merging *m)
{
    view *views[] = {&m->in_head, &m->in_o, &m->in_lse, &m->out_head, &m->out_o, &m->o, &m->lse};
    for (uint32_t i = 0; i < COUNT(views); ++i)
        view_free(m->lab, views[i]);
    buffer_free(m->lab, &m->sinks);
}

static void merging_upload(merging *m)
{
    view *views[] = {&m->in_head, &m->in_o, &m->in_lse};
    for (uint32_t i = 0; i < COUNT(views); ++i) {
        if (views[i]->memory.bytes > 0)
            buffer_upload(m->lab, &views[i]->memory);
    }
    buffer_upload(m->lab, &m->sinks);
}

static nbl_merge_args merging_args(const merging *m, enum side side)
{
    nbl_merge_args a = NBL_INIT(nbl_merge_args);
    a.flags = m->flags;
    a.count = m->count;
    a.v_hadamard = m->v_hadamard;
    if (m->in_dtype == 0) {
        a.in_state_head = m->in_head.tensor[side];
        a.in_state_o = m->in_o.tensor[side];
        a.state_head = m->out_head.tensor[side];
        a.state_o = m->out_o.tensor[side];
    } else {
        a.in_o = m->in_o.tensor[side];
        a.in_lse = m->in_lse.tensor[side];
    }
    a.o = m->o.tensor[side];
    a.lse = m->lse.tensor[side];
    a.sinks = m->sinks_given ? buffer_at(&m->sinks, side) : NULL;
    a.stream = m->lab->stream;
    return a;
}

/* Merges on both sides and compares; false if not supported. Inputs are uploaded first. */
static bool merging_run(merging *m)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_merge_args device = merging_args(m, DEVICE), host = merging_args(m, HOST);
    merging_upload(m);
    nbl_status status = m->lab->api->merge(m->lab->device, &device, &err);
    if (status == NBL_E_UNSUPPORTED) {
        ++m->lab->unsupported;
        memcpy(m->lab->reason, err.message, sizeof m->lab->reason);
        return false;
    }
    lab_expect(status, NBL_OK, "merge", &err);
    ++m->lab->run;
    oracle_merge(&host);
    view_compare(m->lab, &m->out_head, "state_head of the merge");
    view_compare(m->lab, &m->out_o, "state_o of the merge");
    view_compare(m->lab, &m->o, "o of the merge");
    view_compare(m->lab, &m->lse, "lse of the merge");
    view_compare(m->lab, &m->in_head, "in_state_head");
    view_compare(m->lab, &m->in_o, "in_o");
    view_compare(m->lab, &m->in_lse, "in_lse");
    return true;
}

/* Fails unless o and lse of the merge are those of a call of attend, byte for byte. */
static void merging_equals(const merging *m, const trial *t, const char *what)
{
    uint32_t bytes = t->p.out_dtype == NBL_F32 ? 4u : 2u;
    for (uint32_t row = 0; row < m->rows; ++row) {
        for (uint32_t h = 0; h < m->heads; ++h) {
            for (uint32_t d = 0; d < m->v_dim; ++d)
                cr_assert(memcmp(view_at(&m->o, row, h, d, 0), view_at(&t->o, row, h, d, 0), bytes) == 0,
                          "%s: %s: o of row %u, head %u, element %u differs", trial_text, what, row, h, d);
            cr_assert(memcmp(view_at(&m->lse, row, h, 0, 0), view_at(&t->lse, row, h, 0, 0), 4) == 0,
                      "%s: %s: lse of row %u, head %u is %g, undivided %g", trial_text, what, row, h,
                      (double)oracle_tensor_get(&m->lse.tensor[HOST], row, h, 0, 0),
                      (double)oracle_tensor_get(&t->lse.tensor[HOST], row, h, 0, 0));
        }
    }
}

/* ------------------------------------------------------------------------------------------------ states of attend */

/* Four chunks, two query rows, formats and features that change with i. */
static problem chunked(uint32_t i)
{
    problem p = problem_default(lab_seed(8000) + i);
    problem_pair(&p, i);
    p.kv_len[0] = 4090;
    p.q_len[0] = 2;
    p.shape.kv_heads = 1;
    p.q_heads = 2;
    p.shape.page_tokens = 64;
    p.shape.k_dim = 32;
    p.shape.v_dim = 32;
    p.shape.v_hadamard = i % 3u == 1 ? 16 : 0;
    p.flags = NBL_ATTEND_CAUSAL | (i % 2u == 0 ? NBL_ATTEND_LSE_BASE2 : 0u);
    p.out_dtype = 1u + i % 3u;
    p.sinks = i % 4u == 2;
    p.shape.centering = i % 5u == 1;
    p.k_data = i % 7u == 3 ? DATA_SCALED : DATA_NORMAL;
    p.v_data = i % 7u == 4 ? DATA_SCALED : DATA_NORMAL;
    return p;
}

static void merging_for(merging *m, lab *l, const trial *t, uint32_t count)
{
    merging_init(m, l, count, t->q_tokens, t->p.q_heads, t->p.shape.v_dim, 0, t->p.out_dtype, STRIDE_PADDED);
    m->v_hadamard = t->p.shape.v_hadamard;
    m->flags = (t->p.flags & NBL_ATTEND_LSE_BASE2) != 0 ? NBL_MERGE_LSE_BASE2 : 0;
    m->sinks_given = t->p.sinks;
    memcpy(m->sinks.host, t->sinks.host, t->sinks.bytes);
}

static nbl_tensor part_of(const view *v, enum side side, uint32_t first, uint32_t count)
{
    nbl_tensor x = v->tensor[side];
    x.data = (uint8_t *)x.data + (int64_t)first * v->stride[0];
    x.shape[0] = count;
    return x;
}

/* States of the chunks first..first+count-1 by the backend, into entries `at`.. of the merge's input. */
static void states_of(trial *t, merging *m, uint32_t first, uint32_t count, uint32_t at)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_attend_args args = trial_attend_args(t, DEVICE);
    memset(&args.o, 0, sizeof args.o);
    memset(&args.lse, 0, sizeof args.lse);
    args.sinks = NULL;
    args.range_begin = first * NBL_CHUNK_TOKENS;
    args.range_end = (first + count) * NBL_CHUNK_TOKENS;
    args.state_head = part_of(&m->in_head, DEVICE, at, count);
    args.state_o = part_of(&m->in_o, DEVICE, at, count);
    lab_expect(trial_call_attend(t, &args, &err), NBL_OK, "attend of a range", &err);
    buffer_fetch(t->lab, &m->in_head.memory);
    buffer_fetch(t->lab, &m->in_o.memory);
}

/* Ranges end after chunk c where bit c of cuts is set. */
static void run_split(trial *t, uint32_t cuts)
{
    merging m;
    merging_for(&m, t->lab, t, CHUNKS);
    for (uint32_t first = 0, c = 0; c < CHUNKS; ++c) {
        if (c + 1u == CHUNKS || (cuts >> c & 1u) != 0) {
            states_of(t, &m, first, c + 1u - first, first);
            first = c + 1u;
        }
    }
    if (merging_run(&m))
        merging_equals(&m, t, "merge of a split");
    merging_free(&m);
}

Test(merge, states_of_every_split_equal_the_undivided_call)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < PROBLEM_PAIRS; i += i < 4u ? 1u : 3u) {
        problem p = chunked(i);
        trial t;
        trial_init(&t, &l, &p);
        trial_fill(&t);
        for (uint32_t cuts = 0; trial_attend_backend(&t) && cuts < 1u << (CHUNKS - 1u); ++cuts)
            run_split(&t, cuts);
        trial_attend(&t);
        trial_free(&t);
    }
    lab_finish(&l);
}

/* Chunks 0..k-1 are folded into one state first, which then stands for them. */
static void run_folded(trial *t, uint32_t k)
{
    merging front, whole;
    merging_for(&front, t->lab, t, k);
    merging_for(&whole, t->lab, t, 1u + CHUNKS - k);
    states_of(t, &front, 0, k, 0);
    if (merging_run(&front)) {
        if (k < CHUNKS)
            states_of(t, &whole, k, CHUNKS - k, 1);
        for (uint32_t row = 0; row < front.rows; ++row) {
            for (uint32_t h = 0; h < front.heads; ++h) {
                for (uint32_t c = 0; c < 4; ++c)
                    oracle_tensor_set(&whole.in_head.tensor[HOST], 0, row, h, c,
                                      oracle_tensor_get(&front.out_head.tensor[HOST], row, h, c, 0));
                for (uint32_t d = 0; d < front.v_dim; ++d)
                    oracle_tensor_set(&whole.in_o.tensor[HOST], 0, row, h, d,
                                      oracle_tensor_get(&front.out_o.tensor[HOST], row, h, d, 0));
            }
        }
        if (merging_run(&whole))
            merging_equals(&whole, t, "merge continued from a folded state");
    }
    merging_free(&front);
    merging_free(&whole);
}

Test(merge, folded_states_are_continued)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < PROBLEM_PAIRS; i += 3u) {
        problem p = chunked(i);
        trial t;
        trial_init(&t, &l, &p);
        trial_fill(&t);
        for (uint32_t k = 1; trial_attend_backend(&t) && k <= CHUNKS; ++k)
            run_folded(&t, k);
        trial_free(&t);
    }
    lab_finish(&l);
}

static void run_all_chunks(lab *l, const problem *p, uint32_t extra)
{
    trial t;
    merging m;
    trial_init(&t, l, p);
    trial_fill(&t);
    if (trial_attend_backend(&t)) {
        merging_for(&m, l, &t, CHUNKS + extra);
        states_of(&t, &m, 0, CHUNKS + extra, 0);
        if (merging_run(&m))
            merging_equals(&m, &t, "merge of all chunks");
        merging_free(&m);
    }
    trial_free(&t);
}

Test(merge, B3_sinks_x_formats_when_split)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < PROBLEM_PAIRS; ++i) {
        problem p = chunked(i);
        p.sinks = true;
        run_all_chunks(&l, &p, 0);
    }
    lab_finish(&l);
}

Test(merge, A4_empty_states_among_others)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < PROBLEM_PAIRS; i += 3u) {
        problem p = chunked(i);
        p.flags |= NBL_ATTEND_WINDOW_LEFT;
        p.window_left = 300 + 400 * i / 3u; /* the first chunks are empty */
        run_all_chunks(&l, &p, i % 3u);     /* and the last, which do not exist */
    }
    lab_finish(&l);
}

Test(merge, rows_without_any_token_with_sinks_and_centres)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < PROBLEM_PAIRS; ++i) {
        problem p = chunked(i);
        p.kv_len[0] = 3;
        p.q_len[0] = 8; /* the first five see nothing */
        p.sinks = i % 2u == 0;
        p.shape.centering = i / 2u % 2u;
        run_all_chunks(&l, &p, 0);
    }
    lab_finish(&l);
}

/* ------------------------------------------------------------------------------------------------ made-up states */

static float random_state_base(uint64_t *rng)
{
    static const uint32_t spans[] = {3, 40, 300, 1u << 22};
    uint32_t span = spans[random_below(rng, COUNT(spans))];
    return (float)random_below(rng, span) - (float)(span / 2u);
}

static void fill_states(merging *m, uint64_t *rng, uint32_t empty_one_in)
{
    for (uint32_t i = 0; i < m->count * m->rows * m->heads; ++i) {
        uint32_t n = i / (m->rows * m->heads), row = i / m->heads % m->rows, h = i % m->heads;
        bool empty = empty_one_in != 0 && random_one_in(rng, empty_one_in);
        float head[4] = {empty ? -INFINITY : random_state_base(rng), 0.0f, random_normal(rng), 0.0f};
        float scale = ldexpf(1.0f, (int32_t)random_below(rng, 60) - 30);
        head[1] = empty ? 0.0f : scale * (1.0f + (float)random_below(rng, 100));
        for (uint32_t c = 0; c < 4; ++c)
            oracle_tensor_set(&m->in_head.tensor[HOST], n, row, h, c, head[c]);
        for (uint32_t d = 0; d < m->v_dim; ++d)
            oracle_tensor_set(&m->in_o.tensor[HOST], n, row, h, d, empty ? 0.0f : 255.0f * scale * random_normal(rng));
    }
    for (uint32_t h = 0; h < m->heads; ++h)
        ((float *)(void *)m->sinks.host)[h] = h % 3u == 2 ? -INFINITY : 10.0f * random_normal(rng);
}

Test(merge, random_states)
{
    lab l;
    uint64_t rng = lab_seed(8100);
    lab_open(&l);
    for (uint32_t i = 0; i < lab_cases(120); ++i) {
        merging m;
        uint32_t v_dim = 16u + 8u * random_below(&rng, 20);
        merging_init(&m, &l, 1u + random_below(&rng, 9), 1u + random_below(&rng, 6), 1u + random_below(&rng, 7), v_dim,
                     0, 1u + i % 3u, i % STRIDE_KINDS);
        m.v_hadamard = v_dim % 16u == 0 && i % 2u == 0 ? 16 : 0;
        m.flags = i / 2u % 2u == 0 ? NBL_MERGE_LSE_BASE2 : 0;
        m.sinks_given = i % 4u == 1;
        fill_states(&m, &rng, i % 3u == 0 ? 0 : 3);
        merging_run(&m);
        merging_free(&m);
    }
    lab_finish(&l);
}

/* Fails unless every row is (0, -inf). */
static void expect_nothing(const merging *m)
{
    for (uint32_t i = 0; i < m->rows * m->heads; ++i) {
        uint32_t row = i / m->heads, h = i % m->heads;
        float lse = oracle_tensor_get(&m->lse.tensor[HOST], row, h, 0, 0);
        cr_assert(lse == -INFINITY, "lse of %u empty partners is %g", m->count, (double)lse);
        for (uint32_t d = 0; d < m->v_dim; ++d)
            cr_assert(oracle_tensor_get(&m->o.tensor[HOST], row, h, d, 0) == 0.0f, "o of %u empty partners is not 0",
                      m->count);
    }
}

Test(merge, A4_empty_states_only)
{
    lab l;
    lab_open(&l);
    for (uint32_t count = 1; count < 6; ++count) {
        merging m;
        uint64_t rng = count;
        merging_init(&m, &l, count, 2, 3, 64, 0, NBL_F32, STRIDE_PACKED);
        fill_states(&m, &rng, 1);
        if (merging_run(&m))
            expect_nothing(&m);
        merging_free(&m);
    }
    lab_finish(&l);
}

/* ------------------------------------------------------------------------------------------------ pairs */

static void fill_pairs(merging *m, uint64_t *rng, uint32_t empty_one_in)
{
    for (uint32_t i = 0; i < m->count * m->rows * m->heads; ++i) {
        uint32_t n = i / (m->rows * m->heads), row = i / m->heads % m->rows, h = i % m->heads;
        bool empty = empty_one_in != 0 && random_one_in(rng, empty_one_in);
        float lse = empty ? -INFINITY : random_normal(rng) * (random_one_in(rng, 4) ? 200.0f : 4.0f);
        oracle_tensor_set(&m->in_lse.tensor[HOST], n, row, h, 0, lse);
        for (uint32_t d = 0; d < m->v_dim; ++d)
            oracle_tensor_set(&m->in_o.tensor[HOST], n, row, h, d, empty ? 0.0f : random_normal(rng));
    }
}

Test(merge, random_pairs)
{
    lab l;
    uint64_t rng = lab_seed(8200);
    lab_open(&l);
    for (uint32_t i = 0; i < lab_cases(120); ++i) {
        merging m;
        merging_init(&m, &l, 1u + random_below(&rng, 9), 1u + random_below(&rng, 6), 1u + random_below(&rng, 7),
                     16u + 8u * random_below(&rng, 20), 1u + i % 3u, 1u + i / 3u % 3u, i % STRIDE_KINDS);
        m.flags = i / 2u % 2u == 0 ? NBL_MERGE_LSE_BASE2 : 0;
        fill_pairs(&m, &rng, i % 3u == 0 ? 0 : 3);
        merging_run(&m);
        merging_free(&m);
    }
    lab_finish(&l);
}

Test(merge, A4_two_empty_pairs)
{
    lab l;
    lab_open(&l);
    for (uint32_t count = 1; count < 6; ++count) {
        merging m;
        uint64_t rng = count;
        merging_init(&m, &l, count, 2, 3, 64, NBL_F32, NBL_F32, STRIDE_PACKED);
        fill_pairs(&m, &rng, 1);
        if (merging_run(&m))
            expect_nothing(&m);
        merging_free(&m);
    }
    lab_finish(&l);
}

Test(merge, A4_a_single_partner_comes_back_unchanged)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 24; ++i) {
        merging m;
        uint64_t rng = i;
        uint32_t count = 1u + i % 4u, partner = i % count;
        merging_init(&m, &l, count, 2, 3, 64, 1u + i % 3u, 1u + i % 3u, STRIDE_PACKED);
        m.flags = i / 4u % 2u == 0 ? NBL_MERGE_LSE_BASE2 : 0;
        fill_pairs(&m, &rng, 0);
        for (uint32_t n = 0; n < count * 6u; ++n) {
            if (n / 6u != partner)
                oracle_tensor_set(&m.in_lse.tensor[HOST], n / 6u, n / 3u % 2u, n % 3u, 0, -INFINITY);
        }
        if (merging_run(&m)) {
            uint64_t o_bytes = m.o.memory.bytes, lse_bytes = m.lse.memory.bytes;
            cr_assert(memcmp(m.o.memory.host, m.in_o.memory.host + partner * o_bytes, o_bytes) == 0,
                      "o of a single partner among %u changed", count);
            cr_assert(memcmp(m.lse.memory.host, m.in_lse.memory.host + partner * lse_bytes, lse_bytes) == 0,
                      "lse of a single partner among %u changed", count);
        }
        merging_free(&m);
    }
    lab_finish(&l);
}

/* One part of a sequence as a pair, into entry n of the merge's input. */
static void pair_of(trial *t, merging *m, uint32_t n, uint32_t begin, uint32_t end)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_attend_args args = trial_attend_args(t, DEVICE);
    args.range_begin = begin;
    args.range_end = end;
    lab_expect(trial_call_attend(t, &args, &err), NBL_OK, "attend of a part", &err);
    buffer_fetch(t->lab, &t->o.memory);
    buffer_fetch(t->lab, &t->lse.memory);
    for (uint32_t row = 0; row < m->rows; ++row) {
        for (uint32_t h = 0; h < m->heads; ++h) {
            oracle_tensor_set(&m->in_lse.tensor[HOST], n, row, h, 0,
                              oracle_tensor_get(&t->lse.tensor[HOST], row, h, 0, 0));
            for (uint32_t d = 0; d < m->v_dim; ++d)
                oracle_tensor_set(&m->in_o.tensor[HOST], n, row, h, d,
                                  oracle_tensor_get(&t->o.tensor[HOST], row, h, d, 0));
        }
    }
}

static double difference(const merging *m, const trial *t, double *lse_error)
{
    double error = 0.0, size = 0.0;
    *lse_error = 0.0;
    for (uint32_t i = 0; i < m->rows * m->heads; ++i) {
        uint32_t row = i / m->heads, h = i % m->heads;
        double lse = (double)oracle_tensor_get(&m->lse.tensor[HOST], row, h, 0, 0);
        *lse_error = fmax(*lse_error, fabs(lse - (double)oracle_tensor_get(&t->lse.tensor[HOST], row, h, 0, 0)));
        for (uint32_t d = 0; d < m->v_dim; ++d) {
            double x = (double)oracle_tensor_get(&m->o.tensor[HOST], row, h, d, 0);
            double y = (double)oracle_tensor_get(&t->o.tensor[HOST], row, h, d, 0);
            error += (x - y) * (x - y);
            size += y * y;
        }
    }
    return sqrt(error / size);
}

/* Splits 3136 tokens at 3072, merges in attend's base or in the wrong one; the relative error against one pass. */
static double split_3072_64(lab *l, uint32_t i, bool wrong_base, double *lse_error)
{
    problem p = chunked(i);
    trial t;
    merging m;
    p.sinks = false;
    p.shape.centering = 0;
    p.k_data = p.v_data = DATA_NORMAL;
    p.kv_len[0] = 3136;
    p.q_len[0] = 1;
    p.out_dtype = NBL_F32;
    trial_init(&t, l, &p);
    trial_fill(&t);
    merging_init(&m, l, 2, 1, p.q_heads, p.shape.v_dim, NBL_F32, NBL_F32, STRIDE_PACKED);
    m.flags = (((p.flags & NBL_ATTEND_LSE_BASE2) != 0) != wrong_base) ? NBL_MERGE_LSE_BASE2 : 0;
    pair_of(&t, &m, 0, 0, 3072);
    pair_of(&t, &m, 1, 3072, 4096);
    trial_attend_backend(&t);
    bool can = merging_run(&m);
    double error = can ? difference(&m, &t, lse_error) : wrong_base ? 1.0 : 0.0;
    merging_free(&m);
    trial_free(&t);
    return error;
}

Test(merge, B1_prefix_3072_suffix_64_in_both_bases)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 8; ++i) {
        double lse_error = 0.0, error = split_3072_64(&l, i, false, &lse_error);
        cr_assert(error < 0.003 && lse_error < 0.002, "%s: relative error %g, lse off by %g", trial_text, error,
                  lse_error);
    }
    lab_finish(&l);
}

Test(merge, B1_the_wrong_base_shows)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 2; ++i) {
        double lse_error = 0.0, error = split_3072_64(&l, i, true, &lse_error);
        cr_assert(error > 0.02, "%s: merging in the wrong base has a relative error of %g only", trial_text, error);
    }
    lab_finish(&l);
}

Test(merge, no_rows)
{
    lab l;
    lab_open(&l);
    merging states, pairs;
    merging_init(&states, &l, 2, 0, 3, 64, 0, NBL_F32, STRIDE_PACKED);
    merging_init(&pairs, &l, 2, 0, 3, 64, NBL_F32, NBL_F32, STRIDE_PACKED);
    ++l.run;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_merge_args args = merging_args(&states, DEVICE);
    lab_expect(l.api->merge(l.device, &args, &err), NBL_OK, "merge of no rows", &err);
    args = merging_args(&pairs, DEVICE);
    lab_expect(l.api->merge(l.device, &args, &err), NBL_OK, "merge of no rows", &err);
    merging_free(&states);
    merging_free(&pairs);
    lab_finish(&l);
}
