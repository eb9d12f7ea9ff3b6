/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file decode_load.cuh
 * @brief Loading for the decode kernel: the walk over pages, and codes and scales on their way to shared memory.
 *
 * A tile is 4 groups of K, then 4 groups of V, each of one or more parts. Lanes i with i % 4 = n keep the page of group
 * n of the tile being asked for: those with i / 4 even its K, the others its V.
 */
#ifndef CUDA_DECODE_LOAD_H
#define CUDA_DECODE_LOAD_H

#include "decode_memory.cuh"

/** What is asked for next. */
struct asker {
    uint32_t tile;
    uint32_t groups; /**< of the tile */
    uint32_t index;  /**< of the group: K 0..3, V 4..7 */
    uint32_t piece;
    uint32_t slot;
    uint32_t entry;   /**< of the page table, where the lane's group of the next tile begins */
    uint32_t offset;  /**< in that page, in tokens */
    int32_t page;     /**< that page */
    uint64_t codes;   /**< of the lane's group and kind */
    uint32_t formats; /**< of the lane's group: K's, V's << 8 */
    uint32_t int8;    /**< bit i: group `index` i is int8 */
};

/** Reads the page id of the lane's group of tile `tile`, ahead of its use. */
PTX_FN void fetch_page(const unit &u, uint32_t end_tile, uint32_t kv_len, uint32_t tile, uint32_t lane, asker &a)
{
    if (tile < end_tile && lane % GROUPS < groups_in(kv_len, tile)) {
        a.page = u.pages[a.entry];
    }
}

/** Bytes of the scale planes of one kind, 16 tokens a lane; 8 lanes a plane. */
template <int D>
PTX_FN void ask_planes(uint32_t to, uint64_t from, uint32_t planes, uint32_t page_tokens, uint32_t lane)
{
#pragma unroll
    for (uint32_t first = 0; first < SCALE_PLANES(D); first += 4u) {
        uint32_t plane = first + lane / 8u;
        if (plane < planes) {
            ptx_cp_async_16(to + plane * CUDA_TILE_TOKENS, (const void *)(from + (uint64_t)plane * page_tokens));
        }
    }
}

/** Finds the pages of the asker's tile and asks for its scales. */
template <int D, int RPL>
PTX_FN void begin_tile(const attend_params &p, warp_memory<D, RPL> &m, uint32_t end_tile, uint32_t kv_len,
                       uint32_t lane, asker &a)
{
    const uint32_t group = lane % GROUPS;
    const uint32_t kind = lane / GROUPS % 2u;
    bool int8 = false;
    a.groups = groups_in(kv_len, a.tile);
    if (group < a.groups) {
        uint32_t which = 0;
        for (uint32_t i = 1; i < p.pages.region_count; ++i) {
            const cuda_region &r = p.pages.regions[i];
            which = (uint32_t)a.page - r.first_page < r.page_count ? i : which;
        }
        const region_view &r = m.regions[which];
        const uint32_t page = (uint32_t)a.page;
        int8 = r.formats[kind] == NBL_INT8;
        a.codes = r.codes[kind] + page * r.code_stride + a.offset * (int8 ? D : D / 2u);
        a.formats = r.formats[0] | r.formats[1] << 8;
        const uint64_t scales = page * r.scale_stride + a.offset + kind * 16u;
        const uint32_t to = group * GROUP + kind * 16u;
        ask_planes<D>(ptx_shared_address(&m.raw[0][0][0]) + to, r.scales[0] + scales,
                      nbl_layout_scale_planes(r.formats[0], D), p.pages.page_tokens, lane);
        ask_planes<D>(ptx_shared_address(&m.raw[1][0][0]) + to, r.scales[1] + scales,
                      nbl_layout_scale_planes(r.formats[1], D), p.pages.page_tokens, lane);
    }
    a.int8 = __ballot_sync(0xffffffffu, int8);
    a.formats = __shfl_sync(0xffffffffu, a.formats, group < a.groups ? group : a.groups - 1u);
    a.entry += p.tile_pages;
    a.offset += p.tile_rest;
    if (a.offset >= p.pages.page_tokens) {
        a.offset -= p.pages.page_tokens;
        a.entry++;
    }
    fetch_page(m.u, end_tile, kv_len, a.tile + 1u, lane, a);
}

/** K part: lines of 128 bytes, the words of 32 tokens. Chunks of 16 bytes are swizzled so that the four lanes that read
 *  four lines at one token meet different banks. */
template <uint32_t BYTES> PTX_FN void ask_k(uint32_t to, uint64_t from, uint32_t lane)
{
    to += lane / 8u * 128u + ((lane % 8u) ^ (2u * (lane / 8u))) * 16u;
    from += lane * 16u;
#pragma unroll
    for (uint32_t k = 0; k < BYTES / 512u; ++k) {
        ptx_cp_async_16(to + k * 512u, (const void *)(from + k * 512u));
    }
}

/** V part: ROW bytes of each of the 8 token quads, `stride` apart in memory. */
template <uint32_t ROW> PTX_FN void ask_v(uint32_t to, uint64_t from, uint32_t stride, uint32_t lane)
{
    constexpr uint32_t chunks = ROW / 16u, quads = 32u / chunks; /* of a row; rows at a time */
    const uint32_t quad = lane / chunks, chunk = lane % chunks;
    from += quad * stride + chunk * 16u;
#pragma unroll
    for (uint32_t k = 0; k < 8u / quads; ++k) {
        uint32_t turn = 2u * ((quad + k * quads) % 4u);
        ptx_cp_async_16(to + quad * ROW + (chunk ^ turn) * 16u + k * quads * ROW, (const void *)from);
        from += quads * stride;
    }
}

/** Asks for the next part, if there is one, and closes the group of copies. */
template <int D, int RPL>
PTX_FN void ask_part(const attend_params &p, warp_memory<D, RPL> &m, uint32_t end_tile, uint32_t kv_len, uint32_t lane,
                     asker &a)
{
    if (a.tile < end_tile) {
        if ((a.index | a.piece) == 0) {
            begin_tile<D, RPL>(p, m, end_tile, kv_len, lane, a);
        }
        const bool int8 = a.int8 >> a.index & 1u;
        const uint64_t from = __shfl_sync(0xffffffffu, a.codes, a.index);
        const uint32_t to = ptx_shared_address(m.ring[a.slot]);
        if (a.index < GROUPS) {
            constexpr uint32_t of_4bit = D * 16u < PART_BYTES ? D * 16u : PART_BYTES;
            if (of_4bit == PART_BYTES || int8) {
                ask_k<PART_BYTES>(to, from + a.piece * PART_BYTES, lane);
            } else {
                ask_k<of_4bit>(to, from, lane);
            }
        } else if (D * 2u >= 256u || int8) {
            ask_v<256u>(to, from + a.piece * 256u, int8 ? D * 4u : D * 2u, lane);
        } else {
            ask_v<128u>(to, from, D * 2u, lane);
        }
        if (++a.piece == pieces_of<D>(int8)) {
            a.piece = 0;
            ++a.index;
            if (a.index == a.groups) {
                a.index = GROUPS;
            } else if (a.index == GROUPS + a.groups) {
                a.index = 0;
                ++a.tile;
            }
        }
    }
    a.slot = (a.slot + 1u) % RING;
    ptx_cp_async_commit();
}

#endif
