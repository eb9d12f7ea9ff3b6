/* SPDX-License-Identifier: Apache-2.0 */
/* Where the oracle puts bytes: docs/formats.md F1 to F6. */
#include "test_oracle_support.h"

static const uint32_t page_sizes[] = {1, 3, 5, 16, 31, 32, 33, 48, 100, 128, 1024};
static const uint32_t dims[] = {16, 40, 72, 80, 128, 576};
static const uint32_t formats[] = {NBL_INT8, NBL_MXFP4, NBL_MXFP4_16, NBL_INT4P};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void check_codes(enum oracle_side side, uint32_t format, uint32_t dim, uint32_t tokens)
{
    uint64_t bytes = tokens * oracle_code_bytes(format, dim);
    uint32_t bits = format == NBL_INT8 ? 8u : 4u;
    uint8_t *taken = support_alloc(bytes);

    for (uint32_t t = 0; t < tokens; t++) {
        for (uint32_t d = 0; d < oracle_padded_dim(dim); d++) {
            uint32_t shift;
            uint64_t at = oracle_code_offset(side, format, dim, tokens, t, d, &shift);
            uint32_t mask = ((1u << bits) - 1u) << shift;
            cr_assert(at < bytes, "format %u, D %u, P %u: token %u element %u outside", format, dim, tokens, t, d);
            cr_assert((taken[at] & mask) == 0, "format %u, D %u, P %u: token %u element %u overlaps", format, dim,
                      tokens, t, d);
            taken[at] = (uint8_t)(taken[at] | mask);
        }
    }
    for (uint64_t i = 0; i < bytes; i++) {
        cr_assert_eq(taken[i], 255u, "format %u, D %u, P %u: byte %llu is a hole", format, dim, tokens,
                     (unsigned long long)i);
    }
    free(taken);
}

Test(oracle_page, codes_are_a_bijection)
{
    for (uint32_t f = 0; f < COUNT(formats); f++) {
        for (uint32_t d = 0; d < COUNT(dims); d++) {
            for (uint32_t p = 0; p < COUNT(page_sizes); p++) {
                check_codes(ORACLE_K, formats[f], dims[d], page_sizes[p]);
                check_codes(ORACLE_V, formats[f], dims[d], page_sizes[p]);
            }
        }
    }
}

/* The words that F3 and F4 promise to the kernels. */
Test(oracle_page, words_hold_what_the_page_says)
{
    uint32_t shift;
    for (uint32_t e = 0; e < 8; e++) {
        uint64_t at = oracle_code_offset(ORACLE_K, NBL_MXFP4, 128, 64, 37, 16 + e, &shift);
        cr_expect_eq(at, 32u * 64u + 2u * 128u + 4u * 5u + e % 4u, "K, 4 bits, element %u", e);
        cr_expect_eq(shift, e < 4 ? 0u : 4u, "K, 4 bits, element %u", e);
    }
    for (uint32_t r = 0; r < 4; r++) {
        uint64_t at = oracle_code_offset(ORACLE_V, NBL_INT8, 128, 64, 8 + r, 77, &shift);
        cr_expect_eq(at, 8u * 128u + 77u * 4u + r, "V, 8 bits, token %u", r);
    }
    cr_expect_eq(oracle_code_offset(ORACLE_V, NBL_INT4P, 128, 64, 0, 49, &shift), 17u * 4u, "V, 4 bits");
    cr_expect_eq(shift, 4u, "V, 4 bits, element 49 is in the high nibble");
}

Test(oracle_page, sizes_of_formats)
{
    cr_expect_eq(oracle_code_bytes(NBL_INT8, 72), 96u, "int8 codes");
    cr_expect_eq(oracle_code_bytes(NBL_INT4P, 72), 48u, "int4p codes");
    cr_expect_eq(oracle_scale_bytes(NBL_INT8, 128), 1u, "int8 scale");
    cr_expect_eq(oracle_scale_bytes(NBL_MXFP4, 128), 4u, "mxfp4 scales");
    cr_expect_eq(oracle_scale_bytes(NBL_MXFP4_16, 128), 8u, "mxfp4_16 scales");
    cr_expect_eq(oracle_scale_bytes(NBL_INT4P, 128), 5u, "int4p scales");
}

