/* slab_arrays.c - sizes and life of the arrays of the policy `slab`, and their tuning.
 *
 * CPU arrays are ring regions of queue/cpu.h, shared and alien arrays the queues of queue/queue.h;
 * a shared array is guarded by its node's list_lock, as in the original. Their blocks are a power
 * of two of pointers; what is accounted is the general cache that the original's array came from.
 *
 * Tuning takes limit, batchcount and shared together: new arrays are made first, or nothing
 * changes; then what the old ones hold goes to slabs. Alien arrays stay, whatever the new limit.
 */
#include <string.h>

#include "policy/slab.h"

/* ---- sizes ------------------------------------------------------------------------------------
 */

static uint32_t rule_limit(const struct us_cache *c)
{
    const size_t stride = c->geometry.stride;
    uint32_t limit = 120;

    if (stride > 131072)
        limit = 1;
    else if (stride > 4096)
        limit = 8;
    else if (stride > 1024)
        limit = 24;
    else if (stride > 256)
        limit = 54;
    if ((c->flags & US_DEBUG_F) && limit > US_SLABP_DEBUG_LIMIT)
        limit = US_SLABP_DEBUG_LIMIT;
    return limit;
}

static uint32_t rule_shared(const struct us_cache *c)
{
    const bool pays = c->machine->ncpus > 1 && c->geometry.stride <= c->machine->page_size;

    return pays ? US_SLABP_SHARED : 0;
}

/* The original's checks of what is written to /proc/slabinfo. */
static enum us_status check_tuning(const struct us_cache *c, const struct us_slabp_tuning *t,
                                   struct us_error *e)
{
    if (t->batchcount > t->limit)
        return us_fail(
            e, US_EINVAL,
            "policy slab: batchcount %lld is above limit %lld of cache '%s'; expected 1 to "
            "limit: raise limit first, or give both at creation",
            (long long)t->batchcount, (long long)t->limit, c->name);
    if (t->shared * t->batchcount > (int64_t)US_RING_MAX)
        return us_fail(e, US_EINVAL,
                       "policy slab: shared %lld of batchcount %lld are %lld objects; expected a "
                       "shared array of at most %u",
                       (long long)t->shared, (long long)t->batchcount,
                       (long long)(t->shared * t->batchcount), US_RING_MAX);
    return US_OK;
}

static uint64_t free_limit(const struct us_cache *c, unsigned node)
{
    const uint64_t cpus = us_node_online(c->machine, node);

    return (1 + cpus) * us_slabp_of(c)->batchcount + c->geometry.objects;
}

void us_slabp_limit_free(struct us_cache *c, struct us_flight *f, unsigned n)
{
    struct us_slabp_node *node = us_slabp_node_of(c, n);

    if (!us_lock_take(f, &node->lock))
        return;
    node->free_limit = free_limit(c, n);
    us_lock_drop(f, &node->lock);
}

static void apply(struct us_cache *c, struct us_slabp *st, const struct us_slabp_tuning *t)
{
    unsigned n;

    st->limit = (uint32_t)t->limit;
    st->batchcount = (uint32_t)t->batchcount;
    st->shared = (uint32_t)t->shared;
    for (n = 0; n < c->machine->nnodes; n++)
        st->node[n].free_limit = free_limit(c, n);
}

/* Defaults that do not fit give way: the batch to the limit, the shared array to what can be. */
static void fit_defaults(const struct us_cache *c, struct us_slabp_tuning *t)
{
    const int64_t most = US_RING_MAX;
    const bool binds = us_tunable_binds(c, US_SLABP_T_BATCHCOUNT, US_SLABP_T_LIMIT,
                                        c->tunable[US_SLABP_T_LIMIT] == 0);

    if (t->batchcount == 0 || (t->batchcount > t->limit && !binds))
        t->batchcount = (t->limit + 1) / 2;
    if (t->shared * t->batchcount <= most)
        return;
    if (!us_tunable_given(c, US_SLABP_T_SHARED))
        t->shared = most / t->batchcount;
    else if (!us_tunable_given(c, US_SLABP_T_BATCHCOUNT))
        t->batchcount = most / t->shared;
}

enum us_status us_slabp_plan(struct us_cache *c, struct us_slabp *st, struct us_error *e)
{
    const int64_t *given = c->tunable;
    struct us_slabp_tuning t = {
        .limit = given[US_SLABP_T_LIMIT] ? given[US_SLABP_T_LIMIT] : rule_limit(c),
        .batchcount = given[US_SLABP_T_BATCHCOUNT],
        .shared = given[US_SLABP_T_SHARED] < 0 ? rule_shared(c) : given[US_SLABP_T_SHARED],
    };
    const struct us_geometry *g = &c->geometry;
    const size_t bytes = c->machine->page_size << g->order;

    fit_defaults(c, &t);
    if (check_tuning(c, &t, e) != US_OK)
        return US_EINVAL;
    apply(c, st, &t);
    st->colour_off = (uint32_t)(g->align > US_LINE ? g->align : US_LINE);
    st->colours = (uint32_t)((bytes - g->slab_overhead - g->objects * g->stride) / st->colour_off);
    if (c->machine->nnodes > 1 && given[US_SLABP_T_ALIEN])
        st->alien_limit = st->limit > 1 ? US_SLABP_ALIEN_LIMIT : 1;
    return US_OK;
}

