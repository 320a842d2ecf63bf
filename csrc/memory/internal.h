/* internal.h - what the files of memory/ share.
 *
 * Locks: each node has one of class PAGES over its span and its dirty sets, the metadata allocator
 * one of class META; none is held while another is taken, and none while the embedder is called.
 * Accounts are relaxed atomics, so that readers take no lock.
 */
#ifndef US_MEMORY_INTERNAL_H
#define US_MEMORY_INTERNAL_H

#include "memory/buddy.h"

#define US_MAX_ARRAYS 8

/* Reserved pages that are made accessible from the bottom up, as far as they are used. */
struct us_span {
    struct us_buddy buddy;
    char *base;
    unsigned page_shift;
    uint64_t committed; /* pages */
};
void us_span_init(struct us_span *s, char *base, unsigned page_shift, uint64_t npages,
                  uint64_t *words);
/* First page of a block, or US_NO_BIT. */
uint64_t us_span_alloc(struct us_span *s, unsigned order);

/* Free pages that may still hold memory. A page enters YOUNG when it is freed, moves to OLD with
 * the next purge turn and is given back at the one after. */
enum us_generation { US_YOUNG, US_OLD, US_NGENERATIONS };

/* Pages that a nested signal handler could not give back; lies in the block itself. */
struct us_stray {
    struct us_stray *next;
    unsigned order;
};

struct us_page_node {
    struct us_lock lock; /* class PAGES */
    struct us_span span;
    struct us_bitset dirty[US_NGENERATIONS];
    uint64_t ndirty[US_NGENERATIONS];
    _Atomic(struct us_stray *) strays;
    uint64_t managed, min, low, high; /* pages */
    _Atomic uint64_t used;            /* pages handed out */
    _Atomic uint64_t high_water;
    _Atomic uint64_t allocs, frees, fallbacks, failures;
    _Atomic uint64_t low_told; /* free pages after the last LOW call, UINT64_MAX = none is due */
    _Atomic uint32_t low_busy;
} US_ALIGNED(US_LINE);

struct us_array {
    char *base;
    size_t bytes; /* per page */
    size_t total;
};

struct us_peak {
    _Atomic uint64_t now, peak;
};

struct us_injection {
    _Atomic bool active;
    _Atomic uint32_t rate;
    _Atomic uint64_t nth;
    _Atomic uint64_t failed;
};

struct us_meta_chunk;
#define US_META_CLASSES 9 /* cells of 64, 128, 192, 256, 512 ... 8192 bytes */
struct us_meta {
    struct us_lock lock; /* class META */
    struct us_span span;
    size_t reserved;
    struct us_meta_chunk *chunk; /* [] by position in the span */
    size_t chunk_bytes;          /* of that array */
    unsigned chunk_order;
    struct us_meta_chunk *open[US_META_CLASSES]; /* chunks with a free cell */
    _Atomic(void *) strays;
};

struct us_memory {
    struct us_range range; /* first: us_memory_range */
    struct us_machine *machine;
    struct us_memory_options options;
    us_pressure_fn *pressure;
    void *context;
    struct us_page_node *node; /* [nnodes] */
    char *reservation;
    size_t reservation_bytes;
    uint64_t *words; /* of all bitsets */
    size_t words_bytes;
    struct us_array array[US_MAX_ARRAYS];
    _Atomic unsigned narrays;
    uint64_t budget;
    struct us_peak reserved, resident; /* pages */
    struct us_peak metadata;           /* bytes */
    struct us_injection fail[2];
    _Atomic uint64_t turn;                   /* time of the next purge turn */
    struct us_meta meta US_ALIGNED(US_LINE); /* its lock in one line */
};

static inline uint64_t us_load(const _Atomic uint64_t *x)
{
    return atomic_load_explicit((_Atomic uint64_t *)x, memory_order_relaxed);
}
static inline void us_bump(_Atomic uint64_t *x, uint64_t n)
{
    us_updates(x, sizeof(*x));
    atomic_fetch_add_explicit(x, n, memory_order_relaxed);
}
/* For counts that only the holder of a lock changes. */
static inline void us_add_locked(_Atomic uint64_t *x, uint64_t n)
{
    us_writes(x, sizeof(*x));
    atomic_store_explicit(x, us_load(x) + n, memory_order_relaxed);
}
static inline void us_peak_add(struct us_peak *p, uint64_t n)
{
    us_runs(8);
    us_updates(p, sizeof(*p));
    uint64_t now = atomic_fetch_add_explicit(&p->now, n, memory_order_relaxed) + n;
    uint64_t peak = us_load(&p->peak);

    while (now > peak && !atomic_compare_exchange_weak_explicit(
                             &p->peak, &peak, now, memory_order_relaxed, memory_order_relaxed))
        ;
}
static inline void us_peak_sub(struct us_peak *p, uint64_t n)
{
    us_runs(3);
    us_updates(p, sizeof(*p));
    atomic_fetch_sub_explicit(&p->now, n, memory_order_relaxed);
}

/* Pages free within the node's budget. */
static inline uint64_t us_node_free(const struct us_page_node *node)
{
    us_reads(&node->managed, sizeof(node->managed));
    us_reads(&node->used, sizeof(node->used));
    return node->managed - us_load(&node->used);
}

/* True when this request is to fail. */
bool us_injected(struct us_memory *mem, enum us_fail_kind kind);
/* The node's lock is held: takes in what signal handlers left. */
void us_take_strays(struct us_memory *mem, struct us_page_node *node);
bool us_meta_init(struct us_memory *mem, struct us_error *error);
void us_meta_fini(struct us_memory *mem);
/* Gives chunks without a used cell back. */
void us_meta_trim(struct us_memory *mem);
void us_memory_error(struct us_error *error, enum us_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
