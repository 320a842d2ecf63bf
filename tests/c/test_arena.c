// machines: both
/* The page provider: ranges, budgets, watermarks, nodes in turn, pressure, injected failures. */
#include <sys/resource.h>

#include "fixture_memory.h"

/* ---- the range ---------------------------------------------------------------------------------
 */

static void node_ranges(void)
{
    static const unsigned nodes[] = {1, 2, 3, 7, 64};

    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++) {
        struct us_machine *m = make_machine(nodes[i]);
        struct us_memory *mem = make_memory(m, 0);
        const struct us_range *r = us_memory_range(mem);
        uint64_t node_bytes = us_node_length(r), block = m->page_size << US_MAX_ORDER;

        CHECK_EQ(r->length, node_bytes * nodes[i]);
        CHECK_EQ(r->npages, r->length / m->page_size);
        CHECK_EQ(r->base % block, 0);
        CHECK_EQ(node_bytes % block, 0);
        for (unsigned n = 0; n < nodes[i]; n++) {
            char *first = (char *)(uintptr_t)us_node_base(r, n);

            CHECK_EQ(us_node_of(r, first), n);
            CHECK_EQ(us_node_of(r, first + node_bytes - 1), n);
            CHECK(us_in_range(r, first));
            CHECK_EQ(us_page_address(r, us_page_of(r, first + 12345)),
                     first + 12345 / m->page_size * m->page_size);
        }
        CHECK(!us_in_range(r, (char *)(uintptr_t)r->base - 1));
        CHECK(!us_in_range(r, (char *)(uintptr_t)(r->base + r->length)));
        CHECK(!us_in_range(r, NULL));
        us_memory_destroy(mem);
        us_machine_destroy(m);
    }
}

static void refused(struct us_machine *m, uint64_t budget, uint64_t range, const char *names)
{
    struct us_memory_options options = {.budget = budget, .address_range = range};
    struct us_error error = {0};

    CHECK(us_memory_create(m, &options, &error) == NULL);
    CHECK_EQ(error.status, US_EINVAL);
    if (!CHECK(strstr(error.text, names) != NULL))
        fprintf(stderr, "  text: %s\n", error.text);
    CHECK(us_memory_create(m, &options, NULL) == NULL);
}

static void bad_options(void)
{
    struct us_machine *m = make_machine(4);

    refused(m, 0, 1 * MIB, "1048576");
    refused(m, 512 * MIB, 256 * MIB, "536870912");
    refused(m, 4 * m->page_size - 1, 0, "no page");
    us_machine_destroy(m);
}

static void explicit_range(void)
{
    struct us_machine *m = make_machine(2);
    struct us_memory_options options = {.address_range = 1024 * MIB};
    struct us_memory *mem = us_memory_create(m, &options, NULL);
    struct us_memory_account account;

    REQUIRE(mem != NULL);
    us_memory_account(mem, &account);
    CHECK_EQ(account.address_range, 1024 * MIB);
    CHECK_EQ(account.budget, 1024 * MIB);
    CHECK_EQ(account.reserved, 0);
    CHECK_EQ(account.resident, 0);
    us_memory_destroy(mem);
    us_machine_destroy(m);
}

/* With little address space the range is smaller, and slabs still work. */
static void limited_address_space(void)
{
    struct rlimit old, limit;
    struct us_memory_account account;
    struct world w;

    REQUIRE(getrlimit(RLIMIT_AS, &old) == 0);
    limit = old;
    limit.rlim_cur = 6ull << 30;
    REQUIRE(setrlimit(RLIMIT_AS, &limit) == 0);
    world_begin(&w, 2, 0);
    us_memory_account(w.memory, &account);
    CHECK(account.address_range >= 1ull << 30 && account.address_range < 6ull << 30);
    CHECK_EQ(account.budget, account.address_range);
    struct us_cache *c = make_cache(&w, "a", 64, 0, US_OBJECTS_BITMAP);
    struct us_slab *s = us_slab_new(c, &w.flight, 1, 0, NULL);
    REQUIRE(s != NULL);
    us_slab_release(c, &w.flight, s);
    drop_cache(c);
    world_end(&w);
    /* One that is asked for by its size is refused. */
    struct us_machine *m = make_machine(1);
    struct us_memory_options options = {.address_range = 64ull << 30};
    struct us_error error = {0};
    CHECK(us_memory_create(m, &options, &error) == NULL);
    CHECK_EQ(error.status, US_ENOMEM);
    us_machine_destroy(m);
    REQUIRE(setrlimit(RLIMIT_AS, &old) == 0);
}

