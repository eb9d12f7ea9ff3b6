/* SPDX-License-Identifier: Apache-2.0 */
/* States of core/num/merge.h against the oracle: merging, sinks, LSE, output (NUM 5.6, 5.7). */
#include "merge.h"
#include "test_num_data.h"

#define DIM 64u
#define STATES_MAX 6u

/* States of one row in the order they are merged. */
typedef struct row_states {
    uint32_t count;
    nbl_state_head heads[STATES_MAX];
    float o[STATES_MAX][DIM];
} row_states;

/* What comes of them. */
typedef struct row_result {
    nbl_state_head head;
    float state_o[DIM];
    float lse;
    float o[DIM];
} row_result;

static row_result oracle_fold(row_states *in, float *sink, uint32_t v_hadamard, uint32_t flags)
{
    nbl_merge_args args = NBL_INIT(nbl_merge_args);
    row_result out;
    memset(&out, 0xff, sizeof out);
    args.flags = flags;
    args.count = in->count;
    args.v_hadamard = v_hadamard;
    args.in_state_head = support_tensor(in->heads, NBL_F32, 4, (uint64_t[]){in->count, 1, 1, 4});
    args.in_state_o = support_tensor(in->o, NBL_F32, 4, (uint64_t[]){in->count, 1, 1, DIM});
    args.state_head = support_tensor(&out.head, NBL_F32, 3, (uint64_t[]){1, 1, 4});
    args.state_o = support_tensor(out.state_o, NBL_F32, 3, (uint64_t[]){1, 1, DIM});
    args.o = support_tensor(out.o, NBL_F32, 3, (uint64_t[]){1, 1, DIM});
    args.lse = support_tensor(&out.lse, NBL_F32, 2, (uint64_t[]){1, 1});
    args.sinks = sink;
    oracle_merge(&args);
    return out;
}

static row_result fold(const row_states *in, const float *sink, uint32_t v_hadamard, uint32_t flags)
{
    row_result out;
    memset(&out, 0, sizeof out);
    out.head = nbl_state_empty(in->heads[0].offset);
    for (uint32_t n = 0; n < in->count; n++) {
        nbl_state_merge(&out.head, out.state_o, &in->heads[n], in->o[n], DIM);
    }
    nbl_state_head last = out.head;
    memcpy(out.o, out.state_o, sizeof out.o);
    if (sink != NULL) {
        nbl_state_add_sink(&last, out.o, DIM, *sink);
    }
    out.lse = nbl_state_lse(&last, (flags & NBL_MERGE_LSE_BASE2) != 0);
    nbl_state_output(&last, out.o, DIM, v_hadamard);
    return out;
}

static row_result check_fold(row_states *in, float *sink, uint32_t v_hadamard, uint32_t flags, const char *what)
{
    row_result expected = oracle_fold(in, sink, v_hadamard, flags);
    row_result out = fold(in, sink, v_hadamard, flags);
    cr_assert_arr_eq(&out.head, &expected.head, sizeof out.head, "%s: state (%a, %a, %a), not (%a, %a, %a)", what,
                     (double)out.head.base, (double)out.head.sum, (double)out.head.offset, (double)expected.head.base,
                     (double)expected.head.sum, (double)expected.head.offset);
    cr_assert_arr_eq(out.state_o, expected.state_o, sizeof out.state_o, "%s: O of the state", what);
    cr_assert_eq(nbl_bits_of(out.lse), nbl_bits_of(expected.lse), "%s: lse %a, not %a", what, (double)out.lse,
                 (double)expected.lse);
    cr_assert_arr_eq(out.o, expected.o, sizeof out.o, "%s: o", what);
    cr_assert(!isnan(out.lse) && out.lse < INFINITY, "%s: lse is %a", what, (double)out.lse);
    return out;
}

static void random_state(uint64_t *seed, float base, float sum, float offset, nbl_state_head *head, float *o)
{
    *head = (nbl_state_head){base, sum, offset, 0.0f};
    for (uint32_t d = 0; d < DIM; d++) {
        o[d] = sum == 0.0f ? 0.0f : support_normal(seed) * sum * 100.0f;
    }
}

/* One in four is empty; bases lie close together or far apart. */
static void random_states(uint64_t *seed, row_states *in)
{
    float offset = random_index(seed, 2) == 0 ? 0.0f : support_normal(seed) * 30.0f;
    uint32_t spread = random_index(seed, 2) == 0 ? 8u : 400u;
    in->count = 1u + random_index(seed, STATES_MAX);
    for (uint32_t n = 0; n < in->count; n++) {
        bool empty = random_index(seed, 4) == 0;
        float base = (float)random_index(seed, spread) - (float)random_index(seed, 300);
        float sum = (float)exp2(random_between(seed, -60.0, 90.0));
        random_state(seed, empty ? -INFINITY : base, empty ? 0.0f : sum, offset, &in->heads[n], in->o[n]);
    }
}

