/* slqb.h - state of one cache under SLQB, shared by the slqb_*.c files. */
#ifndef US_POLICY_SLQB_H
#define US_POLICY_SLQB_H

#include "policy/policy.h"
#include "slab/listed.h"

/* A list holds up to 2.5 times the watermark for a moment, which its header must be able to say. */
#define US_SLQB_HIWATER_MAX (1 << 17)

/* clang-format off */
/* row: id, name, unit, min, max, default, flags, get, set, help
 * A default below min stands for "computed": the object size decides. */
#define US_SLQB_TUNABLES(row)                                                                     \
    row(HIWATER, "hiwater", "objects", 0, US_SLQB_HIWATER_MAX, -1, 0, NULL, set_hiwater,          \
        "objects a free list may hold: the free beyond flushes one freebatch; "                   \
        "at creation 4 freebatches")                                                              \
    row(FREEBATCH, "freebatch", "objects", 1, US_SLQB_HIWATER_MAX + 1, -1, 0, NULL, set_freebatch,\
        "objects flushed at once, and sent home at once; at most hiwater + 1, and lowered to "    \
        "that with it; at creation max(4 pages, min(256 objects, 64 pages))")                                   \
    row(MIN_ORDER, "slqb_min_order", "log2 pages", 0, US_MAX_ORDER, 0, US_T_CREATE, NULL, NULL,   \
        "smallest order of a slab")                                                               \
    row(MIN_OBJECTS, "slqb_min_objects", "objects", 1, 65535, 1, US_T_CREATE, NULL, NULL,         \
        "objects a slab should hold at least")                                                    \
    row(ORDER, "order", "log2 pages", 0, US_MAX_ORDER, 0, US_T_READONLY, us_shape_order, NULL,    \
        "order of a slab")                                                                        \
    row(OBJS_PER_SLAB, "objs_per_slab", "objects", 0, INT64_MAX, 0, US_T_READONLY,                \
        us_shape_objects, NULL, "objects of a slab")                                              \
    row(SLAB_SIZE, "slab_size", "bytes", 0, INT64_MAX, 0, US_T_READONLY, us_shape_stride, NULL,   \
        "stride of an object, padding and link included")                                         \
    row(PARTIAL, "partial", "slabs", 0, INT64_MAX, 0, US_T_READONLY, get_partial, NULL,           \
        "slabs on partial lists of CPUs and nodes")                                               \
    row(LISTED, "freelist_objects", "objects", 0, INT64_MAX, 0, US_T_READONLY, get_listed, NULL,  \
        "objects on the free lists of CPUs and nodes")                                            \
    row(REMOTE, "remote_objects", "objects", 0, INT64_MAX, 0, US_T_READONLY, get_remote, NULL,    \
        "objects that came home and were not claimed yet, or are on their way")
/* clang-format on */

enum us_slqb_tunable {
#define US_ROW(id, name, unit, min, max, def, flags, get, set, help) US_SLQB_T_##id,
    US_SLQB_TUNABLES(US_ROW)
#undef US_ROW
        US_SLQB_NTUNABLES
};

/* clang-format off */
/* row: id, name, feeds, less, source, hidden, help
 * The historical free_remote and the common counter of that name are one: it is shown once. */
