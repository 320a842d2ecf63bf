// machines: native
/* Exact reads, resizing, expiration and validate while threads allocate: nothing is lost, nothing
 * waits for ever. */
#include "fixture_cache.h"

#include <pthread.h>
#include <unistd.h>

#define THREADS 3
#define HELD    200

static _Atomic int stop_workers;
static pthread_mutex_t exchange_lock = PTHREAD_MUTEX_INITIALIZER;
static void *exchange[HELD];

struct worker {
    pthread_t thread;
    struct us_cache *cache;
    uint64_t allocs, frees, failed;
    unsigned seed;
};

/* Swaps an object with the pool that all threads share, so that most frees are of others' objects.
 */
static void *swap(void *object, unsigned slot)
{
    void *old;

    pthread_mutex_lock(&exchange_lock);
    old = exchange[slot];
    exchange[slot] = object;
    pthread_mutex_unlock(&exchange_lock);
    return old;
}

static void *work(void *context)
{
    struct worker *w = context;
    void *bulk[50];

    while (!atomic_load(&stop_workers)) {
        unsigned *object = us_cache_alloc(w->cache);

        w->seed = w->seed * 1103515245u + 12345u;
        w->allocs += object != NULL;
        w->failed += object == NULL;
        if (object)
            *object = w->seed;
        object = swap(object, w->seed / 65536 % HELD);
        if (object)
            us_cache_free(w->cache, object);
        w->frees += object != NULL;
        if (w->seed / 65536 % 64 == 0) {
            size_t n = us_cache_alloc_bulk(w->cache, 0, US_ANY_NODE, 50, bulk);

            us_cache_free_bulk(w->cache, n, bulk);
            w->allocs += n;
            w->frees += n;
        }
    }
    return NULL;
}

static void check_monotone(struct us_cache *c, uint64_t *before, uint64_t *now, size_t n)
{
    size_t i, back = 0;

    us_cache_stats(c, false, now);
    for (i = 0; i < n; i++)
        back += now[i] < before[i];
    CHECK_EQ(back, 0);
    memcpy(before, now, n * sizeof(*now));
}

static void disturb(struct us_cache *c, unsigned round)
{
    static const char *const sizes[] = {"30", "500", "8", "120"};
    struct us_allocator *a = us_cache_allocator(c);
    struct us_account account;
    struct us_validation v;

    us_cache_account(c, &account);
    CHECK_EQ(account.reserved,
             account.live + account.queued + account.free_in_slabs + account.waste);
    us_allocator_account(a, &account, NULL);
    if (strcmp(c->policy->name, "unified") == 0)
        CHECK_EQ(us_tunable_set(c, "cpu_queue_size", sizes[round % 4], NULL), US_OK);
    us_allocator_expire(a, US_ANY_NODE);
    us_cache_shrink(c);
    if (c->machine->ncpus > 1 && round % 2 == 0)
        CHECK_EQ(us_allocator_offline_cpu(a, round / 2 % 2, NULL), US_OK);
    else if (c->machine->ncpus > 1)
        CHECK_EQ(us_allocator_online_cpu(a, round / 2 % 2, NULL), US_OK);
    REQUIRE(us_cache_validate(c, &v, NULL) == US_OK);
    if (v.errors)
        fprintf(stderr, "%s\n", v.text);
    CHECK_EQ(v.errors, 0);
    us_validation_free(&v);
}

static void under_load(const char *policy, const struct us_topology *topology, bool debug_f)
{
    struct us_allocator *a = fixture_open(policy, topology, 64u << 20, debug_f);
    struct us_cache *c = fixture_cache(a, "test", 64, 0);
    const size_t rows = us_stats_rows(c->policy, NULL, NULL, 0), n = rows * c->machine->ncpus;
    uint64_t *before = calloc(n, sizeof(*before)), *now = calloc(n, sizeof(*now));
    uint64_t allocs = 0, frees = 0;
    struct worker w[THREADS];
    unsigned i, round;

    atomic_store(&stop_workers, 0);
    for (i = 0; i < THREADS; i++) {
        w[i] = (struct worker){.cache = c, .seed = i + 1};
        REQUIRE(pthread_create(&w[i].thread, NULL, work, &w[i]) == 0);
    }
    for (round = 0; round < 25; round++) {
        check_monotone(c, before, now, n);
        disturb(c, round);
        usleep(1000);
    }
    atomic_store(&stop_workers, 1);
    for (i = 0; i < THREADS; i++) {
        pthread_join(w[i].thread, NULL);
        allocs += w[i].allocs;
        frees += w[i].frees;
        CHECK_EQ(w[i].failed, 0);
    }
    CHECK_EQ(fixture_allocs(c), allocs);
    CHECK_EQ(fixture_frees(c), frees);
    for (i = 0; i < HELD; i++) {
        if (exchange[i])
            us_cache_free(c, exchange[i]);
        exchange[i] = NULL;
    }
    fixture_close(a);
    free(before);
    free(now);
}

static void one_node(void)
{
    FOR_EACH_POLICY(policy)
    under_load(policy, NULL, false);
}

/* Two nodes of one CPU each over whatever CPUs there are: alien paths for real. */
static void two_nodes(void)
{
    static const unsigned ids[] = {0, 1};
    static const struct us_topology two = {2, 2, 2, ids, ids};

    FOR_EACH_POLICY(policy)
    under_load(policy, &two, false);
}

static void with_debug(void)
{
    FOR_EACH_POLICY(policy)
    under_load(policy, &fixture_two_nodes, true);
}

int main(void)
{
    alarm(240);
    RUN(one_node);
    RUN(two_nodes);
    RUN(with_debug);
    return check_result();
}
