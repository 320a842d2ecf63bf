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
 * The CPU's word. The region's word 0 names the CPU slab's descriptor; head and count of its
 * freelist lie in the descriptor and are committed in one store there, so (page, freelist) never
 * come apart. A slow path detaches the word, which makes the descriptor its own, works, and
 * installs a descriptor again. In between it may have been moved to another CPU, or another thread
 * may have installed a slab: the original has interrupts off there, all but around the page
 * provider. We do what the original does after the page provider: the slab found on the CPU is
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
 * Price. The fast path pays two instructions for its statistics: the sum that makes the count word
 * and its half of the paired store. `prefetch` is a second pair of entries, so that 0 costs
 * nothing.
 *
 * Added to the original: when the page provider fails, flushes may have brought objects to partial
 * lists meanwhile, so these are asked once more, on all nodes the caller allows.
 */
#include "policy/slub_slab.h"

/* What one slow allocation asks for. */
struct ask {
    struct us_cache *c;
    struct us_flight *f;
    unsigned flags;
    unsigned cpu;  /* where it counts */
    unsigned home; /* node that is searched first */
    int node;      /* asked for, or US_ANY_NODE */
    bool pinned;   /* other nodes' partial slabs are out of question */
};

/* Another node's partial slab, nearest number first, from lists longer than they must be. */
static struct us_slab *lock_listed_elsewhere(const struct ask *a)
{
    const struct us_slub *st = us_slub_of(a->c);
    const unsigned nnodes = a->c->machine->nnodes;
    unsigned d, side;

    if (nnodes == 1 || st->defrag_threshold == 0 ||
        us_random(a->c->machine) % 1024 > st->defrag_threshold)
        return NULL;
    for (d = 1; d < nnodes; d++) {
        for (side = 0; side < 2; side++) {
            const unsigned n = side ? a->home - d : a->home + d; /* wraps below 0 */
            struct us_slab *s;

            if (n >= nnodes || us_slub_nr_partial(&st->node[n]) <= st->min_partial)
                continue;
            s = us_slub_lock_listed(a->f, &st->node[n]);
            if (s)
                return s;
        }
    }
    return NULL;
}

static struct us_slab *lock_partial(const struct ask *a)
{
    struct us_slab *s = us_slub_lock_listed(a->f, &us_slub_of(a->c)->node[a->home]);

    return s || a->pinned ? s : lock_listed_elsewhere(a);
}

/* The region's memory is got at the CPU's first slow path. */
static void populate(struct us_cache *c, struct us_flight *f, unsigned cpu)
{
    const struct us_range *r = &c->slabs->range;
    struct us_words *w = us_meta_alloc(c->slabs->memory, sizeof(*w));

    if (!w)
        return;
    us_words_init(w, us_node_base(r, us_node_of_cpu(c->machine, cpu)), us_node_length(r));
    if (!us_local_populate(&c->local, f, cpu, w))
        us_meta_free(c->slabs->memory, w, sizeof(*w));
}

static bool region_open(const struct us_cache *c, unsigned cpu)
{
    const struct us_local *l = &c->local;

    if (l->mode == US_MODE_CONTROL)
        return us_local_populated(l, cpu);
    return __atomic_load_n(&l->table[cpu], __ATOMIC_RELAXED) ==
           __atomic_load_n(&l->region[cpu], __ATOMIC_RELAXED);
}

/* ---- free, slow path ----------------------------------------------------------------- */

/* Free already, as far as can be seen without following the chain. */
static bool is_free_already(const struct us_slab *s, const void *object)
{
    return s->free >= us_slab_objects(s) || s->freelist == object ||
           (us_slub_state(s) & US_SLAB_PRIVATE);
}

static void count_slow_free(struct us_cache *c, unsigned cpu, const struct us_slab *s)
{
    us_count(c, cpu, US_SLUB_FREE_SLOWPATH);
    if (s->node != us_node_of_cpu(c->machine, cpu))
        us_count(c, cpu, US_SLUB_FREE_OFF_NODE);
}

/* To a slab that no list knows: a CPU's or an isolated one. */
static void put_unlisted(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_slab *s,
                         void *object)
{
    count_slow_free(c, cpu, s);
    if (us_slub_state(s) & US_SLAB_FROZEN) {
        us_slub_push_free(c, s, object);
        us_count(c, cpu, US_SLUB_FREE_FROZEN);
    } else {
        us_slub_set_free(s, s->free + 1);
    }
    us_slub_drop(f, s);
}

