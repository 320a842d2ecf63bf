/* cpu.c - making, replacing, ageing and showing the CPU queues of a cache. */
#include "queue/cpu.h"

#define CHUNK 256u /* pointers on the stack at once */

/* ---- life ------------------------------------------------------------------------------------ */

struct us_ring *us_cpu_ring_new(struct us_cache *c, unsigned cpu, struct us_ring_plan plan)
{
    const struct us_span span = us_ring_span(c, plan.any_node, us_node_of_cpu(c->machine, cpu));
    struct us_memory *mem = c->slabs->memory;
    const size_t bytes = us_ring_bytes(plan.capacity);
    const size_t account = plan.account ? plan.account : us_meta_rounded(mem, bytes);
    struct us_ring *ring = us_meta_alloc_as(mem, bytes, account);

    if (!ring)
        return NULL;
    us_ring_init(ring, plan.capacity, span.base, span.length);
    ring->account = account;
    atomic_store_explicit(&ring->seen, us_ring_header(ring), memory_order_relaxed);
    return ring;
}

void us_cpu_ring_free(struct us_cache *c, struct us_ring *ring)
{
    us_meta_free_as(c->slabs->memory, ring, us_ring_bytes(ring->capacity), ring->account);
}

bool us_cpu_ring_populate(struct us_cache *c, struct us_flight *f, unsigned cpu,
                          struct us_ring_plan plan)
{
    struct us_ring *ring;

    if (f->nested)
        return false;
    ring = us_cpu_ring_new(c, cpu, plan);
    if (!ring)
        return false;
    if (us_local_populate(&c->local, f, cpu, ring))
        return true;
    us_cpu_ring_free(c, ring);
    return false;
}

void us_cpu_rings_drop(struct us_cache *c)
{
    for (unsigned cpu = 0; cpu < c->machine->ncpus; cpu++) {
        if (c->local.region[cpu])
            us_cpu_ring_free(c, c->local.region[cpu]);
        c->local.region[cpu] = NULL;
    }
}

bool us_cpu_rings_make(struct us_cache *c, struct us_ring_plan plan, void **ring)
{
    for (unsigned cpu = 0; cpu < c->machine->ncpus; cpu++) {
        if (!us_local_populated(&c->local, cpu))
            continue;
        ring[cpu] = us_cpu_ring_new(c, cpu, plan);
        if (!ring[cpu])
            return false;
    }
    return true;
}

void us_cpu_rings_unmake(struct us_cache *c, void **ring)
{
    for (unsigned cpu = 0; cpu < c->machine->ncpus; cpu++)
        if (ring[cpu])
            us_cpu_ring_free(c, ring[cpu]);
}

/* The region is closed and ours: its oldest objects leave. */
static unsigned empty_ring(struct us_cache *c, struct us_flight *f, unsigned cpu,
                           struct us_ring *ring, unsigned most, enum us_seen seen,
                           us_drain_fn *drain)
{
    void *buffer[CHUNK];
    unsigned total = 0;

    while (total < most) {
        unsigned want = most - total < CHUNK ? most - total : CHUNK;
        unsigned n = us_ring_take_oldest_c(ring, buffer, want, seen);

        if (n == 0)
            break;
        us_local_moved(&c->local, cpu, 0, n);
        drain(c, f, cpu, buffer, n);
        total += n;
    }
    us_stat_add(c, cpu, US_OBJECTS_MOVED, total);
    return total;
}

static void move_ring(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_ring *from,
                      struct us_ring *to, bool keep, us_drain_fn *drain)
{
    const uint32_t room = keep ? to->capacity : 0, size = us_ring_size(from);
    void *object;

    if (size > room)
        empty_ring(c, f, cpu, from, size - room, US_SEEN_KEEP, drain);
    while (us_ring_take_oldest_c(from, &object, 1, US_SEEN_KEEP))
        us_ring_add_c(to, &object, 1, US_SEEN_TOUCH);
    if (!us_lock_take(f, &c->stats_lock)) /* readers look at rings, and do not stop at the gate */
        __builtin_trap();
    us_local_replace(&c->local, cpu, to);
    us_lock_drop(f, &c->stats_lock);
}

void us_cpu_rings_change(struct us_cache *c, struct us_flight *f, void **ring, bool keep,
                         us_drain_fn *drain)
{
    for (unsigned cpu = 0; cpu < c->machine->ncpus; cpu++) {
        struct us_ring *old = c->local.region[cpu];

        if (!ring[cpu])
            continue;
        move_ring(c, f, cpu, old, ring[cpu], keep, drain);
        us_cpu_ring_free(c, old);
    }
}

/* ---- bulk calls ------------------------------------------------------------------------------ */

size_t us_cpu_alloc_bulk(struct us_cache *c, const struct us_cpu_past *past, unsigned flags,
                         int node, size_t n, void **out)
{
    size_t got = 0;

    while (got < n) {
        if (node < 0) {
            size_t left = n - got;
            unsigned k = us_local_pop_batch(&c->local, out + got,
                                            left < US_BATCH_MAX ? (unsigned)left : US_BATCH_MAX);
            got += k;
            if (k)
                continue;
            got += past->take ? past->take(c, left, out + got) : 0;
            if (got == n)
                break;
        }
        out[got] = past->alloc(c, flags, node);
        if (!out[got])
            break;
        got++;
    }
    return got;
}

