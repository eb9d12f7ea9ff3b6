/* SPDX-License-Identifier: Apache-2.0 */
#include "npy.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char magic[] = "\x93NUMPY";
enum { MAGIC_BYTES = 6, ALIGNMENT = 64, DESCR_MAX = 32 };

/* The header is a Python dict literal; the cursor walks over it. */
typedef struct cursor {
    const char *at;
    const char *end;
} cursor;

/* What the dict says; each key must come exactly once. */
typedef struct header {
    char descr[DESCR_MAX];
    bool fortran_order;
    uint32_t rank;
    uint64_t shape[NBL_RANK_MAX];
    bool has_descr, has_order, has_shape;
} header;

static void skip_space(cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t' || *c->at == '\r'))
        c->at++;
}

static bool take(cursor *c, char wanted)
{
    skip_space(c);
    if (c->at == c->end || *c->at != wanted)
        return false;
    c->at++;
    return true;
}

static bool take_word(cursor *c, const char *word)
{
    size_t length = strlen(word);
    skip_space(c);
    if ((size_t)(c->end - c->at) < length || memcmp(c->at, word, length) != 0)
        return false;
    c->at += length;
    return true;
}

static bool take_string(cursor *c, char *out, size_t out_bytes)
{
    char quote = take(c, '\'') ? '\'' : '"';
    if (quote == '"' && !take(c, '"'))
        return false;
    size_t length = 0;
    while (c->at < c->end && *c->at != quote) {
        if (length + 1 >= out_bytes || *c->at == '\\')
            return false;
        out[length++] = *c->at++;
    }
    out[length] = '\0';
    return take(c, quote);
}

static bool take_number(cursor *c, uint64_t *out)
{
    skip_space(c);
    uint64_t value = 0;
    const char *begin = c->at;
    while (c->at < c->end && *c->at >= '0' && *c->at <= '9') {
        uint64_t digit = (uint64_t)(*c->at - '0');
        if (value > (UINT64_MAX - digit) / 10)
            return false;
        value = value * 10 + digit;
        c->at++;
    }
    *out = value;
    return c->at != begin;
}

static const char *take_shape(cursor *c, header *out)
{
    if (!take(c, '('))
        return "'shape' is not a tuple";
    while (!take(c, ')')) {
        if (out->rank == NBL_RANK_MAX)
            return "'shape' has more than 5 dimensions";
        if (!take_number(c, &out->shape[out->rank]))
            return "'shape' holds something else than whole numbers";
        out->rank++;
        if (!take(c, ',')) {
            if (!take(c, ')'))
                return "'shape' is not closed";
            break;
        }
    }
    return NULL;
}

static const char *take_item(cursor *c, header *out)
{
    char key[DESCR_MAX];
    if (!take_string(c, key, sizeof key) || !take(c, ':'))
        return "header is not a dict of 'descr', 'fortran_order', 'shape'";
    if (strcmp(key, "descr") == 0 && !out->has_descr) {
        out->has_descr = true;
        return take_string(c, out->descr, sizeof out->descr) ? NULL : "'descr' is not a simple type";
    }
    if (strcmp(key, "fortran_order") == 0 && !out->has_order) {
        out->has_order = true;
        out->fortran_order = take_word(c, "True");
        return out->fortran_order || take_word(c, "False") ? NULL : "'fortran_order' is neither True nor False";
    }
    if (strcmp(key, "shape") == 0 && !out->has_shape) {
        out->has_shape = true;
        return take_shape(c, out);
    }
    return "header has an unknown or repeated key";
}

static const char *read_header(cursor c, header *out)
{
    if (!take(&c, '{'))
        return "header is not a dict";
    while (!take(&c, '}')) {
        const char *problem = take_item(&c, out);
        if (problem)
            return problem;
        if (!take(&c, ',')) {
            if (!take(&c, '}'))
                return "header dict is not closed";
            break;
        }
    }
    skip_space(&c);
    if (c.at != c.end)
        return "bytes follow the header dict";
    if (!out->has_descr || !out->has_order || !out->has_shape)
        return "header lacks 'descr', 'fortran_order' or 'shape'";
    return NULL;
}

static int npy_fault(nbl_fault *fault, const char *name, const char *what)
{
    return nbl_fault_set(fault, NBL_EXIT_INPUT, "%.300s: %s", name, what);
}

