/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file vector32.cuh
 * @brief A vector held by a team of lanes, 32 consecutive elements each: reading, transforms, writing.
 *
 * A team has Dp/32 lanes of one warp, side by side; a warp holds a power of two of teams and may leave lanes idle. With
 * 32 elements in a lane every block of a format (NUM 2) and both halves of a V byte (F4) are in one thread, and only
 * the butterflies from 32 on leave it: n divides D, so n/32 divides the size of the team, and partners are lanes whose
 * numbers differ in one bit. All lanes of a warp take part in every function with a shuffle; idle ones hold zeros.
 */
#ifndef CUDA_VECTOR32_H
#define CUDA_VECTOR32_H

#include "../ptx/ptx.cuh"
#include "block16.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define VECTOR32 NBL_LAYOUT_DIM_BLOCK
#define WARP_LANES 32u
#define GROUP_TOKENS 32u /* tokens that a block works on at a time */

#define SHARED_WITHOUT_ASKING (48u << 10)

/** Blocks of 128 threads that kernels leave out of a multiprocessor on targets whose code needs more registers. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define BLOCKS_FEWER 1u
#else
#define BLOCKS_FEWER 0u
#endif

/** Lets a kernel have that much dynamic shared memory beside what it declares. */
static inline cudaError_t shared_memory_for(const void *kernel, uint32_t bytes, uint32_t declared)
{
    return bytes + declared <= SHARED_WITHOUT_ASKING
               ? cudaSuccess
               : cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

/** A lane's place in the teams of its warp. */
struct team32 {
    uint32_t size;     /**< lanes of a vector */
    uint32_t per_warp; /**< vectors of a warp */
    uint32_t vector;   /**< the lane's; per_warp or more: the lane is idle */
    uint32_t b;        /**< block of 32 in the vector */
};

/** Vectors of a warp: the largest power of two that fits. */
NBL_FN uint32_t team32_per_warp(uint32_t dim)
{
    uint32_t fits = WARP_LANES * VECTOR32 / nbl_layout_dim_padded(dim);
    uint32_t n = 1;
    while (2u * n <= fits) {
        n *= 2u;
    }
    return n;
}

CUDA_DEVICE team32 team32_of(uint32_t dim)
{
    uint32_t lane = threadIdx.x % WARP_LANES;
    uint32_t size = nbl_layout_dim_padded(dim) / VECTOR32;
    return team32{size, team32_per_warp(dim), lane / size, lane % size};
}

/** Largest value of a team, in all its lanes. */
CUDA_DEVICE uint32_t team32_max(const team32 &t, uint32_t value)
{
    if ((t.size & (t.size - 1u)) == 0) {
#pragma unroll 1
        for (uint32_t distance = 1; distance < t.size; distance *= 2u) {
            value = max(value, __shfl_xor_sync(FULL_WARP, value, (int)distance));
        }
        return value;
    }
    uint32_t first = threadIdx.x % WARP_LANES - t.b;
#pragma unroll 1
    for (uint32_t distance = 1; distance < t.size; distance *= 2u) { /* windows may overlap */
        value = max(value, __shfl_sync(FULL_WARP, value, (int)(first + (t.b + distance) % t.size)));
    }
    return value;
}

/** The same for teams of four lanes: without a loop, which costs registers. */
CUDA_DEVICE uint32_t team32_max4(uint32_t value)
{
    value = max(value, __shfl_xor_sync(FULL_WARP, value, 1));
    return max(value, __shfl_xor_sync(FULL_WARP, value, 2));
}

/* ------------------------------------------------------------------------------------------------ tensors */

/** 1 if rows of the tensor's last axis can be read and written 16 bytes at a time. */
NBL_FN bool tensor_is_wide(const cuda_tensor *t)
{
    return t->packed && (((uint64_t)t->data | (uint64_t)t->stride[0] | (uint64_t)t->stride[1]) & 15u) == 0;
}

/** Bytes of a lane's slot for its elements of a row, in shared memory; slots begin in different banks. */
NBL_FN uint32_t slot_bytes(uint32_t dtype)
{
    return VECTOR32 * (dtype == NBL_F32 ? 4u : 2u) + 16u;
}

/* Two bf16 numbers times two powers of two: exact, or infinite. */
CUDA_DEVICE uint32_t scale_bf16x2(uint32_t pair, uint32_t factors)
{
    __nv_bfloat162 x, f;
    memcpy(&x, &pair, sizeof x);
    memcpy(&f, &factors, sizeof f);
    x = __hmul2(x, f);
    memcpy(&pair, &x, sizeof pair);
    return pair;
}

/* Sixteen-bit elements in a word, bf16 or fp16. */
template <bool BF16> CUDA_DEVICE void halves_of_word(uint32_t word, float *x)
{
    __half2 pair;
    memcpy(&pair, &word, sizeof pair);
    float2 wide = __half22float2(pair);
    x[0] = BF16 ? nbl_float_of(word << 16) : wide.x;
    x[1] = BF16 ? nbl_float_of(word & 0xffff0000u) : wide.y;
}

template <bool BF16> CUDA_DEVICE void take_halves(const uint4 *chunk, float *x, uint32_t chunks)
{
#pragma unroll
    for (uint32_t k = 0; k < chunks; ++k) {
        uint4 v = chunk[k];
        halves_of_word<BF16>(v.x, &x[8u * k]);
        halves_of_word<BF16>(v.y, &x[8u * k + 2u]);
        halves_of_word<BF16>(v.z, &x[8u * k + 4u]);
        halves_of_word<BF16>(v.w, &x[8u * k + 6u]);
    }
}

/* Elements of binary32. */
CUDA_DEVICE void take_floats(const uint4 *chunk, float *x, uint32_t chunks)
{
#pragma unroll
    for (uint32_t k = 0; k < chunks; ++k) {
        uint4 v = chunk[k];
        x[4u * k] = nbl_float_of(v.x);
        x[4u * k + 1u] = nbl_float_of(v.y);
        x[4u * k + 2u] = nbl_float_of(v.z);
        x[4u * k + 3u] = nbl_float_of(v.w);
    }
}

/** A lane's elements at an address that is a multiple of 16, in shared memory or not. */
CUDA_DEVICE void vector32_take(const uint8_t *at, uint32_t dtype, float (&x)[VECTOR32])
{
    const uint4 *chunk = (const uint4 *)(const void *)at;
    if (dtype == NBL_F32) {
        take_floats(chunk, x, VECTOR32 / 4u);
    } else if (dtype == NBL_BF16) {
        take_halves<true>(chunk, x, VECTOR32 / 8u);
    } else {
        take_halves<false>(chunk, x, VECTOR32 / 8u);
    }
}

/** The lane's elements of a row of any strides as binary32; those past dim are 0. */
CUDA_DEVICE void vector32_read(const cuda_tensor *t, const uint8_t *row, uint32_t dim, uint32_t b, float (&x)[VECTOR32])
{
    uint32_t first = b * VECTOR32;
    const uint8_t *at = row + (int64_t)first * t->stride[2];
#pragma unroll
    for (uint32_t i = 0; i < VECTOR32; ++i) {
        x[i] = first + i < dim ? cuda_element_read(at + (int64_t)i * t->stride[2], t->dtype) : 0.0f;
    }
}

/** The lane's elements as a row of the type holds them, RNE, into its slot. */
CUDA_DEVICE void vector32_put(uint8_t *slot, uint32_t dtype, const float (&x)[VECTOR32])
{
    uint4 *chunk = (uint4 *)(void *)slot;
    if (dtype == NBL_F32) {
#pragma unroll
        for (uint32_t k = 0; k < VECTOR32 / 4u; ++k) {
            chunk[k] = make_uint4(nbl_bits_of(x[4u * k]), nbl_bits_of(x[4u * k + 1u]), nbl_bits_of(x[4u * k + 2u]),
                                  nbl_bits_of(x[4u * k + 3u]));
        }
        return;
    }
    bool is_bf16 = dtype == NBL_BF16;
#pragma unroll
    for (uint32_t k = 0; k < VECTOR32 / 8u; ++k) {
        uint32_t words[4];
#pragma unroll
        for (uint32_t i = 0; i < 4u; ++i) {
            float low = x[8u * k + 2u * i];
            float high = x[8u * k + 2u * i + 1u];
            words[i] = is_bf16 ? ptx_bf16x2(low, high) : ptx_f16x2(low, high);
        }
        chunk[k] = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

/** The lane's elements below dim to a row of any strides, RNE. */
CUDA_DEVICE void vector32_write(const cuda_tensor *t, uint8_t *row, uint32_t dim, uint32_t b,
                                const float (&x)[VECTOR32])
{
    uint32_t first = b * VECTOR32;
    uint8_t *at = row + (int64_t)first * t->stride[2];
#pragma unroll
    for (uint32_t i = 0; i < VECTOR32; ++i) {
        if (first + i < dim) {
            cuda_element_write(at + (int64_t)i * t->stride[2], t->dtype, x[i]);
        }
    }
}

/** x[i] = change(i, x[i]) for what is rare: a short loop over local memory, that needs neither code nor registers. */
template <typename CHANGE> CUDA_DEVICE void vector32_each(float (&x)[VECTOR32], const CHANGE &change)
{
    float y[VECTOR32];
#pragma unroll
    for (uint32_t i = 0; i < VECTOR32; ++i) {
        y[i] = x[i];
    }
#pragma unroll 1
    for (uint32_t i = 0; i < VECTOR32; ++i) {
        y[i] = change(i, y[i]);
    }
#pragma unroll
    for (uint32_t i = 0; i < VECTOR32; ++i) {
        x[i] = y[i];
    }
}

/** NUM 3.1 on every element. */
CUDA_DEVICE void vector32_sanitize(float (&x)[VECTOR32], block16_counts *counts)
{
    nbl_quant_stats stats = {0, 0, 0, 0, 0};
    vector32_each(x, [&](uint32_t i, float value) {
        (void)i;
        return nbl_sanitize(value, &stats);
    });
    counts->nan_inputs += (uint32_t)stats.nan_inputs;
    counts->inf_inputs += (uint32_t)stats.inf_inputs;
    counts->saturated += (uint32_t)stats.saturated;
}

/* ------------------------------------------------------------------------------------------------ transforms */

/** Butterflies at distance H inside the lane. */
template <uint32_t H, uint32_t COUNT> CUDA_DEVICE void vector32_butterflies(float (&x)[COUNT])
{
#pragma unroll
    for (uint32_t i = 0; i < COUNT; ++i) {
        if ((i & H) == 0) {
            float low = x[i];
            float high = x[i + H];
            x[i] = low + high;
            x[i + H] = low - high;
        }
    }
}

/* The first butterflies of blocks of 8, 16, or 32 and more; the last have a path of their own, being the usual ones. */
CUDA_DEVICE void vector32_hadamard_inside(float (&x)[VECTOR32], uint32_t n)
{
    vector32_butterflies<1>(x);
    vector32_butterflies<2>(x);
    vector32_butterflies<4>(x);
    if (n >= 32u) {
        vector32_butterflies<8>(x);
        vector32_butterflies<16>(x);
    } else if (n == 16u) {
        vector32_butterflies<8>(x);
    }
}

/** Butterflies of NUM 4.1; b is the lane's place in its team, n the block or 0. */
CUDA_DEVICE void vector32_hadamard(float (&x)[VECTOR32], uint32_t b, uint32_t n)
{
    if (n == 0) {
        return;
    }
    vector32_hadamard_inside(x, n);
#pragma unroll 1
    for (uint32_t h = VECTOR32; h < n; h *= 2u) {
        uint32_t distance = h / VECTOR32;
        float sign = (b & distance) != 0 ? -1.0f : 1.0f;
#pragma unroll
        for (uint32_t i = 0; i < VECTOR32; ++i) {
            float other = __shfl_xor_sync(FULL_WARP, x[i], (int)distance);
            x[i] = nbl_fma(x[i], sign, other); /* other + x or other - x */
        }
    }
}

/** Takes the transform back (NUM 4.4). */
CUDA_DEVICE void vector32_hadamard_undo(float (&x)[VECTOR32], uint32_t b, uint32_t n)
{
    if (n == 0) {
        return;
    }
    vector32_hadamard(x, b, n);
    float inverse = nbl_pow2(-nbl_log2_of(n));
#pragma unroll
    for (uint32_t i = 0; i < VECTOR32; ++i) {
        x[i] *= inverse;
    }
}

/* Centre and shifts of one sequence and head as binary32, for all lanes of a block. A team's lanes read 36 floats
 * apart, which are different banks. */
#define CHANNEL_STRIDE (VECTOR32 + 4u)
#define CHANNEL_FLOATS (NBL_DIM_PADDED_MAX / VECTOR32 * CHANNEL_STRIDE)

/** 2^(sign * u) and mu * 2^Emu of every element; 1 and 0 past the dimension. */
struct channel_tables {
    float factor[CHANNEL_FLOATS];
    float center[CHANNEL_FLOATS];
};

/** Entries of a table for block `block` of 16 elements. */
CUDA_DEVICE const float4 *channels16(const float *table, uint32_t block)
{
    return (const float4 *)(const void *)&table[block / 2u * CHANNEL_STRIDE + block % 2u * BLOCK16];
}

/** Fills the tables by all threads of the block. sign: 1 before quantizing, -1 after reading (NUM 4.5, 4.4). */
CUDA_DEVICE void channel_tables_fill(channel_tables *tables, const block16_centering &from, uint32_t dim, int32_t sign)
{
    float unit = from.codes != NULL ? nbl_pow2(nbl_e8m0_decode_slot(*from.exponent)) : 0.0f;
    for (uint32_t d = threadIdx.x; d < nbl_layout_dim_padded(dim); d += blockDim.x) {
        uint32_t at = d / VECTOR32 * CHANNEL_STRIDE + d % VECTOR32;
        bool has_shift = from.shifts != NULL && d < dim;
        tables->factor[at] = has_shift ? nbl_pow2(sign * (int32_t)(from.shifts[d] & NBL_SHIFT_MAX)) : 1.0f;
        tables->center[at] = from.codes != NULL && d < dim ? (float)from.codes[d] * unit : 0.0f;
    }
}

/** x * factor, of the lane's elements. */
CUDA_DEVICE void vector32_scale(float (&x)[VECTOR32], const channel_tables *tables, uint32_t b)
{
    const float4 *factor = (const float4 *)(const void *)&tables->factor[b * CHANNEL_STRIDE];
#pragma unroll
    for (uint32_t i = 0; i < VECTOR32 / 4u; ++i) {
        float4 f = factor[i];
        x[4u * i] *= f.x;
        x[4u * i + 1u] *= f.y;
        x[4u * i + 2u] *= f.z;
        x[4u * i + 3u] *= f.w;
    }
}

/** x + sign * center, of the lane's elements; sign is 1 or -1. */
CUDA_DEVICE void vector32_center(float (&x)[VECTOR32], const channel_tables *tables, uint32_t b, float sign)
{
    const float4 *center = (const float4 *)(const void *)&tables->center[b * CHANNEL_STRIDE];
#pragma unroll
    for (uint32_t i = 0; i < VECTOR32 / 4u; ++i) {
        float4 c = center[i];
        x[4u * i] = nbl_fma(c.x, sign, x[4u * i]);
        x[4u * i + 1u] = nbl_fma(c.y, sign, x[4u * i + 1u]);
        x[4u * i + 2u] = nbl_fma(c.z, sign, x[4u * i + 2u]);
        x[4u * i + 3u] = nbl_fma(c.w, sign, x[4u * i + 3u]);
    }
}

/* Eight bytes of a sequence's shifts or centre, from element d on, and zeros past the dimension, a multiple of 8. */
CUDA_DEVICE uint2 channels8(const uint8_t *from, uint32_t dim, uint32_t d)
{
    uint2 out = make_uint2(0, 0);
    if (d < dim && ((uint64_t)from & 7u) == 0) {
        return *(const uint2 *)(const void *)(from + d);
    }
#pragma unroll 1
    for (uint32_t j = 0; d < dim && j < 4u; ++j) {
        out.x |= (uint32_t)from[d + j] << (8u * j);
        out.y |= (uint32_t)from[d + 4u + j] << (8u * j);
    }
    return out;
}

/** x * 2^(sign * u) straight from the shifts of a sequence, where a block has more than one. */
CUDA_DEVICE void vector32_scale_from(float (&x)[VECTOR32], const uint8_t *shifts, uint32_t dim, uint32_t b,
                                     int32_t sign)
{
#pragma unroll
    for (uint32_t g = 0; g < VECTOR32 / 8u; ++g) {
        uint2 u = channels8(shifts, dim, b * VECTOR32 + 8u * g);
#pragma unroll
        for (uint32_t j = 0; j < 8u; ++j) {
            x[8u * g + j] *= nbl_pow2(sign * (int32_t)((j < 4u ? u.x : u.y) >> (8u * (j % 4u)) & NBL_SHIFT_MAX));
        }
    }
}

/** x + sign * mu * 2^Emu straight from the centre of a sequence. */
CUDA_DEVICE void vector32_center_from(float (&x)[VECTOR32], const int8_t *codes, uint8_t exponent, uint32_t dim,
                                      uint32_t b, float sign)
{
    float unit = sign * nbl_pow2(nbl_e8m0_decode_slot(exponent));
#pragma unroll
    for (uint32_t g = 0; g < VECTOR32 / 8u; ++g) {
        uint2 mu = channels8((const uint8_t *)codes, dim, b * VECTOR32 + 8u * g);
#pragma unroll
        for (uint32_t j = 0; j < 8u; ++j) {
            float code = (float)(int8_t)((j < 4u ? mu.x : mu.y) >> (8u * (j % 4u)));
            x[8u * g + j] = nbl_fma(code, unit, x[8u * g + j]); /* the product is exact */
        }
    }
}

/* ------------------------------------------------------------------------------------------------ halves
 *
 * The butterflies from 32 on with half the exchange. A lane keeps one half of its elements and sends the other to its
 * partner, so that it then has both members of 16 pairs; the butterfly at h = 32 * 2^s makes the halves of the next
 * exchange. In the end a lane has two blocks of 16, some way apart. Which half of a lane is sent depends on the lane,
 * but no instruction picks it: odd lanes take their halves in swapped order from the start, and a butterfly leaves the
 * half to keep first, for (a, b) -> a * sign + b and b - a * sign are the same two numbers in either order, up to a
 * sign. Signs are settled where the elements are multiplied with something anyway. */

/** How the butterflies of a lane go. */
struct halves32 {
    uint32_t steps;   /**< exchanges: log2(n / 32), 0 if there is none */
    uint32_t negates; /**< bit 0: at h = 16; bit 1 + s: after exchange s; a set bit stands for -1 */
    uint32_t swaps;   /**< 1: the lane's halves are taken in swapped order */
    float sign[2];    /**< in the end, of the halves */
};

CUDA_DEVICE halves32 halves32_of(uint32_t b, uint32_t n)
{
    halves32 h;
    uint32_t kept = 0, sent = 0; /* sign bits */
    h.steps = n <= VECTOR32 ? 0u : (uint32_t)nbl_log2_of(n / VECTOR32);
    h.swaps = h.steps > 0 ? b & 1u : 0u;
    h.negates = h.swaps;
#pragma unroll 1
    for (uint32_t s = 0; s < h.steps; ++s) {
        uint32_t received = __shfl_xor_sync(FULL_WARP, sent, 1 << s);
        uint32_t is_upper = b >> s & 1u;
        uint32_t keeps_difference = s + 1u < h.steps ? b >> (s + 1u) & 1u : 0u;
        uint32_t sum = received;
        uint32_t difference = received ^ is_upper ^ 1u; /* received - kept, of the lower lane the negative */
        h.negates |= (kept ^ received ^ keeps_difference) << (1u + s);
        kept = keeps_difference ? difference : sum;
        sent = keeps_difference ? sum : difference;
    }
    h.sign[0] = kept ? -1.0f : 1.0f;
    h.sign[1] = sent ? -1.0f : 1.0f;
    return h;
}

/** Block of 16 that the lane's first half is in the end; the second half is 2^steps further. */
CUDA_DEVICE uint32_t halves32_first(const halves32 &h, uint32_t b)
{
    uint32_t low = b & ((1u << h.steps) - 1u);
    return ((b >> h.steps) << (h.steps + 1u)) + low;
}

/** Block of 32 that the lane holds once it has traded blocks of 16 with its neighbour (halves32_regroup). */
CUDA_DEVICE uint32_t halves32_place(const halves32 &h, uint32_t b)
{
    uint32_t first = halves32_first(h, b);
    return h.swaps ? (first - 1u + (1u << h.steps)) / 2u : first / 2u;
}

/* 1 or -1 by a bit. */
CUDA_DEVICE float sign_of(uint32_t bits, uint32_t place)
{
    return nbl_float_of(0x3f800000u | (bits >> place & 1u) << 31);
}

/* Half a lane of any type, times its factors, if it has any. */
CUDA_DEVICE void take_any(const uint4 *from, uint32_t dtype, bool has_factors, const float *factors, float *x)
{
    if (dtype == NBL_F32) {
        take_floats(from, x, BLOCK16 / 4u);
    } else if (dtype == NBL_BF16) {
        take_halves<true>(from, x, BLOCK16 / 8u);
    } else {
        take_halves<false>(from, x, BLOCK16 / 8u);
    }
#pragma unroll
    for (uint32_t i = 0; has_factors && i < BLOCK16; ++i) {
        x[i] *= factors[i];
    }
}

/** The lane's elements out of its slot, halves in the lane's order, shifted if there are tables. */
CUDA_DEVICE void halves32_take(const uint8_t *slot, uint32_t dtype, const halves32 &h, bool has_tables,
                               const channel_tables *tables, uint32_t b, float (&x)[VECTOR32])
{
    uint32_t half_bytes = dtype != NBL_F32 ? 2u * BLOCK16 : 4u * BLOCK16;
#pragma unroll
    for (uint32_t i = 0; i < 2u; ++i) {
        uint32_t half = i ^ h.swaps;
        const uint4 *from = (const uint4 *)(const void *)(slot + half * half_bytes);
        take_any(from, dtype, has_tables, &tables->factor[b * CHANNEL_STRIDE + half * BLOCK16], &x[BLOCK16 * i]);
    }
}

/** The shifts of elements taken without: from the tables, if there are any. */
CUDA_DEVICE void halves32_scale(float (&x)[VECTOR32], const halves32 &h, bool has_tables, const channel_tables *tables,
                                uint32_t b)
{
    if (!has_tables) {
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < VECTOR32; ++i) {
        x[i] *= tables->factor[b * CHANNEL_STRIDE + (i ^ h.swaps * BLOCK16)];
    }
}

/** Straight from the shifts of a sequence. */
CUDA_DEVICE void halves32_scale_from(float (&x)[VECTOR32], const halves32 &h, const uint8_t *shifts, uint32_t dim,
                                     uint32_t b)
{
    vector32_each(x, [&](uint32_t i, float value) {
        uint32_t d = b * VECTOR32 + (i ^ h.swaps * BLOCK16);
        return d < dim ? value * nbl_pow2((int32_t)(shifts[d] & NBL_SHIFT_MAX)) : value;
    });
}

/** The centre straight from that of a sequence; see halves32_center. */
CUDA_DEVICE void halves32_center_from(float (&x)[VECTOR32], const halves32 &h, const int8_t *codes, uint8_t exponent,
                                      uint32_t dim, uint32_t b)
{
    float unit = nbl_pow2(nbl_e8m0_decode_slot(exponent));
    vector32_each(x, [&](uint32_t i, float value) {
        bool is_second = i >= BLOCK16;
        uint32_t d = (halves32_first(h, b) + (is_second ? 1u << h.steps : 0u)) * BLOCK16 + i % BLOCK16;
        return nbl_fma(value, is_second ? h.sign[1] : h.sign[0], -(d < dim ? (float)codes[d] * unit : 0.0f));
    });
}

/** Takes the centre off elements after the butterflies; their signs are those of the vector then. */
CUDA_DEVICE void halves32_center(float (&x)[VECTOR32], const halves32 &h, const channel_tables *tables, uint32_t b)
{
#pragma unroll
    for (uint32_t half = 0; half < 2u; ++half) {
        uint32_t block = halves32_first(h, b) + (half << h.steps);
        const float4 *center = channels16(tables->center, block);
#pragma unroll
        for (uint32_t i = 0; i < BLOCK16 / 4u; ++i) {
            float4 c = center[i];
            float *at = &x[BLOCK16 * half + 4u * i];
            at[0] = nbl_fma(at[0], h.sign[half], -c.x);
            at[1] = nbl_fma(at[1], h.sign[half], -c.y);
            at[2] = nbl_fma(at[2], h.sign[half], -c.z);
            at[3] = nbl_fma(at[3], h.sign[half], -c.w);
        }
    }
}

/* The butterfly at h = 16, halves taken in the lane's order. */
CUDA_DEVICE void halves32_cross(float (&x)[VECTOR32], const halves32 &h)
{
    float sign = sign_of(h.negates, 0);
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        float first = x[i];
        x[i] = nbl_fma(first, sign, x[BLOCK16 + i]);
        x[BLOCK16 + i] = nbl_fma(x[BLOCK16 + i], -sign, first);
    }
}

/* The one at h = 32 * 2^s. */
CUDA_DEVICE void halves32_exchange(float (&x)[VECTOR32], const halves32 &h, uint32_t s)
{
    float sign = sign_of(h.negates, 1u + s);
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        float kept = x[i];
        float received = __shfl_xor_sync(FULL_WARP, x[BLOCK16 + i], 1 << s);
        x[i] = nbl_fma(kept, sign, received);
        x[BLOCK16 + i] = nbl_fma(kept, -sign, received);
    }
}

/** Butterflies of NUM 4.1 on elements taken with h.swaps. All lanes of the warp call it. */
CUDA_DEVICE void halves32_hadamard(float (&x)[VECTOR32], const halves32 &h, uint32_t n)
{
    if (n == 0) {
        return;
    }
    vector32_butterflies<1>(x);
    vector32_butterflies<2>(x);
    vector32_butterflies<4>(x);
    if (n >= 16u) {
        vector32_butterflies<8>(x);
    }
    if (n >= 32u) {
        halves32_cross(x, h);
    }
#pragma unroll 1
    for (uint32_t s = 0; s < h.steps; ++s) {
        halves32_exchange(x, h, s);
    }
}

#endif