/* Puts an object back to its slab. False: a lock was not to be had in a signal handler. */
static bool put(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_slab *s,
                void *object)
{
    struct us_slub_node *n = us_slub_node_of(c, s);
    bool was_full, empty, moves;

    if (!us_bytelock_take(f, &s->lock))
        return false;
    if (is_free_already(s, object)) {
        us_report_misuse(c, US_MISUSE_DOUBLE_FREE, object);
        us_slub_drop(f, s);
        return true;
    }
    if ((us_slub_state(s) & US_SLAB_FROZEN) || us_slub_isolated(s)) {
        put_unlisted(c, f, cpu, s, object);
        return true;
    }
    was_full = s->free == 0;
    empty = s->free + 1 == us_slab_objects(s);
    moves = was_full != empty; /* on the list, or off it */
    if ((empty && f->nested) || (moves && !us_lock_take(f, &n->lock))) {
        us_slub_drop(f, s);
        return false;
    }
    count_slow_free(c, cpu, s);
    us_slub_push_free(c, s, object);
    if (moves && empty)
        us_slub_list_remove(n, s);
    else if (moves)
        us_slub_list_add(n, s, true);
    if (moves) {
        us_count(c, cpu, empty ? US_SLUB_FREE_REMOVE_PARTIAL : US_SLUB_FREE_ADD_PARTIAL);
        us_lock_drop(f, &n->lock);
    }
    if (empty)
        us_slub_set_state(s, US_SLAB_PRIVATE);
    us_slub_drop(f, s);
    if (empty)
        us_slub_release(c, f, cpu, s);
    return true;
}

/* Frees that signal handlers had to leave behind. */
static US_COLD void take_in_deferred(struct us_cache *c, struct us_flight *f, unsigned node)
{
    char *object = us_deferred_take(c, node);

    while (object) {
        char *next = *(char **)object;

        us_deferred_restore(c, object);
        if (!put(c, f, us_cpu_now(c->machine), us_cache_slab(c, object), object))
            us_defer_free(c, object);
        object = next;
    }
}

void us_slub_check_deferred(struct us_cache *c, struct us_flight *f, unsigned node)
{
    if (US_UNLIKELY(!f->nested &&
                    atomic_load_explicit(&c->deferred[node], memory_order_relaxed) != NULL))
        take_in_deferred(c, f, node);
}

/* True when the object may go to its slab; what may not is reported and stays where it is. */
static bool known_object(struct us_cache *c, const struct us_slab *s, const void *object)
{
    enum us_misuse_kind kind;

    if (!us_in_range(&c->slabs->range, object))
        kind = US_MISUSE_OUTSIDE;
    else if (!s || (us_slub_state(s) & US_SLAB_LARGE))
        kind = US_MISUSE_NO_SLAB;
    else if (s->cache != c)
        kind = US_MISUSE_WRONG_CACHE;
    else if (!us_slub_is_object(c, s, object))
        kind = US_MISUSE_NO_OBJECT;
    else
        return true;
    us_report_misuse(c, kind, object);
    return false;
}

/* The push again, for fast paths that were interrupted too often. */
static bool push_again(struct us_cache *c, struct us_flight *f, struct us_slab *s, void *object)
{
    unsigned cpu = us_cpu_now(c->machine);

    if (!(us_slub_state(s) & US_SLAB_FROZEN) || c->local.mode == US_MODE_CONTROL ||
        us_local_word(&c->local, cpu, 0) != &s->local)
        return false;
    return us_local_list_push(&c->local, f, 0, &s->local, object, &cpu) == US_LOCAL_OK;
}

static US_NOINLINE void free_slow(struct us_cache *c, void *object)
{
    struct us_slab *s = us_cache_slab(c, object);
    struct us_flight f;

    if (!object || !known_object(c, s, object))
        return;
    if (US_UNLIKELY(!us_flight_try(c->machine, &f))) {
        us_defer_free(c, object);
        return;
    }
    us_slub_check_deferred(c, &f, s->node);
    if (!push_again(c, &f, s, object) && !put(c, &f, us_cpu_now(c->machine), s, object))
        us_defer_free(c, object);
    us_flight_leave(&f);
}

/* ---- allocation, slow path ----------------------------------------------------------- */

static void count_slow_alloc(const struct ask *a, const struct us_slab *s)
{
    us_count(a->c, a->cpu, US_SLUB_ALLOC_SLOWPATH);
    if (s->node != us_node_of_cpu(a->c->machine, a->cpu))
        us_count(a->c, a->cpu, US_SLUB_ALLOC_OFF_NODE);
}

/* Takes one object and hands the rest of the slab's own freelist to the CPU. The slab is frozen,
 * locked and has a free object; the lock is dropped. NULL: the chain is broken. */
