/* coroutine.h - switching between stacks of one thread.
 *
 * us_context_switch saves the callee's registers on the stack it leaves, keeps that stack's pointer
 * and goes on with another: two dozen instructions on x86-64 and aarch64, ucontext elsewhere.
 */
#ifndef US_COROUTINE_H
#define US_COROUTINE_H

#include "machine/machine.h"

#if defined(__SANITIZE_ADDRESS__)
#define US_STACK_BYTES (1024u << 10)
#else
#define US_STACK_BYTES (256u << 10) /* of address space; little of it is ever touched */
#endif

typedef void us_coroutine_fn(void *argument);

/* A context whose first switch calls fn(argument), which never returns. `stack` is page-aligned. */
void *us_context_make(void *stack, size_t bytes, us_coroutine_fn *fn, void *argument);
/* Keeps the present context in *from and goes on with `to`. */
void us_context_switch(void **from, void *to);
/* Frees what a context holds beside its stack. */
void us_context_drop(void *context);

#endif
