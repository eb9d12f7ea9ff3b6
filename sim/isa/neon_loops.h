/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file neon_loops.h
 * @brief Hot loops of attend for AArch64, compiled twice: with the dot product of signed or of unsigned bytes
 * (dotprod), and with that of mixed signs (i8mm). TABLE and NAME come from the file that includes it.
 *
 * A register holds 4 tokens x 4 d of K, or 4 d x 4 tokens of V (isa.h). Four rows share a register of query words or
 * weights, one per lane.
 */
#include "exp2grid.h"
#include "isa.h"
#include "rowsum.h"

#include <arm_neon.h>

#define LANES 4u
#define LINE 16u /* bytes of a register */
#define PARTS (SIM_GROUP / LANES)
#define ROWS 4u
#define LINES 4u /* registers of codes in flight */

/** A loop body that is compiled once for each set of constant arguments. */
#define UNROLLED static inline __attribute__((always_inline))

/* ------------------------------------------------------------------------------------------------ bytes */

#define SHIFTED_0(x) (x)
#define SHIFTED_1(x) (2 * (x))
#define SHIFTED_2(x) (4 * (x))
#define SHIFTED_3(x) (8 * (x))

/* mxfp4: entry 16 * shift + code is (2 * e2m1) << shift. */
static const int8_t mxfp4_table[64] = {NBL_E2M1_CODES(SHIFTED_0), NBL_E2M1_CODES(SHIFTED_1), NBL_E2M1_CODES(SHIFTED_2),
                                       NBL_E2M1_CODES(SHIFTED_3)};

static uint8x16_t flip(uint8x16_t bytes)
{
    return veorq_u8(bytes, vdupq_n_u8(0x80));
}

static uint8x16_t broadcast_dword(const uint8_t *bytes)
{
    uint32_t dword;
    memcpy(&dword, bytes, sizeof dword);
    return vreinterpretq_u8_u32(vdupq_n_u32(dword));
}

/* Four bytes, each four times. */
static uint8x16_t four_of_each(const uint8_t *bytes)
{
    static const uint8_t places[LINE] = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
    return vqtbl1q_u8(broadcast_dword(bytes), vld1q_u8(places));
}

/* ------------------------------------------------------------------------------------------------ scales */

static uint8_t exponent_byte(const sim_group *group, uint32_t plane, uint32_t token)
{
    return nbl_e8m0_encode(nbl_e8m0_decode_slot(group->scales[plane * group->plane_stride + token]));
}

/* Smallest block exponents of an mxfp4 group, as bytes. */
static void least_exponent_bytes(const sim_group *group, uint8_t *least)
{
    for (uint32_t t = 0; t < SIM_GROUP; ++t) {
        least[t] = exponent_byte(group, 0, t);
        for (uint32_t b = 1; b < nbl_layout_scale_planes(group->format, group->dim); ++b) {
            uint8_t e = exponent_byte(group, b, t);
            least[t] = e < least[t] ? e : least[t];
        }
    }
}

/* Canonical exponents of 32 tokens (NUM 2.3 to 2.5). */
static void exponents_of(const sim_group *group, int32_t *exponents)
{
    uint8_t bytes[SIM_GROUP];
    int32_t less = 0;
    if (group->format == NBL_INT8 || group->format == NBL_INT4P) {
        uint32_t plane = nbl_layout_exponent_plane(group->format, group->dim);
        for (uint32_t t = 0; t < SIM_GROUP; ++t) {
            bytes[t] = exponent_byte(group, plane, t);
        }
    } else {
        least_exponent_bytes(group, bytes);
        less = 1;
    }
    for (uint32_t t = 0; t < SIM_GROUP; ++t) {
        exponents[t] = nbl_e8m0_decode(bytes[t]) - less;
    }
}

/* A byte per block of 16 elements and token: m - 1 of int4p, 16 * (e_b - e_min) of mxfp4. */
typedef struct block_scales {
    uint8_t bytes[NBL_DIM_PADDED_MAX / SIM_BLOCK][SIM_GROUP];
} block_scales;

