// machines: both
/* Every page and metadata request of an operation is made to fail in turn: the operation gives an
 * error or does without, and nothing is lost. */
#include "fixture_cache.h"

static uint64_t metadata(struct us_allocator *a)
{
    struct us_memory_account m;

    us_memory_account(a->memory, &m);
    return m.metadata;
}

/* Creating a cache fails cleanly at each of its metadata requests, and works in the end. */
static void creating_a_cache(void)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, &fixture_two_nodes, 0, false);
        const struct us_cache_options o = {
            .name = "test", .size = 64, .pattern = "x", .pattern_bytes = 1};
        const uint64_t before = metadata(a);
        struct us_cache *c = NULL;
        unsigned nth;

        for (nth = 1; !c && nth < 1000; nth++) {
            struct us_error e = {.status = US_OK};

            us_memory_fail(a->memory, US_FAIL_META, 0, nth);
            c = us_cache_create(a, &o, &e);
            us_memory_fail(a->memory, US_FAIL_META, 0, 0);
            if (c)
                break;
            CHECK_EQ(e.status, US_ENOMEM);
            CHECK(e.text[0] != 0);
            CHECK_EQ(metadata(a), before);
            CHECK(us_cache_find(a, "test") == NULL);
        }
        CHECK(nth > 5 && c != NULL);
        CHECK_EQ(us_cache_destroy(c, false, NULL), US_OK);
        CHECK_EQ(metadata(a), before);
        fixture_close(a);
    }
}

/* A changed tunable either takes effect or leaves the cache as it was. */
static void resizing(void)
{
    struct us_allocator *a = fixture_open("unified", &fixture_two_nodes, 0, false);
    struct us_cache *c = fixture_cache(a, "test", 64, 0);
    unsigned nth, failures = 0;
    void *object[100];

    CHECK_EQ(us_cache_alloc_bulk(c, 0, US_ANY_NODE, 100, object), 100);
    us_cache_free_bulk(c, 50, object);
    for (nth = 1; nth < 100; nth++) {
        struct us_error e = {.status = US_OK};
        enum us_status status;

        us_memory_fail(a->memory, US_FAIL_META, 0, nth);
        status = us_tunable_set(c, "cpu_queue_size", nth % 2 ? "300" : "20", &e);
        us_memory_fail(a->memory, US_FAIL_META, 0, 0);
        failures += status != US_OK;
        if (status != US_OK)
            CHECK_EQ(status, US_ENOMEM);
        fixture_balance(a);
        if (status == US_OK && nth > 40)
            break;
    }
    us_cache_free_bulk(c, 50, object + 50);
    fixture_close(a);
}

/* Allocation while every third page request fails, and CPU queues cannot be had. */
static void allocating(void)
{
    FOR_EACH_POLICY(policy)
    {
        enum { N = 500 };
        struct us_allocator *a = fixture_open(policy, &fixture_two_nodes, 0, false);
        struct us_cache *c = fixture_cache(a, "test", 512, 0);
        void *object[N];
        unsigned i, got = 0;

        /* A slab with an index has none without metadata. */
        us_memory_fail(a->memory, US_FAIL_META,
                       c->geometry.state == US_OBJECTS_INDEX ? UINT32_MAX / 3 : UINT32_MAX, 0);
        us_memory_fail(a->memory, US_FAIL_PAGES, UINT32_MAX / 3, 0);
        for (i = 0; i < N; i++) {
            object[got] = i % 3 ? us_cache_alloc(c) : us_cache_alloc_node(c, 0, (int)(i % 2));
            got += object[got] != NULL;
        }
        CHECK(us_memory_failed(a->memory, US_FAIL_PAGES) > 0);
        CHECK(got > 0);
        us_memory_fail(a->memory, US_FAIL_META, 0, 0);
        us_memory_fail(a->memory, US_FAIL_PAGES, 0, 0);
        CHECK_EQ(fixture_allocs(c), got);
        fixture_balance(a);
        us_cache_free_bulk(c, got, object);
        fixture_close(a);
    }
}

/* No page at all: NULL, and a text that does not blame the budget. */
static void no_pages(void)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, NULL, 0, false);
        struct us_cache *c = fixture_cache(a, "test", 512, 0);
        struct us_error e = {.status = US_OK};
        void *object[10];

        us_memory_fail(a->memory, US_FAIL_PAGES, UINT32_MAX, 0);
        CHECK(us_cache_alloc(c) == NULL);
        CHECK_EQ(us_cache_alloc_bulk(c, 0, US_ANY_NODE, 10, object), 0);
        CHECK(us_kmalloc(a, 100000, 0, US_ANY_NODE) == NULL);
        us_cache_explain_failure(c, 512, &e);
        CHECK_EQ(e.status, US_ENOMEM);
        CHECK_EQ(e.limit, 0);
        us_memory_fail(a->memory, US_FAIL_PAGES, 0, 0);
        CHECK_EQ(fixture_allocs(c), 0);
        us_cache_free(c, us_cache_alloc(c));
        fixture_close(a);
    }
}

static void construct(void *object, void *context)
{
    unsigned *calls = context;

    (*calls)++;
    *(uint64_t *)object = 0x1234;
}

/* A constructor runs once an object, and outside of the flight: it may use the allocator. */
static void constructors(void)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, NULL, 0, false);
        unsigned calls = 0, i;
        const struct us_cache_options o = {.name = "test",
                                           .size = 256,
                                           .constructor = construct,
                                           .constructor_arg = &calls,
                                           .constructor_suspends = true};
        struct us_cache *c = us_cache_create(a, &o, NULL);
        void *object[100];

        REQUIRE(c != NULL);
        CHECK_EQ(us_cache_alloc_bulk(c, 0, US_ANY_NODE, 100, object), 100);
        CHECK_EQ(calls, fixture_stat(c, "slab_new") * c->geometry.objects);
        for (i = 0; i < 100; i++)
            CHECK_EQ(*(uint64_t *)object[i], 0x1234);
        us_cache_free_bulk(c, 100, object);
        CHECK_EQ(us_cache_alloc_bulk(c, 0, US_ANY_NODE, 100, object), 100);
        for (i = 0; i < 100; i++)
            CHECK_EQ(*(uint64_t *)object[i], 0x1234); /* free objects keep what they were given */
        CHECK_EQ(calls, fixture_stat(c, "slab_new") * c->geometry.objects);
        us_cache_free_bulk(c, 100, object);
        fixture_close(a);
    }
}

int main(void)
{
    RUN(creating_a_cache);
    RUN(resizing);
    RUN(allocating);
    RUN(no_pages);
    RUN(constructors);
    return check_result();
}
