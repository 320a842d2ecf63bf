/* sheaves_slabs.c - between sheaves and slabs: one object, refills, chains put back.
 *
 * A refill pulls slabs off a partial list, as many as hold what it wants, in one hold of the node
 * lock. A pulled slab is neither full nor on a list; who frees into it leaves it alone. Its whole
 * freelist is then taken at once; what the last slab gave too much goes back as one chain by the
 * ordinary way, which lists the slab at the tail; pulled slabs that were not needed go back to the
 * head.
 */
#include "policy/sheaves.h"

/* Instructions of the compiled functions: see sheaves.c. */
enum {
    RUNS_PUT_CHAIN = 40,
    RUNS_COUNT_FREED = 8,
    RUNS_PUT_ONE = 38,
    RUNS_LINKED = 33, /* an object */
    RUNS_PUT_SLAB = 60,
    RUNS_PUT_PIECES = 40,
    RUNS_FLUSH = 28,
    RUNS_COUNT_SLOW = 20,
    RUNS_FROM_LIST = 15,
    RUNS_MAY_ROB = 19,
    RUNS_NEIGHBOUR = 12,
    RUNS_NEW_SLAB = 26,
    RUNS_PUBLISH = 39,
    RUNS_ONE = 40,
    RUNS_EMPTY_OUT = 42,
    RUNS_UNPULL = 30,
    RUNS_REFILL = 40,
    RUNS_REFILL_FROM = 50,
    RUNS_REFILL_NEW = 60,
    RUNS_REFILLED = 13, /* an object of a new slab */
};

/* ---- putting back ---------------------------------------------------------------------- */

static void release(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_slab *s)
{
    us_count(c, cpu, US_SHEAVES_FREE_SLAB);
    us_slab_release(c, f, s);
}

static void count_lost(struct us_cache *c, unsigned cpu, uint64_t lost)
{
    if (US_UNLIKELY(lost > 0))
        us_count_n(c, cpu, US_SHEAVES_CMPXCHG_DOUBLE_FAIL, lost);
}

/* The ordinary way of a chain into its slab; false: a nested flight found a lock busy. */
static bool put_chain(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_slab *s,
                      const struct us_chain *chain)
{
    const struct us_sheaves *st = us_sheaves_of(c);
    uint64_t lost = 0;
    const enum us_put done =
        us_chained_put(c, f, &st->node[s->node], s, chain, st->min_partial, &lost);

    us_runs(RUNS_PUT_CHAIN);
    count_lost(c, cpu, lost);
    switch (done) {
    case US_PUT_BUSY:
        return false;
    case US_PUT_LISTED:
        us_count(c, cpu, US_SHEAVES_FREE_ADD_PARTIAL);
        return true;
    case US_PUT_UNLISTED:
        us_count(c, cpu, US_SHEAVES_FREE_REMOVE_PARTIAL);
        release(c, f, cpu, s);
        return true;
    case US_PUT_EMPTIED:
        release(c, f, cpu, s);
        return true;
    default:
        return true;
    }
}

static void count_freed(struct us_cache *c, unsigned cpu, unsigned node, uint32_t n)
{
    us_runs(RUNS_COUNT_FREED);
    if (node != us_node_of_cpu(c->machine, cpu))
        us_count_n(c, cpu, US_SHEAVES_FREE_OFF_NODE, n);
    us_count_n(c, cpu, US_SHEAVES_FREE_SLOWPATH, n);
}

bool us_sheaves_put_one(struct us_cache *c, struct us_flight *f, unsigned cpu, void *object)
{
    const struct us_chain one = {.head = object, .tail = object, .n = 1};
    struct us_slab *s = us_cache_slab(c, object);
    const unsigned node = s->node; /* the slab may be gone afterwards */
    const enum us_phase before = us_phase_set(US_PHASE_SLOW);
    bool done;

    us_runs(RUNS_PUT_ONE);
    done = put_chain(c, f, cpu, s, &one);
    if (done)
        count_freed(c, cpu, node, 1);
    us_phase_set(before);
    return done;
}

