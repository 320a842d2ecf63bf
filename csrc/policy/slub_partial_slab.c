/* slub_partial_slab.c - slabs that a CPU owns: its partial list, deactivation, flush.
 * States and rules: slub_partial.c. */
#include "policy/slub_partial.h"

/* Instructions of the compiled functions: see slub_paths.c. */
enum {
    RUNS_LOST = 5,
    RUNS_CHAIN = 10,
    RUNS_OWN = 60,
    RUNS_UNFREEZE = 30,
    RUNS_UNFROZEN = 55,
    RUNS_DEACTIVATE = 120,
    RUNS_FOLLOWED = 14,
    RUNS_FLUSH = 60,
};

bool us_slub_partial_lost(struct us_cache *c, unsigned cpu, enum us_exchange done)
{
    us_runs(RUNS_LOST);
    if (done == US_EXCHANGE_LOST)
        us_count(c, cpu, US_SLUB_PARTIAL_CMPXCHG_DOUBLE_FAIL);
    return done != US_EXCHANGE_DONE;
}

void us_slub_partial_release(struct us_cache *c, struct us_flight *f, unsigned cpu,
                             struct us_slab *chain)
{
    us_slab_release_chain(c, f, cpu, chain, US_SLUB_PARTIAL_FREE_SLAB);
}

void us_slub_partial_isolate(struct us_cache *c, struct us_flight *f, struct us_slab *s,
                             const void *seen)
{
    const bool inside = seen && us_cache_slab(c, seen) == s;
    const uint32_t size = us_list_size(s->local.count), objects = us_slab_objects(s);
    struct us_pair old, next;

    us_report_misuse(c, US_MISUSE_LIST, inside ? seen : us_slab_base(c->slabs, s));
    us_slab_set_local(s, NULL, 0);
    do {
        old = next = us_pair_look(s);
        next.freelist = NULL;
        next.free = old.free + size < objects ? old.free + size : objects;
        next.state = (uint8_t)((old.state & ~US_SLAB_FROZEN) | US_SLAB_BAD | US_SLAB_ISOLATED);
    } while (us_pair_exchange(f, s, old, next) != US_EXCHANGE_DONE);
}

/* ---- the CPU's partial list ---------------------------------------------------------- */

void us_slub_partial_chain(struct us_slab *s, struct us_slab *chain)
{
    us_runs(RUNS_CHAIN);
    us_writes(s, sizeof(*s));
    if (chain)
        us_reads(chain, sizeof(*chain));
    s->next = chain;
    s->chain.slabs = 1 + (chain ? chain->chain.slabs : 0);
    s->chain.objects = us_pair_look(s).free + (chain ? chain->chain.objects : 0);
}

static bool over_limit(const struct us_cache *c, const struct us_slab *chain)
{
    const struct us_slub_partial *st = us_slub_partial_of(c);

    return st->epoch_3_2 ? chain->chain.objects > st->cpu_partial
                         : chain->chain.slabs >= st->cpu_partial_slabs;
}

/* Chained slabs one by one in front of another chain. */
static struct us_slab *join(struct us_slab *front, struct us_slab *chain)
{
    while (front) {
        struct us_slab *next = front->next;

        us_slub_partial_chain(front, chain);
        chain = front;
        front = next;
    }
    return chain;
}

static void to_nodes(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_slab *chain)
{
    const enum us_phase before = us_phase_set(US_PHASE_SLOW);
    struct us_slab *empty = NULL;

    us_slub_partial_unfreeze(c, f, cpu, chain, false, &empty);
    us_slub_partial_release(c, f, cpu, empty);
    us_phase_set(before);
}

bool us_slub_partial_own(struct us_cache *c, struct us_flight *f, struct us_slab *s, bool drain)
{
    const enum us_phase phase = us_phase_set(US_PHASE_SECOND);
    unsigned cpu;
    struct us_list *list = us_local_detach(&c->local, f, 1, &cpu);
    struct us_slab *before = list ? us_slab_of_list(list) : NULL, *drained = NULL;
    bool owned;

    us_runs(RUNS_OWN);
    us_reads(s, sizeof(*s));
    if (before)
        us_reads(before, sizeof(*before));
    if (drain && before && over_limit(c, before)) {
        drained = before;
        before = NULL;
    }
    if (before || !s->next)
        s = join(s, before);
    owned = us_local_install(&c->local, f, 1, cpu, &s->local) == US_LOCAL_OK;
    if (!owned)
        to_nodes(c, f, cpu, s);
    if (drained) {
        to_nodes(c, f, cpu, drained);
        us_count(c, cpu, US_SLUB_PARTIAL_CPU_PARTIAL_DRAIN);
    }
    us_phase_set(phase);
    return owned;
}

