/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file snapshot.c
 * @brief Sequences as bytes: self-describing, checked, the same whatever backend or history they come from.
 *
 * A snapshot is a head and pages (docs/kv-cache.md has the layout). The head says everything that the bytes of the
 * pages depend on and ends with its hash; every page is followed by its own. Bytes that no token uses are zero, so
 * equal sequences are equal snapshots and nothing of other sequences leaks.
 */
#include "cache.h"

#include "../num/layout.h"

#include <stdlib.h>
#include <string.h>

#define MAGIC "NBLSNAP\n"
#define VERSION 1u
#define VERSION_SCALED 2u /* scales of heads follow the centres */

static const uint64_t hash_key[2] = {0, 0};

/** Start of a snapshot. All numbers are little-endian. */
typedef struct head {
    char magic[8];
    uint32_t version;
    uint32_t numerics_version;
    uint32_t layout_version;
    uint32_t layers, kv_heads, k_dim, v_dim, page_tokens;
    uint32_t k_scale_rule, v_scale_rule, centering;
    uint32_t class_count;
    uint32_t first_place; /**< pages before it were dropped */
    uint32_t page_count;  /**< places, those before first_place included */
    uint32_t dropped;     /**< tokens */
    uint32_t loose;
    uint64_t head_bytes; /**< head, layers, classes of the pages, centres; the head's hash follows */
    uint64_t total_bytes;
} head;

/** Then per layer. */
typedef struct layer_record {
    uint32_t k_hadamard, v_hadamard;
    uint32_t length, basis;
    uint32_t formats[NBL_CLASSES_MAX][2]; /**< K and V, by class */
} layer_record;

/** A snapshot at work. */
typedef struct work {
    nbl_cache *cache;
    nbl_medium *medium;
    uint32_t index;                      /**< of the sequence */
    uint8_t *head_memory;                /**< head and all that follows up to its hash */
    uint8_t *page;                       /**< as it lies in the cache */
    uint8_t *part;                       /**< one layer of a page */
    uint32_t class_map[NBL_CLASSES_MAX]; /**< from the snapshot's classes to the cache's */
} work;

static head *head_of(const work *w)
{
    return (head *)(void *)w->head_memory;
}

static layer_record *layers_of(const work *w)
{
    return (layer_record *)(void *)(w->head_memory + sizeof(head));
}

static uint32_t *classes_of(const work *w)
{
    return (uint32_t *)(void *)(layers_of(w) + w->cache->sequences.layers);
}

static uint8_t *centers_of(const work *w)
{
    return (uint8_t *)(classes_of(w) + (head_of(w)->page_count - head_of(w)->first_place));
}

/* Scales of heads of a layer, K's and then V's; not aligned. */
static uint8_t *scales_of(const work *w, uint32_t layer)
{
    const nbl_kv_shape *shape = &w->cache->plan.config.shape;
    return centers_of(w) + shape->layers * nbl_center_bytes(shape) + 2u * sizeof(float) * layer * shape->kv_heads;
}

static uint64_t head_bytes_for(const nbl_cache *cache, uint64_t pages)
{
    const uint64_t layers = cache->sequences.layers;
    const uint64_t scales = cache->head_scales != NULL ? 2u * layers * cache->plan.config.shape.kv_heads : 0;
    return sizeof(head) + layers * sizeof(layer_record) + pages * sizeof(uint32_t) +
           layers * nbl_center_bytes(&cache->plan.config.shape) + scales * sizeof(float);
}

static nbl_status work_open(work *w, nbl_error *err)
{
    uint64_t page_bytes = 0;
    for (uint32_t c = 0; c < w->cache->plan.class_count; ++c)
        page_bytes =
            w->cache->plan.classes[c].page_bytes > page_bytes ? w->cache->plan.classes[c].page_bytes : page_bytes;
    w->head_memory = calloc(head_bytes_for(w->cache, w->cache->plan.sequence_pages_max), 1);
    w->page = malloc(page_bytes);
    w->part = malloc(page_bytes);
    if (w->head_memory == NULL || w->page == NULL || w->part == NULL)
        return NBL_REFUSE(err, NBL_E_NO_MEMORY, "no host memory for a snapshot");
    return NBL_OK;
}

