/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file prefix.c
 * @brief The prefix index: pages found by the tokens that they and all pages before them hold.
 *
 * A tree in a hash table. A root is a salt and the tokens that the centre was computed from (NUM 4.2): pages under one
 * root share a centre, so equal tokens under it are equal bytes. A node is the tokens of one page after its parent.
 * Keys are 128-bit hashes of tokens and parent key; a match compares parent and tokens themselves, so by induction the
 * whole prefix.
 */
#include "cache.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* ------------------------------------------------------------------------------------------------ open, close */

static bool key_open(nbl_index *index, const nbl_cache_config *config)
{
    index->key[0] = config->hash_key[0];
    index->key[1] = config->hash_key[1];
    return (index->key[0] | index->key[1]) != 0 || getrandom(index->key, sizeof index->key, 0) == sizeof index->key;
}

bool nbl_index_open(nbl_index *index, const nbl_plan *plan)
{
    const size_t nodes = plan->prefix_nodes, roots = plan->prefix_roots;
    if (nodes == 0)
        return true;
    index->bucket_mask = 1;
    while (index->bucket_mask < nodes + roots)
        index->bucket_mask = index->bucket_mask * 2u + 1u;
    index->nodes = malloc((nodes + roots) * sizeof *index->nodes);
    index->roots = malloc(roots * sizeof *index->roots);
    index->node_tokens = malloc(nodes * plan->config.shape.page_tokens * sizeof *index->node_tokens);
    index->root_tokens = malloc(roots * plan->config.center_tokens * sizeof *index->root_tokens);
    index->buckets = malloc(((size_t)index->bucket_mask + 1u) * sizeof *index->buckets);
    index->free_nodes = malloc(nodes * sizeof *index->free_nodes);
    index->free_roots = malloc(roots * sizeof *index->free_roots);
    if (!index->nodes || !index->roots || !index->node_tokens || !index->root_tokens || !index->buckets ||
        !index->free_nodes || !index->free_roots)
        return false;
    memset(index->buckets, 0xff, ((size_t)index->bucket_mask + 1u) * sizeof *index->buckets);
    while (index->nodes_free < nodes) {
        index->free_nodes[index->nodes_free] = (uint32_t)nodes - 1u - index->nodes_free;
        index->nodes_free++;
    }
    while (index->roots_free < roots) {
        index->free_roots[index->roots_free] = (uint32_t)roots - 1u - index->roots_free;
        index->roots_free++;
    }
    return key_open(index, &plan->config);
}

void nbl_index_close(nbl_index *index)
{
    free(index->nodes);
    free(index->roots);
    free(index->node_tokens);
    free(index->root_tokens);
    free(index->buckets);
    free(index->free_nodes);
    free(index->free_roots);
    *index = (nbl_index){.nodes = NULL};
}

/* ------------------------------------------------------------------------------------------------ keys */

/* A prefix that is looked up or stored. */
typedef struct query {
    nbl_cache *cache;
    nbl_prefix prefix;
    uint32_t basis; /* tokens that the centre comes from */
} query;

static bool is_root(const nbl_cache *cache, uint32_t node)
{
    return node >= cache->plan.prefix_nodes;
}

static nbl_root *root_of(const nbl_cache *cache, uint32_t node)
{
    while (!is_root(cache, node))
        node = cache->index.nodes[node].parent;
    return &cache->index.roots[node - cache->plan.prefix_nodes];
}

/* Tokens of a node or root. */
static uint32_t *tokens_of(const nbl_cache *cache, uint32_t node)
{
    const nbl_cache_config *c = &cache->plan.config;
    if (is_root(cache, node))
        return cache->index.root_tokens + (size_t)(node - cache->plan.prefix_nodes) * c->center_tokens;
    return cache->index.node_tokens + (size_t)node * c->shape.page_tokens;
}

static nbl_hash root_key(const query *q)
{
    nbl_hasher h;
    nbl_hash_start(&h, q->cache->index.key);
    nbl_hash_add(&h, &q->prefix.salt, sizeof q->prefix.salt);
    nbl_hash_add(&h, q->prefix.tokens, q->basis * sizeof *q->prefix.tokens);
    return nbl_hash_end(&h);
}

