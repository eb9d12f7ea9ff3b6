/* SPDX-License-Identifier: Apache-2.0 */
/* Life of handles: NULL, order, double destruction, dependants; and what a load leaves of the calling thread. */
#include <errno.h>
#include <fenv.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

TestSuite(handles, .init = clean_env, .timeout = 60);

static nbl_runtime *load_good(void)
{
    const nbl_load_options options = options_of("mock", PLUGINS "/good");
    return expect_load(&options);
}

static nbl_device *open_good(nbl_runtime *runtime)
{
    nbl_device *device = NULL;
    nbl_error err = NBL_INIT(nbl_error);
    cr_assert_eq(api()->open(runtime, NULL, &device, &err), NBL_OK, "open fails: %s", err.message);
    return device;
}

static void expect_error(nbl_status got, nbl_status status, const nbl_error *err, const char *message)
{
    cr_assert_eq(got, status, "status is %s: %s", api()->status_name(got), err->message);
    cr_assert_str_eq(err->message, message, "message is %s", err->message);
}

Test(handles, null_is_accepted_by_destroy_and_refused_elsewhere)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_device *device = NULL;
    nbl_caps caps = NBL_INIT(nbl_caps);
    cr_assert_eq(api()->runtime_destroy(NULL, &err), NBL_OK, "runtime_destroy(NULL)");
    cr_assert_eq(api()->close(NULL, &err), NBL_OK, "close(NULL)");
    expect_error(api()->open(NULL, NULL, &device, &err), NBL_E_INVALID, &err, "nibble: runtime is NULL");
    expect_error(api()->caps(NULL, &caps, &err), NBL_E_INVALID, &err, "nibble: device is NULL");
    expect_error(api()->load(NULL, NULL, NULL, &err), NBL_E_INVALID, &err, "nibble: out_runtime is NULL");
    nbl_runtime *runtime = load_good();
    expect_error(api()->open(runtime, NULL, NULL, &err), NBL_E_INVALID, &err, "nibble: out_device is NULL");
    cr_assert_eq(api()->runtime_destroy(runtime, NULL), NBL_OK, "runtime_destroy");
}

Test(handles, second_destruction_is_detected)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_runtime *runtime = load_good();
    nbl_device *device = open_good(runtime);
    nbl_caps caps = NBL_INIT(nbl_caps);
    cr_assert_eq(api()->close(device, &err), NBL_OK, "close");
    expect_error(api()->close(device, &err), NBL_E_STATE, &err, "nibble: device handle is destroyed");
    expect_error(api()->caps(device, &caps, &err), NBL_E_STATE, &err, "nibble: device handle is destroyed");
    cr_assert_eq(api()->runtime_destroy(runtime, &err), NBL_OK, "runtime_destroy");
    expect_error(api()->runtime_destroy(runtime, &err), NBL_E_STATE, &err, "nibble: runtime handle is destroyed");
    expect_error(api()->open(runtime, NULL, &device, &err), NBL_E_STATE, &err, "nibble: runtime handle is destroyed");
}

/* A stale handle does not become another one that was made since. */
Test(handles, destroyed_handle_stays_destroyed_while_others_come)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_runtime *runtime = load_good();
    nbl_device *stale = open_good(runtime);
    cr_assert_eq(api()->close(stale, &err), NBL_OK, "close");
    for (int i = 0; i < 60; i++) {
        nbl_device *device = open_good(runtime);
        cr_assert_neq(device, stale, "the handle was given out again after %d others", i);
        expect_error(api()->close(stale, &err), NBL_E_STATE, &err, "nibble: device handle is destroyed");
        cr_assert_eq(api()->close(device, &err), NBL_OK, "close");
    }
    cr_assert_eq(api()->runtime_destroy(runtime, &err), NBL_OK, "runtime_destroy");
}

