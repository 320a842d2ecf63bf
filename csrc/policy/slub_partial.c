/* slub_partial.c - SLUB without page lock and with per-CPU partial lists, Linux 3.2 to 6.17.
 *
 * Levels. An allocation is served by the first of: the CPU's freelist; the own freelist of the
 * CPU's slab (what others freed into it); the next slab of the CPU's partial list; the partial list
 * of the node, of which more slabs go to the CPU's partial list at the same time; now and then
 * partial lists of other nodes; a new slab. A free goes to the CPU's freelist when the object is of
 * that CPU's slab, and straight to its slab in every other case. Whoever frees into a full slab
 * that nobody owns adopts it: it goes on the partial list of the freeing CPU, whatever its node.
 *
 * States of a slab.
 *
 *   frozen   owned by one CPU, on no node's list: its CPU slab (word 0 of the region), or on its
 *            partial list (word 1 names the first, chained through next). Anybody may free into it,
 *            the owner alone takes, and it takes the whole own freelist at once.
 *
 *   partial  on its node's list. It may be empty.
 *
 *   full     on no list, no object free.
 *
 *   isolated its freelist showed a broken link: on no list, its objects are only counted.
 *
 * Exchanges. A slab's own freelist, its count of free objects and the frozen bit change together,
 * by one double-word compare-exchange (slab/exchange.h); there is no page lock. An exchange that is
 * lost to somebody is tried again, and counted (cmpxchg_double_fail). The node lock (list_lock) is
 * taken for what changes or walks the node's list: slabs are acquired from it; a free empties an
 * unowned slab, or fills a full one that is not adopted; a deactivated or drained slab joins it. It
 * is taken before the exchange, and stays until the list is right.
 *
 * The CPU's partial list. As word 0, word 1 is detached, worked on and installed. When it cannot be
 * installed (the CPU was left, another list came meanwhile, the region was closed), its slabs go to
 * their nodes, each counted as free_add_partial. Its first slab has the length of the chain and the
 * estimate of its free objects: made when a slab joined, and never corrected by later frees, so
 * that in epoch 3.2 the list can hold far more than its limit, as the original's does.
 *
 * Price. The originals' fast paths do a per-CPU double-word compare-exchange that checks a
 * transaction id; ours is the restartable sequence of slub_paths.c, which does not count its
 * restarts. cmpxchg_double_cpu_fail therefore counts only the allocations that came to the slow
 * path though their CPU's freelist had objects. The link of the next object is prefetched
 * (`prefetch`).
 *
 * Epochs. 3.2: limit in objects, min_partial exceeded before an empty slab is given back, freelists
 * turned around by deactivation, shrink orders the whole list. 5.16: limit in slabs, min_partial
 * reached, freelists spliced, shrink promotes slabs with up to 32 free objects.
 *
 * Debug. Caches with consistency checks own no slabs: one object at a time is taken from a listed
 * slab under the node lock (6.1). Epoch 3.2 did so by acquiring and deactivating the slab each
 * time, and counts that.
 *
 * Gaps and departures. alloc_slowpath counts every entry of the slow path, as from 3.19 on (before,
 * only those that found a CPU slab of the right node). min_partial of 3.2 itself is taken to be
 * that of 3.10. cpu_partial 0 means no CPU partial lists, as in a cache that has none. The order
 * within a bucket of shrink is the list's. Bulk frees link objects of one slab as 4.x on do; a
 * chain spans at most 256 of the objects given. Debug caches have no bulk of their own. Who finds
 * the region closed, and a signal handler that interrupted a slow path, takes one object of a
 * listed slab and adopts nothing. When the page provider fails, partial lists are asked once more,
 * as in slub.
 */
#include "policy/slub_partial.h"

/* Instructions of the compiled functions: see slub_paths.c. */
enum {
    RUNS_PUT = 23,
    RUNS_PUT_LOAD = 180,
    RUNS_LEVEL = 11,
    RUNS_SERVE = 27,
    RUNS_FROM_OWNED = 70,
    RUNS_ALLOCATE = 44, /* the CPU's partial list among it */
    RUNS_ACQUIRE = 17,
    RUNS_ACQUIRE_ONE = 75,
    RUNS_FROM_NODES = 20,
    RUNS_FROM_NEW = 16,
    RUNS_SINGLE = 60, /* an object without the CPU's slabs */
    RUNS_LINKED = 46, /* an object of a bulk */
};

