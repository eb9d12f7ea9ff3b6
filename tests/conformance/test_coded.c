/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file test_coded.c
 * @brief append_coded: codes that an engine holds, in every layout of their scales (NUM 6.8, F9).
 */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

#define CASES 240u
#define REFUSED_SEED 52010u /* K and V in nvfp4, 128X4 */

/* K or V of an engine: random bytes, NaN codes and negative zeros among them, and where its scales are. */
typedef struct engine_side {
    bool is_given;
    uint32_t format;
    uint32_t dim;
    buffer codes;
    buffer scales;
    nbl_tensor code_tensor;
    nbl_tensor scale_tensor;
    bool is_shared; /* 128X4: one matrix for all heads */
} engine_side;

typedef struct engine {
    trial t;
    uint32_t layout;
    uint64_t scale_token;
    engine_side sides[2];
    uint64_t random;
} engine;

static uint32_t columns_of(const engine_side *s)
{
    return (s->dim + 15u) / 16u;
}

static uint32_t code_bytes(const engine_side *s)
{
    return s->format == NBL_NVFP4 ? s->dim / 2u : s->dim;
}

/* Byte of a scale in tiles of 128 x 4: row = 128 a + 32 b + c and column = 4 e + f have the digits a, e, c, b, f. */
static uint64_t place_128x4(uint64_t row, uint64_t column, uint64_t columns)
{
    const uint64_t a = row / 128u, b = row / 32u % 4u, c = row % 32u, e = column / 4u, f = column % 4u;
    return (((a * ((columns + 3u) / 4u) + e) * 32u + c) * 4u + b) * 4u + f;
}

static uint64_t scale_place(const engine *x, const engine_side *s, uint64_t token, uint32_t head, uint32_t b)
{
    const uint32_t heads = x->t.p.shape.kv_heads;
    if (x->layout == NBL_SCALES_LINEAR)
        return token * (uint64_t)s->scale_tensor.stride_bytes[0] + head * (uint64_t)s->scale_tensor.stride_bytes[1] +
               b * (uint64_t)s->scale_tensor.stride_bytes[2];
    token += x->scale_token;
    if (s->is_shared)
        return place_128x4(token * heads + head, b, columns_of(s));
    return head * (uint64_t)s->scale_tensor.stride_bytes[0] + place_128x4(token, b, columns_of(s));
}

static void random_bytes(engine *x, buffer *b, uint64_t bytes)
{
    buffer_init(x->t.lab, b, bytes, 0);
    for (uint64_t i = 0; i < bytes; ++i) {
        static const uint8_t special[] = {0x7f, 0xff, 0x80, 0x88, 0x08, 0x00};
        b->host[i] = random_one_in(&x->random, 8) ? special[random_below(&x->random, 6)]
                                                  : (uint8_t)random_below(&x->random, 256);
    }
    buffer_upload(x->t.lab, b);
}

static void make_codes(engine *x, engine_side *s)
{
    const uint64_t heads = x->t.p.shape.kv_heads;
    const uint64_t gap = random_below(&x->random, 2) * 5u; /* bytes after each row */
    nbl_tensor *t = &s->code_tensor;
    t->dtype = NBL_U8;
    t->rank = 3;
    t->shape[0] = x->t.tokens;
    t->shape[1] = heads;
    t->shape[2] = code_bytes(s);
    t->stride_bytes[2] = 1;
    t->stride_bytes[1] = (int64_t)(code_bytes(s) + gap);
    t->stride_bytes[0] = (int64_t)heads * t->stride_bytes[1];
    random_bytes(x, &s->codes, (uint64_t)t->stride_bytes[0] * x->t.tokens);
    t->data = s->codes.device;
}

static void make_scales(engine *x, engine_side *s)
{
    const uint64_t heads = x->t.p.shape.kv_heads;
    nbl_tensor *t = &s->scale_tensor;
    t->dtype = NBL_U8;
    if (x->layout == NBL_SCALES_LINEAR) {
        t->rank = 3;
        t->shape[0] = x->t.tokens;
        t->shape[1] = heads;
        t->shape[2] = columns_of(s);
        t->stride_bytes[2] = (int64_t)(1u + random_below(&x->random, 2));
        t->stride_bytes[0] = t->stride_bytes[2] * columns_of(s); /* heads outside, tokens inside */
        t->stride_bytes[1] = t->stride_bytes[0] * x->t.tokens;
        random_bytes(x, &s->scales, (uint64_t)t->stride_bytes[1] * heads);
    } else {
        s->is_shared = heads > 1u && random_below(&x->random, 2) != 0;
        const uint64_t rows = (x->t.tokens + x->scale_token) * (s->is_shared ? heads : 1u);
        t->rank = 2;
        t->shape[0] = s->is_shared ? 1u : heads;
        t->shape[1] = (rows + 127u) / 128u * ((columns_of(s) + 3u) / 4u) * 512u;
        t->stride_bytes[1] = 1;
        t->stride_bytes[0] = (int64_t)(t->shape[1] + 32u);
        random_bytes(x, &s->scales, t->shape[0] * (t->shape[1] + 32u));
    }
    t->data = s->scales.device;
}

