/* backend.h - what the common half of machine/ and the two machines tell each other. Nobody else
 * includes it. */
#ifndef US_BACKEND_H
#define US_BACKEND_H

#include <stdarg.h>

#include "machine/flight.h"

/* What a thread is doing, for slow paths and the fallback only: no fast path of rseq looks here. */
struct us_thread {
    struct us_flight *flight; /* innermost */
    struct us_flight *frame;  /* counts for the flights that begin while there is none */
    unsigned gates;           /* flights among them that shut a gate */
    unsigned slots;           /* slot locks of the fallback held right now, and other marks */
#ifdef US_CHECK
    unsigned held[US_LOCK_NCLASSES]; /* locks held of each class */
#endif
};
struct us_thread *us_thread(void);

US_INLINE bool us_flight_nested(const struct us_flight *f)
{
    return f != NULL && f->nested;
}

/* The flight that a lock function works for. */
US_INLINE struct us_flight *us_flight_or_current(struct us_flight *f)
{
    return f != NULL ? f : us_flight_current();
}

/* Lock ranks; `ordered` = it may wait, so the order matters. */
#ifdef US_CHECK
void us_rank_take(enum us_lock_class klass, bool ordered);
void us_rank_drop(enum us_lock_class klass);
#else
US_INLINE void us_rank_take(enum us_lock_class klass, bool ordered)
{
    (void)klass;
    (void)ordered;
}
US_INLINE void us_rank_drop(enum us_lock_class klass)
{
    (void)klass;
}
#endif

/* Ends the process: a rule of this layer was broken, and going on would corrupt memory. */
_Noreturn void us_fatal(const char *format, ...) __attribute__((format(printf, 1, 2)));

#ifdef US_MODEL
struct us_thread *us_model_thread(void);            /* of the virtual CPU that runs */
uint64_t us_model_time(const struct us_machine *m); /* ns of its clock */
void us_model_drop(struct us_machine *m);           /* what models it */
#endif

/* topology.c: fills nodes and domains of a machine whose ncpus is set, from a checked description;
 * CPUs beyond it fold. False when memory is short. */
bool us_topology_check(const struct us_topology *t, struct us_error *error);
bool us_topology_apply(struct us_machine *m, const struct us_topology *t);

/* machine.c: the parts that both machines share. */
struct us_machine *us_machine_new(const struct us_topology *t, unsigned ncpus, unsigned table_cpus,
                                  size_t page_size, uint64_t seed, struct us_error *error);

/* Waits until no sequence and no slot lock that began before is still running on the CPU. False
 * only when a nested flight finds the CPU's slot busy. */
bool us_fence(struct us_machine *m, const struct us_flight *f, enum us_mode mode, unsigned cpu);
void us_fence_all(struct us_machine *m, enum us_mode mode);

#endif
