/* SPDX-License-Identifier: Apache-2.0 */
/** @file differential.c  Random problems: append, attend, merge, gather, copy_pages, transcode on both sides. */
#include "differential.h"

#include "world.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH_MAX 5u
#define REGIONS_MAX 3u
#define ELEMENTS_MAX (3u << 20) /* of K or V in a case */
#define COUNT(list) ((uint32_t)(sizeof(list) / sizeof((list)[0])))

static const uint32_t dims[] = {16, 24, 64, 64, 72, 80, 96, 128, 128, 128, 128, 192, 256, 512};
static const uint32_t page_sizes[] = {1, 3, 5, 8, 16, 16, 30, 32, 33, 64, 64, 128, 128, 256};
static const uint32_t groups[] = {1, 2, 3, 4, 4, 5, 7, 8, 8, 16};
static const uint32_t formats[] = {NBL_INT8, NBL_MXFP4, NBL_INT4P, NBL_MXFP4_16}; /* the last is not for is_decode */
static const uint32_t float_formats[] = {NBL_FORMAT_BF16, NBL_FP8_E4M3, NBL_NVFP4,
                                         NBL_FORMAT_BF16, NBL_INT8,     NBL_INT4P};
static const uint32_t fp4_formats[] = {NBL_NVFP4, NBL_NVFP4, NBL_MXFP4, NBL_MXFP4_16}; /* of K, for NBL_Q_FP4 */
static const uint32_t dtypes[] = {NBL_F32, NBL_F16, NBL_BF16, NBL_BF16};

/* A problem and its arrays. */
typedef struct trial {
    world *w;
    nbl_kv_shape shape;
    uint32_t layer;
    uint32_t region_count;
    uint32_t pages; /* per region */
    uint32_t k_format[REGIONS_MAX];
    uint32_t v_format[REGIONS_MAX];
    uint32_t batch;
    uint32_t kv_len[BATCH_MAX];
    uint32_t q_len[BATCH_MAX];
    uint32_t kv_len_max;
    uint32_t q_len_max;
    uint32_t tokens;
    uint32_t q_tokens;
    uint32_t q_heads;
    uint32_t in_dtype;
    uint32_t out_dtype;
    uint32_t states; /* chunks asked for, 0: none */
    bool is_fp4;     /* for the Blackwell core: K of one 4-bit float format, V fp8 */
    bool is_decode;  /* shaped for the fast decode kernels, which take only some shapes */
    bool is_prefill; /* the same for the prefill kernels */
    bool is_append;  /* for the append kernels of recipes: pages of `family` and of int8 */
    uint32_t family;
    array *codes[REGIONS_MAX], *scales[REGIONS_MAX], *head_scales[2];
    array *slots, *table, *kv_indptr, *q_indptr, *kv_lens, *center_codes, *center_exponents, *center_shifts, *stats;
    array *k, *v, *q, *o, *lse, *state_head, *state_o;
    nbl_region regions[SIDES][REGIONS_MAX];
    nbl_pool pool[SIDES];
    char text[512];
} trial;

static uint32_t element_bytes(uint32_t dtype)
{
    return dtype == NBL_F32 ? 4u : 2u;
}

/* ------------------------------------------------------------------------------------------------ random shapes */

static uint32_t random_hadamard(world *w, uint32_t dim)
{
    uint32_t n = 8u << world_below(w, 6);
    return world_below(w, 3) == 0 || dim % n != 0 || n > NBL_HADAMARD_MAX ? 0u : n;
}

static uint32_t random_length(world *w, uint32_t most)
{
    static const uint32_t edges[] = {1, 31, 32, 33, 127, 128, 129, 1023, 1024, 1025, 2048, 2100};
    uint32_t n = world_below(w, 3) == 0 ? world_choice(w, edges, COUNT(edges))
                                        : 1u + world_below(w, 1u << (4u + world_below(w, 9)));
    return n < most ? n : most;
}

static void random_shape(trial *t)
{
    world *w = t->w;
    t->shape = (nbl_kv_shape)NBL_INIT(nbl_kv_shape);
    t->shape.layers = 1u + world_below(w, 2);
    t->shape.kv_heads = 1u + world_below(w, 4);
    t->shape.k_dim = world_below(w, 12) == 0 ? 576u : world_choice(w, dims, COUNT(dims));
    t->shape.v_dim = world_below(w, 3) == 0           ? world_choice(w, dims, COUNT(dims))
                     : t->shape.k_dim > NBL_V_DIM_MAX ? NBL_V_DIM_MAX
                                                      : t->shape.k_dim;
    t->shape.page_tokens = world_choice(w, page_sizes, COUNT(page_sizes));
    t->shape.k_hadamard = random_hadamard(w, t->shape.k_dim);
    t->shape.v_hadamard = random_hadamard(w, t->shape.v_dim);
    t->shape.k_scale_rule = world_below(w, 6);
    t->shape.v_scale_rule = world_below(w, 6);
    t->shape.centering = world_below(w, NBL_CENTERING_ALL + 1u);
    t->layer = world_below(w, t->shape.layers);
    t->q_heads = t->shape.kv_heads * world_choice(w, groups, COUNT(groups));
    t->in_dtype = world_choice(w, dtypes, COUNT(dtypes));
    t->out_dtype = world_choice(w, dtypes, COUNT(dtypes));
}

