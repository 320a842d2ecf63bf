/* slab.h - state of one cache under the policy `slab`, shared by the slab_*.c files. */
#ifndef US_POLICY_SLAB_H
#define US_POLICY_SLAB_H

#include "policy/policy.h"
#include "queue/queue.h"

#define US_SLABP_DESCRIPTOR   48 /* bytes of the original's slab descriptor, without its index */
#define US_SLABP_ARRAY_HEADER 24 /* bytes of its array_cache: four words of 4, a lock */
#define US_SLABP_BOUNCE       16 /* refill of an untouched array */
#define US_SLABP_ALIEN_LIMIT  12
#define US_SLABP_DEBUG_LIMIT  32          /* of CPU arrays of caches with debug F, unless given */
#define US_SLABP_SHARED       8           /* batches in a shared array */
#define US_SLABP_CPU_PERIOD   2000000000u /* ns between reaps of a CPU's arrays */
#define US_SLABP_NODE_PERIOD  4000000000u /* and of a node's */

/* clang-format off */
/* row: id, name, unit, min, max, default, flags, get, set, help */
#define US_SLABP_TUNABLES(row)                                                                    \
    row(LIMIT, "limit", "objects", 1, US_RING_MAX, 0, 0, get_limit, set_limit,                    \
        "capacity of each CPU array; 0 at creation = by object size; at least batchcount")        \
    row(BATCHCOUNT, "batchcount", "objects", 1, US_RING_MAX, 0, 0, get_batchcount, set_batchcount,\
        "objects moved at once, at most limit; 0 at creation = half of it")                       \
    row(SHARED, "shared", "batches", 0, US_RING_MAX, -1, 0, get_shared, set_shared,               \
        "a node's shared array holds shared * batchcount objects; 0 = none; -1 at creation = 8 "  \
        "for objects up to a page on more than one CPU, else 0")                                  \
    row(ALIEN, "use_alien_caches", "0/1", 0, 1, 1, US_T_CREATE, NULL, NULL,                       \
        "0: frees of other nodes' objects go straight to their slabs (boot option noaliencache)") \
    row(BREAK_ORDER, "slab_break_gfp_order", "log2 pages", 0, US_MAX_ORDER, -1, US_T_CREATE,      \
        NULL, NULL,                                                                               \
        "order from which any left-over is accepted; -1 at creation = 1, or 0 with 32 MiB of "    \
        "memory or less") \
    row(FREE_LIMIT, "free_limit", "objects", 0, INT64_MAX, 0, US_T_READONLY, get_free_limit, NULL,\
        "objects free in a node's slabs above which emptied slabs go back: (1 + CPUs of the "     \
        "node) * batchcount + objects of a slab; of the node with most CPUs")                     \
    row(ALIEN_LIMIT, "alien_limit", "objects", 0, INT64_MAX, 0, US_T_READONLY, get_alien_limit,   \
        NULL, "capacity of each alien array")                                                     \
    row(ACTIVE, "num_active", "objects", 0, INT64_MAX, 0, US_T_READONLY, get_active, NULL,        \
        "objects out of their slabs: in use or in arrays")                                        \
    row(FREE_OBJECTS, "free_objects", "objects", 0, INT64_MAX, 0, US_T_READONLY,                  \
        get_free_objects, NULL, "objects free in slabs")                                          \
    row(SHARED_AVAIL, "sharedavail", "objects", 0, INT64_MAX, 0, US_T_READONLY, get_shared_avail, \
        NULL, "objects in shared arrays")                                                         \
    row(COLOUR, "colour", "colours", 0, INT64_MAX, 0, US_T_READONLY, get_colour, NULL,            \
        "offsets that successive slabs of a node take in turn; 0 and 1: all begin alike")         \
    row(COLOUR_OFF, "colour_off", "bytes", 0, INT64_MAX, 0, US_T_READONLY, get_colour_off, NULL,  \
        "distance of two colours")                                                                \
    row(OFF_SLAB, "off_slab", "0/1", 0, 1, 0, US_T_READONLY, get_off_slab, NULL,                  \
        "1: slab descriptors come from a general cache; 0: each takes room in its slab")
/* clang-format on */

enum us_slabp_tunable {
#define US_ROW(id, name, unit, min, max, def, flags, get, set, help) US_SLABP_T_##id,
    US_SLABP_TUNABLES(US_ROW)
#undef US_ROW
        US_SLABP_NTUNABLES
};

/* A hidden row that takes from a common one is counted before the row that it corrects, so that who
 * reads meanwhile sees too little, never too much. */