/* ---- arrays of nodes --------------------------------------------------------------------------
 */

/* Where a node's arrays are shown: the first of its domains. */
static unsigned first_domain(const struct us_machine *m, unsigned node)
{
    unsigned d = 0;

    while (d < m->ndomains && m->domain[d].node != node)
        d++;
    return d < m->ndomains ? d : UINT32_MAX;
}

size_t us_slabp_array_bytes(uint32_t entries)
{
    return us_slabp_general_size(US_SLABP_ARRAY_HEADER + entries * sizeof(void *));
}

/* An array of node `at` for objects of node `of`. */
static struct us_queue *new_array(struct us_cache *c, enum us_lock_class klass, unsigned at,
                                  unsigned of, uint32_t entries)
{
    return us_queue_new(c, klass, first_domain(c->machine, at), of, entries,
                        us_slabp_array_bytes(entries));
}

static struct us_queue *new_shared(struct us_cache *c, unsigned node)
{
    const struct us_slabp *st = us_slabp_of(c);

    return new_array(c, US_LOCK_NODE, node, node, st->shared * st->batchcount);
}

bool us_slabp_make_node(struct us_cache *c, unsigned n)
{
    struct us_slabp *st = us_slabp_of(c);
    struct us_slabp_node *node = &st->node[n];
    const struct us_machine *m = c->machine;
    unsigned of;

    if (st->shared && !(node->shared = new_shared(c, n)))
        return false;
    if (!st->alien_limit)
        return true;
    node->alien = us_meta_alloc(c->slabs->memory, m->nnodes * sizeof(*node->alien));
    for (of = 0; node->alien && of < m->nnodes; of++) {
        if (of == n)
            continue;
        node->alien[of] = new_array(c, US_LOCK_ALIEN, n, of, st->alien_limit);
        if (!node->alien[of])
            return false;
    }
    return node->alien != NULL;
}

void us_slabp_drop_node(struct us_cache *c, unsigned n)
{
    struct us_slabp_node *node = us_slabp_node_of(c, n);
    unsigned of;

    if (node->shared)
        us_queue_free(c, node->shared);
    for (of = 0; node->alien && of < c->machine->nnodes; of++)
        if (node->alien[of])
            us_queue_free(c, node->alien[of]);
    if (node->alien)
        us_meta_free(c->slabs->memory, node->alien, c->machine->nnodes * sizeof(*node->alien));
    node->shared = NULL;
    node->alien = NULL;
}

/* ---- tuning -----------------------------------------------------------------------------------
 */

static void drop_queues(struct us_cache *c, struct us_queue **queue)
{
    for (unsigned n = 0; n < c->machine->nnodes; n++)
        if (queue[n])
            us_queue_free(c, queue[n]);
}

static bool make_shared(struct us_cache *c, struct us_queue **fresh)
{
    for (unsigned n = 0; us_slabp_of(c)->shared && n < c->machine->nnodes; n++)
        if (!(fresh[n] = new_shared(c, n)))
            return false;
    return true;
}

/* What the old shared arrays hold goes to slabs; then the new ones take their places. */
static void change_shared(struct us_cache *c, struct us_flight *f, struct us_queue **fresh)
{
    const unsigned cpu = us_cpu_now(c->machine);

    for (unsigned n = 0; n < c->machine->nnodes; n++) {
        struct us_slabp_node *node = us_slabp_node_of(c, n);
        struct us_queue *old = node->shared;

        us_slabp_drain_shared(c, f, cpu, n, UINT32_MAX);
        node->shared = fresh[n];
        fresh[n] = old;
    }
}

enum us_status us_slabp_tune(struct us_cache *c, struct us_flight *f, struct us_slabp_tuning wish,
                             struct us_error *e)
{
    struct us_slabp *st = us_slabp_of(c);
    const struct us_slabp_tuning before = {st->limit, st->batchcount, st->shared};
    const size_t rings = c->machine->ncpus * sizeof(void *);
    const size_t queues = c->machine->nnodes * sizeof(struct us_queue *);
    struct us_memory *mem = c->slabs->memory;
    struct us_queue **shared;
    bool made = false;
    void **ring;

    if (check_tuning(c, &wish, e) != US_OK)
        return US_EINVAL;
    ring = us_meta_alloc(mem, rings);
    shared = us_meta_alloc(mem, queues);
    apply(c, st, &wish);
    if (ring && shared)
        made = make_shared(c, shared) && us_cpu_rings_make(c, us_slabp_ring_plan(c), ring);
    if (made) {
        us_cpu_rings_change(c, f, ring, false, us_slabp_drain);
        change_shared(c, f, shared);
    } else {
        apply(c, st, &before);
        if (ring)
            us_cpu_rings_unmake(c, ring);
    }
    if (shared) {
        drop_queues(c, shared);
        us_meta_free(mem, shared, queues);
    }
    if (ring)
        us_meta_free(mem, ring, rings);
    if (made)
        return US_OK;
    return us_fail(e, US_ENOMEM, "no memory to resize the arrays of cache '%s'", c->name);
}
