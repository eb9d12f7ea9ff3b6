/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cache.h
 * @brief The managed cache: what its files share.
 *
 * A cache owns pages of one or more classes. A class is a pair of formats per layer; a page of a class holds
 * page_tokens tokens of all layers. Sequences hold pages by reference: forks share them, and a page that others can see
 * is copied before it is written. Each sequence keeps one length per layer. All device memory is allocated at creation;
 * its sizes follow from the configuration alone (nbl_plan_make), so a plan and a live cache agree to the byte. Nothing
 * grows afterwards: an append brings at most as many tokens as there are slots, and a call that needs more workspace or
 * page table than there is gets cut between sequences.
 *
 * Ordering: a cache never waits for a stream. Pages and metadata are reused as soon as a call returns, so the calls on
 * one cache must be ordered among themselves on the device (one stream, or events between streams), and a copy from
 * ordinary host memory to the device must have taken the bytes when memory_copy returns, as CUDA's does.
 */
#ifndef NBL_CACHE_H
#define NBL_CACHE_H

#include "../num/layout.h"
#include "../validate.h"
#include "hash.h"

#include <pthread.h>

#define NBL_SEQUENCES_MAX 65536u /**< a sequence's index has 16 bits of its handle */
#define NBL_CLASSES_MAX NBL_REGIONS_MAX
#define NBL_PLACE_RUNS_MAX 8u
#define NBL_LAYER_GROUPS_MAX 8u
#define NBL_LAYER_RUNS_MAX 33u
/* NUM 4.2: fewer tokens give no centre, more are not looked at. */
#define NBL_CENTER_TOKENS_MIN 32u
#define NBL_CENTER_TOKENS_MAX 1024u

/* ------------------------------------------------------------------------------------------------ accounting.c */

/** Byte offsets in the metadata block. */
typedef struct nbl_metadata_layout {
    uint64_t slots;        /**< int64 [slots_max] of append */
    uint64_t append_small; /**< int32 [6S]: rows, seq_indptr of an append's runs */
    uint64_t attend_small; /**< int32 [4S]: kv_len, rows, q_indptr of an attend's groups */
    uint64_t table;        /**< int32 [table_entries] */
    uint64_t lists;        /**< int32 [3, list_entries] of copy_pages and transcode */
    uint64_t stats;        /**< nbl_quant_stats */
    uint64_t head_scales;  /**< float [2, layers, Hk], if there are any */
    uint64_t bytes;
} nbl_metadata_layout;

/** Pages of one class: ids first_page .. first_page + page_count - 1, the same ids in every layer group. */
typedef struct nbl_class {
    uint32_t first_page;
    uint32_t page_count;
    uint64_t page_bytes; /**< codes and scales of one page, all layers */
} nbl_class;

/** Places (page positions in a sequence) that take pages of one class, and have pages of another one later. */
typedef struct nbl_place_run {
    uint32_t end;         /**< first place past the run */
    uint32_t class_index; /**< of a new page */
    uint32_t final_class; /**< of a page that has left the recent window; often the same */
} nbl_place_run;

/** Layers whose formats are the same in every class; they form one pool. */
typedef struct nbl_layer_group {
    nbl_kv_shape shape; /**< of these layers alone */
    nbl_region regions[NBL_CLASSES_MAX];
    uint64_t code_bytes;
    uint64_t scale_bytes;
} nbl_layer_group;

/** Consecutive layers [begin, end); layer begin is layer `first` of group `group`. */
typedef struct nbl_layer_run {
    uint32_t begin, end;
    uint32_t group;
    uint32_t first;
} nbl_layer_run;

