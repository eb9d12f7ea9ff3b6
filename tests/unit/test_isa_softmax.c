/* SPDX-License-Identifier: Apache-2.0 */
/* softmax of every table against NUM 5.4, written out with the oracle's scalar functions. */
#include "test_isa_support.h"

#define GRID 49152.0f
#define REBASE 32.0f
#define Z_MAX 4194304.0f
#define GRID_STEPS (126 * 256)

/* One call of softmax with its memory. */
typedef struct trial {
    float x[SIM_TILE];
    float a[SIM_TILE];
    float weight[SIM_TILE];
    sim_row_tile row;
    float base;
    int first;
} trial;

/* What NUM 5.4 says of it. */
typedef struct outcome {
    sim_softmax found;
    uint8_t p[SIM_TILE];
    bool moves; /* t was computed again */
} outcome;

static bool visible(const trial *c, uint32_t t)
{
    return (c->row.visible[t / 64u] >> (t % 64u) & 1u) != 0;
}

static void show(trial *c, uint32_t t)
{
    c->row.visible[t / 64u] |= 1ull << (t % 64u);
}

/* ceil of the largest z, between the limits. */
static float expected_base(const trial *c)
{
    float most = -INFINITY;
    for (uint32_t t = 0; t < c->row.groups * SIM_GROUP; t++) {
        if (visible(c, t)) {
            most = fmaxf(most, fmaf(c->x[t], c->row.scale, c->a[t]));
        }
    }
    return fminf(fmaxf(ceilf(most) + 0.0f, -Z_MAX), Z_MAX);
}

/* t of the visible tokens and the largest of them. */
static float expected_logits(const trial *c, float base, float limit, float *logits)
{
    float most = -INFINITY;
    for (uint32_t t = 0; t < c->row.groups * SIM_GROUP; t++) {
        float from_base = c->a[t] - base;
        logits[t] = fminf(fmaf(c->x[t], c->row.scale, from_base + GRID), limit);
        most = visible(c, t) ? fmaxf(most, logits[t]) : most;
    }
    return most;
}

/* P and q of every distance, asked of the oracle once each: its exponential is slow where long double is emulated. */
static void expected_weight(int64_t k, uint8_t *p, float *q)
{
    static struct {
        uint8_t known, p;
        float q;
    } all[GRID_STEPS + 2];
    if (!all[k].known) {
        all[k].known = 1;
        all[k].p = (uint8_t)oracle_weight_int(k);
        all[k].q = oracle_weight_bf16(k);
    }
    *p = all[k].p;
    *q = all[k].q;
}

static outcome expect(const trial *c)
{
    outcome out = {{c->first ? expected_base(c) : c->base, 1.0f, 0.0f, 0.0f, 0}, {0}, false};
    float sums[16] = {0};
    float logits[SIM_TILE];
    float most = expected_logits(c, out.found.base, INFINITY, logits);
    if (most > GRID + REBASE) {
        float moved = fmaxf(out.found.base, expected_base(c));
        out.found.rescale = oracle_pow2((double)out.found.base - (double)moved);
        out.found.base = moved;
        out.moves = true;
        most = expected_logits(c, moved, GRID + REBASE, logits);
    }
    if (most - GRID < -126.0f) {
        out.found.left_out = 1;
        return out;
    }
    for (uint32_t t = 0; t < c->row.groups * SIM_GROUP; t++) {
        if (visible(c, t)) {
            double below = (double)most - (double)logits[t];
            int64_t k = below > 126.0 ? GRID_STEPS + 1 : (int64_t)(below * 256.0);
            float q;
            expected_weight(k, &out.p[t], &q);
            sums[t % 16u] = fmaf(q, c->weight[t], sums[t % 16u]);
        }
    }
    out.found.l = oracle_tree(sums);
    out.found.b = oracle_exp2_grid((int64_t)(((double)most - (double)GRID) * 256.0));
    return out;
}