/* clang-format off */
/* row: id, name, feeds, less, source, hidden, help */
#define US_SLABP_COUNTERS(row)                                                                    \
    row(ALLOCHIT, "allochit", US_ALLOC_FAST, US_FEEDS_NONE, US_FROM_POPS, false,                  \
        "popped from a non-empty CPU array")                                                      \
    row(ALLOCMISS, "allocmiss", US_ALLOC_SLOW, US_FEEDS_NONE, US_FROM_STATS, false,               \
        "CPU array empty: refilled from the shared array or from slabs")                          \
    row(FREEHIT, "freehit", US_FREE_FAST, US_FEEDS_NONE, US_FROM_PUSHES, false,                   \
        "pushed on a CPU array with room")                                                        \
    row(FREEMISS, "freemiss", US_FREE_SLOW, US_FEEDS_NONE, US_FROM_STATS, false,                  \
        "CPU array full: flushed to the shared array or to slabs")                                \
    row(LISTALLOCS, "listallocs", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false,             \
        "objects moved from slabs to CPU arrays")                                                 \
    row(MAXOBJS, "maxobjs", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false,                   \
        "most objects that were out of their slabs at once, those in arrays among them; each CPU "\
        "shows by how much it raised the mark")                                                   \
    row(GROWN, "grown", US_SLAB_NEW, US_FEEDS_NONE, US_FROM_STATS, false,                         \
        "slab obtained from the page provider")                                                   \
    row(REAPED, "reaped", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false,                     \
        "slab destroyed by the periodic reap")                                                    \
    row(ERRORS, "errors", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false,                     \
        "declared by the original and counted by nothing")                                        \
    row(MAXFREEABLE, "maxfreeable", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false,           \
        "longest list of entirely free slabs that a flush of a CPU array saw; shown as maxobjs")  \
    row(NODEALLOCS, "nodeallocs", US_ALLOC_REMOTE, US_FEEDS_NONE, US_FROM_STATS, false,           \
        "one object from a node's slabs past all arrays")                                         \
    row(REMOTEFREES, "remotefrees", US_FREE_REMOTE, US_FEEDS_NONE, US_FROM_STATS, false,          \
        "another node's object freed")                                                            \
    row(ALIENOVERFLOW, "alienoverflow", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false,       \
        "free of another node's object found the alien array full and drained it")                \
    row(MISS_SHARED, "miss_shared", US_ALLOC_SECOND_LEVEL, US_ALLOC_SLOW, US_FROM_STATS, true,    \
        "allocmiss served by the shared array")                                                   \
    row(MISS_LEFT, "miss_left", US_FEEDS_NONE, US_ALLOC_SLOW, US_FROM_STATS, true,                \
        "allocmiss that ended as a nodealloc or without an object")                               \
    row(NODE_LOCAL, "node_local", US_ALLOC_SLOW, US_ALLOC_REMOTE, US_FROM_STATS, true,            \
        "nodealloc of an object of the CPU's own node")                                           \
    row(FLUSH_SHARED, "flush_shared", US_FREE_SECOND_LEVEL, US_FREE_SLOW, US_FROM_STATS, true,    \
        "freemiss that reached only the shared array")                                            \
    row(DESTROYED, "destroyed", US_SLAB_FREE, US_FEEDS_NONE, US_FROM_STATS, true,                 \
        "slab returned to the page provider")
/* clang-format on */

enum us_slabp_counter {
#define US_ROW(id, name, feeds, less, source, hidden, help) US_SLABP_##id,
    US_SLABP_COUNTERS(US_ROW)
#undef US_ROW
        US_SLABP_NCOUNTERS
};

/* One node's slabs and the arrays that its CPUs share; the lock guards all but alien arrays. */
struct us_slabp_node {
    struct us_lock lock; /* class NODE, the list_lock */
    struct us_slab_list partial, full, free;
    uint64_t free_objects; /* in slabs of the lists partial and free */
    uint64_t free_limit;
    uint64_t next_reap; /* 0 = not yet planned */
    uint32_t colour_next;
    bool free_touched;       /* an allocation came to the free list since the last reap */
    struct us_queue *shared; /* NULL = none; its own lock is not used */
    struct us_queue *
        *alien; /* [nnodes], objects of other nodes; NULL = none at all, or none there */
} US_ALIGNED(US_LINE);

struct us_slabp {
    uint32_t limit, batchcount, shared;
    uint32_t alien_limit;                 /* 0 = no alien arrays */
    uint32_t colours, colour_off;         /* see the tunables of these names */
    _Atomic uint64_t active, most_active; /* objects out of slabs */
    _Atomic uint64_t most_freeable;
    uint32_t *rotor;            /* [ncpus] which foreign node's alien array a CPU reaps next */
    struct us_slabp_node *node; /* [nnodes] */
};

US_INLINE struct us_slabp *us_slabp_of(const struct us_cache *c)
{
    return c->state;
}
US_INLINE struct us_slabp_node *us_slabp_node_of(const struct us_cache *c, unsigned node)
{
    return &us_slabp_of(c)->node[node];
}
US_INLINE struct us_queue *us_slabp_alien(const struct us_cache *c, unsigned node, unsigned of)
{
    struct us_queue **alien = us_slabp_node_of(c, node)->alien;

    us_reads(&us_slabp_node_of(c, node)->alien, sizeof(alien));
    if (!alien)
        return NULL;
    us_reads(&alien[of], sizeof(*alien));
    return alien[of];
}
/* As a racy reader sees it. */
US_INLINE bool us_slabp_has_free(const struct us_cache *c, unsigned node)
{
    us_reads(&us_slabp_node_of(c, node)->free_objects, sizeof(uint64_t));
    return __atomic_load_n(&us_slabp_node_of(c, node)->free_objects, __ATOMIC_RELAXED) != 0;
}
/* An array is touched when something was popped since the last ageing pass. */
US_INLINE bool us_slabp_touched(const struct us_ring *r)
{
    const uint64_t seen = atomic_load_explicit(&((struct us_ring *)r)->seen, memory_order_relaxed);

    us_reads(r, 1);
    return seen == US_SEEN_TOUCHED || us_header_pops(seen) != us_header_pops(us_ring_header(r));
}
US_INLINE uint32_t us_slabp_room(const struct us_queue *q)
{
    const uint32_t size = q ? us_queue_size(q) : 0;

    if (q)
        us_reads(q, sizeof(*q));
    return q && size < q->capacity ? q->capacity - size : 0;
}

