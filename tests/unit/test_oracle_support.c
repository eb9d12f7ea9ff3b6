/* SPDX-License-Identifier: Apache-2.0 */
#include "test_oracle_support.h"

#include <stdio.h>

uint64_t support_random(uint64_t *seed)
{
    uint64_t z = (*seed += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

double support_uniform(uint64_t *seed)
{
    return (double)(support_random(seed) >> 11) * 0x1p-53;
}

float support_normal(uint64_t *seed)
{
    double sum = -6.0;
    for (int i = 0; i < 12; i++) {
        sum += support_uniform(seed);
    }
    return (float)sum;
}

void *support_alloc(uint64_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 127u) / 64u * 64u);
    cr_assert_not_null(memory, "no memory for %llu bytes", (unsigned long long)bytes);
    memset(memory, 0, bytes);
    return memory;
}

golden_row *support_golden(const char *name, uint32_t *count)
{
    golden_row *rows = support_alloc(sizeof(golden_row) * 8192u);
    char path[512];
    char line[256];
    FILE *file;

    snprintf(path, sizeof path, "%s/%s", NBL_VECTORS_DIR, name);
    file = fopen(path, "r");
    cr_assert_not_null(file, "golden file %s is missing", path);
    *count = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        if (line[0] != '#') {
            golden_row *row = &rows[(*count)++];
            cr_assert(*count <= 8192u && sscanf(line, "%x %x", &row->input, &row->output) == 2, "%s: bad line %s", path,
                      line);
        }
    }
    fclose(file);
    cr_assert_gt(*count, 0u, "%s holds no rows", path);
    return rows;
}

nbl_tensor support_tensor(void *data, uint32_t dtype, uint32_t rank, const uint64_t *shape)
{
    nbl_tensor tensor = {.data = data, .dtype = dtype, .rank = rank};
    memcpy(tensor.shape, shape, rank * sizeof *shape);
    return tensor;
}

void *cache_alloc(cache *c, uint64_t bytes)
{
    cr_assert_lt(c->memory_count, 24u, "too many blocks in one cache");
    return c->memory[c->memory_count++] = support_alloc(bytes);
}

void cache_free(cache *c)
{
    for (uint32_t i = 0; i < c->memory_count; i++) {
        free(c->memory[i]);
    }
}

static void init_shape(cache *c, const cache_params *p)
{
    c->shape = (nbl_kv_shape)NBL_INIT(nbl_kv_shape);
    c->shape.layers = 1;
    c->shape.kv_heads = p->kv_heads;
    c->shape.k_dim = p->k_dim;
    c->shape.v_dim = p->v_dim;
    c->shape.page_tokens = p->page_tokens;
    c->shape.k_hadamard = p->k_hadamard;
    c->shape.v_hadamard = p->v_hadamard;
    c->shape.centering = p->centering;
}

static void init_pool(cache *c, const cache_params *p, uint32_t pages)
{
    for (uint32_t r = 0; r < 2; r++) {
        nbl_region *region = &c->regions[r];
        nbl_page_layout layout;
        oracle_page_layout(&c->shape, p->k_formats[r], p->v_formats[r], &layout);
        region->k_format = p->k_formats[r];
        region->v_format = p->v_formats[r];
        region->first_page = r * pages;
        region->page_count = pages;
        region->code_page_stride = layout.code_page_bytes + 16u;
        region->scale_page_stride = layout.scale_page_bytes + 32u;
        region->codes = cache_alloc(c, pages * region->code_page_stride);
        region->scales = cache_alloc(c, pages * region->scale_page_stride);
        memset(region->codes, p->fill, pages * region->code_page_stride);
        memset(region->scales, p->fill, pages * region->scale_page_stride);
    }
    c->pool = (nbl_pool)NBL_INIT(nbl_pool);
    c->pool.shape = &c->shape;
    c->pool.regions = c->regions;
    c->pool.region_count = 2;
}

static float *random_vectors(cache *c, uint64_t count, uint32_t dim, float bias, uint64_t *seed)
{
    float *x = cache_alloc(c, count * dim * sizeof(float));
    for (uint64_t i = 0; i < count * dim; i++) {
        x[i] = support_normal(seed) + (i % dim % 8u == 0 ? bias : 0.0f);
    }
    return x;
}

/* Sequences take pages from both ends of the pool in turns, so neighbours lie in different regions. */
static void init_tables(cache *c, const cache_params *p, uint32_t pages, int32_t *lengths, int32_t *q_indptr)
{
    uint32_t stride = pages;
    int32_t *table = cache_alloc(c, (uint64_t)p->batch * stride * sizeof(int32_t));
    uint32_t used = 0;

    memset(table, 0xff, (uint64_t)p->batch * stride * sizeof(int32_t));
    for (uint32_t b = 0; b < p->batch; b++) {
        for (uint32_t i = 0; i * p->page_tokens < p->kv_len[b]; i++, used++) {
            table[b * stride + i] = (int32_t)(used % 2u == 0 ? used / 2u : 2u * pages - 1u - used / 2u);
        }
        lengths[b] = (int32_t)p->kv_len[b];
        q_indptr[b + 1] = q_indptr[b] + (int32_t)p->q_len[b];
    }
    c->attend.page_table = table;
    c->attend.page_table_stride = stride;
    c->attend.kv_len = lengths;
    c->attend.q_indptr = q_indptr;
}

