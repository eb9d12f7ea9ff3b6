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
    int64_t grain;  /**< most steps of a part */
    int64_t shares; /**< a part is no more than one of so many shares of what is left, but for a single step; 0: all
                       parts are alike */
} sim_parts;

/** Takes the next part, [*begin, *end); 0 if none is left. */
static inline int sim_parts_next(sim_parts *parts, int64_t *begin, int64_t *end)
{
    int64_t next = __atomic_load_n(&parts->next, __ATOMIC_RELAXED);
    int64_t after;
    do {
        int64_t share = parts->shares != 0 ? (parts->count - next) / parts->shares : parts->grain;
        int64_t steps = share < 1 ? 1 : share < parts->grain ? share : parts->grain;
        after = next + steps < parts->count ? next + steps : parts->count;
        if (next >= parts->count) {
            return 0;
        }
    } while (!__atomic_compare_exchange_n(&parts->next, &next, after, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    *begin = next;
    *end = after;
    return 1;
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

/** Runs a loop of count steps in parts of grain steps; returns when all are done. One call at a time. */
void sim_team_run(sim_team *team, int64_t count, int64_t grain, sim_body *body, void *context);
/** The same in parts that become smaller towards the end, so that threads that are not equally fast end together; grain
 * is the most. */
void sim_team_run_guided(sim_team *team, int64_t count, int64_t grain, sim_body *body, void *context);

#endif
