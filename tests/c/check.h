/*
 * Checks for the C unit tests.  A failed CHECK prints file, line and what was found and lets the
 * program go on; REQUIRE ends it, for what the rest depends on.  main() ends with check_result().
 *
 *     static void pops_what_was_pushed(void) { CHECK_EQ(us_ring_pop(...), 3); }
 *     int main(void) { RUN(pops_what_was_pushed); return check_result(); }
 */
#ifndef CHECK_H
#define CHECK_H

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* The exit code by which a program says that this machine cannot run it. */
#define CHECK_SKIPPED 77

static atomic_ulong check_count, check_failures;

static inline int check_that(int ok, const char *file, int line, const char *text)
{
    atomic_fetch_add(&check_count, 1);
    if (!ok) {
        atomic_fetch_add(&check_failures, 1);
        fprintf(stderr, "%s:%d: not true: %s\n", file, line, text);
    }
    return ok;
}

static inline int check_equal(unsigned long long a, unsigned long long b, const char *file,
                              int line, const char *text_a, const char *text_b)
{
    atomic_fetch_add(&check_count, 1);
    if (a == b)
        return 1;
    atomic_fetch_add(&check_failures, 1);
    fprintf(stderr, "%s:%d: %s is %lld (%#llx), %s is %lld (%#llx)\n", file, line, text_a,
            (long long)a, a, text_b, (long long)b, b);
    return 0;
}

#define CHECK(cond) check_that(!!(cond), __FILE__, __LINE__, #cond)

/* Integers or pointers; a negative value needs operands of the same width. */
#define CHECK_EQ(a, b) \
    check_equal((unsigned long long)(a), (unsigned long long)(b), __FILE__, __LINE__, #a, #b)

#define REQUIRE(cond)     \
    do {                  \
        if (!CHECK(cond)) \
            exit(1);      \
    } while (0)

/* Name each case, so that a crash says where it came from. */
#define RUN(function)              \
    do {                           \
        printf("%s\n", #function); \
        fflush(stdout);            \
        function();                \
    } while (0)

#define SKIP(reason)                     \
    do {                                 \
        printf("skipped: %s\n", reason); \
        exit(CHECK_SKIPPED);             \
    } while (0)

static inline int check_result(void)
{
    unsigned long count = atomic_load(&check_count), failures = atomic_load(&check_failures);

    printf("%lu checks, %lu failed\n", count, failures);
    return failures > 0 || count == 0;
}

#endif
