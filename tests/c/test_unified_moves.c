/* A thread that is moved to another node in the middle of a slow path of the Unified policy: what
 * it takes there is of that node, and is treated so. */
// machines: native
// flags: -DUS_TESTING
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include "fixture_cache.h"

#ifndef US_HAVE_RSEQ
int main(void)
{
    SKIP("no sequences are written for this architecture");
}
#else

static const unsigned ids[] = {0, 1};
static const struct us_topology two_nodes = {2, 2, 2, ids, ids}; /* of one CPU each */

static void move_to(unsigned cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof(set), &set) != 0)
        SKIP("two CPUs are needed that this process may run on");
}

static volatile int *armed;
static volatile sig_atomic_t left;

/* Every trap ends one try of the sequence; at the last the thread has moved. */
static void on_trap(int signal)
{
    (void)signal;
    if (--left > 0)
        return;
    *armed = 0;
    move_to(1);
}

static void move_at(unsigned sequence, int tries)
{
    armed = &us_inject[3 * sequence + US_SEQ_BEGUN];
    left = tries;
    *armed = -1;
}

static struct us_allocator *allocator;
static struct us_cache *cache;
static void *spare[2]; /* an object of each node */

static unsigned node_of(const void *object)
{
    return us_node_of(us_memory_range(allocator->memory), object);
}

static void flush(unsigned cpu)
{
    struct us_flight f;

    us_flight_enter(cache->machine, &f);
    cache->policy->flush_cpu(cache, &f, cpu, false);
    us_flight_leave(&f);
}

/* Both CPUs have a queue, with `n` objects of their node. The thread is on CPU 0 then. */
static void fill_queues(unsigned n)
{
    void *object[64];

    allocator = fixture_open("unified", &two_nodes, 0, false);
    cache = fixture_cache(allocator, "test", 64, 0);
    REQUIRE(us_tunable_set(cache, "cpu_queue_size", "5", NULL) == US_OK);
    for (unsigned cpu = 2; cpu-- > 0;) {
        move_to(cpu);
        for (unsigned i = 0; i <= n; i++)
            REQUIRE((object[i] = us_cache_alloc(cache)) != NULL && node_of(object[i]) == cpu);
        flush(cpu); /* what a refill brought beside them */
        spare[cpu] = object[n];
        for (unsigned i = 0; i < n; i++)
            us_cache_free(cache, object[i]);
    }
    if (cache->local.mode != US_MODE_RSEQ)
        SKIP(us_machine_mode_reason());
}

static void empty_hands(void)
{
    us_cache_free(cache, spare[0]);
    us_cache_free(cache, spare[1]);
}

static unsigned queued(unsigned cpu)
{
    return us_ring_size(us_local_ring(&cache->local, cpu));
}

/* The object that the slow path finds in the queue of the CPU where it is by then. */
static void an_object_of_this_node_is_of_this_node(void)
{
    void *object, *kept[3];

    fill_queues(3);
    for (unsigned i = 0; i < 3; i++)
        kept[i] = us_cache_alloc(cache); /* CPU 1 has objects at hand, CPU 0 has none */
    CHECK_EQ(queued(0), 0);
    CHECK_EQ(queued(1), 3);
    move_at(US_SEQ_TAKE_HOT, US_SEQ_TRIES + 1); /* the fast try gives up, the slow one moves */
    object = us_cache_alloc_node(cache, US_THISNODE, 0);
    CHECK_EQ(left, 0);
    CHECK_EQ(sched_getcpu(), 1);
    REQUIRE(object != NULL);
    CHECK_EQ(node_of(object), 0);
    us_cache_free(cache, object);
    us_cache_free_bulk(cache, 3, kept);
    empty_hands();
    fixture_close(allocator);
}

/* The batch that an overflow takes from there does not go to the shared queue of here. */
static void a_batch_of_another_node_stays_out_of_the_shared_queue(void)
{
    struct us_validation v;

    fill_queues(5);
    CHECK_EQ(queued(0), us_local_ring(&cache->local, 0)->capacity);
    move_at(US_SEQ_TAKE_OLDEST, 1);
    us_cache_free(cache, spare[0]);
    spare[0] = NULL;
    CHECK_EQ(left, 0);
    CHECK_EQ(sched_getcpu(), 1);
    REQUIRE(us_cache_validate(cache, &v, NULL) == US_OK);
    if (v.errors)
        fprintf(stderr, "%s\n", v.text);
    CHECK_EQ(v.errors, 0);
    us_validation_free(&v);
    empty_hands();
    fixture_close(allocator);
}

int main(void)
{
    REQUIRE(signal(SIGTRAP, on_trap) != SIG_ERR);
    RUN(an_object_of_this_node_is_of_this_node);
    RUN(a_batch_of_another_node_stays_out_of_the_shared_queue);
    return check_result();
}
#endif
