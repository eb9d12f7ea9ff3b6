/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file harness_data.c
 * @brief Values of vectors, and problems.
 */
#include "harness.h"

#include <math.h>
#include <string.h>

#define OUTLIER_CHANNELS 4u
/* Elements a random problem may cost the oracle: of products, and of vectors stored. */
#define ROW_WORK_MAX 2500000u
#define TOKEN_WORK_MAX 400000u

/* ------------------------------------------------------------------------------------------------ vectors */

static void fill_normal(uint64_t *state, float scale, float *x, uint32_t dim)
{
    for (uint32_t d = 0; d < dim; ++d)
        x[d] = scale * random_normal(state);
}

static void fill_constant(float value, float *x, uint32_t dim)
{
    for (uint32_t d = 0; d < dim; ++d)
        x[d] = value;
}

static float power_of_two(uint64_t *state, int32_t limit)
{
    return ldexpf(1.0f, (int32_t)random_below(state, 2u * (uint32_t)limit + 1u) - limit);
}

static void add_outliers(uint64_t channels, float *x, uint32_t dim)
{
    for (uint32_t i = 0; i < OUTLIER_CHANNELS; ++i) {
        uint32_t d = random_below(&channels, dim);
        float bias = 100.0f + (float)random_below(&channels, 200);
        x[d] += random_one_in(&channels, 2) ? bias : -bias;
    }
}

static void fill_sparse(uint64_t *state, float *x, uint32_t dim)
{
    bool empty = random_one_in(state, 3);
    for (uint32_t d = 0; d < dim; ++d)
        x[d] = !empty && random_one_in(state, 8) ? random_normal(state) : random_one_in(state, 2) ? 0.0f : -0.0f;
}

static void fill_bits(uint64_t *state, float *x, uint32_t dim)
{
    for (uint32_t d = 0; d < dim; ++d)
        x[d] = oracle_f32_from_bits((uint32_t)random_next(state));
}

void data_vector(uint32_t kind, uint64_t key, uint64_t channels, float *x, uint32_t dim)
{
    uint64_t state = key;
    float scale = kind == DATA_SCALED ? power_of_two(&state, 8) : kind == DATA_TINY ? 0x1p-38f : 1.0f;
    switch (kind) {
    case DATA_SPARSE: fill_sparse(&state, x, dim); return;
    case DATA_BITS: fill_bits(&state, x, dim); return;
    case DATA_ONES:
    case DATA_ZERO: fill_constant(kind == DATA_ONES ? 1.0f : 0.0f, x, dim); return;
    default: fill_normal(&state, scale, x, dim);
    }
    for (uint32_t d = 0; d < dim; ++d) {
        if (kind == DATA_BLOCKS && d % 16u == 0)
            scale = power_of_two(&state, 6);
        if (kind == DATA_HEAVY)
            scale = power_of_two(&state, 60);
        if (kind == DATA_BLOCKS || kind == DATA_HEAVY)
            x[d] *= scale;
    }
    if (kind == DATA_OUTLIERS)
        add_outliers(channels, x, dim);
}

/* ------------------------------------------------------------------------------------------------ problems */

void problem_formats(problem *p, uint32_t k_format, uint32_t v_format)
{
    p->region_count = 1;
    p->k_format[0] = k_format;
    p->v_format[0] = v_format;
}

void problem_pair(problem *p, uint32_t i)
{
    static const uint32_t floats[PROBLEM_PAIRS - PROBLEM_INT_PAIRS][2] = {
        {NBL_FORMAT_BF16, NBL_FORMAT_BF16}, {NBL_FP8_E4M3, NBL_FP8_E4M3}, {NBL_NVFP4, NBL_NVFP4},
        {NBL_FORMAT_FP16, NBL_FORMAT_FP16}, {NBL_FP8_E4M3, NBL_NVFP4},    {NBL_NVFP4, NBL_FP8_E4M3},
        {NBL_FORMAT_BF16, NBL_NVFP4},       {NBL_INT8, NBL_NVFP4},        {NBL_FP8_E4M3, NBL_MXFP4},
        {NBL_INT4P, NBL_FP8_E4M3},          {NBL_NVFP4, NBL_INT8},        {NBL_MXFP4_16, NBL_FORMAT_FP16}};
    const uint32_t pair = i % PROBLEM_PAIRS;
    if (pair < PROBLEM_INT_PAIRS) {
        problem_formats(p, NBL_INT8 + pair % 4u, NBL_INT8 + pair / 4u);
        p->q_format = i % 2u == 0 ? NBL_Q8 : NBL_Q4;
    } else {
        const uint32_t *formats = floats[pair - PROBLEM_INT_PAIRS];
        problem_formats(p, formats[0], formats[1]);
        p->head_scales = i % 2u == 0;
    }
}

