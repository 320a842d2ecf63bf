/* model_runner.c - making and ending a runner of modelled machines, and what it tells of its last
 * pass. model_exec.c runs it. */
#ifdef US_MODEL
#include "work/channel.h"
#include "work/model_run.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- making a runner ---------------------------------------------------------------------------
 */

static bool make_task(struct us_runner *r, unsigned index, const struct us_program *p)
{
    const struct us_program_task *from = &p->task[index];
    struct us_model_task *t = &r->task[index];

    t->run = r;
    t->index = index;
    t->ncpus = from->ncpus;
    t->interrupt = from->flags & US_TASK_INTERRUPT;
    t->state = US_TASK_DONE;
    t->slot = calloc(r->facts.nslots[index] + 1u, sizeof(*t->slot));
    t->loop = calloc(r->facts.nloops[index] + 1u, sizeof(*t->loop));
    t->cpu = calloc(from->ncpus + 1u, sizeof(*t->cpu));
    t->ops = us_inner_ops(&r->heap, from);
    if (!t->slot || !t->loop || !t->cpu || !t->ops)
        return false;
    for (unsigned i = 0; i < from->ncpus; i++)
        t->cpu[i] = from->cpu[i] % r->machine->ncpus;
    if (from->ncpus)
        t->home = t->cpu[0];
    return true;
}

/* Windows that the PROGRESS ops of a trace fall into. */
static void count_windows(struct us_runner *r)
{
    uint64_t window = r->options.window ? r->options.window : 1, most = 0;

    for (unsigned i = 0; i < r->ntasks; i++)
        for (const struct us_op *op = r->task[i].ops; op->op != X_END; op++)
            if (op->op == US_OP_PROGRESS && op->arg / window + 1 > most)
                most = op->arg / window + 1;
    r->nwindows = most;
}

static bool make_parts(struct us_runner *r, const struct us_program *p, struct us_error *error)
{
    r->task = calloc(p->ntasks, sizeof(*r->task));
    r->channel = calloc(p->nchannels + 1u, sizeof(*r->channel));
    r->shared = calloc(r->facts.nshared + 1u, sizeof(*r->shared));
    r->shared_waiters = calloc(r->facts.nshared + 1u, sizeof(*r->shared_waiters));
    if (!r->task || !r->channel || !r->shared || !r->shared_waiters)
        return us_refuse(error, US_ENOMEM, "no memory for the tables of a workload");
    for (; r->nchannels < p->nchannels; r->nchannels++) {
        struct us_model_channel *c = &r->channel[r->nchannels];

        c->run = r;
        c->capacity = p->channel[r->nchannels];
        c->message = calloc(c->capacity, sizeof(*c->message));
        if (!c->message)
            return us_refuse(error, US_ENOMEM, "no memory for the channels of a workload");
    }
    for (; r->ntasks < p->ntasks; r->ntasks++)
        if (!make_task(r, r->ntasks, p)) {
            r->ntasks++;
            return us_refuse(error, US_ENOMEM, "no memory for the programs of a workload");
        }
    count_windows(r);
    r->in_window = calloc(r->nwindows + 1, sizeof(*r->in_window));
    if (!r->in_window || !us_sched_create(r))
        return us_refuse(error, US_ENOMEM, "no memory for the tables of a workload");
    return true;
}

struct us_runner *us_runner_create(const struct us_program *p, const struct us_run_options *o,
                                   struct us_error *error)
{
    struct us_runner *r;
    struct us_program_facts facts;

    if (o->heap != US_HEAP_ALLOCATOR) {
        us_refuse(error, US_EINVAL, "a modelled machine has allocators only");
        return NULL;
    }
    if (!o->allocator->machine->sim) {
        us_refuse(error, US_EINVAL, "a machine without costs can be scripted only");
        return NULL;
    }
    if (us_program_check(p, &facts, error) != US_OK)
        return NULL;
    r = calloc(1, sizeof(*r));
    if (!r) {
        us_program_facts_release(&facts);
        us_refuse(error, US_ENOMEM, "no memory for a run");
        return NULL;
    }
    r->options = *o;
    r->facts = facts;
    r->machine = o->allocator->machine;
    r->sim = r->machine->sim;
    if (us_heap_init(&r->heap, p, o, error) && make_parts(r, p, error))
        return r;
    us_runner_destroy(r);
    return NULL;
}

