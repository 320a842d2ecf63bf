/* slub_thrash.c - slub-thrash: SLUB that picks partial slabs by their free objects.
 *
 * The problem: when partial lists hold slabs with one or two free objects, each slow allocation
 * gets a CPU slab that is exhausted after as many allocations; a free makes another such slab, and
 * the slow path dominates. Two patchsets of 2009 answered it, and `mode` has both beside SLUB
 * itself:
 *
 *   off       SLUB: the first slab of the list, whatever it has.
 *
 *   ratio     RECONSTRUCTED: the texts of this patchset were not found. What is attested is the
 *             counter of fast allocations, the threshold, that slabs below it are passed over and
 *             new ones got instead, and an ordering of the list. A CPU counts slow allocations that
 *             served fewer than the watermark (slab_thrash_ratio percent of a slab's objects) since
 *             the one before; from the third in a row on it thrashes. It then takes only slabs with
 *             at least the watermark free; if its node's list has none, that is a deferral
 *             (deferred_partial) and a new slab is got. What it adds to a list meanwhile goes to
 * the head when it has the watermark free, else to the tail.
 *
 *   mostfree  Fully attested in words: the list is scanned, the first slab with the threshold free
 *             is taken, else the one with most free objects. No new slab is forced. The cost is
 * each scanned slab's lock.
 *
 * Price. The original of `ratio` incremented a per-CPU counter on each fast allocation, which its
 * author later thought a drawback. Here it is the descriptor's count of pops, which every SLUB pays
 * for its statistics, so that mode off, ratio and mostfree have the same fast path.
 *
 * Gaps of the reconstruction and how they are filled. A CPU without a slab counts a slow allocation
 * as well. A scan of an empty list is no deferral: other nodes are then asked as ever, which apply
 * no threshold in ratio. A partial slab that passed ends the thrashing at once; a new slab does
 * not, but the slow allocation that follows it does when it served the watermark: until then what
 * the CPU adds to lists is ordered as said. When the page provider fails, deferred slabs serve.
 * Caches with consistency checks, which have no CPU freelist, work as in mode off.
 */
#include "policy/slub_slab.h"

/* Instructions of the compiled functions: see slub_paths.c. */
enum { RUNS_MODE = 5, RUNS_THRASH = 20, RUNS_LOCK_PARTIAL = 17, RUNS_SCAN = 30, RUNS_SCANNED = 14 };

#define THRASHING 3 /* slow allocations in a row that served too few */

struct us_slub_thrash {
    _Atomic uint64_t fast; /* allocations since the CPU slab was last filled */
    _Atomic uint32_t slow; /* consecutive fills that served fewer than the watermark */
} US_ALIGNED(US_LINE);

static enum us_slub_mode mode_of(const struct us_cache *c)
{
    us_runs(RUNS_MODE);
    if (us_slub_of(c)->thrash)
        us_reads(&c->tunable[US_SLUB_T_MODE], 2 * sizeof(*c->tunable));
    if (!us_slub_of(c)->thrash || c->local.mode == US_MODE_CONTROL ||
        c->tunable[US_SLUB_T_THRASH_RATIO] == 0)
        return US_SLUB_OFF;
    return (enum us_slub_mode)c->tunable[US_SLUB_T_MODE];
}

static uint32_t watermark(const struct us_cache *c)
{
    return (uint32_t)(c->geometry.objects * (uint64_t)c->tunable[US_SLUB_T_THRASH_RATIO] / 100);
}

static bool thrashing(const struct us_cache *c, unsigned cpu)
{
    const struct us_slub_thrash *t;

    if (mode_of(c) != US_SLUB_RATIO)
        return false;
    t = &us_slub_of(c)->thrash[cpu];
    us_reads(t, sizeof(*t));
    return atomic_load_explicit(&t->slow, memory_order_relaxed) >= THRASHING;
}

void us_slub_note_pops(struct us_cache *c, unsigned cpu, uint64_t pops)
{
    if (mode_of(c) != US_SLUB_RATIO)
        return;
    us_updates(&us_slub_of(c)->thrash[cpu], sizeof(*us_slub_of(c)->thrash));
    atomic_fetch_add_explicit(&us_slub_of(c)->thrash[cpu].fast, pops, memory_order_relaxed);
}

