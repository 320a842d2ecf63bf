/* slab_lists.c - a node's slabs under the policy `slab`: three lists, the shared array, colours.
 *
 * Partial, full and free are told apart by the count in the slab, and every take and put relinks:
 * a slab that gave objects goes to the head of partial or of full, one that got an object back
 * always to the tail of partial, so that its other objects have the longest time to come back too,
 * and one that is entirely free to the head of free, or away when the node has more free objects
 * than its limit. The node lock guards all of it and the shared array; slabs that are to be
 * destroyed are chained and leave after it was dropped.
 */
#include "policy/slab.h"

/* Instructions of the compiled functions: see slab.c. */
enum {
    RUNS_ACTIVE = 10,
    RUNS_REFILL = 63,
    RUNS_LISTS = 22,
    RUNS_TAKE_FROM = 57,
    RUNS_TAKE_ONE = 50,
    RUNS_GROW = 82,
    RUNS_PUT_BACK = 54,
    RUNS_PUT_NEXT = 8,
    RUNS_FLUSH = 60,
    RUNS_DRAIN = 75,
    RUNS_DRAIN_NEXT = 9, /* to see how far objects are of one node */
    RUNS_DRAIN_ALIEN = 75,
    RUNS_DESTROY_CHAIN = 2,
    RUNS_DESTROY_FREE = 28,
};

/* ---- counts of objects out of slabs ----------------------------------------------------------
 */

/* Raises a mark to `value`; the counter gets what it was raised by. */
static void raise_mark(struct us_cache *c, unsigned cpu, _Atomic uint64_t *mark, uint64_t value,
                       unsigned row)
{
    uint64_t before = atomic_load_explicit(mark, memory_order_relaxed);

    us_reads(mark, sizeof(*mark));
    while (value > before) {
        us_updates(mark, sizeof(*mark));
        if (atomic_compare_exchange_weak_explicit(mark, &before, value, memory_order_relaxed,
                                                  memory_order_relaxed)) {
            us_count_n(c, cpu, row, value - before);
            return;
        }
    }
}

static void now_active(struct us_cache *c, unsigned cpu, unsigned n)
{
    struct us_slabp *st = us_slabp_of(c);
    uint64_t active = atomic_fetch_add_explicit(&st->active, n, memory_order_relaxed) + n;

    us_runs(RUNS_ACTIVE);
    us_updates(&st->active, sizeof(st->active));
    raise_mark(c, cpu, &st->most_active, active, US_SLABP_MAXOBJS);
}

static void no_longer_active(struct us_cache *c)
{
    us_updates(&us_slabp_of(c)->active, sizeof(us_slabp_of(c)->active));
    atomic_fetch_sub_explicit(&us_slabp_of(c)->active, 1, memory_order_relaxed);
}

/* ---- lists; node lock held ------------------------------------------------------------------- */

static struct us_slab_list *list_of(struct us_slabp_node *node, const struct us_slab *s)
{
    if (s->free == 0)
        return &node->full;
    return s->free == us_slab_objects(s) ? &node->free : &node->partial;
}

/* The slab that an allocation is to use; NULL when the node has no free object. */
static struct us_slab *first_slab(struct us_slabp_node *node)
{
    if (node->partial.first)
        return node->partial.first;
    us_writes(&node->free_touched, sizeof(node->free_touched));
    node->free_touched = true;
    return node->free.first;
}

/* The node lock is held; others look without it. */
static void change_free(struct us_slabp_node *node, uint64_t by)
{
    us_writes(&node->free_objects, sizeof(node->free_objects));
    __atomic_store_n(&node->free_objects, node->free_objects + by, __ATOMIC_RELAXED);
}

static unsigned take_from(struct us_cache *c, struct us_slabp_node *node, struct us_slab *s,
                          void **out, unsigned n)
{
    us_runs(RUNS_TAKE_FROM);
    us_reads(s, sizeof(*s));
    us_slab_list_remove(list_of(node, s), s);
    n = us_slab_index_take(c, s, out, n);
    us_slab_list_head(list_of(node, s), s);
    change_free(node, -(uint64_t)n);
    return n;
}