/** Everything that follows from a configuration. */
typedef struct nbl_plan {
    nbl_cache_config config; /**< complete: defaults filled in, except workspace_mib */
    nbl_class classes[NBL_CLASSES_MAX];
    nbl_place_run places[NBL_PLACE_RUNS_MAX];
    nbl_layer_group groups[NBL_LAYER_GROUPS_MAX]; /**< no addresses */
    nbl_layer_run layers[NBL_LAYER_RUNS_MAX];
    uint32_t class_count, place_count, group_count, layer_count;
    uint32_t sequence_pages_max;
    uint32_t pages;            /**< of all classes */
    uint32_t recent_tokens;    /**< window after which a page gets its final class; 0: none */
    uint32_t prefix_nodes;     /**< pages that the prefix index can name; 0 without one */
    uint32_t prefix_roots;     /**< different starts of prefixes */
    uint32_t center_rows;      /**< sets of centres (NUM 4.2, 4.5), each of one sequence and its forks */
    uint32_t list_entries;     /**< pages of one backend call of copy_pages or transcode */
    uint64_t slots_max;        /**< tokens that all pages hold, so the most one append can bring */
    uint64_t table_entries;    /**< page table of one backend call */
    uint64_t center_codes;     /**< byte offset of the codes in the centre block */
    uint64_t center_exponents; /**< byte offset of the exponents in the centre block */
    uint64_t center_shifts;    /**< byte offset of the channel shifts in it */
    nbl_metadata_layout metadata;
    uint64_t code_bytes;
    uint64_t scale_bytes;
    uint64_t center_bytes;
    uint64_t workspace_bytes;
    uint64_t tier_bytes[NBL_TIER_FILE]; /**< host memory and file space of the tiers */
} nbl_plan;

/** Checks a configuration and derives sizes from it.
 *
 * Pages, with P = page_tokens and m = ceil(sequence_tokens_max / P):
 *
 *     need(skip, most) = max over 1 <= s <= sequences_max with s * (skip*P + 1) <= tokens_max
 *                        of min(s * most, s * (1 - skip) + (tokens_max - s) / P)
 *
 * is the largest number of pages that s sequences can take beyond their first `skip` pages, at most `most` each, when
 * tokens_max tokens are split among them in the worst way (a sequence wastes at most P - 1 slots). The class of the
 * places begin .. end - 1 gets need(begin, end - begin) pages, at least one.
 */
nbl_status nbl_plan_make(nbl_plan *plan, const nbl_cache_config *config, nbl_error *err);

/** Statistics of an empty cache. */
nbl_cache_stats nbl_plan_stats(const nbl_plan *plan);

/* ------------------------------------------------------------------------------------------------ head_scales.c */

/** Checks the scales of a configuration whose classes are planned, and gives their bytes in the metadata block. */
nbl_status nbl_plan_head_scales(const nbl_plan *plan, uint64_t *out_bytes, nbl_error *err);
/** Puts them into cache->head_scales and into the metadata block. */
nbl_status nbl_head_scales_open(nbl_cache *cache, nbl_error *err);
/** Those of a group's pool, in device memory; NULL: 1. */
const float *nbl_head_scales_of_group(const nbl_cache *cache, uint32_t group, enum nbl_kind kind);
/** Those of a layer, in host memory [Hk]; only where cache->head_scales is there. */
const float *nbl_head_scales_of_layer(const nbl_cache *cache, uint32_t layer, enum nbl_kind kind);

/* ------------------------------------------------------------------------------------------------ classes.c */

/** Derives classes, places, layer groups and pages from a complete configuration. */
nbl_status nbl_plan_classes(nbl_plan *plan, nbl_error *err);

/** Run of places that a place of a sequence lies in. */
static inline const nbl_place_run *nbl_plan_place(const nbl_plan *plan, uint32_t place)
{
    uint32_t i = 0;
    while (place >= plan->places[i].end)
        ++i;
    return &plan->places[i];
}

/** Class of a new page at a place of a sequence. */
static inline uint32_t nbl_plan_class(const nbl_plan *plan, uint32_t place)
{
    return nbl_plan_place(plan, place)->class_index;
}

/** Class that a page belongs to. */
static inline uint32_t nbl_plan_class_of_page(const nbl_plan *plan, int32_t page)
{
    uint32_t c = plan->class_count - 1u;
    while ((uint32_t)page < plan->classes[c].first_page)
        --c;
    return c;
}

/** Run of layers that a layer lies in. */
static inline const nbl_layer_run *nbl_plan_layer(const nbl_plan *plan, uint32_t layer)
{
    uint32_t i = 0;
    while (layer >= plan->layers[i].end)
        ++i;
    return &plan->layers[i];
}