static void work_close(work *w)
{
    free(w->head_memory);
    free(w->page);
    free(w->part);
}

/* ------------------------------------------------------------------------------------------------ describing */

static void layer_describe(const work *w, uint32_t layer)
{
    const nbl_cache *cache = w->cache;
    const nbl_layer_group *group = &cache->groups[nbl_plan_layer(&cache->plan, layer)->group];
    layer_record *l = &layers_of(w)[layer];
    l->k_hadamard = group->shape.k_hadamard;
    l->v_hadamard = group->shape.v_hadamard;
    l->length = *nbl_sequences_length(&cache->sequences, w->index, layer);
    l->basis = l->length > 0 ? *nbl_rows_basis(&cache->rows, cache->sequences.all[w->index].row, layer) : 0;
    for (uint32_t c = 0; c < cache->plan.class_count; ++c) {
        l->formats[c][0] = group->regions[c].k_format;
        l->formats[c][1] = group->regions[c].v_format;
    }
}

static void scales_describe(const work *w, uint32_t layer)
{
    const uint64_t bytes = w->cache->plan.config.shape.kv_heads * sizeof(float);
    if (w->cache->head_scales == NULL)
        return;
    memcpy(scales_of(w, layer), nbl_head_scales_of_layer(w->cache, layer, NBL_KIND_K), bytes);
    memcpy(scales_of(w, layer) + bytes, nbl_head_scales_of_layer(w->cache, layer, NBL_KIND_V), bytes);
}

static void head_describe(const work *w)
{
    const nbl_cache *cache = w->cache;
    const nbl_kv_shape *shape = &cache->plan.config.shape;
    const nbl_sequence *s = &cache->sequences.all[w->index];
    const uint32_t first = s->dropped / shape->page_tokens;
    const int32_t *pages = nbl_sequences_pages(&cache->sequences, w->index);
    *head_of(w) = (head){.magic = MAGIC,
                         .version = cache->head_scales != NULL ? VERSION_SCALED : VERSION,
                         .numerics_version = NBL_NUMERICS_VERSION,
                         .layout_version = NBL_LAYOUT_VERSION,
                         .layers = shape->layers,
                         .kv_heads = shape->kv_heads,
                         .k_dim = shape->k_dim,
                         .v_dim = shape->v_dim,
                         .page_tokens = shape->page_tokens,
                         .k_scale_rule = shape->k_scale_rule,
                         .v_scale_rule = shape->v_scale_rule,
                         .centering = shape->centering,
                         .class_count = cache->plan.class_count,
                         .first_place = first,
                         .page_count = s->page_count,
                         .dropped = s->dropped,
                         .loose = s->loose,
                         .head_bytes = head_bytes_for(cache, s->page_count - first)};
    uint64_t total = head_of(w)->head_bytes + sizeof(nbl_hash);
    for (uint32_t layer = 0; layer < shape->layers; ++layer) {
        layer_describe(w, layer);
        scales_describe(w, layer);
    }
    for (uint32_t place = first; place < s->page_count; ++place) {
        const uint32_t c = nbl_plan_class_of_page(&cache->plan, pages[place]);
        classes_of(w)[place - first] = c;
        total += cache->plan.classes[c].page_bytes + sizeof(nbl_hash);
    }
    head_of(w)->total_bytes = total;
}

/* ------------------------------------------------------------------------------------------------ clean pages */

