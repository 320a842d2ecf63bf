/* The engine of modelled machines by its written rules (machine/model/sim.h): whose turn it is,
 * events, locks, the gate. */
// machines: model
// needs: machine
#include "fixture_sim.h"

/* ---- what happened, in order ------------------------------------------------------------------
 */

enum { EVENT = 100 };
static struct {
    uint64_t at;
    unsigned who;
} happened[64];
static unsigned nhappened;

static void note(uint64_t at, unsigned who)
{
    REQUIRE(nhappened < sizeof(happened) / sizeof(happened[0]));
    happened[nhappened].at = at;
    happened[nhappened++].who = who;
}

static void check_happened(unsigned i, uint64_t at, unsigned who)
{
    REQUIRE(i < nhappened);
    CHECK_EQ(happened[i].at, at);
    CHECK_EQ(happened[i].who, who);
}

static void work(struct us_vcpu *v, uint64_t ps)
{
    us_sim_spend(v, US_PHASE_WORK, ps);
    us_sim_settle(v);
}

/* ---- whose turn it is -------------------------------------------------------------------------
 */

static void steps_of_300(struct us_vcpu *v)
{
    for (unsigned i = 0; i < 3; i++) {
        work(v, 300);
        note(v->clock, v->id);
    }
}

static void steps_of_200(struct us_vcpu *v)
{
    for (unsigned i = 0; i < 4; i++) {
        work(v, 200);
        note(v->clock, v->id);
    }
}

/* All begin at 0: by clock, and by number where clocks are equal (600). */
static void earliest_first_then_lowest_number(void)
{
    begin();
    nhappened = 0;
    does[0] = does[5] = steps_of_300;
    does[2] = steps_of_200;
    for (unsigned cpu = 0; cpu < NCPUS; cpu++)
        if (does[cpu])
            us_sim_wake(sim, cpu, 0);
    CHECK(us_sim_run(sim));
    CHECK_EQ(nhappened, 10);
    check_happened(0, 200, 2);
    check_happened(1, 300, 0);
    check_happened(2, 300, 5);
    check_happened(3, 400, 2);
    check_happened(4, 600, 0);
    check_happened(5, 600, 2);
    check_happened(6, 600, 5);
    check_happened(7, 800, 2);
    check_happened(8, 900, 0);
    check_happened(9, 900, 5);
    end();
}

static void notes(void *context, uint64_t argument)
{
    (void)context;
    note(argument, EVENT);
}

static void asks_for_events(struct us_vcpu *v)
{
    CHECK(us_sim_at(sim, 500, notes, NULL, 500));
    CHECK(us_sim_at(sim, 100, notes, NULL, 100));
    CHECK(us_sim_at(sim, 500, notes, NULL, 501));
    work(v, 99);
    note(v->clock, v->id);
    work(v, 101);
    note(v->clock, v->id);
    work(v, 300);
    note(v->clock, v->id);
}

/* Events come before CPUs of the same time, those of one time as they were asked for. */
static void events_come_first(void)
{
    begin();
    nhappened = 0;
    does[0] = asks_for_events;
    go();
    CHECK_EQ(nhappened, 6);
    check_happened(0, 99, 0);
    check_happened(1, 100, EVENT);
    check_happened(2, 200, 0);
    check_happened(3, 500, EVENT);
    check_happened(4, 501, EVENT);
    check_happened(5, 500, 0);
    end();
}

static void wakes(void *context, uint64_t cpu)
{
    (void)context;
    us_sim_wake(sim, (unsigned)cpu, 1000);
}

static void says_its_clock(struct us_vcpu *v)
{
    note(v->clock, v->id);
}

