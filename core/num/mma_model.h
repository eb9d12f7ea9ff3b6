/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file mma_model.h
 * @brief What tensor cores compute, bit for bit: the fused dot-product-add of each architecture (NUM 6.2, 7.2).
 *
 * A floating-point MMA adds L products and an accumulator in one step: all terms are cut off (towards zero) at F bits
 * below the largest exponent, summed without error, and the sum is rounded once. L, F, the rounding and the exponent
 * that a zero counts with are the architecture's. Inside a step the order of the terms does not matter.
 */
#ifndef NBL_NUM_MMA_MODEL_H
#define NBL_NUM_MMA_MODEL_H

#include "convert.h"
#include "e2m1.h"
#include "e4m3.h"

/** Architectures whose arithmetic differs. */
enum nbl_mma_profile {
    NBL_MMA_SM_80 = 0,
    NBL_MMA_SM_89 = 1,
    NBL_MMA_SM_90 = 2,
    NBL_MMA_SM_100 = 3,
    NBL_MMA_SM_120 = 4,
    NBL_MMA_PROFILES = 5
};

/** Element types of A and B. */
enum nbl_mma_type { NBL_MMA_BF16 = 0, NBL_MMA_F16 = 1, NBL_MMA_E4M3 = 2, NBL_MMA_E5M2 = 3, NBL_MMA_E2M1 = 4 };

/** How the sum of a step is rounded to the accumulator. */
enum nbl_mma_rounding {
    NBL_MMA_RZ_F32 = 0,   /**< towards zero to binary32 */
    NBL_MMA_RZ_E8M13 = 1, /**< towards zero to 13 fraction bits in a binary32 */
    NBL_MMA_RNE_F16 = 2   /**< to nearest even, to fp16 */
};

/** Arithmetic of one fused step. */
typedef struct nbl_mma_model {
    uint32_t terms;        /**< L */
    int32_t fraction_bits; /**< F */
    uint32_t rounding;     /**< enum nbl_mma_rounding */
    int32_t zero_exponent; /**< exponent of a zero product and of a zero accumulator */
} nbl_mma_model;

#define NBL_MMA_NAN 0x7fffffffu   /**< the one NaN that comes out */
#define NBL_MMA_TERMS_MAX 32u     /**< of any model */
#define NBL_MMA_GROUP_TERMS 16u   /**< products of a scaled group (NUM 7.2) */
#define NBL_MMA_GROUPS 4u         /**< groups of a fused step of 64 */
#define NBL_MMA_GROUP_F 35        /**< fraction bits of that step */
#define NBL_MMA_GROUP_ZERO (-139) /**< its zero exponent */

/** X(name, fp16 and bf16 terms, F, zero exponent): the table of NUM 6.2 for accumulation in binary32. */
#define NBL_MMA_PROFILE_TABLE(X) \
    X("sm_80", 8, 24, -132)      \
    X("sm_89", 8, 24, -132)      \
    X("sm_90", 16, 25, -133)     \
    X("sm_100", 16, 25, -133)    \
    X("sm_120", 16, 25, -133)

/** Name of a profile. */
NBL_FN const char *nbl_mma_profile_name(uint32_t profile)
{
#define NBL_MMA_NAME(name, terms, bits, zero) name,
    static const char *const names[] = {NBL_MMA_PROFILE_TABLE(NBL_MMA_NAME)};
#undef NBL_MMA_NAME
    return names[profile];
}

/** The fp16 and bf16 MMA of a profile, binary32 accumulators. */
NBL_FN nbl_mma_model nbl_mma_model_16bit(uint32_t profile)
{
#define NBL_MMA_ROW(name, terms, bits, zero) {terms, bits, NBL_MMA_RZ_F32, zero},
    static const nbl_mma_model models[] = {NBL_MMA_PROFILE_TABLE(NBL_MMA_ROW)};
#undef NBL_MMA_ROW
    return models[profile];
}

