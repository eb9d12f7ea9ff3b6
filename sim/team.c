/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file team.c
 * @brief Threads that sleep when there is nothing to do.
 *
 * A loop is posted under the lock; a thread joins it under the lock and only while it is open. The caller closes it
 * once no part is left, so a thread that wakes up late finds nothing to join.
 */
#include "team.h"

#include "sim.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#define LOOK_NS 50000 /* how long a thread looks for work before it sleeps */
#define LOOKS_EACH 8u /* between two looks at the clock */

struct sim_team {
    pthread_mutex_t lock;
    pthread_cond_t posted_or_closing;
    pthread_cond_t last_has_left;
    pthread_t *threads; /* size - 1 of them */
    uint32_t size;
    uint64_t posted; /* loops so far; read without the lock too */
    uint32_t inside; /* threads that have joined the loop and not left; read without the lock too */
    uint32_t asleep;
    int is_open; /* the loop may be joined */
    int closing;
    sim_body *body;
    void *context;
    sim_parts *parts;
};

/* What a new thread is told. */
typedef struct newcomer {
    sim_team *team;
    uint32_t thread;
} newcomer;

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void look_away(void)
{
    for (uint32_t i = 0; i < LOOKS_EACH; ++i) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
}

/* Waits for a loop after number `seen`; 0 if the team is closed instead. Takes the lock. */
static int wait_for_loop(sim_team *team, uint64_t seen)
{
    int64_t until = now_ns() + LOOK_NS;
    while (__atomic_load_n(&team->posted, __ATOMIC_ACQUIRE) == seen && now_ns() < until) {
        look_away();
    }
    pthread_mutex_lock(&team->lock);
    while (team->posted == seen && !team->closing) {
        team->asleep++;
        pthread_cond_wait(&team->posted_or_closing, &team->lock);
        team->asleep--;
    }
    return !team->closing;
}

/* Joins the loop if it is still open. The lock is held before and after. */
static void join_loop(sim_team *team, uint32_t thread)
{
    if (!team->is_open) {
        return;
    }
    sim_body *body = team->body;
    void *context = team->context;
    sim_parts *parts = team->parts;
    __atomic_add_fetch(&team->inside, 1u, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&team->lock);
    body(context, thread, parts);
    pthread_mutex_lock(&team->lock);
    if (__atomic_sub_fetch(&team->inside, 1u, __ATOMIC_RELEASE) == 0) {
        pthread_cond_signal(&team->last_has_left);
    }
}

static void *work(void *argument)
{
    newcomer me = *(newcomer *)argument;
    uint64_t seen = 0;
    sim_free(argument);
    sim_fp_enter();
    while (wait_for_loop(me.team, seen)) {
        seen = me.team->posted;
        join_loop(me.team, me.thread);
        pthread_mutex_unlock(&me.team->lock);
    }
    pthread_mutex_unlock(&me.team->lock);
    return NULL;
}

/* One more thread; 0 if the system gives none. */
static int add_thread(sim_team *team)
{
    newcomer *argument = sim_alloc(sizeof *argument);
    if (argument == NULL) {
        return 0;
    }
    *argument = (newcomer){team, team->size};
    if (pthread_create(&team->threads[team->size - 1u], NULL, work, argument) != 0) {
        sim_free(argument);
        return 0;
    }
    team->size++;
    return 1;
}

/* The host's signals are not for our threads. */
static void add_threads(sim_team *team, uint32_t threads)
{
    sigset_t all, before;
    int saved_errno = errno;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (team->size < threads && add_thread(team)) {
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = saved_errno;
}

sim_team *sim_team_open(uint32_t threads)
{
    sim_team *team = sim_alloc(sizeof *team);
    if (team == NULL) {
        return NULL;
    }
    *team = (sim_team){.size = 1};
    team->threads = sim_alloc(threads * sizeof *team->threads);
    if (team->threads == NULL) {
        sim_free(team);
        return NULL;
    }
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->posted_or_closing, NULL);
    pthread_cond_init(&team->last_has_left, NULL);
    add_threads(team, threads);
    return team;
}

uint32_t sim_team_size(const sim_team *team)
{
    return team->size;
}

void sim_team_close(sim_team *team)
{
    pthread_mutex_lock(&team->lock);
    team->closing = 1;
    __atomic_add_fetch(&team->posted, 1u, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&team->posted_or_closing);
    pthread_mutex_unlock(&team->lock);
    for (uint32_t i = 0; i + 1u < team->size; ++i) {
        pthread_join(team->threads[i], NULL);
    }
    pthread_cond_destroy(&team->last_has_left);
    pthread_cond_destroy(&team->posted_or_closing);
    pthread_mutex_destroy(&team->lock);
    sim_free(team->threads);
    sim_free(team);
}

static void post_loop(sim_team *team, sim_body *body, void *context, sim_parts *parts)
{
    pthread_mutex_lock(&team->lock);
    team->body = body;
    team->context = context;
    team->parts = parts;
    team->is_open = 1;
    __atomic_add_fetch(&team->posted, 1u, __ATOMIC_RELEASE);
    if (team->asleep != 0) {
        pthread_cond_broadcast(&team->posted_or_closing);
    }
    pthread_mutex_unlock(&team->lock);
}

/* Closes the loop and waits for those inside. */
static void close_loop(sim_team *team)
{
    pthread_mutex_lock(&team->lock);
    team->is_open = 0;
    pthread_mutex_unlock(&team->lock);
    int64_t until = now_ns() + LOOK_NS;
    while (__atomic_load_n(&team->inside, __ATOMIC_ACQUIRE) != 0 && now_ns() < until) {
        look_away();
    }
    pthread_mutex_lock(&team->lock);
    while (team->inside != 0) {
        pthread_cond_wait(&team->last_has_left, &team->lock);
    }
    pthread_mutex_unlock(&team->lock);
}

static void run_parts(sim_team *team, sim_parts parts, sim_body *body, void *context)
{
    uint32_t saved = sim_fp_enter();
    int alone = team->size == 1 || parts.count <= (parts.shares != 0 ? 1 : parts.grain);
    if (!alone) {
        post_loop(team, body, context, &parts);
    }
    body(context, 0, &parts);
    if (!alone) {
        close_loop(team);
    }
    sim_fp_leave(saved);
}

void sim_team_run(sim_team *team, int64_t count, int64_t grain, sim_body *body, void *context)
{
    run_parts(team, (sim_parts){0, count, grain, 0}, body, context);
}

void sim_team_run_guided(sim_team *team, int64_t count, int64_t grain, sim_body *body, void *context)
{
    run_parts(team, (sim_parts){0, count, grain, 2 * (int64_t)team->size}, body, context);
}
