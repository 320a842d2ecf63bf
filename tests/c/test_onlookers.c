// machines: native
/* Who only looks - statistics that need not be exact, tunables - waits for nobody and is kept off
 * by nobody, while queues are resized, everything is stopped, and the process forks. */
#include "fixture_cache.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 400

static _Atomic int stop_looking;
static _Atomic uint64_t looks;

static uint64_t *room_for_stats(const struct us_cache *c)
{
    uint64_t *values =
        calloc(us_stats_rows(c->policy, NULL, NULL, 0) * c->machine->ncpus, sizeof(*values));

    REQUIRE(values != NULL);
    return values;
}

/* Sum over CPUs of one row, as it can be had without stopping anybody. */
static uint64_t glimpse(struct us_cache *c, const char *row, uint64_t *values)
{
    const char *names[128];
    const size_t rows = us_stats_rows(c->policy, names, NULL, 128);
    uint64_t sum = 0;
    size_t i = 0;

    us_cache_stats(c, false, values);
    while (i < rows && strcmp(names[i], row) != 0)
        i++;
    REQUIRE(i < rows);
    for (unsigned cpu = 0; cpu < c->machine->ncpus; cpu++)
        sum += values[cpu * rows + i];
    return sum;
}

static void *look_at_stats(void *cache)
{
    uint64_t *values = room_for_stats(cache);

    while (!atomic_load(&stop_looking)) {
        us_cache_stats(cache, false, values);
        atomic_fetch_add(&looks, 1);
    }
    free(values);
    return NULL;
}

/* No queue of this test holds as many objects as there are in all. */
static void *look_at_tunables(void *cache)
{
    static const char *const stocks[] = {"per_cpu_caches", "shared_caches", "alien_caches"};
    const struct us_cache *c = cache;
    uint64_t wrong = 0;

    while (!atomic_load(&stop_looking)) {
        for (unsigned i = 0; i < c->policy->ntunables; i++) {
            const struct us_tunable *t = &c->policy->tunables[i];
            int64_t value = -1;

            CHECK_EQ(us_tunable_get(cache, t->name, &value, NULL, NULL), US_OK);
            for (unsigned k = 0; k < 3; k++)
                wrong += strcmp(t->name, stocks[k]) == 0 && (value < 0 || value > 1000000);
        }
        atomic_fetch_add(&looks, 1);
    }
    CHECK_EQ(wrong, 0);
    return NULL;
}

static pthread_t start_looking(void *(*look)(void *), struct us_cache *c)
{
    pthread_t thread;

    atomic_store(&stop_looking, 0);
    atomic_store(&looks, 0);
    REQUIRE(pthread_create(&thread, NULL, look, c) == 0);
    while (atomic_load(&looks) == 0)
        sched_yield();
    return thread;
}

static void end_looking(pthread_t thread)
{
    atomic_store(&stop_looking, 1);
    REQUIRE(pthread_join(thread, NULL) == 0);
}

/* Allocates, moves objects through every level, frees; returns how many. */
static uint64_t traffic(struct us_cache *c)
{
    void *object[300];
    uint64_t n = us_cache_alloc_bulk(c, 0, US_ANY_NODE, 300, object);

    us_cache_free_bulk(c, n, object);
    for (int node = 0; node < (int)c->machine->nnodes; node++) {
        void *one = us_cache_alloc_node(c, 0, node);

        n += one != NULL;
        us_cache_free(c, one);
    }
    return n;
}

static void everything_is_stopped_under_their_eyes(bool debug_f)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, &fixture_two_nodes, 0, debug_f);
        struct us_cache *c = fixture_cache(a, "test", 64, 0);
        pthread_t thread = start_looking(look_at_stats, c);
        uint64_t n = 0;

        for (unsigned round = 0; round < ROUNDS; round++) {
            struct us_account account;

            n += traffic(c);
            us_cache_account(c, &account);
            CHECK_EQ(account.live_objects, 0);
        }
        end_looking(thread);
        CHECK_EQ(fixture_allocs(c), n);
        CHECK_EQ(fixture_frees(c), n);
        fixture_close(a);
    }
}

static void stopped_with_queues(void)
{
    everything_is_stopped_under_their_eyes(false);
}

static void stopped_with_debug(void)
{
    everything_is_stopped_under_their_eyes(true);
}

