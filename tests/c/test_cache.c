// machines: both
/* Life of allocators and caches, flags of allocation, tunables, shrink, live objects. */
#include "fixture_cache.h"

#include "slab/mempolicy.h"

static void starts_and_ends_empty(void)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, NULL, 0, false);
        struct us_account total;

        us_allocator_account(a, &total, NULL);
        CHECK_EQ(total.reserved, 0);
        CHECK(us_cache_find(a, "kmalloc-64") != NULL);
        CHECK(us_cache_find(a, "no-such-cache") == NULL);
        fixture_close(a);
    }
}

static void objects_are_distinct_and_come_back(void)
{
    FOR_EACH_POLICY(policy)
    {
        enum { N = 3000 };
        struct us_allocator *a = fixture_open(policy, NULL, 0, false);
        struct us_cache *c = fixture_cache(a, "test", 96, 0);
        static char *object[N];
        struct us_account account;
        unsigned i;

        for (i = 0; i < N; i++) {
            object[i] = us_cache_alloc(c);
            REQUIRE(object[i] != NULL);
            memset(object[i], (int)(i & 0xff), 96);
        }
        for (i = 0; i < N; i++)
            CHECK(object[i][0] == (char)(i & 0xff) && object[i][95] == (char)(i & 0xff));
        CHECK_EQ(us_cache_live(c, NULL, 0), N);
        us_cache_account(c, &account);
        CHECK_EQ(account.live_objects, N);
        CHECK_EQ(account.live, N * c->geometry.stride);
        fixture_balance(a);
        for (i = 0; i < N; i++)
            us_cache_free(c, object[i]);
        CHECK_EQ(us_cache_live(c, NULL, 0), 0);
        CHECK_EQ(fixture_allocs(c), N);
        CHECK_EQ(fixture_frees(c), N);
        fixture_close(a);
    }
}

static void shrink_gives_everything_back(void)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, NULL, 0, false);
        struct us_cache *c = fixture_cache(a, "test", 256, 0);
        void *object[500];
        struct us_account account;
        uint64_t before;

        CHECK_EQ(us_cache_alloc_bulk(c, 0, US_ANY_NODE, 500, object), 500);
        us_cache_free_bulk(c, 500, object);
        us_cache_account(c, &account);
        before = account.reserved;
        CHECK(before > 0);
        CHECK_EQ(us_cache_shrink(c), before);
        us_cache_account(c, &account);
        CHECK_EQ(account.reserved, 0);
        CHECK_EQ(fixture_stat(c, "slab_new"), fixture_stat(c, "slab_free"));
        fixture_close(a);
    }
}

static void destroying_with_live_objects_says_where(void)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, NULL, 0, false);
        struct us_cache *c = fixture_cache(a, "test", 64, 0);
        void *kept = us_cache_alloc(c), *freed = us_cache_alloc(c);
        struct us_error e = {.status = US_OK};
        struct us_account total;
        char address[40];

        us_cache_free(c, freed);
        snprintf(address, sizeof(address), "0x%llx", (unsigned long long)(uintptr_t)kept);
        CHECK_EQ(us_cache_destroy(c, false, &e), US_EBUSY);
        CHECK(strstr(e.text, "1 live object") != NULL);
        CHECK(strstr(e.text, address) != NULL);
        CHECK_EQ(us_allocator_destroy(a, false, &e), US_EBUSY);
        CHECK(strstr(e.text, "test") != NULL && strstr(e.text, address) != NULL);
        /* A refusal leaves the cache as it was. */
        freed = us_cache_alloc(c);
        CHECK(freed != NULL);
        us_cache_free(c, freed);
        fixture_balance(a);
        CHECK_EQ(us_cache_destroy(c, true, &e), US_OK);
        us_allocator_account(a, &total, NULL);
        CHECK_EQ(total.reserved, 0);
        CHECK(us_cache_find(a, "test") == NULL);
        fixture_close(a);
    }
}

