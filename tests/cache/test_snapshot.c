/* SPDX-License-Identifier: Apache-2.0 */
#include "lab.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* A snapshot in memory. */
typedef struct blob {
    uint8_t *data;
    uint64_t bytes;
} blob;

static blob snapshot_of(lab *l, uint64_t sequence)
{
    nbl_error err = NBL_INIT(nbl_error);
    blob b = {NULL, 0};
    LAB_OK(l->api->snapshot_size(l->cache, sequence, &b.bytes, &err));
    b.data = malloc(b.bytes);
    cr_assert_not_null(b.data, "no memory");
    memset(b.data, 0xA5, b.bytes);
    LAB_OK(l->api->snapshot_write(l->cache, sequence, b.data, b.bytes, &err));
    return b;
}

static uint64_t restored(lab *l, const blob *b)
{
    nbl_error err = NBL_INIT(nbl_error);
    uint64_t sequence = 0;
    LAB_OK(l->api->snapshot_read(l->cache, b->data, b->bytes, &sequence, &err));
    return sequence;
}

/* H1, H2, H7: every format, with scales, transforms and centres, into a fresh pool of another size. */
Test(cache_snapshot, h1_round_trip_of_every_format)
{
    static const uint32_t pages[] = {1, 7, 16, 48};
    uint32_t tokens[100];
    lab_count(tokens, 100, 1);
    for (uint32_t i = 0; i < LAB_PAIRS; ++i) {
        lab a, b;
        nbl_cache_config config = lab_config();
        lab_pair(&config, i);
        config.shape.page_tokens = pages[(i + i / 4) % 4];
        config.shape.centering = i % 3 == 0 ? 0 : NBL_CENTERING_ALL;
        lab_open(&a, config);
        config.tokens_max = 700;
        config.sequences_max = 3;
        lab_open(&b, config);
        const uint64_t sequence = lab_filled(&a, tokens, 100, 60);
        blob s = snapshot_of(&a, sequence);
        const uint64_t copy = restored(&b, &s);
        cr_assert(lab_same(&a, sequence, &b, copy), "case %u: other bits", i);
        blob again = snapshot_of(&b, copy);
        cr_assert(again.bytes == s.bytes && memcmp(again.data, s.data, s.bytes) == 0, "case %u: other bytes", i);
        lab_append(&a, sequence, tokens, 20);
        lab_append(&b, copy, tokens, 20);
        cr_assert(lab_same(&a, sequence, &b, copy), "case %u: other bits after more tokens", i);
        free(s.data);
        free(again.data);
        lab_close(&b);
        lab_close(&a);
    }
}

/* Nothing of other sequences, of earlier tokens or of the pages' history is in a snapshot. */
Test(cache_snapshot, equal_sequences_are_equal_bytes)
{
    lab l;
    uint32_t tokens[90], other[90];
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache_config config = lab_config();
    config.shape.page_tokens = 7;
    lab_open(&l, config);
    lab_count(tokens, 90, 1);
    lab_count(other, 90, 500);
    const uint64_t a = lab_filled(&l, tokens, 50, 40), b = lab_filled(&l, tokens, 40, 0);
    lab_append(&l, b, other, 37);
    LAB_OK(l.api->seq_truncate(l.cache, b, 40, &err));
    lab_append(&l, b, tokens + 40, 3);
    lab_append(&l, b, tokens + 43, 7);
    blob one = snapshot_of(&l, a), two = snapshot_of(&l, b);
    cr_assert(one.bytes == two.bytes && memcmp(one.data, two.data, one.bytes) == 0, "bytes differ");
    free(one.data);
    free(two.data);
    lab_close(&l);
}

static void small_open(lab *l)
{
    nbl_cache_config config = lab_config();
    config.shape.kv_heads = LAB_HEADS;
    config.shape.page_tokens = 5;
    config.sequences_max = 2;
    config.tokens_max = 64;
    config.sink_tokens = 5;
    lab_open(l, config);
}

