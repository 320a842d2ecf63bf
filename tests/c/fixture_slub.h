/* One cache under slub, stepped call by call: which counters moved, what is on the lists. */
#ifndef FIXTURE_SLUB_H
#define FIXTURE_SLUB_H

#include <stdarg.h>

#include "fixture_cache.h"

/* The counters of 2.6.26 to 2.6.36. */
static const char *const slub_counters[] = {
    "alloc_fastpath",
    "alloc_slowpath",
    "free_fastpath",
    "free_slowpath",
    "free_frozen",
    "free_add_partial",
    "free_remove_partial",
    "alloc_from_partial",
    "alloc_slab",
    "alloc_refill",
    "free_slab",
    "cpuslab_flush",
    "deactivate_full",
    "deactivate_empty",
    "deactivate_to_head",
    "deactivate_to_tail",
    "deactivate_remote_frees",
    "order_fallback",
};
enum { SLUB_COUNTERS = sizeof(slub_counters) / sizeof(slub_counters[0]) };

/* A node for each of two CPUs; or both on one node. */
static const unsigned slub_two_nodes_map[] = {0, 1}, slub_one_node_map[] = {0, 0};
static const struct us_topology slub_two_nodes = {.ncpus = 2,
                                                  .nnodes = 2,
                                                  .ndomains = 2,
                                                  .cpu_node = slub_two_nodes_map,
                                                  .cpu_domain = slub_two_nodes_map};
static const struct us_topology slub_one_node = {.ncpus = 2,
                                                 .nnodes = 1,
                                                 .ndomains = 1,
                                                 .cpu_node = slub_one_node_map,
                                                 .cpu_domain = slub_one_node_map};

struct scene {
    struct us_allocator *a;
    struct us_cache *c;
    uint64_t last[SLUB_COUNTERS];
};

/* 256 bytes, 16 objects to a slab of one page, min_partial 8; names and values of more tunables. */
static inline struct scene scene_of(const struct us_topology *t, size_t size, bool debug_f,
                                    const char *const *names, const char *const *values, size_t n)
{
    struct scene s = {.a = fixture_open("slub", t, 0, debug_f)};
    const struct us_cache_options o = {.name = "scene", .size = size};
    struct us_error e = {.status = US_OK};

    s.c = us_cache_create_with(s.a, &o, names, values, n, &e);
    if (!s.c)
        fprintf(stderr, "%s\n", e.text);
    REQUIRE(s.c != NULL);
    return s;
}

static inline struct scene scene_open(const struct us_topology *t, bool debug_f)
{
    static const char *const names[] = {"min_objects"}, *const values[] = {"16"};

    return scene_of(t, 256, debug_f, names, values, 1);
}

static inline void scene_close(struct scene *s)
{
    us_machine_on_cpu(s->a->machine, -1, NULL);
    fixture_close(s->a);
}

static inline void on_cpu(const struct scene *s, int cpu)
{
    REQUIRE(us_machine_on_cpu(s->a->machine, cpu, NULL) >= 0);
}

/* Asserts what moved since the last look: pairs of name and amount, ended by NULL; no other did. */
#define MOVED(s, ...) moved(s, __LINE__, __VA_ARGS__, NULL)
static inline void moved(struct scene *s, int line, ...)
{
    uint64_t expected[SLUB_COUNTERS] = {0};
    const char *name;
    va_list pairs;
    unsigned i;

    va_start(pairs, line);
    while ((name = va_arg(pairs, const char *)) != NULL) {
        for (i = 0; i < SLUB_COUNTERS && strcmp(slub_counters[i], name) != 0; i++)
            ;
        REQUIRE(i < SLUB_COUNTERS);
        expected[i] = (uint64_t)va_arg(pairs, int);
    }
    va_end(pairs);
    for (i = 0; i < SLUB_COUNTERS; i++) {
        const uint64_t now = fixture_stat(s->c, slub_counters[i]), by = now - s->last[i];

        if (by != expected[i])
            fprintf(stderr, "line %d: %s moved by %lld, expected %lld\n", line, slub_counters[i],
                    (long long)by, (long long)expected[i]);
        CHECK_EQ(by, expected[i]);
        s->last[i] = now;
    }
}

/* Forgets what moved so far. */
static inline void settle(struct scene *s)
{
    unsigned i;

    for (i = 0; i < SLUB_COUNTERS; i++)
        s->last[i] = fixture_stat(s->c, slub_counters[i]);
}

static inline char *slab_base(const struct scene *s, const void *object)
{
    return us_slab_base(s->c->slabs, us_cache_slab(s->c, object));
}

/* The slab at a position of a node's list and how many objects are free in it; NULL = none. */
static inline char *listed_at(const struct scene *s, int node, int64_t position,
                              unsigned *free_objects)
{
    struct us_snapshot view;
    char *found = NULL;
    size_t i;

    REQUIRE(us_cache_snapshot(s->c, &view, NULL) == US_OK);
    for (i = 0; i < view.nslabs; i++)
        if (view.slab[i].place == 1 && view.slab[i].node == node &&
            view.slab[i].position == position) {
            found = (char *)(uintptr_t)view.slab[i].address;
            *free_objects = view.slab[i].free;
        }
    us_snapshot_free(&view);
    return found;
}

#define LISTED(s, node, position, base, free_)                     \
    do {                                                           \
        unsigned free_found = 0;                                   \
        CHECK_EQ(listed_at(s, node, position, &free_found), base); \
        CHECK_EQ(free_found, free_);                               \
    } while (0)
#define UNLISTED(s, node, position)                                \
    do {                                                           \
        unsigned free_found = 0;                                   \
        CHECK_EQ(listed_at(s, node, position, &free_found), NULL); \
    } while (0)

/* Objects of the freelist of a CPU, and the number of CPU slabs. */
static inline uint32_t freelist_of(const struct scene *s, int cpu)
{
    struct us_snapshot view;
    uint32_t objects = 0;
    size_t i;

    REQUIRE(us_cache_snapshot(s->c, &view, NULL) == US_OK);
    for (i = 0; i < view.nstocks; i++)
        if (view.stock[i].stock.cpu == cpu)
            objects += view.stock[i].stock.objects;
    us_snapshot_free(&view);
    return objects;
}

static inline int64_t tunable(const struct scene *s, const char *name)
{
    int64_t value = -1;

    CHECK_EQ(us_tunable_get(s->c, name, &value, NULL, NULL), US_OK);
    return value;
}

static inline void take(const struct scene *s, void **object, unsigned n)
{
    unsigned i;

    for (i = 0; i < n; i++) {
        object[i] = us_cache_alloc(s->c);
        REQUIRE(object[i] != NULL);
    }
}

static inline void give(const struct scene *s, void *const *object, unsigned n)
{
    unsigned i;

    for (i = 0; i < n; i++)
        us_cache_free(s->c, object[i]);
}

#endif
