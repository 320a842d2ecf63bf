/* probe.c - what elementary things cost on this machine.
 *
 * A probe is one or two threads, each kept on a CPU, that do one thing some hundred times and say
 * how long one took. Who calls repeats probes in turns and keeps a low quantile: here is no attempt
 * at statistics, but for the probes whose single events are timed (a message to another CPU and
 * back may be cut by a time slice): of those the lower quartile counts, less what reading the clock
 * takes.
 *
 * The two threads of a pair take turns by a word in a line of its own. Who waits spins, and lets
 * others run when it takes long: the machine may be busy, and both may share a CPU.
 */
#define _GNU_SOURCE
#include "machine/native/probe.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "machine/machine.h"
#include "machine/native/futex.h"

#define LINE         64u
#define SHARED_LINES 256u
#define STRIDE       256u /* of shared lines: no prefetcher brings the next */
#define MOST_SAMPLES 4096u

struct line {
    _Alignas(LINE) _Atomic uint32_t word;
};

/* What a pair of threads shares. */
struct run {
    struct line turn, sleep, lock;
    _Alignas(LINE) struct us_probe_place place;
    enum us_probe what;
    char *memory;
    _Atomic uint64_t stamp;
    unsigned samples;
    double *sample;
    double ns;
    bool failed[2];
};

struct side {
    struct run *run;
    unsigned index, cpu;
    void (*body)(struct run *r);
};

static double clock_ns(void)
{
    enum { READS = 64 };
    uint64_t from = us_clock_real(), to = from;

    for (int i = 0; i < READS; i++)
        to = us_clock_real();
    return (double)(to - from) / READS;
}

static double since(uint64_t from, double operations)
{
    return (double)(us_clock_real() - from) / operations;
}

static void await(struct line *line, uint32_t value)
{
    for (unsigned i = 0; atomic_load_explicit(&line->word, memory_order_acquire) != value; i++) {
        if (i < 4000)
            us_pause();
        else
            sched_yield();
    }
}

static void pass(struct line *line, uint32_t value)
{
    atomic_store_explicit(&line->word, value, memory_order_release);
}

