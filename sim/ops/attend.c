/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file attend.c
 * @brief attend: every query row over the stored tokens it may see (NUM 5).
 *
 * Work is cut into items: one sequence, one kv head, up to 256 query rows, and either all chunks or a single one. Few
 * rows over a long cache (decode) are cut by chunk, so that all threads have work; many rows (prefill) keep their
 * running state at hand. The cut depends on upper bounds alone and cannot change a bit, since chunk states are merged
 * in order either way.
 */
#include "centers.h"
#include "float.h"
#include "fp4.h"
#include "merge.h"
#include "page.h"
#include "quantize.h"
#include "sim.h"
#include "tensor.h"
#include "tile.h"

#define CHUNK_TILES (NBL_CHUNK_TOKENS / SIM_TILE)
#define ROWS_STEP 32u      /* rows that go through a tile together: their logits stay in the first-level cache */
#define SLOPE_MAX 65536.0f /* NUM 5.1 */
#define SPLIT_BYTES_MAX (UINT64_C(32) << 20) /* of chunk states kept in the workspace */

/* Sizes of a call, from its bounds; the same for workspace_size and attend. */
typedef struct plan {
    uint32_t k_dim;      /* padded */
    uint32_t v_dim;      /* padded */
    uint32_t block_rows; /* most rows of an item */
    uint32_t blocks;     /* row blocks per sequence and kv head, of the longest sequence of the call */
    uint32_t first_chunk;
    uint32_t chunks;       /* in the range */
    int split;             /* one item per chunk, states kept in the workspace */
    int is_float;          /* the float core serves the call (NUM 6) */
    uint64_t rows;         /* Tq * Hq */
    uint64_t state_floats; /* per row and chunk */
    uint64_t states_bytes; /* that a call within the bounds may need */
    uint64_t states_at;
    uint64_t bytes;
} plan;

/* Everything an item needs to know about the call. */
typedef struct call {
    const nbl_device *device;
    const nbl_attend_args *args;
    const nbl_kv_shape *shape;
    plan plan;
    uint32_t *done; /* [rows]: chunks done of the item whose first row it is, when the call is split */
    float *states;
    nbl_page_layout layouts[NBL_REGIONS_MAX];
    uint32_t group_rows;  /* Hq / Hk */
    float c;              /* fl(sm_scale * LOG2E), or fl(sm_scale / soft_cap) */
    float cap;            /* fl(soft_cap * LOG2E), 0 without */
    sim_float_call fp;    /* of the float core */
    nbl_tensor q_centers; /* absent where there are none (NUM 7.5) */
} call;

/* Working memory of a thread. */
typedef struct scratch {
    sim_tile tile;
    sim_coded k; /* of the tile, as stored */
    sim_coded v;
    sim_coded next_k; /* of the tile after it, if that is found */
    sim_tile_buffer k_buffer;
    sim_tile_buffer v_buffer;
    int32_t *words;   /* of sim_rows */
    int32_t *offsets; /* of sim_rows */
    int32_t *bias;    /* of sim_rows */
    int8_t *q;        /* [rows][k_dim] */
    void *wide;       /* of sim_rows */
    float *x;         /* [ROWS_STEP][128] */
    uint8_t *p;       /* [ROWS_STEP][128] */
    float *o;         /* [rows][v_dim] of the chunk */
    float *total_o;   /* [rows][v_dim] of the chunks before */
    sim_float_scratch fp;
} scratch;

/* One row of an item. */
typedef struct row {
    uint64_t index; /* token * Hq + head */
    uint64_t token; /* of Q */
    uint32_t head;
    int64_t position;
    int64_t first; /* visible positions [first, end) */
    int64_t end;
    int32_t exponent; /* of the row, in the Blackwell core (NUM 7.1) */
    float offset;     /* NUM 5.7 */
    sim_row_state state;
    nbl_state_head total;
} row;

/* An item, and a thread's place in the call: the queries stay while one chunk of a block follows the other. */
typedef struct item {
    const call *call;
    scratch *scratch;
    sim_source source;
    uint32_t sequence;
    uint32_t kv_head;
    uint32_t block;
    uint32_t next_tile; /* whose K is found already, or UINT32_MAX */
    uint32_t rows;
    float v_scale;                            /* of the float core */
    int32_t center_exponent[SIM_ROWS_MAX][2]; /* of the first rows' centres: heads repeat after them (NUM 7.5) */
    row row[SIM_ROWS_MAX];
    sim_row_state *states[SIM_ROWS_MAX]; /* those of the rows */
} item;

/* ------------------------------------------------------------------------------------------------ plan */

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + SIM_ALIGNMENT - 1u) / SIM_ALIGNMENT * SIM_ALIGNMENT;
}

static uint64_t scratch_bytes(const plan *p)
{
    uint64_t rows = p->block_rows;
    return aligned(sizeof(scratch)) + aligned((uint64_t)SIM_TILE * p->k_dim) + aligned((uint64_t)SIM_TILE * p->v_dim) +
           2u * aligned(rows * p->k_dim) + aligned(rows * p->k_dim / SIM_BLOCK * sizeof(int32_t)) +
           aligned(rows * sizeof(int32_t)) + aligned(ROWS_STEP * SIM_TILE * sizeof(float)) +
           aligned(ROWS_STEP * SIM_TILE) + SIM_WIDE_BYTES + 2u * aligned(rows * p->v_dim * sizeof(float)) +
           aligned(sim_float_scratch_bytes(p->k_dim, p->v_dim, p->block_rows));
}

static uint32_t chunks_of(uint32_t tokens)
{
    return (tokens + NBL_CHUNK_TOKENS - 1u) / NBL_CHUNK_TOKENS;
}

