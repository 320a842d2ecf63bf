/* chained.c - see chained.h. */
#include "slab/chained.h"

/* ---- putting ----------------------------------------------------------------------------- */

/* Free already, as far as can be seen without following the slab's chain. */
static bool is_free_already(const struct us_slab *s, const struct us_pair *now,
                            const struct us_chain *chain)
{
    return now->free + chain->n > us_slab_objects(s) || now->freelist == chain->head ||
           now->freelist == chain->tail || (now->state & US_SLAB_PRIVATE);
}

/* What the exchange is to be. */
static struct us_pair with_chain(const struct us_cache *c, struct us_pair now,
                                 const struct us_chain *chain)
{
    if (!(now.state & US_SLAB_ISOLATED)) {
        us_slab_write_link(c, chain->tail, now.freelist);
        now.freelist = chain->head;
    }
    now.free += chain->n;
    return now;
}

enum us_put us_chained_put(struct us_cache *c, struct us_flight *f, struct us_partial *p,
                           struct us_slab *s, const struct us_chain *chain, uint64_t keep,
                           uint64_t *lost)
{
    bool was_full, empty, listing;
    enum us_exchange done;
    enum us_put out = US_PUT_STAYS;

    for (;; ++*lost) {
        const struct us_pair old = us_pair_look(s);

        us_runs(66);
        if (is_free_already(s, &old, chain)) {
            us_report_misuse(c, US_MISUSE_DOUBLE_FREE, chain->head);
            return US_PUT_REFUSED;
        }
        was_full = old.free == 0;
        empty = old.free + chain->n == us_slab_objects(s);
        listing = (was_full || empty) && !(old.state & US_SLAB_ISOLATED);
        /* Releasing takes locks that a nested flight might not get. */
        if (listing && ((empty && f->nested) || !us_lock_take(f, &p->lock)))
            return US_PUT_BUSY;
        done = us_pair_exchange(f, s, old, with_chain(c, old, chain));
        if (done != US_EXCHANGE_LOST)
            break;
        if (listing)
            us_lock_drop(f, &p->lock);
    }
    if (done == US_EXCHANGE_BUSY)
        out = US_PUT_BUSY;
    else if (listing && (was_full || (us_slab_state(s) & US_SLAB_PARTIAL))) /* not pulled */
        out = us_partial_relist(p, s, was_full, empty, keep, true);
    if (listing)
        us_lock_drop(f, &p->lock);
    return out;
}

/* ---- taking -------------------------------------------------------------------------------- */

/* The link of the first of n objects of a chain; false when that is not as it must be. */
static bool follow(const struct us_cache *c, const struct us_slab *s, const void *object,
                   uint32_t n, void **next)
{
    us_runs(27);
    return us_slab_read_link(c, s, object, next) && (*next == NULL) == (n == 1);
}

/* A slab that is on no list goes out of circulation, `n` of its objects being in nobody's hands. */
static void isolate(struct us_cache *c, struct us_flight *f, struct us_slab *s, const void *seen,
                    uint32_t n)
{
    const bool inside = seen && us_cache_slab(c, seen) == s;
    struct us_pair old, next;

    us_report_misuse(c, US_MISUSE_LIST, inside ? seen : us_slab_base(c->slabs, s));
    do {
        old = next = us_pair_look(s);
        next.freelist = NULL;
        next.free = n <= us_slab_objects(s) - old.free ? old.free + n : us_slab_objects(s);
        next.state |= US_SLAB_ISOLATED | US_SLAB_BAD;
    } while (us_pair_exchange(f, s, old, next) == US_EXCHANGE_LOST);
}

/* Node lock held. One object off a listed slab; false: its chain is broken at *object. */
static enum us_exchange pop(const struct us_cache *c, struct us_flight *f, struct us_slab *s,
                            void **object, uint32_t *left, bool *broken)
{
    const struct us_pair old = us_pair_look(s);
    struct us_pair next = old;

    *object = old.freelist;
    *broken = !follow(c, s, old.freelist, old.free, &next.freelist);
    if (*broken) { /* or looked at while it changed */
        const struct us_pair again = us_pair_look(s);

        *broken = again.freelist == old.freelist && again.counters == old.counters;
        return US_EXCHANGE_LOST;
    }
    *left = --next.free;
    return us_pair_exchange(f, s, old, next);
}

