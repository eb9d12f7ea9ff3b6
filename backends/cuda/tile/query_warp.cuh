/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file query_warp.cuh
 * @brief Query rows to canonical form (NUM 5.1) by a warp each, for kernels that no prepare goes before. A lane holds
 * E = D / 32 consecutive elements; D is 64, 128 or 256.
 */
#ifndef CUDA_QUERY_WARP_H
#define CUDA_QUERY_WARP_H

#include "../ptx/ptx.cuh"
#include "block16.cuh"

/** Which row, and whether there is one. */
struct query_source {
    uint32_t sequence;
    int32_t kv_len;
    uint32_t token;
    uint32_t head;
    bool is_there;
};

/** A quantized row: the lane's codes as bytes, the first one lowest. */
template <int E> struct warp_query {
    uint32_t words[(E + 3) / 4];
    float scale;
    float offset;
    int32_t bias;
};

/** Butterflies of NUM 4.1 over a row that a warp holds. */
template <int E> PTX_FN void warp_hadamard(float (&x)[E], uint32_t lane, uint32_t n)
{
#pragma unroll
    for (uint32_t h = 1; h < E; h *= 2u) {
        if (h < n) {
#pragma unroll
            for (uint32_t i = 0; i < E; ++i) {
                if ((i & h) == 0) {
                    const float low = x[i], high = x[i + h];
                    x[i] = low + high;
                    x[i + h] = low - high;
                }
            }
        }
    }
#pragma unroll 1
    for (uint32_t h = E; h < n; h *= 2u) {
        const uint32_t distance = h / E;
        const float sign = (lane & distance) != 0 ? -1.0f : 1.0f;
#pragma unroll
        for (uint32_t i = 0; i < E; ++i) {
            const float other = __shfl_xor_sync(FULL_WARP, x[i], (int)distance);
            x[i] = nbl_fma(x[i], sign, other); /* other + x or other - x: the product is exact */
        }
    }
}

/** The lane's elements as they are; zeros if there is no row. */
template <int E>
PTX_FN void query_warp_read(const attend_params &p, const query_source &at, uint32_t lane, float (&x)[E])
{
    const uint8_t *row = p.q.data + (int64_t)at.token * p.q.stride[0] + (int64_t)at.head * p.q.stride[1];
#pragma unroll
    for (uint32_t i = 0; i < E; ++i) {
        x[i] = at.is_there ? cuda_element_read(row + (int64_t)(E * lane + i) * p.q.stride[2], p.q.dtype) : 0.0f;
    }
}

template <int E> PTX_FN uint32_t largest_bits(const float (&x)[E])
{
    uint32_t most = 0;
#pragma unroll
    for (uint32_t i = 0; i < E; ++i) {
        most = max(most, nbl_bits_of(x[i]) & 0x7fffffffu);
    }
    return most;
}

/** NUM 3.1, 4.5, 4.1. */
template <int E>
PTX_FN void query_warp_transform(const attend_params &p, const uint8_t *shifts, uint32_t lane, float (&x)[E])
{
    if (largest_bits(x) > nbl_bits_of(NBL_INPUT_MAX)) {
#pragma unroll
        for (uint32_t i = 0; i < E; ++i) {
            nbl_quant_stats ignored = {0, 0, 0, 0, 0};
            x[i] = nbl_sanitize(x[i], &ignored);
        }
    }
    if (shifts != NULL) {
#pragma unroll
        for (uint32_t i = 0; i < E; ++i) {
            x[i] *= nbl_pow2(-(int32_t)(shifts[E * lane + i] & NBL_SHIFT_MAX));
        }
    }
    warp_hadamard(x, lane, p.k_hadamard);
}

/** q8 (NUM 3.2): x becomes whole codes, the exponent is returned. */
template <int E> PTX_FN int32_t query_warp_q8(float (&x)[E])
{
    const float amax = nbl_float_of(__reduce_max_sync(FULL_WARP, largest_bits(x)));
    const int32_t exponent = nbl_exponent_for(amax, (float)NBL_INT8_CODE_MAX, NBL_E_MIN, NBL_E_MAX);
    const float unit = nbl_pow2(-exponent), most = (float)NBL_INT8_CODE_MAX;
#pragma unroll
    for (uint32_t i = 0; i < E; ++i) { /* beyond the range only with the largest exponent */
        x[i] = nbl_clamp_f32(x[i] * unit, -most, most);
    }
    return exponent;
}