/* NUM 6.8: -0 is 0, NaN the code below. */
static uint8_t canonical(uint8_t code, uint64_t *nan)
{
    *nan += code == 0x7f || code == 0xff;
    return code == 0x80 ? 0 : code == 0x7f || code == 0xff ? (uint8_t)(code - 1) : code;
}

static void expect_vector(engine *x, enum oracle_side kind, uint64_t token, uint32_t head, int64_t slot,
                          nbl_quant_stats *stats)
{
    const engine_side *s = &x->sides[kind];
    const uint8_t *row = s->codes.host + token * (uint64_t)s->code_tensor.stride_bytes[0] +
                         head * (uint64_t)s->code_tensor.stride_bytes[1];
    oracle_vector v;
    memset(&v, 0, sizeof v);
    v.format = s->format;
    v.dim = s->dim;
    v.padded_dim = oracle_padded_dim(s->dim);
    for (uint32_t d = 0; d < s->dim; ++d) {
        const uint8_t nibble = d % 2u == 0 ? row[d / 2u] % 16u : row[d / 2u] / 16u;
        v.elements[d] = s->format != NBL_NVFP4 ? canonical(row[d], &stats->nan_inputs) : nibble == 8u ? 0 : nibble;
    }
    for (uint32_t b = 0; s->format == NBL_NVFP4 && b < columns_of(s); ++b)
        v.block_scales[b] = canonical(s->scales.host[scale_place(x, s, token, head, b)] % 128u, &stats->nan_inputs);
    stats->vectors++;
    oracle_slot_write(&x->t.pools[HOST], x->t.p.layer, slot, kind, head, &v);
}

static void expect_all(engine *x)
{
    const int64_t *slots = buffer_at(&x->t.slots, HOST);
    nbl_quant_stats *stats = buffer_at(&x->t.stats, HOST);
    for (uint64_t i = 0; i < x->t.tokens; ++i)
        for (uint32_t head = 0; slots[i] >= 0 && head < x->t.p.shape.kv_heads; ++head)
            for (uint32_t k = 0; k < 2u; ++k)
                if (x->sides[k].is_given)
                    expect_vector(x, (enum oracle_side)k, i, head, slots[i], stats);
}

static nbl_append_coded_args args_of(const engine *x)
{
    nbl_append_coded_args a = NBL_INIT(nbl_append_coded_args);
    a.pool = &x->t.pools[DEVICE];
    a.layer = x->t.p.layer;
    a.k_format = x->sides[0].format;
    a.v_format = x->sides[1].format;
    a.scale_layout = x->layout;
    a.k = x->sides[0].code_tensor;
    a.v = x->sides[1].code_tensor;
    a.k_scales = x->sides[0].scale_tensor;
    a.v_scales = x->sides[1].scale_tensor;
    a.slots = buffer_at(&x->t.slots, DEVICE);
    a.scale_token = x->scale_token;
    a.stats = buffer_at(&x->t.stats, DEVICE);
    a.stream = x->t.lab->stream;
    return a;
}

static problem coded_problem(uint64_t seed)
{
    problem p = problem_random(seed);
    p.shape.k_hadamard = p.shape.v_hadamard = p.shape.centering = 0;
    p.soft_cap = 0.0f;
    p.q_format = NBL_Q_DEFAULT;
    for (uint32_t r = 0; r < p.region_count; ++r) {
        p.k_format[r] = seed % 3u != 0 ? NBL_NVFP4 : NBL_FP8_E4M3;
        p.v_format[r] = seed % 4u != 0 ? NBL_NVFP4 : NBL_FP8_E4M3;
    }
    p.head_scales = seed % 2u != 0;
    return p;
}

