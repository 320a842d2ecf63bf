// machines: both
/* Expiration by hand, by clock and by shortage. */
#include "fixture_cache.h"

static uint64_t queued(struct us_cache *c)
{
    struct us_account account;

    us_cache_account(c, &account);
    return account.queued_objects;
}

static void idle_queues_drain_within_a_few_passes(void)
{
    struct us_allocator *a = fixture_open("unified", &fixture_two_nodes, 0, false);
    struct us_cache *c = fixture_cache(a, "test", 64, 0);
    void *object[400];
    uint64_t bytes = 0, before;
    unsigned pass;

    CHECK_EQ(us_cache_alloc_bulk(c, 0, US_ANY_NODE, 300, object), 300);
    CHECK_EQ(us_cache_alloc_bulk(c, 0, 1, 100, object + 300), 100);
    us_cache_free_bulk(c, 400, object);
    before = queued(c);
    CHECK(before > 0);
    CHECK_EQ(us_cache_expire(c, US_ANY_NODE), 0); /* everything was touched: marks are cleared */
    CHECK_EQ(queued(c), before);
    for (pass = 0; pass < 30 && queued(c); pass++) {
        const uint64_t old = queued(c), moved = us_cache_expire(c, US_ANY_NODE);

        CHECK_EQ(moved, (old - queued(c)) * c->geometry.stride);
        bytes += moved;
    }
    CHECK_EQ(queued(c), 0);
    CHECK_EQ(bytes, before * c->geometry.stride);
    CHECK_EQ(fixture_stat(c, "expire_objects"), before);
    fixture_close(a);
}

static void a_node_is_expired_alone(void)
{
    struct us_allocator *a = fixture_open("unified", &fixture_two_nodes, 0, false);
    struct us_cache *c = fixture_cache(a, "test", 64, 0);
    void *object[20];

    CHECK_EQ(us_cache_alloc_bulk(c, 0, 0, 20, object), 20);
    us_cache_free_bulk(c, 20, object);
    us_cache_expire(c, US_ANY_NODE);
    CHECK(queued(c) > 0);
    CHECK_EQ(us_cache_expire(c, 1), 0);
    CHECK(queued(c) > 0);
    while (us_cache_expire(c, 0))
        ;
    CHECK_EQ(queued(c), 0);
    CHECK_EQ(us_cache_expire(c, 2), 0); /* there is no such node */
    fixture_close(a);
}

static void expiring_everything_stops_at_its_target(void)
{
    struct us_allocator *a = fixture_open("unified", NULL, 0, false);
    struct us_cache *c = fixture_cache(a, "test", 64, 0);
    void *object[100];
    uint64_t moved;

    CHECK_EQ(us_cache_alloc_bulk(c, 0, US_ANY_NODE, 100, object), 100);
    us_cache_free_bulk(c, 100, object);
    us_allocator_expire(a, US_ANY_NODE);
    moved = us_allocator_expire_target(a, US_ANY_NODE, 1, false);
    CHECK(moved > 0 && queued(c) > 0); /* one batch, not all */
    CHECK_EQ(a->last_expired_bytes, moved);
    while (us_allocator_expire(a, US_ANY_NODE))
        ;
    CHECK_EQ(queued(c), 0);
    atomic_store(&a->expiring, 1); /* somebody else is at it */
    CHECK_EQ(us_allocator_expire(a, US_ANY_NODE), 0);
    atomic_store(&a->expiring, 0);
    fixture_close(a);
}

static void a_policy_without_expiration_gives_nothing(void)
{
    struct us_allocator *a = fixture_open("slub", NULL, 0, false);
    struct us_cache *c = fixture_cache(a, "test", 64, 0);

    us_cache_free(c, us_cache_alloc(c));
    if (!a->policy->expire) {
        CHECK_EQ(us_cache_expire(c, US_ANY_NODE), 0);
        CHECK_EQ(us_allocator_expire(a, US_ANY_NODE), 0);
    }
    fixture_close(a);
}

/* Slabs of whatever orders the cache had: full ones of some, and one of the last that is empty. */
static void shrink_tells_what_it_gave_back(void)
{
    static const char *const order[] = {"0", "2", "1", "3"};
    struct us_allocator *a = fixture_open("slub", NULL, 0, false);
    struct us_cache *c = fixture_cache(a, "test", 256, 0);
    struct us_account before, after;
    static void *object[4][8 * 256];
    int64_t n[4];
    uint64_t bytes;

    for (unsigned i = 0; i < 4; i++) {
        REQUIRE(us_tunable_set(c, "order", order[i], NULL) == US_OK);
        REQUIRE(us_tunable_get(c, "objs_per_slab", &n[i], NULL, NULL) == US_OK);
        n[i] = i < 3 ? n[i] : 1;
        REQUIRE(us_cache_alloc_bulk(c, 0, US_ANY_NODE, (size_t)n[i], object[i]) == (size_t)n[i]);
    }
    us_cache_free(c, object[3][0]);
    REQUIRE(us_tunable_set(c, "order", "0", NULL) == US_OK);
    us_cache_account(c, &before);
    bytes = us_cache_shrink(c);
    us_cache_account(c, &after);
    CHECK_EQ(bytes, 8 * a->machine->page_size);
    CHECK_EQ(bytes, before.reserved - after.reserved);
    for (unsigned i = 0; i < 3; i++)
        us_cache_free_bulk(c, (size_t)n[i], object[i]);
    fixture_close(a);
}

