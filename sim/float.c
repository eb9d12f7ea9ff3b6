/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file float.c
 * @brief The float core: operands, softmax, and the walk over a tile (NUM 6).
 */
#include "float.h"

#include "exp2grid.h"
#include "float_format.h"
#include "floatgrid.h"
#include "fp4.h"
#include "page.h"
#include "row_tile.h"

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + 63u) / 64u * 64u;
}

static uint64_t array_bytes(uint64_t elements)
{
    return 2u * aligned(elements * sizeof(int16_t));
}

uint64_t sim_float_scratch_bytes(uint32_t k_dim, uint32_t v_dim, uint32_t rows)
{
    return array_bytes((uint64_t)SIM_TILE * k_dim) + array_bytes((uint64_t)SIM_TILE * v_dim) +
           array_bytes((uint64_t)rows * k_dim) + array_bytes(2u * (uint64_t)rows * k_dim) +
           array_bytes((uint64_t)rows * SIM_TILE) +
           aligned((uint64_t)rows * NBL_PARTIAL_SUMS * sizeof(float));
}

static sim_float_array carve_array(uint8_t **at, uint64_t elements)
{
    uint64_t bytes = array_bytes(elements);
    sim_float_array a = {(int16_t *)(void *)*at, (int16_t *)(void *)(*at + bytes / 2u)};
    *at += bytes;
    return a;
}

void sim_float_scratch_init(sim_float_scratch *s, uint8_t *memory, uint32_t k_dim, uint32_t v_dim, uint32_t rows)
{
    s->k = carve_array(&memory, (uint64_t)SIM_TILE * k_dim);
    s->v = carve_array(&memory, (uint64_t)SIM_TILE * v_dim);
    s->q = carve_array(&memory, (uint64_t)rows * k_dim);
    s->centers = carve_array(&memory, 2u * (uint64_t)rows * k_dim);
    s->p = carve_array(&memory, (uint64_t)rows * SIM_TILE);
    s->sums = (float *)(void *)memory;
}

sim_float_call sim_float_call_of(const nbl_pool *pool, uint32_t q_format, uint32_t profile, const char *isa_name)
{
    sim_float_call call;
    call.dot = sim_float_dot_find(isa_name);
    call.model = nbl_mma_model_16bit(profile);
    call.pv_model = call.model;
    call.fp4_format = NBL_FORMAT_NONE;
    if (q_format == NBL_Q_FP4) {
        call.pv_model = nbl_mma_model_fp8(NBL_MMA_SM_100);
        call.fp4_format = pool->regions[0].k_format;
        call.k_type = NBL_MMA_E2M1;
        call.v_type = NBL_MMA_E4M3;
        return call;
    }
    call.k_type = nbl_format_is_fp16(pool->regions[0].k_format) ? NBL_MMA_F16 : NBL_MMA_BF16;
    call.v_type = nbl_format_is_fp16(pool->regions[0].v_format) ? NBL_MMA_F16 : NBL_MMA_BF16;
    return call;
}

/* ------------------------------------------------------------------------------------------------ operands */

static void put_half(sim_float_array a, uint64_t at, uint32_t type, uint16_t half)
{
    nbl_mma_operand x = nbl_mma_operand_of(type, half);
    a.significand[at] = (int16_t)x.significand;
    a.exponent[at] = (int16_t)x.exponent;
}

void sim_float_query(const sim_float_call *call, const float *x, uint32_t dim, uint16_t *halves, uint32_t padded)
{
    uint64_t ignored = 0;
    memset(halves, 0, padded * sizeof *halves);
    for (uint32_t d = 0; d < dim; ++d) {
        halves[d] = nbl_half_encode(x[d], call->k_type == NBL_MMA_F16, &ignored);
    }
}

float sim_float_center_dot(const sim_float_call *call, const uint16_t *halves, const int8_t *mu, uint32_t dim)
{
    float sums[NBL_PARTIAL_SUMS] = {0};
    for (uint32_t d = 0; d < dim; ++d) {
        float q = nbl_half_decode(halves[d], call->k_type == NBL_MMA_F16);
        sums[d % NBL_PARTIAL_SUMS] = nbl_fma(q, (float)mu[d], sums[d % NBL_PARTIAL_SUMS]);
    }
    return nbl_sum_tree(sums);
}

