/* SPDX-License-Identifier: Apache-2.0 */
#include "world.h"

#define BAD_DESC(name, text, ...) BAD(badinput_desc, name, supports, desc, NBL_E_INVALID, text, __VA_ARGS__)

BAD_DESC(op_none, "op is 0 (allowed: 1 to 7)", w.desc.op = 0)
BAD_DESC(op_unknown, "op is 8", w.desc.op = 8)
BAD_DESC(shape_null, "nbl_kv_shape", w.desc.shape = NULL)
BAD_DESC(shape_bad, "shape.k_dim is 12", w.shape.k_dim = 12)
BAD_DESC(k_format, "k_format is 9", w.desc.k_format = 9)
BAD_DESC(v_format, "v_format is 0", w.desc.v_format = 0)
BAD_DESC(dst_format, "dst_k_format is 0", w.desc.op = NBL_OP_TRANSCODE)
BAD_DESC(q_format, "q_format is 5", w.desc.q_format = 5)
BAD_DESC(q_heads, "q_heads is 5 (allowed: multiples of kv_heads 2", w.desc.q_heads = 5)
BAD_DESC(in_dtype, "in_dtype is 0 (allowed: 1 to 3)", w.desc.in_dtype = 0)
BAD_DESC(out_dtype, "out_dtype is 4 (allowed: 0 to 3)", w.desc.out_dtype = 4)
BAD_DESC(features, "features is 0x200", w.desc.features = 0x200)
BAD_DESC(tree_window, "slots of a tree are not positions", w.desc.features = NBL_FEATURE_TREE_MASK | NBL_FEATURE_WINDOW)
BAD_DESC(tree_alibi, "slots of a tree are not positions", w.desc.features = NBL_FEATURE_TREE_MASK | NBL_FEATURE_ALIBI)
BAD_DESC(soft_cap_centered, "the centre would not cancel", w.desc.features = NBL_FEATURE_SOFT_CAP,
         w.shape.centering = 1)
BAD_DESC(q_len_max, "q_len_max is 16777217", w.desc.q_len_max = (1u << 24) + 1u)
BAD_DESC(kv_len_max, "kv_len_max is 33554432", w.desc.kv_len_max = 1u << 25)

Test(badinput_desc, refused_before_the_backend_is_asked)
{
    world w;
    nbl_error err = NBL_INIT(nbl_error);
    uint64_t bytes = 77;
    world_open(&w);
    w.desc.op = 99;
    cr_assert_eq(w.c.api->supports(w.c.device, &w.desc, &err), NBL_E_INVALID, "%s", err.message);
    cr_assert_eq(w.c.api->workspace_size(w.c.device, &w.desc, &bytes, &err), NBL_E_INVALID, "%s", err.message);
    cr_assert_eq(w.c.state->questions, 0, "the backend was asked");
    cr_assert_eq(bytes, 77, "output written");
    w.desc.op = NBL_OP_ATTEND;
    cr_assert_eq(w.c.api->workspace_size(w.c.device, &w.desc, NULL, &err), NBL_E_INVALID, "%s", err.message);
    w.c.state->supports = NBL_E_UNSUPPORTED;
    w.c.state->workspace_bytes = 12;
    cr_assert_eq(w.c.api->supports(w.c.device, &w.desc, &err), NBL_E_UNSUPPORTED, "%s", err.message);
    cr_assert_eq(w.c.api->workspace_size(w.c.device, &w.desc, &bytes, &err), NBL_OK, "%s", err.message);
    cr_assert_eq(bytes, 12, "%d bytes", (int)bytes);
    counting_close(&w.c);
}

Test(badinput_desc, kv_layout)
{
    world w;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_page_layout layout = NBL_INIT(nbl_page_layout);
    world_open(&w);
    cr_assert_eq(w.c.api->kv_layout(&w.shape, 0, NBL_INT8, &layout, &err), NBL_E_INVALID, "format 0 taken");
    cr_assert_eq(w.c.api->kv_layout(&w.shape, NBL_INT8, 9, &layout, &err), NBL_E_INVALID, "format 9 taken");
    cr_assert_eq(w.c.api->kv_layout(NULL, NBL_INT8, NBL_INT8, &layout, &err), NBL_E_INVALID, "no shape taken");
    cr_assert_eq(w.c.api->kv_layout(&w.shape, NBL_INT8, NBL_INT8, NULL, &err), NBL_E_INVALID, "no output taken");
    cr_assert_eq(layout.code_page_bytes, 0, "output written");
    /* By hand from F1 and F2: Dk 32 and Dv 16 are both stored as 32; 8 tokens; two heads. */
    cr_assert_eq(w.c.api->kv_layout(&w.shape, NBL_INT4P, NBL_INT8, &layout, &err), NBL_OK, "%s", err.message);
    cr_assert_eq(layout.k_code_head_bytes, 128, "K codes");
    cr_assert_eq(layout.v_code_head_bytes, 256, "V codes");
    cr_assert_eq(layout.v_code_offset, 256, "V offset");
    cr_assert_eq(layout.code_page_bytes, 768, "code page");
    cr_assert_eq(layout.k_scale_head_bytes, 16, "K scales: 2 planes of 8");
    cr_assert_eq(layout.v_scale_head_bytes, 16, "V scales: 1 plane of 8, padded");
    cr_assert_eq(layout.v_scale_offset, 32, "V scale offset");
    cr_assert_eq(layout.scale_page_bytes, 64, "scale page");
    cr_assert_eq(layout.alignment, 16, "alignment");
    counting_close(&w.c);
}
