/* buddy.c - free blocks of one span of pages, orders 0 to US_MAX_ORDER. */
#include "memory/buddy.h"

static uint64_t blocks_of(uint64_t npages, unsigned order)
{
    return npages >> order;
}

size_t us_buddy_words(uint64_t npages)
{
    size_t total = 0;

    for (unsigned order = 0; order < US_NORDERS; order++)
        total += us_bitset_words(blocks_of(npages, order));
    return total;
}

void us_buddy_init(struct us_buddy *b, uint64_t npages, uint64_t *words)
{
    b->npages = npages;
    b->frontier = 0;
    b->orders = 0;
    for (unsigned order = 0; order < US_NORDERS; order++) {
        uint64_t nblocks = blocks_of(npages, order);

        us_bitset_init(&b->free[order], nblocks, words);
        words += us_bitset_words(nblocks);
        atomic_init(&b->count[order], 0);
    }
}

static uint64_t count_of(const struct us_buddy *b, unsigned order)
{
    return atomic_load_explicit(&((struct us_buddy *)b)->count[order], memory_order_relaxed);
}

static void add_block(struct us_buddy *b, uint64_t block, unsigned order)
{
    us_runs(10);
    us_writes(&b->count[order], sizeof(b->count[order]));
    us_writes(&b->orders, sizeof(b->orders));
    us_bitset_set(&b->free[order], block);
    atomic_store_explicit(&b->count[order], count_of(b, order) + 1, memory_order_relaxed);
    b->orders |= 1u << order;
}

static void remove_block(struct us_buddy *b, uint64_t block, unsigned order)
{
    uint64_t left = count_of(b, order) - 1;

    us_runs(10);
    us_writes(&b->count[order], sizeof(b->count[order]));
    if (left == 0)
        us_writes(&b->orders, sizeof(b->orders));
    us_bitset_clear(&b->free[order], block);
    atomic_store_explicit(&b->count[order], left, memory_order_relaxed);
    if (left == 0)
        b->orders &= ~(1u << order);
}

uint64_t us_buddy_alloc(struct us_buddy *b, unsigned order)
{
    unsigned suited = b->orders >> order << order;

    us_runs(25);
    us_reads(&b->orders, sizeof(b->orders));
    if (suited == 0)
        return US_NO_BIT;
    unsigned from = (unsigned)__builtin_ctz(suited);
    uint64_t block = us_bitset_first(&b->free[from]);
    remove_block(b, block, from);
    while (from > order) {
        from--;
        block <<= 1;
        add_block(b, block + 1, from);
    }
    return block << order;
}

void us_buddy_free(struct us_buddy *b, uint64_t page, unsigned order)
{
    uint64_t block = page >> order;

    while (order < US_MAX_ORDER) {
        uint64_t other = block ^ 1;

        us_runs(10);
        us_reads(&b->free[order], sizeof(b->free[order]));
        if (other >= b->free[order].nbits || !us_bitset_test(&b->free[order], other))
            break;
        remove_block(b, other, order);
        block >>= 1;
        order++;
    }
    add_block(b, block, order);
}

bool us_buddy_grow(struct us_buddy *b)
{
    uint64_t end = b->frontier + US_MAX_BLOCK;

    if (b->frontier >= b->npages)
        return false;
    if (end > b->npages)
        end = b->npages;
    while (b->frontier < end) {
        unsigned order = US_MAX_ORDER;

        while ((b->frontier & ((1ull << order) - 1)) || b->frontier + (1ull << order) > end)
            order--;
        add_block(b, b->frontier >> order, order);
        b->frontier += 1ull << order;
    }
    return true;
}

/* Within one block of the largest order. */
static bool part_is_free(const struct us_buddy *b, uint64_t page, unsigned order)
{
    for (unsigned o = order; o < US_NORDERS; o++) {
        uint64_t block = page >> o;

        if (block < b->free[o].nbits && us_bitset_test(&b->free[o], block))
            return true;
    }
    return false;
}

bool us_buddy_is_free(const struct us_buddy *b, uint64_t page, unsigned order)
{
    uint64_t end = page + (1ull << order);

    if (page >= b->frontier)
        return true;
    if (order > US_MAX_ORDER) {
        for (; page < end && page < b->frontier; page += US_MAX_BLOCK)
            if (!us_buddy_is_free(b, page, US_MAX_ORDER))
                return false;
        return true;
    }
    if (end <= b->npages)
        return part_is_free(b, page, order);
    /* The last block is cut off: its halves are asked. */
    return us_buddy_is_free(b, page, order - 1) &&
           us_buddy_is_free(b, page + (1ull << (order - 1)), order - 1);
}

uint64_t us_buddy_free_pages(const struct us_buddy *b)
{
    uint64_t pages = b->npages - b->frontier;

    for (unsigned order = 0; order < US_NORDERS; order++)
        pages += count_of(b, order) << order;
    return pages;
}

/* Members of one order: their number, that none lies beyond the frontier, none beside its free
 * buddy, and none inside a larger free block. */
static const char *check_order(const struct us_buddy *b, unsigned order)
{
    const struct us_bitset *s = &b->free[order];
    uint64_t members = 0;

    for (uint64_t i = us_bitset_first(s); i != US_NO_BIT; i = us_bitset_next(s, i + 1)) {
        members++;
        if ((i + 1) << order > b->frontier)
            return "a free block lies beyond the pages in use";
        if (order == US_MAX_ORDER)
            continue;
        if ((i ^ 1) < s->nbits && us_bitset_test(s, i ^ 1))
            return "two free buddies were not merged";
        if (part_is_free(b, i << order, order + 1))
            return "a free block lies inside a larger free block";
    }
    if (members != count_of(b, order))
        return "the number of free blocks of an order is wrong";
    if ((members > 0) != (b->orders >> order & 1))
        return "the mask of orders with free blocks is wrong";
    return NULL;
}

const char *us_buddy_check(const struct us_buddy *b)
{
    for (unsigned order = 0; order < US_NORDERS; order++) {
        const char *wrong = check_order(b, order);
        if (wrong)
            return wrong;
    }
    return NULL;
}
