/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file lock.h
 * @brief The locks of the library, and what a fork does to them.
 *
 * A child gets every lock free, also where another thread of the parent held it (docs/adr/0013). Order, for a thread
 * that holds several: as in the list.
 */
#ifndef NBL_LOCK_H
#define NBL_LOCK_H

#include <stdint.h>

enum nbl_lock_name {
    NBL_LOCK_LOADER,  /**< variables and the list of loaded files; held while a plugin's entry and log callbacks run */
    NBL_LOCK_OPENING, /**< held during dlopen alone; a fork waits for it */
    NBL_LOCK_REPORTS, /**< all load reports; a fork waits for it */
    NBL_LOCK_LOG,     /**< the list of log sinks; held while a log callback runs */
    NBL_LOCK_HANDLES, /**< the queue of dead handles; a fork waits for it */
    NBL_LOCK_COUNT
};

/** Makes a fork safe from now on; called before the first lock is taken, any number of times. */
void nbl_locks_prepare(void);

/** Takes and gives back a lock; the thread that holds it may take it again. */
void nbl_lock(uint32_t name);
void nbl_unlock(uint32_t name);

#endif