static nbl_hash page_key(const query *q, uint32_t parent, uint32_t place)
{
    const uint32_t page_tokens = q->cache->plan.config.shape.page_tokens;
    nbl_hasher h;
    nbl_hash_start(&h, q->cache->index.key);
    nbl_hash_add(&h, &q->cache->index.nodes[parent].key, sizeof(nbl_hash));
    nbl_hash_add(&h, q->prefix.tokens + (size_t)place * page_tokens, page_tokens * sizeof *q->prefix.tokens);
    return nbl_hash_end(&h);
}

static uint32_t *bucket_of(nbl_index *index, const nbl_hash *key)
{
    return &index->buckets[key->word[0] & index->bucket_mask];
}

static uint32_t root_find(const query *q, const nbl_hash *key)
{
    nbl_index *index = &q->cache->index;
    for (uint32_t node = *bucket_of(index, key); node != NBL_NONE; node = index->nodes[node].next) {
        if (!is_root(q->cache, node) || !nbl_hash_equal(&index->nodes[node].key, key))
            continue;
        const nbl_root *root = root_of(q->cache, node);
        if (root->salt == q->prefix.salt && root->basis == q->basis &&
            memcmp(tokens_of(q->cache, node), q->prefix.tokens, q->basis * sizeof *q->prefix.tokens) == 0)
            return node;
    }
    return NBL_NONE;
}

static uint32_t page_find(const query *q, uint32_t parent, uint32_t place, const nbl_hash *key)
{
    const uint32_t page_tokens = q->cache->plan.config.shape.page_tokens;
    const uint32_t *tokens = q->prefix.tokens + (size_t)place * page_tokens;
    nbl_index *index = &q->cache->index;
    for (uint32_t node = *bucket_of(index, key); node != NBL_NONE; node = index->nodes[node].next) {
        if (index->nodes[node].parent == parent && nbl_hash_equal(&index->nodes[node].key, key) &&
            memcmp(tokens_of(q->cache, node), tokens, page_tokens * sizeof *tokens) == 0)
            return node;
    }
    return NBL_NONE;
}

/* ------------------------------------------------------------------------------------------------ nodes */

static void node_link(nbl_index *index, uint32_t node, nbl_node value)
{
    uint32_t *bucket = bucket_of(index, &value.key);
    value.next = *bucket;
    index->nodes[node] = value;
    *bucket = node;
}

static void node_unlink(nbl_index *index, uint32_t node)
{
    uint32_t *at = bucket_of(index, &index->nodes[node].key);
    while (*at != node)
        at = &index->nodes[*at].next;
    *at = index->nodes[node].next;
}

/* Removes a node that nothing needs any more, and then its parents. */
static void node_prune(nbl_cache *cache, uint32_t node)
{
    nbl_index *index = &cache->index;
    while (node != NBL_NONE) {
        const nbl_node *n = &index->nodes[node];
        const uint32_t parent = n->parent;
        if (nbl_node_stored(n) || n->children > 0 || n->holders > 0 || n->pins > 0)
            return;
        node_unlink(index, node);
        if (is_root(cache, node)) {
            nbl_rows_release(&cache->rows, root_of(cache, node)->row);
            index->free_roots[index->roots_free++] = node - cache->plan.prefix_nodes;
        } else {
            index->free_nodes[index->nodes_free++] = node;
            index->nodes[parent].children--;
        }
        node = parent;
    }
}

static uint32_t root_add(const query *q, const nbl_hash *key, uint32_t row)
{
    nbl_index *index = &q->cache->index;
    if (index->roots_free == 0)
        return NBL_NONE;
    const uint32_t root = index->free_roots[--index->roots_free], node = q->cache->plan.prefix_nodes + root;
    index->roots[root] = (nbl_root){q->prefix.salt, q->basis, row};
    nbl_rows_share(&q->cache->rows, row);
    memcpy(tokens_of(q->cache, node), q->prefix.tokens, q->basis * sizeof *q->prefix.tokens);
    node_link(index, node,
              (nbl_node){.key = *key, .parent = NBL_NONE, .page = NBL_PAGE_NONE, .slots = {NBL_NONE, NBL_NONE}});
    return node;
}

static uint32_t page_add(const query *q, uint32_t parent, uint32_t place, const nbl_hash *key)
{
    const uint32_t page_tokens = q->cache->plan.config.shape.page_tokens;
    nbl_index *index = &q->cache->index;
    if (index->nodes_free == 0)
        return NBL_NONE;
    const uint32_t node = index->free_nodes[--index->nodes_free];
    memcpy(tokens_of(q->cache, node), q->prefix.tokens + (size_t)place * page_tokens, page_tokens * sizeof(uint32_t));
    node_link(index, node,
              (nbl_node){
                  .key = *key, .parent = parent, .place = place, .page = NBL_PAGE_NONE, .slots = {NBL_NONE, NBL_NONE}});
    index->nodes[parent].children++;
    return node;
}

