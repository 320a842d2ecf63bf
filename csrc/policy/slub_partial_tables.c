/* slub_partial_tables.c - slub-partial's own tunables, and its tables. */
#include <stdio.h>

#include "policy/slub_partial.h"

static const struct us_choice epochs[] = {
    {"3.2", US_SLUB_3_2},
    {"5.16", US_SLUB_5_16},
    {NULL, 0},
};

/* Free objects that a CPU's partial list should have at most. */
static int64_t default_limit(const struct us_cache *c)
{
    const bool old = c->tunable[US_SLUB_T_EPOCH] == US_SLUB_3_2;
    const size_t size = c->geometry.stride;

    if (c->flags & US_DEBUG_F)
        return 0;
    if (size >= c->machine->page_size)
        return old ? 2 : 6;
    if (size >= 1024)
        return old ? 6 : 24;
    if (size >= 256)
        return old ? 13 : 52;
    return old ? 30 : 120;
}

static enum us_status check_limit(const struct us_cache *c, int64_t value, struct us_error *e)
{
    if (value == 0 || !(c->flags & US_DEBUG_F))
        return US_OK;
    if (e) {
        e->status = US_EINVAL;
        snprintf(e->text, sizeof(e->text),
                 "cache '%s': cpu_partial %lld, expected 0: a cache with debug checks has no "
                 "partial lists of CPUs",
                 c->name, (long long)value);
    }
    return US_EINVAL;
}

enum us_status us_slub_partial_geometry(struct us_cache *c, struct us_error *e)
{
    const enum us_status status = us_slub_geometry(c, e);
    int64_t *limit = &c->tunable[US_SLUB_PARTIAL_T_CPU_PARTIAL];

    if (status != US_OK)
        return status;
    if (*limit < 0)
        *limit = default_limit(c);
    return check_limit(c, *limit, e);
}

/* Slabs are assumed to be half full. */
void us_slub_partial_use_limit(struct us_cache *c)
{
    struct us_slub_partial *st = c->state;
    const uint64_t objects = (uint64_t)c->tunable[US_SLUB_PARTIAL_T_CPU_PARTIAL];

    st->epoch_3_2 = c->tunable[US_SLUB_T_EPOCH] == US_SLUB_3_2;
    st->cpu_partial = (uint32_t)objects;
    st->cpu_partial_slabs =
        (uint32_t)((2 * objects + c->geometry.objects - 1) / c->geometry.objects);
}

static enum us_status set_cpu_partial(struct us_cache *c, struct us_flight *f, int64_t value,
                                      struct us_error *e)
{
    unsigned cpu;

    if (check_limit(c, value, e) != US_OK)
        return US_EINVAL;
    c->tunable[US_SLUB_PARTIAL_T_CPU_PARTIAL] = value;
    us_slub_partial_use_limit(c);
    for (cpu = 0; cpu < c->machine->ncpus; cpu++)
        us_slub_partial_flush_cpu(c, f, cpu, false);
    return US_OK;
}

static int64_t get_cpu_partial_slabs(struct us_cache *c)
{
    return us_slub_partial_of(c)->cpu_partial_slabs;
}

static const struct us_slab *first_of(const struct us_cache *c, unsigned cpu)
{
    return us_local_populated(&c->local, cpu)
               ? (const struct us_slab *)us_local_word(&c->local, cpu, 1)
               : NULL;
}

static int64_t get_slabs_cpu_partial(struct us_cache *c)
{
    int64_t total = 0;
    unsigned cpu;

    for (cpu = 0; cpu < c->machine->ncpus; cpu++) {
        const struct us_slab *first = first_of(c, cpu);

        total += first ? first->chain.slabs : 0;
    }
    return total;
}

static int64_t get_objects_cpu_partial(struct us_cache *c)
{
    int64_t total = 0;
    unsigned cpu;

    if (!us_slub_partial_of(c)->epoch_3_2)
        return get_slabs_cpu_partial(c) * c->geometry.objects / 2;
    for (cpu = 0; cpu < c->machine->ncpus; cpu++) {
        const struct us_slab *first = first_of(c, cpu);

        total += first ? first->chain.objects : 0;
    }
    return total;
}

const struct us_tunable us_slub_partial_tunables[] = {US_SLUB_PARTIAL_TUNABLES(US_CHOICE_ROW)};
const struct us_counter us_slub_partial_counters[] = {US_SLUB_PARTIAL_COUNTERS(US_COUNTER_ROW)};
