/* slqb_trim.c - the periodic trim, shrink and the full drain of SLQB; what it shows of itself.
 *
 * A trim claims what came home, flushes one freebatch, whether the list was in use or not, and
 * sends the rlist home. Every CPU does that to its own list and to its node's, each 3 seconds. A
 * drain, for who wants nothing left in stock, claims and flushes everything, and brings what
 * belongs to other lists straight to their slabs, so that the order of CPUs does not matter.
 *
 * Another CPU's lists are reached by closing its region under its control lock.
 */
#include "policy/slqb.h"

#define SECOND      1000000000ull
#define TRIM_PERIOD (3 * SECOND)
#define VISIT_CHUNK 256u

/* Instructions of the compiled functions: see slqb.c. */
enum { RUNS_TICK = 41, RUNS_TRIM_NODE = 42, RUNS_TRIM_CPU = 34, RUNS_TRIM = 30 };

enum how { TRIM, DRAIN };

static uint32_t flush_size(const struct us_cache *c, const struct us_slqb_list *l, enum how how)
{
    return how == DRAIN ? us_slqb_size(l) : us_slqb_of(c)->freebatch;
}

static bool has_stock(const struct us_slqb_list *l)
{
    return us_slqb_size(l) || us_slqb_nr_remote(l);
}

static void trim(struct us_slqb_work *w, struct us_slqb_list *l, enum how how)
{
    us_runs(RUNS_TRIM);
    us_slqb_claim(w, l);
    us_slqb_flush(w, l, flush_size(w->c, l, how));
}

/* The node's own list; its objects are all of its own slabs. Returns bytes of slabs given back. */
static uint64_t trim_node(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                          enum how how, uint64_t *to_slabs)
{
    struct us_slqb_node *n = &us_slqb_of(c)->node[node];
    struct us_slqb_work w = {.c = c, .f = f, .cpu = cpu, .straight = how == DRAIN};
    uint64_t bytes;

    us_runs(RUNS_TRIM_NODE);
    if (!has_stock(&n->list) || !us_lock_take(f, &n->list_lock))
        return 0;
    w.rlist = &w.spare;
    trim(&w, &n->list, how);
    us_lock_drop(f, &n->list_lock);
    bytes = us_slqb_work_end(&w);
    *to_slabs += w.to_slabs;
    return bytes;
}

/* The region is closed. Words that are in some flight's hands are left to it. */
static void trim_closed(struct us_slqb_work *w, struct us_slqb_cpu *x, enum how how)
{
    const bool rlist = us_slqb_own_closed(w->c, &x->region, US_SLQB_RLIST);

    w->rlist = rlist ? &x->rlist : &w->spare;
    if (us_slqb_own_closed(w->c, &x->region, US_SLQB_FREELIST)) {
        trim(w, &x->list, how);
        us_slqb_disown_closed(&x->region, US_SLQB_FREELIST);
    }
    us_slqb_send_home(w, w->rlist);
    if (rlist)
        us_slqb_disown_closed(&x->region, US_SLQB_RLIST);
}

static bool wants_trim(const struct us_slqb_cpu *x)
{
    if (has_stock(&x->list))
        return true;
    us_reads(&x->rlist.chain, sizeof(x->rlist.chain));
    return __atomic_load_n(&x->rlist.chain.n, __ATOMIC_RELAXED) != 0;
}

static uint64_t trim_cpu(struct us_cache *c, struct us_flight *f, unsigned cpu, enum how how,
                         uint64_t *to_slabs)
{
    struct us_slqb_work w = {.c = c, .f = f, .cpu = cpu, .straight = how == DRAIN};
    struct us_slqb_cpu *x = us_slqb_cpu_of(c, cpu);
    uint64_t bytes;
    void *region;

    us_runs(RUNS_TRIM_CPU);
    if (!x || !wants_trim(x))
        return 0;
    if (!us_local_close(&c->local, f, cpu, false, &region))
        return 0;
    trim_closed(&w, x, how);
    us_local_open(&c->local, f, cpu);
    bytes = us_slqb_work_end(&w);
    *to_slabs += w.to_slabs;
    return bytes;
}

