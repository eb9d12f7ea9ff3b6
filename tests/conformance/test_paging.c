/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file test_paging.c
 * @brief Page tables, unused slots, large offsets (NUM 5.10, F6).
 */
#include "harness.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define FORMATS 8u
#define COUNT(list) ((uint32_t)(sizeof(list) / sizeof(list)[0]))

static problem paged(uint32_t i)
{
    problem p = problem_default(lab_seed(11000) + i);
    problem_formats(&p, 1u + i % FORMATS, 1u + i / FORMATS % FORMATS);
    p.q_len[0] = 2;
    return p;
}

static int32_t *table_of(trial *t)
{
    return (void *)t->page_table.host;
}

/* ------------------------------------------------------------------------------------------------ page ids */

/* attend with an array that the device finds out of range: refused, and untouched if the call itself says so. */
static void refuse_attend(lab *l, trial *t, const char *what)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_attend_args args = trial_attend_args(t, DEVICE);
    nbl_status status = trial_call_attend(t, &args, &err);
    if (status == NBL_E_UNSUPPORTED) {
        ++l->unsupported;
        memcpy(l->reason, err.message, sizeof l->reason);
        return;
    }
    ++l->run;
    if (lab_expect_range(l, status, what))
        trial_compare_outputs(t);
}

static const int32_t bad_pages[] = {-1, 0, 1, 12, 1 << 20, INT32_MAX, INT32_MIN};

Test(paging, F4_page_ids_outside_the_pool_are_refused)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < COUNT(bad_pages); ++i) {
        problem p = paged(i); /* pages 2 to 11 */
        trial t;
        p.batch = 2;
        p.kv_len[1] = 40;
        p.q_len[1] = 1;
        p.spare_pages = 0;
        trial_init(&t, &l, &p);
        trial_fill(&t);
        uint32_t entry = i % 2u == 0 ? 3u : t.table_stride + 2u;
        table_of(&t)[entry] = bad_pages[i];
        buffer_upload(&l, &t.page_table);
        refuse_attend(&l, &t, "attend with a page id outside the pool");
        trial_free(&t);
    }
    lab_finish(&l);
}

/* One sequence of ten pages in a call whose bounds are those of a very long one, for kernels that such calls get. */
static problem paged_in_long_call(uint32_t i)
{
    problem p = problem_default(lab_seed(11500) + i);
    const uint32_t formats[] = {NBL_INT4P, NBL_MXFP4, NBL_INT8};
    problem_formats(&p, formats[i % COUNT(formats)], formats[i % COUNT(formats)]);
    p.shape.kv_heads = 1u + i % 3u;
    p.q_heads = p.shape.kv_heads * (1u + i % 4u);
    p.shape.k_dim = p.shape.v_dim = 128;
    p.shape.page_tokens = 32;
    p.kv_len[0] = 300;
    p.spare_pages = 0;
    return p;
}

/* Bounds of so many tokens, with a page table of one sequence to match, -1 where it has no pages. */
static void widen_bounds(trial *t, uint32_t kv_len_max)
{
    const uint32_t stride = (kv_len_max + t->p.shape.page_tokens - 1u) / t->p.shape.page_tokens;
    buffer table;
    buffer_init(t->lab, &table, stride * sizeof(int32_t), 0xFF);
    memcpy(table.host, t->page_table.host, t->table_stride * sizeof(int32_t));
    buffer_free(t->lab, &t->page_table);
    t->page_table = table;
    t->table_stride = stride;
    t->kv_len_max = kv_len_max;
}

Test(paging, F4_page_ids_outside_the_pool_are_refused_in_long_calls)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < COUNT(bad_pages); ++i) {
        problem p = paged_in_long_call(i);
        trial t;
        trial_init(&t, &l, &p);
        trial_fill(&t);
        widen_bounds(&t, 300000);
        table_of(&t)[i % 2u == 0 ? 0u : 9u] = bad_pages[i];
        buffer_upload(&l, &t.page_table);
        refuse_attend(&l, &t, "attend with a page id outside the pool");
        trial_free(&t);
    }
    lab_finish(&l);
}

