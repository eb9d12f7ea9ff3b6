/* SPDX-License-Identifier: Apache-2.0 */
/* A plugin of an engine, opened RTLD_LOCAL, that finds nibble for itself, from two threads at the same time. */
#include <pthread.h>

#include "nibble/nibble_client.h"

__attribute__((visibility("default"))) int engine_plugin_run(const char *library);

static const char *path;

static void *open_and_close(void *out_api)
{
    nbl_client client;
    nbl_error err = NBL_INIT(nbl_error);
    if (nbl_client_open(&client, path, &err) != NBL_OK || nbl_client_device(&client, "sim", &err) != NBL_OK)
        return "open";
    *(const nbl_api_v1 **)out_api = client.api;
    return nbl_client_close(&client, &err) == NBL_OK ? NULL : "close";
}

int engine_plugin_run(const char *library)
{
    pthread_t threads[2];
    const nbl_api_v1 *tables[2] = {NULL, NULL};
    int bad = 0;
    path = library;
    for (int i = 0; i < 2; i++)
        bad |= pthread_create(&threads[i], NULL, open_and_close, &tables[i]) != 0;
    for (int i = 0; i < 2; i++) {
        void *failed = NULL;
        bad |= pthread_join(threads[i], &failed) != 0 || failed;
    }
    return bad || tables[0] != tables[1];
}
