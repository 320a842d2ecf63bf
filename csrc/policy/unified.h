/* unified.h - state of one cache under the Unified policy, shared by the unified_*.c files.
 *
 * Three names are registered from them, each with its form (struct us_unified_form) and its tables:
 * unified, unified-v4 and sleb (unified_forms.c says what the last two are).
 */
#ifndef US_POLICY_UNIFIED_H
#define US_POLICY_UNIFIED_H

#include "policy/policy.h"
#include "queue/queue.h"

#define US_UNIFIED_QUEUE_MAX   10000
#define US_UNIFIED_OBJECTS_MAX (1 << 20) /* a slab counts its objects in 24 bits */
#define US_UNIFIED_BOUNCE      16 /* refill of an untouched queue (SLAB's anti-bounce rule) */

/* clang-format off */
/* Each table begins with that of the form it grew from, so that a row has one number in all.
 * row: id, name, unit, min, max, default, flags, get, set, help */
#define US_SLEB_TUNABLES(row)                                                                     \
    row(CPU_QUEUE, "cpu_queue_size", "objects", 4, US_UNIFIED_QUEUE_MAX, 0, 0,                    \
        get_cpu_queue, set_cpu_queue,                                                             \
        "capacity of each CPU queue; 0 at creation = by object size; reads as the capacity that " \
        "fills whole cache lines (queue_size: what was asked for)")                               \
    row(QUEUE, "queue_size", "objects", 0, US_UNIFIED_QUEUE_MAX, 0, US_T_READONLY,                \
        get_queue, NULL,                                                                          \
        "CPU queue size that was asked for; refills stop there")                                  \
    row(BATCH, "batch_size", "objects", 4, US_UNIFIED_QUEUE_MAX, 0, 0, get_batch, set_batch,      \
        "objects moved between levels at once; at most queue_size (unified-v4: at least); an "    \
        "allocator's default that does not fit a cache counts as half of it")                     \
    row(PER_CPU, "per_cpu_caches", "objects", 0, INT64_MAX, 0, US_T_READONLY, get_per_cpu, NULL,  \
        "objects in CPU queues")                                                                  \
    row(MIN_PARTIAL, "min_partial", "slabs", 5, 10, -1, 0, NULL, NULL,                            \
        "slabs kept on a node's partial list before empty ones go back")                          \
    row(MIN_OBJECTS, "min_objects", "objects", 0, US_UNIFIED_OBJECTS_MAX, 0, US_T_CREATE, NULL,   \
        NULL, "objects a slab should hold at least; 0 = min(64, 4*(fls(cpus)+1))")                \
    row(MAX_ORDER, "max_order", "log2 pages", 0, US_MAX_ORDER, 3, US_T_CREATE, NULL, NULL,        \
        "largest order that the search for a good slab size considers")
#define US_UNIFIED_V4_TUNABLES(row)                                                               \
    US_SLEB_TUNABLES(row)                                                                         \
    row(SHARED_QUEUE, "shared_queue_size", "objects", 0, US_UNIFIED_QUEUE_MAX, -1, 0,             \
        get_shared_queue, set_shared_queue,                                                       \
        "capacity of each cache domain's shared queue; 0 = off, else at least a batch")           \
    row(SHARED_DESIRED, "shared_queue_desired", "objects", 0, US_UNIFIED_QUEUE_MAX, 0, US_T_READONLY,\
        get_shared_desired, NULL,                                                                 \
        "shared queue size that was asked for")                                                   \
    row(SHARED, "shared_caches", "objects", 0, INT64_MAX, 0, US_T_READONLY, get_shared, NULL,     \
        "objects in shared queues")                                                               \
    row(ALIEN_QUEUE, "alien_queue_size", "objects", 0, 1000, -1, 0,                               \
        get_alien_queue, set_alien_queue,                                                         \
        "capacity of each alien queue; 0 = off; refused on one node, where a default is idle")    \
    row(ALIEN_SHIFT, "alien_shift", "log2 bytes", 0, 63, 0, US_T_READONLY, get_alien_shift, NULL, \
        "size of one alien queue as laid out")                                                    \
    row(ALIEN, "alien_caches", "objects", 0, INT64_MAX, 0, US_T_READONLY, get_alien, NULL,        \
        "objects in alien queues")                                                                \
    row(EXPIRE, "expire", "node; bytes", -1, 65535, 0, 0, get_expire, set_expire,                 \
        "written a node, or -1 for all: ages cached objects; reads as bytes of the last run")
