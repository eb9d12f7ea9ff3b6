/* SPDX-License-Identifier: Apache-2.0 */
/** @file fp4.c  Q K^T of the Blackwell core (NUM 7). */
#include "fp4.h"

#include "quantize.h"

#define GROUP NBL_MMA_GROUP_TERMS
#define STEP (NBL_MMA_GROUPS * GROUP) /* elements of a fused step */
#define NVFP4_PEAK 168.0f             /* 448 * 6 = 2688, over 2^4 */
#define NVFP4_PEAK_LOG2 4

/* Elements and group scales of a stored vector. */
static void unpack(const nbl_vector *v, sim_fp4_vector *out)
{
    uint32_t padded = nbl_layout_dim_padded(v->dim);
    for (uint32_t d = 0; d < padded; ++d) {
        out->halves[d] = (int8_t)nbl_e2m1_half_units(v->codes[d]);
    }
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

/* Value of element d, without the row's exponent. */
static float value_of(const sim_fp4_vector *q, uint32_t d)
{
    const int16_t *scale = q->scales[d / GROUP];
    return (float)(q->halves[d] * scale[0]) * 0.0625f * nbl_pow2(scale[1]);
}

void sim_fp4_center_of(uint32_t format, const float *m, uint32_t dim, sim_fp4_center *out)
{
    float rest[NBL_DIM_PADDED_MAX];
    out->exponent[0] = sim_fp4_query(format, m, dim, &out->part[0]);
    for (uint32_t d = 0; d < dim; ++d) {
        rest[d] = m[d] - value_of(&out->part[0], d) * nbl_pow2(out->exponent[0]);
    }
    out->exponent[1] = sim_fp4_query(format, rest, dim, &out->part[1]);
}

float sim_fp4_center_dot(const sim_fp4_vector *q, const int8_t *mu, uint32_t dim)
{
    float sums[NBL_PARTIAL_SUMS] = {0};
    for (uint32_t d = 0; d < dim; ++d) {
        sums[d % NBL_PARTIAL_SUMS] = nbl_fma(value_of(q, d), (float)mu[d], sums[d % NBL_PARTIAL_SUMS]);
    }
    return nbl_sum_tree(sums);
}

/* Places of a vector's elements and scales. */
static int8_t *halves_at(sim_float_array a, uint32_t vector, uint32_t k_dim)
{
    return (int8_t *)(void *)a.significand + (uint64_t)vector * k_dim;
}

static int16_t *scales_at(sim_float_array a, uint32_t vector, uint32_t k_dim)
{
    return a.exponent + (uint64_t)vector * (k_dim / GROUP) * 2u;
}

static void put_vector(sim_float_array a, uint32_t at, const sim_fp4_vector *v, uint32_t k_dim)
{
    memcpy(halves_at(a, at, k_dim), v->halves, k_dim);
    memcpy(scales_at(a, at, k_dim), v->scales, k_dim / GROUP * sizeof v->scales[0]);
}

void sim_fp4_set_query(sim_float_scratch *s, uint32_t row, const sim_fp4_vector *q, uint32_t k_dim)
{
    put_vector(s->q, row, q, k_dim);
}

void sim_fp4_set_center(sim_float_scratch *s, uint32_t index, const sim_fp4_center *center, uint32_t k_dim)
{
    put_vector(s->centers, 2u * index, &center->part[0], k_dim);
    put_vector(s->centers, 2u * index + 1u, &center->part[1], k_dim);
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

/* Scales of a step's groups. */
static void take_scales(const int16_t *scales, uint32_t groups, nbl_mma_scale *out)
{
    for (uint32_t g = 0; g < groups; ++g) {
        out[g].eighths = scales[2u * g];
        out[g].exponent = scales[2u * g + 1u];
    }
}

static nbl_mma_group multiply_group(const int8_t *a, const int8_t *b)
{
    int32_t sum = 0, any = 0;
    for (uint32_t k = 0; k < GROUP; ++k) {
        int32_t p = a[k] * b[k];
        sum += p;
        any |= p;
    }
    nbl_mma_group out = {sum, any == 0};
    return out;
}

/* One step of a row with every token; groups past the end of the vector are zeros. */
static void dot_step(const sim_float_scratch *s, sim_float_array rows, uint32_t row, uint32_t tokens, uint32_t k_dim,
                     uint32_t first, float *x)
{
    const uint32_t groups = k_dim - first < STEP ? (k_dim - first) / GROUP : NBL_MMA_GROUPS;
    const int8_t *q = halves_at(rows, row, k_dim) + first;
    nbl_mma_group sums[NBL_MMA_GROUPS] = {{0, 1}, {0, 1}, {0, 1}, {0, 1}};
    nbl_mma_scale q_scales[NBL_MMA_GROUPS] = {{0, 0, 0}}, k_scales[NBL_MMA_GROUPS] = {{0, 0, 0}};
    take_scales(scales_at(rows, row, k_dim) + first / GROUP * 2u, groups, q_scales);
    for (uint32_t t = 0; t < tokens; ++t) {
        const int8_t *k = halves_at(s->k, t, k_dim) + first;
        take_scales(scales_at(s->k, t, k_dim) + first / GROUP * 2u, groups, k_scales);
        for (uint32_t g = 0; g < groups; ++g) {
            sums[g] = multiply_group(q + g * GROUP, k + g * GROUP);
        }
        x[t] = nbl_float_of(nbl_mma_step_of_groups(sums, q_scales, k_scales, nbl_bits_of(x[t])));
    }
}

void sim_fp4_dot(const sim_float_scratch *s, sim_float_array q, uint32_t row, uint32_t tokens, uint32_t k_dim,
                 float *x)
{
    for (uint32_t first = 0; first < k_dim; first += STEP) {
        dot_step(s, q, row, tokens, k_dim, first, x);
    }
}

void sim_fp4_dot_center(const sim_float_scratch *s, uint32_t index, const int32_t exponent[2], uint32_t tokens,
                        uint32_t k_dim, float *y)
{
    float rest[SIM_TILE] = {0};
    memset(y, 0, tokens * sizeof *y);
    sim_fp4_dot(s, s->centers, 2u * index, tokens, k_dim, y);
    sim_fp4_dot(s, s->centers, 2u * index + 1u, tokens, k_dim, rest);
    for (uint32_t t = 0; t < tokens; ++t) {
        y[t] = nbl_fma(rest[t], nbl_pow2(exponent[1]), y[t] * nbl_pow2(exponent[0]));
    }
}
