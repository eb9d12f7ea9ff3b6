/* SPDX-License-Identifier: Apache-2.0 */
/* A file exchanged between the look into it and its opening: this program stands in for dlopen, and exchanges it. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fixture.h"

TestSuite(swap, .init = clean_env, .timeout = 60);

static const char *watched, *newcomer;

__attribute__((visibility("default"))) void *dlopen(const char *path, int mode)
{
    void *(*next)(const char *, int);
    void *symbol = dlsym(RTLD_NEXT, "dlopen");
    memcpy(&next, &symbol, sizeof next);
    if (watched && path && strcmp(path, watched) == 0 && rename(newcomer, watched) != 0)
        abort();
    return next(path, mode);
}

/* The swapped file and the newcomer, each a link or a copy. */
static void expect_swap_refused(const char *command_format)
{
    char *folder = make_folder();
    char path[1024], other[1024], command[8192];
    (void)snprintf(path, sizeof path, "%s", file_in(folder, "mock"));
    (void)snprintf(other, sizeof other, "%s/newcomer", folder);
    (void)snprintf(command, sizeof command, command_format, PLUGINS "/good/libnibble-backend-mock.so.1", path,
                   PLUGINS "/swapped/libnibble-backend-mock.so.1", other);
    cr_assert_eq(system(command), 0, "failed: %s", command);
    watched = path;
    newcomer = other;
    const nbl_load_options options = options_of("mock", folder);
    nbl_runtime *runtime = NULL;
    nbl_error err = NBL_INIT(nbl_error);
    char text[2048];
    (void)snprintf(text, sizeof text, "nibble: %s was replaced while it was being loaded", path);
    cr_assert_eq(api()->load(&options, &runtime, NULL, &err), NBL_E_BACKEND, "load: %s", err.message);
    cr_assert_str_eq(err.message, text, "message is %s", err.message);
    watched = NULL;
    expect_usable();
    remove_folder(folder);
}

Test(swap, link)
{
    expect_swap_refused("ln -s '%s' '%s' && ln -s '%s' '%s'");
}

Test(swap, file)
{
    expect_swap_refused("cp '%s' '%s' && cp '%s' '%s'");
}
