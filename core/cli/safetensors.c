/* SPDX-License-Identifier: Apache-2.0 */
#include "safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { PREFIX_BYTES = 8, SHAPE_RANK_MAX = 16 };

static const char metadata_key[] = "__metadata__";

/* Element sizes of the types a file may hold; only those with a dtype can be read. */
static const struct {
    const char *name;
    uint32_t bytes;
    uint32_t dtype;
} types[] = {
    {"F32", 4, NBL_F32},
    {"F16", 2, NBL_F16},
    {"BF16", 2, NBL_BF16},
    {"F64", 8, NBL_DTYPE_NONE},
    {"I64", 8, NBL_DTYPE_NONE},
    {"U64", 8, NBL_DTYPE_NONE},
    {"I32", 4, NBL_DTYPE_NONE},
    {"U32", 4, NBL_DTYPE_NONE},
    {"I16", 2, NBL_DTYPE_NONE},
    {"U16", 2, NBL_DTYPE_NONE},
    {"I8", 1, NBL_DTYPE_NONE},
    {"U8", 1, NBL_DTYPE_NONE},
    {"BOOL", 1, NBL_DTYPE_NONE},
    {"F8_E4M3", 1, NBL_DTYPE_NONE},
    {"F8_E5M2", 1, NBL_DTYPE_NONE},
};

static int find_type(const char *name)
{
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(types[i].name, name) == 0)
            return (int)i;
    }
    return -1;
}

static bool read_unsigned(const json_t *value, uint64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static int tensor_fault(nbl_fault *fault, const nbl_safetensors *file, const char *tensor, const char *what)
{
    return nbl_fault_set(fault, NBL_EXIT_INPUT, "%.300s: tensor \"%.100s\": %s", file->name, tensor, what);
}

/* A checked entry: what the header says of one tensor. */
typedef struct entry {
    int type;
    uint32_t rank;
    uint64_t shape[SHAPE_RANK_MAX];
    uint64_t begin;
    uint64_t end;
} entry;

static const char *read_shape(const json_t *shape, entry *out)
{
    if (!json_is_array(shape))
        return "\"shape\" is not a list";
    if (json_array_size(shape) > SHAPE_RANK_MAX)
        return "\"shape\" has more than 16 dimensions";
    out->rank = (uint32_t)json_array_size(shape);
    for (uint32_t i = 0; i < out->rank; i++) {
        if (!read_unsigned(json_array_get(shape, i), &out->shape[i]))
            return "\"shape\" holds something else than whole numbers of at least 0";
    }
    return NULL;
}

static const char *read_entry(const json_t *tensor, uint64_t data_bytes, entry *out)
{
    const char *type = json_string_value(json_object_get(tensor, "dtype"));
    if (!type)
        return "no \"dtype\" string";
    out->type = find_type(type);
    if (out->type < 0)
        return "\"dtype\" is not a known type";
    const char *problem = read_shape(json_object_get(tensor, "shape"), out);
    if (problem)
        return problem;
    const json_t *offsets = json_object_get(tensor, "data_offsets");
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !read_unsigned(json_array_get(offsets, 0), &out->begin) ||
        !read_unsigned(json_array_get(offsets, 1), &out->end))
        return "\"data_offsets\" is not a pair of whole numbers of at least 0";
    if (out->begin > out->end)
        return "\"data_offsets\" end before they begin";
    if (out->end > data_bytes)
        return "\"data_offsets\" reach past the end of the file";
    uint64_t bytes = 0;
    if (!nbl_shape_bytes(out->shape, out->rank, types[out->type].bytes, &bytes))
        return "\"shape\" is too large";
    return bytes == out->end - out->begin ? NULL : "\"data_offsets\" do not span what \"dtype\" and \"shape\" need";
}

static int check_metadata(const nbl_safetensors *file, json_t *metadata, nbl_fault *fault)
{
    if (!json_is_object(metadata))
        return nbl_fault_set(fault, NBL_EXIT_INPUT, "%.300s: __metadata__ is not an object", file->name);
    const char *key;
    json_t *value;
    json_object_foreach (metadata, key, value) {
        if (!json_is_string(value))
            return nbl_fault_set(fault, NBL_EXIT_INPUT, "%.300s: __metadata__ \"%.100s\" is not a string", file->name,
                                 key);
    }
    return NBL_EXIT_OK;
}

static int check_header(const nbl_safetensors *file, nbl_fault *fault)
{
    const char *name;
    json_t *value;
    json_object_foreach (file->header, name, value) {
        if (strcmp(name, metadata_key) == 0) {
            int code = check_metadata(file, value, fault);
            if (code != NBL_EXIT_OK)
                return code;
            continue;
        }
        entry checked = {0};
        const char *problem = read_entry(value, file->data_bytes, &checked);
        if (problem)
            return tensor_fault(fault, file, name, problem);
    }
    return NBL_EXIT_OK;
}

