/* SPDX-License-Identifier: Apache-2.0 */
/* decode_k and decode_v of every table against the canonical form of the oracle (NUM 2, F3 to F5). */
#include "test_isa_support.h"

#define PAGE_TOKENS 96u /* three groups; the middle one is decoded */

static const uint32_t dims[] = {32, 64, 96, 128, 160, 576, 40, 8};
static const uint32_t formats[] = {NBL_INT8, NBL_MXFP4, NBL_MXFP4_16, NBL_INT4P};

/* A page of one head with the same vectors as K and as V. */
typedef struct page {
    nbl_kv_shape shape;
    uint32_t format;
    uint8_t *codes;
    uint8_t *scales;
    nbl_page_layout layout;
    oracle_vector vectors[SIM_GROUP];
} page;

static void page_init(page *p, uint32_t format, uint32_t dim)
{
    p->shape = (nbl_kv_shape)NBL_INIT(nbl_kv_shape);
    p->shape.layers = 1;
    p->shape.kv_heads = 1;
    p->shape.k_dim = p->shape.v_dim = dim;
    p->shape.page_tokens = PAGE_TOKENS;
    p->format = format;
    oracle_page_layout(&p->shape, format, format, &p->layout);
    p->codes = support_alloc(p->layout.code_page_bytes);
    p->scales = support_alloc(p->layout.scale_page_bytes);
}

static void page_free(page *p)
{
    free(p->codes);
    free(p->scales);
}

/* Fills the neighbours with random bytes and writes the middle group. */
static void page_fill(page *p, uint64_t *seed)
{
    for (uint64_t i = 0; i < p->layout.code_page_bytes; i++) {
        p->codes[i] = (uint8_t)support_random(seed);
    }
    for (uint64_t i = 0; i < p->layout.scale_page_bytes; i++) {
        p->scales[i] = (uint8_t)support_random(seed);
    }
    for (uint32_t t = 0; t < SIM_GROUP; t++) {
        oracle_page_write(&p->shape, p->format, p->format, p->codes, p->scales, ORACLE_K, 0, SIM_GROUP + t,
                          &p->vectors[t]);
        oracle_page_write(&p->shape, p->format, p->format, p->codes, p->scales, ORACLE_V, 0, SIM_GROUP + t,
                          &p->vectors[t]);
    }
}

static sim_group page_group(const page *p, enum oracle_side side)
{
    uint64_t code_offset = side == ORACLE_K ? 0 : p->layout.v_code_offset;
    uint64_t scale_offset = side == ORACLE_K ? 0 : p->layout.v_scale_offset;
    sim_group group;
    group.format = p->format;
    group.dim = p->shape.k_dim;
    group.codes = p->codes + code_offset + SIM_GROUP * oracle_code_bytes(p->format, group.dim);
    group.scales = p->scales + scale_offset + SIM_GROUP;
    group.plane_stride = PAGE_TOKENS;
    return group;
}

static void check_k(const sim_isa *isa, const page *p)
{
    sim_group group = page_group(p, ORACLE_K);
    uint32_t padded = oracle_padded_dim(group.dim);
    uint8_t *codes = guarded_alloc(SIM_GROUP * padded);
    float *unit = guarded_alloc(SIM_GROUP * sizeof *unit);
    isa->decode_k(&group, codes, unit);
    for (uint32_t t = 0; t < SIM_GROUP; t++) {
        cr_assert_eq(unit[t], ldexpf(1.0f, p->vectors[t].exponent), "format %u, D = %u, token %u: unit %a", p->format,
                     group.dim, t, (double)unit[t]);
        for (uint32_t d = 0; d < padded; d++) {
            int32_t code = codes[d / 4u * 128u + t * 4u + d % 4u] - 128;
            cr_assert_eq(code, p->vectors[t].codes[d], "format %u, D = %u, token %u: K %u is %d, not %d", p->format,
                         group.dim, t, d, code, p->vectors[t].codes[d]);
        }
    }
    guarded_free(codes, SIM_GROUP * padded);
    guarded_free(unit, SIM_GROUP * sizeof *unit);
}