/* What a CPU waits for without anything to do is idle time; a second wake-up changes nothing. */
static void idle_until_woken(void)
{
    begin();
    nhappened = 0;
    does[3] = says_its_clock;
    CHECK(us_sim_at(sim, 1000, wakes, NULL, 3));
    CHECK(us_sim_at(sim, 1000, wakes, NULL, 3));
    CHECK(us_sim_run(sim));
    CHECK_EQ(nhappened, 1);
    check_happened(0, 1000, 3);
    CHECK_EQ(vcpu(3)->time[US_PHASE_IDLE], 1000);
    CHECK_EQ(us_sim_align(sim, 0), 1000);
    CHECK_EQ(vcpu(0)->time[US_PHASE_IDLE], 1000);
    CHECK_EQ(us_sim_align(sim, 1500), 1500);
    CHECK_EQ(vcpu(3)->time[US_PHASE_IDLE], 1500);
    end();
}

static void leaves(struct us_vcpu *v)
{
    us_sim_leave(sim);
    work(v, 10);
    note(v->clock, v->id);
}

/* The main context comes in between and the CPU goes on as if it had not. */
static void leaving_is_for_a_moment(void)
{
    begin();
    nhappened = 0;
    does[1] = leaves;
    us_sim_wake(sim, 1, 0);
    CHECK(!us_sim_run(sim));
    CHECK_EQ(nhappened, 0);
    CHECK(us_sim_run(sim));
    check_happened(0, 10, 1);
    end();
}

/* ---- many CPUs --------------------------------------------------------------------------------
 */

static uint64_t latest, steps;
static unsigned latest_cpu;

static void many(void *context, unsigned cpu)
{
    uint64_t seed = cpu + 1;

    (void)context;
    for (;;) {
        for (unsigned i = 0; i < 40; i++) {
            seed = seed * 6364136223846793005ull + 1442695040888963407ull;
            work(us_running, 1 + (seed >> 40) % 1000);
            CHECK(us_running->clock > latest ||
                  (us_running->clock == latest && us_running->id >= latest_cpu));
            latest = us_running->clock;
            latest_cpu = us_running->id;
            steps++;
        }
        us_sim_idle(us_running);
    }
}

/* Turns come in order, and each takes about as many comparisons as the heap has levels: two a
 * level, one to look at the first, and what waking all takes. */
static void comparisons_grow_as_the_logarithm(void)
{
    for (unsigned levels = 2; levels <= 12; levels += 5) {
        unsigned n = 1u << levels, *zeroes = calloc(n, sizeof(*zeroes));
        struct us_topology t = {n, 1, 1, zeroes, zeroes};

        machine = us_machine_create(&t, 4096, 1, NULL);
        REQUIRE(machine && us_machine_model(machine, (const uint64_t *)&costs,
                                            (const uint64_t *)&sizes, 1, NULL));
        sim = machine->sim;
        latest = steps = latest_cpu = 0;
        REQUIRE(us_sim_start(sim, many, NULL, NULL));
        for (unsigned cpu = 0; cpu < n; cpu++)
            us_sim_wake(sim, cpu, 0);
        CHECK(us_sim_run(sim));
        CHECK_EQ(steps, 40ull * n);
        CHECK(sim->comparisons <= steps * (2 * levels + 2));
        free(zeroes);
        end();
    }
}

/* ---- locks ------------------------------------------------------------------------------------
 *
 * The first to take a lock finds its line nowhere but in memory: memory + atomic + lock = 93 ns. */

enum { FIRST_TAKE = 80000 + 5000 + 8000 };
static struct us_lock *lock;

static void new_lock(void)
{
    lock = (struct us_lock *)memory;
    us_lock_init(lock, US_LOCK_NODE);
}

static void holds_for_a_microsecond(struct us_vcpu *v)
{
    CHECK(us_lock_take(NULL, lock));
    note(v->clock, v->id);
    work(v, 1000000);
    us_lock_drop(NULL, lock);
}

/* FIFO: each waits from when it came to the drop of the one before, and pays the hand-over. The
 * line came with the lock: dropping it costs nothing. */
