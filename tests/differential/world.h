/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file world.h
 * @brief Two open devices and arrays that live on both.
 */
#ifndef DIFFERENTIAL_WORLD_H
#define DIFFERENTIAL_WORLD_H

#include <nibble/nibble.h>

#define SIDES 2u
#define ARRAYS_MAX 64u

/** An open backend. */
typedef struct side {
    const char *name;
    nbl_runtime *runtime;
    nbl_device *device;
    nbl_stream stream;
} side;

/** Bytes on both devices. */
typedef struct array {
    uint64_t bytes;
    uint8_t *host; /**< what both sides started with */
    uint8_t *memory[SIDES];
} array;

/** The two devices and the arrays of the case at hand. */
typedef struct world {
    const nbl_api_v1 *api;
    side sides[SIDES];
    array arrays[ARRAYS_MAX];
    uint32_t array_count;
    uint64_t random;
    uint32_t failures;
    char text[1024]; /**< the first failure */
    char *case_text; /**< what the case at hand is */
} world;

/** Next random number. */
uint64_t world_random(world *w);
/** Uniform in 0..n-1. */
uint32_t world_below(world *w, uint32_t n);
/** One of the n values. */
uint32_t world_choice(world *w, const uint32_t *values, uint32_t n);
/** Standard normal, nearly. */
float world_normal(world *w);

/** Opens both; 0, or -1 with the reason in w->text. */
int world_open(world *w, const char *first, const char *second);
void world_close(world *w);

/** Counts a failure and keeps the text of the first one. */
void world_fail(world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** Fails unless status is NBL_OK. */
void world_expect(world *w, const side *s, nbl_status status, const nbl_error *err, const char *what);

/** An array of both sides, filled with random bytes on the host; send makes them equal. */
array *world_array(world *w, uint64_t bytes);
/** Host bytes to both devices. */
void world_send(world *w, const array *a);
/** Fails unless both devices hold the same bytes; name is the array's. */
void world_compare(world *w, const array *a, const char *name);
/** Frees the arrays of a case. */
void world_clear(world *w);

#endif