/* A flipped bit in any byte, and any shorter length, is found; the cache does not change. */
Test(cache_snapshot, a_flipped_byte_anywhere_is_found)
{
    lab l;
    uint32_t tokens[12];
    nbl_error err = NBL_INIT(nbl_error);
    small_open(&l);
    lab_count(tokens, 12, 1);
    const uint64_t a = lab_filled(&l, tokens, 12, 0);
    blob s = snapshot_of(&l, a);
    const nbl_cache_stats before = lab_stats(&l);
    uint64_t sequence = 1;
    for (uint64_t i = 0; i < s.bytes; ++i) {
        s.data[i] ^= (uint8_t)(1u << i % 8);
        const nbl_status status = l.api->snapshot_read(l.cache, s.data, s.bytes, &sequence, &err);
        cr_assert(status == NBL_E_INVALID || status == NBL_E_ABI, "byte %d: status %d", (int)i, status);
        s.data[i] ^= (uint8_t)(1u << i % 8);
    }
    for (uint64_t bytes = 0; bytes < s.bytes; bytes += 1 + bytes / 64)
        cr_assert_eq(l.api->snapshot_read(l.cache, s.data, bytes, &sequence, &err), NBL_E_INVALID, "%d bytes",
                     (int)bytes);
    const nbl_cache_stats after = lab_stats(&l);
    cr_assert_eq(memcmp(&before, &after, sizeof before), 0, "the cache changed");
    cr_assert_eq(sequence, 1, "output written");
    (void)restored(&l, &s);
    free(s.data);
    lab_close(&l);
}

/* H6: what can be read is read: other sizes, more classes of pages. What cannot is refused with the reason. */
Test(cache_snapshot, h6_compatible_or_refused)
{
    static const struct {
        const char *text;
        uint32_t kv_heads, page_tokens, k_hadamard, centering, k_format, sink_tokens;
    } rows[] = {{"kv_heads", 1, 16, 32, 3, NBL_INT4P, 32},        {"page_tokens", 2, 8, 32, 3, NBL_INT4P, 32},
                {"k_hadamard", 2, 16, 16, 3, NBL_INT4P, 32},      {"centering", 2, 16, 32, 1, NBL_INT4P, 32},
                {"formats 4 and 1", 2, 16, 32, 3, NBL_MXFP4, 32}, {"formats 1 and 1", 2, 16, 32, 3, NBL_INT4P, 0}};
    lab a, b;
    uint32_t tokens[60];
    nbl_error err = NBL_INIT(nbl_error);
    uint64_t sequence = 1;
    lab_count(tokens, 60, 1);
    lab_open(&a, lab_config());
    blob s = snapshot_of(&a, lab_filled(&a, tokens, 60, 0));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        nbl_cache_config config = lab_config();
        config.shape.kv_heads = rows[i].kv_heads;
        config.shape.page_tokens = rows[i].page_tokens;
        config.shape.k_hadamard = rows[i].k_hadamard;
        config.shape.centering = rows[i].centering;
        config.k_format = rows[i].k_format;
        config.sink_tokens = rows[i].sink_tokens;
        lab_open(&b, config);
        cr_assert_neq(b.api->snapshot_read(b.cache, s.data, s.bytes, &sequence, &err), NBL_OK, "%s", rows[i].text);
        /* A head of another length is refused before its fields are compared. */
        cr_assert(strstr(err.message, rows[i].text) != NULL || strstr(err.message, "head of") != NULL,
                  "\"%s\" is not in \"%s\"", rows[i].text, err.message);
        lab_close(&b);
    }
    free(s.data);
    lab_close(&a);
}