void nbl_index_tell(nbl_cache *cache, uint32_t kind, uint32_t node, uint32_t tier)
{
    const nbl_cache_config *config = &cache->plan.config;
    const nbl_node *n = &cache->index.nodes[node], *parent = &cache->index.nodes[n->parent];
    if (config->on_event == NULL)
        return;
    const nbl_cache_event event = {.struct_size = (uint32_t)sizeof event,
                                   .kind = kind,
                                   .key = {n->key.word[0], n->key.word[1]},
                                   .parent_key = {parent->key.word[0], parent->key.word[1]},
                                   .salt = root_of(cache, node)->salt,
                                   .tokens = tokens_of(cache, node),
                                   .page_tokens = config->shape.page_tokens,
                                   .place = n->place,
                                   .tier = tier};
    config->on_event(config->event_user, &event);
}

bool nbl_node_stored(const nbl_node *node)
{
    return node->page != NBL_PAGE_NONE || node->slots[0] != NBL_NONE || node->slots[1] != NBL_NONE;
}

void nbl_index_lose(nbl_cache *cache, uint32_t node, uint32_t tier)
{
    if (nbl_node_stored(&cache->index.nodes[node]))
        return;
    cache->counters.pages_evicted++;
    nbl_index_tell(cache, NBL_EVENT_EVICTED, node, tier);
    node_prune(cache, node);
}

void nbl_index_evict(nbl_cache *cache, uint32_t node)
{
    nbl_node *n = &cache->index.nodes[node];
    if (!cache->index.clearing)
        (void)nbl_tiers_put(cache, node);
    cache->pages.pages[n->page].node = NBL_NONE;
    n->page = NBL_PAGE_NONE;
    nbl_index_lose(cache, node, NBL_TIER_DEVICE);
}

void nbl_index_enter(nbl_cache *cache, uint32_t node)
{
    if (node != NBL_NONE)
        cache->index.nodes[node].holders++;
}

void nbl_index_leave(nbl_cache *cache, uint32_t node)
{
    if (node == NBL_NONE)
        return;
    cache->index.nodes[node].holders--;
    node_prune(cache, node);
}

void nbl_index_retreat(nbl_cache *cache, uint32_t index)
{
    nbl_sequence *s = &cache->sequences.all[index];
    const uint32_t full = nbl_sequences_tokens(&cache->sequences, index) / cache->plan.config.shape.page_tokens;
    uint32_t node = s->node;
    if (s->published <= full)
        return;
    for (; s->published > full; s->published--)
        node = cache->index.nodes[node].parent;
    node = s->published > 0 ? node : NBL_NONE;
    nbl_index_enter(cache, node);
    nbl_index_leave(cache, s->node);
    s->node = node;
}

/* ------------------------------------------------------------------------------------------------ queries */

static nbl_status query_in(query *q, nbl_cache *cache, const nbl_prefix *prefix, nbl_error *err)
{
    q->cache = cache;
    if (cache->plan.prefix_nodes == 0)
        return NBL_REFUSE(err, NBL_E_INVALID, "the cache has no prefix index (needed: NBL_CACHE_PREFIX)");
    NBL_TRY(NBL_STRUCT_IN(nbl_prefix, &q->prefix, prefix, err));
    NBL_TRY(nbl_flags_check(q->prefix.flags, 0, "nbl_prefix", err));
    NBL_TRY(nbl_reserved_check("nbl_prefix", q->prefix.reserved, err));
    NBL_TRY(nbl_stream_check(&q->prefix.stream, err));
    NBL_TRY(nbl_value_check("", "count", q->prefix.count, 0, NBL_KV_TOKENS_MAX, err));
    NBL_TRY(nbl_value_check("", "first_tokens", q->prefix.first_tokens, 0, NBL_KV_TOKENS_MAX, err));
    NBL_TRY(nbl_value_check("", "priority", q->prefix.priority, 0, NBL_PRIORITY_MAX, err));
    NBL_TRY(nbl_pointer_check("tokens", q->prefix.tokens, q->prefix.count, (uint32_t) _Alignof(uint32_t), err));
    const uint32_t first = q->prefix.first_tokens;
    q->basis = nbl_plan_basis(&cache->plan, first != 0 && first < q->prefix.count ? first : q->prefix.count);
    return NBL_OK;
}

