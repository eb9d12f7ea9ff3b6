/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file fixture.h
 * @brief What the loader tests share: a clean environment, folders of plugin files, and exact expectations.
 */
#ifndef FIXTURE_H
#define FIXTURE_H

#include <criterion/criterion.h>

#include "nibble/nibble.h"
#include "nibble/nibble_backend.h"

/** The application table. */
const nbl_api_v1 *api(void);

/** Unsets every NIBBLE_ variable; each test is a process of its own and the loader has read nothing yet. */
void clean_env(void);

/** Load options for backend in backend_dir (either may be NULL). */
nbl_load_options options_of(const char *backend, const char *backend_dir);

/** Loads and expects success; the caller destroys the runtime. */
nbl_runtime *expect_load(const nbl_load_options *options);

/** Loads and expects a status and exactly this text (after "nibble: ") in the error and the last attempt of the report,
 *  then expects that a good backend still loads, opens and closes. */
__attribute__((format(printf, 3, 4))) void expect_refusal(const nbl_load_options *options, nbl_status status,
                                                          const char *format, ...);

/** expect_refusal for NAME in the folder of a mock, with "FILE" in the text standing for the path of the file. */
void expect_mock_refusal(const char *folder, const char *name, nbl_status status, const char *text_with_file);

/** Expects that a good backend loads, opens and closes. */
void expect_usable(void);

/** A new empty directory, mode 0700; removed when the process of the test is done with it by remove_folder. */
char *make_folder(void);
void remove_folder(char *folder);

/** folder/libnibble-backend-NAME.so.1; a static buffer. */
const char *file_in(const char *folder, const char *name);

/** The bytes of a mock plugin. */
typedef struct file_bytes {
    unsigned char *data;
    size_t count;
} file_bytes;

file_bytes read_mock(const char *folder, const char *name);

/** Writes bytes as folder/libnibble-backend-NAME.so.1. */
void write_plugin(const char *folder, const char *name, const void *data, size_t count);

#endif