static bool has_cpu_partial(const struct us_cache *c)
{
    return us_slub_partial_of(c)->cpu_partial > 0 && c->local.mode != US_MODE_CONTROL;
}

/* ---- free, slow path ----------------------------------------------------------------- */

/* Objects that go to their slab together, linked from head to tail. */
struct load {
    void *head, *tail;
    uint32_t n;
    bool late; /* freed by a handler before */
};

/* What one free does to its slab. */
struct change {
    struct us_pair old, next;
    bool was_full, empty, adopt, listing; /* listing: the node's list may change */
};

static bool is_free_already(const struct us_slab *s, const struct us_pair *old,
                            const struct load *l)
{
    return old->free + l->n > us_slab_objects(s) || old->freelist == l->head ||
           (old->state & US_SLAB_PRIVATE);
}

static void plan(const struct us_cache *c, const struct us_slab *s, const struct load *l,
                 bool may_adopt, struct change *ch)
{
    const struct us_pair *old = &ch->old;
    const bool unlisted = old->state & (US_SLAB_FROZEN | US_SLAB_ISOLATED);

    ch->next = *old;
    ch->next.free += l->n;
    ch->was_full = old->free == 0;
    ch->empty = ch->next.free == us_slab_objects(s);
    ch->adopt = may_adopt && ch->was_full && !unlisted;
    ch->listing = !unlisted && !ch->adopt && (ch->was_full || ch->empty);
    if (ch->adopt)
        ch->next.state |= US_SLAB_FROZEN;
    if (old->state & US_SLAB_ISOLATED)
        return;
    us_slab_write_link(c, l->tail, old->freelist);
    ch->next.freelist = l->head;
}

static void count_frees(struct us_cache *c, unsigned cpu, unsigned node, uint32_t n)
{
    const bool here = node == us_node_of_cpu(c->machine, cpu);

    us_count(c, cpu, US_SLUB_PARTIAL_FREE_SLOWPATH);
    us_count_n(c, cpu, here ? US_SLUB_PARTIAL_TO_NODE : US_SLUB_PARTIAL_TO_OTHER_NODE, n);
}

/* The node lock is held, the exchange done. Returns the slab if it is to be released. */
static struct us_slab *relist(struct us_cache *c, unsigned cpu, struct us_slab *s,
                              struct us_partial *p, const struct change *ch)
{
    if (ch->empty && us_partial_length(p) >= us_slub_partial_keep(c)) {
        if (!ch->was_full) {
            us_partial_remove(p, s);
            us_count(c, cpu, US_SLUB_PARTIAL_FREE_REMOVE_PARTIAL);
        }
        us_updates(&s->state, sizeof(s->state));
        atomic_fetch_or_explicit(&s->state, US_SLAB_PRIVATE, memory_order_relaxed);
        s->next = NULL;
        return s;
    }
    if (ch->was_full) {
        us_partial_add(p, s, true);
        us_count(c, cpu, US_SLUB_PARTIAL_FREE_ADD_PARTIAL);
    }
    return NULL;
}

/* A CPU that has only freed so far has no region to put a list in. */
static bool can_adopt(struct us_cache *c, struct us_flight *f)
{
    const unsigned cpu = us_cpu_now(c->machine);

    if (!has_cpu_partial(c) || f->nested)
        return false;
    if (US_UNLIKELY(!us_local_populated(&c->local, cpu)))
        us_words_populate(c, f, cpu);
    return us_local_is_open(&c->local, cpu);
}

enum outcome { OUT_BUSY, OUT_REFUSED, OUT_DONE };

/* Repeats the exchange until it succeeds; the node lock is held afterwards if ch->listing. */
static enum outcome exchange(struct us_cache *c, struct us_flight *f, unsigned cpu,
                             struct us_slab *s, const struct load *l, struct change *ch)
{
    const bool may_adopt = !l->late && can_adopt(c, f);
    struct us_partial *p = us_slub_node_of(c, s);
    bool held = false;
    enum us_exchange done;

