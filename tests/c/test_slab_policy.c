// machines: both
/* The policy `slab` where scripts in Python do not reach: closed regions, failing metadata, larger
 * pages, constructors that tune, and threads of two nodes while arrays are reaped and replaced. */
#include "fixture_cache.h"

#include <pthread.h>

static const unsigned no_node[] = {0, 0};
static const struct us_topology two_cpus = {2, 1, 1, no_node, no_node};

static int64_t tunable(struct us_cache *c, const char *name)
{
    int64_t value = -1;

    CHECK_EQ(us_tunable_get(c, name, &value, NULL, NULL), US_OK);
    return value;
}

/* ---- closed regions ------------------------------------------------------------------------- */

/* One object comes from, or goes to, the next level: slabs, the shared array while it has room. */
static void closed_regions_are_passed_over(void)
{
    enum { SHARED = 480 };
    struct us_allocator *a = fixture_open("slab", &two_cpus, 0, false);
    struct us_cache *c = fixture_cache(a, "test", 64, 0);
    struct us_local *local = &c->local;
    void *object[SHARED + 3], *again;

    us_cache_free(c, us_cache_alloc(c)); /* the CPU has its array, 16 objects are out */
    us_local_close_all(&local, 1, a->machine);
    for (unsigned i = 0; i < SHARED + 3; i++)
        REQUIRE((object[i] = us_cache_alloc(c)) != NULL);
    for (unsigned i = 0; i < SHARED + 3; i++)
        us_cache_free(c, object[i]);
    CHECK_EQ(tunable(c, "sharedavail"), SHARED);
    CHECK_EQ((again = us_cache_alloc(c)), object[SHARED - 1]); /* the hottest */
    us_local_open_all(&local, 1, a->machine);
    CHECK_EQ(fixture_stat(c, "allocmiss"), 1 + SHARED + 3 + 1);
    CHECK_EQ(fixture_stat(c, "listallocs"), 16 + SHARED + 3);
    CHECK_EQ(fixture_stat(c, "alloc_second_level"), 1);
    CHECK_EQ(fixture_stat(c, "freemiss"), SHARED + 3);
    CHECK_EQ(fixture_stat(c, "free_second_level"), SHARED);
    CHECK_EQ(fixture_stat(c, "free_slow"), 3);
    us_cache_free(c, again);
    CHECK_EQ(fixture_stat(c, "freehit"), 2);
    fixture_close(a);
}

/* ---- failures ---------------------------------------------------------------------------------
 */

static void work_a_little(struct us_cache *c)
{
    void *object[200];
    unsigned n = 0;

    while (n < 200 && (object[n] = us_cache_alloc_node(c, 0, (int)(n % 3) - 1)) != NULL)
        n++;
    while (n > 0)
        us_cache_free(c, object[--n]);
}

/* Whichever piece of metadata is not to be had: the cache is refused, or does with less. */
static void failing_metadata_leaves_nothing_behind(void)
{
    struct us_allocator *a = fixture_open("slab", &fixture_two_nodes, 0, false);
    const struct us_cache_options o = {.name = "test", .size = 64};
    struct us_memory_account before, after;
    unsigned refused = 0, made = 0;

    us_memory_account(a->memory, &before);
    for (uint64_t nth = 1; nth <= 60; nth++) {
        struct us_error e = {.status = US_OK};
        struct us_cache *c;

        us_memory_fail(a->memory, US_FAIL_META, 0, nth);
        c = us_cache_create(a, &o, &e);
        if (c) {
            work_a_little(c);
            (void)us_tunable_set(c, "limit", "100", NULL);
            work_a_little(c);
            us_memory_fail(a->memory, US_FAIL_META, 0, 0);
            fixture_balance(a);
            CHECK_EQ(us_cache_destroy(c, false, NULL), US_OK);
            made++;
        } else {
            CHECK_EQ(e.status, US_ENOMEM);
            refused++;
        }
        us_memory_fail(a->memory, US_FAIL_META, 0, 0);
        us_memory_account(a->memory, &after);
        CHECK_EQ(after.metadata, before.metadata);
    }
    CHECK(refused > 5 && made > 5);
    fixture_close(a);
}

/* Tuning is all or nothing. */
static void tuning_without_memory_changes_nothing(void)
{
    struct us_allocator *a = fixture_open("slab", &fixture_two_nodes, 0, false);
    struct us_cache *c = fixture_cache(a, "test", 64, 0);
    unsigned refused = 0;

    work_a_little(c);
    for (uint64_t nth = 1; nth <= 12; nth++) {
        struct us_error e = {.status = US_OK};

        us_memory_fail(a->memory, US_FAIL_META, 0, nth);
        if (us_tunable_set(c, "batchcount", "30", &e) == US_OK)
            break;
        CHECK_EQ(e.status, US_ENOMEM);
        CHECK_EQ(tunable(c, "batchcount"), 60);
        refused++;
    }
    us_memory_fail(a->memory, US_FAIL_META, 0, 0);
    /* The tables of both, two shared arrays, and the ring of the CPU at least. */
    CHECK(refused >= 5 && refused < 12);
    CHECK_EQ(tunable(c, "batchcount"), 30);
    fixture_close(a);
}

/* ---- geometry of larger pages -----------------------------------------------------------------
 */