#define US_SLQB_COUNTERS(row)                                                                     \
    row(ALLOC, "alloc", US_ALLOC_FAST, US_FEEDS_NONE, US_FROM_POPS, false,                        \
        "allocations that a list supplied, whichever way")                                        \
    row(ALLOC_SLAB_FILL, "alloc_slab_fill", US_ALLOC_SLOW, US_ALLOC_FAST, US_FROM_STATS, false,   \
        "objects taken from a slab, one at a time")                                               \
    row(ALLOC_SLAB_NEW, "alloc_slab_new", US_SLAB_NEW, US_FEEDS_NONE, US_FROM_STATS, false,       \
        "slabs obtained from the page provider")                                                  \
    row(FREE, "free", US_FREE_FAST, US_FEEDS_NONE, US_FROM_PUSHES, false, "frees")                \
    row(FREE_REMOTE, "free_remote", US_FREE_REMOTE, US_FREE_FAST, US_FROM_STATS, true,            \
        "frees of another node's objects, which wait on the rlist")                               \
    row(FLUSH_FREE_LIST, "flush_free_list", US_FLUSH, US_FEEDS_NONE, US_FROM_STATS, false,        \
        "flushes of a free list from its hot end")                                                \
    row(FLUSH_FREE_LIST_OBJECTS, "flush_free_list_objects", US_OBJECTS_MOVED, US_FEEDS_NONE,      \
        US_FROM_STATS, false, "objects of those flushes")                                         \
    row(FLUSH_FREE_LIST_REMOTE, "flush_free_list_remote", US_FEEDS_NONE, US_FEEDS_NONE,           \
        US_FROM_STATS, false, "flushed objects of other lists' slabs: to the rlist")              \
    row(FLUSH_SLAB_PARTIAL, "flush_slab_partial", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS,    \
        false, "full slabs that an object made partial")                                          \
    row(FLUSH_SLAB_FREE, "flush_slab_free", US_SLAB_FREE, US_FEEDS_NONE, US_FROM_STATS, false,    \
        "slabs that an object emptied, returned to the page provider")                            \
    row(FLUSH_RFREE_LIST, "flush_rfree_list", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS, false, \
        "rlists sent home")                                                                       \
    row(FLUSH_RFREE_LIST_OBJECTS, "flush_rfree_list_objects", US_OBJECTS_MOVED, US_FEEDS_NONE,    \
        US_FROM_STATS, false, "objects of those")                                                 \
    row(CLAIM_REMOTE_LIST, "claim_remote_list", US_FEEDS_NONE, US_FEEDS_NONE, US_FROM_STATS,      \
        false, "claims of what came home")                                                        \
    row(CLAIM_REMOTE_LIST_OBJECTS, "claim_remote_list_objects", US_OBJECTS_MOVED, US_FEEDS_NONE,  \
        US_FROM_STATS, false, "objects of those")                                                 \
    row(ALLOC_CLAIMED, "alloc_claimed", US_ALLOC_SECOND_LEVEL, US_ALLOC_FAST, US_FROM_STATS, true,\
        "popped after a claim")                                                                   \
    row(ALLOC_OFF_NODE, "alloc_off_node", US_ALLOC_REMOTE, US_ALLOC_FAST, US_FROM_STATS, true,    \
        "another node's object from a free list")                                                 \
    row(FILL_OFF_NODE, "fill_off_node", US_ALLOC_REMOTE, US_ALLOC_SLOW, US_FROM_STATS, true,      \
        "another node's object from a slab")                                                      \
    row(FREE_STRAIGHT, "free_straight", US_FREE_SLOW, US_FREE_FAST, US_FROM_STATS, true,          \
        "free that found the lists closed, or a signal handler's: straight to the slab")          \
    row(SLAB_UNDONE, "slab_undone", US_SLAB_FREE, US_FEEDS_NONE, US_FROM_STATS, true,             \
        "new slab that a signal handler could not use")
/* clang-format on */

enum us_slqb_counter {
#define US_ROW(id, name, feeds, less, source, hidden, help) US_SLQB_##id,
    US_SLQB_COUNTERS(US_ROW)
#undef US_ROW
        US_SLQB_NCOUNTERS
};

/* ---- state --------------------------------------------------------------------------- */

/* Objects threaded through themselves, links as those of counted lists (region.h). */
struct us_slqb_chain {
    void *first, *last;
    uint32_t n; /* looked at by others */
};

