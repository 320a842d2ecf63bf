/* Slow paths in flight and the gate: who waits for whom, who never waits, and what a fork leaves.
 */
// needs: machine
// machines: native
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixture_local.h"
#include "machine/native/slot.h"

static struct us_machine *machine;

static unsigned flights_of(struct us_machine *m)
{
    unsigned n = 0;

    for (unsigned cpu = 0; cpu < m->ncpus; cpu++)
        n += us_cpu_flights(&m->cpu[cpu]);
    return n;
}

static unsigned flights(void)
{
    return flights_of(machine);
}

static void flights_are_counted_and_nest(void)
{
    struct us_flight outer, inner;

    CHECK_EQ(us_flight_current(), NULL);
    us_flight_enter(machine, &outer);
    CHECK_EQ(us_flight_current(), &outer);
    CHECK_EQ(flights(), 1);
    CHECK(!outer.nested);
    us_flight_enter(machine, &inner);
    CHECK(inner.nested);
    CHECK_EQ(flights(), 1);
    us_flight_leave(&inner);
    us_flight_suspend(&outer);
    CHECK_EQ(flights(), 0);
    us_flight_enter(machine, &inner);
    CHECK(!inner.nested); /* what a suspended slow path calls is a slow path of its own */
    us_flight_leave(&inner);
    us_flight_resume(&outer);
    CHECK_EQ(flights(), 1);
    us_flight_leave(&outer);
    CHECK_EQ(flights(), 0);
    CHECK_EQ(us_flight_current(), NULL);
}

/* ---- frames -----------------------------------------------------------------------------------
 */

/* Slow paths inside a frame are ordinary ones, but for the count, which is the frame's. */
static void a_frame_counts_for_the_flights_inside(void)
{
    struct us_flight frame, again, f;

    us_frame_enter(machine, &frame);
    CHECK_EQ(us_flight_current(), NULL);
    CHECK_EQ(flights(), 1);
    for (int i = 0; i < 2; i++) {
        us_flight_enter(machine, &f);
        CHECK_EQ(us_flight_current(), &f);
        CHECK(!f.nested);
        CHECK_EQ(flights(), 1);
        us_flight_leave(&f);
        CHECK_EQ(us_flight_current(), NULL);
        CHECK_EQ(flights(), 1);
    }
    us_frame_enter(machine, &again);
    CHECK_EQ(flights(), 1);
    us_flight_enter(machine, &f);
    CHECK(!f.nested);
    us_flight_leave(&f);
    us_frame_leave(&again);
    CHECK_EQ(flights(), 1);
    us_frame_leave(&frame);
    CHECK_EQ(flights(), 0);
}

static void a_frame_inside_a_slow_path_changes_nothing(void)
{
    struct us_flight frame, outer, f;

    us_flight_enter(machine, &outer);
    us_frame_enter(machine, &frame);
    for (int i = 0; i < 2; i++) {
        us_flight_enter(machine, &f);
        CHECK(f.nested);
        CHECK_EQ(flights(), 1);
        us_flight_leave(&f);
    }
    us_frame_leave(&frame);
    CHECK_EQ(us_flight_current(), &outer);
    CHECK_EQ(flights(), 1);
    us_flight_leave(&outer);
    CHECK_EQ(flights(), 0);
}

/* The embedder's call may wait for who waits at the gate: the frame does not hold the gate open. */
static void a_suspended_flight_leaves_its_frame(void)
{
    struct us_flight frame, f, g, gate;

    us_frame_enter(machine, &frame);
    us_flight_enter(machine, &f);
    us_flight_suspend(&f);
    CHECK_EQ(flights(), 0);
    us_gate_shut(machine, &gate);
    us_gate_open(&gate);
    us_flight_enter(machine, &g);
    CHECK(!g.nested);
    CHECK_EQ(flights(), 1);
    us_flight_leave(&g);
    us_flight_resume(&f);
    CHECK_EQ(us_flight_current(), &f);
    CHECK(!f.nested);
    CHECK_EQ(flights(), 1);
    us_flight_leave(&f);
    CHECK_EQ(flights(), 1);
    us_flight_enter(machine, &g);
    CHECK(!g.nested);
    CHECK_EQ(flights(), 1);
    us_flight_leave(&g);
    us_frame_leave(&frame);
    CHECK_EQ(flights(), 0);
}

