/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file sim.h
 * @brief The simulator plugin: device, errors, checks of data behind pointers.
 *
 * Every operation is a loop over independent outputs, run by a team of threads whose size cannot change a bit.
 * Arithmetic
 * lives in core/num; the hot loops of attend exist once per instruction set (isa.h).
 */
#ifndef SIM_H
#define SIM_H

#include "isa.h"
#include "team.h"

#include <nibble/nibble_backend.h>

#include <stddef.h>
#include <stdint.h>

#define SIM_THREADS_MAX 1024u
#define SIM_ALIGNMENT 64u

/** An open simulator. */
struct nbl_device {
    sim_team *team;
    const sim_isa *isa;
    uint32_t profile; /**< enum nbl_mma_profile, of the float core */
    uint8_t *scratch; /**< sim_attend_scratch_bytes for each thread; only what a call uses is ever touched */
};

/** The host table of the process; set once by the entry function. */
extern const nbl_host *sim_host;

/** Fills err with a formatted line and returns status. */
nbl_status sim_fail(nbl_error *err, nbl_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/** Floating-point environment of NUM 1.1 on the calling thread: round to nearest, subnormals kept. Returns the old one.
 */
uint32_t sim_fp_enter(void);
/** Restores what sim_fp_enter returned. */
void sim_fp_leave(uint32_t saved);

/** Host memory, aligned as device memory must be, or NULL. */
void *sim_alloc(uint64_t bytes);
void sim_free(void *memory);

/* Slots of the plugin table, one file each in ops/. */
nbl_status sim_supports(nbl_device *device, const nbl_op_desc *op, nbl_error *err);
nbl_status sim_workspace_size(nbl_device *device, const nbl_op_desc *op, uint64_t *out_bytes, nbl_error *err);
nbl_status sim_append(nbl_device *device, const nbl_append_args *args, nbl_error *err);
nbl_status sim_append_coded(nbl_device *device, const nbl_append_coded_args *args, nbl_error *err);
nbl_status sim_attend(nbl_device *device, const nbl_attend_args *args, nbl_error *err);
/** Working memory of attend that a thread needs at most. */
uint64_t sim_attend_scratch_bytes(void);
nbl_status sim_gather(nbl_device *device, const nbl_gather_args *args, nbl_error *err);
nbl_status sim_copy_pages(nbl_device *device, const nbl_copy_pages_args *args, nbl_error *err);
nbl_status sim_transcode(nbl_device *device, const nbl_transcode_args *args, nbl_error *err);
nbl_status sim_merge(nbl_device *device, const nbl_merge_args *args, nbl_error *err);

/* Checks of the data behind pointers; each fills err and returns NBL_E_RANGE or another status. */

/** The stream must be of kind HOST. */
nbl_status sim_check_stream(nbl_stream stream, nbl_error *err);
/** Each slot is -1 or lies in a page of the pool. */
nbl_status sim_check_slots(const nbl_pool *pool, const int64_t *slots, uint64_t count, nbl_error *err);
/** indptr runs from 0 to total without decreasing. */
nbl_status sim_check_indptr(const char *name, const int32_t *indptr, uint32_t batch, uint64_t total, nbl_error *err);
/** Rows of centers exist for every sequence of the batch. */
nbl_status sim_check_centers(const nbl_centers *centers, uint32_t batch, nbl_error *err);
/** Each sink logit is in the range of NUM 5.1. */
nbl_status sim_check_sinks(const float *sinks, uint32_t heads, nbl_error *err);

#endif
