/* local_counts.c - what a cache's regions say of their pops and pushes.
 *
 * Statistics never stop a fast path. The header of a ring carries pops and size; what slow paths
 * move is counted before it is added and after it is taken away, and readers load in the order
 * drained, header, installed. So what a racing reader computes is at most the truth, and `shown`
 * keeps it from going back. */
#include "machine/local_internal.h"

#include "machine/backend.h"
#ifndef US_MODEL
#include "machine/native/slot.h"
#endif

uint64_t us_local_extend(struct us_local *l, unsigned cpu, uint64_t *header)
{
    const struct us_ring *r = us_local_ring(l, cpu);
    _Atomic uint64_t *known = &l->moves[cpu].pops;
    uint64_t before = atomic_load_explicit(known, memory_order_acquire), total, h;

    do {
        h = r == NULL ? us_header_make(before, 0, 0)
                      : atomic_load_explicit(&((struct us_ring *)(uintptr_t)r)->header,
                                             memory_order_acquire);
        total = before + ((us_header_pops(h) - before) & (US_POPS_WRAP - 1));
        us_updates(known, sizeof(*known));
    } while (!atomic_compare_exchange_weak_explicit(known, &before, total, memory_order_acq_rel,
                                                    memory_order_acquire));
    if (header != NULL)
        *header = h;
    return total;
}

void us_local_harvest(struct us_local *l, unsigned cpu, uint64_t pops, uint64_t pushes)
{
    us_moved(&l->moves[cpu].told_pushes, pushes);
    us_moved(&l->moves[cpu].told_pops, pops);
}

static uint64_t look(const _Atomic uint64_t *count)
{
    return atomic_load_explicit(count, memory_order_acquire);
}

static void ring_counts(struct us_local *l, unsigned cpu, uint64_t *pops, uint64_t *pushes)
{
    struct us_moves *m = &l->moves[cpu];
    uint64_t drained = look(&m->drained), header, installed;

    *pops = us_local_extend(l, cpu, &header);
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

    return us_local_all_closed(l) && f != NULL && f->gate && f->machine == l->machine;
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
        if (us_local_entry(l, cpu) != us_local_closed_region(l))
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
    const struct us_words *r = us_local_region_of(l, cpu);
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
