/* slub_tunables.c - what SLUB decides about a cache before its first slab, and its tunables. */
#include <stdio.h>

#include "policy/slub.h"

/* ---- geometry ------------------------------------------------------------------------ */

static bool is_2_6_25(const struct us_cache *c)
{
    return c->tunable[US_SLUB_T_EPOCH] == US_SLUB_2_6_25;
}

static bool is_3_2_or_later(const struct us_cache *c)
{
    return c->tunable[US_SLUB_T_EPOCH] >= US_SLUB_3_2;
}

static unsigned cpus_of_largest_node(const struct us_machine *m)
{
    unsigned n, cpu, largest = 0;

    for (n = 0; n < m->nnodes; n++) {
        unsigned here = 0;

        for (cpu = 0; cpu < m->ncpus; cpu++)
            here += us_node_of_cpu(m, cpu) == n;
        if (here > largest)
            largest = here;
    }
    return largest;
}

/* Objects that a slab should hold at least. */
static unsigned wanted_objects(const struct us_cache *c)
{
    const unsigned fls = us_fls(c->machine->ncpus);
    const int64_t value = c->tunable[US_SLUB_T_MIN_OBJECTS];

    switch (value) {
    case 0:
        return is_2_6_25(c) ? 4 : 4 * (fls + 1);
    case US_SLUB_RULE_DEFAULT:
        return 4 * (fls + 1);
    case US_SLUB_RULE_8_1:
        return 8 + (1 + fls) * 4;
    case US_SLUB_RULE_8_2:
        return 8 + (2 + fls) * 4;
    case US_SLUB_RULE_PER_NODE:
        return 2 * cpus_of_largest_node(c->machine);
    default:
        return (unsigned)value;
    }
}

/* A slab counted its objects in 16 bits, and has one bit less since 3.2. */
static size_t objects_max(const struct us_cache *c)
{
    return is_3_2_or_later(c) ? US_SLUB_OBJECTS_MAX / 2 : US_SLUB_OBJECTS_MAX;
}

static unsigned objects_of(const struct us_cache *c, unsigned order)
{
    const size_t n = (c->machine->page_size << order) / c->geometry.stride;
    const size_t most = objects_max(c);

    return (unsigned)(n < most ? n : most);
}

/* What the limits of the row do not say. */
static enum us_status check_min_partial(const struct us_cache *c, int64_t value, struct us_error *e)
{
    const int64_t epoch = c->tunable[US_SLUB_T_EPOCH];

    if (epoch == US_SLUB_2_6_25 && value != US_SLUB_MIN_PARTIAL) {
        if (e) {
            e->status = US_EINVAL;
            snprintf(e->text, sizeof(e->text),
                     "cache '%s': min_partial %lld, expected %d: it is a constant in epoch 2.6.25",
                     c->name, (long long)value, US_SLUB_MIN_PARTIAL);
        }
        return US_EINVAL;
    }
    if (epoch == US_SLUB_3_2 && (value < US_SLUB_MIN_PARTIAL || value > US_SLUB_MAX_PARTIAL)) {
        if (e) {
            e->status = US_EINVAL;
            snprintf(e->text, sizeof(e->text),
                     "cache '%s': min_partial %lld is out of range, expected %d to %d in epoch 3.2",
                     c->name, (long long)value, US_SLUB_MIN_PARTIAL, US_SLUB_MAX_PARTIAL);
        }
        return US_EINVAL;
    }
    return US_OK;
}

static int64_t default_min_partial(const struct us_cache *c)
{
    unsigned partial = us_fls(c->geometry.stride) - 1;

    if (is_3_2_or_later(c))
        partial /= 2;
    if (partial < US_SLUB_MIN_PARTIAL || is_2_6_25(c))
        return US_SLUB_MIN_PARTIAL;
    return partial < US_SLUB_MAX_PARTIAL ? partial : US_SLUB_MAX_PARTIAL;
}

static enum us_status check_orders(const struct us_cache *c, struct us_error *e)
{
    const int64_t min = c->tunable[US_SLUB_T_MIN_ORDER], max = c->tunable[US_SLUB_T_MAX_ORDER];

    if (min <= max)
        return US_OK;
    if (e) {
        e->status = US_EINVAL;
        snprintf(e->text, sizeof(e->text),
                 "cache '%s': min_order %lld is above max_order %lld; lower it or raise max_order",
                 c->name, (long long)min, (long long)max);
    }
    return US_EINVAL;
}

/* Fills in what the epoch and the size decide where the user did not. */
static enum us_status settle_tunables(struct us_cache *c, struct us_error *e)
{
    int64_t *t = c->tunable;

    if (t[US_SLUB_T_MAX_ORDER] < 0)
        t[US_SLUB_T_MAX_ORDER] = is_2_6_25(c) ? 1 : 3;
    if (t[US_SLUB_T_MIN_PARTIAL] < 0)
        t[US_SLUB_T_MIN_PARTIAL] = default_min_partial(c);
    if (t[US_SLUB_T_DEFRAG_RATIO] < 0)
        t[US_SLUB_T_DEFRAG_RATIO] = is_2_6_25(c) ? 10 : 100;
    if (check_min_partial(c, t[US_SLUB_T_MIN_PARTIAL], e) != US_OK)
        return US_EINVAL;
    return check_orders(c, e);
}

static enum us_status check_order(const struct us_cache *c, int64_t order, struct us_error *e)
{
    const int64_t min = c->tunable[US_SLUB_T_MIN_ORDER], max = c->tunable[US_SLUB_T_MAX_ORDER];
    const unsigned least = us_order_for(c->geometry.stride, c->machine->page_size);

