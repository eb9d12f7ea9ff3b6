/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file stats_text.c
 * @brief The statistics of a cache as text: Prometheus exposition or JSON.
 */
#include "cache.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Text that may be longer than its buffer. */
typedef struct text {
    uint32_t format;
    char *buffer;
    uint64_t capacity;
    uint64_t length; /* without the NUL */
    bool first;      /* metric of the document, or sample of the metric */
} text;

__attribute__((format(printf, 2, 3))) static void text_add(text *t, const char *format, ...)
{
    const uint64_t left = t->length < t->capacity ? t->capacity - t->length : 0;
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(left > 0 ? t->buffer + t->length : NULL, left, format, arguments);
    va_end(arguments);
    t->length += length > 0 ? (uint64_t)length : 0u;
}

/* ------------------------------------------------------------------------------------------------ metrics */

/* Starts a metric; in JSON a list of samples follows. */
static void metric_begin(text *t, const char *name, const char *type, const char *help)
{
    if (t->format == NBL_TEXT_PROMETHEUS)
        text_add(t, "# HELP nibble_%s %s\n# TYPE nibble_%s %s\n", name, help, name, type);
    else
        text_add(t, "%s\"%s\":[", t->first ? "" : ",", name);
    t->first = true;
}

/* A sample with up to four labels; a label whose key is NULL ends them. */
typedef struct label {
    const char *key;
    const char *value;
} label;

static void labels_add(text *t, const label *labels)
{
    const bool json = t->format == NBL_TEXT_JSON;
    for (uint32_t i = 0; labels[i].key != NULL; ++i)
        text_add(t, json ? "%s\"%s\":\"%s\"" : "%s%s=\"%s\"", i > 0 ? "," : "", labels[i].key, labels[i].value);
}

static void sample_add(text *t, const char *name, const label *labels, uint64_t value)
{
    if (t->format == NBL_TEXT_PROMETHEUS) {
        text_add(t, "nibble_%s{", name);
        labels_add(t, labels);
        text_add(t, "} %" PRIu64 "\n", value);
    } else {
        text_add(t, "%s{", t->first ? "" : ",");
        labels_add(t, labels);
        text_add(t, ",\"value\":%" PRIu64 "}", value);
    }
    t->first = false;
}

static void metric_end(text *t)
{
    if (t->format == NBL_TEXT_JSON)
        text_add(t, "]");
    t->first = false;
}

/* A metric without labels. */
static void number_add(text *t, const char *name, const char *type, const char *help, uint64_t value)
{
    if (t->format == NBL_TEXT_PROMETHEUS)
        text_add(t, "# HELP nibble_%s %s\n# TYPE nibble_%s %s\nnibble_%s %" PRIu64 "\n", name, help, name, type, name,
                 value);
    else
        text_add(t, "%s\"%s\":%" PRIu64, t->first ? "" : ",", name, value);
    t->first = false;
}

/* ------------------------------------------------------------------------------------------------ what there is */

/* Plain fields of nbl_cache_stats. */
static const struct {
    const char *name, *type, *help;
    size_t offset;
} numbers[] = {
#define COUNTER(field, help)                                                        \
    {                                                                               \
        "cache_" #field "_total", "counter", help, offsetof(nbl_cache_stats, field) \
    }
#define GAUGE(field, help)                                               \
    {                                                                    \
        "cache_" #field, "gauge", help, offsetof(nbl_cache_stats, field) \
    }
    GAUGE(tokens, "Tokens of all sequences; what forks share counts for each of them."),
    GAUGE(used_bytes, "Codes and scales of pages in use."),
    COUNTER(forks, "Forks."),
    COUNTER(page_copies, "Pages copied before a write, because others held them too."),
    COUNTER(pages_demoted, "Pages transcoded because they left the recent window."),
    COUNTER(pages_stored, "Pages published."),
    COUNTER(pages_unstored, "Pages not published because the index was full."),
    COUNTER(pages_evicted, "Published pages lost."),
    COUNTER(pages_offloaded, "Evictions from the device that kept the contents in the host tier."),
    COUNTER(pages_spilled, "Pages moved from the host tier to the file."),
    COUNTER(pages_restored, "Pages brought back into the device."),
    COUNTER(tier_failures, "Copies, reads or writes of tiers that failed."),
    COUNTER(prefix_queries, "Adoptions asked for."),
    COUNTER(prefix_tokens, "Tokens that adoptions asked for."),
    COUNTER(prefix_hit_tokens, "Tokens that adoptions got."),
    COUNTER(quant.vectors, "K and V vectors written."),
    COUNTER(quant.nan_inputs, "NaN elements, stored as 0."),
    COUNTER(quant.inf_inputs, "Infinite elements, clamped."),
    COUNTER(quant.saturated, "Elements whose code was clamped."),
    COUNTER(quant.flushed, "Non-zero vectors stored as zeros."),
#undef COUNTER
#undef GAUGE
};

static void numbers_add(text *t, const nbl_cache_stats *stats)
{
    number_add(t, "cache_sequences", "gauge", "Sequences.", stats->sequences);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; ++i) {
        char name[64];
        uint64_t value;
        memcpy(&value, (const uint8_t *)stats + numbers[i].offset, sizeof value);
        snprintf(name, sizeof name, "%s", numbers[i].name);
        for (char *dot = name; *dot != '\0'; ++dot)
            *dot = *dot == '.' ? '_' : *dot;
        number_add(t, name, numbers[i].type, numbers[i].help, value);
    }
}

