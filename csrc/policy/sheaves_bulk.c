/* sheaves_bulk.c - many objects in one call, and sheaves that a caller has to itself.
 *
 * A bulk allocation copies from the main sheaf, replaces it by the spare or a full one of the barn,
 * and gets what is then still missing straight from slabs into the caller's array. It is all or
 * nothing. A bulk free pushes runs of local objects, and replaces a full main sheaf without
 * allocating: when that cannot be done, the rest goes to slabs. Other nodes' objects are collected
 * and go to slabs in batches. Who has less than a flight to itself (a signal handler) does all of
 * this one object at a time.
 *
 * A prefilled sheaf is taken away from the CPU, or from the barn, or made, and topped up. It is the
 * caller's until it comes back; its objects stand in a list of the cache, so that accounts find
 * them, and count as allocated when they are handed out. One of more objects than a sheaf of the
 * cache holds is filled from slabs alone: so is every one of a cache without sheaves, debug ones,
 * whose capacity is 0.
 */
#include "policy/sheaves.h"

/* Instructions of the compiled functions: see sheaves.c. */
enum {
    RUNS_ALLOC = 60,
    RUNS_ALLOC_EACH = 10,
    RUNS_REPLACED = 60,
    RUNS_FREE = 40,
    RUNS_FREE_EACH = 18,
    RUNS_FLUSH_REMOTE = 29,
    RUNS_PAST_FULL = 80,
    RUNS_LEND = 25,
    RUNS_TOP_UP = 30,
    RUNS_PREFILL = 60,
    RUNS_RETURN = 60,
    RUNS_POP = 30,
};

/* ---- allocation ------------------------------------------------------------------------ */

/* As single calls, for what has a node, for signal handlers and for caches without sheaves. */
static size_t alloc_each(struct us_cache *c, unsigned flags, int node, size_t n, void **out)
{
    size_t got = 0;

    while (got < n && (out[got] = c->policy->alloc_node(c, flags, node)) != NULL)
        got++;
    return got;
}

/* From the main sheaf, after it was replaced: 0 = the barn is dry, or the sheaves are with somebody
 * else. */
static unsigned from_replaced(struct us_cache *c, struct us_flight *f, void **out, size_t n)
{
    enum us_replaced how = US_REPLACED_SPARE;
    struct us_sheaf_pair p;
    uint32_t k = 0;

    if (!us_sheaf_pair_take(c, f, &p))
        return 0;
    if (us_sheaf_size(p.main) == 0)
        how = us_sheaves_replace_empty(c, f, &p);
    if (how != US_REPLACED_NOT) {
        const uint32_t size = us_sheaf_size(p.main);

        us_runs(RUNS_REPLACED);
        k = n < size ? (uint32_t)n : size;
        us_reads(p.main->object + size - k, k * sizeof(*out));
        __builtin_memcpy(out, p.main->object + size - k, k * sizeof(*out));
        us_sheaf_set(p.main, size - k);
        if (how == US_REPLACED_BARN)
            us_count(c, p.cpu, US_SHEAVES_ALLOC_BARN);
        us_count_n(c, p.cpu, US_SHEAVES_ALLOC_FASTPATH, k);
    }
    us_sheaf_pair_give(c, f, &p);
    return k;
}

static void count_refilled(struct us_cache *c, void *const *object, unsigned n)
{
    const unsigned cpu = us_cpu_now(c->machine), node = us_node_of_cpu(c->machine, cpu);
    unsigned away = 0, i;

    us_runs((uint64_t)RUNS_ALLOC_EACH * n);
    for (i = 0; i < n; i++)
        away += us_node_of(&c->slabs->range, object[i]) != node;
    us_count_n(c, cpu, US_SHEAVES_ALLOC_OFF_NODE, away);
    us_count_n(c, cpu, US_SHEAVES_ALLOC_SLOWPATH, n);
}

/* Straight from slabs: all of them or none. */
static bool from_slabs(struct us_sheaves_ask *a, void **out, size_t n)
{
    size_t got = 0;

    while (got < n) {
        const unsigned want =
            n - got < US_SHEAVES_OBJECTS_MAX ? (unsigned)(n - got) : US_SHEAVES_OBJECTS_MAX;
        const unsigned k = us_sheaves_refill(a, out + got, want);

        got += k;
        if (k < want)
            break;
    }
    if (got == n)
        count_refilled(a->c, out, (unsigned)n);
    else
        us_sheaves_put(a->c, a->f, out, (unsigned)got);
    return got == n;
}

