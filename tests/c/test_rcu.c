// machines: both
/* Frees after a grace period: from threads with barriers, looks at the clock, hot-plug and exact
 * reads at once; around a fork; in a nested call. */
#include "fixture_cache.h"

#ifndef US_MODEL
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 3
#define ROUNDS  12
#define OBJECTS 150 /* more than two batches of 60, so full ones and one that is not */

/* Frees told without stopping anybody, which would wait for a barrier that others are in: exact,
 * as long as nobody ages or flushes the queues of a cache that no other thread uses. */
static uint64_t frees_now(struct us_cache *c)
{
    static const char *const feeds[] = {"free_fast", "free_second_level", "free_slow",
                                        "free_remote"};
    const char *names[128];
    const size_t rows = us_stats_rows(c->policy, names, NULL, 128);
    uint64_t *values = calloc(rows * c->machine->ncpus, sizeof(*values)), sum = 0;

    us_cache_stats(c, false, values);
    for (size_t i = 0; i < rows * c->machine->ncpus; i++)
        for (size_t k = 0; k < 4; k++)
            sum += strcmp(names[i % rows], feeds[k]) == 0 ? values[i] : 0;
    free(values);
    return sum;
}

static void free_rcu(struct us_cache *c, void *object)
{
    struct us_error e = {.status = US_OK};

    if (!CHECK_EQ(us_cache_free_rcu(c, object, &e), US_OK))
        fprintf(stderr, "%s: %s\n", c->policy->name, e.text);
}

struct worker {
    pthread_t thread;
    struct us_cache *own, *common;
    uint64_t freed; /* to the common one */
    unsigned number;
    bool disturbed; /* somebody takes CPUs offline and runs ticks meanwhile */
};

static void *work(void *context)
{
    struct worker *w = context;
    void *object[OBJECTS];

    for (unsigned round = 1; round <= ROUNDS; round++) {
        for (unsigned i = 0; i < OBJECTS; i++) {
            object[i] = us_cache_alloc(i % 2 ? w->own : w->common);
            REQUIRE(object[i] != NULL);
            memset(object[i], (int)w->number, 64);
        }
        for (unsigned i = 0; i < OBJECTS; i++) {
            free_rcu(i % 2 ? w->own : w->common, object[i]);
            w->freed += i % 2 == 0;
        }
        if (round % 2)
            us_allocator_rcu_barrier(w->own->owner);
        else
            us_cache_rcu_barrier(w->own);
        /* What was freed before a barrier is free after it, whoever took the batch. */
        if (!w->disturbed)
            CHECK_EQ(frees_now(w->own), (uint64_t)round * (OBJECTS / 2));
    }
    return NULL;
}

static void disturb(struct us_allocator *a, struct us_cache *c, unsigned round)
{
    struct us_account account;
    struct us_validation v;

    us_allocator_advance(a, 20000000); /* twice the delay */
    if (round % 4 == 0)
        us_cache_shrink(c);
    if (c->machine->ncpus > 1 && round % 2 == 0)
        CHECK_EQ(us_allocator_offline_cpu(a, round / 2 % 2, NULL), US_OK);
    else if (c->machine->ncpus > 1)
        CHECK_EQ(us_allocator_online_cpu(a, round / 2 % 2, NULL), US_OK);
    us_cache_account(c, &account);
    CHECK_EQ(account.reserved,
             account.live + account.queued + account.free_in_slabs + account.waste);
    REQUIRE(us_cache_validate(c, &v, NULL) == US_OK);
    if (v.errors)
        fprintf(stderr, "%s\n", v.text);
    CHECK_EQ(v.errors, 0);
    us_validation_free(&v);
}

static void under_load(const char *policy, const struct us_topology *topology, bool debug_f,
                       bool disturbed)
{
    struct us_allocator *a = fixture_open(policy, topology, 0, debug_f);
    struct us_cache *common = fixture_cache(a, "common", 64, 0);
    static const char *const name[THREADS] = {"a", "b", "c"};
    struct worker w[THREADS];
    uint64_t freed = 0;

    for (unsigned i = 0; i < THREADS; i++)
        w[i] = (struct worker){.own = fixture_cache(a, name[i], 64, 0),
                               .common = common,
                               .number = i,
                               .disturbed = disturbed};
    for (unsigned i = 0; i < THREADS; i++)
        REQUIRE(pthread_create(&w[i].thread, NULL, work, &w[i]) == 0);
    for (unsigned round = 0; disturbed && round < 8; round++)
        disturb(a, common, round);
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(w[i].thread, NULL);
        freed += w[i].freed;
    }
    us_allocator_rcu_barrier(a);
    CHECK_EQ(atomic_load(&a->rcu_pending), 0);
    CHECK_EQ(fixture_frees(common), freed);
    for (unsigned i = 0; i < THREADS; i++)
        CHECK_EQ(fixture_frees(w[i].own), ROUNDS * (OBJECTS / 2));
    fixture_close(a);
}

static void threads_and_barriers(void)
{
    FOR_EACH_POLICY(policy)
    {
        under_load(policy, NULL, false, false);
        under_load(policy, &fixture_two_nodes, false, true);
    }
}

static void threads_and_barriers_with_debug(void)
{
    FOR_EACH_POLICY(policy)
    under_load(policy, &fixture_two_nodes, true, true);
}

static _Atomic int stop_workers;