/* slab_lists.c: a node's three lists. No node lock may be held by the caller. */
/* Up to n objects for a CPU array, the last the hottest: from the top of the shared array
 * (*shared), else from slabs. *refused: the lock was not to be had. */
unsigned us_slabp_refill(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                         void **out, unsigned n, bool *shared, bool *refused);
/* One object past all arrays. */
void *us_slabp_take_one(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                        bool *refused);
/* Adds a new slab to the lists of its node, *where; false = no memory. */
bool us_slabp_grow(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                   unsigned flags, unsigned *where);
/* Objects of one node that leave a CPU array: on top of the shared array as far as there is room,
 * the oldest then to slabs. Returns how many the shared array took. */
unsigned us_slabp_flush(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                        void **object, unsigned n);
/* Puts objects of any nodes back to their slabs; nothing is lost when locks cannot be had. */
void us_slabp_drain(struct us_cache *c, struct us_flight *f, unsigned cpu, void **object,
                    unsigned n);
/* Empties an alien array, whose lock is held, into the shared array of its objects' node and to
 * slabs; what is to be destroyed is added to *chain. False = the node's lock was not to be had. */
bool us_slabp_drain_alien(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_queue *a,
                          struct us_slab **chain, unsigned *to_slabs);
/* Puts n of the oldest of a node's shared array to slabs; returns how many. */
unsigned us_slabp_drain_shared(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                               unsigned n);
void us_slabp_destroy_chain(struct us_cache *c, struct us_flight *f, unsigned cpu,
                            struct us_slab *chain);
/* Destroys up to n slabs from the tail of a node's free list; returns how many. */
uint64_t us_slabp_destroy_free(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                               uint64_t n, bool try_only);

/* slab_arrays.c: sizes and life of arrays */
enum us_status us_slabp_plan(struct us_cache *c, struct us_slabp *st, struct us_error *e);
bool us_slabp_make_node(struct us_cache *c, unsigned node);
void us_slabp_drop_node(struct us_cache *c, unsigned node);
size_t us_slabp_array_bytes(uint32_t entries); /* of metadata that the original takes */
enum { US_SLABP_RUNS_PLAN = 54 };              /* with the two functions called (slab.c) */
US_INLINE struct us_ring_plan us_slabp_ring_plan(const struct us_cache *c)
{
    const uint32_t limit = us_slabp_of(c)->limit;

    us_runs(US_SLABP_RUNS_PLAN);
    us_reads(us_slabp_of(c), sizeof(struct us_slabp));
    return (struct us_ring_plan){.capacity = limit, .account = us_slabp_array_bytes(limit)};
}
/* Counts the node's CPUs anew for its free_limit. */
void us_slabp_limit_free(struct us_cache *c, struct us_flight *f, unsigned node);
/* Alone in the allocator: what /proc/slabinfo takes, limit, batchcount and shared at once. */
struct us_slabp_tuning {
    int64_t limit, batchcount, shared;
};
enum us_status us_slabp_tune(struct us_cache *c, struct us_flight *f, struct us_slabp_tuning wish,
                             struct us_error *e);

/* slab.c: takes in what signal handlers had to leave behind. */
void us_slabp_check_deferred(struct us_cache *c, struct us_flight *f, unsigned node);

/* slab_reap.c */
bool us_slabp_tick_closes(const struct us_cache *c, unsigned cpu, uint64_t now);
void us_slabp_tick(struct us_cache *c, struct us_flight *f, unsigned cpu, uint64_t now);
uint64_t us_slabp_tick_period(const struct us_cache *c);
void us_slabp_flush_cpu(struct us_cache *c, struct us_flight *f, unsigned cpu, bool try_only);
void us_slabp_cpu_offline(struct us_cache *c, struct us_flight *f, unsigned cpu);
void us_slabp_cpu_online(struct us_cache *c, struct us_flight *f, unsigned cpu);
uint64_t us_slabp_shrink(struct us_cache *c, struct us_flight *f, unsigned node, bool try_only);

/* slab_tables.c */
extern const struct us_tunable us_slabp_tunables[];
extern const struct us_counter us_slabp_counters[];
enum us_status us_slabp_geometry(struct us_cache *c, struct us_error *e);
const uint32_t *us_slabp_general_sizes(const struct us_machine *m);
size_t us_slabp_general_size(size_t bytes); /* the least general cache's that holds them */

#endif