/* ---- watermarks --------------------------------------------------------------------------------
 */

/* The formula in kB: sqrt(budget * 16) within 128 and 262144, at most an eighth; the gap is a
 * quarter of it or a thousandth of the memory. */
static void check_marks(unsigned nnodes, uint64_t budget, uint64_t min_kb)
{
    struct us_machine *m = make_machine(nnodes);
    struct us_memory *mem = make_memory(m, budget);
    uint64_t managed = budget / nnodes / m->page_size;
    uint64_t min = min_kb * 1024 / nnodes / m->page_size;
    uint64_t gap = min / 4 > managed / 1000 ? min / 4 : managed / 1000;

    for (unsigned n = 0; n < nnodes; n++) {
        struct us_node_memory info;

        us_memory_node(mem, n, &info);
        CHECK_EQ(info.managed, managed);
        CHECK_EQ(info.free, managed);
        CHECK_EQ(info.min, min);
        CHECK_EQ(info.low, min + gap);
        CHECK_EQ(info.high, min + 2 * gap);
    }
    us_memory_destroy(mem);
    us_machine_destroy(m);
}

static void watermarks(void)
{
    /* The examples of the reference: 1 GiB -> 4096 kB, 4 GiB -> 8192, 16 GiB -> 16384, 64 -> 32768.
     */
    check_marks(1, 1024 * MIB, 4096);
    check_marks(1, 4096 * MIB, 8192);
    check_marks(2, 16384 * MIB, 16384);
    check_marks(4, 65536 * MIB, 32768);
    /* sqrt(16384 kB * 16) = 512; sqrt(1024 * 16) = 128, the lower bound, and an eighth of 1 MiB. */
    check_marks(1, 16 * MIB, 512);
    check_marks(1, 1 * MIB, 128);
    /* An eighth of 512 kB. */
    check_marks(1, MIB / 2, 64);
    check_marks(2, MIB, 128);
}

/* ---- pages -------------------------------------------------------------------------------------
 */

static void lowest_address_first(void)
{
    struct us_machine *m = make_machine(2);
    struct us_memory *mem = make_memory(m, 64 * MIB);
    const struct us_range *r = us_memory_range(mem);
    struct us_flight f;
    char *block[8], *base = (char *)(uintptr_t)us_node_base(r, 1);

    us_flight_enter(m, &f);
    for (unsigned i = 0; i < 8; i++) {
        block[i] = us_pages_alloc(mem, &f, 0, 1, 0);
        CHECK_EQ(block[i], base + i * m->page_size);
        memset(block[i], 0xa5, m->page_size);
    }
    us_pages_free(mem, &f, block[5], 0);
    us_pages_free(mem, &f, block[2], 0);
    CHECK_EQ(us_pages_alloc(mem, &f, 0, 1, 0), block[2]);
    CHECK_EQ(us_pages_alloc(mem, &f, 0, 1, 0), block[5]);
    /* Blocks are aligned to their size, and as far as node 0 is concerned nothing happened. */
    char *large = us_pages_alloc(mem, &f, 4, 1, 0);
    CHECK_EQ((uint64_t)(large - base) % (m->page_size << 4), 0);
    CHECK_EQ(us_pages_alloc(mem, &f, 0, 0, 0), (char *)(uintptr_t)us_node_base(r, 0));
    CHECK_EQ(us_memory_high_water(mem, 0), 1);
    CHECK_EQ(us_memory_high_water(mem, 1), 32);
    CHECK(us_pages_alloc(mem, &f, US_MAX_ORDER + 1, 0, 0) == NULL);
    us_flight_leave(&f);
    check_memory(mem);
    us_memory_destroy(mem);
    us_machine_destroy(m);
}