static int header_bytes(const char *name, const uint8_t *bytes, uint64_t size, uint64_t *out_bytes, nbl_fault *fault)
{
    if (size < PREFIX_BYTES)
        return nbl_fault_set(fault, NBL_EXIT_INPUT, "%.300s: %" PRIu64 " bytes are too short for a safetensors file",
                             name, size);
    uint64_t length = 0;
    for (int i = 0; i < PREFIX_BYTES; i++)
        length |= (uint64_t)bytes[i] << (8 * i);
    if (length > NBL_SAFETENSORS_HEADER_BYTES_MAX)
        return nbl_fault_set(fault, NBL_EXIT_INPUT, "%.300s: header of %" PRIu64 " bytes, at most %u are allowed", name,
                             length, NBL_SAFETENSORS_HEADER_BYTES_MAX);
    if (length > size - PREFIX_BYTES)
        return nbl_fault_set(fault, NBL_EXIT_INPUT,
                             "%.300s: truncated: header of %" PRIu64 " bytes in a file of %" PRIu64, name, length,
                             size);
    *out_bytes = length;
    return NBL_EXIT_OK;
}

int nbl_safetensors_parse(const char *name, const uint8_t *bytes, uint64_t size, nbl_safetensors *out_file,
                          nbl_fault *fault)
{
    uint64_t length = 0;
    int code = header_bytes(name, bytes, size, &length, fault);
    if (code != NBL_EXIT_OK)
        return code;
    nbl_safetensors file = {
        .name = name, .data = bytes + PREFIX_BYTES + length, .data_bytes = size - PREFIX_BYTES - length};
    json_error_t problem;
    file.header = json_loadb((const char *)bytes + PREFIX_BYTES, (size_t)length, JSON_REJECT_DUPLICATES, &problem);
    if (!file.header)
        return nbl_fault_set(fault, NBL_EXIT_INPUT, "%.300s: header: %.150s (line %d, column %d)", name, problem.text,
                             problem.line, problem.column);
    if (!json_is_object(file.header))
        code = nbl_fault_set(fault, NBL_EXIT_INPUT, "%.300s: header is not a JSON object", name);
    else
        code = check_header(&file, fault);
    if (code == NBL_EXIT_OK)
        *out_file = file;
    else
        json_decref(file.header);
    return code;
}

void nbl_safetensors_free(nbl_safetensors *file)
{
    json_decref(file->header);
    *file = (nbl_safetensors){0};
}

int nbl_safetensors_find(const nbl_safetensors *file, const char *tensor, nbl_array *out_array, nbl_fault *fault)
{
    const json_t *value = strcmp(tensor, metadata_key) == 0 ? NULL : json_object_get(file->header, tensor);
    if (!value)
        return tensor_fault(fault, file, tensor, "not in the file");
    entry found = {0};
    const char *problem = read_entry(value, file->data_bytes, &found);
    if (problem)
        return tensor_fault(fault, file, tensor, problem);
    if (types[found.type].dtype == NBL_DTYPE_NONE)
        return tensor_fault(fault, file, tensor, "type is not one of F32, F16, BF16");
    if (found.rank > NBL_RANK_MAX)
        return tensor_fault(fault, file, tensor, "more than 5 dimensions");
    nbl_array array = {.data = file->data + found.begin, .dtype = types[found.type].dtype, .rank = found.rank};
    memcpy(array.shape, found.shape, sizeof array.shape);
    array.count = (found.end - found.begin) / types[found.type].bytes;
    *out_array = array;
    return NBL_EXIT_OK;
}

const char *nbl_safetensors_metadata(const nbl_safetensors *file, const char *key)
{
    return json_string_value(json_object_get(json_object_get(file->header, metadata_key), key));
}

static json_t *describe(const nbl_array *array, uint64_t begin)
{
    json_t *shape = json_array();
    for (uint32_t i = 0; i < array->rank; i++)
        json_array_append_new(shape, json_integer((json_int_t)array->shape[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", "F32", "shape", shape, "data_offsets", (json_int_t)begin,
                     (json_int_t)(begin + array->count * sizeof(float)));
}

/* Length prefix and header, padded so that the data are aligned to 8; NULL if there is no memory. */
static uint8_t *format_header(const json_t *header, uint64_t *out_bytes)
{
    size_t length = json_dumpb(header, NULL, 0, JSON_COMPACT);
    size_t padded = (length + 7) / 8 * 8;
    uint8_t *head = length > 0 ? malloc(PREFIX_BYTES + padded) : NULL;
    if (!head)
        return NULL;
    for (int i = 0; i < PREFIX_BYTES; i++)
        head[i] = (uint8_t)((uint64_t)padded >> (8 * i));
    memset(head + PREFIX_BYTES, ' ', padded);
    json_dumpb(header, (char *)head + PREFIX_BYTES, length, JSON_COMPACT);
    *out_bytes = PREFIX_BYTES + padded;
    return head;
}

int nbl_safetensors_write(const char *path, const char *const *names, const nbl_array *arrays, uint32_t count,
                          nbl_fault *fault)
{
    nbl_part parts[1 + NBL_SAFETENSORS_WRITE_MAX] = {{0}};
    json_t *header = json_object();
    uint64_t data_bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        json_object_set_new(header, names[i], describe(&arrays[i], data_bytes));
        parts[1 + i] = (nbl_part){arrays[i].data, arrays[i].count * sizeof(float)};
        data_bytes += parts[1 + i].size;
    }
    uint8_t *head = format_header(header, &parts[0].size);
    parts[0].bytes = head;
    int code = head ? nbl_file_write(path, parts, 1 + count, fault)
                    : nbl_fault_set(fault, NBL_EXIT_FAILED, "--out: no memory for the header");
    free(head);
    json_decref(header);
    return code;
}