/** q4 (NUM 3.4 and 2.4), likewise; a block of 32 is 32 / E lanes. */
template <int E> PTX_FN int32_t query_warp_q4(float (&x)[E])
{
    uint32_t bits = largest_bits(x);
#pragma unroll
    for (int distance = 1; distance < 32 / E; distance *= 2) {
        bits = max(bits, __shfl_xor_sync(FULL_WARP, bits, distance));
    }
    int32_t e = nbl_exponent_for(nbl_float_of(bits), 7.25f, NBL_BLOCK_E_MIN, NBL_BLOCK_E_MAX);
    e = max(e, __reduce_max_sync(FULL_WARP, e) - NBL_BLOCK_E_SPREAD);
    const int32_t least = __reduce_min_sync(FULL_WARP, e);
    const float unit = nbl_pow2(-e), whole = nbl_pow2(e - least + 1);
#pragma unroll
    for (uint32_t i = 0; i < E; ++i) {
        x[i] = nbl_e2m1_round(nbl_clamp_f32(x[i] * unit, -NBL_E2M1_MAX, NBL_E2M1_MAX)) * whole;
    }
    return least - 1;
}

/** Quantizes the elements of query_warp_read. All lanes call it. */
template <int E>
PTX_FN warp_query<E> query_warp_make(const attend_params &p, const query_source &at, uint32_t lane, float (&x)[E])
{
    block16_centering centering = {NULL, NULL, NULL};
    if (p.centering) {
        centering =
            block16_centering_of(&p.centers, at.sequence, p.kv_heads, at.head / p.group_rows, p.k_dim, p.status);
    }
    query_warp_transform(p, centering.shifts, lane, x);
    const int32_t exponent = p.q_format == NBL_Q4 ? query_warp_q4(x) : query_warp_q8(x);
    warp_query<E> out = {};
    int32_t sum = 0, dot = 0;
#pragma unroll
    for (uint32_t i = 0; i < E; ++i) {
        const int32_t code = (int8_t)nbl_bits_of(x[i] + NBL_MAGIC); /* RNE, the code in the low byte */
        out.words[i / 4u] |= ((uint32_t)code & 0xffu) << (8u * (i % 4u));
        sum += code;
        dot += centering.codes != NULL ? code * centering.codes[E * lane + i] : 0;
    }
    out.bias = -128 * __reduce_add_sync(FULL_WARP, sum);
    out.scale = p.c * nbl_pow2(exponent - nbl_log2_of(p.k_hadamard));
    if (centering.codes != NULL && at.kv_len > 0) { /* NUM 5.7 */
        dot = __reduce_add_sync(FULL_WARP, dot);
        out.offset = (float)dot * nbl_pow2(nbl_e8m0_decode_slot(*centering.exponent)) * out.scale;
    }
    return out;
}

/** Stores the lane's codes of row r where a warp's products take them: codes 8(4s + t)..+7 of k-step s at
 *  q[s][4r + t]. */
template <int E>
PTX_FN void query_warp_store(const warp_query<E> &q, uint32_t row, uint32_t lane, uint2 *to, uint32_t stride)
{
    const uint32_t d = E * lane;
    uint8_t *at = reinterpret_cast<uint8_t *>(&to[d / 32u * stride + 4u * row + d % 32u / 8u]) + d % 8u;
    if (E == 8) {
        *reinterpret_cast<uint2 *>(at) = make_uint2(q.words[0], q.words[(E - 1) / 4]);
    } else if (E == 4) {
        *reinterpret_cast<uint32_t *>(at) = q.words[0];
    } else {
        *reinterpret_cast<uint16_t *>(at) = (uint16_t)q.words[0];
    }
}

#endif
