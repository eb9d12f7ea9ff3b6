/* SPDX-License-Identifier: Apache-2.0 */
#include "fixture.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const nbl_api_v1 *api(void)
{
    const nbl_api_v1 *table = NULL;
    cr_assert_eq(nbl_get_api(NULL, &table, NULL), NBL_OK, "nbl_get_api gives no table");
    return table;
}

void clean_env(void)
{
    static const char *const names[] = {"NIBBLE_BACKEND",     "NIBBLE_BACKEND_DIR", "NIBBLE_LOG",
                                        "NIBBLE_SIM_THREADS", "NIBBLE_SIM_ISA",     "NIBBLE_SIM_PROFILE"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        cr_assert_eq(unsetenv(names[i]), 0, "cannot unset %s", names[i]);
}

nbl_load_options options_of(const char *backend, const char *backend_dir)
{
    nbl_load_options options = NBL_INIT(nbl_load_options);
    options.backend = backend;
    options.backend_dir = backend_dir;
    return options;
}

nbl_runtime *expect_load(const nbl_load_options *options)
{
    nbl_error err = NBL_INIT(nbl_error);
    nbl_runtime *runtime = NULL;
    const nbl_status status = api()->load(options, &runtime, NULL, &err);
    cr_assert_eq(status, NBL_OK, "load gives %s: %s", api()->status_name(status), err.message);
    cr_assert_not_null(runtime, "load gives NBL_OK without a runtime");
    return runtime;
}

void expect_usable(void)
{
    nbl_load_options options = options_of("mock", PLUGINS "/good");
    options.flags = NBL_LOAD_IGNORE_ENV;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_runtime *runtime = expect_load(&options);
    nbl_device *device = NULL;
    cr_assert_eq(api()->open(runtime, NULL, &device, &err), NBL_OK, "open fails: %s", err.message);
    cr_assert_eq(api()->close(device, &err), NBL_OK, "close fails: %s", err.message);
    cr_assert_eq(api()->runtime_destroy(runtime, &err), NBL_OK, "runtime_destroy fails: %s", err.message);
}

static void expect_last_attempt(const nbl_report *report, nbl_status status, const char *message)
{
    nbl_load_attempt attempt = NBL_INIT(nbl_load_attempt);
    const uint32_t count = api()->report_count(report);
    cr_assert_gt(count, 0, "the report is empty");
    cr_assert_eq(api()->report_get(report, count - 1, &attempt, NULL), NBL_OK, "report_get fails");
    cr_assert_eq(attempt.status, status, "the report says %s", api()->status_name(attempt.status));
    cr_assert_str_eq(attempt.message, message, "the report says: %s", attempt.message);
}

void expect_refusal(const nbl_load_options *options, nbl_status status, const char *format, ...)
{
    char text[6000] = "nibble: ";
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text + strlen(text), sizeof text - strlen(text), format, arguments);
    va_end(arguments);
    nbl_error err = NBL_INIT(nbl_error);
    const int cut = strlen(text) >= sizeof err.message;
    text[sizeof err.message - 1] = '\0';

    nbl_runtime *const poison = (nbl_runtime *)&err;
    nbl_runtime *runtime = poison;
    nbl_report *report = NULL;
    const nbl_status got = api()->load(options, &runtime, &report, &err);
    cr_assert_str_eq(err.message, text, "message is\n%s\nnot\n%s", err.message, text);
    cr_assert_eq(got, status, "load gives %s, not %s", api()->status_name(got), api()->status_name(status));
    cr_assert_eq(err.status, status, "err.status is %d", err.status);
    cr_assert_eq(err.truncated, (uint32_t)cut, "err.truncated is %u", err.truncated);
    cr_assert_eq(runtime, poison, "load wrote out_runtime although it failed");
    cr_assert_not_null(report, "load gives no report");
    expect_last_attempt(report, status, text);
    api()->report_free(report);
    expect_usable();
}

void expect_mock_refusal(const char *folder, const char *name, nbl_status status, const char *text_with_file)
{
    char directory[1024], text[8192];
    (void)snprintf(directory, sizeof directory, PLUGINS "/%s", folder);
    const char *mark = strstr(text_with_file, "FILE");
    cr_assert_not_null(mark, "the text does not name the file");
    (void)snprintf(text, sizeof text, "%.*s%s%s", (int)(mark - text_with_file), text_with_file,
                   file_in(directory, name), mark + strlen("FILE"));
    const nbl_load_options options = options_of(name, directory);
    expect_refusal(&options, status, "%s", text);
}

char *make_folder(void)
{
    char *folder = strdup("/tmp/nibble-loader-XXXXXX");
    cr_assert(folder && mkdtemp(folder), "cannot make a temporary directory");
    return folder;
}

void remove_folder(char *folder)
{
    char command[256];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
    cr_assert_eq(system(command), 0, "cannot remove %s", folder);
    free(folder);
}

const char *file_in(const char *folder, const char *name)
{
    static char path[2048];
    (void)snprintf(path, sizeof path, "%s/libnibble-backend-%s.so.1", folder, name);
    return path;
}

file_bytes read_mock(const char *folder, const char *name)
{
    char directory[1024];
    (void)snprintf(directory, sizeof directory, PLUGINS "/%s", folder);
    FILE *file = fopen(file_in(directory, name), "rb");
    cr_assert_not_null(file, "no mock %s", file_in(directory, name));
    file_bytes bytes = {malloc(1 << 20), 0};
    cr_assert_not_null(bytes.data, "no memory");
    bytes.count = fread(bytes.data, 1, 1 << 20, file);
    cr_assert(bytes.count > 0 && bytes.count < 1 << 20, "mock has %zu bytes", bytes.count);
    (void)fclose(file);
    return bytes;
}

void write_plugin(const char *folder, const char *name, const void *data, size_t count)
{
    FILE *file = fopen(file_in(folder, name), "wb");
    cr_assert_not_null(file, "cannot write %s", file_in(folder, name));
    cr_assert_eq(fwrite(data, 1, count, file), count, "cannot write %s", file_in(folder, name));
    cr_assert_eq(fclose(file), 0, "cannot write %s", file_in(folder, name));
}