static void block_scales_of(const sim_group *group, block_scales *out)
{
    uint8_t least[SIM_GROUP];
    uint32_t blocks = nbl_layout_block_dim(group->format, group->dim) / SIM_BLOCK;
    if (group->format != NBL_INT4P) {
        least_exponent_bytes(group, least);
    }
    for (uint32_t b = 0; b < nbl_layout_dim_padded(group->dim) / SIM_BLOCK; ++b) {
        for (uint32_t t = 0; t < SIM_GROUP; ++t) {
            uint32_t pair = group->scales[b / 2u * group->plane_stride + t];
            out->bytes[b][t] =
                group->format == NBL_INT4P
                    ? (uint8_t)((pair >> (4u * (b % 2u))) & 15u)
                    : (uint8_t)(((exponent_byte(group, b / blocks, t) - least[t]) & NBL_BLOCK_E_SPREAD) << 4);
        }
    }
}

/* Codes of 16 nibbles and their scales. */
UNROLLED int8x16_t decode_nibbles(int is_int4p, uint8x16_t nibbles, uint8x16_t scales)
{
    if (is_int4p) {
        int8x16_t q = vsubq_s8(vreinterpretq_s8_u8(nibbles), vdupq_n_s8(8));
        return vmlaq_s8(q, q, vreinterpretq_s8_u8(scales)); /* q + q * (m - 1) */
    }
    return vqtbl4q_s8(vld1q_s8_x4(mxfp4_table), vorrq_u8(nibbles, scales));
}

/* ------------------------------------------------------------------------------------------------ decoding */

UNROLLED void decode_k_4bit(int is_int4p, const sim_group *group, uint8_t *codes)
{
    block_scales scales;
    block_scales_of(group, &scales);
    for (uint32_t pair = 0; pair < nbl_layout_dim_padded(group->dim) / 8u; ++pair, codes += 8u * SIM_GROUP) {
        const uint8_t *stored = group->codes + pair * 4u * SIM_GROUP;
        for (uint32_t part = 0; part < PARTS; ++part) {
            uint8x16_t scale = four_of_each(scales.bytes[pair / 2u] + part * LANES);
            uint8x16_t bytes = vld1q_u8(stored + part * LINE);
            int8x16_t low = decode_nibbles(is_int4p, vandq_u8(bytes, vdupq_n_u8(15)), scale);
            int8x16_t high = decode_nibbles(is_int4p, vshrq_n_u8(bytes, 4), scale);
            vst1q_u8(codes + part * LINE, flip(vreinterpretq_u8_s8(low)));
            vst1q_u8(codes + (PARTS + part) * LINE, flip(vreinterpretq_u8_s8(high)));
        }
    }
}

static void decode_k(const sim_group *group, uint8_t *codes, float *unit)
{
    int32_t exponents[SIM_GROUP];
    exponents_of(group, exponents);
    for (uint32_t t = 0; t < SIM_GROUP; ++t) {
        unit[t] = nbl_pow2(exponents[t]);
    }
    if (group->format == NBL_INT4P) {
        decode_k_4bit(1, group, codes);
    } else if (group->format != NBL_INT8) {
        decode_k_4bit(0, group, codes);
    } else {
        for (uint32_t i = 0; i < SIM_GROUP * nbl_layout_dim_padded(group->dim); i += LINE) {
            vst1q_u8(codes + i, flip(vld1q_u8(group->codes + i)));
        }
    }
}

