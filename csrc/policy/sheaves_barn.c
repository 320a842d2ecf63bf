/* sheaves_barn.c - sheaves on their way: the barn of a node, and the pair of a CPU.
 *
 * Limits of a barn are looked at before its lock is taken, as in the original, so that parallel
 * callers may pass them by a few; puts that undo something ignore them.
 */
#include "policy/sheaves.h"

/* Instructions of the compiled functions: see sheaves.c. */
enum {
    RUNS_NEW = 25,
    RUNS_LOOK = 16,
    RUNS_HOLD = 22, /* and what is done in it */
    RUNS_PAIR_TAKE = 64,
    RUNS_PAIR_GIVE = 31,
    RUNS_POPULATE = 66,
};

/* ---- sheaves --------------------------------------------------------------------------- */

struct us_sheaf *us_sheaf_new(struct us_cache *c)
{
    const uint32_t capacity = us_sheaves_of(c)->capacity;
    struct us_sheaf *s = us_meta_alloc(c->slabs->memory, us_sheaf_bytes(capacity));

    if (!s)
        return NULL;
    us_runs(RUNS_NEW);
    us_sheaf_init(s, capacity);
    us_count(c, us_cpu_now(c->machine), US_SHEAVES_SHEAF_ALLOC);
    return s;
}

void us_sheaf_free(struct us_cache *c, struct us_sheaf *s)
{
    us_runs(RUNS_NEW);
    us_reads(s, sizeof(*s));
    us_count(c, us_cpu_now(c->machine), US_SHEAVES_SHEAF_FREE);
    us_meta_free(c->slabs->memory, s, us_sheaf_bytes(s->capacity));
}

/* ---- the barn -------------------------------------------------------------------------- */

/* A barn is one line, its lock's. Looks that are not under the lock: look_at. */
static uint32_t look(_Atomic uint32_t *count)
{
    return atomic_load_explicit(count, memory_order_relaxed);
}

static void push(struct us_sheaf **list, _Atomic uint32_t *count, struct us_sheaf *s)
{
    us_writes(s, sizeof(*s));
    s->next = *list;
    *list = s;
    atomic_store_explicit(count, look(count) + 1, memory_order_relaxed);
}

static struct us_sheaf *pop(struct us_sheaf **list, _Atomic uint32_t *count)
{
    struct us_sheaf *s = *list;

    if (!s)
        return NULL;
    us_writes(s, sizeof(*s));
    *list = s->next;
    s->next = NULL;
    atomic_store_explicit(count, look(count) - 1, memory_order_relaxed);
    return s;
}

static uint32_t look_at(struct us_barn *b, _Atomic uint32_t *count)
{
    us_runs(RUNS_LOOK);
    us_reads(b, sizeof(*b));
    return look(count);
}

static void lock(struct us_flight *f, struct us_barn *b)
{
    us_runs(RUNS_HOLD);
    if (!us_lock_take(f, &b->lock))
        __builtin_trap(); /* a flight that is not nested gets its locks */
}

struct us_sheaf *us_barn_exchange_empty(struct us_flight *f, struct us_barn *b,
                                        struct us_sheaf *empty)
{
    struct us_sheaf *full;

    if (look_at(b, &b->nr_full) == 0)
        return NULL;
    lock(f, b);
    full = pop(&b->full, &b->nr_full);
    if (full)
        push(&b->empty, &b->nr_empty, empty);
    us_lock_drop(f, &b->lock);
    return full;
}

enum us_barn_answer us_barn_exchange_full(struct us_flight *f, struct us_barn *b,
                                          struct us_sheaf *full, struct us_sheaf **empty)
{
    if (look_at(b, &b->nr_full) >= US_BARN_FULL)
        return US_BARN_TOO_FULL;
    if (look(&b->nr_empty) == 0)
        return US_BARN_NO_EMPTY;
    lock(f, b);
    *empty = pop(&b->empty, &b->nr_empty);
    if (*empty)
        push(&b->full, &b->nr_full, full);
    us_lock_drop(f, &b->lock);
    return *empty ? US_BARN_OK : US_BARN_NO_EMPTY;
}

static struct us_sheaf *get(struct us_flight *f, struct us_barn *b, struct us_sheaf **list,
                            _Atomic uint32_t *count)
{
    struct us_sheaf *s;

    if (look_at(b, count) == 0)
        return NULL;
    lock(f, b);
    s = pop(list, count);
    us_lock_drop(f, &b->lock);
    return s;
}

struct us_sheaf *us_barn_get_full(struct us_flight *f, struct us_barn *b)
{
    return get(f, b, &b->full, &b->nr_full);
}

struct us_sheaf *us_barn_get_empty(struct us_flight *f, struct us_barn *b)
{
    return get(f, b, &b->empty, &b->nr_empty);
}

