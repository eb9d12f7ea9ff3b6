/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tiers.c
 * @brief Where published pages go when their page of the device is needed: host memory, then a file.
 *
 * Published pages never change, so a copy stays good: a page that was brought back keeps its slot, and costs no copy
 * when it is evicted again. Copies between the device and host memory are put on the stream of the call that causes
 * them, so they run after the kernels that wrote the page and before those that reuse it. With a file tier they wait
 * for the device, because the host reads what they bring.
 *
 * The file has no name (O_TMPFILE, or unlinked at once): whenever the process ends, nothing stays behind. Each page in
 * it has a checksum in memory; one that does not come back as it went is lost, never wrong.
 */
#include "cache.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const uint64_t sum_key[2] = {0, 0};

static nbl_slots *slots_of(nbl_cache *cache, uint32_t tier, uint32_t class_index)
{
    return &cache->tiers.slots[tier - NBL_TIER_HOST][class_index];
}

static uint32_t *slot_of(nbl_node *node, uint32_t tier)
{
    return &node->slots[tier - NBL_TIER_HOST];
}

/* Published pages have the final class of their place. */
static uint32_t class_of_node(const nbl_cache *cache, uint32_t node)
{
    return nbl_plan_place(&cache->plan, cache->index.nodes[node].place)->final_class;
}

static uint64_t page_bytes(const nbl_cache *cache, uint32_t class_index)
{
    return cache->plan.classes[class_index].page_bytes;
}

/* Byte of a slot in its tier. */
static uint64_t slot_begin(nbl_cache *cache, uint32_t tier, uint32_t class_index, uint32_t slot)
{
    return slots_of(cache, tier, class_index)->begin + slot * page_bytes(cache, class_index);
}

uint32_t nbl_plan_slots(const nbl_plan *plan, uint32_t tier, uint32_t class_index)
{
    const nbl_class *c = &plan->classes[class_index];
    const double budget = (double)(tier == NBL_TIER_HOST ? plan->config.host_bytes : plan->config.file_bytes);
    double all = 0;
    for (uint32_t i = 0; i < plan->class_count; ++i)
        all += (double)plan->classes[i].page_bytes * plan->classes[i].page_count;
    const double slots = budget * c->page_count / all;
    return slots < (double)INT32_MAX ? (uint32_t)slots : (uint32_t)INT32_MAX;
}

/* ------------------------------------------------------------------------------------------------ open, close */

static bool slots_open(nbl_slots *slots, uint32_t total, uint64_t begin)
{
    *slots = (nbl_slots){.total = total, .oldest = NBL_NONE, .newest = NBL_NONE, .begin = begin};
    if (total == 0)
        return true;
    slots->free_stack = malloc(total * sizeof *slots->free_stack);
    slots->nodes = malloc(total * sizeof *slots->nodes);
    slots->older = malloc(total * sizeof *slots->older);
    slots->newer = malloc(total * sizeof *slots->newer);
    if (!slots->free_stack || !slots->nodes || !slots->older || !slots->newer)
        return false;
    for (uint32_t i = 0; i < total; ++i)
        slots->free_stack[i] = total - 1u - i;
    return true;
}

static nbl_status file_open(nbl_cache *cache, nbl_error *err)
{
    const char *folder = cache->plan.config.file_folder;
    char name[PATH_MAX];
    int *file = &cache->tiers.file;
    *file = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (*file >= 0)
        return NBL_OK;
    /* A file system without O_TMPFILE: an empty file has a name for a moment. */
    if (snprintf(name, sizeof name, "%s/nibble-tier-XXXXXX", folder) < (int)sizeof name)
        *file = mkostemp(name, O_CLOEXEC);
    if (*file >= 0 && unlink(name) == 0)
        return NBL_OK;
    return nbl_fail(err, NBL_E_IO, NBL_ORIGIN_OS, errno, "%s: cannot create the file tier: %s", folder,
                    strerror(errno));
}

/* The backend's page-locked memory, or ordinary memory if it has none. */
static bool host_open(nbl_cache *cache)
{
    nbl_tiers *t = &cache->tiers;
    void *memory = NULL;
    const uint64_t bytes = cache->plan.tier_bytes[0];
    if (bytes == 0)
        return true;
    const nbl_status status = cache->device->backend->host_alloc(cache->device->inner, bytes, &memory, NULL);
    t->locked = status == NBL_OK;
    t->memory = status == NBL_E_UNSUPPORTED ? malloc(bytes) : memory;
    return t->memory != NULL;
}

