/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPACE "\xe2\x96\x81" /* stands for a space inside pieces */
enum { NORMAL = 1, CONTROL = 3, USER_DEFINED = 4, BYTE = 6, PIECE_BYTES_MAX = 128, NONE = -1 };

struct tokenizer {
    uint32_t count, begin, end;
    uint32_t table_mask;
    gguf_text *pieces;
    float *scores;
    int32_t *types;
    int32_t *table; /* open addressing: id or NONE */
};

static uint64_t hash(const char *bytes, uint64_t count)
{
    uint64_t h = 14695981039346656037u;
    for (uint64_t i = 0; i < count; i++)
        h = (h ^ (unsigned char)bytes[i]) * 1099511628211u;
    return h;
}

static int32_t find(const tokenizer *t, const char *bytes, uint64_t count)
{
    for (uint64_t i = hash(bytes, count);; i++) {
        const int32_t id = t->table[i & t->table_mask];
        if (id == NONE || (t->pieces[id].count == count && memcmp(t->pieces[id].bytes, bytes, count) == 0))
            return id;
    }
}

static void fill_table(tokenizer *t)
{
    for (uint32_t i = 0; i <= t->table_mask; i++)
        t->table[i] = NONE;
    for (uint32_t id = 0; id < t->count; id++) {
        uint64_t i = hash(t->pieces[id].bytes, t->pieces[id].count);
        while (t->table[i & t->table_mask] != NONE)
            i++;
        t->table[i & t->table_mask] = (int32_t)id;
    }
}

tokenizer *tokenizer_create(const gguf *file)
{
    gguf_list pieces, scores, types;
    if (!gguf_find_list(file, "tokenizer.ggml.tokens", 8, &pieces) ||
        !gguf_find_list(file, "tokenizer.ggml.scores", 6, &scores) ||
        !gguf_find_list(file, "tokenizer.ggml.token_type", 5, &types) || scores.count != pieces.count ||
        types.count != pieces.count || pieces.count == 0 || pieces.count > 1u << 24)
        return NULL;
    tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->count = (uint32_t)pieces.count;
    for (t->table_mask = 1; t->table_mask < 2 * t->count;)
        t->table_mask = 2 * t->table_mask + 1;
    t->pieces = malloc(t->count * sizeof *t->pieces);
    t->scores = malloc(t->count * sizeof *t->scores);
    t->types = malloc(t->count * sizeof *t->types);
    t->table = malloc(((size_t)t->table_mask + 1) * sizeof *t->table);
    if (!t->pieces || !t->scores || !t->types || !t->table) {
        tokenizer_free(t);
        return NULL;
    }
    uint64_t at = 0;
    for (uint32_t i = 0; i < t->count; i++)
        t->pieces[i] = gguf_list_text(&pieces, &at);
    memcpy(t->scores, scores.data, t->count * sizeof *t->scores);
    memcpy(t->types, types.data, t->count * sizeof *t->types);
    fill_table(t);
    t->begin = (uint32_t)gguf_number(file, "tokenizer.ggml.bos_token_id", 2);
    t->end = (uint32_t)gguf_number(file, "tokenizer.ggml.eos_token_id", 1);
    return t;
}

void tokenizer_free(tokenizer *t)
{
    if (!t)
        return;
    free(t->pieces);
    free(t->scores);
    free(t->types);
    free(t->table);
    free(t);
}

/* ------------------------------------------------------------------------------------------------ encoding */

/* A piece of the text that may still grow; count 0 when it was merged into the one before. */
typedef struct symbol {
    const char *bytes;
    uint64_t count;
} symbol;

static uint64_t character_bytes(const char *text)
{
    uint64_t count = 1;
    while (((unsigned char)text[count] & 0xc0u) == 0x80u)
        count++;
    return count;
}

/* The longest user-defined piece at the start of the text, or NONE: such pieces come before any merging. */
static int32_t find_defined(const tokenizer *t, const char *text)
{
    uint64_t count = strlen(text);
    for (count = count < PIECE_BYTES_MAX ? count : PIECE_BYTES_MAX; count > 0; count--) {
        const int32_t id = find(t, text, count);
        if (id != NONE && t->types[id] == USER_DEFINED)
            return id;
    }
    return NONE;
}

