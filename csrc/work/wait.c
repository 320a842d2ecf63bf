/* wait.c - where tasks wait for one another, and how to tell that they would wait for ever.
 *
 * A task that must wait says at which op (waits_at), tries again while it spins, then yields, then
 * sleeps, and looks at the stop flag in between. Whoever waits for the pass looks now and then:
 * when every task that is not done waits, none of their conditions holds, and none of them moved
 * while that was looked at, then nobody is left who could change anything. `tries` is up while a
 * waiting task tries, and `waits` moves before it goes down, so no success is missed in between.
 */
#define _GNU_SOURCE
#ifndef US_MODEL
#include "work/runner.h"

#include <sched.h>
#include <stdio.h>
#include <time.h>

enum {
    SPINS = 200,
    MEET_SPINS = 5000,
    YIELDS = 50,
    NAP_NS = 50000,
    SLEEP_NS = 10000000,
    CLOCK_STEP_NS = 100000000, /* timers of policies see no longer leaps of the clock */
    MAX_CLOCK_STEPS = 1000,
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void nap(uint64_t ns)
{
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};

    nanosleep(&t, NULL);
}

/* ---- waiting -----------------------------------------------------------------------------------
 */

/* Tries to do op's part that may have to wait; `word` goes in or out. */
typedef bool attempt_fn(struct us_task *t, const struct us_op *op, uint64_t *word);

static bool try_once(struct us_task *t, const struct us_op *op, attempt_fn *attempt, uint64_t *word)
{
    bool done;

    atomic_store(&t->tries, true);
    done = attempt(t, op, word);
    if (done) {
        atomic_store(&t->waits_at, 0);
        atomic_fetch_add(&t->waits, 1);
    }
    atomic_store(&t->tries, false);
    return done;
}

/* Sleeps until `event` (or for a moment), unless the attempt succeeds just before. */
static bool try_and_sleep(struct us_task *t, const struct us_op *op, attempt_fn *attempt,
                          uint64_t *word, struct us_event *event)
{
    uint32_t turn = us_event_prepare(event);
    uint64_t now, most = SLEEP_NS;

    if (try_once(t, op, attempt, word)) {
        us_event_cancel(event);
        return true;
    }
    if (t->due_ns) {
        now = us_clock_real();
        most = t->due_ns <= now ? 0 : t->due_ns - now < most ? t->due_ns - now : most;
    }
    us_event_sleep(event, turn, most);
    return false;
}

static US_NOINLINE bool wait_until(struct us_task *t, const struct us_op *op, attempt_fn *attempt,
                                   uint64_t *word, struct us_event *event)
{
    struct us_runner *r = t->runner;
    bool done = false;

    atomic_fetch_add(&t->waits, 1);
    atomic_store(&t->waits_at, us_task_at(t, op) + 1);
    for (unsigned n = r->oversubscribed ? SPINS : 0; !done; n++) {
        if (atomic_load_explicit(&r->stop, memory_order_relaxed))
            break;
        if (n < SPINS)
            relax();
        else if (n < SPINS + YIELDS)
            sched_yield();
        else if (!event)
            nap(NAP_NS);
        done = n < SPINS + YIELDS || !event ? try_once(t, op, attempt, word)
                                            : try_and_sleep(t, op, attempt, word, event);
    }
    if (!done)
        atomic_store(&t->waits_at, 0);
    return done;
}

/* The time of arrival is that of the attempt that finds room. */
static bool try_send(struct us_task *t, const struct us_op *op, uint64_t *word)
{
    return us_channel_send(&t->runner->channel[op->cache], *word,
                           op->arg ? us_clock_real() + op->arg : 0);
}

bool us_wait_send(struct us_task *t, const struct us_op *op, uint64_t word)
{
    struct us_channel *c = &t->runner->channel[op->cache];

    t->due_ns = 0;
    if (!try_send(t, op, &word) && !wait_until(t, op, try_send, &word, &c->writable))
        return false;
    us_event_notify(&c->readable, 1);
    return true;
}

static bool try_recv(struct us_task *t, const struct us_op *op, uint64_t *word)
{
    return us_channel_recv(&t->runner->channel[op->cache], word, &t->due_ns);
}

bool us_wait_recv(struct us_task *t, const struct us_op *op, uint64_t *word)
{
    struct us_channel *c = &t->runner->channel[op->cache];

    if (!try_recv(t, op, word) && !wait_until(t, op, try_recv, word, &c->readable))
        return false;
    us_event_notify(&c->writable, 1);
    /* A wake-up may have come while the message was under way and been lost on who waited for it
     * already: the next receiver hears of what is left. */
    if (t->due_ns && !us_channel_is_empty(c))
        us_event_notify(&c->readable, 1);
    return true;
}

