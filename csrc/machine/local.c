/* local.c - regions of a cache: life, control, the slow forms of operations.
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
 * CPU of the machine, not to the cache. */
#include "machine/local_internal.h"

#include <assert.h>

#include "machine/backend.h"
#ifndef US_MODEL
#include "machine/native/slot.h"
#endif
#ifdef US_HAVE_RSEQ
#include "machine/native/rseq.h"
#endif

/* What one operation runs in its sequence and around it, counted in native/rseq_slow.c's compiled
 * form; of a batch's objects region.c knows. */
enum {
    RUNS_CLOSE = 60,
    RUNS_OPEN = 30,
    RUNS_SINGLE = 80,
    RUNS_WORD = 55,
    RUNS_SWAP = 75,
    RUNS_BATCH = 110, /* beside region.c's */
};

/* ---- life -------------------------------------------------------------------------------------
 */

static void set_entry(struct us_local *l, unsigned cpu, void *region)
{
    us_writes(&l->table[cpu], sizeof(*l->table));
    __atomic_store_n(&l->table[cpu], region, __ATOMIC_RELEASE);
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
        block[i] = us_local_closed_region(l);
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

static void reopen(struct us_local *l, unsigned cpu)
{
    void *region = us_local_region_of(l, cpu);

    if (l->mode != US_MODE_CONTROL && !us_local_all_closed(l) && region != NULL &&
        us_cpu_online(l->machine, cpu))
        set_entry(l, cpu, region);
}

static bool in_round(const struct us_flight *f, unsigned cpu)
{
    return f != NULL && f->round == cpu + 1;
}

bool us_local_close(struct us_local *l, struct us_flight *f, unsigned cpu, bool try_only,
                    void **region)
{
    struct us_lock *control = &l->machine->cpu[cpu].control;

    assert(cpu < l->machine->ncpus);
    us_runs(RUNS_CLOSE);
    us_reads(&l->table[cpu], sizeof(*l->table));
    us_reads(&l->region[cpu], sizeof(*l->region));
    if (!in_round(f, cpu) && !(try_only ? us_lock_try(f, control) : us_lock_take(f, control)))
        return false;
    if (us_local_entry(l, cpu) != us_local_closed_region(l)) {
        set_entry(l, cpu, us_local_closed_region(l));
        if (!us_fence(l->machine, f, l->mode, cpu)) {
            us_local_open(l, f, cpu);
            return false;
        }
    }
    *region = us_local_region_of(l, cpu);
    return true;
}

void us_local_open(struct us_local *l, struct us_flight *f, unsigned cpu)
{
    us_runs(RUNS_OPEN);
    reopen(l, cpu);
    if (!in_round(f, cpu))
        us_lock_drop(f, &l->machine->cpu[cpu].control);
}

bool us_round_begin(struct us_machine *machine, struct us_flight *f, unsigned cpu)
{
    assert(f->round == 0);
    if (f->nested || !us_lock_take(f, &machine->cpu[cpu].control))
        return false;
    f->round = cpu + 1;
    return true;
}

void us_round_join(struct us_local *l, struct us_flight *f)
{
    const unsigned cpu = f->round - 1;

    us_runs(RUNS_WORD);
    us_reads(&l->table[cpu], sizeof(*l->table));
    if (us_local_entry(l, cpu) == us_local_closed_region(l))
        return;
    set_entry(l, cpu, us_local_closed_region(l));
    f->round_modes |= 1u << l->mode;
}

/* Only a nested flight's fence fails. */
void us_round_fence(struct us_flight *f)
{
    for (unsigned mode = 0; mode <= US_MODE_MODEL; mode++)
        if (f->round_modes & 1u << mode)
            (void)us_fence(f->machine, f, (enum us_mode)mode, f->round - 1);
    f->round_modes = 0;
}

void us_round_leave(struct us_local *l, struct us_flight *f)
{
    const unsigned cpu = f->round - 1;

    us_runs(RUNS_WORD);
    us_reads(&l->table[cpu], sizeof(*l->table));
    if (us_local_entry(l, cpu) == us_local_closed_region(l))
        reopen(l, cpu);
}

void us_round_end(struct us_flight *f)
{
    const unsigned cpu = f->round - 1;

    f->round = 0;
    us_lock_drop(f, &f->machine->cpu[cpu].control);
}

bool us_local_populate(struct us_local *l, struct us_flight *f, unsigned cpu, void *region)
{
    struct us_lock *control = &l->machine->cpu[cpu].control;
    bool first;

    if (!us_lock_try(f, control))
        return false;
    first = us_local_region_of(l, cpu) == NULL;
    if (first) {
        us_writes(&l->region[cpu], sizeof(*l->region));
        __atomic_store_n(&l->region[cpu], region, __ATOMIC_RELEASE);
        reopen(l, cpu);
    }
    us_lock_drop(f, control);
    return first;
}

void *us_local_replace(struct us_local *l, unsigned cpu, void *region)
{
    struct us_ring *old = us_local_ring(l, cpu), *ring = region;

    if (l->kind == US_REGION_RING) {
        uint64_t pops = us_local_extend(l, cpu, NULL);

        if (ring != NULL)
            atomic_store_explicit(
                &ring->header,
                us_header_make(pops, us_header_head(us_ring_header(ring)), us_ring_size(ring)),
                memory_order_relaxed);
    }
    __atomic_store_n(&l->region[cpu], region, __ATOMIC_RELEASE);
    return old;
}

void us_local_moved(struct us_local *l, unsigned cpu, unsigned added, unsigned taken)
{
    us_moved(&l->moves[cpu].installed, added);
    us_moved(&l->moves[cpu].drained, taken);
}

void us_local_close_all(struct us_local *const *locals, size_t n, struct us_machine *machine)
{
    bool mode_used[US_MODE_MODEL + 1] = {false};

    for (size_t i = 0; i < n; i++) {
        struct us_local *l = locals[i];

        atomic_store_explicit(&l->all_closed, true, memory_order_relaxed);
        mode_used[l->mode] = true;
        for (unsigned cpu = 0; cpu < machine->ncpus; cpu++)
            set_entry(l, cpu, us_local_closed_region(l));
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
    us_reads(&l->region[h->cpu], sizeof(*l->region));
    if (f == NULL && us_flight_current() == NULL)
        return false;
    if (us_local_region_of(l, h->cpu) == NULL || !us_lock_take(f, &l->machine->cpu[h->cpu].control))
        return false;
    h->region = us_local_region_of(l, h->cpu);
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
    us_reads(l, 1);
    us_reads(&l->table[h->cpu], sizeof(*l->table));
#else
    if (!us_slot_enter(l->machine, &h->cpu))
        return false;
#endif
    h->region = us_local_entry(l, h->cpu);
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
        us_local_extend(l, h->cpu, NULL);
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
    us_runs(RUNS_SINGLE);
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
    us_runs(RUNS_SINGLE);
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
    us_runs(RUNS_BATCH);
    held = hold(l, f, &h);
    *cpu = h.cpu;
    if (!held)
        return 0;
    n = us_ring_take_oldest_c(h.region, out, n, seen);
    us_moved(&l->moves[h.cpu].drained, n);
    let_go(l, f, &h);
    return n;
}

void us_local_touch(struct us_local *l, struct us_flight *f, uint64_t base)
{
    struct us_ring *r;
    struct hold h;

    IN_SEQUENCE(l, us_rseq_touch(l, base));
    us_runs(RUNS_WORD);
    if (!hold(l, f, &h))
        return;
    r = h.region;
    if (r->base == base) {
        us_writes(r, 1);
        atomic_store_explicit(&r->seen, US_SEEN_TOUCHED, memory_order_relaxed);
    } else {
        us_reads(r, 1);
    }
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
    us_runs(RUNS_BATCH);
    held = hold(l, f, &h);
    *cpu = h.cpu;
    if (!held)
        return 0;
    r = h.region;
    if (r->base == base) {
        us_moved(&l->moves[h.cpu].installed, n);
        added = us_ring_add_c(r, in, n, seen);
        us_updates(&l->moves[h.cpu], sizeof(*l->moves));
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
    us_runs(RUNS_WORD);
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
    us_runs(RUNS_WORD);
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
    struct us_words *r = us_local_region_of(l, cpu);
    struct us_list *list;

    us_reads(&l->region[cpu], sizeof(*l->region));
    if (r == NULL)
        return NULL;
    us_reads(r, sizeof(*r));
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
    us_runs(RUNS_SINGLE);
    done = hold(l, f, &h);
    *cpu = h.cpu;
    if (!done)
        return US_LOCAL_MISS;
    r = h.region;
    us_reads(r, sizeof(*r));
    us_reads(&l->link, sizeof(l->link));
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
    us_runs(RUNS_SINGLE);
    done = hold(l, f, &h);
    *cpu = h.cpu;
    if (!done)
        return US_LOCAL_MISS;
    r = h.region;
    us_reads(r, sizeof(*r));
    done = r->word[w] == owner;
    us_reads(&l->link, sizeof(l->link));
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
    us_runs(RUNS_SINGLE);
    done = hold(l, f, &h);
    *cpu = h.cpu;
    if (!done)
        return US_LOCAL_MISS;
    us_reads(&l->link, sizeof(l->link));
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
    us_runs(RUNS_SINGLE);
    done = hold(l, f, &h);
    *cpu = h.cpu;
    if (!done)
        return US_LOCAL_MISS;
    us_reads(&l->link, sizeof(l->link));
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
    us_runs(RUNS_SINGLE);
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
    us_runs(RUNS_SINGLE);
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
    us_runs(RUNS_SWAP);
    if (!hold(l, f, &h))
        return false;
    done = h.cpu == cpu && us_sheaves_swap_c(h.region, w, from, to);
    let_go(l, f, &h);
    return done;
}

/* A sheaf's pops begin at 0 when it becomes a CPU's, and are read off it when it no longer is. */
static void begin_sheaf(struct us_sheaf *s)
{
    if (s == NULL)
        return;
    us_sheaf_set(s, us_sheaf_size(s)); /* declares what follows */
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
    if (!us_sheaves_swap_c(us_local_region_of(l, cpu), w, from, to))
        return false;
    end_sheaf(l, cpu, from);
    return true;
}

struct us_sheaf *us_local_sheaf(const struct us_local *l, unsigned cpu, unsigned w)
{
    struct us_words *r = us_local_region_of(l, cpu);
    struct us_sheaf *s;

    us_reads(&l->region[cpu], sizeof(*l->region));
    if (r == NULL)
        return NULL;
    us_reads(r, sizeof(*r));
    s = __atomic_load_n(&r->sheaf[w], __ATOMIC_ACQUIRE);
    return s == &us_closed_sheaf ? NULL : s;
}