/* Whether a call is split depends on all chunks, whatever the range: no call within the bounds needs more workspace. */
static plan make_plan(const nbl_kv_shape *shape, uint32_t q_heads, uint64_t q_tokens, uint32_t q_len_max,
                      uint32_t kv_len_max)
{
    plan p = {0};
    uint64_t rows_per_head = (uint64_t)q_len_max * (q_heads / shape->kv_heads);
    p.k_dim = nbl_layout_dim_padded(shape->k_dim);
    p.v_dim = nbl_layout_dim_padded(shape->v_dim);
    p.block_rows = (uint32_t)(rows_per_head < SIM_ROWS_MAX ? rows_per_head : SIM_ROWS_MAX);
    p.chunks = chunks_of(kv_len_max);
    p.rows = q_tokens * q_heads;
    p.state_floats = (uint64_t)p.v_dim + sizeof(nbl_state_head) / sizeof(float);
    uint64_t row_bytes = p.chunks * p.state_floats * sizeof(float);
    p.split = p.chunks > 1u && p.rows <= SPLIT_BYTES_MAX / row_bytes;
    p.states_bytes = p.chunks <= 1u ? 0 : p.split ? aligned(p.rows * row_bytes) : SPLIT_BYTES_MAX;
    p.states_at = aligned(p.rows * sizeof(uint32_t));
    p.bytes = p.states_at + p.states_bytes;
    return p;
}

/* Leaves only the chunks of the range. */
static void restrict_plan(plan *p, uint32_t range_begin, uint32_t range_end)
{
    if (range_end == 0) {
        return;
    }
    uint32_t end = range_end / NBL_CHUNK_TOKENS < p->chunks ? range_end / NBL_CHUNK_TOKENS : p->chunks;
    p->first_chunk = range_begin / NBL_CHUNK_TOKENS;
    p->chunks = end > p->first_chunk ? end - p->first_chunk : 0;
    p->split = p->split && p->chunks > 1u;
}

nbl_status sim_workspace_size(nbl_device *device, const nbl_op_desc *op, uint64_t *out_bytes, nbl_error *err)
{
    (void)device;
    (void)err;
    *out_bytes = 0;
    if (op->op == NBL_OP_ATTEND) {
        *out_bytes = make_plan(op->shape, op->q_heads, op->q_tokens_max, op->q_len_max, op->kv_len_max).bytes;
    }
    return NBL_OK;
}

uint64_t sim_attend_scratch_bytes(void)
{
    plan largest = {.k_dim = NBL_DIM_PADDED_MAX, .v_dim = NBL_V_DIM_MAX, .block_rows = SIM_ROWS_MAX};
    return scratch_bytes(&largest);
}

static void *carve(uint8_t **at, uint64_t bytes)
{
    void *memory = *at;
    *at += aligned(bytes);
    return memory;
}

static scratch *scratch_of(const call *c, uint32_t thread)
{
    const plan *p = &c->plan;
    uint8_t *at = c->device->scratch + thread * sim_attend_scratch_bytes();
    scratch *s = carve(&at, sizeof *s);
    s->tile.k_dim = p->k_dim;
    s->tile.v_dim = p->v_dim;
    s->tile.k = carve(&at, (uint64_t)SIM_TILE * p->k_dim);
    s->tile.v = carve(&at, (uint64_t)SIM_TILE * p->v_dim);
    s->q = carve(&at, (uint64_t)p->block_rows * p->k_dim);
    s->words = carve(&at, (uint64_t)p->block_rows * p->k_dim);
    s->offsets = carve(&at, (uint64_t)p->block_rows * p->k_dim / SIM_BLOCK * sizeof(int32_t));
    s->bias = carve(&at, (uint64_t)p->block_rows * sizeof(int32_t));
    s->wide = carve(&at, SIM_WIDE_BYTES);
    s->x = carve(&at, (uint64_t)ROWS_STEP * SIM_TILE * sizeof(float));
    s->p = carve(&at, (uint64_t)ROWS_STEP * SIM_TILE);
    s->o = carve(&at, (uint64_t)p->block_rows * p->v_dim * sizeof(float));
    s->total_o = carve(&at, (uint64_t)p->block_rows * p->v_dim * sizeof(float));
    sim_float_scratch_init(&s->fp, at, p->k_dim, p->v_dim, p->block_rows);
    return s;
}

/* ------------------------------------------------------------------------------------------------ queries */

/* Canonical form of a row (NUM 3.6): codes[0..k_dim-1], exponent returned. */
static int32_t quantize_query(const call *c, const float *x, int8_t *codes)
{
    nbl_vector v;
    nbl_quant_stats ignored = {0};
    if (c->args->q_format == NBL_Q4) {
        c->device->isa->row->quantize(x, c->shape->k_dim, NBL_MXFP4, NBL_RULE_OPTIMAL, &v, &ignored);
        return nbl_vector_canonical(&v, codes);
    }
    c->device->isa->row->quantize(x, c->shape->k_dim, NBL_INT8, 0, &v, &ignored);
    memcpy(codes, v.codes, c->plan.k_dim);
    return nbl_e8m0_decode(v.scales[0]);
}

/* offset of NUM 5.7. */
static float center_offset(const call *c, uint32_t sequence, uint32_t kv_head, const int8_t *codes, float scale)
{
    if ((c->shape->centering & NBL_CENTERING_MEAN) == 0 || c->args->kv_len[sequence] == 0) {
        return 0.0f;
    }
    sim_center center = sim_center_at(&c->args->centers, c->shape, sequence, kv_head);
    int32_t dot = 0;
    for (uint32_t d = 0; d < c->shape->k_dim; ++d) {
        dot += codes[d] * center.codes[d];
    }
    return (float)dot * nbl_pow2(nbl_e8m0_decode_slot(*center.exponent)) * scale;
}

/* A row's query in the float core or in the Blackwell core, which may have a centre taken off (NUM 7.5). */
typedef struct float_query {
    uint16_t halves[NBL_DIM_PADDED_MAX];
    sim_fp4_vector fp4;
    sim_fp4_center center;
} float_query;

/* A row of queries or of their centres, transformed (NUM 3.1, 4.5, 4.1). */
static void load_query(const call *c, uint32_t sequence, const nbl_tensor *t, uint64_t at, uint32_t head, float *x)
{
    const sim_row_loops *loops = c->device->isa->row;
    uint32_t dim = c->shape->k_dim;
    nbl_quant_stats ignored = {0};
    sim_load_row(loops, sim_row3(t, at, head), t->dtype, t->stride_bytes[2], dim, x, &ignored);
    if (c->shape->centering & NBL_CENTERING_SHIFT) {
        loops->shift_down(x, dim, sim_center_at(&c->args->centers, c->shape, sequence, head / c->group_rows).shifts);
    }
    loops->hadamard(x, dim, c->shape->k_hadamard);
}

