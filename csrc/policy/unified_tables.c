/* unified_tables.c - tunables, counters and geometry of the Unified policy.
 *
 * A setter runs alone in the allocator (gate shut, the cache's regions closed), so that live
 * resizing is plain code: new rings are made first, contents move over, what does not fit goes to
 * slabs.
 */
#include "policy/unified.h"

/* ---- what read-only rows show
 * ----------------------------------------------------------------------- */

static int64_t get_cpu_queue(struct us_cache *c)
{
    return us_unified_of(c)->cpu_capacity;
}
static int64_t get_queue(struct us_cache *c)
{
    return us_unified_of(c)->queue;
}
static int64_t get_batch(struct us_cache *c)
{
    return us_unified_of(c)->batch;
}
static int64_t get_shared_queue(struct us_cache *c)
{
    return us_unified_of(c)->shared_capacity;
}
static int64_t get_shared_desired(struct us_cache *c)
{
    return us_unified_of(c)->shared_desired;
}
static int64_t get_alien_queue(struct us_cache *c)
{
    return us_unified_of(c)->alien_capacity;
}
static int64_t get_alien_shift(struct us_cache *c)
{
    return us_unified_of(c)->alien_shift;
}
static int64_t get_expire(struct us_cache *c)
{
    return (int64_t)us_unified_of(c)->last_expired;
}

static int64_t get_per_cpu(struct us_cache *c)
{
    return (int64_t)us_cpu_rings_held(c);
}

static int64_t get_shared(struct us_cache *c)
{
    int64_t total = 0;

    for (unsigned d = 0; d < c->machine->ndomains; d++) {
        const struct us_queue *first = us_unified_of(c)->domain[d].shared, *q = first;

        do
            total += q ? us_queue_size(q) : 0;
        while (q && (q = q->next) != first);
    }
    return total;
}

static int64_t get_alien(struct us_cache *c)
{
    int64_t total = 0;

    for (unsigned d = 0; d < c->machine->ndomains; d++) {
        struct us_queue **alien = us_unified_of(c)->domain[d].alien;

        for (unsigned n = 0; alien && n < c->machine->nnodes; n++)
            total += alien[n] ? us_queue_size(alien[n]) : 0;
    }
    return total;
}

/* ---- setters ----------------------------------------------------------------------------------
 */

static enum us_status set_cpu_queue(struct us_cache *c, struct us_flight *f, int64_t value,
                                    struct us_error *e)
{
    struct us_unified_sizes wish = us_unified_sizes_of(c);

    wish.queue = value;
    wish.batch = 0; /* follows the queue again */
    wish.grown_queue = 0;
    return us_unified_resize(c, f, &wish, e);
}

enum us_status us_unified_refuse_batch(const struct us_cache *c, int64_t value, uint32_t queue,
                                       struct us_error *e)
{
    if (us_unified_form_of(c)->posted_batch)
        return us_fail(
            e, US_EINVAL,
            "batch_size %lld is below queue_size %u; policy %s takes %u to %d, as posted",
            (long long)value, queue, c->policy->name, queue, US_UNIFIED_QUEUE_MAX);
    return us_fail(e, US_EINVAL, "batch_size %lld is above queue_size %u; expected 4 to %u",
                   (long long)value, queue, queue);
}

enum us_status us_unified_needs_nodes(const struct us_cache *c, struct us_error *e)
{
    if (c->machine->nnodes > 1)
        return US_OK;
    return us_fail(e, US_ENOSYS, "alien_queue_size needs a machine of more than one node");
}

static enum us_status set_batch(struct us_cache *c, struct us_flight *f, int64_t value,
                                struct us_error *e)
{
    struct us_unified *st = us_unified_of(c);

    (void)f;
    if (!us_unified_batch_fits(c, value, st->queue))
        return us_unified_refuse_batch(c, value, st->queue, e);
    if (!us_unified_form_of(c)->posted_batch && st->shared_desired && value > st->shared_desired)
        return us_fail(
            e, US_EINVAL,
            "batch_size %lld is above shared_queue_size %u; raise that first or switch it off",
            (long long)value, st->shared_desired);
    c->tunable[US_UNIFIED_T_BATCH] = value;
    st->batch = (uint32_t)value;
    return US_OK;
}

static enum us_status set_shared_queue(struct us_cache *c, struct us_flight *f, int64_t value,
                                       struct us_error *e)
{
    struct us_unified_sizes wish = us_unified_sizes_of(c);
    const struct us_unified *st = us_unified_of(c);

    if (value && (value < 4 || value < st->batch))
        return us_fail(
            e, US_EINVAL,
            "shared_queue_size %lld is too small; expected 0 (off) or %u (the batch) to %u",
            (long long)value, st->batch < 4 ? 4 : st->batch, US_UNIFIED_QUEUE_MAX);
    wish.shared = value;
    wish.grown_shared = 0;
    return us_unified_resize(c, f, &wish, e);
}

