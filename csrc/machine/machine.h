/* machine.h - what a policy may ask of the machine it runs on.
 *
 * One source, two machines: compiled plainly, a `struct us_machine` is this machine (real threads,
 * restartable sequences or the slot-lock fallback, the real clock); compiled with US_MODEL it is a
 * scripted machine with any topology, whose current CPU and clock are set by the script. Policies
 * see current CPU, node and domain, locks, local regions (local.h), in-flight marks (flight.h),
 * clock and seeded random numbers, and nothing else of the world.
 */
#ifndef US_MACHINE_H
#define US_MACHINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "unislab.h"

/* Restartable sequences are written for x86-64; every other machine runs the fallback. */
#if defined(__x86_64__) && defined(__LP64__) && !defined(US_MODEL)
#define US_HAVE_RSEQ 1
#endif

#define US_LINE        64u
#define US_LIKELY(x)   __builtin_expect(!!(x), 1)
#define US_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define US_INLINE      static inline __attribute__((always_inline))
#define US_NOINLINE    __attribute__((noinline))
#define US_COLD        __attribute__((noinline, cold))
#define US_ALIGNED(n)  __attribute__((aligned(n)))

/* Lock classes, in the order in which they may be nested (outermost first).
 * row: id, name, help */
#define US_LOCK_CLASSES(row)                                                                  \
    row(CONFIG, "config", "cache list and configuration of an allocator")                     \
        row(CONTROL, "control", "a CPU's regions while they are closed")                      \
            row(ALIEN, "alien", "one alien queue") row(SHARED, "shared", "one shared queue")  \
                row(SLAB, "slab", "one slab (page lock)")                                     \
                    row(NODE, "node", "slabs and lists of one node of one cache (list lock)") \
                        row(PAGES, "pages", "page provider of one node")                      \
                            row(META, "meta", "metadata allocator")                           \
                                row(STATS, "stats", "statistics readers of one cache")

enum us_lock_class {
#define US_ROW(id, name, help) US_LOCK_##id,
    US_LOCK_CLASSES(US_ROW)
#undef US_ROW
        US_LOCK_NCLASSES
};
const char *us_lock_class_name(enum us_lock_class klass);

/* A sleeping lock (futex) of 24 bytes that counts its use. The counts are written by the holder. */
struct us_lock {
    _Atomic uint32_t word; /* 0 free, 1 held, 2 held and awaited */
    uint8_t klass;
    uint8_t pad[3];
    _Atomic uint64_t acquired; /* relaxed */
    _Atomic uint64_t contended;
};

/* How local regions are made exclusive to their CPU. */
enum us_mode {
    US_MODE_RSEQ,    /* restartable sequences */
    US_MODE_SLOT,    /* fallback: a try-lock per CPU slot */
    US_MODE_CONTROL, /* debug caches: regions stay closed, work under the control lock */
    US_MODE_MODEL,   /* virtual CPUs: nothing else runs */
};

/* us_cpu.in_flight: flights below, byte locks taken above. Threads on one CPU stay below 2^20, and
 * 2^44 byte locks take ten days of nothing else. */
#define US_FLIGHT_BITS 20
#define US_FLIGHT_MASK ((1ull << US_FLIGHT_BITS) - 1)

/* What the machine keeps for each CPU; one line for each group of writers. */
struct us_cpu {
    struct us_lock control; /* class CONTROL */
    unsigned node, domain;
    _Atomic bool offline; /* regions stay closed (local.h); written under the control lock */
    _Atomic uint32_t slot US_ALIGNED(US_LINE);      /* the fallback's try-lock */
    _Atomic uint64_t in_flight US_ALIGNED(US_LINE); /* flights, and byte locks taken */
    _Atomic uint64_t byte_contended;
} US_ALIGNED(US_LINE);

struct us_domain {
    unsigned node;
    unsigned ncpus;
    unsigned first_cpu;
};

struct us_machine {
    unsigned ncpus, nnodes, ndomains; /* CPUs: all possible ones */
    unsigned table_cpus;  /* entries of a region table: no CPU id can lie beyond, >= ncpus */
    bool system_topology; /* nodes are the system's own: binding memory to them makes sense */
    unsigned page_shift;
    size_t page_size;
    enum us_mode mode;           /* of ordinary caches: RSEQ, SLOT or MODEL */
    struct us_cpu *cpu;          /* [ncpus] */
    struct us_domain *domain;    /* [ndomains] */
    unsigned *domain_cpus;       /* CPUs ordered by domain, us_domain_cpu() */
    _Atomic uint32_t gate;       /* 0 open, else number of those who shut it (flight.h) */
    _Atomic uint32_t gate_turn;  /* lock of those who want to shut it */
    _Atomic uint32_t gate_event; /* moves when a flight ends while the gate is shut */
    _Atomic(void *) gate_owner;  /* thread that shut it */
    _Atomic uint64_t lock_acquired[US_LOCK_NCLASSES]; /* of locks that were destroyed */
    _Atomic uint64_t lock_contended[US_LOCK_NCLASSES];
    _Atomic uint64_t fences;       /* of one CPU: what closing regions cost it (local.h) */
    _Atomic uint64_t clock_offset; /* advance() and trace time move the policy's clock */
    _Atomic int clock_manual;      /* 1: the clock is clock_offset alone */
    _Atomic uint64_t seed;
    unsigned current_cpu; /* model only */
    struct us_sim *sim;   /* model only: virtual CPUs, clocks, caches */
    bool virtual_clock;   /* model only: the policy's clock is clock_offset + virtual time */
};

