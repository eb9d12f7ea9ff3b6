/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file classes.c
 * @brief From a policy to classes of pages: which formats each layer has at each place of a sequence.
 *
 * The rules cut the layers into runs and the places into runs. For each run of places there is one pair of formats per
 * run of layers; such a row of pairs is a class. A window of recent tokens gives a run of places two classes, one for
 * new pages and one for those that have left the window. Runs of layers whose pairs agree in all classes form a group.
 */
#include "cache.h"

#include "../num/layout.h"

#include <stdio.h>
#include <string.h>

#define PAGES_MAX ((uint64_t)INT32_MAX)

/* A pair of formats. */
typedef struct pair {
    uint32_t k, v;
} pair;

/* Formats of every run of layers. */
typedef struct row {
    pair pairs[NBL_LAYER_RUNS_MAX];
} row;

/* The plan at work. */
typedef struct classes_work {
    nbl_plan *plan;
    const nbl_policy_rule *rules;
    row rows[NBL_CLASSES_MAX];       /* by class */
    uint64_t pages[NBL_CLASSES_MAX]; /* by class */
} classes_work;

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t ceil_div(uint64_t a, uint64_t b)
{
    return (a + b - 1u) / b;
}

/* need(skip, most) of nbl_plan_make. */
static uint64_t pages_needed(const nbl_cache_config *c, uint64_t skip, uint64_t most)
{
    const uint64_t page_tokens = c->shape.page_tokens;
    uint64_t largest = 0;
    for (uint64_t s = 1; s <= c->sequences_max && s * (skip * page_tokens + 1u) <= c->tokens_max; ++s) {
        const uint64_t split = s + (c->tokens_max - s) / page_tokens - s * skip;
        const uint64_t pages = min_u64(s * most, split);
        largest = pages > largest ? pages : largest;
    }
    return largest;
}

/* ------------------------------------------------------------------------------------------------ rules */

static nbl_status rule_block_check(const char *prefix, const char *field, uint32_t block, uint32_t dim, uint32_t scope,
                                   nbl_error *err)
{
    if (block != 0 && scope != NBL_SCOPE_ALL)
        return NBL_REFUSE(err, NBL_E_INVALID, "%s%s is %u with a scope (allowed: only with NBL_SCOPE_ALL)", prefix,
                          field, block);
    return block == 1 ? NBL_OK : nbl_hadamard_check(prefix, field, block, dim, err);
}

static nbl_status rule_check(const nbl_policy_rule *r, const char *prefix, const nbl_kv_shape *shape, nbl_error *err)
{
    const uint32_t end = r->layer_end != 0 ? r->layer_end : shape->layers;
    NBL_TRY(nbl_value_check(prefix, "layer_end", end, 1, shape->layers, err));
    NBL_TRY(nbl_value_check(prefix, "layer_begin", r->layer_begin, 0, end - 1u, err));
    NBL_TRY(nbl_value_check(prefix, "scope", r->scope, 0, NBL_SCOPE_RECENT, err));
    if (r->scope == NBL_SCOPE_ALL)
        NBL_TRY(nbl_value_check(prefix, "tokens", r->tokens, 0, 0, err));
    else
        NBL_TRY(nbl_value_check(prefix, "tokens", r->tokens, 1, NBL_KV_TOKENS_MAX, err));
    if (r->k_format != 0)
        NBL_TRY(nbl_format_check(prefix, "k_format", r->k_format, err));
    if (r->v_format != 0)
        NBL_TRY(nbl_format_check(prefix, "v_format", r->v_format, err));
    NBL_TRY(rule_block_check(prefix, "k_hadamard", r->k_hadamard, shape->k_dim, r->scope, err));
    return rule_block_check(prefix, "v_hadamard", r->v_hadamard, shape->v_dim, r->scope, err);
}

/* Checks all rules and finds the one window of recent tokens. */
static nbl_status rules_check(classes_work *w, nbl_error *err)
{
    char prefix[32];
    nbl_plan *plan = w->plan;
    for (uint32_t i = 0; i < plan->config.rule_count; ++i) {
        const nbl_policy_rule *r = &w->rules[i];
        snprintf(prefix, sizeof prefix, "rules[%u].", i);
        NBL_TRY(rule_check(r, prefix, &plan->config.shape, err));
        if (r->scope != NBL_SCOPE_RECENT)
            continue;
        if (plan->recent_tokens != 0 && plan->recent_tokens != r->tokens)
            return NBL_REFUSE(err, NBL_E_INVALID, "%stokens is %u (allowed: %u, the recent window of an earlier rule)",
                              prefix, r->tokens, plan->recent_tokens);
        plan->recent_tokens = r->tokens;
    }
    return NBL_OK;
}