/* What becomes of a frozen slab with `free` free objects: kept on its node's list, which is locked,
 * or given back. */
static bool keeps(const struct us_cache *c, const struct us_slab *s, uint32_t free)
{
    return free < us_slab_objects(s) ||
           us_partial_length(us_slub_node_of(c, s)) < us_slub_partial_keep(c);
}

static void unfreeze_one(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_slab *s,
                         struct us_slab **empty)
{
    struct us_pair old, next;
    bool kept;

    us_runs(RUNS_UNFROZEN);
    do {
        old = next = us_pair_look(s);
        kept = keeps(c, s, old.free);
        next.state = (uint8_t)(old.state & ~US_SLAB_FROZEN);
        if (!kept)
            next.state |= US_SLAB_PRIVATE;
    } while (us_slub_partial_lost(c, cpu, us_pair_exchange(f, s, old, next)));
    if (kept) {
        us_partial_add(us_slub_node_of(c, s), s, true);
        us_count(c, cpu, US_SLUB_PARTIAL_FREE_ADD_PARTIAL);
        return;
    }
    us_writes(s, sizeof(*s));
    s->next = *empty;
    *empty = s;
    us_count(c, cpu, US_SLUB_PARTIAL_DEACTIVATE_EMPTY);
}

struct us_slab *us_slub_partial_unfreeze(struct us_cache *c, struct us_flight *f, unsigned cpu,
                                         struct us_slab *chain, bool try_only,
                                         struct us_slab **empty)
{
    struct us_partial *held = NULL;

    us_runs(RUNS_UNFREEZE);
    while (chain) {
        struct us_slab *s = chain;
        struct us_partial *p = us_slub_node_of(c, s);

        if (held && held != p) {
            us_lock_drop(f, &held->lock);
            held = NULL;
        }
        if (!held && !(try_only ? us_lock_try(f, &p->lock) : us_lock_take(f, &p->lock)))
            break;
        held = p;
        us_reads(s, sizeof(*s));
        chain = s->next;
        unfreeze_one(c, f, cpu, s, empty);
    }
    if (held)
        us_lock_drop(f, &held->lock);
    return chain;
}

/* ---- deactivation -------------------------------------------------------------------- */

/* The freelist of a private slab. */
struct chain {
    void *head, *tail;
    uint32_t size;
};

/* Follows the CPU's freelist; false when a link leads astray. Up to 4.19 objects were returned one
 * by one, which turns the chain around. */
static bool follow(const struct us_cache *c, struct us_slab *s, bool turn, struct chain *chain)
{
    void *object = s->local.head, *before = NULL, *next;
    uint32_t i;

    us_reads(s, sizeof(*s));
    *chain = (struct chain){.head = object, .size = us_list_size(s->local.count)};
    us_runs(RUNS_DEACTIVATE + RUNS_FOLLOWED * chain->size);
    for (i = 0; i < chain->size; i++) {
        if (!us_slab_read_link(c, s, object, &next) || (next == NULL) != (i + 1 == chain->size))
            return false;
        if (turn)
            us_slab_write_link(c, object, before);
        before = object;
        object = next;
    }
    chain->tail = turn ? chain->head : before;
    if (turn)
        chain->head = before;
    return true;
}

static void count_deactivation(struct us_cache *c, unsigned cpu, const struct us_pair *old,
                               uint32_t total, bool released)
{
    us_count_n(c, cpu, US_SLUB_PARTIAL_MOVED, total - old->free);
    if (old->freelist)
        us_count(c, cpu, US_SLUB_PARTIAL_DEACTIVATE_REMOTE_FREES);
    if (total == 0)
        us_count(c, cpu, US_SLUB_PARTIAL_DEACTIVATE_FULL);
    else if (released)
        us_count(c, cpu, US_SLUB_PARTIAL_DEACTIVATE_EMPTY);
    else
        us_count(c, cpu,
                 old->freelist ? US_SLUB_PARTIAL_DEACTIVATE_TO_TAIL
                               : US_SLUB_PARTIAL_DEACTIVATE_TO_HEAD);
}

