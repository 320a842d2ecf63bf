/* sheaves.h - state of one cache under SLUB with sheaves, shared by the sheaves*.c files. The essay
 * is in sheaves.c. */
#ifndef US_POLICY_SHEAVES_H
#define US_POLICY_SHEAVES_H

#include "policy/policy.h"
#include "slab/chained.h"

#define US_BARN_FULL           10    /* full sheaves beyond which a barn takes no more */
#define US_BARN_EMPTY          10    /* empty ones, likewise */
#define US_SHEAF_BATCH         32    /* objects flushed, or freed to slabs, at once */
#define US_SHEAVES_OBJECTS_MAX 32767 /* a slab counts its objects in 15 bits */

/* clang-format off */

/* row: id, name, unit, min, max, default, flags, get, set, help
 * A default below min stands for "computed". */
#define US_SHEAVES_TUNABLES(row)                                                                  \
    row(SHEAF_CAPACITY, "sheaf_capacity", "objects", 0, US_RING_MAX, 0, US_T_CREATE,              \
        get_sheaf_capacity, NULL,                                                                 \
        "pointers that a sheaf holds: at least 60, 28, 12 or 4 by object size; caches with "      \
        "debug have no sheaves and show 0")                                                       \
    row(MIN_PARTIAL, "min_partial", "slabs", 0, UINT32_MAX, -1, 0, NULL, set_min_partial,         \
        "slabs on a node's partial list below which an emptied slab is kept")                     \
    row(MIN_OBJECTS, "min_objects", "objects", 0, US_SHEAVES_OBJECTS_MAX, 0, US_T_CREATE,         \
        NULL, NULL,                                                                               \
        "objects a slab should hold at least (slab_min_objects); 0 = 4*(fls(cpus)+1)")            \
    row(MAX_ORDER, "max_order", "log2 pages", 0, US_MAX_ORDER, 3, US_T_CREATE, NULL, NULL,        \
        "largest order that the search for a good slab size considers (slab_max_order)")          \
    row(MIN_ORDER, "min_order", "log2 pages", 0, US_MAX_ORDER, 0, US_T_CREATE, NULL, NULL,        \
        "smallest order that the search for a good slab size considers (slab_min_order)")         \
    row(DEFRAG_RATIO, "remote_node_defrag_ratio", "percent", 0, 100, 100, 0,                      \
        NULL, set_defrag_ratio,                                                                   \
        "how often other nodes' partial slabs are tried before a new slab")                       \
    row(STRICT_NUMA, "slab_strict_numa", "0/1", 0, 1, 0, US_T_CREATE, NULL, NULL,                 \
        "a task's memory policy places each object of single allocations that name no node; "     \
        "0 = sheaves serve what they have; bulk calls and prefilled sheaves never look")          \
    row(CPU_PARTIAL, "cpu_partial", "objects", 0, 0, 0, 0, NULL, NULL,                            \
        "there are no per-CPU partial lists any more: only 0 is accepted")                        \
    row(ORDER, "order", "log2 pages", 0, US_MAX_ORDER, 0, US_T_READONLY, us_shape_order, NULL,    \
        "order of a slab")                                                                        \
    row(OBJS_PER_SLAB, "objs_per_slab", "objects", 0, INT64_MAX, 0, US_T_READONLY,                \
        us_shape_objects, NULL, "objects of a slab of that order")                                \
    row(SLAB_SIZE, "slab_size", "bytes", 0, INT64_MAX, 0, US_T_READONLY, us_shape_stride, NULL,   \
        "stride of an object, padding and link included")                                         \
    row(OBJECT_SIZE, "object_size", "bytes", 0, INT64_MAX, 0, US_T_READONLY,                      \
        us_shape_size, NULL, "bytes asked for")                                                   \
    row(ALIGN, "align", "bytes", 0, INT64_MAX, 0, US_T_READONLY, us_shape_align, NULL,            \
        "alignment of an object")                                                                 \
    row(PARTIAL, "partial", "slabs", 0, INT64_MAX, 0, US_T_READONLY, get_partial, NULL,           \
        "slabs on partial lists of nodes")                                                        \
    row(CPU_SLABS, "cpu_slabs", "slabs", 0, INT64_MAX, 0, US_T_READONLY, get_cpu_slabs, NULL,     \
        "slabs owned by CPUs: none")                                                              \
    row(SLABS, "slabs", "slabs", 0, INT64_MAX, 0, US_T_READONLY, us_shape_slabs, NULL,            \
        "slabs of the cache")                                                                     \
    row(TOTAL_OBJECTS, "total_objects", "objects", 0, INT64_MAX, 0, US_T_READONLY,                \
        us_shape_total_objects, NULL, "objects that all slabs can hold")

