/* slub_paths.c - what every SLUB has: fast paths, the way into a slow path, a cache's life.
 *
 * The CPU's word. The region's word 0 names the CPU slab's descriptor; head and count of its
 * freelist lie in the descriptor and are committed in one store there, so (page, freelist) never
 * come apart. A slow path detaches the word, which makes the descriptor its own, works, and
 * installs a descriptor again. In between it may have been moved to another CPU, or another thread
 * may have installed a slab: the originals have interrupts off there, all but around the page
 * provider.
 *
 * Price. The fast path pays two instructions for its statistics: the sum that makes the count word
 * and its half of the paired store. `prefetch` is a second pair of entries, so that 0 costs
 * nothing.
 */
#include "policy/slub_partial.h"
#include "policy/slub_slab.h"

/* Instructions of the compiled functions on their usual way through, with what is inlined there but
 * without counters and calls of other files, which declare their own. Callgrind has counted them
 * (self cost a call, gcc 12, -O2) while caches were filled, emptied and churned on one node and
 * from another; what it met rarely is estimated from the code. So in all files of the family. */
enum {
    RUNS_ALLOC_SLOW = 66,
    RUNS_FREE_SLOW = 69,
    RUNS_PUSH_AGAIN = 8,
    RUNS_MAY_ROB = 12,
    RUNS_ROB = 26,
    RUNS_ROB_NODE = 10,
    RUNS_NEW_SLAB = 33,
    RUNS_DETACH = 25,
    RUNS_INSTALL = 33,
    RUNS_SHRINK = 40,
    RUNS_ALLOC_NODE = 20,
    RUNS_ALLOC_EACH = 10, /* of a bulk, beside the path itself */
    RUNS_FREE_EACH = 6,
};

/* ---- slow paths ---------------------------------------------------------------------- */

static bool put_late(struct us_cache *c, struct us_flight *f, unsigned cpu, void *object)
{
    return us_slub_of(c)->paths->put(c, f, cpu, us_cache_slab(c, object), object, true);
}

void us_slub_check_deferred(struct us_cache *c, struct us_flight *f, unsigned node)
{
    us_deferred_check(c, f, node, put_late);
}

/* The push again, for fast paths that were interrupted too often. */
static bool push_again(struct us_cache *c, struct us_flight *f, struct us_slab *s, void *object)
{
    unsigned cpu = us_cpu_now(c->machine);

    if (!(us_slab_state(s) & US_SLAB_FROZEN) || c->local.mode == US_MODE_CONTROL ||
        us_local_word(&c->local, cpu, 0) != &s->local)
        return false;
    us_runs(RUNS_PUSH_AGAIN);
    return us_local_list_push(&c->local, f, 0, &s->local, object, &cpu) == US_LOCAL_OK;
}

static US_NOINLINE void free_slow(struct us_cache *c, void *object)
{
    struct us_slab *s = us_cache_slab(c, object);
    struct us_flight f;

    if (!object || !us_slab_knows(c, s, object))
        return;
    if (US_UNLIKELY(!us_flight_try(c->machine, &f))) {
        us_defer_free(c, object);
        return;
    }
    us_runs(RUNS_FREE_SLOW);
    us_reads(us_slub_of(c), sizeof(struct us_slub));
    us_slub_check_deferred(c, &f, s->node);
    if (!push_again(c, &f, s, object) &&
        !us_slub_of(c)->paths->put(c, &f, us_cpu_now(c->machine), s, object, false))
        us_defer_free(c, object);
    us_flight_leave(&f);
}