static bool same_bits(float a, float b)
{
    return oracle_bits_from_f32(a) == oracle_bits_from_f32(b);
}

static void check_found(const trial *c, const sim_softmax *found, const uint8_t *p, const outcome *expected)
{
    const sim_softmax *want = &expected->found;
    cr_assert(same_bits(found->base, want->base) && same_bits(found->rescale, want->rescale) &&
                  found->left_out == want->left_out,
              "base %a, rescale %a, left out %u, not %a, %a, %u", (double)found->base, (double)found->rescale,
              found->left_out, (double)want->base, (double)want->rescale, want->left_out);
    if (found->left_out) {
        return;
    }
    cr_assert(same_bits(found->b, want->b), "b is %a, not %a", (double)found->b, (double)want->b);
    cr_assert(same_bits(found->l, want->l), "l is %a, not %a", (double)found->l, (double)want->l);
    for (uint32_t t = 0; t < c->row.groups * SIM_GROUP; t++) {
        cr_assert_eq(p[t], expected->p[t], "P of token %u is %u, not %u", t, p[t], expected->p[t]);
    }
}

/* 1 if softmax_rows takes such a row: it sees all, and a is exponents. */
static bool is_whole(const trial *c)
{
    bool whole = c->row.groups == SIM_GROUPS && (c->row.visible[0] & c->row.visible[1]) == UINT64_MAX;
    for (uint32_t t = 0; t < SIM_TILE; t++) {
        whole = whole && c->a[t] == rintf(c->a[t]) && fabsf(c->a[t]) <= 41.0f;
    }
    return whole;
}

static sim_tile *tile_of(const trial *c)
{
    sim_tile *tile = support_alloc(sizeof *tile);
    tile->groups = SIM_GROUPS;
    memcpy(tile->exponent, c->a, sizeof c->a);
    memcpy(tile->weight, c->weight, sizeof c->weight);
    return tile;
}

/* Rows of a tile at once: what a loop gets besides the tile, and where it leaves what it finds. */
typedef struct together {
    uint32_t count;
    uint32_t stay; /* rows before the first one that moves its base or leaves the tile out */
    uint8_t *p;
    float *b;
    sim_row_state states[SIM_ROWS_MAX];
    sim_row_state *rows[SIM_ROWS_MAX];
} together;

static together *together_alloc(trial *const *trials, const outcome *expected, uint32_t count)
{
    together *all = support_alloc(sizeof *all);
    all->count = count;
    all->p = guarded_alloc(count * SIM_TILE);
    all->b = guarded_alloc(count * sizeof *all->b);
    for (uint32_t r = 0; r < count; r++) {
        all->states[r] = (sim_row_state){trials[r]->row.scale, trials[r]->base, 3.0f + (float)r, !trials[r]->first};
        all->rows[r] = &all->states[r];
        all->stay += all->stay == r && !expected[r].moves && !expected[r].found.left_out;
    }
    return all;
}

/* The loop did `done` rows: it left the memory of those behind them alone. */
static void check_together(const together *all, trial *const *trials, const outcome *expected, uint32_t done)
{
    for (uint32_t r = 0; r < all->count; r++) {
        const sim_softmax *want = &expected[r].found;
        const sim_row_state *state = &all->states[r];
        float sum = r < done ? fmaf(want->l, want->b, 3.0f + (float)r) : 3.0f + (float)r;
        cr_assert(same_bits(state->sum, sum), "L of row %u is %a, not %a", r, (double)state->sum, (double)sum);
        if (r < done) {
            cr_assert(same_bits(state->base, want->base) && state->has_base, "row %u has another base", r);
        } else if (!trials[r]->first) {
            cr_assert(same_bits(state->base, trials[r]->base), "row %u has another base", r);
        }
        for (uint32_t t = 0; t < SIM_TILE; t++) {
            uint8_t weight = r < done ? expected[r].p[t] : 0xa5;
            cr_assert_eq(all->p[r * SIM_TILE + t], weight, "P of token %u of row %u is %u, not %u", t, r,
                         all->p[r * SIM_TILE + t], weight);
        }
        cr_assert(r >= done || same_bits(all->b[r], want->b), "b of row %u is %a, not %a", r, (double)all->b[r],
                  (double)want->b);
    }
}