/* Few rows per kv head, pages of whole 32-token groups, common head dims. */
static void narrow_to_decode(trial *t)
{
    static const uint32_t decode_dims[] = {64, 128, 128, 128, 256};
    static const uint32_t decode_pages[] = {32, 64, 64, 96, 128, 256};
    static const uint32_t decode_groups[] = {1, 2, 3, 4, 4, 5, 7, 8, 8};
    world *w = t->w;
    t->is_decode = true;
    t->shape.k_dim = t->shape.v_dim = world_choice(w, decode_dims, COUNT(decode_dims));
    t->shape.page_tokens = world_choice(w, decode_pages, COUNT(decode_pages));
    t->shape.k_hadamard = random_hadamard(w, t->shape.k_dim);
    t->shape.v_hadamard = random_hadamard(w, t->shape.v_dim);
    t->q_heads = t->shape.kv_heads * world_choice(w, decode_groups, COUNT(decode_groups));
}

/* Many rows, head dims up to 128. */
static void narrow_to_prefill(trial *t)
{
    static const uint32_t prefill_dims[] = {24, 64, 64, 80, 96, 128, 128, 128};
    world *w = t->w;
    t->is_prefill = true;
    t->shape.k_dim = world_choice(w, prefill_dims, COUNT(prefill_dims));
    t->shape.v_dim = world_below(w, 3) == 0 ? world_choice(w, prefill_dims, COUNT(prefill_dims)) : t->shape.k_dim;
    t->shape.k_hadamard = random_hadamard(w, t->shape.k_dim);
    t->shape.v_hadamard = random_hadamard(w, t->shape.v_dim);
    if (world_below(w, 3) == 0) { /* rows of queries and output that have code of their own */
        t->shape.k_dim = t->shape.v_dim = 128;
        t->shape.k_hadamard = world_below(w, 2) == 0 ? 32u : 128u;
        t->shape.v_hadamard = world_below(w, 3) == 0 ? 32u : 128u;
        t->in_dtype = NBL_BF16;
    }
}

/* Vectors as recipes have them at head dimension 128. */
static void narrow_to_append(trial *t)
{
    static const uint32_t families[] = {NBL_INT8, NBL_INT4P, NBL_INT4P, NBL_MXFP4, NBL_MXFP4};
    world *w = t->w;
    t->is_append = true;
    t->family = world_choice(w, families, COUNT(families));
    t->shape.k_dim = t->shape.v_dim = 128u;
    t->shape.k_hadamard = t->family == NBL_MXFP4 ? 32u : 128u;
    t->shape.v_hadamard = t->family == NBL_MXFP4 && world_below(w, 2) == 0 ? 32u : 128u;
    t->in_dtype = NBL_BF16;
}

/* Bounds of a call may be generous. With these a prefill has work for every processor without a split, or has to take
 * its sequences in several goes. */
static void widen_prefill_bounds(trial *t)
{
    t->q_len_max += world_below(t->w, 2) * 20000u;
    if (world_below(t->w, 8) == 0) {
        t->kv_len_max += 300000u;
        t->states = 0;
    }
}

/* With these the kernels for long caches are chosen, whose workspace has room for far more chunks than there are. */
static void widen_decode_bounds(trial *t)
{
    if (world_below(t->w, 3) == 0) {
        t->kv_len_max += 300000u;
        t->states = 0;
    }
}

static void random_lengths(trial *t)
{
    world *w = t->w;
    uint32_t most = ELEMENTS_MAX / (t->shape.kv_heads * t->shape.k_dim) / BATCH_MAX;
    t->batch = 1u + world_below(w, BATCH_MAX);
    for (uint32_t b = 0; b < t->batch; ++b) {
        t->kv_len[b] = random_length(w, most);
        uint32_t decode = 1u + world_below(w, 4);
        t->q_len[b] = world_below(w, 8) == 0 ? 0u : world_below(w, 3) != 0 ? decode : random_length(w, 200);
        if (t->is_decode) {
            uint32_t rows = 8u * t->shape.kv_heads / t->q_heads;
            t->q_len[b] = t->q_len[b] % (rows + 1u);
        } else if (t->is_prefill && t->q_len[b] > 0) {
            t->q_len[b] = random_length(w, 700);
        }
        t->kv_len_max = t->kv_len[b] > t->kv_len_max ? t->kv_len[b] : t->kv_len_max;
        t->q_len_max = t->q_len[b] > t->q_len_max ? t->q_len[b] : t->q_len_max;
        t->tokens += t->kv_len[b];
        t->q_tokens += t->q_len[b];
    }
    t->kv_len_max += world_below(w, 2) * world_below(w, 3000);
    t->q_len_max += t->is_decode ? 0u : world_below(w, 2) * 3u;
    t->states = world_below(w, 3) == 0 ? (t->kv_len_max + NBL_CHUNK_TOKENS - 1u) / NBL_CHUNK_TOKENS : 0u;
    if (t->is_prefill) {
        widen_prefill_bounds(t);
    } else if (t->is_decode) {
        widen_decode_bounds(t);
    }
}

