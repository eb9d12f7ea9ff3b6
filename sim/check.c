/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file check.c
 * @brief Checks of what lies behind pointers, before an operation writes anything.
 */
#include "exp2grid.h"
#include "sim.h"

#include <math.h>

nbl_status sim_check_stream(nbl_stream stream, nbl_error *err)
{
    if (stream.kind != NBL_STREAM_HOST) {
        return sim_fail(err, NBL_E_INVALID, "sim: stream.kind is %u (allowed: %d, NBL_STREAM_HOST)", stream.kind,
                        NBL_STREAM_HOST);
    }
    return NBL_OK;
}

nbl_status sim_check_slots(const nbl_pool *pool, const int64_t *slots, uint64_t count, nbl_error *err)
{
    int64_t page_tokens = pool->shape->page_tokens;
    for (uint64_t i = 0; i < count; ++i) {
        if (slots[i] < -1 || (slots[i] >= 0 && nbl_layout_region_find(pool, slots[i] / page_tokens) == NULL)) {
            return sim_fail(err, NBL_E_RANGE,
                            "sim: slots[%llu] is %lld, in no page of the pool (allowed: -1 or a slot)",
                            (unsigned long long)i, (long long)slots[i]);
        }
    }
    return NBL_OK;
}

nbl_status sim_check_indptr(const char *name, const int32_t *indptr, uint32_t batch, uint64_t total, nbl_error *err)
{
    if (indptr[0] != 0) {
        return sim_fail(err, NBL_E_RANGE, "sim: %s[0] is %d (allowed: 0)", name, indptr[0]);
    }
    for (uint32_t b = 0; b < batch; ++b) {
        if (indptr[b + 1] < indptr[b]) {
            return sim_fail(err, NBL_E_RANGE, "sim: %s[%u] is %d, less than the entry before it (%d)", name, b + 1,
                            indptr[b + 1], indptr[b]);
        }
    }
    if ((uint64_t)indptr[batch] != total) {
        return sim_fail(err, NBL_E_RANGE, "sim: %s[%u] is %d (allowed: %llu, the number of rows)", name, batch,
                        indptr[batch], (unsigned long long)total);
    }
    return NBL_OK;
}

nbl_status sim_check_centers(const nbl_centers *centers, uint32_t batch, nbl_error *err)
{
    for (uint32_t b = 0; b < batch; ++b) {
        int64_t row = centers->rows != NULL ? centers->rows[b] : (int64_t)b;
        if (row < 0 || row >= centers->row_count) {
            return sim_fail(err, NBL_E_RANGE, "sim: centers row of sequence %u is %lld (allowed: 0 to %u)", b,
                            (long long)row, centers->row_count - 1u);
        }
    }
    return NBL_OK;
}

nbl_status sim_check_sinks(const float *sinks, uint32_t heads, nbl_error *err)
{
    for (uint32_t h = 0; h < heads; ++h) {
        if (!(fabsf(sinks[h]) <= NBL_LOGIT_MAX) && sinks[h] != -INFINITY) {
            return sim_fail(err, NBL_E_RANGE, "sim: sinks[%u] is %g (allowed: -2^22 to 2^22, or -inf)", h,
                            (double)sinks[h]);
        }
    }
    return NBL_OK;
}
