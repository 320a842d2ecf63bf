// machines: both
/* memory/buddy against a model that knows nothing but which pages are in use: a block of an order
 * is free when it is aligned, unused and not part of a larger such block. */
#include <string.h>

#include "check.h"
#include "memory/buddy.h"

#define MOST 5000u /* pages: four full largest blocks and a part */

static bool used[MOST];
static uint64_t npages, frontier;
static uint64_t words[MOST / 8];
static struct us_buddy buddy;

static uint64_t seed = 88172645463325252ull;

static uint64_t below(uint64_t n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed % n;
}

static void begin(uint64_t n)
{
    memset(used, 0, sizeof used);
    memset(words, 0, sizeof words);
    REQUIRE(us_buddy_words(n) <= sizeof words / sizeof *words);
    us_buddy_init(&buddy, n, words);
    npages = n;
    frontier = 0;
}

/* Aligned, within the pages brought in so far, and unused? */
static bool unused(uint64_t page, unsigned order)
{
    uint64_t end = page + (1ull << order);

    if (end > frontier)
        return false;
    for (; page < end; page++)
        if (used[page])
            return false;
    return true;
}

static bool is_block(uint64_t page, unsigned order)
{
    if (!unused(page, order))
        return false;
    return order == US_MAX_ORDER || !unused(page & ~((2ull << order) - 1), order + 1);
}

/* Lowest block of the smallest order that suffices. */
static uint64_t model_find(unsigned order)
{
    for (; order <= US_MAX_ORDER; order++)
        for (uint64_t page = 0; page < frontier; page += 1ull << order)
            if (is_block(page, order))
                return page;
    return US_NO_BIT;
}

static uint64_t model_count(unsigned order)
{
    uint64_t n = 0;

    for (uint64_t page = 0; page < frontier; page += 1ull << order)
        n += is_block(page, order);
    return n;
}

static void mark(uint64_t page, unsigned order, bool value)
{
    for (uint64_t i = page; i < page + (1ull << order); i++)
        used[i] = value;
}

static void compare(void)
{
    const char *wrong = us_buddy_check(&buddy);
    uint64_t unused_pages = 0;

    if (!CHECK(wrong == NULL))
        fprintf(stderr, "%s\n", wrong);
    for (unsigned order = 0; order <= US_MAX_ORDER; order++)
        CHECK_EQ(atomic_load(&buddy.count[order]), model_count(order));
    for (uint64_t i = 0; i < npages; i++)
        unused_pages += !used[i];
    CHECK_EQ(us_buddy_free_pages(&buddy), unused_pages);
}

/* Free as a whole; what lies beyond the last page counts as free. */
static void compare_is_free(void)
{
    unsigned order = (unsigned)below(US_MAX_ORDER + 3);
    uint64_t page = below(npages) & ~((1ull << order) - 1);
    bool expected = true;

    for (uint64_t i = page; i < page + (1ull << order) && i < npages; i++)
        expected = expected && !used[i];
    CHECK_EQ(us_buddy_is_free(&buddy, page, order), expected);
}

static void random_program(uint64_t n, unsigned highest_order)
{
    static struct {
        uint64_t page;
        unsigned order;
    } block[MOST];
    unsigned nblocks = 0;

    begin(n);
    for (unsigned step = 0; step < 3000; step++) {
        /* Phases that mostly allocate and phases that mostly free. */
        bool allocate = below(10) < (step / 500 % 2 ? 3 : 7);

        if (allocate) {
            unsigned order = (unsigned)below(highest_order + 1);
            uint64_t expected = model_find(order), page = us_buddy_alloc(&buddy, order);

            CHECK_EQ(page, expected);
            if (page == US_NO_BIT) {
                CHECK_EQ(us_buddy_grow(&buddy), frontier < npages);
                frontier = frontier + US_MAX_BLOCK < npages ? frontier + US_MAX_BLOCK : npages;
                continue;
            }
            mark(page, order, true);
            block[nblocks].page = page;
            block[nblocks++].order = order;
        } else if (nblocks > 0) {
            unsigned i = (unsigned)below(nblocks);

            us_buddy_free(&buddy, block[i].page, block[i].order);
            mark(block[i].page, block[i].order, false);
            block[i] = block[--nblocks];
        }
        compare_is_free();
        if (step % 100 == 0)
            compare();
    }
    while (nblocks-- > 0) {
        us_buddy_free(&buddy, block[nblocks].page, block[nblocks].order);
        mark(block[nblocks].page, block[nblocks].order, false);
    }
    compare();
    CHECK_EQ(us_buddy_free_pages(&buddy), n);
}

static void random_programs(void)
{
    random_program(1, 0);
    random_program(7, 3);
    random_program(1024, 4);
    random_program(1025, 10);
    random_program(3000, 6);
    random_program(MOST, 10);
}

/* A first request of one page splits the largest block into one of each order. */
static void split_and_merge(void)
{
    begin(2048);
    CHECK_EQ(us_buddy_alloc(&buddy, 0), US_NO_BIT);
    CHECK(us_buddy_grow(&buddy));
    CHECK_EQ(us_buddy_alloc(&buddy, 0), 0);
    for (unsigned order = 0; order < US_MAX_ORDER; order++)
        CHECK_EQ(atomic_load(&buddy.count[order]), 1);
    CHECK_EQ(atomic_load(&buddy.count[US_MAX_ORDER]), 0);
    CHECK_EQ(us_buddy_alloc(&buddy, 0), 1);
    CHECK_EQ(us_buddy_alloc(&buddy, 0), 2);
    us_buddy_free(&buddy, 0, 0);
    us_buddy_free(&buddy, 2, 0);
    CHECK_EQ(us_buddy_alloc(&buddy, 0), 0);
    us_buddy_free(&buddy, 0, 0);
    us_buddy_free(&buddy, 1, 0);
    CHECK_EQ(atomic_load(&buddy.count[US_MAX_ORDER]), 1);
    CHECK_EQ(us_buddy_alloc(&buddy, US_MAX_ORDER), 0);
}

int main(void)
{
    RUN(split_and_merge);
    RUN(random_programs);
    return check_result();
}
