/* SPDX-License-Identifier: Apache-2.0 */
#include "serve.h"

#include "pipeline.h"

#include <stdlib.h>
#include <string.h>

static int failed(const char *what, const nbl_error *err, nbl_fault *fault)
{
    return nbl_fault_from_api(fault, NBL_EXIT_FAILED, what, err);
}

/* ------------------------------------------------------------------------------------------------ open, close */

static uint64_t kv_floats(const nbl_serve_setup *s, uint64_t tokens)
{
    return tokens * s->kv_heads * s->dim;
}

static uint64_t q_floats(const nbl_serve_setup *s)
{
    return (uint64_t)NBL_SERVE_DRAFT * s->q_heads * s->dim;
}

static int caches_open(nbl_serve *serve, nbl_fault *fault)
{
    const nbl_serve_setup *s = &serve->setup;
    const nbl_api_v1 *api = serve->session->api;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_policy p = NBL_INIT(nbl_policy);
    nbl_cache_config c = NBL_INIT(nbl_cache_config);
    int code = nbl_policy_read(api, "--policy", s->policy, s->layers, s->dim, s->dim, &p, fault);
    if (code != NBL_EXIT_OK)
        return code;
    serve->q_format = p.q_format;
    for (uint32_t i = 0; i < p.rule_count; i++)
        serve->window |= p.rules[i].scope == NBL_SCOPE_RECENT;
    c.shape.layers = s->layers;
    c.shape.kv_heads = s->kv_heads;
    c.shape.k_dim = c.shape.v_dim = s->dim;
    c.shape.page_tokens = s->page_tokens;
    c.shape.k_hadamard = p.k_hadamard;
    c.shape.v_hadamard = p.v_hadamard;
    c.shape.centering = p.centering;
    c.shape.k_scale_rule = c.shape.v_scale_rule = p.scale_rule;
    c.k_format = p.k_format;
    c.v_format = p.v_format;
    c.sink_tokens = p.sink_tokens;
    c.rules = p.rules;
    c.rule_count = p.rule_count;
    c.center_tokens = 32; /* so that prompts need to share only their first tokens */
    c.sequences_max = 2u * s->batch;
    c.tokens_max = (uint64_t)c.sequences_max * s->length_max;
    c.sequence_tokens_max = s->length_max;
    if (api->cache_create(serve->session->device, &c, &serve->alone, &err) != NBL_OK)
        return nbl_fault_from_api(fault, NBL_EXIT_USAGE, "cache", &err);
    c.flags = NBL_CACHE_PREFIX;
    c.tokens_max = s->tokens_max;
    c.host_bytes = s->host_bytes;
    c.file_bytes = s->file_bytes;
    c.file_folder = s->file_folder;
    if (api->cache_create(serve->session->device, &c, &serve->cache, &err) != NBL_OK)
        return nbl_fault_from_api(fault, NBL_EXIT_USAGE, "cache", &err);
    return NBL_EXIT_OK;
}

int nbl_serve_open(nbl_serve *serve, nbl_session *session, const nbl_serve_setup *setup, nbl_fault *fault)
{
    *serve = (nbl_serve){.session = session, .setup = *setup};
    const uint64_t kv = kv_floats(setup, setup->chunk), q = q_floats(setup), most = kv > q ? kv : q;
    serve->tokens = nbl_alloc(setup->length_max, sizeof *serve->tokens, fault);
    serve->host = nbl_alloc(most, sizeof(float), fault);
    serve->other = nbl_alloc(most, sizeof(float), fault);
    int code = serve->tokens && serve->host && serve->other ? NBL_EXIT_OK : NBL_EXIT_FAILED;
    void **const blocks[] = {&serve->k, &serve->v, &serve->q, &serve->o};
    for (size_t i = 0; i < 4 && code == NBL_EXIT_OK; i++)
        code = nbl_session_alloc(session, (i < 2 ? kv : q) * sizeof(float), blocks[i], fault);
    return code == NBL_EXIT_OK ? caches_open(serve, fault) : code;
}

