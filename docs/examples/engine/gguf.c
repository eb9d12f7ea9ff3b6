/* SPDX-License-Identifier: Apache-2.0 */
#include "gguf.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TYPE_STRING = 8, TYPE_ARRAY = 9, VERSION = 3, RANK_MAX = 4, ALIGNMENT = 32, ALIGNMENT_MAX = 65536 };
enum { F32 = 0, Q5_0 = 6, Q8_0 = 8, Q4_K = 12, Q6_K = 14 };

struct gguf {
    const unsigned char *bytes;
    uint64_t size;
    uint64_t metadata_count;
    uint64_t metadata; /* offset of the first key */
    uint64_t tensor_count;
    uint64_t tensors; /* offset of the first tensor's description */
    uint64_t data;    /* offset of tensor data */
};

/* ------------------------------------------------------------------------------------------------ reading */

/* A place in the file; once it runs past the end it stays bad. */
typedef struct cursor {
    const gguf *file;
    uint64_t at;
    int bad;
} cursor;

static const unsigned char *take(cursor *c, uint64_t bytes)
{
    if (c->bad || bytes > c->file->size - c->at) {
        c->bad = 1;
        return NULL;
    }
    c->at += bytes;
    return c->file->bytes + c->at - bytes;
}

static uint64_t take_number(cursor *c, uint32_t bytes)
{
    uint64_t value = 0;
    const unsigned char *from = take(c, bytes);
    if (from)
        memcpy(&value, from, bytes);
    return value;
}

static gguf_text take_text(cursor *c)
{
    const uint64_t count = take_number(c, 8);
    const unsigned char *bytes = take(c, count);
    return (gguf_text){(const char *)bytes, bytes ? count : 0};
}

/* Bytes of a metadata value of fixed size; 0 for text and lists. */
static uint32_t value_bytes(uint32_t type)
{
    static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < sizeof bytes ? bytes[type] : 0;
}

static void skip_value(cursor *c, uint32_t type)
{
    if (type == TYPE_STRING) {
        (void)take_text(c);
    } else if (type == TYPE_ARRAY) {
        const uint32_t element = (uint32_t)take_number(c, 4);
        const uint64_t count = take_number(c, 8);
        if (element == TYPE_STRING)
            for (uint64_t i = 0; i < count && !c->bad; i++)
                (void)take_text(c);
        else if (value_bytes(element) == 0 || count > c->file->size)
            c->bad = 1;
        else
            (void)take(c, count * value_bytes(element));
    } else if (value_bytes(type) == 0 || !take(c, value_bytes(type))) {
        c->bad = 1;
    }
}

static int equal(gguf_text text, const char *word)
{
    return text.count == strlen(word) && memcmp(text.bytes, word, text.count) == 0;
}

/* ------------------------------------------------------------------------------------------------ metadata */

/* A cursor at the value of a key, and its type; bad if there is no such key. */
static cursor find_value(const gguf *file, const char *key, uint32_t *out_type)
{
    cursor c = {file, file->metadata, 0};
    for (uint64_t i = 0; i < file->metadata_count && !c.bad; i++) {
        const gguf_text name = take_text(&c);
        *out_type = (uint32_t)take_number(&c, 4);
        if (equal(name, key))
            return c;
        skip_value(&c, *out_type);
    }
    c.bad = 1;
    return c;
}

double gguf_number(const gguf *file, const char *key, double fallback)
{
    uint32_t type = 0;
    cursor c = find_value(file, key, &type);
    const unsigned char *from = c.bad || value_bytes(type) == 0 ? NULL : take(&c, value_bytes(type));
    uint64_t whole = 0;
    float single;
    double twice;
    if (!from)
        return fallback;
    memcpy(&whole, from, value_bytes(type));
    if (type == 6)
        return memcpy(&single, from, sizeof single), (double)single;
    if (type == 12)
        return memcpy(&twice, from, sizeof twice), twice;
    return (double)whole;
}

gguf_text gguf_string(const gguf *file, const char *key)
{
    uint32_t type = 0;
    cursor c = find_value(file, key, &type);
    return c.bad || type != TYPE_STRING ? (gguf_text){"", 0} : take_text(&c);
}

