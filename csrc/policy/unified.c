/* unified.c - the Unified slab allocator (V4, 2010) as intended, and carried on.
 *
 * Levels. An allocation is served by the first of: the CPU's queue (a ring, no lock); the queue
 * shared by the CPUs of a cache domain; partial slabs of the node; a new slab. Another node's
 * object comes from the alien queue that the domain keeps for that node, else from that node's
 * slabs. A free goes to the CPU's queue when the object belongs to the CPU's node, whichever CPU
 * allocated it; an overflow moves the oldest batch to the shared queue, or to slabs when that is
 * full. Another node's object goes to its alien queue, and from there, a batch at a time, to its
 * slabs. In domains of more than eight CPUs the shared queue is cut into shards: a CPU goes to its
 * own first, and to the others when that has nothing or no room.
 *
 * State of a slab. A bitmap word out of band says which objects are free in the slab; an object in
 * use or in a queue has its bit clear. Free objects are never touched. A slab with a bit set is on
 * a partial list of its node, a slab with none is on no list, an entirely free one stays on the
 * list (at its tail) until the list is longer than min_partial.
 *
 * Locks, outermost first: control (a CPU's region, only to age or flush it) - alien - shared - node
 * - pages. The node lock guards all slabs of one node of one cache. No lock is held over the page
 * provider on the allocation path.
 *
 * Ageing. A queue is touched when its header differs from `seen`. Drains and overflowing pushes
 * commit `seen` with the header; a slow-path allocation counts as a pop and marks the ring touched.
 * An untouched CPU queue is refilled with 16 objects at most, and expiration takes only from
 * untouched queues, one batch a visit (unified_age.c).
 *
 * Races. Fast paths commit by one store inside a restartable sequence. The slow path may find
 * itself on another CPU at any step: a refill takes the caller's object out first and then adds the
 * rest to the ring it finds, if that is of the batch's node; what does not fit goes to the shared
 * queue, then to slabs. A region closed by somebody else is never waited for: one object comes
 * from, or goes to, the next level.
 *
 * V4 as posted and the queue-only form before it run the same code (unified_forms.c).
 *
 * Where this departs from V4 as posted: the fourteen defects are mended, a miss fetches one new
 * slab at most (eager_refill), drains are sorted by slab before the lock (sorted_drain), empty
 * slabs are given back after it is dropped and retained ones go to the tail (empty_to_tail), an
 * off-node slab that the provider fell back to gives the caller its object and nothing to the
 * queue, queues can be bounded in bytes (queue_budget), a timer can age what lies idle
 * (expire_period; off unless set, for what was aged is fetched again by who uses it after all),
 * and sizes left to the rules follow the traffic (unified_adapt.c).
 */
#include "policy/unified.h"
#include "queue/slow.h"

/* Frees of signal handlers that could not lock, counted then: they reach their slabs now. */
static bool put_late(struct us_cache *c, struct us_flight *f, unsigned cpu, void *object)
{
    us_unified_drain(c, f, cpu, &object, 1);
    return true;
}

void us_unified_check_deferred(struct us_cache *c, struct us_flight *f, unsigned node)
{
    us_deferred_check(c, f, node, put_late);
}

/* ---- allocation -------------------------------------------------------------------------------
 */

/* Adds what a refill brought beside the caller's object: to the CPU's ring, else to the shared
 * queue, else back to slabs. Marks the ring touched even when nothing was left to add. */
static void install(struct us_cache *c, struct us_flight *f, void **object, unsigned n,
                    unsigned node)
{
    const uint64_t base = us_ring_span(c, us_unified_form_of(c)->any_node, node).base;
    struct us_queue *q;
    unsigned cpu;

    us_unified_stir(c);
    if (n == 0) {
        us_local_touch(&c->local, f, base);
        return;
    }
    us_stat_add(c, us_cpu_now(c->machine), US_OBJECTS_MOVED, n);
    n -= us_local_add(&c->local, f, object, n, base, US_SEEN_TOUCH, &cpu);
    if (US_LIKELY(n == 0))
        return;
    q = us_unified_shared(c, cpu);
    if (q && q->node == node && us_lock_take(f, us_queue_lock(q))) {
        n -= us_ring_add_c(q->ring, object, n, US_SEEN_KEEP);
        us_lock_drop(f, us_queue_lock(q));
    }
    if (n)
        us_unified_drain(c, f, cpu, object, n);
}