Test(handles, of_another_kind)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_runtime *runtime = load_good();
    nbl_device *device = open_good(runtime);
    expect_error(api()->close((nbl_device *)(void *)runtime, &err), NBL_E_STATE, &err,
                 "nibble: device handle is of another kind");
    expect_error(api()->runtime_destroy((nbl_runtime *)(void *)device, &err), NBL_E_STATE, &err,
                 "nibble: runtime handle is of another kind");
    cr_assert_eq(api()->close(device, &err), NBL_OK, "close");
    cr_assert_eq(api()->runtime_destroy(runtime, &err), NBL_OK, "runtime_destroy");
}

Test(handles, runtime_with_open_devices)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_runtime *runtime = load_good();
    nbl_device *first = open_good(runtime);
    nbl_device *second = open_good(runtime);
    expect_error(api()->runtime_destroy(runtime, &err), NBL_E_STATE, &err,
                 "nibble: runtime still has open devices (2)");
    cr_assert_eq(api()->close(first, &err), NBL_OK, "close");
    expect_error(api()->runtime_destroy(runtime, &err), NBL_E_STATE, &err,
                 "nibble: runtime still has open devices (1)");
    cr_assert_eq(api()->close(second, &err), NBL_OK, "close");
    cr_assert_eq(api()->runtime_destroy(runtime, &err), NBL_OK, "runtime_destroy");
}

Test(handles, status_names_and_texts)
{
#define EXPECT_STATUS(name, value, text)                                            \
    cr_assert_str_eq(api()->status_name(value), "NBL_" #name, "name of %d", value); \
    cr_assert_str_eq(api()->status_text(NBL_##name), text, "text of %d", value);
    NBL_STATUS_LIST(EXPECT_STATUS)
    cr_assert_str_eq(api()->status_name(-1000), "NBL_E_?", "name of -1000");
    cr_assert_str_eq(api()->status_text(1), "unknown status", "text of 1");
    cr_assert_not_null(strstr(api()->build_info(), "nibble 1."), "build_info is %s", api()->build_info());
}

/* Loads a mock whose constructor pins the thread, changes rounding and errno, as OpenMP runtimes and start-up code may
 * do. */
static nbl_runtime *load_meddler(void)
{
    const nbl_load_options options = options_of("meddler", PLUGINS "/meddler");
    nbl_runtime *runtime = NULL;
    const nbl_status status = api()->load(&options, &runtime, NULL, NULL);
    const int error_number = errno;
    cr_assert_eq(status, NBL_OK, "load gives %d", status);
    errno = error_number;
    return runtime;
}

Test(handles, load_leaves_errno_and_rounding_as_they_were)
{
    errno = EXDEV;
    nbl_runtime *runtime = load_meddler();
    const int error_number = errno;
    cr_assert_eq(error_number, EXDEV, "errno is %d", error_number);
    volatile float one = 1, tiny = 0x1p-60f;
    cr_assert_eq(fegetround(), FE_TONEAREST, "the rounding mode is %d", fegetround());
    cr_assert_eq(one + tiny, 1.0f, "sums are rounded upward");
    cr_assert_eq(api()->runtime_destroy(runtime, NULL), NBL_OK, "runtime_destroy");
}

Test(handles, load_leaves_the_cpu_mask_as_it_was)
{
    cpu_set_t before, after;
    cr_assert_eq(sched_getaffinity(0, sizeof before, &before), 0, "sched_getaffinity");
    if (CPU_COUNT(&before) < 2)
        cr_skip_test("only one CPU: pinning cannot be seen");
    nbl_runtime *runtime = load_meddler();
    cr_assert_eq(sched_getaffinity(0, sizeof after, &after), 0, "sched_getaffinity");
    cr_assert(CPU_EQUAL(&before, &after), "the thread may run on %d CPUs, before on %d", CPU_COUNT(&after),
              CPU_COUNT(&before));
    cr_assert_eq(api()->runtime_destroy(runtime, NULL), NBL_OK, "runtime_destroy");
}
