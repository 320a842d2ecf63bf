/* model_exec.c - runs an op program on a modelled machine, in virtual time.
 *
 * Every virtual CPU runs the loop `cpu_loop`: it takes a task from the scheduler and interprets its
 * ops until the task waits, its turn is over, or an interrupt comes. Between two ops the CPU lets
 * all others run that are earlier (sim.h). Of an op only the allocator's part is real; the rest is
 * time and lines.
 *
 * A pass ends when every task has ended its program. A run with a duration is stopped between two
 * ops of every CPU, first when the warm-up is over and then at its end.
 *
 * The policy's clock is virtual time, but for a trace that runs flat out: there it follows the
 * time stamps. Whatever is due by it is done as an interrupt would, between two ops: ticks by each
 * CPU for itself, one after the other as the originals' timers are staggered, purges and adaptation
 * by one.
 */
#ifdef US_MODEL
#include "work/model_run.h"

#include "work/channel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POLL_EVENTS = 200000 };
#define MOST_STAGGER \
    3000000000ull /* ps, as between the timers of neighbours in kernels of the time */
#define MOST_VIRTUAL_PS (3600ull * 1000000000000ull) /* an hour a pass: something runs away */

/* ---- errors ------------------------------------------------------------------------------------
 */

static void stop_with(struct us_runner *r, enum us_status status, const char *text)
{
    if (!r->failed)
        us_refuse(&r->error, status, text);
    r->failed = true;
    r->stop = true;
}

/* Keeps the first failure. `what` NULL: the allocation failed. */
void us_model_fail(struct us_model_task *t, enum us_status status, const char *what)
{
    struct us_runner *r = t->run;
    struct us_error e = {.status = status};
    char text[400];

    if (!what)
        what = us_inner_no_memory(&r->heap, t->at, &e);
    snprintf(text, sizeof(text), "task %u, op %llu (%s): %.300s", t->index,
             (unsigned long long)(t->at - t->ops), us_inner_name(t->at), what);
    if (!r->failed) {
        stop_with(r, status, text);
        r->error.requested = e.requested;
        r->error.limit = e.limit;
    }
}

/* ---- accounts ----------------------------------------------------------------------------------
 */

static void take_row(struct us_runner *r, uint64_t ps)
{
    struct us_memory_account memory;
    struct us_timeline_row *row;
    struct us_account now;

    if (r->nrows == r->row_room) {
        uint64_t room = r->row_room ? 2 * r->row_room : 256;
        struct us_timeline_row *more = realloc(r->row, room * sizeof(*more));

        if (!more)
            return;
        r->row = more;
        r->row_room = room;
    }
    us_allocator_account(r->heap.allocator, &now, &memory);
    row = &r->row[r->nrows++];
    *row = (struct us_timeline_row){
        .ns = (ps - r->start) / 1000,
        .live = now.live,
        .queued = now.queued,
        .free_in_slabs = now.free_in_slabs,
        .reserved = now.reserved,
        .metadata = memory.metadata,
    };
    for (struct us_cache *c = r->heap.allocator->caches; c; c = c->next)
        row->slabs += (uint64_t)us_sum_of_nodes(c, c->nr_slabs);
    for (unsigned i = 0; i < r->ntasks; i++)
        row->marks += r->task[i].marks;
}

/* No CPU is inside the allocator, and none has stopped the others. */
static bool is_quiet(const struct us_runner *r)
{
    return r->sim->flights == 0 && !r->sim->gate_owner && !r->running_due;
}

static bool look_is_due(const struct us_runner *r, const struct us_vcpu *v)
{
    return is_quiet(r) &&
           (r->events >= r->next_sample || (r->options.timeline_ns && v->clock >= r->next_row));
}

/* A look asks each CPU, and the more there are the smaller is what one of them changes. */
static uint64_t look_stride(uint64_t ncpus)
{
    return 16 * ncpus + ncpus * ncpus / 64;
}

