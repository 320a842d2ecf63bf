/* local.c - regions of a cache: life, control, the slow forms of operations, statistics.
 *
 * How an operation gets a CPU's region to itself depends on the mode:
 *
 *   RSEQ     a restartable sequence (native/rseq_slow.c); the entry table[cpu] is read inside it
 *   SLOT     the slot lock of a CPU, only tried; the entry is read while it is held
 *   CONTROL  the control lock of the CPU; table[] stays closed and region[] is used
 *   MODEL    nothing else runs; the entry is read as the others do
 *
 * so that closing an entry and then waiting for sequences or passing through the slot lock
 * (us_fence) leaves the region to the holder of the control lock. The control lock belongs to the
 * CPU of the machine, not to the cache.
 *
 * Statistics never stop a fast path. The header of a ring carries pops and size; what slow paths
 * move is counted before it is added and after it is taken away, and readers load in the order
 * drained, header, installed. So what a racing reader computes is at most the truth, and `shown`
 * keeps it from going back. */
#include "machine/local.h"

#include <assert.h>

#include "machine/backend.h"
#ifndef US_MODEL
#include "machine/native/slot.h"
#endif
#ifdef US_HAVE_RSEQ
#include "machine/native/rseq.h"
#endif

/* ---- life -------------------------------------------------------------------------------------
 */

static void *closed_region(const struct us_local *l)
{
    /* Nobody writes to a region with neither room nor content. */
    switch (l->kind) {
    case US_REGION_RING:
        return (void *)(uintptr_t)&us_closed_ring;
    case US_REGION_SHEAVES:
        return (void *)(uintptr_t)&us_closed_sheaves;
    default:
        return (void *)(uintptr_t)&us_closed_words;
    }
}

static void *entry(const struct us_local *l, unsigned cpu)
{
    return __atomic_load_n(&l->table[cpu], __ATOMIC_ACQUIRE);
}

static void set_entry(struct us_local *l, unsigned cpu, void *region)
{
    __atomic_store_n(&l->table[cpu], region, __ATOMIC_RELEASE);
}

static void *region_of(const struct us_local *l, unsigned cpu)
{
    return __atomic_load_n(&l->region[cpu], __ATOMIC_ACQUIRE);
}

static size_t table_bytes(const struct us_machine *m)
{
    return (m->table_cpus + 2) * sizeof(void *);
}

bool us_local_init(struct us_local *l, struct us_machine *machine, enum us_mode mode,
                   enum us_region_kind kind, ptrdiff_t link, const struct us_local_memory *memory)
{
    void **block;

    *l = (struct us_local){.machine = machine, .mode = mode, .kind = kind, .link = link};
    block = memory->alloc(memory->context, table_bytes(machine));
    l->region = memory->alloc(memory->context, machine->ncpus * sizeof *l->region);
    l->moves = memory->alloc(memory->context, machine->ncpus * sizeof *l->moves);
    l->table = block == NULL ? NULL : block + 2;
    if (block == NULL || l->region == NULL || l->moves == NULL) {
        us_local_fini(l, memory);
        return false;
    }
    for (unsigned i = 0; i < machine->table_cpus + 2; i++)
        block[i] = closed_region(l);
    return true;
}

void us_local_fini(struct us_local *l, const struct us_local_memory *memory)
{
    const struct us_machine *m = l->machine;

    if (l->table != NULL)
        memory->free(memory->context, l->table - 2, table_bytes(m));
    if (l->region != NULL)
        memory->free(memory->context, l->region, m->ncpus * sizeof *l->region);
    if (l->moves != NULL)
        memory->free(memory->context, l->moves, m->ncpus * sizeof *l->moves);
    l->table = NULL;
    l->region = NULL;
    l->moves = NULL;
}

/* ---- control ----------------------------------------------------------------------------------
 */

static bool all_closed(const struct us_local *l)
{
    return atomic_load_explicit(&((struct us_local *)l)->all_closed, memory_order_relaxed);
}

static void reopen(struct us_local *l, unsigned cpu)
{
    void *region = region_of(l, cpu);

    if (l->mode != US_MODE_CONTROL && !all_closed(l) && region != NULL &&
        us_cpu_online(l->machine, cpu))
        set_entry(l, cpu, region);
}

