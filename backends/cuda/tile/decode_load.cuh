/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file decode_load.cuh
 * @brief Loading for the decode kernel: the walk over pages, and codes and scales on their way to shared memory.
 *
 * A tile is 4 groups of K, then 4 groups of V; a turn takes as many groups of one kind as fit. Lanes i with i % 4 = n
 * keep the page of group n of the tile being asked for: those with i / 4 even its K, the others its V.
 */
#ifndef CUDA_DECODE_LOAD_H
#define CUDA_DECODE_LOAD_H

#include "decode_memory.cuh"

/** Copies of 16 bytes from global to shared memory; `at` is the address of a lane's place from `row` on. */
struct plain_copies {
    static __device__ __forceinline__ uint32_t at(uint32_t row, uint32_t place) { return row + place; }
    __device__ __forceinline__ void copy(uint32_t shared, uint64_t global) const
    {
        ptx_cp_async_16(shared, (const void *)global);
    }
};

/** The same of what the call reads only once: it leaves the second-level cache first, and the states stay there until
 *  they are folded. `row` is a multiple of 512, `place` less than that, for what ptx_cp_async_16 asks of an address. */
struct copies_once {
    uint64_t policy = ptx_policy_evict_first();
    static __device__ __forceinline__ uint32_t at(uint32_t row, uint32_t place) { return row ^ place; }
    __device__ __forceinline__ void copy(uint32_t shared, uint64_t global) const
    {
        ptx_cp_async_16(shared, (const void *)global, policy);
    }
};

/** What is asked for next. */
template <typename Copies> struct asker : Copies {
    uint32_t tile;
    uint32_t index; /**< of the first group: K 0..3, V 4..7 */
    uint32_t slot;
    uint32_t entry;   /**< of the page table, where the lane's group of the next tile begins */
    uint32_t offset;  /**< in that page, in tokens */
    int32_t page;     /**< that page */
    uint32_t formats; /**< nibble i: enum nbl_format of group `index` i */
    uint32_t to[2];   /**< the lane's place in a group of 4-bit K, of V */
};

/** Formats of all pages of a call, known to the compiler; K is NBL_FORMAT_NONE if each page has its own. */
template <uint32_t K, uint32_t V> struct call_formats {
    static constexpr uint32_t k = K;
    static constexpr uint32_t v = V;
    static constexpr bool are_known = K != NBL_FORMAT_NONE;
};
using any_formats = call_formats<NBL_FORMAT_NONE, NBL_FORMAT_NONE>;

/** Format of group `group` of the kind (of K 0, of V 1), in a tile of these formats. */
template <typename F, uint32_t KIND> PTX_FN uint32_t format_of(uint32_t formats, uint32_t group)
{
    return F::are_known ? (KIND == 0 ? F::k : F::v) : formats >> (4u * (KIND * GROUPS + group)) & 15u;
}

/** Whether a group of the kind is int8. */
template <typename F, uint32_t KIND> PTX_FN bool is_wide(uint32_t formats)
{
    static_assert(NBL_INT8 == 1 && NBL_MXFP4 % 2 == 0 && NBL_INT4P % 2 == 0, "bit 0 tells");
    return F::are_known ? (KIND == 0 ? F::k : F::v) == NBL_INT8 : (formats >> (16u * KIND) & 0x1111u) != 0;
}

/** Groups in a turn of the kind. */
template <int D, typename F, uint32_t KIND> PTX_FN uint32_t turn_groups(uint32_t formats)
{
    return groups_per_turn<D>(is_wide<F, KIND>(formats));
}

/** Reads the page id of the lane's group of tile `tile`, ahead of its use. */
template <typename Copies> PTX_FN void fetch_page(const unit &u, uint32_t tile, uint32_t lane, asker<Copies> &a)
{
    if (tile < u.end_tile && lane % GROUPS < groups_in(u.kv_len, tile)) {
        a.page = u.pages[a.entry];
    }
}

/** Reads the page id of the lane's group of the tile that a unit most likely begins with, before it is known whether
 *  there is one. */
PTX_FN int32_t guess_page(const attend_params &p, uint32_t sequence, uint32_t tile, uint32_t lane)
{
    const uint32_t entry = (tile * CUDA_TILE_TOKENS + lane % GROUPS * GROUP) / p.pages.page_tokens;
    return entry < p.page_table_stride ? p.page_table[(uint64_t)sequence * p.page_table_stride + entry] : -1;
}

/** Puts the asker before the unit's first tile, or past its end if a page of that tile is not one of the pool: prepare
 *  finds it too, and takes the sequence out. `guess` is the page of the lane's group there if that is tile `guessed`.
 */
