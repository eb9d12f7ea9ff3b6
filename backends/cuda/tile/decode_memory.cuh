/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file decode_memory.cuh
 * @brief What a warp of the decode kernel works on, and what it keeps in shared memory.
 */
#ifndef CUDA_DECODE_MEMORY_H
#define CUDA_DECODE_MEMORY_H

#include "../attend.h"
#include "../ptx/ptx.cuh"
#include "exp2grid.h"

#define TURN_BYTES(dim) ((dim) <= 128 ? 4096u : 8192u) /**< codes that are asked for and worked on at once, at most */
#define RING 2u                                        /**< turns: one in work, the others on their way */
#define GROUP 32u                                      /**< tokens that lie together (F3) */
#define GROUPS (CUDA_TILE_TOKENS / GROUP)
#define SCALE_PLANES(dim) ((dim) / 32u + 1u) /**< at most, of the formats taken (F5) */
#define FACTOR_WORDS(dim) (((dim) / 32u + 3u) / 4u)
#define K_FACTOR_STRIDE (CUDA_TILE_TOKENS + 16u) /**< keeps even and odd blocks in different banks */
#define K_FACTOR_WORDS (K_FACTOR_STRIDE + CUDA_TILE_TOKENS)

/** The unit a warp works on: a chunk of one kv head of a sequence. */
struct unit {
    uint32_t sequence;
    uint32_t kv_head;
    uint32_t chunk; /**< n-th of the range */
    uint32_t first_tile;
    uint32_t end_tile;
    int32_t seen_first; /**< positions [seen_first, seen_end) are visible to all rows */
    int32_t seen_end;
    int32_t q_first;
    int32_t q_len;
    uint32_t kv_len;
    uint32_t rows;
    const int32_t *pages;
};

/** Of one warp. What a tile needs of its scales is worked out once, a lane for four tokens: see decode_scales.cuh. The
 *  ring begins at a multiple of 512 bytes where copies_once are used. Sizes count: with 13568 bytes (D = 128, RPL 1)
 *  sixteen warps fit a multiprocessor of 227 KB. */
template <int D, int RPL> struct warp_memory {
    uint8_t ring[RING][TURN_BYTES(D)];
    union {
        uint8_t raw[2][SCALE_PLANES(D)][CUDA_TILE_TOKENS]; /**< scale planes of K and V as stored; then */
        float4 x[RPL][GROUPS][32];                         /**< float(I) * 2^ek of a lane's tokens */
    };
    union {
        uint32_t k_factor[FACTOR_WORDS(D)][K_FACTOR_WORDS]; /**< [][even blocks' tokens, gap, odd ones'] */
        uint2 packed[GROUPS][32];                           /**< then: P of a lane's tokens */
    };
    union {
        uint32_t v_factor[FACTOR_WORDS(D)][2][CUDA_TILE_TOKENS]; /**< [][odd block][token] */
        /** mxfp4: twice the factors of four tokens, fp16: [pair of blocks][tokens][block]. A group's lie where those of
         *  v_factor would: another group may have another format. */
        uint2 v_power[D / 64][CUDA_TILE_TOKENS / 4][2];
    };
    float v_grid[CUDA_TILE_TOKENS];       /**< ev + NBL_GRID */
    uint8_t k_exponent[CUDA_TILE_TOKENS]; /**< ek + 127 */
    uint2 q[D / 32][16 * RPL];            /**< the B operand of Q by k-step; with RPL 1 two columns share one */
    /** Where the codes of the groups of K, then of V, begin in the tile that is asked for. */
    alignas(16) uint64_t group_codes[2u * GROUPS];
};

/** Row i of the RPL whose products a lane gets; t is the lane modulo 4. */
template <int RPL> PTX_FN uint32_t lane_row(uint32_t t, int i)
{
    return RPL == 1 ? t : 2u * t + (uint32_t)i;
}

PTX_FN uint32_t groups_in(uint32_t kv_len, uint32_t tile)
{
    uint32_t left = kv_len - tile * CUDA_TILE_TOKENS;
    return left >= CUDA_TILE_TOKENS ? GROUPS : (left + GROUP - 1u) / GROUP;
}

/** Bytes between two groups of a turn; `wide` if a group of that kind in the tile is int8. */
template <int D> PTX_FN uint32_t group_stride(bool wide)
{
    return wide ? GROUP * D : GROUP * D / 2u;
}

template <int D> PTX_FN uint32_t groups_per_turn(bool wide)
{
    constexpr uint32_t few = TURN_BYTES(D) / (GROUP * D), many = 2u * few;
    static_assert(few > 0, "a turn holds a group");
    return wide ? (few < GROUPS ? few : GROUPS) : (many < GROUPS ? many : GROUPS);
}

/** 4x4 transposition of bytes: byte i of out[j] is byte j of in[i]. */
PTX_FN void transpose_bytes(const uint32_t (&in)[4], uint32_t (&out)[4])
{
    uint32_t a = ptx_prmt(in[0], in[1], 0x5140u);
    uint32_t b = ptx_prmt(in[2], in[3], 0x5140u);
    uint32_t c = ptx_prmt(in[0], in[1], 0x7362u);
    uint32_t d = ptx_prmt(in[2], in[3], 0x7362u);
    out[0] = ptx_prmt(a, b, 0x5410u);
    out[1] = ptx_prmt(a, b, 0x7632u);
    out[2] = ptx_prmt(c, d, 0x5410u);
    out[3] = ptx_prmt(c, d, 0x7632u);
}

#endif