bool us_local_close(struct us_local *l, struct us_flight *f, unsigned cpu, bool try_only,
                    void **region)
{
    struct us_lock *control = &l->machine->cpu[cpu].control;

    assert(cpu < l->machine->ncpus);
    if (!(try_only ? us_lock_try(f, control) : us_lock_take(f, control)))
        return false;
    if (entry(l, cpu) != closed_region(l)) {
        set_entry(l, cpu, closed_region(l));
        if (!us_fence(l->machine, f, l->mode, cpu)) {
            reopen(l, cpu);
            us_lock_drop(f, control);
            return false;
        }
    }
    *region = region_of(l, cpu);
    return true;
}

void us_local_open(struct us_local *l, struct us_flight *f, unsigned cpu)
{
    reopen(l, cpu);
    us_lock_drop(f, &l->machine->cpu[cpu].control);
}

bool us_local_populate(struct us_local *l, struct us_flight *f, unsigned cpu, void *region)
{
    struct us_lock *control = &l->machine->cpu[cpu].control;
    bool first;

    if (!us_lock_try(f, control))
        return false;
    first = region_of(l, cpu) == NULL;
    if (first) {
        __atomic_store_n(&l->region[cpu], region, __ATOMIC_RELEASE);
        reopen(l, cpu);
    }
    us_lock_drop(f, control);
    return first;
}

static uint64_t fold(struct us_local *l, unsigned cpu, uint64_t *header);

void *us_local_replace(struct us_local *l, unsigned cpu, void *region)
{
    struct us_ring *old = us_local_ring(l, cpu), *ring = region;

    if (l->kind == US_REGION_RING) {
        uint64_t pops = fold(l, cpu, NULL);

        if (ring != NULL)
            atomic_store_explicit(
                &ring->header,
                us_header_make(pops, us_header_head(us_ring_header(ring)), us_ring_size(ring)),
                memory_order_relaxed);
    }
    __atomic_store_n(&l->region[cpu], region, __ATOMIC_RELEASE);
    return old;
}

static void add(_Atomic uint64_t *count, uint64_t n)
{
    atomic_fetch_add_explicit(count, n, memory_order_release);
}

void us_local_moved(struct us_local *l, unsigned cpu, unsigned added, unsigned taken)
{
    add(&l->moves[cpu].installed, added);
    add(&l->moves[cpu].drained, taken);
}

void us_local_close_all(struct us_local *const *locals, size_t n, struct us_machine *machine)
{
    bool mode_used[US_MODE_MODEL + 1] = {false};

    for (size_t i = 0; i < n; i++) {
        struct us_local *l = locals[i];

        atomic_store_explicit(&l->all_closed, true, memory_order_relaxed);
        mode_used[l->mode] = true;
        for (unsigned cpu = 0; cpu < machine->ncpus; cpu++)
            set_entry(l, cpu, closed_region(l));
    }
    for (unsigned mode = 0; mode <= US_MODE_MODEL; mode++)
        if (mode_used[mode])
            us_fence_all(machine, (enum us_mode)mode);
}

void us_local_open_all(struct us_local *const *locals, size_t n, struct us_machine *machine)
{
    for (size_t i = 0; i < n; i++) {
        atomic_store_explicit(&locals[i]->all_closed, false, memory_order_relaxed);
        for (unsigned cpu = 0; cpu < machine->ncpus; cpu++)
            reopen(locals[i], cpu);
    }
}

/* ---- operations in plain C --------------------------------------------------------------------
 */

/* A region that the caller has to itself. */
struct hold {
    void *region;
    unsigned cpu;
};

/* CONTROL: only slow paths work on such a region, so a call outside of a flight finds nothing. */
static bool hold_control(struct us_local *l, struct us_flight *f, struct hold *h)
{
    h->cpu = us_cpu_now(l->machine);
    if (f == NULL && us_flight_current() == NULL)
        return false;
    if (region_of(l, h->cpu) == NULL || !us_lock_take(f, &l->machine->cpu[h->cpu].control))
        return false;
    h->region = region_of(l, h->cpu);
    if (us_cpu_online(l->machine, h->cpu))
        return true;
    us_lock_drop(f, &l->machine->cpu[h->cpu].control);
    return false;
}

