/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file decode.cu
 * @brief attend for few query rows over a long cache: one warp per (sequence, kv head, chunk), at the memory's speed.
 *
 * Every warp is on its own: it walks the eight tiles of its chunk, keeps a ring of 2 KB parts in shared memory filled
 * by cp.async, and meets no other warp. Budget on an H200: 4.4 TB/s leave an SM 7.4 cycles, 29 issue slots, per token
 * and kv head at 138 bytes (int4p, D = 128).
 *
 * Fragments of mma.m16n8k32 (g = lane / 4, t = lane % 4). S^T = K Q^T: row g of a 16-token tile is token 2g, row g + 8
 * token 2g + 1, so that a lane's two partial sums are those of tokens 2g and 2g + 1 mod 16 (NUM 5.4). O^T = V^T P^T:
 * row g is element 2g, row g + 8 element 2g + 1 of a block of 16. P goes from the first form to the second by one
 * movmatrix per 16 tokens. A query row sits in column 2q when there are up to four (RPL 1), in column q when there are
 * up to eight (RPL 2).
 *
 * V is never multiplied by its block scale: X = P * scale has up to 16 bits and enters as two base-256 digits. With RPL
 * 1 the low digit takes the even column, the high digit the odd one. All V paths give 256 times the sum.
 */
#include "attend.h"
#include "e2m1.h"
#include "e8m0.h"
#include "exp2grid.h"
#include "merge.h"
#include "ptx/ptx.cuh"

#define PART_BYTES 2048u
#define RING 4u
#define GROUP 32u
#define GROUPS 4u
#define SCALE_BYTES(dim) \
    ((dim) <= 128u ? 256u : 512u) /* of a group and kind: up to dim / 32 + 1 planes of 32 bytes, or 8 */