Test(paging, F4_page_ids_between_regions_are_refused)
{
    lab l;
    lab_open(&l);
    problem p = paged(1);
    trial t;
    p.region_count = 2;
    p.k_format[1] = p.v_format[1] = NBL_INT8;
    trial_init(&t, &l, &p);
    trial_fill(&t);
    table_of(&t)[1] = (int32_t)(t.regions[HOST][0].first_page + t.regions[HOST][0].page_count);
    buffer_upload(&l, &t.page_table);
    refuse_attend(&l, &t, "attend with a page id between regions");
    trial_free(&t);
    lab_finish(&l);
}

Test(paging, F4_unused_entries_are_never_read)
{
    static const int32_t fills[] = {-1, 0, INT32_MAX, INT32_MIN, 1 << 20};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 2u * COUNT(fills); ++i) {
        problem p = paged(i);
        trial t;
        p.batch = 3;
        p.kv_len[1] = i % 2u == 0 ? 0 : 16;
        p.kv_len[2] = 33;
        p.q_len[1] = p.q_len[2] = 1;
        trial_init(&t, &l, &p);
        for (uint32_t b = 0; b < p.batch; ++b) {
            for (uint32_t n = (p.kv_len[b] + 15u) / 16u; n < t.table_stride; ++n)
                table_of(&t)[b * t.table_stride + n] = fills[i / 2u];
        }
        buffer_upload(&l, &t.page_table);
        trial_fill(&t);
        trial_attend(&t);
        trial_free(&t);
    }
    lab_finish(&l);
}

Test(paging, slots_outside_the_pool_are_refused)
{
    static const int64_t slots[] = {-2, 0, 31, 192, (int64_t)1 << 40, INT64_MAX, INT64_MIN};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < COUNT(slots); ++i) {
        problem p = paged(i); /* slots 32 to 191 */
        trial t;
        nbl_error err = NBL_INIT(nbl_error);
        p.shape.centering = i % 2u;
        p.center_mode = NBL_CENTER_COMPUTE;
        trial_init(&t, &l, &p);
        memcpy(t.slots.host + 5u * sizeof(int64_t), &slots[i], sizeof slots[i]);
        buffer_upload(&l, &t.slots);
        nbl_append_args args = trial_append_args(&t, DEVICE);
        nbl_status status = trial_call_append(&t, &args, &err);
        if (status == NBL_E_UNSUPPORTED) {
            ++l.unsupported;
        } else {
            ++l.run;
            if (lab_expect_range(&l, status, "append with a slot outside the pool"))
                trial_compare_pools(&t);
        }
        trial_free(&t);
    }
    lab_finish(&l);
}

Test(paging, lengths_outside_their_bounds_are_refused)
{
    static const int32_t lengths[] = {-1, 101, INT32_MAX, INT32_MIN};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < COUNT(lengths); ++i) {
        problem p = paged(i);
        trial t;
        trial_init(&t, &l, &p);
        trial_fill(&t);
        memcpy(t.kv_len.host, &lengths[i], sizeof lengths[i]);
        buffer_upload(&l, &t.kv_len);
        refuse_attend(&l, &t, "attend with a length outside kv_len_max");
        trial_free(&t);
    }
    lab_finish(&l);
}

Test(paging, row_pointers_out_of_order_are_refused)
{
    static const int32_t indptrs[][3] = {{1, 2, 4}, {0, 3, 2}, {0, 2, 5}, {0, -1, 4}, {0, 2, 3}};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < COUNT(indptrs); ++i) {
        problem p = paged(i);
        trial t;
        p.batch = 2;
        p.kv_len[1] = 9;
        p.q_len[1] = 2;
        trial_init(&t, &l, &p);
        trial_fill(&t);
        memcpy(t.q_indptr.host, indptrs[i], sizeof indptrs[i]);
        buffer_upload(&l, &t.q_indptr);
        refuse_attend(&l, &t, "attend with q_indptr out of order");
        trial_free(&t);
    }
    lab_finish(&l);
}