int gguf_find_list(const gguf *file, const char *key, uint32_t type, gguf_list *out_list)
{
    uint32_t found = 0;
    cursor c = find_value(file, key, &found);
    if (c.bad || found != TYPE_ARRAY || take_number(&c, 4) != type)
        return 0;
    *out_list = (gguf_list){NULL, take_number(&c, 8), type};
    out_list->data = file->bytes + c.at;
    return !c.bad;
}

gguf_text gguf_list_text(const gguf_list *list, uint64_t *at)
{
    uint64_t count; /* gguf_open has walked over every text */
    memcpy(&count, list->data + *at, sizeof count);
    const gguf_text text = {(const char *)list->data + *at + sizeof count, count};
    *at += sizeof count + count;
    return text;
}

/* ------------------------------------------------------------------------------------------------ tensors */

/* Numbers and bytes of a block of a type; 0 for one that gguf_row does not know. */
static uint32_t block_numbers(uint32_t type)
{
    return type == F32 ? 1 : type == Q5_0 || type == Q8_0 ? 32 : type == Q4_K || type == Q6_K ? 256 : 0;
}

static uint32_t block_bytes(uint32_t type)
{
    switch (type) {
    case F32: return 4;
    case Q5_0: return 22;
    case Q8_0: return 34;
    case Q4_K: return 144;
    default: return 210;
    }
}

/* Reads one description; 0 if the tensor cannot be used. */
static int read_tensor(cursor *c, gguf_text *out_name, gguf_tensor *out)
{
    *out_name = take_text(c);
    const uint32_t rank = (uint32_t)take_number(c, 4);
    uint64_t extent[RANK_MAX] = {1, 1, 1, 1};
    if (rank < 1 || rank > RANK_MAX)
        c->bad = 1;
    for (uint32_t i = 0; i < rank && !c->bad; i++)
        extent[i] = take_number(c, 8);
    *out = (gguf_tensor){.columns = extent[0], .rows = extent[1], .type = (uint32_t)take_number(c, 4)};
    const uint64_t offset = take_number(c, 8);
    const uint64_t numbers = block_numbers(out->type), limit = c->file->size - c->file->data;
    if (c->bad || numbers == 0 || extent[2] != 1 || extent[3] != 1 || out->columns % numbers != 0 ||
        out->columns > limit || offset > limit)
        return 0;
    out->row_bytes = out->columns / numbers * block_bytes(out->type);
    out->data = c->file->bytes + c->file->data + offset;
    return out->rows <= (limit - offset) / (out->row_bytes ? out->row_bytes : 1);
}

int gguf_find_tensor(const gguf *file, const char *name, gguf_tensor *out_tensor)
{
    cursor c = {file, file->tensors, 0};
    for (uint64_t i = 0; i < file->tensor_count && !c.bad; i++) {
        gguf_text found;
        const int usable = read_tensor(&c, &found, out_tensor);
        if (!c.bad && equal(found, name))
            return usable;
    }
    return 0;
}

/* ------------------------------------------------------------------------------------------------ files */

/* Header, then a walk over everything: afterwards no length in the file is taken on trust. */
static int scan(gguf *file)
{
    cursor c = {file, 0, 0};
    const uint64_t magic = take_number(&c, 4), version = take_number(&c, 4);
    if (c.bad || magic != 0x46554747 || version != VERSION)
        return 0;
    file->tensor_count = take_number(&c, 8);
    file->metadata_count = take_number(&c, 8);
    file->metadata = c.at;
    for (uint64_t i = 0; i < file->metadata_count && !c.bad; i++) {
        (void)take_text(&c);
        skip_value(&c, (uint32_t)take_number(&c, 4));
    }
    file->tensors = c.at;
    file->data = file->size;
    for (uint64_t i = 0; i < file->tensor_count && !c.bad; i++) {
        gguf_text name;
        gguf_tensor tensor;
        (void)read_tensor(&c, &name, &tensor);
    }
    const double asked = gguf_number(file, "general.alignment", ALIGNMENT);
    if (c.bad || !(asked >= 1 && asked <= ALIGNMENT_MAX))
        return 0;
    const uint64_t alignment = (uint64_t)asked;
    file->data = (c.at + alignment - 1) / alignment * alignment;
    return file->data <= file->size;
}

