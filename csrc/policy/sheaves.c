/* sheaves.c - SLUB with per-CPU sheaves and a barn a node, Linux 7.1 as described.
 *
 * Levels. A CPU has a main sheaf, an array of object pointers worked as a stack, and a spare one
 * (none, full or empty; after a return also in between). An empty main sheaf is replaced by the
 * spare if that has objects, else by a full sheaf of the node's barn, which keeps the empty one,
 * else by one that is refilled from slabs: partial ones of the node, now and then of other nodes,
 * new ones. A full main sheaf is replaced by the spare if that has room, else goes to the barn,
 * which gives an empty one; a barn of ten full sheaves takes no more: the spare is flushed to
 * slabs. Another node's object never enters a sheaf by a free: it goes straight to its slab. What
 * cannot be had or put by way of sheaves is one object from or to slabs (the original's slow path).
 *
 * States of a slab. On its node's partial list; full, on none; pulled: neither, while a refill that
 * took it off the list empties it. All free objects are on the slab's own freelist, which is linked
 * through the middle of the objects; those in sheaves count as in use there and are not touched. An
 * emptied slab is kept while its list is shorter than min_partial.
 *
 * The lock of the original's fast path, a per-CPU trylock that fails only for who interrupted its
 * holder, is the restartable sequence here: a pop or push of the main sheaf commits in one store,
 * and there is nothing to lock. To change the sheaves themselves a slow path swaps the main word
 * for an empty one: who then finds no main sheaf has met the lock held, and goes to slabs, as the
 * original does. So whoever took the main sheaf alone changes both words, works on the sheaves with
 * plain code, and gives them back to the CPU where it took them (us_sheaf_pair_take,
 * us_sheaf_pair_give), from another CPU by closing that one: for that control lock it waits,
 * holding nothing, its caller being served. Nothing is held while a refill waits for pages: sheaves
 * are given back before and taken again afterwards, wherever the thread is then, and what has been
 * filled finds its place by the state found (step f). One that was filled for another node goes to
 * that node's barn.
 *
 * Locks. control (a CPU's words while it is closed), then barn (class shared) or node, which never
 * nest. A slab has no lock: its freelist and count change by one exchange (slab/chained.h), before
 * which the node lock is taken if the slab is going on its list or off it. No lock is held over the
 * page provider.
 *
 * slab_strict_numa turns the memory policy of the calling task into a node, before anything else is
 * looked at (cache/alloc.c does it, as for caches with US_MEM_SPREAD). The original does so at the
 * head of its single allocation; where the reference is silent, bulk calls, prefills and refills,
 * nothing is turned.
 *
 * Debug. Caches with consistency checks have no sheaves: every allocation takes one object from a
 * listed slab and every free goes to the slab. A signal handler that interrupted a slow path works
 * the main sheaf if that is there, else one object of slabs, whose locks it only tries.
 *
 * Price. A pop is 19 instructions, a push 21, three fewer than those of unified's ring: there is no
 * index to be wrapped, and one load more, the word that names the sheaf. Counting is in the header:
 * free. The original pays for its trylock, an unlock and, with statistics, an increment.
 *
 * Not as in the original. A CPU gets its main sheaf at its first slow path, not when the cache is
 * made, so that thousands of modelled CPUs cost what they use; a cache that cannot get memory for
 * it goes on without. A sheaf of frees after a grace period that is not full goes to slabs after a
 * time, too, not only with a flush (cache/rcu.c). An allocation that fails is in no counter. Where
 * the reference leaves open what becomes of empty sheaves beyond ten, the barn keeps them, since
 * exchanges and undo steps do not look at the limit; what of a chain of frees comes first: it is
 * linked from its end, so the first of the array is allocated first; how slabs of equal use are
 * ordered by a shrink: as they were. When the page provider fails, flushes may have brought objects
 * to partial lists, so these are asked once more.
 */
#include "policy/sheaves.h"

/* Instructions of the compiled functions on their usual way through, with what is inlined there but
 * without counters and calls of other files, which declare their own. Callgrind has counted them
 * (self cost a call, gcc 12, -O2) while caches were filled, emptied and churned on one node and
 * from another; what it met rarely is estimated from the code. So in all files of the policy. */