/* NUM 5.6, 5.7. */
Test(num_merge, folding_random_states)
{
    uint64_t seed = 61;
    for (uint32_t n = 0; n < 20000u; n++) {
        row_states in;
        random_states(&seed, &in);
        check_fold(&in, NULL, 0, n % 2u == 0 ? NBL_MERGE_LSE_BASE2 : 0u, "no sink");
    }
}

/* NUM 5.7: sinks of every size, the ends of their range and none. */
Test(num_merge, sinks_join_the_denominator)
{
    static const float ends[] = {-INFINITY, -4194304.0f, 4194304.0f, 0.0f, -0.0f};
    uint64_t seed = 62;
    for (uint32_t n = 0; n < 20000u; n++) {
        row_states in;
        float sink = support_normal(&seed) * (n % 3u == 1 ? 5.0f : 90.0f);
        sink = n % 3u == 0 ? ends[random_index(&seed, COUNT(ends))] : sink;
        random_states(&seed, &in);
        check_fold(&in, &sink, 0, n % 2u == 0 ? NBL_MERGE_LSE_BASE2 : 0u, "sink");
    }
}

/* NUM 5.7 with 4.1: the output row undoes the transform of V. */
Test(num_merge, output_undoes_the_transform_of_v)
{
    uint64_t seed = 63;
    for (uint32_t n = 0; n < 2000u; n++) {
        row_states in;
        float sink = support_normal(&seed);
        random_states(&seed, &in);
        check_fold(&in, &sink, 8u << n % 4u, 0, "v_hadamard");
    }
}

/* NUM 5.6: a state with L = 0 is empty whatever M and O say, and the result is the other one, to the byte. */
Test(num_merge, empty_states_leave_the_other_unchanged)
{
    uint64_t seed = 64;
    row_states in = {.count = 2};
    for (uint32_t n = 0; n < 4u; n++) {
        nbl_state_head empty = nbl_state_empty(7.0f);
        uint32_t full = n % 2u;
        empty.base = n < 2u ? -INFINITY : 1000.0f;
        random_state(&seed, 5.0f, 3.0f, 7.0f, &in.heads[full], in.o[full]);
        random_state(&seed, 0.0f, 0.0f, 7.0f, &in.heads[1u - full], in.o[1u - full]);
        in.heads[1u - full] = empty;
        row_result out = check_fold(&in, NULL, 0, 0, "one empty state");
        cr_expect_arr_eq(&out.head, &in.heads[full], sizeof out.head, "the full state comes back");
        cr_expect_arr_eq(out.state_o, in.o[full], sizeof out.state_o, "its O comes back");
    }
}

/* NUM 5.6: factors of bases held as integers, those below 2^-126 being 0. */
Test(num_merge, factors_of_integer_bases)
{
    static const int32_t far_below = -(1 << 22) - (1 << 16);
    uint64_t seed = 71;
    for (uint32_t n = 0; n < 20000u; n++) {
        const uint32_t spread = n % 2u == 0 ? 300u : 8000000u;
        const int32_t left = n % 16u == 5u ? far_below : (int32_t)random_index(&seed, spread) - (int32_t)(spread / 2u);
        const int32_t right = n % 16u == 9u ? far_below : (int32_t)random_index(&seed, spread) - (int32_t)(spread / 2u);
        const int32_t most = left > right ? left : right;
        const float want_left = left - most < -126 ? 0.0f : ldexpf(1.0f, left - most);
        const float want_right = right - most < -126 ? 0.0f : ldexpf(1.0f, right - most);
        nbl_merge_scale s;
        const int32_t base = nbl_merge_scale_of_integers(left, right, &s);
        cr_assert(base == most && s.base == (float)most, "M of %d and %d is %d, %a", left, right, base, (double)s.base);
        cr_assert_eq(nbl_bits_of(s.left), nbl_bits_of(want_left), "%d of %d: %a", left, most, (double)s.left);
        cr_assert_eq(nbl_bits_of(s.right), nbl_bits_of(want_right), "%d of %d: %a", right, most, (double)s.right);
    }
}

/* NUM 5.6: the left state counts as empty by its L too. */
Test(num_merge, an_empty_left_state_is_replaced)
{
    uint64_t seed = 70;
    nbl_state_head left = {1000.0f, 0.0f, 1.0f, 0.0f};
    nbl_state_head right;
    float left_o[DIM] = {0};
    float right_o[DIM];
    random_state(&seed, -3.0f, 2.0f, 5.0f, &right, right_o);
    nbl_state_merge(&left, left_o, &right, right_o, DIM);
    cr_expect_arr_eq(&left, &right, sizeof left, "M = %a, L = %a", (double)left.base, (double)left.sum);
    cr_expect_arr_eq(left_o, right_o, sizeof left_o, "O is the right one");
}