/* ------------------------------------------------------------------------------------------------ cuts */

/* Puts a cut into a sorted list without doubles. */
static void cut_add(uint32_t *cuts, uint32_t *count, uint32_t cut)
{
    uint32_t at = *count;
    for (uint32_t i = 0; i < *count; ++i) {
        if (cuts[i] == cut)
            return;
    }
    for (; at > 0 && cuts[at - 1u] > cut; --at)
        cuts[at] = cuts[at - 1u];
    cuts[at] = cut;
    (*count)++;
}

static void layers_cut(classes_work *w)
{
    nbl_plan *plan = w->plan;
    uint32_t cuts[NBL_LAYER_RUNS_MAX + 1u], count = 0;
    cut_add(cuts, &count, 0);
    cut_add(cuts, &count, plan->config.shape.layers);
    for (uint32_t i = 0; i < plan->config.rule_count; ++i) {
        cut_add(cuts, &count, w->rules[i].layer_begin);
        if (w->rules[i].layer_end != 0)
            cut_add(cuts, &count, w->rules[i].layer_end);
    }
    plan->layer_count = count - 1u;
    for (uint32_t i = 0; i < plan->layer_count; ++i)
        plan->layers[i] = (nbl_layer_run){.begin = cuts[i], .end = cuts[i + 1u]};
}

static uint32_t places_of(const classes_work *w, uint64_t tokens)
{
    return (uint32_t)min_u64(ceil_div(tokens, w->plan->config.shape.page_tokens), w->plan->sequence_pages_max);
}

/* Places where a run may begin or end; there are at most rule_count + 3 of them. */
static uint32_t places_cut(const classes_work *w, uint32_t *cuts)
{
    const nbl_cache_config *c = &w->plan->config;
    uint32_t count = 0;
    cut_add(cuts, &count, 0);
    cut_add(cuts, &count, w->plan->sequence_pages_max);
    cut_add(cuts, &count, places_of(w, c->sink_tokens));
    for (uint32_t i = 0; i < c->rule_count; ++i) {
        if (w->rules[i].scope == NBL_SCOPE_FIRST || w->rules[i].scope == NBL_SCOPE_BEYOND)
            cut_add(cuts, &count, places_of(w, w->rules[i].tokens));
    }
    return count;
}

/* ------------------------------------------------------------------------------------------------ rows */

static bool rule_holds(const classes_work *w, const nbl_policy_rule *r, uint32_t layer, uint32_t place)
{
    if (layer < r->layer_begin || (r->layer_end != 0 && layer >= r->layer_end))
        return false;
    if (r->scope == NBL_SCOPE_FIRST)
        return place < places_of(w, r->tokens);
    return r->scope != NBL_SCOPE_BEYOND || place >= places_of(w, r->tokens);
}

/* Lets all rules of a scope speak about a layer at a place. */
static void rules_apply(const classes_work *w, uint32_t scope, uint32_t layer, uint32_t place, pair *p)
{
    for (uint32_t i = 0; i < w->plan->config.rule_count; ++i) {
        const nbl_policy_rule *r = &w->rules[i];
        if (r->scope != scope || !rule_holds(w, r, layer, place))
            continue;
        p->k = r->k_format != 0 ? r->k_format : p->k;
        p->v = r->v_format != 0 ? r->v_format : p->v;
    }
}

static row row_make(const classes_work *w, uint32_t place, bool recent)
{
    const nbl_cache_config *c = &w->plan->config;
    row out;
    memset(&out, 0, sizeof out);
    for (uint32_t i = 0; i < w->plan->layer_count; ++i) {
        const uint32_t layer = w->plan->layers[i].begin;
        pair p = {c->k_format, c->v_format};
        rules_apply(w, NBL_SCOPE_ALL, layer, place, &p);
        rules_apply(w, NBL_SCOPE_BEYOND, layer, place, &p);
        if (place < places_of(w, c->sink_tokens))
            p = (pair){NBL_INT8, NBL_INT8};
        rules_apply(w, NBL_SCOPE_FIRST, layer, place, &p);
        if (recent)
            rules_apply(w, NBL_SCOPE_RECENT, layer, place, &p);
        out.pairs[i] = p;
    }
    return out;
}

