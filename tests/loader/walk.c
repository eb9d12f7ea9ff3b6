/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of names: walked when loading fails, walked when no device can be had, every move recorded and logged. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixture.h"

static char *folder;

/* Lines a callback got: "level message" each. */
static char lines[8192];

static void keep_line(void *user, uint32_t level, const char *message)
{
    cr_assert_str_eq(user, "user", "the callback got another user pointer");
    const size_t used = strlen(lines);
    (void)snprintf(lines + used, sizeof lines - used, "%u %s\n", level, message);
}

static int has_line(const char *line)
{
    return strstr(lines, line) != NULL;
}

static void prepare(void)
{
    clean_env();
    folder = make_folder();
}

static void clean(void)
{
    remove_folder(folder);
}

TestSuite(walk, .init = prepare, .fini = clean, .timeout = 60);

/* Puts a mock into the folder under its own name. */
static void put(const char *mock, const char *name)
{
    const file_bytes bytes = read_mock(mock, name);
    write_plugin(folder, name, bytes.data, bytes.count);
    free(bytes.data);
}

static nbl_runtime *load_listed(const char *list, nbl_report **out_report)
{
    nbl_load_options options = options_of(list, folder);
    nbl_error err = NBL_INIT(nbl_error);
    nbl_runtime *runtime = NULL;
    options.log = keep_line;
    options.log_user = "user";
    cr_assert_eq(api()->load(&options, &runtime, out_report, &err), NBL_OK, "load fails: %s", err.message);
    return runtime;
}

static void expect_attempt(const nbl_report *report, uint32_t index, const char *name, nbl_status status,
                           uint32_t phase, const char *message)
{
    nbl_load_attempt attempt = NBL_INIT(nbl_load_attempt);
    cr_assert_eq(api()->report_get(report, index, &attempt, NULL), NBL_OK, "no attempt %u", index);
    cr_assert_str_eq(attempt.name, name, "attempt %u is about %s", index, attempt.name);
    cr_assert_eq(attempt.status, status, "attempt %u has status %d", index, attempt.status);
    cr_assert_eq(attempt.phase, phase, "attempt %u has phase %u", index, attempt.phase);
    cr_assert_str_eq(attempt.message, message, "attempt %u says: %s", index, attempt.message);
}

static void expect_device(nbl_runtime *runtime, const char *name)
{
    nbl_device *device = NULL;
    nbl_caps caps = NBL_INIT(nbl_caps);
    nbl_error err = NBL_INIT(nbl_error);
    cr_assert_eq(api()->open(runtime, NULL, &device, &err), NBL_OK, "open fails: %s", err.message);
    cr_assert_eq(api()->caps(device, &caps, &err), NBL_OK, "caps fails: %s", err.message);
    cr_assert_str_eq(caps.device_name, name, "the device is %s", caps.device_name);
    cr_assert_eq(api()->close(device, &err), NBL_OK, "close fails: %s", err.message);
}

Test(walk, missing_file_moves_on)
{
    put("sim", "sim");
    nbl_report *report = NULL;
    char text[512];
    (void)setenv("NIBBLE_BACKEND_DIR", folder, 1);
    nbl_load_options options = options_of("cuda,sim", NULL);
    options.log = keep_line;
    options.log_user = "user";
    nbl_runtime *runtime = NULL;
    cr_assert_eq(api()->load(&options, &runtime, &report, NULL), NBL_OK, "load");
    cr_assert_eq(api()->report_count(report), 2, "the report has %u attempts", api()->report_count(report));
    (void)snprintf(
        text, sizeof text,
        "nibble: backend \"cuda\": no libnibble-backend-cuda.so.1 in: %s; set NIBBLE_BACKEND=sim for the CPU", folder);
    expect_attempt(report, 0, "cuda", NBL_E_NOT_FOUND, NBL_PHASE_FIND, text);
    expect_attempt(report, 1, "sim", NBL_OK, NBL_PHASE_LOADED, "chosen by nbl_load_options.backend");
    (void)snprintf(
        text, sizeof text,
        "1 nibble: backend \"cuda\" cannot be used, going on to \"sim\" as nbl_load_options.backend says: backend "
        "\"cuda\": no libnibble-backend-cuda.so.1 in: %s",
        folder);
    cr_assert(has_line(text), "no notice in:\n%s", lines);
    (void)snprintf(text, sizeof text, "3 nibble: no %s\n", file_in(folder, "cuda"));
    cr_assert(has_line(text), "no line about the miss in:\n%s", lines);
    expect_device(runtime, "sim 0");
    api()->report_free(report);
    cr_assert_eq(api()->runtime_destroy(runtime, NULL), NBL_OK, "runtime_destroy");
}