static void describe(trial *t, uint32_t number)
{
    const nbl_kv_shape *s = &t->shape;
    snprintf(
        t->text, sizeof t->text,
        "case %u: Hk %u Hq %u Dk %u Dv %u page %u hadamard %u %u centering %u regions %u formats %u %u rules %u %u "
        "batch %u kv_len %u.. q_len %u.. tokens %u q_tokens %u bounds %u %u dtypes %u %u states %u",
        number, s->kv_heads, t->q_heads, s->k_dim, s->v_dim, s->page_tokens, s->k_hadamard, s->v_hadamard, s->centering,
        t->region_count, t->k_format[0], t->v_format[0], s->k_scale_rule, s->v_scale_rule, t->batch, t->kv_len[0],
        t->q_len[0], t->tokens, t->q_tokens, t->q_len_max, t->kv_len_max, t->in_dtype, t->out_dtype, t->states);
    t->w->case_text = t->text;
}

/* ------------------------------------------------------------------------------------------------ arrays */

/* A format of one side: `fixed`, or else of the integer core, or of a pool of the float core. */
static uint32_t random_format(const trial *t, bool is_float, uint32_t fixed)
{
    if (fixed != NBL_FORMAT_NONE) {
        return fixed;
    }
    return is_float ? world_choice(t->w, float_formats, COUNT(float_formats))
                    : world_choice(t->w, formats, COUNT(formats) - t->is_decode);
}

/* Of K or V with a rotation, where is_append: E2M1 codes are of blocks rotated by themselves. */
static uint32_t append_format(trial *t, uint32_t hadamard)
{
    bool may_be_4bit = t->family != NBL_MXFP4 || hadamard == 32u;
    return may_be_4bit && world_below(t->w, 4) != 0 ? t->family : NBL_INT8;
}

static bool pool_is_float(const trial *t)
{
    bool any = false;
    for (uint32_t r = 0; r < t->region_count; ++r) {
        any = any || t->k_format[r] >= NBL_FORMAT_BF16 || t->v_format[r] >= NBL_FORMAT_BF16;
    }
    return any;
}

/* NIBBLE_TEST_FORMATS: "float" makes every pool one of the float core, also those shaped for decode and prefill; "fp4"
 * makes every case one of the Blackwell core. */
static bool only(const char *formats_named)
{
    const char *text = getenv("NIBBLE_TEST_FORMATS");
    return text != NULL && strcmp(text, formats_named) == 0;
}

/* NIBBLE_TEST_OPS=pages: what writes and reads pages alone, without attend: many more cases in the same time. */
static bool only_pages(void)
{
    const char *text = getenv("NIBBLE_TEST_OPS");
    return text != NULL && strcmp(text, "pages") == 0;
}

/* Formats that all regions of a float pool have, of K and V; NBL_FORMAT_NONE where they may differ. fp16 is in all
 * regions or in none; a third of the pools has bf16 or fp16 alone, which fast kernels take. */
static void fix_formats(const trial *t, uint32_t fixed[2])
{
    if (t->is_fp4) {
        fixed[0] = world_choice(t->w, fp4_formats, COUNT(fp4_formats));
        fixed[1] = NBL_FP8_E4M3;
        return;
    }
    const uint32_t half = world_below(t->w, 3) == 0 ? NBL_FORMAT_FP16 : NBL_FORMAT_BF16;
    const bool is_halves = world_below(t->w, 3) == 0;
    for (uint32_t k = 0; k < 2u; ++k) {
        fixed[k] = is_halves ? half : world_below(t->w, 4) == 0 ? NBL_FORMAT_FP16 : NBL_FORMAT_NONE;
    }
}

/* Formats that the decode kernel has instances of its own for, if all pages have them: in half of its cases. */
static bool fix_usual(const trial *t, uint32_t fixed[2])
{
    static const uint32_t usual[][2] = {{NBL_INT4P, NBL_INT4P}, {NBL_INT4P, NBL_INT4P}, {NBL_MXFP4, NBL_MXFP4},
                                        {NBL_INT4P, NBL_INT8},  {NBL_MXFP4, NBL_INT8},  {NBL_INT8, NBL_INT8}};
    if (!t->is_decode || world_below(t->w, 2) != 0) {
        return false;
    }
    const uint32_t which = world_below(t->w, COUNT(usual));
    fixed[0] = usual[which][0];
    fixed[1] = usual[which][1];
    return true;
}

