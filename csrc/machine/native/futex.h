/* futex.h - waiting for a word to change, and waking those who do. */
#ifndef US_FUTEX_H
#define US_FUTEX_H

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Returns at once when *word != value, and whenever it likes: callers look again. */
static inline void us_futex_wait(_Atomic uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static inline void us_futex_wake(_Atomic uint32_t *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static inline void us_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* A sleeping lock on one word: 0 free, 1 held, 2 held and awaited. True when it had to wait. */
static inline _Bool us_word_lock(_Atomic uint32_t *word)
{
    uint32_t seen = 0;

    if (atomic_compare_exchange_strong_explicit(word, &seen, 1, memory_order_acquire,
                                                memory_order_relaxed))
        return 0;
    for (int i = 0; i < 100; i++) { /* most holders are done within a microsecond */
        us_pause();
        seen = 0;
        if (atomic_load_explicit(word, memory_order_relaxed) == 0 &&
            atomic_compare_exchange_strong_explicit(word, &seen, 1, memory_order_acquire,
                                                    memory_order_relaxed))
            return 1;
    }
    while (atomic_exchange_explicit(word, 2, memory_order_acquire) != 0)
        us_futex_wait(word, 2);
    return 1;
}

static inline void us_word_unlock(_Atomic uint32_t *word)
{
    if (atomic_exchange_explicit(word, 0, memory_order_release) == 2)
        us_futex_wake(word, 1);
}

#endif
