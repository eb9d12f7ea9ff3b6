/* SPDX-License-Identifier: Apache-2.0 */
#include "model.h"

#include <math.h>
#include <stdlib.h>

enum { LAYERS_MAX = 256, GLOBAL_EVERY = 6, NAME_BYTES = 64 };
#define LOCAL_ROPE_BASE 10000.0

typedef struct layer {
    gguf_tensor q, k, v, o, gate, up, down;
    gguf_tensor attn_norm, q_norm, k_norm, post_attn_norm, ffn_norm, post_ffn_norm;
} layer;

struct model {
    uint32_t layers, dim, heads, kv_heads, head_dim, hidden, window;
    float eps;
    double rope_base;
    gguf_tensor embedding, output_norm;
    layer layer[LAYERS_MAX];
};

/* ------------------------------------------------------------------------------------------------ loading */

/* Finds one weight and checks its shape. */
static int find_weight(const gguf *file, const char *name, uint64_t columns, uint64_t rows, gguf_tensor *out)
{
    if (gguf_find_tensor(file, name, out) && out->columns == columns && out->rows == rows && columns % 8 == 0)
        return 1;
    (void)fprintf(stderr, "engine: %s is missing, of an unknown type, or not %llu x %llu\n", name,
                  (unsigned long long)rows, (unsigned long long)columns);
    return 0;
}

static int find_layer(const gguf *file, const model *m, uint32_t index, layer *l)
{
    const uint64_t q = (uint64_t)m->heads * m->head_dim, kv = (uint64_t)m->kv_heads * m->head_dim;
    const struct {
        const char *name;
        gguf_tensor *to;
        uint64_t columns, rows;
    } weights[] = {{"attn_q", &l->q, m->dim, q},
                   {"attn_k", &l->k, m->dim, kv},
                   {"attn_v", &l->v, m->dim, kv},
                   {"attn_output", &l->o, q, m->dim},
                   {"ffn_gate", &l->gate, m->dim, m->hidden},
                   {"ffn_up", &l->up, m->dim, m->hidden},
                   {"ffn_down", &l->down, m->hidden, m->dim},
                   {"attn_norm", &l->attn_norm, m->dim, 1},
                   {"attn_q_norm", &l->q_norm, m->head_dim, 1},
                   {"attn_k_norm", &l->k_norm, m->head_dim, 1},
                   {"post_attention_norm", &l->post_attn_norm, m->dim, 1},
                   {"ffn_norm", &l->ffn_norm, m->dim, 1},
                   {"post_ffw_norm", &l->post_ffn_norm, m->dim, 1}};
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        char name[NAME_BYTES];
        (void)snprintf(name, sizeof name, "blk.%u.%s.weight", index, weights[i].name);
        if (!find_weight(file, name, weights[i].columns, weights[i].rows, weights[i].to))
            return 0;
    }
    return 1;
}

static uint32_t count_of(const gguf *file, const char *key)
{
    const double value = gguf_number(file, key, 0);
    return value >= 0 && value < 1e6 ? (uint32_t)value : 0;
}

static int read_shape(const gguf *file, model *m)
{
    const gguf_text kind = gguf_string(file, "general.architecture");
    m->layers = count_of(file, "gemma3.block_count");
    m->dim = count_of(file, "gemma3.embedding_length");
    m->heads = count_of(file, "gemma3.attention.head_count");
    m->kv_heads = count_of(file, "gemma3.attention.head_count_kv");
    m->head_dim = count_of(file, "gemma3.attention.key_length");
    m->hidden = count_of(file, "gemma3.feed_forward_length");
    m->window = count_of(file, "gemma3.attention.sliding_window");
    m->eps = (float)gguf_number(file, "gemma3.attention.layer_norm_rms_epsilon", 1e-6);
    m->rope_base = gguf_number(file, "gemma3.rope.freq_base", 1e6);
    if (kind.count == 6 && memcmp(kind.bytes, "gemma3", 6) == 0 && m->layers && m->layers <= LAYERS_MAX && m->dim &&
        m->heads && m->kv_heads && m->head_dim && m->hidden && m->window)
        return 1;
    (void)fprintf(stderr, "engine: the file is no Gemma 3 model (architecture \"%.*s\")\n", (int)kind.count,
                  kind.bytes);
    return 0;
}

