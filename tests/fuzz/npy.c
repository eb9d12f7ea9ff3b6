/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a .npy file: what is accepted ends where the input ends. */
#include "fuzz.h"

#include <npy.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nbl_array array;
    nbl_fault fault = {""};
    if (nbl_npy_parse("input", data, size, &array, &fault) != NBL_EXIT_OK) {
        FUZZ_REQUIRE(fault.text[0] != '\0');
        return 0;
    }
    FUZZ_REQUIRE(array.rank <= NBL_RANK_MAX);
    FUZZ_REQUIRE(array.data > data && array.data + array.count * nbl_dtype_bytes(array.dtype) == data + size);
    float *values = malloc(array.count ? array.count * sizeof *values : 1);
    FUZZ_REQUIRE(values != NULL);
    nbl_array_to_f32(&array, values);
    free(values);
    return 0;
}