static bool trim_is_due(const struct us_slqb *st, uint64_t now)
{
    return now >= st->next_trim || now == st->trimming;
}

bool us_slqb_tick_closes(const struct us_cache *c, unsigned cpu, uint64_t now)
{
    const struct us_slqb_cpu *x = us_slqb_cpu_of(c, cpu);

    return x && trim_is_due(us_slqb_of(c), now) && wants_trim(x);
}

/* Once a second; a trim is due one second after the cache was made and every three from then on. */
void us_slqb_tick(struct us_cache *c, struct us_flight *f, unsigned cpu, uint64_t now)
{
    const unsigned node = us_node_of_cpu(c->machine, cpu);
    struct us_slqb *st = us_slqb_of(c);
    uint64_t to_slabs = 0;

    us_runs(RUNS_TICK);
    us_reads(st, sizeof(*st));
    if (f->nested || !trim_is_due(st, now))
        return;
    if (now != st->trimming) {
        us_writes(st, sizeof(*st));
        st->trimming = now;
        st->next_trim = now + TRIM_PERIOD;
    }
    us_slqb_check_deferred(c, f, node);
    trim_node(c, f, cpu, node, TRIM, &to_slabs);
    trim_cpu(c, f, cpu, TRIM, &to_slabs);
    us_stat_add(c, cpu, US_EXPIRE_OBJECTS, to_slabs);
}

uint64_t us_slqb_tick_period(const struct us_cache *c)
{
    (void)c;
    return SECOND;
}

/* try_only never comes: it is for policies that expire under pressure. What a node without CPUs has
 * is out of a flush's reach, and drained here. */
uint64_t us_slqb_shrink(struct us_cache *c, struct us_flight *f, unsigned node, bool try_only)
{
    const struct us_machine *m = c->machine;
    uint64_t bytes = 0, to_slabs = 0;
    enum how how = DRAIN;
    unsigned cpu;

    if (f->nested || try_only)
        return 0;
    us_slqb_check_deferred(c, f, node);
    for (cpu = 0; cpu < m->ncpus; cpu++)
        if (us_node_of_cpu(m, cpu) == node) {
            bytes += trim_cpu(c, f, cpu, TRIM, &to_slabs);
            how = TRIM;
        }
    return bytes + trim_node(c, f, us_cpu_now(m), node, how, &to_slabs);
}

void us_slqb_flush_cpu(struct us_cache *c, struct us_flight *f, unsigned cpu, bool try_only)
{
    const unsigned node = us_node_of_cpu(c->machine, cpu);
    uint64_t to_slabs = 0;

    if (f->nested || try_only)
        return;
    us_slqb_check_deferred(c, f, node);
    trim_cpu(c, f, cpu, DRAIN, &to_slabs);
    trim_node(c, f, cpu, node, DRAIN, &to_slabs);
}

/* ---- looking inside; gate shut ------------------------------------------------------- */

static void *follow(const struct us_cache *c, uint64_t base, void *object)
{
    const uint64_t *link = (const uint64_t *)((const char *)object + c->geometry.link);

    return us_counted_object(base, *link);
}

/* Objects [from, from + n) of a chain of `size`, counted from its first or, reversed, its last. */
static uint32_t copy(const struct us_cache *c, uint64_t base, void *object, uint32_t size,
                     bool reversed, uint32_t from, uint32_t n, void **out)
{
    uint32_t i, found = 0;

    for (i = 0; i < size; i++) {
        const uint32_t at = reversed ? size - 1 - i : i;
        const struct us_slab *s = us_cache_slab(c, object);

        if (!s || s->cache != c)
            break;
        if (at >= from && at < from + n) {
            out[at - from] = object;
            found++;
        }
        object = follow(c, base, object);
    }
    return found;
}