static void a_lock_goes_to_who_waited_longest(void)
{
    const uint64_t first = FIRST_TAKE, second = first + 1000000 + 50000,
                   third = second + 1000000 + 50000;

    begin();
    new_lock();
    nhappened = 0;
    does[0] = does[6] = does[3] = holds_for_a_microsecond;
    us_sim_wake(sim, 0, 0);
    us_sim_wake(sim, 6, 10); /* before CPU 3 */
    us_sim_wake(sim, 3, 20);
    CHECK(us_sim_run(sim));
    check_happened(0, first, 0);
    check_happened(1, second, 6);
    check_happened(2, third, 3);
    CHECK_EQ(vcpu(0)->lock_count[US_LOCK_NODE], 0);
    CHECK_EQ(vcpu(6)->lock_ps[US_LOCK_NODE], second - 10);
    CHECK_EQ(vcpu(3)->lock_ps[US_LOCK_NODE], third - 20);
    CHECK_EQ(vcpu(3)->time[US_PHASE_LOCK], third - 20);
    CHECK_EQ(vcpu(3)->clock, third + 1000000);
    CHECK_EQ(lock->acquired, 3);
    CHECK_EQ(lock->contended, 2);
    end();
}

static void holds_without_a_pause(struct us_vcpu *v)
{
    CHECK(us_lock_take(NULL, lock));
    us_sim_spend(v, US_PHASE_WORK, 1000000);
    us_lock_drop(NULL, lock);
    us_sim_settle(v);
}

static void takes(struct us_vcpu *v)
{
    CHECK(us_lock_take(NULL, lock));
    note(v->clock, v->id);
    us_lock_drop(NULL, lock);
}

/* Whoever comes in the time it was held, though it has been dropped by now, waits as well. */
static void a_lock_is_held_until_its_holders_clock(void)
{
    begin();
    new_lock();
    nhappened = 0;
    does[0] = holds_without_a_pause;
    does[1] = does[4] = takes;
    us_sim_wake(sim, 0, 0);
    us_sim_wake(sim, 1, 500);
    us_sim_wake(sim, 4, FIRST_TAKE + 1000000); /* at the drop: free, but on the other node */
    CHECK(us_sim_run(sim));
    check_happened(0, FIRST_TAKE + 1000000 + 50000, 1);
    CHECK_EQ(vcpu(1)->lock_count[US_LOCK_NODE], 1);
    /* CPU 4 came while CPU 1 waited for the hand-over, and waits for CPU 1. */
    check_happened(1, FIRST_TAKE + 1000000 + 50000 + 50000, 4);
    end();
}

static void tries(struct us_vcpu *v)
{
    bool got = us_lock_try(NULL, lock);

    note(v->clock, got);
    if (got)
        us_lock_drop(NULL, lock);
}

/* A try finds it held until then, and has read the line that CPU 0 wrote (its domain: 41 ns). */
static void a_try_does_not_wait(void)
{
    begin();
    new_lock();
    nhappened = 0;
    does[0] = holds_without_a_pause;
    does[1] = tries;
    does[3] = tries;
    us_sim_wake(sim, 0, 0);
    us_sim_wake(sim, 1, 500);
    us_sim_wake(sim, 3, 5000000);
    CHECK(us_sim_run(sim));
    check_happened(0, 500 + 41000, false);
    /* The line was written back when CPU 1 read it, to the last level of the domain of CPUs 0 and
     * 1; CPU 3 gets it from memory. */
    check_happened(1, 5000000 + FIRST_TAKE, true);
    CHECK_EQ(vcpu(1)->lock_count[US_LOCK_NODE], 0);
    CHECK_EQ(lock->contended, 0);
    end();
}

/* ---- flights and the gate ---------------------------------------------------------------------
 */

static uint64_t entered[NCPUS], left[NCPUS], shut_at, opened_at;

static void flies(struct us_vcpu *v)
{
    struct us_flight f;

    us_flight_enter(machine, &f);
    entered[v->id] = v->clock;
    work(v, 5000000);
    us_flight_leave(&f);
    left[v->id] = v->clock;
}

static void flies_ahead(struct us_vcpu *v)
{
    struct us_flight f;

    us_flight_enter(machine, &f);
    us_sim_spend(v, US_PHASE_WORK, 5000000);
    us_flight_leave(&f);
    left[v->id] = v->clock;
    us_sim_settle(v);
}