/* Pages of a prefix that a request can use, or a sequence publish: full ones, and with a recent window those that lie
 * outside of it once all the tokens are there. */
static uint32_t places_usable(const query *q)
{
    const nbl_plan *plan = &q->cache->plan;
    const uint32_t recent = plan->recent_tokens, count = q->prefix.count;
    return count > recent ? (count - recent) / plan->config.shape.page_tokens : 0;
}

/* Walks down from the root as long as pages are there; gives the number of places and the last node. */
static uint32_t walk(const query *q, uint32_t *out_node)
{
    const uint32_t places = places_usable(q);
    const nbl_hash key = root_key(q);
    uint32_t node = root_find(q, &key), place = 0;
    *out_node = NBL_NONE;
    while (node != NBL_NONE && place < places) {
        const nbl_hash next_key = page_key(q, node, place);
        node = page_find(q, node, place, &next_key);
        if (node == NBL_NONE || !nbl_node_stored(&q->cache->index.nodes[node]))
            break;
        *out_node = node;
        place++;
    }
    return place;
}

nbl_status nbl_api_prefix_match(nbl_cache *cache, const nbl_prefix *prefix, uint32_t *out_tokens, nbl_error *err)
{
    query q;
    uint32_t node;
    NBL_TRY(query_in(&q, cache, prefix, err));
    NBL_TRY(nbl_pointer_check("out_tokens", out_tokens, 1, (uint32_t) _Alignof(uint32_t), err));
    *out_tokens = walk(&q, &node) * cache->plan.config.shape.page_tokens;
    return NBL_OK;
}

/* ------------------------------------------------------------------------------------------------ adopt */

/* The nodes from the root to node, by place. */
static void path_fill(const nbl_cache *cache, uint32_t node, uint32_t places)
{
    for (uint32_t place = places; place-- > 0; node = cache->index.nodes[node].parent)
        cache->path[place] = node;
}

/* Brings a page of a node that is in a tier only back into the device. */
static bool page_bring(nbl_cache *cache, uint32_t node)
{
    nbl_node *n = &cache->index.nodes[node];
    const uint32_t class_index = nbl_plan_place(&cache->plan, n->place)->final_class;
    if (nbl_pages_available(cache, class_index) == 0)
        return false;
    const int32_t page = nbl_pages_take(cache, class_index);
    if (!nbl_tiers_get(cache, node, page)) {
        nbl_pages_release(cache, page);
        return false;
    }
    n->page = page;
    cache->pages.pages[page].node = node;
    return true;
}

/* Takes a reference to each page of the path, bringing back those that are in a tier only; gives how many there are. A
 * page that cannot be had ends the prefix. What is on the path stays where it is meanwhile. */
static uint32_t path_take(nbl_cache *cache, uint32_t places)
{
    uint32_t taken = 0;
    for (uint32_t place = 0; place < places; ++place) {
        nbl_tiers_hold(cache, cache->path[place], true);
        if (cache->index.nodes[cache->path[place]].page != NBL_PAGE_NONE)
            nbl_pages_share(cache, cache->index.nodes[cache->path[place]].page);
    }
    while (taken < places &&
           (cache->index.nodes[cache->path[taken]].page != NBL_PAGE_NONE || page_bring(cache, cache->path[taken])))
        ++taken;
    for (uint32_t place = places; place-- > 0;) {
        nbl_tiers_hold(cache, cache->path[place], false);
        if (place >= taken && cache->index.nodes[cache->path[place]].page != NBL_PAGE_NONE)
            nbl_pages_release(cache, cache->index.nodes[cache->path[place]].page);
    }
    nbl_tiers_forget_lost(cache);
    return taken;
}