/* How many of the first `most` objects a ring of this span takes. */
static unsigned run_of(void *const *object, size_t most, struct us_span span)
{
    unsigned limit = most < US_BATCH_MAX ? (unsigned)most : US_BATCH_MAX, n = 0;

    while (n < limit && (uint64_t)(uintptr_t)object[n] - span.base < span.length)
        n++;
    return n;
}

/* Pushes the first of n > 0 objects, as many as one sequence takes; returns how many. *all: the
 * next is not known to miss. */
static unsigned push_run(struct us_cache *c, bool any_node, size_t n, void *const *object,
                         bool *all)
{
    const struct us_range *r = &c->slabs->range;
    unsigned run = 0, pushed = 0;

    us_reads(&c->slabs, sizeof(c->slabs));
    if (US_LIKELY(us_in_range(r, object[0]))) {
        const struct us_span span = us_ring_span(c, any_node, us_node_of(r, object[0]));

        run = run_of(object, n, span);
        us_runs(20 + 5 * run);
        pushed = us_local_push_batch(&c->local, object, run, span.base);
    }
    *all = run && pushed == run;
    return pushed;
}

void us_cpu_free_bulk(struct us_cache *c, const struct us_cpu_past *past, bool any_node, size_t n,
                      void *const *object)
{
    size_t i = 0, went;
    bool all;

    while (i < n) {
        i += push_run(c, any_node, n - i, object + i, &all);
        if (all)
            continue;
        went = past->put ? past->put(c, n - i, object + i) : 0;
        i += went;
        if (went == 0)
            past->free(c, object[i++]);
    }
}

/* ---- ageing, flushing ------------------------------------------------------------------------ */

bool us_cpu_wants_visit(const struct us_cache *c, unsigned cpu)
{
    const struct us_ring *ring = us_local_ring(&c->local, cpu);

    return ring && (us_ring_size(ring) || us_ring_touched(ring));
}

unsigned us_cpu_age(struct us_cache *c, struct us_flight *f, unsigned cpu, us_due_fn *due,
                    bool try_only, us_drain_fn *drain)
{
    struct us_ring *ring;
    void *region;
    unsigned n;

    if (!us_cpu_wants_visit(c, cpu))
        return 0;
    if (!us_local_close(&c->local, f, cpu, try_only, &region))
        return 0;
    ring = region;
    n = ring ? due(c, ring) : 0;
    if (ring && n > us_ring_size(ring))
        n = us_ring_size(ring);

    void *buffer[n + 1];

    if (n) {
        us_ring_take_oldest_c(ring, buffer, n, US_SEEN_COMMIT);
        us_local_moved(&c->local, cpu, 0, n);
    }
    if (ring)
        atomic_store_explicit(&ring->seen, us_ring_header(ring), memory_order_relaxed);
    us_local_open(&c->local, f, cpu);
    if (n == 0)
        return 0;
    us_stat_add(c, cpu, US_OBJECTS_MOVED, n);
    drain(c, f, cpu, buffer, n);
    return n;
}

unsigned us_cpu_flush(struct us_cache *c, struct us_flight *f, unsigned cpu, bool try_only,
                      enum us_seen seen, us_drain_fn *drain)
{
    unsigned n = 0;
    void *region;

    if (!us_local_close(&c->local, f, cpu, try_only, &region))
        return 0;
    if (region)
        n = empty_ring(c, f, cpu, region, UINT32_MAX, seen, drain);
    us_local_open(&c->local, f, cpu);
    return n;
}

/* ---- showing --------------------------------------------------------------------------------- */

uint64_t us_cpu_rings_held(const struct us_cache *c)
{
    uint64_t total = 0;

    for (unsigned cpu = 0; cpu < c->machine->ncpus; cpu++) {
        const struct us_ring *ring = us_local_ring(&c->local, cpu);

        total += ring ? us_ring_size(ring) : 0;
    }
    return total;
}

void us_visit_ring(const struct us_visitor *v, struct us_stock *stock, const struct us_ring *ring,
                   us_touched_fn *touched)
{
    void *object[US_RING_MAX];
    uint64_t h = us_ring_header(ring);
    uint32_t i, size = us_header_size(h), head = us_header_head(h);

    for (i = 0; i < size; i++)
        object[i] = ring->object[(head + i) & ring->mask];
    stock->objects = size;
    stock->capacity = ring->capacity;
    stock->touched = touched(ring);
    v->stock(v->context, stock, object);
}

void us_visit_cpu_rings(struct us_cache *c, const struct us_visitor *v, const char *name,
                        us_touched_fn *touched)
{
    const struct us_machine *m = c->machine;

    for (unsigned cpu = 0; cpu < m->ncpus; cpu++) {
        struct us_stock stock = {.kind = US_STOCK_CPU,
                                 .name = name,
                                 .cpu = (int)cpu,
                                 .domain = (int)us_domain_of_cpu(m, cpu),
                                 .node = (int)us_node_of_cpu(m, cpu)};
        if (us_local_ring(&c->local, cpu))
            us_visit_ring(v, &stock, us_local_ring(&c->local, cpu), touched);
    }
}
