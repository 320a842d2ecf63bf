/* model.c - a machine that need not exist: its locks, flights, gate and fences.
 *
 * Moved by its script, one CPU acts at a time, nothing interrupts it and nothing takes time. While
 * a workload runs (sim.h), the virtual CPU that acts is `us_running`: locks are waited for, in
 * virtual time, and so is the gate. */
#include "machine/model/sim.h"

#include <string.h>

struct us_machine *us_machine_create(const struct us_topology *topology, unsigned page_size,
                                     uint64_t seed, struct us_error *error)
{
    static const unsigned zero;
    static const struct us_topology single = {
        .ncpus = 1, .nnodes = 1, .ndomains = 1, .cpu_node = &zero, .cpu_domain = &zero};
    const struct us_topology *t = topology != NULL ? topology : &single;
    struct us_machine *m;

    if (page_size == 0)
        page_size = 4096;
    if ((page_size & (page_size - 1)) != 0 || page_size < 4096 || page_size > 1u << 20) {
        us_fail(error, US_EINVAL,
                "a page size of %u bytes: a power of two from 4096 to 1048576 is needed",
                page_size);
        return NULL;
    }
    if (!us_topology_check(t, error))
        return NULL;
    m = us_machine_new(t, t->ncpus, t->ncpus, page_size, seed, error);
    if (m == NULL)
        return NULL;
    m->mode = US_MODE_MODEL;
    atomic_store(&m->clock_manual, 1);
    return m;
}

bool us_machine_model(struct us_machine *m, const uint64_t *costs, const uint64_t *caches,
                      unsigned smt, struct us_error *error)
{
    struct us_cache_sizes sizes;
    struct us_costs c;

    _Static_assert(sizeof(c) % sizeof(*costs) == 0 && sizeof(sizes) % sizeof(*caches) == 0,
                   "tables of numbers");
    if (costs == NULL || caches == NULL)
        return true;
    memcpy(&c, costs, sizeof(c));
    memcpy(&sizes, caches, sizeof(sizes));
    m->sim = us_sim_create(m, &c, &sizes, smt, error);
    return m->sim != NULL;
}

/* Natively a call, and another to the area of the thread. */
enum { RUNS_CPU_NOW = 19 };

unsigned us_cpu_now(const struct us_machine *m)
{
    us_runs(RUNS_CPU_NOW);
    return m->current_cpu;
}

int us_machine_on_cpu(struct us_machine *m, int cpu, struct us_error *error)
{
    int before = (int)m->current_cpu;

    if (cpu >= 0 && (unsigned)cpu >= m->ncpus) {
        us_fail(error, US_EINVAL, "CPU %d: this machine has CPUs 0 to %u", cpu, m->ncpus - 1);
        return -1;
    }
    m->current_cpu = cpu < 0 ? 0 : (unsigned)cpu;
    return before;
}

const char *us_machine_mode_reason(void)
{
    return "model";
}

void us_os_bind(void *base, size_t bytes, unsigned node)
{
    (void)base;
    (void)bytes;
    (void)node;
}

/* ---- fences ------------------------------------------------------------------------------------
 */

/* The other CPU is interrupted, and the caller waits for that. */
static void interrupt_other(struct us_vcpu *v, unsigned cpu)
{
    const struct us_sim *s = v->sim;
    struct us_vcpu *other = &s->vcpu[cpu];

    if (other == v || other->state == US_VCPU_IDLE)
        return;
    /* Who waits for a lock is spinning: that time ends later anyway. */
    if (other->state == US_VCPU_READY)
        us_sim_interrupted(other, s->cost.interrupt);
}

bool us_fence(struct us_machine *m, const struct us_flight *f, enum us_mode mode, unsigned cpu)
{
    struct us_vcpu *v = us_running;

    (void)f;
    (void)mode;
    atomic_fetch_add_explicit(&m->fences, 1, memory_order_relaxed);
    if (v) {
        us_sim_settle(v);
        if (cpu == v->id) /* nothing runs there but this */
            return true;
        interrupt_other(v, cpu);
        us_sim_spend(v, v->phase, v->sim->cost.interrupt);
        us_sim_settle(v);
    }
    return true;
}

void us_fence_all(struct us_machine *m, enum us_mode mode)
{
    struct us_vcpu *v = us_running;

    (void)mode;
    if (!v)
        return;
    us_sim_settle(v);
    for (unsigned cpu = 0; cpu < m->ncpus; cpu++)
        interrupt_other(v, cpu);
    us_sim_spend(v, v->phase, v->sim->cost.interrupt);
    us_sim_settle(v);
}