UNROLLED void decode_v_4bit(int is_int4p, const sim_group *group, int8_t *codes)
{
    const uint8_t *stored = group->codes;
    block_scales scales;
    block_scales_of(group, &scales);
    for (uint32_t quad = 0; quad < SIM_GROUP / 4u; ++quad) {
        for (uint32_t block = 0; block < nbl_layout_dim_padded(group->dim) / SIM_BLOCK; block += 2u, codes += 128) {
            uint8x16_t low_scale = broadcast_dword(scales.bytes[block] + 4u * quad);
            uint8x16_t high_scale = broadcast_dword(scales.bytes[block + 1u] + 4u * quad);
            for (uint32_t i = 0; i < 4u; ++i, stored += LINE) {
                uint8x16_t bytes = vld1q_u8(stored);
                vst1q_s8(codes + i * LINE, decode_nibbles(is_int4p, vandq_u8(bytes, vdupq_n_u8(15)), low_scale));
                vst1q_s8(codes + (4u + i) * LINE, decode_nibbles(is_int4p, vshrq_n_u8(bytes, 4), high_scale));
            }
        }
    }
}

static void decode_v(const sim_group *group, int8_t *codes, float *exponent, float *weight)
{
    int32_t exponents[SIM_GROUP];
    exponents_of(group, exponents);
    for (uint32_t t = 0; t < SIM_GROUP; ++t) {
        exponent[t] = (float)exponents[t];
        weight[t] = nbl_pow2(-exponents[t]);
    }
    if (group->format == NBL_INT4P) {
        decode_v_4bit(1, group, codes);
    } else if (group->format != NBL_INT8) {
        decode_v_4bit(0, group, codes);
    } else {
        memcpy(codes, group->codes, SIM_GROUP * nbl_layout_dim_padded(group->dim));
    }
}

/* ------------------------------------------------------------------------------------------------ dot products */

/* sums[r] += a line of K (code + 128) times lane r of the query words. */
UNROLLED void add_qk(int32x4_t *sums, uint8x16_t line, int8x16_t words)
{
#ifdef __ARM_FEATURE_MATMUL_INT8
    sums[0] = vusdotq_laneq_s32(sums[0], line, words, 0);
    sums[1] = vusdotq_laneq_s32(sums[1], line, words, 1);
    sums[2] = vusdotq_laneq_s32(sums[2], line, words, 2);
    sums[3] = vusdotq_laneq_s32(sums[3], line, words, 3);
#else
    int8x16_t codes = vreinterpretq_s8_u8(flip(line));
    sums[0] = vdotq_laneq_s32(sums[0], codes, words, 0);
    sums[1] = vdotq_laneq_s32(sums[1], codes, words, 1);
    sums[2] = vdotq_laneq_s32(sums[2], codes, words, 2);
    sums[3] = vdotq_laneq_s32(sums[3], codes, words, 3);
#endif
}

/* sums[r] += a line of V times lane r of the weights; without i8mm a line of V + 128. */
UNROLLED void add_pv(int32x4_t *sums, int8x16_t line, uint8x16_t weights)
{
#ifdef __ARM_FEATURE_MATMUL_INT8
    sums[0] = vsudotq_laneq_s32(sums[0], line, weights, 0);
    sums[1] = vsudotq_laneq_s32(sums[1], line, weights, 1);
    sums[2] = vsudotq_laneq_s32(sums[2], line, weights, 2);
    sums[3] = vsudotq_laneq_s32(sums[3], line, weights, 3);
#else
    uint8x16_t codes = flip(vreinterpretq_u8_s8(line));
    sums[0] = vreinterpretq_s32_u32(vdotq_laneq_u32(vreinterpretq_u32_s32(sums[0]), codes, weights, 0));
    sums[1] = vreinterpretq_s32_u32(vdotq_laneq_u32(vreinterpretq_u32_s32(sums[1]), codes, weights, 1));
    sums[2] = vreinterpretq_s32_u32(vdotq_laneq_u32(vreinterpretq_u32_s32(sums[2]), codes, weights, 2));
    sums[3] = vreinterpretq_s32_u32(vdotq_laneq_u32(vreinterpretq_u32_s32(sums[3]), codes, weights, 3));
#endif
}