    do {
        ch->old = us_pair_look(s);
        if (held)
            us_lock_drop(f, &p->lock);
        if (is_free_already(s, &ch->old, l))
            return OUT_REFUSED;
        plan(c, s, l, may_adopt, ch);
        /* Releasing takes locks that a nested flight might not get. */
        if (ch->listing && ((ch->empty && f->nested) || !us_lock_take(f, &p->lock)))
            return OUT_BUSY;
        held = ch->listing;
        done = us_pair_exchange(f, s, ch->old, ch->next);
    } while (us_slub_partial_lost(c, cpu, done) && done != US_EXCHANGE_BUSY);
    if (done == US_EXCHANGE_DONE)
        return OUT_DONE;
    if (held)
        us_lock_drop(f, &p->lock);
    return OUT_BUSY;
}

static enum outcome put_load(struct us_cache *c, struct us_flight *f, unsigned cpu,
                             struct us_slab *s, const struct load *l)
{
    const unsigned node = s->node;
    struct us_partial *p = us_slub_node_of(c, s);
    struct us_slab *empty = NULL;
    struct change ch;
    enum outcome out;

    us_runs(RUNS_PUT_LOAD);
    us_reads(us_slub_partial_of(c), sizeof(struct us_slub_partial));
    out = exchange(c, f, cpu, s, l, &ch);
    if (out != OUT_DONE)
        return out;
    count_frees(c, cpu, node, l->n);
    if (ch.adopt) {
        s->next = NULL;
        if (us_slub_partial_own(c, f, s, true))
            us_count(c, cpu, US_SLUB_PARTIAL_CPU_PARTIAL_FREE);
    } else if (ch.listing) {
        empty = relist(c, cpu, s, p, &ch);
        us_lock_drop(f, &p->lock);
        us_slub_partial_release(c, f, cpu, empty);
    } else if (ch.old.state & US_SLAB_FROZEN) {
        us_count(c, cpu, US_SLUB_PARTIAL_FREE_FROZEN);
    }
    return OUT_DONE;
}

static bool put(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_slab *s,
                void *object, bool late)
{
    const struct load l = {object, object, 1, late};
    const enum outcome out = put_load(c, f, cpu, s, &l);

    us_runs(RUNS_PUT);
    if (out == OUT_REFUSED)
        us_report_misuse(c, US_MISUSE_DOUBLE_FREE, object);
    return out != OUT_BUSY;
}

/* ---- allocation, slow path ----------------------------------------------------------- */

static void count_level(struct us_slub_ask *a, unsigned node, bool cpu_partial)
{
    us_runs(RUNS_LEVEL);
    if (cpu_partial)
        us_count(a->c, a->cpu, US_SLUB_PARTIAL_FROM_CPU_PARTIAL);
    else if (node == us_node_of_cpu(a->c->machine, a->cpu))
        us_count(a->c, a->cpu, US_SLUB_PARTIAL_FROM_NODE);
    else
        us_count(a->c, a->cpu, US_SLUB_PARTIAL_FROM_OTHER_NODE);
}

/* One object of a private slab that has a freelist, the rest for the CPU. NULL: it is broken. */
static void *serve(struct us_slub_ask *a, struct us_slab *s, bool cpu_partial)
{
    void *object;

    us_runs(RUNS_SERVE);
    if (!us_slab_pop_local(a->c, s, &object)) {
        us_slub_partial_isolate(a->c, a->f, s, object);
        return NULL;
    }
    count_level(a, s->node, cpu_partial);
    us_slub_install(a->c, a->f, a->cpu, s);
    return object;
}

/* Takes the own freelist of a slab that the caller owns, which stays frozen; one with nothing free
 * is given up, full. */
static bool take_freelist(struct us_slub_ask *a, struct us_slab *s)
{
    struct us_pair old, next;

    do {
        old = next = us_pair_look(s);
        next.freelist = NULL;
        next.free = 0;
        next.state |= US_SLAB_FROZEN;
        if (!old.freelist)
            next.state = (uint8_t)(next.state & ~US_SLAB_FROZEN);
        else
            us_slab_set_local(s, old.freelist, old.free);
    } while (us_slub_partial_lost(a->c, a->cpu, us_pair_exchange(a->f, s, old, next)));
    us_count_n(a->c, a->cpu, US_SLUB_PARTIAL_MOVED, old.free);
    return old.freelist != NULL;
}

