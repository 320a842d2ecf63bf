/* slqb.c - SLQB (Nick Piggin), as carried in trees of 2.6.32.
 *
 * Levels. An allocation is served by the first of: the CPU's free list, a stack threaded through
 * the objects; the same after it took in what others brought home (remote_free), once a freebatch
 * of that has come; one object of the first partial slab of the CPU's list; one of a new slab.
 * Another node's object comes from that node's list in the same way, under its lock. A free goes on
 * the CPU's free list whenever the object is of the CPU's node, whichever CPU owns its slab; beyond
 * hiwater one freebatch is flushed from the hot end: objects of the list's own slabs go back to
 * these, others to the rlist. An object of another node goes on the rlist at once. The rlist holds
 * objects of one other list; it goes home when it is a freebatch, or when the next object is
 * another list's: to that list's remote_free, or straight to slabs when that has too much already.
 *
 * States of a slab. It belongs to the list of the CPU that got it, or to the list of its node when
 * that was not the CPU's. Objects on free lists, rlists and remote_free count as in use. With some
 * objects free it is on the partial list of its owner, with none on no list; emptied it is given
 * back at once. `isolated`: its own chain was broken, its objects are only counted.
 *
 * Words. Word 0 of a region names the free list's header, worked by the fast paths; word 1 stands
 * for the rlist. A slow path detaches a word, which makes the free list or rlist its own, works by
 * plain code, and installs it again. In between it may have been moved to another CPU, or somebody
 * has closed the region: then the word is `parked`, and the next slow path on that CPU takes it up
 * from there. Who finds a word in other hands goes to the next level: an allocation to the partial
 * list, a free straight to its slab, a remote free sends itself home. No word is held over the page
 * provider.
 *
 * Locks. control (who trims another CPU's lists) - a node's list_lock (class alien) - remote_lock
 * of a list (class shared) - page_lock of a list (class node). remote_lock and page_lock are never
 * held together. Empty slabs go to the provider when all are dropped.
 *
 * What the fast path pays. As in the original on NUMA a free looks at the slab's descriptor: here
 * for the cache, since the node is arithmetic, so that a foreign address never gets a link written
 * into it. A list knows its size, so pop and push unpack and pack a header (region.h), and follow
 * or write a link in the object. In all 29 and 40 instructions (gcc 12, -O2), where the rings of
 * `unified` take 22 and 24: 11 of the free are the look at the descriptor. Counting costs none but
 * a slow path each 511 pops.
 *
 * Gaps of the reference, and how they were filled. A flush of nothing, a claim of nothing and a
 * rlist of nothing count nothing. flush_free_list_remote counts objects, flush_rfree_list each
 * sending home, whichever way it takes. remote_free_check is set when the count goes from below a
 * freebatch to one or more. A new slab's rest goes to the head of the partial list, as slabs do
 * that get an object back. Colours are the multiples of max(line, alignment) that are less than a
 * slab's left-over; a slab takes that of the CPU that asks for it, whichever list it goes to. A
 * trim is due one second after the cache was made, then every three, and looks at the node's list
 * before the CPU's. The full drain of memory hot-remove is what flush_cpu does, so that nothing is
 * left in stock: what belongs to other lists goes straight to their slabs. shrink is the
 * original's, one trim of every list of the node; but whoever shrinks a cache here flushes its CPUs
 * first, and it finds nothing to trim. hiwater may be set below the freebatch, as sysfs lets it; a
 * flush then takes what there is.
 *
 * Departures. hiwater is at most 2^17. When the page provider fails, any list of a node the caller
 * allows is asked for one object of a partial slab. Debug caches have the same stocks, worked by
 * slow paths alone.
 */
#include "policy/slqb.h"

/* Instructions of the compiled functions on their usual way through, with what is inlined there but
 * without counters and calls of other files, which declare their own. Callgrind has counted them
 * (self cost a call, gcc 12, -O2) while caches were filled, emptied and churned on one node and
 * from another; what it met rarely is estimated from the code. So in all files of the policy. */
