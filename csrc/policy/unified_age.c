/* unified_age.c - expiration, flushing and shrinking under the Unified policy.
 *
 * Expiration has four stages, least to most harmful: partial lists, alien queues, shared queues,
 * CPU queues. Each visit takes one batch from an untouched queue and clears the mark of a touched
 * one, so that what is in use is left alone and what is idle drains within a few passes. It
 * allocates nothing: objects pass through a buffer on the stack, slabs through their own links. CPU
 * queues are reached by closing the CPU's region under its control lock, from any thread.
 */
#include "policy/unified.h"

#define CHUNK 256u

/* Takes the oldest out of a queue and puts them to slabs; at most `most`. */
unsigned us_unified_flush_queue(struct us_cache *c, struct us_flight *f, unsigned cpu,
                                struct us_queue *q, unsigned most)
{
    void *buffer[CHUNK];
    unsigned total = 0;

    while (total < most) {
        unsigned want = most - total < CHUNK ? most - total : CHUNK, n;

        if (!us_lock_take(f, us_queue_lock(q)))
            break;
        n = us_ring_take_oldest_c(q->ring, buffer, want, US_SEEN_COMMIT);
        us_lock_drop(f, us_queue_lock(q));
        if (n == 0)
            break;
        us_unified_drain(c, f, cpu, buffer, n);
        total += n;
    }
    us_stat_add(c, cpu, US_OBJECTS_MOVED, total);
    return total;
}

/* The region is closed and ours: its oldest objects go to slabs. */
static unsigned flush_ring(struct us_cache *c, struct us_flight *f, unsigned cpu,
                           struct us_ring *ring, unsigned most)
{
    void *buffer[CHUNK];
    unsigned total = 0;

    while (total < most) {
        unsigned want = most - total < CHUNK ? most - total : CHUNK;
        unsigned n = us_ring_take_oldest_c(ring, buffer, want, US_SEEN_COMMIT);

        if (n == 0)
            break;
        us_local_moved(&c->local, cpu, 0, n);
        us_unified_drain(c, f, cpu, buffer, n);
        total += n;
    }
    us_stat_add(c, cpu, US_OBJECTS_MOVED, total);
    return total;
}

/* ---- shrink -------------------------------------------------------------------------------------
 */

/* Unlinks the entirely free slabs of a node, linked by next. */
static struct us_slab *take_empty(struct us_unified_node *node)
{
    struct us_slab *empty = NULL, *s = node->partial.first;

    while (s) {
        struct us_slab *next = s->next;

        if (s->free == us_slab_objects(s)) {
            us_slab_list_remove(&node->partial, s);
            s->next = empty;
            empty = s;
        }
        s = next;
    }
    return empty;
}

static uint64_t release_all(struct us_cache *c, struct us_flight *f, struct us_slab *s)
{
    const unsigned cpu = us_cpu_now(c->machine);
    uint64_t bytes = 0;

    while (s) {
        struct us_slab *next = s->next;

        s->next = NULL;
        bytes += (uint64_t)c->machine->page_size << us_slab_order(s);
        us_slab_release(c, f, s);
        us_count(c, cpu, US_UNIFIED_FREE_SLAB);
        s = next;
    }
    return bytes;
}

/* Locks a node's lists; a try when asked for. */
static bool lock_node(struct us_flight *f, struct us_unified_node *node, bool try_only)
{
    return try_only ? us_lock_try(f, &node->lock) : us_lock_take(f, &node->lock);
}

uint64_t us_unified_shrink(struct us_cache *c, struct us_flight *f, unsigned n, bool try_only)
{
    struct us_unified_node *node = &us_unified_of(c)->node[n];
    struct us_slab *empty;

    if (!try_only)
        us_unified_check_deferred(c, f, n);
    if (!lock_node(f, node, try_only))
        return 0;
    empty = take_empty(node);
    us_slab_list_sort(&node->partial);
    node->touched = false;
    us_lock_drop(f, &node->lock);
    return release_all(c, f, empty);
}

/* ---- expiration
 * ------------------------------------------------------------------------------------ */

static void age_partial(struct us_cache *c, struct us_flight *f, unsigned n, bool try_only)
{
    struct us_unified_node *node = &us_unified_of(c)->node[n];
    bool busy;

    if (!lock_node(f, node, try_only))
        return;
    busy = node->touched || node->partial.length == 0;
    node->touched = false;
    us_lock_drop(f, &node->lock);
    if (!busy)
        us_unified_shrink(c, f, n, try_only);
}

