/* SPDX-License-Identifier: Apache-2.0 */
/* Transforms of core/num: Walsh-Hadamard (NUM 4.1, 4.4), channel shifts (NUM 4.5), centring (NUM 4.2). */
#include "test_num_data.h"
#include "transform.h"

#define DIM 512u

Test(num_transform, log2_of_block_sizes)
{
    cr_expect_eq(nbl_log2_of(0), 0, "0 stands for no transform");
    for (int32_t n = 0; n < 10; n++) {
        cr_expect_eq(nbl_log2_of(1u << n), n, "log2 of 2^%d is %d", n, nbl_log2_of(1u << n));
    }
}

/* NUM 4.1: the same bytes as the oracle at every block size, huge and tiny inputs included. */
Test(num_transform, hadamard_has_the_bytes_of_the_oracle)
{
    uint64_t seed = 41;
    for (uint32_t n = 0; n < 400u; n++) {
        for (uint32_t block = 4; block <= 256u; block = block == 4u ? 8u : block * 2u) {
            uint32_t size = block == 4u ? 0u : block;
            uint32_t dim = size == 0 ? 24u : size * (1u + random_index(&seed, DIM / size));
            float x[DIM];
            float expected[DIM];
            input_random(n % INPUT_KINDS, &seed, x, dim);
            memcpy(expected, x, sizeof x[0] * dim);
            oracle_hadamard(expected, dim, size);
            nbl_hadamard(x, dim, size);
            cr_assert_arr_eq(x, expected, dim * sizeof x[0], "block %u of %u", size, dim);
            oracle_hadamard(expected, dim, size);
            oracle_hadamard_scale(expected, dim, size);
            nbl_hadamard_undo(x, dim, size);
            cr_assert_arr_eq(x, expected, dim * sizeof x[0], "undoing block %u of %u", size, dim);
        }
    }
}

/* NUM 4.1: it is the Walsh matrix, in natural order: entry (i, j) is -1 to the number of common bits. */
Test(num_transform, hadamard_multiplies_by_the_walsh_matrix)
{
    uint64_t seed = 42;
    for (uint32_t block = 8; block <= 256u; block *= 2u) {
        float x[DIM];
        float y[DIM];
        for (uint32_t d = 0; d < DIM; d++) {
            y[d] = x[d] = (float)random_index(&seed, 2001) - 1000.0f;
        }
        nbl_hadamard(y, DIM, block);
        for (uint32_t i = 0; i < DIM; i++) {
            double sum = 0.0;
            for (uint32_t j = 0; j < block; j++) {
                double sign = __builtin_popcount((i % block) & j) % 2 == 0 ? 1.0 : -1.0;
                sum += sign * (double)x[i / block * block + j];
            }
            cr_assert_eq((double)y[i], sum, "block %u, element %u", block, i);
        }
    }
}

/* NUM 4.4: on integers nothing rounds, so undoing gives back the input. */
Test(num_transform, hadamard_is_undone_exactly_on_integers)
{
    uint64_t seed = 43;
    for (uint32_t block = 8; block <= 256u; block *= 2u) {
        float x[DIM];
        float y[DIM];
        for (uint32_t d = 0; d < DIM; d++) {
            y[d] = x[d] = (float)random_index(&seed, 16001) - 8000.0f;
        }
        nbl_hadamard(y, DIM, block);
        cr_expect(memcmp(x, y, sizeof x) != 0, "block %u changes something", block);
        nbl_hadamard_undo(y, DIM, block);
        cr_expect_arr_eq(x, y, sizeof x, "block %u comes back", block);
    }
}

/* NUM 4.2, 4.4: one rounding of the exact difference and sum; rounding binary64's again gives the same. */
Test(num_transform, centres_are_subtracted_and_added_with_one_rounding)
{
    uint64_t seed = 44;
    for (uint32_t n = 0; n < 3000u; n++) {
        float x[DIM];
        float less[DIM];
        float more[DIM];
        int8_t mu[DIM];
        int32_t e = (int32_t)random_index(&seed, 81) - 40;
        input_random(n % INPUT_KINDS, &seed, x, DIM);
        for (uint32_t d = 0; d < DIM; d++) {
            mu[d] = (int8_t)((int32_t)random_index(&seed, 255) - 127);
        }
        memcpy(less, x, sizeof x);
        memcpy(more, x, sizeof x);
        nbl_center_subtract(less, DIM, mu, nbl_e8m0_encode(e));
        nbl_center_add(more, DIM, mu, nbl_e8m0_encode(e));
        for (uint32_t d = 0; d < DIM; d++) {
            double center = ldexp((double)mu[d], e);
            cr_assert_eq(less[d], (float)((double)x[d] - center), "%a - %a", (double)x[d], center);
            cr_assert_eq(more[d], (float)((double)x[d] + center), "%a + %a", (double)x[d], center);
        }
    }
}