/* ------------------------------------------------------------------------------------------------ unused slots */

/* The same problem over pools filled with two kinds of poison first: o and lse must be equal. */
static void run_poisons(lab *l, problem p, uint8_t codes, uint8_t scales)
{
    trial clean, t;
    p.code_poison = p.scale_poison = 0;
    trial_init(&clean, l, &p);
    trial_fill(&clean);
    bool can = trial_attend(&clean);
    p.code_poison = codes;
    p.scale_poison = scales;
    trial_init(&t, l, &p);
    trial_fill(&t);
    if (can && trial_attend(&t)) {
        for (uint32_t row = 0; row < t.q_tokens; ++row)
            trial_compare_rows(&clean, row, &t, row, "unused slots poisoned");
    }
    trial_free(&t);
    trial_free(&clean);
}

Test(paging, A14_unused_slots_may_hold_anything)
{
    static const uint8_t poisons[][2] = {{0xFF, 0}, {0, 0xFF}, {0xFF, 0xFF}, {0x7F, 0x7F}, {0x80, 0x80}, {0x88, 0xFE}};
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < FORMATS * COUNT(poisons); ++i) {
        problem p = paged(i);
        p.shape.page_tokens = i % 2u == 0 ? 4 : 32;
        p.kv_len[0] = i % 3u == 0 ? 13 : i % 3u == 1 ? 1 : 129;
        run_poisons(&l, p, poisons[i / FORMATS][0], poisons[i / FORMATS][1]);
    }
    lab_finish(&l);
}

Test(paging, A14_last_page_of_4090_tokens)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < FORMATS; ++i) {
        problem p = paged(i * 5u);
        p.shape.page_tokens = 64;
        p.kv_len[0] = 4090;
        p.q_len[0] = 1;
        run_poisons(&l, p, 0xFF, 0xFF);
    }
    lab_finish(&l);
}

Test(paging, A14_poison_with_centres_and_transforms)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < FORMATS * FORMATS; ++i) {
        problem p = paged(i);
        p.shape.centering = 1u + i % NBL_CENTERING_ALL;
        p.shape.k_hadamard = p.shape.v_hadamard = 64;
        p.kv_len[0] = 45;
        run_poisons(&l, p, 0xFF, 0xFF);
    }
    lab_finish(&l);
}

Test(paging, F6_every_fill_of_the_last_page)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < 32; ++i) {
        problem p = paged(i);
        p.kv_len[0] = 33u + i; /* all residues of 16, entries past the length are stale */
        run_poisons(&l, p, 0xFF, 0x7F);
    }
    lab_finish(&l);
}

Test(paging, F6_a_page_given_to_another_sequence)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < FORMATS * FORMATS; ++i) {
        problem p = paged(i);
        trial t;
        p.batch = 2;
        p.kv_len[1] = 20;
        p.q_len[1] = 1;
        trial_init(&t, &l, &p);
        for (uint32_t n = 2; n < t.table_stride; ++n) /* stale entries of sequence 1 name pages of sequence 0 */
            table_of(&t)[t.table_stride + n] = table_of(&t)[n];
        buffer_upload(&l, &t.page_table);
        trial_fill(&t);
        trial_attend(&t);
        trial_free(&t);
    }
    lab_finish(&l);
}

Test(paging, sequences_may_share_pages)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < FORMATS; ++i) {
        problem p = paged(i);
        trial t;
        p.batch = 2;
        p.kv_len[1] = 100;
        p.q_len[1] = 2;
        p.sequence_id[1] = 0; /* the same tokens and queries */
        trial_init(&t, &l, &p);
        for (uint32_t n = 0; n < 6; ++n)
            table_of(&t)[t.table_stride + n] = table_of(&t)[n];
        buffer_upload(&l, &t.page_table);
        trial_fill(&t);
        if (trial_attend(&t)) {
            trial_compare_rows(&t, 0, &t, 2, "shared pages");
            trial_compare_rows(&t, 1, &t, 3, "shared pages");
        }
        trial_free(&t);
    }
    lab_finish(&l);
}