Test(cache_snapshot, dropped_prefix_and_forks)
{
    lab a, b;
    uint32_t tokens[120];
    float out_a[LAB_OUT_FLOATS(2)], out_b[LAB_OUT_FLOATS(2)];
    nbl_error err = NBL_INIT(nbl_error);
    uint64_t fork = 0;
    lab_count(tokens, 120, 1);
    lab_open(&a, lab_config());
    lab_open(&b, lab_config());
    const uint64_t parent = lab_filled(&a, tokens, 120, 0);
    LAB_OK(a.api->seq_fork(a.cache, parent, 100, &fork, &err));
    LAB_OK(a.api->seq_drop_prefix(a.cache, fork, 51, &err));
    blob s = snapshot_of(&a, fork);
    const uint64_t copy = restored(&b, &s);
    LAB_OK(lab_attend(&a, fork, 2, 40, out_a, &err));
    LAB_OK(lab_attend(&b, copy, 2, 40, out_b, &err));
    cr_assert_eq(memcmp(out_a, out_b, sizeof out_a), 0, "other bits");
    cr_assert_eq(lab_attend(&b, copy, 2, 60, out_b, &err), NBL_E_RANGE, "a dropped token can be seen");
    LAB_OK(b.api->seq_free(b.cache, copy, &err));
    cr_assert_eq(lab_stats(&b).used_bytes, 0, "pages stayed");
    free(s.data);
    lab_close(&b);
    lab_close(&a);
}

/* A snapshot from another policy, or with a centre from more tokens, is no recomputation: it is not published. */
Test(cache_snapshot, foreign_pages_are_not_published)
{
    lab a, b;
    uint32_t tokens[120], found = 1;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_prefix p = NBL_INIT(nbl_prefix);
    nbl_cache_config config = lab_config();
    lab_count(tokens, 120, 1);
    p.tokens = tokens;
    p.count = 120;
    for (uint32_t i = 0; i < 2; ++i) {
        config.sink_tokens = i == 0 ? 96 : 32; /* int8 pages where b has 4-bit ones; then a centre from 120 tokens */
        lab_open(&a, config);
        config = lab_config();
        config.flags = NBL_CACHE_PREFIX;
        config.center_tokens = 64;
        config.host_bytes = 1 << 20;
        lab_open(&b, config);
        blob s = snapshot_of(&a, lab_filled(&a, tokens, 120, i == 0 ? 64 : 0));
        const uint64_t copy = restored(&b, &s);
        LAB_OK(b.api->prefix_publish(b.cache, copy, &p, &found, &err));
        cr_assert_eq(found, i == 0 ? 32 : 0, "case %u: %u tokens published", i, found);
        LAB_OK(b.api->seq_free(b.cache, copy, &err));
        free(s.data);
        lab_close(&b);
        lab_close(&a);
        config = lab_config();
    }
}

/* ------------------------------------------------------------------------------------------------ files */

static void folder_make(char folder[64])
{
    snprintf(folder, 64, "/tmp/nibble-test-XXXXXX");
    cr_assert_not_null(mkdtemp(folder), "no temporary folder");
}

static void folder_remove(const char *folder)
{
    static const char *const names[] = {"s", "s.partial"};
    char path[128];
    for (size_t i = 0; i < 2; ++i) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        (void)remove(path);
    }
    cr_assert_eq(rmdir(folder), 0, "%s holds more than it should", folder);
}

/* A sequence whose centre comes from tokens that are gone is not published, also not after a journey. */
Test(cache_snapshot, loose_centres_stay_loose)
{
    lab l;
    uint32_t tokens[96];
    nbl_error err = NBL_INIT(nbl_error);
    nbl_prefix p = NBL_INIT(nbl_prefix);
    nbl_cache_config config = lab_config();
    config.flags = NBL_CACHE_PREFIX;
    config.center_tokens = 32;
    lab_open(&l, config);
    lab_count(tokens, 96, 1);
    p.tokens = tokens;
    p.count = 96;
    const uint64_t firm = lab_filled(&l, tokens, 96, 0), loose = lab_filled(&l, tokens, 96, 0);
    LAB_OK(l.api->seq_truncate(l.cache, loose, 20, &err));
    lab_append(&l, loose, tokens + 20, 76);
    const uint64_t sequences[] = {loose, firm};
    for (uint32_t i = 0; i < 2; ++i) {
        blob b = snapshot_of(&l, sequences[i]);
        uint64_t copy = 0;
        uint32_t found = 1;
        LAB_OK(l.api->snapshot_read(l.cache, b.data, b.bytes, &copy, &err));
        LAB_OK(l.api->prefix_publish(l.cache, copy, &p, &found, &err));
        cr_assert_eq(found, i == 0 ? 0 : 96, "sequence %u: %u tokens published", i, found);
        free(b.data);
    }
    lab_close(&l);
}

