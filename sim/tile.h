/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tile.h
 * @brief Brings 128 tokens of one kv head from their pages into a decoded tile.
 */
#ifndef SIM_TILE_H
#define SIM_TILE_H

#include "isa.h"

/** Tokens of one sequence and kv head, as attend sees them. */
typedef struct sim_source {
    const sim_isa *isa;
    const nbl_pool *pool;
    const nbl_page_layout *layouts; /**< of the pool's regions */
    const int32_t *page_table;      /**< of the sequence */
    uint32_t layer;
    uint32_t head;
    uint32_t kv_len;
} sim_source;

/** Room for the groups of a tile that have to be collected from pieces of pages. */
typedef struct sim_tile_buffer {
    uint8_t codes[SIM_GROUPS][SIM_GROUP * NBL_DIM_PADDED_MAX];
    uint8_t scales[SIM_GROUPS][SIM_GROUP * NBL_SCALES_MAX];
} sim_tile_buffer;

/** Finds K or V of tile `index` (positions 128*index ...), of which only tokens below kv_len exist. Groups that lie
 * whole in a page stay where they are; others are collected in the buffer. */
void sim_tile_find(const sim_source *source, uint32_t index, enum nbl_kind kind, sim_tile_buffer *buffer,
                   sim_coded *coded);

/** 1 if no group of the source has to be collected: finding a tile is cheap and needs no buffer. */
int sim_tile_lies_whole(const sim_source *source);

/** While `coded` is worked on, `next` is asked for. */
static inline void sim_tile_ahead(sim_coded *coded, const sim_coded *next)
{
    for (uint32_t g = 0; g < next->count; ++g) {
        coded->ahead[g] = next->group[g].codes;
    }
    coded->ahead_bytes =
        next->count == 0 ? 0 : SIM_GROUP * nbl_layout_code_bytes(next->group[0].format, next->group[0].dim);
}

#endif
