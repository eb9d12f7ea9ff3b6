/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file env.h
 * @brief The NIBBLE_ environment variables: read once, checked when used.
 */
#ifndef NBL_ENV_H
#define NBL_ENV_H

#include "internal.h"

enum nbl_env_name {
    NBL_ENV_BACKEND,
    NBL_ENV_BACKEND_DIR,
    NBL_ENV_LOG,
    NBL_ENV_SIM_THREADS,
    NBL_ENV_SIM_ISA,
    NBL_ENV_SIM_PROFILE,
    NBL_ENV_COUNT
};

/** The variables as they were at the first load; NULL where unset or not to be believed. */
typedef struct nbl_env {
    const char *value[NBL_ENV_COUNT];
    uint32_t ignored; /**< bit per variable that is set but ignored: the process runs with raised privileges */
} nbl_env;

/** Name of a variable, such as "NIBBLE_LOG". */
const char *nbl_env_variable(uint32_t name);

/** 1 if the process runs with privileges its caller has not (setuid, file capabilities). */
int nbl_env_is_secure(void);

/** Reads the variables on the first call; the caller holds the loader lock.
 * @retval NBL_E_NO_MEMORY  the next call tries again
 */
nbl_status nbl_env_read(const nbl_env **out_env, nbl_error *err);

/** What the variables other than the two that choose a backend say. */
typedef struct nbl_env_settings {
    uint32_t log_level;      /**< enum nbl_log_level */
    uint32_t sim_threads;    /**< 0: not set */
    const char *sim_isa;     /**< NULL: not set */
    const char *sim_profile; /**< NULL: not set */
} nbl_env_settings;

/** Parses NIBBLE_LOG, NIBBLE_SIM_THREADS, NIBBLE_SIM_ISA and NIBBLE_SIM_PROFILE.
 * @retval NBL_E_ENV  a value that is not allowed; err names variable, value and the allowed ones
 */
nbl_status nbl_env_parse(const nbl_env *env, nbl_env_settings *out_settings, nbl_error *err);

#endif