static int by_size(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static void keep(struct run *r, double ns)
{
    if (r->samples < MOST_SAMPLES)
        r->sample[r->samples++] = ns;
}

static double lower_quartile(struct run *r)
{
    if (r->samples == 0)
        return 0;
    qsort(r->sample, r->samples, sizeof *r->sample, by_size);
    return r->sample[r->samples / 4];
}

/* ---- one CPU ----------------------------------------------------------------------------------
 */

/* Time that this thread ran: others take their share of a busy CPU. */
static uint64_t cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double spent(uint64_t from, double operations)
{
    return (double)(cpu_ns() - from) / operations;
}

static void probe_cycle(struct run *r)
{
    uint64_t x = 1, from = cpu_ns();

    for (unsigned i = 0; i < r->place.repeat; i++) {
#define ADD                         \
    __asm__ volatile("" : "+r"(x)); \
    x += 3;
#define ADD8 ADD ADD ADD ADD ADD ADD ADD ADD
        ADD8 ADD8 ADD8 ADD8 ADD8 ADD8 ADD8 ADD8 ADD8 ADD8 ADD8 ADD8 ADD8 ADD8 ADD8 ADD8
#undef ADD8
#undef ADD
    }
    __asm__ volatile("" : : "r"(x));
    r->ns = spent(from, 128.0 * r->place.repeat);
}

/* A pop and a push on an array stack with header, mask, capacity and node range, as queues have
 * them, and what a call does beside: 45 instructions, counted here because compilers do not say.
 * The header is stored through a register of its own: a processor that forwards from store to load
 * by the names of registers does so in this loop only. */
static void probe_instruction(struct run *r)
{
#ifdef __x86_64__
    struct {
        uint64_t header;
        uint32_t mask, capacity;
        uint64_t base, length;
        _Alignas(LINE) uint64_t slot[64];
    } stack = {.header = 32, .mask = 63, .capacity = 64, .base = 1, .length = 1 << 20};
    const uint64_t popped = (1ull << 32) - 1;
    uint64_t n = 100ull * r->place.repeat;

    for (unsigned i = 0; i < 64; i++)
        stack.slot[i] = i + 2;
    const uint64_t from = cpu_ns();
    __asm__ volatile("1: mov (%[s]), %%rax\n\t"
                     "mov %%eax, %%ecx\n\t"
                     "test %%ecx, %%ecx\n\t"
                     "jz 2f\n\t"
                     "sub $1, %%ecx\n\t"
                     "and 8(%[s]), %%ecx\n\t"
                     "mov 64(%[s],%%rcx,8), %%rdx\n\t"
                     "add %[popped], %%rax\n\t"
                     "mov %%rax, (%[store])\n\t"
                     "mov 24(%[s]), %%r8\n\t"
                     "lea 64(%[s]), %%r9\n\t"
                     "mov %%r8, %%r10\n\t"
                     "sub $1, %%r10\n\t"
                     "and %%r8, %%r10\n\t"
                     "test %%r10, %%r10\n\t"
                     "jnz 2f\n\t"
                     "mov 12(%[s]), %%r9d\n\t"
                     "cmp %%r8, %%r9\n\t"
                     "ja 2f\n\t"
                     "test %%rdx, %%rdx\n\t"
                     "jz 2f\n\t"
                     "mov (%[s]), %%rax\n\t"
                     "mov %%eax, %%ecx\n\t"
                     "cmp 12(%[s]), %%ecx\n\t"
                     "jae 2f\n\t"
                     "mov %%rdx, %%rsi\n\t"
                     "sub 16(%[s]), %%rsi\n\t"
                     "cmp 24(%[s]), %%rsi\n\t"
                     "jae 2f\n\t"
                     "and 8(%[s]), %%ecx\n\t"
                     "mov %%rdx, 64(%[s],%%rcx,8)\n\t"
                     "add $1, %%rax\n\t"
                     "mov %%rax, (%[store])\n\t"
                     "mov 24(%[s]), %%r8\n\t"
                     "lea 64(%[s]), %%r9\n\t"
                     "mov %%r8, %%r10\n\t"
                     "sub $1, %%r10\n\t"
                     "and %%r8, %%r10\n\t"
                     "test %%r10, %%r10\n\t"
                     "jnz 2f\n\t"
                     "mov 12(%[s]), %%r9d\n\t"
                     "cmp %%r8, %%r9\n\t"
                     "ja 2f\n\t"
                     "2: sub $1, %[n]\n\t"
                     "jnz 1b\n\t"
                     : [n] "+r"(n)
                     : [s] "r"(&stack), [store] "r"(&stack), [popped] "r"(popped)
                     : "rax", "rcx", "rdx", "rsi", "r8", "r9", "r10", "memory", "cc");
    r->ns = spent(from, 4500.0 * r->place.repeat);
#else
    probe_cycle(r);
    r->ns /= 2; /* estimated: two instructions a cycle */
#endif
}

static void probe_atomic(struct run *r)
{
    const uint64_t from = cpu_ns();

    for (unsigned i = 0; i < 100 * r->place.repeat; i++)
        atomic_fetch_add_explicit(&r->lock.word, 1, memory_order_relaxed);
    r->ns = spent(from, 100.0 * r->place.repeat);
}

static void probe_lock(struct run *r)
{
    const uint64_t from = cpu_ns();

    for (unsigned i = 0; i < 100 * r->place.repeat; i++) {
        us_word_lock(&r->lock.word);
        us_word_unlock(&r->lock.word);
    }
    r->ns = spent(from, 100.0 * r->place.repeat);
}

/* Makes one cycle of all places, in random order (Sattolo), each holding the address of the next.
 */
static void make_cycle(char *memory, size_t places, size_t stride)
{
    uint64_t seed = 0x9e3779b97f4a7c15u;

    for (size_t i = 0; i < places; i++)
        *(char **)(memory + i * stride) = memory + i * stride;
    for (size_t i = places - 1; i > 0; i--) {
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        char **a = (char **)(memory + i * stride), **b = (char **)(memory + seed % i * stride);
        char *next = *a;

        *a = *b, *b = next;
    }
}

static char *follow(char *p, size_t steps)
{
    for (size_t i = 0; i < steps; i++) {
        p = *(char **)p;
        __asm__ volatile("" : "+r"(p));
    }
    return p;
}

static void probe_chase(struct run *r)
{
    const size_t places = r->place.bytes / LINE, steps = 100u * r->place.repeat;

    make_cycle(r->memory, places, LINE);
    char *p =
        follow(r->memory, places < 4 * steps ? places : steps); /* what fits is in its cache */
    for (unsigned i = 0; i < 8; i++) {                          /* in parts: the quietest count */
        const uint64_t from = cpu_ns();
        p = follow(p, steps / 8 + 1);
        keep(r, spent(from, (double)(steps / 8 + 1)));
    }
    __asm__ volatile("" : : "r"(p));
}

static void probe_zero(struct run *r)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = r->place.bytes / page;

    memset(r->memory, 1, r->place.bytes);
    const uint64_t from = cpu_ns();
    for (size_t i = 0; i < r->place.repeat; i++) {
        memset(r->memory + i % pages * page, 0, page);
        __asm__ volatile("" : : : "memory");
    }
    r->ns = spent(from, r->place.repeat);
}

