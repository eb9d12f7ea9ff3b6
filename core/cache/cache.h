/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cache.h
 * @brief The managed cache: what its files share.
 *
 * A cache owns the pages of up to two regions (sinks in int8, the rest in the configured pair), hands them to sequences
 * and keeps one length per sequence and layer. All device memory is allocated at creation; its sizes follow from the
 * configuration alone (nbl_plan_make), so a plan and a live cache agree to the byte. Nothing grows afterwards: an
 * append brings at most as many tokens as there are slots, and a call that needs more workspace or page table than
 * there is gets cut between sequences.
 *
 * Ordering: a cache never waits for a stream. Pages and metadata are reused as soon as a call returns, so the calls on
 * one cache must be ordered among themselves on the device (one stream, or events between streams), and a copy from
 * ordinary host memory to the device must have taken the bytes when memory_copy returns, as CUDA's does.
 */
#ifndef NBL_CACHE_H
#define NBL_CACHE_H

#include "../validate.h"

#define NBL_SEQUENCES_MAX 65536u /**< a sequence's index has 16 bits of its handle */
#define NBL_CACHE_REGIONS_MAX 2u

/* ------------------------------------------------------------------------------------------------ accounting.c */

/** Byte offsets in the metadata block. */
typedef struct nbl_metadata_layout {
    uint64_t slots;        /**< int64 [slots_max] of append */
    uint64_t append_small; /**< int32: seq_indptr [2S], rows [S] */
    uint64_t attend_small; /**< int32: q_indptr [2S], kv_len [S], rows [S] */
    uint64_t table;        /**< int32 [table_entries] */
    uint64_t stats;        /**< nbl_quant_stats */
    uint64_t bytes;
} nbl_metadata_layout;

/** Everything that follows from a configuration. */
typedef struct nbl_plan {
    nbl_cache_config config;                    /**< complete: defaults filled in, except workspace_mib */
    nbl_region regions[NBL_CACHE_REGIONS_MAX];  /**< formats, pages, strides; no addresses */
    uint64_t page_bytes[NBL_CACHE_REGIONS_MAX]; /**< codes and scales of one page, all layers */
    uint32_t region_count;
    uint32_t sink_pages; /**< first pages of a sequence, taken from region 0; 0 with one region */
    uint32_t sequence_pages_max;
    uint32_t pages;            /**< of all regions */
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
} nbl_plan;

/** Checks a configuration and derives sizes from it.
 *
 * Pages, with P = page_tokens, m = ceil(sequence_tokens_max / P), k = min(ceil(sink_tokens / P), m):
 *
 *     need(skip, most) = max over 1 <= s <= sequences_max with s * (skip*P + 1) <= tokens_max
 *                        of min(s * most, s * (1 - skip) + (tokens_max - s) / P)
 *
 * is the largest number of pages that s sequences can take beyond their first `skip` pages, at most `most` each, when
 * tokens_max tokens are split among them in the worst way (a sequence wastes at most P - 1 slots). One region has
 * need(0, m) pages; with sinks region 0 has need(0, k) and region 1 need(k, m - k), at least one.
 */
nbl_status nbl_plan_make(nbl_plan *plan, const nbl_cache_config *config, nbl_error *err);

/** Statistics of an empty cache. */
nbl_cache_stats nbl_plan_stats(const nbl_plan *plan);

/* ------------------------------------------------------------------------------------------------ pages.c */

/** Free pages of one region: a stack of ids. */
typedef struct nbl_page_stack {
    int32_t *ids;
    uint32_t total;
    uint32_t free;
} nbl_page_stack;

/** Fills the stack with all pages of a region, lowest id on top. false if there is no host memory. */
bool nbl_pages_open(nbl_page_stack *stack, const nbl_region *region);
void nbl_pages_close(nbl_page_stack *stack);
/** Takes a page; the caller has seen that one is free. */
int32_t nbl_pages_take(nbl_page_stack *stack);
/** Gives a page back. */
void nbl_pages_give(nbl_page_stack *stack, int32_t page);

/* ------------------------------------------------------------------------------------------------ sequences.c */

/** All sequences of a cache, addressed by index 0..sequences_max-1. A handle is generation, cache tag, index. */
typedef struct nbl_sequences {
    uint32_t count_max;
    uint32_t layers;
    uint32_t pages_max; /**< of one sequence */
    uint32_t tag;
    uint32_t alive;
    uint32_t *generations; /**< [S], odd while alive */
    uint32_t *free_stack;  /**< [S] */
    uint32_t *lengths;     /**< [S, layers] tokens */
    uint32_t *page_counts; /**< [S] */
    int32_t *pages;        /**< [S, pages_max] in position order */
    uint64_t *marks;       /**< [S] number of the last call that named the sequence */
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

/** Sends the page table [count, stride] of the sequences rows, unless the device has it already. */
nbl_status nbl_metadata_send_table(nbl_cache *cache, const uint32_t *rows, uint32_t count, uint32_t stride,
                                   nbl_stream stream, nbl_error *err);

/* ------------------------------------------------------------------------------------------------ cache.c */

struct nbl_cache {
    nbl_handle handle;
    nbl_device *device;
    nbl_plan plan;
    nbl_region regions[NBL_CACHE_REGIONS_MAX]; /**< the plan's, with addresses */
    nbl_pool pool;
    void *codes;
    void *scales;
    void *centers; /**< codes int8 [layers, S, Hk, Dk], exponents [layers, S, Hk], shifts like the codes; what centering
                      asks for */
    uint8_t *metadata_block;
    void *workspace;
    nbl_page_stack pages[NBL_CACHE_REGIONS_MAX];
    nbl_sequences sequences;
    nbl_metadata metadata;
    uint32_t *batch;     /**< [S] sequence indices of the call at work */
    uint32_t *cuts;      /**< [S + 1] where the call is cut into backend calls */
    uint64_t page_epoch; /**< grows whenever a sequence's pages change */
};

/** nbl_handle_check for a cache. */
nbl_status nbl_cache_check(const nbl_cache *cache, nbl_error *err);

/** Looks up the handles of a call into cache->batch; with distinct, refuses one named twice (NBL_E_INVALID). */
nbl_status nbl_cache_batch_find(nbl_cache *cache, const uint64_t *handles, uint32_t count, bool distinct,
                                nbl_error *err);

/** Checks a host-side indptr: 0 first, never falling, total last (NBL_E_RANGE). */
nbl_status nbl_cache_indptr_check(const char *name, const int32_t *indptr, uint32_t count, uint64_t total,
                                  nbl_error *err);

/** Gives back the pages of a sequence from place keep on. */
void nbl_cache_pages_drop(nbl_cache *cache, uint32_t index, uint32_t keep);

/** Centres of a layer; rows is the device array of the call's sequences. */
nbl_centers nbl_cache_centers(const nbl_cache *cache, uint32_t layer, const int32_t *rows);

/** View of rows [begin, end) of a checked tensor (axis 0); absent stays absent. */
nbl_tensor nbl_cache_rows(const nbl_tensor *tensor, uint64_t begin, uint64_t end);

/** Pages that hold tokens: ceil(tokens / page_tokens). */
static inline uint32_t nbl_cache_pages_of(const nbl_cache *cache, uint64_t tokens)
{
    const uint32_t page_tokens = cache->plan.config.shape.page_tokens;
    return (uint32_t)((tokens + page_tokens - 1u) / page_tokens);
}

#endif