model *model_create(const gguf *file)
{
    model *m = calloc(1, sizeof *m);
    if (!m || !read_shape(file, m) || !gguf_find_tensor(file, "token_embd.weight", &m->embedding) ||
        m->embedding.columns != m->dim || !find_weight(file, "output_norm.weight", m->dim, 1, &m->output_norm)) {
        free(m);
        return NULL;
    }
    for (uint32_t i = 0; i < m->layers; i++)
        if (!find_layer(file, m, i, &m->layer[i])) {
            free(m);
            return NULL;
        }
    return m;
}

void model_free(model *m)
{
    free(m);
}

nbl_status model_cache(const model *m, const nbl_client *client, const char *recipe, uint64_t tokens_max,
                       uint32_t batch_tokens, nbl_cache **out_cache, nbl_error *err)
{
    nbl_policy policy;
    nbl_cache_config config;
    nbl_status status =
        nbl_client_config(client, recipe, m->layers, m->kv_heads, m->head_dim, 1, tokens_max, &policy, &config, err);
    if (status == NBL_OK)
        status = nbl_client_workspace(client, &policy, m->heads, batch_tokens, &config, err);
    return status == NBL_OK ? client->api->cache_create(client->device, &config, out_cache, err) : status;
}

/* ------------------------------------------------------------------------------------------------ arithmetic */

/* Eight sums side by side, so that a compiler can use vectors without changing the order. */
static float dot(const float *a, const float *b, uint64_t count)
{
    float sums[8] = {0};
    for (uint64_t i = 0; i < count; i += 8)
        for (int j = 0; j < 8; j++)
            sums[j] += a[i + (uint64_t)j] * b[i + (uint64_t)j];
    return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

/* y[t][r] = <row r of w, x[t]>; every row is read once. Returns 0 if memory runs out. */
static int multiply(const gguf_tensor *w, const float *x, uint32_t count, float *y)
{
    int whole = 1;
#pragma omp parallel reduction(&& : whole)
    {
        float *row = malloc(w->columns * sizeof *row);
        whole = row != NULL;
#pragma omp for
        for (uint64_t r = 0; r < w->rows; r++) {
            if (!row)
                continue;
            gguf_row(w, r, row);
            for (uint32_t t = 0; t < count; t++)
                y[t * w->rows + r] = dot(row, x + t * w->columns, w->columns);
        }
        free(row);
    }
    return whole;
}

/* out = x / rms(x) * weight, over rows of `columns`. */
static void rms_norm(const gguf_tensor *weight, float eps, const float *x, uint64_t rows, float *out)
{
    const uint64_t columns = weight->columns;
    const float *scale = (const float *)(const void *)weight->data;
    for (uint64_t r = 0; r < rows; r++) {
        const float *from = x + r * columns;
        const float factor = 1.0f / sqrtf(dot(from, from, columns) / (float)columns + eps);
        for (uint64_t i = 0; i < columns; i++)
            out[r * columns + i] = from[i] * factor * scale[i];
    }
}

/* Rotates the two halves of each head by its token's position. */
static void rope(float *x, uint32_t count, uint32_t heads, uint32_t dim, uint32_t position, double base)
{
    const uint32_t half = dim / 2;
    for (uint32_t t = 0; t < count; t++)
        for (uint32_t i = 0; i < half; i++) {
            const double angle = (double)(position + t) * pow(base, -(double)i / half);
            const float c = (float)cos(angle), s = (float)sin(angle);
            for (uint32_t h = 0; h < heads; h++) {
                float *head = x + ((uint64_t)t * heads + h) * dim;
                const float a = head[i], b = head[i + half];
                head[i] = a * c - b * s;
                head[i + half] = b * c + a * s;
            }
        }
}

static void gated_gelu(float *gate, const float *up, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        const float x = gate[i], inner = 0.7978845608f * (x + 0.044715f * x * x * x);
        gate[i] = 0.5f * x * (1.0f + tanhf(inner)) * up[i];
    }
}

static void add(float *x, const float *y, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        x[i] += y[i];
}

/* ------------------------------------------------------------------------------------------------ layers */

