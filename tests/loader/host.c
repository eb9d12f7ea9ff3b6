/* SPDX-License-Identifier: Apache-2.0 */
/* What the process that embeds nibble may be like: out of static TLS, pinned by OpenMP, forking, with symbols and
 * libraries of the same names, opening the library once more from a plugin of its own. */
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixture.h"
#include "small_run.h"

/* The time limit is that of the other suites: with two of them in one program, Criterion leaks. */
TestSuite(host, .init = clean_env, .timeout = 60);

#define SIM_DIR LIBRARY_DIR "/nibble"

/* The client with a device of the simulator in this directory. */
static nbl_client open_sim(const char *directory)
{
    nbl_client client;
    nbl_error err = NBL_INIT(nbl_error);
    const nbl_load_options options = options_of("sim", directory);
    cr_assert_eq(nbl_client_use(&client, nbl_get_api, &err), NBL_OK, "nbl_client_use: %s", err.message);
    cr_assert_eq(client.api->load(&options, &client.runtime, NULL, &err), NBL_OK, "load: %s", err.message);
    cr_assert_eq(client.api->open(client.runtime, NULL, &client.device, &err), NBL_OK, "open: %s", err.message);
    return client;
}

static small_result run(const nbl_client *client)
{
    small_result result;
    nbl_error err = NBL_INIT(nbl_error);
    cr_assert_eq(small_run(client, &result, &err), NBL_OK, "small_run: %s", err.message);
    cr_assert_neq(result.o[0][0][0], 0.0f, "the result is zero");
    return result;
}

/* ------------------------------------------------------------------------------------------------ static TLS */

/* Opens copies of tls_hog until no static TLS is left. */
static void exhaust_static_tls(const char *folder)
{
    for (int i = 0; i < 200; i++) {
        char command[2048], path[1024];
        (void)snprintf(path, sizeof path, "%s/hog%d.so", folder, i);
        (void)snprintf(command, sizeof command, "cp '" PLUGINS "/tls_hog.so' '%s'", path);
        cr_assert_eq(system(command), 0, "cannot copy the hog");
        if (!dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
            cr_assert_not_null(strstr(dlerror(), "static TLS"), "another reason");
            return;
        }
    }
    cr_assert_fail("200 libraries fit into the static TLS");
}

/* The simulator needs none. */
Test(host, static_tls_exhausted)
{
    if (SANITIZER[0])
        cr_skip_test("the sanitizer's own runtime takes part in the static TLS");
    char *folder = make_folder();
    exhaust_static_tls(folder);
    nbl_client client = open_sim(SIM_DIR);
    (void)run(&client);
    cr_assert_eq(nbl_client_close(&client, NULL), NBL_OK, "nbl_client_close");
    remove_folder(folder);
}

/* ------------------------------------------------------------------------------------------------ OpenMP variables */

/* The simulator has threads of its own and reads none of these. */
Test(host, openmp_variables_do_not_pin_the_caller)
{
    cpu_set_t before, after;
    static const char *const values[][2] = {{"OMP_PROC_BIND", "true"},   {"OMP_PLACES", "cores"},
                                            {"OMP_NUM_THREADS", "many"}, {"OMP_SCHEDULE", "sometimes"},
                                            {"OMP_THREAD_LIMIT", "-3"},  {"OMP_STACKSIZE", "1q"}};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        cr_assert_eq(setenv(values[i][0], values[i][1], 1), 0, "setenv");
    cr_assert_eq(sched_getaffinity(0, sizeof before, &before), 0, "sched_getaffinity");
    nbl_client client = open_sim(SIM_DIR);
    cr_assert_eq(sched_getaffinity(0, sizeof after, &after), 0, "sched_getaffinity");
    cr_assert(CPU_EQUAL(&before, &after), "after the load, %d CPUs", CPU_COUNT(&after));
    const small_result first = run(&client), second = run(&client);
    cr_assert_eq(sched_getaffinity(0, sizeof after, &after), 0, "sched_getaffinity");
    cr_assert(CPU_EQUAL(&before, &after), "after the first run, %d CPUs", CPU_COUNT(&after));
    cr_assert_eq(memcmp(&first, &second, sizeof first), 0, "two runs give two results");
    cr_assert_eq(nbl_client_close(&client, NULL), NBL_OK, "nbl_client_close");
}

