/* unified_adapt.c - queue sizes that follow the traffic.
 *
 * Where the sizes are left to the rules, they are where growth begins. At each look, traffic since
 * the last one is judged in both directions, since one-way flow gains nothing from room:
 *   - overflows that drained to slabs and misses that partial slabs served: objects go down only to
 * come up again, so the shared queue doubles;
 *   - overflows to and refills from the shared queue: CPUs exchange objects, so the CPU queue
 * doubles, and with it the batch that one lock moves. That has a price: an object comes back only
 * after as many frees as a queue is long, and out of the caches by then. So what counts is how
 * often they meet, not how often they ever met: a round trip costs in the order of a microsecond,
 * and fewer than 32 in 10 ms are not worth a cache miss for each object. Both stop where the queues
 * could hold more than adapt_max bytes together. When memory runs short the sizes go back to the
 * rules. Objects that nobody uses leave by expiration, as from any queue.
 *
 * A look costs a cache that nothing happened to one line: what crosses the edge of a CPU queue
 * leaves a mark (us_unified_stir), and without it the counters of all CPUs are not fetched.
 */
#include "policy/unified.h"

#define SLAB_EVIDENCE   8        /* refills of one look that got back what was drained */
#define MOST_DRAINED    1024     /* drains that are remembered */
#define SHARED_EVIDENCE 32       /* overflows to the shared queue, and refills from it, */
#define SHARED_SPAN     10000000 /* in so many ns */
#define QUEUE_GROWTH    4        /* times the rule's size, at most */

uint64_t us_unified_adapt_period(const struct us_cache *c)
{
    return (uint64_t)c->tunable[US_UNIFIED_T_ADAPT_PERIOD] * 1000000;
}

static uint64_t counted(const struct us_cache *c, unsigned row)
{
    uint64_t sum = 0;

    for (unsigned cpu = 0; cpu < c->machine->ncpus; cpu++)
        sum += atomic_load_explicit(&c->stats[(size_t)cpu * c->nrows + US_NCOMMON + row],
                                    memory_order_relaxed);
    return sum;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Refills from slabs since the last look that got what had been drained before it. What was drained
 * in this look counts at the next one: only then is it certain to have gone down before it came up.
 */
static uint64_t came_back(const struct us_cache *c)
{
    const struct us_unified *st = us_unified_of(c);

    return least(counted(c, US_UNIFIED_ALLOC_SLOWPATH) - st->seen_refills, st->drained);
}

static uint64_t round_trips_to_shared(const struct us_cache *c)
{
    return least(counted(c, US_UNIFIED_FREE_SHARED), counted(c, US_UNIFIED_ALLOC_SHARED));
}

/* Whether the trips to the shared queue since the last look are so many in its time. */
static bool meet_often(const struct us_cache *c)
{
    const struct us_unified *st = us_unified_of(c);
    const uint64_t trips = round_trips_to_shared(c) - st->seen_shared;
    const uint64_t since = us_now(c->machine) - st->looked;

    return trips >= SHARED_EVIDENCE && trips >= SHARED_EVIDENCE * since / SHARED_SPAN;
}

/* Bytes that queues of these sizes could hold. */
static uint64_t bytes_of(const struct us_cache *c, uint32_t queue, uint32_t shared)
{
    return c->geometry.stride *
           ((uint64_t)c->machine->ncpus * queue + (uint64_t)c->machine->ndomains * shared);
}

static bool fits(const struct us_cache *c, uint32_t queue, uint32_t shared)
{
    return bytes_of(c, queue, shared) <= (uint64_t)c->tunable[US_UNIFIED_T_ADAPT_MAX];
}

/* What the traffic since the last look asks for; equal to the present sizes when nothing. */
static struct us_unified_sizes wished(const struct us_cache *c)
{
    const struct us_unified *st = us_unified_of(c);
    struct us_unified_sizes wish = us_unified_sizes_of(c);
    const uint32_t queue = 2 * st->queue, room = 2 * st->shared_desired;

    if (st->pressed) {
        wish.grown_queue = wish.grown_shared = 0;
        return wish;
    }
    if (!st->shared_capacity)
        return wish;
    if (wish.shared < 0 && came_back(c) >= SLAB_EVIDENCE && room <= US_UNIFIED_QUEUE_MAX &&
        fits(c, st->queue, room))
        wish.grown_shared = room;
    if (wish.queue == 0 && wish.batch == 0 && meet_often(c) &&
        queue <= QUEUE_GROWTH * us_unified_rule_queue(c) &&
        fits(c, queue, wish.grown_shared > 5 * queue ? wish.grown_shared : 5 * queue))
        wish.grown_queue = queue;
    return wish;
}

static bool differs(const struct us_unified *st, const struct us_unified_sizes *wish)
{
    return wish->grown_queue != st->grown_queue || wish->grown_shared != st->grown_shared;
}

/* What was counted up to here has been judged. */
static void judged(struct us_cache *c)
{
    struct us_unified *st = us_unified_of(c);

    st->stirred = false;
    st->looked = us_now(c->machine);
    st->drained += counted(c, US_UNIFIED_FREE_SLOWPATH) - st->seen_drains - came_back(c);
    st->drained = least(st->drained, MOST_DRAINED);
    st->seen_drains = counted(c, US_UNIFIED_FREE_SLOWPATH);
    st->seen_refills = counted(c, US_UNIFIED_ALLOC_SLOWPATH);
    st->seen_shared = round_trips_to_shared(c);
    st->pressed = false;
}

bool us_unified_wants_adapt(struct us_cache *c)
{
    struct us_unified *st = us_unified_of(c);
    struct us_unified_sizes wish;

    if (!st->stirred && !st->pressed) {
        st->looked = us_now(c->machine);
        return false;
    }
    wish = wished(c);
    if (differs(st, &wish))
        return true;
    judged(c);
    return false;
}

void us_unified_adapt(struct us_cache *c, struct us_flight *f)
{
    const struct us_unified_sizes wish = wished(c);

    if (differs(us_unified_of(c), &wish))
        us_unified_resize(c, f, &wish, NULL);
    judged(c);
}
