/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file quantize32.cuh
 * @brief The quantizers of NUM 3 on the 32 elements of a lane, and back.
 *
 * Rounding to an integer is one addition of NBL_MAGIC, whose unit in the last place is 1: the integer is then in the
 * low bits of the sum. The results are those of core/num/quantize.h for every input; the cases that need its clamps
 * (a vector beyond the largest exponent) go through it.
 *
 * 4-bit codes leave as words of K (F3): byte j of word i holds element 8i + j low and 8i + 4 + j high.
 */
#ifndef CUDA_QUANTIZE32_H
#define CUDA_QUANTIZE32_H

#include "decode4.cuh"
#include "vector32.cuh"

#define INT8_SATURATES 127.5f /* rounds to 128 */
#define RECIPROCALS \
    (NBL_INT4P_MULTIPLIER_MAX + 2u) /* of 0..17; the first, of 1, and the last are never used for a code */

/** What a lane's elements became. */
struct codes32 {
    uint32_t words[VECTOR32 / 4u]; /**< 4 of a 4-bit format, 8 of int8 */
    int32_t exponent[2];           /**< of both halves; those of int8 and int4p are equal */
    uint32_t multiplier[2];        /**< m_b of int4p */
    uint32_t saturated;
};

/** What there is to know about the elements first. */
struct range32 {
    float half[2];   /**< largest magnitude of the lane's elements 0..15 and 16..31 */
    float sign[2];   /**< 1, or -1: the half's elements are those of the vector negated */
    uint32_t vector; /**< largest magnitude of the vector, as bits */
};

/** 1 / m of every multiplier, in shared memory; by all threads, before a barrier. */
CUDA_DEVICE void reciprocals_fill(float *reciprocals)
{
    if (threadIdx.x < RECIPROCALS) {
        reciprocals[threadIdx.x] = 1.0f / (float)max(threadIdx.x, 1u);
    }
}

/** Largest magnitudes; a NaN counts as larger than anything. All lanes of the warp call it. */
template <bool FOUR = false> CUDA_DEVICE range32 range32_of(const float (&x)[VECTOR32], const team32 &team)
{
    range32 out = {{0.0f, 0.0f}, {1.0f, 1.0f}, 0};
#pragma unroll
    for (uint32_t i = 0; i < VECTOR32 / 2u; ++i) {
        out.half[0] = ptx_max_nan(out.half[0], fabsf(x[i]));
        out.half[1] = ptx_max_nan(out.half[1], fabsf(x[VECTOR32 / 2u + i]));
    }
    out.vector = max(nbl_bits_of(out.half[0]), nbl_bits_of(out.half[1]));
    out.vector = FOUR ? team32_max4(out.vector) : team32_max(team, out.vector);
    return out;
}

/* x brought into [-limit, limit]; x is no NaN. Two instructions, which comparisons would not be. */
CUDA_DEVICE float clamp_finite(float x, float limit)
{
    return fminf(fmaxf(x, -limit), limit);
}

/* ------------------------------------------------------------------------------------------------ int8 */

/* A vector beyond the largest exponent: its elements, given in units, are clamped. Returns how many. Rare, and so a
 * short loop over local memory. */
CUDA_DEVICE uint32_t int8_saturated(const float *y, uint8_t *codes)
{
    uint32_t saturated = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < VECTOR32; ++i) {
        codes[i] = (uint8_t)nbl_bits_of(clamp_finite(y[i], (float)NBL_INT8_CODE_MAX) + NBL_MAGIC);
        saturated += fabsf(y[i]) >= INT8_SATURATES;
    }
    return saturated;
}

/* The same, of a lane's elements. */
CUDA_DEVICE void quantize32_int8_saturated(const float (&x)[VECTOR32], const float (&inverse)[2], codes32 *out)
{
    float y[VECTOR32];
    uint8_t codes[VECTOR32];
#pragma unroll
    for (uint32_t i = 0; i < VECTOR32; ++i) {
        y[i] = x[i] * inverse[i / BLOCK16];
    }
    out->saturated = int8_saturated(y, codes);
    memcpy(out->words, codes, sizeof codes);
}

