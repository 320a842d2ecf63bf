/* slow.c - see slow.h. */
#include "queue/slow.h"

/* ---- frees ----------------------------------------------------------------------------------- */

static void defer(struct us_cache *c, const struct us_ring_levels *levels, void *object)
{
    us_count(c, us_cpu_now(c->machine), levels->deferred_row);
    us_defer_free(c, object);
}

/* True when objects of `node` go to this CPU's ring. */
static bool is_home(const struct us_cache *c, const struct us_ring_levels *levels, unsigned cpu,
                    unsigned node)
{
    return us_node_of_cpu(c->machine, cpu) == node || levels->plan(c).any_node;
}

/* False = not now: a signal handler leaves the queues alone when their locks may be busy. */
static bool free_one(struct us_cache *c, const struct us_ring_levels *levels, struct us_flight *f,
                     void *object)
{
    const unsigned node = us_node_of(&c->slabs->range, object);
    unsigned cpu = us_cpu_now(c->machine);
    int tries;

    if (f->nested)
        return us_local_push(&c->local, f, object, &cpu) == US_LOCAL_OK;
    us_deferred_check(c, f, node, levels->put_late);
    for (tries = 0; tries < 2 && is_home(c, levels, cpu, node); tries++) {
        if (us_local_push(&c->local, f, object, &cpu))
            return true;
        if (is_home(c, levels, cpu, node) && (us_local_populated(&c->local, cpu) ||
                                              !us_cpu_ring_populate(c, f, cpu, levels->plan(c))))
            break;
    }
    if (!is_home(c, levels, cpu, node))
        return levels->free_far(c, f, cpu, node, object);
    if (us_local_is_open(&c->local, cpu))
        levels->overflow(c, f, cpu, node, object);
    else
        levels->free_past(c, f, cpu, node, object);
    return true;
}

US_NOINLINE void us_ring_free_slow(struct us_cache *c, const struct us_ring_levels *levels,
                                   void *object)
{
    struct us_flight f;

    us_runs(98);
    us_reads(&c->slabs, sizeof(c->slabs));
    if (!object)
        return;
    if (US_UNLIKELY(!us_in_range(&c->slabs->range, object))) {
        us_report_misuse(c, US_MISUSE_OUTSIDE, object);
        return;
    }
    if (US_UNLIKELY(!us_flight_try(c->machine, &f))) {
        defer(c, levels, object);
        return;
    }
    if (!free_one(c, levels, &f, object))
        defer(c, levels, object);
    us_flight_leave(&f);
}

/* ---- allocations ----------------------------------------------------------------------------- */

/* The thread moved to another node before it took `object`, or queues hold objects of any node: it
 * goes back, and one of the node it was to be of comes as from afar. */
static US_COLD void *on_this_node(struct us_cache *c, const struct us_ring_levels *levels,
                                  struct us_flight *f, unsigned node, unsigned flags, void *object)
{
    if (!free_one(c, levels, f, object))
        defer(c, levels, object);
    return levels->alloc_far(c, f, us_cpu_now(c->machine), node, flags, true);
}

static void *alloc_near(struct us_cache *c, const struct us_ring_levels *levels,
                        struct us_flight *f, unsigned cpu, unsigned flags)
{
    void *object;

    if (us_local_pop(&c->local, f, &object, &cpu))
        return object;
    if (US_UNLIKELY(!us_local_populated(&c->local, cpu)))
        us_cpu_ring_populate(c, f, cpu, levels->plan(c));
    return levels->alloc(c, f, cpu, flags);
}

US_NOINLINE void *us_ring_alloc_slow(struct us_cache *c, const struct us_ring_levels *levels,
                                     unsigned flags, int node)
{
    struct us_flight f;
    unsigned cpu, local;
    void *object;

    us_runs(68);
    us_reads(&c->machine, sizeof(c->machine));
    if (US_UNLIKELY(!us_flight_try(c->machine, &f)))
        return NULL;
    cpu = us_cpu_now(c->machine);
    local = us_node_of_cpu(c->machine, cpu);
    us_deferred_check(c, &f, node < 0 ? local : (unsigned)node, levels->put_late);
    if (node < 0 || (unsigned)node == local)
        object = alloc_near(c, levels, &f, cpu, flags);
    else
        object = levels->alloc_far(c, &f, cpu, (unsigned)node, flags, false);
    if (US_UNLIKELY(object && (flags & US_THISNODE) && node >= 0 &&
                    us_node_of(&c->slabs->range, object) != (unsigned)node))
        object = on_this_node(c, levels, &f, (unsigned)node, flags, object);
    us_flight_leave(&f);
    return object;
}

void *us_ring_alloc_node(struct us_cache *c, const struct us_ring_levels *levels, bool mixed,
                         unsigned flags, int node)
{
    void *object;

    if ((node < 0 || (unsigned)node == us_node_of_cpu(c->machine, us_cpu_now(c->machine))) &&
        us_local_pop_batch(&c->local, &object, 1)) {
        if (node < 0 || mixed || us_node_of(&c->slabs->range, object) == (unsigned)node)
            return object;
        c->head.free(c, object); /* the thread moved meanwhile, or the ring holds any node's */
    }
    return us_ring_alloc_slow(c, levels, flags, node);
}