/** The native fp8 MMA of a profile: mma.sync on sm_89 and sm_120, wgmma on sm_90, tcgen05 on sm_100. */
NBL_FN nbl_mma_model nbl_mma_model_fp8(uint32_t profile)
{
    nbl_mma_model sm_89 = {16, 13, NBL_MMA_RZ_E8M13, -132};
    nbl_mma_model sm_90 = {32, 13, NBL_MMA_RZ_E8M13, -133};
    nbl_mma_model later = {32, 25, NBL_MMA_RZ_F32, -133};
    return profile == NBL_MMA_SM_89 ? sm_89 : profile == NBL_MMA_SM_90 ? sm_90 : later;
}

/** fp16 accumulators (sm_90 and later); mma.sync and wgmma differ in what a zero counts with. */
NBL_FN nbl_mma_model nbl_mma_model_f16_accumulate(int is_wgmma)
{
    nbl_mma_model m = {16, 25, NBL_MMA_RNE_F16, is_wgmma ? -133 : -22};
    return m;
}

/** An operand or accumulator taken apart: significand * 2^(exponent - fraction bits of its type). */
typedef struct nbl_mma_operand {
    int32_t significand; /**< signed; |s| < 2 in units of the fraction */
    int32_t exponent;    /**< of the significand's unit place; a subnormal has that of the smallest normal */
    uint8_t is_negative;
    uint8_t is_infinite;
    uint8_t is_nan;
} nbl_mma_operand;

/** Fraction bits of an element type. */
NBL_FN int32_t nbl_mma_fraction(uint32_t type)
{
    switch (type) {
    case NBL_MMA_BF16: return 7;
    case NBL_MMA_F16: return 10;
    case NBL_MMA_E4M3: return 3;
    case NBL_MMA_E5M2: return 2;
    default: return 1;
    }
}

/** Takes fields apart: exponent_bits and fraction_bits wide, the sign above them. specials: 0 none (E2M1), 1 only the
 * code of all ones is NaN (E4M3), 2 as IEEE. */
NBL_FN nbl_mma_operand nbl_mma_take_apart(uint32_t bits, uint32_t exponent_bits, uint32_t fraction_bits,
                                          uint32_t specials)
{
    nbl_mma_operand x;
    uint32_t exponent_max = (1u << exponent_bits) - 1u;
    uint32_t fraction = bits & ((1u << fraction_bits) - 1u);
    uint32_t exponent = (bits >> fraction_bits) & exponent_max;
    int32_t bias = (int32_t)(exponent_max >> 1);
    int32_t magnitude = (int32_t)(exponent != 0 ? fraction | 1u << fraction_bits : fraction);
    x.is_negative = (uint8_t)((bits >> (exponent_bits + fraction_bits)) & 1u);
    x.significand = x.is_negative ? -magnitude : magnitude;
    x.exponent = (exponent != 0 ? (int32_t)exponent : 1) - bias;
    x.is_infinite = specials == 2u && exponent == exponent_max && fraction == 0;
    x.is_nan = exponent == exponent_max &&
               ((specials == 2u && fraction != 0) || (specials == 1u && fraction == (1u << fraction_bits) - 1u));
    return x;
}

/** Operand of an element's bits. */
NBL_FN nbl_mma_operand nbl_mma_operand_of(uint32_t type, uint32_t bits)
{
    switch (type) {
    case NBL_MMA_BF16: return nbl_mma_take_apart(bits, 8, 7, 2);
    case NBL_MMA_F16: return nbl_mma_take_apart(bits, 5, 10, 2);
    case NBL_MMA_E4M3: return nbl_mma_take_apart(bits, 4, 3, 1);
    case NBL_MMA_E5M2: return nbl_mma_take_apart(bits, 5, 2, 2);
    default: return nbl_mma_take_apart(bits, 2, 1, 0);
    }
}

/** What the specials among the terms make of the sum: 0 nothing, else the bits of the result. */
typedef struct nbl_mma_special {
    uint8_t nan;
    uint8_t infinite[2]; /**< of either sign */
} nbl_mma_special;

/** Adds a product to the specials. */
NBL_FN void nbl_mma_special_product(nbl_mma_special *s, nbl_mma_operand a, nbl_mma_operand b)
{
    int infinite = a.is_infinite || b.is_infinite;
    s->nan |= (uint8_t)(a.is_nan || b.is_nan || (infinite && (a.significand == 0 || b.significand == 0)));
    s->infinite[a.is_negative ^ b.is_negative] |= (uint8_t)infinite;
}

