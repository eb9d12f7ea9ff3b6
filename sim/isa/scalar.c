/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file scalar.c
 * @brief The hot loops in plain C: the reference that every other table overrides.
 */
#include "exp2grid.h"
#include "row_tile.h"
#include "rowsum.h"

#include <string.h>

/* One token of a group in stored form; `byte` gives the byte of a column. */
static void load_token(const sim_group *group, enum nbl_kind kind, uint32_t token, nbl_vector *v)
{
    uint32_t padded = nbl_layout_dim_padded(group->dim);
    v->format = group->format;
    v->dim = group->dim;
    for (uint32_t d = 0; d < padded; ++d) {
        uint64_t at = kind == NBL_KIND_K ? nbl_layout_k_code_byte(group->format, group->dim, SIM_GROUP, token, d)
                                         : nbl_layout_v_code_byte(group->format, group->dim, SIM_GROUP, token, d);
        uint32_t shift =
            kind == NBL_KIND_K ? nbl_layout_k_code_shift(group->format, d) : nbl_layout_v_code_shift(group->format, d);
        uint32_t code = group->codes[at];
        v->codes[d] = (uint8_t)(group->format == NBL_INT8 ? code : (code >> shift) & 15u);
    }
    for (uint32_t plane = 0; plane < nbl_layout_scale_planes(group->format, group->dim); ++plane) {
        v->scales[plane] = group->scales[plane * group->plane_stride + token];
    }
}

static void decode_k(const sim_group *group, uint8_t *codes, float *unit)
{
    uint32_t padded = nbl_layout_dim_padded(group->dim);
    for (uint32_t t = 0; t < SIM_GROUP; ++t) {
        nbl_vector v;
        int8_t c[NBL_DIM_PADDED_MAX];
        load_token(group, NBL_KIND_K, t, &v);
        unit[t] = nbl_pow2(nbl_vector_canonical(&v, c));
        for (uint32_t d = 0; d < padded; ++d) {
            codes[d / 4u * (4u * SIM_GROUP) + t * 4u + d % 4u] = (uint8_t)(c[d] + 128);
        }
    }
}

static void decode_v(const sim_group *group, int8_t *codes, float *exponent, float *weight)
{
    uint32_t padded = nbl_layout_dim_padded(group->dim);
    for (uint32_t t = 0; t < SIM_GROUP; ++t) {
        nbl_vector v;
        int8_t c[NBL_DIM_PADDED_MAX];
        load_token(group, NBL_KIND_V, t, &v);
        int32_t e = nbl_vector_canonical(&v, c);
        exponent[t] = (float)e;
        weight[t] = nbl_pow2(-e);
        for (uint32_t d = 0; d < padded; ++d) {
            codes[t / 4u * (4u * padded) + d * 4u + t % 4u] = c[d];
        }
    }
}

static void dot_qk_row(const sim_tile *tile, const sim_rows *rows, uint32_t r, int32_t bias, float *x)
{
    for (uint32_t g = 0; g < tile->groups; ++g) {
        const uint8_t *k = tile->k + (uint64_t)g * SIM_GROUP * tile->k_dim;
        int32_t sums[SIM_GROUP];
        for (uint32_t t = 0; t < SIM_GROUP; ++t) {
            sums[t] = bias;
        }
        for (uint32_t d = 0; d < tile->k_dim; d += 4) {
            int8_t q[4];
            memcpy(q, &rows->words[d / 4u * rows->count + r], sizeof q);
            for (uint32_t t = 0; t < SIM_GROUP; ++t) {
                const uint8_t *word = k + (uint64_t)d * SIM_GROUP + 4u * t;
                sums[t] += word[0] * q[0] + word[1] * q[1] + word[2] * q[2] + word[3] * q[3];
            }
        }
        for (uint32_t t = 0; t < SIM_GROUP; ++t) {
            x[g * SIM_GROUP + t] = (float)sums[t] * tile->unit[g * SIM_GROUP + t];
        }
    }
}

static void dot_qk(const sim_tile *tile, const sim_rows *rows, float *x)
{
    for (uint32_t r = 0; r < rows->count; ++r) {
        dot_qk_row(tile, rows, r, rows->bias[r], x + (uint64_t)r * SIM_TILE);
    }
}

static sim_softmax softmax(const sim_row_tile *row, float base, int first, uint8_t *p)
{
    float t[SIM_TILE];
    float sums[NBL_PARTIAL_SUMS] = {0};
    sim_softmax out = {first ? sim_row_base(row) : base, 1.0f, 0.0f, 0.0f, 0};
    float most = sim_row_logits(row, out.base, NBL_GRID, INFINITY, t);
    if (most > NBL_GRID + NBL_REBASE) {
        float moved = fmaxf(out.base, sim_row_base(row));
        out.rescale = nbl_pow2f(out.base - moved);
        out.base = moved;
        most = sim_row_logits(row, moved, NBL_GRID, NBL_GRID + NBL_REBASE, t);
    }
    if (most - NBL_GRID < NBL_WEIGHT_MIN) {
        out.left_out = 1;
        return out;
    }
    for (uint32_t i = 0; i < row->groups * SIM_GROUP; ++i) {
        float e = sim_row_sees(row, i) ? nbl_grid_exp2(t[i] - most) : 0.0f;
        p[i] = (uint8_t)nbl_grid_weight(e);
        sums[i % NBL_PARTIAL_SUMS] = nbl_fma(nbl_grid_q(e), row->weight[i], sums[i % NBL_PARTIAL_SUMS]);
    }
    out.l = nbl_sum_tree(sums);
    out.b = nbl_grid_base(most - NBL_GRID);
    return out;
}

static void dot_pv(const sim_tile *tile, const uint8_t *p, float *const *o, const float *b, uint32_t rows)
{
    for (uint32_t r = 0; r < rows; ++r) {
        const uint8_t *weights = p + (uint64_t)r * SIM_TILE;
        for (uint32_t d = 0; d < tile->v_dim; ++d) {
            int32_t sum = 0;
            for (uint32_t t = 0; t < tile->groups * SIM_GROUP; ++t) {
                sum += weights[t] * tile->v[t / 4u * (4u * tile->v_dim) + d * 4u + t % 4u];
            }
            o[r][d] = nbl_fma((float)sum, b[r], o[r][d]);
        }
    }
}

const sim_isa sim_isa_scalar = {
    .name = "scalar",
    .row = &sim_row_loops_scalar,
    .decode_k = decode_k,
    .decode_v = decode_v,
    .dot_qk = dot_qk,
    .softmax = softmax,
    .dot_pv = dot_pv,
};
