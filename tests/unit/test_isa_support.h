/* SPDX-License-Identifier: Apache-2.0 */
/** @file test_isa_support.h  One test for every table of hot loops, and memory that shows writes beyond its end. */
#ifndef TEST_ISA_SUPPORT_H
#define TEST_ISA_SUPPORT_H

#include "isa.h"
#include "test_num_data.h"

/** The table of a name; skips the test where the CPU lacks it. */
const sim_isa *isa_or_skip(const char *name);

/** Memory of some bytes at a 64-byte boundary, filled with 0xa5, and a guard behind it. Free with guarded_free, which
 *  fails the test if the guard was written. */
void *guarded_alloc(uint64_t bytes);
void guarded_free(void *memory, uint64_t bytes);

#define ISA_TEST_OF(suite, check, name) \
    Test(suite##_##name, check)         \
    {                                   \
        check(isa_or_skip(#name));      \
    }

#if defined(__aarch64__)
#define ISA_TESTS(suite, check)       \
    ISA_TEST_OF(suite, check, scalar) \
    ISA_TEST_OF(suite, check, neon)   \
    ISA_TEST_OF(suite, check, i8mm)
#else
#define ISA_TESTS(suite, check)       \
    ISA_TEST_OF(suite, check, scalar) \
    ISA_TEST_OF(suite, check, avx2)   \
    ISA_TEST_OF(suite, check, avx512) \
    ISA_TEST_OF(suite, check, amx)
#endif

/** Defines check(isa) as one test of a suite for each table. */
#define ISA_TEST(suite, check)             \
    static void check(const sim_isa *isa); \
    ISA_TESTS(suite, check)                \
    static void check(const sim_isa *isa)

#endif