/* Builds the machine; topology NULL = as the system describes it (native) or one CPU (model).
 * CPUs of the system that a declared topology lacks are added, with node and domain of the CPU they
 * fold on modulo its CPUs: a native machine has at least the system's possible CPUs.
 * Domains that span nodes are split, single-CPU domains of one node are joined into one group, and
 * all are renumbered in the order in which CPUs show them. */
struct us_machine *us_machine_create(const struct us_topology *topology, unsigned page_size,
                                     uint64_t seed, struct us_error *error);
void us_machine_destroy(struct us_machine *machine);
/* Model: gives a new machine virtual time, in which workloads can run; NULL = it stays scripted.
 * Native: nothing. */
bool us_machine_model(struct us_machine *machine, const uint64_t *costs, const uint64_t *caches,
                      unsigned smt, struct us_error *error);

/* ---- what the code does, for the model ----------------------------------------------------------
 *
 * A modelled CPU is charged for what the code declares, where it does it; native builds pay
 * nothing for it. */

/* clang-format off
 *   us_reads, us_writes   these bytes; each line of them once a call
 *   us_updates            a locked read-modify-write of them
 *   us_prefetches         the line at an address is asked for and not waited for
 *   us_runs               so many instructions, as the compiled code has on this path: of functions
 *                         the self cost of a call that callgrind counts (gcc 12, -O2), where it was
 *                         met in caches that are filled, emptied and churned; else an estimate
 *   us_provides           a call of the page provider (alloc), or back to it
 *   us_zeroes, us_faults  bytes zeroed; a page that the system has to supply
 *   us_phase_set          what the time from now on goes to; returns what it went to before
 *   us_maps               memory whose place in the model is its order of mapping, on any host;
 *                         address >> node_shift = its node (0: of none). False: too much
 * clang-format on */

/* Row: id, name, help */
#define US_PHASES(row)                                                               \
    row(WORK, "work", "the workload's own computing")                                \
        row(TOUCH, "touch", "the workload's use of its objects")                     \
            row(FAST, "fast", "paths on the CPU's own stock")                        \
                row(SECOND, "second", "shared, alien and remote stocks")             \
                    row(SLOW, "slow", "slabs and what surrounds them")               \
                        row(PROVIDER, "provider", "pages")                           \
                            row(SWITCH, "switch", "context switches and wake-ups")   \
                                row(INTERRUPT, "interrupt", "interrupt entry, exit") \
                                    row(LOCK, "lock", "waiting for locks")           \
                                        row(IDLE, "idle", "nothing to do")

enum us_phase {
#define US_ROW(id, name, help) US_PHASE_##id,
    US_PHASES(US_ROW)
#undef US_ROW
        US_NPHASES
};

#ifdef US_MODEL
#include "machine/model/charge.h"
#else
US_INLINE void us_reads(const void *base, size_t bytes)
{
    (void)base;
    (void)bytes;
}
US_INLINE void us_writes(const void *base, size_t bytes)
{
    (void)base;
    (void)bytes;
}
US_INLINE void us_updates(const void *base, size_t bytes)
{
    (void)base;
    (void)bytes;
}
US_INLINE void us_prefetches(const void *base)
{
    (void)base;
}
US_INLINE void us_runs(uint64_t n)
{
    (void)n;
}
US_INLINE void us_provides(bool alloc)
{
    (void)alloc;
}
US_INLINE void us_zeroes(size_t bytes)
{
    (void)bytes;
}
US_INLINE void us_faults(void)
{
}
US_INLINE bool us_maps(struct us_machine *m, const void *base, size_t bytes, unsigned node_shift)
{
    (void)m;
    (void)base;
    (void)bytes;
    (void)node_shift;
    return true;
}
US_INLINE enum us_phase us_phase_set(enum us_phase phase)
{
    return phase;
}
#endif

/* ---- CPUs, nodes, domains -------------------------------------------------------------------- */

/* The CPU of the caller, 0..ncpus-1, at this moment. */
unsigned us_cpu_now(const struct us_machine *machine);
/* Model: moves the script to `cpu`. Native: pins the calling thread (cpu < 0 undoes it).
 * Returns the previous CPU of the script, or 0; -1 when not possible (error set). */
