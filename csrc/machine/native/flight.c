/* flight.c - slow paths in flight and the gate, between real threads.
 *
 * Who enters counts itself in and then looks at the gate; who shuts the gate writes it and then
 * looks at the counts. Both are sequentially consistent, so one of them sees the other. A count is
 * kept for each CPU, and left where it was entered whatever CPU the thread is on by then.
 *
 * The mark of a thread is its innermost flight (us_thread()->flight), or a slot lock of the
 * fallback that it holds. Whoever enters with the mark set interrupted the one who set it. It
 * counts itself in too, unless what it interrupted is counted on the same machine at that moment,
 * and finds every lock busy once it sees the gate shut (lock.c): so who shuts the gate is alone
 * once nobody is counted.
 *
 * A frame is a flight put aside: counted in, and no longer the mark. A handler finds the mark or
 * the frame at every step, never neither while it is counted, or it would wait at the gate for who
 * waits for it. */
#include "machine/backend.h"
#include "machine/native/futex.h"
#include "machine/native/rseq.h"

#include <sched.h>

/* Ends the count, and with the same addition tells how many byte locks were taken. */
static void count_out(struct us_flight *f, uint64_t flight)
{
    struct us_machine *m = f->machine;
    uint64_t change = ((uint64_t)f->byte_locks << US_FLIGHT_BITS) - flight;

    f->byte_locks = 0;
    if (change != 0)
        atomic_fetch_add(&m->cpu[f->counted_cpu].in_flight, change);
    if (US_UNLIKELY(atomic_load(&m->gate) != 0)) {
        atomic_fetch_add(&m->gate_event, 1);
        us_futex_wake(&m->gate_event, INT_MAX);
    }
}

/* Passes the gate; while it is shut, waits holding nothing. */
static void count_in(struct us_flight *f)
{
    struct us_machine *m = f->machine;
    uint32_t shut;

    for (;;) {
        f->counted_cpu = us_cpu_now(m);
        atomic_fetch_add(&m->cpu[f->counted_cpu].in_flight, 1);
        f->counted = true;
        if (US_LIKELY(atomic_load(&m->gate) == 0))
            return;
        f->counted = false;
        count_out(f, 1);
        while ((shut = atomic_load(&m->gate)) != 0)
            us_futex_wait(&m->gate, shut);
    }
}

/* By itself or by its frame. When in doubt no: a count too many does no harm. */
static bool is_counted(const struct us_flight *f)
{
    return f->counted || (f->frame != NULL && f->frame == us_thread()->frame);
}

/* A nested flight is counted, and waits for nothing, where nothing that it interrupted keeps who
 * shuts the gate waiting: when that held a slot alone, worked on another machine, or was itself
 * waiting, at the gate or for its turn to shut it. */
static void count_nested(struct us_flight *f)
{
    const struct us_flight *around = f->outer;

    while (around != NULL && !(around->machine == f->machine && is_counted(around)))
        around = around->outer;
    f->counted_cpu = us_cpu_now(f->machine);
    if (around != NULL) {
        f->out = around->out;
        return;
    }
    atomic_fetch_add(&f->machine->cpu[f->counted_cpu].in_flight, 1);
    f->counted = true;
    f->out = atomic_load(&f->machine->gate) != 0; /* shut before: its owner may be alone by now */
}

void us_flight_enter(struct us_machine *m, struct us_flight *f)
{
    struct us_thread *t = us_thread();

    *f = (struct us_flight){.machine = m, .outer = t->flight};
    f->nested = t->flight != NULL || t->slots != 0 || (t->frame && t->frame->machine != m);
    f->frame = f->nested ? NULL : t->frame;
    t->flight = f;
    atomic_signal_fence(memory_order_seq_cst);
    if (US_UNLIKELY(f->nested))
        count_nested(f);
    else if (US_LIKELY(f->frame == NULL))
        count_in(f);
    else
        f->counted_cpu = f->frame->counted_cpu;
}

static void leave(struct us_flight *f, uint64_t flight)
{
    struct us_thread *t = us_thread();

    if (US_UNLIKELY(t->flight != f))
        us_fatal("a slow path ended that is not the thread's innermost");
    f->counted = false;
    atomic_signal_fence(memory_order_seq_cst);
    count_out(f, flight);
    atomic_signal_fence(memory_order_seq_cst);
    t->flight = f->outer;
}

void us_flight_leave(struct us_flight *f)
{
    leave(f, f->counted);
}

bool us_flight_try(struct us_machine *m, struct us_flight *f)
{
    us_flight_enter(m, f);
    if (US_LIKELY(!f->out))
        return true;
    us_flight_leave(f);
    return false;
}

void us_frame_enter(struct us_machine *m, struct us_flight *f)
{
    struct us_thread *t = us_thread();

    us_flight_enter(m, f);
    if (f->nested) /* and so is all inside it: a mark like any other */
        return;
    if (f->frame != NULL) {
        us_flight_leave(f);
        return;
    }
    t->frame = f;
    atomic_signal_fence(memory_order_seq_cst);
    t->flight = f->outer;
}

