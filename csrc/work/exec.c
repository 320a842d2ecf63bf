/* exec.c - native runners: threads, passes, clean-up, errors.
 *
 * The thread that asks for passes gives a command under the mutex and sleeps until all tasks have
 * answered; it wakes every POLL_NS to ask its embedder whether to go on, and to look for deadlocks.
 * Tasks meet at the start and at the end of each pass, and the last to come does what is to be done
 * once, so that neither their waking nor any other task's lateness at the start is measured.
 * Whatever goes wrong raises `stop`; every task looks at it before each op. Between passes each
 * task frees what its own slots hold and its share of the shared slots.
 */
#define _GNU_SOURCE
#ifndef US_MODEL
#include "work/interpret.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { POLL_NS = 20000000, STACK_BYTES = 256 * 1024 };

uint64_t us_task_at(const struct us_task *t, const struct us_op *op)
{
    return (uint64_t)(op - t->ops);
}

/* ---- errors of a pass
 * ---------------------------------------------------------------------------- */

/* Keeps the first failure and stops the pass. `what` NULL: the allocation failed. */
void us_task_fail(struct us_task *t, const struct us_op *op, enum us_status status,
                  const char *what)
{
    struct us_runner *r = t->runner;
    struct us_error e = {.status = status};

    if (!what)
        what = us_inner_no_memory(&r->heap, op, &e);
    pthread_mutex_lock(&r->mutex);
    if (!r->failed) {
        r->error = (struct us_error){.status = status, .requested = e.requested, .limit = e.limit};
        snprintf(r->error.text, sizeof(r->error.text), "task %u, op %llu (%s): %.300s", t->index,
                 (unsigned long long)us_task_at(t, op), us_inner_name(op), what);
        r->failed = true;
    }
    pthread_mutex_unlock(&r->mutex);
    atomic_store(&r->stop, true);
}

/* ---- what a task does
 * ------------------------------------------------------------------------------ */

/* Everyone is reset by the last to come, then all start together. */
static void start_pass(struct us_runner *r)
{
    for (unsigned i = 0; i < r->ntasks; i++) {
        atomic_store(&r->task[i].progress, 0);
        atomic_store(&r->task[i].waits_at, 0);
        atomic_store(&r->task[i].marks, 0);
    }
    atomic_store(&r->barrier_count, 0);
    if (r->heap.kind == US_HEAP_ALLOCATOR && r->facts.span_ns)
        r->clock_base = r->clock_shown = us_now(r->heap.allocator->machine);
    atomic_store(&r->pass_start_ns, us_clock_real());
}

static void end_pass(struct us_runner *r)
{
    uint64_t start = UINT64_MAX, end = 0;

    for (unsigned i = 0; i < r->ntasks; i++) {
        start = r->task[i].start_ns < start ? r->task[i].start_ns : start;
        end = r->task[i].end_ns > end ? r->task[i].end_ns : end;
    }
    *r->ns++ = r->last_ns = end - start;
    r->passes_left = atomic_load(&r->stop) ? 0 : r->passes_left - 1;
}

static void run_program(struct us_task *t)
{
    const struct us_runner *r = t->runner;

    memset(t->loop, 0, sizeof(*t->loop) * r->facts.nloops[t->index]);
    t->others_progress = 0;
    t->start_ns = us_clock_real();
    if (r->sampling)
        interpret(t, US_HEAP_ALLOCATOR, true);
    else if (r->heap.kind == US_HEAP_ALLOCATOR)
        interpret(t, US_HEAP_ALLOCATOR, false);
    else if (r->heap.kind == US_HEAP_MALLOC)
        interpret(t, US_HEAP_MALLOC, false);
    else
        interpret(t, US_HEAP_NULL, false);
    t->end_ns = us_clock_real();
    atomic_store(&t->progress, US_DONE);
    atomic_store(&t->waits_at, US_DONE);
    atomic_fetch_add(&t->waits, 1);
}

/* Frees what the task's slots hold and its share of what belongs to all. */
static void clean_task(struct us_task *t)
{
    struct us_runner *r = t->runner;
    uint64_t word;

    for (uint32_t i = 0; i < t->nslots; i++) {
        us_inner_free(&r->heap, t->slot[i]);
        t->slot[i] = 0;
    }
    for (uint32_t i = t->index; i < r->facts.nshared; i += r->ntasks)
        us_inner_free(&r->heap, atomic_exchange_explicit(&r->shared[i], 0, memory_order_relaxed));
    for (unsigned i = t->index; i < r->nchannels; i += r->ntasks)
        while (us_channel_take(&r->channel[i], &word))
            us_inner_free(&r->heap, word);
}

