/* model_ops.c - what an op is on a virtual CPU: of it only the allocator's part is real, the rest
 * is time and lines. An op that has to wait is run again when its task goes on, `served` or not. */
#ifdef US_MODEL
#include "work/channel.h"
#include "work/model_run.h"

/* A trace that runs flat out shows the policy its time stamps. */
static void show_clock(struct us_runner *r, uint64_t ns)
{
    uint64_t step = ns - r->trace_ns;

    if (ns <= r->trace_ns || r->running_due)
        return;
    r->trace_ns = ns;
    if (r->clock_base + ns >= atomic_load(&r->heap.allocator->next_tick)) {
        r->running_due = true;
        us_allocator_advance(r->heap.allocator, step);
        r->running_due = false;
    } else {
        us_clock_set(r->machine, r->clock_base + ns);
    }
}

const char us_model_too_long[] =
    "more than an hour of virtual time in one pass; shorten the workload, "
    "or give a duration";

/* Whether the clock can go on by `n` times `ps`; else the run fails. */
static bool has_time(struct us_model_task *t, const struct us_vcpu *v, uint64_t n, uint64_t ps)
{
    uint64_t more;

    if (!__builtin_mul_overflow(n, ps, &more) && more <= US_FARTHEST_PS &&
        v->clock <= US_FARTHEST_PS - more)
        return true;
    us_model_fail(t, US_EINVAL, us_model_too_long);
    return false;
}

static void touch(struct us_runner *r, void *object, uint64_t bytes)
{
    enum us_phase before;

    if (bytes == 0)
        return;
    r->events += (bytes - 1) / US_LINE;
    before = us_phase_set(US_PHASE_TOUCH);
    us_writes(object, bytes);
    us_phase_set(before);
}

static void *get_object(struct us_model_task *t, const struct us_op *op)
{
    struct us_heap *h = &t->run->heap;
    const struct us_heap_cache *c = &h->cache[op->cache];
    void *object;

    us_phase_set(US_PHASE_FAST);
    object = us_heap_is_special(h, op) ? us_heap_alloc_special(h, op)
                                       : us_heap_alloc(US_HEAP_ALLOCATOR, c, NULL);
    us_phase_set(US_PHASE_WORK);
    if (!object)
        us_model_fail(t, US_ENOMEM, NULL);
    return object;
}

static void put_object(struct us_runner *r, uint64_t word)
{
    us_phase_set(US_PHASE_FAST);
    us_heap_free(US_HEAP_ALLOCATOR, &r->heap, word);
    us_phase_set(US_PHASE_WORK);
}

static enum us_outcome alloc(struct us_model_task *t, const struct us_op *op, uint64_t *slot)
{
    void *object = get_object(t, op);

    if (!object)
        return US_OUTCOME_ENDS;
    *slot = us_word(object, op->cache);
    touch(t->run, object, t->run->heap.cache[op->cache].touch);
    return US_OUTCOME_DONE;
}

static enum us_outcome touch_op(struct us_model_task *t, const struct us_op *op, uint64_t word)
{
    uint64_t size = t->run->heap.cache[us_word_cache(word)].size;

    if (op->arg > size) {
        us_model_fail(t, US_EINVAL, "more bytes than the object has");
        return US_OUTCOME_ENDS;
    }
    touch(t->run, us_word_object(word), op->arg ? op->arg : size);
    return US_OUTCOME_DONE;
}

static enum us_outcome shared_op(struct us_model_task *t, struct us_vcpu *v, const struct us_op *op)
{
    struct us_runner *r = t->run;
    uint64_t *slot = &r->shared[op->slot];
    enum us_outcome outcome;

    if (!us_model_shared(t, op->op != X_ALLOC_SHARED))
        return US_OUTCOME_WAITS;
    if (op->op == X_TOUCH_SHARED)
        return touch_op(t, op, *slot);
    if (op->op == X_ALLOC_SHARED) {
        uint64_t word;

        outcome = alloc(t, op, &word);
        if (outcome != US_OUTCOME_DONE)
            return outcome;
        *slot = word;
    } else {
        uint64_t word = *slot;

        *slot = 0;
        put_object(r, word);
    }
    us_model_shared_changed(r, op->slot, v);
    return US_OUTCOME_DONE;
}

