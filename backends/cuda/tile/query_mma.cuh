/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file query_mma.cuh
 * @brief Query rows of 128 bf16 elements to canonical form (NUM 5.1), eight at a time by a warp, five levels of the
 * rotation on tensor cores (docs/adr/0053).
 *
 * Lane 4v + b has of row v the elements 32p + 8b + i, as they lie in memory, and the same ones of the result. Its 16
 * bytes of block p are an operand of a product with a matrix of +-1: rows of the product are v and bit 1 of the
 * element, sums go over its bits 0, 2, 3 and 4, columns are bits 0, 3 and 4 of the result, and bit 2 has a product
 * each. With that the matrix of all of them is one word of the lane or its negative. Bit 1 is an addition; of the two
 * levels that a rotation of 128 has more one is summed up by two products, and one is additions. So rows go straight
 * from memory to codes, with no exchange between lanes.
 *
 * As in rotate_mma.cuh no sum is rounded if the largest result is below 2^24 of the least element's unit, and a row for
 * which it is not is done by the rule, by the whole warp.
 */
#ifndef CUDA_QUERY_MMA_H
#define CUDA_QUERY_MMA_H

#include "quantize32.cuh"
#include "query_codes.cuh"
#include "rotate_mma.cuh"

#define QUERY_DIM ROTATE_DIM
#define QUERY_ROWS 8u  /* of a warp at a time */
#define QUERY_LANES 4u /* of a row */
#define QUERY_BLOCKS (QUERY_DIM / NBL_LAYOUT_DIM_BLOCK)
#define QUERY_WORDS (QUERY_DIM / QUERY_LANES / 2u) /* of a lane, pairs of bf16 */

/** Channel shifts and centre of a sequence and head as query rows need them, in shared memory. */
struct __align__(16) query_tables
{
    uint32_t factors[QUERY_DIM / 2u]; /**< pairs of bf16, 2^-u */
    uint32_t center[QUERY_DIM / 4u];  /**< codes */
};

/** Fills the tables by all threads of the block; a barrier follows. */
CUDA_DEVICE void query_tables_fill(query_tables &t, const block16_centering &from)
{
    for (uint32_t i = threadIdx.x; i < QUERY_DIM / 4u; i += blockDim.x) {
        uint32_t codes = 0, factors[4] = {0x3f80u, 0x3f80u, 0x3f80u, 0x3f80u};
#pragma unroll
        for (uint32_t j = 0; j < 4u; ++j) {
            if (from.shifts != NULL) {
                factors[j] -= (from.shifts[4u * i + j] & NBL_SHIFT_MAX) << 7;
            }
            if (from.codes != NULL) {
                codes |= (uint32_t)(uint8_t)from.codes[4u * i + j] << (8u * j);
            }
        }
        t.factors[2u * i] = factors[0] | factors[1] << 16;
        t.factors[2u * i + 1u] = factors[2] | factors[3] << 16;
        t.center[i] = codes;
    }
}

/** What is known of a row when its codes are. */
struct query_row {
    int32_t exponent;
    int32_t dot; /**< with the centre's codes */
};

/* ------------------------------------------------------------------------------------------------ by the rule */

/* Largest magnitude of four elements. */
CUDA_DEVICE float query_largest_of(const float (&x)[4])
{
    return fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
}

/* The lane's four q8 codes of a row. */
CUDA_DEVICE uint32_t query_row8(float (&x)[4], query_row &out)
{
    const float most = nbl_float_of(__reduce_max_sync(FULL_WARP, nbl_bits_of(query_largest_of(x))));
    out.exponent = nbl_exponent_for(most, (float)NBL_INT8_CODE_MAX, NBL_E_MIN, NBL_E_MAX);
    const float limit = (float)NBL_INT8_CODE_MAX * nbl_pow2(out.exponent);
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        x[i] = clamp_finite(x[i], limit);
    }
    return query_word8(x, nbl_pow2(-out.exponent));
}

/* The lane's four q4 codes of a row; eight lanes have a block. */
CUDA_DEVICE uint32_t query_row4(const float (&x)[4], query_row &out)
{
    float most = query_largest_of(x);
#pragma unroll 1
    for (int distance = 1; distance < 8; distance *= 2) {
        most = fmaxf(most, __shfl_xor_sync(FULL_WARP, most, distance));
    }
    int32_t e = nbl_mxfp4_block_exponent(&most, 1, NBL_RULE_OPTIMAL);
    e = max(e, __reduce_max_sync(FULL_WARP, e) - NBL_BLOCK_E_SPREAD);
    const int32_t least = __reduce_min_sync(FULL_WARP, e);
    out.exponent = least - 1;
    return query_word4(x, query_block4_of(e, (uint32_t)(e - least)));
}

/** A row as the rule has it, for any input (NUM 3.1), by all lanes of the warp. Returns the lane's word of codes,
 *  number `lane` of the row. */
