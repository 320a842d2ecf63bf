/* unified_age.c - expiration, flushing and shrinking under the Unified policy.
 *
 * Expiration has four stages, least to most harmful: partial lists, alien queues, shared queues,
 * CPU queues. Each visit takes one batch from an untouched queue and clears the mark of a touched
 * one, so that what is in use is left alone and what is idle drains within a few passes. It
 * allocates nothing: objects pass through a buffer on the stack, slabs through their own links. CPU
 * queues are reached by closing the CPU's region under its control lock, from any thread.
 */
#include "policy/unified.h"

/* ---- shrink -------------------------------------------------------------------------------------
 */

/* Locks a list; a try when asked for. */
static bool lock_list(struct us_flight *f, struct us_unified_list *list, bool try_only)
{
    return try_only ? us_lock_try(f, &list->lock) : us_lock_take(f, &list->lock);
}

static uint64_t shrink_list(struct us_cache *c, struct us_flight *f, struct us_unified_list *list,
                            bool try_only)
{
    struct us_slab *empty;

    if (!lock_list(f, list, try_only))
        return 0;
    empty = us_slab_list_take_empty(&list->partial);
    us_slab_list_sort(&list->partial);
    list->touched = false;
    us_lock_drop(f, &list->lock);
    return us_slab_release_chain(c, f, us_cpu_now(c->machine), empty, US_UNIFIED_FREE_SLAB);
}

uint64_t us_unified_shrink(struct us_cache *c, struct us_flight *f, unsigned node, bool try_only)
{
    struct us_unified_list *list = us_unified_of(c)->of_node[node];
    uint64_t bytes = 0;

    if (!try_only)
        us_unified_check_deferred(c, f, node);
    for (unsigned i = list->lists; i > 0; i--, list = list->next)
        bytes += shrink_list(c, f, list, try_only);
    return bytes;
}

/* ---- expiration
 * ------------------------------------------------------------------------------------ */

static void age_list(struct us_cache *c, struct us_flight *f, struct us_unified_list *list,
                     bool try_only)
{
    bool busy;

    if (!lock_list(f, list, try_only))
        return;
    busy = list->touched || list->partial.length == 0;
    list->touched = false;
    us_lock_drop(f, &list->lock);
    if (busy)
        return;
    if (!try_only)
        us_unified_check_deferred(c, f, list->node);
    shrink_list(c, f, list, try_only);
}

static void age_partial(struct us_cache *c, struct us_flight *f, unsigned node, bool try_only)
{
    struct us_unified_list *list = us_unified_of(c)->of_node[node];

    for (unsigned i = list->lists; i > 0; i--, list = list->next)
        age_list(c, f, list, try_only);
}

/* A visit takes one batch from what was not used since the last one. */
static unsigned due(const struct us_cache *c, const struct us_ring *ring)
{
    return us_ring_touched(ring) ? 0 : us_unified_of(c)->batch;
}

static unsigned age_queue(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_queue *q,
                          bool try_only)
{
    return us_queue_age(c, f, cpu, q, due, try_only, us_unified_drain);
}

static unsigned age_shards(struct us_cache *c, struct us_flight *f, unsigned cpu,
                           struct us_queue *first, bool try_only)
{
    struct us_queue *q = first;
    unsigned moved = 0;

    do
        moved += age_queue(c, f, cpu, q, try_only);
    while (q && (q = q->next) != first);
    return moved;
}

static unsigned age_cpu(struct us_cache *c, struct us_flight *f, unsigned cpu, bool try_only)
{
    return us_cpu_age(c, f, cpu, due, try_only, us_unified_drain);
}

/* One stage over the queues of a node, until `target` objects are reached. */
static uint64_t age_domains(struct us_cache *c, struct us_flight *f, unsigned node,
                            enum us_stage stage, uint64_t target, bool try_only)
{
    const struct us_machine *m = c->machine;
    uint64_t moved = 0;
    unsigned d, i;

    for (d = 0; d < m->ndomains && moved < target; d++) {
        struct us_unified_domain *domain = &us_unified_of(c)->domain[d];
        const unsigned cpu = us_domain_cpu(m, d, 0);

        if (m->domain[d].node != node)
            continue;
        if (stage == US_STAGE_SHARED)
            moved += age_shards(c, f, cpu, domain->shared, try_only);
        for (i = 0; stage == US_STAGE_ALIEN && domain->alien && i < m->nnodes && moved < target;
             i++)
            moved += age_queue(c, f, cpu, domain->alien[i], try_only);
        for (i = 0; stage == US_STAGE_CPU && i < m->domain[d].ncpus && moved < target; i++)
            moved += age_cpu(c, f, us_domain_cpu(m, d, i), try_only);
    }
    return moved;
}

/* ---- as posted ----------------------------------------------------------------------------------
 */

/* Slots 0 to N-2 instead of 1 to N-1. Slot 0 is the shared queue; slot k >= 1 is that of node k, or
 * of node k-1 up to the domain's own, so that the last slot is never visited. */
static uint64_t age_posted_slots(struct us_cache *c, struct us_flight *f, unsigned d, bool try_only)
{
    const struct us_machine *m = c->machine;
    struct us_unified_domain *domain = &us_unified_of(c)->domain[d];
    const unsigned cpu = us_domain_cpu(m, d, 0), own = m->domain[d].node;
    uint64_t moved = 0;
    unsigned k;

    if (!domain->alien)
        return 0;
    for (k = 0; k + 1 < m->nnodes; k++)
        moved += age_queue(c, f, cpu, k == 0 ? domain->shared : domain->alien[k > own ? k : k - 1],
                           try_only);
    return moved;
}