static void together_free(together *all)
{
    guarded_free(all->b, all->count * sizeof *all->b);
    guarded_free(all->p, all->count * SIM_TILE);
    free(all);
}

/* Rows that share a and weight through softmax_rows: it stops at the first one that does not stay. */
static void check_rows(const sim_isa *isa, trial *const *trials, const outcome *expected, uint32_t count)
{
    sim_tile *tile = tile_of(trials[0]);
    float *x = support_alloc(count * sizeof trials[0]->x);
    together *all = together_alloc(trials, expected, count);
    for (uint32_t r = 0; r < count; r++) {
        memcpy(x + r * SIM_TILE, trials[r]->x, sizeof trials[r]->x);
    }
    uint32_t done = isa->softmax_rows(tile, x, all->rows, count, all->p, all->b);
    cr_assert_eq(done, all->stay, "%u of %u rows were done, not %u", done, count, all->stay);
    check_together(all, trials, expected, done);
    together_free(all);
    free(x);
    free(tile);
}

/* Runs one trial on a table and compares all it gives, by softmax and, where it may, by softmax_rows. */
static outcome check(const sim_isa *isa, trial *c)
{
    outcome expected = expect(c);
    uint8_t *p = guarded_alloc(SIM_TILE);
    c->row.x = c->x;
    c->row.a = c->a;
    c->row.weight = c->weight;
    sim_softmax found = isa->softmax(&c->row, c->base, c->first, p);
    check_found(c, &found, p, &expected);
    guarded_free(p, SIM_TILE);
    if (isa->softmax_rows != NULL && is_whole(c)) {
        check_rows(isa, &c, &expected, 1);
    }
    return expected;
}

/* A trial whose tokens all have logit 0 at base 0, weight 1, and are hidden. */
static trial *trial_alloc(uint32_t groups)
{
    trial *c = support_alloc(sizeof *c);
    c->row.groups = groups;
    c->row.scale = 1.0f / 256.0f;
    for (uint32_t t = 0; t < SIM_TILE; t++) {
        c->weight[t] = 1.0f;
    }
    return c;
}

/* NUM 5.4, 5.5: every k from 0 to beyond the end, as P and as q. The largest token has weight 0 here, so that l is the
 * sum of the other q: neighbours on the grid, whose sum of 127 is exact and shows each of them. */
ISA_TEST(isa_softmax, every_grid_point)
{
    trial *c = trial_alloc(SIM_GROUPS);
    memset(c->row.visible, 0xff, sizeof c->row.visible);
    c->weight[0] = 0.0f;
    for (uint32_t k = 0; k < GRID_STEPS + 600u; k += SIM_TILE - 1u) {
        for (uint32_t t = 1; t < SIM_TILE; t++) {
            c->x[t] = -(float)(k + t - 1u);
        }
        outcome out = check(isa, c);
        cr_assert_eq(out.p[0], 255u, "the largest token weighs 255");
    }
    free(c);
}

/* NUM 5.4: b at every m, each lane the largest in turn; rows left out below -126. */
ISA_TEST(isa_softmax, every_distance_of_the_largest_from_the_base)
{
    trial *c = trial_alloc(1);
    uint32_t left_out = 0;
    c->row.visible[0] = UINT32_MAX;
    for (int32_t i = -130 * 256; i <= 33 * 256; i++) {
        uint32_t largest = (uint32_t)(i + 130 * 256) % SIM_GROUP;
        for (uint32_t t = 0; t < SIM_GROUP; t++) {
            c->x[t] = (float)i - (t == largest ? 0.0f : 1.0f + (float)(t % 7u) * 300.0f);
        }
        left_out += check(isa, c).found.left_out;
    }
    cr_expect_eq(left_out, 4u * 256u, "%u rows were left out", left_out);
    free(c);
}