namespace
{

/* Where a group's bytes are; one per group, written by lanes 0..3 when a tile is begun. */
struct group_source {
    const uint8_t *k;
    const uint8_t *v;
    const uint8_t *k_scales;
    const uint8_t *v_scales;
    uint32_t k_format;
    uint32_t v_format;
};

/* The unit a warp works on. */
struct unit {
    uint32_t sequence;
    uint32_t kv_head;
    uint32_t chunk; /* n-th of the range */
    uint32_t first_tile;
    uint32_t end_tile;
    uint32_t kv_len;
    uint32_t rows;
    const int32_t *pages;
};

template <int KD, int VD> struct warp_memory {
    alignas(128) uint8_t ring[RING][PART_BYTES];
    alignas(128) uint8_t k_scales[2][GROUPS][SCALE_BYTES(KD)];
    alignas(128) uint8_t v_scales[2][GROUPS][SCALE_BYTES(VD)];
    group_source source[2][GROUPS];
    uint2 q[KD / 32][32]; /* [k-step][lane]: the B operand of Q */
    unit u;
};

template <int KD, int VD, int RPL> struct shape {
    static constexpr int warps = RPL == 1 && VD <= 128 ? 12 : 8; /* 16 would leave too few registers */
};

/* ---------------------------------------------------------------------------------------------- loading */

/* Next part to be asked for. Also where the next tile begins in the page table, so that nothing is divided on the way.
 */
struct cursor {
    uint32_t tile;
    uint32_t kind;
    uint32_t group;
    uint32_t piece;
    uint32_t entry;  /* of the page table */
    uint32_t offset; /* in that page, in tokens */
};

template <int DIM> PTX_FN uint32_t pieces_of(uint32_t format)
{
    uint32_t bytes = format == NBL_INT8 ? GROUP * DIM : GROUP * DIM / 2u;
    return bytes <= PART_BYTES ? 1u : bytes / PART_BYTES;
}

PTX_FN uint32_t groups_in(const unit &u, uint32_t tile)
{
    uint32_t left = u.kv_len - tile * CUDA_TILE_TOKENS;
    return left >= CUDA_TILE_TOKENS ? GROUPS : (left + GROUP - 1u) / GROUP;
}

/* Moves a place in the page table on by up to a tile. */
PTX_FN void advance(uint32_t &entry, uint32_t &offset, uint32_t tokens, uint32_t page_tokens)
{
    offset += tokens;
    while (offset >= page_tokens) {
        offset -= page_tokens;
        entry++;
    }
}

/* Pointers of one group; a lane's own work. */
template <int KD, int VD>
PTX_FN void find_group(const attend_params &p, const unit &u, uint32_t entry, uint32_t offset, group_source &s)
{
    const uint32_t page = (uint32_t)u.pages[entry];
    const cuda_region *r = cuda_region_find(&p.pages, page);
    const uint8_t *codes = r->codes + (uint64_t)(page - r->first_page) * r->code_page_stride;
    const uint8_t *scales = r->scales + (uint64_t)(page - r->first_page) * r->scale_page_stride + offset;
    s.k = codes + u.kv_head * (uint64_t)r->k_code_head_bytes + offset * (r->k_format == NBL_INT8 ? KD : KD / 2u);
    s.v = codes + r->v_code_offset + u.kv_head * (uint64_t)r->v_code_head_bytes +
          offset * (r->v_format == NBL_INT8 ? VD : VD / 2u);
    s.k_scales = scales + u.kv_head * (uint64_t)r->k_scale_head_bytes;
    s.v_scales = scales + r->v_scale_offset + u.kv_head * (uint64_t)r->v_scale_head_bytes;
    s.k_format = r->k_format;
    s.v_format = r->v_format;
}

/* Asks for scale planes of one kind of a group, 32 bytes each, by 8 lanes. */
PTX_FN void ask_scales(uint8_t *to, const uint8_t *from, uint32_t planes, uint32_t page_tokens, uint32_t part)
{
    for (uint32_t c = part; c < 2u * planes; c += 8u) {
        ptx_cp_async_16(ptx_shared_address(to + c * 16u), from + (uint64_t)(c / 2u) * page_tokens + c % 2u * 16u);
    }
}

/* Finds the pages of a tile, a lane per group, and asks for its scales, 8 lanes a group. */
template <int KD, int VD>
PTX_FN void begin_tile(const attend_params &p, const unit &u, cursor &c, warp_memory<KD, VD> &m, uint32_t lane)
{
    const uint32_t slot = c.tile % 2u;
    const uint32_t groups = groups_in(u, c.tile);
    if (lane < groups) {
        uint32_t entry = c.entry, offset = c.offset;
        advance(entry, offset, lane * GROUP, p.pages.page_tokens);
        find_group<KD, VD>(p, u, entry, offset, m.source[slot][lane]);
    }
    advance(c.entry, c.offset, CUDA_TILE_TOKENS, p.pages.page_tokens);
    __syncwarp();
    const uint32_t g = lane / 8u;
    if (g < groups) {
        const group_source &s = m.source[slot][g];
        ask_scales(m.k_scales[slot][g], s.k_scales, nbl_layout_scale_planes(s.k_format, KD), p.pages.page_tokens,
                   lane % 8u);
        ask_scales(m.v_scales[slot][g], s.v_scales, nbl_layout_scale_planes(s.v_format, VD), p.pages.page_tokens,
                   lane % 8u);
    }
}

/* K part: up to 16 lines of 128 bytes. Chunks of 16 bytes are swizzled so that the four lanes t, which read different
 * lines at one token, meet different banks. */
template <int BYTES> PTX_FN void ask_k(uint8_t *to, const uint8_t *from, bool int8, uint32_t lane)
{
#pragma unroll
    for (uint32_t k = 0; k < BYTES / 512u; ++k) {
        uint32_t line = lane / 8u + 4u * k;
        uint32_t turn = 2u * (int8 ? line / 2u % 4u : line % 4u);
        ptx_cp_async_16(ptx_shared_address(to + line * 128u + ((lane % 8u) ^ turn) * 16u),
                        from + (lane + 32u * k) * 16u);
    }
}

/* V part: for each of the 8 token quads ROW bytes, rows `stride` apart in memory. */
template <int ROW> PTX_FN void ask_v(uint8_t *to, const uint8_t *from, uint32_t stride, uint32_t lane)
{
#pragma unroll
    for (uint32_t k = 0; k < ROW / 64u; ++k) {
        uint32_t at = lane + 32u * k;
        uint32_t quad = at / (ROW / 16u);
        uint32_t chunk = at % (ROW / 16u);
        ptx_cp_async_16(ptx_shared_address(to + quad * ROW + ((chunk ^ (2u * (quad % 4u))) * 16u)),
                        from + quad * stride + chunk * 16u);
    }
}

/* Asks for the part at the cursor, if there is one, closes the group, moves on. */
template <int KD, int VD>
PTX_FN void ask_next(const attend_params &p, const unit &u, cursor &c, uint32_t &slot, warp_memory<KD, VD> &m,
                     uint32_t lane)
{
    constexpr int k_bytes = KD * 16 < (int)PART_BYTES ? KD * 16 : (int)PART_BYTES; /* 4-bit part */
    constexpr int v_row = VD * 2 < 256 ? VD * 2 : 256;
    if (c.tile < u.end_tile) {
        if ((c.kind | c.group | c.piece) == 0) {
            begin_tile<KD, VD>(p, u, c, m, lane);
        }
        const group_source &s = m.source[c.tile % 2u][c.group];
        uint32_t pieces;
        if (c.kind == 0) {
            pieces = pieces_of<KD>(s.k_format);
            const uint8_t *from = s.k + c.piece * PART_BYTES;
            if (KD * 16 == k_bytes && s.k_format != NBL_INT8) {
                ask_k<k_bytes>(m.ring[slot], from, false, lane);
            } else {
                ask_k<PART_BYTES>(m.ring[slot], from, s.k_format == NBL_INT8, lane);
            }
        } else {
            pieces = pieces_of<VD>(s.v_format);
            if (s.v_format == NBL_INT8) {
                ask_v<256>(m.ring[slot], s.v + c.piece * 256u, VD * 4u, lane);
            } else {
                ask_v<v_row>(m.ring[slot], s.v + c.piece * 256u, VD * 2u, lane);
            }
        }
        if (++c.piece == pieces) {
            c.piece = 0;
            if (++c.group == groups_in(u, c.tile)) {
                c.group = 0;
                c.tile += c.kind;
                c.kind ^= 1u;
            }
        }
    }
    slot = slot + 1u == RING ? 0u : slot + 1u;
    ptx_cp_async_commit();
}

/* ---------------------------------------------------------------------------------------------- scales */

/* Two neighbouring scale bytes, tokens 2g and 2g + 1 of a 16-token tile. */
PTX_FN uint32_t scale_pair(const uint8_t *plane, uint32_t token)
{
    return *reinterpret_cast<const uint16_t *>(plane + token);
}

/* Canonical exponent bytes (E + 127) of two tokens, as {low byte, high byte} of 16-bit halves (NUM 2.3 to 2.5). */
template <int DIM> PTX_FN void exponent_pair(const uint8_t *scales, uint32_t format, uint32_t token, uint32_t (&e)[2])
{
    if (format == NBL_INT8 || format == NBL_INT4P) {
        uint32_t pair = scale_pair(scales + (format == NBL_INT4P ? DIM / 32 : 0) * GROUP, token);
        e[0] = pair & 0xffu;
        e[1] = pair >> 8;
        return;
    }
    e[0] = 0xffu;
    e[1] = 0xffu;
#pragma unroll
    for (int b = 0; b < DIM / 32; ++b) {
        uint32_t pair = scale_pair(scales + b * GROUP, token);
        e[0] = min(e[0], pair & 0xffu);
        e[1] = min(e[1], pair >> 8);
    }
    e[0] -= 1u;
    e[1] -= 1u;
}

/* ---------------------------------------------------------------------------------------------- Q K */

/* Two words, tokens 2g and 2g + 1 of 16-token tile `half`, of a line of K. */
PTX_FN uint2 k_words(const uint8_t *part, uint32_t line, uint32_t turn, uint32_t half, uint32_t g)
{
    uint32_t chunk = (4u * half + g / 2u) ^ (2u * turn);
    return *reinterpret_cast<const uint2 *>(part + line * 128u + chunk * 16u + g % 2u * 8u);
}

/* One k-step of int4p: codes times multiplier plus 128, as unsigned bytes. */
template <int KD>
PTX_FN void k_step_int4p(const uint8_t *part, const uint8_t *scales, uint32_t step_in_part, uint32_t step,
                         uint32_t half, const uint32_t (&q)[2], uint32_t g, uint32_t t, int32_t (&s)[4])
{
    uint2 w = k_words(part, 4u * step_in_part + t, t, half, g);
    uint32_t pair = scale_pair(scales + step * GROUP, 16u * half + 2u * g) >> (t / 2u * 4u);
    uint32_t m0 = (pair & 15u) + 1u;
    uint32_t m1 = (pair >> 8 & 15u) + 1u;
    uint32_t c0 = 0x80808080u - m0 * 0x08080808u;
    uint32_t c1 = 0x80808080u - m1 * 0x08080808u;
    uint32_t a[4] = {(w.x & 0x0f0f0f0fu) * m0 + c0, (w.y & 0x0f0f0f0fu) * m1 + c1, (w.x >> 4 & 0x0f0f0f0fu) * m0 + c0,
                     (w.y >> 4 & 0x0f0f0f0fu) * m1 + c1};
    ptx_mma_m16n8k32_us(s, a, q);
}

/* One k-step of int8: codes plus 128. */
PTX_FN void k_step_int8(const uint8_t *part, uint32_t step_in_part, uint32_t half, const uint32_t (&q)[2], uint32_t g,
                        uint32_t t, int32_t (&s)[4])
{
    uint2 low = k_words(part, 8u * step_in_part + 2u * t, t, half, g);
    uint2 high = k_words(part, 8u * step_in_part + 2u * t + 1u, t, half, g);
    uint32_t a[4] = {low.x ^ 0x80808080u, low.y ^ 0x80808080u, high.x ^ 0x80808080u, high.y ^ 0x80808080u};
    ptx_mma_m16n8k32_us(s, a, q);
}

#define E2M1_CODE(x) (x)

/* Byte i: factor * magnitude of E2M1 code first + i, plus 1. */
static constexpr __host__ __device__ uint32_t up_entries(int first, int factor)
{
    constexpr int codes[16] = {NBL_E2M1_CODES(E2M1_CODE)};
    uint32_t word = 0;
    for (int i = 0; i < 4; ++i) {
        word |= (uint32_t)(factor * codes[first + i] + 1) << (8 * i);
    }
    return word;
}

/* Byte i: minus factor * that magnitude; -1 for 0, whose negative is never stored. */
static constexpr __host__ __device__ uint32_t down_entries(int first, int factor)
{
    constexpr int codes[16] = {NBL_E2M1_CODES(E2M1_CODE)};
    uint32_t word = 0;
    for (int i = 0; i < 4; ++i) {
        int magnitude = factor * codes[first + i];
        word |= ((uint32_t)(magnitude == 0 ? -1 : -magnitude) & 0xffu) << (8 * i);
    }
    return word;
}

/* One k-step of mxfp4, which is one block: PRMT looks codes up, a set sign bit making it replicate the entry's sign.
 * From the table of magnitude + 1 that is 0, from the table of -magnitude (with a negative entry for 0, unused) -1: the
 * sum of both products is that of the codes. The block's shift is applied to the sums. */
template <int KD>
PTX_FN void k_step_mxfp4(const uint8_t *part, const uint8_t *scales, uint32_t step_in_part, uint32_t step,
                         uint32_t half, const uint32_t (&q)[2], const uint32_t (&least)[2], uint32_t g, uint32_t t,
                         int32_t (&s)[4])
{
    constexpr uint32_t up_low = up_entries(0, 1), up_high = up_entries(4, 1);
    constexpr uint32_t down_low = down_entries(0, 1), down_high = down_entries(4, 1);
    uint2 w = k_words(part, 4u * step_in_part + t, t, half, g);
    uint32_t turned[2] = {ptx_prmt(q[0], q[1], 0x5140u), ptx_prmt(q[0], q[1], 0x7362u)};
    uint32_t up[4] = {ptx_prmt(up_low, up_high, w.x), ptx_prmt(up_low, up_high, w.y),
                      ptx_prmt(up_low, up_high, w.x >> 16), ptx_prmt(up_low, up_high, w.y >> 16)};
    w.x ^= 0x88888888u;
    w.y ^= 0x88888888u;
    uint32_t down[4] = {ptx_prmt(down_low, down_high, w.x), ptx_prmt(down_low, down_high, w.y),
                        ptx_prmt(down_low, down_high, w.x >> 16), ptx_prmt(down_low, down_high, w.y >> 16)};
    int32_t sums[4] = {0, 0, 0, 0};
    ptx_mma_m16n8k32_ss(sums, up, turned);
    ptx_mma_m16n8k32_ss(sums, down, turned);
    uint32_t pair = scale_pair(scales + step * GROUP, 16u * half + 2u * g);
    uint32_t shift0 = ((pair & 0xffu) - least[0]) & NBL_BLOCK_E_SPREAD;
    uint32_t shift1 = ((pair >> 8) - least[1]) & NBL_BLOCK_E_SPREAD;
    s[0] += (int32_t)((uint32_t)sums[0] << shift0);
    s[1] += (int32_t)((uint32_t)sums[1] << shift0);
    s[2] += (int32_t)((uint32_t)sums[2] << shift1);
    s[3] += (int32_t)((uint32_t)sums[3] << shift1);
}

/* All k-steps of one part for the two 16-token tiles of its group. */
template <int KD>
PTX_FN void k_part(const uint8_t *part, const uint8_t *scales, uint32_t format, uint32_t piece, const uint2 *queries,
                   uint32_t g, uint32_t t, int32_t (&s)[2][4])
{
    constexpr int per_part4 = KD / 32 < 4 ? KD / 32 : 4;
    if (format == NBL_INT8) {
#pragma unroll
        for (int step = 0; step < KD / 32; ++step) {
            if ((uint32_t)step / 2u == piece) {
                const uint32_t q[2] = {queries[32 * step].x, queries[32 * step].y};
                k_step_int8(part, step % 2, 0, q, g, t, s[0]);
                k_step_int8(part, step % 2, 1, q, g, t, s[1]);
            }
        }
        return;
    }
    uint32_t least[2][2] = {{0, 0}, {0, 0}};
    if (format == NBL_MXFP4) {
        exponent_pair<KD>(scales, format, 2u * g, least[0]);
        exponent_pair<KD>(scales, format, 16u + 2u * g, least[1]);
        least[0][0]++, least[0][1]++, least[1][0]++, least[1][1]++;
    }
#pragma unroll
    for (int step = 0; step < KD / 32; ++step) {
        if ((uint32_t)(step / per_part4) != piece) {
            continue;
        }
        const uint32_t q[2] = {queries[32 * step].x, queries[32 * step].y};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (format == NBL_INT4P) {
                k_step_int4p<KD>(part, scales, step % per_part4, step, half, q, g, t, s[half]);
            } else {
                k_step_mxfp4<KD>(part, scales, step % per_part4, step, half, q, least[half], g, t, s[half]);
            }
        }
    }
}