static void make_pool(trial *t)
{
    uint32_t pages_needed = 0;
    bool is_any = !t->is_decode && !t->is_prefill && !t->is_append;
    bool is_float = only("float") || (is_any && world_below(t->w, 3) == 0);
    t->is_fp4 = (is_float && !only("float") && world_below(t->w, 4) == 0) || only("fp4");
    is_float = is_float || t->is_fp4;
    uint32_t fixed[2] = {NBL_FORMAT_NONE, NBL_FORMAT_NONE};
    if (is_float) {
        fix_formats(t, fixed);
    }
    const bool is_usual = !is_float && fix_usual(t, fixed);
    for (uint32_t b = 0; b < t->batch; ++b) {
        pages_needed += (t->kv_len[b] + t->shape.page_tokens - 1u) / t->shape.page_tokens;
    }
    t->region_count = is_usual ? 1u : 1u + world_below(t->w, REGIONS_MAX);
    t->pages = (pages_needed + t->region_count - 1u) / t->region_count + 2u;
    for (uint32_t r = 0; r < t->region_count; ++r) {
        nbl_page_layout layout = NBL_INIT(nbl_page_layout);
        nbl_error err = NBL_INIT(nbl_error);
        bool is_append = t->is_append && !is_float;
        t->k_format[r] = is_append ? append_format(t, t->shape.k_hadamard) : random_format(t, is_float, fixed[0]);
        t->v_format[r] = is_append ? append_format(t, t->shape.v_hadamard) : random_format(t, is_float, fixed[1]);
        world_expect(t->w, &t->w->sides[0],
                     t->w->api->kv_layout(&t->shape, t->k_format[r], t->v_format[r], &layout, &err), &err, "kv_layout");
        t->codes[r] = world_array(t->w, layout.code_page_bytes * t->pages * t->shape.layers);
        t->scales[r] = world_array(t->w, layout.scale_page_bytes * t->pages * t->shape.layers + 1u); /* may be none */
        for (uint32_t i = 0; i < SIDES; ++i) {
            t->regions[i][r] = (nbl_region){.k_format = t->k_format[r],
                                            .v_format = t->v_format[r],
                                            .first_page = r * t->pages,
                                            .page_count = t->pages,
                                            .codes = t->codes[r]->memory[i],
                                            .scales = t->scales[r]->memory[i],
                                            .code_page_stride = layout.code_page_bytes,
                                            .code_layer_stride = layout.code_page_bytes * t->pages,
                                            .scale_page_stride = layout.scale_page_bytes,
                                            .scale_layer_stride = layout.scale_page_bytes * t->pages};
        }
        world_send(t->w, t->codes[r]);
        world_send(t->w, t->scales[r]);
    }
    bool has_scales = is_float && world_below(t->w, 2) == 0 && pool_is_float(t);
    for (uint32_t k = 0; has_scales && k < 2u; ++k) {
        uint32_t count = t->shape.layers * t->shape.kv_heads;
        t->head_scales[k] = world_array(t->w, count * sizeof(float));
        for (uint32_t i = 0; i < count; ++i) {
            ((float *)(void *)t->head_scales[k]->host)[i] =
                ldexpf(1.0f + (float)world_below(t->w, 64) / 64.0f, (int)world_below(t->w, 9) - 4);
        }
        world_send(t->w, t->head_scales[k]);
    }
    for (uint32_t i = 0; i < SIDES; ++i) {
        t->pool[i] = (nbl_pool)NBL_INIT(nbl_pool);
        t->pool[i].k_scale = has_scales ? (const float *)(void *)t->head_scales[0]->memory[i] : NULL;
        t->pool[i].v_scale = has_scales ? (const float *)(void *)t->head_scales[1]->memory[i] : NULL;
        t->pool[i].shape = &t->shape;
        t->pool[i].regions = t->regions[i];
        t->pool[i].region_count = t->region_count;
    }
}

/* Pages in shuffled order; slots of every token. */
static void make_tables(trial *t)
{
    uint32_t pages = t->pages * t->region_count;
    uint32_t stride = (t->kv_len_max + t->shape.page_tokens - 1u) / t->shape.page_tokens;
    array *order = world_array(t->w, (uint64_t)pages * sizeof(int32_t));
    int32_t *ids = (int32_t *)(void *)order->host;
    for (uint32_t i = 0; i < pages; ++i) {
        uint32_t j = world_below(t->w, i + 1u);
        ids[i] = ids[j];
        ids[j] = (int32_t)i;
    }
    t->table = world_array(t->w, (uint64_t)stride * t->batch * sizeof(int32_t));
    t->slots = world_array(t->w, (uint64_t)t->tokens * sizeof(int64_t));
    int32_t *table = (int32_t *)(void *)t->table->host;
    int64_t *slots = (int64_t *)(void *)t->slots->host;
    uint32_t next = 0, token = 0;
    for (uint32_t b = 0; b < t->batch; ++b) {
        for (uint32_t i = 0; i < t->kv_len[b]; ++i) {
            uint32_t place = i % t->shape.page_tokens;
            next += place == 0;
            int64_t page = ids[next - 1u];
            table[(uint64_t)b * stride + i / t->shape.page_tokens] = (int32_t)page;
            slots[token++] = page * t->shape.page_tokens + place;
        }
    }
    world_send(t->w, t->table);
    world_send(t->w, t->slots);
}

static void make_lengths(trial *t)
{
    t->kv_indptr = world_array(t->w, (t->batch + 1u) * sizeof(int32_t));
    t->q_indptr = world_array(t->w, (t->batch + 1u) * sizeof(int32_t));
    t->kv_lens = world_array(t->w, t->batch * sizeof(int32_t));
    int32_t *kv = (int32_t *)(void *)t->kv_indptr->host;
    int32_t *q = (int32_t *)(void *)t->q_indptr->host;
    kv[0] = q[0] = 0;
    for (uint32_t b = 0; b < t->batch; ++b) {
        kv[b + 1u] = kv[b] + (int32_t)t->kv_len[b];
        q[b + 1u] = q[b] + (int32_t)t->q_len[b];
        ((int32_t *)(void *)t->kv_lens->host)[b] = (int32_t)t->kv_len[b];
    }
    world_send(t->w, t->kv_indptr);
    world_send(t->w, t->q_indptr);
    world_send(t->w, t->kv_lens);
}