/* Looks at the accounts, free of charge and on the caller's own stack, while no CPU is inside the
 * allocator. */
static void look(struct us_runner *r)
{
    const struct us_vcpu *v = r->looker;

    r->looker = NULL;
    if (!v || !is_quiet(r))
        return;
    if (r->events >= r->next_sample) {
        us_inner_peak(r->heap.allocator, &r->peak);
        r->next_sample = r->events + r->events / 512 + look_stride(r->machine->ncpus);
    }
    if (r->options.timeline_ns && v->clock >= r->next_row) {
        take_row(r, v->clock);
        r->next_row = v->clock + r->options.timeline_ns * 1000;
    }
}

/* ---- what is due by the policy's clock ---------------------------------------------------------
 */

static uint64_t due_ps(const struct us_runner *r)
{
    uint64_t due = atomic_load_explicit(&r->heap.allocator->next_tick, memory_order_relaxed);
    uint64_t ns = due - r->clock_base;

    if (due == UINT64_MAX || due < r->clock_base || ns > US_FOREVER / 1000)
        return due < r->clock_base ? 0 : US_FOREVER;
    return ns * 1000;
}

static void enter_tick(struct us_runner *r, struct us_vcpu *v)
{
    r->interrupts++;
    us_sim_spend(v, US_PHASE_INTERRUPT, r->sim->cost.interrupt);
}

static void run_due(struct us_runner *r)
{
    enum us_phase before;

    if (r->running_due)
        return;
    r->running_due = true;
    before = us_phase_set(US_PHASE_SLOW);
    us_allocator_run_due(r->heap.allocator);
    us_phase_set(before);
    r->running_due = false;
}

static void tick_event(void *context, uint64_t now);

static void set_tick(struct us_runner *r)
{
    uint64_t due = due_ps(r);

    if (due != US_FOREVER && r->machine->virtual_clock)
        (void)us_sim_at(r->sim, due > r->start ? due : r->start, tick_event, r, due);
}

/* Nobody will ever go on but for ticks. */
static bool all_wait(const struct us_runner *r)
{
    return r->pending == 0 && r->sim->nheap == 0 && !r->paused;
}

static void cpu_ticks_event(void *context, uint64_t cpu)
{
    struct us_runner *r = context;

    if (r->stop || all_wait(r))
        return;
    r->cpu[cpu].ticks = true;
    us_sim_wake(r->sim, (unsigned)cpu, r->sim->event_now);
}

/* Ticks of the CPUs come MOST_STAGGER apart, or all within half a period. */
static bool spread_ticks(struct us_runner *r, uint64_t at)
{
    const unsigned ncpus = r->machine->ncpus;
    uint64_t period, step;

    r->tick_now = r->clock_base + at / 1000;
    period = us_allocator_ticks_due(r->heap.allocator, r->tick_now);
    if (!period)
        return false;
    step = period * 1000 / 2 / ncpus;
    step = step < MOST_STAGGER ? step : MOST_STAGGER;
    r->ticks_left = ncpus;
    for (unsigned cpu = 0; cpu < ncpus; cpu++)
        if (!us_sim_at(r->sim, at + cpu * step, cpu_ticks_event, r, cpu))
            us_model_fail(&r->task[0], US_ENOMEM, "no memory for events");
    return true;
}

/* What is not each CPU's own the first does, between two ops or out of its sleep. */
static void tick_event(void *context, uint64_t due)
{
    struct us_runner *r = context;
    uint64_t now = r->sim->event_now;

    (void)due;
    if (r->stop || all_wait(r) || spread_ticks(r, now))
        return;
    r->cpu[0].tick = true;
    us_sim_wake(r->sim, 0, now);
}

/* Who runs its ticks last does the rest. */
static void own_ticks(struct us_runner *r, struct us_model_cpu *c)
{
    enum us_phase before;

    c->ticks = false;
    before = us_phase_set(US_PHASE_SLOW);
    us_allocator_ticks_on(r->heap.allocator, c->vcpu->id, r->tick_now);
    us_phase_set(before);
    if (--r->ticks_left > 0)
        return;
    us_allocator_ticks_done(r->heap.allocator, r->tick_now);
    c->tick = true;
}

