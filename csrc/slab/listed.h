/* listed.h - slabs of policies that thread free objects through themselves: the chains of a slab,
 * its lock, and the partial list of a node.
 *
 * A slab may have two chains of free objects. Its own (freelist, `free` objects) is worked under
 * the slab lock (or, where a policy has no such lock, by exchanges: slab/exchange.h). The CPU's
 * (local) belongs to the CPU that owns the slab, or to whoever detached the slab from it.
 *
 * A link is followed only where it leads to an object of the slab or ends. A slab whose chain leads
 * astray is isolated: it stays where it is, on no list, and its free objects are only counted.
 *
 * Locks: slab, then node. Under the node lock slab locks are only tried. What is counted is the
 * policy's affair: functions tell what happened.
 */
#ifndef US_LISTED_H
#define US_LISTED_H

#include "slab/slab.h"

/* One node's partial list. */
struct us_partial {
    struct us_lock lock; /* class NODE */
    struct us_slab_list slabs;
    _Atomic uint64_t length; /* slabs.length for those who look without the lock */
} US_ALIGNED(US_LINE);

/* ---- state --------------------------------------------------------------------------- */

US_INLINE struct us_slab *us_slab_of_list(struct us_list *list)
{
    return (struct us_slab *)list; /* its first member */
}

US_INLINE unsigned us_slab_state(const struct us_slab *s)
{
    us_reads(s, sizeof(*s));
    return atomic_load_explicit(&((struct us_slab *)s)->state, memory_order_relaxed);
}

/* Under the slab lock, or the slab is private. A slab once BAD (reported) stays marked. */
US_INLINE void us_slab_set_state(struct us_slab *s, unsigned state)
{
    state |= us_slab_state(s) & US_SLAB_BAD;
    us_writes(s, sizeof(*s));
    atomic_store_explicit(&s->state, (uint8_t)state, memory_order_relaxed);
}

/* For flights that are not nested: those get every lock they ask for. */
US_INLINE void us_slab_lock(struct us_flight *f, struct us_slab *s)
{
    if (!us_bytelock_take(f, &s->lock))
        __builtin_trap();
}

US_INLINE void us_slab_unlock(struct us_flight *f, struct us_slab *s)
{
    us_bytelock_drop(f, &s->lock);
}

/* ---- links; slab lock held, or the slab private -------------------------------------- */

US_INLINE bool us_slab_is_object(const struct us_cache *c, const struct us_slab *s, const void *p)
{
    uint32_t index;

    return us_object_at(c, s, p, &index);
}

/* False when the link of a free object leads out of the slab, or `object` is none. */
US_INLINE bool us_slab_read_link(const struct us_cache *c, const struct us_slab *s,
                                 const void *object, void **next)
{
    if (!us_slab_is_object(c, s, object))
        return false;
    us_runs(15);
    *next = us_link_get(c, object);
    return *next == NULL || us_slab_is_object(c, s, *next);
}

US_INLINE void us_slab_write_link(const struct us_cache *c, void *object, void *next)
{
    us_link_set(c, object, next);
}

/* Sorting looks at it without the slab lock. */
US_INLINE void us_slab_set_free(struct us_slab *s, uint32_t n)
{
    us_writes(s, sizeof(*s));
    __atomic_store_n(&s->free, n, __ATOMIC_RELAXED);
}

US_INLINE void us_slab_push_free(const struct us_cache *c, struct us_slab *s, void *object)
{
    us_slab_write_link(c, object, s->freelist);
    s->freelist = object;
    us_slab_set_free(s, s->free + 1);
}

/* True when the object may go to the slab; what may not is reported and stays where it is. */
bool us_slab_knows(struct us_cache *c, const struct us_slab *s, const void *object);
/* One object off the slab's own chain; NULL when that is broken. */
void *us_slab_pop_free(const struct us_cache *c, struct us_slab *s);
/* The CPU's chain of a private slab. */
void us_slab_set_local(struct us_slab *s, void *head, uint32_t size);
/* Objects of the CPU's chain, as far as its links can be followed; false when they lead astray. */
bool us_slab_walk_local(const struct us_cache *c, const struct us_slab *s, uint32_t *size);
/* The same, for us_local.length: while it walks, the slab may become another cache's, or nobody's.
 */
