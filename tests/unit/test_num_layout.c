/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and offsets of core/num/layout.h against the oracle (docs/formats.md F1 to F6). */
#include "layout.h"
#include "test_num_data.h"

static const uint32_t dims[] = {8, 16, 40, 64, 72, 128, 160, 576};
static const uint32_t page_sizes[] = {1, 2, 3, 4, 7, 16, 31, 32, 33, 48, 64, 100, 1024};

/* F1, F5. */
Test(num_layout, vector_sizes)
{
    for (uint32_t format = NBL_INT8; format <= NBL_INT4P; format++) {
        for (uint32_t dim = 8; dim <= 576u; dim += 8u) {
            uint32_t padded = oracle_padded_dim(dim);
            cr_assert_eq(nbl_layout_dim_padded(dim), padded, "Dp of %u", dim);
            cr_assert_eq(nbl_layout_code_bytes(format, dim), oracle_code_bytes(format, dim), "codes of %u", dim);
            cr_assert_eq(nbl_layout_scale_planes(format, dim), oracle_scale_bytes(format, dim), "scales of %u", dim);
            cr_assert_eq(nbl_layout_block_dim(format, dim), oracle_block_size(format, padded), "blocks of %u", dim);
        }
    }
    cr_expect_eq(nbl_layout_code_bits(0), 0u, "there is no format 0");
    cr_expect_eq(nbl_layout_scale_planes(5, 64), 0u, "there is no format 5");
    cr_expect_eq(nbl_layout_exponent_plane(NBL_INT4P, 72), 3u, "int4p: after the multipliers");
    cr_expect_eq(nbl_layout_exponent_plane(NBL_INT8, 72), 0u, "int8: the only one");
}

/* F2. */
Test(num_layout, page_layouts)
{
    uint64_t seed = 51;
    for (uint32_t n = 0; n < 20000u; n++) {
        nbl_kv_shape shape = NBL_INIT(nbl_kv_shape);
        uint32_t k_format = 1u + random_index(&seed, 4);
        uint32_t v_format = 1u + random_index(&seed, 4);
        nbl_page_layout expected = NBL_INIT(nbl_page_layout);
        shape.layers = 1;
        shape.kv_heads = 1u + random_index(&seed, 256);
        shape.k_dim = 8u + 8u * random_index(&seed, 72);
        shape.v_dim = 8u + 8u * random_index(&seed, 72);
        shape.page_tokens = 1u + random_index(&seed, 1024);
        oracle_page_layout(&shape, k_format, v_format, &expected);
        nbl_page_layout layout = nbl_layout_page(&shape, k_format, v_format);
        cr_assert_eq(layout.struct_size, sizeof layout, "struct_size");
        cr_assert_arr_eq(&layout.k_code_head_bytes, &expected.k_code_head_bytes,
                         sizeof layout - offsetof(nbl_page_layout, k_code_head_bytes), "case %u", n);
        uint32_t head = random_index(&seed, shape.kv_heads);
        cr_assert_eq(nbl_layout_head_code_offset(&layout, NBL_KIND_K, head), head * expected.k_code_head_bytes, "K");
        cr_assert_eq(nbl_layout_head_code_offset(&layout, NBL_KIND_V, head),
                     expected.v_code_offset + head * expected.v_code_head_bytes, "V");
        cr_assert_eq(nbl_layout_head_scale_offset(&layout, NBL_KIND_K, head), head * expected.k_scale_head_bytes, "K");
        cr_assert_eq(nbl_layout_head_scale_offset(&layout, NBL_KIND_V, head),
                     expected.v_scale_offset + head * expected.v_scale_head_bytes, "V");
    }
}

static void check_codes(uint32_t format, uint32_t dim, uint32_t page_tokens, uint32_t t)
{
    for (uint32_t d = 0; d < oracle_padded_dim(dim); d++) {
        uint32_t shift;
        uint64_t byte = oracle_code_offset(ORACLE_K, format, dim, page_tokens, t, d, &shift);
        cr_assert_eq(nbl_layout_k_code_byte(format, dim, page_tokens, t, d), byte, "K %u of token %u", d, t);
        cr_assert_eq(nbl_layout_k_code_shift(format, d), shift, "nibble of K %u", d);
        byte = oracle_code_offset(ORACLE_V, format, dim, page_tokens, t, d, &shift);
        cr_assert_eq(nbl_layout_v_code_byte(format, dim, page_tokens, t, d), byte, "V %u of token %u", d, t);
        cr_assert_eq(nbl_layout_v_code_shift(format, d), shift, "nibble of V %u", d);
    }
}

