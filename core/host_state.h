/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file host_state.h
 * @brief What loading a library may change in the calling thread, kept and put back.
 */
#ifndef NBL_HOST_STATE_H
#define NBL_HOST_STATE_H

#include <sched.h>

/** Affinity of the calling thread, floating-point control, errno. */
typedef struct nbl_host_state {
    cpu_set_t cpus[8]; /**< 8192 CPUs, the most Linux can be built for */
    int cpus_known;
    unsigned fp_control[2]; /**< x86-64: MXCSR and the x87 control word; aarch64: FPCR */
    int error_number;
} nbl_host_state;

/** Keeps the state of the calling thread. */
void nbl_host_state_save(nbl_host_state *state);

/** Puts it back. */
void nbl_host_state_restore(const nbl_host_state *state);

#endif