static void check_v(const sim_isa *isa, const page *p)
{
    sim_group group = page_group(p, ORACLE_V);
    uint32_t padded = oracle_padded_dim(group.dim);
    int8_t *codes = guarded_alloc(SIM_GROUP * padded);
    float *exponent = guarded_alloc(SIM_GROUP * sizeof *exponent);
    float *weight = guarded_alloc(SIM_GROUP * sizeof *weight);
    isa->decode_v(&group, codes, exponent, weight);
    for (uint32_t t = 0; t < SIM_GROUP; t++) {
        int32_t e = p->vectors[t].exponent;
        cr_assert(exponent[t] == (float)e && weight[t] == ldexpf(1.0f, -e),
                  "format %u, D = %u, token %u: exponent %g, weight %a of E = %d", p->format, group.dim, t,
                  (double)exponent[t], (double)weight[t], e);
        for (uint32_t d = 0; d < padded; d++) {
            int32_t code = codes[t / 4u * (4u * padded) + d * 4u + t % 4u];
            cr_assert_eq(code, p->vectors[t].codes[d], "format %u, D = %u, token %u: V %u is %d, not %d", p->format,
                         group.dim, t, d, code, p->vectors[t].codes[d]);
        }
    }
    guarded_free(codes, SIM_GROUP * padded);
    guarded_free(exponent, SIM_GROUP * sizeof *exponent);
    guarded_free(weight, SIM_GROUP * sizeof *weight);
}

typedef void make_vector(uint32_t format, uint32_t dim, uint64_t *seed, oracle_vector *v);
typedef void check_page(const sim_isa *isa, const page *p);

/* What a quantizer made of some input of any kind. */
static void quantized_vector(uint32_t format, uint32_t dim, uint64_t *seed, oracle_vector *v)
{
    float x[ORACLE_DIM_MAX];
    input_random(random_index(seed, INPUT_KINDS), seed, x, dim);
    oracle_quantize(format, NBL_RULE_OPTIMAL + random_index(seed, 4), x, dim, v, NULL);
}

/* Any code, scale and exponent that NUM 2.2, 2.3, 2.4, 2.5 allow, whether or not a quantizer makes it. */
static void legal_vector(uint32_t format, uint32_t dim, uint64_t *seed, oracle_vector *v)
{
    uint32_t padded = oracle_padded_dim(dim);
    int32_t least = (int32_t)random_index(seed, 77) - 39;
    memset(v, 0, sizeof *v);
    v->format = format;
    v->dim = dim;
    v->padded_dim = padded;
    v->exponent = (int32_t)random_index(seed, 81) - 40;
    for (uint32_t b = 0; b < ORACLE_BLOCKS_MAX; b++) {
        v->block_exponents[b] = least + (int32_t)random_index(seed, 4);
        v->block_multipliers[b] = (uint8_t)(1u + random_index(seed, 16));
    }
    for (uint32_t d = 0; d < padded; d++) {
        uint32_t code = format == NBL_INT8    ? random_index(seed, 255) + 129u
                        : format == NBL_INT4P ? 1u + random_index(seed, 15)
                                              : random_index(seed, 16);
        v->elements[d] = (uint8_t)(format != NBL_INT8 && format != NBL_INT4P && code == 8u ? 0u : code);
    }
    oracle_canonical(v);
}

static void check_groups(const sim_isa *isa, make_vector *make, check_page *check, uint32_t rounds)
{
    uint64_t seed = 71;
    for (uint32_t n = 0; n < rounds * COUNT(formats) * COUNT(dims); n++) {
        page *p = support_alloc(sizeof *p);
        page_init(p, formats[n % COUNT(formats)], dims[n / COUNT(formats) % COUNT(dims)]);
        for (uint32_t t = 0; t < SIM_GROUP; t++) {
            make(p->format, p->shape.k_dim, &seed, &p->vectors[t]);
        }
        page_fill(p, &seed);
        check(isa, p);
        page_free(p);
        free(p);
    }
}

