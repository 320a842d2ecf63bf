/* unified_resize.c - live resizing of the queues of the Unified policy.
 *
 * The caller is alone in the allocator (gate shut, the cache's regions closed), so this is plain
 * code: the new rings and queues are made first, then objects move over, the oldest that find no
 * room going to slabs, then the old ones are freed. When memory for the new ones cannot be had
 * nothing has changed.
 */
#include <stdio.h>
#include <string.h>

#include "policy/unified.h"

struct us_unified_sizes us_unified_sizes_of(const struct us_cache *c)
{
    const struct us_unified *st = us_unified_of(c);

    return (struct us_unified_sizes){
        .queue = c->tunable[US_UNIFIED_T_CPU_QUEUE],
        .batch = c->tunable[US_UNIFIED_T_BATCH],
        .shared = c->tunable[US_UNIFIED_T_SHARED_QUEUE],
        .alien = c->tunable[US_UNIFIED_T_ALIEN_QUEUE],
        .grown_queue = st->grown_queue,
        .grown_shared = st->grown_shared,
    };
}

static void plan_for(struct us_cache *c, const struct us_unified_sizes *wish)
{
    struct us_unified *st = us_unified_of(c);

    c->tunable[US_UNIFIED_T_CPU_QUEUE] = wish->queue;
    c->tunable[US_UNIFIED_T_BATCH] = wish->batch;
    c->tunable[US_UNIFIED_T_SHARED_QUEUE] = wish->shared;
    c->tunable[US_UNIFIED_T_ALIEN_QUEUE] = wish->alien;
    st->grown_queue = wish->grown_queue;
    st->grown_shared = wish->grown_shared;
    us_unified_plan(c, st);
}

/* ---- CPU rings ----------------------------------------------------------------------------------
 */

static bool make_rings(struct us_cache *c, void **ring)
{
    for (unsigned cpu = 0; cpu < c->machine->ncpus; cpu++) {
        if (!us_local_populated(&c->local, cpu))
            continue;
        ring[cpu] = us_unified_new_ring(c, cpu);
        if (!ring[cpu])
            return false;
    }
    return true;
}

static void free_rings(struct us_cache *c, void **ring, uint32_t capacity)
{
    for (unsigned cpu = 0; ring && cpu < c->machine->ncpus; cpu++)
        if (ring[cpu])
            us_meta_free(c->slabs->memory, ring[cpu], us_ring_bytes(capacity));
}

static void move_ring(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_ring *from,
                      struct us_ring *to)
{
    void *object;

    while (us_ring_size(from) > to->capacity &&
           us_ring_take_oldest_c(from, &object, 1, US_SEEN_KEEP)) {
        us_local_moved(&c->local, cpu, 0, 1);
        us_unified_drain(c, f, cpu, &object, 1);
    }
    while (us_ring_take_oldest_c(from, &object, 1, US_SEEN_KEEP))
        us_ring_add_c(to, &object, 1, US_SEEN_TOUCH);
    if (!us_lock_take(f, &c->stats_lock)) /* readers look at rings, and do not stop at the gate */
        __builtin_trap();
    us_local_replace(&c->local, cpu, to);
    us_lock_drop(f, &c->stats_lock);
}

static void change_rings(struct us_cache *c, struct us_flight *f, void **fresh, uint32_t capacity)
{
    for (unsigned cpu = 0; cpu < c->machine->ncpus; cpu++) {
        struct us_ring *old = c->local.region[cpu];

        if (!fresh[cpu])
            continue;
        move_ring(c, f, cpu, old, fresh[cpu]);
        us_meta_free(c->slabs->memory, old, us_ring_bytes(capacity));
    }
}

/* ---- shared and alien queues
 * --------------------------------------------------------------------- */

static void move_queue(struct us_cache *c, struct us_flight *f, struct us_queue *from,
                       struct us_queue *to)
{
    const unsigned cpu = us_cpu_now(c->machine);
    void *object;

    if (!from || !to)
        return;
    if (us_queue_size(from) > to->capacity)
        us_unified_flush_queue(c, f, cpu, from, us_queue_size(from) - to->capacity);
    while (us_ring_take_oldest_c(from->ring, &object, 1, US_SEEN_KEEP))
        us_ring_add_c(to->ring, &object, 1, US_SEEN_TOUCH);
}

/* Makes the second level that the plan says; NULL = no memory, and the present one stays. Else the
 * result is the former one, still holding its objects. */
static struct us_unified_domain *make_second_level(struct us_cache *c)
{
    struct us_unified *st = us_unified_of(c);
    struct us_unified_domain *old = st->domain;
    const size_t bytes = c->machine->ndomains * sizeof(*old);

    st->domain = us_meta_alloc(c->slabs->memory, bytes);
    if (st->domain && us_unified_make_queues(c))
        return old;
    if (st->domain) {
        us_unified_drop_queues(c, NULL);
        us_meta_free(c->slabs->memory, st->domain, bytes);
    }
    st->domain = old;
    return NULL;
}

static void leave_second_level(struct us_cache *c, struct us_flight *f,
                               struct us_unified_domain *old)
{
    struct us_unified *st = us_unified_of(c);
    struct us_unified_domain *fresh = st->domain;
    unsigned d, n;

    for (d = 0; d < c->machine->ndomains; d++) {
        move_queue(c, f, old[d].shared, fresh[d].shared);
        for (n = 0; old[d].alien && fresh[d].alien && n < c->machine->nnodes; n++)
            move_queue(c, f, old[d].alien[n], fresh[d].alien[n]);
    }
    st->domain = old;
    us_unified_drop_queues(c, f);
    us_meta_free(c->slabs->memory, old, c->machine->ndomains * sizeof(*old));
    st->domain = fresh;
}

/* ---- both
 * ------------------------------------------------------------------------------------------- */

static enum us_status no_memory(struct us_cache *c, struct us_error *e)
{
    if (e) {
        memset(e, 0, sizeof(*e));
        e->status = US_ENOMEM;
        snprintf(e->text, sizeof(e->text), "no memory to resize the queues of cache '%s'", c->name);
    }
    return US_ENOMEM;
}

enum us_status us_unified_resize(struct us_cache *c, struct us_flight *f,
                                 const struct us_unified_sizes *wish, struct us_error *e)
{
    const struct us_unified_sizes before = us_unified_sizes_of(c);
    const uint32_t old_capacity = us_unified_of(c)->cpu_capacity;
    const size_t table = c->machine->ncpus * sizeof(void *);
    struct us_memory *mem = c->slabs->memory;
    struct us_unified_domain *old = NULL;
    void **fresh = us_meta_alloc(mem, table);

    plan_for(c, wish);
    if (fresh && make_rings(c, fresh))
        old = make_second_level(c);
    if (!old) {
        free_rings(c, fresh, us_unified_of(c)->cpu_capacity);
        plan_for(c, &before);
    } else {
        change_rings(c, f, fresh, old_capacity);
        leave_second_level(c, f, old);
    }
    if (fresh)
        us_meta_free(mem, fresh, table);
    return old ? US_OK : no_memory(c, e);
}
