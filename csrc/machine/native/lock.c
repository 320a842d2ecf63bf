/* lock.c - sleeping locks and byte locks between real threads.
 *
 * A nested flight (a signal handler inside a slow path) only tries, since its own thread may hold
 * the lock; and while a gate is shut it does not even try, since who shut it works without locks.
 */
#include <sched.h>
#include <time.h>

#include "machine/backend.h"
#include "machine/native/futex.h"

static bool may_not_try(const struct us_flight *f)
{
    return us_flight_nested(f) && atomic_load(&f->machine->gate) != 0;
}

/* Written by the holder alone; readers of other threads see one or the other. */
static void count(_Atomic uint64_t *n)
{
    atomic_store_explicit(n, atomic_load_explicit(n, memory_order_relaxed) + 1,
                          memory_order_relaxed);
}

bool us_lock_try(struct us_flight *f, struct us_lock *lock)
{
    uint32_t free = 0;

    if (may_not_try(us_flight_or_current(f)))
        return false;
    if (!atomic_compare_exchange_strong_explicit(&lock->word, &free, 1, memory_order_acquire,
                                                 memory_order_relaxed))
        return false;
    us_rank_take(lock->klass, false);
    count(&lock->acquired);
    return true;
}

bool us_lock_take(struct us_flight *f, struct us_lock *lock)
{
    f = us_flight_or_current(f);
    if (us_flight_nested(f))
        return us_lock_try(f, lock);
    us_rank_take(lock->klass, true);
    if (us_word_lock(&lock->word))
        count(&lock->contended);
    count(&lock->acquired);
    return true;
}

void us_lock_drop(struct us_flight *f, struct us_lock *lock)
{
    (void)f;
    us_rank_drop(lock->klass);
    us_word_unlock(&lock->word);
}

/* ---- byte locks -------------------------------------------------------------------------------
 */

static bool byte_try(struct us_flight *f, _Atomic uint8_t *lock)
{
    if (atomic_load_explicit(lock, memory_order_relaxed) != 0 ||
        atomic_exchange_explicit(lock, 1, memory_order_acquire) != 0)
        return false;
    if (f != NULL)
        f->byte_locks++;
    return true;
}

bool us_bytelock_try(struct us_flight *f, _Atomic uint8_t *lock)
{
    f = us_flight_or_current(f);
    if (may_not_try(f) || !byte_try(f, lock))
        return false;
    us_rank_take(US_LOCK_SLAB, false);
    return true;
}

/* There is no room for waiters in a byte: spin, then let others run, then sleep. */
static void back_off(unsigned tries)
{
    if (tries < 64) {
        us_pause();
    } else if (tries < 96) {
        sched_yield();
    } else {
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
}

static bool take_byte(struct us_flight *f, _Atomic uint8_t *lock, bool ordered)
{
    unsigned tries = 0;

    f = us_flight_or_current(f);
    if (us_flight_nested(f))
        return us_bytelock_try(f, lock);
    us_rank_take(US_LOCK_SLAB, ordered);
    while (!byte_try(f, lock))
        back_off(tries++);
    if (tries > 0 && f != NULL)
        atomic_fetch_add_explicit(&f->machine->cpu[f->counted_cpu].byte_contended, 1,
                                  memory_order_relaxed);
    return true;
}

bool us_bytelock_take(struct us_flight *f, _Atomic uint8_t *lock)
{
    return take_byte(f, lock, true);
}

bool us_bytelock_take_last(struct us_flight *f, _Atomic uint8_t *lock)
{
    return take_byte(f, lock, false);
}

void us_bytelock_drop(struct us_flight *f, _Atomic uint8_t *lock)
{
    (void)f;
    us_rank_drop(US_LOCK_SLAB);
    atomic_store_explicit(lock, 0, memory_order_release);
}
