/* memory.h - the address range, the page provider, and memory for our own metadata.
 *
 * One contiguous reserved range is cut into equal node ranges (a power of two each), so the node of
 * an address is arithmetic. Per node a buddy provider hands out blocks of 2^order pages, lowest
 * address first, from bitset trees that lie out of band; as many pages as the node's share of the
 * byte budget, so that memory fragments as it does on a machine of that size. Watermarks follow
 * from it. Our metadata is out of band too: page arrays (one element a page) that are purged
 * together with the pages they describe, and a metadata allocator in general-cache sizes.
 */
#ifndef US_MEMORY_H
#define US_MEMORY_H

#include "machine/flight.h"

#define US_MAX_ORDER 10

struct us_memory;

struct us_memory_options {
    uint64_t budget;         /* bytes over all nodes, 0 = all of the range */
    uint64_t address_range;  /* 0 = 64 GiB, halved until the system agrees */
    uint64_t purge_delay_ns; /* free pages go back after one to two delays */
};

/* What the embedder of the provider does when memory runs short. Called in the requester's flight
 * with no lock held. LOW: free pages fell below `low` (never waits: uses try-locks). FAIL: a
 * request would fail; returns true when something was given back and a retry makes sense. */
enum us_pressure { US_PRESSURE_LOW, US_PRESSURE_FAIL };
typedef bool us_pressure_fn(void *context, struct us_flight *f, unsigned node, enum us_pressure);

enum us_page_flags {
    US_PAGES_THISNODE = 1u << 0, /* no other node */
    US_PAGES_NORETRY = 1u << 1,  /* fail at once (the preferred, larger order of a cache) */
    US_PAGES_NOWAIT = 1u << 2,   /* no pressure calls at all */
};

struct us_memory *us_memory_create(struct us_machine *m, const struct us_memory_options *options,
                                   struct us_error *error);
void us_memory_destroy(struct us_memory *mem);
void us_memory_on_pressure(struct us_memory *mem, us_pressure_fn *fn, void *context);

/* ---- the range: arithmetic only, inlined --------------------------------------------------- */

/* Head of struct us_memory, so that the checks of a free are inlined. */
struct us_range {
    uint64_t base;   /* first address */
    uint64_t length; /* bytes: nnodes << node_shift */
    unsigned node_shift, page_shift;
    uint64_t npages;
};
static inline const struct us_range *us_memory_range(const struct us_memory *mem)
{
    return (const struct us_range *)mem;
}
US_INLINE bool us_in_range(const struct us_range *r, const void *address)
{
    us_reads(r, 1);
    return (uint64_t)(uintptr_t)address - r->base < r->length;
}
US_INLINE unsigned us_node_of(const struct us_range *r, const void *address)
{
    us_reads(r, 1);
    return (unsigned)(((uint64_t)(uintptr_t)address - r->base) >> r->node_shift);
}
US_INLINE uint64_t us_page_of(const struct us_range *r, const void *address)
{
    return ((uint64_t)(uintptr_t)address - r->base) >> r->page_shift;
}
US_INLINE void *us_page_address(const struct us_range *r, uint64_t page)
{
    return (void *)(uintptr_t)(r->base + (page << r->page_shift));
}
US_INLINE uint64_t us_node_base(const struct us_range *r, unsigned node)
{
    us_reads(r, 1);
    return r->base + ((uint64_t)node << r->node_shift);
}
US_INLINE uint64_t us_node_length(const struct us_range *r)
{
    return 1ull << r->node_shift;
}

/* ---- pages ----------------------------------------------------------------------------------- */

/* The i-th node from `node`, nearest number first and the higher one of two equally near; i = 0 is
 * the node itself. */