/* Passes follow one another without the thread that asked for them: waking it costs more than many
 * a pass takes. */
static void run_passes(struct us_task *t)
{
    struct us_runner *r = t->runner;

    for (;;) {
        us_meet(r, &r->start, start_pass);
        run_program(t);
        us_meet(r, &r->end, end_pass);
        if (r->passes_left == 0)
            return;
        clean_task(t);
    }
}

static void obey(struct us_task *t, enum us_command command)
{
    if (command == US_COMMAND_PASS)
        run_passes(t);
    else if (command == US_COMMAND_CLEAN)
        clean_task(t);
}

static void *task_thread(void *arg)
{
    struct us_task *t = arg;
    struct us_runner *r = t->runner;
    uint64_t seen = 0;
    char name[16]; /* as top and gdb show it */

    snprintf(name, sizeof(name), "us-task %u", t->index % 1000000u);
    pthread_setname_np(pthread_self(), name);
    prctl(PR_SET_TIMERSLACK, 1ul, 0, 0, 0); /* delays of messages are often below the usual 50 us */
    for (;;) {
        enum us_command command;

        pthread_mutex_lock(&r->mutex);
        while (r->command_number == seen)
            pthread_cond_wait(&r->command_given, &r->mutex);
        seen = r->command_number;
        command = r->command;
        pthread_mutex_unlock(&r->mutex);
        obey(t, command);
        pthread_mutex_lock(&r->mutex);
        if (--r->busy == 0)
            pthread_cond_signal(&r->command_done);
        pthread_mutex_unlock(&r->mutex);
        if (command == US_COMMAND_EXIT)
            return NULL;
    }
}

/* ---- commands
 * ------------------------------------------------------------------------------------ */

static bool polled(struct us_runner *r)
{
    return r->options.poll && r->options.poll(r->options.poll_context);
}

static void stop_with(struct us_runner *r, enum us_status status, const char *text)
{
    pthread_mutex_lock(&r->mutex);
    if (!r->failed)
        us_refuse(&r->error, status, text);
    r->failed = true;
    pthread_mutex_unlock(&r->mutex);
    atomic_store(&r->stop, true);
}

/* ---- the measured part of a run with a duration: the thread that waits takes the times ----------
 */

static void begin_measure(struct us_runner *r, uint64_t now)
{
    for (unsigned i = 0; i < r->ntasks; i++)
        r->task[i].marks_before = atomic_load(&r->task[i].marks);
    r->measure_from = now;
}

static void end_measure(struct us_runner *r, uint64_t now)
{
    for (unsigned i = 0; i < r->ntasks; i++)
        r->task[i].marks_measured = atomic_load(&r->task[i].marks) - r->task[i].marks_before;
    r->measured_ns = now - r->measure_from;
}

/* Takes the time when it has come; returns the ns to the next one. */
static uint64_t measure(struct us_runner *r)
{
    uint64_t start = atomic_load(&r->pass_start_ns), now = us_clock_real(), due;

    if (!start)
        return POLL_NS / 20;
    due = r->measure_from ? r->measure_from + r->options.duration_ns : start + r->options.warmup_ns;
    if (now < due)
        return due - now;
    if (!r->measure_from) {
        begin_measure(r, now);
        return r->options.duration_ns;
    }
    if (!r->measured_ns)
        end_measure(r, now);
    atomic_store(&r->stop, true);
    return POLL_NS;
}

/* Whatever no stop at the end of a duration has measured. */
static void measure_rest(struct us_runner *r)
{
    uint64_t end = 0;

    if (r->measured_ns)
        return;
    for (unsigned i = 0; i < r->ntasks; i++)
        end = r->task[i].end_ns > end ? r->task[i].end_ns : end;
    if (!r->options.duration_ns)
        r->measure_from = end - r->last_ns;
    else if (!r->measure_from)
        begin_measure(r, end);
    end_measure(r, end > r->measure_from ? end : r->measure_from);
}

