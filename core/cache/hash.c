/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file hash.c
 * @brief SipHash-2-4-128 (Aumasson and Bernstein, 2012; the 128-bit variant of its reference code).
 */
#include "hash.h"

#include <string.h>

static uint64_t rotate(uint64_t x, unsigned bits)
{
    return x << bits | x >> (64u - bits);
}

static void rounds(uint64_t v[4], int count)
{
    uint64_t a = v[0], b = v[1], c = v[2], d = v[3];
    for (int i = 0; i < count; ++i) {
        a += b, c += d;
        b = rotate(b, 13) ^ a, d = rotate(d, 16) ^ c;
        a = rotate(a, 32);
        c += b, a += d;
        b = rotate(b, 17) ^ c, d = rotate(d, 21) ^ a;
        c = rotate(c, 32);
    }
    v[0] = a, v[1] = b, v[2] = c, v[3] = d;
}

static void word_add(nbl_hasher *h, uint64_t word)
{
    h->v[3] ^= word;
    rounds(h->v, 2);
    h->v[0] ^= word;
}

void nbl_hash_start(nbl_hasher *h, const uint64_t key[2])
{
    *h = (nbl_hasher){{key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du ^ 0xeeu, key[0] ^ 0x6c7967656e657261u,
                       key[1] ^ 0x7465646279746573u},
                      0,
                      0};
}

/* Words are read as they lie in memory: the library is for little-endian machines (nibble_asserts.h). */
void nbl_hash_add(nbl_hasher *h, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    const uint8_t *end = p + bytes;
    for (; p < end && h->bytes % 8u != 0; ++p) {
        h->pending |= (uint64_t)*p << h->bytes++ % 8u * 8u;
        if (h->bytes % 8u == 0) {
            word_add(h, h->pending);
            h->pending = 0;
        }
    }
    for (; end - p >= 8; p += 8, h->bytes += 8) {
        uint64_t word;
        memcpy(&word, p, sizeof word);
        word_add(h, word);
    }
    for (; p < end; ++p)
        h->pending |= (uint64_t)*p << h->bytes++ % 8u * 8u;
}

nbl_hash nbl_hash_end(nbl_hasher *h)
{
    nbl_hash out;
    word_add(h, h->pending | h->bytes << 56);
    h->v[2] ^= 0xeeu;
    rounds(h->v, 4);
    out.word[0] = h->v[0] ^ h->v[1] ^ h->v[2] ^ h->v[3];
    h->v[1] ^= 0xddu;
    rounds(h->v, 4);
    out.word[1] = h->v[0] ^ h->v[1] ^ h->v[2] ^ h->v[3];
    return out;
}

nbl_hash nbl_hash_of(const uint64_t key[2], const void *data, size_t bytes)
{
    nbl_hasher h;
    nbl_hash_start(&h, key);
    nbl_hash_add(&h, data, bytes);
    return nbl_hash_end(&h);
}
