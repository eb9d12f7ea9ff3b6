/* SPDX-License-Identifier: Apache-2.0 */
/* The parsers of numbers, lists and files, called directly. */
#include <criterion/criterion.h>
#include <math.h>
#include <npy.h>
#include <options.h>
#include <pipeline.h>
#include <safetensors.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

TestSuite(parsers, .timeout = 60);

Test(parsers, whole_numbers_are_digits_and_nothing_else)
{
    static const char *const refused[] = {"",   " 1",  "1 ",  "+1",  "-1",
                                          "1x", "0x1", "1e3", "1.0", "18446744073709551616",
                                          "4",  "101", "\t5", "5\n", "99999999999999999999999"};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        uint64_t value = 77;
        cr_assert(!nbl_number_parse_u64(refused[i], 5, 100, &value), "\"%s\" was accepted", refused[i]);
        cr_assert(value == 77, "\"%s\" changed the output", refused[i]);
    }
    uint64_t value = 0;
    cr_assert(nbl_number_parse_u64("5", 5, 100, &value) && value == 5, "5 was refused");
    cr_assert(nbl_number_parse_u64("100", 5, 100, &value) && value == 100, "100 was refused");
    cr_assert(nbl_number_parse_u64("18446744073709551615", 0, UINT64_MAX, &value) && value == UINT64_MAX, "2^64-1");
    cr_assert(!nbl_number_parse_u64("18446744073709551616", 0, UINT64_MAX, &value), "2^64 was accepted");
    cr_assert(nbl_number_parse_u64("007", 5, 100, &value) && value == 7, "leading zeros are digits");
}

Test(parsers, numbers_are_finite_and_in_range)
{
    static const char *const refused[] = {"",   "nan", "inf", "-inf", "1e999", " 1",
                                          "1 ", "1,0", "--1", "2.5",  "-2.5",  "x"};
    double value = 7.0;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        cr_assert(!nbl_number_parse_f64(refused[i], -2.0, 2.0, &value), "\"%s\" was accepted", refused[i]);
        cr_assert(value == 7.0, "\"%s\" changed the output", refused[i]);
    }
    cr_assert(nbl_number_parse_f64("-2", -2.0, 2.0, &value) && value == -2.0, "-2 was refused");
    cr_assert(nbl_number_parse_f64(".0625", -2.0, 2.0, &value) && value == 0.0625, ".0625 was refused");
    cr_assert(nbl_number_parse_f64("1e-3", -2.0, 2.0, &value) && value == 1e-3, "1e-3 was refused");
}

static void assert_list(const char *text, const char *joined)
{
    nbl_list list;
    nbl_fault fault = {""};
    char found[128] = "";
    cr_assert(nbl_recipes_split("recipe", text, &list, &fault) == NBL_EXIT_OK, "%s: %s", text, fault.text);
    for (size_t i = 0; i < list.count; i++) {
        strcat(found, i ? "|" : "");
        strcat(found, list.items[i]);
    }
    cr_assert(strcmp(found, joined) == 0, "%s became %s, wanted %s", text, found, joined);
}

Test(parsers, recipe_lists_keep_modifiers_with_their_recipe)
{
    assert_list("kv4", "kv4");
    assert_list("kv4,kv8", "kv4|kv8");
    assert_list("kv4,center=0,kv8", "kv4,center=0|kv8");
    assert_list("kv4,center=0,sinks=0,kv8,sinks=64", "kv4,center=0,sinks=0|kv8,sinks=64");
    assert_list("center=0,kv8", "center=0|kv8");
}

Test(parsers, lists_refuse_empty_items_and_excess)
{
    char many[256] = "1";
    nbl_list list;
    nbl_fault fault = {""};
    static const char *const refused[] = {"", ",", "1,", ",1", "1,,2"};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        cr_assert(nbl_list_split("lengths", refused[i], &list, &fault) == NBL_EXIT_USAGE, "\"%s\" accepted",
                  refused[i]);
        cr_assert(strstr(fault.text, "--lengths: ") == fault.text, "the option is not named: %s", fault.text);
    }
    for (int i = 1; i < 32; i++)
        strcat(many, ",1");
    cr_assert(nbl_list_split("lengths", many, &list, &fault) == NBL_EXIT_OK && list.count == 32, "32 items refused");
    strcat(many, ",1");
    cr_assert(nbl_list_split("lengths", many, &list, &fault) == NBL_EXIT_USAGE, "33 items accepted");
}

Test(parsers, shape_products_do_not_wrap)
{
    uint64_t bytes = 0;
    const uint64_t wraps[] = {1ull << 32, 1ull << 30}; /* * 4 = 2^64 */
    const uint64_t fits[] = {1ull << 32, 1ull << 29};
    cr_assert(!nbl_shape_bytes(wraps, 2, 4, &bytes), "2^64 bytes were accepted");
    cr_assert(nbl_shape_bytes(fits, 2, 4, &bytes) && bytes == 1ull << 63, "2^63 bytes were refused");
}