/* NUM 2.3, 2.4, 2.5, F3, F5. */
ISA_TEST(isa_decode, k_of_quantized_groups)
{
    check_groups(isa, quantized_vector, check_k, 8);
}

/* NUM 2.2, 2.3, 2.4, 2.5, F3, F5. */
ISA_TEST(isa_decode, k_of_all_legal_codes)
{
    check_groups(isa, legal_vector, check_k, 8);
}

/* NUM 2.3, 2.4, 2.5, F4, F5. */
ISA_TEST(isa_decode, v_of_quantized_groups)
{
    check_groups(isa, quantized_vector, check_v, 8);
}

/* NUM 2.2, 2.3, 2.4, 2.5, F4, F5. */
ISA_TEST(isa_decode, v_of_all_legal_codes)
{
    check_groups(isa, legal_vector, check_v, 8);
}

static void random_bytes(uint8_t *bytes, uint64_t count, uint64_t *seed, uint32_t round)
{
    for (uint64_t i = 0; i < count; i++) {
        bytes[i] = round == 0 ? 0x00 : round == 1 ? 0xff : (uint8_t)support_random(seed);
    }
}

static void check_power(float x, const char *what, uint32_t format)
{
    int exponent;
    float fraction = frexpf(x, &exponent);
    cr_assert(fraction == 0.5f && exponent - 1 >= -41 && exponent - 1 <= 41, "format %u: %s is %a", format, what,
              (double)x);
}

/* NUM 5.10: bytes of unused slots may hold anything. They give some codes, powers of two in range, and no read or write
 * outside the group: the input is exactly as large as the group, for the address sanitizer to see. */
ISA_TEST(isa_decode, garbage_is_harmless)
{
    uint64_t seed = 72;
    for (uint32_t n = 0; n < 6u * COUNT(formats) * COUNT(dims); n++) {
        sim_group group = {.format = formats[n % COUNT(formats)],
                           .dim = dims[n / COUNT(formats) % COUNT(dims)],
                           .plane_stride = SIM_GROUP};
        uint64_t code_bytes = SIM_GROUP * oracle_code_bytes(group.format, group.dim);
        uint64_t scale_bytes = SIM_GROUP * oracle_scale_bytes(group.format, group.dim);
        uint64_t decoded = SIM_GROUP * oracle_padded_dim(group.dim);
        uint8_t *stored = malloc(code_bytes);
        uint8_t *scales = malloc(scale_bytes);
        uint8_t *codes = guarded_alloc(decoded);
        float *floats = guarded_alloc(3u * SIM_GROUP * sizeof *floats);
        cr_assert(stored != NULL && scales != NULL, "no memory");
        random_bytes(stored, code_bytes, &seed, n / COUNT(formats) / COUNT(dims));
        random_bytes(scales, scale_bytes, &seed, n / COUNT(formats) / COUNT(dims));
        group.codes = stored;
        group.scales = scales;
        isa->decode_k(&group, codes, floats);
        isa->decode_v(&group, (int8_t *)codes, floats + SIM_GROUP, floats + 2u * SIM_GROUP);
        for (uint32_t t = 0; t < SIM_GROUP; t++) {
            check_power(floats[t], "2^ek", group.format);
            check_power(floats[2u * SIM_GROUP + t], "2^-ev", group.format);
            cr_assert_eq(ldexpf(floats[2u * SIM_GROUP + t], (int)floats[SIM_GROUP + t]), 1.0f, "2^-ev and ev differ");
        }
        free(stored);
        free(scales);
        guarded_free(codes, decoded);
        guarded_free(floats, 3u * SIM_GROUP * sizeof *floats);
    }
}
