/* SPDX-License-Identifier: Apache-2.0 */
/** @file test_isa_mma.c  The models of tensor cores: published vectors, the oracle's sums, the simulator's loops. */
#include "test_num_data.h"
#include "test_oracle_support.h"

#include "float.h"
#include "floatgrid.h"
#include "isa/float_isa.h"
#include "mma_model.h"

#include <math.h>
#include <string.h>

static uint16_t half_of(uint32_t type, float x)
{
    return type == NBL_MMA_F16 ? nbl_f16_from_f32(x) : nbl_bf16_from_f32(x);
}

static float dot16(uint32_t profile, uint32_t type, const float *a, const float *b, float c)
{
    nbl_mma_model model = nbl_mma_model_16bit(profile);
    uint16_t x[16], y[16];
    for (uint32_t k = 0; k < 16; k++) {
        x[k] = half_of(type, a[k]);
        y[k] = half_of(type, b[k]);
    }
    return nbl_float_of(nbl_mma_dot(&model, type, type, x, y, 16, nbl_bits_of(c)));
}

static float fp8_step(const nbl_mma_model *model, const float *a, const float *b, float c, int32_t scale)
{
    uint16_t x[32] = {0}, y[32] = {0};
    for (uint32_t k = 0; k < 4; k++) {
        x[k] = nbl_e4m3_encode(a[k]);
        y[k] = nbl_e4m3_encode(b[k]);
    }
    return nbl_float_of(
        nbl_mma_step_scaled(model, NBL_MMA_E4M3, NBL_MMA_E4M3, x, y, model->terms, scale, nbl_bits_of(c)));
}

/* c = 2^23 and products -2^23, -1/2, -1/4, -1/8: the exact sum is -7/8, and each F cuts off another part of it. */
Test(isa_mma, published_vectors_of_16_bits)
{
    const float a[16] = {-4096.0f, -0.5f, -0.25f, -0.125f}, b[16] = {2048.0f, 1.0f, 1.0f, 1.0f};
    for (uint32_t type = NBL_MMA_BF16; type <= NBL_MMA_F16; type++) {
        for (uint32_t profile = 0; profile < NBL_MMA_PROFILES; profile++) {
            float expected = profile <= NBL_MMA_SM_89 ? -0.5f : -0.75f;
            cr_expect_eq(dot16(profile, type, a, b, 0x1p23f), expected, "%s, type %u", nbl_mma_profile_name(profile),
                         type);
        }
    }
}

Test(isa_mma, published_vectors_of_fp8)
{
    /* 2^23 = 256 * 256 * 2^7 is out of E4M3's reach: the same cut at 2^16, all parts 2^-7 as large. */
    const float a[4] = {-256.0f, -0.0625f, -0.03125f, -0.03125f}, b[4] = {256.0f, 0.0625f, 0.0625f, 0.03125f};
    nbl_mma_model hopper = nbl_mma_model_fp8(NBL_MMA_SM_90), later = nbl_mma_model_fp8(NBL_MMA_SM_120);
    cr_expect_eq(fp8_step(&hopper, a, b, 0x1p16f, 0), 0.0f, "13 bits keep nothing");
    cr_expect_eq(fp8_step(&later, a, b, 0x1p16f, 0), -0x1p-8f - 0x1p-9f, "25 bits below 2^16 end at 2^-9");
    cr_expect_eq(fp8_step(&later, a, b, 0x1p23f, 7), -0.5f - 0.25f, "a scale of 2^7 (mxf8f6f4) is exact");
}

Test(isa_mma, published_vector_of_scaled_groups)
{
    uint8_t a[64] = {0}, b[64] = {0};
    const nbl_mma_scale one = nbl_mma_scale_ue8m0(127);
    nbl_mma_scale scale_a[4] = {nbl_mma_scale_ue8m0(127 + 11), one, one, one};
    nbl_mma_scale scale_b[4] = {nbl_mma_scale_ue8m0(127 + 8), nbl_mma_scale_ue8m0(126), one, one};
    a[0] = 8 | 6, b[0] = 6;   /* -4 * 4 */
    a[16] = 8 | 3, b[16] = 2; /* -1.5 */
    a[17] = 8 | 1, b[17] = 1; /* -0.25 */
    cr_expect_eq(nbl_float_of(nbl_mma_step_groups(a, b, scale_a, scale_b, nbl_bits_of(0x1p23f))), -0.875f);
    scale_a[2].is_nan = 1;
    cr_expect_eq(nbl_mma_step_groups(a, b, scale_a, scale_b, 0), NBL_MMA_NAN, "a NaN scale");
}

