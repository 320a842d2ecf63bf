/* cpu.h - the CPU queues of a cache: ring regions (machine/local.h), all of one plan.
 *
 * What every policy with a ring for each CPU does alike: making and replacing rings, bulk calls
 * over them, ageing and flushing them from any thread, showing them. Where objects go that leave a
 * ring, and where one comes from that a ring cannot give, is the policy's to say (us_drain_fn and
 * the single calls).
 */
#ifndef US_QUEUE_CPU_H
#define US_QUEUE_CPU_H

#include "machine/local.h"
#include "slab/visit.h"

/* How each ring of a cache is made. */
struct us_ring_plan {
    uint32_t capacity;
    bool any_node;  /* takes objects of every node, not the CPU's alone */
    size_t account; /* bytes of metadata that the original's takes; 0 = ours */
};

/* First address and length of what a ring takes. */
struct us_span {
    uint64_t base, length;
};
US_INLINE struct us_span us_ring_span(const struct us_cache *c, bool any_node, unsigned node)
{
    const struct us_range *r = &c->slabs->range;

    if (any_node)
        return (struct us_span){r->base, r->length};
    return (struct us_span){us_node_base(r, node), us_node_length(r)};
}

/* ---- life ------------------------------------------------------------------------------------ */

/* A new ring, untouched; NULL = no memory. */
struct us_ring *us_cpu_ring_new(struct us_cache *c, unsigned cpu, struct us_ring_plan plan);
void us_cpu_ring_free(struct us_cache *c, struct us_ring *ring);
/* The CPU's first ring, in a slow path; false when it has one already or cannot get one now. */
bool us_cpu_ring_populate(struct us_cache *c, struct us_flight *f, unsigned cpu,
                          struct us_ring_plan plan);
/* At the end of the cache: frees every CPU's ring. */
void us_cpu_rings_drop(struct us_cache *c);

/* Live resizing, alone in the allocator (a tunable's setter). First new rings for all CPUs that
 * have one, or none at all (false), into ring[ncpus]; then the change, which cannot fail. */
bool us_cpu_rings_make(struct us_cache *c, struct us_ring_plan plan, void **ring);
void us_cpu_rings_unmake(struct us_cache *c, void **ring);
/* The objects move over but for the oldest that find no room; keep = false: all leave. */
void us_cpu_rings_change(struct us_cache *c, struct us_flight *f, void **ring, bool keep,
                         us_drain_fn *drain);

/* ---- bulk calls ------------------------------------------------------------------------------ */

/* What serves objects that the ring cannot. */
struct us_cpu_past {
    void *(*alloc)(struct us_cache *c, unsigned flags, int node);
    void (*free)(struct us_cache *c, void *object);
    /* Many at once, straight between caller and next level, where single calls would carry them
     * through the ring; return how many, 0 = as single calls do it. NULL = never. */
    size_t (*take)(struct us_cache *c, size_t n, void **out);
    size_t (*put)(struct us_cache *c, size_t n, void *const *object);
};
/* Leave counters and queues as n single calls. */
size_t us_cpu_alloc_bulk(struct us_cache *c, const struct us_cpu_past *past, unsigned flags,
                         int node, size_t n, void **out);
void us_cpu_free_bulk(struct us_cache *c, const struct us_cpu_past *past, bool any_node, size_t n,
                      void *const *object);

/* ---- ageing, flushing ------------------------------------------------------------------------ */

/* The policy's rule: how many of the oldest leave a queue that is visited now. */
typedef unsigned us_due_fn(const struct us_cache *c, const struct us_ring *ring);
/* Racily: has a visit to a CPU's ring anything to do? Not when it is empty and untouched. */
bool us_cpu_wants_visit(const struct us_cache *c, unsigned cpu);
/* One visit to a CPU's ring: what is due goes where `drain` puts it, and the ring counts as
 * untouched from then on. Returns how many left. */
unsigned us_cpu_age(struct us_cache *c, struct us_flight *f, unsigned cpu, us_due_fn *due,
                    bool try_only, us_drain_fn *drain);
/* Empties a CPU's ring; `seen` says whether that unmarks it. */
unsigned us_cpu_flush(struct us_cache *c, struct us_flight *f, unsigned cpu, bool try_only,
                      enum us_seen seen, us_drain_fn *drain);

/* ---- showing --------------------------------------------------------------------------------- */

uint64_t us_cpu_rings_held(const struct us_cache *c); /* objects, as a racy reader sees them */
/* The policy's rule: was it used since the last ageing visit? (us_ring_touched is one.) */
typedef bool us_touched_fn(const struct us_ring *ring);
/* Fills in what the ring says of the stock and shows it. */
void us_visit_ring(const struct us_visitor *v, struct us_stock *stock, const struct us_ring *ring,
                   us_touched_fn *touched);
void us_visit_cpu_rings(struct us_cache *c, const struct us_visitor *v, const char *name,
                        us_touched_fn *touched);

#endif
