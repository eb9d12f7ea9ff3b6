/* SPDX-License-Identifier: Apache-2.0 */
/* Any text in NIBBLE_LOG, NIBBLE_SIM_THREADS and NIBBLE_SIM_ISA (lines of the input, in this order). */
#include "fuzz.h"

#include <env.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint32_t names[] = {NBL_ENV_LOG, NBL_ENV_SIM_THREADS, NBL_ENV_SIM_ISA};
    char *text = malloc(size + 1);
    FUZZ_REQUIRE(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    nbl_env env = {{0}, 0};
    char *line = text;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && line; i++) {
        char *end = strchr(line, '\n');
        if (end)
            *end = '\0';
        env.value[names[i]] = line;
        line = end ? end + 1 : NULL;
    }
    nbl_env_settings settings;
    nbl_error err = NBL_INIT(nbl_error);
    memset(&settings, 0x5a, sizeof settings);
    if (nbl_env_parse(&env, &settings, &err) == NBL_OK) {
        FUZZ_REQUIRE(settings.log_level <= 3);
        FUZZ_REQUIRE(settings.sim_threads <= 1024);
    } else {
        FUZZ_REQUIRE(err.status == NBL_E_ENV && strstr(err.message, "NIBBLE_") != NULL);
        FUZZ_REQUIRE(strpbrk(err.message, "\n\r") == NULL);
    }
    free(text);
    return 0;
}
