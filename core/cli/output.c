/* SPDX-License-Identifier: Apache-2.0 */
#include "output.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void nbl_table_start(nbl_table *table, const char *const *headings, uint32_t columns)
{
    *table = (nbl_table){.columns = columns};
    for (uint32_t i = 0; i < columns; i++)
        nbl_table_add(table, "%s", headings[i]);
}

void nbl_table_add(nbl_table *table, const char *format, ...)
{
    if (table->cell_count == table->cell_capacity) {
        size_t capacity = table->cell_capacity ? 2 * table->cell_capacity : 64;
        void *cells = realloc(table->cells, capacity * sizeof table->cells[0]);
        if (!cells)
            return; /* the table ends here */
        table->cells = cells;
        table->cell_capacity = capacity;
    }
    va_list arguments;
    va_start(arguments, format);
    char *cell = table->cells[table->cell_count++];
    if (vsnprintf(cell, sizeof table->cells[0], format, arguments) < 0)
        cell[0] = '\0';
    va_end(arguments);
}

void nbl_table_free(nbl_table *table)
{
    free(table->cells);
    *table = (nbl_table){0};
}

void nbl_table_print(const nbl_table *table)
{
    int widths[NBL_TABLE_COLUMNS_MAX] = {0};
    for (size_t i = 0; i < table->cell_count; i++) {
        int width = (int)strlen(table->cells[i]);
        int *widest = &widths[i % table->columns];
        *widest = width > *widest ? width : *widest;
    }
    for (size_t i = 0; i < table->cell_count; i++) {
        size_t column = i % table->columns;
        bool last = column + 1 == table->columns;
        printf("%*s%s", column == 0 ? -widths[0] : widths[column], table->cells[i], last ? "\n" : "  ");
    }
}

void nbl_table_print_csv(const nbl_table *table)
{
    for (size_t i = 0; i < table->cell_count; i++) {
        const char *quote = strchr(table->cells[i], ',') ? "\"" : ""; /* recipes may hold commas, but no quotes */
        printf("%s%s%s%s", quote, table->cells[i], quote, (i + 1) % table->columns == 0 ? "\n" : ",");
    }
}

json_t *nbl_json_real(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *nbl_json_uint(uint64_t value)
{
    return json_integer((json_int_t)value);
}

json_t *nbl_json_text(const char *text)
{
    json_t *value = json_string(text ? text : "");
    char *copy = value ? NULL : strdup(text);
    if (!copy)
        return value;
    for (char *at = copy; *at != '\0'; at++)
        *at = (unsigned char)*at < 0x80 ? *at : '?';
    value = json_string(copy);
    free(copy);
    return value;
}

void nbl_json_set_accuracy(json_t *object, const nbl_accuracy *accuracy)
{
    json_object_set_new(object, "rel_l2", nbl_json_real(accuracy->rel_l2));
    json_object_set_new(object, "gain", nbl_json_real(accuracy->gain));
    json_object_set_new(object, "cos_mean", nbl_json_real(accuracy->cos_mean));
    json_object_set_new(object, "cos_min", nbl_json_real(accuracy->cos_min));
    json_object_set_new(object, "lse_err", nbl_json_real(accuracy->lse_err));
}

json_t *nbl_json_quant(const nbl_quant_stats *quant)
{
    return json_pack("{s:o, s:o, s:o, s:o}", "nan_inputs", nbl_json_uint(quant->nan_inputs), "inf_inputs",
                     nbl_json_uint(quant->inf_inputs), "saturated", nbl_json_uint(quant->saturated), "flushed",
                     nbl_json_uint(quant->flushed));
}

void nbl_quant_print(const char *heading, const nbl_quant_stats *quant)
{
    if (quant->nan_inputs || quant->inf_inputs || quant->saturated || quant->flushed)
        printf("%s%" PRIu64 " NaN, %" PRIu64 " infinite, %" PRIu64 " saturated elements, %" PRIu64
               " vectors flushed to zero\n",
               heading, quant->nan_inputs, quant->inf_inputs, quant->saturated, quant->flushed);
}

void nbl_quant_warn(const nbl_quant_stats *quant)
{
    if (quant->nan_inputs > 0 || quant->inf_inputs > 0)
        fprintf(stderr,
                "nibble: warning: K and V hold %" PRIu64 " NaN, stored as 0, and %" PRIu64
                " infinite elements, clamped\n",
                quant->nan_inputs, quant->inf_inputs);
}

const char *nbl_real_text(double value, int digits, char text[32])
{
    snprintf(text, 32, "%.*f", digits, value);
    return isfinite(value) ? text : "n/a";
}

int nbl_max_error_check(double rel_l2, double max_error, nbl_fault *fault)
{
    if (isnan(max_error) || rel_l2 <= max_error)
        return NBL_EXIT_OK;
    if (!isfinite(rel_l2))
        return nbl_fault_set(fault, NBL_EXIT_FAILED,
                             "--max-error: rel_l2 is not defined: the input is not finite, or the reference is zero");
    return nbl_fault_set(fault, NBL_EXIT_FAILED, "--max-error: rel_l2 %g is not within %g", rel_l2, max_error);
}

int nbl_json_print(json_t *document, nbl_fault *fault)
{
    if (!document)
        return nbl_fault_set(fault, NBL_EXIT_FAILED, "no memory for the JSON document");
    int failed = json_dumpf(document, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
    json_decref(document);
    printf("\n");
    return failed ? nbl_fault_set(fault, NBL_EXIT_FAILED, "cannot write JSON to standard output") : NBL_EXIT_OK;
}

const char *nbl_bytes_text(uint64_t bytes, char text[32])
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t unit = 0;
    if (bytes < 1024) {
        snprintf(text, 32, "%" PRIu64 " B", bytes);
        return text;
    }
    for (value /= 1024.0; value >= 1024.0 && unit + 1 < sizeof units / sizeof units[0]; unit++)
        value /= 1024.0;
    snprintf(text, 32, "%.*f %s", value < 10.0 ? 2 : 1, value, units[unit]);
    return text;
}