/* ---------------------------------------------------------------------------------------------- P V */

/* Two words, elements 2g and 2g + 1 of a row of 64 bytes (16 elements, 4 tokens each) of V. */
PTX_FN uint2 v_words(const uint8_t *part, uint32_t row_bytes, uint32_t quad, uint32_t sixteen, uint32_t g)
{
    uint32_t chunk = (4u * sixteen + g / 2u) ^ (2u * (quad % 4u));
    return *reinterpret_cast<const uint2 *>(part + quad * row_bytes + chunk * 16u + g % 2u * 8u);
}

/* Weights of four tokens one by one, and 16 times each in both halves: what a multiplier of 1 makes of them. */
struct spread_weights {
    uint32_t weight[4];
    uint32_t once[4];
};

PTX_FN spread_weights spread(uint32_t p)
{
    spread_weights w;
#pragma unroll
    for (uint32_t j = 0; j < 4u; ++j) {
        w.weight[j] = ptx_prmt(p, 0, 0x4440u + j);
        w.once[j] = w.weight[j] * 0x00100010u;
    }
    return w;
}

/* Digits of X for four tokens and two blocks whose scales share a byte (int4p): X = 16 * P * m in either half. */
template <int RPL>
PTX_FN void digits_int4p(const spread_weights &w, uint32_t scale_bytes, uint32_t parity, uint32_t (&out)[2][RPL])
{
    uint32_t shifted = scale_bytes << 4;
    uint32_t x[4];
#pragma unroll
    for (uint32_t j = 0; j < 4u; ++j) { /* m - 1 of the low block in the low half, of the high one in the high half */
        x[j] = w.weight[j] * (ptx_prmt(shifted, scale_bytes, 0x0400u + j * 0x0101u) & 0x00f000f0u) + w.once[j];
    }
#pragma unroll
    for (uint32_t digit = 0; digit < (uint32_t)RPL; ++digit) {
        uint32_t d = RPL == 1 ? parity : digit;
        uint32_t selector = 0x6240u + d * 0x1111u;
        uint32_t first = ptx_prmt(x[0], x[1], selector);
        uint32_t second = ptx_prmt(x[2], x[3], selector);
        out[0][digit] = ptx_prmt(first, second, 0x5410u);
        out[1][digit] = ptx_prmt(first, second, 0x7632u);
    }
}

