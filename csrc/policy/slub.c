/* slub.c - SLUB with the page lock, Linux 2.6.25 to 2.6.36.
 *
 * Levels. An allocation is served by the first of: the CPU's freelist; the own freelist of the
 * CPU's slab (what others freed into it); the partial list of the node; now and then partial lists
 * of other nodes; a new slab. There are no queues: a free goes to the CPU's freelist when the
 * object is of that CPU's slab, and straight to its slab, under the slab's lock, in every other
 * case.
 *
 * States of a slab.
 *
 *   frozen   owned by one CPU, on no list. It has two freelists: the CPU's (slab->local), worked by
 *            that CPU alone, and its own (slab->freelist, slab->free objects), into which anybody
 *            may free under the slab lock. Objects of the former count as in use at slab level.
 *
 *   partial  on its node's list; all its free objects are on its own freelist.
 *
 *   full     on no list, no object free.
 *
 *   empty    all objects free. It is kept, on the list, only when a deactivation emptied it and the
 *            list is shorter than min_partial; a partial slab emptied by a free goes back.
 *
 *   isolated its freelist showed a broken link: on no list, its objects are only counted and never
 *            handed out again. (The mark BAD alone says that misuse was reported of it.)
 *
 * The CPU's word is described in slub_paths.c. What was installed there while a slow path worked is
 * treated as the original treats what it finds after the page provider: the slab on the CPU is
 * flushed (CPUSLAB_FLUSH), and a slab whose CPU was left is deactivated. The caller's object was
 * taken out before and is served in any case. Whoever finds the region closed, and a signal handler
 * that interrupted a slow path, leaves the CPU slab alone and takes one object out of a listed
 * slab, which stays on its list.
 *
 * Locks. slab (byte lock, the page lock) then node (list_lock). Taking a slab off the list needs
 * the inverse order: under the node lock slab locks are only tried, and a busy slab is passed over.
 * A flush holds the control lock outside both. No lock is held over the page provider.
 *
 * Debug. Caches with consistency checks have no CPU freelist, as in the original: each allocation
 * takes one object of the CPU slab under its lock, and each free goes to the slab.
 *
 * Added to the original: when the page provider fails, flushes may have brought objects to partial
 * lists meanwhile, so these are asked once more, on all nodes the caller allows.
 *
 * slub-thrash is this code with another choice of partial slabs: slub_thrash.c.
 */
#include "policy/slub_slab.h"

/* Instructions of the compiled functions: see slub_paths.c. */
enum {
    RUNS_PUT = 58,
    RUNS_COUNT_SLOW = 9,
    RUNS_LOAD = 48,
    RUNS_FROM_FREELIST = 40,
    RUNS_ALLOCATE = 59, /* the CPU slab among it */
    RUNS_ACQUIRE = 29,
    RUNS_LISTED = 30,
};

/* ---- free, slow path ----------------------------------------------------------------- */

static void count_put(struct us_cache *c, unsigned cpu, unsigned node, enum us_put done)
{
    if (node != us_node_of_cpu(c->machine, cpu))
        us_count(c, cpu, US_SLUB_FREE_OFF_NODE);
    us_count(c, cpu, US_SLUB_FREE_SLOWPATH);
    if (done == US_PUT_OWNED)
        us_count(c, cpu, US_SLUB_FREE_FROZEN);
    if (done == US_PUT_LISTED)
        us_count(c, cpu, US_SLUB_FREE_ADD_PARTIAL);
    if (done == US_PUT_UNLISTED)
        us_count(c, cpu, US_SLUB_FREE_REMOVE_PARTIAL);
}

static bool put(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_slab *s,
                void *object, bool late)
{
    const unsigned node = s->node;
    const bool at_tail = us_slub_at_tail(c, cpu, 1, true);
    const enum us_put done =
        us_partial_put(c, f, &us_slub_of(c)->node[node], s, object, 0, at_tail);

    (void)late;
    us_runs(RUNS_PUT);
    if (done == US_PUT_BUSY || done == US_PUT_REFUSED)
        return done == US_PUT_REFUSED;
    count_put(c, cpu, node, done);
    if (done == US_PUT_UNLISTED || done == US_PUT_EMPTIED)
        us_slub_release(c, f, cpu, s);
    return true;
}

/* ---- allocation, slow path ----------------------------------------------------------- */

static void count_slow_alloc(const struct us_slub_ask *a, unsigned node)
{
    us_runs(RUNS_COUNT_SLOW);
    if (node != us_node_of_cpu(a->c->machine, a->cpu))
        us_count(a->c, a->cpu, US_SLUB_ALLOC_OFF_NODE);
    us_count(a->c, a->cpu, US_SLUB_ALLOC_SLOWPATH);
}

/* Takes one object and hands the rest of the slab's own freelist to the CPU. The slab is frozen,
 * locked and has a free object; the lock is dropped. NULL: the chain is broken. */
static void *load(struct us_slub_ask *a, struct us_slab *s)
{
    struct us_cache *c = a->c;
    void *seen = s->freelist, *object = us_slab_pop_free(c, s);

    us_runs(RUNS_LOAD);
    if (!object)
        us_slab_isolate(c, s, seen);
    else if (c->local.mode != US_MODE_CONTROL) {
        us_slab_set_local(s, s->freelist, s->free);
        us_stat_add(c, a->cpu, US_NCOMMON + US_SLUB_MOVED, s->free);
        s->freelist = NULL;
        us_slab_set_free(s, 0);
    }
    us_slab_unlock(a->f, s);
    if (!object)
        return NULL;
    count_slow_alloc(a, s->node);
    us_slub_install(c, a->f, a->cpu, s);
    return object;
}