/* Independent value of a half: by its definition. */
static double half_value(uint32_t bits)
{
    uint32_t exponent = bits >> 10 & 31u, mantissa = bits & 1023u;
    double magnitude = exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024.0 + mantissa, (int)exponent - 25);
    return bits & 0x8000u ? -magnitude : magnitude;
}

Test(parsers, all_halves_convert_exactly)
{
    for (uint32_t bits = 0; bits < 65536; bits++) {
        uint16_t half = (uint16_t)bits;
        float value = 0.0f;
        const nbl_array array = {.data = (const uint8_t *)&half, .dtype = NBL_F16, .rank = 1, .shape = {1}, .count = 1};
        nbl_array_to_f32(&array, &value);
        if ((bits >> 10 & 31u) < 31u)
            cr_assert((double)value == half_value(bits) && !signbit(value) == !(bits & 0x8000u), "half %04x", bits);
        else
            cr_assert((bits & 1023u) ? isnan(value) : isinf(value), "half %04x", bits);
    }
}

Test(parsers, bf16_rounds_to_nearest_even_and_back)
{
    static const struct {
        float value;
        uint16_t bits;
    } cases[] = {{1.0f, 0x3f80},          {0x1.01p0f, 0x3f80},  {0x1.03p0f, 0x3f82},
                 {0x1.010002p0f, 0x3f81}, {-0x1.03p0f, 0xbf82}, {0x1.ffp127f, 0x7f80},
                 {INFINITY, 0x7f80},      {0.0f, 0x0000},       {-0.0f, 0x8000}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint16_t bits = 0;
        nbl_f32_to_bf16(&cases[i].value, 1, &bits);
        cr_assert(bits == cases[i].bits, "%a became %04x, wanted %04x", (double)cases[i].value, bits, cases[i].bits);
    }
    uint16_t bits = 0;
    const float nan_value = NAN;
    nbl_f32_to_bf16(&nan_value, 1, &bits);
    cr_assert((bits & 0x7fff) > 0x7f80, "NaN became %04x", bits);
}

/* One case per file of the fuzz corpora: the names say what must be said about it. */
typedef struct corpus_case {
    const char *file;
    const char *text; /* part of the message; NULL: accepted */
} corpus_case;

static void check_corpus(const char *target, const corpus_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char path[512];
        size_t size = 0;
        nbl_fault fault = {""};
        nbl_array array;
        nbl_safetensors file = {0};
        snprintf(path, sizeof path, "%s/%s/%s.%s", NIBBLE_CORPUS, target, cases[i].file, target);
        uint8_t *bytes = read_bytes(path, &size);
        int code = strcmp(target, "npy") == 0 ? nbl_npy_parse("x", bytes, size, &array, &fault)
                                              : nbl_safetensors_parse("x", bytes, size, &file, &fault);
        if (cases[i].text) {
            cr_assert(code == NBL_EXIT_INPUT, "%s: code %d", cases[i].file, code);
            cr_assert(strncmp(fault.text, "x: ", 3) == 0, "%s: no file name in: %s", cases[i].file, fault.text);
            cr_assert(strstr(fault.text, cases[i].text) != NULL, "%s: %s", cases[i].file, fault.text);
        } else {
            cr_assert(code == NBL_EXIT_OK, "%s: %s", cases[i].file, fault.text);
        }
        nbl_safetensors_free(&file);
        free(bytes);
    }
}

Test(parsers, safetensors_corpus)
{
    static const corpus_case cases[] = {
        {"good", NULL},
        {"good-padded", NULL},
        {"unaligned", NULL},
        {"empty-tensor", NULL},
        {"scalar", NULL},
        {"other-types", NULL},
        {"special-values", NULL},
        {"shape-6-dims", NULL},
        {"empty", "too short"},
        {"seven-bytes", "too short"},
        {"length-huge", "at most 100000000"},
        {"length-over-100MB", "at most 100000000"},
        {"length-over-file", "truncated: header of 1000000 bytes"},
        {"length-zero", "header: "},
        {"not-json", "header: "},
        {"array-header", "not a JSON object"},
        {"deep", "header: "},
        {"duplicate-names", "duplicate"},
        {"offset-past-end", "past the end of the file"},
        {"offset-reversed", "end before they begin"},
        {"offset-negative", "not a pair of whole numbers"},
        {"offset-huge", "past the end of the file"},
        {"offset-over-int64", "header: "},
        {"offset-float", "not a pair of whole numbers"},
        {"size-mismatch", "do not span"},
        {"shape-overflow", "too large"},
        {"shape-overflow-wraps", "too large"},
        {"shape-negative", "whole numbers"},
        {"shape-17-dims", "more than 16"},
        {"dtype-unknown", "not a known type"},
        {"dtype-number", "no \"dtype\" string"},
        {"entry-string", "no \"dtype\" string"},
        {"metadata-number", "not a string"},
        {"metadata-list", "not an object"},
        {"nul-in-name", "header: "},
        {"invalid-utf8", "header: "},
    };
    check_corpus("safetensors", cases, sizeof cases / sizeof cases[0]);
}