static void probe_fault(struct run *r)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = r->place.bytes / page;

    (void)madvise(r->memory, r->place.bytes, MADV_NOHUGEPAGE);
    us_os_purge(r->memory, r->place.bytes);
    const uint64_t from = cpu_ns();
    for (size_t i = 0; i < pages; i++)
        *(volatile char *)(r->memory + i * page) = 1;
    r->ns = spent(from, (double)pages);
}

/* ---- two CPUs ---------------------------------------------------------------------------------
 */

static void line_reader(struct run *r)
{
    for (unsigned i = 0; i < r->place.repeat; i++) {
        await(&r->turn, 1);
        const uint64_t from = us_clock_real();
        char *p = follow(r->memory, SHARED_LINES);
        __asm__ volatile("" : : "r"(p));
        keep(r, since(from, SHARED_LINES));
        pass(&r->turn, 0);
    }
}

static void line_writer(struct run *r)
{
    for (unsigned i = 0; i < r->place.repeat; i++) {
        await(&r->turn, 0);
        for (size_t k = 0; k < SHARED_LINES; k++)
            *(volatile uint64_t *)(r->memory + k * STRIDE + 8) = i;
        pass(&r->turn, 1);
    }
}

static void invalidate_writer(struct run *r)
{
    for (unsigned i = 0; i < r->place.repeat; i++) {
        await(&r->turn, 1);
        const uint64_t from = us_clock_real();
        char *p = r->memory;
        for (size_t k = 0; k < SHARED_LINES; k++, p = *(char **)p)
            __atomic_fetch_add((uint64_t *)(p + 8), 1, __ATOMIC_RELAXED);
        keep(r, since(from, SHARED_LINES));
        pass(&r->turn, 0);
    }
}

static void invalidate_reader(struct run *r)
{
    for (unsigned i = 0; i < r->place.repeat; i++) {
        await(&r->turn, 0);
        char *p = follow(r->memory, SHARED_LINES);
        __asm__ volatile("" : : "r"(p));
        pass(&r->turn, 1);
    }
}

static void pause_for(uint64_t ns)
{
    for (uint64_t from = us_clock_real(); us_clock_real() - from < ns;)
        us_pause();
}