static void destroy_when_all_is_freed(void)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, &fixture_two_nodes, 0, false);
        struct us_cache *c = fixture_cache(a, "test", 64, 0);
        void *object[300];
        struct us_memory_account memory;

        CHECK_EQ(us_cache_alloc_bulk(c, 0, US_ANY_NODE, 150, object), 150);
        CHECK_EQ(us_cache_alloc_bulk(c, 0, 1, 150, object + 150), 150);
        us_cache_free_bulk(c, 300, object);
        CHECK_EQ(us_cache_destroy(c, false, NULL), US_OK);
        us_memory_account(a->memory, &memory);
        CHECK_EQ(memory.reserved, 0);
        fixture_close(a);
    }
}

static void general_caches_cannot_be_destroyed(void)
{
    struct us_allocator *a = fixture_open("unified", NULL, 0, false);
    struct us_error e = {.status = US_OK};

    CHECK_EQ(us_cache_destroy(us_cache_find(a, "kmalloc-64"), true, &e), US_EINVAL);
    CHECK_EQ(us_cache_destroy(a->large, true, &e), US_EINVAL);
    fixture_close(a);
}

static void bad_options_are_refused(void)
{
    struct us_allocator *a = fixture_open("unified", NULL, 0, false);
    const struct us_cache_options bad[] = {
        {.name = "", .size = 8},
        {.name = "zero", .size = 0},
        {.name = "huge", .size = (size_t)a->machine->page_size << (US_MAX_ORDER + 1)},
        {.name = "align", .size = 8, .align = 24},
        {.name = "flags", .size = 8, .flags = 1u << 30},
        {.name = "pattern", .size = 8, .pattern = "123456789", .pattern_bytes = 9},
        {.name = "kmalloc-64", .size = 64},
    };
    unsigned i;

    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct us_error e = {.status = US_OK};

        CHECK(us_cache_create(a, &bad[i], &e) == NULL);
        CHECK_EQ(e.status, US_EINVAL);
        CHECK(e.text[0] != 0);
        CHECK(us_cache_create(a, &bad[i], NULL) == NULL);
    }
    fixture_close(a);
}

static void unknown_policy_suggests_the_nearest(void)
{
    struct us_allocator_options o;
    struct us_error e = {.status = US_OK};

    us_allocator_options_init(&o);
    o.policy = "unifed";
    CHECK(us_allocator_create(&o, &e) == NULL);
    CHECK_EQ(e.status, US_EINVAL);
    CHECK(strstr(e.text, "did you mean 'unified'") != NULL);
}

static void zero_and_pattern(void)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, NULL, 0, false);
        struct us_cache_options o = {
            .name = "pattern", .size = 100, .pattern = "abc", .pattern_bytes = 3};
        struct us_cache *c = us_cache_create(a, &o, NULL), *z = fixture_cache(a, "zero", 100, 0);
        unsigned char *p, zeros[100] = {0};
        unsigned i;

        REQUIRE(c != NULL);
        p = us_cache_alloc(c);
        for (i = 0; i < 100; i++)
            CHECK(p[i] == (unsigned char)"abc"[i % 3]);
        us_cache_free(c, p);
        p = us_cache_alloc(z);
        memset(p, 0xff, 100);
        us_cache_free(z, p);
        p = us_cache_alloc_node(z, US_ZERO, US_ANY_NODE);
        CHECK(memcmp(p, zeros, 100) == 0);
        us_cache_free(z, p);
        fixture_close(a);
    }
}

/* The queueing form of mid-2010 mixes nodes: a queue takes what is freed, and gives it to whoever
 * comes. */
static bool mixes_nodes(const char *policy)
{
    return strcmp(policy, "sleb") == 0;
}

/* V4 as posted goes by the CPU's node whatever node is named (algorithms 2.13, row 1). */
static bool ignores_named_nodes(const char *policy)
{
    return mixes_nodes(policy) || strcmp(policy, "unified-v4") == 0;
}

static void nodes_are_honoured(void)
{
    FOR_EACH_POLICY(policy)
    {
        if (ignores_named_nodes(policy))
            continue;
        struct us_allocator *a = fixture_open(policy, &fixture_two_nodes, 0, false);
        struct us_cache *c = fixture_cache(a, "test", 128, 0);
        void *object[40];
        int node;
        unsigned i;

        for (node = 0; node < 2; node++) {
            for (i = 0; i < 20; i++) {
                object[i] = us_cache_alloc_node(c, 0, node);
                REQUIRE(object[i] != NULL);
                CHECK_EQ(us_node_of(&a->slabs.range, object[i]), node);
            }
            CHECK_EQ(us_cache_alloc_bulk(c, US_THISNODE, node, 20, object + 20), 20);
            for (i = 20; i < 40; i++)
                CHECK_EQ(us_node_of(&a->slabs.range, object[i]), node);
            us_cache_free_bulk(c, 40, object);
        }
        CHECK(us_cache_alloc_node(c, 0, 2) == NULL);
        CHECK_EQ(us_cache_alloc_bulk(c, 0, 2, 1, object), 0);
        fixture_close(a);
    }
}