enum {
    RUNS_ALLOC_SLOW = 103, /* from the sheaves */
    RUNS_REPLACE_EMPTY = 29,
    RUNS_POP_AND_GIVE = 53,
    RUNS_REFILL_MAIN = 61,
    RUNS_FREE_SLOW = 89,
    RUNS_REPLACE_FULL = 38,
    RUNS_PUSH_AND_GIVE = 38,
    RUNS_MAKE_ROOM = 35,
    RUNS_USE_EMPTY = 35,
    RUNS_FLUSH_MAIN = 60, /* a batch */
    RUNS_OF_NODE = 30,
};

static bool put_late(struct us_cache *c, struct us_flight *f, unsigned cpu, void *object)
{
    return us_sheaves_put_one(c, f, cpu, object);
}

void us_sheaves_check_deferred(struct us_cache *c, struct us_flight *f, unsigned node)
{
    us_deferred_check(c, f, node, put_late);
}

static void swap_pair(struct us_sheaf_pair *p)
{
    struct us_sheaf *main = p->main;

    p->main = p->spare;
    p->spare = main;
}

/* ---- allocation ------------------------------------------------------------------------ */

enum us_replaced us_sheaves_replace_empty(struct us_cache *c, struct us_flight *f,
                                          struct us_sheaf_pair *p)
{
    struct us_sheaf *full;

    us_runs(RUNS_REPLACE_EMPTY);
    if (p->spare && us_sheaf_size(p->spare) > 0) {
        swap_pair(p);
        return US_REPLACED_SPARE;
    }
    full = us_barn_exchange_empty(f, us_barn_of_cpu(c, p->cpu), p->main);
    if (!full) {
        us_count(c, p->cpu, US_SHEAVES_BARN_GET_FAIL);
        return US_REPLACED_NOT;
    }
    us_count(c, p->cpu, US_SHEAVES_BARN_GET);
    us_count_n(c, p->cpu, US_SHEAVES_MOVED, us_sheaf_size(full));
    p->main = full;
    return US_REPLACED_BARN;
}

/* Takes the hottest object of a main sheaf that has some, and gives the pair back. `how` is the
 * counter of how the sheaf came by it, or ALLOC_FASTPATH. NULL: it is of another node than asked.
 */
static void *pop_and_give(struct us_sheaves_ask *a, struct us_sheaf_pair *p, unsigned how)
{
    struct us_cache *c = a->c;
    struct us_sheaf *s = p->main;
    void *object = s->object[us_sheaf_size(s) - 1];
    const unsigned node = us_node_of(&c->slabs->range, object);

    us_runs(RUNS_POP_AND_GIVE);
    us_reads(&s->object[us_sheaf_size(s) - 1], sizeof(object));
    if (a->node >= 0 && node != (unsigned)a->node) {
        us_count(c, p->cpu, US_SHEAVES_ALLOC_NODE_MISMATCH);
        us_sheaf_pair_give(c, a->f, p);
        return NULL;
    }
    us_sheaf_set(s, us_sheaf_size(s) - 1);
    if (how == US_SHEAVES_ALLOC_REFILLED && node != us_node_of_cpu(c->machine, p->cpu))
        us_count(c, p->cpu, US_SHEAVES_ALLOC_OFF_NODE);
    if (how != US_SHEAVES_ALLOC_FASTPATH)
        us_count(c, p->cpu, how);
    us_count(c, p->cpu, US_SHEAVES_ALLOC_FASTPATH);
    us_sheaf_pair_give(c, a->f, p);
    return object;
}

static void to_barn(struct us_sheaves_ask *a, struct us_sheaf *full, unsigned node)
{
    us_count(a->c, a->cpu, US_SHEAVES_BARN_PUT);
    us_count_n(a->c, a->cpu, US_SHEAVES_MOVED, us_sheaf_size(full));
    us_barn_put_full(a->f, &us_sheaves_of(a->c)->barn[node], full);
}