static void visit_chain(struct us_cache *c, const struct us_visitor *v, struct us_stock *stock,
                        uint64_t base, void *first, uint32_t size, bool reversed)
{
    struct us_memory *mem = c->slabs->memory;
    void *chunk[VISIT_CHUNK] = {NULL}, **object = chunk;
    uint32_t at = 0, most = VISIT_CHUNK;

    if (size > VISIT_CHUNK && (object = us_meta_alloc(mem, size * sizeof(*object))) != NULL)
        most = size;
    else
        object = chunk; /* without memory it is told in parts */
    if (stock->capacity < size)
        stock->capacity = size;
    do {
        const uint32_t want = size - at < most ? size - at : most;

        stock->objects = copy(c, base, first, size, reversed, at, want, object);
        if (stock->objects < want) /* broken: what can be reached are the last ones, if reversed */
            stock->objects = reversed ? 0 : stock->objects;
        v->stock(v->context, stock, object);
        at += want;
    } while (at < size);
    if (object != chunk)
        us_meta_free(mem, object, size * sizeof(*object));
}

/* A free list is a stack: its first object is the newest. */
static void visit_list(struct us_cache *c, const struct us_visitor *v, struct us_slqb_list *l)
{
    const struct us_slqb *st = us_slqb_of(c);
    const int domain = l->cpu < 0 ? -1 : (int)us_domain_of_cpu(c->machine, (unsigned)l->cpu);
    struct us_stock stock = {.kind = l->cpu < 0 ? US_STOCK_SHARED : US_STOCK_CPU,
                             .name = "freelist",
                             .cpu = l->cpu,
                             .domain = domain,
                             .node = (int)l->node,
                             .capacity = st->hiwater};

    visit_chain(c, v, &stock, l->base, us_counted_object(l->base, l->free.header), us_slqb_size(l),
                true);
    stock.kind = US_STOCK_SHARED;
    stock.name = "remote_free";
    stock.capacity = st->hiwater / 2 + st->freebatch;
    visit_chain(c, v, &stock, l->base, l->remote_free.first, l->remote_free.n, false);
    us_visit_list(v, &l->partial, l->node, "partial");
}

void us_slqb_visit(struct us_cache *c, const struct us_visitor *v)
{
    const struct us_machine *m = c->machine;
    struct us_slqb *st = us_slqb_of(c);
    unsigned cpu, n;

    for (cpu = 0; cpu < m->ncpus; cpu++) {
        struct us_slqb_cpu *x = us_slqb_cpu_of(c, cpu);
        struct us_stock stock = {.kind = US_STOCK_ALIEN,
                                 .name = "rlist",
                                 .cpu = (int)cpu,
                                 .domain = (int)us_domain_of_cpu(m, cpu),
                                 .node = -1,
                                 .capacity = st->freebatch};

        if (!x)
            continue;
        visit_list(c, v, &x->list);
        if (x->rlist.chain.n)
            stock.node = (int)x->rlist.home->node;
        visit_chain(c, v, &stock, x->rlist.chain.n ? x->rlist.home->base : 0, x->rlist.chain.first,
                    x->rlist.chain.n, false);
    }
    for (n = 0; n < m->nnodes; n++)
        visit_list(c, v, &st->node[n].list);
}

static void list_locks(struct us_slqb_list *l, us_lock_fn *each, void *context)
{
    each(context, &l->page_lock);
    each(context, &l->remote_lock);
}

void us_slqb_locks(struct us_cache *c, us_lock_fn *each, void *context)
{
    unsigned cpu, n;

    for (cpu = 0; cpu < c->machine->ncpus; cpu++) {
        struct us_slqb_cpu *x = us_slqb_cpu_of(c, cpu);

        if (x)
            list_locks(&x->list, each, context);
    }
    for (n = 0; n < c->machine->nnodes; n++) {
        each(context, &us_slqb_of(c)->node[n].list_lock);
        list_locks(&us_slqb_of(c)->node[n].list, each, context);
    }
}