static bool alloc_rest(struct us_sheaves_ask *a, size_t n, void **out, size_t *got)
{
    us_reads(us_sheaves_of(a->c), offsetof(struct us_sheaves, lent_lock));
    a->cpu = us_cpu_now(a->c->machine);
    a->home = us_node_of_cpu(a->c->machine, a->cpu);
    if (US_UNLIKELY(!us_local_populated(&a->c->local, a->cpu)))
        us_sheaves_populate(a->c, a->f, a->cpu);
    us_sheaves_check_deferred(a->c, a->f, a->home);
    while (*got < n) {
        const enum us_phase before = us_phase_set(US_PHASE_SECOND);
        const unsigned k = from_replaced(a->c, a->f, out + *got, n - *got);

        us_phase_set(before);
        if (k == 0)
            break;
        *got += k;
    }
    return *got == n || from_slabs(a, out + *got, n - *got);
}

size_t us_sheaves_alloc_bulk(struct us_cache *c, unsigned flags, int node, size_t n, void **out)
{
    struct us_flight f;
    struct us_sheaves_ask a = {.c = c, .f = &f, .flags = flags, .node = US_ANY_NODE};
    size_t got = 0;
    bool all;

    if (node >= 0 || us_sheaves_has_none(c) || us_flight_current() != NULL)
        return alloc_each(c, flags, node, n, out);
    us_runs(RUNS_ALLOC);
    got = us_local_main_take(&c->local, out, n < UINT32_MAX ? (unsigned)n : UINT32_MAX);
    if (got == n)
        return n;
    if (US_UNLIKELY(!us_flight_try(c->machine, &f)))
        all = false;
    else {
        all = f.nested ? false : alloc_rest(&a, n, out, &got);
        us_flight_leave(&f);
    }
    if (all)
        return n;
    us_sheaves_free_bulk(c, got, out);
    return 0;
}

/* ---- free ------------------------------------------------------------------------------ */

/* A bulk free on its way. */
struct freeing {
    struct us_cache *c;
    unsigned nremote;
    void *remote[US_SHEAF_BATCH];
};

static void flush_remote(struct freeing *g)
{
    struct us_flight f;
    unsigned i;

    us_runs(RUNS_FLUSH_REMOTE);
    if (g->nremote > 0 && us_flight_current() == NULL && us_flight_try(g->c->machine, &f)) {
        us_sheaves_put_freed(g->c, &f, g->remote, g->nremote);
        us_flight_leave(&f);
    } else {
        for (i = 0; i < g->nremote; i++)
            us_sheaves_free_slow(g->c, g->remote[i]);
    }
    g->nremote = 0;
}

/* The main sheaf has no room for the first of these local objects. Returns how many were dealt
 * with: at least one. */
static size_t free_past_full(struct us_cache *c, void *const *object, size_t n)
{
    struct us_flight f;
    struct us_sheaf_pair p;
    enum us_replaced how = US_REPLACED_NOT;
    bool too_full;

    if (us_flight_current() != NULL || !us_local_populated(&c->local, us_cpu_now(c->machine)) ||
        !us_flight_try(c->machine, &f)) {
        us_sheaves_free_slow(c, object[0]);
        return 1;
    }
    us_runs(RUNS_PAST_FULL);
    us_reads(us_sheaves_of(c), offsetof(struct us_sheaves, lent_lock));
    us_phase_set(US_PHASE_SECOND);
    if (us_sheaf_pair_take(c, &f, &p)) {
        how = us_sheaf_full(p.main) ? us_sheaves_replace_full(c, &f, &p, &too_full)
                                    : US_REPLACED_SPARE;
        if (how != US_REPLACED_NOT &&
            us_node_of_cpu(c->machine, p.cpu) == us_node_of(&c->slabs->range, object[0])) {
            us_sheaf_push_c(p.main, object[0]);
            if (how == US_REPLACED_BARN)
                us_count(c, p.cpu, US_SHEAVES_FREE_BARN);
            us_count(c, p.cpu, US_SHEAVES_FREE_FASTPATH);
            n = 1;
        } else {
            how = US_REPLACED_NOT;
        }
        us_sheaf_pair_give(c, &f, &p);
    }
    us_phase_set(US_PHASE_SLOW);
    if (how == US_REPLACED_NOT)
        us_sheaves_put_freed(c, &f, object, (unsigned)n);
    us_flight_leave(&f);
    return n;
}

/* The first of object[0..n) that is not of the node range at `base`. */
static size_t run_of(void *const *object, size_t n, uint64_t base, uint64_t length)
{
    size_t run = 1;

    while (run < n && (uint64_t)(uintptr_t)object[run] - base < length)
        run++;
    return run;
}

static size_t free_run(struct us_cache *c, void *const *object, size_t n)
{
    const struct us_range *r = &c->slabs->range;
    const uint64_t base = us_node_base(r, us_node_of(r, object[0]));
    const size_t run = run_of(object, n, base, us_node_length(r));
    size_t done = 0;

    while (done < run) {
        const size_t left = run - done;

        done += us_local_main_put(&c->local, object + done,
                                  left < UINT32_MAX ? (unsigned)left : UINT32_MAX, base);
        if (done < run)
            done += free_past_full(c, object + done, run - done);
    }
    return run;
}

