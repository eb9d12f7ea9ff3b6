/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a safetensors file: what is accepted must lie inside the input. */
#include "fuzz.h"

#include <safetensors.h>

static void check_tensor(const nbl_safetensors *file, const char *name, const uint8_t *data, size_t size)
{
    nbl_array array;
    nbl_fault fault;
    if (nbl_safetensors_find(file, name, &array, &fault) != NBL_EXIT_OK)
        return;
    uint64_t bytes = array.count * nbl_dtype_bytes(array.dtype);
    FUZZ_REQUIRE(array.rank <= NBL_RANK_MAX);
    FUZZ_REQUIRE(array.data >= data && bytes <= size && (size_t)(array.data - data) <= size - bytes);
    float *values = malloc(array.count ? array.count * sizeof *values : 1);
    FUZZ_REQUIRE(values != NULL);
    nbl_array_to_f32(&array, values);
    free(values);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nbl_safetensors file;
    nbl_fault fault = {""};
    const char *name;
    json_t *value;
    if (nbl_safetensors_parse("input", data, size, &file, &fault) != NBL_EXIT_OK) {
        FUZZ_REQUIRE(fault.text[0] != '\0');
        return 0;
    }
    json_object_foreach (file.header, name, value)
        check_tensor(&file, name, data, size);
    (void)nbl_safetensors_metadata(&file, "sm_scale");
    nbl_safetensors_free(&file);
    return 0;
}