static void task_policy_places_objects_of_spread_caches(void)
{
    FOR_EACH_POLICY(policy)
    {
        if (mixes_nodes(policy))
            continue;
        struct us_allocator *a = fixture_open(policy, &fixture_two_nodes, 0, false);
        struct us_cache *spread = fixture_cache(a, "spread", 128, US_MEM_SPREAD);
        struct us_cache *plain = fixture_cache(a, "plain", 128, 0);
        const unsigned home = us_node_of_cpu(a->machine, us_cpu_now(a->machine)), other = 1 - home;
        const unsigned both[] = {0, 1};
        struct us_task_policy task, before;
        void *object[8], *p;
        unsigned i;

        REQUIRE(us_task_policy_preferred(&task, a->machine, other, NULL));
        us_task_policy_set(&task, &before);
        p = us_cache_alloc(spread);
        CHECK_EQ(us_node_of(&a->slabs.range, p), other);
        us_cache_free(spread, p);
        p = us_cache_alloc_node(spread, 0, (int)home); /* a node that is named goes first */
        CHECK_EQ(us_node_of(&a->slabs.range, p), home);
        us_cache_free(spread, p);
#ifdef US_MODEL /* a native thread may move to the other node */
        p = us_cache_alloc(plain);
        CHECK_EQ(us_node_of(&a->slabs.range, p), home);
        us_cache_free(plain, p);
#endif
        REQUIRE(us_task_policy_interleave(&task, a->machine, both, 2, NULL));
        us_task_policy_set(&task, NULL);
        for (i = 0; i < 4; i++)
            object[i] = us_cache_alloc(spread);
        CHECK_EQ(us_cache_alloc_bulk(spread, 0, US_ANY_NODE, 4, object + 4), 4);
        for (i = 0; i < 8; i++)
            CHECK_EQ(us_node_of(&a->slabs.range, object[i]), i % 2);
        us_cache_free_bulk(spread, 8, object);
        us_task_policy_set(&before, NULL);
        CHECK(!us_task_policy_preferred(&task, a->machine, 2, NULL));
        CHECK(!us_task_policy_interleave(&task, a->machine, both, 0, NULL));
        (void)plain;
        fixture_close(a);
    }
}

static void tunables_are_checked_and_live(void)
{
    struct us_allocator *a = fixture_open("unified", NULL, 0, false);
    struct us_cache *c = fixture_cache(a, "test", 64, 0);
    struct us_error e = {.status = US_OK};
    const char *names[] = {"cpu_queue_size"}, *values[] = {"20"}, *wrong[] = {"seventy"};
    struct us_cache_options o = {.name = "small", .size = 64};
    int64_t value;

    CHECK_EQ(us_tunable_get(c, "queue_size", &value, NULL, &e), US_OK);
    CHECK_EQ(value, 120); /* algorithms 2.3: size <= 256 */
    CHECK_EQ(us_tunable_set(c, "cpu_queue_size", "60", &e), US_OK);
    CHECK_EQ(us_tunable_get(c, "queue_size", &value, NULL, &e), US_OK);
    CHECK_EQ(value, 60);
    CHECK_EQ(us_tunable_set(c, "cpu_queue_size", "3", &e), US_EINVAL);
    CHECK(strstr(e.text, "4 to 10000") != NULL);
    CHECK_EQ(us_tunable_set(c, "cpu_queue_size", "many", &e), US_EINVAL);
    CHECK_EQ(us_tunable_set(c, "queue_size", "60", &e), US_EINVAL);
    CHECK(strstr(e.text, "computed") != NULL);
    CHECK_EQ(us_tunable_set(c, "cpu_queue_sise", "60", &e), US_EINVAL);
    CHECK(strstr(e.text, "did you mean 'cpu_queue_size'") != NULL);
    CHECK_EQ(us_tunable_set(c, "queue_budget", "64 KiB", &e), US_OK);
    CHECK_EQ(us_tunable_get(c, "queue_budget", &value, NULL, &e), US_OK);
    CHECK_EQ(value, 65536);
    CHECK_EQ(us_tunable_set(c, "max_order", "1", &e), US_EINVAL); /* fixed at creation */
    c = us_cache_create_with(a, &o, names, values, 1, &e);
    REQUIRE(c != NULL);
    CHECK_EQ(us_tunable_get(c, "queue_size", &value, NULL, &e), US_OK);
    CHECK_EQ(value, 20);
    o.name = "wrong";
    CHECK(us_cache_create_with(a, &o, names, wrong, 1, &e) == NULL);
    CHECK_EQ(e.status, US_EINVAL);
    fixture_close(a);
}