/* Dwords of up to four rows, `stride` dwords apart; 0 for the rows that are missing. */
static uint8x16_t dwords_of_rows(const void *first, uint32_t stride, uint32_t rows)
{
    uint32_t dwords[ROWS] = {0};
    for (uint32_t r = 0; r < rows; ++r) {
        memcpy(&dwords[r], (const uint8_t *)first + (uint64_t)r * stride * sizeof dwords[r], sizeof dwords[r]);
    }
    return vreinterpretq_u8_u32(vld1q_u32(dwords));
}

/* Up to four rows from row `first` against 16 tokens. */
static void dot_qk_block(const sim_tile *tile, uint32_t token, const sim_rows *q, uint32_t first, const int32_t *bias,
                         float *x)
{
    uint32_t rows = q->count - first < ROWS ? q->count - first : ROWS;
    const uint8_t *k =
        tile->k + (uint64_t)(token / SIM_GROUP) * SIM_GROUP * tile->k_dim + token % SIM_GROUP / LANES * LINE;
    int32x4_t sums[LINES][ROWS];
    for (uint32_t i = 0; i < LINES; ++i) {
        for (uint32_t r = 0; r < ROWS; ++r) {
            sums[i][r] = vdupq_n_s32(r < rows ? bias[r] : 0);
        }
    }
    for (uint32_t quad = 0; quad < tile->k_dim / 4u; ++quad, k += PARTS * LINE) {
        int8x16_t words = vreinterpretq_s8_u8(dwords_of_rows(q->words + quad * q->count + first, 1, rows));
        for (uint32_t i = 0; i < LINES; ++i) {
            add_qk(sums[i], vld1q_u8(k + i * LINE), words);
        }
    }
    for (uint32_t r = 0; r < rows; ++r) {
        for (uint32_t i = 0; i < LINES; ++i) {
            uint32_t at = token + i * LANES;
            vst1q_f32(x + (uint64_t)(first + r) * SIM_TILE + at,
                      vmulq_f32(vcvtq_f32_s32(sums[i][r]), vld1q_f32(tile->unit + at)));
        }
    }
}

static void dot_qk(const sim_tile *tile, const sim_rows *q, float *x)
{
#ifdef __ARM_FEATURE_MATMUL_INT8
    const int32_t *bias = q->bias;
#else
    const int32_t bias[SIM_ROWS_MAX] = {0};
#endif
    for (uint32_t r = 0; r < q->count; r += ROWS) {
        for (uint32_t token = 0; token < tile->groups * SIM_GROUP; token += LINES * LANES) {
            dot_qk_block(tile, token, q, r, bias + r, x);
        }
    }
}

/* What a row's sums start with: without i8mm, minus 128 times the sum of its weights. */
static int32_t pv_start(const uint8_t *p, uint32_t tokens)
{
    int32_t sum = 0;
#ifndef __ARM_FEATURE_MATMUL_INT8
    for (uint32_t t = 0; t < tokens; ++t) {
        sum -= 128 * p[t];
    }
#else
    (void)p, (void)tokens;
#endif
    return sum;
}

/* Up to four rows times 16 elements of V from element d. */
static void dot_pv_block(const sim_tile *tile, const uint8_t *p, float *const *o, const float *b, const int32_t *starts,
                         uint32_t rows, uint32_t d)
{
    const int8_t *v = tile->v + d * 4u;
    int32x4_t sums[LINES][ROWS];
    for (uint32_t i = 0; i < LINES; ++i) {
        for (uint32_t r = 0; r < ROWS; ++r) {
            sums[i][r] = vdupq_n_s32(r < rows ? starts[r] : 0);
        }
    }
    for (uint32_t quad = 0; quad < tile->groups * (SIM_GROUP / 4u); ++quad, v += 4u * (uint64_t)tile->v_dim) {
        uint8x16_t weights = dwords_of_rows(p + 4u * quad, SIM_TILE / 4u, rows);
        for (uint32_t i = 0; i < LINES; ++i) {
            add_pv(sums[i], vld1q_s8(v + i * LINE), weights);
        }
    }
    for (uint32_t r = 0; r < rows; ++r) {
        for (uint32_t i = 0; i < LINES; ++i) {
            float *to = o[r] + d + i * LANES;
            vst1q_f32(to, vfmaq_n_f32(vld1q_f32(to), vcvtq_f32_s32(sums[i][r]), b[r]));
        }
    }
}