/** 1 if there is a special result, whose bits are then in *out. */
NBL_FN int nbl_mma_special_result(const nbl_mma_special *s, uint32_t *out)
{
    if (s->nan || (s->infinite[0] && s->infinite[1])) {
        *out = NBL_MMA_NAN;
        return 1;
    }
    *out = s->infinite[1] ? 0xff800000u : 0x7f800000u;
    return s->infinite[0] || s->infinite[1];
}

/** value * 2^shift, towards zero. */
NBL_FN int64_t nbl_mma_cut(int64_t value, int32_t shift)
{
    uint64_t magnitude = value < 0 ? (uint64_t)-value : (uint64_t)value;
    magnitude = shift >= 0 ? magnitude << shift : shift > -64 ? magnitude >> -shift : 0;
    return value < 0 ? -(int64_t)magnitude : (int64_t)magnitude;
}

/** Number of bits of a value, 0 for 0. */
NBL_FN int32_t nbl_mma_bit_length(uint64_t x)
{
    int32_t n = 0;
    while (x != 0) {
        x >>= 1;
        n++;
    }
    return n;
}

/** Binary32 bits of sum * 2^unit, towards zero, with at most `bits` significant bits; too large gives infinity. */
NBL_FN uint32_t nbl_mma_round_rz(int64_t sum, int32_t unit, int32_t bits)
{
    uint32_t sign = sum < 0 ? 0x80000000u : 0;
    uint64_t magnitude = sum < 0 ? (uint64_t)-sum : (uint64_t)sum;
    int32_t top = nbl_mma_bit_length(magnitude) - 1 + unit; /* exponent of the leading bit */
    int32_t lowest = top - (bits - 1) > -150 + (25 - bits) ? top - (bits - 1) : -150 + (25 - bits);
    if (top > 127) {
        return sign | 0x7f800000u;
    }
    if (lowest > unit) { /* units of the last place that stays */
        magnitude = lowest - unit < 64 ? magnitude >> (lowest - unit) : 0;
        unit = lowest;
    }
    /* Now magnitude < 2^24, or wider with zeros below: bring it to the places of a binary32. */
    if (magnitude == 0) {
        return 0; /* what is cut off to zero is +0: seen on an H200 */
    }
    top = nbl_mma_bit_length(magnitude) - 1 + unit;
    int32_t place = top >= -126 ? top - 23 : -149;
    uint32_t field = (uint32_t)(unit >= place ? magnitude << (unit - place) : magnitude >> (place - unit));
    return sign | (top >= -126 ? ((uint32_t)(top + 127) << 23) | (field & 0x7fffffu) : field);
}

/** fp16 bits of sum * 2^unit, to nearest even. */
NBL_FN uint32_t nbl_mma_round_f16(int64_t sum, int32_t unit)
{
    uint32_t sign = sum < 0 ? 0x8000u : 0;
    uint64_t magnitude = sum < 0 ? (uint64_t)-sum : (uint64_t)sum;
    int32_t top = nbl_mma_bit_length(magnitude) - 1 + unit;
    int32_t place = top >= -14 ? top - 10 : -24;
    uint64_t field = magnitude;
    if (unit >= place) {
        field <<= unit - place;
    } else {
        int32_t drop = place - unit;
        uint64_t half = drop < 64 ? UINT64_C(1) << (drop - 1) : 0;
        uint64_t rest = drop < 64 ? magnitude & (2u * half - 1u) : 0;
        field = drop < 64 ? magnitude >> drop : 0;
        field += half != 0 && (rest > half || (rest == half && (field & 1u)));
    }
    uint32_t bits = (uint32_t)field + (top >= -14 ? (uint32_t)(top + 14) << 10 : 0);
    return bits == 0 ? 0 : sign | (bits < 0x7c00u ? bits : 0x7c00u); /* what rounds to zero is +0: seen on an H200 */
}

