/* SPDX-License-Identifier: Apache-2.0 */
#include "ledger.h"

#include <string.h>

#define HEADS 1u
#define DIM 32u
#define CENTER_LEAST 32 /* NUM 4.2: fewer tokens give no centre */
#define TRANSCODED 77u
#define TAG_BYTES sizeof(uint64_t)

/* The hooks have no argument of their own: one ledger per process. */
static ledger *current;

static _Alignas(256) uint32_t k_memory[TOKENS_MOST][DIM], v_memory[TOKENS_MOST][DIM];
static _Alignas(256) float q_memory[DIM], o_memory[DIM];

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15u)) * 0xff51afd7ed558ccdu;
    x ^= x >> 32;
    return x * 0xc4ceb9fe1a85ec53u;
}

nbl_cache_config ledger_config(void)
{
    nbl_cache_config c = NBL_INIT(nbl_cache_config);
    c.shape.layers = LEDGER_LAYERS;
    c.shape.kv_heads = HEADS;
    c.shape.k_dim = c.shape.v_dim = DIM;
    c.shape.page_tokens = 4;
    c.k_format = NBL_INT4P;
    c.v_format = NBL_INT8;
    c.sink_tokens = 6;
    c.sequences_max = LEDGER_SEQUENCES;
    c.tokens_max = 600;
    c.sequence_tokens_max = LEDGER_TOKENS;
    c.workspace_mib = 1;
    return c;
}

/* ------------------------------------------------------------------------------------------------ hooks */

static const nbl_region *region_of(const nbl_pool *pool, int32_t page)
{
    for (uint32_t i = 0; i < pool->region_count; ++i) {
        const nbl_region *r = &pool->regions[i];
        if (page >= 0 && (uint32_t)page >= r->first_page && (uint32_t)page - r->first_page < r->page_count)
            return r;
    }
    cr_assert_fail("page %d is in no region", page);
    return NULL;
}

/* Where the tag of a slot lies: among the codes of its page and layer. */
static uint8_t *tag_place(const nbl_pool *pool, uint32_t layer, int32_t page, uint32_t offset)
{
    const nbl_region *r = region_of(pool, page);
    return (uint8_t *)r->codes + ((uint32_t)page - r->first_page) * r->code_page_stride + layer * r->code_layer_stride +
           offset * TAG_BYTES;
}

static uint64_t *center_place(const nbl_centers *c, uint32_t b)
{
    const uint32_t row = (uint32_t)c->rows[b];
    cr_assert_lt(row, c->row_count, "row %u", row);
    return (uint64_t *)(void *)(c->codes + (size_t)row * HEADS * DIM);
}

/* Token t of the call. */
static uint32_t token_given(const nbl_append_args *args, int32_t t)
{
    uint32_t token;
    memcpy(&token, (const uint8_t *)args->k.data + t * args->k.stride_bytes[0], sizeof token);
    return token;
}

/* Stores tokens [first, last) of the call under a centre. */
static void tags_store(const nbl_append_args *args, int32_t first, int32_t last, uint64_t center)
{
    const uint32_t page_tokens = args->pool->shape->page_tokens;
    for (int32_t t = first; t < last; ++t) {
        const uint64_t stored = mix(token_given(args, t), center);
        memcpy(tag_place(args->pool, args->layer, (int32_t)(args->slots[t] / page_tokens),
                         (uint32_t)(args->slots[t] % page_tokens)),
               &stored, sizeof stored);
    }
}

static void append_hook(const nbl_append_args *args)
{
    if (args->pool->shape->centering == 0) {
        tags_store(args, 0, (int32_t)args->k.shape[0], 0);
        return;
    }
    for (uint32_t b = 0; b < args->batch; ++b) {
        const int32_t first = args->seq_indptr[b], last = args->seq_indptr[b + 1];
        uint64_t *center = center_place(&args->centers, b);
        if (args->center_mode == NBL_CENTER_COMPUTE && first < last) {
            *center = 0;
            for (int32_t t = first; t < last && last - first >= CENTER_LEAST; ++t)
                *center = mix(*center, token_given(args, t));
        }
        tags_store(args, first, last, *center);
    }
}

