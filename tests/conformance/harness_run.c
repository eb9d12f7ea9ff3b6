/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file harness_run.c
 * @brief Runs a trial on both sides and compares.
 */
#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------ pools */

/* Names the element that a byte of a page belongs to. */
static void name_code(const trial *t, uint32_t r, uint64_t at, char *text, size_t size)
{
    const nbl_kv_shape *s = &t->p.shape;
    for (enum oracle_side side = ORACLE_K; side <= ORACLE_V; ++side) {
        uint32_t format = side == ORACLE_K ? t->p.k_format[r] : t->p.v_format[r];
        uint32_t dim = side == ORACLE_K ? s->k_dim : s->v_dim, shift;
        uint64_t part = side == ORACLE_K ? t->layouts[r].k_code_head_bytes : t->layouts[r].v_code_head_bytes;
        uint64_t first = side == ORACLE_K ? 0 : t->layouts[r].v_code_offset;
        if (at < first || at >= first + s->kv_heads * part)
            continue;
        for (uint32_t x = 0; x < s->page_tokens * dim; ++x) {
            if (oracle_code_offset(side, format, dim, s->page_tokens, x / dim, x % dim, &shift) ==
                (at - first) % part) {
                snprintf(text, size, "%c of head %llu, token %u, element %u", side == ORACLE_K ? 'K' : 'V',
                         (unsigned long long)((at - first) / part), x / dim, x % dim);
                return;
            }
        }
    }
    snprintf(text, size, "padding");
}

static void name_scale(const trial *t, uint32_t r, uint64_t at, char *text, size_t size)
{
    const nbl_page_layout *x = &t->layouts[r];
    bool k = at < x->v_scale_offset;
    uint64_t part = k ? x->k_scale_head_bytes : x->v_scale_head_bytes, inside = k ? at : at - x->v_scale_offset;
    snprintf(text, size, "%c of head %llu, plane %llu, token %llu", k ? 'K' : 'V', (unsigned long long)(inside / part),
             (unsigned long long)(inside % part / t->p.shape.page_tokens),
             (unsigned long long)(inside % part % t->p.shape.page_tokens));
}

/* Names the place of a byte of a region's code or scale memory. */
static void name_byte(const trial *t, uint32_t r, bool scales, uint64_t at, char *text, size_t size)
{
    const nbl_region *g = &t->regions[HOST][r];
    const uint8_t *memory = scales && t->scales[r].bytes > 0 ? t->scales[r].host : t->codes[r].host;
    for (uint32_t i = 0; i < g->page_count * t->p.shape.layers; ++i) {
        int64_t page = g->first_page + i % g->page_count;
        uint32_t layer = i / g->page_count;
        uint64_t code_at = (uint64_t)(memory + at - oracle_page_codes(g, layer, page));
        uint64_t scale_at = (uint64_t)(memory + at - oracle_page_scales(g, layer, page));
        int used = snprintf(text, size, "layer %u, page %lld, ", layer, (long long)page);
        if (!scales && code_at < t->layouts[r].code_page_bytes) {
            name_code(t, r, code_at, text + used, size - (size_t)used);
            return;
        }
        if (scale_at < t->layouts[r].scale_page_bytes && (scales || t->scales[r].bytes == 0)) {
            name_scale(t, r, scale_at, text + used, size - (size_t)used);
            return;
        }
    }
    snprintf(text, size, "byte %llu, between pages", (unsigned long long)at);
}

static void compare_memory(const trial *t, uint32_t r, bool scales)
{
    const buffer *b = scales ? &t->scales[r] : &t->codes[r];
    char place[160];
    if (b->bytes == 0)
        return;
    uint8_t *bytes = buffer_download(t->lab, b);
    for (uint64_t at = 0; memcmp(bytes, b->host, b->bytes) != 0 && at < b->bytes; ++at) {
        if (bytes[at] == b->host[at])
            continue;
        name_byte(t, r, scales, at, place, sizeof place);
        cr_assert(false, "%s: region %u %s, %s: 0x%02x (oracle: 0x%02x)", trial_text, r, scales ? "scales" : "codes",
                  place, bytes[at], b->host[at]);
    }
    free(bytes);
}