Test(walk, bad_file_moves_on)
{
    put("sim", "sim");
    write_plugin(folder, "cuda", "junk", 4);
    nbl_report *report = NULL;
    nbl_runtime *runtime = load_listed("cuda,sim", &report);
    char text[512];
    (void)snprintf(text, sizeof text, "nibble: %s is not an ELF file", file_in(folder, "cuda"));
    expect_attempt(report, 0, "cuda", NBL_E_BACKEND, NBL_PHASE_PROBE, text);
    expect_attempt(report, 1, "sim", NBL_OK, NBL_PHASE_LOADED, "chosen by nbl_load_options.backend");
    api()->report_free(report);
    cr_assert_eq(api()->runtime_destroy(runtime, NULL), NBL_OK, "runtime_destroy");
}

Test(walk, no_device_moves_on)
{
    put("sim", "sim");
    put("nodevice", "cuda");
    nbl_report *report = NULL;
    nbl_runtime *runtime = load_listed("cuda,sim", &report);
    cr_assert_eq(api()->report_count(report), 1, "loading made %u attempts", api()->report_count(report));
    expect_attempt(report, 0, "cuda", NBL_OK, NBL_PHASE_LOADED, "chosen by nbl_load_options.backend");
    expect_device(runtime, "sim 0");
    cr_assert_eq(api()->report_count(report), 3, "opening left %u attempts", api()->report_count(report));
    expect_attempt(report, 1, "cuda", NBL_E_DEVICE, NBL_PHASE_DEVICE, "nibble: cuda: no device here");
    expect_attempt(report, 2, "sim", NBL_OK, NBL_PHASE_LOADED, "chosen by nbl_load_options.backend");
    cr_assert(
        has_line("1 nibble: backend \"cuda\" cannot be used, going on to \"sim\" as nbl_load_options.backend says: "
                 "cuda: no device here\n"),
        "no notice in:\n%s", lines);
    cr_assert(has_line("2 nibble: sim opened\n"), "no line of the plugin in:\n%s", lines);
    api()->report_free(report);
    cr_assert_eq(api()->runtime_destroy(runtime, NULL), NBL_OK, "runtime_destroy");
}

Test(walk, one_name_does_not_move_on)
{
    put("sim", "sim");
    put("nodevice", "cuda");
    nbl_report *report = NULL;
    nbl_runtime *runtime = load_listed("cuda", &report);
    nbl_device *device = NULL;
    for (int i = 0; i < 2; i++) {
        nbl_error err = NBL_INIT(nbl_error);
        cr_assert_eq(api()->open(runtime, NULL, &device, &err), NBL_E_DEVICE, "open: %s", err.message);
        cr_assert_str_eq(err.message, "nibble: cuda: no device here", "message is %s", err.message);
        cr_assert_eq(err.origin, (uint32_t)NBL_ORIGIN_CUDA, "origin is %u", err.origin);
        cr_assert_eq(err.native_code, 100, "native code is %d", err.native_code);
        cr_assert_null(device, "open wrote out_device although it failed");
    }
    api()->report_free(report);
    cr_assert_eq(api()->runtime_destroy(runtime, NULL), NBL_OK, "runtime_destroy");
    expect_usable();
}

/* What the caller can mend, or what may pass, is no reason to change the machine that computes. */
Test(walk, lack_of_memory_does_not_move_on)
{
    put("sim", "sim");
    put("outofmemory", "cuda");
    nbl_report *report = NULL;
    nbl_runtime *runtime = load_listed("cuda,sim", &report);
    nbl_device *device = NULL;
    cr_assert_eq(api()->open(runtime, NULL, &device, NULL), NBL_E_NO_MEMORY, "open");
    cr_assert_eq(api()->report_count(report), 2, "opening left %u attempts", api()->report_count(report));
    expect_attempt(report, 1, "cuda", NBL_E_NO_MEMORY, NBL_PHASE_DEVICE, "nibble: cuda: no device here");
    api()->report_free(report);
    cr_assert_eq(api()->runtime_destroy(runtime, NULL), NBL_OK, "runtime_destroy");
}

Test(walk, end_of_the_list)
{
    put("nodevice", "cuda");
    write_plugin(folder, "sim", "", 0);
    nbl_report *report = NULL;
    nbl_runtime *runtime = load_listed("cuda,sim", &report);
    nbl_device *device = NULL;
    nbl_error err = NBL_INIT(nbl_error);
    char text[512];
    (void)snprintf(text, sizeof text, "nibble: %s is empty (0 bytes)", file_in(folder, "sim"));
    cr_assert_eq(api()->open(runtime, NULL, &device, &err), NBL_E_BACKEND, "open: %s", err.message);
    cr_assert_str_eq(err.message, text, "message is %s", err.message);
    cr_assert_eq(api()->report_count(report), 3, "opening left %u attempts", api()->report_count(report));
    expect_attempt(report, 2, "sim", NBL_E_BACKEND, NBL_PHASE_PROBE, text);
    /* Nothing was chosen, so the next call begins at the head of the list again. */
    cr_assert_eq(api()->open(runtime, NULL, &device, &err), NBL_E_BACKEND, "open: %s", err.message);
    cr_assert_str_eq(err.message, text, "message is %s", err.message);
    expect_attempt(report, 3, "cuda", NBL_E_DEVICE, NBL_PHASE_DEVICE, "nibble: cuda: no device here");
    expect_attempt(report, 4, "sim", NBL_E_BACKEND, NBL_PHASE_PROBE, text);
    api()->report_free(report);
    cr_assert_eq(api()->runtime_destroy(runtime, NULL), NBL_OK, "runtime_destroy");
}

