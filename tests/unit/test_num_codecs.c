/* SPDX-License-Identifier: Apache-2.0 */
/* The element codecs of core/num against golden files of other libraries, and against the oracle over dense sweeps. */
#include "convert.h"
#include "e2m1.h"
#include "e4m3.h"
#include "e8m0.h"
#include "float_format.h"
#include "test_num_data.h"

#define SWEEP_STEP 4093u /* a prime: about 2^20 bit patterns of a float */
#define IS_NAN_BITS(bits) (((bits)&0x7fffffffu) > 0x7f800000u)

typedef uint32_t codec(uint32_t input);

/* An integer has no negative zero: code 8, which is never stored, gets its sign here. */
static uint32_t e2m1_decode(uint32_t code)
{
    return nbl_bits_of((float)nbl_e2m1_half_units(code) * 0.5f) | (code == 8u ? 0x80000000u : 0u);
}

static uint32_t e2m1_encode(uint32_t bits)
{
    return nbl_e2m1_encode(nbl_float_of(bits));
}

static uint32_t e8m0_decode(uint32_t code)
{
    return nbl_bits_of(nbl_e8m0_value((uint8_t)code));
}

static uint32_t e4m3_decode(uint32_t code)
{
    return nbl_bits_of(nbl_e4m3_decode((uint8_t)code));
}

static uint32_t e4m3_encode(uint32_t bits)
{
    return nbl_e4m3_encode(nbl_float_of(bits));
}

static uint32_t bf16_decode(uint32_t code)
{
    return nbl_bits_of(nbl_f32_from_bf16((uint16_t)code));
}

static uint32_t bf16_encode(uint32_t bits)
{
    return nbl_bf16_from_f32(nbl_float_of(bits));
}

static uint32_t f16_decode(uint32_t code)
{
    return nbl_bits_of(nbl_f32_from_f16((uint16_t)code));
}

static uint32_t f16_encode(uint32_t bits)
{
    return nbl_f16_from_f32(nbl_float_of(bits));
}

static void check_golden(const char *name, uint32_t rows_expected, codec *convert)
{
    uint32_t count;
    golden_row *rows = support_golden(name, &count);
    cr_assert(rows_expected == 0 || count == rows_expected, "%s: %u rows, not %u", name, count, rows_expected);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t out = convert(rows[i].input);
        if (IS_NAN_BITS(rows[i].output) && rows_expected != 0) {
            cr_expect(IS_NAN_BITS(out), "%s: %x gives %x, not a NaN", name, rows[i].input, out);
        } else {
            cr_expect_eq(out, rows[i].output, "%s: %x gives %x, not %x", name, rows[i].input, out, rows[i].output);
        }
    }
    free(rows);
}

/* NUM 2.4. */
Test(num_codecs, e2m1_decodes_every_code)
{
    check_golden("e2m1_decode.txt", 16, e2m1_decode);
}

/* NUM 2.6 and 3.4: ml_dtypes keeps negative zero, code 8; here it is code 0. */
/* Every 61st magnitude up to 6, and the neighbours of all ties and values. */
Test(num_codecs, e2m1_magnitudes_encode_without_comparisons_alike)
{
    static const float edges[] = {0.25f, 0.5f, 0.75f, 1.0f, 1.25f, 1.5f, 1.75f, 2.0f, 2.5f, 3.0f, 3.5f, 4.0f, 5.0f};
    for (uint32_t bits = 0; bits <= nbl_bits_of(6.0f); bits += 61u) {
        float a = nbl_float_of(bits);
        cr_assert(nbl_e2m1_encode_magnitude(a) == nbl_e2m1_encode(a), "bits %08x", bits);
    }
    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; ++i) {
        for (uint32_t bits = nbl_bits_of(edges[i]) - 2u; bits <= nbl_bits_of(edges[i]) + 2u; ++bits) {
            float a = nbl_float_of(bits);
            cr_assert(nbl_e2m1_encode_magnitude(a) == nbl_e2m1_encode(a), "bits %08x", bits);
        }
    }
    cr_assert(nbl_e2m1_encode_magnitude(6.0f) == 7u, "6 is the last code");
}