static void engine_init(engine *x, lab *l, uint64_t seed)
{
    const problem p = coded_problem(seed);
    memset(x, 0, sizeof *x);
    x->random = random_key(seed, 1, 2, 3);
    trial_init(&x->t, l, &p);
    x->layout = seed % 5u < 3u ? NBL_SCALES_128X4 : NBL_SCALES_LINEAR;
    x->scale_token = x->layout == NBL_SCALES_128X4 ? random_below(&x->random, 300) : 0u;
    for (uint32_t k = 0; k < 2u; ++k) {
        engine_side *s = &x->sides[k];
        s->is_given = random_below(&x->random, 6) != 0 || (k == 1u && !x->sides[0].is_given);
        s->format = k == 0 ? p.k_format[0] : p.v_format[0];
        s->dim = k == 0 ? p.shape.k_dim : p.shape.v_dim;
        if (s->is_given)
            make_codes(x, s);
        if (s->is_given && s->format == NBL_NVFP4)
            make_scales(x, s);
    }
}

static void engine_free(engine *x)
{
    for (uint32_t k = 0; k < 2u; ++k) {
        buffer_free(x->t.lab, &x->sides[k].codes);
        buffer_free(x->t.lab, &x->sides[k].scales);
    }
    trial_free(&x->t);
}

/* True if the backend has the operation; a backend that has it not says so for every case. */
static bool engine_append(engine *x)
{
    nbl_error err = NBL_INIT(nbl_error);
    const nbl_append_coded_args a = args_of(x);
    const nbl_status status = x->t.lab->api->append_coded(x->t.lab->device, &a, &err);
    if (status == NBL_E_UNSUPPORTED) {
        x->t.lab->unsupported++;
        memcpy(x->t.lab->reason, err.message, sizeof x->t.lab->reason);
        return false;
    }
    lab_expect(status, NBL_OK, "append_coded", &err);
    lab_expect(x->t.lab->api->check(x->t.lab->device, x->t.lab->stream, &err), NBL_OK, "check", &err);
    x->t.lab->run++;
    return true;
}

/* Every byte of the pools against the oracle's, and attention over what is in them. */
Test(coded, random_sweep)
{
    lab l;
    lab_open(&l);
    for (uint32_t i = 0; i < lab_cases(CASES); ++i) {
        engine x;
        engine_init(&x, &l, lab_seed(50000) + i);
        if (x.t.tokens > 0 && engine_append(&x)) {
            expect_all(&x);
            trial_compare_pools(&x.t);
            if (i % 8u == 0)
                trial_attend(&x.t);
        }
        engine_free(&x);
    }
    lab_finish(&l);
}

/* The engine's codes and scales become those of a slot. */
static void engine_take(engine *x, enum oracle_side side, uint64_t token, uint32_t head, int64_t slot)
{
    engine_side *s = &x->sides[side];
    uint8_t *row = s->codes.host + token * (uint64_t)s->code_tensor.stride_bytes[0] +
                   head * (uint64_t)s->code_tensor.stride_bytes[1];
    oracle_vector v;
    oracle_slot_read(&x->t.pools[HOST], 0, slot, side, head, &v);
    for (uint32_t d = 0; d < s->dim; d += 2u)
        row[d / 2u] = (uint8_t)(v.elements[d] + 16u * v.elements[d + 1u]);
    for (uint32_t b = 0; b < columns_of(s); ++b)
        s->scales.host[scale_place(x, s, token, head, b)] = v.block_scales[b];
}

/* What append makes of numbers is what append_coded makes of their codes. */
Test(coded, codes_of_append_come_back)
{
    lab l;
    lab_open(&l);
    problem p = problem_default(lab_seed(51000));
    problem_formats(&p, NBL_NVFP4, NBL_NVFP4);
    p.shape.k_hadamard = p.shape.v_hadamard = p.shape.centering = 0;
    engine x;
    memset(&x, 0, sizeof x);
    trial_init(&x.t, &l, &p);
    for (uint32_t k = 0; k < 2u; ++k) {
        engine_side *s = &x.sides[k];
        s->format = NBL_NVFP4;
        s->dim = p.shape.k_dim;
        make_codes(&x, s);
        make_scales(&x, s);
    }
    trial_fill(&x.t); /* the oracle's append, on both sides */
    const int64_t *slots = buffer_at(&x.t.slots, HOST);
    for (uint32_t k = 0; k < 2u; ++k) {
        for (uint32_t i = 0; i < x.t.tokens * p.shape.kv_heads; ++i)
            engine_take(&x, (enum oracle_side)k, i / p.shape.kv_heads, i % p.shape.kv_heads,
                        slots[i / p.shape.kv_heads]);
        buffer_upload(&l, &x.sides[k].codes);
        buffer_upload(&l, &x.sides[k].scales);
    }
    buffer_fill(&l, &x.t.stats, 0);
    if (engine_append(&x)) {
        nbl_quant_stats *stats = buffer_at(&x.t.stats, HOST);
        stats->vectors = 2u * x.t.tokens * p.shape.kv_heads;
        trial_compare_pools(&x.t);
    }
    engine_free(&x);
    lab_finish(&l);
}

