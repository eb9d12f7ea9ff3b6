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
    uint32_t kv_head;
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

/** A row as it was read: nothing here waits for anything else, so that all of it is on its way at once. */
template <int E> struct query_raw {
    static constexpr int words = (E + 3) / 4;
    uint32_t bits[E];       /**< the lane's elements: a word each (f32), or two to a word */
    uint32_t shifts[words]; /**< of channels (NUM 4.5), a byte each; 0 without */
    uint32_t center[words]; /**< codes of the centre (NUM 4.2); 0 without */
    uint8_t exponent;       /**< of the centre */
};

/** The lane's E bytes of a row of bytes. */
template <int E> PTX_FN void read_lane_bytes(const void *row, uint32_t lane, uint32_t (&words)[(E + 3) / 4])
{
    const uint8_t *at = (const uint8_t *)row + E * lane;
    if ((uint64_t)row % E != 0) {
        uint64_t bytes = 0;
#pragma unroll 1
        for (uint32_t i = 0; i < E; ++i) { /* a loop: else its waiting would be merged into the usual path */
            bytes |= (uint64_t)at[i] << (8u * i);
        }
        words[0] = (uint32_t)bytes, words[(E - 1) / 4] = (uint32_t)(bytes >> (E == 8 ? 32 : 0));
    } else if (E == 8) {
        const uint2 two = *(const uint2 *)(const void *)at;
        words[0] = two.x, words[(E - 1) / 4] = two.y;
    } else {
        words[0] = E == 4 ? *(const uint32_t *)(const void *)at : *(const uint16_t *)(const void *)at;
    }
}

/** The lane's elements as they are stored, 16 bits each: E / 2 words. */
template <int E> PTX_FN void read_lane_halves(const uint8_t *row, int64_t stride, uint32_t lane, uint32_t (&bits)[E])
{
    if (stride == 2 && (uint64_t)row % (2u * E) == 0) {
        const uint32_t *at = (const uint32_t *)(const void *)row + E / 2u * lane;
        if (E == 8) {
            const uint4 four = *(const uint4 *)(const void *)at;
            bits[0] = four.x, bits[1] = four.y, bits[2 % E] = four.z, bits[3 % E] = four.w;
        } else if (E == 4) {
            const uint2 two = *(const uint2 *)(const void *)at;
            bits[0] = two.x, bits[1] = two.y;
        } else {
            bits[0] = *at;
        }
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < E; ++i) {
        const uint32_t half = *(const uint16_t *)(const void *)(row + (int64_t)(E * lane + i) * stride);
        bits[i / 2u] |= half << (16u * (i % 2u));
    }
}

/** Asks for the elements of a row; zeros if there is no row. Of `at` only token and head are read. */
template <int E> PTX_FN query_raw<E> query_warp_read(const attend_params &p, const query_source &at, uint32_t lane)
{
    query_raw<E> raw = {};
    const uint8_t *row = p.q.data + (int64_t)at.token * p.q.stride[0] + (int64_t)at.head * p.q.stride[1];
    if (at.is_there && p.q.dtype != NBL_F32) {
        read_lane_halves<E>(row, p.q.stride[2], lane, raw.bits);
    } else if (at.is_there) {
#pragma unroll
        for (uint32_t i = 0; i < E; ++i) {
            raw.bits[i] = *(const uint32_t *)(const void *)(row + (int64_t)(E * lane + i) * p.q.stride[2]);
        }
    }
    return raw;
}

/** Asks for row `center` of the centres, unless that is negative. */
template <int E>
PTX_FN void query_warp_read_center(const attend_params &p, const query_source &at, int64_t center, uint32_t lane,
                                   query_raw<E> &raw)
{
    const uint64_t index = (uint64_t)center * p.kv_heads + at.kv_head;
    if (center >= 0 && p.centers.shifts != NULL) {
        read_lane_bytes<E>(p.centers.shifts + index * p.k_dim, lane, raw.shifts);
    }
    if (center >= 0 && p.centers.codes != NULL) {
        read_lane_bytes<E>(p.centers.codes + index * p.k_dim, lane, raw.center);
        raw.exponent = p.centers.exponents[index];
    }
}

/** The lane's elements in binary32. */
template <int E> PTX_FN void query_warp_take(const query_raw<E> &raw, uint32_t dtype, float (&x)[E])
{
    if (dtype == NBL_F32) {
#pragma unroll
        for (uint32_t i = 0; i < E; ++i) {
            x[i] = nbl_float_of(raw.bits[i]);
        }
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < E; i += 2u) {
        x[i] = ptx_half_low(raw.bits[i / 2u], dtype == NBL_F16);
        x[i + 1u] = ptx_half_high(raw.bits[i / 2u], dtype == NBL_F16);
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
PTX_FN void query_warp_transform(const attend_params &p, const query_raw<E> &raw, uint32_t lane, float (&x)[E])
{
    if (largest_bits(x) > nbl_bits_of(NBL_INPUT_MAX)) {
#pragma unroll
        for (uint32_t i = 0; i < E; ++i) {
            nbl_quant_stats ignored = {0, 0, 0, 0, 0};
            x[i] = nbl_sanitize(x[i], &ignored);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < E; ++i) {
        const uint32_t shift = raw.shifts[i / 4u] >> (8u * (i % 4u)) & NBL_SHIFT_MAX;
        x[i] *= nbl_float_of((127u - shift) << 23); /* 2^-shift */
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

/** Quantizes what query_warp_read has read. All lanes call it. */
template <int E>
PTX_FN warp_query<E> query_warp_make(const attend_params &p, const query_source &at, const query_raw<E> &raw,
                                     uint32_t lane)
{
    float x[E];
    query_warp_take(raw, p.q.dtype, x);
    query_warp_transform(p, raw, lane, x);
    const int32_t exponent = p.q_format == NBL_Q4 ? query_warp_q4(x) : query_warp_q8(x);
    warp_query<E> out = {};
#pragma unroll
    for (uint32_t i = 0; i < E; ++i) { /* RNE, the code in the low byte */
        out.words[i / 4u] |= (nbl_bits_of(x[i] + NBL_MAGIC) & 0xffu) << (8u * (i % 4u));
    }
    int32_t sum = 0, dot = 0;
#pragma unroll
    for (int i = 0; i < query_raw<E>::words; ++i) {
        sum = ptx_dp4a_ss((int32_t)out.words[i], 0x01010101, sum);
        dot = ptx_dp4a_ss((int32_t)out.words[i], (int32_t)raw.center[i], dot);
    }
    out.bias = -128 * __reduce_add_sync(FULL_WARP, sum);
    out.scale = p.c * nbl_pow2(exponent - nbl_log2_of(p.k_hadamard));
    if (p.centers.codes != NULL && at.kv_len > 0) { /* NUM 5.7 */
        dot = __reduce_add_sync(FULL_WARP, dot);
        out.offset = (float)dot * nbl_pow2(nbl_e8m0_decode_slot(raw.exponent)) * out.scale;
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
