/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file centers.c
 * @brief Rows of centres and channel shifts (NUM 4.2, 4.5): shared by a sequence and its forks, copied before one of
 * them computes a centre anew.
 */
#include "cache.h"

#include <stdlib.h>

bool nbl_rows_open(nbl_rows *rows, const nbl_plan *plan)
{
    rows->total = rows->free = plan->center_rows;
    rows->layers = plan->config.shape.layers;
    rows->refs = calloc(rows->total, sizeof *rows->refs);
    rows->basis = calloc((size_t)rows->total * rows->layers, sizeof *rows->basis);
    rows->free_stack = malloc(rows->total * sizeof *rows->free_stack);
    if (rows->refs == NULL || rows->basis == NULL || rows->free_stack == NULL)
        return false;
    for (uint32_t i = 0; i < rows->total; ++i)
        rows->free_stack[i] = rows->total - 1u - i;
    return true;
}

void nbl_rows_close(nbl_rows *rows)
{
    free(rows->refs);
    free(rows->basis);
    free(rows->free_stack);
    *rows = (nbl_rows){.refs = NULL};
}

uint32_t nbl_rows_take(nbl_rows *rows)
{
    const uint32_t row = rows->free_stack[--rows->free];
    rows->refs[row] = 1;
    return row;
}

void nbl_rows_share(nbl_rows *rows, uint32_t row)
{
    rows->refs[row]++;
}

void nbl_rows_release(nbl_rows *rows, uint32_t row)
{
    if (--rows->refs[row] == 0)
        rows->free_stack[rows->free++] = row;
}

uint32_t nbl_plan_basis(const nbl_plan *plan, uint32_t tokens)
{
    const nbl_cache_config *config = &plan->config;
    if (config->shape.centering == 0 || tokens < NBL_CENTER_TOKENS_MIN)
        return 0;
    return tokens < config->center_tokens ? tokens : config->center_tokens;
}

uint32_t nbl_cache_basis(const nbl_cache *cache, uint32_t index, bool *out_equal)
{
    uint32_t most = 0, least = UINT32_MAX;
    for (uint32_t layer = 0; layer < cache->sequences.layers; ++layer) {
        if (*nbl_sequences_length(&cache->sequences, index, layer) == 0)
            continue;
        const uint32_t basis = *nbl_rows_basis(&cache->rows, cache->sequences.all[index].row, layer);
        most = basis > most ? basis : most;
        least = basis < least ? basis : least;
    }
    *out_equal = most == least || least == UINT32_MAX;
    return most;
}

nbl_centers nbl_cache_centers(const nbl_cache *cache, uint32_t layer, const int32_t *rows)
{
    const nbl_kv_shape *shape = &cache->plan.config.shape;
    const uint64_t heads = (uint64_t)layer * cache->plan.center_rows * shape->kv_heads;
    nbl_centers centers = {.row_count = cache->plan.center_rows};
    if (shape->centering == 0)
        return centers;
    if ((shape->centering & NBL_CENTERING_MEAN) != 0) {
        centers.codes = (int8_t *)cache->centers + cache->plan.center_codes + heads * shape->k_dim;
        centers.exponents = (uint8_t *)cache->centers + cache->plan.center_exponents + heads;
    }
    if ((shape->centering & NBL_CENTERING_SHIFT) != 0)
        centers.shifts = (uint8_t *)cache->centers + cache->plan.center_shifts + heads * shape->k_dim;
    centers.rows = rows;
    return centers;
}

/* Copies row `from` of an array [rows, row_bytes] to row `to`; nothing if the array is absent. */
static nbl_status row_copy(const nbl_cache *cache, void *array, uint64_t row_bytes, uint32_t from, uint32_t to,
                           nbl_stream stream, nbl_error *err)
{
    uint8_t *bytes = array;
    if (bytes == NULL)
        return NBL_OK;
    return cache->device->backend->memory_copy(cache->device->inner, bytes + to * row_bytes, bytes + from * row_bytes,
                                               row_bytes, NBL_COPY_ON_DEVICE, stream, err);
}

static nbl_status layer_copy(const nbl_cache *cache, uint32_t layer, uint32_t from, uint32_t to, nbl_stream stream,
                             nbl_error *err)
{
    const nbl_kv_shape *shape = &cache->plan.config.shape;
    const nbl_centers c = nbl_cache_centers(cache, layer, NULL);
    const uint64_t codes = (uint64_t)shape->kv_heads * shape->k_dim;
    NBL_TRY(row_copy(cache, c.codes, codes, from, to, stream, err));
    NBL_TRY(row_copy(cache, c.exponents, shape->kv_heads, from, to, stream, err));
    return row_copy(cache, c.shifts, codes, from, to, stream, err);
}

nbl_status nbl_cache_row_own(nbl_cache *cache, uint32_t index, nbl_stream stream, nbl_error *err)
{
    nbl_sequence *sequence = &cache->sequences.all[index];
    if (cache->rows.refs[sequence->row] == 1)
        return NBL_OK;
    const uint32_t row = nbl_rows_take(&cache->rows);
    for (uint32_t layer = 0; layer < cache->sequences.layers; ++layer) {
        if (*nbl_sequences_length(&cache->sequences, index, layer) == 0)
            continue;
        const nbl_status status = layer_copy(cache, layer, sequence->row, row, stream, err);
        if (status != NBL_OK) {
            nbl_rows_release(&cache->rows, row);
            return status;
        }
        *nbl_rows_basis(&cache->rows, row, layer) = *nbl_rows_basis(&cache->rows, sequence->row, layer);
    }
    nbl_rows_release(&cache->rows, sequence->row);
    sequence->row = row;
    return NBL_OK;
}