#define US_UNIFIED_TUNABLES(row)                                                                  \
    US_UNIFIED_V4_TUNABLES(row)                                                                   \
    row(EXPIRE_PERIOD, "expire_period", "ms", 0, 3600000, 0, 0, NULL, NULL,                       \
        "age cached objects this often on the policy's clock; 0 = on demand, by pressure")        \
    row(EAGER_REFILL, "eager_refill", "0/1", 0, 1, 0, 0, NULL, NULL,                              \
        "1: a miss fetches slabs until a batch is reached, as posted; 0: one at most")            \
    row(SORTED_DRAIN, "sorted_drain", "0/1", 0, 1, 1, 0, NULL, NULL,                              \
        "1: drained objects are ordered by slab before the node lock is taken")                   \
    row(EMPTY_TO_TAIL, "empty_to_tail", "0/1", 0, 1, 1, 0, NULL, NULL,                            \
        "1: retained empty slabs go to the tail of the partial list")                             \
    row(QUEUE_BUDGET, "queue_budget", "bytes", 0, INT64_MAX, 0, 0, NULL, set_queue_budget,        \
        "bytes for queues together: shared queues get what CPU queues leave; 0 = no budget")      \
    row(ADAPT_PERIOD, "adapt_period", "ms", 0, 3600000, 10, 0, NULL, NULL,                        \
        "sizes left to the rules follow the traffic, looked at this often; 0 = fixed")            \
    row(SHARD_CPUS, "shard_cpus", "CPUs", 0, 65535, 8, US_T_CREATE, NULL, NULL,                   \
        "a domain of more CPUs has its shared queue in shards of so many; 0 = never")             \
    row(SPLIT_PARTIAL, "split_partial", "0/1", 0, 1, 1, US_T_CREATE, NULL, NULL,                  \
        "1: each cache domain of a node has its own partial list; a miss steals from others")     \
    row(ADAPT_MAX, "adapt_max", "bytes", 0, INT64_MAX, 2097152, 0, NULL, NULL,                    \
        "queues grow while they can hold no more than this together")
/* clang-format on */

enum us_unified_tunable {
#define US_ROW(id, name, unit, min, max, def, flags, get, set, help) US_UNIFIED_T_##id,
    US_UNIFIED_TUNABLES(US_ROW)
#undef US_ROW
        US_UNIFIED_NTUNABLES,
    US_SLEB_NTUNABLES = US_UNIFIED_T_SHARED_QUEUE,
    US_UNIFIED_V4_NTUNABLES = US_UNIFIED_T_EXPIRE_PERIOD
};

/* clang-format off */
/* row: id, name, feeds, source, help */
#define US_SLEB_COUNTERS(row)                                                                     \
    row(ALLOC_FASTPATH, "alloc_fastpath", US_ALLOC_FAST, US_FROM_POPS,                            \
        "popped from a non-empty CPU queue")                                                      \
    row(ALLOC_SLOWPATH, "alloc_slowpath", US_ALLOC_SLOW, US_FROM_STATS,                           \
        "CPU queue empty, and the shared queue too where there is one")                           \
    row(ALLOC_DIRECT, "alloc_direct", US_ALLOC_REMOTE, US_FROM_STATS,                             \
        "another node's object from its slab, there being no alien queue")                        \
    row(FREE_FASTPATH, "free_fastpath", US_FREE_FAST, US_FROM_PUSHES,                             \
        "pushed on the CPU queue without overflow")                                               \
    row(FREE_SLOWPATH, "free_slowpath", US_FREE_SLOW, US_FROM_STATS,                              \
        "overflow of the CPU queue drained to slabs")                                             \
    row(FREE_ADD_PARTIAL, "free_add_partial", US_FEEDS_NONE, US_FROM_STATS,                       \
        "drain put a slab on the partial list")                                                   \
    row(FREE_REMOVE_PARTIAL, "free_remove_partial", US_FEEDS_NONE, US_FROM_STATS,                 \
        "drain took an emptied slab off the partial list")                                        \
    row(ALLOC_FROM_PARTIAL, "alloc_from_partial", US_FEEDS_NONE, US_FROM_STATS,                   \
        "slow path served from partial slabs")                                                    \
    row(ALLOC_SLAB, "alloc_slab", US_SLAB_NEW, US_FROM_STATS,                                     \
        "slab obtained from the page provider")                                                   \
    row(FREE_SLAB, "free_slab", US_SLAB_FREE, US_FROM_STATS,                                      \
        "slab returned to the page provider")                                                     \
    row(QUEUE_FLUSH, "queue_flush", US_FLUSH, US_FROM_STATS,                                      \
        "flush of a CPU's queues")                                                                \
    row(ORDER_FALLBACK, "order_fallback", US_FEEDS_NONE, US_FROM_STATS,                           \
        "preferred order refused, smaller slab used")