/* Digits of X = 32 * P << shift for four tokens of a block (mxfp4). */
template <int RPL> PTX_FN void digits_mxfp4(uint32_t p, uint32_t shifts, uint32_t parity, uint32_t (&out)[RPL])
{
    uint32_t x[4];
#pragma unroll
    for (uint32_t j = 0; j < 4u; ++j) {
        x[j] = ptx_prmt(p, 0, 0x4440u + j) << (5u + (shifts >> (8u * j) & NBL_BLOCK_E_SPREAD));
    }
#pragma unroll
    for (uint32_t digit = 0; digit < (uint32_t)RPL; ++digit) {
        uint32_t d = RPL == 1 ? parity : digit;
        uint32_t selector = 0x0040u + d * 0x0011u;
        out[digit] = ptx_prmt(ptx_prmt(x[0], x[1], selector), ptx_prmt(x[2], x[3], selector), 0x5410u);
    }
}

/* Selector nibbles of the low codes (low half) and of the high codes (high half) of four tokens. */
PTX_FN uint32_t code_selectors(uint32_t w)
{
    uint32_t low = w & 0x0f0f0f0fu;
    uint32_t high = w >> 4 & 0x0f0f0f0fu;
    return ptx_prmt(low | low >> 4, high | high >> 4, 0x6420u);
}

/* 16 * (code - 8) of the low or the high codes as signed bytes. */
PTX_FN uint32_t int4p_low(uint32_t w)
{
    return (w << 4 & 0xf0f0f0f0u) ^ 0x80808080u;
}
PTX_FN uint32_t int4p_high(uint32_t w)
{
    return (w & 0xf0f0f0f0u) ^ 0x80808080u;
}

template <int VD, int RPL>
PTX_FN void v_part_int4p(const uint8_t *part, const uint8_t *scales, uint32_t piece, const uint32_t (&p)[2], uint32_t g,
                         uint32_t t, int32_t (&acc)[RPL][VD / 16][4])
{
    constexpr int per_part = VD / 32 < 4 ? VD / 32 : 4; /* blocks of 32 */
    constexpr uint32_t row_bytes = per_part * 64;
    const spread_weights w[2] = {spread(p[0]), spread(p[1])};
#pragma unroll
    for (int i = 0; i < VD / 32; ++i) {
        if ((uint32_t)(i / per_part) != piece) {
            continue;
        }
        const uint32_t *plane = reinterpret_cast<const uint32_t *>(scales + i * GROUP);
        uint32_t x[2][2][RPL]; /* quad, block, digit */
        digits_int4p<RPL>(w[0], plane[t], g % 2u, x[0]);
        digits_int4p<RPL>(w[1], plane[4u + t], g % 2u, x[1]);
        uint2 w0 = v_words(part, row_bytes, t, i % per_part, g);
        uint2 w1 = v_words(part, row_bytes, 4u + t, i % per_part, g);
        uint32_t low[4] = {int4p_low(w0.x), int4p_low(w0.y), int4p_low(w1.x), int4p_low(w1.y)};
        uint32_t high[4] = {int4p_high(w0.x), int4p_high(w0.y), int4p_high(w1.x), int4p_high(w1.y)};
#pragma unroll
        for (int digit = 0; digit < RPL; ++digit) {
            uint32_t b_low[2] = {x[0][0][digit], x[1][0][digit]};
            uint32_t b_high[2] = {x[0][1][digit], x[1][1][digit]};
            ptx_mma_m16n8k32_su(acc[digit][2 * i], low, b_low);
            ptx_mma_m16n8k32_su(acc[digit][2 * i + 1], high, b_high);
        }
    }
}

/* Bytewise e_b - e_min of four tokens. */
template <int VD> PTX_FN uint32_t least_bytes(const uint8_t *scales, uint32_t quad)
{
    uint32_t least = 0xffffffffu;
#pragma unroll
    for (int b = 0; b < VD / 32; ++b) {
        least = __vminu4(least, reinterpret_cast<const uint32_t *>(scales + b * GROUP)[quad]);
    }
    return least;
}