/* Gives an empty sequence the pages of the path, to which path_take has taken references. */
static void pages_adopt(nbl_cache *cache, uint32_t index, uint32_t places)
{
    nbl_sequence *s = &cache->sequences.all[index];
    int32_t *pages = nbl_sequences_pages(&cache->sequences, index);
    const uint32_t node = cache->path[places - 1u], row = root_of(cache, node)->row;
    nbl_rows_share(&cache->rows, row);
    nbl_rows_release(&cache->rows, s->row);
    s->row = row;
    s->node = node;
    s->published = s->page_count = s->cold = places;
    nbl_index_enter(cache, node);
    for (uint32_t place = 0; place < places; ++place)
        pages[place] = cache->index.nodes[cache->path[place]].page;
    for (uint32_t layer = 0; layer < cache->sequences.layers; ++layer)
        *nbl_sequences_length(&cache->sequences, index, layer) = places * cache->plan.config.shape.page_tokens;
    cache->page_epoch++;
}

nbl_status nbl_api_seq_adopt(nbl_cache *cache, uint64_t sequence, const nbl_prefix *prefix, uint32_t *out_tokens,
                             nbl_error *err)
{
    query q;
    uint32_t index, node;
    NBL_TRY(query_in(&q, cache, prefix, err));
    NBL_TRY(nbl_pointer_check("out_tokens", out_tokens, 1, (uint32_t) _Alignof(uint32_t), err));
    NBL_TRY(nbl_sequences_find(&cache->sequences, sequence, &index, err));
    if (nbl_sequences_tokens(&cache->sequences, index) > 0)
        return NBL_REFUSE(err, NBL_E_STATE, "sequence %#" PRIx64 " has %u tokens (needed: an empty one)", sequence,
                          nbl_sequences_tokens(&cache->sequences, index));
    const uint32_t most = cache->plan.config.sequence_tokens_max;
    q.prefix.count = q.prefix.count < most ? q.prefix.count : most;
    const uint32_t found = walk(&q, &node);
    cache->stream = q.prefix.stream;
    path_fill(cache, node, found);
    const uint32_t places = path_take(cache, found);
    if (places > 0)
        pages_adopt(cache, index, places);
    *out_tokens = places * cache->plan.config.shape.page_tokens;
    cache->counters.prefix_queries++;
    cache->counters.prefix_tokens += q.prefix.count;
    cache->counters.prefix_hit_tokens += *out_tokens;
    return NBL_OK;
}

/* ------------------------------------------------------------------------------------------------ publish */

/* Tells whether the tokens given say all that the bytes of a sequence depend on. */
static bool is_exact(const query *q, uint32_t index)
{
    const nbl_sequence *s = &q->cache->sequences.all[index];
    bool equal;
    const uint32_t basis = nbl_cache_basis(q->cache, index, &equal);
    return equal && !s->loose && basis <= q->prefix.count && basis <= q->cache->plan.config.center_tokens;
}

/* The root of a sequence's prefix, added if it is new. */
static uint32_t root_get(const query *q, uint32_t index)
{
    const nbl_hash key = root_key(q);
    const uint32_t node = root_find(q, &key);
    return node != NBL_NONE ? node : root_add(q, &key, q->cache->sequences.all[index].row);
}

/* Makes a page that is not published the page of a node that has none. */
static void page_attach(nbl_cache *cache, uint32_t node, int32_t page)
{
    nbl_node *n = &cache->index.nodes[node];
    if (n->page != NBL_PAGE_NONE || cache->pages.pages[page].node != NBL_NONE)
        return;
    n->page = page;
    cache->pages.pages[page].node = node;
    cache->counters.pages_stored++;
    nbl_index_tell(cache, NBL_EVENT_STORED, node, NBL_TIER_DEVICE);
}

/* Tells whether a page has the formats that its place calls for; one from a snapshot may have others. */
static bool is_final(const nbl_cache *cache, uint32_t place, int32_t page)
{
    return nbl_plan_class_of_page(&cache->plan, page) == nbl_plan_place(&cache->plan, place)->final_class;
}

/* Publishes the page at a place under its parent; NBL_NONE if there is no room, or if the page is published already, by
 * a sequence that shares it, under another salt, or if recomputing it would give other formats. */
static uint32_t page_publish(const query *q, uint32_t parent, uint32_t place, int32_t page)
{
    nbl_cache *cache = q->cache;
    const nbl_hash key = page_key(q, parent, place);
    uint32_t node = page_find(q, parent, place, &key);
    const bool empty = node == NBL_NONE || cache->index.nodes[node].page == NBL_PAGE_NONE;
    if (!is_final(cache, place, page) || (empty && cache->pages.pages[page].node != NBL_NONE))
        return NBL_NONE;
    if (node == NBL_NONE)
        node = page_add(q, parent, place, &key);
    if (node == NBL_NONE)
        return NBL_NONE;
    page_attach(cache, node, page);
    return node;
}