/* Its gate could be shut by who waits for this frame, a fork: there must be no waiting. */
static void another_machine_inside_a_frame_is_nested(void)
{
    struct us_machine *second = machine_of(1, 1);
    struct us_flight frame, other, f;

    us_frame_enter(machine, &frame);
    us_flight_enter(second, &f);
    CHECK(f.nested);
    us_flight_leave(&f);
    us_frame_enter(second, &other);
    for (int i = 0; i < 2; i++) {
        us_flight_enter(second, &f);
        CHECK(f.nested);
        us_flight_leave(&f);
        CHECK_EQ(flights_of(second), 1); /* who shuts that gate waits for both slow paths */
    }
    us_frame_leave(&other);
    CHECK_EQ(flights_of(second), 0);
    us_flight_enter(machine, &f);
    CHECK(!f.nested);
    us_flight_leave(&f);
    us_frame_leave(&frame);
    CHECK_EQ(flights(), 0);
    us_flight_enter(second, &f);
    CHECK(!f.nested);
    us_flight_leave(&f);
    us_machine_destroy(second);
}

/* ---- the gate ---------------------------------------------------------------------------------
 */

/* Inside the gate nobody else may be between enter and leave. */
static atomic_int inside;
static atomic_bool alone, done;
static _Atomic uint64_t entered, shut;

static void *flies(void *arg)
{
    struct us_flight f;

    (void)arg;
    while (!atomic_load(&done)) {
        us_flight_enter(machine, &f);
        REQUIRE(!atomic_load(&alone));
        atomic_fetch_add(&inside, 1);
        if (atomic_fetch_add(&entered, 1) % 16 == 0)
            sched_yield();
        atomic_fetch_sub(&inside, 1);
        REQUIRE(!atomic_load(&alone));
        us_flight_leave(&f);
        if (atomic_load(&entered) % 64 == 0)
            sched_yield();
    }
    return NULL;
}

/* Two slow paths that nobody may come between. */
static void *flies_in_frames(void *arg)
{
    struct us_flight frame, f;

    (void)arg;
    while (!atomic_load(&done)) {
        us_frame_enter(machine, &frame);
        REQUIRE(!atomic_load(&alone));
        atomic_fetch_add(&inside, 1);
        for (int i = 0; i < 2; i++) {
            us_flight_enter(machine, &f);
            REQUIRE(!f.nested);
            us_flight_leave(&f);
            if (atomic_fetch_add(&entered, 1) % 16 == 0)
                sched_yield();
            REQUIRE(!atomic_load(&alone));
        }
        atomic_fetch_sub(&inside, 1);
        us_frame_leave(&frame);
        if (atomic_load(&entered) % 64 == 0)
            sched_yield();
    }
    return NULL;
}

static void *shuts(void *arg)
{
    struct us_flight f;

    for (int i = 0; i < 300; i++) {
        us_gate_shut(machine, &f);
        REQUIRE(!atomic_exchange(&alone, true)); /* the other one waits for its turn */
        REQUIRE(atomic_load(&inside) == 0);
        if (i % 4 == 0)
            sched_yield();
        atomic_fetch_add(&shut, 1);
        atomic_store(&alone, false);
        us_gate_open(&f);
        sched_yield();
    }
    return arg;
}

static void who_shuts_the_gate_is_alone(void)
{
    pthread_t flier[4], shutter[2];

    for (int i = 0; i < 4; i++)
        REQUIRE(pthread_create(&flier[i], NULL, i % 2 ? flies : flies_in_frames, NULL) == 0);
    for (int i = 0; i < 2; i++)
        REQUIRE(pthread_create(&shutter[i], NULL, shuts, NULL) == 0);
    for (int i = 0; i < 2; i++)
        pthread_join(shutter[i], NULL);
    atomic_store(&done, true);
    for (int i = 0; i < 4; i++)
        pthread_join(flier[i], NULL);
    CHECK_EQ(atomic_load(&shut), 600);
    CHECK(atomic_load(&entered) > 0);
    CHECK_EQ(flights(), 0);
    CHECK_EQ(atomic_load(&machine->gate), 0);
}