/* A signal handler takes no more than it needs: it may find nowhere to put the rest. */
uint32_t us_unified_refill_size(const struct us_cache *c, const struct us_flight *f, unsigned cpu)
{
    const struct us_unified *st = us_unified_of(c);
    const struct us_ring *ring = us_local_ring(&c->local, cpu);

    us_runs(20);
    us_reads(&st->batch, sizeof(st->batch));
    if (f->nested || !ring || !us_local_is_open(&c->local, cpu))
        return 1;
    if (st->batch > US_UNIFIED_BOUNCE && !us_ring_touched(ring))
        return US_UNIFIED_BOUNCE;
    return st->batch < st->queue ? st->batch : st->queue;
}

/* The hottest of one shard; it counts as touched even if it has none. */
static unsigned take_top(struct us_flight *f, struct us_queue *q, void **out, uint32_t want,
                         bool *refused)
{
    const enum us_phase before = us_phase_set(US_PHASE_SECOND);
    unsigned n = 0;

    if (!us_lock_take(f, us_queue_lock(q))) {
        *refused = true;
    } else {
        n = us_ring_take_top_c(q->ring, out, want, US_SEEN_TOUCH);
        us_queue_touch(q);
        us_lock_drop(f, us_queue_lock(q));
    }
    us_phase_set(before);
    return n;
}

static void *from_shared(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                         void **buffer, uint32_t want, bool *refused)
{
    struct us_queue *own = us_unified_shared(c, cpu), *q;
    unsigned n;

    if (!own)
        return NULL;
    n = take_top(f, own, buffer, want, refused);
    for (q = own->next; US_UNLIKELY(q != own) && n == 0 && !*refused; q = q->next)
        if (us_queue_size(q))
            n = take_top(f, q, buffer, want, refused);
    if (n == 0)
        return NULL;
    us_count(c, cpu, US_UNIFIED_ALLOC_SHARED);
    install(c, f, buffer, n - 1, node);
    return buffer[n - 1];
}

/* The page provider has failed, but its efforts may have brought objects to partial lists: those of
 * the node, or one of another. */
static US_COLD unsigned after_failure(struct us_cache *c, struct us_flight *f, unsigned cpu,
                                      unsigned node, unsigned flags, void **out, uint32_t want,
                                      bool *refused)
{
    unsigned n = us_unified_from_partial(c, f, cpu, node, out, want, refused), other;

    for (other = 0; n == 0 && !(flags & US_THISNODE) && other < c->machine->nnodes; other++)
        if (other != node)
            n = us_unified_from_partial(c, f, cpu, other, out, 1, refused);
    return n;
}

/* Objects of new slabs: of one, or of as many as a batch needs. */
static unsigned from_new_slabs(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                               unsigned flags, void **out, uint32_t want)
{
    const bool eager = us_unified_setting(c, US_UNIFIED_T_EAGER_REFILL) != 0;
    const bool mixed = us_unified_form_of(c)->fallback_queued;
    unsigned where = node, n = 0, got;

    do {
        got = us_unified_from_new(c, f, cpu, node, flags, out + n, want - n, false, &where);
        n += got;
    } while (eager && got && n < want && (mixed || where == node));
    return n;
}

static void *from_slabs(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                        unsigned flags, void **buffer, uint32_t want, bool *refused)
{
    unsigned n = us_unified_from_partial(c, f, cpu, node, buffer, want, refused);

    if (*refused)
        return NULL;
    if (n == 0)
        n = from_new_slabs(c, f, cpu, node, flags, buffer, want);
    if (n == 0)
        n = after_failure(c, f, cpu, node, flags, buffer, want, refused);
    if (n == 0)
        return NULL;
    us_count(c, cpu, US_UNIFIED_ALLOC_SLOWPATH);
    install(c, f, buffer, n - 1, node);
    return buffer[n - 1];
}

/* The buffer is as large as the batch: a signal handler's stack may be small. */
static void *refill(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned flags,
                    uint32_t want)
{
    const unsigned node = us_node_of_cpu(c->machine, cpu);
    void *buffer[want], *object;
    bool refused = false;

    object = from_shared(c, f, cpu, node, buffer, want, &refused);
    if (object || refused)
        return object;
    return from_slabs(c, f, cpu, node, flags, buffer, want, &refused);
}

static void *alloc_near(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned flags)
{
    return refill(c, f, cpu, flags, us_unified_refill_size(c, f, cpu));
}

/* From the slabs of another node: the caller's object, and more for the alien queue. Without a
 * second level it comes from the head of the list, as any other. */