static void deactivate(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_slab *s)
{
    struct us_slab *empty = NULL;

    us_slub_partial_deactivate(c, f, cpu, s, false, &empty);
    us_slub_partial_release(c, f, cpu, empty);
}

/* Steps 1 to 4: a slab that the CPU owns and that was taken off its word. NULL: it was given up. */
static void *from_owned(struct us_slub_ask *a, struct us_slab *s, bool cpu_partial)
{
    us_runs(RUNS_FROM_OWNED);
    if (a->node >= 0 && s->node != (unsigned)a->node) {
        us_count(a->c, a->cpu, US_SLUB_PARTIAL_ALLOC_NODE_MISMATCH);
        deactivate(a->c, a->f, a->cpu, s);
        return NULL;
    }
    if (s->local.head) { /* the fast path was interrupted, or has just been served */
        us_count(a->c, a->cpu, US_SLUB_PARTIAL_CMPXCHG_DOUBLE_CPU_FAIL);
        return serve(a, s, cpu_partial);
    }
    if (!take_freelist(a, s)) {
        us_count(a->c, a->cpu, US_SLUB_PARTIAL_DEACTIVATE_BYPASS);
        return NULL;
    }
    us_count(a->c, a->cpu, US_SLUB_PARTIAL_ALLOC_REFILL);
    return serve(a, s, cpu_partial);
}

/* Step 5: the first slab of the CPU's partial list, private. */
static struct us_slab *pop_cpu_partial(struct us_slub_ask *a)
{
    struct us_list *list = us_local_detach(&a->c->local, a->f, 1, &a->cpu);
    struct us_slab *s, *rest;

    if (!list)
        return NULL;
    s = us_slab_of_list(list);
    us_writes(s, sizeof(*s));
    rest = s->next;
    s->next = NULL;
    us_count(a->c, a->cpu, US_SLUB_PARTIAL_CPU_PARTIAL_ALLOC);
    if (rest && us_local_install(&a->c->local, a->f, 1, a->cpu, &rest->local) != US_LOCAL_OK)
        us_slub_partial_own(a->c, a->f, rest, false);
    return s;
}

/* Freezes a listed slab, the node lock being held, and takes its freelist if it is to serve. */
static uint32_t acquire_one(struct us_slub_ask *a, struct us_partial *p, struct us_slab *s,
                            bool serves)
{
    struct us_pair old, next;

    us_runs(RUNS_ACQUIRE_ONE);
    do {
        old = next = us_pair_look(s);
        next.state |= US_SLAB_FROZEN;
        if (serves) {
            next.freelist = NULL;
            next.free = 0;
        }
    } while (us_slub_partial_lost(a->c, a->cpu, us_pair_exchange(a->f, s, old, next)));
    us_partial_remove(p, s);
    if (serves) {
        us_slab_set_local(s, old.freelist, old.free);
        us_count_n(a->c, a->cpu, US_SLUB_PARTIAL_MOVED, old.free);
        us_count(a->c, a->cpu, US_SLUB_PARTIAL_ALLOC_FROM_PARTIAL);
    } else {
        us_slub_partial_chain(s, a->extra);
        a->extra = s;
        us_count(a->c, a->cpu, US_SLUB_PARTIAL_CPU_PARTIAL_NODE);
    }
    return old.free;
}

static bool gathered(const struct us_slub_ask *a, uint64_t free)
{
    const struct us_slub_partial *st = us_slub_partial_of(a->c);

    if (!has_cpu_partial(a->c))
        return true;
    if (st->epoch_3_2)
        return free > st->cpu_partial / 2;
    return a->extra && a->extra->chain.slabs > st->cpu_partial_slabs / 2;
}

/* Step 6: the first slab of a list is to serve; those that follow go to a->extra until there are
 * enough. */