static void who_shut_it_takes_locks_and_others_gates(void)
{
    struct us_machine *second = machine_of(1, 1);
    struct us_flight f, g;
    struct us_lock lock;

    us_lock_init(&lock, US_LOCK_NODE);
    us_gate_shut(machine, &f);
    us_gate_shut(second, &g);
    CHECK(us_lock_take(&f, &lock));
    us_lock_drop(&f, &lock);
    CHECK(us_lock_take(&g, &lock));
    us_lock_drop(&g, &lock);
    us_gate_open(&g);
    us_gate_open(&f);
    us_machine_destroy(second);
}

/* ---- signal handlers --------------------------------------------------------------------------
 */

static struct us_lock busy, idle;
static volatile int handled, was_nested, got_busy, got_idle;

static void on_signal(int signal)
{
    struct us_flight f;

    (void)signal;
    us_flight_enter(machine, &f);
    was_nested = f.nested;
    got_busy = us_lock_take(&f, &busy);
    got_idle = us_lock_take(&f, &idle);
    if (got_busy)
        us_lock_drop(&f, &busy);
    if (got_idle)
        us_lock_drop(&f, &idle);
    us_flight_leave(&f);
    handled++;
}

static void a_handler_inside_a_slow_path_only_tries(void)
{
    struct us_flight f;

    us_lock_init(&busy, US_LOCK_NODE);
    us_lock_init(&idle, US_LOCK_PAGES);
    REQUIRE(signal(SIGUSR1, on_signal) != SIG_ERR);
    us_flight_enter(machine, &f);
    REQUIRE(us_lock_take(&f, &busy));
    raise(SIGUSR1);
    CHECK_EQ(handled, 1);
    CHECK(was_nested);
    CHECK(!got_busy);
    CHECK(got_idle);
    us_lock_drop(&f, &busy);
    us_flight_leave(&f);
    raise(SIGUSR1);
    CHECK(!was_nested);
    CHECK(got_busy && got_idle);
}

/* Who works alone may work without locks, so the handler gets none. */
static void a_handler_behind_a_shut_gate_gets_nothing(void)
{
    _Atomic uint8_t byte = 0;
    struct us_flight f, nested;

    us_gate_shut(machine, &f);
    raise(SIGUSR1);
    CHECK(was_nested);
    CHECK(!got_busy && !got_idle);
    us_flight_enter(machine, &nested);
    CHECK(!us_bytelock_take(&nested, &byte));
    us_flight_leave(&nested);
    us_gate_open(&f);
    raise(SIGUSR1);
    CHECK(got_busy && got_idle);
}

static void *holds_the_gate(void *arg)
{
    struct us_flight f;

    us_gate_shut(machine, &f);
    atomic_store((atomic_bool *)arg, true);
    usleep(20000);
    atomic_store(&alone, false);
    us_gate_open(&f);
    return NULL;
}

/* Outside of slow paths the handler is an ordinary caller: it waits, holding nothing. */
static void a_handler_at_a_shut_gate_waits(void)
{
    atomic_bool is_shut = false;
    pthread_t thread;

    atomic_store(&alone, true);
    REQUIRE(pthread_create(&thread, NULL, holds_the_gate, &is_shut) == 0);
    while (!atomic_load(&is_shut))
        sched_yield();
    raise(SIGUSR1);
    CHECK(!atomic_load(&alone));
    CHECK(got_busy && got_idle);
    pthread_join(thread, NULL);
}

/* What a nested flight interrupted keeps nobody waiting at the gate, so it does that itself. */
static atomic_bool works_alone;

static void *works_behind_the_gate(void *arg)
{
    struct us_flight f;

    (void)arg;
    us_gate_shut(machine, &f);
    atomic_store(&works_alone, true);
    us_gate_open(&f);
    return NULL;
}

