/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file float_loop.h
 * @brief The float core's dot product over 16 lanes at a time, written for the compiler to vectorise. Included once per
 * instruction set, with SIM_FLOAT_DOT naming the function.
 *
 * The same sums as nbl_mma_step_scaled for finite operands: products and shifts fit int32 (at most 22 + F - 20 bits,
 * sixteen of them below 2^31), the sum with the accumulator a double. Results below 2^-126 take the model itself. The
 * sign of a zero may differ from the model's: it has no influence on a row (NUM 6.6).
 */
#include "float.h"

#define LANES 16u
#define STEP_TERMS_MAX 16u

/* A product's place, cut off: |p| * 2^left >> right, sign kept. */
static inline int32_t cut(int32_t p, int32_t left, int32_t right)
{
    int32_t sign = p >> 31;
    uint32_t magnitude = (uint32_t)((p ^ sign) - sign) << left;
    magnitude >>= right < 31 ? right : 31;
    return ((int32_t)magnitude ^ sign) - sign;
}

/* The accumulator's magnitude and exponent, zeros with the model's. */
static inline int32_t accumulator_exponent(uint32_t bits, int32_t zero_exponent)
{
    int32_t field = (int32_t)((bits >> 23) & 0xffu);
    int32_t exponent = (field > 1 ? field : 1) - 127;
    return (bits & 0x7fffffffu) == 0 ? zero_exponent : exponent;
}

static inline int32_t accumulator_significand(uint32_t bits)
{
    uint32_t magnitude = (bits & 0x7fffffu) | ((bits & 0x7f800000u) != 0 ? 0x800000u : 0);
    return (bits >> 31) != 0 ? -(int32_t)magnitude : (int32_t)magnitude;
}

/* sum * 2^unit towards zero in a binary32, where that is normal or zero. */
static inline float round_normal(double sum, int32_t unit)
{
    uint64_t scale_bits = (uint64_t)(unit + 1023) << 52;
    double scale;
    double value;
    uint64_t bits;
    memcpy(&scale, &scale_bits, sizeof scale);
    value = sum * scale;
    memcpy(&bits, &value, sizeof bits);
    bits &= ~UINT64_C(0x1fffffff);
    memcpy(&value, &bits, sizeof value);
    return (float)value;
}

static void step(const nbl_mma_model *model, int32_t fraction, sim_float_array a, sim_float_array b, uint32_t stride,
                 float *c)
{
    int32_t product[STEP_TERMS_MAX][LANES];
    int32_t exponent[STEP_TERMS_MAX][LANES];
    int32_t most[LANES];
    int32_t sum[LANES];
    double total[LANES];
    uint32_t bits[LANES];
    int32_t is_small = 0;
    memcpy(bits, c, sizeof bits);
    for (uint32_t l = 0; l < LANES; ++l) {
        most[l] = accumulator_exponent(bits[l], model->zero_exponent);
        sum[l] = 0;
    }
    for (uint32_t k = 0; k < model->terms; ++k) {
        const int16_t *significand = b.significand + (uint64_t)k * stride;
        const int16_t *power = b.exponent + (uint64_t)k * stride;
        for (uint32_t l = 0; l < LANES; ++l) {
            int32_t p = a.significand[k] * significand[l];
            int32_t e = p == 0 ? model->zero_exponent : a.exponent[k] + power[l];
            product[k][l] = p;
            exponent[k][l] = e;
            most[l] = e > most[l] ? e : most[l];
        }
    }
    for (uint32_t k = 0; k < model->terms; ++k) {
        for (uint32_t l = 0; l < LANES; ++l) {
            sum[l] += cut(product[k][l], model->fraction_bits - fraction, most[l] - exponent[k][l]);
        }
    }
    for (uint32_t l = 0; l < LANES; ++l) {
        int32_t right = most[l] - accumulator_exponent(bits[l], model->zero_exponent);
        total[l] = (double)sum[l] + (double)cut(accumulator_significand(bits[l]), model->fraction_bits - 23, right);
        c[l] = round_normal(total[l], most[l] - model->fraction_bits);
        is_small |= (total[l] != 0.0) & (fabsf(c[l]) < 0x1p-126f);
    }
    for (uint32_t l = 0; is_small && l < LANES; ++l) {
        uint32_t rounded = nbl_mma_round_rz((int64_t)total[l], most[l] - model->fraction_bits, 24);
        memcpy(&c[l], &rounded, sizeof rounded);
    }
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