static void append_all(cache *c, const cache_params *p, uint32_t tokens, uint64_t *seed)
{
    nbl_append_args *args = &c->append;
    int64_t *slots = cache_alloc(c, tokens * sizeof(int64_t));
    int32_t *indptr = cache_alloc(c, (p->batch + 1u) * sizeof(int32_t));
    float *k = random_vectors(c, (uint64_t)tokens * p->kv_heads, p->k_dim, p->k_bias, seed);
    float *v = random_vectors(c, (uint64_t)tokens * p->kv_heads, p->v_dim, 0.0f, seed);
    uint32_t at = 0;

    for (uint32_t b = 0; b < p->batch; b++) {
        c->k[b] = k + (uint64_t)at * p->kv_heads * p->k_dim;
        c->v[b] = v + (uint64_t)at * p->kv_heads * p->v_dim;
        for (uint32_t j = 0; j < p->kv_len[b]; j++, at++) {
            int64_t page = c->attend.page_table[b * c->attend.page_table_stride + j / p->page_tokens];
            slots[at] = page * p->page_tokens + j % p->page_tokens;
        }
        indptr[b + 1] = (int32_t)at;
    }
    *args = (nbl_append_args)NBL_INIT(nbl_append_args);
    args->pool = &c->pool;
    args->batch = p->batch;
    args->k = support_tensor(k, NBL_F32, 3, (uint64_t[]){tokens, p->kv_heads, p->k_dim});
    args->v = support_tensor(v, NBL_F32, 3, (uint64_t[]){tokens, p->kv_heads, p->v_dim});
    args->slots = slots;
    args->seq_indptr = indptr;
    args->centers.codes = cache_alloc(c, (uint64_t)p->batch * p->kv_heads * p->k_dim);
    args->centers.exponents = cache_alloc(c, (uint64_t)p->batch * p->kv_heads);
    args->centers.row_count = p->batch;
    args->center_mode = NBL_CENTER_COMPUTE;
    oracle_append(args);
}

void cache_init(cache *c, const cache_params *p)
{
    uint64_t seed = p->seed;
    uint32_t pages = 0;
    uint32_t tokens = 0;
    nbl_attend_args *args = &c->attend;

    memset(c, 0, sizeof *c);
    for (uint32_t b = 0; b < p->batch; b++) {
        pages += (p->kv_len[b] + p->page_tokens - 1u) / p->page_tokens;
        tokens += p->kv_len[b];
        c->rows += p->q_len[b];
    }
    c->rows_out = c->rows * p->q_heads;
    *args = (nbl_attend_args)NBL_INIT(nbl_attend_args);
    init_shape(c, p);
    init_pool(c, p, pages + 1u);
    init_tables(c, p, pages + 1u, cache_alloc(c, p->batch * sizeof(int32_t)),
                cache_alloc(c, (p->batch + 1u) * sizeof(int32_t)));
    append_all(c, p, tokens, &seed);
    args->pool = &c->pool;
    args->q_heads = p->q_heads;
    args->q_format = p->q_format;
    args->batch = p->batch;
    args->centers = c->append.centers;
    args->q = support_tensor(random_vectors(c, c->rows_out, p->k_dim, 0.0f, &seed), NBL_F32, 3,
                             (uint64_t[]){c->rows, p->q_heads, p->k_dim});
    args->o = support_tensor(cache_alloc(c, (uint64_t)c->rows_out * p->v_dim * sizeof(float)), NBL_F32, 3,
                             (uint64_t[]){c->rows, p->q_heads, p->v_dim});
    args->lse = support_tensor(cache_alloc(c, (uint64_t)c->rows_out * sizeof(float)), NBL_F32, 2,
                               (uint64_t[]){c->rows, p->q_heads});
}

float *cache_attend_copy(cache *c)
{
    uint64_t bytes = (uint64_t)c->rows_out * c->shape.v_dim * sizeof(float);
    float *copy = cache_alloc(c, bytes);

    memset(c->attend.o.data, 0xff, bytes);
    memset(c->attend.lse.data, 0xff, c->rows_out * sizeof(float));
    oracle_attend(&c->attend);
    memcpy(copy, c->attend.o.data, bytes);
    return copy;
}

double cache_error(cache *c, const float *o, double *lse_error)
{
    uint64_t count = (uint64_t)c->rows_out * c->shape.v_dim;
    double *exact = support_alloc(count * sizeof(double));
    double *exact_lse = support_alloc(c->rows_out * sizeof(double));
    const float *lse = c->attend.lse.data;
    double difference = 0.0;
    double norm = 0.0;

    oracle_reference(&c->attend, (const float *const *)c->k, (const float *const *)c->v, exact, exact_lse);
    for (uint64_t i = 0; i < count; i++) {
        difference += ((double)o[i] - exact[i]) * ((double)o[i] - exact[i]);
        norm += exact[i] * exact[i];
    }
    *lse_error = 0.0;
    for (uint32_t i = 0; i < c->rows_out; i++) {
        bool same = (double)lse[i] == exact_lse[i];
        *lse_error = same ? *lse_error : fmax(*lse_error, fabs((double)lse[i] - exact_lse[i]));
    }
    free(exact);
    free(exact_lse);
    return sqrt(difference / fmax(norm, 1e-300));
}