/* Copies the bytes of one head's vectors of the first `tokens` tokens; the rest of out stays as it is. */
static void head_copy(const nbl_kv_shape *shape, const nbl_page_layout *layout, const nbl_region *region,
                      enum nbl_kind kind, uint32_t kv_head, uint32_t tokens, const nbl_page_part *from,
                      const nbl_page_part *to)
{
    const uint32_t format = kind == NBL_KIND_K ? region->k_format : region->v_format;
    const uint32_t dim = kind == NBL_KIND_K ? shape->k_dim : shape->v_dim;
    const uint64_t codes = nbl_layout_head_code_offset(layout, kind, kv_head);
    const uint64_t scales = nbl_layout_head_scale_offset(layout, kind, kv_head);
    const size_t code_bytes = nbl_layout_code_bits(format) == 16u ? 2 : 1; /* two 4-bit codes share a byte */
    for (uint32_t t = 0; t < tokens; ++t) {
        for (uint32_t d = 0; d < nbl_layout_dim_padded(dim); ++d) {
            const uint64_t at =
                codes + (kind == NBL_KIND_K ? nbl_layout_k_code_byte(format, dim, shape->page_tokens, t, d)
                                            : nbl_layout_v_code_byte(format, dim, shape->page_tokens, t, d));
            memcpy(to->codes + at, from->codes + at, code_bytes);
        }
        for (uint32_t plane = 0; plane < nbl_layout_scale_planes(format, dim); ++plane) {
            const uint64_t at = scales + nbl_layout_scale_byte(shape->page_tokens, plane, t);
            to->scales[at] = from->scales[at];
        }
    }
}

/* Tells whether every byte of a full page belongs to a token: no head's part is padded (F2). */
static bool is_dense(const nbl_kv_shape *shape, const nbl_region *region)
{
    const uint64_t tokens = shape->page_tokens;
    const uint64_t parts[] = {tokens * nbl_layout_code_bytes(region->k_format, shape->k_dim),
                              tokens * nbl_layout_code_bytes(region->v_format, shape->v_dim),
                              tokens * nbl_layout_scale_planes(region->k_format, shape->k_dim),
                              tokens * nbl_layout_scale_planes(region->v_format, shape->v_dim)};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; ++i) {
        if (parts[i] % NBL_LAYOUT_ALIGNMENT != 0)
            return false;
    }
    return true;
}

/* One layer of the page in w->page into w->part: codes, then scales, with zeros where no token is. */
static uint64_t part_clean(const work *w, uint32_t class_index, uint32_t layer, uint32_t place)
{
    const nbl_cache *cache = w->cache;
    const nbl_kv_shape *shape = &cache->groups[nbl_plan_layer(&cache->plan, layer)->group].shape;
    const nbl_page_part from = nbl_page_part_of(cache, class_index, layer, w->page);
    const uint64_t code_bytes = from.region->code_layer_stride, scale_bytes = from.region->scale_layer_stride;
    const nbl_page_part to = {from.region, w->part, w->part + code_bytes};
    const uint32_t length = layers_of(w)[layer].length, begin = place * shape->page_tokens;
    const uint32_t tokens = length <= begin                       ? 0
                            : length - begin < shape->page_tokens ? length - begin
                                                                  : shape->page_tokens;
    if (tokens == shape->page_tokens && is_dense(shape, from.region)) {
        memcpy(to.codes, from.codes, code_bytes);
        memcpy(to.scales, from.scales, scale_bytes);
        return code_bytes + scale_bytes;
    }
    const nbl_page_layout layout = nbl_layout_page(shape, from.region->k_format, from.region->v_format);
    memset(w->part, 0, code_bytes + scale_bytes);
    for (uint32_t kv_head = 0; kv_head < shape->kv_heads; ++kv_head) {
        head_copy(shape, &layout, from.region, NBL_KIND_K, kv_head, tokens, &from, &to);
        head_copy(shape, &layout, from.region, NBL_KIND_V, kv_head, tokens, &from, &to);
    }
    return code_bytes + scale_bytes;
}

/* ------------------------------------------------------------------------------------------------ export */