/* Puts one object back. A slab that is to be destroyed goes on *chain. */
static void put_back(struct us_cache *c, struct us_slabp_node *node, void *object,
                     struct us_slab **chain)
{
    struct us_slab *s = us_slab_to_fill(c, object);
    struct us_slab_list *from = s ? list_of(node, s) : NULL;

    us_runs(RUNS_PUT_BACK);
    if (!s || !us_slab_index_put(c, s, object))
        return;
    no_longer_active(c);
    change_free(node, 1);
    us_slab_list_remove(from, s);
    if (s->free < us_slab_objects(s)) {
        us_slab_list_tail(&node->partial, s);
    } else if (node->free_objects <= node->free_limit) {
        us_slab_list_head(&node->free, s);
    } else {
        change_free(node, -(uint64_t)us_slab_objects(s));
        us_writes(s, sizeof(*s));
        s->next = *chain;
        *chain = s;
    }
}

void us_slabp_destroy_chain(struct us_cache *c, struct us_flight *f, unsigned cpu,
                            struct us_slab *chain)
{
    us_runs(RUNS_DESTROY_CHAIN);
    us_slab_release_chain(c, f, cpu, chain, US_SLABP_DESTROYED);
}

/* ---- allocation ------------------------------------------------------------------------------ */

static unsigned from_shared(struct us_slabp_node *node, void **out, unsigned n)
{
    us_reads(&node->shared, sizeof(node->shared));
    if (!node->shared)
        return 0;
    us_reads(node->shared, sizeof(*node->shared));
    return us_ring_take_top_c(node->shared->ring, out, n, US_SEEN_TOUCH);
}

static unsigned from_lists(struct us_cache *c, struct us_slabp_node *node, void **out, unsigned n)
{
    struct us_slab *s;
    unsigned got = 0;

    us_runs(RUNS_LISTS);
    while (got < n && (s = first_slab(node)) != NULL)
        got += take_from(c, node, s, out + got, n - got);
    return got;
}

unsigned us_slabp_refill(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned n_of,
                         void **out, unsigned n, bool *shared, bool *refused)
{
    const enum us_phase before = us_phase_set(US_PHASE_SECOND);
    struct us_slabp_node *node = us_slabp_node_of(c, n_of);
    unsigned got;

    us_runs(RUNS_REFILL);
    *shared = false;
    if (!us_lock_take(f, &node->lock)) {
        us_phase_set(before);
        *refused = true;
        return 0;
    }
    got = from_shared(node, out, n);
    *shared = got > 0;
    us_phase_set(*shared ? US_PHASE_SECOND : before);
    if (got == 0)
        got = from_lists(c, node, out, n);
    us_lock_drop(f, &node->lock);
    us_phase_set(before);
    if (got == 0 || *shared)
        return got;
    us_count_n(c, cpu, US_SLABP_LISTALLOCS, got);
    now_active(c, cpu, got);
    return got;
}

void *us_slabp_take_one(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned n_of,
                        bool *refused)
{
    struct us_slabp_node *node = us_slabp_node_of(c, n_of);
    void *object = NULL;

    us_runs(RUNS_TAKE_ONE);
    if (!us_lock_take(f, &node->lock)) {
        *refused = true;
        return NULL;
    }
    from_lists(c, node, &object, 1);
    us_lock_drop(f, &node->lock);
    if (!object)
        return NULL;
    now_active(c, cpu, 1);
    if (n_of == us_node_of_cpu(c->machine, cpu))
        us_count(c, cpu, US_SLABP_NODE_LOCAL);
    us_count(c, cpu, US_SLABP_NODEALLOCS);
    return object;
}