static struct us_slab *acquire(struct us_slub_ask *a, struct us_partial *p)
{
    struct us_slab *first, *s;
    uint64_t free;

    us_runs(RUNS_ACQUIRE);
    if (us_partial_length(p) == 0 || !us_lock_take(a->f, &p->lock))
        return NULL;
    first = p->slabs.first;
    if (first) {
        free = acquire_one(a, p, first, true);
        while (!gathered(a, free) && (s = p->slabs.first) != NULL)
            free += acquire_one(a, p, s, false);
    }
    us_lock_drop(a->f, &p->lock);
    return first;
}

static void *from_nodes(struct us_slub_ask *a)
{
    us_runs(RUNS_FROM_NODES);
    for (;;) {
        struct us_slab *s = acquire(a, &us_slub_of(a->c)->node[a->home]);
        void *object;

        if (!s)
            s = us_slub_elsewhere(a, acquire);
        if (!s)
            return NULL;
        object = serve(a, s, false);
        if (a->extra)
            us_slub_partial_own(a->c, a->f, a->extra, false);
        a->extra = NULL;
        if (object)
            return object;
    }
}

/* Step 7: a new slab, which is still private, becomes the CPU's with all its objects. */
static void *from_new(struct us_slub_ask *a, struct us_slab *s)
{
    us_runs(RUNS_FROM_NEW);
    us_slab_set_local(s, s->freelist, s->free);
    s->freelist = NULL;
    us_slab_set_free(s, 0);
    us_slab_set_state(s, US_SLAB_FROZEN);
    return serve(a, s, false);
}

/* ---- one object without the CPU's slabs ----------------------------------------------- */

/* Epoch 3.2 has acquired the slab for it, and deactivated it afterwards. */
static void count_single(struct us_slub_ask *a, bool listed, bool full)
{
    if (a->c->local.mode != US_MODE_CONTROL || !us_slub_partial_of(a->c)->epoch_3_2)
        return;
    if (listed)
        us_count(a->c, a->cpu, US_SLUB_PARTIAL_ALLOC_FROM_PARTIAL);
    us_count(a->c, a->cpu,
             full ? US_SLUB_PARTIAL_DEACTIVATE_FULL : US_SLUB_PARTIAL_DEACTIVATE_TO_HEAD);
}

/* The node lock is held: one object of an unfrozen slab, *left remain. One whose last object it was
 * is frozen, or who frees into it would adopt it while it is on the list. NULL: its chain is
 * broken, or a nested flight found it locked; *broken tells. */
static void *pop_one(struct us_slub_ask *a, struct us_slab *s, uint32_t *left, bool *broken)
{
    struct us_pair old, next;
    enum us_exchange done;

    us_runs(RUNS_SINGLE);
    *broken = false;
    do {
        old = next = us_pair_look(s);
        if (!us_slab_read_link(a->c, s, old.freelist, &next.freelist) ||
            (next.freelist == NULL) != (old.free == 1)) {
            /* The look may have been torn; but what is wrong stays wrong. */
            *broken = old.freelist == us_pair_look(s).freelist &&
                      old.counters == us_pair_look(s).counters;
            if (*broken)
                return NULL;
            done = US_EXCHANGE_LOST;
            continue;
        }
        next.free--;
        if (next.free == 0)
            next.state |= US_SLAB_FROZEN;
        done = us_pair_exchange(a->f, s, old, next);
    } while (us_slub_partial_lost(a->c, a->cpu, done) && done != US_EXCHANGE_BUSY);
    *left = next.free;
    return done == US_EXCHANGE_DONE ? old.freelist : NULL;
}

/* The node lock is held: a slab whose last object was taken leaves the list, and comes back when
 * something was freed into it meanwhile. */
static void unlist_full(struct us_slub_ask *a, struct us_partial *p, struct us_slab *s)
{
    struct us_pair old, next;

    us_partial_remove(p, s);
    do {
        old = next = us_pair_look(s);
        next.state = (uint8_t)(old.state & ~US_SLAB_FROZEN);
    } while (us_slub_partial_lost(a->c, a->cpu, us_pair_exchange(a->f, s, old, next)));
    if (old.free > 0)
        us_partial_add(p, s, true);
}

