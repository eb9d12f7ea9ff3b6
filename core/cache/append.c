/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file append.c
 * @brief cache_append and cache_append_coded: tokens of a batch to pages and slots, all or nothing.
 *
 * Pages are counted before any is taken, then taken and noted in cache->changes, then pages that others can see are
 * copied, then the backend writes. A failure anywhere takes the changes back; only a success moves the lengths.
 */
#include "cache.h"

/* The call at work. */
typedef struct append_work {
    nbl_cache *cache;
    const nbl_cache_append_args *args;
    nbl_append_call call;               /**< the whole call, checked; cut into runs of pieces */
    const nbl_append_coded_call *coded; /**< or this, and of call the tokens alone */
    uint32_t pieces;                    /**< in cache->pieces */
} append_work;

static uint32_t tokens_of(const append_work *w, uint32_t b)
{
    return (uint32_t)(w->args->seq_indptr[b + 1u] - w->args->seq_indptr[b]);
}

static uint32_t *length_of(const append_work *w, uint32_t b)
{
    return nbl_sequences_length(&w->cache->sequences, w->cache->batch[b], w->args->layer);
}

/* The block of small arrays: rows [pieces], then seq_indptr [pieces + runs], since each run has one entry more than
 * pieces. */
static const int32_t *small_device(const append_work *w)
{
    return (const int32_t *)(const void *)w->cache->metadata.append_small.device;
}

/* More tokens than slots would run past the array of slots in the overlap check, and cannot fit anyway. */
static nbl_status tokens_check(const nbl_cache *cache, const nbl_tensor *k, nbl_error *err)
{
    if (k->rank == 0 || k->shape[0] <= cache->plan.slots_max)
        return NBL_OK;
    return NBL_REFUSE(err, NBL_E_NO_MEMORY, "k.shape[0] is %" PRIu64 " (allowed: %" PRIu64 ", all slots of the cache)",
                      k->shape[0], cache->plan.slots_max);
}

/* Checks everything that does not depend on the runs: fields, tensors, overlap with the cache's own memory. */
static nbl_status whole_check(append_work *w, nbl_error *err)
{
    nbl_cache *cache = w->cache;
    nbl_append_args a = NBL_INIT(nbl_append_args);
    NBL_TRY(nbl_index_check("layer", w->args->layer, cache->sequences.layers, err));
    a.layer = nbl_cache_pool_layer(cache, w->args->layer);
    a.batch = w->args->batch;
    a.k = w->args->k;
    a.v = w->args->v;
    a.slots = (const int64_t *)(const void *)cache->metadata.slots.device;
    a.seq_indptr = small_device(w);
    a.centers = nbl_cache_centers(cache, w->args->layer, small_device(w));
    a.center_mode = NBL_CENTER_COMPUTE; /* the stricter one for overlap; each run has its own */
    a.stats = (nbl_quant_stats *)(void *)(cache->metadata_block + cache->plan.metadata.stats);
    a.workspace = cache->workspace;
    a.workspace_bytes = cache->plan.workspace_bytes;
    a.stream = w->args->stream;
    NBL_TRY(tokens_check(cache, &a.k, err));
    return nbl_append_over(&w->call, nbl_cache_pool(cache, w->args->layer), &a, err);
}

/* ------------------------------------------------------------------------------------------------ pages */

/* Places that sequence b's new tokens touch: [begin, end). */
static void places_of(const append_work *w, uint32_t b, uint32_t *begin, uint32_t *end)
{
    const uint32_t length = *length_of(w, b), page_tokens = w->cache->plan.config.shape.page_tokens;
    *begin = length / page_tokens;
    *end = tokens_of(w, b) > 0 ? nbl_cache_pages_of(w->cache, (uint64_t)length + tokens_of(w, b)) : *begin;
}

/* Counts the pages that sequence b needs, by class: new ones, and copies of those that others can see. */
static void pages_count(const append_work *w, uint32_t b, uint64_t wanted[NBL_CLASSES_MAX])
{
    const nbl_cache *cache = w->cache;
    const uint32_t index = cache->batch[b], held = cache->sequences.all[index].page_count;
    const int32_t *pages = nbl_sequences_pages(&cache->sequences, index);
    uint32_t begin, end;
    places_of(w, b, &begin, &end);
    for (uint32_t place = begin; place < end; ++place) {
        if (place >= held)
            wanted[nbl_plan_class(&cache->plan, place)]++;
        else if (nbl_pages_shared(cache, pages[place]))
            wanted[nbl_plan_class_of_page(&cache->plan, pages[place])]++;
    }
}

