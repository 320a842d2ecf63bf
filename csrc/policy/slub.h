/* slub.h - state of one cache under SLUB with the page lock, shared by the slub_*.c files. */
#ifndef US_POLICY_SLUB_H
#define US_POLICY_SLUB_H

#include "policy/policy.h"

enum us_slub_epoch { US_SLUB_2_6_25, US_SLUB_2_6_32 };

/* Codes of the rules that min_objects accepts beside a number; outside the range of numbers. */
enum us_slub_rule {
    US_SLUB_RULE_DEFAULT = -1,  /* 4*(fls+1) */
    US_SLUB_RULE_8_1 = -2,      /* 8+(1+fls)*4 */
    US_SLUB_RULE_8_2 = -3,      /* 8+(2+fls)*4 */
    US_SLUB_RULE_PER_NODE = -4, /* 2*cpus_per_node */
};

#define US_SLUB_MIN_PARTIAL 5
#define US_SLUB_MAX_PARTIAL 10
#define US_SLUB_OBJECTS_MAX 65535 /* a slab counts its objects in 16 bits */

/* row: id, name, unit, min, max, default, flags, choices, get, set, help
 * A default below min stands for "computed": the epoch or the object size decides. */
#define US_SLUB_TUNABLES(row)                                                                      \
    row(EPOCH, "epoch", "kernel", 0, 1, US_SLUB_2_6_32, US_T_CREATE, epochs, NULL, NULL,           \
        "2.6.25: min_objects 4, max_order 1, min_partial 5; 2.6.32: scaled by CPUs and size")      \
        row(MIN_OBJECTS, "min_objects", "objects", 0, US_SLUB_OBJECTS_MAX, 0, US_T_CREATE, rules,  \
            NULL, NULL,                                                                            \
            "objects a slab should hold at least: a number, a rule of the number of CPUs (fls = "  \
            "its "                                                                                 \
            "highest set bit), or 0 = as the epoch does")                                          \
            row(MAX_ORDER, "max_order", "log2 pages", 0, US_MAX_ORDER, -1, US_T_CREATE, NULL,      \
                NULL, NULL, "largest order that the search for a good slab size considers")        \
                row(MIN_ORDER, "min_order", "log2 pages", 0, US_MAX_ORDER, 0, US_T_CREATE, NULL,   \
                    NULL, NULL, "smallest order that the search for a good slab size considers")   \
                    row(MIN_PARTIAL, "min_partial", "slabs", US_SLUB_MIN_PARTIAL,                  \
                        US_SLUB_MAX_PARTIAL, -1, 0, NULL, NULL, set_min_partial,                   \
                        "partial slabs of a node below which an emptied CPU slab is kept")         \
                        row(DEFRAG_RATIO, "remote_node_defrag_ratio", "percent", 0, 100, -1, 0,    \
                            NULL, NULL, set_defrag_ratio,                                          \
                            "how often other nodes' partial slabs are tried before a new slab")    \
                            row(PREFETCH, "prefetch", "0/1", 0, 1, 0, 0, NULL, NULL, set_prefetch, \
                                "1: an allocation prefetches the link of the next free object")    \
                                row(ORDER, "order", "log2 pages", 0, US_MAX_ORDER, -1, 0, NULL,    \
                                    get_order, set_order,                                          \
                                    "order of future slabs, within min_order and max_order")       \
                                    row(OBJS_PER_SLAB, "objs_per_slab", "objects", 0, INT64_MAX,   \
                                        0, US_T_READONLY, NULL, get_objs_per_slab, NULL,           \
                                        "objects of a slab of the preferred order")                \
                                        row(SLAB_SIZE, "slab_size", "bytes", 0, INT64_MAX, 0,      \
                                            US_T_READONLY, NULL, get_slab_size, NULL,              \
                                            "stride of an object, padding and link included")      \
                                            row(OBJECT_SIZE, "object_size", "bytes", 0, INT64_MAX, \
                                                0, US_T_READONLY, NULL, get_object_size, NULL,     \
                                                "bytes asked for") row(ALIGN, "align", "bytes", 0, \
                                                                       INT64_MAX, 0,               \
                                                                       US_T_READONLY, NULL,        \
                                                                       get_align, NULL,            \
                                                                       "alignment of an object")   \
                                                row(PARTIAL, "partial", "slabs", 0, INT64_MAX, 0,  \
                                                    US_T_READONLY, NULL, get_partial, NULL,        \
                                                    "slabs on partial lists")                      \
                                                    row(CPU_SLABS, "cpu_slabs", "slabs", 0,        \
                                                        INT64_MAX, 0, US_T_READONLY, NULL,         \
                                                        get_cpu_slabs, NULL,                       \
                                                        "slabs owned by CPUs")                     \
                                                        row(SLABS, "slabs", "slabs", 0, INT64_MAX, \
                                                            0, US_T_READONLY, NULL, get_slabs,     \
                                                            NULL, "slabs of the cache")            \
                                                            row(TOTAL_OBJECTS, "total_objects",    \
                                                                "objects", 0, INT64_MAX, 0,        \
                                                                US_T_READONLY, NULL,               \
                                                                get_total_objects, NULL,           \
                                                                "objects that all slabs can hold")