/* ------------------------------------------------------------------------------------------------ pages.c */

#define NBL_PAGE_DROPPED (-1) /**< at places before a sequence's first kept page */
#define NBL_PAGE_NONE (-2)    /**< there is no page */
#define NBL_NONE UINT32_MAX   /**< no node, no page, end of a list */

/** A page and who holds it. Life: free -> held by sequences -> (published and held by none: cached) -> free. */
typedef struct nbl_page {
    uint32_t refs;         /**< sequences that hold it */
    uint32_t node;         /**< of the prefix index, or NBL_NONE: not published */
    uint32_t older, newer; /**< neighbours in the list of cached pages of its class and priority */
    bool poisoned;         /**< with NBL_CACHE_DEBUG: free, and the device has written the poison */
} nbl_page;

/** A list of pages from the least to the most recently used. */
typedef struct nbl_page_queue {
    uint32_t oldest, newest;
} nbl_page_queue;

/** Pages of one class that no sequence holds: a stack of free ones, and lists of cached ones. */
typedef struct nbl_page_stack {
    int32_t *ids;
    uint32_t total;
    uint32_t free;
    uint32_t used;   /**< held by sequences */
    uint32_t queued; /**< in the queues; what is neither free nor used nor queued is pinned */
    nbl_page_queue queues[NBL_PRIORITY_MAX + 1u];
    uint64_t busy[2]; /**< bit p: queue p is not empty */
} nbl_page_stack;

/** All pages of a cache. */
typedef struct nbl_pages {
    nbl_page *pages; /**< by id */
    nbl_page_stack stacks[NBL_CLASSES_MAX];
} nbl_pages;

/** Fills the stacks with all pages, lowest id on top. false if there is no host memory. */
bool nbl_pages_open(nbl_pages *pages, const nbl_plan *plan);
void nbl_pages_close(nbl_pages *pages);

/** Pages of a class that can be taken: free and cached ones. */
uint32_t nbl_pages_available(const nbl_cache *cache, uint32_t class_index);
/** Takes a page of a class, with one reference, evicting a cached one if none is free; the caller has seen that one is
 *  available. */
int32_t nbl_pages_take(nbl_cache *cache, uint32_t class_index);
/** Adds a reference. */
void nbl_pages_share(nbl_cache *cache, int32_t page);
/** Drops a reference; the last one makes the page free, or cached if it is published. */
void nbl_pages_release(nbl_cache *cache, int32_t page);
/** Tells whether a write to a page would be seen by others than the one sequence that asks. */
bool nbl_pages_shared(const nbl_cache *cache, int32_t page);
/** Puts a published page that nobody holds into the queue of its priority, as the most recently used; takes it out. */
void nbl_pages_queue(nbl_cache *cache, int32_t page);
void nbl_pages_unqueue(nbl_cache *cache, int32_t page);
/** Evicts cached pages of a class until none is left. */
void nbl_pages_evict_all(nbl_cache *cache, uint32_t class_index);

/* ------------------------------------------------------------------------------------------------ prefix.c */

/** A node of the prefix index: the tokens of one page after the tokens of its parent. Nodes from prefix_nodes on are
 *  roots. A node lives as long as it has a page, children, holders or pins. */
typedef struct nbl_node {
    nbl_hash key;
    uint32_t parent; /**< NBL_NONE: a root */
    uint32_t next;   /**< in its bucket */
    uint32_t children;
    uint32_t holders; /**< sequences whose last published page this is */
    uint32_t pins;
    uint32_t priority;
    uint32_t place;
    int32_t page;                  /**< in the device, or NBL_PAGE_NONE */
    uint32_t slots[NBL_TIER_FILE]; /**< in the host tier and in the file, or NBL_NONE */
} nbl_node;

/** What a root stands for besides the tokens of the centre. */
typedef struct nbl_root {
    uint64_t salt;
    uint32_t basis; /**< tokens that the centre was computed from; 0: no centre */
    uint32_t row;   /**< of the centres; held by the root */
} nbl_root;

