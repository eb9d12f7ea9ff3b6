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

/** Scratch for groups that have to be collected from pieces of pages. */
typedef struct sim_group_buffer {
    uint8_t codes[SIM_GROUP * NBL_DIM_PADDED_MAX];
    uint8_t scales[SIM_GROUP * NBL_SCALES_MAX];
} sim_group_buffer;

/** Decodes K of tile `index` (positions 128*index ...) and sets tile->groups; only tokens below kv_len are read. */
void sim_tile_load_k(const sim_source *source, uint32_t index, sim_group_buffer *buffer, sim_tile *tile);

/** Decodes V of the tile whose K was loaded last. */
void sim_tile_load_v(const sim_source *source, uint32_t index, sim_group_buffer *buffer, sim_tile *tile);

/** Asks the caches for the encoded bytes of a tile of one kind; a hint only. */
void sim_tile_prefetch(const sim_source *source, uint32_t index, enum nbl_kind kind);

#endif