/* What K's centre adds to a row's logits, from its product with the quantized row (NUM 6.6). */
static float float_offset(const call *c, const sim_center *center, float dot, int32_t exponent)
{
    float unit = nbl_pow2(nbl_e8m0_decode_slot(*center->exponent));
    return dot * unit * (c->c * nbl_pow2(exponent - nbl_log2_of(c->shape->k_hadamard)));
}

/* The Blackwell core's query, x being the transformed row, which is overwritten (NUM 7.1, 7.5). */
static void prepare_fp4_query(const call *c, uint32_t sequence, row *r, float *x, float_query *q)
{
    uint32_t dim = c->shape->k_dim, format = c->fp.fp4_format;
    sim_center k_center = sim_center_at(&c->args->centers, c->shape, sequence, r->head / c->group_rows);
    const int has_offset = k_center.codes != NULL && c->args->kv_len[sequence] != 0;
    float added = 0.0f;
    if (c->q_centers.data != NULL) {
        float m[NBL_DIM_PADDED_MAX];
        load_query(c, sequence, &c->q_centers, sequence, r->head, m);
        sim_fp4_center_of(format, m, dim, &q->center);
        for (uint32_t d = 0; d < dim; ++d) {
            x[d] -= m[d];
        }
        for (uint32_t i = 0; has_offset && i < 2; ++i) {
            float dot = sim_fp4_center_dot(&q->center.part[i], k_center.codes, dim);
            added += float_offset(c, &k_center, dot, q->center.exponent[i]);
        }
    }
    r->exponent = sim_fp4_query(format, x, dim, &q->fp4);
    r->offset = 0.0f;
    if (has_offset) {
        r->offset = float_offset(c, &k_center, sim_fp4_center_dot(&q->fp4, k_center.codes, dim), r->exponent) + added;
    }
}

/* The float core's query, x being the transformed row (NUM 6.3, 6.6). */
static void prepare_float_query(const call *c, uint32_t sequence, row *r, const float *x, float_query *q)
{
    uint32_t dim = c->shape->k_dim;
    sim_float_query(&c->fp, x, dim, q->halves, c->plan.k_dim);
    r->exponent = 0;
    r->offset = 0.0f;
    if ((c->shape->centering & NBL_CENTERING_MEAN) != 0 && c->args->kv_len[sequence] != 0) {
        sim_center center = sim_center_at(&c->args->centers, c->shape, sequence, r->head / c->group_rows);
        r->offset = float_offset(c, &center, sim_float_center_dot(&c->fp, q->halves, center.codes, dim), 0);
    }
}

/* A row's query ready for its core: codes[k_dim] (NUM 5.1) or fp (NUM 6.3, 7.1), the row's scale and offset. */
static void prepare_query(const call *c, uint32_t sequence, row *r, int8_t *codes, float_query *fp)
{
    uint32_t kv_head = r->head / c->group_rows;
    float x[NBL_DIM_PADDED_MAX];
    load_query(c, sequence, &c->args->q, r->token, r->head, x);
    if (c->plan.is_float) {
        if (c->fp.fp4_format != NBL_FORMAT_NONE) {
            prepare_fp4_query(c, sequence, r, x, fp);
        } else {
            prepare_float_query(c, sequence, r, x, fp);
        }
        r->state.scale = c->c * sim_scale_of(c->args->pool, NBL_KIND_K, c->args->layer, kv_head) *
                         nbl_pow2(r->exponent - nbl_log2_of(c->shape->k_hadamard));
        return;
    }
    int32_t exponent = quantize_query(c, x, codes);
    r->state.scale = c->c * nbl_pow2(exponent - nbl_log2_of(c->shape->k_hadamard));
    r->offset = center_offset(c, sequence, kv_head, codes, r->state.scale);
}

/* ------------------------------------------------------------------------------------------------ rows */

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Visible positions of a row, tree mask aside (NUM 5.2). */
static void set_visible(const nbl_attend_args *args, int64_t kv_len, row *r)
{
    int64_t end = kv_len;
    int64_t first = args->range_begin;
    if (args->range_end != 0) {
        end = min_i64(end, args->range_end);
    }
    if (args->flags & NBL_ATTEND_CAUSAL) {
        end = min_i64(end, r->position + 1);
    }
    if (args->flags & NBL_ATTEND_WINDOW_RIGHT) {
        end = min_i64(end, r->position + (int64_t)args->window_right + 1);
    }
    if (args->flags & NBL_ATTEND_WINDOW_LEFT) {
        first = max_i64(first, r->position - (int64_t)args->window_left);
    }
    r->first = first;
    r->end = max_i64(end, first);
}

/* The parts of a row that its index alone decides. */
static row row_of_index(const call *c, uint64_t index)
{
    row r = {.index = index, .token = index / c->args->q_heads, .head = (uint32_t)(index % c->args->q_heads)};
    return r;
}

static void item_rows(item *it)
{
    const nbl_attend_args *args = it->call->args;
    uint32_t group_rows = it->call->group_rows;
    int32_t q_first = args->q_indptr[it->sequence];
    int64_t q_len = args->q_indptr[it->sequence + 1] - q_first;
    int64_t kv_len = args->kv_len[it->sequence];
    int64_t first = (int64_t)it->block * SIM_ROWS_MAX;
    it->rows = (uint32_t)max_i64(0, min_i64(q_len * group_rows - first, SIM_ROWS_MAX));
    for (uint32_t i = 0; i < it->rows; ++i) {
        int64_t token = (first + i) / group_rows;
        uint32_t head = it->kv_head * group_rows + (uint32_t)((first + i) % group_rows);
        row *r = &it->row[i];
        *r = row_of_index(it->call, (uint64_t)(q_first + token) * args->q_heads + head);
        r->position = kv_len - q_len + token;
        set_visible(args, kv_len, r);
        it->states[i] = &r->state;
    }
}

static uint64_t low_bits(int64_t n)
{
    return n <= 0 ? 0 : n >= 64 ? ~UINT64_C(0) : (UINT64_C(1) << n) - 1u;
}