/* row: id, name, feeds, less, source, hidden, help
 * A row that takes something off another one is counted before what it is taken from, and read
 * after it: so that nothing is ever shown that has to be taken back. */
#define US_SHEAVES_COUNTERS(row)                                                                  \
    row(ALLOC_FASTPATH, "alloc_fastpath", US_ALLOC_FAST, US_FEEDS_NONE, US_FROM_POPS, false,      \
        "popped from a sheaf")                                                                    \
    row(ALLOC_SLOWPATH, "alloc_slowpath", US_ALLOC_SLOW, US_FEEDS_NONE, US_FROM_STATS, false,     \
        "taken from slabs past the sheaves")                                                      \
    row(FREE_FASTPATH, "free_fastpath", US_FREE_FAST, US_FEEDS_NONE, US_FROM_PUSHES, false,       \
        "pushed on a sheaf")                                                                      \
    row(FREE_SLOWPATH, "free_slowpath", US_FREE_SLOW, US_FEEDS_NONE, US_FROM_STATS, false,        \
        "objects freed straight to their slabs")                                                  \
    row(FREE_ADD_PARTIAL, "free_add_partial", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false, \
        "objects came back to a full slab, which went on its node's partial list")                \
    row(FREE_REMOVE_PARTIAL, "free_remove_partial", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS,  \
        false, "objects came back, emptied a slab and took it off its list")                      \
    row(ALLOC_SLAB, "alloc_slab", US_SLAB_NEW, US_FEEDS_NONE, US_FROM_STATS, false,               \
        "slab obtained from the page provider")                                                   \
    row(ALLOC_NODE_MISMATCH, "alloc_node_mismatch", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS,  \
        false, "sheaves passed by because of the node that was asked for")                        \
    row(FREE_SLAB, "free_slab", US_SLAB_FREE, US_FEEDS_NONE, US_FROM_STATS, false,                \
        "slab returned to the page provider, but for those of a shrink")                          \
    row(ORDER_FALLBACK, "order_fallback", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false,     \
        "preferred order refused, smallest order used")                                           \
    row(CMPXCHG_DOUBLE_FAIL, "cmpxchg_double_fail", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS,  \
        false, "exchange of a slab's freelist and counters lost a race")                          \
    row(FREE_RCU_SHEAF, "free_rcu_sheaf", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false,     \
        "frees after a grace period whose object was kept in a sheaf")                            \
    row(FREE_RCU_SHEAF_FAIL, "free_rcu_sheaf_fail", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS,  \
        false, "frees after a grace period that no sheaf could take: another node's, no memory")  \
    row(SHEAF_FLUSH, "sheaf_flush", US_OBJECTS_MOVED, US_FEEDS_NONE, US_FROM_STATS, false,        \
        "objects flushed from sheaves to slabs")                                                  \
    row(SHEAF_REFILL, "sheaf_refill", US_OBJECTS_MOVED, US_FEEDS_NONE, US_FROM_STATS, false,      \
        "objects put in sheaves by refills from slabs")                                           \
    row(SHEAF_ALLOC, "sheaf_alloc", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false,           \
        "empty sheaf allocated")                                                                  \
    row(SHEAF_FREE, "sheaf_free", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false,             \
        "empty sheaf freed")                                                                      \
    row(BARN_GET, "barn_get", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false,                 \
        "full sheaf obtained from the barn")                                                      \
    row(BARN_GET_FAIL, "barn_get_fail", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false,       \
        "full sheaf wanted, the barn had none")                                                   \
    row(BARN_PUT, "barn_put", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false,                 \
        "full sheaf given to the barn")                                                           \
    row(BARN_PUT_FAIL, "barn_put_fail", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false,       \
        "full sheaf that the barn could not be given")                                            \
    row(SHEAF_PREFILL_FAST, "sheaf_prefill_fast", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS,    \
        false, "prefill used the spare sheaf")                                                    \
    row(SHEAF_PREFILL_SLOW, "sheaf_prefill_slow", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS,    \
        false, "prefill found no spare sheaf")                                                    \
    row(SHEAF_PREFILL_OVERSIZE, "sheaf_prefill_oversize", US_FEEDS_NONE, US_FEEDS_NONE,           \
        US_FROM_STATS, false, "prefill of more objects than a sheaf holds")                       \
    row(SHEAF_RETURN_FAST, "sheaf_return_fast", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS,      \
        false, "returned sheaf became the spare")                                                 \
    row(SHEAF_RETURN_SLOW, "sheaf_return_slow", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS,      \
        false, "returned sheaf could not become the spare")                                       \
    row(ALLOC_BARN, "alloc_barn", US_ALLOC_SECOND_LEVEL, US_ALLOC_FAST, US_FROM_STATS, true,      \
        "popped after the empty main sheaf was exchanged with the barn")                          \
    row(ALLOC_REFILLED, "alloc_refilled", US_ALLOC_SLOW, US_ALLOC_FAST, US_FROM_STATS, true,      \
        "popped after a sheaf was refilled from slabs")                                           \
    row(ALLOC_OFF_NODE, "alloc_off_node", US_ALLOC_REMOTE, US_ALLOC_SLOW, US_FROM_STATS, true,    \
        "taken from a slab of another node than the CPU's")                                       \
    row(FREE_BARN, "free_barn", US_FREE_SECOND_LEVEL, US_FREE_FAST, US_FROM_STATS, true,          \
        "pushed after the barn gave an empty sheaf or took a full one")                           \
    row(FREE_FLUSHED, "free_flushed", US_FREE_SLOW, US_FREE_FAST, US_FROM_STATS, true,            \
        "pushed after a sheaf was flushed to slabs")                                              \
    row(FREE_OFF_NODE, "free_off_node", US_FREE_REMOTE, US_FREE_SLOW, US_FROM_STATS, true,        \
        "freed to a slab of another node than the CPU's")                                         \
    row(FREE_RCU_BARN, "free_rcu_barn", US_FREE_SECOND_LEVEL, US_FEEDS_NONE, US_FROM_STATS, true, \
        "freed after a grace period, in a full sheaf that went to the barn")                      \
    row(FREE_RCU_FLUSHED, "free_rcu_flushed", US_FREE_SLOW, US_FEEDS_NONE, US_FROM_STATS, true,   \
        "freed after a grace period, from a sheaf that was flushed to slabs")                     \
    row(SHRINK_SLAB, "shrink_slab", US_SLAB_FREE, US_FEEDS_NONE, US_FROM_STATS, true,             \
        "slab returned to the page provider by a shrink")                                         \
    row(CPU_FLUSH, "cpu_flush", US_FLUSH, US_FEEDS_NONE, US_FROM_STATS, true,                     \
        "flush of a CPU's sheaves")                                                               \
    row(MOVED, "moved", US_OBJECTS_MOVED, US_FEEDS_NONE, US_FROM_STATS, true,                     \
        "objects in full sheaves that came from the barn or went there")

