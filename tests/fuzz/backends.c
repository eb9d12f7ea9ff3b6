/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as NIBBLE_BACKEND and NIBBLE_BACKEND_DIR (lines of the input): the search for files, which opens none. */
#include "fuzz.h"

#include <search.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    FUZZ_REQUIRE(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    char *second = strchr(text, '\n');
    if (second)
        *second++ = '\0';
    nbl_env env = {{0}, 0};
    env.value[NBL_ENV_BACKEND] = text;
    env.value[NBL_ENV_BACKEND_DIR] = second;
    nbl_search search;
    memset(&search, 0, sizeof search);
    nbl_log_sink sink = {.level = NBL_LOG_ERROR};
    nbl_error err = NBL_INIT(nbl_error);
    const nbl_status status = nbl_search_run(&search, NULL, NULL, &env, &sink, &err);
    if (status == NBL_OK) {
        FUZZ_REQUIRE(search.count >= 1 && search.count <= NBL_CANDIDATES_MAX);
        for (uint32_t i = 0; i < search.count; i++) {
            const nbl_candidate *candidate = &search.candidate[i];
            FUZZ_REQUIRE(strlen(candidate->name) >= 1 && !strchr(candidate->name, '/'));
            FUZZ_REQUIRE(candidate->path ? candidate->path[0] == '/' : candidate->not_found.status != NBL_OK);
        }
    } else {
        FUZZ_REQUIRE(status == NBL_E_ENV && err.message[0] && strpbrk(err.message, "\n\r") == NULL);
    }
    nbl_search_clear(&search);
    free(text);
    return 0;
}