static void random_vector(uint64_t *seed, uint32_t format, uint32_t dim, oracle_vector *out)
{
    float x[ORACLE_DIM_MAX];
    for (uint32_t d = 0; d < dim; d++) {
        x[d] = ldexpf(support_normal(seed), (int)(support_random(seed) % 9u) - 4);
    }
    oracle_quantize(format, NBL_RULE_OPTIMAL, x, dim, out, NULL);
}

/* Fills a page in a shuffled order, then reads all back; the bytes of F2's padding keep their fill. */
static void check_page(uint32_t k_format, uint32_t v_format, uint32_t k_dim, uint32_t v_dim, uint32_t tokens)
{
    nbl_kv_shape shape = {.kv_heads = 3, .k_dim = k_dim, .v_dim = v_dim, .page_tokens = tokens};
    uint32_t parts = tokens * 6u;
    oracle_vector *written = support_alloc(parts * sizeof(oracle_vector));
    uint64_t seed = tokens * 1000u + k_dim;
    nbl_page_layout layout;
    uint8_t *codes;
    uint8_t *scales;

    oracle_page_layout(&shape, k_format, v_format, &layout);
    cr_assert(layout.code_page_bytes % 16u == 0 && layout.v_code_offset % 16u == 0, "parts are multiples of 16");
    codes = support_alloc(layout.code_page_bytes);
    scales = support_alloc(layout.scale_page_bytes);
    memset(scales, 0xA5, layout.scale_page_bytes);
    for (uint32_t n = 0; n < parts; n++) {
        uint32_t i = (uint32_t)((n * 7919ull) % parts);
        enum oracle_side side = i % 2u ? ORACLE_V : ORACLE_K;
        random_vector(&seed, side == ORACLE_K ? k_format : v_format, side == ORACLE_K ? k_dim : v_dim, &written[i]);
        oracle_page_write(&shape, k_format, v_format, codes, scales, side, i / 2u % 3u, i / 6u, &written[i]);
    }
    for (uint32_t i = 0; i < parts; i++) {
        oracle_vector read;
        oracle_page_read(&shape, k_format, v_format, codes, scales, i % 2u ? ORACLE_V : ORACLE_K, i / 2u % 3u, i / 6u,
                         &read);
        cr_assert(memcmp(&read, &written[i], sizeof read) == 0, "P %u, formats %u %u: part %u differs", tokens,
                  k_format, v_format, i);
    }
    for (uint64_t i = tokens * oracle_scale_bytes(k_format, k_dim); i < layout.k_scale_head_bytes; i++) {
        cr_assert_eq(scales[i], 0xA5u, "padding byte %llu written", (unsigned long long)i);
    }
    free(written);
    free(codes);
    free(scales);
}

Test(oracle_page, pages_give_back_what_was_written)
{
    for (uint32_t k = 0; k < COUNT(formats); k++) {
        for (uint32_t v = 0; v < COUNT(formats); v++) {
            for (uint32_t p = 0; p < COUNT(page_sizes) - 1u; p++) {
                check_page(formats[k], formats[v], 72, 40, page_sizes[p]);
            }
            check_page(formats[k], formats[v], 576, 512, 7);
        }
    }
}

Test(oracle_page, regions_own_their_pages)
{
    nbl_region regions[2] = {{.first_page = 3, .page_count = 4, .code_page_stride = 64, .code_layer_stride = 1024},
                             {.first_page = 9, .page_count = 1}};
    nbl_pool pool = {.regions = regions, .region_count = 2};
    uint8_t memory[4096];

    regions[0].codes = memory;
    cr_expect_null(oracle_region(&pool, 2), "before the first");
    cr_expect_eq(oracle_region(&pool, 3), &regions[0], "first of the first");
    cr_expect_eq(oracle_region(&pool, 6), &regions[0], "last of the first");
    cr_expect_null(oracle_region(&pool, 7), "between");
    cr_expect_eq(oracle_region(&pool, 9), &regions[1], "the second");
    cr_expect_eq(oracle_page_codes(&regions[0], 2, 5), memory + 2u * 1024u + 2u * 64u, "F6");
}
