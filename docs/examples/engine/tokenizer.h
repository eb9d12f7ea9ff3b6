/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tokenizer.h
 * @brief Text to token ids and back, with the vocabulary of a model file (SentencePiece pieces merged by score).
 */
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include "gguf.h"

typedef struct tokenizer tokenizer;

/** NULL if the file has no vocabulary, or memory runs out. The file must outlive it. */
tokenizer *tokenizer_create(const gguf *file);
void tokenizer_free(tokenizer *t);

/** Ids of a text after the begin marker; at most capacity of them. Returns their number, 0 if they do not fit. */
uint32_t tokenizer_encode(const tokenizer *t, const char *text, uint32_t *ids, uint32_t capacity);

/** Writes the text of one id to stdout. */
void tokenizer_print(const tokenizer *t, uint32_t id);

/** Number of ids, and the id that ends a text. */
uint32_t tokenizer_size(const tokenizer *t);
uint32_t tokenizer_end(const tokenizer *t);

#endif
