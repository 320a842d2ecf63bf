/* rcu.c - frees that wait for a grace period (the kernel's kfree_rcu).
 *
 * What is freed so may still be read: it keeps its contents and stays live, in accounts too, until
 * the grace period is over; then it is freed as any other object, and counted then. Whoever reads
 * does so outside of the allocator, which cannot see it. So a grace period is as much as this
 * machine can tell: the allocator's rcu_delay by the policy's clock has passed, and every slow path
 * that was under way has ended since. A barrier does not wait for the clock, only for slow paths
 * (an expedited grace period); flush, shrink and destroy begin with one. Shortage of pages does
 * not: it comes in the middle of an allocation.
 *
 * A barrier sends everything off, begins a round, waits, and frees what was sent before that round:
 * what others bring meanwhile has waited for nothing yet. Before it returns it waits once more, for
 * those who had taken batches before it came and were still freeing them.
 *
 * Nothing is linked through the objects. A policy may give sheaves for this (SLUB with sheaves): an
 * object of the CPU's own node goes there, and a sheaf that was filled goes back to the policy when
 * its time has come. All else is kept in plain batches, freed in one bulk call. Without memory for
 * either the caller waits for a grace period itself.
 *
 * A CPU's batches are under one lock (class shared), in which nothing nests. A sheaf
 * is sent off when it is full; one that is not, once its newest object has waited long enough, so
 * that an idle CPU does not keep objects for ever. Batches that are ripe are taken off in a flight
 * and freed in a frame: who stops the allocator finds them in a batch or free, and no cache ends
 * meanwhile.
 *
 * With debug F the object's mark is taken at the call: what is freed again meanwhile is found.
 */
#include "cache/internal.h"

#define NEVER UINT64_MAX
#define BATCH 60 /* objects of a plain batch: 512 bytes with its header */

enum kind { OF_POLICY, PLAIN, NKINDS };

struct us_rcu_cpu {
    struct us_lock lock; /* class SHARED */
    struct us_sheaf *filling[NKINDS], *sent[NKINDS];
    uint64_t newest[NKINDS];  /* when the last object came to the one being filled */
    _Atomic uint32_t pending; /* objects; looked at without the lock */
} US_ALIGNED(US_LINE);

/* The CPUs' batches, made at the first use; NULL without memory. */
static struct us_rcu_cpu *table_of(struct us_cache *c)
{
    struct us_memory *memory = c->slabs->memory;
    const unsigned ncpus = c->machine->ncpus;
    struct us_rcu_cpu *old = __atomic_load_n(&us_box(c)->rcu, __ATOMIC_ACQUIRE), *t;
    unsigned cpu;

    if (old)
        return old;
    t = us_meta_alloc(memory, ncpus * sizeof(*t));
    if (!t)
        return NULL;
    for (cpu = 0; cpu < ncpus; cpu++)
        us_lock_init(&t[cpu].lock, US_LOCK_SHARED);
    if (__atomic_compare_exchange_n(&us_box(c)->rcu, &old, t, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE))
        return t;
    us_meta_free(memory, t, ncpus * sizeof(*t));
    return old;
}

/* ---- batches --------------------------------------------------------------------------- */

static struct us_sheaf *new_batch(struct us_cache *c, struct us_flight *f, enum kind kind)
{
    struct us_sheaf *s;

    if (kind == OF_POLICY)
        return c->policy->rcu_sheaf(c, f);
    s = us_meta_alloc(c->slabs->memory, us_sheaf_bytes(BATCH));
    if (s)
        us_sheaf_init(s, BATCH);
    return s;
}

static void free_batch(struct us_cache *c, struct us_sheaf *s)
{
    us_meta_free(c->slabs->memory, s, us_sheaf_bytes(s->capacity));
}

static bool is_full(const struct us_sheaf *s)
{
    return us_sheaf_size(s) == s->capacity;
}