/* Step f: a sheaf was filled for `node`; it finds its place where the thread is now. */
static void *place_filled(struct us_sheaves_ask *a, struct us_sheaf *filled, unsigned node)
{
    struct us_barn *barn = &us_sheaves_of(a->c)->barn[node];
    unsigned how = US_SHEAVES_ALLOC_FASTPATH;
    struct us_sheaf_pair p;

    if (!us_sheaf_pair_take(a->c, a->f, &p)) {
        to_barn(a, filled, node);
        return NULL;
    }
    a->cpu = p.cpu;
    if (us_node_of_cpu(a->c->machine, p.cpu) != node) {
        us_sheaf_pair_give(a->c, a->f, &p);
        to_barn(a, filled, node);
        return NULL;
    }
    if (us_sheaf_size(p.main) == 0) {
        if (p.spare)
            us_barn_put_empty(a->f, barn, p.main);
        else
            p.spare = p.main;
        p.main = filled;
        how = US_SHEAVES_ALLOC_REFILLED;
    } else if (!p.spare || us_sheaf_size(p.spare) == 0) {
        if (p.spare)
            us_barn_put_empty(a->f, barn, p.spare);
        p.spare = filled;
    } else {
        to_barn(a, filled, node);
    }
    return pop_and_give(a, &p, how);
}

/* Steps d to f: the pair is given back, an empty sheaf is filled from slabs. */
static void *refill_main(struct us_sheaves_ask *a, struct us_sheaf_pair *p)
{
    struct us_cache *c = a->c;
    const unsigned node = us_node_of_cpu(c->machine, p->cpu);
    struct us_sheaf *s = p->spare; /* an empty one */
    unsigned got;

    us_runs(RUNS_REFILL_MAIN);
    p->spare = NULL;
    if (!s)
        s = us_barn_get_empty(a->f, us_barn_of_cpu(c, p->cpu));
    us_sheaf_pair_give(c, a->f, p);
    if (!s)
        s = us_sheaf_new(c);
    if (!s)
        return NULL;
    got = us_sheaves_refill(a, s->object, s->capacity);
    us_writes(s->object, got * sizeof(*s->object));
    us_sheaf_set(s, got);
    a->cpu = us_cpu_now(c->machine);
    us_count_n(c, a->cpu, US_SHEAVES_SHEAF_REFILL, got);
    if (got == s->capacity)
        return place_filled(a, s, node);
    us_sheaf_flush(c, a->f, s);
    us_sheaf_free(c, s);
    return NULL;
}

static void *from_pair(struct us_sheaves_ask *a)
{
    unsigned how = US_SHEAVES_ALLOC_FASTPATH;
    struct us_sheaf_pair p;

    if (!us_sheaf_pair_take(a->c, a->f, &p))
        return NULL;
    a->cpu = p.cpu;
    if (a->node >= 0 && us_node_of_cpu(a->c->machine, p.cpu) != (unsigned)a->node) {
        us_sheaf_pair_give(a->c, a->f, &p); /* moved to another node just now */
        return NULL;
    }
    if (us_sheaf_size(p.main) == 0) {
        switch (us_sheaves_replace_empty(a->c, a->f, &p)) {
        case US_REPLACED_NOT:
            return refill_main(a, &p);
        case US_REPLACED_BARN:
            how = US_SHEAVES_ALLOC_BARN;
            break;
        case US_REPLACED_SPARE:
            break;
        }
    }
    return pop_and_give(a, &p, how);
}

static void *from_sheaves(struct us_sheaves_ask *a)
{
    const enum us_phase before = us_phase_set(US_PHASE_SECOND);
    void *object = from_pair(a);

    us_phase_set(before);
    return object;
}

/* A signal handler leaves the words alone. */
static void *allocate(struct us_sheaves_ask *a)
{
    struct us_cache *c = a->c;
    void *object = NULL;

    if (us_sheaves_of(c)->capacity == 0)
        return us_sheaves_one(a);
    if (a->node >= 0 && (unsigned)a->node != us_node_of_cpu(c->machine, a->cpu))
        us_count(c, a->cpu, US_SHEAVES_ALLOC_NODE_MISMATCH);
    else if (!a->f->nested)
        object = from_sheaves(a);
    else if (a->node < 0 && us_local_main_pop(&c->local, a->f, &object))
        return object;
    return object ? object : us_sheaves_one(a);
}