static void *churn(void *context)
{
    struct us_cache *c = context;

    for (unsigned i = 1; !atomic_load(&stop_workers); i++) {
        free_rcu(c, us_cache_alloc(c));
        if (i % 200 == 0)
            us_allocator_rcu_barrier(c->owner);
    }
    return NULL;
}

/* Threads of the parent are in the middle of frees and barriers, which the child has to forget. */
static void use_in_child(struct us_allocator *a, struct us_cache *c, void *kept)
{
    struct us_validation v;

    alarm(30);
    free_rcu(c, kept);
    us_allocator_rcu_barrier(a);
    CHECK_EQ(atomic_load(&a->rcu_pending), 0);
    REQUIRE(us_cache_validate(c, &v, NULL) == US_OK);
    CHECK_EQ(v.errors, 0);
    us_validation_free(&v);
    CHECK_EQ(us_allocator_destroy(a, true, NULL), US_OK);
    _exit(check_result() ? 1 : 0);
}

static void fork_while_threads_free(void)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, NULL, 0, false);
        struct us_cache *c = fixture_cache(a, "test", 64, 0);
        pthread_t thread[2];

        atomic_store(&stop_workers, 0);
        for (unsigned i = 0; i < 2; i++)
            REQUIRE(pthread_create(&thread[i], NULL, churn, c) == 0);
        for (unsigned i = 0; i < 5; i++) {
            void *kept = us_cache_alloc(c);
            int status = -1;
            pid_t child = fork();

            REQUIRE(child >= 0);
            if (child == 0)
                use_in_child(a, c, kept);
            free_rcu(c, kept);
            REQUIRE(waitpid(child, &status, 0) == child);
            CHECK_EQ(status, 0);
        }
        atomic_store(&stop_workers, 1);
        for (unsigned i = 0; i < 2; i++)
            pthread_join(thread[i], NULL);
        us_allocator_rcu_barrier(a);
        CHECK_EQ(atomic_load(&a->rcu_pending), 0);
        fixture_close(a);
    }
}
/* A signal handler in the middle of another call: refused, nothing is lost, and what is due then
 * is done at the next look. */
static void a_nested_call_waits_for_nothing(void)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, NULL, 0, false);
        struct us_cache *c = fixture_cache(a, "test", 64, 0);
        void *first = us_cache_alloc(c), *second = us_cache_alloc(c);
        struct us_error e = {.status = US_OK};
        struct us_flight f;

        us_clock_set(a->machine, us_now(a->machine));
        CHECK_EQ(us_cache_free_rcu(c, first, NULL), US_OK);
        us_flight_enter(a->machine, &f);
        CHECK_EQ(us_cache_free_rcu(c, second, &e), US_EBUSY);
        CHECK(strstr(e.text, "signal handler") != NULL);
        us_allocator_rcu_barrier(a);
        us_cache_rcu_barrier(c);
        CHECK_EQ(atomic_load(&a->rcu_pending), 1);
        us_clock_set(a->machine, us_now(a->machine) + a->rcu_delay_ns);
        us_allocator_run_due(a);
        CHECK_EQ(atomic_load(&a->rcu_pending), 1);
        us_flight_leave(&f);
        us_allocator_run_due(a);
        CHECK_EQ(atomic_load(&a->rcu_pending), 0);
        CHECK_EQ(fixture_frees(c), 1);
        CHECK_EQ(us_cache_free_rcu(c, second, NULL), US_OK);
        fixture_close(a);
    }
}
#else /* the model */
/* Whatever a policy keeps for a node goes with its last CPU, and nothing comes there afterwards:
 * a full sheaf (of 12 for objects of 1024 bytes) goes past the barn. */
static void an_offline_nodes_objects_go_to_slabs(void)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, &fixture_two_nodes, 0, false);
        struct us_cache *c = fixture_cache(a, "test", 1024, 0);
        struct us_account account;
        void *object[12];

        REQUIRE(us_machine_on_cpu(a->machine, 2, NULL) >= 0);
        for (unsigned i = 0; i < 12; i++)
            object[i] = us_cache_alloc(c);
        for (unsigned i = 0; i < 12; i++)
            CHECK_EQ(us_cache_free_rcu(c, object[i], NULL), US_OK);
        CHECK_EQ(us_allocator_offline_cpu(a, 2, NULL), US_OK);
        CHECK_EQ(us_allocator_offline_cpu(a, 3, NULL), US_OK);
        us_cache_account(c, &account);
        CHECK_EQ(account.live_objects, 12);
        REQUIRE(us_machine_on_cpu(a->machine, 2, NULL) >= 0); /* a script may stand there still */
        us_allocator_rcu_barrier(a);
        us_cache_account(c, &account);
        CHECK_EQ(account.live_objects, 0);
        if (strcmp(policy, "sheaves") == 0)
            CHECK_EQ(account.queued_objects, 0);
        fixture_close(a);
    }
}
#endif

int main(void)
{
#ifndef US_MODEL
    alarm(200);
    RUN(threads_and_barriers);
    RUN(threads_and_barriers_with_debug);
#ifndef __SANITIZE_THREAD__ /* the reason is in test_fork.c */
    RUN(fork_while_threads_free);
#endif
    RUN(a_nested_call_waits_for_nothing);
#else
    RUN(an_offline_nodes_objects_go_to_slabs);
#endif
    return check_result();
}
