/* exchange.h - a slab's freelist and counters changed together, by a double-word compare-exchange.
 *
 * The words are {freelist} and {free, node, state, lock}, adjacent and aligned to 16 bytes in the
 * descriptor. Where the processor exchanges 16 bytes at once (x86-64) nothing is locked. Elsewhere,
 * and where a sanitizer has to see it, the slab's byte lock is held for the comparison: the last of
 * all locks. A modelled CPU is alone.
 *
 * Who prepares an exchange looks first; the look may be torn, and then the exchange is lost. Bits
 * of `state` may be changed by others meanwhile (PARTIAL under the node lock, BAD by a report),
 * which loses an exchange as well.
 */
#ifndef US_EXCHANGE_H
#define US_EXCHANGE_H

#include "slab/slab.h"

struct us_pair {
    void *freelist;
    union {
        struct {
            uint32_t free;
            uint16_t node;
            uint8_t state;
            uint8_t lock;
        };
        uint64_t counters;
    };
} US_ALIGNED(16);

_Static_assert(sizeof(struct us_pair) == 16 && offsetof(struct us_slab, freelist) == 16 &&
                   offsetof(struct us_slab, counters) == 24 &&
                   offsetof(struct us_slab, state) == 16 + offsetof(struct us_pair, state),
               "the pair lies in the descriptor");

enum us_exchange {
    US_EXCHANGE_LOST, /* somebody was faster: look again */
    US_EXCHANGE_DONE,
    US_EXCHANGE_BUSY, /* a nested flight found the byte lock taken: nothing was done */
};

US_INLINE struct us_pair us_pair_look(const struct us_slab *s)
{
    struct us_pair p;

    us_reads(s, sizeof(*s));
    p.freelist = __atomic_load_n(&s->freelist, __ATOMIC_ACQUIRE);
    p.counters = __atomic_load_n(&s->counters, __ATOMIC_ACQUIRE);
    p.lock = 0;
    return p;
}

/* US_EXCHANGE_LOCKED: for tests of the other way. */
#if defined(__x86_64__) && !defined(US_MODEL) && !defined(__SANITIZE_THREAD__) && \
    !defined(US_EXCHANGE_LOCKED)

US_INLINE enum us_exchange us_pair_exchange(struct us_flight *f, struct us_slab *s,
                                            struct us_pair old, struct us_pair next)
{
    bool done;

    (void)f;
    __asm__ volatile("lock cmpxchg16b %[pair]"
                     : "=@ccz"(done), [pair] "+m"(*(struct us_pair *)&s->freelist),
                       "+a"(old.freelist), "+d"(old.counters)
                     : "b"(next.freelist), "c"(next.counters)
                     : "memory");
    return done ? US_EXCHANGE_DONE : US_EXCHANGE_LOST;
}

#else

/* State bits change one by one, for others change theirs without the lock. */
US_INLINE enum us_exchange us_pair_exchange(struct us_flight *f, struct us_slab *s,
                                            struct us_pair old, struct us_pair next)
{
    bool same;

    us_runs(9);
    us_updates(&s->freelist, sizeof(struct us_pair));
#ifndef US_MODEL
    if (!us_bytelock_take_last(f, &s->lock))
        return US_EXCHANGE_BUSY;
#else
    (void)f;
#endif
    same = s->freelist == old.freelist && s->free == old.free &&
           atomic_load_explicit(&s->state, memory_order_relaxed) == old.state;
    if (same) {
        __atomic_store_n(&s->freelist, next.freelist, __ATOMIC_RELEASE);
        __atomic_store_n(&s->free, next.free, __ATOMIC_RELEASE);
        atomic_fetch_or_explicit(&s->state, (uint8_t)(next.state & ~old.state),
                                 memory_order_release);
        atomic_fetch_and_explicit(&s->state, (uint8_t)~(old.state & ~next.state),
                                  memory_order_release);
    }
#ifndef US_MODEL
    us_bytelock_drop(f, &s->lock);
#endif
    return same ? US_EXCHANGE_DONE : US_EXCHANGE_LOST;
}

#endif

#endif