/* Clears the bits of draft tokens that the row's tree mask hides. */
static void apply_tree_mask(const item *it, const row *r, int64_t start, uint64_t visible[2])
{
    const nbl_attend_args *args = it->call->args;
    if (args->tree_mask == NULL) {
        return;
    }
    const uint32_t *mask = args->tree_mask + r->token * args->tree_mask_stride;
    int64_t q_len = args->q_indptr[it->sequence + 1] - args->q_indptr[it->sequence];
    int64_t draft = args->kv_len[it->sequence] - q_len;
    for (int64_t j = max_i64(draft, start); j < start + SIM_TILE && j < r->end; ++j) {
        int64_t bit = j - draft;
        if (((mask[bit / 32] >> (bit % 32)) & 1u) == 0) {
            visible[(j - start) / 64] &= ~(UINT64_C(1) << ((j - start) % 64));
        }
    }
}

/* Tokens of the tile at `start` that the row sees; 0 if none. */
static int visible_in_tile(const item *it, const row *r, int64_t start, uint64_t visible[2])
{
    if (r->first <= start && start + SIM_TILE <= r->end && it->call->args->tree_mask == NULL) {
        visible[0] = visible[1] = ~UINT64_C(0);
        return 1;
    }
    for (int64_t half = 0; half < 2; ++half) {
        int64_t at = start + 64 * half;
        visible[half] = low_bits(r->end - at) & ~low_bits(r->first - at);
    }
    if ((visible[0] | visible[1]) != 0) {
        apply_tree_mask(it, r, start, visible);
    }
    return (visible[0] | visible[1]) != 0;
}

/* ------------------------------------------------------------------------------------------------ tiles */

/* ALiBi's a (NUM 5.3) for a whole tile. */
static const float *alibi_exponents(const item *it, const row *r, int64_t start, float *a)
{
    const float *slopes = it->call->args->alibi_slopes;
    const sim_tile *tile = &it->scratch->tile;
    if (slopes == NULL) {
        return tile->exponent;
    }
    float slope = slopes[r->head] * NBL_LOG2E;
    for (uint32_t t = 0; t < SIM_TILE; ++t) {
        a[t] = nbl_fma(slope, (float)(start + t - r->position), tile->exponent[t]);
    }
    return a;
}

/* Soft cap's x (NUM 5.3), in place. */
static void soft_cap(float *x, uint32_t count, float scale)
{
    for (uint32_t t = 0; t < count; ++t) {
        x[t] = nbl_tanhp(x[t] * scale);
    }
}

static void scale_floats(float *x, uint32_t count, float factor)
{
    for (uint32_t i = 0; i < count; ++i) {
        x[i] *= factor;
    }
}

/* Softmax of one row of the tile, from its logits x; 1 if the tile adds something, with P at p and its weight at b. */
static int row_softmax(item *it, uint32_t index, int64_t start, const uint64_t visible[2], float *x, uint8_t *p,
                       float *b)
{
    const call *c = it->call;
    scratch *s = it->scratch;
    row *r = &it->row[index];
    float a[SIM_TILE];
    float *o = s->o + (uint64_t)index * c->plan.v_dim;
    sim_row_tile view = {
        x, alibi_exponents(it, r, start, a), s->tile.weight, {visible[0], visible[1]}, s->tile.groups, r->state.scale};
    if (c->cap != 0.0f) {
        soft_cap(x, s->tile.groups * SIM_GROUP, view.scale);
        view.scale = c->cap;
    }
    sim_softmax result = c->plan.is_float
                             ? sim_float_softmax(&c->fp, &s->fp, index, &view, r->state.base, !r->state.has_base)
                             : c->device->isa->softmax(&view, r->state.base, !r->state.has_base, p);
    if (result.rescale != 1.0f) {
        r->state.sum *= result.rescale;
        scale_floats(o, c->plan.v_dim, result.rescale);
    }
    r->state.base = result.base;
    r->state.has_base = 1;
    if (result.left_out) {
        return 0;
    }
    r->state.sum = nbl_fma(result.l, result.b, r->state.sum);
    *b = result.b;
    return 1;
}

/* The rows of a step. */
static sim_rows rows_from(const item *it, uint32_t first)
{
    const scratch *s = it->scratch;
    uint32_t dim = it->call->plan.k_dim;
    sim_rows rows = {it->rows - first < ROWS_STEP ? it->rows - first : ROWS_STEP,
                     dim,
                     s->words + first * dim / 4u,
                     s->offsets + first * dim / SIM_BLOCK,
                     s->bias + first,
                     s->q + (uint64_t)first * dim,
                     s->wide};
    return rows;
}

/* The centre of row i's head, which is that of every group_rows-th row after it. */
static void set_center(item *it, uint32_t i, const float_query *q)
{
    const call *c = it->call;
    if (c->q_centers.data != NULL && i < c->group_rows) {
        sim_fp4_set_center(&it->scratch->fp, i, &q->center, c->plan.k_dim);
        memcpy(it->center_exponent[i], q->center.exponent, sizeof q->center.exponent);
    }
}

/* Queries of the item's rows, once for all its tiles. */
static void item_queries(item *it)
{
    const call *c = it->call;
    scratch *s = it->scratch;
    for (uint32_t i = 0; i < it->rows; ++i) {
        row *r = &it->row[i];
        float_query fp;
        prepare_query(c, it->sequence, r, s->q + (uint64_t)i * c->plan.k_dim, &fp);
        if (c->plan.is_float && c->fp.fp4_format != NBL_FORMAT_NONE) {
            sim_fp4_set_query(&s->fp, i, &fp.fp4, c->plan.k_dim);
            set_center(it, i, &fp);
        } else if (c->plan.is_float) {
            sim_float_set_query(&c->fp, &s->fp, i, fp.halves, c->plan.k_dim);
        }
        r->total = nbl_state_empty(r->offset);
    }
    if (c->plan.is_float) {
        it->v_scale = sim_scale_of(c->args->pool, NBL_KIND_V, c->args->layer, it->kv_head);
        memset(s->tile.exponent, 0, sizeof s->tile.exponent);
        return;
    }
    for (uint32_t first = 0; first < it->rows; first += ROWS_STEP) {
        sim_rows rows = rows_from(it, first);
        sim_rows_pack(rows.codes, rows.count, rows.dim, s->words + first * rows.dim / 4u,
                      s->offsets + first * rows.dim / SIM_BLOCK, s->bias + first);
    }
    const sim_isa *isa = c->device->isa;
    if (isa->coded_widen != NULL && it->rows <= isa->coded_rows) {
        sim_rows rows = rows_from(it, 0);
        isa->coded_widen(&rows, s->wide);
    }
}

