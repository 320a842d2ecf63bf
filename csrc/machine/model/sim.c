/* sim.c - the order of virtual time: CPUs that are ready, events, locks. See sim.h. */
#define _GNU_SOURCE
#include "machine/model/sim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "machine/model/coroutine.h"

struct us_vcpu *us_running;

struct us_timer {
    uint64_t at, turn;
    us_sim_event *event;
    void *context;
    uint64_t argument;
};

/* ---- CPUs that are ready, by clock and number --------------------------------------------------
 */

static struct us_turn turn_of(const struct us_vcpu *v)
{
    return (struct us_turn){v->clock, v->id};
}

static bool earlier(struct us_sim *s, struct us_turn a, struct us_turn b)
{
    s->comparisons++;
    return a.clock < b.clock || (a.clock == b.clock && a.cpu < b.cpu);
}

static void put(struct us_sim *s, uint32_t place, struct us_turn turn)
{
    s->heap[place] = turn;
    s->vcpu[turn.cpu].place = place;
}

static void sift_up(struct us_sim *s, uint32_t place, struct us_turn turn)
{
    while (place > 0 && earlier(s, turn, s->heap[(place - 1) / 2])) {
        put(s, place, s->heap[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    put(s, place, turn);
}

static void sift_down(struct us_sim *s, uint32_t place, struct us_turn turn)
{
    for (;;) {
        uint32_t child = 2 * place + 1;

        if (child >= s->nheap)
            break;
        if (child + 1 < s->nheap && earlier(s, s->heap[child + 1], s->heap[child]))
            child++;
        if (!earlier(s, s->heap[child], turn))
            break;
        put(s, place, s->heap[child]);
        place = child;
    }
    put(s, place, turn);
}

static struct us_vcpu *take_first(struct us_sim *s)
{
    struct us_vcpu *first = &s->vcpu[s->heap[0].cpu];

    s->nheap--;
    if (s->nheap > 0)
        sift_down(s, 0, s->heap[s->nheap]);
    return first;
}

/* ---- events ------------------------------------------------------------------------------------
 */

static bool timer_earlier(struct us_sim *s, const struct us_timer *a, const struct us_timer *b)
{
    s->comparisons++;
    return a->at < b->at || (a->at == b->at && a->turn < b->turn);
}

bool us_sim_at(struct us_sim *s, uint64_t at, us_sim_event *event, void *context, uint64_t argument)
{
    struct us_timer timer = {at, s->timer_turn++, event, context, argument};
    uint32_t place;

    if (s->ntimers == s->timer_room) {
        uint32_t room = s->timer_room ? 2 * s->timer_room : 64;
        struct us_timer *more = realloc(s->timer, room * sizeof(*more));

        if (!more)
            return false;
        s->timer = more;
        s->timer_room = room;
    }
    place = s->ntimers++;
    while (place > 0 && timer_earlier(s, &timer, &s->timer[(place - 1) / 2])) {
        s->timer[place] = s->timer[(place - 1) / 2];
        place = (place - 1) / 2;
    }
    s->timer[place] = timer;
    if (at < s->horizon) {
        s->horizon = at;
        s->horizon_cpu = 0;
    }
    return true;
}

static struct us_timer take_timer(struct us_sim *s)
{
    struct us_timer first = s->timer[0], last = s->timer[--s->ntimers];
    uint32_t place = 0;

    for (;;) {
        uint32_t child = 2 * place + 1;

        if (child >= s->ntimers)
            break;
        if (child + 1 < s->ntimers && timer_earlier(s, &s->timer[child + 1], &s->timer[child]))
            child++;
        if (!timer_earlier(s, &s->timer[child], &last))
            break;
        s->timer[place] = s->timer[child];
        place = child;
    }
    if (s->ntimers > 0)
        s->timer[place] = last;
    return first;
}

/* ---- who runs next -----------------------------------------------------------------------------
 */

/* Until when who runs need not look at the others. An event comes before a CPU of the same time. */
static void set_horizon(struct us_sim *s)
{
    s->horizon = US_FOREVER;
    s->horizon_cpu = 0;
    if (s->nheap > 0) {
        s->horizon = s->heap[0].clock;
        s->horizon_cpu = s->heap[0].cpu;
    }
    if (s->ntimers > 0 && s->timer[0].at <= s->horizon) {
        s->horizon = s->timer[0].at;
        s->horizon_cpu = 0;
    }
}

/* Lets the events happen that are due before the first CPU that is ready. */
static void run_events(struct us_sim *s)
{
    struct us_vcpu *running = us_running;

    us_running = NULL;
    while (s->ntimers > 0 && s->timer[0].at <= s->event_limit &&
           (s->nheap == 0 || s->timer[0].at <= s->heap[0].clock)) {
        struct us_timer timer = take_timer(s);

        s->event_now = timer.at;
        s->shown_ns = timer.at / 1000;
        timer.event(timer.context, timer.argument);
    }
    us_running = running;
}

static void resume(struct us_sim *s, struct us_vcpu *v, void **from)
{
    v->state = US_VCPU_RUNS;
    s->machine->current_cpu = v->id;
    us_running = v;
    set_horizon(s);
    us_context_switch(from, v->context);
}

/* Leaves `v`, which has said by its state when it wants to go on. */
static void leave(struct us_vcpu *v)
{
    struct us_sim *s = v->sim;

    run_events(s);
    if (s->nheap == 0 || s->leave) {
        us_running = NULL;
        us_context_switch(&v->context, s->main);
    } else {
        struct us_vcpu *next = take_first(s);

        if (next != v)
            resume(s, next, &v->context);
    }
    /* Back: whoever came here made `v` the running one, unless it never left. */
    v->state = US_VCPU_RUNS;
    s->machine->current_cpu = v->id;
    us_running = v;
    set_horizon(s);
}

void us_sim_ready(struct us_vcpu *v)
{
    struct us_sim *s = v->sim;

    v->state = US_VCPU_READY;
    sift_up(s, s->nheap++, turn_of(v));
    if (v->clock < s->horizon || (v->clock == s->horizon && v->id < s->horizon_cpu)) {
        s->horizon = v->clock;
        s->horizon_cpu = v->id;
    }
}

/* Of thousands of CPUs each has left the host's caches when its turn comes again: the next one's
 * stack, and what its successors are known by, are asked for while this one works. */
static void look_ahead(const struct us_sim *s)
{
    const char *stack = s->vcpu[s->heap[0].cpu].context;

    for (unsigned at = 0; at < 6 * US_LINE; at += US_LINE)
        __builtin_prefetch(stack + at);
    for (uint32_t i = 1; i < 3 && i < s->nheap; i++) {
        const char *soon = (const char *)&s->vcpu[s->heap[i].cpu];

        __builtin_prefetch(soon);
        __builtin_prefetch(soon + US_LINE);
    }
}

/* Most often another CPU is earlier and nothing else has to be done: it changes places with `v`. */
void us_sim_switch(struct us_vcpu *v)
{
    struct us_sim *s = v->sim;
    struct us_vcpu *next;

    if (s->nheap == 0 || s->leave || earlier(s, turn_of(v), s->heap[0]) ||
        (s->ntimers > 0 && s->timer[0].at <= s->heap[0].clock)) {
        us_sim_ready(v);
        leave(v);
        return;
    }
    next = &s->vcpu[s->heap[0].cpu];
    v->state = US_VCPU_READY;
    sift_down(s, 0, turn_of(v));
    look_ahead(s);
    resume(s, next, &v->context);
    v->state = US_VCPU_RUNS;
    s->machine->current_cpu = v->id;
    us_running = v;
    set_horizon(s);
}

void us_sim_interrupted(struct us_vcpu *v, uint64_t ps)
{
    struct us_sim *s = v->sim;

    us_sim_spend(v, US_PHASE_INTERRUPT, ps);
    sift_down(s, v->place, turn_of(v));
}

void us_sim_wait(struct us_vcpu *v)
{
    v->state = US_VCPU_WAITS;
    leave(v);
}

/* ---- idle CPUs ---------------------------------------------------------------------------------
 */

void us_sim_wake(struct us_sim *s, unsigned cpu, uint64_t at)
{
    struct us_vcpu *v = &s->vcpu[cpu];

    if (v->state != US_VCPU_IDLE)
        return;
    /* The CPU is busy from then on and in nobody's way before: its clock may show that at once. */
    if (at > v->clock)
        us_sim_spend(v, US_PHASE_IDLE, at - v->clock);
    v->core->busy++;
    us_sim_ready(v);
}

void us_sim_idle(struct us_vcpu *v)
{
    v->state = US_VCPU_IDLE;
    v->core->busy--;
    leave(v);
}

uint64_t us_sim_align(struct us_sim *s, uint64_t least)
{
    uint64_t latest = least;

    for (unsigned cpu = 0; cpu < s->machine->ncpus; cpu++)
        latest = s->vcpu[cpu].clock > latest ? s->vcpu[cpu].clock : latest;
    for (unsigned cpu = 0; cpu < s->machine->ncpus; cpu++)
        us_sim_spend(&s->vcpu[cpu], US_PHASE_IDLE, latest - s->vcpu[cpu].clock);
    return latest;
}

void us_sim_clear(struct us_sim *s)
{
    for (unsigned cpu = 0; cpu < s->machine->ncpus; cpu++) {
        struct us_vcpu *v = &s->vcpu[cpu];

        memset(v->time, 0, sizeof(v->time));
        memset(v->line_ps, 0, sizeof(v->line_ps));
        memset(v->line_count, 0, sizeof(v->line_count));
        memset(v->lock_ps, 0, sizeof(v->lock_ps));
        memset(v->lock_count, 0, sizeof(v->lock_count));
    }
    s->comparisons = 0;
}

/* ---- life --------------------------------------------------------------------------------------
 */

static bool make_cores(struct us_sim *s)
{
    const struct us_machine *m = s->machine;

    s->ncores = (m->ncpus + s->smt - 1) / s->smt;
    s->core = calloc(s->ncores, sizeof(*s->core));
    s->vcpu = calloc(m->ncpus, sizeof(*s->vcpu));
    s->heap = calloc(m->ncpus, sizeof(*s->heap));
    if (!s->core || !s->vcpu || !s->heap)
        return false;
    for (unsigned cpu = 0; cpu < m->ncpus; cpu++) {
        struct us_vcpu *v = &s->vcpu[cpu];

        v->id = cpu;
        v->sim = s;
        v->state = US_VCPU_IDLE;
        v->core = &s->core[cpu / s->smt];
        v->core->domain = us_domain_of_cpu(m, cpu);
        v->core->node = us_node_of_cpu(m, cpu);
    }
    return true;
}

struct us_sim *us_sim_create(struct us_machine *m, const struct us_costs *costs,
                             const struct us_cache_sizes *sizes, unsigned smt,
                             struct us_error *error)
{
    struct us_sim *s = calloc(1, sizeof(*s));

    if (s) {
        s->machine = m;
        s->cost = *costs;
        s->sizes = *sizes;
        s->smt = smt ? smt : 1;
        s->horizon = s->event_limit = US_FOREVER;
        if (make_cores(s) && (s->directory = us_directory_create(s)))
            return s;
    }
    us_sim_destroy(s);
    us_fail(error, US_ENOMEM, "no memory to model a machine of %u CPUs", m->ncpus);
    return NULL;
}

enum { GUARD = 4096 };

static void drop_contexts(struct us_sim *s)
{
    if (!s->stacks)
        return;
    for (unsigned cpu = 0; cpu < s->machine->ncpus; cpu++) {
        us_context_drop(s->vcpu[cpu].context);
        s->vcpu[cpu].context = NULL;
    }
    us_context_drop(s->main);
}

void us_sim_destroy(struct us_sim *s)
{
    if (!s)
        return;
    drop_contexts(s);
    if (s->stacks)
        munmap(s->stacks, s->stack_bytes);
    us_directory_destroy(s->directory);
    free(s->vcpu);
    free(s->core);
    free(s->heap);
    free(s->timer);
    free(s->lock);
    free(s);
}

static void begin(void *cpu)
{
    struct us_vcpu *v = cpu;
    struct us_sim *s = v->sim;

    s->body(s->context, v->id);
}

/* One stack after the other, the lowest page of each left out so that overruns are seen. */
static bool map_stacks(struct us_sim *s)
{
    size_t bytes = (size_t)s->machine->ncpus * US_STACK_BYTES;
    char *stacks = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (stacks == MAP_FAILED)
        return false;
    for (size_t at = 0; at < bytes; at += US_STACK_BYTES)
        (void)mprotect(stacks + at, GUARD, PROT_NONE);
    s->stacks = stacks;
    s->stack_bytes = bytes;
    return true;
}

bool us_sim_start(struct us_sim *s, us_sim_body *body, void *context, struct us_error *error)
{
    const unsigned ncpus = s->machine->ncpus;

    s->body = body;
    s->context = context;
    drop_contexts(s);
    s->main = NULL;
    s->nheap = 0;
    s->ntimers = 0;
    if (!s->stacks && !map_stacks(s))
        return us_fail(error, US_ENOMEM, "no memory for the stacks of %u virtual CPUs", ncpus) ==
               US_OK;
    for (unsigned cpu = 0; cpu < ncpus; cpu++) {
        struct us_vcpu *v = &s->vcpu[cpu];
        char *stack = s->stacks + (size_t)cpu * US_STACK_BYTES + GUARD;
        /* Tops at one place of a page each would all lie in the same set of the host's cache. */
        size_t colour = cpu % 32 * 2 * US_LINE;

        v->context = us_context_make(stack, US_STACK_BYTES - GUARD - colour, begin, v);
        if (!v->context) {
            us_fail(error, US_ENOMEM, "no memory for virtual CPU %u", cpu);
            return false;
        }
        v->state = US_VCPU_IDLE;
        v->thread = (struct us_thread){0};
        v->phase = US_PHASE_WORK;
        v->core->busy = 0;
    }
    return true;
}

bool us_sim_run(struct us_sim *s)
{
    s->leave = false;
    run_events(s);
    if (s->nheap > 0)
        resume(s, take_first(s), &s->main);
    us_running = NULL;
    s->machine->current_cpu = 0;
    return !s->leave;
}

void us_sim_leave(struct us_sim *s)
{
    s->leave = true;
    s->horizon = 0;
}

/* ---- what locks remember -----------------------------------------------------------------------
 */

static uint64_t hash(const void *p)
{
    uint64_t x = (uint64_t)(uintptr_t)p * 0x9e3779b97f4a7c15ull;

    return x ^ x >> 32;
}

static struct us_lock_record *find(struct us_lock_record *table, uint32_t room, const void *lock)
{
    uint32_t i = (uint32_t)hash(lock) & (room - 1);

    while (table[i].lock && table[i].lock != lock)
        i = (i + 1) & (room - 1);
    return &table[i];
}

static void grow_locks(struct us_sim *s)
{
    uint32_t room = s->lock_room ? 2 * s->lock_room : 1024;
    struct us_lock_record *table = calloc(room, sizeof(*table));

    if (!table)
        us_fatal("no memory for the locks of a modelled machine");
    for (uint32_t i = 0; i < s->lock_room; i++)
        if (s->lock[i].lock)
            *find(table, room, s->lock[i].lock) = s->lock[i];
    free(s->lock);
    s->lock = table;
    s->lock_room = room;
}

/* Records move when a new lock is met: none is kept over a call. */
struct us_lock_record *us_sim_lock(struct us_sim *s, const void *lock)
{
    struct us_lock_record *r;

    if (2 * s->nlocks >= s->lock_room)
        grow_locks(s);
    r = find(s->lock, s->lock_room, lock);
    if (!r->lock) {
        r->lock = lock;
        s->nlocks++;
    }
    return r;
}
