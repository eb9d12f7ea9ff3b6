/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file test_num_mma.c
 * @brief Block-scaled products (NUM 7): one formula by two ways, what is exact in them, and the margins of the weights.
 */
#include "test_num_data.h"

#include "floatgrid.h"
#include "mma_model.h"
#include "quantize.h"

#define GROUP NBL_MMA_GROUP_TERMS
#define STEP (NBL_MMA_GROUPS * GROUP)
#define GROUPS_MAX (NBL_DIM_PADDED_MAX / GROUP + NBL_MMA_GROUPS)
#define RELATIVE_ONE 0x38 /* 1 in E4M3, 8 more doubles it */

/* ------------------------------------------------------------------------------------------------ fp8 */

/* Random E4M3 codes without NaN, around 1 or anywhere; every few are zeros. */
static uint8_t random_e4m3(uint64_t *seed, int anywhere)
{
    uint32_t code = random_index(seed, anywhere ? 127u : 32u) + (anywhere ? 0u : 0x28u);
    return (uint8_t)(random_index(seed, 6) == 0 ? 0 : code | random_index(seed, 2) << 7);
}

/* Accumulators of the size of the products, smaller, larger, zero, and out of any proportion. */
static uint32_t random_accumulator(uint64_t *seed)
{
    uint32_t bits = (uint32_t)support_random(seed);
    uint32_t exponent = random_index(seed, 4) == 0 ? random_index(seed, 255) : 110u + random_index(seed, 44);
    return random_index(seed, 8) == 0 ? 0 : (bits & 0x807fffffu) | exponent << 23;
}

Test(num_mma, words_of_e4m3_give_the_step_of_sm_120)
{
    const nbl_mma_model model = nbl_mma_model_fp8(NBL_MMA_SM_120);
    uint64_t seed = 1;
    for (uint32_t i = 0; i < 200000; i++) {
        uint16_t x[32], y[32];
        uint32_t a[8] = {0}, b[8] = {0}, c = random_accumulator(&seed);
        for (uint32_t k = 0; k < 32; k++) {
            x[k] = random_e4m3(&seed, i % 2u != 0);
            y[k] = random_e4m3(&seed, i % 3u != 0);
            a[k / 4u] |= (uint32_t)x[k] << (8u * (k % 4u));
            b[k / 4u] |= (uint32_t)y[k] << (8u * (k % 4u));
        }
        uint32_t want = nbl_mma_step_scaled(&model, NBL_MMA_E4M3, NBL_MMA_E4M3, x, y, 32, 0, c);
        uint32_t got = nbl_mma_step_e4m3(a, b, c);
        cr_assert(got == want || (got == 0 && want == 0x80000000u), "case %u: c %08x, got %08x, want %08x", i, c, got,
                  want);
    }
}

/* ------------------------------------------------------------------------------------------------ 4 bits */

/* An mxfp4 vector with exponents within the spread rule (NUM 2.4), and what the MMA takes of it. */
typedef struct fp4_vector {
    nbl_vector v;
    nbl_mma_scale scales[GROUPS_MAX];   /* as E8M0 */
    nbl_mma_scale relative[GROUPS_MAX]; /* over the first block's, as E4M3 */
    uint8_t codes[GROUPS_MAX * GROUP];
} fp4_vector;

static uint8_t random_e2m1(uint64_t *seed, uint32_t kind)
{
    static const uint8_t extremes[] = {7, 15, 7, 15, 1, 9, 0};
    uint32_t code = random_index(seed, 16);
    if (kind == 0) {
        return (uint8_t)(code == 8 ? 0 : code);
    }
    return kind == 1 ? (uint8_t)(7u + 8u * random_index(seed, 2)) : extremes[random_index(seed, 7)];
}

/* Block exponents reach from `low` to at most 3 above, with both ends present where there are two blocks. */
static void fp4_random(uint64_t *seed, uint32_t format, uint32_t dim, int32_t low, uint32_t kind, fp4_vector *out)
{
    const uint32_t planes = nbl_layout_scale_planes(format, dim), groups = nbl_layout_dim_padded(dim) / GROUP;
    memset(out, 0, sizeof *out);
    out->v.format = format;
    out->v.dim = dim;
    for (uint32_t b = 0; b < planes; b++) {
        int32_t above = kind == 0 ? (int32_t)random_index(seed, 4) : b % 2u != 0 ? 3 : 0;
        out->v.scales[b] = nbl_e8m0_encode(nbl_clamp_i32(low + above, NBL_BLOCK_E_MIN, NBL_BLOCK_E_MAX));
    }
    for (uint32_t d = 0; d < dim; d++) {
        out->codes[d] = out->v.codes[d] = random_e2m1(seed, kind);
    }
    for (uint32_t g = 0; g < groups; g++) {
        const uint8_t byte = out->v.scales[g * planes / groups];
        out->scales[g] = nbl_mma_scale_ue8m0(byte);
        out->relative[g] = nbl_mma_scale_ue4m3((uint8_t)(RELATIVE_ONE + 8 * (byte - out->v.scales[0])));
    }
}

/* x of NUM 7.2 in steps of 64. */
static float chain(const fp4_vector *q, const fp4_vector *k, int relative)
{
    uint32_t x = 0;
    for (uint32_t first = 0; first < q->v.dim; first += STEP) {
        const uint32_t g = first / GROUP;
        x = nbl_mma_step_groups(q->codes + first, k->codes + first, (relative ? q->relative : q->scales) + g,
                                (relative ? k->relative : k->scales) + g, x);
    }
    return nbl_float_of(x);
}

