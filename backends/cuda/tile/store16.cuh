/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file store16.cuh
 * @brief Quantizes vectors held by teams of threads, writes them into their slots and counts (NUM 3).
 */
#ifndef CUDA_STORE16_H
#define CUDA_STORE16_H

#include "float16.cuh"

/** Totals of a block, in shared memory. */
struct block_stats {
    uint32_t vectors;
    uint32_t nan_inputs;
    uint32_t inf_inputs;
    uint32_t saturated;
    uint32_t flushed;
};

/** A thread's share of a vector and where it goes. */
struct store16_target {
    block16_part part; /**< format is set even where active is false */
    uint32_t token;    /**< in the page */
    uint32_t b;        /**< block of 16 in the vector */
    uint32_t team;     /**< threads of a vector */
    bool active;       /**< there is a vector */
};

/** Writes the scale bytes that the thread is responsible for. */
CUDA_DEVICE void store16_scales(const store16_target &at, const block16_codes &q, uint32_t pair_multiplier)
{
    uint8_t *scales = at.part.scales + at.token;
    uint32_t tokens = at.part.page_tokens;
    if (nbl_layout_is_float(at.part.format)) {
        if (at.part.format == NBL_NVFP4) {
            scales[at.b * tokens] = (uint8_t)q.exponent;
        }
    } else if (at.part.format == NBL_INT8) {
        if (at.b == 0) {
            *scales = nbl_e8m0_encode(q.exponent);
        }
    } else if (at.part.format == NBL_INT4P) {
        if (at.b % 2u == 0) {
            scales[at.b / 2u * tokens] = (uint8_t)((q.multiplier - 1u) | (pair_multiplier - 1u) << 4);
        }
        if (at.b == 0) {
            scales[at.team / 2u * tokens] = nbl_e8m0_encode(q.exponent);
        }
    } else if (at.part.format == NBL_MXFP4_16 || at.b % 2u == 0) {
        scales[(at.part.format == NBL_MXFP4_16 ? at.b : at.b / 2u) * tokens] = nbl_e8m0_encode(q.exponent);
    }
}

/** 1 if a code is not the code of zero. */
CUDA_DEVICE bool has_nonzero(const block16_codes &q, uint32_t format)
{
    bool any = false;
#pragma unroll
    for (uint32_t i = 0; i < BLOCK16; ++i) {
        any = any || q.code[i] != nbl_block_zero_code(format);
    }
    return any;
}

/** Quantizes the thread's block (NUM 3.2 to 3.5); all threads of the block call it. */
CUDA_DEVICE void store16_quantize(const float (&x)[BLOCK16], const store16_target &at, uint32_t rule, bool may_be_mxfp4,
                                  uint32_t amax, uint32_t *slot, block16_codes *q)
{
    int32_t exponent = 0;
    if (may_be_mxfp4) {
        exponent = block16_mxfp4_exponent(x, rule, at.part.format == NBL_MXFP4, at.b);
        uint32_t most = block16_team_max((uint32_t)(exponent - NBL_BLOCK_E_MIN), at.team, slot, at.b == 0);
        exponent = max(exponent, (int32_t)most + NBL_BLOCK_E_MIN - NBL_BLOCK_E_SPREAD);
    }
    if (nbl_layout_is_float(at.part.format)) {
        float16_quantize(x, at.part.format, rule, q);
    } else if (at.part.format == NBL_INT8) {
        block16_int8(x, amax, q);
    } else if (at.part.format == NBL_INT4P) {
        block16_int4p(x, amax, q);
    } else {
        block16_mxfp4(x, exponent, q);
    }
}

/** Adds to a counter in device memory. */
CUDA_DEVICE void add_global(uint64_t *counter, uint32_t value)
{
    if (value != 0) {
        atomicAdd((unsigned long long *)counter, (unsigned long long)value);
    }
}

/** Sum over the warp into the block's total. */
CUDA_DEVICE void add_block(uint32_t *total, uint32_t value)
{
    value = __reduce_add_sync(FULL_WARP, value);
    if (threadIdx.x % 32u == 0 && value != 0) {
        atomicAdd(total, value);
    }
}

/** Quantizes, writes and counts (NUM 3.3); slot is shared memory of the vector, total is NULL where nobody counts. All
 *  threads of the block call it. */
CUDA_DEVICE void store16(const float (&x)[BLOCK16], const store16_target &at, uint32_t rule, bool may_be_mxfp4,
                         uint32_t *slot, const block16_counts &counts, block_stats *total)
{
    uint32_t amax = block16_team_max(block16_amax_bits(x), at.team, slot, at.b == 0);
    block16_codes q;
    store16_quantize(x, at, rule, may_be_mxfp4, amax, slot, &q);
    uint32_t pair_multiplier = __shfl_xor_sync(FULL_WARP, q.multiplier, 1);
    bool is_half = nbl_layout_code_bits(at.part.format) == 16u;
    bool is_nonzero;
    if (is_half) {
        is_nonzero = float16_store_halves(x, &at.part, at.token, at.b, at.active, &q.saturated);
    } else {
        is_nonzero = has_nonzero(q, at.part.format);
    }
    if (__any_sync(FULL_WARP, at.active && !is_half)) {
        block16_store_codes(&at.part, at.token, at.b, q.code, at.active && !is_half);
    }
    if (at.active) {
        store16_scales(at, q, pair_multiplier);
    }
    if (total == NULL) {
        return;
    }
    uint32_t nonzero = block16_team_max(is_nonzero, at.team, slot, at.b == 0);
    bool counts_vector = at.active && at.b == 0;
    add_block(&total->vectors, counts_vector);
    add_block(&total->nan_inputs, counts.nan_inputs);
    add_block(&total->inf_inputs, counts.inf_inputs);
    add_block(&total->saturated, counts.saturated + (at.active ? q.saturated : 0u));
    add_block(&total->flushed, counts_vector && amax != 0 && nonzero == 0);
}

/** Adds the totals of a block to the caller's; after a barrier, by one thread. */
CUDA_DEVICE void block_stats_flush(const block_stats &total, nbl_quant_stats *stats)
{
    add_global(&stats->vectors, total.vectors);
    add_global(&stats->nan_inputs, total.nan_inputs);
    add_global(&stats->inf_inputs, total.inf_inputs);
    add_global(&stats->saturated, total.saturated);
    add_global(&stats->flushed, total.flushed);
}

#endif
