#ifdef US_MODEL
#include "work/model_run.h"

#include <stdlib.h>
#include <string.h>

void us_queue_task(struct us_task_queue *q, struct us_model_task *t)
{
    t->next = NULL;
    if (q->last)
        q->last->next = t;
    else
        q->first = t;
    q->last = t;
    q->n++;
}

struct us_model_task *us_unqueue_task(struct us_task_queue *q)
{
    struct us_model_task *t = q->first;

    if (!t)
        return NULL;
    q->first = t->next;
    if (!q->first)
        q->last = NULL;
    q->n--;
    return t;
}

/* ---- idle CPUs, by their position among those of their domain ---------------------------------
 */

void us_sched_set_idle(struct us_runner *r, struct us_model_cpu *c, bool idle)
{
    unsigned at = r->position[c - r->cpu];

    c->idle = idle;
    if (idle)
        r->idle_cpus[at / 64] |= 1ull << at % 64;
    else
        r->idle_cpus[at / 64] &= ~(1ull << at % 64);
}

static bool may_run(const struct us_model_task *t, unsigned cpu)
{
    if (t->ncpus == 0)
        return true;
    for (unsigned i = 0; i < t->ncpus; i++)
        if (t->cpu[i] == cpu)
            return true;
    return false;
}

/* An idle CPU of the domain where the task may run, or -1. */
static int idle_in(const struct us_runner *r, const struct us_model_task *t, unsigned domain)
{
    const struct us_domain *d = &r->machine->domain[domain];
    unsigned end = d->first_cpu + d->ncpus;

    for (unsigned at = d->first_cpu; at < end;) {
        uint64_t word = r->idle_cpus[at / 64] >> at % 64;
        unsigned cpu;

        if (!word) {
            at = (at / 64 + 1) * 64;
            continue;
        }
        at += (unsigned)__builtin_ctzll(word);
        if (at >= end)
            break;
        cpu = r->machine->domain_cpus[at];
        if (may_run(t, cpu))
            return (int)cpu;
        at++;
    }
    return -1;
}

/* The next idle CPU after that of `from` where the task may run, or -1. */
static int idle_anywhere(const struct us_runner *r, const struct us_model_task *t, unsigned from)
{
    const unsigned n = r->machine->ncpus, words = (n + 63) / 64, first = r->position[from] / 64;

    for (unsigned i = 0; i < words; i++) {
        unsigned at = (first + i) % words * 64;

        for (uint64_t word = r->idle_cpus[at / 64]; word; word &= word - 1) {
            unsigned cpu = r->machine->domain_cpus[at + (unsigned)__builtin_ctzll(word)];

            if (may_run(t, cpu))
                return (int)cpu;
        }
    }
    return -1;
}

static unsigned place(const struct us_runner *r, const struct us_model_task *t,
                      const struct us_vcpu *waker)
{
    const struct us_machine *m = r->machine;
    unsigned domain = us_domain_of_cpu(m, t->base);
    int cpu;

    if (t->ncpus == 1 || r->cpu[t->base].idle)
        return t->base;
    cpu = idle_in(r, t, domain);
    if (cpu < 0 && waker && us_domain_of_cpu(m, waker->id) != domain)
        cpu = idle_in(r, t, us_domain_of_cpu(m, waker->id));
    if (cpu < 0)
        cpu = idle_anywhere(r, t, t->base);
    return cpu < 0 ? t->base : (unsigned)cpu;
}

/* ---- queues ------------------------------------------------------------------------------------
 */

void us_sched_wake(struct us_model_task *t, struct us_vcpu *waker, uint64_t at)
{
    struct us_runner *r = t->run;
    struct us_model_cpu *c;

    if (waker) {
        us_sim_spend(waker, US_PHASE_SWITCH, r->sim->cost.wakeup);
        at = at > waker->clock ? at : waker->clock;
    }
    r->wakeups++;
    t->home = place(r, t, waker);
    t->state = US_TASK_READY;
    t->ready_at = at;
    c = &r->cpu[t->home];
    if (t->interrupt) {
        us_queue_task(&c->interrupts, t);
    } else {
        us_queue_task(&c->ready, t);
        r->nready++;
    }
    if (c->idle)
        us_sim_wake(r->sim, t->home, at + r->sim->cost.idle_exit);
}