static void handover_holder(struct run *r)
{
    for (unsigned i = 0; i < r->place.repeat; i++) {
        us_word_lock(&r->lock.word);
        pass(&r->turn, 1);
        await(&r->turn, 2);
        pause_for(300); /* until the other spins on the lock, and shorter than it spins */
        atomic_store_explicit(&r->stamp, us_clock_real(), memory_order_relaxed);
        us_word_unlock(&r->lock.word);
        await(&r->turn, 0);
    }
}

static void handover_waiter(struct run *r)
{
    const double clock = clock_ns();

    for (unsigned i = 0; i < r->place.repeat; i++) {
        await(&r->turn, 1);
        pass(&r->turn, 2);
        us_word_lock(&r->lock.word);
        const uint64_t now = us_clock_real();
        us_word_unlock(&r->lock.word);
        keep(r, (double)now - (double)atomic_load(&r->stamp) - clock);
        pass(&r->turn, 0);
    }
}

static void sleep_until(struct line *line, uint32_t value)
{
    for (uint32_t seen; (seen = atomic_load(&line->word)) != value;)
        us_futex_wait(&line->word, seen);
}

static void wake(struct line *line, uint32_t value)
{
    atomic_store(&line->word, value);
    us_futex_wake(&line->word, 1);
}

static void switch_first(struct run *r)
{
    const uint64_t from = us_clock_real();

    for (unsigned i = 0; i < r->place.repeat; i++) {
        wake(&r->sleep, 1);
        sleep_until(&r->sleep, 0);
    }
    r->ns = since(from, 2.0 * r->place.repeat);
}

static void switch_second(struct run *r)
{
    for (unsigned i = 0; i < r->place.repeat; i++) {
        sleep_until(&r->sleep, 1);
        wake(&r->sleep, 0);
    }
}

static void wake_waker(struct run *r)
{
    const double clock = clock_ns();

    for (unsigned i = 0; i < r->place.repeat; i++) {
        await(&r->turn, 1);
        pause_for(20000); /* by then the other sleeps, and its CPU too if it has nothing else */
        const uint64_t from = us_clock_real();
        atomic_store_explicit(&r->stamp, from, memory_order_relaxed);
        wake(&r->sleep, 1);
        if (r->what == US_PROBE_WAKE)
            keep(r, (double)(us_clock_real() - from) - clock);
        await(&r->turn, 2);
        pass(&r->turn, 0);
    }
}

static void wake_sleeper(struct run *r)
{
    for (unsigned i = 0; i < r->place.repeat; i++) {
        await(&r->turn, 0);
        atomic_store(&r->sleep.word, 0);
        pass(&r->turn, 1);
        sleep_until(&r->sleep, 1);
        if (r->what == US_PROBE_ARRIVE)
            keep(r, (double)(us_clock_real() - atomic_load(&r->stamp)));
        pass(&r->turn, 2);
    }
}

/* ---- threads ----------------------------------------------------------------------------------
 */

static void *side_main(void *arg)
{
    struct side *s = arg;
    cpu_set_t one;

    CPU_ZERO(&one);
    CPU_SET(s->cpu, &one);
    /* It runs even where it cannot be kept there: the other side waits for it. */
    s->run->failed[s->index] = sched_setaffinity(0, sizeof one, &one) != 0;
    s->body(s->run);
    return NULL;
}

static const struct {
    void (*first)(struct run *r), (*second)(struct run *r);
} bodies[US_PROBE_N] = {
    [US_PROBE_CYCLE] = {probe_cycle, NULL},
    [US_PROBE_INSTRUCTION] = {probe_instruction, NULL},
    [US_PROBE_ATOMIC] = {probe_atomic, NULL},
    [US_PROBE_LOCK] = {probe_lock, NULL},
    [US_PROBE_CHASE] = {probe_chase, NULL},
    [US_PROBE_ZERO] = {probe_zero, NULL},
    [US_PROBE_FAULT] = {probe_fault, NULL},
    [US_PROBE_LINE] = {line_reader, line_writer},
    [US_PROBE_INVALIDATE] = {invalidate_writer, invalidate_reader},
    [US_PROBE_HANDOVER] = {handover_holder, handover_waiter},
    [US_PROBE_SWITCH] = {switch_first, switch_second},
    [US_PROBE_WAKE] = {wake_waker, wake_sleeper},
    [US_PROBE_ARRIVE] = {wake_waker, wake_sleeper},
};

