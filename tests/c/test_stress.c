// machines: both
/* Everything at once: more threads than CPUs allocate, free each other's objects, in bulk and in
 * signal handlers, while queues are resized, aged and shrunk, CPUs come and go, statistics read,
 * caches validated, made and destroyed, pages and metadata refused, and the process forks. At the
 * end the books balance, nothing is live and every page has gone back.
 *
 * Arguments: milliseconds of each scene, seed. On the modelled machine one thread does it all, on
 * one CPU after the other. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixture_cache.h"

enum { WORKERS = 5, NCACHES = 6, SLOTS = 96, BULK = 60, PATTERN = 48 };

static unsigned scene_ms; /* 300 for two policies, and never less than 80 */
static uint64_t first_seed = 1;

struct random {
    uint64_t state;
};

static unsigned draw(struct random *r, unsigned below)
{
    r->state = r->state * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(r->state >> 33) % below;
}

/* ---- objects ----------------------------------------------------------------------------------
 */

static struct us_allocator *allocator;
static struct us_cache *caches[NCACHES];
static _Atomic(void *) slot[NCACHES + 1][SLOTS]; /* the last row is of kmalloc */
static _Atomic uint64_t doubly_owned, unconstructed, off_node;
static const unsigned char pattern[] = {0xa5, 0x5a, 0x3c};

static bool has_pattern(const struct us_cache *c)
{
    return c && c->options.pattern_bytes > 0;
}

/* An object in use tells its own address: what two think theirs, one of them finds changed. */
static void mark(const struct us_cache *c, void *object)
{
    uint64_t *word = object;

    for (unsigned i = 0; has_pattern(c) && i < PATTERN; i++)
        if (((unsigned char *)object)[i] != pattern[i % sizeof(pattern)]) {
            atomic_fetch_add(&unconstructed, 1);
            break;
        }
    *word = ~(uint64_t)(uintptr_t)object;
}

static void unmark(const struct us_cache *c, void *object)
{
    uint64_t *word = object;

    if (*word != ~(uint64_t)(uintptr_t)object)
        atomic_fetch_add(&doubly_owned, 1);
    *word = 0;
    for (unsigned i = 0; has_pattern(c) && i < 8; i++)
        ((unsigned char *)object)[i] = pattern[i % sizeof(pattern)];
}

/* Into a slot; what was there is freed, most often as another thread's object. */
static void keep(unsigned row, unsigned at, void *object)
{
    void *old;

    if (object)
        mark(row < NCACHES ? caches[row] : NULL, object);
    old = atomic_exchange(&slot[row][at], object);
    if (!old)
        return;
    unmark(row < NCACHES ? caches[row] : NULL, old);
    if (row < NCACHES)
        us_cache_free(caches[row], old);
    else
        us_kfree(allocator, old);
}

static void one_object(struct random *r)
{
    const unsigned row = draw(r, NCACHES + 1), at = draw(r, SLOTS),
                   nodes = allocator->machine->nnodes;
    const int node = draw(r, 3) ? US_ANY_NODE : (int)draw(r, nodes);
    const unsigned flags = node >= 0 && draw(r, 2) ? US_THISNODE : 0;
    void *object = NULL;

    if (draw(r, 3) == 0)
        ; /* only the free */
    else if (row == NCACHES)
        object = us_kmalloc(allocator, 8 + draw(r, draw(r, 8) ? 600 : 20000), flags, node);
    else if (node < 0)
        object = us_cache_alloc(caches[row]);
    else
        object = us_cache_alloc_node(caches[row], flags, node);
    if (object && flags && us_node_of(us_memory_range(allocator->memory), object) != (unsigned)node)
        atomic_fetch_add(&off_node, 1);
    keep(row, at, object);
}

static void many_objects(struct random *r)
{
    struct us_cache *c = caches[draw(r, NCACHES)];
    void *object[BULK];
    size_t n = us_cache_alloc_bulk(c, 0, US_ANY_NODE, 1 + draw(r, BULK), object);

    for (size_t i = 0; i < n; i++)
        mark(c, object[i]);
    for (size_t i = 0; i < n; i++)
        unmark(c, object[i]);
    us_cache_free_bulk(c, n, object);
}

static void look(struct random *r)
{
    struct us_cache *c = caches[draw(r, NCACHES)];
    const struct us_tunable *t = &c->policy->tunables[draw(r, c->policy->ntunables)];
    static _Thread_local uint64_t values[200 * 128];
    int64_t value;

    if (us_stats_rows(c->policy, NULL, NULL, 0) * c->machine->ncpus <=
        sizeof(values) / sizeof(*values))
        us_cache_stats(c, false, values);
    CHECK_EQ(us_tunable_get(c, t->name, &value, NULL, NULL), US_OK);
}

