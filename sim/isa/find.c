/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file find.c
 * @brief Picks the instruction set at run time.
 */
#include "isa.h"

#include <string.h>

#if defined(__x86_64__)
static int has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static int has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
}
#endif

const sim_isa *sim_isa_find(const char *name)
{
    int any = name == NULL || name[0] == '\0';
#if defined(__x86_64__)
    if ((any || strcmp(name, "avx512") == 0) && has_avx512()) {
        return &sim_isa_avx512;
    }
    if ((any || strcmp(name, "avx2") == 0) && has_avx2()) {
        return &sim_isa_avx2;
    }
#endif
    return any || strcmp(name, "scalar") == 0 ? &sim_isa_scalar : NULL;
}
