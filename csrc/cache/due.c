/* due.c - what runs by the policy's clock: ticks of policies, the purge of free pages, frees after
 * a grace period, the reaper.
 *
 * Nothing runs by itself. Executors call us_allocator_run_due as their clock moves;
 * us_allocator_advance moves the clock from one due time to the next, so that nothing is skipped;
 * the reaper does both in real time, from a thread of its own. On a modelled machine there is no
 * such thread: the reaper is one more thing that is due; and there every CPU can run its own ticks
 * (us_allocator_ticks_on), as the originals' timers do, where otherwise who calls runs all of them.
 */
#include "cache/internal.h"

#include <stdlib.h>

#ifndef US_MODEL
#include <pthread.h>
#include <signal.h>
#include <time.h>
#endif

#define NEVER      UINT64_MAX
#define CATCH_UP   64     /* missed ticks of one cache that one call makes good */
#define MOST_WAITS 7      /* doublings of the wait between looks at a quiet cache */
#define MOST_STEPS 100000 /* of the clock in one us_allocator_advance */

struct us_reaper {
    struct us_allocator *allocator;
    uint64_t period, number;
    uint64_t next; /* model: on the policy's clock */
#ifndef US_MODEL
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop;
#endif
};

/* ---- ticks ------------------------------------------------------------------------------------
 */

static uint64_t period_of(const struct us_cache *c)
{
    return c->policy->tick && c->policy->tick_period ? c->policy->tick_period(c) : 0;
}

void us_due_at(struct us_allocator *a, uint64_t due)
{
    uint64_t old = atomic_load(&a->next_tick);

    while (due < old && !atomic_compare_exchange_weak(&a->next_tick, &old, due))
        ;
}

/* When something of `period` is due next, having been due at `due` (0 = not at all). */
static uint64_t next_due(uint64_t due, uint64_t period, uint64_t now)
{
    if (period == 0)
        return 0;
    return due == 0 || due > now + period ? now + period : due;
}

static uint64_t adapt_period_of(const struct us_cache *c)
{
    return c->policy->adapt_period ? c->policy->adapt_period(c) : 0;
}

void us_schedule(struct us_allocator *a, struct us_cache *c)
{
    const uint64_t now = us_now(a->machine), periods[] = {period_of(c), adapt_period_of(c)};
    uint64_t *const due[] = {&us_box(c)->next_tick, &us_box(c)->next_adapt};
    unsigned i;

    for (i = 0; i < 2; i++) {
        uint64_t next = next_due(__atomic_load_n(due[i], __ATOMIC_RELAXED), periods[i], now);

        __atomic_store_n(due[i], next, __ATOMIC_RELAXED);
        if (next)
            us_due_at(a, next);
    }
}

/* When a cache's tick is due that may not wait beyond `now`; 0 = none is. */
static uint64_t tick_due(struct us_cache *c, uint64_t now)
{
    const uint64_t due = __atomic_load_n(&us_box(c)->next_tick, __ATOMIC_RELAXED);

    return due <= now && period_of(c) ? due : 0;
}

static bool tick_closes(struct us_cache *c, unsigned cpu, uint64_t now)
{
    const uint64_t due = tick_due(c, now);

    return due && c->policy->tick_closes && c->policy->tick_closes(c, cpu, due);
}

/* One tick of every cache that is due: first all on one CPU, whose queues are closed together. */
static void tick_cpu(struct us_allocator *a, struct us_flight *f, unsigned cpu, uint64_t now)
{
    const bool round = us_begin_round(a, f, cpu, tick_closes, now);
    struct us_cache *c;
    uint64_t due;

    for (c = us_first_cache(a); c; c = c->next) {
        due = tick_due(c, now);
        if (due)
            c->policy->tick(c, f, cpu, due);
        if (round)
            us_round_leave(&c->local, f);
    }
    if (round)
        us_round_end(f);
}

/* Every tick that is due was done; with `last` those still missed are not made good. */
static void tick_done(struct us_allocator *a, uint64_t now, bool last)
{
    struct us_cache *c;
    uint64_t due;

    for (c = us_first_cache(a); c; c = c->next) {
        due = tick_due(c, now);
        if (!due)
            continue;
        due += period_of(c);
        if (last && due <= now)
            due = now + period_of(c);
        __atomic_store_n(&us_box(c)->next_tick, due, __ATOMIC_RELAXED);
    }
}

static uint64_t first_due(const struct us_allocator *a)
{
    uint64_t first = NEVER, due;
    struct us_cache *c;

    for (c = us_first_cache(a); c; c = c->next) {
        due = tick_due(c, NEVER);
        first = due && due < first ? due : first;
    }
    return first;
}