void nbl_serve_close(nbl_serve *serve)
{
    void *const blocks[] = {serve->k, serve->v, serve->q, serve->o};
    (void)serve->session->api->cache_destroy(serve->cache, NULL);
    (void)serve->session->api->cache_destroy(serve->alone, NULL);
    for (size_t i = 0; i < 4; i++)
        nbl_session_release(serve->session, blocks[i]);
    free(serve->tokens);
    free(serve->host);
    free(serve->other);
}

/* ------------------------------------------------------------------------------------------------ tokens */

static uint32_t mix(uint32_t a, uint32_t b)
{
    uint32_t x = a * 2654435761u ^ (b + 0x9e3779b9u) * 2246822519u;
    x ^= x >> 15;
    return x * 3266489917u;
}

static uint32_t token_of(const nbl_served *served, uint32_t position)
{
    const nbl_request *r = served->request;
    if (position < r->prefix_tokens)
        return mix(r->prefix, position);
    return mix(0x80000000u | served->number,
               position < r->prompt_tokens ? position : position + (served->branch << 24));
}

static nbl_prefix prefix_of(nbl_serve *serve, const nbl_served *served, uint32_t count)
{
    nbl_prefix p = NBL_INIT(nbl_prefix);
    for (uint32_t i = 0; i < count; i++)
        serve->tokens[i] = token_of(served, i);
    p.tokens = serve->tokens;
    p.count = count;
    p.first_tokens =
        served->request->prompt_tokens < serve->setup.chunk ? served->request->prompt_tokens : serve->setup.chunk;
    p.priority = 50;
    p.stream = serve->session->stream;
    return p;
}

static void noise(float *out, uint64_t count, uint32_t seed)
{
    for (uint64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        out[i] = (float)(int32_t)seed * 0x1p-30f;
    }
}

static int upload(nbl_serve *serve, void *memory, uint64_t floats, nbl_fault *fault)
{
    nbl_error err = NBL_INIT(nbl_error);
    if (serve->session->api->memory_copy(serve->session->device, memory, serve->host, floats * sizeof(float),
                                         NBL_COPY_TO_DEVICE, serve->session->stream, &err) != NBL_OK)
        return failed("copy", &err, fault);
    return NBL_EXIT_OK;
}

/* K or V of the tokens [first, first + count) in one layer; they follow from the token ids. */
static int kv_fill(nbl_serve *serve, const nbl_served *served, uint32_t first, uint32_t count, uint32_t part,
                   void *memory, nbl_fault *fault)
{
    const uint64_t each = kv_floats(&serve->setup, 1);
    for (uint32_t t = 0; t < count; t++)
        noise(serve->host + t * each, each, mix(token_of(served, first + t), part));
    return upload(serve, memory, count * each, fault);
}

static nbl_tensor rows_of(void *data, uint64_t tokens, uint64_t heads, uint64_t dim)
{
    return (nbl_tensor){.data = data, .dtype = NBL_F32, .rank = 3, .shape = {tokens, heads, dim}};
}

/* ------------------------------------------------------------------------------------------------ append */

