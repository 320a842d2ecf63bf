/* slab.c - the policy `slab`: SLAB as in Linux 2.6.36.
 *
 * Levels. An allocation is served by the first of: the CPU's array (a ring, no lock); the array
 * shared by the CPUs of a node; the node's partial slabs, then its entirely free ones; a new slab.
 * Another node's object comes straight from that node's slabs, one at a time. A free goes to the
 * CPU's array when the object belongs to the CPU's node, whichever CPU allocated it; an overflow
 * moves the oldest batch to the shared array, or to slabs when that is full. Another node's object
 * goes to the alien array that the CPU's node keeps for that node, 12 objects, and from there, all
 * at once, to that node's shared array and slabs.
 *
 * State of a slab. Free objects are linked by number in an index (slab/index.c), last freed first;
 * they are never touched. Each slab is on one of its node's lists partial, full or free
 * (slab_lists.c). Entirely free slabs stay until the node has more free objects than free_limit,
 * until the periodic reap (slab_reap.c) or until shrink. Successive slabs of a node begin at
 * different offsets (colours), chosen when memory is asked for.
 *
 * Locks, outermost first: control (a CPU's array, only to age or flush it) - alien - node - pages.
 * The node lock is the original's list_lock: lists, counts, colour and the shared array, which has
 * no lock of its own in use. Pages and index arrays are taken and given back with no lock held;
 * the original destroys slabs under its list_lock.
 *
 * Ageing. An array is touched when something was popped since the last reap; a refill counts, a
 * free does not. An untouched CPU array is refilled with 16 objects at most.
 *
 * What the fast paths pay. The original has interrupts off, writes `touched` on each allocation,
 * and in debug builds an atomic counter each way. Here the restartable sequence takes the place of
 * the first, and the header's count of pops tells both of the others: nothing more is written than
 * the pointer and the header, which are what the original writes too (entry and avail). The load
 * of the original's avail and limit are the header and the capacity of the region's line.
 *
 * Races. As in unified.c: the slow path may find itself on another CPU at any step, so a refill
 * takes the caller's object out first and then adds the rest to the array it finds, if that is of
 * the objects' node; what does not fit goes to the shared array, then to slabs. A region closed by
 * somebody else is never waited for: one object comes from, or goes to, the next level.
 *
 * Gaps of the description and departures.
 * - Which end of an alien array goes to the target's shared array when not all fits is not told:
 *   the hottest do, as wherever objects move between arrays to be used again.
 * - The rotor of alien reaping passes over the CPU's own node, which has no array.
 * - A node's own memory is tried without reclaim when there are other nodes; only the last resort,
 *   pages of any node, flushes and shrinks before it fails. Its slab has the colour that was next
 *   on the node that asked.
 * - The colour of a request that then fails is used up.
 * - "Distance order" of nodes is that of the page provider: nearest number first.
 * - Whether a size is at least an eighth of a page is asked of the stride.
 * - General caches end at the largest block of pages, 4 MiB here, not 32 MiB.
 * - CPU, shared and alien arrays take a power of two of pointers (slab_arrays.c).
 * - Debug F stands for the original's debug builds: its arrays hold 32 objects unless told.
 * - The original's reap skips a round when the list of caches is busy; ticks here never meet that.
 */
#include "policy/slab.h"

/* Instructions of the compiled functions on their usual way through, with what is inlined there but
 * without counters and calls of other files, which declare their own. Callgrind has counted them
 * (self cost a call, gcc 12, -O2) while caches were filled, emptied and churned on one node and
 * from another; what it met rarely is estimated from the code. So in all files of the policy. */
enum {
    RUNS_ALLOC_NEAR = 128, /* the refill among it */
    RUNS_GROW_ROUND = 25,
    RUNS_ALLOC_ON = 40,
    RUNS_FALL_BACK = 20, /* a node that is asked */
    RUNS_FREE_ALIEN = 62,
    RUNS_OVERFLOW = 101,
    RUNS_COUNT_MISS = 12,
};
#include "queue/slow.h"

static bool put_late(struct us_cache *c, struct us_flight *f, unsigned cpu, void *object)
{
    us_slabp_drain(c, f, cpu, &object, 1);
    return true;
}

void us_slabp_check_deferred(struct us_cache *c, struct us_flight *f, unsigned node)
{
    us_deferred_check(c, f, node, put_late);
}

/* ---- allocation -------------------------------------------------------------------------------
 */

/* Adds what a refill brought beside the caller's object: to the CPU's array, else to the shared
 * one, else back to slabs. Marks the array touched even when nothing was left to add. */
