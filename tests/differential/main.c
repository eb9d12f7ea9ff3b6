/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file main.c
 * @brief differential [FIRST SECOND]: compares two backends (sim and cuda) without a test framework.
 *
 * NIBBLE_TEST_CASES, NIBBLE_TEST_SEED, NIBBLE_TEST_ONLY, NIBBLE_TEST_FORMATS (float, fp4) and NIBBLE_TEST_SHAPES
 * (decode, prefill, append) choose the cases, NIBBLE_TEST_OPS (pages: no attend) the operations. Exits with 0, 1 on a
 * difference, 77 if there is nothing to compare.
 */
#include "differential.h"

#include <stdio.h>
#include <stdlib.h>

#define EXIT_SKIPPED 77

static uint64_t number_from_env(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL && text[0] != '\0' ? strtoull(text, NULL, 0) : otherwise;
}

int main(int argc, char **argv)
{
    uint32_t cases = (uint32_t)number_from_env("NIBBLE_TEST_CASES", 300);
    differential_result r = differential_run(argc > 2 ? argv[1] : "sim", argc > 2 ? argv[2] : "cuda",
                                             number_from_env("NIBBLE_TEST_SEED", 1), cases,
                                             (int64_t)number_from_env("NIBBLE_TEST_ONLY", UINT64_MAX));
    if (r.cases == 0) {
        printf("differential: skipped: %s\n", r.text);
        return EXIT_SKIPPED;
    }
    printf("differential: %u cases, %u failed%s%s\n", r.cases, r.failures, r.failures > 0 ? ": " : "",
           r.failures > 0 ? r.text : "");
    return r.failures > 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
