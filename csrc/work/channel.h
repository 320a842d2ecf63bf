/* channel.h - bounded queues of messages between tasks, and sleeping until something changed.
 *
 * A channel is a ring of cells, each with a turn number: a sender owns the cell whose turn equals
 * its ticket, a receiver the one whose turn is its ticket + 1 (Vyukov's bounded queue). No lock, so
 * a task that is not running holds nobody up for longer than its own message.
 *
 * A message is one word: a slot's content, or US_EMPTY_MESSAGE. It may have a time before which it
 * cannot be received; those behind it wait for it, so messages never overtake one another.
 */
#ifndef US_WORK_CHANNEL_H
#define US_WORK_CHANNEL_H

#include "machine/machine.h"

#define US_EMPTY_MESSAGE 1ull /* no address: objects are aligned */

/* Waiters sleep on `turn`; who changes something wakes them only if there are any. */
struct us_event {
    _Atomic uint32_t turn;
    _Atomic uint32_t sleepers;
};

struct us_cell {
    _Atomic uint64_t turn;
    uint64_t message;
    _Atomic uint64_t due_ns; /* 0 = at once; read by receivers that may not get the message */
};

struct us_channel {
    struct us_cell *cell;
    uint64_t capacity;
    _Atomic uint64_t head US_ALIGNED(US_LINE); /* next to receive */
    _Atomic uint64_t tail US_ALIGNED(US_LINE); /* next to send */
    struct us_event readable US_ALIGNED(US_LINE), writable;
};

bool us_channel_init(struct us_channel *c, uint32_t capacity);
void us_channel_release(struct us_channel *c);
/* False when full. due_ns: real time at which the message arrives, 0 = at once. */
bool us_channel_send(struct us_channel *c, uint64_t message, uint64_t due_ns);
/* False when there is none, or *due_ns (else 0) is when the next one arrives. */
bool us_channel_recv(struct us_channel *c, uint64_t *message, uint64_t *due_ns);
/* The next one, arrived or not; for who frees what is left. */
bool us_channel_take(struct us_channel *c, uint64_t *message);
/* As somebody who does not take part sees it. */
bool us_channel_is_full(const struct us_channel *c);
bool us_channel_is_empty(const struct us_channel *c);

/* Call after the change is visible. */
void us_event_notify(struct us_event *e, unsigned n);
/* Announces a sleeper and returns what to pass to us_event_sleep; check the condition in between.
 */
uint32_t us_event_prepare(struct us_event *e);
void us_event_sleep(struct us_event *e, uint32_t turn, uint64_t ns); /* at most ns */
void us_event_cancel(struct us_event *e);

#endif