/* Runs the ticks that are due, the missed ones too; returns when the next one is. */
static uint64_t tick_all(struct us_allocator *a, struct us_flight *f, uint64_t now)
{
    uint64_t next = first_due(a);
    unsigned n, cpu;

    for (n = 1; n <= CATCH_UP && next <= now; n++) {
        for (cpu = 0; cpu < a->machine->ncpus; cpu++)
            if (us_cpu_online(a->machine, cpu))
                tick_cpu(a, f, cpu, now);
        tick_done(a, now, n == CATCH_UP);
        next = first_due(a);
    }
    return next;
}

uint64_t us_allocator_ticks_due(struct us_allocator *a, uint64_t now)
{
    uint64_t shortest = 0, period;
    struct us_cache *c;

    for (c = us_first_cache(a); c; c = c->next) {
        period = tick_due(c, now) ? period_of(c) : 0;
        if (period && (!shortest || period < shortest))
            shortest = period;
    }
    return shortest;
}

void us_allocator_ticks_on(struct us_allocator *a, unsigned cpu, uint64_t now)
{
    struct us_flight f;

    if (!us_cpu_online(a->machine, cpu) || !us_flight_try(a->machine, &f))
        return;
    tick_cpu(a, &f, cpu, now);
    us_flight_leave(&f);
}

void us_allocator_ticks_done(struct us_allocator *a, uint64_t now)
{
    tick_done(a, now, false);
}

/* Asks whether sizes should follow the traffic, if that is due; returns when it is due next. A
 * cache that wants nothing is asked less and less often. Looks fall on whole multiples of their
 * wait, those of all caches together: each time that anything is due, all caches are walked. */
static uint64_t look_at(struct us_cache *c, uint64_t now, bool *wanted)
{
    const uint64_t period = adapt_period_of(c);
    struct us_cache_box *box = us_box(c);
    uint64_t wait, due = __atomic_load_n(&box->next_adapt, __ATOMIC_RELAXED);

    if (due == 0 || period == 0)
        return NEVER;
    if (due > now)
        return due;
    if (c->policy->wants_adapt(c)) {
        box->adapt_waits = 0;
        *wanted = true;
    } else if (box->adapt_waits < MOST_WAITS) {
        box->adapt_waits++;
    }
    wait = period << box->adapt_waits;
    due = now - now % wait + wait;
    __atomic_store_n(&box->next_adapt, due, __ATOMIC_RELAXED);
    return due;
}

/* Lets every cache that wants to change its sizes. Alone: the gate is shut, regions are closed. */
static void adapt_all(struct us_allocator *a)
{
    struct us_flight f;
    struct us_cache *c;

    us_config_take(a);
    us_allocator_stop(a, &f);
    for (c = us_first_cache(a); c; c = c->next)
        if (c->policy->adapt && c->policy->wants_adapt(c))
            c->policy->adapt(c, &f);
    us_allocator_resume(a, &f);
    us_config_drop(a);
}

static uint64_t purge_if_due(struct us_allocator *a, struct us_flight *f, uint64_t now)
{
    uint64_t due = atomic_load(&a->next_purge);

    if (due > now)
        return due;
    us_memory_purge(a->memory, f, now, false);
    due = now + (a->purge_delay_ns ? a->purge_delay_ns : 1000000);
    atomic_store(&a->next_purge, due);
    return due;
}

static void run(struct us_allocator *a, uint64_t now)
{
    uint64_t next = us_reaper_due(a), due;
    bool adapt = false;
    struct us_flight f;
    struct us_cache *c;

    if (next <= now) {
        us_allocator_expire(a, US_ANY_NODE);
        us_reaper_ran(a);
        next = us_reaper_due(a);
    }
    if (!us_flight_try(a->machine, &f))
        return;
    atomic_store(&a->next_tick, NEVER);
    due = tick_all(a, &f, now);
    next = due < next ? due : next;
    for (c = us_first_cache(a); c; c = c->next) {
        due = look_at(c, now, &adapt);
        next = due < next ? due : next;
    }
    due = purge_if_due(a, &f, now);
    us_flight_leave(&f);
    next = due < next ? due : next;
    due = us_rcu_run_due(a, now);
    us_due_at(a, due < next ? due : next);
    if (adapt)
        adapt_all(a);
}

void us_allocator_run_due(struct us_allocator *a)
{
    const uint64_t now = us_now(a->machine);

    if (US_LIKELY(atomic_load_explicit(&a->next_tick, memory_order_relaxed) > now))
        return;
    if (atomic_exchange(&a->running, 1))
        return;
    run(a, now);
    atomic_store(&a->running, 0);
}

void us_allocator_advance(struct us_allocator *a, uint64_t delta_ns)
{
    unsigned step;

    us_allocator_run_due(a);
    for (step = 0; step < MOST_STEPS; step++) {
        const uint64_t due = atomic_load(&a->next_tick), now = us_now(a->machine);

        if (due > now && due - now > delta_ns)
            break;
        if (due > now) {
            us_clock_advance(a->machine, due - now);
            delta_ns -= due - now;
        }
        us_allocator_run_due(a);
    }
    us_clock_advance(a->machine, delta_ns);
    us_allocator_run_due(a);
}