static void accounts(void)
{
    struct us_machine *m = make_machine(1);
    struct us_memory *mem = make_memory(m, 64 * MIB);
    struct us_memory_account account;
    struct us_node_memory info;
    struct us_flight f;

    us_flight_enter(m, &f);
    void *a = us_pages_alloc(mem, &f, 3, 0, 0), *b = us_pages_alloc(mem, &f, 0, 0, 0);
    us_pages_free(mem, &f, a, 3);
    us_memory_account(mem, &account);
    CHECK_EQ(account.reserved, m->page_size);
    CHECK_EQ(account.reserved_peak, 9 * m->page_size);
    CHECK_EQ(account.resident, 9 * m->page_size);
    /* The freed pages are used again: nothing more becomes resident. */
    CHECK_EQ(us_pages_alloc(mem, &f, 3, 0, 0), a);
    us_memory_account(mem, &account);
    CHECK_EQ(account.reserved, 9 * m->page_size);
    CHECK_EQ(account.resident, 9 * m->page_size);
    us_pages_free(mem, &f, a, 3);
    us_pages_free(mem, &f, b, 0);
    us_memory_reset_peaks(mem);
    us_memory_account(mem, &account);
    CHECK_EQ(account.reserved_peak, 0);
    CHECK_EQ(account.resident_peak, 9 * m->page_size);
    us_memory_node(mem, 0, &info);
    CHECK_EQ(info.allocs, 3);
    CHECK_EQ(info.frees, 3);
    CHECK_EQ(info.free, info.managed);
    CHECK_EQ(info.free_blocks[US_MAX_ORDER], 1);
    us_flight_leave(&f);
    check_memory(mem);
    us_memory_destroy(mem);
    us_machine_destroy(m);
}

/* Takes pages of `order` until the provider refuses; returns how many blocks. */
static uint64_t exhaust(struct us_memory *mem, struct us_flight *f, unsigned order, unsigned node,
                        unsigned flags)
{
    uint64_t n = 0;

    while (us_pages_alloc(mem, f, order, node, flags))
        n++;
    return n;
}

static void nearest_node_first(void)
{
    static const unsigned expected[] = {2, 3, 1, 4, 0}; /* of two equally near the higher one */
    struct us_machine *m = make_machine(5);
    uint64_t pages = 16;
    struct us_memory *mem = make_memory(m, 5 * pages * m->page_size);
    struct us_node_memory info;
    struct us_flight f;

    us_flight_enter(m, &f);
    for (unsigned i = 0; i < 5; i++)
        for (uint64_t page = 0; page < pages; page++) {
            void *block = us_pages_alloc(mem, &f, 0, 2, 0);

            REQUIRE(block != NULL);
            CHECK_EQ(us_node_of(us_memory_range(mem), block), expected[i]);
        }
    CHECK(us_pages_alloc(mem, &f, 0, 2, 0) == NULL);
    us_memory_node(mem, 2, &info);
    CHECK_EQ(info.fallbacks, 4 * pages);
    CHECK_EQ(info.failures, 1);
    CHECK_EQ(info.free, 0);
    us_flight_leave(&f);
    check_memory(mem);
    us_memory_destroy(mem);
    us_machine_destroy(m);
}

static void this_node_only(void)
{
    struct us_machine *m = make_machine(2);
    struct us_memory *mem = make_memory(m, 2 * MIB);
    struct us_flight f;

    us_flight_enter(m, &f);
    CHECK_EQ(exhaust(mem, &f, 0, 1, US_PAGES_THISNODE), MIB / m->page_size);
    CHECK_EQ(free_pages(mem, 0), MIB / m->page_size);
    us_flight_leave(&f);
    us_memory_destroy(mem);
    us_machine_destroy(m);
}

/* A request that has a smaller order to fall back to leaves the reserve alone. */
static void preferred_orders_leave_the_minimum(void)
{
    struct us_machine *m = make_machine(1);
    struct us_memory *mem = make_memory(m, 16 * MIB);
    struct us_node_memory info;
    struct us_flight f;

    us_flight_enter(m, &f);
    exhaust(mem, &f, 3, 0, US_PAGES_NORETRY);
    us_memory_node(mem, 0, &info);
    CHECK(info.free >= info.min && info.free < info.min + 8);
    CHECK_EQ(exhaust(mem, &f, 0, 0, 0), info.free);
    CHECK_EQ(free_pages(mem, 0), 0);
    us_flight_leave(&f);
    check_memory(mem);
    us_memory_destroy(mem);
    us_machine_destroy(m);
}