void us_frame_leave(struct us_flight *f)
{
    struct us_thread *t = us_thread();

    if (f->frame != NULL)
        return;
    if (!f->nested) {
        if (US_UNLIKELY(t->frame != f || t->flight != f->outer))
            us_fatal("a frame ended that is not the thread's, or a slow path inside it goes on");
        t->flight = f;
        atomic_signal_fence(memory_order_seq_cst);
        t->frame = NULL;
    }
    us_flight_leave(f);
}

/* A nested flight goes on: what it interrupted is still there. So does the one that shut the gate.
 * A frame is left together with the flight it counts for. */
void us_flight_suspend(struct us_flight *f)
{
    if (f->nested || f->gate)
        return;
#ifdef US_CHECK
    for (unsigned klass = 0; klass < US_LOCK_NCLASSES; klass++)
        if (us_thread()->held[klass] > 0)
            us_fatal("a slow path was suspended while it holds %s",
                     us_lock_class_name((enum us_lock_class)klass));
#endif
    us_thread()->frame = NULL;
    leave(f, 1);
}

void us_flight_resume(struct us_flight *f)
{
    struct us_flight *frame = f->frame;

    if (f->nested || f->gate)
        return;
    us_flight_enter(f->machine, f);
    if (frame == NULL)
        return;
    frame->counted_cpu = f->counted_cpu;
    f->frame = frame;
    f->counted = false;
    atomic_signal_fence(memory_order_seq_cst);
    us_thread()->frame = frame;
}

/* ---- the gate ---------------------------------------------------------------------------------
 */

static void refuse_to_wait_for_oneself(const struct us_machine *m, const struct us_thread *t)
{
    unsigned depth = 0;

    for (const struct us_flight *f = t->flight; f != NULL; f = f->outer)
        depth++;
    if (depth != t->gates || t->slots != 0 || t->frame != NULL)
        us_fatal("the gate was to be shut by a thread that is inside a slow path itself "
                 "(a signal handler must not ask for exact statistics, validate, resize, destroy "
                 "or fork)");
    if (atomic_load(&m->gate) != 0 && m->gate_owner == t)
        us_fatal("the gate was to be shut by the thread that shut it already");
}

void us_gate_shut(struct us_machine *m, struct us_flight *f)
{
    struct us_thread *t = us_thread();

    refuse_to_wait_for_oneself(m, t);
    *f = (struct us_flight){.machine = m, .outer = t->flight, .gate = true};
    t->flight = f;
    t->gates++;
    atomic_signal_fence(memory_order_seq_cst);
    us_word_lock(&m->gate_turn);
    m->gate_owner = t;
    f->counted_cpu = us_cpu_now(m);
    atomic_store(&m->gate, 1);
    for (unsigned cpu = 0; cpu < m->ncpus; cpu++) {
        for (;;) {
            uint32_t event = atomic_load(&m->gate_event);

            if (us_cpu_flights(&m->cpu[cpu]) == 0)
                break;
            us_futex_wait(&m->gate_event, event);
        }
    }
}

void us_gate_open(struct us_flight *f)
{
    struct us_machine *m = f->machine;
    struct us_thread *t = us_thread();

    if (!f->gate || t->flight != f)
        us_fatal("the gate was opened by another flight than the one that shut it");
    m->gate_owner = NULL;
    atomic_store(&m->gate, 0);
    us_futex_wake(&m->gate, INT_MAX);
    us_word_unlock(&m->gate_turn);
    count_out(f, 0);
    atomic_signal_fence(memory_order_seq_cst);
    t->gates--;
    t->flight = f->outer;
}

/* A CPU that has nobody in flight at one moment has nobody left who was before. One that is never
 * found so is too busy for that: everybody stops then. */
void us_flight_quiesce(struct us_machine *m)
{
    enum { MOST_LOOKS = 1000 };
    struct us_flight f;

    if (us_thread()->flight != NULL || us_thread()->frame != NULL)
        return;
    for (unsigned cpu = 0; cpu < m->ncpus; cpu++) {
        for (unsigned looks = 0; us_cpu_flights(&m->cpu[cpu]) != 0; looks++) {
            if (looks == MOST_LOOKS) {
                us_gate_shut(m, &f);
                us_gate_open(&f);
                return;
            }
            sched_yield();
        }
    }
}

void us_gate_after_fork_child(struct us_machine *m)
{
    for (unsigned cpu = 0; cpu < m->ncpus; cpu++) {
        struct us_cpu *c = &m->cpu[cpu];

        atomic_fetch_and(&c->in_flight, ~US_FLIGHT_MASK); /* of threads that are not here */
        atomic_store(&c->slot, 0);
        atomic_store(&c->control.word, 0);
    }
    atomic_store(&m->gate_turn, m->gate_owner != NULL ? 1 : 0);
    if (m->mode == US_MODE_RSEQ)
        us_rseq_register_fences_again();
}