US_NOINLINE void *us_sheaves_alloc_slow(struct us_cache *c, unsigned flags, int node)
{
    struct us_flight f;
    struct us_sheaves_ask a = {.c = c, .f = &f, .flags = flags, .node = node};
    void *object;

    if (US_UNLIKELY(!us_flight_try(c->machine, &f)))
        return NULL;
    us_runs(RUNS_ALLOC_SLOW);
    us_reads(us_sheaves_of(c), offsetof(struct us_sheaves, lent_lock));
    us_reads(&c->machine, sizeof(c->machine));
    a.cpu = us_cpu_now(c->machine);
    a.home = node < 0 ? us_node_of_cpu(c->machine, a.cpu) : (unsigned)node;
    if (US_UNLIKELY(!us_local_populated(&c->local, a.cpu)))
        us_sheaves_populate(c, &f, a.cpu);
    us_sheaves_check_deferred(c, &f, a.home);
    object = allocate(&a);
    us_flight_leave(&f);
    return object;
}

/* ---- free ------------------------------------------------------------------------------ */

/* One free on its way. */
struct giving {
    struct us_cache *c;
    struct us_flight *f;
    unsigned node; /* of the object */
    unsigned how;  /* counter of how room was made, or FREE_FASTPATH */
    void *object;
};

enum us_replaced us_sheaves_replace_full(struct us_cache *c, struct us_flight *f,
                                         struct us_sheaf_pair *p, bool *too_full)
{
    struct us_barn *barn = us_barn_of_cpu(c, p->cpu);
    struct us_sheaf *empty = NULL;

    us_runs(RUNS_REPLACE_FULL);
    *too_full = false;
    if (!p->spare) {
        empty = us_barn_get_empty(f, barn);
        if (!empty)
            return US_REPLACED_NOT;
        p->spare = p->main;
        p->main = empty;
        return US_REPLACED_BARN;
    }
    if (!us_sheaf_full(p->spare)) {
        swap_pair(p);
        return US_REPLACED_SPARE;
    }
    switch (us_barn_exchange_full(f, barn, p->main, &empty)) {
    case US_BARN_OK:
        us_count(c, p->cpu, US_SHEAVES_BARN_PUT);
        us_count_n(c, p->cpu, US_SHEAVES_MOVED, us_sheaf_size(p->main));
        p->main = empty;
        return US_REPLACED_BARN;
    case US_BARN_TOO_FULL:
        us_count(c, p->cpu, US_SHEAVES_BARN_PUT_FAIL);
        *too_full = true;
        return US_REPLACED_NOT;
    default:
        return US_REPLACED_NOT;
    }
}

/* Pushes on a main sheaf of the object's node that has room, and gives the pair back. */
static bool push_and_give(struct giving *g, struct us_sheaf_pair *p)
{
    const bool pushed =
        us_node_of_cpu(g->c->machine, p->cpu) == g->node && us_sheaf_push_c(p->main, g->object);

    us_runs(RUNS_PUSH_AND_GIVE);
    if (pushed) {
        if (g->how != US_SHEAVES_FREE_FASTPATH)
            us_count(g->c, p->cpu, g->how);
        us_count(g->c, p->cpu, US_SHEAVES_FREE_FASTPATH);
    }
    us_sheaf_pair_give(g->c, g->f, p);
    return pushed;
}

/* An empty sheaf was got while the pair was given back: it takes the place of the main one if that
 * is still full. */
