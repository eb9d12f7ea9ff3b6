/* SPDX-License-Identifier: Apache-2.0 */
/* Forks, threads, two runtimes in one process, raised privileges. */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixture.h"

TestSuite(process, .init = clean_env, .timeout = 60);

static const char *const good_dir = PLUGINS "/good";

static void expect_child_is_good(pid_t pid)
{
    int result = 0;
    cr_assert_eq(waitpid(pid, &result, 0), pid, "waitpid");
    cr_assert(WIFEXITED(result), "the child was killed by signal %d", WTERMSIG(result));
    cr_assert_eq(WEXITSTATUS(result), 0, "the child failed at step %d", WEXITSTATUS(result));
}

/* Runs body in a fork; it leaves with 0, or with the number of the step that failed. */
static void expect_in_fork(int (*body)(void *), void *argument)
{
    (void)fflush(NULL);
    const pid_t pid = fork();
    cr_assert_geq(pid, 0, "fork");
    if (pid == 0) {
        alarm(20);
        _exit(body(argument));
    }
    expect_child_is_good(pid);
}

static int is_forked_error(nbl_status status, const nbl_error *err, const char *format, int parent)
{
    char text[256];
    (void)snprintf(text, sizeof text, format, parent, (int)getpid());
    return status == NBL_E_FORKED && strcmp(err->message, text) == 0;
}

/* After a load alone the handle is refused, but the child may load and open for itself. */
static int child_after_load(void *argument)
{
    nbl_runtime *inherited = argument, *own = NULL;
    nbl_device *device = NULL;
    nbl_error err = NBL_INIT(nbl_error);
    const nbl_load_options options = options_of("mock", good_dir);
    const char *text = "nibble: runtime created in process %d, used in its fork %d; create the runtime after fork";
    if (!is_forked_error(api()->open(inherited, NULL, &device, &err), &err, text, getppid()))
        return 1;
    if (!is_forked_error(api()->runtime_destroy(inherited, &err), &err, text, getppid()))
        return 2;
    if (api()->load(&options, &own, NULL, &err) != NBL_OK)
        return 3;
    if (api()->open(own, NULL, &device, &err) != NBL_OK)
        return 4;
    if (api()->close(device, &err) != NBL_OK || api()->runtime_destroy(own, &err) != NBL_OK)
        return 5;
    return 0;
}

Test(process, fork_after_load)
{
    const nbl_load_options options = options_of("mock", good_dir);
    nbl_runtime *runtime = expect_load(&options);
    expect_in_fork(child_after_load, runtime);
    cr_assert_eq(api()->runtime_destroy(runtime, NULL), NBL_OK, "runtime_destroy");
}

/* A child that the C library knows nothing of, whose fork handlers have not run, is a child all the same. */
static int child_of_clone(nbl_runtime *inherited)
{
    nbl_device *device = NULL;
    nbl_error err = NBL_INIT(nbl_error);
    const char *text = "nibble: runtime created in process %d, used in its fork %d; create the runtime after fork";
    return !is_forked_error(api()->open(inherited, NULL, &device, &err), &err, text, getppid());
}

Test(process, clone_after_load)
{
    const nbl_load_options options = options_of("mock", good_dir);
    nbl_runtime *runtime = expect_load(&options);
    (void)fflush(NULL);
    const long pid = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    cr_assert_geq(pid, 0, "clone");
    if (pid == 0)
        _exit(child_of_clone(runtime));
    expect_child_is_good((pid_t)pid);
    cr_assert_eq(api()->runtime_destroy(runtime, NULL), NBL_OK, "runtime_destroy");
}

/* After an open the backend itself may be broken in the child, so a fresh runtime does not help. */
static int child_after_open(void *argument)
{
    nbl_device *inherited = argument, *device = NULL;
    nbl_runtime *own = NULL;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_caps caps = NBL_INIT(nbl_caps);
    const nbl_load_options options = options_of("mock", good_dir);
    const char *text = "nibble: device created in process %d, used in its fork %d; create the runtime after fork";
    if (!is_forked_error(api()->caps(inherited, &caps, &err), &err, text, getppid()))
        return 1;
    if (!is_forked_error(api()->close(inherited, &err), &err, text, getppid()))
        return 2;
    if (api()->load(&options, &own, NULL, &err) != NBL_OK)
        return 3;
    text = "nibble: backend \"mock\" opened a device in process %d, used in its fork %d; open devices after fork only";
    if (!is_forked_error(api()->open(own, NULL, &device, &err), &err, text, getppid()))
        return 4;
    if (api()->runtime_destroy(own, &err) != NBL_OK)
        return 5;
    return 0;
}

Test(process, fork_after_open)
{
    const nbl_load_options options = options_of("mock", good_dir);
    nbl_runtime *runtime = expect_load(&options);
    nbl_device *device = NULL;
    cr_assert_eq(api()->open(runtime, NULL, &device, NULL), NBL_OK, "open");
    expect_in_fork(child_after_open, device);
    cr_assert_eq(api()->close(device, NULL), NBL_OK, "close");
    cr_assert_eq(api()->runtime_destroy(runtime, NULL), NBL_OK, "runtime_destroy");
}

/* ------------------------------------------------------------------------------------------------ threads */

