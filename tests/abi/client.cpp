/* SPDX-License-Identifier: Apache-2.0 */
/* A C++17 program that uses the application ABI: initialisers, load, open, capabilities. Exits with the failing step. */
#include <cstdio>
#include <cstring>

#include "nibble/nibble.h"
#include "nibble/nibble_asserts.h"

static int run(const nbl_api_v1 &api, nbl_error *err)
{
    nbl_load_options options = NBL_INIT(nbl_load_options);
    options.flags = NBL_LOAD_IGNORE_ENV;
    options.backend = "mock";
    options.backend_dir = PLUGINS "/good";
    nbl_runtime *runtime = nullptr;
    if (api.load(&options, &runtime, nullptr, err) != NBL_OK)
        return 2;
    nbl_device *device = nullptr;
    if (api.open(runtime, nullptr, &device, err) != NBL_OK)
        return 3;
    auto caps = NBL_INIT(nbl_caps);
    if (api.caps(device, &caps, err) != NBL_OK || std::strcmp(caps.device_name, "mock 0") != 0)
        return 4;
    if (api.close(device, err) != NBL_OK || api.runtime_destroy(runtime, err) != NBL_OK)
        return 5;
    return 0;
}

int main()
{
    static_assert(NBL_E_ENV == -15, "status values are the same in C++");
    const nbl_attend_args zero = NBL_INIT(nbl_attend_args);
    if (zero.struct_size != sizeof zero || zero.flags != 0 || zero.pool != nullptr || zero.sm_scale != 0)
        return 1;
    nbl_error err = NBL_INIT(nbl_error);
    const nbl_api_v1 *api = nullptr;
    if (nbl_get_api(nullptr, &api, &err) != NBL_OK)
        return 1;
    const int step = run(*api, &err);
    if (step != 0)
        std::fprintf(stderr, "step %d: %s\n", step, err.message);
    return step;
}