int us_machine_on_cpu(struct us_machine *machine, int cpu, struct us_error *error);

static inline unsigned us_node_of_cpu(const struct us_machine *m, unsigned cpu)
{
    us_reads(&m->cpu[cpu].node, sizeof(unsigned));
    return m->cpu[cpu].node;
}
static inline unsigned us_domain_of_cpu(const struct us_machine *m, unsigned cpu)
{
    us_reads(&m->cpu[cpu].node, sizeof(unsigned));
    return m->cpu[cpu].domain;
}
/* i-th CPU of a domain, i < domain[d].ncpus. */
static inline unsigned us_domain_cpu(const struct us_machine *m, unsigned domain, unsigned i)
{
    return m->domain_cpus[m->domain[domain].first_cpu + i];
}

/* CPUs can be taken out of use. Nothing is taken from the threads that run there: their calls find
 * closed regions. The last one of a node or domain is gone when none of it is online. */
static inline bool us_cpu_online(const struct us_machine *m, unsigned cpu)
{
    us_reads(&m->cpu[cpu].node, sizeof(unsigned)); /* the same line */
    return !atomic_load_explicit(&m->cpu[cpu].offline, memory_order_relaxed);
}
unsigned us_domain_online(const struct us_machine *m, unsigned domain); /* how many are */
unsigned us_node_online(const struct us_machine *m, unsigned node);

static inline unsigned us_cpu_flights(const struct us_cpu *cpu)
{
    return (unsigned)(atomic_load(&cpu->in_flight) & US_FLIGHT_MASK);
}

/* ---- clock, chance --------------------------------------------------------------------- */

uint64_t us_now(const struct us_machine *machine); /* ns of the policy's clock */
uint64_t us_clock_real(void);                      /* ns, monotonic, for measuring */
void us_clock_advance(struct us_machine *machine, uint64_t delta_ns);
void us_clock_set(struct us_machine *machine, uint64_t now_ns); /* makes it manual */
uint64_t us_random(struct us_machine *machine);                 /* seeded, thread-safe */

/* ---- locks ----------------------------------------------------------------------------- */

struct us_flight;

/* What is done with each lock of a set. */
typedef void us_lock_fn(void *context, const struct us_lock *lock);

void us_lock_init(struct us_lock *lock, enum us_lock_class klass);
/* In the child of a fork: whoever held it or waited for it is not there. */
void us_lock_forget(struct us_lock *lock);
/* Adds the lock's counts to the machine's totals. */
void us_lock_retire(struct us_machine *machine, struct us_lock *lock);
/* Takes the lock. False only when the flight is nested (a signal handler inside a slow path) and
 * the lock is busy: the caller then gives up what it was doing. */
bool us_lock_take(struct us_flight *flight, struct us_lock *lock)
    __attribute__((warn_unused_result));
bool us_lock_try(struct us_flight *flight, struct us_lock *lock)
    __attribute__((warn_unused_result));
void us_lock_drop(struct us_flight *flight, struct us_lock *lock);
/* One-byte lock in a slab descriptor; counted in the machine's totals by class. */
bool us_bytelock_take(struct us_flight *flight, _Atomic uint8_t *lock)
    __attribute__((warn_unused_result));
/* For policies that take nothing while they hold it: any lock may be held before. */
bool us_bytelock_take_last(struct us_flight *flight, _Atomic uint8_t *lock)
    __attribute__((warn_unused_result));
bool us_bytelock_try(struct us_flight *flight, _Atomic uint8_t *lock)
    __attribute__((warn_unused_result));
void us_bytelock_drop(struct us_flight *flight, _Atomic uint8_t *lock);
/* Counts of a class that no living lock holds: of retired ones and of byte locks. */
void us_lock_totals(const struct us_machine *machine, enum us_lock_class klass, uint64_t *acquired,
                    uint64_t *contended);
/* Where a flight is NULL, the calling thread's innermost one is meant, if there is one. */

/* ---- memory of the system (the only callers are memory/ and the machine itself) ---------- */

void *us_os_reserve(size_t bytes, bool accessible, bool huge); /* NULL when refused; zeroed */
void us_os_release(void *base, size_t bytes);
bool us_os_commit(void *base, size_t bytes); /* makes reserved pages accessible */
void us_os_purge(void *base, size_t bytes);  /* contents become zero, memory goes back */
/* Best effort; `node` is a node of the system's own topology (us_machine.system_topology). */
void us_os_bind(void *base, size_t bytes, unsigned node);
void us_os_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void));

/* What the build and the system offer: "rseq", "fallback: no rseq area", ... */
const char *us_machine_mode_reason(void);

/* Fills an error (NULL = nobody wants it) and returns the status. */
enum us_status us_fail(struct us_error *error, enum us_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