/* One object of the first slab of a list that has one to give. A nested flight, which may find an
 * exchange barred, leaves last objects alone. */
static void *take_listed(struct us_slub_ask *a, struct us_partial *p)
{
    struct us_slab *s, *next;
    void *object = NULL;
    uint32_t left = 0;
    bool broken;

    if (us_partial_length(p) == 0 || !us_lock_take(a->f, &p->lock))
        return NULL;
    for (s = p->slabs.first; s && !object; s = next) {
        next = s->next;
        if (a->f->nested && us_pair_look(s).free <= 1)
            continue;
        object = pop_one(a, s, &left, &broken);
        if (broken && a->f->nested)
            continue; /* left for who may wait */
        if (object && left == 0)
            unlist_full(a, p, s);
        if (!broken)
            continue;
        us_partial_remove(p, s);
        us_slub_partial_isolate(a->c, a->f, s, us_pair_look(s).freelist);
    }
    us_lock_drop(a->f, &p->lock);
    if (object) {
        count_level(a, us_node_of(&a->c->slabs->range, object), false);
        count_single(a, true, left == 0);
    }
    return object;
}

static void *take_from_new(struct us_slub_ask *a)
{
    struct us_slab *s = us_slub_new_slab(a);
    struct us_partial *p;
    void *object;

    if (!s)
        return NULL;
    us_runs(RUNS_SINGLE);
    p = us_slub_node_of(a->c, s);
    if (!us_lock_take(a->f, &p->lock)) {
        us_slub_partial_release(a->c, a->f, a->cpu, s);
        return NULL;
    }
    object = us_slab_pop_free(a->c, s);
    count_level(a, s->node, false);
    count_single(a, false, s->free == 0);
    us_slab_set_state(s, 0);
    if (s->free > 0)
        us_partial_add(p, s, false);
    us_lock_drop(a->f, &p->lock);
    return object;
}

static struct us_slab *take_elsewhere(struct us_slub_ask *a, struct us_partial *p)
{
    return take_listed(a, p);
}

static void *past_cpu_slab(struct us_slub_ask *a)
{
    void *object;

    if (a->f->nested && a->node < 0 && a->c->local.mode != US_MODE_CONTROL &&
        us_local_list_pop(&a->c->local, a->f, 0, &object, &a->cpu) == US_LOCAL_OK)
        return object;
    us_count(a->c, a->cpu, US_SLUB_PARTIAL_ALLOC_SLOWPATH);
    object = take_listed(a, &us_slub_of(a->c)->node[a->home]);
    if (!object)
        object = us_slub_elsewhere(a, take_elsewhere);
    return object ? object : take_from_new(a);
}

/* Step 5 as long as that list has slabs. */
static void *from_cpu_partial(struct us_slub_ask *a)
{
    const enum us_phase before = us_phase_set(US_PHASE_SECOND);
    struct us_slab *s;
    void *object = NULL;

    while (!object && (s = pop_cpu_partial(a)) != NULL)
        object = from_owned(a, s, true);
    us_phase_set(before);
    return object;
}

static void *allocate(struct us_slub_ask *a)
{
    struct us_slab *s;
    void *object;

    us_runs(RUNS_ALLOCATE);
    us_reads(us_slub_partial_of(a->c), sizeof(struct us_slub_partial));
    if (a->f->nested || a->c->local.mode == US_MODE_CONTROL ||
        !us_local_is_open(&a->c->local, a->cpu))
        return past_cpu_slab(a);
    us_count(a->c, a->cpu, US_SLUB_PARTIAL_ALLOC_SLOWPATH);
    s = us_slub_detach(a->c, a->f, &a->cpu);
    if (s && (object = from_owned(a, s, false)) != NULL)
        return object;
    object = from_cpu_partial(a);
    if (!object)
        object = from_nodes(a);
    if (object)
        return object;
    s = us_slub_new_slab(a);
    return s ? from_new(a, s) : us_slub_after_failure(a, take_listed);
}

/* ---- bulk ----------------------------------------------------------------------------- */

#define WINDOW    256u /* objects looked at together */
#define LOOKAHEAD 3    /* the third object of another slab ends a chain */