static void install(struct us_cache *c, struct us_flight *f, void **object, unsigned n,
                    unsigned node)
{
    const uint64_t base = us_node_base(&c->slabs->range, node);
    unsigned cpu;

    if (n == 0) {
        us_local_touch(&c->local, f, base);
        return;
    }
    us_stat_add(c, us_cpu_now(c->machine), US_OBJECTS_MOVED, n);
    n -= us_local_add(&c->local, f, object, n, base, US_SEEN_TOUCH, &cpu);
    if (US_UNLIKELY(n))
        us_slabp_flush(c, f, cpu, node, object, n);
}

/* A signal handler takes no more than it needs: it may find nowhere to put the rest. */
static uint32_t refill_size(const struct us_cache *c, const struct us_flight *f, unsigned cpu)
{
    const struct us_slabp *st = us_slabp_of(c);
    const struct us_ring *ring = us_local_ring(&c->local, cpu);

    if (f->nested || !ring || !us_local_is_open(&c->local, cpu))
        return 1;
    if (st->batchcount > US_SLABP_BOUNCE && !us_slabp_touched(ring))
        return US_SLABP_BOUNCE;
    return st->batchcount;
}

/* A node's own memory, before another node's is thought of. */
static unsigned this_node(const struct us_cache *c, unsigned flags)
{
    if ((flags & US_THISNODE) || c->machine->nnodes == 1)
        return flags | US_THISNODE;
    return flags | US_THISNODE | US_NOWAIT;
}

static void *refill(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned flags,
                    uint32_t want, bool *refused)
{
    const unsigned node = us_node_of_cpu(c->machine, cpu);
    void *buffer[want];
    unsigned n, where;
    bool shared;

    for (;;) {
        us_runs(RUNS_GROW_ROUND);
        n = us_slabp_refill(c, f, cpu, node, buffer, want, &shared, refused);
        if (n || *refused || !us_slabp_grow(c, f, cpu, node, this_node(c, flags), &where))
            break;
    }
    if (n == 0)
        return NULL;
    if (shared)
        us_count(c, cpu, US_SLABP_MISS_SHARED);
    us_count(c, cpu, US_SLABP_ALLOCMISS);
    install(c, f, buffer, n - 1, node);
    return buffer[n - 1];
}

/* The node has none and gets none: any node's free objects, nearest first, then any node's pages.
 */
static US_COLD void *fall_back(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                               unsigned flags, bool *refused)
{
    const unsigned nnodes = c->machine->nnodes;
    bool last = false;
    void *object;
    unsigned i;

    /* The page provider's efforts bring objects to slabs even where no page comes of them: one more
     * look. */
    for (;;) {
        for (i = 0; i < nnodes && !*refused; i++) {
            const unsigned near = us_node_near(node, i, nnodes);

            us_runs(RUNS_FALL_BACK);
            object =
                us_slabp_has_free(c, near) ? us_slabp_take_one(c, f, cpu, near, refused) : NULL;
            if (object)
                return object;
        }
        if (*refused || last)
            return NULL;
        last = !us_slabp_grow(c, f, cpu, node, flags, &node);
    }
}

/* One object of a node, past all arrays; without THISNODE of another one at need. */
static void *alloc_on_node(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                           unsigned flags)
{
    bool refused = false, last = false;
    unsigned where;
    void *object;

    us_runs(RUNS_ALLOC_ON);
    for (;;) {
        object = us_slabp_take_one(c, f, cpu, node, &refused);
        if (object || refused)
            return object;
        if (last)
            break;
        last = !us_slabp_grow(c, f, cpu, node, this_node(c, flags), &where);
    }
    if (flags & US_THISNODE)
        return NULL;
    return fall_back(c, f, cpu, node, flags, &refused);
}

static void *alloc_near(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned flags)
{
    bool refused = false;
    void *object;

    us_runs(RUNS_ALLOC_NEAR);
    us_reads(us_slabp_of(c), sizeof(struct us_slabp));
    object = refill(c, f, cpu, flags, refill_size(c, f, cpu), &refused);

    if (object)
        return object;
    us_count(c, cpu, US_SLABP_MISS_LEFT);
    us_count(c, cpu, US_SLABP_ALLOCMISS);
    if (refused)
        return NULL;
    return alloc_on_node(c, f, cpu, us_node_of_cpu(c->machine, cpu), flags);
}

/* No array holds another node's objects for allocations. */
static void *alloc_far(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                       unsigned flags, bool strict)
{
    (void)strict;
    return alloc_on_node(c, f, cpu, node, flags);
}