static void shuts(struct us_vcpu *v)
{
    struct us_flight f;

    us_gate_shut(machine, &f);
    shut_at = v->clock;
    work(v, 3000000);
    us_gate_open(&f);
    opened_at = v->clock;
}

static void shuts_ahead(struct us_vcpu *v)
{
    struct us_flight f;

    us_gate_shut(machine, &f);
    us_sim_spend(v, US_PHASE_WORK, 3000000);
    us_gate_open(&f);
    opened_at = v->clock;
    us_sim_settle(v);
}

/* Who shuts it waits for the last flight; who comes while it is shut waits until it opens. */
static void the_gate_waits_and_is_waited_for(void)
{
    begin();
    does[1] = does[5] = flies;
    does[0] = shuts;
    us_sim_wake(sim, 1, 0);
    us_sim_wake(sim, 0, 1000000);
    us_sim_wake(sim, 5, 2000000);
    CHECK(us_sim_run(sim));
    CHECK(left[1] >= 5000000);
    CHECK_EQ(shut_at, left[1]);
    CHECK_EQ(vcpu(0)->time[US_PHASE_LOCK], left[1] - 1000000);
    CHECK_EQ(vcpu(5)->time[US_PHASE_LOCK], opened_at - 2000000);
    CHECK(entered[5] >= opened_at);
    CHECK_EQ(sim->flights, 0);
    end();
}

/* A flight that has ended on a clock ahead is in flight until then. */
static void the_gate_waits_for_a_flight_ahead(void)
{
    begin();
    does[1] = flies_ahead;
    does[0] = shuts;
    us_sim_wake(sim, 1, 0);
    us_sim_wake(sim, 0, 1000000);
    CHECK(us_sim_run(sim));
    CHECK_EQ(shut_at, left[1]);
    end();
}

/* A gate that was opened on a clock ahead is shut until then, for flights and for who shuts it. */
static void a_gate_is_shut_until_its_owners_clock(void)
{
    begin();
    does[0] = shuts_ahead;
    does[4] = flies;
    does[6] = shuts;
    us_sim_wake(sim, 0, 0);
    us_sim_wake(sim, 4, 1000);
    us_sim_wake(sim, 6, 2000);
    CHECK(us_sim_run(sim));
    CHECK_EQ(vcpu(4)->time[US_PHASE_LOCK], 3000000 - 1000);
    CHECK(entered[4] >= 3000000);
    CHECK_EQ(shut_at, left[4]); /* both went on at once, CPU 4 by its number first */
    end();
}

static void fences_all(struct us_vcpu *v)
{
    us_fence_all(machine, US_MODE_MODEL);
    note(v->clock, v->id);
}

static void works_for_ten(struct us_vcpu *v)
{
    work(v, 10000000);
    note(v->clock, v->id);
}

/* A fence interrupts those that run, and costs as much here; who is idle is left alone. */
static void a_fence_interrupts_who_runs(void)
{
    begin();
    nhappened = 0;
    does[0] = fences_all;
    does[1] = works_for_ten;
    us_sim_wake(sim, 1, 0);
    us_sim_wake(sim, 0, 1);
    CHECK(us_sim_run(sim));
    check_happened(0, 600000 + 1, 0);
    check_happened(1, 10000000 + 600000, 1);
    CHECK_EQ(vcpu(1)->time[US_PHASE_INTERRUPT], 600000);
    CHECK_EQ(vcpu(2)->time[US_PHASE_INTERRUPT], 0);
    end();
}

int main(void)
{
    RUN(earliest_first_then_lowest_number);
    RUN(events_come_first);
    RUN(idle_until_woken);
    RUN(leaving_is_for_a_moment);
    RUN(comparisons_grow_as_the_logarithm);
    RUN(a_lock_goes_to_who_waited_longest);
    RUN(a_lock_is_held_until_its_holders_clock);
    RUN(a_try_does_not_wait);
    RUN(the_gate_waits_and_is_waited_for);
    RUN(the_gate_waits_for_a_flight_ahead);
    RUN(a_gate_is_shut_until_its_owners_clock);
    RUN(a_fence_interrupts_who_runs);
    return check_result();
}
