/* slub_slab.c - the life of a CPU slab under the page lock. States: slub.c. */
#include "policy/slub_slab.h"

/* Instructions of the compiled functions: see slub_paths.c. */
enum { RUNS_UNFREEZE = 73, RUNS_DEACTIVATE = 29, RUNS_FLUSH = 60 };

void us_slub_release(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_slab *s)
{
    us_count(c, cpu, US_SLUB_FREE_SLAB);
    us_slab_release(c, f, s);
}

/* Counts what became of a slab with `free` free objects, `size` of them the CPU's until now. */
static void count_deactivation(struct us_cache *c, unsigned cpu, const struct us_slab *s,
                               uint32_t size, uint32_t free, bool at_tail)
{
    us_stat_add(c, cpu, US_NCOMMON + US_SLUB_MOVED, size);
    if (free > size)
        us_count(c, cpu, US_SLUB_DEACTIVATE_REMOTE_FREES);
    if (free == 0)
        us_count(c, cpu, US_SLUB_DEACTIVATE_FULL);
    else if (free == us_slab_objects(s))
        us_count(c, cpu, US_SLUB_DEACTIVATE_EMPTY);
    else
        us_count(c, cpu, at_tail ? US_SLUB_DEACTIVATE_TO_TAIL : US_SLUB_DEACTIVATE_TO_HEAD);
}

/* Gives a frozen slab up, its lock being held; it drops the lock. False: the node lock was busy,
 * nothing has changed and the slab lock is kept. *empty: the caller has to release the slab. */
static bool unfreeze(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_slab *s,
                     bool try_only, bool *empty)
{
    struct us_partial *p = us_slub_node_of(c, s);
    const uint32_t size = us_list_size(s->local.count), total = s->free + size;
    const bool is_empty = total == us_slab_objects(s);
    const bool listed =
        total > 0 && (!is_empty || us_partial_length(p) < us_slub_of(c)->min_partial);
    const bool at_tail = us_slub_at_tail(c, cpu, total, is_empty || size == 0);

    us_runs(RUNS_UNFREEZE);
    if (listed && !(try_only ? us_lock_try(f, &p->lock) : us_lock_take(f, &p->lock)))
        return false;
    if (!us_slab_return_local(c, s)) {
        us_slab_isolate(c, s, s->local.head);
    } else {
        us_slab_set_state(s, is_empty && !listed ? US_SLAB_PRIVATE : 0);
        count_deactivation(c, cpu, s, size, total, at_tail);
        if (listed)
            us_partial_add(p, s, at_tail);
        *empty = is_empty && !listed;
    }
    if (listed)
        us_lock_drop(f, &p->lock);
    us_slab_unlock(f, s);
    return true;
}

void us_slub_deactivate(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_slab *s,
                        bool locked)
{
    bool empty = false;

    us_runs(RUNS_DEACTIVATE);
    if (!locked)
        us_slab_lock(f, s);
    if (!unfreeze(c, f, cpu, s, false, &empty))
        __builtin_trap(); /* a flight that is not nested gets its locks */
    if (empty)
        us_slub_release(c, f, cpu, s);
}

/* ---- flush ------------------------------------------------------------------- */

void us_slub_flush_cpu(struct us_cache *c, struct us_flight *f, unsigned cpu, bool try_only)
{
    struct us_slab *s = NULL;
    struct us_list *list;
    void *region;
    bool empty = false;

    if (f->nested || !us_local_populated(&c->local, cpu))
        return;
    if (!us_local_close(&c->local, f, cpu, try_only, &region))
        return;
    us_runs(RUNS_FLUSH);
    us_reads(us_slub_of(c), sizeof(struct us_slub));
    list = region ? us_words_detach_c(region, 0) : NULL;
    if (list) {
        s = us_slub_settle(c, cpu, list);
        if (!(try_only ? us_bytelock_try(f, &s->lock) : us_bytelock_take(f, &s->lock))) {
            us_words_install_c(region, 0, list);
        } else if (!unfreeze(c, f, cpu, s, try_only, &empty)) {
            us_slab_unlock(f, s);
            us_words_install_c(region, 0, list);
        } else {
            us_count(c, cpu, US_SLUB_CPUSLAB_FLUSH);
        }
    }
    us_local_open(&c->local, f, cpu);
    if (empty)
        us_slub_release(c, f, cpu, s);
}