/* Few rows take their dot products from the stored codes, many from a decoded tile. */
static int use_codes(const item *it, const sim_coded *coded)
{
    const sim_isa *isa = it->call->device->isa;
    return coded->uniform && it->rows <= isa->coded_rows && (isa->coded_formats >> coded->group[0].format & 1u) != 0;
}

/* Decodes K unless the dot products take the codes. */
static void tile_k(item *it)
{
    const sim_isa *isa = it->call->device->isa;
    scratch *s = it->scratch;
    s->tile.groups = s->k.count;
    for (uint32_t g = 0; !use_codes(it, &s->k) && g < s->k.count; ++g) {
        isa->decode_k(&s->k.group[g], s->tile.k + (uint64_t)g * SIM_GROUP * s->tile.k_dim,
                      s->tile.unit + g * SIM_GROUP);
        sim_prefetch(s->k.ahead[g], s->k.ahead_bytes);
    }
}

/* Logits of the rows of a step. */
static void tile_qk(item *it, uint32_t first)
{
    const sim_isa *isa = it->call->device->isa;
    scratch *s = it->scratch;
    sim_rows rows = rows_from(it, first);
    if (use_codes(it, &s->k)) {
        isa->coded_qk(&s->k, &rows, s->x);
    } else {
        isa->dot_qk(&s->tile, &rows, s->x);
    }
}

/* What the softmax needs of V; decodes it too if that is the way. */
static void tile_v(item *it)
{
    const sim_isa *isa = it->call->device->isa;
    scratch *s = it->scratch;
    for (uint32_t g = 0; g < s->v.count; ++g) {
        float *exponent = s->tile.exponent + g * SIM_GROUP;
        float *weight = s->tile.weight + g * SIM_GROUP;
        if (use_codes(it, &s->v)) {
            isa->coded_weights(&s->v.group[g], exponent, weight);
        } else {
            isa->decode_v(&s->v.group[g], s->tile.v + (uint64_t)g * SIM_GROUP * s->tile.v_dim, exponent, weight);
            sim_prefetch(s->v.ahead[g], s->v.ahead_bytes);
        }
    }
}

static void tile_pv(item *it, float *const *o, const float *b, uint32_t active)
{
    const sim_isa *isa = it->call->device->isa;
    scratch *s = it->scratch;
    if (active == 0) {
        return;
    }
    if (use_codes(it, &s->v)) {
        isa->coded_pv(&s->v, s->p, o, b, active);
    } else {
        isa->dot_pv(&s->tile, s->p, o, b, active);
    }
}

/* K and V of a tile; while K is worked on V is asked for, and K of the next tile in turn. */
static void find_tile(item *it, uint32_t index)
{
    scratch *s = it->scratch;
    if (it->next_tile == index) {
        s->k = s->next_k;
    } else {
        sim_tile_find(&it->source, index, NBL_KIND_K, &s->k_buffer, &s->k);
    }
    sim_tile_find(&it->source, index, NBL_KIND_V, &s->v_buffer, &s->v);
    if (sim_tile_lies_whole(&it->source)) {
        it->next_tile = index + 1u;
        sim_tile_find(&it->source, it->next_tile, NBL_KIND_K, NULL, &s->next_k);
        sim_tile_ahead(&s->k, &s->v);
        sim_tile_ahead(&s->v, &s->next_k);
    }
}

/* A row in a tile of the float core; y is what its head's centre adds, or NULL. */
static void row_float_tile(item *it, uint32_t i, uint32_t index, const uint64_t visible[2], const float *y)
{
    const call *c = it->call;
    scratch *s = it->scratch;
    float b;
    sim_float_dot_qk(&c->fp, &s->fp, &s->tile, i, s->x);
    for (uint32_t t = 0; y != NULL && t < s->tile.groups * SIM_GROUP; ++t) {
        s->x[t] = nbl_fma(y[t], nbl_pow2(-it->row[i].exponent), s->x[t]);
    }
    row_softmax(it, i, (int64_t)index * SIM_TILE, visible, s->x, NULL, &b);
    sim_float_dot_pv(&c->fp, &s->fp, &s->tile, i, s->o + (uint64_t)i * c->plan.v_dim);
}

/* A tile in the float core, for the rows that see some of it, head by head. */
static void item_float_tile(item *it, uint32_t index, uint64_t (*visible)[2])
{
    const call *c = it->call;
    scratch *s = it->scratch;
    const int is_centred = c->q_centers.data != NULL;
    float y[SIM_TILE];
    sim_float_load_k(&c->fp, &s->fp, &it->source, index, &s->tile);
    sim_float_load_v(&c->fp, &s->fp, &it->source, index, &s->tile);
    for (uint32_t head = 0; head < c->group_rows && head < it->rows; ++head) {
        if (is_centred) {
            sim_fp4_dot_center(&s->fp, head, it->center_exponent[head], s->tile.groups * SIM_GROUP, c->plan.k_dim, y);
        }
        for (uint32_t i = head; i < it->rows; i += c->group_rows) {
            if ((visible[i][0] | visible[i][1]) != 0) {
                row_float_tile(it, i, index, visible[i], is_centred ? y : NULL);
            }
        }
    }
}

/* Rows from `first` on, below `end`, that softmax_rows takes. */
static uint32_t whole_rows(const item *it, uint32_t first, uint32_t end, uint64_t (*visible)[2])
{
    uint32_t i = first;
    if (it->call->device->isa->softmax_rows == NULL || it->call->cap != 0.0f || it->call->args->alibi_slopes != NULL) {
        return 0;
    }
    while (i < end && (visible[i][0] & visible[i][1]) == ~UINT64_C(0)) {
        ++i;
    }
    return i - first;
}

/* Q K and softmax of the rows of a step at once, if there is a loop that does both and all of them see the whole tile;
 * how many it did. */
