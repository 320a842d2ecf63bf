/* machine.c - what both machines share: creation, clock, chance, lock ranks, errors. */
#include "machine/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors -----------------------------------------------------------------------------------
 */

_Noreturn void us_fatal(const char *format, ...)
{
    char text[400];
    va_list list;

    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fprintf(stderr, "unislab: %s\n", text);
    abort();
}

enum us_status us_fail(struct us_error *error, enum us_status status, const char *format, ...)
{
    va_list list;

    if (error == NULL)
        return status;
    memset(error, 0, sizeof *error);
    error->status = status;
    va_start(list, format);
    vsnprintf(error->text, sizeof error->text, format, list);
    va_end(list);
    return status;
}

/* ---- creation ---------------------------------------------------------------------------------
 */

struct us_machine *us_machine_new(const struct us_topology *t, unsigned ncpus, unsigned table_cpus,
                                  size_t page_size, uint64_t seed, struct us_error *error)
{
    struct us_machine *m = calloc(1, sizeof *m);

    if (m == NULL)
        goto nomem;
    m->ncpus = ncpus;
    m->table_cpus = table_cpus;
    m->page_size = page_size;
    m->page_shift = (unsigned)__builtin_ctzll(page_size);
    atomic_store(&m->seed, seed);
    m->cpu = aligned_alloc(US_LINE, ncpus * sizeof *m->cpu);
    if (m->cpu == NULL)
        goto nomem;
    memset((void *)m->cpu, 0, ncpus * sizeof *m->cpu);
    for (unsigned i = 0; i < ncpus; i++)
        us_lock_init(&m->cpu[i].control, US_LOCK_CONTROL);
    if (!us_topology_apply(m, t))
        goto nomem;
    return m;
nomem:
    us_fail(error, US_ENOMEM, "no memory for a machine of %u CPUs", ncpus);
    us_machine_destroy(m);
    return NULL;
}

void us_machine_destroy(struct us_machine *m)
{
    if (m == NULL)
        return;
#ifdef US_MODEL
    us_model_drop(m);
#endif
    free(m->cpu);
    free(m->domain);
    free(m->domain_cpus);
    free(m);
}

/* ---- clock, chance ----------------------------------------------------------------------------
 */

uint64_t us_now(const struct us_machine *m)
{
    uint64_t offset = atomic_load_explicit(&m->clock_offset, memory_order_relaxed);

#ifdef US_MODEL
    if (m->virtual_clock)
        return offset + us_model_time(m);
#endif
    if (atomic_load_explicit(&m->clock_manual, memory_order_relaxed))
        return offset;
    return us_clock_real() + offset;
}

void us_clock_advance(struct us_machine *m, uint64_t delta_ns)
{
    atomic_fetch_add_explicit(&m->clock_offset, delta_ns, memory_order_relaxed);
}

void us_clock_set(struct us_machine *m, uint64_t now_ns)
{
    atomic_store_explicit(&m->clock_offset, now_ns, memory_order_relaxed);
    atomic_store_explicit(&m->clock_manual, 1, memory_order_relaxed);
}

/* splitmix64: the state is a counter, so that threads need one atomic addition. */
uint64_t us_random(struct us_machine *m)
{
    const uint64_t step = 0x9e3779b97f4a7c15ull;
    uint64_t z = atomic_fetch_add_explicit(&m->seed, step, memory_order_relaxed) + step;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* ---- lock classes -----------------------------------------------------------------------------
 */

const char *us_lock_class_name(enum us_lock_class klass)
{
    static const char *const name[] = {
#define US_ROW(id, name, help) name,
        US_LOCK_CLASSES(US_ROW)
#undef US_ROW
    };
    return (unsigned)klass < US_LOCK_NCLASSES ? name[klass] : "unknown";
}

void us_lock_init(struct us_lock *lock, enum us_lock_class klass)
{
    memset((void *)lock, 0, sizeof *lock);
    lock->klass = (uint8_t)klass;
}

void us_lock_forget(struct us_lock *lock)
{
    atomic_store_explicit(&lock->word, 0, memory_order_relaxed);
}

void us_lock_retire(struct us_machine *m, struct us_lock *lock)
{
    uint64_t acquired = atomic_exchange_explicit(&lock->acquired, 0, memory_order_relaxed);
    uint64_t contended = atomic_exchange_explicit(&lock->contended, 0, memory_order_relaxed);

    atomic_fetch_add_explicit(&m->lock_acquired[lock->klass], acquired, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->lock_contended[lock->klass], contended, memory_order_relaxed);
}

void us_lock_totals(const struct us_machine *m, enum us_lock_class klass, uint64_t *acquired,
                    uint64_t *contended)
{
    *acquired = atomic_load_explicit(&m->lock_acquired[klass], memory_order_relaxed);
    *contended = atomic_load_explicit(&m->lock_contended[klass], memory_order_relaxed);
    for (unsigned i = 0; i < m->ncpus; i++) {
        const struct us_cpu *c = &m->cpu[i];

        if (klass == US_LOCK_SLAB) {
            *acquired +=
                atomic_load_explicit(&c->in_flight, memory_order_relaxed) >> US_FLIGHT_BITS;
            *contended += atomic_load_explicit(&c->byte_contended, memory_order_relaxed);
        } else if (klass == US_LOCK_CONTROL) {
            *acquired += atomic_load_explicit(&c->control.acquired, memory_order_relaxed);
            *contended += atomic_load_explicit(&c->control.contended, memory_order_relaxed);
        }
    }
}

/* ---- CPUs in use -------------------------------------------------------------------------------
 */

unsigned us_domain_online(const struct us_machine *m, unsigned domain)
{
    unsigned n = 0;

    for (unsigned i = 0; i < m->domain[domain].ncpus; i++)
        n += us_cpu_online(m, us_domain_cpu(m, domain, i));
    return n;
}

unsigned us_node_online(const struct us_machine *m, unsigned node)
{
    unsigned n = 0;

    for (unsigned cpu = 0; cpu < m->ncpus; cpu++)
        n += us_node_of_cpu(m, cpu) == node && us_cpu_online(m, cpu);
    return n;
}

/* ---- what the thread does ---------------------------------------------------------------------
 */

struct us_thread *us_thread(void)
{
    static _Thread_local struct us_thread thread;

#ifdef US_MODEL
    if (us_running)
        return us_model_thread();
#endif
    return &thread;
}

struct us_flight *us_flight_current(void)
{
    return us_thread()->flight;
}

void us_mark_thread(void)
{
    us_thread()->slots++;
    atomic_signal_fence(memory_order_seq_cst);
}

void us_unmark_thread(void)
{
    atomic_signal_fence(memory_order_seq_cst);
    us_thread()->slots--;
}

#ifdef US_CHECK
/* An attempt (ordered = false) cannot deadlock and may go against the order. A signal handler
 * finishes between any two steps here and leaves the counts as they were. */
void us_rank_take(enum us_lock_class klass, bool ordered)
{
    struct us_thread *t = us_thread();

    for (unsigned held = klass; ordered && held < US_LOCK_NCLASSES; held++)
        if (t->held[held] > 0)
            us_fatal("lock order: %s was taken while %s is held, which comes %s",
                     us_lock_class_name(klass), us_lock_class_name((enum us_lock_class)held),
                     held == klass ? "at the same place" : "after it");
    t->held[klass]++;
}

void us_rank_drop(enum us_lock_class klass)
{
    struct us_thread *t = us_thread();

    if (t->held[klass] == 0)
        us_fatal("lock order: %s was dropped by a thread that does not hold it",
                 us_lock_class_name(klass));
    t->held[klass]--;
}
#endif
