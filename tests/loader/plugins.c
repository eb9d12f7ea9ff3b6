/* SPDX-License-Identifier: Apache-2.0 */
/* Plugins that are whole files and yet wrong; see tests/plugins. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixture.h"

static char *marker_folder;
static char marker[256];

/* Refused plugins with MOCK_MARKER would leave this file from their constructor. */
static void prepare(void)
{
    clean_env();
    marker_folder = make_folder();
    (void)snprintf(marker, sizeof marker, "%s/marker", marker_folder);
    cr_assert_eq(setenv("MOCK_MARKER", marker, 1), 0, "setenv");
}

static void clean(void)
{
    remove_folder(marker_folder);
}

static void expect_no_marker(void)
{
    cr_assert_neq(access(marker, F_OK), 0, "code of the refused plugin has run");
}

TestSuite(plugins, .init = prepare, .fini = clean, .timeout = 60);

Test(plugins, foreign_library)
{
    expect_mock_refusal("foreign", "foreign", NBL_E_BACKEND,
                        "FILE has no nibble ABI note (not a nibble backend, or built without the SDK)");
    expect_no_marker();
}

Test(plugins, other_major)
{
    expect_mock_refusal("other_major", "other", NBL_E_ABI,
                        "FILE speaks backend ABI 2.0 to 2.1, this runtime speaks 1.0 to 1.1; update libnibble or the "
                        "backend");
    expect_no_marker();
}

Test(plugins, newer_minor_only)
{
    expect_mock_refusal("newer_only", "newer", NBL_E_ABI,
                        "FILE speaks backend ABI 1.2 to 1.3, this runtime speaks 1.0 to 1.1; update libnibble or the "
                        "backend");
    expect_no_marker();
}

Test(plugins, other_numerics)
{
    char text[128];
    (void)snprintf(text, sizeof text, "FILE implements numerics 77, runtime needs %u (results would differ)",
                   NBL_NUMERICS_VERSION);
    expect_mock_refusal("numerics", "numerics", NBL_E_ABI, text);
    expect_no_marker();
}

Test(plugins, other_layout)
{
    expect_mock_refusal("layout", "layout", NBL_E_ABI,
                        "FILE implements page layout 9, runtime needs 1 (pages would be misread)");
    expect_no_marker();
}

/* ------------------------------------------------------------------------------------------------ skew */

static nbl_device *open_mock(const char *folder, const char *name, nbl_runtime **out_runtime)
{
    char directory[4096];
    (void)snprintf(directory, sizeof directory, PLUGINS "/%s", folder);
    const nbl_load_options options = options_of(name, directory);
    nbl_error err = NBL_INIT(nbl_error);
    nbl_device *device = NULL;
    *out_runtime = expect_load(&options);
    cr_assert_eq(api()->open(*out_runtime, NULL, &device, &err), NBL_OK, "open fails: %s", err.message);
    return device;
}

static void close_mock(nbl_runtime *runtime, nbl_device *device)
{
    cr_assert_eq(api()->close(device, NULL), NBL_OK, "close");
    cr_assert_eq(api()->runtime_destroy(runtime, NULL), NBL_OK, "runtime_destroy");
}

Test(plugins, newer_plugin_with_more_slots)
{
    nbl_runtime *runtime;
    nbl_device *device = open_mock("newer", "newer", &runtime);
    nbl_caps caps = NBL_INIT(nbl_caps);
    cr_assert_eq(api()->caps(device, &caps, NULL), NBL_OK, "caps");
    cr_assert_str_eq(caps.device_name, "newer 0", "the device calls itself %s", caps.device_name);
    close_mock(runtime, device);
}

/* Its table ends before the optional slots. */
Test(plugins, older_plugin_with_fewer_slots)
{
    nbl_runtime *runtime;
    nbl_device *device = open_mock("older", "older", &runtime);
    float in[16] = {0}, out = 1;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_merge_args args = NBL_INIT(nbl_merge_args);
    args.count = 1;
    args.in_o = (nbl_tensor){.data = in, .dtype = NBL_F32, .rank = 4, .shape = {1, 1, 1, 16}};
    args.in_lse = (nbl_tensor){.data = in, .dtype = NBL_F32, .rank = 3, .shape = {1, 1, 1}};
    args.lse = (nbl_tensor){.data = &out, .dtype = NBL_F32, .rank = 2, .shape = {1, 1}};
    cr_assert_eq(api()->merge(device, &args, &err), NBL_E_UNSUPPORTED, "merge: %s", err.message);
    cr_assert_str_eq(err.message, "nibble: the backend has no merge", "message is %s", err.message);
    close_mock(runtime, device);
}

