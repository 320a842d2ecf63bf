// machines: native
/* Fork with threads at work, the reaper in parent and child, several allocators. */
#include "fixture_cache.h"

#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static _Atomic int stop_workers;

struct worker {
    pthread_t thread;
    struct us_cache *cache;
    uint64_t pairs;
};

static void *churn(void *context)
{
    struct worker *w = context;
    void *object[64];
    unsigned i;

    while (!atomic_load(&stop_workers)) {
        for (i = 0; i < 64; i++)
            object[i] = us_cache_alloc(w->cache);
        for (i = 0; i < 64; i++)
            us_cache_free(w->cache, object[i]);
        w->pairs += 64;
    }
    return NULL;
}

static int wait_for(pid_t child)
{
    int status = -1;

    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

/* What a child does with the copy: everything works, and everything adds up. */
static void use_in_child(struct us_allocator *a, struct us_cache *c, void *kept)
{
    void *object[100];
    struct us_validation v;

    alarm(30);
    CHECK_EQ(us_cache_alloc_bulk(c, 0, US_ANY_NODE, 100, object), 100);
    us_cache_free_bulk(c, 100, object);
    us_cache_free(c, kept);
    REQUIRE(us_cache_validate(c, &v, NULL) == US_OK);
    CHECK_EQ(v.errors, 0);
    us_validation_free(&v);
    if (us_tunable_find(c->policy, "min_partial", NULL))
        CHECK_EQ(us_tunable_set(c, "min_partial", "7", NULL), US_OK);
    us_allocator_shrink(a);
    /* Threads of the parent held objects that nobody can free here. */
    CHECK_EQ(us_allocator_destroy(a, true, NULL), US_OK);
    _exit(check_result() ? 1 : 0);
}

static void fork_while_threads_work(void)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, NULL, 0, false);
        struct us_cache *c = fixture_cache(a, "test", 64, 0);
        struct worker w[2];
        unsigned i;

        CHECK_EQ(us_allocator_reaper(a, 1000000, NULL), US_OK);
        atomic_store(&stop_workers, 0);
        for (i = 0; i < 2; i++) {
            w[i] = (struct worker){.cache = c};
            REQUIRE(pthread_create(&w[i].thread, NULL, churn, &w[i]) == 0);
        }
        for (i = 0; i < 10; i++) {
            void *kept = us_cache_alloc(c);
            pid_t child = fork();

            REQUIRE(child >= 0);
            if (child == 0)
                use_in_child(a, c, kept);
            us_cache_free(c, kept);
            CHECK_EQ(wait_for(child), 0);
        }
        atomic_store(&stop_workers, 1);
        for (i = 0; i < 2; i++)
            pthread_join(w[i].thread, NULL);
        CHECK_EQ(us_allocator_reaper(a, 0, NULL), US_OK); /* between two looks it would drain */
        fixture_close(a);
    }
}

enum { MOST = 60 };

/* One of every policy. */
static unsigned open_all(struct us_allocator **a, struct us_cache **c)
{
    unsigned n = 0;

    for (; n < MOST && us_policy_at(n); n++) {
        a[n] = fixture_open(us_policy_at(n)->name, NULL, 0, false);
        c[n] = fixture_cache(a[n], "test", 64, 0);
    }
    return n;
}

static void use(struct us_cache **c, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        us_cache_free(c[i], us_cache_alloc(c[i]));
}

static void several_allocators_and_grandchildren(void)
{
    struct us_allocator *a[MOST];
    struct us_cache *c[MOST];
    const unsigned n = open_all(a, c);
    pid_t child = fork();

    if (child == 0) {
        pid_t grandchild = fork();

        alarm(60);
        if (grandchild == 0) {
            use(c, n);
            for (unsigned i = n; i > 0; i--)
                fixture_close(a[i - 1]);
            _exit(check_result() ? 1 : 0);
        }
        CHECK_EQ(wait_for(grandchild), 0);
        use(c, n);
        for (unsigned i = 0; i < n; i++)
            fixture_close(a[i]);
        _exit(check_result() ? 1 : 0);
    }
    CHECK_EQ(wait_for(child), 0);
    use(c, n);
    for (unsigned i = 0; i < n; i++)
        fixture_close(a[i]);
}

/* The one who forks holds the config lock of each. */
static void many_allocators(void)
{
    struct us_allocator *a[MOST];
    pid_t child;

    for (unsigned i = 0; i < MOST; i++)
        a[i] = fixture_open(us_policy_at(i % 2)->name, NULL, 0, false);
    child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        for (unsigned i = 0; i < MOST; i++)
            us_kfree(a[i], us_kmalloc(a[i], 100, 0, US_ANY_NODE));
        _exit(check_result() ? 1 : 0);
    }
    CHECK_EQ(wait_for(child), 0);
    for (unsigned i = 0; i < MOST; i++)
        fixture_close(a[i]);
}

static uint64_t queued(struct us_cache *c)
{
    struct us_account account;

    us_cache_account(c, &account);
    return account.queued_objects;
}

/* Waits until the reaper has drained the queues; false after ten seconds. */
static bool drained(struct us_cache *c)
{
    unsigned i;

    for (i = 0; i < 1000 && queued(c); i++)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    return queued(c) == 0;
}

static void fill(struct us_cache *c)
{
    void *object[100];

    CHECK_EQ(us_cache_alloc_bulk(c, 0, US_ANY_NODE, 100, object), 100);
    us_cache_free_bulk(c, 100, object);
}

static void the_reaper_runs_in_parent_and_child(void)
{
    struct us_allocator *a = fixture_open("unified", NULL, 0, false);
    struct us_cache *c = fixture_cache(a, "test", 64, 0);
    pid_t child;

    CHECK_EQ(us_allocator_reaper(a, 2000000, NULL), US_OK);
    fill(c);
    CHECK(drained(c));
    child = fork();
    if (child == 0) {
        alarm(30);
        fill(c);
        CHECK(drained(c));
        CHECK_EQ(us_allocator_reaper(a, 0, NULL), US_OK);
        fixture_close(a);
        _exit(check_result() ? 1 : 0);
    }
    CHECK_EQ(wait_for(child), 0);
    fill(c);
    CHECK(drained(c));
    CHECK_EQ(us_allocator_reaper(a, 5000000, NULL), US_OK); /* another period */
    CHECK_EQ(us_allocator_destroy(a, false, NULL), US_OK);  /* stops it */
}

int main(void)
{
#ifdef __SANITIZE_THREAD__
    SKIP("ThreadSanitizer does not let the child of a threaded process start threads");
#endif
    alarm(120);
    RUN(fork_while_threads_work);
    RUN(several_allocators_and_grandchildren);
    RUN(many_allocators);
    RUN(the_reaper_runs_in_parent_and_child);
    return check_result();
}
