/* What the tests of allocators and caches share: both policies, small topologies, balances. */
#ifndef FIXTURE_CACHE_H
#define FIXTURE_CACHE_H

#include <stdlib.h>
#include <string.h>

#include "cache/cache.h"
#include "check.h"

/* Every registered policy, or the one that UNISLAB_TEST_POLICY names: for who looks for a fault. */
static inline bool fixture_wants(const char *policy)
{
    const char *only = getenv("UNISLAB_TEST_POLICY");

    return !only || strcmp(only, policy) == 0;
}
#define FOR_EACH_POLICY(var)                                     \
    for (unsigned var##_i = 0; us_policy_at(var##_i); var##_i++) \
        for (const char *var = us_policy_at(var##_i)->name; var && fixture_wants(var); var = NULL)

/* Two nodes of two CPUs each, one cache domain a node. Natively more CPUs fold on these. */
static const unsigned fixture_cpu_node[] = {0, 0, 1, 1};
static const struct us_topology fixture_two_nodes = {
    .ncpus = 4,
    .nnodes = 2,
    .ndomains = 2,
    .cpu_node = fixture_cpu_node,
    .cpu_domain = fixture_cpu_node,
};

static inline struct us_allocator *
fixture_open(const char *policy, const struct us_topology *topology, uint64_t memory, bool debug_f)
{
    struct us_allocator_options o;
    struct us_error e = {.status = US_OK};
    struct us_allocator *a;

    us_allocator_options_init(&o);
    o.policy = policy;
    o.topology = topology;
    o.memory = memory;
    o.address_range = 1ull << 30;
    o.debug_f = debug_f;
    a = us_allocator_create(&o, &e);
    if (!a)
        fprintf(stderr, "%s: %s\n", policy, e.text);
    REQUIRE(a != NULL);
    return a;
}

static inline struct us_cache *fixture_cache(struct us_allocator *a, const char *name, size_t size,
                                             unsigned flags)
{
    const struct us_cache_options o = {.name = name, .size = size, .flags = flags};
    struct us_error e = {.status = US_OK};
    struct us_cache *c = us_cache_create(a, &o, &e);

    if (!c)
        fprintf(stderr, "%s: %s\n", name, e.text);
    REQUIRE(c != NULL);
    return c;
}

/* Sum over CPUs of one row, exact. */
static inline uint64_t fixture_stat(struct us_cache *c, const char *row)
{
    const char *names[128];
    const size_t rows = us_stats_rows(c->policy, names, NULL, 128);
    uint64_t *values = calloc(rows * c->machine->ncpus, sizeof(*values));
    uint64_t sum = 0;
    size_t i, cpu;

    us_cache_stats(c, true, values);
    for (i = 0; i < rows && strcmp(names[i], row) != 0; i++)
        ;
    REQUIRE(i < rows);
    for (cpu = 0; cpu < c->machine->ncpus; cpu++)
        sum += values[cpu * rows + i];
    free(values);
    return sum;
}

static inline uint64_t fixture_allocs(struct us_cache *c)
{
    return fixture_stat(c, "alloc_fast") + fixture_stat(c, "alloc_second_level") +
           fixture_stat(c, "alloc_slow") + fixture_stat(c, "alloc_remote");
}

static inline uint64_t fixture_frees(struct us_cache *c)
{
    return fixture_stat(c, "free_fast") + fixture_stat(c, "free_second_level") +
           fixture_stat(c, "free_slow") + fixture_stat(c, "free_remote");
}

/* Accounts add up, counters match what is live, and every cache is valid. */
static inline void fixture_balance(struct us_allocator *a)
{
    struct us_memory_account memory;
    struct us_account total;
    struct us_cache *c;

    us_allocator_account(a, &total, &memory);
    CHECK_EQ(total.reserved, total.live + total.queued + total.free_in_slabs + total.waste);
    CHECK_EQ(total.reserved, memory.reserved);
    for (c = a->caches; c; c = c->next) {
        struct us_validation v;
        struct us_account one;

        us_cache_account(c, &one);
        CHECK_EQ(one.reserved, one.live + one.queued + one.free_in_slabs + one.waste);
        CHECK_EQ(one.objects, one.live_objects + one.queued_objects + one.free_objects);
        if (!CHECK_EQ(fixture_allocs(c) - fixture_frees(c), one.live_objects))
            fprintf(stderr, "  cache %s under %s\n", c->name, c->policy->name);
        REQUIRE(us_cache_validate(c, &v, NULL) == US_OK);
        if (v.errors)
            fprintf(stderr, "cache %s: %s\n", c->name, v.text);
        CHECK_EQ(v.errors, 0);
        CHECK_EQ(v.total, one.objects);
        CHECK_EQ(v.available, one.free_objects);
        CHECK_EQ(v.onqueue, one.queued_objects);
        us_validation_free(&v);
    }
    CHECK(us_memory_check(a->memory, NULL));
}

/* What is left where nothing should be. */
static inline void fixture_tell_slabs(struct us_allocator *a)
{
    struct us_snapshot left;

    for (struct us_cache *c = a->caches; c; c = c->next) {
        if (us_cache_snapshot(c, &left, NULL) != US_OK)
            continue;
        for (size_t i = 0; i < left.nslabs; i++) {
            const struct us_slab_row *row = &left.slab[i];

            fprintf(stderr,
                    "  %s, cache %s: slab of node %d, %u objects, %u free, %u queued, "
                    "place %u, CPU %d\n",
                    c->policy->name, c->name, row->node, row->objects, row->free, row->queued,
                    row->place, row->cpu);
        }
        us_snapshot_free(&left);
    }
}

static inline void fixture_close(struct us_allocator *a)
{
    struct us_error e = {.status = US_OK};

    fixture_balance(a);
    if (us_allocator_destroy(a, false, &e) != US_OK) {
        fprintf(stderr, "%s\n", e.text);
        CHECK(!"allocator closes");
        us_allocator_destroy(a, true, NULL);
    }
}

#endif