static void forget_measure(struct us_runner *r)
{
    atomic_store(&r->pass_start_ns, 0);
    r->measure_from = r->measured_ns = 0;
    for (unsigned i = 0; i < r->ntasks; i++)
        r->task[i].marks_before = r->task[i].marks_measured = 0;
}

/* One look at the world while tasks are busy. The mutex is not held. */
static void look_around(struct us_runner *r, enum us_command command)
{
    char text[400];

    if (command != US_COMMAND_PASS || atomic_load(&r->stop))
        return;
    if (polled(r))
        stop_with(r, US_EBUSY, "stopped");
    else if (us_runner_is_stuck(r, text, sizeof(text)))
        stop_with(r, US_EBUSY, text);
}

static void sleep_at_most(struct timespec *until, uint64_t ns)
{
    clock_gettime(CLOCK_MONOTONIC, until);
    until->tv_nsec += (long)ns;
    if (until->tv_nsec >= 1000000000) {
        until->tv_sec++;
        until->tv_nsec -= 1000000000;
    }
}

static void command(struct us_runner *r, enum us_command what)
{
    const bool timed = what == US_COMMAND_PASS && r->options.duration_ns;
    struct timespec until;

    pthread_mutex_lock(&r->mutex);
    r->command = what;
    r->command_number++;
    r->busy = 0;
    for (unsigned i = 0; i < r->ntasks; i++)
        r->busy += r->task[i].started;
    pthread_cond_broadcast(&r->command_given);
    while (r->busy > 0) {
        uint64_t wait = timed ? measure(r) : POLL_NS;

        sleep_at_most(&until, wait < POLL_NS ? wait : POLL_NS);
        if (pthread_cond_timedwait(&r->command_done, &r->mutex, &until) != ETIMEDOUT)
            continue;
        pthread_mutex_unlock(&r->mutex);
        look_around(r, what);
        pthread_mutex_lock(&r->mutex);
    }
    pthread_mutex_unlock(&r->mutex);
}

/* ---- passes
 * ---------------------------------------------------------------------------------------- */

void us_runner_clean(struct us_runner *r)
{
    if (!r->dirty || r->owner_pid != getpid())
        return;
    command(r, US_COMMAND_CLEAN);
    r->dirty = false;
}

/* ---- peaks of accounts
 * ------------------------------------------------------------------------------ */

/* Takes the accounts, unless another task is at it. */
void us_runner_sample(struct us_runner *r)
{
    if (atomic_exchange(&r->sample_busy, true))
        return;
    us_inner_peak(r->heap.allocator, &r->peak);
    atomic_store(&r->sample_busy, false);
}

enum us_status us_runner_peaks(struct us_runner *r, struct us_account *peak, struct us_error *error)
{
    enum us_status status;
    uint64_t ns;

    if (r->heap.kind != US_HEAP_ALLOCATOR) {
        us_refuse(error, US_EINVAL, "only an allocator has accounts");
        return US_EINVAL;
    }
    memset(&r->peak, 0, sizeof(r->peak));
    r->sampling = true;
    status = us_runner_passes(r, 1, &ns, error);
    r->sampling = false;
    if (status != US_OK)
        return status;
    us_runner_sample(r);
    *peak = r->peak;
    return US_OK;
}

void us_runner_forget_cache(struct us_runner *r, const struct us_cache *cache)
{
    us_heap_forget(&r->heap, cache);
}

void us_runner_forget(struct us_runner *r)
{
    for (unsigned i = 0; i < r->ntasks; i++)
        memset(r->task[i].slot, 0, r->task[i].nslots * sizeof(*r->task[i].slot));
    memset((void *)r->shared, 0, r->facts.nshared * sizeof(*r->shared));
    r->dirty = false;
}

void us_runner_set_poll_context(struct us_runner *r, void *context)
{
    r->options.poll_context = context;
}

/* A workload that tells the time made the policy's clock manual: it goes on from where it is. */
static void release_clock(struct us_runner *r)
{
    struct us_machine *m;

    if (r->heap.kind != US_HEAP_ALLOCATOR || !r->facts.span_ns)
        return;
    m = r->heap.allocator->machine;
    if (!atomic_load(&m->clock_manual))
        return;
    atomic_store(&m->clock_offset, atomic_load(&m->clock_offset) - us_clock_real());
    atomic_store(&m->clock_manual, 0);
}