void us_runner_destroy(struct us_runner *r)
{
    if (!r)
        return;
    us_runner_clean(r);
    if (r->sim && r->sim->context == r)
        r->sim->context = NULL;
    for (unsigned i = 0; i < r->ntasks; i++) {
        free(r->task[i].ops);
        free(r->task[i].slot);
        free(r->task[i].loop);
        free(r->task[i].cpu);
    }
    for (unsigned i = 0; i < r->nchannels; i++)
        free(r->channel[i].message);
    us_sched_destroy(r);
    free(r->task);
    free(r->channel);
    free(r->shared);
    free(r->shared_waiters);
    free(r->in_window);
    free(r->row);
    us_heap_release(&r->heap);
    us_program_facts_release(&r->facts);
    free(r);
}

/* ---- results -----------------------------------------------------------------------------------
 */

void us_runner_set_poll_context(struct us_runner *r, void *context)
{
    r->options.poll_context = context;
}

unsigned us_runner_ntasks(const struct us_runner *r)
{
    return r->ntasks;
}

uint64_t us_runner_task_ns(const struct us_runner *r, unsigned task)
{
    return (r->task[task].end - r->start) / 1000;
}

uint64_t us_runner_marks(const struct us_runner *r, unsigned task)
{
    return r->task[task].marks;
}

uint64_t us_runner_elapsed_ns(const struct us_runner *r)
{
    return r->measured_ns;
}

const struct us_program_facts *us_runner_facts(const struct us_runner *r)
{
    return &r->facts;
}

const struct us_timeline_row *us_runner_timeline(const struct us_runner *r, uint64_t *nrows)
{
    *nrows = r->nrows;
    return r->row;
}

void us_runner_explain(const struct us_runner *r, us_explain_fn *tell, void *context)
{
    const struct us_totals *t = &r->totals;
    static const char *const phases[] = {
#define US_ROW(id, name, help) "time." name,
        US_PHASES(US_ROW)
#undef US_ROW
    };
    static const char *const kinds[] = {
#define US_ROW(name) #name,
        US_LINE_KINDS(US_ROW)
#undef US_ROW
    };
    const struct {
        const char *name;
        uint64_t value;
    } counts[] = {
        {"op.events", r->events},   {"op.switches", r->switches},
        {"op.wakeups", r->wakeups}, {"op.interrupts", r->interrupts},
        {"op.steals", r->steals},   {"op.comparisons", t->comparisons},
    };
    char name[64];

    for (unsigned i = 0; i < US_NPHASES; i++)
        tell(context, phases[i], t->time[i]);
    for (unsigned i = 0; i < US_LOCK_NCLASSES; i++) {
        snprintf(name, sizeof(name), "lock.%s", us_lock_class_name((enum us_lock_class)i));
        tell(context, name, t->lock_ps[i]);
        snprintf(name, sizeof(name), "lock_count.%s", us_lock_class_name((enum us_lock_class)i));
        tell(context, name, t->lock_count[i]);
    }
    for (unsigned i = 0; i < US_LINE_NKINDS; i++) {
        snprintf(name, sizeof(name), "lines.%s", kinds[i]);
        tell(context, name, t->line_ps[i]);
        snprintf(name, sizeof(name), "lines_count.%s", kinds[i]);
        tell(context, name, t->line_count[i]);
    }
    for (unsigned i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        tell(context, counts[i].name, counts[i].value);
}

static void count_word(const struct us_runner *r, uint64_t word, uint64_t *objects, uint64_t *bytes)
{
    if (word == 0 || word == US_EMPTY_MESSAGE)
        return;
    *bytes += r->heap.cache[us_word_cache(word)].size;
    ++*objects;
}

uint64_t us_runner_live_bytes(const struct us_runner *r, uint64_t *objects)
{
    uint64_t bytes = 0;

    *objects = 0;
    for (unsigned i = 0; i < r->ntasks; i++) {
        for (uint32_t s = 0; s < r->facts.nslots[i]; s++)
            count_word(r, r->task[i].slot[s], objects, &bytes);
        count_word(r, r->task[i].word, objects, &bytes);
    }
    for (uint32_t s = 0; s < r->facts.nshared; s++)
        count_word(r, r->shared[s], objects, &bytes);
    for (unsigned i = 0; i < r->nchannels; i++)
        for (uint32_t k = 0; k < r->channel[i].n; k++)
            count_word(
                r, r->channel[i].message[(r->channel[i].head + k) % r->channel[i].capacity].word,
                objects, &bytes);
    return bytes;
}
#endif