static enum us_status set_alien_queue(struct us_cache *c, struct us_flight *f, int64_t value,
                                      struct us_error *e)
{
    struct us_unified_sizes wish = us_unified_sizes_of(c);

    if (us_unified_needs_nodes(c, e) != US_OK)
        return US_ENOSYS;
    wish.alien = value;
    return us_unified_resize(c, f, &wish, e);
}

static enum us_status set_queue_budget(struct us_cache *c, struct us_flight *f, int64_t value,
                                       struct us_error *e)
{
    (void)f, (void)e;
    c->tunable[US_UNIFIED_T_QUEUE_BUDGET] = value;
    us_unified_plan(c, us_unified_of(c));
    return US_OK;
}

/* As a write to the sysfs file: ages every stage once, of one node or of all. */
static enum us_status set_expire(struct us_cache *c, struct us_flight *f, int64_t value,
                                 struct us_error *e)
{
    const unsigned nodes = c->machine->nnodes;
    const unsigned first = value < 0 ? 0 : (unsigned)value;
    const unsigned end = value < 0 ? nodes : first + 1;
    int last = US_STAGE_CPU;

    if (value >= (int64_t)nodes)
        return us_fail(e, US_EINVAL, "expire: no node %lld; expected -1 (all) or 0 to %u",
                       (long long)value, nodes - 1);
    /* As posted the loop over all nodes ends with none for the stages after the first. */
    if (value < 0 && us_unified_form_of(c)->posted_expiry)
        last = US_STAGE_PARTIAL;
    us_unified_expire_begin(c);
    for (int stage = US_STAGE_PARTIAL; stage <= last; stage++)
        for (unsigned n = first; n < end; n++)
            us_unified_expire(c, f, n, (enum us_stage)stage, UINT64_MAX, false);
    return US_OK;
}

/* ---- tables
 * --------------------------------------------------------------------------------------------- */

#define TUNABLE(id, name, unit, min, max, def, flags, get, set, help) \
    {name, unit, help, min, max, def, flags, NULL, get, set},
#define COUNTER(id, name, feeds, source, help) {name, help, feeds, US_FEEDS_NONE, source, false},

/* Those of the other forms are the first rows of these. */
const struct us_tunable us_unified_tunables[] = {US_UNIFIED_TUNABLES(TUNABLE)};
const struct us_counter us_unified_counters[] = {US_UNIFIED_COUNTERS(COUNTER)};

/* ---- geometry
 * ---------------------------------------------------------------------------------------------- */

#define BITS_OF_WORD 64u

/* As posted a bitmap above one word lies behind the objects: each takes a bit beside its bytes. */
static unsigned objects_of(const struct us_cache *c, unsigned order)
{
    const uint64_t bytes = (uint64_t)c->machine->page_size << order, stride = c->geometry.stride;
    const uint64_t n = bytes / stride;

    if (n <= BITS_OF_WORD || !us_unified_form_of(c)->bitmap_in_band)
        return (unsigned)n;
    return (unsigned)(bytes / 8 * BITS_OF_WORD / (stride / 8 * BITS_OF_WORD + 1));
}

enum us_status us_unified_geometry(struct us_cache *c, struct us_error *e)
{
    const size_t page = c->machine->page_size;
    struct us_geometry *g = &c->geometry;
    unsigned wanted = (unsigned)c->tunable[US_UNIFIED_T_MIN_OBJECTS];

    g->align = us_align_of(c->size, c->options.align, c->flags, US_LINE);
    g->stride = (c->size + g->align - 1) / g->align * g->align;
    if (wanted == 0) {
        wanted = 4 * (us_fls(c->machine->ncpus) + 1);
        wanted = wanted < 64 ? wanted : 64;
    }
    g->order = us_slub_order(g->stride, page, wanted, 0,
                             (unsigned)c->tunable[US_UNIFIED_T_MAX_ORDER], false);
    g->min_order = us_order_for(g->stride, page);
    if (g->order > US_MAX_ORDER || g->min_order > US_MAX_ORDER)
        return us_fail(e, US_EINVAL, "object size is above the largest block of pages");
    g->objects = objects_of(c, g->order);
    g->min_objects = objects_of(c, g->min_order);
    g->state = US_OBJECTS_BITMAP;
    g->link = 0;
    g->slab_overhead = 0;
    if (us_unified_form_of(c)->bitmap_in_band && g->objects > BITS_OF_WORD)
        g->slab_overhead = (g->objects + BITS_OF_WORD - 1) / BITS_OF_WORD * 8;
    return US_OK;
}

const uint32_t *us_unified_general_sizes(const struct us_machine *m)
{
    static const uint32_t sizes[] = {8,   16,  32,   64,   96,   128,  192,
                                     256, 512, 1024, 2048, 4096, 8192, 0};

    (void)m;
    return sizes;
}