    if (order >= min && order <= max && order >= (int64_t)least)
        return US_OK;
    if (e) {
        e->status = US_EINVAL;
        snprintf(e->text, sizeof(e->text),
                 "cache '%s': order %lld is out of range, expected %lld to %lld (min_order, "
                 "max_order, and room for one object of %zu bytes)",
                 c->name, (long long)order, (long long)(min > least ? min : least), (long long)max,
                 c->geometry.stride);
    }
    return US_EINVAL;
}

static void use_order(struct us_cache *c, unsigned order)
{
    struct us_geometry *g = &c->geometry;

    g->order = order;
    g->objects = objects_of(c, order);
    g->min_order = us_order_for(g->stride, c->machine->page_size);
    if (is_2_6_25(c)) /* slabs of one cache were all equal before 2.6.26 */
        g->min_order = order;
    g->min_objects = objects_of(c, g->min_order);
    c->tunable[US_SLUB_T_ORDER] = order;
}

static unsigned search_order(const struct us_cache *c)
{
    const size_t stride = c->geometry.stride, page_size = c->machine->page_size;
    const unsigned min_order = (unsigned)c->tunable[US_SLUB_T_MIN_ORDER];

    if ((page_size << min_order) / stride > objects_max(c)) {
        const unsigned order = us_order_for(stride * objects_max(c), page_size);

        return order > 0 ? order - 1 : 0; /* a page may hold more than that itself */
    }
    return us_slub_order(stride, page_size, wanted_objects(c), min_order,
                         (unsigned)c->tunable[US_SLUB_T_MAX_ORDER], is_2_6_25(c));
}

enum us_status us_slub_geometry(struct us_cache *c, struct us_error *e)
{
    enum us_status status;
    unsigned order;

    us_link_layout(c);
    status = settle_tunables(c, e);
    if (status != US_OK)
        return status;
    if (c->tunable[US_SLUB_T_ORDER] >= 0) {
        status = check_order(c, c->tunable[US_SLUB_T_ORDER], e);
        if (status == US_OK)
            use_order(c, (unsigned)c->tunable[US_SLUB_T_ORDER]);
        return status;
    }
    order = search_order(c);
    if (order <= US_MAX_ORDER) {
        use_order(c, order);
        return US_OK;
    }
    if (e) {
        e->status = US_EINVAL;
        snprintf(e->text, sizeof(e->text),
                 "cache '%s': an object of %zu bytes does not fit in a slab, the largest is %zu "
                 "bytes; use kmalloc for such sizes",
                 c->name, c->geometry.stride, c->machine->page_size << US_MAX_ORDER);
    }
    return US_EINVAL;
}

/* ---- tunables ------------------------------------------------------------------------ */

const struct us_choice us_slub_rules[] = {
    {"4*(fls+1)", US_SLUB_RULE_DEFAULT},
    {"8+(1+fls)*4", US_SLUB_RULE_8_1},
    {"8+(2+fls)*4", US_SLUB_RULE_8_2},
    {"2*cpus_per_node", US_SLUB_RULE_PER_NODE},
    {NULL, 0},
};

enum us_status us_slub_set_min_partial(struct us_cache *c, struct us_flight *f, int64_t value,
                                       struct us_error *e)
{
    (void)f;
    if (check_min_partial(c, value, e) != US_OK)
        return US_EINVAL;
    c->tunable[US_SLUB_T_MIN_PARTIAL] = value;
    us_slub_of(c)->min_partial = (uint32_t)value;
    return US_OK;
}

enum us_status us_slub_set_defrag_ratio(struct us_cache *c, struct us_flight *f, int64_t value,
                                        struct us_error *e)
{
    (void)f;
    (void)e;
    c->tunable[US_SLUB_T_DEFRAG_RATIO] = value;
    us_slub_of(c)->defrag_threshold = (uint32_t)value * 10;
    return US_OK;
}

enum us_status us_slub_set_prefetch(struct us_cache *c, struct us_flight *f, int64_t value,
                                    struct us_error *e)
{
    (void)f;
    (void)e;
    c->tunable[US_SLUB_T_PREFETCH] = value;
    us_slub_choose_entries(c);
    return US_OK;
}

enum us_status us_slub_set_order(struct us_cache *c, struct us_flight *f, int64_t value,
                                 struct us_error *e)
{
    enum us_status status = check_order(c, value, e);

    (void)f;
    if (c->tunable[US_SLUB_T_EPOCH] == US_SLUB_5_16) {
        if (e) {
            e->status = US_EINVAL;
            snprintf(e->text, sizeof(e->text),
                     "cache '%s': order can be changed up to 5.8 only; give it at creation",
                     c->name);
        }
        return US_EINVAL;
    }
    if (status == US_OK)
        use_order(c, (unsigned)value);
    return status;
}

int64_t us_slub_get_partial(struct us_cache *c)
{
    const struct us_slub *st = us_slub_of(c);
    uint64_t total = 0;
    unsigned n;

    for (n = 0; n < c->machine->nnodes; n++)
        total += us_partial_length(&st->node[n]);
    return (int64_t)total;
}

/* A CPU without a CPU slab is passed over, its partial list with it. */
static uint32_t cpu_slabs(const struct us_cache *c, unsigned cpu)
{
    const struct us_list *first;

    if (!us_local_populated(&c->local, cpu) || !us_local_word(&c->local, cpu, 0))
        return 0;
    first = us_local_word(&c->local, cpu, 1);
    return 1 + (first ? ((const struct us_slab *)first)->chain.slabs : 0);
}

int64_t us_slub_get_cpu_slabs(struct us_cache *c)
{
    int64_t total = 0;
    unsigned cpu;

    for (cpu = 0; cpu < c->machine->ncpus; cpu++)
        total += cpu_slabs(c, cpu);
    return total;
}
