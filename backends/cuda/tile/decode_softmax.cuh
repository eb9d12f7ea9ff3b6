/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file decode_softmax.cuh
 * @brief Softmax of one tile and one query row in the decode kernel (NUM 5.4). A row is a column of S^T: the lanes with
 * equal t hold it, 16 tokens each, token n of lane g being 16 * (n / 2) + 2g + n % 2.
 */
#ifndef CUDA_DECODE_SOFTMAX_H
#define CUDA_DECODE_SOFTMAX_H

#include "decode_memory.cuh"

#define LANE_TOKENS 16

/** What a lane keeps of its rows. */
template <int RPL> struct lane_rows {
    float scale[RPL];
    int32_t bias[RPL];
    int32_t first[RPL]; /**< visible positions [first, end) */
    int32_t end[RPL];
    float base[RPL];
    float sum[RPL];
    uint32_t has_base; /**< bit i */
};

/** The lane's logits of a row, as store_logits left them. */
PTX_FN void read_logits(const float4 (&stored)[GROUPS][32], uint32_t lane, float (&x)[LANE_TOKENS])
{
#pragma unroll
    for (uint32_t group = 0; group < GROUPS; ++group) {
        const float4 four = stored[group][lane];
        x[4 * group] = four.x, x[4 * group + 1] = four.y, x[4 * group + 2] = four.z, x[4 * group + 3] = four.w;
    }
}

/** Largest over the lanes of a column. */
PTX_FN float column_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 4));
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 8));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 16));
}

/** tree(s) of NUM 5.4; a lane has s_2g and s_2g+1. */
PTX_FN float column_tree(float even, float odd)
{
    even = even + __shfl_xor_sync(0xffffffffu, even, 16);
    odd = odd + __shfl_xor_sync(0xffffffffu, odd, 16);
    float v = even + odd;
    v = v + __shfl_xor_sync(0xffffffffu, v, 4);
    return v + __shfl_xor_sync(0xffffffffu, v, 8);
}

/** ev + NBL_GRID of the lane's tokens n and n + 1, n even. */
PTX_FN float2 read_grid(const float *lane_first, int n)
{
    return *reinterpret_cast<const float2 *>(lane_first + 8 * n);
}

/** 2^-ev from ev + NBL_GRID, whose bits are those of NBL_GRID plus 256 ev. */
PTX_FN float weight_of(float grid)
{
    return nbl_float_of((127u << 23) - (nbl_bits_of(grid) << 15));
}

/** Largest z of a column's visible tokens, -inf if there are none. */
PTX_FN float largest_logit(const float (&x)[LANE_TOKENS], const float *grid, float scale, uint32_t visible)
{
    float most = -INFINITY;
#pragma unroll
    for (int n = 0; n < LANE_TOKENS; ++n) {
        const float2 pair = read_grid(grid, n & ~1);
        float z = nbl_fma(x[n], scale, (n % 2 == 0 ? pair.x : pair.y) - NBL_GRID);
        most = visible >> n & 1u ? fmaxf(most, z) : most;
    }
    return column_max(most);
}

PTX_FN float base_from(float logit)
{
    return nbl_clamp_f32(nbl_ceil(logit), -NBL_LOGIT_MAX, NBL_LOGIT_MAX);
}

/** t of every token, -inf where it is not visible; the largest of the column is returned. */
PTX_FN float grid_logits(const float (&x)[LANE_TOKENS], const float *grid, float scale, float base, uint32_t visible,
                         float (&out)[LANE_TOKENS])
{
#pragma unroll
    for (int n = 0; n < LANE_TOKENS; n += 2) {
        const float2 pair = read_grid(grid, n);
        out[n] = nbl_fma(x[n], scale, pair.x - base);
        out[n + 1] = nbl_fma(x[n + 1], scale, pair.y - base);
    }
    if (!__all_sync(0xffffffffu, visible == 0xffffu)) {
#pragma unroll
        for (int n = 0; n < LANE_TOKENS; ++n) {
            out[n] = visible >> n & 1u ? out[n] : -INFINITY;
        }
    }
    float most = out[0];
#pragma unroll
    for (int n = 1; n < LANE_TOKENS; ++n) {
        most = fmaxf(most, out[n]);
    }
    return column_max(most);
}

