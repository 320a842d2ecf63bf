/* slub_partial.h - state of one cache under slub-partial, shared by the slub_partial*.c files. */
#ifndef US_POLICY_SLUB_PARTIAL_H
#define US_POLICY_SLUB_PARTIAL_H

#include "policy/slub.h"
#include "slab/exchange.h"

/* clang-format off */

/* row: id, name, unit, min, max, default, flags, choices, get, set, help */
#define US_SLUB_PARTIAL_TUNABLES(row)                                                             \
    row(EPOCH, "epoch", "kernel", US_SLUB_3_2, US_SLUB_5_16, US_SLUB_5_16, US_T_CREATE,           \
        epochs, NULL, NULL,                                                                       \
        "3.2: CPU partial lists limited in objects, as estimated when a slab joined; 5.16: in "   \
        "slabs")                                                                                  \
    row(MIN_PARTIAL, "min_partial", "slabs", 0, INT32_MAX, -1, 0,                                 \
        NULL, NULL, us_slub_set_min_partial,                                                      \
        "partial slabs of a node from which on an empty slab is given back; epoch 3.2: 5 to 10")  \
    row(PREFETCH, "prefetch", "0/1", 0, 1, 1, 0,                                                  \
        NULL, NULL, us_slub_set_prefetch,                                                         \
        "1: an allocation prefetches the link of the next free object")                           \
    US_SLUB_SHARED_TUNABLES(row)                                                                  \
    row(CPU_PARTIAL, "cpu_partial", "objects", 0, INT32_MAX, -1, 0,                               \
        NULL, NULL, set_cpu_partial,                                                              \
        "free objects that slabs of a CPU's partial list may have; 0 = no such lists")            \
    row(CPU_PARTIAL_SLABS, "cpu_partial_slabs", "slabs", 0, INT64_MAX, 0, US_T_READONLY,          \
        NULL, get_cpu_partial_slabs, NULL,                                                        \
        "epoch 5.16: slabs at which a CPU's partial list is drained, if half full each")          \
    row(SLABS_CPU_PARTIAL, "slabs_cpu_partial", "slabs", 0, INT64_MAX, 0, US_T_READONLY,          \
        NULL, get_slabs_cpu_partial, NULL,                                                        \
        "slabs on partial lists of CPUs")                                                         \
    row(OBJECTS_CPU_PARTIAL, "objects_cpu_partial", "objects", 0, INT64_MAX, 0, US_T_READONLY,    \
        NULL, get_objects_cpu_partial, NULL,                                                      \
        "free objects on partial lists of CPUs, as the epoch estimates them")

/* clang-format on */

enum us_slub_partial_tunable {
#define US_ROW(id, name, unit, min, max, def, flags, choices, get, set, help) \
    US_SLUB_PARTIAL_T_##id,
    US_SLUB_PARTIAL_TUNABLES(US_ROW)
#undef US_ROW
        US_SLUB_PARTIAL_NTUNABLES
};
_Static_assert((int)US_SLUB_PARTIAL_T_TOTAL_OBJECTS == (int)US_SLUB_T_TOTAL_OBJECTS &&
                   (int)US_SLUB_PARTIAL_T_EPOCH == (int)US_SLUB_T_EPOCH,
               "shared rows have the same numbers");

/* clang-format off */

/* row: id, name, feeds, less, source, hidden, help */
#define US_SLUB_PARTIAL_COUNTERS(row)                                                             \
    row(ALLOC_FASTPATH, "alloc_fastpath", US_ALLOC_FAST, US_FEEDS_NONE, US_FROM_POPS, false,      \
        "popped from the CPU's freelist")                                                         \
    row(ALLOC_SLOWPATH, "alloc_slowpath", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false,     \
        "slow path entered")                                                                      \
    row(FREE_FASTPATH, "free_fastpath", US_FREE_FAST, US_FEEDS_NONE, US_FROM_PUSHES, false,       \
        "pushed on the CPU's freelist: the object is of the CPU slab")                            \
    row(FREE_SLOWPATH, "free_slowpath", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false,       \
        "put back to a slab, one or a chain of them at once")                                     \
    row(FREE_FROZEN, "free_frozen", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false,           \
        "slow free to a slab that some CPU owns, as its slab or on its partial list")             \
    row(FREE_ADD_PARTIAL, "free_add_partial", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false, \
        "slab put on its node's list, by a free to a full slab or from a CPU's partial list")     \
    row(FREE_REMOVE_PARTIAL, "free_remove_partial", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS,  \
        false, "slow free emptied a slab and took it off its list")                               \
    row(ALLOC_FROM_PARTIAL, "alloc_from_partial", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS,    \
        false, "CPU slab acquired from a node's partial list")                                    \
    row(ALLOC_SLAB, "alloc_slab", US_SLAB_NEW, US_FEEDS_NONE, US_FROM_STATS, false,               \
        "slab obtained from the page provider")                                                   \
    row(ALLOC_REFILL, "alloc_refill", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false,         \
        "slow path took over the own freelist of a slab of the CPU")                              \
    row(ALLOC_NODE_MISMATCH, "alloc_node_mismatch", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS,  \
        false, "CPU slab is of another node than asked for, and was deactivated")                 \
    US_SLUB_GIVEN_UP_COUNTERS(row)                                                                \
    row(DEACTIVATE_EMPTY, "deactivate_empty", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false, \
        "deactivated or drained slab had no object in use and was released")                      \
    US_SLUB_DEACTIVATED_COUNTERS(row)                                                             \
    row(DEACTIVATE_BYPASS, "deactivate_bypass", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS,      \
        false, "CPU slab proved full and was dropped without more work")                          \
    row(ORDER_FALLBACK, "order_fallback", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false,     \
        "preferred order refused, smallest order used")                                           \
    row(CMPXCHG_DOUBLE_CPU_FAIL, "cmpxchg_double_cpu_fail", US_FEEDS_NONE, US_FEEDS_NONE,         \
        US_FROM_STATS, false,                                                                     \
        "fast path interrupted too often, and served by the slow path from its own freelist")     \
    row(CMPXCHG_DOUBLE_FAIL, "cmpxchg_double_fail", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS,  \
        false, "exchange of a slab's freelist and counters lost a race")                          \
    row(CPU_PARTIAL_ALLOC, "cpu_partial_alloc", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS,      \
        false, "CPU slab taken from the CPU's partial list")                                      \
    row(CPU_PARTIAL_FREE, "cpu_partial_free", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false, \
        "slow free put a slab that was full on the CPU's partial list")                           \
    row(CPU_PARTIAL_NODE, "cpu_partial_node", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false, \
        "slab moved from a node's list to the CPU's beside the one that served")                  \
    row(CPU_PARTIAL_DRAIN, "cpu_partial_drain", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS,      \
        false, "a CPU's partial list over its limit moved to the nodes")                          \
    row(FROM_CPU_PARTIAL, "from_cpu_partial", US_ALLOC_SECOND_LEVEL, US_FEEDS_NONE,               \
        US_FROM_STATS, true, "slow allocation from a slab of the CPU's partial list")             \
    row(FROM_NODE, "from_node", US_ALLOC_SLOW, US_FEEDS_NONE, US_FROM_STATS, true,                \
        "other slow allocation from a slab of the CPU's node")                                    \
    row(FROM_OTHER_NODE, "from_other_node", US_ALLOC_REMOTE, US_FEEDS_NONE, US_FROM_STATS, true,  \
        "other slow allocation from a slab of another node")                                      \
    row(TO_NODE, "to_node", US_FREE_SLOW, US_FEEDS_NONE, US_FROM_STATS, true,                     \
        "object put back to a slab of the CPU's node")                                            \
    row(TO_OTHER_NODE, "to_other_node", US_FREE_REMOTE, US_FEEDS_NONE, US_FROM_STATS, true,       \
        "object put back to a slab of another node")                                              \
    US_SLUB_HIDDEN_COUNTERS(row)