problem problem_default(uint64_t seed)
{
    problem p = {.seed = seed,
                 .shape = NBL_INIT(nbl_kv_shape),
                 .spare_pages = 3,
                 .first_page = 2,
                 .code_poison = 0xFF,
                 .scale_poison = 0xFF,
                 .batch = 1,
                 .q_len = {1},
                 .kv_len = {100},
                 .k_scale = 1.0f,
                 .v_scale = 1.0f,
                 .q_scale = 1.0f,
                 .in_dtype = NBL_F32,
                 .out_dtype = NBL_F32,
                 .q_heads = 4,
                 .sink_scale = 1.0f,
                 .want_o = true,
                 .want_lse = true};
    p.shape.layers = 1;
    p.shape.kv_heads = 2;
    p.shape.k_dim = 64;
    p.shape.v_dim = 64;
    p.shape.page_tokens = 16;
    for (uint32_t b = 0; b < SEQUENCES_MAX; ++b)
        p.sequence_id[b] = b;
    problem_formats(&p, NBL_INT4P, NBL_INT4P);
    return p;
}

static uint32_t pick(uint64_t *rng, const uint32_t *list, uint32_t count)
{
    return list[random_below(rng, count)];
}

#define PICK(rng, ...) \
    pick((rng), (const uint32_t[]){__VA_ARGS__}, (uint32_t)(sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)))

/* A power of two of 8..256 that divides dim, or none. */
static uint32_t random_hadamard(uint64_t *rng, uint32_t dim)
{
    uint32_t block = 8u << random_below(rng, 6);
    if (random_one_in(rng, 2))
        return 0;
    while (dim % block != 0)
        block /= 2u;
    return block;
}

static void random_shape(uint64_t *rng, problem *p)
{
    nbl_kv_shape *s = &p->shape;
    s->layers = 1u + random_below(rng, 3);
    p->layer = random_below(rng, s->layers);
    s->kv_heads = PICK(rng, 1, 1, 2, 2, 3, 4, 5);
    s->k_dim =
        random_one_in(rng, 3) ? 16u + 8u * random_below(rng, 24) : PICK(rng, 64, 64, 96, 128, 32, 40, 80, 192, 256);
    s->v_dim = random_one_in(rng, 3) ? 16u + 8u * random_below(rng, 24) : s->k_dim;
    s->page_tokens = PICK(rng, 1, 5, 16, 16, 31, 32, 33, 64, 100, 128, 160, 256, 1024);
    s->k_hadamard = random_hadamard(rng, s->k_dim);
    s->v_hadamard = random_hadamard(rng, s->v_dim);
    s->k_scale_rule = random_below(rng, 6);
    s->v_scale_rule = random_below(rng, 6);
    s->centering = random_one_in(rng, 3) ? 1u + random_below(rng, NBL_CENTERING_ALL) : 0;
    p->q_heads = s->kv_heads * PICK(rng, 1, 2, 3, 4, 5, 6, 7, 8);
}

/* A format of the integer core or of any; fp16 where it is wanted, and nowhere else. */
static uint32_t random_format(uint64_t *rng, bool is_float, bool is_fp16)
{
    static const uint32_t others[] = {NBL_INT8,  NBL_MXFP4,       NBL_MXFP4_16, NBL_INT4P,
                                      NBL_NVFP4, NBL_FORMAT_BF16, NBL_FP8_E4M3, NBL_FORMAT_BF16};
    return is_fp16 ? NBL_FORMAT_FP16 : pick(rng, others, is_float ? 8 : 4);
}

static void random_pool(uint64_t *rng, problem *p)
{
    bool is_float = random_one_in(rng, 3);
    bool k_fp16 = is_float && random_one_in(rng, 4), v_fp16 = is_float && random_one_in(rng, 4);
    p->region_count = 1u + random_below(rng, PROBLEM_REGIONS_MAX);
    for (uint32_t r = 0; r < p->region_count; ++r) {
        p->k_format[r] = random_format(rng, is_float, k_fp16);
        p->v_format[r] = random_format(rng, is_float, v_fp16);
        p->head_scales |= is_float && (oracle_is_float(p->k_format[r]) || oracle_is_float(p->v_format[r]));
    }
    p->head_scales = p->head_scales && random_one_in(rng, 2);
    p->spare_pages = random_below(rng, 6);
    p->first_page = random_below(rng, 4);
    p->pool_layout = random_below(rng, POOL_LAYOUTS);
    p->code_poison = (uint8_t)random_next(rng);
    p->scale_poison = (uint8_t)random_next(rng);
    p->center_mode = random_below(rng, 2);
    p->center_rows = random_one_in(rng, 2);
}