enum {
    RUNS_ALLOC_SLOW = 98,
    RUNS_COUNTED = 31,
    RUNS_POP_OR_CLAIM = 32,
    RUNS_OWN_LIST = 40,
    RUNS_NODE_LIST = 40,
    RUNS_ANY_LIST = 10, /* a CPU that is asked */
    RUNS_FREE_SLOW = 77,
    RUNS_FREE_REMOTE = 35,
    RUNS_FREE_LOCAL = 44,
    RUNS_FREE_STRAIGHT = 30,
    RUNS_ALLOC_NODE = 20,
    RUNS_ALLOC_EACH = 10, /* of a bulk, beside the path itself */
    RUNS_FREE_EACH = 26,
};

/* ---- regions ------------------------------------------------------------------------- */

/* Gives a CPU its lists, if there is memory. */
static struct us_slqb_cpu *populate(struct us_cache *c, struct us_flight *f, unsigned cpu)
{
    const unsigned node = us_node_of_cpu(c->machine, cpu);
    const struct us_range *r = &c->slabs->range;
    struct us_slqb_cpu *x;

    if (f->nested)
        return NULL;
    x = us_meta_alloc(c->slabs->memory, sizeof(*x));
    if (!x)
        return NULL;
    x->cpu = cpu;
    us_slqb_list_init(c, &x->list, node, (int)cpu);
    us_words_init(&x->region, us_node_base(r, node), us_node_length(r));
    us_slqb_disown_closed(&x->region, US_SLQB_FREELIST);
    us_slqb_disown_closed(&x->region, US_SLQB_RLIST);
    if (us_local_populate(&c->local, f, cpu, x))
        return x;
    us_meta_free(c->slabs->memory, x, sizeof(*x));
    return us_slqb_cpu_of(c, cpu);
}

/* The CPU's lists; NULL: there is no memory for them, or this is a signal handler. */
static struct us_slqb_cpu *lists_of(struct us_cache *c, struct us_flight *f, unsigned cpu)
{
    struct us_slqb_cpu *x = us_slqb_cpu_of(c, cpu);

    return US_LIKELY(x != NULL) ? x : populate(c, f, cpu);
}

void us_slqb_check_deferred(struct us_cache *c, struct us_flight *f, unsigned node)
{
    us_deferred_check(c, f, node, us_slqb_put_one);
}

/* A free of the kind, which is counted before what it is taken from, so that no reading goes back.
 */
static void count_free(struct us_cache *c, unsigned cpu, enum us_slqb_counter kind)
{
    us_count(c, cpu, kind);
    us_count(c, cpu, US_SLQB_FREE);
}

/* ---- allocation, slow path ----------------------------------------------------------- */

/* What one slow allocation asks for. */
struct ask {
    struct us_cache *c;
    struct us_flight *f;
    unsigned flags;
    unsigned cpu; /* where it counts */
};

enum source { FROM_LIST, FROM_CLAIM, FROM_SLAB };

static void *counted(const struct ask *a, void *object, enum source source)
{
    struct us_cache *c = a->c;
    bool off_node;

    if (!object)
        return NULL;
    us_runs(RUNS_COUNTED);
    off_node = us_node_of(&c->slabs->range, object) != us_node_of_cpu(c->machine, a->cpu);
    if (off_node)
        us_count(c, a->cpu, source == FROM_SLAB ? US_SLQB_FILL_OFF_NODE : US_SLQB_ALLOC_OFF_NODE);
    else if (source == FROM_CLAIM)
        us_count(c, a->cpu, US_SLQB_ALLOC_CLAIMED);
    if (source == FROM_SLAB)
        us_count(c, a->cpu, US_SLQB_ALLOC_SLAB_FILL);
    us_count(c, a->cpu, US_SLQB_ALLOC);
    return object;
}

