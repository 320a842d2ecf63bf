/* slab.h - slabs, their descriptors and object state, and struct us_cache.
 *
 * A slab is a block of 2^order pages cut into `objects` cells of `stride` bytes. Its descriptor is
 * out of band: element of a page array at the slab's first page. Every page of a slab maps to the
 * descriptor, so any address finds its slab by arithmetic and one load.
 *
 * Free-object state is one of three kinds. BITMAP: a set bit is an object free in the slab; one
 * word in the descriptor up to 64 objects, above that the page-indexed bit array (the descriptor's
 * word then says below which word of it nothing is free); free objects are never touched. LIST:
 * free objects are linked through themselves at `link`. INDEX: free objects are linked by their
 * numbers in an array out of band, last freed first; they are never touched either.
 *
 * Objects begin at the slab's first byte, or, in a cache that colours its slabs, at an offset that
 * each slab got when it was made.
 *
 *   descriptor, one line:
 *     0  local.head  local.count   the list of the CPU that owns the slab (list policies), or
 *        index | group             INDEX: the slab's array; BITMAP: where the slab belongs
 *    16  bitmap | freelist | first objects free in the slab
 *    24  free  node  state  lock   how many those are; enum us_slab_state; byte lock
 *    32  cache
 *    40  next  prev                links of the list the slab is on
 *    56  shape  offset             objects | order << 24; bytes before the first object
 *
 * The words at 16 and 24 can be changed together by one exchange (slab/exchange.h).
 */
#ifndef US_SLAB_H
#define US_SLAB_H

#include "machine/local.h"
#include "memory/memory.h"

struct us_policy;
struct us_cache;

/* Bits of us_slab.state, each changed under the lock that guards its list. */
enum us_slab_state {
    US_SLAB_PARTIAL = 1,  /* on a partial list */
    US_SLAB_FROZEN = 2,   /* owned by a CPU */
    US_SLAB_LARGE = 4,    /* a large kmalloc, one object */
    US_SLAB_BAD = 8,      /* misuse was seen: objects may be out of circulation */
    US_SLAB_PRIVATE = 16, /* being made or unmade: on no list, no object handed out */
    /* Its free list led astray: on no list, owned by no CPU, its free objects only counted. */
    US_SLAB_ISOLATED = 32,
};

struct us_slab {
    union {
        struct us_list local;
        uint32_t *index;
        uint32_t group; /* BITMAP: the policy's number of the lists that the slab belongs to */
    };
    union {
        uint64_t bitmap;
        void *freelist;
        uint32_t first; /* INDEX: number of the first free object, or US_INDEX_END */
    };
    union {
        struct {
            uint32_t free;
            uint16_t node;
            _Atomic uint8_t state;
            _Atomic uint8_t lock;
        };
        uint64_t counters; /* all four at once */
    };
    struct us_cache *cache;
    struct us_slab *next;
    union {
        struct us_slab *prev;
        struct { /* on a chain that one CPU owns: from this slab to its end */
            uint32_t slabs, objects;
        } chain;
    };
    uint32_t shape;
    uint32_t offset;
};
_Static_assert(sizeof(struct us_slab) == 64, "a descriptor is one line");

US_INLINE uint32_t us_slab_objects(const struct us_slab *s)
{
    return s->shape & 0xffffff;
}
US_INLINE unsigned us_slab_order(const struct us_slab *s)
{
    return s->shape >> 24;
}

/* The arrays of one allocator. */
struct us_slabs {
    struct us_memory *memory;
    struct us_range range;    /* a copy, for inlined checks */
    struct us_slab *slab;     /* [page] descriptors, valid at first pages */
    struct us_slab **of_page; /* [page] NULL or descriptor */
    uint64_t *bits;           /* [page * page_size/64 words/8...]: free bits of large slabs */
    uint64_t *used_bits;      /* debug F: object is with the user */
    unsigned bits_shift;      /* words of a page in bits: 1 << bits_shift */
    struct us_misuse_log *misuse;
};
/* Takes the arrays from `memory`, which frees them when it is destroyed. */
bool us_slabs_init(struct us_slabs *slabs, struct us_memory *memory, struct us_error *error);