/* NUM 4.2: no centre is a centre of zeros. */
Test(num_transform, the_zero_centre_changes_nothing)
{
    uint64_t seed = 45;
    float x[DIM];
    float y[DIM];
    const int8_t zeros[DIM] = {0};
    input_random(INPUT_NORMAL, &seed, x, DIM);
    memcpy(y, x, sizeof x);
    nbl_center_subtract(y, DIM, zeros, nbl_e8m0_encode(-40));
    nbl_center_add(y, DIM, zeros, nbl_e8m0_encode(-40));
    cr_expect_arr_eq(x, y, sizeof x, "the input comes back");
}

/* NUM 4.4, 4.5. */
Test(num_transform, channel_shifts_go_up_exactly_and_down_with_one_rounding)
{
    uint64_t seed = 46;
    for (uint32_t n = 0; n < 3000u; n++) {
        float x[DIM];
        float up[DIM];
        float down[DIM];
        float expected[DIM];
        uint8_t shifts[DIM];
        input_random(n % INPUT_KINDS, &seed, x, DIM);
        for (uint32_t d = 0; d < DIM; d++) {
            shifts[d] = (uint8_t)random_index(&seed, 8);
        }
        memcpy(up, x, sizeof x);
        memcpy(down, x, sizeof x);
        memcpy(expected, x, sizeof x);
        nbl_shift_up(up, DIM, shifts);
        oracle_shift(expected, DIM, shifts, 1);
        cr_assert_arr_eq(up, expected, sizeof up, "up, case %u", n);
        nbl_shift_down(up, DIM, shifts);
        cr_assert_arr_eq(up, x, sizeof up, "up and down again, case %u", n);
        memcpy(expected, x, sizeof x);
        nbl_shift_down(down, DIM, shifts);
        oracle_shift(expected, DIM, shifts, -1);
        cr_assert_arr_eq(down, expected, sizeof down, "down, case %u", n);
    }
}

/* The smallest s with v <= 2^(2s + 1), by trying. */
static int32_t half_exponent(double v)
{
    int32_t s = -80;
    while (v > ldexp(1.0, 2 * s + 1)) {
        s++;
    }
    return s;
}

/* NUM 4.5: s changes exactly at odd powers of two. */
Test(num_transform, half_exponents_switch_at_odd_powers_of_two)
{
    for (int32_t n = -126; n <= 127; n++) {
        for (int32_t step = -1; step <= 1; step++) {
            float v = nbl_float_of(nbl_bits_of(ldexpf(1.0f, n)) + (uint32_t)step);
            if (v >= 0x1p-126f) {
                cr_expect_eq(nbl_half_exponent(v), half_exponent((double)v), "%a: s = %d", (double)v,
                             nbl_half_exponent(v));
            }
        }
    }
}

/* NUM 4.5: shifts of random mean squares, zeros and subnormal ones among them. */
Test(num_transform, channel_shifts_level_the_mean_squares)
{
    uint64_t seed = 47;
    uint32_t seen[8] = {0};
    for (uint32_t n = 0; n < 20000u; n++) {
        float v[16];
        uint8_t shifts[16];
        int32_t most = -1000;
        uint32_t spread = 1u + random_index(&seed, 40);
        for (uint32_t d = 0; d < 16u; d++) {
            v[d] = ldexpf((float)random_between(&seed, 1.0, 2.0), (int)random_index(&seed, spread) - (int)(n % 100u));
            v[d] = random_index(&seed, 8) == 0 ? (n % 2u == 0 ? 0.0f : 0x1.8p-127f) : v[d];
            v[d] = n % 500u == 0 ? 0.0f : v[d];
            most = v[d] >= 0x1p-126f && half_exponent((double)v[d]) > most ? half_exponent((double)v[d]) : most;
        }
        nbl_shifts_from(v, 16, shifts);
        for (uint32_t d = 0; d < 16u; d++) {
            int32_t u = v[d] >= 0x1p-126f ? (most - half_exponent((double)v[d]) + 1) / 2 : 0;
            cr_assert_eq(shifts[d], u > 7 ? 7 : u, "case %u: v[%u] = %a has shift %u", n, d, (double)v[d], shifts[d]);
            seen[shifts[d]]++;
        }
    }
    for (uint32_t u = 0; u < 8u; u++) {
        cr_expect_gt(seen[u], 1000u, "shift %u came up %u times", u, seen[u]);
    }
}
