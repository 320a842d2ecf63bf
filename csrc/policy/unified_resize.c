/* unified_resize.c - live resizing of the queues of the Unified policy.
 *
 * The caller is alone in the allocator (gate shut, the cache's regions closed), so this is plain
 * code: the new rings and queues are made first, then objects move over, the oldest that find no
 * room going to slabs (all of them where the form says so), then the old ones are freed. When
 * memory for the new ones cannot be had nothing has changed.
 */
#include "policy/unified.h"

struct us_unified_sizes us_unified_sizes_of(const struct us_cache *c)
{
    const struct us_unified *st = us_unified_of(c);

    return (struct us_unified_sizes){
        .queue = c->tunable[US_UNIFIED_T_CPU_QUEUE],
        .batch = c->tunable[US_UNIFIED_T_BATCH],
        .shared = us_unified_setting(c, US_UNIFIED_T_SHARED_QUEUE),
        .alien = us_unified_setting(c, US_UNIFIED_T_ALIEN_QUEUE),
        .grown_queue = st->grown_queue,
        .grown_shared = st->grown_shared,
    };
}

static void plan_for(struct us_cache *c, const struct us_unified_sizes *wish)
{
    struct us_unified *st = us_unified_of(c);

    c->tunable[US_UNIFIED_T_CPU_QUEUE] = wish->queue;
    c->tunable[US_UNIFIED_T_BATCH] = wish->batch;
    if (us_unified_form_of(c)->second_level) {
        c->tunable[US_UNIFIED_T_SHARED_QUEUE] = wish->shared;
        c->tunable[US_UNIFIED_T_ALIEN_QUEUE] = wish->alien;
    }
    st->grown_queue = wish->grown_queue;
    st->grown_shared = wish->grown_shared;
    us_unified_plan(c, st);
}

/* ---- shared and alien queues
 * --------------------------------------------------------------------- */

static void move_queue(struct us_cache *c, struct us_flight *f, struct us_queue *from,
                       struct us_queue *to)
{
    if (from && to)
        us_queue_move(c, f, us_cpu_now(c->machine), from, to, us_unified_drain);
}

/* Both have as many shards. */
static void move_shards(struct us_cache *c, struct us_flight *f, struct us_queue *from,
                        struct us_queue *to)
{
    const struct us_queue *first = from;

    if (!from || !to)
        return;
    do {
        move_queue(c, f, from, to);
        from = from->next;
        to = to->next;
    } while (from != first);
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
    us_unified_point_cpus(c);
    return NULL;
}

static void leave_second_level(struct us_cache *c, struct us_flight *f,
                               struct us_unified_domain *old)
{
    struct us_unified *st = us_unified_of(c);
    struct us_unified_domain *fresh = st->domain;
    unsigned d, n;

    for (d = 0; !us_unified_form_of(c)->resize_drains && d < c->machine->ndomains; d++) {
        move_shards(c, f, old[d].shared, fresh[d].shared);
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

static void count_flushes(struct us_cache *c)
{
    for (unsigned cpu = 0; cpu < c->machine->ncpus; cpu++)
        us_count(c, cpu, US_UNIFIED_QUEUE_FLUSH);
}

enum us_status us_unified_resize(struct us_cache *c, struct us_flight *f,
                                 const struct us_unified_sizes *wish, struct us_error *e)
{
    const struct us_unified_sizes before = us_unified_sizes_of(c);
    const uint32_t old_queue = us_unified_of(c)->queue;
    const size_t table = c->machine->ncpus * sizeof(void *);
    struct us_memory *mem = c->slabs->memory;
    struct us_unified_domain *old = NULL;
    void **fresh = us_meta_alloc(mem, table);

    bool empties;

    plan_for(c, wish);
    /* As posted: the old queues are flushed, not moved; shared queues leave in any case. */
    empties = us_unified_form_of(c)->resize_drains && us_unified_of(c)->queue != old_queue;
    if (fresh && us_cpu_rings_make(c, us_unified_ring_plan(c), fresh))
        old = make_second_level(c);
    if (!old) {
        if (fresh)
            us_cpu_rings_unmake(c, fresh);
        plan_for(c, &before);
    } else {
        if (empties)
            count_flushes(c);
        us_cpu_rings_change(c, f, fresh, !empties, us_unified_drain);
        leave_second_level(c, f, old);
    }
    if (fresh)
        us_meta_free(mem, fresh, table);
    if (old)
        return US_OK;
    return us_fail(e, US_ENOMEM, "no memory to resize the queues of cache '%s'", c->name);
}
