/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file gguf.h
 * @brief Reads model files (GGUF version 3, little-endian): metadata, tensors, and rows of tensors as floats.
 */
#ifndef GGUF_H
#define GGUF_H

#include <stddef.h>
#include <stdint.h>

/** An open file, mapped into memory. */
typedef struct gguf gguf;

/** One tensor: rows of `columns` numbers each. */
typedef struct gguf_tensor {
    const unsigned char *data;
    uint64_t columns;
    uint64_t rows;
    uint64_t row_bytes;
    uint32_t type; /**< number in the file format; those that gguf_row knows */
} gguf_tensor;

/** A list in the metadata. */
typedef struct gguf_list {
    const unsigned char *data;
    uint64_t count;
    uint32_t type;
} gguf_list;

/** Text in the file, without a NUL. */
typedef struct gguf_text {
    const char *bytes;
    uint64_t count;
} gguf_text;

/** Opens a file; NULL, and one line on stderr, if it is none or damaged. */
gguf *gguf_open(const char *path);
void gguf_close(gguf *file);

/** Finds a tensor; 0 if there is none of this name, or of a type that gguf_row does not know. */
int gguf_find_tensor(const gguf *file, const char *name, gguf_tensor *out_tensor);

/** Number in the metadata, or fallback if there is none. */
double gguf_number(const gguf *file, const char *key, double fallback);

/** Text in the metadata; count 0 if there is none. */
gguf_text gguf_string(const gguf *file, const char *key);

/** A list in the metadata; 0 if there is none of this element type (5 int32, 6 float32, 8 string). */
int gguf_find_list(const gguf *file, const char *key, uint32_t type, gguf_list *out_list);

/** Next text of a list of strings; *at starts at 0. */
gguf_text gguf_list_text(const gguf_list *list, uint64_t *at);

/** One row of a tensor as `columns` floats. */
void gguf_row(const gguf_tensor *tensor, uint64_t row, float *out);

#endif