Test(num_codecs, e2m1_encodes_the_golden_list)
{
    uint32_t count;
    uint32_t negative_zeros = 0;
    golden_row *rows = support_golden("e2m1_encode.txt", &count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t expected = rows[i].output == 8u ? 0u : rows[i].output;
        negative_zeros += rows[i].output == 8u;
        cr_expect_eq(e2m1_encode(rows[i].input), expected, "bits %08x: code %x, not %x", rows[i].input,
                     e2m1_encode(rows[i].input), expected);
    }
    cr_expect_gt(negative_zeros, 0u, "the list holds no negative zero");
    free(rows);
}

/* NUM 3.4. */
Test(num_codecs, e2m1_encodes_every_kind_of_float_like_the_oracle)
{
    for (uint64_t i = 0; i <= UINT32_MAX; i += SWEEP_STEP) {
        uint32_t bits = (uint32_t)i;
        if (!IS_NAN_BITS(bits)) {
            cr_assert_eq(e2m1_encode(bits), oracle_e2m1_code((double)nbl_float_of(bits)), "bits %08x", bits);
        }
    }
    for (uint32_t code = 0; code < 16u; code++) { /* the neighbourhood of every tie and every value */
        for (int32_t step = -3; step <= 3; step++) {
            for (uint32_t half = 0; half < 2u; half++) {
                float x = (float)nbl_e2m1_half_units(code) * 0.5f + (float)half * 0.25f;
                uint32_t bits = nbl_bits_of(x) + (uint32_t)step;
                if (!IS_NAN_BITS(bits)) {
                    cr_assert_eq(e2m1_encode(bits), oracle_e2m1_code((double)nbl_float_of(bits)), "bits %08x", bits);
                }
            }
        }
    }
}

static void check_round(uint32_t bits)
{
    float x = nbl_float_of(bits);
    if (!IS_NAN_BITS(bits) && fabsf(x) <= NBL_E2M1_MAX) {
        float expected = (float)nbl_e2m1_half_units(oracle_e2m1_code((double)x)) * 0.5f;
        cr_assert_eq(nbl_bits_of(nbl_e2m1_round(x)), nbl_bits_of(expected), "bits %08x", bits);
    }
}

/* NUM 3.4. */
Test(num_codecs, e2m1_rounds_to_the_value_of_the_code)
{
    for (uint64_t i = 0; i <= UINT32_MAX; i += SWEEP_STEP) {
        check_round((uint32_t)i);
    }
    for (int32_t quarters = -24; quarters <= 24; quarters++) { /* all values and ties are multiples of 1/4 */
        for (uint32_t step = 0; step <= 6u; step++) {
            check_round(nbl_bits_of((float)quarters * 0.25f) + step - 3u);
        }
    }
}

/* NUM 2.1: an exponent byte is E8M0. */
Test(num_codecs, e8m0_decodes_every_code)
{
    check_golden("e8m0_decode.txt", 256, e8m0_decode);
}

/* NUM 2.1, 2.2, 5.10: bytes of unused slots are brought into the legal range. */
Test(num_codecs, e8m0_bytes_are_biased_exponents)
{
    for (int32_t e = -127; e <= 128; e++) {
        uint8_t byte = nbl_e8m0_encode(e);
        int32_t legal = e < -40 ? -40 : e > 40 ? 40 : e;
        cr_expect_eq(byte, e + 127, "exponent %d is byte %u", e, byte);
        cr_expect_eq(nbl_e8m0_decode(byte), e, "byte %u is %d", byte, nbl_e8m0_decode(byte));
        cr_expect_eq(nbl_e8m0_decode_slot(byte), legal, "byte %u of a slot is %d", byte, nbl_e8m0_decode_slot(byte));
    }
    cr_expect_eq(NBL_INPUT_MAX, ldexpf(127.0f, 40), "X of NUM 3.1 is %a", (double)NBL_INPUT_MAX);
}

/* Report C15: all 256 codes, NaN included. */
Test(num_codecs, e4m3_decodes_every_code)
{
    check_golden("e4m3_decode.txt", 256, e4m3_decode);
}

