// machines: both
/* Statistics: every operation in exactly one common counter, names, lock classes. */
#include "fixture_cache.h"

static void every_operation_is_counted_once(void)
{
    FOR_EACH_POLICY(policy)
    {
        enum { N = 2000 };
        struct us_allocator *a = fixture_open(policy, &fixture_two_nodes, 0, false);
        struct us_cache *c = fixture_cache(a, "test", 192, 0);
        static void *object[N];
        unsigned i, allocs = 0, frees = 0;

        for (i = 0; i < N / 2; i++)
            object[allocs++] = us_cache_alloc(c);
        for (; i < N / 2 + 100; i++)
            object[allocs++] = us_cache_alloc_node(c, 0, (int)(i % 2));
        allocs += (unsigned)us_cache_alloc_bulk(c, 0, US_ANY_NODE, N - allocs, object + allocs);
        CHECK_EQ(allocs, N);
        CHECK_EQ(fixture_allocs(c), N);
        CHECK_EQ(fixture_frees(c), 0);
        for (frees = 0; frees < 700; frees++)
            us_cache_free(c, object[frees]);
        CHECK_EQ(fixture_frees(c), 700);
        us_cache_free_bulk(c, N - 700, object + 700);
        CHECK_EQ(fixture_allocs(c), N);
        CHECK_EQ(fixture_frees(c), N);
        CHECK_EQ(us_cache_alloc_node(c, 0, 7), 0); /* a failure is no allocation */
        CHECK_EQ(fixture_allocs(c), N);
        fixture_close(a);
    }
}

static void debug_counts_the_same(void)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, NULL, 0, true);
        struct us_cache *c = fixture_cache(a, "test", 192, 0);
        void *object[300];

        CHECK_EQ(us_cache_alloc_bulk(c, 0, US_ANY_NODE, 300, object), 300);
        us_cache_free_bulk(c, 300, object);
        CHECK_EQ(fixture_allocs(c), 300);
        CHECK_EQ(fixture_frees(c), 300);
        fixture_close(a);
    }
}

static void rows_have_names_and_help(void)
{
    FOR_EACH_POLICY(name)
    {
        const struct us_policy *p = us_policy_find(name);
        const char *names[128] = {NULL}, *helps[128] = {NULL};
        size_t n = us_stats_rows(p, names, helps, 128), i, k;

        CHECK(n > US_NCOMMON && n < 128);
        CHECK_EQ(us_stats_rows(p, NULL, NULL, 0), n);
        CHECK(strcmp(names[0], "alloc_fast") == 0);
        for (i = 0; i < n; i++) {
            CHECK(names[i] && names[i][0] && helps[i] && helps[i][0]);
            for (k = 0; k < i; k++)
                CHECK(strcmp(names[i], names[k]) != 0);
        }
    }
}

static void locks_are_counted_by_class(void)
{
    struct us_allocator *a = fixture_open("unified", NULL, 0, false);
    struct us_cache *c = fixture_cache(a, "test", 64, 0);
    uint64_t before[US_LOCK_NCLASSES], after[US_LOCK_NCLASSES], contended[US_LOCK_NCLASSES];
    void *p;

    us_allocator_locks(a, before, contended);
    p = us_cache_alloc(c);
    us_cache_free(c, p);
    us_allocator_flush(a);
    CHECK_EQ(us_tunable_set(c, "cpu_queue_size", "50", NULL), US_OK);
    us_allocator_locks(a, after, contended);
    CHECK_EQ(after[US_LOCK_CONFIG] - before[US_LOCK_CONFIG], 1);
    CHECK(after[US_LOCK_CONTROL] > before[US_LOCK_CONTROL]);
    fixture_close(a);
}

int main(void)
{
    RUN(every_operation_is_counted_once);
    RUN(debug_counts_the_same);
    RUN(rows_have_names_and_help);
    RUN(locks_are_counted_by_class);
    return check_result();
}