/* Steps 2 and 3 on a list that is the caller's: pop, or claim and pop. */
static void *pop_or_claim(const struct ask *a, struct us_slqb_work *w, struct us_slqb_list *l)
{
    enum source source = FROM_LIST;

    us_runs(RUNS_POP_OR_CLAIM);
    if (us_slqb_size(l) == 0) {
        us_reads(&l->remote_free_check, sizeof(l->remote_free_check));
        if (!atomic_load_explicit(&l->remote_free_check, memory_order_relaxed))
            return NULL;
        us_slqb_claim(w, l);
        if (us_slqb_size(l) > us_slqb_of(a->c)->hiwater)
            us_slqb_flush(w, l, us_slqb_of(a->c)->freebatch);
        source = FROM_CLAIM;
    }
    return counted(a, us_slqb_pop(a->c, l), source);
}

static bool may_serve(const struct us_slqb_list *l)
{
    if (us_slqb_size(l))
        return true;
    us_reads(&l->remote_free_check, sizeof(l->remote_free_check));
    return atomic_load_explicit(&((struct us_slqb_list *)l)->remote_free_check,
                                memory_order_relaxed);
}

/* The CPU's free list, which a fast path was interrupted on, or which has something to claim. */
static void *from_own_list(const struct ask *a, const struct us_slqb_cpu *own)
{
    struct us_slqb_work w = {.c = a->c, .f = a->f, .cpu = a->cpu};
    struct us_slqb_cpu *x;
    unsigned cpu;
    void *object;

    if (a->f->nested)
        return us_local_counted_pop(&a->c->local, a->f, US_SLQB_FREELIST, &object, &cpu) ? object
                                                                                         : NULL;
    if (!may_serve(&own->list))
        return NULL;
    us_runs(RUNS_OWN_LIST);
    x = us_slqb_own(a->c, a->f, US_SLQB_FREELIST);
    if (!x)
        return NULL;
    object = pop_or_claim(a, &w, &x->list);
    us_slqb_disown(a->c, a->f, US_SLQB_FREELIST, x);
    us_slqb_work_end(&w);
    return object;
}

static void *from_node_list(const struct ask *a, unsigned node)
{
    struct us_slqb_node *n = &us_slqb_of(a->c)->node[node];
    struct us_slqb_work w = {.c = a->c, .f = a->f, .cpu = a->cpu};
    enum us_phase before;
    void *object;

    us_runs(RUNS_NODE_LIST);
    if (!may_serve(&n->list) || a->f->nested || !us_lock_take(a->f, &n->list_lock))
        return NULL;
    before = us_phase_set(US_PHASE_SECOND);
    w.rlist = &w.spare;
    object = pop_or_claim(a, &w, &n->list);
    us_lock_drop(a->f, &n->list_lock);
    us_phase_set(before);
    us_slqb_work_end(&w);
    return object;
}

static void *from_partial(const struct ask *a, struct us_slqb_list *l)
{
    return counted(a, us_slqb_fill(a->c, a->f, l), FROM_SLAB);
}

static void *from_new(struct ask *a, unsigned node)
{
    void *object = us_slqb_fill_new(a->c, a->f, node, a->flags);

    a->cpu = us_cpu_now(a->c->machine);
    return counted(a, object, FROM_SLAB);
}

/* A node's list: what steps 2 to 4 find there. */
static void *from_node(const struct ask *a, unsigned node)
{
    void *object = from_node_list(a, node);

    return object ? object : from_partial(a, &us_slqb_of(a->c)->node[node].list);
}

/* Whatever is in partial slabs of a node's CPUs: its efforts to find a page may have brought it. */
static void *from_any_list(const struct ask *a, unsigned node)
{
    const struct us_machine *m = a->c->machine;
    void *object = from_node(a, node);
    unsigned cpu;

    for (cpu = 0; !object && cpu < m->ncpus; cpu++) {
        struct us_slqb_cpu *x = us_slqb_cpu_of(a->c, cpu);

        us_runs(RUNS_ANY_LIST);
        if (x && us_node_of_cpu(m, cpu) == node)
            object = from_partial(a, &x->list);
    }
    return object;
}