/** The prefix index. */
typedef struct nbl_index {
    uint64_t key[2];
    nbl_node *nodes;       /**< [prefix_nodes + prefix_roots] */
    nbl_root *roots;       /**< [prefix_roots] */
    uint32_t *node_tokens; /**< [prefix_nodes, page_tokens] */
    uint32_t *root_tokens; /**< [prefix_roots, center_tokens] */
    uint32_t *buckets;     /**< [bucket_mask + 1] first node or NBL_NONE */
    uint32_t bucket_mask;
    uint32_t *free_nodes, *free_roots; /**< stacks */
    uint32_t nodes_free, roots_free;
    bool clearing; /**< evicted pages go to no tier */
} nbl_index;

bool nbl_index_open(nbl_index *index, const nbl_plan *plan);
void nbl_index_close(nbl_index *index);

/** A page of a node is about to be used for something else: moves its contents to a tier, or forgets them. */
void nbl_index_evict(nbl_cache *cache, uint32_t node);
/** Tells the listener. */
void nbl_index_tell(nbl_cache *cache, uint32_t kind, uint32_t node, uint32_t tier);
/** Tells whether the contents of a node's page are in any tier. */
bool nbl_node_stored(const nbl_node *node);
/** The contents of a node have left their last tier. */
void nbl_index_lose(nbl_cache *cache, uint32_t node, uint32_t tier);

/** A sequence stops standing at a node, NBL_NONE accepted. */
void nbl_index_leave(nbl_cache *cache, uint32_t node);
/** A sequence starts standing at a node, NBL_NONE accepted. */
void nbl_index_enter(nbl_cache *cache, uint32_t node);
/** Moves a sequence that now has fewer tokens back to the last node that they reach. */
void nbl_index_retreat(nbl_cache *cache, uint32_t index);

/* ------------------------------------------------------------------------------------------------ tiers.c */

/** Places for pages of one class in a tier. */
typedef struct nbl_slots {
    uint32_t total;
    uint32_t used;
    uint32_t *free_stack;    /**< [total] */
    uint32_t *nodes;         /**< [total] */
    uint32_t *older, *newer; /**< [total] neighbours by last use */
    uint32_t oldest, newest;
    uint64_t begin; /**< byte of slot 0 in the tier */
} nbl_slots;

/** Host memory and a file for pages that were evicted from the device. */
typedef struct nbl_tiers {
    nbl_slots slots[NBL_TIER_FILE][NBL_CLASSES_MAX];
    uint8_t *memory; /**< of the host tier */
    bool locked;     /**< it is the backend's page-locked memory */
    int file;        /**< or -1 */
    nbl_hash *sums;  /**< of the pages in the file, by slot, class after class */
    uint8_t *page;   /**< one page on its way from the file */
    uint32_t lost;   /**< node whose page did not come back from the file as it went, or NBL_NONE */
} nbl_tiers;

/** Host memory, then file space (nbl_tier) that a class gets, in pages. */
uint32_t nbl_plan_slots(const nbl_plan *plan, uint32_t tier, uint32_t class_index);

nbl_status nbl_tiers_open(nbl_cache *cache, nbl_error *err);
void nbl_tiers_close(nbl_cache *cache);
/** Copies a node's page from the device to the host tier, making room there. false: there is no room, or it failed. */
bool nbl_tiers_put(nbl_cache *cache, uint32_t node);
/** Copies a node's contents from a tier into a page of the device. false: they could not be read. */
bool nbl_tiers_get(nbl_cache *cache, uint32_t node, int32_t page);
/** Forgets the page in the file that nbl_tiers_get could not read. */
void nbl_tiers_forget_lost(nbl_cache *cache);
/** Forgets all pages that are not pinned. */
void nbl_tiers_clear(nbl_cache *cache);
/** Counts the slots again (NBL_E_STATE). */
nbl_status nbl_tiers_verify(nbl_cache *cache, nbl_error *err);
/** Takes a node's slots out of the order of last use, so that they stay, or puts them back as the last used. */
void nbl_tiers_hold(nbl_cache *cache, uint32_t node, bool hold);