static void expect_refusal(engine *x, const nbl_append_coded_args *a, nbl_status status, const char *text)
{
    nbl_error err = NBL_INIT(nbl_error);
    lab_expect(x->t.lab->api->append_coded(x->t.lab->device, a, &err), status, text, &err);
    cr_assert(strstr(err.message, text) != NULL, "\"%s\" does not say \"%s\"", err.message, text);
}

static void expect_invalid(engine *x, const nbl_append_coded_args *a, const char *text)
{
    expect_refusal(x, a, NBL_E_INVALID, text);
}

Test(coded, refusals)
{
    lab l;
    lab_open(&l);
    engine x;
    engine_init(&x, &l, REFUSED_SEED);
    cr_assert(x.t.tokens > 0 && x.sides[0].is_given && x.sides[1].is_given && x.layout == NBL_SCALES_128X4 &&
              x.sides[0].format == NBL_NVFP4 && x.sides[1].format == NBL_NVFP4);
    expect_invalid(&x, NULL, "args is NULL");
    nbl_append_coded_args a = args_of(&x);
    a.struct_size = 8;
    expect_refusal(&x, &a, NBL_E_ABI, "struct_size is 8");
    a = args_of(&x);
    a.pool = NULL;
    expect_invalid(&x, &a, "pool is NULL");
    a = args_of(&x);
    a.scale_layout = 2;
    expect_invalid(&x, &a, "scale_layout is 2");
    a = args_of(&x);
    a.k_format = NBL_INT8;
    expect_invalid(&x, &a, "k_format is 1");
    a = args_of(&x);
    a.k.shape[2]++;
    expect_invalid(&x, &a, "k.shape[2]");
    a = args_of(&x);
    a.k_scales.shape[1]--;
    expect_invalid(&x, &a, "k_scales.shape[1]");
    a = args_of(&x);
    a.k_scales.data = NULL;
    expect_invalid(&x, &a, "k_scales.data is NULL");
    a = args_of(&x);
    a.k.dtype = NBL_BF16;
    expect_invalid(&x, &a, "k.dtype is 3 (allowed: 4 u8)");
    a = args_of(&x);
    a.scale_layout = NBL_SCALES_LINEAR;
    a.scale_token = 1;
    expect_invalid(&x, &a, "scale_token is 1");
    a = args_of(&x);
    a.k_format = a.v_format = NBL_FP8_E4M3;
    expect_invalid(&x, &a, "k.shape[2]");
    a = args_of(&x);
    nbl_pool pool = *a.pool;
    nbl_kv_shape shape = *pool.shape;
    shape.v_hadamard = 8;
    pool.shape = &shape;
    a.pool = &pool;
    expect_invalid(&x, &a, "v is given, but the pool transforms it");
    l.run++;
    engine_free(&x);
    lab_finish(&l);
}

/* A slot in a region of another format is found where slots can be read. */
Test(coded, slots_of_other_formats)
{
    lab l;
    lab_open(&l);
    problem p = problem_default(lab_seed(53000));
    p.shape.k_hadamard = p.shape.v_hadamard = p.shape.centering = 0;
    p.region_count = 2;
    p.k_format[0] = p.v_format[0] = NBL_FP8_E4M3;
    p.k_format[1] = p.v_format[1] = NBL_NVFP4;
    engine x;
    memset(&x, 0, sizeof x);
    trial_init(&x.t, &l, &p);
    for (uint32_t k = 0; k < 2u; ++k) {
        x.sides[k].format = NBL_FP8_E4M3;
        x.sides[k].dim = p.shape.k_dim;
        make_codes(&x, &x.sides[k]);
    }
    const nbl_append_coded_args a = args_of(&x);
    const nbl_status status = l.api->append_coded(l.device, &a, NULL);
    if (status == NBL_E_UNSUPPORTED) {
        l.unsupported++;
    } else {
        lab_expect_range(&l, status, "a slot of another format");
        l.run++;
    }
    engine_free(&x);
    lab_finish(&l);
}