/* clang-format on */

enum us_sheaves_tunable {
#define US_ROW(id, name, unit, min, max, def, flags, get, set, help) US_SHEAVES_T_##id,
    US_SHEAVES_TUNABLES(US_ROW)
#undef US_ROW
        US_SHEAVES_NTUNABLES
};
enum us_sheaves_counter {
#define US_ROW(id, name, feeds, less, source, hidden, help) US_SHEAVES_##id,
    US_SHEAVES_COUNTERS(US_ROW)
#undef US_ROW
        US_SHEAVES_NCOUNTERS
};

/* Sheaves of a node that are no CPU's. Lists are linked through next, last put first taken. */
struct us_barn {
    struct us_lock lock; /* class SHARED */
    struct us_sheaf *full, *empty;
    _Atomic uint32_t nr_full, nr_empty; /* changed under the lock, looked at without */
} US_ALIGNED(US_LINE);

struct us_sheaves {
    uint32_t capacity;         /* of a sheaf; 0 = the cache has none */
    uint32_t min_partial;      /* changed with the gate shut */
    uint32_t defrag_threshold; /* of 1024, as stored by the original: ten times the percentage */
    struct us_partial *node;   /* [nnodes] */
    struct us_barn *barn;      /* [nnodes] */
    struct us_lock lent_lock;  /* class SHARED: sheaves that were prefilled and not returned */
    struct us_sheaf *lent;
};