static bool hold(struct us_local *l, struct us_flight *f, struct hold *h)
{
    if (l->mode == US_MODE_CONTROL)
        return hold_control(l, f, h);
#ifdef US_MODEL
    h->cpu = us_cpu_now(l->machine);
#else
    if (!us_slot_enter(l->machine, &h->cpu))
        return false;
#endif
    h->region = entry(l, h->cpu);
    return true;
}

static void let_go(struct us_local *l, struct us_flight *f, const struct hold *h)
{
    if (l->mode == US_MODE_CONTROL)
        us_lock_drop(f, &l->machine->cpu[h->cpu].control);
#ifndef US_MODEL
    else
        us_slot_leave(l->machine, h->cpu);
#endif
}

/* Before n pops that may carry the count beyond its width. */
static void fold_before(struct us_local *l, const struct hold *h, unsigned n)
{
    if (us_header_pops(us_ring_header(h->region)) + n >= US_POPS_WRAP)
        fold(l, h->cpu, NULL);
}

static enum us_local_result result(bool done)
{
    return done ? US_LOCAL_OK : US_LOCAL_MISS;
}

#ifdef US_HAVE_RSEQ
#define IN_SEQUENCE(l, call)           \
    do {                               \
        if ((l)->mode == US_MODE_RSEQ) \
            return call;               \
    } while (0)
#else
#define IN_SEQUENCE(l, call) ((void)0)
#endif

enum us_local_result us_local_pop(struct us_local *l, struct us_flight *f, void **out,
                                  unsigned *cpu)
{
    struct hold h;
    bool done;

    IN_SEQUENCE(l, us_rseq_pop(l, out, cpu));
    done = hold(l, f, &h);
    *cpu = h.cpu;
    if (!done)
        return US_LOCAL_MISS;
    fold_before(l, &h, 1);
    done = us_ring_pop_c(h.region, out);
    let_go(l, f, &h);
    return result(done);
}

enum us_local_result us_local_push(struct us_local *l, struct us_flight *f, void *object,
                                   unsigned *cpu)
{
    struct hold h;
    bool done;

    IN_SEQUENCE(l, us_rseq_push(l, object, cpu));
    done = hold(l, f, &h);
    *cpu = h.cpu;
    if (!done)
        return US_LOCAL_MISS;
    done = us_ring_push_c(h.region, object);
    let_go(l, f, &h);
    return result(done);
}

unsigned us_local_pop_batch(struct us_local *l, void **out, unsigned n)
{
    struct hold h;

    IN_SEQUENCE(l, us_rseq_pop_batch(l, out, n));
    if (!hold(l, NULL, &h))
        return 0;
    fold_before(l, &h, n);
    n = us_ring_pop_batch_c(h.region, out, n);
    let_go(l, NULL, &h);
    return n;
}

/* Pushes are additions of what there is room for, first objects first. */
static unsigned push_batch(struct us_ring *r, void *const *in, unsigned n, uint64_t base)
{
    uint32_t size = us_ring_size(r), room = size < r->capacity ? r->capacity - size : 0;

    if (r->base != base)
        return 0;
    return us_ring_add_c(r, in, n < room ? n : room, US_SEEN_KEEP);
}

unsigned us_local_push_batch(struct us_local *l, void *const *in, unsigned n, uint64_t base)
{
    struct hold h;

    IN_SEQUENCE(l, us_rseq_push_batch(l, in, n, base));
    if (!hold(l, NULL, &h))
        return 0;
    n = push_batch(h.region, in, n, base);
    let_go(l, NULL, &h);
    return n;
}

unsigned us_local_take_oldest(struct us_local *l, struct us_flight *f, void **out, unsigned n,
                              enum us_seen seen, unsigned *cpu)
{
    struct hold h;
    bool held;

    IN_SEQUENCE(l, us_rseq_take_oldest(l, out, n, seen, cpu));
    held = hold(l, f, &h);
    *cpu = h.cpu;
    if (!held)
        return 0;
    n = us_ring_take_oldest_c(h.region, out, n, seen);
    add(&l->moves[h.cpu].drained, n);
    let_go(l, f, &h);
    return n;
}

void us_local_touch(struct us_local *l, struct us_flight *f, uint64_t base)
{
    struct us_ring *r;
    struct hold h;

    IN_SEQUENCE(l, us_rseq_touch(l, base));
    if (!hold(l, f, &h))
        return;
    r = h.region;
    if (r->base == base)
        atomic_store_explicit(&r->seen, US_SEEN_TOUCHED, memory_order_relaxed);
    let_go(l, f, &h);
}