/* The CPU slab's freelist is not empty: the fast path was interrupted, or has just been served. */
static void *from_freelist(struct us_slub_ask *a, struct us_slab *s)
{
    struct us_cache *c = a->c;
    void *object;

    us_runs(RUNS_FROM_FREELIST);
    if (us_slab_pop_local(c, s, &object)) {
        us_count(c, a->cpu, US_SLUB_ALLOC_FASTPATH);
        us_slub_note_pops(c, a->cpu, 1);
        us_slub_install(c, a->f, a->cpu, s);
        return object;
    }
    us_slab_lock(a->f, s);
    us_slab_isolate(c, s, object);
    us_slab_unlock(a->f, s);
    return NULL;
}

/* Steps 1 to 5: the CPU slab, which is given up when it cannot serve. */
static void *from_cpu_slab(struct us_slub_ask *a)
{
    struct us_cache *c = a->c;
    struct us_slab *s = us_slub_detach(c, a->f, &a->cpu);
    const bool right_node = s && (a->node < 0 || s->node == (unsigned)a->node);

    if (right_node && s->local.head)
        return from_freelist(a, s);
    us_slub_note_slow(c, a->cpu);
    if (!s)
        return NULL;
    us_slab_lock(a->f, s);
    if (right_node) {
        us_count(c, a->cpu, US_SLUB_ALLOC_REFILL);
        if (s->freelist)
            return load(a, s);
    }
    us_slub_deactivate(c, a->f, a->cpu, s, true);
    return NULL;
}

/* Step 6: a partial slab becomes the CPU's. Returns it frozen and locked. */
static struct us_slab *acquire_partial(struct us_slub_ask *a)
{
    bool deferred;
    struct us_slab *s = us_slub_lock_partial(a, &deferred);

    us_runs(RUNS_ACQUIRE);
    if (s)
        us_slub_note_good(a->c, a->cpu);
    else if (!deferred)
        s = us_slub_elsewhere(a, us_slub_lock_other);
    if (!s)
        return NULL;
    us_partial_remove(us_slub_node_of(a->c, s), s);
    us_slab_set_state(s, US_SLAB_FROZEN);
    us_lock_drop(a->f, &us_slub_node_of(a->c, s)->lock);
    us_count(a->c, a->cpu, US_SLUB_ALLOC_FROM_PARTIAL);
    return s;
}

/* One object of a listed slab, which stays on its list; both locks are held and dropped. */
static void *take_listed(struct us_slub_ask *a, struct us_slab *s)
{
    const unsigned node = s->node;
    void *object = us_partial_take(a->c, a->f, &us_slub_of(a->c)->node[node], s);

    us_runs(RUNS_LISTED);
    if (object)
        count_slow_alloc(a, node);
    return object;
}

static struct us_slab *lock_first(struct us_slub_ask *a, struct us_partial *p)
{
    return us_partial_lock_first(a->f, p, 0);
}

static void *take_first(struct us_slub_ask *a, struct us_partial *p)
{
    struct us_slab *s;
    void *object = NULL;

    while (!object && (s = lock_first(a, p)) != NULL)
        object = take_listed(a, s);
    return object;
}

static struct us_slab *lock_any(struct us_slub_ask *a)
{
    struct us_slab *s = lock_first(a, &us_slub_of(a->c)->node[a->home]);

    return s ? s : us_slub_elsewhere(a, lock_first);
}

/* One object without the CPU slab. */
static void *past_cpu_slab(struct us_slub_ask *a)
{
    struct us_slab *s;
    void *object;

    if (a->f->nested && a->node < 0 && a->c->local.mode != US_MODE_CONTROL &&
        us_local_list_pop(&a->c->local, a->f, 0, &object, &a->cpu) == US_LOCAL_OK)
        return object;
    while ((s = lock_any(a)) != NULL)
        if ((object = take_listed(a, s)) != NULL)
            return object;
    s = us_slub_new_slab(a);
    if (!s)
        return NULL;
    if (us_partial_publish(a->f, us_slub_node_of(a->c, s), s))
        return take_listed(a, s);
    us_slub_release(a->c, a->f, a->cpu, s);
    return NULL;
}

static void *allocate(struct us_slub_ask *a)
{
    struct us_slab *s;
    void *object;

    us_runs(RUNS_ALLOCATE);
    if (a->f->nested || !us_local_is_open(&a->c->local, a->cpu))
        return past_cpu_slab(a);
    object = from_cpu_slab(a);
    if (object)
        return object;
    while ((s = acquire_partial(a)) != NULL)
        if ((object = load(a, s)) != NULL)
            return object;
    s = us_slub_new_slab(a);
    if (!s)
        return us_slub_after_failure(a, take_first);
    us_slab_lock(a->f, s);
    us_slab_set_state(s, US_SLAB_FROZEN);
    return load(a, s);
}

/* ---- life ---------------------------------------------------------------------------- */

static void deactivate(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_slab *s)
{
    us_slub_deactivate(c, f, cpu, s, false);
}

const struct us_slub_paths us_slub_page_lock = {
    .allocate = allocate,
    .put = put,
    .deactivate = deactivate,
    .page_lock = true,
    .alloc_slab = US_SLUB_ALLOC_SLAB,
    .order_fallback = US_SLUB_ORDER_FALLBACK,
    .cpuslab_flush = US_SLUB_CPUSLAB_FLUSH,
    .shrink_slab = US_SLUB_SHRINK_SLAB,
};

enum us_status us_slub_plain_create(struct us_cache *c, struct us_error *e)
{
    return us_slub_create(c, &us_slub_page_lock, sizeof(struct us_slub), e);
}