static void *refill_alien(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                          unsigned flags, unsigned want)
{
    const bool levels = us_unified_form_of(c)->second_level;
    struct us_queue *a;
    void *buffer[want], *object;
    bool refused = false;
    unsigned where = node, n;

    if (levels)
        n = us_unified_from_tail(c, f, cpu, node, buffer, want, &refused);
    else
        n = us_unified_from_partial(c, f, cpu, node, buffer, want, &refused);
    if (n == 0 && !refused)
        n = us_unified_from_new(c, f, cpu, node, flags, buffer, want, true, &where);
    if (n == 0 && !refused)
        n = after_failure(c, f, cpu, node, flags, buffer, want, &refused);
    if (n == 0)
        return NULL;
    a = us_unified_alien(c, cpu, node); /* a constructor may have resized the queues */
    if (levels)
        us_count(c, cpu, US_UNIFIED_ALLOC_ALIEN_SLOW);
    us_count(c, cpu, a ? US_UNIFIED_ALLOC_ALIEN : US_UNIFIED_ALLOC_DIRECT);
    object = buffer[--n];
    if (a && us_lock_take(f, us_queue_lock(a))) {
        unsigned added = us_ring_add_c(a->ring, buffer, n, US_SEEN_KEEP);

        us_queue_touch(a);
        us_lock_drop(f, us_queue_lock(a));
        us_stat_add(c, cpu, US_OBJECTS_MOVED, added);
        n -= added;
    }
    if (n)
        us_unified_drain(c, f, cpu, buffer, n);
    return object;
}

/* Another node's object. The alien queue is refilled from one slab. */
static void *alloc_alien(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                         unsigned flags)
{
    const struct us_unified *st = us_unified_of(c);
    struct us_queue *a = us_unified_alien(c, cpu, node);
    enum us_phase before;
    void *object = NULL;

    us_runs(30);
    if (!a)
        return refill_alien(c, f, cpu, node, flags, 1);
    before = us_phase_set(US_PHASE_SECOND);
    if (!us_lock_take(f, us_queue_lock(a))) {
        us_phase_set(before);
        return NULL;
    }
    if (us_ring_pop_c(a->ring, &object))
        us_queue_touch(a);
    us_lock_drop(f, us_queue_lock(a));
    us_phase_set(before);
    if (object) {
        us_count(c, cpu, US_UNIFIED_ALLOC_ALIEN);
        return object;
    }
    if (f->nested)
        return refill_alien(c, f, cpu, node, flags, 1);
    return refill_alien(c, f, cpu, node, flags, a->capacity < st->queue ? a->capacity : st->queue);
}

/* strict: not from a queue that may hold objects of any node. */
static void *alloc_far(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                       unsigned flags, bool strict)
{
    if (strict && us_unified_form_of(c)->fallback_queued)
        return refill_alien(c, f, cpu, node, flags, 1);
    return alloc_alien(c, f, cpu, node, flags);
}

/* The node that counts: as posted a named one is ignored, but in caches spread by policy. */
static int node_named(const struct us_cache *c, unsigned flags, int node)
{
    if (us_unified_form_of(c)->names_no_node && !(c->flags & US_MEM_SPREAD) &&
        !(flags & US_THISNODE))
        return US_ANY_NODE;
    return node;
}

/* ---- free ---------------------------------------------------------------------------------------
 */

static bool free_alien(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                       void *object)
{
    const uint32_t batch = us_unified_of(c)->batch;
    struct us_queue *a = us_unified_alien(c, cpu, node);
    void *buffer[batch];
    enum us_phase before;
    unsigned drained = 0;

    us_runs(30);
    us_reads(&us_unified_of(c)->batch, sizeof(batch));
    if (!a) {
        us_count(c, cpu, US_UNIFIED_FREE_DIRECT);
        us_unified_drain(c, f, cpu, &object, 1);
        return true;
    }
    before = us_phase_set(US_PHASE_SECOND);
    if (!us_lock_take(f, us_queue_lock(a))) {
        us_phase_set(before);
        return false;
    }
    if (us_queue_size(a) >= a->capacity)
        drained = us_ring_take_oldest_c(a->ring, buffer, batch, US_SEEN_COMMIT);
    us_ring_add_c(a->ring, &object, 1, drained ? US_SEEN_COMMIT : US_SEEN_TOUCH);
    us_lock_drop(f, us_queue_lock(a));
    us_phase_set(before);
    us_count(c, cpu, drained ? US_UNIFIED_FREE_ALIEN_SLOW : US_UNIFIED_FREE_ALIEN);
    if (drained) {
        us_stat_add(c, cpu, US_OBJECTS_MOVED, drained);
        us_unified_drain(c, f, cpu, buffer, drained);
    }
    return true;
}

