/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file test_invariance.c
 * @brief The same bits however the work is cut and whoever does it (NUM 3.8, 5.5).
 */
#include "harness.h"

#include <errno.h>
#include <fenv.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define COUNT(list) ((uint32_t)(sizeof(list) / sizeof(list)[0]))
#define PROBLEMS 8u

/* The fixed list: every recipe's formats, with the features that go with them. */
static problem listed(uint32_t i)
{
    static const uint32_t formats[PROBLEMS][3] = {{NBL_Q4, NBL_MXFP4, NBL_INT8},
                                                  {NBL_Q8, NBL_MXFP4, NBL_MXFP4},
                                                  {NBL_Q8, NBL_INT4P, NBL_INT4P},
                                                  {NBL_Q8, NBL_MXFP4_16, NBL_INT4P},
                                                  {NBL_Q8, NBL_INT8, NBL_INT8},
                                                  {NBL_Q_DEFAULT, NBL_FORMAT_BF16, NBL_FORMAT_BF16},
                                                  {NBL_Q_DEFAULT, NBL_NVFP4, NBL_FP8_E4M3},
                                                  {NBL_Q_DEFAULT, NBL_FORMAT_FP16, NBL_FORMAT_FP16}};
    problem p = problem_default(lab_seed(6000) + i);
    problem_formats(&p, formats[i][1], formats[i][2]);
    p.q_format = formats[i][0];
    p.flags = NBL_ATTEND_CAUSAL;
    p.shape.k_dim = i == 1 ? 72 : 64;
    p.shape.v_dim = i == 3 ? 40 : 64;
    p.shape.k_hadamard = i == 0 || i == 2 ? 32 : 0;
    p.shape.v_hadamard = i == 2 ? 64 : 0;
    p.shape.centering = i == 2 ? NBL_CENTERING_ALL : i == 4 ? NBL_CENTERING_MEAN : i == 3 ? NBL_CENTERING_SHIFT : 0;
    p.soft_cap = i == 3 ? 30.0f : 0.0f;
    p.sinks = i == 1 || i == 2;
    p.k_data = i == 4 ? DATA_SCALED : DATA_NORMAL;
    p.v_data = i == 2 ? DATA_SCALED : DATA_NORMAL;
    p.kv_len[0] = i == 0 || i == 5 ? 1100 : 300;
    p.q_len[0] = 7;
    return p;
}

/* Appends and attends on the backend alone; the results are on the host's side. False if not supported. */
static bool run_backend(trial *t, lab *l, const problem *p)
{
    trial_init(t, l, p);
    trial_append_part(t, 0, t->tokens);
    return trial_attend_backend(t);
}

/* ------------------------------------------------------------------------------------------------ batches */

/* Sequence 0 of the reference is sequence `at` of a batch of others. */
static void run_in_batch(lab *l, const problem *alone, const trial *reference, uint32_t batch, uint32_t at)
{
    problem p = *alone;
    trial t;
    p.batch = batch;
    for (uint32_t b = 0; b < batch; ++b) {
        p.sequence_id[b] = b == at ? 0 : 100 + b;
        p.kv_len[b] = b == at ? alone->kv_len[0] : (b * 53u) % 150u;
        p.q_len[b] = b == at ? alone->q_len[0] : b % 3u;
    }
    trial_init(&t, l, &p);
    trial_fill(&t);
    if (trial_attend_backend(&t)) {
        for (uint32_t row = 0; row < alone->q_len[0]; ++row)
            trial_compare_rows(reference, row, &t, trial_first_row(&t, at) + row, "in a batch");
    }
    trial_free(&t);
}

static void run_batches(uint32_t q_len)
{
    static const uint32_t batches[] = {1, 2, 32, 33};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < PROBLEMS; ++i) {
        problem p = listed(i);
        trial reference;
        p.q_len[0] = q_len;
        trial_init(&reference, &l, &p);
        trial_fill(&reference);
        for (uint32_t n = 0; trial_attend(&reference) && n < COUNT(batches); ++n) {
            run_in_batch(&l, &p, &reference, batches[n], 0);
            run_in_batch(&l, &p, &reference, batches[n], batches[n] - 1u);
        }
        trial_free(&reference);
    }
    lab_finish(&l);
}