/* Links the objects of one slab, beginning with the last of object[0..n), and moves those that it
 * passes over to the front; at the third of other slabs it ends. Returns how many are left. */
static unsigned link_one_slab(struct us_cache *c, void **object, unsigned n, struct us_slab **slab,
                              struct us_chain *chain)
{
    enum { LOOKAHEAD = 3 };
    unsigned at = n, passed = 0;
    void *kept[LOOKAHEAD];

    *slab = us_cache_slab(c, object[n - 1]);
    *chain = (struct us_chain){0};
    while (at > 0 && passed < LOOKAHEAD) {
        void *o = object[--at];

        if (us_cache_slab(c, o) != *slab) {
            kept[passed++] = o;
            continue;
        }
        if (o == chain->head) {
            us_report_misuse(c, US_MISUSE_DOUBLE_FREE, o);
            continue;
        }
        if (!us_slab_knows(c, *slab, o))
            continue;
        us_slab_write_link(c, o, chain->head);
        chain->head = o;
        if (!chain->tail)
            chain->tail = o;
        chain->n++;
    }
    while (passed > 0)
        object[at++] = kept[--passed];
    return at;
}

/* A piece of at most US_SHEAF_BATCH objects, which are the function's own. */
static void put_piece(struct us_cache *c, struct us_flight *f, void **object, unsigned n,
                      bool freed)
{
    while (n > 0) {
        const unsigned cpu = us_cpu_now(c->machine);
        struct us_chain chain;
        struct us_slab *s;
        unsigned node;

        if (!us_slab_knows(c, us_cache_slab(c, object[n - 1]), object[n - 1])) {
            n--;
            continue;
        }
        us_runs(RUNS_PUT_SLAB);
        n = link_one_slab(c, object, n, &s, &chain);
        node = s->node;
        (void)put_chain(c, f, cpu, s, &chain); /* not nested: done */
        if (freed)
            count_freed(c, cpu, node, chain.n);
    }
}

static void put_pieces(struct us_cache *c, struct us_flight *f, void *const *object, unsigned n,
                       bool freed)
{
    const enum us_phase before = us_phase_set(US_PHASE_SLOW);
    void *piece[US_SHEAF_BATCH];

    us_runs(RUNS_PUT_PIECES + (uint64_t)RUNS_LINKED * n);
    while (n > 0) {
        const unsigned k = n < US_SHEAF_BATCH ? n : US_SHEAF_BATCH;

        n -= k;
        __builtin_memcpy(piece, object + n, k * sizeof(*piece));
        put_piece(c, f, piece, k, freed);
    }
    us_phase_set(before);
}

void us_sheaves_put(struct us_cache *c, struct us_flight *f, void *const *object, unsigned n)
{
    put_pieces(c, f, object, n, false);
}

void us_sheaves_put_freed(struct us_cache *c, struct us_flight *f, void *const *object, unsigned n)
{
    put_pieces(c, f, object, n, true);
}

void us_sheaf_flush(struct us_cache *c, struct us_flight *f, struct us_sheaf *s)
{
    const uint32_t n = us_sheaf_size(s);

    us_runs(RUNS_FLUSH);
    us_reads(s->object, n * sizeof(*s->object));
    us_count_n(c, us_cpu_now(c->machine), US_SHEAVES_SHEAF_FLUSH, n);
    us_sheaves_put(c, f, s->object, n);
    us_sheaf_set(s, 0);
}

/* ---- one object ------------------------------------------------------------------------ */

static void count_slow(const struct us_sheaves_ask *a, const void *object)
{
    us_runs(RUNS_COUNT_SLOW);
    if (us_node_of(&a->c->slabs->range, object) != us_node_of_cpu(a->c->machine, a->cpu))
        us_count(a->c, a->cpu, US_SHEAVES_ALLOC_OFF_NODE);
    us_count(a->c, a->cpu, US_SHEAVES_ALLOC_SLOWPATH);
}

