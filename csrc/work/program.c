/* program.c - the check of op programs before they run.
 *
 * A task is walked once in order, keeping for each slot whether it holds an object. A REPEAT runs
 * its body a second time on the state that the first left: what one more round cannot break, no
 * later round can, because a body leaves each slot it uses in the same state every time.
 *
 * Shared slots have no order between tasks that could be known here; their ops are counted.
 */
#include "work/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct walk {
    const struct us_program *program;
    unsigned task;
    const struct us_op *op;
    size_t nops;
    uint32_t *filled;     /* [slot] 1 + op that filled it, 0 = empty */
    uint32_t *emptied;    /* [slot] 1 + op that emptied it last */
    uint32_t *shared_net; /* [shared slot] allocations less frees */
    uint32_t *body;       /* stack of loops seen: first op of each */
    int8_t *channel_use;  /* [channel] 0 unknown, 1 objects, 2 empty messages */
    struct us_error *error;
};

static const char *const op_names[US_OP_COUNT] = {
#define US_ROW(id, name, help) [US_OP_##id] = name,
    US_OPS(US_ROW)
#undef US_ROW
};

const char *us_op_name(unsigned op)
{
    return op < US_OP_COUNT ? op_names[op] : NULL;
}

static enum us_status no_memory(struct us_error *error)
{
    if (error) {
        error->status = US_ENOMEM;
        error->requested = error->limit = 0;
        snprintf(error->text, sizeof(error->text), "no memory for the tables of a workload");
    }
    return US_ENOMEM;
}

static enum us_status refuse(const struct walk *w, size_t at, const char *what)
{
    const char *name = us_op_name(w->op[at].op);

    if (w->error) {
        w->error->status = US_EINVAL;
        w->error->requested = w->error->limit = 0;
        snprintf(w->error->text, sizeof(w->error->text), "task %u, op %zu (%s): %s", w->task, at,
                 name ? name : "unknown", what);
    }
    return US_EINVAL;
}

#define REFUSE(w, at, ...)                           \
    do {                                             \
        char text_[300];                             \
        snprintf(text_, sizeof(text_), __VA_ARGS__); \
        return refuse(w, at, text_);                 \
    } while (0)

/* ---- numbers: what one op says, whatever stands around it ------------------------------------ */

static bool has_slot(const struct us_op *op)
{
    return op->op == US_OP_ALLOC || op->op == US_OP_FREE || op->op == US_OP_TOUCH ||
           ((op->op == US_OP_SEND || op->op == US_OP_RECV) && op->slot != US_NO_SLOT);
}

static enum us_status check_flags(const struct walk *w, size_t at)
{
    const struct us_op *op = &w->op[at];
    unsigned allowed = 0;

    if (op->op == US_OP_ALLOC)
        allowed = US_OPF_ALL;
    else if (op->op == US_OP_FREE || op->op == US_OP_TOUCH)
        allowed = US_OPF_SHARED;
    if (op->flags & ~allowed)
        REFUSE(w, at, "flags %#x: this op takes %#x", op->flags, allowed);
    return US_OK;
}

static enum us_status check_numbers(const struct walk *w, size_t at)
{
    const struct us_program *p = w->program;
    const struct us_op *op = &w->op[at];

    if (!us_op_name(op->op))
        REFUSE(w, at, "op code %u, expected 1 to %u", op->op, US_OP_COUNT - 1);
    if (op->op == US_OP_ALLOC && op->cache >= p->ncaches)
        REFUSE(w, at, "cache %u, but the workload has %u", op->cache, p->ncaches);
    if (op->op == US_OP_ALLOC && op->arg > 1024)
        REFUSE(w, at, "arg %llu is node + 1, expected 0 (any) to 1024",
               (unsigned long long)op->arg);
    if ((op->op == US_OP_SEND || op->op == US_OP_RECV) && op->cache >= p->nchannels)
        REFUSE(w, at, "channel %u, but the workload has %u", op->cache, p->nchannels);
    if (has_slot(op) && op->slot >= US_MAX_SLOTS)
        REFUSE(w, at, "slot %u, expected 0 to %u", op->slot, US_MAX_SLOTS - 1);
    if (op->op == US_OP_TOUCH && op->arg > US_MAX_OBJECT)
        REFUSE(w, at, "%llu bytes is more than any object has", (unsigned long long)op->arg);
    if ((op->op == US_OP_SEND || op->op == US_OP_SLEEP) && op->arg > US_MAX_DELAY)
        REFUSE(w, at, "%llu ns, expected 0 to 10^12 (1000 s)", (unsigned long long)op->arg);
    if (op->op == US_OP_SLEEP && (p->task[w->task].flags & US_TASK_INTERRUPT))
        REFUSE(w, at, "an interrupt cannot sleep; wait in an ordinary task");
    if (op->op == US_OP_REPEAT && (op->slot == 0 || op->slot > at))
        REFUSE(w, at, "repeats %u ops, but %zu stand before it", op->slot, at);
    if (op->op == US_OP_REPEAT && op->arg == 0)
        REFUSE(w, at, "repeats 0 times; leave its body out instead");
    return check_flags(w, at);
}