/* The page provider has failed: other nodes by distance. */
static void *after_failure(const struct ask *a, unsigned node)
{
    const unsigned nnodes = a->c->machine->nnodes;
    void *object = from_any_list(a, node);
    unsigned d, side;

    for (d = 1; !object && !(a->flags & US_THISNODE) && d < nnodes; d++)
        for (side = 0; !object && side < 2; side++) {
            const unsigned n = side ? node - d : node + d; /* wraps below 0 */

            if (n < nnodes)
                object = from_any_list(a, n);
        }
    return object;
}

static void *alloc_local(struct ask *a, unsigned node)
{
    struct us_slqb_cpu *x = lists_of(a->c, a->f, a->cpu);
    void *object = x ? from_own_list(a, x) : NULL;

    if (!object)
        object = x ? from_partial(a, &x->list) : from_node(a, node);
    if (!object)
        object = from_new(a, node);
    return object ? object : after_failure(a, node);
}

static void *alloc_remote(struct ask *a, unsigned node)
{
    void *object = from_node(a, node);

    if (!object)
        object = from_new(a, node);
    return object ? object : after_failure(a, node);
}

/* Straight to the slab, or, where a signal handler cannot lock it, left to the next slow path. */
static void free_straight(struct us_cache *c, struct us_flight *f, unsigned cpu, void *object)
{
    us_runs(RUNS_FREE_STRAIGHT);
    count_free(c, cpu, US_SLQB_FREE_STRAIGHT);
    if (!us_slqb_put_one(c, f, cpu, object))
        us_defer_free(c, object);
}

/* The thread moved to another node before it took the object: that goes back. */
static US_COLD void *of_this_node(struct ask *a, unsigned node, void *object)
{
    free_straight(a->c, a->f, a->cpu, object);
    return alloc_remote(a, node);
}

static US_NOINLINE void *alloc_slow(struct us_cache *c, unsigned flags, int node)
{
    struct us_flight f;
    struct ask a = {.c = c, .f = &f, .flags = flags};
    unsigned local, wanted;
    void *object;

    if (US_UNLIKELY(!us_flight_try(c->machine, &f)))
        return NULL;
    us_runs(RUNS_ALLOC_SLOW);
    a.cpu = us_cpu_now(c->machine);
    local = us_node_of_cpu(c->machine, a.cpu);
    wanted = node < 0 ? local : (unsigned)node;
    us_slqb_check_deferred(c, &f, wanted);
    object = wanted == local ? alloc_local(&a, wanted) : alloc_remote(&a, wanted);
    if (US_UNLIKELY(object && (flags & US_THISNODE) &&
                    us_node_of(&c->slabs->range, object) != wanted))
        object = of_this_node(&a, wanted, object);
    us_flight_leave(&f);
    return object;
}

/* ---- free, slow path ----------------------------------------------------------------- */

/* Leaves the object to the next slow path. */
static void defer(struct us_cache *c, void *object)
{
    const unsigned cpu = us_cpu_now(c->machine);

    count_free(c, cpu, US_SLQB_FREE_STRAIGHT);
    us_defer_free(c, object);
}

static void free_remote(struct us_cache *c, struct us_flight *f, unsigned cpu, void *object)
{
    struct us_slqb_work w = {.c = c, .f = f, .cpu = cpu};
    struct us_slqb_list *home = us_slqb_owner(us_cache_slab(c, object));

    us_runs(RUNS_FREE_REMOTE);
    count_free(c, cpu, US_SLQB_FREE_REMOTE);
    us_slqb_to_rlist(&w, home, object);
    us_slqb_work_end(&w);
}

/* On the CPU's free list; beyond the watermark one batch is flushed. */
static void free_local(struct us_cache *c, struct us_flight *f, unsigned cpu, void *object)
{
    const struct us_slqb *st = us_slqb_of(c);
    struct us_slqb_work w = {.c = c, .f = f, .cpu = cpu};
    struct us_slqb_cpu *x = us_slqb_own(c, f, US_SLQB_FREELIST);

    us_runs(RUNS_FREE_LOCAL);
    if (!x) { /* the list is in other hands */
        free_straight(c, f, cpu, object);
        return;
    }
    if (x->list.node != us_node_of(&c->slabs->range, object)) { /* moved to another node just now */
        us_slqb_disown(c, f, US_SLQB_FREELIST, x);
        free_remote(c, f, x->cpu, object);
        return;
    }
    us_count(c, cpu, US_SLQB_FREE);
    us_slqb_push(c, &x->list, object);
    if (us_slqb_size(&x->list) > st->hiwater)
        us_slqb_flush(&w, &x->list, st->freebatch);
    us_slqb_disown(c, f, US_SLQB_FREELIST, x);
    us_slqb_work_end(&w);
}