static void *from_list(const struct us_sheaves_ask *a, unsigned node)
{
    uint64_t lost = 0;
    void *object = us_chained_take(a->c, a->f, &us_sheaves_of(a->c)->node[node], &lost);

    us_runs(RUNS_FROM_LIST);
    count_lost(a->c, a->cpu, lost);
    return object;
}

/* The k-th of the other nodes, nearest number first; some numbers are none of a node. */
static unsigned neighbour(unsigned home, unsigned k)
{
    return k % 2 ? home + (k + 1) / 2 : home - k / 2;
}

/* Whether other nodes' lists are tried this time. */
static bool may_rob(const struct us_sheaves_ask *a)
{
    const struct us_sheaves *st = us_sheaves_of(a->c);

    us_runs(RUNS_MAY_ROB);
    return !(a->flags & US_THISNODE) && a->c->machine->nnodes > 1 && st->defrag_threshold > 0 &&
           us_random(a->c->machine) % 1024 <= st->defrag_threshold;
}

static bool has_more_than_it_must(const struct us_sheaves_ask *a, unsigned node)
{
    const struct us_sheaves *st = us_sheaves_of(a->c);

    us_runs(RUNS_NEIGHBOUR);
    return node < a->c->machine->nnodes && us_partial_length(&st->node[node]) > st->min_partial;
}

static void *from_elsewhere(const struct us_sheaves_ask *a)
{
    unsigned k;
    void *object;

    if (!may_rob(a))
        return NULL;
    for (k = 1; k < 2 * a->c->machine->nnodes; k++)
        if (has_more_than_it_must(a, neighbour(a->home, k)) &&
            (object = from_list(a, neighbour(a->home, k))) != NULL)
            return object;
    return NULL;
}

static struct us_slab *new_slab(const struct us_sheaves_ask *a, unsigned flags)
{
    bool fallback = false;
    struct us_slab *s = us_slab_new(a->c, a->f, a->home, flags, &fallback);

    us_runs(RUNS_NEW_SLAB);
    if (!s)
        return NULL;
    us_count(a->c, us_cpu_now(a->c->machine), US_SHEAVES_ALLOC_SLAB);
    if (fallback)
        us_count(a->c, us_cpu_now(a->c->machine), US_SHEAVES_ORDER_FALLBACK);
    return s;
}

/* A private slab becomes known: at the head of its list if it has free objects. False, and nothing
 * done: a nested flight found the lock busy. */
static bool publish(const struct us_sheaves_ask *a, struct us_slab *s)
{
    struct us_partial *p = &us_sheaves_of(a->c)->node[s->node];

    us_runs(RUNS_PUBLISH);
    if (!us_lock_take(a->f, &p->lock))
        return false;
    us_writes(s, sizeof(*s));
    us_slab_set_state(s, 0);
    if (s->free > 0)
        us_partial_add(p, s, false);
    us_lock_drop(a->f, &p->lock);
    return true;
}

static void *from_new(const struct us_sheaves_ask *a, unsigned flags)
{
    struct us_slab *s = new_slab(a, flags);
    void *object;

    if (!s)
        return NULL;
    object = us_slab_pop_free(a->c, s);
    if (publish(a, s))
        return object;
    release(a->c, a->f, us_cpu_now(a->c->machine), s);
    return NULL;
}

/* The page provider has failed: whatever its efforts brought to partial lists. */
static US_COLD void *after_failure(const struct us_sheaves_ask *a)
{
    void *object = NULL;
    unsigned n;

    for (n = 0; !object && n < a->c->machine->nnodes; n++)
        if (n == a->home || !(a->flags & US_THISNODE))
            object = from_list(a, n);
    return object;
}

/* A node that is preferred, but not required, is asked alone first, without effort. */
static void *preferred(const struct us_sheaves_ask *a)
{
    void *object;

    if (a->node < 0 || (a->flags & US_THISNODE))
        return NULL;
    object = from_list(a, a->home);
    return object ? object : from_new(a, a->flags | US_THISNODE | US_NOWAIT);
}