static void copy_hook(const nbl_copy_pages_args *args)
{
    const nbl_kv_shape *shape = args->src_pool->shape;
    for (uint32_t i = 0; i < args->count; ++i) {
        for (uint32_t j = 0; j < args->count; ++j)
            cr_assert(args->dst_pages[i] != args->src_pages[j] && (i == j || args->dst_pages[i] != args->dst_pages[j]),
                      "page %d is written twice, or read too", args->dst_pages[i]);
        for (uint32_t layer = 0; layer < shape->layers; ++layer)
            memcpy(tag_place(args->dst_pool, layer, args->dst_pages[i], 0),
                   tag_place(args->src_pool, layer, args->src_pages[i], 0), shape->page_tokens * TAG_BYTES);
    }
}

static void transcode_hook(const nbl_transcode_args *args)
{
    for (uint32_t i = 0; i < args->count; ++i) {
        cr_assert_neq(region_of(args->src_pool, args->src_pages[i]), region_of(args->dst_pool, args->dst_pages[i]),
                      "transcoded within a class");
        for (uint32_t layer = 0; layer < args->src_pool->shape->layers; ++layer) {
            for (uint32_t t = 0; t < (uint32_t)args->token_counts[i]; ++t) {
                uint64_t stored;
                memcpy(&stored, tag_place(args->src_pool, layer, args->src_pages[i], t), sizeof stored);
                stored = mix(stored, TRANSCODED);
                memcpy(tag_place(args->dst_pool, layer, args->dst_pages[i], t), &stored, sizeof stored);
            }
        }
    }
}

/* What is stored for token t of a layer, by the model. */
static uint64_t stored_of(const ledger *l, const ledger_sequence *s, uint32_t layer, uint32_t t)
{
    const uint64_t stored = mix(s->tokens[layer][t], l->f.config.shape.centering != 0 ? s->centers[layer] : 0);
    return s->demoted[layer][t] ? mix(stored, TRANSCODED) : stored;
}

/* Sequence and layer that the attend at work reads, and the pages that it has shown. */
static struct shown {
    uint32_t index, layer;
    bool *pages;
} shown;

static void attend_hook(const nbl_attend_args *args)
{
    const ledger_sequence *s = &current->all[shown.index];
    const uint32_t page_tokens = args->pool->shape->page_tokens, length = s->lengths[shown.layer];
    cr_assert_eq((uint32_t)args->kv_len[0], length, "sequence %u layer %u: %d tokens of %u", shown.index, shown.layer,
                 args->kv_len[0], length);
    const bool centred = args->pool->shape->centering != 0;
    if (centred && length > 0)
        cr_assert_eq(*center_place(&args->centers, 0), s->centers[shown.layer], "sequence %u: foreign centre",
                     shown.index);
    for (uint32_t t = 0; t < length; ++t) {
        const int32_t page = args->page_table[t / page_tokens];
        uint64_t stored;
        memcpy(&stored, tag_place(args->pool, args->layer, page, t % page_tokens), sizeof stored);
        if (t / page_tokens >= s->dropped / page_tokens)
            shown.pages[page] = true;
        if (t >= s->dropped)
            cr_assert_eq(stored, stored_of(current, s, shown.layer, t),
                         "sequence %u layer %u token %u is not what was appended", shown.index, shown.layer, t);
    }
}

/* ------------------------------------------------------------------------------------------------ life */

void ledger_open(ledger *l, nbl_cache_config config)
{
    memset(l, 0, sizeof *l);
    l->f = fixture_open(config);
    l->f.c.state->on_append = append_hook;
    l->f.c.state->on_copy_pages = copy_hook;
    l->f.c.state->on_transcode = transcode_hook;
    l->f.c.state->on_attend = attend_hook;
    for (uint32_t i = 0; i < config.rule_count; ++i)
        l->recent = config.rules[i].scope == NBL_SCOPE_RECENT ? config.rules[i].tokens : l->recent;
    current = l;
}

void ledger_close(ledger *l)
{
    for (uint32_t i = 0; i < LEDGER_SEQUENCES; ++i) {
        if (l->all[i].alive)
            cr_assert_eq(ledger_free(l, i), NBL_OK, "free");
    }
    ledger_check(l);
    fixture_close(&l->f);
}

