/* local_internal.h - what local.c, local_counts.c and native/rseq_slow.c share. */
#ifndef US_LOCAL_INTERNAL_H
#define US_LOCAL_INTERNAL_H

#include "machine/local.h"

static inline void *us_local_closed_region(const struct us_local *l)
{
    /* Nobody writes to a region with neither room nor content. */
    switch (l->kind) {
    case US_REGION_RING:
        return (void *)(uintptr_t)&us_closed_ring;
    case US_REGION_SHEAVES:
        return (void *)(uintptr_t)&us_closed_sheaves;
    default:
        return (void *)(uintptr_t)&us_closed_words;
    }
}

static inline void *us_local_entry(const struct us_local *l, unsigned cpu)
{
    return __atomic_load_n(&l->table[cpu], __ATOMIC_ACQUIRE);
}

static inline void *us_local_region_of(const struct us_local *l, unsigned cpu)
{
    return __atomic_load_n(&l->region[cpu], __ATOMIC_ACQUIRE);
}

static inline bool us_local_all_closed(const struct us_local *l)
{
    return atomic_load_explicit(&((struct us_local *)l)->all_closed, memory_order_relaxed);
}

static inline void us_moved(_Atomic uint64_t *count, uint64_t n)
{
    us_updates(count, sizeof(*count));
    atomic_fetch_add_explicit(count, n, memory_order_release);
}

/* Extends the header's pops beyond their width, from the last look on, and returns them. Who lets
 * the count wrap looks first, so no look is more than one wrap behind. `header`, unless NULL, gets
 * what was seen. */
uint64_t us_local_extend(struct us_local *l, unsigned cpu, uint64_t *header);

#endif
