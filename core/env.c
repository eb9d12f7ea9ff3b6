/* SPDX-License-Identifier: Apache-2.0 */
#include "env.h"

#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

enum { SIM_THREADS_MAX = 1024 };

static const char *const variables[NBL_ENV_COUNT] = {
    [NBL_ENV_BACKEND] = "NIBBLE_BACKEND", [NBL_ENV_BACKEND_DIR] = "NIBBLE_BACKEND_DIR",
    [NBL_ENV_LOG] = "NIBBLE_LOG",         [NBL_ENV_SIM_THREADS] = "NIBBLE_SIM_THREADS",
    [NBL_ENV_SIM_ISA] = "NIBBLE_SIM_ISA", [NBL_ENV_SIM_PROFILE] = "NIBBLE_SIM_PROFILE",
};

const char *nbl_env_variable(uint32_t name)
{
    return variables[name];
}

int nbl_env_is_secure(void)
{
    return getauxval(AT_SECURE) != 0;
}

nbl_status nbl_env_read(const nbl_env **out_env, nbl_error *err)
{
    static nbl_env env;
    static int done;
    for (uint32_t i = 0; !done && i < NBL_ENV_COUNT; i++) {
        if (nbl_env_is_secure() && getenv(variables[i]))
            env.ignored |= 1u << i;
        const char *value = secure_getenv(variables[i]);
        if (value && !env.value[i] && !(env.value[i] = strdup(value)))
            return nbl_fail(err, NBL_E_NO_MEMORY, NBL_ORIGIN_LOADER, 0, "no memory for %s", variables[i]);
    }
    done = 1;
    *out_env = &env;
    return NBL_OK;
}

/* Index of value in a NULL-terminated list, or -1. */
static int index_of(const char *value, const char *const *list)
{
    for (int i = 0; list[i]; i++)
        if (strcmp(value, list[i]) == 0)
            return i;
    return -1;
}

static nbl_status refuse(uint32_t name, const char *value, const char *allowed, nbl_error *err)
{
    return nbl_fail(err, NBL_E_ENV, NBL_ORIGIN_LOADER, 0, "%s is \"%s\"; allowed are %s", variables[name], value,
                    allowed);
}

static nbl_status parse_log(const char *value, uint32_t *out_level, nbl_error *err)
{
    static const char *const levels[] = {"error", "warn", "info", "debug", NULL};
    const int level = index_of(value, levels);
    if (level < 0)
        return refuse(NBL_ENV_LOG, value, "error, warn, info, debug", err);
    *out_level = (uint32_t)level;
    return NBL_OK;
}

static nbl_status parse_threads(const char *value, uint32_t *out_threads, nbl_error *err)
{
    uint32_t threads = 0;
    for (const char *c = value; *c; c++) {
        if (*c < '0' || *c > '9' || threads > SIM_THREADS_MAX)
            return refuse(NBL_ENV_SIM_THREADS, value, "1 to 1024", err);
        threads = threads * 10 + (uint32_t)(*c - '0');
    }
    if (threads < 1 || threads > SIM_THREADS_MAX)
        return refuse(NBL_ENV_SIM_THREADS, value, "1 to 1024", err);
    *out_threads = threads;
    return NBL_OK;
}

static nbl_status parse_isa(const char *value, const char **out_isa, nbl_error *err)
{
    static const char *const sets[] = {"scalar", "avx2", "avx512", "amx", "neon", "i8mm", NULL};
    if (index_of(value, sets) < 0)
        return refuse(NBL_ENV_SIM_ISA, value, "scalar, avx2, avx512, amx, neon, i8mm", err);
    *out_isa = value;
    return NBL_OK;
}

static nbl_status parse_profile(const char *value, const char **out_profile, nbl_error *err)
{
    static const char *const profiles[] = {"sm_80", "sm_89", "sm_90", "sm_100", "sm_120", NULL};
    if (index_of(value, profiles) < 0)
        return refuse(NBL_ENV_SIM_PROFILE, value, "sm_80, sm_89, sm_90, sm_100, sm_120", err);
    *out_profile = value;
    return NBL_OK;
}

nbl_status nbl_env_parse(const nbl_env *env, nbl_env_settings *out_settings, nbl_error *err)
{
    nbl_env_settings settings = {.log_level = NBL_LOG_ERROR};
    nbl_status status = NBL_OK;
    if (env->value[NBL_ENV_LOG])
        status = parse_log(env->value[NBL_ENV_LOG], &settings.log_level, err);
    if (status == NBL_OK && env->value[NBL_ENV_SIM_THREADS])
        status = parse_threads(env->value[NBL_ENV_SIM_THREADS], &settings.sim_threads, err);
    if (status == NBL_OK && env->value[NBL_ENV_SIM_ISA])
        status = parse_isa(env->value[NBL_ENV_SIM_ISA], &settings.sim_isa, err);
    if (status == NBL_OK && env->value[NBL_ENV_SIM_PROFILE])
        status = parse_profile(env->value[NBL_ENV_SIM_PROFILE], &settings.sim_profile, err);
    if (status == NBL_OK)
        *out_settings = settings;
    return status;
}