static unsigned age_queue(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_queue *q,
                          bool try_only)
{
    const uint32_t batch = us_unified_of(c)->batch;
    void *buffer[batch];
    unsigned n = 0;

    if (!q || !(try_only ? us_lock_try(f, us_queue_lock(q)) : us_lock_take(f, us_queue_lock(q))))
        return 0;
    if (!us_ring_touched(q->ring))
        n = us_ring_take_oldest_c(q->ring, buffer, batch, US_SEEN_COMMIT);
    us_queue_untouch(q);
    us_lock_drop(f, us_queue_lock(q));
    if (n == 0)
        return 0;
    us_stat_add(c, cpu, US_OBJECTS_MOVED, n);
    us_unified_drain(c, f, cpu, buffer, n);
    return n;
}

static unsigned age_cpu(struct us_cache *c, struct us_flight *f, unsigned cpu, bool try_only)
{
    const uint32_t batch = us_unified_of(c)->batch;
    struct us_ring *ring = us_local_ring(&c->local, cpu);
    void *buffer[batch], *region;
    unsigned n = 0;

    if (!ring || (us_ring_size(ring) == 0 && !us_ring_touched(ring)))
        return 0;
    if (!us_local_close(&c->local, f, cpu, try_only, &region))
        return 0;
    ring = region;
    if (ring && !us_ring_touched(ring)) {
        n = us_ring_take_oldest_c(ring, buffer, batch, US_SEEN_COMMIT);
        us_local_moved(&c->local, cpu, 0, n);
    }
    if (ring)
        atomic_store_explicit(&ring->seen, us_ring_header(ring), memory_order_relaxed);
    us_local_open(&c->local, f, cpu);
    if (n == 0)
        return 0;
    us_stat_add(c, cpu, US_OBJECTS_MOVED, n);
    us_unified_drain(c, f, cpu, buffer, n);
    return n;
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
            moved += age_queue(c, f, cpu, domain->shared, try_only);
        for (i = 0; stage == US_STAGE_ALIEN && domain->alien && i < m->nnodes && moved < target;
             i++)
            moved += age_queue(c, f, cpu, domain->alien[i], try_only);
        for (i = 0; stage == US_STAGE_CPU && i < m->domain[d].ncpus && moved < target; i++)
            moved += age_cpu(c, f, us_domain_cpu(m, d, i), try_only);
    }
    return moved;
}

void us_unified_expire_begin(struct us_cache *c)
{
    us_unified_of(c)->last_expired = 0;
}

uint64_t us_unified_expire(struct us_cache *c, struct us_flight *f, unsigned node,
                           enum us_stage stage, uint64_t target, bool try_only)
{
    const uint64_t stride = c->geometry.stride;
    uint64_t moved;

    if (try_only) /* memory runs short */
        us_unified_of(c)->pressed = true;
    if (stage == US_STAGE_PARTIAL) {
        age_partial(c, f, node, try_only);
        return 0;
    }
    moved = age_domains(c, f, node, stage, target / stride + (target % stride != 0), try_only);
    us_stat_add(c, us_cpu_now(c->machine), US_EXPIRE_OBJECTS, moved);
    us_unified_of(c)->last_expired += moved * stride;
    return moved * stride;
}

void us_unified_tick(struct us_cache *c, struct us_flight *f, unsigned cpu, uint64_t now)
{
    const struct us_machine *m = c->machine;
    const unsigned node = us_node_of_cpu(m, cpu);
    unsigned first = 0;

    (void)now;
    while (us_node_of_cpu(m, first) != node)
        first++;
    if (first != cpu) /* once for each node */
        return;
    us_unified_expire_begin(c);
    for (int stage = US_STAGE_PARTIAL; stage <= US_STAGE_CPU; stage++)
        us_unified_expire(c, f, node, (enum us_stage)stage, UINT64_MAX, false);
}

uint64_t us_unified_tick_period(const struct us_cache *c)
{
    return (uint64_t)c->tunable[US_UNIFIED_T_EXPIRE_PERIOD] * 1000000;
}

/* ---- flush
 * ------------------------------------------------------------------------------------------- */

void us_unified_flush_cpu(struct us_cache *c, struct us_flight *f, unsigned cpu, bool try_only)
{
    struct us_unified_domain *domain = &us_unified_of(c)->domain[us_domain_of_cpu(c->machine, cpu)];
    void *region;
    unsigned n;

    if (us_local_close(&c->local, f, cpu, try_only, &region)) {
        if (region)
            flush_ring(c, f, cpu, region, UINT32_MAX);
        us_local_open(&c->local, f, cpu);
    }
    if (domain->shared)
        us_unified_flush_queue(c, f, cpu, domain->shared, us_queue_size(domain->shared));
    for (n = 0; domain->alien && n < c->machine->nnodes; n++)
        if (domain->alien[n])
            us_unified_flush_queue(c, f, cpu, domain->alien[n], us_queue_size(domain->alien[n]));
    us_count(c, cpu, US_UNIFIED_QUEUE_FLUSH);
}
