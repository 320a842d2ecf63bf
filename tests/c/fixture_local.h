/*
 * What the tests of local queues stand on: a machine, and regions of ring or list kind on it whose
 * nodes are ranges of addresses that nobody reads.
 */
#ifndef FIXTURE_LOCAL_H
#define FIXTURE_LOCAL_H

#include "machine/local.h"
#include "ring_model.h"

/* `nodes` nodes with `each` CPUs, a domain for each node. */
static inline struct us_machine *machine_of(unsigned nodes, unsigned each)
{
    unsigned cpu_node[64];
    struct us_topology t = {nodes * each, nodes, nodes, cpu_node, cpu_node};
    struct us_error error = {0};
    struct us_machine *m;

    REQUIRE(nodes * each <= 64);
    for (unsigned i = 0; i < nodes * each; i++)
        cpu_node[i] = i / each;
    m = us_machine_create(&t, 0, 1, &error);
    if (m == NULL)
        fprintf(stderr, "%s\n", error.text);
    REQUIRE(m != NULL);
    return m;
}

static inline void *local_get(void *context, size_t bytes)
{
    void *base = aligned_alloc(US_LINE, (bytes + 63) / 64 * 64);

    (void)context;
    REQUIRE(base != NULL);
    return memset(base, 0, (bytes + 63) / 64 * 64);
}
static inline void local_put(void *context, void *base, size_t bytes)
{
    (void)context;
    (void)bytes;
    free(base);
}
static const struct us_local_memory local_memory = {local_get, local_put, NULL};

/* Node n's range; all nodes' are alike long and lie one behind the other. */
static inline uint64_t node_base(unsigned node)
{
    return MODEL_BASE + node * MODEL_BYTES;
}

static inline void *new_ring(unsigned capacity, unsigned node)
{
    struct us_ring *r = local_get(NULL, us_ring_bytes(capacity));

    us_ring_init(r, capacity, node_base(node), MODEL_BYTES);
    return r;
}

static inline void *new_words(unsigned node)
{
    struct us_words *w = local_get(NULL, sizeof *w);

    us_words_init(w, node_base(node), MODEL_BYTES);
    return w;
}

static inline void *new_sheaves(unsigned node)
{
    struct us_words *w = local_get(NULL, sizeof *w);

    us_sheaves_init(w, node_base(node), MODEL_BYTES);
    return w;
}

static inline struct us_sheaf *new_sheaf(uint32_t capacity)
{
    struct us_sheaf *s = local_get(NULL, us_sheaf_bytes(capacity));

    us_sheaf_init(s, capacity);
    return s;
}

static inline void *new_region(enum us_region_kind kind, unsigned capacity, unsigned node)
{
    if (kind == US_REGION_RING)
        return new_ring(capacity, node);
    return kind == US_REGION_SHEAVES ? new_sheaves(node) : new_words(node);
}

/* Queues of a cache with a region on each CPU; one node for all when `one_node`. */
static inline void make_local(struct us_local *l, struct us_machine *m, enum us_mode mode,
                              enum us_region_kind kind, ptrdiff_t link, unsigned capacity,
                              bool one_node)
{
    struct us_flight f;

    REQUIRE(us_local_init(l, m, mode, kind, link, &local_memory));
    us_flight_enter(m, &f);
    for (unsigned cpu = 0; cpu < m->ncpus; cpu++) {
        unsigned node = one_node ? 0 : us_node_of_cpu(m, cpu);

        REQUIRE(us_local_populate(l, &f, cpu, new_region(kind, capacity, node)));
    }
    us_flight_leave(&f);
}

static inline void drop_local(struct us_local *l)
{
    for (unsigned cpu = 0; cpu < l->machine->ncpus; cpu++)
        free(l->region[cpu]);
    us_local_fini(l, &local_memory);
}

#endif