Test(cache_snapshot, files)
{
    lab l;
    char folder[64], path[128], bad[128];
    uint32_t tokens[70];
    nbl_error err = NBL_INIT(nbl_error);
    uint64_t copy = 0;
    folder_make(folder);
    snprintf(path, sizeof path, "%s/s", folder);
    snprintf(bad, sizeof bad, "%s/none/s", folder);
    lab_count(tokens, 70, 1);
    lab_open(&l, lab_config());
    const uint64_t a = lab_filled(&l, tokens, 70, 0), b = lab_filled(&l, tokens, 20, 0);
    cr_assert_eq(l.api->snapshot_load(l.cache, path, &copy, &err), NBL_E_IO, "loaded from nowhere");
    cr_assert_eq(l.api->snapshot_save(l.cache, a, bad, &err), NBL_E_IO, "saved to nowhere");
    cr_assert_eq(l.api->snapshot_save(l.cache, a, "", &err), NBL_E_INVALID, "saved without a name");
    cr_assert_eq(l.api->snapshot_save(l.cache, a, NULL, &err), NBL_E_INVALID, "saved to NULL");
    cr_assert_eq(l.api->snapshot_load(l.cache, folder, &copy, &err), NBL_E_IO, "loaded a folder");
    cr_assert_eq(mkfifo(path, 0600), 0, "no pipe");
    cr_assert_eq(l.api->snapshot_save(l.cache, a, path, &err), NBL_E_IO, "saved over a pipe");
    cr_assert_not_null(strstr(err.message, "is not a regular file"), "%s", err.message);
    cr_assert_eq(unlink(path), 0, "the pipe is gone");
    LAB_OK(l.api->snapshot_save(l.cache, b, path, &err));
    LAB_OK(l.api->snapshot_save(l.cache, a, path, &err)); /* over the old one */
    LAB_OK(l.api->snapshot_load(l.cache, path, &copy, &err));
    cr_assert(lab_same(&l, a, &l, copy), "other bits");
    snprintf(bad, sizeof bad, "%s/s.partial", folder);
    cr_assert_neq(access(bad, F_OK), 0, "a partial file stayed");
    lab_close(&l);
    folder_remove(folder);
}

/* What snapshot_save asks of the system, in order: 'f' a file is synced, 'd' a folder, 'r' a file is renamed. These two
 * go before the C library's, also for the library's calls. */
static char asked[16];

static void ask(char what)
{
    const size_t length = strlen(asked);
    if (length + 1 < sizeof asked)
        asked[length] = what;
}

__attribute__((visibility("default"))) int fsync(int fd)
{
    struct stat info;
    ask(fstat(fd, &info) == 0 && S_ISDIR(info.st_mode) ? 'd' : 'f');
    return fdatasync(fd);
}

