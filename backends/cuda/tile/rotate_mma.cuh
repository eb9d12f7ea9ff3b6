/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file rotate_mma.cuh
 * @brief Shifts, rotation and centring (NUM 4.5, 4.1, 4.2) of eight bf16 vectors of 128 elements by a warp, the first
 * five levels on tensor cores (docs/adr/0046).
 *
 * All sums of a rotation are at most the largest number that comes out, since a = ((a + b) + (a - b)) / 2. Elements are
 * multiples of some power of two, 2^-7 of the least one's at least, so if the largest result is below 2^24 of that, no
 * sum of any level is rounded, by the rule or by a tensor core (NUM 6.2), and their order is of no consequence. About
 * one vector of normal numbers in thirty does not pass; such a vector, and one with inputs beyond X (NUM 3.1), is done
 * again by the warp as the rule has it, four elements a lane.
 *
 * The results go through shared memory, the stage, to lanes with 32 consecutive elements (vector32.cuh).
 */
#ifndef CUDA_ROTATE_MMA_H
#define CUDA_ROTATE_MMA_H

#include "vector32.cuh"

#define ROTATE_DIM 128u
#define ROTATE_TOKENS 8u                             /* of a warp */
#define ROTATE_INPUT_BYTES (2u * ROTATE_DIM)         /* of a row of input */
#define ROTATE_STAGE_BYTES (4u * ROTATE_DIM + 64u)   /* of a row of results */
#define ROTATE_FRAGMENTS 16u                         /* words of a lane's operands */
#define ROTATE_FACTOR_STRIDE (ROTATE_FRAGMENTS + 4u) /* of a lane's factors: likewise */

/* Bits that sums have when the largest result has ROTATE_BITS of the least element's unit. Before sm_90 a product of 16
 * terms is two steps of 8 (NUM 6.2), so that sums of 24 elements occur, up to twice the largest result. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define ROTATE_BITS 23u
#else
#define ROTATE_BITS 24u
#endif
#define ROTATE_SLACK 64u /* 2^-18 of a limit, in its bits: more than the results can be off if sums were rounded */

/** Byte of chunk c, of 16 bytes, in row t of the input: chunks of eight rows are in different banks, and those of a row
 *  are in whole lines. */
CUDA_DEVICE uint32_t rotate_input_byte(uint32_t t, uint32_t c)
{
    return t * ROTATE_INPUT_BYTES + 16u * (c ^ (t % 8u));
}

/** Shifts and centre of a sequence and head, in shared memory. */
struct __align__(16) rotate_tables
{
    float center[ROTATE_DIM];
    uint32_t factors[4][ROTATE_FACTOR_STRIDE]; /**< pairs of bf16, in the order of a lane's operands */
    float center_most;                         /**< no magnitude in center is larger; infinite if X may be exceeded */
};

/* Word of a lane's operands that elements 2 * pair and 2 * pair + 1 are in: word of the lane with b = pair % 4. */
CUDA_DEVICE uint32_t rotate_word(uint32_t pair)
{
    uint32_t block = pair / 16u, step = pair / 8u % 2u, upper = pair / 4u % 2u;
    return block / 2u * 8u + step * 4u + upper * 2u + block % 2u;
}

/** Fills the tables by all threads of the block. most_exponent: of a centre for which X cannot be exceeded. */
CUDA_DEVICE void rotate_tables_fill(rotate_tables *tables, const block16_centering &from, int32_t most_exponent)
{
    int32_t exponent = from.codes != NULL ? nbl_e8m0_decode_slot(*from.exponent) : 0;
    float unit = from.codes != NULL ? nbl_pow2(exponent) : 0.0f;
    for (uint32_t pair = threadIdx.x; pair < ROTATE_DIM / 2u; pair += blockDim.x) {
        uint32_t factors = 0;
#pragma unroll
        for (uint32_t i = 0; i < 2u; ++i) {
            uint32_t d = 2u * pair + i;
            float factor = from.shifts != NULL ? nbl_pow2((int32_t)(from.shifts[d] & NBL_SHIFT_MAX)) : 1.0f;
            factors |= nbl_bits_of(factor) >> 16 << (16u * i);
            tables->center[d] = from.codes != NULL ? (float)from.codes[d] * unit : 0.0f;
        }
        tables->factors[pair % 4u][rotate_word(pair)] = factors;
    }
    if (threadIdx.x == 0) {
        tables->center_most = from.codes != NULL && exponent > most_exponent ? INFINITY : 128.0f * unit;
    }
}