/* A CPU's list or a node's: the original's kmem_cache_list. */
struct us_slqb_list {
    struct us_counted free; /* the free list; of a CPU's list the descriptor of its word 0 */
    uint64_t base;          /* of the node */
    unsigned node;
    int cpu; /* -1 = the node's */
    /* Slabs that this list owns, of which some objects are free and some are not. */
    struct us_lock page_lock; /* class NODE: this, and the slabs it owns */
    struct us_slab_list partial;
    _Atomic uint64_t nr_partial; /* partial.length for those who look without the lock */
    /* What others brought home, oldest first; its line is written by them. */
    struct us_lock remote_lock US_ALIGNED(US_LINE); /* class SHARED */
    struct us_slqb_chain remote_free;
    _Atomic uint8_t remote_free_check; /* a freebatch or more has come */
} US_ALIGNED(US_LINE);

struct us_slqb_rlist {
    struct us_slqb_chain chain;
    struct us_slqb_list *home; /* all objects are of slabs of this list */
};

enum us_slqb_word { US_SLQB_FREELIST, US_SLQB_RLIST, US_SLQB_NWORDS };

/* What a CPU has. A word that is closed and not parked is in some flight's hands. */
struct us_slqb_cpu {
    struct us_words region; /* first */
    struct us_slqb_list list;
    struct us_counted rlist_word; /* stands for the rlist in word 1; fast paths leave it alone */
    struct us_slqb_rlist rlist;
    _Atomic uint8_t parked[US_SLQB_NWORDS]; /* given back where no install was possible */
    unsigned cpu;
    _Atomic uint32_t colour_next; /* where objects of its next slab begin */
};

struct us_slqb_node {
    struct us_lock list_lock; /* class ALIEN: the free list */
    struct us_slqb_list list;
} US_ALIGNED(US_LINE);

struct us_slqb {
    uint32_t hiwater, freebatch;  /* changed with the gate shut */
    uint64_t next_trim, trimming; /* the trim that is due, and the tick of the one at work */
    struct us_slqb_node *node;    /* [nnodes] */
};

US_INLINE struct us_slqb *us_slqb_of(const struct us_cache *c)
{
    us_reads(&c->state, sizeof(c->state));
    us_reads(c->state, sizeof(struct us_slqb));
    return c->state;
}
/* NULL until the CPU's first slow path. */
US_INLINE struct us_slqb_cpu *us_slqb_cpu_of(const struct us_cache *c, unsigned cpu)
{
    us_reads(&c->local.region, sizeof(c->local.region));
    us_reads(&c->local.region[cpu], sizeof(*c->local.region));
    return __atomic_load_n((struct us_slqb_cpu **)&c->local.region[cpu], __ATOMIC_ACQUIRE);
}
/* The list that owns a slab lies where list policies with a CPU slab keep its chain. */
US_INLINE struct us_slqb_list *us_slqb_owner(const struct us_slab *s)
{
    us_reads(s, sizeof(*s));
    return __atomic_load_n((struct us_slqb_list *const *)&s->local.head, __ATOMIC_RELAXED);
}
US_INLINE uint32_t us_slqb_size(const struct us_slqb_list *l)
{
    us_reads(&l->free, sizeof(l->free));
    return us_counted_size(us_counted_header(&l->free));
}
US_INLINE uint32_t us_slqb_nr_remote(const struct us_slqb_list *l)
{
    us_reads(&l->remote_free.n, sizeof(l->remote_free.n));
    return __atomic_load_n(&l->remote_free.n, __ATOMIC_RELAXED);
}

/* ---- slqb_lists.c -------------------------------------------------------------------- */