/* Places of sequence b that leave the recent window once this call has succeeded: [begin, end). */
static void demotions_of(const append_work *w, uint32_t b, uint32_t *begin, uint32_t *end)
{
    const nbl_cache *cache = w->cache;
    const nbl_sequences *s = &cache->sequences;
    const uint32_t index = cache->batch[b], page_tokens = cache->plan.config.shape.page_tokens;
    const uint32_t recent = cache->plan.recent_tokens, dropped = s->all[index].dropped / page_tokens;
    uint32_t whole = UINT32_MAX;
    *begin = *end = s->all[index].cold > dropped ? s->all[index].cold : dropped;
    if (recent == 0)
        return;
    for (uint32_t layer = 0; layer < s->layers; ++layer) {
        const uint32_t added = layer == w->args->layer ? tokens_of(w, b) : 0;
        const uint32_t length = *nbl_sequences_length(s, index, layer) + added;
        whole = length < whole ? length : whole;
    }
    if (whole > recent && (whole - recent) / page_tokens > *begin)
        *end = (whole - recent) / page_tokens;
}

/* Counts the pages that sequence b's demotions need, by class. */
static void demotions_count(const append_work *w, uint32_t b, uint64_t wanted[NBL_CLASSES_MAX])
{
    uint32_t begin, end;
    demotions_of(w, b, &begin, &end);
    for (uint32_t place = begin; place < end; ++place) {
        const nbl_place_run *run = nbl_plan_place(&w->cache->plan, place);
        wanted[run->final_class] += run->final_class != run->class_index;
    }
}

static nbl_status room_check(const append_work *w, nbl_error *err)
{
    const nbl_cache *cache = w->cache;
    uint64_t wanted[NBL_CLASSES_MAX] = {0};
    for (uint32_t b = 0; b < w->args->batch; ++b) {
        const uint64_t length = (uint64_t)*length_of(w, b) + tokens_of(w, b);
        if (length > cache->plan.config.sequence_tokens_max)
            return NBL_REFUSE(err, NBL_E_RANGE, "sequences[%u] would have %" PRIu64 " tokens (allowed: %u)", b, length,
                              cache->plan.config.sequence_tokens_max);
    }
    for (uint32_t b = 0; b < w->args->batch; ++b) {
        pages_count(w, b, wanted);
        demotions_count(w, b, wanted);
    }
    for (uint32_t c = 0; c < cache->plan.class_count; ++c) {
        if (wanted[c] > nbl_pages_available(cache, c))
            return NBL_REFUSE(err, NBL_E_NO_MEMORY,
                              "out of pages: region %u needs %" PRIu64 " more and has %u free of %u", c, wanted[c],
                              nbl_pages_available(cache, c), cache->plan.classes[c].page_count);
    }
    return NBL_OK;
}

/* Puts a fresh page at a place of a sequence and notes the change. */
static void page_put(nbl_cache *cache, uint32_t index, uint32_t place, int32_t before, uint32_t class_index)
{
    const int32_t after = nbl_pages_take(cache, class_index);
    nbl_sequences_pages(&cache->sequences, index)[place] = after;
    cache->changes.items[cache->changes.count++] = (nbl_change){index, place, before, after};
    cache->page_epoch++;
}

/* Gives sequence b the pages that it lacks, and pages of its own where it is about to write into shared ones. The
 * shared page stays held until the call has succeeded: a sequence of the same batch must not write into it in place,
 * for the others would get it back if the call fails. */
static void pages_put(const append_work *w, uint32_t b)
{
    nbl_cache *cache = w->cache;
    const uint32_t index = cache->batch[b];
    nbl_sequence *sequence = &cache->sequences.all[index];
    uint32_t begin, end;
    places_of(w, b, &begin, &end);
    for (uint32_t place = begin; place < end; ++place) {
        if (place >= sequence->page_count) {
            page_put(cache, index, place, NBL_PAGE_NONE, nbl_plan_class(&cache->plan, place));
            sequence->page_count++;
            continue;
        }
        const int32_t page = nbl_sequences_pages(&cache->sequences, index)[place];
        if (nbl_pages_shared(cache, page))
            page_put(cache, index, place, page, nbl_plan_class_of_page(&cache->plan, page));
    }
}