void us_barn_put_full(struct us_flight *f, struct us_barn *b, struct us_sheaf *s)
{
    lock(f, b);
    push(&b->full, &b->nr_full, s);
    us_lock_drop(f, &b->lock);
}

void us_barn_put_empty(struct us_flight *f, struct us_barn *b, struct us_sheaf *s)
{
    lock(f, b);
    push(&b->empty, &b->nr_empty, s);
    us_lock_drop(f, &b->lock);
}

bool us_barn_take_all(struct us_flight *f, struct us_barn *b, bool try_only, struct us_sheaf **full,
                      struct us_sheaf **empty)
{
    if (!(try_only ? us_lock_try(f, &b->lock) : us_lock_take(f, &b->lock)))
        return false;
    *full = b->full;
    *empty = b->empty;
    b->full = b->empty = NULL;
    atomic_store_explicit(&b->nr_full, 0, memory_order_relaxed);
    atomic_store_explicit(&b->nr_empty, 0, memory_order_relaxed);
    us_lock_drop(f, &b->lock);
    return true;
}

/* ---- the pair of a CPU ----------------------------------------------------------------- */

static bool take_main(struct us_cache *c, struct us_flight *f, struct us_sheaf_pair *p)
{
    int looks;

    us_runs(RUNS_PAIR_TAKE);
    for (looks = 0; looks < 4; looks++) {
        p->cpu = us_cpu_now(c->machine);
        p->main = us_local_sheaf(&c->local, p->cpu, US_MAIN);
        if (!p->main)
            return false;
        if (us_local_swap(&c->local, f, US_MAIN, p->cpu, p->main, NULL))
            return true;
        if (us_cpu_now(c->machine) == p->cpu) /* closed, or somebody was faster */
            return false;
    }
    return false;
}

bool us_sheaf_pair_take(struct us_cache *c, struct us_flight *f, struct us_sheaf_pair *p)
{
    if (!us_local_is_open(&c->local, us_cpu_now(c->machine)) || !take_main(c, f, p))
        return false;
    p->spare = us_local_sheaf(&c->local, p->cpu, US_SPARE);
    if (!p->spare || us_local_swap(&c->local, f, US_SPARE, p->cpu, p->spare, NULL))
        return true;
    p->spare = NULL; /* moved, or closed just now: it stays there */
    us_sheaf_pair_give(c, f, p);
    return false;
}

/* From elsewhere: the CPU is closed meanwhile. */
static US_COLD void give_closed(struct us_cache *c, struct us_flight *f,
                                const struct us_sheaf_pair *p, struct us_sheaf *spare)
{
    bool gone;
    void *region;

    if (!us_local_close(&c->local, f, p->cpu, false, &region))
        __builtin_trap(); /* a flight that is not nested gets its locks */
    if (spare && !us_local_swap_closed(&c->local, US_SPARE, p->cpu, NULL, spare))
        __builtin_trap(); /* who has the main sheaf alone changes the words */
    if (!us_local_swap_closed(&c->local, US_MAIN, p->cpu, NULL, p->main))
        __builtin_trap();
    gone = !us_cpu_online(c->machine, p->cpu);
    us_local_open(&c->local, f, p->cpu);
    if (gone)
        us_sheaves_flush_cpu(c, f, p->cpu, false);
}

void us_sheaf_pair_give(struct us_cache *c, struct us_flight *f, const struct us_sheaf_pair *p)
{
    struct us_sheaf *spare = p->spare;

    us_runs(RUNS_PAIR_GIVE);
    if (spare && us_local_swap(&c->local, f, US_SPARE, p->cpu, NULL, spare))
        spare = NULL;
    if (!spare && us_local_swap(&c->local, f, US_MAIN, p->cpu, NULL, p->main))
        return;
    give_closed(c, f, p, spare);
}

void us_sheaves_populate(struct us_cache *c, struct us_flight *f, unsigned cpu)
{
    const struct us_range *r = &c->slabs->range;
    struct us_memory *mem = c->slabs->memory;
    struct us_words *w;
    struct us_sheaf *s;

    if (f->nested || us_sheaves_of(c)->capacity == 0 || us_local_populated(&c->local, cpu))
        return;
    us_runs(RUNS_POPULATE);
    w = us_meta_alloc(mem, sizeof(*w));
    s = w ? us_sheaf_new(c) : NULL;
    if (s) {
        us_sheaves_init(w, us_node_base(r, us_node_of_cpu(c->machine, cpu)), us_node_length(r));
        w->sheaf[US_MAIN] = s;
        if (us_local_populate(&c->local, f, cpu, w))
            return;
        us_sheaf_free(c, s);
    }
    if (w)
        us_meta_free(mem, w, sizeof(*w));
}
