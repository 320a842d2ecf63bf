/* expire.c - ageing, flushing, shrinking, and what to do when pages run short.
 *
 * Expiration of one cache runs its stages (partial lists, alien, shared, CPU queues) in order for
 * each node. Expiration of everything runs each stage over all caches before the next one, one
 * expiration at a time (a second finds the flag taken and gives 0), and stops at its target.
 *
 * Shortage. Below the low mark of a node the policies that can expire do so for that node, with
 * try-locks only, until the node is above its high mark; empty slabs go back after every stage. A
 * request that would fail flushes every CPU and shrinks every cache, under every policy, and is
 * tried again when that gave pages back. Both run inside the requester's flight, which holds no
 * lock.
 */
#include "cache/internal.h"

/* ---- one cache --------------------------------------------------------------------------------
 */

void us_flush_cache(struct us_cache *c, struct us_flight *f, bool try_only)
{
    unsigned cpu;

    for (cpu = 0; cpu < c->machine->ncpus; cpu++)
        c->policy->flush_cpu(c, f, cpu, try_only);
}

void us_shrink_cache(struct us_cache *c, struct us_flight *f, bool try_only)
{
    unsigned node;

    for (node = 0; node < c->machine->nnodes; node++)
        c->policy->shrink(c, f, node, try_only);
}

/* Flushing releases slabs too, so the cache counts itself; what other threads release meanwhile is
 * as welcome. */
static uint64_t flush_and_shrink(struct us_cache *c, struct us_flight *f)
{
    const uint64_t before = atomic_load(&c->released);

    us_flush_cache(c, f, false);
    us_shrink_cache(c, f, false);
    return c->machine->page_size * (atomic_load(&c->released) - before);
}

uint64_t us_cache_shrink(struct us_cache *c)
{
    struct us_allocator *a = c->owner;
    struct us_flight f;
    uint64_t bytes;

    us_cache_rcu_barrier(c);
    if (!us_flight_try(a->machine, &f))
        return 0;
    bytes = flush_and_shrink(c, &f);
    us_memory_purge(a->memory, &f, us_now(a->machine), true);
    us_flight_leave(&f);
    return bytes;
}

static uint64_t expire_stage(struct us_cache *c, struct us_flight *f, int node, enum us_stage stage,
                             uint64_t target, bool try_only)
{
    uint64_t bytes = 0, moved;
    unsigned n;

    for (n = 0; n < c->machine->nnodes && bytes < target; n++) {
        if (node >= 0 && n != (unsigned)node)
            continue;
        moved = c->policy->expire(c, f, n, stage, target - bytes, try_only);
        if (moved == US_EXPIRE_END)
            return moved;
        bytes += moved;
    }
    return bytes;
}

uint64_t us_cache_expire(struct us_cache *c, int node)
{
    const struct us_policy *p = c->policy;
    uint64_t bytes = 0, moved;
    struct us_flight f;
    unsigned n, stage;

    if (!p->expire || node >= (int)c->machine->nnodes)
        return 0;
    if (!us_flight_try(c->machine, &f))
        return 0;
    if (p->expire_begin)
        p->expire_begin(c);
    for (n = 0; n < c->machine->nnodes; n++) {
        for (stage = US_STAGE_PARTIAL; stage <= US_STAGE_CPU; stage++) {
            if (node >= 0 && n != (unsigned)node)
                continue;
            moved = p->expire(c, &f, n, (enum us_stage)stage, UINT64_MAX, false);
            bytes += moved == US_EXPIRE_END ? 0 : moved;
        }
    }
    us_flight_leave(&f);
    atomic_store(&us_box(c)->last_expired, bytes);
    return bytes;
}

/* ---- everything ------------------------------------------------------------------------------ */

static void begin_all(struct us_allocator *a)
{
    struct us_cache *c;

    for (c = us_first_cache(a); c; c = c->next)
        if (c->policy->expire_begin)
            c->policy->expire_begin(c);
}

bool us_begin_round(struct us_allocator *a, struct us_flight *f, unsigned cpu, us_closes_fn *closes,
                    uint64_t now)
{
    bool begun = false;
    struct us_cache *c;

    for (c = us_first_cache(a); c; c = c->next) {
        if (!closes(c, cpu, now))
            continue;
        if (!begun && !us_round_begin(a->machine, f, cpu))
            return false;
        begun = true;
        us_round_join(&c->local, f);
    }
    if (begun)
        us_round_fence(f);
    return begun;
}

static bool expire_closes(struct us_cache *c, unsigned cpu, uint64_t now)
{
    (void)now;
    return c->policy->expire_cpu && c->policy->expire_cpu_closes(c, cpu);
}

/* The last stage without a target: a CPU at a time, whose queues are closed together. */
static uint64_t expire_cpus(struct us_allocator *a, struct us_flight *f, int node)
{
    uint64_t bytes = 0;
    struct us_cache *c;
    unsigned cpu;

    for (cpu = 0; cpu < a->machine->ncpus; cpu++) {
        if ((node >= 0 && us_node_of_cpu(a->machine, cpu) != (unsigned)node) ||
            !us_begin_round(a, f, cpu, expire_closes, 0))
            continue;
        for (c = us_first_cache(a); c; c = c->next) {
            if (c->policy->expire_cpu) /* large objects have no queues */
                bytes += c->policy->expire_cpu(c, f, cpu);
            us_round_leave(&c->local, f);
        }
        us_round_end(f);
    }
    return bytes;
}

