/* SPDX-License-Identifier: Apache-2.0 */
#include "world.h"

#define BAD_GATHER(name, status, text, ...) BAD(badinput_gather, name, gather, gather, status, text, __VA_ARGS__)

Test(badinput_gather, valid_reaches_backend)
{
    world w;
    nbl_error err = NBL_INIT(nbl_error);
    world_open(&w);
    cr_assert_eq(w.c.api->gather(w.c.device, &w.gather, &err), NBL_OK, "%s", err.message);
    w.shape.centering = 1;
    cr_assert_eq(w.c.api->gather(w.c.device, &w.gather, &err), NBL_OK, "%s", err.message);
    w.gather.flags = NBL_GATHER_STORED;
    w.gather.centers.codes = NULL;
    cr_assert_eq(w.c.api->gather(w.c.device, &w.gather, &err), NBL_OK, "%s", err.message);
    w.gather.k.data = NULL;
    cr_assert_eq(w.c.api->gather(w.c.device, &w.gather, &err), NBL_OK, "%s", err.message);
    cr_assert_eq(w.c.state->operations, 4, "backend not called");
    counting_close(&w.c);
}

BAD_GATHER(flags, NBL_E_UNKNOWN_FIELD, "nbl_gather_args", w.gather.flags = 2)
BAD_GATHER(layer, NBL_E_RANGE, "layer is 2 (allowed: 0 to 1)", w.gather.layer = 2)
BAD_GATHER(no_output, NBL_E_INVALID, "k.data and v.data are NULL", w.gather.k.data = w.gather.v.data = NULL)
BAD_GATHER(v_rows, NBL_E_INVALID, "v.shape[0] is 6 (needed: 5", w.gather.v.shape[0] = 6)
BAD_GATHER(v_alone_rank, NBL_E_INVALID, "v.rank is 1", w.gather.k.data = NULL, w.gather.v.rank = 1)
BAD_GATHER(v_dtype_differs, NBL_E_INVALID, "v.dtype is 1 (needed: 3, that of k)", w.gather.v.dtype = NBL_F32)
BAD_GATHER(slots_null, NBL_E_INVALID, "slots is NULL", w.gather.slots = NULL)
BAD_GATHER(k_stride_zero, NBL_E_OVERLAP, "k.stride_bytes", w.gather.k.stride_bytes[2] = 2)
BAD_GATHER(k_in_pool, NBL_E_OVERLAP, "pool.regions[0].codes", w.gather.k.data = world_memory(BLOCK_CODES_0))
BAD_GATHER(k_is_v, NBL_E_OVERLAP, "k at", w.gather.k.data = world_memory(BLOCK_V))
BAD_GATHER(k_in_slots, NBL_E_OVERLAP, "overlaps slots", w.gather.k.data = world_memory(BLOCK_INDICES) + 256)
BAD_GATHER(centers_missing, NBL_E_INVALID, "centers.exponents is NULL", w.shape.centering = 1,
           w.gather.centers.exponents = NULL)
BAD_GATHER(indptr_missing, NBL_E_INVALID, "seq_indptr is NULL", w.shape.centering = 1, w.gather.seq_indptr = NULL)
BAD_GATHER(stream_kind, NBL_E_INVALID, "stream.kind is 3", w.gather.stream.kind = 3)
