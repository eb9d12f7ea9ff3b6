/* SPDX-License-Identifier: Apache-2.0 */
/** @file corpus_main.c @brief Runs every file of a directory through a target, for compilers without libFuzzer.
 *
 * Each input is also run cut short at every length (in steps for long ones): most parsers break at their ends. */
#include "fuzz.h"

#include <dirent.h>
#include <string.h>

enum { INPUT_BYTES_MAX = 1 << 20, CUTS = 256 };

/* A copy of exactly this size, so that a sanitizer sees the first byte read past the end. */
static void run_exact(const uint8_t *bytes, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    FUZZ_REQUIRE(copy != NULL);
    memcpy(copy, bytes, size);
    FUZZ_REQUIRE(LLVMFuzzerTestOneInput(copy, size) == 0);
    free(copy);
}

static void run_file(const char *directory, const char *name)
{
    static uint8_t bytes[INPUT_BYTES_MAX];
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *stream = fopen(path, "rb");
    FUZZ_REQUIRE(stream != NULL);
    size_t size = fread(bytes, 1, sizeof bytes, stream);
    FUZZ_REQUIRE(!ferror(stream) && size < sizeof bytes);
    fclose(stream);
    run_exact(bytes, size);
    size_t step = size / CUTS + 1;
    for (size_t cut = 0; cut < size; cut += step)
        run_exact(bytes, cut);
}

int main(int argc, char **argv)
{
    DIR *directory = argc == 2 ? opendir(argv[1]) : NULL;
    if (!directory) {
        fprintf(stderr, "usage: %s CORPUS_DIRECTORY\n", argv[0]);
        return 2;
    }
    size_t files = 0;
    for (const struct dirent *entry = readdir(directory); entry; entry = readdir(directory)) {
        if (entry->d_name[0] == '.')
            continue;
        run_file(argv[1], entry->d_name);
        files++;
    }
    closedir(directory);
    printf("%zu files\n", files);
    return files > 0 ? 0 : 1;
}