uint32_t ledger_tokens(const ledger_sequence *s)
{
    uint32_t tokens = 0;
    for (uint32_t layer = 0; layer < LEDGER_LAYERS; ++layer)
        tokens = s->lengths[layer] > tokens ? s->lengths[layer] : tokens;
    return tokens;
}

/* ------------------------------------------------------------------------------------------------ calls */

nbl_status ledger_create(ledger *l, uint32_t index)
{
    ledger_sequence s = {.alive = true};
    const nbl_status status = l->f.c.api->seq_create(l->f.cache, &s.handle, NULL);
    if (status == NBL_OK)
        l->all[index] = s;
    return status;
}

nbl_status ledger_free(ledger *l, uint32_t index)
{
    const nbl_status status = l->f.c.api->seq_free(l->f.cache, l->all[index].handle, NULL);
    if (status == NBL_OK)
        l->all[index].alive = false;
    return status;
}

static uint32_t pages_of(const ledger *l, uint32_t tokens)
{
    return tokens / l->f.config.shape.page_tokens + (tokens % l->f.config.shape.page_tokens != 0);
}

static void model_truncate(ledger_sequence *s, uint32_t tokens)
{
    for (uint32_t layer = 0; layer < LEDGER_LAYERS; ++layer)
        s->lengths[layer] = s->lengths[layer] < tokens ? s->lengths[layer] : tokens;
    s->cold = s->cold < pages_of(current, tokens) ? s->cold : pages_of(current, tokens);
}

/* First place whose pages are demoted at all: the sinks before it are int8 for ever. */
static uint32_t first_demoted(const ledger *l)
{
    return pages_of(l, l->f.config.sink_tokens);
}

/* Marks the pages that have left the recent window. */
static void model_demote(ledger *l, ledger_sequence *s)
{
    const uint32_t page_tokens = l->f.config.shape.page_tokens, whole = ledger_whole(s);
    for (; s->cold < whole / page_tokens && (s->cold + 1) * page_tokens + l->recent <= whole; s->cold++) {
        for (uint32_t t = 0; t < page_tokens && s->cold >= first_demoted(l); ++t) {
            for (uint32_t layer = 0; layer < LEDGER_LAYERS; ++layer)
                s->demoted[layer][s->cold * page_tokens + t] = true;
        }
    }
}

nbl_status ledger_fork(ledger *l, uint32_t parent, uint32_t tokens, uint32_t child)
{
    uint64_t handle = 0;
    const nbl_status status = l->f.c.api->seq_fork(l->f.cache, l->all[parent].handle, tokens, &handle, NULL);
    if (status != NBL_OK)
        return status;
    l->all[child] = l->all[parent];
    l->all[child].handle = handle;
    model_truncate(&l->all[child], tokens);
    return NBL_OK;
}

nbl_status ledger_truncate(ledger *l, uint32_t index, uint32_t tokens)
{
    const nbl_status status = l->f.c.api->seq_truncate(l->f.cache, l->all[index].handle, tokens, NULL);
    if (status == NBL_OK)
        model_truncate(&l->all[index], tokens);
    return status;
}

nbl_status ledger_truncate_batch(ledger *l, const ledger_part *parts, uint32_t count)
{
    uint64_t handles[LEDGER_SEQUENCES] = {0};
    uint32_t tokens[LEDGER_SEQUENCES] = {0};
    for (uint32_t i = 0; i < count; ++i) {
        handles[i] = l->all[parts[i].index].handle;
        tokens[i] = parts[i].tokens;
    }
    const nbl_status status = l->f.c.api->seq_truncate_batch(l->f.cache, handles, tokens, count, NULL);
    for (uint32_t i = 0; i < count && status == NBL_OK; ++i)
        model_truncate(&l->all[parts[i].index], tokens[i]);
    return status;
}

nbl_status ledger_drop(ledger *l, uint32_t index, uint32_t tokens)
{
    ledger_sequence *s = &l->all[index];
    const nbl_status status = l->f.c.api->seq_drop_prefix(l->f.cache, s->handle, tokens, NULL);
    if (status == NBL_OK)
        s->dropped = tokens > s->dropped ? tokens : s->dropped;
    return status;
}