US_INLINE struct us_sheaves *us_sheaves_of(const struct us_cache *c)
{
    return c->state;
}
/* Debug caches have no sheaves. To be asked outside of flights too, where the state is not looked
 * at: a signal handler may find it in pieces. */
US_INLINE bool us_sheaves_has_none(const struct us_cache *c)
{
    return c->local.mode == US_MODE_CONTROL;
}
US_INLINE struct us_barn *us_barn_of_cpu(const struct us_cache *c, unsigned cpu)
{
    return &us_sheaves_of(c)->barn[us_node_of_cpu(c->machine, cpu)];
}
US_INLINE bool us_sheaf_full(const struct us_sheaf *s)
{
    return us_sheaf_size(s) >= s->capacity;
}

/* ---- sheaves_barn.c -------------------------------------------------------------------- */

/* A sheaf of the cache's capacity, NULL without memory; and its end, empty. */
struct us_sheaf *us_sheaf_new(struct us_cache *c);
void us_sheaf_free(struct us_cache *c, struct us_sheaf *s);

/* No flight that is nested may call these: they wait for the barn's lock. What moves is counted by
 * the caller. */
/* A full sheaf for an empty one, which the barn keeps; NULL = none, and the empty one stays. */
struct us_sheaf *us_barn_exchange_empty(struct us_flight *f, struct us_barn *b,
                                        struct us_sheaf *empty);
enum us_barn_answer { US_BARN_OK, US_BARN_TOO_FULL, US_BARN_NO_EMPTY };
/* An empty sheaf for a full one; if not OK, nothing was done. */
enum us_barn_answer us_barn_exchange_full(struct us_flight *f, struct us_barn *b,
                                          struct us_sheaf *full, struct us_sheaf **empty);
struct us_sheaf *us_barn_get_full(struct us_flight *f, struct us_barn *b);
struct us_sheaf *us_barn_get_empty(struct us_flight *f, struct us_barn *b);
/* Whatever the limits. */
void us_barn_put_full(struct us_flight *f, struct us_barn *b, struct us_sheaf *s);
void us_barn_put_empty(struct us_flight *f, struct us_barn *b, struct us_sheaf *s);
/* All sheaves of the barn, full ones and empty ones linked through next. */
bool us_barn_take_all(struct us_flight *f, struct us_barn *b, bool try_only, struct us_sheaf **full,
                      struct us_sheaf **empty);

/* Both sheaves of a CPU, taken off its words: main is never NULL, spare may be. */
struct us_sheaf_pair {
    unsigned cpu;
    struct us_sheaf *main, *spare;
};
/* The calling CPU's pair. False, and nothing taken: its main sheaf is with somebody else, or its
 * region is closed. Not for nested flights, which could not give it back. */
bool us_sheaf_pair_take(struct us_cache *c, struct us_flight *f, struct us_sheaf_pair *p);
/* Gives it back to the CPU where it was taken, wherever the thread is now. */
void us_sheaf_pair_give(struct us_cache *c, struct us_flight *f, const struct us_sheaf_pair *p);
/* Gives a CPU its region and main sheaf, if there is memory. */
void us_sheaves_populate(struct us_cache *c, struct us_flight *f, unsigned cpu);

/* ---- sheaves_slabs.c ------------------------------------------------------------------- */