gguf *gguf_open(const char *path)
{
    struct stat state;
    gguf *file = calloc(1, sizeof *file);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *map = MAP_FAILED;
    if (file && fd >= 0 && fstat(fd, &state) == 0 && state.st_size > 0)
        map = mmap(NULL, (size_t)state.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (fd >= 0)
        (void)close(fd);
    if (map == MAP_FAILED) {
        (void)fprintf(stderr, "engine: cannot read %s\n", path);
        free(file);
        return NULL;
    }
    file->bytes = map;
    file->size = (uint64_t)state.st_size;
    if (scan(file))
        return file;
    (void)fprintf(stderr, "engine: %s is no whole GGUF file of version %d\n", path, VERSION);
    gguf_close(file);
    return NULL;
}

void gguf_close(gguf *file)
{
    (void)munmap((void *)(uintptr_t)file->bytes, file->size);
    free(file);
}

/* ------------------------------------------------------------------------------------------------ blocks */

/* Half precision: its exponent and mantissa at a float's places, then the difference of the two biases. */
static float half(const unsigned char *from)
{
    uint16_t bits;
    float value;
    memcpy(&bits, from, sizeof bits);
    const uint32_t moved = (uint32_t)(bits & 0x7fffu) << 13;
    memcpy(&value, &moved, sizeof value);
    value *= 0x1p112f;
    return bits & 0x8000u ? -value : value;
}

static void read_q8_0(const unsigned char *block, float *out)
{
    const float scale = half(block);
    for (int i = 0; i < 32; i++)
        out[i] = scale * (float)(int8_t)block[2 + i];
}

static void read_q5_0(const unsigned char *block, float *out)
{
    const float scale = half(block);
    uint32_t high;
    memcpy(&high, block + 2, sizeof high);
    for (int i = 0; i < 16; i++) {
        const int low = block[6 + i] & 15, up = block[6 + i] >> 4;
        out[i] = scale * (float)((low | (int)(high >> i & 1u) << 4) - 16);
        out[i + 16] = scale * (float)((up | (int)(high >> (i + 16) & 1u) << 4) - 16);
    }
}

/* Eight pairs of 6-bit scale and minimum, packed into 12 bytes. */
static void read_q4_k(const unsigned char *block, float *out)
{
    const float scale = half(block), minimum = half(block + 2);
    const unsigned char *packed = block + 4, *codes = block + 16;
    for (int j = 0; j < 8; j++) {
        const int s = j < 4 ? packed[j] & 63 : (packed[j + 4] & 15) | packed[j - 4] >> 6 << 4;
        const int m = j < 4 ? packed[j + 4] & 63 : packed[j + 4] >> 4 | packed[j] >> 6 << 4;
        for (int i = 0; i < 32; i++) {
            const int code = codes[j / 2 * 32 + i] >> (j % 2 * 4) & 15;
            out[j * 32 + i] = scale * (float)s * (float)code - minimum * (float)m;
        }
    }
}

static void read_q6_k(const unsigned char *block, float *out)
{
    const unsigned char *low = block, *high = block + 128;
    const int8_t *scales = (const int8_t *)block + 192;
    const float scale = half(block + 208);
    for (int i = 0; i < 256; i++) {
        const int part = i / 128, at = i % 128, lane = at % 32, quarter = at / 32;
        const int bits = low[part * 64 + at % 64] >> (at / 64 * 4) & 15;
        const int top = high[part * 32 + lane] >> (quarter * 2) & 3;
        out[i] = scale * (float)scales[i / 16] * (float)((bits | top << 4) - 32);
    }
}

void gguf_row(const gguf_tensor *tensor, uint64_t row, float *out)
{
    const unsigned char *from = tensor->data + row * tensor->row_bytes;
    const uint32_t numbers = block_numbers(tensor->type), bytes = block_bytes(tensor->type);
    if (tensor->type == F32) {
        memcpy(out, from, tensor->row_bytes);
        return;
    }
    for (uint64_t i = 0; i < tensor->columns; i += numbers, from += bytes) {
        switch (tensor->type) {
        case Q8_0: read_q8_0(from, out + i); break;
        case Q5_0: read_q5_0(from, out + i); break;
        case Q4_K: read_q4_k(from, out + i); break;
        default: read_q6_k(from, out + i); break;
        }
    }
}