/* ------------------------------------------------------------------------------------------------ forks */

enum { CHILD_SECONDS = 40 };

/* Runs body in a fork; it leaves with 0, or with the number of the step that failed. */
static void expect_in_fork(int (*body)(void *), void *argument)
{
    (void)fflush(NULL);
    const pid_t pid = fork();
    cr_assert_geq(pid, 0, "fork");
    if (pid == 0) {
        alarm(CHILD_SECONDS);
        _exit(body(argument));
    }
    int result = 0;
    cr_assert_eq(waitpid(pid, &result, 0), pid, "waitpid");
    cr_assert(WIFEXITED(result), "the child was killed by signal %d", WTERMSIG(result));
    cr_assert_eq(WEXITSTATUS(result), 0, "the child failed at step %d", WEXITSTATUS(result));
}

static int is_refused(nbl_status status, const nbl_error *err, const char *format)
{
    char text[256];
    (void)snprintf(text, sizeof text, format, (int)getppid(), (int)getpid());
    return status == NBL_E_FORKED && strcmp(err->message, text) == 0;
}

static int child_loads_and_runs(void *unused)
{
    (void)unused;
    nbl_client client;
    small_result result;
    nbl_error err = NBL_INIT(nbl_error);
    if (nbl_client_use(&client, nbl_get_api, &err) != NBL_OK)
        return 1;
    if (nbl_client_device(&client, "sim", &err) != NBL_OK)
        return 2;
    if (small_run(&client, &result, &err) != NBL_OK)
        return 3;
    return nbl_client_close(&client, &err) == NBL_OK ? 0 : 4;
}

Test(host, fork_after_load_of_the_simulator)
{
    cr_assert_eq(setenv("NIBBLE_BACKEND_DIR", SIM_DIR, 1), 0, "setenv");
    const nbl_load_options options = options_of("sim", NULL);
    nbl_runtime *runtime = expect_load(&options);
    expect_in_fork(child_loads_and_runs, NULL);
    cr_assert_eq(api()->runtime_destroy(runtime, NULL), NBL_OK, "runtime_destroy");
}

/* Neither the handles of the parent nor new ones can be used: the simulator's threads are not there. */
static int child_after_run(void *argument)
{
    nbl_client *inherited = argument, own;
    const nbl_load_options options = options_of("sim", SIM_DIR);
    nbl_error err = NBL_INIT(nbl_error);
    nbl_cache *cache = NULL;
    static const char device[] =
        "nibble: device created in process %d, used in its fork %d; create the runtime after fork";
    static const char backend[] =
        "nibble: backend \"sim\" opened a device in process %d, used in its fork %d; open devices after fork only";
    if (!is_refused(nbl_client_cache(inherited, "kv4", 1, 1, 64, 1, 64, &cache, &err), &err, device))
        return 1;
    if (!is_refused(nbl_client_close(inherited, &err), &err, device))
        return 2;
    if (nbl_client_use(&own, nbl_get_api, &err) != NBL_OK)
        return 3;
    if (own.api->load(&options, &own.runtime, NULL, &err) != NBL_OK)
        return 4;
    return is_refused(own.api->open(own.runtime, NULL, &own.device, &err), &err, backend) ? 0 : 5;
}

Test(host, fork_after_a_run_of_the_simulator)
{
    nbl_client client = open_sim(SIM_DIR);
    const small_result before = run(&client);
    expect_in_fork(child_after_run, &client);
    const small_result after = run(&client);
    cr_assert_eq(memcmp(&before, &after, sizeof before), 0, "the parent's results changed");
    cr_assert_eq(nbl_client_close(&client, NULL), NBL_OK, "nbl_client_close");
}

