/* SPDX-License-Identifier: Apache-2.0 */
#include "progress.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

static const double first_draw_s = 1.0, redraw_s = 0.2;

double nbl_clock_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

nbl_progress nbl_progress_start(const char *label, uint64_t total)
{
    return (nbl_progress){
        .label = label, .total = total, .next_s = nbl_clock_s() + first_draw_s, .terminal = isatty(STDERR_FILENO) == 1};
}

void nbl_progress_step(nbl_progress *progress)
{
    progress->done++;
    if (!progress->terminal)
        return;
    double now_s = nbl_clock_s();
    if (now_s < progress->next_s)
        return;
    progress->next_s = now_s + redraw_s;
    progress->drawn = true;
    double share = progress->total > 0 ? (double)progress->done / (double)progress->total : 1.0;
    fprintf(stderr, "\r%s %3.0f%%", progress->label, 100.0 * share);
    fflush(stderr);
}

void nbl_progress_end(nbl_progress *progress)
{
    if (progress->drawn)
        fprintf(stderr, "\r\033[K");
}