/* Every other page in use: half of the memory is free, none of it in blocks of two. */
static void fragmentation_refuses_orders(void)
{
    struct us_machine *m = make_machine(1);
    struct us_memory *mem = make_memory(m, 16 * MIB);
    const struct us_range *r = us_memory_range(mem);
    struct us_flight f;
    uint64_t pages = 16 * MIB / m->page_size;

    us_flight_enter(m, &f);
    CHECK_EQ(exhaust(mem, &f, 0, 0, 0), pages);
    for (uint64_t page = 0; page < pages; page += 2)
        us_pages_free(mem, &f, us_page_address(r, page), 0);
    CHECK_EQ(free_pages(mem, 0), pages / 2);
    CHECK(us_pages_alloc(mem, &f, 1, 0, 0) == NULL);
    CHECK(us_pages_alloc(mem, &f, 0, 0, 0) != NULL);
    us_flight_leave(&f);
    check_memory(mem);
    us_memory_destroy(mem);
    us_machine_destroy(m);
}

/* ---- pressure ----------------------------------------------------------------------------------
 */

struct embedder {
    struct us_memory *memory;
    void *spare[64]; /* blocks it can give back, one a call */
    unsigned nspare;
    unsigned low, failing, node;
    uint64_t free_at_low;
    bool recurse;
};

static bool relieve(void *context, struct us_flight *f, unsigned node, enum us_pressure pressure)
{
    struct embedder *e = context;

    e->node = node;
    if (pressure == US_PRESSURE_LOW) {
        if (e->low++ == 0)
            e->free_at_low = free_pages(e->memory, node);
        if (e->recurse) /* its own call must not come back to it */
            us_pages_free(e->memory, f, us_pages_alloc(e->memory, f, 0, node, 0), 0);
        return false;
    }
    e->failing++;
    if (e->nspare == 0)
        return false;
    us_pages_free(e->memory, f, e->spare[--e->nspare], 0);
    return true;
}

static void told_below_low(void)
{
    struct us_machine *m = make_machine(1);
    struct us_memory *mem = make_memory(m, 64 * MIB);
    struct embedder e = {.memory = mem, .recurse = true};
    struct us_node_memory info;
    struct us_flight f;

    us_memory_on_pressure(mem, relieve, &e);
    us_memory_node(mem, 0, &info);
    us_flight_enter(m, &f);
    for (uint64_t i = info.managed; i > info.low; i--)
        REQUIRE(us_pages_alloc(mem, &f, 0, 0, 0) != NULL);
    CHECK_EQ(e.low, 0);
    REQUIRE(us_pages_alloc(mem, &f, 0, 0, US_PAGES_NOWAIT) != NULL);
    CHECK_EQ(e.low, 0);
    void *last = us_pages_alloc(mem, &f, 0, 0, 0);
    CHECK_EQ(e.low, 1);
    CHECK_EQ(e.free_at_low, info.low - 2);
    /* Told again after a rise above the mark. */
    us_pages_free(mem, &f, last, 0);
    void *block = us_pages_alloc(mem, &f, 0, 0, 0);
    CHECK_EQ(e.low, 1);
    us_pages_free(mem, &f, block, 0);
    us_pages_free(mem, &f, us_page_address(us_memory_range(mem), 0), 0);
    us_pages_free(mem, &f, us_page_address(us_memory_range(mem), 1), 0);
    REQUIRE(us_pages_alloc(mem, &f, 0, 0, 0) != NULL);
    REQUIRE(us_pages_alloc(mem, &f, 1, 0, 0) != NULL);
    CHECK_EQ(e.low, 2);
    us_flight_leave(&f);
    check_memory(mem);
    us_memory_destroy(mem);
    us_machine_destroy(m);
}

static void asked_before_failing(void)
{
    struct us_machine *m = make_machine(2);
    struct us_memory *mem = make_memory(m, 2 * MIB);
    struct embedder e = {.memory = mem};
    struct us_flight f;

    us_flight_enter(m, &f);
    for (unsigned i = 0; i < 3; i++)
        e.spare[e.nspare++] = us_pages_alloc(mem, &f, 0, 1, 0);
    exhaust(mem, &f, 0, 1, 0);
    us_memory_on_pressure(mem, relieve, &e);
    CHECK(us_pages_alloc(mem, &f, 0, 1, US_PAGES_NOWAIT) == NULL);
    CHECK(us_pages_alloc(mem, &f, 0, 1, US_PAGES_NORETRY) == NULL);
    CHECK_EQ(e.failing, 0);
    CHECK(us_pages_alloc(mem, &f, 0, 1, US_PAGES_THISNODE) != NULL);
    CHECK_EQ(e.failing, 1);
    CHECK_EQ(e.node, 1);
    CHECK(us_pages_alloc(mem, &f, 0, 0, 0) != NULL); /* given back on node 1 */
    CHECK_EQ(e.failing, 2);
    /* One page comes back, two are wanted: asked until nothing comes. */
    CHECK(us_pages_alloc(mem, &f, 1, 1, US_PAGES_THISNODE) == NULL);
    CHECK_EQ(e.failing, 4);
    CHECK(us_pages_alloc(mem, &f, 0, 1, 0) != NULL);
    us_flight_leave(&f);
    check_memory(mem);
    us_memory_destroy(mem);
    us_machine_destroy(m);
}