static bool memory_open(nbl_cache *cache)
{
    nbl_tiers *t = &cache->tiers;
    uint64_t page_most = 1, file_slots = 0;
    bool ok = true;
    for (uint32_t tier = NBL_TIER_HOST; tier <= NBL_TIER_FILE; ++tier) {
        uint64_t begin = 0;
        for (uint32_t c = 0; c < cache->plan.class_count; ++c) {
            const uint32_t total = nbl_plan_slots(&cache->plan, tier, c);
            ok = slots_open(slots_of(cache, tier, c), total, begin) && ok;
            begin += total * page_bytes(cache, c);
            file_slots += tier == NBL_TIER_FILE ? total : 0;
            page_most = page_bytes(cache, c) > page_most ? page_bytes(cache, c) : page_most;
        }
    }
    ok = host_open(cache) && ok;
    t->sums = malloc((file_slots + 1u) * sizeof *t->sums);
    t->page = malloc(page_most);
    return ok && t->sums != NULL && t->page != NULL;
}

nbl_status nbl_tiers_open(nbl_cache *cache, nbl_error *err)
{
    if (cache->plan.config.host_bytes == 0)
        return NBL_OK;
    if (!memory_open(cache))
        return NBL_REFUSE(err, NBL_E_NO_MEMORY, "no host memory for a tier of %" PRIu64 " bytes (host_bytes)",
                          cache->plan.config.host_bytes);
    return cache->plan.config.file_bytes > 0 ? file_open(cache, err) : NBL_OK;
}

void nbl_tiers_close(nbl_cache *cache)
{
    nbl_tiers *t = &cache->tiers;
    for (uint32_t i = 0; i < NBL_TIER_FILE; ++i) {
        for (uint32_t c = 0; c < NBL_CLASSES_MAX; ++c) {
            free(t->slots[i][c].free_stack);
            free(t->slots[i][c].nodes);
            free(t->slots[i][c].older);
            free(t->slots[i][c].newer);
        }
    }
    if (t->locked)
        cache->device->backend->host_free(cache->device->inner, t->memory);
    else
        free(t->memory);
    free(t->sums);
    free(t->page);
    if (t->file >= 0)
        close(t->file);
}

/* ------------------------------------------------------------------------------------------------ slots */

static void slot_queue(nbl_slots *s, uint32_t slot)
{
    s->older[slot] = s->newest;
    s->newer[slot] = NBL_NONE;
    *(s->newest != NBL_NONE ? &s->newer[s->newest] : &s->oldest) = slot;
    s->newest = slot;
}

static void slot_unqueue(nbl_slots *s, uint32_t slot)
{
    const uint32_t older = s->older[slot], newer = s->newer[slot];
    *(older != NBL_NONE ? &s->newer[older] : &s->oldest) = newer;
    *(newer != NBL_NONE ? &s->older[newer] : &s->newest) = older;
}

static void slot_free(nbl_cache *cache, uint32_t tier, uint32_t class_index, uint32_t slot)
{
    nbl_slots *s = slots_of(cache, tier, class_index);
    slot_unqueue(s, slot);
    *slot_of(&cache->index.nodes[s->nodes[slot]], tier) = NBL_NONE;
    s->used--;
    s->free_stack[s->total - 1u - s->used] = slot;
}

/* The slot that was used longest ago and is not pinned, NBL_NONE if there is none. */
static uint32_t slot_oldest(const nbl_cache *cache, const nbl_slots *s)
{
    uint32_t slot = s->total > 0 ? s->oldest : NBL_NONE;
    while (slot != NBL_NONE && cache->index.nodes[s->nodes[slot]].pins > 0)
        slot = s->newer[slot];
    return slot;
}

static uint32_t slot_take(nbl_slots *s, uint32_t node)
{
    const uint32_t slot = s->free_stack[s->total - 1u - s->used];
    s->used++;
    s->nodes[slot] = node;
    slot_queue(s, slot);
    return slot;
}

/* ------------------------------------------------------------------------------------------------ the file */

static nbl_hash *sum_of(nbl_cache *cache, uint32_t class_index, uint32_t slot)
{
    uint64_t index = slot;
    for (uint32_t c = 0; c < class_index; ++c)
        index += slots_of(cache, NBL_TIER_FILE, c)->total;
    return &cache->tiers.sums[index];
}

