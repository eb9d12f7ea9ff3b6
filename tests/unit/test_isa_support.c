/* SPDX-License-Identifier: Apache-2.0 */
#include "test_isa_support.h"

#define GUARD_BYTES 64u
#define GUARD_FILL 0xa5

const sim_isa *isa_or_skip(const char *name)
{
    const sim_isa *isa = sim_isa_find(name);
    if (isa == NULL) {
        cr_skip_test("this CPU lacks what the %s table needs", name);
    }
    if (isa->enter != NULL) {
        isa->enter();
    }
    return isa;
}

void *guarded_alloc(uint64_t bytes)
{
    uint8_t *memory = support_alloc(bytes + GUARD_BYTES);
    memset(memory, GUARD_FILL, bytes + GUARD_BYTES);
    return memory;
}

void guarded_free(void *memory, uint64_t bytes)
{
    const uint8_t *guard = (const uint8_t *)memory + bytes;
    for (uint32_t i = 0; i < GUARD_BYTES; i++) {
        cr_assert_eq(guard[i], GUARD_FILL, "byte %u behind the end was written", i);
    }
    free(memory);
}

Test(isa_find, tables_have_their_names)
{
    for (const char *const *name = sim_isa_names; *name != NULL; name++) {
        const sim_isa *isa = sim_isa_find(*name);
        cr_expect(isa == NULL || strcmp(isa->name, *name) == 0, "%s gives another table", *name);
    }
    cr_expect_eq(sim_isa_find("scalar"), &sim_isa_scalar, "every CPU has scalar");
}

Test(isa_find, the_best_table_is_the_default)
{
    const sim_isa *best = NULL;
    for (const char *const *name = sim_isa_names; *name != NULL; name++) {
        const sim_isa *isa = sim_isa_find(*name);
        best = isa == NULL ? best : isa;
    }
    cr_expect_eq(sim_isa_find(NULL), best, "NULL is %s", sim_isa_find(NULL)->name);
    cr_expect_eq(sim_isa_find(""), best, "\"\" is %s", sim_isa_find("")->name);
}

Test(isa_find, unknown_names_have_no_table)
{
    static const char *const names[] = {"AVX2", "avx", "avx5122", " scalar", "NEON"};
    for (uint32_t i = 0; i < COUNT(names); i++) {
        cr_expect_null(sim_isa_find(names[i]), "\"%s\" has a table", names[i]);
    }
}