/* ---- loops ----------------------------------------------------------------------------------- */

/* Bodies lie one within another or apart. Returns the deepest nesting in *depth. */
static enum us_status check_loops(struct walk *w, uint32_t *nloops)
{
    size_t loops = 0; /* on the stack: closed loops, the last one on top */
    uint8_t *depth = calloc(w->nops + 1, 1);
    enum us_status status = US_OK;

    *nloops = 0;
    if (!depth)
        return no_memory(w->error);
    for (size_t i = 0; i < w->nops && status == US_OK; i++) {
        uint32_t start;
        uint8_t deepest = 0;

        if (w->op[i].op != US_OP_REPEAT)
            continue;
        start = (uint32_t)i - w->op[i].slot;
        for (; loops > 0 && w->body[2 * loops - 1] >= start; loops--) {
            if (w->body[2 * loops - 2] < start) {
                status = refuse(w, i, "its body begins inside another REPEAT's body");
                break;
            }
            if (depth[w->body[2 * loops - 1]] > deepest)
                deepest = depth[w->body[2 * loops - 1]];
        }
        depth[i] = (uint8_t)(deepest + 1);
        if (status == US_OK && depth[i] > US_MAX_LOOPS)
            status = refuse(w, i, "more than 8 REPEATs within one another");
        w->body[2 * loops] = start;
        w->body[2 * loops + 1] = (uint32_t)i;
        loops++;
        ++*nloops;
    }
    free(depth);
    if (status == US_OK && *nloops > UINT16_MAX)
        status = refuse(w, w->nops - 1, "more than 65535 REPEATs in one task");
    return status;
}

/* ---- slots ----------------------------------------------------------------------------------- */

static enum us_status fill(struct walk *w, size_t at)
{
    uint32_t slot = w->op[at].slot;

    if (w->filled[slot])
        REFUSE(w, at, "slot %u still holds the object of op %u; free it first", slot,
               w->filled[slot] - 1);
    w->filled[slot] = (uint32_t)at + 1;
    return US_OK;
}

static enum us_status need(const struct walk *w, size_t at)
{
    uint32_t slot = w->op[at].slot;

    if (w->filled[slot])
        return US_OK;
    if (w->emptied[slot])
        REFUSE(w, at, "slot %u was emptied by op %u already", slot, w->emptied[slot] - 1);
    REFUSE(w, at, "slot %u was never allocated", slot);
}

/* What a slot's object is, is known where the same task allocated it; the rest is found in the run.
 */
static enum us_status touch(const struct walk *w, size_t at)
{
    enum us_status status = need(w, at);
    const struct us_op *from;
    uint64_t size;

    if (status != US_OK)
        return status;
    from = &w->op[w->filled[w->op[at].slot] - 1];
    if (from->op != US_OP_ALLOC)
        return US_OK;
    size = w->program->cache[from->cache].size;
    if (w->op[at].arg > size)
        REFUSE(w, at, "%llu bytes of an object of %llu", (unsigned long long)w->op[at].arg,
               (unsigned long long)size);
    return US_OK;
}

static enum us_status empty(struct walk *w, size_t at)
{
    enum us_status status = need(w, at);

    if (status == US_OK) {
        w->filled[w->op[at].slot] = 0;
        w->emptied[w->op[at].slot] = (uint32_t)at + 1;
    }
    return status;
}

static enum us_status channel_use(struct walk *w, size_t at)
{
    const struct us_op *op = &w->op[at];
    int8_t use = op->slot == US_NO_SLOT ? 2 : 1;

    if (w->channel_use[op->cache] && w->channel_use[op->cache] != use)
        REFUSE(w, at, "channel %u carries %s elsewhere; use two channels", op->cache,
               use == 2 ? "objects" : "empty messages");
    w->channel_use[op->cache] = use;
    return US_OK;
}

static enum us_status step(struct walk *w, size_t at, unsigned loop)
{
    const struct us_op *op = &w->op[at];
    enum us_status status;