/* The second thread is started before the first: where the system has none for the first, this one
 * plays it, or the second would wait for ever. */
static enum us_status run_threads(struct run *r, struct us_error *error)
{
    struct side side[2] = {
        {r, 0, r->place.cpu, bodies[r->what].first},
        {r, 1, r->what == US_PROBE_SWITCH ? r->place.cpu : r->place.other, bodies[r->what].second},
    };
    pthread_t thread[2];
    const bool pair = side[1].body != NULL;

    if (pair && pthread_create(&thread[1], NULL, side_main, &side[1]) != 0)
        return us_fail(error, US_ENOMEM, "no thread for a probe on CPU %u", side[1].cpu);
    const bool started = pthread_create(&thread[0], NULL, side_main, &side[0]) == 0;
    if (!started && pair)
        side[0].body(r);
    if (started)
        pthread_join(thread[0], NULL);
    if (pair)
        pthread_join(thread[1], NULL);
    if (!started)
        return us_fail(error, US_ENOMEM, "no thread for a probe on CPU %u", side[0].cpu);
    for (unsigned i = 0; i < 2; i++)
        if (r->failed[i])
            return us_fail(error, US_EINVAL,
                           "a probe cannot run on CPU %u: expected one that this process may use",
                           side[i].cpu);
    return US_OK;
}

static bool check_place(enum us_probe what, const struct us_probe_place *place,
                        struct us_error *error)
{
    const bool pages = what == US_PROBE_ZERO || what == US_PROBE_FAULT;
    const size_t least = pages ? (size_t)sysconf(_SC_PAGESIZE) : 4096;

    if (place->cpu < CPU_SETSIZE && place->other < CPU_SETSIZE && place->bytes >= least &&
        place->bytes <= ((size_t)1 << 33) && place->repeat >= 1 && place->repeat <= 1000000)
        return true;
    us_fail(
        error, US_EINVAL,
        "a probe on CPUs %u and %u of %zu bytes, %u times: expected CPUs below %d, %zu bytes to "
        "8 GiB, 1 to 1000000 times",
        place->cpu, place->other, place->bytes, place->repeat, CPU_SETSIZE, least);
    return false;
}

enum us_status us_probe(enum us_probe what, const struct us_probe_place *place, double *ns,
                        struct us_error *error)
{
    if (!check_place(what, place, error))
        return US_EINVAL;
    const bool shares = what == US_PROBE_LINE || what == US_PROBE_INVALIDATE;
    const size_t bytes = shares ? SHARED_LINES * STRIDE : place->bytes;
    struct run r = {.place = *place, .what = what};

    r.sample = malloc(MOST_SAMPLES * sizeof *r.sample);
    r.memory = us_os_reserve(bytes, true, true);
    enum us_status status = US_ENOMEM;
    if (r.sample == NULL || r.memory == NULL) {
        us_fail(error, US_ENOMEM, "no memory of %zu bytes for a probe", bytes);
    } else {
        (void)madvise(r.memory, bytes, MADV_HUGEPAGE); /* costs of caches, not of page tables */
        if (shares)
            make_cycle(r.memory, SHARED_LINES, STRIDE);
        status = run_threads(&r, error);
        *ns = r.samples ? lower_quartile(&r) : r.ns;
    }
    us_os_release(r.memory, bytes);
    free(r.sample);
    return status;
}