Test(invariance, J1_decode_row_alone_and_in_batches_of_2_32_33)
{
    run_batches(1);
}
Test(invariance, J1_prefill_rows_alone_and_in_batches_of_2_32_33)
{
    run_batches(7);
}

Test(invariance, J1_window_path_keeps_its_bits_in_a_batch)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < PROBLEMS; ++i) {
        problem p = listed(i);
        trial reference;
        p.flags |= NBL_ATTEND_WINDOW_LEFT;
        p.window_left = 100;
        trial_init(&reference, &l, &p);
        trial_fill(&reference);
        if (trial_attend(&reference))
            run_in_batch(&l, &p, &reference, 17, 9);
        trial_free(&reference);
    }
    lab_finish(&l);
}

/* ------------------------------------------------------------------------------------------------ pages */

Test(invariance, page_size_and_order)
{
    static const uint32_t pages[] = {1, 7, 16, 32, 33, 100, 128, 512, 1024};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < PROBLEMS; ++i) {
        problem p = listed(i);
        trial reference;
        bool can = run_backend(&reference, &l, &p);
        for (uint32_t n = 0; can && n < 3u * COUNT(pages); ++n) {
            trial t;
            p.shape.page_tokens = pages[n / 3u];
            p.page_order = n % 3u;
            p.pool_layout = n % POOL_LAYOUTS;
            if (run_backend(&t, &l, &p)) {
                for (uint32_t row = 0; row < p.q_len[0]; ++row)
                    trial_compare_rows(&reference, row, &t, row, "other pages");
            }
            trial_free(&t);
        }
        trial_free(&reference);
    }
    lab_finish(&l);
}

Test(invariance, strides_and_layers)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < PROBLEMS; ++i) {
        problem p = listed(i);
        trial reference;
        bool can = run_backend(&reference, &l, &p);
        for (uint32_t n = 0; can && n < STRIDE_KINDS; ++n) {
            trial t;
            p.in_stride = n;
            p.out_stride = (n + 2u) % STRIDE_KINDS;
            p.shape.layers = 2;
            p.layer = n % 2u;
            if (run_backend(&t, &l, &p)) {
                for (uint32_t row = 0; row < p.q_len[0]; ++row)
                    trial_compare_rows(&reference, row, &t, row, "other strides");
            }
            trial_free(&t);
        }
        trial_free(&reference);
    }
    lab_finish(&l);
}

/* ------------------------------------------------------------------------------------------------ query cuts */

/* The rows of the reference, the last `rows` tokens of the sequence, `piece` at a time with the tokens before them. */
static void run_pieces(lab *l, const problem *whole, const trial *reference, uint32_t piece)
{
    uint32_t rows = whole->q_len[0];
    for (uint32_t row = 0; row < rows; row += piece) {
        problem p = *whole;
        trial t;
        p.q_len[0] = piece < rows - row ? piece : rows - row;
        p.kv_len[0] = whole->kv_len[0] - rows + row + p.q_len[0];
        if (run_backend(&t, l, &p)) {
            for (uint32_t n = 0; n < p.q_len[0]; ++n)
                trial_compare_rows(reference, row + n, &t, n, "in pieces");
        }
        trial_free(&t);
    }
}

Test(invariance, prefill_chunked_prefill_and_decode)
{
    static const uint32_t pieces[] = {1, 4, 17};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < PROBLEMS; ++i) {
        problem p = listed(i);
        trial reference;
        p.kv_len[0] = 40;
        p.q_len[0] = 40;
        bool can = run_backend(&reference, &l, &p);
        for (uint32_t n = 0; can && n < COUNT(pieces); ++n)
            run_pieces(&l, &p, &reference, pieces[n]);
        trial_free(&reference);
    }
    lab_finish(&l);
}

Test(invariance, decode_across_a_chunk_border)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < PROBLEMS; ++i) {
        problem p = listed(i);
        trial reference;
        p.kv_len[0] = 1027;
        p.q_len[0] = 6;
        p.shape.kv_heads = 1;
        if (run_backend(&reference, &l, &p))
            run_pieces(&l, &p, &reference, 1);
        trial_free(&reference);
    }
    lab_finish(&l);
}