/** P of a token pair, in bytes 0 and 2 of the result, and what it adds to l. */
PTX_FN uint32_t weigh(float t0, float t1, float most, float2 grid, float &even, float &odd)
{
    const float p0 = ptx_ex2(t0 - most), p1 = ptx_ex2(t1 - most);
    const uint32_t q = ptx_cvt_bf16x2(p1, p0);
    even = nbl_fma(nbl_float_of(q << 16), weight_of(grid.x), even);
    odd = nbl_fma(nbl_float_of(q & 0xffff0000u), weight_of(grid.y), odd);
    return ptx_prmt(nbl_bits_of(nbl_fma(p0, NBL_P_SCALE, NBL_MAGIC)), nbl_bits_of(nbl_fma(p1, NBL_P_SCALE, NBL_MAGIC)),
                    0x4040u);
}

/** Softmax of one column of the tile. Returns b, 0 if the tile adds nothing; rescale is the factor for O; pairs[n]: P
 *  of tokens 2n and 2n + 1 as bytes, twice. The warp stays together: what only some columns need is done by all and
 *  kept by those. ex2.approx.ftz gives 0 below 2^-126. */
PTX_FN float column_softmax(const float (&x)[LANE_TOKENS], const float *grid, float scale, uint32_t visible,
                            float &base, float &sum, bool &has_base, float &rescale, uint32_t (&pairs)[LANE_TOKENS / 2])
{
    float t[LANE_TOKENS];
    rescale = 1.0f;
    if (__any_sync(0xffffffffu, !has_base)) {
        float logit = largest_logit(x, grid, scale, visible);
        base = !has_base && logit > -INFINITY ? base_from(logit) : base;
    }
    float most = grid_logits(x, grid, scale, base, visible, t);
    if (__any_sync(0xffffffffu, most > NBL_GRID + NBL_REBASE)) {
        float moved = fmaxf(base, base_from(largest_logit(x, grid, scale, visible)));
        bool moves = most > NBL_GRID + NBL_REBASE;
        moved = moves ? moved : base;
        rescale = nbl_pow2f(base - moved);
        base = moved;
        most = grid_logits(x, grid, scale, base, visible, t);
        if (moves) {
#pragma unroll
            for (int n = 0; n < LANE_TOKENS; ++n) {
                t[n] = fminf(t[n], NBL_GRID + NBL_REBASE);
            }
            most = fminf(most, NBL_GRID + NBL_REBASE);
        }
    }
    has_base = has_base || most > -INFINITY;
    sum *= rescale;
    float even = 0.0f, odd = 0.0f;
#pragma unroll
    for (int n = 0; n < LANE_TOKENS; n += 2) {
        pairs[n / 2] = weigh(t[n], t[n + 1], most, read_grid(grid, n), even, odd);
    }
    float l = column_tree(even, odd);
    if (!(most - NBL_GRID >= NBL_WEIGHT_MIN)) {
        return 0.0f;
    }
    float b = nbl_grid_base(most - NBL_GRID);
    sum = nbl_fma(l, b, sum);
    return b;
}

/** How many of the lane's tokens n lie before `end`, counted from the lane's first one. */
PTX_FN uint32_t tokens_before(int32_t end)
{
    int32_t count = 2 * (end >> 4) + min(end & 15, 2);
    return (uint32_t)max(0, min(count, LANE_TOKENS));
}

/** Bit n: the lane's token n is visible in [first, end). */
PTX_FN uint32_t visible_bits(int32_t first, int32_t end, int32_t start, uint32_t g)
{
    int32_t origin = start + 2 * (int32_t)g;
    uint32_t hidden = (1u << tokens_before(first - origin)) - 1u;
    return ((1u << tokens_before(end - origin)) - 1u) & ~hidden;
}

#endif
