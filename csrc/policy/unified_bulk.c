/* unified_bulk.c - what bulk calls of the Unified policy carry past the CPU's ring.
 *
 * Bulk calls (queue/cpu.h) leave counters and queues as n single calls would. Where single calls
 * would carry whole batches through the ring, objects go straight between the caller and the shared
 * queue, one copy each: an allocation of at least a batch would pop all that a refill brings, and
 * of a long run of frees only the last ring-full stays in the ring. What the ring did not see is
 * told to its counts (us_local_harvest).
 */
#include <string.h>

#include "policy/unified.h"

/* ---- allocation ------------------------------------------------------------------------------ */

/* A refill that the caller takes as a whole, hottest first; 0 = as single calls do it. */
static unsigned take_refill(struct us_cache *c, struct us_flight *f, size_t left, void **out)
{
    const unsigned cpu = us_cpu_now(c->machine), node = us_node_of_cpu(c->machine, cpu);
    struct us_queue *q = us_unified_shared(c, cpu);
    uint32_t want = us_unified_refill_size(c, f, cpu);
    enum us_phase before;
    unsigned n;

    if (f->nested || !q || want < 2 || left < want || us_queue_size(q) == 0 ||
        us_ring_size(us_local_ring(&c->local, cpu)) != 0)
        return 0;
    us_unified_check_deferred(c, f, node);
    before = us_phase_set(US_PHASE_SECOND);
    if (!us_lock_take(f, us_queue_lock(q))) {
        us_phase_set(before);
        return 0;
    }
    n = us_ring_pop_batch_c(q->ring, out, want);
    us_queue_touch(q);
    us_lock_drop(f, us_queue_lock(q));
    us_phase_set(before);
    if (n == 0)
        return 0;
    us_unified_stir(c);
    us_count(c, cpu, US_UNIFIED_ALLOC_SHARED);
    us_stat_add(c, cpu, US_OBJECTS_MOVED, n - 1);
    us_local_harvest(&c->local, cpu, n - 1, 0);
    us_local_touch(&c->local, f, us_node_base(&c->slabs->range, node));
    return n;
}

size_t us_unified_take_straight(struct us_cache *c, size_t left, void **out)
{
    struct us_flight f;
    size_t got = 0;
    unsigned n;

    if (US_UNLIKELY(!us_flight_try(c->machine, &f)))
        return 0;
    while ((n = take_refill(c, &f, left - got, out + got)) != 0)
        got += n;
    us_flight_leave(&f);
    return got;
}

/* ---- free ------------------------------------------------------------------------------------ */

enum { WORTHWHILE = 2 * US_UNIFIED_BOUNCE }; /* objects for which the ring's flow is looked at */

/* How many of the first objects are of the node. */
static size_t run_of_node(void *const *object, size_t n, uint64_t base, uint64_t length)
{
    size_t i = 0;

    while (i < n && (uint64_t)(uintptr_t)object[i] - base < length)
        i++;
    return i;
}

/* What single frees of `run` objects would move out of a full ring of `size` objects. */
struct flow {
    unsigned overflows; /* batches moved */
    size_t frees;       /* objects freed meanwhile; a push comes last, as touches the ring */
};

static struct flow flow_of(size_t run, uint32_t batch, uint32_t room)
{
    const size_t most = room / batch;
    size_t frees = run < most * batch ? run : most * batch;

    if (frees % batch == 1)
        frees--;
    return (struct flow){(unsigned)((frees + batch - 1) / batch), frees};
}

static US_COLD void drain_copies(struct us_cache *c, struct us_flight *f, unsigned cpu,
                                 void *const *object, size_t n)
{
    void *buffer[US_BATCH_MAX];

    for (size_t i = 0; i < n; i += US_BATCH_MAX) {
        const unsigned k = (unsigned)(n - i < US_BATCH_MAX ? n - i : US_BATCH_MAX);

        memcpy(buffer, object + i, k * sizeof(*buffer));
        us_unified_drain(c, f, cpu, buffer, k);
    }
}

/* The ring of the CPU is full: its objects, then the caller's, go to the shared queue, oldest
 * first, but for those that single calls would leave in the ring; these are the caller's to push.
 * Returns how many of the caller's went. */
static size_t flow_through(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                           struct us_queue *q, struct flow flow, void *const *object)
{
    const size_t moved = (size_t)flow.overflows * us_unified_of(c)->batch;
    uint32_t size = us_ring_size(us_local_ring(&c->local, cpu));
    void *buffer[size + 1];
    size_t straight, left;
    unsigned taken;

    if (f->nested || moved < size + flow.overflows)
        return 0;
    us_unified_check_deferred(c, f, node);
    taken = us_local_take_oldest(&c->local, f, buffer, size, US_SEEN_COMMIT, &cpu);
    if (us_node_of_cpu(c->machine, cpu) != node) { /* moved to another node: not the queue's */
        us_unified_drain(c, f, cpu, buffer, taken);
        return 0;
    }
    straight = moved - taken < flow.frees ? moved - taken : flow.frees;
    us_unified_stir(c);
    us_count_n(c, cpu, US_UNIFIED_FREE_SHARED, flow.overflows);
    us_stat_add(c, cpu, US_OBJECTS_MOVED, taken + straight);
    us_local_harvest(&c->local, cpu, 0, straight - flow.overflows);
    us_unified_to_shared(c, f, cpu, q, buffer, taken);
    left = straight;
    if (us_lock_take(f, us_queue_lock(q))) {
        left -= us_ring_add_c(q->ring, object, (unsigned)straight, US_SEEN_KEEP);
        us_lock_drop(f, us_queue_lock(q));
    }
    if (US_UNLIKELY(left)) /* others took the room that was seen */
        drain_copies(c, f, cpu, object, left);
    return straight;
}

size_t us_unified_put_straight(struct us_cache *c, size_t n, void *const *object)
{
    const struct us_range *r = &c->slabs->range;
    const struct us_ring *ring;
    struct us_flight f;
    struct us_queue *q;
    unsigned cpu, node;
    size_t went = 0;
    uint32_t batch;

    if (n < WORTHWHILE || !us_in_range(r, object[0]) || US_UNLIKELY(!us_flight_try(c->machine, &f)))
        return 0;
    batch = us_unified_of(c)->batch; /* the state is looked at in a flight alone */
    cpu = us_cpu_now(c->machine);
    node = us_node_of(r, object[0]);
    ring = us_local_ring(&c->local, cpu);
    q = us_unified_shared(c, cpu);
    if (n >= 2 * (size_t)batch && q && us_node_of_cpu(c->machine, cpu) == node && ring &&
        us_local_is_open(&c->local, cpu) && us_ring_size(ring) == ring->capacity) {
        size_t run = run_of_node(object, n, us_node_base(r, node), us_node_length(r));

        went = flow_through(c, &f, cpu, node, q, flow_of(run, batch, us_unified_shared_room(c, q)),
                            object);
    }
    us_flight_leave(&f);
    return went;
}