__attribute__((visibility("default"))) int rename(const char *from, const char *to)
{
    ask('r');
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

/* A file is on the disk before it gets its name, and the name before the call returns. */
Test(cache_snapshot, synced_in_order)
{
    lab l;
    char folder[64], path[128];
    uint32_t tokens[20];
    nbl_error err = NBL_INIT(nbl_error);
    folder_make(folder);
    snprintf(path, sizeof path, "%s/s", folder);
    lab_count(tokens, 20, 1);
    lab_open(&l, lab_config());
    const uint64_t s = lab_filled(&l, tokens, 20, 0);
    memset(asked, 0, sizeof asked);
    LAB_OK(l.api->snapshot_save(l.cache, s, path, &err));
    cr_assert_str_eq(asked, "frd", "%s", asked);
    lab_close(&l);
    folder_remove(folder);
}

/* Starts the saver, its standard output on the descriptor `output` unless that is negative. */
static pid_t saver_start(const char *mode, const char *path, int output)
{
    extern char **environ;
    posix_spawn_file_actions_t actions;
    char program[] = SAVER, name[128], word[16];
    snprintf(name, sizeof name, "%s", path);
    snprintf(word, sizeof word, "%s", mode);
    char *const arguments[] = {program, word, name, NULL};
    pid_t child = 0;
    posix_spawn_file_actions_init(&actions);
    if (output >= 0)
        posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
    cr_assert_eq(posix_spawn(&child, SAVER, &actions, NULL, arguments, environ), 0, "cannot start " SAVER);
    posix_spawn_file_actions_destroy(&actions);
    return child;
}

static void wait_us(long us)
{
    const struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

/* Waits until the file is another one than `before`: the saver is at work. */
static void wait_for_another(const char *path, const struct stat *before)
{
    struct stat now = *before;
    for (int i = 0; i < 100000; ++i) {
        if (stat(path, &now) == 0 && (now.st_ino != before->st_ino || now.st_mtim.tv_nsec != before->st_mtim.tv_nsec))
            return;
        wait_us(200);
    }
    cr_assert_fail("the saver has not saved");
}

/* What one process saves, another one loads: nothing in a file depends on the process. */
Test(cache_snapshot, another_process_gives_the_bits)
{
    static const char *const modes[] = {"save", "check"};
    char folder[64], path[128];
    folder_make(folder);
    snprintf(path, sizeof path, "%s/s", folder);
    for (uint32_t i = 0; i < 2; ++i) {
        int status = 0;
        const pid_t child = saver_start(modes[i], path, -1);
        cr_assert_eq(waitpid(child, &status, 0), child, "wait");
        cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: status %d", modes[i], status);
    }
    folder_remove(folder);
}

/* A process that saves one sequence after the other is killed at any moment: the file is always one of them, whole. */
Test(cache_snapshot, kill_200_times, .timeout = 300)
{
    lab l;
    char folder[64], path[128];
    uint32_t tokens[LAB_TOKENS], seed = 1, lengths = 0;
    nbl_error err = NBL_INIT(nbl_error);
    bool seen[LAB_TOKENS + 1] = {false};
    folder_make(folder);
    snprintf(path, sizeof path, "%s/s", folder);
    lab_count(tokens, LAB_TOKENS, 1);
    lab_open(&l, lab_config());
    for (uint32_t round = 0; round < 200; ++round) {
        uint64_t copy = 0;
        struct stat before = {0};
        (void)stat(path, &before);
        const pid_t child = saver_start("loop", path, -1);
        for (uint32_t saves = 0; saves <= (seed >> 16 & 7u); ++saves) {
            wait_for_another(path, &before);
            (void)stat(path, &before);
        }
        seed = seed * 1664525u + 1013904223u;
        wait_us((long)(seed >> 8) % 4000);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        LAB_OK(l.api->snapshot_load(l.cache, path, &copy, &err));
        const uint32_t length = lab_length(&l, copy);
        const uint64_t again = lab_filled(&l, tokens, length, 0);
        cr_assert(lab_same(&l, copy, &l, again), "round %u: %u tokens of other bits", round, length);
        lengths += !seen[length];
        seen[length] = true;
        LAB_OK(l.api->seq_free(l.cache, copy, &err));
        LAB_OK(l.api->seq_free(l.cache, again, &err));
    }
    cr_assert_gt(lengths, 3, "the saver was always killed at the same place");
    lab_close(&l);
    folder_remove(folder);
}

/* ------------------------------------------------------------------------------------------------ kills, file tier */

/* Runs the saver and kills it in one of its writes into the file tier, or soon after. Tells whether it was inside. */
static bool tier_kill(const char *path, uint32_t random)
{
    int pipes[2];
    char word = 0, last = 0;
    cr_assert_eq(pipe2(pipes, O_CLOEXEC), 0, "pipe");
    const pid_t child = saver_start("tier", path, pipes[1]);
    close(pipes[1]);
    for (uint32_t words = 0; words <= 2u * (random >> 28); ++words) /* 'b' */
        cr_assert_eq(read(pipes[0], &last, 1), 1, "the saver has not written into the tier");
    wait_us((long)(random >> 8) % 600);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    while (read(pipes[0], &word, 1) == 1)
        last = word;
    close(pipes[0]);
    return last == 'b';
}

/* A new cache over the folder that a killed process has used knows nothing, and works. */
static void expect_clean_start(const char *folder)
{
    lab l;
    uint32_t tokens[LAB_TIER_PROMPT], found = 1;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_prefix p = NBL_INIT(nbl_prefix);
    lab_open(&l, lab_tier_config(folder));
    for (uint32_t prompt = 1; prompt <= 3; ++prompt) {
        lab_count(tokens, LAB_TIER_PROMPT, 1000 * prompt);
        p.tokens = tokens;
        p.count = LAB_TIER_PROMPT;
        LAB_OK(l.api->prefix_match(l.cache, &p, &found, &err));
        cr_assert_eq(found, 0, "prompt %u: %u tokens of another process", prompt, found);
        LAB_OK(l.api->seq_free(l.cache, lab_published(&l, prompt, tokens), &err));
    }
    p.count = LAB_TIER_PROMPT;
    lab_count(tokens, LAB_TIER_PROMPT, 1000);
    const uint64_t s = lab_seq(&l);
    LAB_OK(l.api->seq_adopt(l.cache, s, &p, &found, &err));
    cr_assert_eq(found, LAB_TIER_PROMPT, "%u tokens came back", found);
    cr_assert(lab_stats(&l).file_pages_used > 0 && lab_stats(&l).tier_failures == 0, "the file is not in use");
    cr_assert(lab_same(&l, s, &l, lab_filled(&l, tokens, LAB_TIER_PROMPT, 0)), "other bits");
    lab_close(&l);
}

/* The snapshot that a killed process was replacing all the time is one of its prompts, whole. */
static uint32_t expect_whole_prompt(lab *l, const char *path)
{
    uint32_t tokens[LAB_TIER_PROMPT], prompt = 0;
    nbl_error err = NBL_INIT(nbl_error);
    uint64_t copy = 0;
    bool same = false;
    LAB_OK(l->api->snapshot_load(l->cache, path, &copy, &err));
    while (!same && prompt < LAB_TIER_PROMPTS) {
        lab_count(tokens, LAB_TIER_PROMPT, 1000 * ++prompt);
        const uint64_t again = lab_filled(l, tokens, LAB_TIER_PROMPT, 0);
        same = lab_equal_bytes(l, copy, l, again) && lab_same(l, copy, l, again);
        LAB_OK(l->api->seq_free(l->cache, again, &err));
    }
    cr_assert(same, "the snapshot is no prompt");
    LAB_OK(l->api->seq_free(l->cache, copy, &err));
    return prompt;
}

/* A process is killed 200 times while pages go into its file tier: the folder of the tier is empty each time, a new
 * cache over it starts empty and works, and the snapshot is the old one or the new one. */
Test(cache_snapshot, kill_200_times_in_the_file_tier, .timeout = 300)
{
    lab l;
    char folder[64], tier[160], path[128];
    uint32_t seed = 1, inside = 0, prompts = 0;
    folder_make(folder);
    snprintf(path, sizeof path, "%s/s", folder);
    snprintf(tier, sizeof tier, "%s.tier", path);
    nbl_cache_config config = lab_tier_config(NULL);
    config.host_bytes = config.file_bytes = 0;
    lab_open(&l, config);
    for (uint32_t round = 0; round < 200; ++round) {
        cr_assert_eq(mkdir(tier, 0700), 0, "mkdir");
        inside += tier_kill(path, seed);
        seed = seed * 1664525u + 1013904223u;
        if (round % 10 == 0)
            expect_clean_start(tier);
        cr_assert_eq(rmdir(tier), 0, "round %u: the killed process has left a file in %s", round, tier);
        prompts |= 1u << expect_whole_prompt(&l, path);
    }
    cr_assert(inside > 20 && inside < 200, "%u of 200 kills fell into a write", inside);
    cr_assert(prompts & (prompts - 1u), "the saver was always killed at the same place");
    lab_close(&l);
    folder_remove(folder);
}
