// machines: native
/* Debug F with threads at work: an object passes between its stock and its user, and its bit
 * changes, in one frame. So whoever stops the allocator, exact readers and forks, finds each
 * object in exactly one place, whichever entry the threads were in. */
#include "fixture_cache.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 3
#define N       40

static _Atomic int stop_workers;

struct worker {
    pthread_t thread;
    struct us_allocator *allocator;
    struct us_cache *plain, *spread;
    _Atomic uint64_t rounds;
};

static void single(struct us_allocator *a, struct us_cache *c)
{
    const int node = (int)a->machine->nnodes - 1;
    void *object[N];
    unsigned i;

    for (i = 0; i < N; i++)
        object[i] = i % 2 ? us_cache_alloc(c) : us_cache_alloc_node(c, US_ZERO, node);
    for (i = 0; i < N; i++) {
        if (i % 3)
            us_cache_free(c, object[i]);
        else
            CHECK_EQ(us_cache_free_checked(c, object[i], NULL), US_OK);
    }
}

static void bulk(struct us_allocator *a, struct us_cache *c)
{
    const int node = (int)a->machine->nnodes - 1;
    void *object[N];

    CHECK_EQ(us_cache_alloc_bulk(c, 0, US_ANY_NODE, N, object), N);
    us_cache_free_bulk(c, N, object);
    CHECK_EQ(us_cache_alloc_bulk(c, 0, node, N, object), N);
    CHECK_EQ(us_cache_free_bulk_checked(c, N, object, NULL), US_OK);
}

/* A bulk free that is refused gives back the marks it has taken. */
static void refused(struct us_cache *c)
{
    void *object[N + 1];

    CHECK_EQ(us_cache_alloc_bulk(c, 0, US_ANY_NODE, N, object), N);
    object[N] = object[0];
    CHECK_EQ(us_cache_free_bulk_checked(c, N + 1, object, NULL), US_ECORRUPT);
    CHECK_EQ(us_cache_free_bulk_checked(c, N, object, NULL), US_OK);
}

static void general(struct us_allocator *a)
{
    void *small = us_kmalloc(a, 100, 0, US_ANY_NODE), *large = us_kmalloc(a, 100000, 0, 0);

    CHECK(small && large);
    us_kfree(a, large);
    CHECK_EQ(us_kfree_checked(a, small, NULL), US_OK);
    large = us_kmalloc(a, 100000, US_ZERO, US_ANY_NODE);
    CHECK_EQ(us_kfree_checked(a, large, NULL), US_OK);
}

static void *work(void *context)
{
    struct worker *w = context;

    while (!atomic_load(&stop_workers)) {
        single(w->allocator, w->plain);
        bulk(w->allocator, w->plain);
        refused(w->plain);
        single(w->allocator, w->spread);
        bulk(w->allocator, w->spread);
        general(w->allocator);
        w->rounds++;
    }
    return NULL;
}

/* One stop of the world: what is neither in a stock nor with a user is `unchecked`. */
static void check_once(struct us_cache *c)
{
    struct us_validation v;

    REQUIRE(us_cache_validate(c, &v, NULL) == US_OK);
    if (v.errors)
        fprintf(stderr, "cache %s: %s\n", c->name, v.text);
    CHECK_EQ(v.errors, 0);
    if (c->flags & US_DEBUG_F)
        CHECK_EQ(v.unchecked, 0);
    us_validation_free(&v);
}

/* Nothing else runs: counters, accounts and bits tell the same objects. */
static void check_still(struct us_allocator *a)
{
    struct us_account account;
    struct us_cache *c;

    for (c = a->caches; c; c = c->next) {
        const size_t live = us_cache_live(c, NULL, 0);

        check_once(c);
        us_cache_account(c, &account);
        CHECK_EQ(live, account.live_objects);
        CHECK_EQ(live, fixture_allocs(c) - fixture_frees(c));
    }
}

static void fork_and_check(struct us_allocator *a)
{
    const unsigned long before = atomic_load(&check_failures);
    int status = -1;
    pid_t child = fork();

    REQUIRE(child >= 0);
    if (child == 0) {
        alarm(30);
        check_still(a);
        _exit(atomic_load(&check_failures) != before);
    }
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK_EQ(status, 0);
}

/* Every thread has gone through all entries, more than once. */
static bool all_went_round(const struct worker *w)
{
    unsigned i;

    for (i = 0; i < THREADS; i++)
        if (atomic_load(&w[i].rounds) < 2)
            return false;
    return true;
}

static void with_workers(const struct us_topology *topology,
                         void (*look)(struct us_allocator *, struct us_cache *))
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, topology, 0, true);
        struct us_cache *plain = fixture_cache(a, "plain", 64, 0),
                        *spread = fixture_cache(a, "spread", 96, US_MEM_SPREAD);
        struct worker w[THREADS];
        unsigned i;

        atomic_store(&stop_workers, 0);
        for (i = 0; i < THREADS; i++) {
            w[i] = (struct worker){.allocator = a, .plain = plain, .spread = spread};
            REQUIRE(pthread_create(&w[i].thread, NULL, work, &w[i]) == 0);
        }
        for (i = 0; i < 60 || !all_went_round(w); i++) {
            look(a, i % 3 ? plain : spread);
            usleep(200);
        }
        atomic_store(&stop_workers, 1);
        for (i = 0; i < THREADS; i++)
            pthread_join(w[i].thread, NULL);
        check_still(a);
        fixture_close(a);
    }
}

static void look(struct us_allocator *a, struct us_cache *c)
{
    check_once(c);
    check_once(us_kmalloc_cache(a, 100));
    check_once(a->large);
}

static void look_from_a_child(struct us_allocator *a, struct us_cache *c)
{
    (void)c;
    fork_and_check(a);
}

static void exact_readers_find_each_object_in_one_place(void)
{
    with_workers(NULL, look);
    with_workers(&fixture_two_nodes, look);
}

static void so_does_a_forked_child(void)
{
    with_workers(NULL, look_from_a_child);
    with_workers(&fixture_two_nodes, look_from_a_child);
}

int main(void)
{
    alarm(120);
    RUN(exact_readers_find_each_object_in_one_place);
    RUN(so_does_a_forked_child);
    return check_result();
}