/* Links objects of the slab of the last one, which becomes the tail; they are taken out of
 * in[0..n). Returns how many of in[] are left to look at. */
static unsigned link_chain(struct us_cache *c, struct us_slab *s, void **in, unsigned n,
                           struct load *l)
{
    unsigned skipped = 0, left = 0, i;

    *l = (struct load){in[n - 1], in[n - 1], 1, false};
    in[n - 1] = NULL;
    for (i = n - 1; i-- > 0;) {
        if (!in[i])
            continue;
        if (us_cache_slab(c, in[i]) == s && in[i] != l->head && us_slab_is_object(c, s, in[i])) {
            us_slab_write_link(c, in[i], l->head);
            l->head = in[i];
            l->n++;
            in[i] = NULL;
            continue;
        }
        if (left == 0)
            left = i + 1;
        if (++skipped == LOOKAHEAD)
            break;
    }
    return left;
}

static bool is_cpu_slab(const struct us_cache *c, const struct us_slab *s)
{
    return c->local.mode != US_MODE_CONTROL &&
           us_local_word(&c->local, us_cpu_now(c->machine), 0) == &s->local;
}

/* The chain goes to its slab at once. False: it has to go object by object, to the CPU's freelist
 * or to where a signal handler may leave it. */
static bool put_chain(struct us_cache *c, struct us_slab *s, const struct load *l)
{
    struct us_flight f;
    enum outcome out = OUT_BUSY;

    if (!us_flight_try(c->machine, &f))
        return false;
    us_slub_check_deferred(c, &f, s->node);
    if (!is_cpu_slab(c, s))
        out = put_load(c, &f, us_cpu_now(c->machine), s, l);
    us_flight_leave(&f);
    return out == OUT_DONE;
}

/* From the tail on, so that the head is the first to be served again. */
static void free_singly(struct us_cache *c, const struct load *l,
                        void (*single)(struct us_cache *c, void *object))
{
    void *object[WINDOW], *next = l->head;
    uint32_t i;

    for (i = 0; i < l->n; i++) {
        us_reads((const char *)next + c->geometry.link, sizeof(next));
        object[i] = next;
        next = us_link_get(c, next);
    }
    while (i-- > 0)
        single(c, object[i]);
}

static void free_window(struct us_cache *c, void **in, unsigned n)
{
    void (*const single)(struct us_cache *, void *) = c->policy->entries[c->local.mode].free;

    while (n > 0) {
        struct us_slab *s;
        struct load l;

        if (!in[n - 1]) {
            n--;
            continue;
        }
        s = us_cache_slab(c, in[n - 1]);
        if (!s || s->cache != c || !us_slab_is_object(c, s, in[n - 1])) {
            single(c, in[--n]); /* reports it */
            continue;
        }
        n = link_chain(c, s, in, n, &l);
        if (!put_chain(c, s, &l))
            free_singly(c, &l, single);
    }
}

void us_slub_partial_free_bulk(struct us_cache *c, size_t n, void *const *object)
{
    void *window[WINDOW];

    while (n > 0) {
        const unsigned part = n < WINDOW ? (unsigned)n : WINDOW;
        unsigned i;

        us_runs(RUNS_LINKED * part);
        n -= part;
        for (i = 0; i < part; i++)
            window[i] = object[n + i];
        free_window(c, window, part);
    }
}

/* ---- life ---------------------------------------------------------------------------- */

static const struct us_slub_paths paths = {
    .allocate = allocate,
    .put = put,
    .deactivate = deactivate,
    .page_lock = false,
    .alloc_slab = US_SLUB_PARTIAL_ALLOC_SLAB,
    .order_fallback = US_SLUB_PARTIAL_ORDER_FALLBACK,
    .cpuslab_flush = US_SLUB_PARTIAL_CPUSLAB_FLUSH,
    .shrink_slab = US_SLUB_PARTIAL_SHRINK_SLAB,
};

enum us_status us_slub_partial_create(struct us_cache *c, struct us_error *e)
{
    const enum us_status status = us_slub_create(c, &paths, sizeof(struct us_slub_partial), e);

    if (status == US_OK)
        us_slub_partial_use_limit(c);
    return status;
}