static nbl_status page_write(const work *w, uint32_t place, nbl_error *err)
{
    const nbl_cache *cache = w->cache;
    const int32_t page = nbl_sequences_pages(&cache->sequences, w->index)[place];
    nbl_hasher h;
    NBL_TRY(nbl_page_move(cache, page, w->page, NBL_COPY_TO_HOST, nbl_stream_host, err));
    nbl_hash_start(&h, hash_key);
    for (uint32_t layer = 0; layer < cache->sequences.layers; ++layer) {
        const uint64_t bytes = part_clean(w, nbl_plan_class_of_page(&cache->plan, page), layer, place);
        nbl_hash_add(&h, w->part, bytes);
        NBL_TRY(nbl_medium_write(w->medium, w->part, bytes, err));
    }
    const nbl_hash hash = nbl_hash_end(&h);
    return nbl_medium_write(w->medium, &hash, sizeof hash, err);
}

static nbl_status export_run(work *w, nbl_error *err)
{
    const nbl_cache *cache = w->cache;
    const uint64_t center_bytes = nbl_center_bytes(&cache->plan.config.shape);
    for (uint32_t layer = 0; layer < cache->sequences.layers && center_bytes > 0; ++layer) {
        if (layers_of(w)[layer].length > 0)
            NBL_TRY(nbl_center_move(cache, cache->sequences.all[w->index].row, layer,
                                    centers_of(w) + layer * center_bytes, NBL_COPY_TO_HOST, err));
    }
    const nbl_hash hash = nbl_hash_of(hash_key, w->head_memory, head_of(w)->head_bytes);
    NBL_TRY(nbl_medium_write(w->medium, w->head_memory, head_of(w)->head_bytes, err));
    NBL_TRY(nbl_medium_write(w->medium, &hash, sizeof hash, err));
    for (uint32_t place = head_of(w)->first_place; place < head_of(w)->page_count; ++place)
        NBL_TRY(page_write(w, place, err));
    return NBL_OK;
}

/* Finds the sequence and fills in the head. The caller closes w. */
static nbl_status export_begin(work *w, uint64_t sequence, nbl_error *err)
{
    NBL_TRY(nbl_sequences_find(&w->cache->sequences, sequence, &w->index, err));
    NBL_TRY(work_open(w, err));
    head_describe(w);
    return NBL_OK;
}

nbl_status nbl_api_snapshot_size(nbl_cache *cache, uint64_t sequence, uint64_t *out_bytes, nbl_error *err)
{
    work w = {.cache = cache};
    NBL_TRY(nbl_pointer_check("out_bytes", out_bytes, 1, (uint32_t) _Alignof(uint64_t), err));
    const nbl_status status = export_begin(&w, sequence, err);
    if (status == NBL_OK)
        *out_bytes = head_of(&w)->total_bytes;
    work_close(&w);
    return status;
}

static nbl_status buffer_write(work *w, void *buffer, uint64_t bytes, nbl_error *err)
{
    nbl_medium medium = {.memory = buffer, .bytes = bytes};
    if (bytes < head_of(w)->total_bytes)
        return NBL_REFUSE(err, NBL_E_NO_MEMORY, "bytes is %" PRIu64 " (needed: %" PRIu64 ", as snapshot_size says)",
                          bytes, head_of(w)->total_bytes);
    w->medium = &medium;
    return export_run(w, err);
}

nbl_status nbl_api_snapshot_write(nbl_cache *cache, uint64_t sequence, void *buffer, uint64_t bytes, nbl_error *err)
{
    work w = {.cache = cache};
    NBL_TRY(nbl_pointer_check("buffer", buffer, 1, 1, err));
    nbl_status status = export_begin(&w, sequence, err);
    if (status == NBL_OK)
        status = buffer_write(&w, buffer, bytes, err);
    work_close(&w);
    return status;
}

static nbl_status file_write(work *w, const char *path, nbl_error *err)
{
    nbl_medium medium;
    NBL_TRY(nbl_file_begin(&medium, path, err));
    w->medium = &medium;
    const nbl_status status = export_run(w, err);
    if (status == NBL_OK)
        return nbl_file_commit(&medium, err);
    nbl_file_abandon(&medium);
    return status;
}