/* clang-format on */

enum us_slub_partial_counter {
#define US_ROW(id, name, feeds, less, source, hidden, help) US_SLUB_PARTIAL_##id,
    US_SLUB_PARTIAL_COUNTERS(US_ROW)
#undef US_ROW
        US_SLUB_PARTIAL_NCOUNTERS
};

struct us_slub_partial {
    struct us_slub slub;  /* first */
    bool epoch_3_2;       /* else 5.16 */
    uint32_t cpu_partial; /* 0 = no CPU partial lists */
    uint32_t cpu_partial_slabs;
};

US_INLINE const struct us_slub_partial *us_slub_partial_of(const struct us_cache *c)
{
    return c->state;
}

/* An empty slab is given back when its node's list has at least as many. Up to 3.10 the list had to
 * be longer than min_partial. */
US_INLINE uint64_t us_slub_partial_keep(const struct us_cache *c)
{
    const struct us_slub_partial *st = us_slub_partial_of(c);

    return (uint64_t)st->slub.min_partial + st->epoch_3_2;
}

/* ---- slub_partial_slab.c: slabs that a CPU owns --------------------------------------- */

/* One exchange, its loss counted. */
bool us_slub_partial_lost(struct us_cache *c, unsigned cpu, enum us_exchange done);
/* Puts a frozen slab that nobody else knows in front of such a chain. */
void us_slub_partial_chain(struct us_slab *s, struct us_slab *chain);
/* Makes a frozen slab, and what is chained to it, the front of the calling CPU's partial list;
 * `drain`: what is there goes to the nodes when it is over the limit. Not for nested flights. True:
 * it is on a CPU's list; false: it went to the nodes, there being no list to put it on. */
bool us_slub_partial_own(struct us_cache *c, struct us_flight *f, struct us_slab *s, bool drain);
/* Gives up a private CPU slab. False: try_only found the node lock busy, nothing has changed. An
 * empty slab that is not kept is put in front of *empty. */
bool us_slub_partial_deactivate(struct us_cache *c, struct us_flight *f, unsigned cpu,
                                struct us_slab *s, bool try_only, struct us_slab **empty);
/* Moves a chain of frozen slabs to the tails of their nodes' lists; returns what is left of it when
 * try_only found a lock busy. */
struct us_slab *us_slub_partial_unfreeze(struct us_cache *c, struct us_flight *f, unsigned cpu,
                                         struct us_slab *chain, bool try_only,
                                         struct us_slab **empty);
/* Releases what the two before have collected. No lock may be held. */
void us_slub_partial_release(struct us_cache *c, struct us_flight *f, unsigned cpu,
                             struct us_slab *chain);
/* A slab whose chain leads astray at `seen`; it is private, or on a list whose lock is held. */
void us_slub_partial_isolate(struct us_cache *c, struct us_flight *f, struct us_slab *s,
                             const void *seen);

void us_slub_partial_flush_cpu(struct us_cache *c, struct us_flight *f, unsigned cpu,
                               bool try_only);

/* ---- slub_partial.c, slub_partial_tables.c -------------------------------------------- */

void us_slub_partial_free_bulk(struct us_cache *c, size_t n, void *const *object);
enum us_status us_slub_partial_create(struct us_cache *c, struct us_error *e);

extern const struct us_tunable us_slub_partial_tunables[];
extern const struct us_counter us_slub_partial_counters[];
enum us_status us_slub_partial_geometry(struct us_cache *c, struct us_error *e);
/* From the tunable, to the state. */
void us_slub_partial_use_limit(struct us_cache *c);

#endif