template <int VD, int RPL>
PTX_FN void v_part_mxfp4(const uint8_t *part, const uint8_t *scales, uint32_t piece, const uint32_t (&p)[2], uint32_t g,
                         uint32_t t, int32_t (&acc)[RPL][VD / 16][4])
{
    constexpr int per_part = VD / 32 < 4 ? VD / 32 : 4;
    constexpr uint32_t row_bytes = per_part * 64;
    constexpr uint32_t up_low = up_entries(0, 8), up_high = up_entries(4, 8);
    constexpr uint32_t down_low = down_entries(0, 8), down_high = down_entries(4, 8);
    uint32_t least[2] = {least_bytes<VD>(scales, t), least_bytes<VD>(scales, 4u + t)};
#pragma unroll
    for (int i = 0; i < VD / 32; ++i) {
        if ((uint32_t)(i / per_part) != piece) {
            continue;
        }
        const uint32_t *plane = reinterpret_cast<const uint32_t *>(scales + i * GROUP);
        uint32_t x[2][RPL];
        digits_mxfp4<RPL>(p[0], plane[t] - least[0], g % 2u, x[0]);
        digits_mxfp4<RPL>(p[1], plane[4u + t] - least[1], g % 2u, x[1]);
        uint2 w0 = v_words(part, row_bytes, t, i % per_part, g);
        uint2 w1 = v_words(part, row_bytes, 4u + t, i % per_part, g);
        uint32_t codes[4] = {code_selectors(w0.x), code_selectors(w0.y), code_selectors(w1.x), code_selectors(w1.y)};
#pragma unroll
        for (int high = 0; high < 2; ++high) {
            uint32_t up[4], down[4];
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                uint32_t selector = high ? codes[r] >> 16 : codes[r];
                up[r] = ptx_prmt(up_low, up_high, selector);
                down[r] = ptx_prmt(down_low, down_high, selector ^ 0x8888u);
            }
#pragma unroll
            for (int digit = 0; digit < RPL; ++digit) {
                uint32_t b[2] = {x[0][digit], x[1][digit]};
                ptx_mma_m16n8k32_su(acc[digit][2 * i + high], up, b);
                ptx_mma_m16n8k32_su(acc[digit][2 * i + high], down, b);
            }
        }
    }
}

/* int8: the weight is the high digit, the low one is 0. */
template <int VD, int RPL>
PTX_FN void v_part_int8(const uint8_t *part, uint32_t piece, const uint32_t (&p)[2], uint32_t g, uint32_t t,
                        int32_t (&acc)[RPL][VD / 16][4])
{
    uint32_t keep = RPL == 2 || g % 2u == 1u ? 0xffffffffu : 0u;
    uint32_t b[2] = {p[0] & keep, p[1] & keep};
#pragma unroll
    for (int i = 0; i < VD / 16; ++i) {
        if ((uint32_t)(i / 4) != piece) {
            continue;
        }
        uint2 w0 = v_words(part, 256u, t, i % 4, g);
        uint2 w1 = v_words(part, 256u, 4u + t, i % 4, g);
        uint32_t a[4] = {w0.x, w0.y, w1.x, w1.y};
        ptx_mma_m16n8k32_su(acc[RPL - 1][i], a, b);
    }
}

/* ---------------------------------------------------------------------------------------------- softmax */

/* What a lane keeps of its columns. */
template <int RPL> struct lane_rows {
    float scale[RPL];
    int32_t bias[RPL];
    int32_t first[RPL]; /* visible positions [first, end) */
    int32_t end[RPL];
    float base[RPL];
    float sum[RPL];
    uint32_t has_base; /* bit r */
};

/* Largest over the lanes of a column. */
PTX_FN float column_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 4));
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 8));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 16));
}

/* tree(s) of NUM 5.4; a lane has s_2g and s_2g+1. */
PTX_FN float column_tree(float even, float odd)
{
    even = even + __shfl_xor_sync(0xffffffffu, even, 16);
    odd = odd + __shfl_xor_sync(0xffffffffu, odd, 16);
    float v = even + odd;
    v = v + __shfl_xor_sync(0xffffffffu, v, 4);
    return v + __shfl_xor_sync(0xffffffffu, v, 8);
}

/* ev of token n, from bytes of exponents packed four to a word: 2^23 + byte is a float of known bits. */
PTX_FN float exponent_of(const uint32_t (&packed)[4], int n)
{
    return nbl_float_of(ptx_prmt(packed[n / 4], 0x4b000000u, 0x7440u + n % 4)) - (8388608.0f + NBL_E8M0_BIAS);
}

/* 2^-ev of token n. */
PTX_FN float weight_of(const uint32_t (&packed)[4], int n)
{
    return nbl_float_of((254u << 23) - (ptx_prmt(packed[n / 4], 0, 0x4440u + n % 4) << 23));
}

/* Largest z of a column's visible tokens, -inf if there are none. */
PTX_FN float largest_logit(const float (&x)[16], const uint32_t (&ev)[4], float scale, uint32_t visible)
{
    float most = -INFINITY;
#pragma unroll
    for (int n = 0; n < 16; ++n) {
        float z = nbl_fma(x[n], scale, exponent_of(ev, n));
        most = visible >> n & 1u ? fmaxf(most, z) : most;
    }
    return column_max(most);
}

PTX_FN float base_from(float logit)
{
    return nbl_clamp_f32(nbl_ceil(logit), -NBL_LOGIT_MAX, NBL_LOGIT_MAX);
}

/* t of every token, -inf where it is not visible; the largest of the column is returned. */
PTX_FN float grid_logits(const float (&x)[16], const uint32_t (&ev)[4], float scale, float base, uint32_t visible,
                         float (&out)[16])
{
    float most = -INFINITY;
#pragma unroll
    for (int n = 0; n < 16; ++n) {
        out[n] = nbl_fma(x[n], scale, (exponent_of(ev, n) - base) + NBL_GRID);
    }
    if (!__all_sync(0xffffffffu, visible == 0xffffu)) {
#pragma unroll
        for (int n = 0; n < 16; ++n) {
            out[n] = visible >> n & 1u ? out[n] : -INFINITY;
        }
    }
#pragma unroll
    for (int n = 0; n < 16; ++n) {
        most = fmaxf(most, out[n]);
    }
    return column_max(most);
}

/* Softmax of one column of the tile (NUM 5.4). Returns b, 0 if the tile adds nothing; rescale is the factor for O. The
 * warp stays together: what only some columns need is done by all and kept by those. ex2.approx.ftz gives 0 below
 * 2^-126. */
PTX_FN float column_softmax(const float (&x)[16], const uint32_t (&ev)[4], float scale, uint32_t visible, float &base,
                            float &sum, bool &has_base, float &rescale, uint32_t (&weights)[16])
{
    float t[16];
    rescale = 1.0f;
    if (__any_sync(0xffffffffu, !has_base)) {
        float logit = largest_logit(x, ev, scale, visible);
        base = !has_base && logit > -INFINITY ? base_from(logit) : base;
    }
    float most = grid_logits(x, ev, scale, base, visible, t);
    if (__any_sync(0xffffffffu, most > NBL_GRID + NBL_REBASE)) {
        float moved = fmaxf(base, base_from(largest_logit(x, ev, scale, visible)));
        bool moves = most > NBL_GRID + NBL_REBASE;
        moved = moves ? moved : base;
        rescale = nbl_pow2f(base - moved);
        base = moved;
        most = grid_logits(x, ev, scale, base, visible, t);
        if (moves) {
#pragma unroll
            for (int n = 0; n < 16; ++n) {
                t[n] = fminf(t[n], NBL_GRID + NBL_REBASE);
            }
            most = fminf(most, NBL_GRID + NBL_REBASE);
        }
    }
    has_base = has_base || most > -INFINITY;
    sum *= rescale;
    float even = 0.0f, odd = 0.0f;
#pragma unroll
    for (int n = 0; n < 16; n += 2) {
        float e0 = ptx_ex2(t[n] - most), e1 = ptx_ex2(t[n + 1] - most);
        weights[n] = nbl_bits_of(nbl_fma(e0, NBL_P_SCALE, NBL_MAGIC));
        weights[n + 1] = nbl_bits_of(nbl_fma(e1, NBL_P_SCALE, NBL_MAGIC));
        even = nbl_fma(nbl_grid_q(e0), weight_of(ev, n), even);
        odd = nbl_fma(nbl_grid_q(e1), weight_of(ev, n + 1), odd);
    }
    float l = column_tree(even, odd);
    if (!(most - NBL_GRID >= NBL_WEIGHT_MIN)) {
        return 0.0f;
    }
    float b = nbl_grid_base(most - NBL_GRID);
    sum = nbl_fma(l, b, sum);
    return b;
}

