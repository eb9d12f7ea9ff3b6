/* SPDX-License-Identifier: Apache-2.0 */
/** @file fp4.c  Q K^T of the Blackwell core (NUM 7). */
#include "fp4.h"

#include "quantize.h"

#define GROUP NBL_MMA_GROUP_TERMS
#define STEP (NBL_MMA_GROUPS * GROUP) /* elements of a fused step */
#define NVFP4_PEAK 168.0f             /* 448 * 6 = 2688, over 2^4 */
#define NVFP4_PEAK_LOG2 4

/* Codes and group scales of a stored vector. */
static void unpack(const nbl_vector *v, sim_fp4_vector *out)
{
    uint32_t padded = nbl_layout_dim_padded(v->dim);
    memcpy(out->codes, v->codes, padded);
    for (uint32_t g = 0; g < padded / GROUP; ++g) {
        uint8_t byte = v->scales[g * GROUP / nbl_layout_block_dim(v->format, v->dim)];
        nbl_mma_scale scale;
        if (v->format == NBL_NVFP4) {
            scale = nbl_mma_scale_ue4m3((byte & 0x7fu) == 0x7fu ? (uint8_t)(byte - 1u) : byte);
        } else {
            scale = nbl_mma_scale_ue8m0(nbl_e8m0_encode(nbl_e8m0_decode_slot(byte)));
        }
        out->scales[g][0] = (int16_t)scale.eighths;
        out->scales[g][1] = (int16_t)scale.exponent;
    }
}

int32_t sim_fp4_query(uint32_t format, const float *x, uint32_t dim, sim_fp4_vector *out)
{
    float scaled[NBL_DIM_PADDED_MAX];
    nbl_vector v;
    nbl_quant_stats ignored = {0};
    int32_t exponent = 0;
    if (format == NBL_NVFP4) {
        exponent = nbl_exponent_for(nbl_amax(x, dim), NVFP4_PEAK, NBL_E_MIN, NBL_E_MAX) - NVFP4_PEAK_LOG2;
    }
    for (uint32_t d = 0; d < dim; ++d) {
        scaled[d] = x[d] * nbl_pow2(-exponent);
    }
    nbl_vector_quantize(scaled, dim, format, NBL_RULE_DEFAULT, &v, &ignored);
    unpack(&v, out);
    return exponent;
}

float sim_fp4_center_dot(const sim_fp4_vector *q, const int8_t *mu, uint32_t dim)
{
    float sums[NBL_PARTIAL_SUMS] = {0};
    for (uint32_t d = 0; d < dim; ++d) {
        const int16_t *scale = q->scales[d / GROUP];
        float value = (float)(nbl_e2m1_half_units(q->codes[d]) * scale[0]) * 0.0625f * nbl_pow2(scale[1]);
        sums[d % NBL_PARTIAL_SUMS] = nbl_fma(value, (float)mu[d], sums[d % NBL_PARTIAL_SUMS]);
    }
    return nbl_sum_tree(sums);
}

/* Places of a vector's codes and scales. */
static uint8_t *codes_at(sim_float_array a, uint32_t vector, uint32_t k_dim)
{
    return (uint8_t *)a.significand + (uint64_t)vector * k_dim;
}

static int16_t *scales_at(sim_float_array a, uint32_t vector, uint32_t k_dim)
{
    return a.exponent + (uint64_t)vector * (k_dim / GROUP) * 2u;
}

static void put_vector(sim_float_array a, uint32_t at, const sim_fp4_vector *v, uint32_t k_dim)
{
    memcpy(codes_at(a, at, k_dim), v->codes, k_dim);
    memcpy(scales_at(a, at, k_dim), v->scales, k_dim / GROUP * sizeof v->scales[0]);
}

void sim_fp4_set_query(sim_float_scratch *s, uint32_t row, const sim_fp4_vector *q, uint32_t k_dim)
{
    put_vector(s->q, row, q, k_dim);
}

void sim_fp4_load_k(sim_float_scratch *s, const sim_source *source, uint32_t first, uint32_t count, uint32_t k_dim)
{
    for (uint32_t t = 0; t < SIM_TILE; ++t) {
        sim_fp4_vector unpacked = {{0}, {{0}}};
        nbl_vector v;
        if (t < count) {
            sim_float_load_token(source, first + t, NBL_KIND_K, &v);
            unpack(&v, &unpacked);
        }
        put_vector(s->k, t, &unpacked, k_dim);
    }
}

/* One step's codes and scales; past the end of the vector there are zeros. */
typedef struct operand {
    uint8_t codes[STEP];
    nbl_mma_scale scales[NBL_MMA_GROUPS];
} operand;

static void take_step(sim_float_array a, uint32_t vector, uint32_t k_dim, uint32_t first, operand *out)
{
    const uint8_t *codes = codes_at(a, vector, k_dim) + first;
    const int16_t *scales = scales_at(a, vector, k_dim) + first / GROUP * 2u;
    memset(out, 0, sizeof *out);
    memcpy(out->codes, codes, k_dim - first < STEP ? k_dim - first : STEP);
    for (uint32_t g = 0; g < NBL_MMA_GROUPS && first + g * GROUP < k_dim; ++g) {
        out->scales[g].eighths = scales[2u * g];
        out->scales[g].exponent = scales[2u * g + 1u];
    }
}

void sim_fp4_dot(const sim_float_scratch *s, uint32_t row, uint32_t tokens, uint32_t k_dim, float *x)
{
    for (uint32_t first = 0; first < k_dim; first += STEP) {
        operand q;
        take_step(s->q, row, k_dim, first, &q);
        for (uint32_t t = 0; t < tokens; ++t) {
            operand k;
            take_step(s->k, t, k_dim, first, &k);
            x[t] = nbl_float_of(nbl_mma_step_groups(q.codes, k.codes, q.scales, k.scales, nbl_bits_of(x[t])));
        }
    }
}