static bool use_empty(struct giving *g, struct us_sheaf *empty)
{
    struct us_barn *barn = &us_sheaves_of(g->c)->barn[g->node];
    struct us_sheaf_pair p;

    us_runs(RUNS_USE_EMPTY);
    if (!us_sheaf_pair_take(g->c, g->f, &p)) {
        us_barn_put_empty(g->f, barn, empty);
        return false;
    }
    if (us_node_of_cpu(g->c->machine, p.cpu) != g->node || !us_sheaf_full(p.main)) {
        us_barn_put_empty(g->f, barn, empty);
    } else if (!p.spare) {
        p.spare = p.main;
        p.main = empty;
    } else if (!us_sheaf_full(p.spare)) {
        swap_pair(&p);
        us_barn_put_empty(g->f, barn, empty);
    } else { /* whatever the limit */
        us_count(g->c, p.cpu, US_SHEAVES_BARN_PUT);
        us_count_n(g->c, p.cpu, US_SHEAVES_MOVED, us_sheaf_size(p.main));
        us_barn_put_full(g->f, barn, p.main);
        p.main = empty;
        g->how = US_SHEAVES_FREE_BARN;
    }
    return push_and_give(g, &p);
}

/* Step e: there is no empty sheaf. The main one is flushed, a batch at a time. */
static bool flush_main(struct giving *g)
{
    struct us_sheaf_pair p;
    uint32_t left = 1;

    g->how = US_SHEAVES_FREE_FLUSHED;
    while (left > 0) {
        void *batch[US_SHEAF_BATCH];
        uint32_t size, n;

        if (!us_sheaf_pair_take(g->c, g->f, &p))
            return false;
        size = us_sheaf_size(p.main);
        n = size < US_SHEAF_BATCH ? size : US_SHEAF_BATCH;
        left = size - n;
        us_runs(RUNS_FLUSH_MAIN);
        us_reads(p.main->object + left, n * sizeof(*batch));
        __builtin_memcpy(batch, p.main->object + left, n * sizeof(*batch));
        us_sheaf_set(p.main, left);
        us_sheaf_pair_give(g->c, g->f, &p);
        us_count_n(g->c, p.cpu, US_SHEAVES_SHEAF_FLUSH, n);
        us_sheaves_put(g->c, g->f, batch, n);
    }
    return us_sheaf_pair_take(g->c, g->f, &p) && push_and_give(g, &p);
}

/* Nothing was to be had without effort; the main sheaf is full. */
static bool make_room(struct giving *g, struct us_sheaf_pair *p, bool too_full)
{
    struct us_sheaf *empty = NULL;
    const bool had_spare = p->spare != NULL;

    us_runs(RUNS_MAKE_ROOM);
    if (too_full) {
        empty = p->spare;
        p->spare = NULL;
        g->how = US_SHEAVES_FREE_FLUSHED;
    }
    us_sheaf_pair_give(g->c, g->f, p);
    if (empty)
        us_sheaf_flush(g->c, g->f, empty);
    else
        empty = us_sheaf_new(g->c);
    if (empty)
        return use_empty(g, empty);
    if (had_spare)
        us_count(g->c, p->cpu, US_SHEAVES_BARN_PUT_FAIL);
    return flush_main(g);
}

static bool to_pair(struct giving *g)
{
    bool too_full = false;
    struct us_sheaf_pair p;

    if (!us_sheaf_pair_take(g->c, g->f, &p))
        return false;
    if (us_node_of_cpu(g->c->machine, p.cpu) == g->node && us_sheaf_full(p.main)) {
        switch (us_sheaves_replace_full(g->c, g->f, &p, &too_full)) {
        case US_REPLACED_NOT:
            return make_room(g, &p, too_full);
        case US_REPLACED_BARN:
            g->how = US_SHEAVES_FREE_BARN;
            break;
        case US_REPLACED_SPARE:
            break;
        }
    }
    return push_and_give(g, &p);
}

static bool to_sheaves(struct giving *g)
{
    const enum us_phase before = us_phase_set(US_PHASE_SECOND);
    const bool done = to_pair(g);

    us_phase_set(before);
    return done;
}

static bool give(struct us_cache *c, struct us_flight *f, void *object)
{
    struct giving g = {.c = c, .f = f, .object = object, .how = US_SHEAVES_FREE_FASTPATH};
    const unsigned cpu = us_cpu_now(c->machine);

    g.node = us_node_of(&c->slabs->range, object);
    if (us_sheaves_of(c)->capacity > 0 && us_node_of_cpu(c->machine, cpu) == g.node) {
        if (f->nested ? us_local_main_push(&c->local, f, object) == US_LOCAL_OK : to_sheaves(&g))
            return true;
    }
    return us_sheaves_put_one(c, f, us_cpu_now(c->machine), object);
}