/* How many of the lane's tokens n lie before `end`, counted from the lane's first one: token n is 16 * (n / 2) + n % 2.
 */
PTX_FN uint32_t tokens_before(int32_t end)
{
    int32_t count = 2 * (end >> 4) + min(end & 15, 2);
    return (uint32_t)max(0, min(count, 16));
}

/* Bit n: the lane's token n is visible in [first, end). */
PTX_FN uint32_t visible_bits(int32_t first, int32_t end, int32_t start, uint32_t g)
{
    int32_t origin = start + 2 * (int32_t)g;
    uint32_t hidden = (1u << tokens_before(first - origin)) - 1u;
    return ((1u << tokens_before(end - origin)) - 1u) & ~hidden;
}

/* ---------------------------------------------------------------------------------------------- rows and states */

PTX_FN int32_t clamp_position(int64_t x)
{
    return (int32_t)(x < 0 ? 0 : x > NBL_KV_TOKENS_MAX ? (int64_t)NBL_KV_TOKENS_MAX : x);
}

/* Row r of the unit: query token r / group_rows of its sequence. */
PTX_FN uint64_t row_index(const attend_params &p, const unit &u, uint32_t r)
{
    uint32_t token = (uint32_t)p.sequences[u.sequence].q_first + r / p.group_rows;
    return (uint64_t)token * p.q_heads + u.kv_head * p.group_rows + r % p.group_rows;
}

/* Visible positions of a row (NUM 5.2). */
PTX_FN void row_range(const attend_params &p, const unit &u, uint32_t r, int32_t &first, int32_t &end)
{
    int64_t position = (int64_t)u.kv_len - p.sequences[u.sequence].q_len + r / p.group_rows;
    int64_t a = p.range_begin;
    int64_t e = u.kv_len < p.range_end ? u.kv_len : p.range_end;
    if (p.flags & NBL_ATTEND_CAUSAL) {
        e = min(e, position + 1);
    }
    if (p.flags & NBL_ATTEND_WINDOW_RIGHT) {
        e = min(e, position + (int64_t)p.window_right + 1);
    }
    if (p.flags & NBL_ATTEND_WINDOW_LEFT) {
        a = max(a, position - (int64_t)p.window_left);
    }
    first = clamp_position(a);
    end = clamp_position(e);
}

template <int RPL> PTX_FN lane_rows<RPL> load_rows(const attend_params &p, const unit &u, uint32_t t)
{
    lane_rows<RPL> rows;
    rows.has_base = 0;
#pragma unroll
    for (int i = 0; i < RPL; ++i) {
        uint32_t r = RPL == 1 ? t : 2u * t + i;
        rows.scale[i] = 0.0f;
        rows.bias[i] = 0;
        rows.first[i] = rows.end[i] = 0;
        rows.base[i] = rows.sum[i] = 0.0f;
        if (r < u.rows) {
            const cuda_query &q = p.queries[row_index(p, u, r)];
            rows.scale[i] = q.scale;
            rows.bias[i] = q.bias;
            row_range(p, u, r, rows.first[i], rows.end[i]);
        }
    }
    return rows;
}

/* Q as the B operand: column g, codes 8(4s + t)..+7 of k-step s. */
template <int KD, int VD, int RPL>
PTX_FN void load_queries(const attend_params &p, const unit &u, warp_memory<KD, VD> &m, uint32_t lane)
{
    const uint32_t g = lane / 4u, t = lane % 4u;
    const uint32_t r = RPL == 1 ? g / 2u : g;
    const bool used = r < u.rows && (RPL == 2 || g % 2u == 0);
    const int8_t *codes = p.codes + (used ? row_index(p, u, r) : 0) * p.k_dim_padded + 8u * t;
#pragma unroll
    for (int s = 0; s < KD / 32; ++s) {
        m.q[s][lane] = used ? *reinterpret_cast<const uint2 *>(codes + 32 * s) : make_uint2(0, 0);
    }
}

template <int VD, int RPL>
PTX_FN void write_states(const attend_params &p, const unit &u, const lane_rows<RPL> &rows,
                         const float (&o)[VD / 16][2][RPL], uint32_t g, uint32_t t)
{
#pragma unroll
    for (int i = 0; i < RPL; ++i) {
        uint32_t r = RPL == 1 ? t : 2u * t + i;
        if (r >= u.rows) {
            continue;
        }
        uint64_t index = row_index(p, u, r);
        float *state = p.states + (index * p.chunks + u.chunk) * p.state_floats;
        bool empty = !(rows.has_base >> i & 1u) || rows.sum[i] == 0.0f;
        if (g == 0) {
            *reinterpret_cast<float4 *>(state) = make_float4(empty ? -INFINITY : rows.base[i],
                                                             empty ? 0.0f : rows.sum[i], p.queries[index].offset, 0.0f);
        }
#pragma unroll
        for (int n = 0; n < VD / 16; ++n) {
            float2 pair = make_float2(empty ? 0.0f : o[n][0][i], empty ? 0.0f : o[n][1][i]);
            *reinterpret_cast<float2 *>(state + CUDA_STATE_HEAD_FLOATS + 16 * n + 2 * g) = pair;
        }
    }
}

/* ---------------------------------------------------------------------------------------------- unit */

