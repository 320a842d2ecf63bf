/* stats.c - counters of a cache, row by row and CPU by CPU.
 *
 * A row is what the policy's slow paths stored, plus the fast pops or pushes of the CPU where the
 * counter says so. Common rows are the sums of the counters that feed them, less what is to be
 * taken off. A pop may be counted on one CPU and the slow path that caused it on the next, so a
 * column can come out negative: the debt is settled with other CPUs, and sums over CPUs stay exact.
 *
 * A reader that races with slow paths may see half of an operation. Such a reading is never below
 * the one before; a reading when nothing is in flight is exact.
 */
#include "cache/internal.h"

#include <string.h>

static const char *const common_name[US_NCOMMON] = {
#define US_ROW(id, name, help) name,
    US_COMMON_COUNTERS(US_ROW)
#undef US_ROW
};
static const char *const common_help[US_NCOMMON] = {
#define US_ROW(id, name, help) help,
    US_COMMON_COUNTERS(US_ROW)
#undef US_ROW
};

static void put_row(size_t row, const char *name, const char *help, const char **names,
                    const char **helps, size_t max)
{
    if (row >= max)
        return;
    if (names)
        names[row] = name;
    if (helps)
        helps[row] = help;
}

size_t us_stats_rows(const struct us_policy *p, const char **names, const char **helps, size_t max)
{
    size_t n = 0;
    unsigned i;

    for (i = 0; i < US_NCOMMON; i++)
        put_row(n++, common_name[i], common_help[i], names, helps, max);
    for (i = 0; i < p->ncounters; i++)
        if (!p->counters[i].hidden)
            put_row(n++, p->counters[i].name, p->counters[i].help, names, helps, max);
    return n;
}

static uint64_t stored(const struct us_cache *c, unsigned cpu, unsigned row)
{
    return atomic_load_explicit(&c->stats[(size_t)cpu * c->nrows + row], memory_order_relaxed);
}

static void read_cpu(struct us_cache *c, unsigned cpu, uint64_t *values)
{
    const struct us_policy *p = c->policy;
    uint64_t pops, pushes;
    unsigned i, row = US_NCOMMON;

    us_local_counts(&c->local, cpu, &pops, &pushes);
    for (i = 0; i < US_NCOMMON; i++)
        values[i] = stored(c, cpu, i);
    for (i = 0; i < p->ncounters; i++) {
        const struct us_counter *counter = &p->counters[i];
        uint64_t n = stored(c, cpu, US_NCOMMON + i);

        if (counter->source == US_FROM_POPS)
            n += pops;
        else if (counter->source == US_FROM_PUSHES)
            n += pushes;
        if (counter->feeds < US_NCOMMON)
            values[counter->feeds] += n;
        if (counter->less < US_NCOMMON)
            values[counter->less] -= n;
        if (!counter->hidden)
            values[row++] = n;
    }
}

/* No CPU shows less than it did: what one owes, others give of what they have more than was shown
 * of them. When that is not enough, half of an operation was shown before: an exact reading takes
 * it back. */
static void settle(uint64_t *values, const uint64_t *shown, size_t rows, unsigned ncpus, bool exact)
{
    const size_t end = rows * ncpus;
    uint64_t debt = 0, paid;
    size_t i;

    for (i = 0; i < end; i += rows) {
        if ((int64_t)(values[i] - shown[i]) >= 0)
            continue;
        debt += shown[i] - values[i];
        values[i] = shown[i];
    }
    for (i = 0; i < end && debt; i += rows) {
        paid = values[i] - shown[i] < debt ? values[i] - shown[i] : debt;
        values[i] -= paid;
        debt -= paid;
    }
    for (i = 0; i < end && debt && exact; i += rows) {
        paid = values[i] < debt ? values[i] : debt;
        values[i] -= paid;
        debt -= paid;
    }
}

static bool in_flight(const struct us_machine *m)
{
    unsigned n = 0;
    unsigned cpu;

    for (cpu = 0; cpu < m->ncpus; cpu++)
        n += us_cpu_flights(&m->cpu[cpu]);
    return n != 0;
}

static void read_all(struct us_cache *c, bool exact, size_t rows, uint64_t *values)
{
    const unsigned ncpus = c->machine->ncpus;
    bool quiet = exact || !in_flight(c->machine);
    uint64_t *shown = us_box(c)->shown;
    unsigned cpu;
    size_t row;

    for (cpu = 0; cpu < ncpus; cpu++)
        read_cpu(c, cpu, values + cpu * rows);
    quiet = exact || (quiet && !in_flight(c->machine));
    for (row = 0; row < rows; row++)
        settle(values + row, shown + row, rows, ncpus, quiet);
    memcpy(shown, values, rows * ncpus * sizeof(*shown));
}

void us_cache_stats(struct us_cache *c, bool exact, uint64_t *values)
{
    struct us_allocator *a = c->owner;
    const size_t rows = us_box(c)->nshown;
    struct us_flight f = {.machine = c->machine};

    if (exact)
        us_allocator_stop(a, &f);
    us_mark_thread();
    if (us_lock_take(&f, &c->stats_lock)) {
        read_all(c, exact, rows, values);
        us_lock_drop(&f, &c->stats_lock);
    }
    us_unmark_thread();
    if (exact)
        us_allocator_resume(a, &f);
}