enum us_status us_runner_passes(struct us_runner *r, unsigned n, uint64_t *ns,
                                struct us_error *error)
{
    if (r->owner_pid != getpid()) {
        us_refuse(error, US_EINVAL, "threads do not survive fork; make a new runner in the child");
        return US_EINVAL;
    }
    if (n != 1 && r->options.duration_ns) {
        us_refuse(error, US_EINVAL, "a run with a duration is one pass");
        return US_EINVAL;
    }
    us_runner_clean(r);
    atomic_store(&r->stop, false);
    forget_measure(r);
    r->failed = false;
    r->dirty = true;
    r->passes_left = n;
    r->ns = ns;
    command(r, US_COMMAND_PASS);
    release_clock(r);
    if (!r->failed) {
        measure_rest(r);
        return US_OK;
    }
    us_runner_clean(r);
    r->failed = false;
    if (error)
        *error = r->error;
    return r->error.status;
}

unsigned us_runner_ntasks(const struct us_runner *r)
{
    return r->ntasks;
}

uint64_t us_runner_task_ns(const struct us_runner *r, unsigned task)
{
    uint64_t start = UINT64_MAX;

    for (unsigned i = 0; i < r->ntasks; i++)
        start = r->task[i].start_ns < start ? r->task[i].start_ns : start;
    return r->task[task].end_ns - start;
}

uint64_t us_runner_marks(const struct us_runner *r, unsigned task)
{
    return r->task[task].marks_measured;
}

uint64_t us_runner_elapsed_ns(const struct us_runner *r)
{
    return r->measured_ns;
}

const struct us_program_facts *us_runner_facts(const struct us_runner *r)
{
    return &r->facts;
}

uint64_t us_runner_live_bytes(const struct us_runner *r, uint64_t *objects)
{
    uint64_t bytes = 0, n = 0, word;

    for (unsigned i = 0; i < r->ntasks; i++)
        for (uint32_t s = 0; s < r->task[i].nslots; s++)
            if ((word = r->task[i].slot[s]) != 0) {
                bytes += r->heap.cache[us_word_cache(word)].size;
                n++;
            }
    for (uint32_t s = 0; s < r->facts.nshared; s++)
        if ((word = atomic_load(&r->shared[s])) != 0) {
            bytes += r->heap.cache[us_word_cache(word)].size;
            n++;
        }
    *objects = n;
    return bytes;
}

/* ---- making a runner
 * ------------------------------------------------------------------------------- */

static bool make_task(struct us_runner *r, unsigned index, const struct us_program *p)
{
    const struct us_program_task *from = &p->task[index];
    struct us_task *t = &r->task[index];
    uint64_t largest = US_LINE;

    t->runner = r;
    t->index = index;
    t->nslots = r->facts.nslots[index];
    t->ncpus = from->ncpus;
    t->slot = calloc(t->nslots + 1u, sizeof(*t->slot));
    t->loop = calloc(r->facts.nloops[index] + 1u, sizeof(*t->loop));
    t->cpu = calloc(from->ncpus + 1u, sizeof(*t->cpu));
    if (r->heap.kind == US_HEAP_NULL) {
        for (unsigned i = 0; i < p->ncaches; i++)
            largest = p->cache[i].size > largest ? p->cache[i].size : largest;
        t->scratch = malloc(largest);
    }
    if (!t->slot || !t->loop || !t->cpu || (r->heap.kind == US_HEAP_NULL && !t->scratch))
        return false;
    if (from->ncpus)
        memcpy(t->cpu, from->cpu, from->ncpus * sizeof(*t->cpu));
    t->nops = from->nops;
    t->ops = us_inner_ops(&r->heap, from);
    return t->ops != NULL;
}

static bool start_thread(struct us_task *t, struct us_error *error)
{
    pthread_attr_t attributes;
    cpu_set_t set;
    char text[200];
    int failed;

    CPU_ZERO(&set);
    for (unsigned i = 0; i < t->ncpus; i++)
        if (t->cpu[i] < CPU_SETSIZE)
            CPU_SET(t->cpu[i], &set);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(
        &attributes, STACK_BYTES > PTHREAD_STACK_MIN ? STACK_BYTES : (size_t)PTHREAD_STACK_MIN);
    if (t->ncpus)
        pthread_attr_setaffinity_np(&attributes, sizeof(set), &set);
    failed = pthread_create(&t->thread, &attributes, task_thread, t);
    pthread_attr_destroy(&attributes);
    t->started = !failed;
    if (!failed)
        return true;
    snprintf(text, sizeof(text), "task %u: no thread on CPU %d: %s", t->index,
             t->ncpus ? (int)t->cpu[0] : -1, strerror(failed));
    return us_refuse(error, failed == EINVAL ? US_EINVAL : US_ENOMEM, text);
}

