/* SPDX-License-Identifier: Apache-2.0 */
/** @file output.h @brief Tables for people, JSON and CSV for programs. */
#ifndef NBL_CLI_OUTPUT_H
#define NBL_CLI_OUTPUT_H

#include "reference.h"

#include <jansson.h>
#include <stdbool.h>

#define NBL_TABLE_COLUMNS_MAX 16u

/** Cells of text, printed when all are known. */
typedef struct nbl_table {
    uint32_t columns;
    size_t cell_count;
    size_t cell_capacity;
    char (*cells)[64];
} nbl_table;

/** Starts a table with its headings. */
void nbl_table_start(nbl_table *table, const char *const *headings, uint32_t columns);

/** Appends one cell, row by row; longer text than 63 bytes is cut. */
void nbl_table_add(nbl_table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** Prints with aligned columns, first column to the left, the others to the right. */
void nbl_table_print(const nbl_table *table);

/** Prints as CSV with the headings as first line. */
void nbl_table_print_csv(const nbl_table *table);

/** Frees the cells. */
void nbl_table_free(nbl_table *table);

/** A JSON number; null if it is not finite. */
json_t *nbl_json_real(double value);

/** A JSON whole number. */
json_t *nbl_json_uint(uint64_t value);

/** A JSON string of any bytes: text that is not UTF-8 gets '?' for its bytes beyond ASCII. */
json_t *nbl_json_text(const char *text);

/** Adds rel_l2, gain, cos_mean, cos_min, lse_err to an object. */
void nbl_json_set_accuracy(json_t *object, const nbl_accuracy *accuracy);

/** Prints a document (may be NULL: no memory) and drops it. */
int nbl_json_print(json_t *document, nbl_fault *fault);

/** Bytes with a binary unit, such as "12.3 MiB". Returns text. */
const char *nbl_bytes_text(uint64_t bytes, char text[32]);

#endif
