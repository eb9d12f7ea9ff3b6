/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file ledger.h
 * @brief A cache next to a naive model of it: each sequence is a list of tokens, forks are copies, nothing is shared.
 *
 * The backend computes nothing; the ledger's hooks write a tag for each token where its codes would lie, and copy pages
 * byte for byte. A tag stands for the token and for the centre it was stored under, so a token that went to the wrong
 * place, page, layer or centre shows. What the cache says is read back through cache_attend: lengths, page table,
 * centres.
 */
#ifndef CACHE_LEDGER_H
#define CACHE_LEDGER_H

#include "fixture.h"

#include <stdbool.h>

#define LEDGER_LAYERS 2u
#define LEDGER_SEQUENCES 12u
#define LEDGER_TOKENS 256u /**< of one sequence */

/** One sequence of the model. */
typedef struct ledger_sequence {
    bool alive;
    uint64_t handle;
    uint32_t dropped;
    uint32_t lengths[LEDGER_LAYERS];
    uint32_t tokens[LEDGER_LAYERS][LEDGER_TOKENS]; /**< equal in all layers as far as they go */
    bool demoted[LEDGER_LAYERS][LEDGER_TOKENS];    /**< transcoded when its page left the recent window */
    uint32_t cold;                                 /**< pages before it have left the window */
    uint64_t centers[LEDGER_LAYERS];
} ledger_sequence;

/** Cache and model. */
typedef struct ledger {
    fixture f;
    ledger_sequence all[LEDGER_SEQUENCES];
    uint32_t next_token;
    uint32_t vocabulary; /**< tokens are drawn from so many, so that prefixes recur; 0: all tokens differ */
    uint64_t seed;
    uint32_t recent; /**< tokens of the recent window */
} ledger;

/** One sequence's part of an append. */
typedef struct ledger_part {
    uint32_t index;
    uint32_t tokens;
} ledger_part;

nbl_cache_config ledger_config(void);
void ledger_open(ledger *l, nbl_cache_config config);
/** Frees all sequences, checks that no page stays, and closes. */
void ledger_close(ledger *l);

/** The calls, on cache and model; they return the cache's status, and change the model only on success. */
nbl_status ledger_create(ledger *l, uint32_t index);
nbl_status ledger_free(ledger *l, uint32_t index);
nbl_status ledger_fork(ledger *l, uint32_t parent, uint32_t tokens, uint32_t child);
nbl_status ledger_append(ledger *l, uint32_t layer, const ledger_part *parts, uint32_t count);
nbl_status ledger_truncate(ledger *l, uint32_t index, uint32_t tokens);
nbl_status ledger_truncate_batch(ledger *l, const ledger_part *parts, uint32_t count);
nbl_status ledger_drop(ledger *l, uint32_t index, uint32_t tokens);

/** Publishes the tokens that all layers have. */
nbl_status ledger_publish(ledger *l, uint32_t index, uint64_t salt, uint32_t priority, uint32_t *out_tokens);
/** Adopts tokens into an empty sequence, as if first_tokens of them (0: all) came first. */
nbl_status ledger_adopt(ledger *l, uint32_t index, const uint32_t *tokens, uint32_t count, uint32_t first_tokens,
                        uint64_t salt, uint32_t *out_tokens);

/** Tokens that every layer has. */
uint32_t ledger_whole(const ledger_sequence *s);

/** Tokens of the longest layer. */
uint32_t ledger_tokens(const ledger_sequence *s);

/** Reads every sequence back and compares it with the model; counts pages again; cache_verify. */
void ledger_check(ledger *l);

/** Appends to both layers of one sequence and expects it to work. */
void ledger_grow(ledger *l, uint32_t index, uint32_t tokens);

#endif