static US_NOINLINE void *alloc_slow(struct us_cache *c, unsigned flags, int node)
{
    struct us_flight f;
    struct us_slub_ask a = {.c = c, .f = &f, .flags = flags, .node = node};
    void *object;

    if (US_UNLIKELY(!us_flight_try(c->machine, &f)))
        return NULL;
    us_runs(RUNS_ALLOC_SLOW);
    us_reads(us_slub_of(c), sizeof(struct us_slub));
    a.cpu = us_cpu_now(c->machine);
    if (US_UNLIKELY(!us_local_populated(&c->local, a.cpu)))
        us_words_populate(c, &f, a.cpu);
    a.home = node < 0 ? us_node_of_cpu(c->machine, a.cpu) : (unsigned)node;
    a.pinned = node >= 0 || (flags & US_THISNODE);
    us_slub_check_deferred(c, &f, a.home);
    object = us_slub_of(c)->paths->allocate(&a);
    us_flight_leave(&f);
    return object;
}

struct us_slab *us_slub_elsewhere(struct us_slub_ask *a,
                                  struct us_slab *(*visit)(struct us_slub_ask *a,
                                                           struct us_partial *p))
{
    const struct us_slub *st = us_slub_of(a->c);
    const unsigned nnodes = a->c->machine->nnodes;
    unsigned d, side;

    us_runs(RUNS_MAY_ROB);
    if (a->pinned || nnodes == 1 || st->defrag_threshold == 0 ||
        us_random(a->c->machine) % 1024 > st->defrag_threshold)
        return NULL;
    us_runs(RUNS_ROB);
    for (d = 1; d < nnodes; d++) {
        for (side = 0; side < 2; side++) {
            const unsigned n = side ? a->home - d : a->home + d; /* wraps below 0 */
            struct us_slab *s;

            us_runs(RUNS_ROB_NODE);
            if (n >= nnodes || us_partial_length(&st->node[n]) <= st->min_partial)
                continue;
            s = visit(a, &st->node[n]);
            if (s)
                return s;
        }
    }
    return NULL;
}

struct us_slab *us_slub_new_slab(struct us_slub_ask *a)
{
    const struct us_slub_paths *paths = us_slub_of(a->c)->paths;
    bool fallback = false;
    struct us_slab *s = us_slab_new(a->c, a->f, a->home, a->flags, &fallback);

    us_runs(RUNS_NEW_SLAB);
    a->cpu = us_cpu_now(a->c->machine);
    if (!s)
        return NULL;
    us_count(a->c, a->cpu, paths->alloc_slab);
    if (fallback)
        us_count(a->c, a->cpu, paths->order_fallback);
    return s;
}

void *us_slub_after_failure(struct us_slub_ask *a,
                            void *(*take)(struct us_slub_ask *a, struct us_partial *p))
{
    unsigned n;

    for (n = 0; n < a->c->machine->nnodes; n++) {
        void *object;

        if (n != a->home && (a->flags & US_THISNODE))
            continue;
        object = take(a, &us_slub_of(a->c)->node[n]);
        if (object)
            return object;
    }
    return NULL;
}

/* ---- the CPU slab -------------------------------------------------------------------- */

struct us_slab *us_slub_settle(struct us_cache *c, unsigned cpu, struct us_list *list)
{
    us_runs(RUNS_DETACH);
    us_slub_note_pops(c, cpu, us_list_pops(list->count));
    return us_slab_settle(c, cpu, list);
}

struct us_slab *us_slub_detach(struct us_cache *c, struct us_flight *f, unsigned *cpu)
{
    struct us_list *list = us_local_detach(&c->local, f, 0, cpu);

    return list ? us_slub_settle(c, *cpu, list) : NULL;
}

void us_slub_install(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_slab *s)
{
    const struct us_slub_paths *paths = us_slub_of(c)->paths;
    int tries;

    us_runs(RUNS_INSTALL);
    for (tries = 0; tries < 4; tries++) {
        struct us_slab *other;
        unsigned now;

        if (us_local_install(&c->local, f, 0, cpu, &s->local) == US_LOCAL_OK)
            return;
        if (us_cpu_now(c->machine) != cpu)
            break;
        other = us_slub_detach(c, f, &now);
        if (!other)
            break;
        if (now != cpu) { /* moved this very moment: that CPU's slab goes back to it */
            if (us_local_install(&c->local, f, 0, now, &other->local) != US_LOCAL_OK)
                paths->deactivate(c, f, now, other);
            break;
        }
        us_count(c, cpu, paths->cpuslab_flush);
        paths->deactivate(c, f, cpu, other);
    }
    paths->deactivate(c, f, cpu, s);
}

