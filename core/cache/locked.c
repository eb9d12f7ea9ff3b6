/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file locked.c
 * @brief Around every call on a cache: the check of its handle, and for a locked cache its lock.
 */
#include "cache.h"

/* Takes the lock of a cache that has one; other caches cost one comparison. */
static nbl_status enter(nbl_cache *cache, nbl_error *err)
{
    NBL_TRY(nbl_cache_check(cache, err));
    if ((cache->plan.config.flags & NBL_CACHE_LOCKED) != 0)
        pthread_mutex_lock(&cache->mutex);
    return NBL_OK;
}

static void leave(nbl_cache *cache)
{
    if ((cache->plan.config.flags & NBL_CACHE_LOCKED) != 0)
        pthread_mutex_unlock(&cache->mutex);
}

#define LOCKED_CALL(name, parameters, arguments)            \
    nbl_status nbl_locked_##name parameters                 \
    {                                                       \
        NBL_TRY(enter(cache, err));                         \
        const nbl_status status = nbl_api_##name arguments; \
        leave(cache);                                       \
        return status;                                      \
    }

NBL_LOCKED_CALLS(LOCKED_CALL)