void sim_float_set_query(const sim_float_call *call, sim_float_scratch *s, uint32_t row, const uint16_t *halves,
                         uint32_t k_dim)
{
    for (uint32_t d = 0; d < k_dim; ++d) {
        put_half(s->q, (uint64_t)row * k_dim + d, call->k_type, halves[d]);
    }
}

/* ------------------------------------------------------------------------------------------------ tiles */

uint32_t sim_float_load_token(const sim_source *source, uint32_t position, enum nbl_kind kind, nbl_vector *v)
{
    uint32_t page_tokens = source->pool->shape->page_tokens;
    uint32_t page = (uint32_t)source->page_table[position / page_tokens];
    const nbl_region *region = nbl_layout_region_find(source->pool, page);
    sim_part part = sim_part_in(source->pool->shape, region, &source->layouts[region - source->pool->regions],
                                source->layer, page, kind, source->head);
    sim_part_load(&part, position % page_tokens, v);
    return nbl_layout_dim_padded(part.dim);
}

/* One stored vector as the tensor core takes it, in words of 16 bits; codes of 16 bits and of E4M3 are it already. */
static void token_halves(const sim_source *source, uint32_t position, enum nbl_kind kind, uint32_t type,
                         uint16_t *halves)
{
    nbl_vector v;
    uint32_t padded = sim_float_load_token(source, position, kind, &v);
    if (type == NBL_MMA_E4M3) {
        for (uint32_t d = 0; d < padded; ++d) {
            halves[d] = (uint16_t)((v.codes[d] & 0x7fu) == 0x7fu ? v.codes[d] - 1u : v.codes[d]); /* NUM 6.1 */
        }
        return;
    }
    if (nbl_layout_code_bits(v.format) == 16u) {
        memcpy(halves, v.halves, padded * sizeof *halves);
        return;
    }
    float x[NBL_DIM_PADDED_MAX];
    uint64_t ignored = 0;
    nbl_vector_values(&v, x);
    for (uint32_t d = 0; d < padded; ++d) {
        halves[d] = nbl_half_encode(x[d], type == NBL_MMA_F16, &ignored);
    }
}

/* Tokens of the tile that the sequence has. */
static uint32_t tokens_in_tile(const sim_source *source, uint32_t index)
{
    uint32_t start = index * SIM_TILE;
    uint32_t left = source->kv_len > start ? source->kv_len - start : 0;
    return left < SIM_TILE ? left : SIM_TILE;
}

void sim_float_load_k(const sim_float_call *call, sim_float_scratch *s, const sim_source *source, uint32_t index,
                      sim_tile *tile)
{
    uint32_t tokens = tokens_in_tile(source, index);
    tile->groups = (tokens + SIM_GROUP - 1u) / SIM_GROUP;
    if (call->fp4_format != NBL_FORMAT_NONE) {
        sim_fp4_load_k(s, source, index * SIM_TILE, tokens, tile->k_dim);
        return;
    }
    for (uint32_t t = 0; t < tile->groups * SIM_GROUP; ++t) {
        uint16_t halves[NBL_DIM_PADDED_MAX] = {0};
        if (t < tokens) {
            token_halves(source, index * SIM_TILE + t, NBL_KIND_K, call->k_type, halves);
        }
        uint64_t at = (uint64_t)(t / SIM_GROUP) * SIM_GROUP * tile->k_dim + t % SIM_GROUP;
        for (uint32_t d = 0; d < tile->k_dim; ++d) {
            put_half(s->k, at + (uint64_t)d * SIM_GROUP, call->k_type, halves[d]);
        }
    }
}

void sim_float_load_v(const sim_float_call *call, sim_float_scratch *s, const sim_source *source, uint32_t index,
                      const sim_tile *tile)
{
    uint32_t tokens = tokens_in_tile(source, index);
    for (uint32_t t = 0; t < tile->groups * SIM_GROUP; ++t) {
        uint16_t halves[NBL_DIM_PADDED_MAX] = {0};
        if (t < tokens) {
            token_halves(source, index * SIM_TILE + t, NBL_KIND_V, call->v_type, halves);
        }
        for (uint32_t d = 0; d < tile->v_dim; ++d) {
            put_half(s->v, (uint64_t)t * tile->v_dim + d, call->v_type, halves[d]);
        }
    }
}

static sim_float_array at_element(sim_float_array a, uint64_t element)
{
    sim_float_array out = {a.significand + element, a.exponent + element};
    return out;
}

