/* fast.h - the fast templates of this machine (see local.h). */
#ifndef US_FAST_H
#define US_FAST_H

#include "machine/native/slot.h"
#ifdef US_HAVE_RSEQ
#include "machine/native/counted_x86.h"
#include "machine/native/list_x86.h"
#include "machine/native/ring_x86.h"
#include "machine/native/sheaf_x86.h"
#endif

US_INLINE enum us_local_result us_fast_pop(struct us_local *l, enum us_mode mode, void **out)
{
#ifdef US_HAVE_RSEQ
    if (mode == US_MODE_RSEQ)
        return (enum us_local_result)us_seq_pop(l->table, out);
#endif
    return (enum us_local_result)(mode == US_MODE_SLOT && us_slot_pop(l, out));
}

US_INLINE enum us_local_result us_fast_push(struct us_local *l, enum us_mode mode, void *object)
{
#ifdef US_HAVE_RSEQ
    if (mode == US_MODE_RSEQ)
        return (enum us_local_result)us_seq_push(l->table, object);
#endif
    return (enum us_local_result)(mode == US_MODE_SLOT && us_slot_push(l, object));
}

US_INLINE enum us_local_result us_fast_list_pop(struct us_local *l, enum us_mode mode, unsigned w,
                                                ptrdiff_t link, void **out)
{
#ifdef US_HAVE_RSEQ
    int64_t cpu;

    if (mode == US_MODE_RSEQ)
        return (enum us_local_result)us_seq_list_pop(l->table, w, link, out, &cpu);
#endif
    return (enum us_local_result)(mode == US_MODE_SLOT && us_slot_list_pop(l, w, link, out));
}

US_INLINE enum us_local_result us_fast_list_push(struct us_local *l, enum us_mode mode, unsigned w,
                                                 ptrdiff_t link, struct us_list *owner,
                                                 void *object)
{
#ifdef US_HAVE_RSEQ
    if (mode == US_MODE_RSEQ)
        return (enum us_local_result)us_seq_list_push(l->table, w, link, owner, object);
#endif
    return (enum us_local_result)(mode == US_MODE_SLOT &&
                                  us_slot_list_push(l, w, link, owner, object));
}

US_INLINE enum us_local_result us_fast_counted_pop(struct us_local *l, enum us_mode mode,
                                                   unsigned w, ptrdiff_t link, void **out)
{
#ifdef US_HAVE_RSEQ
    int64_t cpu;

    if (mode == US_MODE_RSEQ)
        return (enum us_local_result)us_seq_counted_pop(l->table, w, link, out, &cpu);
#endif
    return (enum us_local_result)(mode == US_MODE_SLOT && us_slot_counted_pop(l, w, link, out));
}

US_INLINE enum us_local_result us_fast_counted_push(struct us_local *l, enum us_mode mode,
                                                    unsigned w, ptrdiff_t link, void *object)
{
#ifdef US_HAVE_RSEQ
    if (mode == US_MODE_RSEQ)
        return (enum us_local_result)us_seq_counted_push(l->table, w, link, object);
#endif
    return (enum us_local_result)(mode == US_MODE_SLOT && us_slot_counted_push(l, w, link, object));
}

US_INLINE enum us_local_result us_fast_main_pop(struct us_local *l, enum us_mode mode, void **out)
{
#ifdef US_HAVE_RSEQ
    if (mode == US_MODE_RSEQ)
        return (enum us_local_result)us_seq_main_pop(l->table, out);
#endif
    return (enum us_local_result)(mode == US_MODE_SLOT && us_slot_main_pop(l, out));
}

US_INLINE enum us_local_result us_fast_main_push(struct us_local *l, enum us_mode mode,
                                                 void *object)
{
#ifdef US_HAVE_RSEQ
    if (mode == US_MODE_RSEQ)
        return (enum us_local_result)us_seq_main_push(l->table, object);
#endif
    return (enum us_local_result)(mode == US_MODE_SLOT && us_slot_main_push(l, object));
}

#endif