static bool try_barrier(struct us_task *t, const struct us_op *op, uint64_t *word)
{
    (void)op;
    return atomic_load_explicit(&t->runner->barrier_round, memory_order_acquire) != *word;
}

bool us_wait_barrier(struct us_task *t, const struct us_op *op)
{
    struct us_runner *r = t->runner;
    uint64_t round = atomic_load_explicit(&r->barrier_round, memory_order_acquire);

    atomic_store(&t->barrier_round, (uint32_t)round);
    t->due_ns = 0;
    if (atomic_fetch_add(&r->barrier_count, 1) + 1 < r->facts.nbarrier)
        return wait_until(t, op, try_barrier, &round, &r->barrier_event);
    atomic_store(&r->barrier_count, 0);
    atomic_fetch_add(&r->barrier_round, 1);
    us_event_notify(&r->barrier_event, INT32_MAX);
    return true;
}

static bool try_full(struct us_task *t, const struct us_op *op, uint64_t *word)
{
    *word = atomic_load_explicit(&t->runner->shared[op->slot], memory_order_acquire);
    return *word != 0;
}

static bool try_empty(struct us_task *t, const struct us_op *op, uint64_t *word)
{
    return !try_full(t, op, word);
}

bool us_wait_shared(struct us_task *t, const struct us_op *op, bool full, uint64_t *word)
{
    attempt_fn *attempt = full ? try_full : try_empty;

    return attempt(t, op, word) || wait_until(t, op, attempt, word, NULL);
}

/* ---- meetings of all tasks
 * --------------------------------------------------------------------------- */

static void await_round(struct us_runner *r, struct us_meeting *m, uint32_t round)
{
    unsigned tries = r->oversubscribed ? MEET_SPINS : 0;

    while (atomic_load_explicit(&m->round, memory_order_acquire) == round) {
        if (++tries < MEET_SPINS) {
            relax();
        } else if (tries < MEET_SPINS + YIELDS) {
            sched_yield();
        } else {
            uint32_t turn = us_event_prepare(&m->event);

            if (atomic_load(&m->round) == round)
                us_event_sleep(&m->event, turn, SLEEP_NS);
            else
                us_event_cancel(&m->event);
        }
    }
}

void us_meet(struct us_runner *r, struct us_meeting *m, void (*last)(struct us_runner *r))
{
    uint32_t round = atomic_load_explicit(&m->round, memory_order_relaxed);

    if (atomic_fetch_add(&m->here, 1) + 1 < r->ntasks) {
        await_round(r, m, round);
        return;
    }
    atomic_store_explicit(&m->here, 0, memory_order_relaxed);
    last(r);
    atomic_fetch_add(&m->round, 1);
    us_event_notify(&m->event, INT32_MAX);
}

/* ---- progress and time
 * --------------------------------------------------------------------------- */

static bool try_progress(struct us_task *t, const struct us_op *op, uint64_t *word)
{
    const struct us_runner *r = t->runner;
    uint64_t least = US_DONE;

    (void)word;
    for (unsigned i = 0; i < r->ntasks; i++) {
        uint64_t p = i == t->index
                         ? US_DONE
                         : atomic_load_explicit(&r->task[i].progress, memory_order_relaxed);
        least = p < least ? p : least;
    }
    t->others_progress = least;
    return op->arg <= r->options.window || op->arg - r->options.window <= least;
}

bool us_wait_progress(struct us_task *t, const struct us_op *op)
{
    const struct us_runner *r = t->runner;

    atomic_store_explicit(&t->progress, op->arg, memory_order_relaxed);
    if (r->ntasks == 1 || op->arg <= r->options.window ||
        op->arg - r->options.window <= t->others_progress)
        return true;
    return try_progress(t, op, NULL) || wait_until(t, op, try_progress, NULL, NULL);
}

/* Shows the policy the workload's time, in steps, by one task at a time. */
static void show_clock(struct us_task *t, uint64_t ns)
{
    struct us_runner *r = t->runner;
    uint64_t now = r->clock_base + ns, step = CLOCK_STEP_NS;

    if (r->heap.kind != US_HEAP_ALLOCATOR || atomic_exchange(&r->clock_busy, true))
        return;
    if (now > r->clock_shown && (now - r->clock_shown) / MAX_CLOCK_STEPS > step)
        step = (now - r->clock_shown) / MAX_CLOCK_STEPS;
    while (r->clock_shown < now && !atomic_load_explicit(&r->stop, memory_order_relaxed)) {
        r->clock_shown = now - r->clock_shown > step ? r->clock_shown + step : now;
        us_clock_set(r->heap.allocator->machine, r->clock_shown);
        us_allocator_run_due(r->heap.allocator);
    }
    atomic_store(&r->clock_busy, false);
}