/* ---- locks -------------------------------------------------------------------------------------
 *
 * Without a running CPU the script acts: a lock that is found held is a fault of the caller. */

static void count(_Atomic uint64_t *n)
{
    atomic_fetch_add_explicit(n, 1, memory_order_relaxed);
}

static void waited(struct us_vcpu *v, enum us_lock_class klass, uint64_t ps)
{
    us_sim_spend(v, US_PHASE_LOCK, ps);
    v->lock_ps[klass] += ps;
}

/* A dropped lock goes to one of those who spin on its line: all of them ask for the line, are
 * answered one after the other, and the next owner's turn is in the middle of the others'. */
static uint64_t handover(const struct us_sim *s, uint64_t others)
{
    return s->cost.lock_handover + others * s->cost.lock_waiter;
}

/* How many are before who comes while the lock is held by somebody ahead of its clock: as many as
 * can have had it in that time, the last one's as a measure. */
static uint64_t before(const struct us_lock_record *r, const struct us_sim *s, uint64_t now)
{
    uint64_t turn = r->free_at - r->taken_at + s->cost.lock_handover;
    uint64_t most = s->machine->ncpus > 2 ? s->machine->ncpus - 2 : 0;
    uint64_t n = turn ? (r->free_at - now) / turn : 0;

    return n < most ? n : most;
}

/* The running CPU gets the lock, whose word says whether it is held; true when it had to wait. */
static bool get(struct us_vcpu *v, const void *lock, bool held, enum us_lock_class klass)
{
    struct us_sim *s = v->sim;
    struct us_lock_record *r = us_sim_lock(s, lock);

    if (held) {
        v->next = NULL;
        if (r->last)
            r->last->next = v;
        else
            r->first = v;
        r->last = v;
        r->waiting++;
        us_sim_wait(v); /* who drops it sets the clock, and hands it over held */
    } else if (r->free_at > v->clock) {
        waited(v, klass, r->free_at + handover(s, before(r, s, v->clock)) - v->clock);
        r->taken_at = v->clock;
    } else {
        r->taken_at = v->clock;
        us_updates(lock, 1);
        us_sim_spend(v, v->phase, s->cost.lock);
        return false;
    }
    v->lock_count[klass]++;
    us_lines_hand_over(v, lock);
    return true;
}

/* The running CPU drops the lock; true when it went to who waited longest, and stays held. */
static bool give(struct us_vcpu *v, const void *lock, enum us_lock_class klass)
{
    struct us_sim *s = v->sim;
    struct us_lock_record *r = us_sim_lock(s, lock);
    struct us_vcpu *next = r->first;
    uint64_t at;

    us_writes(lock, 1);
    r->free_at = v->clock;
    if (!next)
        return false;
    r->first = next->next;
    if (!r->first)
        r->last = NULL;
    r->waiting--;
    at = v->clock + handover(s, r->waiting);
    r->taken_at = at;
    waited(next, klass, at > next->clock ? at - next->clock : 0);
    us_sim_ready(next);
    return true;
}

static bool may_try(struct us_vcpu *v, const void *lock, bool held)
{
    if (!v)
        return !held;
    us_sim_settle(v);
    if (!held && us_sim_lock(v->sim, lock)->free_at <= v->clock) {
        us_sim_lock(v->sim, lock)->taken_at = v->clock;
        us_updates(lock, 1);
        us_sim_spend(v, v->phase, v->sim->cost.lock);
        return true;
    }
    us_reads(lock, 1);
    return false;
}

static bool is_held(const struct us_lock *lock)
{
    return atomic_load_explicit(&lock->word, memory_order_relaxed) != 0;
}

bool us_lock_try(struct us_flight *f, struct us_lock *lock)
{
    (void)f;
    if (us_running)
        us_sim_settle(us_running);
    if (!may_try(us_running, lock, is_held(lock)))
        return false;
    us_rank_take(lock->klass, false);
    atomic_store_explicit(&lock->word, 1, memory_order_relaxed);
    count(&lock->acquired);
    return true;
}

bool us_lock_take(struct us_flight *f, struct us_lock *lock)
{
    struct us_vcpu *v = us_running;

    (void)f;
    us_rank_take(lock->klass, true);
    if (v) {
        us_sim_settle(v);
        if (get(v, lock, is_held(lock), lock->klass))
            count(&lock->contended);
    } else if (is_held(lock)) {
        us_fatal("the modelled CPU waits for a %s lock that it holds itself",
                 us_lock_class_name(lock->klass));
    }
    atomic_store_explicit(&lock->word, 1, memory_order_relaxed);
    count(&lock->acquired);
    return true;
}

