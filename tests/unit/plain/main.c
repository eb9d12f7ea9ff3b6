/* SPDX-License-Identifier: Apache-2.0 */
/* Runs all tests that were added, one after the other; the first failure of a test ends it. */
#include <criterion/criterion.h>
#include <setjmp.h>

static plain_test *tests;
static jmp_buf out_of_test;
static int skipped;

void plain_add(plain_test *test)
{
    test->next = tests;
    tests = test;
}

void plain_fail(const char *file, int line, const char *what, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf("%s:%d: %s: ", file, line, what);
    vprintf(format, arguments);
    putchar('\n');
    va_end(arguments);
    longjmp(out_of_test, 1);
}

void plain_skip(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf("left out: ");
    vprintf(format, arguments);
    putchar('\n');
    va_end(arguments);
    skipped++;
    longjmp(out_of_test, 2);
}

/* 1 if the test fails. */
static int fails(const plain_test *test)
{
    int result = setjmp(out_of_test);
    if (result == 0) {
        test->body();
    }
    return result == 1;
}

int main(void)
{
    int ran = 0, failed = 0;
    for (const plain_test *test = tests; test != NULL; test = test->next) {
        int this_fails = fails(test);
        ran++;
        failed += this_fails;
        printf("%s %s\n", this_fails ? "FAILED" : "ok", test->name);
        fflush(stdout);
    }
    printf("%d tests, %d failed, %d left out\n", ran, failed, skipped);
    return failed != 0 || ran == skipped;
}