#define US_UNIFIED_COUNTERS(row)                                                                  \
    US_SLEB_COUNTERS(row)                                                                         \
    row(ALLOC_SHARED, "alloc_shared", US_ALLOC_SECOND_LEVEL, US_FROM_STATS,                       \
        "empty CPU queue refilled from the shared queue")                                         \
    row(ALLOC_ALIEN, "alloc_alien", US_ALLOC_REMOTE, US_FROM_STATS,                               \
        "popped from an alien queue")                                                             \
    row(ALLOC_ALIEN_SLOW, "alloc_alien_slow", US_FEEDS_NONE, US_FROM_STATS,                       \
        "another node's object that its alien queue could not give")                              \
    row(FREE_SHARED, "free_shared", US_FREE_SECOND_LEVEL, US_FROM_STATS,                          \
        "overflow moved the oldest objects to the shared queue")                                  \
    row(FREE_ALIEN, "free_alien", US_FREE_REMOTE, US_FROM_STATS,                                  \
        "pushed on an alien queue without drain")                                                 \
    row(FREE_ALIEN_SLOW, "free_alien_slow", US_FREE_REMOTE, US_FROM_STATS,                        \
        "pushed on an alien queue that had to be drained")                                        \
    row(FREE_DIRECT, "free_direct", US_FREE_REMOTE, US_FROM_STATS,                                \
        "another node's object put straight to its slab")
/* clang-format on */

enum us_unified_counter {
#define US_ROW(id, name, feeds, source, help) US_UNIFIED_##id,
    US_UNIFIED_COUNTERS(US_ROW)
#undef US_ROW
        US_UNIFIED_NCOUNTERS,
    US_SLEB_NCOUNTERS = US_UNIFIED_ALLOC_SHARED
};

/* What sets one registered form of the policy apart from the others. */
struct us_unified_form {
    bool second_level;    /* has shared and alien queues */
    bool any_node;        /* CPU queues take objects of every node */
    bool fallback_queued; /* what the provider took from another node enters queues all the same */
    bool names_no_node;   /* a named node is ignored but in caches with US_MEM_SPREAD */
    bool bitmap_in_band;  /* above 64 objects the bitmap takes room of the slab */
    bool no_lowmem;       /* US_LOWMEM is not known */
    bool clamps_lowmem;   /* min_partial of US_LOWMEM caches is 5 after all */
    bool posted_batch;    /* batch_size may not be below queue_size */
    bool posted_expiry;   /* 2.13, rows 4 to 7; no stage stops at the target */
    bool resize_drains;   /* resizing empties queues */
    bool single_calls;    /* bulk calls go through the rings object by object */
    bool posted_accounts; /* queues count as the metadata that the posted ones took */
    int64_t fixed[US_UNIFIED_NTUNABLES]; /* of rows that its table lacks */
};
extern const struct us_unified_form us_unified_carried_on, us_unified_posted, us_unified_sleb;

/* Slabs of one node, or of one of its cache domains, for good (us_unified_list_of). */
struct us_unified_list {
    struct us_lock lock;         /* class NODE: bitmaps, list, touched */
    struct us_slab_list partial; /* slabs with objects free in them */
    bool touched;                /* a slab was added or removed since the last ageing visit */
    unsigned node, index;
    unsigned lists;               /* of its node, this one among them */
    struct us_unified_list *next; /* the node's next list, in a circle */
} US_ALIGNED(US_LINE);

/* One cache domain's second level; alien[n] holds objects of node n, NULL for the domain's own. The
 * other shards of the shared queue follow from the first one. */
struct us_unified_domain {
    struct us_queue *shared;
    struct us_queue **alien;
};