/* Slab of an address, NULL when outside the range or not a slab. */
US_INLINE struct us_slab *us_slab_of(const struct us_slabs *s, const void *address)
{
    if (US_UNLIKELY(!us_in_range(&s->range, address)))
        return NULL;
    us_reads(&s->of_page[us_page_of(&s->range, address)], sizeof(*s->of_page));
    return __atomic_load_n(&s->of_page[us_page_of(&s->range, address)], __ATOMIC_RELAXED);
}
US_INLINE void *us_slab_base(const struct us_slabs *s, const struct us_slab *slab)
{
    return us_page_address(&s->range, (uint64_t)(slab - s->slab));
}

/* ---- geometry -------------------------------------------------------------------------------- */

enum us_object_state { US_OBJECTS_BITMAP, US_OBJECTS_LIST, US_OBJECTS_INDEX };

/* What a policy decides about a cache before its first slab. */
struct us_geometry {
    size_t stride;
    size_t align;
    unsigned order, objects;         /* preferred */
    unsigned min_order, min_objects; /* when the preferred order is refused */
    enum us_object_state state;
    ptrdiff_t link;       /* LIST: offset of the link in a free object */
    size_t slab_overhead; /* in-band bytes of the original that stay unused here (waste) */
    size_t index_bytes;   /* INDEX: metadata taken for each slab, at least 4 bytes an object */
};

/* Field's rules shared by policies. */
size_t us_align_of(size_t size, size_t align, unsigned cache_flags, size_t line);
unsigned us_fls(uint64_t x); /* 1-based highest set bit, 0 for 0 */
/* The smallest order whose slab holds `bytes`. */
unsigned us_order_for(uint64_t bytes, size_t page_size);
/* The general caches of the SLUB family, for requests of up to two pages; ended by 0. */
const uint32_t *us_kmalloc_sizes(const struct us_machine *m);
/* Stride, alignment and link of policies that thread free objects through themselves: the link lies
 * in the first word, or behind the object when that must keep its contents while free. */
void us_link_layout(struct us_cache *c);
/* SLUB's order search (slub_facts 1.1.6): smallest order that holds min_objects with little waste;
 * halve = 2.6.25 (fractions 8, 4, min_objects halved), else 16, 8, 4 and decremented.
 * Returns US_MAX_ORDER + 1 when the size does not fit at all. */
unsigned us_slub_order(size_t stride, size_t page_size, unsigned min_objects, unsigned min_order,
                       unsigned max_order, bool epoch_2_6_25);

/* ---- caches ---------------------------------------------------------------------------------- */

#define US_NAME_MAX 64

struct us_cache {
    struct us_cache_head head; /* entries of the policy, or of debug F */
    struct us_local local;     /* table first: the fast path's first load */
    struct us_slabs *slabs;    /* of the allocator */
    struct us_machine *machine;
    void *state; /* the policy's own */
    const struct us_policy *policy;
    int64_t *tunable; /* [policy->ntunables] current values */
    uint64_t given;   /* bits: rows given to this cache itself, not an allocator's default */
    struct us_geometry geometry;
    size_t size;             /* bytes asked for */
    uint64_t reciprocal;     /* us_reciprocal_of(stride), for us_object_index */
    unsigned flags;          /* enum us_cache_flags */
    unsigned nrows;          /* rows of stats: common, then the policy's */
    _Atomic uint64_t *stats; /* [ncpus][nrows] slow-path counts, relaxed */
    struct us_lock stats_lock;
    _Atomic uint64_t *nr_slabs;   /* [nnodes] */
    _Atomic uint64_t *nr_objects; /* [nnodes] capacity of those slabs */
    _Atomic(void *) *deferred;    /* [nnodes] frees of nested handlers, linked through objects */
    struct us_cache_options options;
    void *pattern; /* copy */
    char name[US_NAME_MAX];
    void *owner;           /* struct us_allocator, opaque here */
    struct us_cache *next; /* in the allocator's list */
    unsigned id;
    bool general; /* a kmalloc cache */
    bool has_constructor;
    bool task_placed; /* single allocations that name no node follow the task's memory policy */
    _Atomic uint64_t misuses;  /* reported so far */
    _Atomic uint64_t released; /* pages of slabs given back so far */
};

static inline bool us_tunable_given(const struct us_cache *c, unsigned row)
{
    return c->given >> row & 1;
}

/* A row that must fit another one is held to that, and refused, if it was given to this very cache,
 * or if both are the allocator's defaults, which then contradict each other in every cache. Else it
 * is a default that does not fit this one, and gives way. */
static inline bool us_tunable_binds(const struct us_cache *c, unsigned row, unsigned other,
                                    bool other_by_rule)
{
    return us_tunable_given(c, row) || !(other_by_rule || us_tunable_given(c, other));
}