static int find_dtype(const char *name, const char *descr, uint32_t *out_dtype, nbl_fault *fault)
{
    if (strcmp(descr, "<f4") == 0) {
        *out_dtype = NBL_F32;
    } else if (strcmp(descr, "<f2") == 0) {
        *out_dtype = NBL_F16;
    } else if (strcmp(descr, "|V2") == 0 || strcmp(descr, "<V2") == 0 || strcmp(descr, "bfloat16") == 0) {
        return npy_fault(fault, name, "bf16 in .npy carries no type; save f4, or use safetensors");
    } else {
        return nbl_fault_set(fault, NBL_EXIT_INPUT, "%.300s: type '%.32s', allowed are '<f4' and '<f2'", name, descr);
    }
    return NBL_EXIT_OK;
}

/* Cuts the header text out of the file; data begin where it ends. */
static const char *find_header(const uint8_t *bytes, uint64_t size, cursor *out)
{
    if (size < MAGIC_BYTES + 2 || memcmp(bytes, magic, MAGIC_BYTES) != 0)
        return "not a .npy file";
    uint8_t major = bytes[MAGIC_BYTES];
    if (major < 1 || major > 3)
        return ".npy version is not 1, 2 or 3";
    uint32_t length_bytes = major == 1 ? 2 : 4;
    uint64_t begin = MAGIC_BYTES + 2 + length_bytes;
    if (size < begin)
        return "truncated in its header";
    uint64_t length = 0;
    for (uint32_t i = 0; i < length_bytes; i++)
        length |= (uint64_t)bytes[MAGIC_BYTES + 2 + i] << (8 * i);
    if (length > size - begin)
        return "truncated in its header";
    out->at = (const char *)bytes + begin;
    out->end = out->at + length;
    return NULL;
}

int nbl_npy_parse(const char *name, const uint8_t *bytes, uint64_t size, nbl_array *out_array, nbl_fault *fault)
{
    cursor text = {0};
    header found = {0};
    const char *problem = find_header(bytes, size, &text);
    if (!problem)
        problem = read_header(text, &found);
    if (problem)
        return npy_fault(fault, name, problem);
    if (found.fortran_order)
        return npy_fault(fault, name, "Fortran order is not supported; save a C-ordered array");
    nbl_array array = {.data = (const uint8_t *)text.end, .rank = found.rank};
    int code = find_dtype(name, found.descr, &array.dtype, fault);
    if (code != NBL_EXIT_OK)
        return code;
    memcpy(array.shape, found.shape, sizeof array.shape);
    uint64_t needed = 0;
    uint64_t present = size - (uint64_t)(array.data - bytes);
    if (!nbl_shape_bytes(array.shape, array.rank, nbl_dtype_bytes(array.dtype), &needed))
        return npy_fault(fault, name, "'shape' is too large");
    if (needed != present)
        return nbl_fault_set(fault, NBL_EXIT_INPUT,
                             "%.300s: header announces %" PRIu64 " bytes of data, the file has %" PRIu64, name, needed,
                             present);
    array.count = needed / nbl_dtype_bytes(array.dtype);
    *out_array = array;
    return NBL_EXIT_OK;
}

int nbl_npy_write(const char *path, const nbl_array *array, nbl_fault *fault)
{
    char text[512];
    int used =
        snprintf(text, sizeof text, "%s%c%c%c%c{'descr': '<f4', 'fortran_order': False, 'shape': (", magic, 1, 0, 0, 0);
    /* snprintf stops at no zero byte of its arguments: %c writes them. */
    for (uint32_t i = 0; i < array->rank; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, "%" PRIu64 ", ", array->shape[i]);
    used += snprintf(text + used, sizeof text - (size_t)used, "), }");
    int total = (used + 1 + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    memset(text + used, ' ', (size_t)(total - used));
    text[total - 1] = '\n';
    int length = total - MAGIC_BYTES - 4;
    text[MAGIC_BYTES + 2] = (char)(length & 0xff);
    text[MAGIC_BYTES + 3] = (char)(length >> 8);
    const nbl_part parts[2] = {{text, (uint64_t)total}, {array->data, array->count * sizeof(float)}};
    return nbl_file_write(path, parts, 2, fault);
}
