/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file decode_softmax.cuh
 * @brief Softmax of one tile in the decode kernel (NUM 5.4). A row is a column of S^T: the lanes with equal t hold it,
 * 16 tokens each, token n of lane g being 16 * (n / 2) + 2g + n % 2.
 */
#ifndef CUDA_DECODE_SOFTMAX_H
#define CUDA_DECODE_SOFTMAX_H

#include "decode_memory.cuh"

#define LANE_TOKENS 16

/** What a lane keeps of its rows. */
template <int RPL> struct lane_rows {
    float scale[RPL];
    int32_t start[RPL]; /**< k_start */
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

/** Largest over the lanes of each of N columns. */
template <int N> PTX_FN void columns_max(float (&x)[N])
{
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            x[i] = fmaxf(x[i], __shfl_xor_sync(0xffffffffu, x[i], distance));
        }
    }
}

/** Largest over the lanes of a column. */
PTX_FN float column_max(float x)
{
    float one[1] = {x};
    columns_max<1>(one);
    return one[0];
}

/** tree(s) of NUM 5.4 of N columns; a lane has s_2g and s_2g+1. */
template <int N> PTX_FN void columns_tree(const float (&even)[N], const float (&odd)[N], float (&out)[N])
{
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const float low = even[i] + __shfl_xor_sync(0xffffffffu, even[i], 16);
        out[i] = low + (odd[i] + __shfl_xor_sync(0xffffffffu, odd[i], 16));
    }
#pragma unroll
    for (int distance = 4; distance < 16; distance *= 2) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            out[i] = out[i] + __shfl_xor_sync(0xffffffffu, out[i], distance);
        }
    }
}

