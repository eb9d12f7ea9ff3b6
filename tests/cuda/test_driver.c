/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file test_driver.c
 * @brief No driver, and drivers that cannot be used: the tool says which in one line, and goes on to sim where it may.
 *
 * The driver of these tests is fake_driver.c, found through LD_LIBRARY_PATH before any real one.
 */
#include "cli/harness.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

/* Runs a small bench on the backends of a list with a driver that behaves as asked. */
static tool_result run_with(const char *behaviour, const char *backends)
{
    char variable[64];
    snprintf(variable, sizeof variable, "FAKE_CUDA_DRIVER=%s", behaviour);
    return tool_run((const char *const[]){variable, "LD_LIBRARY_PATH=" FAKE_DRIVER_DIR, NULL},
                    (const char *const[]){"bench", "--backend", backends, "--kv", "32", "--d", "16", "--hq", "1",
                                          "--hkv", "1", "--runs", "1", NULL});
}

static void assert_refused(const char *behaviour, const char *words)
{
    tool_result result = run_with(behaviour, "cuda");
    cr_assert(result.exit_code == 3, "%s: exit %d: %s", behaviour, result.exit_code, result.err);
    cr_assert(strstr(result.err, words) != NULL, "%s: wanted \"%s\", got: %s", behaviour, words, result.err);
    cr_assert(strchr(result.err, '\n') == result.err + strlen(result.err) - 1, "%s: not one line: %s", behaviour,
              result.err);
    tool_free(&result);
}

Test(cuda_driver, the_toolkits_stub_is_named)
{
    assert_refused("stub", "cuda: the libcuda found is that of the toolkit, not the driver's (34)");
}

Test(cuda_driver, an_old_driver_is_named_with_both_versions)
{
    assert_refused("old", "driver for CUDA 11.0)");
    assert_refused("old", "cuda: driver too old (cudart ");
}

Test(cuda_driver, no_visible_device_is_named_with_the_variable)
{
    assert_refused("nodevice", "cuda: no device visible (CUDA_VISIBLE_DEVICES=\"\")");
}

Test(cuda_driver, a_driver_that_does_not_start_is_named_with_its_error)
{
    assert_refused("broken", "cuda: cannot count devices: unknown error (999)");
}

/* An empty file is no library: there is no driver, whatever this machine has. */
Test(cuda_driver, no_driver_is_named)
{
    tool_result result =
        tool_run((const char *const[]){"LD_LIBRARY_PATH=" EMPTY_DRIVER_DIR, NULL},
                 (const char *const[]){"bench", "--backend", "cuda", "--kv", "32", "--runs", "1", NULL});
    cr_assert(result.exit_code == 3, "exit %d: %s", result.exit_code, result.err);
    cr_assert(strstr(result.err, "cuda: no NVIDIA driver (cudart ") != NULL, "%s", result.err);
    tool_free(&result);
}

Test(cuda_driver, sim_takes_over_where_the_caller_allows_it)
{
    static const char *const behaviours[] = {"stub", "old", "nodevice", "broken"};
    for (size_t i = 0; i < sizeof behaviours / sizeof behaviours[0]; ++i) {
        tool_result result = run_with(behaviours[i], "cuda,sim");
        cr_assert(result.exit_code == 0, "%s: exit %d: %s", behaviours[i], result.exit_code, result.err);
        cr_assert(strstr(result.out, "attend on sim") != NULL, "%s: %s", behaviours[i], result.out);
        tool_free(&result);
    }
}
