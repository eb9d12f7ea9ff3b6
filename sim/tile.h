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

/** Sets what a dot product over `coded` asks for ahead: the codes of tile `index` of one kind, if they are there. */
void sim_tile_ahead(const sim_source *source, uint32_t index, enum nbl_kind kind, sim_coded *coded);

#endif
