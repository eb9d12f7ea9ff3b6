/* SPDX-License-Identifier: Apache-2.0 */
/* Names, paths and directories that are refused before any file is opened, and the order of the search. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fixture.h"

TestSuite(names, .init = clean_env, .timeout = 60);

Test(names, misspelt_name_in_the_environment)
{
    cr_assert_eq(setenv("NIBBLE_BACKEND", "cudaa", 1), 0, "setenv");
    expect_refusal(NULL, NBL_E_ENV, "unknown backend \"cudaa\" in NIBBLE_BACKEND (known: cuda, sim)");
}

Test(names, misspelt_name_of_the_caller)
{
    const nbl_load_options options = options_of("simm", NULL);
    expect_refusal(&options, NBL_E_NOT_FOUND,
                   "unknown backend \"simm\" in nbl_load_options.backend (known: cuda, sim)");
}

Test(names, misspelt_name_after_a_good_one)
{
    const nbl_load_options options = options_of("mock,simm", PLUGINS "/good");
    expect_refusal(&options, NBL_E_NOT_FOUND,
                   "unknown backend \"simm\" in nbl_load_options.backend (known: cuda, sim)");
}

Test(names, empty_variable)
{
    cr_assert_eq(setenv("NIBBLE_BACKEND", "", 1), 0, "setenv");
    expect_refusal(NULL, NBL_E_ENV, "NIBBLE_BACKEND is set but empty; unset it or name a backend");
}

Test(names, texts_that_are_no_name)
{
    static const char *const texts[] = {"Sim",         "sim ", " sim",  "sim-2", "sim.so",
                                        "si\xc3\xa4m", "..",   "sim;x", "\x7f",  "a23456789_123456789_123456789_123"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const nbl_load_options options = options_of(texts[i], NULL);
        char shown[64];
        (void)snprintf(shown, sizeof shown, "%s", texts[i][0] == 0x7f ? "?" : texts[i]);
        expect_refusal(&options, NBL_E_INVALID,
                       "nbl_load_options.backend: \"%s\" is not a backend name; 1 to 32 of a-z, 0-9 and _ are allowed",
                       shown);
    }
}

Test(names, name_of_32_bytes_is_a_name)
{
    const nbl_load_options options = options_of("a23456789_123456789_123456789_12", NULL);
    expect_refusal(
        &options, NBL_E_NOT_FOUND,
        "unknown backend \"a23456789_123456789_123456789_12\" in nbl_load_options.backend (known: cuda, sim)");
}

Test(names, empty_part_of_a_list)
{
    static const char *const texts[] = {",", "sim,", ",sim", "sim,,cuda"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const nbl_load_options options = options_of(texts[i], NULL);
        expect_refusal(&options, NBL_E_INVALID,
                       "nbl_load_options.backend: \"\" is not a backend name; 1 to 32 of a-z, 0-9 and _ are allowed");
    }
}

Test(names, nine_names)
{
    const nbl_load_options options = options_of("sim,sim,sim,sim,sim,sim,sim,sim,sim", NULL);
    expect_refusal(&options, NBL_E_INVALID, "nbl_load_options.backend: more than 8 names");
}

Test(names, relative_path)
{
    cr_assert_eq(setenv("NIBBLE_BACKEND", "good/libnibble-backend-mock.so.1", 1), 0, "setenv");
    cr_assert_eq(chdir(PLUGINS), 0, "chdir");
    expect_refusal(
        NULL, NBL_E_ENV,
        "NIBBLE_BACKEND: \"good/libnibble-backend-mock.so.1\" is a relative path; give a name or one absolute "
        "path");
}

Test(names, path_of_5000_bytes)
{
    char path[5001];
    memset(path, 'a', sizeof path - 1);
    path[0] = '/';
    path[sizeof path - 1] = '\0';
    cr_assert_eq(setenv("NIBBLE_BACKEND", path, 1), 0, "setenv");
    expect_refusal(NULL, NBL_E_ENV, "NIBBLE_BACKEND has 5000 bytes, at most 4095 are allowed");
}

Test(names, path_with_another_file_name)
{
    static const char *const files[] = {"libc.so.6",
                                        "libnibble-backend-sim.so",
                                        "libnibble-backend-sim.so.2",
                                        "libnibble-backend-.so.1",
                                        "libnibble-backend-Sim.so.1",
                                        ""};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[128];
        (void)snprintf(path, sizeof path, "/usr/lib/%s", files[i]);
        const nbl_load_options options = options_of(path, NULL);
        expect_refusal(&options, NBL_E_INVALID,
                       "nbl_load_options.backend: the file is \"%s\"; a backend is named libnibble-backend-NAME.so.1",
                       files[i]);
    }
}

Test(names, path_that_does_not_exist)
{
    const nbl_load_options options = options_of("/nowhere/libnibble-backend-sim.so.1", NULL);
    expect_refusal(&options, NBL_E_IO, "cannot open /nowhere/libnibble-backend-sim.so.1: No such file or directory");
}

Test(names, path_with_a_line_break_stays_one_line)
{
    const nbl_load_options options = options_of("/no\nwhere/libnibble-backend-sim.so.1", NULL);
    expect_refusal(&options, NBL_E_IO, "cannot open /no?where/libnibble-backend-sim.so.1: No such file or directory");
}

Test(names, absolute_path)
{
    cr_assert_eq(setenv("NIBBLE_BACKEND", PLUGINS "/good/libnibble-backend-mock.so.1", 1), 0, "setenv");
    nbl_runtime *runtime = expect_load(NULL);
    cr_assert_eq(api()->runtime_destroy(runtime, NULL), NBL_OK, "runtime_destroy");
}

Test(names, default_is_cuda_and_nothing_else)
{
    char *folder = make_folder();
    cr_assert_eq(setenv("NIBBLE_BACKEND_DIR", folder, 1), 0, "setenv");
    expect_refusal(NULL, NBL_E_NOT_FOUND,
                   "backend \"cuda\": no libnibble-backend-cuda.so.1 in: %s; set NIBBLE_BACKEND=sim for the CPU",
                   folder);
    remove_folder(folder);
}

Test(names, directories_in_order)
{
    char *folder = make_folder();
    nbl_load_options options = options_of("sim", folder);
    cr_assert_eq(setenv("NIBBLE_BACKEND_DIR", PLUGINS "/nodevice", 1), 0, "setenv");
    expect_refusal(&options, NBL_E_NOT_FOUND, "backend \"sim\": no libnibble-backend-sim.so.1 in: %s, %s", folder,
                   PLUGINS "/nodevice");
    remove_folder(folder);
}

Test(names, directory_of_the_caller_goes_first)
{
    cr_assert_eq(setenv("NIBBLE_BACKEND_DIR", PLUGINS "/nodevice", 1), 0, "setenv");
    const nbl_load_options options = options_of("mock", PLUGINS "/good");
    nbl_runtime *runtime = expect_load(&options);
    cr_assert_eq(api()->runtime_destroy(runtime, NULL), NBL_OK, "runtime_destroy");
}

Test(names, first_file_decides_even_if_bad)
{
    char *folder = make_folder();
    write_plugin(folder, "mock", "", 0);
    cr_assert_eq(setenv("NIBBLE_BACKEND_DIR", PLUGINS "/good", 1), 0, "setenv");
    const nbl_load_options options = options_of("mock", folder);
    expect_refusal(&options, NBL_E_BACKEND, "%s is empty (0 bytes)", file_in(folder, "mock"));
    remove_folder(folder);
}

Test(names, working_directory_is_never_searched)
{
    char *folder = make_folder();
    cr_assert_eq(chdir(PLUGINS "/nodevice"), 0, "chdir");
    cr_assert_eq(setenv("NIBBLE_BACKEND_DIR", folder, 1), 0, "setenv");
    expect_refusal(NULL, NBL_E_NOT_FOUND,
                   "backend \"cuda\": no libnibble-backend-cuda.so.1 in: %s; set NIBBLE_BACKEND=sim for the CPU",
                   folder);
    remove_folder(folder);
}

Test(names, directory_of_the_environment_must_be_absolute)
{
    cr_assert_eq(setenv("NIBBLE_BACKEND_DIR", "plugins", 1), 0, "setenv");
    expect_refusal(NULL, NBL_E_ENV, "NIBBLE_BACKEND_DIR is \"plugins\"; an absolute directory is needed");
}

Test(names, directory_of_the_caller_must_be_absolute)
{
    const nbl_load_options options = options_of(NULL, "");
    expect_refusal(&options, NBL_E_INVALID, "nbl_load_options.backend_dir is \"\"; an absolute directory is needed");
}