static void resizing_keeps_every_object(void)
{
    struct us_allocator *a = fixture_open("unified", NULL, 0, false);
    struct us_cache *c = fixture_cache(a, "test", 64, 0);
    const char *sizes[] = {"500", "4", "60", "10000", "32"};
    void *object[200];
    unsigned i;

    CHECK_EQ(us_cache_alloc_bulk(c, 0, US_ANY_NODE, 200, object), 200);
    us_cache_free_bulk(c, 100, object);
    for (i = 0; i < 5; i++) {
        struct us_error e = {.status = US_OK};

        if (us_tunable_set(c, "cpu_queue_size", sizes[i], &e) != US_OK)
            fprintf(stderr, "%s\n", e.text);
        CHECK_EQ(e.status, US_OK);
        fixture_balance(a);
    }
    us_cache_free_bulk(c, 100, object + 100);
    fixture_close(a);
}

static void defaults_reach_later_and_general_caches(void)
{
    struct us_allocator *a = fixture_open("unified", NULL, 0, false);
    struct us_error e = {.status = US_OK};
    int64_t value;

    CHECK_EQ(us_allocator_set_default(a, "cpu_queue_size", "33", &e), US_OK);
    CHECK_EQ(us_tunable_get(fixture_cache(a, "test", 64, 0), "queue_size", &value, NULL, &e),
             US_OK);
    CHECK_EQ(value, 33);
    CHECK_EQ(us_tunable_get(us_cache_find(a, "kmalloc-64"), "queue_size", &value, NULL, &e), US_OK);
    CHECK_EQ(value, 33);
    CHECK_EQ(us_allocator_set_default(a, "cpu_queue", "33", &e), US_EINVAL);
    CHECK(strstr(e.text, "cpu_queue_size") != NULL);
    CHECK_EQ(us_allocator_set_default(a, "cpu_queue_size", "33000", &e), US_EINVAL);
    fixture_close(a);
}

static const char *const many[] = {"min_order", "max_order", "order"};

/* Some are right only together; what is refused leaves everything as it was. */
static void defaults_are_taken_all_or_none(void)
{
    static const char *const right[] = {"4", "5", "4"}, *const wrong[] = {"4", "3", "4"};
    struct us_allocator *a = fixture_open("slub", NULL, 0, false);
    struct us_error e = {.status = US_OK};
    int64_t value;
    void *p;

    CHECK_EQ(us_allocator_set_default(a, "min_order", "4", &e), US_EINVAL); /* max_order is 3 */
    CHECK_EQ(us_allocator_set_defaults(a, many, wrong, 3, &e), US_EINVAL);
    CHECK_EQ(us_tunable_get(us_cache_find(a, "kmalloc-64"), "order", &value, NULL, &e), US_OK);
    CHECK(value < 4);
    p = us_kmalloc(a, 64, 0, US_ANY_NODE);
    CHECK_EQ(us_ksize(a, p), 64); /* from its general cache, not from pages */
    us_kfree(a, p);
    fixture_close(a);

    a = fixture_open("slub", NULL, 0, false);
    CHECK_EQ(us_allocator_set_defaults(a, many, right, 3, &e), US_OK);
    CHECK_EQ(us_tunable_get(us_cache_find(a, "kmalloc-64"), "order", &value, NULL, &e), US_OK);
    CHECK_EQ(value, 4);
    fixture_close(a);
}

