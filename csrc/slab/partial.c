/* partial.c - the partial list of a node, and the objects of the slabs on it (listed.h). */
#include "slab/listed.h"

void us_partial_init(struct us_partial *p)
{
    us_lock_init(&p->lock, US_LOCK_NODE);
}

static void note_length(struct us_partial *p)
{
    us_writes(&p->length, sizeof(p->length));
    atomic_store_explicit(&p->length, p->slabs.length, memory_order_relaxed);
}

void us_partial_add(struct us_partial *p, struct us_slab *s, bool at_tail)
{
    if (at_tail)
        us_slab_list_tail(&p->slabs, s);
    else
        us_slab_list_head(&p->slabs, s);
    note_length(p);
}

void us_partial_remove(struct us_partial *p, struct us_slab *s)
{
    us_slab_list_remove(&p->slabs, s);
    note_length(p);
}

/* ---- objects ------------------------------------------------------------------------- */

static uint32_t free_of(const struct us_slab *s)
{
    us_runs(4);
    us_reads(s, sizeof(*s));
    return __atomic_load_n(&s->free, __ATOMIC_RELAXED);
}

struct us_slab *us_partial_lock_first(struct us_flight *f, struct us_partial *p, uint32_t least)
{
    struct us_slab *s;

    if (us_partial_length(p) == 0 || !us_lock_take(f, &p->lock))
        return NULL;
    for (s = p->slabs.first; s; s = s->next) /* frees add to the count meanwhile, nobody takes */
        if (free_of(s) >= least && us_bytelock_try(f, &s->lock))
            return s;
    us_lock_drop(f, &p->lock);
    return NULL;
}

void *us_partial_take(struct us_cache *c, struct us_flight *f, struct us_partial *p,
                      struct us_slab *s)
{
    us_runs(25);
    void *seen = s->freelist, *object = us_slab_pop_free(c, s);

    if (!object || s->free == 0) {
        us_partial_remove(p, s);
        if (!object)
            us_slab_isolate(c, s, seen);
    }
    us_lock_drop(f, &p->lock);
    us_slab_unlock(f, s);
    return object;
}

bool us_partial_publish(struct us_flight *f, struct us_partial *p, struct us_slab *s)
{
    if (!us_bytelock_take(f, &s->lock))
        return false;
    if (!us_lock_take(f, &p->lock)) {
        us_slab_unlock(f, s);
        return false;
    }
    us_slab_set_state(s, 0);
    us_partial_add(p, s, true);
    return true;
}

/* Free already, as far as can be seen without following the chain. */
static bool is_free_already(const struct us_slab *s, const void *object)
{
    return s->free >= us_slab_objects(s) || s->freelist == object ||
           (us_slab_state(s) & US_SLAB_PRIVATE);
}

/* To a slab that no list knows: a CPU's or an isolated one. */
static enum us_put put_unlisted(struct us_cache *c, struct us_slab *s, void *object)
{
    if (us_slab_state(s) & US_SLAB_ISOLATED) {
        us_slab_set_free(s, s->free + 1);
        return US_PUT_STAYS;
    }
    us_slab_push_free(c, s, object);
    return US_PUT_OWNED;
}

enum us_put us_partial_relist(struct us_partial *p, struct us_slab *s, bool was_full, bool empty,
                              uint64_t keep, bool at_tail)
{
    if (empty && p->slabs.length >= keep) {
        if (!was_full)
            us_partial_remove(p, s);
        us_slab_set_state(s, US_SLAB_PRIVATE);
        return was_full ? US_PUT_EMPTIED : US_PUT_UNLISTED;
    }
    if (!was_full)
        return US_PUT_STAYS;
    us_partial_add(p, s, at_tail);
    return US_PUT_LISTED;
}

/* Slab lock held. */
static enum us_put put_locked(struct us_cache *c, struct us_flight *f, struct us_partial *p,
                              struct us_slab *s, void *object, uint64_t keep, bool at_tail)
{
    const bool was_full = s->free == 0, empty = s->free + 1 == us_slab_objects(s);
    enum us_put done;

    us_runs(64);
    us_reads(s, sizeof(*s));
    if (is_free_already(s, object)) {
        us_report_misuse(c, US_MISUSE_DOUBLE_FREE, object);
        return US_PUT_REFUSED;
    }
    if (us_slab_state(s) & (US_SLAB_FROZEN | US_SLAB_ISOLATED))
        return put_unlisted(c, s, object);
    if (!was_full && !empty) {
        us_slab_push_free(c, s, object);
        return US_PUT_STAYS;
    }
    if (empty && f->nested) /* releasing takes locks that a nested flight might not get */
        return US_PUT_BUSY;
    if (empty && was_full && keep == 0) {
        us_slab_push_free(c, s, object);
        us_slab_set_state(s, US_SLAB_PRIVATE);
        return US_PUT_EMPTIED;
    }
    if (!us_lock_take(f, &p->lock))
        return US_PUT_BUSY;
    us_slab_push_free(c, s, object);
    done = us_partial_relist(p, s, was_full, empty, keep, at_tail);
    us_lock_drop(f, &p->lock);
    return done;
}

enum us_put us_partial_put(struct us_cache *c, struct us_flight *f, struct us_partial *p,
                           struct us_slab *s, void *object, uint64_t keep, bool at_tail)
{
    enum us_put done;

    if (!us_bytelock_take(f, &s->lock))
        return US_PUT_BUSY;
    done = put_locked(c, f, p, s, object, keep, at_tail);
    us_slab_unlock(f, s);
    return done;
}

/* ---- shrinking ----------------------------------------------------------------------- */

struct us_slab *us_partial_unlist_empty(struct us_flight *f, struct us_partial *p, bool slab_locks)
{
    struct us_slab *s, *next, *chain = NULL;

    for (s = p->slabs.first; s; s = next) {
        next = s->next;
        if (slab_locks && !us_bytelock_try(f, &s->lock))
            continue;
        if (free_of(s) == us_slab_objects(s)) {
            us_partial_remove(p, s);
            us_slab_set_state(s, US_SLAB_PRIVATE);
            s->next = chain;
            chain = s;
        }
        if (slab_locks)
            us_slab_unlock(f, s);
    }
    return chain;
}

void us_partial_sort(struct us_partial *p, uint32_t most)
{
    struct us_slab_list few = {0}, many = {0};
    struct us_slab *s;

    if (most == UINT32_MAX) {
        us_slab_list_sort(&p->slabs);
        return;
    }
    while ((s = p->slabs.first) != NULL) {
        us_slab_list_remove(&p->slabs, s);
        us_slab_list_tail(free_of(s) <= most ? &few : &many, s);
    }
    us_slab_list_sort(&few);
    while ((s = few.first) != NULL) {
        us_slab_list_remove(&few, s);
        us_slab_list_tail(&p->slabs, s);
    }
    while ((s = many.first) != NULL) {
        us_slab_list_remove(&many, s);
        us_slab_list_tail(&p->slabs, s);
    }
}
