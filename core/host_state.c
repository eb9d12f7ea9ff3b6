/* SPDX-License-Identifier: Apache-2.0 */
#include "host_state.h"

#include <errno.h>
#include <string.h>

#if defined(__x86_64__)
#include <xmmintrin.h>

static void fp_control_get(unsigned control[2])
{
    unsigned short x87;
    __asm__ volatile("fnstcw %0" : "=m"(x87));
    control[0] = _mm_getcsr();
    control[1] = x87;
}

static void fp_control_set(const unsigned control[2])
{
    const unsigned short x87 = (unsigned short)control[1];
    _mm_setcsr(control[0]);
    __asm__ volatile("fldcw %0" : : "m"(x87));
}
#elif defined(__aarch64__)
static void fp_control_get(unsigned control[2])
{
    unsigned long fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    control[0] = (unsigned)fpcr;
    control[1] = 0;
}

static void fp_control_set(const unsigned control[2])
{
    __asm__ volatile("msr fpcr, %0" : : "r"((unsigned long)control[0]));
}
#endif

void nbl_host_state_save(nbl_host_state *state)
{
    state->error_number = errno;
    fp_control_get(state->fp_control);
    memset(state->cpus, 0, sizeof state->cpus);
    state->cpus_known = sched_getaffinity(0, sizeof state->cpus, state->cpus) == 0;
    errno = state->error_number;
}

void nbl_host_state_restore(const nbl_host_state *state)
{
    cpu_set_t now[8];
    memset(now, 0, sizeof now);
    /* Setting even the same mask costs a system call and may fail under a cpuset, so only a change is undone. */
    if (state->cpus_known && sched_getaffinity(0, sizeof now, now) == 0 && memcmp(now, state->cpus, sizeof now) != 0)
        (void)sched_setaffinity(0, sizeof state->cpus, state->cpus);
    fp_control_set(state->fp_control);
    errno = state->error_number;
}
