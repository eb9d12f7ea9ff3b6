/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as a number or list on the command line. */
#include "fuzz.h"

#include <math.h>
#include <options.h>
#include <pipeline.h>
#include <string.h>

static void check_whole_number(const char *text)
{
    uint64_t value = 0;
    if (!nbl_number_parse_u64(text, 3, 1u << 24, &value))
        return;
    FUZZ_REQUIRE(value >= 3 && value <= 1u << 24);
    FUZZ_REQUIRE(text[strspn(text, "0123456789")] == '\0');
}

static void check_number(const char *text)
{
    double value = 0.0;
    if (nbl_number_parse_f64(text, -1.0, 1e6, &value))
        FUZZ_REQUIRE(isfinite(value) && value >= -1.0 && value <= 1e6);
}

static void check_list(const char *text)
{
    nbl_list list;
    nbl_fault fault = {""};
    if (nbl_list_split("list", text, &list, &fault) != NBL_EXIT_OK) {
        FUZZ_REQUIRE(strstr(fault.text, "--list") != NULL);
        return;
    }
    size_t bytes = list.count - 1; /* the commas */
    for (size_t i = 0; i < list.count; i++) {
        FUZZ_REQUIRE(list.items[i][0] != '\0');
        bytes += strlen(list.items[i]);
    }
    FUZZ_REQUIRE(bytes == strlen(text));
}

static void check_recipes(const char *text)
{
    nbl_list list;
    nbl_fault fault;
    if (nbl_recipes_split("list", text, &list, &fault) != NBL_EXIT_OK)
        return;
    size_t bytes = list.count - 1;
    for (size_t i = 0; i < list.count; i++)
        bytes += strlen(list.items[i]);
    FUZZ_REQUIRE(list.count > 0 && bytes == strlen(text));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    FUZZ_REQUIRE(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    check_whole_number(text);
    check_number(text);
    check_list(text);
    check_recipes(text);
    free(text);
    return 0;
}