void trial_compare_pools(trial *t)
{
    for (uint32_t r = 0; r < t->p.region_count; ++r) {
        compare_memory(t, r, true);
        compare_memory(t, r, false);
    }
    if (t->p.shape.centering) {
        buffer_compare(t->lab, &t->center_codes, 1, "centers.codes");
        buffer_compare(t->lab, &t->center_exponents, 1, "centers.exponents");
        buffer_compare(t->lab, &t->center_shifts, 1, "centers.shifts");
    }
    buffer_compare(t->lab, &t->stats, sizeof(uint64_t), "stats");
}

/* ------------------------------------------------------------------------------------------------ capabilities */

static nbl_op_desc describe_append(const trial *t, const nbl_append_args *args)
{
    nbl_op_desc d = NBL_INIT(nbl_op_desc);
    d.shape = &t->p.shape;
    d.op = NBL_OP_APPEND;
    d.in_dtype = args->k.dtype;
    d.batch_max = args->batch;
    d.q_tokens_max = (uint32_t)args->k.shape[0];
    return d;
}

static uint32_t features_of(const nbl_attend_args *a)
{
    uint32_t features = 0;
    features |= (a->flags & NBL_ATTEND_CAUSAL) != 0 ? NBL_FEATURE_CAUSAL : 0u;
    features |= (a->flags & (NBL_ATTEND_WINDOW_LEFT | NBL_ATTEND_WINDOW_RIGHT)) != 0 ? NBL_FEATURE_WINDOW : 0u;
    features |= a->sinks != NULL ? NBL_FEATURE_SINKS : 0u;
    features |= a->soft_cap != 0.0f ? NBL_FEATURE_SOFT_CAP : 0u;
    features |= a->alibi_slopes != NULL ? NBL_FEATURE_ALIBI : 0u;
    features |= a->tree_mask != NULL ? NBL_FEATURE_TREE_MASK : 0u;
    features |= a->range_end != 0 ? NBL_FEATURE_RANGE : 0u;
    features |= a->state_o.data != NULL ? NBL_FEATURE_STATE : 0u;
    features |= a->lse.data != NULL ? NBL_FEATURE_LSE : 0u;
    features |= a->q_centers.data != NULL ? NBL_FEATURE_Q_CENTERS : 0u;
    return features;
}

static nbl_op_desc describe_attend(const trial *t, const nbl_attend_args *args)
{
    nbl_op_desc d = NBL_INIT(nbl_op_desc);
    d.shape = &t->p.shape;
    d.op = NBL_OP_ATTEND;
    d.q_format = args->q_format;
    d.q_heads = args->q_heads;
    d.in_dtype = args->q.dtype;
    d.out_dtype = args->o.dtype;
    d.features = features_of(args);
    d.batch_max = args->batch;
    d.q_tokens_max = (uint32_t)args->q.shape[0];
    d.q_len_max = args->q_len_max;
    d.kv_len_max = args->kv_len_max;
    return d;
}

/* True if the operation can be done in the formats of every region; counts the case. */
static bool supported(trial *t, nbl_op_desc d)
{
    nbl_error err = NBL_INIT(nbl_error);
    for (uint32_t r = 0; r < t->p.region_count; ++r) {
        d.k_format = t->p.k_format[r];
        d.v_format = t->p.v_format[r];
        nbl_status status = t->lab->api->supports(t->lab->device, &d, &err);
        if (status == NBL_E_UNSUPPORTED) {
            if (t->lab->unsupported++ == 0)
                memcpy(t->lab->reason, err.message, sizeof t->lab->reason);
            return false;
        }
        lab_expect(status, NBL_OK, "supports", &err);
    }
    ++t->lab->run;
    return true;
}

/* The largest workspace over the regions, poisoned; without bytes if none is needed or none can be told. */
static buffer make_workspace(trial *t, nbl_op_desc d)
{
    nbl_error err = NBL_INIT(nbl_error);
    buffer workspace = {0};
    uint64_t most = 0, bytes = 0;
    for (uint32_t r = 0; r < t->p.region_count; ++r) {
        d.k_format = t->p.k_format[r];
        d.v_format = t->p.v_format[r];
        nbl_status status = t->lab->api->workspace_size(t->lab->device, &d, &bytes, &err);
        if (status != NBL_E_UNSUPPORTED)
            lab_expect(status, NBL_OK, "workspace_size", &err);
        most = bytes > most ? bytes : most;
    }
    if (most > 0)
        buffer_init(t->lab, &workspace, most, 0xFF);
    return workspace;
}