struct us_unified {
    uint32_t queue, batch, cpu_capacity;
    uint32_t shared_desired, shared_capacity;
    uint32_t alien_capacity; /* 0 = no alien queues */
    unsigned alien_shift;
    _Atomic uint64_t last_expired;
    /* Sizes that traffic has asked for, 0 = those of the rules; and what was counted at the last
     * look. */
    uint32_t grown_queue, grown_shared;
    uint64_t seen_shared, seen_drains, seen_refills;
    _Atomic uint64_t looked; /* policy's clock at the last look */
    uint64_t drained;        /* drains to slabs that no refill has answered yet */
    _Atomic bool pressed;    /* memory ran short since the last look */
    _Atomic bool stirred;    /* an object crossed the edge of a CPU queue since the last look */
    uint32_t budget_objects; /* shared stock stops here; UINT32_MAX without a budget */
    unsigned nlists;
    struct us_unified_list *list;     /* [nlists] */
    struct us_unified_list **of_node; /* [nnodes] the node's first list */
    struct us_unified_list **of_cpu;  /* [ncpus] the list that new slabs of the CPU go to */
    struct us_unified_domain *domain; /* [ndomains] */
    struct us_queue **shared_of;      /* [ncpus] the shard that a CPU goes to first, NULL = none */
};

US_INLINE const struct us_unified_form *us_unified_form_of(const struct us_cache *c)
{
    us_reads(&c->policy, sizeof(c->policy));
    return c->policy->form;
}
/* Of rows that not every form has; the others are read from c->tunable. */
US_INLINE int64_t us_unified_setting(const struct us_cache *c, enum us_unified_tunable row)
{
    us_reads(&c->policy, sizeof(c->policy));
    if (row < c->policy->ntunables)
        us_reads(&c->tunable[row], sizeof(*c->tunable));
    return row < c->policy->ntunables ? c->tunable[row] : us_unified_form_of(c)->fixed[row];
}
US_INLINE struct us_unified *us_unified_of(const struct us_cache *c)
{
    us_reads(&c->state, sizeof(c->state));
    return c->state;
}
US_INLINE struct us_queue *us_unified_shared(const struct us_cache *c, unsigned cpu)
{
    struct us_queue **of = us_unified_of(c)->shared_of;

    us_reads(&us_unified_of(c)->shared_of, sizeof(of));
    us_reads(&of[cpu], sizeof(*of));
    return of[cpu];
}
/* The list whose lock guards the slab. */
US_INLINE struct us_unified_list *us_unified_list_of(const struct us_cache *c,
                                                     const struct us_slab *s)
{
    us_reads(&us_unified_of(c)->list, sizeof(struct us_unified_list *));
    return &us_unified_of(c)->list[s->group];
}
/* The list of the node that a CPU looks at first. */
US_INLINE struct us_unified_list *us_unified_list_for(const struct us_cache *c, unsigned cpu,
                                                      unsigned node)
{
    const struct us_unified *st = us_unified_of(c);
    struct us_unified_list *l = st->of_cpu[cpu];

    us_reads(&st->of_cpu, sizeof(st->of_cpu));
    us_reads(&st->of_cpu[cpu], sizeof(*st->of_cpu));
    us_reads(&l->node, sizeof(l->node));
    if (l->node == node)
        return l;
    us_reads(&st->of_node, sizeof(st->of_node));
    us_reads(&st->of_node[node], sizeof(*st->of_node));
    return st->of_node[node];
}
US_INLINE struct us_queue *us_unified_alien(const struct us_cache *c, unsigned cpu, unsigned node)
{
    const struct us_unified_domain *d =
        &us_unified_of(c)->domain[us_domain_of_cpu(c->machine, cpu)];

    us_reads(&us_unified_of(c)->domain, sizeof(d));
    us_reads(d, sizeof(*d));
    if (d->alien)
        us_reads(&d->alien[node], sizeof(*d->alien));
    return d->alien ? d->alien[node] : NULL;
}

/* unified_queues.c */
uint32_t us_unified_real_capacity(uint32_t queue);
uint32_t us_unified_rule_queue(const struct us_cache *c); /* by object size */
void us_unified_plan(struct us_cache *c, struct us_unified *st);
bool us_unified_batch_fits(const struct us_cache *c, int64_t batch, uint32_t queue);
enum us_status us_unified_refuse_batch(const struct us_cache *c, int64_t value, uint32_t queue,
                                       struct us_error *e);
enum us_status us_unified_needs_nodes(const struct us_cache *c, struct us_error *e);
bool us_unified_make_queues(struct us_cache *c);
void us_unified_point_cpus(struct us_cache *c);                       /* after st->domain changed */
void us_unified_drop_queues(struct us_cache *c, struct us_flight *f); /* f NULL: they are empty */
struct us_ring_plan us_unified_ring_plan(const struct us_cache *c);

/* unified_slabs.c: the lists; false = no memory, and what there is must be dropped. */
bool us_unified_make_lists(struct us_cache *c);
void us_unified_drop_lists(struct us_cache *c);
/* Between queues and slabs. All may be called with a control, alien or shared lock
 * held, never with a node lock. */