/* The unit's rows and tiles; false if there is nothing to do. */
PTX_FN bool load_unit(const attend_params &p, uint32_t index, unit &u)
{
    u.chunk = index % p.chunks;
    u.kv_head = index / p.chunks % p.kv_heads;
    u.sequence = index / p.chunks / p.kv_heads;
    const cuda_sequence s = p.sequences[u.sequence];
    if (s.q_len == 0 || u.chunk >= cuda_live_chunks(&p, s.kv_len)) {
        return false;
    }
    u.kv_len = (uint32_t)s.kv_len;
    u.rows = (uint32_t)s.q_len * p.group_rows;
    u.pages = p.page_table + (uint64_t)u.sequence * p.page_table_stride;
    int32_t first = INT32_MAX, end = 0;
    for (uint32_t token = 0; token < (uint32_t)s.q_len; ++token) {
        int32_t a, e;
        row_range(p, u, token * p.group_rows, a, e);
        if (e > a) {
            first = min(first, a);
            end = max(end, e);
        }
    }
    uint32_t chunk_first = (p.first_chunk + u.chunk) * NBL_CHUNK_TOKENS;
    uint32_t from = max((uint32_t)first, chunk_first);
    uint32_t to = min((uint32_t)end, chunk_first + NBL_CHUNK_TOKENS);
    u.first_tile = from / CUDA_TILE_TOKENS;
    u.end_tile = to > from ? (to + CUDA_TILE_TOKENS - 1u) / CUDA_TILE_TOKENS : u.first_tile;
    return true;
}

/* What a lane holds of a tile between its phases. The loops over groups are not unrolled (the code would not fit the
 * instruction cache); a group's values enter at the end and push the others on. */
template <int RPL> struct tile_values {
    float x[RPL][16];   /* float(I) * 2^ek of the lane's tokens */
    uint32_t ev[4];     /* bytes of V's exponents, four tokens a word */
    uint32_t packed[8]; /* P of two tokens: column 2t in the low half, 2t + 1 in the high one */
};

/* Takes the four tokens of a group in: sums of K parts, scales. */
template <int KD, int VD, int RPL>
PTX_FN void push_group(const warp_memory<KD, VD> &m, uint32_t side, uint32_t group, const int32_t (&s)[2][4],
                       const lane_rows<RPL> &rows, uint32_t g, tile_values<RPL> &v)
{
    const group_source &source = m.source[side][group];
    const bool biased = source.k_format != NBL_MXFP4;
    uint32_t ev[2][2];
#pragma unroll
    for (int n = 0; n < 12; ++n) {
#pragma unroll
        for (int i = 0; i < RPL; ++i) {
            v.x[i][n] = v.x[i][n + 4];
        }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        uint32_t ek[2];
        exponent_pair<KD>(m.k_scales[side][group], source.k_format, 16u * half + 2u * g, ek);
        exponent_pair<VD>(m.v_scales[side][group], source.v_format, 16u * half + 2u * g, ev[half]);
#pragma unroll
        for (int i = 0; i < RPL; ++i) {
            int32_t bias = biased ? rows.bias[i] : 0;
            v.x[i][12 + 2 * half] = (float)(s[half][i] + bias) * nbl_float_of(ek[0] << 23);
            v.x[i][13 + 2 * half] = (float)(s[half][2 + i] + bias) * nbl_float_of(ek[1] << 23);
        }
    }
    v.ev[0] = v.ev[1];
    v.ev[1] = v.ev[2];
    v.ev[2] = v.ev[3];
    v.ev[3] = ev[0][0] | ev[0][1] << 8 | ev[1][0] << 16 | ev[1][1] << 24;
}

/* Slots past the last token hold anything: gives them harmless values. */
template <int RPL> PTX_FN void clear_unused(int32_t used, uint32_t g, tile_values<RPL> &v)
{
    const uint32_t count = tokens_before(used - 2 * (int32_t)g);
#pragma unroll
    for (int n = 0; n < 16; ++n) {
        if ((uint32_t)n >= count) {
            v.ev[n / 4] = ptx_prmt(v.ev[n / 4], NBL_E8M0_BIAS, 0x3210u ^ ((n % 4 ^ 4) << (4 * (n % 4))));
#pragma unroll
            for (int i = 0; i < RPL; ++i) {
                v.x[i][n] = 0.0f;
            }
        }
    }
}