/* Index of the symbol that should merge with the next one, or NONE: highest score, leftmost of equals. */
static int64_t best_pair(const tokenizer *t, const symbol *symbols, uint64_t count)
{
    int64_t best = NONE;
    float best_score = 0;
    for (uint64_t i = 0; i + 1 < count; i++) {
        const int32_t id = find(t, symbols[i].bytes, symbols[i].count + symbols[i + 1].count);
        if (id != NONE && t->types[id] == NORMAL && (best == NONE || t->scores[id] > best_score)) {
            best = (int64_t)i;
            best_score = t->scores[id];
        }
    }
    return best;
}

/* Ids of one symbol: its own, or those of its bytes. */
static uint32_t put_symbol(const tokenizer *t, const symbol *s, uint32_t *ids, uint32_t room)
{
    char name[8];
    int32_t id = find(t, s->bytes, s->count);
    uint32_t used = 0;
    if (id != NONE) {
        if (room > 0)
            ids[used] = (uint32_t)id;
        return 1;
    }
    for (uint64_t i = 0; i < s->count; i++) {
        (void)snprintf(name, sizeof name, "<0x%02X>", (unsigned)(unsigned char)s->bytes[i]);
        id = find(t, name, strlen(name));
        if (used < room)
            ids[used] = id == NONE ? 0 : (uint32_t)id;
        used++;
    }
    return used;
}

/* Merges text[0..bytes) and puts its ids. */
static uint32_t put_text(const tokenizer *t, const char *text, uint64_t bytes, uint32_t *ids, uint32_t room)
{
    symbol *symbols = malloc((bytes + 1) * sizeof *symbols);
    uint64_t count = 0;
    uint32_t used = 0;
    if (!symbols)
        return room + 1;
    for (uint64_t at = 0; at < bytes; at += symbols[count++].count)
        symbols[count] = (symbol){text + at, character_bytes(text + at)};
    for (int64_t i = best_pair(t, symbols, count); i != NONE; i = best_pair(t, symbols, count)) {
        symbols[i].count += symbols[i + 1].count;
        memmove(&symbols[i + 1], &symbols[i + 2], (count - (uint64_t)i - 2) * sizeof *symbols);
        count--;
    }
    for (uint64_t i = 0; i < count; i++)
        used += put_symbol(t, &symbols[i], ids + used, used < room ? room - used : 0);
    free(symbols);
    return used;
}

static char *with_space_marks(const char *text)
{
    char *marked = malloc(strlen(text) * strlen(SPACE) + 1), *to = marked;
    for (; marked && *text; text++) {
        const char *piece = *text == ' ' ? SPACE : text;
        const size_t bytes = *text == ' ' ? strlen(SPACE) : 1;
        memcpy(to, piece, bytes);
        to += bytes;
    }
    if (marked)
        *to = '\0';
    return marked;
}

uint32_t tokenizer_encode(const tokenizer *t, const char *text, uint32_t *ids, uint32_t capacity)
{
    char *marked = with_space_marks(text);
    uint32_t used = 1;
    if (!marked || capacity < 1) {
        free(marked);
        return 0;
    }
    ids[0] = t->begin;
    for (const char *at = marked; *at && used <= capacity;) {
        const char *end = at;
        int32_t defined = find_defined(t, end);
        while (defined == NONE && *end) {
            end += character_bytes(end);
            defined = *end ? find_defined(t, end) : NONE;
        }
        used += put_text(t, at, (uint64_t)(end - at), ids + used, used < capacity ? capacity - used : 0);
        if (defined != NONE && used < capacity)
            ids[used] = (uint32_t)defined;
        used += defined != NONE;
        at = end + (defined != NONE ? t->pieces[defined].count : 0);
    }
    free(marked);
    return used <= capacity ? used : 0;
}

/* ------------------------------------------------------------------------------------------------ decoding */

void tokenizer_print(const tokenizer *t, uint32_t id)
{
    const gguf_text piece = t->pieces[id];
    unsigned byte = 0;
    if (t->types[id] == CONTROL)
        return;
    if (t->types[id] == BYTE && sscanf(piece.bytes, "<0x%2x>", &byte) == 1) {
        (void)putchar((int)byte);
        return;
    }
    for (uint64_t i = 0; i < piece.count;) {
        const int space = piece.count - i >= strlen(SPACE) && memcmp(piece.bytes + i, SPACE, strlen(SPACE)) == 0;
        (void)putchar(space ? ' ' : piece.bytes[i]);
        i += space ? strlen(SPACE) : 1;
    }
}

uint32_t tokenizer_size(const tokenizer *t)
{
    return t->count;
}

uint32_t tokenizer_end(const tokenizer *t)
{
    return t->end;
}