/* Exchanges `old` for the unfrozen slab with the chain in front; *old and *kept are what came of
 * it. False: the node lock, which a slab that is kept needs, was busy. True with the lock held if
 * the slab is to be listed. */
static bool give_up(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_slab *s,
                    const struct chain *chain, bool try_only, struct us_pair *old, bool *kept)
{
    struct us_partial *p = us_slub_node_of(c, s);
    struct us_pair next;
    bool held = false;

    do {
        *old = next = us_pair_look(s);
        next.free += chain->size;
        *kept = next.free > 0 && keeps(c, s, next.free);
        if (*kept && !held) {
            if (!(try_only ? us_lock_try(f, &p->lock) : us_lock_take(f, &p->lock)))
                return false;
            held = true;
        } else if (!*kept && held) {
            us_lock_drop(f, &p->lock);
            held = false;
        }
        if (chain->size) {
            us_slab_write_link(c, chain->tail, old->freelist);
            next.freelist = chain->head;
        }
        next.state = (uint8_t)(old->state & ~US_SLAB_FROZEN);
        if (next.free > 0 && !*kept)
            next.state |= US_SLAB_PRIVATE;
    } while (us_slub_partial_lost(c, cpu, us_pair_exchange(f, s, *old, next)));
    return true;
}

bool us_slub_partial_deactivate(struct us_cache *c, struct us_flight *f, unsigned cpu,
                                struct us_slab *s, bool try_only, struct us_slab **empty)
{
    struct us_partial *p = us_slub_node_of(c, s);
    const uint32_t objects = us_slab_objects(s);
    struct us_pair old;
    struct chain chain;
    uint32_t total;
    bool kept;

    if (!follow(c, s, us_slub_partial_of(c)->epoch_3_2, &chain) ||
        us_pair_look(s).free + chain.size > objects) {
        us_slub_partial_isolate(c, f, s, s->local.head);
        return true;
    }
    us_slab_set_local(s, NULL, 0); /* it may be another CPU's as soon as the exchange is done */
    if (!give_up(c, f, cpu, s, &chain, try_only, &old, &kept)) {
        if (chain.size)
            us_slab_write_link(c, chain.tail, NULL);
        us_slab_set_local(s, chain.head, chain.size);
        return false;
    }
    total = old.free + chain.size;
    count_deactivation(c, cpu, &old, total, !kept && total == objects);
    if (kept) {
        us_partial_add(p, s, old.freelist != NULL);
        us_lock_drop(f, &p->lock);
    } else if (total == objects) {
        us_writes(s, sizeof(*s));
        s->next = *empty;
        *empty = s;
    }
    return true;
}

/* ---- flush ------------------------------------------------------------------- */

/* Both words of a region that is closed. */
static void flush_region(struct us_cache *c, struct us_flight *f, unsigned cpu,
                         struct us_words *region, bool try_only, struct us_slab **empty)
{
    struct us_list *list = us_words_detach_c(region, 0);
    struct us_slab *s;

    us_runs(RUNS_FLUSH);
    us_reads(us_slub_partial_of(c), sizeof(struct us_slub_partial));
    if (list) {
        s = us_slub_settle(c, cpu, list);
        if (us_slub_partial_deactivate(c, f, cpu, s, try_only, empty))
            us_count(c, cpu, US_SLUB_PARTIAL_CPUSLAB_FLUSH);
        else
            us_words_install_c(region, 0, list);
    }
    list = us_words_detach_c(region, 1);
    if (list) {
        s = us_slub_partial_unfreeze(c, f, cpu, us_slab_of_list(list), try_only, empty);
        if (s)
            us_words_install_c(region, 1, &s->local);
    }
}

void us_slub_partial_flush_cpu(struct us_cache *c, struct us_flight *f, unsigned cpu, bool try_only)
{
    struct us_slab *empty = NULL;
    void *region;
    unsigned node;

    if (f->nested)
        return;
    for (node = 0; !try_only && node < c->machine->nnodes; node++)
        us_slub_check_deferred(c, f, node); /* now: this CPU may be the one that adopts its slab */
    if (!us_local_populated(&c->local, cpu))
        return;
    if (!us_local_close(&c->local, f, cpu, try_only, &region))
        return;
    if (region)
        flush_region(c, f, cpu, region, try_only, &empty);
    us_local_open(&c->local, f, cpu);
    us_slub_partial_release(c, f, cpu, empty);
}
