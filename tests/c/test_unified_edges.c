// machines: both
/* The Unified policy at its edges: the largest batches, memory that only other queues hold,
 * constructors that change the cache they construct for, little stack. */
#include "fixture_cache.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

static const unsigned one[] = {0, 0};
static const struct us_topology two_cpus = {2, 1, 1, one, one};

#ifdef US_MODEL
/* Objects that one CPU keeps are no reason for another to fail. */
static void what_another_cpu_keeps_is_found_before_failing(void)
{
    enum { PAGES = 64, MOST = 4 * PAGES };

    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, &two_cpus, PAGES * 4096, false);
        struct us_cache *c = fixture_cache(a, "test", 2048, 0);
        void *object[MOST];
        unsigned n = 0, freed = 0;

        if (strcmp(policy, "unified") == 0)
            REQUIRE(us_tunable_set(c, "cpu_queue_size", "1000", NULL) == US_OK);
        while (n < MOST && (object[n] = us_cache_alloc(c)) != NULL)
            n++;
        CHECK(n >= PAGES && n < MOST);
        for (unsigned i = 1; i < n; i += 2, freed++) /* no slab becomes empty */
            us_cache_free(c, object[i]);
        REQUIRE(us_machine_on_cpu(a->machine, 1, NULL) == 0);
        for (unsigned i = 1; i < n; i += 2)
            CHECK((object[i] = us_cache_alloc(c)) != NULL);
        CHECK_EQ(us_cache_alloc(c), NULL);
        for (unsigned i = 0; i < n; i++)
            us_cache_free(c, object[i]);
        fixture_close(a);
    }
}

/* The same over nodes: by name, and on whichever node there is something. */
static void what_another_node_keeps_is_found_before_failing(void)
{
    enum { PAGES = 128, MOST = 4 * PAGES };

    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, &fixture_two_nodes, PAGES * 4096, false);
        struct us_cache *c = fixture_cache(a, "test", 2048, 0);
        const struct us_range *r = us_memory_range(a->memory);
        void *object[MOST], *spare;
        unsigned n = 0;

        while (n < MOST && (object[n] = us_cache_alloc(c)) != NULL)
            n++;
        REQUIRE(n > 2 && n < MOST);
        CHECK_EQ(us_node_of(r, object[0]), 0);
        CHECK_EQ(us_node_of(r, object[n - 1]), 1); /* pages of node 0 were used up first */
        us_cache_free(c, object[n - 1]);
        CHECK_EQ(us_cache_alloc_node(c, US_THISNODE, 0), NULL);
        REQUIRE(us_machine_on_cpu(a->machine, 3, NULL) == 0);
        CHECK((spare = us_cache_alloc_node(c, US_THISNODE, 1)) != NULL);
        us_cache_free(c, spare);
        CHECK((spare = us_cache_alloc_node(c, 0, 0)) != NULL);
        us_cache_free(c, spare);
        REQUIRE(us_machine_on_cpu(a->machine, 0, NULL) == 3);
        CHECK((object[n - 1] = us_cache_alloc(c)) != NULL);
        for (unsigned i = 0; i < n; i++)
            us_cache_free(c, object[i]);
        fixture_close(a);
    }
}
#endif

/* batch_size may be as large as the queue, and that as large as its limit. */
static void a_batch_may_be_the_largest_queue(void)
{
    static const char *const shared[] = {"10000", "0"};
    enum { N = 45000 };
    void **object = calloc(N, sizeof(*object));

    REQUIRE(object != NULL);
    for (unsigned round = 0; round < 2; round++) {
        struct us_allocator *a = fixture_open("unified", &fixture_two_nodes, 0, false);
        struct us_cache *c = fixture_cache(a, "test", 64, 0);

        CHECK_EQ(us_tunable_set(c, "cpu_queue_size", "10000", NULL), US_OK);
        CHECK_EQ(us_tunable_set(c, "shared_queue_size", shared[round], NULL), US_OK);
        CHECK_EQ(us_tunable_set(c, "batch_size", "10000", NULL), US_OK);
        for (unsigned pass = 0; pass < 2; pass++) {
            for (unsigned i = 0; i < N; i++)
                REQUIRE((object[i] = us_cache_alloc_node(c, 0, i % 3 ? US_ANY_NODE : 1)) != NULL);
            for (unsigned i = 0; i < N; i++)
                us_cache_free(c, object[i]);
            us_allocator_expire(a, US_ANY_NODE);
            us_allocator_expire(a, US_ANY_NODE);
        }
        fixture_close(a);
    }
    free(object);
}

/* ---- constructors -----------------------------------------------------------------------------
 */

static struct us_cache *under_construction;
static unsigned constructed;

/* As a callable of the embedder may. */
static void resize_while_constructing(void *object, void *arg)
{
    static const char *const size[] = {"900", "0", "12"};

    (void)arg;
    memset(object, 1, 8);
    if (constructed++ % 16)
        return;
    CHECK_EQ(
        us_tunable_set(under_construction, "alien_queue_size", size[constructed / 16 % 3], NULL),
        US_OK);
    CHECK_EQ(
        us_tunable_set(under_construction, "cpu_queue_size", constructed % 32 ? "800" : "9", NULL),
        US_OK);
}

static void a_constructor_may_resize_the_queues(void)
{
    const struct us_cache_options o = {
        .name = "test",
        .size = 256,
        .constructor = resize_while_constructing,
        .constructor_suspends = true,
    };
    struct us_allocator *a = fixture_open("unified", &fixture_two_nodes, 0, false);
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

/* ---- little stack -----------------------------------------------------------------------------
 */

static struct us_cache *of_handler;
static volatile sig_atomic_t handled;

static void allocate_in_handler(int signal)
{
    enum { N = 300 };
    static void *object[N];
    unsigned n = 0;

    (void)signal;
    while (n < N && (object[n] = us_cache_alloc_node(of_handler, 0, (int)(n % 2))) != NULL)
        n++;
    handled = (int)n;
    while (n > 0)
        us_cache_free(of_handler, object[--n]);
}

/* A handler's stack is small, and what lies below it is somebody else's. */
static void a_handler_on_a_stack_of_its_own_allocates(void)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = 4 * page;
    const struct sigaction action = {.sa_handler = allocate_in_handler, .sa_flags = SA_ONSTACK};
    char *base =
        mmap(NULL, page + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const stack_t stack = {.ss_sp = base + page, .ss_size = bytes}, none = {.ss_flags = SS_DISABLE};
    const struct sigaction before = {.sa_handler = SIG_DFL};

    REQUIRE(base != MAP_FAILED && mprotect(base, page, PROT_NONE) == 0);
    REQUIRE(sigaltstack(&stack, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, &fixture_two_nodes, 0, false);

        of_handler = fixture_cache(a, "test", 64, 0);
        handled = 0;
        REQUIRE(raise(SIGUSR1) == 0);
        CHECK_EQ(handled, 300);
        fixture_close(a);
    }
    sigaction(SIGUSR1, &before, NULL);
    sigaltstack(&none, NULL);
    munmap(base, page + bytes);
}

int main(void)
{
    (void)two_cpus;
#ifdef US_MODEL
    RUN(what_another_cpu_keeps_is_found_before_failing);
    RUN(what_another_node_keeps_is_found_before_failing);
#endif
    RUN(a_batch_may_be_the_largest_queue);
    RUN(a_constructor_may_resize_the_queues);
    RUN(a_handler_on_a_stack_of_its_own_allocates);
    return check_result();
}
