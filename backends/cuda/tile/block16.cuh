/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file block16.cuh
 * @brief A vector held by a team of threads, 16 consecutive elements each: loading, transforms, quantizers, page
 * access.
 *
 * A team has Dp/16 threads, side by side in the block; a block holds as many teams as it likes. The butterflies of a
 * Hadamard block never leave an aligned group of 16 lanes: n divides D, so n/16 divides the size of the team.
 * All threads of a warp take part in every function with a shuffle; those without a vector hold zeros.
 */
#ifndef CUDA_BLOCK16_H
#define CUDA_BLOCK16_H

#include "../attend.h"
#include "block.h"
#include "quantize.h"
#include "transform.h"

#define BLOCK16 16u
#define BLOCK16_TEAM_MAX (NBL_DIM_PADDED_MAX / BLOCK16)
#define FULL_WARP 0xffffffffu

/** Largest value of a team, in all its threads. slot is shared memory of the team's vector and is used only where teams
 *  are no power of two. All threads of the block call it. */
CUDA_DEVICE uint32_t block16_team_max(uint32_t value, uint32_t team, uint32_t *slot, bool is_first)
{
    if ((team & (team - 1u)) == 0) {
        for (uint32_t distance = 1; distance < team; distance *= 2u) {
            value = max(value, __shfl_xor_sync(FULL_WARP, value, (int)distance));
        }
        return value;
    }
    if (is_first) {
        *slot = 0;
    }
    __syncthreads();
    atomicMax(slot, value);
    __syncthreads();
    value = *slot;
    __syncthreads();
    return value;
}

/** Sum over a team, likewise. */
CUDA_DEVICE int32_t block16_team_sum(int32_t value, uint32_t team, uint32_t *slot, bool is_first)
{
    if ((team & (team - 1u)) == 0) {
        for (uint32_t distance = 1; distance < team; distance *= 2u) {
            value += __shfl_xor_sync(FULL_WARP, value, (int)distance);
        }
        return value;
    }
    if (is_first) {
        *slot = 0;
    }
    __syncthreads();
    atomicAdd((int32_t *)slot, value);
    __syncthreads();
    value = *(int32_t *)slot;
    __syncthreads();
    return value;
}