static uint64_t center_of(const ledger *l, const uint32_t *tokens, uint32_t count)
{
    const uint32_t limit = l->f.config.center_tokens != 0 ? l->f.config.center_tokens : 1024;
    const uint32_t basis = count < limit ? count : limit;
    uint64_t center = 0;
    for (uint32_t t = 0; t < basis && basis >= CENTER_LEAST; ++t)
        center = mix(center, tokens[t]);
    return center;
}

/* What the model does for one sequence of an append whose first token is in k_memory[first]. */
static void model_append(ledger *l, uint32_t layer, const ledger_part *part, uint32_t first)
{
    ledger_sequence *s = &l->all[part->index];
    uint32_t *tokens = s->tokens[layer];
    const uint32_t length = s->lengths[layer];
    for (uint32_t t = 0; t < part->tokens; ++t) {
        s->demoted[layer][s->lengths[layer]] = false;
        tokens[s->lengths[layer]++] = k_memory[first + t][0];
    }
    if (length == 0 && part->tokens > 0)
        s->centers[layer] = center_of(l, tokens, part->tokens);
    if (l->recent > 0)
        model_demote(l, s);
}

static uint32_t token_draw(ledger *l)
{
    if (l->vocabulary == 0)
        return ++l->next_token;
    l->seed = l->seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(l->seed >> 33) % l->vocabulary;
}

/* Token for a position of a layer: the one that another layer has there, else a new one. */
static uint32_t token_at(ledger *l, const ledger_sequence *s, uint32_t position)
{
    for (uint32_t layer = 0; layer < LEDGER_LAYERS; ++layer) {
        if (position < s->lengths[layer])
            return s->tokens[layer][position];
    }
    return token_draw(l);
}

static nbl_tensor tensor(void *data, uint64_t tokens)
{
    return (nbl_tensor){.data = data, .dtype = NBL_F32, .rank = 3, .shape = {tokens, HEADS, DIM}};
}

nbl_status ledger_append(ledger *l, uint32_t layer, const ledger_part *parts, uint32_t count)
{
    uint64_t handles[LEDGER_SEQUENCES] = {0};
    int32_t indptr[LEDGER_SEQUENCES + 1] = {0};
    nbl_cache_append_args a = NBL_INIT(nbl_cache_append_args);
    for (uint32_t i = 0; i < count; ++i) {
        handles[i] = l->all[parts[i].index].handle;
        indptr[i + 1] = indptr[i] + (int32_t)parts[i].tokens;
    }
    for (uint32_t i = 0; i < count; ++i) {
        const ledger_sequence *s = &l->all[parts[i].index];
        for (uint32_t t = 0; t < parts[i].tokens; ++t)
            k_memory[(uint32_t)indptr[i] + t][0] = token_at(l, s, s->lengths[layer] + t);
    }
    a.sequences = handles;
    a.seq_indptr = indptr;
    a.batch = count;
    a.layer = layer;
    a.k = tensor(k_memory, (uint64_t)indptr[count]);
    a.v = tensor(v_memory, (uint64_t)indptr[count]);
    const nbl_status status = l->f.c.api->cache_append(l->f.cache, &a, NULL);
    for (uint32_t i = 0; i < count && status == NBL_OK; ++i)
        model_append(l, layer, &parts[i], (uint32_t)indptr[i]);
    return status;
}

void ledger_grow(ledger *l, uint32_t index, uint32_t tokens)
{
    const ledger_part part = {index, tokens};
    for (uint32_t layer = 0; layer < LEDGER_LAYERS; ++layer)
        cr_assert_eq(ledger_append(l, layer, &part, 1), NBL_OK, "append of %u tokens", tokens);
}

uint32_t ledger_whole(const ledger_sequence *s)
{
    return s->lengths[0] < s->lengths[1] ? s->lengths[0] : s->lengths[1];
}

nbl_status ledger_publish(ledger *l, uint32_t index, uint64_t salt, uint32_t priority, uint32_t *out_tokens)
{
    const ledger_sequence *s = &l->all[index];
    nbl_prefix p = NBL_INIT(nbl_prefix);
    p.tokens = s->tokens[0];
    p.count = ledger_whole(s);
    p.salt = salt;
    p.priority = priority;
    return l->f.c.api->prefix_publish(l->f.cache, s->handle, &p, out_tokens, NULL);
}

