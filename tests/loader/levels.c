/* SPDX-License-Identifier: Apache-2.0 */
/* Notes that ask for a CPU level, on CPUs of every level: elf_note.c is built into this program with a CPU of the
 * test's making. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "elf_note.h"

int fake_cpu_supports(const char *feature);

static unsigned level; /* 1 to 4 */

int fake_cpu_supports(const char *feature)
{
    static const char *const second[] = {"sse3", "ssse3", "sse4.1", "sse4.2", "popcnt"};
    static const char *const third[] = {"avx", "avx2", "bmi", "bmi2", "fma"};
    for (size_t i = 0; i < 5; i++) {
        if (strcmp(feature, second[i]) == 0)
            return level >= 2;
        if (strcmp(feature, third[i]) == 0)
            return level >= 3;
    }
    return level >= 4;
}

static const uint32_t wanted[] = {NBL_ISA_X86_64, NBL_ISA_X86_64_V2, NBL_ISA_X86_64_V3, NBL_ISA_X86_64_V4};
static const char *const names[] = {"x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"};

Test(levels, every_note_on_every_cpu)
{
    for (level = 1; level <= 4; level++)
        for (unsigned i = 0; i < 4; i++) {
            const nbl_note_payload note = {.magic = NBL_NOTE_MAGIC,
                                           .note_version = 1,
                                           .abi_major = NBL_BACKEND_ABI_MAJOR,
                                           .abi_minor = NBL_BACKEND_ABI_MINOR,
                                           .numerics_version = NBL_NUMERICS_VERSION,
                                           .layout_version = NBL_LAYOUT_VERSION,
                                           .isa_level = wanted[i]};
            nbl_error err = NBL_INIT(nbl_error);
            char text[128];
            const nbl_status status = nbl_elf_note_check(&note, "FILE", &err);
            (void)snprintf(text, sizeof text, "nibble: FILE needs %s, this CPU has %s", names[i], names[level - 1]);
            cr_assert_eq(status, i + 1 > level ? NBL_E_UNSUPPORTED : NBL_OK, "%s on %s: %d", names[i], names[level - 1],
                         status);
            if (status != NBL_OK)
                cr_assert_str_eq(err.message, text, "message is %s", err.message);
        }
}
