/* sheaves_look.c - flushing, shrinking, and what a sheaves cache holds. */
#include "policy/sheaves.h"

/* ---- flush ----------------------------------------------------------------------------- */

/* The CPU is closed: its sheaves are taken off, emptied and the main one put back. */
static void flush_closed(struct us_cache *c, struct us_flight *f, unsigned cpu)
{
    struct us_local *l = &c->local;
    struct us_sheaf *main = us_local_sheaf(l, cpu, US_MAIN);
    struct us_sheaf *spare = us_local_sheaf(l, cpu, US_SPARE);

    if (!spare && (!main || us_sheaf_size(main) == 0))
        return;
    us_count(c, cpu, US_SHEAVES_CPU_FLUSH);
    if (spare && us_local_swap_closed(l, US_SPARE, cpu, spare, NULL)) {
        us_sheaf_flush(c, f, spare);
        us_sheaf_free(c, spare);
    }
    if (main && us_local_swap_closed(l, US_MAIN, cpu, main, NULL)) {
        us_sheaf_flush(c, f, main);
        (void)us_local_swap_closed(l, US_MAIN, cpu, NULL, main);
    }
}

/* As in the original the barn is left alone. A main sheaf that a slow path has taken is in use. */
void us_sheaves_flush_cpu(struct us_cache *c, struct us_flight *f, unsigned cpu, bool try_only)
{
    void *region;

    if (f->nested || !us_local_populated(&c->local, cpu))
        return;
    if (!us_local_close(&c->local, f, cpu, try_only, &region))
        return;
    if (region)
        flush_closed(c, f, cpu);
    us_local_open(&c->local, f, cpu);
}

/* ---- shrink ---------------------------------------------------------------------------- */

/* Sheaves that were refilled from elsewhere hold other nodes' objects. */
static bool is_mixed(const struct us_cache *c, const struct us_sheaf *s, unsigned node)
{
    uint32_t i;

    for (i = 0; i < us_sheaf_size(s); i++)
        if (us_node_of(&c->slabs->range, s->object[i]) != node)
            return true;
    return false;
}

/* Flushes and frees all sheaves of a barn; true when objects of other nodes were among them. */
static bool shrink_barn(struct us_cache *c, struct us_flight *f, unsigned node, bool try_only)
{
    struct us_sheaf *full, *empty, *next;
    bool mixed = false;

    if (!us_barn_take_all(f, &us_sheaves_of(c)->barn[node], try_only, &full, &empty))
        return false;
    for (; full; full = next) {
        next = full->next;
        mixed |= is_mixed(c, full, node);
        us_sheaf_flush(c, f, full);
        us_sheaf_free(c, full);
    }
    for (; empty; empty = next) {
        next = empty->next;
        us_sheaf_free(c, empty);
    }
    return mixed;
}

static uint64_t shrink_partial(struct us_cache *c, struct us_flight *f, unsigned node,
                               bool try_only)
{
    enum { PROMOTED = 32 }; /* free objects up to which slabs are ordered */
    struct us_partial *p = &us_sheaves_of(c)->node[node];
    struct us_slab *empty;

    if (!(try_only ? us_lock_try(f, &p->lock) : us_lock_take(f, &p->lock)))
        return 0;
    empty = us_partial_unlist_empty(f, p, false);
    us_partial_sort(p, PROMOTED);
    us_lock_drop(f, &p->lock);
    return us_slab_release_chain(c, f, us_cpu_now(c->machine), empty, US_SHEAVES_SHRINK_SLAB);
}

/* Nodes that got objects back from this one's barn may have had their turn before. */
uint64_t us_sheaves_shrink(struct us_cache *c, struct us_flight *f, unsigned node, bool try_only)
{
    uint64_t bytes = 0;
    bool all;
    unsigned n;

    if (f->nested)
        return 0;
    if (!try_only)
        us_sheaves_check_deferred(c, f, node);
    all = shrink_barn(c, f, node, try_only);
    for (n = 0; n < c->machine->nnodes; n++)
        if (n == node || all)
            bytes += shrink_partial(c, f, n, try_only);
    return bytes;
}

/* With its last CPU a node's barn has nobody left who would use it. */
void us_sheaves_cpu_offline(struct us_cache *c, struct us_flight *f, unsigned cpu)
{
    const unsigned node = us_node_of_cpu(c->machine, cpu);

    us_sheaves_flush_cpu(c, f, cpu, false);
    if (us_node_online(c->machine, node) == 0)
        (void)shrink_barn(c, f, node, false);
}

/* ---- looking inside -------------------------------------------------------------------- */

static void visit_sheaf(const struct us_visitor *v, struct us_stock stock, const struct us_sheaf *s)
{
    if (!s)
        return;
    stock.objects = us_sheaf_size(s);
    stock.capacity = s->capacity;
    v->stock(v->context, &stock, s->object);
}

static void visit_cpu(struct us_cache *c, const struct us_visitor *v, unsigned cpu)
{
    struct us_stock stock = {.kind = US_STOCK_CPU,
                             .name = "main",
                             .cpu = (int)cpu,
                             .domain = (int)us_domain_of_cpu(c->machine, cpu),
                             .node = (int)us_node_of_cpu(c->machine, cpu),
                             .any_node = true};

    visit_sheaf(v, stock, us_local_sheaf(&c->local, cpu, US_MAIN));
    stock.name = "spare";
    visit_sheaf(v, stock, us_local_sheaf(&c->local, cpu, US_SPARE));
}

/* Sheaves of a list, the next to be taken first. */
static void visit_list(const struct us_visitor *v, enum us_stock_kind kind, const char *name,
                       int node, const struct us_sheaf *s)
{
    const struct us_stock stock = {
        .kind = kind, .name = name, .cpu = -1, .domain = -1, .node = node, .any_node = true};

    for (; s; s = s->next)
        visit_sheaf(v, stock, s);
}

void us_sheaves_visit(struct us_cache *c, const struct us_visitor *v)
{
    const struct us_sheaves *st = us_sheaves_of(c);
    unsigned cpu, n;

    for (cpu = 0; cpu < c->machine->ncpus; cpu++)
        visit_cpu(c, v, cpu);
    for (n = 0; n < c->machine->nnodes; n++) {
        visit_list(v, US_STOCK_SHARED, "full", (int)n, st->barn[n].full);
        visit_list(v, US_STOCK_SHARED, "empty", (int)n, st->barn[n].empty);
    }
    visit_list(v, US_STOCK_PREFILLED, "prefilled", -1, st->lent);
    for (n = 0; n < c->machine->nnodes; n++)
        us_visit_list(v, &st->node[n].slabs, n, "partial");
}