static uint32_t step_at_once(item *it, uint32_t first, uint32_t end, uint64_t (*visible)[2], float **o, float *b)
{
    const sim_isa *isa = it->call->device->isa;
    scratch *s = it->scratch;
    if (isa->qk_softmax_rows == NULL || use_codes(it, &s->k) || whole_rows(it, first, end, visible) < end - first) {
        return 0;
    }
    sim_rows rows = rows_from(it, first);
    uint32_t done = isa->qk_softmax_rows(&s->tile, &rows, it->states + first, s->x, s->p, b);
    for (uint32_t i = 0; i < done; ++i) {
        o[i] = s->o + (uint64_t)(first + i) * it->call->plan.v_dim;
    }
    return done;
}

/* P and weights of the rows of a step for which the tile adds something, and where their O is, behind the `active` rows
 * that are there already; how many they are. Rows that see all of it go together as far as they can, the others one by
 * one. */
static uint32_t step_softmax(item *it, uint32_t first, uint32_t end, int64_t start, uint64_t (*visible)[2],
                             uint32_t active, float **o, float *b)
{
    const sim_isa *isa = it->call->device->isa;
    scratch *s = it->scratch;
    for (uint32_t i = first + active; i < end;) {
        float *x = s->x + (uint64_t)(i - first) * SIM_TILE;
        uint8_t *p = s->p + (uint64_t)active * SIM_TILE;
        uint32_t many = whole_rows(it, i, end, visible);
        uint32_t done = many == 0 ? 0 : isa->softmax_rows(&s->tile, x, it->states + i, many, p, b + active);
        uint32_t next = i + done;
        if (done == 0) {
            const uint64_t *seen = visible[i];
            done = (seen[0] | seen[1]) != 0 && row_softmax(it, i, start, seen, x, p, b + active);
            next = i + 1u;
        }
        for (uint32_t j = 0; j < done; ++j) {
            o[active++] = s->o + (uint64_t)(i + j) * it->call->plan.v_dim;
        }
        i = next;
    }
    return active;
}

/* A tile for the rows of a step. */
static void step_tile(item *it, uint32_t first, int64_t start, uint64_t (*visible)[2])
{
    uint32_t end = it->rows - first < ROWS_STEP ? it->rows : first + ROWS_STEP;
    float *o[ROWS_STEP];
    float b[ROWS_STEP];
    uint32_t active = step_at_once(it, first, end, visible, o, b);
    if (first + active < end) {
        tile_qk(it, first);
        active = step_softmax(it, first, end, start, visible, active, o, b);
    }
    tile_pv(it, o, b, active);
}

static void item_tile(item *it, uint32_t index)
{
    int64_t start = (int64_t)index * SIM_TILE;
    uint64_t visible[SIM_ROWS_MAX][2];
    int any = 0;
    for (uint32_t i = 0; i < it->rows; ++i) {
        any |= visible_in_tile(it, &it->row[i], start, visible[i]);
    }
    if (!any) {
        return;
    }
    if (it->call->plan.is_float) {
        item_float_tile(it, index, visible);
        return;
    }
    find_tile(it, index);
    tile_k(it);
    tile_v(it);
    for (uint32_t first = 0; first < it->rows; first += ROWS_STEP) {
        step_tile(it, first, start, visible);
    }
}

/* ------------------------------------------------------------------------------------------------ states and output */

static float *state_in_workspace(const call *c, uint64_t row_index, uint32_t n)
{
    return c->states + (row_index * c->plan.chunks + n) * c->plan.state_floats;
}

/* State of a row after a chunk; the empty one has an all-zero O (NUM 5.6). */
static nbl_state_head finish_chunk(const call *c, const row *r, float *o)
{
    nbl_state_head head = {r->state.base, r->state.sum, r->offset, 0.0f};
    if (!r->state.has_base || r->state.sum == 0.0f) {
        memset(o, 0, c->plan.v_dim * sizeof *o);
        return nbl_state_empty(head.offset);
    }
    return head;
}

static void write_state(const call *c, uint32_t n, const row *r, const nbl_state_head *head, const float *o)
{
    const nbl_tensor *heads = &c->args->state_head;
    const nbl_tensor *os = &c->args->state_o;
    sim_write(sim_row4(heads, n, r->token, r->head), NBL_F32, heads->stride_bytes[3], 4, &head->base);
    sim_write(sim_row4(os, n, r->token, r->head), NBL_F32, os->stride_bytes[3], c->shape->v_dim, o);
}

/* Writes O and LSE of a row (NUM 5.7); o is overwritten. */
static void write_output(const call *c, const row *r, nbl_state_head *head, float *o)
{
    const nbl_attend_args *args = c->args;
    const sim_row_loops *loops = c->device->isa->row;
    uint32_t dim = c->shape->v_dim;
    if (args->sinks != NULL) {
        nbl_state_add_sink(head, o, dim, args->sinks[r->head]);
    }
    if (args->lse.data != NULL) {
        float lse = nbl_state_lse(head, (args->flags & NBL_ATTEND_LSE_BASE2) != 0);
        memcpy(sim_row3(&args->lse, r->token, r->head), &lse, sizeof lse);
    }
    if (args->o.data != NULL) {
        nbl_state_output(head, o, dim, 0);
        if (c->shape->v_hadamard != 0) {
            loops->hadamard(o, dim, c->shape->v_hadamard);
            scale_floats(o, dim, nbl_pow2(-nbl_log2_of(c->shape->v_hadamard)));
        }
        sim_store_row(loops, sim_row3(&args->o, r->token, r->head), args->o.dtype, args->o.stride_bytes[2], dim, o);
    }
}

/* n-th chunk of the range for all rows of the item; leaves each row's state in the workspace or in its total. */
static void item_chunk(item *it, uint32_t n)
{
    const call *c = it->call;
    scratch *s = it->scratch;
    uint32_t first_tile = (c->plan.first_chunk + n) * CHUNK_TILES;
    for (uint32_t i = 0; i < it->rows; ++i) {
        it->row[i].state.has_base = 0;
        it->row[i].state.sum = 0.0f;
    }
    memset(s->o, 0, (uint64_t)it->rows * c->plan.v_dim * sizeof *s->o);
    sim_float_start(&s->fp, it->rows);
    for (uint32_t t = 0; t < CHUNK_TILES; ++t) {
        item_tile(it, first_tile + t);
    }
    for (uint32_t i = 0; i < it->rows; ++i) {
        row *r = &it->row[i];
        float *o = s->o + (uint64_t)i * c->plan.v_dim;
        if (c->plan.is_float) {
            r->state.sum = sim_float_finish(&c->fp, &s->fp, i, it->v_scale, o, c->plan.v_dim);
        }
        nbl_state_head head = finish_chunk(c, r, o);
        if (c->args->state_head.data != NULL) {
            write_state(c, n, r, &head, o);
        }
        if (c->plan.split) {
            float *state = state_in_workspace(c, r->index, n);
            memcpy(state, &head, sizeof head);
            memcpy(state + sizeof head / sizeof *state, o, c->plan.v_dim * sizeof *o);
        } else {
            nbl_state_merge(&r->total, s->total_o + (uint64_t)i * c->plan.v_dim, &head, o, c->plan.v_dim);
        }
    }
}