/* The class of a row, added if it is new; NBL_NONE if there are too many. */
static uint32_t class_of_row(classes_work *w, const row *r)
{
    nbl_plan *plan = w->plan;
    for (uint32_t c = 0; c < plan->class_count; ++c) {
        if (memcmp(&w->rows[c], r, sizeof *r) == 0)
            return c;
    }
    if (plan->class_count == NBL_CLASSES_MAX)
        return NBL_NONE;
    w->rows[plan->class_count] = *r;
    return plan->class_count++;
}

/* Pages of the recent window: its own, one partly filled at each end, and what one step brings. */
static uint64_t recent_pages(const classes_work *w)
{
    const nbl_cache_config *c = &w->plan->config;
    const uint64_t page_tokens = c->shape.page_tokens;
    return c->sequences_max * (ceil_div(w->plan->recent_tokens, page_tokens) + 2u) +
           ceil_div(c->append_tokens_max, page_tokens);
}

static nbl_status places_add(classes_work *w, uint32_t begin, uint32_t end, nbl_error *err)
{
    nbl_plan *plan = w->plan;
    const row cold = row_make(w, begin, false), hot = row_make(w, begin, true);
    const uint32_t final_class = class_of_row(w, &cold), class_index = class_of_row(w, &hot);
    nbl_place_run *last = plan->place_count > 0 ? &plan->places[plan->place_count - 1u] : NULL;
    if (final_class == NBL_NONE || class_index == NBL_NONE || plan->place_count == NBL_PLACE_RUNS_MAX)
        return NBL_REFUSE(err, NBL_E_INVALID, "rules need more than %u kinds of pages", NBL_CLASSES_MAX);
    if (last != NULL && last->class_index == class_index && last->final_class == final_class)
        last->end = end;
    else
        plan->places[plan->place_count++] = (nbl_place_run){end, class_index, final_class};
    return NBL_OK;
}

/* The recent window is one, whatever runs of places it lies in. */
static void pages_count(classes_work *w)
{
    const nbl_plan *plan = w->plan;
    uint64_t hot[NBL_CLASSES_MAX] = {0};
    uint32_t begin = 0;
    for (uint32_t i = 0; i < plan->place_count; begin = plan->places[i++].end) {
        const nbl_place_run *run = &plan->places[i];
        const uint64_t pages = pages_needed(&plan->config, begin, run->end - begin);
        w->pages[run->final_class] += pages;
        hot[run->class_index] += run->class_index != run->final_class ? pages : 0;
    }
    for (uint32_t c = 0; c < plan->class_count; ++c)
        w->pages[c] += min_u64(hot[c], recent_pages(w));
}

/* ------------------------------------------------------------------------------------------------ groups */

static uint32_t block_of(const classes_work *w, uint32_t layer, bool k)
{
    const nbl_kv_shape *shape = &w->plan->config.shape;
    uint32_t block = k ? shape->k_hadamard : shape->v_hadamard;
    for (uint32_t i = 0; i < w->plan->config.rule_count; ++i) {
        const nbl_policy_rule *r = &w->rules[i];
        const uint32_t given = k ? r->k_hadamard : r->v_hadamard;
        if (given != 0 && rule_holds(w, r, layer, 0))
            block = given == 1 ? 0 : given;
    }
    return block;
}

static bool runs_alike(const classes_work *w, uint32_t a, uint32_t b)
{
    const nbl_layer_run *runs = w->plan->layers;
    for (uint32_t c = 0; c < w->plan->class_count; ++c) {
        if (memcmp(&w->rows[c].pairs[a], &w->rows[c].pairs[b], sizeof(pair)) != 0)
            return false;
    }
    return block_of(w, runs[a].begin, true) == block_of(w, runs[b].begin, true) &&
           block_of(w, runs[a].begin, false) == block_of(w, runs[b].begin, false);
}