static uint16_t half_bits(float x, uint32_t dtype)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (dtype == NBL_BF16) {
        return (uint16_t)(bits >> 16);
    }
    int32_t e = (int32_t)(bits >> 23 & 0xffu) - 112; /* cut to fp16; tiny values become 0, large ones infinite */
    uint32_t sign = bits >> 16 & 0x8000u;
    return (uint16_t)(e <= 0 ? sign : e >= 31 ? sign | 0x7c00u : sign | (uint32_t)e << 10 | (bits >> 13 & 0x3ffu));
}

/* Vectors of normal numbers with a power of two of their own, some outliers; a tenth of integers, which are on ties of
 * the quantizers; rarely zeros or random bits. */
static array *make_vectors(trial *t, uint64_t vectors, uint32_t dim, uint32_t dtype)
{
    world *w = t->w;
    array *a = world_array(w, vectors * dim * element_bytes(dtype));
    uint32_t wild = world_below(w, 6); /* 0: keep random bits in some vectors */
    for (uint64_t i = 0; i < vectors; ++i) {
        float scale = ldexpf(1.0f, (int)world_below(w, 9) - 4);
        uint32_t kind = world_below(w, 64);
        if (kind == 0 && wild == 0) {
            continue;
        }
        for (uint32_t d = 0; d < dim; ++d) {
            float x = kind == 1  ? 0.0f
                      : kind < 8 ? ((float)world_below(w, 65) - 32.0f) * scale
                                 : world_normal(w) * scale * (d % 37u == 5u ? 20.0f : 1.0f);
            uint8_t *at = a->host + (i * dim + d) * element_bytes(dtype);
            uint16_t half = half_bits(x, dtype);
            memcpy(at, dtype == NBL_F32 ? (const void *)&x : (const void *)&half, element_bytes(dtype));
        }
    }
    world_send(w, a);
    return a;
}

static void make_arrays(trial *t)
{
    const nbl_kv_shape *s = &t->shape;
    uint64_t rows = (uint64_t)t->q_tokens * t->q_heads;
    make_lengths(t);
    make_tables(t);
    t->k = make_vectors(t, (uint64_t)t->tokens * s->kv_heads, s->k_dim, t->in_dtype);
    t->v = make_vectors(t, (uint64_t)t->tokens * s->kv_heads, s->v_dim, t->in_dtype);
    t->q = make_vectors(t, rows, s->k_dim, t->in_dtype);
    t->center_codes = world_array(t->w, (uint64_t)t->batch * s->kv_heads * s->k_dim);
    t->center_exponents = world_array(t->w, (uint64_t)t->batch * s->kv_heads);
    t->center_shifts = world_array(t->w, (uint64_t)t->batch * s->kv_heads * s->k_dim);
    t->stats = world_array(t->w, sizeof(nbl_quant_stats));
    memset(t->stats->host, 0, sizeof(nbl_quant_stats));
    t->o = world_array(t->w, rows * s->v_dim * element_bytes(t->out_dtype));
    t->lse = world_array(t->w, rows * sizeof(float));
    t->state_head = world_array(t->w, t->states * rows * 4u * sizeof(float));
    t->state_o = world_array(t->w, t->states * rows * s->v_dim * sizeof(float));
    array *sent[] = {t->center_codes, t->center_exponents, t->center_shifts, t->stats, t->o,
                     t->lse,          t->state_head,       t->state_o};
    for (uint32_t i = 0; i < COUNT(sent); ++i) {
        world_send(t->w, sent[i]);
    }
}

static nbl_tensor tensor_of(const array *a, uint32_t i, uint32_t dtype, uint32_t rank, const uint64_t *shape)
{
    nbl_tensor tensor = {.data = a->memory[i], .dtype = dtype, .rank = rank};
    for (uint32_t k = 0; k < rank; ++k) {
        tensor.shape[k] = shape[k];
    }
    return tensor;
}

static nbl_centers centers_of(const trial *t, uint32_t i)
{
    nbl_centers centers = {.row_count = t->batch};
    if (t->shape.centering & NBL_CENTERING_MEAN) {
        centers.codes = (int8_t *)t->center_codes->memory[i];
        centers.exponents = t->center_exponents->memory[i];
    }
    if (t->shape.centering & NBL_CENTERING_SHIFT) {
        centers.shifts = t->center_shifts->memory[i];
    }
    return centers;
}

static const int32_t *ints_of(const array *a, uint32_t i)
{
    return (const int32_t *)(const void *)a->memory[i];
}

/* ------------------------------------------------------------------------------------------------ operations */

static void compare_pools(trial *t, const char *what)
{
    char name[64];
    for (uint32_t r = 0; r < t->region_count; ++r) {
        snprintf(name, sizeof name, "codes after %s", what);
        world_compare(t->w, t->codes[r], name);
        snprintf(name, sizeof name, "scales after %s", what);
        world_compare(t->w, t->scales[r], name);
    }
}