/* The expire_period tunable, on the policy's clock. */
static void ticks_run_when_the_clock_moves(void)
{
    struct us_allocator *a = fixture_open("unified", NULL, 0, false);
    struct us_cache *c = fixture_cache(a, "test", 64, 0);
    void *object[50];

    us_clock_set(a->machine, us_now(a->machine)); /* by hand from here on */
    CHECK_EQ(us_tunable_set(c, "expire_period", "1000", NULL), US_OK);
    CHECK_EQ(us_cache_alloc_bulk(c, 0, US_ANY_NODE, 50, object), 50);
    us_cache_free_bulk(c, 50, object);
    us_allocator_advance(a, 500000000ull);
    CHECK(queued(c) > 0);
    us_allocator_advance(a, 60ull * 1000000000);
    CHECK_EQ(queued(c), 0);
    CHECK_EQ(us_tunable_set(c, "expire_period", "0", NULL), US_OK);
    CHECK_EQ(us_cache_alloc_bulk(c, 0, US_ANY_NODE, 50, object), 50);
    us_cache_free_bulk(c, 50, object);
    us_allocator_advance(a, 60ull * 1000000000);
    CHECK(queued(c) > 0);
    fixture_close(a);
}

static uint64_t fences_of_a_tick(struct us_allocator *a, uint64_t period)
{
    const uint64_t before = atomic_load(&a->machine->fences);

    us_allocator_advance(a, period);
    return atomic_load(&a->machine->fences) - before;
}

/* Closing regions costs a fence: one for each CPU that has any to close, however many caches have a
 * queue there, and none once there is nothing to age. */
static void a_tick_fences_once_a_cpu(const char *policy, uint64_t period)
{
    static const char *const name[] = {"a", "b", "c", "d", "e"};
    struct us_allocator *a = fixture_open(policy, &fixture_two_nodes, 0, false);
    struct us_cache *c[5];
    uint64_t left = 1;
    void *object[10];
    unsigned cpus = 1;

    us_clock_set(a->machine, us_now(a->machine));
    for (unsigned i = 0; i < 5; i++) {
        c[i] = fixture_cache(a, name[i], 64u << i, 0);
        if (strcmp(policy, "unified") == 0)
            REQUIRE(us_tunable_set(c[i], "expire_period", "1000", NULL) == US_OK);
    }
#ifdef US_MODEL
    cpus = a->machine->ncpus;
#endif
    for (unsigned cpu = 0; cpu < cpus; cpu++) {
        REQUIRE(us_machine_on_cpu(a->machine, (int)cpu, NULL) >= 0);
        for (unsigned i = 0; i < 5; i++) {
            REQUIRE(us_cache_alloc_bulk(c[i], 0, US_ANY_NODE, 10, object) == 10);
            us_cache_free_bulk(c[i], 10, object);
        }
    }
    CHECK_EQ(fences_of_a_tick(a, period), cpus); /* marks go, or objects */
    for (unsigned n = 0; n < 20 && left; n++) {
        CHECK(fences_of_a_tick(a, period) <= cpus);
        left = 0;
        for (unsigned i = 0; i < 5; i++)
            left += queued(c[i]);
    }
    CHECK_EQ(left, 0);
    fences_of_a_tick(a, period); /* the mark of the last visit */
    CHECK_EQ(fences_of_a_tick(a, period), 0);
#ifndef US_MODEL
    us_machine_on_cpu(a->machine, -1, NULL);
#endif
    fixture_close(a);
}