static void step(struct random *r)
{
    const unsigned what = draw(r, 200);

    if (what == 0)
        look(r);
    else if (what < 12)
        many_objects(r);
    else
        one_object(r);
}

/* ---- disturbance ------------------------------------------------------------------------------
 */

/* Any tunable of the policy that a live cache takes, at one of its texts, at a limit, at its
 * default or in between. */
static void retune(struct random *r)
{
    const struct us_policy *p = allocator->policy;
    const struct us_tunable *t = p->ntunables ? &p->tunables[draw(r, p->ntunables)] : NULL;
    const struct us_choice *choice = t ? t->choices : NULL;
    int64_t most, value[4];
    char text[24];

    if (!t || (t->flags & (US_T_READONLY | US_T_CREATE)))
        return;
    most = t->max - t->min < 4000 ? t->max : t->min + 4000;
    value[0] = t->min;
    value[1] = most;
    value[2] = t->def;
    value[3] = t->min + (int64_t)draw(r, (unsigned)(most - t->min) + 1);
    snprintf(text, sizeof(text), "%lld", (long long)value[draw(r, 4)]);
    if (choice && draw(r, 2))
        for (unsigned n = draw(r, 3); n > 0 && choice[1].text; n--)
            choice++;
    else
        choice = NULL;
    /* Refused for want of memory, or because another tunable stands against it: both right. */
    (void)us_tunable_set(caches[draw(r, NCACHES)], t->name, choice ? choice->text : text, NULL);
}

/* Sizes that move objects about more than chance would. */
static void resize(struct random *r)
{
    static const char *const unified[][2] = {
        {"cpu_queue_size", "6"},    {"cpu_queue_size", "300"},
        {"shared_queue_size", "0"}, {"shared_queue_size", "900"},
        {"alien_queue_size", "0"},  {"alien_queue_size", "60"},
        {"batch_size", "4"},        {"queue_budget", "20000"},
        {"queue_budget", "0"},      {"expire", "-1"},
    };
    const char *const *pair = unified[draw(r, sizeof(unified) / sizeof(unified[0]))];

    if (strcmp(allocator->policy->name, "unified") == 0 && draw(r, 2))
        (void)us_tunable_set(caches[draw(r, NCACHES)], pair[0], pair[1], NULL);
    else
        retune(r);
}

/* One of the CPUs goes, or comes back; threads stay where they are. */
static void plug(struct random *r)
{
    const unsigned cpu = draw(r, allocator->machine->ncpus);

    if (!us_allocator_cpu_online(allocator, cpu))
        CHECK_EQ(us_allocator_online_cpu(allocator, cpu, NULL), US_OK);
    else /* refused for the last one */
        (void)us_allocator_offline_cpu(allocator, cpu, NULL);
}

static void check_cache(struct us_cache *c)
{
    struct us_validation v;
    struct us_account one;

    us_cache_account(c, &one);
    CHECK_EQ(one.reserved, one.live + one.queued + one.free_in_slabs + one.waste);
    if (us_cache_validate(c, &v, NULL) != US_OK)
        return;
    if (v.errors)
        fprintf(stderr, "cache %s: %s\n", c->name, v.text);
    CHECK_EQ(v.errors, 0);
    us_validation_free(&v);
}

static void another_cache(struct random *r)
{
    const struct us_cache_options o = {.name = "short-lived", .size = 8 + draw(r, 3000)};
    struct us_cache *c = us_cache_create(allocator, &o, NULL);
    void *object[BULK];
    size_t n;

    if (!c)
        return;
    n = us_cache_alloc_bulk(c, 0, US_ANY_NODE, BULK, object);
    if (n > 0 && draw(r, 2)) { /* with one left over */
        us_cache_free_bulk(c, n - 1, object);
        CHECK_EQ(us_cache_destroy(c, false, NULL), US_EBUSY);
        CHECK_EQ(us_cache_destroy(c, true, NULL), US_OK);
        return;
    }
    us_cache_free_bulk(c, n, object);
    CHECK_EQ(us_cache_destroy(c, false, NULL), US_OK);
}

