/* SPDX-License-Identifier: Apache-2.0 */
/* cache_verify finds damage: the tests that call it after everything else would otherwise rest on nothing. The library
 * is linked into this program, so that its insides can be spoilt. */
#include "fixture.h"

#include "cache/cache.h"

#include <string.h>

/* A cache with a sequence, its fork, a published and a cached prefix, and pages in the host tier. */
static fixture world_open(void)
{
    nbl_cache_config config = fixture_config();
    nbl_error err = NBL_INIT(nbl_error);
    nbl_prefix p = NBL_INIT(nbl_prefix);
    uint32_t tokens[24];
    uint64_t fork = 0;
    config.flags = NBL_CACHE_PREFIX;
    config.host_bytes = 100000;
    fixture f = fixture_open(config);
    p.tokens = tokens;
    for (uint32_t life = 0; life < 4; ++life) {
        p.count = life == 3 ? 8 : 24;
        for (uint32_t i = 0; i < 24; ++i)
            tokens[i] = 100 * life + i;
        const uint64_t s = fixture_seq(&f);
        for (uint32_t layer = 0; layer < 2; ++layer)
            fixture_grow(&f, layer, s, (int32_t)p.count);
        EXPECT(f.c.api->prefix_publish(f.cache, s, &p, NULL, &err), NBL_OK);
        if (life < 3)
            EXPECT(f.c.api->seq_free(f.cache, s, &err), NBL_OK);
        else
            EXPECT(f.c.api->seq_fork(f.cache, s, 6, &fork, &err), NBL_OK);
    }
    const nbl_cache_stats stats = fixture_stats(&f);
    cr_assert(stats.host_pages_used > 0 && stats.pages_cached[0] + stats.pages_cached[1] > 0, "nothing is cached");
    EXPECT(f.c.api->cache_verify(f.cache, &err), NBL_OK);
    return f;
}

/* Spoils one number by the statement, expects cache_verify to say so, and puts it right again. */
#define FOUND(number, spoil)                                                                           \
    do {                                                                                               \
        const __typeof__(number) good = (number);                                                      \
        nbl_error err = NBL_INIT(nbl_error);                                                           \
        spoil;                                                                                         \
        EXPECT(f.c.api->cache_verify(f.cache, &err), NBL_E_STATE);                                     \
        cr_assert_not_null(strstr(err.message, "nibble: cache is inconsistent: "), "%s", err.message); \
        (number) = good;                                                                               \
        EXPECT(f.c.api->cache_verify(f.cache, &err), NBL_OK);                                          \
    } while (0)

/* The first node that a sequence stands at. */
static nbl_node *held_node(nbl_cache *cache)
{
    uint32_t i = 0;
    while (cache->sequences.all[i].generation % 2u == 0 || cache->sequences.all[i].node == NBL_NONE)
        ++i;
    return &cache->index.nodes[cache->sequences.all[i].node];
}

Test(cache_verify, damage_is_found)
{
    fixture f = world_open();
    nbl_cache *c = f.cache;
    nbl_sequence *s = c->sequences.all;
    while (s->generation % 2u == 0)
        ++s;
    const uint32_t index = (uint32_t)(s - c->sequences.all);
    int32_t *pages = nbl_sequences_pages(&c->sequences, index);
    FOUND(c->pages.pages[pages[0]].refs, c->pages.pages[pages[0]].refs++);
    FOUND(c->pages.pages[pages[0]].refs, c->pages.pages[pages[0]].refs = 0);
    FOUND(pages[0], pages[0] = pages[1]);
    FOUND(s->page_count, s->page_count++);
    FOUND(s->page_count, s->page_count--);
    FOUND(*nbl_sequences_length(&c->sequences, index, 1), *nbl_sequences_length(&c->sequences, index, 1) += 4);
    FOUND(s->row, s->row++);
    FOUND(c->rows.refs[s->row], c->rows.refs[s->row]--);
    FOUND(c->rows.free, c->rows.free--);
    FOUND(c->sequences.alive, c->sequences.alive++);
    FOUND(c->pages.stacks[0].free, c->pages.stacks[0].free--);
    FOUND(s->row, s->row = UINT32_MAX);
    FOUND(s->node, s->node = UINT32_MAX - 1u);
    FOUND(c->pages.stacks[0].used, c->pages.stacks[0].used++);
    FOUND(c->pages.stacks[1].queued, c->pages.stacks[1].queued++);
    FOUND(c->index.nodes_free, c->index.nodes_free--);
    FOUND(held_node(c)->holders, held_node(c)->holders++);
    FOUND(held_node(c)->children, held_node(c)->children++);
    FOUND(held_node(c)->page, held_node(c)->page = NBL_PAGE_NONE);
    FOUND(c->tiers.slots[0][1].used, c->tiers.slots[0][1].used++);
    FOUND(c->tiers.slots[0][1].nodes[c->tiers.slots[0][1].oldest],
          c->tiers.slots[0][1].nodes[c->tiers.slots[0][1].oldest]++);
    fixture_close(&f);
}
