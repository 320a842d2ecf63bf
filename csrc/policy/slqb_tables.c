/* slqb_tables.c - what SLQB decides about a cache before its first slab, and its tables. */
#include "policy/slqb.h"

/* ---- geometry ------------------------------------------------------------------------ */

/* The smallest order up to `last` that holds the objects wanted and, where a bound is given, wastes
 * at most 1/fraction of the slab; last + 1 when there is none. */
static unsigned search(const struct us_cache *c, unsigned objects, unsigned last, unsigned fraction)
{
    const size_t stride = c->geometry.stride, page = c->machine->page_size;
    unsigned order = (unsigned)c->tunable[US_SLQB_T_MIN_ORDER];

    for (; order <= last; order++) {
        const size_t slab = page << order;

        if (slab / stride >= objects && (!fraction || slab % stride <= slab / fraction))
            return order;
    }
    return last + 1;
}

/* Order 0 or 1 if little is wasted; else whatever fits. */
static unsigned order_for(const struct us_cache *c)
{
    const unsigned wanted = (unsigned)c->tunable[US_SLQB_T_MIN_OBJECTS];
    unsigned order = search(c, wanted, 1, 4);

    if (order <= 1)
        return order;
    order = search(c, wanted, US_MAX_ORDER, 0);
    return order <= US_MAX_ORDER ? order : search(c, 1, US_MAX_ORDER, 0);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static enum us_status check_freebatch(const struct us_cache *c, int64_t freebatch, int64_t hiwater,
                                      struct us_error *e)
{
    if (freebatch <= hiwater + 1)
        return US_OK;
    return us_fail(e, US_EINVAL,
                   "freebatch of policy slqb is %lld; expected 1 to %lld (hiwater + 1) for cache "
                   "'%s': raise hiwater first, or give both at creation",
                   (long long)freebatch, (long long)hiwater + 1, c->name);
}

static enum us_status settle_watermarks(struct us_cache *c, struct us_error *e)
{
    const int64_t page = (int64_t)c->machine->page_size, size = (int64_t)c->geometry.stride;
    const int64_t batch = most(1, most(4 * page / size, least(256, 64 * page / size)));
    int64_t *t = c->tunable;
    const bool binds =
        us_tunable_binds(c, US_SLQB_T_FREEBATCH, US_SLQB_T_HIWATER, t[US_SLQB_T_HIWATER] < 0);

    if (t[US_SLQB_T_HIWATER] < 0)
        t[US_SLQB_T_HIWATER] = least(4 * batch, US_SLQB_HIWATER_MAX);
    if (t[US_SLQB_T_FREEBATCH] < 0 || !binds)
        t[US_SLQB_T_FREEBATCH] = least(t[US_SLQB_T_FREEBATCH] < 0 ? batch : t[US_SLQB_T_FREEBATCH],
                                       t[US_SLQB_T_HIWATER] + 1);
    return check_freebatch(c, t[US_SLQB_T_FREEBATCH], t[US_SLQB_T_HIWATER], e);
}

enum us_status us_slqb_geometry(struct us_cache *c, struct us_error *e)
{
    struct us_geometry *g = &c->geometry;

    us_link_layout(c);
    g->order = order_for(c);
    if (g->order > US_MAX_ORDER)
        return us_fail(e, US_EINVAL,
                       "cache '%s': an object of %zu bytes does not fit in a slab, the largest is "
                       "%zu bytes; use kmalloc for such sizes",
                       c->name, g->stride, c->machine->page_size << US_MAX_ORDER);
    g->objects = (unsigned)((c->machine->page_size << g->order) / g->stride);
    g->min_order = g->order;
    g->min_objects = g->objects;
    return settle_watermarks(c, e);
}

/* General caches serve requests of up to 2^9 pages. */
const uint32_t *us_slqb_general_sizes(const struct us_machine *m)
{
#define SMALL 8, 16, 32, 64, 96, 128, 192, 256, 512, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14
#define LARGE 1 << 15, 1 << 16, 1 << 17, 1 << 18, 1 << 19, 1 << 20, 1 << 21
    static const uint32_t of_4k[] = {SMALL, LARGE, 0};
    static const uint32_t of_8k[] = {SMALL, LARGE, 1 << 22, 0};
    static const uint32_t of_16k[] = {SMALL, LARGE, 1 << 22, 1 << 23, 0};
    static const uint32_t of_32k[] = {SMALL, LARGE, 1 << 22, 1 << 23, 1 << 24, 0};
    static const uint32_t of_64k[] = {SMALL, LARGE, 1 << 22, 1 << 23, 1 << 24, 1 << 25, 0};
    static const uint32_t *const of[] = {of_4k, of_8k, of_16k, of_32k, of_64k};
#undef SMALL
#undef LARGE
    const unsigned shift = m->page_shift;

    return of[shift < 12 ? 0 : shift > 16 ? 4 : shift - 12];
}

/* ---- tunables ------------------------------------------------------------------------ */

/* The original checks a new freebatch against the watermark, and takes every new watermark: the
 * freebatch stays within its limits, as at creation, by following a watermark below it. */
static enum us_status set_hiwater(struct us_cache *c, struct us_flight *f, int64_t value,
                                  struct us_error *e)
{
    struct us_slqb *st = us_slqb_of(c);
    unsigned cpu, n;

    (void)f;
    (void)e;
    c->tunable[US_SLQB_T_HIWATER] = value;
    st->hiwater = (uint32_t)value;
    st->freebatch = (uint32_t)least(st->freebatch, value + 1);
    c->tunable[US_SLQB_T_FREEBATCH] = st->freebatch;
    for (cpu = 0; cpu < c->machine->ncpus; cpu++)
        if (us_slqb_cpu_of(c, cpu))
            us_slqb_cpu_of(c, cpu)->list.free.limit = st->hiwater;
    for (n = 0; n < c->machine->nnodes; n++)
        st->node[n].list.free.limit = st->hiwater;
    return US_OK;
}

static enum us_status set_freebatch(struct us_cache *c, struct us_flight *f, int64_t value,
                                    struct us_error *e)
{
    struct us_slqb *st = us_slqb_of(c);

    (void)f;
    if (check_freebatch(c, value, st->hiwater, e) != US_OK)
        return US_EINVAL;
    c->tunable[US_SLQB_T_FREEBATCH] = value;
    st->freebatch = (uint32_t)value;
    return US_OK;
}

/* The sum over all lists of what `of` tells. */
static int64_t sum(const struct us_cache *c, uint64_t (*of)(const struct us_slqb_list *l))
{
    uint64_t total = 0;
    unsigned cpu, n;

    for (cpu = 0; cpu < c->machine->ncpus; cpu++)
        if (us_slqb_cpu_of(c, cpu))
            total += of(&us_slqb_cpu_of(c, cpu)->list);
    for (n = 0; n < c->machine->nnodes; n++)
        total += of(&us_slqb_of(c)->node[n].list);
    return (int64_t)total;
}

static uint64_t partial_of(const struct us_slqb_list *l)
{
    return atomic_load_explicit(&((struct us_slqb_list *)l)->nr_partial, memory_order_relaxed);
}

static uint64_t listed_of(const struct us_slqb_list *l)
{
    return us_slqb_size(l);
}

static uint64_t remote_of(const struct us_slqb_list *l)
{
    return us_slqb_nr_remote(l);
}

static int64_t get_partial(struct us_cache *c)
{
    return sum(c, partial_of);
}

static int64_t get_listed(struct us_cache *c)
{
    return sum(c, listed_of);
}

static int64_t get_remote(struct us_cache *c)
{
    int64_t total = sum(c, remote_of);
    unsigned cpu;

    for (cpu = 0; cpu < c->machine->ncpus; cpu++) {
        struct us_slqb_cpu *x = us_slqb_cpu_of(c, cpu);

        if (x)
            total += __atomic_load_n(&x->rlist.chain.n, __ATOMIC_RELAXED);
    }
    return total;
}

const struct us_tunable us_slqb_tunables[] = {US_SLQB_TUNABLES(US_TUNABLE_ROW)};
const struct us_counter us_slqb_counters[] = {US_SLQB_COUNTERS(US_COUNTER_ROW)};