static void fail_now_and_then(struct random *r)
{
    static const uint32_t rate[] = {0, 0, UINT32_MAX / 100, UINT32_MAX / 10, UINT32_MAX / 2};

    us_memory_fail(allocator->memory, US_FAIL_PAGES, rate[draw(r, 5)], 0);
    us_memory_fail(allocator->memory, US_FAIL_META, rate[draw(r, 5)], 0);
}

static void stop_failing(void)
{
    us_memory_fail(allocator->memory, US_FAIL_PAGES, 0, 0);
    us_memory_fail(allocator->memory, US_FAIL_META, 0, 0);
}

/* Under TSan a child may start no reaper; under ASan it may find the heap of libasan locked. */
#if !defined(US_MODEL) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
/* The child finds a copy in which nothing is half done. */
static void use_in_child(struct random *r)
{
    alarm(60);
    stop_failing();
    for (unsigned i = 0; i < 300; i++)
        step(r);
    for (unsigned i = 0; i < NCACHES; i++)
        check_cache(caches[i]);
    CHECK_EQ(us_allocator_destroy(allocator, true, NULL), US_OK);
    _exit(atomic_load(&check_failures) || atomic_load(&doubly_owned) ? 1 : 0);
}

static void fork_now(struct random *r)
{
    const unsigned long failures = atomic_load(&check_failures);
    pid_t child = fork();
    int status = -1;

    if (child < 0)
        return;
    if (child == 0)
        use_in_child(r);
    REQUIRE(waitpid(child, &status, 0) == child);
    if (failures == 0)
        CHECK_EQ(status, 0);
}
#else
static void fork_now(struct random *r)
{
    (void)r;
}
#endif

static void disturb(struct random *r)
{
    struct us_cache *c = caches[draw(r, NCACHES)];
    const int node = (int)draw(r, allocator->machine->nnodes + 1) - 1;
    struct us_memory_account memory;
    struct us_account total;
    struct us_snapshot snapshot;
    uint64_t address[4], fast;

    switch (draw(r, 20)) {
    case 0:
    case 1:
    case 2:
        resize(r);
        break;
    case 3:
        us_allocator_expire(allocator, node);
        break;
    case 4:
        us_cache_expire(c, node);
        break;
    case 5:
        us_cache_shrink(c);
        break;
    case 6:
        us_allocator_shrink(allocator);
        break;
    case 7:
        us_allocator_flush(allocator);
        break;
    case 8:
        check_cache(c);
        break;
    case 9:
        us_allocator_account(allocator, &total, &memory);
        CHECK_EQ(total.reserved, memory.reserved);
        break;
    case 10:
        CHECK(us_cache_live(c, address, 4) <= 1000000);
        if (us_cache_snapshot(c, &snapshot, NULL) == US_OK)
            us_snapshot_free(&snapshot);
        break;
    case 11:
        another_cache(r);
        break;
    case 12:
        fail_now_and_then(r);
        break;
    case 13:
        us_allocator_advance(allocator, 20000000);
        break;
    case 14:
        CHECK_EQ(us_allocator_reaper(allocator, draw(r, 2) ? 2000000 : 0, NULL), US_OK);
        break;
    case 15:
        CHECK(us_memory_check(allocator->memory, NULL));
        break;
    case 16:
        if (draw(r, 4) == 0)
            fork_now(r);
        break;
    case 17:
    case 18:
        plug(r);
        break;
    default:
        fast = fixture_stat(c, "alloc_fast");
        CHECK(fixture_allocs(c) >= fast);
    }
}

/* ---- scenes -----------------------------------------------------------------------------------
 */

static void open_scene(const char *policy, const struct us_topology *t, bool debug_f)
{
    static const struct {
        const char *name;
        size_t size;
        unsigned flags;
    } made[NCACHES - 1] = {{"small", 24, 0},
                           {"lines", 64, US_HWCACHE_ALIGN},
                           {"low", 200, US_LOWMEM},
                           {"medium", 700, 0},
                           {"large", 5000, 0}};
    const struct us_cache_options constructed = {.name = "constructed",
                                                 .size = PATTERN,
                                                 .pattern = pattern,
                                                 .pattern_bytes = sizeof(pattern)};

    allocator = fixture_open(policy, t, 24u << 20, debug_f);
    for (unsigned i = 0; i < NCACHES - 1; i++)
        caches[i] = fixture_cache(allocator, made[i].name, made[i].size, made[i].flags);
    caches[NCACHES - 1] = us_cache_create(allocator, &constructed, NULL);
    REQUIRE(caches[NCACHES - 1] != NULL);
    atomic_store(&doubly_owned, 0);
    atomic_store(&unconstructed, 0);
    atomic_store(&off_node, 0);
}