/** Result of a finite step whose sum is zero: -0 only where every term was -0. */
NBL_FN uint32_t nbl_mma_zero(int all_negative_zero, uint32_t rounding)
{
    return !all_negative_zero ? 0 : rounding == NBL_MMA_RNE_F16 ? 0x8000u : 0x80000000u;
}

/** The accumulator as an operand, and its fraction bits. */
NBL_FN nbl_mma_operand nbl_mma_accumulator_of(uint32_t rounding, uint32_t bits)
{
    return rounding == NBL_MMA_RNE_F16 ? nbl_mma_take_apart(bits, 5, 10, 2) : nbl_mma_take_apart(bits, 8, 23, 2);
}

/** One scaled and fused step (NUM 6.2): bits of c + sum a_k * b_k * 2^scale, with the scale's exponent inside the
 * alignment (0 for an MMA without block scales). n <= model->terms products. */
NBL_FN uint32_t nbl_mma_step_scaled(const nbl_mma_model *model, uint32_t type_a, uint32_t type_b, const uint16_t *a,
                                    const uint16_t *b, uint32_t n, int32_t scale, uint32_t c)
{
    nbl_mma_operand acc = nbl_mma_accumulator_of(model->rounding, c);
    int32_t acc_fraction = model->rounding == NBL_MMA_RNE_F16 ? 10 : 23;
    int32_t fraction = nbl_mma_fraction(type_a) + nbl_mma_fraction(type_b);
    nbl_mma_special special = {acc.is_nan, {0, 0}};
    int64_t product[NBL_MMA_TERMS_MAX];
    int32_t exponent[NBL_MMA_TERMS_MAX];
    int32_t most = acc.significand == 0 ? model->zero_exponent : acc.exponent;
    int all_negative_zero = acc.significand == 0 && acc.is_negative;
    special.infinite[acc.is_negative] |= acc.is_infinite;
    for (uint32_t k = 0; k < n; ++k) {
        nbl_mma_operand x = nbl_mma_operand_of(type_a, a[k]);
        nbl_mma_operand y = nbl_mma_operand_of(type_b, b[k]);
        nbl_mma_special_product(&special, x, y);
        product[k] = (int64_t)x.significand * y.significand;
        exponent[k] = product[k] == 0 ? model->zero_exponent : x.exponent + y.exponent + scale;
        most = exponent[k] > most ? exponent[k] : most;
        all_negative_zero = all_negative_zero && product[k] == 0 && (x.is_negative ^ y.is_negative);
    }
    uint32_t bits;
    if (nbl_mma_special_result(&special, &bits)) {
        return model->rounding != NBL_MMA_RNE_F16 ? bits : bits == NBL_MMA_NAN ? 0x7fffu : bits >> 16 & 0xfc00u;
    }
    int64_t sum = nbl_mma_cut(acc.significand, acc.exponent - most + model->fraction_bits - acc_fraction);
    if (acc.significand == 0) {
        sum = 0;
    }
    for (uint32_t k = 0; k < n; ++k) {
        if (product[k] != 0) {
            sum += nbl_mma_cut(product[k], exponent[k] - most + model->fraction_bits - fraction);
        }
    }
    if (sum == 0) {
        return nbl_mma_zero(all_negative_zero, model->rounding);
    }
    int32_t unit = most - model->fraction_bits;
    return model->rounding == NBL_MMA_RNE_F16
               ? nbl_mma_round_f16(sum, unit)
               : nbl_mma_round_rz(sum, unit, model->rounding == NBL_MMA_RZ_F32 ? 24 : 14);
}

/** A dot product of any length: fused steps in increasing k, each starting from the one before (NUM 6.2). */
NBL_FN uint32_t nbl_mma_dot(const nbl_mma_model *model, uint32_t type_a, uint32_t type_b, const uint16_t *a,
                            const uint16_t *b, uint32_t n, uint32_t c)
{
    for (uint32_t k = 0; k < n; k += model->terms) {
        uint32_t left = n - k < model->terms ? n - k : model->terms;
        c = nbl_mma_step_scaled(model, type_a, type_b, a + k, b + k, left, 0, c);
    }
    return c;
}