template <typename Copies>
PTX_FN void begin_walk(const attend_params &p, const unit &u, uint32_t guessed, int32_t guess, uint32_t lane,
                       asker<Copies> &a)
{
    const uint32_t first = u.first_tile * CUDA_TILE_TOKENS + lane % GROUPS * GROUP;
    a = {};
    a.tile = u.first_tile;
    a.entry = first / p.pages.page_tokens;
    a.offset = first % p.pages.page_tokens;
    if (u.first_tile >= u.end_tile) {
        return;
    }
    const bool has_group = lane % GROUPS < groups_in(u.kv_len, a.tile);
    if (a.tile == guessed) {
        const int32_t first_page = __shfl_sync(0xffffffffu, guess, 0);
        a.page = has_group ? guess : first_page; /* any page that is there */
    } else {
        a.page = u.pages[has_group ? a.entry : a.tile * CUDA_TILE_TOKENS / p.pages.page_tokens];
    }
    if (!__all_sync(0xffffffffu, cuda_region_find(&p.pages, a.page) != NULL)) {
        a.tile = u.end_tile;
    }
}

/** Moves the lane's place in the page table on by a tile. */
template <typename Copies> PTX_FN void advance(const attend_params &p, asker<Copies> &a)
{
    a.entry += p.tile_pages;
    a.offset += p.tile_rest;
    if (a.offset >= p.pages.page_tokens) {
        a.offset -= p.pages.page_tokens;
        a.entry++;
    }
}

/** nbl_layout_scale_planes of the formats taken. */
template <int D> PTX_FN uint32_t planes_of(uint32_t format)
{
    return format == NBL_INT8 ? 1u : D / 32u + (format == NBL_INT4P ? 1u : 0u);
}

/** Bytes of the scale planes of one kind, 16 tokens a lane; 8 lanes a plane. `to` is the place of the lane's bytes in
 *  the first four planes. */