static int child_uses_the_loader(void *unused)
{
    (void)unused;
    nbl_runtime *runtime = NULL;
    nbl_device *device = NULL;
    nbl_error err = NBL_INIT(nbl_error);
    const nbl_load_options good = options_of("mock", PLUGINS "/good"), bad = options_of("nosuch", PLUGINS "/good");
    if (api()->load(&bad, &runtime, NULL, &err) != NBL_E_NOT_FOUND)
        return 1;
    if (api()->load(&good, &runtime, NULL, &err) != NBL_OK)
        return 2;
    if (api()->open(runtime, NULL, &device, &err) != NBL_OK || api()->close(device, &err) != NBL_OK)
        return 3;
    return api()->runtime_destroy(runtime, &err) == NBL_OK ? 0 : 4;
}

static void *load_slow(void *folder)
{
    const nbl_load_options options = options_of("slow", folder);
    nbl_runtime *runtime = NULL;
    nbl_error err = NBL_INIT(nbl_error);
    if (api()->load(&options, &runtime, NULL, &err) != NBL_OK || api()->runtime_destroy(runtime, &err) != NBL_OK)
        return "load_slow";
    return NULL;
}

/* Forks while another thread is inside code of the slow plugin, with the loader's lock held. */
static void fork_inside(const char *folder)
{
    int ends[2];
    char descriptor[16], byte;
    pthread_t thread;
    void *failed = NULL;
    cr_assert_eq(pipe(ends), 0, "pipe");
    (void)snprintf(descriptor, sizeof descriptor, "%d", ends[1]);
    cr_assert_eq(setenv("MOCK_PIPE", descriptor, 1), 0, "setenv");
    cr_assert_eq(pthread_create(&thread, NULL, load_slow, (void *)(uintptr_t)folder), 0, "pthread_create");
    cr_assert_eq(read(ends[0], &byte, 1), 1, "the plugin did not start");
    expect_in_fork(child_uses_the_loader, NULL);
    cr_assert_eq(pthread_join(thread, &failed), 0, "pthread_join");
    cr_assert_null(failed, "the load of the parent failed");
    expect_usable();
}

Test(host, fork_while_an_entry_runs)
{
    fork_inside(PLUGINS "/slow_entry");
}

Test(host, fork_while_a_constructor_runs)
{
    fork_inside(PLUGINS "/slow_constructor");
}

static int log_ends[2];

static void slow_log(void *user, uint32_t level, const char *message)
{
    (void)level;
    static int told;
    if (!strstr(message, "backend \"mock\" is") || told++)
        return;
    cr_assert_eq(write(log_ends[1], "x", 1), 1, "write");
    (void)pthread_mutex_lock(user); /* what the thread that forks holds, as it holds Python's interpreter lock */
    (void)pthread_mutex_unlock(user);
}

static void *load_with_slow_log(void *mutex)
{
    nbl_load_options options = options_of("mock", PLUGINS "/good");
    nbl_runtime *runtime = NULL;
    options.log = slow_log;
    options.log_user = mutex;
    if (api()->load(&options, &runtime, NULL, NULL) != NBL_OK || api()->runtime_destroy(runtime, NULL) != NBL_OK)
        return "load_with_slow_log";
    return NULL;
}

Test(host, fork_while_a_log_callback_waits_for_the_forking_thread)
{
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_t thread;
    void *failed = NULL;
    char byte;
    cr_assert_eq(pipe(log_ends), 0, "pipe");
    (void)pthread_mutex_lock(&mutex);
    cr_assert_eq(pthread_create(&thread, NULL, load_with_slow_log, &mutex), 0, "pthread_create");
    cr_assert_eq(read(log_ends[0], &byte, 1), 1, "no log line");
    expect_in_fork(child_uses_the_loader, NULL);
    (void)pthread_mutex_unlock(&mutex);
    cr_assert_eq(pthread_join(thread, &failed), 0, "pthread_join");
    cr_assert_null(failed, "the load of the parent failed");
}

/* ------------------------------------------------------------------------------------------------ same names */

/* The plugin has a function of this name too, and must go on calling its own. */
__attribute__((visibility("default"))) int mock_helper(void);

int mock_helper(void)
{
    return 99;
}

static nbl_load_attempt attempt_of(const nbl_load_options *options, nbl_runtime **out_runtime, nbl_report **out_report)
{
    nbl_load_attempt attempt = NBL_INIT(nbl_load_attempt);
    nbl_error err = NBL_INIT(nbl_error);
    cr_assert_eq(api()->load(options, out_runtime, out_report, &err), NBL_OK, "load: %s", err.message);
    cr_assert_eq(api()->report_get(*out_report, 0, &attempt, NULL), NBL_OK, "report_get");
    return attempt;
}