/* The exponents of a case: any legal ones, then the corners. */
static int32_t low_exponent(uint64_t *seed, uint32_t i)
{
    static const int32_t corners[] = {NBL_BLOCK_E_MIN, NBL_BLOCK_E_MAX - 3, NBL_BLOCK_E_MAX, 0};
    return i % 2u == 0 ? NBL_BLOCK_E_MIN + (int32_t)random_index(seed, 77) : corners[random_index(seed, 4)];
}

typedef void fp4_check(const fp4_vector *q, const fp4_vector *k, uint32_t i);

static void for_pairs(uint32_t format, fp4_check *check)
{
    static const uint32_t dims[] = {8, 16, 40, 64, 96, 128, 256, 576};
    uint64_t seed = 2;
    for (uint32_t i = 0; i < 30000; i++) {
        const uint32_t dim = dims[i % COUNT(dims)], kind = i / COUNT(dims) % 3u;
        fp4_vector q, k;
        fp4_random(&seed, format, dim, low_exponent(&seed, i), kind, &q);
        fp4_random(&seed, format, dim, low_exponent(&seed, i / 2u), kind, &k);
        check(&q, &k, i);
    }
}

/* qk4v8: with the spread rule on both sides, the block-scaled MMA cuts nothing off, and its sum is the integer core's
 * I * 2^(Eq + ek) (NUM 5.3). */
static void check_exact(const fp4_vector *q, const fp4_vector *k, uint32_t i)
{
    int8_t cq[NBL_DIM_PADDED_MAX], ck[NBL_DIM_PADDED_MAX];
    const int32_t exponent = nbl_vector_canonical(&q->v, cq) + nbl_vector_canonical(&k->v, ck);
    int32_t sum = 0;
    for (uint32_t d = 0; d < nbl_layout_dim_padded(q->v.dim); d++) {
        sum += cq[d] * ck[d];
    }
    const float want = (float)sum * nbl_pow2(exponent), got = chain(q, k, 0);
    cr_assert_eq(nbl_bits_of(got), nbl_bits_of(want), "case %u, D %u: got %a, want %d * 2^%d", i, q->v.dim, (double)got,
                 sum, exponent);
}

Test(num_mma, qk4v8_on_block_scaled_products_is_exact)
{
    for_pairs(NBL_MXFP4, check_exact);
}

/* The largest sum there is: 576 products of 96 * 96, and one of 1 beside them. */
Test(num_mma, qk4v8_at_the_largest_sum)
{
    fp4_vector q, k;
    uint64_t seed = 3;
    fp4_random(&seed, NBL_MXFP4, 576, 0, 1, &q);
    memset(q.v.codes, 7, sizeof q.v.codes);
    memset(q.codes, 7, sizeof q.codes);
    memset(q.v.scales, NBL_E8M0_BIAS + 3, sizeof q.v.scales);
    q.v.scales[17] = NBL_E8M0_BIAS;
    for (uint32_t g = 0; g < 36; g++) {
        q.scales[g] = nbl_mma_scale_ue8m0(q.v.scales[g / 2u]);
    }
    for (uint32_t sign = 0; sign < 2; sign++) {
        q.v.codes[575] = q.codes[575] = (uint8_t)(1u + 8u * sign);
        k = q;
        check_exact(&q, &k, sign);
    }
}

/* mxfp4_16 in the form that has E4M3 scales: relative to the first block, the sum is a power of two off. */
static void check_relative(const fp4_vector *q, const fp4_vector *k, uint32_t i)
{
    const int32_t exponent = nbl_e8m0_decode(q->v.scales[0]) + nbl_e8m0_decode(k->v.scales[0]);
    const float want = chain(q, k, 0), got = chain(q, k, 1) * nbl_pow2(exponent);
    cr_assert_eq(nbl_bits_of(got), nbl_bits_of(want), "case %u, D %u: got %a, want %a", i, q->v.dim, (double)got,
                 (double)want);
}

Test(num_mma, relative_scales_of_mxfp4_16)
{
    for_pairs(NBL_MXFP4_16, check_relative);
}

/* ------------------------------------------------------------------------------------------------ weights */

/* Every weight of NUM 7.3 against a rounding of long double; an exp2 that is off by 2^-21.2 gives the same code. Up to
 * 2^-10, which is a tie, the weight is 0. */
Test(num_mma, weights_of_the_blackwell_core)
{
    for (int k = 0; k <= 20 * 512; k++) {
        const long double p = exp2l(8.0L - (long double)k / 512.0L);
        const long double unit = exp2l(fmaxl(floorl(log2l(p)), -6.0L) - 3.0L);
        const uint8_t code = nbl_float_grid_e4m3(-(float)k / 512.0f);
        cr_assert_eq((long double)nbl_e4m3_decode(code), rintl(p / unit) * unit, "k = %d: code %02x", k, code);
        cr_assert(k <= 18 * 512 - 1 || code == 0, "k = %d", k);
        for (int sign = -1; k < 18 * 512 && sign <= 1; sign += 2) {
            float near = (float)(p * (1.0L + sign * exp2l(-21.2L)));
            cr_assert_eq(nbl_e4m3_encode(near), code, "k = %d: %a gives another code", k, (double)near);
        }
    }
}
