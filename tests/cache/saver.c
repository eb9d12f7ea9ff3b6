/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots across processes, and across backends (NIBBLE_BACKEND):
 *   cache_saver loop PATH    saves sequences of 3, 4, 5, ... tokens to PATH, one over the other, until it is killed
 *   cache_saver save PATH    saves one sequence
 *   cache_saver check PATH   loads PATH; it must be the bytes, and give the bits, of that sequence made here
 *   cache_saver tier PATH    runs prompts through a cache whose file tier lies in the folder PATH.tier, and saves each
 *                            to PATH, until it is killed; prints 'b' in the middle of every write into the tier, 'e'
 *                            at its end */
#include "lab.h"

#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

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
    const bool bytes = lab_equal_bytes(l, here, l, loaded), bits = lab_same(l, here, l, loaded);
    printf("saver: %s bytes, %s bits\n", bytes ? "equal" : "other", bits ? "equal" : "other");
    return bytes && bits ? 0 : 1;
}

/* Goes before the C library's, also for the library's calls: a write that takes its time between its halves. */
__attribute__((visibility("default"))) ssize_t pwrite(int file, const void *data, size_t bytes, off_t at)
{
    const struct iovec first = {(void *)(uintptr_t)data, bytes / 2},
                       second = {(char *)(uintptr_t)data + bytes / 2, bytes - bytes / 2};
    const struct timespec pause = {0, 300000};
    ssize_t written = pwritev(file, &first, 1, at);
    (void)!write(STDOUT_FILENO, "b", 1);
    nanosleep(&pause, NULL);
    if (written == (ssize_t)first.iov_len)
        written += pwritev(file, &second, 1, at + written);
    (void)!write(STDOUT_FILENO, "e", 1);
    return written;
}

static int tier(lab *l, const char *path)
{
    nbl_error err = NBL_INIT(nbl_error);
    uint32_t tokens[LAB_TIER_PROMPT];
    for (uint32_t prompt = 1;; prompt = prompt % LAB_TIER_PROMPTS + 1) {
        const uint64_t sequence = lab_published(l, prompt, tokens);
        if (l->api->snapshot_save(l->cache, sequence, path, &err) != NBL_OK ||
            l->api->seq_free(l->cache, sequence, &err) != NBL_OK)
            return failed(&err);
    }
}

int main(int argc, char **argv)
{
    static lab l;
    uint32_t tokens[LAB_TOKENS];
    char folder[128];
    if (argc != 3)
        return 2;
    lab_count(tokens, LAB_TOKENS, 1);
    snprintf(folder, sizeof folder, "%s.tier", argv[2]);
    if (strcmp(argv[1], "tier") == 0) {
        lab_open(&l, lab_tier_config(folder));
        return tier(&l, argv[2]);
    }
    lab_open(&l, lab_config());
    if (strcmp(argv[1], "loop") == 0)
        return loop(&l, tokens, argv[2]);
    const int code = strcmp(argv[1], "save") == 0 ? save(&l, tokens, argv[2]) : check(&l, tokens, argv[2]);
    lab_close(&l);
    return code;
}
