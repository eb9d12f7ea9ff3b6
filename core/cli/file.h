/* SPDX-License-Identifier: Apache-2.0 */
/** @file file.h @brief Whole files in memory, and arrays read from or written to them. */
#ifndef NBL_CLI_FILE_H
#define NBL_CLI_FILE_H

#include "fault.h"

#include <stdbool.h>

/** Bytes of a file. */
typedef struct nbl_file {
    uint8_t *bytes;
    uint64_t size;
} nbl_file;

/** An array of f32, f16 or bf16 inside a file's bytes; its data need no alignment. */
typedef struct nbl_array {
    const uint8_t *data;
    uint32_t dtype; /**< enum nbl_dtype */
    uint32_t rank;  /**< at most NBL_RANK_MAX */
    uint64_t shape[NBL_RANK_MAX];
    uint64_t count; /**< elements: product of shape */
} nbl_array;

/** Reads a regular file as a whole; anything else (directory, FIFO, unreadable) is a fault NBL_EXIT_INPUT. */
int nbl_file_read(const char *path, nbl_file *out_file, nbl_fault *fault);

/** Frees the bytes. */
void nbl_file_free(nbl_file *file);

/** The line of a file that begins at *at, without its end, which *at is moved past. False at the end of the file. */
bool nbl_file_line(const nbl_file *file, uint64_t *at, const char **out_text, uint64_t *out_bytes);

/** A run of bytes to be written. */
typedef struct nbl_part {
    const void *bytes;
    uint64_t size;
} nbl_part;

/** Says whether nbl_file_write could write there, before the work that makes what is to be written. NULL is fine. */
int nbl_file_check_out(const char *path, nbl_fault *fault);

/** Writes the parts as one file, through a temporary name beside it: an old file stays until all is written. */
int nbl_file_write(const char *path, const nbl_part *parts, uint32_t count, nbl_fault *fault);

/** Bytes of one element, 0 for an unknown dtype. */
uint32_t nbl_dtype_bytes(uint32_t dtype);

/** Product of the dimensions and the element size in bytes; false if it overflows. */
bool nbl_shape_bytes(const uint64_t *shape, uint32_t rank, uint32_t element_bytes, uint64_t *out_bytes);

/** Converts count elements to f32 (exact). */
void nbl_array_to_f32(const nbl_array *array, float *out_values);

/** Rounds count f32 values to bf16, to nearest even; NaN stays NaN. */
void nbl_f32_to_bf16(const float *values, uint64_t count, uint16_t *out_values);

#endif