/* ------------------------------------------------------------------------------------------------ lies */

Test(plugins, answers_another_major)
{
    expect_mock_refusal("lie_major", "lie", NBL_E_ABI,
                        "FILE speaks backend ABI 2.0 to 2.0, this runtime speaks 1.0 to 1.1; update libnibble or the "
                        "backend");
}

Test(plugins, answers_a_minor_not_offered)
{
    expect_mock_refusal("lie_minor", "lie", NBL_E_ABI,
                        "FILE speaks backend ABI 1.5 to 1.5, this runtime speaks 1.0 to 1.1; update libnibble or the "
                        "backend");
}

Test(plugins, table_of_another_minor)
{
    expect_mock_refusal("lie_table_minor", "lie", NBL_E_BACKEND,
                        "FILE agrees on minor 0, but its table says abi_minor 7");
}

Test(plugins, answers_other_numerics)
{
    char text[128];
    (void)snprintf(text, sizeof text, "FILE implements numerics 78, runtime needs %u (results would differ)",
                   NBL_NUMERICS_VERSION);
    expect_mock_refusal("lie_numerics", "lie", NBL_E_ABI, text);
}

Test(plugins, wrong_name)
{
    expect_mock_refusal("lie_name", "lie", NBL_E_BACKEND, "FILE calls itself \"other\", its file is named for \"lie\"");
}

Test(plugins, no_name)
{
    expect_mock_refusal("null_name", "lie", NBL_E_BACKEND, "FILE: nbl_backend_v1.name is NULL");
}

Test(plugins, table_of_size_zero)
{
    expect_mock_refusal("size_zero", "lie", NBL_E_ABI,
                        "FILE: nbl_backend_v1.struct_size is 0, allowed are 96 to 65536");
}

Test(plugins, table_of_huge_size)
{
    expect_mock_refusal("size_huge", "lie", NBL_E_ABI,
                        "FILE: nbl_backend_v1.struct_size is 4294967295, allowed are 96 to 65536");
}

Test(plugins, required_slot_missing)
{
    expect_mock_refusal("null_slot", "lie", NBL_E_BACKEND, "FILE: required slot nbl_backend_v1.workspace_size is NULL");
}

Test(plugins, ok_without_a_table)
{
    expect_mock_refusal("null_table", "lie", NBL_E_BACKEND, "FILE answers NBL_OK without a table");
}

Test(plugins, refuses_with_a_reason)
{
    expect_mock_refusal("refuses", "refuses", NBL_E_UNSUPPORTED,
                        "FILE refuses to work (NBL_E_UNSUPPORTED): not on a Sunday");
}

Test(plugins, ok_without_a_device)
{
    const nbl_load_options options = options_of("null", PLUGINS "/null_device");
    nbl_runtime *runtime = expect_load(&options);
    nbl_device *device = NULL;
    nbl_error err = NBL_INIT(nbl_error);
    cr_assert_eq(api()->open(runtime, NULL, &device, &err), NBL_E_BACKEND, "open: %s", err.message);
    cr_assert_str_eq(err.message, "nibble: backend \"null\" answers NBL_OK without a device", "message is %s",
                     err.message);
    cr_assert_null(device, "open wrote out_device although it failed");
    cr_assert_eq(api()->runtime_destroy(runtime, NULL), NBL_OK, "runtime_destroy");
}

/* ------------------------------------------------------------------------------------------------ symbols */

Test(plugins, no_entry)
{
    expect_mock_refusal("no_entry", "noentry", NBL_E_BACKEND, "FILE does not export nbl_backend_entry_v1");
}

Test(plugins, entry_in_a_dependency)
{
    expect_mock_refusal("entry_elsewhere", "elsewhere", NBL_E_BACKEND,
                        "FILE does not export nbl_backend_entry_v1 itself; it comes from " PLUGINS
                        "/entry_elsewhere/libmock_entry_elsewhere_helper.so");
}

Test(plugins, undefined_symbol)
{
    expect_mock_refusal("undefined", "undefined", NBL_E_BACKEND, "FILE: undefined symbol: mock_defined_nowhere");
}

Test(plugins, missing_dependency)
{
    expect_mock_refusal("missing", "missing", NBL_E_BACKEND,
                        "FILE found, but its dependency libmock_missing_helper.so was not: libmock_missing_helper.so: "
                        "cannot open shared object file: No such file or directory");
}
