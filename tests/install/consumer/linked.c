/* SPDX-License-Identifier: Apache-2.0 */
/* Links libnibble, loads "sim" and prints which file it came from, or the message. */
#include <nibble/nibble.h>
#include <stdio.h>

int main(void)
{
    const nbl_api_v1 *api = NULL;
    nbl_runtime *runtime = NULL;
    nbl_report *report = NULL;
    nbl_error err = NBL_INIT(nbl_error);
    nbl_load_options options = NBL_INIT(nbl_load_options);
    nbl_load_attempt attempt = NBL_INIT(nbl_load_attempt);
    options.backend = "sim";
    if (nbl_get_api(NULL, &api, &err) || api->load(&options, &runtime, &report, &err)) {
        puts(err.message);
        return 1;
    }
    if (api->report_get(report, 0, &attempt, &err) == NBL_OK)
        puts(attempt.path);
    api->report_free(report);
    return api->runtime_destroy(runtime, &err);
}