/* Room that the shared queue offers, the byte budget considered. A racy look before the lock. */
uint32_t us_unified_shared_room(const struct us_cache *c, const struct us_queue *q)
{
    const struct us_unified *st = us_unified_of(c);
    uint32_t size = us_queue_size(q);
    uint32_t budget = st->budget_objects / q->shards;
    uint32_t limit = q->capacity < budget ? q->capacity : budget;

    return size < limit ? limit - size : 0;
}

/* Moves objects on top of the shared queue; what finds no room goes to slabs. Returns how many the
 * queue took. */
unsigned us_unified_to_shared(struct us_cache *c, struct us_flight *f, unsigned cpu,
                              struct us_queue *q, void **object, unsigned n)
{
    const enum us_phase before = us_phase_set(US_PHASE_SECOND);
    unsigned added = 0;

    if (us_lock_take(f, us_queue_lock(q))) {
        added = us_ring_add_c(q->ring, object, n, US_SEEN_KEEP);
        us_queue_touch(q);
        us_lock_drop(f, us_queue_lock(q));
    }
    us_phase_set(before);
    if (added < n)
        us_unified_drain(c, f, cpu, object, n - added);
    return added;
}

/* The CPU's shard of the shared queue, or another of the domain's that has room; *room = 0: none.
 */
static struct us_queue *shard_with_room(const struct us_cache *c, unsigned cpu, uint32_t *room)
{
    struct us_queue *own = us_unified_shared(c, cpu), *q;

    if (!own)
        return NULL;
    *room = us_unified_shared_room(c, own);
    if (US_LIKELY(*room))
        return own;
    for (q = own->next; q != own; q = q->next)
        if ((*room = us_unified_shared_room(c, q)) != 0)
            return q;
    return own;
}

/* One object for the next level, the CPU's region being closed. */
static void free_past(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                      void *object)
{
    uint32_t room = 0;
    struct us_queue *q = shard_with_room(c, cpu, &room);

    us_unified_stir(c);
    if (room && q->node == node) {
        bool shared = us_unified_to_shared(c, f, cpu, q, &object, 1) != 0;

        us_count(c, cpu, shared ? US_UNIFIED_FREE_SHARED : US_UNIFIED_FREE_SLOWPATH);
        return;
    }
    us_unified_drain(c, f, cpu, &object, 1);
    us_count(c, cpu, US_UNIFIED_FREE_SLOWPATH);
}

/* The CPU queue is full: its oldest batch moves to the shared queue, or to slabs. */
static void overflow(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                     void *object)
{
    const uint32_t batch = us_unified_of(c)->batch;
    const uint64_t base = us_ring_span(c, us_unified_form_of(c)->any_node, node).base;
    struct us_queue *q = us_unified_shared(c, cpu);
    void *buffer[batch];
    uint32_t room = 0;
    unsigned n, shared = 0;

    us_runs(30);
    us_reads(&us_unified_of(c)->batch, sizeof(batch));
    us_unified_stir(c);
    if (q) {
        us_queue_touch(q); /* the write first: it fetches the line once, to be owned */
        q = shard_with_room(c, cpu, &room);
    }
    n = us_local_take_oldest(&c->local, f, buffer, room && room < batch ? room : batch,
                             US_SEEN_COMMIT, &cpu);
    us_stat_add(c, cpu, US_OBJECTS_MOVED, n);
    if (room && us_node_of_cpu(c->machine, cpu) == node) /* not moved to another node meanwhile */
        shared = us_unified_to_shared(c, f, cpu, q, buffer, n);
    else
        us_unified_drain(c, f, cpu, buffer, n);
    if (!us_local_add(&c->local, f, &object, 1, base, US_SEEN_COMMIT, &cpu)) {
        free_past(c, f, cpu, node, object);
        return;
    }
    us_count(c, cpu, shared ? US_UNIFIED_FREE_SHARED : US_UNIFIED_FREE_SLOWPATH);
}

static const struct us_ring_levels levels = {
    .plan = us_unified_ring_plan,
    .put_late = put_late,
    .deferred_row = US_UNIFIED_FREE_SLOWPATH,
    .alloc = alloc_near,
    .alloc_far = alloc_far,
    .overflow = overflow,
    .free_past = free_past,
    .free_far = free_alien,
};