US_NOINLINE void us_sheaves_free_slow(struct us_cache *c, void *object)
{
    struct us_slab *s = us_cache_slab(c, object);
    struct us_flight f;
    unsigned cpu;

    if (!object || !us_slab_knows(c, s, object))
        return;
    if (US_UNLIKELY(!us_flight_try(c->machine, &f))) {
        us_defer_free(c, object);
        return;
    }
    us_runs(RUNS_FREE_SLOW);
    us_reads(us_sheaves_of(c), offsetof(struct us_sheaves, lent_lock));
    us_sheaves_check_deferred(c, &f, s->node);
    cpu = us_cpu_now(c->machine);
    if (US_UNLIKELY(!us_local_populated(&c->local, cpu)))
        us_sheaves_populate(c, &f, cpu);
    if (!give(c, &f, object))
        us_defer_free(c, object);
    us_flight_leave(&f);
}

/* ---- entries --------------------------------------------------------------------------- */

/* Instructions of the compiled paths in sequences (bench/instructions.json). */
enum { ALLOC_RUNS = 19, FREE_RUNS = 21 };

US_INLINE void *sheaves_alloc_path(struct us_cache *c, enum us_mode mode)
{
    void *object;

    us_runs(ALLOC_RUNS);
    if (US_LIKELY(us_fast_main_pop(&c->local, mode, &object)))
        return object;
    return us_sheaves_alloc_slow(c, 0, US_ANY_NODE);
}

US_INLINE void sheaves_free_path(struct us_cache *c, void *object, enum us_mode mode)
{
    us_runs(FREE_RUNS);
    if (US_LIKELY(us_fast_main_push(&c->local, mode, object)))
        return;
    us_sheaves_free_slow(c, object);
}

US_LOCAL_ENTRIES(sheaves)

/* The hottest object of the main sheaf if it is of the node. The sheaf may be anybody's by the time
 * it is looked at, so the object is taken first; what is not of the node goes back to where it was,
 * and neither is counted. */
static void *pop_of_node(struct us_cache *c, unsigned node)
{
    const struct us_range *r = &c->slabs->range;
    const unsigned cpu = us_cpu_now(c->machine);
    void *object;

    us_runs(RUNS_OF_NODE);
    if (us_node_of_cpu(c->machine, cpu) != node ||
        us_local_main_pop(&c->local, NULL, &object) != US_LOCAL_OK)
        return NULL;
    if (us_node_of(r, object) == node)
        return object;
    if (us_local_main_put(&c->local, &object, 1, us_node_base(r, node)))
        us_local_harvest(&c->local, cpu, -(uint64_t)1, -(uint64_t)1);
    else
        sheaves_entries[c->local.mode].free(c, object); /* moved, or somebody filled it meanwhile */
    return NULL;
}

static void *sheaves_alloc_node(struct us_cache *c, unsigned flags, int node)
{
    void *object = NULL;

    if (node >= 0)
        object = pop_of_node(c, (unsigned)node);
    else if (us_local_main_pop(&c->local, NULL, &object) == US_LOCAL_OK)
        return object;
    return object ? object : us_sheaves_alloc_slow(c, flags, node);
}

/* ---- life ------------------------------------------------------------------------------ */

static void free_state(struct us_cache *c, struct us_sheaves *st)
{
    struct us_memory *mem = c->slabs->memory;

    if (st->node)
        us_meta_free(mem, st->node, c->machine->nnodes * sizeof(*st->node));
    if (st->barn)
        us_meta_free(mem, st->barn, c->machine->nnodes * sizeof(*st->barn));
    us_meta_free(mem, st, sizeof(*st));
}

static enum us_status sheaves_create(struct us_cache *c, struct us_error *e)
{
    struct us_memory *mem = c->slabs->memory;
    struct us_sheaves *st = us_meta_alloc(mem, sizeof(*st));
    unsigned n;