/* F3, F4, F5. */
Test(num_layout, code_and_scale_offsets)
{
    for (uint32_t i = 0; i < COUNT(page_sizes) * COUNT(dims); i++) {
        uint32_t page_tokens = page_sizes[i % COUNT(page_sizes)];
        uint32_t dim = dims[i / COUNT(page_sizes)];
        for (uint32_t t = 0; t < page_tokens; t += t < 70u || t + 40u > page_tokens ? 1u : 37u) {
            check_codes(NBL_INT8, dim, page_tokens, t);
            check_codes(NBL_MXFP4_16, dim, page_tokens, t);
            for (uint32_t plane = 0; plane < 37u; plane++) {
                cr_assert_eq(nbl_layout_scale_byte(page_tokens, plane, t), oracle_scale_offset(page_tokens, plane, t),
                             "plane %u, token %u", plane, t);
            }
        }
    }
}

/* F3, F4: every code of a page has its own place, and the part has no holes. */
Test(num_layout, codes_of_a_page_tile_it)
{
    for (uint32_t i = 0; i < COUNT(page_sizes); i++) {
        uint32_t tokens = page_sizes[i];
        uint32_t bytes = tokens * nbl_layout_code_bytes(NBL_INT4P, 72);
        uint8_t *taken = support_alloc(2u * bytes);
        for (uint32_t n = 0; n < tokens * 96u; n++) {
            uint64_t k = nbl_layout_k_code_byte(NBL_INT4P, 72, tokens, n / 96u, n % 96u);
            uint64_t v = nbl_layout_v_code_byte(NBL_INT4P, 72, tokens, n / 96u, n % 96u);
            cr_assert(k < bytes && v < bytes, "%u tokens: byte %llu, %llu of %u", tokens, (unsigned long long)k,
                      (unsigned long long)v, bytes);
            taken[k] = (uint8_t)(taken[k] | 15u << nbl_layout_k_code_shift(NBL_INT4P, n % 96u));
            taken[bytes + v] = (uint8_t)(taken[bytes + v] | 15u << nbl_layout_v_code_shift(NBL_INT4P, n % 96u));
        }
        for (uint32_t n = 0; n < 2u * bytes; n++) {
            cr_assert_eq(taken[n], 0xff, "%u tokens: byte %u is %02x", tokens, n, taken[n]);
        }
        free(taken);
    }
}

/* F6. */
Test(num_layout, regions_hold_their_pages)
{
    nbl_region regions[3] = {0};
    nbl_pool pool = NBL_INIT(nbl_pool);
    uint8_t memory[16];
    pool.regions = regions;
    pool.region_count = 3;
    for (uint32_t r = 0; r < 3u; r++) {
        regions[r].first_page = 10u + 20u * r;
        regions[r].page_count = 5u + r;
        regions[r].codes = regions[r].scales = memory;
        regions[r].code_layer_stride = 1ull << 33;
        regions[r].code_page_stride = 4096;
        regions[r].scale_layer_stride = 1ull << 32;
        regions[r].scale_page_stride = 512;
    }
    for (int64_t page = -3; page < 70; page++) {
        cr_expect_eq(nbl_layout_region_find(&pool, page), oracle_region(&pool, page), "page %lld", (long long)page);
    }
    cr_expect_null(nbl_layout_region_find(&pool, 1ll << 40), "no page of 2^40");
    cr_expect_eq(nbl_layout_code_offset(&regions[1], 3, 34), 3 * (1ull << 33) + 4 * 4096, "codes");
    cr_expect_eq(nbl_layout_scale_offset(&regions[1], 3, 34), 3 * (1ull << 32) + 4 * 512, "scales");
}