/** int8 (NUM 3.2). */
CUDA_DEVICE void quantize32_int8(const float (&x)[VECTOR32], const range32 &range, codes32 *out)
{
    int32_t e = nbl_exponent_for(nbl_float_of(range.vector), (float)NBL_INT8_CODE_MAX, NBL_E_MIN, NBL_E_MAX);
    __builtin_assume(e >= NBL_E_MIN && e <= NBL_E_MAX);
    float unit = nbl_pow2(-e);
    float inverse[2] = {range.sign[0] * unit, range.sign[1] * unit};
    out->exponent[0] = out->exponent[1] = e;
    out->multiplier[0] = out->multiplier[1] = 1;
    out->saturated = 0;
    if (nbl_float_of(range.vector) * unit > (float)NBL_INT8_CODE_MAX) {
        quantize32_int8_saturated(x, inverse, out);
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < VECTOR32 / 4u; ++i) {
        uint32_t bits[4];
#pragma unroll
        for (uint32_t j = 0; j < 4u; ++j) { /* the product is exact, or far below 1/2 */
            bits[j] = nbl_bits_of(nbl_fma(x[4u * i + j], inverse[4u * i / BLOCK16], NBL_MAGIC));
        }
        out->words[i] = ptx_prmt(ptx_prmt(bits[0], bits[1], 0x0040u), ptx_prmt(bits[2], bits[3], 0x0040u), 0x5410u);
    }
}

/* ------------------------------------------------------------------------------------------------ int4p */

/* The search of NUM 3.5, in units of 1 instead of 2^E, and with one rounding less per product (docs/adr/0017). What
 * differs from the rule:
 *
 * - q = RNE(x * r) without rounding the product first. It is another integer than the rule's only if x * r is within
 *   2^-19 of a tie; both neighbours then have the same squared error, up to 2^-16 of it.
 * - Sums of squares are rounded alike unless they or their terms are subnormal, thus below 2^-50 of an error that is
 *   not the same for all multipliers: two multipliers m, m' either take an element to the same q * m = q' * m', with
 *   one and the same difference, or to integers apart, and then one of the differences is 1/2 at least.
 *
 * So two errors further apart than INT4P_APART of the smaller one are in the right order. Where they are not, the rule
 * itself decides. Elements that are codes of a stored vector times a power of two are multiples of 1/2 in units of 2^E:
 * ties are exact, all sums are, and the order always is right. */
#define INT4P_APART 0x1p-14f
#define INT4P_ALL_ZERO 0.4f /* a block below this has codes 0 only, whatever the multiplier */

/* The error for multiplier m: inverse is fl(1/m) * 2^-E (CLAMP: a 14th of it), unit m * 2^E. CLAMP: elements may be
 * beyond 7 units; x / unit is then brought into [-7, 7] as a number in [0, 1], which costs it 2^-21. */
template <bool CLAMP> CUDA_DEVICE float int4p_error(const float *x, float inverse, float unit)
{
    const float width = 2.0f * (float)NBL_INT4P_CODE_MAX;
    float error = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        float sum;
        if (CLAMP) {
            float place = __saturatef(nbl_fma(x[i], inverse, 0.5f));
            sum = nbl_fma(place, width, NBL_MAGIC - (float)NBL_INT4P_CODE_MAX);
        } else {
            sum = nbl_fma(x[i], inverse, NBL_MAGIC);
        }
        float difference = nbl_fma(-(sum - NBL_MAGIC), unit, x[i]);
        error = nbl_fma(difference, difference, error);
    }
    return error;
}

/* The codes for a multiplier, by the rule: two words of K. inverse is fl(1/m) * 2^-E; |x * inverse| < 2^14. Halves of a
 * word hold q, then q + 7 brought into 0..14, then the code q + 8. */
