/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file world.h
 * @brief Valid arguments of every operation, to be spoilt one at a time.
 *
 * Two layers, two kv heads, Dk 32, Dv 16, pages of 8 tokens: pages 0..3 int8/int8, pages 4..7 int4p/int8. Five tokens
 * of two sequences, three query rows of four heads. A spoilt call must be refused with its status and text, no
 * operation of the backend called, and no byte of memory changed.
 */
#ifndef WORLD_H
#define WORLD_H

#include "counting.h"

#include <criterion/criterion.h>
#include <math.h>

#define WORLD_BYTES 16384u

/** Memory of a call: every array of the arguments lies in one of these blocks. */
typedef struct world_block {
    _Alignas(256) uint8_t bytes[WORLD_BYTES];
} world_block;

enum {
    BLOCK_CODES_0,
    BLOCK_CODES_1,
    BLOCK_SCALES_0,
    BLOCK_SCALES_1,
    BLOCK_K,
    BLOCK_V,
    BLOCK_Q,
    BLOCK_O,
    BLOCK_LSE,
    BLOCK_STATE_HEAD,
    BLOCK_STATE_O,
    BLOCK_CENTERS,
    BLOCK_STATS,
    BLOCK_INDICES,
    BLOCK_WORKSPACE,
    BLOCK_OTHER,
    BLOCK_COUNT
};

typedef struct world {
    counting c;
    nbl_kv_shape shape;
    nbl_region regions[2];
    nbl_pool pool;
    nbl_kv_shape shape2;
    nbl_region regions2[2];
    nbl_pool pool2;
    nbl_append_args append;
    nbl_attend_args attend;
    nbl_gather_args gather;
    nbl_copy_pages_args copy;
    nbl_transcode_args transcode;
    nbl_merge_args merge; /**< of states */
    nbl_merge_args pairs;
    nbl_op_desc desc;
} world;

/** Opens the backend and fills in valid arguments. */
void world_open(world *w);

/** A block of poisoned memory by its BLOCK_ number. */
uint8_t *world_memory(uint32_t block);

/** Checks a refusal: status, text, origin, one line, no operation called, no memory changed; then closes the world. */
void world_expect(world *w, nbl_status got, const nbl_error *err, nbl_status status, const char *text);

/** A packed tensor of up to four axes over a block; unused axes are 0. */
nbl_tensor world_tensor(uint32_t block, uint32_t dtype, uint32_t rank, uint64_t n0, uint64_t n1, uint64_t n2,
                        uint64_t n3);

/** Defines test suite/name: spoils a valid world by the expressions in __VA_ARGS__, and operation must refuse it. */
#define BAD(suite, name, operation, field, status, text, ...)                                 \
    Test(suite, name)                                                                         \
    {                                                                                         \
        world w;                                                                              \
        nbl_error err = NBL_INIT(nbl_error);                                                  \
        world_open(&w);                                                                       \
        __VA_ARGS__;                                                                          \
        world_expect(&w, w.c.api->operation(w.c.device, &w.field, &err), &err, status, text); \
    }

#endif