/* The walk of a warp over its unit. */
template <int KD, int VD, int RPL> struct walker {
    const attend_params &p;
    warp_memory<KD, VD> &m;
    const unit &u;
    uint32_t lane, g, t;
    cursor next;
    uint32_t ask_slot, slot;
    lane_rows<RPL> rows;
    tile_values<RPL> v;
    float o[VD / 16][2][RPL];

    /* Waits for the oldest part and asks for one more. */
    __device__ __forceinline__ const uint8_t *take_part()
    {
        ptx_cp_async_wait<RING - 2>();
        __syncwarp();
        ask_next<KD, VD>(p, u, next, ask_slot, m, lane);
        const uint8_t *part = m.ring[slot];
        slot = slot + 1u == RING ? 0u : slot + 1u;
        return part;
    }

    __device__ __forceinline__ void k_phase(uint32_t tile, uint32_t groups)
    {
        const uint32_t side = tile % 2u;
#pragma unroll 1
        for (uint32_t group = 0; group < GROUPS; ++group) {
            int32_t s[2][4] = {};
            uint32_t pieces = group < groups ? 1u : 0u;
#pragma unroll 1
            for (uint32_t piece = 0; piece < pieces; ++piece) {
                const uint8_t *part = take_part();
                const uint32_t format = m.source[side][group].k_format;
                pieces = pieces_of<KD>(format);
                k_part<KD>(part, m.k_scales[side][group], format, piece, &m.q[0][lane], g, t, s);
            }
            push_group<KD, VD, RPL>(m, side, min(group, groups - 1u), s, rows, g, v);
        }
    }

    __device__ __forceinline__ void softmax_phase(int32_t start, float (&b)[RPL])
    {
        if (start + (int32_t)CUDA_TILE_TOKENS > (int32_t)u.kv_len) {
            clear_unused<RPL>((int32_t)u.kv_len - start, g, v);
        }
#pragma unroll
        for (int i = 0; i < RPL; ++i) {
            uint32_t weights[16];
            float rescale;
            bool has_base = rows.has_base >> i & 1u;
            b[i] = column_softmax(v.x[i], v.ev, rows.scale[i], visible_bits(rows.first[i], rows.end[i], start, g),
                                  rows.base[i], rows.sum[i], has_base, rescale, weights);
            rows.has_base |= (uint32_t)has_base << i;
            if (__any_sync(0xffffffffu, rescale != 1.0f)) {
#pragma unroll
                for (int n = 0; n < VD / 16; ++n) {
                    o[n][0][i] *= rescale;
                    o[n][1][i] *= rescale;
                }
            }
#pragma unroll
            for (int n = 0; n < 8; ++n) {
                uint32_t pair = ptx_prmt(weights[2 * n], weights[2 * n + 1], 0x4040u);
                v.packed[n] = i == 0 ? pair : ptx_prmt(v.packed[n], pair, 0x5410u);
            }
        }
    }

    __device__ __forceinline__ void v_phase(uint32_t tile, uint32_t groups, int32_t (&acc)[RPL][VD / 16][4])
    {
        const uint32_t side = tile % 2u;
#pragma unroll 1
        for (uint32_t group = 0; group < groups; ++group) {
            const uint32_t weights[2] = {ptx_movmatrix_trans(v.packed[0]), ptx_movmatrix_trans(v.packed[1])};
            const uint32_t format = m.source[side][group].v_format;
            const uint8_t *scales = m.v_scales[side][group];
#pragma unroll
            for (int n = 0; n < 6; ++n) {
                v.packed[n] = v.packed[n + 2];
            }
#pragma unroll 1
            for (uint32_t piece = 0; piece < pieces_of<VD>(format); ++piece) {
                const uint8_t *part = take_part();
                if (format == NBL_INT4P) {
                    v_part_int4p<VD, RPL>(part, scales, piece, weights, g, t, acc);
                } else if (format == NBL_INT8) {
                    v_part_int8<VD, RPL>(part, piece, weights, g, t, acc);
                } else {
                    v_part_mxfp4<VD, RPL>(part, scales, piece, weights, g, t, acc);
                }
            }
        }
    }

    __device__ __forceinline__ void add_tile(const float (&b)[RPL], const int32_t (&acc)[RPL][VD / 16][4])
    {
#pragma unroll
        for (int n = 0; n < VD / 16; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
#pragma unroll
                for (int i = 0; i < RPL; ++i) {
                    int32_t low = RPL == 1 ? acc[0][n][2 * e] : acc[0][n][2 * e + i];
                    int32_t high = RPL == 1 ? acc[0][n][2 * e + 1] : acc[RPL - 1][n][2 * e + i];
                    float sum = (float)((low + 256 * high) >> 8);
                    o[n][e][i] = b[i] != 0.0f ? nbl_fma(sum, b[i], o[n][e][i]) : o[n][e][i];
                }
            }
        }
    }

    __device__ __forceinline__ void run()
    {
        for (uint32_t i = 0; i + 1u < RING; ++i) {
            ask_next<KD, VD>(p, u, next, ask_slot, m, lane);
        }
#pragma unroll 1
        for (uint32_t tile = u.first_tile; tile < u.end_tile; ++tile) {
            const uint32_t groups = groups_in(u, tile);
            float b[RPL];
            int32_t acc[RPL][VD / 16][4] = {};
            k_phase(tile, groups);
            softmax_phase((int32_t)(tile * CUDA_TILE_TOKENS), b);
            v_phase(tile, groups, acc);
            add_tile(b, acc);
        }
        write_states<VD, RPL>(p, u, rows, o, g, t);
        ptx_cp_async_wait<0>();
        __syncwarp();
    }
};

template <int KD, int VD, int RPL>
__global__ void __launch_bounds__(shape<KD, VD, RPL>::warps * 32, 1)
    decode_kernel(const __grid_constant__ attend_params p)
{
    extern __shared__ __align__(128) uint8_t memory[];
    warp_memory<KD, VD> &m = reinterpret_cast<warp_memory<KD, VD> *>(memory)[threadIdx.x / 32u];
    const uint32_t lane = threadIdx.x % 32u;
    const uint32_t units = p.batch * p.kv_heads * p.chunks;
    for (uint32_t index = threadIdx.x / 32u * gridDim.x + blockIdx.x; index < units;
         index += shape<KD, VD, RPL>::warps * gridDim.x) {
        unit found;
        if (load_unit(p, index, found)) {
            if (lane == 0) {
                m.u = found;
            }
            __syncwarp();
            const unit &u = m.u;
            const uint32_t first = u.first_tile * CUDA_TILE_TOKENS;
            walker<KD, VD, RPL> w = {p, m, u, lane, lane / 4u, lane % 4u};
            w.next = {u.first_tile, 0, 0, 0, first / p.pages.page_tokens, first % p.pages.page_tokens};
            w.ask_slot = w.slot = 0;
            load_queries<KD, VD, RPL>(p, u, m, lane);
            w.rows = load_rows<RPL>(p, u, w.t);
            w.v = {};
#pragma unroll
            for (int n = 0; n < VD / 16; ++n) {
#pragma unroll
                for (int i = 0; i < RPL; ++i) {
                    w.o[n][0][i] = w.o[n][1][i] = 0.0f;
                }
            }
            w.run();
        }
    }
}

template <int KD, int VD, int RPL> cudaError_t launch(const attend_params *p, cudaStream_t stream)
{
    constexpr int warps = shape<KD, VD, RPL>::warps;
    constexpr uint32_t bytes = warps * sizeof(warp_memory<KD, VD>);
    const uint64_t units = (uint64_t)p->batch * p->kv_heads * p->chunks;
    const uint64_t blocks = (units + warps - 1u) / warps;
    cudaError_t error =
        cudaFuncSetAttribute(decode_kernel<KD, VD, RPL>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess || units == 0) {
        return error;
    }
    decode_kernel<KD, VD, RPL>
        <<<(uint32_t)(blocks < p->processors ? blocks : p->processors), warps * 32, bytes, stream>>>(*p);
    return cudaGetLastError();
}

int format_is_taken(uint32_t format)
{
    return format == NBL_INT8 || format == NBL_INT4P || format == NBL_MXFP4;
}

} // namespace

int nbl_cuda_decode_supports(const attend_params *p)
{
    const int dims = p->k_dim == p->v_dim && (p->k_dim == 64u || p->k_dim == 128u || p->k_dim == 256u);
    if (!dims || !p->split || p->pages.page_tokens % GROUP != 0 || p->q_len_max * p->group_rows > 8u) {
        return 0;
    }
    for (uint32_t i = 0; i < p->pages.region_count; ++i) {
        const cuda_region *r = &p->pages.regions[i];
        if (!format_is_taken(r->k_format) || !format_is_taken(r->v_format)) {
            return 0;
        }
    }
    return p->cap == 0.0f && p->alibi_slopes == NULL && p->tree_mask == NULL;
}

cudaError_t nbl_cuda_attend_decode(const attend_params *p, cudaStream_t stream)
{
    const int few = p->q_len_max * p->group_rows <= 4u;
    switch (p->k_dim) {
    case 64: return few ? launch<64, 64, 1>(p, stream) : launch<64, 64, 2>(p, stream);
    case 128: return few ? launch<128, 128, 1>(p, stream) : launch<128, 128, 2>(p, stream);
    default: return few ? launch<256, 256, 1>(p, stream) : launch<256, 256, 2>(p, stream);
    }
}