/* An embedder that always claims success cannot hold a request for ever. */
static bool always_true(void *context, struct us_flight *f, unsigned node, enum us_pressure p)
{
    (void)f, (void)node;
    *(unsigned *)context += p == US_PRESSURE_FAIL;
    return true;
}

static void retries_are_bounded(void)
{
    struct us_machine *m = make_machine(1);
    struct us_memory *mem = make_memory(m, MIB);
    struct us_flight f;
    unsigned calls = 0;

    us_flight_enter(m, &f);
    exhaust(mem, &f, 0, 0, 0);
    us_memory_on_pressure(mem, always_true, &calls);
    CHECK(us_pages_alloc(mem, &f, 0, 0, 0) == NULL);
    CHECK(calls > 0 && calls < 20);
    us_flight_leave(&f);
    us_memory_destroy(mem);
    us_machine_destroy(m);
}

/* ---- injected failures -------------------------------------------------------------------------
 */

static void nth_request_fails(void)
{
    struct us_machine *m = make_machine(1);
    struct us_memory *mem = make_memory(m, 64 * MIB);
    unsigned calls = 0;
    struct us_flight f;

    us_memory_on_pressure(mem, always_true, &calls);
    us_flight_enter(m, &f);
    for (uint64_t nth = 1; nth < 6; nth++) {
        us_memory_fail(mem, US_FAIL_PAGES, 0, nth);
        us_memory_fail(mem, US_FAIL_META, 0, nth + 1);
        for (uint64_t i = 1; i < 10; i++) {
            void *block = us_pages_alloc(mem, &f, 0, 0, 0), *meta = us_meta_alloc(mem, 100);

            CHECK_EQ(block == NULL, i == nth);
            CHECK_EQ(meta == NULL, i == nth + 1);
            us_meta_free(mem, meta, 100);
            if (block)
                us_pages_free(mem, &f, block, 0);
        }
        CHECK_EQ(us_memory_failed(mem, US_FAIL_PAGES), nth);
        CHECK_EQ(us_memory_failed(mem, US_FAIL_META), nth);
    }
    CHECK_EQ(calls, 0);
    us_flight_leave(&f);
    check_memory(mem);
    us_memory_destroy(mem);
    us_machine_destroy(m);
}

static void rate_of_failures(void)
{
    struct us_machine *m = make_machine(1);
    struct us_memory *mem = make_memory(m, 64 * MIB);
    struct us_flight f;
    unsigned failed = 0;

    us_flight_enter(m, &f);
    us_memory_fail(mem, US_FAIL_PAGES, 1u << 30, 0); /* a quarter */
    for (unsigned i = 0; i < 4000; i++)
        failed += us_pages_alloc(mem, &f, 0, 0, 0) == NULL;
    CHECK(failed > 800 && failed < 1200); /* 7 standard deviations */
    CHECK_EQ(us_memory_failed(mem, US_FAIL_PAGES), failed);
    us_memory_fail(mem, US_FAIL_PAGES, UINT32_MAX, 0);
    CHECK_EQ(exhaust(mem, &f, 0, 0, 0), 0);
    us_memory_fail(mem, US_FAIL_PAGES, 0, 0);
    CHECK(us_pages_alloc(mem, &f, 0, 0, 0) != NULL);
    us_flight_leave(&f);
    us_memory_destroy(mem);
    us_machine_destroy(m);
}

int main(void)
{
    RUN(node_ranges);
    RUN(bad_options);
    RUN(explicit_range);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they need all of it */
    RUN(limited_address_space);
#endif
    RUN(watermarks);
    RUN(lowest_address_first);
    RUN(accounts);
    RUN(nearest_node_first);
    RUN(this_node_only);
    RUN(preferred_orders_leave_the_minimum);
    RUN(fragmentation_refuses_orders);
    RUN(told_below_low);
    RUN(asked_before_failing);
    RUN(retries_are_bounded);
    RUN(nth_request_fails);
    RUN(rate_of_failures);
    return check_result();
}