/* What one slow path does to lists. Not for nested flights. */
struct us_slqb_work {
    struct us_cache *c;
    struct us_flight *f;
    unsigned cpu;                  /* where it counts */
    bool straight;                 /* what goes home goes to its slabs, not to remote_free */
    struct us_slqb_rlist *rlist;   /* the one in use, NULL = none yet */
    struct us_slqb_cpu *rlist_cpu; /* whose that is; NULL: it is the spare one */
    struct us_slqb_rlist spare;
    struct us_slab *empty; /* slabs to be given back, chained through next */
    uint64_t to_slabs;     /* objects that reached slabs */
};
void us_slqb_list_init(const struct us_cache *c, struct us_slqb_list *l, unsigned node, int cpu);
/* Ends the work: a spare rlist goes home, a CPU's goes back, empty slabs to the provider. No lock
 * may be held. Returns bytes of the slabs. */
uint64_t us_slqb_work_end(struct us_slqb_work *w);

/* Takes a word off the calling CPU, so that free list or rlist are private to the caller. NULL: not
 * populated, or in other hands. */
struct us_slqb_cpu *us_slqb_own(struct us_cache *c, struct us_flight *f, enum us_slqb_word word);
void us_slqb_disown(struct us_cache *c, struct us_flight *f, enum us_slqb_word word,
                    struct us_slqb_cpu *x);
/* The same with a region that is closed and its control lock held: by plain code. */
bool us_slqb_own_closed(struct us_cache *c, struct us_words *region, enum us_slqb_word word);
void us_slqb_disown_closed(struct us_words *region, enum us_slqb_word word);

/* On a private free list. */
void us_slqb_push(const struct us_cache *c, struct us_slqb_list *l, void *object);
void *us_slqb_pop(struct us_cache *c, struct us_slqb_list *l); /* NULL: empty, or broken */
/* Up to n objects from the hot end: to the slabs of this list, others to the rlist. */
void us_slqb_flush(struct us_slqb_work *w, struct us_slqb_list *l, uint32_t n);
/* All that came home goes behind the coldest object; returns how many. */
uint32_t us_slqb_claim(struct us_slqb_work *w, struct us_slqb_list *l);

/* Appends an object to the rlist, which goes home when it is another list's, or is a batch. */
void us_slqb_to_rlist(struct us_slqb_work *w, struct us_slqb_list *home, void *object);
void us_slqb_send_home(struct us_slqb_work *w, struct us_slqb_rlist *r);
/* One object straight to its slab; false only when a nested flight found the lock busy. */
bool us_slqb_put_one(struct us_cache *c, struct us_flight *f, unsigned cpu, void *object);

/* One object of a slab of the list. NULL: none, or a nested flight found the lock busy. */
void *us_slqb_fill(struct us_cache *c, struct us_flight *f, struct us_slqb_list *l);
/* One object of a new slab near `node`. */
void *us_slqb_fill_new(struct us_cache *c, struct us_flight *f, unsigned node, unsigned flags);

/* ---- slqb_trim.c --------------------------------------------------------------------- */

bool us_slqb_tick_closes(const struct us_cache *c, unsigned cpu, uint64_t now);
void us_slqb_tick(struct us_cache *c, struct us_flight *f, unsigned cpu, uint64_t now);
uint64_t us_slqb_tick_period(const struct us_cache *c);
uint64_t us_slqb_shrink(struct us_cache *c, struct us_flight *f, unsigned node, bool try_only);
void us_slqb_flush_cpu(struct us_cache *c, struct us_flight *f, unsigned cpu, bool try_only);
void us_slqb_locks(struct us_cache *c, us_lock_fn *each, void *context);
void us_slqb_visit(struct us_cache *c, const struct us_visitor *v);
/* slqb.c: frees that signal handlers had to leave behind. */
void us_slqb_check_deferred(struct us_cache *c, struct us_flight *f, unsigned node);

/* ---- slqb_tables.c ------------------------------------------------------------------- */

extern const struct us_tunable us_slqb_tunables[];
extern const struct us_counter us_slqb_counters[];
enum us_status us_slqb_geometry(struct us_cache *c, struct us_error *e);
const uint32_t *us_slqb_general_sizes(const struct us_machine *m);

#endif
