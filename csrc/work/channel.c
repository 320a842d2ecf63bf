#define _GNU_SOURCE
#ifndef US_MODEL
#include "work/channel.h"

#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A cell's turn is 2 * ticket while it may be sent into and one more while it may be received from:
 * different numbers even for a channel of one cell. */
static uint64_t may_send(uint64_t ticket)
{
    return 2 * ticket;
}

static uint64_t may_recv(uint64_t ticket)
{
    return 2 * ticket + 1;
}

bool us_channel_init(struct us_channel *c, uint32_t capacity)
{
    *c = (struct us_channel){.capacity = capacity};
    c->cell = calloc(capacity, sizeof(*c->cell));
    for (uint64_t i = 0; c->cell && i < capacity; i++)
        atomic_store_explicit(&c->cell[i].turn, may_send(i), memory_order_relaxed);
    return c->cell != NULL;
}

void us_channel_release(struct us_channel *c)
{
    free(c->cell);
    c->cell = NULL;
}

bool us_channel_send(struct us_channel *c, uint64_t message, uint64_t due_ns)
{
    uint64_t ticket = atomic_load_explicit(&c->tail, memory_order_relaxed);

    for (;;) {
        struct us_cell *cell = &c->cell[ticket % c->capacity];
        uint64_t turn = atomic_load_explicit(&cell->turn, memory_order_acquire);

        if (turn == may_send(ticket)) {
            if (!atomic_compare_exchange_weak_explicit(&c->tail, &ticket, ticket + 1,
                                                       memory_order_relaxed, memory_order_relaxed))
                continue;
            cell->message = message;
            atomic_store_explicit(&cell->due_ns, due_ns, memory_order_relaxed);
            atomic_store_explicit(&cell->turn, may_recv(ticket), memory_order_release);
            return true;
        }
        if (turn < may_send(ticket))
            return false;
        ticket = atomic_load_explicit(&c->tail, memory_order_relaxed);
    }
}

/* `early`: also what has not arrived. The time is read before the ticket is won; who wins it knows
 * that nobody received and refilled the cell in between, because tickets never come back. */
static bool receive(struct us_channel *c, uint64_t *message, uint64_t *due_ns, bool early)
{
    uint64_t ticket = atomic_load_explicit(&c->head, memory_order_relaxed);

    for (;;) {
        struct us_cell *cell = &c->cell[ticket % c->capacity];
        uint64_t turn = atomic_load_explicit(&cell->turn, memory_order_acquire);

        if (turn == may_recv(ticket)) {
            *due_ns = atomic_load_explicit(&cell->due_ns, memory_order_relaxed);
            if (*due_ns && !early && us_clock_real() < *due_ns)
                return false;
            if (!atomic_compare_exchange_weak_explicit(&c->head, &ticket, ticket + 1,
                                                       memory_order_relaxed, memory_order_relaxed))
                continue;
            *message = cell->message;
            atomic_store_explicit(&cell->turn, may_send(ticket + c->capacity),
                                  memory_order_release);
            return true;
        }
        if (turn < may_recv(ticket)) {
            *due_ns = 0;
            return false;
        }
        ticket = atomic_load_explicit(&c->head, memory_order_relaxed);
    }
}

bool us_channel_recv(struct us_channel *c, uint64_t *message, uint64_t *due_ns)
{
    return receive(c, message, due_ns, false);
}

bool us_channel_take(struct us_channel *c, uint64_t *message)
{
    uint64_t due_ns;

    return receive(c, message, &due_ns, true);
}

bool us_channel_is_full(const struct us_channel *c)
{
    uint64_t head = atomic_load(&((struct us_channel *)c)->head);

    return atomic_load(&((struct us_channel *)c)->tail) - head >= c->capacity;
}

bool us_channel_is_empty(const struct us_channel *c)
{
    uint64_t tail = atomic_load(&((struct us_channel *)c)->tail);

    return atomic_load(&((struct us_channel *)c)->head) >= tail;
}

/* ---- sleeping ------------------------------------------------------------------------------- */

void us_event_notify(struct us_event *e, unsigned n)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (US_LIKELY(atomic_load_explicit(&e->sleepers, memory_order_relaxed) == 0))
        return;
    atomic_fetch_add(&e->turn, 1);
    syscall(SYS_futex, &e->turn, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

uint32_t us_event_prepare(struct us_event *e)
{
    uint32_t turn;

    atomic_fetch_add(&e->sleepers, 1);
    turn = atomic_load(&e->turn);
    atomic_thread_fence(memory_order_seq_cst);
    return turn;
}

void us_event_sleep(struct us_event *e, uint32_t turn, uint64_t ns)
{
    struct timespec most = {.tv_sec = (time_t)(ns / 1000000000u),
                            .tv_nsec = (long)(ns % 1000000000u)};

    syscall(SYS_futex, &e->turn, FUTEX_WAIT_PRIVATE, turn, &most, NULL, 0);
    atomic_fetch_sub(&e->sleepers, 1);
}

void us_event_cancel(struct us_event *e)
{
    atomic_fetch_sub(&e->sleepers, 1);
}
#endif