/** Sequence that entry `at` of an indptr belongs to; some sequence of the batch if the indptr is not in order. */
CUDA_DEVICE uint32_t sequence_of(const int32_t *indptr, uint32_t batch, uint32_t at)
{
    uint32_t low = 0;
    uint32_t high = batch;
    while (high - low > 1u) {
        uint32_t middle = low + (high - low) / 2u;
        if ((uint32_t)indptr[middle] <= at) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/** The same by a whole warp, which looks at 32 entries at once: a chain of one or two loads in place of one for every
 *  bit of the batch. All lanes call it with the same arguments. */
CUDA_DEVICE uint32_t sequence_of_warp(const int32_t *indptr, uint32_t batch, uint32_t at)
{
    uint32_t lane = threadIdx.x % 32u, low = 0, width = batch;
#pragma unroll 1
    while (width > 1u) {
        uint32_t step = (width + 31u) / 32u, next = (lane + 1u) * step;
        bool is_before = next < width && (uint32_t)indptr[low + next] <= at;
        uint32_t steps = (uint32_t)__popc(__ballot_sync(FULL_WARP, is_before));
        low += steps * step;
        width = min(step, width - steps * step);
    }
    return low;
}

/** Checks one entry of an indptr against the one before it and the ends. which: 0 q_indptr, 1 seq_indptr. */
CUDA_DEVICE bool check_indptr_entry(const int32_t *indptr, uint32_t index, uint32_t batch, uint32_t total,
                                    uint32_t which, cuda_status *status)
{
    if (index == 0 && indptr[0] != 0) {
        cuda_fault_report(status, CUDA_FAULT_INDPTR_FIRST, 0, which, indptr[0], 0);
        return false;
    }
    if (index > 0 && indptr[index] < indptr[index - 1u]) {
        cuda_fault_report(status, CUDA_FAULT_INDPTR_ORDER, index, which, indptr[index], indptr[index - 1u]);
        return false;
    }
    if (index == batch && (uint32_t)indptr[batch] != total) {
        cuda_fault_report(status, CUDA_FAULT_INDPTR_LAST, batch, which, indptr[batch], total);
        return false;
    }
    return true;
}

/** Checks a whole indptr by one block. */
CUDA_DEVICE void check_indptr(const int32_t *indptr, uint32_t batch, uint32_t total, uint32_t which,
                              cuda_status *status)
{
    for (uint32_t i = threadIdx.x; i <= batch; i += blockDim.x) {
        check_indptr_entry(indptr, i, batch, total, which, status);
    }
}

/** Row of a sequence's centres, or -1 if it is outside. */
CUDA_DEVICE int64_t center_row(const cuda_centers *centers, uint32_t sequence)
{
    int64_t row = centers->rows != NULL ? (int64_t)centers->rows[sequence] : (int64_t)sequence;
    return row < 0 || row >= (int64_t)centers->row_count ? -1 : row;
}

/** Counters of one thread. */
struct block16_counts {
    uint32_t nan_inputs;
    uint32_t inf_inputs;
    uint32_t saturated;
};

/* ------------------------------------------------------------------------------------------------ input */

/** Elements 16b..16b+15 of a row of dim elements as binary32; those past dim are 0. */
CUDA_DEVICE void block16_read(const cuda_tensor *t, const uint8_t *row, uint32_t axis, uint32_t dim, uint32_t b,
                              float (&x)[BLOCK16])
{
    uint32_t first = b * BLOCK16;
    uint32_t bytes = t->dtype == NBL_F32 ? 4u : 2u;
    const uint8_t *at = row + (int64_t)first * t->stride[axis];
    if (t->packed && first + BLOCK16 <= dim && ((uint64_t)at & 15u) == 0) {
        uint32_t words[BLOCK16];
#pragma unroll
        for (uint32_t i = 0; i < BLOCK16 / 4u; ++i) {
            if (i < bytes) { /* 16 elements of n bytes are n vectors of 16 bytes */
                uint4 v = ((const uint4 *)(const void *)at)[i];
                words[4u * i] = v.x;
                words[4u * i + 1u] = v.y;
                words[4u * i + 2u] = v.z;
                words[4u * i + 3u] = v.w;
            }
        }
        if (t->dtype == NBL_F32) {
#pragma unroll
            for (uint32_t i = 0; i < BLOCK16; ++i) {
                x[i] = nbl_float_of(words[i]);
            }
        } else if (t->dtype == NBL_BF16) {
#pragma unroll
            for (uint32_t i = 0; i < BLOCK16; ++i) {
                x[i] = nbl_f32_from_bf16((uint16_t)(words[i / 2u] >> (16u * (i % 2u))));
            }
        } else {
#pragma unroll
            for (uint32_t i = 0; i < BLOCK16; ++i) {
                x[i] = nbl_f32_from_f16((uint16_t)(words[i / 2u] >> (16u * (i % 2u))));
            }
        }
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        x[i] = first + i < dim ? cuda_element_read(at + (int64_t)i * t->stride[axis], t->dtype) : 0.0f;
    }
}

/** The same elements to a row, in its type. */
CUDA_DEVICE void block16_write(const cuda_tensor *t, uint8_t *row, uint32_t axis, uint32_t dim, uint32_t b,
                               const float (&x)[BLOCK16])
{
    uint32_t first = b * BLOCK16;
    uint8_t *at = row + (int64_t)first * t->stride[axis];
    if (t->packed && first + BLOCK16 <= dim && ((uint64_t)at & 15u) == 0) {
        uint32_t words[BLOCK16];
        uint32_t vectors = t->dtype == NBL_F32 ? BLOCK16 / 4u : BLOCK16 / 8u;
#pragma unroll
        for (uint32_t i = 0; i < BLOCK16; ++i) {
            words[i] = nbl_bits_of(x[i]);
        }
#pragma unroll
        for (uint32_t i = 0; i < BLOCK16 / 2u && t->dtype != NBL_F32; ++i) {
            words[i] = t->dtype == NBL_BF16
                           ? nbl_bf16_from_f32(x[2u * i]) | (uint32_t)nbl_bf16_from_f32(x[2u * i + 1u]) << 16
                           : nbl_f16_from_f32(x[2u * i]) | (uint32_t)nbl_f16_from_f32(x[2u * i + 1u]) << 16;
        }
#pragma unroll
        for (uint32_t i = 0; i < BLOCK16 / 4u; ++i) {
            if (i < vectors) {
                ((uint4 *)(void *)at)[i] =
                    make_uint4(words[4u * i], words[4u * i + 1u], words[4u * i + 2u], words[4u * i + 3u]);
            }
        }
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        if (first + i < dim) {
            cuda_element_write(at + (int64_t)i * t->stride[axis], t->dtype, x[i]);
        }
    }
}

/** NUM 3.1 on every element. */
CUDA_DEVICE void block16_sanitize(float (&x)[BLOCK16], block16_counts *counts)
{
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        if ((nbl_bits_of(x[i]) & 0x7fffffffu) > nbl_bits_of(NBL_INPUT_MAX)) {
            nbl_quant_stats stats = {0, 0, 0, 0, 0};
            x[i] = nbl_sanitize(x[i], &stats);
            counts->nan_inputs += (uint32_t)stats.nan_inputs;
            counts->inf_inputs += (uint32_t)stats.inf_inputs;
            counts->saturated += (uint32_t)stats.saturated;
        }
    }
}

/* ------------------------------------------------------------------------------------------------ transforms */

/** Butterflies of NUM 4.1; b is the thread's place in its team, n the block or 0. */
CUDA_DEVICE void block16_hadamard(float (&x)[BLOCK16], uint32_t b, uint32_t n)
{
#pragma unroll
    for (uint32_t h = 1; h < BLOCK16; h *= 2u) {
        if (h < n) {
#pragma unroll
            for (uint32_t i = 0; i < BLOCK16; ++i) {
                if ((i & h) == 0) {
                    float low = x[i];
                    float high = x[i + h];
                    x[i] = low + high;
                    x[i + h] = low - high;
                }
            }
        }
    }
    for (uint32_t h = BLOCK16; h < n; h *= 2u) {
        uint32_t distance = h / BLOCK16;
        float sign = (b & distance) != 0 ? -1.0f : 1.0f;
#pragma unroll
        for (uint32_t i = 0; i < BLOCK16; ++i) {
            float other = __shfl_xor_sync(FULL_WARP, x[i], (int)distance);
            x[i] = nbl_fma(x[i], sign, other); /* other + x or other - x: the product is exact */
        }
    }
}

/** Takes the transform back (NUM 4.4). */
CUDA_DEVICE void block16_hadamard_undo(float (&x)[BLOCK16], uint32_t b, uint32_t n)
{
    if (n == 0) {
        return;
    }
    block16_hadamard(x, b, n);
    float inverse = nbl_pow2(-nbl_log2_of(n));
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        x[i] *= inverse;
    }
}

