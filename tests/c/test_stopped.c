// machines: native
/* What a signal handler may still do while its own thread, or another, has stopped everything and
 * has it in pieces: nothing, and nothing is lost by it. */
#include "fixture_cache.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

static struct us_allocator *allocator;
static struct us_cache *cache;
enum { MANY = 300 }; /* more than two batches of any queue */
static void *given[3], *got[3], *many[MANY];
static volatile sig_atomic_t handled;

static void on_signal(int number)
{
    static void *none[MANY];
    int64_t value;

    (void)number;
    got[0] = us_cache_alloc(cache);
    got[1] = us_cache_alloc_node(cache, 0, 1);
    got[2] = us_kmalloc(allocator, 100000, 0, US_ANY_NODE);
    CHECK_EQ(us_cache_alloc_bulk(cache, 0, US_ANY_NODE, MANY, none), 0);
    us_cache_free(cache, given[0]);
    us_cache_free_bulk(cache, 1, &given[1]);
    us_cache_free_bulk(cache, MANY, many);
    us_kfree(allocator, given[2]);
    CHECK_EQ(us_allocator_expire(allocator, US_ANY_NODE), 0);
    CHECK_EQ(us_cache_expire(cache, US_ANY_NODE), 0);
    CHECK_EQ(us_cache_shrink(cache), 0);
    CHECK_EQ(us_allocator_shrink(allocator), 0);
    us_allocator_flush(allocator);
    us_allocator_advance(allocator, 1000000000);
    us_tunable_get(cache, "min_partial", &value, NULL, NULL);
    us_tunable_get(cache, "partial", &value, NULL, NULL);
    us_tunable_get(cache, "shared_caches", &value, NULL, NULL);
    handled = 1;
}

static void check_handled(void)
{
    CHECK_EQ(handled, 1);
    for (unsigned i = 0; i < 3; i++)
        CHECK_EQ(got[i], NULL);
}

static void set_up(const char *policy, bool debug_f)
{
    allocator = fixture_open(policy, &fixture_two_nodes, 0, debug_f);
    cache = fixture_cache(allocator, "test", 64, 0);
    REQUIRE(us_cache_alloc_bulk(cache, 0, US_ANY_NODE, MANY, many) == MANY);
    us_cache_free_bulk(cache, MANY, many);
    REQUIRE(us_cache_alloc_bulk(cache, 0, US_ANY_NODE, MANY, many) == MANY);
    REQUIRE((given[0] = us_cache_alloc(cache)) != NULL);
    REQUIRE((given[1] = us_cache_alloc(cache)) != NULL);
    REQUIRE((given[2] = us_kmalloc(allocator, 100000, 0, 0)) != NULL);
    handled = 0;
}

/* What was freed meanwhile is free. */
static void check_and_close(void)
{
    struct us_memory_account memory;

    CHECK_EQ(us_cache_live(cache, NULL, 0), 0);
    CHECK_EQ(us_cache_live(allocator->large, NULL, 0), 0);
    us_allocator_shrink(allocator);
    us_memory_account(allocator->memory, &memory);
    CHECK_EQ(memory.reserved, 0);
    fixture_close(allocator);
}

/* The handler runs while the cache has no state to look at. */
static void stop_and_take_apart(void)
{
    struct us_cache *const first = allocator->caches;
    void *const state = cache->state;
    struct us_flight f;

    us_allocator_stop(allocator, &f);
    cache->state = NULL;
    allocator->caches = NULL;
    raise(SIGUSR1);
    allocator->caches = first;
    cache->state = state;
    us_allocator_resume(allocator, &f);
}

static void by_the_thread_itself(void)
{
    for (unsigned debug_f = 0; debug_f < 2; debug_f++)
        FOR_EACH_POLICY(policy)
        {
            set_up(policy, debug_f);
            stop_and_take_apart();
            check_handled();
            check_and_close();
        }
}

static _Atomic int stopped; /* 0 not yet, 1 stopped, 2 may go on */

static void *stop_elsewhere(void *arg)
{
    struct us_cache *const first = allocator->caches;
    void *const state = cache->state;
    struct us_flight f;

    (void)arg;
    us_allocator_stop(allocator, &f);
    cache->state = NULL;
    allocator->caches = NULL;
    atomic_store(&stopped, 1);
    while (atomic_load(&stopped) == 1)
        sched_yield();
    allocator->caches = first;
    cache->state = state;
    us_allocator_resume(allocator, &f);
    return NULL;
}

/* The thread is marked, as a reader of statistics is, and who works alone does not wait for it. */
static void by_another_thread(void)
{
    for (unsigned debug_f = 0; debug_f < 2; debug_f++)
        FOR_EACH_POLICY(policy)
        {
            pthread_t thread;

            set_up(policy, debug_f);
            atomic_store(&stopped, 0);
            us_mark_thread();
            REQUIRE(pthread_create(&thread, NULL, stop_elsewhere, NULL) == 0);
            while (atomic_load(&stopped) == 0)
                sched_yield();
            raise(SIGUSR1);
            check_handled();
            atomic_store(&stopped, 2);
            us_unmark_thread();
            REQUIRE(pthread_join(thread, NULL) == 0);
            check_and_close();
        }
}

int main(void)
{
    REQUIRE(signal(SIGUSR1, on_signal) != SIG_ERR);
    RUN(by_the_thread_itself);
    RUN(by_another_thread);
    return check_result();
}