    if (st) {
        st->node = us_meta_alloc(mem, c->machine->nnodes * sizeof(*st->node));
        st->barn = us_meta_alloc(mem, c->machine->nnodes * sizeof(*st->barn));
    }
    if (!st || !st->node || !st->barn) {
        if (st)
            free_state(c, st);
        return us_fail(e, US_ENOMEM, "no memory for the node lists of cache '%s'", c->name);
    }
    for (n = 0; n < c->machine->nnodes; n++) {
        us_partial_init(&st->node[n]);
        us_lock_init(&st->barn[n].lock, US_LOCK_SHARED);
    }
    us_lock_init(&st->lent_lock, US_LOCK_SHARED);
    st->capacity = us_sheaves_has_none(c) ? 0 : us_sheaves_capacity(c);
    st->min_partial = (uint32_t)c->tunable[US_SHEAVES_T_MIN_PARTIAL];
    st->defrag_threshold = (uint32_t)c->tunable[US_SHEAVES_T_DEFRAG_RATIO] * 10;
    c->task_placed |= c->tunable[US_SHEAVES_T_STRICT_NUMA] != 0;
    c->state = st;
    return US_OK;
}

static void drop_sheaves(struct us_cache *c, struct us_sheaf *s)
{
    while (s) {
        struct us_sheaf *next = s->next;

        us_meta_free(c->slabs->memory, s, us_sheaf_bytes(s->capacity));
        s = next;
    }
}

static void sheaves_destroy(struct us_cache *c)
{
    struct us_sheaves *st = us_sheaves_of(c);
    unsigned cpu, n, w;

    for (cpu = 0; cpu < c->machine->ncpus; cpu++) {
        for (w = US_MAIN; w <= US_SPARE; w++)
            drop_sheaves(c, us_local_sheaf(&c->local, cpu, w));
        if (c->local.region[cpu])
            us_meta_free(c->slabs->memory, c->local.region[cpu], sizeof(struct us_words));
        c->local.region[cpu] = NULL;
    }
    for (n = 0; n < c->machine->nnodes; n++) {
        drop_sheaves(c, st->barn[n].full);
        drop_sheaves(c, st->barn[n].empty);
        us_lock_retire(c->machine, &st->barn[n].lock);
        us_lock_retire(c->machine, &st->node[n].lock);
    }
    drop_sheaves(c, st->lent);
    us_lock_retire(c->machine, &st->lent_lock);
    free_state(c, st);
    c->state = NULL;
}

static void sheaves_locks(struct us_cache *c, us_lock_fn *each, void *context)
{
    struct us_sheaves *st = us_sheaves_of(c);
    unsigned n;

    for (n = 0; n < c->machine->nnodes; n++) {
        each(context, &st->barn[n].lock);
        each(context, &st->node[n].lock);
    }
    each(context, &st->lent_lock);
}

const struct us_policy us_policy_sheaves = {
    .name = "sheaves",
    .title = "SLUB with per-CPU sheaves and a barn a node (Linux 7.1); without sheaves under debug",
    .tunables = us_sheaves_tunables,
    .ntunables = US_SHEAVES_NTUNABLES,
    .counters = us_sheaves_counters,
    .ncounters = US_SHEAVES_NCOUNTERS,
    .region = US_REGION_SHEAVES,
    .debug_has_stock = false,
    .geometry = us_sheaves_geometry,
    .general_sizes = us_kmalloc_sizes,
    .create = sheaves_create,
    .destroy = sheaves_destroy,
    .entries = sheaves_entries,
    .alloc_node = sheaves_alloc_node,
    .alloc_bulk = us_sheaves_alloc_bulk,
    .free_bulk = us_sheaves_free_bulk,
    .prefill = us_sheaves_prefill,
    .alloc_prefilled = us_sheaves_alloc_from,
    .refill = us_sheaves_refill_sheaf,
    .give_back = us_sheaves_return,
    .rcu_sheaf = us_sheaves_rcu_sheaf,
    .rcu_count = us_sheaves_rcu_count,
    .rcu_done = us_sheaves_rcu_done,
    .flush_cpu = us_sheaves_flush_cpu,
    .shrink = us_sheaves_shrink,
    .cpu_offline = us_sheaves_cpu_offline,
    .locks = sheaves_locks,
    .visit = us_sheaves_visit,
};