/* ---- shrink --------------------------------------------------------------------------- */

#define PROMOTED \
    32 /* from 4.x on, slabs with more free objects stay where they are on their list */

uint64_t us_slub_shrink(struct us_cache *c, struct us_flight *f, unsigned node, bool try_only)
{
    const struct us_slub_paths *paths = us_slub_of(c)->paths;
    struct us_partial *p = &us_slub_of(c)->node[node];
    struct us_slab *chain;

    if (f->nested)
        return 0;
    if (!try_only)
        us_slub_check_deferred(c, f, node);
    if (!(try_only ? us_lock_try(f, &p->lock) : us_lock_take(f, &p->lock)))
        return 0;
    us_runs(RUNS_SHRINK);
    chain = us_partial_unlist_empty(f, p, paths->page_lock);
    us_partial_sort(p, c->tunable[US_SLUB_T_EPOCH] == US_SLUB_5_16 ? PROMOTED : UINT32_MAX);
    us_lock_drop(f, &p->lock);
    return us_slab_release_chain(c, f, us_cpu_now(c->machine), chain, paths->shrink_slab);
}

/* ---- entries ------------------------------------------------------------------------- */

/* Instructions of the compiled paths in sequences (bench/instructions.json). */
enum { ALLOC_RUNS = 19, PREFETCH_ALLOC_RUNS = 21, FREE_RUNS = 26 };

US_INLINE void *slub_alloc_path(struct us_cache *c, enum us_mode mode)
{
    void *object;

    us_runs(ALLOC_RUNS);
    if (US_LIKELY(us_fast_list_pop(&c->local, mode, 0, c->local.link, &object)))
        return object;
    return alloc_slow(c, 0, US_ANY_NODE);
}