template <bool Q4, uint32_t N>
CUDA_DEVICE uint32_t query_by_rule(const uint8_t *from, const query_tables &t, query_row &out)
{
    const uint32_t lane = threadIdx.x % WARP_LANES;
    block16_counts ignored = {0, 0, 0};
    float x[4], f[4];
    const uint2 words = ((const uint2 *)(const void *)from)[lane];
    halves_of_word<true>(words.x, &x[0]);
    halves_of_word<true>(words.y, &x[2]);
    halves_of_word<true>(t.factors[2u * lane], &f[0]);
    halves_of_word<true>(t.factors[2u * lane + 1u], &f[2]);
    rotate_sanitize(x, &ignored);
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        x[i] *= f[i];
    }
    rotate_row<N>(x);
    const uint32_t word = Q4 ? query_row4(x, out) : query_row8(x, out);
    out.dot = __reduce_add_sync(FULL_WARP, ptx_dp4a_ss((int32_t)word, (int32_t)t.center[lane], 0));
    return word;
}

/* ------------------------------------------------------------------------------------------------ eight rows */

/** The lane's part of the matrix: elements 8 * (lane % 4) and the next one, result 8 * (lane / 8) + lane / 4 % 2. */
CUDA_DEVICE uint32_t query_matrix(void)
{
    const uint32_t lane = threadIdx.x % WARP_LANES, n = lane / 4u;
    const uint32_t first = (uint32_t)__popc(lane & n >> 1 & 3u) & 1u, second = first ^ (n & 1u);
    return 0x3f803f80u | first << 15 | second << 31;
}

/* Blocks that elements are computed of together, QUERY_BLOCKS / GROUP apart. */
template <uint32_t N> constexpr uint32_t query_group = N == QUERY_DIM ? 2u : 1u;

/* Four results of the lane in blocks `block` and, if N is 128, block + 2: elements 4 * half and on of its eight. */
template <uint32_t N>
CUDA_DEVICE void query_elements(const uint32_t (&w)[QUERY_WORDS], uint32_t matrix, uint32_t block, uint32_t half,
                                float (&x)[4u * query_group<N>])
{
    constexpr uint32_t parts = query_group<N>; /* of a sum, and sums */
#pragma unroll
    for (uint32_t i = 0; i < query_group<N>; ++i) {
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (uint32_t k = 0; k < parts; ++k) {
            const uint32_t *from = &w[4u * (N == QUERY_DIM ? 2u * i + k : block)];
            const uint32_t a[4] = {from[0], from[1], from[2], from[3]};
            const uint32_t m = matrix ^ (N == QUERY_DIM && (k & block) != 0 ? 0x80008000u : 0u);
            ptx_mma_half(sum, a, m, m ^ (half != 0 ? 0x80008000u : 0u), false);
        }
#pragma unroll
        for (uint32_t j = 0; j < 4u; ++j) {
            x[4u * i + j] = sum[j];
        }
    }
    vector32_butterflies<2>(x);
    if constexpr (N == QUERY_DIM) {
        vector32_butterflies<4>(x);
    }
}

/** Rotates: the lane's elements of the result, eight of each block. */
template <uint32_t N>
CUDA_DEVICE void query_rotate(const uint32_t (&w)[QUERY_WORDS], uint32_t matrix, float (&x)[VECTOR32])
{
#pragma unroll
    for (uint32_t first = 0; first < QUERY_BLOCKS / query_group<N>; ++first) {
#pragma unroll
        for (uint32_t half = 0; half < 2u; ++half) {
            float y[4u * query_group<N>];
            query_elements<N>(w, matrix, first, half, y);
#pragma unroll
            for (uint32_t i = 0; i < 4u * query_group<N>; ++i) {
                x[8u * (first + 2u * (i / 4u)) + 4u * half + i % 4u] = y[i];
            }
        }
    }
}

/* Largest magnitudes of the lane's elements by block. */
CUDA_DEVICE void query_largest(const float (&x)[VECTOR32], float (&most)[QUERY_BLOCKS])
{
#pragma unroll
    for (uint32_t p = 0; p < QUERY_BLOCKS; ++p) {
        most[p] = fabsf(x[8u * p]);
#pragma unroll
        for (uint32_t i = 1; i < 8u; ++i) {
            most[p] = ptx_max_nan(most[p], fabsf(x[8u * p + i]));
        }
    }
}

/** The lane's words of a row, pairs of bf16. */
CUDA_DEVICE void query_fetch(const uint8_t *from, uint32_t (&w)[QUERY_WORDS])
{
    const uint4 *at = (const uint4 *)(const void *)from + threadIdx.x % QUERY_LANES;
#pragma unroll
    for (uint32_t p = 0; p < QUERY_BLOCKS; ++p) {
        const uint4 v = at[4u * p];
        w[4u * p] = v.x;
        w[4u * p + 1u] = v.y;
        w[4u * p + 2u] = v.z;
        w[4u * p + 3u] = v.w;
    }
}

