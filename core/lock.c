/* SPDX-License-Identifier: Apache-2.0 */
#include "lock.h"

#include <pthread.h>

#define FREE PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP
static const pthread_mutex_t free_lock = FREE;
static pthread_mutex_t locks[NBL_LOCK_COUNT] = {FREE, FREE, FREE, FREE, FREE};

/* What they guard is whole only when they are free, and nobody who holds one waits for the thread that forks. The two
 * others are held while foreign code runs, which may wait for that thread (for Python's interpreter lock, say); what
 * they guard is whole at any moment: single pointers are written. */
static const uint32_t waited_for[] = {NBL_LOCK_OPENING, NBL_LOCK_REPORTS, NBL_LOCK_HANDLES};
enum { WAITED_FOR = sizeof waited_for / sizeof *waited_for };

static void before_fork(void)
{
    for (uint32_t i = 0; i < WAITED_FOR; i++)
        nbl_lock(waited_for[i]);
}

static void after_fork_in_parent(void)
{
    for (uint32_t i = WAITED_FOR; i-- > 0;)
        nbl_unlock(waited_for[i]);
}

/* The threads that held locks do not exist here. */
static void after_fork_in_child(void)
{
    for (uint32_t i = 0; i < NBL_LOCK_COUNT; i++)
        locks[i] = free_lock;
}

static void register_handlers(void)
{
    (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void nbl_locks_prepare(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, register_handlers);
}

void nbl_lock(uint32_t name)
{
    (void)pthread_mutex_lock(&locks[name]);
}

void nbl_unlock(uint32_t name)
{
    (void)pthread_mutex_unlock(&locks[name]);
}