/* ---- free ---------------------------------------------------------------------------------------
 */

/* Another node's object. False = locks that a signal handler could not have. */
static bool free_alien(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                       void *object)
{
    const enum us_phase before = us_phase_set(US_PHASE_SECOND);
    struct us_queue *a = us_slabp_alien(c, us_node_of_cpu(c->machine, cpu), node);
    struct us_slab *chain = NULL;
    unsigned to_slabs = 0;
    bool full;

    us_runs(RUNS_FREE_ALIEN);
    us_count(c, cpu, US_SLABP_REMOTEFREES);
    if (!a) {
        us_slabp_drain(c, f, cpu, &object, 1);
        us_phase_set(before);
        return true;
    }
    us_reads(a, sizeof(*a));
    if (!us_lock_take(f, us_queue_lock(a)))
        __builtin_trap(); /* nested flights do not come here */
    full = us_queue_size(a) >= a->capacity;
    if (full)
        us_slabp_drain_alien(c, f, cpu, a, &chain, &to_slabs);
    us_ring_add_c(a->ring, &object, 1, US_SEEN_KEEP);
    us_lock_drop(f, us_queue_lock(a));
    if (full)
        us_count(c, cpu, US_SLABP_ALIENOVERFLOW);
    us_phase_set(before);
    us_slabp_destroy_chain(c, f, cpu, chain);
    return true;
}

/* A free that the CPU's array could not take: counted by where the flushed objects went. */
static void count_miss(struct us_cache *c, unsigned cpu, bool shared)
{
    us_runs(RUNS_COUNT_MISS);
    if (shared)
        us_count(c, cpu, US_SLABP_FLUSH_SHARED);
    us_count(c, cpu, US_SLABP_FREEMISS);
}

/* The CPU's array is full: its oldest batch, or as many as the shared array has room for, leave. */
static void overflow(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                     void *object)
{
    const uint32_t batch = us_slabp_of(c)->batchcount;
    const uint32_t room = us_slabp_room(us_slabp_node_of(c, node)->shared);
    const uint64_t base = us_node_base(&c->slabs->range, node);
    void *buffer[batch];
    unsigned n, shared = 0;

    us_runs(RUNS_OVERFLOW);
    us_reads(us_slabp_of(c), sizeof(struct us_slabp));
    us_reads(&us_slabp_node_of(c, node)->shared, sizeof(struct us_queue *));
    n = us_local_take_oldest(&c->local, f, buffer, room && room < batch ? room : batch,
                             US_SEEN_KEEP, &cpu);
    us_stat_add(c, cpu, US_OBJECTS_MOVED, n);
    if (n && us_node_of_cpu(c->machine, cpu) == node)
        shared = us_slabp_flush(c, f, cpu, node, buffer, n);
    else if (n) /* moved to another node meanwhile */
        us_slabp_drain(c, f, cpu, buffer, n);
    if (!us_local_add(&c->local, f, &object, 1, base, US_SEEN_KEEP, &cpu))
        shared = us_slabp_flush(c, f, cpu, node, &object, 1);
    count_miss(c, cpu, shared != 0);
}

/* One object for the next level, the CPU's region being closed. */
static void free_past(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                      void *object)
{
    count_miss(c, cpu, us_slabp_flush(c, f, cpu, node, &object, 1) != 0);
}

static const struct us_ring_levels levels = {
    .plan = us_slabp_ring_plan,
    .put_late = put_late,
    .deferred_row = US_SLABP_FREEMISS,
    .alloc = alloc_near,
    .alloc_far = alloc_far,
    .overflow = overflow,
    .free_past = free_past,
    .free_far = free_alien,
};

/* ---- entries
 * ---------------------------------------------------------------------------------------- */

US_RING_ENTRIES(slab, levels)

static void *slab_alloc_node(struct us_cache *c, unsigned flags, int node)
{
    return us_ring_alloc_node(c, &levels, false, flags, node);
}

static const struct us_cpu_past past_ring = {.alloc = slab_alloc_node, .free = slab_free_slow};

static size_t slab_alloc_bulk(struct us_cache *c, unsigned flags, int node, size_t n, void **out)
{
    return us_cpu_alloc_bulk(c, &past_ring, flags, node, n, out);
}