#ifdef US_MODEL
static void check_size(struct us_allocator *a, size_t size, unsigned objects, bool off_slab)
{
    char name[20];
    struct us_cache *c;

    snprintf(name, sizeof(name), "sized-%zu", size);
    c = fixture_cache(a, name, size, 0);
    CHECK_EQ(c->geometry.order, 0);
    CHECK_EQ(c->geometry.objects, objects);
    CHECK_EQ(tunable(c, "off_slab"), off_slab);
}

/* An eighth of 64 KiB is 8 KiB. 512: 48 + 4 * 126 = 552 and 126 * 512 = 64512 fit, one more of each
 * does not. 4096: 15, for 16 leave no room for the descriptor. 8192: 8 and nothing is left. */
static void pages_of_64_kib(void)
{
    struct us_allocator_options o;
    struct us_allocator *a;

    us_allocator_options_init(&o);
    o.policy = "slab";
    o.topology = &two_cpus;
    o.page_size = 65536;
    o.address_range = 1ull << 30;
    REQUIRE((a = us_allocator_create(&o, NULL)) != NULL);
    check_size(a, 512, 126, false);
    check_size(a, 4096, 15, false);
    check_size(a, 8192, 8, true);
    fixture_close(a);
}
#endif

/* ---- constructors ------------------------------------------------------------------------------
 */

static struct us_cache *under_construction;
static unsigned constructed;

/* As a callable of the embedder may. */
static void tune_while_constructing(void *object, void *arg)
{
    (void)arg;
    memset(object, 1, 8);
    if (constructed++ % 64)
        return;
    CHECK_EQ(us_tunable_set(under_construction, "limit", constructed % 128 ? "200" : "54", NULL),
             US_OK);
    CHECK_EQ(us_tunable_set(under_construction, "shared", constructed % 128 ? "0" : "3", NULL),
             US_OK);
}

static void a_constructor_may_tune(void)
{
    const struct us_cache_options o = {
        .name = "test",
        .size = 300,
        .constructor = tune_while_constructing,
        .constructor_suspends = true,
    };
    struct us_allocator *a = fixture_open("slab", &fixture_two_nodes, 0, false);
    void *object[2000];

    under_construction = us_cache_create(a, &o, NULL);
    REQUIRE(under_construction != NULL);
    for (unsigned i = 0; i < 2000; i++)
        REQUIRE((object[i] = us_cache_alloc_node(under_construction, 0, (int)(i / 10 % 2))) !=
                NULL);
    CHECK(constructed >= 2000);
    for (unsigned i = 0; i < 2000; i++)
        us_cache_free(under_construction, object[i]);
    fixture_close(a);
}

/* ---- threads ------------------------------------------------------------------------------------
 */

#ifndef US_MODEL
enum { THREADS = 4, STEPS = 30000, SLOTS = 512 };

static struct us_cache *shared_cache;
static _Atomic(void *) slot[SLOTS];
static _Atomic unsigned running;

/* Objects change hands through slots: most frees are of what another thread allocated. */
static void *exchange(void *context)
{
    uint64_t seed = 88172645463325252ull + (uintptr_t)context;

    for (unsigned i = 0; i < STEPS; i++) {
        void *object = NULL;

        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        if (seed % 5 < 3)
            object = us_cache_alloc_node(shared_cache, 0, (int)(seed / 5 % 4) - 2);
        object = atomic_exchange(&slot[seed / 32 % SLOTS], object);
        if (object)
            us_cache_free(shared_cache, object);
    }
    atomic_fetch_sub(&running, 1);
    return NULL;
}

/* Meanwhile time passes, arrays are replaced, flushed and shrunk. */
static void disturb(struct us_allocator *a)
{
    static const char *const batch[] = {"60", "3", "25"};

    for (unsigned i = 0; atomic_load(&running); i++) {
        us_allocator_advance(a, 2000000000u);
        if (i % 4 == 0)
            CHECK_EQ(us_tunable_set(shared_cache, "batchcount", batch[i / 4 % 3], NULL), US_OK);
        if (i % 16 == 7)
            us_cache_shrink(shared_cache);
    }
}

static void threads_of_two_nodes(bool debug_f)
{
    struct us_allocator *a = fixture_open("slab", &fixture_two_nodes, 0, debug_f);
    pthread_t thread[THREADS];

    shared_cache = fixture_cache(a, "test", 128, 0);
    REQUIRE(us_tunable_set(shared_cache, "limit", "120", NULL) == US_OK);
    atomic_store(&running, THREADS);
    for (uintptr_t i = 0; i < THREADS; i++)
        REQUIRE(pthread_create(&thread[i], NULL, exchange, (void *)(i * 977)) == 0);
    disturb(a);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    fixture_balance(a);
    for (unsigned i = 0; i < SLOTS; i++)
        us_cache_free(shared_cache, atomic_exchange(&slot[i], NULL));
    us_cache_shrink(shared_cache);
    CHECK_EQ(tunable(shared_cache, "num_active"), 0);
    fixture_close(a);
}

static void threads_exchange_objects(void)
{
    threads_of_two_nodes(false);
    threads_of_two_nodes(true);
}
#endif

int main(void)
{
    RUN(closed_regions_are_passed_over);
    RUN(failing_metadata_leaves_nothing_behind);
    RUN(tuning_without_memory_changes_nothing);
    RUN(a_constructor_may_tune);
#ifdef US_MODEL
    RUN(pages_of_64_kib);
#else
    RUN(threads_exchange_objects);
#endif
    return check_result();
}
