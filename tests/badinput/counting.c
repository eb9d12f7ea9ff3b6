/* SPDX-License-Identifier: Apache-2.0 */
#include "counting.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <string.h>

counting counting_open(void)
{
    counting c = {0};
    nbl_error err = NBL_INIT(nbl_error);
    nbl_load_options load = NBL_INIT(nbl_load_options);
    nbl_device_options options = NBL_INIT(nbl_device_options);
    load.flags = NBL_LOAD_IGNORE_ENV;
    load.backend = "counting";
    load.backend_dir = COUNTING_DIR;
    cr_assert_eq(nbl_get_api(NULL, &c.api, &err), NBL_OK, "get_api: %s", err.message);
    cr_assert_eq(c.api->load(&load, &c.runtime, NULL, &err), NBL_OK, "load: %s", err.message);
    cr_assert_eq(c.api->open(c.runtime, &options, &c.device, &err), NBL_OK, "open: %s", err.message);
    void *file = dlopen(COUNTING_DIR "/libnibble-backend-counting.so.1", RTLD_NOW | RTLD_NOLOAD);
    cr_assert(file != NULL, "the backend is not loaded");
    counting_state *(*get)(void);
    void *symbol = dlsym(file, "counting_state_get");
    cr_assert(symbol != NULL, "the backend does not show its state");
    memcpy(&get, &symbol, sizeof get);
    c.state = get();
    return c;
}

void counting_close(counting *c)
{
    nbl_error err = NBL_INIT(nbl_error);
    cr_assert_eq(c->api->close(c->device, &err), NBL_OK, "close: %s", err.message);
    cr_assert_eq(c->api->runtime_destroy(c->runtime, &err), NBL_OK, "runtime_destroy: %s", err.message);
}