static void slab_free_bulk(struct us_cache *c, size_t n, void *const *object)
{
    us_cpu_free_bulk(c, &past_ring, false, n, object);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void free_state(struct us_cache *c)
{
    const struct us_machine *m = c->machine;
    struct us_memory *mem = c->slabs->memory;
    struct us_slabp *st = us_slabp_of(c);
    unsigned n;

    for (n = 0; st->node && n < m->nnodes; n++) {
        us_slabp_drop_node(c, n);
        us_lock_retire(c->machine, &st->node[n].lock);
    }
    us_meta_free(mem, st->node, m->nnodes * sizeof(*st->node));
    us_meta_free(mem, st->rotor, m->ncpus * sizeof(*st->rotor));
    us_meta_free(mem, st, sizeof(*st));
    c->state = NULL;
}

static bool make_nodes(struct us_cache *c)
{
    for (unsigned n = 0; n < c->machine->nnodes; n++)
        if (!us_slabp_make_node(c, n))
            return false;
    return true;
}

static enum us_status slab_create(struct us_cache *c, struct us_error *e)
{
    const struct us_machine *m = c->machine;
    struct us_memory *mem = c->slabs->memory;
    struct us_slabp *st = us_meta_alloc(mem, sizeof(*st));
    enum us_status status = US_ENOMEM;
    unsigned n;

    if (!st)
        return us_fail(e, US_ENOMEM, "no memory for the arrays of cache '%s'", c->name);
    c->state = st;
    st->node = us_meta_alloc(mem, m->nnodes * sizeof(*st->node));
    st->rotor = us_meta_alloc(mem, m->ncpus * sizeof(*st->rotor));
    for (n = 0; st->node && n < m->nnodes; n++)
        us_lock_init(&st->node[n].lock, US_LOCK_NODE);
    us_fail(e, US_ENOMEM, "no memory for the arrays of cache '%s'", c->name);
    if (st->node && st->rotor)
        status = us_slabp_plan(c, st, e);
    if (status == US_OK && !make_nodes(c))
        status = US_ENOMEM;
    if (status != US_OK)
        free_state(c);
    return status;
}

static void slab_destroy(struct us_cache *c)
{
    us_cpu_rings_drop(c);
    free_state(c);
}

/* ---- looking inside -------------------------------------------------------------------------- */

static void slab_visit(struct us_cache *c, const struct us_visitor *v)
{
    const unsigned nnodes = c->machine->nnodes;
    unsigned n, of;

    us_visit_cpu_rings(c, v, "cpu", us_slabp_touched);
    for (n = 0; n < nnodes; n++) {
        const struct us_slabp_node *node = us_slabp_node_of(c, n);

        if (node->shared)
            us_visit_queue(v, US_STOCK_SHARED, "shared", node->shared, us_slabp_touched);
        for (of = 0; of < nnodes; of++)
            if (us_slabp_alien(c, n, of))
                us_visit_queue(v, US_STOCK_ALIEN, "alien", us_slabp_alien(c, n, of),
                               us_slabp_touched);
        us_visit_list(v, &node->partial, n, "partial");
        us_visit_list(v, &node->full, n, "full");
        us_visit_list(v, &node->free, n, "free");
    }
}

static void slab_locks(struct us_cache *c, us_lock_fn *each, void *context)
{
    const unsigned nnodes = c->machine->nnodes;
    unsigned n, of;

    for (n = 0; n < nnodes; n++) {
        each(context, &us_slabp_node_of(c, n)->lock);
        for (of = 0; of < nnodes; of++)
            if (us_slabp_alien(c, n, of))
                each(context, us_queue_lock(us_slabp_alien(c, n, of)));
    }
}

const struct us_policy us_policy_slab = {
    .name = "slab",
    .title = "SLAB of Linux 2.6.36",
    .tunables = us_slabp_tunables,
    .ntunables = US_SLABP_NTUNABLES,
    .counters = us_slabp_counters,
    .ncounters = US_SLABP_NCOUNTERS,
    .region = US_REGION_RING,
    .debug_has_stock = true,
    .geometry = us_slabp_geometry,
    .general_sizes = us_slabp_general_sizes,
    .create = slab_create,
    .destroy = slab_destroy,
    .entries = slab_entries,
    .alloc_node = slab_alloc_node,
    .alloc_bulk = slab_alloc_bulk,
    .free_bulk = slab_free_bulk,
    .tick_closes = us_slabp_tick_closes,
    .tick = us_slabp_tick,
    .tick_period = us_slabp_tick_period,
    .flush_cpu = us_slabp_flush_cpu,
    .shrink = us_slabp_shrink,
    .cpu_online = us_slabp_cpu_online,
    .cpu_offline = us_slabp_cpu_offline,
    .locks = slab_locks,
    .visit = slab_visit,
};
