/* SPDX-License-Identifier: Apache-2.0 */
/* In the place of core/cache/hash.c: every hash is the same, so only full comparison of keys tells prefixes apart. */
#include "../../core/cache/hash.h"

void nbl_hash_start(nbl_hasher *h, const uint64_t key[2])
{
    *h = (nbl_hasher){{key[0], key[1], 0, 0}, 0, 0};
}

void nbl_hash_add(nbl_hasher *h, const void *data, size_t bytes)
{
    (void)data;
    h->bytes += bytes;
}

nbl_hash nbl_hash_end(nbl_hasher *h)
{
    (void)h;
    return (nbl_hash){{1, 1}};
}

nbl_hash nbl_hash_of(const uint64_t key[2], const void *data, size_t bytes)
{
    (void)key, (void)data, (void)bytes;
    return (nbl_hash){{1, 1}};
}
