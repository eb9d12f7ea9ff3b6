/* SPDX-License-Identifier: Apache-2.0 */
/* One exported symbol per library. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

/* Names of the dynamic symbols that a library defines, one a line. */
static void list_exports(const char *path, char *names, size_t bytes)
{
    char command[2048], line[512];
    (void)snprintf(command, sizeof command, NM " -D --defined-only '%s'", path);
    FILE *pipe = popen(command, "r");
    cr_assert_not_null(pipe, "cannot run %s", command);
    size_t used = 0;
    names[0] = '\0';
    while (fgets(line, sizeof line, pipe)) {
        const char *name = strrchr(line, ' ');
        used += (size_t)snprintf(names + used, bytes - used, "%s", name ? name + 1 : line);
        cr_assert_lt(used, bytes, "%s exports too much", path);
    }
    cr_assert_eq(pclose(pipe), 0, "%s failed", command);
}

Test(exports, runtime)
{
    char names[4096];
    list_exports(RUNTIME, names, sizeof names);
    cr_assert_str_eq(names, "nbl_get_api\n", "libnibble exports:\n%s", names);
}

/* Built with abi/backend.map, as every backend is. */
Test(exports, plugin)
{
    char names[4096];
    list_exports(PLUGIN, names, sizeof names);
    cr_assert_str_eq(names, "nbl_backend_entry_v1\n", "the plugin exports:\n%s", names);
}
