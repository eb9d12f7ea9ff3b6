/* SPDX-License-Identifier: Apache-2.0 */
#include "world.h"

/* Through append; every operation takes its pools through the same door. */
#define BAD_POOL(name, status, text, ...) BAD(badinput_pool, name, append, append, status, text, __VA_ARGS__)

BAD_POOL(struct_size, NBL_E_ABI, "nbl_pool", w.pool.struct_size = 8)
BAD_POOL(flags, NBL_E_UNKNOWN_FIELD, "nbl_pool", w.pool.flags = 1)
BAD_POOL(reserved, NBL_E_UNKNOWN_FIELD, "nbl_pool.reserved is 3", w.pool.reserved = 3)
BAD_POOL(shape_null, NBL_E_INVALID, "nbl_kv_shape", w.pool.shape = NULL)
BAD_POOL(shape_size, NBL_E_ABI, "nbl_kv_shape", w.shape.struct_size = 20)
BAD_POOL(shape_flags, NBL_E_UNKNOWN_FIELD, "nbl_kv_shape", w.shape.flags = 2)
BAD_POOL(layers_zero, NBL_E_INVALID, "pool.shape.layers is 0 (allowed: 1", w.shape.layers = 0)
BAD_POOL(kv_heads_zero, NBL_E_INVALID, "pool.shape.kv_heads is 0 (allowed: 1", w.shape.kv_heads = 0)
BAD_POOL(k_dim_small, NBL_E_INVALID, "pool.shape.k_dim is 8 (allowed: multiples of 8, 16 to 576)", w.shape.k_dim = 8)
BAD_POOL(k_dim_step, NBL_E_INVALID, "pool.shape.k_dim is 36", w.shape.k_dim = 36)
BAD_POOL(k_dim_large, NBL_E_INVALID, "pool.shape.k_dim is 584", w.shape.k_dim = 584)
BAD_POOL(v_dim_small, NBL_E_INVALID, "pool.shape.v_dim is 0 (allowed: multiples of 8, 16 to 512)", w.shape.v_dim = 0)
BAD_POOL(v_dim_large, NBL_E_INVALID, "pool.shape.v_dim is 520", w.shape.v_dim = 520)
BAD_POOL(page_tokens_zero, NBL_E_INVALID, "pool.shape.page_tokens is 0 (allowed: 1 to 1024)", w.shape.page_tokens = 0)
BAD_POOL(page_tokens_large, NBL_E_INVALID, "pool.shape.page_tokens is 1025", w.shape.page_tokens = 1025)
BAD_POOL(k_hadamard_odd, NBL_E_INVALID,
         "pool.shape.k_hadamard is 24 (allowed: 0 or a power of two 8 to 256 dividing 32)", w.shape.k_hadamard = 24)
BAD_POOL(k_hadamard_small, NBL_E_INVALID, "pool.shape.k_hadamard is 4", w.shape.k_hadamard = 4)
BAD_POOL(k_hadamard_large, NBL_E_INVALID, "pool.shape.k_hadamard is 64", w.shape.k_hadamard = 64)
BAD_POOL(v_hadamard_large, NBL_E_INVALID, "pool.shape.v_hadamard is 32", w.shape.v_hadamard = 32)
BAD_POOL(k_scale_rule, NBL_E_INVALID, "pool.shape.k_scale_rule is 6 (allowed: 0 to 5)", w.shape.k_scale_rule = 6)
BAD_POOL(v_scale_rule, NBL_E_INVALID, "pool.shape.v_scale_rule is 77", w.shape.v_scale_rule = 77)
BAD_POOL(centering, NBL_E_INVALID, "pool.shape.centering is 4 (allowed: 0 to 3)", w.shape.centering = 4)
BAD_POOL(regions_none, NBL_E_INVALID, "pool.region_count is 0 (allowed: 1 to 8)", w.pool.region_count = 0)
BAD_POOL(regions_many, NBL_E_INVALID, "pool.region_count is 9", w.pool.region_count = 9)
BAD_POOL(regions_null, NBL_E_INVALID, "pool.regions is NULL", w.pool.regions = NULL)
BAD_POOL(k_format, NBL_E_INVALID,
         "pool.regions[1].k_format is 9 (allowed: 1 int8, 2 mxfp4, 3 mxfp4_16, 4 int4p, 5 bf16, 6 fp16, 7 fp8_e4m3, 8 "
         "nvfp4)",
         w.regions[1].k_format = 9)
