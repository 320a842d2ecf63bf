/* unified_slabs.c - between the queues and the slabs of the Unified policy.
 *
 * Drains put objects of any nodes back to their slabs, one node lock for each run of objects of one
 * node; refills take objects out of partial slabs. The node lock is held for bit operations and
 * list moves only: objects are ordered by slab before it is taken, and slabs that became entirely
 * free are collected and returned to the page provider after it was dropped.
 */
#include "policy/unified.h"

/* A slab got objects back: list membership by the rules of 2.7.1. An emptied slab beyond
 * min_partial goes on `empty`, linked by next. */
static void settle(struct us_cache *c, struct us_unified_node *node, unsigned cpu,
                   struct us_slab *s, struct us_slab **empty)
{
    const bool is_empty = s->free == us_slab_objects(s);
    const bool listed = (s->state & US_SLAB_PARTIAL) != 0;
    const bool to_tail = is_empty && us_unified_setting(c, US_UNIFIED_T_EMPTY_TO_TAIL);

    if (s->free == 0) /* nothing but objects that were kept out came back */
        return;
    if (is_empty && node->partial.length > (uint64_t)c->tunable[US_UNIFIED_T_MIN_PARTIAL]) {
        if (listed) {
            us_slab_list_remove(&node->partial, s);
            us_count(c, cpu, US_UNIFIED_FREE_REMOVE_PARTIAL);
            node->touched = true;
        }
        s->next = *empty;
        *empty = s;
        return;
    }
    if (!listed) {
        us_count(c, cpu, US_UNIFIED_FREE_ADD_PARTIAL);
        node->touched = true;
    } else if (to_tail && node->partial.last != s) {
        us_slab_list_remove(&node->partial, s);
    } else {
        return;
    }
    if (to_tail)
        us_slab_list_tail(&node->partial, s);
    else
        us_slab_list_head(&node->partial, s);
}

/* Puts back object[0..n), all of one node; returns how many from the front were dealt with. */
static unsigned drain_node(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned n_of,
                           void **object, unsigned n)
{
    struct us_unified_node *node = &us_unified_of(c)->node[n_of];
    struct us_slab *empty = NULL, *s = NULL;
    unsigned i;

    if (!us_lock_take(f, &node->lock))
        return 0;
    for (i = 0; i < n && us_node_of(&c->slabs->range, object[i]) == n_of; i++) {
        struct us_slab *of = us_slab_to_fill(c, object[i]);

        if (of != s && s)
            settle(c, node, cpu, s, &empty);
        s = of;
        if (s)
            us_slab_put(c, s, object[i]);
    }
    if (s)
        settle(c, node, cpu, s, &empty);
    us_lock_drop(f, &node->lock);
    us_slab_release_chain(c, f, cpu, empty, US_UNIFIED_FREE_SLAB);
    return i;
}

void us_unified_drain(struct us_cache *c, struct us_flight *f, unsigned cpu, void **object,
                      unsigned n)
{
    unsigned done = 0;

    if (n > 1 && us_unified_setting(c, US_UNIFIED_T_SORTED_DRAIN))
        us_sort_addresses(object, n);
    while (done < n) {
        unsigned node = us_node_of(&c->slabs->range, object[done]);
        unsigned k = drain_node(c, f, cpu, node, object + done, n - done);

        if (k == 0) /* a nested flight and a busy lock: the next slow path takes it in */
            us_defer_free(c, object[done++]);
        done += k;
    }
}

/* Unlinks a slab that has nothing left to give. */
static void leave_if_exhausted(struct us_unified_node *node, struct us_slab *s)
{
    if (s->free || !(s->state & US_SLAB_PARTIAL))
        return;
    us_slab_list_remove(&node->partial, s);
    node->touched = true;
}

unsigned us_unified_from_partial(struct us_cache *c, struct us_flight *f, unsigned cpu,
                                 unsigned node_of, void **out, unsigned n, bool *refused)
{
    struct us_unified_node *node = &us_unified_of(c)->node[node_of];
    unsigned got = 0;

    if (!us_lock_take(f, &node->lock)) {
        *refused = true;
        return 0;
    }
    while (got < n && node->partial.first) {
        struct us_slab *s = node->partial.first;
        unsigned want = n - got < s->free ? n - got : s->free;

        got += us_slab_take(c, s, out + got, want);
        leave_if_exhausted(node, s);
    }
    us_lock_drop(f, &node->lock);
    if (got)
        us_count(c, cpu, US_UNIFIED_ALLOC_FROM_PARTIAL);
    return got;
}

unsigned us_unified_from_tail(struct us_cache *c, struct us_flight *f, unsigned cpu,
                              unsigned node_of, void **out, unsigned n, bool *refused)
{
    struct us_unified_node *node = &us_unified_of(c)->node[node_of];
    struct us_slab *s;
    unsigned got = 0;

    if (!us_lock_take(f, &node->lock)) {
        *refused = true;
        return 0;
    }
    s = node->partial.last;
    if (s) {
        got = us_slab_take(c, s, out, n < s->free ? n : s->free);
        leave_if_exhausted(node, s);
    }
    us_lock_drop(f, &node->lock);
    if (got)
        us_count(c, cpu, US_UNIFIED_ALLOC_FROM_PARTIAL);
    return got;
}

/* The slab goes on its node's list; unused ones and those of alien allocations at the tail. */
static bool publish(struct us_cache *c, struct us_flight *f, struct us_slab *s, bool at_tail)
{
    struct us_unified_node *node = &us_unified_of(c)->node[s->node];

    if (!us_lock_take(f, &node->lock))
        return false;
    atomic_fetch_and_explicit(&s->state, (uint8_t)~US_SLAB_PRIVATE, memory_order_relaxed);
    if (s->free) {
        if (at_tail)
            us_slab_list_tail(&node->partial, s);
        else
            us_slab_list_head(&node->partial, s);
        node->touched = true;
    }
    us_lock_drop(f, &node->lock);
    return true;
}

unsigned us_unified_from_new(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                             unsigned flags, void **out, unsigned n, bool at_tail, unsigned *where)
{
    bool fallback = false;
    struct us_slab *s = us_slab_new(c, f, node, flags, &fallback);
    unsigned got;

    if (!s)
        return 0;
    us_count(c, cpu, US_UNIFIED_ALLOC_SLAB);
    if (fallback)
        us_count(c, cpu, US_UNIFIED_ORDER_FALLBACK);
    *where = s->node;
    if (s->node != node && !us_unified_form_of(c)->fallback_queued)
        n = 1;
    got = us_slab_take(c, s, out, n < s->free ? n : s->free);
    if (publish(c, f, s, at_tail))
        return got;
    /* Nested and the node's lock busy: undo, the slab is still private. */
    while (got)
        us_slab_put(c, s, out[--got]);
    us_slab_release(c, f, s);
    us_count(c, cpu, US_UNIFIED_FREE_SLAB);
    return 0;
}