/* Shortens a sequence until the batch fits: rows against tokens for attend, tokens for append. */
static void limit_lengths(problem *p, uint32_t b, uint32_t row_work, uint32_t token_work)
{
    while (p->q_len[b] * (p->kv_len[b] + 8u) > row_work && p->q_len[b] > 1)
        p->q_len[b] /= 2u;
    while ((p->q_len[b] * (p->kv_len[b] + 8u) > row_work || p->kv_len[b] > token_work) && p->kv_len[b] > 1)
        p->kv_len[b] /= 2u;
}

static void random_lengths(uint64_t *rng, problem *p)
{
    p->batch = PICK(rng, 1, 1, 2, 3, 5);
    uint32_t dims = p->batch * (p->shape.k_dim + p->shape.v_dim);
    for (uint32_t b = 0; b < p->batch; ++b) {
        p->kv_len[b] = PICK(rng, 0, 1, 2, 13, 31, 32, 33, 63, 65, 127, 128, 129, 255, 257, 503, 1001, 1024, 1025, 2049);
        p->q_len[b] = PICK(rng, 0, 1, 1, 1, 2, 3, 5, 17, 65, 130);
        p->sequence_id[b] = random_below(rng, 1000);
        limit_lengths(p, b, ROW_WORK_MAX / dims / p->q_heads, TOKEN_WORK_MAX / dims / p->shape.kv_heads);
    }
}

static void random_values(uint64_t *rng, problem *p)
{
    p->k_data = random_one_in(rng, 2) ? random_below(rng, DATA_KINDS) : DATA_NORMAL;
    p->v_data = random_one_in(rng, 2) ? random_below(rng, DATA_KINDS) : DATA_NORMAL;
    p->q_data = random_one_in(rng, 3) ? random_below(rng, DATA_KINDS) : DATA_NORMAL;
    p->in_dtype = 1u + random_below(rng, 3);
    p->out_dtype = 1u + random_below(rng, 3);
    p->in_stride = random_below(rng, STRIDE_KINDS);
    p->out_stride = random_below(rng, STRIDE_KINDS);
    p->q_format = random_below(rng, 3);
    p->sm_scale = random_one_in(rng, 3) ? (float)PICK(rng, 1, 2, 10) * 0.125f : 0.0f;
}

static void random_masks(uint64_t *rng, problem *p)
{
    p->flags = random_below(rng, NBL_ATTEND_FLAGS_ALL + 1u) & random_below(rng, NBL_ATTEND_FLAGS_ALL + 1u);
    if (random_one_in(rng, 2))
        p->flags |= NBL_ATTEND_CAUSAL;
    p->tree = random_one_in(rng, 6) ? TREE_RANDOM : TREE_NONE;
    if (p->tree != TREE_NONE)
        p->flags &= ~(NBL_ATTEND_WINDOW_LEFT | NBL_ATTEND_WINDOW_RIGHT);
    p->window_left = (p->flags & NBL_ATTEND_WINDOW_LEFT) != 0 ? PICK(rng, 0, 1, 31, 128, 700, UINT32_MAX) : 0;
    p->window_right = (p->flags & NBL_ATTEND_WINDOW_RIGHT) != 0 ? PICK(rng, 0, 1, 31, 128, UINT32_MAX) : 0;
    p->alibi = p->tree == TREE_NONE && random_one_in(rng, 5);
    p->sinks = random_one_in(rng, 3);
    bool mean = (p->shape.centering & NBL_CENTERING_MEAN) != 0;
    p->soft_cap = !mean && random_one_in(rng, 4) ? (float)PICK(rng, 5, 30, 50) : 0.0f;
    if (random_one_in(rng, 5)) {
        p->range_begin = random_below(rng, 2) * NBL_CHUNK_TOKENS;
        p->range_end = p->range_begin + (1u + random_below(rng, 2)) * NBL_CHUNK_TOKENS;
    }
    p->want_state = random_one_in(rng, 3);
    p->extra_states = random_below(rng, 2);
    p->want_lse = !random_one_in(rng, 5);
    p->want_o = !(p->want_state || p->want_lse) || !random_one_in(rng, 5);
}

problem problem_random(uint64_t seed)
{
    uint64_t rng = seed;
    problem p = problem_default(seed);
    random_shape(&rng, &p);
    random_pool(&rng, &p);
    random_lengths(&rng, &p);
    random_values(&rng, &p);
    random_masks(&rng, &p);
    return p;
}
