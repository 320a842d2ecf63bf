/* slub.h - state of one cache under the SLUB family, shared by the slub*.c files.
 *
 * Three policies are registered from here: slub and slub-thrash (slub.c, slub_slab.c,
 * slub_thrash.c), which differ by a tunable, and slub-partial (slub_partial*.c). They have in
 * common the fast paths, the way into a slow path and a cache's life (slub_paths.c), geometry and
 * most tunables (slub_tunables.c) and what can be seen of them (slub_look.c).
 */
#ifndef US_POLICY_SLUB_H
#define US_POLICY_SLUB_H

#include "policy/policy.h"
#include "slab/listed.h"

enum us_slub_epoch { US_SLUB_2_6_25, US_SLUB_2_6_32, US_SLUB_3_2, US_SLUB_5_16 };

/* Codes of the rules that min_objects accepts beside a number; outside the range of numbers. */
enum us_slub_rule {
    US_SLUB_RULE_DEFAULT = -1,  /* 4*(fls+1) */
    US_SLUB_RULE_8_1 = -2,      /* 8+(1+fls)*4 */
    US_SLUB_RULE_8_2 = -3,      /* 8+(2+fls)*4 */
    US_SLUB_RULE_PER_NODE = -4, /* 2*cpus_per_node */
};

enum us_slub_mode { US_SLUB_OFF, US_SLUB_RATIO, US_SLUB_MOSTFREE };

#define US_SLUB_MIN_PARTIAL 5
#define US_SLUB_MAX_PARTIAL 10
#define US_SLUB_OBJECTS_MAX 65535 /* a slab counts its objects in 16 bits; since 3.2 in 15 */

/* clang-format off */

/* row: id, name, unit, min, max, default, flags, choices, get, set, help
 * A default below min stands for "computed": the epoch or the object size decides. */
#define US_SLUB_SHARED_TUNABLES(row)                                                              \
    row(MIN_OBJECTS, "min_objects", "objects", 0, US_SLUB_OBJECTS_MAX, 0, US_T_CREATE,            \
        us_slub_rules, NULL, NULL,                                                                \
        "objects a slab should hold at least: a number, a rule of the number of CPUs (fls = its " \
        "highest set bit), or 0 = as the epoch does")                                             \
    row(MAX_ORDER, "max_order", "log2 pages", 0, US_MAX_ORDER, -1, US_T_CREATE,                   \
        NULL, NULL, NULL,                                                                         \
        "largest order that the search for a good slab size considers")                           \
    row(MIN_ORDER, "min_order", "log2 pages", 0, US_MAX_ORDER, 0, US_T_CREATE,                    \
        NULL, NULL, NULL,                                                                         \
        "smallest order that the search for a good slab size considers")                          \
    row(DEFRAG_RATIO, "remote_node_defrag_ratio", "percent", 0, 100, -1, 0,                       \
        NULL, NULL, us_slub_set_defrag_ratio,                                                     \
        "how often other nodes' partial slabs are tried before a new slab")                       \
    row(ORDER, "order", "log2 pages", 0, US_MAX_ORDER, -1, 0,                                     \
        NULL, us_shape_order, us_slub_set_order,                                                  \
        "order of future slabs, within min_order and max_order")                                  \
    row(OBJS_PER_SLAB, "objs_per_slab", "objects", 0, INT64_MAX, 0, US_T_READONLY,                \
        NULL, us_shape_objects, NULL,                                                             \
        "objects of a slab of the preferred order")                                               \
    row(SLAB_SIZE, "slab_size", "bytes", 0, INT64_MAX, 0, US_T_READONLY,                          \
        NULL, us_shape_stride, NULL,                                                              \
        "stride of an object, padding and link included")                                         \
    row(OBJECT_SIZE, "object_size", "bytes", 0, INT64_MAX, 0, US_T_READONLY,                      \
        NULL, us_shape_size, NULL,                                                                \
        "bytes asked for")                                                                        \
    row(ALIGN, "align", "bytes", 0, INT64_MAX, 0, US_T_READONLY,                                  \
        NULL, us_shape_align, NULL,                                                               \
        "alignment of an object")                                                                 \
    row(PARTIAL, "partial", "slabs", 0, INT64_MAX, 0, US_T_READONLY,                              \
        NULL, us_slub_get_partial, NULL,                                                          \
        "slabs on partial lists of nodes")                                                        \
    row(CPU_SLABS, "cpu_slabs", "slabs", 0, INT64_MAX, 0, US_T_READONLY,                          \
        NULL, us_slub_get_cpu_slabs, NULL,                                                        \
        "slabs owned by CPUs")                                                                    \
    row(SLABS, "slabs", "slabs", 0, INT64_MAX, 0, US_T_READONLY,                                  \
        NULL, us_shape_slabs, NULL,                                                               \
        "slabs of the cache")                                                                     \
    row(TOTAL_OBJECTS, "total_objects", "objects", 0, INT64_MAX, 0, US_T_READONLY,                \
        NULL, us_shape_total_objects, NULL,                                                       \
        "objects that all slabs can hold")