static void dot_pv(const sim_tile *tile, const uint8_t *p, float *const *o, const float *b, uint32_t rows)
{
    for (uint32_t r = 0; r < rows; r += ROWS) {
        uint32_t some = rows - r < ROWS ? rows - r : ROWS;
        const uint8_t *weights = p + (uint64_t)r * SIM_TILE;
        int32_t starts[ROWS] = {0};
        for (uint32_t i = 0; i < some; ++i) {
            starts[i] = pv_start(weights + (uint64_t)i * SIM_TILE, tile->groups * SIM_GROUP);
        }
        for (uint32_t d = 0; d < tile->v_dim; d += LINES * LANES) {
            dot_pv_block(tile, weights, o + r, b + r, starts, some, d);
        }
    }
}

/* ------------------------------------------------------------------------------------------------ softmax */

#define PARTS_MAX (SIM_TILE / LANES)

/* All-ones lanes for the visible ones of tokens 4i..4i+3. */
static uint32x4_t visible_lanes(const sim_row_tile *row, uint32_t i)
{
    static const uint32_t bits[LANES] = {1, 2, 4, 8};
    uint32_t nibble = (uint32_t)(row->visible[i / 16u] >> (4u * (i % 16u))) & 15u;
    return vtstq_u32(vdupq_n_u32(nibble), vld1q_u32(bits));
}

static float32x4_t max_visible(const sim_row_tile *row, uint32_t i, float32x4_t most, float32x4_t x)
{
    return vbslq_f32(vandq_u32(visible_lanes(row, i), vcgtq_f32(x, most)), x, most);
}

static float base_of(const sim_row_tile *row)
{
    float32x4_t most = vdupq_n_f32(-INFINITY);
    for (uint32_t i = 0; i < row->groups * PARTS; ++i) {
        float32x4_t z = vfmaq_n_f32(vld1q_f32(row->a + i * LANES), vld1q_f32(row->x + i * LANES), row->scale);
        most = max_visible(row, i, most, z);
    }
    return nbl_clamp_f32(nbl_ceil(vmaxvq_f32(most)), -NBL_LOGIT_MAX, NBL_LOGIT_MAX);
}

/* t of all tokens, at most `limit`; the largest of the visible ones is returned. */
static float grid_logits(const sim_row_tile *row, float base, float limit, float32x4_t *t)
{
    float32x4_t most = vdupq_n_f32(-INFINITY);
    for (uint32_t i = 0; i < row->groups * PARTS; ++i) {
        float32x4_t a = vsubq_f32(vld1q_f32(row->a + i * LANES), vdupq_n_f32(base));
        float32x4_t value = vfmaq_n_f32(vaddq_f32(a, vdupq_n_f32(NBL_GRID)), vld1q_f32(row->x + i * LANES), row->scale);
        t[i] = vminq_f32(value, vdupq_n_f32(limit));
        most = max_visible(row, i, most, t[i]);
    }
    return vmaxvq_f32(most);
}