static void bytes_add(text *t, const nbl_cache_stats *stats)
{
    const struct {
        const char *kind;
        uint64_t bytes;
    } parts[] = {{"codes", stats->code_bytes},
                 {"scales", stats->scale_bytes},
                 {"centers", stats->center_bytes},
                 {"metadata", stats->metadata_bytes},
                 {"workspace", stats->workspace_bytes}};
    metric_begin(t, "cache_bytes", "gauge", "Memory, all of it allocated at creation.");
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; ++i)
        sample_add(t, "cache_bytes", (const label[]){{"tier", "device"}, {"kind", parts[i].kind}, {NULL, NULL}},
                   parts[i].bytes);
    metric_end(t);
}

static void tiers_add(text *t, const nbl_cache_stats *stats)
{
    const label host[] = {{"tier", "host"}, {NULL, NULL}}, file[] = {{"tier", "file"}, {NULL, NULL}};
    metric_begin(t, "cache_tier_bytes", "gauge", "Memory of the host tier and largest size of the file.");
    sample_add(t, "cache_tier_bytes", host, stats->host_bytes);
    sample_add(t, "cache_tier_bytes", file, stats->file_bytes);
    metric_end(t);
    metric_begin(t, "cache_tier_pages_used", "gauge", "Pages that a tier holds.");
    sample_add(t, "cache_tier_pages_used", host, stats->host_pages_used);
    sample_add(t, "cache_tier_pages_used", file, stats->file_pages_used);
    metric_end(t);
}

static void pages_add(text *t, const nbl_cache *cache, const nbl_cache_stats *stats)
{
    metric_begin(t, "cache_pages", "gauge", "Pages by class and state.");
    for (uint32_t c = 0; c < stats->region_count; ++c) {
        const uint32_t free = cache->pages.stacks[c].free;
        const struct {
            const char *state;
            uint32_t pages;
        } states[] = {{"used", stats->pages_used[c]}, {"cached", stats->pages_cached[c]}, {"free", free}};
        char class_text[16];
        snprintf(class_text, sizeof class_text, "%u", c);
        for (size_t i = 0; i < sizeof states / sizeof states[0]; ++i)
            sample_add(t, "cache_pages",
                       (const label[]){{"class", class_text}, {"state", states[i].state}, {NULL, NULL}},
                       states[i].pages);
    }
    metric_end(t);
}

/* Bytes of every layer, by class, so by format: all of them, or those of pages in use. */
static void layers_add(text *t, const nbl_cache *cache, const char *name, const char *help, bool used)
{
    metric_begin(t, name, "gauge", help);
    for (uint32_t layer = 0; layer < cache->sequences.layers; ++layer) {
        const nbl_layer_group *group = &cache->groups[nbl_plan_layer(&cache->plan, layer)->group];
        for (uint32_t c = 0; c < cache->plan.class_count; ++c) {
            const nbl_region *r = &group->regions[c];
            const uint64_t pages = used ? cache->pages.stacks[c].used : r->page_count;
            char layer_text[16], class_text[16];
            snprintf(layer_text, sizeof layer_text, "%u", layer);
            snprintf(class_text, sizeof class_text, "%u", c);
            sample_add(t, name,
                       (const label[]){{"layer", layer_text},
                                       {"class", class_text},
                                       {"k_format", nbl_format_name(r->k_format)},
                                       {"v_format", nbl_format_name(r->v_format)},
                                       {NULL, NULL}},
                       pages * (r->code_layer_stride + r->scale_layer_stride));
        }
    }
    metric_end(t);
}

nbl_status nbl_api_cache_stats_text(nbl_cache *cache, uint32_t format, char *buffer, uint64_t bytes,
                                    uint64_t *out_bytes, nbl_error *err)
{
    nbl_cache_stats stats = NBL_INIT(nbl_cache_stats);
    text t = {.format = format, .buffer = buffer, .capacity = bytes, .first = true};
    NBL_TRY(nbl_value_check("", "format", format, 0, NBL_TEXT_JSON, err));
    NBL_TRY(nbl_pointer_check("buffer", buffer, bytes, 1, err));
    NBL_TRY(nbl_pointer_check("out_bytes", out_bytes, 1, (uint32_t) _Alignof(uint64_t), err));
    NBL_TRY(nbl_api_cache_stats(cache, &stats, err));
    if (format == NBL_TEXT_JSON)
        text_add(&t, "{");
    numbers_add(&t, &stats);
    bytes_add(&t, &stats);
    tiers_add(&t, &stats);
    pages_add(&t, cache, &stats);
    layers_add(&t, cache, "cache_layer_bytes", "Codes and scales of a layer.", false);
    layers_add(&t, cache, "cache_layer_used_bytes", "Codes and scales of a layer in pages in use.", true);
    if (format == NBL_TEXT_JSON)
        text_add(&t, "}");
    *out_bytes = t.length + 1u;
    if (bytes > 0 && bytes < *out_bytes)
        return NBL_REFUSE(err, NBL_E_NO_MEMORY, "bytes is %" PRIu64 " (needed: %" PRIu64 ")", bytes, *out_bytes);
    return NBL_OK;
}