/* The first rows differ by policy, not in number and order. */
#define US_SLUB_TUNABLES(row)                                                                     \
    row(EPOCH, "epoch", "kernel", 0, 1, US_SLUB_2_6_32, US_T_CREATE,                              \
        epochs, NULL, NULL,                                                                       \
        "2.6.25: min_objects 4, max_order 1, min_partial 5; 2.6.32: scaled by CPUs and size")     \
    row(MIN_PARTIAL, "min_partial", "slabs", US_SLUB_MIN_PARTIAL, US_SLUB_MAX_PARTIAL, -1, 0,     \
        NULL, NULL, us_slub_set_min_partial,                                                      \
        "partial slabs of a node below which an emptied CPU slab is kept")                        \
    row(PREFETCH, "prefetch", "0/1", 0, 1, 0, 0,                                                  \
        NULL, NULL, us_slub_set_prefetch,                                                         \
        "1: an allocation prefetches the link of the next free object")                           \
    US_SLUB_SHARED_TUNABLES(row)

#define US_SLUB_THRASH_TUNABLES(row)                                                              \
    US_SLUB_TUNABLES(row)                                                                         \
    row(MODE, "mode", "mode", US_SLUB_OFF, US_SLUB_MOSTFREE, US_SLUB_RATIO, 0,                    \
        modes, NULL, NULL,                                                                        \
        "off: SLUB; ratio (reconstructed): a CPU that thrashes passes over slabs with few free "  \
        "objects; mostfree: takes the first slab with enough free objects, else the one with "    \
        "most")                                                                                   \
    row(THRASH_RATIO, "slab_thrash_ratio", "percent", 0, 100, 25, 0,                              \
        NULL, NULL, NULL,                                                                         \
        "share of a slab's objects that must be free (mode ratio: reconstructed); 0 = off")

/* clang-format on */

enum us_slub_tunable {
#define US_ROW(id, name, unit, min, max, def, flags, choices, get, set, help) US_SLUB_T_##id,
    US_SLUB_THRASH_TUNABLES(US_ROW)
#undef US_ROW
        US_SLUB_THRASH_NTUNABLES,
    US_SLUB_NTUNABLES = US_SLUB_T_MODE
};

/* clang-format off */

/* row: id, name, feeds, less, source, hidden, help. These are rows of slub-partial, too. */
#define US_SLUB_GIVEN_UP_COUNTERS(row)                                                            \
    row(FREE_SLAB, "free_slab", US_SLAB_FREE, US_FEEDS_NONE, US_FROM_STATS, false,                \
        "slab returned to the page provider by a free or a deactivation")                         \
    row(CPUSLAB_FLUSH, "cpuslab_flush", US_FLUSH, US_FEEDS_NONE, US_FROM_STATS, false,            \
        "CPU slab given up by a flush, or because another was installed meanwhile")               \
    row(DEACTIVATE_FULL, "deactivate_full", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false,   \
        "deactivated CPU slab had no free object")

#define US_SLUB_DEACTIVATED_COUNTERS(row)                                                         \
    row(DEACTIVATE_TO_HEAD, "deactivate_to_head", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS,    \
        false, "deactivated CPU slab went to the head of its node's list")                        \
    row(DEACTIVATE_TO_TAIL, "deactivate_to_tail", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS,    \
        false, "deactivated CPU slab went to the tail of its node's list")                        \
    row(DEACTIVATE_REMOTE_FREES, "deactivate_remote_frees", US_FEEDS_NONE, US_FEEDS_NONE,         \
        US_FROM_STATS, false, "deactivated CPU slab had objects on its own freelist")