CUDA_DEVICE void int4p_codes(const float *x, float inverse, uint32_t *words)
{
    uint32_t sevens = ptx_keep(0x00070007u);
#pragma unroll
    for (uint32_t w = 0; w < 2u; ++w) {
        uint32_t sum[8];
        uint32_t pair[4]; /* of elements 0 and 2, 1 and 3, 4 and 6, 5 and 7 */
#pragma unroll
        for (uint32_t i = 0; i < 8u; ++i) {
            sum[i] = nbl_bits_of(x[8u * w + i] * inverse + NBL_MAGIC);
        }
#pragma unroll
        for (uint32_t i = 0; i < 4u; ++i) {
            uint32_t first = i / 2u * 4u + i % 2u;
            pair[i] = __viaddmin_s16x2_relu(ptx_prmt(sum[first], sum[first + 2u], 0x5410u), sevens, 0x000e000eu);
        }
        words[w] = pair[0] + (pair[2] << 4) + ((pair[1] + (pair[3] << 4)) << 8) + 0x11111111u;
    }
}

/* Two words of K from the codes of half a lane. */
CUDA_DEVICE void words_of_codes(const uint8_t *codes, uint32_t *words)
{
#pragma unroll
    for (uint32_t i = 0; i < 2u; ++i) {
        uint32_t low, high;
        memcpy(&low, &codes[8u * i], sizeof low);
        memcpy(&high, &codes[8u * i + 4u], sizeof high);
        words[i] = low + (high << 4);
    }
}

/* What a block of int4p became. */
struct int4p_codes_of {
    uint32_t words[2];
    uint32_t multiplier;
    uint32_t saturated;
};

/* A block as core/num has it, elements in memory, unit +-2^-E: all of it, or only what is saturated for a multiplier
 * found before. Rare, and so a function of its own. */
static __device__ __noinline__ void int4p_by_rule(const float *x, float unit, bool searches, int4p_codes_of *out)
{
    float y[BLOCK16];
    uint8_t codes[BLOCK16];
    uint64_t saturated = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        y[i] = x[i] * unit;
    }
    out->multiplier = searches ? (uint32_t)nbl_int4p_choose_multiplier(y, BLOCK16) : out->multiplier;
    float inverse = 1.0f / (float)out->multiplier;
#pragma unroll 1
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        codes[i] = (uint8_t)(nbl_round_clamped(y[i] * inverse, NBL_INT4P_CODE_MAX, &saturated) + 8);
    }
    out->saturated = (uint32_t)saturated;
    words_of_codes(codes, out->words);
}

/* What the search finds for a block. */
struct int4p_choice {
    float multiplier;
    float reciprocal;
    bool is_near; /* too near to tell */
};

/* Searches the multiplier of a block whose largest element is amax * 2^E, amax <= 112; unit is +-2^-E, of_unit +-2^E.
 * Without a branch, so that the searches of both halves of a lane overlap. */
template <bool EXACT>
CUDA_DEVICE int4p_choice int4p_search(const float *x, float amax, float unit, float of_unit, const float *reciprocals)
{
    float nearest = nbl_fma(amax, 1.0f / (float)NBL_INT4P_CODE_MAX, NBL_MAGIC) - NBL_MAGIC;
    float m0 = fmaxf(nearest * (float)NBL_INT4P_CODE_MAX < amax ? nearest + 1.0f : nearest, 1.0f); /* of the rule */
    const float *reciprocal = &reciprocals[nbl_bits_of(m0 + NBL_MAGIC) & 31u];
    float low_inverse = reciprocal[-1], middle_inverse = reciprocal[0], high_inverse = reciprocal[1];
    float low = int4p_error<true>(x, low_inverse * (unit * (0.5f / (float)NBL_INT4P_CODE_MAX)), (m0 - 1.0f) * of_unit);
    float middle = int4p_error<false>(x, middle_inverse * unit, m0 * of_unit);
    float high = int4p_error<false>(x, high_inverse * unit, (m0 + 1.0f) * of_unit);
    low = m0 > 1.0f ? low : INFINITY;
    high = m0 < (float)NBL_INT4P_MULTIPLIER_MAX ? high : INFINITY;
    float best = fminf(low, middle);
    int4p_choice out;
    out.is_near = (fabsf(middle - low) < INT4P_APART * middle) | (fabsf(high - best) < INT4P_APART * best);
    out.is_near = !EXACT & out.is_near & (amax > INT4P_ALL_ZERO);
    out.multiplier = middle < low ? m0 : m0 - 1.0f;
    out.reciprocal = middle < low ? middle_inverse : low_inverse;
    out.multiplier = high < best ? m0 + 1.0f : out.multiplier;
    out.reciprocal = high < best ? high_inverse : out.reciprocal;
    return out;
}