Test(parsers, npy_corpus)
{
    static const corpus_case cases[] = {
        {"good-f4", NULL},
        {"good-f2", NULL},
        {"good-v2", NULL},
        {"good-v3", NULL},
        {"good-tight", NULL},
        {"scalar", NULL},
        {"empty-array", NULL},
        {"empty", "not a .npy file"},
        {"magic-only", "not a .npy file"},
        {"text", "not a .npy file"},
        {"version-9", "version is not 1, 2 or 3"},
        {"length-over-file", "truncated"},
        {"length-huge-v2", "truncated"},
        {"length-zero", "not a dict"},
        {"fortran", "Fortran order"},
        {"order-1", "neither True nor False"},
        {"descr-0", "bf16 in .npy carries no type"},
        {"descr-1", "type '<f8', allowed are '<f4' and '<f2'"},
        {"descr-2", "type '>f4'"},
        {"descr-3", "type '<i4'"},
        {"descr-4", "type '|O'"},
        {"descr-5", "type '<c8'"},
        {"descr-6", "type ''"},
        {"descr-record", "not a simple type"},
        {"descr-long", "not a simple type"},
        {"shape-overflow", "too large"},
        {"shape-wraps", "too large"},
        {"shape-digits", "whole numbers"},
        {"shape-negative", "whole numbers"},
        {"shape-6", "more than 5"},
        {"shape-open", "whole numbers"},
        {"shape-list", "not a tuple"},
        {"shape-commas", "whole numbers"},
        {"key-twice", "repeated key"},
        {"key-unknown", "unknown or repeated key"},
        {"key-missing", "lacks"},
        {"escape", "not a dict of"},
        {"trailing-text", "bytes follow"},
        {"data-short", "announces 16 bytes of data, the file has 15"},
        {"data-long", "announces 16 bytes of data, the file has 17"},
    };
    check_corpus("npy", cases, sizeof cases / sizeof cases[0]);
}

Test(parsers, safetensors_values_at_odd_addresses)
{
    static const float values[2] = {1.5f, -0.25f};
    const char *header = "{\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[1,9]}}";
    uint8_t data[9] = {0};
    size_t size = 0;
    nbl_safetensors file;
    nbl_array array;
    nbl_fault fault = {""};
    float found[2] = {0};
    memcpy(data + 1, values, sizeof values);
    write_safetensors(scratch("odd.safetensors"), header, data, sizeof data);
    uint8_t *bytes = read_bytes(scratch("odd.safetensors"), &size);
    cr_assert(nbl_safetensors_parse("x", bytes, size, &file, &fault) == NBL_EXIT_OK, "%s", fault.text);
    cr_assert(nbl_safetensors_find(&file, "b", &array, &fault) == NBL_EXIT_OK, "%s", fault.text);
    nbl_array_to_f32(&array, found);
    cr_assert(memcmp(found, values, sizeof values) == 0, "values differ");
    cr_assert(nbl_safetensors_find(&file, "c", &array, &fault) == NBL_EXIT_INPUT, "a missing tensor was found");
    cr_assert(nbl_safetensors_find(&file, "__metadata__", &array, &fault) == NBL_EXIT_INPUT, "metadata is no tensor");
    nbl_safetensors_free(&file);
    free(bytes);
}

Test(parsers, files_that_are_none_are_refused)
{
    nbl_file file = {0};
    nbl_fault fault = {""};
    cr_assert(nbl_file_read("/", &file, &fault) == NBL_EXIT_INPUT, "a directory was read");
    cr_assert(strstr(fault.text, "not a regular file") != NULL, "%s", fault.text);
    cr_assert(nbl_file_read(scratch("absent"), &file, &fault) == NBL_EXIT_INPUT, "an absent file was read");
    cr_assert(strstr(fault.text, "No such file") != NULL, "%s", fault.text);
    cr_assert(nbl_file_read("/dev/zero", &file, &fault) == NBL_EXIT_INPUT, "a device was read");
}

Test(parsers, faults_stay_one_line)
{
    nbl_fault fault = {""};
    cr_assert(nbl_fault_set(&fault, 4, "a\nb\r%s", "\x1b[31m") == 4, "the code is not returned");
    cr_assert(strcmp(fault.text, "a?b??[31m") == 0, "%s", fault.text);
}