static void check_it_is_waited_for(void)
{
    struct us_lock taken;
    struct us_flight f;
    pthread_t thread;

    us_lock_init(&taken, US_LOCK_NODE);
    us_flight_enter(machine, &f);
    CHECK(f.nested);
    REQUIRE(us_lock_take(&f, &taken));
    CHECK_EQ(flights(), 1);
    atomic_store(&works_alone, false);
    REQUIRE(pthread_create(&thread, NULL, works_behind_the_gate, NULL) == 0);
    while (atomic_load(&machine->gate) == 0)
        sched_yield();
    usleep(20000);
    CHECK(!atomic_load(&works_alone));
    CHECK(!us_lock_try(&f, &idle)); /* the gate is shut: nothing more is begun */
    us_lock_drop(&f, &taken);
    us_flight_leave(&f);
    pthread_join(thread, NULL);
    CHECK(atomic_load(&works_alone));
    CHECK_EQ(flights(), 0);
}

static void a_nested_flight_that_interrupted_a_slot_is_waited_for(void)
{
    REQUIRE(us_slot_try(machine, 0));
    check_it_is_waited_for();
    us_slot_leave(machine, 0);
}

static void a_nested_flight_inside_another_machine_s_is_waited_for(void)
{
    struct us_machine *other = machine_of(1, 1);
    struct us_flight f;

    us_flight_enter(other, &f);
    check_it_is_waited_for();
    us_flight_leave(&f);
    us_machine_destroy(other);
}

/* A thread that waits at the gate is not in flight; a handler that finds it there counts itself. */
static atomic_int found_waiting, uncounted;

static void on_signal_at_the_gate(int signal)
{
    struct us_flight f;

    (void)signal;
    if (us_flight_current() == NULL)
        return; /* not there yet */
    us_flight_enter(machine, &f);
    for (int i = 0; i < 100; i++)
        atomic_fetch_add(&uncounted, flights() == 0);
    us_flight_leave(&f);
    atomic_fetch_add(&found_waiting, 1);
}

static void *flies_once(void *arg)
{
    struct us_flight f;

    us_flight_enter(machine, &f);
    us_flight_leave(&f);
    return arg;
}

static void *shuts_once(void *arg)
{
    struct us_flight f;

    us_gate_shut(machine, &f);
    us_gate_open(&f);
    return arg;
}

static void a_handler_counts_itself_where_its_thread_waits(void)
{
    void *(*const waits[])(void *) = {flies_once, shuts_once};
    struct us_flight f;
    pthread_t thread;

    REQUIRE(signal(SIGUSR2, on_signal_at_the_gate) != SIG_ERR);
    for (int i = 0; i < 2; i++) {
        us_gate_shut(machine, &f);
        atomic_store(&found_waiting, 0);
        REQUIRE(pthread_create(&thread, NULL, waits[i], NULL) == 0);
        while (atomic_load(&found_waiting) < 20) {
            REQUIRE(pthread_kill(thread, SIGUSR2) == 0);
            usleep(100);
        }
        us_gate_open(&f);
        pthread_join(thread, NULL);
        CHECK_EQ(atomic_load(&uncounted), 0);
        CHECK_EQ(flights(), 0);
    }
}

/* Between the slow paths of a frame the thread holds no lock, so a handler may wait for one; but
 * not at a gate that the frame itself keeps from shutting. */
static void a_handler_inside_a_frame_waits_for_locks_alone(void)
{
    struct us_flight frame, f;
    pthread_t thread;

    us_frame_enter(machine, &frame);
    REQUIRE(pthread_create(&thread, NULL, works_behind_the_gate, NULL) == 0);
    while (!atomic_load(&machine->gate))
        sched_yield();
    handled = 0;
    raise(SIGUSR1);
    CHECK_EQ(handled, 1);
    CHECK(!was_nested);
    CHECK(got_busy && got_idle);
    us_flight_enter(machine, &f);
    raise(SIGUSR1);
    CHECK(was_nested);
    CHECK(!got_busy && !got_idle); /* the gate is as good as shut */
    us_flight_leave(&f);
    raise(SIGUSR1);
    CHECK_EQ(handled, 3);
    CHECK(!was_nested);
    us_frame_leave(&frame);
    pthread_join(thread, NULL);
    CHECK_EQ(flights(), 0);
}

