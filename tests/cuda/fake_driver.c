/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file fake_driver.c
 * @brief A libcuda.so.1 that says about itself what FAKE_CUDA_DRIVER asks for, so that machines without a GPU can test
 * what becomes of a driver that cannot be used.
 *
 *     stub      what the toolkit ships to link against: every call is refused
 *     old       a driver for CUDA 11.0
 *     nodevice  a driver that sees no GPU
 *     broken    a driver that fails to start
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, STUB_LIBRARY = 34, NO_DEVICE = 100, NOT_SUPPORTED = 801, UNKNOWN = 999 };

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found);

static int is(const char *what)
{
    const char *asked = getenv("FAKE_CUDA_DRIVER");
    return asked != NULL && strcmp(asked, what) == 0;
}

static int refuse(void)
{
    return is("stub") ? STUB_LIBRARY : NOT_SUPPORTED;
}

static int init(unsigned flags)
{
    (void)flags;
    return is("stub") ? STUB_LIBRARY : is("nodevice") ? NO_DEVICE : is("broken") ? UNKNOWN : SUCCESS;
}

static int driver_version(int *version)
{
    *version = is("old") ? 11000 : 13000;
    return SUCCESS;
}

static const struct {
    const char *name;
    void *function;
} functions[] = {{"cuInit", (void *)init},
                 {"cuDriverGetVersion", (void *)driver_version},
                 {"cuGetProcAddress", (void *)cuGetProcAddress_v2}};

__attribute__((visibility("default"))) int cuGetProcAddress_v2(const char *name, void **function, int version,
                                                               uint64_t flags, int *found)
{
    (void)version;
    (void)flags;
    *function = (void *)refuse;
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; ++i) {
        if (strcmp(name, functions[i].name) == 0) {
            *function = functions[i].function;
        }
    }
    if (found != NULL) {
        *found = 0;
    }
    return SUCCESS;
}

__attribute__((visibility("default"))) int cuInit(unsigned flags)
{
    return init(flags);
}