/* ------------------------------------------------------------------------------------------------ large offsets */

/* Address space whose pages cost nothing until they are touched; the device's own memory where it has some. */
typedef struct expanse {
    uint8_t *at[2];
    uint64_t bytes;
} expanse;

static bool expanse_init(lab *l, expanse *x, uint64_t bytes)
{
    nbl_error err = NBL_INIT(nbl_error);
    x->bytes = bytes;
    for (enum side side = HOST; side <= DEVICE; ++side) {
        if (side == DEVICE && l->stream.kind != NBL_STREAM_HOST) {
            void *memory;
            if (l->api->memory_alloc(l->device, bytes, &memory, &err) != NBL_OK) {
                munmap(x->at[HOST], bytes);
                memcpy(l->reason, err.message, sizeof l->reason);
                return false;
            }
            x->at[DEVICE] = memory;
            continue;
        }
        void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        cr_assert(memory != MAP_FAILED, "no address space for %llu bytes", (unsigned long long)bytes);
        x->at[side] = memory;
    }
    return true;
}

static void expanse_free(lab *l, expanse *x)
{
    munmap(x->at[HOST], x->bytes);
    if (l->stream.kind != NBL_STREAM_HOST)
        l->api->memory_free(l->device, x->at[DEVICE], NULL);
    else
        munmap(x->at[DEVICE], x->bytes);
}

/* Moves region 0 of a trial into an expanse: page_stride bytes from page to page, page ids from first_page on. */
static void spread_region(trial *t, const expanse *x, uint64_t page_stride, uint32_t first_page, uint32_t page_count)
{
    const nbl_page_layout *layout = &t->layouts[0];
    for (enum side side = HOST; side <= DEVICE; ++side) {
        nbl_region *g = &t->regions[side][0];
        g->codes = x->at[side];
        g->scales = x->at[side] + layout->code_page_bytes;
        g->code_page_stride = g->scale_page_stride = page_stride;
        g->code_layer_stride = g->scale_layer_stride = page_count * page_stride;
        g->first_page = first_page;
        g->page_count = page_count;
    }
}

/* Gives the pages of a trial ids that lie `apart` ids apart, in its table and slots. */
static void renumber(trial *t, uint32_t first_page, uint32_t apart)
{
    int64_t *slots = (void *)t->slots.host;
    uint32_t old_first = t->regions[HOST][0].first_page, page_tokens = t->p.shape.page_tokens;
    for (uint32_t j = 0; j < t->tokens; ++j) {
        int64_t page = slots[j] / page_tokens - old_first;
        int64_t id = first_page + page * apart;
        slots[j] = id * page_tokens + slots[j] % page_tokens;
        table_of(t)[j / page_tokens] = (int32_t)id;
    }
    buffer_upload(t->lab, &t->slots);
    buffer_upload(t->lab, &t->page_table);
}

/* Fails unless the pages of the table are equal on both sides. */
static void compare_pages(trial *t)
{
    nbl_error err = NBL_INIT(nbl_error);
    const nbl_region *host = &t->regions[HOST][0], *device = &t->regions[DEVICE][0];
    uint64_t bytes = t->layouts[0].code_page_bytes + t->layouts[0].scale_page_bytes; /* side by side */
    uint8_t *copy = malloc(bytes);
    for (uint32_t i = 0; i * t->p.shape.page_tokens < t->tokens; ++i) {
        const uint8_t *page = oracle_page_codes(device, 0, table_of(t)[i]);
        lab_expect(t->lab->api->memory_copy(t->lab->device, copy, page, bytes, NBL_COPY_TO_HOST, t->lab->stream, &err),
                   NBL_OK, "memory_copy", &err);
        cr_assert(memcmp(copy, oracle_page_codes(host, 0, table_of(t)[i]), bytes) == 0, "%s: page %d differs",
                  trial_text, table_of(t)[i]);
    }
    free(copy);
}