/* What the layers of one call share. */
typedef struct pass {
    const model *m;
    const nbl_client *client;
    nbl_cache *cache;
    uint64_t sequence;
    uint32_t count, position;
    float *x, *h, *q, *k, *v, *o, *gate, *up, *y, *memory;
    char *device; /* q, k, v and o on the device, one after the other */
    uint64_t q_bytes, kv_bytes;
} pass;

static int is_global(uint32_t index)
{
    return index % GLOBAL_EVERY == GLOBAL_EVERY - 1;
}

static nbl_stream host_or_legacy(const pass *p, nbl_error *err)
{
    nbl_caps caps = NBL_INIT(nbl_caps);
    const nbl_status status = p->client->api->caps(p->client->device, &caps, err);
    const int cuda = status == NBL_OK && caps.stream_kind == NBL_STREAM_CUDA;
    return (nbl_stream){cuda ? NBL_STREAM_CUDA : NBL_STREAM_HOST, 0, cuda ? NBL_STREAM_CUDA_LEGACY : NULL};
}

/* q, k and v to the device, attention there, o back. */
static nbl_status attend(const pass *p, uint32_t index, nbl_error *err)
{
    const model *m = p->m;
    const nbl_api_v1 *api = p->client->api;
    nbl_device *device = p->client->device;
    const nbl_stream stream = host_or_legacy(p, err);
    const int32_t cut[] = {0, (int32_t)p->count};
    char *q = p->device, *k = q + p->q_bytes, *v = k + p->kv_bytes, *o = v + p->kv_bytes;
    nbl_cache_append_args append = {.struct_size = sizeof append,
                                    .sequences = &p->sequence,
                                    .seq_indptr = cut,
                                    .batch = 1,
                                    .layer = index,
                                    .stream = stream,
                                    .k = nbl_client_tensor(k, NBL_F32, p->count, m->kv_heads, m->head_dim),
                                    .v = nbl_client_tensor(v, NBL_F32, p->count, m->kv_heads, m->head_dim)};
    nbl_cache_attend_args args = {.struct_size = sizeof args,
                                  .flags = NBL_ATTEND_CAUSAL,
                                  .sequences = &p->sequence,
                                  .q_indptr = cut,
                                  .batch = 1,
                                  .layer = index,
                                  .q_heads = m->heads,
                                  .stream = stream,
                                  .q = nbl_client_tensor(q, NBL_F32, p->count, m->heads, m->head_dim),
                                  .o = nbl_client_tensor(o, NBL_F32, p->count, m->heads, m->head_dim)};
    if (!is_global(index)) {
        args.flags |= NBL_ATTEND_WINDOW_LEFT;
        args.window_left = m->window - 1;
    }
    nbl_status status = api->memory_copy(device, q, p->q, p->q_bytes, NBL_COPY_TO_DEVICE, stream, err);
    if (status == NBL_OK)
        status = api->memory_copy(device, k, p->k, p->kv_bytes, NBL_COPY_TO_DEVICE, stream, err);
    if (status == NBL_OK)
        status = api->memory_copy(device, v, p->v, p->kv_bytes, NBL_COPY_TO_DEVICE, stream, err);
    if (status == NBL_OK)
        status = api->cache_append(p->cache, &append, err);
    if (status == NBL_OK)
        status = api->cache_attend(p->cache, &args, err);
    if (status == NBL_OK)
        status = api->memory_copy(device, p->o, o, p->q_bytes, NBL_COPY_TO_HOST, stream, err);
    return status == NBL_OK ? api->check(device, stream, err) : status;
}

static nbl_status no_memory(nbl_error *err)
{
    return nbl_client_fail(err, NBL_E_NO_MEMORY, "engine: no memory", "");
}

static nbl_status run_attention(const pass *p, uint32_t index, nbl_error *err)
{
    const model *m = p->m;
    const layer *l = &m->layer[index];
    const double base = is_global(index) ? m->rope_base : LOCAL_ROPE_BASE;
    rms_norm(&l->attn_norm, m->eps, p->x, p->count, p->h);
    if (!multiply(&l->q, p->h, p->count, p->q) || !multiply(&l->k, p->h, p->count, p->k) ||
        !multiply(&l->v, p->h, p->count, p->v))
        return no_memory(err);
    rms_norm(&l->q_norm, m->eps, p->q, (uint64_t)p->count * m->heads, p->q);
    rms_norm(&l->k_norm, m->eps, p->k, (uint64_t)p->count * m->kv_heads, p->k);
    rope(p->q, p->count, m->heads, m->head_dim, p->position, base);
    rope(p->k, p->count, m->kv_heads, m->head_dim, p->position, base);
    const nbl_status status = attend(p, index, err);
    if (status != NBL_OK)
        return status;
    if (!multiply(&l->o, p->o, p->count, p->y))
        return no_memory(err);
    rms_norm(&l->post_attn_norm, m->eps, p->y, p->count, p->y);
    add(p->x, p->y, (uint64_t)p->count * m->dim);
    return NBL_OK;
}

