/* slot.h - the fallback: one try-lock a CPU, chosen by the CPU the thread was on. A thread that
 * migrates keeps its slot, so the lock is what excludes others, not the CPU. Nobody waits for one.
 */
#ifndef US_SLOT_H
#define US_SLOT_H

#include "machine/backend.h"
#include "machine/region.h"

struct us_local;

/* Holding a slot marks the thread, so that a signal handler's slow path waits for nothing. */
US_INLINE bool us_slot_try(const struct us_machine *m, unsigned cpu)
{
    struct us_thread *t = us_thread();

    t->slots++;
    atomic_signal_fence(memory_order_seq_cst);
    if (atomic_exchange_explicit(&m->cpu[cpu].slot, 1, memory_order_acquire) == 0)
        return true;
    atomic_signal_fence(memory_order_seq_cst);
    t->slots--;
    return false;
}

US_INLINE bool us_slot_enter(const struct us_machine *m, unsigned *cpu)
{
    *cpu = us_cpu_now(m);
    return us_slot_try(m, *cpu);
}

US_INLINE void us_slot_leave(const struct us_machine *m, unsigned cpu)
{
    atomic_store_explicit(&m->cpu[cpu].slot, 0, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst);
    us_thread()->slots--;
}

/* The fast operations: false = empty, full, foreign, closed, busy, or the pop count would wrap. */
bool us_slot_pop(struct us_local *l, void **out);
bool us_slot_push(struct us_local *l, void *object);
bool us_slot_main_pop(struct us_local *l, void **out);
bool us_slot_main_push(struct us_local *l, void *object);
bool us_slot_list_pop(struct us_local *l, unsigned w, ptrdiff_t link, void **out);
bool us_slot_list_push(struct us_local *l, unsigned w, ptrdiff_t link, struct us_list *owner,
                       void *object);
bool us_slot_counted_pop(struct us_local *l, unsigned w, ptrdiff_t link, void **out);
bool us_slot_counted_push(struct us_local *l, unsigned w, ptrdiff_t link, void *object);

#endif