unsigned us_local_add(struct us_local *l, struct us_flight *f, void **in, unsigned n, uint64_t base,
                      enum us_seen seen, unsigned *cpu)
{
    struct us_ring *r;
    struct hold h;
    unsigned added = 0;
    bool held;

    IN_SEQUENCE(l, us_rseq_add(l, in, n, base, seen, cpu));
    held = hold(l, f, &h);
    *cpu = h.cpu;
    if (!held)
        return 0;
    r = h.region;
    if (r->base == base) {
        add(&l->moves[h.cpu].installed, n);
        added = us_ring_add_c(r, in, n, seen);
        atomic_fetch_sub_explicit(&l->moves[h.cpu].installed, n - added, memory_order_release);
    }
    let_go(l, f, &h);
    return added;
}

/* ---- lists ------------------------------------------------------------------------------------
 */

struct us_list *us_local_detach(struct us_local *l, struct us_flight *f, unsigned w, unsigned *cpu)
{
    struct us_list *list;
    struct hold h;
    bool held;

    IN_SEQUENCE(l, us_rseq_detach(l, w, cpu));
    held = hold(l, f, &h);
    *cpu = h.cpu;
    if (!held)
        return NULL;
    list = us_words_detach_c(h.region, w);
    let_go(l, f, &h);
    return list;
}

enum us_local_result us_local_install(struct us_local *l, struct us_flight *f, unsigned w,
                                      unsigned cpu, struct us_list *list)
{
    struct hold h;
    bool done;

    IN_SEQUENCE(l, us_rseq_install(l, w, cpu, list));
    if (!hold(l, f, &h))
        return US_LOCAL_MISS;
    done = h.cpu == cpu &&
           (l->counted ? us_words_install_counted_c(h.region, w, (struct us_counted *)list)
                       : us_words_install_c(h.region, w, list));
    let_go(l, f, &h);
    return result(done);
}

struct us_list *us_local_word(const struct us_local *l, unsigned cpu, unsigned w)
{
    struct us_words *r = region_of(l, cpu);
    struct us_list *list;

    if (r == NULL)
        return NULL;
    list = __atomic_load_n(&r->word[w], __ATOMIC_ACQUIRE);
    return list == &us_closed_list ? NULL : list;
}

enum us_local_result us_local_list_pop(struct us_local *l, struct us_flight *f, unsigned w,
                                       void **out, unsigned *cpu)
{
    struct us_words *r;
    struct hold h;
    bool done;

    IN_SEQUENCE(l, us_rseq_list_pop(l, w, out, cpu));
    done = hold(l, f, &h);
    *cpu = h.cpu;
    if (!done)
        return US_LOCAL_MISS;
    r = h.region;
    done = us_list_pop_c(r->word[w], l->link, out);
    let_go(l, f, &h);
    return result(done);
}

enum us_local_result us_local_list_push(struct us_local *l, struct us_flight *f, unsigned w,
                                        struct us_list *owner, void *object, unsigned *cpu)
{
    struct us_words *r;
    struct hold h;
    bool done;

    IN_SEQUENCE(l, us_rseq_list_push(l, w, owner, object, cpu));
    done = hold(l, f, &h);
    *cpu = h.cpu;
    if (!done)
        return US_LOCAL_MISS;
    r = h.region;
    done = r->word[w] == owner;
    if (done)
        us_list_push_c(owner, l->link, object);
    let_go(l, f, &h);
    return result(done);
}

enum us_local_result us_local_counted_pop(struct us_local *l, struct us_flight *f, unsigned w,
                                          void **out, unsigned *cpu)
{
    struct hold h;
    bool done;

    IN_SEQUENCE(l, us_rseq_counted_pop(l, w, out, cpu));
    done = hold(l, f, &h);
    *cpu = h.cpu;
    if (!done)
        return US_LOCAL_MISS;
    done = us_counted_pop_c(h.region, w, l->link, out);
    let_go(l, f, &h);
    return result(done);
}