/** The lane's part of the matrix of the rotation, rows 2 * (lane % 4) and the next one, of tile 0: a pair of +-1.
 *  Column n of tile j is result 4 * (n / 2) + 2j + n % 2 of 16, so that a lane gets four in a row. */
CUDA_DEVICE uint32_t rotate_matrix_of(void)
{
    uint32_t lane = threadIdx.x % WARP_LANES, n = lane / 4u, result = n / 2u * 4u + n % 2u, row = lane % 4u * 2u;
    uint32_t first = (uint32_t)__popc(row & result) & 1u, second = (uint32_t)__popc((row + 1u) & result) & 1u;
    return 0x3f803f80u | first << 15 | second << 31;
}

/** What a lane needs for rotate. */
struct rotate_lane {
    uint32_t matrix; /**< see rotate_matrix_of */
    uint32_t row;    /**< shared address of its first row of operands in slot 0 of the input */
};

/** slots: input of the warp. */
CUDA_DEVICE rotate_lane rotate_lane_of(const uint8_t *slots)
{
    uint32_t lane = threadIdx.x % WARP_LANES;
    rotate_lane out;
    out.matrix = ptx_settle(rotate_matrix_of());
    /* chunks of the four matrices of an operand: both blocks, then eight elements further */
    out.row = ptx_settle(ptx_shared_address(slots) + rotate_input_byte(lane % 8u, lane / 8u % 2u * 4u + lane / 16u));
    return out;
}

/* Levels 1 to 16 of a pair of blocks of 32, numbers 2 * `pair` and the one after. x: see rotate. Returns the least
 * magnitudes so far. */
