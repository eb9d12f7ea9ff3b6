/* SPDX-License-Identifier: Apache-2.0 */
/* `nibble doctor` where something is wrong: each line says what, and a line that is not "ok" says what to do. */
#include "harness.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Every line has the form "verdict  topic: text", and more than a word after " -> " unless all is well. */
static void expect_actionable(const char *output)
{
    static const char *const verdicts[] = {"ok    ", "warn  ", "fail  "};
    for (const char *line = output, *end; *line; line = end + 1) {
        end = strchr(line, '\n');
        cr_assert(end != NULL, "the last line does not end: %s", line);
        char text[2048];
        snprintf(text, sizeof text, "%.*s", (int)(end - line), line);
        const char *topic = strstr(text, ": "), *fix = strstr(text, " -> ");
        int verdict = 0;
        while (verdict < 3 && strncmp(text, verdicts[verdict], 6) != 0)
            verdict++;
        cr_assert(verdict < 3 && topic != NULL && topic[2] != '\0', "no verdict, topic and text: %s", text);
        cr_assert(verdict == 0 || (fix != NULL && strchr(fix + 4, ' ') != NULL), "nothing to do about it: %s", text);
    }
}

/* The tool with this directory of backends, and the line it must print. */
static void expect_line(const char *folder, const char *backend, int exit_code, const char *line)
{
    char choice[64];
    snprintf(choice, sizeof choice, "NIBBLE_BACKEND=%s", backend);
    const char *const variables[] = {choice, NULL};
    tool_result result = tool_run(variables, (const char *const[]){"doctor", "--backend-dir", folder, NULL});
    cr_assert(result.err[0] == '\0', "stderr: %s", result.err);
    expect_actionable(result.out);
    cr_assert(strstr(result.out, line) != NULL, "no line\n%s\nin\n%s", line, result.out);
    cr_assert(result.exit_code == exit_code, "exit %d:\n%s", result.exit_code, result.out);
    tool_free(&result);
}

/* sim works; cuda is one of the mocks. */
static void expect_cuda(const char *folder, const char *text, const char *fix)
{
    char line[2048];
    snprintf(line, sizeof line, "\nwarn  cuda: " PLUGINS "/%s/libnibble-backend-cuda.so.1: %s -> %s\n", folder, text,
             fix);
    char mocks[1024];
    snprintf(mocks, sizeof mocks, PLUGINS "/%s", folder);
    expect_line(mocks, "sim", 0, line);
}

Test(doctor, no_driver)
{
    expect_cuda("no_driver", "cuda: no NVIDIA driver (cudart 13.0, driver 0)",
                "install the NVIDIA driver, or use --backend sim");
}

Test(doctor, stub_driver)
{
    expect_cuda("stub_driver", "cuda: the libcuda found is that of the toolkit, not the driver's (34)",
                "take the CUDA toolkit's stand-in for libcuda out of LD_LIBRARY_PATH, or use --backend sim");
}

Test(doctor, old_driver)
{
    expect_cuda("old_driver", "cuda: driver too old (cudart 13.0, driver for CUDA 12.2)",
                "update the NVIDIA driver, or use --backend sim");
}

Test(doctor, hidden_device)
{
    expect_cuda("hidden_device", "cuda: no device visible (CUDA_VISIBLE_DEVICES=\"\")",
                "make a GPU visible (CUDA_VISIBLE_DEVICES, container runtime), or use --backend sim");
}

/* The chosen backend cannot be opened: that is a failure, not a warning. */
Test(doctor, chosen_backend_without_a_device)
{
    expect_line(
        PLUGINS "/no_driver", "cuda", 1,
        "\nfail  default backend: cuda loads but cannot be opened: cuda: no NVIDIA driver (cudart 13.0, driver 0) "
        "-> set NIBBLE_BACKEND=sim or use --backend sim\n");
}

/* ------------------------------------------------------------------------------------------------ broken files */

static char directory[256];

/* A scratch directory with these bytes as the simulator. */
static void make_sim(const void *bytes, size_t size)
{
    const char *path = scratch("libnibble-backend-sim.so.1");
    write_bytes(path, bytes, size);
    cr_assert(chmod(path, 0644) == 0, "chmod");
    snprintf(directory, sizeof directory, "%s", path);
    *strrchr(directory, '/') = '\0';
}

static void expect_sim(const char *text, const char *fix)
{
    char line[2048];
    snprintf(line, sizeof line, "\nfail  sim: %s%s -> %s\n", directory, text, fix);
    expect_line(directory, "sim", 1, line);
}