/* One block of int4p. elements: the same in memory, or NULL; amax is |largest element| * 2^-E; unit is +-2^-E, of_unit
 * +-2^E; counts: saturated elements are to be counted. */
template <bool EXACT>
CUDA_DEVICE int4p_codes_of int4p_block(const float (&x)[BLOCK16], const float *elements, float amax, float unit,
                                       float of_unit, const float *reciprocals, bool counts)
{
    int4p_choice choice = int4p_search<EXACT>(x, fminf(amax, NBL_INT4P_PEAK), unit, of_unit, reciprocals);
    int4p_codes_of out = {{0, 0}, nbl_bits_of(choice.multiplier + NBL_MAGIC) & 31u, 0};
    int4p_codes(x, choice.reciprocal * unit, out.words);
    bool asks = choice.is_near | (amax > NBL_INT4P_PEAK); /* or beyond the largest exponent */
    if (asks || counts) {
        float y[BLOCK16];
        int4p_codes_of other = out;
        if (elements == NULL) {
            memcpy(y, x, sizeof y);
        }
        int4p_by_rule(elements == NULL ? y : elements, unit, asks, &other);
        out = other;
    }
    return out;
}

/** How a caller of quantize32 is. */
enum quantize_mode {
    QUANTIZE_MANY, /**< vector after vector */
    QUANTIZE_ONCE, /**< code that runs once: shorter, although it takes longer */
    QUANTIZE_CODES /**< vector after vector of stored codes times one power of two */
};

/* int4p (NUM 3.5) of the halves that block_of(half, amax, sign, unit, of_unit) gives codes of; ROLLED: as a loop. */
template <bool ROLLED, typename BLOCK>
CUDA_DEVICE void int4p_halves(const BLOCK &block_of, const range32 &range, codes32 *out)
{
    int32_t e = nbl_exponent_for(nbl_float_of(range.vector), NBL_INT4P_PEAK, NBL_E_MIN, NBL_E_MAX);
    __builtin_assume(e >= NBL_E_MIN && e <= NBL_E_MAX);
    float unit = nbl_pow2(-e), of_unit = nbl_pow2(e);
    out->exponent[0] = out->exponent[1] = e;
    out->saturated = 0;
#pragma unroll ROLLED ? 1 : 2
    for (uint32_t half = 0; half < 2u; ++half) {
        bool is_first = half == 0;
        float sign = is_first ? range.sign[0] : range.sign[1];
        float amax = is_first ? range.half[0] : range.half[1];
        int4p_codes_of block = block_of(half, amax * unit, sign * unit, sign * of_unit);
        out->words[0] = is_first ? block.words[0] : out->words[0];
        out->words[1] = is_first ? block.words[1] : out->words[1];
        out->multiplier[0] = is_first ? block.multiplier : out->multiplier[0];
        out->words[2] = block.words[0];
        out->words[3] = block.words[1];
        out->multiplier[1] = block.multiplier;
        out->saturated += block.saturated;
    }
}

/** int4p of a lane's elements. counts: saturated ones are to be counted. */
template <uint32_t MODE>
CUDA_DEVICE void quantize32_int4p(const float (&x)[VECTOR32], const range32 &range, const float *reciprocals,
                                  bool counts, codes32 *out)
{
    auto block_of = [&](uint32_t half, float amax, float unit, float of_unit) {
        float block[BLOCK16];
#pragma unroll
        for (uint32_t i = 0; i < BLOCK16; ++i) {
            block[i] = half == 0 ? x[i] : x[BLOCK16 + i];
        }
        return int4p_block<MODE == QUANTIZE_CODES>(block, NULL, amax, unit, of_unit, reciprocals, counts);
    };
    int4p_halves<MODE == QUANTIZE_ONCE>(block_of, range, out);
}

