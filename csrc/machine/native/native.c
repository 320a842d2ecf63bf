/* native.c - this machine: creation, the current CPU, pinning, fences. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "machine/backend.h"
#include "machine/native/rseq.h"
#include "machine/native/system.h"

struct us_machine *us_machine_create(const struct us_topology *topology, unsigned page_size,
                                     uint64_t seed, struct us_error *error)
{
    unsigned system_cpus = us_system_cpus(), bound = us_system_cpu_bound(), ncpus = system_cpus;
    struct us_topology t;
    struct us_machine *m;
    enum us_mode mode;

    (void)page_size; /* the system's */
    if (!us_rseq_choose(&mode, error))
        return NULL;
    if (topology != NULL) {
        if (!us_topology_check(topology, error))
            return NULL;
        t = *topology;
        ncpus = t.ncpus > system_cpus ? t.ncpus : system_cpus;
    } else if (!us_system_topology(system_cpus, &t)) {
        us_fail(error, US_ENOMEM, "no memory to describe %u CPUs", system_cpus);
        return NULL;
    }
    m = us_machine_new(&t, ncpus, bound > ncpus ? bound : ncpus, (size_t)sysconf(_SC_PAGESIZE),
                       seed, error);
    if (m != NULL) {
        m->mode = mode;
        m->system_topology = topology == NULL;
    }
    if (topology == NULL)
        us_system_topology_free(&t);
    return m;
}

/* A CPU without region (its id lies beyond the machine) is served as the one it folds on. */
bool us_machine_model(struct us_machine *m, const uint64_t *costs, const uint64_t *caches,
                      unsigned smt, struct us_error *error)
{
    (void)m;
    (void)costs;
    (void)caches;
    (void)smt;
    (void)error;
    return true;
}

unsigned us_cpu_now(const struct us_machine *m)
{
    int cpu = m->mode == US_MODE_RSEQ ? us_rseq_cpu() : -1;

    if (US_UNLIKELY(cpu < 0))
        cpu = sched_getcpu();
    if (US_UNLIKELY(cpu < 0))
        cpu = 0;
    return US_LIKELY((unsigned)cpu < m->ncpus) ? (unsigned)cpu : (unsigned)cpu % m->ncpus;
}

/* ---- pinning ----------------------------------------------------------------------------------
 */

/* Affinities to go back to, one for each us_machine_on_cpu of this thread that is not undone. */
struct affinity {
    struct affinity *outer;
    size_t bytes;
    unsigned long mask[1024]; /* 65536 CPUs */
};
static _Thread_local struct affinity *saved;

static int unpin(struct us_error *error)
{
    struct affinity *a = saved;

    if (a == NULL) {
        us_fail(error, US_EINVAL,
                "this thread is not pinned to a CPU, so there is nothing to undo");
        return -1;
    }
    saved = a->outer;
    (void)syscall(SYS_sched_setaffinity, 0, a->bytes, a->mask);
    free(a);
    return 0;
}

static int pin_failed(struct us_machine *m, int cpu, struct affinity *a, struct us_error *error)
{
    if ((unsigned)cpu >= m->ncpus)
        us_fail(error, US_EINVAL, "CPU %d: this machine has CPUs 0 to %u", cpu, m->ncpus - 1);
    else
        us_fail(
            error, US_EINVAL,
            "this thread cannot run on CPU %d (%s): the system has %u possible CPUs, and it must "
            "be online and allowed to this process",
            cpu, strerror(errno), us_system_cpus());
    free(a);
    return -1;
}

int us_machine_on_cpu(struct us_machine *m, int cpu, struct us_error *error)
{
    unsigned long mask[1024] = {0};
    struct affinity *a;
    long bytes;

    if (cpu < 0)
        return unpin(error);
    if ((unsigned)cpu >= m->ncpus)
        return pin_failed(m, cpu, NULL, error);
    a = malloc(sizeof *a);
    if (a == NULL) {
        us_fail(error, US_ENOMEM, "no memory to remember where this thread may run");
        return -1;
    }
    bytes = syscall(SYS_sched_getaffinity, 0, sizeof a->mask, a->mask);
    mask[cpu / 64] = 1ul << (cpu % 64);
    if (bytes <= 0 || syscall(SYS_sched_setaffinity, 0, (size_t)bytes, mask) != 0)
        return pin_failed(m, cpu, a, error);
    a->bytes = (size_t)bytes;
    a->outer = saved;
    saved = a;
    return 0;
}

/* ---- fences -----------------------------------------------------------------------------------
 */

/* Who held the slot when the entry was closed is gone once it was ours. */
static bool pass_slot(struct us_machine *m, const struct us_flight *f, unsigned cpu)
{
    _Atomic uint32_t *slot = &m->cpu[cpu].slot;

    while (atomic_exchange_explicit(slot, 1, memory_order_acquire) != 0) {
        if (us_flight_nested(f))
            return false; /* perhaps held by what this thread interrupted */
        sched_yield();
    }
    atomic_store_explicit(slot, 0, memory_order_release);
    return true;
}

bool us_fence(struct us_machine *m, const struct us_flight *f, enum us_mode mode, unsigned cpu)
{
    atomic_fetch_add_explicit(&m->fences, 1, memory_order_relaxed);
    if (mode == US_MODE_SLOT)
        return pass_slot(m, f, cpu);
    if (mode == US_MODE_RSEQ)
        us_rseq_fence((int)cpu);
    return true;
}

void us_fence_all(struct us_machine *m, enum us_mode mode)
{
    if (mode == US_MODE_RSEQ)
        us_rseq_fence(-1);
    for (unsigned cpu = 0; mode == US_MODE_SLOT && cpu < m->ncpus; cpu++)
        (void)pass_slot(m, NULL, cpu);
}