unsigned us_node_near(unsigned node, unsigned i, unsigned nnodes);
/* A block of 2^order pages, aligned to its size within the node: the lowest of the smallest free
 * blocks that suffice; NULL when memory is exhausted. Without THISNODE other nodes are tried,
 * nearest number first. Contents are undefined. Ordinary requests may use the last page of the
 * budget, NORETRY ones leave `min` pages of a node alone. After a request that leaves its node
 * below `low`, LOW is called, one call at a time for each node, and again each time an eighth of
 * low - min more is gone. An injected failure is final: no call, no retry. */
void *us_pages_alloc(struct us_memory *mem, struct us_flight *f, unsigned order, unsigned node,
                     unsigned flags);
void us_pages_free(struct us_memory *mem, struct us_flight *f, void *block, unsigned order);
/* Gives free pages back to the system: those free for a purge delay, or all of them. */
uint64_t us_memory_purge(struct us_memory *mem, struct us_flight *f, uint64_t now, bool all);
/* Takes in what signal handlers could not give back. */
void us_memory_settle(struct us_memory *mem, struct us_flight *f);
/* A page array: `bytes` per page (a power of two up to a page), zeroed; an element may become zero
 * again whenever its page is free. Freed with the memory. */
void *us_page_array(struct us_memory *mem, size_t bytes, struct us_error *error);

/* ---- metadata -------------------------------------------------------------------------------- */

/* Line-aligned zeroed memory for descriptors, queues, tables; accounted as metadata in
 * general-cache sizes (8..8192 in powers of two, 96 and 192, above that whole pages). */
void *us_meta_alloc(struct us_memory *mem, size_t bytes);
void us_meta_free(struct us_memory *mem, void *base, size_t bytes);
/* The same, accounted as `account` bytes: what the original takes from a general cache where our
 * layout takes more or less. */
void *us_meta_alloc_as(struct us_memory *mem, size_t bytes, size_t account);
void us_meta_free_as(struct us_memory *mem, void *base, size_t bytes, size_t account);
size_t us_meta_rounded(const struct us_memory *mem, size_t bytes);

/* ---- failure injection ----------------------------------------------------------------------- */

enum us_fail_kind { US_FAIL_PAGES, US_FAIL_META };
/* Each request fails with probability rate (of 2^32), or the nth from now alone (nth > 0). */
void us_memory_fail(struct us_memory *mem, enum us_fail_kind kind, uint32_t rate, uint64_t nth);
/* Injected so far. */
uint64_t us_memory_failed(const struct us_memory *mem, enum us_fail_kind kind);

/* ---- accounts -------------------------------------------------------------------------------- */

/* bytes; peaks since creation or us_memory_reset_peaks. metadata: what us_meta_alloc handed out, in
 * rounded sizes (or as the original's); page arrays (whose resident part follows the pages in use)
 * and bitsets (1/8 bit to 1/2 byte a page) stand apart. */
struct us_memory_account {
    uint64_t reserved, reserved_peak; /* pages handed out */
    uint64_t metadata, metadata_peak;
    uint64_t resident, resident_peak; /* pages handed out or free but not yet given back */
    uint64_t address_range;
    uint64_t budget;
};
void us_memory_account(struct us_memory *mem, struct us_memory_account *account);
/* Every lock of the provider and of the metadata allocator. */
void us_memory_locks(const struct us_memory *mem, us_lock_fn *each, void *context);
void us_memory_reset_peaks(struct us_memory *mem);

/* One node, in pages. free counts within the budget. */
struct us_node_memory {
    uint64_t managed, free, min, low, high;
    uint64_t free_blocks[US_MAX_ORDER + 1]; /* of each order, in the part that was ever looked at */
    uint64_t allocs, frees, fallbacks, failures;
};
void us_memory_node(struct us_memory *mem, unsigned node, struct us_node_memory *out);
/* Checks that every free block is aligned, buddies are merged, and counts add up. */
bool us_memory_check(struct us_memory *mem, struct us_error *error);
/* Pages [0, high_water) of a node were ever handed out: bounds for walks over page arrays. */
uint64_t us_memory_high_water(const struct us_memory *mem, unsigned node);

#endif
