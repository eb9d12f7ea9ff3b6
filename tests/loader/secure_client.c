/* SPDX-License-Identifier: Apache-2.0 */
/* Loads the backend "mock" from the directory in its argument and prints the result and every attempt, one a line.
 * Exits with 77 if it has no raised privileges. */
#include <stdio.h>
#include <sys/auxv.h>

#include "nibble/nibble.h"

static void discard(void *user, uint32_t level, const char *message)
{
    (void)user;
    (void)level;
    (void)message;
}

int main(int argc, char **argv)
{
    if (getauxval(AT_SECURE) == 0)
        return 77;
    const nbl_api_v1 *api = NULL;
    if (argc != 2 || nbl_get_api(NULL, &api, NULL) != NBL_OK)
        return 1;
    nbl_load_options options = NBL_INIT(nbl_load_options);
    options.backend = "mock";
    options.backend_dir = argv[1];
    options.log = discard;
    nbl_runtime *runtime = NULL;
    nbl_report *report = NULL;
    const nbl_status status = api->load(&options, &runtime, &report, NULL);
    (void)printf("%s\n", api->status_name(status));
    for (uint32_t i = 0; i < api->report_count(report); i++) {
        nbl_load_attempt attempt = NBL_INIT(nbl_load_attempt);
        if (api->report_get(report, i, &attempt, NULL) == NBL_OK)
            (void)printf("%s\n", attempt.message);
    }
    api->report_free(report);
    return status == NBL_OK ? api->runtime_destroy(runtime, NULL) : 0;
}