/* Takes the pages that sequence b's demotions need; the sequence keeps its old ones until the call has succeeded. */
static void demotions_put(const append_work *w, uint32_t b)
{
    nbl_cache *cache = w->cache;
    const uint32_t index = cache->batch[b];
    const int32_t *pages = nbl_sequences_pages(&cache->sequences, index);
    uint32_t begin, end;
    demotions_of(w, b, &begin, &end);
    for (uint32_t place = begin; place < end; ++place) {
        const nbl_place_run *run = nbl_plan_place(&cache->plan, place);
        if (run->final_class == run->class_index)
            continue;
        const int32_t after = nbl_pages_take(cache, run->final_class);
        cache->changes.items[cache->changes.count++] = (nbl_change){index, place, pages[place], after};
    }
}

/* Takes back what pages_put and demotions_put did. */
static void changes_undo(nbl_cache *cache)
{
    while (cache->changes.count > 0) {
        const nbl_change *c = &cache->changes.items[--cache->changes.count];
        if (cache->changes.count >= cache->changes.made)
            ; /* a demotion is not in effect yet */
        else if (c->before == NBL_PAGE_NONE)
            cache->sequences.all[c->index].page_count--;
        else
            nbl_sequences_pages(&cache->sequences, c->index)[c->place] = c->before;
        nbl_pages_release(cache, c->after);
        cache->page_epoch++;
    }
}

/* Puts the demoted pages in their places, and lets go of all pages that have been replaced. */
static void changes_keep(nbl_cache *cache)
{
    for (uint32_t i = 0; i < cache->changes.count; ++i) {
        const nbl_change *c = &cache->changes.items[i];
        if (i >= cache->changes.made) {
            nbl_sequences_pages(&cache->sequences, c->index)[c->place] = c->after;
            cache->counters.pages_demoted++;
            cache->page_epoch++;
        } else if (c->before != NBL_PAGE_NONE) {
            cache->counters.page_copies++;
        }
        if (c->before != NBL_PAGE_NONE)
            nbl_pages_release(cache, c->before);
    }
    cache->changes.count = 0;
}

/* Launches the copies or transcodes of the changes [begin, end). */
static nbl_status changes_launch(nbl_cache *cache, uint32_t begin, uint32_t end, nbl_stream stream, nbl_error *err)
{
    nbl_page_list list;
    nbl_page_list_start(&list, cache, stream);
    for (uint32_t i = begin; i < end; ++i) {
        const nbl_change *c = &cache->changes.items[i];
        if (c->before != NBL_PAGE_NONE)
            NBL_TRY(nbl_page_list_add(&list, c->before, c->after, err));
    }
    return nbl_page_list_flush(&list, err);
}

/* Writes the slots of sequence b's new tokens. */
static void slots_fill(const append_work *w, uint32_t b)
{
    const nbl_cache *cache = w->cache;
    const uint32_t page_tokens = cache->plan.config.shape.page_tokens, begin = *length_of(w, b);
    const int32_t *pages = nbl_sequences_pages(&cache->sequences, cache->batch[b]);
    int64_t *slots = (int64_t *)(void *)cache->metadata.slots.next + w->args->seq_indptr[b];
    for (uint32_t t = 0; t < tokens_of(w, b); ++t) {
        const uint32_t position = begin + t;
        slots[t] = (int64_t)pages[position / page_tokens] * page_tokens + position % page_tokens;
    }
}

/* ------------------------------------------------------------------------------------------------ pieces */

/* A sequence without tokens in this layer gets its centre from the first tokens of this call (NUM 4.2), at most
 * center_tokens of them; the rest of its tokens are a piece of their own. */
