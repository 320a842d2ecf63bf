/* sheaves_tables.c - what the sheaves policy decides about a cache before its first slab, and its
 * tables. */
#include "policy/sheaves.h"

/* ---- geometry -------------------------------------------------------------------------- */

/* The link lies in the middle of a free object, or behind it when the object must keep its contents
 * while free. */
static void lay_out_object(struct us_cache *c)
{
    const size_t word = sizeof(void *);
    struct us_geometry *g = &c->geometry;
    size_t end = (c->size + word - 1) / word * word;

    if (end == 0)
        end = word;
    g->link = (ptrdiff_t)(c->size / 2 / word * word);
    if (c->has_constructor) {
        g->link = (ptrdiff_t)end;
        end += word;
    }
    g->align = us_align_of(c->size, c->options.align, c->options.flags, US_LINE);
    g->stride = (end + g->align - 1) & ~(g->align - 1);
    g->state = US_OBJECTS_LIST;
    g->slab_overhead = 0;
}

static unsigned objects_of(const struct us_cache *c, unsigned order)
{
    const size_t n = (c->machine->page_size << order) / c->geometry.stride;

    return n < US_SHEAVES_OBJECTS_MAX ? (unsigned)n : US_SHEAVES_OBJECTS_MAX;
}

/* The smallest order that holds min_objects and wastes little, with less and less ambition about
 * the waste. Above US_MAX_ORDER: the object does not fit. */
static unsigned find_order(const struct us_cache *c)
{
    const size_t page = c->machine->page_size, stride = c->geometry.stride;
    const unsigned max = (unsigned)c->tunable[US_SHEAVES_T_MAX_ORDER];
    const size_t most = (page << max) / stride > 0 ? (page << max) / stride : 1;
    size_t wanted = (size_t)c->tunable[US_SHEAVES_T_MIN_OBJECTS];
    unsigned least = (unsigned)c->tunable[US_SHEAVES_T_MIN_ORDER], order, fraction;

    if ((page << least) / stride > US_SHEAVES_OBJECTS_MAX) {
        order = us_order_for(stride * US_SHEAVES_OBJECTS_MAX, page);
        return order > 0 ? order - 1 : 0;
    }
    if (wanted == 0)
        wanted = 4 * (us_fls(c->machine->ncpus) + 1);
    order = us_order_for((wanted < most ? wanted : most) * stride, page);
    if (least < order)
        least = order;
    for (fraction = 16; fraction > 1; fraction /= 2)
        for (order = least; order <= max; order++)
            if ((page << order) % stride <= (page << order) / fraction)
                return order;
    return us_order_for(stride, page);
}

static void settle_min_partial(struct us_cache *c)
{
    int64_t *value = &c->tunable[US_SHEAVES_T_MIN_PARTIAL];
    const int64_t half_log = (us_fls(c->geometry.stride) - 1) / 2;

    if (*value < 0)
        *value = half_log < 5 ? 5 : half_log > 10 ? 10 : half_log;
}

enum us_status us_sheaves_geometry(struct us_cache *c, struct us_error *e)
{
    const int64_t min = c->tunable[US_SHEAVES_T_MIN_ORDER],
                  max = c->tunable[US_SHEAVES_T_MAX_ORDER];
    struct us_geometry *g = &c->geometry;
    unsigned order;

    lay_out_object(c);
    settle_min_partial(c);
    if (min > max)
        return us_fail(e, US_EINVAL,
                       "cache '%s': min_order %lld is above max_order %lld; lower it or raise "
                       "max_order",
                       c->name, (long long)min, (long long)max);
    order = find_order(c);
    if (order > US_MAX_ORDER)
        return us_fail(e, US_EINVAL,
                       "cache '%s': an object of %zu bytes does not fit in a slab, the largest is "
                       "%zu bytes; use kmalloc for such sizes",
                       c->name, g->stride, c->machine->page_size << US_MAX_ORDER);
    g->order = order;
    g->objects = objects_of(c, order);
    g->min_order = us_order_for(g->stride, c->machine->page_size);
    g->min_objects = objects_of(c, g->min_order);
    return US_OK;
}

/* By size, enlarged so that sheaf and header fill a general cache: 64, 128, 256, 512 bytes where
 * there are such. */
uint32_t us_sheaves_capacity(const struct us_cache *c)
{
    const size_t size = c->geometry.stride;
    const int64_t asked = c->tunable[US_SHEAVES_T_SHEAF_CAPACITY];
    uint32_t capacity = 60;

    if (size >= c->machine->page_size)
        capacity = 4;
    else if (size >= 1024)
        capacity = 12;
    else if (size >= 256)
        capacity = 26;
    capacity = (uint32_t)((us_meta_rounded(c->slabs->memory, us_sheaf_bytes(capacity)) -
                           us_sheaf_bytes(0)) /
                          sizeof(void *));
    return asked > capacity ? (uint32_t)asked : capacity;
}

/* ---- tunables -------------------------------------------------------------------------- */

static enum us_status set_min_partial(struct us_cache *c, struct us_flight *f, int64_t value,
                                      struct us_error *e)
{
    (void)f, (void)e;
    c->tunable[US_SHEAVES_T_MIN_PARTIAL] = value;
    us_sheaves_of(c)->min_partial = (uint32_t)value;
    return US_OK;
}

static enum us_status set_defrag_ratio(struct us_cache *c, struct us_flight *f, int64_t value,
                                       struct us_error *e)
{
    (void)f, (void)e;
    c->tunable[US_SHEAVES_T_DEFRAG_RATIO] = value;
    us_sheaves_of(c)->defrag_threshold = (uint32_t)value * 10;
    return US_OK;
}

static int64_t get_sheaf_capacity(struct us_cache *c)
{
    return us_sheaves_of(c)->capacity;
}

static int64_t get_cpu_slabs(struct us_cache *c)
{
    (void)c;
    return 0;
}

static int64_t get_partial(struct us_cache *c)
{
    uint64_t total = 0;
    unsigned n;

    for (n = 0; n < c->machine->nnodes; n++)
        total += us_partial_length(&us_sheaves_of(c)->node[n]);
    return (int64_t)total;
}

const struct us_tunable us_sheaves_tunables[] = {US_SHEAVES_TUNABLES(US_TUNABLE_ROW)};
const struct us_counter us_sheaves_counters[] = {US_SHEAVES_COUNTERS(US_COUNTER_ROW)};
