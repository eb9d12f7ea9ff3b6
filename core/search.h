/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file search.h
 * @brief Which backends are wanted, and which files they are.
 */
#ifndef NBL_SEARCH_H
#define NBL_SEARCH_H

#include "env.h"
#include "internal.h"
#include "log.h"

#define NBL_NAME_BYTES 33u   /* [a-z0-9_]{1,32} and the NUL */
#define NBL_PATH_BYTES 4096u /* PATH_MAX of Linux, the NUL included */
#define NBL_CANDIDATES_MAX 8u

/** Who named the backends. */
enum nbl_chooser { NBL_CHOSEN_BY_DEFAULT, NBL_CHOSEN_BY_API, NBL_CHOSEN_BY_ENV };

/** One backend wanted. */
typedef struct nbl_candidate {
    char name[NBL_NAME_BYTES];
    char *path;          /**< of its file; NULL if none was found */
    nbl_error not_found; /**< says where it was looked for, if none was found */
} nbl_candidate;

/** The backends wanted, in order. */
typedef struct nbl_search {
    uint32_t chooser; /**< enum nbl_chooser */
    uint32_t count;
    nbl_candidate candidate[NBL_CANDIDATES_MAX];
} nbl_search;

/** Where the choice came from, for messages: "NIBBLE_BACKEND", "nbl_load_options.backend" or "default". */
const char *nbl_chooser_name(uint32_t chooser);

/** Turns the choice of environment, caller or default into candidates, and finds their files without opening one.
 *
 * @param backend      the caller's choice or NULL
 * @param backend_dir  the caller's directory or NULL
 * @param env          NULL if the environment does not count
 * @retval NBL_E_ENV        a variable is empty, malformed, or names a backend that is neither known nor there
 * @retval NBL_E_INVALID    the same of the caller's choice or directory
 * @retval NBL_E_NOT_FOUND  the caller names a backend that is neither known nor there
 * @retval NBL_E_NO_MEMORY
 */
nbl_status nbl_search_run(nbl_search *search, const char *backend, const char *backend_dir, const nbl_env *env,
                          const nbl_log_sink *sink, nbl_error *err);

/** Frees what nbl_search_run allocated, after success and after failure. */
void nbl_search_clear(nbl_search *search);

#endif