void us_lock_drop(struct us_flight *f, struct us_lock *lock)
{
    (void)f;
    us_rank_drop(lock->klass);
    if (!us_running || !give(us_running, lock, lock->klass))
        atomic_store_explicit(&lock->word, 0, memory_order_relaxed);
}

static void hold_byte(struct us_flight *f, _Atomic uint8_t *lock)
{
    f = us_flight_or_current(f);
    if (f != NULL)
        f->byte_locks++;
    atomic_store_explicit(lock, 1, memory_order_relaxed);
}

bool us_bytelock_try(struct us_flight *f, _Atomic uint8_t *lock)
{
    if (us_running)
        us_sim_settle(us_running);
    if (!may_try(us_running, (const void *)lock,
                 atomic_load_explicit(lock, memory_order_relaxed) != 0))
        return false;
    us_rank_take(US_LOCK_SLAB, false);
    hold_byte(f, lock);
    return true;
}

static bool take_byte(struct us_flight *f, _Atomic uint8_t *lock, bool ordered)
{
    struct us_vcpu *v = us_running;

    us_rank_take(US_LOCK_SLAB, ordered);
    if (v) {
        us_sim_settle(v);
        if (get(v, (const void *)lock, atomic_load_explicit(lock, memory_order_relaxed) != 0,
                US_LOCK_SLAB))
            count(&v->sim->machine->cpu[v->id].byte_contended);
    } else if (atomic_load_explicit(lock, memory_order_relaxed) != 0) {
        us_fatal("the modelled CPU waits for a byte lock that it holds itself");
    }
    hold_byte(f, lock);
    return true;
}

bool us_bytelock_take(struct us_flight *f, _Atomic uint8_t *lock)
{
    return take_byte(f, lock, true);
}

bool us_bytelock_take_last(struct us_flight *f, _Atomic uint8_t *lock)
{
    return take_byte(f, lock, false);
}

void us_bytelock_drop(struct us_flight *f, _Atomic uint8_t *lock)
{
    (void)f;
    us_rank_drop(US_LOCK_SLAB);
    if (!us_running || !give(us_running, (const void *)lock, US_LOCK_SLAB))
        atomic_store_explicit(lock, 0, memory_order_relaxed);
}

/* ---- flights and the gate ----------------------------------------------------------------------
 */

static void count_out(struct us_flight *f, uint64_t flight)
{
    _Atomic uint64_t *count = &f->machine->cpu[f->counted_cpu].in_flight;

    atomic_fetch_add_explicit(count, ((uint64_t)f->byte_locks << US_FLIGHT_BITS) - flight,
                              memory_order_relaxed);
    f->byte_locks = 0;
}

/* What entering a flight and leaving it run natively, the thread and CPU being looked up. */
enum { RUNS_ENTER = 68, RUNS_TRY = 12, RUNS_LEAVE = 37 };

static bool gate_is_shut(const struct us_machine *m)
{
    return atomic_load_explicit(&m->gate, memory_order_relaxed) != 0;
}

/* Who shut it may go on inside. Who opened it may have been ahead. */
static void wait_at_gate(struct us_machine *m, struct us_vcpu *v)
{
    struct us_sim *s = m->sim;

    us_sim_settle(v);
    while (s->gate_owner != v && (gate_is_shut(m) || v->clock < s->gate_opened)) {
        if (gate_is_shut(m)) {
            v->next = s->at_gate;
            s->at_gate = v;
            us_sim_wait(v);
        } else {
            us_sim_spend(v, US_PHASE_LOCK, s->gate_opened - v->clock);
            us_sim_settle(v);
        }
    }
}

void us_flight_enter(struct us_machine *m, struct us_flight *f)
{
    struct us_vcpu *v = us_running;
    struct us_thread *t = us_thread();

    if (v) {
        if (t->flight)
            us_sim_settle(v);
        else
            wait_at_gate(m, v);
        m->sim->flights++;
    }
    *f = (struct us_flight){.machine = m, .outer = t->flight, .counted_cpu = m->current_cpu};
    f->before = us_phase_set(US_PHASE_SLOW);
    if (t->flight) /* whatever it is a part of */
        us_phase_set(f->before);
    t->flight = f;
    us_runs(RUNS_ENTER);
    us_reads(&m->gate, sizeof(m->gate));
    us_updates(&m->cpu[f->counted_cpu].in_flight, sizeof(uint64_t));
    atomic_fetch_add_explicit(&m->cpu[f->counted_cpu].in_flight, 1, memory_order_relaxed);
}

bool us_flight_try(struct us_machine *m, struct us_flight *f)
{
    us_runs(RUNS_TRY);
    us_flight_enter(m, f);
    return true;
}

