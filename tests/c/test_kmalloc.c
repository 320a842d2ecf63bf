// machines: both
/* General caches: sizes, large requests, ksize, kfree of anything, running out of the budget. */
#include "fixture_cache.h"
#include "memory/internal.h"

static void every_size_gets_its_class(void)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, NULL, 0, false);
        const uint32_t *sizes = a->policy->general_sizes(a->machine);
        size_t size;
        unsigned k = 0;

        for (size = 1; sizes[k]; size++) {
            struct us_cache *c = us_kmalloc_cache(a, size);

            REQUIRE(c != NULL);
            if (c->size != sizes[k])
                CHECK_EQ(c->size, sizes[k]);
            if (size == sizes[k])
                k++;
        }
        CHECK(us_kmalloc_cache(a, size) == NULL);
        CHECK_EQ(us_kmalloc_cache(a, 0)->size, sizes[0]);
        fixture_close(a);
    }
}

static void ksize_and_kfree(void)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, NULL, 0, false);
        struct us_cache *named = fixture_cache(a, "named", 72, 0);
        const size_t page = a->machine->page_size;
        int elsewhere;
        void *p;

        p = us_kmalloc(a, 100, 0, US_ANY_NODE);
        CHECK_EQ(us_ksize(a, p), us_kmalloc_cache(a, 100)->size);
        us_kfree(a, p);
        p = us_cache_alloc(named); /* kfree frees objects of named caches too */
        CHECK_EQ(us_ksize(a, p), 72);
        us_kfree(a, p);
        CHECK_EQ(fixture_frees(named), 1);
        p = us_kmalloc(a, 5 * page, 0, US_ANY_NODE);
        CHECK_EQ(us_ksize(a, p), 8 * page);
        us_kfree(a, p);
        us_kfree(a, NULL);
        CHECK_EQ(us_ksize(a, &elsewhere), 0);
        fixture_close(a);
    }
}

/* Any address in an object but its first is none. */
static void ksize_of_the_inside_is_nothing(void)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, NULL, 0, false);
        char *p = us_kmalloc(a, 100, 0, US_ANY_NODE), *q = us_kmalloc(a, 200000, 0, US_ANY_NODE);

        CHECK_EQ(us_ksize(a, p + 8), 0);
        CHECK_EQ(us_ksize(a, q + 8), 0);
        CHECK_EQ(us_ksize(a, q + a->machine->page_size), 0);
        us_kfree(a, p);
        us_kfree(a, q);
        if (a->size_class_max < 200000)
            CHECK_EQ(us_ksize(a, q), 0);
        fixture_close(a);
    }
}

static void krealloc_keeps_moves_and_frees(void)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, NULL, 0, false);
        const uint64_t refused = us_cache_refused(a->large);
        char *p = us_krealloc(a, NULL, 100, US_ZERO, US_ANY_NODE), *q;
        struct us_cache *of;

        REQUIRE(p != NULL);
        CHECK_EQ(p[99], 0);
        memset(p, 'x', 100);
        CHECK_EQ(us_krealloc(a, p, 128, 0, US_ANY_NODE), p);
        q = us_krealloc(a, p, 300000, 0, US_ANY_NODE);
        REQUIRE(q != NULL && q != p);
        CHECK(q[0] == 'x' && q[99] == 'x');
        CHECK(us_krealloc(a, q + 1, 100, 0, US_ANY_NODE) == NULL); /* no object: refused */
        CHECK(us_krealloc(a, &a, 100, 0, US_ANY_NODE) == NULL);
        of = us_slab_of(&a->slabs, q)->cache; /* SLAB has a general cache of this size too */
        CHECK_EQ(us_cache_refused(a->large) + (of == a->large ? 0 : us_cache_refused(of)),
                 refused + 2);
        CHECK(us_krealloc(a, q, SIZE_MAX, 0, US_ANY_NODE) == NULL); /* and q is as it was */
        CHECK(q[0] == 'x' && us_ksize(a, q) >= 300000);
        p = us_krealloc(a, q, 50, US_ZERO, US_ANY_NODE); /* it suffices: it stays */
        CHECK_EQ(p, q);
        CHECK(p[0] == 'x' && p[49] == 'x' && p[50] == 0 && p[99] == 0);
        CHECK(us_krealloc(a, p, 0, 0, US_ANY_NODE) == NULL);
        CHECK(us_krealloc(a, NULL, 0, 0, US_ANY_NODE) == NULL);
        fixture_close(a);
    }
}

static void large_requests_go_to_the_page_provider(void)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, NULL, 0, false);
        const size_t largest = a->machine->page_size << US_MAX_ORDER;
        struct us_account account;
        struct us_error e = {.status = US_OK};
        char *p, *q;

        if (a->size_class_max >= 9000) { /* SLAB and SLQB have general caches for such */
            CHECK(us_kmalloc(a, largest + 1, 0, US_ANY_NODE) == NULL);
            fixture_close(a);
            continue;
        }
        p = us_kmalloc(a, largest, US_ZERO, US_ANY_NODE);
        REQUIRE(p != NULL);
        CHECK(p[0] == 0 && p[largest - 1] == 0);
        q = us_kmalloc(a, 9000, 0, US_ANY_NODE);
        us_cache_account(a->large, &account);
        CHECK_EQ(account.live_objects, 2);
        CHECK_EQ(account.live, largest + 4 * a->machine->page_size);
        CHECK_EQ(account.waste, 0);
        CHECK_EQ(fixture_stat(a->large, "alloc_slow"), 2);
        fixture_balance(a);
        us_kfree(a, p);
        us_kfree(a, q);
        CHECK_EQ(fixture_stat(a->large, "free_slow"), 2);
        CHECK(us_kmalloc(a, largest + 1, 0, US_ANY_NODE) == NULL);
        us_cache_explain_failure(a->large, largest + 1, &e);
        CHECK_EQ(e.status, US_ENOMEM);
        CHECK_EQ(e.requested, largest + 1);
        CHECK_EQ(e.limit, largest);
        fixture_close(a);
    }
}