/* p of the visible tokens, 0 for the others; see softmax_avx512.c. u = t - m + GRID. */
static float32x4_t grid_exp2(float32x4_t u, uint32x4_t visible)
{
    uint32x4_t bits = vshlq_n_u32(vreinterpretq_u32_f32(u), 15);
    uint32x4_t floor = vandq_u32(bits, vdupq_n_u32(0xff800000u));
    uint32x4_t fraction = vandq_u32(bits, vdupq_n_u32(0x007fffffu));
    float32x4_t g = vreinterpretq_f32_u32(vorrq_u32(fraction, vdupq_n_u32(0x3f800000u)));
    float32x4_t p = vfmaq_f32(vdupq_n_f32(SIM_GRID_C3), vdupq_n_f32(SIM_GRID_C4), g);
    p = vfmaq_f32(vdupq_n_f32(SIM_GRID_C2), p, g);
    p = vfmaq_f32(vdupq_n_f32(SIM_GRID_C1), p, g);
    p = vfmaq_f32(vdupq_n_f32(SIM_GRID_C0), p, g);
    uint32x4_t kept = vandq_u32(visible, vcgeq_f32(u, vdupq_n_f32(NBL_GRID + NBL_WEIGHT_MIN)));
    return vreinterpretq_f32_u32(vandq_u32(vaddq_u32(vreinterpretq_u32_f32(p), floor), kept));
}

/* q of NUM 5.4: no p is near a tie (NUM 5.5), so rounding half up is RNE. */
static float32x4_t round_to_bf16(float32x4_t p)
{
    uint32x4_t rounded = vaddq_u32(vreinterpretq_u32_f32(p), vdupq_n_u32(0x8000u));
    return vreinterpretq_f32_u32(vandq_u32(rounded, vdupq_n_u32(0xffff0000u)));
}

/* P of 16 tokens; adds to their sixteen sums. */
static uint8x16_t weigh(const sim_row_tile *row, const float32x4_t *t, float32x4_t distance, uint32_t first,
                        float32x4_t *sums)
{
    uint16x4_t words[4];
    for (uint32_t j = 0; j < 4u; ++j) {
        float32x4_t e = grid_exp2(vsubq_f32(t[first + j], distance), visible_lanes(row, first + j));
        float32x4_t weight = vfmaq_n_f32(vdupq_n_f32(NBL_MAGIC), e, NBL_P_SCALE);
        sums[j] = vfmaq_f32(sums[j], round_to_bf16(e), vld1q_f32(row->weight + (first + j) * LANES));
        words[j] = vmovn_u32(vreinterpretq_u32_f32(weight));
    }
    return vcombine_u8(vmovn_u16(vcombine_u16(words[0], words[1])), vmovn_u16(vcombine_u16(words[2], words[3])));
}

static sim_softmax softmax(const sim_row_tile *row, float base, int first, uint8_t *p)
{
    float32x4_t t[PARTS_MAX];
    float32x4_t sums[4] = {vdupq_n_f32(0.0f), vdupq_n_f32(0.0f), vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)};
    float partial[NBL_PARTIAL_SUMS];
    sim_softmax out = {first ? base_of(row) : base, 1.0f, 0.0f, 0.0f, 0};
    float most = grid_logits(row, out.base, INFINITY, t);
    if (most > NBL_GRID + NBL_REBASE) {
        float moved = fmaxf(out.base, base_of(row));
        out.rescale = nbl_pow2f(out.base - moved);
        out.base = moved;
        most = grid_logits(row, moved, NBL_GRID + NBL_REBASE, t);
    }
    if (most - NBL_GRID < NBL_WEIGHT_MIN) {
        out.left_out = 1;
        return out;
    }
    for (uint32_t i = 0; i < row->groups * PARTS; i += 4u) {
        vst1q_u8(p + i * LANES, weigh(row, t, vdupq_n_f32(most - NBL_GRID), i, sums));
    }
    for (uint32_t j = 0; j < 4u; ++j) {
        vst1q_f32(partial + j * LANES, sums[j]);
    }
    out.l = nbl_sum_tree(partial);
    out.b = nbl_grid_base(most - NBL_GRID);
    return out;
}

const sim_isa TABLE = {
    .name = NAME,
    .row = &sim_row_loops_scalar,
    .decode_k = decode_k,
    .decode_v = decode_v,
    .dot_qk = dot_qk,
    .softmax = softmax,
    .dot_pv = dot_pv,
};