enum us_local_result us_local_counted_push(struct us_local *l, struct us_flight *f, unsigned w,
                                           void *object, unsigned *cpu)
{
    struct hold h;
    bool done;

    IN_SEQUENCE(l, us_rseq_counted_push(l, w, object, cpu));
    done = hold(l, f, &h);
    *cpu = h.cpu;
    if (!done)
        return US_LOCAL_MISS;
    done = us_counted_push_c(h.region, w, l->link, object);
    let_go(l, f, &h);
    return result(done);
}

/* ---- sheaves ------------------------------------------------------------------------------------
 */

enum us_local_result us_local_main_pop(struct us_local *l, struct us_flight *f, void **out)
{
    struct hold h;
    bool done;

    IN_SEQUENCE(l, us_rseq_main_pop(l, out));
    if (!hold(l, f, &h))
        return US_LOCAL_MISS;
    done = us_main_pop_c(h.region, out);
    let_go(l, f, &h);
    return result(done);
}

enum us_local_result us_local_main_push(struct us_local *l, struct us_flight *f, void *object)
{
    struct hold h;
    bool done;

    IN_SEQUENCE(l, us_rseq_main_push(l, object));
    if (!hold(l, f, &h))
        return US_LOCAL_MISS;
    done = us_main_push_c(h.region, object);
    let_go(l, f, &h);
    return result(done);
}

unsigned us_local_main_take(struct us_local *l, void **out, unsigned n)
{
    struct hold h;

    IN_SEQUENCE(l, us_rseq_main_take(l, out, n));
    if (!hold(l, NULL, &h))
        return 0;
    n = us_main_take_c(h.region, out, n);
    let_go(l, NULL, &h);
    return n;
}

unsigned us_local_main_put(struct us_local *l, void *const *in, unsigned n, uint64_t base)
{
    struct hold h;

    IN_SEQUENCE(l, us_rseq_main_put(l, in, n, base));
    if (!hold(l, NULL, &h))
        return 0;
    n = us_main_put_c(h.region, in, n, base);
    let_go(l, NULL, &h);
    return n;
}

static bool swap(struct us_local *l, struct us_flight *f, unsigned w, unsigned cpu,
                 struct us_sheaf *from, struct us_sheaf *to)
{
    struct hold h;
    bool done;

    IN_SEQUENCE(l, us_rseq_swap(l, w, cpu, from, to));
    if (!hold(l, f, &h))
        return false;
    done = h.cpu == cpu && us_sheaves_swap_c(h.region, w, from, to);
    let_go(l, f, &h);
    return done;
}

/* A sheaf's pops begin at 0 when it becomes a CPU's, and are read off it when it no longer is. */
static void begin_sheaf(struct us_sheaf *s)
{
    if (s != NULL)
        __atomic_store_n(&s->installed, us_sheaf_size(s), __ATOMIC_RELAXED);
}

static void end_sheaf(struct us_local *l, unsigned cpu, struct us_sheaf *s)
{
    uint64_t h, pops;

    if (s == NULL)
        return;
    h = us_sheaf_header(s);
    pops = us_header_pops(h);
    us_local_harvest(l, cpu, pops, us_header_size(h) + pops - s->installed);
    us_sheaf_set(s, us_header_size(h));
}

bool us_local_swap(struct us_local *l, struct us_flight *f, unsigned w, unsigned cpu,
                   struct us_sheaf *from, struct us_sheaf *to)
{
    begin_sheaf(to);
    if (!swap(l, f, w, cpu, from, to))
        return false;
    end_sheaf(l, cpu, from);
    return true;
}

bool us_local_swap_closed(struct us_local *l, unsigned w, unsigned cpu, struct us_sheaf *from,
                          struct us_sheaf *to)
{
    begin_sheaf(to);
    if (!us_sheaves_swap_c(region_of(l, cpu), w, from, to))
        return false;
    end_sheaf(l, cpu, from);
    return true;
}

struct us_sheaf *us_local_sheaf(const struct us_local *l, unsigned cpu, unsigned w)
{
    struct us_words *r = region_of(l, cpu);
    struct us_sheaf *s;

    if (r == NULL)
        return NULL;
    s = __atomic_load_n(&r->sheaf[w], __ATOMIC_ACQUIRE);
    return s == &us_closed_sheaf ? NULL : s;
}

/* ---- statistics -------------------------------------------------------------------------------
 */

/* Extends the header's pops beyond their width, from the last look on. Who lets the count wrap
 * looks first, so no look is more than one wrap behind. `header` gets what was seen. */
