/* coroutine.c - see coroutine.h. The frame that a switch leaves on the stack, from its pointer up:
 * the callee's registers, then where it returns to. A new context is such a frame made by hand,
 * whose return address is a stub that calls the function. */
#define _GNU_SOURCE
#include "machine/model/coroutine.h"

#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)

__asm__(".text\n"
        ".p2align 4\n"
        ".type us_context_switch_asm, @function\n"
        "us_context_switch_asm:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size us_context_switch_asm, . - us_context_switch_asm\n"
        ".p2align 4\n"
        ".type us_context_start_asm, @function\n"
        "us_context_start_asm:\n"
        "    movq %r12, %rdi\n"
        "    callq *%r13\n"
        "    ud2\n"
        ".size us_context_start_asm, . - us_context_start_asm\n");
extern void us_context_switch_asm(void **from, void *to) __attribute__((visibility("hidden")));
extern void us_context_start_asm(void) __attribute__((visibility("hidden")));

void *us_context_make(void *stack, size_t bytes, us_coroutine_fn *fn, void *argument)
{
    /* r15 r14 r13 r12 rbx rbp, the return address, and two words so that the stub, entered by a
     * return, calls on a stack aligned to 16 bytes. */
    uintptr_t *frame = (uintptr_t *)((char *)stack + bytes) - 9;

    memset(frame, 0, 9 * sizeof(*frame));
    frame[2] = (uintptr_t)fn;
    frame[3] = (uintptr_t)argument;
    frame[6] = (uintptr_t)us_context_start_asm;
    return frame;
}

void us_context_switch(void **from, void *to)
{
    us_context_switch_asm(from, to);
}

void us_context_drop(void *context)
{
    (void)context;
}

#elif defined(__aarch64__) && !defined(__SANITIZE_ADDRESS__)

__asm__(".text\n"
        ".p2align 4\n"
        ".type us_context_switch_asm, %function\n"
        "us_context_switch_asm:\n"
        "    sub sp, sp, #160\n"
        "    stp x19, x20, [sp, #0]\n"
        "    stp x21, x22, [sp, #16]\n"
        "    stp x23, x24, [sp, #32]\n"
        "    stp x25, x26, [sp, #48]\n"
        "    stp x27, x28, [sp, #64]\n"
        "    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n"
        "    stp d10, d11, [sp, #112]\n"
        "    stp d12, d13, [sp, #128]\n"
        "    stp d14, d15, [sp, #144]\n"
        "    mov x9, sp\n"
        "    str x9, [x0]\n"
        "    mov sp, x1\n"
        "    ldp x19, x20, [sp, #0]\n"
        "    ldp x21, x22, [sp, #16]\n"
        "    ldp x23, x24, [sp, #32]\n"
        "    ldp x25, x26, [sp, #48]\n"
        "    ldp x27, x28, [sp, #64]\n"
        "    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n"
        "    ldp d10, d11, [sp, #112]\n"
        "    ldp d12, d13, [sp, #128]\n"
        "    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n"
        "    ret\n"
        ".size us_context_switch_asm, . - us_context_switch_asm\n"
        ".p2align 4\n"
        ".type us_context_start_asm, %function\n"
        "us_context_start_asm:\n"
        "    mov x0, x19\n"
        "    blr x20\n"
        "    brk #1\n"
        ".size us_context_start_asm, . - us_context_start_asm\n");
extern void us_context_switch_asm(void **from, void *to) __attribute__((visibility("hidden")));
extern void us_context_start_asm(void) __attribute__((visibility("hidden")));

void *us_context_make(void *stack, size_t bytes, us_coroutine_fn *fn, void *argument)
{
    uintptr_t *frame = (uintptr_t *)((char *)stack + bytes) - 20;

    memset(frame, 0, 20 * sizeof(*frame));
    frame[0] = (uintptr_t)argument;
    frame[1] = (uintptr_t)fn;
    frame[11] = (uintptr_t)us_context_start_asm;
    return frame;
}

void us_context_switch(void **from, void *to)
{
    us_context_switch_asm(from, to);
}

void us_context_drop(void *context)
{
    (void)context;
}

#else /* any other machine, and the sanitizer that has to know of every switch */

#include <ucontext.h>

struct context {
    ucontext_t c;
    us_coroutine_fn *fn;
    void *argument;
    const void *stack;
    size_t bytes;
#if defined(__SANITIZE_ADDRESS__)
    void *fake;
#endif
};

static void arrived(struct context *self, struct context *from)
{
#if defined(__SANITIZE_ADDRESS__)
    const void *stack;
    size_t bytes;

    __sanitizer_finish_switch_fiber(self->fake, &stack, &bytes);
    if (from && !from->stack) { /* the thread's own stack, known once it is left */
        from->stack = stack;
        from->bytes = bytes;
    }
#else
    (void)self;
    (void)from;
#endif
}

static struct context *left; /* by the switch that is being made; one thread models at a time */

static void start(unsigned high, unsigned low)
{
    struct context *self = (struct context *)((uintptr_t)high << 32 | low);

    arrived(self, left);
    self->fn(self->argument);
    abort();
}

void *us_context_make(void *stack, size_t bytes, us_coroutine_fn *fn, void *argument)
{
    struct context *made = calloc(1, sizeof(*made));

    if (!made || getcontext(&made->c)) {
        free(made);
        return NULL;
    }
    made->fn = fn;
    made->argument = argument;
    made->stack = stack;
    made->bytes = bytes;
    made->c.uc_stack.ss_sp = stack;
    made->c.uc_stack.ss_size = bytes;
    makecontext(&made->c, (void (*)(void))start, 2, (unsigned)((uintptr_t)made >> 32),
                (unsigned)(uintptr_t)made);
    return made;
}

void us_context_switch(void **from, void *to)
{
    struct context *self = *from ? *from : calloc(1, sizeof(*self)), *other = to;

    if (!self)
        abort();
    *from = left = self;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&self->fake, other->stack, other->bytes);
#endif
    swapcontext(&self->c, &other->c);
    arrived(self, left);
}

/* It may be left in the middle of functions, whose frames the sanitizer would go on to know in
 * whatever is mapped there next. */
void us_context_drop(void *context)
{
#if defined(__SANITIZE_ADDRESS__)
    struct context *self = context;

    if (self && self->fn) /* else the thread's own stack */
        __asan_unpoison_memory_region(self->stack, self->bytes);
#endif
    free(context);
}

#endif
