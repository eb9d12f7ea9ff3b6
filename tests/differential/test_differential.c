/* SPDX-License-Identifier: Apache-2.0 */
/** @file test_differential.c  CUDA against the simulator; and the simulator against itself, which proves the
 *  comparison. */
#include "differential.h"

#include <criterion/criterion.h>
#include <stdlib.h>

#define SELF_CASES 12u

Test(differential, cuda_equals_sim, .timeout = 850)
{
    const char *text = getenv("NIBBLE_TEST_CASES");
    differential_result r =
        differential_run("sim", "cuda", 1, text != NULL ? (uint32_t)strtoul(text, NULL, 0) : 300u, -1);
    if (r.cases == 0) {
        cr_skip_test("nothing to compare: %s", r.text);
    }
    cr_assert(r.failures == 0, "%u of %u cases differ: %s", r.failures, r.cases, r.text);
}

Test(differential, the_cases_are_valid)
{
    differential_result r = differential_run("sim", "sim", 2, SELF_CASES, -1);
    cr_assert(r.cases == SELF_CASES, "ran %u cases: %s", r.cases, r.text);
    cr_assert(r.failures == 0, "%u cases differ: %s", r.failures, r.text);
}