/* Where the next slab that a node asks for has its objects. False = the lock was not to be had. */
static bool next_offset(struct us_cache *c, struct us_flight *f, unsigned n_of, uint32_t *offset)
{
    const struct us_slabp *st = us_slabp_of(c);
    struct us_slabp_node *node = &st->node[n_of];

    if (!us_lock_take(f, &node->lock))
        return false;
    us_writes(&node->colour_next, sizeof(node->colour_next));
    *offset = (uint32_t)c->geometry.slab_overhead + node->colour_next * st->colour_off;
    if (++node->colour_next >= st->colours)
        node->colour_next = 0;
    us_lock_drop(f, &node->lock);
    return true;
}

/* At the tail of its node's free list. */
static bool publish(struct us_cache *c, struct us_flight *f, struct us_slab *s)
{
    struct us_slabp_node *node = us_slabp_node_of(c, s->node);

    if (!us_lock_take(f, &node->lock))
        return false;
    us_updates(&s->state, sizeof(s->state));
    atomic_fetch_and_explicit(&s->state, (uint8_t)~US_SLAB_PRIVATE, memory_order_relaxed);
    us_slab_list_tail(&node->free, s);
    change_free(node, us_slab_objects(s));
    us_lock_drop(f, &node->lock);
    return true;
}

bool us_slabp_grow(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                   unsigned flags, unsigned *where)
{
    struct us_slab *s;
    uint32_t offset;

    us_runs(RUNS_GROW);
    if (!next_offset(c, f, node, &offset))
        return false;
    s = us_slab_new_at(c, f, node, flags, offset, NULL);
    if (!s)
        return false;
    us_count(c, cpu, US_SLABP_GROWN);
    *where = s->node;
    if (publish(c, f, s))
        return true;
    us_slab_release(c, f, s); /* nested and the lock busy */
    us_count(c, cpu, US_SLABP_DESTROYED);
    return false;
}

/* ---- free ------------------------------------------------------------------------------------ */

/* Up to `n` on top of the shared array, the last ones of the vector; returns how many. */
static unsigned to_shared(struct us_slabp_node *node, void *const *object, unsigned n)
{
    us_reads(&node->shared, sizeof(node->shared));
    if (!node->shared)
        return 0;
    us_reads(node->shared, sizeof(*node->shared));
    return us_ring_add_c(node->shared->ring, object, n, US_SEEN_KEEP);
}

static void put_all(struct us_cache *c, struct us_slabp_node *node, void *const *object, unsigned n,
                    struct us_slab **chain)
{
    const enum us_phase before = us_phase_set(US_PHASE_SLOW);

    us_runs(RUNS_PUT_NEXT * n);
    for (unsigned i = 0; i < n; i++)
        put_back(c, node, object[i], chain);
    us_phase_set(before);
}

unsigned us_slabp_flush(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned n_of,
                        void **object, unsigned n)
{
    struct us_slabp_node *node = us_slabp_node_of(c, n_of);
    const enum us_phase before = us_phase_set(US_PHASE_SECOND);
    struct us_slab *chain = NULL;
    uint64_t freeable;
    unsigned shared;

    us_runs(RUNS_FLUSH);
    if (!us_lock_take(f, &node->lock)) {
        us_phase_set(before);
        us_slabp_drain(c, f, cpu, object, n);
        return 0;
    }
    shared = to_shared(node, object, n);
    put_all(c, node, object, n - shared, &chain);
    us_reads(&node->free, sizeof(node->free));
    freeable = node->free.length;
    us_lock_drop(f, &node->lock);
    us_phase_set(before);
    raise_mark(c, cpu, &us_slabp_of(c)->most_freeable, freeable, US_SLABP_MAXFREEABLE);
    us_slabp_destroy_chain(c, f, cpu, chain);
    return shared;
}

