/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file test_tcgen05.c
 * @brief Descriptors and layouts of tcgen05 against the tables of the PTX ISA, field by field, for every shape.
 */
#include "ptx/tcgen05_layout.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* A row of a table: bits first..last hold what `what` says. */
typedef struct field {
    uint32_t first;
    uint32_t last;
    const char *what;
} field;

static uint64_t bits_of(uint64_t word, field f)
{
    return word >> f.first & (((uint64_t)2 << (f.last - f.first)) - 1u);
}

/* Every bit of the word belongs to one of the fields and has the field's value. */
static void expect_fields(uint64_t word, const field *fields, const uint64_t *values, uint32_t count)
{
    uint64_t rest = word;
    for (uint32_t i = 0; i < count; ++i) {
        cr_assert_eq(bits_of(word, fields[i]), values[i], "%s of %llx", fields[i].what, (unsigned long long)word);
        rest &= ~((((uint64_t)2 << (fields[i].last - fields[i].first)) - 1u) << fields[i].first);
    }
    cr_assert_eq(rest, 0u, "%llx has bits outside of its fields", (unsigned long long)word);
}

Test(tcgen05, instruction_descriptor_of_4_bits)
{
    static const field fields[] = {{4, 5, "scale id of B"}, {7, 9, "type of A"},        {10, 11, "type of B"},
                                   {13, 14, "negations"},   {15, 16, "transpositions"}, {17, 22, "N / 8"},
                                   {23, 23, "scale type"},  {27, 28, "M / 128"},        {29, 30, "scale id of A"},
                                   {31, 31, "K is 96"}};
    for (uint32_t n = 8; n <= 256; n += 8) {
        for (uint32_t type = 0; type < 2; ++type) {
            const uint64_t values[] = {0, 1, 1, 0, 0, n / 8u, type, 1, 0, 0};
            expect_fields(tcgen05_instruction_fp4(n, type), fields, values, sizeof values / sizeof values[0]);
        }
    }
}

Test(tcgen05, instruction_descriptor_of_8_bits)
{
    static const field fields[] = {{4, 5, "type of D"},   {7, 9, "type of A"},        {10, 12, "type of B"},
                                   {13, 14, "negations"}, {15, 16, "transpositions"}, {17, 22, "N / 8"},
                                   {24, 28, "M / 16"}};
    for (uint32_t n = 8; n <= 256; n += 8) {
        const uint64_t values[] = {1, 0, 0, 0, 0, n / 8u, 8};
        expect_fields(tcgen05_instruction_fp8(n), fields, values, sizeof values / sizeof values[0]);
    }
}

Test(tcgen05, matrix_descriptor)
{
    static const field fields[] = {{0, 13, "address"},   {16, 29, "stride of K"}, {32, 45, "stride of rows"},
                                   {46, 48, "constant"}, {49, 51, "base offset"}, {52, 52, "mode"},
                                   {61, 63, "swizzle"}};
    for (uint32_t shared = 0; shared < 228u * 1024u; shared += 16u) {
        const uint32_t chunk = 16u * (1u + shared / 16u % 100u), group = 16u * (1u + shared / 16u % 1000u);
        const uint64_t values[] = {shared / 16u, chunk / 16u, group / 16u, 1, 0, 0, 0};
        expect_fields(tcgen05_matrix(shared, chunk, group), fields, values, sizeof values / sizeof values[0]);
    }
}

/* Every byte of every row has a place of its own, inside its core matrix as the table of canonical layouts has it: 8
 * rows of 16 bytes side by side, core matrices along K first. */
Test(tcgen05, matrix_layout)
{
    for (uint32_t row_bytes = 16; row_bytes <= 288; row_bytes += 16) {
        uint8_t *taken = calloc(128, row_bytes);
        cr_assert_not_null(taken);
        for (uint32_t row = 0; row < 128; ++row) {
            for (uint32_t byte = 0; byte < row_bytes; ++byte) {
                const uint32_t at = tcgen05_matrix_byte(row_bytes, row, byte);
                const uint32_t core = row / 8u * (row_bytes / 16u) + byte / 16u;
                cr_assert_eq(at, core * 128u + row % 8u * 16u + byte % 16u, "row %u, byte %u of %u", row, byte,
                             row_bytes);
                cr_assert(!taken[at]++, "row %u, byte %u of %u", row, byte, row_bytes);
            }
        }
        free(taken);
    }
}

/* The atom of scales: 32 rows of 16 bytes, in which the words of rows r, r + 32, r + 64, r + 96 follow each other. */
Test(tcgen05, atom_of_scales)
{
    uint8_t taken[TCGEN05_ATOM_BYTES] = {0};
    for (uint32_t quarter = 0; quarter < 4; ++quarter) {
        for (uint32_t r = 0; r < 32; ++r) {
            for (uint32_t column = 0; column < 4; ++column) {
                const uint32_t at = tcgen05_atom_byte(32u * quarter + r, column);
                cr_assert_eq(at, 16u * r + 4u * quarter + column);
                cr_assert(!taken[at]++);
            }
        }
    }
}
