/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file find.c
 * @brief Picks the instruction set at run time.
 */
#include "isa.h"

#include <stddef.h>
#include <string.h>

#if defined(__aarch64__)
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static int always(void)
{
    return 1;
}

#if defined(__x86_64__)
/* clang 14 has no name for it in __builtin_cpu_supports. */
static int has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}

static int has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static int has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
}

#define CPUID_AMX_TILE (1u << 24) /* leaf 7, edx */
#define CPUID_AMX_INT8 (1u << 25)
#define ARCH_REQ_XCOMP_PERM 0x1023 /* asm/prctl.h of Linux 5.16 */
#define XFEATURE_XTILEDATA 18

/* Linux gives a process the tile registers when it asks for them; a kernel that does not know them refuses. */
static int has_amx(void)
{
    const unsigned wanted = CPUID_AMX_TILE | CPUID_AMX_INT8;
    unsigned a, b, c, d;
    return has_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & wanted) == wanted &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#elif defined(__aarch64__)
#define HWCAP_DOTPROD (1ul << 20) /* HWCAP_ASIMDDP */
#define HWCAP2_INT8MM (1ul << 13) /* HWCAP2_I8MM */

static int has_dotprod(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_DOTPROD) != 0;
}

static int has_i8mm(void)
{
    return has_dotprod() && (getauxval(AT_HWCAP2) & HWCAP2_INT8MM) != 0;
}
#endif

/* From plain to best. */
static const struct {
    const sim_isa *table;
    int (*runs_here)(void);
} tables[] = {
    {&sim_isa_scalar, always},
#if defined(__x86_64__)
    {&sim_isa_avx2, has_avx2},
    {&sim_isa_avx512, has_avx512},
    {&sim_isa_amx, has_amx},
#elif defined(__aarch64__)
    {&sim_isa_neon, has_dotprod},
    {&sim_isa_i8mm, has_i8mm},
#endif
};

#if defined(__x86_64__)
const char *const sim_isa_names[] = {"scalar", "avx2", "avx512", "amx", NULL};
#elif defined(__aarch64__)
const char *const sim_isa_names[] = {"scalar", "neon", "i8mm", NULL};
#else
const char *const sim_isa_names[] = {"scalar", NULL};
#endif

const sim_isa *sim_isa_find(const char *name)
{
    int any = name == NULL || name[0] == '\0';
    for (size_t i = sizeof tables / sizeof tables[0]; i-- > 0;) {
        if ((any || strcmp(name, tables[i].table->name) == 0) && tables[i].runs_here()) {
            return tables[i].table;
        }
    }
    return NULL;
}