BAD_POOL(v_format, NBL_E_INVALID, "pool.regions[0].v_format is 0", w.regions[0].v_format = 0)
BAD_POOL(pages_none, NBL_E_INVALID, "pool.regions[0].page_count is 0", w.regions[0].page_count = 0)
BAD_POOL(pages_past_int32, NBL_E_INVALID, "pool.regions[1].page_count is 2147483647",
         w.regions[1].page_count = INT32_MAX)
BAD_POOL(pages_overlap, NBL_E_INVALID, "pool.regions[1].first_page is 3 (allowed: 4", w.regions[1].first_page = 3)
BAD_POOL(pages_unordered, NBL_E_INVALID, "pool.regions[1].first_page is 0", w.regions[0].first_page = 8,
         w.regions[1].first_page = 0)
BAD_POOL(codes_null, NBL_E_INVALID, "pool.regions[0].codes is NULL", w.regions[0].codes = NULL)
BAD_POOL(scales_null, NBL_E_INVALID, "pool.regions[1].scales is NULL", w.regions[1].scales = NULL)
BAD_POOL(codes_unaligned, NBL_E_ALIGN, "pool.regions[0].codes is", w.regions[0].codes = world_memory(BLOCK_CODES_0) + 8)
BAD_POOL(page_stride_unaligned, NBL_E_ALIGN, "pool.regions[0].code_page_stride is", w.regions[0].code_page_stride += 8)
BAD_POOL(layer_stride_unaligned, NBL_E_ALIGN, "pool.regions[0].scale_layer_stride is",
         w.regions[0].scale_layer_stride += 4)
BAD_POOL(page_stride_small, NBL_E_INVALID, "let pages overlap", w.regions[0].code_page_stride -= 16)
BAD_POOL(layer_stride_small, NBL_E_INVALID, "let pages overlap", w.regions[0].scale_layer_stride -= 16)
BAD_POOL(page_stride_zero, NBL_E_INVALID, "let pages overlap", w.regions[1].code_page_stride = 0)
BAD_POOL(stride_huge, NBL_E_INVALID, "reach beyond the address space", w.regions[0].code_layer_stride = 1ull << 63)
BAD_POOL(stride_sum_huge, NBL_E_INVALID, "reach beyond the address space", w.regions[0].code_page_stride = 1ull << 61)
BAD_POOL(scales_in_codes, NBL_E_OVERLAP, "pool.regions[0].scales overlap pool.regions[0].codes",
         w.regions[0].scales = world_memory(BLOCK_CODES_0) + 16)
BAD_POOL(regions_share_codes, NBL_E_OVERLAP, "pool.regions[1].codes overlap pool.regions[0].codes",
         w.regions[1].codes = w.regions[0].codes)

/* All layers of a page side by side, padding, codes and scales of a page in one buffer, pages beyond 2^32. */
Test(badinput_pool, legal_layouts_pass)
{
    world w;
    nbl_error err = NBL_INIT(nbl_error);
    world_open(&w);
    nbl_region *r = &w.regions[0];
    const uint64_t code = r->code_page_stride, scale = r->scale_page_stride;
    r->code_layer_stride = code + 16;
    r->code_page_stride = 2 * code + 64;
    cr_assert_eq(w.c.api->append(w.c.device, &w.append, &err), NBL_OK, "layers in a page: %s", err.message);
    r->scales = (uint8_t *)r->codes + code;
    r->code_page_stride = r->scale_page_stride = code + scale;
    r->code_layer_stride = r->scale_layer_stride = 4 * (code + scale);
    cr_assert_eq(w.c.api->append(w.c.device, &w.append, &err), NBL_OK, "one buffer: %s", err.message);
    w.regions[0].code_page_stride = r->scale_page_stride = 1ull << 33;
    w.regions[0].code_layer_stride = r->scale_layer_stride = 1ull << 36;
    r->codes = (void *)(uintptr_t)(1ull << 46);
    r->scales = (void *)(uintptr_t)((1ull << 46) + code);
    cr_assert_eq(w.c.api->append(w.c.device, &w.append, &err), NBL_OK, "far pages: %s", err.message);
    cr_assert_eq(w.c.state->operations, 3, "backend not called");
    counting_close(&w.c);
}