/* Report C15. ml_dtypes does not saturate: above 464 it gives NaN, 7f or ff. Ours does: 7e or fe. */
Test(num_codecs, e4m3_encodes_the_golden_list_and_saturates)
{
    uint32_t count;
    uint32_t saturated = 0;
    golden_row *rows = support_golden("e4m3_encode.txt", &count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t above = (rows[i].output & 0x7fu) == 0x7fu;
        uint32_t expected = rows[i].output - above;
        cr_expect(!above || fabsf(nbl_float_of(rows[i].input)) > 464.0f, "bits %08x overflow below 464", rows[i].input);
        cr_expect_eq(e4m3_encode(rows[i].input), expected, "bits %08x: %02x, not %02x", rows[i].input,
                     e4m3_encode(rows[i].input), expected);
        saturated += above;
    }
    cr_expect_gt(saturated, 10u, "only %u of the list saturate", saturated);
    free(rows);
}

/* Report C15: the values of the report, both signs. */
Test(num_codecs, e4m3_around_its_largest_value)
{
    static const struct {
        float x;
        uint32_t code;
    } cases[] = {{240.0f, 0x77}, {256.0f, 0x78},   {416.0f, 0x7d}, {432.0f, 0x7e}, {448.0f, 0x7e},
                 {464.0f, 0x7e}, {465.0f, 0x7e},   {479.0f, 0x7e}, {480.0f, 0x7e}, {500.0f, 0x7e},
                 {1e30f, 0x7e},  {INFINITY, 0x7e}, {0.0f, 0x00}};
    for (uint32_t i = 0; i < COUNT(cases); i++) {
        uint32_t positive = nbl_e4m3_encode(cases[i].x);
        uint32_t negative = nbl_e4m3_encode(-cases[i].x);
        cr_expect_eq(positive, cases[i].code, "%g: code %02x", (double)cases[i].x, positive);
        cr_expect_eq(negative, cases[i].code | 0x80u, "%g: code %02x", (double)-cases[i].x, negative);
    }
    cr_expect_eq(nbl_e4m3_encode(NAN), 0x7f, "NaN stays NaN");
    cr_expect_eq(nbl_e4m3_encode(-NAN), 0x7f, "NaN stays NaN");
}

Test(num_codecs, e4m3_codes_survive_a_round_trip)
{
    for (uint32_t code = 0; code < 256u; code++) {
        uint32_t expected = (code & 0x7fu) == 0x7fu ? 0x7fu : code;
        cr_expect_eq(nbl_e4m3_encode(nbl_e4m3_decode((uint8_t)code)), expected, "code %02x", code);
    }
}

/* NUM 1.1, on every bit pattern the sweep meets; the distance is measured against all neighbours. */
Test(num_codecs, e4m3_gives_the_nearest_value)
{
    for (uint32_t bits = 0; bits < 0x43e80000u; bits += SWEEP_STEP) {
        double x = (double)nbl_float_of(bits);
        uint32_t code = e4m3_encode(bits);
        double chosen = fabs(x - (double)nbl_e4m3_decode((uint8_t)code));
        for (uint32_t other = code - (code > 0); other <= code + 1u && other < 0x7fu; other++) {
            double distance = fabs(x - (double)nbl_e4m3_decode((uint8_t)other));
            cr_assert(chosen < distance || other == code || (chosen == distance && code % 2u == 0),
                      "%a: code %02x, but %02x is nearer or even", x, code, other);
        }
    }
}

/* NUM 1.1. */
Test(num_codecs, bf16_and_f16_match_the_golden_lists)
{
    check_golden("bf16_decode.txt", 0, bf16_decode);
    check_golden("bf16_encode.txt", 0, bf16_encode);
    check_golden("f16_decode.txt", 0, f16_decode);
    check_golden("f16_encode.txt", 0, f16_encode);
}