/** The same of one column. */
PTX_FN float column_tree(float even, float odd)
{
    const float evens[1] = {even}, odds[1] = {odd};
    float tree[1];
    columns_tree<1>(evens, odds, tree);
    return tree[0];
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

/** nbl_grid_base of t - NBL_GRID, from t: its bits are those of NBL_GRID plus 256 times that. */
PTX_FN float grid_base(float t)
{
    return nbl_grid_base_of((int32_t)(nbl_bits_of(t) - nbl_bits_of(NBL_GRID)));
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

/** t of the lane's tokens of N columns, -inf where it is not visible; most[i] is the largest of column i. */
template <int N>
PTX_FN void columns_grid_logits(const float (&x)[N][LANE_TOKENS], const float *grid, const float (&scale)[N],
                                const float (&base)[N], const uint32_t (&visible)[N], float (&out)[N][LANE_TOKENS],
                                float (&most)[N])
{
    bool all = true;
#pragma unroll
    for (int n = 0; n < LANE_TOKENS; n += 2) {
        const float2 pair = read_grid(grid, n);
#pragma unroll
        for (int i = 0; i < N; ++i) {
            out[i][n] = nbl_fma(x[i][n], scale[i], pair.x - base[i]);
            out[i][n + 1] = nbl_fma(x[i][n + 1], scale[i], pair.y - base[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
        all = all && visible[i] == 0xffffu;
    }
    if (!__all_sync(0xffffffffu, all)) {
#pragma unroll
        for (int n = 0; n < N * LANE_TOKENS; ++n) {
            const int i = n / LANE_TOKENS, k = n % LANE_TOKENS;
            out[i][k] = visible[i] >> k & 1u ? out[i][k] : -INFINITY;
        }
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
        most[i] = out[i][0];
#pragma unroll
        for (int n = 1; n < LANE_TOKENS; ++n) {
            most[i] = fmaxf(most[i], out[i][n]);
        }
    }
    columns_max<N>(most);
}

/** The same of one column; the largest is returned. */
PTX_FN float grid_logits(const float (&x)[LANE_TOKENS], const float *grid, float scale, float base, uint32_t visible,
                         float (&out)[LANE_TOKENS])
{
    typedef float one_column[1][LANE_TOKENS];
    const float scales[1] = {scale}, bases[1] = {base};
    const uint32_t visibles[1] = {visible};
    float most[1];
    columns_grid_logits<1>(reinterpret_cast<const one_column &>(x), grid, scales, bases, visibles,
                           reinterpret_cast<one_column &>(out), most);
    return most[0];
}

/** MAGIC + P of a token pair, and what it adds to l. MAGIC is NBL_MAGIC, perhaps with an even number below 2^16
 *  more. */
PTX_FN float2 weigh_pair(float t0, float t1, float most, float2 grid, float magic, float &even, float &odd)
{
    const float p0 = ptx_ex2(t0 - most), p1 = ptx_ex2(t1 - most);
    const uint32_t q = ptx_cvt_bf16x2(p1, p0);
    even = nbl_fma(nbl_float_of(q << 16), weight_of(grid.x), even);
    odd = nbl_fma(nbl_float_of(q & 0xffff0000u), weight_of(grid.y), odd);
    return make_float2(nbl_fma(p0, NBL_P_SCALE, magic), nbl_fma(p1, NBL_P_SCALE, magic));
}

/** P of a token pair, in bytes 0 and 2 of the result, and what it adds to l. */
PTX_FN uint32_t weigh(float t0, float t1, float most, float2 grid, float &even, float &odd)
{
    const float2 p = weigh_pair(t0, t1, most, grid, NBL_MAGIC, even, odd);
    return ptx_prmt(nbl_bits_of(p.x), nbl_bits_of(p.y), 0x4040u);
}

/** Moves the base of each column that has a logit too far above it; t and the largest are then others, and rescale[i]
 *  is the factor for what has been added up. */
template <int RPL>
PTX_FN void move_bases(const float (&x)[RPL][LANE_TOKENS], const float *grid, const uint32_t (&visible)[RPL],
                       lane_rows<RPL> &rows, float (&rescale)[RPL], float (&t)[RPL][LANE_TOKENS], float (&most)[RPL])
{
    bool moves[RPL];
#pragma unroll
    for (int i = 0; i < RPL; ++i) {
        const float logit = largest_logit(x[i], grid, rows.scale[i], visible[i]);
        moves[i] = most[i] > NBL_GRID + NBL_REBASE;
        const float moved = moves[i] ? fmaxf(rows.base[i], base_from(logit)) : rows.base[i];
        rescale[i] = nbl_pow2f(rows.base[i] - moved);
        rows.base[i] = moved;
    }
    columns_grid_logits<RPL>(x, grid, rows.scale, rows.base, visible, t, most);
#pragma unroll
    for (int i = 0; i < RPL; ++i) {
        if (moves[i]) {
#pragma unroll
            for (int n = 0; n < LANE_TOKENS; ++n) {
                t[i][n] = fminf(t[i][n], NBL_GRID + NBL_REBASE);
            }
            most[i] = fminf(most[i], NBL_GRID + NBL_REBASE);
        }
    }
}

/** Weights of the lane's rows in one tile: b[i], 0 if the tile adds nothing; rescale[i], the factor for O. P is
 *  handed over by take(n, p): p[i] has magic + P of tokens n and n + 1. The rows go side by side, so that one hides
 *  the latency of the other. The warp stays together: what only some columns need is done by all and kept by those.
 *  ex2.approx.ftz gives 0 below 2^-126. */
template <int RPL, typename Take>
PTX_FN void columns_softmax(const float (&x)[RPL][LANE_TOKENS], const float *grid, const uint32_t (&visible)[RPL],
                            float magic, lane_rows<RPL> &rows, float (&rescale)[RPL], float (&b)[RPL], Take take)
{
    float t[RPL][LANE_TOKENS], most[RPL], even[RPL] = {}, odd[RPL] = {}, l[RPL];
    bool moves = false;
    if (__any_sync(0xffffffffu, rows.has_base != (1u << RPL) - 1u)) {
#pragma unroll
        for (int i = 0; i < RPL; ++i) {
            const float logit = largest_logit(x[i], grid, rows.scale[i], visible[i]);
            rows.base[i] = !(rows.has_base >> i & 1u) && logit > -INFINITY ? base_from(logit) : rows.base[i];
        }
    }
    columns_grid_logits<RPL>(x, grid, rows.scale, rows.base, visible, t, most);
#pragma unroll
    for (int i = 0; i < RPL; ++i) {
        rescale[i] = 1.0f;
        moves = moves || most[i] > NBL_GRID + NBL_REBASE;
    }
    if (__any_sync(0xffffffffu, moves)) {
        move_bases<RPL>(x, grid, visible, rows, rescale, t, most);
    }
#pragma unroll
    for (int n = 0; n < LANE_TOKENS; n += 2) {
        const float2 pair = read_grid(grid, n);
        float2 p[RPL];
#pragma unroll
        for (int i = 0; i < RPL; ++i) {
            p[i] = weigh_pair(t[i][n], t[i][n + 1], most[i], pair, magic, even[i], odd[i]);
        }
        take(n, p);
    }
    columns_tree<RPL>(even, odd, l);
#pragma unroll
    for (int i = 0; i < RPL; ++i) {
        const float sum = rows.sum[i] * rescale[i];
        rows.has_base |= (uint32_t)(most[i] > -INFINITY) << i;
        b[i] = most[i] >= NBL_GRID + NBL_WEIGHT_MIN ? grid_base(most[i]) : 0.0f;
        rows.sum[i] = b[i] != 0.0f ? nbl_fma(l[i], b[i], sum) : sum;
    }
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