/* Whichever piece of memory is missing. */
static void defaults_without_memory_leave_kmalloc_at_work(void)
{
    unsigned n, refused = 0;

    for (n = 1; n < 400; n++) {
        struct us_allocator *a = fixture_open("unified", NULL, 0, false);
        enum us_status status;
        struct us_error e;
        int64_t value;
        void *p;

        us_memory_fail(a->memory, US_FAIL_META, 0, n);
        status = us_allocator_set_default(a, "cpu_queue_size", "33", &e);
        us_memory_fail(a->memory, US_FAIL_META, 0, 0);
        CHECK(status == US_OK || status == US_ENOMEM);
        CHECK_EQ(us_tunable_get(us_cache_find(a, "kmalloc-8"), "queue_size", &value, NULL, &e),
                 US_OK);
        CHECK_EQ(value == 33, status == US_OK);
        CHECK((p = us_kmalloc(a, 8, 0, US_ANY_NODE)) != NULL);
        CHECK_EQ(us_ksize(a, p), 8);
        us_kfree(a, p);
        fixture_close(a);
        refused += status != US_OK;
        if (status == US_OK)
            break;
    }
    CHECK(refused > 20 && n < 400);
}

static void nearest_names(void)
{
    const char *const names[] = {"batch_size", "cpu_queue_size", "min_partial"};

    CHECK(us_nearest("bacth_size", names, 3) == names[0]);
    CHECK(us_nearest("cpu_queue", names, 3) == names[1]);
    CHECK(us_nearest("minpartial", names, 3) == names[2]);
    CHECK(us_nearest("remote_node_defrag_ratio", names, 3) == NULL);
}

static void snapshot_shows_every_object(void)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, NULL, 0, false);
        struct us_cache *c = fixture_cache(a, "test", 64, 0);
        void *object[100];
        uint64_t live[100], in_use = 0, queued = 0, in_stocks = 0;
        struct us_snapshot s;
        struct us_account account;
        size_t i;

        CHECK_EQ(us_cache_alloc_bulk(c, 0, US_ANY_NODE, 100, object), 100);
        us_cache_free_bulk(c, 40, object);
        CHECK_EQ(us_cache_live(c, live, 100), 60);
        REQUIRE(us_cache_snapshot(c, &s, NULL) == US_OK);
        us_cache_account(c, &account);
        CHECK_EQ(s.nslabs, account.slabs);
        for (i = 0; i < s.nslabs; i++) {
            in_use += s.slab[i].in_use;
            queued += s.slab[i].queued;
            CHECK_EQ(s.slab[i].objects, s.slab[i].in_use + s.slab[i].queued + s.slab[i].free);
        }
        for (i = 0; i < s.nstocks; i++) {
            CHECK(s.stock[i].stock.objects <= s.stock[i].stock.capacity);
            in_stocks += s.stock[i].stock.objects;
        }
        CHECK_EQ(in_use, 60);
        CHECK_EQ(queued, account.queued_objects);
        CHECK_EQ(in_stocks, account.queued_objects);
        CHECK_EQ(s.naddresses, account.queued_objects);
        us_snapshot_free(&s);
        us_cache_free_bulk(c, 60, object + 40);
        fixture_close(a);
    }
}

int main(void)
{
    RUN(starts_and_ends_empty);
    RUN(objects_are_distinct_and_come_back);
    RUN(shrink_gives_everything_back);
    RUN(destroying_with_live_objects_says_where);
    RUN(destroy_when_all_is_freed);
    RUN(general_caches_cannot_be_destroyed);
    RUN(bad_options_are_refused);
    RUN(unknown_policy_suggests_the_nearest);
    RUN(zero_and_pattern);
    RUN(nodes_are_honoured);
    RUN(task_policy_places_objects_of_spread_caches);
    RUN(tunables_are_checked_and_live);
    RUN(resizing_keeps_every_object);
    RUN(defaults_reach_later_and_general_caches);
    RUN(defaults_are_taken_all_or_none);
    RUN(defaults_without_memory_leave_kmalloc_at_work);
    RUN(nearest_names);
    RUN(snapshot_shows_every_object);
    return check_result();
}