static void do_append(trial *t)
{
    for (uint32_t i = 0; i < SIDES; ++i) {
        nbl_error err = NBL_INIT(nbl_error);
        nbl_append_args a = NBL_INIT(nbl_append_args);
        a.pool = &t->pool[i];
        a.layer = t->layer;
        a.batch = t->batch;
        a.k = tensor_of(t->k, i, t->in_dtype, 3, (uint64_t[]){t->tokens, t->shape.kv_heads, t->shape.k_dim});
        a.v = tensor_of(t->v, i, t->in_dtype, 3, (uint64_t[]){t->tokens, t->shape.kv_heads, t->shape.v_dim});
        a.slots = (const int64_t *)(const void *)t->slots->memory[i];
        a.seq_indptr = ints_of(t->kv_indptr, i);
        a.centers = centers_of(t, i);
        a.center_mode = NBL_CENTER_COMPUTE;
        a.stats = (nbl_quant_stats *)(void *)t->stats->memory[i];
        a.stream = t->w->sides[i].stream;
        world_expect(t->w, &t->w->sides[i], t->w->api->append(t->w->sides[i].device, &a, &err), &err, "append");
    }
    compare_pools(t, "append");
    world_compare(t->w, t->stats, "stats");
    world_compare(t->w, t->center_codes, "center codes");
    world_compare(t->w, t->center_exponents, "center exponents");
    world_compare(t->w, t->center_shifts, "center shifts");
}

/* What a row sees, the same for both sides; the arrays are made once. */
static nbl_attend_args random_mask(trial *t, array *heads[2], array **tree)
{
    world *w = t->w;
    nbl_attend_args a = NBL_INIT(nbl_attend_args);
    a.flags = world_below(w, 2) ? NBL_ATTEND_CAUSAL : 0u;
    a.flags |= world_below(w, 2) ? NBL_ATTEND_LSE_BASE2 : 0u;
    if (world_below(w, 3) == 0) {
        a.flags |= NBL_ATTEND_WINDOW_LEFT;
        a.window_left = world_below(w, 600);
    }
    if (world_below(w, 5) == 0) {
        a.flags |= NBL_ATTEND_WINDOW_RIGHT;
        a.window_right = world_below(w, 100);
    }
    a.sm_scale = world_below(w, 3) == 0 ? 0.0f : 0.02f + 0.01f * (float)world_below(w, 40);
    a.soft_cap =
        !t->is_decode && !t->is_prefill && (t->shape.centering & NBL_CENTERING_MEAN) == 0 && world_below(w, 4) == 0
            ? 5.0f + (float)world_below(w, 50)
            : 0.0f;
    if (world_below(w, 5) == 0) {
        a.range_begin = NBL_CHUNK_TOKENS * world_below(w, 2);
        a.range_end = a.range_begin + NBL_CHUNK_TOKENS * (1u + world_below(w, 2));
    }
    for (uint32_t k = 0; k < 2u; ++k) {
        heads[k] = NULL;
        if (world_below(w, 3) == 0 && !((t->is_decode || t->is_prefill) && k == 0)) {
            heads[k] = world_array(w, t->q_heads * sizeof(float));
            for (uint32_t h = 0; h < t->q_heads; ++h) {
                const float far = k == 1u && world_below(w, 4) == 0 ? 200.0f : 0.0f; /* O underflows to zeros */
                ((float *)(void *)heads[k]->host)[h] = world_normal(w) * (k == 0 ? 0.1f : 3.0f) + far;
            }
            world_send(w, heads[k]);
        }
    }
    *tree = NULL;
    if (world_below(w, 5) == 0 && !t->is_decode && !t->is_prefill && t->q_len_max > 0 && heads[0] == NULL &&
        (a.flags & (NBL_ATTEND_WINDOW_LEFT | NBL_ATTEND_WINDOW_RIGHT)) == 0) { /* slots of a tree are no positions */
        a.tree_mask_stride = (t->q_len_max + 31u) / 32u;
        *tree = world_array(w, (uint64_t)t->q_tokens * a.tree_mask_stride * sizeof(uint32_t));
        world_send(w, *tree);
    }
    return a;
}

static nbl_op_desc desc_of(const trial *t, const nbl_attend_args *a)
{
    nbl_op_desc d = NBL_INIT(nbl_op_desc);
    d.shape = &t->shape;
    d.op = NBL_OP_ATTEND;
    d.k_format = t->k_format[0];
    d.v_format = t->v_format[0];
    d.q_format = a->q_format;
    d.q_heads = t->q_heads;
    d.in_dtype = t->in_dtype;
    d.out_dtype = t->out_dtype;
    d.features = a->q_centers.data != NULL ? NBL_FEATURE_Q_CENTERS : 0u;
    d.batch_max = t->batch;
    d.q_tokens_max = t->q_tokens;
    d.q_len_max = t->q_len_max;
    d.kv_len_max = t->kv_len_max;
    return d;
}

