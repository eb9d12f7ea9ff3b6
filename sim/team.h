/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file team.h
 * @brief The threads of a device, which share the parts of a loop.
 *
 * Nobody waits for a thread that has not started a part: the caller works too, and when no part is left it waits only
 * for those who are in the middle of one. Waiting means looking for some ten microseconds and then sleeping, so that
 * a core that another program or another thread of the team needs is not spun away.
 */
#ifndef SIM_TEAM_H
#define SIM_TEAM_H

#include <stdint.h>

typedef struct sim_team sim_team;

/** What is left of a loop over [0, count). */
typedef struct sim_parts {
    int64_t next;
    int64_t count;
    int64_t grain; /**< most steps of a part */
} sim_parts;

/** Takes the next part, [*begin, *end); 0 if none is left. */
static inline int sim_parts_next(sim_parts *parts, int64_t *begin, int64_t *end)
{
    *begin = __atomic_fetch_add(&parts->next, parts->grain, __ATOMIC_RELAXED);
    *end = *begin + parts->grain < parts->count ? *begin + parts->grain : parts->count;
    return *begin < parts->count;
}

/** A thread's share: takes parts until there are none. thread: from 0 to the size of the team less 1, the caller's
 * being 0. The floating-point environment is that of NUM 1.1. */
typedef void sim_body(void *context, uint32_t thread, sim_parts *parts);

/** A team of up to `threads` threads, the caller of sim_team_run being one; NULL without memory. Threads that the
 * system does not give are missing. */
sim_team *sim_team_open(uint32_t threads);
uint32_t sim_team_size(const sim_team *team);
/** Ends the threads. */
void sim_team_close(sim_team *team);

/** Runs a loop of count steps in parts of up to grain steps; returns when all are done. One call at a time. */
void sim_team_run(sim_team *team, int64_t count, int64_t grain, sim_body *body, void *context);

#endif