static nbl_status groups_make(classes_work *w, nbl_error *err)
{
    nbl_plan *plan = w->plan;
    uint32_t leader[NBL_LAYER_GROUPS_MAX];
    for (uint32_t i = 0; i < plan->layer_count; ++i) {
        nbl_layer_run *run = &plan->layers[i];
        uint32_t g = 0;
        while (g < plan->group_count && !runs_alike(w, leader[g], i))
            ++g;
        if (g == NBL_LAYER_GROUPS_MAX)
            return NBL_REFUSE(err, NBL_E_INVALID, "rules need more than %u kinds of layers", NBL_LAYER_GROUPS_MAX);
        nbl_kv_shape *shape = &plan->groups[g].shape;
        if (g == plan->group_count) {
            leader[plan->group_count++] = i;
            *shape = plan->config.shape;
            shape->layers = 0;
            shape->k_hadamard = block_of(w, run->begin, true);
            shape->v_hadamard = block_of(w, run->begin, false);
        }
        run->group = g;
        run->first = shape->layers;
        shape->layers += run->end - run->begin;
    }
    return NBL_OK;
}

/* ------------------------------------------------------------------------------------------------ classes */

static uint32_t leader_of(const nbl_plan *plan, uint32_t group)
{
    uint32_t i = 0;
    while (plan->layers[i].group != group)
        ++i;
    return i;
}

/* Lays out a class in every group and adds its bytes to the plan's. A page lies in one piece, layer after layer, so
 * that moving it takes one copy of codes and one of scales per group. */
static nbl_status class_lay(classes_work *w, uint32_t c, nbl_error *err)
{
    nbl_plan *plan = w->plan;
    const uint64_t pages = w->pages[c] > 0 ? w->pages[c] : 1u;
    plan->classes[c] = (nbl_class){.first_page = plan->pages, .page_count = (uint32_t)pages};
    for (uint32_t g = 0; g < plan->group_count; ++g) {
        nbl_layer_group *group = &plan->groups[g];
        const pair p = w->rows[c].pairs[leader_of(plan, g)];
        const nbl_page_layout layout = nbl_layout_page(&group->shape, p.k, p.v);
        const uint64_t code_bytes = layout.code_page_bytes * group->shape.layers;
        const uint64_t scale_bytes = layout.scale_page_bytes * group->shape.layers;
        const nbl_axis axis = {pages + plan->pages, code_bytes + scale_bytes};
        uint64_t span;
        /* One more page than there is, of this class's size, for all classes: keeps every sum below far from 2^64. */
        if (pages + plan->pages > PAGES_MAX || !nbl_axes_span(&axis, 1, code_bytes + scale_bytes, &span))
            return NBL_REFUSE(err, NBL_E_INVALID,
                              "tokens_max is %" PRIu64 " with %u layers (needed: fewer than 2^31 pages "
                              "and 2^62 bytes)",
                              plan->config.tokens_max, plan->config.shape.layers);
        plan->classes[c].page_bytes += code_bytes + scale_bytes;
        group->regions[c] = (nbl_region){.k_format = p.k,
                                         .v_format = p.v,
                                         .first_page = plan->pages,
                                         .page_count = (uint32_t)pages,
                                         .code_page_stride = code_bytes,
                                         .code_layer_stride = layout.code_page_bytes,
                                         .scale_page_stride = scale_bytes,
                                         .scale_layer_stride = layout.scale_page_bytes};
        group->code_bytes += code_bytes * pages;
        group->scale_bytes += scale_bytes * pages;
        plan->code_bytes += code_bytes * pages;
        plan->scale_bytes += scale_bytes * pages;
    }
    plan->pages += (uint32_t)pages;
    return NBL_OK;
}

nbl_status nbl_plan_classes(nbl_plan *plan, nbl_error *err)
{
    classes_work w = {.plan = plan, .rules = plan->config.rules};
    uint32_t cuts[NBL_RULES_MAX + 3u];
    const uint64_t tokens = plan->config.sequence_tokens_max, page_tokens = plan->config.shape.page_tokens;
    plan->sequence_pages_max = (uint32_t)ceil_div(tokens, page_tokens);
    NBL_TRY(rules_check(&w, err));
    layers_cut(&w);
    const uint32_t count = places_cut(&w, cuts);
    for (uint32_t i = 0; i + 1u < count; ++i)
        NBL_TRY(places_add(&w, cuts[i], cuts[i + 1u], err));
    pages_count(&w);
    NBL_TRY(groups_make(&w, err));
    for (uint32_t c = 0; c < plan->class_count; ++c)
        NBL_TRY(class_lay(&w, c, err));
    plan->places[plan->place_count - 1u].end = UINT32_MAX;
    const uint64_t guards = nbl_plan_guard(plan) * (plan->group_count * plan->class_count + 1u);
    plan->code_bytes += guards;
    plan->scale_bytes += guards;
    return NBL_OK;
}