static void tick(struct us_runner *r, struct us_model_cpu *c)
{
    enter_tick(r, c->vcpu);
    if (c->ticks)
        own_ticks(r, c);
    if (!c->tick)
        return;
    c->tick = false;
    run_due(r);
    set_tick(r);
}

US_INLINE bool has_tick(const struct us_model_cpu *c)
{
    return c->tick || c->ticks;
}

/* ---- a task's turn -----------------------------------------------------------------------------
 */

static void end_task(struct us_model_task *t, struct us_vcpu *v)
{
    struct us_runner *r = t->run;

    t->state = US_TASK_DONE;
    t->end = v->clock;
    us_model_task_done(t, v);
    if (++r->ndone == r->ntasks)
        r->stop = true;
}

/* Signal handlers may call whatever there is, also on this allocator, or fork: they run while no
 * CPU is inside the allocator. If there always is one, all CPUs stop between two ops. */
static void rest(struct us_runner *r)
{
    r->rest = true;
    r->sim->event_limit = 0;
}

static void between_ops(struct us_runner *r, struct us_model_cpu *c)
{
    struct us_vcpu *v = c->vcpu;

    if (US_UNLIKELY(r->events >= r->next_poll)) {
        if (r->poll_is_due)
            rest(r);
        r->next_poll = r->events + POLL_EVENTS;
        r->poll_is_due = true;
        if (v->clock - r->start > MOST_VIRTUAL_PS && !r->stop)
            stop_with(r, US_EINVAL, us_model_too_long);
    }
    if (US_UNLIKELY(r->poll_is_due) && is_quiet(r))
        us_sim_leave(r->sim);
    if (US_UNLIKELY(look_is_due(r, v))) {
        r->looker = v;
        us_sim_leave(r->sim);
    }
    us_sim_settle(v);
    if (US_UNLIKELY(r->pause || r->rest)) {
        v->next = r->paused;
        r->paused = v;
        us_sim_wait(v);
    }
    if (US_UNLIKELY(has_tick(c)))
        tick(r, c);
}

/* Interprets until the task waits or ends, or others have to run. */
static void run_task(struct us_runner *r, struct us_model_cpu *c, struct us_model_task *t)
{
    struct us_vcpu *v = c->vcpu;

    t->state = US_TASK_RUNS;
    while (!r->stop) {
        const struct us_op *op = t->at;

        if (op->op == US_OP_REPEAT) {
            if (++t->loop[op->cache] < op->arg) {
                t->at = op - op->slot;
            } else {
                t->loop[op->cache] = 0;
                t->at = op + 1;
            }
            continue;
        }
        switch (us_model_op(t, v, op)) {
        case US_OUTCOME_WAITS:
            return;
        case US_OUTCOME_ENDS:
            if (!r->failed)
                end_task(t, v);
            return;
        case US_OUTCOME_DONE:
            break;
        }
        t->served = false;
        t->at = op + 1;
        r->events++;
        between_ops(r, c);
        if (US_UNLIKELY(c->interrupts.first != NULL) && !t->interrupt) {
            us_sched_requeue(c, t, true);
            return;
        }
        if (US_UNLIKELY(c->ready.first != NULL) && v->clock >= c->turn_ends && !t->interrupt) {
            us_sched_requeue(c, t, false);
            return;
        }
    }
}

