/* SPDX-License-Identifier: Apache-2.0 */
/** @file harness.h @brief Runs the tool as a user does and keeps what it says. */
#ifndef NBL_TEST_CLI_HARNESS_H
#define NBL_TEST_CLI_HARNESS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/** What one run left behind; free with tool_free. */
typedef struct tool_result {
    int exit_code; /**< -1 if it did not end by itself */
    char *out;
    char *err;
} tool_result;

/** Runs the tool with arguments up to NULL. Its environment holds what tests need and the variables up to NULL. */
tool_result tool_run(const char *const *variables, const char *const *arguments);

/** Frees the texts. */
void tool_free(tool_result *result);

/** Runs with NIBBLE_BACKEND=sim and arguments given inline. */
#define TOOL(...) tool_run((const char *const[]){"NIBBLE_BACKEND=sim", NULL}, (const char *const[]){__VA_ARGS__, NULL})

/** Asserts exit 0 and an empty stderr; returns the JSON document of stdout, freeing the result. */
json_t *tool_json(tool_result result);

/** Asserts that an object has exactly these keys (space-separated, any order). */
void assert_keys(const json_t *object, const char *keys);

/** Number at a path of keys and indices such as "rows.0.rel_l2"; fails the test if there is none. */
double number_at(const json_t *document, const char *path);

/** Text at a path. */
const char *text_at(const json_t *document, const char *path);

/** Name inside a directory that exists for the life of the test process. Returns a static string of 8 in turn. */
const char *scratch(const char *name);

/** Writes a file. */
void write_bytes(const char *path, const void *bytes, size_t size);

/** Reads a whole file; the caller frees. */
uint8_t *read_bytes(const char *path, size_t *out_size);

/** Writes a .npy of f32 (deterministic values from seed) with three dimensions. */
void write_npy(const char *path, uint32_t a, uint32_t b, uint32_t c, uint32_t seed);

/** A value in [-1, 1) that bf16, fp16 and f32 all hold exactly. */
float sample(uint32_t seed, uint64_t index);

/** Writes a safetensors file: header text as given, then data. */
void write_safetensors(const char *path, const char *header, const void *data, size_t data_bytes);

#endif