nbl_status nbl_api_snapshot_save(nbl_cache *cache, uint64_t sequence, const char *path, nbl_error *err)
{
    work w = {.cache = cache};
    nbl_status status = export_begin(&w, sequence, err);
    if (status == NBL_OK)
        status = file_write(&w, path, err);
    work_close(&w);
    return status;
}

/* ------------------------------------------------------------------------------------------------ checking */

#define DAMAGED(err, what) NBL_REFUSE((err), NBL_E_INVALID, "snapshot is damaged: %s", (what))

static nbl_status same(const char *field, uint32_t theirs, uint32_t ours, nbl_error *err)
{
    if (theirs == ours)
        return NBL_OK;
    return NBL_REFUSE(err, NBL_E_INVALID, "snapshot has %s %u, the cache has %u", field, theirs, ours);
}

/* What a head must say before any of its other numbers is believed. */
static nbl_status head_check(const work *w, const head *h, nbl_error *err)
{
    if (memcmp(h->magic, MAGIC, sizeof h->magic) != 0)
        return NBL_REFUSE(err, NBL_E_INVALID, "these bytes are not a snapshot of nibble");
    if (h->version != VERSION && h->version != VERSION_SCALED)
        return NBL_REFUSE(err, NBL_E_ABI, "snapshot has version %u, this library reads versions %u and %u", h->version,
                          VERSION, VERSION_SCALED);
    if ((h->version == VERSION_SCALED) != (w->cache->head_scales != NULL))
        return NBL_REFUSE(err, NBL_E_INVALID, "snapshot has %s scales of heads, the cache has %s",
                          h->version == VERSION_SCALED ? "its" : "no", w->cache->head_scales != NULL ? "some" : "none");
    NBL_TRY(same("layers", h->layers, w->cache->sequences.layers, err));
    if (h->first_place > h->page_count || h->page_count > w->cache->plan.sequence_pages_max)
        return NBL_REFUSE(err, NBL_E_INVALID, "snapshot has %u pages (allowed: %u, sequence_tokens_max)", h->page_count,
                          w->cache->plan.sequence_pages_max);
    if (h->head_bytes != head_bytes_for(w->cache, h->page_count - h->first_place))
        return NBL_REFUSE(err, NBL_E_INVALID,
                          "snapshot has a head of %" PRIu64 " bytes, the cache's would have %" PRIu64, h->head_bytes,
                          head_bytes_for(w->cache, h->page_count - h->first_place));
    if (h->total_bytes != w->medium->bytes)
        return NBL_REFUSE(err, NBL_E_INVALID, "snapshot says it has %" PRIu64 " bytes, there are %" PRIu64,
                          h->total_bytes, w->medium->bytes);
    return NBL_OK;
}

static nbl_status versions_check(const head *h, nbl_error *err)
{
    if (h->numerics_version != NBL_NUMERICS_VERSION || h->layout_version != NBL_LAYOUT_VERSION)
        return NBL_REFUSE(
            err, NBL_E_ABI,
            "snapshot has numerics %u and page layout %u, this library has %u and %u (results would differ)",
            h->numerics_version, h->layout_version, NBL_NUMERICS_VERSION, NBL_LAYOUT_VERSION);
    return NBL_OK;
}

static nbl_status shape_same(const work *w, nbl_error *err)
{
    const nbl_kv_shape *shape = &w->cache->plan.config.shape;
    const head *h = head_of(w);
    NBL_TRY(versions_check(h, err));
    NBL_TRY(same("kv_heads", h->kv_heads, shape->kv_heads, err));
    NBL_TRY(same("k_dim", h->k_dim, shape->k_dim, err));
    NBL_TRY(same("v_dim", h->v_dim, shape->v_dim, err));
    NBL_TRY(same("page_tokens", h->page_tokens, shape->page_tokens, err));
    NBL_TRY(same("k_scale_rule", h->k_scale_rule, shape->k_scale_rule, err));
    NBL_TRY(same("v_scale_rule", h->v_scale_rule, shape->v_scale_rule, err));
    return same("centering", h->centering, shape->centering, err);
}