/* ------------------------------------------------------------------------------------------------ devices */

/* One way to run the problem: pages, pieces of the queries, other sequences in the batch. */
static uint32_t run_ways(lab *l, const problem *base, const trial *oracle)
{
    static const uint32_t pages[] = {1, 16, 33, 128, 512}, pieces[] = {1, 7};
    uint32_t runs = 0;
    for (uint32_t i = 0; i < COUNT(pages); ++i) {
        problem p = *base;
        p.shape.page_tokens = pages[i];
        for (uint32_t n = 0; n < COUNT(pieces); ++n)
            run_pieces(l, &p, oracle, pieces[n]);
        run_in_batch(l, &p, oracle, 3, i % 3u);
        runs += COUNT(pieces) + 1u;
    }
    return runs;
}

static uint32_t run_devices(const problem *p, const trial *oracle, char *left_out, size_t size)
{
    static const char *const isas[] = {"scalar", "avx2", "avx512", "amx"};
    static const uint32_t threads[] = {1, 2, 3, 8};
    uint32_t runs = 0;
    for (uint32_t i = 0; i < COUNT(isas) * COUNT(threads); ++i) {
        lab l;
        if (!lab_open_with(&l, isas[i / COUNT(threads)], threads[i % COUNT(threads)])) {
            snprintf(left_out, size, "%s", l.reason);
            continue;
        }
        runs += run_ways(&l, p, oracle);
        lab_close(&l);
    }
    return runs;
}

Test(invariance, isa_threads_pages_chunks_batches)
{
    char left_out[480] = "";
    uint32_t runs = 0;
    for (uint32_t i = 0; i < PROBLEMS; ++i) {
        lab l;
        trial reference;
        problem p = listed(i);
        lab_open(&l);
        p.kv_len[0] = i == 0 ? 2100 : 150; /* three chunks: their order shows */
        p.shape.kv_heads = i == 0 ? 1 : 2;
        trial_init(&reference, &l, &p);
        trial_fill(&reference);
        if (trial_attend(&reference)) /* the oracle's bytes are the reference */
            runs += run_devices(&p, &reference, left_out, sizeof left_out);
        trial_free(&reference);
        lab_close(&l);
    }
    if (left_out[0] != '\0')
        cr_log_info("left out: %s", left_out);
    if (runs == 0)
        cr_skip_test("no device with a choice of instruction set and threads: %s", left_out);
}

Test(invariance, threads_of_a_large_batch)
{
    static const uint32_t threads[] = {1, 2, 3, 8};
    uint32_t runs = 0;
    lab l;
    for (uint32_t i = 0; i < COUNT(threads); ++i) {
        if (!lab_open_with(&l, NULL, threads[i]))
            continue;
        problem p = listed(2);
        p.batch = 20;
        for (uint32_t b = 0; b < p.batch; ++b) {
            p.kv_len[b] = 1u + b * 13u;
            p.q_len[b] = b % 4u;
        }
        trial_run(&l, &p);
        p = listed(0);
        p.kv_len[0] = 3000;
        p.q_len[0] = 1;
        trial_run(&l, &p);
        lab_close(&l);
        ++runs;
    }
    if (runs == 0)
        cr_skip_test("%s", l.reason);
}

/* ------------------------------------------------------------------------------------------------ host state */

/* Logits that rise by 50 base-2 units a tile, so that what tile 0 adds to O is scaled down to subnormals; later tiles
 * add nothing to the first elements. */
static void fill_rising(trial *t)
{
    for (uint32_t j = 0; j < t->tokens; ++j) {
        for (uint32_t h = 0; h < t->p.shape.kv_heads; ++h) {
            for (uint32_t d = 0; d < t->p.shape.k_dim; ++d)
                oracle_tensor_set(&t->k.tensor[HOST], j, h, d, 0, 0.5415f * (float)(j / 128u));
            for (uint32_t d = 0; j >= 128 && d < t->p.shape.v_dim / 2u; ++d)
                oracle_tensor_set(&t->v.tensor[HOST], j, h, d, 0, 0.0f);
        }
    }
    buffer_upload(t->lab, &t->k.memory);
    buffer_upload(t->lab, &t->v.memory);
}