Test(isa_mma, specials)
{
    nbl_mma_model m = nbl_mma_model_16bit(NBL_MMA_SM_90);
    uint16_t a[16] = {0}, b[16] = {0};
    a[3] = 0x7f80, b[3] = 0x3f80; /* Inf * 1 */
    cr_expect_eq(nbl_mma_dot(&m, NBL_MMA_BF16, NBL_MMA_BF16, a, b, 16, 0), 0x7f800000u);
    cr_expect_eq(nbl_mma_dot(&m, NBL_MMA_BF16, NBL_MMA_BF16, a, b, 16, 0xff800000u), NBL_MMA_NAN, "Inf - Inf");
    b[3] = 0;
    cr_expect_eq(nbl_mma_dot(&m, NBL_MMA_BF16, NBL_MMA_BF16, a, b, 16, 0), NBL_MMA_NAN, "Inf * 0");
    a[3] = 0, b[5] = 0xffc1;
    cr_expect_eq(nbl_mma_dot(&m, NBL_MMA_BF16, NBL_MMA_BF16, a, b, 16, 0), NBL_MMA_NAN, "a NaN operand");
    for (uint32_t k = 0; k < 16; k++)
        a[k] = 0x8000, b[k] = 0x3f80;
    cr_expect_eq(nbl_mma_dot(&m, NBL_MMA_BF16, NBL_MMA_BF16, a, b, 16, 0x80000000u), 0x80000000u, "all -0");
    cr_expect_eq(nbl_mma_dot(&m, NBL_MMA_BF16, NBL_MMA_BF16, a, b, 16, 0), 0u, "-0 and +0");
    for (uint32_t k = 0; k < 16; k++)
        a[k] = b[k] = 0x7f7f; /* the largest bf16 */
    cr_expect_eq(nbl_mma_dot(&m, NBL_MMA_BF16, NBL_MMA_BF16, a, b, 16, 0), 0x7f800000u, "overflow is infinity");
}

/* Two results of an H200 (bin/mma-probe). */
Test(isa_mma, negative_sums_below_the_subnormals_are_plus_zero)
{
    static const uint8_t a[2][32] = {
        {0x1b, 0x98, 0x53, 0x99, 0xd2, 0x9e, 0x21, 0x19, 0x0e, 0x17, 0x5d, 0x18, 0x39, 0x17, 0xd5, 0x17,
         0x58, 0x18, 0x74, 0x97, 0xa5, 0x18, 0x31, 0x97, 0x0f, 0x1a, 0x34, 0x99, 0xa6, 0x9b, 0xcd, 0x97},
        {0xec, 0x97, 0x0c, 0x18, 0x13, 0x9b, 0x65, 0x99, 0x77, 0x1c, 0x2a, 0x1a, 0x50, 0x18, 0x30, 0x99,
         0xff, 0x19, 0x88, 0x17, 0x2a, 0x99, 0x03, 0x98, 0x0e, 0x9b, 0x55, 0x97, 0x42, 0x97, 0xd2, 0x1a}};
    static const uint8_t b[2][32] = {
        {0xbd, 0x1e, 0xa0, 0x1a, 0xa0, 0x97, 0x00, 0x9d, 0x10, 0x9c, 0x87, 0x1c, 0xeb, 0x1c, 0xc7, 0x19,
         0x9a, 0x19, 0x21, 0x19, 0x1e, 0x1d, 0xda, 0x17, 0x40, 0x1b, 0xae, 0x9b, 0xf3, 0x98, 0xe8, 0x18},
        {0xdf, 0x1b, 0xaf, 0x9d, 0x9a, 0x98, 0xc7, 0x99, 0x54, 0x1a, 0x5a, 0x17, 0xa2, 0x17, 0x6b, 0x1a,
         0xca, 0x97, 0xc6, 0x1d, 0xd8, 0x9c, 0x41, 0x1a, 0xe8, 0x1b, 0xd8, 0x19, 0x9b, 0x98, 0x37, 0x19}};
    static const uint32_t c[2] = {8, 0};
    nbl_mma_model m = nbl_mma_model_16bit(NBL_MMA_SM_90);
    for (uint32_t i = 0; i < 2; i++) {
        uint16_t x[16], y[16];
        for (uint32_t k = 0; k < 16; k++) {
            x[k] = (uint16_t)(a[i][2 * k] | a[i][2 * k + 1] << 8);
            y[k] = (uint16_t)(b[i][2 * k] | b[i][2 * k + 1] << 8);
        }
        cr_expect_eq(nbl_mma_dot(&m, NBL_MMA_BF16, NBL_MMA_BF16, x, y, 16, c[i]), 0u, "%u", i);
    }
}

/* A float of a type with its exponent in [low, low + span), sometimes zero. */
static float random_operand(uint64_t *seed, uint32_t type, int low, uint32_t span)
{
    int digits = type == NBL_MMA_F16 ? 10 : 7;
    uint32_t significand = (1u << digits) + random_index(seed, 1u << digits);
    float x = ldexpf((float)significand, low + (int)random_index(seed, span) - digits);
    x = random_index(seed, 9) == 0 ? 0.0f : random_index(seed, 2) == 0 ? -x : x;
    return type == NBL_MMA_F16 ? nbl_f32_from_f16(nbl_f16_from_f32(x)) : nbl_f32_from_bf16(nbl_bf16_from_f32(x));
}