static void pieces_cut(append_work *w)
{
    const nbl_cache_config *config = &w->cache->plan.config;
    w->pieces = 0;
    for (uint32_t b = 0; b < w->args->batch; ++b) {
        const uint32_t first = (uint32_t)w->args->seq_indptr[b], last = (uint32_t)w->args->seq_indptr[b + 1u];
        uint32_t rest = first;
        if (config->shape.centering != 0 && *length_of(w, b) == 0) {
            rest = last - first > config->center_tokens ? first + config->center_tokens : last;
            w->cache->pieces[w->pieces++] = (nbl_piece){b, first, rest, NBL_CENTER_COMPUTE};
        }
        if (rest < last || rest == first)
            w->cache->pieces[w->pieces++] = (nbl_piece){b, rest, last, NBL_CENTER_USE};
    }
}

/* Narrows the call to the pieces [begin, end), which are run number run. */
static nbl_append_call run_call(const append_work *w, uint32_t run, uint32_t begin, uint32_t end)
{
    nbl_append_call c = w->call;
    const nbl_piece *pieces = w->cache->pieces;
    const uint32_t first = pieces[begin].begin, last = pieces[end - 1u].end;
    c.tokens = last - first;
    c.args.batch = end - begin;
    c.args.k = nbl_cache_rows(&w->call.args.k, first, last);
    c.args.v = nbl_cache_rows(&w->call.args.v, first, last);
    c.args.slots += first;
    c.args.seq_indptr = small_device(w) + w->pieces + begin + run;
    if (c.args.centers.rows != NULL)
        c.args.centers.rows += begin;
    c.args.center_mode = pieces[begin].mode;
    return c;
}

static nbl_status run_fits(const append_work *w, uint32_t begin, uint32_t end, bool *out_fits, nbl_error *err)
{
    const nbl_append_call c = run_call(w, 0, begin, end);
    uint64_t bytes = 0;
    NBL_TRY(nbl_workspace_bytes(w->cache->device, nbl_append_desc(&c), c.pool, &bytes, err));
    *out_fits = bytes <= w->cache->plan.workspace_bytes;
    if (!*out_fits && end - begin == 1)
        return nbl_cache_workspace_refuse(w->cache, w->cache->pieces[begin].b, "tokens", c.tokens, bytes, err);
    return NBL_OK;
}

/* Cuts the pieces into runs of one centre mode that fit the workspace; run i is [cuts[i], cuts[i + 1]). */
static nbl_status runs_cut(const append_work *w, uint32_t *out_runs, nbl_error *err)
{
    const nbl_piece *pieces = w->cache->pieces;
    uint32_t *cuts = w->cache->cuts, runs = 0;
    cuts[0] = 0;
    while (cuts[runs] < w->pieces) {
        const uint32_t begin = cuts[runs];
        uint32_t end = begin + 1u;
        bool fits = false;
        while (end < w->pieces && pieces[end].mode == pieces[begin].mode)
            ++end;
        NBL_TRY(run_fits(w, begin, end, &fits, err));
        while (!fits) {
            end = begin + (end - begin) / 2u;
            NBL_TRY(run_fits(w, begin, end, &fits, err));
        }
        cuts[++runs] = end;
    }
    *out_runs = runs;
    return NBL_OK;
}

/* Sequences that compute a centre write into a row of their own. */
static nbl_status rows_own(const append_work *w, nbl_error *err)
{
    for (uint32_t i = 0; i < w->pieces; ++i) {
        const nbl_piece *piece = &w->cache->pieces[i];
        if (piece->mode == NBL_CENTER_COMPUTE && piece->end > piece->begin)
            NBL_TRY(nbl_cache_row_own(w->cache, w->cache->batch[piece->b], w->args->stream, err));
    }
    return NBL_OK;
}

/* Each run's indptr starts at 0 again; rows follow the pieces. */
static void small_fill(const append_work *w, uint32_t runs)
{
    const nbl_cache *cache = w->cache;
    int32_t *rows = (int32_t *)(void *)cache->metadata.append_small.next, *indptr = rows + w->pieces;
    for (uint32_t run = 0; run < runs; ++run) {
        const uint32_t first = cache->pieces[cache->cuts[run]].begin;
        for (uint32_t i = cache->cuts[run]; i < cache->cuts[run + 1u]; ++i) {
            indptr[i + run] = (int32_t)(cache->pieces[i].begin - first);
            indptr[i + run + 1u] = (int32_t)(cache->pieces[i].end - first);
        }
    }
    for (uint32_t i = 0; i < w->pieces; ++i)
        rows[i] = (int32_t)cache->sequences.all[cache->batch[cache->pieces[i].b]].row;
}