Test(walk, first_of_the_list_is_taken)
{
    put("sim", "sim");
    put("good", "mock");
    nbl_report *report = NULL;
    nbl_runtime *runtime = load_listed("mock,sim", &report);
    expect_device(runtime, "mock 0");
    cr_assert_eq(api()->report_count(report), 1, "%u attempts", api()->report_count(report));
    api()->report_free(report);
    cr_assert_eq(api()->runtime_destroy(runtime, NULL), NBL_OK, "runtime_destroy");
}

Test(walk, report_outlives_the_runtime_and_is_checked)
{
    put("good", "mock");
    nbl_report *report = NULL;
    nbl_runtime *runtime = load_listed("mock", &report);
    cr_assert_eq(api()->runtime_destroy(runtime, NULL), NBL_OK, "runtime_destroy");
    nbl_load_attempt attempt = NBL_INIT(nbl_load_attempt);
    nbl_error err = NBL_INIT(nbl_error);
    cr_assert_eq(api()->report_get(report, 0, &attempt, &err), NBL_OK, "report_get: %s", err.message);
    cr_assert_str_eq(attempt.path, file_in(folder, "mock"), "path is %s", attempt.path);
    cr_assert_str_eq(attempt.description, "mock mock", "description is %s", attempt.description);
    cr_assert_eq(attempt.numerics_version, NBL_NUMERICS_VERSION, "numerics %u", attempt.numerics_version);
    cr_assert_eq(attempt.layout_version, NBL_LAYOUT_VERSION, "layout %u", attempt.layout_version);
    cr_assert_eq(api()->report_get(report, 1, &attempt, &err), NBL_E_RANGE, "index past the end");
    cr_assert_str_eq(err.message, "nibble: report index is 1, the report has 1 attempts", "message is %s", err.message);
    cr_assert_eq(api()->report_get(NULL, 0, &attempt, &err), NBL_E_INVALID, "NULL report");
    cr_assert_eq(api()->report_count(NULL), 0, "NULL report has attempts");
    api()->report_free(report);
    api()->report_free(NULL);
}

/* ------------------------------------------------------------------------------------------------ drivers */

/* One state of the driver: alone it is an error with the driver's own code, in a list the next backend is taken. */
static void expect_driver(const char *mock, int32_t native, const char *text)
{
    nbl_report *report = NULL;
    nbl_device *device = NULL;
    nbl_error err = NBL_INIT(nbl_error);
    char message[256], line[512];
    put("sim", "sim");
    put(mock, "cuda");
    (void)snprintf(message, sizeof message, "nibble: cuda: %s", text);
    nbl_runtime *alone = load_listed("cuda", NULL);
    cr_assert_eq(api()->open(alone, NULL, &device, &err), NBL_E_DEVICE, "open: %s", err.message);
    cr_assert_str_eq(err.message, message, "message is %s", err.message);
    cr_assert_eq(err.native_code, native, "native code is %d", err.native_code);
    cr_assert_eq(err.origin, (uint32_t)NBL_ORIGIN_CUDA, "origin is %u", err.origin);
    nbl_runtime *listed = load_listed("cuda,sim", &report);
    expect_device(listed, "sim 0");
    expect_attempt(report, 1, "cuda", NBL_E_DEVICE, NBL_PHASE_DEVICE, message);
    (void)snprintf(line, sizeof line,
                   "1 nibble: backend \"cuda\" cannot be used, going on to \"sim\" as nbl_load_options.backend says: "
                   "cuda: %s\n",
                   text);
    cr_assert(has_line(line), "no notice in:\n%s", lines);
    api()->report_free(report);
    cr_assert_eq(api()->runtime_destroy(alone, NULL), NBL_OK, "runtime_destroy");
    cr_assert_eq(api()->runtime_destroy(listed, NULL), NBL_OK, "runtime_destroy");
    expect_usable();
}

Test(walk, no_driver)
{
    expect_driver("no_driver", 35, "no NVIDIA driver (cudart 13.0, driver 0)");
}

Test(walk, stub_driver)
{
    expect_driver("stub_driver", 34, "the libcuda found is that of the toolkit, not the driver's (34)");
}

Test(walk, old_driver)
{
    expect_driver("old_driver", 35, "driver too old (cudart 13.0, driver for CUDA 12.2)");
}

Test(walk, hidden_device)
{
    expect_driver("hidden_device", 100, "no device visible (CUDA_VISIBLE_DEVICES=\"\")");
}