static void keep_remote(struct freeing *g, void *object)
{
    g->remote[g->nremote++] = object;
    if (g->nremote == US_SHEAF_BATCH)
        flush_remote(g);
}

void us_sheaves_free_bulk(struct us_cache *c, size_t n, void *const *object)
{
    const struct us_range *r = &c->slabs->range;
    struct freeing g = {.c = c};
    size_t i = 0;

    us_runs(RUNS_FREE + RUNS_FREE_EACH * n);
    while (i < n) {
        const unsigned node = us_node_of_cpu(c->machine, us_cpu_now(c->machine));

        if (US_UNLIKELY(!us_in_range(r, object[i])))
            us_sheaves_free_slow(c, object[i++]);
        else if (us_sheaves_has_none(c) || us_node_of(r, object[i]) != node)
            keep_remote(&g, object[i++]);
        else
            i += free_run(c, object + i, n - i);
    }
    flush_remote(&g);
}

/* ---- prefilled sheaves ----------------------------------------------------------------- */

static void lend(struct us_cache *c, struct us_flight *f, struct us_sheaf *s)
{
    struct us_sheaves *st = us_sheaves_of(c);

    if (!us_lock_take(f, &st->lent_lock))
        __builtin_trap(); /* not nested */
    us_runs(RUNS_LEND);
    us_writes(&st->lent, sizeof(st->lent));
    us_writes(s, sizeof(*s));
    if (st->lent)
        us_writes(st->lent, sizeof(*s));
    s->prev = NULL;
    s->next = st->lent;
    if (st->lent)
        st->lent->prev = s;
    st->lent = s;
    us_lock_drop(f, &st->lent_lock);
}

static void take_back(struct us_cache *c, struct us_flight *f, struct us_sheaf *s)
{
    struct us_sheaves *st = us_sheaves_of(c);

    if (!us_lock_take(f, &st->lent_lock))
        __builtin_trap();
    us_runs(RUNS_LEND);
    us_writes(s, sizeof(*s));
    us_writes(s->prev ? (void *)s->prev : &st->lent, sizeof(void *));
    if (s->next)
        us_writes(s->next, sizeof(*s));
    if (s->prev)
        s->prev->next = s->next;
    else
        st->lent = s->next;
    if (s->next)
        s->next->prev = s->prev;
    us_lock_drop(f, &st->lent_lock);
    s->next = s->prev = NULL;
}

static void end_sheaf(struct us_cache *c, struct us_flight *f, struct us_sheaf *s)
{
    us_sheaf_flush(c, f, s);
    if (s->capacity == us_sheaves_of(c)->capacity)
        us_sheaf_free(c, s);
    else
        us_meta_free(c->slabs->memory, s, us_sheaf_bytes(s->capacity));
}

/* Fills a sheaf that is nobody else's up to its capacity; true when it holds n objects then. */
static bool top_up(const struct us_sheaves_ask *a, struct us_sheaf *s, uint32_t n)
{
    const uint32_t size = us_sheaf_size(s);
    unsigned got;

    us_runs(RUNS_TOP_UP);
    if (size >= n)
        return true;
    got = us_sheaves_refill(a, s->object + size, s->capacity - size);
    us_writes(s->object + size, got * sizeof(*s->object));
    us_count_n(a->c, us_cpu_now(a->c->machine), US_SHEAVES_SHEAF_REFILL, got);
    us_sheaf_set(s, size + got);
    return size + got >= n;
}

static struct us_sheaf *oversize(const struct us_sheaves_ask *a, uint32_t n)
{
    struct us_sheaf *s = NULL;

    us_count(a->c, a->cpu, US_SHEAVES_SHEAF_PREFILL_OVERSIZE);
    if (n <= US_RING_MAX)
        s = us_meta_alloc(a->c->slabs->memory, us_sheaf_bytes(n));
    if (s)
        us_sheaf_init(s, n);
    return s;
}

/* A sheaf of the cache's capacity, in whatever state: the spare, one of the barn, a new one. */
static struct us_sheaf *any_sheaf(const struct us_sheaves_ask *a)
{
    struct us_barn *barn = us_barn_of_cpu(a->c, a->cpu);
    struct us_sheaf *s = NULL;
    struct us_sheaf_pair p;

    if (us_sheaf_pair_take(a->c, a->f, &p)) {
        s = p.spare;
        p.spare = NULL;
        us_sheaf_pair_give(a->c, a->f, &p);
    }
    us_count(a->c, a->cpu, s ? US_SHEAVES_SHEAF_PREFILL_FAST : US_SHEAVES_SHEAF_PREFILL_SLOW);
    if (s)
        return s;
    s = us_barn_get_full(a->f, barn);
    us_count(a->c, a->cpu, s ? US_SHEAVES_BARN_GET : US_SHEAVES_BARN_GET_FAIL);
    if (!s)
        s = us_barn_get_empty(a->f, barn);
    return s ? s : us_sheaf_new(a->c);
}

