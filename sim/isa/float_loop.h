/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file float_loop.h
 * @brief The float core's dot product, some lanes at a time. Included once per
 * instruction set, with SIM_FLOAT_DOT naming the function and SIM_FLOAT_LANES the lanes (of 4, 8 or 16).
 *
 * The same sums as nbl_mma_step_scaled for finite operands: products and shifts fit int32 (at most 22 + F - 20 bits,
 * sixteen of them below 2^31), the sum with the accumulator a double. Results below 2^-126 take the model itself. The
 * sign of a zero may differ from the model's: it has no influence on a row (NUM 6.6).
 *
 * Under UBSan a sum of vectors that is checked is taken apart into its elements. SIM_FLOAT_UNCHECKED leaves that check
 * to the scalar file, which has the same source: one copy shows whether something overflows.
 */
#include "float.h"

#define LANES SIM_FLOAT_LANES
#define STEP_TERMS_MAX NBL_MMA_TERMS_MAX
#define HALF_TERMS 16u

#ifdef SIM_FLOAT_UNCHECKED
#define LOOP_FUNCTION __attribute__((no_sanitize("signed-integer-overflow"))) static
#else
#define LOOP_FUNCTION static
#endif

/* Vector extensions of gcc and clang: each instruction set gets its own width of them. */
typedef int32_t lanes_i32 __attribute__((vector_size(4 * LANES)));
typedef uint32_t lanes_u32 __attribute__((vector_size(4 * LANES)));
typedef int16_t lanes_i16 __attribute__((vector_size(2 * LANES)));

LOOP_FUNCTION inline void load_i16(lanes_i32 *to, const int16_t *from)
{
    lanes_i16 narrow;
    memcpy(&narrow, from, sizeof narrow);
    *to = __builtin_convertvector(narrow, lanes_i32);
}

/* a where the mask is set, else b. */
#define SELECT(mask, a, b) (((mask) & (a)) | (~(mask) & (b)))

/* value := |value| * 2^left >> right, sign kept; right may be any number from 0 on. */
LOOP_FUNCTION inline void cut(lanes_i32 *value, int32_t left, const lanes_i32 *right)
{
    const lanes_i32 sign = *value >> 31;
    const lanes_i32 bounded = SELECT(*right < 31, *right, (lanes_i32){0} + 31);
    const lanes_u32 magnitude = (lanes_u32)((*value ^ sign) - sign) << (uint32_t)left;
    *value = ((lanes_i32)(magnitude >> (lanes_u32)bounded) ^ sign) - sign;
}

/* Takes the accumulators apart; zeros have the model's exponent. */
LOOP_FUNCTION inline void take_apart(const lanes_i32 *bits, int32_t zero_exponent, lanes_i32 *significand,
                                     lanes_i32 *exponent)
{
    const lanes_i32 field = (*bits >> 23) & 0xff;
    const lanes_i32 fraction = *bits & 0x7fffff;
    const lanes_i32 is_normal = field > 0;
    const lanes_i32 is_zero = (*bits & 0x7fffffff) == 0;
    const lanes_i32 sign = *bits >> 31;
    const lanes_i32 magnitude = fraction | (is_normal & 0x800000);
    *significand = (magnitude ^ sign) - sign;
    *exponent = SELECT(is_zero, (lanes_i32){0} + zero_exponent, SELECT(is_normal, field, (lanes_i32){0} + 1) - 127);
}

/* (sum[0] + sum[1] + other) * 2^unit towards zero as binary32. */
LOOP_FUNCTION inline void round_lanes(const lanes_i32 *sum, const lanes_i32 *other, const lanes_i32 *unit, float *out)
{
    int32_t is_small = 0;
    double total[LANES];
    for (uint32_t l = 0; l < LANES; ++l) {
        const uint64_t scale_bits = (uint64_t)((int64_t)(*unit)[l] + 1023) << 52;
        double scale;
        double value;
        uint64_t bits;
        memcpy(&scale, &scale_bits, sizeof scale);
        total[l] = (double)sum[0][l] + (double)sum[1][l] + (double)(*other)[l];
        value = total[l] * scale;
        memcpy(&bits, &value, sizeof bits);
        bits &= ~UINT64_C(0x1fffffff); /* 24 significant bits stay */
        memcpy(&value, &bits, sizeof value);
        out[l] = (float)value;
        is_small |= (total[l] != 0.0) & (fabsf(out[l]) < 0x1p-126f);
    }
    for (uint32_t l = 0; is_small && l < LANES; ++l) {
        const uint32_t rounded = nbl_mma_round_rz((int64_t)total[l], (*unit)[l], 24);
        memcpy(&out[l], &rounded, sizeof rounded);
    }
}

LOOP_FUNCTION void step(const nbl_mma_model *model, int32_t fraction, sim_float_array a, sim_float_array b,
                        uint32_t stride, float *c)
{
    lanes_i32 product[STEP_TERMS_MAX];
    lanes_i32 exponent[STEP_TERMS_MAX];
    lanes_i32 sum[2] = {{0}, {0}}; /* of up to 16 terms each: they fit */
    lanes_i32 bits;
    lanes_i32 other;
    lanes_i32 most;
    lanes_i32 distance;
    memcpy(&bits, c, sizeof bits);
    take_apart(&bits, model->zero_exponent, &other, &most);
    distance = most;
    for (uint32_t k = 0; k < model->terms; ++k) {
        lanes_i32 p;
        lanes_i32 e;
        load_i16(&p, b.significand + (uint64_t)k * stride);
        load_i16(&e, b.exponent + (uint64_t)k * stride);
        p *= a.significand[k];
        e = SELECT(p == 0, (lanes_i32){0} + model->zero_exponent, e + a.exponent[k]);
        product[k] = p;
        exponent[k] = e;
        most = SELECT(e > most, e, most);
    }
    distance = most - distance;
    cut(&other, model->fraction_bits - 23, &distance);
    for (uint32_t k = 0; k < model->terms; ++k) {
        distance = most - exponent[k];
        cut(&product[k], model->fraction_bits - fraction, &distance);
        sum[k / HALF_TERMS] += product[k];
    }
    most -= model->fraction_bits;
    round_lanes(sum, &other, &most, c);
}

void SIM_FLOAT_DOT(const nbl_mma_model *model, int32_t fraction, sim_float_array a, uint32_t n, sim_float_array b,
                   uint32_t stride, uint32_t lanes, float *c)
{
    for (uint32_t l = 0; l < lanes; l += LANES) {
        for (uint32_t k = 0; k < n; k += model->terms) {
            sim_float_array x = {a.significand + k, a.exponent + k};
            sim_float_array y = {b.significand + (uint64_t)k * stride + l, b.exponent + (uint64_t)k * stride + l};
            step(model, fraction, x, y, stride, c + l);
        }
    }
}