/* One object from slabs, counted: of the node asked for, or near `home`. */
struct us_sheaves_ask {
    struct us_cache *c;
    struct us_flight *f;
    unsigned flags;
    unsigned cpu;  /* where it counts */
    unsigned home; /* node that is searched first */
    int node;      /* asked for, or US_ANY_NODE */
};
void *us_sheaves_one(struct us_sheaves_ask *a);
/* Up to n objects from slabs, near `home`, not counted as allocations; not for nested flights. */
unsigned us_sheaves_refill(const struct us_sheaves_ask *a, void **out, unsigned n);
/* Objects back to their slabs, those of one slab together; not counted as frees. What is no object
 * of the cache is reported and kept out. */
void us_sheaves_put(struct us_cache *c, struct us_flight *f, void *const *object, unsigned n);
/* The same, counted as frees of the caller. */
void us_sheaves_put_freed(struct us_cache *c, struct us_flight *f, void *const *object, unsigned n);
/* All objects of a private sheaf to their slabs: it is empty then. */
void us_sheaf_flush(struct us_cache *c, struct us_flight *f, struct us_sheaf *s);
/* One free straight to its slab, counted. False: a lock was not to be had in a nested flight. */
bool us_sheaves_put_one(struct us_cache *c, struct us_flight *f, unsigned cpu, void *object);

/* ---- sheaves_bulk.c -------------------------------------------------------------------- */

size_t us_sheaves_alloc_bulk(struct us_cache *c, unsigned flags, int node, size_t n, void **out);
void us_sheaves_free_bulk(struct us_cache *c, size_t n, void *const *object);

/* A sheaf of at least n objects, n > 0, for the caller alone, from which allocations cannot fail;
 * NULL without memory. Its objects count as queued until they are handed out. */
struct us_sheaf *us_sheaves_prefill(struct us_cache *c, unsigned flags, uint32_t n);
void *us_sheaves_alloc_from(struct us_cache *c, struct us_sheaf *s); /* NULL = it is empty */
/* At least n objects again; the sheaf may be another one then. False: not enough memory. */
bool us_sheaves_refill_sheaf(struct us_cache *c, unsigned flags, struct us_sheaf **s, uint32_t n);
void us_sheaves_return(struct us_cache *c, struct us_sheaf *s);

/* ---- sheaves_rcu.c --------------------------------------------------------------------- */

struct us_sheaf *us_sheaves_rcu_sheaf(struct us_cache *c, struct us_flight *f);
void us_sheaves_rcu_count(struct us_cache *c, unsigned cpu, bool sheaf);
void us_sheaves_rcu_done(struct us_cache *c, struct us_flight *f, struct us_sheaf *s, bool barn);

/* ---- sheaves.c, sheaves_look.c, sheaves_tables.c --------------------------------------- */

void *us_sheaves_alloc_slow(struct us_cache *c, unsigned flags, int node);
void us_sheaves_free_slow(struct us_cache *c, void *object);
/* The main sheaf, empty, is replaced by the spare or a full one of the barn. */
enum us_replaced { US_REPLACED_NOT, US_REPLACED_SPARE, US_REPLACED_BARN };
enum us_replaced us_sheaves_replace_empty(struct us_cache *c, struct us_flight *f,
                                          struct us_sheaf_pair *p);
/* The main sheaf, full, is replaced by what has room, without allocating; too_full: the barn took
 * no more. */
enum us_replaced us_sheaves_replace_full(struct us_cache *c, struct us_flight *f,
                                         struct us_sheaf_pair *p, bool *too_full);
void us_sheaves_check_deferred(struct us_cache *c, struct us_flight *f, unsigned node);

void us_sheaves_flush_cpu(struct us_cache *c, struct us_flight *f, unsigned cpu, bool try_only);
void us_sheaves_cpu_offline(struct us_cache *c, struct us_flight *f, unsigned cpu);
uint64_t us_sheaves_shrink(struct us_cache *c, struct us_flight *f, unsigned node, bool try_only);
void us_sheaves_visit(struct us_cache *c, const struct us_visitor *v);

extern const struct us_tunable us_sheaves_tunables[];
extern const struct us_counter us_sheaves_counters[];
enum us_status us_sheaves_geometry(struct us_cache *c, struct us_error *e);
uint32_t us_sheaves_capacity(const struct us_cache *c);

#endif