/* Folds the chunk states of a row of a split call. */
static void fold_row(const call *c, const row *r)
{
    nbl_state_head total = nbl_state_empty(r->offset);
    float o[NBL_DIM_PADDED_MAX] = {0};
    for (uint32_t n = 0; n < c->plan.chunks; ++n) {
        const float *state = state_in_workspace(c, r->index, n);
        nbl_state_head head;
        memcpy(&head, state, sizeof head);
        nbl_state_merge(&total, o, &head, state + sizeof head / sizeof *state, c->plan.v_dim);
    }
    write_output(c, r, &total, o);
}

/* A chunk of a split call; whoever does the last one of a block folds its rows. */
static void run_chunk(item *it, uint32_t chunk)
{
    const call *c = it->call;
    item_chunk(it, chunk);
    if (__atomic_add_fetch(&c->done[it->row[0].index], 1u, __ATOMIC_ACQ_REL) == c->plan.chunks) {
        for (uint32_t i = 0; i < it->rows; ++i) {
            fold_row(c, &it->row[i]);
        }
    }
}

static void run_all_chunks(item *it)
{
    const call *c = it->call;
    float *total_o = it->scratch->total_o;
    memset(total_o, 0, (uint64_t)it->rows * c->plan.v_dim * sizeof *total_o);
    for (uint32_t n = 0; n < c->plan.chunks; ++n) {
        item_chunk(it, n);
    }
    for (uint32_t i = 0; i < it->rows; ++i) {
        write_output(c, &it->row[i], &it->row[i].total, total_o + (uint64_t)i * c->plan.v_dim);
    }
}

/* Moves on to a block of rows. */
static void open_item(item *it, uint32_t sequence, uint32_t kv_head, uint32_t block)
{
    const nbl_attend_args *args = it->call->args;
    it->sequence = sequence;
    it->kv_head = kv_head;
    it->block = block;
    it->next_tile = UINT32_MAX;
    it->source = (sim_source){it->call->device->isa,
                              args->pool,
                              it->call->layouts,
                              args->page_table + (uint64_t)sequence * args->page_table_stride,
                              args->layer,
                              kv_head,
                              (uint32_t)args->kv_len[sequence]};
    item_rows(it);
    item_queries(it);
}

/* One item: `chunk` of the range alone when the call is split, all of them otherwise. */
static void run_item(item *it, uint32_t sequence, uint32_t kv_head, uint32_t block, uint32_t chunk)
{
    if (!it->call->plan.split || it->sequence != sequence || it->kv_head != kv_head || it->block != block) {
        open_item(it, sequence, kv_head, block);
    }
    if (it->rows == 0) {
        return;
    }
    if (it->call->plan.split) {
        run_chunk(it, chunk);
    } else {
        run_all_chunks(it);
    }
}

/* States past the last chunk that the bounds allow are empty too. */
static void fill_empty_states(const call *c)
{
    static const float zeros[NBL_DIM_PADDED_MAX];
    const nbl_tensor *heads = &c->args->state_head;
    for (uint64_t index = 0; heads->data != NULL && heads->shape[0] > c->plan.chunks && index < c->plan.rows; ++index) {
        int8_t codes[NBL_DIM_PADDED_MAX];
        float_query fp;
        row r = row_of_index(c, index);
        prepare_query(c, sim_sequence_of(c->args->q_indptr, c->args->batch, r.token), &r, codes, &fp);
        nbl_state_head empty = nbl_state_empty(r.offset);
        for (uint64_t n = c->plan.chunks; n < heads->shape[0]; ++n) {
            write_state(c, (uint32_t)n, &r, &empty, zeros);
        }
    }
}

/* ------------------------------------------------------------------------------------------------ call */

/* Items of the call, the chunks of a block side by side when it is split. */
typedef struct cut {
    int64_t parts; /* of a block */
    int64_t per_head;
    int64_t per_sequence;
    int64_t items;
} cut;

static cut cut_of(const call *c)
{
    cut k;
    k.parts = c->plan.split ? c->plan.chunks : 1;
    k.per_head = c->plan.blocks * k.parts;
    k.per_sequence = k.per_head * c->shape->kv_heads;
    k.items = k.per_sequence * c->args->batch;
    return k;
}

/* Most neighbouring items that a thread takes at once: chunks of a block share their queries and prefetches. */
static int64_t grain_of(const call *c)
{
    return c->plan.split ? max_i64(1, c->plan.chunks) : 1;
}

static void run_items(void *context, uint32_t thread, sim_parts *parts)
{
    const call *c = context;
    cut k = cut_of(c);
    item it; /* open_item sets the rest: 25 KB of zeros would be a tenth of a short call */
    const sim_isa *isa = c->device->isa;
    int64_t i, end;
    it.call = c;
    it.scratch = scratch_of(c, thread);
    it.sequence = UINT32_MAX;
    if (isa->enter != NULL) {
        isa->enter();
    }
    while (sim_parts_next(parts, &i, &end)) {
        for (; i < end; ++i) {
            run_item(&it, (uint32_t)(i / k.per_sequence), (uint32_t)(i % k.per_sequence / k.per_head),
                     (uint32_t)(i % k.per_head / k.parts), (uint32_t)(i % k.parts));
        }
    }
    if (isa->leave != NULL) {
        isa->leave();
    }
}