static enum us_outcome send(struct us_model_task *t, struct us_vcpu *v, const struct us_op *op)
{
    uint64_t word = op->slot == US_NO_SLOT ? US_EMPTY_MESSAGE : t->slot[op->slot];

    if (!t->served && !us_model_send(t, v, word)) {
        if (op->slot != US_NO_SLOT)
            t->slot[op->slot] = 0; /* the task holds it until there is room */
        return US_OUTCOME_WAITS;
    }
    if (!t->served && op->slot != US_NO_SLOT)
        t->slot[op->slot] = 0;
    return US_OUTCOME_DONE;
}

static enum us_outcome recv(struct us_model_task *t, struct us_vcpu *v, const struct us_op *op)
{
    if (!t->served && !us_model_recv(t, v, &t->word))
        return US_OUTCOME_WAITS;
    if (op->slot != US_NO_SLOT)
        t->slot[op->slot] = t->word;
    t->word = 0;
    return US_OUTCOME_DONE;
}

static enum us_outcome clock_op(struct us_model_task *t, struct us_vcpu *v, const struct us_op *op)
{
    struct us_runner *r = t->run;

    if (r->options.pace > 0) {
        double ps = (double)op->arg * (1000.0 / r->options.pace);

        if (t->served)
            return US_OUTCOME_DONE;
        if (ps > (double)US_FARTHEST_PS) /* what no uint64_t may hold */
            ps = (double)(US_FARTHEST_PS + 1);
        if (!has_time(t, v, (uint64_t)ps, 1))
            return US_OUTCOME_ENDS;
        return us_model_until(t, v, r->start + (uint64_t)ps) ? US_OUTCOME_DONE : US_OUTCOME_WAITS;
    }
    show_clock(r, op->arg);
    return US_OUTCOME_DONE;
}

/* One op; `served`: it had to wait, and what it waited for has happened. */
enum us_outcome us_model_op(struct us_model_task *t, struct us_vcpu *v, const struct us_op *op)
{
    struct us_runner *r = t->run;
    uint64_t word;

    switch (op->op) {
    case US_OP_ALLOC:
    case X_ALLOC_SPECIAL:
        return alloc(t, op, &t->slot[op->slot]);
    case US_OP_FREE:
        word = t->slot[op->slot];
        t->slot[op->slot] = 0;
        put_object(r, word);
        return US_OUTCOME_DONE;
    case X_ALLOC_SHARED:
    case X_FREE_SHARED:
    case X_TOUCH_SHARED:
        return shared_op(t, v, op);
    case US_OP_TOUCH:
        return touch_op(t, op, t->slot[op->slot]);
    case US_OP_WORK:
        if (!has_time(t, v, op->arg, r->sim->cost.cycle))
            return US_OUTCOME_ENDS;
        us_sim_work(v, US_PHASE_WORK, op->arg * r->sim->cost.cycle);
        return US_OUTCOME_DONE;
    case US_OP_SEND:
        return send(t, v, op);
    case US_OP_RECV:
        return recv(t, v, op);
    case US_OP_BARRIER:
        return t->served || us_model_barrier(t, v) ? US_OUTCOME_DONE : US_OUTCOME_WAITS;
    case US_OP_CLOCK:
        return clock_op(t, v, op);
    case US_OP_PROGRESS:
        return t->served || us_model_progress(t, v) ? US_OUTCOME_DONE : US_OUTCOME_WAITS;
    case US_OP_SLEEP:
        if (!t->served && !has_time(t, v, op->arg, 1000))
            return US_OUTCOME_ENDS;
        return t->served || us_model_until(t, v, v->clock + op->arg * 1000) ? US_OUTCOME_DONE
                                                                            : US_OUTCOME_WAITS;
    case US_OP_MARK:
        t->marks++;
        return US_OUTCOME_DONE;
    default:
        return US_OUTCOME_ENDS; /* X_END */
    }
}
#endif