static uint64_t fold(struct us_local *l, unsigned cpu, uint64_t *header)
{
    const struct us_ring *r = us_local_ring(l, cpu);
    _Atomic uint64_t *known = &l->moves[cpu].pops;
    uint64_t before = atomic_load_explicit(known, memory_order_acquire), total, h;

    do {
        h = r == NULL ? us_header_make(before, 0, 0)
                      : atomic_load_explicit(&((struct us_ring *)(uintptr_t)r)->header,
                                             memory_order_acquire);
        total = before + ((us_header_pops(h) - before) & (US_POPS_WRAP - 1));
    } while (!atomic_compare_exchange_weak_explicit(known, &before, total, memory_order_acq_rel,
                                                    memory_order_acquire));
    if (header != NULL)
        *header = h;
    return total;
}

void us_local_fold(struct us_local *l, unsigned cpu)
{
    fold(l, cpu, NULL);
}

void us_local_harvest(struct us_local *l, unsigned cpu, uint64_t pops, uint64_t pushes)
{
    add(&l->moves[cpu].told_pushes, pushes);
    add(&l->moves[cpu].told_pops, pops);
}

static uint64_t look(const _Atomic uint64_t *count)
{
    return atomic_load_explicit(count, memory_order_acquire);
}

static void ring_counts(struct us_local *l, unsigned cpu, uint64_t *pops, uint64_t *pushes)
{
    struct us_moves *m = &l->moves[cpu];
    uint64_t drained = look(&m->drained), header, installed;

    *pops = fold(l, cpu, &header);
    installed = look(&m->installed);
    *pushes = us_header_size(header) + *pops + drained - installed;
    if ((int64_t)*pushes < 0) /* an addition is counted, and not yet there */
        *pushes = 0;
    *pops += look(&m->told_pops);
    *pushes += look(&m->told_pushes);
}

/* What a live counted list adds: its header tells all at once. False when it was detached and
 * installed meanwhile, or may have been. */
static bool live_counted(const struct us_words *r, unsigned w, const struct us_list *list,
                         uint64_t *pops, uint64_t *pushes)
{
    const uint32_t installed = __atomic_load_n(&r->installed[w], __ATOMIC_ACQUIRE);
    const uint64_t *header = &((const struct us_counted *)list)->header;
    const uint64_t h = __atomic_load_n(header, __ATOMIC_ACQUIRE);

    *pops += us_counted_pops(h);
    if (us_counted_size(h) + us_counted_pops(h) > installed)
        *pushes += us_counted_size(h) + us_counted_pops(h) - installed;
    return __atomic_load_n(header, __ATOMIC_ACQUIRE) == h &&
           __atomic_load_n(&r->word[w], __ATOMIC_ACQUIRE) == list &&
           __atomic_load_n(&r->installed[w], __ATOMIC_ACQUIRE) == installed;
}

/* What a CPU's sheaf adds. False when it may no longer be the CPU's. */
static bool sheaf_counts(const struct us_words *r, unsigned w, uint64_t *pops, uint64_t *pushes)
{
    struct us_sheaf *s = __atomic_load_n(&r->sheaf[w], __ATOMIC_ACQUIRE);
    const uint32_t installed = __atomic_load_n(&s->installed, __ATOMIC_ACQUIRE);
    const uint64_t h = atomic_load_explicit(&s->header, memory_order_acquire);

    *pops += us_header_pops(h);
    if (us_header_size(h) + us_header_pops(h) > installed)
        *pushes += us_header_size(h) + us_header_pops(h) - installed;
    return __atomic_load_n(&s->installed, __ATOMIC_ACQUIRE) == installed &&
           __atomic_load_n(&r->sheaf[w], __ATOMIC_ACQUIRE) == s;
}