nbl_status ledger_adopt(ledger *l, uint32_t index, const uint32_t *tokens, uint32_t count, uint32_t first_tokens,
                        uint64_t salt, uint32_t *out_tokens)
{
    ledger_sequence *s = &l->all[index];
    nbl_prefix p = NBL_INIT(nbl_prefix);
    p.tokens = tokens;
    p.count = count;
    p.first_tokens = first_tokens;
    p.salt = salt;
    const nbl_status status = l->f.c.api->seq_adopt(l->f.cache, s->handle, &p, out_tokens, NULL);
    for (uint32_t layer = 0; layer < LEDGER_LAYERS && status == NBL_OK && *out_tokens > 0; ++layer) {
        s->lengths[layer] = *out_tokens;
        memcpy(s->tokens[layer], tokens, *out_tokens * sizeof *tokens);
        s->cold = pages_of(l, *out_tokens);
        for (uint32_t t = 0; t < *out_tokens; ++t)
            s->demoted[layer][t] = l->recent > 0 && t / l->f.config.shape.page_tokens >= first_demoted(l);
        s->centers[layer] = center_of(l, tokens, first_tokens != 0 && first_tokens < count ? first_tokens : count);
    }
    return status;
}

/* ------------------------------------------------------------------------------------------------ reading back */

static void sequence_show(ledger *l, uint32_t index, uint32_t layer)
{
    const int32_t indptr[2] = {0, 1};
    const ledger_sequence *s = &l->all[index];
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_attend_args a = NBL_INIT(nbl_cache_attend_args);
    shown.index = index;
    shown.layer = layer;
    a.sequences = &s->handle;
    a.q_indptr = indptr;
    a.batch = 1;
    a.layer = layer;
    a.q_heads = HEADS;
    a.q = tensor(q_memory, 1);
    a.o = tensor(o_memory, 1);
    a.flags = NBL_ATTEND_CAUSAL;
    if (s->dropped > 0) {
        if (s->lengths[layer] == s->dropped)
            return; /* no row may look at it */
        a.flags |= NBL_ATTEND_WINDOW_LEFT;
        a.window_left = s->lengths[layer] - 1u - s->dropped;
    }
    EXPECT(l->f.c.api->cache_attend(l->f.cache, &a, &err), NBL_OK);
}

void ledger_check(ledger *l)
{
    static bool pages[65536];
    uint32_t hidden = 0; /* pages that are held, but of which no row may see a token */
    nbl_error err = NBL_INIT(nbl_error);
    const nbl_cache_stats stats = fixture_stats(&l->f);
    uint32_t first = 0, alive = 0;
    uint64_t tokens = 0;
    memset(pages, 0, sizeof pages);
    shown.pages = pages;
    for (uint32_t i = 0; i < LEDGER_SEQUENCES; ++i) {
        if (!l->all[i].alive)
            continue;
        alive++;
        tokens += ledger_tokens(&l->all[i]);
        hidden +=
            ledger_tokens(&l->all[i]) == l->all[i].dropped && l->all[i].dropped % l->f.config.shape.page_tokens != 0;
        for (uint32_t layer = 0; layer < LEDGER_LAYERS; ++layer)
            sequence_show(l, i, layer);
    }
    EXPECT(l->f.c.api->cache_verify(l->f.cache, &err), NBL_OK);
    cr_assert(stats.sequences == alive && stats.tokens == tokens, "%u sequences, %d tokens", stats.sequences,
              (int)stats.tokens);
    for (uint32_t r = 0; r < stats.region_count; first += stats.pages_total[r++]) {
        uint32_t used = 0;
        for (uint32_t page = first; page < first + stats.pages_total[r]; ++page)
            used += pages[page];
        cr_assert(stats.pages_used[r] >= used && stats.pages_used[r] <= used + hidden,
                  "region %u: %u pages in use, %u seen and %u hidden at most", r, stats.pages_used[r], used, hidden);
    }
}