static void drop_workspace(trial *t, buffer *workspace)
{
    if (workspace->bytes == 0)
        return;
    free(buffer_download(t->lab, workspace)); /* looks at the guard */
    buffer_free(t->lab, workspace);
}

nbl_status trial_call_append(trial *t, nbl_append_args *args, nbl_error *err)
{
    buffer workspace = make_workspace(t, describe_append(t, args));
    args->workspace = workspace.device;
    args->workspace_bytes = workspace.bytes;
    nbl_status status = t->lab->api->append(t->lab->device, args, err);
    drop_workspace(t, &workspace);
    return status;
}

nbl_status trial_call_attend(trial *t, nbl_attend_args *args, nbl_error *err)
{
    buffer workspace = make_workspace(t, describe_attend(t, args));
    args->workspace = workspace.device;
    args->workspace_bytes = workspace.bytes;
    nbl_status status = t->lab->api->attend(t->lab->device, args, err);
    drop_workspace(t, &workspace);
    return status;
}

/* ------------------------------------------------------------------------------------------------ append */

bool trial_append(trial *t)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_append_args device = trial_append_args(t, DEVICE), host = trial_append_args(t, HOST);
    bool can = supported(t, describe_append(t, &device));
    nbl_status status = trial_call_append(t, &device, &err);
    lab_expect(status, can ? NBL_OK : NBL_E_UNSUPPORTED, "append", &err);
    if (can)
        oracle_append(&host);
    trial_compare_pools(t);
    return can;
}

void trial_append_part(trial *t, uint32_t first, uint32_t count)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_append_args args = trial_append_args(t, DEVICE);
    buffer indptr;
    cr_assert(t->p.batch == 1 || !t->p.shape.centering, "parts of a batch with centres are not cut here");
    buffer_init(t->lab, &indptr, 2u * sizeof(int32_t), 0);
    memcpy(indptr.host + sizeof(int32_t), &count, sizeof count);
    buffer_upload(t->lab, &indptr);
    args.seq_indptr = indptr.device;
    args.slots += first;
    args.k.data = (uint8_t *)args.k.data + (int64_t)first * t->k.stride[0];
    args.v.data = (uint8_t *)args.v.data + (int64_t)first * t->v.stride[0];
    args.k.shape[0] = args.v.shape[0] = count;
    lab_expect(trial_call_append(t, &args, &err), NBL_OK, "append of a part", &err);
    buffer_free(t->lab, &indptr);
}

void trial_fill(trial *t)
{
    nbl_append_args host = trial_append_args(t, HOST);
    oracle_append(&host);
    for (uint32_t r = 0; r < t->p.region_count; ++r) {
        buffer_upload(t->lab, &t->codes[r]);
        if (t->scales[r].bytes > 0)
            buffer_upload(t->lab, &t->scales[r]);
    }
    if (t->p.shape.centering) {
        buffer_upload(t->lab, &t->center_codes);
        buffer_upload(t->lab, &t->center_exponents);
        buffer_upload(t->lab, &t->center_shifts);
    }
    buffer_upload(t->lab, &t->stats);
}

/* ------------------------------------------------------------------------------------------------ attend */

void trial_compare_outputs(trial *t)
{
    view_compare(t->lab, &t->o, "o");
    view_compare(t->lab, &t->lse, "lse");
    view_compare(t->lab, &t->state_head, "state_head");
    view_compare(t->lab, &t->state_o, "state_o");
}

bool trial_attend(trial *t)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_attend_args device = trial_attend_args(t, DEVICE), host = trial_attend_args(t, HOST);
    bool can = supported(t, describe_attend(t, &device));
    nbl_status status = trial_call_attend(t, &device, &err);
    lab_expect(status, can ? NBL_OK : NBL_E_UNSUPPORTED, "attend", &err);
    if (can)
        oracle_attend(&host);
    trial_compare_outputs(t);
    return can;
}

bool trial_attend_backend(trial *t)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_attend_args device = trial_attend_args(t, DEVICE);
    if (!supported(t, describe_attend(t, &device)))
        return false;
    lab_expect(trial_call_attend(t, &device, &err), NBL_OK, "attend", &err);
    view *outputs[] = {&t->o, &t->lse, &t->state_head, &t->state_o};
    for (uint32_t i = 0; i < 4; ++i) {
        if (outputs[i]->memory.bytes > 0)
            buffer_fetch(t->lab, &outputs[i]->memory);
    }
    return true;
}