static void so_does_expiring_everything(void)
{
    struct us_allocator *a = fixture_open("unified", NULL, 0, false);
    struct us_cache *c[2] = {fixture_cache(a, "a", 64, 0), fixture_cache(a, "b", 128, 0)};
    const uint64_t before = atomic_load(&a->machine->fences);
    const int cpu = (int)us_cpu_now(a->machine);
    uint64_t held[2];
    void *object[10];

    REQUIRE(us_machine_on_cpu(a->machine, cpu, NULL) >= 0);
    for (unsigned i = 0; i < 2; i++) {
        REQUIRE(us_cache_alloc_bulk(c[i], 0, US_ANY_NODE, 10, object) == 10);
        us_cache_free_bulk(c[i], 10, object);
    }
    held[0] = queued(c[0]);
    held[1] = queued(c[1]);
    CHECK_EQ(us_allocator_expire(a, US_ANY_NODE), 0); /* takes the marks away */
    CHECK_EQ(atomic_load(&a->machine->fences) - before, 1);
    while (queued(c[0]) + queued(c[1]))
        REQUIRE(us_allocator_expire(a, US_ANY_NODE) > 0);
    CHECK_EQ(fixture_stat(c[0], "expire_objects"), held[0]);
    CHECK_EQ(fixture_stat(c[1], "expire_objects"), held[1]);
#ifndef US_MODEL
    us_machine_on_cpu(a->machine, -1, NULL);
#endif
    fixture_close(a);
}

static void ticks_close_the_queues_of_all_caches_together(void)
{
    a_tick_fences_once_a_cpu("unified", 1000000000);
    a_tick_fences_once_a_cpu("slab", 2000000000);
    a_tick_fences_once_a_cpu("slqb", 3000000000);
}

static void free_pages_are_purged_after_the_delay(void)
{
    struct us_allocator *a = fixture_open("unified", NULL, 0, false);
    struct us_memory_account memory;
    void *p = us_kmalloc(a, 1u << 20, US_ZERO, US_ANY_NODE);

    us_clock_set(a->machine, us_now(a->machine));
    us_kfree(a, p);
    us_memory_account(a->memory, &memory);
    CHECK(memory.resident >= 1u << 20);
    us_allocator_advance(a, 5ull * 1000000000);
    us_memory_account(a->memory, &memory);
    CHECK_EQ(memory.reserved, 0);
    CHECK_EQ(memory.resident, 0);
    fixture_close(a);
}

#ifdef US_MODEL
/* Without a real clock the reaper is due like anything else. */
static void the_reaper_is_due_on_the_models_clock(void)
{
    struct us_allocator *a = fixture_open("unified", NULL, 0, false);
    struct us_cache *c = fixture_cache(a, "test", 64, 0);
    void *object[50];

    CHECK_EQ(us_allocator_reaper(a, 1000000000, NULL), US_OK);
    CHECK_EQ(us_cache_alloc_bulk(c, 0, US_ANY_NODE, 50, object), 50);
    us_cache_free_bulk(c, 50, object);
    us_allocator_advance(a, 999999999);
    CHECK(queued(c) > 0);
    us_allocator_advance(a, 30ull * 1000000000);
    CHECK_EQ(queued(c), 0);
    CHECK_EQ(us_allocator_reaper(a, 0, NULL), US_OK);
    fixture_close(a);
}
#endif

/* Below `low` unified takes idle objects out of queues: two caches take turns in a tight budget. */
static void shortage_expires_queues(void)
{
    struct us_allocator *a = fixture_open("unified", NULL, 4u << 20, false);
    struct us_cache *idle = fixture_cache(a, "idle", 2048, 0),
                    *busy = fixture_cache(a, "busy", 1024, 0);
    static void *object[4096];
    struct us_node_memory m;
    unsigned n = 0, i;

    CHECK_EQ(us_cache_alloc_bulk(idle, 0, US_ANY_NODE, 300, object), 300);
    us_cache_free_bulk(idle, 300, object);
    us_cache_expire(idle, US_ANY_NODE); /* untouched from here on */
    CHECK(queued(idle) > 0);
    do {
        object[n] = us_cache_alloc(busy);
        REQUIRE(object[n] != NULL);
        n++;
        us_memory_node(a->memory, 0, &m);
    } while (m.free > m.low && n < 4000);
    for (i = 0; i < 400 && (object[n] = us_cache_alloc(busy)) != NULL; i++)
        n++;
    CHECK(fixture_stat(idle, "expire_objects") > 0);
    us_cache_free_bulk(busy, n, object);
    fixture_close(a);
}

int main(void)
{
    RUN(idle_queues_drain_within_a_few_passes);
    RUN(a_node_is_expired_alone);
    RUN(expiring_everything_stops_at_its_target);
    RUN(a_policy_without_expiration_gives_nothing);
    RUN(shrink_tells_what_it_gave_back);
    RUN(ticks_run_when_the_clock_moves);
    RUN(ticks_close_the_queues_of_all_caches_together);
    RUN(so_does_expiring_everything);
    RUN(free_pages_are_purged_after_the_delay);
#ifdef US_MODEL
    RUN(the_reaper_is_due_on_the_models_clock);
#endif
    RUN(shortage_expires_queues);
    return check_result();
}