/* ---- entries
 * ---------------------------------------------------------------------------------------- */

US_RING_ENTRIES(unified, levels)

static void *unified_alloc_node(struct us_cache *c, unsigned flags, int node)
{
    const bool mixed = us_unified_form_of(c)->fallback_queued && !(flags & US_THISNODE);

    return us_ring_alloc_node(c, &levels, mixed, flags, node_named(c, flags, node));
}

static void *alloc_past_ring(struct us_cache *c, unsigned flags, int node)
{
    return node < 0 ? us_ring_alloc_slow(c, &levels, flags, node)
                    : unified_alloc_node(c, flags, node);
}

static const struct us_cpu_past past_ring = {
    .alloc = alloc_past_ring,
    .free = unified_free_slow,
    .take = us_unified_take_straight,
    .put = us_unified_put_straight,
};
/* The posted forms had single calls. */
static const struct us_cpu_past past_posted_ring = {
    .alloc = alloc_past_ring,
    .free = unified_free_slow,
};

static const struct us_cpu_past *past_of(const struct us_cache *c)
{
    return us_unified_form_of(c)->single_calls ? &past_posted_ring : &past_ring;
}

static size_t unified_alloc_bulk(struct us_cache *c, unsigned flags, int node, size_t n, void **out)
{
    return us_cpu_alloc_bulk(c, past_of(c), flags, node_named(c, flags, node), n, out);
}

static void unified_free_bulk(struct us_cache *c, size_t n, void *const *object)
{
    us_cpu_free_bulk(c, past_of(c), us_unified_form_of(c)->any_node, n, object);
}

/* ---- life
 * ------------------------------------------------------------------------------------------- */

/* What was given to this cache is held against what a store would take. */
static enum us_status check_given(const struct us_cache *c, struct us_error *e)
{
    const int64_t batch = c->tunable[US_UNIFIED_T_BATCH],
                  queue = c->tunable[US_UNIFIED_T_CPU_QUEUE];
    const uint32_t size = queue ? (uint32_t)queue : us_unified_rule_queue(c);

    if (batch && !us_unified_batch_fits(c, batch, size) &&
        us_tunable_binds(c, US_UNIFIED_T_BATCH, US_UNIFIED_T_CPU_QUEUE, queue == 0))
        return us_unified_refuse_batch(c, batch, size, e);
    if (us_unified_form_of(c)->second_level && us_tunable_given(c, US_UNIFIED_T_ALIEN_QUEUE) &&
        c->tunable[US_UNIFIED_T_ALIEN_QUEUE] >= 0)
        return us_unified_needs_nodes(c, e);
    return US_OK;
}

static enum us_status unified_create(struct us_cache *c, struct us_error *e)
{
    struct us_memory *mem = c->slabs->memory;
    enum us_status status;
    struct us_unified *st;

    status = check_given(c, e);
    if (status != US_OK)
        return status;
    st = us_meta_alloc(mem, sizeof(*st));
    if (!st)
        goto none;
    c->state = st;
    us_unified_plan(c, st);
    st->domain = us_meta_alloc(mem, c->machine->ndomains * sizeof(*st->domain));
    st->shared_of = us_meta_alloc(mem, c->machine->ncpus * sizeof(*st->shared_of));
    if (us_unified_make_lists(c) && st->domain && st->shared_of && us_unified_make_queues(c))
        return US_OK;
none:
    if (st) {
        us_unified_drop_queues(c, NULL);
        us_meta_free(mem, st->domain, c->machine->ndomains * sizeof(*st->domain));
        us_unified_drop_lists(c);
        us_meta_free(mem, st->shared_of, c->machine->ncpus * sizeof(*st->shared_of));
        us_meta_free(mem, st, sizeof(*st));
        c->state = NULL;
    }
    return us_fail(e, US_ENOMEM, "no memory for the queues of cache '%s'", c->name);
}

static void unified_destroy(struct us_cache *c)
{
    struct us_memory *mem = c->slabs->memory;
    struct us_unified *st = us_unified_of(c);

    us_unified_drop_queues(c, NULL);
    us_cpu_rings_drop(c);
    us_unified_drop_lists(c);
    us_meta_free(mem, st->domain, c->machine->ndomains * sizeof(*st->domain));
    us_meta_free(mem, st->shared_of, c->machine->ncpus * sizeof(*st->shared_of));
    us_meta_free(mem, st, sizeof(*st));
    c->state = NULL;
}