/* Puts objects of any nodes back to their slabs; nothing is lost when locks cannot be had. */
void us_unified_drain(struct us_cache *c, struct us_flight *f, unsigned cpu, void **object,
                      unsigned n);
/* Up to n objects of the node's partial slabs, later ones hotter; *refused: a lock was not to be
 * had. */
unsigned us_unified_from_partial(struct us_cache *c, struct us_flight *f, unsigned cpu,
                                 unsigned node, void **out, unsigned n, bool *refused);
/* One slab's free objects, at most n, from the tail of the node's list (alien allocations). */
unsigned us_unified_from_tail(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                              void **out, unsigned n, bool *refused);
/* Objects of a new slab near `node`; the rest of it goes on its node's partial list. A slab that
 * the provider had to take from another node gives one object only, unless the form queues it.
 * *where is its node. */
unsigned us_unified_from_new(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                             unsigned flags, void **out, unsigned n, bool at_tail, unsigned *where);

/* unified_resize.c: what is asked for; 0 or -1 leaves a size to the rules, as in the tunables. */
struct us_unified_sizes {
    int64_t queue, batch, shared, alien;
    uint32_t grown_queue, grown_shared;
};
struct us_unified_sizes us_unified_sizes_of(const struct us_cache *c);
/* Alone in the allocator: makes the queues follow a wish, objects moving over; all or nothing. */
enum us_status us_unified_resize(struct us_cache *c, struct us_flight *f,
                                 const struct us_unified_sizes *wish, struct us_error *e);

/* unified.c: frees that signal handlers had to leave behind go to their slabs. */
void us_unified_check_deferred(struct us_cache *c, struct us_flight *f, unsigned node);

/* unified.c: parts of the slow paths. */
/* How many objects a miss on the CPU's ring asks the next level for. */
uint32_t us_unified_refill_size(const struct us_cache *c, const struct us_flight *f, unsigned cpu);
/* Room that the shared queue offers, the byte budget considered. A racy look before the lock. */
uint32_t us_unified_shared_room(const struct us_cache *c, const struct us_queue *q);
/* Moves objects on top of the shared queue; what finds no room goes to slabs. Returns how many the
 * queue took. */
unsigned us_unified_to_shared(struct us_cache *c, struct us_flight *f, unsigned cpu,
                              struct us_queue *q, void **object, unsigned n);

/* unified_bulk.c: the `take` and `put` of struct us_cpu_past. */
size_t us_unified_take_straight(struct us_cache *c, size_t left, void **out);
size_t us_unified_put_straight(struct us_cache *c, size_t n, void *const *object);

/* unified_adapt.c */
/* Traffic that a look will judge. Told once a look: the line is read by every CPU. */
US_INLINE void us_unified_stir(struct us_cache *c)
{
    struct us_unified *st = us_unified_of(c);

    us_runs(5);
    us_reads(&st->stirred, sizeof(st->stirred));
    if (atomic_load_explicit(&st->stirred, memory_order_relaxed))
        return;
    us_writes(&st->stirred, sizeof(st->stirred));
    atomic_store_explicit(&st->stirred, true, memory_order_relaxed);
}
uint64_t us_unified_adapt_period(const struct us_cache *c);
bool us_unified_wants_adapt(struct us_cache *c);
void us_unified_adapt(struct us_cache *c, struct us_flight *f);

/* unified_age.c */
void us_unified_expire_begin(struct us_cache *c);
uint64_t us_unified_expire(struct us_cache *c, struct us_flight *f, unsigned node,
                           enum us_stage stage, uint64_t target, bool try_only);
void us_unified_flush_cpu(struct us_cache *c, struct us_flight *f, unsigned cpu, bool try_only);
uint64_t us_unified_shrink(struct us_cache *c, struct us_flight *f, unsigned node, bool try_only);
uint64_t us_unified_expire_cpu(struct us_cache *c, struct us_flight *f, unsigned cpu);
bool us_unified_tick_closes(const struct us_cache *c, unsigned cpu, uint64_t now);
void us_unified_tick(struct us_cache *c, struct us_flight *f, unsigned cpu, uint64_t now);
uint64_t us_unified_tick_period(const struct us_cache *c);

/* unified_tables.c */
extern const struct us_tunable us_unified_tunables[];
extern const struct us_counter us_unified_counters[];
enum us_status us_unified_geometry(struct us_cache *c, struct us_error *e);
const uint32_t *us_unified_general_sizes(const struct us_machine *m);

#endif