/* NUM 1.1, 3.1: conversion to binary32 is exact, and a NaN stays one. */
Test(num_codecs, bf16_and_f16_decode_every_code)
{
    for (uint32_t code = 0; code < 65536u; code++) {
        uint32_t bf16 = oracle_bits_from_f32(oracle_f32_from_bf16((uint16_t)code));
        uint32_t f16 = oracle_bits_from_f32(oracle_f32_from_f16((uint16_t)code));
        cr_assert_eq(bf16_decode(code), bf16, "bf16 %04x: %08x, not %08x", code, bf16_decode(code), bf16);
        if (IS_NAN_BITS(f16)) {
            cr_assert(IS_NAN_BITS(f16_decode(code)), "f16 %04x: %08x is no NaN", code, f16_decode(code));
        } else {
            cr_assert_eq(f16_decode(code), f16, "f16 %04x: %08x, not %08x", code, f16_decode(code), f16);
            cr_assert_eq(f16_encode(f16), code, "f16 %04x comes back as %04x", code, f16_encode(f16));
        }
        if (!IS_NAN_BITS(bf16)) {
            cr_assert_eq(bf16_encode(bf16), code, "bf16 %04x comes back as %04x", code, bf16_encode(bf16));
        }
    }
}

static void check_half_encode(uint32_t bits)
{
    uint32_t f16 = oracle_f16_from_f32(nbl_float_of(bits));
    uint32_t bf16 = oracle_bf16_from_f32(nbl_float_of(bits));
    cr_assert_eq(f16_encode(bits), f16, "f16 of %08x: %04x, not %04x", bits, f16_encode(bits), f16);
    cr_assert_eq(bf16_encode(bits), bf16, "bf16 of %08x: %04x, not %04x", bits, bf16_encode(bits), bf16);
}

/* NUM 1.1: RNE, overflow to infinity, subnormals kept. */
Test(num_codecs, bf16_and_f16_encode_every_kind_of_float_like_the_oracle)
{
    static const uint32_t tails[] = {0x0000, 0x0001, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff};
    for (uint64_t i = 0; i <= UINT32_MAX; i += SWEEP_STEP) {
        if (!IS_NAN_BITS((uint32_t)i)) {
            check_half_encode((uint32_t)i);
        }
    }
    for (uint32_t high = 0; high < 65536u; high++) {
        for (uint32_t i = 0; i < COUNT(tails); i++) {
            if (!IS_NAN_BITS(high << 16 | tails[i])) {
                check_half_encode(high << 16 | tails[i]);
            }
        }
    }
}

/* NUM 1.4: NaN keeps its sign and is quiet, whatever its payload. */
Test(num_codecs, halves_of_a_nan_are_nan)
{
    for (uint32_t payload = 1; payload < 0x800000u; payload += payload < 70000u ? 1u : 997u) {
        for (uint32_t sign = 0; sign < 2u; sign++) {
            uint32_t bits = sign << 31 | 0x7f800000u | payload;
            cr_assert_eq(f16_encode(bits) & 0xfe00u, sign << 15 | 0x7e00u, "f16 of %08x: %04x", bits, f16_encode(bits));
            cr_assert_eq(bf16_encode(bits) & 0xffc0u, sign << 15 | 0x7fc0u, "bf16 of %08x: %04x", bits,
                         bf16_encode(bits));
        }
    }
}

/* NUM 6.8: what is stored of a code of another program. */
static uint32_t adopted_e4m3(uint32_t code)
{
    return (code & 0x7fu) == 0x7fu ? code - 1u : code == 0x80u ? 0u : code;
}

Test(num_codecs, codes_of_others_are_adopted_four_and_eight_at_a_time)
{
    for (uint32_t i = 0; i < 256u; ++i) {
        for (uint32_t k = 0; k < 256u; ++k) { /* neighbours of every pair of codes */
            uint32_t nan = 0;
            uint32_t word = i | k << 8 | i << 16 | k << 24;
            uint32_t a = adopted_e4m3(i), b = adopted_e4m3(k);
            cr_assert(nbl_e4m3_adopt4(word, &nan) == (a | b << 8 | a << 16 | b << 24), "codes %02x %02x", i, k);
            cr_assert(nan == 2u * (a == i - 1u) + 2u * (b == k - 1u), "codes %02x %02x: %u NaN", i, k, nan);
        }
    }
    for (uint32_t i = 0; i < 256u; ++i) { /* every pair of nibbles, at every place */
        uint32_t low = i % 16u == 8u ? 0u : i % 16u, high = i / 16u == 8u ? 0u : i / 16u;
        cr_assert(nbl_e2m1_adopt8(i * 0x01010101u) == (low | high << 4) * 0x01010101u, "codes %02x", i);
    }
}
