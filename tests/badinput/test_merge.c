/* SPDX-License-Identifier: Apache-2.0 */
#include "world.h"

#define BAD_STATES(name, status, text, ...) BAD(badinput_merge, name, merge, merge, status, text, __VA_ARGS__)
#define BAD_PAIRS(name, status, text, ...) BAD(badinput_merge, pairs_##name, merge, pairs, status, text, __VA_ARGS__)

Test(badinput_merge, valid_reaches_backend)
{
    world w;
    nbl_error err = NBL_INIT(nbl_error);
    world_open(&w);
    cr_assert_eq(w.c.api->merge(w.c.device, &w.merge, &err), NBL_OK, "%s", err.message);
    cr_assert_eq(w.c.api->merge(w.c.device, &w.pairs, &err), NBL_OK, "%s", err.message);
    w.merge.v_hadamard = 16;
    w.merge.sinks = (const float *)(const void *)world_memory(BLOCK_OTHER);
    cr_assert_eq(w.c.api->merge(w.c.device, &w.merge, &err), NBL_OK, "%s", err.message);
    cr_assert_eq(w.c.state->operations, 3, "backend not called");
    counting_close(&w.c);
}

BAD_STATES(flags, NBL_E_UNKNOWN_FIELD, "nbl_merge_args", w.merge.flags = 2)
BAD_STATES(count_zero, NBL_E_INVALID, "count is 0 (allowed: 1", w.merge.count = 0)
BAD_STATES(count_differs, NBL_E_INVALID, "in_state_head.shape[0] is 2 (needed: 3", w.merge.count = 3)
BAD_STATES(head_missing, NBL_E_INVALID, "in_state_head.data is NULL", w.merge.in_state_head.data = NULL)
BAD_STATES(o_missing, NBL_E_INVALID, "in_state_o.data is NULL", w.merge.in_state_o.data = NULL)
BAD_STATES(both, NBL_E_INVALID, "in_state_o and in_o are both given", w.merge.in_o = w.pairs.in_o)
BAD_STATES(heads_zero, NBL_E_INVALID, "in_state_o.shape[2] is 0", w.merge.in_state_o.shape[2] = 0)
BAD_STATES(dim, NBL_E_INVALID, "in_state_o.shape[3] is 20 (allowed: multiples of 8, 16 to 512)",
           w.merge.in_state_o.shape[3] = 20)
BAD_STATES(rows_differ, NBL_E_INVALID, "in_state_head.shape[1] is 4 (needed: 3", w.merge.in_state_head.shape[1] = 4)
BAD_STATES(dtype, NBL_E_INVALID, "in_state_o.dtype is 2 (allowed: 1 f32)", w.merge.in_state_o.dtype = NBL_F16)
BAD_STATES(hadamard, NBL_E_INVALID, "v_hadamard is 32 (allowed: 0 or a power of two 8 to 256 dividing 16)",
           w.merge.v_hadamard = 32)
BAD_STATES(out_head_alone, NBL_E_INVALID, "state_o.data is NULL", w.merge.state_o.data = NULL)
BAD_STATES(no_output, NBL_E_INVALID, "needed: at least one output", w.merge.o.data = w.merge.lse.data = NULL,
           w.merge.state_head.data = w.merge.state_o.data = NULL)
BAD_STATES(out_dim, NBL_E_INVALID, "o.shape[2] is 8 (needed: 16", w.merge.o.shape[2] = 8)
BAD_STATES(in_place, NBL_E_OVERLAP, "state_o at", w.merge.state_o.data = w.merge.in_state_o.data)
BAD_STATES(sinks_without_o, NBL_E_INVALID, "sinks without o or lse", w.merge.o.data = w.merge.lse.data = NULL,
           w.merge.sinks = (const float *)(const void *)world_memory(BLOCK_OTHER))
BAD_STATES(stream_kind, NBL_E_INVALID, "stream.kind is 2", w.merge.stream.kind = 2)
BAD_PAIRS(lse_missing, NBL_E_INVALID, "in_lse.data is NULL", w.pairs.in_lse.data = NULL)
BAD_PAIRS(nothing, NBL_E_INVALID, "in_o.rank is 0", w.pairs.in_o = w.pairs.in_lse = (nbl_tensor){0})
BAD_PAIRS(state_out, NBL_E_INVALID, "state_head and state_o with pairs in", w.pairs.state_head = w.merge.state_head,
          w.pairs.state_o = w.merge.state_o)
BAD_PAIRS(sinks, NBL_E_INVALID, "sinks with pairs in",
          w.pairs.sinks = (const float *)(const void *)world_memory(BLOCK_OTHER))
BAD_PAIRS(hadamard, NBL_E_INVALID, "v_hadamard is 16 with pairs in (allowed: 0)", w.pairs.v_hadamard = 16)
BAD_PAIRS(o_in_lse, NBL_E_OVERLAP, "overlaps in_lse", w.pairs.o.data = w.pairs.in_lse.data)
