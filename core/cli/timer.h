/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file timer.h
 * @brief How long work on the session's stream takes: CUDA events on a CUDA stream, else the host's clock.
 *
 * The driver is found with dlopen: the tool needs no CUDA to be built or to start. A CUDA stream is held while calls
 * are enqueued, so that launches are queued and the time is the device's alone.
 */
#ifndef NBL_CLI_TIMER_H
#define NBL_CLI_TIMER_H

#include "session.h"

typedef struct nbl_timer nbl_timer;

/** Makes the timer of an open session. NBL_EXIT_BACKEND if the driver of a CUDA stream has no events. */
int nbl_timer_open(const nbl_session *session, nbl_timer **out_timer, nbl_fault *fault);

/** Starts measuring: what is enqueued from now on counts. */
int nbl_timer_start(nbl_timer *timer, nbl_fault *fault);

/** Ends measuring and waits for the work: seconds it took. Must follow every nbl_timer_start that returned
 *  NBL_EXIT_OK, also where enqueuing failed. */
int nbl_timer_stop(nbl_timer *timer, double *out_s, nbl_fault *fault);

/** Bytes of the last-level cache that data passes through: the device's second level, or the processor's third. */
uint64_t nbl_timer_cache_bytes(const nbl_timer *timer);

void nbl_timer_close(nbl_timer *timer);

#endif
