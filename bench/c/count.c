/* count.c - alloc + free pairs for counting instructions under callgrind.
 *
 *   count POLICY PAIRS
 *
 * Built with a dummy rseq area of CPU 0 (US_TESTING, US_DUMMY_RSEQ), since valgrind never sees rseq
 * registered. Two runs with different PAIRS differ by fast paths alone.
 */
#include <stdio.h>
#include <stdlib.h>

#include "unislab.h"

int main(int argc, char **argv)
{
    struct us_allocator_options options;
    struct us_cache_options cache_options = {.name = "count", .size = 64};
    struct us_error error = {0};
    struct us_allocator *allocator;
    struct us_cache *cache;
    long pairs = argc == 3 ? atol(argv[2]) : 0;

    us_allocator_options_init(&options);
    options.policy = argc == 3 ? argv[1] : "";
    allocator = us_allocator_create(&options, &error);
    cache = allocator ? us_cache_create(allocator, &cache_options, &error) : NULL;
    if (!cache) {
        fprintf(stderr, "count: %s\n", error.text);
        return 1;
    }
    for (long i = 0; i < pairs; i++)
        us_cache_free(cache, us_cache_alloc(cache));
    return us_allocator_destroy(allocator, false, &error) != US_OK;
}