static void attend_side(trial *t, nbl_attend_args a, uint32_t i)
{
    nbl_error err = NBL_INIT(nbl_error);
    const side *s = &t->w->sides[i];
    nbl_op_desc d = desc_of(t, &a);
    uint64_t rows[] = {t->q_tokens, t->q_heads, t->shape.v_dim};
    a.pool = &t->pool[i];
    a.layer = t->layer;
    a.q_heads = t->q_heads;
    a.batch = t->batch;
    a.q = tensor_of(t->q, i, t->in_dtype, 3, (uint64_t[]){t->q_tokens, t->q_heads, t->shape.k_dim});
    a.o = tensor_of(t->o, i, t->out_dtype, 3, rows);
    a.lse = tensor_of(t->lse, i, NBL_F32, 2, rows);
    if (t->states > 0) {
        a.state_head = tensor_of(t->state_head, i, NBL_F32, 4, (uint64_t[]){t->states, t->q_tokens, t->q_heads, 4});
        a.state_o =
            tensor_of(t->state_o, i, NBL_F32, 4, (uint64_t[]){t->states, t->q_tokens, t->q_heads, t->shape.v_dim});
    }
    a.q_indptr = ints_of(t->q_indptr, i);
    a.kv_len = ints_of(t->kv_lens, i);
    a.page_table = ints_of(t->table, i);
    a.page_table_stride = (t->kv_len_max + t->shape.page_tokens - 1u) / t->shape.page_tokens;
    a.q_len_max = t->q_len_max;
    a.kv_len_max = t->kv_len_max;
    a.centers = centers_of(t, i);
    a.stream = s->stream;
    world_expect(t->w, s, t->w->api->workspace_size(s->device, &d, &a.workspace_bytes, &err), &err, "workspace_size");
    if (a.workspace_bytes > 0) {
        world_expect(t->w, s, t->w->api->memory_alloc(s->device, a.workspace_bytes, &a.workspace, &err), &err,
                     "workspace");
    }
    world_expect(t->w, s, t->w->api->attend(s->device, &a, &err), &err, "attend");
    world_expect(t->w, s, t->w->api->check(s->device, s->stream, &err), &err, "check");
    world_expect(t->w, s, t->w->api->memory_free(s->device, a.workspace, &err), &err, "memory_free");
}

/* Merges the states of the last attend; the outputs go where those of attend are. */
static void do_merge(trial *t)
{
    for (uint32_t i = 0; i < SIDES; ++i) {
        nbl_error err = NBL_INIT(nbl_error);
        nbl_merge_args a = NBL_INIT(nbl_merge_args);
        uint64_t rows[] = {t->q_tokens, t->q_heads, t->shape.v_dim};
        a.count = t->states;
        a.v_hadamard = t->shape.v_hadamard;
        a.in_state_head = tensor_of(t->state_head, i, NBL_F32, 4, (uint64_t[]){t->states, t->q_tokens, t->q_heads, 4});
        a.in_state_o =
            tensor_of(t->state_o, i, NBL_F32, 4, (uint64_t[]){t->states, t->q_tokens, t->q_heads, t->shape.v_dim});
        a.o = tensor_of(t->o, i, t->out_dtype, 3, rows);
        a.lse = tensor_of(t->lse, i, NBL_F32, 2, rows);
        a.stream = t->w->sides[i].stream;
        world_expect(t->w, &t->w->sides[i], t->w->api->merge(t->w->sides[i].device, &a, &err), &err, "merge");
    }
    world_compare(t->w, t->o, "o of merge");
    world_compare(t->w, t->lse, "lse of merge");
}

static void do_attend(trial *t)
{
    array *heads[2], *tree;
    nbl_attend_args a = random_mask(t, heads, &tree);
    a.q_format = t->is_fp4 ? (uint32_t)NBL_Q_FP4 : 1u + world_below(t->w, 2);
    array *q_centers = NULL;
    if (t->is_fp4 && t->q_tokens > 0 && world_below(t->w, 2)) { /* without rows there is nothing to centre */
        q_centers = make_vectors(t, (uint64_t)t->batch * t->q_heads, t->shape.k_dim, t->in_dtype);
    }
    for (uint32_t i = 0; i < SIDES; ++i) {
        if (q_centers != NULL) {
            a.q_centers = tensor_of(q_centers, i, t->in_dtype, 3, (uint64_t[]){t->batch, t->q_heads, t->shape.k_dim});
        }
        a.alibi_slopes = heads[0] != NULL ? (const float *)(const void *)heads[0]->memory[i] : NULL;
        a.sinks = heads[1] != NULL ? (const float *)(const void *)heads[1]->memory[i] : NULL;
        a.tree_mask = tree != NULL ? (const uint32_t *)(const void *)tree->memory[i] : NULL;
        attend_side(t, a, i);
    }
    world_compare(t->w, t->o, "o");
    world_compare(t->w, t->lse, "lse");
    world_compare(t->w, t->state_head, "state_head");
    world_compare(t->w, t->state_o, "state_o");
    if (t->states > 0 && t->q_tokens > 0) {
        do_merge(t);
    }
}

static void do_gather(trial *t)
{
    uint32_t flags = world_below(t->w, 2) ? NBL_GATHER_STORED : 0u;
    for (uint32_t i = world_below(t->w, 9); i < t->tokens; i += 1u + world_below(t->w, 40)) {
        ((int64_t *)(void *)t->slots->host)[i] = -1; /* zeros */
    }
    world_send(t->w, t->slots);
    for (uint32_t i = 0; i < SIDES; ++i) {
        nbl_error err = NBL_INIT(nbl_error);
        nbl_gather_args a = NBL_INIT(nbl_gather_args);
        a.flags = flags;
        a.pool = &t->pool[i];
        a.layer = t->layer;
        a.batch = t->batch;
        a.slots = (const int64_t *)(const void *)t->slots->memory[i];
        a.k = tensor_of(t->k, i, t->in_dtype, 3, (uint64_t[]){t->tokens, t->shape.kv_heads, t->shape.k_dim});
        a.v = tensor_of(t->v, i, t->in_dtype, 3, (uint64_t[]){t->tokens, t->shape.kv_heads, t->shape.v_dim});
        a.seq_indptr = ints_of(t->kv_indptr, i);
        a.centers = centers_of(t, i);
        a.stream = t->w->sides[i].stream;
        world_expect(t->w, &t->w->sides[i], t->w->api->gather(t->w->sides[i].device, &a, &err), &err, "gather");
    }
    world_compare(t->w, t->k, "k of gather");
    world_compare(t->w, t->v, "v of gather");
}