/* What it costs to come to the task. */
static void enter_task(struct us_runner *r, struct us_model_cpu *c, struct us_model_task *t)
{
    struct us_vcpu *v = c->vcpu;

    if (t->ready_at > v->clock) {
        us_sim_spend(v, US_PHASE_IDLE, t->ready_at - v->clock);
        us_sim_settle(v);
    }
    if (t->interrupt) {
        if (!c->in_interrupt) {
            us_sim_spend(v, US_PHASE_INTERRUPT, r->sim->cost.interrupt);
            r->interrupts++;
        }
        c->in_interrupt = true;
        return;
    }
    c->in_interrupt = false;
    if (c->last != t) {
        us_sim_spend(v, US_PHASE_SWITCH, c->last ? r->sim->cost.context_switch : 0);
        r->switches += c->last != NULL;
        c->last = t;
        c->turn_ends = v->clock + US_TURN_PS;
    } else if (v->clock >= c->turn_ends) {
        c->turn_ends = v->clock + US_TURN_PS;
    }
}

static void cpu_loop(void *context, unsigned cpu)
{
    struct us_runner *r = context;
    struct us_model_cpu *c = &r->cpu[cpu];

    for (;;) {
        struct us_model_task *t;

        if (has_tick(c) && !r->stop)
            tick(r, c);
        t = r->stop || r->pause || r->rest ? NULL : us_sched_next(r, c);
        if (t) {
            enter_task(r, c, t);
            run_task(r, c, t);
            continue;
        }
        c->in_interrupt = false;
        if ((r->pause || r->rest) && !r->stop) {
            between_ops(r, c);
            continue;
        }
        us_sched_set_idle(r, c, true);
        us_sim_idle(c->vcpu);
        us_sched_set_idle(r, c, false);
    }
}

/* ---- passes ------------------------------------------------------------------------------------
 */

static bool polled(struct us_runner *r)
{
    return r->options.poll && r->options.poll(r->options.poll_context);
}

static void pause_event(void *context, uint64_t now)
{
    (void)now;
    ((struct us_runner *)context)->pause = true;
}

static void resume(struct us_runner *r)
{
    struct us_vcpu *v;

    while ((v = r->paused)) {
        r->paused = v->next;
        us_sim_ready(v);
    }
}

static void poll(struct us_runner *r)
{
    if (!r->poll_is_due || !is_quiet(r))
        return;
    r->poll_is_due = false;
    if (!r->stop && polled(r))
        stop_with(r, US_EBUSY, "stopped");
}

/* Until nothing can go on, or until `limit`. */
static void run_until(struct us_runner *r, uint64_t limit)
{
    bool ended;

    if (limit != US_FOREVER)
        (void)us_sim_at(r->sim, limit, pause_event, r, 0);
    r->pause = false;
    resume(r);
    do {
        r->rest = false;
        r->sim->event_limit = limit;
        do {
            ended = us_sim_run(r->sim);
            look(r);
            poll(r);
        } while (!ended);
        if (!r->pause)
            resume(r);
    } while (r->rest);
}

static void begin_pass(struct us_runner *r)
{
    const bool flat = r->facts.span_ns && r->options.pace <= 0;

    r->start = us_sim_align(r->sim, 0);
    us_sim_clear(r->sim);
    r->sim->shown_ns = r->start / 1000;
    r->events = r->switches = r->wakeups = r->interrupts = r->steals = 0;
    r->next_poll = POLL_EVENTS;
    r->next_sample = r->next_row = 0;
    memset(&r->peak, 0, sizeof(r->peak));
    r->nrows = 0;
    r->trace_ns = 0;
    r->ndone = 0;
    r->stop = r->pause = r->rest = r->poll_is_due = r->failed = r->running_due = false;
    r->paused = NULL;
    r->looker = NULL;
    for (unsigned i = 0; i < r->ntasks; i++) {
        struct us_model_task *t = &r->task[i];

        t->at = t->ops;
        t->served = false;
        t->marks = 0;
        t->window = 0;
        t->start = t->end = r->start;
        memset(t->loop, 0, sizeof(*t->loop) * r->facts.nloops[i]);
    }
    us_model_reset_waits(r);
    r->clock_base = us_now(r->machine);
    if (!flat) {
        r->clock_base -= r->start / 1000;
        us_clock_set(r->machine, r->clock_base);
        r->machine->virtual_clock = true;
    }
    us_sched_start(r);
    set_tick(r);
    r->dirty = true;
    r->begun = true;
}

