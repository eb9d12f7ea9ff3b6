/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file criterion.h
 * @brief As much of Criterion as the tests of the loops need, in one process: for machines that Criterion does not
 * run on, such as an emulated one.
 */
#ifndef PLAIN_CRITERION_H
#define PLAIN_CRITERION_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/** One test, in a list that constructors fill. */
typedef struct plain_test {
    const char *name;
    void (*body)(void);
    struct plain_test *next;
} plain_test;

/** Adds a test. */
void plain_add(plain_test *test);
/** Fails the running test, with a message. */
void plain_fail(const char *file, int line, const char *what, const char *format, ...)
    __attribute__((format(printf, 4, 5), noreturn));
/** Ends the running test as left out. */
void plain_skip(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

#define Test(suite, name)                                                          \
    static void suite##_##name##_body(void);                                       \
    __attribute__((constructor)) static void suite##_##name##_add(void)            \
    {                                                                              \
        static plain_test test = {#suite "::" #name, suite##_##name##_body, NULL}; \
        plain_add(&test);                                                          \
    }                                                                              \
    static void suite##_##name##_body(void)

#define PLAIN_CHECK(condition, what, ...) ((condition) ? (void)0 : plain_fail(__FILE__, __LINE__, what, "" __VA_ARGS__))
#define cr_assert(condition, ...) PLAIN_CHECK(condition, #condition, __VA_ARGS__)
#define cr_assert_eq(a, b, ...) PLAIN_CHECK((a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...) PLAIN_CHECK((a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...) PLAIN_CHECK((a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_assert_not_null(a, ...) PLAIN_CHECK((a) != NULL, #a, __VA_ARGS__)
#define cr_assert_arr_eq(a, b, bytes, ...) PLAIN_CHECK(memcmp(a, b, bytes) == 0, #a " == " #b, __VA_ARGS__)
#define cr_expect cr_assert
#define cr_expect_eq cr_assert_eq
#define cr_expect_null(a, ...) PLAIN_CHECK((a) == NULL, #a, __VA_ARGS__)
#define cr_skip_test(...) plain_skip(__VA_ARGS__)
#define cr_log_info(...) ((void)printf(__VA_ARGS__), (void)putchar('\n'))

#endif