/* ------------------------------------------------------------------------------------------------ sequences.c */

/** What a cache keeps of one sequence besides its lengths and pages. */
typedef struct nbl_sequence {
    uint32_t generation; /**< odd while alive */
    uint32_t page_count; /**< places, dropped ones included */
    uint32_t dropped;    /**< tokens below this position are gone */
    uint32_t row;        /**< of the centres */
    uint32_t node;       /**< of the last published page, or NBL_NONE */
    uint32_t published;  /**< pages up to it */
    uint32_t cold;       /**< places before it have pages of their final class */
    bool loose;          /**< tokens that its centre came from were cut off */
    uint64_t mark;       /**< number of the last call that named the sequence */
} nbl_sequence;

/** All sequences of a cache, addressed by index 0..sequences_max-1. A handle is generation, cache tag, index. */
typedef struct nbl_sequences {
    uint32_t count_max;
    uint32_t layers;
    uint32_t pages_max; /**< of one sequence */
    uint32_t tag;
    uint32_t alive;
    nbl_sequence *all;    /**< [S] */
    uint32_t *free_stack; /**< [S] */
    uint32_t *lengths;    /**< [S, layers] tokens */
    int32_t *pages;       /**< [S, pages_max] in position order */
    uint64_t mark;
} nbl_sequences;

bool nbl_sequences_open(nbl_sequences *sequences, const nbl_plan *plan);
void nbl_sequences_close(nbl_sequences *sequences);

/** Gives a fresh, empty sequence (NBL_E_NO_MEMORY if all sequences_max are alive). */
nbl_status nbl_sequences_create(nbl_sequences *sequences, uint64_t *out_handle, nbl_error *err);

/** Ends a sequence whose pages have been given back. */
void nbl_sequences_end(nbl_sequences *sequences, uint32_t index);

/** Finds the index of a handle.
 * @retval NBL_E_NOT_FOUND  no handle of this cache, or the sequence was freed; the text says which
 */
nbl_status nbl_sequences_find(const nbl_sequences *sequences, uint64_t handle, uint32_t *out_index, nbl_error *err);

static inline uint32_t nbl_sequences_index(uint64_t handle)
{
    return (uint32_t)(handle & 0xffffu);
}

static inline uint32_t *nbl_sequences_length(const nbl_sequences *sequences, uint32_t index, uint32_t layer)
{
    return &sequences->lengths[(size_t)index * sequences->layers + layer];
}

static inline int32_t *nbl_sequences_pages(const nbl_sequences *sequences, uint32_t index)
{
    return &sequences->pages[(size_t)index * sequences->pages_max];
}

/** Tokens of a sequence: the length of its longest layer. */
uint32_t nbl_sequences_tokens(const nbl_sequences *sequences, uint32_t index);

/** Tokens that every layer of a sequence has. */
uint32_t nbl_sequences_tokens_whole(const nbl_sequences *sequences, uint32_t index);

/* ------------------------------------------------------------------------------------------------ centers.c */

/** Rows of centres: who holds them. */
typedef struct nbl_rows {
    uint32_t *refs;  /**< [rows] */
    uint32_t *basis; /**< [rows, layers] tokens that the centre was computed from; 0: too few for one (NUM 4.2) */
    uint32_t layers;
    uint32_t *free_stack;
    uint32_t total;
    uint32_t free;
} nbl_rows;

bool nbl_rows_open(nbl_rows *rows, const nbl_plan *plan);
void nbl_rows_close(nbl_rows *rows);
/** Takes a row with one reference. There is always one: nobody holds two. */
uint32_t nbl_rows_take(nbl_rows *rows);
void nbl_rows_share(nbl_rows *rows, uint32_t row);
void nbl_rows_release(nbl_rows *rows, uint32_t row);

/** Centres of a layer; rows is the device array of the call's sequences. */
nbl_centers nbl_cache_centers(const nbl_cache *cache, uint32_t layer, const int32_t *rows);