static void end_pass(struct us_runner *r)
{
    uint64_t now;

    r->stop = true;
    run_until(r, US_FOREVER);
    us_sim_align(r->sim, 0);
    now = us_now(r->machine);
    if (r->machine->virtual_clock)
        now = r->clock_base + r->sim->vcpu[0].clock / 1000;
    r->machine->virtual_clock = false;
    us_clock_set(r->machine, now);
    r->begun = false;
}

static void check_end(struct us_runner *r)
{
    char text[400];

    if (r->stop || r->pause || r->ndone == r->ntasks)
        return;
    us_model_describe_deadlock(r, text, sizeof(text));
    stop_with(r, US_EBUSY, text);
}

static uint64_t last_end(const struct us_runner *r)
{
    uint64_t end = r->start;

    for (unsigned i = 0; i < r->ntasks; i++)
        end = r->task[i].end > end ? r->task[i].end : end;
    return end;
}

static void add(uint64_t *sums, const uint64_t *of, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        sums[i] += of[i];
}

/* What was measured is the runner's own: another may run on the machine next, or it may go. */
static void take_totals(struct us_runner *r)
{
    struct us_totals *t = &r->totals;

    *t = (struct us_totals){.comparisons = r->sim->comparisons};
    for (unsigned cpu = 0; cpu < r->machine->ncpus; cpu++) {
        const struct us_vcpu *v = &r->sim->vcpu[cpu];

        add(t->time, v->time, US_NPHASES);
        add(t->line_ps, v->line_ps, US_LINE_NKINDS);
        add(t->line_count, v->line_count, US_LINE_NKINDS);
        add(t->lock_ps, v->lock_ps, US_LOCK_NCLASSES);
        add(t->lock_count, v->lock_count, US_LOCK_NCLASSES);
    }
}

static enum us_status finish(struct us_runner *r, struct us_error *error)
{
    end_pass(r);
    if (!r->failed)
        return US_OK;
    us_runner_clean(r);
    r->failed = false;
    if (error)
        *error = r->error;
    return r->error.status;
}

static bool may_run(struct us_runner *r, struct us_error *error)
{
    const struct us_runner *other;

    if (us_running)
        return us_refuse(error, US_EBUSY, "another modelled run is under way in this process");
    other = r->sim->context;
    if (other && other != r && other->begun)
        return us_refuse(error, US_EBUSY,
                         "a run of another Runner is under way on this allocator; clean() it");
    if (!us_sim_start(r->sim, cpu_loop, r, error))
        return false;
    us_runner_clean(r);
    return true;
}

enum us_status us_runner_run_for(struct us_runner *r, uint64_t ns, uint64_t *elapsed_ns,
                                 struct us_error *error)
{
    uint64_t from;

    if (!r->begun) {
        if (!may_run(r, error))
            return error ? error->status : US_EBUSY;
        begin_pass(r);
    }
    if (ns > (US_FARTHEST_PS - us_sim_align(r->sim, 0)) / 1000) {
        us_refuse(error, US_EINVAL, us_model_too_long);
        return US_EINVAL;
    }
    us_sim_align(r->sim, 0);
    us_sim_clear(r->sim);
    for (unsigned i = 0; i < r->ntasks; i++)
        r->task[i].marks = 0;
    r->nrows = 0;
    r->events = r->switches = r->wakeups = r->interrupts = r->steals = 0;
    r->next_poll = POLL_EVENTS;
    r->next_sample = 0;
    from = r->sim->vcpu[0].clock;
    r->measured_from = from;
    run_until(r, from + ns * 1000);
    check_end(r);
    if (r->ndone < r->ntasks)
        r->measured_ns = (us_sim_align(r->sim, from + ns * 1000) - from) / 1000;
    else
        r->measured_ns = last_end(r) > from ? (last_end(r) - from) / 1000 : 0;
    take_totals(r);
    if (elapsed_ns)
        *elapsed_ns = r->measured_ns;
    return r->failed ? finish(r, error) : US_OK;
}