enum us_slub_tunable {
#define US_ROW(id, name, unit, min, max, def, flags, choices, get, set, help) US_SLUB_T_##id,
    US_SLUB_TUNABLES(US_ROW)
#undef US_ROW
        US_SLUB_NTUNABLES
};

/* row: id, name, feeds, less, source, hidden, help */
#define US_SLUB_COUNTERS(row)                                                                      \
    row(ALLOC_FASTPATH, "alloc_fastpath", US_ALLOC_FAST, US_FEEDS_NONE, US_FROM_POPS, false,       \
        "popped from the CPU's freelist") row(ALLOC_SLOWPATH, "alloc_slowpath", US_ALLOC_SLOW,     \
                                              US_FEEDS_NONE, US_FROM_STATS, false,                 \
                                              "taken from a slab's own freelist under its lock")   \
        row(FREE_FASTPATH, "free_fastpath", US_FREE_FAST, US_FEEDS_NONE, US_FROM_PUSHES, false,    \
            "pushed on the CPU's freelist: the object is of the CPU slab")                         \
            row(FREE_SLOWPATH, "free_slowpath", US_FREE_SLOW, US_FEEDS_NONE, US_FROM_STATS, false, \
                "put back to a slab's own freelist under its lock") row(FREE_FROZEN,               \
                                                                        "free_frozen",             \
                                                                        US_FEEDS_NONE,             \
                                                                        US_FEEDS_NONE,             \
                                                                        US_FROM_STATS, false,      \
                                                                        "slow free to a slab "     \
                                                                        "that some CPU owns")      \
                row(FREE_ADD_PARTIAL, "free_add_partial", US_FEEDS_NONE, US_FEEDS_NONE,            \
                    US_FROM_STATS, false,                                                          \
                    "slow free made a full slab partial") row(FREE_REMOVE_PARTIAL,                 \
                                                              "free_remove_partial",               \
                                                              US_FEEDS_NONE, US_FEEDS_NONE,        \
                                                              US_FROM_STATS, false,                \
                                                              "slow free emptied a slab and took " \
                                                              "it off its list")                   \
                    row(ALLOC_FROM_PARTIAL, "alloc_from_partial", US_FEEDS_NONE, US_FEEDS_NONE,    \
                        US_FROM_STATS, false,                                                      \
                        "CPU slab acquired from a partial list") row(ALLOC_SLAB, "alloc_slab",     \
                                                                     US_SLAB_NEW, US_FEEDS_NONE,   \
                                                                     US_FROM_STATS, false,         \
                                                                     "slab obtained from the "     \
                                                                     "page provider")              \
                        row(ALLOC_REFILL, "alloc_refill", US_FEEDS_NONE, US_FEEDS_NONE,            \
                            US_FROM_STATS, false,                                                  \
                            "slow path found an own CPU slab of the right node, even if that "     \
                            "proved empty") row(FREE_SLAB, "free_slab", US_SLAB_FREE,              \
                                                US_FEEDS_NONE, US_FROM_STATS, false,               \
                                                "slab returned to the page provider by a free or " \
                                                "a deactivation")                                  \
                            row(CPUSLAB_FLUSH, "cpuslab_flush", US_FLUSH, US_FEEDS_NONE,           \
                                US_FROM_STATS, false,                                              \
                                "CPU slab given up by a flush, or because another was installed "  \
                                "meanwhile") row(DEACTIVATE_FULL, "deactivate_full",               \
                                                 US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS,      \
                                                 false, "deactivated CPU slab had no free object") \
                                row(DEACTIVATE_EMPTY, "deactivate_empty", US_FEEDS_NONE,           \
                                    US_FEEDS_NONE, US_FROM_STATS, false,                           \
                                    "deactivated CPU slab had no object in use")                   \
                                    row(DEACTIVATE_TO_HEAD, "deactivate_to_head", US_FEEDS_NONE,   \
                                        US_FEEDS_NONE, US_FROM_STATS, false,                       \
                                        "deactivated CPU slab went to the head of its node's "     \
                                        "list")                                                    \
                                        row(DEACTIVATE_TO_TAIL, "deactivate_to_tail",              \
                                            US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false,    \
                                            "deactivated CPU slab went to the tail of its node's " \
                                            "list") row(DEACTIVATE_REMOTE_FREES,                   \
                                                        "deactivate_remote_frees", US_FEEDS_NONE,  \
                                                        US_FEEDS_NONE, US_FROM_STATS, false,       \
                                                        "deactivated CPU slab had objects on its " \
                                                        "own freelist")                            \
                                            row(ORDER_FALLBACK, "order_fallback", US_FEEDS_NONE,   \
                                                US_FEEDS_NONE, US_FROM_STATS, false,               \
                                                "preferred order refused, smallest order used")    \
                                                row(ALLOC_OFF_NODE, "alloc_off_node",              \
                                                    US_ALLOC_REMOTE, US_ALLOC_SLOW, US_FROM_STATS, \
                                                    true,                                          \
                                                    "slow allocation from a slab of another node " \
                                                    "than the CPU's")                              \
                                                    row(FREE_OFF_NODE, "free_off_node",            \
                                                        US_FREE_REMOTE, US_FREE_SLOW,              \
                                                        US_FROM_STATS, true,                       \
                                                        "slow free to a slab of another node "     \
                                                        "than the CPU's")                          \
                                                        row(SHRINK_SLAB, "shrink_slab",            \
                                                            US_SLAB_FREE, US_FEEDS_NONE,           \
                                                            US_FROM_STATS, true,                   \
                                                            "slab returned to the page provider "  \
                                                            "by shrink")                           \
                                                            row(MOVED, "moved", US_OBJECTS_MOVED,  \
                                                                US_FEEDS_NONE, US_FROM_STATS,      \
                                                                true,                              \
                                                                "objects moved between a slab's "  \
                                                                "own freelist and a CPU's")

enum us_slub_counter {
#define US_ROW(id, name, feeds, less, source, hidden, help) US_SLUB_##id,
    US_SLUB_COUNTERS(US_ROW)
#undef US_ROW
        US_SLUB_NCOUNTERS
};

/* One node's partial list. */
struct us_slub_node {
    struct us_lock lock; /* class NODE, the list_lock */
    struct us_slab_list partial;
    _Atomic uint64_t nr_partial; /* partial.length for those who look without the lock */
} US_ALIGNED(US_LINE);

struct us_slub {
    uint32_t min_partial;      /* changed with the gate shut */
    uint32_t defrag_threshold; /* of 1024, as stored by the original: ten times the percentage */
    struct us_slub_node *node; /* [nnodes] */
};

US_INLINE struct us_slub *us_slub_of(const struct us_cache *c)
{
    return c->state;
}

/* slub_tunables.c */
extern const struct us_tunable us_slub_tunables[];
extern const struct us_counter us_slub_counters[];
enum us_status us_slub_geometry(struct us_cache *c, struct us_error *e);
const uint32_t *us_slub_general_sizes(const struct us_machine *m);

/* slub.c: entries with or without the prefetch, as the tunable says. */
void us_slub_choose_entries(struct us_cache *c);

#endif
