/* Sleeping locks and byte locks: exclusion, counts, and the order of classes. */
// needs: machine
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "machine/flight.h"

static struct us_machine *machine;

static void a_try_gets_what_is_free(void)
{
    _Atomic uint8_t byte = 0;
    struct us_flight f;
    struct us_lock lock;

    us_lock_init(&lock, US_LOCK_NODE);
    us_flight_enter(machine, &f);
    CHECK(us_lock_try(&f, &lock));
    CHECK(!us_lock_try(&f, &lock));
    us_lock_drop(&f, &lock);
    CHECK(us_lock_take(&f, &lock));
    us_lock_drop(&f, &lock);
    CHECK(us_bytelock_try(&f, &byte));
    CHECK(!us_bytelock_try(&f, &byte));
    us_bytelock_drop(&f, &byte);
    CHECK(us_bytelock_take(&f, &byte));
    us_bytelock_drop(&f, &byte);
    us_flight_leave(&f);
}

/* Counts of 32 bits would begin anew within minutes of nothing else. */
static void counts_go_beyond_32_bits(void)
{
    struct us_cpu *cpu = &machine->cpu[us_cpu_now(machine)];
    const uint64_t most = UINT32_MAX, bytes = most << US_FLIGHT_BITS;
    uint64_t before, after, contended;
    _Atomic uint8_t byte = 0;
    struct us_flight f;
    struct us_lock lock;

    us_lock_init(&lock, US_LOCK_NODE);
    atomic_store(&lock.acquired, most);
    us_lock_totals(machine, US_LOCK_SLAB, &before, &contended);
    atomic_fetch_add(&cpu->in_flight, bytes);
    us_flight_enter(machine, &f);
    CHECK(us_lock_take(&f, &lock));
    us_lock_drop(&f, &lock);
    CHECK(us_bytelock_take(&f, &byte));
    us_bytelock_drop(&f, &byte);
    CHECK(us_cpu_flights(&machine->cpu[f.counted_cpu]) == 1);
    us_flight_leave(&f);
    CHECK_EQ(atomic_load(&lock.acquired), 1ull << 32);
    us_lock_totals(machine, US_LOCK_SLAB, &after, &contended);
    CHECK_EQ(after - before, 1ull << 32);
    atomic_fetch_sub(&cpu->in_flight, bytes);
}

static void what_was_taken_is_counted(void)
{
    uint64_t nodes, slabs, contended, before_nodes, before_slabs;
    _Atomic uint8_t byte = 0;
    struct us_flight f;
    struct us_lock lock;

    us_lock_totals(machine, US_LOCK_NODE, &before_nodes, &contended);
    us_lock_totals(machine, US_LOCK_SLAB, &before_slabs, &contended);
    us_lock_init(&lock, US_LOCK_NODE);
    us_flight_enter(machine, &f);
    for (int i = 0; i < 5; i++) {
        CHECK(us_lock_take(&f, &lock));
        us_lock_drop(&f, &lock);
    }
    for (int i = 0; i < 3; i++) {
        CHECK(us_bytelock_take(&f, &byte));
        us_bytelock_drop(&f, &byte);
    }
    us_flight_leave(&f);
    CHECK_EQ(atomic_load(&lock.acquired), 5);
    us_lock_retire(machine, &lock);
    us_lock_totals(machine, US_LOCK_NODE, &nodes, &contended);
    CHECK_EQ(nodes - before_nodes, 5);
    us_lock_totals(machine, US_LOCK_SLAB, &slabs, &contended);
    CHECK_EQ(slabs - before_slabs, 3);
}

static void without_a_flight_locks_work_as_well(void)
{
    struct us_lock lock;

    us_lock_init(&lock, US_LOCK_META);
    CHECK(us_lock_take(NULL, &lock));
    CHECK(!us_lock_try(NULL, &lock));
    us_lock_drop(NULL, &lock);
}

/* ---- between threads --------------------------------------------------------------------------
 */

#ifndef US_MODEL
enum { THREADS = 4, ROUNDS = 5000 };
static struct us_lock lock;
static _Atomic uint8_t byte_lock;
static uint64_t by_lock, by_byte; /* plain: TSan watches them */
static _Atomic uint64_t tried;

static void *counts(void *arg)
{
    struct us_flight f;

    (void)arg;
    for (int i = 0; i < ROUNDS; i++) {
        us_flight_enter(machine, &f);
        REQUIRE(us_lock_take(&f, &lock));
        if (by_lock++ % 512 == 0)
            sched_yield();
        us_lock_drop(&f, &lock);
        REQUIRE(us_bytelock_take(&f, &byte_lock));
        if (by_byte++ % 512 == 0)
            sched_yield();
        us_bytelock_drop(&f, &byte_lock);
        if (us_lock_try(&f, &lock)) {
            by_lock++;
            atomic_fetch_add(&tried, 1);
            us_lock_drop(&f, &lock);
        }
        us_flight_leave(&f);
    }
    return NULL;
}