/** The same of elements in shared memory: half as many in registers at a time, and half as much code. */
CUDA_DEVICE void quantize32_int4p_staged(const float *elements, const range32 &range, const float *reciprocals,
                                         bool counts, codes32 *out)
{
    auto block_of = [&](uint32_t half, float amax, float unit, float of_unit) {
        float block[BLOCK16];
        take_floats((const uint4 *)(const void *)(elements + BLOCK16 * half), block, BLOCK16 / 4u);
        return int4p_block<false>(block, elements + BLOCK16 * half, amax, unit, of_unit, reciprocals, counts);
    };
    int4p_halves<true>(block_of, range, out);
}

/* ------------------------------------------------------------------------------------------------ mxfp4 */

#define E2M1_MAX 6.0f
#define MXFP4_MAX 0x1p+54f /* 2^14 units of the largest exponent: codes of mxfp4_word stay below 2^15 */

/* Codes of eight elements for a block exponent, given as 2^-e_b, signs turned where flips has bits (docs/adr/0052).
 * Each of two sums has a code in its low bits, and the least of the two (nbl_e2m1_encode_magnitude) and 7 is right;
 * pairs of elements are compared at once, in the order of int4p_codes. */
CUDA_DEVICE uint32_t mxfp4_word(const float *x, float inverse, uint32_t flips)
{
    const uint32_t fours = ptx_keep(0x00040004u), sevens = ptx_keep(0x00070007u);
    uint32_t pair[4], sign[4];
    float half = 0.5f * inverse;
#pragma unroll
    for (uint32_t i = 0; i < 4u; ++i) {
        uint32_t first = i / 2u * 4u + i % 2u;
        float low = fabsf(x[first]), high = fabsf(x[first + 2u]);
        uint32_t fine = ptx_prmt(nbl_bits_of(nbl_fma(low, inverse, 0x1p23f - 2.0f)),
                                 nbl_bits_of(nbl_fma(high, inverse, 0x1p23f - 2.0f)), 0x5410u);
        uint32_t coarse = ptx_prmt(nbl_bits_of(nbl_fma(low, half, 0x1p23f + 4.0f)),
                                   nbl_bits_of(nbl_fma(high, half, 0x1p23f + 4.0f)), 0x5410u);
        pair[i] = __vmins2(__viaddmin_s16x2(fine, fours, coarse), sevens);
        sign[i] = ptx_prmt(nbl_bits_of(x[first]), nbl_bits_of(x[first + 2u]), 0xffbbu);
    }
    uint32_t word = pair[0] + (pair[2] << 4) + ((pair[1] + (pair[3] << 4)) << 8);
    uint32_t even = (sign[0] & 0x000f000fu) | (sign[2] & ~0x000f000fu);
    uint32_t odd = (sign[1] & 0x0f0f0f0fu) | (sign[3] & ~0x0f0f0f0fu);
    uint32_t signs = ((even & 0x00ff00ffu) | (odd & ~0x00ff00ffu)) ^ flips;
    return word | (signs & (word + 0x77777777u) & 0x88888888u); /* -0 is never stored */
}

/* The error of NUM 3.4 going on from `error` over half a lane. */
CUDA_DEVICE float mxfp4_error(const float *x, int32_t e, int32_t e0, float error)
{
    float inverse = nbl_pow2(-e), unit = nbl_pow2(e - e0 - 1), scale = nbl_pow2(-e0);
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        float a = fminf(fabsf(x[i] * inverse), E2M1_MAX); /* the error of -x is that of x */
        float value = (float)nbl_e2m1_half_units(nbl_e2m1_encode_magnitude(a)) * unit;
        float difference = fabsf(x[i]) * scale - value;
        error = nbl_fma(difference, difference, error);
    }
    return error;
}

/* The MSE rule for `halves` halves of a lane from `x` on; e0 is OPTIMAL's exponent. No recipe has this rule, and so it
 * is a function of its own, on elements in local memory. */
