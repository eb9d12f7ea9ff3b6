/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file metadata.c
 * @brief Page tables and other small arrays in device memory, sent only when they have changed.
 */
#include "cache.h"

#include <stdlib.h>
#include <string.h>

static bool mirror_open(nbl_mirror *mirror, uint8_t *device_block, uint64_t begin, uint64_t end)
{
    mirror->device = device_block + begin;
    mirror->next = calloc(end - begin, 1);
    mirror->sent = malloc(end - begin);
    return mirror->next != NULL && mirror->sent != NULL;
}

static void mirror_close(nbl_mirror *mirror)
{
    free(mirror->next);
    free(mirror->sent);
}

bool nbl_metadata_open(nbl_metadata *metadata, const nbl_plan *plan, void *device_block)
{
    const nbl_metadata_layout *m = &plan->metadata;
    metadata->table = malloc(plan->table_entries * sizeof *metadata->table);
    metadata->table_rows = malloc(plan->config.sequences_max * sizeof *metadata->table_rows);
    return mirror_open(&metadata->slots, device_block, m->slots, m->append_small) &&
           mirror_open(&metadata->append_small, device_block, m->append_small, m->attend_small) &&
           mirror_open(&metadata->attend_small, device_block, m->attend_small, m->table) &&
           mirror_open(&metadata->lists, device_block, m->lists, m->stats) && metadata->table != NULL &&
           metadata->table_rows != NULL;
}

void nbl_metadata_close(nbl_metadata *metadata)
{
    mirror_close(&metadata->slots);
    mirror_close(&metadata->append_small);
    mirror_close(&metadata->attend_small);
    mirror_close(&metadata->lists);
    free(metadata->table);
    free(metadata->table_rows);
    memset(metadata, 0, sizeof *metadata);
}

nbl_status nbl_mirror_send(const nbl_device *device, nbl_mirror *mirror, uint64_t bytes, nbl_stream stream,
                           nbl_error *err)
{
    if (bytes <= mirror->sent_bytes && memcmp(mirror->next, mirror->sent, bytes) == 0)
        return NBL_OK;
    mirror->sent_bytes = 0; /* unknown until the copy is on its way */
    memcpy(mirror->sent, mirror->next, bytes);
    NBL_TRY(device->backend->memory_copy(device->inner, mirror->device, mirror->sent, bytes, NBL_COPY_TO_DEVICE, stream,
                                         err));
    mirror->sent_bytes = bytes;
    return NBL_OK;
}

/* First `stride` places of a sequence into a row of the table, page 0 where there is none. */
static void table_row(const nbl_cache *cache, uint32_t index, uint32_t stride, int32_t *row)
{
    const uint32_t page_count = cache->sequences.all[index].page_count;
    const uint32_t held = page_count < stride ? page_count : stride;
    const uint32_t gone = cache->sequences.all[index].dropped / cache->plan.config.shape.page_tokens;
    memset(row, 0, stride * sizeof *row);
    if (gone < held)
        memcpy(row + gone, nbl_sequences_pages(&cache->sequences, index) + gone, (held - gone) * sizeof *row);
}

static bool table_known(const nbl_cache *cache, const uint32_t *rows, uint32_t count, uint32_t stride)
{
    const nbl_metadata *m = &cache->metadata;
    return m->table_epoch == cache->page_epoch && m->table_count == count && m->table_stride == stride &&
           memcmp(m->table_rows, rows, count * sizeof *rows) == 0;
}

nbl_status nbl_metadata_send_table(nbl_cache *cache, const uint32_t *rows, uint32_t count, uint32_t stride,
                                   nbl_stream stream, nbl_error *err)
{
    nbl_metadata *m = &cache->metadata;
    const uint64_t bytes = (uint64_t)count * stride * sizeof *m->table;
    if (bytes == 0 || table_known(cache, rows, count, stride))
        return NBL_OK;
    for (uint32_t i = 0; i < count; ++i)
        table_row(cache, rows[i], stride, m->table + (size_t)i * stride);
    m->table_count = 0;
    NBL_TRY(cache->device->backend->memory_copy(cache->device->inner,
                                                cache->metadata_block + cache->plan.metadata.table, m->table, bytes,
                                                NBL_COPY_TO_DEVICE, stream, err));
    memcpy(m->table_rows, rows, count * sizeof *rows);
    m->table_epoch = cache->page_epoch;
    m->table_count = count;
    m->table_stride = stride;
    return NBL_OK;
}