/** fp16 bits of an E4M3 or E5M2 element; exact. NaN gives the fp16 NaN 0x7FFF. */
NBL_FN uint16_t nbl_mma_f16_of_fp8(uint32_t type, uint32_t bits)
{
    if (type == NBL_MMA_E5M2) {
        return (bits & 0x7fu) > 0x7cu ? 0x7fffu : (uint16_t)(bits << 8);
    }
    return (bits & 0x7fu) == 0x7fu ? 0x7fffu : nbl_f16_from_f32(nbl_e4m3_decode((uint8_t)bits));
}

/** mma.sync of fp8 where it is emulated with fp16 (sm_90, sm_100), 32 products, binary32 accumulator (NUM 6.2): the
 * products with k mod 4 in {0, 1}, then on top of their sum those with k mod 4 in {2, 3}, then one IEEE addition. */
NBL_FN uint32_t nbl_mma_fp8_emulated(uint32_t type_a, uint32_t type_b, const uint16_t *a, const uint16_t *b, uint32_t c)
{
    nbl_mma_model model = {16, 25, NBL_MMA_RZ_F32, -133};
    uint32_t sum = 0;
    for (uint32_t half = 0; half < 2u; ++half) {
        uint16_t x[16];
        uint16_t y[16];
        for (uint32_t i = 0; i < 16u; ++i) {
            uint32_t k = i / 2u * 4u + 2u * half + i % 2u;
            x[i] = nbl_mma_f16_of_fp8(type_a, a[k]);
            y[i] = nbl_mma_f16_of_fp8(type_b, b[k]);
        }
        sum = nbl_mma_step_scaled(&model, NBL_MMA_F16, NBL_MMA_F16, x, y, 16, 0, sum);
    }
    float total = nbl_float_of(c) + nbl_float_of(sum);
    return total != total ? NBL_MMA_NAN : nbl_bits_of(total);
}

/** A block scale: significand in eighths (8..15, or 0..7 for a subnormal), exponent. */
typedef struct nbl_mma_scale {
    int32_t eighths;
    int32_t exponent;
    int is_nan;
} nbl_mma_scale;

/** UE4M3: the sign bit is ignored, 0x7F is NaN. */
NBL_FN nbl_mma_scale nbl_mma_scale_ue4m3(uint8_t byte)
{
    nbl_mma_operand x = nbl_mma_take_apart(byte & 0x7fu, 4, 3, 1);
    nbl_mma_scale s = {x.significand, x.exponent, x.is_nan};
    return s;
}

/** UE8M0: 2^(byte - 127), 0xFF is NaN. */
NBL_FN nbl_mma_scale nbl_mma_scale_ue8m0(uint8_t byte)
{
    nbl_mma_scale s = {8, (int32_t)byte - 127, byte == 0xffu};
    return s;
}

/** A group of 16 products before its scales (NUM 7.2). */
typedef struct nbl_mma_group {
    int32_t quarters; /**< exact sum of the products, in quarters */
    int32_t is_zero;  /**< every product is zero */
} nbl_mma_group;

/** Sum of four groups on top of c (NUM 7.2): alignment looks at the scales' exponents only. */
NBL_FN uint32_t nbl_mma_step_of_groups(const nbl_mma_group *groups, const nbl_mma_scale *scale_a,
                                       const nbl_mma_scale *scale_b, uint32_t c)
{
    nbl_mma_operand acc = nbl_mma_take_apart(c, 8, 23, 2);
    int64_t term[NBL_MMA_GROUPS];
    int32_t exponent[NBL_MMA_GROUPS];
    int nan = acc.is_nan;
    int32_t most = acc.significand == 0 ? NBL_MMA_GROUP_ZERO : acc.exponent;
    for (uint32_t g = 0; g < NBL_MMA_GROUPS; ++g) {
        int32_t scales = scale_a[g].eighths * scale_b[g].eighths;
        nan = nan || scale_a[g].is_nan || scale_b[g].is_nan;
        term[g] = (int64_t)groups[g].quarters * scales; /* in units of 2^-8 */
        exponent[g] = groups[g].is_zero || scales == 0 ? NBL_MMA_GROUP_ZERO : scale_a[g].exponent + scale_b[g].exponent;
        most = exponent[g] > most ? exponent[g] : most;
    }
    if (nan || acc.is_infinite) {
        return nan ? NBL_MMA_NAN : c;
    }
    int64_t sum = acc.significand == 0 ? 0 : nbl_mma_cut(acc.significand, acc.exponent - most + NBL_MMA_GROUP_F - 23);
    for (uint32_t g = 0; g < NBL_MMA_GROUPS; ++g) {
        sum += nbl_mma_cut(term[g], exponent[g] - most + NBL_MMA_GROUP_F - 8);
    }
    return sum == 0 ? 0 : nbl_mma_round_rz(sum, most - NBL_MMA_GROUP_F, 24);
}