bool us_slab_length(const struct us_local *l, struct us_list *list, uint32_t *size);
/* One object off it; false when the chain is broken at *object. */
bool us_slab_pop_local(const struct us_cache *c, struct us_slab *s, void **object);
/* Moves it, object by object, to the slab's own; false when it is broken: the rest is where it was.
 */
bool us_slab_return_local(const struct us_cache *c, struct us_slab *s);
/* A slab that came off a CPU's word: its counts go to the CPU's statistics, and its chain is
 * private from now on. Of a broken chain nobody knows how many objects it held: all that are not on
 * the slab's own are taken for it, and no pushes are counted; whoever follows it will find the
 * break.
 */
struct us_slab *us_slab_settle(struct us_cache *c, unsigned cpu, struct us_list *list);
/* Keeps a slab whose chain is broken at `seen` out of circulation. It is on no list. */
void us_slab_isolate(struct us_cache *c, struct us_slab *s, const void *seen);

/* ---- partial lists ------------------------------------------------------------------- */

void us_partial_init(struct us_partial *p);

US_INLINE uint64_t us_partial_length(const struct us_partial *p)
{
    us_reads(&p->length, sizeof(p->length));
    return atomic_load_explicit(&((struct us_partial *)p)->length, memory_order_relaxed);
}

/* Node lock held, and the slab lock where there is one. */
void us_partial_add(struct us_partial *p, struct us_slab *s, bool at_tail);
void us_partial_remove(struct us_partial *p, struct us_slab *s);

/* The first slab with at least `least` free objects whose lock is free: both locks are then held.
 */
struct us_slab *us_partial_lock_first(struct us_flight *f, struct us_partial *p, uint32_t least);

/* One object of a listed slab, which stays on its list unless it was the last; both locks are held
 * and dropped. NULL: its chain is broken, and it was isolated. */
void *us_partial_take(struct us_cache *c, struct us_flight *f, struct us_partial *p,
                      struct us_slab *s);

/* A private slab with free objects goes to the tail, both locks held then. False, and nothing was
 * done: a nested flight found a lock busy. */
bool us_partial_publish(struct us_flight *f, struct us_partial *p, struct us_slab *s);

enum us_put {
    US_PUT_BUSY,     /* a lock was not to be had in a nested flight: nothing was done */
    US_PUT_REFUSED,  /* it is free already, as far as can be seen: reported */
    US_PUT_STAYS,    /* the slab is where it was, off lists (isolated) or on its list */
    US_PUT_OWNED,    /* the slab is some CPU's */
    US_PUT_LISTED,   /* it was full, and is on the list now */
    US_PUT_UNLISTED, /* it is empty and off its list: the caller releases it */
    US_PUT_EMPTIED,  /* the same, of a slab that was full: it has one object */
};
/* Puts an object back to its slab's own chain, under its lock; the node lock is taken when the slab
 * goes on the list or off it. An empty slab is kept on a list of fewer than `keep`. */
enum us_put us_partial_put(struct us_cache *c, struct us_flight *f, struct us_partial *p,
                           struct us_slab *s, void *object, uint64_t keep, bool at_tail);

/* Node lock held, objects having come back to a slab: it joins the list if it was full, or leaves
 * it if it is empty now and that has `keep` slabs. */
enum us_put us_partial_relist(struct us_partial *p, struct us_slab *s, bool was_full, bool empty,
                              uint64_t keep, bool at_tail);

/* Node lock held. Takes the empty slabs off a list, chained through next, private; `slab_locks`
 * tells that the policy has such locks: a slab whose lock is busy stays. */
struct us_slab *us_partial_unlist_empty(struct us_flight *f, struct us_partial *p, bool slab_locks);
/* Node lock held. Slabs with at most `most` free objects go to the head, fullest first; the others
 * keep their order behind them. */
void us_partial_sort(struct us_partial *p, uint32_t most);
/* ---- regions ------------------------------------------------------------------------- */

/* Gives a CPU its list region, if there is memory. */
void us_words_populate(struct us_cache *c, struct us_flight *f, unsigned cpu);

#endif