template <int D, typename Copies>
PTX_FN void ask_planes(const Copies &copies, uint32_t to, uint64_t from, uint32_t planes, uint32_t page_tokens,
                       uint32_t lane)
{
#pragma unroll
    for (uint32_t first = 0; first < SCALE_PLANES(D); first += 4u) {
        uint32_t plane = first + lane / 8u;
        if (plane < planes) {
            copies.copy(to + first * CUDA_TILE_TOKENS, from + (uint64_t)plane * page_tokens);
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
template <int D, int RPL, typename F, typename Copies>
PTX_FN void begin_tile(const attend_params &p, warp_memory<D, RPL> &m, const unit &u, uint32_t lane, asker<Copies> &a)
{
    const uint32_t group = lane % GROUPS;
    const uint32_t kind = lane / GROUPS % 2u;
    const cuda_region &r = p.pages.regions[F::are_known ? 0u : region_of(p.pages, (uint32_t)a.page)];
    const uint64_t page = (uint32_t)a.page - r.first_page;
    uint32_t k_format = F::are_known ? F::k : r.k_format, v_format = F::are_known ? F::v : r.v_format;
    const uint32_t format = kind == 0 ? k_format : v_format;
    uint64_t codes = (uint64_t)r.codes + page * r.code_page_stride +
                     (kind == 0 ? (uint64_t)u.kv_head * r.k_code_head_bytes
                                : r.v_code_offset + (uint64_t)u.kv_head * r.v_code_head_bytes) +
                     a.offset * (format == NBL_INT8 ? D : D / 2u);
    uint64_t k_scales = (uint64_t)r.scales + page * r.scale_page_stride + a.offset + kind * 16u;
    uint64_t v_scales = k_scales + r.v_scale_offset + (uint64_t)u.kv_head * r.v_scale_head_bytes;
    k_scales += (uint64_t)u.kv_head * r.k_scale_head_bytes;
    const uint32_t groups = groups_in(u.kv_len, a.tile);
    if (groups < GROUPS) {
        const uint32_t from = min(group, groups - 1u) + lane / GROUPS * GROUPS;
        codes = __shfl_sync(0xffffffffu, codes, from);
        k_scales = __shfl_sync(0xffffffffu, k_scales, from);
        v_scales = __shfl_sync(0xffffffffu, v_scales, from);
        if (!F::are_known) {
            k_format = __shfl_sync(0xffffffffu, k_format, from);
            v_format = __shfl_sync(0xffffffffu, v_format, from);
        }
    }
    if (lane < 2u * GROUPS) {
        m.group_codes[lane] = codes;
    }
    const uint32_t to =
        a.at(ptx_shared_address(&m.raw[0][0][0]), lane / 8u * CUDA_TILE_TOKENS + group * GROUP + kind * 16u);
    ask_planes<D>(a, to, k_scales, planes_of<D>(k_format), p.pages.page_tokens, lane);
    ask_planes<D>(a, to + (uint32_t)sizeof(m.raw[0]), v_scales, planes_of<D>(v_format), p.pages.page_tokens, lane);
    if (!F::are_known) {
        a.formats = __reduce_or_sync(0xffffffffu, k_format << (4u * group) | v_format << (16u + 4u * group));
    }
    advance(p, a);
    fetch_page(u, a.tile + 1u, lane, a);
    __syncwarp();
}

/* Codes of a group are contiguous in memory and lie in shared memory as rows: lines of K (128 bytes), token quads of V.
 * The 16-byte chunks of row n are turned by 2 * (n % 4), so that the four lanes that read four rows at one place meet
 * different banks. A lane copies chunk 32k + lane; the turn of its row is that of the lane's place in 512 bytes,
 * place_of, and that of k, turn_of. */
template <uint32_t ROW> PTX_FN uint32_t place_of(uint32_t lane)
{
    return (ROW < 512u ? lane ^ (lane / (ROW / 16u) * 2u) : lane) * 16u;
}
template <uint32_t ROW> PTX_FN uint32_t turn_of(uint32_t k)
{
    return ROW == 128u ? 0u : ROW == 256u ? 64u * (k % 2u) : 32u * (k / (ROW / 512u) % 4u);
}

/** A 4-bit group of either kind; `at` is the place of the lane's first chunk. */
template <int D, typename Copies> PTX_FN void ask_4bit(const Copies &copies, bool is_v, uint32_t at, uint64_t from)
{
#pragma unroll
    for (uint32_t k = 0; k < GROUP * D / 1024u; ++k) {
        const uint32_t turn = is_v ? turn_of<2u * D>(k) : 0u;
        copies.copy((at ^ turn) + k * 512u, from + k * 512u);
    }
}

/** The same of an int8 group with rows of ROW bytes. */
template <int D, uint32_t ROW, typename Copies> PTX_FN void ask_int8(const Copies &copies, uint32_t at, uint64_t from)
{
#pragma unroll
    for (uint32_t k = 0; k < GROUP * D / 512u; ++k) {
        copies.copy((at ^ turn_of<ROW>(k)) + k * 512u, from + k * 512u);
    }
}

/** A turn of 4-bit groups whose codes begin at codes[]. All are read first: a copy behind a read of shared memory costs
 *  three idle instructions. */
template <int D, uint32_t KIND, typename Copies>
PTX_FN void ask_narrow(const asker<Copies> &a, const uint64_t *codes, uint32_t to, uint32_t lane)
{
    uint64_t from[GROUPS];
#pragma unroll
    for (uint32_t i = 0; i < groups_per_turn<D>(false); ++i) {
        from[i] = ptx_keep(codes[i] + lane * 16u);
    }
#pragma unroll
    for (uint32_t i = 0; i < groups_per_turn<D>(false); ++i) {
        ask_4bit<D>(a, KIND == 1u, a.at(to + i * group_stride<D>(false), a.to[KIND]), from[i]);
    }
}

/** A turn with int8 groups, perhaps others too. */
template <int D, typename F, uint32_t KIND, typename Copies>
PTX_FN void ask_wide(const asker<Copies> &a, const uint64_t *codes, uint32_t to, uint32_t lane)
{
#pragma unroll 1
    for (uint32_t i = 0; i < groups_per_turn<D>(true); ++i) {
        const uint64_t from = codes[i] + lane * 16u;
        if (format_of<F, KIND>(a.formats, (a.index + i) % GROUPS) != NBL_INT8) {
            ask_4bit<D>(a, KIND == 1u, a.at(to, a.to[KIND]), from);
        } else {
            constexpr uint32_t row = KIND == 0 ? 128u : 4u * D;
            ask_int8<D, row>(a, a.at(to, place_of<row>(lane)), from);
        }
        to += group_stride<D>(true);
    }
}

/** A turn of the kind. */
template <int D, int RPL, typename F, uint32_t KIND, typename Copies>
PTX_FN void ask_kind(asker<Copies> &a, const warp_memory<D, RPL> &m, uint32_t to, uint32_t lane)
{
    const uint64_t *codes = &m.group_codes[a.index];
    if (is_wide<F, KIND>(a.formats)) {
        ask_wide<D, F, KIND>(a, codes, to, lane);
    } else {
        ask_narrow<D, KIND>(a, codes, to, lane);
    }
    a.index += turn_groups<D, F, KIND>(a.formats);
}

/** Asks for the next turn, if there is one, and closes the group of copies. */
template <int D, int RPL, typename F, typename Copies>
PTX_FN void ask_turn(const attend_params &p, warp_memory<D, RPL> &m, const unit &u, uint32_t lane, asker<Copies> &a)
{
    if (a.tile < u.end_tile) {
        if (a.index == 0) {
            begin_tile<D, RPL, F>(p, m, u, lane, a);
        }
        const uint32_t to = ptx_shared_address(m.ring[a.slot]);
        if (a.index < GROUPS) {
            ask_kind<D, RPL, F, 0>(a, m, to, lane);
        } else {
            ask_kind<D, RPL, F, 1>(a, m, to, lane);
        }
        if (a.index == 2u * GROUPS) {
            a.index = 0;
            a.tile++;
        }
    }
    a.slot = (a.slot + 1u) % RING;
    ptx_cp_async_commit();
}

#endif