/** Shifts them (NUM 4.5). A product is exact, but for elements so small that their codes are 0. */
CUDA_DEVICE void query_shift(const query_tables &t, uint32_t (&w)[QUERY_WORDS])
{
    const uint4 *factors = (const uint4 *)(const void *)t.factors + threadIdx.x % QUERY_LANES;
#pragma unroll
    for (uint32_t p = 0; p < QUERY_BLOCKS; ++p) {
        const uint4 f = factors[4u * p];
        w[4u * p] = scale_bf16x2(w[4u * p], f.x);
        w[4u * p + 1u] = scale_bf16x2(w[4u * p + 1u], f.y);
        w[4u * p + 2u] = scale_bf16x2(w[4u * p + 2u], f.z);
        w[4u * p + 3u] = scale_bf16x2(w[4u * p + 3u], f.w);
    }
}

/** What the largest result of a row has to be below for its sums to be exact and its inputs within X, as bits; in all
 * lanes of the row. */
CUDA_DEVICE uint32_t query_exact_below(const uint32_t (&w)[QUERY_WORDS])
{
    uint32_t least = 0x7f7f7f7fu;
#pragma unroll
    for (uint32_t i = 0; i < QUERY_WORDS; ++i) {
        least = ptx_min_abs_bf16x2(least, w[i]);
    }
    least &= 0x7fff7fffu;
    if (__any_sync(FULL_WARP, min(least & 0xffffu, least >> 16) == 0)) { /* a zero: the least of the others */
        least = 0xffffffffu;
#pragma unroll
        for (uint32_t i = 0; i < QUERY_WORDS; ++i) {
            least = __vminu2(least, __vsub2(w[i] & 0x7fff7fffu, 0x00010001u));
        }
    }
    return min(rotate_limit_of(min(least & 0xffffu, least >> 16)), nbl_bits_of(NBL_INPUT_MAX * 0x1p-8f));
}

/* Exponents of q4 of a row (NUM 3.4, 2.4): that of the least block; how far those of the blocks are above it, a byte
 * each, in `above`. */
CUDA_DEVICE int32_t query_exponents4(const float (&most)[QUERY_BLOCKS], uint32_t *above)
{
    uint32_t e[2];
#pragma unroll
    for (uint32_t i = 0; i < 2u; ++i) { /* the exponent of the largest is the largest exponent */
        const float peak = nbl_mxfp4_peak(NBL_RULE_OPTIMAL);
        e[i] = (uint32_t)(nbl_exponent_for(most[2u * i], peak, NBL_BLOCK_E_MIN, NBL_BLOCK_E_MAX) - NBL_BLOCK_E_MIN) |
               (uint32_t)(nbl_exponent_for(most[2u * i + 1u], peak, NBL_BLOCK_E_MIN, NBL_BLOCK_E_MAX) - NBL_BLOCK_E_MIN)
                   << 16;
        e[i] = __vmaxu2(e[i], __shfl_xor_sync(FULL_WARP, e[i], 1));
        e[i] = __vmaxu2(e[i], __shfl_xor_sync(FULL_WARP, e[i], 2));
    }
    const uint32_t both = __vmaxu2(e[0], e[1]), largest = max(both & 0xffffu, both >> 16);
    const uint32_t low = (largest - min(largest, (uint32_t)NBL_BLOCK_E_SPREAD)) * 0x10001u;
    e[0] = __vmaxu2(e[0], low);
    e[1] = __vmaxu2(e[1], low);
    const uint32_t smaller = __vminu2(e[0], e[1]), least = min(smaller & 0xffffu, smaller >> 16);
    *above = ptx_prmt(e[0] - least * 0x10001u, e[1] - least * 0x10001u, 0x6420u);
    return (int32_t)least + NBL_BLOCK_E_MIN;
}

/** Codes of the lane's elements of a row that is below query_exact_below: words 2 * (lane % 4) and on of each block.
 *  The exponent is returned; most: the row's largest magnitude. */
template <bool Q4>
CUDA_DEVICE int32_t query_quantize(const float (&x)[VECTOR32], float *most, uint32_t (&words)[2u * QUERY_BLOCKS])
{
    float own[QUERY_BLOCKS];
    query_largest(x, own);
    const float lane_most = ptx_max_nan(ptx_max_nan(own[0], own[1]), ptx_max_nan(own[2], own[3]));
    *most = nbl_float_of(team32_max4(nbl_bits_of(lane_most)));
    if (Q4) {
        uint32_t above;
        const int32_t least = query_exponents4(own, &above);
#pragma unroll
        for (uint32_t p = 0; p < QUERY_BLOCKS; ++p) {
            const uint32_t over = above >> (8u * p) & 3u;
            const query_block4 block = query_block4_of(least + (int32_t)over, over);
            words[2u * p] = query_word4(&x[8u * p], block);
            words[2u * p + 1u] = query_word4(&x[8u * p + 4u], block);
        }
        return least - 1;
    }
    const int32_t exponent = nbl_exponent_for(*most, (float)NBL_INT8_CODE_MAX, NBL_E_MIN, NBL_E_MAX);
#pragma unroll
    for (uint32_t i = 0; i < 2u * QUERY_BLOCKS; ++i) {
        words[i] = query_word8(&x[4u * i], nbl_pow2(-exponent));
    }
    return exponent;
}

#endif