/** One fused step of 64 E2M1 products with a scale for each group of 16 on either side (NUM 7.2). */
NBL_FN uint32_t nbl_mma_step_groups(const uint8_t *a, const uint8_t *b, const nbl_mma_scale *scale_a,
                                    const nbl_mma_scale *scale_b, uint32_t c)
{
    nbl_mma_group groups[NBL_MMA_GROUPS];
    for (uint32_t g = 0; g < NBL_MMA_GROUPS; ++g) {
        groups[g].quarters = 0;
        groups[g].is_zero = 1;
        for (uint32_t k = g * NBL_MMA_GROUP_TERMS; k < (g + 1u) * NBL_MMA_GROUP_TERMS; ++k) {
            int32_t p = nbl_e2m1_half_units(a[k]) * nbl_e2m1_half_units(b[k]);
            groups[g].is_zero = groups[g].is_zero && p == 0;
            groups[g].quarters += p;
        }
    }
    return nbl_mma_step_of_groups(groups, scale_a, scale_b, c);
}

/** Product of byte k of two words of E4M3 codes: its significand in units of 2^-6, and its exponent; no NaN. */
NBL_FN int32_t nbl_mma_e4m3_product(uint32_t a, uint32_t b, uint32_t k, int32_t *exponent)
{
    int32_t x = (int32_t)(a >> (8u * k) & 0x7fu), y = (int32_t)(b >> (8u * k) & 0x7fu);
    int32_t product = (x < 8 ? x : 8 + x % 8) * (y < 8 ? y : 8 + y % 8);
    *exponent = (x < 8 ? 1 : x / 8) + (y < 8 ? 1 : y / 8) - 14;
    return ((a ^ b) >> (8u * k) & 0x80u) != 0 ? -product : product;
}

/** The fp8 step of sm_100 and sm_120 (NUM 7.3) on codes four to a word, without NaN and with a finite c: what
 * nbl_mma_step_scaled computes, but for the sign of a zero. */
NBL_FN uint32_t nbl_mma_step_e4m3(const uint32_t *a, const uint32_t *b, uint32_t c)
{
    const nbl_mma_model model = nbl_mma_model_fp8(NBL_MMA_SM_120);
    nbl_mma_operand acc = nbl_mma_take_apart(c, 8, 23, 2);
    int32_t most = acc.significand == 0 ? model.zero_exponent : acc.exponent;
    int32_t exponent;
    for (uint32_t k = 0; k < NBL_MMA_TERMS_MAX; ++k) {
        int32_t product = nbl_mma_e4m3_product(a[k / 4u], b[k / 4u], k % 4u, &exponent);
        most = product != 0 && exponent > most ? exponent : most;
    }
    int64_t sum =
        acc.significand == 0 ? 0 : nbl_mma_cut(acc.significand, acc.exponent - most + model.fraction_bits - 23);
    for (uint32_t k = 0; k < NBL_MMA_TERMS_MAX; ++k) {
        int32_t product = nbl_mma_e4m3_product(a[k / 4u], b[k / 4u], k % 4u, &exponent);
        sum += product == 0 ? 0 : nbl_mma_cut(product, exponent - most + model.fraction_bits - 6);
    }
    return sum == 0 ? 0 : nbl_mma_round_rz(sum, most - model.fraction_bits, 24);
}

#endif