enum { THREADS = 8 };

static pthread_barrier_t barrier;

static void *race_load(void *argument)
{
    nbl_load_attempt *out = argument;
    const nbl_load_options options = options_of("mock", good_dir);
    nbl_runtime *runtime = NULL;
    nbl_report *report = NULL;
    nbl_device *device = NULL;
    nbl_load_attempt attempt = NBL_INIT(nbl_load_attempt);
    (void)pthread_barrier_wait(&barrier);
    if (api()->load(&options, &runtime, &report, NULL) != NBL_OK)
        return "load";
    if (api()->report_count(report) != 1 || api()->report_get(report, 0, &attempt, NULL) != NBL_OK)
        return "report";
    *out = attempt;
    if (api()->open(runtime, NULL, &device, NULL) != NBL_OK || api()->close(device, NULL) != NBL_OK)
        return "open";
    api()->report_free(report);
    return api()->runtime_destroy(runtime, NULL) == NBL_OK ? NULL : "runtime_destroy";
}

/* One instance for all: the description is a string of the plugin, the same address only if the plugin is the same. */
Test(process, eight_threads_race_the_first_load)
{
    pthread_t threads[THREADS];
    nbl_load_attempt attempts[THREADS];
    cr_assert_eq(pthread_barrier_init(&barrier, NULL, THREADS), 0, "pthread_barrier_init");
    for (int i = 0; i < THREADS; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, race_load, &attempts[i]), 0, "pthread_create");
    for (int i = 0; i < THREADS; i++) {
        void *failed = NULL;
        cr_assert_eq(pthread_join(threads[i], &failed), 0, "pthread_join");
        cr_assert_null(failed, "thread %d failed at %s", i, (const char *)failed);
        cr_assert_eq(attempts[i].file_inode, attempts[0].file_inode, "thread %d loaded another file", i);
        cr_assert_eq(attempts[i].phase, (uint32_t)NBL_PHASE_LOADED, "thread %d came to phase %u", i, attempts[i].phase);
    }
}

/* ------------------------------------------------------------------------------------------------ two runtimes */

static void copy_file(const char *from, const char *to)
{
    char command[2048];
    (void)snprintf(command, sizeof command, "cp '%s' '%s'", from, to);
    cr_assert_eq(system(command), 0, "cannot copy %s to %s", from, to);
}

static char lines_at_debug[4096];

static void keep_line(void *user, uint32_t level, const char *message)
{
    (void)user;
    const size_t used = strlen(lines_at_debug);
    if (level == NBL_LOG_DEBUG)
        (void)snprintf(lines_at_debug + used, sizeof lines_at_debug - used, "%s\n", message);
}

/* A second libnibble in the process: it looks beside itself, and shares nothing with the first. */
Test(process, second_runtime_looks_beside_itself)
{
    char *folder = make_folder();
    char path[256], backends[256];
    (void)snprintf(path, sizeof path, "%s/libnibble.so.1", folder);
    (void)snprintf(backends, sizeof backends, "%s/nibble", folder);
    copy_file(LIBRARY_DIR "/libnibble.so.1", path);
    cr_assert_eq(mkdir(backends, 0755), 0, "mkdir");

    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    cr_assert_not_null(library, "%s", dlerror());
    nbl_get_api_fn get_api;
    void *symbol = dlsym(library, "nbl_get_api");
    memcpy(&get_api, &symbol, sizeof get_api);
    const nbl_api_v1 *second = NULL;
    cr_assert_eq(get_api(NULL, &second, NULL), NBL_OK, "nbl_get_api");
    cr_assert_neq(second, api(), "both runtimes are one");

    nbl_error err = NBL_INIT(nbl_error);
    nbl_runtime *runtime = NULL;
    nbl_load_options options = options_of("mock", NULL);
    options.log = keep_line;
    cr_assert_eq(second->load(&options, &runtime, NULL, &err), NBL_E_NOT_FOUND, "load: %s", err.message);
    char text[4096];
    (void)snprintf(text, sizeof text,
                   "nibble: no %s/libnibble-backend-mock.so.1\nnibble: no " DEFAULT_DIR
                   "/libnibble-backend-mock.so.1\n",
                   backends);
    cr_assert_str_eq(lines_at_debug, text, "the search went\n%s", lines_at_debug);
    copy_file(PLUGINS "/good/libnibble-backend-mock.so.1", file_in(backends, "mock"));
    cr_assert_eq(second->load(&options, &runtime, NULL, &err), NBL_OK, "load fails: %s", err.message);
    expect_usable();
    cr_assert_eq(second->runtime_destroy(runtime, &err), NBL_OK, "runtime_destroy: %s", err.message);
    remove_folder(folder);
}

/* The runtime, loaded again after dlclose, works; -z nodelete keeps it in place. */
Test(process, runtime_closed_and_opened_again)
{
    for (int i = 0; i < 3; i++) {
        void *library = dlopen(LIBRARY_DIR "/libnibble.so.1", RTLD_NOW | RTLD_LOCAL);
        cr_assert_not_null(library, "%s", dlerror());
        expect_usable();
        cr_assert_eq(dlclose(library), 0, "dlclose");
    }
    expect_usable();
}