void us_slub_note_slow(struct us_cache *c, unsigned cpu)
{
    struct us_slub_thrash *t;

    if (mode_of(c) != US_SLUB_RATIO)
        return;
    t = &us_slub_of(c)->thrash[cpu];
    us_runs(RUNS_THRASH);
    us_updates(t, sizeof(*t));
    if (atomic_exchange_explicit(&t->fast, 0, memory_order_relaxed) < watermark(c)) {
        us_updates(t, sizeof(*t));
        atomic_fetch_add_explicit(&t->slow, 1, memory_order_relaxed);
    } else {
        atomic_store_explicit(&t->slow, 0, memory_order_relaxed);
    }
}

void us_slub_note_good(struct us_cache *c, unsigned cpu)
{
    if (!thrashing(c, cpu))
        return;
    us_writes(&us_slub_of(c)->thrash[cpu], sizeof(*us_slub_of(c)->thrash));
    atomic_store_explicit(&us_slub_of(c)->thrash[cpu].slow, 0, memory_order_relaxed);
}

bool us_slub_at_tail(const struct us_cache *c, unsigned cpu, uint32_t free, bool at_tail)
{
    return thrashing(c, cpu) ? free < watermark(c) : at_tail;
}

/* The first slab with `enough` free objects, else the one with most, of those whose locks are free;
 * its lock and the node's are held then. */
static struct us_slab *lock_most_free(struct us_flight *f, struct us_partial *p, uint32_t enough)
{
    struct us_slab *s, *best = NULL;

    if (us_partial_length(p) == 0 || !us_lock_take(f, &p->lock))
        return NULL;
    us_runs(RUNS_SCAN);
    for (s = p->slabs.first; s && (!best || best->free < enough); s = s->next) {
        us_runs(RUNS_SCANNED);
        if (!us_bytelock_try(f, &s->lock))
            continue;
        if (best && s->free <= best->free) {
            us_slab_unlock(f, s);
            continue;
        }
        if (best)
            us_slab_unlock(f, best);
        best = s;
    }
    if (!best)
        us_lock_drop(f, &p->lock);
    return best;
}

struct us_slab *us_slub_lock_partial(const struct us_slub_ask *a, bool *deferred)
{
    struct us_partial *p = &us_slub_of(a->c)->node[a->home];
    struct us_slab *s;

    us_runs(RUNS_LOCK_PARTIAL);
    *deferred = false;
    if (mode_of(a->c) == US_SLUB_MOSTFREE)
        return lock_most_free(a->f, p, watermark(a->c));
    if (!thrashing(a->c, a->cpu) || us_partial_length(p) == 0)
        return us_partial_lock_first(a->f, p, 0);
    s = us_partial_lock_first(a->f, p, watermark(a->c));
    if (!s) {
        *deferred = true;
        us_count(a->c, a->cpu, US_SLUB_DEFERRED_PARTIAL);
    }
    return s;
}

struct us_slab *us_slub_lock_other(struct us_slub_ask *a, struct us_partial *p)
{
    if (mode_of(a->c) == US_SLUB_MOSTFREE)
        return lock_most_free(a->f, p, watermark(a->c));
    return us_partial_lock_first(a->f, p, 0);
}

/* ---- life ---------------------------------------------------------------------------- */

enum us_status us_slub_thrash_create(struct us_cache *c, struct us_error *e)
{
    const size_t bytes = c->machine->ncpus * sizeof(struct us_slub_thrash);
    const enum us_status status = us_slub_create(c, &us_slub_page_lock, sizeof(struct us_slub), e);

    if (status != US_OK)
        return status;
    us_slub_of(c)->thrash = us_meta_alloc(c->slabs->memory, bytes);
    if (us_slub_of(c)->thrash)
        return US_OK;
    us_slub_destroy(c);
    if (e) {
        e->status = US_ENOMEM;
        __builtin_snprintf(e->text, sizeof(e->text),
                           "no memory for the allocation counts of cache '%s'", c->name);
    }
    return US_ENOMEM;
}

void us_slub_thrash_destroy(struct us_cache *c)
{
    us_meta_free(c->slabs->memory, us_slub_of(c)->thrash,
                 c->machine->ncpus * sizeof(struct us_slub_thrash));
    us_slub_destroy(c);
}