void *us_chained_take(struct us_cache *c, struct us_flight *f, struct us_partial *p, uint64_t *lost)
{
    enum us_exchange done = US_EXCHANGE_LOST;
    void *object = NULL;
    struct us_slab *s;

    if (us_partial_length(p) == 0 || !us_lock_take(f, &p->lock))
        return NULL;
    while (done == US_EXCHANGE_LOST && (s = p->slabs.first) != NULL) {
        uint32_t left;
        bool broken;

        done = pop(c, f, s, &object, &left, &broken);
        if (broken) {
            us_partial_remove(p, s);
            isolate(c, f, s, object, 0);
        } else if (done == US_EXCHANGE_LOST) {
            ++*lost;
        } else if (done == US_EXCHANGE_DONE && left == 0) {
            us_partial_remove(p, s);
        }
    }
    us_lock_drop(f, &p->lock);
    return done == US_EXCHANGE_DONE ? object : NULL;
}

/* ---- pulled slabs -------------------------------------------------------------------------- */

static uint32_t free_of(const struct us_slab *s)
{
    us_reads(s, sizeof(*s));
    return __atomic_load_n(&s->free, __ATOMIC_RELAXED);
}

struct us_slab *us_chained_pull(struct us_partial *p, uint32_t want)
{
    struct us_slab *pulled = NULL, **end = &pulled, *s;
    uint64_t free = 0;

    us_reads(&p->slabs, sizeof(p->slabs));
    while (free < want && (s = p->slabs.first) != NULL) {
        us_runs(10);
        us_partial_remove(p, s);
        free += free_of(s);
        *end = s;
        end = &s->next;
    }
    return pulled;
}

static struct us_slab *reversed(struct us_slab *chain)
{
    struct us_slab *out = NULL, *next;

    for (; chain; chain = next) {
        us_runs(4);
        us_writes(chain, sizeof(*chain));
        next = chain->next;
        chain->next = out;
        out = chain;
    }
    return out;
}

struct us_slab *us_chained_unpull(struct us_partial *p, struct us_slab *pulled, uint64_t keep)
{
    struct us_slab *empty = NULL, *s, *next;

    for (s = reversed(pulled); s; s = next) {
        us_runs(10);
        us_writes(s, sizeof(*s));
        next = s->next;
        s->next = NULL;
        if (free_of(s) == us_slab_objects(s) && p->slabs.length >= keep) {
            us_slab_set_state(s, US_SLAB_PRIVATE);
            s->next = empty;
            empty = s;
        } else {
            us_partial_add(p, s, false);
        }
    }
    return empty;
}

/* Up to *n objects off a private chain, and the tail of what is left; false: broken. */
static bool take_apart(const struct us_cache *c, const struct us_slab *s, struct us_chain *chain,
                       void **out, uint32_t *n)
{
    const uint32_t want = *n;
    uint32_t left;
    void *next;

    for (*n = 0; *n < want && chain->n > 0; chain->n--) {
        if (!follow(c, s, chain->head, chain->n, &next))
            return false;
        out[(*n)++] = chain->head;
        chain->head = next;
    }
    chain->tail = chain->head;
    for (left = chain->n; left > 0; left--) {
        if (!follow(c, s, chain->tail, left, &next))
            return false;
        if (left > 1)
            chain->tail = next;
    }
    return true;
}

bool us_chained_empty(struct us_cache *c, struct us_flight *f, struct us_slab *s, void **out,
                      uint32_t *n, struct us_chain *chain, uint64_t *lost)
{
    struct us_pair old, next;

    for (;; ++*lost) {
        old = next = us_pair_look(s);
        next.freelist = NULL;
        next.free = 0;
        if (us_pair_exchange(f, s, old, next) == US_EXCHANGE_DONE)
            break;
    }
    *chain = (struct us_chain){.head = old.freelist, .n = old.free};
    if (take_apart(c, s, chain, out, n))
        return true;
    isolate(c, f, s, chain->head, chain->n);
    return false;
}