US_INLINE void slub_free_path(struct us_cache *c, void *object, enum us_mode mode)
{
    us_runs(FREE_RUNS);
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

    us_runs(PREFETCH_ALLOC_RUNS);
    if (US_LIKELY(us_fast_list_pop(&c->local, mode, 0, link, &object))) {
        const char *next = *(char *const *)((const char *)object + link);

        us_prefetches(next + link);
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
    us_reads(&c->tunable[US_SLUB_T_PREFETCH], sizeof(*c->tunable));
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
    if (list)
        us_reads(list, sizeof(struct us_slab));
    if (!list || us_slab_of_list(list)->node != node ||
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

    us_runs(RUNS_ALLOC_NODE);
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
        us_runs(RUNS_ALLOC_EACH);
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

    us_runs(RUNS_FREE_EACH * n);
    for (i = 0; i < n; i++)
        plain(c, object[i]);
}

/* ---- life ---------------------------------------------------------------------------- */

static void free_state(struct us_cache *c, struct us_slub *st)
{
    struct us_memory *mem = c->slabs->memory;

    if (st->node)
        us_meta_free(mem, st->node, c->machine->nnodes * sizeof(*st->node));
    us_meta_free(mem, st, st->bytes);
}

enum us_status us_slub_create(struct us_cache *c, const struct us_slub_paths *paths, size_t bytes,
                              struct us_error *e)
{
    struct us_memory *mem = c->slabs->memory;
    const unsigned nnodes = c->machine->nnodes;
    struct us_slub *st = us_meta_alloc(mem, bytes);
    unsigned n;

    if (st) {
        st->bytes = bytes;
        st->node = us_meta_alloc(mem, nnodes * sizeof(*st->node));
    }
    if (!st || !st->node) {
        if (st)
            free_state(c, st);
        if (e) {
            e->status = US_ENOMEM;
            __builtin_snprintf(e->text, sizeof(e->text),
                               "no memory for the node lists of cache '%s'", c->name);
        }
        return US_ENOMEM;
    }
    for (n = 0; n < nnodes; n++)
        us_partial_init(&st->node[n]);
    st->paths = paths;
    st->min_partial = (uint32_t)c->tunable[US_SLUB_T_MIN_PARTIAL];
    st->defrag_threshold = (uint32_t)c->tunable[US_SLUB_T_DEFRAG_RATIO] * 10;
    c->state = st;
    c->local.length = us_slab_length;
    us_slub_choose_entries(c);
    return US_OK;
}

void us_slub_destroy(struct us_cache *c)
{
    struct us_memory *mem = c->slabs->memory;
    struct us_slub *st = us_slub_of(c);
    unsigned cpu, n;

    for (cpu = 0; cpu < c->machine->ncpus; cpu++) {
        if (c->local.region[cpu])
            us_meta_free(mem, c->local.region[cpu], sizeof(struct us_words));
        c->local.region[cpu] = NULL;
    }
    for (n = 0; n < c->machine->nnodes; n++)
        us_lock_retire(c->machine, &st->node[n].lock);
    free_state(c, st);
    c->state = NULL;
}

static void slub_locks(struct us_cache *c, us_lock_fn *each, void *context)
{
    unsigned n;

    for (n = 0; n < c->machine->nnodes; n++)
        each(context, &us_slub_of(c)->node[n].lock);
}

/* ---- the policies -------------------------------------------------------------------- */

#define SHARED_HOOKS                                                                        \
    .region = US_REGION_WORDS, .debug_has_stock = false, .general_sizes = us_kmalloc_sizes, \
    .entries = slub_entries, .alloc_node = slub_alloc_node, .alloc_bulk = slub_alloc_bulk,  \
    .locks = slub_locks, .shrink = us_slub_shrink, .visit = us_slub_visit

const struct us_policy us_policy_slub = {
    .name = "slub",
    .title = "SLUB with page lock and per-node partial lists (Linux 2.6.25 to 2.6.36)",
    .tunables = us_slub_tunables,
    .ntunables = US_SLUB_NTUNABLES,
    .counters = us_slub_counters,
    .ncounters = US_SLUB_NCOUNTERS,
    SHARED_HOOKS,
    .geometry = us_slub_geometry,
    .create = us_slub_plain_create,
    .destroy = us_slub_destroy,
    .free_bulk = slub_free_bulk,
    .flush_cpu = us_slub_flush_cpu,
};

const struct us_policy us_policy_slub_thrash = {
    .name = "slub-thrash",
    .title = "SLUB with slab-thrash ratio (reconstructed) or most-free choice of partial slabs",
    .tunables = us_slub_thrash_tunables,
    .ntunables = US_SLUB_THRASH_NTUNABLES,
    .counters = us_slub_thrash_counters,
    .ncounters = US_SLUB_THRASH_NCOUNTERS,
    SHARED_HOOKS,
    .geometry = us_slub_geometry,
    .create = us_slub_thrash_create,
    .destroy = us_slub_thrash_destroy,
    .free_bulk = slub_free_bulk,
    .flush_cpu = us_slub_flush_cpu,
};

const struct us_policy us_policy_slub_partial = {
    .name = "slub-partial",
    .title = "SLUB with per-CPU partial lists and without page lock (Linux 3.2 to 6.17)",
    .tunables = us_slub_partial_tunables,
    .ntunables = US_SLUB_PARTIAL_NTUNABLES,
    .counters = us_slub_partial_counters,
    .ncounters = US_SLUB_PARTIAL_NCOUNTERS,
    SHARED_HOOKS,
    .geometry = us_slub_partial_geometry,
    .create = us_slub_partial_create,
    .destroy = us_slub_destroy,
    .free_bulk = us_slub_partial_free_bulk,
    .flush_cpu = us_slub_partial_flush_cpu,
};
