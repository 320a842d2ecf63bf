#include "work/events.h"

#include <stdio.h>
#include <stdlib.h>

#define NO_TASK UINT16_MAX

struct object {
    uint32_t slot;
    uint16_t alloc_task, free_task; /* NO_TASK: not seen */
};

/* Emptied slots. A stack for a task's own, a queue for shared ones. */
struct free_slots {
    struct {
        uint32_t slot;
        size_t since; /* event that emptied it */
    } *entry;
    size_t first, n, room;
    uint32_t nslots; /* ever made */
};

struct compiler {
    const struct us_events_options *o;
    struct us_ops *ops;
    struct object *object;
    struct free_slots *own;    /* [ntasks] */
    struct free_slots *shared; /* [ntasks] by the task that allocates */
    uint32_t nshared;
    uint64_t *progress; /* [ntasks] last one told */
    uint64_t every;     /* events from one to the next */
    int64_t *clock;     /* [ntasks] or [1] next time to tell */
    struct us_error *error;
};

static bool push_slot(struct free_slots *f, uint32_t slot, size_t since)
{
    if (f->n == f->room) {
        size_t room = f->room ? 2 * f->room : 64;
        void *grown = realloc(f->entry, room * sizeof(*f->entry));

        if (!grown)
            return false;
        f->entry = grown;
        f->room = room;
    }
    f->entry[f->n].slot = slot;
    f->entry[f->n++].since = since;
    return true;
}

static uint32_t own_slot(struct free_slots *f)
{
    return f->n > 0 ? f->entry[--f->n].slot : f->nslots++;
}

static uint32_t shared_slot(struct compiler *c, struct free_slots *f, size_t now)
{
    if (f->first < f->n && f->entry[f->first].since + 2 * c->o->window < now)
        return f->entry[f->first++].slot;
    return c->nshared++;
}

static bool emit(struct us_ops *ops, struct us_op op)
{
    if (ops->n == ops->room) {
        size_t room = ops->room ? 2 * ops->room : 1024;
        void *grown = realloc(ops->op, room * sizeof(op));

        if (!grown)
            return false;
        ops->op = grown;
        ops->room = room;
    }
    ops->op[ops->n++] = op;
    return true;
}

static enum us_status refuse(struct compiler *c, size_t row, const char *what, uint64_t value)
{
    if (c->error) {
        *c->error = (struct us_error){.status = US_EINVAL};
        snprintf(c->error->text, sizeof(c->error->text), "event %zu: %s (found %llu)", row, what,
                 (unsigned long long)value);
    }
    return US_EINVAL;
}

/* Which task allocates and which frees each object. */
static enum us_status find_owners(struct compiler *c, const struct us_event_in *events, size_t n)
{
    for (size_t i = 0; i < c->o->nobjects; i++)
        c->object[i] = (struct object){.alloc_task = NO_TASK, .free_task = NO_TASK};
    for (size_t i = 0; i < n; i++) {
        const struct us_event_in *e = &events[i];
        struct object *x;

        if (e->task >= c->o->ntasks)
            return refuse(c, i, "task out of range", e->task);
        if (e->object >= c->o->nobjects)
            return refuse(c, i, "object out of range", e->object);
        x = &c->object[e->object];
        if (e->op == US_OP_ALLOC && x->alloc_task == NO_TASK) {
            x->alloc_task = e->task;
        } else if (e->op == US_OP_FREE && x->alloc_task != NO_TASK && x->free_task == NO_TASK) {
            x->free_task = e->task;
        } else {
            return refuse(c, i, "an object is allocated once and then freed once", e->object);
        }
    }
    return US_OK;
}

static bool tell_progress(struct compiler *c, const struct us_event_in *e, size_t now)
{
    if (c->o->ntasks < 2 || (now > 0 && now - c->progress[e->task] < c->every))
        return true;
    c->progress[e->task] = now;
    return emit(&c->ops[e->task], (struct us_op){.op = US_OP_PROGRESS, .arg = now});
}

static bool tell_time(struct compiler *c, const struct us_event_in *e)
{
    int64_t *next = &c->clock[c->o->clock_of_each ? e->task : 0];

    if (c->o->clock_ns == 0 || e->time_ns < *next)
        return true;
    *next = e->time_ns + (int64_t)c->o->clock_ns;
    return emit(&c->ops[e->task], (struct us_op){.op = US_OP_CLOCK, .arg = (uint64_t)e->time_ns});
}

static bool translate(struct compiler *c, const struct us_event_in *e, size_t now)
{
    struct object *x = &c->object[e->object];
    bool shared = x->free_task != NO_TASK && x->free_task != x->alloc_task;
    struct us_op op = {.op = e->op, .flags = shared ? US_OPF_SHARED : 0};

    if (e->op == US_OP_ALLOC) {
        x->slot = shared ? shared_slot(c, &c->shared[e->task], now) : own_slot(&c->own[e->task]);
        op.flags |= e->flags;
        op.cache = e->cache;
        op.arg = (uint64_t)(e->node + 1);
    } else if (!push_slot(shared ? &c->shared[x->alloc_task] : &c->own[e->task], x->slot, now)) {
        return false;
    }
    op.slot = x->slot;
    return emit(&c->ops[e->task], op);
}

static enum us_status no_memory(struct us_error *error)
{
    if (error) {
        *error = (struct us_error){.status = US_ENOMEM};
        snprintf(error->text, sizeof(error->text), "no memory for the programs of a trace");
    }
    return US_ENOMEM;
}

enum us_status us_events_compile(const struct us_event_in *events, size_t n,
                                 const struct us_events_options *o, struct us_ops *ops,
                                 struct us_error *error)
{
    struct compiler c = {.o = o, .ops = ops, .error = error, .every = us_progress_every(o->window)};
    enum us_status status = US_OK;

    c.object = malloc((o->nobjects + 1ull) * sizeof(*c.object));
    c.own = calloc(o->ntasks + 1ull, sizeof(*c.own));
    c.shared = calloc(o->ntasks + 1ull, sizeof(*c.shared));
    c.progress = calloc(o->ntasks + 1ull, sizeof(*c.progress));
    c.clock = calloc(o->ntasks + 1ull, sizeof(*c.clock));
    if (!c.object || !c.own || !c.shared || !c.progress || !c.clock)
        status = no_memory(error);
    if (status == US_OK)
        status = find_owners(&c, events, n);
    for (size_t i = 0; i < n && status == US_OK; i++)
        if (!tell_progress(&c, &events[i], i) || !tell_time(&c, &events[i]) ||
            !translate(&c, &events[i], i))
            status = no_memory(error);
    for (uint32_t t = 0; c.own && c.shared && t < o->ntasks; t++) {
        free(c.own[t].entry);
        free(c.shared[t].entry);
    }
    free(c.object);
    free(c.own);
    free(c.shared);
    free(c.progress);
    free(c.clock);
    return status;
}