static void large_misuse_is_refused(void)
{
    struct us_allocator *a = fixture_open("unified", NULL, 0, false);
    struct us_error e = {.status = US_OK};
    char *p = us_kmalloc(a, 20000, 0, US_ANY_NODE);

    CHECK_EQ(us_kfree_checked(a, p + 4096, &e), US_ECORRUPT);
    CHECK(strstr(e.text, "offset 4096") != NULL);
    CHECK_EQ(us_kfree_checked(a, p, &e), US_OK);
    CHECK_EQ(us_kfree_checked(a, p, &e), US_ECORRUPT);
    CHECK_EQ(us_kfree_checked(a, &e, &e), US_ECORRUPT);
    CHECK(strstr(e.text, "outside the allocator's range") != NULL);
    fixture_close(a);
}

static void large_node_is_honoured(void)
{
    struct us_allocator *a = fixture_open("unified", &fixture_two_nodes, 0, false);
    int node;

    for (node = 0; node < 2; node++) {
        void *p = us_kmalloc(a, 50000, US_THISNODE, node);

        CHECK_EQ(us_node_of(&a->slabs.range, p), node);
        us_kfree(a, p);
    }
    CHECK(us_kmalloc(a, 50000, 0, 2) == NULL);
    fixture_close(a);
}

/* Out of budget: NULL, the limit is named, nothing is lost, and everything works again after frees.
 */
static void budget_is_a_limit(void)
{
    FOR_EACH_POLICY(policy)
    {
        enum { MOST = 20000 };
        struct us_allocator *a = fixture_open(policy, NULL, 4u << 20, false);
        static void *object[MOST];
        struct us_error e = {.status = US_OK};
        struct us_account total;
        unsigned n = 0, i;

        while (n < MOST && (object[n] = us_kmalloc(a, 1000, 0, US_ANY_NODE)) != NULL)
            n++;
        CHECK(n > 3000 && n <= 4096); /* 4 MiB of objects of 1 KiB, less what is kept in reserve */
        us_cache_explain_failure(us_kmalloc_cache(a, 1000), 1000, &e);
        CHECK_EQ(e.status, US_ENOMEM);
        CHECK_EQ(e.limit, 4u << 20);
        CHECK_EQ(e.requested, 1000);
        CHECK(us_kmalloc(a, 100000, 0, US_ANY_NODE) == NULL);
        fixture_balance(a);
        us_allocator_account(a, &total, NULL);
        CHECK(total.reserved <= 4u << 20);
        for (i = 0; i < n; i++)
            us_kfree(a, object[i]);
        /* What queues and partial lists hold is given back by a request that would fail. */
        object[0] = us_kmalloc(a, 3u << 20, 0, US_ANY_NODE);
        CHECK(object[0] != NULL);
        us_kfree(a, object[0]);
        fixture_close(a);
    }
}

#ifndef US_MODEL
/* A handler that finds the page provider busy leaves the block to whoever comes next; accounts and
 * shrink are such. */
static void what_a_handler_could_not_give_back_is_taken_in(void)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, NULL, 0, false);
        struct us_memory_account memory;
        struct us_account account;
        struct us_flight f;
        size_t bytes = 0;
        void *p[2];

        if (a->size_class_max >= 100000) {
            fixture_close(a);
            continue;
        }
        for (unsigned i = 0; i < 2; i++) {
            REQUIRE((p[i] = us_kmalloc(a, 100000, 0, 0)) != NULL);
            bytes = us_ksize(a, p[i]);
            us_flight_enter(a->machine, &f);
            REQUIRE(us_lock_take(&f, &a->memory->node[0].lock));
            us_kfree(a, p[i]);
            us_lock_drop(&f, &a->memory->node[0].lock);
            us_flight_leave(&f);
            if (i == 0)
                us_allocator_shrink(a);
            us_allocator_account(a, &account, &memory);
            CHECK_EQ(account.reserved, 0);
            CHECK_EQ(memory.reserved, 0);
        }
        CHECK_EQ(memory.resident, bytes); /* the second is free, not purged */
        fixture_close(a);
    }
}
#endif

int main(void)
{
#ifndef US_MODEL
    RUN(what_a_handler_could_not_give_back_is_taken_in);
#endif
    RUN(every_size_gets_its_class);
    RUN(ksize_and_kfree);
    RUN(ksize_of_the_inside_is_nothing);
    RUN(krealloc_keeps_moves_and_frees);
    RUN(large_requests_go_to_the_page_provider);
    RUN(large_misuse_is_refused);
    RUN(large_node_is_honoured);
    RUN(budget_is_a_limit);
    return check_result();
}