/* Appends the tokens [first, first + count) to every layer; all layers or none. */
static int tokens_append(nbl_serve *serve, nbl_cache *cache, uint64_t sequence, const nbl_served *served,
                         uint32_t first, uint32_t count, bool *out_room, nbl_fault *fault)
{
    const nbl_serve_setup *s = &serve->setup;
    const int32_t indptr[2] = {0, (int32_t)count};
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_append_args a = NBL_INIT(nbl_cache_append_args);
    a.sequences = &sequence;
    a.seq_indptr = indptr;
    a.batch = 1;
    a.k = rows_of(serve->k, count, s->kv_heads, s->dim);
    a.v = rows_of(serve->v, count, s->kv_heads, s->dim);
    a.stream = serve->session->stream;
    *out_room = true;
    for (a.layer = 0; a.layer < s->layers; a.layer++) {
        int code = kv_fill(serve, served, first, count, 2u * a.layer, serve->k, fault);
        if (code == NBL_EXIT_OK)
            code = kv_fill(serve, served, first, count, 2u * a.layer + 1u, serve->v, fault);
        if (code != NBL_EXIT_OK)
            return code;
        const nbl_status status = serve->session->api->cache_append(cache, &a, &err);
        *out_room = status != NBL_E_NO_MEMORY;
        if (!*out_room && serve->session->api->seq_truncate(cache, sequence, first, &err) != NBL_OK)
            return failed("truncate", &err, fault);
        if (!*out_room)
            return NBL_EXIT_OK;
        if (status != NBL_OK)
            return failed("append", &err, fault);
    }
    return NBL_EXIT_OK;
}

/* Brings the sequence that shares nothing to the length of the other one. Its first append is the same. */
static int alone_follow(nbl_serve *serve, nbl_served *served, nbl_fault *fault)
{
    bool room;
    while (served->alone_length < served->length) {
        const uint32_t left = served->length - served->alone_length;
        const uint32_t count = left < serve->setup.chunk ? left : serve->setup.chunk;
        const int code =
            tokens_append(serve, serve->alone, served->alone, served, served->alone_length, count, &room, fault);
        if (code != NBL_EXIT_OK)
            return code;
        if (!room)
            return nbl_fault_set(fault, NBL_EXIT_FAILED, "the cache to compare with is out of pages");
        served->alone_length += count;
    }
    return NBL_EXIT_OK;
}

int nbl_serve_append(nbl_serve *serve, nbl_served *served, uint32_t count, bool *out_room, nbl_fault *fault)
{
    const int code =
        tokens_append(serve, serve->cache, served->sequence, served, served->length, count, out_room, fault);
    if (code != NBL_EXIT_OK || !*out_room)
        return code;
    served->length += count;
    return alone_follow(serve, served, fault);
}

int nbl_serve_rollback(nbl_serve *serve, nbl_served *served, uint32_t count, nbl_fault *fault)
{
    nbl_error err = NBL_INIT(nbl_error);
    served->length -= count;
    served->alone_length = served->length;
    if (serve->session->api->seq_truncate(serve->cache, served->sequence, served->length, &err) != NBL_OK ||
        serve->session->api->seq_truncate(serve->alone, served->alone, served->length, &err) != NBL_OK)
        return failed("truncate", &err, fault);
    return NBL_EXIT_OK;
}

/* ------------------------------------------------------------------------------------------------ attend */

static int attend_one(nbl_serve *serve, nbl_cache *cache, uint64_t sequence, uint32_t layer, uint32_t rows, float *out,
                      nbl_fault *fault)
{
    const nbl_serve_setup *s = &serve->setup;
    const int32_t indptr[2] = {0, (int32_t)rows};
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_attend_args a = NBL_INIT(nbl_cache_attend_args);
    a.flags = NBL_ATTEND_CAUSAL;
    a.sequences = &sequence;
    a.q_indptr = indptr;
    a.batch = 1;
    a.layer = layer;
    a.q_heads = s->q_heads;
    a.q_format = serve->q_format;
    a.q = rows_of(serve->q, rows, s->q_heads, s->dim);
    a.o = rows_of(serve->o, rows, s->q_heads, s->dim);
    a.stream = serve->session->stream;
    if (serve->session->api->cache_attend(cache, &a, &err) != NBL_OK)
        return failed("attend", &err, fault);
    return nbl_session_download(serve->session, serve->o, out, (uint64_t)rows * s->q_heads * s->dim * sizeof(float),
                                fault);
}

