/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file verify.c
 * @brief cache_verify: counts everything again, from the sequences up, and compares with the books.
 */
#include "cache.h"

#include <stdlib.h>

/* The recount. */
typedef struct recount {
    const nbl_cache *cache;
    uint32_t *page_refs;     /**< by page */
    uint8_t *page_free;      /**< by page */
    uint32_t *row_refs;      /**< by row */
    uint32_t *node_children; /**< by node */
    uint32_t *node_holders;  /**< by node */
    uint32_t alive;
} recount;

#define BROKEN(err, ...) NBL_REFUSE(err, NBL_E_STATE, "cache is inconsistent: " __VA_ARGS__)

static nbl_status sequence_count(recount *r, uint32_t index, nbl_error *err)
{
    const nbl_cache *cache = r->cache;
    const nbl_sequence *s = &cache->sequences.all[index];
    const int32_t *pages = nbl_sequences_pages(&cache->sequences, index);
    const uint32_t tokens = nbl_sequences_tokens(&cache->sequences, index);
    const uint32_t nodes = cache->plan.prefix_nodes + cache->plan.prefix_roots;
    if (s->generation % 2u == 0)
        return NBL_OK;
    if (s->row >= cache->rows.total || (s->node != NBL_NONE && s->node >= nodes))
        return BROKEN(err, "sequence %u has row %u of centres and node %u", index, s->row, s->node);
    r->alive++;
    r->row_refs[s->row]++;
    if (s->node != NBL_NONE)
        r->node_holders[s->node]++;
    if (s->page_count != nbl_cache_pages_of(cache, tokens))
        return BROKEN(err, "sequence %u has %u pages for %u tokens", index, s->page_count, tokens);
    if (s->dropped > nbl_sequences_tokens_whole(&cache->sequences, index))
        return BROKEN(err, "sequence %u has dropped %u tokens of %u", index, s->dropped, tokens);
    for (uint32_t place = s->dropped / cache->plan.config.shape.page_tokens; place < s->page_count; ++place) {
        if (pages[place] < 0 || (uint32_t)pages[place] >= cache->plan.pages)
            return BROKEN(err, "sequence %u has page %d at place %u", index, pages[place], place);
        r->page_refs[pages[place]]++;
    }
    return NBL_OK;
}

/* Pages in the queues of a class, each of which must belong there. */
static nbl_status queues_count(const recount *r, uint32_t class_index, uint32_t *out_count, nbl_error *err)
{
    const nbl_cache *cache = r->cache;
    const nbl_page_stack *stack = &cache->pages.stacks[class_index];
    *out_count = 0;
    for (uint32_t priority = 0; priority <= NBL_PRIORITY_MAX; ++priority) {
        const bool busy = (stack->busy[priority / 64u] >> priority % 64u & 1u) != 0;
        if (busy != (stack->queues[priority].oldest != NBL_NONE))
            return BROKEN(err, "queue %u of class %u is %s", priority, class_index, busy ? "empty" : "forgotten");
        for (uint32_t page = stack->queues[priority].oldest; page != NBL_NONE; page = cache->pages.pages[page].newer) {
            const nbl_page *p = &cache->pages.pages[page];
            if (p->refs != 0 || p->node == NBL_NONE || cache->index.nodes[p->node].pins != 0 ||
                cache->index.nodes[p->node].priority != priority || ++*out_count > stack->total)
                return BROKEN(err, "page %u is queued, with %u holders", page, p->refs);
        }
    }
    return NBL_OK;
}

static nbl_status stack_count(const recount *r, uint32_t class_index, nbl_error *err)
{
    const nbl_page_stack *stack = &r->cache->pages.stacks[class_index];
    const nbl_class *c = &r->cache->plan.classes[class_index];
    uint32_t used = 0, queued = 0;
    if (stack->free > stack->total)
        return BROKEN(err, "class %u has %u free pages of %u", class_index, stack->free, stack->total);
    for (uint32_t i = 0; i < stack->free; ++i) {
        const int32_t page = stack->ids[i];
        if (page < 0 || (uint32_t)page >= r->cache->plan.pages ||
            nbl_plan_class_of_page(&r->cache->plan, page) != class_index || r->page_free[page] != 0)
            return BROKEN(err, "page %d is free twice, or in the wrong class", page);
        r->page_free[page] = 1;
    }
    for (uint32_t i = 0; i < c->page_count; ++i)
        used += r->page_refs[c->first_page + i] > 0;
    NBL_TRY(queues_count(r, class_index, &queued, err));
    if (used != stack->used || queued != stack->queued)
        return BROKEN(err, "class %u counts %u used and %u queued pages and has %u and %u", class_index, stack->used,
                      stack->queued, used, queued);
    return NBL_OK;
}

static nbl_status pages_compare(const recount *r, nbl_error *err)
{
    const nbl_cache *cache = r->cache;
    for (uint32_t c = 0; c < cache->plan.class_count; ++c)
        NBL_TRY(stack_count(r, c, err));
    for (uint32_t page = 0; page < cache->plan.pages; ++page) {
        const nbl_page *p = &cache->pages.pages[page];
        if (p->refs != r->page_refs[page])
            return BROKEN(err, "page %u counts %u holders and has %u", page, p->refs, r->page_refs[page]);
        if (p->node != NBL_NONE && cache->index.nodes[p->node].page != (int32_t)page)
            return BROKEN(err, "page %u is published as node %u, which has page %d", page, p->node,
                          cache->index.nodes[p->node].page);
        if ((p->refs == 0 && p->node == NBL_NONE) != (r->page_free[page] != 0))
            return BROKEN(err, "page %u has %u holders and is %s", page, p->refs, r->page_free[page] ? "free" : "lost");
    }
    return NBL_OK;
}