/** x + sign * mu * 2^Emu for sign 1 or -1 (NUM 4.2, 4.4); codes is the whole centre, of dim elements. */
CUDA_DEVICE void block16_center(float (&x)[BLOCK16], const int8_t *codes, uint8_t exponent, uint32_t dim, uint32_t b,
                                float sign)
{
    float unit = sign * nbl_pow2(nbl_e8m0_decode_slot(exponent));
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        uint32_t d = b * BLOCK16 + i;
        if (d < dim) {
            x[i] += (float)codes[d] * unit;
        }
    }
}

/** x * 2^(sign * u), sign 1 or -1 (NUM 4.5, 4.4); shifts are those of the whole vector, of dim elements. */
CUDA_DEVICE void block16_shift(float (&x)[BLOCK16], const uint8_t *shifts, uint32_t dim, uint32_t b, int32_t sign)
{
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        uint32_t d = b * BLOCK16 + i;
        if (d < dim) {
            x[i] *= nbl_pow2(sign * (int32_t)(shifts[d] & NBL_SHIFT_MAX));
        }
    }
}

/** Centre and shifts of one sequence and kv head; NULL where there are none. */
struct block16_centering {
    const int8_t *codes;
    const uint8_t *exponent;
    const uint8_t *shifts;
};

/** Finds them; all NULL without centring, or if the sequence's row is outside, which is reported. */
CUDA_DEVICE block16_centering block16_centering_of(const cuda_centers *centers, uint32_t sequence, uint32_t kv_heads,
                                                   uint32_t head, uint32_t k_dim, cuda_status *status)
{
    block16_centering out = {NULL, NULL, NULL};
    int64_t row = center_row(centers, sequence);
    if (row < 0) {
        cuda_fault_report(status, CUDA_FAULT_CENTER_ROW, sequence, 0,
                          centers->rows != NULL ? centers->rows[sequence] : (int64_t)sequence, centers->row_count);
        return out;
    }
    uint64_t index = (uint64_t)row * kv_heads + head;
    if (centers->codes != NULL) {
        out.codes = centers->codes + index * k_dim;
        out.exponent = centers->exponents + index;
    }
    if (centers->shifts != NULL) {
        out.shifts = centers->shifts + index * k_dim;
    }
    return out;
}

