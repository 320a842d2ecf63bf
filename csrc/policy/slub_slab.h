/* slub_slab.h - slabs as the slub_*.c files handle them: lists, links, the CPU slab. */
#ifndef US_POLICY_SLUB_SLAB_H
#define US_POLICY_SLUB_SLAB_H

#include "policy/slub.h"

US_INLINE struct us_slub_node *us_slub_node_of(const struct us_cache *c, const struct us_slab *s)
{
    return &us_slub_of(c)->node[s->node];
}

US_INLINE struct us_slab *us_slub_slab_of_list(struct us_list *list)
{
    return (struct us_slab *)list; /* its first member */
}

US_INLINE unsigned us_slub_state(const struct us_slab *s)
{
    return atomic_load_explicit(&((struct us_slab *)s)->state, memory_order_relaxed);
}

/* Under the slab lock, or the slab is private. A slab once BAD (reported) stays marked. */
US_INLINE void us_slub_set_state(struct us_slab *s, unsigned state)
{
    state |= us_slub_state(s) & US_SLAB_BAD;
    atomic_store_explicit(&s->state, (uint8_t)state, memory_order_relaxed);
}

/* Out of circulation for good: on no list, owned by no CPU, and its free objects only counted.
 * Asked with the slab lock held, and not of a frozen slab, whose `installed` is its owner's. */
#define US_SLUB_ISOLATED UINT32_MAX
US_INLINE bool us_slub_isolated(const struct us_slab *s)
{
    return s->installed == US_SLUB_ISOLATED;
}

US_INLINE uint64_t us_slub_nr_partial(const struct us_slub_node *n)
{
    return atomic_load_explicit(&((struct us_slub_node *)n)->nr_partial, memory_order_relaxed);
}

/* For flights that are not nested: those get every lock they ask for. */
US_INLINE void us_slub_take(struct us_flight *f, struct us_slab *s)
{
    if (!us_bytelock_take(f, &s->lock))
        __builtin_trap();
}

US_INLINE void us_slub_drop(struct us_flight *f, struct us_slab *s)
{
    us_bytelock_drop(f, &s->lock);
}

/* ---- partial lists; slab lock and node lock held ------------------------------------- */

void us_slub_list_add(struct us_slub_node *n, struct us_slab *s, bool at_tail);
void us_slub_list_remove(struct us_slub_node *n, struct us_slab *s);
/* First slab of the list whose lock is free: both locks are then held. */
struct us_slab *us_slub_lock_listed(struct us_flight *f, struct us_slub_node *n);

/* ---- links; slab lock held, or the slab private -------------------------------------- */

US_INLINE bool us_slub_is_object(const struct us_cache *c, const struct us_slab *s, const void *p)
{
    uint32_t index;

    return us_object_at(c, s, p, &index);
}

/* The link of a free object is followed only where it leads to an object of the slab or ends. */
US_INLINE bool us_slub_read_link(const struct us_cache *c, const struct us_slab *s,
                                 const void *object, void **next)
{
    if (!us_slub_is_object(c, s, object))
        return false;
    us_reads((const char *)object + c->geometry.link, sizeof(void *));
    *next = us_link_get(c, object);
    return *next == NULL || us_slub_is_object(c, s, *next);
}

/* Sorting looks at it without the slab lock. */
US_INLINE void us_slub_set_free(struct us_slab *s, uint32_t n)
{
    __atomic_store_n(&s->free, n, __ATOMIC_RELAXED);
}

US_INLINE void us_slub_push_free(const struct us_cache *c, struct us_slab *s, void *object)
{
    us_writes((char *)object + c->geometry.link, sizeof(void *));
    us_link_set(c, object, s->freelist);
    s->freelist = object;
    us_slub_set_free(s, s->free + 1);
}

/* One object off the slab's own freelist; NULL when the chain is broken. */
void *us_slub_pop_free(const struct us_cache *c, struct us_slab *s);
/* The CPU's freelist of a private slab. */
void us_slub_set_local(struct us_slab *s, void *head, uint32_t size);
/* Objects of the CPU's freelist, as far as its links can be followed; false when they lead astray.
 */
bool us_slub_walk(const struct us_cache *c, const struct us_slab *s, uint32_t *size);
/* The same, for us_local.length: while it walks, the slab may become another cache's, or nobody's.
 */
bool us_slub_length(const struct us_local *l, struct us_list *list, uint32_t *size);
/* One object off it; false when the chain is broken at *object. */
bool us_slub_pop_local(const struct us_cache *c, struct us_slab *s, void **object);
/* Keeps a slab whose chain is broken at `seen` out of circulation. It is on no list. */
void us_slub_isolate(struct us_cache *c, struct us_slab *s, const void *seen);

/* ---- the CPU slab -------------------------------------------------------------------- */

/* Takes the slab off the calling CPU's word, its counts harvested. NULL: none, or closed. */
struct us_slab *us_slub_detach(struct us_cache *c, struct us_flight *f, unsigned *cpu);
/* Makes a private slab the CPU's; deactivates it when that CPU was left or its region is closed. */
void us_slub_install(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_slab *s);
/* Deactivates a private slab; `locked` tells that the slab lock is held. Not for nested flights. */
void us_slub_deactivate(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_slab *s,
                        bool locked);
/* Gives an empty slab back. No lock may be held. */
void us_slub_release(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_slab *s);

void us_slub_flush_cpu(struct us_cache *c, struct us_flight *f, unsigned cpu, bool try_only);
uint64_t us_slub_shrink(struct us_cache *c, struct us_flight *f, unsigned node, bool try_only);

/* ---- elsewhere ----------------------------------------------------------------------- */

/* slub.c: frees that signal handlers had to leave behind. */
void us_slub_check_deferred(struct us_cache *c, struct us_flight *f, unsigned node);
/* slub_look.c */
void us_slub_visit(struct us_cache *c, const struct us_visitor *v);

#endif