void sim_float_dot_qk(const sim_float_call *call, const sim_float_scratch *s, const sim_tile *tile, uint32_t row,
                      float *x)
{
    sim_float_array q = at_element(s->q, (uint64_t)row * tile->k_dim);
    int32_t fraction = 2 * nbl_mma_fraction(call->k_type);
    memset(x, 0, SIM_TILE * sizeof *x);
    if (call->fp4_format != NBL_FORMAT_NONE) {
        sim_fp4_dot(s, s->q, row, tile->groups * SIM_GROUP, tile->k_dim, x);
        return;
    }
    for (uint32_t g = 0; g < tile->groups; ++g) {
        sim_float_array k = at_element(s->k, (uint64_t)g * SIM_GROUP * tile->k_dim);
        call->dot(&call->model, fraction, q, tile->k_dim, k, SIM_GROUP, SIM_GROUP, x + g * SIM_GROUP);
    }
}

void sim_float_dot_pv(const sim_float_call *call, const sim_float_scratch *s, const sim_tile *tile, uint32_t row,
                      float *o)
{
    sim_float_array p = at_element(s->p, (uint64_t)row * SIM_TILE);
    call->dot(&call->pv_model, 2 * nbl_mma_fraction(call->v_type), p, tile->groups * SIM_GROUP, s->v, tile->v_dim,
              tile->v_dim, o);
}

/* ------------------------------------------------------------------------------------------------ softmax */

/* P of a token in the type of V, and what it adds to the denominator (NUM 6.4, 7.3). */
static uint16_t weight_of(uint32_t type, float u, float *value)
{
    if (type == NBL_MMA_E4M3) {
        uint8_t code = nbl_float_grid_e4m3(u);
        *value = nbl_e4m3_decode(code);
        return code;
    }
    uint16_t half = nbl_float_grid_half(u, type == NBL_MMA_F16);
    *value = nbl_half_decode(half, type == NBL_MMA_F16);
    return half;
}

sim_softmax sim_float_softmax(const sim_float_call *call, sim_float_scratch *s, uint32_t row, const sim_row_tile *view,
                              float base, int first)
{
    const float limit = NBL_FLOAT_GRID + (call->v_type == NBL_MMA_E4M3 ? 0.0f : NBL_FLOAT_REBASE);
    float t[SIM_TILE];
    float *sums = s->sums + (uint64_t)row * NBL_PARTIAL_SUMS;
    sim_softmax out = {first ? sim_row_base(view) : base, 1.0f, 0.0f, 0.0f, 0};
    if (sim_row_logits(view, out.base, NBL_FLOAT_GRID, INFINITY, t) > limit) {
        float moved = fmaxf(out.base, sim_row_base(view));
        out.rescale = nbl_pow2f(out.base - moved);
        out.base = moved;
        sim_row_logits(view, moved, NBL_FLOAT_GRID, limit, t);
        for (uint32_t i = 0; i < NBL_PARTIAL_SUMS; ++i) {
            sums[i] *= out.rescale;
        }
    }
    for (uint32_t i = 0; i < view->groups * SIM_GROUP; ++i) {
        float value = 0.0f;
        uint16_t bits = sim_row_sees(view, i) ? weight_of(call->v_type, t[i] - NBL_FLOAT_GRID, &value) : 0;
        sums[i % NBL_PARTIAL_SUMS] += value;
        put_half(s->p, (uint64_t)row * SIM_TILE + i, call->v_type, bits);
    }
    return out;
}

void sim_float_start(sim_float_scratch *s, uint32_t rows)
{
    memset(s->sums, 0, (uint64_t)rows * NBL_PARTIAL_SUMS * sizeof *s->sums);
}

float sim_float_finish(const sim_float_call *call, const sim_float_scratch *s, uint32_t row, float v_scale, float *o,
                       uint32_t v_dim)
{
    const float weight_unit = call->v_type == NBL_MMA_E4M3 ? 0x1p-8f : 1.0f;
    const float unit = NBL_P_SCALE * v_scale * weight_unit;
    for (uint32_t d = 0; d < v_dim; ++d) {
        o[d] = o[d] * unit + 0.0f;
    }
    return nbl_sum_tree(s->sums + (uint64_t)row * NBL_PARTIAL_SUMS) * weight_unit;
}
