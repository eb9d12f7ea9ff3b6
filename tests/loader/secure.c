/* SPDX-License-Identifier: Apache-2.0 */
/* Raised privileges: variables are ignored and reported, and places that others could have written are refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixture.h"

enum { OTHER_USER = 1, NOT_RAISED = 77 };

static char *folder;

static void prepare(void)
{
    clean_env();
    folder = make_folder();
    cr_assert_eq(chmod(folder, 0755), 0, "chmod");
}

static void clean(void)
{
    remove_folder(folder);
}

TestSuite(secure, .init = prepare, .fini = clean, .timeout = 60);

static void run(const char *command)
{
    cr_assert_eq(system(command), 0, "failed: %s", command);
}

/* Tells whether other users reach a directory, as in a clone under /root they do not. */
static bool others_reach(const char *directory)
{
    char path[1024];
    struct stat status;
    (void)snprintf(path, sizeof path, "%s", directory);
    for (;;) {
        if (stat(path, &status) != 0 || (status.st_mode & S_IXOTH) == 0)
            return false;
        char *slash = strrchr(path, '/');
        if (slash == NULL || slash == path)
            return true;
        *slash = '\0';
    }
}

/* Runs the client as the other user by its setuid bit and expects exactly this output. */
static void expect_output(const char *directory, const char *expected)
{
    if (SANITIZER[0])
        cr_skip_test("sanitizers cannot look into a process with raised privileges, and fail it");
    if (geteuid() != 0)
        cr_skip_test("only root can make a program setuid to somebody else");
    if (!others_reach(LIBRARY_DIR))
        cr_skip_test("other users cannot enter the directory of the library: " LIBRARY_DIR);
    char client[1024], command[4096], output[4096];
    (void)snprintf(client, sizeof client, "%s/client", folder);
    (void)snprintf(command, sizeof command, "cp '" SECURE_CLIENT "' '%s' && chown %d '%s' && chmod 4755 '%s'", client,
                   OTHER_USER, client, client);
    run(command);
    (void)snprintf(command, sizeof command, "'%s' '%s'", client, directory);
    FILE *pipe = popen(command, "r");
    cr_assert_not_null(pipe, "popen");
    const size_t count = fread(output, 1, sizeof output - 1, pipe);
    output[count] = '\0';
    const int result = pclose(pipe);
    if (WIFEXITED(result) && WEXITSTATUS(result) == NOT_RAISED)
        cr_skip_test("the temporary directory does not honour setuid");
    cr_assert_eq(result, 0, "the client ends with %d", result);
    cr_assert_str_eq(output, expected, "the client says:\n%s", output);
}

#define IGNORED(variable) variable " ignored: process runs with raised privileges\n"

/* The build tree may lie under a directory that everyone can write, such as /tmp; this one belongs to root all the way.
 */
Test(secure, variables_are_ignored_and_reported)
{
    char place[] = "/run/nibble-test-XXXXXX", command[2048];
    if (geteuid() != 0)
        cr_skip_test("only root can make a program setuid to somebody else");
    cr_assert_not_null(mkdtemp(place), "mkdtemp %s", place);
    (void)snprintf(command, sizeof command, "chmod 0755 '%s' && cp '" PLUGINS "/good/libnibble-backend-mock.so.1' '%s'",
                   place, place);
    run(command);
    cr_assert_eq(setenv("NIBBLE_BACKEND", "/tmp/libnibble-backend-evil.so.1", 1), 0, "setenv");
    cr_assert_eq(setenv("NIBBLE_BACKEND_DIR", "/tmp", 1), 0, "setenv");
    cr_assert_eq(setenv("NIBBLE_LOG", "loud", 1), 0, "setenv");
    expect_output(place, "NBL_OK\n" IGNORED("NIBBLE_BACKEND") IGNORED("NIBBLE_BACKEND_DIR")
                             IGNORED("NIBBLE_LOG") "chosen by nbl_load_options.backend\n");
    (void)snprintf(command, sizeof command, "rm -rf '%s'", place);
    run(command);
}

/* The mock in a folder of its own, under one that belongs to root. */
static void expect_place_refused(const char *prepare_command, const char *format)
{
    char place[512], command[2048], expected[2048];
    (void)snprintf(place, sizeof place, "%s/place", folder);
    (void)snprintf(command, sizeof command,
                   "mkdir '%s' && cp '" PLUGINS "/good/libnibble-backend-mock.so.1' '%s' && cd '%s' && %s", place,
                   place, folder, prepare_command);
    run(command);
    (void)snprintf(expected, sizeof expected, format, folder);
    expect_output(place, expected);
}

#define RAISED " and this process runs with raised privileges\n"

Test(secure, directory_of_somebody_else)
{
    expect_place_refused("chown 2 place", "NBL_E_BACKEND\nnibble: %s/place belongs to user 2" RAISED);
}

Test(secure, directory_that_a_group_can_write)
{
    expect_place_refused("chmod 0775 place",
                         "NBL_E_BACKEND\nnibble: %s/place is writable by its group (mode 0775)" RAISED);
}

Test(secure, directory_above_is_looked_at)
{
    expect_place_refused("chmod 0775 .", "NBL_E_BACKEND\nnibble: %s is writable by its group (mode 0775)" RAISED);
}

/* Everything is right but the temporary directory itself, which everyone can write. */
Test(secure, temporary_directory)
{
    expect_place_refused("true",
                         "NBL_E_BACKEND\nnibble: /tmp is writable by everyone (mode 1777); backends are not loaded "
                         "from there\n");
}