static void wait_for_flights(struct us_sim *s, struct us_vcpu *keeper)
{
    if (s->flights_end > keeper->clock)
        us_sim_spend(keeper, US_PHASE_LOCK, s->flights_end - keeper->clock);
}

/* Who waits for the last flight to end goes on at that moment. */
static void tell_keeper(struct us_machine *m, const struct us_vcpu *v)
{
    struct us_sim *s = m->sim;
    struct us_vcpu *keeper = s->gate_keeper;

    if (v->clock > s->flights_end)
        s->flights_end = v->clock;
    if (!keeper || s->flights > 0)
        return;
    s->gate_keeper = NULL;
    wait_for_flights(s, keeper);
    us_sim_ready(keeper);
}

void us_flight_leave(struct us_flight *f)
{
    if (us_thread()->flight != f)
        us_fatal("a slow path ended that is not the thread's innermost");
    us_runs(RUNS_LEAVE);
    us_updates(&f->machine->cpu[f->counted_cpu].in_flight, sizeof(uint64_t));
    us_phase_set(f->before);
    count_out(f, 1);
    us_thread()->flight = f->outer;
    if (us_running) {
        f->machine->sim->flights--;
        tell_keeper(f->machine, us_running);
    }
}

void us_flight_suspend(struct us_flight *f)
{
    if (!f->gate)
        us_flight_leave(f);
}

void us_flight_resume(struct us_flight *f)
{
    if (!f->gate)
        us_flight_enter(f->machine, f);
}

/* Nothing comes between two slow paths here. */
void us_frame_enter(struct us_machine *m, struct us_flight *f)
{
    *f = (struct us_flight){.machine = m};
}

void us_frame_leave(struct us_flight *f)
{
    (void)f;
}

static void shut_running(struct us_machine *m, struct us_vcpu *v)
{
    struct us_sim *s = m->sim;

    if (us_thread()->flight)
        us_fatal("the gate was to be shut from inside a slow path");
    wait_at_gate(m, v);
    atomic_store(&m->gate, 1);
    s->gate_owner = v;
    if (s->flights > 0) {
        s->gate_keeper = v;
        us_sim_wait(v);
    } else {
        wait_for_flights(s, v);
    }
}

static void shut_scripted(struct us_machine *m)
{
    for (unsigned cpu = 0; cpu < m->ncpus; cpu++)
        if (us_cpu_flights(&m->cpu[cpu]) != 0)
            us_fatal("the gate was to be shut from inside a slow path");
    if (gate_is_shut(m))
        us_fatal("the gate was to be shut by the thread that shut it already");
    atomic_store(&m->gate, 1);
}

void us_gate_shut(struct us_machine *m, struct us_flight *f)
{
    if (us_running)
        shut_running(m, us_running);
    else
        shut_scripted(m);
    *f = (struct us_flight){
        .machine = m, .outer = us_thread()->flight, .counted_cpu = m->current_cpu, .gate = true};
    us_thread()->flight = f;
}

/* All who waited go on at the moment it opens. */
static void open_running(struct us_machine *m, const struct us_vcpu *v)
{
    struct us_vcpu *waiting = m->sim->at_gate;

    m->sim->gate_owner = NULL;
    m->sim->gate_opened = v->clock;
    m->sim->at_gate = NULL;
    while (waiting) {
        struct us_vcpu *next = waiting->next;

        if (v->clock > waiting->clock)
            us_sim_spend(waiting, US_PHASE_LOCK, v->clock - waiting->clock);
        us_sim_ready(waiting);
        waiting = next;
    }
}

void us_gate_open(struct us_flight *f)
{
    struct us_machine *m = f->machine;

    if (!f->gate || us_thread()->flight != f)
        us_fatal("the gate was opened by another flight than the one that shut it");
    atomic_store(&m->gate, 0);
    count_out(f, 0);
    us_thread()->flight = f->outer;
    if (us_running)
        open_running(m, us_running);
}

/* A script has no slow path under way between two calls, and tasks of a workload free nothing after
 * a grace period. */
void us_flight_quiesce(struct us_machine *m)
{
    (void)m;
}

void us_gate_after_fork_child(struct us_machine *m)
{
    (void)m;
}

/* ---- what common code asks ---------------------------------------------------------------------
 */

struct us_thread *us_model_thread(void)
{
    return &us_running->thread;
}

uint64_t us_model_time(const struct us_machine *m)
{
    return us_running ? us_running->clock / 1000 : m->sim ? m->sim->shown_ns : 0;
}

void us_model_drop(struct us_machine *m)
{
    us_sim_destroy(m->sim);
    m->sim = NULL;
}