static _Atomic unsigned came;

static void on_any_step(int signal)
{
    struct us_flight frame, f;

    (void)signal;
    us_frame_enter(machine, &frame);
    for (int i = 0; i < 2; i++) {
        us_flight_enter(machine, &f);
        if (us_lock_take(&f, &idle)) {
            for (int j = 0; j < 20; j++)
                REQUIRE(!atomic_load(&alone));
            us_lock_drop(&f, &idle);
        }
        us_flight_leave(&f);
    }
    us_frame_leave(&frame);
    atomic_fetch_add(&came, 1);
}

/* Nobody waits for himself, wherever between two instructions a handler comes. */
static void a_handler_may_come_at_any_step_of_a_frame(void)
{
    pthread_t flier, shutter;
    unsigned before;

    REQUIRE(signal(SIGUSR2, on_any_step) != SIG_ERR);
    atomic_store(&done, false);
    atomic_store(&alone, false);
    REQUIRE(pthread_create(&flier, NULL, flies_in_frames, NULL) == 0);
    REQUIRE(pthread_create(&shutter, NULL, shuts, NULL) == 0);
    for (int i = 0; i < 2000; i++) {
        before = atomic_load(&came);
        REQUIRE(pthread_kill(flier, SIGUSR2) == 0);
        while (atomic_load(&came) == before)
            sched_yield();
    }
    pthread_join(shutter, NULL);
    atomic_store(&done, true);
    pthread_join(flier, NULL);
    CHECK_EQ(atomic_load(&came), 2000);
    CHECK_EQ(flights(), 0);
}

/* ---- what must not be tried -------------------------------------------------------------------
 */

static void shut_inside_a_slow_path(void)
{
    struct us_flight f, g;

    us_flight_enter(machine, &f);
    us_gate_shut(machine, &g);
}
static void shut_inside_a_frame(void)
{
    struct us_flight f, g;

    us_frame_enter(machine, &f);
    us_gate_shut(machine, &g);
}
static void leave_the_frame_first(void)
{
    struct us_flight frame, f;

    us_frame_enter(machine, &frame);
    us_flight_enter(machine, &f);
    us_frame_leave(&frame);
}
static void shut_twice(void)
{
    struct us_flight f, g;

    us_gate_shut(machine, &f);
    us_gate_shut(machine, &g);
}
static void leave_the_outer_first(void)
{
    struct us_flight f, g;

    us_flight_enter(machine, &f);
    us_flight_enter(machine, &g);
    us_flight_leave(&f);
}

/* The child says why on its standard error, and is ended by abort. */
static void check_ends(void (*what)(void), const char *message)
{
    char text[512] = "";
    int status, ends[2];
    size_t length = 0;
    ssize_t n;
    pid_t child;

    REQUIRE(pipe(ends) == 0);
    child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        alarm(10); /* a deadlock is the wrong end */
        what();
        _exit(0);
    }
    close(ends[1]);
    while ((n = read(ends[0], text + length, sizeof text - 1 - length)) > 0)
        length += (size_t)n;
    close(ends[0]);
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    CHECK(strstr(text, message) != NULL);
}

static void waiting_for_oneself_ends_with_a_message(void)
{
    check_ends(shut_inside_a_slow_path, "inside a slow path");
    check_ends(shut_inside_a_frame, "inside a slow path");
    check_ends(leave_the_frame_first, "inside it goes on");
    check_ends(shut_twice, "by the thread that shut it already");
    check_ends(leave_the_outer_first, "innermost");
}

/* ---- fork -------------------------------------------------------------------------------------
 */

static struct us_local local;

/* Fast paths and slow paths without end, each thread with one object or with none: a pop may miss
 * what was just pushed, on another CPU or because the slot is busy. */