int nbl_serve_attend(nbl_serve *serve, nbl_served *served, uint32_t rows, nbl_fault *fault)
{
    const uint64_t floats = (uint64_t)rows * serve->setup.q_heads * serve->setup.dim;
    for (uint32_t layer = 0; layer < serve->setup.layers; layer++) {
        noise(serve->host, floats, mix(served->number, served->length + layer));
        int code = upload(serve, serve->q, floats, fault);
        if (code == NBL_EXIT_OK)
            code = attend_one(serve, serve->cache, served->sequence, layer, rows, serve->host, fault);
        if (code == NBL_EXIT_OK)
            code = attend_one(serve, serve->alone, served->alone, layer, rows, serve->other, fault);
        if (code != NBL_EXIT_OK)
            return code;
        serve->checked++;
        serve->wrong += memcmp(serve->host, serve->other, floats * sizeof(float)) != 0;
    }
    return NBL_EXIT_OK;
}

/* ------------------------------------------------------------------------------------------------ life */

int nbl_serve_start(nbl_serve *serve, nbl_served *served, bool *out_room, nbl_fault *fault)
{
    const nbl_api_v1 *api = serve->session->api;
    nbl_error err = NBL_INIT(nbl_error);
    /* The last token of a prompt is always computed: its row is what the answer begins with. */
    nbl_prefix p = prefix_of(serve, served, served->request->prompt_tokens);
    uint32_t found = 0;
    const nbl_status status = api->seq_create(serve->cache, &served->sequence, &err);
    *out_room = status != NBL_E_NO_MEMORY;
    if (!*out_room)
        return NBL_EXIT_OK;
    if (status != NBL_OK || api->seq_create(serve->alone, &served->alone, &err) != NBL_OK ||
        api->seq_adopt(serve->cache, served->sequence, &p, &found, &err) != NBL_OK)
        return failed("start", &err, fault);
    served->length = found;
    served->alone_length = 0;
    if (found == served->request->prompt_tokens) {
        served->length = found - 1u;
        if (api->seq_truncate(serve->cache, served->sequence, served->length, &err) != NBL_OK)
            return failed("truncate", &err, fault);
    }
    return NBL_EXIT_OK; /* the other cache follows after the next append: its first one must be a whole chunk */
}

int nbl_serve_publish(nbl_serve *serve, const nbl_served *served, nbl_fault *fault)
{
    nbl_error err = NBL_INIT(nbl_error);
    const nbl_prefix p = prefix_of(serve, served, served->length);
    if (serve->session->api->prefix_publish(serve->cache, served->sequence, &p, NULL, &err) != NBL_OK)
        return failed("publish", &err, fault);
    return NBL_EXIT_OK;
}

int nbl_serve_drop(nbl_serve *serve, nbl_served *served, nbl_fault *fault)
{
    nbl_error err = NBL_INIT(nbl_error);
    if (serve->session->api->seq_free(serve->cache, served->sequence, &err) != NBL_OK ||
        serve->session->api->seq_free(serve->alone, served->alone, &err) != NBL_OK)
        return failed("free", &err, fault);
    return NBL_EXIT_OK;
}

int nbl_serve_end(nbl_serve *serve, nbl_served *served, nbl_fault *fault)
{
    const int code = nbl_serve_publish(serve, served, fault);
    return code == NBL_EXIT_OK ? nbl_serve_drop(serve, served, fault) : code;
}

int nbl_serve_fork(nbl_serve *serve, const nbl_served *parent, nbl_served *child, bool *out_room, nbl_fault *fault)
{
    nbl_error err = NBL_INIT(nbl_error);
    *child = *parent;
    child->branch = parent->branch + 1u;
    child->alone_length = 0;
    const nbl_status status =
        serve->session->api->seq_fork(serve->cache, parent->sequence, UINT32_MAX, &child->sequence, &err);
    *out_room = status != NBL_E_NO_MEMORY;
    if (!*out_room)
        return NBL_EXIT_OK;
    if (status != NBL_OK || serve->session->api->seq_create(serve->alone, &child->alone, &err) != NBL_OK)
        return failed("fork", &err, fault);
    return alone_follow(serve, child, fault);
}