/* ------------------------------------------------------------------------------------------------ quantizers */

/** Largest magnitude as bits, which order like the floats. */
CUDA_DEVICE uint32_t block16_amax_bits(const float (&x)[BLOCK16])
{
    uint32_t most = 0;
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        most = max(most, nbl_bits_of(x[i]) & 0x7fffffffu);
    }
    return most;
}

/** A quantized block: codes as the page holds them. */
struct block16_codes {
    uint8_t code[BLOCK16];
    int32_t exponent;    /**< E of int8 and int4p, e_b of mxfp4, the scale byte of nvfp4 */
    uint32_t multiplier; /**< m_b of int4p, else 1 */
    uint32_t saturated;
};

/** int8 (NUM 3.2) given the amax of the vector. */
CUDA_DEVICE void block16_int8(const float (&x)[BLOCK16], uint32_t vector_amax_bits, block16_codes *out)
{
    out->exponent = nbl_exponent_for(nbl_float_of(vector_amax_bits), (float)NBL_INT8_CODE_MAX, NBL_E_MIN, NBL_E_MAX);
    out->multiplier = 1;
    out->saturated = 0;
    float inverse = nbl_pow2(-out->exponent);
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        uint64_t saturated = 0;
        out->code[i] = (uint8_t)nbl_round_clamped(x[i] * inverse, NBL_INT8_CODE_MAX, &saturated);
        out->saturated += (uint32_t)saturated;
    }
}

/** int4p (NUM 3.5) given the amax of the vector. */
CUDA_DEVICE void block16_int4p(const float (&x)[BLOCK16], uint32_t vector_amax_bits, block16_codes *out)
{
    out->exponent = nbl_exponent_for(nbl_float_of(vector_amax_bits), NBL_INT4P_PEAK, NBL_E_MIN, NBL_E_MAX);
    out->saturated = 0;
    float unit = nbl_pow2(-out->exponent);
    float y[BLOCK16];
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        y[i] = x[i] * unit;
    }
    int32_t m = nbl_int4p_choose_multiplier(y, BLOCK16);
    out->multiplier = (uint32_t)m;
    float inverse = 1.0f / (float)m;
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        uint64_t saturated = 0;
        out->code[i] = (uint8_t)(nbl_round_clamped(y[i] * inverse, NBL_INT4P_CODE_MAX, &saturated) + 8);
        out->saturated += (uint32_t)saturated;
    }
}

/** Error of NUM 3.4 going on from `error`: elements x, block exponent e, OPTIMAL's e0. */
CUDA_DEVICE float block16_mxfp4_error(const float (&x)[BLOCK16], int32_t e, int32_t e0, float error)
{
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        float value = (float)nbl_e2m1_half_units(nbl_e2m1_encode(x[i] * nbl_pow2(-e))) * nbl_pow2(e - e0 - 1);
        float difference = x[i] * nbl_pow2(-e0) - value;
        error = nbl_fma(difference, difference, error);
    }
    return error;
}

/** The MSE rule (NUM 3.4) for blocks of 16, or of 32 held by lanes 2i and 2i+1. e0 is OPTIMAL's exponent. */
CUDA_DEVICE int32_t block16_mse_exponent(const float (&x)[BLOCK16], int32_t e0, bool wide, bool is_second)
{
    int32_t best = 0;
    float best_error = 0.0f;
    for (int32_t step = -1; step <= 1; ++step) {
        int32_t e = nbl_clamp_i32(e0 + step, NBL_BLOCK_E_MIN, NBL_BLOCK_E_MAX);
        float error = block16_mxfp4_error(x, e, e0, 0.0f);
        float first = __shfl_xor_sync(FULL_WARP, error, 1);
        if (wide && is_second) { /* the second lane goes on where the first one ended */
            error = block16_mxfp4_error(x, e, e0, first);
        }
        float second = __shfl_xor_sync(FULL_WARP, error, 1);
        error = wide && !is_second ? second : error;
        if (step == -1 || error < best_error) {
            best = e;
            best_error = error;
        }
    }
    return best;
}