static void close_scene(void)
{
    struct us_memory_account memory;

    stop_failing();
    CHECK_EQ(us_allocator_reaper(allocator, 0, NULL), US_OK);
    for (unsigned row = 0; row <= NCACHES; row++)
        for (unsigned at = 0; at < SLOTS; at++)
            keep(row, at, NULL);
    CHECK_EQ(atomic_load(&doubly_owned), 0);
    CHECK_EQ(atomic_load(&unconstructed), 0);
    CHECK_EQ(atomic_load(&off_node), 0);
    us_allocator_shrink(allocator);
    fixture_balance(allocator);
    us_memory_account(allocator->memory, &memory);
    if (!CHECK_EQ(memory.reserved, 0))
        fixture_tell_slabs(allocator);
    CHECK_EQ(memory.resident, 0);
    fixture_close(allocator);
}

#ifdef US_MODEL

static void act(struct random *r)
{
    for (unsigned i = 0; i < 200 * scene_ms; i++) {
        if (i % 16 == 0)
            REQUIRE(us_machine_on_cpu(allocator->machine, (int)draw(r, allocator->machine->ncpus),
                                      NULL) >= 0);
        step(r);
        if (i % 100 == 0)
            disturb(r);
    }
}

#else

static _Atomic bool stop_workers;

/* A handler allocates and frees like everybody, in the middle of anything. */
static void on_signal(int number)
{
    static _Thread_local struct random r = {7};
    const unsigned row = draw(&r, NCACHES), at = draw(&r, SLOTS);

    (void)number;
    keep(row, at, draw(&r, 3) ? us_cache_alloc(caches[row]) : NULL);
}

struct worker {
    pthread_t thread;
    struct random random;
};

static void *work(void *context)
{
    struct worker *w = context;

    while (!atomic_load_explicit(&stop_workers, memory_order_relaxed))
        step(&w->random);
    return NULL;
}

/* Every now and then on another CPU, which a node may be the only one of. */
static void move(struct worker *w, struct random *r)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(draw(r, 2), &set);
    if (draw(r, 3) == 0)
        CPU_SET(0, &set), CPU_SET(1, &set);
    (void)pthread_setaffinity_np(w->thread, sizeof(set), &set);
}

static void act(struct random *r)
{
    const uint64_t end = us_clock_real() + scene_ms * 1000000ull;
    struct worker worker[WORKERS];

    atomic_store(&stop_workers, false);
    for (unsigned i = 0; i < WORKERS; i++) {
        worker[i].random.state = r->state + i + 1;
        REQUIRE(pthread_create(&worker[i].thread, NULL, work, &worker[i]) == 0);
    }
    while (us_clock_real() < end) {
        disturb(r);
        pthread_kill(worker[draw(r, WORKERS)].thread, SIGUSR1);
        move(&worker[draw(r, WORKERS)], r);
    }
    atomic_store(&stop_workers, true);
    for (unsigned i = 0; i < WORKERS; i++)
        REQUIRE(pthread_join(worker[i].thread, NULL) == 0);
}

#endif

static void scenes(const struct us_topology *t, bool debug_f)
{
    FOR_EACH_POLICY(policy)
    {
        struct random r = {first_seed};

        open_scene(policy, t, debug_f);
        act(&r);
        close_scene();
    }
}

static const unsigned ids[] = {0, 1};
static const struct us_topology two_nodes = {2, 2, 2, ids, ids}; /* of one CPU each */

static void on_one_node(void)
{
    scenes(NULL, false);
}
static void on_two_nodes(void)
{
    scenes(&two_nodes, false);
}
static void on_one_node_with_debug(void)
{
    scenes(NULL, true);
}
static void on_two_nodes_with_debug(void)
{
    scenes(&two_nodes, true);
}

int main(int argc, char **argv)
{
    unsigned policies = 0;

    while (us_policy_at(policies))
        policies++;
    scene_ms = 600 / policies > 80 ? 600 / policies : 80;
    if (argc > 1)
        scene_ms = (unsigned)strtoul(argv[1], NULL, 0);
    if (argc > 2)
        first_seed = strtoull(argv[2], NULL, 0);
    alarm(180 + 5 * policies * scene_ms / 1000);
#ifndef US_MODEL
    REQUIRE(signal(SIGUSR1, on_signal) != SIG_ERR);
#endif
    RUN(on_one_node);
    RUN(on_two_nodes);
    RUN(on_one_node_with_debug);
    RUN(on_two_nodes_with_debug);
    return check_result();
}