/* Sum over nodes of one of their counts. */
static inline int64_t us_sum_of_nodes(const struct us_cache *c, _Atomic uint64_t *of_node)
{
    uint64_t total = 0;

    for (unsigned n = 0; n < c->machine->nnodes; n++)
        total += atomic_load_explicit(&of_node[n], memory_order_relaxed);
    return (int64_t)total;
}

/* 2^64 / stride, rounded up; strides from 2 on. The excess e = reciprocal * stride - 2^64 is less
 * than the stride, and offset * reciprocal >> 64 is exact while offset * e < 2^64: always, since
 * slabs and strides are below 2^32. (With 32 bits it is wrong from strides of some KiB on.) */
US_INLINE uint64_t us_reciprocal_of(size_t stride)
{
    return UINT64_MAX / stride + 1;
}
/* Index of the object that holds the byte at `offset` of its slab. */
US_INLINE uint32_t us_object_index(const struct us_cache *c, uint64_t offset)
{
    return (uint32_t)(((unsigned __int128)offset * c->reciprocal) >> 64);
}
/* True when address is the start of an object of this slab; *index is set. */
bool us_object_at(const struct us_cache *c, const struct us_slab *s, const void *address,
                  uint32_t *index);
/* Where the slab's first object begins. */
US_INLINE char *us_slab_objects_base(const struct us_cache *c, const struct us_slab *s)
{
    us_reads(c->slabs, 1);
    return (char *)us_slab_base(c->slabs, s) + s->offset;
}
US_INLINE void *us_object_address(const struct us_cache *c, const struct us_slab *s, uint32_t index)
{
    us_reads(&c->geometry, 1);
    return us_slab_objects_base(c, s) + (uint64_t)index * c->geometry.stride;
}
US_INLINE struct us_slab *us_cache_slab(const struct us_cache *c, const void *object)
{
    us_reads(&c->slabs, sizeof(c->slabs));
    return us_slab_of(c->slabs, object);
}

/* ---- slabs ----------------------------------------------------------------------------------- */

/* A new slab for the cache, all objects free in it and constructed, LIST objects linked, private to
 * the caller, on no list (state PRIVATE is cleared by the caller when it publishes). Tries the
 * preferred order, then the minimum (*fallback says so). flags: US_THISNODE and US_NOWAIT of enum
 * us_alloc_flags count. The slab may be of another node without US_THISNODE: see its `node`. The
 * policy counts it. No lock may be held. NULL when memory is exhausted, or when the constructor
 * would have to wait for the embedder inside a signal handler. */
struct us_slab *us_slab_new(struct us_cache *c, struct us_flight *f, unsigned node, unsigned flags,
                            bool *fallback);
/* The same for a coloured cache: objects begin at `offset`, for which geometry has left room. */
struct us_slab *us_slab_new_at(struct us_cache *c, struct us_flight *f, unsigned node,
                               unsigned flags, uint32_t offset, bool *fallback);
/* A block of its own for one object: state LARGE, not free. The cache is the pseudo-cache of such
 * requests; its stride is not used. Given back by us_slab_release. */
struct us_slab *us_slab_new_large(struct us_cache *c, struct us_flight *f, unsigned order,
                                  unsigned node, unsigned flags);
/* Gives an entirely free slab, which is on no list, back to the provider. No lock may be held.
 * (A forced destroy gives back any slab.) */
void us_slab_release(struct us_cache *c, struct us_flight *f, struct us_slab *s);
/* The same with a chain of slabs, each counted in a row of the policy's; returns bytes. */
uint64_t us_slab_release_chain(struct us_cache *c, struct us_flight *f, unsigned cpu,
                               struct us_slab *s, unsigned policy_row);

/* BITMAP state; the caller holds the lock that guards the slab. */
/* Takes up to n free objects, lowest addresses first, written from out[n-1] downwards, so that
 * later pops return ascending addresses: on return out[n-taken..n) is filled. Returns taken. */
unsigned us_slab_take(struct us_cache *c, struct us_slab *s, void **out, unsigned n);
/* Puts an object back: false, a report and state BAD, when it is not an object start of this cache
 * (it stays out of circulation) or is already free (it stays free once). */
bool us_slab_put(struct us_cache *c, struct us_slab *s, void *object);
/* BITMAP and INDEX. */
bool us_slab_is_free(const struct us_cache *c, const struct us_slab *s, uint32_t index);