/** Exponent of an mxfp4 block by the rule, before the spread rule (NUM 3.4). wide: blocks of 32, lanes 2i and 2i+1.
 *  All lanes of the warp call it. */
CUDA_DEVICE int32_t block16_mxfp4_exponent(const float (&x)[BLOCK16], uint32_t rule, bool wide, uint32_t b)
{
    uint32_t bits = block16_amax_bits(x);
    uint32_t other = __shfl_xor_sync(FULL_WARP, bits, 1);
    bits = wide ? max(bits, other) : bits;
    float amax = nbl_float_of(bits);
    int32_t optimal = nbl_exponent_for(amax, 7.25f, NBL_BLOCK_E_MIN, NBL_BLOCK_E_MAX);
    if (rule == NBL_RULE_MSE) { /* the same for the whole launch */
        int32_t best = block16_mse_exponent(x, optimal, wide, (b & 1u) != 0);
        return bits == 0 ? NBL_BLOCK_E_MIN : best;
    }
    if (rule == NBL_RULE_FLOOR || rule == NBL_RULE_CEIL) {
        return nbl_mxfp4_block_exponent(&amax, 1, rule);
    }
    return optimal;
}

/** mxfp4 codes (NUM 3.4) for the final exponent of the block. */
CUDA_DEVICE void block16_mxfp4(const float (&x)[BLOCK16], int32_t exponent, block16_codes *out)
{
    out->exponent = exponent;
    out->multiplier = 1;
    out->saturated = 0;
    float inverse = nbl_pow2(-exponent);
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        float scaled = x[i] * inverse;
        out->saturated += fabsf(scaled) > 6.0f;
        out->code[i] = (uint8_t)nbl_e2m1_encode(scaled);
    }
}

/* ------------------------------------------------------------------------------------------------ pages */

/** One head's part of one page, K or V. */
struct block16_part {
    uint32_t format;
    uint32_t dim;
    uint32_t page_tokens;
    uint32_t kind; /**< enum nbl_kind */
    uint8_t *codes;
    uint8_t *scales;
};

/** Page of a slot that is not negative. */
CUDA_DEVICE int64_t page_of_slot(int64_t slot, uint32_t page_tokens)
{
    if (slot <= (int64_t)UINT32_MAX) { /* a short division where it does */
        return (int64_t)((uint32_t)slot / page_tokens);
    }
    return slot / page_tokens;
}

/** Part of a page inside a region, `layer_codes` and `layer_scales` bytes further on. */
CUDA_DEVICE block16_part block16_part_at(const cuda_pages *pages, const cuda_region *region, uint32_t page,
                                         uint32_t kind, uint32_t head, uint32_t dim)
{
    block16_part part;
    uint64_t index = page - region->first_page;
    bool is_k = kind == NBL_KIND_K;
    part.format = is_k ? region->k_format : region->v_format;
    part.dim = dim;
    part.page_tokens = pages->page_tokens;
    part.kind = kind;
    part.codes = region->codes + index * region->code_page_stride +
                 (is_k ? (uint64_t)head * region->k_code_head_bytes
                       : region->v_code_offset + (uint64_t)head * region->v_code_head_bytes);
    part.scales = region->scales + index * region->scale_page_stride +
                  (is_k ? (uint64_t)head * region->k_scale_head_bytes
                        : region->v_scale_offset + (uint64_t)head * region->v_scale_head_bytes);
    return part;
}

CUDA_DEVICE uint64_t block16_code_byte(const block16_part *part, uint32_t token, uint32_t d)
{
    return part->kind == NBL_KIND_K ? nbl_layout_k_code_byte(part->format, part->dim, part->page_tokens, token, d)
                                    : nbl_layout_v_code_byte(part->format, part->dim, part->page_tokens, token, d);
}

CUDA_DEVICE uint32_t block16_code_shift(const block16_part *part, uint32_t d)
{
    return part->kind == NBL_KIND_K ? nbl_layout_k_code_shift(part->format, d)
                                    : nbl_layout_v_code_shift(part->format, d);
}

