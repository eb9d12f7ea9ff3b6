/* SPDX-License-Identifier: Apache-2.0 */
/* Environment variables: which goes before what, what they may hold, and where log lines go. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixture.h"

TestSuite(settings, .init = clean_env, .timeout = 60);

static char lines[8192];

static void keep_line(void *user, uint32_t level, const char *message)
{
    (void)user;
    const size_t used = strlen(lines);
    (void)snprintf(lines + used, sizeof lines - used, "%u %s\n", level, message);
}

static void set(const char *variable, const char *value)
{
    cr_assert_eq(setenv(variable, value, 1), 0, "setenv");
}

/* Opens the simulator's mock and gives what it was told: threads and isa come back in its capabilities. */
static nbl_caps open_sim(uint32_t flags, uint32_t threads, const char *isa)
{
    nbl_load_options options = options_of("sim", PLUGINS "/sim");
    options.flags = flags;
    options.log = keep_line;
    nbl_device_options wanted = NBL_INIT(nbl_device_options);
    wanted.threads = threads;
    wanted.isa = isa;
    nbl_runtime *runtime = expect_load(&options);
    nbl_device *device = NULL;
    nbl_caps caps = NBL_INIT(nbl_caps);
    nbl_error err = NBL_INIT(nbl_error);
    cr_assert_eq(api()->open(runtime, &wanted, &device, &err), NBL_OK, "open fails: %s", err.message);
    cr_assert_eq(api()->caps(device, &caps, &err), NBL_OK, "caps fails: %s", err.message);
    cr_assert_eq(api()->close(device, &err), NBL_OK, "close fails: %s", err.message);
    cr_assert_eq(api()->runtime_destroy(runtime, &err), NBL_OK, "runtime_destroy fails: %s", err.message);
    return caps;
}

Test(settings, environment_goes_before_the_caller)
{
    set("NIBBLE_BACKEND", "sim");
    set("NIBBLE_SIM_THREADS", "3");
    set("NIBBLE_SIM_ISA", "avx2");
    nbl_load_options options = options_of("mock", PLUGINS "/sim");
    options.log = keep_line;
    nbl_runtime *runtime = expect_load(&options);
    cr_assert_not_null(strstr(lines, "2 nibble: NIBBLE_BACKEND \"sim\" goes before the caller's choice \"mock\"\n"),
                       "no notice in:\n%s", lines);
    const nbl_caps caps = open_sim(0, 7, "scalar");
    cr_assert_eq(caps.threads, 3, "threads are %u", caps.threads);
    cr_assert_str_eq(caps.isa, "avx2", "isa is %s", caps.isa);
    cr_assert_not_null(strstr(lines, "2 nibble: NIBBLE_SIM_THREADS 3 goes before the caller's choice 7\n"),
                       "no notice in:\n%s", lines);
    cr_assert_not_null(strstr(lines, "2 nibble: NIBBLE_SIM_ISA \"avx2\" goes before the caller's choice \"scalar\"\n"),
                       "no notice in:\n%s", lines);
    cr_assert_eq(api()->runtime_destroy(runtime, NULL), NBL_OK, "runtime_destroy");
}

Test(settings, environment_can_be_locked_out)
{
    set("NIBBLE_BACKEND", "");
    set("NIBBLE_BACKEND_DIR", "");
    set("NIBBLE_LOG", "loud");
    set("NIBBLE_SIM_THREADS", "many");
    set("NIBBLE_SIM_ISA", "mmx");
    const nbl_caps caps = open_sim(NBL_LOAD_IGNORE_ENV, 7, "scalar");
    cr_assert_eq(caps.threads, 7, "threads are %u", caps.threads);
    cr_assert_str_eq(caps.isa, "scalar", "isa is %s", caps.isa);
}

Test(settings, simulator_variables_are_for_the_simulator)
{
    set("NIBBLE_SIM_THREADS", "3");
    const nbl_load_options options = options_of("mock", PLUGINS "/good");
    nbl_runtime *runtime = expect_load(&options);
    nbl_device *device = NULL;
    nbl_caps caps = NBL_INIT(nbl_caps);
    cr_assert_eq(api()->open(runtime, NULL, &device, NULL), NBL_OK, "open");
    cr_assert_eq(api()->caps(device, &caps, NULL), NBL_OK, "caps");
    cr_assert_eq(caps.threads, 0, "threads are %u", caps.threads);
    cr_assert_eq(api()->close(device, NULL), NBL_OK, "close");
    cr_assert_eq(api()->runtime_destroy(runtime, NULL), NBL_OK, "runtime_destroy");
}

