/* hotplug.c - CPUs leave and come back.
 *
 * An offline CPU has no stocks. Its mark is set under its control lock, so that who opens a region
 * afterwards leaves it closed, and then every cache gives up what the CPU held: by the policy's
 * cpu_offline, or by its flush_cpu. From then on calls on that CPU meet a closed region, the
 * ordinary slow-path case, and are served from the next level: a thread that the system still runs
 * there, or a script that stands on it, goes on, slower. Ticks pass it over. Everything else
 * (fork, resizing, exact reads, validate, ageing, destroy) treats it as one more empty CPU.
 *
 * Both ways hold the config lock, so that the list of caches stands still and two of them take
 * turns, and work in one flight, so that nobody who works alone finds them half-way.
 */
#include "cache/internal.h"

bool us_allocator_cpu_online(const struct us_allocator *a, unsigned cpu)
{
    return cpu < a->machine->ncpus && us_cpu_online(a->machine, cpu);
}

static enum us_status check(const struct us_allocator *a, unsigned cpu, bool online,
                            struct us_error *e)
{
    const struct us_machine *m = a->machine;
    unsigned n = 0, i;

    if (cpu >= m->ncpus)
        return us_error_fill(e, US_EINVAL, "CPU %u is not on this machine: expected 0 to %u", cpu,
                             m->ncpus - 1);
    if (us_cpu_online(m, cpu) == online)
        return us_error_fill(e, US_EINVAL, "CPU %u is %s already", cpu,
                             online ? "online" : "offline");
    for (i = 0; i < m->ncpus; i++)
        n += us_cpu_online(m, i);
    if (n == 1 && !online)
        return us_error_fill(e, US_EINVAL,
                             "CPU %u is the last one online: take another one online before it "
                             "goes",
                             cpu);
    return US_OK;
}

static void set_mark(struct us_machine *m, struct us_flight *f, unsigned cpu, bool offline)
{
    struct us_lock *control = &m->cpu[cpu].control;

    (void)!us_lock_take(f, control); /* false in nested flights only, and config was taken */
    atomic_store_explicit(&m->cpu[cpu].offline, offline, memory_order_relaxed);
    us_lock_drop(f, control);
}

static void empty_cpu(struct us_cache *c, struct us_flight *f, unsigned cpu)
{
    if (c->policy->cpu_offline)
        c->policy->cpu_offline(c, f, cpu);
    else
        c->policy->flush_cpu(c, f, cpu, false);
}

/* What closed the region for good closes it once more, and opens it. */
static void open_region(struct us_cache *c, struct us_flight *f, unsigned cpu)
{
    void *region;

    if (us_local_close(&c->local, f, cpu, false, &region))
        us_local_open(&c->local, f, cpu);
    if (c->policy->cpu_online)
        c->policy->cpu_online(c, f, cpu);
}

static enum us_status change(struct us_allocator *a, unsigned cpu, bool online, struct us_error *e)
{
    enum us_status status;
    struct us_flight f;
    struct us_cache *c;

    us_config_take(a);
    status = check(a, cpu, online, e);
    if (status == US_OK) {
        us_flight_enter(a->machine, &f);
        set_mark(a->machine, &f, cpu, !online);
        for (c = us_first_cache(a); c; c = c->next) {
            if (online)
                open_region(c, &f, cpu);
            else
                empty_cpu(c, &f, cpu);
        }
        us_flight_leave(&f);
    }
    us_config_drop(a);
    return status;
}

enum us_status us_allocator_offline_cpu(struct us_allocator *a, unsigned cpu, struct us_error *e)
{
    return change(a, cpu, false, e);
}

enum us_status us_allocator_online_cpu(struct us_allocator *a, unsigned cpu, struct us_error *e)
{
    return change(a, cpu, true, e);
}