/** Reads the block of a stored vector: canonical codes; the exponent E of the vector is returned (NUM 2.3 to 2.5). */
CUDA_DEVICE int32_t block16_load(const block16_part *part, uint32_t token, uint32_t b, int8_t (&codes)[BLOCK16])
{
    nbl_vector scales; /* its codes are not used */
    scales.format = part->format;
    scales.dim = part->dim;
    uint32_t planes = nbl_layout_scale_planes(part->format, part->dim);
    for (uint32_t plane = 0; plane < planes; ++plane) {
        scales.scales[plane] = part->scales[nbl_layout_scale_byte(part->page_tokens, plane, token)];
    }
    int32_t exponent = nbl_vector_exponent(&scales);
    uint32_t block = b * BLOCK16 / nbl_layout_block_dim(part->format, part->dim);
    int32_t multiplier = 1;
    if (part->format == NBL_INT4P) {
        multiplier = nbl_int4p_multiplier(scales.scales, block);
    } else if (part->format != NBL_INT8) {
        multiplier = 1 << ((nbl_e8m0_decode_slot(scales.scales[block]) - exponent - 1) & NBL_BLOCK_E_SPREAD);
    }
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        uint32_t d = b * BLOCK16 + i;
        uint32_t byte = part->codes[block16_code_byte(part, token, d)];
        uint32_t nibble = (byte >> block16_code_shift(part, d)) & 15u;
        int32_t code = part->format == NBL_INT8    ? (int32_t)(int8_t)byte
                       : part->format == NBL_INT4P ? (int32_t)nibble - 8
                                                   : nbl_e2m1_half_units(nibble);
        codes[i] = (int8_t)(code * multiplier);
    }
    return exponent;
}

/** Writes the codes of a block into its slot and no byte of another token. Lanes 2i and 2i+1 hold neighbouring
 *  blocks; all lanes call it, and those with `active` false write nothing. */
CUDA_DEVICE void block16_store_codes(const block16_part *part, uint32_t token, uint32_t b,
                                     const uint8_t (&code)[BLOCK16], bool active)
{
    uint32_t first = b * BLOCK16;
    uint32_t words[4]; /* the codes, four to a word */
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        words[i] = (uint32_t)code[4u * i] | (uint32_t)code[4u * i + 1u] << 8 | (uint32_t)code[4u * i + 2u] << 16 |
                   (uint32_t)code[4u * i + 3u] << 24;
    }
    uint32_t other[4];
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        other[i] = __shfl_xor_sync(FULL_WARP, words[i], 1);
    }
    if (!active) {
        return;
    }
    uint8_t *at = part->codes + block16_code_byte(part, token, first);
    if (part->kind == NBL_KIND_K) {
        uint32_t stride = 4u * nbl_layout_group_width(part->page_tokens, token, NBL_LAYOUT_K_GROUP_TOKENS);
        if (nbl_layout_code_bits(part->format) == 8u) {
#pragma unroll
            for (uint32_t i = 0; i < 4u; ++i) {
                *(uint32_t *)(void *)(at + i * stride) = words[i];
            }
        } else {
            *(uint32_t *)(void *)at = words[0] | words[1] << 4;
            *(uint32_t *)(void *)(at + stride) = words[2] | words[3] << 4;
        }
        return;
    }
    uint32_t stride = nbl_layout_group_width(part->page_tokens, token, NBL_LAYOUT_V_GROUP_TOKENS);
    if (nbl_layout_code_bits(part->format) == 8u) {
#pragma unroll
        for (uint32_t i = 0; i < BLOCK16; ++i) {
            at[i * stride] = code[i];
        }
        return;
    }
    /* Elements d and d + 16 share a byte: the first lane of a pair writes eight of them, the second lane the others. */
    bool is_second = (b & 1u) != 0;
#pragma unroll
    for (uint32_t i = 0; i < 8u; ++i) {
        uint32_t word =
            is_second ? (other[2u + i / 4u] | words[2u + i / 4u] << 4) : (words[i / 4u] | other[i / 4u] << 4);
        at[(is_second ? i + 8u : i) * stride] = (uint8_t)(word >> (8u * (i % 4u)));
    }
}

#endif