/* *ended: a policy ended the pass. */
static uint64_t expire_all(struct us_allocator *a, struct us_flight *f, int node,
                           enum us_stage stage, uint64_t target, bool try_only, bool *ended)
{
    uint64_t bytes = 0, moved;
    struct us_cache *c;

    for (c = us_first_cache(a); c && bytes < target; c = c->next) {
        if (!c->policy->expire)
            continue;
        moved = expire_stage(c, f, node, stage, target - bytes, try_only);
        *ended = moved == US_EXPIRE_END;
        if (*ended)
            break;
        bytes += moved;
    }
    return bytes;
}

uint64_t us_allocator_expire_target(struct us_allocator *a, int node, uint64_t target,
                                    bool try_only)
{
    struct us_flight f;
    uint64_t bytes = 0;
    bool ended = false;
    unsigned stage;

    if (!a->policy->expire || node >= (int)a->machine->nnodes || atomic_exchange(&a->expiring, 1))
        return 0;
    if (a->policy->expire_all_stages)
        target = UINT64_MAX;
    if (us_flight_try(a->machine, &f)) {
        const bool cpus = a->policy->expire_cpu && target == UINT64_MAX && !try_only && !f.nested;
        const unsigned last = cpus ? US_STAGE_CPU : US_STAGE_CPU + 1;

        begin_all(a);
        for (stage = US_STAGE_PARTIAL; stage < last && bytes < target && !ended; stage++)
            bytes +=
                expire_all(a, &f, node, (enum us_stage)stage, target - bytes, try_only, &ended);
        if (cpus && !ended)
            bytes += expire_cpus(a, &f, node);
        us_flight_leave(&f);
    }
    atomic_store(&a->last_expired_bytes, bytes);
    atomic_store(&a->expiring, 0);
    return bytes;
}

uint64_t us_allocator_expire(struct us_allocator *a, int node)
{
    return us_allocator_expire_target(a, node, UINT64_MAX, false);
}

static uint64_t flush_and_shrink_all(struct us_allocator *a, struct us_flight *f)
{
    uint64_t bytes = 0;
    struct us_cache *c;

    for (c = us_first_cache(a); c; c = c->next)
        bytes += flush_and_shrink(c, f);
    return bytes;
}

void us_allocator_flush(struct us_allocator *a)
{
    struct us_flight f;
    struct us_cache *c;

    us_allocator_rcu_barrier(a);
    if (!us_flight_try(a->machine, &f))
        return;
    for (c = us_first_cache(a); c; c = c->next)
        us_flush_cache(c, &f, false);
    us_flight_leave(&f);
}

uint64_t us_allocator_shrink(struct us_allocator *a)
{
    struct us_flight f;
    uint64_t bytes;

    us_allocator_rcu_barrier(a);
    if (!us_flight_try(a->machine, &f))
        return 0;
    bytes = flush_and_shrink_all(a, &f);
    us_memory_purge(a->memory, &f, us_now(a->machine), true);
    us_flight_leave(&f);
    return bytes;
}

/* ---- shortage -------------------------------------------------------------------------------- */

static uint64_t missing_pages(struct us_allocator *a, unsigned node)
{
    struct us_node_memory m;

    us_memory_node(a->memory, node, &m);
    return m.free < m.high ? m.high - m.free : 0;
}

static void give_back_empty(struct us_allocator *a, struct us_flight *f, unsigned node)
{
    struct us_cache *c;

    for (c = us_first_cache(a); c && missing_pages(a, node); c = c->next)
        c->policy->shrink(c, f, node, true);
}

static bool relieve(struct us_allocator *a, struct us_flight *f, unsigned node)
{
    const uint64_t missing = missing_pages(a, node);
    const bool all = a->policy->expire_all_stages;
    const uint64_t target = all ? UINT64_MAX : missing * a->machine->page_size;
    uint64_t bytes = 0;
    bool ended = false;
    unsigned stage;

    if (!a->policy->expire || atomic_exchange(&a->expiring, 1))
        return false;
    begin_all(a);
    for (stage = US_STAGE_PARTIAL; stage <= US_STAGE_CPU && !ended; stage++) {
        if (!all && !missing_pages(a, node))
            break;
        bytes += expire_all(a, f, (int)node, (enum us_stage)stage, target, true, &ended);
        give_back_empty(a, f, node);
    }
    atomic_store(&a->last_expired_bytes, bytes);
    atomic_store(&a->expiring, 0);
    return missing_pages(a, node) < missing;
}

bool us_pressure(void *context, struct us_flight *f, unsigned node, enum us_pressure kind)
{
    struct us_allocator *a = context;

    if (kind == US_PRESSURE_LOW)
        return relieve(a, f, node);
    return flush_and_shrink_all(a, f) > 0;
}