static void one_thread_at_a_time_holds_a_lock(void)
{
    pthread_t thread[THREADS];
    uint64_t before, slabs, contended;

    us_lock_init(&lock, US_LOCK_NODE);
    us_lock_totals(machine, US_LOCK_SLAB, &before, &contended);
    for (int i = 0; i < THREADS; i++)
        REQUIRE(pthread_create(&thread[i], NULL, counts, NULL) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    CHECK_EQ(by_lock, THREADS * ROUNDS + atomic_load(&tried));
    CHECK_EQ(by_byte, THREADS * ROUNDS);
    CHECK_EQ(atomic_load(&lock.acquired), by_lock);
    CHECK(atomic_load(&lock.contended) <= by_lock);
    us_lock_totals(machine, US_LOCK_SLAB, &slabs, &contended);
    CHECK_EQ(slabs - before, by_byte);
    CHECK_EQ(atomic_load(&lock.word), 0);
}

static atomic_bool waits;

static void *takes_once(void *arg)
{
    atomic_store(&waits, true);
    REQUIRE(us_lock_take(NULL, arg));
    us_lock_drop(NULL, arg);
    return NULL;
}

static void who_had_to_wait_is_counted(void)
{
    pthread_t thread;

    us_lock_init(&lock, US_LOCK_NODE);
    REQUIRE(us_lock_take(NULL, &lock));
    REQUIRE(pthread_create(&thread, NULL, takes_once, &lock) == 0);
    while (atomic_load(&lock.word) != 2) /* asleep */
        sched_yield();
    us_lock_drop(NULL, &lock);
    pthread_join(thread, NULL);
    CHECK_EQ(atomic_load(&lock.contended), 1);
    CHECK_EQ(atomic_load(&lock.acquired), 2);
}
#endif

/* ---- the order of classes ---------------------------------------------------------------------
 */

#ifdef US_CHECK
static struct us_lock node, slab, other_node;

static void in_order(void)
{
    CHECK(us_lock_take(NULL, &slab));
    CHECK(us_lock_take(NULL, &node));
    us_lock_drop(NULL, &slab); /* dropped in any order */
    us_lock_drop(NULL, &node);
}
static void against_the_order(void)
{
    (void)!us_lock_take(NULL, &node);
    (void)!us_lock_take(NULL, &slab);
}
static void two_of_a_class(void)
{
    (void)!us_lock_take(NULL, &node);
    (void)!us_lock_take(NULL, &other_node);
}
static void not_held(void)
{
    us_lock_drop(NULL, &node);
}

static int end_of(void (*what)(void))
{
    int status;
    pid_t child = fork();

    if (child == 0) {
        REQUIRE(freopen("/dev/null", "w", stderr) != NULL);
        alarm(10);
        what();
        _exit(0);
    }
    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void waiting_against_the_order_ends_the_process(void)
{
    us_lock_init(&node, US_LOCK_NODE);
    us_lock_init(&other_node, US_LOCK_NODE);
    us_lock_init(&slab, US_LOCK_SLAB);
    in_order();
    CHECK_EQ(end_of(in_order), 0);
    CHECK_EQ(end_of(against_the_order), SIGABRT);
    CHECK_EQ(end_of(two_of_a_class), SIGABRT);
    CHECK_EQ(end_of(not_held), SIGABRT);
    CHECK(us_lock_take(NULL, &node));
    CHECK(us_lock_try(NULL, &slab)); /* a try cannot deadlock */
    CHECK(us_lock_try(NULL, &other_node));
    us_lock_drop(NULL, &other_node);
    us_lock_drop(NULL, &slab);
    us_lock_drop(NULL, &node);
}
#endif

int main(void)
{
    machine = us_machine_create(NULL, 0, 1, NULL);
    REQUIRE(machine != NULL);
    RUN(a_try_gets_what_is_free);
    RUN(what_was_taken_is_counted);
    RUN(counts_go_beyond_32_bits);
    RUN(without_a_flight_locks_work_as_well);
#ifndef US_MODEL
    RUN(one_thread_at_a_time_holds_a_lock);
    RUN(who_had_to_wait_is_counted);
#endif
#ifdef US_CHECK
    RUN(waiting_against_the_order_ends_the_process);
#endif
    us_machine_destroy(machine);
    return check_result();
}