    if (op->flags & US_OPF_SHARED) {
        if (loop)
            return refuse(w, at, "shared slots cannot be used inside a REPEAT");
        w->shared_net[op->slot] += op->op == US_OP_ALLOC ? 1u : op->op == US_OP_FREE ? -1u : 0;
        return US_OK;
    }
    switch (op->op) {
    case US_OP_ALLOC:
        return fill(w, at);
    case US_OP_FREE:
        return empty(w, at);
    case US_OP_TOUCH:
        return touch(w, at);
    case US_OP_SEND:
        status = channel_use(w, at);
        return status != US_OK || op->slot == US_NO_SLOT ? status : empty(w, at);
    case US_OP_RECV:
        status = channel_use(w, at);
        return status != US_OK || op->slot == US_NO_SLOT ? status : fill(w, at);
    default:
        return US_OK;
    }
}

/* Walks ops [from, to); a REPEAT walks its body once more. `loop`: within such a body. */
static enum us_status walk_ops(struct walk *w, size_t from, size_t to, unsigned loop)
{
    enum us_status status = US_OK;

    for (size_t i = from; i < to && status == US_OK; i++) {
        if (w->op[i].op == US_OP_REPEAT) {
            if (w->op[i].arg > 1)
                status = walk_ops(w, i - w->op[i].slot, i, loop + 1);
            continue;
        }
        status = step(w, i, loop);
    }
    return status;
}

/* ---- a whole program ---------------------------------------------------------------------------
 */

/* *sum += a * b, but no more than UINT64_MAX. */
static void add_product(uint64_t *sum, uint64_t a, uint64_t b)
{
    uint64_t product;

    if (__builtin_mul_overflow(a, b, &product) || __builtin_add_overflow(*sum, product, sum))
        *sum = UINT64_MAX;
}

static void count_ops(const struct us_program_task *t, struct us_program_facts *facts)
{
    /* From the end: a REPEAT multiplies what stands in its body. */
    struct {
        size_t start;
        uint64_t times;
    } stack[US_MAX_LOOPS + 1] = {{0, 1}};
    unsigned top = 0;

    for (size_t i = t->nops; i-- > 0;) {
        const struct us_op *op = &t->op[i];

        while (top > 0 && i < stack[top].start)
            top--;
        if (op->op == US_OP_REPEAT && top < US_MAX_LOOPS) {
            top++;
            stack[top].start = i - op->slot;
            stack[top].times = 0;
            add_product(&stack[top].times, stack[top - 1].times, op->arg);
        }
        add_product(&facts->nallocs, op->op == US_OP_ALLOC, stack[top].times);
        add_product(&facts->nfrees, op->op == US_OP_FREE, stack[top].times);
        add_product(&facts->nmarks, op->op == US_OP_MARK, stack[top].times);
    }
}

static enum us_status check_task(struct walk *w, struct us_program_facts *facts, bool *barrier)
{
    uint32_t nslots = 0;
    enum us_status status = US_OK;

    if (w->nops >= UINT32_MAX)
        return refuse(w, 0, "a task has at most 4294967294 ops");
    for (size_t i = 0; i < w->nops; i++) {
        const struct us_op *op = &w->op[i];

        status = check_numbers(w, i);
        if (status != US_OK)
            return status;
        if (has_slot(op) && !(op->flags & US_OPF_SHARED) && op->slot >= nslots)
            nslots = op->slot + 1;
        if (op->op == US_OP_CLOCK && op->arg > facts->span_ns)
            facts->span_ns = op->arg;
        *barrier |= op->op == US_OP_BARRIER;
    }
    facts->nslots[w->task] = nslots;
    w->filled = calloc(nslots + 1u, sizeof(*w->filled));
    w->emptied = calloc(nslots + 1u, sizeof(*w->emptied));
    w->body = calloc(2 * w->nops + 2, sizeof(*w->body));
    if (!w->filled || !w->emptied || !w->body)
        status = no_memory(w->error);
    if (status == US_OK)
        status = check_loops(w, &facts->nloops[w->task]);
    if (status == US_OK)
        status = walk_ops(w, 0, w->nops, 0);
    if (status == US_OK)
        count_ops(&w->program->task[w->task], facts);
    if (status == US_OK &&
        (facts->nallocs > INT64_MAX || facts->nfrees > INT64_MAX || facts->nmarks > INT64_MAX))
        status =
            refuse(w, w->nops - 1, "one pass makes more than 2^63 allocations, frees or marks");
    free(w->filled);
    free(w->emptied);
    free(w->body);
    return status;
}

/* How many shared slots the ops name; numbers are checked later, so large ones are left out. */
static uint32_t shared_slots(const struct us_program *p)
{
    uint32_t n = 0;

    for (unsigned t = 0; t < p->ntasks; t++)
        for (size_t i = 0; i < p->task[t].nops; i++) {
            const struct us_op *op = &p->task[t].op[i];

            if ((op->flags & US_OPF_SHARED) && has_slot(op) && op->slot >= n &&
                op->slot < US_MAX_SLOTS)
                n = op->slot + 1;
        }
    return n;
}