static __device__ __noinline__ int32_t mxfp4_exponent_mse(const float *x, uint32_t halves, int32_t e0)
{
    int32_t best = 0;
    float best_error = 0.0f;
#pragma unroll 1
    for (int32_t step = -1; step <= 1; ++step) {
        int32_t e = nbl_clamp_i32(e0 + step, NBL_BLOCK_E_MIN, NBL_BLOCK_E_MAX);
        float error = mxfp4_error(x, e, e0, 0.0f);
        if (halves == 2u) {
            error = mxfp4_error(x + BLOCK16, e, e0, error);
        }
        if (step == -1 || error < best_error) {
            best = e;
            best_error = error;
        }
    }
    return best;
}

/* Exponents of the lane's blocks by the MSE rule from those of OPTIMAL. */
CUDA_DEVICE void mxfp4_exponents_mse(const float (&x)[VECTOR32], const float (&amax)[2], bool wide, int32_t (&e)[2])
{
    float y[VECTOR32];
#pragma unroll
    for (uint32_t i = 0; i < VECTOR32; ++i) {
        y[i] = x[i];
    }
    e[0] = amax[0] != 0.0f ? mxfp4_exponent_mse(y, wide ? 2u : 1u, e[0]) : e[0];
    if (wide) {
        e[1] = e[0];
    } else if (amax[1] != 0.0f) {
        e[1] = mxfp4_exponent_mse(y + BLOCK16, 1, e[1]);
    }
}

/** Exponents of the lane's blocks: one of 32 (wide) or two of 16; spread over the vector. All lanes call it. */
CUDA_DEVICE void mxfp4_exponents(const float (&x)[VECTOR32], const range32 &range, const team32 &team, uint32_t rule,
                                 bool wide, codes32 *out)
{
    float most_of_lane = fmaxf(range.half[0], range.half[1]);
    float amax[2] = {wide ? most_of_lane : range.half[0], wide ? most_of_lane : range.half[1]};
#pragma unroll
    for (uint32_t i = 0; i < 2u; ++i) {
        out->exponent[i] = nbl_exponent_for(amax[i], nbl_mxfp4_peak(rule), NBL_BLOCK_E_MIN, NBL_BLOCK_E_MAX);
    }
    if (rule == NBL_RULE_MSE) {
        mxfp4_exponents_mse(x, amax, wide, out->exponent);
    }
    int32_t most = max(out->exponent[0], out->exponent[1]);
    most = (int32_t)team32_max(team, (uint32_t)(most - NBL_BLOCK_E_MIN)) + NBL_BLOCK_E_MIN;
    out->exponent[0] = max(out->exponent[0], most - NBL_BLOCK_E_SPREAD);
    out->exponent[1] = max(out->exponent[1], most - NBL_BLOCK_E_SPREAD);
}

/** mxfp4 and mxfp4_16 (NUM 3.4) for exponents found before and magnitudes up to MXFP4_MAX. counts: saturated elements
 *  are to be counted. */