/* Pages that were found in the index when the sequence was published, and evicted since: its own are as good. */
static void pages_attach_again(nbl_cache *cache, uint32_t index)
{
    const nbl_sequence *s = &cache->sequences.all[index];
    const int32_t *pages = nbl_sequences_pages(&cache->sequences, index);
    const uint32_t first = s->dropped / cache->plan.config.shape.page_tokens;
    uint32_t node = s->node;
    for (uint32_t place = s->published; place-- > first; node = cache->index.nodes[node].parent)
        page_attach(cache, node, pages[place]);
}

/* Leading pages of a sequence that can be found in the index. */
static uint32_t pages_found(const nbl_cache *cache, uint32_t index)
{
    const nbl_sequence *s = &cache->sequences.all[index];
    uint32_t found = s->published, node = s->node;
    for (uint32_t place = s->published; place-- > 0; node = cache->index.nodes[node].parent)
        found = cache->index.nodes[node].page == NBL_PAGE_NONE ? place : found;
    return found;
}

/* Raises the priority of all pages up to node: a page is of no use without those before it. */
static void priority_raise(nbl_cache *cache, uint32_t node, uint32_t priority)
{
    for (; !is_root(cache, node); node = cache->index.nodes[node].parent) {
        nbl_node *n = &cache->index.nodes[node];
        if (n->priority >= priority)
            continue;
        const bool queued = n->page != NBL_PAGE_NONE && n->pins == 0 && cache->pages.pages[n->page].refs == 0;
        if (queued)
            nbl_pages_unqueue(cache, n->page);
        n->priority = priority;
        if (queued)
            nbl_pages_queue(cache, n->page);
    }
}

/* Publishes a sequence's pages from s->published on, as far as that can be done. */
static void pages_publish(const query *q, uint32_t index)
{
    nbl_cache *cache = q->cache;
    nbl_sequence *s = &cache->sequences.all[index];
    const uint32_t page_tokens = cache->plan.config.shape.page_tokens, places = places_usable(q);
    const int32_t *pages = nbl_sequences_pages(&cache->sequences, index);
    uint32_t node = s->node != NBL_NONE ? s->node : root_get(q, index), last = node;
    for (uint32_t place = s->published; place < places && place >= s->dropped / page_tokens; ++place) {
        node = node != NBL_NONE ? page_publish(q, node, place, pages[place]) : NBL_NONE;
        if (node == NBL_NONE) {
            cache->counters.pages_unstored += places - place;
            break;
        }
        last = node;
        s->published = place + 1u;
    }
    if (last == NBL_NONE)
        return;
    if (s->published > 0)
        priority_raise(cache, last, q->prefix.priority);
    const uint32_t before = s->node;
    s->node = s->published > 0 ? last : NBL_NONE;
    nbl_index_enter(cache, s->node);
    nbl_index_leave(cache, before);
    if (s->published == 0)
        node_prune(cache, last); /* a root that got no page */
}

/* A sequence that was published before goes on from there: the same prefix must be meant. */
static nbl_status continues_check(const query *q, uint32_t index, nbl_error *err)
{
    const nbl_sequence *s = &q->cache->sequences.all[index];
    const uint32_t page_tokens = q->cache->plan.config.shape.page_tokens;
    if (s->node == NBL_NONE || q->prefix.count < s->published * page_tokens)
        return NBL_OK;
    if (root_of(q->cache, s->node)->salt != q->prefix.salt)
        return NBL_REFUSE(err, NBL_E_INVALID, "salt is %#" PRIx64 ", and the sequence was published under %#" PRIx64,
                          q->prefix.salt, root_of(q->cache, s->node)->salt);
    const uint32_t *last = q->prefix.tokens + (size_t)(s->published - 1u) * page_tokens;
    if (memcmp(last, tokens_of(q->cache, s->node), page_tokens * sizeof *last) != 0)
        return NBL_REFUSE(err, NBL_E_INVALID, "tokens of page %u differ from those it was published under",
                          s->published - 1u);
    return NBL_OK;
}

