/* SPDX-License-Identifier: Apache-2.0 */
/* NUM 1.1: nothing is contracted, nothing is flushed, and binary32 is binary32. This file is compiled with fused
 * operations at hand: a build that lets the compiler contract fails here. */
#include "merge.h"

#include <criterion/criterion.h>
#include <float.h>

_Static_assert(FLT_EVAL_METHOD == 0, "binary32 expressions must be evaluated in binary32");

static void require_fma(void)
{
    if (!__builtin_cpu_supports("fma")) {
        cr_skip_test("this CPU has no fused multiply-add, and this file is compiled for one");
    }
}

Test(num_contraction, product_and_sum_round_twice)
{
    require_fma();
    /* The square is 1 + 2^-11 + 2^-24, a tie that goes to 1 + 2^-11; a fused operation would keep 2^-24. */
    volatile float a = 1.0f + 0x1p-12f;
    volatile float c = -(1.0f + 0x1p-11f);
    float sum = a * a + c;
    float difference = c - a * -a;
    cr_expect_eq(nbl_bits_of(sum), 0u, "a * a + c is %a: it was contracted", (double)sum);
    cr_expect_eq(nbl_bits_of(difference), 0u, "c - a * -a is %a: it was contracted", (double)difference);
    cr_expect_eq(nbl_fma(a, a, c), 0x1p-24f, "nbl_fma must be fused, not %a", (double)nbl_fma(a, a, c));
}

/* NUM 5.7: zs = fl(fl(s * LOG2E) - offset). */
Test(num_contraction, sink_logit_rounds_twice)
{
    require_fma();
    uint32_t differ = 0;
    for (uint32_t i = 1; i <= 1000u; i++) {
        volatile float sink = (float)i / 7.0f;
        volatile float product = sink * NBL_LOG2E;
        float offset = product - 0x1p-3f;
        volatile float z = product - offset;
        nbl_state_head head = nbl_state_empty(offset);
        nbl_state_add_sink(&head, NULL, 0, sink);
        float expected = nbl_exp2p(z - 1.0f);
        differ += nbl_exp2p(nbl_fma(sink, NBL_LOG2E, -offset) - 1.0f) != expected;
        cr_expect_eq(head.base, 1.0f, "sink %a: M' = %a", (double)sink, (double)head.base);
        cr_expect_eq(head.sum, expected, "sink %a: L' = %a, not %a", (double)sink, (double)head.sum, (double)expected);
    }
    cr_expect_gt(differ, 500u, "only %u of 1000 sinks could tell", differ);
}

Test(num_contraction, subnormals_are_kept)
{
    volatile float least = FLT_MIN;
    volatile float half = least * 0.5f;
    cr_expect_eq(nbl_bits_of(half), 0x00400000u, "2^-127 was flushed to %08x", nbl_bits_of(half));
    cr_expect_eq(nbl_bits_of(half * 2.0f), 0x00800000u, "2^-127 was read as zero");
}