/* Pages of the pool among themselves: the first pages of each region go to its last one, by a copy or a transcode. */
static void do_pages(trial *t)
{
    array *src = world_array(t->w, REGIONS_MAX * sizeof(int32_t));
    array *dst = world_array(t->w, REGIONS_MAX * sizeof(int32_t));
    array *counts = world_array(t->w, REGIONS_MAX * sizeof(int32_t));
    for (uint32_t r = 0; r < t->region_count; ++r) {
        ((int32_t *)(void *)src->host)[r] = ((const int32_t *)(const void *)t->table->host)[0];
        ((int32_t *)(void *)dst->host)[r] = (int32_t)((r + 1u) * t->pages - 1u);
        ((int32_t *)(void *)counts->host)[r] = (int32_t)world_below(t->w, t->shape.page_tokens + 1u);
        if (((int32_t *)(void *)src->host)[r] == ((int32_t *)(void *)dst->host)[r]) {
            return; /* the first sequence begins in a last page */
        }
    }
    for (uint32_t r = 0; r < t->region_count; ++r) {
        for (uint32_t k = 0; k < t->region_count; ++k) {
            if (((int32_t *)(void *)src->host)[r] == ((int32_t *)(void *)dst->host)[k]) {
                return;
            }
        }
    }
    world_send(t->w, src);
    world_send(t->w, dst);
    world_send(t->w, counts);
    uint32_t home = (uint32_t)((int32_t *)(void *)src->host)[0] / t->pages;
    for (uint32_t i = 0; i < SIDES; ++i) {
        nbl_error err = NBL_INIT(nbl_error);
        const side *s = &t->w->sides[i];
        nbl_transcode_args a = NBL_INIT(nbl_transcode_args);
        nbl_copy_pages_args c = NBL_INIT(nbl_copy_pages_args);
        a.src_pool = a.dst_pool = c.src_pool = c.dst_pool = &t->pool[i];
        a.src_pages = c.src_pages = ints_of(src, i);
        a.dst_pages = ints_of(dst, i);
        c.dst_pages = ints_of(dst, i) + home;
        a.token_counts = ints_of(counts, i);
        a.count = t->region_count;
        c.count = 1;
        a.stats = (nbl_quant_stats *)(void *)t->stats->memory[i];
        a.stream = c.stream = s->stream;
        world_expect(t->w, s, t->w->api->transcode(s->device, &a, &err), &err, "transcode");
        world_expect(t->w, s, t->w->api->copy_pages(s->device, &c, &err), &err, "copy_pages");
    }
    compare_pools(t, "transcode and copy_pages");
    world_compare(t->w, t->stats, "stats of transcode");
}

/* ------------------------------------------------------------------------------------------------ run */

/* Half of the cases are shaped for decode, a quarter for prefill, an eighth for append; with NIBBLE_TEST_SHAPES=decode,
 * prefill or append all are. */
static void narrow(trial *t, uint32_t number)
{
    const char *only = getenv("NIBBLE_TEST_SHAPES");
    bool decode = number % 2u != 0, prefill = !decode && number % 4u != 0, append = number % 8u == 4u;
    if (only != NULL && only[0] != '\0') {
        decode = strcmp(only, "decode") == 0;
        prefill = strcmp(only, "prefill") == 0;
        append = strcmp(only, "append") == 0;
    }
    if (decode) {
        narrow_to_decode(t);
    } else if (prefill) {
        narrow_to_prefill(t);
    } else if (append) {
        narrow_to_append(t);
    }
}

static void run_case(world *w, uint64_t seed, uint32_t number)
{
    trial t = {.w = w};
    w->random = seed * 0x9E3779B97F4A7C15u + number;
    random_shape(&t);
    narrow(&t, number);
    random_lengths(&t);
    make_pool(&t);
    describe(&t, number);
    make_arrays(&t);
    do_append(&t);
    for (uint32_t i = 0; i < 2u && !only_pages(); ++i) {
        do_attend(&t);
    }
    do_gather(&t);
    do_pages(&t);
    world_clear(w);
    w->case_text = NULL;
}

differential_result differential_run(const char *first, const char *second, uint64_t seed, uint32_t cases, int64_t only)
{
    differential_result result = {0};
    static world w;
    if (world_open(&w, first, second) != 0) {
        memcpy(result.text, w.text, sizeof result.text);
        return result;
    }
    for (uint32_t i = 0; i < cases; ++i) {
        if (only < 0 || (uint32_t)only == i) {
            uint32_t before = w.failures;
            run_case(&w, seed, i);
            result.cases++;
            result.failures += w.failures > before;
        }
    }
    world_close(&w);
    memcpy(result.text, w.text, sizeof result.text);
    return result;
}
