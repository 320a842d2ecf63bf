// machines: model
/* Machines of odd shapes and page sizes: the same traffic under every policy, with and without
 * debug, ends with balanced books and all pages given back. */
#include "fixture_cache.h"

#include <stdio.h>

#define MOST_CPUS 64

struct shape {
    const char *name;
    unsigned ncpus, nnodes, ndomains;
    unsigned node[MOST_CPUS], domain[MOST_CPUS];
};

static uint64_t seed;

static unsigned draw(unsigned below)
{
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(seed >> 33) % below;
}

static struct us_allocator *open_odd(const struct shape *s, const char *policy, unsigned page_size,
                                     bool debug_f)
{
    const struct us_topology t = {s->ncpus, s->nnodes, s->ndomains, s->node, s->domain};
    struct us_error e = {.status = US_OK};
    struct us_allocator_options o;
    struct us_allocator *a;

    us_allocator_options_init(&o);
    o.policy = policy;
    o.topology = &t;
    o.page_size = page_size;
    o.debug_f = debug_f;
    o.memory = (uint64_t)s->nnodes * 3000 * page_size;
    a = us_allocator_create(&o, &e);
    if (!a)
        fprintf(stderr, "%s, %s, pages of %u: %s\n", s->name, policy, page_size, e.text);
    REQUIRE(a != NULL);
    return a;
}

/* ---- traffic ----------------------------------------------------------------------------------
 */

enum { SLOTS = 500, STEPS = 8000 };

static struct {
    void *object;
    struct us_cache *cache; /* NULL = kmalloc */
} slot[SLOTS];

static void release(struct us_allocator *a, unsigned i)
{
    if (slot[i].object && slot[i].cache)
        us_cache_free(slot[i].cache, slot[i].object);
    else if (slot[i].object)
        us_kfree(a, slot[i].object);
    slot[i].object = NULL;
}

static void obtain(struct us_allocator *a, unsigned i, struct us_cache *c, size_t size)
{
    const int node = draw(4) ? US_ANY_NODE : (int)draw(a->machine->nnodes);
    const unsigned flags = node >= 0 && draw(2) ? US_THISNODE : 0;
    char *object = c ? us_cache_alloc_node(c, flags, node) : us_kmalloc(a, size, flags, node);

    release(a, i);
    slot[i].cache = c;
    slot[i].object = object;
    REQUIRE(object != NULL);
    if (c)
        size = c->size;
    object[0] = object[size - 1] = (char)i;
    if (flags)
        CHECK_EQ(us_node_of(us_memory_range(a->memory), object), node);
}

static void disturb(struct us_allocator *a, struct us_cache *c)
{
    switch (draw(5)) {
    case 0:
        us_allocator_expire(a, (int)draw(a->machine->nnodes));
        break;
    case 1:
        us_cache_shrink(c);
        break;
    case 2:
        us_allocator_advance(a, 30000000);
        break;
    case 3:
        if (strcmp(a->policy->name, "unified") == 0)
            CHECK_EQ(us_tunable_set(c, "cpu_queue_size", draw(2) ? "20" : "200", NULL), US_OK);
        break;
    default:
        us_allocator_flush(a);
    }
}

static void traffic(struct us_allocator *a)
{
    const size_t page = a->machine->page_size;
    struct us_cache *c[] = {
        fixture_cache(a, "small", 40, 0),
        fixture_cache(a, "lines", 100, US_HWCACHE_ALIGN),
        fixture_cache(a, "low", 64, US_LOWMEM),
        fixture_cache(a, "page", page, 0),
        fixture_cache(a, "large", 5 * page / 2, 0),
    };

    for (unsigned step = 0; step < STEPS; step++) {
        const unsigned i = draw(SLOTS), kind = draw(12);

        if (step % 16 == 0)
            REQUIRE(us_machine_on_cpu(a->machine, (int)draw(a->machine->ncpus), NULL) >= 0);
        if (draw(2))
            release(a, i);
        else if (kind < 5)
            obtain(a, i, c[kind], 0);
        else
            obtain(a, i, NULL, 1 + draw(kind == 5 ? (unsigned)(3 * page) : 5000));
        if (step % 200 == 0)
            disturb(a, c[draw(5)]);
    }
    for (unsigned i = 0; i < SLOTS; i++)
        release(a, i);
}

static void check_on(const struct shape *s, unsigned page_size)
{
    FOR_EACH_POLICY(policy)
    {
        for (unsigned debug_f = 0; debug_f < 2; debug_f++) {
            struct us_allocator *a = open_odd(s, policy, page_size, debug_f);
            struct us_memory_account memory;
            struct us_account total;

            traffic(a);
            fixture_balance(a);
            us_allocator_shrink(a);
            us_allocator_account(a, &total, &memory);
            CHECK_EQ(total.live_objects, 0);
            if (!CHECK_EQ(memory.reserved, 0))
                fixture_tell_slabs(a);
            CHECK_EQ(memory.resident, 0);
            fixture_close(a);
        }
    }
}

/* ---- shapes -----------------------------------------------------------------------------------
 */

/* cpus CPUs dealt out to nodes, and domains of `each` CPUs. */
static void check_shape(const char *name, unsigned cpus, unsigned nodes, unsigned each, bool dealt)
{
    struct shape s = {.name = name, .ncpus = cpus, .nnodes = nodes};

    for (unsigned cpu = 0; cpu < cpus; cpu++) {
        s.node[cpu] = dealt ? cpu % nodes : cpu * nodes / cpus;
        s.domain[cpu] = cpu / each;
    }
    s.ndomains = (cpus + each - 1) / each;
    check_on(&s, 0);
}

static void nodes_that_are_no_power_of_two(void)
{
    check_shape("3 nodes", 6, 3, 2, false);
    check_shape("5 nodes", 5, 5, 1, false);
    check_shape("7 nodes, CPUs dealt out", 16, 7, 4, true);
}

static void many_cpus(void)
{
    check_shape("64 CPUs, 8 nodes", 64, 8, 4, false);
    check_shape("64 CPUs, 8 nodes, domains across nodes", 64, 8, 8, true);
}

/* Node 1 of three has no CPU, and node 2 has one that is alone. */
static void nodes_without_cpus(void)
{
    static const struct shape s = {
        .name = "memory without CPUs",
        .ncpus = 3,
        .nnodes = 3,
        .ndomains = 2,
        .node = {0, 0, 2},
        .domain = {0, 0, 1},
    };
    static const struct shape one = {
        .name = "1 CPU, 4 nodes", .ncpus = 1, .nnodes = 4, .ndomains = 1};

    check_on(&s, 0);
    check_on(&one, 0);
}

static void pages_of_other_sizes(void)
{
    static const unsigned size[] = {8192, 16384, 32768, 65536, 131072, 1u << 19, 1u << 20};
    static const struct shape s = {
        .name = "2 nodes",
        .ncpus = 4,
        .nnodes = 2,
        .ndomains = 2,
        .node = {0, 0, 1, 1},
        .domain = {0, 0, 1, 1},
    };

    for (unsigned i = 0; i < sizeof(size) / sizeof(size[0]); i++)
        check_on(&s, size[i]);
}

int main(int argc, char **argv)
{
    seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    RUN(nodes_that_are_no_power_of_two);
    RUN(many_cpus);
    RUN(nodes_without_cpus);
    RUN(pages_of_other_sizes);
    return check_result();
}