/** Tokens that the centre of a row and layer was computed from. */
static inline uint32_t *nbl_rows_basis(const nbl_rows *rows, uint32_t row, uint32_t layer)
{
    return &rows->basis[(size_t)row * rows->layers + layer];
}

/** Tokens that a centre is computed from when `tokens` are given; 0: too few for one. */
uint32_t nbl_plan_basis(const nbl_plan *plan, uint32_t tokens);

/** Largest basis over the layers of a sequence that have tokens; *out_equal tells whether all of them are alike. */
uint32_t nbl_cache_basis(const nbl_cache *cache, uint32_t index, bool *out_equal);

/** Gives a sequence a row that nobody else holds, with the centres of the layers that have tokens. */
nbl_status nbl_cache_row_own(nbl_cache *cache, uint32_t index, nbl_stream stream, nbl_error *err);

/* ------------------------------------------------------------------------------------------------ metadata.c */

/** A block of metadata in device memory and the bytes last sent there. */
typedef struct nbl_mirror {
    uint8_t *device;
    uint8_t *next; /**< filled by the caller, then sent */
    uint8_t *sent;
    uint64_t sent_bytes; /**< 0: nothing known */
} nbl_mirror;

/** Metadata of a cache. */
typedef struct nbl_metadata {
    nbl_mirror slots;
    nbl_mirror append_small;
    nbl_mirror attend_small;
    nbl_mirror lists;
    int32_t *table;       /**< [table_entries] host side of the page table */
    uint32_t *table_rows; /**< [S] sequences whose pages the device's table holds */
    uint32_t table_count; /**< 0: nothing known */
    uint32_t table_stride;
    uint64_t table_epoch; /**< page_epoch it was made in */
} nbl_metadata;

bool nbl_metadata_open(nbl_metadata *metadata, const nbl_plan *plan, void *device_block);
void nbl_metadata_close(nbl_metadata *metadata);

/** Sends the first bytes of mirror->next, unless the device has them already. */
nbl_status nbl_mirror_send(const nbl_device *device, nbl_mirror *mirror, uint64_t bytes, nbl_stream stream,
                           nbl_error *err);

/** Sends the page table [count, stride] of the sequences rows, unless the device has it already. Places whose page was
 *  dropped name page 0: attend asks for a page there, no visible token lies in it. */
nbl_status nbl_metadata_send_table(nbl_cache *cache, const uint32_t *rows, uint32_t count, uint32_t stride,
                                   nbl_stream stream, nbl_error *err);

/* ------------------------------------------------------------------------------------------------ transfer.c */

/** Moves a page between the device and page_bytes of host memory: per layer group its codes, then its scales. */
nbl_status nbl_page_move(const nbl_cache *cache, int32_t page, uint8_t *host, uint32_t kind, nbl_stream stream,
                         nbl_error *err);

/** One layer of a page in host memory. */
typedef struct nbl_page_part {
    const nbl_region *region; /**< formats; code_layer_stride and scale_layer_stride are the part's bytes */
    uint8_t *codes;
    uint8_t *scales;
} nbl_page_part;

/** Finds a layer in a page that nbl_page_move has brought. */
nbl_page_part nbl_page_part_of(const nbl_cache *cache, uint32_t class_index, uint32_t layer, uint8_t *host);

/** Bytes of one row of centres of one layer: codes, exponents, shifts, as centring asks for them. */
uint64_t nbl_center_bytes(const nbl_kv_shape *shape);

/** Moves a row of centres of a layer between the device and host memory. */
nbl_status nbl_center_move(const nbl_cache *cache, uint32_t row, uint32_t layer, uint8_t *host, uint32_t kind,
                           nbl_error *err);

/* ------------------------------------------------------------------------------------------------ file.c */

/** Where a snapshot goes to or comes from: memory, or a file. */
typedef struct nbl_medium {
    uint8_t *memory; /**< NULL: a file */
    int fd;
    const char *path;
    uint64_t bytes; /**< that there are */
    uint64_t at;
} nbl_medium;