static void free_one(struct us_cache *c, struct us_flight *f, void *object)
{
    const unsigned node = us_node_of(&c->slabs->range, object);
    unsigned cpu = us_cpu_now(c->machine);

    if (f->nested) { /* the lists may be in the hands of what was interrupted */
        if (us_local_counted_push(&c->local, f, US_SLQB_FREELIST, object, &cpu) != US_LOCAL_OK)
            defer(c, object);
        return;
    }
    us_slqb_check_deferred(c, f, node);
    lists_of(c, f, cpu);
    if (us_node_of_cpu(c->machine, cpu) != node)
        free_remote(c, f, cpu, object);
    else
        free_local(c, f, cpu, object);
}

static US_NOINLINE void free_slow(struct us_cache *c, void *object)
{
    struct us_flight f;

    if (!object || !us_slab_knows(c, us_cache_slab(c, object), object))
        return;
    if (US_UNLIKELY(!us_flight_try(c->machine, &f))) {
        defer(c, object);
        return;
    }
    us_runs(RUNS_FREE_SLOW);
    free_one(c, &f, object);
    us_flight_leave(&f);
}

/* ---- entries ------------------------------------------------------------------------- */

/* Instructions of the compiled paths in sequences (bench/instructions.json). */
enum { ALLOC_RUNS = 30, FREE_RUNS = 40 };

US_INLINE void *slqb_alloc_path(struct us_cache *c, enum us_mode mode)
{
    void *object;

    us_runs(ALLOC_RUNS);
    if (US_LIKELY(us_fast_counted_pop(&c->local, mode, US_SLQB_FREELIST, c->local.link, &object)))
        return object;
    return alloc_slow(c, 0, US_ANY_NODE);
}

US_INLINE void slqb_free_path(struct us_cache *c, void *object, enum us_mode mode)
{
    const struct us_slab *s = us_cache_slab(c, object);

    us_runs(FREE_RUNS);
    if (s)
        us_reads(s, sizeof(*s));
    if (US_LIKELY(s && s->cache == c) &&
        US_LIKELY(us_fast_counted_push(&c->local, mode, US_SLQB_FREELIST, c->local.link, object)))
        return;
    free_slow(c, object);
}

US_LOCAL_ENTRIES(slqb)

static void *slqb_alloc_node(struct us_cache *c, unsigned flags, int node)
{
    unsigned cpu;
    void *object;

    us_runs(RUNS_ALLOC_NODE);
    if ((node < 0 || (unsigned)node == us_node_of_cpu(c->machine, us_cpu_now(c->machine))) &&
        us_local_counted_pop(&c->local, NULL, US_SLQB_FREELIST, &object, &cpu) == US_LOCAL_OK) {
        if (node < 0 || us_node_of(&c->slabs->range, object) == (unsigned)node)
            return object;
        slqb_entries[c->local.mode].free(c,
                                         object); /* the thread moved to another node meanwhile */
    }
    return alloc_slow(c, flags, node);
}

static size_t slqb_alloc_bulk(struct us_cache *c, unsigned flags, int node, size_t n, void **out)
{
    void *(*const plain)(struct us_cache *) = slqb_entries[c->local.mode].alloc;
    const bool simple = node < 0 && flags == 0;
    size_t got = 0;

    while (got < n && (out[got] = simple ? plain(c) : slqb_alloc_node(c, flags, node)) != NULL)
        got++;
    us_runs(RUNS_ALLOC_EACH * got);
    return got;
}

