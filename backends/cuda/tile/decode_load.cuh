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
    uint32_t index; /**< of the group: K 0..3, V 4..7 */
    uint32_t piece;
    uint32_t slot;
    uint32_t entry;   /**< of the page table, where the lane's group of the next tile begins */
    uint32_t offset;  /**< in that page, in tokens */
    int32_t page;     /**< that page */
    uint64_t codes;   /**< of the lane's group and kind */
    uint32_t formats; /**< nibble i: enum nbl_format of group `index` i */
    uint32_t k_to;    /**< of the lane in a part: see ask_k */
    uint32_t v_to;    /**< see ask_v */
};

PTX_FN uint32_t format_of(uint32_t formats, uint32_t index)
{
    return formats >> (4u * index) & 15u;
}

/** Reads the page id of the lane's group of tile `tile`, ahead of its use. */
PTX_FN void fetch_page(const unit &u, uint32_t tile, uint32_t lane, asker &a)
{
    if (tile < u.end_tile && lane % GROUPS < groups_in(u.kv_len, tile)) {
        a.page = u.pages[a.entry];
    }
}

/** Moves the lane's place in the page table on by a tile. */
PTX_FN void advance(const attend_params &p, asker &a)
{
    a.entry += p.tile_pages;
    a.offset += p.tile_rest;
    if (a.offset >= p.pages.page_tokens) {
        a.offset -= p.pages.page_tokens;
        a.entry++;
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

/** Index of the page's region; all pages have been checked. */
PTX_FN uint32_t region_of(const cuda_pages &pages, uint32_t page)
{
    uint32_t which = 0;
#pragma unroll 1
    for (uint32_t i = 1; i < pages.region_count; ++i) {
        which = page - pages.regions[i].first_page < pages.regions[i].page_count ? i : which;
    }
    return which;
}

/** Finds the pages of the asker's tile and asks for its scales. Groups past the end repeat the last one that is there,
 *  so that every tile has four. */
template <int D, int RPL>
PTX_FN void begin_tile(const attend_params &p, warp_memory<D, RPL> &m, const unit &u, uint32_t lane, asker &a)
{
    const uint32_t group = lane % GROUPS;
    const uint32_t kind = lane / GROUPS % 2u;
    const uint32_t page = (uint32_t)a.page;
    const region_view &r = m.regions[region_of(p.pages, page)];
    a.codes = r.codes[kind] + page * r.code_stride + a.offset * (r.formats[kind] == NBL_INT8 ? D : D / 2u);
    uint64_t scales = page * r.scale_stride + a.offset + kind * 16u;
    uint32_t formats = r.formats[0] | r.formats[1] << 4 | r.planes[0] << 8 | r.planes[1] << 16;
    uint64_t k_scales = r.scales[0] + scales, v_scales = r.scales[1] + scales;
    const uint32_t groups = groups_in(u.kv_len, a.tile);
    if (groups < GROUPS) {
        const uint32_t from = min(group, groups - 1u) + lane / GROUPS * GROUPS;
        a.codes = __shfl_sync(0xffffffffu, a.codes, from);
        k_scales = __shfl_sync(0xffffffffu, k_scales, from);
        v_scales = __shfl_sync(0xffffffffu, v_scales, from);
        formats = __shfl_sync(0xffffffffu, formats, from);
    }
    const uint32_t to = group * GROUP + kind * 16u;
    ask_planes<D>(ptx_shared_address(&m.raw[0][0][0]) + to, k_scales, formats >> 8 & 0xffu,
                  p.pages.page_tokens, lane);
    ask_planes<D>(ptx_shared_address(&m.raw[1][0][0]) + to, v_scales, formats >> 16,
                  p.pages.page_tokens, lane);
    a.formats = __reduce_or_sync(0xffffffffu, (formats & 15u) << (4u * group) | (formats >> 4 & 15u) << (16u + 4u * group));
    advance(p, a);
    fetch_page(u, a.tile + 1u, lane, a);
}

/** Lane's place in the first 512 bytes of a K part: lines of 128 bytes, the words of 32 tokens. Chunks of 16 bytes are
 *  swizzled so that the four lanes that read four lines at one token meet different banks. */
PTX_FN uint32_t k_to_of(uint32_t lane)
{
    return lane / 8u * 128u + ((lane % 8u) ^ (2u * (lane / 8u))) * 16u;
}

/** A K part, contiguous in memory. */
template <uint32_t BYTES> PTX_FN void ask_k(uint32_t to, uint64_t from)
{
#pragma unroll
    for (uint32_t k = 0; k < BYTES / 512u; ++k) {
        ptx_cp_async_16(to + k * 512u, (const void *)(from + k * 512u));
    }
}

/** Lane's place in the first 512 bytes of a V part, with rows of 256 bytes. Swizzled like K by the row, mod 4; the next
 *  512 bytes are turned by 64, the next again not. */
PTX_FN uint32_t v_to_of(uint32_t lane)
{
    return lane / 16u * 256u + ((lane % 16u) ^ (lane / 16u * 2u)) * 16u;
}

/** A V part with rows of 256 bytes, `STRIDE` apart in memory. */
template <uint32_t STRIDE> PTX_FN void ask_v(uint32_t to, uint64_t from, uint32_t lane)
{
    from += lane / 16u * STRIDE + lane % 16u * 16u;
#pragma unroll
    for (uint32_t k = 0; k < 4u; ++k) {
        ptx_cp_async_16((k % 2u == 0 ? to : to ^ 64u) + k * 512u, (const void *)(from + k * 2u * STRIDE));
    }
}

/** Asks for the next part, if there is one, and closes the group of copies. */
template <int D, int RPL>
PTX_FN void ask_part(const attend_params &p, warp_memory<D, RPL> &m, const unit &u, uint32_t lane, asker &a)
{
    if (a.tile < u.end_tile) {
        if ((a.index | a.piece) == 0) {
            begin_tile<D, RPL>(p, m, u, lane, a);
        }
        const bool int8 = format_of(a.formats, a.index) == NBL_INT8;
        const uint64_t from = __shfl_sync(0xffffffffu, a.codes, a.index);
        const uint32_t to = ptx_shared_address(m.ring[a.slot]);
        if (a.index < GROUPS) {
            constexpr uint32_t of_4bit = D * 16u < PART_BYTES ? D * 16u : PART_BYTES;
            const uint64_t at = from + a.piece * PART_BYTES + lane * 16u;
            if (of_4bit == PART_BYTES || int8) {
                ask_k<PART_BYTES>(to + a.k_to, at);
            } else {
                ask_k<of_4bit>(to + a.k_to, at);
            }
        } else if (int8) {
            ask_v<D * 4u>(to + a.v_to, from + a.piece * 256u, lane);
        } else if (D * 2u >= 256u) {
            ask_v<D * 2u>(to + a.v_to, from + a.piece * 256u, lane);
        } else { /* rows of 128 bytes lie like lines of K */
            ask_k<D * 16u>(to + a.k_to, from + lane * 16u);
        }
        if (++a.piece == pieces_of<D>(int8)) {
            a.piece = 0;
            a.index = (a.index + 1u) % (2u * GROUPS);
            a.tile += a.index == 0;
        }
    }
    a.slot = (a.slot + 1u) % RING;
    ptx_cp_async_commit();
}

#endif