/* NUM 5.6, 5.7: nothing but empty states. */
Test(num_merge, rows_without_tokens)
{
    uint64_t seed = 65;
    row_states in = {.count = 3};
    float zeros[DIM] = {0};
    float sink = 2.5f;
    for (uint32_t n = 0; n < 3u; n++) {
        random_state(&seed, -INFINITY, 0.0f, n == 0 ? 4.0f : 9.0f, &in.heads[n], in.o[n]);
    }
    row_result out = check_fold(&in, NULL, 0, 0, "no token");
    cr_expect_eq(out.lse, -INFINITY, "lse is %a", (double)out.lse);
    cr_expect_arr_eq(out.o, zeros, sizeof zeros, "o is zero");
    cr_expect_eq(out.head.offset, 4.0f, "the offset is that of the first state");
    out = check_fold(&in, &sink, 0, 0, "a sink alone");
    cr_expect_float_eq(out.lse, 2.5f, 1e-5f, "lse of a sink alone is the sink, not %g", (double)out.lse);
    cr_expect_arr_eq(out.o, zeros, sizeof zeros, "o is zero");
}

/* NUM 5.6: the offset is that of the first state with tokens. */
Test(num_merge, offset_comes_from_the_first_state_with_tokens)
{
    uint64_t seed = 66;
    row_states in = {.count = 3};
    random_state(&seed, -INFINITY, 0.0f, 1.0f, &in.heads[0], in.o[0]);
    random_state(&seed, 3.0f, 2.0f, 5.0f, &in.heads[1], in.o[1]);
    random_state(&seed, 4.0f, 2.0f, 6.0f, &in.heads[2], in.o[2]);
    cr_expect_eq(check_fold(&in, NULL, 0, 0, "three offsets").head.offset, 5.0f, "the second state's");
}

/* NUM 5.6: a base 126 below still counts, one 127 below does not. */
Test(num_merge, far_states_vanish_where_pow2_does)
{
    uint64_t seed = 67;
    row_states in = {.count = 2};
    for (uint32_t n = 0; n < 2u; n++) {
        for (int32_t distance = 100; distance < 140; distance++) {
            random_state(&seed, 50.0f, 0.0f, 0.0f, &in.heads[n], in.o[n]);
            in.heads[n].sum = 0x1p-100f;
            random_state(&seed, 50.0f - (float)distance, 1.5f, 0.0f, &in.heads[1u - n], in.o[1u - n]);
            row_result out = check_fold(&in, NULL, 0, 0, "far states");
            float expected = 0x1p-100f + (distance <= 126 ? ldexpf(1.5f, -distance) : 0.0f);
            cr_expect_eq(out.head.sum, expected, "distance %d: L = %a", distance, (double)out.head.sum);
        }
    }
}

/* NUM 1.6, 5.7: a denominator below the normal numbers counts as nothing. */
Test(num_merge, denominators_around_the_least_normal_number)
{
    static const float sums[] = {0x1p-149f, 0x1p-127f, 0x1.fffffcp-127f, 0x1p-126f, 0x1.000002p-126f, 0x1p-125f};
    uint64_t seed = 68;
    for (uint32_t i = 0; i < COUNT(sums); i++) {
        row_states in = {.count = 1};
        random_state(&seed, 10.0f, 1.0f, 0.5f, &in.heads[0], in.o[0]);
        in.heads[0].sum = sums[i];
        row_result out = check_fold(&in, NULL, 0, NBL_MERGE_LSE_BASE2, "tiny sum");
        cr_expect_eq(out.lse == -INFINITY, sums[i] < 0x1p-126f, "L = %a: lse %a", (double)sums[i], (double)out.lse);
        cr_expect(sums[i] < 0x1p-126f || out.lse == 10.0f + nbl_log2p(sums[i]) + 0.5f, "L = %a", (double)sums[i]);
    }
}

/* NUM 5.7: the formula once more in binary64, so that a mistake shared with the oracle would show. */
Test(num_merge, outputs_are_close_to_the_exact_quotient)
{
    uint64_t seed = 69;
    for (uint32_t n = 0; n < 5000u; n++) {
        row_states in = {.count = 2};
        float sink = support_normal(&seed) * 3.0f;
        double weights[2];
        double total = exp((double)sink);
        for (uint32_t i = 0; i < 2u; i++) {
            float base = (float)random_index(&seed, 12) - 6.0f;
            random_state(&seed, base, 1.0f + (float)support_uniform(&seed), 0.0f, &in.heads[i], in.o[i]);
            weights[i] = exp2((double)base);
            total += (double)in.heads[i].sum * weights[i];
        }
        row_result out = fold(&in, &sink, 0, 0);
        cr_assert_float_eq((double)out.lse, log(total), 4e-6, "lse %a, not %a", (double)out.lse, log(total));
        for (uint32_t d = 0; d < DIM; d++) {
            double exact = ((double)in.o[0][d] * weights[0] + (double)in.o[1][d] * weights[1]) / total / 254.953125;
            cr_assert_float_eq((double)out.o[d], exact, 1e-6, "o[%u] is %a, not %a", d, (double)out.o[d], exact);
        }
    }
}
