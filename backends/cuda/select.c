/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file select.c
 * @brief Workspace plan and kernel choice of attend.
 */
#include "select.h"

#include <nibble/nibble_types.h>

#define SEQUENCE_BYTES 16u /* sizeof(cuda_sequence), sizeof(cuda_query); asserted in attend.c */
#define QUERY_BYTES 16u
#define CODE_BYTES 2u /* of a query element, in the float core */
#define DIM_BLOCK 32u
#define STATE_HEAD_FLOATS 4u
#define TILE_TOKENS 128u
#define PREFILL_ROWS 128u
#define PARAMETER_BYTES 12u /* of a token in an image */
#define COMMON_BYTES 16u    /* of the tile */
#define CAPABILITY_MIN 80u

int cuda_capability_supported(uint32_t capability)
{
    return capability >= CAPABILITY_MIN;
}

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + CUDA_WORKSPACE_ALIGNMENT - 1u) / CUDA_WORKSPACE_ALIGNMENT * CUDA_WORKSPACE_ALIGNMENT;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint32_t padded(uint32_t dim)
{
    return (dim + DIM_BLOCK - 1u) / DIM_BLOCK * DIM_BLOCK;
}

/* Query tokens of a decode-like call: those that may share CUDA_DECODE_ROWS_MAX rows per kv head. */
static uint64_t decode_tokens(const attend_bounds *b)
{
    uint64_t per_sequence = CUDA_DECODE_ROWS_MAX / (b->q_heads / b->kv_heads);
    return min_u64(b->q_tokens, b->batch * min_u64(b->q_len_max, per_sequence));
}

uint32_t cuda_prefill_dim(uint32_t k_dim, uint32_t v_dim)
{
    uint32_t dim = k_dim > v_dim ? k_dim : v_dim;
    return dim <= 64u ? 64u : dim <= CUDA_PREFILL_DIM_MAX ? 128u : 0u;
}

uint64_t cuda_prefill_image_bytes(uint32_t dim)
{
    return TILE_TOKENS * (2u * (uint64_t)dim + PARAMETER_BYTES) + COMMON_BYTES;
}

int cuda_prefill_splits(const attend_bounds *b)
{
    uint64_t rows_per_head = (uint64_t)b->q_len_max * (b->q_heads / b->kv_heads);
    uint64_t blocks = (rows_per_head + PREFILL_ROWS - 1u) / PREFILL_ROWS;
    return blocks * b->batch * b->kv_heads < b->processors;
}

/* Images of all units if they fit, else of as many as do, but of one at least; slabs of equal size. */
static void plan_images(cuda_plan *p, const attend_bounds *b)
{
    uint64_t rows_per_head = (uint64_t)b->q_len_max * (b->q_heads / b->kv_heads);
    uint32_t dim = cuda_prefill_dim(b->k_dim, b->v_dim);
    uint64_t units = (uint64_t)b->batch * b->kv_heads;
    uint64_t token_bytes = (uint64_t)b->q_heads * padded(b->k_dim); /* of codes; prefill_query_walk counts in 32 bits */
    p->items_at = p->totals_at = p->images_at = p->bytes;
    if (dim == 0 || rows_per_head < CUDA_PREFILL_ROWS_MIN || units == 0 || token_bytes > UINT32_MAX) {
        return;
    }
    p->image_tiles = b->kv_len_max == 0 ? 1u : (b->kv_len_max + TILE_TOKENS - 1u) / TILE_TOKENS;
    uint64_t unit_bytes = p->image_tiles * cuda_prefill_image_bytes(dim);
    uint64_t fit = max_u64(CUDA_PREFILL_IMAGES_MAX / unit_bytes, 1u);
    uint64_t slabs = (units + fit - 1u) / fit;
    p->slab_units = (uint32_t)((units + slabs - 1u) / slabs);
    p->totals_at = p->items_at + aligned((min_u64(units, fit) + 2u) * sizeof(uint32_t));
    p->images_at = p->totals_at + aligned((uint64_t)b->processors * PREFILL_ROWS * dim * sizeof(float));
    p->bytes = p->images_at + aligned(min_u64(units * unit_bytes, max_u64(CUDA_PREFILL_IMAGES_MAX, unit_bytes)));
}

static void plan_centers(cuda_plan *p, const attend_bounds *b)
{
    uint64_t parts = b->q_centers ? 2u * (uint64_t)b->batch * b->q_heads : 0u;
    p->center_queries_at = p->bytes;
    p->center_codes_at = p->center_queries_at + aligned(parts * QUERY_BYTES);
    p->bytes = p->center_codes_at + aligned(parts * padded(b->k_dim));
}

/* Few rows over a cache are always split, so that all multiprocessors have work; many rows only where the states are
 * small.
 * Neither looks at the range: no call within the bounds needs more workspace than the bounds say. */
cuda_plan cuda_plan_make(const attend_bounds *b)
{
    cuda_plan p = {0};
    uint64_t rows_per_head = (uint64_t)b->q_len_max * (b->q_heads / b->kv_heads);
    p.chunks = (b->kv_len_max + NBL_CHUNK_TOKENS - 1u) / NBL_CHUNK_TOKENS;
    p.state_floats = STATE_HEAD_FLOATS + padded(b->v_dim);
    p.rows = b->q_tokens * b->q_heads;
    uint64_t bytes_per_row = (uint64_t)p.chunks * p.state_floats * sizeof(float);
    uint64_t states = p.rows * bytes_per_row;
    uint64_t decode_states = decode_tokens(b) * b->q_heads * bytes_per_row;
    p.split = rows_per_head <= CUDA_DECODE_ROWS_MAX || states <= CUDA_SPLIT_BYTES_MAX;
    p.states_bytes = max_u64(min_u64(states, CUDA_SPLIT_BYTES_MAX), decode_states);
    p.ends_at = aligned((uint64_t)b->batch * SEQUENCE_BYTES);
    p.queries_at = p.ends_at + aligned((uint64_t)b->batch * b->kv_heads * sizeof(uint32_t));
    p.codes_at = p.queries_at + aligned(p.rows * QUERY_BYTES);
    p.states_at = p.codes_at + aligned(p.rows * padded(b->k_dim) * CODE_BYTES);
    p.bytes = p.states_at + aligned(p.states_bytes);
    plan_images(&p, b);
    plan_centers(&p, b);
    return p;
}

void cuda_plan_restrict(cuda_plan *plan, uint32_t range_begin, uint32_t range_end)
{
    if (range_end == 0) {
        return;
    }
    uint32_t end = (uint32_t)min_u64(range_end / NBL_CHUNK_TOKENS, plan->chunks);
    plan->first_chunk = range_begin / NBL_CHUNK_TOKENS;
    plan->chunks = end > plan->first_chunk ? end - plan->first_chunk : 0;
}
