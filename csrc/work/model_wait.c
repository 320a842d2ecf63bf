/* model_wait.c - what tasks of a modelled run wait for: messages, one another, time. */
#ifdef US_MODEL
#include "work/model_run.h"

#include "work/channel.h"

#include <stdio.h>
#include <string.h>

static void wait_in(struct us_task_queue *q, struct us_model_task *t)
{
    t->state = US_TASK_WAITS;
    t->served = false;
    us_queue_task(q, t);
}

static void serve(struct us_model_task *t, struct us_vcpu *waker, uint64_t at)
{
    t->served = true;
    us_sched_wake(t, waker, at);
}

static void serve_all(struct us_task_queue *q, struct us_vcpu *v)
{
    struct us_model_task *t;

    while ((t = us_unqueue_task(q)))
        serve(t, v, v->clock);
}

/* ---- messages ----------------------------------------------------------------------------------
 */

static void put_message(struct us_model_channel *c, uint64_t word, uint64_t arrival)
{
    if (arrival < c->last_arrival)
        arrival = c->last_arrival;
    c->last_arrival = arrival;
    c->message[(c->head + c->n++) % c->capacity] = (struct us_message){word, arrival};
}

/* There is room: the sender that waited longest puts its message in. */
static void let_sender(struct us_model_channel *c, struct us_vcpu *waker, uint64_t now)
{
    struct us_model_task *t = us_unqueue_task(&c->senders);

    if (!t)
        return;
    put_message(c, t->word, now + t->at->arg * 1000);
    t->word = 0;
    serve(t, waker, now);
}

static uint64_t take_message(struct us_model_channel *c, struct us_vcpu *waker, uint64_t now)
{
    uint64_t word = c->message[c->head].word;

    c->head = (c->head + 1) % c->capacity;
    c->n--;
    let_sender(c, waker, now);
    return word;
}

static void deliver(void *context, uint64_t now);

static void deliver_later(struct us_model_channel *c, uint64_t at)
{
    c->run->pending++;
    if (!us_sim_at(c->run->sim, at, deliver, c, at))
        us_model_fail(&c->run->task[0], US_ENOMEM, "no memory for events");
}

/* Who waits gets what has arrived. */
static void deliver(void *context, uint64_t now)
{
    struct us_model_channel *c = context;

    c->run->pending--;
    if (c->run->stop)
        return;
    while (c->receivers.first && c->n > 0 && c->message[c->head].arrival <= now) {
        struct us_model_task *t = us_unqueue_task(&c->receivers);

        t->word = take_message(c, NULL, now);
        serve(t, NULL, now);
    }
    if (c->receivers.first && c->n > 0)
        deliver_later(c, c->message[c->head].arrival);
}

bool us_model_send(struct us_model_task *t, struct us_vcpu *v, uint64_t word)
{
    struct us_model_channel *c = &t->run->channel[t->at->cache];
    uint64_t delay = t->at->arg * 1000;

    if (c->n == c->capacity) {
        t->word = word;
        wait_in(&c->senders, t);
        return false;
    }
    put_message(c, word, v->clock + delay);
    if (!c->receivers.first)
        return true;
    if (c->n == 1 && c->last_arrival <= v->clock) {
        struct us_model_task *receiver = us_unqueue_task(&c->receivers);

        receiver->word = take_message(c, v, v->clock);
        serve(receiver, v, v->clock);
    } else if (c->n == 1) {
        deliver_later(c, c->last_arrival);
    }
    return true;
}

bool us_model_recv(struct us_model_task *t, struct us_vcpu *v, uint64_t *word)
{
    struct us_model_channel *c = &t->run->channel[t->at->cache];

    if (c->n > 0 && !c->receivers.first && c->message[c->head].arrival <= v->clock) {
        *word = take_message(c, v, v->clock);
        return true;
    }
    if (c->n > 0 && !c->receivers.first)
        deliver_later(c, c->message[c->head].arrival);
    wait_in(&c->receivers, t);
    return false;
}

/* ---- one another -------------------------------------------------------------------------------
 */

bool us_model_barrier(struct us_model_task *t, struct us_vcpu *v)
{
    struct us_runner *r = t->run;

    if (++r->barrier_count < r->facts.nbarrier) {
        wait_in(&r->barrier, t);
        return false;
    }
    r->barrier_count = 0;
    serve_all(&r->barrier, v);
    return true;
}

bool us_model_shared(struct us_model_task *t, bool full)
{
    struct us_runner *r = t->run;

    if ((r->shared[t->at->slot] != 0) == full)
        return true;
    wait_in(&r->shared_waiters[t->at->slot], t);
    return false;
}