#define US_SLUB_HIDDEN_COUNTERS(row)                                                              \
    row(SHRINK_SLAB, "shrink_slab", US_SLAB_FREE, US_FEEDS_NONE, US_FROM_STATS, true,             \
        "slab returned to the page provider by shrink")                                           \
    row(MOVED, "moved", US_OBJECTS_MOVED, US_FEEDS_NONE, US_FROM_STATS, true,                     \
        "objects moved between a slab's own freelist and a CPU's")

#define US_SLUB_COUNTERS(row)                                                                     \
    row(ALLOC_FASTPATH, "alloc_fastpath", US_ALLOC_FAST, US_FEEDS_NONE, US_FROM_POPS, false,      \
        "popped from the CPU's freelist")                                                         \
    row(ALLOC_SLOWPATH, "alloc_slowpath", US_ALLOC_SLOW, US_FEEDS_NONE, US_FROM_STATS, false,     \
        "taken from a slab's own freelist under its lock")                                        \
    row(FREE_FASTPATH, "free_fastpath", US_FREE_FAST, US_FEEDS_NONE, US_FROM_PUSHES, false,       \
        "pushed on the CPU's freelist: the object is of the CPU slab")                            \
    row(FREE_SLOWPATH, "free_slowpath", US_FREE_SLOW, US_FEEDS_NONE, US_FROM_STATS, false,        \
        "put back to a slab's own freelist under its lock")                                       \
    row(FREE_FROZEN, "free_frozen", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false,           \
        "slow free to a slab that some CPU owns")                                                 \
    row(FREE_ADD_PARTIAL, "free_add_partial", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false, \
        "slow free made a full slab partial")                                                     \
    row(FREE_REMOVE_PARTIAL, "free_remove_partial", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS,  \
        false, "slow free emptied a slab and took it off its list")                               \
    row(ALLOC_FROM_PARTIAL, "alloc_from_partial", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS,    \
        false, "CPU slab acquired from a partial list")                                           \
    row(ALLOC_SLAB, "alloc_slab", US_SLAB_NEW, US_FEEDS_NONE, US_FROM_STATS, false,               \
        "slab obtained from the page provider")                                                   \
    row(ALLOC_REFILL, "alloc_refill", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false,         \
        "slow path found an own CPU slab of the right node, even if that proved empty")           \
    US_SLUB_GIVEN_UP_COUNTERS(row)                                                                \
    row(DEACTIVATE_EMPTY, "deactivate_empty", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false, \
        "deactivated CPU slab had no object in use")                                              \
    US_SLUB_DEACTIVATED_COUNTERS(row)                                                             \
    row(ORDER_FALLBACK, "order_fallback", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false,     \
        "preferred order refused, smallest order used")                                           \
    row(ALLOC_OFF_NODE, "alloc_off_node", US_ALLOC_REMOTE, US_ALLOC_SLOW, US_FROM_STATS, true,    \
        "slow allocation from a slab of another node than the CPU's")                             \
    row(FREE_OFF_NODE, "free_off_node", US_FREE_REMOTE, US_FREE_SLOW, US_FROM_STATS, true,        \
        "slow free to a slab of another node than the CPU's")                                     \
    US_SLUB_HIDDEN_COUNTERS(row)

#define US_SLUB_THRASH_COUNTERS(row)                                                              \
    US_SLUB_COUNTERS(row)                                                                         \
    row(DEFERRED_PARTIAL, "deferred_partial", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false, \
        "mode ratio (reconstructed): a scan found no partial slab with enough free objects")

/* clang-format on */

enum us_slub_counter {
#define US_ROW(id, name, feeds, less, source, hidden, help) US_SLUB_##id,
    US_SLUB_THRASH_COUNTERS(US_ROW)
#undef US_ROW
        US_SLUB_THRASH_NCOUNTERS,
    US_SLUB_NCOUNTERS = US_SLUB_DEFERRED_PARTIAL
};

/* What one slow allocation asks for. */
struct us_slub_ask {
    struct us_cache *c;
    struct us_flight *f;
    unsigned flags;
    unsigned cpu;          /* where it counts */
    unsigned home;         /* node that is searched first */
    int node;              /* asked for, or US_ANY_NODE */
    bool pinned;           /* other nodes' partial slabs are out of question */
    struct us_slab *extra; /* slub-partial: slabs gathered beside the one that serves */
};