static struct us_sheaves_ask ask_here(struct us_cache *c, struct us_flight *f, unsigned flags)
{
    const unsigned cpu = us_cpu_now(c->machine);

    return (struct us_sheaves_ask){.c = c,
                                   .f = f,
                                   .flags = flags,
                                   .cpu = cpu,
                                   .home = us_node_of_cpu(c->machine, cpu),
                                   .node = US_ANY_NODE};
}

static struct us_sheaf *prefill(const struct us_sheaves_ask *a, uint32_t n)
{
    struct us_sheaf *s = n > us_sheaves_of(a->c)->capacity ? oversize(a, n) : any_sheaf(a);

    if (s && !top_up(a, s, n)) {
        end_sheaf(a->c, a->f, s);
        return NULL;
    }
    if (s)
        lend(a->c, a->f, s);
    return s;
}

struct us_sheaf *us_sheaves_prefill(struct us_cache *c, unsigned flags, uint32_t n)
{
    struct us_sheaf *s = NULL;
    struct us_sheaves_ask a;
    struct us_flight f;

    if (!us_flight_try(c->machine, &f))
        return NULL;
    us_runs(RUNS_PREFILL);
    us_reads(us_sheaves_of(c), offsetof(struct us_sheaves, lent_lock));
    a = ask_here(c, &f, flags);
    if (!f.nested) {
        us_sheaves_populate(c, &f, a.cpu);
        s = prefill(&a, n);
    }
    us_flight_leave(&f);
    return s;
}

void *us_sheaves_alloc_from(struct us_cache *c, struct us_sheaf *s)
{
    struct us_flight f;
    void *object = NULL;

    us_flight_enter(c->machine, &f); /* who looks at accounts finds it in one place */
    us_runs(RUNS_POP);
    if (us_sheaf_pop_c(s, &object))
        us_count(c, us_cpu_now(c->machine), US_SHEAVES_ALLOC_FASTPATH);
    us_flight_leave(&f);
    return object;
}

static void return_sheaf(const struct us_sheaves_ask *a, struct us_sheaf *s)
{
    struct us_barn *barn = us_barn_of_cpu(a->c, a->cpu);
    bool fast = false;
    struct us_sheaf_pair p;

    if (s->capacity != us_sheaves_of(a->c)->capacity) {
        end_sheaf(a->c, a->f, s);
        return;
    }
    if (us_sheaf_pair_take(a->c, a->f, &p)) {
        fast = !p.spare;
        if (fast)
            p.spare = s;
        us_sheaf_pair_give(a->c, a->f, &p);
    }
    us_count(a->c, a->cpu, fast ? US_SHEAVES_SHEAF_RETURN_FAST : US_SHEAVES_SHEAF_RETURN_SLOW);
    if (fast)
        return;
    us_reads(barn, sizeof(*barn));
    if (atomic_load_explicit(&barn->nr_full, memory_order_relaxed) >= US_BARN_FULL ||
        !top_up(a, s, s->capacity)) {
        end_sheaf(a->c, a->f, s);
        return;
    }
    us_count(a->c, a->cpu, US_SHEAVES_BARN_PUT);
    us_count_n(a->c, a->cpu, US_SHEAVES_MOVED, s->capacity);
    us_barn_put_full(a->f, barn, s);
}

void us_sheaves_return(struct us_cache *c, struct us_sheaf *s)
{
    struct us_sheaves_ask a;
    struct us_flight f;

    us_flight_enter(c->machine, &f);
    us_runs(RUNS_RETURN);
    us_reads(us_sheaves_of(c), offsetof(struct us_sheaves, lent_lock));
    a = ask_here(c, &f, 0);
    us_sheaves_populate(c, &f, a.cpu);
    take_back(c, &f, s);
    return_sheaf(&a, s);
    us_flight_leave(&f);
}

bool us_sheaves_refill_sheaf(struct us_cache *c, unsigned flags, struct us_sheaf **s, uint32_t n)
{
    struct us_sheaf *larger;
    struct us_sheaves_ask a;
    struct us_flight f;
    bool done;

    if (us_sheaf_size(*s) >= n)
        return true;
    if ((*s)->capacity < n) {
        larger = us_sheaves_prefill(c, flags, n);
        if (!larger)
            return false;
        us_sheaves_return(c, *s);
        *s = larger;
        return true;
    }
    us_flight_enter(c->machine, &f);
    a = ask_here(c, &f, flags);
    done = top_up(&a, *s, n);
    us_flight_leave(&f);
    return done;
}