/** Writes the next bytes (NBL_E_IO). */
nbl_status nbl_medium_write(nbl_medium *medium, const void *data, uint64_t bytes, nbl_error *err);
/** Reads the next bytes (NBL_E_IO); NBL_E_INVALID if there are fewer. */
nbl_status nbl_medium_read(nbl_medium *medium, void *data, uint64_t bytes, nbl_error *err);

/** Opens PATH.partial for one writer (NBL_E_IO). */
nbl_status nbl_file_begin(nbl_medium *medium, const char *path, nbl_error *err);
/** Makes what was written the file PATH, in one step that survives a crash at any point. */
nbl_status nbl_file_commit(nbl_medium *medium, nbl_error *err);
/** Drops what was written. */
void nbl_file_abandon(nbl_medium *medium);
/** Opens a regular file to read. */
nbl_status nbl_file_open(nbl_medium *medium, const char *path, nbl_error *err);
void nbl_file_close(nbl_medium *medium);

/* ------------------------------------------------------------------------------------------------ policy.c */

/** Name of a format as policies have it, "none" for NBL_FORMAT_NONE. */
const char *nbl_format_name(uint32_t format);

/* ------------------------------------------------------------------------------------------------ debug.c */

#define NBL_GUARD_BYTES 256u /**< before every region of codes and of scales, and after the last one, when debugging */

/** Bytes of a guard: 0 unless the cache is for debugging. */
static inline uint64_t nbl_plan_guard(const nbl_plan *plan)
{
    return (plan->config.flags & NBL_CACHE_DEBUG) != 0 ? NBL_GUARD_BYTES : 0;
}

/** Writes all guards and poisons all pages; nothing unless debugging. */
nbl_status nbl_debug_open(nbl_cache *cache, nbl_error *err);
void nbl_debug_close(nbl_cache *cache);
/** Poisons a page that has become free. */
void nbl_debug_free(nbl_cache *cache, int32_t page);
/** Looks whether a guard or a free page was written (NBL_E_STATE). */
nbl_status nbl_debug_verify(nbl_cache *cache, nbl_error *err);

/* ------------------------------------------------------------------------------------------------ lists.c */

/** Pages to copy or transcode; launched when there are enough of them, when the classes change, and by flush. */
typedef struct nbl_page_list {
    nbl_cache *cache;
    nbl_stream stream;
    uint32_t from_class, to_class;
    uint32_t count; /**< in the metadata's lists */
} nbl_page_list;

void nbl_page_list_start(nbl_page_list *list, nbl_cache *cache, nbl_stream stream);
/** Adds a pair of pages: of one class, to be copied; of two, full ones, to be transcoded. */
nbl_status nbl_page_list_add(nbl_page_list *list, int32_t from, int32_t to, nbl_error *err);
/** Launches what has been added. */
nbl_status nbl_page_list_flush(nbl_page_list *list, nbl_error *err);

/* ------------------------------------------------------------------------------------------------ append.c */

/** A page of a sequence that the call at work has replaced or added. */
typedef struct nbl_change {
    uint32_t index;
    uint32_t place;
    int32_t before; /**< the page it had, or NBL_PAGE_NONE */
    int32_t after;
} nbl_change;

/** Tokens of one sequence of an append that share a centre mode: [begin, end) of the call. */
typedef struct nbl_piece {
    uint32_t b;
    uint32_t begin, end;
    uint32_t mode; /**< enum nbl_center_mode */
} nbl_piece;

/** Changes of the call at work, in order, so that a failure can undo them. */
typedef struct nbl_changes {
    nbl_change *items; /**< [pages]: each brings a page */
    uint32_t made;     /**< the first of them are in effect */
    uint32_t count;    /**< the rest, demotions, come into effect when the call has succeeded */
} nbl_changes;

/* ------------------------------------------------------------------------------------------------ cache.c */

/** Things that happened to a cache since its creation; fields of nbl_cache_stats of the same name. */
typedef struct nbl_cache_counters {
    uint64_t forks;
    uint64_t page_copies;
    uint64_t prefix_queries;
    uint64_t prefix_tokens;
    uint64_t prefix_hit_tokens;
    uint64_t pages_stored;
    uint64_t pages_unstored;
    uint64_t pages_evicted;
    uint64_t pages_demoted;
    uint64_t pages_offloaded;
    uint64_t pages_spilled;
    uint64_t pages_restored;
    uint64_t tier_failures;
} nbl_cache_counters;

