/* slow.h - the slow paths of policies whose CPUs have rings: what surrounds their levels.
 *
 * A call that the CPU's ring could not serve enters a flight, takes in what signal handlers left
 * behind, gives a CPU its first ring, tries it once more and then asks the policy's levels. Which
 * CPU and node it is on may change at every step; that is looked after here as far as it can be
 * told without knowing the levels. A signal handler that comes between gets no object where a lock
 * is busy, and its free is left for later.
 */
#ifndef US_QUEUE_SLOW_H
#define US_QUEUE_SLOW_H

#include "queue/cpu.h"

/* A policy's levels, called in a flight with no lock held. */
struct us_ring_levels {
    struct us_ring_plan (*plan)(const struct us_cache *c);
    us_put_fn *put_late;   /* puts an object back that was freed before */
    unsigned deferred_row; /* the policy's counter of frees that are left for later */

    /* One object for the CPU, its ring being empty or closed; NULL = none. */
    void *(*alloc)(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned flags);
    /* One of another node; strict: past queues that may hold objects of any. */
    void *(*alloc_far)(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                       unsigned flags, bool strict);

    /* The ring is full, or closed. Not for nested flights. */
    void (*overflow)(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                     void *object);
    void (*free_past)(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                      void *object);
    /* Another node's object. Not for nested flights. */
    bool (*free_far)(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                     void *object);
};

void *us_ring_alloc_slow(struct us_cache *c, const struct us_ring_levels *levels, unsigned flags,
                         int node);
void us_ring_free_slow(struct us_cache *c, const struct us_ring_levels *levels, void *object);
/* Instructions of the compiled paths in sequences (bench/instructions.json). */
enum { US_RING_ALLOC_RUNS = 22, US_RING_FREE_RUNS = 24 };

/* What an entry of each mode runs: the ring, and what is above when it misses. */
US_INLINE void *us_ring_alloc_path(struct us_cache *c, const struct us_ring_levels *levels,
                                   enum us_mode mode)
{
    void *object;

    us_runs(US_RING_ALLOC_RUNS);
    if (US_LIKELY(us_fast_pop(&c->local, mode, &object)))
        return object;
    return us_ring_alloc_slow(c, levels, 0, US_ANY_NODE);
}
US_INLINE void us_ring_free_path(struct us_cache *c, const struct us_ring_levels *levels,
                                 void *object, enum us_mode mode)
{
    us_runs(US_RING_FREE_RUNS);
    if (US_LIKELY(us_fast_push(&c->local, mode, object)))
        return;
    us_ring_free_slow(c, levels, object);
}

/* Of a policy with these levels: policy_entries (US_LOCAL_ENTRIES) and policy_free_slow, a free
 * past the ring. */
#define US_RING_ENTRIES(policy, levels)                                                    \
    US_INLINE void *policy##_alloc_path(struct us_cache *c, enum us_mode mode)             \
    {                                                                                      \
        return us_ring_alloc_path(c, &(levels), mode);                                     \
    }                                                                                      \
    US_INLINE void policy##_free_path(struct us_cache *c, void *object, enum us_mode mode) \
    {                                                                                      \
        us_ring_free_path(c, &(levels), object, mode);                                     \
    }                                                                                      \
    US_LOCAL_ENTRIES(policy)                                                               \
    static void policy##_free_slow(struct us_cache *c, void *object)                       \
    {                                                                                      \
        us_ring_free_slow(c, &(levels), object);                                           \
    }

/* An allocation with flags or a node: the ring first, where it may serve it. mixed: whatever it
 * holds will do. */
void *us_ring_alloc_node(struct us_cache *c, const struct us_ring_levels *levels, bool mixed,
                         unsigned flags, int node);

#endif