/* In naps, so that a stop is seen. */
static bool sleep_until(struct us_task *t, uint64_t due_ns)
{
    for (uint64_t now; (now = us_clock_real()) < due_ns;) {
        if (atomic_load_explicit(&t->runner->stop, memory_order_relaxed))
            return false;
        nap(due_ns - now < SLEEP_NS ? due_ns - now : SLEEP_NS);
    }
    return true;
}

bool us_wait_sleep(struct us_task *t, const struct us_op *op)
{
    return sleep_until(t, us_clock_real() + op->arg);
}

bool us_wait_clock(struct us_task *t, const struct us_op *op)
{
    struct us_runner *r = t->runner;

    if (r->options.pace > 0 && !sleep_until(t, atomic_load(&r->pass_start_ns) +
                                                   (uint64_t)((double)op->arg / r->options.pace)))
        return false;
    show_clock(t, op->arg);
    return true;
}

/* ---- for ever
 * ------------------------------------------------------------------------------------ */

static bool would_go_on(struct us_runner *r, struct us_task *t, const struct us_op *op)
{
    uint64_t word;

    switch (op->op) {
    case US_OP_SEND:
        return !us_channel_is_full(&r->channel[op->cache]);
    case US_OP_RECV:
        return !us_channel_is_empty(&r->channel[op->cache]);
    case US_OP_BARRIER:
        return atomic_load(&r->barrier_round) != atomic_load(&t->barrier_round);
    case X_ALLOC_SHARED:
        return try_empty(t, op, &word);
    case X_FREE_SHARED:
    case X_TOUCH_SHARED:
        return try_full(t, op, &word);
    default: {
        /* try_progress writes what belongs to the task; look by hand. */
        for (unsigned i = 0; i < r->ntasks; i++)
            if (i != t->index && atomic_load(&r->task[i].progress) < op->arg - r->options.window)
                return false;
        return true;
    }
    }
}

static const char *waits_for(const struct us_op *op, char *text, size_t size)
{
    const char *form = "the other tasks";

    switch (op->op) {
    case US_OP_SEND:
        form = "room in channel %u";
        break;
    case US_OP_RECV:
        form = "a message on channel %u";
        break;
    case US_OP_BARRIER:
        form = "the other tasks at a BARRIER";
        break;
    case X_ALLOC_SHARED:
        form = "the free of shared slot %u";
        break;
    case X_FREE_SHARED:
    case X_TOUCH_SHARED:
        form = "the allocation of shared slot %u";
        break;
    default:
        break;
    }
    snprintf(text, size, form, op->op == US_OP_SEND || op->op == US_OP_RECV ? op->cache : op->slot);
    return text;
}

static void describe(struct us_runner *r, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "deadlock, every task waits");
    unsigned shown = 0;

    for (unsigned i = 0; i < r->ntasks && used + 100 < size; i++) {
        uint64_t at = atomic_load(&r->task[i].waits_at);
        char what[64];

        if (at == US_DONE || at == 0)
            continue;
        if (++shown > 4) {
            snprintf(text + used, size - used, "; and others");
            return;
        }
        used += (size_t)snprintf(text + used, size - used, "%s task %u at op %llu for %s",
                                 shown > 1 ? ";" : ":", i, (unsigned long long)(at - 1),
                                 waits_for(&r->task[i].ops[at - 1], what, sizeof(what)));
    }
}

bool us_runner_is_stuck(struct us_runner *r, char *text, size_t size)
{
    uint64_t moved = 0, moved_again = 0;
    unsigned waiting = 0;

    for (unsigned i = 0; i < r->ntasks; i++)
        moved += atomic_load(&r->task[i].waits);
    for (unsigned i = 0; i < r->ntasks; i++) {
        struct us_task *t = &r->task[i];
        uint64_t at = atomic_load(&t->waits_at);

        if (at == US_DONE)
            continue;
        if (at == 0 || would_go_on(r, t, &t->ops[at - 1]))
            return false;
        waiting++;
    }
    for (unsigned i = 0; i < r->ntasks; i++)
        if (atomic_load(&r->task[i].tries))
            return false;
    for (unsigned i = 0; i < r->ntasks; i++)
        moved_again += atomic_load(&r->task[i].waits);
    if (waiting == 0 || moved != moved_again)
        return false;
    describe(r, text, size);
    return true;
}
#endif
