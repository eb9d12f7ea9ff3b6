/* SPDX-License-Identifier: Apache-2.0 */
/** @file fuzz.h @brief What a fuzz target is. Each target is one file; the corpus driver or libFuzzer calls it. */
#ifndef NBL_FUZZ_H
#define NBL_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/** Runs one input. Must return 0; a broken promise ends the process through FUZZ_REQUIRE. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/** Ends the process with the line that failed. */
#define FUZZ_REQUIRE(condition)                                                            \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                       \
        }                                                                                  \
    } while (0)

#endif