template <bool IS_K>
CUDA_DEVICE uint32_t rotate_blocks(uint32_t input, uint32_t matrix, const team32 &team, const uint32_t *factors,
                                   uint32_t pair, uint32_t least, float (&x)[VECTOR32])
{
    float sum[2][2][4] = {};                                    /* half, tile */
    uint32_t upper = matrix ^ (team.vector & 4u) * 0x20002000u; /* eight rows further: bit 3 of the result */
    uint32_t odd = (team.b & 1u) * 0x80008000u;                 /* tile 1: bit 1 of the row */
#pragma unroll
    for (uint32_t step = 0; step < 2u; ++step) {
        uint32_t a[4];
        ptx_ldmatrix_x4(a, (input ^ step * 32u) + pair * 128u);
        if (IS_K) {
            uint4 f = *(const uint4 *)(const void *)&factors[8u * pair + 4u * step];
            a[0] = scale_bf16x2(a[0], f.x);
            a[1] = scale_bf16x2(a[1], f.y);
            a[2] = scale_bf16x2(a[2], f.z);
            a[3] = scale_bf16x2(a[3], f.w);
        }
#pragma unroll
        for (uint32_t i = 0; i < 4u; ++i) {
            least = ptx_min_abs_bf16x2(least, a[i]);
        }
#pragma unroll
        for (uint32_t i = 0; i < 4u; ++i) { /* the second half takes the second step negated */
            uint32_t flip = (i / 2u * step != 0 ? 0x80008000u : 0u) ^ (i % 2u != 0 ? odd : 0u);
            ptx_mma_half(sum[i / 2u][i % 2u], a, matrix ^ flip, upper ^ flip, false);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < 16u; ++i) { /* block, half, element */
        uint32_t block = i / 8u, half = i / 4u % 2u;
        x[pair * 16u + i] = sum[half][i / 2u % 2u][2u * block + i % 2u];
    }
    return least;
}

/** Rotates with blocks of N = 32 or 128 the eight vectors whose rows lie `slot` bytes further in the input; IS_K:
 *  shifts and centres them. Lane 4t + b gets of vector t the elements 16g + 4b + j, as x[4g + j]. Returns the least
 *  magnitudes of the lane's inputs, a pair of bf16. */
template <uint32_t N, bool IS_K>
CUDA_DEVICE uint32_t rotate(uint32_t slot, const rotate_lane &lane, const team32 &team, const rotate_tables *tables,
                            float (&x)[VECTOR32])
{
    const uint32_t *factors = IS_K ? tables->factors[team.b] : NULL;
    uint32_t least = 0x7f7f7f7fu;
    least = rotate_blocks<IS_K>(lane.row + slot, lane.matrix, team, factors, 0, least, x);
    __syncwarp();
    least = rotate_blocks<IS_K>(lane.row + slot, lane.matrix, team, factors, 1, least, x);
    if (N == ROTATE_DIM) {
        vector32_butterflies<8>(x);
        vector32_butterflies<16>(x);
    }
    if (IS_K) {
#pragma unroll
        for (uint32_t g = 0; g < 8u; ++g) {
            float4 c = ((const float4 *)(const void *)tables->center)[4u * g + team.b];
            x[4u * g] -= c.x;
            x[4u * g + 1u] -= c.y;
            x[4u * g + 2u] -= c.z;
            x[4u * g + 3u] -= c.w;
        }
    }
    return least;
}

/* ------------------------------------------------------------------------------------------------ the stage */

/* Chunk c of four elements of row t. The lanes that read or write at the same time meet different banks. */
CUDA_DEVICE uint32_t stage_place(uint32_t t, uint32_t c)
{
    return t * ROTATE_STAGE_BYTES + 16u * (c + c / 8u);
}

/** What rotate gave to the lane, into the stage. */
CUDA_DEVICE void stage_rotated(uint8_t *stage, const float (&x)[VECTOR32])
{
    uint32_t lane = threadIdx.x % WARP_LANES;
    uint8_t *to = stage + stage_place(lane / 4u, lane % 4u);
#pragma unroll
    for (uint32_t g = 0; g < 8u; ++g) {
        *(float4 *)(void *)(to + stage_place(0, 4u * g)) =
            make_float4(x[4u * g], x[4u * g + 1u], x[4u * g + 2u], x[4u * g + 3u]);
    }
}

/** The lane's elements back, as rotate gives them: in pairs, which is how registers hold them. */
CUDA_DEVICE void unstage_as_rotated(const uint8_t *stage, float (&x)[VECTOR32])
{
    uint32_t lane = threadIdx.x % WARP_LANES;
    uint32_t at = ptx_shared_address(stage) + stage_place(lane / 4u, lane % 4u);
#pragma unroll
    for (uint32_t i = 0; i < VECTOR32 / 2u; ++i) {
        ptx_load_shared_pair(at + stage_place(0, 4u * (i / 2u)) + i % 2u * 8u, x[2u * i], x[2u * i + 1u]);
    }
}

/** Where the lane's block of 32 elements is in the stage: block lane % 4 of vector lane / 4. */
CUDA_DEVICE const float *staged_elements(const uint8_t *stage)
{
    uint32_t lane = threadIdx.x % WARP_LANES;
    return (const float *)(const void *)(stage + stage_place(lane / 4u, 8u * (lane % 4u)));
}

/* ------------------------------------------------------------------------------------------------ exactness */

/* Least magnitude of the lane's block of 32 that is not zero, as bits of bf16, less one; before shifts, which make none
 * smaller. Rare: some element is zero. */
CUDA_DEVICE uint32_t least_nonzero(const uint8_t *input)
{
    uint32_t lane = threadIdx.x % WARP_LANES, least = 0xffffu;
    const uint16_t *from = (const uint16_t *)(const void *)(input + lane / 4u * ROTATE_INPUT_BYTES) + lane % 4u * 32u;
#pragma unroll 1
    for (uint32_t i = 0; i < VECTOR32; ++i) {
        least = min(least, ((uint32_t)from[i] & 0x7fffu) - 1u & 0xffffu);
    }
    return least;
}

/** What the largest result of the lane's vector has to be below for the sums to be exact, as bits of a binary32 number;
 *  least: of the lane's magnitudes that are not zero, as bits of bf16, or less. All lanes call it. */
CUDA_DEVICE uint32_t rotate_limit_of(uint32_t least)
{
    least = team32_max4(~least);                         /* of the magnitudes the least */
    uint32_t exponent = min(max(~least >> 7, 1u), 230u); /* that of X is less */
    return ((exponent + ROTATE_BITS - 7u) << 23) - ROTATE_SLACK;
}

/** The same; least: what rotate gave. */
CUDA_DEVICE uint32_t rotate_limit(const uint8_t *input, uint32_t least)
{
    least = min(least & 0xffffu, least >> 16);
    if (__any_sync(FULL_WARP, least == 0)) {
        least = least_nonzero(input);
    }
    return rotate_limit_of(least);
}

/* NUM 3.1 on a lane's elements; adds what it counts. Hardly ever does it find anything. */
CUDA_DEVICE void rotate_sanitize(float (&x)[4], block16_counts *counts)
{
    float most = fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
    if (most <= NBL_INPUT_MAX && x[0] + x[1] + x[2] + x[3] < INFINITY) {
        return;
    }
    nbl_quant_stats stats = {0, 0, 0, 0, 0};
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        x[i] = nbl_sanitize(x[i], &stats);
    }
    counts->nan_inputs += (uint32_t)stats.nan_inputs;
    counts->inf_inputs += (uint32_t)stats.inf_inputs;
    counts->saturated += (uint32_t)stats.saturated;
}