static nbl_status runs_launch(const append_work *w, uint32_t runs, nbl_error *err)
{
    const nbl_cache *cache = w->cache;
    nbl_metadata *m = &w->cache->metadata;
    const nbl_stream stream = w->args->stream;
    NBL_TRY(nbl_mirror_send(cache->device, &m->slots, w->call.tokens * sizeof(int64_t), stream, err));
    if (w->coded != NULL)
        return cache->device->backend->append_coded(cache->device->inner, &w->coded->args, err);
    if (cache->plan.config.shape.centering != 0)
        NBL_TRY(nbl_mirror_send(cache->device, &m->append_small, (2u * (size_t)w->pieces + runs) * sizeof(int32_t),
                                stream, err));
    for (uint32_t run = 0; run < runs; ++run) {
        const nbl_append_call c = run_call(w, run, cache->cuts[run], cache->cuts[run + 1u]);
        if (c.tokens > 0)
            NBL_TRY(cache->device->backend->append(cache->device->inner, &c.args, err));
    }
    return NBL_OK;
}

/* ------------------------------------------------------------------------------------------------ the call */

static nbl_status work_launch(append_work *w, uint32_t runs, nbl_error *err)
{
    NBL_TRY(rows_own(w, err));
    const nbl_changes *changes = &w->cache->changes;
    NBL_TRY(changes_launch(w->cache, 0, changes->made, w->args->stream, err));
    for (uint32_t b = 0; b < w->args->batch; ++b)
        slots_fill(w, b);
    small_fill(w, runs);
    NBL_TRY(runs_launch(w, runs, err));
    return changes_launch(w->cache, changes->made, changes->count, w->args->stream, err);
}

/* Takes all pages that the call needs; room_check has seen that they are there. */
static void pages_take(const append_work *w)
{
    nbl_changes *changes = &w->cache->changes;
    for (uint32_t b = 0; b < w->args->batch; ++b)
        pages_put(w, b);
    changes->made = changes->count;
    for (uint32_t b = 0; b < w->args->batch; ++b)
        demotions_put(w, b);
}

/* Moves the lengths of all sequences, and how far their pages are in their final class. */
static void lengths_move(const append_work *w)
{
    nbl_sequences *s = &w->cache->sequences;
    for (uint32_t b = 0; b < w->args->batch; ++b) {
        uint32_t begin;
        demotions_of(w, b, &begin, &s->all[w->cache->batch[b]].cold);
    }
    for (uint32_t b = 0; b < w->args->batch; ++b)
        *length_of(w, b) += tokens_of(w, b);
}

/* Notes from how many tokens the centres of this call come. */
static void bases_note(const append_work *w)
{
    nbl_cache *cache = w->cache;
    for (uint32_t i = 0; i < w->pieces; ++i) {
        const nbl_piece *piece = &cache->pieces[i];
        const uint32_t row = cache->sequences.all[cache->batch[piece->b]].row;
        if (piece->mode == NBL_CENTER_COMPUTE && piece->end > piece->begin)
            *nbl_rows_basis(&cache->rows, row, w->args->layer) =
                nbl_plan_basis(&cache->plan, piece->end - piece->begin);
    }
}

static nbl_status append_run(append_work *w, nbl_error *err)
{
    uint32_t runs = 0;
    w->cache->stream = w->args->stream;
    if (w->coded == NULL)
        pieces_cut(w);
    NBL_TRY(room_check(w, err));
    NBL_TRY(runs_cut(w, &runs, err));
    pages_take(w);
    const nbl_status status = work_launch(w, runs, err);
    if (status != NBL_OK) {
        changes_undo(w->cache);
        return status;
    }
    changes_keep(w->cache);
    bases_note(w);
    lengths_move(w);
    return NBL_OK;
}