static enum us_status one_pass(struct us_runner *r, uint64_t *ns, struct us_error *error)
{
    enum us_status status = US_OK;

    if (r->options.duration_ns) {
        if (r->options.warmup_ns)
            status = us_runner_run_for(r, r->options.warmup_ns, NULL, error);
        if (status == US_OK)
            status = us_runner_run_for(r, r->options.duration_ns, ns, error);
        return status == US_OK ? finish(r, error) : status;
    }
    if (!may_run(r, error))
        return US_EBUSY;
    begin_pass(r);
    r->measured_from = r->start;
    run_until(r, US_FOREVER);
    check_end(r);
    *ns = r->measured_ns = (last_end(r) - r->start + 500) / 1000;
    status = finish(r, error);
    take_totals(r);
    return status;
}

enum us_status us_runner_passes(struct us_runner *r, unsigned n, uint64_t *ns,
                                struct us_error *error)
{
    enum us_status status;

    if (n != 1 && r->options.duration_ns) {
        us_refuse(error, US_EINVAL, "a run with a duration is one pass");
        return US_EINVAL;
    }
    if (r->begun)
        end_pass(r);
    for (unsigned i = 0; i < n; i++) {
        us_runner_clean(r);
        status = one_pass(r, &ns[i], error);
        if (status != US_OK)
            return status;
        if (polled(r))
            return US_EBUSY;
    }
    return US_OK;
}

/* Every modelled pass looks at the accounts as it goes. */
enum us_status us_runner_peaks(struct us_runner *r, struct us_account *peak, struct us_error *error)
{
    (void)error;
    us_inner_peak(r->heap.allocator, &r->peak);
    *peak = r->peak;
    return US_OK;
}

/* ---- what is live ------------------------------------------------------------------------------
 */

static void on_cpu_of(struct us_runner *r, const struct us_model_task *t)
{
    (void)us_machine_on_cpu(r->machine, (int)t->home, NULL);
}

void us_runner_clean(struct us_runner *r)
{
    if (r->begun)
        end_pass(r);
    if (!r->dirty)
        return;
    for (unsigned i = 0; i < r->ntasks; i++) {
        struct us_model_task *t = &r->task[i];

        on_cpu_of(r, t);
        for (uint32_t s = 0; s < r->facts.nslots[i]; s++) {
            us_inner_free(&r->heap, t->slot[s]);
            t->slot[s] = 0;
        }
        if (t->state == US_TASK_WAITS && t->at->op == US_OP_SEND && !t->served)
            us_inner_free(&r->heap, t->word);
        else if (t->at && t->at->op == US_OP_RECV && t->served)
            us_inner_free(&r->heap, t->word);
        t->word = 0;
        t->served = false;
        t->state = US_TASK_DONE;
    }
    for (uint32_t s = 0; s < r->facts.nshared; s++) {
        on_cpu_of(r, &r->task[s % r->ntasks]);
        us_inner_free(&r->heap, r->shared[s]);
        r->shared[s] = 0;
    }
    for (unsigned i = 0; i < r->nchannels; i++) {
        struct us_model_channel *c = &r->channel[i];

        for (; c->n > 0; c->n--, c->head = (c->head + 1) % c->capacity)
            us_inner_free(&r->heap, c->message[c->head].word);
    }
    (void)us_machine_on_cpu(r->machine, -1, NULL);
    r->dirty = false;
}

void us_runner_forget_cache(struct us_runner *r, const struct us_cache *cache)
{
    us_heap_forget(&r->heap, cache);
}

void us_runner_forget(struct us_runner *r)
{
    r->dirty = r->begun = false;
    r->sim = NULL; /* went with the machine */
}
#endif