/** Rotates a row of which each lane of the warp has four elements, as the rule does (NUM 4.1). */
template <uint32_t N> CUDA_DEVICE void rotate_row(float (&x)[4])
{
    uint32_t lane = threadIdx.x % WARP_LANES;
    float sum[4] = {x[0] + x[1], x[0] - x[1], x[2] + x[3], x[2] - x[3]};
    x[0] = sum[0] + sum[2];
    x[1] = sum[1] + sum[3];
    x[2] = sum[0] - sum[2];
    x[3] = sum[1] - sum[3];
#pragma unroll
    for (uint32_t distance = 1; 4u * distance < N; distance *= 2u) {
        float sign = (lane & distance) != 0 ? -1.0f : 1.0f;
#pragma unroll
        for (uint32_t i = 0; i < 4u; ++i) {
            x[i] = nbl_fma(x[i], sign, __shfl_xor_sync(FULL_WARP, x[i], (int)distance));
        }
    }
}

/** Row t as the rule has it, for any input (NUM 3.1), by all lanes of the warp, into the stage, magnitudes up to
 *  `most`; adds what is counted of the lane's elements. */
template <uint32_t N, bool IS_K>
CUDA_DEVICE void rotate_by_rule(const uint8_t *input, uint32_t t, const rotate_tables *tables, uint8_t *stage,
                                float most, block16_counts *counts)
{
    uint32_t lane = threadIdx.x % WARP_LANES;
    const uint8_t *from = input + rotate_input_byte(t, lane / 2u) + lane % 2u * 8u;
    uint2 words = *(const uint2 *)(const void *)from;
    float x[4];
    halves_of_word<true>(words.x, &x[0]);
    halves_of_word<true>(words.y, &x[2]);
    rotate_sanitize(x, counts);
    if (IS_K) {
        const uint32_t *factors = &tables->factors[2u * lane % 4u][rotate_word(2u * lane)];
#pragma unroll
        for (uint32_t i = 0; i < 2u; ++i) {
            float pair[2];
            halves_of_word<true>(factors[i * ROTATE_FACTOR_STRIDE], pair);
            x[2u * i] *= pair[0];
            x[2u * i + 1u] *= pair[1];
        }
    }
    rotate_row<N>(x);
    float4 c = IS_K ? ((const float4 *)(const void *)tables->center)[lane] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    x[0] -= c.x;
    x[1] -= c.y;
    x[2] -= c.z;
    x[3] -= c.w;
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        x[i] = fminf(fmaxf(x[i], -most), most);
    }
    *(float4 *)(void *)(stage + stage_place(t, lane)) = make_float4(x[0], x[1], x[2], x[3]);
}

#endif