Test(settings, variables_are_read_once)
{
    set("NIBBLE_SIM_THREADS", "3");
    nbl_caps caps = open_sim(0, 0, NULL);
    cr_assert_eq(caps.threads, 3, "threads are %u", caps.threads);
    set("NIBBLE_SIM_THREADS", "5");
    caps = open_sim(0, 0, NULL);
    cr_assert_eq(caps.threads, 3, "threads are %u", caps.threads);
}

static void expect_variable_refused(const char *variable, const char *value, const char *allowed)
{
    set(variable, value);
    const nbl_load_options options = options_of("sim", PLUGINS "/sim");
    expect_refusal(&options, NBL_E_ENV, "%s is \"%s\"; allowed are %s", variable, value, allowed);
}

/* The variables are read once, so each bad value needs a process. */
#define REFUSED(name, variable, value, allowed)            \
    Test(settings, name)                                   \
    {                                                      \
        expect_variable_refused(variable, value, allowed); \
    }
REFUSED(threads_zero, "NIBBLE_SIM_THREADS", "0", "1 to 1024")
REFUSED(threads_empty, "NIBBLE_SIM_THREADS", "", "1 to 1024")
REFUSED(threads_negative, "NIBBLE_SIM_THREADS", "-1", "1 to 1024")
REFUSED(threads_no_number, "NIBBLE_SIM_THREADS", "4x", "1 to 1024")
REFUSED(threads_spaced, "NIBBLE_SIM_THREADS", " 4", "1 to 1024")
REFUSED(threads_too_many, "NIBBLE_SIM_THREADS", "1025", "1 to 1024")
REFUSED(threads_overflow, "NIBBLE_SIM_THREADS", "4294967297", "1 to 1024")
REFUSED(isa_unknown, "NIBBLE_SIM_ISA", "AVX2", "scalar, avx2, avx512, amx, neon, i8mm")
REFUSED(isa_empty, "NIBBLE_SIM_ISA", "", "scalar, avx2, avx512, amx, neon, i8mm")
REFUSED(log_unknown, "NIBBLE_LOG", "loud", "error, warn, info, debug")
REFUSED(log_empty, "NIBBLE_LOG", "", "error, warn, info, debug")

/* ------------------------------------------------------------------------------------------------ stderr */

/* What a failing and a good load without a callback write to stderr. */
static void capture_stderr(char *text, size_t bytes)
{
    char *folder = make_folder();
    char path[256];
    (void)snprintf(path, sizeof path, "%s/stderr", folder);
    (void)fflush(stderr);
    const int saved = dup(STDERR_FILENO);
    const int file = open(path, O_CREAT | O_RDWR, 0600);
    cr_assert(saved >= 0 && file >= 0 && dup2(file, STDERR_FILENO) >= 0, "cannot redirect stderr");
    const nbl_load_options bad = options_of("nosuch", PLUGINS "/sim");
    const nbl_load_options good = options_of("sim", PLUGINS "/sim");
    nbl_runtime *runtime = NULL;
    for (int i = 0; i < 3; i++)
        cr_expect_eq(api()->load(&bad, &runtime, NULL, NULL), NBL_E_NOT_FOUND, "load");
    cr_expect_eq(api()->load(&good, &runtime, NULL, NULL), NBL_OK, "load");
    cr_expect_eq(api()->runtime_destroy(runtime, NULL), NBL_OK, "runtime_destroy");
    (void)fflush(stderr);
    cr_assert(dup2(saved, STDERR_FILENO) >= 0, "cannot restore stderr");
    const ssize_t count = pread(file, text, bytes - 1, 0);
    cr_assert_geq(count, 0, "cannot read stderr");
    text[count] = '\0';
    (void)close(file);
    (void)close(saved);
    remove_folder(folder);
}

#define UNKNOWN "nibble: unknown backend \"nosuch\" in nbl_load_options.backend (known: cuda, sim)\n"
#define MISSED "nibble: no " PLUGINS "/sim/libnibble-backend-nosuch.so.1\n"

Test(settings, stderr_gets_errors_once)
{
    char text[4096];
    capture_stderr(text, sizeof text);
    cr_assert_str_eq(text, UNKNOWN, "stderr has:\n%s", text);
}

Test(settings, stderr_gets_what_the_level_says)
{
    set("NIBBLE_LOG", "info");
    char text[4096];
    capture_stderr(text, sizeof text);
    cr_assert_str_eq(text,
                     UNKNOWN "nibble: backend \"sim\" is " PLUGINS "/sim/libnibble-backend-sim.so.1 (chosen by "
                             "nbl_load_options.backend)\n",
                     "stderr has:\n%s", text);
}

Test(settings, stderr_gets_misses_at_debug)
{
    set("NIBBLE_LOG", "debug");
    char text[4096];
    capture_stderr(text, sizeof text);
    cr_assert_not_null(strstr(text, MISSED), "stderr has:\n%s", text);
}