static void *load(struct ask *a, struct us_slab *s)
{
    struct us_cache *c = a->c;
    void *seen = s->freelist, *object = us_slub_pop_free(c, s);

    if (!object)
        us_slub_isolate(c, s, seen);
    else if (c->local.mode != US_MODE_CONTROL) {
        us_slub_set_local(s, s->freelist, s->free);
        us_stat_add(c, a->cpu, US_NCOMMON + US_SLUB_MOVED, s->free);
        s->freelist = NULL;
        s->free = 0;
    }
    us_slub_drop(a->f, s);
    if (!object)
        return NULL;
    count_slow_alloc(a, s);
    us_slub_install(c, a->f, a->cpu, s);
    return object;
}

/* Steps 1 to 5: the CPU slab, which is given up when it cannot serve. */
static void *from_cpu_slab(struct ask *a)
{
    struct us_cache *c = a->c;
    struct us_slab *s = us_slub_detach(c, a->f, &a->cpu);
    const bool right_node = s && (a->node < 0 || s->node == (unsigned)a->node);
    void *object;

    if (!s)
        return NULL;
    if (right_node && s->local.head) { /* the fast path was interrupted, or has just been served */
        if (us_slub_pop_local(c, s, &object)) {
            us_count(c, a->cpu, US_SLUB_ALLOC_FASTPATH);
            us_slub_install(c, a->f, a->cpu, s);
            return object;
        }
        us_slub_take(a->f, s);
        us_slub_isolate(c, s, object);
        us_slub_drop(a->f, s);
        return NULL;
    }
    us_slub_take(a->f, s);
    if (right_node) {
        us_count(c, a->cpu, US_SLUB_ALLOC_REFILL);
        if (s->freelist)
            return load(a, s);
    }
    us_slub_deactivate(c, a->f, a->cpu, s, true);
    return NULL;
}

/* Step 6: a partial slab becomes the CPU's. Returns it frozen and locked. */
static struct us_slab *acquire_partial(struct ask *a)
{
    struct us_slab *s = lock_partial(a);

    if (!s)
        return NULL;
    us_slub_list_remove(us_slub_node_of(a->c, s), s);
    us_slub_set_state(s, US_SLAB_FROZEN);
    us_lock_drop(a->f, &us_slub_node_of(a->c, s)->lock);
    us_count(a->c, a->cpu, US_SLUB_ALLOC_FROM_PARTIAL);
    return s;
}

/* Step 7: a new slab, private. The caller may run on another CPU afterwards. */
static struct us_slab *new_slab(struct ask *a)
{
    bool fallback = false;
    struct us_slab *s = us_slab_new(a->c, a->f, a->home, a->flags, &fallback);

    if (!s)
        return NULL;
    a->cpu = us_cpu_now(a->c->machine);
    us_count(a->c, a->cpu, US_SLUB_ALLOC_SLAB);
    if (fallback)
        us_count(a->c, a->cpu, US_SLUB_ORDER_FALLBACK);
    return s;
}

/* One object of a listed slab, which stays on its list; both locks are held and dropped. */
static void *take_listed(struct ask *a, struct us_slab *s)
{
    struct us_slub_node *n = us_slub_node_of(a->c, s);
    void *seen = s->freelist, *object = us_slub_pop_free(a->c, s);

    if (!object || s->free == 0) {
        us_slub_list_remove(n, s);
        if (!object)
            us_slub_isolate(a->c, s, seen);
    }
    us_lock_drop(a->f, &n->lock);
    us_slub_drop(a->f, s);
    if (object)
        count_slow_alloc(a, s);
    return object;
}

/* Both locks of a slab that nobody else knows; false only in a signal handler. */
static bool lock_new(struct ask *a, struct us_slab *s)
{
    if (!us_bytelock_take(a->f, &s->lock))
        return false;
    if (us_lock_take(a->f, &us_slub_node_of(a->c, s)->lock))
        return true;
    us_slub_drop(a->f, s);
    return false;
}

/* One object without the CPU slab. */
static void *past_cpu_slab(struct ask *a)
{
    struct us_slab *s;
    void *object;

    if (a->f->nested && a->node < 0 && a->c->local.mode != US_MODE_CONTROL &&
        us_local_list_pop(&a->c->local, a->f, 0, &object, &a->cpu) == US_LOCAL_OK)
        return object;
    while ((s = lock_partial(a)) != NULL)
        if ((object = take_listed(a, s)) != NULL)
            return object;
    s = new_slab(a);
    if (!s)
        return NULL;
    if (!lock_new(a, s)) {
        us_slub_release(a->c, a->f, a->cpu, s);
        return NULL;
    }
    us_slub_set_state(s, 0);
    us_slub_list_add(us_slub_node_of(a->c, s), s, true);
    return take_listed(a, s);
}