/* The grace period of its objects is over. In a frame: a plain batch has slow paths of its own. */
static void end_grace(struct us_cache *c, struct us_sheaf *s, enum kind kind)
{
    struct us_flight f;

    if (kind == PLAIN) {
        c->policy->free_bulk(c, us_sheaf_size(s), s->object);
        free_batch(c, s);
        return;
    }
    us_flight_enter(c->machine, &f);
    c->policy->rcu_done(c, &f, s, is_full(s));
    us_flight_leave(&f);
}

static void lock(struct us_flight *f, struct us_rcu_cpu *r)
{
    if (!us_lock_take(f, &r->lock))
        __builtin_trap(); /* not nested */
}

/* Under the lock. */
static void send_off(const struct us_allocator *a, struct us_rcu_cpu *r, enum kind kind)
{
    struct us_sheaf *s = r->filling[kind];

    s->sent = r->newest[kind];
    s->round = atomic_load(&a->rcu_round);
    s->next = r->sent[kind];
    r->sent[kind] = s;
    r->filling[kind] = NULL;
}

/* False: there is no batch with room, and none is to be had. */
static bool store(struct us_cache *c, struct us_flight *f, struct us_rcu_cpu *r, enum kind kind,
                  void *object)
{
    struct us_sheaf *fresh = NULL;
    struct us_sheaf **filling = &r->filling[kind];

    lock(f, r);
    if (!*filling) {
        us_lock_drop(f, &r->lock); /* a policy's sheaf comes from under a lock of this class */
        fresh = new_batch(c, f, kind);
        if (!fresh)
            return false;
        lock(f, r);
        if (!*filling) {
            fresh->next = NULL;
            *filling = fresh;
            fresh = NULL;
        }
    }
    (void)us_sheaf_push_c(*filling, object);
    r->newest[kind] = us_now(c->machine);
    if (is_full(*filling))
        send_off(c->owner, r, kind);
    atomic_fetch_add(&r->pending, 1);
    us_lock_drop(f, &r->lock);
    if (!fresh)
        return true;
    if (kind == OF_POLICY)
        c->policy->rcu_done(c, f, fresh, false);
    else
        free_batch(c, fresh);
    return true;
}

static bool to_sheaf(struct us_cache *c, struct us_flight *f, struct us_rcu_cpu *r, unsigned cpu,
                     void *object)
{
    bool stored;

    if (!c->policy->rcu_sheaf)
        return false;
    stored = us_node_of(&c->slabs->range, object) == us_node_of_cpu(c->machine, cpu) &&
             store(c, f, r, OF_POLICY, object);
    c->policy->rcu_count(c, cpu, stored);
    return stored;
}

/* ---- the call -------------------------------------------------------------------------- */

static void wait_and_free(struct us_cache *c, void *object)
{
    us_flight_quiesce(c->machine);
    c->policy->free_bulk(c, 1, &object);
}

static enum us_misuse_kind take(struct us_cache *c, void *object, struct us_slab **s)
{
    uint32_t index;

    if (c->flags & US_DEBUG_F)
        return us_debug_take_back(c, object, s);
    return us_misuse_of(c, object, s, &index);
}

/* False: there is no memory for a batch. */
static bool keep(struct us_cache *c, void *object)
{
    struct us_allocator *a = c->owner;
    const unsigned cpu = us_cpu_now(c->machine);
    bool kept = false;
    struct us_flight f;
    struct us_rcu_cpu *t;

    us_flight_enter(c->machine, &f);
    t = table_of(c);
    if (t) {
        atomic_fetch_add(&a->rcu_pending, 1);
        kept = to_sheaf(c, &f, &t[cpu], cpu, object) || store(c, &f, &t[cpu], PLAIN, object);
        if (!kept)
            atomic_fetch_sub(&a->rcu_pending, 1);
    }
    us_flight_leave(&f);
    return kept;
}

/* A signal handler in the middle of another call of its thread: locks may be busy for ever. */
static bool is_nested(struct us_machine *m)
{
    struct us_flight f;
    bool nested;

    us_flight_enter(m, &f);
    nested = f.nested;
    us_flight_leave(&f);
    return nested;
}

enum us_status us_cache_free_rcu(struct us_cache *c, void *object, struct us_error *e)
{
    struct us_allocator *a = c->owner;
    enum us_misuse_kind kind;
    struct us_flight frame;
    struct us_slab *s;
    bool kept;