/* Problems whose bits depend on subnormals being kept and on rounding to nearest. */
static void init_delicate(trial *t, lab *l, uint32_t i)
{
    problem p = problem_default(lab_seed(6100) + i);
    bool rising = i % 2u == 1;
    problem_formats(&p, 1u + i % 4u, 1u + i / 2u % 4u);
    p.region_count = 2; /* a last region of one page, in other formats, for transcode */
    p.k_format[1] = 1u + (i + 1u) % 4u;
    p.v_format[1] = 4u - i % 4u;
    p.region_pages[0] = 32;
    p.spare_pages = 1;
    p.page_order = ORDER_SEQUENTIAL;
    p.kv_len[0] = 512;
    p.want_state = true;
    p.k_data = rising ? DATA_ONES : i % 4u == 0 ? DATA_BITS : DATA_HEAVY;
    p.q_data = rising ? DATA_ONES : DATA_NORMAL;
    p.sm_scale = rising ? 1.0f : 0.0f;
    p.v_scale = rising ? 1.0f : 0x1p-140f; /* whole vectors of subnormals, which are counted as flushed */
    p.shape.centering = rising ? 0 : NBL_CENTERING_ALL;
    p.shape.k_hadamard = p.shape.v_hadamard = 16;
    p.center_mode = NBL_CENTER_COMPUTE;
    trial_init(t, l, &p);
    if (rising)
        fill_rising(t);
}

#define DELICATE 8u

/* How the host's floating-point state is changed before the backend is called, and checked and put back after. */
typedef struct host_state {
    void (*enter)(void);
    void (*leave)(void);
} host_state;

static bool is_refused(lab *l, nbl_status status, const char *what, const nbl_error *err)
{
    if (status == NBL_E_UNSUPPORTED) {
        ++l->unsupported;
        memcpy(l->reason, err->message, sizeof l->reason);
        return true;
    }
    lab_expect(status, NBL_OK, what, err);
    ++l->run;
    return false;
}

/* append and attend of the backend in another state; then the oracle in the normal one. */
static void run_in_state(trial *t, host_state state)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_append_args append = trial_append_args(t, DEVICE), host_append = trial_append_args(t, HOST);
    nbl_attend_args attend = trial_attend_args(t, DEVICE), host_attend = trial_attend_args(t, HOST);
    state.enter();
    nbl_status status = trial_call_append(t, &append, &err);
    if (status == NBL_OK)
        status = trial_call_attend(t, &attend, &err);
    state.leave();
    if (!is_refused(t->lab, status, "append and attend", &err)) {
        oracle_append(&host_append);
        oracle_attend(&host_attend);
        trial_compare_pools(t);
        trial_compare_outputs(t);
    }
}

/* Keys of all tokens, whose centre and transform are undone in binary32. */
static void gather_in_state(trial *t, host_state state)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_append_args side[2] = {trial_append_args(t, HOST), trial_append_args(t, DEVICE)};
    nbl_gather_args args[2] = {NBL_INIT(nbl_gather_args), NBL_INIT(nbl_gather_args)};
    view k;
    view_init(t->lab, &k, NBL_F32, 3, side[HOST].k.shape, STRIDE_PACKED, 0xA5);
    for (enum side s = HOST; s <= DEVICE; ++s) {
        args[s].pool = side[s].pool;
        args[s].batch = side[s].batch;
        args[s].slots = side[s].slots;
        args[s].k = k.tensor[s];
        args[s].seq_indptr = side[s].seq_indptr;
        args[s].centers = side[s].centers;
        args[s].stream = side[s].stream;
    }
    state.enter();
    nbl_status status = t->lab->api->gather(t->lab->device, &args[DEVICE], &err);
    state.leave();
    if (!is_refused(t->lab, status, "gather", &err)) {
        oracle_gather(&args[HOST]);
        view_compare(t->lab, &k, "k of gather");
    }
    view_free(t->lab, &k);
}