/* The slow paths of a policy of the family. */
struct us_slub_paths {
    void *(*allocate)(struct us_slub_ask *a);
    /* Puts an object back to its slab. False: a lock was not to be had in a signal handler. `late`:
     * a handler freed it before; no CPU's stock is added to, which may have been flushed just now.
     */
    bool (*put)(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_slab *s,
                void *object, bool late);
    /* Gives up a private slab that is frozen. Not for nested flights. */
    void (*deactivate)(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_slab *s);
    bool page_lock; /* slabs have a lock of their own */
    unsigned alloc_slab, order_fallback, cpuslab_flush, shrink_slab; /* rows of these counters */
};

struct us_slub_thrash;

struct us_slub {
    const struct us_slub_paths *paths;
    uint32_t min_partial;          /* changed with the gate shut */
    uint32_t defrag_threshold;     /* of 1024, as stored by the original: ten times percent */
    struct us_partial *node;       /* [nnodes] */
    struct us_slub_thrash *thrash; /* slub-thrash: [ncpus] */
    size_t bytes;                  /* of the struct that begins with this one */
};

US_INLINE struct us_slub *us_slub_of(const struct us_cache *c)
{
    return c->state;
}

US_INLINE struct us_partial *us_slub_node_of(const struct us_cache *c, const struct us_slab *s)
{
    return &us_slub_of(c)->node[s->node];
}

/* ---- slub_paths.c -------------------------------------------------------------------- */

/* Calls `visit` for the other nodes whose partial lists are longer than they must be, the nearest
 * number first, until it returns a slab; NULL at once when the ratio says so. */
struct us_slab *us_slub_elsewhere(struct us_slub_ask *a,
                                  struct us_slab *(*visit)(struct us_slub_ask *a,
                                                           struct us_partial *p));
/* Takes the slab off the calling CPU's word 0, its counts harvested. NULL: none, or closed. */
struct us_slab *us_slub_detach(struct us_cache *c, struct us_flight *f, unsigned *cpu);
/* What a slab that came off word 0 of a CPU has counted, harvested. */
struct us_slab *us_slub_settle(struct us_cache *c, unsigned cpu, struct us_list *list);
/* Makes a private slab the CPU's; deactivates it when that CPU was left or its region is closed. */
void us_slub_install(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_slab *s);
/* A new slab, private and counted. The caller may run on another CPU afterwards. */
struct us_slab *us_slub_new_slab(struct us_slub_ask *a);
/* The page provider has failed: whatever its efforts brought to partial lists, of all nodes that
 * the caller allows. */
void *us_slub_after_failure(struct us_slub_ask *a,
                            void *(*take)(struct us_slub_ask *a, struct us_partial *p));
uint64_t us_slub_shrink(struct us_cache *c, struct us_flight *f, unsigned node, bool try_only);
/* Frees that signal handlers had to leave behind. */
void us_slub_check_deferred(struct us_cache *c, struct us_flight *f, unsigned node);

/* Entries with or without the prefetch, as the tunable says. */
void us_slub_choose_entries(struct us_cache *c);

/* The state has `bytes` and begins with struct us_slub. */
enum us_status us_slub_create(struct us_cache *c, const struct us_slub_paths *paths, size_t bytes,
                              struct us_error *e);
void us_slub_destroy(struct us_cache *c);

/* ---- slub_tunables.c, slub_look.c ---------------------------------------------------- */

extern const struct us_choice us_slub_rules[];
enum us_status us_slub_set_min_partial(struct us_cache *c, struct us_flight *f, int64_t value,
                                       struct us_error *e);
enum us_status us_slub_set_defrag_ratio(struct us_cache *c, struct us_flight *f, int64_t value,
                                        struct us_error *e);
enum us_status us_slub_set_prefetch(struct us_cache *c, struct us_flight *f, int64_t value,
                                    struct us_error *e);
enum us_status us_slub_set_order(struct us_cache *c, struct us_flight *f, int64_t value,
                                 struct us_error *e);
int64_t us_slub_get_partial(struct us_cache *c);
int64_t us_slub_get_cpu_slabs(struct us_cache *c);
enum us_status us_slub_geometry(struct us_cache *c, struct us_error *e);
void us_slub_visit(struct us_cache *c, const struct us_visitor *v);

/* slub_tables.c: slub's and slub-thrash's */
extern const struct us_tunable us_slub_tunables[], us_slub_thrash_tunables[];
extern const struct us_counter us_slub_counters[], us_slub_thrash_counters[];

#endif