/* NIBBLE_BACKEND_DIR takes the place of the directories beside the library: a file there is not found by anybody. */
Test(doctor, directory_without_the_file)
{
    char line[2048];
    const char *path = scratch("nothing");
    snprintf(directory, sizeof directory, "%s", path);
    *strrchr(directory, '/') = '\0';
    cr_assert(setenv("NIBBLE_BACKEND_DIR", directory, 1) == 0, "setenv");
    snprintf(line, sizeof line, "\nfail  sim: backend \"sim\": no libnibble-backend-sim.so.1 in: %s -> ", directory);
    tool_result result = tool_run(NULL, (const char *const[]){"doctor", NULL});
    expect_actionable(result.out);
    cr_assert(strstr(result.out, line) != NULL, "no line\n%s\nin\n%s", line, result.out);
    cr_assert(result.exit_code == 1, "exit %d", result.exit_code);
    tool_free(&result);
    snprintf(line, sizeof line, "\nbackend  sim    NBL_E_NOT_FOUND (find)\n         backend \"sim\": no ");
    result = tool_run(NULL, (const char *const[]){"info", NULL});
    cr_assert(strstr(result.out, line) != NULL, "no line\n%s\nin\n%s", line, result.out);
    tool_free(&result);
}

Test(doctor, truncated_file)
{
    size_t size;
    uint8_t *bytes = read_bytes(PLUGINS "/sim/libnibble-backend-sim.so.1", &size);
    char text[256];
    make_sim(bytes, size - 1);
    snprintf(text, sizeof text,
             "/libnibble-backend-sim.so.1: truncated (the section table ends at %zu, file has %zu bytes)", size,
             size - 1);
    expect_sim(text, "copy or install the file again: it is not whole");
    free(bytes);
}

Test(doctor, empty_file)
{
    make_sim("", 0);
    expect_sim("/libnibble-backend-sim.so.1 is empty (0 bytes)", "copy or install the file again: it is not whole");
}

Test(doctor, file_that_is_something_else)
{
    make_sim("#!/bin/sh\n", 10);
    expect_sim("/libnibble-backend-sim.so.1 is not an ELF file",
               "reinstall; runtime, backend and the libraries it needs do not fit");
}

Test(doctor, directory_that_everyone_can_write)
{
    size_t size;
    uint8_t *bytes = read_bytes(PLUGINS "/sim/libnibble-backend-sim.so.1", &size);
    make_sim(bytes, size);
    cr_assert(chmod(directory, 0777) == 0, "chmod");
    expect_sim(" is writable by everyone (mode 0777); backends are not loaded from there",
               "take that right away (chmod o-w), or install elsewhere and set NIBBLE_BACKEND_DIR");
    free(bytes);
}

/* A file whose dependency, versions or CPU do not fit; the folder of the mock is the directory. */
Test(doctor, file_that_does_not_fit)
{
    size_t size;
    uint8_t *bytes = read_bytes(PLUGINS "/numerics/libnibble-backend-numerics.so.1", &size);
    make_sim(bytes, size);
    expect_line(directory, "sim", 1, "(results would differ) -> install runtime and backends of one version\n");
    free(bytes);
    bytes = read_bytes(PLUGINS "/other_major/libnibble-backend-other.so.1", &size);
    make_sim(bytes, size);
    expect_line(directory, "sim", 1,
                "update libnibble or the backend -> install runtime and backends of one version\n");
    free(bytes);
    bytes = read_bytes(PLUGINS "/missing/libnibble-backend-missing.so.1", &size);
    make_sim(bytes, size);
    expect_line(directory, "sim", 1, "-> install the library named, or put it where ld.so looks\n");
    free(bytes);
}

/* This machine's own CUDA backend, where it was built and there is no driver. */
static void skip_with_driver(void)
{
    if (access(BACKENDS "/libnibble-backend-cuda.so.1", F_OK) != 0)
        cr_skip_test("the CUDA backend was not built");
    if (access("/proc/driver/nvidia/version", F_OK) == 0)
        cr_skip_test("this machine has an NVIDIA driver");
}

Test(doctor, real_backend_without_a_driver)
{
    skip_with_driver();
    expect_line(BACKENDS, "sim", 0, "driver 0) -> install the NVIDIA driver, or use --backend sim\n");
}

/* The toolkit's stand-in has the name and the functions of the driver's library, and does nothing. */
Test(doctor, real_backend_with_a_stub_driver)
{
    skip_with_driver();
    if (access(CUDA_STUB, F_OK) != 0)
        cr_skip_test("there is no stub of libcuda on this machine");
    char variable[512], link[256];
    snprintf(link, sizeof link, "%s", scratch("libcuda.so.1"));
    cr_assert(symlink(CUDA_STUB, link) == 0, "symlink");
    snprintf(variable, sizeof variable, "LD_LIBRARY_PATH=%.*s", (int)(strrchr(link, '/') - link), link);
    tool_result result = tool_run((const char *const[]){"NIBBLE_BACKEND=sim", variable, NULL},
                                  (const char *const[]){"doctor", "--backend-dir", BACKENDS, NULL});
    expect_actionable(result.out);
    cr_assert(strstr(result.out, "(34) -> take the CUDA toolkit's stand-in for libcuda out of LD_LIBRARY_PATH") != NULL,
              "%s", result.out);
    tool_free(&result);
}