/* ---- the reaper ------------------------------------------------------------------------------ */

#ifdef US_MODEL

uint64_t us_reaper_due(const struct us_allocator *a)
{
    return a->reaper ? a->reaper->next : NEVER;
}

void us_reaper_ran(struct us_allocator *a)
{
    a->reaper->next = us_now(a->machine) + a->reaper->period;
}

static bool start(struct us_reaper *r)
{
    r->next = us_now(r->allocator->machine) + r->period;
    us_due_at(r->allocator, r->next);
    return true;
}

static void stop(struct us_reaper *r)
{
    (void)r;
}

void us_reaper_fork_child(struct us_allocator *a)
{
    (void)a;
}

#else

uint64_t us_reaper_due(const struct us_allocator *a)
{
    (void)a;
    return NEVER;
}

void us_reaper_ran(struct us_allocator *a)
{
    (void)a;
}

static void sleep_period(struct us_reaper *r)
{
    const uint64_t until = us_clock_real() + r->period;
    const struct timespec t = {
        .tv_sec = (time_t)(until / 1000000000u),
        .tv_nsec = (long)(until % 1000000000u),
    };

    while (!r->stop && us_clock_real() < until)
        pthread_cond_timedwait(&r->wake, &r->lock, &t);
}

static void *reap(void *context)
{
    struct us_reaper *r = context;
    struct us_allocator *a = r->allocator;

    pthread_mutex_lock(&r->lock);
    for (;;) {
        sleep_period(r);
        if (r->stop)
            break;
        pthread_mutex_unlock(&r->lock);
        us_allocator_expire(a, US_ANY_NODE);
        us_allocator_run_due(a);
        pthread_mutex_lock(&r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* The thread takes no signals: they are for the program's own threads. */
static bool start(struct us_reaper *r)
{
    pthread_condattr_t monotonic;
    sigset_t all, old;
    bool started;

    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&r->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    started = pthread_create(&r->thread, NULL, reap, r) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return started;
}

static void stop(struct us_reaper *r)
{
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_signal(&r->wake);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
}

/* The thread is not in the child, and its mutex is in any state. */
void us_reaper_fork_child(struct us_allocator *a)
{
    atomic_store(&a->expiring, 0);
    atomic_store(&a->running, 0);
    if (a->reaper && !start(a->reaper)) {
        free(a->reaper);
        a->reaper = NULL;
    }
}

#endif

/* The reaper there was, out of its place; NULL when it is not the one that is meant (0 = any). */
static struct us_reaper *replace(struct us_allocator *a, uint64_t number, struct us_reaper *r)
{
    struct us_reaper *old;

    us_config_take(a);
    old = a->reaper;
    if (old && number && old->number != number)
        old = NULL;
    else
        a->reaper = r;
    us_config_drop(a);
    return old;
}

/* Waits for its end with no lock held: it may be about to take the configuration lock itself. */
static void end(struct us_reaper *r)
{
    if (!r)
        return;
    stop(r);
    free(r);
}

static struct us_reaper *begin(struct us_allocator *a, uint64_t period_ns)
{
    struct us_reaper *r = calloc(1, sizeof(*r));

    if (!r)
        return NULL;
    r->allocator = a;
    r->period = period_ns;
    r->number = atomic_fetch_add(&a->reapers, 1) + 1;
    if (start(r))
        return r;
    free(r);
    return NULL;
}

enum us_status us_allocator_reaper_start(struct us_allocator *a, uint64_t period_ns,
                                         uint64_t *number, struct us_error *e)
{
    struct us_reaper *r;

    end(replace(a, 0, NULL));
    r = begin(a, period_ns);
    if (!r)
        return us_error_fill(e, US_ENOMEM, "the reaper thread could not be started");
    *number = r->number;
    end(replace(a, 0, r)); /* another thread was faster: the last one stays */
    return US_OK;
}

void us_allocator_reaper_stop(struct us_allocator *a, uint64_t number)
{
    end(replace(a, number, NULL));
}

uint64_t us_allocator_reaper_number(struct us_allocator *a)
{
    uint64_t number;

    us_config_take(a);
    number = a->reaper ? a->reaper->number : 0;
    us_config_drop(a);
    return number;
}

enum us_status us_allocator_reaper(struct us_allocator *a, uint64_t period_ns, struct us_error *e)
{
    uint64_t number;

    if (period_ns)
        return us_allocator_reaper_start(a, period_ns, &number, e);
    us_allocator_reaper_stop(a, 0);
    return US_OK;
}