/* The page provider has failed: whatever its efforts brought to partial lists. */
static void *after_failure(struct ask *a)
{
    const struct us_machine *m = a->c->machine;
    unsigned n;

    for (n = 0; n < m->nnodes; n++) {
        struct us_slab *s;

        if (n != a->home && (a->flags & US_THISNODE))
            continue;
        while ((s = us_slub_lock_listed(a->f, &us_slub_of(a->c)->node[n])) != NULL) {
            void *object = take_listed(a, s);

            if (object)
                return object;
        }
    }
    return NULL;
}

static void *allocate(struct ask *a)
{
    struct us_slab *s;
    void *object;

    if (a->f->nested || !region_open(a->c, a->cpu))
        return past_cpu_slab(a);
    object = from_cpu_slab(a);
    if (object)
        return object;
    while ((s = acquire_partial(a)) != NULL)
        if ((object = load(a, s)) != NULL)
            return object;
    s = new_slab(a);
    if (!s)
        return after_failure(a);
    us_slub_take(a->f, s);
    us_slub_set_state(s, US_SLAB_FROZEN);
    return load(a, s);
}

static US_NOINLINE void *alloc_slow(struct us_cache *c, unsigned flags, int node)
{
    struct us_flight f;
    struct ask a = {.c = c, .f = &f, .flags = flags, .node = node};
    void *object;

    if (US_UNLIKELY(!us_flight_try(c->machine, &f)))
        return NULL;
    a.cpu = us_cpu_now(c->machine);
    if (US_UNLIKELY(!us_local_populated(&c->local, a.cpu)))
        populate(c, &f, a.cpu);
    a.home = node < 0 ? us_node_of_cpu(c->machine, a.cpu) : (unsigned)node;
    a.pinned = node >= 0 || (flags & US_THISNODE);
    us_slub_check_deferred(c, &f, a.home);
    object = allocate(&a);
    us_flight_leave(&f);
    return object;
}

/* ---- entries ------------------------------------------------------------------------- */

US_INLINE void *slub_alloc_path(struct us_cache *c, enum us_mode mode)
{
    void *object;

    if (US_LIKELY(us_fast_list_pop(&c->local, mode, 0, c->local.link, &object)))
        return object;
    return alloc_slow(c, 0, US_ANY_NODE);
}

US_INLINE void slub_free_path(struct us_cache *c, void *object, enum us_mode mode)
{
    /* No slab gives NULL, which no word ever names. */
    struct us_list *owner = (struct us_list *)us_cache_slab(c, object);

    if (US_LIKELY(us_fast_list_push(&c->local, mode, 0, c->local.link, owner, object)))
        return;
    free_slow(c, object);
}

US_LOCAL_ENTRIES(slub)

/* The object's link still names the next free object: its line is fetched outside the sequence. */
US_INLINE void *slub_prefetch_alloc_path(struct us_cache *c, enum us_mode mode)
{
    const ptrdiff_t link = c->local.link;
    void *object;

    if (US_LIKELY(us_fast_list_pop(&c->local, mode, 0, link, &object))) {
        const char *next = *(char *const *)((const char *)object + link);

        __builtin_prefetch(next + link);
        return object;
    }
    return alloc_slow(c, 0, US_ANY_NODE);
}

US_INLINE void slub_prefetch_free_path(struct us_cache *c, void *object, enum us_mode mode)
{
    slub_free_path(c, object, mode);
}

US_LOCAL_ENTRIES(slub_prefetch)

static const struct us_cache_head *entries_of(const struct us_cache *c)
{
    return (c->tunable[US_SLUB_T_PREFETCH] ? slub_prefetch_entries : slub_entries) + c->local.mode;
}

/* Entries of a layer above, checks for one, stay where they stand. */
void us_slub_choose_entries(struct us_cache *c)
{
    void *(*const alloc)(struct us_cache *) = c->head.alloc;
    const enum us_mode mode = c->local.mode;

    if (alloc == slub_entries[mode].alloc || alloc == slub_prefetch_entries[mode].alloc)
        __atomic_store_n(&c->head.alloc, entries_of(c)->alloc, __ATOMIC_RELAXED);
}

