// machines: native
/* slub-partial where Python does not reach: signal handlers inside slow paths, closed regions, and
 * which fast path a cache has. Objects have 256 bytes, slabs 16 of them. */
#include "fixture_cache.h"
#include "policy/slub_partial.h"

enum { N = 16 };

static const unsigned one_node[] = {0, 0};
static const struct us_topology two_cpus = {
    .ncpus = 2, .nnodes = 1, .ndomains = 1, .cpu_node = one_node, .cpu_domain = one_node};

static struct us_cache *open_cache(struct us_allocator **a)
{
    static const char *const names[] = {"min_objects", "cpu_partial"};
    static const char *const values[] = {"16", "32"};
    const struct us_cache_options o = {.name = "scene", .size = 256};
    struct us_cache *c;

    *a = fixture_open("slub-partial", &two_cpus, 0, false);
    c = us_cache_create_with(*a, &o, names, values, 2, NULL);
    REQUIRE(c != NULL);
    REQUIRE(us_machine_on_cpu((*a)->machine, 0, NULL) >= 0);
    return c;
}

static void close_cache(struct us_allocator *a)
{
    us_machine_on_cpu(a->machine, -1, NULL);
    fixture_close(a);
}

static void take(struct us_cache *c, void **object, unsigned n)
{
    unsigned i;

    for (i = 0; i < n; i++)
        REQUIRE((object[i] = us_cache_alloc(c)) != NULL);
}

static void give(struct us_cache *c, void *const *object, unsigned n)
{
    unsigned i;

    for (i = 0; i < n; i++)
        us_cache_free(c, object[i]);
}

static int64_t tunable(struct us_cache *c, const char *name)
{
    int64_t value = -1;

    CHECK_EQ(us_tunable_get(c, name, &value, NULL, NULL), US_OK);
    return value;
}

/* A full slab that no CPU owns, and its objects. */
static void full_slab(struct us_allocator *a, struct us_cache *c, void **object)
{
    take(c, object, N);
    us_allocator_flush(a);
}

static void a_handler_inside_a_slow_path_adopts_nothing(void)
{
    struct us_allocator *a;
    struct us_cache *c = open_cache(&a);
    struct us_flight f;
    void *object[N];

    full_slab(a, c, object);
    us_flight_enter(a->machine, &f);
    us_cache_free(c, object[0]); /* nested: to the node's list */
    us_flight_leave(&f);
    CHECK_EQ(fixture_stat(c, "cpu_partial_free"), 0);
    CHECK_EQ(fixture_stat(c, "free_add_partial"), 1);
    CHECK_EQ(tunable(c, "partial"), 1);
    us_allocator_flush(a);
    give(c, object + 1, N - 1);
    close_cache(a);
}

static void a_handler_that_cannot_have_the_list_leaves_the_free_for_later(void)
{
    struct us_allocator *a;
    struct us_cache *c = open_cache(&a);
    struct us_flight f;
    void *object[N], *again;
    struct us_lock *list;

    full_slab(a, c, object);
    list = &us_slub_of(c)->node->lock;
    us_flight_enter(a->machine, &f);
    REQUIRE(us_lock_take(&f, list));
    us_cache_free(c, object[0]);
    us_lock_drop(&f, list);
    us_flight_leave(&f);
    CHECK_EQ(fixture_stat(c, "free_slowpath"), 0);
    CHECK(atomic_load(&c->deferred[0]) == object[0]);
    /* The next slow path takes it in, before it looks for an object. */
    again = us_cache_alloc(c);
    CHECK_EQ(fixture_stat(c, "free_slowpath"), 1);
    CHECK_EQ(again, object[0]);
    give(c, object, N);
    close_cache(a);
}