nbl_status nbl_api_cache_append(nbl_cache *cache, const nbl_cache_append_args *args, nbl_error *err)
{
    nbl_cache_append_args a;
    append_work work = {.cache = cache, .args = &a};
    NBL_TRY(NBL_STRUCT_IN(nbl_cache_append_args, &a, args, err));
    NBL_TRY(nbl_flags_check(a.flags, 0, "nbl_cache_append_args", err));
    NBL_TRY(nbl_cache_batch_find(cache, a.sequences, a.batch, true, err));
    NBL_TRY(whole_check(&work, err));
    NBL_TRY(nbl_cache_indptr_check("seq_indptr", a.seq_indptr, a.batch, work.call.tokens, err));
    return work.call.tokens == 0 ? NBL_OK : append_run(&work, err);
}

/* ------------------------------------------------------------------------------------------------ engines' codes */

/* Tokens go to pages of any class, so all of them must have the formats of the codes. */
static nbl_status classes_check(const nbl_cache *cache, const nbl_cache_append_coded_args *in, nbl_error *err)
{
    const nbl_layer_group *group = &cache->groups[nbl_plan_layer(&cache->plan, in->layer)->group];
    for (uint32_t c = 0; c < cache->plan.class_count; ++c) {
        const nbl_region *r = &group->regions[c];
        if (r->k_format != in->k_format || r->v_format != in->v_format)
            return NBL_REFUSE(err, NBL_E_INVALID,
                              "k_format is %u and v_format %u, layer %u has pages of %u and %u (needed: the same)",
                              in->k_format, in->v_format, in->layer, r->k_format, r->v_format);
    }
    return NBL_OK;
}

static nbl_status coded_check(nbl_cache *cache, const nbl_cache_append_coded_args *in, nbl_append_coded_call *call,
                              nbl_error *err)
{
    nbl_append_coded_args a = NBL_INIT(nbl_append_coded_args);
    NBL_TRY(nbl_index_check("layer", in->layer, cache->sequences.layers, err));
    NBL_TRY(classes_check(cache, in, err));
    NBL_TRY(tokens_check(cache, &in->k, err));
    a.pool = &nbl_cache_pool(cache, in->layer)->pool;
    a.layer = nbl_cache_pool_layer(cache, in->layer);
    a.k_format = in->k_format;
    a.v_format = in->v_format;
    a.scale_layout = in->scale_layout;
    a.k = in->k;
    a.v = in->v;
    a.k_scales = in->k_scales;
    a.v_scales = in->v_scales;
    a.scale_token = in->scale_token;
    a.slots = (const int64_t *)(const void *)cache->metadata.slots.device;
    a.stats = (nbl_quant_stats *)(void *)(cache->metadata_block + cache->plan.metadata.stats);
    a.stream = in->stream;
    NBL_TRY(nbl_append_coded_in(call, &a, err));
    if (call->tokens > 0 && (!nbl_tensor_present(&in->k) || !nbl_tensor_present(&in->v)))
        return NBL_REFUSE(err, NBL_E_INVALID, "%s.data is NULL (needed: K and V of every token)",
                          nbl_tensor_present(&in->k) ? "v" : "k");
    return NBL_OK;
}

nbl_status nbl_api_cache_append_coded(nbl_cache *cache, const nbl_cache_append_coded_args *args, nbl_error *err)
{
    nbl_cache_append_coded_args in;
    nbl_append_coded_call coded;
    nbl_cache_append_args a = NBL_INIT(nbl_cache_append_args);
    append_work work = {.cache = cache, .args = &a, .coded = &coded};
    NBL_TRY(NBL_STRUCT_IN(nbl_cache_append_coded_args, &in, args, err));
    NBL_TRY(nbl_flags_check(in.flags, 0, "nbl_cache_append_coded_args", err));
    NBL_TRY(nbl_reserved_check("nbl_cache_append_coded_args", in.reserved, err));
    NBL_TRY(nbl_cache_batch_find(cache, in.sequences, in.batch, true, err));
    NBL_TRY(coded_check(cache, &in, &coded, err));
    NBL_TRY(nbl_cache_indptr_check("seq_indptr", in.seq_indptr, in.batch, coded.tokens, err));
    a.sequences = in.sequences;
    a.seq_indptr = in.seq_indptr;
    a.batch = in.batch;
    a.layer = in.layer;
    a.stream = in.stream;
    work.call.tokens = coded.tokens;
    return coded.tokens == 0 ? NBL_OK : append_run(&work, err);
}