static enum us_status check_shared(struct walk *w, uint32_t nshared)
{
    for (w->task = 0; w->task < w->program->ntasks; w->task++) {
        w->op = w->program->task[w->task].op;
        for (size_t i = 0; i < w->program->task[w->task].nops; i++) {
            const struct us_op *op = &w->op[i];

            if (!(op->flags & US_OPF_SHARED) || op->slot >= nshared)
                continue;
            if (w->shared_net[op->slot] > 1)
                REFUSE(w, i, "shared slot %u is not freed as often as it is allocated", op->slot);
        }
    }
    return US_OK;
}

static enum us_status check_caches(const struct us_program *p, struct us_error *error)
{
    for (unsigned i = 0; i < p->ncaches; i++) {
        const struct us_program_cache *c = &p->cache[i];
        const char *wrong = NULL;

        if (c->size == 0 || c->size > US_MAX_OBJECT)
            wrong = "size";
        else if (c->align & (c->align - 1) || c->align > (1u << 20))
            wrong = "align";
        if (!wrong)
            continue;
        if (error) {
            error->status = US_EINVAL;
            snprintf(error->text, sizeof(error->text), "cache %u (%s): %s %llu, expected %s", i,
                     c->name ? c->name : "kmalloc", wrong,
                     (unsigned long long)(*wrong == 's' ? c->size : c->align),
                     *wrong == 's' ? "1 to 2^40 bytes" : "0 or a power of two up to 2^20");
        }
        return US_EINVAL;
    }
    return US_OK;
}

static enum us_status check_placement(const struct us_program *p, struct us_error *error)
{
    for (unsigned i = 0; i < p->ntasks; i++) {
        const struct us_program_task *t = &p->task[i];
        bool unknown = t->flags & ~(unsigned)US_TASK_FLAGS_ALL;

        if (!unknown && (!(t->flags & US_TASK_INTERRUPT) || t->ncpus == 1))
            continue;
        if (error) {
            error->status = US_EINVAL;
            snprintf(error->text, sizeof(error->text),
                     unknown ? "task %u: flags %#x, expected 0 or 1 (an interrupt)"
                             : "task %u: an interrupt of %u CPUs, expected exactly one",
                     i, unknown ? t->flags : t->ncpus);
        }
        return US_EINVAL;
    }
    return US_OK;
}

static enum us_status check_counts(const struct us_program *p, struct us_error *error)
{
    const char *wrong = NULL;

    if (p->ntasks == 0)
        wrong = "a workload needs at least one task";
    else if (p->ncaches > UINT16_MAX || p->nchannels > UINT16_MAX)
        wrong = "a workload has at most 65535 caches (sizes of kmalloc count) and channels";
    for (unsigned i = 0; !wrong && i < p->nchannels; i++)
        if (p->channel[i] == 0 || p->channel[i] > (1u << 20))
            wrong = "a channel holds 1 to 2^20 messages";
    if (!wrong)
        return US_OK;
    if (error) {
        error->status = US_EINVAL;
        snprintf(error->text, sizeof(error->text), "%s", wrong);
    }
    return US_EINVAL;
}

enum us_status us_program_check(const struct us_program *p, struct us_program_facts *facts,
                                struct us_error *error)
{
    struct walk w = {.program = p, .error = error};
    enum us_status status = check_counts(p, error);

    memset(facts, 0, sizeof(*facts));
    if (status == US_OK)
        status = check_caches(p, error);
    if (status == US_OK)
        status = check_placement(p, error);
    if (status != US_OK)
        return status;
    facts->nshared = shared_slots(p);
    facts->nslots = calloc(p->ntasks, sizeof(*facts->nslots));
    facts->nloops = calloc(p->ntasks, sizeof(*facts->nloops));
    w.shared_net = calloc(facts->nshared + 1u, sizeof(*w.shared_net));
    w.channel_use = calloc(p->nchannels + 1u, sizeof(*w.channel_use));
    if (!facts->nslots || !facts->nloops || !w.shared_net || !w.channel_use)
        status = no_memory(error);
    for (w.task = 0; w.task < p->ntasks && status == US_OK; w.task++) {
        bool barrier = false;

        w.op = p->task[w.task].op;
        w.nops = p->task[w.task].nops;
        status = check_task(&w, facts, &barrier);
        facts->nbarrier += barrier;
    }
    if (status == US_OK)
        status = check_shared(&w, facts->nshared);
    free(w.shared_net);
    free(w.channel_use);
    if (status != US_OK)
        us_program_facts_release(facts);
    return status;
}

void us_program_facts_release(struct us_program_facts *facts)
{
    free(facts->nslots);
    free(facts->nloops);
    facts->nslots = facts->nloops = NULL;
}