static void random_logits(trial *c, uint64_t *seed, float size)
{
    for (uint32_t t = 0; t < SIM_TILE; t++) {
        c->x[t] = support_normal(seed) * 256.0f * size;
        c->a[t] = (float)random_index(seed, 12) - 6.0f;
        c->weight[t] = ldexpf(1.0f, -(int)c->a[t]);
    }
}

/* NUM 5.2, 5.10: one visible token, at every place; whatever the others hold does not take part. */
ISA_TEST(isa_softmax, masks_of_a_single_bit)
{
    uint64_t seed = 91;
    for (uint32_t groups = 1; groups <= SIM_GROUPS; groups++) {
        for (uint32_t t = 0; t < groups * SIM_GROUP; t++) {
            trial *c = trial_alloc(groups);
            c->first = (int)(t % 2u);
            random_logits(c, &seed, 3.0f);
            for (uint32_t other = 0; other < SIM_TILE; other += 1u + random_index(&seed, 3)) {
                if (other != t) {
                    c->x[other] = other % 2u == 0 ? 0x1p70f : -0x1p70f;
                }
            }
            show(c, t);
            outcome out = check(isa, c);
            cr_assert_eq(out.p[t], 255u, "token %u is the largest", t);
            free(c);
        }
    }
}

static void random_mask(trial *c, uint64_t *seed, uint32_t shape)
{
    uint32_t tokens = c->row.groups * SIM_GROUP;
    uint32_t from = random_index(seed, tokens);
    uint32_t to = from + random_index(seed, tokens - from);
    for (uint32_t t = 0; t < tokens; t++) {
        bool shown = shape == 0   ? t <= from
                     : shape == 1 ? t >= from
                     : shape == 2 ? t >= from && t <= to
                     : shape == 3 ? t % 2u == from % 2u
                     : shape == 4 ? t / 8u % 2u == from % 2u
                     : shape == 5 ? random_index(seed, 2) == 0
                     : shape == 6 ? random_index(seed, 16) == 0
                                  : true;
        if (shown) {
            show(c, t);
        }
    }
    show(c, from);
}

/* NUM 5.2, 5.4: prefixes, suffixes, windows, combs, random masks. */
ISA_TEST(isa_softmax, masks_of_all_shapes)
{
    uint64_t seed = 92;
    for (uint32_t n = 0; n < 8000u; n++) {
        trial *c = trial_alloc(1u + n % SIM_GROUPS);
        c->first = (int)(n / 4u % 2u);
        random_logits(c, &seed, 5.0f);
        random_mask(c, &seed, n / 8u % 8u);
        for (uint32_t t = 0; t < SIM_TILE; t++) {
            if (!visible(c, t) && t % 3u == 0) {
                c->x[t] = 0x1p63f;
            }
        }
        check(isa, c);
        free(c);
    }
}

/* NUM 5.4: the base moves as soon as m exceeds GRID + 32, not before; the factor runs down to 0. */
ISA_TEST(isa_softmax, base_moves_beyond_32)
{
    uint64_t seed = 93;
    for (int32_t base = -300; base <= 300; base += 75) {
        for (int32_t step = -40; step <= 140 * 16; step++) {
            trial *c = trial_alloc(2);
            float top = (float)base + 32.0f + (float)step / (step < 40 ? 256.0f : 16.0f);
            c->base = (float)base;
            random_logits(c, &seed, 4.0f);
            random_mask(c, &seed, 7);
            for (uint32_t t = 0; t < SIM_TILE; t++) {
                c->x[t] = fminf(c->x[t] + top * 256.0f, (top - c->a[t]) * 256.0f);
            }
            c->x[5] = (top - c->a[5]) * 256.0f;
            outcome out = check(isa, c);
            cr_assert_eq(out.found.base != c->base, step > 0, "base %d, step %d: the base is %g", base, step,
                         (double)out.found.base);
            cr_assert(step <= 0 || out.found.base == ceilf(top), "base %d: it moves to %g", base,
                      (double)out.found.base);
            free(c);
        }
    }
}

