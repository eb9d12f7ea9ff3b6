/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots across processes, and across backends (NIBBLE_BACKEND):
 *   cache_saver loop PATH    saves sequences of 3, 4, 5, ... tokens to PATH, one over the other, until it is killed
 *   cache_saver save PATH    saves one sequence
 *   cache_saver check PATH   loads PATH; it must be the bytes, and give the bits, of that sequence made here */
#include "lab.h"

#include <stdio.h>
#include <string.h>

#define LENGTH 157u

static int failed(const nbl_error *err)
{
    fprintf(stderr, "saver: %s\n", err->message);
    return 1;
}

static int loop(lab *l, const uint32_t *tokens, const char *path)
{
    nbl_error err = NBL_INIT(nbl_error);
    for (uint32_t length = 3;; length = length < LAB_TOKENS ? length + 1 : 3) {
        const uint64_t sequence = lab_filled(l, tokens, length, 0);
        if (l->api->snapshot_save(l->cache, sequence, path, &err) != NBL_OK ||
            l->api->seq_free(l->cache, sequence, &err) != NBL_OK)
            return failed(&err);
    }
}

static int save(lab *l, const uint32_t *tokens, const char *path)
{
    nbl_error err = NBL_INIT(nbl_error);
    const uint64_t sequence = lab_filled(l, tokens, LENGTH, 90);
    return l->api->snapshot_save(l->cache, sequence, path, &err) == NBL_OK ? 0 : failed(&err);
}

static int check(lab *l, const uint32_t *tokens, const char *path)
{
    nbl_error err = NBL_INIT(nbl_error);
    uint64_t loaded = 0;
    const uint64_t here = lab_filled(l, tokens, LENGTH, 90);
    if (l->api->snapshot_load(l->cache, path, &loaded, &err) != NBL_OK)
        return failed(&err);
    const bool bytes = lab_equal_bytes(l, here, loaded), bits = lab_same(l, here, l, loaded);
    printf("saver: %s bytes, %s bits\n", bytes ? "equal" : "other", bits ? "equal" : "other");
    return bytes && bits ? 0 : 1;
}

int main(int argc, char **argv)
{
    static lab l;
    uint32_t tokens[LAB_TOKENS];
    if (argc != 3)
        return 2;
    lab_count(tokens, LAB_TOKENS, 1);
    lab_open(&l, lab_config());
    if (strcmp(argv[1], "loop") == 0)
        return loop(&l, tokens, argv[2]);
    const int code = strcmp(argv[1], "save") == 0 ? save(&l, tokens, argv[2]) : check(&l, tokens, argv[2]);
    lab_close(&l);
    return code;
}