static void resize(struct us_cache *c, unsigned round)
{
    static const char *const size[] = {"8", "3000", "40", "700"};

    CHECK_EQ(us_tunable_set(c, "cpu_queue_size", size[round % 4], NULL), US_OK);
    CHECK_EQ(us_tunable_set(c, "shared_queue_size", round % 3 ? "5000" : "0", NULL), US_OK);
    CHECK_EQ(us_tunable_set(c, "alien_queue_size", round % 2 ? "900" : "12", NULL), US_OK);
}

/* A count that went beyond its width stays there for ever: what was looked at is never more than
 * what was done. */
static void queues_are_resized_under_the_eyes_of_statistics(void)
{
    struct us_allocator *a = fixture_open("unified", &fixture_two_nodes, 0, false);
    struct us_cache *c = fixture_cache(a, "test", 64, 0);
    uint64_t *values = room_for_stats(c), n = 0, seen = 0;
    pthread_t thread = start_looking(look_at_stats, c);

    for (unsigned round = 0; round < ROUNDS; round++) {
        uint64_t now;

        resize(c, round);
        n += traffic(c);
        now = glimpse(c, "alloc_fast", values);
        CHECK(now >= seen && now <= n);
        seen = now;
    }
    end_looking(thread);
    CHECK_EQ(fixture_allocs(c), n);
    CHECK_EQ(fixture_frees(c), n);
    free(values);
    fixture_close(a);
}

static _Atomic bool resized;

static void *resize_once(void *cache)
{
    CHECK_EQ(us_tunable_set(cache, "cpu_queue_size", "77", NULL), US_OK);
    atomic_store(&resized, true);
    return NULL;
}

/* The ring that a reader of statistics looks at stays until it is done. */
static void a_resize_waits_for_a_reader(void)
{
    struct us_allocator *a = fixture_open("unified", &fixture_two_nodes, 0, false);
    struct us_cache *c = fixture_cache(a, "test", 64, 0);
    struct us_flight reader = {.machine = a->machine}; /* not in flight, as us_cache_stats */
    struct us_ring *before[4];
    pthread_t thread;

    for (unsigned i = 0; i < 100; i++)
        traffic(c);
    REQUIRE(us_lock_take(&reader, &c->stats_lock));
    for (unsigned cpu = 0; cpu < 4; cpu++)
        before[cpu] = us_local_ring(&c->local, cpu);
    atomic_store(&resized, false);
    REQUIRE(pthread_create(&thread, NULL, resize_once, c) == 0);
    while (atomic_load(&a->machine->gate) == 0)
        sched_yield();
    usleep(20000);
    CHECK(!atomic_load(&resized));
    for (unsigned cpu = 0; cpu < 4; cpu++)
        CHECK_EQ(us_local_ring(&c->local, cpu), before[cpu]);
    us_lock_drop(&reader, &c->stats_lock);
    REQUIRE(pthread_join(thread, NULL) == 0);
    CHECK(atomic_load(&resized));
    fixture_close(a);
}

static void queues_are_resized_under_the_eyes_of_tunables(void)
{
    struct us_allocator *a = fixture_open("unified", &fixture_two_nodes, 0, false);
    struct us_cache *c = fixture_cache(a, "test", 64, 0);
    pthread_t thread = start_looking(look_at_tunables, c);

    for (unsigned round = 0; round < ROUNDS; round++) {
        resize(c, round);
        traffic(c);
    }
    end_looking(thread);
    fixture_close(a);
}

static void look_in_child(struct us_cache *c)
{
    uint64_t *values = room_for_stats(c);

    alarm(20);
    us_cache_stats(c, false, values);
    us_cache_stats(c, true, values);
    _exit(0);
}

/* A reader of the parent may be at it when the process forks; it is not there in the child. */
static void the_process_forks_under_their_eyes(void)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, &fixture_two_nodes, 0, false);
        struct us_cache *c = fixture_cache(a, "test", 64, 0);
        pthread_t thread = start_looking(look_at_stats, c);

        for (unsigned round = 0; round < 60; round++) {
            pid_t child = fork();
            int status = -1;

            REQUIRE(child >= 0);
            if (child == 0)
                look_in_child(c);
            REQUIRE(waitpid(child, &status, 0) == child);
            CHECK_EQ(status, 0);
            if (status)
                break;
        }
        end_looking(thread);
        fixture_close(a);
    }
}

int main(void)
{
    alarm(120);
    RUN(stopped_with_queues);
    RUN(stopped_with_debug);
    RUN(queues_are_resized_under_the_eyes_of_statistics);
    RUN(a_resize_waits_for_a_reader);
    RUN(queues_are_resized_under_the_eyes_of_tunables);
    RUN(the_process_forks_under_their_eyes);
    return check_result();
}