/* ---- looking inside
 * --------------------------------------------------------------------------------- */

/* The lists of a node are shown as one, behind one another. */
static void visit_lists(const struct us_visitor *v, const struct us_unified_list *list)
{
    uint64_t position = 0;

    for (unsigned i = list->lists; i > 0; i--, list = list->next)
        for (struct us_slab *s = list->partial.first; s; s = s->next)
            v->listed(v->context, s, list->node, "partial", position++);
}

static void unified_visit(struct us_cache *c, const struct us_visitor *v)
{
    struct us_unified *st = us_unified_of(c);
    const struct us_machine *m = c->machine;
    unsigned d, n;

    us_visit_cpu_rings(c, v, "cpu", us_ring_touched);
    for (d = 0; d < m->ndomains; d++) {
        struct us_queue *q = st->domain[d].shared;

        for (n = 0; q && n < q->shards; n++, q = q->next)
            us_visit_queue(v, US_STOCK_SHARED, "shared", q, us_ring_touched);
        for (n = 0; st->domain[d].alien && n < m->nnodes; n++)
            if (st->domain[d].alien[n])
                us_visit_queue(v, US_STOCK_ALIEN, "alien", st->domain[d].alien[n], us_ring_touched);
    }
    for (n = 0; n < m->nnodes; n++)
        visit_lists(v, st->of_node[n]);
}

static void unified_locks(struct us_cache *c, us_lock_fn *each, void *context)
{
    struct us_unified *st = us_unified_of(c);
    unsigned d, n;

    for (n = 0; n < st->nlists; n++)
        each(context, &st->list[n].lock);
    for (d = 0; d < c->machine->ndomains; d++) {
        struct us_queue *q = st->domain[d].shared;

        for (n = 0; q && n < q->shards; n++, q = q->next)
            each(context, us_queue_lock(q));
        for (n = 0; st->domain[d].alien && n < c->machine->nnodes; n++)
            if (st->domain[d].alien[n])
                each(context, us_queue_lock(st->domain[d].alien[n]));
    }
}

/* What all forms have. */
/* clang-format off */
#define UNIFIED_COMMON                                                                        \
    .tunables = us_unified_tunables, .counters = us_unified_counters,                         \
    .region = US_REGION_RING, .debug_has_stock = true, .geometry = us_unified_geometry,       \
    .general_sizes = us_unified_general_sizes, .create = unified_create,                      \
    .destroy = unified_destroy, .entries = unified_entries, .alloc_node = unified_alloc_node, \
    .alloc_bulk = unified_alloc_bulk, .free_bulk = unified_free_bulk,                         \
    .flush_cpu = us_unified_flush_cpu, .shrink = us_unified_shrink, .locks = unified_locks,   \
    .visit = unified_visit
/* clang-format on */

const struct us_policy us_policy_unified = {
    .name = "unified",
    .title = "Unified slab allocator (V4, 2010) as intended, and carried on",
    .form = &us_unified_carried_on,
    .ntunables = US_UNIFIED_NTUNABLES,
    .ncounters = US_UNIFIED_NCOUNTERS,
    .expire_begin = us_unified_expire_begin,
    .expire = us_unified_expire,
    .expire_cpu_closes = us_cpu_wants_visit,
    .expire_cpu = us_unified_expire_cpu,
    .tick_closes = us_unified_tick_closes,
    .tick = us_unified_tick,
    .tick_period = us_unified_tick_period,
    .adapt_period = us_unified_adapt_period,
    .wants_adapt = us_unified_wants_adapt,
    .adapt = us_unified_adapt,
    UNIFIED_COMMON,
};

const struct us_policy us_policy_unified_v4 = {
    .name = "unified-v4",
    .title = "Unified slab allocator V4 as posted (October 2010)",
    .form = &us_unified_posted,
    .ntunables = US_UNIFIED_V4_NTUNABLES,
    .ncounters = US_UNIFIED_NCOUNTERS,
    .expire_all_stages = true,
    .expire_begin = us_unified_expire_begin,
    .expire = us_unified_expire,
    UNIFIED_COMMON,
};

const struct us_policy us_policy_sleb = {
    .name = "sleb",
    .title = "SLUB with CPU queues only (SLEB, S+Q; mid-2010), reconstructed",
    .form = &us_unified_sleb,
    .ntunables = US_SLEB_NTUNABLES,
    .ncounters = US_SLEB_NCOUNTERS,
    UNIFIED_COMMON,
};