/* NUM 5.4, 5.9: logits beyond Z_MAX saturate: above all weigh alike, below they do not take part. */
ISA_TEST(isa_softmax, logits_beyond_the_limit)
{
    static const float bases[] = {0.0f, Z_MAX, -Z_MAX, 4194000.0f, -17.0f};
    uint64_t seed = 94;
    for (uint32_t n = 0; n < 6000u; n++) {
        trial *c = trial_alloc(1u + n % SIM_GROUPS);
        float sign = n / 8u % 3u == 0 ? -1.0f : 1.0f;
        c->first = (int)(n / 4u % 2u);
        c->base = bases[random_index(&seed, COUNT(bases))];
        random_mask(c, &seed, n % 8u);
        c->row.scale = 1.0f;
        for (uint32_t t = 0; t < SIM_TILE; t++) {
            float far = ldexpf(1.0f, 18 + (int)random_index(&seed, n % 5u == 0 ? 60 : 8));
            c->x[t] = sign * far * (float)random_between(&seed, 0.5, 1.0);
            c->a[t] = (float)random_index(&seed, 80) - 40.0f;
        }
        check(isa, c);
        free(c);
    }
}

/* NUM 5.3, 5.4: terms of ALiBi up to 2^40 that the logit nearly cancels: t is far from z - B, max(B, ...) counts. */
ISA_TEST(isa_softmax, huge_alibi_terms)
{
    uint64_t seed = 96;
    uint32_t kept = 0;
    for (uint32_t n = 0; n < 6000u; n++) {
        trial *c = trial_alloc(1u + n % SIM_GROUPS);
        float size = ldexpf(1.0f, 16 + (int)(n % 25u));
        c->base = (float)random_index(&seed, 2001) - 1000.0f;
        c->row.scale = 0x1p-3f;
        random_mask(c, &seed, n % 8u);
        for (uint32_t t = 0; t < SIM_TILE; t++) {
            c->a[t] = support_normal(&seed) * size;
            c->x[t] = rintf(c->base + support_normal(&seed) * 40.0f - c->a[t]) * 8.0f;
        }
        kept += check(isa, c).found.rescale == 1.0f;
        free(c);
    }
    cr_expect(kept > 600u && kept < 5400u, "the base stayed in %u of 6000 rows", kept);
}

/* NUM 5.9. */
ISA_TEST(isa_softmax, saturated_tokens_weigh_alike)
{
    trial *c = trial_alloc(SIM_GROUPS);
    memset(c->row.visible, 0xff, sizeof c->row.visible);
    c->first = 1;
    c->row.scale = 1.0f;
    for (uint32_t t = 0; t < SIM_TILE; t++) {
        c->x[t] = Z_MAX + 33.0f + (float)(t * t);
    }
    outcome out = check(isa, c);
    cr_expect_eq(out.found.base, Z_MAX, "the base stops at the limit");
    cr_expect_eq(out.found.l, 128.0f, "each of 128 tokens weighs 1");
    for (uint32_t t = 0; t < SIM_TILE; t++) {
        c->x[t] = -2.0f * Z_MAX;
    }
    out = check(isa, c);
    cr_expect(out.found.base == -Z_MAX && out.found.left_out == 1, "below the limit the tile is left out");
    free(c);
}

