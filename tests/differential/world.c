/* SPDX-License-Identifier: Apache-2.0 */
/** @file world.c  Devices, arrays, random numbers. */
#include "world.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STREAM_PER_THREAD 2u /* value of cudaStreamPerThread */

uint64_t world_random(world *w)
{
    uint64_t z = (w->random += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

uint32_t world_below(world *w, uint32_t n)
{
    return (uint32_t)((world_random(w) >> 32) * n >> 32);
}

uint32_t world_choice(world *w, const uint32_t *values, uint32_t n)
{
    return values[world_below(w, n)];
}

float world_normal(world *w)
{
    int32_t sum = 0;
    uint64_t bits = world_random(w);
    for (uint32_t i = 0; i < 4u; ++i) {
        sum += (int32_t)(bits >> (16u * i) & 0xffffu) - 32768;
    }
    return (float)sum / 37837.0f; /* four uniform numbers of 16 bits have this deviation */
}

void world_fail(world *w, const char *format, ...)
{
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (w->failures++ == 0) {
        snprintf(w->text, sizeof w->text, "%s: %s", w->case_text != NULL ? w->case_text : "setup", line);
    }
}

void world_expect(world *w, const side *s, nbl_status status, const nbl_error *err, const char *what)
{
    if (status != NBL_OK) {
        world_fail(w, "%s: %s returned %d: %s", s->name, what, status, err->message);
    }
}

/* ------------------------------------------------------------------------------------------------ devices */

static int open_side(world *w, side *s, const char *name)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_load_options options = NBL_INIT(nbl_load_options);
    nbl_caps caps = NBL_INIT(nbl_caps);
    options.flags = NBL_LOAD_IGNORE_ENV;
    options.backend = name;
    options.backend_dir = getenv("NIBBLE_BACKEND_DIR");
    s->name = name;
    if (w->api->load(&options, &s->runtime, NULL, &err) != NBL_OK ||
        w->api->open(s->runtime, NULL, &s->device, &err) != NBL_OK || w->api->caps(s->device, &caps, &err) != NBL_OK) {
        snprintf(w->text, sizeof w->text, "backend %s: %s", name, err.message);
        return -1;
    }
    s->stream.kind = caps.stream_kind;
    s->stream.handle = caps.stream_kind == NBL_STREAM_CUDA ? (void *)(uintptr_t)STREAM_PER_THREAD : NULL;
    return 0;
}

int world_open(world *w, const char *first, const char *second)
{
    nbl_error err = NBL_INIT(nbl_error);
    memset(w, 0, sizeof *w);
    if (nbl_get_api(NULL, &w->api, &err) != NBL_OK) {
        snprintf(w->text, sizeof w->text, "nbl_get_api: %s", err.message);
        return -1;
    }
    if (open_side(w, &w->sides[0], first) != 0 || open_side(w, &w->sides[1], second) != 0) {
        world_close(w);
        return -1;
    }
    return 0;
}

void world_close(world *w)
{
    for (uint32_t i = 0; i < SIDES; ++i) {
        (void)w->api->close(w->sides[i].device, NULL);
        (void)w->api->runtime_destroy(w->sides[i].runtime, NULL);
    }
}

/* ------------------------------------------------------------------------------------------------ arrays */

array *world_array(world *w, uint64_t bytes)
{
    array *a = &w->arrays[w->array_count++];
    if (w->array_count > ARRAYS_MAX) {
        abort();
    }
    a->bytes = bytes > 0 ? bytes : 1u;
    a->host = malloc(a->bytes + sizeof(uint64_t));
    if (a->host == NULL) {
        abort();
    }
    for (uint64_t i = 0; i < a->bytes; i += sizeof(uint64_t)) {
        uint64_t bits = world_random(w);
        memcpy(a->host + i, &bits, sizeof bits);
    }
    for (uint32_t i = 0; i < SIDES; ++i) {
        nbl_error err = NBL_INIT(nbl_error);
        void *memory = NULL;
        world_expect(w, &w->sides[i], w->api->memory_alloc(w->sides[i].device, a->bytes, &memory, &err), &err,
                     "memory_alloc");
        a->memory[i] = memory;
    }
    return a;
}

void world_send(world *w, const array *a)
{
    for (uint32_t i = 0; i < SIDES; ++i) {
        nbl_error err = NBL_INIT(nbl_error);
        const side *s = &w->sides[i];
        world_expect(
            w, s, w->api->memory_copy(s->device, a->memory[i], a->host, a->bytes, NBL_COPY_TO_DEVICE, s->stream, &err),
            &err, "memory_copy");
    }
}

void world_compare(world *w, const array *a, const char *name)
{
    uint8_t *bytes[SIDES];
    for (uint32_t i = 0; i < SIDES; ++i) {
        nbl_error err = NBL_INIT(nbl_error);
        const side *s = &w->sides[i];
        bytes[i] = malloc(a->bytes);
        if (bytes[i] == NULL) {
            abort();
        }
        world_expect(
            w, s, w->api->memory_copy(s->device, bytes[i], a->memory[i], a->bytes, NBL_COPY_TO_HOST, s->stream, &err),
            &err, "memory_copy");
        world_expect(w, s, w->api->check(s->device, s->stream, &err), &err, "check");
    }
    uint64_t differing = 0, first = 0;
    for (uint64_t i = 0; i < a->bytes; ++i) {
        if (bytes[0][i] != bytes[1][i]) {
            first = differing == 0 ? i : first;
            differing++;
        }
    }
    if (differing > 0) {
        world_fail(w, "%s: %llu of %llu bytes differ, the first at %llu (%02x and %02x)", name,
                   (unsigned long long)differing, (unsigned long long)a->bytes, (unsigned long long)first,
                   bytes[0][first], bytes[1][first]);
    }
    free(bytes[0]);
    free(bytes[1]);
}

void world_clear(world *w)
{
    for (uint32_t k = 0; k < w->array_count; ++k) {
        for (uint32_t i = 0; i < SIDES; ++i) {
            (void)w->api->memory_free(w->sides[i].device, w->arrays[k].memory[i], NULL);
        }
        free(w->arrays[k].host);
    }
    w->array_count = 0;
}