static void *never_rests(void *arg)
{
    void *object = arg;
    struct us_flight f;
    bool has = true;
    unsigned cpu;

    while (!atomic_load(&done)) {
        if (has)
            has = !us_fast_push(&local, local.mode, object);
        if (!has)
            has = us_fast_pop(&local, local.mode, &object);
        us_flight_enter(machine, &f);
        if (has)
            has = !us_local_push(&local, &f, object, &cpu);
        if (!has)
            has = us_local_pop(&local, &f, &object, &cpu);
        us_flight_leave(&f);
    }
    return NULL;
}

/* Both sides go on: everything that other threads had counted or held is gone in the child. */
static int works_again(void)
{
    struct us_flight f;
    void *region, *object = (void *)(uintptr_t)node_base(0), *out;
    int ok = 1;

    us_gate_shut(machine, &f); /* nobody is left in flight */
    us_gate_open(&f);
    us_flight_enter(machine, &f);
    for (unsigned cpu = 0; cpu < machine->ncpus; cpu++) {
        ok &= us_local_close(&local, &f, cpu, false, &region);
        us_local_open(&local, &f, cpu);
    }
    us_flight_leave(&f);
    for (int i = 0; i < 1000; i++) /* not every try, for the CPU may change in between */
        if (us_fast_push(&local, local.mode, object) && us_fast_pop(&local, local.mode, &out))
            return ok;
    return 0;
}

static void a_fork_among_threads_leaves_both_sides_at_work(void)
{
    struct us_local *all[] = {&local};
    pthread_t thread[3];

    atomic_store(&done, false);
    make_local(&local, machine, machine->mode, US_REGION_RING, 0, 16, true);
    for (unsigned i = 0; i < 3; i++)
        REQUIRE(pthread_create(&thread[i], NULL, never_rests,
                               (void *)(uintptr_t)(node_base(0) + 16 * i)) == 0);
    for (int i = 0; i < 20; i++) {
        struct us_flight f;
        int status;
        pid_t child;

        us_gate_shut(machine, &f);
        us_local_close_all(all, 1, machine);
        child = fork();
        if (child == 0) {
            alarm(10);
            us_gate_after_fork_child(machine);
        }
        us_local_open_all(all, 1, machine);
        us_gate_open(&f);
        if (child == 0)
            _exit(works_again() ? 0 : 1);
        REQUIRE(child > 0);
        REQUIRE(waitpid(child, &status, 0) == child);
        CHECK_EQ(status, 0);
        usleep(1000);
    }
    atomic_store(&done, true);
    for (int i = 0; i < 3; i++)
        pthread_join(thread[i], NULL);
    CHECK(works_again());
    drop_local(&local);
}

int main(void)
{
    alarm(120);
    machine = machine_of(1, 1);
    printf("%s\n", us_machine_mode_reason());
    RUN(flights_are_counted_and_nest);
    RUN(a_frame_counts_for_the_flights_inside);
    RUN(a_frame_inside_a_slow_path_changes_nothing);
    RUN(a_suspended_flight_leaves_its_frame);
    RUN(another_machine_inside_a_frame_is_nested);
    RUN(who_shuts_the_gate_is_alone);
    RUN(who_shut_it_takes_locks_and_others_gates);
    RUN(a_handler_inside_a_slow_path_only_tries);
    RUN(a_handler_behind_a_shut_gate_gets_nothing);
    RUN(a_handler_at_a_shut_gate_waits);
    RUN(a_nested_flight_that_interrupted_a_slot_is_waited_for);
    RUN(a_nested_flight_inside_another_machine_s_is_waited_for);
    RUN(a_handler_counts_itself_where_its_thread_waits);
    RUN(a_handler_inside_a_frame_waits_for_locks_alone);
    RUN(a_handler_may_come_at_any_step_of_a_frame);
    RUN(waiting_for_oneself_ends_with_a_message);
    RUN(a_fork_among_threads_leaves_both_sides_at_work);
    us_machine_destroy(machine);
    return check_result();
}