/* The states of the trial's only chunk and of nothing else. */
static void merge_in_state(trial *t, host_state state)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_merge_args args[2] = {NBL_INIT(nbl_merge_args), NBL_INIT(nbl_merge_args)};
    const uint64_t shape[] = {t->q_tokens, t->p.q_heads, t->p.shape.v_dim};
    view o, lse;
    view_init(t->lab, &o, NBL_F32, 3, shape, STRIDE_PACKED, 0xA5);
    view_init(t->lab, &lse, NBL_F32, 2, shape, STRIDE_PACKED, 0xA5);
    for (enum side s = HOST; s <= DEVICE; ++s) {
        args[s].count = t->states;
        args[s].v_hadamard = t->p.shape.v_hadamard;
        args[s].in_state_head = t->state_head.tensor[s];
        args[s].in_state_o = t->state_o.tensor[s];
        args[s].o = o.tensor[s];
        args[s].lse = lse.tensor[s];
        args[s].stream = t->lab->stream;
    }
    state.enter();
    nbl_status status = t->lab->api->merge(t->lab->device, &args[DEVICE], &err);
    state.leave();
    if (!is_refused(t->lab, status, "merge", &err)) {
        oracle_merge(&args[HOST]);
        view_compare(t->lab, &o, "o of merge");
        view_compare(t->lab, &lse, "lse of merge");
    }
    view_free(t->lab, &o);
    view_free(t->lab, &lse);
}

/* The first page of the trial into its last, which is spare, by the destination's rule. */
static void transcode_in_state(trial *t, host_state state)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_transcode_args args[2] = {NBL_INIT(nbl_transcode_args), NBL_INIT(nbl_transcode_args)};
    const nbl_region *last = &t->regions[HOST][t->p.region_count - 1u];
    const int32_t pages[] = {*(const int32_t *)(const void *)t->page_table.host,
                             (int32_t)(last->first_page + last->page_count - 1u), (int32_t)t->p.shape.page_tokens};
    buffer list;
    buffer_init(t->lab, &list, sizeof pages, 0);
    memcpy(list.host, pages, sizeof pages);
    buffer_upload(t->lab, &list);
    for (enum side s = HOST; s <= DEVICE; ++s) {
        const int32_t *at = buffer_at(&list, s);
        args[s].src_pool = args[s].dst_pool = &t->pools[s];
        args[s].src_pages = at;
        args[s].dst_pages = at + 1;
        args[s].token_counts = at + 2;
        args[s].count = 1;
        args[s].stats = buffer_at(&t->stats, s);
        args[s].stream = t->lab->stream;
    }
    state.enter();
    nbl_status status = t->lab->api->transcode(t->lab->device, &args[DEVICE], &err);
    state.leave();
    if (!is_refused(t->lab, status, "transcode", &err)) {
        oracle_transcode(&args[HOST]);
        trial_compare_pools(t);
    }
    buffer_free(t->lab, &list);
}

static void run_all_in_state(host_state state)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < DELICATE; ++i) {
        trial t;
        init_delicate(&t, &l, i);
        run_in_state(&t, state);
        gather_in_state(&t, state);
        merge_in_state(&t, state);
        transcode_in_state(&t, state);
        trial_free(&t);
    }
    lab_finish(&l);
}

#if defined(__x86_64__)
#define FTZ_AND_DAZ 0x8040u
static unsigned int saved_mode;

static void flush_subnormals(void)
{
    saved_mode = _mm_getcsr();
    _mm_setcsr(saved_mode | FTZ_AND_DAZ);
}

static void keep_subnormals(void)
{
    unsigned int mode = _mm_getcsr();
    _mm_setcsr(saved_mode);
    cr_assert((mode & FTZ_AND_DAZ) == FTZ_AND_DAZ, "the host's flush-to-zero mode was changed to 0x%x", mode);
}
#endif

Test(invariance, C12_host_flushes_subnormals)
{
#if defined(__x86_64__)
    run_all_in_state((host_state){flush_subnormals, keep_subnormals});
#else
    cr_skip_test("flush-to-zero is set here for x86-64 only");
#endif
}

static int rounding_mode;

static void round_otherwise(void)
{
    cr_assert(fesetround(rounding_mode) == 0, "the rounding mode %d cannot be set", rounding_mode);
}

static void round_to_nearest(void)
{
    int mode = fegetround();
    fesetround(FE_TONEAREST);
    cr_assert(mode == rounding_mode, "the host's rounding mode %d was changed to %d", rounding_mode, mode);
}

