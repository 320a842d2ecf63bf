/* model.c - a machine that need not exist, moved by its script: one CPU acts at a time, and nothing
 * interrupts it. A lock that is found held is therefore a fault of the caller. */
#include "machine/backend.h"

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

unsigned us_cpu_now(const struct us_machine *m)
{
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

bool us_fence(struct us_machine *m, const struct us_flight *f, enum us_mode mode, unsigned cpu)
{
    (void)f;
    (void)mode;
    (void)cpu;
    atomic_fetch_add_explicit(&m->fences, 1, memory_order_relaxed);
    return true;
}

void us_fence_all(struct us_machine *m, enum us_mode mode)
{
    (void)m;
    (void)mode;
}

/* ---- locks ------------------------------------------------------------------------------------
 */

static void count(_Atomic uint64_t *n)
{
    atomic_fetch_add_explicit(n, 1, memory_order_relaxed);
}

bool us_lock_try(struct us_flight *f, struct us_lock *lock)
{
    (void)f;
    if (atomic_load_explicit(&lock->word, memory_order_relaxed) != 0)
        return false;
    us_rank_take(lock->klass, false);
    atomic_store_explicit(&lock->word, 1, memory_order_relaxed);
    count(&lock->acquired);
    return true;
}

bool us_lock_take(struct us_flight *f, struct us_lock *lock)
{
    (void)f;
    us_rank_take(lock->klass, true);
    if (atomic_load_explicit(&lock->word, memory_order_relaxed) != 0)
        us_fatal("the modelled CPU waits for a %s lock that it holds itself",
                 us_lock_class_name(lock->klass));
    atomic_store_explicit(&lock->word, 1, memory_order_relaxed);
    count(&lock->acquired);
    return true;
}

void us_lock_drop(struct us_flight *f, struct us_lock *lock)
{
    (void)f;
    us_rank_drop(lock->klass);
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
    if (atomic_load_explicit(lock, memory_order_relaxed) != 0)
        return false;
    us_rank_take(US_LOCK_SLAB, false);
    hold_byte(f, lock);
    return true;
}

static bool take_byte(struct us_flight *f, _Atomic uint8_t *lock, bool ordered)
{
    us_rank_take(US_LOCK_SLAB, ordered);
    if (atomic_load_explicit(lock, memory_order_relaxed) != 0)
        us_fatal("the modelled CPU waits for a byte lock that it holds itself");
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
    atomic_store_explicit(lock, 0, memory_order_relaxed);
}

/* ---- flights and the gate ---------------------------------------------------------------------
 */

static void count_out(struct us_flight *f, uint64_t flight)
{
    _Atomic uint64_t *count = &f->machine->cpu[f->counted_cpu].in_flight;

    atomic_fetch_add_explicit(count, ((uint64_t)f->byte_locks << US_FLIGHT_BITS) - flight,
                              memory_order_relaxed);
    f->byte_locks = 0;
}

void us_flight_enter(struct us_machine *m, struct us_flight *f)
{
    struct us_thread *t = us_thread();

    *f = (struct us_flight){.machine = m, .outer = t->flight, .counted_cpu = m->current_cpu};
    t->flight = f;
    atomic_fetch_add_explicit(&m->cpu[f->counted_cpu].in_flight, 1, memory_order_relaxed);
}

bool us_flight_try(struct us_machine *m, struct us_flight *f)
{
    us_flight_enter(m, f);
    return true;
}

void us_flight_leave(struct us_flight *f)
{
    if (us_thread()->flight != f)
        us_fatal("a slow path ended that is not the thread's innermost");
    count_out(f, 1);
    us_thread()->flight = f->outer;
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

void us_gate_shut(struct us_machine *m, struct us_flight *f)
{
    for (unsigned cpu = 0; cpu < m->ncpus; cpu++)
        if (us_cpu_flights(&m->cpu[cpu]) != 0)
            us_fatal("the gate was to be shut from inside a slow path");
    if (atomic_load(&m->gate) != 0)
        us_fatal("the gate was to be shut by the thread that shut it already");
    *f = (struct us_flight){
        .machine = m, .outer = us_thread()->flight, .counted_cpu = m->current_cpu, .gate = true};
    us_thread()->flight = f;
    atomic_store(&m->gate, 1);
}

void us_gate_open(struct us_flight *f)
{
    if (!f->gate || us_thread()->flight != f)
        us_fatal("the gate was opened by another flight than the one that shut it");
    atomic_store(&f->machine->gate, 0);
    count_out(f, 0);
    us_thread()->flight = f->outer;
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