static nbl_status run_mlp(const pass *p, uint32_t index, nbl_error *err)
{
    const model *m = p->m;
    const layer *l = &m->layer[index];
    rms_norm(&l->ffn_norm, m->eps, p->x, p->count, p->h);
    if (!multiply(&l->gate, p->h, p->count, p->gate) || !multiply(&l->up, p->h, p->count, p->up))
        return no_memory(err);
    gated_gelu(p->gate, p->up, (uint64_t)p->count * m->hidden);
    if (!multiply(&l->down, p->gate, p->count, p->y))
        return no_memory(err);
    rms_norm(&l->post_ffn_norm, m->eps, p->y, p->count, p->y);
    add(p->x, p->y, (uint64_t)p->count * m->dim);
    return NBL_OK;
}

static nbl_status run_layers(const pass *p, const uint32_t *tokens, float *out_logits, nbl_error *err)
{
    const model *m = p->m;
    nbl_status status = NBL_OK;
    for (uint32_t t = 0; t < p->count; t++) {
        float *x = p->x + (uint64_t)t * m->dim;
        gguf_row(&m->embedding, tokens[t], x);
        for (uint32_t i = 0; i < m->dim; i++)
            x[i] *= sqrtf((float)m->dim);
    }
    for (uint32_t i = 0; i < m->layers && status == NBL_OK; i++) {
        status = run_attention(p, i, err);
        if (status == NBL_OK)
            status = run_mlp(p, i, err);
    }
    if (status != NBL_OK || !out_logits)
        return status;
    rms_norm(&m->output_norm, m->eps, p->x + (uint64_t)(p->count - 1) * m->dim, 1, p->h);
    return multiply(&m->embedding, p->h, 1, out_logits) ? NBL_OK : no_memory(err);
}

/* Cuts one block of host memory into the arrays of a pass. */
static int allocate(pass *p)
{
    const model *m = p->m;
    const uint64_t n = p->count, q = n * m->heads * m->head_dim, kv = n * m->kv_heads * m->head_dim;
    float **const arrays[] = {&p->x, &p->h, &p->y, &p->q, &p->o, &p->k, &p->v, &p->gate, &p->up};
    const uint64_t floats[] = {n * m->dim, n * m->dim, n * m->dim, q, q, kv, kv, n * m->hidden, n * m->hidden};
    uint64_t total = 0;
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
        total += floats[i];
    float *at = p->memory = malloc(total * sizeof *at);
    for (size_t i = 0; at && i < sizeof floats / sizeof *floats; i++) {
        *arrays[i] = at;
        at += floats[i];
    }
    p->q_bytes = q * sizeof *at;
    p->kv_bytes = kv * sizeof *at;
    return at != NULL;
}

nbl_status model_run(const model *m, const nbl_client *client, nbl_cache *cache, uint64_t sequence,
                     const uint32_t *tokens, uint32_t count, uint32_t position, float *out_logits, nbl_error *err)
{
    pass p = {.m = m, .client = client, .cache = cache, .sequence = sequence, .count = count, .position = position};
    void *device = NULL;
    for (uint32_t i = 0; i < count; i++)
        if (tokens[i] >= m->embedding.rows)
            return nbl_client_fail(err, NBL_E_RANGE, "engine: token outside the vocabulary", "");
    if (!allocate(&p))
        return no_memory(err);
    nbl_status status = client->api->memory_alloc(client->device, 2 * (p.q_bytes + p.kv_bytes), &device, err);
    p.device = device;
    if (status == NBL_OK)
        status = run_layers(&p, tokens, out_logits, err);
    if (device)
        (void)client->api->memory_free(client->device, device, NULL);
    free(p.memory);
    return status;
}