void *us_sheaves_one(struct us_sheaves_ask *a)
{
    const enum us_phase before = us_phase_set(US_PHASE_SLOW);
    void *object = preferred(a);

    us_runs(RUNS_ONE);
    if (!object)
        object = from_list(a, a->home);
    if (!object)
        object = from_elsewhere(a);
    if (!object)
        object = from_new(a, a->flags);
    if (!object)
        object = after_failure(a);
    if (object) {
        a->cpu = us_cpu_now(a->c->machine); /* pages may have taken long */
        count_slow(a, object);
    }
    us_phase_set(before);
    return object;
}

/* ---- refills --------------------------------------------------------------------------- */

/* Up to n objects of a pulled slab to out[]; the rest goes back. */
static unsigned empty_out(const struct us_sheaves_ask *a, struct us_slab *s, void **out, unsigned n)
{
    const unsigned cpu = us_cpu_now(a->c->machine);
    struct us_chain rest;
    uint64_t lost = 0;
    uint32_t got = n;

    us_runs(RUNS_EMPTY_OUT);
    if (us_chained_empty(a->c, a->f, s, out, &got, &rest, &lost) && rest.n > 0)
        (void)put_chain(a->c, a->f, cpu, s, &rest);
    count_lost(a->c, cpu, lost);
    return got;
}

/* Pulled slabs that were not needed: to the head, in their order; empty ones beyond min_partial go
 * back. */
static void unpull(const struct us_sheaves_ask *a, struct us_partial *p, struct us_slab *pulled)
{
    struct us_slab *empty;

    us_runs(RUNS_UNPULL);
    if (!us_lock_take(a->f, &p->lock))
        __builtin_trap(); /* not nested */
    empty = us_chained_unpull(p, pulled, us_sheaves_of(a->c)->min_partial);
    us_lock_drop(a->f, &p->lock);
    us_slab_release_chain(a->c, a->f, us_cpu_now(a->c->machine), empty, US_SHEAVES_FREE_SLAB);
}

static unsigned refill_from(const struct us_sheaves_ask *a, unsigned node, bool try_only,
                            void **out, unsigned n)
{
    struct us_partial *p = &us_sheaves_of(a->c)->node[node];
    struct us_slab *s, *next;
    unsigned got = 0;

    us_runs(RUNS_REFILL_FROM);
    if (us_partial_length(p) == 0)
        return 0;
    if (!(try_only ? us_lock_try(a->f, &p->lock) : us_lock_take(a->f, &p->lock)))
        return 0;
    s = us_chained_pull(p, n);
    us_lock_drop(a->f, &p->lock);
    for (; s && got < n; s = next) {
        us_writes(s, sizeof(*s));
        next = s->next;
        s->next = NULL;
        got += empty_out(a, s, out + got, n - got);
    }
    if (s)
        unpull(a, p, s);
    return got;
}

static unsigned refill_from_new(const struct us_sheaves_ask *a, void **out, unsigned n)
{
    struct us_slab *s = new_slab(a, a->flags);
    unsigned got;

    if (!s)
        return 0;
    for (got = 0; got < n && s->free > 0; got++)
        if ((out[got] = us_slab_pop_free(a->c, s)) == NULL)
            break;
    us_runs(RUNS_REFILL_NEW + RUNS_REFILLED * got);
    (void)publish(a, s); /* not nested: done */
    return got;
}

unsigned us_sheaves_refill(const struct us_sheaves_ask *a, void **out, unsigned n)
{
    const enum us_phase before = us_phase_set(US_PHASE_SLOW);
    unsigned got = refill_from(a, a->home, false, out, n), k, more;

    us_runs(RUNS_REFILL);
    if (got < n && may_rob(a))
        for (k = 1; got < n && k < 2 * a->c->machine->nnodes; k++)
            if (has_more_than_it_must(a, neighbour(a->home, k)))
                got += refill_from(a, neighbour(a->home, k), true, out + got, n - got);
    while (got < n && (more = refill_from_new(a, out + got, n - got)) > 0)
        got += more;
    us_phase_set(before);
    return got;
}