Test(invariance, host_rounds_upward)
{
    rounding_mode = FE_UPWARD;
    run_all_in_state((host_state){round_otherwise, round_to_nearest});
}

Test(invariance, host_rounds_downward)
{
    rounding_mode = FE_DOWNWARD;
    run_all_in_state((host_state){round_otherwise, round_to_nearest});
}

Test(invariance, host_rounds_toward_zero)
{
    rounding_mode = FE_TOWARDZERO;
    run_all_in_state((host_state){round_otherwise, round_to_nearest});
}

static void set_errno(void)
{
    errno = 4242;
}

static void check_errno(void)
{
    cr_assert(errno == 4242, "errno was changed to %d", errno);
}

Test(invariance, host_errno_is_kept)
{
    run_all_in_state((host_state){set_errno, check_errno});
}

/* ------------------------------------------------------------------------------------------------ parallel hosts */

typedef struct worker {
    problem p;
    trial t;
    lab l;
    nbl_status status;
} worker;

/* Two calls on a device of its own; assertions wait for the main thread. */
static void work(worker *w)
{
    nbl_append_args append = trial_append_args(&w->t, DEVICE);
    nbl_attend_args attend = trial_attend_args(&w->t, DEVICE);
    for (uint32_t i = 0; i < 20 && w->status == NBL_OK; ++i) {
        memset(w->t.stats.device, 0, w->t.stats.bytes);
        w->status = trial_call_append(&w->t, &append, NULL);
        if (w->status == NBL_OK)
            w->status = trial_call_attend(&w->t, &attend, NULL);
    }
}

static void *work_in_thread(void *argument)
{
    work(argument);
    return NULL;
}

/* False if a device of the host's own memory is needed and this is none. */
static bool workers_init(worker *w, uint32_t count)
{
    for (uint32_t i = 0; i < count; ++i) {
        memset(&w[i], 0, sizeof w[i]);
        lab_open(&w[i].l);
        w[i].p = listed(i % PROBLEMS);
        w[i].p.kv_len[0] = 600;
        trial_init(&w[i].t, &w[i].l, &w[i].p);
    }
    return w[0].l.stream.kind == NBL_STREAM_HOST;
}

static void workers_finish(worker *w, uint32_t count, bool ran)
{
    for (uint32_t i = 0; i < count; ++i) {
        nbl_append_args append = trial_append_args(&w[i].t, HOST);
        nbl_attend_args attend = trial_attend_args(&w[i].t, HOST);
        lab_expect(w[i].status, NBL_OK, "work beside other threads", NULL);
        if (ran) {
            oracle_append(&append);
            oracle_attend(&attend);
            trial_compare_pools(&w[i].t);
            trial_compare_outputs(&w[i].t);
        }
        trial_free(&w[i].t);
        lab_close(&w[i].l);
    }
    if (!ran)
        cr_skip_test("the device's memory cannot be cleared by the host between calls");
}

Test(invariance, I4_devices_in_parallel_threads)
{
    static worker w[3];
    pthread_t threads[COUNT(w)];
    bool can = workers_init(w, COUNT(w));
    for (uint32_t i = 0; can && i < COUNT(w); ++i)
        cr_assert(pthread_create(&threads[i], NULL, work_in_thread, &w[i]) == 0, "thread %u cannot be started", i);
    for (uint32_t i = 0; can && i < COUNT(w); ++i)
        pthread_join(threads[i], NULL);
    workers_finish(w, COUNT(w), can);
}

Test(invariance, inside_the_hosts_own_parallel_region)
{
#ifdef _OPENMP
    static worker w[3];
    bool can = workers_init(w, COUNT(w));
#pragma omp parallel for num_threads(3) schedule(static)
    for (uint32_t i = 0; i < COUNT(w); ++i) {
        if (can)
            work(&w[i]);
    }
    workers_finish(w, COUNT(w), can);
#else
    cr_skip_test("built without OpenMP");
#endif
}

Test(invariance, repeated_calls)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 3u * PROBLEMS; ++i) {
        problem p = listed(i % PROBLEMS);
        trial t;
        trial_init(&t, &l, &p);
        if (trial_append(&t))
            trial_attend(&t);
        trial_free(&t);
    }
    lab_finish(&l);
}