void trial_run(lab *l, const problem *p)
{
    trial t;
    trial_init(&t, l, p);
    trial_fill(&t);
    trial_attend(&t);
    trial_free(&t);
}

/* ------------------------------------------------------------------------------------------------ rows and errors */

void trial_compare_rows(const trial *a, uint32_t row_a, const trial *b, uint32_t row_b, const char *what)
{
    uint32_t bytes = a->p.out_dtype == NBL_F32 ? 4u : 2u;
    for (uint32_t h = 0; h < a->p.q_heads; ++h) {
        for (uint32_t d = 0; d < a->p.shape.v_dim; ++d) {
            const void *x = view_at(&a->o, row_a, h, d, 0), *y = view_at(&b->o, row_b, h, d, 0);
            cr_assert(memcmp(x, y, bytes) == 0, "%s: %s: o of row %u, head %u, element %u is %g, and %g in row %u",
                      trial_text, what, row_a, h, d, (double)oracle_tensor_get(&a->o.tensor[HOST], row_a, h, d, 0),
                      (double)oracle_tensor_get(&b->o.tensor[HOST], row_b, h, d, 0), row_b);
        }
        cr_assert(memcmp(view_at(&a->lse, row_a, h, 0, 0), view_at(&b->lse, row_b, h, 0, 0), sizeof(float)) == 0,
                  "%s: %s: lse of row %u, head %u differs from that of row %u", trial_text, what, row_a, h, row_b);
    }
}

uint32_t trial_first_row(const trial *t, uint32_t sequence)
{
    uint32_t row = 0;
    for (uint32_t b = 0; b < sequence; ++b)
        row += t->p.q_len[b];
    return row;
}

float *trial_input(const trial *t, enum oracle_side side, uint32_t sequence)
{
    const nbl_tensor *x = side == ORACLE_K ? &t->k.tensor[HOST] : &t->v.tensor[HOST];
    uint64_t heads = x->shape[1], dim = x->shape[2], first = 0;
    float *values = malloc((t->p.kv_len[sequence] * heads * dim + 1u) * sizeof *values);
    cr_assert(values != NULL, "no memory for the inputs");
    for (uint32_t b = 0; b < sequence; ++b)
        first += t->p.kv_len[b];
    for (uint64_t i = 0; i < t->p.kv_len[sequence] * heads * dim; ++i)
        values[i] = oracle_tensor_get(x, first + i / (heads * dim), i / dim % heads, i % dim, 0);
    return values;
}

double trial_error(const trial *t, double *lse_error)
{
    const nbl_attend_args args = trial_attend_args(t, HOST);
    uint64_t rows = (uint64_t)t->q_tokens * t->p.q_heads, dim = t->p.shape.v_dim;
    float *k[SEQUENCES_MAX], *v[SEQUENCES_MAX];
    double *o = calloc(rows * dim, sizeof *o), *lse = calloc(rows, sizeof *lse), difference = 0.0, size = 0.0;
    cr_assert(o != NULL && lse != NULL, "no memory for the reference");
    for (uint32_t b = 0; b < t->p.batch; ++b) {
        k[b] = trial_input(t, ORACLE_K, b);
        v[b] = trial_input(t, ORACLE_V, b);
    }
    oracle_reference(&args, (const float *const *)k, (const float *const *)v, o, lse);
    for (uint64_t i = 0; i < rows * dim; ++i) {
        double x =
            (double)oracle_tensor_get(&t->o.tensor[HOST], i / dim / t->p.q_heads, i / dim % t->p.q_heads, i % dim, 0);
        difference += (x - o[i]) * (x - o[i]);
        size += o[i] * o[i];
    }
    *lse_error = 0.0;
    for (uint64_t i = 0; i < rows; ++i) {
        double x = (double)oracle_tensor_get(&t->lse.tensor[HOST], i / t->p.q_heads, i % t->p.q_heads, 0, 0);
        *lse_error = x == lse[i] ? *lse_error : fmax(*lse_error, fabs(x - lse[i]));
    }
    for (uint32_t b = 0; b < t->p.batch; ++b) {
        free(k[b]);
        free(v[b]);
    }
    free(o);
    free(lse);
    return sqrt(difference / size);
}