static bool file_write(int file, const uint8_t *data, uint64_t bytes, uint64_t at)
{
    while (bytes > 0) {
        const ssize_t written = pwrite(file, data, bytes, (off_t)at);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return false;
        data += written;
        at += (uint64_t)written;
        bytes -= (uint64_t)written;
    }
    return true;
}

static bool file_read(int file, uint8_t *data, uint64_t bytes, uint64_t at)
{
    while (bytes > 0) {
        const ssize_t got = pread(file, data, bytes, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        data += got;
        at += (uint64_t)got;
        bytes -= (uint64_t)got;
    }
    return true;
}

/* A page leaves its last tier. */
static void slot_lose(nbl_cache *cache, uint32_t tier, uint32_t class_index, uint32_t slot)
{
    const uint32_t node = slots_of(cache, tier, class_index)->nodes[slot];
    slot_free(cache, tier, class_index, slot);
    nbl_index_lose(cache, node, tier);
}

/* Copies a page from the host tier into the file, if there is one and it is not there already. */
static void spill(nbl_cache *cache, uint32_t class_index, uint32_t host_slot)
{
    const uint32_t node = slots_of(cache, NBL_TIER_HOST, class_index)->nodes[host_slot];
    nbl_slots *s = slots_of(cache, NBL_TIER_FILE, class_index);
    const uint8_t *data = cache->tiers.memory + slot_begin(cache, NBL_TIER_HOST, class_index, host_slot);
    if (cache->tiers.file < 0 || s->total == 0 || *slot_of(&cache->index.nodes[node], NBL_TIER_FILE) != NBL_NONE)
        return;
    if (s->used == s->total) {
        const uint32_t oldest = slot_oldest(cache, s);
        if (oldest == NBL_NONE)
            return;
        slot_lose(cache, NBL_TIER_FILE, class_index, oldest);
    }
    const uint32_t slot = slot_take(s, node);
    *slot_of(&cache->index.nodes[node], NBL_TIER_FILE) = slot;
    *sum_of(cache, class_index, slot) = nbl_hash_of(sum_key, data, page_bytes(cache, class_index));
    if (!file_write(cache->tiers.file, data, page_bytes(cache, class_index),
                    slot_begin(cache, NBL_TIER_FILE, class_index, slot))) {
        slot_free(cache, NBL_TIER_FILE, class_index, slot);
        cache->counters.tier_failures++;
        return;
    }
    cache->counters.pages_spilled++;
    nbl_index_tell(cache, NBL_EVENT_OFFLOADED, node, NBL_TIER_FILE);
}

/* ------------------------------------------------------------------------------------------------ put, get */

/* Makes sure that a slot of the host tier is free. */
static bool room_make(nbl_cache *cache, uint32_t class_index)
{
    nbl_slots *s = slots_of(cache, NBL_TIER_HOST, class_index);
    if (s->used < s->total)
        return true;
    const uint32_t oldest = slot_oldest(cache, s);
    if (oldest == NBL_NONE)
        return false;
    spill(cache, class_index, oldest);
    slot_lose(cache, NBL_TIER_HOST, class_index, oldest);
    return true;
}

bool nbl_tiers_put(nbl_cache *cache, uint32_t node)
{
    nbl_node *n = &cache->index.nodes[node];
    const uint32_t class_index = class_of_node(cache, node);
    nbl_slots *s = slots_of(cache, NBL_TIER_HOST, class_index);
    if (*slot_of(n, NBL_TIER_HOST) != NBL_NONE || *slot_of(n, NBL_TIER_FILE) != NBL_NONE)
        return true; /* published pages do not change: the copy is good */
    if (s->total == 0 || !room_make(cache, class_index))
        return false;
    const uint32_t slot = slot_take(s, node);
    const nbl_stream stream = cache->tiers.file < 0 ? cache->stream : nbl_stream_host;
    *slot_of(n, NBL_TIER_HOST) = slot;
    if (nbl_page_move(cache, n->page, cache->tiers.memory + slot_begin(cache, NBL_TIER_HOST, class_index, slot),
                      NBL_COPY_TO_HOST, stream, NULL) != NBL_OK) {
        slot_free(cache, NBL_TIER_HOST, class_index, slot);
        cache->counters.tier_failures++;
        return false;
    }
    cache->counters.pages_offloaded++;
    nbl_index_tell(cache, NBL_EVENT_OFFLOADED, node, NBL_TIER_HOST);
    return true;
}

static bool from_file(nbl_cache *cache, uint32_t class_index, uint32_t slot, int32_t page)
{
    const uint64_t bytes = page_bytes(cache, class_index);
    if (!file_read(cache->tiers.file, cache->tiers.page, bytes, slot_begin(cache, NBL_TIER_FILE, class_index, slot)))
        return false;
    const nbl_hash found = nbl_hash_of(sum_key, cache->tiers.page, bytes);
    return nbl_hash_equal(&found, sum_of(cache, class_index, slot)) &&
           nbl_page_move(cache, page, cache->tiers.page, NBL_COPY_TO_DEVICE, nbl_stream_host, NULL) == NBL_OK;
}

bool nbl_tiers_get(nbl_cache *cache, uint32_t node, int32_t page)
{
    nbl_node *n = &cache->index.nodes[node];
    const uint32_t class_index = class_of_node(cache, node);
    const uint32_t tier = *slot_of(n, NBL_TIER_HOST) != NBL_NONE ? NBL_TIER_HOST : NBL_TIER_FILE;
    const uint32_t slot = *slot_of(n, tier);
    const bool good = tier == NBL_TIER_FILE
                          ? from_file(cache, class_index, slot, page)
                          : nbl_page_move(cache, page, cache->tiers.memory + slot_begin(cache, tier, class_index, slot),
                                          NBL_COPY_TO_DEVICE, cache->stream, NULL) == NBL_OK;
    if (!good) {
        cache->counters.tier_failures++;
        cache->tiers.lost = tier == NBL_TIER_FILE ? node : NBL_NONE;
        return false;
    }
    cache->counters.pages_restored++;
    nbl_index_tell(cache, NBL_EVENT_RESTORED, node, tier);
    return true;
}

void nbl_tiers_forget_lost(nbl_cache *cache)
{
    const uint32_t node = cache->tiers.lost;
    cache->tiers.lost = NBL_NONE;
    if (node != NBL_NONE)
        slot_lose(cache, NBL_TIER_FILE, class_of_node(cache, node), *slot_of(&cache->index.nodes[node], NBL_TIER_FILE));
}

void nbl_tiers_clear(nbl_cache *cache)
{
    for (uint32_t tier = NBL_TIER_HOST; tier <= NBL_TIER_FILE; ++tier) {
        for (uint32_t c = 0; c < cache->plan.class_count; ++c) {
            const nbl_slots *s = slots_of(cache, tier, c);
            for (uint32_t slot = slot_oldest(cache, s); slot != NBL_NONE; slot = slot_oldest(cache, s))
                slot_lose(cache, tier, c, slot);
        }
    }
}

nbl_status nbl_tiers_verify(nbl_cache *cache, nbl_error *err)
{
    for (uint32_t tier = NBL_TIER_HOST; tier <= NBL_TIER_FILE; ++tier) {
        for (uint32_t c = 0; c < cache->plan.class_count; ++c) {
            const nbl_slots *s = slots_of(cache, tier, c);
            uint32_t count = 0;
            for (uint32_t slot = s->total > 0 ? s->oldest : NBL_NONE; slot != NBL_NONE;
                 slot = s->newer[slot], ++count) {
                if (count >= s->total || *slot_of(&cache->index.nodes[s->nodes[slot]], tier) != slot)
                    return NBL_REFUSE(err, NBL_E_STATE, "cache is inconsistent: slot %u of tier %u has node %u", slot,
                                      tier, s->nodes[slot]);
            }
            if (count != s->used)
                return NBL_REFUSE(err, NBL_E_STATE, "cache is inconsistent: tier %u counts %u pages and has %u", tier,
                                  s->used, count);
        }
    }
    return NBL_OK;
}

void nbl_tiers_hold(nbl_cache *cache, uint32_t node, bool hold)
{
    for (uint32_t tier = NBL_TIER_HOST; tier <= NBL_TIER_FILE; ++tier) {
        const uint32_t slot = *slot_of(&cache->index.nodes[node], tier);
        if (slot == NBL_NONE)
            continue;
        if (hold)
            slot_unqueue(slots_of(cache, tier, class_of_node(cache, node)), slot);
        else
            slot_queue(slots_of(cache, tier, class_of_node(cache, node)), slot);
    }
}