/* Both operations over a region spread out; the results must be those of the region as it was. */
static void run_spread(lab *l, uint32_t i, uint64_t page_stride, uint32_t first_page, uint32_t apart)
{
    problem p = paged(i);
    trial near, far;
    expanse x;
    p.page_order = ORDER_SHUFFLED;
    p.spare_pages = 0;
    uint32_t pages = 7, page_count = (pages - 1u) * apart + 1u;
    if (!expanse_init(l, &x, page_count * page_stride)) {
        ++l->unsupported;
        return;
    }
    trial_init(&near, l, &p);
    trial_fill(&near);
    trial_init(&far, l, &p);
    renumber(&far, first_page, apart);
    spread_region(&far, &x, page_stride, first_page, page_count);
    nbl_error err = NBL_INIT(nbl_error);
    nbl_append_args device = trial_append_args(&far, DEVICE), host = trial_append_args(&far, HOST);
    nbl_status status = trial_call_append(&far, &device, &err);
    if (status == NBL_OK && trial_attend(&near)) {
        oracle_append(&host);
        compare_pages(&far);
        trial_attend(&far);
        trial_compare_rows(&near, 0, &far, 0, "pages far apart");
        trial_compare_rows(&near, 1, &far, 1, "pages far apart");
    } else {
        lab_expect(status, NBL_E_UNSUPPORTED, "append", &err);
        ++l->unsupported;
    }
    trial_free(&far);
    trial_free(&near);
    expanse_free(l, &x);
}

Test(paging, F5_page_strides_beyond_32_bits)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < FORMATS; ++i)
        run_spread(&l, i * 5u, ((uint64_t)3 << 30) + 4096u * i, 2, 1); /* the last page begins at 18 GiB */
    lab_finish(&l);
}

Test(paging, F5_many_pages_beyond_4_gib)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < FORMATS; ++i)
        run_spread(&l, i * 5u + 1u, 16384, 100, 60000); /* 360001 pages, 5.9 GB */
    lab_finish(&l);
}

Test(paging, F5_page_ids_up_to_the_largest)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < FORMATS; ++i)
        run_spread(&l, i * 5u + 2u, 16384, INT32_MAX - 6u, 1); /* slots beyond 2^34 */
    lab_finish(&l);
}

/* Layers of one page far apart, and the layer asked for the last. */
Test(paging, F5_layer_strides_beyond_32_bits)
{
    lab l;
    lab_open(&l);
    problem p = paged(3);
    trial near, far;
    expanse x;
    p.shape.layers = 3;
    p.layer = 2;
    p.spare_pages = 0;
    if (expanse_init(&l, &x, (uint64_t)12 << 30)) {
        trial_init(&near, &l, &p);
        trial_fill(&near);
        trial_init(&far, &l, &p);
        spread_region(&far, &x, 16384, far.regions[HOST][0].first_page, 7);
        for (enum side side = HOST; side <= DEVICE; ++side)
            far.regions[side][0].code_layer_stride = far.regions[side][0].scale_layer_stride = (uint64_t)5 << 30;
        nbl_error err = NBL_INIT(nbl_error);
        nbl_append_args device = trial_append_args(&far, DEVICE), host = trial_append_args(&far, HOST);
        if (trial_attend(&near) && trial_call_append(&far, &device, &err) == NBL_OK) {
            oracle_append(&host);
            trial_attend(&far);
            trial_compare_rows(&near, 0, &far, 0, "layers far apart");
        }
        trial_free(&far);
        trial_free(&near);
        expanse_free(&l, &x);
    } else {
        ++l.unsupported;
    }
    lab_finish(&l);
}