static void a_handler_takes_one_object_of_a_listed_slab(void)
{
    struct us_allocator *a;
    struct us_cache *c = open_cache(&a);
    struct us_flight f;
    void *object[N], *got, *other;

    full_slab(a, c, object);
    give(c, object, 2); /* adopted; the flush puts it on the node's list */
    us_allocator_flush(a);
    CHECK_EQ(tunable(c, "partial"), 1);
    us_flight_enter(a->machine, &f);
    got = us_cache_alloc(c);
    other = us_cache_alloc(c); /* the last of the slab is left to who may wait */
    us_flight_leave(&f);
    CHECK_EQ(got, object[1]);
    CHECK(other != NULL && us_cache_slab(c, other) != us_cache_slab(c, got));
    CHECK_EQ(tunable(c, "cpu_slabs"), 0);
    us_cache_free(c, got);
    us_cache_free(c, other);
    give(c, object + 2, N - 2);
    close_cache(a);
}

static void a_closed_region_is_gone_around(void)
{
    struct us_allocator *a;
    struct us_cache *c = open_cache(&a);
    struct us_flight f;
    void *object[N + 3], *region;

    take(c, object, N + 2); /* the first slab is full, the second is the CPU's */
    us_flight_enter(a->machine, &f);
    REQUIRE(us_local_close(&c->local, &f, 0, false, &region));
    us_flight_leave(&f);
    us_cache_free(c, object[0]); /* nothing is adopted */
    us_cache_free(c, object[N]); /* into the frozen slab */
    object[0] = us_cache_alloc(c);
    CHECK(us_cache_slab(c, object[0]) == us_cache_slab(c, object[1]));
    CHECK_EQ(tunable(c, "partial"), 0);
    object[N + 2] = us_cache_alloc(c); /* a new slab, listed at once */
    CHECK_EQ(tunable(c, "partial"), 1);
    us_flight_enter(a->machine, &f);
    us_local_open(&c->local, &f, 0);
    us_flight_leave(&f);
    CHECK_EQ(tunable(c, "cpu_slabs"), 1);
    CHECK_EQ(fixture_stat(c, "free_add_partial"), 1); /* an exact look opens regions */
    CHECK_EQ(fixture_stat(c, "free_frozen"), 1);
    give(c, object, N);
    give(c, object + N + 1, 2);
    close_cache(a);
}

static void the_prefetch_is_on_by_default(void)
{
    struct us_allocator *a;
    struct us_cache *c = open_cache(&a);
    const struct us_cache_head *plain = &c->policy->entries[c->local.mode];

    CHECK_EQ(tunable(c, "prefetch"), 1);
    CHECK(c->head.alloc != plain->alloc);
    CHECK_EQ(us_tunable_set(c, "prefetch", "0", NULL), US_OK);
    CHECK(c->head.alloc == plain->alloc);
    close_cache(a);
}

/* A write to a free object is found when its slab serves again; it is kept out of circulation. */
static void a_broken_freelist_isolates_its_slab(void)
{
    struct us_allocator *a;
    struct us_cache *c = open_cache(&a);
    void *object[N], *got[2];

    full_slab(a, c, object);
    give(c, object, 3);
    memset(object[2], 0x5a, 8);
    take(c, got, 2); /* the adopted slab is passed over */
    CHECK_EQ(us_misuse_count(c), 1);
    CHECK(us_cache_slab(c, got[0]) != us_cache_slab(c, object[0]));
    give(c, object + 3, N - 3);
    CHECK_EQ(us_misuse_count(c), 1);
    give(c, got, 2);
    us_machine_on_cpu(a->machine, -1, NULL);
    CHECK_EQ(us_allocator_destroy(a, false, NULL), US_OK);
}

int main(void)
{
    RUN(a_handler_inside_a_slow_path_adopts_nothing);
    RUN(a_handler_that_cannot_have_the_list_leaves_the_free_for_later);
    RUN(a_handler_takes_one_object_of_a_listed_slab);
    RUN(a_closed_region_is_gone_around);
    RUN(the_prefetch_is_on_by_default);
    RUN(a_broken_freelist_isolates_its_slab);
    return check_result();
}