CUDA_DEVICE void quantize32_mxfp4(const float (&x)[VECTOR32], const range32 &range, bool counts, codes32 *out)
{
    float inverse[2] = {nbl_pow2(-out->exponent[0]), nbl_pow2(-out->exponent[1])};
    uint32_t flips[2] = {range.sign[0] < 0.0f ? 0xffffffffu : 0u, range.sign[1] < 0.0f ? 0xffffffffu : 0u};
    out->saturated = 0;
    out->multiplier[0] = out->multiplier[1] = 1;
    if (counts) {
#pragma unroll
        for (uint32_t i = 0; i < VECTOR32; ++i) {
            out->saturated += fabsf(x[i] * inverse[i / BLOCK16]) > E2M1_MAX;
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < VECTOR32 / 8u; ++i) {
        out->words[i] = mxfp4_word(&x[8u * i], inverse[i / 2u], flips[i / 2u]);
    }
}

/* ------------------------------------------------------------------------------------------------ all formats */

/** Formats that a kernel is compiled for; int8 is in all of them. */
enum family { FAMILY_INT8, FAMILY_INT4P, FAMILY_MXFP4, FAMILY_ANY };

/** Family of the formats of a pool, K and V. */
static inline uint32_t family_of(const cuda_pages *pages)
{
    bool int4p = false, mxfp4 = false;
    for (uint32_t i = 0; i < pages->region_count; ++i) {
        const cuda_region *r = &pages->regions[i];
        int4p = int4p || r->k_format == NBL_INT4P || r->v_format == NBL_INT4P;
        mxfp4 = mxfp4 || nbl_layout_is_mxfp4(r->k_format) || nbl_layout_is_mxfp4(r->v_format);
    }
    return int4p && mxfp4 ? FAMILY_ANY : int4p ? FAMILY_INT4P : mxfp4 ? FAMILY_MXFP4 : FAMILY_INT8;
}

/** Quantizes the lane's elements (NUM 3.2 to 3.5); format is one of the family. All lanes call it. */
template <uint32_t FAMILY, uint32_t MODE>
CUDA_DEVICE void quantize32(const float (&x)[VECTOR32], const range32 &range, const team32 &team, uint32_t format,
                            uint32_t rule, const float *reciprocals, bool counts, codes32 *out)
{
    if (FAMILY == FAMILY_MXFP4 || FAMILY == FAMILY_ANY) {
        if (__any_sync(FULL_WARP, nbl_layout_is_mxfp4(format))) {
            mxfp4_exponents(x, range, team, rule, format == NBL_MXFP4, out);
        }
    }
    if (FAMILY == FAMILY_INT8 || format == NBL_INT8) {
        quantize32_int8(x, range, out);
    } else if (FAMILY == FAMILY_INT4P || (FAMILY == FAMILY_ANY && format == NBL_INT4P)) {
        quantize32_int4p<MODE>(x, range, reciprocals, counts, out);
    } else {
        quantize32_mxfp4(x, range, counts, out);
    }
}

/** 1 if a code is not the code of zero. */
CUDA_DEVICE bool codes32_nonzero(const codes32 &q, uint32_t format)
{
    uint32_t zero = nbl_block_zero_code(format) * 0x11111111u;
    bool any = false;
#pragma unroll
    for (uint32_t i = 0; i < VECTOR32 / 4u; ++i) {
        any = any || ((i < VECTOR32 / 8u || format == NBL_INT8) && q.words[i] != zero);
    }
    return any;
}

/* Eight element codes of a 4-bit format in a word of K as numbers. E2M1 magnitudes are bytes picked by the codes. */
CUDA_DEVICE void numbers_of_word(uint32_t word, uint32_t format, float *x)
{
    uint32_t magnitudes[2];
    if (format != NBL_INT4P) {
        uint32_t codes = word & 0x77777777u;
        magnitudes[0] = ptx_prmt(DECODE4_E2M1_LOW, DECODE4_E2M1_HIGH, codes);
        magnitudes[1] = ptx_prmt(DECODE4_E2M1_LOW, DECODE4_E2M1_HIGH, codes >> 16);
    }
#pragma unroll
    for (uint32_t j = 0; j < 8u; ++j) {
        uint32_t place = 2u * (j % 4u) + j / 4u; /* of the nibble: bytes hold elements j and j + 4 */
        if (format == NBL_INT4P) {
            x[j] = (float)((int32_t)(word >> (4u * place) & 15u) - 8);
        } else {
            float magnitude = (float)(magnitudes[place / 4u] >> (8u * (place % 4u)) & 0xffu);
            x[j] = nbl_float_of(nbl_bits_of(magnitude) | (word << (28u - 4u * place) & 0x80000000u));
        }
    }
}

/** Canonical codes as numbers, times a unit of each half (NUM 2.3 to 2.5). */
CUDA_DEVICE void dequantize32(const uint32_t (&words)[VECTOR32 / 4u], uint32_t format, const float (&unit)[2],
                              float (&x)[VECTOR32])
{
    if (format == NBL_INT8) {
#pragma unroll
        for (uint32_t i = 0; i < VECTOR32; ++i) {
            x[i] = (float)(int8_t)(words[i / 4u] >> (8u * (i % 4u)));
        }
    } else {
#pragma unroll
        for (uint32_t i = 0; i < VECTOR32 / 8u; ++i) {
            numbers_of_word(words[i], format, &x[8u * i]);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < VECTOR32; ++i) {
        x[i] *= unit[i / BLOCK16];
    }
}

#endif