static void same_number(float got, float want, const char *what, uint32_t profile, uint32_t type)
{
    cr_assert(nbl_bits_of(got) == nbl_bits_of(want) || (got == 0.0f && want == 0.0f), "%s, %s, type %u: %a, not %a",
              what, nbl_mma_profile_name(profile), type, (double)got, (double)want);
}

/* Fills lane l of an array [n][16] with an operand. */
static void put(sim_float_array x, uint32_t at, uint32_t type, float value)
{
    nbl_mma_operand operand = nbl_mma_operand_of(type, half_of(type, value));
    x.significand[at] = (int16_t)operand.significand;
    x.exponent[at] = (int16_t)operand.exponent;
}

/* One random dot product of 32 terms by the model, the oracle and every loop of the simulator. */
static void compare_dot(uint64_t *seed, uint32_t profile, uint32_t type, int low, uint32_t span)
{
    static const char *const isas[] = {"scalar", "avx2", "avx512"};
    nbl_mma_model model = nbl_mma_model_16bit(profile);
    int16_t a_s[32], a_e[32], b_s[32 * 16], b_e[32 * 16];
    sim_float_array x = {a_s, a_e}, y = {b_s, b_e};
    float a[32], b[16][32], c[16];
    for (uint32_t k = 0; k < 32; k++)
        put(x, k, type, a[k] = random_operand(seed, type, low, span));
    for (uint32_t l = 0; l < 16; l++) {
        c[l] = random_index(seed, 4) == 0 ? 0.0f : ldexpf(random_operand(seed, type, low, span), low);
        for (uint32_t k = 0; k < 32; k++)
            put(y, k * 16u + l, type, b[l][k] = random_operand(seed, type, low, span));
    }
    float want[16];
    for (uint32_t l = 0; l < 16; l++) {
        want[l] = dot16(profile, type, a + 16, b[l] + 16, dot16(profile, type, a, b[l], c[l]));
        same_number(oracle_dot(c[l], a, b[l], 32, type == NBL_MMA_F16), want[l], "oracle", profile, type);
    }
    for (uint32_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
        float got[16];
        if (sim_isa_find(isas[i]) == NULL)
            continue;
        memcpy(got, c, sizeof got);
        sim_float_dot_find(isas[i])(&model, 2 * nbl_mma_fraction(type), x, 32, y, 16, 16, got);
        for (uint32_t l = 0; l < 16; l++)
            same_number(got[l], want[l], isas[i], profile, type);
    }
}

Test(isa_mma, model_oracle_and_loops_agree)
{
    uint64_t seed = 77;
    for (uint32_t profile = 0; profile < NBL_MMA_PROFILES; profile++) {
        cr_assert(oracle_set_profile(nbl_mma_profile_name(profile)));
        for (uint32_t i = 0; i < 400; i++) {
            compare_dot(&seed, profile, NBL_MMA_BF16, -3, 6);    /* where the cut shows */
            compare_dot(&seed, profile, NBL_MMA_BF16, -30, 60);  /* where terms vanish */
            compare_dot(&seed, profile, NBL_MMA_BF16, -126, 60); /* below what binary32 holds */
            compare_dot(&seed, profile, NBL_MMA_F16, -4, 8);
            compare_dot(&seed, profile, NBL_MMA_F16, -24, 40); /* fp16 subnormals among them */
        }
    }
}

/* Every weight of the grid against a rounding of long double, and the distance from ties that NUM 6.4 promises. */
Test(isa_mma, weights_of_the_float_core)
{
    for (int k = -130 * 512; k <= 8 * 512; k++) {
        float u = (float)k / 512.0f;
        for (int fp16 = 0; fp16 < 2; fp16++) {
            float got =
                fp16 ? nbl_f32_from_f16(nbl_float_grid_half(u, 1)) : nbl_f32_from_bf16(nbl_float_grid_half(u, 0));
            cr_assert_eq(got, oracle_weight_float((double)u, fp16 != 0), "k = %d, fp16 %d: %a", k, fp16, (double)got);
        }
    }
    for (int f = 1; f < 512; f++) {
        for (int digits = 1; digits <= 11; digits++) {
            long double p = exp2l((long double)f / 512.0L) * ldexpl(1.0L, digits - 1);
            long double distance = fabsl(p - floorl(p) - 0.5L) / p;
            cr_assert_gt(distance, exp2l(digits == 8 ? -18.2L : -21.2L), "f = %d, %d digits", f, digits);
        }
    }
}