    if (!object)
        return US_OK;
    if (is_nested(c->machine))
        return us_error_fill(e, US_EBUSY,
                             "cache '%s': a free after a grace period was asked for by a signal "
                             "handler in the middle of another call; free the object there, or "
                             "leave it to the program",
                             c->name);
    us_frame_enter(c->machine, &frame); /* debug's mark and the batch change together */
    kind = take(c, object, &s);
    kept = kind == US_MISUSE_NONE && keep(c, object);
    us_frame_leave(&frame);
    if (kind != US_MISUSE_NONE)
        return us_explain_misuse(c, object, kind, s, e);
    if (kept)
        us_due_at(a, us_now(c->machine) + a->rcu_delay_ns);
    else
        wait_and_free(c, object);
    return US_OK;
}

enum us_status us_kfree_rcu(struct us_allocator *a, void *object, struct us_error *e)
{
    return us_cache_free_rcu(us_kmalloc_owner(a, object), object, e);
}

/* ---- when the time has come ------------------------------------------------------------ */

/* What is taken off, and of whom. */
struct harvest {
    const struct us_allocator *allocator;
    uint64_t now;
    uint32_t round; /* a barrier's */
    bool barrier;   /* takes what was sent up to its round, whatever the clock says */
    struct us_sheaf *taken[NKINDS];
    uint64_t next; /* when what stays is ripe */
};

static bool is_ripe(struct harvest *h, uint64_t since)
{
    const uint64_t due = since + h->allocator->rcu_delay_ns;

    if (due <= h->now)
        return true;
    if (due < h->next)
        h->next = due;
    return false;
}

static bool is_over(struct harvest *h, const struct us_sheaf *s)
{
    if (h->barrier)
        return (int32_t)(h->round - s->round) >= 0;
    return is_ripe(h, s->sent);
}

/* Under the lock. */
static void collect_kind(struct harvest *h, struct us_rcu_cpu *r, enum kind kind)
{
    struct us_sheaf **at = &r->sent[kind], *s;

    if (!h->barrier && r->filling[kind] && is_ripe(h, r->newest[kind]))
        send_off(h->allocator, r, kind);
    while ((s = *at) != NULL) {
        if (!is_over(h, s)) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        s->next = h->taken[kind];
        h->taken[kind] = s;
    }
}

static void end_all(struct us_cache *c, struct us_rcu_cpu *r, struct harvest *h)
{
    struct us_allocator *a = c->owner;

    for (unsigned kind = 0; kind < NKINDS; kind++) {
        struct us_sheaf *s, *next;

        for (s = h->taken[kind]; s; s = next) {
            const uint32_t n = us_sheaf_size(s);

            next = s->next;
            end_grace(c, s, (enum kind)kind);
            atomic_fetch_sub(&r->pending, n);
            atomic_fetch_sub(&a->rcu_pending, n);
        }
        h->taken[kind] = NULL;
    }
}

static struct us_rcu_cpu *table_if_any(struct us_cache *c)
{
    return __atomic_load_n(&us_box(c)->rcu, __ATOMIC_ACQUIRE);
}

/* In a frame. */
static void run_cache(struct us_cache *c, struct harvest *h)
{
    struct us_rcu_cpu *t = table_if_any(c), *r;
    struct us_flight f;

    for (r = t; t && r < t + c->machine->ncpus; r++) {
        if (atomic_load(&r->pending) == 0)
            continue;
        us_flight_enter(c->machine, &f);
        lock(&f, r);
        for (unsigned kind = 0; kind < NKINDS; kind++)
            collect_kind(h, r, (enum kind)kind);
        us_lock_drop(&f, &r->lock);
        us_flight_leave(&f);
        end_all(c, r, h);
    }
}

uint64_t us_rcu_run_due(struct us_allocator *a, uint64_t now)
{
    struct harvest h = {.allocator = a, .now = now, .next = NEVER};
    struct us_flight frame;
    struct us_cache *c;

    if (atomic_load(&a->rcu_pending) == 0)
        return NEVER;
    if (is_nested(a->machine))
        return now; /* no place to wait: the next look asks again */
    us_flight_quiesce(a->machine);
    us_frame_enter(a->machine, &frame);
    for (c = us_first_cache(a); c; c = c->next)
        run_cache(c, &h);
    us_frame_leave(&frame);
    return h.next;
}

