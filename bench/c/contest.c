/* contest.c - one contestant of the local-path benchmark, asked for one round at a time.
 *
 *   contest plain|unified|slub|malloc
 *
 * Reads lines "pair SIZE", "batch SIZE", "bulk SIZE" from standard input and answers each with
 * nanoseconds an object: one alloc + free; 64 allocs then 64 frees; 1000 by the bulk calls. The
 * benchmark keeps one child a contestant and interleaves their rounds. Every call is out of line,
 * as a user of the library makes it: `plain` is an array stack behind the same kind of call,
 * `malloc` is whatever the process has (a library may be preloaded).
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "unislab.h"

#define PAIRS       400000
#define BATCH       64
#define BULK        1000
#define OUT_OF_LINE __attribute__((noinline))

static struct {
    uint64_t top;
    void *object[2048];
} stack;

static OUT_OF_LINE void *plain_alloc(void)
{
    if (__builtin_expect(stack.top == 0, 0))
        abort();
    return stack.object[--stack.top];
}

static OUT_OF_LINE void plain_free(void *object)
{
    if (__builtin_expect(stack.top >= 2048, 0))
        abort();
    stack.object[stack.top++] = object;
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* ns an object for ALLOC and FREE, once each or BATCH at a time. */
#define MEASURE(alloc, free_)                               \
    double begin = now();                                   \
    if (!batch) {                                           \
        for (int i = 0; i < PAIRS; i++) {                   \
            void *object = alloc;                           \
            __asm__ volatile("" ::"r"(object) : "memory");  \
            free_;                                          \
        }                                                   \
        return (now() - begin) / PAIRS;                     \
    }                                                       \
    for (int i = 0; i < PAIRS / BATCH; i++) {               \
        void *held[BATCH];                                  \
        for (int k = 0; k < BATCH; k++) {                   \
            held[k] = alloc;                                \
            __asm__ volatile("" ::"r"(held[k]) : "memory"); \
        }                                                   \
        for (int k = 0; k < BATCH; k++) {                   \
            void *object = held[k];                         \
            free_;                                          \
        }                                                   \
    }                                                       \
    return (now() - begin) / (PAIRS / BATCH * BATCH);

static double plain_round(bool batch)
{
    MEASURE(plain_alloc(), plain_free(object))
}

static double malloc_round(size_t size, bool batch)
{
    MEASURE(malloc(size), free(object))
}

static double cache_round(struct us_cache *cache, bool batch)
{
    MEASURE(us_cache_alloc(cache), us_cache_free(cache, object))
}

static double bulk_round(struct us_cache *cache)
{
    static void *held[BULK];
    double begin = now();

    for (int i = 0; i < PAIRS / BULK; i++) {
        if (us_cache_alloc_bulk(cache, 0, US_ANY_NODE, BULK, held) != BULK)
            abort();
        us_cache_free_bulk(cache, BULK, held);
    }
    return (now() - begin) / (PAIRS / BULK * BULK);
}

static struct us_cache *cache_of(struct us_allocator *allocator, size_t size)
{
    static struct us_cache *cache[4096];
    char name[32];
    struct us_cache_options options = {.name = name, .size = size};
    struct us_error error;

    if (size >= 4096)
        abort();
    snprintf(name, sizeof(name), "contest-%zu", size);
    if (!cache[size])
        cache[size] = us_cache_create(allocator, &options, &error);
    if (!cache[size]) {
        fprintf(stderr, "contest: %s\n", error.text);
        exit(1);
    }
    return cache[size];
}

int main(int argc, char **argv)
{
    const char *who = argc == 2 ? argv[1] : "";
    struct us_allocator *allocator = NULL;
    static char memory[128 * 64];
    char verb[16];
    size_t size;

    for (int i = 0; i < 128; i++)
        plain_free(memory + 64 * i);
    if (strcmp(who, "plain") && strcmp(who, "malloc")) {
        struct us_allocator_options options;
        struct us_error error;

        us_allocator_options_init(&options);
        options.policy = who;
        allocator = us_allocator_create(&options, &error);
        if (!allocator) {
            fprintf(stderr, "contest: %s\n", error.text);
            return 1;
        }
    }
    while (scanf("%15s %zu", verb, &size) == 2) {
        bool batch = strcmp(verb, "batch") == 0;
        double ns;

        if (!allocator)
            ns = strcmp(who, "plain") ? malloc_round(size, batch) : plain_round(batch);
        else
            ns = strcmp(verb, "bulk") ? cache_round(cache_of(allocator, size), batch)
                                      : bulk_round(cache_of(allocator, size));
        printf("%.4f\n", ns);
        fflush(stdout);
    }
    return 0;
}