nbl_status nbl_api_prefix_publish(nbl_cache *cache, uint64_t sequence, const nbl_prefix *prefix, uint32_t *out_tokens,
                                  nbl_error *err)
{
    query q;
    uint32_t index;
    bool equal;
    NBL_TRY(query_in(&q, cache, prefix, err));
    NBL_TRY(nbl_pointer_check("out_tokens", out_tokens, 0, (uint32_t) _Alignof(uint32_t), err));
    NBL_TRY(nbl_sequences_find(&cache->sequences, sequence, &index, err));
    NBL_TRY(nbl_index_check("count", q.prefix.count,
                            (uint64_t)nbl_sequences_tokens_whole(&cache->sequences, index) + 1u, err));
    NBL_TRY(continues_check(&q, index, err));
    q.basis = nbl_cache_basis(cache, index, &equal); /* the real one, not what a first append would give */
    if (is_exact(&q, index)) {
        pages_attach_again(cache, index);
        pages_publish(&q, index);
    }
    if (out_tokens != NULL)
        *out_tokens = pages_found(cache, index) * cache->plan.config.shape.page_tokens;
    return NBL_OK;
}

/* ------------------------------------------------------------------------------------------------ pins */

/* Adds a pin to, or takes one off, the pages from node up to the root. */
static void pins_change(nbl_cache *cache, uint32_t node, bool add)
{
    while (!is_root(cache, node)) {
        nbl_node *n = &cache->index.nodes[node];
        const uint32_t parent = n->parent;
        const bool idle = n->page != NBL_PAGE_NONE && cache->pages.pages[n->page].refs == 0;
        if (add && n->pins++ == 0 && idle)
            nbl_pages_unqueue(cache, n->page);
        else if (!add && --n->pins == 0 && idle)
            nbl_pages_queue(cache, n->page);
        node = parent;
    }
}

nbl_status nbl_api_prefix_pin(nbl_cache *cache, const nbl_prefix *prefix, uint32_t *out_tokens, nbl_error *err)
{
    query q;
    uint32_t node;
    NBL_TRY(query_in(&q, cache, prefix, err));
    NBL_TRY(nbl_pointer_check("out_tokens", out_tokens, 1, (uint32_t) _Alignof(uint32_t), err));
    const uint32_t places = walk(&q, &node);
    if (places > 0)
        pins_change(cache, node, true);
    *out_tokens = places * cache->plan.config.shape.page_tokens;
    return NBL_OK;
}

/* The last node of the first `places` pages of a prefix, all of which are there and pinned; else NBL_NONE. */
static uint32_t pinned_find(const query *q, uint32_t places)
{
    const nbl_hash key = root_key(q);
    uint32_t node = root_find(q, &key);
    for (uint32_t place = 0; place < places && node != NBL_NONE; ++place) {
        const nbl_hash next_key = page_key(q, node, place);
        node = page_find(q, node, place, &next_key);
        if (node != NBL_NONE && q->cache->index.nodes[node].pins == 0)
            node = NBL_NONE;
    }
    return node;
}

nbl_status nbl_api_prefix_unpin(nbl_cache *cache, const nbl_prefix *prefix, uint32_t tokens, nbl_error *err)
{
    query q;
    NBL_TRY(query_in(&q, cache, prefix, err));
    NBL_TRY(nbl_index_check("tokens", tokens, (uint64_t)q.prefix.count + 1u, err));
    const uint32_t page_tokens = cache->plan.config.shape.page_tokens, places = tokens / page_tokens;
    if (tokens % page_tokens != 0)
        return NBL_REFUSE(err, NBL_E_RANGE, "tokens is %u (allowed: multiples of page_tokens %u, as prefix_pin gave)",
                          tokens, page_tokens);
    const uint32_t node = places > 0 ? pinned_find(&q, places) : NBL_NONE;
    if (places > 0 && node == NBL_NONE)
        return NBL_REFUSE(err, NBL_E_NOT_FOUND, "the first %u tokens of the prefix are not pinned", tokens);
    if (places > 0)
        pins_change(cache, node, false);
    return NBL_OK;
}

nbl_status nbl_api_prefix_clear(nbl_cache *cache, nbl_error *err)
{
    if (cache->plan.prefix_nodes == 0)
        return NBL_REFUSE(err, NBL_E_INVALID, "the cache has no prefix index (needed: NBL_CACHE_PREFIX)");
    cache->index.clearing = true;
    for (uint32_t c = 0; c < cache->plan.class_count; ++c)
        nbl_pages_evict_all(cache, c);
    nbl_tiers_clear(cache);
    cache->index.clearing = false;
    return NBL_OK;
}