/* What a live descriptor adds. False when it changed meanwhile. */
static bool live_counts(const struct us_local *l, const struct us_words *r, unsigned w,
                        uint64_t *pops, uint64_t *pushes)
{
    struct us_list *list = __atomic_load_n(&r->word[w], __ATOMIC_ACQUIRE);
    uint64_t installed, count;
    uint32_t size;
    bool whole;
    void *head;

    if (l->kind == US_REGION_SHEAVES)
        return sheaf_counts(r, w, pops, pushes);
    if (list == &us_closed_list)
        return true;
    if (l->counted)
        return live_counted(r, w, list, pops, pushes);
    installed = __atomic_load_n(&r->installed[w], __ATOMIC_ACQUIRE);
    count = __atomic_load_n(&list->count, __ATOMIC_ACQUIRE);
    head = __atomic_load_n(&list->head, __ATOMIC_ACQUIRE);
    whole = l->length(l, list, &size);
    *pops += us_list_pops(count);
    if (whole && size + us_list_pops(count) > installed)
        *pushes += size + us_list_pops(count) - installed;
    return __atomic_load_n(&list->count, __ATOMIC_ACQUIRE) == count &&
           __atomic_load_n(&list->head, __ATOMIC_ACQUIRE) == head &&
           __atomic_load_n(&r->word[w], __ATOMIC_ACQUIRE) == list;
}

/* What keeps a CPU's lists as they are for a reader. */
enum still {
    MOVES,        /* nothing: others may be at work by plain code */
    STILL,        /* nobody else is there, or it does not matter */
    CONTROL_HELD, /* a lock that the reader took */
    SLOT_HELD,
};

/* The reader is who stopped everything. */
static bool stopped_by_caller(const struct us_local *l)
{
    const struct us_flight *f = us_flight_current();

    return all_closed(l) && f != NULL && f->gate && f->machine == l->machine;
}

/* Links are followed while nobody changes them, where a lock is what keeps others off; sequences
 * cannot be kept off, so there the reader looks again afterwards. Nothing is waited for: the holder
 * may be what a signal handler interrupted. */
static enum still keep_still(const struct us_local *l, unsigned cpu)
{
    if (l->kind == US_REGION_SHEAVES || stopped_by_caller(l))
        return STILL; /* a sheaf's header tells all at once */
    if (l->mode == US_MODE_CONTROL)
        return us_lock_try(NULL, &l->machine->cpu[cpu].control) ? CONTROL_HELD : MOVES;
#ifndef US_MODEL
    if (l->mode == US_MODE_SLOT) {
        if (!us_slot_try(l->machine, cpu))
            return MOVES;
        if (entry(l, cpu) != closed_region(l))
            return SLOT_HELD;
        us_slot_leave(l->machine, cpu); /* closed: somebody works on it by plain code */
        return MOVES;
    }
#endif
    return STILL;
}

static void stir_again(const struct us_local *l, unsigned cpu, enum still how)
{
    if (how == CONTROL_HELD)
        us_lock_drop(NULL, &l->machine->cpu[cpu].control);
#ifndef US_MODEL
    if (how == SLOT_HELD)
        us_slot_leave(l->machine, cpu);
#endif
}

static void list_counts(struct us_local *l, unsigned cpu, uint64_t *pops, uint64_t *pushes)
{
    const struct us_words *r = region_of(l, cpu);
    struct us_moves *m = &l->moves[cpu];
    uint64_t harvested = look(&m->told_pops);

    for (unsigned tries = 0; r != NULL && tries < 1000; tries++) {
        const enum still how = keep_still(l, cpu);
        bool same = true;

        if (how == MOVES)
            continue;
        harvested = look(&m->told_pops);
        *pops = harvested;
        *pushes = look(&m->told_pushes);
        for (unsigned w = 0; w < US_NWORDS; w++)
            same = live_counts(l, r, w, pops, pushes) && same;
        stir_again(l, cpu, how);
        if (same && look(&m->told_pops) == harvested)
            return;
    }
    *pops = harvested; /* not populated, or too busy to be looked at: what is certain */
    *pushes = look(&m->told_pushes);
}

static void show(_Atomic uint64_t *shown, uint64_t *value)
{
    uint64_t before = atomic_load_explicit(shown, memory_order_relaxed);

    if (*value < before)
        *value = before;
    else
        atomic_store_explicit(shown, *value, memory_order_relaxed);
}

void us_local_counts(struct us_local *l, unsigned cpu, uint64_t *pops, uint64_t *pushes)
{
    if (l->kind == US_REGION_RING)
        ring_counts(l, cpu, pops, pushes);
    else
        list_counts(l, cpu, pops, pushes);
    show(&l->moves[cpu].shown_pops, pops);
    show(&l->moves[cpu].shown_pushes, pushes);
}
