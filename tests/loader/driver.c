/* SPDX-License-Identifier: Apache-2.0 */
/* The real CUDA backend on a machine without a driver: loading works, opening says why not, with the driver's code. */
#include <string.h>
#include <unistd.h>

#include "fixture.h"

TestSuite(driver, .init = clean_env, .timeout = 60);

Test(driver, none)
{
    if (access(LIBRARY_DIR "/nibble/libnibble-backend-cuda.so.1", F_OK) != 0)
        cr_skip_test("the CUDA backend was not built");
    if (access("/proc/driver/nvidia/version", F_OK) == 0)
        cr_skip_test("this machine has an NVIDIA driver");
    const nbl_load_options options = options_of("cuda", LIBRARY_DIR "/nibble");
    nbl_runtime *runtime = expect_load(&options);
    nbl_device *device = NULL;
    nbl_error err = NBL_INIT(nbl_error);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(api()->open(runtime, NULL, &device, &err), NBL_E_DEVICE, "open: %s", err.message);
        cr_assert_not_null(strstr(err.message, "nibble: cuda: no NVIDIA driver (cudart "), "message is %s",
                           err.message);
        cr_assert_eq(err.native_code, 35, "native code is %d", err.native_code);
    }
    cr_assert_eq(api()->runtime_destroy(runtime, NULL), NBL_OK, "runtime_destroy");
    expect_usable();
}