static unsigned nothing_due(const struct us_cache *c, const struct us_ring *ring)
{
    (void)c, (void)ring;
    return 0;
}

/* The visit clears the marks of all CPUs, though it drains those of one node. */
static void untouch_other_cpus(struct us_cache *c, struct us_flight *f, unsigned node,
                               bool try_only)
{
    for (unsigned cpu = 0; cpu < c->machine->ncpus; cpu++)
        if (us_node_of_cpu(c->machine, cpu) != node)
            us_cpu_age(c, f, cpu, nothing_due, try_only, us_unified_drain);
}

/* A cache without shared queues fails the stages of queues, which ends a pass over all caches: that
 * of alien queues where there is more than one node, else that of shared queues. */
static bool fails_as_posted(const struct us_cache *c, enum us_stage stage)
{
    if (us_unified_of(c)->shared_capacity)
        return false;
    return stage == US_STAGE_SHARED || (stage == US_STAGE_ALIEN && c->machine->nnodes > 1);
}

static uint64_t age_as_posted(struct us_cache *c, struct us_flight *f, unsigned node,
                              enum us_stage stage, bool try_only)
{
    uint64_t moved = 0;

    if (stage == US_STAGE_CPU)
        untouch_other_cpus(c, f, node, try_only);
    if (stage != US_STAGE_ALIEN)
        return age_domains(c, f, node, stage, UINT64_MAX, try_only);
    for (unsigned d = 0; d < c->machine->ndomains; d++)
        if (c->machine->domain[d].node == node)
            moved += age_posted_slots(c, f, d, try_only);
    return moved;
}

/* ---- one stage ----------------------------------------------------------------------------------
 */

void us_unified_expire_begin(struct us_cache *c)
{
    us_unified_of(c)->last_expired = 0;
}

uint64_t us_unified_expire(struct us_cache *c, struct us_flight *f, unsigned node,
                           enum us_stage stage, uint64_t target, bool try_only)
{
    const bool posted = us_unified_form_of(c)->posted_expiry;
    const uint64_t stride = c->geometry.stride;
    uint64_t moved;

    if (try_only) /* memory runs short */
        us_unified_of(c)->pressed = true;
    if (stage == US_STAGE_PARTIAL) {
        age_partial(c, f, node, try_only);
        return 0;
    }
    if (posted && fails_as_posted(c, stage))
        return US_EXPIRE_END;
    if (posted)
        moved = age_as_posted(c, f, node, stage, try_only);
    else
        moved = age_domains(c, f, node, stage, target / stride + (target % stride != 0), try_only);
    us_stat_add(c, us_cpu_now(c->machine), US_EXPIRE_OBJECTS, moved);
    us_unified_of(c)->last_expired += moved * stride;
    return moved * stride;
}

uint64_t us_unified_expire_cpu(struct us_cache *c, struct us_flight *f, unsigned cpu)
{
    const uint64_t moved = age_cpu(c, f, cpu, false), bytes = moved * c->geometry.stride;

    us_stat_add(c, cpu, US_EXPIRE_OBJECTS, moved);
    us_unified_of(c)->last_expired += bytes;
    return bytes;
}

bool us_unified_tick_closes(const struct us_cache *c, unsigned cpu, uint64_t now)
{
    (void)now;
    return us_cpu_wants_visit(c, cpu);
}

static bool first_of_node(const struct us_machine *m, unsigned cpu)
{
    for (unsigned other = 0; other < cpu; other++)
        if (us_node_of_cpu(m, other) == us_node_of_cpu(m, cpu) && us_cpu_online(m, other))
            return false;
    return true;
}

/* The last stage is each CPU's own; those before come with the first CPU of their node. */
void us_unified_tick(struct us_cache *c, struct us_flight *f, unsigned cpu, uint64_t now)
{
    const unsigned node = us_node_of_cpu(c->machine, cpu);

    (void)now;
    if (first_of_node(c->machine, cpu)) {
        us_unified_expire_begin(c);
        for (int stage = US_STAGE_PARTIAL; stage < US_STAGE_CPU; stage++)
            us_unified_expire(c, f, node, (enum us_stage)stage, UINT64_MAX, false);
    }
    us_unified_expire_cpu(c, f, cpu);
}

uint64_t us_unified_tick_period(const struct us_cache *c)
{
    return (uint64_t)c->tunable[US_UNIFIED_T_EXPIRE_PERIOD] * 1000000;
}

/* ---- flush
 * ------------------------------------------------------------------------------------------- */

/* What it holds now: others may go on filling it. */
static void flush_queue(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_queue *q)
{
    us_queue_flush(c, f, cpu, q, us_queue_size(q), us_unified_drain);
}

void us_unified_flush_cpu(struct us_cache *c, struct us_flight *f, unsigned cpu, bool try_only)
{
    struct us_unified_domain *domain = &us_unified_of(c)->domain[us_domain_of_cpu(c->machine, cpu)];
    struct us_queue *shared = us_unified_shared(c, cpu);
    unsigned n;

    us_cpu_flush(c, f, cpu, try_only, US_SEEN_COMMIT, us_unified_drain);
    if (shared)
        flush_queue(c, f, cpu, shared);
    for (n = 0; domain->alien && n < c->machine->nnodes; n++)
        if (domain->alien[n])
            flush_queue(c, f, cpu, domain->alien[n]);
    us_count(c, cpu, US_UNIFIED_QUEUE_FLUSH);
}