/* NUM 5.3: scales of every size; ALiBi leaves a between the integers. */
static void random_row(trial *c, uint64_t *seed, uint32_t n)
{
    float scale = ldexpf((float)random_between(seed, 1.0, 2.0), (int)random_index(seed, 40) - 30);
    float size = ldexpf(1.0f, (int)random_index(seed, 14) - 4) / scale;
    float slope = n % 4u == 0 ? (float)random_between(seed, -2.0, 2.0) : 0.0f;
    c->first = (int)(n % 3u == 0);
    c->base = (float)random_index(seed, 401) - 200.0f;
    c->row.scale = n % 16u == 15u ? -scale : scale;
    for (uint32_t t = 0; t < SIM_TILE; t++) {
        int32_t ev = (int32_t)random_index(seed, n % 5u == 0 ? 81 : 6) - (n % 5u == 0 ? 40 : 3);
        c->x[t] = rintf(support_normal(seed) * size * 16.0f) / 16.0f;
        c->x[t] += n % 2u == 0 ? c->base / scale : 0.0f;
        c->a[t] = fmaf(slope, (float)t - 127.0f, (float)ev);
        c->weight[t] = ldexpf(1.0f, -ev);
    }
    random_mask(c, seed, random_index(seed, 8));
}

/* NUM 5.3, 5.4: at least 20000 random rows. */
ISA_TEST(isa_softmax, random_rows)
{
    uint64_t seed = 95;
    uint32_t moved = 0;
    uint32_t left_out = 0;
    for (uint32_t n = 0; n < 24000u; n++) {
        trial *c = trial_alloc(1u + n % SIM_GROUPS);
        random_row(c, &seed, n);
        outcome out = check(isa, c);
        moved += !c->first && out.found.base != c->base;
        left_out += out.found.left_out;
        free(c);
    }
    cr_log_info("%s: the base moved in %u of 24000 rows, %u were left out", isa->name, moved, left_out);
    cr_expect(moved > 1000u && left_out > 200u, "too few rows moved the base (%u) or were left out (%u)", moved,
              left_out);
}

/* NUM 5.4: 1 to 32 rows of a tile at once; in half of the calls all stay, in the others the first one that does not is
 * anywhere. */
ISA_TEST(isa_softmax, rows_together)
{
    uint64_t seed = 97;
    for (uint32_t n = 0; isa->softmax_rows != NULL && n < 1500u; n++) {
        trial *trials[32];
        outcome expected[32];
        uint32_t count = 1u + n % 32u;
        for (uint32_t r = 0; r < count; r++) {
            trial *c = trials[r] = trial_alloc(SIM_GROUPS);
            float size = n % 2u == 1u && random_index(&seed, 8) == 0 ? 200.0f : 4.0f;
            random_logits(c, &seed, size);
            memcpy(c->a, trials[0]->a, sizeof c->a);
            memcpy(c->weight, trials[0]->weight, sizeof c->weight);
            memset(c->row.visible, 0xff, sizeof c->row.visible);
            c->row.scale *= (float)random_between(&seed, 0.5, 1.0);
            c->base = (float)random_index(&seed, 40) - 10.0f;
            c->first = n % 3u == 0 || random_index(&seed, 16) == 0;
            expected[r] = expect(c);
        }
        check_rows(isa, trials, expected, count);
        for (uint32_t r = 0; r < count; r++) {
            free(trials[r]);
        }
    }
}

#define QK_DIM 128u
#define QK_ROWS 32u /* of a step of attend */

/* Codes of K for all tokens of a tile, and of a row of queries. */
static void random_codes(uint64_t *seed, int8_t *codes, uint32_t count, uint32_t most)
{
    for (uint32_t i = 0; i < count; i++) {
        codes[i] = (int8_t)((int32_t)random_index(seed, 2u * most + 1u) - (int32_t)most);
    }
}

