/* inner.h - what both executors make of a program's ops: inner codes, names, objects that are live.
 */
#ifndef US_WORK_INNER_H
#define US_WORK_INNER_H

#include "work/heap.h"

/* Codes behind those of us_opcode, chosen when the program is copied: short ways stay short. */
enum {
    X_ALLOC_SPECIAL = US_OP_COUNT,
    X_ALLOC_SHARED,
    X_FREE_SHARED,
    X_TOUCH_SHARED,
    X_END,
};

/* Fills the error with a text as it is; false. */
US_INLINE bool us_refuse(struct us_error *error, enum us_status status, const char *text)
{
    (void)us_fail(error, status, "%s", text);
    return false;
}

/* A copy of a task's ops with inner codes, ended by X_END; a REPEAT names its counter in `cache`.
 * NULL: no memory. */
struct us_op *us_inner_ops(const struct us_heap *h, const struct us_program_task *task);
/* Name of an op of such a copy. */
const char *us_inner_name(const struct us_op *op);
/* Why the allocation of an op failed; fills *e (its text may be what is returned). */
const char *us_inner_no_memory(const struct us_heap *h, const struct us_op *op, struct us_error *e);
/* Takes the accounts; each field of *peak becomes the larger one. */
void us_inner_peak(struct us_allocator *a, struct us_account *peak);
/* Frees what a slot or a message holds. */
void us_inner_free(const struct us_heap *h, uint64_t word);

#endif