/* A pop from the CPU's freelist if that is of the node. */
static void *pop_of_node(struct us_cache *c, unsigned node)
{
    unsigned cpu = us_cpu_now(c->machine);
    struct us_list *list;
    void *object;

    if (c->local.mode == US_MODE_CONTROL)
        return NULL;
    list = us_local_word(&c->local, cpu, 0);
    if (!list || us_slub_slab_of_list(list)->node != node ||
        us_local_list_pop(&c->local, NULL, 0, &object, &cpu) != US_LOCAL_OK)
        return NULL;
    if (us_node_of(&c->slabs->range, object) == node)
        return object;
    c->policy->entries[c->local.mode].free(c, object); /* another slab came between look and pop */
    return NULL;
}

static void *slub_alloc_node(struct us_cache *c, unsigned flags, int node)
{
    unsigned cpu;
    void *object;

    if (node < 0) {
        if (c->local.mode != US_MODE_CONTROL &&
            us_local_list_pop(&c->local, NULL, 0, &object, &cpu) == US_LOCAL_OK)
            return object;
    } else {
        object = pop_of_node(c, (unsigned)node);
        if (object)
            return object;
    }
    return alloc_slow(c, flags, node);
}

static size_t slub_alloc_bulk(struct us_cache *c, unsigned flags, int node, size_t n, void **out)
{
    void *(*const plain)(struct us_cache *) = entries_of(c)->alloc;
    const bool simple = node < 0 && flags == 0;
    size_t got;

    for (got = 0; got < n; got++) {
        out[got] = simple ? plain(c) : slub_alloc_node(c, flags, node);
        if (!out[got])
            break;
    }
    return got;
}

static void slub_free_bulk(struct us_cache *c, size_t n, void *const *object)
{
    void (*const plain)(struct us_cache *, void *) = entries_of(c)->free;
    size_t i;

    for (i = 0; i < n; i++)
        plain(c, object[i]);
}

/* ---- life ---------------------------------------------------------------------------- */

static enum us_status slub_create(struct us_cache *c, struct us_error *e)
{
    struct us_memory *mem = c->slabs->memory;
    const unsigned nnodes = c->machine->nnodes;
    struct us_slub *st = us_meta_alloc(mem, sizeof(*st));
    unsigned n;

    if (st)
        st->node = us_meta_alloc(mem, nnodes * sizeof(*st->node));
    if (!st || !st->node) {
        if (st)
            us_meta_free(mem, st, sizeof(*st));
        if (e) {
            e->status = US_ENOMEM;
            __builtin_snprintf(e->text, sizeof(e->text),
                               "no memory for the node lists of cache '%s'", c->name);
        }
        return US_ENOMEM;
    }
    for (n = 0; n < nnodes; n++)
        us_lock_init(&st->node[n].lock, US_LOCK_NODE);
    st->min_partial = (uint32_t)c->tunable[US_SLUB_T_MIN_PARTIAL];
    st->defrag_threshold = (uint32_t)c->tunable[US_SLUB_T_DEFRAG_RATIO] * 10;
    c->state = st;
    c->local.length = us_slub_length;
    us_slub_choose_entries(c);
    return US_OK;
}

static void slub_destroy(struct us_cache *c)
{
    struct us_memory *mem = c->slabs->memory;
    const unsigned nnodes = c->machine->nnodes;
    struct us_slub *st = us_slub_of(c);
    unsigned cpu, n;

    for (cpu = 0; cpu < c->machine->ncpus; cpu++) {
        if (c->local.region[cpu])
            us_meta_free(mem, c->local.region[cpu], sizeof(struct us_words));
        c->local.region[cpu] = NULL;
    }
    for (n = 0; n < nnodes; n++)
        us_lock_retire(c->machine, &st->node[n].lock);
    us_meta_free(mem, st->node, nnodes * sizeof(*st->node));
    us_meta_free(mem, st, sizeof(*st));
    c->state = NULL;
}

const struct us_policy us_policy_slub = {
    .name = "slub",
    .title = "SLUB with page lock and per-node partial lists (Linux 2.6.25 to 2.6.36)",
    .tunables = us_slub_tunables,
    .ntunables = US_SLUB_NTUNABLES,
    .counters = us_slub_counters,
    .ncounters = US_SLUB_NCOUNTERS,
    .region = US_REGION_WORDS,
    .debug_has_stock = false,
    .geometry = us_slub_geometry,
    .general_sizes = us_slub_general_sizes,
    .create = slub_create,
    .destroy = slub_destroy,
    .entries = slub_entries,
    .alloc_node = slub_alloc_node,
    .alloc_bulk = slub_alloc_bulk,
    .free_bulk = slub_free_bulk,
    .flush_cpu = us_slub_flush_cpu,
    .shrink = us_slub_shrink,
    .visit = us_slub_visit,
};
