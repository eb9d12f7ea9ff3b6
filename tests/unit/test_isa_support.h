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

/** Defines check(isa) as three tests of a suite: scalar, avx2, avx512. */
#define ISA_TEST(suite, check)             \
    static void check(const sim_isa *isa); \
    Test(suite##_scalar, check)            \
    {                                      \
        check(isa_or_skip("scalar"));      \
    }                                      \
    Test(suite##_avx2, check)              \
    {                                      \
        check(isa_or_skip("avx2"));        \
    }                                      \
    Test(suite##_avx512, check)            \
    {                                      \
        check(isa_or_skip("avx512"));      \
    }                                      \
    static void check(const sim_isa *isa)

#endif