/* All who wait look again. */
void us_model_shared_changed(struct us_runner *r, uint32_t slot, struct us_vcpu *v)
{
    struct us_model_task *t;

    while ((t = us_unqueue_task(&r->shared_waiters[slot]))) {
        us_sched_go_on(t, v->clock);
        t->served = false;
    }
}

/* Tasks are counted by the window their progress lies in. One may be in the window after that of
 * the last, but no further: between one and two windows ahead. */
static void leave_window(struct us_runner *r, uint64_t window, struct us_vcpu *v)
{
    struct us_model_task *t;
    bool moved = false;

    if (window < r->nwindows)
        r->in_window[window]--;
    while (r->least_window < r->nwindows && r->in_window[r->least_window] == 0) {
        r->least_window++;
        moved = true;
    }
    while (moved && (t = us_unqueue_task(&r->late))) {
        t->served = true;
        us_sched_go_on(t, v->clock);
    }
}

bool us_model_progress(struct us_model_task *t, struct us_vcpu *v)
{
    struct us_runner *r = t->run;
    uint64_t window = t->at->arg / (r->options.window ? r->options.window : 1);

    if (r->ntasks == 1 || r->nwindows == 0)
        return true;
    if (window >= r->nwindows)
        window = r->nwindows - 1;
    if (window != t->window) {
        uint64_t before = t->window;

        r->in_window[window]++;
        t->window = window;
        leave_window(r, before, v);
    }
    if (window <= r->least_window + 1)
        return true;
    wait_in(&r->late, t);
    return false;
}

void us_model_task_done(struct us_model_task *t, struct us_vcpu *v)
{
    if (t->run->nwindows)
        leave_window(t->run, t->window, v);
}

/* ---- time --------------------------------------------------------------------------------------
 */

static void time_has_come(void *context, uint64_t now)
{
    struct us_model_task *t = context;

    t->run->pending--;
    if (!t->run->stop)
        serve(t, NULL, now);
}

bool us_model_until(struct us_model_task *t, struct us_vcpu *v, uint64_t ps)
{
    if (ps <= v->clock)
        return true;
    t->state = US_TASK_WAITS;
    t->served = false;
    t->run->pending++;
    if (!us_sim_at(t->run->sim, ps, time_has_come, t, ps))
        us_model_fail(t, US_ENOMEM, "no memory for events");
    return false;
}

/* ---- for ever ----------------------------------------------------------------------------------
 */

static void waits_for(const struct us_op *op, char *text, size_t size)
{
    switch (op->op) {
    case US_OP_SEND:
        snprintf(text, size, "room in channel %u", op->cache);
        break;
    case US_OP_RECV:
        snprintf(text, size, "a message on channel %u", op->cache);
        break;
    case US_OP_BARRIER:
        snprintf(text, size, "the other tasks at a BARRIER");
        break;
    case X_ALLOC_SHARED:
        snprintf(text, size, "the free of shared slot %u", op->slot);
        break;
    case X_FREE_SHARED:
    case X_TOUCH_SHARED:
        snprintf(text, size, "the allocation of shared slot %u", op->slot);
        break;
    default:
        snprintf(text, size, "the other tasks");
    }
}

void us_model_describe_deadlock(const struct us_runner *r, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "deadlock, every task waits");
    unsigned shown = 0;

    for (unsigned i = 0; i < r->ntasks && used + 100 < size; i++) {
        const struct us_model_task *t = &r->task[i];
        char what[64];

        if (t->state == US_TASK_DONE)
            continue;
        if (++shown > 4) {
            snprintf(text + used, size - used, "; and others");
            return;
        }
        waits_for(t->at, what, sizeof(what));
        used +=
            (size_t)snprintf(text + used, size - used, "%s task %u at op %llu for %s",
                             shown > 1 ? ";" : ":", i, (unsigned long long)(t->at - t->ops), what);
    }
}

void us_model_reset_waits(struct us_runner *r)
{
    for (unsigned i = 0; i < r->nchannels; i++) {
        struct us_model_channel *c = &r->channel[i];

        c->head = c->n = 0;
        c->last_arrival = 0;
        c->senders = c->receivers = (struct us_task_queue){0};
    }
    for (uint32_t i = 0; i < r->facts.nshared; i++)
        r->shared_waiters[i] = (struct us_task_queue){0};
    r->barrier = r->late = (struct us_task_queue){0};
    r->barrier_count = 0;
    r->least_window = 0;
    memset(r->in_window, 0, r->nwindows * sizeof(*r->in_window));
    if (r->nwindows)
        r->in_window[0] = r->ntasks;
    r->pending = 0;
}
#endif