Test(host, symbol_of_the_same_name)
{
    const nbl_load_options options = options_of("mock", PLUGINS "/good");
    nbl_device *device = NULL;
    nbl_caps caps = NBL_INIT(nbl_caps);
    cr_assert_not_null(dlsym(RTLD_DEFAULT, "mock_helper"), "this program does not export mock_helper");
    nbl_runtime *runtime = expect_load(&options);
    cr_assert_eq(api()->open(runtime, NULL, &device, NULL), NBL_OK, "open");
    cr_assert_eq(api()->caps(device, &caps, NULL), NBL_OK, "caps");
    cr_assert_eq(caps.page_tokens_max, 1, "the plugin called the host's mock_helper, which gives %u",
                 caps.page_tokens_max);
    cr_assert_eq(api()->close(device, NULL), NBL_OK, "close");
    cr_assert_eq(api()->runtime_destroy(runtime, NULL), NBL_OK, "runtime_destroy");
}

/* A bare name would give the library that is there already. */
Test(host, library_of_the_same_soname)
{
    void *other = dlopen(PLUGINS "/same_soname/libnibble-backend-mock.so.1", RTLD_NOW | RTLD_GLOBAL);
    cr_assert_not_null(other, "%s", dlerror());
    nbl_runtime *runtime = NULL;
    nbl_report *report = NULL;
    const nbl_load_options options = options_of("mock", PLUGINS "/good");
    const nbl_load_attempt attempt = attempt_of(&options, &runtime, &report);
    const char *description = attempt.description;
    cr_assert_str_eq(attempt.path, PLUGINS "/good/libnibble-backend-mock.so.1", "the path is %s", attempt.path);
    cr_assert_str_eq(description, "mock mock", "the description is %s", description);
    expect_usable();
    api()->report_free(report);
    cr_assert_eq(api()->runtime_destroy(runtime, NULL), NBL_OK, "runtime_destroy");
}

/* ------------------------------------------------------------------------------------------------ the rest */

Test(host, device_lost_after_the_load)
{
    const nbl_load_options options = options_of("lost", PLUGINS "/lost");
    nbl_runtime *runtime = expect_load(&options);
    nbl_device *device = NULL;
    nbl_error err = NBL_INIT(nbl_error);
    const nbl_stream stream = {NBL_STREAM_HOST, 0, NULL};
    cr_assert_eq(api()->open(runtime, NULL, &device, NULL), NBL_OK, "open");
    cr_assert_eq(api()->check(device, stream, &err), NBL_E_DEVICE, "check: %s", err.message);
    cr_assert_str_eq(err.message, "nibble: lost: the device is lost", "message is %s", err.message);
    cr_assert_eq(err.native_code, 719, "native code is %d", err.native_code);
    cr_assert_eq(api()->close(device, NULL), NBL_OK, "a lost device cannot be closed");
    cr_assert_eq(api()->runtime_destroy(runtime, NULL), NBL_OK, "runtime_destroy");
    expect_usable();
}

static int open_files(void)
{
    DIR *directory = opendir("/proc/self/fd");
    int count = 0;
    cr_assert_not_null(directory, "/proc/self/fd");
    while (readdir(directory))
        count++;
    (void)closedir(directory);
    return count;
}

Test(host, refusals_leave_no_file_open)
{
    static const char *const folders[][2] = {
        {"foreign", "foreign"}, {"other_major", "other"}, {"undefined", "undefined"}, {"null_slot", "lie"}};
    nbl_runtime *runtime = NULL;
    expect_usable();
    const int before = open_files();
    for (int round = 0; round < 5; round++)
        for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
            char directory[1024];
            (void)snprintf(directory, sizeof directory, PLUGINS "/%s", folders[i][0]);
            const nbl_load_options options = options_of(folders[i][1], directory);
            cr_assert_neq(api()->load(&options, &runtime, NULL, NULL), NBL_OK, "load");
        }
    cr_assert_eq(open_files(), before, "%d files are open, before %d", open_files(), before);
}
