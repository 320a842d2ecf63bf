/* buddy.h - free blocks of one span of pages, orders 0 to US_MAX_ORDER.
 *
 * Free state is one bitset an order (bit = block number of that order) and nothing else, so nothing
 * in or beside a free page has to stay resident. A request takes the lowest block of the smallest
 * order that suffices and splits it; a freed block merges with its buddy as far as it goes.
 * Pages from `frontier` on were never used: they are free too, but in no bitset until us_buddy_grow
 * brings in the next block of the largest order. The owner's lock guards everything; `count` alone
 * may be read without it.
 */
#ifndef US_BUDDY_H
#define US_BUDDY_H

#include "memory/bitset.h"
#include "memory/memory.h"

#define US_NORDERS   (US_MAX_ORDER + 1)
#define US_MAX_BLOCK (1ull << US_MAX_ORDER) /* pages */

struct us_buddy {
    struct us_bitset free[US_NORDERS];
    _Atomic uint64_t count[US_NORDERS]; /* members of each */
    uint64_t npages, frontier;
    unsigned orders; /* bit = order that has a free block */
};

size_t us_buddy_words(uint64_t npages);
void us_buddy_init(struct us_buddy *b, uint64_t npages, uint64_t *words);

/* First page of a block, or US_NO_BIT: then us_buddy_grow may help. */
uint64_t us_buddy_alloc(struct us_buddy *b, unsigned order);
void us_buddy_free(struct us_buddy *b, uint64_t page, unsigned order);
/* Brings in the pages of the next largest block (fewer at the end); false when there are none. */
bool us_buddy_grow(struct us_buddy *b);
/* True when all of the aligned block is free; pages from npages on count as free. */
bool us_buddy_is_free(const struct us_buddy *b, uint64_t page, unsigned order);
/* Free pages, those beyond the frontier included. */
uint64_t us_buddy_free_pages(const struct us_buddy *b);
/* The first thing that is wrong, or NULL. */
const char *us_buddy_check(const struct us_buddy *b);

#endif