/* object[0..n), as far as they are of one node; returns how many were dealt with. */
static unsigned drain_node(struct us_cache *c, struct us_flight *f, unsigned cpu, void **object,
                           unsigned n)
{
    const struct us_range *r = &c->slabs->range;
    const unsigned n_of = us_node_of(r, object[0]);
    struct us_slabp_node *node = us_slabp_node_of(c, n_of);
    struct us_slab *chain = NULL;
    unsigned run = 1;

    us_runs(RUNS_DRAIN);
    while (run < n && us_node_of(r, object[run]) == n_of)
        run++;
    us_runs(RUNS_DRAIN_NEXT * run);
    if (!us_lock_take(f, &node->lock))
        return 0;
    put_all(c, node, object, run, &chain);
    us_lock_drop(f, &node->lock);
    us_slabp_destroy_chain(c, f, cpu, chain);
    return run;
}

void us_slabp_drain(struct us_cache *c, struct us_flight *f, unsigned cpu, void **object,
                    unsigned n)
{
    unsigned done = 0;

    while (done < n) {
        unsigned k = drain_node(c, f, cpu, object + done, n - done);

        if (k == 0) /* a nested flight and a busy lock: the next slow path takes it in */
            us_defer_free(c, object[done++]);
        done += k;
    }
}

bool us_slabp_drain_alien(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_queue *a,
                          struct us_slab **chain, unsigned *to_slabs)
{
    struct us_slabp_node *node = us_slabp_node_of(c, a->node);
    void *buffer[US_SLABP_ALIEN_LIMIT];
    unsigned n, hot;

    us_runs(RUNS_DRAIN_ALIEN);
    if (!us_lock_take(f, &node->lock))
        return false;
    us_reads(&node->shared, sizeof(node->shared));
    hot = us_ring_take_top_c(a->ring, buffer, us_slabp_room(node->shared), US_SEEN_KEEP);
    to_shared(node, buffer, hot);
    n = us_ring_take_oldest_c(a->ring, buffer, US_SLABP_ALIEN_LIMIT, US_SEEN_KEEP);
    put_all(c, node, buffer, n, chain);
    us_lock_drop(f, &node->lock);
    us_stat_add(c, cpu, US_OBJECTS_MOVED, hot + n);
    *to_slabs += n;
    return true;
}

/* ---- ageing and shrinking -------------------------------------------------------------------- */

unsigned us_slabp_drain_shared(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned n_of,
                               unsigned n)
{
    struct us_slabp_node *node = us_slabp_node_of(c, n_of);
    struct us_slab *chain = NULL;
    unsigned done = 0;
    void *object;

    us_runs(RUNS_DRAIN);
    if (!us_lock_take(f, &node->lock))
        return 0;
    us_reads(&node->shared, sizeof(node->shared));
    for (; node->shared && done < n; done++) {
        if (!us_ring_take_oldest_c(node->shared->ring, &object, 1, US_SEEN_KEEP))
            break;
        put_back(c, node, object, &chain);
    }
    us_lock_drop(f, &node->lock);
    us_stat_add(c, cpu, US_OBJECTS_MOVED, done);
    us_slabp_destroy_chain(c, f, cpu, chain);
    return done;
}

/* The lock is dropped between slabs. */
uint64_t us_slabp_destroy_free(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned n_of,
                               uint64_t n, bool try_only)
{
    struct us_slabp_node *node = us_slabp_node_of(c, n_of);
    uint64_t done = 0;

    us_runs(RUNS_DESTROY_FREE);
    for (; done < n; done++) {
        struct us_slab *s;

        us_runs(RUNS_DESTROY_FREE);
        if (!(try_only ? us_lock_try(f, &node->lock) : us_lock_take(f, &node->lock)))
            break;
        us_reads(&node->free, sizeof(node->free));
        s = node->free.last;
        if (s) {
            us_slab_list_remove(&node->free, s);
            change_free(node, -(uint64_t)us_slab_objects(s));
        }
        us_lock_drop(f, &node->lock);
        if (!s)
            break;
        us_slabp_destroy_chain(c, f, cpu, s);
    }
    return done;
}