/* INDEX state, under the same lock. index[i] is the number of the next free object after i. */
#define US_INDEX_END UINT32_MAX       /* the last one */
#define US_INDEX_OUT (UINT32_MAX - 1) /* i is not free in the slab */
/* Takes up to n free objects, last freed first (a fresh slab's ascend), into out[0..). Returns
 * taken. */
unsigned us_slab_index_take(struct us_cache *c, struct us_slab *s, void **out, unsigned n);
/* As us_slab_put; the object becomes the first free one. */
bool us_slab_index_put(struct us_cache *c, struct us_slab *s, void *object);

/* LIST state: freelist chains of a slab. */
/* Links all objects, ascending; us_slab_new has done it. */
void us_slab_thread(struct us_cache *c, struct us_slab *s);
US_INLINE void *us_link_get(const struct us_cache *c, const void *object)
{
    us_reads((const char *)object + c->geometry.link, sizeof(void *));
    return *(void *const *)((const char *)object + c->geometry.link);
}
US_INLINE void us_link_set(const struct us_cache *c, void *object, void *next)
{
    us_writes((char *)object + c->geometry.link, sizeof(void *));
    *(void **)((char *)object + c->geometry.link) = next;
}

/* Debug F: the bit that says an object is with its user. Both return what it was. */
US_INLINE uint64_t *us_used_word(const struct us_cache *c, const struct us_slab *s, uint32_t index)
{
    const struct us_slabs *slabs = c->slabs;

    return &slabs->used_bits[((uint64_t)(s - slabs->slab) << slabs->bits_shift) + index / 64];
}
US_INLINE bool us_used_set(const struct us_cache *c, const struct us_slab *s, uint32_t index)
{
    const uint64_t bit = 1ull << (index % 64);

    return __atomic_fetch_or(us_used_word(c, s, index), bit, __ATOMIC_ACQ_REL) & bit;
}
US_INLINE bool us_used_clear(const struct us_cache *c, const struct us_slab *s, uint32_t index)
{
    const uint64_t bit = 1ull << (index % 64);

    return __atomic_fetch_and(us_used_word(c, s, index), ~bit, __ATOMIC_ACQ_REL) & bit;
}
US_INLINE bool us_used_test(const struct us_cache *c, const struct us_slab *s, uint32_t index)
{
    return __atomic_load_n(us_used_word(c, s, index), __ATOMIC_RELAXED) >> (index % 64) & 1;
}

/* ---- slab lists ------------------------------------------------------------------------------ */

struct us_slab_list {
    struct us_slab *first, *last;
    uint64_t length;
};
/* On a list a slab is PARTIAL. */
void us_slab_list_head(struct us_slab_list *l, struct us_slab *s);
void us_slab_list_tail(struct us_slab_list *l, struct us_slab *s);
void us_slab_list_remove(struct us_slab_list *l, struct us_slab *s);
/* Takes the entirely free slabs off a list; they are chained through next. */
struct us_slab *us_slab_list_take_empty(struct us_slab_list *l);
/* Orders a list fullest slabs first (fewest free objects), stable, without allocating. */
void us_slab_list_sort(struct us_slab_list *l);

/* ---- statistics, misuse ---------------------------------------------------------------------- */

/* Common counters of every policy (reference: counters table). row: id, name, help */
/* clang-format off */
#define US_COMMON_COUNTERS(row)                                                                   \
    row(ALLOC_FAST, "alloc_fast", "allocations from a stock private to the CPU")                  \
    row(ALLOC_SECOND_LEVEL, "alloc_second_level", "allocations from a stock shared between CPUs") \
    row(ALLOC_SLOW, "alloc_slow", "allocations from slabs of this node")                          \
    row(ALLOC_REMOTE, "alloc_remote", "allocations from another node")                            \
    row(FREE_FAST, "free_fast", "frees to a stock private to the CPU")                            \
    row(FREE_SECOND_LEVEL, "free_second_level", "frees that reached a shared stock")              \
    row(FREE_SLOW, "free_slow", "frees that reached slabs of this node")                          \
    row(FREE_REMOTE, "free_remote", "frees of another node's objects")                            \
    row(SLAB_NEW, "slab_new", "slabs obtained from the page provider")                            \
    row(SLAB_FREE, "slab_free", "slabs returned to the page provider")                            \
    row(FLUSH, "flush", "flushes of a CPU's stock")                                               \
    row(EXPIRE_OBJECTS, "expire_objects", "objects moved to slabs by ageing or expiration")       \
    row(OBJECTS_MOVED, "objects_moved", "objects moved between levels")
