/* SPDX-License-Identifier: Apache-2.0 */
/** @file float_find.c  The float core's loop by the name of an instruction set. */
#include "float_isa.h"

#include <string.h>

sim_float_dot_fn sim_float_dot_find(const char *isa_name)
{
#if defined(__x86_64__)
    if (strcmp(isa_name, "avx512") == 0 || strcmp(isa_name, "amx") == 0) {
        return sim_float_dot_avx512;
    }
    if (strcmp(isa_name, "avx2") == 0) {
        return sim_float_dot_avx2;
    }
#endif
    (void)isa_name;
    return sim_float_dot_scalar;
}
