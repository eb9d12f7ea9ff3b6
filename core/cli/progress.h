/* SPDX-License-Identifier: Apache-2.0 */
/** @file progress.h @brief Progress on stderr: only on a terminal, only after a second. Also the clock. */
#ifndef NBL_CLI_PROGRESS_H
#define NBL_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

/** A running job of a known number of steps. */
typedef struct nbl_progress {
    const char *label;
    uint64_t total;
    uint64_t done;
    double next_s; /**< when to draw next */
    bool terminal;
    bool drawn;
} nbl_progress;

/** Seconds of a clock that never jumps. */
double nbl_clock_s(void);

nbl_progress nbl_progress_start(const char *label, uint64_t total);

/** Counts one step and redraws the line at most five times a second. */
void nbl_progress_step(nbl_progress *progress);

/** Wipes the line. */
void nbl_progress_end(nbl_progress *progress);

#endif