static nbl_status rows_compare(const recount *r, nbl_error *err)
{
    const nbl_rows *rows = &r->cache->rows;
    uint32_t held = 0;
    for (uint32_t row = 0; row < rows->total; ++row) {
        if (rows->refs[row] != r->row_refs[row])
            return BROKEN(err, "row %u of centres counts %u holders and has %u", row, rows->refs[row],
                          r->row_refs[row]);
        held += rows->refs[row] > 0;
    }
    if (held + rows->free != rows->total)
        return BROKEN(err, "%u rows of centres are held and %u free, of %u", held, rows->free, rows->total);
    return NBL_OK;
}

/* Calls visit for every node that a bucket leads to; gives their number. */
static nbl_status nodes_visit(const recount *r, nbl_status (*visit)(const recount *, uint32_t, nbl_error *),
                              uint32_t *out_count, nbl_error *err)
{
    const nbl_index *index = &r->cache->index;
    *out_count = 0;
    for (uint32_t bucket = 0; bucket <= index->bucket_mask; ++bucket) {
        for (uint32_t node = index->buckets[bucket]; node != NBL_NONE; node = index->nodes[node].next) {
            NBL_TRY(visit(r, node, err));
            ++*out_count;
        }
    }
    return NBL_OK;
}

static nbl_status node_count(const recount *r, uint32_t node, nbl_error *err)
{
    const nbl_node *n = &r->cache->index.nodes[node];
    (void)err;
    if (n->parent != NBL_NONE)
        r->node_children[n->parent]++;
    else
        r->row_refs[r->cache->index.roots[node - r->cache->plan.prefix_nodes].row]++;
    return NBL_OK;
}

static nbl_status node_compare(const recount *r, uint32_t node, nbl_error *err)
{
    const nbl_node *n = &r->cache->index.nodes[node];
    if (n->children != r->node_children[node] || n->holders != r->node_holders[node])
        return BROKEN(err, "node %u counts %u children and %u holders and has %u and %u", node, n->children, n->holders,
                      r->node_children[node], r->node_holders[node]);
    if (n->page != NBL_PAGE_NONE && r->cache->pages.pages[n->page].node != node)
        return BROKEN(err, "node %u has page %d, which is not its own", node, n->page);
    return NBL_OK;
}

/* Children, holders and pages of all nodes of the prefix index. */
static nbl_status nodes_compare(const recount *r, nbl_error *err)
{
    const nbl_index *index = &r->cache->index;
    const uint32_t total = r->cache->plan.prefix_nodes + r->cache->plan.prefix_roots;
    uint32_t found = 0;
    if (total == 0)
        return NBL_OK;
    NBL_TRY(nodes_visit(r, node_count, &found, err));
    NBL_TRY(nodes_visit(r, node_compare, &found, err));
    if (found + index->nodes_free + index->roots_free != total)
        return BROKEN(err, "%u nodes are found and %u free, of %u", found, index->nodes_free + index->roots_free,
                      total);
    return NBL_OK;
}

static nbl_status recount_run(recount *r, nbl_error *err)
{
    for (uint32_t index = 0; index < r->cache->sequences.count_max; ++index)
        NBL_TRY(sequence_count(r, index, err));
    if (r->alive != r->cache->sequences.alive)
        return BROKEN(err, "%u sequences are counted and %u alive", r->cache->sequences.alive, r->alive);
    NBL_TRY(pages_compare(r, err));
    NBL_TRY(nodes_compare(r, err));
    return rows_compare(r, err);
}

nbl_status nbl_api_cache_verify(nbl_cache *cache, nbl_error *err)
{
    recount r = {.cache = cache};
    const size_t nodes = (size_t)cache->plan.prefix_nodes + cache->plan.prefix_roots + 1u;
    r.page_refs = calloc(cache->plan.pages, sizeof *r.page_refs);
    r.page_free = calloc(cache->plan.pages, sizeof *r.page_free);
    r.row_refs = calloc(cache->plan.center_rows, sizeof *r.row_refs);
    r.node_children = calloc(nodes, sizeof *r.node_children);
    r.node_holders = calloc(nodes, sizeof *r.node_holders);
    nbl_status status = NBL_OK;
    if (!r.page_refs || !r.page_free || !r.row_refs || !r.node_children || !r.node_holders)
        status = NBL_REFUSE(err, NBL_E_NO_MEMORY, "no host memory to count the pages of the cache");
    else
        status = recount_run(&r, err);
    if (status == NBL_OK)
        status = nbl_tiers_verify(cache, err);
    if (status == NBL_OK)
        status = nbl_debug_verify(cache, err);
    free(r.page_refs);
    free(r.page_free);
    free(r.row_refs);
    free(r.node_children);
    free(r.node_holders);
    return status;
}