/* Signals are for the thread that waits: it is the one that asks whether to go on. */
static bool start_threads(struct us_runner *r, struct us_error *error)
{
    sigset_t all, before;
    bool ok = true;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (unsigned i = 0; i < r->ntasks && ok; i++)
        ok = start_thread(&r->task[i], error);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return ok;
}

static bool make_parts(struct us_runner *r, const struct us_program *p, struct us_error *error)
{
    r->task = aligned_alloc(_Alignof(struct us_task), p->ntasks * sizeof(*r->task));
    r->channel =
        aligned_alloc(_Alignof(struct us_channel), (p->nchannels + 1u) * sizeof(*r->channel));
    r->shared = calloc(r->facts.nshared + 1u, sizeof(*r->shared));
    if (!r->task || !r->channel || !r->shared)
        return us_refuse(error, US_ENOMEM, "no memory for the tables of a workload");
    memset(r->task, 0, p->ntasks * sizeof(*r->task));
    r->ntasks = p->ntasks;
    for (; r->nchannels < p->nchannels; r->nchannels++)
        if (!us_channel_init(&r->channel[r->nchannels], p->channel[r->nchannels]))
            return us_refuse(error, US_ENOMEM, "no memory for the channels of a workload");
    for (unsigned i = 0; i < p->ntasks; i++)
        if (!make_task(r, i, p))
            return us_refuse(error, US_ENOMEM, "no memory for the programs of a workload");
    return true;
}

static void init_sync(struct us_runner *r)
{
    pthread_condattr_t attributes;

    pthread_mutex_init(&r->mutex, NULL);
    pthread_cond_init(&r->command_given, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&r->command_done, &attributes);
    pthread_condattr_destroy(&attributes);
}

static bool is_oversubscribed(unsigned ntasks)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof(set), &set))
        return false;
    return ntasks > (unsigned)CPU_COUNT(&set);
}

struct us_runner *us_runner_create(const struct us_program *p, const struct us_run_options *o,
                                   struct us_error *error)
{
    struct us_runner *r = aligned_alloc(_Alignof(struct us_runner), sizeof(*r));
    struct us_program_facts facts;

    if (!r) {
        us_refuse(error, US_ENOMEM, "no memory for a run");
        return NULL;
    }
    if (us_program_check(p, &facts, error) != US_OK) {
        free(r);
        return NULL;
    }
    memset(r, 0, sizeof(*r));
    r->options = *o;
    r->facts = facts;
    r->owner_pid = getpid();
    r->oversubscribed = is_oversubscribed(p->ntasks);
    init_sync(r);
    if (us_heap_init(&r->heap, p, o, error) && make_parts(r, p, error) && start_threads(r, error))
        return r;
    us_runner_destroy(r);
    return NULL;
}

void us_runner_destroy(struct us_runner *r)
{
    if (!r)
        return;
    if (r->owner_pid == getpid()) {
        us_runner_clean(r);
        command(r, US_COMMAND_EXIT);
        for (unsigned i = 0; i < r->ntasks; i++)
            if (r->task[i].started)
                pthread_join(r->task[i].thread, NULL);
    }
    for (unsigned i = 0; i < r->ntasks; i++) {
        free(r->task[i].ops);
        free(r->task[i].slot);
        free(r->task[i].loop);
        free(r->task[i].cpu);
        free(r->task[i].scratch);
    }
    for (unsigned i = 0; i < r->nchannels; i++)
        us_channel_release(&r->channel[i]);
    free(r->task);
    free(r->channel);
    free((void *)r->shared);
    us_heap_release(&r->heap);
    us_program_facts_release(&r->facts);
    if (r->owner_pid == getpid()) { /* else threads that are no more still wait on them */
        pthread_cond_destroy(&r->command_done);
        pthread_cond_destroy(&r->command_given);
        pthread_mutex_destroy(&r->mutex);
    }
    free(r);
}
#endif
