/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file hash.h
 * @brief SipHash-2-4 with 128-bit results: keys of cached prefixes, checksums of snapshots.
 */
#ifndef NBL_HASH_H
#define NBL_HASH_H

#include <stddef.h>
#include <stdint.h>

/** A 128-bit value, low half first. */
typedef struct nbl_hash {
    uint64_t word[2];
} nbl_hash;

/** A hash that is fed in parts. */
typedef struct nbl_hasher {
    uint64_t v[4];
    uint64_t pending; /**< bytes not yet a full word, low byte first */
    uint64_t bytes;
} nbl_hasher;

void nbl_hash_start(nbl_hasher *h, const uint64_t key[2]);
void nbl_hash_add(nbl_hasher *h, const void *data, size_t bytes);
nbl_hash nbl_hash_end(nbl_hasher *h);

/** The hash of one piece of memory. */
nbl_hash nbl_hash_of(const uint64_t key[2], const void *data, size_t bytes);

static inline int nbl_hash_equal(const nbl_hash *a, const nbl_hash *b)
{
    return a->word[0] == b->word[0] && a->word[1] == b->word[1];
}

#endif