/* What is stored is a multiple of the scale (NUM 6.7), so it has to be the same. */
static nbl_status scales_same(const work *w, uint32_t layer, nbl_error *err)
{
    const uint32_t heads = w->cache->plan.config.shape.kv_heads;
    for (uint32_t i = 0; w->cache->head_scales != NULL && i < 2u * heads; ++i) {
        const enum nbl_kind kind = i < heads ? NBL_KIND_K : NBL_KIND_V;
        const float ours = nbl_head_scales_of_layer(w->cache, layer, kind)[i % heads];
        float theirs;
        memcpy(&theirs, scales_of(w, layer) + i * sizeof theirs, sizeof theirs);
        if (theirs != ours)
            return NBL_REFUSE(err, NBL_E_INVALID, "snapshot has %c_scale %.9g in layer %u, head %u, the cache has %.9g",
                              kind == NBL_KIND_K ? 'k' : 'v', (double)theirs, layer, i % heads, (double)ours);
    }
    return NBL_OK;
}

/* Lengths, and the transforms of each layer. */
static nbl_status layers_check(const work *w, nbl_error *err)
{
    const head *h = head_of(w);
    uint32_t longest = 0;
    for (uint32_t layer = 0; layer < h->layers; ++layer) {
        const layer_record *l = &layers_of(w)[layer];
        const nbl_layer_group *group = &w->cache->groups[nbl_plan_layer(&w->cache->plan, layer)->group];
        NBL_TRY(same("k_hadamard", l->k_hadamard, group->shape.k_hadamard, err));
        NBL_TRY(same("v_hadamard", l->v_hadamard, group->shape.v_hadamard, err));
        NBL_TRY(scales_same(w, layer, err));
        if (l->length < h->dropped || l->length > w->cache->plan.config.sequence_tokens_max ||
            l->basis > NBL_CENTER_TOKENS_MAX)
            return NBL_REFUSE(err, NBL_E_INVALID, "snapshot has %u tokens in layer %u (allowed: %u to %u)", l->length,
                              layer, h->dropped, w->cache->plan.config.sequence_tokens_max);
        longest = l->length > longest ? l->length : longest;
    }
    if (h->page_count != nbl_cache_pages_of(w->cache, longest) || h->first_place != h->dropped / h->page_tokens)
        return DAMAGED(err, "pages and lengths contradict each other");
    return NBL_OK;
}

/* Tells whether a class of the snapshot stores every layer in the formats of a class of the cache. */
static bool class_matches(const work *w, uint32_t theirs, uint32_t ours)
{
    for (uint32_t layer = 0; layer < head_of(w)->layers; ++layer) {
        const nbl_region *r = &w->cache->groups[nbl_plan_layer(&w->cache->plan, layer)->group].regions[ours];
        const uint32_t *formats = layers_of(w)[layer].formats[theirs];
        if (formats[0] != r->k_format || formats[1] != r->v_format)
            return false;
    }
    return true;
}

static nbl_status classes_map(work *w, nbl_error *err)
{
    const head *h = head_of(w);
    if (h->class_count > NBL_CLASSES_MAX)
        return DAMAGED(err, "too many classes of pages");
    for (uint32_t i = 0; i < h->page_count - h->first_place; ++i) {
        const uint32_t theirs = classes_of(w)[i];
        uint32_t ours = 0;
        if (theirs >= h->class_count)
            return DAMAGED(err, "a page of no class");
        while (ours < w->cache->plan.class_count && !class_matches(w, theirs, ours))
            ++ours;
        if (ours == w->cache->plan.class_count)
            return NBL_REFUSE(err, NBL_E_INVALID, "snapshot has pages in formats %u and %u, the cache has none such",
                              layers_of(w)[0].formats[theirs][0], layers_of(w)[0].formats[theirs][1]);
        w->class_map[theirs] = ours;
    }
    return NBL_OK;
}