void us_sched_go_on(struct us_model_task *t, uint64_t at)
{
    struct us_runner *r = t->run;
    struct us_model_cpu *c = &r->cpu[t->home];

    t->state = US_TASK_READY;
    t->ready_at = at;
    us_queue_task(&c->ready, t);
    r->nready++;
    if (c->idle)
        us_sim_wake(r->sim, t->home, at);
}

void us_sched_requeue(struct us_model_cpu *c, struct us_model_task *t, bool first)
{
    struct us_task_queue *q = t->interrupt ? &c->interrupts : &c->ready;

    t->state = US_TASK_READY;
    t->run->nready += !t->interrupt;
    if (!first || !q->first) {
        us_queue_task(q, t);
        return;
    }
    t->next = q->first;
    q->first = t;
    q->n++;
}

/* Takes the first task of the CPU's queue that may run on `cpu`. */
static struct us_model_task *take_from(struct us_model_cpu *from, unsigned cpu)
{
    struct us_model_task *before = NULL;

    for (struct us_model_task *t = from->ready.first; t; before = t, t = t->next) {
        if (!may_run(t, cpu))
            continue;
        if (!before)
            return us_unqueue_task(&from->ready);
        before->next = t->next;
        if (from->ready.last == t)
            from->ready.last = before;
        from->ready.n--;
        return t;
    }
    return NULL;
}

static struct us_model_task *steal_in(struct us_runner *r, unsigned cpu, unsigned domain)
{
    const struct us_machine *m = r->machine;

    for (unsigned i = 0; i < m->domain[domain].ncpus; i++) {
        unsigned other = us_domain_cpu(m, domain, i);
        struct us_model_task *t = other == cpu ? NULL : take_from(&r->cpu[other], cpu);

        if (t)
            return t;
    }
    return NULL;
}

static struct us_model_task *steal(struct us_runner *r, unsigned cpu)
{
    const struct us_machine *m = r->machine;
    unsigned own = us_domain_of_cpu(m, cpu);
    struct us_model_task *t = steal_in(r, cpu, own);

    for (unsigned i = 1; !t && i < m->ndomains; i++)
        t = steal_in(r, cpu, (own + i) % m->ndomains);
    if (t)
        r->steals++;
    return t;
}

struct us_model_task *us_sched_next(struct us_runner *r, struct us_model_cpu *c)
{
    unsigned cpu = (unsigned)(c - r->cpu);
    struct us_model_task *t = us_unqueue_task(&c->interrupts);

    if (t) {
        t->home = cpu;
        return t;
    }
    t = us_unqueue_task(&c->ready);
    if (!t && r->nready > 0)
        t = steal(r, cpu);
    if (!t)
        return NULL;
    r->nready--;
    t->home = cpu;
    return t;
}

/* ---- life --------------------------------------------------------------------------------------
 */

bool us_sched_create(struct us_runner *r)
{
    const struct us_machine *m = r->machine;

    r->cpu = calloc(m->ncpus, sizeof(*r->cpu));
    r->idle_cpus = calloc(m->ncpus / 64 + 1, sizeof(*r->idle_cpus));
    r->position = calloc(m->ncpus, sizeof(*r->position));
    if (!r->cpu || !r->idle_cpus || !r->position)
        return false;
    for (unsigned at = 0; at < m->ncpus; at++)
        r->position[m->domain_cpus[at]] = at;
    for (unsigned cpu = 0; cpu < m->ncpus; cpu++)
        r->cpu[cpu].vcpu = &r->sim->vcpu[cpu];
    return true;
}

void us_sched_destroy(struct us_runner *r)
{
    free(r->cpu);
    free(r->idle_cpus);
    free(r->position);
}

void us_sched_start(struct us_runner *r)
{
    unsigned spread = 0;

    for (unsigned cpu = 0; cpu < r->machine->ncpus; cpu++) {
        struct us_model_cpu *c = &r->cpu[cpu];

        c->ready = c->interrupts = (struct us_task_queue){0};
        c->last = NULL;
        c->in_interrupt = c->tick = c->ticks = false;
        us_sched_set_idle(r, c, true);
    }
    r->nready = 0;
    for (unsigned i = 0; i < r->ntasks; i++) {
        struct us_model_task *t = &r->task[i];

        if (t->ncpus)
            t->home = t->cpu[t->ncpus > 1 ? spread++ % t->ncpus : 0];
        else
            t->home = spread++ % r->machine->ncpus;
        t->base = t->home;
        us_sched_requeue(&r->cpu[t->home], t, false);
        t->ready_at = r->start;
        us_sim_wake(r->sim, t->home, r->start);
    }
}
#endif