struct nbl_cache {
    nbl_handle handle;
    nbl_device *device;
    nbl_plan plan;
    nbl_layer_group groups[NBL_LAYER_GROUPS_MAX]; /**< the plan's, with addresses */
    nbl_pool_copy pools[NBL_LAYER_GROUPS_MAX];    /**< of the groups, checked once */
    void *codes;
    void *scales;
    void *centers; /**< codes int8 [layers, rows, Hk, Dk], exponents [layers, rows, Hk], shifts like the codes; what
                      centring asks for */
    uint8_t *metadata_block;
    float *head_scales; /**< host, as in the metadata block, or NULL: all are 1 */
    void *workspace;
    nbl_pages pages;
    nbl_rows rows;
    nbl_index index;
    nbl_tiers tiers;
    nbl_stream stream; /**< of the call at work; evictions copy on it */
    nbl_sequences sequences;
    nbl_metadata metadata;
    nbl_changes changes;
    nbl_cache_counters counters;
    nbl_piece *pieces;   /**< [2S] of the append at work */
    uint32_t *path;      /**< [sequence_pages_max] nodes of the adoption at work */
    uint32_t *batch;     /**< [S] sequence indices of the call at work */
    uint32_t *cuts;      /**< [2S + 1] where the call is cut into backend calls */
    uint64_t page_epoch; /**< grows whenever a sequence's pages change */
    uint8_t *poison;     /**< [largest page] with NBL_CACHE_DEBUG, else NULL */
    uint8_t *look;       /**< as long, for what is read back */
    pthread_mutex_t mutex;
};

/** Copies outside any stream of the caller's: complete when they return, after all earlier work. */
static const nbl_stream nbl_stream_host = {.kind = NBL_STREAM_HOST};

/** nbl_handle_check for a cache. */
nbl_status nbl_cache_check(const nbl_cache *cache, nbl_error *err);

/** Looks up the handles of a call into cache->batch; with distinct, refuses one named twice (NBL_E_INVALID). */
nbl_status nbl_cache_batch_find(nbl_cache *cache, const uint64_t *handles, uint32_t count, bool distinct,
                                nbl_error *err);

/** Checks a host-side indptr: 0 first, never falling, total last (NBL_E_RANGE). */
nbl_status nbl_cache_indptr_check(const char *name, const int32_t *indptr, uint32_t count, uint64_t total,
                                  nbl_error *err);

/** Refuses a call in which one sequence, number b of it, needs more workspace than there is (NBL_E_NO_MEMORY). */
nbl_status nbl_cache_workspace_refuse(const nbl_cache *cache, uint32_t b, const char *what, uint64_t count,
                                      uint64_t bytes, nbl_error *err);

/** Gives back the pages of a sequence from place keep on. */
void nbl_cache_pages_drop(nbl_cache *cache, uint32_t index, uint32_t keep);

/** Pool that holds a layer. */
static inline const nbl_pool_copy *nbl_cache_pool(const nbl_cache *cache, uint32_t layer)
{
    return &cache->pools[nbl_plan_layer(&cache->plan, layer)->group];
}

/** Number of a layer in its pool. */
static inline uint32_t nbl_cache_pool_layer(const nbl_cache *cache, uint32_t layer)
{
    const nbl_layer_run *run = nbl_plan_layer(&cache->plan, layer);
    return run->first + (layer - run->begin);
}

/** View of rows [begin, end) of a checked tensor (axis 0); absent stays absent. */
nbl_tensor nbl_cache_rows(const nbl_tensor *tensor, uint64_t begin, uint64_t end);

/** Pages that hold tokens: ceil(tokens / page_tokens). */
static inline uint32_t nbl_cache_pages_of(const nbl_cache *cache, uint64_t tokens)
{
    const uint32_t page_tokens = cache->plan.config.shape.page_tokens;
    return (uint32_t)((tokens + page_tokens - 1u) / page_tokens);
}

#endif