static nbl_status check_pages(const nbl_attend_args *args, uint32_t sequence, nbl_error *err)
{
    uint32_t page_tokens = args->pool->shape->page_tokens;
    const int32_t *table = args->page_table + (uint64_t)sequence * args->page_table_stride;
    uint32_t pages = ((uint32_t)args->kv_len[sequence] + page_tokens - 1u) / page_tokens;
    if (pages > args->page_table_stride) {
        return sim_fail(err, NBL_E_RANGE, "sim: kv_len[%u] is %d, which takes %u pages; the table holds %u", sequence,
                        args->kv_len[sequence], pages, args->page_table_stride);
    }
    for (uint32_t i = 0; i < pages; ++i) {
        if (nbl_layout_region_find(args->pool, table[i]) == NULL) {
            return sim_fail(err, NBL_E_RANGE, "sim: page_table[%u][%u] is %d, in no region of the pool", sequence, i,
                            table[i]);
        }
    }
    return NBL_OK;
}

static nbl_status check_sequence(const nbl_attend_args *args, uint32_t b, nbl_error *err)
{
    int64_t q_len = args->q_indptr[b + 1] - args->q_indptr[b];
    if (args->kv_len[b] < 0 || (uint32_t)args->kv_len[b] > args->kv_len_max) {
        return sim_fail(err, NBL_E_RANGE, "sim: kv_len[%u] is %d (allowed: 0 to kv_len_max, %u)", b, args->kv_len[b],
                        args->kv_len_max);
    }
    if (q_len > args->q_len_max) {
        return sim_fail(err, NBL_E_RANGE, "sim: sequence %u has %lld query rows (allowed: up to q_len_max, %u)", b,
                        (long long)q_len, args->q_len_max);
    }
    if (args->tree_mask != NULL && (uint64_t)q_len > 32u * (uint64_t)args->tree_mask_stride) {
        return sim_fail(err, NBL_E_RANGE, "sim: sequence %u has %lld query rows, tree_mask_stride is %u words", b,
                        (long long)q_len, args->tree_mask_stride);
    }
    return check_pages(args, b, err);
}

static nbl_status check_slopes(const nbl_attend_args *args, nbl_error *err)
{
    for (uint32_t h = 0; args->alibi_slopes != NULL && h < args->q_heads; ++h) {
        if (!(fabsf(args->alibi_slopes[h]) <= SLOPE_MAX)) {
            return sim_fail(err, NBL_E_RANGE, "sim: alibi_slopes[%u] is %g (allowed: -65536 to 65536)", h,
                            (double)args->alibi_slopes[h]);
        }
    }
    return NBL_OK;
}

static nbl_status check_args(const nbl_attend_args *args, nbl_error *err)
{
    nbl_status status = sim_check_stream(args->stream, err);
    if (status == NBL_OK) {
        status = sim_check_indptr("q_indptr", args->q_indptr, args->batch, args->q.shape[0], err);
    }
    for (uint32_t b = 0; status == NBL_OK && b < args->batch; ++b) {
        status = check_sequence(args, b, err);
    }
    if (status == NBL_OK && args->pool->shape->centering) {
        status = sim_check_centers(&args->centers, args->batch, err);
    }
    if (status == NBL_OK && args->sinks != NULL) {
        status = sim_check_sinks(args->sinks, args->q_heads, err);
    }
    return status == NBL_OK ? check_slopes(args, err) : status;
}

/* Row blocks of the longest sequence: the bound may be far above it. */
static uint32_t blocks_of(const nbl_attend_args *args)
{
    uint64_t most = 0;
    for (uint32_t b = 0; b < args->batch; ++b) {
        uint64_t q_len = (uint64_t)(args->q_indptr[b + 1] - args->q_indptr[b]);
        most = q_len > most ? q_len : most;
    }
    return (uint32_t)((most * (args->q_heads / args->pool->shape->kv_heads) + SIM_ROWS_MAX - 1u) / SIM_ROWS_MAX);
}

static float default_scale(uint32_t k_dim)
{
    return 1.0f / sqrtf((float)k_dim);
}

nbl_status sim_attend(nbl_device *device, const nbl_attend_args *args, nbl_error *err)
{
    if (args->q.shape[0] == 0 || args->batch == 0) {
        return NBL_OK;
    }
    nbl_status status = check_args(args, err);
    if (status != NBL_OK) {
        return status;
    }
    call c = {.device = device, .args = args, .shape = args->pool->shape};
    c.plan = make_plan(c.shape, args->q_heads, args->q.shape[0], args->q_len_max, args->kv_len_max);
    c.plan.blocks = blocks_of(args);
    if (args->workspace_bytes < c.plan.bytes) {
        return sim_fail(err, NBL_E_NO_MEMORY, "sim: workspace_bytes is %llu (needed: %llu)",
                        (unsigned long long)args->workspace_bytes, (unsigned long long)c.plan.bytes);
    }
    restrict_plan(&c.plan, args->range_begin, args->range_end);
    if (nbl_layout_pool_is_float(args->pool)) {
        c.plan.is_float = 1;
        c.fp = sim_float_call_of(args->pool, args->q_format, device->profile, device->isa->name);
        if (NBL_HAS_FIELD(nbl_attend_args, args, q_centers)) {
            c.q_centers = args->q_centers;
        }
    }
    uint8_t *workspace = args->workspace;
    c.done = (uint32_t *)(void *)workspace;
    c.states = (float *)(void *)(workspace + c.plan.states_at);
    if (c.plan.split) {
        memset(c.done, 0, c.plan.rows * sizeof *c.done);
    }
    c.group_rows = args->q_heads / c.shape->kv_heads;
    for (uint32_t i = 0; i < args->pool->region_count; ++i) {
        const nbl_region *region = &args->pool->regions[i];
        c.layouts[i] = nbl_layout_page(c.shape, region->k_format, region->v_format);
    }
    uint32_t saved = sim_fp_enter();
    float sm_scale = args->sm_scale != 0.0f ? args->sm_scale : default_scale(c.shape->k_dim);
    c.c = args->soft_cap != 0.0f ? sm_scale / args->soft_cap : sm_scale * NBL_LOG2E;
    c.cap = args->soft_cap != 0.0f ? args->soft_cap * NBL_LOG2E : 0.0f;
    sim_team_run_guided(device->team, cut_of(&c).items, grain_of(&c), run_items, &c);
    fill_empty_states(&c);
    sim_fp_leave(saved);
    return NBL_OK;
}