/* A row of codes against all tokens of k, [token][d]: its trial. */
static trial *qk_trial(uint64_t *seed, const sim_tile *tile, const int8_t *k, const int8_t *q, uint32_t n)
{
    trial *c = trial_alloc(SIM_GROUPS);
    const bool is_large = n % 2u == 1u && random_index(seed, 100) == 0;
    c->row.scale *= (is_large ? 300.0f : 1.0f) * (float)random_between(seed, 0.01, 0.02);
    c->base = (float)random_index(seed, 30) - 5.0f;
    c->first = n % 3u == 0 || random_index(seed, 16) == 0;
    for (uint32_t t = 0; t < SIM_TILE; t++) {
        int32_t sum = 0;
        for (uint32_t d = 0; d < QK_DIM; d++) {
            sum += q[d] * k[t * QK_DIM + d];
        }
        c->x[t] = (float)sum * tile->unit[t];
    }
    memcpy(c->a, tile->exponent, sizeof c->a);
    memcpy(c->weight, tile->weight, sizeof c->weight);
    memset(c->row.visible, 0xff, sizeof c->row.visible);
    return c;
}

static sim_tile *qk_tile(uint64_t *seed, int8_t *k)
{
    sim_tile *tile = support_alloc(sizeof *tile);
    tile->groups = SIM_GROUPS;
    tile->k_dim = tile->v_dim = QK_DIM;
    tile->k = support_alloc(SIM_TILE * QK_DIM);
    random_codes(seed, k, SIM_TILE * QK_DIM, 127);
    for (uint32_t t = 0; t < SIM_TILE; t++) {
        int ev = (int)random_index(seed, 12) - 6;
        tile->unit[t] = ldexpf(1.0f, (int)random_index(seed, 4));
        tile->exponent[t] = (float)ev;
        tile->weight[t] = ldexpf(1.0f, -ev);
        for (uint32_t d = 0; d < QK_DIM; d++) {
            uint32_t at = t / 32u * 32u * QK_DIM + d / 4u * 128u + t % 32u * 4u + d % 4u; /* isa.h */
            tile->k[at] = (uint8_t)(k[t * QK_DIM + d] + 128);
        }
    }
    return tile;
}

/* NUM 5.3, 5.4: Q K and softmax in one, of as many rows as a loop takes. */
ISA_TEST(isa_softmax, rows_from_their_codes)
{
    static int8_t k[SIM_TILE * QK_DIM], q[QK_ROWS * QK_DIM];
    static trial *trials[QK_ROWS];
    static outcome expected[QK_ROWS];
    uint64_t seed = 98;
    uint32_t total = 0;
    for (uint32_t n = 0; isa->qk_softmax_rows != NULL && n < 400u; n++) {
        const uint32_t count = n % 8u == 0 ? 1u + random_index(&seed, QK_ROWS) : QK_ROWS;
        sim_tile *tile = qk_tile(&seed, k);
        float *x = guarded_alloc(QK_ROWS * SIM_TILE * sizeof *x);
        int32_t bias[QK_ROWS] = {0};
        random_codes(&seed, q, count * QK_DIM, 127);
        for (uint32_t r = 0; r < count; r++) {
            for (uint32_t d = 0; d < QK_DIM; d++) {
                bias[r] -= 128 * q[r * QK_DIM + d];
            }
            trials[r] = qk_trial(&seed, tile, k, q + r * QK_DIM, n);
            expected[r] = expect(trials[r]);
        }
        together *all = together_alloc(trials, expected, count);
        const sim_rows rows = {count, QK_DIM, NULL, NULL, bias, q, NULL};
        uint32_t done = isa->qk_softmax_rows(tile, &rows, all->rows, x, all->p, all->b);
        cr_assert(done == all->stay || (done == 0 && count < QK_ROWS), "%u of %u rows were done, %u stay", done, count,
                  all->stay);
        check_together(all, trials, expected, done);
        total += done;
        together_free(all);
        guarded_free(x, QK_ROWS * SIM_TILE * sizeof *x);
        for (uint32_t r = 0; r < count; r++) {
            free(trials[r]);
        }
        free(tile->k);
        free(tile);
    }
    cr_expect(isa->qk_softmax_rows == NULL || total > 3000u, "%u rows in all", total);
}
