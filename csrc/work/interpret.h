/* interpret.h - the loop over a task's ops, one instance a heap. */
#ifndef US_WORK_INTERPRET_H
#define US_WORK_INTERPRET_H

#include "work/runner.h"

/* Everything but the two hot ops; false ends the pass. */
static US_NOINLINE bool alloc_special(struct us_task *t, const struct us_op *op)
{
    struct us_heap *h = &t->runner->heap;
    void *object = us_heap_alloc_special(h, op);

    if (!object) {
        us_task_fail(t, op, US_ENOMEM, NULL);
        return false;
    }
    us_heap_touch(object, h->cache[op->cache].touch);
    t->slot[op->slot] = us_word(object, op->cache);
    return true;
}

static US_NOINLINE bool alloc_shared(struct us_task *t, const struct us_op *op)
{
    struct us_heap *h = &t->runner->heap;
    uint64_t word;
    void *object;

    /* The slot's last object, which another task frees, comes first. */
    if (!us_wait_shared(t, op, false, &word))
        return false;
    if (h->kind == US_HEAP_NULL)
        object = t->scratch;
    else if (us_heap_is_special(h, op))
        object = us_heap_alloc_special(h, op);
    else
        object = us_heap_alloc(h->kind, &h->cache[op->cache], t->scratch);
    if (!object) {
        us_task_fail(t, op, US_ENOMEM, NULL);
        return false;
    }
    us_heap_touch(object, h->cache[op->cache].touch);
    atomic_store_explicit(&t->runner->shared[op->slot], us_word(object, op->cache),
                          memory_order_release);
    return true;
}

static US_NOINLINE bool touch_word(struct us_task *t, const struct us_op *op, uint64_t word)
{
    uint64_t size = t->runner->heap.cache[us_word_cache(word)].size;

    if (op->arg > size) {
        us_task_fail(t, op, US_EINVAL, "more bytes than the object has");
        return false;
    }
    us_heap_touch(us_word_object(word), op->arg ? op->arg : size);
    return true;
}

static US_NOINLINE bool touch_shared(struct us_task *t, const struct us_op *op)
{
    uint64_t word;

    return us_wait_shared(t, op, true, &word) && touch_word(t, op, word);
}

/* A dependent chain of decrements: about one a cycle, in pieces, so that a stop is seen. */
static US_NOINLINE bool work(struct us_task *t, uint64_t cycles)
{
    while (cycles > 0) {
        uint64_t piece = cycles < 1000000 ? cycles : 1000000;

        cycles -= piece;
        for (; piece > 0; piece--)
            __asm__ volatile("" : "+r"(piece));
        if (atomic_load_explicit(&t->runner->stop, memory_order_relaxed))
            return false;
    }
    return true;
}

static US_NOINLINE bool send_or_recv(struct us_task *t, const struct us_op *op)
{
    uint64_t word = US_EMPTY_MESSAGE;

    if (op->op == US_OP_RECV) {
        if (!us_wait_recv(t, op, &word))
            return false;
        if (op->slot != US_NO_SLOT)
            t->slot[op->slot] = word;
        return true;
    }
    if (op->slot != US_NO_SLOT)
        word = t->slot[op->slot];
    if (!us_wait_send(t, op, word))
        return false;
    if (op->slot != US_NO_SLOT)
        t->slot[op->slot] = 0;
    return true;
}

static US_NOINLINE bool rare(struct us_task *t, const struct us_op *op)
{
    switch (op->op) {
    case X_ALLOC_SPECIAL:
        return alloc_special(t, op);
    case X_ALLOC_SHARED:
        return alloc_shared(t, op);
    case X_TOUCH_SHARED:
        return touch_shared(t, op);
    case US_OP_TOUCH:
        return touch_word(t, op, t->slot[op->slot]);
    case US_OP_WORK:
        return work(t, op->arg);
    case US_OP_SEND:
    case US_OP_RECV:
        return send_or_recv(t, op);
    case US_OP_BARRIER:
        return us_wait_barrier(t, op);
    case US_OP_CLOCK:
        return us_wait_clock(t, op);
    case US_OP_PROGRESS:
        return us_wait_progress(t, op);
    case US_OP_SLEEP:
        return us_wait_sleep(t, op);
    case US_OP_MARK:
        /* One writer: no locked instruction. */
        atomic_store_explicit(&t->marks, atomic_load_explicit(&t->marks, memory_order_relaxed) + 1,
                              memory_order_relaxed);
        return true;
    default:
        return false; /* X_END */
    }
}

/* Looks at the accounts now and then, more seldom the longer the pass is. */
static US_NOINLINE void sample_sometimes(struct us_task *t)
{
    enum { FIRST_STRIDE = 32, AT_ONE_STRIDE = 512 };

    if (t->sample_stride == 0)
        t->sample_stride = t->sample_left = FIRST_STRIDE;
    if (--t->sample_left > 0)
        return;
    us_runner_sample(t->runner);
    if (++t->samples % AT_ONE_STRIDE == 0)
        t->sample_stride *= 2;
    t->sample_left = t->sample_stride;
}

/* `sampling` is constant: timed passes carry nothing of it. */
US_INLINE void interpret(struct us_task *t, const enum us_heap_kind kind, const bool sampling)
{
    struct us_runner *const r = t->runner;
    struct us_heap *const h = &r->heap;
    uint64_t *const slot = t->slot;

    for (const struct us_op *op = t->ops;; op++) {
        if (US_UNLIKELY(atomic_load_explicit(&r->stop, memory_order_relaxed)))
            return;
        if (sampling)
            sample_sometimes(t);
        if (op->op == US_OP_ALLOC) {
            const struct us_heap_cache *c = &h->cache[op->cache];
            void *object = us_heap_alloc(kind, c, t->scratch);

            if (US_UNLIKELY(!object)) {
                us_task_fail(t, op, US_ENOMEM, NULL);
                return;
            }
            us_heap_touch(object, c->touch);
            slot[op->slot] = us_word(object, op->cache);
        } else if (op->op == US_OP_FREE) {
            uint64_t word = slot[op->slot];

            slot[op->slot] = 0;
            us_heap_free(kind, h, word);
        } else if (op->op == X_FREE_SHARED) {
            uint64_t word = atomic_load_explicit(&r->shared[op->slot], memory_order_acquire);

            if (US_UNLIKELY(word == 0) && !us_wait_shared(t, op, true, &word))
                return;
            us_heap_free(kind, h, word);
            atomic_store_explicit(&r->shared[op->slot], 0, memory_order_release);
        } else if (op->op == US_OP_REPEAT) {
            if (++t->loop[op->cache] < op->arg)
                op -= op->slot + 1;
            else
                t->loop[op->cache] = 0;
        } else if (!rare(t, op)) {
            return;
        }
    }
}

#endif