static nbl_status head_read(work *w, nbl_error *err)
{
    nbl_hash hash;
    w->medium->at = 0;
    NBL_TRY(nbl_medium_read(w->medium, w->head_memory, sizeof(head), err));
    NBL_TRY(head_check(w, head_of(w), err));
    NBL_TRY(nbl_medium_read(w->medium, w->head_memory + sizeof(head), head_of(w)->head_bytes - sizeof(head), err));
    NBL_TRY(nbl_medium_read(w->medium, &hash, sizeof hash, err));
    const nbl_hash found = nbl_hash_of(hash_key, w->head_memory, head_of(w)->head_bytes);
    if (!nbl_hash_equal(&hash, &found))
        return DAMAGED(err, "the checksum of its head is wrong");
    NBL_TRY(shape_same(w, err));
    NBL_TRY(layers_check(w, err));
    return classes_map(w, err);
}

/* Reads the page at a place into w->page and checks it. */
static nbl_status page_read(const work *w, uint32_t place, nbl_error *err)
{
    const uint32_t class_index = w->class_map[classes_of(w)[place - head_of(w)->first_place]];
    nbl_hasher h;
    nbl_hash hash;
    nbl_hash_start(&h, hash_key);
    for (uint32_t layer = 0; layer < head_of(w)->layers; ++layer) {
        const nbl_page_part part = nbl_page_part_of(w->cache, class_index, layer, w->page);
        NBL_TRY(nbl_medium_read(w->medium, part.codes, part.region->code_layer_stride, err));
        NBL_TRY(nbl_medium_read(w->medium, part.scales, part.region->scale_layer_stride, err));
        nbl_hash_add(&h, part.codes, part.region->code_layer_stride);
        nbl_hash_add(&h, part.scales, part.region->scale_layer_stride);
    }
    NBL_TRY(nbl_medium_read(w->medium, &hash, sizeof hash, err));
    const nbl_hash found = nbl_hash_end(&h);
    if (!nbl_hash_equal(&hash, &found))
        return NBL_REFUSE(err, NBL_E_INVALID, "snapshot is damaged: the checksum of page %u is wrong", place);
    return NBL_OK;
}

/* Reads everything once, before anything of the cache is touched. */
static nbl_status all_check(work *w, nbl_error *err)
{
    NBL_TRY(head_read(w, err));
    for (uint32_t place = head_of(w)->first_place; place < head_of(w)->page_count; ++place)
        NBL_TRY(page_read(w, place, err));
    if (w->medium->at != w->medium->bytes)
        return DAMAGED(err, "bytes follow its end");
    return NBL_OK;
}

static nbl_status room_check(const work *w, nbl_error *err)
{
    const nbl_plan *plan = &w->cache->plan;
    uint32_t wanted[NBL_CLASSES_MAX] = {0};
    for (uint32_t i = 0; i < head_of(w)->page_count - head_of(w)->first_place; ++i)
        wanted[w->class_map[classes_of(w)[i]]]++;
    for (uint32_t c = 0; c < plan->class_count; ++c) {
        if (wanted[c] > nbl_pages_available(w->cache, c))
            return NBL_REFUSE(err, NBL_E_NO_MEMORY, "out of pages: region %u needs %u more and has %u free of %u", c,
                              wanted[c], nbl_pages_available(w->cache, c), plan->classes[c].page_count);
    }
    return NBL_OK;
}

/* ------------------------------------------------------------------------------------------------ import */

/* Leading places whose pages have their final class. */
static uint32_t cold_places(const nbl_cache *cache, uint32_t index)
{
    const nbl_sequence *s = &cache->sequences.all[index];
    const int32_t *pages = nbl_sequences_pages(&cache->sequences, index);
    uint32_t place = s->dropped / cache->plan.config.shape.page_tokens;
    while (place < s->page_count &&
           nbl_plan_class_of_page(&cache->plan, pages[place]) == nbl_plan_place(&cache->plan, place)->final_class)
        place++;
    return place;
}

