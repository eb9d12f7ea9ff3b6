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

/** A JSON object of the counters nan_inputs, inf_inputs, saturated, flushed. */
json_t *nbl_json_quant(const nbl_quant_stats *quant);

/** Prints a line of the counters if one is not zero. */
void nbl_quant_print(const char *heading, const nbl_quant_stats *quant);

/** Warns on standard error, in one line, of input that holds NaN or infinities. */
void nbl_quant_warn(const nbl_quant_stats *quant);

/** A number with digits after the point; "n/a" if it is not finite. Returns text. */
const char *nbl_real_text(double value, int digits, char text[32]);

/** Fails with --max-error if rel_l2 is above the bound or not defined; a bound that is NaN was not given. */
int nbl_max_error_check(double rel_l2, double max_error, nbl_fault *fault);

/** Prints a document (may be NULL: no memory) and drops it. */
int nbl_json_print(json_t *document, nbl_fault *fault);

/** Bytes with a binary unit, such as "12.3 MiB". Returns text. */
const char *nbl_bytes_text(uint64_t bytes, char text[32]);

#endif