/* clang-format on */
enum us_common {
#define US_ROW(id, name, help) US_##id,
    US_COMMON_COUNTERS(US_ROW)
#undef US_ROW
        US_NCOMMON,
    US_FEEDS_NONE = US_NCOMMON
};

US_INLINE void us_stat_add(struct us_cache *c, unsigned cpu, unsigned row, uint64_t n)
{
    us_runs(5);
    us_reads(&c->stats, sizeof(c->stats));
    us_updates(&c->stats[(size_t)cpu * c->nrows + row], sizeof(*c->stats));
    atomic_fetch_add_explicit(&c->stats[(size_t)cpu * c->nrows + row], n, memory_order_relaxed);
}
/* A policy's own row: us_count(c, cpu, US_UNIFIED_ALLOC_SHARED). */
US_INLINE void us_count(struct us_cache *c, unsigned cpu, unsigned policy_row)
{
    us_stat_add(c, cpu, (unsigned)US_NCOMMON + policy_row, 1);
}
US_INLINE void us_count_n(struct us_cache *c, unsigned cpu, unsigned policy_row, uint64_t n)
{
    us_stat_add(c, cpu, (unsigned)US_NCOMMON + policy_row, n);
}

enum us_misuse_kind {
    US_MISUSE_OUTSIDE,
    US_MISUSE_NO_SLAB,
    US_MISUSE_NO_OBJECT,
    US_MISUSE_WRONG_CACHE,
    US_MISUSE_DOUBLE_FREE,
    US_MISUSE_LIST
};
struct us_misuse {
    enum us_misuse_kind kind;
    const struct us_cache *cache;
    uint64_t address;
    uint64_t slab_base; /* 0 = none */
    char text[200];     /* what was found, what was expected */
};
/* Counts and records a misuse (last 64 of the allocator are kept) and marks a slab of this cache
 * that it hit BAD. Never waits, allocates nothing: any lock may be held, and signal handlers may
 * call it. */
void us_report_misuse(struct us_cache *c, enum us_misuse_kind kind, const void *object);
size_t us_misuse_count(const struct us_cache *c);
/* Copies the recorded ones of this cache; returns how many. */
size_t us_misuse_list(const struct us_cache *c, struct us_misuse *out, size_t n);
/* Drops the records of a cache that is going away. */
void us_misuse_forget(struct us_cache *c);
/* In the child of a fork: drops the records that other threads were just writing or reading. */
void us_misuse_fork_child(struct us_slabs *slabs);

/* ---- objects that go back to their slabs ----------------------------------------------------- */

/* A policy's way of putting n objects of any nodes back to slabs; object[] may be reordered. */
typedef void us_drain_fn(struct us_cache *c, struct us_flight *f, unsigned cpu, void **object,
                         unsigned n);
/* Orders addresses, so that objects of one slab meet. Nearly ordered input costs one pass. */
void us_sort_addresses(void **object, unsigned n);
/* The slab of an object that came back, or NULL after a report: then the object is kept out. */
struct us_slab *us_slab_to_fill(struct us_cache *c, const void *object);

/* Frees of nested signal handlers: pushes on the node's lock-free list; takes all of a node. */
void us_defer_free(struct us_cache *c, void *object);
void *us_deferred_take(struct us_cache *c, unsigned node); /* chain linked at offset 0, or NULL */
/* Makes good what the link overwrote: applies the pattern, or calls the constructor again. No lock
 * may be held. */
void us_deferred_restore(struct us_cache *c, void *object);
/* A policy's way of putting one such object back; false = not now, it is deferred again. */
typedef bool us_put_fn(struct us_cache *c, struct us_flight *f, unsigned cpu, void *object);
void us_deferred_take_in(struct us_cache *c, struct us_flight *f, unsigned node, us_put_fn *put);
/* Due at the head of each slow path: takes in what waits on the node. */
US_INLINE void us_deferred_check(struct us_cache *c, struct us_flight *f, unsigned node,
                                 us_put_fn *put)
{
    us_runs(6);
    us_reads(&c->deferred, sizeof(c->deferred));
    us_reads(&c->deferred[node], sizeof(*c->deferred));
    if (US_UNLIKELY(!f->nested &&
                    atomic_load_explicit(&c->deferred[node], memory_order_relaxed) != NULL))
        us_deferred_take_in(c, f, node, put);
}

#endif
