/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file differential.h
 * @brief Two backends in one process, the same random problems, every byte compared.
 *
 * No test framework: the body runs from a Criterion test and from a program of its own, so that a GPU machine needs
 * nothing but the binaries.
 */
#ifndef DIFFERENTIAL_H
#define DIFFERENTIAL_H

#include <nibble/nibble.h>

/** What a run found. */
typedef struct differential_result {
    uint32_t cases;
    uint32_t failures;
    char text[1024]; /**< the first failure, or why nothing ran */
} differential_result;

/** Runs cases 0..cases-1 of a seed on backends first and second. cases is 0 in the result, and text says why, if one
 *  of the two does not load or open. only: the number of the one case to run, or -1. */
differential_result differential_run(const char *first, const char *second, uint64_t seed, uint32_t cases,
                                     int64_t only);

#endif