/* Fills a fresh sequence. The pages are checked again as they are read: the file may have changed since. */
static nbl_status sequence_fill(work *w, nbl_error *err)
{
    nbl_cache *cache = w->cache;
    nbl_sequence *s = &cache->sequences.all[w->index];
    const uint64_t center_bytes = nbl_center_bytes(&cache->plan.config.shape);
    int32_t *pages = nbl_sequences_pages(&cache->sequences, w->index);
    cache->stream = nbl_stream_host;
    s->dropped = head_of(w)->dropped;
    s->loose = head_of(w)->loose != 0;
    s->page_count = head_of(w)->first_place;
    for (uint32_t place = s->page_count; place < head_of(w)->page_count; ++place) {
        NBL_TRY(page_read(w, place, err));
        pages[place] = nbl_pages_take(cache, w->class_map[classes_of(w)[place - head_of(w)->first_place]]);
        s->page_count++;
        NBL_TRY(nbl_page_move(cache, pages[place], w->page, NBL_COPY_TO_DEVICE, nbl_stream_host, err));
    }
    for (uint32_t layer = 0; layer < head_of(w)->layers; ++layer) {
        const layer_record *l = &layers_of(w)[layer];
        if (l->length > 0 && center_bytes > 0)
            NBL_TRY(
                nbl_center_move(cache, s->row, layer, centers_of(w) + layer * center_bytes, NBL_COPY_TO_DEVICE, err));
        *nbl_rows_basis(&cache->rows, s->row, layer) = l->basis;
        *nbl_sequences_length(&cache->sequences, w->index, layer) = l->length;
    }
    s->cold = cold_places(cache, w->index);
    cache->page_epoch++;
    return NBL_OK;
}

static nbl_status import_run(work *w, uint64_t *out_sequence, nbl_error *err)
{
    uint64_t sequence = 0;
    NBL_TRY(all_check(w, err));
    NBL_TRY(room_check(w, err));
    NBL_TRY(nbl_api_seq_create(w->cache, &sequence, err));
    w->index = nbl_sequences_index(sequence);
    w->medium->at = head_of(w)->head_bytes + sizeof(nbl_hash);
    const nbl_status status = sequence_fill(w, err);
    if (status != NBL_OK) {
        (void)nbl_api_seq_free(w->cache, sequence, NULL);
        return status;
    }
    *out_sequence = sequence;
    return NBL_OK;
}

static nbl_status import_begin(work *w, uint64_t *out_sequence, nbl_error *err)
{
    NBL_TRY(nbl_pointer_check("out_sequence", out_sequence, 1, (uint32_t) _Alignof(uint64_t), err));
    return work_open(w, err);
}

nbl_status nbl_api_snapshot_read(nbl_cache *cache, const void *buffer, uint64_t bytes, uint64_t *out_sequence,
                                 nbl_error *err)
{
    nbl_medium medium = {.bytes = bytes};
    work w = {.cache = cache, .medium = &medium};
    const void *memory = buffer;
    NBL_TRY(nbl_pointer_check("buffer", buffer, 1, 1, err));
    memcpy(&medium.memory, &memory, sizeof memory); /* only read */
    nbl_status status = import_begin(&w, out_sequence, err);
    if (status == NBL_OK)
        status = import_run(&w, out_sequence, err);
    work_close(&w);
    return status;
}

nbl_status nbl_api_snapshot_load(nbl_cache *cache, const char *path, uint64_t *out_sequence, nbl_error *err)
{
    nbl_medium medium;
    work w = {.cache = cache, .medium = &medium};
    nbl_status status = import_begin(&w, out_sequence, err);
    if (status == NBL_OK)
        status = nbl_file_open(&medium, path, err);
    if (status == NBL_OK) {
        status = import_run(&w, out_sequence, err);
        nbl_file_close(&medium);
    }
    work_close(&w);
    return status;
}