/* In a frame: whatever was brought is sent off. */
static void send_all(struct us_cache *c)
{
    struct us_rcu_cpu *t = table_if_any(c), *r;
    struct us_flight f;

    for (r = t; t && r < t + c->machine->ncpus; r++) {
        if (atomic_load(&r->pending) == 0)
            continue;
        us_flight_enter(c->machine, &f);
        lock(&f, r);
        for (unsigned kind = 0; kind < NKINDS; kind++)
            if (r->filling[kind])
                send_off(c->owner, r, (enum kind)kind);
        us_lock_drop(&f, &r->lock);
        us_flight_leave(&f);
    }
}

/* Of one cache, or of all. */
static void barrier(struct us_allocator *a, struct us_cache *only)
{
    struct harvest h = {.allocator = a, .barrier = true, .next = NEVER};
    struct us_flight frame;
    struct us_cache *c;

    if (atomic_load(&a->rcu_pending) == 0 || is_nested(a->machine))
        return;
    us_frame_enter(a->machine, &frame);
    for (c = only ? only : us_first_cache(a); c; c = only ? NULL : c->next)
        send_all(c);
    us_frame_leave(&frame);
    h.round = atomic_fetch_add(&a->rcu_round, 1);
    us_flight_quiesce(a->machine);
    us_frame_enter(a->machine, &frame);
    for (c = only ? only : us_first_cache(a); c; c = only ? NULL : c->next)
        run_cache(c, &h);
    us_frame_leave(&frame);
    us_flight_quiesce(a->machine);
}

void us_allocator_rcu_barrier(struct us_allocator *a)
{
    barrier(a, NULL);
}

void us_cache_rcu_barrier(struct us_cache *c)
{
    barrier(c->owner, c);
}

/* ---- the end, and locks ---------------------------------------------------------------- */

static void drop_list(struct us_cache *c, struct us_sheaf *s)
{
    while (s) {
        struct us_sheaf *next = s->next;

        free_batch(c, s);
        s = next;
    }
}

void us_rcu_fini(struct us_cache *c)
{
    struct us_allocator *a = c->owner;
    struct us_rcu_cpu *t = us_box(c)->rcu;
    unsigned cpu, kind;

    if (!t)
        return;
    for (cpu = 0; cpu < c->machine->ncpus; cpu++) {
        for (kind = 0; kind < NKINDS; kind++) {
            drop_list(c, t[cpu].sent[kind]);
            if (t[cpu].filling[kind])
                free_batch(c, t[cpu].filling[kind]);
        }
        atomic_fetch_sub(&a->rcu_pending, atomic_load(&t[cpu].pending));
        us_lock_retire(c->machine, &t[cpu].lock);
    }
    us_meta_free(c->slabs->memory, t, c->machine->ncpus * sizeof(*t));
    us_box(c)->rcu = NULL;
}

void us_rcu_locks(struct us_cache *c, us_lock_fn *each, void *context)
{
    struct us_rcu_cpu *t = table_if_any(c);
    unsigned cpu;

    for (cpu = 0; t && cpu < c->machine->ncpus; cpu++)
        each(context, &t[cpu].lock);
}

static void each_of(struct us_sheaf *s, void (*each)(void *context, void *object), void *context)
{
    uint32_t i;

    for (; s; s = s->next)
        for (i = 0; i < us_sheaf_size(s); i++)
            each(context, s->object[i]);
}

void us_rcu_each(struct us_cache *c, void (*each)(void *context, void *object), void *context)
{
    struct us_rcu_cpu *t = us_box(c)->rcu;
    unsigned cpu, kind;

    for (cpu = 0; t && cpu < c->machine->ncpus; cpu++)
        for (kind = 0; kind < NKINDS; kind++) {
            each_of(t[cpu].filling[kind], each, context);
            each_of(t[cpu].sent[kind], each, context);
        }
}
