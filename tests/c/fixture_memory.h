/*
 * What the tests of memory/ and slab/ stand on: a machine of so many nodes with one CPU each, its
 * memory, and caches made by hand, without a policy.
 */
#ifndef FIXTURE_MEMORY_H
#define FIXTURE_MEMORY_H

#include <string.h>

#include "check.h"
#include "memory/memory.h"
#include "slab/slab.h"

#define MIB (1ull << 20)

/* An endless sequence that every run repeats (xorshift). */
static inline uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static inline struct us_machine *make_machine(unsigned nnodes)
{
    unsigned cpu_node[64], cpu_domain[64];
    struct us_topology topology = {nnodes, nnodes, nnodes, cpu_node, cpu_domain};
    struct us_error error = {0};

    REQUIRE(nnodes <= 64);
    for (unsigned i = 0; i < nnodes; i++)
        cpu_node[i] = cpu_domain[i] = i;
    struct us_machine *m = us_machine_create(&topology, 0, 1, &error);
    if (m == NULL)
        fprintf(stderr, "%s\n", error.text);
    REQUIRE(m != NULL);
    return m;
}

static inline struct us_memory *make_memory(struct us_machine *m, uint64_t budget)
{
    struct us_memory_options options = {.budget = budget, .purge_delay_ns = 1000};
    struct us_error error = {0};
    struct us_memory *mem = us_memory_create(m, &options, &error);

    if (mem == NULL)
        fprintf(stderr, "%s\n", error.text);
    REQUIRE(mem != NULL);
    return mem;
}

static inline void check_memory(struct us_memory *mem)
{
    struct us_error error = {0};

    if (!CHECK(us_memory_check(mem, &error)))
        fprintf(stderr, "%s\n", error.text);
}

static inline uint64_t free_pages(struct us_memory *mem, unsigned node)
{
    struct us_node_memory info;

    us_memory_node(mem, node, &info);
    return info.free;
}

/* Everything for slabs on one machine. */
struct world {
    struct us_machine *machine;
    struct us_memory *memory;
    struct us_slabs slabs;
    struct us_flight flight;
};

static inline void world_begin(struct world *w, unsigned nnodes, uint64_t budget)
{
    struct us_error error = {0};

    w->machine = make_machine(nnodes);
    w->memory = make_memory(w->machine, budget);
    REQUIRE(us_slabs_init(&w->slabs, w->memory, &error));
    us_flight_enter(w->machine, &w->flight);
}

static inline void world_end(struct world *w)
{
    us_flight_leave(&w->flight);
    check_memory(w->memory);
    us_memory_destroy(w->memory);
    us_machine_destroy(w->machine);
}

/* A cache that fills slabs of `order`, with slabs of the least order as the second choice. */
static inline struct us_cache *make_cache(struct world *w, const char *name, size_t size,
                                          unsigned order, enum us_object_state state)
{
    struct us_cache *c = aligned_alloc(US_LINE, (sizeof *c + US_LINE - 1) / US_LINE * US_LINE);
    size_t page_size = w->machine->page_size, stride = (size + 7) & ~(size_t)7;
    unsigned min_order = 0;

    REQUIRE(c != NULL);
    memset((void *)c, 0, sizeof *c);
    while (page_size << min_order < stride)
        min_order++;
    c->slabs = &w->slabs;
    c->machine = w->machine;
    c->size = size;
    c->geometry = (struct us_geometry){
        .stride = stride,
        .align = 8,
        .order = order,
        .objects = (unsigned)((page_size << order) / stride),
        .min_order = min_order < order ? min_order : order,
        .state = state,
    };
    c->geometry.min_objects = (unsigned)((page_size << c->geometry.min_order) / stride);
    c->reciprocal = us_reciprocal_of(stride);
    c->nr_slabs = calloc(w->machine->nnodes, sizeof *c->nr_slabs);
    c->nr_objects = calloc(w->machine->nnodes, sizeof *c->nr_objects);
    c->deferred = calloc(w->machine->nnodes, sizeof *c->deferred);
    REQUIRE(c->nr_slabs && c->nr_objects && c->deferred);
    snprintf(c->name, sizeof c->name, "%s", name);
    return c;
}

static inline void drop_cache(struct us_cache *c)
{
    free((void *)c->nr_slabs);
    free((void *)c->nr_objects);
    free((void *)c->deferred);
    free(c);
}

#endif