/* Nobody has looked at these addresses: a link is only written where an object begins. */
static void slqb_free_bulk(struct us_cache *c, size_t n, void *const *object)
{
    void (*const plain)(struct us_cache *, void *) = slqb_entries[c->local.mode].free;
    size_t i;

    us_runs(RUNS_FREE_EACH * n);
    for (i = 0; i < n; i++) {
        const struct us_slab *s = us_cache_slab(c, object[i]);

        if (US_LIKELY(s && s->cache == c && us_slab_is_object(c, s, object[i])))
            plain(c, object[i]);
        else
            free_slow(c, object[i]);
    }
}

/* ---- life ---------------------------------------------------------------------------- */

static enum us_status slqb_create(struct us_cache *c, struct us_error *e)
{
    struct us_memory *mem = c->slabs->memory;
    const unsigned nnodes = c->machine->nnodes;
    struct us_slqb *st;
    unsigned n;

    if (us_node_length(&c->slabs->range) > US_COUNTED_NODE_MAX)
        return us_fail(e, US_EINVAL,
                       "policy slqb serves nodes of at most %llu bytes of addresses, not %llu; "
                       "give the allocator a smaller address range",
                       US_COUNTED_NODE_MAX, (unsigned long long)us_node_length(&c->slabs->range));
    st = us_meta_alloc(mem, sizeof(*st));
    if (st)
        st->node = us_meta_alloc(mem, nnodes * sizeof(*st->node));
    if (!st || !st->node) {
        if (st)
            us_meta_free(mem, st, sizeof(*st));
        return us_fail(e, US_ENOMEM, "no memory for the node lists of cache '%s'", c->name);
    }
    c->state = st;
    c->local.counted = true;
    st->hiwater = (uint32_t)c->tunable[US_SLQB_T_HIWATER];
    st->freebatch = (uint32_t)c->tunable[US_SLQB_T_FREEBATCH];
    for (n = 0; n < nnodes; n++) {
        us_lock_init(&st->node[n].list_lock, US_LOCK_ALIEN);
        us_slqb_list_init(c, &st->node[n].list, n, -1);
    }
    return US_OK;
}

static void retire(void *context, const struct us_lock *lock)
{
    us_lock_retire(context, (struct us_lock *)(uintptr_t)lock);
}

static void slqb_destroy(struct us_cache *c)
{
    struct us_memory *mem = c->slabs->memory;
    const unsigned nnodes = c->machine->nnodes;
    struct us_slqb *st = us_slqb_of(c);
    unsigned cpu;

    us_slqb_locks(c, retire, c->machine);
    for (cpu = 0; cpu < c->machine->ncpus; cpu++) {
        if (us_slqb_cpu_of(c, cpu))
            us_meta_free(mem, us_slqb_cpu_of(c, cpu), sizeof(struct us_slqb_cpu));
        c->local.region[cpu] = NULL;
    }
    us_meta_free(mem, st->node, nnodes * sizeof(*st->node));
    us_meta_free(mem, st, sizeof(*st));
    c->state = NULL;
}

const struct us_policy us_policy_slqb = {
    .name = "slqb",
    .title = "SLQB (Nick Piggin): per-CPU free lists, remote frees sent home in batches",
    .tunables = us_slqb_tunables,
    .ntunables = US_SLQB_NTUNABLES,
    .counters = us_slqb_counters,
    .ncounters = US_SLQB_NCOUNTERS,
    .region = US_REGION_WORDS,
    .debug_has_stock = true,
    .geometry = us_slqb_geometry,
    .general_sizes = us_slqb_general_sizes,
    .create = slqb_create,
    .destroy = slqb_destroy,
    .entries = slqb_entries,
    .alloc_node = slqb_alloc_node,
    .alloc_bulk = slqb_alloc_bulk,
    .free_bulk = slqb_free_bulk,
    .tick_closes = us_slqb_tick_closes,
    .tick = us_slqb_tick,
    .tick_period = us_slqb_tick_period,
    .flush_cpu = us_slqb_flush_cpu,
    .shrink = us_slqb_shrink,
    .locks = us_slqb_locks,
    .visit = us_slqb_visit,
};
